"""Target functions on the planted world, where the direction of steepest ascent has a closed form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from analysis.shared import strips
from analysis.target_functions import __main__ as tf, figures, search
from analysis.target_functions.config import TargetFunctionsConfig
from analysis.target_functions.population import Population, Starts, random_starts
from analysis.target_functions.targets import Target, find_targets, log_of_ending
from core.contracts import EnvSpec, UserError
from core.directions import Basis
from core.files import Spool
from core.roll import Simulator, Trajectory
from envs.planted import PlantedModel, PlantedOptions, matrices, planted_simulator, spec_of
from envs.planted_truth import truth
from envs.procgen import ProcgenEnv, ProcgenOptions

CAUSE, NUISANCE = 0, 1  # directions of the planted world
PLANTED = spec_of(PlantedOptions(), 1)
STEPS, FIRST = 6, 2
CONFIG = TargetFunctionsConfig(steps=STEPS, first_step=FIRST, samples=6, screen=1, iterations=30, noisy=3, video=False)


def no_basis(kind: str) -> Basis:
    raise UserError(f"{kind} needs --hidden_states")


@pytest.fixture(scope="module")
def planted_32() -> Simulator[PlantedModel]:
    return planted_simulator()


@pytest.fixture(scope="module")
def planted() -> Simulator[PlantedModel]:
    return planted_simulator(dtype=torch.float64)


def targets(maximise: tuple[str, ...] = (), minimise: tuple[str, ...] = (), first: int = FIRST) -> list[Target]:
    known = truth(dtype=torch.float64)
    return find_targets(maximise, minimise, first, PLANTED, lambda kind: known.basis)


def latents(simulator: Simulator[PlantedModel], count: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, simulator.world.latent_size, generator=g, dtype=torch.float64)


def round_population(simulator: Simulator[PlantedModel], count: int = 400) -> Population:
    """The prior itself: mean 0, covariance exactly 1."""
    z, eye = latents(simulator, count, seed=7), torch.eye(simulator.world.latent_size, dtype=torch.float64)
    return Population(z, torch.zeros_like(eye[0]), eye, z.square().mean(1))


def slope_of_mean(read_K: np.ndarray, first: int = FIRST, steps: int = STEPS) -> np.ndarray:
    """d mean over steps first..steps of read . c_t / d z with the actions held, z = (x_0, h before it):
    c_t = W^(t+1) c_before + sum_k W^(t-k) U A^k x_0, and c = R' h."""
    m = matrices(PlantedOptions())
    power = np.linalg.matrix_power
    on_x, on_c = np.zeros(len(m.A_XX)), np.zeros(len(m.W_KK))
    for t in range(first, steps + 1):
        on_x += read_K @ sum(power(m.W_KK, t - k) @ m.U_KX @ power(m.A_XX, k) for k in range(t + 1))
        on_c += read_K @ power(m.W_KK, t + 1)
    return np.concatenate([on_x, on_c @ m.R_HK.T]) / (steps + 1 - first)


def gradient(simulator: Simulator[PlantedModel], target: Target, z: Tensor, env_grads: bool = False) -> Tensor:
    z = z.clone().requires_grad_()
    (g,) = torch.autograd.grad(target.read(simulator.rollout(z, STEPS, env_grads=env_grads)).sum(), z)
    return g


# Names


def test_names_signs_and_units() -> None:
    found = targets(("value_drop", "planted_3", "right"), ("value", "terminal"))
    assert [t.label for t in found] == ["value_drop_up", "planted:3_up", "right_up", "value_down", "terminal_down"]
    assert [t.unit for t in found] == ["return", "coordinate", "nats", "return", "nats"]


