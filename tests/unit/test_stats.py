"""Statistics keep their promises: intervals cover, null p-values are uniform, and episodes are the unit.

The simulations use fixed seeds and bounds that a correct procedure misses with probability < 1e-3.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats as scipy_stats

from core.contracts import UserError
from core.stats import (
    ATANH,
    DRAWS,
    FEW_UNITS,
    LOG,
    LOGIT,
    LOST,
    MOST_DRAWS,
    PLAIN,
    Estimate,
    Link,
    as_alike,
    band_of,
    benjamini_hochberg,
    between,
    bootstrap_mean,
    bootstrap_means,
    cohens_d,
    cohens_d_interval,
    difference,
    draws_for,
    eta_squared,
    few,
    in_text,
    jackknife,
    jackknifed,
    least_permutations,
    least_units,
    left_out,
    mean_p,
    means,
    paired_share,
    permutation_p,
    quantile_interval,
    ratios,
    require_draws,
    require_permutations,
    share_interval,
    share_of,
    shares,
    smallest_p,
)

Record = Callable[[str, object], None]

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


# Intervals of means


def experiment(kind: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(values of true mean 0 [N], their episodes [N]) of n episodes."""
    if kind == "gaussian":
        return rng.normal(size=n), np.arange(n)
    if kind == "exponential":
        return rng.exponential(size=n) - 1, np.arange(n)
    if kind == "lognormal":
        return rng.lognormal(size=n) - math.exp(0.5), np.arange(n)
    if kind == "heavy":
        return rng.standard_t(3, size=n), np.arange(n)
    if kind == "timeouts":  # one episode in ten is 1,000 steps long, the others 20; each has a mean of its own
        length = with_timeouts(rng, n)
        return np.repeat(rng.normal(size=n), length) + 0.5 * rng.normal(size=length.sum()), np.repeat(
            np.arange(n), length
        )
    length = rng.integers(5, 51, size=n)  # autocorrelated steps of unequal episodes
    return autocorrelated(rng, (n,), 50)[np.arange(50) < length[:, None]], np.repeat(np.arange(n), length)


KIND = ("gaussian", "exponential", "lognormal", "heavy", "autocorrelated", "timeouts")


def with_timeouts(rng: np.random.Generator, n: int) -> np.ndarray:
    length: np.ndarray = np.where(rng.random(n) < 0.1, 1000, 1 + rng.geometric(0.05, n))
    return length


def coverage_of_mean(kind: str, n: int, runs: int, level: float = 0.95, seed: int = 0) -> float:
    rng = np.random.default_rng([seed, n])
    found = [bootstrap_mean(*experiment(kind, n, rng), rng=rng, level=level) for _ in range(runs)]
    assert all(e.low <= e.value <= e.high for e in found)
    return float(np.mean([e.low <= 0 <= e.high for e in found]))


@pytest.mark.parametrize("kind", KIND)
def test_interval_of_the_mean_covers(kind: str) -> None:
    assert coverage_of_mean(kind, 24, 200) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("n", [8, 24, 128])
@pytest.mark.parametrize("kind", KIND)
def test_interval_of_the_mean_covers_with_few_units_and_many(kind: str, n: int, record_property: Record) -> None:
    """docs/statistics.md quotes these."""
    least, covers = 0.92 if kind != "lognormal" or n > 8 else 0.88, coverage_of_mean(kind, n, 1000)
    record_property("coverage", covers)
    assert least <= covers <= (0.98 if kind != "timeouts" else 0.99)
    assert coverage_of_mean(kind, n, 1000, level=0.9) >= least - 0.06


def test_an_episode_that_outlasts_all_others_is_nearly_the_only_unit() -> None:
    """Its steps are most of the mean, and how far it is from the others tells the error."""
    rng, length = np.random.default_rng(0), np.array([2000] + [10] * 23)
    episode, found = np.repeat(np.arange(24), length), []
    for _ in range(100):
        value = np.repeat(rng.normal(size=24), length) + 0.5 * rng.normal(size=len(episode))
        found.append((bootstrap_mean(value, episode, rng=rng), share_of(value > 0, episode)))
    assert sum(e.low <= 0 <= e.high for e, _ in found) >= 90 and sum(e.low <= 0.5 <= e.high for _, e in found) >= 90
    assert as_alike(length) == pytest.approx(1.24, abs=0.01) and as_alike(np.full(24, 7.0)) == pytest.approx(24)


def test_resampling_steps_instead_of_episodes_is_anti_conservative() -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(100):
        value = autocorrelated(rng, (EPISODES,), STEPS).ravel()
        e = bootstrap_mean(value, np.arange(len(value)), rng=rng, resamples=399)
        hits += e.low <= 0 <= e.high
    assert hits < 70


