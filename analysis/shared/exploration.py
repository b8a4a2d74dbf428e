"""Which episodes hold actions that were not the agent's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.shared.units import made_from
from core.episodes import RolloutStore


def explores(meta: Mapping[str, Any]) -> bool:
    """Whether some of an episode's actions were not the agent's own, by what was recorded of it."""
    return bool(meta.get("explores", False))


def played_greedily(store: RolloutStore) -> bool:
    """Whether the agent took its likeliest action at every step; then no episode explores, whatever its meta says."""
    config: Mapping[str, Any] = store.manifest["config"]
    return bool(config.get("exploration", {}).get("greedy", False))


def explored(store: RolloutStore, real: RolloutStore | None) -> np.ndarray:
    """bool [episodes]: the agent explored in it; a sample: in the episode of ``real`` in which it starts (False where
    that is not known).  In samples the agent acts by itself, but they start where exploration may have led."""
    if store.manifest["facts"]["source"] == "real":
        return np.array([explores(store.meta(e)) for e in range(len(store))]) & (not played_greedily(store))
    if real is None or not made_from(store, real):
        return np.zeros(len(store), bool)
    of_real = explored(real, real)
    starts = [store.meta(e).get("start") for e in range(len(store))]
    return np.array([s is not None and of_real[int(s[0])] for s in starts])