@pytest.mark.parametrize(
    ("maximise", "minimise", "first", "message"),
    [
        ((), (), 1, "name a target"),
        (
            ("value_dorp",),
            (),
            1,
            r"--maximise: no target 'value_dorp' \(did you mean value_drop\?\).*leftwards.*ica:ID",
        ),
        ((), ("leftward",), 1, r"--minimise: no target 'leftward' \(did you mean leftwards\?\)"),
        (("value", "value"), (), 1, "'value_up' is named twice"),
        (("value_delta",), (), 0, "--first_step 1 or later"),
        (("ica_0",), (), 1, "needs --hidden_states"),
    ],
)
def test_mistaken_names(maximise: tuple[str, ...], minimise: tuple[str, ...], first: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_targets(maximise, minimise, first, ProcgenEnv(ProcgenOptions(), 1).spec, no_basis)


def test_the_same_name_may_go_both_ways() -> None:
    assert [t.sign for t in targets(("value",), ("value",))] == [1, -1]


# What a target reads


def some_trajectory(batch: int = 3) -> Trajectory:
    g = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=g, dtype=torch.float64)

    alive = torch.ones(batch, 5, dtype=torch.bool)
    alive[1, 4:] = False  # ended on the way to step 4
    alive[2, 1:] = False
    action = torch.randint(0, 3, (batch, 5), generator=g)
    p = draw(4).sigmoid()
    out = Trajectory(
        {"x": draw(5, 8)},
        draw(5, 8),
        draw(5, 8),
        draw(5, 3),
        draw(5),
        action,
        draw(4),
        p,
        draw(4, 2),
        alive,
        draw(5, 0),
        (),
    )
    return out._replace(state=out.h)


def test_steps_that_do_not_exist_count_for_nothing() -> None:
    """Every target against a loop over the steps there are, from step 2; and what comes after an ending changes
    no bit of it."""
    out = some_trajectory()
    found = {t.name: t.read(out) for t in targets(("value", "value_delta", "value_drop", "value_rise", "reward",
                                                  "terminal", "right", "action"))}  # fmt: skip
    v, logp = out.value, out.logits.log_softmax(-1)
    for b, last in ((0, 4), (1, 3)):
        steps = range(2, last + 1)
        assert found["value"][b] == pytest.approx(float(np.mean([v[b, t] for t in steps])))
        assert found["value_delta"][b] == pytest.approx(float(np.mean([v[b, t] - v[b, t - 1] for t in steps])))
        assert found["value_drop"][b] == -found["value_rise"][b] == v[b, 2] - v[b, last]
        assert found["right"][b] == pytest.approx(float(np.mean([logp[b, t, 2] for t in steps])))
        assert found["action"][b] == pytest.approx(float(np.mean([logp[b, t, out.action[b, t]] for t in steps])))
        into = range(1, min(last + 1, 4))  # transitions that led to step 2 and after, the fatal one too
        assert found["reward"][b] == pytest.approx(float(sum(out.reward[b, t] for t in into)))
        ending = 1 - np.prod([1 - out.terminal[b, t] for t in into])
        assert found["terminal"][b] == pytest.approx(float(np.log(ending)))
    for name in ("value", "value_delta", "value_drop", "right", "action"):
        assert found[name][2].isnan(), name  # it ended before step 2
    dead = ~out.alive
    changed = out._replace(
        value=torch.where(dead, 99.0, out.value),
        logits=torch.where(dead[..., None], torch.tensor([9.0, 0, -9]).double(), out.logits),
        reward=torch.where(out.alive[:, :-1], out.reward, 99.0),
    )
    half = out._replace(alive=torch.tensor([[True, True, True, False, False]] * 3))
    assert targets(("value",), first=2)[0].read(half).isnan().all()  # lives through 1 of 3 steps
    assert not targets(("value",), first=1)[0].read(half).isnan().any()  # 2 of 4
    for t in targets(tuple(found)):
        torch.testing.assert_close(t.read(changed), found[t.name], rtol=0, atol=0, equal_nan=True)


def test_an_unreadable_rollout_has_no_gradient_and_harms_no_other() -> None:
    out = some_trajectory()
    value = out.value.clone().requires_grad_()
    for target in targets(("value", "value_drop")):
        y = target.read(out._replace(value=value))
        (g,) = torch.autograd.grad(torch.where(y.isnan(), 0, y).sum(), value)
        assert g.isfinite().all() and (g[2] == 0).all() and (g[1, 4:] == 0).all() and g[0].abs().max() > 0


def test_a_sure_ending_and_an_impossible_one_have_finite_gradients() -> None:
    p = torch.tensor([[1.0, 0.5], [0.0, 0.0], [0.0, 1e-9]], dtype=torch.float64, requires_grad=True)
    y = log_of_ending(p)
    (g,) = torch.autograd.grad(y.sum(), p)
    y = y.detach()
    assert y.isfinite().all() and g.isfinite().all() and y[0] == pytest.approx(0, abs=1e-5)
    assert y[2] == pytest.approx(np.log(1e-9), abs=1e-2) and g[2, 1] > 1e8  # nats: small chances still have a slope


