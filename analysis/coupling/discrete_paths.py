"""What a change of the agent's memory does by way of its discrete actions, with the actions enumerated.

A simulator has seen whole actions only, so what it does between them is whatever its training left there, and with it
every straight-through gradient (``core.contracts.straight_through``) from action to world.  Here every action is tried:

    effect of x on y through the world = sum over steps t and actions a of  d pi_t(a) / dx  Q_t(a)

x      a change of the hidden state h at a source step, after ``advance`` and before ``heads``;
pi_t   the softmax of the logits at step t; its derivative runs through the memory, x -> h_t -> logits_t, with all that
       the agent saw and did before t held;
Q_t    y when the simulator is given action a at t.  Before t nothing is altered.  After t the rollout goes on as it
       did: the world with the same noise, and the agent choosing as it chose, by its logits and the same Gumbel noise,
       or the likeliest action where there is none.  Forward passes only: no gradient passes an action, nor the
       categories of the world, which are drawn, or take their mode, in every branch as in the rollout.

What is left of the effect of x is direct: the derivative with all actions held, which is the memory's alone.

Which derivative this is.  The term of step t is the derivative, exactly, of the mean of y when that one action is drawn
from pi_t(x) and the rest is as above.
- A rollout whose actions were drawn (Gumbel noise): direct part + sum is an unbiased estimate of the derivative of the
  expectation of y under the softmax policy, given where the rollout starts and the world's noise.  It is the policy
  gradient with all actions summed over (Sutton et al. 2000, "Policy gradient methods for reinforcement learning with
  function approximation", theorem 1; Ciosek & Whiteson 2018, arXiv:1801.03326).
- A modal rollout (no noise): the softmax at one step at a time, the likeliest action at all others.  The derivative of
  the greedy agent itself would be 0 nearly everywhere, as a small change of the logits leaves the largest the largest.

B rollouts of steps 0 .. T, S source steps, G groups of actions that do the same, X directions of a change, Y numbers
read; other axes as in core.contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from analysis.shared.gradients import rows_of
from core.contracts import Agent, SimState, Simulator, StepNoise, StepOut

ROUNDING = 100  # rounding errors, of the largest y, that two runs of the same actions may differ by
ROWS = 64  # branches side by side


def along_memory(agent: Agent, h_BH: Tensor, e_TBE: Sequence[Tensor]) -> list[Tensor]:
    """The hidden states [B, H] of T + 1 steps as functions of each other: ``h_BH`` first, a leaf, then one for every
    embedding of what the agent saw afterwards.  What it sees is held, so gradients are the memory's alone."""
    goes_on = torch.zeros(len(h_BH), dtype=torch.bool, device=h_BH.device)
    h = [h_BH.detach().requires_grad_()]
    for e_BE in e_TBE:
        h.append(agent.advance(e_BE, h[-1], goes_on))
    return h


def policy_slopes(
    agent: Agent, h_TBH: Sequence[Tensor], sources: Sequence[int], groups: Sequence[Sequence[int]]
) -> Tensor:
    """d pi_t(group) / d h at every source step, float [B, S, T, G, H]; 0 for steps before the source.

    h_TBH: of ``along_memory``.  A group's probability is the sum of its actions'.
    """
    b, hidden = h_TBH[0].shape
    out = h_TBH[0].new_zeros(b, len(sources), len(h_TBH), len(groups), hidden)
    for t, h_BH in enumerate(h_TBH):
        reached = [n for n, source in enumerate(sources) if source <= t]
        if not reached:
            continue
        p_BA = agent.heads(h_BH)[0].softmax(-1)
        for g, ids in enumerate(groups):
            # Rollouts do not hear each other, so the gradient of the sum holds that of each.
            p = p_BA[:, list(ids)].sum()
            before = [h_TBH[sources[n]] for n in reached]
            grads = torch.autograd.grad(p, before, retain_graph=True, materialize_grads=True)
            out[:, reached, t, g] = torch.stack(grads, 1)
    return out


@torch.no_grad()
def forced_changes(
    simulator: Simulator,
    states: Sequence[SimState],
    outs: Sequence[StepOut],
    read: Callable[[StepOut], Tensor],
    groups: Sequence[Sequence[int]],
    *,
    noise: Sequence[StepNoise] | None = None,
    rows: int = ROWS,
) -> Tensor:
    """Q_t(group) - y: what every later reading changes by when an action of the group is forced at step t.

    float [B, T, G, T+1, Y] (forced at t < T, read at u <= T): 0 for u <= t, and for the group of the action taken.
    The first action of a group is forced for all of it.  A branch goes on after an end of the episode, as
    rollouts of a simulator do; ``alive_B`` may be read too.

    states, outs: of ``gradients.unroll``, T + 2 and T + 1; noise: the rollout's.  read: a step -> [N, Y].
    rows: branches run side by side.
    """
    y_BUY = torch.stack([read(out) for out in outs], 1)
    b, steps, y = len(y_BUY), len(outs) - 1, y_BUY.shape[-1]
    change = y_BUY.new_zeros(b, steps, len(groups), steps + 1, y)
    first_G = torch.tensor([ids[0] for ids in groups], device=y_BUY.device)
    for t in range(steps):
        taken_BG = torch.stack([torch.isin(outs[t].action_B, outs[t].action_B.new_tensor(ids)) for ids in groups], 1)
        for which_N in (~taken_BG).nonzero().split(rows):
            if not len(which_N):  # a single group
                continue
            b_N, g_N = which_N.unbind(1)
            action_NA = torch.nn.functional.one_hot(first_G[g_N], simulator.agent.n_actions)
            state = rows_of(states[t + 1], b_N)
            state = state._replace(action_BA=action_NA.to(state.action_BA.dtype))
            for u in range(t + 1, steps + 1):
                state, out = simulator.step(state, noise=None if noise is None else noise_of_rows(noise[u], b_N))
                change[b_N, t, g_N, u] = read(out) - y_BUY[b_N, u]
    # The same numbers in another batch are rounded otherwise, always the same way: that must not pass for an effect.
    least = ROUNDING * torch.finfo(change.dtype).eps * y_BUY.abs().amax((0, 1))
    return torch.where(change.abs() <= least, 0.0, change)


def noise_of_rows(noise: StepNoise, rows: Tensor) -> StepNoise:
    """The noise of some rollouts of a batch, int64 [N]."""
    ending = noise.terminal_B
    return StepNoise(noise.s_BS[rows], noise.action_BA[rows], None if ending is None else ending[rows])


def through_world(slope_BSTGX: Tensor, change_BTGUY: Tensor) -> Tensor:
    """The effect of every x at every source step on every y at every step u, float [B, S, U, X, Y].

    slope: d pi_t(group) / dx, ``policy_slopes`` along directions; change: ``forced_changes``, which may count y from
    any value that is the same for all groups, because probabilities add up to 1.
    """
    return torch.einsum("bstgx,btguy->bsuxy", slope_BSTGX, change_BTGUY)
