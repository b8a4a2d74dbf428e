"""How far apart the members of an ensemble are, step by step, along samples that begin at the same real starts.

N samples (independent units), M members, T steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.episodes import Episode
from core.stats import bootstrap_means

MEASURES = {"same_action": "share of pairs", "value_spread": "return", "frame_mse": "squared share of the range"}


@dataclass
class Apart:
    """Collects what pairs of members do alike; a step counts where every member is still in its episode."""

    steps: int  # transitions
    picture: str | None  # the observation that frames are
    found: dict[str, list[np.ndarray]] = field(init=False, default_factory=lambda: {name: [] for name in MEASURES})

    def add(self, members: Sequence[Episode]) -> None:
        """One sample: what each member made of it."""
        rows = min(len(e.h) for e in members)
        acted = min(rows, *(e.steps for e in members))
        pairs = list(itertools.combinations(members, 2))
        same = [_all_parts(a.action[:acted] == b.action[:acted]) for a, b in pairs]
        self._keep("same_action", np.mean(same, 0))
        self._keep("value_spread", np.std([e.value[:rows] for e in members], 0, ddof=1))
        if self.picture is not None:
            frames = [e.obs[self.picture][:rows].astype(np.float32) / 255 for e in members]
            far = [np.square(a - b).reshape(rows, -1).mean(1) for a, b in itertools.combinations(frames, 2)]
            self._keep("frame_mse", np.mean(far, 0))

    def _keep(self, name: str, x_T: np.ndarray) -> None:
        whole_T = np.full(self.steps + 1, np.nan)
        whole_T[: len(x_T)] = x_T
        self.found[name].append(whole_T)

    def table(self, rng: np.random.Generator) -> list[dict[str, Any]]:
        """A row a measure and step: the mean with its 95 % interval over the samples that all members are still in."""
        rows = []
        for name, kept in self.found.items():
            x_NT = np.stack(kept) if kept else np.empty((0, 0))
            for t in range(x_NT.shape[1]):
                here = x_NT[~np.isnan(x_NT[:, t]), t]
                if len(here):
                    (e,) = bootstrap_means(here[:, None], rng=rng)
                    rows.append({"measure": name, "step": t, "value": e.value, "low": e.low, "high": e.high, "n": e.n,
                                 "unit": MEASURES[name]})  # fmt: skip
        return rows


def _all_parts(same: np.ndarray) -> np.ndarray:
    """Whether all parts of an action are the same, float64 [T]."""
    return same.reshape(len(same), -1).all(1).astype(np.float64)
