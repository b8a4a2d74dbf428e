"""The rules of core.contracts.World, Inference and Memory, and of the loop, over every simulator there is."""

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
from core.contracts import EnvSpec, Field, UserError
from core.directions import Basis, fingerprint
from core.interventions import AddVector, AtSteps, Shift
from core.roll import Moment, Noise, Simulator, Trajectory, roll
from core.trees import flatten, leaves, rows_of
from envs.planted import KINDS, Kind, PlantedOptions, planted_simulator
from envs.procgen import ACTION_NAMES
from generative.recurrent_world import RSSMWorld
from generative.rssm import ModelConfig
from generative.simulator import simulator_of

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
    return agent.double().eval().requires_grad_(False)


def learned(agent: RecurrentAgent | None = None, **sizes: Any) -> Simulator[RSSMWorld]:
    """An untrained simulator in float64, frozen."""
    agent = agent or agent_of()
    simulator = simulator_of(ModelConfig(**{**vars(TINY), **sizes}), agent)
    simulator.world.double().eval().requires_grad_(False)
    return simulator


def feed_forward() -> Simulator[RSSMWorld]:
    return learned(agent_of(recurrence="none"))


def swapped() -> Simulator[RSSMWorld]:
    """The learned world with another agent, of another size."""
    return learned().with_agent(agent_of(seed=3, hidden_size=7))


def sphere() -> Simulator[RSSMWorld]:
    return learned(latent="hypersphere")


def grid() -> Simulator[RSSMWorld]:
    return learned(deterministic_size=128, groups=64, classes=3, latent_size=128, layout="grid")


def context() -> Simulator[Any]:
    return learned(deterministic_size=128, groups=64, classes=3, latent_size=128, layout="context", trunk_blocks=2)


def residual() -> Simulator[RSSMWorld]:
    return learned(layout="residual")


def planted(kind: Kind) -> Simulator[Any]:
    return planted_simulator(PlantedOptions(kind=kind, fickle=0.5), torch.float64)


SIMULATORS = {
    "learned": learned,
    "grid": grid,
    "context": context,
    "residual": residual,
    "hypersphere": sphere,
    **{f"planted_{k}": partial(planted, k) for k in KINDS},
    "feed-forward agent": feed_forward,
    "swapped agent": swapped,
}
# In the other worlds actions move no value.
STEERED = [name for name in SIMULATORS if not name.startswith("planted")] + ["planted_confounded", "planted_mediated"]
steered = pytest.mark.parametrize("simulator", STEERED, indirect=True)
Make = Callable[[], Simulator[Any]]


@pytest.fixture(params=sorted(SIMULATORS))
def simulator(request: pytest.FixtureRequest) -> Simulator[Any]:
    make: Make = SIMULATORS[request.param]
    return make()


def latents(simulator: Simulator[Any], batch: int = 3) -> Tensor:
    size = simulator.world.latent_size
    z = torch.randn(batch, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return simulator.world.normalise(z)


def draws_of(simulator: Simulator[Any], count: int, seed: int = 0, batch: int = 3) -> list[Noise]:
    generator = torch.Generator().manual_seed(seed)
    return [simulator.draw_noise(batch, generator) for _ in range(count)]


def parts_of(simulator: Simulator[Any]) -> dict[str, Tensor]:
    """All weights of agent and world."""
    agent: Any = simulator.agent
    return {f"agent.{k}": v for k, v in agent.state_dict().items()} | simulator.world.state_dict()


def columns(t: Trajectory) -> dict[str, Tensor]:
    """Everything a rollout says, by name."""
    world = {f"world {i}": x for i, x in enumerate(leaves(t.world))}
    return {**t.obs, **world, **{k: getattr(t, k) for k in t._fields if k not in ("obs", "world")}}


def remembers(simulator: Simulator[Any]) -> bool:
    config = getattr(simulator.agent, "config", None)
    return config is None or config.recurrence != "none"


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b)


def test_the_agent_inside_is_the_agent(simulator: Simulator[Any]) -> None:
    """Parity: the agent run by hand on the simulated observations gives bit-identical h, logits, value."""
    z, agent = latents(simulator), simulator.agent
    state = simulator.remembered(z)
    for m in simulator.roll(z, steps=4):
        seen = agent.encode(m.shown.obs)
        state = agent.advance(seen, state, torch.zeros(3, dtype=torch.bool))
        logits, value = agent.heads(seen, state)
        assert same(flatten(state), flatten(m.acted.state)) and same(agent.read("h", seen, state), m.h_BH)
        assert same(logits, m.acted.logits_BA) and same(value, m.acted.value_B)
        assert same(m.action, logits.argmax(-1)) and same(m.action_BA, one_hot(m.action, logits.shape[-1]))


