"""Fidelity's further rungs: an exact simulator reaches the bound, and one that reverses actions is found out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score

from agents.recurrent import AgentConfig, RecurrentAgent
from analysis.coupling.discrete_paths import along_memory, forced_changes, policy_slopes, through_world
from analysis.shared.directions import fit_pca
from core.contracts import EnvSpec, Field, UserError
from core.roll import Noise
from core.stats import bootstrap_mean
from core.trees import flatten
from envs.planted import (
    PlantedAgent,
    PlantedModel,
    PlantedOptions,
    PlantedWorld,
    WrongModel,
    planted_simulator,
    record_planted,
)
from generative.rssm import ModelConfig
from generative.simulator import simulator_of as simulator_of_agent
from generative.starts import begin_at, state_column_of
from validation.fidelity.along import BAND, Ensemble, Judge, RandomActions, half_width
from validation.fidelity.beginnings import begin, rollout
from validation.fidelity.counterfactual import FORESIGHT, Found, foreseen, take
from validation.fidelity.effects import effects, enumerated
from validation.fidelity.measures import beyond_chance, by_chance, row
from validation.fidelity.pairing import choose_starts, pair
from validation.fidelity.ranking import Policy, play_all, policies_of, regret, score, spearman
from validation.fidelity.regions import Regions, came_back, edge_filled, followed, regions_of
from validation.fidelity.tables import agent_rows, dream_state_rows, kappa_rows, policy_rows, survival_rows
from validation.fidelity.there_and_back import returned
from validation.paired.course import Measures
from validation.paired.simulated import SimulatedWorld

STILL = PlantedOptions(noise=0.0, hazard=0.02)  # the world without noise is the modal simulator itself
ACTIONS = {"left": [0], "wait": [1], "right": [2]}
HORIZON = 4


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def simulator_of(wrong=None):
    return planted_simulator(STILL) if wrong is None else planted_simulator(model=WrongModel(STILL, wrong))


@pytest.fixture(scope="module")
def episodes():
    return record_planted(STILL, episodes=12, steps=16)


def along(episodes, simulator, *others, **options):
    """The rows of every rung along the windows, by measure and horizon."""
    rungs = [RandomActions(simulator, ACTIONS, rng()), Judge(PlantedAgent(STILL), ACTIONS)]
    rungs += [Ensemble(others)] if others else []
    p = pair(simulator, episodes, choose_starts(episodes, 2, 24, rng()), HORIZON, rungs=rungs, **options)
    rows = [*policy_rows(p, rng()), *survival_rows(p, rng()), *(row for rung in rungs for row in rung.rows(p, rng()))]
    return {(r["measure"], r["horizon"]): r for r in rows}, p


# Where simulations begin


def test_a_recorded_start_is_the_real_one(episodes):
    """The planted simulator infers no memory, so only a start from the recorded state gives the real agent's steps."""
    starts = choose_starts(episodes, 2, 24, rng())
    told, guessed = (pair(simulator_of(), episodes, starts, HORIZON, start_from=s) for s in ("recorded", "inferred"))
    for name in ("h", "value"):
        real, same, other = (getattr(x, name)[told.seen] for x in (told.real, told.free, guessed.free))
        np.testing.assert_allclose(same, real, atol=1e-5)
        assert np.abs(other - real).max() > 0.01
    assert not told.error["simulated"][:, 0].any()


def test_a_start_shows_the_recorded_frame_as_the_simulator_would():
    options = PlantedOptions(kind="pixels", noise=0.0)
    [episode] = record_planted(options, episodes=1, steps=3)
    simulator = planted_simulator(model=WrongModel(options, "garbage frames"))
    window = {"frames": torch.from_numpy(episode.obs["frames"][None, :1])}
    assert state_column_of(simulator.agent, episode) == "h"
    state = torch.from_numpy(episode.h[:1])
    out = rollout(simulator, begin(simulator, window, state), 1, actions=torch.ones(1, 2, dtype=torch.int64))
    np.testing.assert_array_equal((out.obs["frames"][0, 0] * 255).round().numpy(), episode.obs["frames"][0])
    torch.testing.assert_close(out.h[0, 0], state[0])


def test_a_start_whose_recorded_state_is_missing_is_one_line(episodes):
    class TwoStates(PlantedAgent):
        def initial(self, batch):
            return super().initial(batch), super().initial(batch)

    with pytest.raises(UserError, match="hold 8 of the 16 numbers .* --start_from inferred"):
        state_column_of(TwoStates(STILL), episodes[0])
    whole = replace(episodes[0], state=np.repeat(episodes[0].h, 2, 1))
    assert state_column_of(TwoStates(STILL), whole) == "state"


