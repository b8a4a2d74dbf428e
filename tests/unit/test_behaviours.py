"""Clusters of histories find planted behaviours, stay inside episodes, and know how much of them is time."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.metrics import adjusted_rand_score

from agents.recurrent import AgentConfig, RecurrentAgent
from analysis.behaviours.__main__ import BehavioursConfig, main as stage
from analysis.behaviours.clustering import _centres, cluster, cluster_some, summary
from analysis.behaviours.config import BehaviourOptions
from analysis.behaviours.figures import _draw_strip, _draw_transitions, draw_graph, titled, video_frames
from analysis.behaviours.histories import Steps, histories, in_effect, read_steps, weighted
from analysis.behaviours.mdp import Visits, aggregate, transitions
from analysis.behaviours.placed import source
from analysis.shared import units
from analysis.shared.behaviours import load_behaviours, sample_labels
from analysis.shared.clusters import (
    NOISE,
    Method,
    cluster_stability,
    find_clusters,
    fit_clusters,
    k_means,
    nearest_centre,
    share_from_time,
    share_from_time_floor,
    time_eta2,
)
from analysis.shared.maps import Embedding, embed
from analysis.shared.world_states import world_states
from core import artefacts
from core.contracts import EnvSpec, Field, UserError
from core.episodes import Episode, RolloutStore, StoreWriter
from generative.recurrent_world import RSSMWorld
from generative.rssm import ModelConfig
from generative.simulator import simulator_of

ACTIONS = ("left", "right", "none")
OPTIONS = BehaviourOptions(clusters=3, lags=(2, 4), pca_size=8, filmstrips=2, videos=0, surrogates=0)


def planted_steps(episodes: int = 30, length: int = 60, seed: int = 0, world: bool = False) -> tuple[Steps, np.ndarray]:
    """Episodes that switch between three modes every 20 steps, and the mode of every step.

    Without ``world`` h shows the mode; with it only d does, and h is noise.
    """
    rng = np.random.default_rng(seed)
    mode_N = np.concatenate([np.repeat(rng.permutation(3), length // 3) for _ in range(episodes)])
    index_N2 = np.stack([np.repeat(np.arange(episodes), length), np.tile(np.arange(1, length + 1), episodes)], 1)
    shown_N6 = 4 * np.eye(6)[mode_N] + 0.3 * rng.standard_normal((len(mode_N), 6))
    noise_N1 = rng.standard_normal((len(mode_N), 1))
    steps = Steps(
        h_NH=(noise_N1 if world else shown_N6).astype(np.float32),
        d_ND=shown_N6.astype(np.float32) if world else None,
        value_N=mode_N.astype(np.float32),
        action_N=mode_N.astype(np.int64),
        logits_NA=(5.0 * np.eye(3)[mode_N]).astype(np.float32),
        index_N2=index_N2,
    )
    return steps, mode_N


def label_truth(result: artefacts.Result, steps: Steps, mode_N: np.ndarray, source: str = "real") -> np.ndarray:
    """The planted mode of every labelled step."""
    where = {tuple(i): m for i, m in zip(steps.index_N2.tolist(), mode_N, strict=True)}
    return np.array([where[tuple(i)] for i in result.arrays[f"index_{source}"].tolist()])


def test_planted_modes_are_found() -> None:
    steps, mode_N = planted_steps()
    # Modes that are constant for 20 steps: lag 1 only, so that few vectors straddle a switch.
    result = cluster((steps, None), replace(OPTIONS, lags=(1,)), 0, ACTIONS)
    truth = label_truth(result, steps, mode_N)
    # Steps whose history holds a switch look like neither mode; elsewhere the labels are the modes.
    following = {tuple(i): m for i, m in zip(steps.index_N2.tolist(), mode_N, strict=True)}
    pure = np.array(
        [following[e, t + 1] == m for (e, t), m in zip(result.arrays["index_real"].tolist(), truth, strict=True)]
    )
    assert pure.mean() > 0.9
    assert adjusted_rand_score(truth[pure], result.arrays["labels_real"][pure]) > 0.95
    assert result.scalars["stability"]["value"] > 0.9
    assert result.notes["vector"] == "h only"
    for row in result.tables["behaviours"]:
        mode = round(row["value"])
        assert row["value"] == pytest.approx(mode, abs=0.15) and row["value_low"] <= row["value"] <= row["value_high"]
        # Modes are worth 0, 1 and 2 a step; d against the other two by hand, from the labels.
        value = np.array([following[tuple(i)] for i in result.arrays["index_real"].tolist()], float)
        here = result.arrays["labels_real"] == row["behaviour"]
        spread = ((here.sum() - 1) * value[here].var(ddof=1) + ((~here).sum() - 1) * value[~here].var(ddof=1)) ** 0.5
        d = (value[here].mean() - value[~here].mean()) / spread * (len(value) - 2) ** 0.5
        assert row["value_d"] == pytest.approx(d) and row["value_d_low"] < d < row["value_d_high"]
        assert abs(d) < 0.3 if mode == 1 else d * (mode - 1) > 1.5
        assert row["name"].endswith(f"mostly {ACTIONS[mode]}")
        assert row["share_low"] <= row["share"] <= row["share_high"]
    assert sum(row["share"] for row in result.tables["behaviours"]) == pytest.approx(1)


def names_of(mixed_N: np.ndarray, names: tuple[str, ...]) -> list[str]:
    """Names of the behaviours, in whose steps the agent acts as ``mixed`` says."""
    steps, mode_N = planted_steps()
    result = cluster((replace(steps, action_N=mixed_N), None), replace(OPTIONS, lags=(1,)), 0, names)
    return [row["name"].partition(": ")[2] for row in sorted(result.tables["behaviours"], key=lambda r: r["value"])]


def test_a_behaviour_is_mostly_what_takes_half_of_its_steps() -> None:
    _, mode_N = planted_steps()
    share_N = np.random.default_rng(0).random(len(mode_N))
    # Mode 0: right in 60 %; mode 1: no action in half of the steps; mode 2: all the same.
    chance = np.array([[0.4, 0.6, 0.0], [0.45, 0.2, 0.35], [0.0, 0.0, 1.0]])
    action_N = (share_N[:, None] > chance.cumsum(1)[mode_N]).sum(1)
    first, second, third = names_of(action_N, ACTIONS)
    assert first == "mostly right" and third == "mostly none"
    assert re.fullmatch(r"left 4\d%, none 3\d%", second)


def test_actions_that_do_the_same_are_one_in_names_and_entropies() -> None:
    """Neither the name of a behaviour nor its policy's entropy depends on how a policy spreads over no-ops."""
    steps, mode_N = planted_steps()
    rng = np.random.default_rng(1)
    ids = {"go": [1], "none": [0, 2, 3]}
    some_N = rng.choice([0, 2, 3], size=len(mode_N))
    logits_NA = np.log(np.where(mode_N[:, None] == 0, [[0.01, 0.97, 0.01, 0.01]], [[0.32, 0.04, 0.32, 0.32]]))
    raw = replace(steps, action_N=np.where(mode_N == 0, 1, some_N), logits_NA=logits_NA.astype(np.float32))
    one = in_effect(raw, ids)
    assert np.array_equal(one.action_N, (mode_N != 0).astype(int)) and one.logits_NA.shape == (len(mode_N), 2)
    p = np.exp(one.logits_NA)
    said = np.where(mode_N[:, None] == 0, [[0.97, 0.03]], [[0.04, 0.96]])
    np.testing.assert_allclose(p / p.sum(1, keepdims=True), said, atol=1e-5)
    result = cluster((one, None), replace(OPTIONS, lags=(1,)), 0, list(ids))
    names = [row["name"].partition(": ")[2] for row in sorted(result.tables["behaviours"], key=lambda r: r["value"])]
    assert names == ["mostly go", "mostly none", "mostly none"]
    assert max(row["policy_entropy"] for row in result.tables["mdp"]) < 0.3
    plain = cluster((raw, None), replace(OPTIONS, lags=(1,)), 0, list("abcd"))
    assert max(row["policy_entropy"] for row in plain.tables["mdp"]) > 1.5


