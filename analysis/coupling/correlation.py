"""Cross-correlations of coordinates at lags within episodes, of what the clock (clock.py) does not explain, and their
null: whole episodes of one side permuted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from analysis.coupling.clock import beyond, clocks, taken, trends
from core.contracts import UserError
from core.stats import ATANH, TESTS, jackknifed, least_units, left_out, permutation_p

PAIRING, MEAN = "permutation", "mean"  # the tests of a correlation and of a Jacobian
MORE = "record more (rollouts from one and the same real episode count as one), or make fewer behaviours"
KEYS = 4_000_000  # random keys held at a time
LEVEL = 0.95  # of intervals
T_PERMUTATIONS = 399  # that a quantile of permuted t is read off


def lagged_rows(index_N2: np.ndarray, lag: int, first: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows (source, target) of an (episode, step) index that are ``lag`` steps apart in one episode; sources
    from step ``first`` on (step 0 is the start, not yet a step of the agent's)."""
    row_of = {(int(e), int(t)): n for n, (e, t) in enumerate(index_N2)}
    pairs = [
        (row_of[(int(e), int(t) - lag)], n)
        for n, (e, t) in enumerate(index_N2)
        if t - lag >= first and (int(e), int(t) - lag) in row_of
    ]
    both = np.asarray(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


class Sums(NamedTuple):
    """Sums over the pairs of each episode: enough for any reweighted correlation.  x source, y target."""

    n_E: np.ndarray
    x_EK: np.ndarray
    y_EK: np.ndarray
    xx_EK: np.ndarray
    yy_EK: np.ndarray
    xy_EKK: np.ndarray

    @classmethod
    def of(cls, x_NK: np.ndarray, y_NK: np.ndarray, unit_N: np.ndarray, units: int) -> Sums:
        """unit: 0 .. units-1, the episode of each pair."""
        order = np.argsort(unit_N, kind="stable")
        present, first = np.unique(unit_N[order], return_index=True)

        def total(v_NX: np.ndarray) -> np.ndarray:
            out = np.zeros((units, *v_NX.shape[1:]))
            out[present] = np.add.reduceat(v_NX[order], first, axis=0)
            return out

        xy_EKK = np.stack([total(x_NK[:, i, None] * y_NK) for i in range(x_NK.shape[1])], 1)
        return cls(total(np.ones(len(unit_N))), total(x_NK), total(y_NK), total(x_NK**2), total(y_NK**2), xy_EKK)

    def correlation(self, weight_RE: np.ndarray) -> np.ndarray:
        """Pearson correlation [R, K, K] with every episode counted ``weight`` times; NaN where undefined."""
        n = weight_RE @ self.n_E
        with np.errstate(divide="ignore", invalid="ignore"):
            x, y = (weight_RE @ s / n[:, None] for s in (self.x_EK, self.y_EK))
            vx, vy = (weight_RE @ s / n[:, None] - m**2 for s, m in ((self.xx_EK, x), (self.yy_EK, y)))
            xy = np.einsum("re,eij->rij", weight_RE, self.xy_EKK, optimize=True) / n[:, None, None]
            covariance = xy - x[:, :, None] * y[:, None, :]
            norm = np.sqrt(np.maximum(vx, 0)[:, :, None] * np.maximum(vy, 0)[:, None, :])
            return np.where(norm > 0, covariance / norm, np.nan)


def shuffles(
    seed: int, permutations: int, units: int, directions: int, present: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the first, permutations int64 [p, E, directions] of the E units present) in blocks.

    A permutation a direction: the order of random keys that every unit has, so that calls with one seed permute alike
    what they have in common.
    """
    rng, per = np.random.default_rng(seed), max(1, KEYS // (units * directions))
    for first in range(0, permutations, per):
        key_PKU = rng.random((min(per, permutations - first), directions, units), np.float32)
        yield first, np.argsort(key_PKU[..., present], axis=-1).swapaxes(1, 2)


def sum_variance(x_EMK: np.ndarray, y_EMK: np.ndarray, count_E: np.ndarray) -> np.ndarray:
    """Variance of the sum of x_i y_j over 1 .. M pairs in a row, float64 [M, K, K], were i and j independent.

    x, y: of variance 1, the first ``count`` rows of every episode, zero after.  From their autocorrelations (Bartlett
    1946, "On the theoretical specification of sampling properties of autocorrelated time series").
    """
    longest = x_EMK.shape[1]
    pairs_M = np.maximum(count_E[:, None] - np.arange(longest), 0).sum(0)
    spectra = (np.fft.rfft(v, 2 * longest, axis=1) for v in (x_EMK, y_EMK))
    a_MK, b_MK = (
        np.fft.irfft((np.abs(f) ** 2).sum(0), 2 * longest, axis=0)[:longest] / pairs_M[:, None] for f in spectra
    )
    both_MKK = a_MK[:, :, None] * b_MK[:, None, :]
    both_MKK[1:] *= 2  # d steps apart, either way
    # Summed twice, distance d counts m - d times; an estimate may be negative, a variance is not below one pair's.
    return np.maximum(both_MKK.cumsum(0).cumsum(0), 1.0)


def by_episode(value_VNK: np.ndarray, unit_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows beside each other by episode: (float64 [V, E, M, K], zero after an episode's last row; rows [E]).

    unit: the episode of each row; rows of an episode are in order of time.
    """
    _, e_N, count_E = np.unique(unit_N, return_inverse=True, return_counts=True)
    order = np.argsort(e_N, kind="stable")
    slot_N = np.empty(len(e_N), np.int64)
    slot_N[order] = np.arange(len(e_N)) - np.repeat(np.cumsum(count_E) - count_E, count_E)
    padded = np.zeros((len(value_VNK), len(count_E), int(count_E.max()), value_VNK.shape[2]))
    padded[:, e_N, slot_N] = value_VNK
    return padded, count_E


def paired_products(
    padded_2EMK: np.ndarray, present: np.ndarray, units: int, permutations: int, seed: int
) -> Iterator[tuple[slice, int, np.ndarray, np.ndarray]]:
    """Every direction has episodes of its own: (permutations, source i, where each pair of episodes and its target j
    are in an array [E, E, K] laid flat, int64 [p, E, K], sums of products float64 [p, E, K]) in blocks.

    padded: sources and targets of the episodes ``present``, as ``by_episode`` lays them.  Place e of a permutation has
    direction i from episode s_i(e), source and target alike; entry (i, j) pairs the sources of s_i(e) with the targets
    of s_j(e).  A direction's own past, (i, i), is that of the targets of another episode.
    """
    _, n, _, k = padded_2EMK.shape
    for first, s_PEK in shuffles(seed, permutations, units, k, present):
        for i in range(k):
            # The zero padding makes each block's sum run over the pairs that both episodes have.
            block_EEK = np.einsum("am,bmj->abj", padded_2EMK[0, :, :, i], padded_2EMK[1], optimize=True)
            source_PEK = np.repeat(s_PEK[:, :, i, None], k, 2)
            source_PEK[:, :, i] = np.arange(n)
            at_PEK = (source_PEK * n + s_PEK) * k + np.arange(k)
            yield slice(first, first + len(s_PEK)), i, at_PEK, block_EEK.take(at_PEK)


def standardised(x_NK: np.ndarray, y_NK: np.ndarray) -> np.ndarray:
    """Both, of mean 0 and variance 1, float64 [2, N, K]; NaN where a direction never changes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.stack([(v - v.mean(0)) / v.std(0) for v in (x_NK, y_NK)])


def permuted_correlations(
    x_NK: np.ndarray, y_NK: np.ndarray, unit_N: np.ndarray, units: int, permutations: int, seed: int
) -> np.ndarray:
    """Correlations float32 [P, K, K] where every direction has episodes of its own (``paired_products``): what the data
    would give if the directions were processes independent of each other.

    So (i, j) and (j, i), and calls with the same seed (lags, behaviours), stay as related as they are in the data.

    Of two episodes with unequal numbers of pairs the first so many are paired, and the sum is stretched to the
    variance of whole episodes (``sum_variance``).  Exact where all are equally long, otherwise approximate: of tests at
    0.05 of unrelated slow directions (validation.planted's null world, 24 episodes, 400 runs) 0.049, 0.050 and 0.050
    are significant where episodes last 25, 2 to 25 (mean 15) and 2 to 25 (mean 7.5) steps.  ``agreement`` of all
    entries keeps its level in the first case (0.035 to 0.068); in the others up to 0.145 are significant where the
    Jacobian is (anti)symmetric, because shorter episodes tie (i, j) and (j, i) less than whole ones.

    unit: 0 .. units-1, the episode of each pair.  Rows of an episode must be in order of time.
    """
    padded, count_E = by_episode(standardised(x_NK, y_NK), unit_N)
    k = x_NK.shape[1]
    shortest_EE = np.minimum.outer(count_E, count_E)
    equal = count_E.min() == count_E.max()
    variance_MKK = sum_variance(padded[0], padded[1], count_E)
    whole_KK = variance_MKK[count_E - 1].sum(0)
    out = np.empty((permutations, k, k), np.float32)
    paired = paired_products(padded, np.unique(unit_N), units, permutations, seed)
    for block, i, at_PEK, product_PEK in paired:
        total_PK = product_PEK.sum(1)
        if not equal:
            paired_PK = variance_MKK[shortest_EE - 1, i].take(at_PEK).sum(1)
            total_PK *= np.sqrt(whole_KK[i] / paired_PK)
        out[block, i] = total_PK / len(unit_N)
    return out


def permuted_t(
    x_NK: np.ndarray, y_NK: np.ndarray, unit_N: np.ndarray, units: int, permutations: int, seed: int
) -> np.ndarray:
    """|t| float32 [P, K, K] of such correlations: how many of its own standard errors over episodes that of
    independent directions is away from 0.  NaN where a direction never changes.

    It knows what no episode in hand can show by being left out: where two kinds of rare events never met, the
    correlation hardly depends on any one episode, so that its error by the jackknife is near 0; permuted, they meet.
    """
    padded, _ = by_episode(standardised(x_NK, y_NK), unit_N)
    k, n = x_NK.shape[1], padded.shape[1]
    x_energy_EK, y_energy_EK = (padded**2).sum(2)
    out = np.empty((permutations, k, k), np.float32)
    paired = paired_products(padded, np.unique(unit_N), units, permutations, seed)
    for block, i, at_PEK, product_PEK in paired:
        # An episode's influence on a correlation: its product, less the correlation times its own part of the norm.
        norm_PEK = ((x_energy_EK[:, None, None, i] + y_energy_EK) / 2).take(at_PEK)
        total_PK = product_PEK.sum(1)
        product_PEK -= total_PK[:, None] / len(unit_N) * norm_PEK
        with np.errstate(divide="ignore", invalid="ignore"):
            out[block, i] = np.abs(total_PK) / (np.sqrt(n) * product_PEK.std(1, ddof=1))
    return out


def refitted(x_NK: np.ndarray, y_NK: np.ndarray, trend_NQ: np.ndarray, unit_N: np.ndarray) -> np.ndarray:
    """Norm float32 [K, K] that permuted coordinates keep where the trends are fitted again: of i and j alike, as either
    may be thought to be permuted."""
    (trend_EMQ,), _ = by_episode(trend_NQ[None], unit_N)
    x_K, y_K = (taken(value_EMK, trend_EMQ) for value_EMK in by_episode(np.stack([x_NK, y_NK]), unit_N)[0])
    norm: np.ndarray = ((1 - x_K[:, None]) * (1 - y_K)) ** 0.25
    return norm.astype(np.float32)


class Labelled(NamedTuple):
    """Steps with their behaviour and coordinates; ``index`` is sorted by (episode, step).

    ``unit``: what counts as one independent episode; simulated rollouts that start in the same real
    episode are one.
    """

    index_N2: np.ndarray
    unit_N: np.ndarray
    label_N: np.ndarray
    c_NK: np.ndarray


def correlate(
    steps: Labelled,
    behaviours: Sequence[int],
    lags: Sequence[int],
    permutations: int,
    resamples: int,
    rng: np.random.Generator,
    alpha: float = 0.05,
) -> dict[str, np.ndarray]:
    """Correlation, p, null, interval's ends and counts for all behaviours (of the target step) and lags, of coordinates
    less their trends over a behaviour's rows (``clock.trends``).

    NaN where there are too few episodes for a p <= alpha (UserError if there are everywhere), and of a direction with
    itself at lag 0.  Intervals: jackknife of Fisher's z over episodes, no end nearer than the t of permuted episodes.
    """
    units, unit_N = np.unique(steps.unit_N, return_inverse=True)
    clock_N2, k = clocks(steps.index_N2, steps.label_N), steps.c_NK.shape[1]
    shape = (len(behaviours), len(lags), k, k)
    out = {
        "correlation": np.full(shape, np.nan),
        "p": np.full(shape, np.nan),
        "null": np.full((permutations, *shape), np.nan, np.float32),
        "ends": np.full((2, *shape), np.nan),
        "pairs": np.zeros(shape[:2], np.int64),
        "episodes": np.zeros(shape[:2], np.int64),
    }
    need = least_units(alpha, PAIRING)
    seed = int(rng.integers(2**63))
    for at, lag in enumerate(lags):
        source, target = lagged_rows(steps.index_N2, lag)
        for b, behaviour in enumerate(behaviours):
            mine = steps.label_N[target] == behaviour
            unit = unit_N[target[mine]]
            present, of = np.unique(unit, return_inverse=True)
            out["pairs"][b, at], out["episodes"][b, at] = len(unit), len(present)
            if len(present) < need:
                continue
            trend = trends(clock_N2[target[mine]])
            x, y = (beyond(steps.c_NK[rows[mine]], trend) for rows in (source, target))
            each_G = Sums.of(x, y, of, len(present)).correlation(left_out(len(present), rng))
            t_PKK = permuted_t(x, y, unit, len(units), T_PERMUTATIONS, seed)
            least = np.quantile(t_PKK, LEVEL, axis=0, method="higher")  # one of them: some are infinite
            value, *ends = jackknifed(each_G, rng=rng, link=ATANH, level=LEVEL, draws=resamples, least=least)
            out["correlation"][b, at], out["ends"][:, b, at] = value, ends
            null = permuted_correlations(x, y, unit, len(units), permutations, seed)
            null /= refitted(x, y, trend, unit)
            out["null"][:, b, at] = null
            if lag == 0:  # of a direction with itself, 1
                np.fill_diagonal(out["correlation"][b, at], np.nan)
                out["ends"][:, b, at, np.arange(k), np.arange(k)] = np.nan
            out["p"][b, at] = np.where(
                np.isnan(out["correlation"][b, at]), np.nan, permutation_p(out["correlation"][b, at], null)
            )
    if (most := int(out["episodes"].max())) < need:
        raise UserError(
            f"no behaviour has enough episodes for its correlations: at most {most}, and {TESTS[PAIRING]} at --alpha "
            f"{alpha:g} needs {need}; {MORE}"
        )
    return out
