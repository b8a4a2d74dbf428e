"""What the planted worlds claim about themselves, against autograd, large samples and other libraries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from core.interventions import AddVector, AtSteps
from core.roll import Simulator
from envs.planted import (
    DELAY,
    KINDS,
    SIZE,
    SPARSE_SHARE,
    WRONG,
    Kind,
    PlantedAgent,
    PlantedModel,
    PlantedOptions,
    PlantedWorld,
    TwinModel,
    Wrong,
    WrongModel,
    behaviour_of,
    matrices,
    planted_simulator,
    record_planted,
    scene,
    shocks,
)
from envs.planted_truth import rand_index, truth

OFF = ~np.eye(SIZE, dtype=bool)


def pooled(options: PlantedOptions, episodes: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(c, stimuli) of all but the first steps of recorded episodes, [episodes, steps, ...]."""
    recorded = record_planted(options, episodes, steps, seed=3)
    h = torch.from_numpy(np.stack([e.h[1:] for e in recorded]))
    return truth(options).basis.project(h).numpy().astype(float), np.stack([e.truth["stimulus"][1:] for e in recorded])


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("pixels", "redundant")])
@pytest.mark.parametrize("env_grads", [True, False])
def test_jacobians_are_autograd_s_in_every_world(kind: Kind, env_grads: bool) -> None:
    """Where a product's gate is shut or its source is 0 its own derivative is 0, and the closed form is whole.  Of
    redundant directions the derivative depends on which is the larger."""
    options = PlantedOptions(kind=kind)
    known, simulator, lag = truth(options, torch.float64), planted_simulator(options, torch.float64), 4
    m = matrices(options)
    for behaviour in range(known.behaviours):
        z = torch.randn(1, simulator.world.latent_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        for i, switch in enumerate(m.behaviour_switches):
            z[0, switch] = 1.0 if behaviour >> i & 1 else -1.0
        if m.products:
            z[0, m.products[0].source] = 0.0
            z[0, SIZE:] = 0.0  # so that the source's direction is 0 as well

        def coordinates(change: torch.Tensor, z: torch.Tensor = z) -> torch.Tensor:
            push = AtSteps(AddVector(known.basis.lift_change(change)), 0, 1)
            return known.basis.project(simulator.rollout(z, lag, intervene=(push,), env_grads=env_grads).h[0, lag])

        found = torch.autograd.functional.jacobian(coordinates, torch.zeros(SIZE, dtype=torch.float64)).numpy().T
        p = simulator.rollout(z, lag).logits[0, :lag].softmax(-1).numpy()
        np.testing.assert_allclose(found, known.jacobian(p, env_grads, behaviour), atol=1e-12)


def expectation(
    simulator: Simulator[PlantedModel], z_1Z: torch.Tensor, change_H: torch.Tensor, steps: int
) -> torch.Tensor:
    """E[h at the last step] [H] with the hidden state changed at step 0, over all sequences of actions."""
    actions = torch.tensor(list(itertools.product(range(3), repeat=steps)))
    forced = torch.cat([actions, actions[:, :1]], 1)
    push = AtSteps(AddVector(change_H), 0, 1)
    path = simulator.rollout(z_1Z.expand(len(forced), -1), steps, actions=forced, intervene=(push,))
    p = path.logits[:, :steps].softmax(-1).gather(-1, actions[..., None])[..., 0].prod(1)
    assert float(p.sum()) == pytest.approx(1)
    return p @ path.h[:, steps]


@pytest.mark.parametrize("kind", ["confounded", "mediated", "linear"])
def test_effects_of_actions_are_slopes_of_the_exact_expectation(kind: Kind) -> None:
    """The closed form of the policy's expectation, against finite differences of the expectation itself; what is left
    is direct."""
    options, steps, small = PlantedOptions(kind=kind), 3, 1e-5
    known, simulator = truth(options, torch.float64), planted_simulator(options, torch.float64)
    z = torch.randn(1, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    R = matrices(options).R_HK
    slope = np.empty((SIZE, SIZE))
    for i in range(SIZE):
        push = small * torch.tensor(R[:, i])
        ends = [expectation(simulator, z, sign * push, steps) for sign in (1, -1)]
        slope[i] = (ends[0] - ends[1]).numpy() @ R / (2 * small)
    c = known.basis.project(simulator.rollout(z, 0).h[0, 0]).numpy()
    through = known.effect_of_actions(z[0, :SIZE].numpy(), c, steps, sampled=True)
    direct = known.jacobian(np.full((steps, 3), 1 / 3), env_grads=False)
    np.testing.assert_allclose(slope, through + direct, atol=1e-9)
    assert (np.abs(through).max() > 0.05) == (kind != "linear")
    # One step has nothing after it: the modal number is that of the expectation.
    one = [known.effect_of_actions(z[0, :SIZE].numpy(), c, 1, sampled=sampled) for sampled in (True, False)]
    np.testing.assert_allclose(*one, atol=1e-14)


def test_what_each_world_is_made_for() -> None:
    lags = (1, 2, 3, DELAY, 5)
    known = {kind: truth(PlantedOptions(kind=kind)) for kind in KINDS}
    effects = {kind: known[kind].effects(lags) * OFF for kind in KINDS}
    assert [(lag, e[0, 4]) for lag, e in zip(lags, effects["delayed"], strict=True) if e[0, 4]] == [(DELAY, 1.0)]
    mediated, alone = effects["mediated"], known["mediated"].effects(lags, env_grads=False) * OFF
    assert (mediated[:, 0, 1] > 0).all() and (mediated[:, 2, 1] < 0).all() and not alone.any()
    shut, open_ = (known["gated"].effects(lags, behaviour=b) * OFF for b in (0, 1))
    assert (
        not shut[:, 0, 1].any()
        and (open_[:, 0, 1] > 0).all()
        and (shut[:, 3] == open_[:, 3]).all()
        and shut[0, 3, 4] < 0
    )
    assert not effects["null"].any() and not known["null"].acts().any() and known["null"].causal == -1
    assert effects["linear"].min() < 0 < effects["linear"].max()
    for kind in KINDS:
        assert not effects[kind][:, known[kind].nuisance].any() and not known[kind].acts()[known[kind].nuisance], kind
        assert kind == "null" or known[kind].acts()[known[kind].causal]
    leaning = truth(PlantedOptions(kind="null", fickle=1.0, lean=0.5))
    assert leaning.effects((1,))[0, 0, 1] == 0.5 and leaning.value_K[0] == 0.5


@pytest.mark.parametrize("kind", ["linear", "delayed"])
@pytest.mark.parametrize("lag", [0, 1, DELAY])
def test_lagged_correlations_are_those_of_a_large_sample(kind: Kind, lag: int) -> None:
    options = PlantedOptions(kind=kind, hazard=0.0)
    c, _ = pooled(options, episodes=3000, steps=16)
    source, target = c[:, : c.shape[1] - lag].reshape(-1, SIZE), c[:, lag:].reshape(-1, SIZE)
    found = np.corrcoef(source.T, target.T)[:SIZE, SIZE:]
    exact = truth(options).lagged_correlation(lag, rows=17)
    np.testing.assert_allclose(found, exact, atol=0.025)
    if (kind, lag) in (("linear", 1), ("delayed", 1), ("delayed", DELAY)):
        assert np.abs(exact[OFF]).max() > 0.3 and not np.allclose(exact, exact.T)  # the direction of time is in it


def test_closed_forms_are_refused_where_there_are_none() -> None:
    for kind in KINDS:
        if kind not in ("linear", "delayed", "null"):
            with pytest.raises(ValueError, match="no closed form"):
                truth(PlantedOptions(kind=kind)).lagged_correlation(1, 10)
    with pytest.raises(ValueError, match="no mixture"):
        truth().cohens_d()
    with pytest.raises(ValueError, match="depends on its state"):
        truth(PlantedOptions(kind="pixels")).jacobian(np.full((1, 3), 1 / 3))
    with pytest.raises(ValueError, match="is not linear"):
        truth(PlantedOptions(kind="pixels")).effect_of_actions(np.zeros(SIZE), np.zeros(SIZE), 1)


def test_sparse_noise_is_sparse_and_has_variance_one() -> None:
    noise = shocks(np.random.default_rng(0).standard_normal(400_000), sparse=True)
    assert abs((noise != 0).mean() - SPARSE_SHARE) < 0.002 and abs(noise.var() - 1) < 0.04 and abs(noise.mean()) < 0.01


def test_mixture_is_what_its_closed_forms_say() -> None:
    from sklearn.metrics import adjusted_rand_score

    options = PlantedOptions(kind="mixture", hazard=0.0)
    known = truth(options)
    c, x = pooled(options, episodes=3000, steps=16)
    label, c = behaviour_of(options, x).ravel(), c.reshape(-1, SIZE)
    exact = known.cohens_d()
    for b in range(4):
        inside, outside = c[label == b], c[label != b]
        pooled_var = (len(inside) * inside.var(0) + len(outside) * outside.var(0)) / len(c)
        np.testing.assert_allclose((inside.mean(0) - outside.mean(0)) / np.sqrt(pooled_var), exact[b], atol=0.1)
    # The nearest of the true mean states, in z-scored neurons, of as many points as make sampling error small.
    mean_BK, var_K = known.mixture()
    rng = np.random.default_rng(0)
    b_N = rng.integers(4, size=400_000)
    h = (mean_BK[b_N] + np.sqrt(var_K) * rng.standard_normal((len(b_N), SIZE))) @ matrices(options).R_HK.T
    centres = np.stack([h[b_N == b].mean(0) for b in range(4)]) / h.std(0)
    nearest = (-2 * (h / h.std(0)) @ centres.T + (centres**2).sum(1)).argmin(1)
    assert adjusted_rand_score(b_N, nearest) == pytest.approx(known.cluster_agreement(), abs=0.002)
    assert 0.95 < known.cluster_agreement() < 0.99


def test_rand_index_is_the_limit_of_the_usual_one() -> None:
    from sklearn.metrics import adjusted_rand_score

    joint = np.array([[30, 5, 0], [2, 20, 3]])
    a, b = np.repeat(np.arange(2), 3), np.tile(np.arange(3), 2)
    many = 2000 * joint.ravel()
    assert rand_index(joint / joint.sum()) == pytest.approx(
        adjusted_rand_score(a.repeat(many), b.repeat(many)), abs=1e-4
    )


def test_behaviours_last_as_long_as_they_should() -> None:
    for dwell, low, high in ((64, 0.008, 0.025), (0, 0.0, 0.0)):
        options = PlantedOptions(kind="gated", hazard=0.0, dwell=dwell)
        recorded = record_planted(options, 400, 32, seed=0)
        behaviour = np.stack([e.truth["behaviour"] for e in recorded])
        assert low <= (behaviour[:, 1:] != behaviour[:, :-1]).mean() <= high
        assert abs(behaviour[:, 0].mean() - 0.5) < 0.1


def test_an_object_a_stimulus() -> None:
    options = PlantedOptions(kind="pixels", seed=3)
    s = scene(options)
    assert s.mask_XHW.sum(0).max() == 1 and (s.mask_XHW.sum((1, 2)) >= 36).all()
    world, model = PlantedWorld(options, 6), PlantedModel(options)
    step = world.reset(0)
    shown = step.obs["frames"]
    assert shown.min() > 0 and shown.max() < 255  # nothing is clipped
    read = model._state_of({"frames": torch.from_numpy(shown)}).numpy()
    np.testing.assert_allclose(read, step.truth["stimulus"], atol=0.1)
    x = torch.zeros(1, SIZE)
    plain = model.show(x)["frames"]
    for i in range(SIZE):
        moved = model.show(x.index_fill(1, torch.tensor([i]), 1.0))["frames"]
        assert ((moved != plain).any(-1)[0].numpy() == s.mask_XHW[i]).all()
    assert not np.array_equal(scene(PlantedOptions(kind="pixels", seed=4)).mask_XHW, s.mask_XHW)
    agent = PlantedAgent(options)
    frames = torch.from_numpy(shown)
    torch.testing.assert_close(agent.encode({"frames": frames}), agent.encode({"frames": frames.float() / 255}))


def effect_of(options: PlantedOptions, shifts: dict[int, float], steps: int = 1, episodes: int = 4000) -> np.ndarray:
    """What shifting directions changes of the value ``steps`` later, from states that occur, float64 [episodes]."""
    known, simulator = truth(options, torch.float64), planted_simulator(options, torch.float64)
    recorded = record_planted(options, episodes, 8, seed=5)
    z = torch.from_numpy(np.stack([np.concatenate([e.truth["stimulus"][6], e.h[5]]) for e in recorded]).astype(float))
    change = torch.zeros(SIZE, dtype=torch.float64)
    for i, amount in shifts.items():
        change[i] = amount
    push = AtSteps(AddVector(known.basis.lift_change(change)), 0, 1)
    value = [simulator.rollout(z, steps + 1, intervene=some).value[:, steps] for some in ((push,), ())]
    return (value[0] - value[1]).numpy()


def test_an_even_effect_is_the_same_up_and_down() -> None:
    options = PlantedOptions(kind="even", hazard=0.0)
    up, down = (effect_of(options, {0: amount}) for amount in (2.0, -2.0))
    assert up.mean() == pytest.approx(2.0, abs=0.15) and down.mean() == pytest.approx(2.0, abs=0.15)
    np.testing.assert_allclose((up + down) / 2, 2.0, atol=1e-6)  # a^2 w; what is left is odd in the state
    assert np.abs(effect_of(options, {3: 2.0}, episodes=50)).max() < 1e-12


def test_redundant_directions_do_nothing_one_by_one() -> None:
    options = PlantedOptions(kind="redundant", hazard=0.0)
    one, other, both = (effect_of(options, dict.fromkeys(ids, -2.0), episodes=200) for ids in ((0,), (1,), (0, 1)))
    np.testing.assert_allclose([one, other], 0, atol=1e-6)
    np.testing.assert_allclose(both, -2.0, atol=1e-6)
    raised = effect_of(options, {0: 2.0}, episodes=200)
    np.testing.assert_allclose(raised, 2.0, atol=1e-6)  # the larger one counts: it depends on the dose
    known = truth(options)
    assert known.in_agent_KK[0, 2] and known.in_agent_KK[1, 2] and known.acts()[:2].all()


def test_in_part_redundant_directions_do_what_their_difference_allows() -> None:
    from scipy.stats import norm

    options = PlantedOptions(kind="redundant", hazard=0.0, overlap=0.8)
    one = effect_of(options, {0: -2.0})
    c, _ = pooled(options, episodes=2000, steps=8)
    wide = (c[:, -1, 0] - c[:, -1, 1]).std()  # of the difference of two Gaussians, whose larger one counts
    exact = -2 * norm.cdf(-2 / wide) + wide * (norm.pdf(2 / wide) - norm.pdf(0))
    assert one.mean() == pytest.approx(exact, abs=0.02) and -0.5 < exact < -0.1
    np.testing.assert_allclose(effect_of(options, {0: -2.0, 1: -2.0}, episodes=50), -2.0, atol=1e-6)


def test_heavy_tails_have_the_mean_they_should() -> None:
    options = PlantedOptions(kind="null", hazard=0.0, fickle=1.0, tail=1.0)
    moods = np.array([e.truth["stimulus"][3, -1] for e in record_planted(options, 8000, 4, seed=2)])
    assert moods.min() > 0 and np.log(moods).std() == pytest.approx(1, abs=0.03)
    assert moods.mean() == pytest.approx(1, abs=0.07)
    even = effect_of(PlantedOptions(kind="null", hazard=0.0, fickle=1.0, tail=1.0, lean=-1.0), {0: 1.0})
    assert abs(even.mean()) < 4 * even.std() / np.sqrt(len(even)) and abs(np.median(even)) > 0.1


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_simulator_is_wrong_in_one_way(wrong: Wrong) -> None:
    options = PlantedOptions(kind="mediated", hazard=0.01)
    right = planted_simulator(options, torch.float64)
    other = planted_simulator(options, torch.float64, WrongModel(options, wrong))
    z = torch.randn(6, right.world.latent_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    actions = torch.tensor([[0, 0, 2, 2]]).expand(6, -1)

    def play(simulator: Simulator[PlantedModel]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        seen, ends, paid = [], [], []
        for m in simulator.roll(z, steps=4, actions=torch.cat([actions, actions[:, -1:]], 1)):
            seen.append(m.shown.obs["x"] @ simulator.world.C_XX)
            ends.append(m.shown.ending_B)
            paid.append(m.shown.reward_B)
        return torch.stack(seen).numpy(), torch.stack(ends).numpy(), torch.stack(paid).numpy()

    (x, ends, paid), (x_wrong, ends_wrong, paid_wrong) = play(right), play(other)
    np.testing.assert_allclose(x_wrong[0], x[0] if wrong != "garbage frames" else x_wrong[0], atol=1e-12)
    np.testing.assert_array_equal(ends[1:] != ends_wrong[1:], wrong == "terminal wrong")
    if wrong == "held frame":
        np.testing.assert_allclose(x_wrong, np.broadcast_to(x[0], x.shape), atol=1e-12)
    elif wrong in ("garbage frames", "garbage states"):
        assert abs(np.corrcoef(x[1:].ravel(), x_wrong[1:].ravel())[0, 1]) < 0.25 and 0.5 < x_wrong[1:].std() < 1.5
    elif wrong in ("actions ignored", "actions reversed"):
        pushed, others = 1, [i for i in range(SIZE) if i != 1]
        np.testing.assert_allclose(x_wrong[..., others], x[..., others], atol=1e-12)
        sign = -1 if wrong == "actions reversed" else 0
        assert x_wrong[1, :, pushed] == pytest.approx(0.875 * x[0, :, pushed] + sign * -0.5)
    elif wrong == "terminal wrong":
        np.testing.assert_array_equal(x, x_wrong)
        assert (ends_wrong[1:] == 0.5).all()
    else:
        np.testing.assert_allclose(x_wrong[:2], x[:2], atol=1e-12)
        np.testing.assert_allclose(x_wrong[2:], -x[2:], atol=1e-12)
        np.testing.assert_allclose(paid_wrong[2:], -paid[2:], atol=1e-12)


def test_a_twin_is_the_world_on_every_action_and_another_between_them() -> None:
    """No rollout tells the two apart; the slopes of its actions are ``between`` + 1 times the world's."""
    options = PlantedOptions(kind="mediated")
    plain, twin = PlantedModel(options).double(), TwinModel(options, between=-2.0).double()
    simulators = [planted_simulator(options, torch.float64, model) for model in (plain, twin)]
    z = torch.randn(6, plain.latent_size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = (s.rollout(z, 8) for s in simulators)
    # The one-hot's parts are 1 and 0 but for rounding (straight-through), which a slope of 3 may turn over.
    torch.testing.assert_close(a.d, b.d, rtol=0, atol=1e-12)
    assert torch.equal(a.action, b.action)
    hot, (state, _) = torch.eye(3, dtype=torch.float64)[a.action[:, 0]], plain.start(z)
    slopes = [
        torch.autograd.functional.jacobian(lambda action, m=model: m.step(state, action)[1].features_BD.sum(0), hot)
        for model in (plain, twin)
    ]
    assert slopes[0].abs().max() > 0.1
    torch.testing.assert_close(slopes[1], -slopes[0])
