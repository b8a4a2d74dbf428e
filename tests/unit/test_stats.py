"""Statistics keep their promises: intervals cover, null p-values are uniform, and episodes are the unit.

The simulations use fixed seeds and bounds that a correct procedure misses with probability < 1e-3.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats as scipy_stats

from core.contracts import UserError
from core.stats import (
    Estimate,
    band_of,
    benjamini_hochberg,
    bootstrap,
    bootstrap_cohens_d,
    bootstrap_mean,
    cohens_d,
    interval_of,
    least_permutations,
    least_units,
    permutation_p,
    require_draws,
    require_permutations,
    sign_flip_p,
    smallest_p,
    tails,
)

RUNS = 400
EPISODES, STEPS = 16, 20


def binomial_bounds(rate: float, runs: int = RUNS, risk: float = 1e-3) -> tuple[float, float]:
    low, high = scipy_stats.binom.interval(1 - risk, runs, rate)
    return low / runs, high / runs


def autocorrelated(rng: np.random.Generator, shape: tuple[int, ...], steps: int, keep: float = 0.95) -> np.ndarray:
    """Stationary AR(1) of variance 1 along a last axis of ``steps``."""
    x = np.empty((*shape, steps))
    x[..., 0] = rng.normal(size=shape)
    for t in range(1, steps):
        x[..., t] = keep * x[..., t - 1] + math.sqrt(1 - keep**2) * rng.normal(size=shape)
    return x


# Intervals


def coverage_of_mean(episode_of: np.ndarray, runs: int = RUNS) -> float:
    """Share of runs in which the 95 % interval holds the true mean 0 of autocorrelated steps."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(runs):
        value = autocorrelated(rng, (EPISODES,), STEPS).ravel()
        e = bootstrap_mean(value, episode_of, rng=rng, resamples=400)
        hits += e.low <= 0 <= e.high
    return hits / runs


def test_interval_of_the_mean_covers() -> None:
    low, high = binomial_bounds(0.95)
    assert low <= coverage_of_mean(np.repeat(np.arange(EPISODES), STEPS)) <= high


def test_resampling_steps_instead_of_episodes_is_anti_conservative() -> None:
    assert coverage_of_mean(np.arange(EPISODES * STEPS), runs=100) < 0.7


def test_interval_covers_with_few_and_unequal_episodes() -> None:
    """The t-expanded percentiles hold at 6 episodes, where the plain ones do not."""
    rng = np.random.default_rng(1)
    lengths = np.array([3, 5, 8, 8, 10, 12])
    episode = np.repeat(np.arange(6), lengths)
    expanded = plain = 0
    for _ in range(RUNS):
        value = rng.normal(size=6)[episode] + 0.3 * rng.normal(size=len(episode))
        e = bootstrap_mean(value, episode, rng=rng, resamples=400)
        expanded += e.low <= 0 <= e.high
        sums, counts = np.bincount(episode, value), lengths
        pick = rng.integers(6, size=(400, 6))
        low, high = np.quantile(sums[pick].sum(1) / counts[pick].sum(1), [0.025, 0.975])
        plain += low <= 0 <= high
    assert expanded / RUNS > 0.90 > plain / RUNS


def test_bootstrap_of_any_statistic_agrees_with_the_mean_s() -> None:
    rng = np.random.default_rng(2)
    episode = rng.permutation(np.repeat(np.arange(12), 7))  # rows of an episode need not be neighbours
    value = rng.normal(size=12)[episode] + rng.normal(size=84)
    a = bootstrap_mean(value, episode, rng=rng, resamples=4000)
    v, low, high = bootstrap(lambda rows: value[rows].mean(), episode, rng=rng, resamples=4000)
    assert a.value == pytest.approx(float(v), abs=1e-12) and a.n == 12
    width = a.high - a.low
    assert abs(a.low - float(low)) < 0.08 * width and abs(a.high - float(high)) < 0.08 * width