def one_hot(index: Tensor, size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)[index]


def test_the_world_inside_is_the_world(simulator: Simulator[Any]) -> None:
    """Parity of the other part: the world stepped by hand with the actions of a rollout shows the same, to the bit,
    and knows of no agent."""
    z, draws = latents(simulator), draws_of(simulator, 5)
    for noise in (None, draws):
        out = simulator.rollout(z, 4, noise=noise)
        state, shown = simulator.world.start(z, None if noise is None else noise[0].world)
        for t in range(5):
            assert same(shown.features_BD, out.d[:, t])
            assert all(same(x, out.obs[name][:, t]) for name, x in shown.obs.items())
            assert shown.obs.keys() == simulator.world.spec.obs.keys() and shown.is_first_B is None
            assert bool(((shown.ending_B >= 0) & (shown.ending_B <= 1)).all())
            if t:
                assert same(shown.reward_B, out.reward[:, t - 1]) and same(shown.ending_B, out.terminal[:, t - 1])
            action = one_hot(out.action[:, t], simulator.world.spec.n_actions)
            state, shown = simulator.world.step(state, action, None if noise is None or t == 4 else noise[t + 1].world)


def test_every_state_is_a_tree_of_its_rows(simulator: Simulator[Any]) -> None:
    z, points = latents(simulator), simulator.agent.points
    for m in simulator.roll(z, steps=2, noise=draws_of(simulator, 3)):
        for tree in (m.world, m.acted.seen, m.acted.state, m.acted.untouched):
            assert all(len(x) == 3 for x in leaves(tree))
        for point, width in points.items():
            assert simulator.agent.read(point, m.acted.seen, m.acted.state).shape == (3, width)
    like = simulator.agent.initial(3)
    assert [x.shape for x in leaves(simulator.remembered(z))] == [x.shape for x in leaves(like)]
    assert [x.dtype for x in leaves(simulator.remembered(z))] == [x.dtype for x in leaves(like)]
    out = simulator.rollout(z, 2)
    assert out.state.shape == (3, 3, flatten(like).shape[1]) and out.h.shape == (3, 3, points["h"])
    assert same(out.state, out.h)  # these agents remember h and nothing else


def test_same_input_same_output(simulator: Simulator[Any]) -> None:
    z = latents(simulator)
    noise = [simulator.draw_noise(3, torch.Generator().manual_seed(t)) for t in range(5)]
    for kwargs in ({}, {"noise": noise}):
        a, b = (columns(simulator.rollout(z, 4, **kwargs)) for _ in range(2))
        assert all(same(a[n], b[n]) for n in a)


def test_noise_is_the_only_chance(simulator: Simulator[Any]) -> None:
    """Other noise gives another rollout; the global generator plays no part."""
    z = latents(simulator)
    draws = [draws_of(simulator, 7, seed) for seed in (1, 2)]
    one, other = (simulator.rollout(z, 6, noise=d) for d in draws)
    assert not same(one.d, other.d)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    simulator.rollout(z, 6, noise=draws[0])
    simulator.draw_noise(2, torch.Generator().manual_seed(0))
    assert same(before, torch.get_rng_state())


def test_noise_of_the_world_alone_leaves_the_likeliest_action(simulator: Simulator[Any]) -> None:
    """What the parts of a draw do, one by one: a world's noise moves no choice, a choice's no world."""
    z, draws = latents(simulator), draws_of(simulator, 4)
    world = simulator.rollout(z, 3, noise=[Noise(world=d.world) for d in draws])
    assert same(world.action, world.logits.argmax(-1)) and not same(world.d, simulator.rollout(z, 3).d)
    forced = torch.zeros(3, 4, dtype=torch.long)
    chance = [Noise(action_BA=d.action_BA, ending_B=d.ending_B) for d in draws]
    a, b = (simulator.rollout(z, 3, noise=n, actions=forced) for n in (chance, None))
    assert same(a.d, b.d) and same(a.logits, b.logits)
    free = simulator.rollout(z, 3, noise=chance)
    want = (free.logits + torch.stack([n.action_BA for n in chance if n.action_BA is not None], 1)).argmax(-1)
    assert same(free.action, want)