@pytest.mark.parametrize("layout", ["vector", "context"])
def test_a_recorded_start_is_the_worlds_own(layout):
    """Of the frames before, and told of the last one: not that of a latent, with another picture laid over it."""
    spec = EnvSpec(
        env_id="x", obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")}, action_names=("a", "b"), slots=1
    )
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=5), spec).eval()
    sizes = ModelConfig(
        layout=layout, deterministic_size=64, hidden_size=8, groups=64, classes=2, depth=2, latent_size=64,
        trunk_blocks=1,
    )  # fmt: skip
    simulator = simulator_of_agent(sizes, agent.requires_grad_(False))
    simulator.world.requires_grad_(False)
    obs = {"frames": torch.randint(0, 256, (2, simulator.world.initial_frames, 64, 64, 3), dtype=torch.uint8)}
    noise = simulator.world.draw_noise(2, torch.Generator().manual_seed(0))
    told = begin(simulator, obs, agent.initial(2), noise)
    own, guessed = begin_at(simulator.world, obs), begin(simulator, obs)
    assert torch.equal(flatten(told.world[0]), flatten(own[0])) and torch.equal(told.state, agent.initial(2))
    assert torch.equal(told.world[1].obs["frames"], obs["frames"][:, -1] / 255)
    assert not torch.equal(flatten(told.world[0]), flatten(guessed.world[0]))


# Along recorded windows


def test_right_actions_are_worth_something_only_where_they_are_heeded(episodes):
    worth = {wrong: along(episodes, simulator_of(wrong))[0]["delta_psnr", 4] for wrong in
             (None, "actions ignored", "actions reversed")}  # fmt: skip
    assert worth[None]["low"] > 10 and worth[None]["baseline_copy"] == 0
    assert worth["actions ignored"]["simulated"] == pytest.approx(0, abs=1e-6)
    assert worth["actions reversed"]["simulated"] < -1


def test_a_judge_agrees_in_an_exact_simulator_and_is_fooled_by_a_wrong_one(episodes):
    right, _ = along(episodes, simulator_of())
    wrong, _ = along(episodes, simulator_of("garbage frames"))
    for k in (1, 2, 4):
        assert right["judge_agreement", k]["simulated"] == 1 == right["judge_agreement", k]["floor"]
        assert right["judge_policy_distance", k]["simulated"] < 1e-5
    assert wrong["judge_agreement", 1]["simulated"] < 1
    held, _ = along(episodes, simulator_of("held frame"))
    assert held["judge_agreement", 4]["simulated"] == held["judge_agreement", 4]["baseline_copy"]


def kappas(p):
    return list(kappa_rows(p, list(agent_rows(p, rng(), {})), {}))


def test_kappa_is_what_is_left_of_agreement_beyond_chance(episodes):
    real, other = rng().integers(3, size=(2, 2000))
    often = np.where(rng().random(2000) < 0.9, 0, real)  # nearly always the same, and so is one that does not look
    for a, b in ((real, other), (real, real), (often, np.roll(often, 1)), (often, np.where(other == 0, often, real))):
        assert beyond_chance(np.mean(a == b), by_chance(a, b)) == pytest.approx(cohen_kappa_score(a, b))
    assert np.mean(often == np.roll(often, 1)) > 0.8 and abs(cohen_kappa_score(often, np.roll(often, 1))) < 0.1
    always = np.zeros(4, int)
    assert np.isnan(beyond_chance(1.0, by_chance(always, always)))
    paired = pair(simulator_of("garbage frames"), episodes, choose_starts(episodes, 2, 24, rng()), HORIZON)
    exact = pair(simulator_of(), episodes, choose_starts(episodes, 2, 24, rng()), HORIZON, start_from="recorded")
    wrong, right = ({(r["measure"], r["horizon"]): r for r in kappas(p)} for p in (paired, exact))
    assert right["action_kappa", 2]["simulated"] == 1
    poor = wrong["action_kappa", 2]
    assert poor["low"] < poor["simulated"] < poor["high"] < 1


