"""A frame that an agent reads with its memory held fixed: what captum's methods are given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from analysis.shared.quantities import Quantity, Reading
from core.contracts import Agent

ROWS = 256  # frames an agent reads at once


class Frame(NamedTuple):
    """The frame of the target step, as the agent meets it: rows of S samples."""

    agent: Agent
    obs: dict[str, Tensor]  # [S, ...]
    baseline: dict[str, Tensor]  # [S, ...]
    h_before_SH: Tensor
    value_before_S: Tensor
    chosen_S: Tensor

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(x.detach() for x in self.obs.values())

    @property
    def baselines(self) -> tuple[Tensor, ...]:
        return tuple(x.detach() for x in self.baseline.values())

    @property
    def fixed(self) -> tuple[Tensor, ...]:
        """What is not explained: memory, the value before, the chosen action."""
        return self.h_before_SH.detach(), self.value_before_S.detach(), self.chosen_S

    def read(self, quantity: Quantity) -> Callable[..., Tensor]:
        """(fields ..., memory, value before, chosen) -> y [S]."""

        def run(*args: Tensor) -> Tensor:
            *fields, h, value_before, chosen = args
            return quantity.read(Reading(*self.step(*fields, h), value_before, chosen))

        return run

    def step(self, *args: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(fields ..., memory) -> h, logits, value."""
        *fields, h = args
        goes_on = torch.zeros(h.shape[0], dtype=torch.bool, device=h.device)
        after = self.agent.advance(self.agent.encode(dict(zip(self.obs, fields, strict=True))), h, goes_on)
        logits, value = self.agent.heads(after)
        return after, logits, value


class Attribution(NamedTuple):
    """maps [S, ...] a field, in units of the quantity; delta: by how much their sum misses the change, [S], where the
    method promises that it does not."""

    maps: dict[str, Tensor]
    delta: Tensor | None


@contextmanager
def quietly() -> Iterator[None]:
    """Without captum's notes of what it does to modules and inputs on its way."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*Setting forward, backward hooks", UserWarning)
        warnings.filterwarnings("ignore", "Input Tensor . did not already require gradients", UserWarning)
        yield
