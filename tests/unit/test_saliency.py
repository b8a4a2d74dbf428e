"""Saliency: gradients that are what they say, quantities by name, and the checks that go with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.recurrent import AgentConfig, RecurrentAgent
from analysis import saliency
from analysis.saliency import Quantity, SaliencyConfig, find_quantities, gradients, parse_sample_ids
from core.contracts import EnvSpec, Field, UserError
from core.directions import Basis
from core.interventions import AddVector, AtSteps
from envs.planted import PlantedSimulator, record_planted
from envs.planted_truth import truth
from envs.procgen import ACTION_NAMES
from generative.rssm import ModelConfig
from generative.simulator import RSSMSimulator

SPEC = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=ACTION_NAMES,
    slots=1,
)
TARGET, STEPS = 3, 5


def no_basis(kind: str) -> Basis:
    raise UserError(f"{kind} needs --hidden_states")


def some_basis(size: int, k: int = 3) -> Basis:
    g = torch.Generator().manual_seed(2)
    project = torch.randn(size, k, generator=g, dtype=torch.float64)
    return Basis("ica", torch.zeros(size).double(), torch.ones(size).double(), project, torch.linalg.pinv(project))


@pytest.fixture(scope="module")
def learned() -> RSSMSimulator:
    """An untrained simulator, with actions and worlds that differ from step to step."""
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=5), SPEC)
    torch.nn.init.normal_(agent.policy.weight, std=2.0)
    sizes = {"deterministic_size": 12, "hidden_size": 16, "groups": 3, "classes": 4, "depth": 2, "latent_size": 6}
    simulator = RSSMSimulator(ModelConfig(head_layers=1, **sizes), agent)
    torch.nn.init.normal_(simulator.decoder.first.weight, std=1.0)
    return simulator.double().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def planted() -> PlantedSimulator:
    return PlantedSimulator().double().eval().requires_grad_(False)


def latents(simulator: RSSMSimulator | PlantedSimulator, batch: int = 3) -> Tensor:
    g = torch.Generator().manual_seed(1)
    return simulator.normalise(torch.randn(batch, simulator.latent_size, generator=g, dtype=torch.float64))


def chosen(simulator: RSSMSimulator | PlantedSimulator, z: Tensor, target: int = TARGET) -> Tensor:
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
    with pytest.raises(UserError, match=r"no quantity 'valu' \(did you mean value\?\).*jumping_left.*upright.*ica_ID"):
        find_quantities(["valu"], ACTION_NAMES, no_basis)
    with pytest.raises(UserError, match="no quantity 'leftwards'"):
        find_quantities(["leftwards"], ("stay", "go"), no_basis)
    with pytest.raises(UserError, match="twice"):
        find_quantities(["value", "value"], ACTION_NAMES, no_basis)
    with pytest.raises(UserError, match="needs --hidden_states"):
        find_quantities(["direction_0"], ACTION_NAMES, saliency.bases_in(None, "", torch.device("cpu")))
    with pytest.raises(UserError, match="direction 3 does not exist: the ica basis has 0 to 2"):
        find_quantities(["ica_3"], ACTION_NAMES, lambda kind: some_basis(5))


def test_direction_means_the_chosen_basis() -> None:
    asked = []
    find_quantities(["direction_1", "pca_2"], (), lambda kind: asked.append(kind) or some_basis(5), "nmf")
    assert asked == ["nmf", "pca"]


def test_action_quantities_are_log_probabilities() -> None:
    logits = torch.randn(4, len(ACTION_NAMES), dtype=torch.float64)
    reading = saliency.Reading(logits, logits, logits[:, 0], logits[:, 1], torch.tensor([0, 5, 7, 14]))
    p = logits.softmax(-1)
    read = {q.name: q.read(reading) for q in find_quantities(
        ["action", "leftwards", "rightwards", "jumping_up", "jumping_left", "jumping_right", "right", "value_delta"],
        ACTION_NAMES, no_basis,
    )}  # fmt: skip
    torch.testing.assert_close(read["action"].exp(), p[range(4), [0, 5, 7, 14]])
    torch.testing.assert_close(read["leftwards"].exp(), p[:, 0] + p[:, 1] + p[:, 2])
    torch.testing.assert_close(read["rightwards"].exp(), p[:, 6] + p[:, 7] + p[:, 8])
    for name, i in (("jumping_up", 5), ("jumping_left", 2), ("jumping_right", 8), ("right", 7)):
        torch.testing.assert_close(read[name].exp(), p[:, i])
    torch.testing.assert_close(read["value_delta"], logits[:, 0] - logits[:, 1])


# Gradients


def all_quantities(hidden: int, names: tuple[str, ...]) -> list[Quantity]:
    return find_quantities(["value", "value_delta", "action", "ica_1"], names, lambda kind: some_basis(hidden))


def test_without_the_world_the_gradient_is_the_agents_own(learned: RSSMSimulator) -> None:
    z = latents(learned)
    path = learned.rollout(z, STEPS)
    frames = {"frames": path.obs["frames"][:, : TARGET + 1]}
    quantities = all_quantities(5, ACTION_NAMES)
    cut = gradients(learned, z, chosen(learned, z), quantities, TARGET, steps=STEPS, env_grads=False)
    whole = gradients(learned, z, chosen(learned, z), quantities, TARGET, steps=STEPS)
    for q, a, b in zip(quantities, cut, whole, strict=True):
        own = saliency.agent_gradients(learned.agent, frames, learned.start(z).h_BH, chosen(learned, z), q)["frames"]
        torch.testing.assert_close(a.obs["frames"][:, : TARGET + 1], own, rtol=1e-9, atol=1e-15)
        assert (a.obs["frames"][:, TARGET + 1 :] == 0).all() and (a.h[:, TARGET + 1 :] == 0).all()
        assert a.obs["frames"].shape == (3, STEPS + 1, 64, 64, 3)
        # The target frame acts on the target through the agent only; earlier ones through the world too.
        torch.testing.assert_close(a.obs["frames"][:, TARGET], b.obs["frames"][:, TARGET])
        assert not torch.allclose(a.obs["frames"][:, 0], b.obs["frames"][:, 0], rtol=1e-6, atol=0)
        assert not torch.allclose(a.h[:, 0], b.h[:, 0], rtol=1e-6, atol=0)


def test_several_quantities_and_samples_from_one_pass(learned: RSSMSimulator) -> None:
    z, quantities = latents(learned), all_quantities(5, ACTION_NAMES)
    together = gradients(learned, z, chosen(learned, z), quantities, TARGET, steps=STEPS)
    for n, q in enumerate(quantities):
        for s in range(3):
            one = z[s : s + 1]
            alone = gradients(learned, one, chosen(learned, one), [q], TARGET, steps=STEPS)[0]
            for a, b in ((alone.y, together[n].y), (alone.h, together[n].h), (alone.d, together[n].d)):
                torch.testing.assert_close(a[0], b[s], rtol=1e-8, atol=1e-12)
            torch.testing.assert_close(alone.obs["frames"][0], together[n].obs["frames"][s], rtol=1e-8, atol=1e-12)


def test_a_gradient_that_is_no_number_is_refused(planted: PlantedSimulator) -> None:
    quantities = find_quantities(["value"], ("left", "wait", "right"), no_basis)
    z, config = latents(planted), SaliencyConfig(steps=3, target_step=2, copies=1, noise=0.0, integrated_steps=0)
    assert np.isfinite(saliency.explain(planted, z, [4, 5, 9], quantities, config).arrays["grad_h_value"]).all()
    z[1] = torch.nan
    with pytest.raises(UserError, match=r"is NaN or infinite at sample 5 \(1 of 3 samples\)"):
        saliency.explain(planted, z, [4, 5, 9], quantities, config)


def test_copies_are_averaged_sample_by_sample(learned: RSSMSimulator) -> None:
    z, quantities = latents(learned), all_quantities(5, ACTION_NAMES)
    noised = saliency.noised(learned, z, [4, 5, 6], 3, 1e-2, 0)
    actions = chosen(learned, z).repeat_interleave(3)
    mean = gradients(learned, noised, actions, quantities, TARGET, steps=STEPS, copies=3)
    each = gradients(learned, noised, actions, quantities, TARGET, steps=STEPS)
    for a, b in zip(mean, each, strict=True):
        assert b.h.unflatten(0, (3, 3)).std(1).max() > 0
        torch.testing.assert_close(a.h, b.h.unflatten(0, (3, 3)).mean(1))
        torch.testing.assert_close(a.y, b.y.unflatten(0, (3, 3)).mean(1))


def test_a_samples_noise_does_not_depend_on_its_batch(learned: RSSMSimulator) -> None:
    z = latents(learned)
    whole = saliency.noised(learned, z, [4, 5, 6], 2, 1e-3, 7)
    assert torch.equal(whole[2:4], saliency.noised(learned, z[1:2], [5], 2, 1e-3, 7))
    assert not torch.equal(whole[2:4], saliency.noised(learned, z[1:2], [5], 2, 1e-3, 8))
    assert 5e-4 < (whole - z.repeat_interleave(2, 0)).std() < 2e-3


def test_batches_give_what_one_pass_gives(learned: RSSMSimulator) -> None:
    z, ids = latents(learned), [8, 3, 5]
    quantities = find_quantities(["value", "action"], ACTION_NAMES, no_basis)
    options = {"steps": STEPS, "target_step": TARGET, "copies": 2, "integrated_steps": 4}
    whole = saliency.compute(learned, z, ids, quantities, SaliencyConfig(batch_size=3, **options))
    parts = saliency.compute(learned, z, ids, quantities, SaliencyConfig(batch_size=1, **options))
    assert set(whole.arrays) == set(parts.arrays)
    for name, array in whole.arrays.items():
        np.testing.assert_allclose(parts.arrays[name], array, rtol=1e-4, atol=1e-9, err_msg=name)
    a = whole.arrays
    np.testing.assert_allclose(
        a["grad_h_value_through_world"], a["grad_h_value"] - a["grad_h_value_agent_only"], atol=1e-7
    )
    assert whole.scalars["through_world_value"]["n"] == 3
    assert [row["sample"] for row in whole.tables["saliency"]] == ids * 2


def soft(logits_BA: Tensor, noise_BA: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What straight_through's gradient pretends: the action is a mixture, and nothing is discrete."""
    return logits_BA.argmax(-1), logits_BA.softmax(-1)


