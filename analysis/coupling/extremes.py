"""What directions do when one of them is extreme: later means and Jacobians, given that the source was at either end.

A mean over all steps hides what happens only where a direction is far out.  Here the source is in its upper or its
lower share of steps (of all behaviours together: 2 % of one behaviour are few):

- the mean of the target that many steps later, in its standard deviations from its mean over all pairs; the null pairs
  the sources of one episode with the targets of another, as for correlations.  A correlation within such ends has no
  meaning: both ends together inflate it, one end alone has hardly any range left (Preacher et al. 2005, "Use of the
  extreme groups approach");
- the Jacobian at those steps, of the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.coupling.correlation import PAIRING, Labelled, by_episode, lagged_rows, paired_products
from core.stats import least_units, permutation_p, ratios

TAILS = ("high", "low")


class Extremes(NamedTuple):
    """Estimates [tails, lags, i, j] given that i was extreme, with p-values and 95 % intervals over episodes.

    NaN: what could not be estimated; of lag 0 the Jacobian and a direction's own mean.
    """

    mean: np.ndarray  # of the target, in its standard deviations
    p_mean: np.ndarray
    mean_ends: np.ndarray  # [2, ...]: low, high
    steps: np.ndarray  # [tails, lags, i]: extreme sources
    episodes: np.ndarray  # [tails, lags, i]: with such
    jacobian: np.ndarray  # whole effect
    p_jacobian: np.ndarray
    jacobian_ends: np.ndarray
    samples: np.ndarray  # [tails, lags, i]: Jacobians
    sample_episodes: np.ndarray


def tails_of(c_NK: np.ndarray, among_N: np.ndarray, share: float) -> np.ndarray:
    """bool [tails, N, K]: strictly beyond the quantiles that cut ``share`` of the rows ``among`` off at either end, so
    that a direction at rest on its least value has no lower end."""
    low_K, high_K = np.quantile(c_NK[among_N], [share, 1 - share], axis=0)
    return np.stack([c_NK > high_K, c_NK < low_K]) & among_N[:, None]


def means_given(
    steps: Labelled, lags: Sequence[int], share: float, permutations: int, resamples: int, rng: np.random.Generator,
    alpha: float,
) -> dict[str, np.ndarray]:  # fmt: skip
    """mean, p, ends, steps and episodes, as ``Extremes`` has them.  NaN where there are too few episodes for a
    p <= alpha, or a single one has all the extremes."""
    _, unit_N = np.unique(steps.unit_N, return_inverse=True)
    k, units = steps.c_NK.shape[1], int(unit_N.max()) + 1
    shape = (len(TAILS), len(lags), k, k)
    out: dict[str, np.ndarray] = {name: np.full(shape, np.nan) for name in ("mean", "p")}
    out["ends"] = np.full((2, *shape), np.nan)
    out |= {name: np.zeros(shape[:3], np.int64) for name in ("steps", "episodes")}
    extreme_WNK = tails_of(steps.c_NK, steps.index_N2[:, 1] >= 1, share)
    seed = int(rng.integers(2**63))
    for at, lag in enumerate(lags):
        source, target = lagged_rows(steps.index_N2, lag)
        present, of = np.unique(unit_N[target], return_inverse=True)
        if len(present) < least_units(alpha, PAIRING):
            continue
        y = steps.c_NK[target]
        spread = y.std(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            y = np.where(spread > 0, (y - y.mean(0)) / spread, np.nan)
        for tail in range(len(TAILS)):
            there = extreme_WNK[tail, source]
            count_EK = np.stack([np.bincount(of, x, len(present)) for x in there.T], 1)
            out["steps"][tail, at], out["episodes"][tail, at] = there.sum(0), (count_EK > 0).sum(0)
            null = _permuted(there, y, unit_N[target], units, permutations, seed)
            for i in range(k):
                has = count_EK[:, i] > 0  # an episode without an extreme says nothing of this mean
                if has.sum() < 2:
                    continue
                sum_EK = np.stack([np.bincount(of, x, len(present)) for x in np.where(there[:, i, None], y, 0).T], 1)
                found = ratios(sum_EK[has], count_EK[has, i, None], rng=rng, draws=resamples)
                out["mean"][tail, at, i] = found.value_Q
                out["ends"][:, tail, at, i] = found.interval()
                out["p"][tail, at, i] = permutation_p(found.value_Q, null[:, i])
        if lag == 0:  # an extreme direction is extreme
            own = np.arange(k)
            for name in ("mean", "p", "ends"):
                out[name][..., at, own, own] = np.nan
    return out


def _permuted(
    there_NK: np.ndarray, y_NK: np.ndarray, unit_N: np.ndarray, units: int, permutations: int, seed: int
) -> np.ndarray:
    """Means float32 [P, K, K] where every direction has episodes of its own, as ``paired_products`` pairs them.

    Episodes of unequal length share the steps that both have, so a permutation may hold fewer extremes than the data:
    its mean is shrunk to the error of as many (in proportion to one over the root of their number).
    """
    padded, count_E = by_episode(np.stack([there_NK.astype(np.float64), y_NK]), unit_N)
    long_EM = (np.arange(padded.shape[2]) < count_E[:, None]).astype(np.float64)
    k = there_NK.shape[1]
    out = np.empty((permutations, k, k), np.float32)
    paired = paired_products(padded, np.unique(unit_N), units, permutations, seed)
    for block, i, at_PEK, product_PEK in paired:
        held_EE = padded[0, :, :, i] @ long_EM.T
        held_PK = held_EE.take(at_PEK // k).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            out[block, i] = product_PEK.sum(1) / np.sqrt(held_PK * max(1, there_NK[:, i].sum()))
    return out


def sources_at_ends(steps: Labelled, lags: Sequence[int], share: float) -> dict[tuple[int, int, int], np.ndarray]:
    """{(tail, place of the lag, i): bool [N], the steps before which i was extreme} of the lags above 0."""
    extreme_WNK = tails_of(steps.c_NK, steps.index_N2[:, 1] >= 1, share)
    found = {}
    for at, lag in enumerate(lags):
        if lag == 0:
            continue
        source, target = lagged_rows(steps.index_N2, lag)
        for tail in range(len(TAILS)):
            for i in range(steps.c_NK.shape[1]):
                mask = np.zeros(len(steps.c_NK), bool)
                mask[target[extreme_WNK[tail, source, i]]] = True
                found[tail, at, i] = mask
    return found
