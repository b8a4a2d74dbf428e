"""The rules of core.contracts.Simulator, over every simulator there is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.recurrent import AgentConfig, RecurrentAgent
from core.contracts import EnvSpec, Field, Simulator, UserError
from core.directions import Basis, fingerprint
from core.interventions import AddVector, Shift
from envs.planted import KINDS, Kind, PlantedOptions, PlantedSimulator
from envs.procgen import ACTION_NAMES
from generative.rssm import ModelConfig
from generative.simulator import RSSMSimulator

SPEC = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=ACTION_NAMES,
    slots=1,
)
TINY = ModelConfig(deterministic_size=12, hidden_size=16, groups=3, classes=4, depth=2, head_layers=1, latent_size=6)


def agent_of(seed: int = 0, hidden_size: int = 5, **config: Any) -> RecurrentAgent:
    torch.manual_seed(seed)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=hidden_size, **config), SPEC)
    torch.nn.init.normal_(agent.policy.weight, std=1.0)  # so that actions differ between steps
    return agent


def learned() -> RSSMSimulator:
    return RSSMSimulator(TINY, agent_of()).double().eval().requires_grad_(False)


def feed_forward() -> RSSMSimulator:
    return RSSMSimulator(TINY, agent_of(recurrence="none")).double().eval().requires_grad_(False)


def swapped() -> RSSMSimulator:
    """The learned world with another agent, of another size."""
    return learned().with_agent(agent_of(seed=3, hidden_size=7).double().eval().requires_grad_(False))


def sphere() -> RSSMSimulator:
    simulator = learned()
    config = ModelConfig(**{**vars(TINY), "latent": "hypersphere"})
    return RSSMSimulator(config, simulator.agent).double().eval().requires_grad_(False)


def grid() -> RSSMSimulator:
    simulator = learned()
    sizes = {"deterministic_size": 128, "groups": 64, "classes": 3, "latent_size": 128}
    config = ModelConfig(**{**vars(TINY), **sizes, "layout": "grid"})
    return RSSMSimulator(config, simulator.agent).double().eval().requires_grad_(False)


def planted(kind: Kind) -> PlantedSimulator:
    return PlantedSimulator(PlantedOptions(kind=kind, fickle=0.5)).double().eval().requires_grad_(False)


SIMULATORS = {
    "learned": learned,
    "grid": grid,
    "hypersphere": sphere,
    **{f"planted_{k}": partial(planted, k) for k in KINDS},
    "feed-forward agent": feed_forward,
    "swapped agent": swapped,
}
# In the other worlds actions move no value.
STEERED = [name for name in SIMULATORS if not name.startswith("planted")] + ["planted_confounded", "planted_mediated"]
steered = pytest.mark.parametrize("simulator", STEERED, indirect=True)
Make = Callable[[], RSSMSimulator]


@pytest.fixture(params=sorted(SIMULATORS))
def simulator(request: pytest.FixtureRequest) -> RSSMSimulator:
    return SIMULATORS[request.param]()


def latents(simulator: RSSMSimulator, batch: int = 3) -> Tensor:
    z = torch.randn(batch, simulator.latent_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return simulator.normalise(z)


def remembers(simulator: RSSMSimulator) -> bool:
    config = getattr(simulator.agent, "config", None)
    return config is None or config.recurrence != "none"


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b)


def test_the_agent_inside_is_the_agent(simulator: RSSMSimulator) -> None:
    """Parity: the agent run by hand on the simulated observations gives bit-identical h, logits, value."""
    z = latents(simulator)
    state = simulator.start(z)
    h = state.h_BH
    for _ in range(5):
        state, out = simulator.step(state)
        h = simulator.agent.advance(simulator.agent.encode(out.obs), h, torch.zeros(3, dtype=torch.bool))
        logits, value = simulator.agent.heads(h)
        assert same(h, out.h_BH) and same(logits, out.logits_BA) and same(value, out.value_B)
        assert same(out.action_B, logits.argmax(-1))


def test_same_input_same_output(simulator: RSSMSimulator) -> None:
    z = latents(simulator)
    noise = [simulator.draw_noise(3, torch.Generator().manual_seed(t)) for t in range(5)]
    for kwargs in ({}, {"noise": noise}):
        a, b = simulator.rollout(z, 4, **kwargs), simulator.rollout(z, 4, **kwargs)
        assert all(same(getattr(a, n), getattr(b, n)) for n in ("h", "d", "logits", "value", "action", "reward"))


def test_noise_is_the_only_chance(simulator: RSSMSimulator) -> None:
    """Other noise gives another rollout; the global generator plays no part."""
    z = latents(simulator)
    draws = [[simulator.draw_noise(3, torch.Generator().manual_seed(s)) for _ in range(7)] for s in (1, 2)]
    one, other = (simulator.rollout(z, 6, noise=d) for d in draws)
    assert not same(one.d, other.d)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    simulator.rollout(z, 6, noise=draws[0])
    assert same(before, torch.get_rng_state())


def test_batched_is_single(simulator: RSSMSimulator) -> None:
    z = latents(simulator)
    together = simulator.rollout(z, 4)
    for b in range(3):
        alone = simulator.rollout(z[b : b + 1], 4)
        torch.testing.assert_close(alone.h[0], together.h[b], rtol=1e-9, atol=1e-9)
        assert same(alone.action[0], together.action[b])


def test_nothing_is_mutated(simulator: RSSMSimulator) -> None:
    z = latents(simulator)
    weights = copy.deepcopy(simulator.state_dict())
    state = simulator.start(z)
    kept = [x.clone() for x in state[:-1]]
    simulator.step(state)
    assert all(same(a, b) for a, b in zip(kept, state[:-1], strict=True))
    assert same(z, latents(simulator))
    assert all(same(weights[k], v) for k, v in simulator.state_dict().items())


def test_rollout_is_aligned(simulator: RSSMSimulator) -> None:
    """Row t of reward and terminal is the transition t -> t+1; obs, h, logits, value, action share a row."""
    z = latents(simulator)
    out = simulator.rollout(z, 4)
    assert out.h.shape[1] == out.value.shape[1] == out.action.shape[1] == out.d.shape[1] == 5
    assert out.reward.shape == out.terminal.shape == (3, 4)
    state = simulator.start(z)
    for t in range(5):
        state, step = simulator.step(state)
        assert same(step.h_BH, out.h[:, t]) and same(step.action_B, out.action[:, t])
        if t:
            assert same(step.reward_B, out.reward[:, t - 1]) and same(step.terminal_B, out.terminal[:, t - 1])


@steered
def test_forced_actions_steer_the_world_one_step_later(simulator: RSSMSimulator) -> None:
    z = latents(simulator)
    actions = torch.zeros(3, 5, dtype=torch.long)
    other = actions.clone()
    other[:, 2] = 1
    a, b = simulator.rollout(z, 4, actions=actions), simulator.rollout(z, 4, actions=other)
    assert same(a.d[:, :3], b.d[:, :3]) and same(a.h[:, :3], b.h[:, :3])
    assert not same(a.d[:, 3], b.d[:, 3])
    assert same(b.action, other)


@steered
def test_env_grads_cuts_action_to_world_and_nothing_else(simulator: RSSMSimulator) -> None:
    def gradients(env_grads: bool, steps: int) -> tuple[Tensor, Tensor]:
        push = torch.zeros(3, simulator.agent.hidden_size, dtype=torch.float64, requires_grad=True)

        def at_start(h: Tensor, t: int, mask: Tensor) -> Tensor:
            return AddVector(push)(h, t, mask) if t == 0 else h

        out = simulator.rollout(latents(simulator), steps, intervene=(at_start,), env_grads=env_grads)
        # Adding 0 * push keeps a graph where the world does not depend on h at all.
        on_d = torch.autograd.grad(out.d.sum() + 0 * push.sum(), push, retain_graph=True)[0]
        return on_d, torch.autograd.grad(out.value.sum(), push)[0]

    with_world, without = gradients(True, 3), gradients(False, 3)
    assert with_world[0].abs().max() > 0  # h reaches the world through the action
    assert without[0].abs().max() == 0  # and only through it
    if remembers(simulator):
        assert without[1].abs().max() > 0  # the agent's own memory still carries
    assert not torch.equal(with_world[1], without[1])
    rows = simulator.rollout(latents(simulator), 3), simulator.rollout(latents(simulator), 3, env_grads=False)
    assert same(rows[0].h, rows[1].h)  # the forward pass does not change


def test_strength_zero_changes_no_bit_and_strength_one_does(simulator: RSSMSimulator) -> None:
    size = simulator.agent.hidden_size
    eye, zero, one = (f(size, dtype=torch.float64) for f in (torch.eye, torch.zeros, torch.ones))
    basis = Basis("neurons", zero, one, eye, eye)
    z = latents(simulator)
    plain = simulator.rollout(z, 4)
    none = simulator.rollout(z, 4, intervene=(Shift(basis, (0,), (0.0,)),))
    some = simulator.rollout(z, 4, intervene=(Shift(basis, (0,), (1.0,)),))
    assert same(plain.h, none.h) and same(plain.d, none.d) and same(plain.action, none.action)
    assert not same(plain.h, some.h)


def test_three_step_rollout_has_the_right_gradient(simulator: RSSMSimulator) -> None:
    """Against central differences with every discrete choice held: actions forced, no noise, and the
    learned world's one-hot states are piecewise constant, so its value is compared through h alone."""
    z = latents(simulator, 1)
    actions = torch.zeros(1, 4, dtype=torch.long)

    def value_after(push: Tensor) -> Tensor:
        def at_start(h: Tensor, t: int, mask: Tensor) -> Tensor:
            return AddVector(push)(h, t, mask) if t == 0 else h

        return simulator.rollout(z, 3, actions=actions, intervene=(at_start,)).value.sum()

    start = torch.zeros(1, simulator.agent.hidden_size, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value_after, (start,), eps=1e-6, atol=1e-7)


