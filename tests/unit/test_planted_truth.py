"""What the planted worlds claim about themselves, against autograd, large samples and other libraries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from core.interventions import AddVector, AtSteps
from envs.planted import (
    DELAY,
    KINDS,
    SIZE,
    SPARSE_SHARE,
    Kind,
    PlantedAgent,
    PlantedOptions,
    PlantedSimulator,
    PlantedWorld,
    behaviour_of,
    matrices,
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


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "pixels"])
@pytest.mark.parametrize("env_grads", [True, False])
def test_jacobians_are_autograd_s_in_every_world(kind: Kind, env_grads: bool) -> None:
    """Where a product's gate is shut or its source is 0 its own derivative is 0, and the closed form is whole."""
    options = PlantedOptions(kind=kind)
    known, simulator, lag = truth(options, torch.float64), PlantedSimulator(options).double(), 4
    m = matrices(options)
    for behaviour in range(known.behaviours):
        z = torch.randn(1, simulator.latent_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
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


def expectation(simulator: PlantedSimulator, z_1Z: torch.Tensor, change_H: torch.Tensor, steps: int) -> torch.Tensor:
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
    known, simulator = truth(options, torch.float64), PlantedSimulator(options).double()
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
    world, simulator = PlantedWorld(options, 6), PlantedSimulator(options)
    step = world.reset(0)
    shown = step.obs["frames"]
    assert shown.min() > 0 and shown.max() < 255  # nothing is clipped
    read = simulator._state_of({"frames": torch.from_numpy(shown)}).numpy()
    np.testing.assert_allclose(read, step.truth["stimulus"], atol=0.1)
    x = torch.zeros(1, SIZE)
    plain = simulator.show(x)["frames"]
    for i in range(SIZE):
        moved = simulator.show(x.index_fill(1, torch.tensor([i]), 1.0))["frames"]
        assert ((moved != plain).any(-1)[0].numpy() == s.mask_XHW[i]).all()
    assert not np.array_equal(scene(PlantedOptions(kind="pixels", seed=4)).mask_XHW, s.mask_XHW)
    agent = PlantedAgent(options)
    frames = torch.from_numpy(shown)
    torch.testing.assert_close(agent.encode({"frames": frames}), agent.encode({"frames": frames.float() / 255}))
