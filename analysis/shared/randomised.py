"""Copies of agents and simulators with weights shuffled: a control of what is read from the trained ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from core.contracts import Agent
from core.roll import Simulator


def has_weights(of: object) -> bool:
    """Whether something can be randomised: agents and worlds of rules cannot."""
    return isinstance(of, nn.Module) and any(True for _ in of.parameters())


def shuffle(module: nn.Module, seed: int, chosen: Callable[[str], bool] = lambda name: True) -> None:
    """Shuffle the entries of every weight tensor whose name is chosen, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if chosen(name):
                order = torch.randperm(p.numel(), generator=generator).to(p.device)
                p.copy_(p.flatten()[order].view_as(p))


def randomised(agent: Agent, seed: int, parts: Sequence[str] | None = None) -> Agent:
    """A copy of the agent with the entries of every weight tensor shuffled: nothing learned, same scales.

    parts: only these (the first words of the names of its weights)."""
    if not (isinstance(agent, nn.Module) and has_weights(agent)):
        raise TypeError("only an agent that has weights can be randomised")
    other = copy.deepcopy(agent)
    shuffle(other, seed, lambda name: parts is None or name.split(".")[0] in parts)
    out: Agent = other
    return out


def randomised_world(simulator: Simulator[Any], seed: int) -> Simulator[Any]:
    """A copy of the simulator with the weights of everything but the agent shuffled."""
    other = copy.deepcopy(simulator)
    if not has_weights(other.world):
        raise TypeError("only a world that has weights can be randomised")
    shuffle(other.world, seed)
    return other
