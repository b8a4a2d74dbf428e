"""How far apart the members of an ensemble are, step by step, along samples that begin at the same real starts.

N samples (independent units), M members, P pairs of them (or 1), T steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.contracts import EnvSpec, numbers_of_distinct
from core.episodes import Episode
from core.stats import bootstrap_mean

PAIRS = "share of pairs"
MEASURES = {
    "same_action": PAIRS,
    "same_ending": PAIRS,
    "value_spread": "return",
    "frame_mse": "squared share of the range",
}


@dataclass
class Apart:
    """Collects what pairs of members do alike.  Actions that do the same count as one; a step counts where every member
    is still in its episode, of endings where any is: a pair agrees where both are, or neither is."""

    steps: int  # transitions
    spec: EnvSpec
    picture: str | None  # the observation that frames are
    found: dict[str, list[np.ndarray]] = field(init=False, default_factory=lambda: {name: [] for name in MEASURES})

    def of(self, members: Sequence[Episode]) -> dict[str, np.ndarray]:
        """One sample, what each member made of it: float64 [P, T+1] of each measure, NaN at steps that do not count."""
        there = [np.arange(max(len(e.h) for e in members)) < len(e.h) for e in members]
        rows = min(len(e.h) for e in members)
        acted = min(rows, *(e.steps for e in members))
        did = [self._in_effect(e.action[:acted]) for e in members]
        found = {
            "same_action": np.stack([(a == b).all(1) for a, b in itertools.combinations(did, 2)]),
            "same_ending": np.stack([a == b for a, b in itertools.combinations(there, 2)]),
            "value_spread": np.std([e.value[:rows] for e in members], 0, ddof=1)[None],
        }
        if self.picture is not None:
            frames = [e.obs[self.picture][:rows].astype(np.float32) / 255 for e in members]
            far = [np.square(a - b).reshape(rows, -1).mean(1) for a, b in itertools.combinations(frames, 2)]
            found["frame_mse"] = np.stack(far)
        return {name: self._whole(x_PT) for name, x_PT in found.items()}

    def _in_effect(self, action: np.ndarray) -> np.ndarray:
        """Actions int64 [T] or [T, parts] as [T, 1 or parts]; those that do the same are one."""
        if self.spec.action_parts:
            return action
        return numbers_of_distinct(self.spec.distinct_actions())[action][:, None]

    def _whole(self, x_PT: np.ndarray) -> np.ndarray:
        whole_PT = np.full((len(x_PT), self.steps + 1), np.nan)
        whole_PT[:, : x_PT.shape[1]] = x_PT
        return whole_PT

    def keep(self, sample: Mapping[str, np.ndarray]) -> None:
        """What ``of`` made of a sample, for the table."""
        for name, x_PT in sample.items():
            self.found[name].append(x_PT)

    def table(self, rng: np.random.Generator) -> list[dict[str, Any]]:
        """A row a measure and step: the mean with its 95 % interval over the samples in which the step counts."""
        rows = []
        for name, kept in self.found.items():
            for t in range(self.steps + 1 if kept else 0):
                x_NP = np.stack([x_PT[:, t] for x_PT in kept])
                here_N = ~np.isnan(x_NP).any(1)
                if not here_N.any():
                    continue
                x_R = x_NP[here_N].ravel() > 0.5 if MEASURES[name] == PAIRS else x_NP[here_N].ravel()
                e = bootstrap_mean(x_R, np.repeat(np.flatnonzero(here_N), x_NP.shape[1]), rng=rng)
                rows.append({"measure": name, "step": t, "value": e.value, "low": max(e.low, 0), "high": e.high,
                             "n": e.n, "unit": MEASURES[name]})  # fmt: skip
        return rows