def test_kappa_s_interval_stays_below_one_and_has_a_width(episodes):
    """Of 50 episodes with a rare action in two, of which one is missed; and of ten that all agree."""
    p = pair(simulator_of(), episodes, choose_starts(episodes, 2, 50, rng()), HORIZON)
    for rare, missed, count in ((2, 1, 50), (3, 1, 50), (5, 0, 10)):
        act = np.zeros((2, count, HORIZON), int)
        act[:, :rare] = 1
        act[1, :missed] = 0
        logits = [10.0 * np.eye(3)[a] for a in act]
        told = replace(p, episode=np.arange(count), acted=np.ones((count, HORIZON), bool),
                       real=p.real._replace(logits=logits[0]), free=p.free._replace(logits=logits[1]))  # fmt: skip
        same = bootstrap_mean(act[0, :, 1] == act[1, :, 1], np.arange(count), rng=rng())
        [one] = kappa_rows(told, [row("action_agreement", 1, same, "share", copy=1.0)], {})
        assert one["low"] < one["simulated"] <= one["high"] <= 1


def test_policy_survival_and_dreamed_states(episodes):
    right, _ = along(episodes, simulator_of(), start_from="recorded")
    assert abs(right["policy_kl", 1]["simulated"]) < 1e-9 < right["policy_kl", 1]["baseline_mean"]
    difference = right["dreams_alive_difference", 4]
    assert difference["low"] < 0 < difference["high"]
    wrong, _ = along(episodes, simulator_of("terminal wrong"))
    assert wrong["dreams_alive", 4]["simulated"] == pytest.approx(0.5**4)
    assert wrong["dreams_alive_difference", 4]["high"] < 0 and wrong["dreams_alive", 4]["baseline_copy"] == 1


def test_states_of_dreams_are_told_apart_only_from_a_wrong_simulator(episodes):
    class Shifted(PlantedModel):
        def show(self, x_BX):
            return {"x": super().show(x_BX)["x"] + 1}

    found, starts = [], choose_starts(episodes, 2, 24, rng())
    for simulator in (simulator_of(), planted_simulator(model=Shifted(STILL))):
        [r] = dream_state_rows(pair(simulator, episodes, starts, HORIZON), rng())
        found.append(r["simulated"])
    assert found[0] < 0.65 < 0.75 < found[1]


def test_an_ensemble_s_bands_hold_one_more_like_its_members():
    drawn = np.random.default_rng(1).standard_normal((4, 20_000))
    inside = np.abs(drawn[:3].mean(0) - drawn[3]) <= half_width(drawn[:3])
    assert inside.mean() == pytest.approx(BAND, abs=0.01)


def test_an_ensemble_knows_where_it_is_wrong_only_if_its_members_differ_there(episodes):
    class Off(PlantedModel):
        """Its errors differ from window to window, and more with more of the first stimulus."""

        def __init__(self, sign):
            super().__init__(STILL)
            self.sign = sign

        def show(self, x_BX):
            return {k: v + self.sign * x_BX[:, :1] ** 2 for k, v in super().show(x_BX).items()}

    one, other, third = (planted_simulator(model=Off(s)) for s in (0.2, 0.4, 0.9))
    rows, _ = along(episodes, one, other, third)
    assert rows["ensemble_rank_frame", 2]["simulated"] > 0.9
    assert rows["ensemble_coverage_frame", 2]["floor"] == BAND
    same, _ = along(episodes, simulator_of("sign reversed later"), simulator_of("sign reversed later"))
    assert same["ensemble_coverage_frame", 4]["simulated"] < 0.1  # equally wrong: bands of no width
    assert "do not differ" in same["ensemble_rank_frame", 4]["reason"]


# Regions


def scene(steps=5, size=32):
    """A camera that moves two pixels right a step, over noise, and a bright square that goes its own way."""
    wide = np.random.default_rng(3).random((size, size + 2 * steps, 3)).astype(np.float32)
    film = np.stack([wide[:, 2 * t : 2 * t + size] for t in range(steps)])
    for t in range(steps):
        film[t, 10:14, 8 + t : 12 + t] = (1.0, 0.0, 1.0) if t else film[0, 10:14, 8:12]
    return film[None]


def test_the_view_is_followed_and_parts_the_frame():
    film = scene()
    offset = followed(film)[0]
    np.testing.assert_array_equal(offset, [(0, 2 * t) for t in range(5)])
    areas = regions_of(film)
    assert (sum(a.astype(int) for a in areas.values()) == 1).all()
    assert areas["known"][0, 0].all()
    for t in range(1, 5):
        np.testing.assert_array_equal(areas["revealed"][0, t].all(0), np.arange(32) >= 32 - 2 * t)
        square = areas["moving"][0, t, 10:14, 8 + t : 12 + t]
        assert square.mean() > 0.9 and areas["moving"][0, t].sum() <= square.size
    filled = edge_filled(film, areas["revealed"])
    np.testing.assert_array_equal(filled[0, 2, :, 28:], np.repeat(film[0, 2, :, 27:28], 4, 1))
    np.testing.assert_array_equal(filled[0, 2, :, :28], film[0, 2, :, :28])


