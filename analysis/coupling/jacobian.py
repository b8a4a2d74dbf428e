"""Jacobians of later coordinates with respect to earlier ones along modal rollouts, by replayed backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.coupling.discrete_paths import along_memory, forced_changes, policy_slopes, through_world
from analysis.shared.gradients import TENSORS, replaced, rows_of, saved_bytes, unroll
from core.contracts import SimState, Simulator, StepOut
from core.directions import Basis

MOST_ROWS, HELD_STEPS = 256, 2  # samples of one backward pass; steps whose gradients are alive at once


def jacobians(
    simulator: Simulator,
    state: SimState,
    basis: Basis,
    lags: Sequence[int],
    directions: int,
    groups: Sequence[Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """dc_j(T) / dc_i(T-lag) of modal rollouts from ``state``, float [B, lags, i, j], in three numbers.

    direct            along the agent's memory, with all actions held;
    through_world     by way of the actions, each of them tried (discrete_paths.py): what every action at a step
                      leads to, times how the source moves its probability there, over the steps T-lag to T-1.
                      The whole effect is direct + through_world;
    straight_through  the whole as autograd has it, straight through actions and categories of the world.

    And ``ended`` [B]: the share of tried actions after which the simulated episode ends before T; the branch goes on,
    as rollouts do.

    state: just before step T - max(lags).  c are the first ``directions`` coordinates of the basis; a source moves h
    along its lifted direction.  groups: ids of actions that do the same; None: every one by itself.

    One forward pass serves all three.  Backward, a pass a target over all samples at once: a pass batched over the
    targets too costs as much arithmetic and more memory (benchmarks/analysis_jacobian.py).  Memory and probabilities
    need none through the world: with the actions held, the agent's cells on the frames there are.
    """
    groups = [[i] for i in range(simulator.agent.n_actions)] if groups is None else groups
    longest = max(lags)
    state = rows_of(state, slice(None), lambda x: x.detach())
    state = state._replace(h_BH=state.h_BH.requires_grad_())
    states, outs = unroll(simulator, state, longest + 1)
    straight = _backward([out.h_BH for out in outs], basis, lags, directions)
    states, outs = [rows_of(s, slice(None), lambda x: x.detach()) for s in states], [_detached(out) for out in outs]
    h = along_memory(simulator.agent, outs[0].h_BH, [simulator.agent.encode(out.obs) for out in outs[1:]])
    slope = basis.pullback(policy_slopes(simulator.agent, h[:-1], [longest - lag for lag in lags], groups))
    direct = _backward(h, basis, lags, directions)

    def read(out: StepOut) -> Tensor:
        return torch.cat([basis.project(out.h_BH)[:, :directions], out.alive_B[:, None].to(out.h_BH.dtype)], 1)

    # A branch keeps nothing for a backward pass, so that more of them fit than rollouts.
    rows = min(MOST_ROWS, len(state.h_BH) * (longest + 1))
    change = forced_changes(simulator, states, outs, read, groups, rows=rows)[:, :, :, -1:]
    world = through_world(slope[..., :directions], change[..., :directions])[:, :, 0]
    ended = change[..., 0, -1].abs().sum((1, 2)) / (longest * max(1, len(groups) - 1))
    return {"direct": direct, "through_world": world, "straight_through": straight, "ended": ended}


def _detached(out: StepOut) -> StepOut:
    return StepOut({name: x.detach() for name, x in out.obs.items()}, *(x.detach() for x in out[1:]))


def _backward(h_TBH: Sequence[Tensor], basis: Basis, lags: Sequence[int], directions: int) -> Tensor:
    """Jacobian [B, lags, i, j] of the last hidden state's coordinates by those ``lag`` steps before."""
    c_BK = basis.project(h_TBH[-1])[:, :directions]
    sources = [h_TBH[-1 - lag] for lag in lags]
    columns = []
    for j in range(directions):
        # Samples do not hear each other, so the gradient of the sum holds that of each.
        grads = torch.autograd.grad(c_BK[:, j].sum(), sources, retain_graph=j + 1 < directions)
        columns.append(basis.pullback(torch.stack(grads, 1))[..., :directions])
    return torch.stack(columns, -1)


class Replay(NamedTuple):
    """Modal rollouts run again from latents [E, Z]."""

    states: list[SimState]  # before step 0, 1 ... and after the last
    h_ETH: Tensor


@torch.no_grad()
def replay(simulator: Simulator, z_EZ: Tensor, steps: int) -> Replay:
    """``steps`` observations from every latent."""
    states, h = [simulator.start(z_EZ)], []
    for _ in range(steps):  # the frames are not kept
        state, out = simulator.step(states[-1])
        states.append(state)
        h.append(out.h_BH)
    return Replay(states, torch.stack(h, 1))


def gather_states(states: Sequence[SimState], episode_B: np.ndarray, step_B: np.ndarray) -> SimState:
    """The state before step ``step_B[n] >= 1`` of row ``episode_B[n]``, as one batch."""
    pairs = list(zip(episode_B.tolist(), step_B.tolist(), strict=True))
    # After step 0 a simulator does not care how late it is; interventions would, and there are none.
    late = states[int(step_B.min())]
    return replaced(late, {name: torch.stack([getattr(states[t], name)[e] for e, t in pairs]) for name in TENSORS})


def rows_that_fit(simulator: Simulator, state: SimState, longest: int, memory_bytes: float) -> int:
    """How many samples one ``jacobians`` call may hold: what the forward pass keeps, and the gradients of a few of
    its steps.  Not more than MOST_ROWS, from where on more at once is no faster."""
    one = rows_of(state, slice(1), lambda x: x.detach())
    one = one._replace(h_BH=one.h_BH.requires_grad_())
    parameters = simulator.parameters() if isinstance(simulator, torch.nn.Module) else ()
    kept = saved_bytes(lambda: unroll(simulator, one, longest + 1), parameters)
    return min(MOST_ROWS, max(1, int(memory_bytes // max(1, kept * (1 + HELD_STEPS / (longest + 1))))))
