"""Statistics in which the episode is the unit.

Steps of one episode are not independent, so whole episodes are resampled, left out and permuted; treating
steps as the unit makes intervals too narrow and p-values too small.  What each interval is, where it comes from and
how often it holds the truth: docs/statistics.md, measured by the slow tests.

E independent units (episodes), N rows (steps), Q quantities, R draws.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from core.contracts import UserError

ALPHA = 0.05  # the level of every verdict: at most so large a q or p, a band that leaves so much out
BLOCK = 1 << 19  # numbers of resamples held at once; so few are kept for the next call (five times as fast)
TIE = 1e-12  # relative; a rearrangement that repeats the observed value must count as reaching it
ROUNDED = 64  # ... and is kept to so many units of its own precision, where that is less
DRAWS = 1999  # of the studentised bootstrap; with 2k - 1 of them interval and p agree exactly at usual levels
FEW_UNITS = 24  # below so many independent units a page says "few"
MOST_DRAWS = (1 << 16) - 1  # of it for one interval: what 95 % of 1,600 intervals together ask for
LEAVE_OUT = 200  # groups of units at most that the jackknife leaves out in turn
TESTS = {"mean": "a test of a mean", "permutation": "a permutation test", "split": "a test of two halves"}  # in words


class Estimate(NamedTuple):
    """A number with its interval and how many independent units (episodes) it rests on.

    ``low <= value <= high``, or ``low`` and ``high`` are NaN: where there are fewer than two units, as one says nothing
    of the spread.
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high

    @classmethod
    def unknown(cls, n: int = 0) -> Estimate:
        """Of n units that tell nothing."""
        return cls(math.nan, math.nan, math.nan, n)