def test_a_region_without_an_error_is_said_to_be_there():
    """Its PSNR is infinite, as a whole frame's; "nothing is known by then" is said where there is none of it."""
    film = scene()
    guesses = {"simulated": film, "copy": np.broadcast_to(film[:, :1], film.shape)}
    kept = Regions().along(SimpleNamespace(images=True, real=film, guesses=guesses), None)
    error = {"copy": ((guesses["copy"] - film) ** 2).mean((2, 3, 4))}
    paired = SimpleNamespace(kept=kept, seen=np.ones((1, 5), bool), strip={"real": film}, episode=np.zeros(1, int),
                             error=error)  # fmt: skip
    of = {(r["measure"], r["horizon"]): r for r in Regions().rows(paired, rng())}
    for name in ("known", "revealed", "moving"):
        found = of[f"frame_psnr_{name}", 4]
        assert found["simulated"] is None and found["reason"] == "no error at all: infinite"
    paired.kept = {k: np.zeros_like(v) if "moving" in k else v for k, v in kept.items()}
    of = {(r["measure"], r["horizon"]): r for r in Regions().rows(paired, rng())}
    assert of["frame_psnr_moving", 4]["reason"] == "nothing is moving by then"


def test_a_view_that_stands_still_reveals_nothing():
    film = np.full((1, 3, 24, 24, 3), 0.5, np.float32)
    assert not followed(film).any() and regions_of(film)["known"].all()


def test_what_left_the_view_and_came_back_is_compared_with_itself():
    there = scene(5)
    film = np.concatenate([there, there[:, 3::-1]], 1)  # there and back: nine frames
    missed, area = returned(film)
    assert area[0] == 8 * 32 and missed[0] == pytest.approx(0, abs=1e-9)
    assert not came_back(np.zeros((1, 2), int), np.zeros((1, 2), int), 8, 8).any()
    forgetful = film.copy()
    forgetful[:, -1, :, :8] = 0.5
    missed, area = returned(forgetful)
    assert missed[0] / area[0] > 0.05


def test_the_view_of_coinrun_moves_as_the_agent_does():
    from envs.procgen import ProcgenEnv, ProcgenOptions
    from envs.procgen_truth import WithTruth

    env = WithTruth(
        ProcgenEnv(ProcgenOptions(game="coinrun", use_backgrounds=False, restrict_themes=True), 4), "positions"
    )
    step, films, places = env.reset(1), [], []
    for t in range(10):
        films.append(step.obs["frames"])
        places.append(np.stack([step.truth["agent_x"], step.truth["agent_y"]], 1))
        step = env.step(np.full(4, 7 if t % 5 else 8))
    env.close()
    offset = followed(np.stack(films, 1).astype(np.float32) / 255)
    moved = np.stack(places, 1) - places[0][:, None]
    pixels = np.stack([-moved[..., 1], moved[..., 0]], -1) * 64 / 13  # 13 cells in view in easy levels
    assert np.abs(pixels).max() > 10 and np.quantile(np.abs(offset - pixels), 0.9) < 1


# From snapshots


@pytest.fixture(scope="module")
def basis(episodes):
    return fit_pca(np.concatenate([e.h for e in episodes]), 4)


def shots_of(simulator, count=16):
    return take(simulator, lambda slots: PlantedWorld(STILL, slots), count, latest=6, seed=0)


@pytest.mark.parametrize("wrong", [None, "actions reversed", "held frame"])
def test_effects_through_the_world_are_those_of_the_real_one(wrong, basis):
    found = Found()
    effects(shots_of(simulator_of(wrong)), basis, found, rng())
    rows = {(r["measure"], r["horizon"]): r for r in found.rows}
    for k in FORESIGHT:
        r = rows["effect_sign_action", k]
        if wrong is None:
            assert r["simulated"] > 0.97 and r["low"] > 0.75
        else:
            assert r["simulated"] < 0.15, "reversed: the other sign; a held frame: no effect, no sign"
        assert r["baseline_copy"] == 0 and r["baseline_mean"] == 0.5 and 0.6 < r["floor"] <= 1


