"""The agent: encoder -> memory blocks (GRU, running mean or none) -> logits and value, a pure function in named parts.

A block is one recurrent layer; each reads the one below it, and the heads read the last one, which is h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from agents.networks import (
    SMALLEST,
    EMACell,
    EncoderKind,
    Standardised,
    glorot,
    images,
    impala,
    mlp,
    orthogonal,
    strided,
    strided_blur,
)
from core.artefacts import WEIGHTS, load_json, load_weights, read_manifest, save_weights, write_json
from core.config import from_json, require, to_json
from core.contracts import EnvSpec, UserError
from core.trees import Tree
from envs.registry import renewed


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Sizes of the agent's network."""

    encoder: EncoderKind = "impala"
    """impala (a GPU's), strided (light), strided_blur (light, less shaken by shifts), mlp (vector observations, side by
    side)"""
    embedding_size: int = 64
    """features the encoder gives"""
    hidden_size: int = 64
    """size of the state h, and of every other block's"""
    recurrence: Literal["gru", "ema", "none", "features"] = "gru"
    """gru: remembers; ema: remembers running means, h = a h + (1 - a) W x with a learnt a in (0, 1) for each unit;
    none: feed-forward, h is a layer of its own observation alone; features: feed-forward, h is the encoder's features
    themselves (embedding_size and hidden_size are then the same)"""
    blocks: int = 1
    """recurrent layers, one upon the other"""
    norm: bool = True
    """layer norm before the encoder's last ReLU (a GRU needs it; Procgen's own IMPALA has none)"""
    initialisation: Literal["orthogonal", "glorot"] = "orthogonal"
    """the encoder's weights at the start: orthogonal (gain sqrt 2), or uniform after Glorot and Bengio (2010), the
    default of the library that Procgen's own IMPALA was written in: without a norm its features are then 20 to 30 times
    smaller"""
    standardise: bool = False
    """--encoder mlp: real numbers are seen in standard deviations from their mean, running ones of all that training
    saw (from its second rollout on), which are part of the network and frozen with it"""