@pytest.mark.parametrize("n", [2, 3, 5])
def test_interval_of_very_few_units_is_no_shorter_than_student_s(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(20):
        x = rng.normal(size=n)
        e = bootstrap_mean(x, np.arange(n), rng=rng)
        ends = scipy_stats.t.interval(0.95, n - 1, x.mean(), x.std(ddof=1) / math.sqrt(n))
        assert e.low <= ends[0] + 1e-9 and e.high >= ends[1] - 1e-9
        assert e.high - e.low < 3 * (ends[1] - ends[0])  # not wildly longer either


def test_skewed_units_have_a_skewed_interval_that_is_not_wild() -> None:
    rng = np.random.default_rng(1)
    for n in (8, 24):
        x = rng.lognormal(size=(n, 200))
        low, high = means(x, rng=rng).interval()
        error = x.std(0, ddof=1) / math.sqrt(n)
        assert np.median((high - x.mean(0)) / (x.mean(0) - low)) > 1.2
        assert ((high - low) / error).max() < 12


def test_many_means_are_those_of_each_and_share_their_draws() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(0.3, 1, size=(20, 7)) ** 2
    x[3, 5] = np.nan
    together = bootstrap_means(x, np.random.default_rng(5))
    for column, e in zip(x.T, together, strict=True):
        alone = bootstrap_mean(column, np.arange(20), rng=np.random.default_rng(5))
        np.testing.assert_allclose(e, alone, rtol=1e-9)
    assert np.isnan(together[5][:3]).all()


def test_ratios_of_sums_are_means_of_rows_and_of_what_one_likes() -> None:
    rng = np.random.default_rng(3)
    value, episode = experiment("autocorrelated", 15, rng)
    sums, counts = np.bincount(episode, value), np.bincount(episode)
    of_rows = means(value[:, None], episode, rng=np.random.default_rng(1)).estimates()[0]
    of_sums = ratios(sums[:, None], counts[:, None], rng=np.random.default_rng(1)).estimates()[0]
    np.testing.assert_allclose(of_rows, of_sums, rtol=1e-9)
    turned = ratios(sums[:, None], -counts[:, None], rng=np.random.default_rng(1)).estimates()[0]
    width = of_sums.high - of_sums.low
    np.testing.assert_allclose([-turned.value, -turned.high, -turned.low], of_sums[:3], atol=0.05 * width)
    assert np.isnan(ratios(np.ones((3, 1)), np.zeros((3, 1)), rng=rng).value_Q).all()


@pytest.mark.parametrize("have", [2, 3, 4, 8])
def test_units_without_a_count_are_none(have: int) -> None:
    """A ratio that few of 24 units have is known from these, beside one that all have; 2 of 24 once had half an
    interval, and one of 24 a p of nearly 0."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(200):
        count = np.zeros((24, 2))
        count[rng.permutation(24)[:have], 0], count[:, 1] = rng.integers(5, 20, have), 10
        found = ratios(count * (1 + rng.normal(size=(24, 2))), count, rng=rng, draws=499)
        low, high = found.interval()
        covered += low[0] <= 1 <= high[0]
        assert found.n_Q.tolist() == [have, 24]
    assert covered >= 180
    alone = ratios(np.eye(24, 1), np.eye(24, 1), rng=rng)
    assert alone.n_Q == 1 and np.isnan(alone.interval()[0]) and alone.p() == 1 and alone.value_Q == 1


@pytest.mark.parametrize("rate", [0.002, 0.05])
def test_a_share_that_few_tell_is_no_surer_less_a_certain_one(rate: float) -> None:
    """Chances that are right, less what came of them: while nothing did, the differences are all alike."""
    rng, missed = np.random.default_rng(0), 0
    for _ in range(200):
        chance = rate * rng.lognormal(0, 0.5, 64)
        came = share_of(rng.random(64) < chance, np.arange(64))
        low, high = difference(bootstrap_mean(chance, np.arange(64), rng=rng), came).interval
        missed += not low <= 0 <= high
    assert missed <= 20
    assert difference(Estimate(0.5, 0.4, 0.7, 9), Estimate(0.2, 0.2, 0.2, 5)) == pytest.approx((0.3, 0.2, 0.5, 5))


def test_interval_does_not_depend_on_order_offset_or_unit() -> None:
    rng = np.random.default_rng(4)
    value, episode = experiment("autocorrelated", 12, rng)
    e = bootstrap_mean(value, episode, rng=np.random.default_rng(0))
    order = rng.permutation(len(value))
    again = bootstrap_mean(value[order], episode[order], rng=np.random.default_rng(0))
    np.testing.assert_allclose(again, e, rtol=1e-9)
    moved = bootstrap_mean(1e3 + 7 * value, episode, rng=np.random.default_rng(0))
    np.testing.assert_allclose(np.array(moved[:3]), 1e3 + 7 * np.array(e[:3]), rtol=1e-9)


def test_many_units_are_drawn_in_blocks() -> None:
    rng = np.random.default_rng(0)
    x = rng.exponential(size=5000)
    e = bootstrap_mean(x, np.arange(5000), rng=rng)
    assert e.high - e.low == pytest.approx(2 * 1.96 * x.std() / math.sqrt(5000), rel=0.1)


def test_levels_are_nested_and_one_sided_bounds_are_the_ends() -> None:
    x = np.random.default_rng(0).normal(size=(30, 3))
    found = means(x, rng=np.random.default_rng(0))
    (low, high), (low90, high90) = found.interval(0.95), found.interval(0.9)
    assert (low < low90).all() and (high90 < high).all()
    with pytest.raises(ValueError, match="level"):
        found.interval(1.0)


def test_one_unit_gives_no_interval_and_none_gives_no_value() -> None:
    rng = np.random.default_rng(0)
    e = bootstrap_mean(np.arange(4.0), np.zeros(4), rng=rng)
    assert e.value == 1.5 and e.n == 1 and np.isnan(e.interval).all()
    nothing = bootstrap_mean(np.zeros(0), np.zeros(0), rng=rng)
    assert nothing.n == 0 and math.isnan(nothing.value)
    assert math.isnan(bootstrap_mean(np.array([1.0, np.nan]), np.arange(2), rng=rng).value)
    with pytest.raises(ValueError, match="episode numbers"):
        bootstrap_mean(np.zeros(3), np.zeros(2), rng=rng)
    with pytest.raises(ValueError, match="episode numbers"):
        share_of(np.zeros(3, bool), np.zeros(2))


def test_a_constant_is_known_and_a_rounding_error_is_no_spread() -> None:
    rng = np.random.default_rng(0)
    assert bootstrap_mean(np.full(6, 0.1), np.array([0, 0, 0, 1, 1, 2]), rng=rng).interval == pytest.approx((0.1, 0.1))
    assert bootstrap_mean(np.zeros(6), np.arange(6), rng=rng).interval == (0, 0)


def test_estimates_are_reproducible_and_few_units_are_called_few() -> None:
    x, episode = np.array([1.0, 0.5, 3.0, 2.0]), np.array([0, 0, 1, 2])
    first, second = (bootstrap_mean(x, episode, rng=np.random.default_rng(7)) for _ in range(2))
    assert first == second and isinstance(first, Estimate) and first.interval == (first.low, first.high)
    assert few(FEW_UNITS - 1) == ", few" and few(FEW_UNITS) == ""
    assert in_text(Estimate(0.123, 0.1, 0.2, 8), ".2f", "starts") == "0.12 [0.10, 0.20] (n = 8 starts, few)"
    assert in_text(Estimate(0.5, math.nan, math.nan, 100)) == "0.5 (n = 100)"
    assert in_text(Estimate(0.5, 0.25, math.nan, 9)) == "0.5 [0.25, ?] (n = 9, few)" and between(None, None) == ""
    assert between(None, 3.0, ".0f") == between(math.nan, 3.0, lambda x: f"{x:.0f}") == " [?, 3]"


# Shares


def test_share_of_independent_units_is_clopper_and_pearson_s() -> None:
    for hits in (0, 1, 7, 12):
        e = share_of(np.arange(12) < hits, np.arange(12))
        exact = scipy_stats.binomtest(hits, 12).proportion_ci(0.95, "exact")
        assert e.interval == pytest.approx(exact, abs=1e-9) and e.n == 12
    assert bootstrap_mean(np.arange(12) < 7, np.arange(12), rng=np.random.default_rng(0)) == share_of(
        np.arange(12) < 7, np.arange(12)
    )
    assert share_interval(0, 6) == pytest.approx((0, 0.4593), abs=1e-4)
    assert share_interval(0, 0) == (0, 1)
    with pytest.raises(ValueError, match="7 of 6"):
        share_interval(7, 6)
    with pytest.raises(ValueError, match="not 0 to 1"):
        share_of(np.array([1.0, 2.0]), np.arange(2))


def clustered(
    rng: np.random.Generator, episodes: int, share: float, alike: float, timeouts: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Hits of unequal episodes, which have shares of their own; alike: correlation of two steps of an episode."""
    length = with_timeouts(rng, episodes) if timeouts else rng.integers(1, 40, size=episodes)
    many = 1 / alike - 1 if alike else 0
    of = rng.beta(share * many, (1 - share) * many, size=episodes) if alike else np.full(episodes, share)
    episode = np.repeat(np.arange(episodes), length)
    return rng.random(len(episode)) < of[episode], episode


@pytest.mark.parametrize("timeouts", [False, True])
@pytest.mark.parametrize("alike", [0, 0.1, 0.5])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_interval_of_a_share_of_steps_covers(share: float, alike: float, timeouts: bool) -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        e = share_of(*clustered(rng, 24, share, alike, timeouts))
        assert 0 <= e.low <= e.value <= e.high <= 1 and e.high > e.low
        hits += e.low <= share <= e.high
    assert hits >= 180


@pytest.mark.slow
@pytest.mark.parametrize("n", [8, 24, 128])
@pytest.mark.parametrize("alike", [0, 0.1, 0.5])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_interval_of_a_share_of_steps_covers_with_few_units_and_many(
    share: float, alike: float, n: int, record_property: Record
) -> None:
    rng = np.random.default_rng(n)
    found = [share_of(*clustered(rng, n, share, alike)) for _ in range(1000)]
    covers = np.mean([e.low <= share <= e.high for e in found])
    record_property("coverage", float(covers))
    assert covers >= 0.92


def test_many_shares_are_those_of_each() -> None:
    rng = np.random.default_rng(0)
    row = rng.integers(0, 5, size=(12, 6))
    hit = rng.binomial(row, [0, 0.1, 0.5, 0.5, 0.9, 1])
    row[:, 3], hit[:, 3] = 0, 0
    found = np.stack(shares(hit, row), 1)
    for q in range(6):
        steps = [np.repeat([1, 0], [h, r - h]) for h, r in zip(hit[:, q], row[:, q], strict=True)]
        alone = share_of(np.concatenate(steps), np.repeat(np.arange(12), row[:, q]))
        np.testing.assert_allclose(found[q], alone)
    assert np.isnan(found[3, :3]).all() and found[3, 3] == 0


def test_shares_of_none_and_of_all_have_a_width() -> None:
    """All steps agree, so that nothing says how they cluster: every episode counts once."""
    episode = np.repeat(np.arange(6), 50)
    none, every = (share_of(np.full(300, hit), episode) for hit in (False, True))
    assert none.interval == pytest.approx((0, 0.4593), abs=1e-4)
    assert every.interval == pytest.approx((1 - 0.4593, 1), abs=1e-4)


def test_paired_share_is_tango_s_score_interval() -> None:
    """Tango 1998, table I: 14 pairs, of which 1 changes up and none down; and 0 of 6."""
    change = np.r_[np.ones(1), np.zeros(13)]
    e = paired_share(change)
    assert e.value == pytest.approx(1 / 14)
    z = scipy_stats.norm.ppf(0.975)
    assert paired_share(np.zeros(6)).interval == pytest.approx((-(z**2) / (6 + z**2), z**2 / (6 + z**2)))
    assert e.low < 0 < e.high
    mirrored = paired_share(-change)
    assert (-mirrored.high, -mirrored.low) == pytest.approx(e.interval)
    assert paired_share(np.ones(10)).high == 1 and paired_share(np.ones(10)).low < 0.8
    assert math.isnan(paired_share(np.zeros(0)).value)
    with pytest.raises(ValueError, match="-1, 0 or 1"):
        paired_share(np.array([0.5]))


@pytest.mark.parametrize("chances", [(0.05, 0.05), (0.3, 0.1), (0.0, 0.02), (0.6, 0.0)])
def test_interval_of_a_paired_share_covers(chances: tuple[float, float]) -> None:
    up, down = chances
    for n in (8, 24, 96):
        rng = np.random.default_rng(n)
        x = rng.choice([1, -1, 0], p=[up, down, 1 - up - down], size=(200, n))
        found = [paired_share(row) for row in x]
        assert all(e.low <= e.value <= e.high for e in found)
        assert np.mean([e.low <= up - down <= e.high for e in found]) >= 0.9


# Other statistics


def test_jackknife_of_the_mean_is_the_mean_s() -> None:
    rng = np.random.default_rng(2)
    value = rng.exponential(size=30)
    e = bootstrap_mean(value, np.arange(30), rng=np.random.default_rng(0))
    found = jackknife(lambda rows: value[rows].mean(), np.arange(30), rng=np.random.default_rng(0))
    np.testing.assert_allclose(found, e[:3], rtol=1e-9)


def test_jackknife_leaves_out_whole_episodes() -> None:
    episode = np.array([5, 5, 5, -1, -1, 9])
    seen = []

    def whole(rows: np.ndarray) -> float:
        seen.append(rows.tolist())
        return 0.0

    jackknife(whole, episode, rng=np.random.default_rng(0))
    assert seen == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 5], [3, 4, 5], [0, 1, 2, 3, 4]]


