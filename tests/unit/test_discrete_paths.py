"""Effects through enumerated actions: against expectations over all actions, which need no gradient."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.recurrent import AgentConfig, RecurrentAgent
from analysis.coupling.discrete_paths import along_memory, forced_changes, policy_slopes, through_world
from core.contracts import EnvSpec, Field, Shown
from core.interventions import AddVector, AtSteps
from core.roll import Acted, Moment, Noise, Simulator, gumbel, one_hot
from core.trees import Tree
from envs.planted import PlantedModel, PlantedOptions, TwinModel, planted_simulator
from envs.planted_truth import truth
from generative.recurrent_world import RSSMWorld
from generative.rssm import ModelConfig
from generative.simulator import simulator_of

STEPS, NAMES = 3, ("left", "none", "up", "right")
SINGLE = [[0], [1], [2]]


@pytest.fixture(scope="module")
def learned() -> Simulator[RSSMWorld]:
    torch.manual_seed(0)
    spec = EnvSpec(
        env_id="other/world", obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")}, action_names=NAMES, slots=1
    )
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=5), spec)
    torch.nn.init.normal_(agent.policy.weight, std=2.0)
    sizes = {"deterministic_size": 12, "hidden_size": 16, "groups": 3, "classes": 4, "depth": 2, "latent_size": 6}
    simulator = simulator_of(ModelConfig(head_layers=1, **sizes), agent)
    torch.nn.init.normal_(simulator.world.decoder.first.weight, std=1.0)  # type: ignore[arg-type,union-attr]
    for part in (agent, simulator.world):
        part.double().eval().requires_grad_(False)
    return simulator


@pytest.fixture(scope="module")
def in_parts() -> Simulator[RSSMWorld]:
    """A learned simulator whose actions have two parts, of two and three choices."""
    torch.manual_seed(1)
    spec = EnvSpec(
        env_id="other/world", obs={"x": Field(shape=(3,), dtype="float32")}, action_names=("a", "b", "x", "y", "z"),
        action_parts={"go": 2, "do": 3}, slots=1,
    )  # fmt: skip
    agent = RecurrentAgent(AgentConfig(encoder="mlp", embedding_size=6, hidden_size=4), spec)
    torch.nn.init.normal_(agent.policy.weight, std=2.0)
    sizes = {"deterministic_size": 12, "hidden_size": 16, "groups": 3, "classes": 4, "depth": 2, "latent_size": 6}
    simulator = simulator_of(ModelConfig(head_layers=1, **sizes), agent)
    for p in simulator.world.decoder.parameters():
        p.data.mul_(4)
    for part in (agent, simulator.world):
        part.double().eval().requires_grad_(False)
    return simulator


def effects(
    simulator: Simulator[Any],
    z: Tensor,
    steps: int,
    groups: list[list[int]],
    noise: list[Noise] | None = None,
    rows: int = 64,
) -> Tensor:
    """Of every neuron at steps 0 .. steps-1 on every neuron at all steps, through the world: [B, S, U, H, H]."""
    with torch.no_grad():
        moments = list(simulator.roll(z, steps=steps, noise=noise))
    acted = along_memory(simulator.agent, moments)
    slope = policy_slopes(acted[:-1], range(steps), groups, simulator.agent.spec.parts)
    change = forced_changes(simulator, moments, lambda moment: moment.h_BH, groups, noise=noise, rows=rows)
    return through_world(slope, change)


def planted(kind: str) -> tuple[Simulator[PlantedModel], Tensor]:
    simulator = planted_simulator(PlantedOptions(kind=kind), torch.float64)
    z = torch.randn(1, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return simulator, z


@pytest.mark.parametrize("kind", ["confounded", "mediated", "gated"])
def test_over_sampled_rollouts_the_estimate_is_unbiased(kind: str) -> None:
    """Its mean over rollouts is the derivative of the exact expectation over all sequences of actions
    (test_planted_truth).  In the confounded world later actions answer to earlier ones."""
    simulator, z = planted(kind)
    known, count = truth(simulator.world.options, torch.float64), 3000
    c = known.basis.project(simulator.rollout(z, 0).h[0, 0]).numpy()
    exact = known.effect_of_actions(z[0, :8].numpy(), c, STEPS, sampled=True)
    generator = torch.Generator().manual_seed(4)
    drawn = [simulator.draw_noise(count, generator) for _ in range(STEPS + 1)]
    noise = [n._replace(world=torch.zeros_like(n.world)) for n in drawn]  # the agent's alone
    found_h = effects(simulator, z.expand(count, -1), STEPS, SINGLE, noise, rows=1000)[:, 0, -1]
    R = known.numbers.R_HK
    found = R.T @ found_h.numpy() @ R
    mean, error = found.mean(0), found.std(0) / np.sqrt(count)
    assert (np.abs(mean - exact) < 4.5 * error + 1e-9).all()
    if kind == "gated":  # nothing answers to actions there
        assert np.abs(found).max() < 1e-14
    else:
        assert (np.abs(mean) > 20 * error).any() and np.abs(exact).max() > 0.05
        assert (error > 1e-4).any() == (kind == "confounded")


def test_each_step_is_the_derivative_of_the_mean_over_that_step_s_action(learned: Simulator[RSSMWorld]) -> None:
    """A learned simulator: y when an action is forced is taken from a rollout of its own, and the slope of its
    probability from finite differences with the actions before it held."""
    z = torch.randn(2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    steps, small = 3, 1e-5
    got = effects(learned, z, steps, [[i] for i in range(4)])
    taken = learned.rollout(z, steps).action

    def run(t: int, action: int) -> Tensor:
        """The last hidden state, where the agent chooses for itself at every step but t."""
        parts, at = learned.agent.spec.parts, iter(range(steps + 1))

        def choose_by(acted: Acted, shown: Shown) -> tuple[Tensor, Tensor]:
            index = torch.full_like(taken[:, t], action) if next(at) == t else acted.logits_BA.argmax(-1)
            return index, one_hot(index, parts, acted.logits_BA)

        return learned.rollout(z, steps, choose_by=choose_by).h[:, -1]

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


def effect_over_all_actions(simulator: Simulator[RSSMWorld], z: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """(Effect [H, H] of h at step 0 on h at step ``steps`` by way of the actions, the chance of every sequence of
    actions [all]): the derivative of the expectation over all of them, their chances from finite differences."""
    parts, small, size = simulator.agent.spec.parts, 1e-5, simulator.agent.points["h"]
    every = list(itertools.product(itertools.product(*map(range, parts)), repeat=steps))
    actions = torch.tensor([[*sequence, (0,) * len(parts)] for sequence in every])
    alike = z.expand(len(actions), -1)

    def chance(change: Tensor) -> Tensor:
        path = simulator.rollout(alike, steps, actions=actions, intervene=(AtSteps(AddVector(change), 0, 1),))
        each = path.logits[:, :steps].split(list(parts), -1)
        chosen = (
            p.log_softmax(-1).gather(-1, a[:, :steps, None]) for p, a in zip(each, actions.unbind(-1), strict=True)
        )
        return sum(x[..., 0].sum(1) for x in chosen).exp()  # type: ignore[union-attr,return-value]

    y = simulator.rollout(alike, steps, actions=actions).h[:, -1]
    moves = small * torch.eye(size, dtype=z.dtype)
    slope = torch.stack([chance(move) - chance(-move) for move in moves]) / (2 * small)
    return slope @ y, chance(0 * moves[0])


def test_actions_of_several_parts_are_enumerated_part_by_part(in_parts: Simulator[RSSMWorld]) -> None:
    """One step: the mean over what the agent draws there is the derivative of the expectation over whole actions."""
    z = torch.randn(1, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact, chance = effect_over_all_actions(in_parts, z, 1)
    drawn = torch.tensor(list(itertools.product(range(2), range(3))))
    certain = Noise(action_BA=1e6 * one_hot(drawn, (2, 3), z))
    found = effects(in_parts, z.expand(6, -1), 1, in_parts.world.spec.distinct_choices(), [certain, certain])[:, 0, 1]
    torch.testing.assert_close(torch.einsum("n,nij->ij", chance, found), exact, rtol=1e-6, atol=1e-9)
    assert exact.abs().max() > 1e-3 and chance.max() < 0.9


def test_over_sampled_rollouts_of_several_parts_the_estimate_is_unbiased(in_parts: Simulator[RSSMWorld]) -> None:
    z, count = torch.randn(1, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64), 4000
    exact, _ = effect_over_all_actions(in_parts, z, 2)
    generator = torch.Generator().manual_seed(4)
    noise = [Noise(action_BA=gumbel((count, 5), generator, z)) for _ in range(3)]
    found = effects(in_parts, z.expand(count, -1), 2, in_parts.world.spec.distinct_choices(), noise, rows=2000)[:, 0, 2]
    mean, error = found.mean(0), found.std(0) / np.sqrt(count)
    assert ((mean - exact).abs() < 4.5 * error + 1e-9).all()
    assert (mean.abs() > 20 * error).any() and (error > 0).all()


def test_one_part_is_forced_and_the_others_stay(in_parts: Simulator[RSSMWorld]) -> None:
    """As many branches as there are choices that were not taken, and what was taken of each part changes nothing."""
    z = torch.randn(7, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        moments = list(in_parts.roll(z, steps=1))
    given = []

    class Watched:
        """The same world, which notes what it is given."""

        spec = in_parts.world.spec

        def step(self, state: Tree, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
            given.append(action_BA)
            return in_parts.world.step(state, action_BA, noise)

    watched: Any = Watched()
    groups = in_parts.world.spec.distinct_choices()
    assert groups == [[0], [1], [2], [3], [4]]
    change = forced_changes(Simulator(in_parts.agent, watched, None), moments, lambda m: m.h_BH, groups)
    forced, taken = torch.cat(given), moments[0].action_BA.bool()
    assert len(forced) == 7 * 3 and (forced.split([2, 3], 1)[0].sum(1) == 1).all() and (forced.sum(1) == 2).all()
    whole = torch.stack([row for b in range(7) for row in forced[3 * b : 3 * b + 3] - moments[0].action_BA[b]])
    assert (whole.abs().sum(1) == 2).all()  # of one part alone something else is done
    assert (change[:, 0, :, 1][taken] == 0).all() and (change[:, 0, :, 1].abs().amax(-1)[~taken] > 0).all()


def test_choices_that_do_the_same_are_one_within_their_part(in_parts: Simulator[RSSMWorld]) -> None:
    spec = replace(in_parts.world.spec, same_actions=(("z", "x", "b"),))
    assert spec.distinct_choices() == [[0], [1], [2, 4], [3]]
    one = replace(spec, action_parts={})
    assert one.distinct_choices() == list(one.distinct_actions().values()) == [[0], [1, 2, 4], [3]]


def test_twins_that_differ_between_actions_are_one() -> None:
    options = PlantedOptions(kind="confounded")
    z = torch.randn(9, 16, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found = []
    for model in (PlantedModel(options), TwinModel(options), TwinModel(options, between=40.0)):
        found.append(effects(planted_simulator(dtype=torch.float64, model=model), z, STEPS, SINGLE))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=0)
    assert found[0].abs().max() > 0.05


def test_actions_of_a_group_are_one_action(learned: Simulator[RSSMWorld]) -> None:
    z = torch.randn(12, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    groups = [[0], [1, 3], [2]]
    with torch.no_grad():
        moments = list(learned.roll(z, steps=1))
    acted = along_memory(learned.agent, moments)
    together, single = (policy_slopes(acted, [0], g, [4]) for g in (groups, [[i] for i in range(4)]))
    torch.testing.assert_close(together[..., 1, :], single[..., 1, :] + single[..., 3, :])
    torch.testing.assert_close(single.sum(3), torch.zeros_like(single[..., 0, :]))

    def read(moment: Moment) -> Tensor:
        return torch.cat([moment.h_BH, moment.acted.value_B[:, None]], 1)

    forced = []

    class Watched:
        """The same world, which notes what it is given."""

        spec = learned.world.spec

        def step(self, state: Tree, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
            forced.append(action_BA.argmax(-1))
            return learned.world.step(state, action_BA, noise)

    watched: Any = Watched()
    change = forced_changes(Simulator(learned.agent, watched, None), moments, read, groups)
    assert change.shape == (12, 1, 3, 2, 6)
    assert set(torch.cat(forced).tolist()) == {0, 1, 2} and len(torch.cat(forced)) == 24  # never 3, and none twice
    own = torch.tensor([[a in ids for ids in groups] for a in moments[0].action.tolist()])
    assert (change[own.nonzero(as_tuple=True)[0], 0, own.nonzero(as_tuple=True)[1]] == 0).all()
    assert (change[:, 0, :, 1].abs().amax(-1) > 0).equal(~own)


def test_the_batch_that_branches_run_in_does_not_matter(learned: Simulator[RSSMWorld]) -> None:
    z = torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whole, parts = (effects(learned, z, 2, [[i] for i in range(4)], rows=rows) for rows in (999, 3))
    torch.testing.assert_close(whole, parts, rtol=1e-9, atol=1e-13)
    alone = effects(learned, z[2:3], 2, [[i] for i in range(4)])
    torch.testing.assert_close(alone[0], whole[2], rtol=1e-9, atol=1e-13)


def test_a_world_that_does_not_answer_leaves_no_rounding_behind() -> None:
    """Where actions do nothing, branches in other batches differ by rounding alone, and that is no effect."""
    simulator = planted_simulator(PlantedOptions(kind="delayed"))
    z = torch.randn(7, 16, generator=torch.Generator().manual_seed(2))
    found = effects(simulator, z, 4, SINGLE, rows=5)
    assert found.dtype == torch.float32 and (found == 0).all()


def test_one_action_alone_changes_nothing() -> None:
    simulator, z = planted("confounded")
    assert (effects(simulator, z, 2, [[0, 1, 2]]) == 0).all()
