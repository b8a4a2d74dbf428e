"""Where simulations begin: the one place that says what the simulator is told of a real moment.

B windows, I initial observations; other axes as in core.contracts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.contracts import Agent, Shown, UserError
from core.episodes import Episode
from core.roll import Recorded, Simulator, Trajectory, joined_starts, roll, starts_at, trajectory_of
from core.trees import Tree, flatten, joined, rows_of

StartFrom = Literal["inferred", "recorded"]


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
    """From the I initial observations [B, I, ...]; noise: one ``draw_noise`` of the world.

    state: None: inferred, the agent remembers what the latent tells and sees the last initial observation as the
    simulator shows it.  Given: the agent's recorded state after the last initial observation, which is shown as it was.
    """
    latent = simulator.world.normalise(simulator.world.infer(obs)[0])
    world, shown = simulator.world.start(latent, noise)
    if state is None:
        return Beginning((world, shown), memory=simulator.remembered(latent))
    return Beginning((world, shown._replace(obs=as_shown(last_of(obs), shown.obs))), state=state)


def last_of(obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The last of the initial observations."""
    return {k: x[:, -1] for k, x in obs.items()}


def as_shown(obs: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Recorded observations in the numbers that a simulator shows: bytes of an image become [0, 1]."""
    return {
        k: x.to(like[k].dtype) / 255 if x.dtype == torch.uint8 and x.ndim >= 4 else x.to(like[k].dtype)
        for k, x in obs.items()
    }


def rollout(simulator: Simulator[Any], beginning: Beginning, steps: int, **options: Any) -> Trajectory:
    """``steps`` transitions from there; options as in core.roll.roll."""
    world, memory, state = beginning
    moments = roll(simulator.agent, simulator.world, world, memory=memory, state=state, steps=steps, **options)
    return trajectory_of(list(moments))


def recorded_state(agent: Agent, episode: Episode) -> np.ndarray:
    """The agent's whole state along an episode, flat, float32 [T(+1), S]: the one kept beside h, or h itself where that
    is all of it.  UserError where it is neither."""
    kept = episode.h if episode.state is None else episode.state
    size = flatten(agent.initial(1)).shape[1]
    if kept.shape[1] != size:
        raise UserError(
            f"these episodes hold {kept.shape[1]} of the {size} numbers of the agent's state, so none can begin from "
            "it; record them again, or use --start_from inferred"
        )
    return kept


@torch.no_grad()
def warmed_up(agent: Agent, obs: Mapping[str, Tensor]) -> Tree:
    """An agent's state after it has seen initial observations [B, I, ...], from its initial state on."""
    window = Recorded(agent.spec, obs)
    last = next(iter(window.obs.values())).shape[1] - 1
    return list(roll(agent, window, window.begin(), steps=last))[-1].acted.state