def test_a_world_that_never_changes_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    steps, _ = planted_steps()
    still = replace(steps, d_ND=np.full((len(steps.h_NH), 5), 1 / 3, np.float32))
    result = cluster((still, None), OPTIONS, 0, ACTIONS)
    assert result.notes["vector"] == "h only" and result.notes["left_out"] == ["world states"]
    assert result.scalars["world_explained"]["value"] is None
    assert "never change: the simulator's world states\n" in capsys.readouterr().err
    without = cluster((replace(steps, d_ND=None), None), OPTIONS, 0, ACTIONS)
    assert np.array_equal(result.arrays["labels_real"], without.arrays["labels_real"])


def test_a_dead_neuron_is_left_out_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    steps, _ = planted_steps()
    dead = np.insert(steps.h_NH, 2, 1 / 3, axis=1)
    result = cluster((replace(steps, h_NH=dead), None), OPTIONS, 0, ACTIONS)
    assert result.notes["left_out"] == ["neuron 2"] and "never change: neuron 2\n" in capsys.readouterr().err
    plain = cluster((steps, None), OPTIONS, 0, ACTIONS)
    assert np.array_equal(result.arrays["labels_real"], plain.arrays["labels_real"])
    with pytest.raises(UserError, match="none of the hidden state's 7 neurons ever changes"):
        cluster((replace(steps, h_NH=np.full_like(dead, 1 / 3)), None), OPTIONS, 0, ACTIONS)
    # Only episodes too short for the lags differ.
    columns = {name: np.concatenate([x, x[:2]]) for name, x in vars(steps).items() if isinstance(x, np.ndarray)}
    columns["index_N2"][-2:] = [[99, 1], [99, 2]]
    columns["h_NH"] = np.arange(len(columns["h_NH"]))[:, None] * (columns["index_N2"][:, :1] == 99).astype(np.float32)
    short = replace(steps, **columns)
    with pytest.raises(UserError, match="no step that has --lags steps after it differs from another"):
        cluster((short, None), OPTIONS, 0, ACTIONS)


def test_world_states_make_a_difference() -> None:
    """The modes are only in d: labels follow them with world states, and cannot without."""
    steps, mode_N = planted_steps(world=True)
    options = replace(OPTIONS, lags=(1,), world_size=2)
    seen = cluster((steps, None), options, 0, ACTIONS)
    blind = cluster((replace(steps, d_ND=None), None), options, 0, ACTIONS)
    truth = label_truth(seen, steps, mode_N)
    assert adjusted_rand_score(truth, seen.arrays["labels_real"]) > 0.6
    assert adjusted_rand_score(truth, blind.arrays["labels_real"]) < 0.05
    assert seen.notes["vector"] == "h and world components"


def test_simulated_steps_get_the_labels_of_like_real_ones() -> None:
    steps, mode_N = planted_steps()
    more, more_mode_N = planted_steps(episodes=8, seed=1)
    result = cluster((steps, more), OPTIONS, 0, ACTIONS)
    assert len(result.arrays["map"]) == len(result.arrays["labels_real"]) + len(result.arrays["labels_sim"])
    real_truth = label_truth(result, steps, mode_N)
    usual = [np.bincount(result.arrays["labels_real"][real_truth == m]).argmax() for m in range(3)]
    sim_truth = label_truth(result, more, more_mode_N, "sim")
    agree = np.array(usual)[sim_truth] == result.arrays["labels_sim"]
    assert agree.mean() > 0.8
    assert not result.arrays["centre_index"][:, :, 0].any()  # real samples are shown first, and there are enough
    simulated = sum(row["n_sim_steps"] for row in result.tables["behaviours"])
    assert simulated == len(result.arrays["labels_sim"])


def test_a_behaviour_only_the_simulator_has_shows_as_such() -> None:
    steps, _ = planted_steps()
    more, _ = planted_steps(seed=1)
    more.h_NH[:] += 30
    result = cluster((steps, more), replace(OPTIONS, clusters=2), 0, ACTIONS)
    rows = result.tables["behaviours"]
    assert sorted(row["n_steps"] > 0 for row in rows) == [False, True]
    alone = next(row for row in rows if row["n_steps"] == 0)
    assert alone["n_sim_steps"] == len(result.arrays["labels_sim"]) and alone["value"] is None
    assert {row["value_d"] for row in rows} == {None}  # all or none of the real steps: nothing to compare with


def test_samples_and_the_episodes_they_started_in_are_one_unit() -> None:
    steps, _ = planted_steps()
    more, _ = planted_steps(seed=1)
    apart = cluster((steps, more), OPTIONS, 0, ACTIONS).scalars["stability"]
    unit_E = 3 * np.arange(30)
    one = cluster((replace(steps, unit_E=unit_E), replace(more, unit_E=unit_E)), OPTIONS, 0, ACTIONS)
    assert (apart["n"], one.scalars["stability"]["n"]) == (60, 30)


def test_a_stray_step_is_no_central_sample() -> None:
    """Ten steps of one episode at the centre, and one step of each of three others at the edge."""
    label = np.zeros(13, np.int64)
    distance = np.r_[np.arange(10) / 10, 5.0, 6.0, 7.0]
    episode = np.r_[np.zeros(10, np.int64), 1, 2, 3]
    centres = _centres(label, distance, np.zeros(13, np.int64), episode, np.arange(13), clusters=1, samples=4)
    assert centres[0].tolist() == [[0, 0, 0], *[[-1, -1, -1]] * 3]


def test_central_samples_are_of_their_behaviour_and_of_different_episodes() -> None:
    steps, _ = planted_steps()
    result = cluster((steps, None), OPTIONS, 0, ACTIONS)
    label_of = {
        tuple(i): b for i, b in zip(result.arrays["index_real"].tolist(), result.arrays["labels_real"], strict=True)
    }
    for b, rows in enumerate(result.arrays["centre_index"]):
        assert all(label_of[int(e), int(t)] == b for _, e, t in rows)
        assert len({int(e) for _, e, _ in rows}) == OPTIONS.filmstrips


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6), lags=st.sampled_from([(1,), (2, 4, 6), (3,)]))
def test_histories_never_cross_episodes(lengths: list[int], lags: tuple[int, ...]) -> None:
    index_N2 = np.concatenate([np.stack([np.full(n, e), np.arange(n)], 1) for e, n in enumerate(lengths)])
    x_NF = np.stack([index_N2[:, 0] * 1000.0, index_N2[:, 1] ** 2.0], 1)
    vectors, rows = histories(x_NF, index_N2, lags)
    assert len(rows) == sum(max(0, n - max(lags)) for n in lengths)
    for vector, (episode, t) in zip(vectors, index_N2[rows], strict=True):
        expected = [episode * 1000, t**2] + [v for k in lags for v in (0, (t + k) ** 2 - t**2)]
        np.testing.assert_array_equal(vector, expected)


def test_sample_labels_are_the_mode_of_the_first_five() -> None:
    index_N2 = np.array([[0, t] for t in range(1, 10)] + [[2, t] for t in range(1, 4)])
    labels = np.array([4, 4, 1, 1, 1, 7, 7, 7, 7] + [3, 2, 2])
    assert sample_labels(labels, index_N2, 3).tolist() == [1, -1, 2]
    assert sample_labels(np.array([5, 6]), np.array([[0, 1], [0, 2]]), 1).tolist() == [5]  # the earliest wins a tie


def test_transitions_by_hand() -> None:
    counts = transitions(np.array([0, 1, 1, 0, 1]), np.array([0, 0, 0, 1, 1]), np.array([1, 2, 3, 1, 2]), 2)
    assert counts.tolist() == [[0, 2], [0, 1]]


