"""The agent: encoder -> GRU cell (or none) -> logits and value, a pure function in named parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from agents.networks import EncoderKind, images, impala, mlp, orthogonal, strided, strided_blur
from core.artefacts import WEIGHTS, load_json, load_weights, read_manifest, save_weights, write_json
from core.config import from_json, to_json
from core.contracts import EnvSpec, UserError
from envs.registry import renewed


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Sizes of the agent's network."""

    encoder: EncoderKind = "impala"
    """impala (a GPU's), strided (light), strided_blur (light, less shaken by shifts), mlp (vector observations)"""
    embedding_size: int = 64
    """features the encoder gives"""
    hidden_size: int = 64
    """size of the state h"""
    recurrence: Literal["gru", "none", "features"] = "gru"
    """gru: remembers; none: feed-forward, h is a layer of its own observation alone; features: feed-forward, h is the
    encoder's features themselves (embedding_size and hidden_size are then the same)"""
    norm: bool = True
    """layer norm before the encoder's last ReLU (a GRU needs it; Procgen's own IMPALA has none)"""


class RecurrentAgent(nn.Module):
    """Keeps core.contracts.Agent: ``seen`` is the embedding, the state is h.

    A GRU *cell*, not a fused RNN: cuDNN's refuses backward in eval mode.
    """

    def __init__(self, config: AgentConfig, spec: EnvSpec) -> None:
        super().__init__()
        if len(spec.obs) != 1:
            raise UserError(f"{spec.env_id} has {len(spec.obs)} observation fields; this agent reads exactly one")
        (self.obs_name, field), *_ = spec.obs.items()
        self.config, self.spec = config, spec
        self.points = {"h": config.hidden_size, "embedding": config.embedding_size}
        if (config.encoder == "mlp") != (len(field.shape) == 1):
            raise UserError(f"encoder {config.encoder!r} does not read {self.obs_name} of shape {field.shape}")
        size = config.embedding_size
        if config.encoder == "mlp":
            self.encoder = mlp(field.shape[0], size)
        elif field.shape != (64, 64, 3):
            raise UserError(f"encoder {config.encoder!r} reads frames of shape (64, 64, 3), not {field.shape}")
        else:
            towers = {"impala": impala, "strided": strided, "strided_blur": strided_blur}
            self.encoder = towers[config.encoder](size, config.norm)
        if config.recurrence == "features" and size != config.hidden_size:
            raise UserError(
                f"--recurrence features: h is the features, so that --embedding_size {size} and --hidden_size "
                f"{config.hidden_size} must be the same"
            )
        cells: dict[str, Callable[..., nn.Module]]
        cells = {"gru": nn.GRUCell, "none": nn.Linear, "features": nn.Identity}
        self.cell = cells[config.recurrence](size, config.hidden_size)
        self.h_initial = nn.Parameter(torch.zeros(config.hidden_size))
        self.policy = nn.Linear(config.hidden_size, spec.n_actions)
        self.critic = nn.Linear(config.hidden_size, 1)
        orthogonal(self.encoder)
        orthogonal(self.policy, 0.01)
        orthogonal(self.critic, 1.0)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def remembers(self) -> bool:
        """Whether h holds anything of earlier observations."""
        return self.config.recurrence == "gru"

    def initial(self, batch: int) -> Tensor:
        return self.h_initial.expand(batch, -1)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        x = obs[self.obs_name]
        e_BE: Tensor = self.encoder(x if self.config.encoder == "mlp" else images(x))
        return e_BE

    def advance(self, seen: Tensor, state: Tensor, is_first_B: Tensor) -> Tensor:
        previous = torch.where(is_first_B[:, None], self.initial(state.shape[0]), state)
        if not self.remembers:
            h_BH = seen if self.config.recurrence == "features" else torch.tanh(self.cell(seen))
            # With weight 0, so that the gradient with respect to what came before is 0 and not an error.
            return h_BH + 0 * previous
        out: Tensor = self.cell(seen, previous)
        return out

    def heads(self, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.policy(state), self.critic(state)[:, 0]

    def read(self, point: str, seen: Tensor, state: Tensor) -> Tensor:
        return {"h": state, "embedding": seen}[point]

    def replaced(self, point: str, x_BN: Tensor, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return {"h": (seen, x_BN), "embedding": (x_BN, state)}[point]


def save_agent(agent: RecurrentAgent, path: Path, name: str = WEIGHTS) -> None:
    """Weights and what is needed to build the agent again."""
    write_json(path / "agent.json", {"net": to_json(agent.config), "spec": agent.spec.to_json()})
    save_weights(agent, path / name)


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