def test_one_unit_that_makes_nearly_all_of_an_error_does_not_make_an_interval_endless() -> None:
    """R^2 of .995, where 1 of 448 episodes was misread: on a logarithm's scale it ended at -10^11."""
    error_E, spread_E = np.full(448, 1e-6), np.ones(448)
    error_E[7] = 2.0
    weight_GE = left_out(448, np.random.default_rng(0))
    r2_G = 1 - weight_GE @ error_E / (weight_GE @ spread_E)
    value, low, high = jackknifed(r2_G, rng=np.random.default_rng(0), link=LOST)
    assert value == pytest.approx(1 - 2 / 448, abs=1e-5) and 0.9 < low < 0.994 and high <= 1


def test_many_units_are_left_out_by_groups() -> None:
    weight = left_out(450, np.random.default_rng(0))
    assert weight.shape == (201, 450) and (weight[0] == 1).all()
    assert ((weight[1:] == 0).sum(0) == 1).all() and set((weight[1:] == 0).sum(1)) <= {2, 3}


STATISTICS: dict[str, tuple[Link, float]] = {
    "variance": (LOG, 2.0), "r2": (LOST, 0.5), "correlation": (ATANH, math.sqrt(0.5)), "entropy": (PLAIN, math.log(8)),
    "share": (LOGIT, 0.5),
}  # fmt: skip


