"""Paired interventions: on the planted world the truth is known; the parts are checked one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from agents.play import tensors
from core.contracts import EnvSpec, Step, UserError
from core.interventions import AtSteps, Nullspace, Shift
from core.stats import band_of
from envs.planted import PlantedOptions, PlantedSimulator, PlantedWorld
from envs.planted_truth import truth
from validation.interventions import (
    Become,
    Blocks,
    Course,
    InterventionsConfig,
    KeepOnly,
    RealWorld,
    Redirect,
    SimulatedWorld,
    StudyOptions,
    agreement,
    changes,
    check,
    collect_starts,
    distinct_actions,
    dose_slopes,
    hypotheses_of,
    quantities,
    random_units,
    study,
    verdict,
)

OPTIONS = PlantedOptions()
ACTIONS = {"left": [0], "wait": [1], "right": [2]}
STUDY = StudyOptions(
    directions=(0, 1), amounts=(-2.0, 0.0, 2.0), starts=48, horizon=3, controls=50, control_starts=48, latest_start=12
)


@pytest.fixture(scope="module")
def planted():
    return PlantedSimulator(OPTIONS), truth(OPTIONS)


@pytest.fixture(scope="module")
def result(planted):
    simulator, planted_truth = planted
    return study(simulator, lambda slots: PlantedWorld(OPTIONS, slots), planted_truth.basis, STUDY)


def worlds(simulator, count=12, horizon=3, seed=0, world=None):
    """Both worlds from the same starts."""
    env = PlantedWorld(OPTIONS, count) if world is None else world
    starts = collect_starts(simulator.agent, env, count, initial_frames=1, latest=8, seed=seed)
    noise = torch.from_numpy(np.random.default_rng(seed).gumbel(size=(count, horizon + 1, 3)).astype(np.float32))
    z, _ = simulator.infer({k: torch.from_numpy(v) for k, v in starts.window.items()})
    real = RealWorld(simulator.agent, env, starts, noise, ACTIONS)
    return real, SimulatedWorld(simulator, z, starts.h_NH, noise, ACTIONS)


# The truth is found


def test_the_cause_is_confirmed_and_the_nuisance_cleared_though_a_probe_decodes_both(planted, result):
    _, planted_truth = planted
    c = planted_truth.basis.project(torch.from_numpy(result.arrays["h"])).numpy()
    assert np.corrcoef(c[:, 0], c[:, 1])[0, 1] > 0.5, "the nuisance must be confounded with the cause"
    verdicts = {claim["direction"]: claim["verdict"] for claim in result.notes["claims"]}
    assert verdicts == {planted_truth.causal: "confirmed", planted_truth.nuisance: "refuted"}
    assert "refuted" in result.notes["claim"] and "confirmed" in result.notes["claim"]


def test_no_effect_of_the_nuisance_is_confirmed_and_all_are_zero(result):
    mine = [r for r in result.tables["effects"] if r["direction"] == 1 and r["kind"] in ("shift", "collapse")]
    assert len(mine) > 20
    assert not [r for r in mine if r["verdict"] == "confirmed"]
    assert max(abs(r["observed"]) for r in mine) < 1e-5
    assert max(abs(r["predicted_jacobian"]) for r in mine) < 1e-5


def test_value_effect_of_the_cause_is_the_closed_form(result):
    # At once: value reads the cause with weight 1. Nothing else about it is a matter of statistics.
    for world in ("simulator", "real"):
        [now] = [
            r
            for r in result.tables["effects"]
            if (r["world"], r["hypothesis"], r["quantity"]) == (world, "shift 0 by +2", "value")
        ]  # noqa: E501
        assert now["observed"] == pytest.approx(2.0, abs=1e-5) == now["predicted_jacobian"]
        assert now["verdict"] == "confirmed"


def test_predictions_agree_with_the_real_world(result):
    assert result.scalars["sign_agreement"]["n"] == 48
    # Half of the points belong to the nuisance and are rounding errors on both sides.
    assert result.scalars["slope"]["value"] == pytest.approx(1, abs=0.3)
    assert result.scalars["sign_agreement_random_jacobian"]["interval"][0] > 0.6
    assert result.scalars["rank_correlation_random"]["value"] > 0.6


def test_the_most_promising_direction_is_the_cause_and_never_the_nuisance():
    options = PlantedOptions()
    found = study(
        PlantedSimulator(options), lambda slots: PlantedWorld(options, slots), truth(options).basis,
        replace(STUDY, directions=(), largest=3, controls=5, starts=12, control_starts=12),
    )  # fmt: skip
    chosen = [claim["direction"] for claim in found.notes["claims"]]
    assert chosen[0] == truth(options).causal and len(chosen) == 3
    assert truth(options).nuisance not in chosen


def test_nothing_is_confirmed_in_a_world_without_the_cause():
    options = PlantedOptions(effect=0.0)
    found = study(
        PlantedSimulator(options), lambda slots: PlantedWorld(options, slots), truth(options).basis,
        replace(STUDY, directions=(1, 5), controls=20, starts=24, control_starts=24),
    )  # fmt: skip
    assert [c["verdict"] for c in found.notes["claims"]] == ["refuted", "refuted"]


# Strength 0, pairing


def test_a_shift_by_nothing_changes_no_bit_in_either_world(planted, result):
    assert result.scalars["zero_change_real"]["value"] == 0 == result.scalars["zero_change_simulator"]["value"]
    simulator, planted_truth = planted
    real, dreamed = worlds(simulator)
    nothing = (AtSteps(Shift(planted_truth.basis, (0,), (0.0,)), 0, 1),)
    for one, other in zip(real.course(), real.course(nothing), strict=True):
        assert torch.equal(one, other)
    rows = torch.arange(12)
    for one, other in zip(dreamed.course(rows), dreamed.course(rows, nothing), strict=True):
        assert torch.equal(one, other)


def test_starts_are_states_of_the_recorded_episode(planted):
    simulator, _ = planted
    env = PlantedWorld(OPTIONS, 4)
    starts = collect_starts(simulator.agent, env, 10, initial_frames=1, latest=8, seed=3)
    assert len(starts) == 10 and starts.paired_by == "snapshot"
    assert ((starts.age_N >= 1) & (starts.age_N <= 8)).all()
    # Restoring shows the very observation whose h was kept: h = W h_before + U x, and x is read off.
    shown = PlantedWorld(OPTIONS, 10).restore(starts.states)
    np.testing.assert_array_equal(shown.obs["x"], starts.window["x"][:, -1])


def test_one_start_an_episode():
    simulator = PlantedSimulator(replace(OPTIONS, horizon=6, hazard=0.0))
    env = PlantedWorld(simulator.options, 3)
    starts = collect_starts(simulator.agent, env, 9, initial_frames=1, latest=3, seed=0)
    firsts = {tuple(np.round(x.ravel(), 4)) for x in starts.window["x"]}
    assert len(firsts) == 9
    # Every slot lives 6 steps an episode: 9 starts from 3 slots need 3 episodes of each.
    assert len(starts.states) == 9


def test_real_course_repeats_the_unaltered_episode(planted):
    """The agent run on from a snapshot with the recorded h gives what it gives uninterrupted."""
    simulator, _ = planted
    real, _ = worlds(simulator, count=6, horizon=4)
    course = real.course()
    step, h = real.env.restore(real.starts.states), real.starts.h_NH
    alive = torch.ones(6, dtype=torch.bool)
    for t in range(5):
        if t:
            h = simulator.agent.advance(
                simulator.agent.encode(tensors(step, h.device)), h, torch.from_numpy(step.is_first)
            )
        logits, value = simulator.agent.heads(h)
        assert torch.equal(course.weight_RT[:, t].bool(), alive)
        assert torch.equal(course.value_RT[alive, t], value[alive])
        step = real.env.step((logits + real.noise_NTA[:, t]).argmax(-1).numpy())
        if t < 4:
            assert torch.equal(course.reward_RT[alive, t], torch.from_numpy(step.reward)[alive])
        alive &= ~torch.from_numpy(step.terminated | step.truncated)


class NoSnapshots(PlantedWorld):
    """The planted world, which forgot how to take snapshots."""

    def __init__(self, options: PlantedOptions, slots: int) -> None:
        super().__init__(options, slots)
        self.spec: EnvSpec = replace(self.spec, can_snapshot=False)

    def snapshot(self) -> tuple[bytes, ...]:
        raise NotImplementedError

    def restore(self, states) -> Step:
        raise NotImplementedError


def test_without_snapshots_pairs_replay_the_seed_and_give_the_same(planted):
    simulator, planted_truth = planted
    with_snapshots, _ = worlds(simulator, count=8, seed=5)
    by_seed, _ = worlds(simulator, count=8, seed=5, world=NoSnapshots(OPTIONS, 8))
    assert by_seed.starts.paired_by == "seed" and len(set(by_seed.starts.offset_N)) > 1
    shift = Shift(planted_truth.basis, (0,), (2.0,))
    # The same starts in another order: slots keep their place only when each gives exactly one.
    order = np.argsort([tuple(x.ravel()) for x in with_snapshots.starts.window["x"]], 0)[:, 0]
    other = np.argsort([tuple(x.ravel()) for x in by_seed.starts.window["x"]], 0)[:, 0]
    np.testing.assert_array_equal(with_snapshots.starts.window["x"][order], by_seed.starts.window["x"][other])
    by_seed.noise_NTA[other] = with_snapshots.noise_NTA[order]
    one = with_snapshots.measure([None, shift])
    two = by_seed.measure([None, shift])
    for q in one:
        np.testing.assert_allclose(one[q][:, order], two[q][:, other], atol=1e-5, err_msg=q)


def test_a_study_without_snapshots_says_so(planted):
    simulator, planted_truth = planted
    options = replace(STUDY, directions=(0,), starts=12, control_starts=12, controls=10, horizon=2)
    found = study(simulator, lambda slots: NoSnapshots(OPTIONS, slots), planted_truth.basis, options)
    assert found.notes["paired_by"] == "seed" and "no snapshots" in found.notes["paired"]


def test_episodes_too_short_are_a_user_error(planted, monkeypatch):
    simulator, _ = planted
    monkeypatch.setattr("validation.interventions.GIVE_UP_STEPS", 50)
    env = PlantedWorld(replace(OPTIONS, horizon=3), 4)
    with pytest.raises(UserError, match="--latest_start"):
        collect_starts(simulator.agent, env, 4, initial_frames=9, latest=20, seed=0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"directions": (0, 8)}, "direction 8 does not exist: the planted basis has 0 to 7"),
        ({"directions": (-1,)}, "direction -1 does not exist"),
        ({"directions": (), "largest": 9}, "largest 9: the planted basis has 8 directions"),
        ({"directions": ()}, "names no direction"),
        ({"starts": 5}, "5 independent units .* use at least 6"),
        ({"controls": 0}, "--controls must be at least 1"),
        ({"amounts": (0.0,)}, "other than 0"),
    ],
)
def test_a_study_refuses_what_it_cannot_answer_before_it_makes_a_world(planted, changed, said):
    def no_world(slots):
        raise AssertionError("a world was made")

    simulator, planted_truth = planted
    with pytest.raises(UserError, match=said):
        study(simulator, no_world, planted_truth.basis, replace(STUDY, **changed))


# Predictions


def test_jacobian_is_the_derivative_of_the_simulated_course(planted):
    simulator, planted_truth = planted
    _, dreamed = worlds(simulator, count=6)
    jacobian = dreamed.jacobian(block=4)
    # No action changes for so small a step, and what the action would pass on is straight-through: compare
    # where no action leads, at once.
    step = 1e-2
    up, down = (dreamed.measure([Shift(planted_truth.basis, (0,), (a,))]) for a in (step, -step))
    for q in ("value", "logit:right", "prob:left"):
        numeric = (up[q] - down[q])[0] / (2 * step)
        analytic = planted_truth.basis.pullback(jacobian[q])[:, 0].numpy()
        np.testing.assert_allclose(analytic, numeric, atol=2e-3, err_msg=q)


def test_jacobian_reaches_later_value_through_the_agents_memory(planted):
    simulator, planted_truth = planted
    _, dreamed = worlds(simulator, count=6, horizon=2)
    grad = planted_truth.basis.pullback(dreamed.jacobian()["value@2"])
    alone = PlantedSimulator(replace(OPTIONS, effect=1.0))
    assert torch.allclose(grad[:, 1], torch.zeros(6), atol=1e-6), "the nuisance reaches nothing"
    # Agent alone: cause .5^2, memory .25 * (.75^2 - .5^2) / (.75 - .5) * .25; the world adds its part through actions.
    assert (grad[:, 0] > 0.2).all() and alone.agent.hidden_size == 8


def test_batching_controls_changes_no_number(planted):
    simulator, planted_truth = planted
    _, dreamed = worlds(simulator)
    groups = [Shift(planted_truth.basis, (i,), (1.0,)) for i in range(5)]
    one, many = dreamed.measure(groups), dreamed.measure(groups, starts=12)
    few = dreamed.measure(groups, starts=4)
    for q in one:
        np.testing.assert_allclose(one[q], many[q], atol=1e-5, err_msg=q)
        np.testing.assert_allclose(one[q][:, :4], few[q], atol=1e-5, err_msg=q)


# The parts


def test_random_directions_are_arbitrary_and_of_equal_size(planted):
    _, planted_truth = planted
    basis = replace_std(planted_truth.basis, torch.linspace(0.5, 2, 8))
    units = random_units(basis, 2000, torch.Generator().manual_seed(0))
    h = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    for inner in (Shift(basis, (2,), (-1.5,)), Nullspace(basis, (2,))):
        own = changes(inner, h) / basis.std_H
        for unit in units[:5]:
            other = changes(Redirect(inner, basis, 2, unit), h) / basis.std_H
            torch.testing.assert_close(other.norm(dim=1), own.norm(dim=1), rtol=1e-4, atol=1e-5)
    # Isotropic, the tested direction not left out: no preferred side, and an eighth of each along any axis.
    assert units.mean(0).norm() < 0.06
    along = (units @ torch.nn.functional.normalize(basis.lift_KH[2], dim=0)) ** 2
    assert float(along.mean()) == pytest.approx(1 / 8, abs=0.015)


def test_an_arbitrary_direction_leaves_the_band_in_one_case_of_twenty(planted):
    """Linear effects of directions drawn alike; with controls at right angles to the tested it was one of ten."""
    basis, generator = planted[1].basis, torch.Generator().manual_seed(0)
    effects = random_units(basis, 51 * 2000, generator)[:, 0].reshape(2000, 51).numpy()
    bands = np.array([band_of(row[1:], 0.05) for row in effects])
    outside = (effects[:, 0] < bands[:, 0]) | (effects[:, 0] > bands[:, 1])
    assert outside.mean() == pytest.approx(0.05, abs=0.013)  # standard error 0.005


def replace_std(basis, std):
    return type(basis)(basis.kind, basis.mean_H, std, basis.project_HK, basis.lift_KH, basis.agent)


def test_redirecting_along_the_own_direction_is_the_intervention(planted):
    _, planted_truth = planted
    basis = planted_truth.basis
    h = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    own = torch.nn.functional.normalize(basis.lift_KH[3], dim=0)
    for inner in (Shift(basis, (3,), (-2.0,)), Nullspace(basis, (3,))):
        torch.testing.assert_close(changes(Redirect(inner, basis, 3, own), h), changes(inner, h))


def test_collapse_and_keep_only_are_complements(planted):
    _, planted_truth = planted
    basis = planted_truth.basis
    h, mask = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), torch.ones(4, dtype=torch.bool)
    collapsed, kept = Nullspace(basis, (1,))(h, 0, mask), KeepOnly(basis, 1)(h, 0, mask)
    torch.testing.assert_close(collapsed + kept, h + basis.mean_H)
    torch.testing.assert_close(basis.project(kept)[:, 1], basis.project(h)[:, 1])


def test_rows_outside_the_mask_stay(planted):
    _, planted_truth = planted
    basis = planted_truth.basis
    h, mask = torch.randn(4, 8), torch.tensor([True, False, True, False])
    shift = Shift(basis, (0,), (1.0,))
    for one in (
        Become(torch.zeros(4, 8)),
        KeepOnly(basis, 0),
        Redirect(shift, basis, 0, torch.ones(8)),
        Blocks((shift, shift)),
    ):
        out = one(h, 0, mask)
        assert torch.equal(out[~mask], h[~mask]) and not torch.equal(out[mask], h[mask])


def test_quantities_by_hand():
    logits = torch.zeros(1, 3, 3)
    logits[0, 2, 2] = 100.0
    course = Course(
        logits, torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[10.0, 20.0]]), torch.tensor([[1.0, 1.0, 0.5]])
    )
    q = {k: float(v) for k, v in quantities(course, {"a": [0, 1], "b": [2]}).items()}
    assert q["value"] == 1 and q["value@2"] == 2 and q["reward@2"] == 30 and q["return@2"] == 32 and q["ended@2"] == 0.5
    assert q["logit:a"] == pytest.approx(np.log(2)) and q["prob:b"] == pytest.approx(1 / 3)
    assert q["prob:b@1..2"] == pytest.approx((1 / 3 + 0.5) / 2) and q["prob:a@1..2"] == pytest.approx((2 / 3 + 0) / 2)


def test_distinct_actions_of_the_planted_world(planted):
    simulator, _ = planted
    real, _ = worlds(simulator, count=4)
    assert distinct_actions(real.env, real.starts) == {"left": [0], "wait": [1], "right": [2]}

    class Same(PlantedWorld):
        def step(self, action):
            return super().step(np.where(action == 0, 1, action))

    assert distinct_actions(Same(OPTIONS, 4), real.starts) == {"left": [0, 1], "right": [2]}


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (dict(observed=2, low=1, high=3, q=0.01, predicted=1, band=(-0.5, 0.5)), "confirmed"),
        (dict(observed=2, low=1, high=3, q=0.01, predicted=-1, band=(-0.5, 0.5)), "refuted"),
        (dict(observed=2, low=1, high=3, q=0.20, predicted=1, band=(-0.5, 0.5)), "inconclusive"),
        (dict(observed=2, low=1, high=3, q=0.01, predicted=1, band=(-2.5, 2.5)), "inconclusive"),
        (dict(observed=2, low=1, high=3, q=0.01, predicted=1, band=(-4, 4)), "refuted"),
        (dict(observed=0, low=-0.1, high=0.1, q=0.9, predicted=1, band=(-0.5, 0.5)), "refuted"),
        (dict(observed=0, low=-9, high=9, q=0.9, predicted=1, band=(-0.5, 0.5)), "inconclusive"),
        (dict(observed=2, low=1, high=3, q=0.01, predicted=0, band=(-0.5, 0.5)), "inconclusive"),
    ],
)
def test_verdicts(case, said):
    assert verdict(**case) == said


def test_agreement_and_slopes_by_hand():
    same, rank, slope = agreement(np.array([1.0, -2.0, 3.0]), np.array([2.0, -4.0, 6.0]))
    assert (same, rank, slope) == pytest.approx((1, 1, 2))
    same, rank, slope = agreement(np.array([1.0, -2.0, 3.0]), -np.array([2.0, -4.0, 6.0]))
    assert (same, rank, slope) == pytest.approx((0, -1, -2))
    assert np.isnan(agreement(np.zeros(3), np.ones(3))[1:]).all()
    hypotheses = hypotheses_of((4, 5), (-1.0, 2.0))
    effect = np.array([[-3.0], [6.0], [0.0], [0.0], [9.0], [9.0], [9.0], [9.0]])
    assert dose_slopes(effect, hypotheses, 4) == pytest.approx([3.0])
    assert dose_slopes(effect, hypotheses, 5) == pytest.approx([0.0])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"directions": ("1", "1")}, "twice"),
        ({"directions": ("a",)}, "whole number"),
        ({"directions": ()}, "no direction"),
        ({"directions": ("largest",)}, "takes one number"),
        ({"directions": ("largest", "0")}, "takes one number"),
        ({"amounts": (0.0,)}, "other than 0"),
        ({"amounts": (1.0, float("nan"))}, "finite"),
        ({"amounts": (1.0, 1.0)}, "twice"),
        ({"horizon": 0}, "--horizon"),
        ({"starts": 4}, "at least 6"),
    ],
)
def test_bad_settings_are_user_errors(flags, said, tmp_path):
    with pytest.raises(UserError, match=said):
        check(InterventionsConfig(simulator=tmp_path, hidden_states=tmp_path, **flags))