def test_bootstrap_resamples_whole_episodes() -> None:
    episode = np.array([5, 5, 5, -1, -1, 9])

    def whole(rows: np.ndarray) -> float:
        counts = np.bincount(rows, minlength=6)
        assert len(set(counts[:3])) == 1 and len(set(counts[3:5])) == 1
        assert counts[0] + counts[3] + counts[5] == 3
        return 0.0

    bootstrap(whole, episode, rng=np.random.default_rng(0), resamples=50)


def test_bootstrap_of_arrays_leaves_undefined_resamples_out() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=30)

    def statistic(rows: np.ndarray) -> np.ndarray:
        return np.array([[x[rows].mean(), np.nan], [x[rows].max() if 0 in rows else np.nan, 1.0]])

    value, low, high = bootstrap(statistic, np.arange(30), rng=rng, resamples=200)
    assert value.shape == low.shape == high.shape == (2, 2)
    assert np.isnan([value[0, 1], low[0, 1], high[0, 1]]).all()
    assert np.isfinite([low[0, 0], high[0, 0], low[1, 0], high[1, 0]]).all()
    assert low[0, 0] < value[0, 0] < high[0, 0] and low[1, 1] == high[1, 1] == 1


def test_one_unit_gives_no_interval_and_none_gives_no_value() -> None:
    rng = np.random.default_rng(0)
    e = bootstrap_mean(np.arange(4.0), np.zeros(4), rng=rng)
    assert e.value == 1.5 and e.n == 1 and np.isnan(e.interval).all()
    nothing = bootstrap_mean(np.zeros(0), np.zeros(0), rng=rng)
    assert nothing.n == 0 and math.isnan(nothing.value)
    value, low, high = bootstrap(lambda rows: rows.mean(), np.zeros(4), rng=rng)
    assert value == 1.5 and np.isnan(low) and np.isnan(high)
    assert math.isnan(bootstrap_mean(np.array([1.0, np.nan]), np.arange(2), rng=rng).value)
    with pytest.raises(ValueError, match="episode numbers"):
        bootstrap_mean(np.zeros(3), np.zeros(2), rng=rng)
    with pytest.raises(ValueError, match="no rows"):
        bootstrap(lambda rows: 0.0, np.zeros(0), rng=rng)


def test_estimates_are_reproducible_and_booleans_count() -> None:
    hit, episode = np.array([True, False, True, True]), np.array([0, 0, 1, 2])
    first, second = (bootstrap_mean(hit, episode, rng=np.random.default_rng(7)) for _ in range(2))
    assert first == second and isinstance(first, Estimate) and first.value == 0.75
    assert first.interval == (first.low, first.high) and 0 <= first.low <= first.high <= 1


def test_tails_widen_with_few_units_and_tend_to_the_percentiles() -> None:
    assert tails(10_000, 0.95)[0] == pytest.approx(0.025, abs=1e-4)
    assert tails(5, 0.95)[0] < tails(20, 0.95)[0] < 0.025
    assert sum(tails(5, 0.9)) == pytest.approx(1)
    with pytest.raises(ValueError, match="level"):
        tails(5, 1.0)
    low, high = interval_of(np.full((10, 2), np.nan), 5)
    assert np.isnan(low).all() and np.isnan(high).all()


# p-values


def test_sign_flip_p_is_uniform_under_the_null() -> None:
    rng = np.random.default_rng(4)
    p = np.array([sign_flip_p(rng.standard_t(3, size=12), rng=rng) for _ in range(RUNS)])
    low, high = binomial_bounds(0.05)
    assert low <= (p <= 0.05).mean() <= high
    assert scipy_stats.kstest(p, "uniform").pvalue > 1e-3


def test_sign_flip_p_by_monte_carlo_is_uniform_under_the_null() -> None:
    rng = np.random.default_rng(5)
    p = np.array([sign_flip_p(rng.normal(size=30), rng=rng, permutations=199) for _ in range(RUNS)])
    low, high = binomial_bounds(0.05)
    assert low <= (p <= 0.05).mean() <= high
    assert p.min() >= 1 / 200