class RecurrentAgent(nn.Module):
    """Keeps core.contracts.Agent: ``seen`` is the embedding; the state is h, or with several blocks a tuple of theirs,
    of which the last is h and the others are the points block_0, block_1, ...

    A GRU *cell*, not a fused RNN: cuDNN's refuses backward in eval mode.
    """

    def __init__(self, config: AgentConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        self.encoder = _encoder(config, spec)
        size = config.embedding_size
        if config.recurrence == "features" and size != config.hidden_size:
            raise UserError(
                f"--recurrence features: h is the features, so that --embedding_size {size} and --hidden_size "
                f"{config.hidden_size} must be the same"
            )
        self.points = {"h": config.hidden_size, "embedding": size}
        self.points |= {f"block_{i}": config.hidden_size for i in range(config.blocks - 1)}
        cells = {"gru": nn.GRUCell, "ema": EMACell, "none": nn.Linear, "features": nn.Identity}
        cell: Callable[[int, int], nn.Module] = cells[config.recurrence]
        self.cell = cell(size, config.hidden_size)
        self.cells_above = nn.ModuleList(cell(config.hidden_size, config.hidden_size) for _ in range(config.blocks - 1))
        self.h_initial = nn.Parameter(torch.zeros(config.hidden_size))
        self.h_initial_above = nn.ParameterList(torch.zeros(config.hidden_size) for _ in self.cells_above)
        self.policy = nn.Linear(config.hidden_size, spec.n_actions)
        self.critic = nn.Linear(config.hidden_size, 1)
        {"orthogonal": orthogonal, "glorot": glorot}[config.initialisation](self.encoder)
        orthogonal(self.policy, 0.01)
        orthogonal(self.critic, 1.0)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def remembers(self) -> bool:
        """Whether h holds anything of earlier observations."""
        return self.config.recurrence in ("gru", "ema")

    def initial(self, batch: int) -> Tree:
        each = tuple(h.expand(batch, -1) for h in (self.h_initial, *self.h_initial_above))
        return each if self.cells_above else each[0]

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        x = images(obs[next(iter(self.spec.obs))]) if self.config.encoder != "mlp" else self._vectors(obs)
        e_BE: Tensor = self.encoder(x)
        return e_BE

    def _vectors(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The fields of observations side by side."""
        return torch.cat([obs[name].to(self.h_initial.dtype) for name in self.spec.obs], -1)

    def take_in(self, obs: Mapping[str, Tensor]) -> None:
        """Observations [T, B, ...] that were learned from: with ``standardise`` what comes is seen by their mean and
        deviation too.  For a training; nothing else changes an agent."""
        first = self.encoder[0]
        if isinstance(first, Standardised):
            first.take_in(self._vectors(obs).flatten(0, 1))

    def advance(self, seen: Tensor, state: Tree, is_first_B: Tensor) -> Tree:
        states = state if self.cells_above else (state,)
        initial = self.initial(len(is_first_B)) if self.cells_above else (self.initial(len(is_first_B)),)
        out, x = [], seen
        for cell, h, first in zip((self.cell, *self.cells_above), states, initial, strict=True):
            previous = torch.where(is_first_B[:, None], first, h)
            if self.remembers:
                x = cell(x, previous)
            else:
                # What came before with weight 0, so that the gradient with respect to it is 0 and no error.
                x = (x if self.config.recurrence == "features" else torch.tanh(cell(x))) + 0 * previous
            out.append(x)
        return tuple(out) if self.cells_above else x

    def heads(self, seen: Tensor, state: Tree) -> tuple[Tensor, Tensor]:
        h = state[-1] if self.cells_above else state
        return self.policy(h), self.critic(h)[:, 0]

    def read(self, point: str, seen: Tensor, state: Tree) -> Tensor:
        if point == "embedding":
            return seen
        at = self._block(point)
        h: Tensor = state[at] if self.cells_above else state
        return h

    def replaced(self, point: str, x_BN: Tensor, seen: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        if point == "embedding":
            return x_BN, state
        at = self._block(point)
        return seen, tuple(x_BN if i == at else h for i, h in enumerate(state)) if self.cells_above else x_BN

    def _block(self, point: str) -> int:
        """The block that a point is the state of."""
        last = self.config.blocks - 1
        return {"h": last, **{f"block_{i}": i for i in range(last)}}[point]


def _encoder(config: AgentConfig, spec: EnvSpec) -> nn.Sequential:
    """The encoder of a world's observations; UserError if it does not read them."""
    require(1, blocks=config.blocks, embedding_size=config.embedding_size, hidden_size=config.hidden_size)
    shapes, size = {name: field.shape for name, field in spec.obs.items()}, config.embedding_size
    if config.encoder == "mlp":
        for name, shape in shapes.items():
            if len(shape) != 1:
                raise UserError(f"encoder 'mlp' does not read {name} of shape {shape}; pictures: --encoder strided")
        network = mlp(sum(shape[0] for shape in shapes.values()), size)
        real = [field.means == "real" for field in spec.obs.values() for _ in range(field.size)]
        return nn.Sequential(Standardised(real), *network) if config.standardise else network
    if config.standardise:
        raise UserError(f"--standardise is for --encoder mlp; {config.encoder!r} reads pictures, in [0, 1] as they are")
    if len(shapes) != 1:
        raise UserError(f"{spec.env_id} has {len(shapes)} observation fields; encoder {config.encoder!r} reads one")
    ((name, shape),) = shapes.items()
    if len(shape) == 1:
        raise UserError(f"encoder {config.encoder!r} does not read {name} of shape {shape}; vectors: --encoder mlp")
    if len(shape) != 3 or min(shape[:2]) < SMALLEST:
        raise UserError(f"encoder {config.encoder!r} reads pictures (height, width, channels) of {SMALLEST} pixels a "
                        f"side at least, not {shape}")  # fmt: skip
    tower = {"impala": impala, "strided": strided, "strided_blur": strided_blur}[config.encoder]
    return tower(size, config.norm, (shape[0], shape[1], shape[2]))


def save_agent(agent: RecurrentAgent, path: Path, name: str = WEIGHTS, small: bool = False) -> None:
    """Weights and what is needed to build the agent again; small: weights as float16 where they lose nothing by it."""
    write_json(path / "agent.json", {"net": to_json(agent.config), "spec": agent.spec.to_json()})
    save_weights(agent, path / name, small=small)


def load_agent(path: Path, device: torch.device | str = "cpu", name: str = WEIGHTS) -> RecurrentAgent:
    """The agent of a run directory, in eval mode, frozen.  UserError if it is half-written or misfits."""
    path = Path(path)
    manifest = read_manifest(path)
    if "agent.json" not in manifest["files"]:
        raise UserError(f"{path} holds no agent (stage {manifest['stage']!r} wrote it)")
    data = load_json(path, "agent.json")
    if not isinstance(data, dict) or not all(key in data for key in ("net", "spec")):
        raise UserError(f"{path / 'agent.json'} is not the description of an agent; copy or train it again")
    agent = RecurrentAgent(from_json(AgentConfig, data["net"]), renewed(EnvSpec.from_json(data["spec"])))
    load_weights(agent, path, name)
    return agent.to(device).eval().requires_grad_(False)
