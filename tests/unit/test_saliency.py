"""Saliency: gradients that are what they say, quantities by name, and the checks that go with them."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from agents.recurrent import AgentConfig, RecurrentAgent
from analysis.saliency import checks, explain, figures, randomisation
from analysis.saliency.__main__ import parse_sample_ids
from analysis.saliency.attributions import deeplift, explainer, integrated, latent, occlusion
from analysis.saliency.config import SaliencyConfig
from analysis.saliency.frame import Attribution, Frame, quietly
from analysis.saliency.maps import MapsWriter
from analysis.saliency.randomisation import rank_correlation
from analysis.saliency.tables import said_of_constant, said_of_parts, summarise
from analysis.shared import bases, strips
from analysis.shared.gradients import Gradients, agent_gradients, gradients, saved_bytes, unroll
from analysis.shared.quantities import Quantity, Reading, find_quantities
from analysis.shared.randomised import randomised, randomised_world
from analysis.target_functions.targets import find_targets
from core.artefacts import Result
from core.contracts import EnvSpec, UserError
from core.directions import Basis
from core.figures import NEGATIVE, POSITIVE, rgb
from core.files import Spool
from core.interventions import AddVector, AtSteps
from core.roll import Simulator, act, choose
from core.stats import bootstrap_mean
from core.trees import flatten
from envs.planted import PlantedModel, planted_simulator, record_planted
from envs.planted_truth import truth
from envs.procgen import ACTION_NAMES, ProcgenEnv, ProcgenOptions
from generative.recurrent_world import RSSMWorld
from generative.rssm import ModelConfig
from generative.simulator import as_module, simulator_of

SPEC = ProcgenEnv(ProcgenOptions(), 1).spec
OTHER = replace(SPEC, env_id="other/world", action_names=("stay", "go"), same_actions=(), action_words={})
TARGET, STEPS = 3, 5


def no_basis(kind: str) -> Basis:
    raise UserError(f"{kind} needs --hidden_states")


def some_basis(size: int, k: int = 3) -> Basis:
    g = torch.Generator().manual_seed(2)
    project = torch.randn(size, k, generator=g, dtype=torch.float64)
    return Basis("ica", torch.zeros(size).double(), torch.ones(size).double(), project, torch.linalg.pinv(project))


@pytest.fixture(scope="module")
def learned() -> Simulator[RSSMWorld]:
    """An untrained simulator, with actions and worlds that differ from step to step."""
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=5), SPEC)
    torch.nn.init.normal_(agent.policy.weight, std=2.0)
    sizes = {"deterministic_size": 12, "hidden_size": 16, "groups": 3, "classes": 4, "depth": 2, "latent_size": 6}
    simulator = simulator_of(ModelConfig(head_layers=1, **sizes), agent)
    torch.nn.init.normal_(simulator.world.decoder.first.weight, std=1.0)  # type: ignore[arg-type,union-attr]
    for part in (agent, simulator.world):
        part.double().eval().requires_grad_(False)
    return simulator


@pytest.fixture(scope="module")
def planted() -> Simulator[PlantedModel]:
    return planted_simulator(dtype=torch.float64)


def latents(simulator: Simulator[Any], batch: int = 3) -> Tensor:
    g = torch.Generator().manual_seed(1)
    return simulator.world.normalise(torch.randn(batch, simulator.world.latent_size, generator=g, dtype=torch.float64))


def chosen(simulator: Simulator[Any], z: Tensor, target: int = TARGET) -> Tensor:
    return simulator.rollout(z, STEPS).action[:, target]


# Names


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["33", "39", "56", "84"], [33, 39, 56, 84]),
        (["0", "to", "8"], [0, 1, 2, 3, 4, 5, 6, 7]),
        (["5", "0", "to", "3", "9"], [5, 0, 1, 2, 9]),
        (["99"], [99]),
    ],
)
def test_sample_ids(words: list[str], ids: list[int]) -> None:
    assert parse_sample_ids(words, 100) == ids


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["100"], r"no sample 100; there are 100 \(0 to 99\)"),
        (["-1"], "no sample -1"),
        (["95", "to", "101"], "no sample 100"),
        (["8", "to", "8"], "A < B"),
        (["8", "to"], "A < B"),
        (["to", "8"], "'to' is not a whole number"),
        (["x"], "'x' is not a whole number"),
        (["1", "1"], "sample 1 twice"),
        ([], "empty"),
    ],
)
def test_sample_ids_that_do_not_exist(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_sample_ids(words, 100)


def test_an_unknown_quantity_lists_those_that_exist() -> None:
    with pytest.raises(UserError, match=r"no quantity 'valu' \(did you mean value\?\).*jumping_left.*upright.*ica:ID"):
        find_quantities(["valu"], SPEC, no_basis)
    with pytest.raises(UserError, match="no quantity 'leftwards'"):
        find_quantities(["leftwards"], OTHER, no_basis)
    with pytest.raises(UserError, match="'key_e' does the same as 'none' in this world: ask for none"):
        find_quantities(["key_e"], SPEC, no_basis)
    with pytest.raises(UserError, match="'prob:up': here an action's log-probability goes by its name alone: up"):
        find_quantities(["prob:up"], SPEC, no_basis)
    with pytest.raises(UserError, match="twice"):
        find_quantities(["value", "value"], SPEC, no_basis)
    basis = some_basis(8, 5)
    words = ["ica:1", "ica_2", "direction_3", "direction:0", "4"]
    names = [q.name for q in find_quantities(words, SPEC, lambda kind: basis)]
    assert names == ["ica:1", "ica:2", "ica:3", "ica:0", "ica:4"]
    with pytest.raises(UserError, match="twice"):
        find_quantities(["ica:1", "ica_1"], SPEC, lambda kind: basis)
    with pytest.raises(UserError, match="needs --hidden_states"):
        find_quantities(["direction_0"], SPEC, bases.bases_in(None, "", torch.device("cpu")))
    with pytest.raises(UserError, match="direction ica:3 does not exist: the ica basis has 0 to 2"):
        find_quantities(["ica_3"], SPEC, lambda kind: some_basis(5))


def test_captums_notes_of_any_field_are_left_out() -> None:
    """A world of more than ten fields (Craftax's full game) printed one for each beyond the tenth."""
    with quietly():
        for field in (3, 10, 11):
            warnings.warn(f"Input Tensor {field} did not already require gradients, ...", UserWarning, stacklevel=1)


def test_an_action_called_by_a_number_is_told_from_a_direction(capsys: pytest.CaptureFixture[str]) -> None:
    spec = replace(SPEC, action_names=tuple(map(str, range(len(SPEC.action_names)))), same_actions=(), action_words={})
    found = find_quantities(["1", "ica:1"], spec, lambda kind: some_basis(8, 5))
    assert [q.unit for q in found] == ["nats", "coordinate"]
    assert capsys.readouterr().err == "note: '1' is the action of that name; the direction is ica:1\n"
    find_quantities(["1"], SPEC, lambda kind: some_basis(8, 5))
    assert not capsys.readouterr().err


def test_a_direction_with_a_label_is_a_quantity_by_it() -> None:
    labelled = replace(some_basis(8, 5), kind="probe", facts={"targets": {"probe:0": "row", "probe:2": "drink"}})
    named = find_quantities(["probe:drink", "probe:0", "probe:1"], SPEC, lambda kind: labelled)
    assert [q.name for q in named] == ["probe:drink", "probe:row", "probe:1"]
    h = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    reading = Reading(h, h, h[:, 0], h[:, 0], torch.zeros(3, dtype=torch.int64))
    for q, i in zip(named, (2, 0, 1), strict=True):
        assert torch.equal(q.read(reading), labelled.project(h)[:, i])
    with pytest.raises(UserError, match="twice"):
        find_quantities(["probe:drink", "probe:2"], SPEC, lambda kind: labelled)
    with pytest.raises(UserError, match=r"a direction: .* has no direction probe:dring \(did you mean dri"):
        find_quantities(["probe:dring"], SPEC, lambda kind: labelled)
    (target,) = find_targets(["probe:drink"], [], 0, SPEC, lambda kind: labelled)
    assert target.name == "probe:drink"


def test_direction_means_the_chosen_basis() -> None:
    asked = []
    find_quantities(["direction_1", "pca_2"], OTHER, lambda kind: asked.append(kind) or some_basis(5), "nmf")
    assert asked == ["nmf", "pca"]


def test_action_quantities_are_log_probabilities() -> None:
    logits = torch.randn(4, len(ACTION_NAMES), dtype=torch.float64)
    reading = Reading(logits, logits, logits[:, 0], logits[:, 1], torch.tensor([0, 5, 7, 14]))
    p = logits.softmax(-1)
    read = {q.name: q.read(reading) for q in find_quantities(
        ["action", "leftwards", "rightwards", "jumping_up", "jumping_left", "jumping_right", "right", "none",
         "value_delta"], SPEC, no_basis,
    )}  # fmt: skip
    still = p[:, [4, 9, 10, 11, 12, 13, 14]].sum(1)  # which of them was chosen does not matter: all do the same
    torch.testing.assert_close(read["action"].exp(), torch.stack([p[0, 0], p[1, 5], p[2, 7], still[3]]))
    torch.testing.assert_close(read["none"].exp(), still)
    torch.testing.assert_close(read["leftwards"].exp(), p[:, 0] + p[:, 1] + p[:, 2])
    torch.testing.assert_close(read["rightwards"].exp(), p[:, 6] + p[:, 7] + p[:, 8])
    for name, i in (("jumping_up", 5), ("jumping_left", 2), ("jumping_right", 8), ("right", 7)):
        torch.testing.assert_close(read[name].exp(), p[:, i])
    torch.testing.assert_close(read["value_delta"], logits[:, 0] - logits[:, 1])


# Gradients


def of_path(
    simulator: Simulator[Any], z: Tensor, actions: Tensor, quantities: Sequence[Quantity], path: bool = True
) -> list[Gradients]:
    """Gradients of every quantity at the target step, by agent and world or with the path between them cut."""
    found = gradients(simulator, z, actions, quantities, TARGET, steps=STEPS, paths=(path,))
    return [g for (g,) in found]


def all_quantities(hidden: int, spec: EnvSpec) -> list[Quantity]:
    return find_quantities(["value", "value_delta", "action", "ica_1"], spec, lambda kind: some_basis(hidden))


def test_without_the_world_the_gradient_is_the_agents_own(learned: Simulator[RSSMWorld]) -> None:
    z = latents(learned)
    path = learned.rollout(z, STEPS)
    frames = {"frames": path.obs["frames"][:, : TARGET + 1]}
    quantities = all_quantities(5, SPEC)
    both = gradients(learned, z, chosen(learned, z), quantities, TARGET, steps=STEPS)
    for q, (b, a) in zip(quantities, both, strict=True):
        own = agent_gradients(learned.agent, frames, learned.remembered(z), chosen(learned, z), q)["frames"]
        torch.testing.assert_close(a.obs["frames"][:, : TARGET + 1], own, rtol=1e-9, atol=1e-15)
        assert (a.obs["frames"][:, TARGET + 1 :] == 0).all() and (a.h[:, TARGET + 1 :] == 0).all()
        assert a.obs["frames"].shape == (3, STEPS + 1, 64, 64, 3)
        # The target frame acts on the target through the agent only; earlier ones through the world too.
        torch.testing.assert_close(a.obs["frames"][:, TARGET], b.obs["frames"][:, TARGET])
        assert not torch.allclose(a.obs["frames"][:, 0], b.obs["frames"][:, 0], rtol=1e-6, atol=0)
        assert not torch.allclose(a.h[:, 0], b.h[:, 0], rtol=1e-6, atol=0)


def test_several_quantities_and_samples_from_one_pass(learned: Simulator[RSSMWorld]) -> None:
    z, quantities = latents(learned), all_quantities(5, SPEC)
    together = of_path(learned, z, chosen(learned, z), quantities)
    for n, q in enumerate(quantities):
        for s in range(3):
            one = z[s : s + 1]
            (alone,) = of_path(learned, one, chosen(learned, one), [q])
            for a, b in ((alone.y, together[n].y), (alone.h, together[n].h), (alone.d, together[n].d)):
                torch.testing.assert_close(a[0], b[s], rtol=1e-8, atol=1e-12)
            torch.testing.assert_close(alone.obs["frames"][0], together[n].obs["frames"][s], rtol=1e-8, atol=1e-12)


def test_a_gradient_that_is_no_number_is_refused(planted: Simulator[PlantedModel]) -> None:
    quantities = find_quantities(["value"], planted.world.spec, no_basis)
    z, config = latents(planted), SaliencyConfig(steps=3, target_step=2, copies=1, noise=0.0, integrated_steps=0)
    assert np.isfinite(explain.explain(planted, z, [4, 5, 9], quantities, config).arrays["grad_h_value"]).all()
    z[1] = torch.nan
    with pytest.raises(UserError, match=r"is NaN or infinite at sample 5 \(1 of 3 samples\)"):
        explain.explain(planted, z, [4, 5, 9], quantities, config)


def test_both_paths_are_those_that_were_asked_for_alone(learned: Simulator[RSSMWorld]) -> None:
    z, quantities = latents(learned), all_quantities(5, SPEC)
    both = gradients(learned, z, chosen(learned, z), quantities, TARGET, steps=STEPS)
    for n, path in enumerate((True, False)):
        for alone, found in zip(of_path(learned, z, chosen(learned, z), quantities, path), both, strict=True):
            for what in ("frames", "h", "d"):
                assert torch.equal(alone.of(what), found[n].of(what))


# Smoothing


SMOOTH = {"steps": STEPS, "target_step": TARGET, "integrated_steps": 4, "window": 32, "stride": 32}


def observations(simulator: Simulator[Any], z: Tensor) -> dict[str, Tensor]:
    return dict(simulator.rollout(z, STEPS).obs)


def noised_by_hand(
    simulator: Simulator[Any], z: Tensor, noise: Mapping[str, Tensor], q: Quantity, path: bool
) -> Gradients:
    """Gradients of a rollout whose agent sees noise on every frame, step by step."""
    world_state, shown = simulator.world.start(z.clone().requires_grad_())
    state, nowhere = simulator.remembered(z), torch.zeros(len(z), dtype=torch.bool)
    frames, hidden, features, values = [], [], [], []
    for t in range(TARGET + 1):
        obs = {k: x + noise[k][:, t] for k, x in shown.obs.items()}
        acted = act(simulator.agent, obs, state, nowhere, torch.full((len(z),), t))
        state, (index, one_hot) = acted.state, choose(acted.logits_BA, simulator.world.spec.parts)
        frames, hidden, features = [*frames, obs["frames"]], [*hidden, acted.h_BH], [*features, shown.features_BD]
        values.append(acted.value_B)
        if t < TARGET:
            world_state, shown = simulator.world.step(world_state, one_hot if path else one_hot.detach())
    assert torch.equal(index, acted.logits_BA.argmax(-1))
    said = Reading(acted.h_BH, acted.logits_BA, values[-1], values[-2], chosen(simulator, z))
    y = q.read(said)
    grads = torch.autograd.grad(y.sum(), [*frames, *hidden, *features], materialize_grads=True)
    n = TARGET + 1
    f, h, d = (torch.stack(grads[i * n : (i + 1) * n], 1) for i in range(3))
    return Gradients(y.detach(), {"frames": f}, h, d)


def test_smoothed_gradients_are_the_mean_of_noised_rollouts(learned: Simulator[RSSMWorld]) -> None:
    z, ids, quantities = latents(learned), [4, 5, 6], all_quantities(5, SPEC)
    config = SaliencyConfig(copies=3, noise=0.1, **SMOOTH)  # type: ignore[arg-type]
    noise = explain.frame_noise(observations(learned, z), ids, config, SPEC.pictures)
    found = explain.explain(learned, z, ids, quantities, config).arrays
    assert len(noise) == 3
    for q in quantities:
        for path, part in ((True, ""), (False, "_agent_only")):
            each = [noised_by_hand(learned, z, more, q, path) for more in noise]
            for what in ("frames", "h", "d"):
                copies = torch.stack([g.of(what) for g in each])
                assert what == "d" or copies.std(0).max() > 1e-3 * copies.abs().max()
                got = torch.from_numpy(found[f"grad_{what}_{q.name}{part}"])
                most = float(copies.abs().max())
                torch.testing.assert_close(
                    got[:, : TARGET + 1].double(), copies.mean(0), rtol=1e-5, atol=1e-6 * most + 1e-30
                )
                assert not got[:, TARGET + 1 :].any()


def test_noise_is_a_share_of_the_range_and_depends_on_seed_and_id_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    obs = {
        "frames": torch.rand(3, 6, 8, 8, 3, generator=generator),
        "x": 7 * torch.rand(3, 6, 500, generator=generator),
        "grid": 7 * torch.rand(3, 6, 20, 25, 1, generator=generator),  # no picture, of a picture's axes
    }
    config = SaliencyConfig(copies=2, noise=0.1, seed=7)
    whole = explain.frame_noise(obs, [4, 5, 6], config, ("frames",))
    (one, two) = explain.frame_noise({k: x[1:2] for k, x in obs.items()}, [5], config, ("frames",))
    other = explain.frame_noise({k: x[1:2] for k, x in obs.items()}, [5], replace(config, seed=8), ("frames",))
    for name, span in (("frames", 1.0), ("x", 7.0), ("grid", 7.0)):
        assert torch.equal(whole[0][name][1:2], one[name]) and torch.equal(whole[1][name][1:2], two[name])
        assert not torch.equal(one[name], two[name]) and not torch.equal(one[name], other[0][name])
        assert whole[0][name].std() == pytest.approx(0.1 * span, rel=0.05)
        assert not torch.equal(whole[0][name][0], whole[0][name][1])
    assert explain.frame_noise(obs, [4, 5, 6], SaliencyConfig(), ("frames",)) == []


def test_maps_are_of_the_picture_whatever_stands_before_it(tmp_path: Path) -> None:
    steps = np.zeros((1, 6))
    obs = {"grid": np.zeros((1, 6, 5, 5, 1)), "view": np.zeros((1, 6, 12, 20, 3))}
    (value,) = all_quantities(5, SPEC)[:1]
    arrays = {f"grad_{name}_{value.name}{path}": np.ones_like(x) for name, x in obs.items()
              for path in ("", "_agent_only", "_through_world")}  # fmt: skip
    part = explain.Explained(obs, steps, steps, steps, arrays, {}, {})
    with MapsWriter(tmp_path, [value.name], 1, (6, 12, 20)) as maps:
        kept = explain.written(part, [value], maps, "view")
    assert set(kept.arrays) == {f"norm_{value.name}{path}" for path in ("", "_agent_only", "_through_world")}
    with h5py.File(tmp_path / "maps.h5") as file:
        assert file[f"whole/{value.name}"].shape == (1, 6, 12, 20) and file[f"whole/{value.name}"][:].all()


def test_without_noise_the_gradient_is_the_plain_one(learned: Simulator[RSSMWorld]) -> None:
    z, quantities, methods = latents(learned), all_quantities(5, SPEC), ("plain", "integrated")
    plain = explain.explain(learned, z, [4, 5, 6], quantities, SaliencyConfig(methods=methods, **SMOOTH)).arrays  # type: ignore[arg-type]
    still = explain.explain(
        learned,
        z,
        [4, 5, 6],
        quantities,
        SaliencyConfig(methods=methods, copies=3, noise=0.0, **SMOOTH),  # type: ignore[arg-type]
    ).arrays
    for q in quantities:
        for what in ("frames", "h", "d"):
            assert np.array_equal(plain[f"grad_{what}_{q.name}"], plain[f"plain_{what}_{q.name}"])
            assert np.abs(plain[f"grad_{what}_{q.name}"]).max() > 0
    for name, x in plain.items():
        np.testing.assert_allclose(still[name], x, rtol=1e-5, atol=1e-6 * np.abs(x).max(), err_msg=name)


def test_smoothing_composes_with_every_method(learned: Simulator[RSSMWorld]) -> None:
    """A method's smoothed picture is the mean of its pictures of noised frames; of the latent's method, of latents in
    noised worlds."""
    z, ids, (value,) = latents(learned), [4, 5, 6], all_quantities(5, SPEC)[:1]
    methods = ("plain", "integrated", "deeplift", "occlusion", "latent")
    options = {**SMOOTH, "methods": methods}
    config = SaliencyConfig(copies=3, noise=0.1, **options)  # type: ignore[arg-type]
    noise = explain.frame_noise(observations(learned, z), ids, config, SPEC.pictures)
    smooth, plain = (
        explain.explain(learned, z, ids, [value], c).arrays
        for c in (config, SaliencyConfig(**options))  # type: ignore[arg-type]
    )
    frame = frame_of(learned, z)

    def mean(x: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(x)).mean(0)

    for method, explained in (
        ("integrated", lambda f: integrated(f, value, 4)),
        ("deeplift", lambda f: deeplift(f, value)),
        ("occlusion", lambda f: occlusion(f, value, 32, 32)),
    ):
        each: list[Attribution] = [
            explained(frame._replace(obs={k: x + more[k][:, TARGET] for k, x in frame.obs.items()})) for more in noise
        ]
        expected = mean([e.maps["frames"].detach() for e in each])
        got = torch.from_numpy(smooth[f"{method}_frames_value"])
        torch.testing.assert_close(got.double(), expected.double(), rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
        before = torch.from_numpy(plain[f"{method}_frames_value"])
        assert (got - before).abs().max() > 1e-3 * before.abs().max(), method
        if each[0].delta is not None:
            delta = mean([e.delta for e in each if e.delta is not None])
            torch.testing.assert_close(
                torch.from_numpy(smooth[f"{method}_delta_value"]).double(), delta, rtol=1e-3, atol=1e-6
            )
    np.testing.assert_array_equal(smooth["plain_frames_value"], plain["plain_frames_value"])

    def of_latent(s: int, more: Mapping[str, Tensor]) -> Tensor:
        """Integrated gradients of one sample's latent, a point of the path at a time, as captum's rule places them."""
        noised = {k: x[s : s + 1] for k, x in more.items()}
        points, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(4))
        total = torch.zeros_like(z[s])
        for point, weight in zip((1 + points) / 2, weights / 2, strict=True):
            at = (point * z[s : s + 1]).requires_grad_()
            y = noised_value(learned, at, noised)
            total += weight * torch.autograd.grad(y.sum(), at)[0][0]
        return total * z[s]

    expected = mean([torch.stack([of_latent(s, more) for s in range(3)]) for more in noise])
    got = torch.from_numpy(smooth["latent_value"]).double()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert np.abs(smooth["latent_value"] - plain["latent_value"]).max() > 1e-3 * np.abs(plain["latent_value"]).max()


def test_what_depends_on_nothing_has_maps_of_zeros(learned: Simulator[RSSMWorld]) -> None:
    """The value of a policy that has none; torch's error was all that a user got."""
    nothing = Quantity("nothing", "return", lambda r: torch.zeros(len(r.h_BH), dtype=torch.float64))
    methods = ("plain", "integrated", "deeplift", "occlusion", "latent")
    config = SaliencyConfig(checks=True, draws=2, **{**SMOOTH, "methods": methods})  # type: ignore[arg-type]
    found = explain.explain(learned, latents(learned), [4, 5, 6], [nothing], config)
    assert len(found.arrays) > 15
    for name, x in found.arrays.items():
        assert not np.nan_to_num(x).any() or name.startswith("randomised"), name


def noised_value(simulator: Simulator[Any], z: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
    """The value at the target step of a rollout whose agent sees noise on every frame."""
    world_state, shown = simulator.world.start(z)
    state, nowhere = simulator.remembered(z), torch.zeros(len(z), dtype=torch.bool)
    for t in range(TARGET + 1):
        obs = {k: x + noise[k][:, t] for k, x in shown.obs.items()}
        acted = act(simulator.agent, obs, state, nowhere, torch.full((len(z),), t))
        state, (_, one_hot) = acted.state, choose(acted.logits_BA, simulator.world.spec.parts)
        world_state, shown = simulator.world.step(world_state, one_hot)
    return acted.value_B


def test_a_direction_of_the_world_is_no_quantity_of_the_agent(learned: Simulator[RSSMWorld]) -> None:
    z, basis = latents(learned), replace(some_basis(12), kind="pca", space="d")
    (q,) = find_quantities(["d_pca_1"], SPEC, lambda kind: basis)
    (g,) = of_path(learned, z, chosen(learned, z), [q])
    unit = torch.eye(3, dtype=torch.float64)[1].expand(3, -1)
    torch.testing.assert_close(basis.pullback(g.d[:, TARGET]), unit, rtol=1e-9, atol=1e-9)
    assert (g.h[:, TARGET] == 0).all() and g.d[:, 0].abs().max() > 0
    with pytest.raises(ValueError, match="only the agent was asked"):
        frame = frame_of(learned, z)
        frame.read(q)(*frame.inputs, *frame.fixed)
    with pytest.raises(UserError, match="needs --env_states"):
        find_quantities(["d_pca_1"], SPEC, bases.bases_in(None, "", torch.device("cpu")))


def test_batches_give_what_one_pass_gives(learned: Simulator[RSSMWorld], tmp_path: Path) -> None:
    z, ids = latents(learned), [8, 3, 5]
    quantities = find_quantities(["value", "action"], SPEC, no_basis)
    options = {"steps": STEPS, "target_step": TARGET, "copies": 2, "noise": 0.1, "integrated_steps": 4}
    whole = explain.compute(learned, z, ids, quantities, SaliencyConfig(batch_size=3, **options))
    parts = explain.compute(learned, z, ids, quantities, SaliencyConfig(batch_size=1, **options))
    with Spool(tmp_path) as spool:
        config = SaliencyConfig(batch_size=1, **options)
        spooled = explain.compute(learned, z, ids, quantities, config, spool=spool)
        assert max(x.ndim for x in spooled.arrays.values()) == 2 < min(x.ndim for x in spooled.spooled.values())
        assert (spooled.tables, spooled.scalars) == (parts.tables, parts.scalars)
        strips = [figures.strip_of(r, 2, "value", "frames", SPEC) for r in (spooled, parts)]
        assert all(np.array_equal(x, strips[1].maps[label]) for label, x in strips[0].maps.items())
        spooled.save(tmp_path)
    with np.load(tmp_path / "arrays.npz") as saved:
        assert set(saved) == set(parts.arrays)
        assert all(np.array_equal(saved[name], x) and saved[name].dtype == x.dtype for name, x in parts.arrays.items())
    assert set(whole.arrays) == set(parts.arrays)
    for name, array in whole.arrays.items():
        most = 2e-5 * float(np.abs(array).max())
        np.testing.assert_allclose(parts.arrays[name], array, rtol=1e-4, atol=1e-9 + most, err_msg=name)
    a = whole.arrays
    np.testing.assert_allclose(
        a["grad_h_value_through_world"], a["grad_h_value"] - a["grad_h_value_agent_only"], atol=1e-7
    )
    assert whole.scalars["through_world_value"]["n"] == 3
    assert [row["sample"] for row in whole.tables["saliency"]] == ids * 2


def test_intervals_of_few_samples_end_where_the_quantity_does() -> None:
    """Correlations within -1 and 1, norms, their ratios and absolute errors not below 0; y itself anywhere."""
    (q,) = find_quantities(["value"], SPEC, no_basis)
    two = np.array([-0.4, 0.8])
    result = Result(notes={"target_step": 0, "fields": ["frames"], "combined": False})
    result.arrays = {
        "alive": np.ones((2, 1), bool), "y_value": two, "randomised_floor_value": two,
        "norm_value": np.ones(2), "norm_value_agent_only": np.ones(2), "norm_value_through_world": two**2,
        "integrated_delta_value": two, "change_value": two,
    }  # fmt: skip
    tried = {("value", "randomised", "gradient"): np.stack([two, two, two], 1),
             ("value", "sensitivity", "gradient"): two[:, None] ** 2,
             ("value", "insertion", "gradient"): np.stack([two, two / 2], 1)}  # fmt: skip
    summarise(result, [q], [3, 5], np.arange(2), 0, tried)
    ends = {name: found["interval"] for name, found in result.scalars.items()}
    assert ends["randomised_floor_value"] == [-1, 1]
    assert ends["through_world_value"][0] == ends["completeness_delta_value"][0] == 0
    rows = {row["check"]: row for row in result.tables["checks"]}
    assert (rows["randomised"]["value_low"], rows["randomised"]["ceiling_high"]) == (-1, 1)
    assert rows["sensitivity"]["value_low"] == 0 < rows["sensitivity"]["value_high"]
    assert rows["insertion"]["value_low"] < -1 and rows["insertion"]["value_high"] > 1


def test_of_a_gradient_of_nothing_no_part_runs_through_the_world() -> None:
    """It counted as 0, with an interval of no width where all were flat."""
    (q,) = find_quantities(["value"], SPEC, no_basis)
    result = Result(notes={"target_step": 0, "combined": False})
    result.arrays = {"alive": np.ones((3, 1), bool), "y_value": np.ones(3)}
    norms = np.array([2.0, 2.0, 0.0])
    result.arrays |= {f"norm_value{part}": norms / 2 for part in ("_agent_only", "_through_world")}
    result.arrays["norm_value"] = norms
    summarise(result, [q], [3, 5, 6], np.arange(3), 0)
    found = result.scalars.pop("through_world_value")
    assert found["value"] == 0.5 and found["n"] == 2
    result.arrays |= {name: np.zeros(3) for name in list(result.arrays) if name.startswith("norm_")}
    summarise(result, [q], [3, 5, 6], np.arange(3), 0)
    assert "through_world_value" not in result.scalars


def test_it_is_told_where_a_flat_gradient_has_no_ranks() -> None:
    """It was NaN in the table and missing in the manifest, without a word."""
    (q,) = find_quantities(["value"], SPEC, no_basis)
    one, flat = np.arange(12.0).reshape(2, 6), np.array([np.arange(6.0), np.ones(6)])
    result = Result(notes={"target_step": 0, "combined": False})
    result.arrays = {
        "alive": np.ones((2, 1), bool), "y_value": np.ones(2), "norm_value": np.ones(2),
        "norm_value_agent_only": np.ones(2), "norm_value_through_world": np.ones(2),
        "randomised_correlation_value": rank_correlation(one, flat), "randomised_floor_value": np.ones(2),
    }  # fmt: skip
    summarise(result, [q], [3, 5], np.arange(2), 0)
    assert "not known, randomised_correlation_value of 1 of 2 samples: the gradient is" in result.notes["randomised"]
    result.arrays["alive"][1] = False  # what has ended is of no interest
    assert said_of_constant(result, [q]) == ""


def test_it_is_told_where_parts_miss_the_change() -> None:
    quantities = find_quantities(["value", "action"], SPEC, no_basis)
    result = Result()
    result.arrays = {"change_value": np.array([1.0, -3.0]), "change_action": np.array([2.0, np.nan]),
                     "deeplift_delta_action": np.array([0.05, np.nan])}  # fmt: skip
    assert said_of_parts(result, quantities) == []
    for method, remedy in (("deeplift", "integrated gradients instead"), ("integrated", "more --integrated_steps")):
        result.arrays[f"{method}_delta_value"] = np.array([1.0, 0.0])
        (said,) = said_of_parts(result, quantities)
        assert "value by 25%" in said and remedy in said and "action" not in said
        del result.arrays[f"{method}_delta_value"]
    result.arrays |= {"latent_delta_value": np.array([1.0, 0.0]), "latent_change_value": np.array([1.0, 1.0])}
    (said,) = said_of_parts(result, quantities)
    assert "by latents miss the change of value by 50% (completeness_delta_latent)" in said
    result.arrays["deeplift_delta_value"] = np.array([1.0, 0.0])
    result.arrays["y_value"] = np.full((2, 1), 1e6)  # of so large a value it is rounding
    assert said_of_parts(result, quantities) == []


def soft(logits_BA: Tensor, noise_BA: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What straight_through's gradient pretends: the action is a mixture, and nothing is discrete."""
    return logits_BA.argmax(-1), logits_BA.softmax(-1)


@pytest.mark.parametrize("env_grads", [True, False])
def test_gradient_of_h_is_the_finite_difference(
    planted: Simulator[PlantedModel], env_grads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, step = latents(planted), 1e-5
    forced = None
    if env_grads:
        monkeypatch.setattr("core.roll.straight_through", soft)
    else:  # the same actions whatever the agent feels: what is left acts inside the agent
        forced = planted.rollout(z, TARGET).action
    value = find_quantities(["value"], planted.world.spec, no_basis)
    got = of_path(planted, z, chosen(planted, z), value, env_grads)[0].h
    for t in range(TARGET + 1):
        for i in range(planted.agent.points["h"]):
            push = torch.zeros(planted.agent.points["h"], dtype=torch.float64)
            push[i] = step
            ends = [
                planted.rollout(z, TARGET, actions=forced, intervene=(AtSteps(AddVector(s * push), t, t + 1),)).value
                for s in (1, -1)
            ]
            slope = (ends[0] - ends[1])[:, TARGET] / (2 * step)
            torch.testing.assert_close(slope, got[:, t, i], rtol=1e-6, atol=1e-9)


def test_directions_pull_back_to_their_own_coordinate(learned: Simulator[RSSMWorld]) -> None:
    """At the target step the gradient of coordinate i, in coordinates, is the i-th unit vector."""
    basis, z = some_basis(5), latents(learned)
    quantities = find_quantities(["ica_0", "ica_2"], SPEC, lambda kind: basis)
    for g, i in zip(of_path(learned, z, chosen(learned, z), quantities), (0, 2), strict=True):
        unit = torch.eye(3, dtype=torch.float64)[i].expand(3, -1)
        torch.testing.assert_close(basis.pullback(g.h[:, TARGET]), unit, rtol=1e-9, atol=1e-9)


# Integrated gradients, randomised agents


def frame_of(simulator: Simulator[Any], z: Tensor, base: dict[str, Tensor] | None = None) -> Frame:
    moments = unroll(simulator, z, TARGET)
    obs = dict(moments[TARGET].shown.obs)
    black = {name: torch.zeros_like(x) for name, x in obs.items()}
    before = moments[TARGET - 1].acted
    fixed = (flatten(before.state), before.value_B, moments[TARGET].action)
    return Frame(simulator.agent, obs, black if base is None else base, *fixed)


def change_of(frame: Frame, q: Quantity) -> Tensor:
    read = frame.read(q)
    return read(*frame.inputs, *frame.fixed) - read(*frame.baselines, *frame.fixed)


def test_integrated_gradients_are_complete(learned: Simulator[RSSMWorld]) -> None:
    frame = frame_of(learned, latents(learned))
    for q in all_quantities(5, SPEC):
        found, change = integrated(frame, q, 64), change_of(frame, q)
        total = found.maps["frames"].flatten(1).sum(1)
        assert found.delta is not None
        torch.testing.assert_close(total - change, found.delta, rtol=1e-6, atol=1e-9)
        assert (found.delta.abs() < 0.02 * change.abs().max()).all()
        same = integrated(frame._replace(baseline=frame.obs), q, 4)
        assert (same.maps["frames"] == 0).all()


@pytest.mark.parametrize("encoder", ["strided", "strided_blur", "impala"])
def test_deeplift_is_complete_through_gates_norms_and_residuals(learned: Simulator[RSSMWorld], encoder: str) -> None:
    frame = frame_of(learned, latents(learned))
    if encoder != "strided":
        torch.manual_seed(1)
        agent = RecurrentAgent(AgentConfig(encoder=encoder, embedding_size=8, hidden_size=5), SPEC)  # type: ignore[arg-type]
        frame = frame._replace(agent=agent.double().eval().requires_grad_(False))
    steps: dict[int, torch.nn.Module] = {}
    for q in all_quantities(5, SPEC):
        found, change = deeplift(frame, q, steps), change_of(frame, q)
        total = found.maps["frames"].flatten(1).sum(1)
        assert found.delta is not None and change.abs().max() > 1e-4
        torch.testing.assert_close(total - change, found.delta, rtol=1e-6, atol=1e-9)
        assert found.delta.abs().max() < 1e-9 * change.abs().max() + 1e-12
    assert all(not m._forward_hooks for m in frame.agent.modules())  # type: ignore[attr-defined]


def test_attributions_of_a_linear_agent_are_gradient_times_change(planted: Simulator[PlantedModel]) -> None:
    z = latents(planted)
    first = dict(unroll(planted, z, 0)[0].shown.obs)
    frame = frame_of(planted, z, first)
    (field,) = frame.obs
    value = find_quantities(["value"], planted.world.spec, no_basis)[0]
    slope = agent_gradients(planted.agent, {field: frame.obs[field][:, None]}, frame.before_SM, frame.chosen_S, value)[
        field
    ][:, 0]
    for found in (
        integrated(frame, value, 4),
        deeplift(frame, value),
        occlusion(frame, value, 1, 1),
    ):
        share = found.maps[field].double()  # captum's occlusion gives float32
        torch.testing.assert_close(share, slope * (frame.obs[field] - first[field]), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(share.sum(-1), change_of(frame, value), rtol=1e-5, atol=1e-6)
        assert found.delta is None or found.delta.abs().max() < 1e-10


def test_occlusion_covers_squares_with_the_baseline(learned: Simulator[RSSMWorld]) -> None:
    frame = frame_of(learned, latents(learned, 1))
    value = find_quantities(["value"], SPEC, no_basis)[0]
    found = occlusion(frame, value, 16, 16).maps["frames"].double()
    covered = frame.obs["frames"].clone()
    covered[:, 16:32, 32:48] = 0
    read = frame.read(value)
    lost = read(*frame.inputs, *frame.fixed) - read(covered, *frame.fixed)
    torch.testing.assert_close(
        found[:, 16:32, 32:48], lost[:, None, None, None].expand(1, 16, 16, 3), rtol=1e-5, atol=1e-9
    )


def test_the_latent_of_a_linear_world_is_explained_whole(planted: Simulator[PlantedModel]) -> None:
    z = latents(planted)
    value = find_quantities(["value"], planted.world.spec, no_basis)[0]
    # Without noise the actions are discrete: what they do to the value is in the delta, and the rest is complete.
    maps, change, delta = latent(planted, z, chosen(planted, z), value, 0, 8, 4)
    assert maps.shape == z.shape and change.abs().max() > 1e-3
    torch.testing.assert_close(maps.sum(1) - change, delta)
    assert delta.abs().max() < 1e-6


# Checks


def test_a_true_picture_beats_its_controls_and_a_wrong_one_does_not(planted: Simulator[PlantedModel]) -> None:
    """Of a linear agent everything is known: gradient times change foretells every change."""
    frame = frame_of(planted, latents(planted, 24))
    value = find_quantities(["value"], planted.world.spec, no_basis)[0]
    true = integrated(frame, value, 4).maps
    wrong = {n: -x for n, x in true.items()}
    fidelity = checks.infidelity(frame, value, true, False, 32, range(24), 0)
    assert fidelity.min() >= 0 and fidelity[:, 0].max() < 1e-12 and np.median(fidelity[:, 1]) > 1e-4
    insertion, deletion = (checks.areas(frame, value, true, flag, range(24), 0) for flag in (True, False))
    assert (insertion[:, 0] - insertion[:, 1]).mean() > 0.05 and (deletion[:, 0] - deletion[:, 1]).mean() < -0.05
    worse = checks.areas(frame, value, wrong, True, range(24), 0)
    assert (worse[:, 0] - worse[:, 1]).mean() < -0.05
    slope = explainer(frame, value, "gradient", 4, 1, 1)
    assert checks.sensitivity(frame, slope, 0.1, 4, 0).max() < 1e-12  # a linear agent's gradient is one everywhere
    assert checks.sensitivity(
        frame, explainer(frame, value, "integrated", 4, 1, 1), 0.1, 4, 0
    ).min() > 0.001  # fmt: skip


def test_boxes_of_baseline_fit_frames_that_are_not_square() -> None:
    torch.manual_seed(0)
    boxes = checks._blot(torch.zeros(200, 48, 64, 3))
    assert (boxes.sum((1, 2)) == 12 * 16).all() and (boxes.any(2).sum(1) == 12).all()
    assert boxes.any(0).any(1).all() and boxes.any(0).any(0).all()  # up to every edge


@pytest.mark.parametrize("map_of", [torch.randn_like, torch.zeros_like])
def test_a_map_that_says_nothing_is_no_better_than_a_random_order(map_of: Callable[[Tensor], Tensor]) -> None:
    """Noise, and a map of zeros, which was taken for the order of the pixels; random orders that all samples shared
    made .17 to .73 of noise maps better or worse."""
    side, beyond, rows, columns = 16, 0, torch.arange(16)[:, None], torch.arange(16)
    for seed in range(60):
        torch.manual_seed(seed)
        top, left = torch.randint(0, side - 3, (2,)).tolist()
        thing = ((rows >= top) & (rows < top + 4) & (columns >= left) & (columns < left + 4)).float()[..., None]
        x = torch.rand(32, side, side, 3)
        frame = SimpleNamespace(
            obs={"rgb": x}, baseline={"rgb": torch.zeros_like(x)}, fixed=(),
            read=lambda _, thing=thing: lambda f: (f * thing).sum((1, 2, 3)),
        )  # fmt: skip
        values = checks.areas(frame, None, {"rgb": map_of(x)}, True, range(32), seed)  # type: ignore[arg-type]
        e = bootstrap_mean(values[:, 0] - values[:, 1], np.arange(32), rng=np.random.default_rng(0))
        beyond += not e.low <= 0 <= e.high
    assert beyond <= 8  # binomial, 60 at 0.05: P(more) < 2e-3


def test_curves_begin_and_end_where_they_must(learned: Simulator[RSSMWorld]) -> None:
    frame = frame_of(learned, latents(learned))
    value = find_quantities(["value"], SPEC, no_basis)[0]
    maps = integrated(frame, value, 4).maps
    rank = checks.ranks_of(maps, torch.rand(len(frame.chosen_S), 64 * 64))
    into, out = (checks.curves(frame, value, rank, flag) for flag in (True, False))
    read = frame.read(value)
    full, none = read(*frame.inputs, *frame.fixed), read(*frame.baselines, *frame.fixed)
    for curve, first, last in ((into, none, full), (out, full, none)):
        torch.testing.assert_close(curve[:, 0], first)
        torch.testing.assert_close(curve[:, -1], last)


def test_randomised_agents_and_worlds_know_their_floor_and_ceiling(
    learned: Simulator[RSSMWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    z = latents(learned)
    path = learned.rollout(z, STEPS)
    seen, value = {"frames": path.obs["frames"][:, : TARGET + 1]}, all_quantities(5, SPEC)[:1]
    h, a = learned.remembered(z), chosen(learned, z)
    agent = randomisation.agent_randomisation(learned.agent, seen, h, a, value[0], 0, 0.0, True)
    assert list(agent) == [
        "agent",
        *(f"agent, from the output to {x}" for x in ("critic", "policy", "cell", "encoder")),
    ]
    assert (agent["agent"][:, 2] == pytest.approx(1.0)) and (agent["agent"][:, 0] < 0.9).all()
    before = {k: v.clone() for k, v in as_module(learned).state_dict().items()}
    monkeypatch.setattr(randomisation, "LATENT_NOISE", 0.0)
    (world,) = randomisation.world_randomisation(learned, z, a, value, TARGET, 0)
    assert set(world) == {"world, on frames", "world, on world states"}
    for values in world.values():
        assert values.shape == (3, 3) and values[:, 2] == pytest.approx(1.0) and (values[:, 0] < 0.9).all()
    other = randomised_world(learned, 0)
    for name, p in as_module(learned).state_dict().items():
        assert torch.equal(p, before[name])
        if name.startswith("agent."):
            assert torch.equal(p, as_module(other).state_dict()[name])
    assert not torch.equal(other.world.decoder.first.weight, learned.world.decoder.first.weight)  # type: ignore[union-attr]


def test_a_randomised_agent_keeps_the_scales_and_nothing_else(learned: Simulator[RSSMWorld]) -> None:
    agent = learned.agent
    before = {k: v.clone() for k, v in agent.state_dict().items()}
    other = randomised(agent, 3)
    for name, p in other.state_dict().items():
        assert torch.equal(agent.state_dict()[name], before[name])
        assert torch.equal(p.flatten().sort().values, before[name].flatten().sort().values)
    assert not torch.equal(other.policy.weight, agent.policy.weight)
    again = randomised(agent, 3)
    assert torch.equal(other.policy.weight, again.policy.weight)


def test_rank_correlation_is_spearmans_of_absolute_values() -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 4, 5))
    b[1] = -a[1]
    a[2] = 1.0
    got = rank_correlation(a, b)
    assert got[0] == pytest.approx(spearmanr(np.abs(a[0]).ravel(), np.abs(b[0]).ravel()).statistic)
    assert got[1] == pytest.approx(1.0) and np.isnan(got[2])


def test_saved_bytes_counts_what_a_backward_pass_needs() -> None:
    x, w = torch.ones(1000, requires_grad=True), torch.ones(1000)
    assert saved_bytes(lambda: x.exp(), []) == 4000  # exp keeps its result
    assert saved_bytes(lambda: x * w, []) == 4000  # the product keeps w ...
    assert saved_bytes(lambda: x * w, [w]) == 0  # ... which is there anyway


def test_saved_bytes_neither_counts_nor_keeps_what_the_result_does_not_depend_on() -> None:
    x, made = torch.ones(1000, requires_grad=True), []

    def forward() -> torch.Tensor:
        for _ in range(5):
            made.append(weakref.ref(x.exp()))
        return x.exp()

    assert saved_bytes(forward, []) == 4000
    assert all(ref() is None for ref in made)


# Pictures


def test_positive_is_blue_and_negative_is_red() -> None:
    frame, signed = np.full((64, 64, 3), 100, np.uint8), np.zeros((64, 64))
    signed[:32], signed[32:, :32] = 1.0, -1.0
    out = figures.overlay(frame, signed, 1.0).astype(int)
    assert (out[:32] == rgb(POSITIVE)).all() and (out[32:, :32] == rgb(NEGATIVE)).all()
    assert (out[32:, 32:] == out[63, 63]).all() and len(set(out[63, 63])) == 1
    assert (figures.overlay(frame, signed, 0.0) == out[63, 63]).all()


def test_blur_and_colour_sum_change_the_picture_not_the_sum() -> None:
    grad = np.zeros((2, 64, 64, 3))
    grad[1, 30, 30] = [1.0, 2.0, -0.5]
    out = figures.signed_map(grad)
    assert (out[0] == 0).all() and out[1].sum() == pytest.approx(2.5) and 0 < out[1, 30, 31] < out[1, 30, 30]


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("left", (-1, 0)),
        ("upright", (1, -1)),
        ("down", (0, 1)),
        ("downleft", (-1, 1)),
        ("none", (0, 0)),
        ("key_d", (0, 0)),
    ],
)
def test_action_arrows(name: str, direction: tuple[int, int]) -> None:
    assert strips.action_direction(name) == direction


# Planted truth


def probe_r2(h_NH: np.ndarray, y_N: np.ndarray, train_N: np.ndarray) -> float:
    """Held-out R2 of a linear probe."""
    design = np.concatenate([h_NH, np.ones((len(h_NH), 1))], 1)
    weights = np.linalg.lstsq(design[train_N], y_N[train_N], rcond=None)[0]
    missed = y_N[~train_N] - design[~train_N] @ weights
    return float(1 - missed.var() / y_N[~train_N].var())


def test_gradient_names_the_causal_direction_and_clears_the_nuisance(planted: Simulator[PlantedModel]) -> None:
    """A probe decodes both from h; only the one that acts has a gradient."""
    known = truth(dtype=torch.float64)
    episodes = record_planted(episodes=40, steps=30, seed=3)
    h = np.concatenate([e.h for e in episodes])
    stimulus = np.concatenate([e.truth["stimulus"] for e in episodes])
    train = np.concatenate([np.full(len(e.h), n % 2 == 0) for n, e in enumerate(episodes)])
    for direction in (known.causal, known.nuisance):
        assert probe_r2(h, stimulus[:, direction], train) > 0.7

    z, names = latents(planted, 16), planted.world.spec.action_names
    quantities = find_quantities(["value", *names], planted.world.spec, no_basis)
    for g in of_path(planted, z, chosen(planted, z), quantities):
        c = known.basis.pullback(g.h[:, : TARGET + 1])
        assert c[:, :, known.nuisance].abs().max() < 1e-15  # softmax leaves rounding, nothing else
        assert (c[:, :, known.causal].abs().amax(0) > 1e-3).all()
    (value,) = of_path(planted, z, chosen(planted, z), quantities[:1])
    expected = torch.from_numpy(known.value_K.copy()).expand(16, -1)
    torch.testing.assert_close(known.basis.pullback(value.h[:, TARGET]), expected)


@pytest.mark.parametrize(("steps", "lines"), [(1, 2), (2, 2), (12, 1)])
def test_the_words_above_a_strip_are_whole(steps: int, lines: int) -> None:
    """Of few steps they take two lines, and the picture is as wide as they are."""
    frames = np.zeros((steps, 12, 53, 3), np.uint8)
    maps = {"gradient": np.zeros((steps, 12, 53), np.float32)}
    title = "sample 0: action (part_0 2 + part_1 1) at step 0 = 1.122 nats"
    on = np.ones(steps, bool)
    strip = figures.Strip(frames, maps, {}, ["left"] * steps, np.zeros(steps), on, 0, title)
    inked = (np.asarray(figures.draw_strip(strip).convert("L")) < 128)[: 6 + 18 * lines]
    assert inked[6 + 18 * (lines - 1) :].any() and not inked[:, -5:].any()