def test_sign_flip_p_finds_an_effect() -> None:
    """Power at a shift of one standard deviation and 16 episodes is that of the t-test, about 0.96."""
    rng = np.random.default_rng(6)
    found = [sign_flip_p(rng.normal(1.0, 1.0, size=16), rng=rng, permutations=999) <= 0.05 for _ in range(200)]
    assert np.mean(found) > 0.9


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_sign_flip_p_is_the_enumeration(effects: list[int]) -> None:
    x = np.array(effects, float)
    want = np.mean([abs(np.dot(s, x)) >= abs(x.sum()) for s in itertools.product([-1, 1], repeat=len(x))])
    assert sign_flip_p(x, rng=np.random.default_rng(0)) == pytest.approx(want)


def test_sign_flip_p_of_degenerate_effects() -> None:
    rng = np.random.default_rng(0)
    assert sign_flip_p(np.zeros(20), rng=rng) == 1
    assert sign_flip_p(np.ones(6), rng=rng) == 2 / 64
    assert sign_flip_p(np.full(60, 0.1), rng=rng, permutations=999) == 1 / 1000
    assert math.isnan(sign_flip_p(np.array([]), rng=rng)) and math.isnan(sign_flip_p(np.array([1, np.nan]), rng=rng))


@pytest.mark.parametrize("permutations", [300, 9])  # exact, Monte Carlo
def test_sign_flips_of_many_tests_are_those_of_each(permutations: int) -> None:
    effects = np.random.default_rng(0).normal(0.4, 1, size=(6, 5))
    effects[2, 3] = np.nan
    got = sign_flip_p(effects, rng=np.random.default_rng(1), permutations=permutations)
    want = [sign_flip_p(column, rng=np.random.default_rng(1), permutations=permutations) for column in effects.T]
    np.testing.assert_array_equal(got, want)
    assert np.isnan(got).tolist() == [False, False, False, True, False]
    assert np.isnan(sign_flip_p(np.zeros((0, 2)), rng=np.random.default_rng(0))).tolist() == [True, True]


def false_positives(by_episode: bool) -> float:
    """How often two independent autocorrelated series look related at 0.05."""
    rng = np.random.default_rng(8)
    hits = 0
    for _ in range(RUNS):
        x, y = autocorrelated(rng, (2, EPISODES), STEPS)
        if by_episode:
            G_EE = x @ y.T
            orders = rng.permuted(np.tile(np.arange(EPISODES), (99, 1)), axis=1)
            observed, null = float(np.trace(G_EE)), G_EE[np.arange(EPISODES), orders].sum(1)
        else:
            observed, null = float((x * y).sum()), rng.permuted(np.tile(x.ravel(), (99, 1)), axis=1) @ y.ravel()
        hits += permutation_p(observed, null) <= 0.05
    return hits / RUNS


def test_permuting_episodes_keeps_the_level() -> None:
    low, high = binomial_bounds(0.05)
    assert low <= false_positives(by_episode=True) <= high


def test_permuting_steps_does_not() -> None:
    assert false_positives(by_episode=False) > 0.3


def test_permutation_p_counts_entry_by_entry() -> None:
    null = np.array([[1.0, 5.0], [-2.0, 6.0], [3.0, np.nan]])
    np.testing.assert_allclose(permutation_p(np.array([-2.0, 9.0]), null), [3 / 4, 1 / 3])
    assert permutation_p(0.0, null[:, 0]) == 1.0
    assert isinstance(permutation_p(1.0, null[:, 0]), float)
    assert np.isnan(permutation_p(np.array([np.nan, 1.0]), null)).tolist() == [True, False]
    assert permutation_p(0.1 + 0.2, np.array([0.3])) == 1.0  # the same value but for rounding is reached
    with pytest.raises(ValueError, match="shape"):
        permutation_p(np.zeros(3), null)


# Families of tests


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.randoms())
@settings(deadline=None)
def test_benjamini_hochberg_is_scipy_s_and_keeps_nan_and_shape(p: list[float], random: object) -> None:
    q = benjamini_hochberg(np.array(p))
    np.testing.assert_allclose(q, scipy_stats.false_discovery_control(p), rtol=1e-12)
    holes = np.array([*p, np.nan, np.nan]).reshape(-1, 1)
    again = benjamini_hochberg(holes)
    assert again.shape == holes.shape and np.isnan(again[-2:]).all()
    np.testing.assert_array_equal(again[:-2, 0], q)