def test_infer_then_start_is_differentiable_in_frames() -> None:
    simulator = learned()
    frames = torch.rand(2, 3, 64, 64, 3, dtype=torch.float64, requires_grad=True)
    mean, _ = simulator.infer({"frames": frames})
    simulator.rollout(mean, 2).value.sum().backward()
    assert frames.grad is not None and bool((frames.grad.abs().amax((2, 3, 4)) > 0).all())


def test_a_simulation_that_ended_stays_ended() -> None:
    simulator = learned()
    with torch.no_grad():
        simulator.terminal_head[-1].weight.zero_()
        simulator.terminal_head[-1].bias.fill_(5.0)
    out = simulator.rollout(latents(simulator), 3)
    assert out.alive[:, 0].all() and not out.alive[:, 1:].any()


def test_noise_decides_when_a_simulation_ends() -> None:
    """The share of rollouts that end at a step is the probability that the world gives it."""
    simulator = learned()
    with torch.no_grad():
        simulator.terminal_head[-1].weight.zero_()
        simulator.terminal_head[-1].bias.fill_(-1.0)
    z, generator = latents(simulator, 1).expand(600, -1), torch.Generator().manual_seed(0)
    draws = [simulator.draw_noise(600, generator) for _ in range(3)]
    out = simulator.rollout(z, 2, noise=draws)
    p = out.terminal[0, 0].item()
    assert p == pytest.approx(1 / (1 + np.e))
    for t, lives in ((0, 1.0), (1, 1 - p), (2, (1 - p) ** 2)):
        rate = out.alive[:, t].double().mean().item()
        assert abs(rate - lives) <= 4 * np.sqrt(lives * (1 - lives) / 600), t
    assert not (out.alive[:, 2] & ~out.alive[:, 1]).any()  # and never comes back
    assert simulator.rollout(z[:2], 2).alive.all()  # the modal one goes on
    silent = [draw._replace(terminal_B=None) for draw in draws]
    assert simulator.rollout(z, 2, noise=silent).alive.all()


