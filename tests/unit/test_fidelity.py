"""Fidelity: measures against closed forms, and the planted simulator against its own world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agents.recurrent import AgentConfig, RecurrentAgent
from core.artefacts import Result
from core.contracts import Shown, UserError
from core.stats import Estimate, softmax
from envs.planted import PlantedAgent, PlantedModel, PlantedOptions, planted_simulator, record_planted
from envs.procgen import ProcgenEnv, ProcgenOptions
from generative.load import check_world
from generative.rssm import ModelConfig
from generative.simulator import simulator_of, teacher_forced
from validation.fidelity import figures
from validation.fidelity.__main__ import directions_of
from validation.fidelity.measures import in_effect, psnr, row, ssim, ssim_to, total_variation, wasserstein
from validation.fidelity.pairing import Paired, choose_starts, pair
from validation.fidelity.tables import compare, forecasts, hidden_rows, lives, stretches, survival_rows, thinned
from validation.report.contents import _tried_again

STILL = PlantedOptions(noise=0.0, hazard=0.05)  # the world without noise is the modal simulator itself
HORIZON = 6
SMALL = ModelConfig(deterministic_size=12, hidden_size=16, groups=3, classes=4, depth=2, head_layers=1, latent_size=6)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def compared(simulator, options, seed=0):
    episodes = record_planted(options, episodes=16, steps=24, seed=seed)
    starts = choose_starts(episodes, 2, 40, rng())
    paired = pair(simulator, episodes, starts, HORIZON, batch=7)
    return paired, compare(paired, rng())


@pytest.fixture(scope="module")
def exact():
    return compared(planted_simulator(STILL), STILL)


@pytest.fixture(scope="module")
def noisy():
    options = PlantedOptions()
    return compared(planted_simulator(options), options)


def rows_of(result, measure):
    return {r["horizon"]: r for r in result.tables["fidelity"] if r["measure"] == measure}


def test_the_true_simulator_of_a_noiseless_world_makes_no_error(exact):
    """Which also pins the alignment: an off-by-one in frames, actions or rewards would show here."""
    paired, result = exact
    assert paired.seen[:, 1:].any(0).all(), "the windows must reach every horizon"
    errors = rows_of(result, "frame_mse")
    assert sorted(errors) == list(range(HORIZON + 1))
    assert max(r["simulated"] for r in errors.values()) < 1e-8
    assert min(r["baseline_copy"] for k, r in errors.items() if k) > 1e-4
    assert (
        rows_of(result, "reward_mse")[None]["simulated"] < 1e-8 < rows_of(result, "reward_mse")[None]["baseline_mean"]
    )
    assert rows_of(result, "reward_average_precision")[None]["simulated"] == pytest.approx(1)


def test_the_scorecard_has_the_measures_in_words_at_a_few_horizons(exact):
    card = exact[1].tables["scorecard"]
    assert {"same action", "hidden-state error", "endings foretold, average precision"} <= {r["what"] for r in card}
    assert [r["horizon"] for r in card if r["measure"] == "value_error"] == [1, 4, HORIZON]


def test_a_wrong_simulator_of_it_does(exact):
    wrong, _ = compared(planted_simulator(model=Shifted(STILL)), STILL)
    paired, _ = exact
    assert wrong.error["simulated"][wrong.seen].mean() > 0.1 > paired.error["simulated"][paired.seen].mean()


class Shifted(PlantedModel):
    """Shows everything moved by one, and so moves the agent's state too."""

    def show(self, x_BX):
        return {"x": super().show(x_BX)["x"] + 1}


def test_in_a_noisy_world_error_grows_and_stays_below_the_held_frame(noisy):
    _, result = noisy
    errors = rows_of(result, "frame_mse")
    assert errors[0]["simulated"] < 1e-8  # the initial frame itself
    assert errors[1]["simulated"] < errors[3]["simulated"]
    assert errors[1]["simulated"] < errors[1]["baseline_mean"]
    for r in errors.values():
        assert r["low"] <= r["simulated"] <= r["high"] and r["floor"] == 0 and r["n"] <= 16


