"""The records of the earlier system's ``activations.json`` as lives, and lives as such records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from core.contracts import EnvSpec, Field, UserError
from core.episodes import Episode
from envs.nmmo import COLUMN, FEATURES, OWN_TILE, features

READ_AT_ONCE = 1 << 20  # characters
PRICES, MOVES, STYLES = 99, 5, 3
TABLES = ("Tile", "Entity", "Inventory", "Market")


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON list or of JSON lines, one after another; the file is never in memory as a whole.

    Raises UserError where it is not there, ends too early or holds something else.
    """
    decoder = json.JSONDecoder()
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    with open(path, encoding="utf-8") as file:
        text, at, ended = "", 0, False
        number = 0
        while True:
            while at < len(text) and text[at] in " \t\r\n,[":
                at += 1
            if at < len(text) and text[at] == "]":
                return
            try:
                if at >= len(text):
                    raise json.JSONDecodeError("more is needed", text, at)
                record, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if not isinstance(error, json.JSONDecodeError):  # numbers of thousands of digits, thousands of [
                    raise UserError(f"{path}: record {number} is broken ({error})") from None
                try:
                    more = "" if ended else file.read(max(READ_AT_ONCE, len(text) - at))
                except UnicodeDecodeError:
                    raise UserError(f"{path} is no JSON file (not UTF-8 text)") from None
                ended = not more
                text, at = text[at:] + more, 0
                if ended and not text:
                    return
                if ended:
                    raise UserError(
                        f"{path}: record {number} is broken ({error.msg}); the file may be cut off"
                    ) from None
                continue
            if wrong := _wrong_with(record):
                raise UserError(f"{path}: record {number} {wrong}: not the earlier system's layout")
            number += 1
            yield record


def _wrong_with(record: Any) -> str:
    """What a record has not; '' if nothing is missing."""
    if not isinstance(record, dict) or not {"activation", "agent_id", "env_id"} <= record.keys():
        return "has no activation, agent_id and env_id"
    if not all(type(record[k]) is int for k in ("agent_id", "env_id")):
        return "has an agent_id or env_id that is no whole number"
    if not all(isinstance(record.get(k), list) and record[k] for k in ("activation", "action")):
        return "has no list of numbers as activation or as action"
    observation = record.get("observation", {})
    if not isinstance(observation, dict) or not all(isinstance(v, list) for v in observation.values() if v is not None):
        return "has an observation that is not tables by name"
    if not isinstance(record.get("step") if observation.get("CurrentTick") is None else 0, int):
        return "has neither step nor CurrentTick"
    return ""


def lives_of(rows: Iterator[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], bool]]:
    """(the records of a life in order of time, whether the file goes on with this agent's next life).

    A new life begins where an agent's tick does not grow.  Dead agents (no own row in the table) are left out.
    """
    running: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows:
        if _is_dead(row):
            continue
        key = (int(row["env_id"]), int(row["agent_id"]))
        mine = running.setdefault(key, [])
        if mine and _tick(row) <= _tick(mine[-1]):
            yield mine, True
            running[key] = mine = []
        mine.append(row)
    for mine in running.values():
        yield mine, False


def _tick(row: Mapping[str, Any]) -> int:
    said = row.get("observation", {}).get("CurrentTick")
    return int(row["step"] if said is None else np.ravel(said)[0])


def _is_dead(row: Mapping[str, Any]) -> bool:
    entity = row.get("observation", {}).get("Entity")
    if entity is None:
        return False
    return all(int(e[0]) != int(row["agent_id"]) for e in entity)


def spec_of(record: Mapping[str, Any]) -> EnvSpec:
    """A world that explains the record: its tables as they are, action parts of the sizes that belong to them."""
    obs = {k: np.asarray(v) for k, v in record.get("observation", {}).items() if k in TABLES}
    fields = {k: Field(shape=v.shape, dtype="int16") for k, v in obs.items()}
    if "observation" in record:
        fields["Tick"] = Field(shape=(1,), dtype="int16")
    entities = 1 + (len(obs["Entity"]) if "Entity" in obs else 100)
    parts = {"Attack.Style": STYLES, "Attack.Target": entities}
    if len(record["action"]) == 12:
        item, listed = 1 + len(obs.get("Inventory", range(12))), 1 + len(obs.get("Market", range(384)))
        parts |= {
            "Buy.MarketItem": listed, "Destroy.InventoryItem": item, "Give.InventoryItem": item,
            "Give.Target": entities, "GiveGold.Price": PRICES, "GiveGold.Target": entities,
            "Move.Direction": MOVES, "Sell.InventoryItem": item,
            "Sell.Price": PRICES, "Use.InventoryItem": item,
        }  # fmt: skip
    elif len(record["action"]) == 3:
        parts["Move.Direction"] = MOVES
    else:
        raise UserError(f"actions of {len(record['action'])} parts; Neural MMO without communication has 12, or 3")
    names = tuple(f"{part} {i}" for part, size in parts.items() for i in range(size))
    return EnvSpec(env_id="nmmo-imported", obs=fields, action_names=names, action_parts=parts, slots=1,
                   gives_final_obs=False)  # fmt: skip