def statistic_of(name: str, x_N: np.ndarray, y_N: np.ndarray, rows: np.ndarray) -> float:
    x, y = x_N[rows], y_N[rows]
    if name == "variance":
        return float(y.var())
    if name == "r2":
        return float(1 - ((y - x) ** 2).sum() / (y**2).sum())
    if name == "correlation":
        return float(np.corrcoef(x, y)[0, 1])
    if name == "share":
        return float((y > 0).mean())
    share = np.bincount(np.floor(8 * scipy_stats.norm.cdf(x)).astype(int).clip(0, 7)) / len(x)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


def coverage_of_jackknife(name: str, n: int, runs: int) -> float:
    """Of statistics of n episodes of four correlated steps, y = x + noise, all of variance 1."""
    rng, (link, truth) = np.random.default_rng(n), STATISTICS[name]
    episode, hits = np.repeat(np.arange(n), 4), []
    for _ in range(runs):
        x, y = (
            math.sqrt(0.3) * rng.normal(size=n)[episode] + math.sqrt(0.7) * rng.normal(size=4 * n) for _ in range(2)
        )
        value, low, high = jackknife(
            lambda rows, x=x, y=x + y: statistic_of(name, x, y, rows), episode,
            rng=rng, link=link, unbiased=name == "entropy",
        )  # fmt: skip
        assert low <= value <= high
        hits.append(low <= truth <= high)
    return float(np.mean(hits))