def test_paired_difference_is_the_difference(noisy):
    _, result = noisy
    for name in ("copy", "mean"):
        for k, r in rows_of(result, f"frame_mse_less_{name}").items():
            e = rows_of(result, "frame_mse")[k]
            assert r["simulated"] == pytest.approx(e["simulated"] - e[f"baseline_{name}"])


def test_a_value_s_error_is_held_against_a_held_frame_s_window_by_window(noisy):
    """Both are wrong in the same windows, so the difference is surer than its two parts."""
    paired, result = noisy
    errors, less = rows_of(result, "value_error"), rows_of(result, "value_error_less_copy")
    assert set(less) == set(errors) - {0}
    for k, r in less.items():
        assert r["simulated"] == pytest.approx(errors[k]["simulated"] - errors[k]["baseline_copy"], abs=1e-6)
        assert r["floor"] == pytest.approx(-errors[k]["baseline_copy"]) and r["low"] <= r["simulated"] <= r["high"]
    value = np.broadcast_to(paired.real.value[:, :1], paired.real.value.shape)
    held = replace(paired, free=paired.free._replace(value=value))
    for r in rows_of(compare(held, np.random.default_rng(0)), "value_error_less_copy").values():
        assert r["simulated"] == r["low"] == r["high"] == 0


def test_hidden_distribution_of_the_simulator_lies_between_floor_and_a_wrong_one(noisy):
    _, result = noisy
    _, wrong = compared(planted_simulator(model=Shifted()), PlantedOptions())
    for name in ("h_frechet", "h_mmd", "h_classifier"):
        right, bad = rows_of(result, name)[None], rows_of(wrong, name)[None]
        assert bad["simulated"] > right["simulated"], name
        assert bad["floor"] == pytest.approx(right["floor"]), name
        assert bad["low"] > bad["floor"], name


def test_hidden_distributions_are_of_all_horizons_where_windows_are_many():
    """Every other row of windows of four would be their first and third steps, at which this simulator is right."""
    h = np.random.default_rng(1).normal(size=(2, 400, 5, 2))
    h[1, :, 2::2] += 3
    sides = {name: SimpleNamespace(h=x) for name, x in zip(("real", "free"), h, strict=True)}
    many = SimpleNamespace(seen=np.ones((400, 5), bool), episode=np.repeat(np.arange(8), 50), **sides)
    found = next(r for r in hidden_rows(many, rng()) if r["measure"] == "h_mmd")
    assert found["simulated"] > 0.1 > abs(found["floor"])
    for rows, width in ((799, 4), (3200, 4), (2048, 8), (20480, 20), (32768, 32), (5000, 1)):
        taken = thinned(rows, width)
        assert set(taken % width) == set(range(width)) and len(taken) >= min(rows, 600)


def test_episodes_are_the_unit(noisy):
    paired, result = noisy
    assert len(paired.episode) == 40 and {r["n"] for r in rows_of(result, "frame_mse").values()} <= set(range(2, 17))


def test_what_an_episode_does_not_have_is_not_compared():
    options = replace(PlantedOptions(), hazard=1.0)
    episodes = record_planted(options, episodes=12, steps=30)
    starts = choose_starts(episodes, 2, 24, rng())
    paired = pair(planted_simulator(options), episodes, starts, HORIZON)
    for (e, t), seen, acted, terminal in zip(starts, paired.seen, paired.acted, paired.real.terminal, strict=True):
        left = episodes[e].steps - t
        assert seen.sum() == min(left + 1, HORIZON + 1) and acted.sum() == min(left, HORIZON)
        ends_inside = episodes[e].terminated and left <= HORIZON
        assert terminal[acted].sum() == ends_inside and (not ends_inside or terminal[left - 1])


def test_starts_are_spread_over_episodes_and_fit():
    episodes = record_planted(PlantedOptions(), episodes=8, steps=20)
    starts = choose_starts(episodes, 5, 20, rng())
    counts = np.bincount(starts[:, 0], minlength=8)
    assert len(starts) == 20 and counts.max() - counts.min() <= 1 or min(len(e.h) for e in episodes) < 8
    assert all(t + 5 <= len(episodes[e].h) for e, t in starts)
    assert len({tuple(s) for s in starts}) == 20
    with pytest.raises(UserError, match="record more"):
        choose_starts(episodes, 50, 20, rng())