def test_another_agent_in_the_same_world() -> None:
    """Forced alike, the world does not know who looks on; the agent is the other one; nothing of the first changes."""
    simulator = learned()
    before, z = fingerprint(simulator), latents(simulator)
    plain = simulator.rollout(z, 4)
    other = agent_of(seed=3, hidden_size=7).double().eval().requires_grad_(False)
    guest = simulator.with_agent(other)
    actions = torch.randint(0, 15, (3, 5), generator=torch.Generator().manual_seed(0))
    a, b = simulator.rollout(z, 4, actions=actions), guest.rollout(z, 4, actions=actions)
    assert same(a.d, b.d) and same(a.obs["frames"], b.obs["frames"]) and same(a.reward, b.reward)
    assert b.h.shape[-1] == 7 and same(guest.start(z).h_BH, other.initial(3))
    h = other.initial(3)
    for t in range(5):
        h = other.advance(other.encode({"frames": b.obs["frames"][:, t]}), h, torch.zeros(3, dtype=torch.bool))
        torch.testing.assert_close(h, b.h[:, t])
    assert not same(guest.rollout(z, 4).action, plain.action)
    assert fingerprint(simulator) == before != fingerprint(guest)
    assert same(simulator.rollout(z, 4).h, plain.h) and simulator.agent.hidden_size == 5