def test_enumerated_effects_are_those_of_the_coupling_stage(basis):
    """The same estimator, which there goes along rolls of a simulator: bit for bit the same sum, but for rounding."""
    shots = shots_of(simulator_of(), 5)
    simulator, starts, steps = shots.simulator, shots.starts, 3
    noise = torch.from_numpy(rng().gumbel(size=(5, steps + 1, 3)).astype(np.float32))
    world = SimulatedWorld(simulator.agent, starts.state, noise, Measures(ACTIONS), simulator.world,
                           shots.beginning.world)  # fmt: skip
    found = enumerated(world, basis)
    drawn = [Noise(action_BA=x) for x in noise.unbind(1)]
    with torch.no_grad():
        moments = world.moments(torch.arange(5))
    slope = policy_slopes(along_memory(simulator.agent, moments)[:-1], [0], list(ACTIONS.values()), [3])
    change = forced_changes(simulator, moments, lambda m: m.acted.value_B[:, None], list(ACTIONS.values()), noise=drawn)
    want = basis.pullback(through_world(slope, change)[:, 0, :, :, 0])
    ending = foreseen(world.run(), Measures(ACTIONS))
    assert {k for k, _, _ in ending} == {k for k, _, _ in found}
    for k in range(1, steps + 1):
        value = found[k, "value", f"value@{k}"].T
        # There an ended episode goes on; here its value counts by the chance that it does.
        np.testing.assert_allclose(value, want[:, k].numpy(), atol=0.05, rtol=0.2)


def test_policies_are_ranked_as_the_real_world_ranks_them():
    """The reward is the stimulus that actions push, so who goes right is paid."""

    class Goes(PlantedAgent):
        def heads(self, seen, state):
            logits, value = super().heads(seen, state)
            return logits * 0 + torch.tensor([0.0, 0.0, 2.0]), value

    simulator = replace(simulator_of(), agent=Goes(STILL))
    shots = shots_of(simulator, 12)
    policies = [Policy("random", simulator.agent, 1.0), Policy("half", simulator.agent, 0.5),
                Policy("agent", simulator.agent), Policy("sharp", simulator.agent, 0.0, 0.1)]  # fmt: skip
    real, dreamed, *_ = play_all(shots, policies, 6, 0)
    assert real.shape == dreamed.shape == (12, 4)
    assert np.diff(real.mean(0)).min() > 0 and np.diff(dreamed.mean(0)).min() > 0
    wrong = replace(shots_of(replace(simulator_of("actions reversed"), agent=Goes(STILL)), 12))
    assert np.diff(play_all(wrong, policies, 6, 0)[1].mean(0)).max() < 0


def test_ranking_stands_beside_two_real_halves():
    generator = np.random.default_rng(5)
    real = np.arange(12) + 3 * generator.standard_normal((200, 12))
    found, blind = Found(), Found()
    score(real, real + generator.standard_normal((200, 12)), [str(i) for i in range(12)], 64, found, rng())
    score(real, generator.standard_normal((200, 12)), [str(i) for i in range(12)], 64, blind, rng())
    for rows, low, high in ((found.rows, 0.9, 1.0), (blind.rows, -0.9, 0.8)):
        [r] = [r for r in rows if r["measure"] == "ranking_spearman"]
        assert low <= r["simulated"] <= high and r["floor"] > 0.9
    good, bad = ([r for r in f.rows if r["measure"] == "ranking_regret"][0] for f in (found, blind))
    assert good["simulated"] == pytest.approx(good["floor"], abs=0.3) and bad["simulated"] > 1
    assert good["baseline_mean"] == pytest.approx(5.5, abs=0.5)
    assert spearman(real, real * 0) != spearman(real, real * 0)  # a world that pays nothing has no order
    assert regret(real, real) == 0 and len(found.tables["policies"]) == 12


def test_policies_that_are_paid_alike_are_not_ranked():
    """A regret of 0 is no praise where no choice could be regretted, and the reason is that of these returns."""
    dreamed, once = rng().standard_normal((6, 12)), np.zeros((6, 12))
    once[0, 0] = 10  # halves without the first start know of no difference
    for real, where in ((np.zeros((6, 12)), ""), (once, " in a half of the starts")):
        found = Found()
        score(real, dreamed, [str(i) for i in range(12)], 64, found, rng())
        order, lost = found.rows
        assert order["simulated"] is None and order["reason"] == f"the policies' returns are all the same{where}"
        assert (lost["simulated"] is None) == (not real.any()) == (lost["reason"] == order["reason"])


def test_twelve_policies_from_random_to_sharp():
    agent = PlantedAgent(STILL)
    own = policies_of(agent, {"other": PlantedAgent(STILL)})
    assert len(own) == 13 and own[0].random == 1 and len({p.name for p in own}) == 13
    assert own[11].temperature < 1e-3 and own[12].agent is not agent