def test_benjamini_hochberg_controls_the_false_discovery_rate() -> None:
    rng = np.random.default_rng(9)
    nulls, effects, wrong, found = 30, 10, [], []
    for _ in range(RUNS):
        z = np.concatenate([rng.normal(size=nulls), rng.normal(3.5, 1, size=effects)])
        chosen = benjamini_hochberg(2 * scipy_stats.norm.sf(np.abs(z))) <= 0.1
        wrong.append(chosen[:nulls].sum() / max(1, chosen.sum()))
        found.append(chosen[nulls:].mean())
    spread = 3.3 * np.std(wrong) / math.sqrt(RUNS)
    assert abs(np.mean(wrong) - 0.1 * nulls / (nulls + effects)) < spread
    assert np.mean(found) > 0.7


def test_benjamini_hochberg_of_nothing() -> None:
    assert benjamini_hochberg(np.zeros(0)).shape == (0,)
    assert np.isnan(benjamini_hochberg(np.array([np.nan]))).all()


# Effect sizes


def textbook_d(a: np.ndarray, b: np.ndarray) -> float:
    pooled = ((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / (len(a) + len(b) - 2)
    return float((a.mean() - b.mean()) / math.sqrt(pooled))


def test_cohens_d_is_the_textbook_s_with_its_sign() -> None:
    rng = np.random.default_rng(10)
    x, member = 1e4 + rng.normal(size=(50, 3)) * [1, 20, 0.1], rng.random(50) < 0.3
    x[member] += [2, 0, -0.05]
    want = [textbook_d(v[member], v[~member]) for v in x.T]
    np.testing.assert_allclose(cohens_d(x, member), want, rtol=1e-9)
    np.testing.assert_allclose(cohens_d(x, ~member), np.negative(want), rtol=1e-9)
    assert want[0] > 1 > 0 > want[2]


def test_cohens_d_is_undefined_without_rows_or_spread() -> None:
    x, member = np.random.default_rng(0).normal(size=(10, 4)), np.arange(10) < 4
    x[:, 1] = 0.1  # constant
    x[:, 2] = 0.1 * member + 0.3  # constant in both groups, and different
    x[3, 3] = np.nan
    assert np.isnan(cohens_d(x, member)).tolist() == [False, True, True, True]
    for few in (np.zeros(10, bool), np.arange(10) < 1, np.arange(10) > 0, np.ones(10, bool)):
        assert np.isnan(cohens_d(x, few)).all()
    assert np.isfinite(cohens_d(x[:, :1], np.arange(10) < 2)).all()
    with pytest.raises(ValueError, match="not \\[N, F\\]"):
        cohens_d(x[:, 0], member)


def test_the_interval_of_cohens_d_is_that_of_the_plain_bootstrap() -> None:
    rng = np.random.default_rng(11)
    episode = np.repeat(np.arange(12), rng.integers(3, 12, size=12))
    member = rng.random(len(episode)) < 0.4
    x = rng.normal(size=(len(episode), 2)) + member[:, None] * [1.0, 0.0] + rng.normal(size=(12, 2))[episode]
    fast = bootstrap_cohens_d(x, member, episode, rng=rng, resamples=4000)
    plain = bootstrap(lambda rows: cohens_d(x[rows], member[rows]), episode, rng=rng, resamples=4000)
    np.testing.assert_allclose(fast[0], plain[0])
    np.testing.assert_allclose(fast[1:], plain[1:], atol=0.08)  # Monte Carlo error of the two
    assert (fast[1] < fast[0]).all() and (fast[0] < fast[2]).all()


def coverage_of_d(by_episode: bool) -> float:
    """Share of runs in which the 95 % interval holds d, where half of an episode's slow steps are members."""
    rng = np.random.default_rng(12)
    member = np.tile(np.arange(STEPS) < STEPS // 2, EPISODES)
    unit = np.repeat(np.arange(EPISODES), STEPS) if by_episode else np.arange(EPISODES * STEPS)
    x = autocorrelated(rng, (RUNS, EPISODES), STEPS).reshape(RUNS, -1).T + 0.5 * member[:, None]
    _, low, high = bootstrap_cohens_d(x, member, unit, rng=rng, resamples=600)
    true = np.median(cohens_d(x, member))  # of small groups of slow steps it is not quite 0.5
    return float(((low <= true) & (true <= high)).mean())


def test_the_interval_of_cohens_d_covers_where_one_over_steps_does_not() -> None:
    low, high = binomial_bounds(0.95)
    assert low - 0.01 <= coverage_of_d(True) <= high
    assert coverage_of_d(False) < 0.8


def test_an_effect_that_one_episode_shows_has_no_interval() -> None:
    x, episode = np.random.default_rng(0).normal(size=(30, 1)), np.repeat(np.arange(3), 10)
    d, low, high = bootstrap_cohens_d(x, episode == 1, episode, rng=np.random.default_rng(0))
    assert np.isfinite(d).all() and np.isnan(low).all() and np.isnan(high).all()
    with pytest.raises(ValueError, match="29 episode numbers"):
        bootstrap_cohens_d(x, episode == 1, episode[1:], rng=np.random.default_rng(0))


# Enough units?


@pytest.mark.parametrize(("kind", "enough"), [("sign-flip", 6), ("permutation", 4), ("split", 8)])
def test_too_few_units_are_refused_with_the_number_needed(kind: str, enough: int) -> None:
    require_permutations(enough, 0.05, kind)
    with pytest.raises(UserError, match=rf"{enough - 1} independent units .* use at least {enough}") as error:
        require_permutations(enough - 1, 0.05, kind)
    assert "\n" not in str(error.value)
    assert smallest_p(enough, kind) <= 0.05 < smallest_p(enough - 1, kind)


def test_smallest_p_is_attained() -> None:
    rng = np.random.default_rng(0)
    assert sign_flip_p(np.arange(1.0, 8.0), rng=rng) == smallest_p(7, "sign-flip")
    with pytest.raises(UserError, match="0 independent units"):
        require_permutations(0, 0.05)
    with pytest.raises(ValueError, match="no test of kind"):
        smallest_p(3, "guess")
    with pytest.raises(ValueError, match="alpha"):
        require_permutations(3, 0.0)


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.001, 0.05 / 3456, 0.3])
def test_the_least_that_can_be_significant(alpha: float) -> None:
    least = least_permutations(alpha)
    assert 1 / (1 + least) <= alpha < 1 / least or least == 1
    require_draws(least, alpha)
    with pytest.raises(UserError, match=f"{least - 1} permutations are too few .* use at least {least}"):
        require_draws(least - 1, alpha)
    for kind in ("sign-flip", "permutation", "split"):
        units = least_units(alpha, kind)
        assert smallest_p(units, kind) <= alpha < smallest_p(units - 1, kind)
        assert smallest_p(units, kind, permutations=9) == max(0.1, smallest_p(units, kind))
    # The promise, kept: no data can give less.
    unit_effects = np.ones(least_units(alpha) - 1)
    assert sign_flip_p(unit_effects, rng=np.random.default_rng(0), permutations=2**17) > alpha


@pytest.mark.parametrize("draws", [39, 50, 200])
def test_a_band_leaves_out_as_many_of_its_like_as_it_says(draws: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, draws + 1))
    bands = np.array([band_of(row[1:], 0.05) for row in x])
    outside = (x[:, 0] < bands[:, 0]) | (x[:, 0] > bands[:, 1])
    assert outside.mean() == pytest.approx(0.05, abs=0.011)  # standard error 0.0035; plain quantiles of 50: 0.087


def test_a_band_of_few_draws_is_their_extremes() -> None:
    draws = np.array([3.0, -1.0, 2.0])
    assert band_of(draws, 0.05) == (-1.0, 3.0)
    assert band_of(np.arange(39.0), 0.05) == (0.0, 38.0)
    assert band_of(np.array([2.0]), 0.05) == (2.0, 2.0)
    assert band_of(np.arange(79.0), 0.05) == pytest.approx((1.0, 77.0))
