"""Let policies act in Neural MMO: the loop that evaluation, extraction and replays share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.play import tensors
from agents.policies import PolicyAgent, load_policy, sample
from agents.zoo.encoders import MASKED
from core.contracts import EnvSpec, Step, UserError, VecEnv

RANDOM = "random"  # the name under which the baseline plays; no run directory may have it


class RandomPolicy:
    """Chooses uniformly among what is legal.  Speaks PolicyAgent's words; its state and activation are empty."""

    hidden_size = state_size = 0

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec

    def initial(self, batch: int) -> Tensor:
        return torch.zeros(batch, 0)

    def encode(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        mask_BA = obs["Mask"]
        return torch.zeros(len(mask_BA), 0), mask_BA

    def advance(self, e_BE: Tensor, state_BS: Tensor, is_first_B: Tensor) -> tuple[Tensor, Tensor]:
        return e_BE, state_BS

    def heads(self, h_BH: Tensor, mask_BA: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(mask_BA > 0, 0.0, MASKED), torch.zeros(len(mask_BA))


Player = PolicyAgent | RandomPolicy


@dataclass(frozen=True)
class Tick:
    """One step of every slot.  Rows of slots whose agent is not there (``step.alive``) mean nothing.

    ``h``: what entered each policy's decoder, float32 [slots of that policy, H], in the order of its slots.
    """

    step: Step
    h: tuple[np.ndarray, ...]
    value_B: np.ndarray
    action_BP: np.ndarray
    next: Step


def game_seed(seed: int, number: int) -> int:
    """The seed of the part or repeat ``number`` (below 100,000) of a run: runs of different seeds share none."""
    return 100_000 * seed + number


@torch.no_grad()
def play(
    players: Sequence[Player],
    player_B: np.ndarray,
    env: VecEnv,
    *,
    seed: int,
    device: torch.device,
    greedy: bool = False,
) -> Iterator[Tick]:
    """Endless ticks from a fresh reset.  player_B: int [B], which of ``players`` acts in a slot."""
    generator = torch.Generator().manual_seed(seed)
    slots = [np.flatnonzero(player_B == p) for p in range(len(players))]
    states = [player.initial(len(mine)).to(device) for player, mine in zip(players, slots, strict=True)]
    step = env.reset(seed)
    while True:
        value_B = np.zeros(env.spec.slots, np.float32)
        action_BP = np.zeros((env.spec.slots, len(env.spec.action_parts)), np.int64)
        activations = []
        for p, (player, mine) in enumerate(zip(players, slots, strict=True)):
            alive = np.ones(len(mine), bool) if step.alive is None else step.alive[mine]
            there = mine[alive]
            h_BH = np.zeros((len(mine), player.hidden_size), np.float32)
            if len(there):  # the dead are not looked at
                obs = tensors({k: v[there] for k, v in step.obs.items()}, device)
                is_first = torch.from_numpy(step.is_first[there]).to(device)
                rows = torch.from_numpy(np.flatnonzero(alive)).to(device)
                e, seen = player.encode(obs)  # type: ignore[arg-type]
                h, state = player.advance(e, states[p][rows], is_first)
                states[p] = states[p].index_copy(0, rows, state)
                logits, value = player.heads(h, seen)
                action_BP[there] = sample(logits.cpu(), env.spec, generator, greedy=greedy).numpy()
                value_B[there] = value.cpu().numpy()
                h_BH[alive] = h.cpu().numpy()
            activations.append(h_BH)
        after = env.step(action_BP)
        yield Tick(step=step, h=tuple(activations), value_B=value_B, action_BP=action_BP, next=after)
        step = after


def policies_in(path: Path) -> dict[str, Path]:
    """Name -> run directory of every policy in a directory (or of the one that it is); UserError if there is none."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: no such directory of policies")
    if (path / "policy.json").exists():
        found = {path.resolve().name: path}
    else:
        found = {p.name: p for p in sorted(path.iterdir()) if (p / "policy.json").exists()}
    if not found:
        raise UserError(f"{path} holds no policy: it needs run directories of `train.py nmmo`")
    if RANDOM in found:
        raise UserError(f"{found[RANDOM]}: this name is the baseline's; rename the directory")
    return found


def load_policies(paths: dict[str, Path], device: torch.device) -> dict[str, PolicyAgent]:
    """The policies, all of one world; UserError if one of them was trained in another."""
    out = {name: load_policy(path, device) for name, path in paths.items()}
    (first, agent), *rest = out.items()
    for name, other in rest:
        if _world(other.spec) != _world(agent.spec):
            raise UserError(f"{name} and {first} were trained in different worlds; evaluate them apart")
    return out


def _world(spec: EnvSpec) -> dict[str, Any]:
    """What must be the same for two policies to meet."""
    return {k: v for k, v in spec.to_json().items() if k != "slots"}
