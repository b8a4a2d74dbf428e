"""Statistics in which the episode is the unit.

Steps of one episode are not independent, so whole episodes are resampled, flipped and permuted;
treating steps as the unit makes intervals too narrow and p-values too small
(tests/unit/test_stats.py shows by how much).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from core.contracts import UserError

BLOCK = 1 << 22  # random numbers held at once, so that many episodes do not fill the memory
TIE = 1e-12  # relative; a rearrangement that repeats the observed value must count as reaching it


class Estimate(NamedTuple):
    """A number with its interval and how many independent units (episodes) it rests on.

    ``low`` and ``high`` are NaN where there are fewer than two units: one says nothing of the spread.
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high


def tails(n_units: int, level: float) -> tuple[float, float]:
    """Quantiles of the bootstrap distribution that bound a ``level`` interval for ``n_units`` units.

    The plain percentile interval is too narrow for few units, by a factor sqrt((n-1)/n) z/t; these
    quantiles make up for it (Hesterberg 2015, "What teachers should know about the bootstrap", §5.3).
    """
    from scipy.special import ndtr, stdtrit

    if not 0 < level < 1:
        raise ValueError(f"level {level} is not between 0 and 1")
    t = stdtrit(n_units - 1, (1 + level) / 2)
    low = float(ndtr(-math.sqrt(n_units / (n_units - 1)) * t))
    return low, 1 - low