@pytest.mark.parametrize("env_grads", [True, False])
def test_gradient_of_h_is_the_finite_difference(
    planted: PlantedSimulator, env_grads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, step = latents(planted), 1e-5
    forced = None
    if env_grads:
        monkeypatch.setattr("envs.planted.straight_through", soft)
    else:  # the same actions whatever the agent feels: what is left acts inside the agent
        forced = planted.rollout(z, TARGET).action
    value = find_quantities(["value"], planted.spec.action_names, no_basis)
    got = gradients(planted, z, chosen(planted, z), value, TARGET, steps=STEPS, env_grads=env_grads)[0].h
    for t in range(TARGET + 1):
        for i in range(planted.agent.hidden_size):
            push = torch.zeros(planted.agent.hidden_size, dtype=torch.float64)
            push[i] = step
            ends = [
                planted.rollout(z, TARGET, actions=forced, intervene=(AtSteps(AddVector(s * push), t, t + 1),)).value
                for s in (1, -1)
            ]
            slope = (ends[0] - ends[1])[:, TARGET] / (2 * step)
            torch.testing.assert_close(slope, got[:, t, i], rtol=1e-6, atol=1e-9)


def test_directions_pull_back_to_their_own_coordinate(learned: RSSMSimulator) -> None:
    """At the target step the gradient of coordinate i, in coordinates, is the i-th unit vector."""
    basis, z = some_basis(5), latents(learned)
    quantities = find_quantities(["ica_0", "ica_2"], ACTION_NAMES, lambda kind: basis)
    for g, i in zip(gradients(learned, z, chosen(learned, z), quantities, TARGET, steps=STEPS), (0, 2), strict=True):
        unit = torch.eye(3, dtype=torch.float64)[i].expand(3, -1)
        torch.testing.assert_close(basis.pullback(g.h[:, TARGET]), unit, rtol=1e-9, atol=1e-9)


# Integrated gradients, randomised agents


def test_integrated_gradients_are_complete(learned: RSSMSimulator) -> None:
    z = latents(learned)
    outs = saliency.unroll(learned, learned.start(z), TARGET + 1)
    frame = {"frames": outs[1][TARGET].obs["frames"]}
    h, v, a = outs[0][TARGET].h_BH, outs[1][TARGET - 1].value_B, outs[1][TARGET].action_B
    black = {"frames": torch.zeros_like(frame["frames"])}
    for q in all_quantities(5, ACTION_NAMES):
        maps, change, delta = saliency.integrated_gradients(learned.agent, frame, black, h, v, a, q, 64)
        total = maps["frames"].flatten(1).sum(1)
        torch.testing.assert_close(total - change, delta, rtol=1e-6, atol=1e-9)
        assert (delta.abs() < 0.02 * change.abs().max()).all()
        # What it explains is the quantity of the rollout itself.
        reading = saliency.reading_at(outs[1], TARGET, a)
        there, _, _ = saliency.integrated_gradients(learned.agent, frame, frame, h, v, a, q, 4)
        assert (there["frames"] == 0).all()
        assert torch.isfinite(q.read(reading)).all()


def test_integrated_gradients_of_a_linear_agent_are_gradient_times_change(planted: PlantedSimulator) -> None:
    z = latents(planted)
    states, outs = saliency.unroll(planted, planted.start(z), TARGET + 1)
    (field,) = outs[0].obs
    obs, base = {field: outs[TARGET].obs[field]}, {field: outs[0].obs[field]}
    value = find_quantities(["value"], planted.spec.action_names, no_basis)[0]
    maps, change, delta = saliency.integrated_gradients(
        planted.agent, obs, base, states[TARGET].h_BH, outs[TARGET - 1].value_B, outs[TARGET].action_B, value, 4
    )
    slope = saliency.agent_gradients(
        planted.agent, {field: obs[field][:, None]}, states[TARGET].h_BH, outs[TARGET].action_B, value
    )[field][:, 0]
    torch.testing.assert_close(maps[field], slope * (obs[field] - base[field]))
    torch.testing.assert_close(maps[field].sum(-1), change)
    assert delta.abs().max() < 1e-10


def test_a_randomised_agent_keeps_the_scales_and_nothing_else(learned: RSSMSimulator) -> None:
    agent = learned.agent
    before = {k: v.clone() for k, v in agent.state_dict().items()}
    other = saliency.randomised(agent, 3)
    for name, p in other.state_dict().items():
        assert torch.equal(agent.state_dict()[name], before[name])
        assert torch.equal(p.flatten().sort().values, before[name].flatten().sort().values)
    assert not torch.equal(other.policy.weight, agent.policy.weight)
    again = saliency.randomised(agent, 3)
    assert torch.equal(other.policy.weight, again.policy.weight)


def test_rank_correlation_is_spearmans_of_absolute_values() -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 4, 5))
    b[1] = -a[1]
    a[2] = 1.0
    got = saliency.rank_correlation(a, b)
    assert got[0] == pytest.approx(spearmanr(np.abs(a[0]).ravel(), np.abs(b[0]).ravel()).statistic)
    assert got[1] == pytest.approx(1.0) and np.isnan(got[2])


