"""The vectors that behaviours are clusters of: a step's state and how it changes over the next ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from core.contracts import numbers_of_distinct
from core.episodes import RolloutStore


@dataclass(frozen=True)
class Steps:
    """Steps of one store: ``h_NH``, ``d_ND`` (None without a simulator), what happened, and (episode, t).

    Steps of an episode are consecutive.  ``action_N`` numbers all choices there are, [N], or [N, P] of an action of
    several parts.  ``unit_E`` int64 [episodes]: equal for what is not independent, also across
    stores (analysis.shared.units); None: every episode is a unit.
    """

    h_NH: np.ndarray
    d_ND: np.ndarray | None
    value_N: np.ndarray
    action_N: np.ndarray
    logits_NA: np.ndarray
    index_N2: np.ndarray
    unit_E: np.ndarray | None = None


def read_steps(
    store: RolloutStore, first_step: int, world: Sequence[np.ndarray] | str | None = None, lead: int = 0,
    unit_E: np.ndarray | None = None, episodes: Sequence[int] | None = None,
) -> Steps:  # fmt: skip
    """Pooled steps t >= first_step of all or some (sorted) episodes.

    world: per-episode states whose row i belongs to step ``lead + i``, or the name of a stored column.
    """
    first = max(first_step, lead)
    names = ["h", "value", "action", "logits", *([world] if isinstance(world, str) else [])]
    columns, index_N2 = store.pooled(*names, episodes=episodes, first=first)
    d_ND = columns[world] if isinstance(world, str) else None
    if world is not None and not isinstance(world, str):
        ends = [int(min(store.steps[e], store.rows[e])) for e in range(len(store))]
        some = range(len(store)) if episodes is None else episodes
        d_ND = np.concatenate([world[e][first - lead : ends[e] - lead] for e in some if ends[e] > first])
    action_N = columns["action"]
    if store.spec.action_parts:
        action_N = action_N + store.spec.first_P
    return Steps(columns["h"], d_ND, columns["value"], action_N, columns["logits"], index_N2, unit_E)


def in_effect(steps: Steps, actions: Mapping[str, Sequence[int]]) -> Steps:
    """The steps with actions that do the same as one: of every name in ``actions`` (EnvSpec.distinct_actions), its
    number among them, and the logit of doing any of them."""
    logits_NA = np.stack([np.logaddexp.reduce(steps.logits_NA[:, list(ids)], axis=1) for ids in actions.values()], 1)
    return replace(steps, action_N=numbers_of_distinct(actions)[steps.action_N], logits_NA=logits_NA)


def histories(x_NF: np.ndarray, index_N2: np.ndarray, lags: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [x_t, x_{t+k} - x_t for every lag] of all steps that have max(lags) more steps in their episode.

    Returns float64 [M, F * (1 + lags)] and the row of each in x, int64 [M].
    """
    ahead = max(lags)
    n = len(x_NF) - ahead
    rows_M = np.flatnonzero(index_N2[ahead:, 0] == index_N2[: max(n, 0), 0]) if n > 0 else np.zeros(0, np.int64)
    x, width = np.asarray(x_NF, np.float64), np.shape(x_NF)[1]
    out_MF = np.empty((len(rows_M), width * (1 + len(lags))))
    out_MF[:, :width] = x[rows_M]
    for n, k in enumerate(lags, 1):
        np.subtract(x[rows_M + k], out_MF[:, :width], out=out_MF[:, n * width : (n + 1) * width])
    return out_MF, rows_M


class Scale(NamedTuple):
    """What makes columns z-scores: those of the rows it is taken from, and of further rows by the same numbers."""

    mean_F: np.ndarray
    std_F: np.ndarray

    @classmethod
    def of(cls, x_NF: np.ndarray) -> Scale:
        return cls(x_NF.mean(0), x_NF.std(0))

    def __call__(self, x_NF: np.ndarray) -> np.ndarray:
        out_NF: np.ndarray = x_NF - self.mean_F
        out_NF /= np.where(self.std_F > 0, self.std_F, 1)
        return out_NF


class States(NamedTuple):
    """What steps are, in numbers that can be compared: h, and components of the world states, z-scored as those of the
    steps were that all this is fitted on."""

    live_L: np.ndarray  # numbers of h that change
    of_h: Scale
    world: Callable[[np.ndarray], np.ndarray] | None  # d [N, D] -> components; None: without world states
    of_world: Scale | None

    def __call__(self, h_NH: np.ndarray, d_ND: np.ndarray | None) -> np.ndarray:
        """float64 [N, F]."""
        x_NF = self.of_h(h_NH[:, self.live_L].astype(np.float64))
        if self.world is None or self.of_world is None:
            return x_NF
        assert d_ND is not None
        return np.concatenate([x_NF, self.of_world(self.world(d_ND).astype(np.float64))], 1)


def weighted(vectors_MF: np.ndarray, lags: int, scale: Scale | None = None) -> np.ndarray:
    """Histories of ``lags`` lags, z-scored (by ``scale``; None: by themselves), the changes of all lags together as
    heavy as the state alone.

    With a weight of 1 each, changes outweigh the state by the number of lags.  They share what is new in a
    step, so that where few units carry the behaviours, the first components are that and no behaviour is found.
    """
    out_MF = (scale or Scale.of(vectors_MF))(vectors_MF)
    out_MF[:, out_MF.shape[1] // (1 + lags) :] /= np.sqrt(lags)
    return out_MF
