"""The planted truth is the truth: by closed form, by autograd, by what is decodable and by what acts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from core.contracts import Agent, LearnedWorld, UserError, VecEnv
from core.directions import fingerprint
from core.interventions import AddVector, AtSteps, Nullspace, Shift
from core.roll import Noise, Simulator
from envs.planted import (
    KINDS,
    Kind,
    PlantedAgent,
    PlantedModel,
    PlantedOptions,
    PlantedWorld,
    make_planted,
    matrices,
    planted_simulator,
    record_planted,
    rotation,
    spec_of,
)
from envs.planted_truth import truth
from envs.registry import make

SIZE = 8


@pytest.fixture(scope="module")
def simulator() -> Simulator[PlantedModel]:
    return planted_simulator(dtype=torch.float64)


def latents(simulator: Simulator[PlantedModel], batch: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, simulator.world.latent_size, generator=generator, dtype=torch.float64)


def test_contracts_and_registry() -> None:
    options = PlantedOptions(rho=0.5, seed=3)
    world = make(spec_of(options, 1), 4)
    assert isinstance(world, PlantedWorld) and isinstance(world, VecEnv)
    assert world.options == options and world.spec.slots == 4
    agent: Agent = PlantedAgent(options)
    inside: LearnedWorld = PlantedModel(options)
    simulator = planted_simulator(options)
    assert simulator.agent.points == agent.points == {"h": SIZE, "embedding": SIZE}
    assert simulator.agent.spec == simulator.world.spec == inside.spec == agent.spec
    assert fingerprint(PlantedAgent(options)) == fingerprint(simulator.agent) != fingerprint(simulator)
    assert fingerprint(PlantedAgent(options)) != fingerprint(PlantedAgent(replace(options, seed=4)))
    assert [make(spec_of(PlantedOptions(kind=k), 1), 2).spec.env_id for k in KINDS] == [f"planted/{k}" for k in KINDS]
    with pytest.raises(UserError, match="no planted world of kind 'linaer'"):
        PlantedWorld(PlantedOptions(kind="linaer"), 1)
    with pytest.raises(UserError, match="no planted world"):
        make_planted(replace(world.spec, env_id="planted/other"), 1)
    for bad in (PlantedOptions(rho=1.0), PlantedOptions(horizon=0), PlantedOptions(hazard=2.0)):
        with pytest.raises(UserError, match="planted world"):
            PlantedWorld(bad, 1)


def test_no_neuron_is_a_direction() -> None:
    for seed in range(20):
        R = rotation(np.random.default_rng(seed))
        np.testing.assert_array_equal(R @ R.T, np.eye(SIZE))  # exactly: dyadic rationals
        assert np.abs(R).max() <= 0.5
    assert not np.array_equal(rotation(np.random.default_rng(0)), rotation(np.random.default_rng(1)))


def test_float32_and_float64_are_the_same_numbers() -> None:
    m, agent = matrices(PlantedOptions()), PlantedAgent().double()
    np.testing.assert_array_equal(agent.W_HH.numpy(), m.R_HK @ m.W_KK @ m.R_HK.T)
    np.testing.assert_array_equal(agent.policy_AH.numpy() @ m.R_HK, m.policy_AK)
    np.testing.assert_array_equal(agent.value_H.numpy() @ m.R_HK, m.value_K)


# torch's own forward-mode rules are still scripted; nothing here calls torch.jit.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("env_grads", [True, False])
@pytest.mark.parametrize("lag", [1, 5])
def test_closed_form_jacobian_is_autograd_s(simulator: Simulator[PlantedModel], env_grads: bool, lag: int) -> None:
    t = truth(dtype=torch.float64)
    z = latents(simulator, 1)
    offset = torch.zeros(1, SIZE, dtype=torch.float64)

    def coordinates(change: torch.Tensor) -> torch.Tensor:
        push = AtSteps(AddVector(t.basis.lift_change(change)), 0, 1)
        return t.basis.project(simulator.rollout(z, lag, intervene=(push,), env_grads=env_grads).h[0, lag])

    jacobian = torch.autograd.functional.jacobian(coordinates, offset)[:, 0]
    logits = simulator.rollout(z, lag).logits[0, :lag]
    want = t.jacobian(logits.softmax(-1).numpy(), env_grads)
    np.testing.assert_allclose(jacobian.numpy().T, want, atol=1e-13)
    forward = torch.func.jacfwd(coordinates)(offset)[:, 0]
    torch.testing.assert_close(forward, jacobian)


def test_agent_only_jacobian_is_the_central_difference(simulator: Simulator[PlantedModel]) -> None:
    """With the actions forced nothing is straight-through: the derivative is a real one."""
    t, lag, step = truth(dtype=torch.float64), 3, 1e-3
    z, forced = latents(simulator, 1), torch.zeros(1, lag + 1, dtype=torch.int64)
    rows = []
    for i in range(SIZE):
        ends = []
        for sign in (1, -1):
            shift = AtSteps(Shift(t.basis, (i,), (sign * step,)), 0, 1)
            ends.append(t.basis.project(simulator.rollout(z, lag, actions=forced, intervene=(shift,)).h[0, lag]))
        rows.append((ends[0] - ends[1]) / (2 * step))
    want = t.jacobian(np.full((lag, 3), 1 / 3), env_grads=False)
    np.testing.assert_allclose(torch.stack(rows).numpy(), want, atol=1e-10)


def test_edges_are_where_the_jacobian_is(simulator: Simulator[PlantedModel]) -> None:
    t = truth()
    p = np.full((1, 3), 1 / 3) + [[0.1, -0.1, 0.0]]
    off = ~np.eye(SIZE, dtype=bool)
    agent_only, whole = t.jacobian(p, env_grads=False), t.jacobian(p)
    np.testing.assert_array_equal((agent_only != 0) & off, t.in_agent_KK)
    np.testing.assert_array_equal(whole - agent_only != 0, t.through_world_KK)
    assert t.in_agent_KK.any() and t.through_world_KK.any()
    assert not t.in_agent_KK[t.nuisance].any() and not t.through_world_KK[t.nuisance].any()
    assert t.through_world_KK[t.causal].any()
    assert t.value_K[t.nuisance] == 0 and not t.logits_AK[:, t.nuisance].any()
    assert t.value_K[t.causal] != 0 and t.logits_AK[:, t.causal].any()


def test_ablating_the_nuisance_changes_nothing_and_ablating_the_cause_does(simulator: Simulator[PlantedModel]) -> None:
    t = truth(dtype=torch.float64)
    z, noise = latents(simulator, 16), None
    draws = [simulator.draw_noise(16, torch.Generator().manual_seed(i)) for i in range(13)]
    for noise in (None, draws):
        plain = simulator.rollout(z, 12, noise=noise)
        nuisance = simulator.rollout(z, 12, noise=noise, intervene=(Nullspace(t.basis, (t.nuisance,)),))
        cause = simulator.rollout(z, 12, noise=noise, intervene=(Nullspace(t.basis, (t.causal,)),))
        for name in ("logits", "value", "d", "reward"):
            torch.testing.assert_close(getattr(nuisance, name), getattr(plain, name), rtol=0, atol=1e-12)
        assert torch.equal(nuisance.action, plain.action)
        c, c_plain = t.basis.project(nuisance.h), t.basis.project(plain.h)
        others = [k for k in range(SIZE) if k != t.nuisance]
        torch.testing.assert_close(c[..., others], c_plain[..., others], rtol=0, atol=1e-12)
        assert (c[..., t.nuisance].abs() < 1e-12).all() and (c_plain[..., t.nuisance].abs() > 0.01).any()
        assert (cause.logits - plain.logits).abs().max() > 0.5 and (cause.value - plain.value).abs().max() > 0.5
        assert (cause.action != plain.action).any()


def test_probes_decode_both_directions_and_they_are_confounded() -> None:
    episodes = record_planted(episodes=120, steps=40, seed=1)
    h = np.concatenate([e.h for e in episodes[:60]])
    x = np.concatenate([e.truth["stimulus"] for e in episodes[:60]])
    h_test = np.concatenate([e.h for e in episodes[60:]])
    x_test = np.concatenate([e.truth["stimulus"] for e in episodes[60:]])
    t = truth()
    for i in (t.causal, t.nuisance):
        weights = np.linalg.lstsq(h, x[:, i], rcond=None)[0]
        r2 = 1 - ((h_test @ weights - x_test[:, i]) ** 2).mean() / x_test[:, i].var()
        assert r2 > 0.8  # h smooths its stimulus; the rest is the last step's news
        c = h_test @ t.basis.project_HK.numpy()[:, i]
        weights = np.linalg.lstsq(h, h @ t.basis.project_HK.numpy()[:, i], rcond=None)[0]
        assert 1 - ((h_test @ weights - c) ** 2).mean() / c.var() > 0.999999
    c_pooled = np.concatenate([h, h_test]) @ t.basis.project_HK.numpy()
    rho = np.corrcoef(c_pooled[:, t.causal], c_pooled[:, t.nuisance])[0, 1]
    assert abs(rho - 0.8) < 0.03  # n = 4,600 autocorrelated steps
    # The confound: the nuisance foretells the value although it does nothing to it.
    value = np.concatenate([e.value for e in episodes])
    assert np.corrcoef(c_pooled[:, t.nuisance], value)[0, 1] > 0.5


def test_correlation_follows_rho_and_variance_is_stationary() -> None:
    for rho in (0.0, 0.8, -0.5):
        episodes = record_planted(PlantedOptions(rho=rho, hazard=0.0), episodes=400, steps=6, seed=2)
        for row in (0, 6):
            x = np.stack([e.truth["stimulus"][row] for e in episodes])
            t = truth()
            assert abs(np.corrcoef(x[:, t.causal], x[:, t.nuisance])[0, 1] - rho) < 0.17  # 3.3 / sqrt(400)
            assert abs(x[:, t.causal].std() - 1) < 0.12


@pytest.mark.parametrize("kind", KINDS)
def test_simulator_is_the_world(kind: Kind) -> None:
    """Without noise, from the first observation, the simulator repeats the real world and the real agent."""
    options = PlantedOptions(kind=kind, noise=0.0, hazard=0.0, fickle=0.5)
    simulator, world = planted_simulator(options, torch.float64), PlantedWorld(options, 5)
    agent = PlantedAgent(options).double()
    step, h = world.reset(4), agent.initial(5)
    name = agent.obs_name
    z, log_std = simulator.world.infer({name: torch.from_numpy(step.obs[name])[:, None]})
    assert log_std.shape == z.shape == (5, simulator.world.latent_size)
    trajectory = simulator.rollout(z, 20)
    for t in range(20):
        seen = agent.encode({name: torch.from_numpy(step.obs[name])})
        h = agent.advance(seen, h, torch.from_numpy(step.is_first))
        logits, value = agent.heads(seen, h)
        # Observations are float32; frames are whole numbers of 1/255, which is some 0.03 of a stimulus.
        tolerance = {"rtol": 0.0, "atol": 0.2 if kind == "pixels" else 1e-5}
        torch.testing.assert_close(trajectory.h[:, t], h, **tolerance)
        torch.testing.assert_close(trajectory.value[:, t], value, **tolerance)
        torch.testing.assert_close(trajectory.d[:, t], torch.from_numpy(step.truth["stimulus"]).double(), **tolerance)
        if kind not in ("null", "pixels"):  # ties, and what rounding may turn
            assert torch.equal(logits.argmax(-1), trajectory.action[:, t])
        step = world.step(trajectory.action[:, t].numpy())
        torch.testing.assert_close(trajectory.reward[:, t], torch.from_numpy(step.reward).double(), **tolerance)


@pytest.mark.parametrize("kind", ["confounded", "linear", "gated"])
def test_simulator_noise_is_the_world_s(kind: Kind) -> None:
    """One noisy transition of the simulator has the mean, covariance and ending rate of the world's."""
    options = PlantedOptions(kind=kind, hazard=0.5, dwell=4)
    simulator, world, count = planted_simulator(options, torch.float64), PlantedWorld(options, 2000), 2000
    state = PlantedWorld(options, 1)
    state.reset(0)
    states = state.snapshot()
    world.reset(1)
    own = world.snapshot()
    # Put one state with many different generators: keep each slot's generator, replace age and x.
    world.restore([states[0][: 8 + 64] + s[8 + 64 :] for s in own])
    step = world.step(np.full(count, 2))
    many = 4 * count  # simulated ones cost little, and then the error is the real ones' alone
    assert step.final_truth is not None
    real = step.final_truth["stimulus"].astype(np.float64)
    z = simulator.world.infer({"x": torch.from_numpy(state._look()[0]["x"])[:, None]})[0].expand(many, -1)
    generator = torch.Generator().manual_seed(0)
    forced = torch.full((many, 2), 2)
    draws = [simulator.draw_noise(many, generator) for _ in range(2)]
    simulated = simulator.rollout(z, 1, actions=forced, noise=draws)
    x = simulated.d[:, 1].numpy()
    np.testing.assert_allclose(x.mean(0), real.mean(0), atol=4 * 0.5 * np.sqrt(2 / count))
    # Sparse noise has a kurtosis above 40, so its variance is known less well.
    np.testing.assert_allclose(
        np.cov(x.T), np.cov(real.T), atol={"confounded": 0.04, "gated": 0.15, "linear": 0.6}[kind]
    )
    rates = step.terminated.mean(), 1 - simulated.alive[:, 1].double().mean().item()
    expected = float(simulated.terminal.mean())
    assert all(abs(rate - expected) < 4 * np.sqrt(expected / count) for rate in rates)