# Measures


def test_psnr_and_stretches():
    assert psnr(0.01) == pytest.approx(20) and psnr(0) == float("inf")
    assert stretches(32) == [(None, 0, 32), (4, 0, 4), (12, 4, 12), (32, 12, 32)]
    assert stretches(3) == [(None, 0, 3), (3, 0, 3)]


def test_teacher_forced_is_measured_where_the_simulator_can(exact):
    class Forced(PlantedModel):
        def along(self, obs, action_BL, seen_BL):
            states = self.observe(obs, action_BL, seen_BL).unbind(1)
            return [Shown(self.show(x), x @ self.reward_X, self._ends(x), x) for x in states]

    options = PlantedOptions()
    paired, result = compared(planted_simulator(model=Forced(options)), options)
    forced = rows_of(result, "frame_mse_teacher_forced")
    assert sorted(forced) == list(range(HORIZON + 1)) and max(r["simulated"] for r in forced.values()) < 1e-8
    assert {"value_error_teacher_forced", "terminal_brier_teacher_forced", "h_error_teacher_forced"} <= {
        r["measure"] for r in result.tables["fidelity"]
    }
    assert {r["simulation"] for r in result.tables["calibration"]} == {"free-running", "teacher-forced"}
    assert not rows_of(exact[1], "frame_mse_teacher_forced") and isinstance(paired, Paired)


def test_a_simulator_is_shown_every_field_of_an_observation(exact):
    class Two(PlantedModel):
        def __init__(self, options):
            super().__init__(options)
            field = self.spec.obs["x"]
            self.spec = replace(self.spec, obs={"x": field, "half": field})

        def infer(self, obs):
            return super().infer({"x": 2 * obs["half"]})

        def show(self, x_BX):
            shown = super().show(x_BX)["x"]
            return {"x": shown, "half": shown / 2}

    episodes = record_planted(STILL, episodes=16, steps=24)
    both = [replace(e, obs={**e.obs, "half": e.obs["x"] / 2}) for e in episodes]
    starts = choose_starts(episodes, 2, 40, rng())
    paired = pair(planted_simulator(model=Two(STILL)), both, starts, HORIZON, batch=7)
    for kind, error in exact[0].error.items():
        np.testing.assert_array_equal(paired.error[kind], error)


def test_the_learned_simulator_is_teacher_forced_step_by_step():
    """Row by row: frames of the filtered states, rewards of the transition that follows, the agent along the frames."""
    torch.manual_seed(0)
    spec = ProcgenEnv(ProcgenOptions(game="coinrun"), 1).spec
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=5), spec)
    simulator = simulator_of(SMALL, agent)
    world = simulator.world.eval().requires_grad_(False)
    frames = torch.from_numpy(rng().integers(0, 256, (2, 2 + 4, 64, 64, 3), dtype=np.uint8))
    action, seen = torch.from_numpy(rng().integers(0, 15, (2, 4))), torch.tensor([[True] * 4, [True] * 3 + [False]])
    out, w = (
        teacher_forced(simulator, {"frames": frames}, action, seen),
        world.path({"frames": frames}, action, seen)[0],
    )
    h = simulator.remembered(world.infer({"frames": frames[:, :3]})[0])
    for i in range(4):
        shown = world.show(world.foretell(w.d_BLD[:, i], w.s_BLS[:, i]))
        torch.testing.assert_close(out.obs["frames"][:, i], shown["frames"])
        e = agent.encode(shown)
        h = agent.advance(e, h, torch.zeros(2, dtype=torch.bool))
        torch.testing.assert_close(out.h[:, i], h)
        torch.testing.assert_close(out.value[:, i], agent.heads(e, h)[1])
        if i:
            torch.testing.assert_close(out.reward[:, i - 1], world.reward_head(w.d_BLD[:, i])[:, 0])
            torch.testing.assert_close(out.terminal[:, i - 1], world.terminal_head(w.d_BLD[:, i])[:, 0].sigmoid())
    assert out.reward.shape == (2, 3) and torch.equal(out.alive, seen) and torch.equal(out.action, action)


