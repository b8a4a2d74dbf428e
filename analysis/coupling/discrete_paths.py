"""What a change of the agent's memory does by way of its discrete actions, with the actions enumerated.

A simulator has seen whole actions only, so what it does between them is whatever its training left there, and with it
every straight-through gradient (``core.roll.straight_through``) from action to world.  Here every action is tried:

    effect of x on y through the world = sum over steps t and actions a of  d pi_t(a) / dx  Q_t(a)

x      a change of the hidden state h at a source step, after ``advance`` and before ``heads``;
pi_t   the softmax of the logits at step t; its derivative runs through the memory, x -> h_t -> logits_t, with all that
       the agent saw and did before t held;
Q_t    y when the simulator is given action a at t.  Before t nothing is altered.  After t the rollout goes on as it
       did: the world with the same noise, and the agent choosing as it chose, by its logits and the same Gumbel noise,
       or the likeliest action where there is none.  Forward passes only: no gradient passes an action, nor the
       categories of the world, which are drawn, or take their mode, in every branch as in the rollout.

What is left of the effect of x is direct: the derivative with all actions held, which is the memory's alone.

Where an action has several parts, the policy chooses each by itself, pi_t(a) = prod_p pi_tp(a_p), and by the product
rule the sum over whole actions is a sum over the choices of one part at a time,

    sum over a of  d pi_t(a) / dx  Q_t(a)  =  sum over parts p and choices a_p of  d pi_tp(a_p) / dx  E Q_t(a_p, others)

with the other parts drawn as the agent draws them.  So one choice of one part is forced at a step, and the others stay
as the rollout has them, under the same Gumbel noise: as many branches as there are choices, not combinations of them.

Which derivative this is.  The term of step t is the derivative, exactly, of the mean of y when that one action is drawn
from pi_t(x) and the rest is as above.
- A rollout whose actions were drawn (Gumbel noise): direct part + sum is an unbiased estimate of the derivative of the
  expectation of y under the softmax policy, given where the rollout starts and the world's noise.  It is the policy
  gradient with all actions summed over (Sutton et al. 2000, "Policy gradient methods for reinforcement learning with
  function approximation", theorem 1; Ciosek & Whiteson 2018, arXiv:1801.03326).
- A modal rollout (no noise): the softmax at one step (and part) at a time, the likeliest action at all others.  The
  derivative of the greedy agent itself would be 0 nearly everywhere, as a small change of the logits leaves the largest
  the largest.

B rollouts of steps 0 .. T, S source steps, G groups of actions (of choices of one part) that do the same, X directions
of a change, Y numbers read; other axes as in core.contracts.  Groups: ``EnvSpec.distinct_choices``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from analysis.shared.gradients import row_gradients
from core.contracts import Agent
from core.roll import (
    Acted,
    Moment,
    Noise,
    Place,
    Simulator,
    after,
    decide,
    go_on,
    hot,
    places_of,
    probabilities,
    rows_of_noise,
)
from core.trees import Tree, detached, rows_of

ROUNDING = 100  # rounding errors, of the largest y, that two runs of the same actions may differ by
ROWS = 64  # branches side by side


def along_memory(agent: Agent, moments: Sequence[Moment]) -> list[Acted]:
    """The agent's steps as functions of each other: the hidden state of the first moment is a leaf, what it sees at all
    others is held, so gradients are the memory's alone."""
    first = moments[0].acted
    goes_on = torch.zeros(len(first.value_B), dtype=torch.bool, device=first.value_B.device)
    seen, state = detached(first.seen), detached(first.state)
    leaf = first.h_BH.detach().requires_grad_()
    out = [_open(agent, leaf, seen, state, moments[0].t_B)]
    for moment in moments[1:]:
        seen = detached(moment.acted.seen)
        state = agent.advance(seen, out[-1].state, goes_on)
        out.append(_open(agent, agent.read("h", seen, state), seen, state, moment.t_B))
    return out


def _open(agent: Agent, h_BH: Tensor, seen: Tree, state: Tree, t_B: Tensor) -> Acted:
    """The agent's step with this h, which all that follows is computed from."""
    return decide(agent, seen, state, t_B, (lambda _h, _t, _mask: h_BH,))


