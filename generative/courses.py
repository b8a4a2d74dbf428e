"""How each kind of world is trained: the chance in its loss, and the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from core.roll import Simulator
from generative.context import ContextWorld
from generative.context_loss import ContextDraws, ContextLossConfig, context_loss_of, draw_context, windows_at
from generative.losses import Batch, Draws, LossConfig, draw, loss_of
from generative.recurrent_world import RSSMWorld


class Course(Protocol):
    """The training of a kind of world; ``part`` of what is drawn is that of some of the windows; progress: share of the
    updates that are done."""

    def windows(self, batch: int, steps: int, progress: float) -> tuple[int, int]:
        """(windows, their steps) of an update, where ``batch`` of ``steps`` are asked."""
        ...

    def draw(self, world: Any, size: int, length: int, generator: torch.Generator, progress: float) -> Any:
        """The chance in the loss of ``size`` windows of ``length`` steps."""
        ...

    def loss_of(self, simulator: Simulator[Any], batch: Batch, draws: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss (a scalar) and its parts (detached)."""
        ...


@dataclass(frozen=True)
class RecurrentCourse:
    """Of worlds of vectors and of maps."""

    loss: LossConfig
    context: ContextLossConfig

    def windows(self, batch: int, steps: int, progress: float) -> tuple[int, int]:
        return batch, steps

    def draw(self, world: RSSMWorld, size: int, length: int, generator: torch.Generator, progress: float) -> Draws:
        return draw(world, size, length, self.loss, generator)

    def loss_of(
        self, simulator: Simulator[RSSMWorld], batch: Batch, draws: Draws
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return loss_of(simulator, batch, self.loss, draws)


@dataclass(frozen=True)
class ContextCourse:
    """Of worlds that see what they showed; they start from recorded frames and the state that the agent had."""

    loss: LossConfig
    context: ContextLossConfig

    def windows(self, batch: int, steps: int, progress: float) -> tuple[int, int]:
        return windows_at(progress, self.context, batch, steps)

    def draw(
        self, world: ContextWorld, size: int, length: int, generator: torch.Generator, progress: float
    ) -> ContextDraws:
        return draw_context(world, size, length, self.loss, self.context, generator, progress)

    def loss_of(
        self, simulator: Simulator[ContextWorld], batch: Batch, draws: ContextDraws
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return context_loss_of(simulator, batch, self.loss, self.context, draws)


COURSES: Mapping[str, type[RecurrentCourse] | type[ContextCourse]] = {
    "vector": RecurrentCourse,
    "grid": RecurrentCourse,
    "residual": RecurrentCourse,
    "context": ContextCourse,
}  # by ModelConfig.layout
