"""Two samples compared with whole episodes as units: closed forms, and intervals that hold the truth under the null."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.two_sample import frechet, halves, mmd, told_apart

STEPS = 6


def states(generator: np.random.Generator, episodes: int, shift: float = 0.0) -> np.ndarray:
    """Rows [episodes * STEPS, 4] of variance 1 whose episodes are recognisable."""
    x = np.sqrt(0.6) * generator.standard_normal((episodes, 1, 4))
    x = x + np.sqrt(0.4) * generator.standard_normal((episodes, STEPS, 4)) + shift * np.eye(4)[0]
    return x.reshape(-1, 4)


def test_frechet_of_gaussians() -> None:
    a = np.random.default_rng(0).standard_normal((200_00, 3))
    b = a * np.array([1, 2, 1]) + np.array([3, 0, 0])
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)
    # Diagonal covariances: |m - m'|^2 + sum (s - s')^2
    assert frechet(a, b) == pytest.approx(9 + 1, rel=0.05)


def test_mmd_is_unbiased_and_grows() -> None:
    draws = [mmd(*np.split(np.random.default_rng(i).standard_normal((80, 2)), 2), 1.0) for i in range(60)]
    assert abs(np.mean(draws)) < 3 * np.std(draws) / np.sqrt(60)
    a = np.random.default_rng(0).standard_normal((100, 2))
    assert mmd(a, a + 1, 1.0) > mmd(a, a + 0.5, 1.0) > max(draws[:1])


def test_classifier_tells_apart_only_what_differs_and_not_by_the_episode() -> None:
    generator = np.random.default_rng(0)
    episode = np.repeat(np.arange(20), 10)
    base = generator.standard_normal((20, 4))[episode]  # an episode is recognisable ...
    a, b = (base + 0.1 * generator.standard_normal(base.shape) for _ in range(2))
    label, both = np.repeat([0, 1], 200), np.tile(episode, 2)
    # ... but says nothing of the class.
    same, other = (told_apart(np.concatenate([a, x]), label, both, generator) for x in (b, b + 2))
    assert same.low < 0.5 < same.high and same.n == other.n == 20
    assert other.value > 0.85 and 0.6 < other.low < other.high <= 1
    far = told_apart(np.concatenate([a, b + 50]), label, both, generator)
    assert far.value == far.high == 1 and 0.6 < far.low < 0.75  # of the ten held out none is an exception: 0.69
    assert np.isnan(told_apart(a, (episode > 0).astype(int), episode, generator).value)


def told(runs: int, episodes: int, paired: bool) -> float:
    """Share of intervals that hold 0.5 where the samples are alike."""
    generator, holds = np.random.default_rng(episodes), []
    label, unit = np.repeat([0, 1], episodes * STEPS), np.tile(np.repeat(np.arange(episodes), STEPS), 2)
    for _ in range(runs):
        x = np.concatenate([states(generator, episodes), states(generator, episodes)])
        e = told_apart(x, label, unit if paired else unit + episodes * label, generator)
        assert e.low <= e.value <= e.high
        holds.append(e.low <= 0.5 <= e.high)
    return float(np.mean(holds))


def test_halves_of_few_episodes_have_no_interval() -> None:
    """Four episodes have three pairs of halves, whose band held the distance of two halves in 2 to 6 of ten studies."""

    def apart(a_N: np.ndarray, b_N: np.ndarray) -> float:
        return abs(float(a_N.mean() - b_N.mean())) if len(a_N) and len(b_N) else np.nan

    generator = np.random.default_rng(0)
    cases = (
        (4, 4, False, False),
        (7, 7, False, False),
        (4, 30, False, False),
        (30, 4, False, True),
        (8, 8, True, True),
    )
    for first, second, *there in cases:  # two real halves are of real episodes alone
        a, b = generator.normal(size=first), generator.normal(1, size=second)
        numbers = {} if first == second else {"simulated_episode_M": np.arange(first, first + second)}
        for e, known in zip(halves(a, b, np.arange(first), apart, generator, **numbers), there, strict=True):
            assert np.isfinite(e.low) == np.isfinite(e.high) == (known and np.isfinite(e.value))
    holds = []
    for seed in range(100):
        g = np.random.default_rng(seed)
        a, b = g.normal(size=8), g.normal(1, size=8)
        against, floor = halves(a, b, np.arange(8), apart, g)
        holds.append([against.low <= 1.06 <= against.high, floor.low <= 0.56 <= floor.high])
    assert (np.mean(holds, 0) >= 0.85).all()  # the distances of means of four: |N(1, .7)|, |N(0, .7)|


def test_what_is_alike_is_not_told_apart() -> None:
    assert told(30, 24, paired=True) >= 0.9


@pytest.mark.parametrize(("first", "second"), [(2, 2), (3, 3), (3, 30), (4, 4), (4, 30)])
@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_what_is_told_apart_by_one_held_out_unit_has_no_interval(first: int, second: int, shift: float) -> None:
    """A half of three units is one, which has no spread: an interval of no width would be certain of anything."""
    generator = np.random.default_rng(first + second)
    x = np.concatenate([states(generator, first), states(generator, second, shift)])
    label, unit = np.repeat([0, 1], [first * STEPS, second * STEPS]), np.repeat(np.arange(first + second), STEPS)
    e = told_apart(x, label, unit, generator)
    assert e.n == first + second and (e.value == 1 if shift else 0 <= e.value <= 1)
    if first < 4:
        assert np.isnan(e.low) and np.isnan(e.high)
    else:
        assert e.low < 0.9 and (e.high == 1 if shift else e.low < 0.5 < e.high)


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [4, 8, 24, 64])
@pytest.mark.parametrize("paired", [True, False])
def test_interval_of_what_is_told_apart_covers(
    episodes: int, paired: bool, record_property: Callable[[str, object], None]
) -> None:
    covers = told(300, episodes, paired)
    record_property("coverage", covers)
    assert covers >= 0.92


def test_halves_compare_equal_sizes() -> None:
    generator = np.random.default_rng(0)
    episode = np.repeat(np.arange(30), 8)
    x, y = generator.standard_normal((2, 240, 3))
    simulated, floor = halves(x, y, episode, frechet, np.random.default_rng(0))
    assert simulated.n == floor.n == 30 and abs(simulated.value - floor.value) < 0.15
    far, again = halves(x, y + 2, episode, frechet, np.random.default_rng(0))
    assert far.low > again.high


def test_halves_of_a_difference_of_means_hold_it() -> None:
    """Where the truth is known: two samples whose means are 0.5 apart, in the same and in other episodes."""
    generator, episode = np.random.default_rng(1), np.repeat(np.arange(24), STEPS)

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return float(b[:, 0].mean() - a[:, 0].mean())

    holds = []
    for _ in range(200):
        x, y = states(generator, 24), states(generator, 24, 0.5)
        e, floor = halves(x, y, episode, distance, generator)
        assert e.low <= e.value <= e.high and floor.low <= floor.value <= floor.high
        holds.append([e.low <= 0.5 <= e.high, floor.low <= 0 <= floor.high])
    assert (np.mean(holds, 0) >= 0.9).all()
