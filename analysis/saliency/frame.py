"""A frame that an agent reads with its memory held fixed: what captum's methods are given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from analysis.shared.gradients import reached
from analysis.shared.quantities import Quantity, Reading
from core.contracts import Agent
from core.roll import act
from core.trees import unflatten

ROWS = 256  # frames an agent reads at once


def generator_of(seed: int, sample: int, copy: int = 0) -> torch.Generator:
    """What is drawn for a sample, by seed and id alone: the same in every batch."""
    return torch.Generator().manual_seed((seed * 1_000_003 + sample + 1) * 1009 % 2**62 + copy)


class Frame(NamedTuple):
    """The frame of the target step, as the agent meets it: rows of S samples."""

    agent: Agent
    obs: dict[str, Tensor]  # [S, ...]
    baseline: dict[str, Tensor]  # [S, ...]
    before_SM: Tensor  # the agent's whole state before it, flat
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
        return self.before_SM.detach(), self.value_before_S.detach(), self.chosen_S

    def read(self, quantity: Quantity) -> Callable[..., Tensor]:
        """(fields ..., memory, value before, chosen) -> y [S]."""

        def run(*args: Tensor) -> Tensor:
            *fields, h, value_before, chosen = args
            return reached(quantity.read(Reading(*self.step(*fields, h), value_before, chosen)), fields)

        return run

    def step(self, *args: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(fields ..., memory) -> h, logits, value."""
        *fields, memory = args
        nowhere = torch.zeros(memory.shape[0], dtype=torch.bool, device=memory.device)
        state = unflatten(memory, self.agent.initial(1))
        t_B = torch.zeros(memory.shape[0], dtype=torch.int64, device=memory.device)
        acted = act(self.agent, dict(zip(self.obs, fields, strict=True)), state, nowhere, t_B)
        return acted.h_BH, acted.logits_BA, acted.value_B


class Attribution(NamedTuple):
    """maps [S, ...] a field, in units of the quantity; delta: by how much their sum misses the change, [S], where the
    method promises that it does not."""

    maps: dict[str, Tensor]
    delta: Tensor | None


def noised(frame: Frame, noise: Sequence[Mapping[str, Tensor]]) -> list[Frame]:
    """Copies of the frame, each with its own noise {field: [S, ...]}; without noise the frame itself."""
    return [frame._replace(obs={k: x + more[k] for k, x in frame.obs.items()}) for more in noise] or [frame]


def smoothed(frames: Sequence[Frame], attribute: Callable[[Frame], Attribution]) -> Attribution:
    """The mean of a method over noised copies of a frame (SmoothGrad, Smilkov et al. 2017, arXiv:1706.03825, for any
    method)."""
    found = [attribute(frame) for frame in frames]
    deltas = [f.delta for f in found if f.delta is not None]
    maps = {k: torch.stack([f.maps[k] for f in found]).mean(0) for k in frames[0].obs}
    return Attribution(maps, torch.stack(deltas).mean(0) if deltas else None)


@contextmanager
def quietly() -> Iterator[None]:
    """Without captum's notes of what it does to modules and inputs on its way."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*Setting forward, backward hooks", UserWarning)
        warnings.filterwarnings("ignore", r"Input Tensor \d+ did not already require gradients", UserWarning)
        yield