def wandering(episodes: int = 60, length: int = 200, seed: int = 0) -> tuple[Visits, np.ndarray]:
    """Steps of a known chain of three states, whose policies and values are known, and its transition matrix."""
    chain = np.array([[0.8, 0.2, 0.0], [0.0, 0.5, 0.5], [0.3, 0.1, 0.6]])
    rng = np.random.default_rng(seed)
    label_E = []
    for _ in range(episodes):
        states = [int(rng.integers(3))]
        while len(states) < length:
            states.append(int(rng.choice(3, p=chain[states[-1]])))
        label_E.append(states)
    label_R = np.concatenate(label_E)
    # State 0 always takes action 0, state 1 either with certainty but alternating, state 2 either by a coin.
    sure = np.array([[50.0, 0.0], [0.0, 50.0]])
    logits_RA = np.where(label_R[:, None] == 2, 0.0, sure[(label_R == 1) * (np.arange(len(label_R)) % 2)])
    t_R, episode_R = np.tile(np.arange(length), episodes), np.repeat(np.arange(episodes), length)
    return Visits(label_R, episode_R, t_R, label_R * 2.0, logits_RA), chain


def test_the_small_decision_process_is_the_known_one() -> None:
    visits, chain = wandering()
    states, pairs = aggregate(visits, 3, 0)
    seen = {(r["from"], r["to"]): r for r in pairs}
    assert set(seen) == {(i, j) for i in range(3) for j in range(3) if chain[i, j]}
    for (i, j), row in seen.items():
        assert row["probability"] == pytest.approx(chain[i, j], abs=0.03)
        assert row["probability_low"] < row["probability"] < row["probability_high"] < row["probability_low"] + 0.06
        if i == j:
            assert row["exit_probability"] is None
        else:
            assert row["exit_probability"] == pytest.approx(chain[i, j] / (1 - chain[i, i]), abs=0.04)
        assert row["n_episodes"] == 60 and row["count"] > 100
    counts = transitions(visits.label_R, visits.episode_R, visits.t_R, 3)
    for s, row in enumerate(states):
        p = chain[s][chain[s] > 0]
        assert row["n_exits"] == counts[s].sum() - counts[s, s]
        assert row["dwell"] == pytest.approx(1 / (1 - chain[s, s]), rel=0.08)
        assert row["dwell_low"] < row["dwell"] < row["dwell_high"]
        assert row["transition_entropy"] == pytest.approx(-(p * np.log2(p)).sum(), abs=0.04)
        assert row["value"] == pytest.approx(2 * s) == row["value_low"] == row["value_high"]  # it is constant
        assert row["n_steps"] == (visits.label_R == s).sum()
        assert row["policy_entropy"] == pytest.approx((0, 0, 1)[s], abs=1e-6)
        assert row["mixed_policy_entropy"] == pytest.approx((0, 1, 1)[s], abs=0.01)


def test_intervals_of_transitions_hold_the_truth() -> None:
    """30 experiments of 7 probabilities that are neither 0 nor 1."""
    holds = []
    for seed in range(30):
        visits, chain = wandering(20, 50, seed)
        for row in aggregate(visits, 3, seed)[1]:
            truth = chain[row["from"], row["to"]]
            holds.append(row["probability_low"] <= truth <= row["probability_high"])
    assert np.mean(holds) > 0.92  # intervals of counts may hold it more often than they say


def test_steps_in_no_behaviour_are_a_state_of_their_own() -> None:
    """0 0 - 1 | 1 -: by hand; the last of an episode leads nowhere."""
    label_R, episode_R = np.array([0, 0, NOISE, 1, 1, NOISE]), np.array([0, 0, 0, 0, 1, 1])
    visits = Visits(label_R, episode_R, np.array([1, 2, 3, 4, 1, 2]), np.arange(6.0), np.zeros((6, 2)))
    assert transitions(*visits[:3], 2).tolist() == [[1, 0, 1], [0, 0, 1], [0, 1, 0]]
    states, pairs = aggregate(visits, 2, 0)
    assert [(r["from"], r["to"], r["count"]) for r in pairs] == [(0, 0, 1), (0, -1, 1), (1, -1, 1), (-1, 1, 1)]
    assert [r["behaviour"] for r in states] == [0, 1, -1] and [r["n_steps"] for r in states] == [2, 2, 2]
    assert [r["dwell"] for r in states] == [2, 1, 1] and [r["value"] for r in states] == [0.5, 3.5, 3.5]
    assert states[0]["value_low"] is None  # one episode says nothing of the spread
    alone = Visits(label_R[:2], episode_R[:2], np.array([1, 2]), np.zeros(2), np.zeros((2, 2)))
    assert aggregate(alone, 1, 0)[0][0]["dwell"] is None  # it was never left


def test_one_exit_does_not_bound_how_long_a_behaviour_lasts() -> None:
    """Six episodes in state 0, one of which leaves it once."""
    label_R, episode_R, t_R = np.zeros(60, int), np.repeat(np.arange(6), 10), np.tile(np.arange(10), 6)
    label_R[8:10] = 1
    row = aggregate(Visits(label_R, episode_R, t_R, np.zeros(60), np.zeros((60, 2))), 2, 0)[0][0]
    assert (row["n_exits"], row["dwell"]) == (1, pytest.approx(53))
    assert row["dwell_low"] < 53 and row["dwell_high"] is None  # it was 5e34 steps
    label_R[8:10] = 0
    row = aggregate(Visits(label_R, episode_R, t_R, np.zeros(60), np.zeros((60, 2))), 1, 0)[0][0]
    assert row["dwell"] is None and row["dwell_low"] > 1 and row["dwell_high"] is None


def test_entropies_of_few_transitions_are_not_too_small_and_hold_the_truth() -> None:
    """Eight states of equal chance: what 12 episodes show of them has 0.15 bits less; the interval of resampled
    episodes excluded what it was of."""
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        label_R, episode_R = rng.integers(8, size=240), np.repeat(np.arange(12), 20)
        visits = Visits(label_R, episode_R, np.tile(np.arange(20), 12), np.zeros(240), np.zeros((240, 2)))
        found += [
            [row[f"transition_entropy{end}"] for end in ("", "_low", "_high")]
            for row in aggregate(visits, 8, seed)[0]
        ]  # fmt: skip
    value, low, high = np.array(found).T
    assert (low <= value).all() and (value <= high).all()
    assert value.mean() == pytest.approx(3, abs=0.04)
    assert ((low <= 3) & (high >= 3)).mean() > 0.9
    few = [aggregate(Visits(*(x[:60] for x in visits[:5])), 8, seed)[0] for seed in range(3)]  # three episodes
    assert all(
        row["transition_entropy_high"] <= max(row["transition_entropy"], np.log2(9)) for rows in few for row in rows
    )


