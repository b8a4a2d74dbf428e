"""Clusters of histories find planted behaviours, stay inside episodes, and know how much of them is time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.metrics import adjusted_rand_score

from agents.recurrent import AgentConfig, RecurrentAgent
from analysis.behaviours import (
    BehaviourOptions,
    Steps,
    cluster,
    histories,
    read_steps,
    sample_labels,
    transitions,
    world_states,
)
from analysis.clusters import (
    cluster_stability,
    embed,
    k_means,
    nearest_centre,
    share_from_time,
    share_from_time_floor,
    time_eta2,
)
from core import artefacts
from core.contracts import EnvSpec, Field, UserError
from core.episodes import Episode, RolloutStore, StoreWriter
from generative.rssm import ModelConfig
from generative.simulator import RSSMSimulator

ACTIONS = ("left", "right", "none")
OPTIONS = BehaviourOptions(clusters=3, lags=(2, 4), pca_size=8, filmstrips=2)


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
    index_N2 = np.array([[0, t] for t in range(1, 9)] + [[2, t] for t in range(1, 4)])
    labels = np.array([4, 4, 1, 1, 1, 7, 7, 7] + [3, 2, 2])
    assert sample_labels(labels, index_N2, 3).tolist() == [1, -1, 2]
    assert sample_labels(np.array([5, 6]), np.array([[0, 1], [0, 2]]), 1).tolist() == [5]  # the earliest wins a tie


def test_transitions_by_hand() -> None:
    counts = transitions(np.array([0, 1, 1, 0, 1]), np.array([0, 0, 0, 1, 1]), np.array([1, 2, 3, 1, 2]), 2)
    assert counts.tolist() == [[0, 2], [0, 1]]


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
    steps.h_NH[5, 2] = np.nan
    with pytest.raises(UserError, match="real hidden states have NaN"):
        cluster((steps, None), OPTIONS, 0, ACTIONS)


# World states of recorded frames


@pytest.fixture(scope="module")
def simulator() -> RSSMSimulator:
    torch.manual_seed(0)
    spec = EnvSpec(
        env_id="procgen/coinrun", obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")}, action_names=ACTIONS, slots=1
    )
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=4), spec)
    config = ModelConfig(
        deterministic_size=6, hidden_size=8, groups=2, classes=3, depth=2, head_layers=1, latent_size=4
    )
    return RSSMSimulator(config, agent).eval().requires_grad_(False)


def test_world_states_belong_to_their_step(tmp_path: object, simulator: RSSMSimulator) -> None:
    """Batched and padded over episodes of unlike length == each alone; row i is step initial_frames - 1 + i."""
    from pathlib import Path

    rng = np.random.default_rng(0)
    path = Path(str(tmp_path)) / "rollouts"
    lengths = (9, 2, 5, 3, 7)
    with artefacts.new_run(path, "record", {"seed": 0}) as run, StoreWriter(run.path) as writer:
        artefacts.write_json(run.path / "spec.json", simulator.spec.to_json())
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
    lead = simulator.initial_frames - 1
    world = world_states(simulator, store, torch.device("cpu"))
    assert [len(w) for w in world] == [max(0, n - lead) for n in lengths]
    for e, length in enumerate(lengths):
        if length > lead:
            episode = store.episode(e)
            obs = {"frames": torch.from_numpy(episode.obs["frames"])[None]}
            action = torch.from_numpy(episode.action)[None, lead:]
            alone = simulator.observe(obs, action, torch.ones_like(action, dtype=torch.bool))[0].numpy()
            np.testing.assert_allclose(world[e], alone, atol=1e-5)
    steps = read_steps(store, 1, world, lead)
    assert steps.d_ND is not None
    assert steps.index_N2.tolist() == [[e, t] for e, n in enumerate(lengths) for t in range(lead, n)]
    for (e, t), d in zip(steps.index_N2, steps.d_ND, strict=True):
        np.testing.assert_array_equal(d, world[e][t - lead])
    later = read_steps(store, 4, world, lead)
    assert later.index_N2[:, 1].min() == 4 and later.d_ND is not None
    np.testing.assert_array_equal(later.d_ND[0], world[0][4 - lead])
