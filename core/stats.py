"""Statistics in which the episode is the unit.

Steps of one episode are not independent, so whole episodes are resampled, flipped and permuted;
treating steps as the unit makes intervals too narrow and p-values too small
(tests/unit/test_stats.py shows by how much).
"""

from __future__ import annotations

import itertools
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


def bootstrap_means(
    x_NQ: np.ndarray, *, rng: np.random.Generator, resamples: int = 2000, level: float = 0.95
) -> list[Estimate]:
    """Means of Q quantities over the same N independent units, with intervals from shared resamples."""
    n = len(x_NQ)
    weight_RN = rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n
    low_Q, high_Q = interval_of(weight_RN @ x_NQ, n, level)
    ends = zip(x_NQ.mean(0), low_Q, high_Q, strict=True)
    return [Estimate(float(value), float(low), float(high), n) for value, low, high in ends]


def mean_p(x_NQ: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    return np.atleast_1d(sign_flip_p(x_NQ, rng=rng, permutations=4999))


def share_interval(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, n - count + 1, tail))
    return low, 1.0 if count == n else float(betaincinv(count + 1, n - count, 1 - tail))


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


def cohens_d(x_NF: np.ndarray, member_N: np.ndarray) -> np.ndarray:
    """Cohen's d of F features, float64 [F]: mean of the members minus mean of the rest, in pooled standard deviations.

    x_NF: float [N, F]; member_N: bool [N].  NaN where a group has fewer than 2 rows, a value is NaN, or neither group
    has a spread (less than 1e-6 of the distance between them).  (Cohen 1988, "Statistical power analysis", 2.2.)
    """
    n_2, x_2F, xx_2F = _group_sums(x_NF, member_N, np.zeros(len(x_NF), np.int64))
    return _d_of_sums(n_2, x_2F, xx_2F)[0]