def test_simulator_gradcheck(simulator: Simulator[PlantedModel]) -> None:
    z = latents(simulator, 2).requires_grad_()
    forced = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])

    def outputs(z_BZ: torch.Tensor) -> tuple[torch.Tensor, ...]:
        t = simulator.rollout(z_BZ, 3, actions=forced)
        return t.h, t.logits, t.value, t.reward, t.terminal, t.obs["x"]

    assert torch.autograd.gradcheck(outputs, (z,))


def test_env_grads_cut_only_the_action(simulator: Simulator[PlantedModel]) -> None:
    t = truth(dtype=torch.float64)
    z = latents(simulator, 1)

    def grads(env_grads: bool) -> torch.Tensor:
        leaf = z.clone().requires_grad_()
        out = simulator.rollout(leaf, 4, env_grads=env_grads)
        return torch.autograd.grad(t.basis.project(out.h[0, 4])[2], leaf)[0][0]

    cut, whole = grads(False), grads(True)
    x_part = slice(0, SIZE)
    assert cut[x_part][2] != 0  # x -> observation -> h is still there
    assert cut[x_part][t.causal] == 0 and whole[x_part][t.causal] != 0  # cause -> action -> controlled is not
    assert abs(whole[x_part][t.nuisance]) < 1e-15  # the softmax's slopes cancel but for rounding