def test_batched_is_single(simulator: Simulator[Any]) -> None:
    z, draws = latents(simulator), draws_of(simulator, 5)
    for noise in (None, draws):
        together = simulator.rollout(z, 4, noise=noise)
        for b in range(3):
            own = None if noise is None else [rows_of(n, slice(b, b + 1)) for n in noise]
            alone = simulator.rollout(z[b : b + 1], 4, noise=own)
            torch.testing.assert_close(alone.h[0], together.h[b], rtol=1e-9, atol=1e-9)
            scores = together.logits[b]
            if noise is not None:
                scores = scores + torch.stack([n.action_BA[b] for n in noise if n.action_BA is not None])
            best, next_best = scores.topk(2, -1).values.unbind(-1)
            told = best - next_best > 1e-9  # else the last digit decides, which may depend on the batch
            assert same(alone.action[0][told], together.action[b][told]) and same(alone.alive[0], together.alive[b])


def test_nothing_is_mutated(simulator: Simulator[Any]) -> None:
    z = latents(simulator)
    weights = copy.deepcopy(parts_of(simulator))
    state, shown = simulator.world.start(z)
    kept = [x.clone() for x in (*leaves(state), *shown.obs.values(), shown.features_BD)]
    action = one_hot(torch.zeros(3, dtype=torch.long), simulator.world.spec.n_actions)
    simulator.world.step(state, action, simulator.draw_noise(3, torch.Generator().manual_seed(0)).world)
    simulator.rollout(z, 2)
    after = (*leaves(state), *shown.obs.values(), shown.features_BD)
    assert all(same(a, b) for a, b in zip(kept, after, strict=True))
    assert same(z, latents(simulator))
    assert all(same(weights[k], v) for k, v in parts_of(simulator).items())


def test_rollout_is_aligned(simulator: Simulator[Any]) -> None:
    """Row t of reward and terminal is the transition t -> t+1; obs, h, logits, value, action share a row."""
    z = latents(simulator)
    out = simulator.rollout(z, 4)
    assert out.h.shape[1] == out.value.shape[1] == out.action.shape[1] == out.d.shape[1] == 5
    assert out.reward.shape == out.terminal.shape == (3, 4)
    moments = list(simulator.roll(z, steps=4))
    assert [m.t_B.tolist() for m in moments] == [[t] * 3 for t in range(5)]
    for t, m in enumerate(moments):
        assert same(m.h_BH, out.h[:, t]) and same(m.action, out.action[:, t]) and same(m.alive_B, out.alive[:, t])
        if t:
            assert same(m.shown.reward_B, out.reward[:, t - 1]) and same(m.shown.ending_B, out.terminal[:, t - 1])
    none = simulator.rollout(z, 0)
    assert none.h.shape[1] == 1 and none.reward.shape == none.terminal.shape == (3, 0)


def test_going_on_from_a_moment_is_the_same_rollout(simulator: Simulator[Any]) -> None:
    """From what a moment holds, nothing else: by what the agent remembered before it, and by its state after it."""
    z, draws = latents(simulator), draws_of(simulator, 6)
    push = (AtSteps(AddVector(torch.full((simulator.agent.points["h"],), 0.5, dtype=torch.float64)), 1, 5),)
    actions = torch.randint(0, 3, (3, 6), generator=torch.Generator().manual_seed(0))
    for forced in (None, actions):
        whole = list(simulator.roll(z, steps=5, noise=draws, intervene=push, actions=forced))
        for k in (1, 3):
            at, rest = whole[k], None if forced is None else forced[:, k:]
            for known in ({"state": at.acted.untouched}, {"memory": whole[k - 1].acted.state}):
                again = roll(
                    simulator.agent, simulator.world, (at.world, at.shown), steps=5 - k, noise=draws[k:], actions=rest,
                    intervene=push, alive_B=at.alive_B, first=k, **known,
                )  # fmt: skip
                for mine, right in zip(again, whole[k:], strict=True):
                    assert all(same(a, b) for a, b in zip(numbers(mine), numbers(right), strict=True))


