"""Jacobians of later coordinates with respect to earlier ones along modal rollouts, by replayed backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.coupling.discrete_paths import along_memory, forced_changes, policy_slopes, through_world
from analysis.shared.gradients import parameters_of, row_gradients, saved_bytes, unchanged
from core.directions import Basis
from core.episodes import RolloutStore, state_column
from core.roll import Moment, Place, Simulator, after, go_on, one_hot
from core.trees import detached, each, joined, leaves, rows_of, unflatten

MOST_ROWS, HELD_STEPS = 256, 2  # samples of one backward pass; steps whose gradients are alive at once


def jacobians(
    simulator: Simulator[Any],
    begin: Place | Tensor,
    basis: Basis,
    lags: Sequence[int],
    groups: Sequence[Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """dc_j(T) / dc_i(T-lag) of modal rollouts, float [B, lags, i, j], in three numbers.

    direct            along the agent's memory, with all actions held;
    through_world     by way of the actions, each of them tried (discrete_paths.py): what every action at a step
                      leads to, times how the source moves its probability there, over the steps T-lag to T-1.
                      The whole effect is direct + through_world;
    straight_through  the whole as autograd has it, straight through actions and categories of the world.

    And ``ended`` [B]: the share of tried actions after which the simulated episode ends before T; the branch goes on,
    as rollouts do.

    begin: where step T - max(lags) - 1 left world and agent, or latents [B, Z], with T = max(lags).  c are the
    coordinates of the basis; a source moves h along its lifted direction.  groups: ids of actions (of choices
    of one part, where they have several) that do the same; None: every one by itself.

    One forward pass serves all three.  Backward, a pass a target over all samples at once: a pass batched over the
    targets too costs as much arithmetic and more memory (benchmarks/analysis_jacobian.py).  Memory and probabilities
    need none through the world: with the actions held, the agent's cells on the frames there are.
    """
    parts = simulator.agent.spec.parts
    groups = [[i] for i in range(simulator.agent.spec.n_actions)] if groups is None else groups
    longest = max(lags)
    moments = unrolled(simulator, begin, longest)
    straight = _columns([m.h_BH for m in moments], basis, lags)
    moments = [_detached(m) for m in moments]
    acted = along_memory(simulator.agent, moments)
    slope = basis.pullback(policy_slopes(acted[:-1], [longest - lag for lag in lags], groups, parts))
    direct = _columns([a.h_BH for a in acted], basis, lags)

    def read(moment: Moment) -> Tensor:
        h_BH = moment.h_BH
        return torch.cat([basis.project(h_BH), moment.alive_B[:, None].to(h_BH.dtype)], 1)

    # A branch keeps nothing for a backward pass, so that more of them fit than rollouts.
    rows = min(MOST_ROWS, len(moments[0].alive_B) * (longest + 1))
    change = forced_changes(simulator, moments, read, groups, rows=rows)[:, :, :, -1:]
    world = through_world(slope, change[..., :-1])[:, :, 0]
    ended = change[..., 0, -1].abs().sum((1, 2)) / (longest * max(1, len(groups) - len(parts)))
    return {"direct": direct, "through_world": world, "straight_through": straight, "ended": ended}


def unrolled(simulator: Simulator[Any], begin: Place | Tensor, steps: int) -> list[Moment]:
    """Moments 0 to ``steps`` of modal rollouts from latents or places, open to gradients."""

    def leaf(x: Tensor) -> Tensor:
        return x.detach().requires_grad_(x.is_floating_point())

    if isinstance(begin, Tensor):
        return list(simulator.roll(leaf(begin), steps=steps, intervene=(unchanged,)))
    place = begin._replace(state=each(leaf, begin.state))
    return list(go_on(simulator.agent, simulator.world, place, steps=steps, intervene=(unchanged,)))


def _detached(moment: Moment) -> Moment:
    """What the agent saw and was, and what it did, without their graph."""
    acted = type(moment.acted)(*(detached(part) for part in moment.acted))
    return moment._replace(world=detached(moment.world), acted=acted, action_BA=moment.action_BA.detach())


def _columns(h_TBH: Sequence[Tensor], basis: Basis, lags: Sequence[int]) -> Tensor:
    """Jacobian [B, lags, i, j] of the last hidden state's coordinates by those ``lag`` steps before."""
    c_BK = basis.project(h_TBH[-1])
    columns = row_gradients(c_BK.unbind(1), [h_TBH[-1 - lag] for lag in lags])
    return torch.stack([basis.pullback(torch.stack(grads, 1)) for grads in columns], -1)