def test_nothing_in_the_table_is_out_of_json(noisy):
    for r in noisy[1].tables["fidelity"]:
        for key in ("simulated", "low", "high", "floor", "baseline_copy", "baseline_mean"):
            assert r[key] is None or np.isfinite(r[key])
    assert torch.is_grad_enabled()


def test_hidden_states_values_and_actions_are_those_of_the_same_step():
    """From an episode's first observation the planted simulator knows the agent's state too, so all must agree."""
    options = replace(STILL, hazard=0.0)
    episodes = record_planted(options, episodes=6, steps=10)
    paired = pair(planted_simulator(options), episodes, np.array([(e, 0) for e in range(6)]), HORIZON)
    assert paired.seen.all()
    for name in ("h", "value"):
        np.testing.assert_allclose(getattr(paired.real, name), getattr(paired.free, name), atol=1e-4)
    acted = paired.real.logits[:, :-1].argmax(-1) == paired.free.logits[:, :-1].argmax(-1)
    assert acted.all()


# Dreams


def test_dreams_of_the_true_world_are_at_the_floor_and_those_of_a_wrong_one_are_not():
    """Returns, lengths, actions and transitions, where the agent samples its own actions."""
    options = replace(PlantedOptions(), hazard=0.2)
    _, right = compared(planted_simulator(options), options, seed=3)
    rigid = replace(planted_simulator(model=Rigid(options)), agent=GoesRight(options))
    _, wrong = compared(rigid, options, seed=3)
    for name in ("return_distance", "length_distance", "action_distance", "transition_distance"):
        good, bad = rows_of(right, name)[None], rows_of(wrong, name)[None]
        assert good["floor"] == pytest.approx(bad["floor"]) and good["low"] < 1.7 * good["floor"], name
        assert bad["simulated"] > 1.5 * good["simulated"], name
    assert rows_of(right, "length_difference")[None]["low"] < 0 < rows_of(right, "length_difference")[None]["high"]


def test_few_deaths_do_not_tell_dreams_from_real_episodes():
    """An exact simulator of a world in which hardly any episode ends: the real ones all live, the foretold chance is a
    trifle less, and that difference was said to be known exactly."""
    options = replace(PlantedOptions(), hazard=0.002)
    paired, result = compared(planted_simulator(options), options)
    rows = [*survival_rows(paired, rng()), *rows_of(result, "length_difference").values()]
    assert len(rows) > 3
    for r in rows:
        assert r["low"] < 0 < r["high"] if r["measure"].endswith("difference") else r["high"] <= 1, r["measure"]


class Rigid(PlantedModel):
    """Never ends and pays too much."""

    def step(self, state, action_BA, noise=None):
        state, shown = super().step(state, action_BA, noise)
        return state, shown._replace(ending_B=shown.ending_B * 0, reward_B=shown.reward_B + 1)


class GoesRight(PlantedAgent):
    """Always wants to go right."""

    def heads(self, seen, state):
        logits, value = super().heads(seen, state)
        return logits + torch.tensor([0.0, 0.0, 1000.0]), value


class EndsAtOnce(PlantedModel):
    """Every transition is the last."""

    def _ends(self, x_BX):
        return torch.ones_like(x_BX[:, 0])


def undefined(result):
    """The rows without a number, by measure; every one says why, and none that has a number does."""
    rows = result.tables["fidelity"]
    assert all((r["simulated"] is None) == bool(r["reason"]) for r in rows), [r for r in rows if not r["reason"]]
    return {r["measure"]: r["reason"] for r in rows if r["simulated"] is None}


def test_a_simulator_whose_dreams_end_at_once_leaves_an_empty_row(tmp_path):
    _, result = compared(planted_simulator(model=EndsAtOnce()), PlantedOptions())
    said = undefined(result)["transition_distance"]
    assert said == "dreams end so soon that a half of the episodes has no transition of them"
    assert rows_of(result, "action_distance")[None]["simulated"] is not None
    figures.draw(result, tmp_path, ("left", "wait", "right"), False)
    result.save(tmp_path)