def numbers(m: Moment) -> list[Tensor]:
    """All that a moment says."""
    shown, acted = m.shown, m.acted
    seen = [*shown.obs.values(), shown.reward_B, shown.ending_B, shown.features_BD]
    trees = (m.world, acted.seen, acted.state, acted.untouched, acted.logits_BA, acted.value_B)
    return [*seen, *leaves(trees), m.t_B, m.h_BH, m.action, m.action_BA, m.alive_B]


@steered
def test_forced_actions_steer_the_world_one_step_later(simulator: Simulator[Any]) -> None:
    z = latents(simulator)
    actions = torch.zeros(3, 5, dtype=torch.long)
    other = actions.clone()
    other[:, 2] = 1
    a, b = simulator.rollout(z, 4, actions=actions), simulator.rollout(z, 4, actions=other)
    assert same(a.d[:, :3], b.d[:, :3]) and same(a.h[:, :3], b.h[:, :3])
    assert not same(a.d[:, 3], b.d[:, 3])
    assert same(b.action, other)


@steered
def test_env_grads_cuts_action_to_world_and_nothing_else(simulator: Simulator[Any]) -> None:
    def gradients(env_grads: bool, steps: int) -> tuple[Tensor, Tensor]:
        push = torch.zeros(3, simulator.agent.points["h"], dtype=torch.float64, requires_grad=True)

        out = simulator.rollout(
            latents(simulator), steps, intervene=(AtSteps(AddVector(push), 0, 1),), env_grads=env_grads
        )
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


def test_strength_zero_changes_no_bit_and_strength_one_does(simulator: Simulator[Any]) -> None:
    size = simulator.agent.points["h"]
    eye, zero, one = (f(size, dtype=torch.float64) for f in (torch.eye, torch.zeros, torch.ones))
    basis = Basis("neurons", zero, one, eye, eye)
    z = latents(simulator)
    plain = simulator.rollout(z, 4)
    none = simulator.rollout(z, 4, intervene=(Shift(basis, (0,), (0.0,)),))
    some = simulator.rollout(z, 4, intervene=(Shift(basis, (0,), (1.0,)),))
    assert same(plain.h, none.h) and same(plain.d, none.d) and same(plain.action, none.action)
    assert not same(plain.h, some.h)


def test_three_step_rollout_has_the_right_gradient(simulator: Simulator[Any]) -> None:
    """Against central differences with every discrete choice held: actions forced, no noise, and the
    learned world's one-hot states are piecewise constant, so its value is compared through h alone."""
    z = latents(simulator, 1)
    actions = torch.zeros(1, 4, dtype=torch.long)

    def value_after(push: Tensor) -> Tensor:
        return simulator.rollout(z, 3, actions=actions, intervene=(AtSteps(AddVector(push), 0, 1),)).value.sum()

    start = torch.zeros(1, simulator.agent.points["h"], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value_after, (start,), eps=1e-6, atol=1e-7)


def test_infer_then_start_is_differentiable_in_frames() -> None:
    simulator = learned()
    frames = torch.rand(2, 3, 64, 64, 3, dtype=torch.float64, requires_grad=True)
    mean, _ = simulator.world.infer({"frames": frames})
    simulator.rollout(mean, 2).value.sum().backward()
    assert frames.grad is not None and bool((frames.grad.abs().amax((2, 3, 4)) > 0).all())


def test_a_simulation_that_ended_stays_ended() -> None:
    simulator = learned()
    with torch.no_grad():
        simulator.world.terminal_head[-1].weight.zero_()
        simulator.world.terminal_head[-1].bias.fill_(5.0)
    out = simulator.rollout(latents(simulator), 3)
    assert out.alive[:, 0].all() and not out.alive[:, 1:].any()


def test_noise_decides_when_a_simulation_ends() -> None:
    """The share of rollouts that end at a step is the probability that the world gives it."""
    simulator = learned()
    with torch.no_grad():
        simulator.world.terminal_head[-1].weight.zero_()
        simulator.world.terminal_head[-1].bias.fill_(-1.0)
    z, generator = latents(simulator, 1).expand(200, -1), torch.Generator().manual_seed(0)
    draws = [simulator.draw_noise(200, generator) for _ in range(3)]
    out = simulator.rollout(z, 2, noise=draws)
    p = out.terminal[0, 0].item()
    assert p == pytest.approx(1 / (1 + np.e))
    for t, lives in ((0, 1.0), (1, 1 - p), (2, (1 - p) ** 2)):
        rate = out.alive[:, t].double().mean().item()
        assert abs(rate - lives) <= 4 * np.sqrt(lives * (1 - lives) / 200), t
    assert not (out.alive[:, 2] & ~out.alive[:, 1]).any()  # and never comes back
    assert simulator.rollout(z[:2], 2).alive.all()  # the modal one goes on
    silent = [draw._replace(ending_B=None) for draw in draws]
    assert simulator.rollout(z, 2, noise=silent).alive.all()