def policy_slopes(
    acted_T: Sequence[Acted], sources: Sequence[int], groups: Sequence[Sequence[int]], parts: Sequence[int]
) -> Tensor:
    """d pi_t(group) / d h at every source step, float [B, S, T, G, H]; 0 for steps before the source.

    acted: of ``along_memory``.  A group's probability is the sum of its actions' (in the softmax of its part).
    parts: ``EnvSpec.parts``, the choices of each part of an action.
    """
    b, hidden = acted_T[0].h_BH.shape
    out = acted_T[0].h_BH.new_zeros(b, len(sources), len(acted_T), len(groups), hidden)
    for t, acted in enumerate(acted_T):
        reached = [n for n, source in enumerate(sources) if source <= t]
        if not reached:
            continue
        p_BA = probabilities(acted.logits_BA, parts)
        of_groups = [p_BA[:, list(ids)].sum(1) for ids in groups]
        before = [acted_T[sources[n]].h_BH for n in reached]
        for g, grads in enumerate(row_gradients(of_groups, before, keep=True)):
            out[:, reached, t, g] = torch.stack(grads, 1)
    return out


@torch.no_grad()
def forced_changes(
    simulator: Simulator[Any],
    moments: Sequence[Moment],
    read: Callable[[Moment], Tensor],
    groups: Sequence[Sequence[int]],
    *,
    noise: Sequence[Noise] | None = None,
    rows: int = ROWS,
) -> Tensor:
    """Q_t(group) - y: what every later reading changes by when an action of the group is forced at step t.

    float [B, T, G, T+1, Y] (forced at t < T, read at u <= T): 0 for u <= t, and for the groups of the action taken.
    The first action of a group is forced for all of it, with the other parts of an action as they were.  A branch goes
    on after an end of the episode, as rollouts of a simulator do; ``alive_B`` may be read too.

    moments: T + 1 of one roll; noise: the roll's.  read: a step -> [N, Y].  rows: branches run side by side.
    """
    y_BUY = torch.stack([read(moment) for moment in moments], 1)
    b, steps, y = len(y_BUY), len(moments) - 1, y_BUY.shape[-1]
    change = y_BUY.new_zeros(b, steps, len(groups), steps + 1, y)
    first_G = torch.tensor([ids[0] for ids in groups], device=y_BUY.device)
    parts = simulator.agent.spec.parts
    for t in range(steps):
        taken_BP, place = places_of(moments[t].action, parts), after(moments[t])
        taken_BG = torch.stack([torch.isin(taken_BP, taken_BP.new_tensor(ids)).any(1) for ids in groups], 1)
        for which_N in (~taken_BG).nonzero().split(rows):
            if not len(which_N):  # a single group of each part
                continue
            b_N, g_N = which_N.unbind(1)
            begin: Place = rows_of(place, b_N)
            begin = begin._replace(action_BA=with_choice(begin.action_BA, first_G[g_N], parts))
            draws = None if noise is None else [rows_of_noise(draw, b_N) for draw in noise[t + 1 :]]
            branch = go_on(simulator.agent, simulator.world, begin, noise=draws, steps=steps - t - 1)
            for u, moment in enumerate(branch, t + 1):
                change[b_N, t, g_N, u] = read(moment) - y_BUY[b_N, u]
    # The same numbers in another batch are rounded otherwise, always the same way: that must not pass for an effect.
    least = ROUNDING * torch.finfo(change.dtype).eps * y_BUY.abs().amax((0, 1))
    return torch.where(change.abs() <= least, 0.0, change)


def with_choice(action_BA: Tensor, id_B: Tensor, parts: Sequence[int]) -> Tensor:
    """Actions, one-hot [B, A], in which the part of the choice with this id, int64 [B], does that."""
    part_A = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(parts)).to(id_B.device)
    forced_BA = part_A == part_A[id_B][:, None]
    return torch.where(forced_BA, hot(id_B, len(part_A), action_BA), action_BA)


def through_world(slope_BSTGX: Tensor, change_BTGUY: Tensor) -> Tensor:
    """The effect of every x at every source step on every y at every step u, float [B, S, U, X, Y].

    slope: d pi_t(group) / dx, ``policy_slopes`` along directions; change: ``forced_changes``, which may count y from
    any value that is the same for all groups of a part, because probabilities add up to 1.
    """
    return torch.einsum("bstgx,btguy->bsuxy", slope_BSTGX, change_BTGUY)
