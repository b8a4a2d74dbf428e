"""Effects through enumerated actions: against expectations over all actions, which need no gradient."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.recurrent import AgentConfig, RecurrentAgent
from analysis.coupling.discrete_paths import along_memory, forced_changes, policy_slopes, through_world
from analysis.shared.gradients import rows_of, unroll
from core.contracts import EnvSpec, Field, SimState, Simulator, StepNoise, StepOut
from core.interventions import AddVector, AtSteps
from envs.planted import PlantedOptions, PlantedSimulator, TwinSimulator
from envs.planted_truth import truth
from generative.rssm import ModelConfig
from generative.simulator import RSSMSimulator

STEPS, NAMES = 3, ("left", "none", "up", "right")
SINGLE = [[0], [1], [2]]


@pytest.fixture(scope="module")
def learned() -> RSSMSimulator:
    torch.manual_seed(0)
    spec = EnvSpec(
        env_id="other/world", obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")}, action_names=NAMES, slots=1
    )
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=5), spec)
    torch.nn.init.normal_(agent.policy.weight, std=2.0)
    sizes = {"deterministic_size": 12, "hidden_size": 16, "groups": 3, "classes": 4, "depth": 2, "latent_size": 6}
    simulator = RSSMSimulator(ModelConfig(head_layers=1, **sizes), agent)
    torch.nn.init.normal_(simulator.decoder.first.weight, std=1.0)
    return simulator.double().eval().requires_grad_(False)


def effects(
    simulator: Simulator,
    state: SimState,
    steps: int,
    groups: list[list[int]],
    noise: list[StepNoise] | None = None,
    rows: int = 64,
) -> Tensor:
    """Of every neuron at steps 0 .. steps-1 on every neuron at all steps, through the world: [B, S, U, H, H]."""
    with torch.no_grad():
        states, outs = unroll(simulator, state, steps + 1, noise=noise)
        e = [simulator.agent.encode(out.obs) for out in outs[1:]]
    h = along_memory(simulator.agent, outs[0].h_BH, e)
    slope = policy_slopes(simulator.agent, h[:-1], range(steps), groups)
    change = forced_changes(simulator, states, outs, lambda out: out.h_BH, groups, noise=noise, rows=rows)
    return through_world(slope, change)


def planted(kind: str) -> tuple[PlantedSimulator, Tensor]:
    simulator = PlantedSimulator(PlantedOptions(kind=kind)).double().requires_grad_(False)
    z = torch.randn(1, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return simulator, z


@pytest.mark.parametrize("kind", ["confounded", "mediated", "gated"])
def test_over_sampled_rollouts_the_estimate_is_unbiased(kind: str) -> None:
    """Its mean over rollouts is the derivative of the exact expectation over all sequences of actions
    (test_planted_truth).  In the confounded world later actions answer to earlier ones."""
    simulator, z = planted(kind)
    known, count = truth(simulator.options, torch.float64), 3000
    c = known.basis.project(simulator.rollout(z, 0).h[0, 0]).numpy()
    exact = known.effect_of_actions(z[0, :8].numpy(), c, STEPS, sampled=True)
    generator = torch.Generator().manual_seed(4)
    drawn = [simulator.draw_noise(count, generator) for _ in range(STEPS + 1)]
    noise = [n._replace(s_BS=torch.zeros_like(n.s_BS)) for n in drawn]  # the agent's alone
    found_h = effects(simulator, simulator.start(z.expand(count, -1)), STEPS, SINGLE, noise, rows=1000)[:, 0, -1]
    R = known.numbers.R_HK
    found = R.T @ found_h.numpy() @ R
    mean, error = found.mean(0), found.std(0) / np.sqrt(count)
    assert (np.abs(mean - exact) < 4.5 * error + 1e-9).all()
    if kind == "gated":  # nothing answers to actions there
        assert np.abs(found).max() < 1e-14
    else:
        assert (np.abs(mean) > 20 * error).any() and np.abs(exact).max() > 0.05
        assert (error > 1e-4).any() == (kind == "confounded")


def test_each_step_is_the_derivative_of_the_mean_over_that_step_s_action(learned: RSSMSimulator) -> None:
    """A learned simulator: y when an action is forced is taken from a rollout of its own, and the slope of its
    probability from finite differences with the actions before it held."""
    z = torch.randn(2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    start, steps, small = learned.start(z), 3, 1e-5
    got = effects(learned, start, steps, [[i] for i in range(4)])
    with torch.no_grad():
        _, outs = unroll(learned, start, steps + 1)
    taken = torch.stack([out.action_B for out in outs], 1)

    def run(t: int, action: int) -> Tensor:
        state = start
        for u in range(steps + 1):
            now = torch.full_like(taken[:, t], action) if u == t else None
            state, out = learned.step(state, action=now)
        return out.h_BH

    def probability(source: int, change: Tensor) -> Tensor:
        path = learned.rollout(z, steps, actions=taken, intervene=(AtSteps(AddVector(change), source, source + 1),))
        return path.logits.softmax(-1)

    y = torch.stack([torch.stack([run(t, a) for a in range(4)], 1) for t in range(steps)], 1)  # [B, T, A, H]
    for source, i in itertools.product(range(steps), range(5)):
        change = small * torch.eye(5, dtype=torch.float64)[i]
        slope = (probability(source, change) - probability(source, -change)) / (2 * small)  # [B, T+1, A]
        expected = torch.einsum("bta,btah->bh", slope[:, source:steps], y[:, source:])
        torch.testing.assert_close(got[:, source, steps, i], expected, rtol=1e-5, atol=1e-9)
    assert got[:, 0, steps].abs().max() > 1e-4
    # Nothing comes before its cause: the action at the source step shows one step later.
    assert all((got[:, source, : source + 1] == 0).all() for source in range(steps))


def test_twins_that_differ_between_actions_are_one() -> None:
    options = PlantedOptions(kind="confounded")
    z = torch.randn(9, 16, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = []
    for simulator in (PlantedSimulator(options), TwinSimulator(options), TwinSimulator(options, between=40.0)):
        simulator = simulator.double().requires_grad_(False)
        found.append(effects(simulator, simulator.start(z), STEPS, SINGLE))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=0)
    assert found[0].abs().max() > 0.05


def test_actions_of_a_group_are_one_action(learned: RSSMSimulator) -> None:
    z = torch.randn(12, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    groups, start = [[0], [1, 3], [2]], learned.start(z)
    with torch.no_grad():
        states, outs = unroll(learned, start, 3)
        e = [learned.agent.encode(out.obs) for out in outs[1:]]
    h = along_memory(learned.agent, outs[0].h_BH, e)
    together, single = (policy_slopes(learned.agent, h, [0], g) for g in (groups, [[i] for i in range(4)]))
    torch.testing.assert_close(together[..., 1, :], single[..., 1, :] + single[..., 3, :])
    torch.testing.assert_close(single.sum(3), torch.zeros_like(single[..., 0, :]))

    def read(out: StepOut) -> Tensor:
        return torch.cat([out.h_BH, out.value_B[:, None]], 1)

    forced = []

    class Watched(RSSMSimulator):
        def step(self, state: SimState, *a: object, **k: object) -> tuple[SimState, StepOut]:
            forced.append(state.action_BA.argmax(-1))
            return super().step(state, *a, **k)  # type: ignore[arg-type]

    learned.__class__ = Watched
    try:
        change = forced_changes(learned, states[:3], outs[:2], read, groups)
    finally:
        learned.__class__ = RSSMSimulator
    assert change.shape == (12, 1, 3, 2, 6)
    assert set(torch.cat(forced).tolist()) == {0, 1, 2} and len(torch.cat(forced)) == 24  # never 3, and none twice
    own = torch.tensor([[a in ids for ids in groups] for a in outs[0].action_B.tolist()])
    assert (change[own.nonzero(as_tuple=True)[0], 0, own.nonzero(as_tuple=True)[1]] == 0).all()
    assert (change[:, 0, :, 1].abs().amax(-1) > 0).equal(~own)


def test_the_batch_that_branches_run_in_does_not_matter(learned: RSSMSimulator) -> None:
    z = torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whole, parts = (effects(learned, learned.start(z), 2, [[i] for i in range(4)], rows=rows) for rows in (999, 3))
    torch.testing.assert_close(whole, parts, rtol=1e-9, atol=1e-13)
    alone = effects(learned, rows_of(learned.start(z), slice(2, 3)), 2, [[i] for i in range(4)])
    torch.testing.assert_close(alone[0], whole[2], rtol=1e-9, atol=1e-13)


def test_a_world_that_does_not_answer_leaves_no_rounding_behind() -> None:
    """Where actions do nothing, branches in other batches differ by rounding alone, and that is no effect."""
    simulator = PlantedSimulator(PlantedOptions(kind="delayed")).requires_grad_(False)
    z = torch.randn(7, 16, generator=torch.Generator().manual_seed(2))
    found = effects(simulator, simulator.start(z), 4, SINGLE, rows=5)
    assert found.dtype == torch.float32 and (found == 0).all()


def test_one_action_alone_changes_nothing() -> None:
    simulator, z = planted("confounded")
    assert (effects(simulator, simulator.start(z), 2, [[0, 1, 2]]) == 0).all()