def bootstrap_cohens_d(
    x_NF: np.ndarray,
    member_N: np.ndarray,
    episode_N: np.ndarray,
    *,
    rng: np.random.Generator,
    resamples: int = 1000,
    level: float = 0.95,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(d, low, high), each float64 [F]: ``cohens_d`` with the interval from resampling whole episodes.

    Resamples in which it is undefined are left out.  The interval is as wide as the episodes of the scarcer group
    make it; NaN if all members, or all others, come from one episode.
    """
    member_N = np.asarray(member_N, bool)
    _, of_N = np.unique(episode_N, return_inverse=True)
    if len(of_N) != len(x_NF):
        raise ValueError(f"{len(x_NF)} rows, {len(of_N)} episode numbers")
    sums = _group_sums(x_NF, member_N, of_N)
    n = len(sums[0])
    weight_RE = rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
    draws_RF = _d_of_sums(*(np.tensordot(weight_RE, s, 1) for s in sums))
    low, high = interval_of(draws_RF, int((sums[0] > 0).sum(0).min()), level)
    return cohens_d(x_NF, member_N), low, high


def _group_sums(x_NF: np.ndarray, member_N: np.ndarray, of_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts [E, 2], sums and sums of squares [E, 2, F] about the overall mean; groups are (members, rest)."""
    x_NF, member_N = np.asarray(x_NF, np.float64), np.asarray(member_N, bool)
    if x_NF.ndim != 2 or member_N.shape != x_NF.shape[:1]:
        raise ValueError(f"features {x_NF.shape} and members {member_N.shape} are not [N, F] and [N]")
    if not len(x_NF):
        raise ValueError("no rows to compare")
    x_NF = x_NF - x_NF.mean(0)
    group_N = 2 * of_N + ~member_N
    size = 2 * (int(of_N.max()) + 1)
    sums_2FG = np.array([[np.bincount(group_N, x_N**k, size) for x_N in x_NF.T] for k in (1, 2)])
    x_E2F, xx_E2F = np.moveaxis(sums_2FG.reshape(2, x_NF.shape[1], -1, 2), 1, -1)
    return np.bincount(group_N, minlength=size).reshape(-1, 2).astype(np.float64), x_E2F, xx_E2F


def _d_of_sums(n_R2: np.ndarray, x_R2F: np.ndarray, xx_R2F: np.ndarray) -> np.ndarray:
    """Cohen's d [R, F] from each row's counts, sums and sums of squares."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_R2F = x_R2F / n_R2[..., None]
        within_RF = (xx_R2F - n_R2[..., None] * mean_R2F**2).sum(1)
        pooled_RF = np.sqrt(np.maximum(within_RF, 0) / (n_R2.sum(1) - 2)[:, None])
        defined_RF = (n_R2.min(1) >= 2)[:, None] & (within_RF > TIE * xx_R2F.sum(1))
        return np.where(defined_RF, (mean_R2F[:, 0] - mean_R2F[:, 1]) / pooled_RF, np.nan)


def sign_flip_p(effect_E: np.ndarray, *, rng: np.random.Generator, permutations: int = 9999) -> float | np.ndarray:
    """Two-sided p that the mean effect is 0, where effects are symmetric about 0 under the null.

    effect_E: one effect an independent pair or episode, or [E, X]: X tests that share their flips (p [X]).
    Exact where there are no more sign patterns than ``permutations`` + 1, else Monte Carlo with the observed
    pattern counted (Phipson & Smyth 2010), so that p is never 0.  NaN if an effect is NaN or there is none.
    """
    effect_E = np.asarray(effect_E, np.float64)
    n, tests = len(effect_E), effect_E.shape[1:]
    if n == 0:
        return np.full(tests, math.nan) if tests else math.nan
    reach = np.abs(effect_E.sum(0)) - TIE * np.abs(effect_E).sum(0)
    exact = n <= math.log2(permutations + 1)
    total = 2**n if exact else permutations
    hits, step = np.zeros(tests, np.int64), max(1, BLOCK // max(n, math.prod(tests)))
    for first in range(0, total, step):
        size = min(step, total - first)
        numbers = np.arange(first, first + size)
        bits = (numbers[:, None] >> np.arange(n)) & 1 if exact else rng.integers(2, size=(size, n))
        hits += (np.abs((2 * bits - 1) @ effect_E) >= reach).sum(0)
    p = np.where(np.isnan(reach), math.nan, hits / total if exact else (1 + hits) / (1 + permutations))
    return p if tests else float(p)


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


def band_of(draws_C: np.ndarray, alpha: float) -> tuple[float, float]:
    """(low, high) that leave out one more draw like these C in a share ``alpha`` of cases, half on each side.

    The k-th smallest of C has k / (C + 1) of its like below it, so the ends are number (C + 1) alpha / 2 from either
    side, interpolated; the plain quantiles are too narrow (50 draws: 0.087 left out at 0.05).  Fewer than
    2 / alpha - 1 draws (39) cannot bound so much: their extremes, which leave out 2 / (C + 1).
    """
    draws_C = np.asarray(draws_C, np.float64)
    first = max(0.0, (len(draws_C) + 1) * alpha / 2 - 1) / max(1, len(draws_C) - 1)
    low, high = np.quantile(draws_C, [first, 1 - first])
    return float(low), float(high)


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


def smallest_p(n_units: int, kind: str, permutations: int | None = None) -> float:
    """The smallest two-sided p that a test over ``n_units`` independent units can give.

    kind: ``sign-flip`` (2^n patterns, mirror images tie), ``permutation`` (n! orders of whole
    episodes), ``split`` (relabelling of two halves, mirror images tie).
    permutations: how many of them are drawn; None: all.
    """
    drawn = 0.0 if permutations is None else 1 / (1 + permutations)
    if kind == "sign-flip":
        return max(drawn, min(1.0, 2.0 ** (1 - n_units)))
    if kind == "permutation":
        return max(drawn, math.exp(-math.lgamma(n_units + 1)))
    if kind == "split":
        return max(drawn, min(1.0, 2 / math.comb(n_units, n_units // 2)))
    raise ValueError(f"no test of kind {kind!r}; there are: sign-flip, permutation, split")


def _check_level(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha {alpha} is not between 0 and 1")


def least_units(alpha: float, kind: str = "sign-flip") -> int:
    """The fewest independent units with which a test can give p <= ``alpha``."""
    _check_level(alpha)
    return next(n for n in itertools.count(1) if smallest_p(n, kind) <= alpha)


def least_permutations(alpha: float) -> int:
    """The fewest random permutations with which p <= ``alpha`` can come out."""
    _check_level(alpha)
    return next(n for n in itertools.count(max(1, math.ceil(1 / alpha) - 2)) if 1 / (1 + n) <= alpha)


def require_permutations(n_units: int, alpha: float, kind: str = "sign-flip") -> None:
    """UserError if no outcome of a test over ``n_units`` units could be significant at ``alpha``."""
    if n_units < (need := least_units(alpha, kind)):
        raise UserError(
            f"{n_units} independent units are too few for a {kind} test at level {alpha:g}: the smallest p it can give "
            f"is {smallest_p(n_units, kind):.2g}; use at least {need}"
        )


def require_draws(permutations: int, alpha: float) -> None:
    """UserError if so few random permutations or sign flips cannot give a p <= ``alpha``, whatever the data."""
    if permutations < (need := least_permutations(alpha)):
        raise UserError(
            f"{permutations} permutations are too few at level {alpha:g}: the smallest p they can give is "
            f"{1 / (1 + permutations):.2g}; use at least {need}"
        )