def test_saved_bytes_counts_what_a_backward_pass_needs() -> None:
    x, w = torch.ones(1000, requires_grad=True), torch.ones(1000)
    assert saliency.saved_bytes(lambda: x.exp(), []) == 4000  # exp keeps its result
    assert saliency.saved_bytes(lambda: x * w, []) == 4000  # the product keeps w ...
    assert saliency.saved_bytes(lambda: x * w, [w]) == 0  # ... which is there anyway


# Pictures


def test_positive_is_blue_and_negative_is_red() -> None:
    frame, signed = np.full((64, 64, 3), 100, np.uint8), np.zeros((64, 64))
    signed[:32], signed[32:, :32] = 1.0, -1.0
    out = saliency.overlay(frame, signed, 1.0).astype(int)
    assert (out[:32] == saliency.BLUE).all() and (out[32:, :32] == saliency.RED).all()
    assert (out[32:, 32:] == out[63, 63]).all() and len(set(out[63, 63])) == 1
    assert (saliency.overlay(frame, signed, 0.0) == out[63, 63]).all()


def test_blur_and_colour_sum_change_the_picture_not_the_sum() -> None:
    grad = np.zeros((2, 64, 64, 3))
    grad[1, 30, 30] = [1.0, 2.0, -0.5]
    out = saliency.signed_map(grad)
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
    assert saliency.action_direction(name) == direction


