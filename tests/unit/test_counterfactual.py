"""Counterfactual actions, gradients, other policies: on the planted world the simulator is exact, and can be broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from analysis.shared.directions import fit_pca
from core.contracts import UserError
from core.directions import Basis
from core.roll import Recorded, roll
from envs.planted import (
    PlantedAgent,
    PlantedModel,
    PlantedOptions,
    PlantedWorld,
    planted_simulator,
    record_planted,
)
from tests.planted_worlds import NoSnapshots
from validation.fidelity.counterfactual import (
    FORESIGHT,
    HELD,
    Recorder,
    follow,
    hold,
    require_snapshots,
    retrieval,
    same_sign,
    simulate,
    take,
)
from validation.fidelity.snapshots import try_again

STILL = PlantedOptions(noise=0.0, hazard=0.02)  # the world without noise is the modal simulator itself
HORIZON = 5


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def tried(simulator, other=None, starts=24):
    options = simulator.world.options
    h_NH = np.concatenate([e.h for e in record_planted(options, episodes=16, steps=24)])
    return try_again(
        simulator, lambda slots: PlantedWorld(options, slots), fit_pca(h_NH, 8), rng(),
        starts=starts, latest=8, horizon=HORIZON, other=other,
    )  # fmt: skip


def rows_of(found, measure):
    return {r["horizon"]: r for r in found.rows if r["measure"] == measure}


class Mirrored(PlantedModel):
    """Takes left for right."""

    def _transition(self, x_BX, action_BA, normal_BX=None):
        return super()._transition(x_BX, action_BA.flip(-1), normal_BX)


class Deaf(PlantedModel):
    """Its world takes no notice of actions."""

    def _transition(self, x_BX, action_BA, normal_BX=None):
        return super()._transition(x_BX, action_BA * 0, normal_BX)


@pytest.fixture(scope="module")
def exact():
    return tried(planted_simulator(STILL))


@pytest.fixture(scope="module")
def mirrored():
    return tried(planted_simulator(model=Mirrored(STILL)))


# Counterfactual actions


def test_the_true_simulator_tells_every_action(exact):
    top = rows_of(exact, "counterfactual_top1")
    assert sorted(top) == list(HELD)
    for r in top.values():
        assert r["simulated"] == r["floor"] == 1 and 0.33 < r["baseline_mean"] < 0.4 and 20 <= r["n"] <= 24
    assert exact.notes["actions"] == {"left": ["left"], "wait": ["wait"], "right": ["right"]}
    np.testing.assert_array_equal(exact.arrays["counterfactual_confusion"][0], np.eye(3))


def test_one_that_mirrors_actions_knows_only_waiting(mirrored):
    for i, r in enumerate(rows_of(mirrored, "counterfactual_top1").values()):
        assert r["simulated"] == pytest.approx(1 / 3, abs=0.02) and r["floor"] == 1
        np.testing.assert_array_equal(mirrored.arrays["counterfactual_confusion"][i], np.eye(3)[::-1])


def test_one_that_is_deaf_is_at_chance():
    found = tried(planted_simulator(model=Deaf(STILL)))
    top = rows_of(found, "counterfactual_top1")
    assert [r["simulated"] for r in top.values()] == pytest.approx([r["baseline_mean"] for r in top.values()], abs=1e-6)
    assert min(t["q"] for t in found.tests if t["measure"] == "counterfactual_top1") > 0.05


def test_in_a_noisy_world_it_is_between_chance_and_one():
    found = tried(planted_simulator(PlantedOptions(hazard=0.0)), starts=48)
    [last] = [r for r in found.rows if r["measure"] == "counterfactual_top1" and r["horizon"] == max(HELD)]
    assert last["baseline_mean"] < last["low"] and last["simulated"] < last["floor"] == 1


def test_equally_near_frames_share_the_credit():
    gallery = np.array([[[0.0]], [[0.0]], [[5.0]]])  # actions 0 and 1 do the same
    there = np.ones((3, 1), bool)
    credit = retrieval(np.array([[[0.1]], [[4.0]], [[9.0]]]), gallery, there)
    np.testing.assert_allclose(credit[:, :, 0], [[0.5, 0.5, 0], [0, 0, 1], [0, 0, 1]])
    # What does not exist is never found.
    there[2] = False
    np.testing.assert_allclose(retrieval(gallery, gallery, there)[2, :, 0], [0.5, 0.5, 0])


def test_real_futures_are_those_of_the_snapshot_and_stop_at_an_end():
    options = replace(STILL, hazard=0.9)
    simulator = planted_simulator(options)
    shots = take(simulator, lambda slots: PlantedWorld(options, slots), 8, latest=2, seed=0)
    obs, seen = hold(shots, 2, 4)
    np.testing.assert_array_equal(obs[:, 0], shots.starts.window["x"][:, -1])
    assert seen[:, 0].all() and not seen.all() and (np.diff(seen.astype(int), axis=1) <= 0).all()
    # While the episode lasts, the simulator shows the same; the planted world shows its last observation too.
    [(_, dreamed)] = simulate(shots, np.full((8, 5), 2))
    np.testing.assert_allclose(obs[seen], dreamed[seen], atol=1e-5)
    assert not np.allclose(obs[~seen], dreamed[~seen], atol=0.1)


def test_a_world_that_hides_its_last_frame_has_one_fewer():
    class Hidden(PlantedWorld):
        def step(self, action):
            return replace(super().step(action), final_obs=None, final_truth=None)

    options = replace(STILL, hazard=0.9)
    counts = []
    for kind in (PlantedWorld, Hidden):
        env = kind(options, 6)
        env.reset(0)
        record = Recorder(env, env.snapshot(), "x")
        for _ in range(30):
            record.step(np.ones(6, np.int64))
        counts.append(np.stack(record.seen, 1).sum(1))
    np.testing.assert_array_equal(counts[0], counts[1] + 1)


# Gradients


def test_gradients_of_the_true_simulator_have_the_real_signs(exact):
    for k in FORESIGHT:
        for family in ("value", "action"):
            r = rows_of(exact, f"gradient_sign_{family}")[k]
            assert r["simulated"] > 0.8 and r["low"] > 0.6, (family, k)
            through = rows_of(exact, f"gradient_sign_{family}_through_world")[k]
            assert through["simulated"] > 0.8, (family, k)
    assert all(t["q"] < 0.05 for t in exact.tests if "through_world" not in t["measure"])


def test_a_mirrored_world_turns_only_what_goes_through_it(exact, mirrored):
    for k in FORESIGHT:
        for family in ("value", "action"):
            through = f"gradient_sign_{family}_through_world"
            assert rows_of(mirrored, through)[k]["simulated"] < 0.25, (family, k)
            # What stays in the agent's memory does not depend on the world at all.
            held = f"gradient_sign_{family}"
            assert rows_of(mirrored, held)[k]["baseline_copy"] == rows_of(exact, held)[k]["baseline_copy"]


def test_a_deaf_world_lets_nothing_through():
    """Zero derivatives have no sign, so they agree with none."""
    found = tried(planted_simulator(model=Deaf(STILL)))
    assert {r["simulated"] for r in found.rows if r["measure"].endswith("_through_world")} == {0.0}


def test_signs_are_compared_only_where_something_happens():
    same = same_sign(np.array([1.0, -1.0, 2.0, 0.0]), np.array([3.0, 2.0, 0.0, 1.0]))
    np.testing.assert_array_equal(same, [1, 0, np.nan, 0])


def test_the_still_world_is_the_agent_shown_one_frame_over_and_over():
    agent = PlantedAgent()
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    still, h = Recorded(agent.spec, {"x": x[:, None]}), agent.initial(3)
    for moment in roll(agent, still, still.begin(), steps=2):
        seen = agent.encode({"x": x})
        h = agent.advance(seen, h, torch.zeros(3, dtype=torch.bool))
        assert torch.equal(moment.h_BH, h) and torch.equal(moment.acted.value_B, agent.heads(seen, h)[1])
        assert not moment.shown.reward_B.any() and not moment.shown.ending_B.any()


# Other policies


class Waits(PlantedAgent):
    """Always waits."""

    def heads(self, seen, state):
        logits, value = super().heads(seen, state)
        return logits * 0 + torch.tensor([0.0, 100.0, 0.0]), value


class Spoilt(PlantedModel):
    """Knows nothing of waiting."""

    def _transition(self, x_BX, action_BA, normal_BX=None):
        return super()._transition(x_BX, action_BA, normal_BX) + 3 * action_BA[:, 1:2]


def test_error_of_the_true_simulator_does_not_depend_on_whose_actions_it_is_given():
    found = tried(planted_simulator(PlantedOptions(hazard=0.0)), starts=64)
    for r in rows_of(found, "policy_dependence").values():
        assert r["low"] < 1.05 and r["high"] > 0.95, r
    assert sorted(rows_of(found, "frame_mse_other_policy")) == list(range(1, HORIZON + 1))
    assert "random" in found.notes["other_policy"]


class Rounds(PlantedModel):
    """Right but for rounding, which is more of an action that the agent seldom takes."""

    def _transition(self, x_BX, action_BA, normal_BX=None):
        return super()._transition(x_BX, action_BA, normal_BX) + 1e-6 * action_BA[:, 1:2]


def test_errors_of_rounding_have_no_ratio():
    options = PlantedOptions(hazard=0.0, noise=0.0)
    found = tried(planted_simulator(model=Rounds(options)), starts=32)
    for r in rows_of(found, "policy_dependence").values():
        assert r["simulated"] is None and "the simulator makes no error" in r["reason"], r


def test_one_that_knows_only_its_own_agents_ways_is_found_out():
    found = tried(planted_simulator(model=Spoilt(PlantedOptions(hazard=0.0))), other=Waits())
    assert rows_of(found, "policy_dependence")[HORIZON]["low"] > 1.5
    assert found.notes["other_policy"] == "the agent of --other_agent"


def test_a_policy_that_is_followed_acts_on_what_it_sees():
    """The agent itself, greedy, from its recorded state: the same as the simulated agent in a world without noise."""
    from agents.play import Chooser, Exploration

    options = replace(STILL, hazard=0.0)
    simulator = planted_simulator(options)
    shots = take(simulator, lambda slots: PlantedWorld(options, slots), 6, latest=4, seed=0)
    chooser = Chooser(Exploration(greedy=True), 6, rng())
    obs, seen, action = follow(shots, simulator.agent, shots.starts.state, chooser, 4)
    assert seen.all() and obs.shape == (6, 5, 8) and action.shape == (6, 5)
    h = shots.starts.h_NH
    for t in range(5):
        if t:
            e = simulator.agent.encode({"x": torch.from_numpy(obs[:, t])})
            h = simulator.agent.advance(e, h, torch.zeros(6, dtype=torch.bool))
        np.testing.assert_array_equal(simulator.agent.heads((), h)[0].argmax(-1).numpy(), action[:, t])


# Mistakes


def test_a_world_without_snapshots_is_refused_with_the_way_out():
    with pytest.raises(UserError, match="--no-counterfactual"):
        require_snapshots(NoSnapshots(STILL, 1))
    with pytest.raises(UserError, match="no snapshots"):
        try_again(
            planted_simulator(STILL), lambda slots: NoSnapshots(STILL, slots), fit_pca(rng().random((50, 8)), 2), rng(),
            starts=4, latest=4, horizon=2,
        )  # fmt: skip


def test_a_world_in_which_all_actions_do_the_same_leaves_empty_rows_with_their_reason():
    class Numb(PlantedWorld):
        def step(self, action):
            return super().step(np.ones_like(action))

    found = try_again(
        planted_simulator(STILL), lambda slots: Numb(STILL, slots), fit_pca(rng().random((50, 8)), 2), rng(),
        starts=4, latest=4, horizon=2,
    )  # fmt: skip
    empty = [r for r in found.rows if r["simulated"] is None]
    assert {r["measure"] for r in empty} >= {"counterfactual_top1"} and all(r["reason"] for r in empty)
    assert all(not r["reason"] for r in found.rows if r["simulated"] is not None)
    assert found.notes["actions"] == {"wait": ["left", "wait", "right"]} or len(found.notes["actions"]) == 1


def test_an_agent_whose_state_never_changes_has_no_gradients_and_says_so():
    eye = torch.zeros(8, 0)
    none = Basis("pca", torch.zeros(8), torch.ones(8), eye, eye.T)
    found = try_again(
        planted_simulator(STILL), lambda slots: PlantedWorld(STILL, slots), none, rng(), starts=4, latest=4, horizon=2
    )
    rows = [r for r in found.rows if r["measure"].startswith("gradient")]
    assert len(rows) == 16 and all(r["simulated"] is None and "all the same" in r["reason"] for r in rows)
    assert all(t["measure"] == "counterfactual_top1" for t in found.tests)
