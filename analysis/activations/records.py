"""The rows of an extraction that are mapped and clustered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.activations.density import rolling_mean
from analysis.activations.verdicts import Lives
from analysis.lives.recorded import FEATURES, POSITION, worlds_of
from core import artefacts
from core.config import nearest
from core.contracts import UserError
from core.episodes import RolloutStore
from core.progress import track

LEAST_AGENTS = 10  # different agents with lives of their own, below which every life counts as an agent


@dataclass(frozen=True)
class Records:
    """Every so many rows of every life, lives one after another.

    ``place_N3`` (row, column, distance from the middle of the map) or None; ``share_N`` of the lifespan; ``agent_E`` 0
    to A-1; ``worlds``: how many there are (0: not known); ``about``: {episode: its world, agent and first tick, as far
    as known}.
    """

    h_NH: np.ndarray
    features_NF: np.ndarray
    rolling_NF: np.ndarray
    place_N3: np.ndarray | None
    index_N2: np.ndarray
    lives: Lives
    names: tuple[str, ...]
    agents_are: str
    worlds: int
    about: Mapping[int, dict[str, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index_N2)


def read(path: Path, subsample: int, rolling: int, first_tick: int = 0, point: str = "h") -> Records:
    """The records of an extraction, one life in memory at a time; point: of which vector.  Raises UserError for
    anything else, and for NaN."""
    artefacts.read_manifest(path, "extract_activations")
    parts: dict[str, list[np.ndarray]] = {k: [] for k in ("h", "features", "rolling", "place", "index", "share")}
    who: list[Any] = []  # the agent of every life
    about: dict[int, dict[str, int]] = {}
    with RolloutStore(path) as store:
        names = tuple(map(str, store.manifest["facts"].get("features", ())))
        if FEATURES not in store.column_names or not names:
            raise UserError(f"{path} has no features of the agents, so nothing to read clusters by; extract again")
        known = {name.removeprefix("points/"): name for name in store.column_names if name.startswith("points/")}
        if point not in (known := {"h": "h"} | known):
            raise UserError(
                f"--point {point}: {path} has {', '.join(known)}{nearest(point, known)}; record more with "
                "analysis.extract_activations --points"
            )
        has_place = POSITION in store.column_names
        columns = [known[point], FEATURES, *([POSITION] if has_place else [])]
        world_E = worlds_of(store)
        episodes = np.flatnonzero(np.minimum(store.steps, store.rows) > first_tick)
        for e in track(episodes.tolist(), "reading", unit="lives"):
            data, index_T2 = store.pooled(*columns, episodes=[e])
            for name in columns if point != "h" else columns[1:]:  # h: the store has looked
                if not np.isfinite(data[name]).all():
                    raise UserError(f"{path}: life {e} has NaN or infinite values in {name}; extract again")
            if data[FEATURES].shape[1] != len(names):
                raise UserError(f"{path}: {data[FEATURES].shape[1]} features, but {len(names)} names; extract again")
            rows = slice(first_tick, None, subsample)
            parts["h"].append(data[known[point]][rows].astype(np.float32))
            parts["features"].append(data[FEATURES][rows].astype(np.float64))
            parts["rolling"].append(rolling_mean(data[FEATURES], rolling)[rows].astype(np.float32))
            if has_place:
                parts["place"].append(data[POSITION][rows].astype(np.float64))
            parts["index"].append(index_T2[rows])
            parts["share"].append((index_T2[rows, 1] + 0.5) / len(index_T2))
            meta = store.meta(e)
            who.append(meta.get("agent", ("life", e)))
            about[int(e)] = {"world": int(world_E[e]), "first_tick": int(meta.get("first_tick") or 0)}
            about[int(e)] |= {"agent": int(meta["agent"])} if str(meta.get("agent", "")).isdigit() else {}
    if not who:
        raise UserError(f"{path} holds no lives" + (f" of more than --first_tick {first_tick}" if first_tick else ""))
    data = {k: np.concatenate(v) for k, v in parts.items() if v}
    life_N = np.repeat(np.arange(len(who)), [len(v) for v in parts["index"]])
    agents = sorted(set(map(str, who)))
    recur = LEAST_AGENTS <= len(agents) < len(who)
    agent_E = np.array([agents.index(str(a)) for a in who]) if recur else np.arange(len(who))
    of_world, lived_E = np.unique(world_E[episodes], return_inverse=True)
    worlds = len(of_world) if of_world[0] >= 0 else 0
    tick_N = data["features"][:, names.index("tick")] if "tick" in names else data["index"][:, 1].astype(np.float64)
    place_N3 = None
    if has_place:
        sizes = [artefacts.load_array(path, name).shape for name in artefacts.files_of(path, "map_*.npy")]
        middle = np.array(sizes[0]) / 2 if sizes else (data["place"].min(0) + data["place"].max(0)) / 2
        place_N3 = np.column_stack([data["place"], np.abs(data["place"] - middle).max(1)])
    lives = Lives(life_N, agent_E, tick_N, data["share"], lived_E if worlds else None)
    return Records(
        data["h"], data["features"], data["rolling"], place_N3, data["index"], lives, names,
        "agents" if recur else "lives", worlds, about,
    )  # fmt: skip
