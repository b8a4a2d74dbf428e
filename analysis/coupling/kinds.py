"""Behaviours by their Jacobians: which of them work alike inside, and which are told apart.

Behaviours are clustered by what they look like; here by what moves what.  The distance of two behaviours is how far
their mean Jacobians differ, relative to their size and less what the episodes' scatter alone would give.  A test of
every pair exchanges whole episodes between the two; Benjamini-Hochberg goes over the pairs.  Behaviours are then
merged, the nearest first, as long as no two of a group are told apart (complete linkage), so that data of one kind make
more than one group in no more than alpha of cases.  Behaviours of one group were not told apart; they may still differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from core.stats import benjamini_hochberg, permutation_p

NOT_TESTED = -1  # the kind of a behaviour with too few episodes
ROUNDING = 1e-6  # of the largest effect: standard errors below it are those of a constant


class Kinds(NamedTuple):
    """B behaviours: their distances, tests and groups."""

    distance_BB: np.ndarray  # root of |a - b|^2 over the mean of |a|^2 and |b|^2; 0 alike, 1.41 unrelated, 2 opposite
    p_BB: np.ndarray
    q_BB: np.ndarray
    kind_B: np.ndarray  # int64, in order of their first behaviour; NOT_TESTED


def kinds(
    effect_BEX: Sequence[np.ndarray | None],
    unit_BE: Sequence[np.ndarray],
    alpha: float,
    permutations: int,
    rng: np.random.Generator,
) -> Kinds:
    """effect: of every behaviour float [E, X], the mean Jacobian of each of its episodes; None: too few of them.
    unit: the number of each episode (one that two behaviours share is exchanged within itself)."""
    count = len(effect_BEX)
    distance, p = np.full((count, count), np.nan), np.full((count, count), np.nan)
    of = {b: x_EX for b, x_EX in enumerate(effect_BEX) if x_EX is not None}
    there = list(of)
    floor = (ROUNDING * max((float(np.abs(x_EX).max()) for x_EX in of.values()), default=0.0)) ** 2 or 1.0
    for n, a in enumerate(there):
        distance[a, a] = 0.0
        for b in there[n + 1 :]:
            distance[a, b] = distance[b, a] = _distance(of[a], of[b])
            p[a, b] = p[b, a] = _exchanged(of[a], of[b], unit_BE[a], unit_BE[b], floor, permutations, rng)
    q = np.full_like(p, np.nan)
    upper = np.triu_indices(count, 1)
    q[upper] = benjamini_hochberg(p[upper])
    q.T[upper] = q[upper]
    return Kinds(distance, p, q, merged(distance, q <= alpha, there))


def _distance(one_EX: np.ndarray, other_EX: np.ndarray) -> float:
    """As ``Kinds.distance_BB`` has it; squares of means are less the variance of the means, so that noise adds none."""
    error_X, errors_X = (x.var(0, ddof=1) / len(x) for x in (one_EX, other_EX))
    a_X, b_X = one_EX.mean(0), other_EX.mean(0)
    size = ((a_X**2 - error_X).sum() + (b_X**2 - errors_X).sum()) / 2
    apart = ((a_X - b_X) ** 2 - error_X - errors_X).sum()
    return float(np.sqrt(max(0.0, apart) / size)) if size > 0 else 0.0


def _exchanged(
    one_EX: np.ndarray, other_EX: np.ndarray, unit_E: np.ndarray, other_unit_E: np.ndarray, floor: float,
    permutations: int, rng: np.random.Generator,
) -> float:  # fmt: skip
    """p of the mean of Welch's t^2 over the entries: episodes of one behaviour alone are permuted between the two, one
    that both have keeps a mean in each."""
    x_RX = np.concatenate([one_EX, other_EX])
    unit_R, first_R = np.concatenate([unit_E, other_unit_E]), np.arange(len(x_RX)) < len(one_EX)
    _, of_R, times = np.unique(unit_R, return_inverse=True, return_counts=True)
    shared_R = times[of_R] == 2
    alone = np.flatnonzero(~shared_R)
    pairs = np.flatnonzero(shared_R)[np.argsort(of_R[shared_R], kind="stable")].reshape(-1, 2)
    in_one_PR = np.empty((1 + permutations, len(x_RX)), bool)
    in_one_PR[0] = first_R
    order = np.argsort(rng.random((permutations, len(alone))), 1)
    in_one_PR[1:, alone] = first_R[alone][order]
    flip = rng.random((permutations, len(pairs))) < 0.5
    in_one_PR[1:, pairs[:, 0]], in_one_PR[1:, pairs[:, 1]] = flip, ~flip

    def moments(weight_PR: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        mean_PX = weight_PR @ x_RX / n
        return mean_PX, np.maximum(weight_PR @ x_RX**2 / n - mean_PX**2, 0) / (n - 1)

    x_RX = x_RX - x_RX.mean(0)  # squares of what is far from 0 lose their variance
    (a, va), (b, vb) = (moments(w.astype(np.float64), len(x)) for w, x in ((in_one_PR, one_EX), (~in_one_PR, other_EX)))
    t2_P = ((a - b) ** 2 / (va + vb + floor)).mean(1)
    return float(permutation_p(t2_P[0], t2_P[1:]))


def merged(distance_BB: np.ndarray, apart_BB: np.ndarray, there: Sequence[int]) -> np.ndarray:
    """The kind of every behaviour: groups joined by complete linkage, none with two behaviours that are ``apart``."""
    groups = [[b] for b in there]
    while True:
        options = [
            (distance_BB[np.ix_(one, other)].max(), i, j)
            for i, one in enumerate(groups)
            for j, other in enumerate(groups[:i])
            if not apart_BB[np.ix_(one, other)].any()
        ]
        if not options:
            break
        _, i, j = min(options)
        groups[j] += groups.pop(i)
    kind_B = np.full(len(distance_BB), NOT_TESTED)
    for kind, group in enumerate(sorted(groups, key=min)):
        kind_B[group] = kind
    return kind_B
