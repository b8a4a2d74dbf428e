"""What simulated rollouts start from: their latents, and the real episodes that they start in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from core.episodes import RolloutStore


class Latents:
    """The latents of some samples: a slice of them, float32 [n, Z], is read when it is asked for, as those of known
    starts hold frames."""

    def __init__(self, store: RolloutStore, ids: Sequence[int], device: torch.device) -> None:
        self._store, self._ids, self._device = store, list(ids), device

    def __getitem__(self, rows: slice) -> torch.Tensor:
        return torch.from_numpy(self._store.latents(self._ids[rows])).to(self._device)


def source_episodes(store: RolloutStore, episodes: Sequence[int]) -> np.ndarray:
    """int64: which independent episode each rollout belongs to.  Simulated rollouts that start in the same real
    episode are one; any other rollout is its own."""
    starts = [store.meta(e).get("start") for e in episodes]
    return np.array([-1 - e if s is None else int(s[0]) for e, s in zip(episodes, starts, strict=True)], np.int64)