def crowds(method: Method, points: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Three crowds of unlike size in 3-D (for hdbscan with a thin haze around them), and which a point is of."""
    rng = np.random.default_rng(0)
    truth = rng.choice(3, p=[0.5, 0.3, 0.2], size=points)
    x_NF = 8 * np.eye(3)[truth] + 0.5 * rng.standard_normal((points, 3))
    if method == "hdbscan":
        haze = rng.random(points) < 0.05
        x_NF[haze], truth[haze] = rng.uniform(-20, 20, (int(haze.sum()), 3)), NOISE
    return x_NF, truth


@pytest.mark.parametrize("method", ["k_means", "ward", "hdbscan"])
def test_every_method_finds_crowds_and_says_how_stable_they_are(method: Method) -> None:
    x_NF, truth = crowds(method)
    label_N, distance_N = find_clusters(x_NF, method, clusters=3, seed=0)
    assert adjusted_rand_score(truth, label_N) > 0.95
    assert np.bincount(label_N[label_N >= 0]).tolist() == sorted(np.bincount(label_N[label_N >= 0]), reverse=True)
    assert (np.isnan(distance_N) == (label_N == NOISE)).all()
    for b in range(3):
        mean = x_NF[label_N == b].mean(0)
        np.testing.assert_allclose(distance_N[label_N == b], np.linalg.norm(x_NF[label_N == b] - mean, axis=1))
    again_N = fit_clusters(x_NF, method, clusters=3, seed=0).place(x_NF.copy())
    assert (again_N == label_N).mean() > (0.95 if method == "hdbscan" else 0.9999)
    kwargs = {"clusters": 3, "seed": 0, "repeats": 5, "method": method}
    stable = cluster_stability(x_NF, label_N, np.arange(600) // 20, **kwargs)  # type: ignore[arg-type]
    shuffled = np.random.default_rng(0).permutation(label_N)
    chance = cluster_stability(x_NF, shuffled, np.arange(600) // 20, **kwargs)  # type: ignore[arg-type]
    assert stable.value > 0.95 and abs(chance.value) < 0.05 and stable.n == 30


def test_noise_is_in_no_behaviour_and_is_counted() -> None:
    """Modes with a haze of steps far from all of them."""
    steps, mode_N = planted_steps(episodes=15)
    haze = np.random.default_rng(1).random(len(mode_N)) < 0.1
    steps.h_NH[haze] = np.random.default_rng(2).uniform(-40, 40, (int(haze.sum()), 6))
    options = replace(OPTIONS, method="hdbscan", lags=(1,), min_cluster_size=40)
    result = cluster((steps, None), options, 0, ACTIONS)
    label_N = result.arrays["labels_real"]
    noise = result.scalars["noise_share"]
    assert noise["value"] == pytest.approx((label_N == NOISE).mean()) and noise["n"] == 15 and 0 < noise["value"] < 1
    rows = result.tables["behaviours"]
    assert len(rows) == result.notes["behaviours"] == label_N.max() + 1 and result.tables["mdp"][-1]["behaviour"] == -1
    assert sum(r["share"] for r in rows) == pytest.approx(1 - noise["value"])
    assert len(result.arrays["transitions"]) == len(rows) + 1
    assert (result.arrays["centre_index"][:, 0, 0] == 0).all()
    assert draw_graph(result, {b: f"behaviour {b}" for b in range(len(rows))}).axes


@pytest.mark.parametrize(
    ("method", "sizes", "said"),
    [
        ("ward", {"clusters": 1}, "--clusters 1: at least 2"),
        ("ward", {"clusters": 200}, "600 steps are too few for 200 clusters"),
        ("hdbscan", {"min_cluster_size": 2}, "--min_cluster_size 2: at least 5"),
        ("hdbscan", {"min_cluster_size": 400}, "too few for two clusters of --min_cluster_size 400"),
        ("hdbscan", {"min_cluster_size": 250}, "finds no cluster of 250 or more of the 600 steps, all are noise: set"),
    ],
)
def test_what_a_method_cannot_do_is_one_line(method: Method, sizes: dict[str, int], said: str) -> None:
    x_NF, _ = crowds(method)
    with pytest.raises(UserError, match=said):
        find_clusters(x_NF, method, seed=0, **{"clusters": 3, **sizes})  # type: ignore[arg-type]


def test_ward_refuses_empty_clusters_and_draws_a_part_of_many_points() -> None:
    x_NF = np.repeat(np.eye(3), 50, 0)
    with pytest.raises(UserError, match="only 3 different states, so that of 4 clusters some would be empty"):
        find_clusters(x_NF, "ward", clusters=4, seed=0)
    x_NF, truth = crowds("ward", 9000)
    label_N, _ = find_clusters(x_NF, "ward", clusters=3, seed=0)
    assert adjusted_rand_score(truth, label_N) > 0.99


def test_changes_weigh_as_much_as_the_state() -> None:
    rng = np.random.default_rng(0)
    vectors_MF = rng.standard_normal((500, 16)) * rng.uniform(0.1, 9, 16)
    variance_F = weighted(vectors_MF, 3).var(0)
    assert variance_F[:4].sum() == pytest.approx(4) and variance_F[4:].sum() == pytest.approx(4)


def test_three_lags_do_not_hide_behaviours_that_few_units_carry() -> None:
    """Of planted mixture worlds, one whose behaviours all show in the same four neurons: with changes that outweigh
    the state nothing was found there (agreement 0.00)."""
    from envs.planted import behaviour_of
    from validation.planted.scene import draw

    scene = draw("mixture", 4, episodes=40, steps=32, dwell=0, effect=2.0)
    nothing = np.zeros(len(scene.h_NH), np.int64)
    steps = Steps(scene.h_NH, None, scene.c_NK[:, 0], nothing, nothing[:, None], scene.index_N2)
    options = BehaviourOptions(clusters=4, videos=0, filmstrips=0, surrogates=0)
    result = cluster((steps, None), options, 0, ("any",))
    truth = label_truth(result, steps, behaviour_of(scene.options, scene.x_NX))
    assert adjusted_rand_score(truth, result.arrays["labels_real"]) > 0.95


def test_stability_tells_clusters_from_a_blob() -> None:
    rng = np.random.default_rng(0)
    unit_N = np.repeat(np.arange(40), 20)
    blob = rng.standard_normal((800, 6))
    apart = blob * 0.2 + 5 * np.eye(6)[rng.integers(4, size=800)]
    values = []
    for x_NF in (apart, blob):
        label_N, _ = nearest_centre(x_NF, k_means(x_NF, 4, 0))
        values.append(cluster_stability(x_NF, label_N, unit_N, clusters=4, seed=0, repeats=8))
    assert values[0].value > 0.99 and values[1].value < 0.6
    assert values[0].n == 40 and values[1].low <= values[1].value <= values[1].high


def test_stability_resamples_episodes() -> None:
    """A cluster that one episode alone holds is lost in the bootstraps without it."""
    rng = np.random.default_rng(0)
    unit_N = np.repeat(np.arange(10), 60)
    x_NF = rng.standard_normal((600, 3)) * 0.1
    x_NF[unit_N == 0] += 5
    label_N = (unit_N == 0).astype(np.int64)
    episodes = cluster_stability(x_NF, label_N, unit_N, clusters=2, seed=0, repeats=20)
    rows = cluster_stability(x_NF, label_N, np.arange(600), clusters=2, seed=0, repeats=20)
    assert rows.low > 0.99 and episodes.low < 0.5


def test_share_from_time() -> None:
    """Labels that are a clock: all of it is time; labels with their own runs: no more than the floor."""
    rng = np.random.default_rng(0)
    unit_N, t_N = np.repeat(np.arange(200), 40), np.tile(np.arange(40), 200)
    clock = t_N // 10
    assert share_from_time(clock, t_N) == pytest.approx(1, abs=1e-9)
    floor = share_from_time_floor(clock, t_N, unit_N, rng=rng)
    assert floor.max() < 0.1
    ranks = []
    for _ in range(30):  # the share's rank within its floor is uniform if the floor is right
        runs = np.concatenate([np.repeat(rng.integers(4, size=6), 8)[s : s + 40] for s in rng.integers(8, size=200)])
        floor = share_from_time_floor(runs, t_N, unit_N, rng=rng, repeats=20)
        ranks.append((floor < share_from_time(runs, t_N)).mean())
    assert 0.35 < np.mean(ranks) < 0.65
    assert share_from_time(np.zeros(8000, np.int64), t_N) == 0
    assert time_eta2(clock == 2, t_N) == pytest.approx(1) and time_eta2(runs == 2, t_N) < 0.05
    assert time_eta2(np.zeros(8000, bool), t_N) == 0


def test_floor_rotates_only_within_episodes() -> None:
    """Labels constant in each episode survive any rotation: the floor equals the share itself."""
    t_N, unit_N = np.tile(np.arange(10), 30), np.repeat(np.arange(30), 10)
    label_N = unit_N % 3
    floor = share_from_time_floor(label_N, t_N, unit_N, rng=np.random.default_rng(0), repeats=5)
    np.testing.assert_allclose(floor, share_from_time(label_N, t_N), atol=1e-12)


def test_lives_of_a_unit_are_rotated_each_within_itself() -> None:
    """Two modes, each for life, one of long lives: late steps are of one behaviour, and every rotation of a life by
    itself leaves that.  Rotated across the lives of a unit the labels would lose it, and seem to follow time."""
    rng, length_E = np.random.default_rng(0), np.tile([10, 40], 12)
    index_N2 = np.array([(e, t) for e, n in enumerate(length_E) for t in range(n)])
    mode_N = index_N2[:, 0] % 2
    h_NH = (4 * np.eye(4)[mode_N] + 0.1 * rng.standard_normal((len(mode_N), 4))).astype(np.float32)
    logits_NA = np.zeros((len(mode_N), 3), np.float32)
    steps = Steps(h_NH, None, mode_N.astype(np.float32), mode_N, logits_NA, index_N2, np.arange(24) // 4)
    scalars = cluster((steps, None), replace(OPTIONS, clusters=2, lags=(1,)), 0, ACTIONS).scalars
    share, floor = scalars["share_from_time"], scalars["share_from_time_floor"]
    assert floor["value"] == pytest.approx(share["value"]) and share["value"] > 0.1 and floor["n"] == 6


def test_tsne_keeps_groups_together() -> None:
    """(UMAP is held to the same by the stage's test, where it is compiled once.)"""
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=150)
    x_NF = 8 * np.eye(3)[truth] + rng.standard_normal((150, 3))
    y = embed(x_NF, "tsne", 2, 0)
    assert y.shape == (150, 2)
    label_N, _ = nearest_centre(y, k_means(y, 3, 0))
    assert adjusted_rand_score(truth, label_N) > 0.9
    with pytest.raises(UserError, match="too few for tsne"):
        embed(x_NF[:50], "tsne", 2, 0)


def test_bad_settings() -> None:
    steps, _ = planted_steps(episodes=3)
    for options, message in (
        (replace(OPTIONS, clusters=1), "at least 2"),
        (replace(OPTIONS, clusters=100), "too few for 100 clusters"),
        (replace(OPTIONS, lags=(0, 2)), "none below 1"),
        (replace(OPTIONS, lags=()), "at least one lag"),
        (replace(OPTIONS, lags=(60,)), "no episode has more than 60 steps"),
        (replace(OPTIONS, pca_size=0), "--pca_size 0: at least 1"),
        (replace(OPTIONS, filmstrips=-1), "--filmstrips -1: at least 0"),
    ):
        with pytest.raises(UserError, match=message):
            cluster((steps, None), options, 0, ACTIONS)
    with pytest.raises(UserError, match="1 episode is too few to say how stable"):
        cluster((planted_steps(episodes=1)[0], None), OPTIONS, 0, ACTIONS)
    with pytest.raises(UserError, match="14 steps are too few for 3 clusters"):
        cluster((planted_steps(episodes=2, length=9)[0], None), replace(OPTIONS, lags=(2,)), 0, ACTIONS)
    still = replace(steps, h_NH=(np.arange(len(steps.h_NH)) % 2)[:, None].astype(np.float32))
    with pytest.raises(UserError, match="only 2 different states, so that of 3 clusters some would be empty"):
        cluster((still, None), replace(OPTIONS, lags=(2,)), 0, ACTIONS)


# World states of recorded frames


@pytest.fixture(scope="module")
def learned() -> RSSMWorld:
    torch.manual_seed(0)
    spec = EnvSpec(
        env_id="procgen/coinrun", obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")}, action_names=ACTIONS, slots=1
    )
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=4), spec)
    config = ModelConfig(
        deterministic_size=6, hidden_size=8, groups=2, classes=3, depth=2, head_layers=1, latent_size=4
    )
    return simulator_of(config, agent).world.eval().requires_grad_(False)


