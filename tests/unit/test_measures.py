"""Measures of forecasts: by hand, and intervals that hold the truth where it is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from validation.fidelity.measures import (
    average_precision,
    brier_terms,
    calibration,
    calibration_error,
    precision_estimate,
    reliability,
)

STEPS = 20
MANY = [24, pytest.param(8, marks=pytest.mark.slow), pytest.param(128, marks=pytest.mark.slow)]


def forecasts(generator: np.random.Generator, episodes: int, wrong: float = 0.0) -> tuple[np.ndarray, ...]:
    """(forecast, event, episode) of steps that share a part of their episode's luck; forecasts are too high by
    ``wrong``."""
    level = 0.15 + 0.5 * generator.random(episodes)
    chance = np.clip(level[:, None] + 0.3 * generator.random((episodes, STEPS)) - 0.15, 0.02, 0.9)
    # One draw decides for six steps of an episode together, so that steps are alike and marginals right.
    luck = np.repeat(generator.random((episodes, -(-STEPS // 6))), 6, 1)[:, :STEPS]
    event = luck < chance
    return (chance + wrong).ravel().clip(0, 1), event.ravel(), np.repeat(np.arange(episodes), STEPS)


def test_average_precision_by_hand_and_against_sklearn() -> None:
    from sklearn.metrics import average_precision_score

    assert average_precision(np.array([0.9, 0.8, 0.7]), np.array([True, False, True])) == pytest.approx((1 + 2 / 3) / 2)
    assert np.isnan(average_precision(np.ones(3), np.zeros(3, bool)))
    generator = np.random.default_rng(0)
    for _ in range(5):
        score, event = generator.integers(0, 6, 50) / 5, generator.random(50) < 0.3
        assert average_precision(score, event) == pytest.approx(average_precision_score(event, score))


@pytest.fixture(scope="module")
def true_precision() -> float:
    score, event, _ = forecasts(np.random.default_rng(99), 20_000)
    return average_precision(score, event)


@pytest.mark.parametrize("episodes", MANY)
def test_interval_of_average_precision_covers(
    true_precision: float, episodes: int, record_property: Callable[[str, object], None]
) -> None:
    generator, holds = np.random.default_rng(episodes), []
    for _ in range(200 if episodes == 24 else 1000):
        e = precision_estimate(*forecasts(generator, episodes), generator)
        assert e.low <= e.value <= e.high
        holds.append(e.low <= true_precision <= e.high)
    record_property("coverage", float(np.mean(holds)))
    assert np.mean(holds) >= (0.88 if episodes == 8 else 0.9)


def test_events_that_were_all_foretold_leave_room_for_one_that_is_not() -> None:
    """Most recordings of 8 episodes have all endings foretold by so good a forecaster: their interval was 1 to 1."""

    def endings(generator: np.random.Generator, episodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        happens = np.tile(np.arange(30) == 29, episodes)
        return generator.normal(size=30 * episodes) + 5 * happens, happens, np.repeat(np.arange(episodes), 30)

    score, happens, _ = endings(np.random.default_rng(0), 20_000)
    true, holds = average_precision(score, happens), []
    assert 0.95 < true < 0.999
    for seed in range(100):
        e = precision_estimate(*endings(np.random.default_rng(seed), 8), np.random.default_rng(0))
        assert e.low <= e.value <= e.high and e.low < 1
        holds.append(e.low <= true <= e.high)
    assert np.mean(holds) >= 0.95  # .13 without the room


def test_brier_and_calibration_by_hand() -> None:
    chance, event = np.array([0.05, 0.05, 0.95, 0.95]), np.array([False, True, True, True])
    assert brier_terms(chance, event).mean() == pytest.approx((0.0025 + 0.9025 + 2 * 0.0025) / 4)
    assert calibration_error(chance, event) == pytest.approx((2 * 0.45 + 2 * 0.05) / 4)
    lines = reliability(chance, event, np.arange(4))
    assert [(r["from"], r["to"], r["happened"], r["steps"]) for r in lines] == [(0, 0.1, 0.5, 2), (0.9, 1, 1, 2)]
    assert calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == 0


def test_the_floor_of_calibration_counts_episodes() -> None:
    """Right forecasts whose steps share their luck: the error is at the floor, which drawn step by step would be half
    as high."""
    generator, found, floors, alone = np.random.default_rng(0), [], [], []
    for _ in range(60):
        chance, event, episode = forecasts(generator, 24)
        e, floor = calibration(chance, event, episode, generator)
        assert e.low <= e.value <= e.high
        found.append(e.value)
        floors.append(floor)
        alone.append(calibration(chance, event, np.arange(len(event)), generator)[1])
    assert np.mean(found) == pytest.approx(np.mean(floors), rel=0.5)
    assert np.mean(floors) > 1.4 * np.mean(alone)
    wrong = calibration(*forecasts(generator, 24, wrong=0.2), generator)
    assert wrong[0].low > wrong[1]


@pytest.mark.parametrize("episodes", MANY)
@pytest.mark.parametrize("wrong", [0.0, 0.1])
def test_interval_of_the_calibration_error_covers(
    episodes: int, wrong: float, record_property: Callable[[str, object], None]
) -> None:
    generator, holds = np.random.default_rng(episodes), []
    for _ in range(200 if episodes == 24 else 1000):
        e, _ = calibration(*forecasts(generator, episodes, wrong), generator)
        holds.append(e.low <= wrong <= e.high)
    record_property("coverage", float(np.mean(holds)))
    assert np.mean(holds) >= 0.9