def test_another_agent_in_the_same_world() -> None:
    """Forced alike, the world does not know who looks on; the agent is the other one; nothing of the first changes."""
    simulator = learned()
    before, z = fingerprint(simulator), latents(simulator)
    plain = simulator.rollout(z, 4)
    other = agent_of(seed=3, hidden_size=7)
    guest = simulator.with_agent(other)
    actions = torch.randint(0, 15, (3, 5), generator=torch.Generator().manual_seed(0))
    a, b = simulator.rollout(z, 4, actions=actions), guest.rollout(z, 4, actions=actions)
    assert same(a.d, b.d) and same(a.obs["frames"], b.obs["frames"]) and same(a.reward, b.reward)
    assert b.h.shape[-1] == 7 and same(guest.remembered(z), other.initial(3))
    h = other.initial(3)
    for t in range(5):
        h = other.advance(other.encode({"frames": b.obs["frames"][:, t]}), h, torch.zeros(3, dtype=torch.bool))
        torch.testing.assert_close(h, b.h[:, t])
    assert not same(guest.rollout(z, 4).action, plain.action)
    assert fingerprint(simulator) == before != fingerprint(guest)
    assert same(simulator.rollout(z, 4).h, plain.h) and simulator.agent.points["h"] == 5


def test_an_agent_of_another_world_does_not_fit() -> None:
    for spec, said in (
        (replace(SPEC, env_id="procgen/maze"), r"env_id .*procgen/maze"),
        (replace(SPEC, action_names=("go", "stay")), "action_names"),
        (replace(SPEC, obs={"pixels": SPEC.obs["frames"]}), "obs"),
        (replace(SPEC, action_parts={"move": 9, "use": 6}), "action_parts"),
    ):
        with pytest.raises(UserError, match=said):
            learned().with_agent(RecurrentAgent(AgentConfig(encoder="strided"), spec))


def test_legal_latents_stay_as_they_are(simulator: Simulator[Any]) -> None:
    z = latents(simulator)
    torch.testing.assert_close(simulator.world.normalise(z), z)
    once = simulator.world.normalise(3 * z)
    torch.testing.assert_close(simulator.world.normalise(once), once)


def test_observe_gives_a_world_state_a_step(simulator: Simulator[Any]) -> None:
    (name, field), *_ = simulator.world.spec.obs.items()
    length = 3
    obs = torch.rand(2, simulator.world.initial_frames - 1 + length, *field.shape, dtype=torch.float64)
    actions = torch.tensor([[0, 1, 2], [2, 1, 0]])
    d = simulator.world.observe({name: obs}, actions, torch.ones(2, length, dtype=torch.bool))
    assert d.shape == (2, length, simulator.rollout(latents(simulator), 1).d.shape[-1])
    later = actions.clone()
    later[:, 2] = 1
    assert same(d, simulator.world.observe({name: obs}, later, torch.ones(2, length, dtype=torch.bool)))


def test_unseen_frames_leave_no_trace() -> None:
    """Where ``seen`` is false the filter must not look at the frame."""
    simulator = learned()
    with torch.no_grad():  # large enough that another frame means another mode
        simulator.world.rssm.posterior_net[-1].weight.normal_(std=50)
        simulator.world.embed.weight.mul_(100)
    frames = torch.rand(2, 6, 64, 64, 3, dtype=torch.float64)
    other = frames.clone()
    other[:, 4:] = 0
    actions = torch.zeros(2, 4, dtype=torch.long)
    seen = torch.tensor([[True, True, False, False]] * 2)
    a, b = (simulator.world.observe({"frames": f}, actions, seen) for f in (frames, other))
    assert same(a, b)
    every = torch.ones_like(seen)
    a, b = (simulator.world.observe({"frames": f}, actions, every) for f in (frames, other))
    assert not same(a, b)