def test_states_that_never_change_and_windows_without_events_leave_empty_rows(noisy, tmp_path):
    paired, _ = noisy
    still = paired.real._replace(
        h=np.full_like(paired.real.h, 1 / 3), reward=paired.real.reward * 0, terminal=paired.real.terminal * 0
    )
    result = compare(replace(paired, real=still, acted=paired.acted & (np.arange(HORIZON) < HORIZON - 1)), rng())
    why = undefined(result)
    for measure in ("h_error", "h_frechet", "h_mmd", "h_classifier"):
        assert why[measure] == "the recorded hidden states are all the same"
    assert why["reward_average_precision"] == "no reward in these windows"
    assert why["terminal_average_precision"] == "no ending in these windows"
    for name in ("return_difference", "length_distance", "action_distance", "transition_distance"):
        assert (
            why[name] == "0 episodes of the agent by itself have windows that end or last to the horizon, 4 are needed"
        )
    assert directions_of(replace(paired, real=still), "x").size == 0
    figures.draw(result, tmp_path, ("left", "wait", "right"), False)
    result.save(tmp_path)


def test_a_neuron_that_never_changes_in_the_real_world_is_not_a_measure_of_the_simulator(noisy):
    """It has no scale: what the simulator makes of it would be divided by rounding errors."""
    paired, _ = noisy
    dead, other = paired.real.h.copy(), paired.free.h.copy()
    dead[..., 0], other[..., 0] = 0.1, rng().random(other.shape[:-1])
    without = replace(paired, real=paired.real._replace(h=dead[..., 1:]), free=paired.free._replace(h=other[..., 1:]))
    with_it = replace(paired, real=paired.real._replace(h=dead), free=paired.free._replace(h=other))
    a, b = (rows_of(compare(p, rng()), "h_frechet") for p in (without, with_it))
    assert [r["simulated"] for r in a.values()] == pytest.approx([r["simulated"] for r in b.values()], rel=1e-6)


@pytest.mark.parametrize("part", ["ending_B", "reward_B", "features_BD"])
def test_a_simulator_that_makes_no_numbers_is_refused(part):
    class Broken(PlantedModel):
        def step(self, state, action_BA, noise=None):
            state, shown = super().step(state, action_BA, noise)
            late_B = torch.where(state[1] > 3, torch.nan, 1.0)
            whole = getattr(shown, part)
            return state, shown._replace(**{part: whole * late_B.reshape(-1, *[1] * (whole.ndim - 1))})

    with pytest.raises(UserError, match="makes NaN or infinite values"):
        compared(planted_simulator(model=Broken()), PlantedOptions())


def test_an_agent_that_makes_no_numbers_in_a_simulator_is_refused():
    class Broken(PlantedAgent):
        def advance(self, seen, state, is_first_B):
            after = super().advance(seen, state, is_first_B)
            return torch.where((after > 0.5).any(-1, keepdim=True), torch.nan, after)

        def heads(self, seen, state):
            logits, value = super().heads(seen, state.nan_to_num())
            return logits, value + 0 * state[:, 0]

        def read(self, point, seen, state):
            return super().read(point, seen, state).nan_to_num()

    with pytest.raises(UserError, match="makes NaN or infinite values .values."):
        compared(replace(planted_simulator(), agent=Broken().eval()), PlantedOptions())


def test_actions_that_do_the_same_count_as_one(noisy):
    """Two halves that differ in the ids only, not in what is done, are alike."""
    paired, plain = noisy
    swapped = paired.dreamed._replace(action=np.where(paired.dreamed.action == 0, 1, paired.dreamed.action))
    one = {"left": [0, 1], "right": [2]}
    grouped, again = (compare(replace(paired, dreamed=d), rng(), None, one) for d in (paired.dreamed, swapped))
    assert grouped.notes["distinct_actions"] == ["left", "right"] and "distinct_actions" not in plain.notes
    assert set(np.unique(grouped.arrays["actions_real"])) == {0, 1}
    for name in ("action_distance", "transition_distance"):
        assert rows_of(grouped, name)[None]["simulated"] == rows_of(again, name)[None]["simulated"]
    assert "action_agreement_in_effect" in {r["measure"] for r in grouped.tables["fidelity"]}
    assert "action_agreement_in_effect" not in {r["measure"] for r in plain.tables["fidelity"]}