def test_an_agent_of_another_world_does_not_fit() -> None:
    for spec, said in (
        (replace(SPEC, env_id="procgen/maze"), r"env_id .*procgen/maze"),
        (replace(SPEC, action_names=("go", "stay")), "action_names"),
    ):
        with pytest.raises(UserError, match=said):
            learned().with_agent(RecurrentAgent(AgentConfig(encoder="strided"), spec))


def test_legal_latents_stay_as_they_are(simulator: Simulator) -> None:
    z = latents(simulator)
    torch.testing.assert_close(simulator.normalise(z), z)
    once = simulator.normalise(3 * z)
    torch.testing.assert_close(simulator.normalise(once), once)


def test_observe_gives_a_world_state_a_step(simulator: Simulator) -> None:
    (name, field), *_ = simulator.spec.obs.items()
    length = 3
    obs = torch.rand(2, simulator.initial_frames - 1 + length, *field.shape, dtype=torch.float64)
    actions = torch.tensor([[0, 1, 2], [2, 1, 0]])
    d = simulator.observe({name: obs}, actions, torch.ones(2, length, dtype=torch.bool))
    assert d.shape == (2, length, simulator.rollout(latents(simulator), 1).d.shape[-1])
    later = actions.clone()
    later[:, 2] = 1
    assert same(d, simulator.observe({name: obs}, later, torch.ones(2, length, dtype=torch.bool)))


def test_unseen_frames_leave_no_trace() -> None:
    """Where ``seen`` is false the filter must not look at the frame."""
    simulator = learned()
    with torch.no_grad():  # large enough that another frame means another mode
        simulator.rssm.posterior_net[-1].weight.normal_(std=50)
        simulator.embed.weight.mul_(100)
    frames = torch.rand(2, 6, 64, 64, 3, dtype=torch.float64)
    other = frames.clone()
    other[:, 4:] = 0
    actions = torch.zeros(2, 4, dtype=torch.long)
    seen = torch.tensor([[True, True, False, False]] * 2)
    a, b = (simulator.observe({"frames": f}, actions, seen) for f in (frames, other))
    assert same(a, b)
    every = torch.ones_like(seen)
    a, b = (simulator.observe({"frames": f}, actions, every) for f in (frames, other))
    assert not same(a, b)
