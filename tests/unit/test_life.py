"""Which life is drawn, what counts as an event, and what phase is said to explain: on made-up labels whose truth is
known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.lives.phase_config import LifePhaseConfig
from analysis.lives.phases import (
    Moments,
    analyse,
    ends,
    eta2_of,
    phase_rows,
    rotated_ends,
    shares_by_phase,
    sum_p,
    words,
)
from analysis.lives.recorded import Clusters
from analysis.lives.timeline import choose, events_of
from analysis.shared.clusters import rotated_rows, time_bins, time_eta2
from core.contracts import UserError
from core.pages import NOISE, UNLABELLED


def test_the_life_at_the_75th_percentile_is_chosen_unless_others_are_wished_for() -> None:
    steps = np.array([10, 90, 40, 70, 55])  # 75th percentile: 70
    assert choose(steps, 0, (), 0) == [3] == choose(steps, 1, (), 0)
    assert choose(steps, 0, (4, 1, 4), 0) == [4, 1]
    drawn = choose(steps, 3, (), 1)
    assert len(set(drawn)) == 3 and drawn == choose(steps, 3, (), 1)
    assert any(choose(steps, 3, (), seed) != drawn for seed in range(9))
    for agents, episodes in ((6, ()), (0, (5,)), (0, (-1,)), (2, (2,))):
        with pytest.raises(UserError):
            choose(steps, agents, episodes, 0)


def test_eating_is_the_tick_before_food_rises() -> None:
    life = {"self_food": np.array([5, 4, 9, 8, 8]), "is_moving": np.array([0, 1, 0, 0, 1])}
    events = events_of(life)
    assert events["eating"].tolist() == [False, True, False, False, False]
    assert events["moving"].tolist() == [False, True, False, False, True]
    assert "drinking" not in events  # water was not recorded


def test_between_clustered_rows_the_nearest_label_holds() -> None:
    clusters = Clusters(np.array([[1, 4], [0, 0], [1, 0], [1, 9]]), np.array([2, 0, NOISE, 1]))
    label, own = clusters.along(1, 12)
    assert label.tolist() == [NOISE] * 3 + [2] * 4 + [1] * 5  # t = 2 is as near to 0 as to 4: the earlier
    assert own.nonzero()[0].tolist() == [0, 4, 9]
    label, _ = clusters.along(1, 12, "none")
    assert [(t, v) for t, v in enumerate(label) if v != UNLABELLED] == [(0, NOISE), (4, 2), (9, 1)]
    assert (clusters.along(7, 3)[0] == UNLABELLED).all()


def made_up(seed: int, kind: str, lives: int = 30, rows: int = 20) -> Moments:
    """Labels 0 to 2.  kind: ``phase`` (label 0 is the first third of life, else 1 or 2 at random), ``none`` (runs of
    random labels, whatever the phase), ``end`` (random, but the last row is 2)."""
    rng = np.random.default_rng(seed)
    episode, t = np.repeat(np.arange(lives), rows), np.tile(np.arange(rows) * 10, lives)
    phase = (t + 0.5) / (10 * rows)
    label = np.repeat(rng.integers(0, 3, lives * rows // 4), 4)
    if kind == "phase":
        label = np.where(phase < 1 / 3, 0, rng.integers(1, 3, len(t)))
    if kind == "end":
        label[rows - 1 :: rows] = 2
    return Moments(episode, episode, t, phase, label)


def test_a_cluster_that_is_a_phase_stands_out_from_its_rotations() -> None:
    rng = np.random.default_rng(0)
    rows = phase_rows(made_up(0, "phase"), np.arange(3), rng=rng, rotations=199)
    assert rows[0]["eta2_phase"] > 0.9 and rows[0]["q"] < 0.02
    assert rows[0]["eta2_rotated"] < rows[0]["eta2_rotated_97_5"] < 0.2
    assert rows[0]["mean_phase"] == pytest.approx(1 / 6, abs=0.02)


def test_labels_without_phase_rarely_stand_out() -> None:
    rng = np.random.default_rng(0)
    families = [phase_rows(made_up(seed, "none"), np.arange(3), rng=rng, rotations=199) for seed in range(40)]
    assert np.mean([min(row["q"] for row in rows) <= 0.05 for rows in families]) <= 0.15  # 5 % expected
    above = [row["eta2_phase"] > row["eta2_rotated_97_5"] for rows in families for row in rows]
    assert np.mean(above) <= 0.07  # 2.5 % of 120, which are not independent


def test_eta_squared_is_that_of_clusters() -> None:
    m = made_up(6, "phase")
    found = eta2_of(m.label_N, time_bins(m.phase_N), 3)
    np.testing.assert_allclose(found, [time_eta2(m.label_N == k, m.phase_N) for k in range(3)])
    assert eta2_of(np.zeros(5, int), np.arange(5), 1).tolist() == [0]


def test_shares_add_up_and_intervals_hold_them() -> None:
    m = made_up(3, "phase")
    labels, share_LB, low_LB, high_LB, rows_B = shares_by_phase(m, 6)
    assert labels.tolist() == [0, 1, 2] and rows_B.sum() == len(m.label_N)
    np.testing.assert_allclose(share_LB.sum(0), 1)
    assert (low_LB <= share_LB).all() and (share_LB <= high_LB).all()
    np.testing.assert_array_equal(share_LB[0], [1, 1, 0, 0, 0, 0])
    assert (high_LB[1, 2:] - low_LB[1, 2:] > 0.05).all()
    # the truth, half, is in most of the intervals
    assert ((low_LB[1, 2:] < 0.5) & (high_LB[1, 2:] > 0.5)).sum() >= 3


def test_fewer_units_give_wider_intervals() -> None:
    m = made_up(4, "none", lives=60)
    m = m._replace(label_N=np.where(m.episode_N % 6 < 3, 0, 1))  # a label a life, the same for a world's lives
    worlds = m._replace(unit_N=m.episode_N % 6)
    widths = []
    for units in (m, worlds):
        _, _, low, high, _ = shares_by_phase(units, 2)
        widths.append(float((high - low).mean()))
    assert widths[1] > 1.5 * widths[0]


def test_what_deaths_end_in_is_found_and_only_that(tmp_path: Path) -> None:
    died = np.arange(30) % 3 > 0
    rows = ends(made_up(1, "end"), died, np.arange(3))
    assert [row["deaths"] for row in rows] == [20] * 3
    assert rows[2]["share_of_ends"] == 1 and rows[2]["q"] < 0.001 and rows[2]["share_of_lives"] < 0.5
    assert rows[2]["low"] == pytest.approx(0.025 ** (1 / 20)) and rows[2]["high"] == 1  # not a certainty
    assert ends(made_up(1, "end"), np.zeros(30, bool), np.arange(3)) == []
    config = LifePhaseConfig(cluster_dir=tmp_path, unit="lives", resamples=99, rotations=99)
    said = words(analyse(made_up(1, "end"), np.full(30, 200), died, config))
    assert any("of 20 deaths end in it" in line and "interval and q of 20 lives" in line for line in said)


def test_ends_that_are_moments_like_others_raise_no_alarm() -> None:
    """Also for rare labels, most of which no life happens to end in."""
    rng = np.random.default_rng(2)
    alarms = []
    for seed in range(30):
        m = made_up(seed, "none")
        m = m._replace(label_N=np.repeat(np.minimum(rng.geometric(0.1, len(m.t_N) // 4), 30), 4))
        rows = ends(m, np.ones(30, bool), np.unique(m.label_N))
        assert len(rows) > 15
        alarms.append(min(row["q"] for row in rows) <= 0.05)
    assert np.mean(alarms) <= 0.15  # 5 % expected of 30 families


def test_p_of_equal_coins_is_the_binomial_one() -> None:
    from scipy.stats import binom

    for heads in (0, 2, 5, 11):
        tails = binom.cdf(heads, 12, 0.3), binom.sf(heads - 1, 12, 0.3)
        assert sum_p(heads, [np.array([0.7, 0.3])] * 12) == pytest.approx(min(1, 2 * min(tails)))
    assert sum_p(1, [np.array([1.0, 0.0]), np.array([0.0, 1.0])]) == 1 and sum_p(1, [np.array([1.0, 0.0])] * 2) == 0


def test_ends_of_lives_that_are_rotated_together_are_those_that_rotations_give() -> None:
    """By hand, and as counted over many rotations; a life alone is a coin with its share of rows."""
    rng = np.random.default_rng(0)
    half, other = np.array([1, 1, 0, 0], bool), np.array([0, 0, 1, 1], bool)
    alone, same, opposite = (
        rotated_ends(lives, np.zeros(len(lives), int))[0] for lives in ([half], [half, half], [half, other])
    )
    assert alone == pytest.approx([0.5, 0.5]) and same == pytest.approx([0.5, 0, 0.5])
    assert opposite == pytest.approx([0, 1, 0])
    lives = [rng.random(n) < 0.4 for n in (5, 7, 12, 3)]
    chances = rotated_ends(lives, np.array([0, 0, 0, 1]))
    share = rng.random(20_000)
    counted = np.sum([life[(share * len(life)).astype(int)] for life in lives[:3]], 0)
    assert chances[0] == pytest.approx(np.bincount(counted, minlength=4) / 20_000, abs=0.015)
    assert chances[1] == pytest.approx([1 - lives[3].mean(), lives[3].mean()])


def test_an_end_that_agents_of_a_world_share_is_one_end_where_worlds_are_the_unit() -> None:
    """A world ends for all at once, in whatever label it then has: few worlds, however many lives."""
    rng, alarms = np.random.default_rng(0), {"lives": 0, "worlds": 0}
    for _ in range(20):
        world, t = np.repeat(np.arange(6), 16 * 20), np.tile(np.arange(20), 6 * 16)
        label = ((t - rng.integers(20, size=6)[world]) % 20 < 7).astype(int)
        episode = np.repeat(np.arange(96), 20)
        for unit in alarms:
            m = Moments(episode, episode if unit == "lives" else world, t, (t + 0.5) / 20, label)
            rows = ends(m, np.ones(96, bool), np.array([0, 1]))
            assert rows[0]["units"] == (96 if unit == "lives" else 6)
            alarms[unit] += min(row["q"] for row in rows) <= 0.05
    assert alarms["worlds"] <= 3 and alarms["lives"] >= 8  # one in twenty is expected


def test_rotations_stay_within_their_life() -> None:
    unit = np.array([3, 3, 3, 1, 1, 8])
    for seed in range(5):
        rows = rotated_rows(unit, np.random.default_rng(seed))
        assert (unit[rows] == unit).all() and sorted(rows) == list(range(6))
        assert (np.diff(rows[:3]) % 3 == 1).all()


def test_the_whole_analysis_says_phase_where_there_is_phase(tmp_path: Path) -> None:
    config = LifePhaseConfig(cluster_dir=tmp_path, resamples=99, rotations=99)
    steps, died = np.full(30, 200), np.arange(30) % 2 > 0
    planted, nothing = (analyse(made_up(5, kind), steps, died, config).scalars for kind in ("phase", "none"))
    for scalars, more in ((planted, True), (nothing, False)):
        share_, floor = scalars["phase_share_from_time"], scalars["phase_share_from_time_floor"]
        assert (share_["value"] > 3 * floor["interval"][1]) == more
        assert scalars["died"]["n"] == 30
        assert scalars["last_row_before_end"]["value"] == 9


def test_a_clock_that_agents_of_a_world_share_is_no_phase_where_worlds_are_the_unit() -> None:
    rng = np.random.default_rng(0)
    found = {"lives": 0, "worlds": 0}
    for _ in range(20):
        world = np.repeat(np.arange(4), 16 * 20)
        t = np.tile(np.arange(20), 4 * 16)
        label = ((t - rng.integers(20, size=4)[world]) % 20 < 5).astype(int)  # in every world at a time of its own
        episode = np.repeat(np.arange(64), 20)
        for unit in found:
            m = Moments(episode, episode if unit == "lives" else world, t, (t + 0.5) / 20, label)
            found[unit] += phase_rows(m, np.array([0, 1]), rng=rng, rotations=59)[1]["q"] <= 0.05
    assert found["worlds"] <= 4 < 15 < found["lives"]