def test_simulated_endings_come_from_the_noise(simulator: Simulator[PlantedModel]) -> None:
    z = latents(simulator, 64)
    quiet = simulator.rollout(z, 30)
    assert quiet.alive.all() and (quiet.terminal > 0).all() and (quiet.terminal <= 0.01).all()
    still = torch.zeros(64, SIZE, dtype=torch.float64)
    never, always = (Noise(still, ending_B=torch.full((64,), u, dtype=torch.float64)) for u in (1.0, 0.0))
    ended = simulator.rollout(z, 4, noise=[never, never, always, never, never])
    assert ended.alive[:, :2].all() and not ended.alive[:, 2:].any()


def test_observe_reads_what_is_seen_and_foretells_the_rest(simulator: Simulator[PlantedModel]) -> None:
    options = PlantedOptions(noise=0.0, hazard=0.0)
    episode = record_planted(options, episodes=1, steps=10)[0]
    exact = planted_simulator(options, torch.float64).world
    obs = {"x": torch.from_numpy(episode.obs["x"])[None]}
    action = torch.from_numpy(np.append(episode.action, 0))[None]
    seen = torch.ones(1, 11, dtype=torch.bool)
    seen[0, 4:] = False
    d = exact.observe(obs, action, seen)
    np.testing.assert_allclose(d[0].numpy(), episode.truth["stimulus"], atol=1e-5)
    obs["x"][0, 4:] = 0  # nothing is read from unseen rows
    assert torch.equal(exact.observe(obs, action, seen), d)


