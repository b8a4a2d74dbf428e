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
    benjamini_hochberg,
    bootstrap,
    bootstrap_mean,
    interval_of,
    permutation_p,
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
