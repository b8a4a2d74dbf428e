"""The steps of a store with their behaviour and coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from analysis.coupling.correlation import Labelled
from analysis.shared.behaviours import Behaviours
from analysis.shared.samples import source_units
from core.contracts import UserError
from core.directions import Basis
from core.episodes import RolloutStore


def behaviour_labels(index_N2: np.ndarray, behaviours: Behaviours | None, source: str) -> np.ndarray:
    """The behaviour of every step of an index, -1 where it has none.  source: sim or real.  Without behaviours
    all are 0."""
    if behaviours is None:
        return np.zeros(len(index_N2), np.int64)
    if source not in behaviours.labels:
        kind = "simulated" if source == "sim" else "real"
        raise UserError(f"--behaviours has no labels of {kind} rollouts; run analysis.behaviours with them")
    known = {(int(e), int(t)): int(b) for (e, t), b in zip(*_labels(behaviours, source), strict=True)}
    return np.array([known.get((int(e), int(t)), -1) for e, t in index_N2], np.int64)


def _labels(behaviours: Behaviours, source: str) -> tuple[np.ndarray, np.ndarray]:
    return behaviours.index[source], behaviours.labels[source]


def labelled(
    store: RolloutStore, basis: Basis, behaviours: Behaviours | None, source: str, episodes: Sequence[int] | None = None
) -> tuple[Labelled, np.ndarray]:
    """Every step of a store's episodes (None: of all) with its coordinates and behaviour, and its h."""
    columns, index = store.pooled("h", episodes=episodes)
    c = basis.project(torch.from_numpy(columns["h"])).numpy().astype(np.float64)
    unit = source_units(store, range(len(store)))[index[:, 0]]
    return Labelled(index, unit, behaviour_labels(index, behaviours, source), c), columns["h"]


def labels_in(label_N: np.ndarray, behaviours: Path | None, samples: Path) -> list[int]:
    """The behaviours that some step has.  UserError where none has one."""
    labels = sorted({int(b) for b in np.unique(label_N) if b >= 0})
    if not labels:
        raise UserError(
            f"{behaviours} labels no step of {samples}: all are too near to their end for its --lags, or noise; record "
            "longer ones (--steps), or run analysis.behaviours with shorter --lags or a smaller --min_cluster_size"
        )
    return labels