# Planted truth


def probe_r2(h_NH: np.ndarray, y_N: np.ndarray, train_N: np.ndarray) -> float:
    """Held-out R2 of a linear probe."""
    design = np.concatenate([h_NH, np.ones((len(h_NH), 1))], 1)
    weights = np.linalg.lstsq(design[train_N], y_N[train_N], rcond=None)[0]
    missed = y_N[~train_N] - design[~train_N] @ weights
    return float(1 - missed.var() / y_N[~train_N].var())


def test_gradient_names_the_causal_direction_and_clears_the_nuisance(planted: PlantedSimulator) -> None:
    """A probe decodes both from h; only the one that acts has a gradient."""
    known = truth(dtype=torch.float64)
    episodes = record_planted(episodes=40, steps=30, seed=3)
    h = np.concatenate([e.h for e in episodes])
    stimulus = np.concatenate([e.truth["stimulus"] for e in episodes])
    train = np.concatenate([np.full(len(e.h), n % 2 == 0) for n, e in enumerate(episodes)])
    for direction in (known.causal, known.nuisance):
        assert probe_r2(h, stimulus[:, direction], train) > 0.7

    z, names = latents(planted, 16), planted.spec.action_names
    quantities = find_quantities(["value", *names], names, no_basis)
    for g in gradients(planted, z, chosen(planted, z), quantities, TARGET, steps=STEPS):
        c = known.basis.pullback(g.h[:, : TARGET + 1])
        assert c[:, :, known.nuisance].abs().max() < 1e-15  # softmax leaves rounding, nothing else
        assert (c[:, :, known.causal].abs().amax(0) > 1e-3).all()
    value = gradients(planted, z, chosen(planted, z), quantities[:1], TARGET, steps=STEPS)[0]
    expected = torch.from_numpy(known.value_K.copy()).expand(16, -1)
    torch.testing.assert_close(known.basis.pullback(value.h[:, TARGET]), expected)