def test_a_life_is_counted_to_its_last_transition():
    options = replace(PlantedOptions(), hazard=1.0)
    episodes = record_planted(options, episodes=12, steps=30)
    starts = choose_starts(episodes, 2, 12, rng())
    paired = pair(planted_simulator(options), episodes, starts, HORIZON)
    x = lives(paired, rng())
    for (e, t), length, total in zip(starts, x.total(0)["length"], x.total(0)["return"], strict=True):
        assert length == min(episodes[e].steps - t, HORIZON)
        assert total == pytest.approx(float(episodes[e].reward[t : t + HORIZON].sum()), abs=1e-4)
    # A dream ends with the transition whose end is drawn, and counts it.
    surely = np.zeros_like(paired.dreamed.terminal)
    surely[:, 2] = 1
    x = lives(replace(paired, dreamed=paired.dreamed._replace(terminal=surely, reward=surely * 0 + 1)), rng())
    assert set(x.total(1)["length"]) == {3} == set(x.total(1)["return"])


def test_dreams_are_compared_with_episodes_in_which_the_agent_acts_by_itself():
    """Half of the record explores: waits, whatever the agent would do.  That is no error of an exact simulator."""
    episodes = record_planted(STILL, episodes=32, steps=16)
    for i in range(0, 32, 2):
        waits = np.full_like(episodes[i].action, 1)
        episodes[i] = replace(episodes[i], action=waits, meta={**episodes[i].meta, "explores": True})
    starts = choose_starts(episodes, 2, 96, rng())
    paired = pair(planted_simulator(STILL), episodes, starts, HORIZON)
    assert (paired.by_itself == (starts[:, 0] % 2 == 1)).all()
    result = compare(paired, rng(), rungs=[])
    by_actions = ("action_distance", "transition_distance")
    dreamed = ("return_difference", "return_distance", *by_actions, "dreams_alive", "h_classifier_dreamed")
    for name in dreamed:
        assert {r["n"] for r in rows_of(result, name).values()} <= set(range(8, 17)), name
    for name in ("frame_mse", "action_agreement", "reward_mse", "h_classifier", "policy_kl"):  # along recorded actions
        assert max(r["n"] for r in rows_of(result, name).values()) > 16, name
    assert any("16 of 32 episodes, from what is compared with dreams" in words for words in result.notes["left_out"])
    mixed = compare(replace(paired, by_itself=np.ones(len(starts), bool)), rng())
    for name in by_actions:
        alone, both = (rows_of(r, name)[None] for r in (result, mixed))
        assert alone["simulated"] < alone["floor"] + 0.05, name
        assert both["simulated"] > both["floor"] + 0.05, name
    # The control: a wrong dream is still found out.
    wrong = replace(paired, dreamed=paired.dreamed._replace(action=np.zeros_like(paired.dreamed.action)))
    told = rows_of(compare(wrong, rng()), "action_distance")[None]
    assert told["low"] > told["floor"]


def test_dreams_are_greedy_where_the_record_is():
    """Then nothing explores, whatever an episode's meta says."""
    episodes = [replace(e, meta={"explores": True}) for e in record_planted(STILL, episodes=8, steps=16)]
    starts = choose_starts(episodes, 2, 8, rng())
    for greedy in (True, False):
        paired = pair(planted_simulator(STILL), episodes, starts, HORIZON, greedy=greedy)
        likeliest = paired.dreamed.action == paired.dreamed.logits.argmax(-1)
        assert likeliest.all() == greedy and (paired.by_itself == greedy).all()
    few = [r for r in compare(paired, rng()).tables["fidelity"] if r["measure"] == "action_distance"]
    assert few[0]["simulated"] is None and few[0]["reason"].startswith("0 episodes of the agent by itself have")


def test_a_reward_of_one_size_is_foretold_as_a_probability(noisy):
    paired, result = noisy
    assert set(forecasts(paired, paired.free)) == {"terminal"}  # rewards of the planted world are of any size
    assert "Brier score and calibration of rewards" in result.notes["left_out"][0]
    tens = replace(paired, real=paired.real._replace(reward=np.where(paired.real.reward > 0, 10.0, 0.0)))
    foretold = forecasts(tens, paired.free._replace(reward=np.full_like(paired.free.reward, 2.5)))
    assert foretold["reward"] == pytest.approx(0.25)
    measures = {r["measure"] for r in compare(tens, rng()).tables["fidelity"]}
    assert {"reward_brier", "reward_calibration_error", "terminal_calibration_error"} <= measures