class Replay(NamedTuple):
    """Modal rollouts run again from latents [E, Z]: of samples of an earlier version, or that are not modal."""

    after: list[Place]  # after step 0, 1 ...
    h_ETH: Tensor

    def places(self, episode_M: np.ndarray, step_M: np.ndarray) -> Place:
        """Where these steps left world and agent, as one batch."""
        pairs = zip(episode_M.tolist(), step_M.tolist(), strict=True)
        found: Place = joined([rows_of(self.after[t], slice(e, e + 1)) for e, t in pairs])
        return found


@torch.no_grad()
def replay(simulator: Simulator[Any], z_EZ: Tensor, steps: int) -> Replay:
    """``steps`` observations from every latent."""
    places, h = [], []
    for moment in simulator.roll(z_EZ, steps=steps - 1):  # the frames are not kept
        places.append(after(moment))
        h.append(moment.h_BH)
    return Replay(places, torch.stack(h, 1))


class Recorded(NamedTuple):
    """Modal rollouts as they were recorded, with all that is needed to go on from any step."""

    store: RolloutStore
    simulator: Simulator[Any]
    columns: list[str]  # of each tensor of the world's state
    device: torch.device

    @classmethod
    def of(cls, store: RolloutStore, simulator: Simulator[Any], device: torch.device) -> Recorded | None:
        """None where the store, of an earlier version, holds too little, or its rollouts are not modal."""
        facts, known = store.manifest["facts"], set(store.column_names)
        like = simulator.world.start(torch.from_numpy(store.latents([0])).to(device))[0]
        columns = [state_column(i) if state_column(i) in known else "world/d" for i in range(len(list(leaves(like))))]
        whole = set(columns) <= known and len(set(columns)) == len(columns)
        modal = not facts.get("stochastic") and not facts.get("interventions")
        return cls(store, simulator, columns, device) if whole and modal else None

    def places(self, episode_M: np.ndarray, step_M: np.ndarray) -> Place:
        """Where these steps left world and agent, as one batch."""
        agent, world = self.simulator.agent, self.simulator.world
        own = "state" if "state" in self.store.column_names else "h"
        starts = np.stack([episode_M, step_M], 1)
        window = self.store.read_windows([*self.columns, own, "action"], starts, 1)
        read = {name: torch.from_numpy(window[name][:, 0]).to(self.device) for name in (*self.columns, own, "action")}
        like = world.start(torch.from_numpy(self.store.latents([0])).to(self.device))[0]
        parts = iter(read[name] for name in self.columns)
        state = each(lambda x: next(parts).reshape(len(starts), *x.shape[1:]).to(x.dtype), like)
        alive = torch.ones(len(starts), dtype=torch.bool, device=self.device)
        memory = unflatten(read[own], agent.initial(1))
        return Place(state, one_hot(read["action"], agent.spec.parts, read[own]), memory, alive)


def rows_that_fit(simulator: Simulator[Any], place: Place, longest: int, memory_bytes: float) -> int:
    """How many samples one ``jacobians`` call may hold: what the forward pass keeps, and the gradients of a few of
    its steps.  Not more than MOST_ROWS, from where on more at once is no faster."""
    one: Place = rows_of(place, slice(1))
    kept = saved_bytes(lambda: unrolled(simulator, one, longest), parameters_of(simulator))
    return min(MOST_ROWS, max(1, int(memory_bytes // max(1, kept * (1 + HELD_STEPS / (longest + 1))))))