def interval_of(draws_R: np.ndarray, n_units: int, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of bootstrap draws [R, ...]; undefined (NaN) draws are left out, entry by entry.

    NaN for fewer than two units, or where no draw is defined.
    """
    draws = np.asarray(draws_R, np.float64)
    low, high = np.full(draws.shape[1:], np.nan), np.full(draws.shape[1:], np.nan)
    defined = ~np.isnan(draws).all(0)
    if n_units >= 2 and defined.any():
        both = np.nanquantile(draws[..., defined] if draws.ndim > 1 else draws, tails(n_units, level), axis=0)
        low[defined], high[defined] = both
    return low, high


def bootstrap_mean(
    value_N: np.ndarray,
    episode_N: np.ndarray,
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
    level: float = 0.95,
) -> Estimate:
    """Mean over all rows, with the interval from resampling whole episodes.

    value_N: float [N] (booleans count as 0 and 1); episode_N: [N] says which rows belong together.
    No rows at all give NaN with n = 0; a NaN among the values makes the estimate NaN.
    """
    value_N = np.asarray(value_N, np.float64)
    if value_N.shape != np.shape(episode_N):
        raise ValueError(f"{value_N.shape} values, {np.shape(episode_N)} episode numbers")
    if not len(value_N):
        return Estimate(math.nan, math.nan, math.nan, 0)
    _, of_N = np.unique(episode_N, return_inverse=True)
    n = int(of_N.max()) + 1
    sum_E, count_E = np.bincount(of_N, value_N), np.bincount(of_N)
    draws = np.empty(resamples)
    step = max(1, BLOCK // n)
    for first in range(0, resamples, step):
        pick = rng.integers(n, size=(min(step, resamples - first), n))
        draws[first : first + len(pick)] = sum_E[pick].sum(1) / count_E[pick].sum(1)
    low, high = interval_of(draws, n, level)
    return Estimate(float(sum_E.sum() / len(value_N)), float(low), float(high), n)


def bootstrap(
    statistic: Callable[[np.ndarray], float | np.ndarray],
    episode_N: np.ndarray,
    *,
    rng: np.random.Generator,
    resamples: int = 1000,
    level: float = 0.95,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(value, low, high) of any statistic of the rows, resampling whole episodes.

    statistic: row numbers int64 [M] -> a float or an array; called once on all rows in order, then
    once a resample.  A resample where it is NaN (a class that is not there, say) is left out.
    """
    episode_N = np.asarray(episode_N)
    if not len(episode_N):
        raise ValueError("no rows to resample")
    value = np.asarray(statistic(np.arange(len(episode_N))), np.float64)
    _, of_N, count_E = np.unique(episode_N, return_inverse=True, return_counts=True)
    rows_E = np.split(np.argsort(of_N, kind="stable"), np.cumsum(count_E)[:-1])
    n = len(rows_E)
    draws = [
        np.asarray(statistic(np.concatenate([rows_E[e] for e in rng.integers(n, size=n)])), np.float64)
        for _ in range(resamples if n >= 2 else 0)
    ]
    low, high = interval_of(np.stack(draws) if draws else np.empty((0, *value.shape)), n, level)
    return value, low, high


def sign_flip_p(effect_E: np.ndarray, *, rng: np.random.Generator, permutations: int = 9999) -> float:
    """Two-sided p that the mean effect is 0, where effects are symmetric about 0 under the null.

    effect_E: one effect an independent pair or episode.  Exact where there are no more sign patterns
    than ``permutations`` + 1, else Monte Carlo with the observed pattern counted (Phipson & Smyth 2010),
    so that p is never 0.  NaN if an effect is NaN or there is none.
    """
    effect_E = np.asarray(effect_E, np.float64)
    n = len(effect_E)
    if n == 0 or np.isnan(effect_E).any():
        return math.nan
    reach = abs(effect_E.sum()) - TIE * np.abs(effect_E).sum()
    exact = n <= math.log2(permutations + 1)
    total = 2**n if exact else permutations
    hits, step = 0, max(1, BLOCK // n)
    for first in range(0, total, step):
        size = min(step, total - first)
        numbers = np.arange(first, first + size)
        bits = (numbers[:, None] >> np.arange(n)) & 1 if exact else rng.integers(2, size=(size, n))
        hits += int((np.abs((2 * bits - 1) @ effect_E) >= reach).sum())
    return hits / total if exact else (1 + hits) / (1 + permutations)


def permutation_p(observed: float | np.ndarray, null_P: np.ndarray) -> float | np.ndarray:
    """Two-sided (1 + #{|null| >= |observed|}) / (1 + P), entry by entry.

    observed: a number or an array [...]; null_P: [P, ...], its values under P random permutations.
    NaN stays NaN; undefined (NaN) permutations are left out of the count and of P.
    """
    observed_ = np.asarray(observed, np.float64)
    null = np.abs(np.asarray(null_P, np.float64))
    if null.shape[1:] != observed_.shape:
        raise ValueError(f"null of shape {null.shape} for an observation of shape {observed_.shape}")
    reaches = (null >= np.abs(observed_) * (1 - TIE)).sum(0)
    p = (1 + reaches) / (1 + (~np.isnan(null)).sum(0))
    p = np.where(np.isnan(observed_), np.nan, p)
    return float(p) if p.ndim == 0 else p


def benjamini_hochberg(p: np.ndarray) -> np.ndarray:
    """p-values of one family, any shape -> q-values of the same shape; NaN stays NaN and is not counted.

    Rejecting q <= x keeps the false discovery rate at x (Benjamini & Hochberg 1995).
    """
    p = np.asarray(p, np.float64)
    q = np.full(p.shape, np.nan)
    there = ~np.isnan(p)
    flat = p[there]
    if len(flat):
        order = np.argsort(flat)
        scaled = flat[order] * len(flat) / np.arange(1, len(flat) + 1)
        least = np.minimum.accumulate(scaled[::-1])[::-1]
        back = np.empty_like(flat)
        back[order] = np.minimum(least, 1.0)
        q[there] = back
    return q


def smallest_p(n_units: int, kind: str) -> float:
    """The smallest two-sided p that a test over ``n_units`` independent units can give.

    kind: ``sign-flip`` (2^n patterns, mirror images tie), ``permutation`` (n! orders of whole
    episodes), ``split`` (relabelling of two halves, mirror images tie).
    """
    if kind == "sign-flip":
        return min(1.0, 2.0 ** (1 - n_units))
    if kind == "permutation":
        return math.exp(-math.lgamma(n_units + 1))
    if kind == "split":
        return min(1.0, 2 / math.comb(n_units, n_units // 2))
    raise ValueError(f"no test of kind {kind!r}; there are: sign-flip, permutation, split")


def require_permutations(n_units: int, alpha: float, kind: str = "sign-flip") -> None:
    """UserError if no outcome of a test over ``n_units`` units could be significant at ``alpha``."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha {alpha} is not between 0 and 1")
    if (least := smallest_p(n_units, kind)) <= alpha:
        return
    need = n_units
    while smallest_p(need, kind) > alpha:
        need += 1
    raise UserError(
        f"{n_units} independent units are too few for a {kind} test at level {alpha:g}: the smallest p it can give "
        f"is {least:.2g}; use at least {need}"
    )