# Steepest ascent


@pytest.mark.parametrize("name", ["value", "planted_0", "planted_3"])
def test_the_gradient_is_the_closed_form(planted: Simulator[PlantedModel], name: str) -> None:
    known = truth(dtype=torch.float64)
    read = known.value_K if name == "value" else np.eye(8)[int(name[-1])]
    expected = torch.from_numpy(slope_of_mean(read))
    (target,) = targets((name,))
    z = latents(planted, 5)
    torch.testing.assert_close(gradient(planted, target, z), expected.expand(5, -1))
    # Linear: a small move changes the target by just that, where it changes no action.
    step = 1e-4 * latents(planted, 5, seed=2)
    was, now = (planted.rollout(x, STEPS) for x in (z, z + step))
    assert torch.equal(was.action, now.action)
    torch.testing.assert_close(target.read(now) - target.read(was), step @ expected, rtol=1e-6, atol=1e-12)


def test_env_grads_adds_the_way_through_the_actions(planted: Simulator[PlantedModel]) -> None:
    (target,) = targets(("value",))
    z = latents(planted, 5)
    assert (gradient(planted, target, z, True) - gradient(planted, target, z, False)).abs().max() > 1e-3


def test_a_drop_of_value_is_the_slope_at_its_ends(planted: Simulator[PlantedModel]) -> None:
    (target,) = targets(("value_drop",))
    known = truth()
    expected = slope_of_mean(known.value_K, FIRST, FIRST) - slope_of_mean(known.value_K, STEPS, STEPS)
    torch.testing.assert_close(gradient(planted, target, latents(planted, 2)), torch.from_numpy(expected).expand(2, -1))


# Optimisation


def test_free_of_charge_only_what_causes_the_target_moves(planted: Simulator[PlantedModel]) -> None:
    """The nuisance's stimulus, which a probe decodes from h as well as the cause's, stays where it was."""
    (target,) = targets(("value",))
    z, config = latents(planted, 6), replace(CONFIG, prior_weight=0.0)
    found = search.optimise(planted, target, z, round_population(planted), 1.0, config)
    moved = found.z_RZ - z
    assert moved[:, NUISANCE].abs().max() < 1e-12 and (moved[:, CAUSE] > 0.5).all()
    assert (found.y_IR[-1] > found.y_IR[0] + 0.5).all()


def test_up_and_down_are_opposite(planted: Simulator[PlantedModel]) -> None:
    z, population, free = latents(planted, 6), round_population(planted), replace(CONFIG, prior_weight=0.0)
    both = targets(("planted_0",), ("planted_0",))
    up, down = (search.optimise(planted, t, z, population, 1.0, free).y_IR for t in both)
    assert (up[-1] > up[0] + 0.5).all() and (down[-1] < down[0] - 0.5).all()
    assert torch.equal(up[0], down[0])


def test_a_dear_prior_leads_along_the_steepest_direction(planted: Simulator[PlantedModel]) -> None:
    """On a sphere the best place of a linear target is its gradient's direction."""
    (target,) = targets(("value",))
    population, slope = round_population(planted), torch.from_numpy(slope_of_mean(truth().value_K))
    z = latents(planted, 6)
    config = replace(CONFIG, iterations=400, learning_rate=0.2, prior_weight=30.0, env_grads=False)
    found = search.optimise(planted, target, z, population, 0.1, config)

    def cosine(x: Tensor) -> Tensor:
        return torch.nn.functional.cosine_similarity(x, slope[None], dim=1)

    assert (cosine(found.z_RZ) > 0.97).all() and cosine(z).max() < 0.7
    assert population.excess(found.z_RZ).max() < 1


def test_the_price_keeps_it_near(planted: Simulator[PlantedModel]) -> None:
    (target,) = targets(("value",))
    z, population = latents(planted, 6), round_population(planted)
    far = [
        population.distance(search.optimise(planted, target, z, population, 0.2, replace(CONFIG, prior_weight=w)).z_RZ)
        for w in (0.0, 1.0, 30.0)
    ]
    assert far[0].mean() > far[1].mean() > far[2].mean()


