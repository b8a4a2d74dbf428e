"""The agent run on with the last frame held still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from validation.paired.tree import Places, World


@dataclass
class HeldWorld(World):
    """No world: the agent sees the last frame of its start for ever, is given no reward and never ends."""

    e_NE: Tensor

    def begin(self) -> Places:
        return self.go(0, range(len(self.h_NH)), ())

    def go(self, t: int, states: Sequence[Any], actions: Sequence[int]) -> Places:
        nothing = self.h_NH.new_zeros(len(states))
        return Places(list(states), self.e_NE[list(states)], nothing, nothing)
