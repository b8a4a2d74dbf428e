"""Behaviours by their Jacobians: which of them work alike inside, and which are told apart.

Behaviours are clustered by what they look like; here by what moves what.  The distance of two behaviours is how far
their mean Jacobians differ, relative to their size and less what the episodes' scatter alone would give.  Of every
pair it is tested whether the means are equal: whole episodes are drawn, each behaviour about its own mean, so that one
whose effects scatter more, or are skewed, is no other kind for that (as where episodes are exchanged between the two:
half of such pairs differed at .05).  Benjamini-Hochberg goes over the pairs.  Behaviours are then
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
    draws: int,
    rng: np.random.Generator,
) -> Kinds:
    """effect: of every behaviour float [E, X], the mean Jacobian of each of its episodes; None: too few of them.
    unit: the number of each episode (one that two behaviours share is drawn for both)."""
    count = len(effect_BEX)
    distance, p = np.full((count, count), np.nan), np.full((count, count), np.nan)
    of = {b: x_EX for b, x_EX in enumerate(effect_BEX) if x_EX is not None}
    there = list(of)
    floor = (ROUNDING * max((float(np.abs(x_EX).max()) for x_EX in of.values()), default=0.0)) ** 2 or 1.0
    for n, a in enumerate(there):
        distance[a, a] = 0.0
        for b in there[n + 1 :]:
            distance[a, b] = distance[b, a] = _distance(of[a], of[b])
            p[a, b] = p[b, a] = _drawn(of[a], of[b], unit_BE[a], unit_BE[b], floor, draws, rng)
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


def _drawn(
    one_EX: np.ndarray, other_EX: np.ndarray, unit_E: np.ndarray, other_unit_E: np.ndarray, floor: float,
    draws: int, rng: np.random.Generator,
) -> float:  # fmt: skip
    """p that the means are equal, whatever the scatter: the mean over the entries of t^2, bootstrapped.

    The episodes of both are drawn with replacement, one that both have with its part in each, and every behaviour's
    effects are about their own mean.  A draw with fewer than two episodes of a behaviour counts as reaching the data.
    """
    units = np.unique(np.concatenate([unit_E, other_unit_E]))
    in_2U = np.stack([np.isin(units, of_E) for of_E in (unit_E, other_unit_E)]).astype(np.float64)
    away_2UX = np.zeros((2, len(units), one_EX.shape[1]))
    for away_UX, x_EX, of_E in zip(away_2UX, (one_EX, other_EX), (unit_E, other_unit_E), strict=True):
        away_UX[np.searchsorted(units, of_E)] = x_EX - x_EX.mean(0)
    of_both_2UX = away_2UX * in_2U[::-1, :, None]

    def t2(times_RU: np.ndarray, apart_X: np.ndarray | float) -> np.ndarray:
        n_2R1 = (in_2U @ times_RU.T)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean_2RX = times_RU @ away_2UX / n_2R1
            one_2R1 = 1 / np.sqrt(n_2R1 * (n_2R1 - 1))
            squares_2RX = times_RU @ away_2UX**2 - n_2R1 * mean_2RX**2
            products_RX = times_RU @ of_both_2UX.prod(0) - (mean_2RX[::-1] * (times_RU @ of_both_2UX)).sum(0)
            products_RX += (times_RU @ in_2U.prod(0))[:, None] * mean_2RX.prod(0)
            error2_RX = (one_2R1**2 * squares_2RX).sum(0) - 2 * one_2R1.prod(0) * products_RX
            t2_R = ((apart_X + mean_2RX[0] - mean_2RX[1]) ** 2 / (np.maximum(error2_RX, 0) + floor)).mean(1)
        return np.where((n_2R1 < 2).any(0)[:, 0], np.inf, t2_R)

    times_RU = rng.multinomial(len(units), np.full(len(units), 1 / len(units)), draws).astype(np.float64)
    found = t2(np.ones((1, len(units))), one_EX.mean(0) - other_EX.mean(0))
    return float(permutation_p(found[0], t2(times_RU, 0.0)))


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