def test_the_best_on_the_way_is_kept(planted: Simulator[PlantedModel]) -> None:
    """A step size that overshoots makes the last worse than the best."""
    (target,) = targets(("value_drop",))
    z, population = latents(planted, 6), round_population(planted)
    config = replace(CONFIG, learning_rate=5.0, prior_weight=1.0)
    found = search.optimise(planted, target, z, population, 0.3, config)
    price = population.excess(found.z_RZ) ** 2 / 2
    kept = target.read(planted.rollout(found.z_RZ, STEPS)) / 0.3 - price
    torch.testing.assert_close(kept, found.objective_R)
    last = found.y_IR[-1] / 0.3  # without its price, an upper bound
    assert (found.objective_R >= found.y_IR[0] / 0.3 - population.excess(z) ** 2 / 2 - 1e-9).all()
    assert (found.objective_R < last).sum() < 6


def test_rows_do_not_touch_each_other(planted: Simulator[PlantedModel]) -> None:
    (target,) = targets(("value",))
    z, population = latents(planted, 4), round_population(planted)
    together = search.optimise(planted, target, z, population, 1.0, CONFIG)
    alone = search.optimise(planted, target, z[2:3], population, 1.0, CONFIG)
    torch.testing.assert_close(alone.z_RZ[0], together.z_RZ[2])


def test_restarts_never_do_worse(planted: Simulator[PlantedModel]) -> None:
    (target,) = targets(("value_drop",))
    population = round_population(planted)
    z = latents(planted, 4)
    starts = Starts(z, np.full((4, 2), -1), np.arange(4), population)
    found = [
        search.optimise_all(planted, target, starts, 0.3, replace(CONFIG, iterations=5, restarts=r, memory_gb=m), print)
        for r, m in ((1, 1.0), (4, 1.0), (4, 1e-9))
    ]
    assert found[0].z_RZ.shape == found[1].z_RZ.shape
    assert (found[1].objective_R >= found[0].objective_R).all()
    assert (found[1].objective_R > found[0].objective_R).any()
    torch.testing.assert_close(found[1].z_RZ, found[2].z_RZ)  # one row at a time comes to the same


# Population


def test_population_is_round_in_its_own_coordinates() -> None:
    g = torch.Generator().manual_seed(0)
    mix = torch.randn(5, 5, generator=g, dtype=torch.float64)
    z = 3 + torch.randn(4000, 5, generator=g, dtype=torch.float64) @ mix.T
    population = Population.of(z)
    u = population.inwards(z)
    torch.testing.assert_close(population.outwards(u), z)
    torch.testing.assert_close(torch.cov(u.T), torch.eye(5, dtype=torch.float64), atol=0.06, rtol=0)
    assert population.distance_N.mean() == pytest.approx(1, abs=0.02)
    share = population.nearer_share(torch.stack([z.mean(0), z.mean(0) + 100, z[0]]))
    assert share[0] == 0 and share[1] == 100
    assert share[2] == pytest.approx(100 * float((population.distance_N < population.distance_N[0]).double().mean()))


