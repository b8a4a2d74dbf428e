"""Returns of an evaluation have an interval that says what is known."""

from __future__ import annotations

import numpy as np
import pytest

from agents.evaluate import choose, mean_of_episodes
from core.stats import share_interval


def test_returns_of_two_levels_are_a_share() -> None:
    rng = np.random.default_rng(0)
    e = mean_of_episodes(np.repeat([10.0, 0.0], [21, 3]), rng)
    low, high = share_interval(21, 24)
    assert e.value == 8.75 and e.interval == pytest.approx((10 * low, 10 * high)) and e.n == 24


def test_returns_that_all_agree_have_no_interval() -> None:
    """The bootstrap's had no width: [10, 10] from three episodes."""
    e = mean_of_episodes(np.full(3, 10.0), np.random.default_rng(0))
    assert e.value == 10 and np.isnan(e.interval).all() and e.n == 3


def test_returns_of_many_levels_and_of_two_episodes_are_means() -> None:
    rng = np.random.default_rng(0)
    e = mean_of_episodes(np.array([1.0, 2.0]), rng)
    assert e.low < 1 and e.high > 2
    many = mean_of_episodes(rng.normal(3, 1, size=64), rng)
    assert many.low < many.value < many.high and many.high - many.low < 1


def test_help_shows_the_places_that_are_filled(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["pve"]):
        with pytest.raises(SystemExit) as end:
            choose(["runs/policies", *words, "--help"])
        assert end.value.code in (None, 0)
        said = " ".join(capsys.readouterr().out.split())
        assert "[PATH] [{pve,pvp}]" in said and "all in the same worlds" in said