@pytest.mark.parametrize(
    ("reward", "why"),
    [
        (0, "there are none in these windows"),
        (-1, "all are -1, and what is foretold is a reward above 0"),
        (None, "of one size"),
    ],
)
def test_why_rewards_are_not_foretold_as_a_probability(noisy, reward, why):
    paired, _ = noisy
    real = paired.real if reward is None else paired.real._replace(reward=np.full_like(paired.real.reward, reward))
    (said,) = [x for x in compare(replace(paired, real=real), rng()).notes["left_out"] if x.startswith("Brier")]
    assert why in said


def test_the_report_gives_the_reason_for_counterfactuals_that_nothing_told():
    gone = {"simulated": None, "low": None, "high": None, "floor": None, "baseline_mean": None, "n": 64, "horizon": 8}
    why = "actions of several parts are not held one by one"
    rows = [{**gone, "measure": "counterfactual_top1", "reason": why},
            {**gone, "measure": "gradient_sign_action_through_world", "reason": "x"}]  # fmt: skip
    assert _tried_again(rows) == (f"Counterfactual actions: {why}.",)
    assert _tried_again(rows[1:]) == ()


def test_ids_that_do_the_same_add_up():
    probability = softmax(np.log(np.array([[0.4, 0.3, 0.3]])))
    assert probability.argmax(-1) == 0
    assert in_effect(probability, {"stay": [0], "go": [1, 2]}) == 1


def test_another_world_is_told_by_its_options_but_not_by_its_levels():
    spec = ProcgenEnv(ProcgenOptions(game="coinrun"), 1).spec
    check_world(ProcgenEnv(ProcgenOptions(game="coinrun", start_level=7, num_levels=9), 3).spec, spec, "this")
    with pytest.raises(UserError, match="this is of a world with use_backgrounds False"):
        check_world(ProcgenEnv(ProcgenOptions(game="coinrun", use_backgrounds=False), 1).spec, spec, "this")
    with pytest.raises(UserError, match="this is of procgen/jumper, the simulator of procgen/coinrun"):
        check_world(ProcgenEnv(ProcgenOptions(game="jumper"), 1).spec, spec, "this")


# More measures, against closed forms


def test_ssim_of_equal_flat_and_random_frames():
    frames = rng().random((5, 20, 24, 3)).astype(np.float32)
    assert ssim(frames, frames) == pytest.approx(1, abs=1e-5)
    # Flat frames have no structure: only the means are compared.
    flat = np.ones((1, 16, 16, 3), np.float32)
    a, b, c1 = 0.2, 0.7, 0.01**2
    assert ssim(flat * a, flat * b)[0] == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1), rel=1e-4)
    still = np.broadcast_to(frames[:1], frames.shape)
    np.testing.assert_allclose(ssim_to(frames)(frames[:1]), ssim(still, frames), atol=1e-6)
    assert ssim(frames, 1 - frames).max() < 0 < ssim(frames, frames * 0.5 + 0.25).min() < 0.95
    with pytest.raises(ValueError, match="11 pixels"):
        ssim(flat[:, :8], flat[:, :8])


def test_ssim_is_the_published_one():
    """Against moments by scipy's Gaussian filter, cut to where the window fits."""
    from scipy.ndimage import gaussian_filter

    x, y = rng().random((2, 32, 32)).astype(np.float64)

    def smooth(v):
        return gaussian_filter(v, 1.5, radius=5)[5:-5, 5:-5]

    mx, my = smooth(x), smooth(y)
    vx, vy, together = smooth(x * x) - mx**2, smooth(y * y) - my**2, smooth(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    expected = ((2 * mx * my + c1) * (2 * together + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))).mean()
    assert ssim(x[None, :, :, None], y[None, :, :, None])[0] == pytest.approx(expected, abs=1e-5)


