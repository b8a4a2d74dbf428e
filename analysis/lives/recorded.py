"""Lives of agents as an extraction recorded them, and the cluster of every moment: what the life stages share.

A life is an episode of the store that ``analysis.extract_activations`` writes: T rows, a row a tick that the agent
lived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from core.artefacts import Result, manifest_sha256, read_manifest
from core.contracts import UserError
from core.episodes import RolloutStore
from core.pages import UNLABELLED

FEATURES, POSITION = "truth/features", "truth/position"
Between = Literal["nearest", "none"]


def open_lives(path: Path) -> RolloutStore:
    """The store of an extraction; UserError if it has no features."""
    store = RolloutStore(path)
    if FEATURES not in store.column_names or not store.manifest["facts"].get("features"):
        raise UserError(f"{path} holds no features of agents; give a directory of analysis.extract_activations")
    return store


def feature_names(store: RolloutStore) -> list[str]:
    """What the columns of the features are called."""
    return [str(name) for name in store.manifest["facts"]["features"]]


@dataclass(frozen=True)
class Clusters:
    """Which cluster the clustered rows of an extraction are in."""

    index_N2: np.ndarray  # int64 [N, 2], (episode, t)
    label_N: np.ndarray  # int64 [N], NOISE for none

    def along(self, episode: int, rows: int, between: Between = "nearest") -> tuple[np.ndarray, np.ndarray]:
        """(label int64 [rows], whether the row itself was clustered bool [rows]) of one life.

        Only every so many rows are clustered.  Those between have the label of the nearest clustered row of the life
        (of two as near, the earlier), or UNLABELLED (``between`` none); so has a life of which no row was clustered.
        """
        mine = self.index_N2[:, 0] == episode
        order = np.argsort(self.index_N2[mine, 1], kind="stable")
        t_M, of_M = self.index_N2[mine, 1][order], self.label_N[mine][order]
        label, own = np.full(rows, UNLABELLED), np.zeros(rows, bool)
        if len(t_M):
            own[t_M] = True
            if between == "nearest":
                label = of_M[np.searchsorted((t_M[1:] + t_M[:-1]) / 2, np.arange(rows), side="left")]
            label[t_M] = of_M
        return label, own


def read_clusters(path: Path, extraction: Path) -> Clusters:
    """The clusters of a directory of analysis.activations; UserError if they are of another extraction than this
    one."""
    made_of = read_manifest(path, "activations")["inputs"].get("activations", {})
    if made_of.get("manifest_sha256") != manifest_sha256(extraction):
        raise UserError(
            f"{path} has the clusters of another extraction ({made_of.get('path', 'none is named')}), not of "
            f"{extraction}; run analysis.activations {extraction} and give its directory"
        )
    arrays = Result.load(path).arrays
    if not {"index", "label"} <= arrays.keys():
        raise UserError(f"{path} has no clusters: it was made without clustering (--metric-only); cluster first")
    return Clusters(np.asarray(arrays["index"], np.int64), np.asarray(arrays["label"], np.int64))


def read_life(store: RolloutStore, episode: int) -> dict[str, np.ndarray]:
    """Columns of one life, each [T]: its features by name, ``value``, ``reward`` and, where recorded, ``row`` and
    ``col``."""
    columns = ["value", "reward", FEATURES, *([POSITION] if POSITION in store.column_names else [])]
    data, _ = store.pooled(*columns, episodes=[episode])
    out = dict(zip(feature_names(store), np.asarray(data[FEATURES], np.float64).T, strict=True))
    out |= {"value": data["value"], "reward": data["reward"]}
    if POSITION in data:
        out |= {"row": data[POSITION][:, 0].astype(np.int64), "col": data[POSITION][:, 1].astype(np.int64)}
    return out


def worlds_of(store: RolloutStore) -> np.ndarray:
    """int64 [E]: which game a life was part of, numbered from 0 in the order of recording; -1 where that is not known.

    A world is played again in every part of an extraction: each playing has its own number, since only agents of the
    same one meet.
    """
    metas = [store.meta(e) for e in range(len(store))]
    known = [(m.get("part", 0), m["world"]) if m.get("world") is not None else None for m in metas]
    number = {key: i for i, key in enumerate(sorted({key for key in known if key is not None}))}
    return np.array([-1 if key is None else number[key] for key in known], np.int64)


def about(store: RolloutStore, episode: int, world: int) -> dict[str, Any]:
    """Which life this is: episode, agent, world (of ``worlds_of``), map, first tick, ticks lived, whether it ended in
    death."""
    meta = store.meta(episode)
    return {
        "episode": episode,
        "agent": meta.get("agent"),
        "world": None if world < 0 else int(world),
        "map": meta.get("map"),
        "first_tick": int(meta.get("first_tick") or 0),
        "lifespan": int(store.steps[episode]),
        "ended": "died" if store.terminated[episode] else "cut off",
    }


def named(life: Mapping[str, Any]) -> str:
    """'agent 7 of world 2 (episode 31)'."""
    parts = [f"{name} {life[name]}" for name in ("agent", "world") if life[name] is not None]
    return (" of ".join(parts) or "life") + f" (episode {life['episode']})"
