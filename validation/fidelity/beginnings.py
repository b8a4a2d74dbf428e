"""Where simulations begin: what the simulator is told of a real moment (generative.starts), and who remembers what.

B windows, I initial observations; other axes as in core.contracts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from core.contracts import Agent, Shown
from core.roll import Recorded, Simulator, Trajectory, joined_starts, roll, starts_at, trajectory_of
from core.trees import Tree, joined, rows_of
from generative.starts import begin_at


class Beginning(NamedTuple):
    """The world and what it shows first, and the agent's state before (``memory``) or after (``state``) that."""

    world: tuple[Tree, Shown]
    memory: Tree | None = None
    state: Tree | None = None

    def some(self, rows: Any) -> Beginning:
        """Some rows: a slice, or int64 [R]."""
        memory, own = (None if tree is None else rows_of(tree, rows) for tree in self[1:])
        return Beginning(starts_at(self.world, rows), memory, own)


def together(parts: Sequence[Beginning]) -> Beginning:
    """The rows of all parts, in this order."""
    memory, own = (None if trees[0] is None else joined(trees) for trees in zip(*(p[1:] for p in parts), strict=True))
    return Beginning(joined_starts([part.world for part in parts]), memory, own)


def begin(
    simulator: Simulator[Any], obs: Mapping[str, Tensor], state: Tree | None = None, noise: Tree | None = None
) -> Beginning:
    """From the I initial observations [B, I, ...].

    state: None: inferred, the agent remembers what the latent tells and sees the last initial observation as the
    simulator shows it, under ``noise``, one ``draw_noise`` of the world.  Given: the agent's recorded state after the
    last initial observation, which is shown as it was (``generative.starts.begin_at``); nothing is drawn.
    """
    if state is not None:
        return Beginning(begin_at(simulator.world, obs), state=state)
    latent = simulator.world.normalise(simulator.world.infer(obs)[0])
    return Beginning(simulator.world.start(latent, noise), memory=simulator.remembered(latent))


def rollout(simulator: Simulator[Any], beginning: Beginning, steps: int, **options: Any) -> Trajectory:
    """``steps`` transitions from there; options as in core.roll.roll."""
    world, memory, state = beginning
    moments = roll(simulator.agent, simulator.world, world, memory=memory, state=state, steps=steps, **options)
    return trajectory_of(list(moments))


@torch.no_grad()
def warmed_up(agent: Agent, obs: Mapping[str, Tensor]) -> Tree:
    """An agent's state after it has seen initial observations [B, I, ...], from its initial state on."""
    window = Recorded(agent.spec, obs)
    last = next(iter(window.obs.values())).shape[1] - 1
    return list(roll(agent, window, window.begin(), steps=last))[-1].acted.state
