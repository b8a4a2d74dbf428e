"""Rewards and endings learned once more on a world's own rollouts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from core.roll import one_hot
from generative.context import with_joint_outcome
from generative.outcomes import (
    Known,
    OutcomeConfig,
    cost_of,
    known_along,
    learn_outcomes,
    outcome_loss,
    windows_to_endings,
    with_endings,
)
from generative.simulator import simulator_of
from tests.unit.test_context import TINY, L, a_batch, context

CONFIG = OutcomeConfig(outcome_windows=2, outcome_steps=5, outcome_passes=4, outcome_rate=3e-3)


def test_transitions_are_those_that_were_recorded_each_from_the_worlds_own_frames() -> None:
    simulator, batch = context(dtype=torch.float32), a_batch(torch.float32)
    world = simulator.world.eval()
    told = known_along(world, [batch, batch])
    one = int(batch.happened[:, 1:].sum())
    assert len(told.reward_N) == 2 * one and told.window_N.bincount().sum() == 2 * one
    assert told.window_N.bincount().tolist() == batch.happened[:, 1:].sum(1).tolist() * 2
    assert torch.equal(told.reward_N[:one].sort().values, batch.reward[:, 1:][batch.happened[:, 1:]].sort().values)
    state, _ = world.begin_at({k: x[:, : world.initial_frames] for k, x in batch.obs.items()})
    with torch.no_grad():
        for i in range(1, L):
            acted = one_hot(batch.action[:, i - 1], world.spec.parts, state.d_BD)
            state, shown = world.step(state, acted)
            of_2 = told.part((told.window_N == 2).nonzero()[i - 1])  # goes on to the window's end
            outcome = world.outcome(of_2.known_NK)
            assert torch.allclose(outcome.reward, shown.reward_B[2:], atol=1e-2)
            assert torch.allclose(torch.sigmoid(outcome.ended), shown.ending_B[2:], atol=1e-2)


def transitions(count: int, seed: int, size: int) -> Known:
    """A tenth pays 10, another tenth ends the episode; the first two numbers tell."""
    rng = np.random.default_rng(seed)
    known = torch.from_numpy(rng.normal(0, 1, (count, size))).half()
    paid, ended = known[:, :64].float().mean(1), known[:, 64:128].float().mean(1)
    paid, ended = paid > paid.quantile(0.9), ended > ended.quantile(0.9)
    return Known(known, 10 * paid.float(), ended.float(), torch.arange(count), torch.ones(count))


def test_only_the_outcomes_are_learned_and_they_get_better() -> None:
    world = context(dtype=torch.float32).world.eval().requires_grad_(False)
    size = next(p for p in world.outcome_head.parameters()).shape[1] * 64
    train, held_out = transitions(2_000, 1, size), transitions(500, 2, size)
    was = {k: x.clone() for k, x in world.state_dict().items()}
    before, after = learn_outcomes(world, train, held_out, CONFIG, 20.0, np.random.default_rng(0))
    assert after.mean() < 0.9 * before.mean() and np.allclose(after, cost_of(world, held_out))
    changed = {k for k, x in world.state_dict().items() if not torch.equal(x, was[k])}
    assert changed and all(k.startswith("outcome_head") for k in changed)
    assert not any(p.requires_grad for p in world.parameters())


def test_where_nothing_can_be_learned_the_head_stays_as_it_was() -> None:
    """Held-out transitions whose outcomes are the opposite of the training's: every pass makes them worse."""
    world = context(dtype=torch.float32).world.eval()
    size = next(p for p in world.outcome_head.parameters()).shape[1] * 64
    train = transitions(1_000, 1, size)
    held_out = train._replace(reward_N=10.0 - train.reward_N, terminal_N=1 - train.terminal_N)
    with torch.no_grad():  # it begins by believing the held-out ones
        world.outcome_head[-1][-1].bias.copy_(torch.tensor([0.0, 1.8, 1.8, 1.8]))  # type: ignore[union-attr,index,operator]
    was = {k: x.clone() for k, x in world.outcome_head.state_dict().items()}
    before, after = learn_outcomes(world, train, held_out, CONFIG, 20.0, np.random.default_rng(0))
    assert np.array_equal(before, after)
    assert all(torch.equal(x, was[k]) for k, x in world.outcome_head.state_dict().items())