def test_excess_is_paid_outside_only() -> None:
    z = torch.randn(500, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    population = Population.of(z)
    assert population.excess(population.mean_Z[None])[0] == 0
    typical, sd = population.distance_N.mean(), population.distance_N.std()
    out = population.outwards((4 * (typical + 2 * sd)).sqrt() * torch.eye(4, dtype=torch.float64)[:1])
    assert population.excess(out)[0] == pytest.approx(2)


# The whole of it


def test_the_best_of_a_screen_is_the_start() -> None:
    z = torch.arange(6.0)[:, None]
    starts = Starts(z, np.stack([np.arange(6), np.zeros(6, int)], 1), np.arange(6), Population(z, z, z, z))
    best = starts.best(np.array([1.0, 3, 2, np.nan, -5, np.nan]), 3)
    assert best.z_SZ[:, 0].tolist() == [1, 4] and best.unit_S.tolist() == [1, 4]
    assert best.where_S2[:, 0].tolist() == [1, 4]


def test_against_the_best_of_as_many_untrained(planted_32: Simulator[PlantedModel]) -> None:
    """A linear target is climbed far past luck, and the record says so."""
    chosen = targets(("value", "planted_5"), ("value_drop",))
    config = replace(CONFIG, samples=8, iterations=100, screen=4)
    starts = random_starts(planted_32, 8 * 4, 8 * 105, 0, torch.device("cpu"))
    result = search.compute(planted_32, chosen, starts, config)
    assert result.arrays["y_value_up"].shape == (101, 8) and result.arrays["control_value_up"].shape == (8, 105)
    for row in result.tables["targets"]:
        assert row["n"] == 8 and row["over_control_low"] > 0 and row["q"] < 0.05, row["target"]
        assert row["noisy_gain"] > 0.5 * row["gain"]  # a linear world's noise changes no mean
    rows = [r for r in result.tables["samples"] if r["target"] == "value"]
    for target in chosen:  # each began from the best of its four
        y = search.read_all(planted_32, [target], starts.z_SZ, STEPS, lambda n: None)[0].reshape(8, 4)
        first = result.arrays[f"y_{target.label}"][0]
        np.testing.assert_allclose(first, y.max(1) if target.sign > 0 else y.min(1), atol=1e-4)
    for s, r in enumerate(rows):
        assert r["before"] == pytest.approx(float(result.arrays["y_value_up"][0, s]), abs=1e-4)
        assert r["after"] <= result.arrays["y_value_up"][:, s].max() + 1e-4
        assert r["control"] == pytest.approx(float(result.arrays["control_value_up"][s].max()))
        assert r["gain"] == pytest.approx(r["after"] - r["before"])
    down = [r for r in result.tables["samples"] if r["sense"] == "down"]
    assert all(r["after"] < r["control"] < r["before"] or r["control"] > r["before"] for r in down)
    assert all(r["control"] == result.arrays["control_value_drop_down"][s].min() for s, r in enumerate(down))


def test_frames_go_to_the_disk_batch_by_batch(
    planted_32: Simulator[PlantedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, config = targets(("value",), ("value_drop",)), replace(CONFIG, samples=5, iterations=2)
    starts = random_starts(planted_32, 5, 5 * 4, 0, torch.device("cpu"))
    whole = search.compute(planted_32, chosen, starts, config)
    monkeypatch.setattr(search, "BATCH", 2)
    with Spool(tmp_path) as spool:
        result = search.compute(planted_32, chosen, starts, config, spool)
        assert len(result.spooled) == 4 and not result.spooled.keys() & result.arrays.keys()
        result.save(tmp_path)
    with np.load(tmp_path / "arrays.npz") as saved:
        assert set(saved) == set(whole.arrays)
        for name, x in whole.arrays.items():
            np.testing.assert_allclose(saved[name], x, rtol=1e-4, atol=1e-5, err_msg=name)
    for row, other in zip(result.tables["samples"], whole.tables["samples"], strict=True):
        assert row["noisy_after"] == pytest.approx(other["noisy_after"], abs=1e-4)


def test_nothing_to_optimise_is_said(planted_32: Simulator[PlantedModel]) -> None:
    constant = Target("constant", 1, "x", lambda out: 0 * out.value, lambda y, alive: y.sum(1))
    starts = random_starts(planted_32, 2, 2 * 4, 0, torch.device("cpu"))
    rounding = replace(constant, trace=lambda out: 1 + 1e-9 * out.value)
    for nothing in (constant, rounding):
        with pytest.raises(UserError, match="constant is the same for every latent"):
            search.compute(planted_32, [nothing], starts, replace(CONFIG, samples=2, iterations=2))


def ends_early(readable: int) -> Target:
    """The mean value, of a world in which all but the first ``readable`` of the rollouts side by side end at once."""

    def total(y: Tensor, alive: Tensor) -> Tensor:
        return y.mean(1).masked_fill(torch.arange(len(y)) >= readable, torch.nan)

    return Target("fleeting", 1, "return", lambda out: out.value, total)


@pytest.mark.parametrize("readable", [0, 1, 3])
def test_a_target_that_cannot_be_read_is_an_empty_row_with_its_reason(
    planted_32: Simulator[PlantedModel], tmp_path: Path, readable: int
) -> None:
    """Beside one that can: no NaN in a table, no warning from a mean of nothing, figures of what there is."""
    config = replace(CONFIG, samples=4, iterations=2)
    targets_ = [ends_early(readable), *targets(("value",))]
    starts = random_starts(planted_32, 4, 4 * 4, 0, torch.device("cpu"))
    result = search.compute(planted_32, targets_, starts, config)
    fleeting, value = result.tables["targets"]
    assert value["reason"] == "" and value["n"] == 4 and tf.in_words(value, 4).startswith(f"{value['before']:.3g} -> ")
    if readable < 2:
        said = f"can be read in {readable} of 16 rollouts, the others end too early"
        assert result.notes["left_out"]["fleeting_up"].startswith(said)
        assert list(result.notes["targets"]) == ["value_up"]
        assert {fleeting[k] for k in ("before", "after", "gain", "over_control", "p", "q")} == {None}
        assert tf.in_words(fleeting, 4) == fleeting["reason"] == result.notes["left_out"]["fleeting_up"]
    else:
        assert fleeting["n"] == 1 and fleeting["reason"] == "3 of 4 starts end too early to be compared"
        samples = [r for r in result.tables["samples"] if r["target"] == "fleeting" and r["over_control"] is not None]
        assert [fleeting[k] for k in ("after", "control")] == [samples[0][k] for k in ("after", "control")]
        assert fleeting["over_control"] == pytest.approx(fleeting["after"] - fleeting["control"])
        assert fleeting["before"] is not None and fleeting["reason"] in tf.in_words(fleeting, 4)
        rows = [r for r in result.tables["samples"] if r["target"] == "fleeting"]
        assert [r["over_control"] is None for r in rows] == [False, True, True, True]
        assert rows[3]["after"] is None and "the rollout before, the rollout after" in rows[3]["reason"]
    figures.draw(result, tmp_path, PLANTED, 1, False)
    result.save(tmp_path)
    assert ",nan" not in (tmp_path / "targets.csv").read_text() + (tmp_path / "result.json").read_text()
    with pytest.raises(UserError, match="fleeting can be read in 0 of 16"):
        search.compute(planted_32, [ends_early(0)], starts, config)


@pytest.mark.parametrize("name", ["memory_gb", "learning_rate"])
def test_what_must_be_above_0_is_refused(name: str) -> None:
    tf.check(CONFIG)
    with pytest.raises(UserError, match=f"--{name} must be above 0, not -1"):
        tf.check(replace(CONFIG, **{name: -1.0}))


def test_a_population_of_one_latent_is_refused() -> None:
    with pytest.raises(UserError, match="tells no window from another: all 5 latents are the same"):
        Population.of(torch.full((5, 3), 0.25))


LEFT = EnvSpec(env_id="x", obs={}, action_names=("left",), slots=1)


def test_an_ended_step_is_drawn_blank() -> None:
    from core.artefacts import Result

    frames = np.zeros((1, 4, 64, 64, 3), np.uint8)
    alive = np.array([[True, True, False, False]])
    each = {"frames": frames, "alive": alive, "action": np.zeros((1, 4), int), "value": np.zeros((1, 4))}
    arrays = {f"{k}_{when}": v for when in ("before_value_up", "after_value_up") for k, v in each.items()}
    arrays |= {"trace_before_value_up": np.zeros((1, 4)), "trace_after_value_up": np.zeros((1, 4))}
    row = {"target": "value", "sense": "up", "sample": 0, "before": 0.0, "after": 1.0, "control": 0.5}
    notes = {"field": "frames", "first_step": 1, "tries": 3, "targets": {
        "value_up": {"name": "value", "sign": 1, "unit": "return"}}}  # fmt: skip
    result = Result(arrays=arrays, tables={"samples": [row]}, notes=notes)
    shown = figures.shown_of(result, 0, "value_up", "after", LEFT)
    assert (shown.frames[:2] == 0).all() and (shown.frames[2:] == figures.ENDED).all()
    assert (frames == 0).all()
    strip = np.asarray(figures.draw_strip(result, 0, "value_up", LEFT))
    x = [strips.LABEL + t * (strips.TILE + strips.GAP) + 20 for t in range(4)]
    assert (strip[28 + 30 + 20, x[1]] == 0).all() and (strip[28 + 30 + 20, x[2]] == figures.ENDED).all()
    videos = figures.video_frames(result, 0, "value_up", LEFT)
    assert len(videos) == 4 and videos[0].shape == (320, 512, 3)
