"""How often events happen, and more often: paired where units are shared, whole units throughout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.events.counts import TOO_FEW, Counts, differences, rates, verdict
from analysis.shared.truths import levels_of
from core import artefacts
from core.episodes import RolloutStore, StoreWriter
from core.stats import means
from envs.planted import PlantedAgent, record_planted


def counts(times: np.ndarray, unit: np.ndarray) -> Counts:
    return Counts(times.reshape(len(unit), -1), unit, "level", 0)


def test_a_difference_of_the_same_levels_is_paired() -> None:
    rng = np.random.default_rng(0)
    hard = 20 * rng.random(60)  # levels differ far more than the recordings
    one = rng.poisson(hard)
    other = one + rng.binomial(1, 0.5, 60)
    order = rng.permutation(60)  # episodes end in another order
    row = differences(counts(one, np.arange(60)), counts(other[order], np.arange(60)[order]), rng)[0]
    want = means((other - one)[:, None].astype(float), rng=np.random.default_rng(1))
    assert row["difference"] == pytest.approx((other - one).mean())
    assert row["difference_low"] == pytest.approx(float(want.interval()[0][0]), abs=0.02)
    assert row["q"] <= 0.05 and row["verdict"] == "more often" and row["paired"] == 60
    apart = differences(counts(one, np.arange(60)), counts(other, 100 + np.arange(60)), rng)[0]
    assert apart["difference"] == pytest.approx(row["difference"]) and apart["paired"] == 0
    assert apart["difference_high"] - apart["difference_low"] > 5 * (row["difference_high"] - row["difference_low"])
    assert apart["verdict"] == "no difference found"


def test_levels_are_not_paired_with_the_numbers_of_lives() -> None:
    """Episodes that were imported know no level: their own numbers were taken for levels of the other recording."""
    rng = np.random.default_rng(0)
    one, other = (counts(rng.poisson(1.5, 40), np.arange(40)) for _ in range(2))
    for both in ((one, other._replace(unit="life")), (one._replace(unit="life"), other)):
        (row,) = differences(*both, rng)
        assert (row["paired"], row["units"]) == (0, 80)


def test_unpaired_differences_keep_their_level() -> None:
    """Recordings of other levels, of one rate: about one in twenty is called different."""
    rng = np.random.default_rng(0)
    one, other = (counts(rng.poisson(1.5, (40, 400)), np.arange(40) + 40 * k) for k in (0, 1))
    p = np.array([row["p"] for row in differences(one, other, rng)])
    assert 0.01 <= (p <= 0.05).mean() <= 0.09  # binomial, 400 at 0.05: P(more) < 1e-3


def test_recordings_that_cut_many_episodes_are_not_compared() -> None:
    """What a recorder cuts is long: the whole episodes of --num_steps are the short ones, and seemed to do less."""
    rng = np.random.default_rng(0)
    length = rng.integers(10, 100, 400)  # one event a step; the recorder stops at step 60
    whole, cut = (counts(x, np.arange(len(x))) for x in (length, length[length < 60]))
    cut = cut._replace(cut=int((length >= 60).sum()))
    [row] = differences(whole, cut, rng)
    assert row["q"] <= 0.001 and row["verdict"].startswith("not told: many episodes were cut")
    assert differences(whole, cut._replace(cut=1), rng)[0]["verdict"] == "less often"


@pytest.mark.parametrize("size", [1, 7, 8])
def test_of_a_recording_of_one_episode_no_difference_is_told(size: int) -> None:
    """It has no spread, and its difference from another one an interval that is too narrow, or of no width."""
    rng = np.random.default_rng(0)
    few = counts(rng.poisson(3, (size, 200)), 100 + np.arange(size))
    for other in (few._replace(unit_E=few.unit_E + 50), counts(rng.poisson(3, (40, 200)), np.arange(40))):
        rows = differences(few, other, rng)
        assert {row["verdict"] == TOO_FEW and row["q"] is row["difference_low"] is None for row in rows} == {size < 8}
        assert sum(row["p"] is not None and row["p"] <= 0.05 for row in rows) <= 24
    paired = differences(few, few._replace(times_EX=few.times_EX + 1), rng)
    assert {row["verdict"] for row in paired} == ({"no difference found"} if size == 1 else {"more often"})


def test_lives_of_one_number_in_two_recordings_are_no_pairs() -> None:
    """Levels are the same wherever they are played; the third life of one recording has nothing to do with that of
    another."""
    rng = np.random.default_rng(0)
    one, other = (counts(rng.poisson(3, 40), np.arange(40))._replace(unit="life") for _ in range(2))
    [row] = differences(one, other, rng)
    assert row["paired"] == 0 and row["units"] == 80


def test_a_rate_is_not_below_nothing() -> None:
    row = rates(counts(np.array([0, 0, 12]), np.arange(3)), np.random.default_rng(0))[0]
    assert row["rate_low"] == 0 < row["rate"] < row["rate_high"]


def test_episodes_of_a_level_are_one_unit() -> None:
    rng = np.random.default_rng(0)
    per_level = rng.integers(5, size=20)
    once, thrice = (counts(np.repeat(per_level, k), np.repeat(np.arange(20), k)) for k in (1, 3))
    a, b = rates(once, rng)[0], rates(thrice, rng)[0]
    assert a["rate"] == b["rate"] and a["n"] == b["n"] == 20 and b["episodes"] == 60
    assert b["rate_high"] - b["rate_low"] == pytest.approx(a["rate_high"] - a["rate_low"], rel=0.1)


def test_what_happens_at_most_once_has_an_exact_interval() -> None:
    rng = np.random.default_rng(0)
    row = rates(counts(np.zeros(30, int), np.arange(30)), rng)[0]
    assert row["rate_low"] == row["rate"] == 0 and row["rate_high"] == pytest.approx(1 - 0.025 ** (1 / 30))
    nothing = differences(counts(np.zeros(30, int), np.arange(30)), counts(np.zeros(30, int), np.arange(30)), rng)[0]
    assert nothing["p"] is None and nothing["verdict"] == "never happens"
    assert nothing["difference_low"] < -0.1 and 0.1 < nothing["difference_high"] < 0.15  # it was 0 to 0
    others = counts(np.zeros(40, int), 100 + np.arange(40))
    apart = differences(counts(np.zeros(30, int), np.arange(30)), others, rng)[0]
    assert apart["difference_low"] == pytest.approx(-row["rate_high"])
    assert apart["difference_high"] == pytest.approx(rates(others, rng)[0]["rate_high"])
    assert verdict(-0.1, 0.01) == "less often" and verdict(0.1, 0.2) == "no difference found"


@pytest.mark.parametrize("unknown", [False, True])
def test_a_level_that_is_told_now_and_then_is_known_where_it_is_told(tmp_path: Path, unknown: bool) -> None:
    """A world may leave it out of some steps (NaN); an episode in which it never told ended in a traceback."""
    with artefacts.new_run(tmp_path / "rollouts", "record", {}) as run, StoreWriter(run.path) as writer:
        artefacts.write_json(run.path / "spec.json", PlantedAgent().spec.to_json())
        run.facts = {"source": "real"}
        for e, episode in enumerate(record_planted(episodes=2, steps=6)):
            level = np.full(len(episode.h), np.nan)
            level[e : None if unknown and e else 3] = np.nan if unknown and e else 7.0 + e
            writer.add(replace(episode, truth={"level": level}))
    with RolloutStore(tmp_path / "rollouts") as store:
        found = levels_of(store)
    assert found is None if unknown else found is not None and found.tolist() == [7, 8]