def test_infer_takes_one_observation(simulator: Simulator[PlantedModel]) -> None:
    with pytest.raises(ValueError, match="takes 1 observation"):
        simulator.world.infer({"x": torch.zeros(2, 3, SIZE)})


def test_recorded_episodes_are_aligned() -> None:
    """h[t] follows from h[t-1] and obs[t]; logits[t] and value[t] from h[t]; x[t+1] from x[t] and action[t]."""
    options = PlantedOptions(noise=0.0, hazard=0.05)
    m, agent = matrices(options), PlantedAgent(options)
    episodes = record_planted(options, episodes=16, steps=24, seed=5)
    assert any(e.terminated for e in episodes) and any(e.truncated for e in episodes)
    for e in episodes:
        assert e.final_known and e.terminated != e.truncated and e.steps <= 24
        assert e.terminated or e.steps == 24
        h = agent.initial(1)
        for t in range(e.steps + 1):
            seen = agent.encode({"x": torch.from_numpy(e.obs["x"][t : t + 1])})
            h = agent.advance(seen, h, torch.tensor([t == 0]))
            logits, value = agent.heads(seen, h)
            np.testing.assert_allclose(e.h[t], h[0].numpy(), atol=1e-5)
            np.testing.assert_allclose(e.value[t], value[0].numpy(), atol=1e-5)
            if t < e.steps:
                np.testing.assert_allclose(e.logits[t], logits[0].numpy(), atol=1e-5)
                x = m.A_XX @ e.truth["stimulus"][t] + m.B_XA[:, e.action[t]]
                np.testing.assert_allclose(e.truth["stimulus"][t + 1], x, atol=1e-5)
                np.testing.assert_allclose(e.reward[t], m.reward_X @ x, atol=1e-5)


def test_null_world_has_no_effect_of_the_cause() -> None:
    t = truth(PlantedOptions(effect=0.0))
    assert t.value_K[t.causal] == 0 and not t.logits_AK[:, t.causal].any()
    assert not t.through_world_KK[t.causal].any()


def test_slots_do_not_depend_on_how_many_there_are() -> None:
    few, many = PlantedWorld(PlantedOptions(), 2), PlantedWorld(PlantedOptions(), 9)
    few.reset(5), many.reset(5)
    for t in range(80):
        a, b = few.step(np.full(2, t % 3)), many.step(np.full(9, t % 3))
        assert a.obs["x"].tobytes() == b.obs["x"][:2].tobytes()


def test_misuse_is_refused() -> None:
    world = PlantedWorld(PlantedOptions(), 2)
    with pytest.raises(ValueError, match="reset or restore"):
        world.step(np.zeros(2, int))
    with pytest.raises(ValueError, match="reset or restore"):
        world.snapshot()
    world.reset(0)
    for bad in (np.zeros(3, int), np.array([0, 3]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="actions"):
            world.step(bad)
    with pytest.raises(ValueError, match="1 states for 2 slots"):
        world.restore(world.snapshot()[:1])