def life_of(rows: list[dict[str, Any]], spec: EnvSpec, meta: Mapping[str, Any], again: bool) -> Episode:
    """An Episode from a life's records; features from the records' own, or from what was seen and done.

    Did it end in death?  The earlier system's records do not say; then it did if the agent lives ``again``.  Raises
    KeyError, TypeError or ValueError where the records are not all of one layout.
    """
    h_TH = np.array([row["activation"] for row in rows], np.float32)
    if not np.isfinite(h_TH).all():
        raise ValueError("an activation is not a finite number")
    died = bool(rows[-1].get("died", again))
    action = np.array([row["action"] for row in rows], np.int64)
    seen = [row.get("observation", {}) for row in rows]
    obs = {k: _int16([s[k] for s in seen]) for k in spec.obs if k != "Tick"}
    if "Tick" in spec.obs:
        obs["Tick"] = np.array([[_tick(row)] for row in rows], np.int16)
    if "Entity" in obs:
        obs["Entity"] = _own_first(obs["Entity"], int(rows[0]["agent_id"]))
    if "features" in rows[0]:
        of = np.array([[row["features"][name] for name in FEATURES] for row in rows], np.float32)
    elif "Entity" in obs:
        ids = obs["Entity"][..., 0]
        npcs, players = (ids < 0).sum(1), (ids > 0).sum(1) - 1
        visible = np.stack([npcs + players, npcs, players], 1)
        of = features(obs, {"visible": visible}, action, spec)
    else:
        raise UserError("records without observations and without features say nothing of what agents did")
    truth: dict[str, np.ndarray] = {"features": of}
    if "Entity" in obs:
        truth["position"] = obs["Entity"][:, 0][:, [COLUMN["row"], COLUMN["col"]]]
    if "Tile" in obs:
        truth["tile"] = obs["Tile"][:, OWN_TILE, 2]
    return Episode(
        obs=obs,
        truth=truth,
        h=h_TH,
        value=np.full(len(rows), np.nan, np.float32),
        action=action,
        reward=np.full(len(rows), np.nan, np.float32),
        terminated=died,
        truncated=not died,
        meta={**meta, "world": int(rows[0]["env_id"]), "agent": int(rows[0]["agent_id"]), "first_tick": _tick(rows[0])},
    )


def _int16(tables: list[Any]) -> np.ndarray:
    out = np.array(tables, np.int64)
    if (np.abs(out) > np.iinfo(np.int16).max).any():
        raise ValueError("an observation does not fit into 16 bits")
    return out.astype(np.int16)


def _own_first(entity_TKC: np.ndarray, agent: int) -> np.ndarray:
    """The same tables with the own row in front, the others in their order."""
    order = (entity_TKC[..., 0] != agent).argsort(1, kind="stable")
    out: np.ndarray = np.take_along_axis(entity_TKC, order[..., None], 1)
    return out


def rows_as_json(episode: Episode) -> Iterator[dict[str, Any]]:
    """The records of a life, one a step; with the features, which the earlier system computed later."""
    shown = [k for k in TABLES if k in episode.obs]
    for t in range(episode.steps):
        observation = {k: episode.obs[k][t].tolist() for k in shown}
        if "Tick" in episode.obs:
            observation["CurrentTick"] = episode.obs["Tick"][t].tolist()
        yield {
            "step": t + episode.meta.get("first_tick", 0),
            "env_id": episode.meta.get("world", 0),
            "agent_id": episode.meta.get("agent", 0),
            "activation": episode.h[t].tolist(),
            "observation": observation,
            "action": episode.action[t].tolist(),
            "died": episode.terminated,
            "features": dict(zip(FEATURES, episode.truth["features"][t].tolist(), strict=True)),
        }