def few(n_units: int) -> str:
    """``", few"`` for fewer than FEW_UNITS independent units, else nothing: what a page adds to an n."""
    return ", few" if n_units < FEW_UNITS else ""


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities, float64, over the last axis."""
    e = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    out: np.ndarray = e / e.sum(-1, keepdims=True)
    return out


def between(low: float | None, high: float | None, form: str | Callable[[float], str] = ".3g") -> str:
    """An interval as every page and print gives it, after its number: ``" [0.05, 0.2]"``.  An end that so few units
    cannot tell (None or NaN) is ``?``; '' where neither is told.  form: a format, or what makes text of a number."""
    ends = [None if end is None or math.isnan(end) else end for end in (low, high)]
    if ends == [None, None]:
        return ""
    put = form if callable(form) else lambda x: format(x, form)
    return f" [{', '.join('?' if end is None else put(end) for end in ends)}]"


def in_text(estimate: Estimate, form: str = ".3g", of: str = "") -> str:
    """An estimate as pages and prints give it: ``0.12 [0.05, 0.2] (n = 16 starts, few)``.

    form: format of the three numbers; of: what n counts.
    """
    value, low, high, n = estimate
    return f"{value:{form}}{between(low, high, form)} (n = {n}{f' {of}' if of else ''}{few(n)})"


# Means


class Means(NamedTuple):
    """Q means with what their intervals and p-values are read off: bootstrap draws of Student's t, shared by all."""

    value_Q: np.ndarray
    error_Q: np.ndarray  # standard error, by the jackknife; exactly 0 where all units agree
    t_RQ: np.ndarray  # sorted; NaN where there is no error
    n_Q: np.ndarray  # independent units
    alike_Q: np.ndarray  # units of one size that say as much (``as_alike``): at most n

    def interval(self, level: float = 0.95, least_Q: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(low [Q], high [Q]); each end alone is a one-sided bound of level (1 + ``level``) / 2.  NaN below 2 units.

        No end is nearer than Student's, nor than ``least_Q`` standard errors (NaN: no such bound).  Fewer draws than
        ``draws_for(level)`` do not know so rare an end: theirs is their extreme, which is nearer.
        """
        _check_level(level)
        draws = len(self.t_RQ)
        k = max(1, int((draws + 1) * (1 - level) / 2 + 1e-9))
        widest_Q = student(self.alike_Q, level)
        if least_Q is not None:
            widest_Q = np.fmax(widest_Q, least_Q)
        ends = []
        for t_Q in (np.maximum(self.t_RQ[draws - k], widest_Q), np.minimum(self.t_RQ[k - 1], -widest_Q)):
            end_Q = self.value_Q - np.where(self.error_Q == 0, 0, t_Q) * self.error_Q
            ends.append(np.where(self.n_Q < 2, np.nan, end_Q))
        return ends[0], ends[1]

    def p(self, against: float | np.ndarray = 0.0) -> np.ndarray:
        """Two-sided p [Q] that a mean is ``against``: at most alpha just where the (1 - alpha) interval excludes it.

        Never below 2 / (draws + 1), nor below 2^(1-n), the most that n units can say if nothing is known of their
        distribution (so that below 6 units p is above 0.05, whatever the interval).
        """
        from scipy.special import stdtr

        away_Q = self.value_Q - against
        with np.errstate(divide="ignore", invalid="ignore"):
            t_Q = np.where(self.error_Q > 0, away_Q / self.error_Q, np.where(away_Q == 0, 0, np.inf * np.sign(away_Q)))
            degrees_Q = np.maximum(self.alike_Q - 1, 1)
            tails = (
                np.maximum((1 + (self.t_RQ >= t_Q).sum(0)) / (1 + len(self.t_RQ)), stdtr(degrees_Q, -t_Q)),
                np.maximum((1 + (self.t_RQ <= t_Q).sum(0)) / (1 + len(self.t_RQ)), stdtr(degrees_Q, t_Q)),
            )
            p_Q = np.clip(2 * np.minimum(*tails), 2.0 ** (1 - self.n_Q), 1)
        p_Q = np.where(((self.error_Q == 0) & (away_Q == 0)) | (self.n_Q < 2) | np.isnan(self.error_Q), 1.0, p_Q)
        return np.where(np.isnan(self.value_Q), np.nan, p_Q)

    def estimates(self, level: float = 0.95) -> list[Estimate]:
        ends = zip(self.value_Q, *self.interval(level), self.n_Q, strict=True)
        return [Estimate(float(value), float(low), float(high), int(n)) for value, low, high, n in ends]


def _check_level(level: float, what: str = "level") -> None:
    if not 0 < level < 1:
        raise ValueError(f"{what} {level} is not between 0 and 1")


def draws_for(level: float) -> int:
    """So many draws of the bootstrap, at least DRAWS and at most MOST_DRAWS, that an interval of this level leaves out
    one of them on each side."""
    _check_level(level)
    return min(max(DRAWS, math.ceil(2 / (1 - level) - 1e-6) - 1), MOST_DRAWS)


def student(n_units: int | np.ndarray, level: float) -> np.ndarray:
    """Half the width of Student's ``level`` interval of a mean of n units, in standard errors."""
    from scipy.special import stdtrit

    out: np.ndarray = stdtrit(np.maximum(np.asarray(n_units) - 1, 1), (1 + level) / 2)
    return out


def as_alike(size_EQ: np.ndarray) -> np.ndarray:
    """How many units of one size say as much as E units of sizes [E, Q]: (sum of sizes)^2 / sum of squares (Kish 1965).
    Of one episode of 2,000 steps and 23 of 10 it is 1.2: their mean is nearly that episode's."""
    with np.errstate(divide="ignore", invalid="ignore"):
        out: np.ndarray = size_EQ.sum(0) ** 2 / (size_EQ**2).sum(0)
    return out


class Contrast(NamedTuple):
    """A weighted sum of the means of several groups of independent units, under normality (``contrast``)."""

    value: float
    error: float  # standard error; NaN where a group with a weight has fewer than two units
    degrees: float  # of freedom
    n: int  # units of all groups with a weight

    def estimate(self, level: float = 0.95) -> Estimate:
        from scipy.special import stdtrit

        _check_level(level)
        half = 0.0 if self.error == 0 else float(stdtrit(self.degrees, (1 + level) / 2)) * self.error
        return Estimate(self.value, self.value - half, self.value + half, self.n)

    @property
    def p(self) -> float:
        """Two-sided p that the sum is 0."""
        from scipy.special import stdtr

        if not self.error:  # all units of each group agree
            return float(self.value == 0)
        return float(2 * stdtr(self.degrees, -abs(self.value) / self.error))


def contrast(groups: Sequence[np.ndarray], weights: Sequence[float]) -> Contrast:
    """sum_g weights[g] mean(groups[g]), groups a sequence of float arrays [n_g] with variances of their own.

    One group of weight 1 is its mean with Student's interval; two of 1 and -1 are Welch's test.  For a handful of units
    (agents, seeds), of which only an assumed distribution can say anything: the normal one.  Method: Welch 1947, "The
    generalization of Student's problem when several different population variances are involved".  Its degrees of
    freedom are estimated: from a variance of two units that is worth nothing (of 2 against 8 with a third of the spread
    .11 were significant at .05), so where a group has two there is 1 (.00 then; of 3 against 8, Welch's, .07).
    """
    used = [(np.asarray(x, np.float64), w) for x, w in zip(groups, weights, strict=True) if w]
    value = sum(w * float(x.mean()) for x, w in used)
    n = sum(len(x) for x, _ in used)
    if min(len(x) for x, _ in used) < 2:
        return Contrast(value, np.nan, np.nan, n)
    part = np.array([w**2 * x.var(ddof=1) / len(x) for x, w in used])
    spread = np.array([p**2 / (len(x) - 1) for p, (x, _) in zip(part, used, strict=True)]).sum()
    degrees = float(part.sum() ** 2 / spread) if spread else float(n - len(used))
    if min(len(x) for x, _ in used) == 2:
        degrees = 1.0
    return Contrast(value, float(np.sqrt(part.sum())), degrees, n)


def means(
    value_NQ: np.ndarray, episode_N: np.ndarray | None = None, *, rng: np.random.Generator, draws: int = DRAWS
) -> Means:
    """Means over all rows of Q quantities, float [N, Q], for intervals and tests with whole episodes as units.

    episode_N: [N] says which rows belong together; None: every row is a unit of its own.  A NaN makes its quantity NaN.

    Method: the mean is a ratio of sums over units; its error is the jackknife's, each unit against the ratio of the
    others, and the quantiles of its linearised t are bootstrapped (Hall 1992, "The bootstrap and Edgeworth expansion",
    3.10; bootstrap-t).  Three things keep that sound for few and skewed units.  A resample has Gaussian noise of
    variance s^2 / n added to each unit, so that its spread is unbiased and no resample is degenerate (Hesterberg 2004,
    "Unbiasing the bootstrap").  It has fewer units than the data, ``_resampled``, as the skewness of a few units is
    smaller than that of their distribution.  And no end is nearer than Student's of the units that count
    (``as_alike``), which holds for heavy but symmetric tails, where bootstrapped quantiles are too small.
    """
    value_NQ = np.asarray(value_NQ, np.float64)
    if value_NQ.ndim != 2:
        raise ValueError(f"{value_NQ.shape} values are not [N, Q]")
    if episode_N is None:
        return ratios(value_NQ, np.ones((len(value_NQ), 1)), rng=rng, draws=draws)
    if np.shape(episode_N) != value_NQ.shape[:1]:
        raise ValueError(f"{value_NQ.shape} values, {np.shape(episode_N)} episode numbers")
    _, of_N, count_E = np.unique(episode_N, return_inverse=True, return_counts=True)
    sum_EQ = np.stack([np.bincount(of_N, x_N, len(count_E)) for x_N in value_NQ.T], 1)
    return ratios(sum_EQ, count_E[:, None], rng=rng, draws=draws)


def ratios(sum_EQ: np.ndarray, count_EQ: np.ndarray, *, rng: np.random.Generator, draws: int = DRAWS) -> Means:
    """Ratios of sums over units, sum_EQ.sum(0) / count_EQ.sum(0), as ``means`` infers them.

    count_EQ: float [E, Q], or [E, 1] for all quantities.  NaN where the counts add up to 0.  Where sum and count of a
    unit are 0 it is none.
    """
    sum_EQ, count_EQ = np.asarray(sum_EQ, np.float64), np.asarray(count_EQ, np.float64)
    there_EQ = (sum_EQ != 0) | (count_EQ != 0)
    if there_EQ.all():
        return _ratios(sum_EQ, count_EQ, rng, draws)
    size = sum_EQ.shape[1]
    out = Means(*(np.full(shape, np.nan) for shape in (size, size, (draws, size), size, size)))
    patterns_EX, of_Q = np.unique(there_EQ, axis=1, return_inverse=True)
    for x, here_E in enumerate(patterns_EX.T):  # quantities of the same units together
        mine_Q = of_Q.ravel() == x
        some_EQ = (count_EQ if count_EQ.shape[1] == 1 else count_EQ[:, mine_Q])[here_E]
        for whole, part in zip(out, _ratios(sum_EQ[np.ix_(here_E, mine_Q)], some_EQ, rng, draws), strict=True):
            whole[..., mine_Q] = part
    return out._replace(n_Q=out.n_Q.astype(int))


def _ratios(sum_EQ: np.ndarray, count_EQ: np.ndarray, rng: np.random.Generator, draws: int) -> Means:
    """``ratios`` of quantities that all units have."""
    n, size = sum_EQ.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        value_Q = sum_EQ.sum(0) / count_EQ.sum(0)
    value_Q = np.where(np.isfinite(value_Q), value_Q, np.nan)
    # Of counts of both signs none is a share of the whole: then every unit counts once, and none draws the ratio to it.
    sizes_Q = ((count_EQ >= 0).all(0) | (count_EQ <= 0).all(0)) & np.ones(size, bool)
    alike_Q = np.where(sizes_Q, as_alike(count_EQ), n)
    if n < 2:
        return Means(value_Q, np.full(size, np.nan), np.full((draws, size), np.nan), np.full(size, n), alike_Q)
    away_EQ = sum_EQ - value_Q * count_EQ
    away_EQ[:, (np.abs(away_EQ) <= TIE * np.abs(sum_EQ).max(0)).all(0)] = 0  # rounding errors of a constant
    mean_Q = count_EQ.mean(0)
    # One weight a unit, so that a quantity is a mean of its weighted deviations; units of equal size have weight 1.
    spread_Q = np.sqrt((away_EQ**2).sum(0) / (n - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        unit_EQ, share_EQ = away_EQ / spread_Q * np.sign(mean_Q), count_EQ / mean_Q
        out_EQ = np.where(sizes_Q, _from_the_others(away_EQ, share_EQ, n), away_EQ)
        error_Q = np.sqrt((out_EQ**2).sum(0) / (n - 1) / n) / np.abs(mean_Q)
    t_RQ = np.sort(_t_draws(unit_EQ, share_EQ, rng, draws), 0)
    return Means(value_Q, error_Q, t_RQ, np.full(size, n), alike_Q)


def _from_the_others(away_EQ: np.ndarray, share_EQ: np.ndarray, n: int | np.ndarray) -> np.ndarray:
    """Deviations of n units from a ratio, as they are from that of the other units: a unit draws the ratio to itself.
    share_EQ: sizes, of mean 1; units of one size are as they were."""
    out: np.ndarray = away_EQ * ((n - 1) / (n - share_EQ))
    return out


Resamples = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _t_draws(unit_EQ: np.ndarray, share_EQ: np.ndarray, rng: np.random.Generator, draws: int) -> np.ndarray:
    """Student's t [R, Q] of resampled ratios about the one of the data.

    unit_EQ: deviations from the ratio, of variance 1; share_EQ: counts, of mean 1.
    """
    n, equal = len(unit_EQ), bool((share_EQ == 1).all())
    m, step = _resampled(n), max(1, BLOCK // n)
    parts: Iterable[Resamples] = (_resamples(n, min(step, draws - first), rng) for first in range(0, draws, step))
    if draws * n <= BLOCK:  # the same resamples for every call, of units in a random order
        order_E = rng.permutation(n)
        unit_EQ, share_EQ, parts = unit_EQ[order_E], share_EQ[order_E], [_kept_resamples(n, draws)]
    out = []
    for times_RE, noise_RE, sum_R, square_R in parts:
        sum_RQ = times_RE @ unit_EQ + sum_R[:, None]
        square_RQ = times_RE @ unit_EQ**2 + 2 * noise_RE @ unit_EQ + square_R[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            if equal:
                ratio_RQ = sum_RQ / m
                square_RQ -= m * ratio_RQ**2
            else:
                ratio_RQ = sum_RQ / (times_RE @ share_EQ)
                cross_RQ = times_RE @ (unit_EQ * share_EQ) + noise_RE @ share_EQ
                square_RQ += ratio_RQ * (ratio_RQ * (times_RE @ share_EQ**2) - 2 * cross_RQ)
            # The sum over its error: the count's sum is in both.
            out.append(sum_RQ / np.sqrt(np.maximum(square_RQ, 0) * m / (m - 1)))
    return np.concatenate(out)


def _resamples(n: int, draws: int, rng: np.random.Generator) -> Resamples:
    """(how often each unit is drawn [R, E], the noise that is added to it [R, E], the noises' sums [R] and squares)."""
    m = _resampled(n)
    cell_RM = rng.integers(n, size=(draws, m)) + n * np.arange(draws)[:, None]
    noise_RM = rng.standard_normal((draws, m)) / math.sqrt(n)
    times_RE = np.bincount(cell_RM.ravel(), minlength=draws * n).reshape(draws, n).astype(np.float64)
    noise_RE = np.bincount(cell_RM.ravel(), noise_RM.ravel(), draws * n).reshape(draws, n)
    return times_RE, noise_RE, noise_RM.sum(1), (noise_RM**2).sum(1)


@functools.lru_cache(maxsize=8)
def _kept_resamples(n: int, draws: int) -> Resamples:
    return _resamples(n, draws, np.random.default_rng([n, draws]))


def _resampled(n_units: int) -> int:
    """Units of a resample: three quarters, at least two."""
    return max(2, math.ceil(0.75 * n_units))


def bootstrap_mean(
    value_N: np.ndarray,
    episode_N: np.ndarray,
    *,
    rng: np.random.Generator,
    resamples: int = DRAWS,
    level: float = 0.95,
) -> Estimate:
    """Mean over all rows, with the interval of ``means``; of booleans ``share_of``.

    value_N: float or bool [N]; episode_N: [N] says which rows belong together.  No rows at all give NaN with n = 0; a
    NaN among the values makes the estimate NaN.
    """
    value_N = np.asarray(value_N)
    if value_N.shape != np.shape(episode_N):
        raise ValueError(f"{value_N.shape} values, {np.shape(episode_N)} episode numbers")
    if value_N.dtype == bool:
        return share_of(value_N, episode_N, level=level)
    if not len(value_N):
        return Estimate.unknown()
    return means(value_N[:, None], episode_N, rng=rng, draws=resamples).estimates(level)[0]


def bootstrap_means(
    value_NQ: np.ndarray, rng: np.random.Generator, resamples: int = DRAWS, level: float = 0.95
) -> list[Estimate]:
    """``bootstrap_mean`` of Q quantities of the same N independent units, from shared resamples."""
    return means(value_NQ, rng=rng, draws=resamples).estimates(level)


def mean_p(effect_E: np.ndarray, *, rng: np.random.Generator, draws: int = 9999) -> float | np.ndarray:
    """Two-sided p that the mean effect is 0, also where effects are skewed: ``Means.p``.

    effect_E: one effect an independent unit, or [E, X]: X tests that share their draws (p [X]).  NaN if an effect is
    NaN or there is none.  Not exact: docs/statistics.md has its false alarms.
    """
    effect_E = np.asarray(effect_E, np.float64)
    tests = effect_E.shape[1:]
    if not len(effect_E):
        return np.full(tests, math.nan) if tests else math.nan
    p = means(effect_E.reshape(len(effect_E), -1), rng=rng, draws=draws).p()
    return p if tests else float(p[0])


# Shares


def share_interval(hits: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """(low, high) of a share, from ``hits`` of ``n`` independent units: Clopper & Pearson (1934), exact.

    (0, 1) of nothing.  Never of no width: 0 of 6 gives 0 to 0.46.
    """
    if not 0 <= hits <= n:
        raise ValueError(f"{hits} of {n}")
    low, high = _clopper_pearson(np.array([hits]), np.array([n]), level)
    return float(low[0]), float(high[0])


def _clopper_pearson(hit_Q: np.ndarray, n_Q: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Also of numbers that are not whole; NaN stays NaN."""
    from scipy.special import betaincinv

    _check_level(level)
    tail = (1 - level) / 2
    inside = np.maximum(hit_Q, 1e-300), np.maximum(n_Q - hit_Q, 1e-300)
    low_Q = np.where(hit_Q <= 0, 0.0, betaincinv(inside[0], n_Q - hit_Q + 1, tail))
    high_Q = np.where(hit_Q >= n_Q, 1.0, betaincinv(hit_Q + 1, inside[1], 1 - tail))
    nothing_Q = np.isnan(hit_Q) | np.isnan(n_Q)
    return np.where(nothing_Q, np.nan, low_Q), np.where(nothing_Q, np.nan, high_Q)


def shares(
    hit_EQ: np.ndarray, row_EQ: np.ndarray, *, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(share, low, high, units), each [Q], of Q shares of rows, with whole episodes as units.

    hit_EQ: hits of an episode, float [E, Q]; row_EQ: its rows, [E, Q] or [E, 1].  Episodes without rows are no units.

    The rows count as so many independent ones as give the share's error over episodes, for which the interval is that
    of Clopper and Pearson (Korn & Graubard 1998, Survey Methodology 24).  How alike the rows of an episode are is told
    by the episodes with a hit (or with a miss, whichever are fewer); half an episode more, whose rows all agree, stands
    for what so few can hide.  Where all rows agree nothing tells: then every episode counts once.  One row an episode:
    exact.  NaN without rows, no interval of one episode.
    """
    hit_EQ, row_EQ = (x.astype(np.float64) for x in np.broadcast_arrays(hit_EQ, row_EQ))
    units_Q, rows_Q, alike_Q = (row_EQ > 0).sum(0), row_EQ.sum(0), as_alike(row_EQ)
    with np.errstate(divide="ignore", invalid="ignore"):
        share_Q = hit_EQ.sum(0) / np.where(rows_Q > 0, rows_Q, np.nan)
        if (share_Q < -TIE).any() or (share_Q > 1 + TIE).any():
            raise ValueError(f"shares from {np.nanmin(share_Q):g} to {np.nanmax(share_Q):g}, not 0 to 1")
        share_Q = np.clip(share_Q, 0, 1)
        out_EQ = _from_the_others(hit_EQ - share_Q * row_EQ, row_EQ * units_Q / rows_Q, units_Q)
        error2_Q = (out_EQ**2).sum(0) * units_Q / (units_Q - 1) / rows_Q**2
        # Against the error of rows drawn one by one: 1 where those of an episode are not alike, its size where they
        # all agree.
        times_Q = np.maximum(error2_Q / (share_Q * (1 - share_Q) / (rows_Q - 1)), 1)
        most_Q = np.maximum((row_EQ**2).sum(0) / rows_Q, times_Q)
        tell_Q = np.minimum((hit_EQ > TIE).sum(0), (row_EQ - hit_EQ > TIE).sum(0))
        times_Q = (tell_Q * times_Q + 0.5 * most_Q) / (tell_Q + 0.5)
        # The error itself is known from so many units only.
        fewer_Q = student(rows_Q, level) / student(alike_Q, level)
        counted_Q = np.minimum(rows_Q, rows_Q / times_Q * fewer_Q**2)
    counted_Q = np.where((share_Q == 0) | (share_Q == 1), alike_Q, counted_Q)
    low_Q, high_Q = _clopper_pearson(share_Q * counted_Q, np.where(units_Q < 2, np.nan, counted_Q), level)
    return share_Q, np.minimum(low_Q, share_Q), np.maximum(high_Q, share_Q), units_Q


def share_of(hit_N: np.ndarray, episode_N: np.ndarray, *, level: float = 0.95) -> Estimate:
    """Share of rows that are hits, with the interval of ``shares``; n counts episodes.

    hit_N: bool [N], or credit between 0 and 1; episode_N: [N] says which rows belong together.  NaN as for
    ``bootstrap_mean``.
    """
    hit_N = np.asarray(hit_N, np.float64)
    if hit_N.shape != np.shape(episode_N):
        raise ValueError(f"{hit_N.shape} values, {np.shape(episode_N)} episode numbers")
    if not len(hit_N):
        return Estimate.unknown()
    _, of_N, row_E = np.unique(episode_N, return_inverse=True, return_counts=True)
    found = shares(np.bincount(of_N, hit_N)[:, None], row_E[:, None], level=level)
    value, low, high, units = (x[0] for x in found)
    return Estimate(float(value), float(low), float(high), int(units))


def difference(one: Estimate, other: Estimate) -> Estimate:
    """One less the other, of two that are independent or vary together, with the interval that follows from theirs
    (MOVER; Zou and Donner 2008, Statistics in Medicine 27): as far as each may be off, whatever its shape."""
    value = one.value - other.value
    low = value - math.hypot(one.value - one.low, other.high - other.value)
    high = value + math.hypot(one.high - one.value, other.value - other.low)
    return Estimate(value, low, high, min(one.n, other.n))


def paired_share(change_N: np.ndarray, *, level: float = 0.95) -> Estimate:
    """Mean change of an event in N independent pairs, with Tango's score interval (1998, Statistics in Medicine 17).

    change_N: -1 (prevented), 0 or 1 (brought about).  Where nothing changes in any of 6 pairs, the interval is -0.39 to
    0.39: so few cannot exclude much.  NaN without a pair, or for a NaN among the changes.
    """
    from scipy.special import ndtri

    change_N = np.asarray(change_N, np.float64)
    _check_level(level)
    n = len(change_N)
    if n == 0 or np.isnan(change_N).any():
        return Estimate.unknown(n)
    if not np.isin(change_N, (-1, 0, 1)).all():
        raise ValueError("a change of an event is -1, 0 or 1")
    up, down, z = float((change_N > 0).sum()), float((change_N < 0).sum()), float(ndtri((1 + level) / 2))
    value = (up - down) / n

    def beyond(d: float) -> bool:
        """Does the score test reject a true change ``d``?"""
        b = (2 * n - up + down) * d - up - down
        c = -down * d * (1 - d)
        chance = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)  # of a prevented event, if the change is d
        variance = n * (2 * chance + d * (1 - d))
        return (up - down - n * d) ** 2 > z * z * max(variance, 0.0)

    def end(far: float) -> float:
        near = value
        if not beyond(far):
            return far
        for _ in range(60):
            middle = (near + far) / 2
            near, far = (near, middle) if beyond(middle) else (middle, far)
        return near

    return Estimate(value, end(-1.0), end(1.0), n)


# Other statistics


def not_met(mean: Estimate, reach: float, level: float) -> Estimate:
    """A mean of n units (starts, episodes) with room for units of a kind that none of them was, each with the largest
    value that it could have (``reach``).  A sample without a rare effect is narrow, so that its own interval knows
    nothing of it."""
    hidden = reach * _missed(mean.n, level)
    return mean._replace(low=min(mean.low, mean.value - hidden), high=max(mean.high, mean.value + hidden))


def gain_not_met(value: float, end: float, units: int, level: float, reach: float = 1.0) -> float:
    """The upper end of a gain in a score, with room (``not_met``) for units in which all is gained: ``units`` are those
    that could show it (of a rare value those that have it), ``reach`` is what the score gains if all of them do."""
    return max(end, value + reach * _missed(units, level)) if units else math.nan


def failure_not_met(low: float, units: int, reach: float = 1.0, level: float = 0.95) -> float:
    """The lower end of a score that is 1 at best, with room for units that fail and that none was; see
    ``gain_not_met``."""
    return min(low, 1 - reach * _missed(units, level)) if units else math.nan


def units_for(share: float, level: float) -> int:
    """How many units cannot all miss more than a share (``not_met``)."""
    from scipy.special import ndtri

    z2 = float(ndtri((1 + level) / 2)) ** 2
    return math.floor(z2 * (1 - share) / share + 1e-9) + 1


@functools.cache
def _missed(n: int, level: float) -> float:
    """The largest share of units that n can all miss: what Tango's interval leaves of n pairs without a change."""
    return paired_share(np.zeros(n), level=level).high


class Link(NamedTuple):
    """A scale on which a statistic's error hardly depends on its value, and the way back."""

    to: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], np.ndarray]


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _logit(x: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.log(x) - np.log1p(-x)
    return out


def _logistic(x: np.ndarray) -> np.ndarray:
    out: np.ndarray = 1 / (1 + np.exp(-x))
    return out


def _minus_log(x: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.log1p(-x)
    return out


def _one_less(x: np.ndarray) -> np.ndarray:
    out: np.ndarray = -np.expm1(x)
    return out


PLAIN = Link(_same, _same)
LOG = Link(np.log, np.exp)  # of ratios of what is above 0
LOGIT = Link(_logit, _logistic)  # of what is between 0 and 1
ATANH = Link(np.arctanh, np.tanh)  # of correlations (Fisher 1921)
LOST = Link(_minus_log, _one_less)  # of R^2: the logarithm of what is not explained
RESTS = 3.0  # on a link's scale, e^3 = 20: one unit makes 95 % of an error whose logarithm moves so far without it


def left_out(n_units: int, rng: np.random.Generator) -> np.ndarray:
    """Weights float64 [1 + G, E] for ``jackknifed``: all units once, then all but one, each in turn.

    More than LEAVE_OUT units are left out by so many random groups.
    """
    group_E = np.arange(n_units)
    if n_units > LEAVE_OUT:
        group_E = rng.permutation(n_units) % LEAVE_OUT
    groups = int(group_E.max(initial=-1)) + 1
    return np.concatenate([np.ones((1, n_units)), group_E != np.arange(groups)[:, None]]).astype(np.float64)


def jackknifed(
    value_G: np.ndarray,
    *,
    rng: np.random.Generator,
    link: Link = PLAIN,
    unbiased: bool = False,
    units: int | np.ndarray | None = None,
    level: float = 0.95,
    draws: int | None = None,
    least: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(value, low, high), each [...], of any smooth statistic of whole units.

    value_G: [1 + G, ...], the statistic of all units and of all but each one, as weighted by ``left_out``.  unbiased:
    give the value less the bias that the jackknife finds (of an entropy, say), instead of the value.  units: how many
    the statistic rests on, where not all take part.  NaN intervals where a value is NaN that leaves one unit out: then
    the statistic rests on this one.  Entries are taken as they are, without the link, where it maps them to infinity,
    and where leaving out one unit moves them by more than RESTS there: such a distance says nothing of sampling.
    draws: of the bootstrap; None: as many as the level asks for.  least: standard errors [...] that each end is away at
    least (``Means.interval``).

    Tukey's pseudo-values (1958), on the scale of ``link``, are inferred like ``means``.  Not for quantiles and other
    statistics that jump.
    """
    value_G = np.asarray(value_G, np.float64)
    groups, shape = len(value_G) - 1, value_G.shape[1:]
    flat_GQ = value_G.reshape(groups + 1, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        on_GQ = link.to(flat_GQ)
        rests_Q = (np.abs(on_GQ - on_GQ[0]).max(0, initial=0) > RESTS) & (link is not PLAIN)
        linked_Q = (np.isfinite(on_GQ).all(0) & ~rests_Q) | np.isnan(flat_GQ).any(0)
        on_GQ = np.where(linked_Q, on_GQ, flat_GQ)
    whole_Q = on_GQ[0]
    if groups < 2:
        nothing = np.full(shape, np.nan)
        return value_G[0], nothing, nothing.copy()
    with np.errstate(invalid="ignore"):  # infinite links beside missing values
        pseudo_GQ = groups * whole_Q - (groups - 1) * on_GQ[1:]
        same_Q = np.ptp(on_GQ, 0) <= TIE * np.abs(on_GQ).max(0)
    pseudo_GQ[:, same_Q] = whole_Q[same_Q]
    found = means(pseudo_GQ, rng=rng, draws=draws_for(level) if draws is None else draws)
    if units is not None:
        some_Q = np.minimum(np.broadcast_to(units, shape).ravel(), groups)
        found = found._replace(n_Q=some_Q, alike_Q=some_Q)
    low_Q, high_Q = found.interval(level, None if least is None else np.broadcast_to(least, shape).ravel())
    middle_Q = found.value_Q if unbiased else whole_Q
    ends = (middle_Q + end_Q - found.value_Q for end_Q in (low_Q, high_Q))
    one_Q, other_Q = (np.where(linked_Q, link.back(end_Q), end_Q) for end_Q in ends)
    value_Q = np.where(linked_Q, link.back(middle_Q), middle_Q) if unbiased else flat_GQ[0]
    value_Q = np.where(np.isnan(value_Q), flat_GQ[0], value_Q)
    low_Q, high_Q = (pick(pick(one_Q, other_Q), value_Q) for pick in (np.minimum, np.maximum))  # 1 - exp(x) falls
    with np.errstate(over="ignore"):
        least_of, most_of = np.sort(link.back(np.array([-np.inf, np.inf])))
    low_Q, high_Q = np.maximum(low_Q, least_of), np.minimum(high_Q, most_of)  # ends that were taken as they are
    return value_Q.reshape(shape), low_Q.reshape(shape), high_Q.reshape(shape)


def jackknife(
    statistic: Callable[[np.ndarray], float | np.ndarray],
    episode_N: np.ndarray,
    *,
    rng: np.random.Generator,
    link: Link = PLAIN,
    unbiased: bool = False,
    units: int | np.ndarray | None = None,
    draws: int | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(value, low, high) of any smooth statistic of the rows, leaving out whole episodes: ``jackknifed``.

    statistic: row numbers int64 [M], in order -> a float or an array.
    """
    episode_N = np.asarray(episode_N)
    if not len(episode_N):
        raise ValueError("no rows to leave out")
    each, of_N = np.unique(episode_N, return_inverse=True)
    weight_GE = left_out(len(each), rng) if len(each) > 1 else np.ones((1, 1))
    values = [np.asarray(statistic(np.flatnonzero(w_E[of_N] > 0)), np.float64) for w_E in weight_GE]
    return jackknifed(np.stack(values), rng=rng, link=link, unbiased=unbiased, units=units, draws=draws)


def quantile_interval(value_E: np.ndarray, q: float, level: float = 0.95) -> Estimate:
    """The q-quantile of independent units with the interval between two order statistics, which leaves out at most half
    of 1 - level on either side (David & Nagaraja 2003, 7.1).  An end that not even the extreme unit bounds so surely is
    infinite: below 13 units the upper one of the quantile .75 at level .95."""
    from scipy.stats import binom

    _check_level(level)
    value_E = np.sort(np.asarray(value_E, np.float64))
    n = len(value_E)
    if n < 2 or np.isnan(value_E).any():
        return Estimate(float(np.quantile(value_E, q)) if n else math.nan, math.nan, math.nan, n)
    value, tail = float(np.quantile(value_E, q)), (1 - level) / 2
    # How many units lie below the quantile is binomial, so that the k-th smallest lies above it with P(fewer than k).
    k_low, k_high = binom.ppf([tail, 1 - tail], n, q).astype(int)
    low = float(value_E[k_low - 1]) if k_low > 0 else -math.inf
    high = float(value_E[k_high]) if k_high < n else math.inf
    return Estimate(value, min(value, low), max(value, high), n)


# Effect sizes


def cohens_d(x_NF: np.ndarray, member_N: np.ndarray) -> np.ndarray:
    """Cohen's d of F features, float64 [F]: mean of the members minus mean of the rest, in pooled standard deviations.

    x_NF: float [N, F]; member_N: bool [N].  NaN where a group has fewer than 2 rows, a value is NaN, or neither group
    has a spread (less than 1e-6 of the distance between them).  (Cohen 1988, "Statistical power analysis", 2.2.)
    """
    n_2, x_2F, xx_2F = _group_sums(x_NF, member_N, np.zeros(len(x_NF), np.int64))
    return d_of_sums(n_2, x_2F, xx_2F)[0]


def cohens_d_interval(
    x_NF: np.ndarray,
    member_N: np.ndarray,
    episode_N: np.ndarray,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(d, low, high), each float64 [F]: ``cohens_d`` with the interval from leaving out whole episodes.

    The interval is as wide as the episodes of the scarcer group make it; NaN if all members, or all others, come from
    one episode.  Where a feature has two levels and all rows of a group are at one of them, it leaves room for as many
    at the other as that group's episodes can all have missed (Clopper and Pearson; each counts once).
    """
    x_NF, member_N = np.asarray(x_NF, np.float64), np.asarray(member_N, bool)
    _, of_N = np.unique(episode_N, return_inverse=True)
    if len(of_N) != len(x_NF):
        raise ValueError(f"{len(x_NF)} rows, {len(of_N)} episode numbers")
    sums = _group_sums(x_NF, member_N, of_N)
    weight_GE = left_out(len(sums[0]), rng)
    value_GF = d_of_sums(*(np.tensordot(weight_GE, s, 1) for s in sums))
    units_2 = (sums[0] > 0).sum(0)
    _, low, high = jackknifed(value_GF, rng=rng, units=int(units_2.min()), level=level)
    d_F = cohens_d(x_NF, member_N)
    least_F, most_F = x_NF.min(0), x_NF.max(0)
    two_levels_F = ((x_NF == least_F) | (x_NF == most_F)).all(0) & (least_F < most_F)
    of_2F = np.stack(
        [x_NF[mine].mean(0) if mine.any() else np.full_like(d_F, np.nan) for mine in (member_N, ~member_N)]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation_F = (of_2F[0] - of_2F[1]) / d_F
    for group, sign in ((0, 1), (1, -1)):
        still_F = two_levels_F & ((of_2F[group] == least_F) | (of_2F[group] == most_F)) & np.isfinite(d_F)
        missed = share_interval(0, int(units_2[group]), level)[1]
        other_F = least_F + most_F - 2 * of_2F[group]  # from the level that they are at to the other one
        with np.errstate(divide="ignore", invalid="ignore"):  # equal means of a group that is not still
            room_F = np.where(still_F, d_F + sign * missed * other_F / deviation_F, d_F)
        low, high = np.minimum(low, room_F), np.maximum(high, room_F)
    return d_F, low, high


def _group_sums(x_NF: np.ndarray, member_N: np.ndarray, of_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts [E, 2] and sums [E, 2, F] of (members, rest) about the overall mean; sums of squares [E, F] of both."""
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
    return np.bincount(group_N, minlength=size).reshape(-1, 2).astype(np.float64), x_E2F, xx_E2F.sum(1)


def d_of_sums(n_R2: np.ndarray, x_R2F: np.ndarray, xx_RF: np.ndarray) -> np.ndarray:
    """Cohen's d [R, F] (``cohens_d``) from counts [R, 2] and sums [R, 2, F] of members and rest, and sums of squares of
    both [R, F] or [F], about a mean that is near that of all (else digits are lost)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_R2F = x_R2F / n_R2[..., None]
        within_RF = xx_RF - (n_R2[..., None] * mean_R2F**2).sum(1)
        pooled_RF = np.sqrt(np.maximum(within_RF, 0) / (n_R2.sum(1) - 2)[:, None])
        defined_RF = (n_R2.min(1) >= 2)[:, None] & (within_RF > TIE * xx_RF)
        return np.where(defined_RF, (mean_R2F[:, 0] - mean_R2F[:, 1]) / pooled_RF, np.nan)


def eta_squared(counts_CB: np.ndarray, all_B: np.ndarray) -> np.ndarray:
    """Share of the variance of membership in C clusters that lies between B groups of rows, float64 [C], 0 to 1.

    counts_CB: members of every cluster in every group; all_B: rows of every group.  NaN for a cluster with no row, or
    with all of them.  (Fisher 1925, "Statistical methods for research workers", correlation ratio.)
    """
    share_C = counts_CB.sum(-1) / all_B.sum()
    between_C = (all_B * (counts_CB / np.maximum(all_B, 1) - share_C[:, None]) ** 2).sum(-1) / all_B.sum()
    total_C = share_C * (1 - share_C)
    return np.divide(between_C, total_C, out=np.full(len(share_C), np.nan), where=total_C > 0)


def permutation_p(
    observed: float | np.ndarray, null_P: np.ndarray, around: float | np.ndarray = 0.0, noise: float = 0.0
) -> float | np.ndarray:
    """Two-sided (1 + #{|null - around| >= |observed - around|}) / (1 + P), entry by entry.

    observed: a number or an array [...]; null_P: [P, ...], its values under P random permutations; around: what both
    are measured from, as observed; noise: rounding errors of both, where these are of larger numbers than themselves
    (differences that would be 0): what is no farther apart is equal.
    NaN stays NaN; undefined (NaN) permutations are left out of the count and of P.
    """
    observed_, around_ = np.asarray(observed, np.float64), np.asarray(around, np.float64)
    null = np.asarray(null_P)
    tie = max(TIE, ROUNDED * float(np.finfo(null.dtype).eps)) if null.dtype.kind == "f" else TIE
    if null.shape[1:] != observed_.shape:
        raise ValueError(f"null of shape {null.shape} for an observation of shape {observed_.shape}")
    far = np.abs(observed_ - around_)
    least = far - tie * np.maximum(np.abs(observed_), np.abs(around_)) - noise
    reaches = (np.abs(null - around_ if around_.any() else null) >= least).sum(0)
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


def benjamini_hochberg(p: ArrayLike) -> np.ndarray:
    """p-values of one family, any shape -> q-values of the same shape; NaN stays NaN and is not counted.

    Rejecting q <= x keeps the false discovery rate at x (Benjamini & Hochberg 1995).
    """
    p_ = np.asarray(p, np.float64)
    q = np.full(p_.shape, np.nan)
    there = ~np.isnan(p_)
    flat = p_[there]
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

    kind: ``mean`` (``mean_p``: as much as 2^n signs can say, and each tail of the draws counts), ``permutation`` (n!
    orders of whole episodes), ``split`` (relabelling of two halves, mirror images tie).  permutations: how many of
    them are drawn; None: all.
    """
    drawn = 0.0 if permutations is None else (2 if kind == "mean" else 1) / (1 + permutations)
    if kind == "mean":
        return max(drawn, min(1.0, 2.0 ** (1 - n_units)))
    if kind == "permutation":
        return max(drawn, math.exp(-math.lgamma(n_units + 1)))
    if kind == "split":
        return max(drawn, min(1.0, 2 / math.comb(n_units, n_units // 2)))
    raise ValueError(f"no test of kind {kind!r}; there are: {', '.join(TESTS)}")


def least_units(alpha: float, kind: str = "mean") -> int:
    """The fewest independent units with which a test can give p <= ``alpha``."""
    _check_level(alpha, "alpha")
    return next(n for n in itertools.count(1) if smallest_p(n, kind) <= alpha)


def least_permutations(alpha: float) -> int:
    """The fewest random permutations with which p <= ``alpha`` can come out."""
    _check_level(alpha, "alpha")
    return next(n for n in itertools.count(max(1, math.ceil(1 / alpha) - 2)) if 1 / (1 + n) <= alpha)


def never_alone(tests: int, what: str, least: float, alpha: float, need: Sequence[str], fewer: str) -> list[str]:
    """A sentence, where no test of a family of ``tests`` could be significant by itself: the smallest p that one can
    give, ``least``, times their number is larger than ``alpha``, so that Benjamini-Hochberg passes only many at once.

    need: what would let one count, flags and numbers of units; fewer: the flags that make the family smaller.
    """
    if not tests or least * tests <= alpha:
        return []
    reach = math.ceil(least * tests / alpha - 1e-9)
    alone = f"with {' and '.join(need)}, or with fewer {fewer}" if need else f"with fewer {fewer}"
    return [
        f"{tests} {what} are tested together and p is never below {least:.2g}: at least {reach} must reach that for "
        f"one to count; one alone could {alone}"
    ]


def require_permutations(n_units: int, alpha: float, kind: str = "mean") -> None:
    """UserError if no outcome of a test over ``n_units`` units could be significant at ``alpha``."""
    if n_units < (need := least_units(alpha, kind)):
        raise UserError(
            f"{n_units} independent units are too few for {TESTS[kind]} at level {alpha:g}: the smallest p it can give "
            f"is {smallest_p(n_units, kind):.2g}; use at least {need}"
        )


def require_draws(permutations: int, alpha: float) -> None:
    """UserError if so few random permutations cannot give a p <= ``alpha``, whatever the data."""
    if permutations < (need := least_permutations(alpha)):
        raise UserError(
            f"{permutations} permutations are too few at level {alpha:g}: the smallest p they can give is "
            f"{1 / (1 + permutations):.2g}; use at least {need}"
        )