@pytest.mark.parametrize("name", STATISTICS)
def test_jackknife_covers(name: str) -> None:
    assert coverage_of_jackknife(name, 24, 200) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("n", [8, 24, 128])
@pytest.mark.parametrize("name", STATISTICS)
def test_jackknife_covers_with_few_units_and_many(name: str, n: int, record_property: Record) -> None:
    covers = coverage_of_jackknife(name, n, 1000)
    record_property("coverage", covers)
    assert covers >= (0.88 if n == 8 else 0.92)


def test_jackknife_takes_the_bias_of_an_entropy_off() -> None:
    rng, plain, corrected = np.random.default_rng(0), [], []
    for _ in range(80):
        x = rng.integers(8, size=40)
        of = lambda rows, x=x: statistic_of("entropy", scipy_stats.norm.ppf((x + 0.5) / 8), x, rows)  # noqa: E731
        plain.append(of(np.arange(40)))
        corrected.append(float(jackknife(of, np.arange(40), rng=rng, unbiased=True)[0]))
    assert np.mean(plain) < math.log(8) - 0.06
    assert np.mean(corrected) == pytest.approx(math.log(8), abs=0.03)


def test_what_rests_on_one_unit_has_no_interval() -> None:
    x = np.r_[1.0, np.zeros(9)]

    def share(rows: np.ndarray) -> np.ndarray:
        return np.array([1.0 if x[rows].any() else math.nan, x[rows].mean()])

    value, low, high = jackknife(share, np.arange(10), rng=np.random.default_rng(0))
    assert value.tolist() == [1, 0.1] and np.isnan([low[0], high[0]]).all() and low[1] <= 0.1 <= high[1]
    value, low, high = jackknife(lambda rows: 3.0, np.zeros(4), rng=np.random.default_rng(0))
    assert value == 3 and np.isnan(low) and np.isnan(high)
    with pytest.raises(ValueError, match="no rows"):
        jackknife(lambda rows: 0.0, np.zeros(0), rng=np.random.default_rng(0))


