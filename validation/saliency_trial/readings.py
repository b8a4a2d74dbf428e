"""What an agent makes of a frame, as functions of its pixels: at once, or later in the simulator.

A reading is called with an agent, rows (int64 [R], which starts) and frames (float [R, H, W, C] in [0, 1]), and gives
{quantity: [R]}; gradients pass.  N starts, G draws of the action noise, T = k + 1 steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.contracts import Agent, LearnedWorld
from core.roll import Noise, act, probabilities, roll
from core.trees import Tree, rows_of
from generative.starts import started
from validation.paired.course import Actions, Measures, course_along, quantities
from validation.saliency_trial.removal import asked


class Reading(Protocol):
    def __call__(self, agent: Agent, rows: Tensor, frames: Tensor) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class AtOnce:
    """The agent alone, its memory before the frame held fixed."""

    before: Tree  # [N, ...]
    actions: Actions

    def __call__(self, agent: Agent, rows: Tensor, frames: Tensor) -> dict[str, Tensor]:
        zero = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        (field,) = agent.spec.obs
        acted = act(agent, {field: frames}, rows_of(self.before, rows), zero.bool(), zero)
        probs = probabilities(acted.logits_BA, agent.spec.parts)
        return {"value": acted.value_B} | {f"prob:{a}": probs[:, list(i)].sum(-1) for a, i in self.actions.items()}


@dataclass(frozen=True)
class InWorld:
    """The agent in the simulator, run on from the start: the mean over draws of the action noise, the same as in the
    real world.  Gradients through actions and categorical states are straight-through.

    inferred: the simulator's own start is inferred from the frame too; else it is that of the true frames, and only the
    agent sees the frame (as analysis.saliency has it).
    """

    world: LearnedWorld
    window: Mapping[str, Tensor]  # [N, I, H, W, C] float
    before: Tree
    actions: Actions
    noise_GNTA: Tensor
    inferred: bool

    def __call__(self, agent: Agent, rows: Tensor, frames: Tensor) -> dict[str, Tensor]:
        (field,) = agent.spec.obs
        window = self.window[field][rows]
        if self.inferred:
            window = torch.cat([window[:, :-1], frames[:, None]], 1)
        state, shown = started(self.world, {field: window})
        horizon = self.noise_GNTA.shape[2] - 1
        late = asked(self.actions, horizon)[1]
        draws: list[dict[str, Tensor]] = []
        for noise_NTA in self.noise_GNTA:
            moments = list(roll(
                agent, self.world, (state, shown._replace(obs={field: frames})), memory=rows_of(self.before, rows),
                steps=horizon, noise=[Noise(action_BA=x) for x in noise_NTA[rows].unbind(1)],
            ))  # fmt: skip
            found = quantities(course_along(moments), Measures(self.actions, parts=agent.spec.parts))
            draws.append({q: found[q] for q in late})
        return {q: torch.stack([draw[q] for draw in draws]).mean(0) for q in late}