def test_world_states_belong_to_their_step(tmp_path: Path, learned: RSSMWorld) -> None:
    """Batched and padded over episodes of unlike length == each alone; row i is step initial_frames - 1 + i."""
    rng = np.random.default_rng(0)
    path = tmp_path / "rollouts"
    lengths = (9, 2, 5, 3, 7)
    with artefacts.new_run(path, "record", {"seed": 0}) as run, StoreWriter(run.path) as writer:
        artefacts.write_json(run.path / "spec.json", learned.spec.to_json())
        for length in lengths:
            writer.add(
                Episode(
                    obs={"frames": rng.integers(0, 255, (length, 64, 64, 3), np.uint8)},
                    h=rng.standard_normal((length, 4)).astype(np.float32),
                    value=np.zeros(length, np.float32),
                    action=rng.integers(3, size=length),
                    logits=np.zeros((length, 3), np.float32),
                    reward=np.zeros(length, np.float32),
                    terminated=True,
                    truncated=False,
                )
            )
    store = RolloutStore(path)
    lead = learned.initial_frames - 1
    world = world_states(learned, store, torch.device("cpu"))
    assert [len(w) for w in world] == [max(0, n - lead) for n in lengths]
    for e, length in enumerate(lengths):
        if length > lead:
            episode = store.episode(e)
            obs = {"frames": torch.from_numpy(episode.obs["frames"])[None]}
            action = torch.from_numpy(episode.action)[None, lead:]
            alone = learned.observe(obs, action, torch.ones_like(action, dtype=torch.bool))[0].numpy()
            np.testing.assert_allclose(world[e], alone, atol=1e-5)
    steps = read_steps(store, 1, world, lead)
    assert steps.d_ND is not None
    assert steps.index_N2.tolist() == [[e, t] for e, n in enumerate(lengths) for t in range(lead, n)]
    for (e, t), d in zip(steps.index_N2, steps.d_ND, strict=True):
        np.testing.assert_array_equal(d, world[e][t - lead])
    later = read_steps(store, 4, world, lead)
    assert later.index_N2[:, 1].min() == 4 and later.d_ND is not None
    np.testing.assert_array_equal(later.d_ND[0], world[0][4 - lead])


# The stage: figures, videos and names