def test_total_variation_and_wasserstein_by_hand():
    assert total_variation(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])) == pytest.approx(0.5)
    assert total_variation(np.array([0]), np.array([3])) == 1 and total_variation(np.arange(4), np.arange(4)) == 0
    assert wasserstein(np.array([0.0, 1.0]), np.array([3.0, 2.0])) == pytest.approx(2)


@pytest.mark.parametrize("measure", ["policy_kl", "terminal_brier", "reward_mse", "h_error_teacher_forced"])
def test_what_cannot_be_below_0_has_an_interval_that_ends_there(measure: str) -> None:
    assert row(measure, 1, Estimate(0.14, -0.04, 0.7, 9), "1")["low"] == 0
    assert row("value_difference", 1, Estimate(0.14, -0.04, 0.7, 9), "1")["low"] == -0.04


def test_endings_without_a_reward_are_apart_from_those_with_one():
    """A world that tells the chance of a reward where the episode ends; one that tells a mean reward alone has none."""

    @dataclass(frozen=True)
    class Telling:
        world: Any

        def __getattr__(self, name):
            return getattr(self.world, name)

        def step(self, state, action_BA, noise=None):
            state, shown = self.world.step(state, action_BA, noise)
            chance = torch.tensor([[0.25, 0.75]]).expand(len(shown.reward_B), 2)
            return state, shown._replace(ending_B=torch.full_like(shown.ending_B, 0.4), paid_B2=chance)

    episodes = record_planted(STILL, episodes=8, steps=16)
    starts = choose_starts(episodes, 2, 8, rng())
    plain = planted_simulator(STILL)
    telling = replace(plain, world=Telling(plain.world))
    told = pair(telling, episodes, starts, HORIZON)
    assert np.allclose(told.free.unpaid, 0.4 * 0.25) and np.allclose(told.dreamed.unpaid, 0.4 * 0.25)
    untold = pair(plain, episodes, starts, HORIZON)
    assert np.isnan(untold.free.unpaid).all()
    assert not any(r["measure"].startswith("unpaid") for r in compare(untold, rng()).tables["fidelity"])
    died = told.real._replace(unpaid=told.acted.astype(float), terminal=told.acted.astype(float))
    rows = {
        r["measure"]: r for r in compare(replace(told, real=died), rng()).tables["fidelity"] if r["horizon"] is None
    }
    assert rows["unpaid_ending_brier"]["simulated"] == pytest.approx(0.9**2)
    never = {r["measure"]: r for r in compare(told, rng()).tables["fidelity"] if r["horizon"] is None}
    assert never["unpaid_ending_average_precision"]["reason"] == "no ending without a reward in these windows"


def test_frames_that_are_no_squares_keep_their_shape_in_videos() -> None:
    frames = np.zeros((2, 8, 16, 1), np.uint8)
    picture = figures.grid("t", ["a", "b"], [("real", frames, np.array([True, False]))])
    tile = picture[figures.HEAD :, figures.MARGIN :][: figures.TILE, : figures.TILE]
    black = (tile == 0).all(-1)
    assert (black.any(1).sum(), black.any(0).sum()) == (figures.TILE // 2, figures.TILE)


@pytest.mark.parametrize("measure", ["frame_ssim_teacher_forced", "frame_share_known", "judge_policy_distance",
                                     "there_and_back_share", "terminal_brier_teacher_forced"])  # fmt: skip
def test_no_interval_is_of_more_than_there_can_be(measure):
    told = row(measure, 1, Estimate(0.9, -0.1, 1.1, 3), "1")
    assert told["high"] == 1 and (told["low"] == 0 or "ssim" in measure)


def test_titles_of_the_small_multiples_fit_their_columns():
    from core.figures import figure_of

    rows = [row(m, k, Estimate(0.5, 0.4, 0.6, 30), "1") for p in figures.PANELS for m, _ in p.lines for k in (1, 2)]
    for panel in figures.PANELS:
        figure = figure_of(11 / 3, 2.9)
        ax = figure.subplots()
        figures._panel(ax, panel, Result(tables={"fidelity": rows}))
        figure.draw_without_rendering()
        title = ax.title.get_window_extent()
        assert title.x0 >= 0 and title.x1 <= figure.bbox.width, panel.title