def test_rewards_that_come_with_endings_alone_are_no_deaths_and_no_rewards_by_the_way() -> None:
    """A tenth of the transitions end the episode and pay, a tenth end it and do not: of the former a world that held
    reward and ending to be independent foretold a death in a quarter of cases, where it was sure of both to .5."""
    world = context(dtype=torch.float32).world.eval().requires_grad_(False)
    size = next(p for p in world.outcome_head.parameters()).shape[1] * 64

    def told(seed: int, count: int) -> Known:
        known = torch.from_numpy(np.random.default_rng(seed).normal(0, 1, (count, size))).half()
        kind = torch.arange(count) % 10  # 0 or 1: one and the same place; half of these endings pay
        known[kind < 2, :64] += 2
        return Known(known, 10.0 * (kind == 0), (kind < 2).float(), torch.arange(count), torch.ones(count))

    longer = replace(CONFIG, outcome_passes=40)
    learn_outcomes(world, told(1, 2_000), held := told(2, 500), longer, 20.0, np.random.default_rng(0))
    outcome = world.outcome(held.known_NK)
    ends, (on, end) = torch.sigmoid(outcome.ended), outcome.paid_N2.unbind(-1)
    there = held.terminal_N > 0
    assert ends[there].mean() > 0.5 > 0.1 > ends[~there].mean() and 0.35 < end[there].mean() < 0.65
    assert (on * (1 - ends))[there].mean() < 0.05  # paid, and goes on: never seen


def test_a_world_without_a_joint_outcome_goes_on_as_one_with_it_and_foretells_the_same() -> None:
    torch.manual_seed(0)
    agent = context().agent
    apart, joint = (simulator_of(replace(TINY, joint_outcome=x), agent).world for x in (False, True))
    want = joint.state_dict()
    have = apart.state_dict()
    joint.load_state_dict({**have, **with_joint_outcome(have, want)})
    known = torch.randn(5, next(p for p in apart.outcome_head.parameters()).shape[1] * 64)
    one, other = apart.outcome(known), joint.outcome(known)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(one.reward, one.size * torch.sigmoid(one.paid_on))


def test_windows_to_endings_end_there_and_further_endings_count_as_those_met_from_anywhere() -> None:
    steps = np.array([3, 40, 2, 9])
    starts, ahead = windows_to_endings(steps, np.array([0, 1, 2, 3]), 2, 32, np.random.default_rng(0))
    assert set(starts[:, 0]) == {0, 1, 3}  # two transitions are none after three observations
    assert np.array_equal(starts[:, 1] + 2 + ahead, steps[starts[:, 0]]) and (np.diff(ahead) >= 0).all()
    anywhere, further = transitions(100, 1, 128), transitions(100, 2, 128)
    further = further.part(further.terminal_N > 0)
    both = with_endings(anywhere, [further.part(slice(0, 3)), further.part(slice(3, None))])
    ends = both.terminal_N > 0
    assert len(both.reward_N) == 110 and both.weight_N[ends].sum() == 10 and (both.weight_N[~ends] == 1).all()
    for none in ([], [further.part(slice(0))]):
        assert torch.equal(with_endings(anywhere, none).weight_N, anywhere.weight_N)


def test_endings_alone_are_the_endings_and_transitions_count_by_their_weights() -> None:
    simulator, batch = context(dtype=torch.float32), a_batch(torch.float32)
    batch = replace(batch, terminal=batch.terminal * 0)
    batch.terminal[0, 3] = batch.terminal[2, 5] = 1
    world = simulator.world.eval()
    told, ends = known_along(world, [batch]), known_along(world, [batch], endings_alone=True)
    assert len(ends.reward_N) == 2 and torch.equal(ends.known_NK, told.part(told.terminal_N > 0).known_NK)
    once = outcome_loss(world, told, 20.0)
    weighed = outcome_loss(world, told._replace(weight_N=torch.arange(float(len(once)))), 20.0)
    torch.testing.assert_close(weighed, once * torch.arange(float(len(once))))


def test_a_reward_is_shown_in_its_own_unit() -> None:
    world, batch = context(dtype=torch.float32).world.eval(), a_batch(torch.float32)
    state, _ = world.begin_at({k: x[:, : world.initial_frames] for k, x in batch.obs.items()})
    acted = one_hot(batch.action[:, 0], world.spec.parts, state.d_BD)
    plain = world.step(state, acted)[1]
    world.reward_unit = 1e6
    large = world.step(state, acted)[1]
    torch.testing.assert_close(large.reward_B, 1e6 * plain.reward_B)
    assert large.paid_B2 is not None and plain.paid_B2 is not None and torch.equal(large.paid_B2, plain.paid_B2)