def write_rollouts(path: Path, episodes: int, seed: int, source: str, channels: int = 3, height: int = 64) -> Path:
    """Rollouts whose h and frames (of grey ones only the first) both show one of three modes, 12 steps each."""
    field = Field(shape=(height, 64, channels), dtype="uint8")
    spec = EnvSpec(env_id="procgen/coinrun", obs={"frames": field}, action_names=ACTIONS, slots=1)
    rng = np.random.default_rng(seed)
    with artefacts.new_run(path, "record", {"seed": 0}) as run, StoreWriter(run.path) as writer:
        artefacts.write_json(run.path / "spec.json", spec.to_json())
        for _ in range(episodes):
            mode = np.repeat(rng.permutation(3), 12)
            frames = np.zeros((36, 64, 64, 3), np.uint8)
            frames[np.arange(36), :, :, mode] = 200
            frames[:, :, :8] = np.arange(36, dtype=np.uint8)[:, None, None, None]  # the step
            writer.add(
                Episode(
                    obs={"frames": frames[:, :height, :, :channels]},
                    h=(4 * np.eye(3)[mode] + 0.1 * rng.standard_normal((36, 3))).astype(np.float32),
                    value=mode.astype(np.float32),
                    action=mode.astype(np.int64),
                    logits=(3 * np.eye(3)[mode]).astype(np.float32),
                    reward=np.zeros(36, np.float32),
                    terminated=True,
                    truncated=False,
                )
            )
        run.facts = {"source": source, "agent": "0" * 16}
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real rollouts of 12 episodes."""
    return write_rollouts(tmp_path_factory.mktemp("behaviours") / "rollouts", 12, 0, "real")


def settings_of(recorded: Path, out: Path, **fit: object) -> BehavioursConfig:
    sizes = {"clusters": 3, "lags": (1,), "videos": 5, "video_steps": 6, "surrogates": 0, **fit}
    options = BehaviourOptions(**sizes)  # type: ignore[arg-type]
    return BehavioursConfig(rollouts=recorded, out=out, fit=options, threads=1)


@pytest.fixture(scope="module")
def drawn(recorded: Path) -> Path:
    out = recorded.parent / "behaviours"
    stage(settings_of(recorded, out))
    return out


def test_of_many_steps_whole_episodes_are_clustered_and_the_share_is_said(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage(replace(settings_of(recorded, tmp_path / "out", most_states=200), action="precompute"))
    result = artefacts.Result.load(tmp_path / "out")
    episodes, counts = np.unique(result.arrays["index_real"][:, 0], return_counts=True)
    assert len(episodes) == 5 and set(counts) == {34}  # of 35 steps after the first; the last has none after it
    assert result.scalars["drawn_rollouts"]["value"] == pytest.approx(5 / 12)
    assert "note: 41.7% of the steps of rollouts are read, of 5 whole episodes" in capsys.readouterr().err
    with RolloutStore(recorded) as store:
        chosen = units.drawn(store, 1, 200, 0)
        steps = read_steps(store, 1, episodes=chosen.episodes)
    assert chosen.episodes == episodes.tolist()
    found = cluster((steps, None), settings_of(recorded, tmp_path, most_states=0).fit, 0, ACTIONS)
    assert np.array_equal(found.arrays["labels_real"], result.arrays["labels_real"])
    stage(replace(settings_of(recorded, tmp_path / "all", most_states=10_000), action="precompute"))
    assert "drawn_rollouts" not in artefacts.Result.load(tmp_path / "all").scalars
    assert not capsys.readouterr().err


def test_videos_show_central_samples_from_their_step_and_loop(recorded: Path, drawn: Path) -> None:
    import imageio_ffmpeg
    from PIL import Image

    assert artefacts.verify(drawn) == []
    result, names = artefacts.Result.load(drawn), load_behaviours(drawn).names
    frames = video_frames(result, names, [RolloutStore(recorded), None], 1, 5, 6)
    assert len(frames) == 6 and {f.shape for f in frames} == {(2 * 128 + 32, 3 * 128, 3)}
    for n, (_, _, t) in enumerate(result.arrays["centre_index"][1]):
        y, x = 32 + n // 3 * 128 + 64, n % 3 * 128 + 6  # in the stripe that tells the step
        for i, frame in enumerate(frames):
            ended = t + i > 35
            assert frame[y, x].tolist() == [35 // 3 if ended else t + i] * 3
            mode = frame[y, x + 60].astype(int)
            assert ended or i > 0 or mode.max() == 200  # the behaviour's own colour
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(drawn / "video_1.mp4")]
    raw = subprocess.run([*decode, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    read = np.frombuffer(raw, np.uint8).reshape(6, 288, 384, 3)
    assert np.abs(read.astype(int) - np.stack(frames)).mean() < 4
    with Image.open(drawn / "loop_1.gif") as gif:
        assert gif.n_frames == 6 and gif.info["loop"] == 0  # 0: forever
        assert np.abs(np.asarray(gif.convert("RGB")).astype(int) - frames[0]).mean() < 4


def test_grey_pictures_are_shown(recorded: Path, drawn: Path, tmp_path: Path) -> None:
    grey = write_rollouts(tmp_path / "grey", 12, 0, "real", channels=1)
    stage(settings_of(grey, tmp_path / "out"))
    assert {p.name for p in (tmp_path / "out").iterdir()} == {p.name for p in drawn.iterdir()}  # strips, films, loops
    result = artefacts.Result.load(tmp_path / "out")
    (_, episode, t), *_ = result.arrays["centre_index"][0]
    names = {b: f"behaviour {b}" for b in range(3)}
    with RolloutStore(grey) as store:
        frame = video_frames(result, names, [store, None], 0, 1, 1)[0]
        strip = _draw_strip(result, names, [store, None], 0, [0], 1)
        shown = store.episode(episode).obs["frames"][t]
    assert frame[96, 6].tolist() == [t] * 3 and frame[96, 90].tolist() == shown[32, 40].repeat(3).tolist()
    (image,) = strip.axes[0].get_images()
    np.testing.assert_array_equal(image.get_array(), shown.repeat(3, -1))  # not in a map's colours


def test_words_fit_on_the_figures_of_few_behaviours_and_short_lags(recorded: Path, drawn: Path) -> None:
    result, names = artefacts.Result.load(drawn), dict.fromkeys(range(3), "WALKS to the left wall and waits there")
    with RolloutStore(recorded) as store:
        strip = _draw_strip(result, names, [store, None], 0, [0, 1, 2], 2)
    for figure in (strip, draw_graph(result, names), _draw_transitions(result)):
        figure.savefig(io.BytesIO())
        box = figure.get_tightbbox()  # inches
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.get_figwidth() and box.y1 <= figure.get_figheight()


def test_long_names_of_actions_stand_apart(recorded: Path, drawn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnvSpec, "in_words", lambda *_: "make_diamond_armour")
    result, names = artefacts.Result.load(drawn), dict.fromkeys(range(3), "")
    with RolloutStore(recorded) as store:
        strip = _draw_strip(result, names, [store, None], 0, [0, 1], 1)
    strip.savefig(io.BytesIO())
    left, right = (axis.title.get_window_extent() for axis in strip.axes)
    assert left.x1 < right.x0 and strip.axes[0].get_title().startswith("make_diamond")


def test_an_ended_episode_keeps_its_last_frame_darkened(recorded: Path) -> None:
    result = artefacts.Result(arrays={"centre_index": np.array([[[0, 3, 33], [-1, -1, -1]]])})
    frames = video_frames(result, {0: "behaviour 0"}, [RolloutStore(recorded), None], 0, 9, 5)
    assert [int(f[96, 6, 0]) for f in frames] == [33, 34, 35, 11, 11]


def test_frames_that_are_no_squares_keep_their_shape_in_videos(tmp_path: Path) -> None:
    result = artefacts.Result(arrays={"centre_index": np.array([[[0, 0, 9]]])})
    with RolloutStore(write_rollouts(tmp_path / "wide", 1, 0, "real", height=32)) as store:
        (frame,) = video_frames(result, {0: "behaviour 0"}, [store, None], 0, 1, 1)
    assert (frame[32:, 6] == 9).all(-1).sum() == (128 - 4) // 2  # the stripe that tells the step


def test_the_users_names_are_drawn_and_survive_the_same_clusters(
    recorded: Path, drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = recorded.parent / "named"
    shutil.copytree(drawn, copy)
    given = {"0": "waits for $\\frac{$", "1": "runs to the coin", "2": "jumps"}
    (copy / "behaviours.json").write_text(json.dumps(given))
    stage(BehavioursConfig(action="plot", behaviours=copy, out=tmp_path / "figures"))
    files = {p.name for p in (tmp_path / "figures").iterdir()} - {"config.json", "manifest.json"}
    assert files == {p.name for p in copy.iterdir() if p.suffix in (".png", ".mp4", ".gif")} and len(files) == 13
    for name in ("graph.png", "strip_1.png", "loop_1.gif", "map.png", "time.png"):
        assert (tmp_path / "figures" / name).read_bytes() != (copy / name).read_bytes()
    assert (tmp_path / "figures" / "transitions.png").read_bytes() == (copy / "transitions.png").read_bytes()
    # Made again with the same clusters, the names stay; with others they cannot.
    again = settings_of(recorded, copy)
    stage(replace(again, action="precompute", overwrite=True))
    assert json.loads((copy / "behaviours.json").read_text()) == given and not list(copy.glob("*.png"))
    capsys.readouterr()
    stage(replace(settings_of(recorded, copy, clusters=4), action="precompute", overwrite=True))
    assert "new names" in capsys.readouterr().out
    assert len(load_behaviours(copy).names) == 4 and "runs to the coin" not in load_behaviours(copy).names.values()


def test_names_and_hostile_names() -> None:
    assert titled(3, {3: "behaviour 3: mostly left"}) == "behaviour 3: mostly left" and titled(3, {3: "x"}) == "3: x"
    visits, _ = wandering(4, 30)
    states, pairs = aggregate(visits, 3, 0)
    result = artefacts.Result(tables={"mdp": states, "transitions": pairs}, notes={"behaviours": 3})
    figure = draw_graph(result, {0: "a $\\frac{b$ {c}" * 9, 1: "behaviour 1", 2: "ü"})
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert texts[0].startswith("0 a $") and "…" in texts[0] and texts[0].count("\n") == 2
    assert texts[1].startswith("1\n") and texts[2].startswith("2 ü")
    figure.savefig(io.BytesIO())  # drawn as they are, not as formulae


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"0": "a", "1": "b"}', "must name each of the behaviours 0 to 2"),
        ('["a", "b", "c"]', "must name each of the behaviours 0 to 2"),
        ('{"0": "a", "1": "b", "2": ', "not valid JSON"),
        ('{"0": "a", "1": "b", "2": 5}', "the name of behaviour 2 must be one line of text, not 5"),
        ('{"0": "a", "1": " ", "2": "c"}', "the name of behaviour 1 must be one line of text"),
        ('{"0": "a\\nb", "1": "b", "2": "c"}', "the name of behaviour 0 must be one line of text"),
        (json.dumps({"0": "a", "1": "b" * 201, "2": "c"}), "the name of behaviour 1 has 201 characters; 200 at most"),
    ],
)
def test_a_broken_names_file_is_one_line(drawn: Path, tmp_path: Path, text: str, said: str) -> None:
    shutil.copytree(drawn, tmp_path / "behaviours")
    (tmp_path / "behaviours" / "behaviours.json").write_text(text)
    for use in (
        lambda: load_behaviours(tmp_path / "behaviours"),
        lambda: stage(BehavioursConfig(action="plot", behaviours=tmp_path / "behaviours", out=tmp_path / "out")),
    ):
        with pytest.raises(UserError, match=said) as error:
            use()
        assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_steps_in_no_behaviour_are_not_among_those_later_stages_see(recorded: Path, tmp_path: Path) -> None:
    stage(
        replace(
            settings_of(recorded, tmp_path / "out", method="hdbscan", min_cluster_size=40, videos=0),
            action="precompute",
        )
    )
    result, found = artefacts.Result.load(tmp_path / "out"), load_behaviours(tmp_path / "out")
    label_N = result.arrays["labels_real"]
    assert (label_N == NOISE).any() and len(found.labels["real"]) == (label_N != NOISE).sum()
    assert found.labels["real"].min() == 0 and len(found.index["real"]) == len(found.labels["real"])
    assert set(found.names) == set(range(result.notes["behaviours"]))
    with pytest.raises(UserError, match="all are noise: set a smaller --min_cluster_size"):
        stage(settings_of(recorded, tmp_path / "none", method="hdbscan", min_cluster_size=200))
    assert not (tmp_path / "none").exists()


def test_plot_and_precompute_say_what_they_need(recorded: Path, drawn: Path, tmp_path: Path) -> None:
    out, changed = tmp_path / "out", tmp_path / "changed"
    for path in (recorded, drawn):
        shutil.copytree(path, changed.parent / (path.name if path is recorded else changed.name))
    with open(tmp_path / recorded.name / "manifest.json", "a") as file:
        file.write("\n")
    for config, said in (
        (BehavioursConfig(rollouts=None, out=out), "--rollouts DIR is needed"),
        (BehavioursConfig(action="plot", out=out), "plot needs --behaviours DIR"),
        (BehavioursConfig(action="plot", behaviours=recorded, out=out), "a 'behaviours' directory is needed"),
        (BehavioursConfig(action="plot", behaviours=changed, out=out), "is not what .* was made from any more"),
        (BehavioursConfig(rollouts=recorded, behaviours=drawn, out=out), "--behaviours belongs to plot"),
        (settings_of(recorded, out, video_steps=1), "--video_steps 1: at least 2"),
        (settings_of(recorded, out, videos=-1), "--videos -1: at least 0"),
    ):
        with pytest.raises(UserError, match=said):
            stage(config)
        assert not out.exists()


# Steps beyond those that map and clusters are made from


def only(steps: Steps, episodes: Sequence[int]) -> Steps:
    """The steps of some episodes."""
    here = np.isin(steps.index_N2[:, 0], episodes)
    columns = {name: x[here] for name, x in vars(steps).items() if isinstance(x, np.ndarray)}
    return replace(steps, **columns)


@pytest.mark.parametrize(
    ("method", "embedding", "world"),
    [("k_means", "pca", False), ("k_means", "pca", True), ("ward", "pca", False), ("hdbscan", "pca", False),
     ("hdbscan", "umap", False)],
)  # fmt: skip
def test_placed_steps_get_the_label_of_their_mode(method: Method, embedding: Embedding, world: bool) -> None:
    # Every episode stays in a mode, which all numbers show.
    steps, _ = planted_steps()
    mode_N, rng = steps.index_N2[:, 0] % 3, np.random.default_rng(1)
    shown_N6 = (np.tile(np.eye(3), 2)[mode_N] + 0.03 * rng.standard_normal((len(mode_N), 6))).astype(np.float32)
    steps = replace(steps, h_NH=shown_N6, d_ND=3 * shown_N6 + 1 if world else None)
    sizes = {"clusters": 3, "min_cluster_size": 150, "world_size": 2}
    options = replace(OPTIONS, lags=(1,), method=method, embedding=embedding, **sizes)
    made = only(steps, range(12))
    result, finished = cluster_some((made, None), options, 0, ACTIONS, of=len(steps.h_NH))
    assert finished is not None
    placed = finished(only(steps, range(12, 30)))
    assert np.array_equal(np.unique(placed.index_P2[:, 0]), np.arange(12, 30)) and len(placed.label_P) == 18 * 59
    label_M, mode_M = result.arrays["labels_real"].astype(np.int64), result.arrays["index_real"][:, 0] % 3
    label_of = np.array([np.bincount(label_M[mode_M == m] + 1).argmax() - 1 for m in range(3)])
    assert sorted(label_of) == [0, 1, 2]
    assert (placed.label_P == label_of[placed.index_P2[:, 0] % 3]).mean() > 0.95
    for name in ("placed_agreement", "remade_agreement"):
        scalar = result.scalars[name]
        assert scalar["value"] > 0.85 and scalar["n"] == 6
        assert scalar["interval"][0] <= scalar["value"] <= scalar["interval"][1]
    # What is done to further steps is what was done to these: one of these episodes alone lies where it lay.
    again, here = finished(only(steps, [3])), result.arrays["index_real"][:, 0] == 3
    assert np.array_equal(again.index_P2, result.arrays["index_real"][here])
    if embedding == "pca":
        np.testing.assert_allclose(again.map_PX, result.arrays["map"][here], atol=1e-5)
        assert (again.label_P == label_M[here]).mean() >= (0.9 if method == "hdbscan" else 1)
    plain = cluster((made, None), replace(options, min_cluster_size=60), 0, ACTIONS)
    if embedding == "pca":  # the smallest cluster is of all steps: of 12 of 30 episodes 60 are what 150 are of all
        assert np.array_equal(plain.arrays["labels_real"], label_M) and "fitted" not in plain.scalars


def test_behaviours_of_real_steps_alone_do_not_depend_on_what_was_simulated(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for name, episodes, seed in (("one", 20, 1), ("other", 9, 2)):
        samples = write_rollouts(tmp_path / f"samples_{name}", episodes, seed, "simulated")
        config = replace(settings_of(recorded, tmp_path / name, fit_on="real"), samples=samples, action="precompute")
        stage(config)
        found[name] = artefacts.Result.load(tmp_path / name)
        assert "made from 408 of " in (said := capsys.readouterr().out) and "the others placed (--fit_on real)" in said
        a, rows = found[name].arrays, found[name].tables["behaviours"]
        assert a["index_sim"].tolist() == [[e, t] for e in range(episodes) for t in range(1, 35)]
        assert [row["n_sim_steps"] for row in rows] == np.bincount(a["labels_sim"], minlength=len(rows)).tolist()
        assert a["map"].shape == (12 * 34 + episodes * 34, 3) and a["fitted"].tolist() == list(range(12 * 34))
        assert (a["centre_index"][..., 0] <= 0).all()  # central steps are real
    stage(replace(settings_of(recorded, tmp_path / "none"), action="precompute"))
    found["none"] = artefacts.Result.load(tmp_path / "none")
    for name in ("labels_real", "index_real", "centre_index", "transitions", "rule_weight"):
        one, other, none = (found[k].arrays[name] for k in ("one", "other", "none"))
        assert np.array_equal(one, other) and np.array_equal(one, none), name
    assert (
        found["one"].scalars["stability"] == found["other"].scalars["stability"] == found["none"].scalars["stability"]
    )
    names = [row["name"] for row in found["one"].tables["behaviours"]]
    assert names == [row["name"] for row in found["none"].tables["behaviours"]]
    stage(replace(settings_of(recorded, tmp_path / "all"), samples=tmp_path / "samples_one", action="precompute"))
    both = artefacts.Result.load(tmp_path / "all").arrays
    assert "fitted" not in both and len(both["map"]) == 32 * 34


@pytest.mark.parametrize("simulated", [0, 40])
def test_the_smallest_behaviour_of_real_steps_alone_is_of_real_steps(
    simulated: int, recorded: Path, tmp_path: Path
) -> None:
    # A mode fills 136 of the 408 real steps, however many there are beside these.
    samples = write_rollouts(tmp_path / "samples", simulated, 1, "simulated") if simulated else None
    fit = {"fit_on": "real", "method": "hdbscan", "min_cluster_size": 160}
    with pytest.raises(UserError, match="no cluster of 160 or more of the 408 steps"):
        stage(replace(settings_of(recorded, tmp_path / "out", **fit), samples=samples, action="precompute"))


def test_too_few_real_episodes_to_be_fitted_on_alone_are_told_what_helps(tmp_path: Path) -> None:
    real = write_rollouts(tmp_path / "few", 3, 0, "real")
    samples = write_rollouts(tmp_path / "samples", 9, 1, "simulated")
    with pytest.raises(UserError, match="^--fit_on real: .* on 3 independent.*: record more, or use --fit_on all$"):
        stage(replace(settings_of(real, tmp_path / "out", fit_on="real"), samples=samples, action="precompute"))
    assert not (tmp_path / "out").exists()


def test_what_placing_costs_shows_where_every_episode_is_another() -> None:
    steps, _ = planted_steps()
    rng = np.random.default_rng(1)
    own_N9 = np.tile(rng.standard_normal((30, 3)), 3)[steps.index_N2[:, 0]] + 0.03 * rng.standard_normal((1800, 9))
    own_N9[steps.index_N2[:, 1] == 30] += 10 * rng.standard_normal((30, 9))  # beside which all other changes are small
    alone = only(replace(steps, h_NH=own_N9.astype(np.float32)), range(12))
    options = replace(OPTIONS, lags=(1,), method="hdbscan", min_cluster_size=75)
    result, _ = cluster_some((alone, None), options, 0, ACTIONS, of=1800)
    assert result.scalars["placed_agreement"]["value"] < 0.5 < 0.9 < result.scalars["remade_agreement"]["value"]
    assert "made from 708 of 1,800 steps, the others placed (--fit_rows)" in summary(result, Path("out"))


def test_steps_of_other_episodes_are_placed_and_those_of_the_fit_are_what_they_were(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = write_rollouts(tmp_path / "samples", 20, 1, "simulated")
    found = {}
    for name, fit in (("few", {"most_states": 200}), ("placed", {"fit_rows": 200}), ("all", {"fit_rows": 0})):
        config = replace(settings_of(recorded, tmp_path / name, **fit), samples=samples)
        stage(replace(config, action="both" if name == "placed" else "precompute", video=False))
        found[name] = artefacts.Result.load(tmp_path / name)
    said = capsys.readouterr().out
    assert "made from 340 of 1,088 steps, the others placed (--fit_rows); made from half of these" in said
    few, placed = found["few"], found["placed"]
    a, made = placed.arrays, placed.arrays["fitted"]
    every = [(e, t) for e in range(20) for t in range(1, 35)]
    assert a["index_real"].tolist() == [[e, t] for e, t in every if e < 12]
    assert a["index_sim"].tolist() == [[e, t] for e, t in every]
    both = [np.concatenate([r.arrays[f"{what}_real"], r.arrays[f"{what}_sim"]]) for r in (placed, few)
            for what in ("labels", "index")]  # fmt: skip
    assert np.array_equal(both[0][made], both[2]) and np.array_equal(both[1][made], both[3])
    np.testing.assert_array_equal(a["map"][made], few.arrays["map"])
    for name in ("transitions", "centre_index", "rule_weight"):
        assert np.array_equal(a[name], few.arrays[name])
    assert placed.tables == few.tables
    assert (a["sample_labels"] >= 0).all() and (few.arrays["sample_labels"] < 0).sum() == 15
    # Every step that the next one is like has the label of its mode, whether it was fitted or placed.
    for path, name in ((recorded, "real"), (samples, "sim")):
        with RolloutStore(path) as store:
            value = store.pooled("value")[0]["value"].reshape(len(store), 36)
        e, t = a[f"index_{name}"].T
        mode, goes_on = value[e, t].astype(int), value[e, t] == value[e, t + 1]
        label_of = {b: round(row["value"]) for b, row in enumerate(placed.tables["behaviours"])}
        assert all(label_of[b] == m for b, m in zip(a[f"labels_{name}"][goes_on], mode[goes_on], strict=True))
    scalars = artefacts.read_manifest(tmp_path / "placed")["metrics"]
    assert (scalars["fitted"]["value"], scalars["fitted"]["n"]) == (340, 1088)
    assert scalars["placed_agreement"]["value"] > 0.9 and None not in scalars["placed_agreement"]["interval"]
    assert "drawn_rollouts" not in scalars and "drawn_rollouts" in few.scalars
    assert len(load_behaviours(tmp_path / "placed").labels["real"]) == 12 * 34
    assert (tmp_path / "placed" / "map.png").exists() and (tmp_path / "placed" / "time.png").exists()
    # As many rows as there are, or more: as if there were no such number.
    stage(replace(settings_of(recorded, tmp_path / "more", fit_rows=12 * 35), samples=samples, action="precompute"))
    more = artefacts.Result.load(tmp_path / "more")
    assert "fitted" in more.arrays and len(more.arrays["fitted"]) == 24 * 34  # of the samples some are placed
    stage(replace(settings_of(recorded, tmp_path / "most", fit_rows=20 * 35), samples=samples, action="precompute"))
    most = artefacts.Result.load(tmp_path / "most")
    assert most.scalars == found["all"].scalars and most.tables == found["all"].tables
    assert most.arrays.keys() == found["all"].arrays.keys() and "fitted" not in most.arrays
    assert all(np.array_equal(x, most.arrays[name]) for name, x in found["all"].arrays.items())


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        ({"fit_rows": -1}, "--fit_rows -1: at least 0"),
        (
            {"fit_rows": 80},
            "--fit_rows 80: what that costs cannot be measured on 2 independent episodes or worlds; at least 4 are "
            "needed. Raise it .0: all are fitted., or leave the others out .--most_states 80.",
        ),
        ({"fit_rows": 200, "embedding": "tsne"}, "a finished t-SNE takes no further points: use --embedding umap"),
        ({"fit_rows": 200, "embedding": "umap"}, "half of the episodes, and their 68 steps are too few .at least 100"),
        ({"fit_rows": 150, "clusters": 20}, "half of the episodes, and their 68 steps are too few .at least 100"),
    ],
)
def test_too_few_rows_to_place_others_by_are_one_line(
    recorded: Path, tmp_path: Path, fit: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said) as error:
        stage(replace(settings_of(recorded, tmp_path / "out", **fit), action="precompute"))
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_other_episodes_are_read_whole_and_some_at_a_time(recorded: Path) -> None:
    with RolloutStore(recorded) as store:
        options = replace(OPTIONS, fit_rows=150, most_states=390)
        found = source(store, 1, np.arange(12), lambda episodes: read_steps(store, 1, episodes=episodes), options, 0)
        assert (len(found.drawn.episodes), len(found.fitted)) == (11, 4)
        assert found.fitted == units.episodes_of(store, 1, 150, 0)
        assert [e for piece in found.pieces(80) for e in piece] == found.others
        assert sorted(found.others + found.fitted) == found.drawn.episodes
        assert [len(piece) for piece in found.pieces(80)] == [2, 2, 2, 1]
        assert [len(piece) for piece in found.pieces(3)] == [1] * 7  # never a part of an episode