def test_jackknifed_is_silent_about_infinite_links_beside_missing_values() -> None:
    value = np.array([[0.0, 0.5], [np.nan, 0.4], [0.0, 0.6], [0.5, 0.5]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, low, high = jackknifed(value, rng=np.random.default_rng(0), link=LOGIT)
    assert np.isnan(low[0]) and np.isnan(high[0]) and np.isfinite([found[1], low[1], high[1]]).all()


def test_jackknifed_keeps_shape_and_takes_infinite_links_as_they_are() -> None:
    value = np.ones((11, 2, 2))
    value[:, 0, 1] = np.r_[0.5, 0.5 + 0.01 * np.arange(10)]
    value[:, 1, 0] = np.r_[0.99, np.linspace(0.97, 1, 10)]
    found, low, high = jackknifed(value, rng=np.random.default_rng(0), link=LOGIT)
    assert found.shape == low.shape == high.shape == (2, 2)
    assert low[0, 0] == high[0, 0] == 1 and 0 < low[0, 1] < 0.5 < high[0, 1] < 1
    assert low[1, 0] < 0.99 < high[1, 0] <= 1
    wild = np.r_[0.5, np.tile([0.0, 1.0], 5)]
    _, least, most = jackknifed(wild[:, None], rng=np.random.default_rng(0), link=LOGIT)
    assert least[0] == 0 and most[0] == 1  # a share is nothing else, whatever the pseudo-values say
    few_units = jackknifed(value, rng=np.random.default_rng(0), link=LOGIT, units=3)
    assert few_units[1][0, 1] < low[0, 1]


@pytest.mark.parametrize("n", [24, 100])
def test_interval_of_a_quantile_covers(n: int) -> None:
    rng = np.random.default_rng(n)
    found = [quantile_interval(rng.lognormal(size=n), 0.75) for _ in range(400)]
    assert all(e.low <= e.value <= e.high for e in found)
    covers = np.mean([e.low <= math.exp(scipy_stats.norm.ppf(0.75)) <= e.high for e in found])
    assert covers > 0.93


@pytest.mark.parametrize("n", [3, 6, 12, 13])
def test_interval_of_a_quantile_of_few_units_has_no_end_that_they_cannot_tell(n: int) -> None:
    """That all of 12 lie below the quantile .75 happens in one case of 32, so the largest bounds it too seldom."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((2000, n))
    up, down = (np.array([quantile_interval(x_N, q).interval for x_N in x]) for q in (0.75, 0.25))
    assert np.isinf(up[:, 1]).all() == (n < 13) == np.isinf(down[:, 0]).all()
    assert np.isfinite(up[:, 0]).all() and np.isfinite(down[:, 1]).all()
    for ends, q in ((up, 0.75), (down, 0.25)):
        truth = scipy_stats.norm.ppf(q)
        assert np.mean(ends[:, 0] > truth) < 0.035 and np.mean(ends[:, 1] < truth) < 0.035  # of .025 each, at most
    nothing = quantile_interval(np.array([1.0, 2.0]), 0.75)
    assert nothing.interval == (-math.inf, math.inf) and nothing.value == 1.75


# p-values


@pytest.mark.parametrize("kind", ["gaussian", "exponential", "lognormal", "heavy"])
def test_mean_p_keeps_its_level_where_effects_are_skewed(kind: str) -> None:
    """Sign flips call 8 % (exponential) to 18 % (lognormal) of 32 effects without a mean significant."""
    rng = np.random.default_rng(3)
    x = np.stack([experiment(kind, 32, rng)[0] for _ in range(2000)], 1)
    alarms = np.concatenate([mean_p(x[:, i : i + 200], rng=rng, draws=1999) <= 0.05 for i in range(0, 2000, 200)])
    assert 0.02 < alarms.mean() < 0.06
    if kind == "lognormal":
        sums = np.abs(rng.choice([-1.0, 1.0], size=(999, 32)) @ x[:, :200])
        assert np.mean(permutation_p(x[:, :200].sum(0), sums) <= 0.05) > 0.12


def test_mean_p_and_the_interval_say_the_same() -> None:
    rng = np.random.default_rng(0)
    x = rng.exponential(size=(20, 500)) - 0.7
    found = means(x, rng=rng)
    for level in (0.95, 0.9, 0.99):
        low, high = found.interval(level)
        np.testing.assert_array_equal(found.p() <= 1 - level + 1e-9, (low > 0) | (high < 0))
    low, high = found.interval()
    np.testing.assert_array_equal(found.p(0.5) <= 0.05, (low > 0.5) | (high < 0.5))


def test_mean_p_finds_an_effect_as_the_t_test_does() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(1.0, 1.0, size=(16, 200))
    assert np.mean(mean_p(x, rng=rng, draws=1999) <= 0.05) > 0.9


def test_mean_p_of_degenerate_effects() -> None:
    rng = np.random.default_rng(0)
    assert mean_p(np.zeros(20), rng=rng) == 1
    assert mean_p(np.ones(5), rng=rng) == 2**-4  # so few units cannot say more
    assert mean_p(np.full(60, 0.1), rng=rng, draws=999) == 2 / 1000 == smallest_p(60, "mean", 999)
    assert math.isnan(mean_p(np.array([]), rng=rng)) and math.isnan(mean_p(np.array([1, np.nan]), rng=rng))
    assert mean_p(np.ones(1), rng=rng) == 1
    x = np.random.default_rng(0).normal(0.4, 1, size=(6, 5))
    x[2, 3] = np.nan
    got = mean_p(x, rng=np.random.default_rng(1))
    want = [mean_p(column, rng=np.random.default_rng(1)) for column in x.T]
    np.testing.assert_allclose(got, want, rtol=1e-9)
    assert np.isnan(mean_p(np.zeros((0, 2)), rng=rng)).tolist() == [True, True]


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
    assert permutation_p(2.0, null[:, 0], around=1.0) == 3 / 4 and permutation_p(4.0, null[:, 0], around=1.0) == 2 / 4
    assert permutation_p(1e-16, np.array([1e-17, -1e-17]), noise=1e-12) == 1.0
    assert permutation_p(0.1, np.full(9, 0.1, np.float32), around=0.09999) == 1.0  # so it is in float32
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


def test_eta_squared_is_between_over_total_sum_of_squares() -> None:
    rng = np.random.default_rng(0)
    group, member = rng.integers(4, size=300), rng.random(300) < 0.3
    all_B, count_B = np.bincount(group, minlength=5), np.bincount(group[member], minlength=5)  # the last has no row
    means = [member[group == b].mean() for b in range(4)]
    between = sum((group == b).sum() * (m - member.mean()) ** 2 for b, m in enumerate(means))
    never, always = np.zeros(5, int), all_B
    found = eta_squared(np.stack([count_B, all_B * (np.arange(5) == 1), never, always]), all_B)
    np.testing.assert_allclose(found, [between / (300 * member.var()), 1, np.nan, np.nan])


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
    for some in (np.zeros(10, bool), np.arange(10) < 1, np.arange(10) > 0, np.ones(10, bool)):
        assert np.isnan(cohens_d(x, some)).all()
    assert np.isfinite(cohens_d(x[:, :1], np.arange(10) < 2)).all()
    with pytest.raises(ValueError, match="not \\[N, F\\]"):
        cohens_d(x[:, 0], member)


def test_the_interval_of_cohens_d_is_that_of_the_plain_jackknife() -> None:
    rng = np.random.default_rng(11)
    episode = np.repeat(np.arange(12), rng.integers(3, 12, size=12))
    member = rng.random(len(episode)) < 0.4
    x = rng.normal(size=(len(episode), 2)) + member[:, None] * [1.0, 0.0] + rng.normal(size=(12, 2))[episode]
    fast = cohens_d_interval(x, member, episode, rng=np.random.default_rng(0))
    scarcer = min(len(np.unique(episode[some])) for some in (member, ~member))
    plain = jackknife(
        lambda rows: cohens_d(x[rows], member[rows]), episode, rng=np.random.default_rng(0), units=scarcer
    )
    np.testing.assert_allclose(fast, plain, rtol=1e-9)
    assert (fast[1] < fast[0]).all() and (fast[0] < fast[2]).all()


def coverage_of_d(by_episode: bool) -> float:
    """Share of runs in which the 95 % interval holds d, where half of an episode's slow steps are members."""
    rng = np.random.default_rng(12)
    member = np.tile(np.arange(STEPS) < STEPS // 2, EPISODES)
    unit = np.repeat(np.arange(EPISODES), STEPS) if by_episode else np.arange(EPISODES * STEPS)
    x = autocorrelated(rng, (RUNS, EPISODES), STEPS).reshape(RUNS, -1).T + 0.5 * member[:, None]
    _, low, high = cohens_d_interval(x, member, unit, rng=rng)
    true = np.median(cohens_d(x, member))  # of small groups of slow steps it is not quite 0.5
    return float(((low <= true) & (true <= high)).mean())


def test_a_group_without_a_rare_event_leaves_room_for_what_its_episodes_can_have_missed() -> None:
    """Leaving out episodes hardly changes a mean of zeros: of codes and rare events that have nothing to do with each
    other, every table had intervals that excluded 0."""
    rng = np.random.default_rng(0)
    excluded = 0
    for _ in range(20):
        episode_N = np.repeat(np.arange(16), 64)
        code_N = rng.choice(4, len(episode_N), p=[0.6, 0.36, 0.03, 0.01])
        x_NF = (rng.random((len(episode_N), 5)) < [0.2, 0.1, 0.05, 0.02, 0.01]).astype(float)
        for code in range(4):
            d, low, high = cohens_d_interval(x_NF, code_N == code, episode_N, rng=rng, level=1 - 0.05 / 20)
            none = (x_NF[code_N == code].sum(0) == 0) & np.isfinite(low)
            assert (high[none] >= 0).all() and (low[none] <= d[none]).all()
            excluded += int(((low > 0) | (high < 0)).sum())
    assert excluded <= 3  # of 20 tables at 5 % together
    seen = np.repeat([0.0, 1.0], 640)[:, None]  # what is always so inside and never outside is still told
    _, low, _ = cohens_d_interval(seen + 0, seen[:, 0] > 0, np.tile(np.arange(64), 20), rng=rng)
    assert np.isnan(low).all() or low[0] > 0


def test_the_interval_of_cohens_d_covers_where_one_over_steps_does_not() -> None:
    low, high = binomial_bounds(0.95)
    assert low - 0.01 <= coverage_of_d(True) <= high
    assert coverage_of_d(False) < 0.8


def test_an_interval_of_d_that_holds_together_with_399_others_is_longer_than_the_usual_draws_can_tell() -> None:
    """1,999 draws leave out a thousandth at least: of a skewed number they gave both levels the same end."""
    x_NF, unit_N = np.random.default_rng(0).exponential(size=(320, 1)) ** 3, np.arange(320) // 2
    at = [cohens_d_interval(x_NF, np.arange(320) % 2 == 0, unit_N, rng=np.random.default_rng(0), level=level)
          for level in (1 - 1e-3, 1 - 0.05 / 400)]  # fmt: skip
    (d, usual, _), (_, joint, _) = (np.ravel(x) for x in at)
    assert d - joint > 1.1 * (d - usual)
    assert [draws_for(level) for level in (0.9, 0.95, 1 - 1e-3, 1 - 1e-4, 1 - 1e-6)] == [
        DRAWS, DRAWS, DRAWS, 19_999, MOST_DRAWS
    ]  # fmt: skip


def test_an_effect_that_one_episode_shows_has_no_interval() -> None:
    x, episode = np.random.default_rng(0).normal(size=(30, 1)), np.repeat(np.arange(3), 10)
    d, low, high = cohens_d_interval(x, episode == 1, episode, rng=np.random.default_rng(0))
    assert np.isfinite(d).all() and np.isnan(low).all() and np.isnan(high).all()
    with pytest.raises(ValueError, match="29 episode numbers"):
        cohens_d_interval(x, episode == 1, episode[1:], rng=np.random.default_rng(0))


def test_equal_shares_in_both_groups_have_an_interval_and_no_warning() -> None:
    """Their means differ by rounding or not at all: d is some 1e-17, which the room for what was missed divided by."""
    x = np.isin(np.arange(160), [*range(9), 120, 121, 122])[:, None].astype(float)
    d, low, high = cohens_d_interval(x, np.arange(160) < 120, np.tile(np.arange(8), 20), rng=np.random.default_rng(0))
    assert abs(d[0]) < 1e-12 and -1 < low[0] < 0 < high[0] < 1


# Enough units?


@pytest.mark.parametrize(("kind", "enough"), [("mean", 6), ("permutation", 4), ("split", 8)])
def test_too_few_units_are_refused_with_the_number_needed(kind: str, enough: int) -> None:
    require_permutations(enough, 0.05, kind)
    with pytest.raises(UserError, match=rf"{enough - 1} independent units .* use at least {enough}") as error:
        require_permutations(enough - 1, 0.05, kind)
    assert "\n" not in str(error.value)
    assert smallest_p(enough, kind) <= 0.05 < smallest_p(enough - 1, kind)


def test_smallest_p_is_attained() -> None:
    rng = np.random.default_rng(0)
    assert mean_p(np.linspace(1, 1.1, 7), rng=rng) == smallest_p(7, "mean")
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
    for kind in ("mean", "permutation", "split"):
        units = least_units(alpha, kind)
        assert smallest_p(units, kind) <= alpha < smallest_p(units - 1, kind)
        drawn = 0.2 if kind == "mean" else 0.1
        assert smallest_p(units, kind, permutations=9) == max(drawn, smallest_p(units, kind))
    # The promise, kept: no data can give less.
    unit_effects = np.ones(least_units(alpha) - 1)
    assert mean_p(unit_effects, rng=np.random.default_rng(0)) > alpha


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
