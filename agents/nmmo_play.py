"""Let policies act in Neural MMO: the loop that evaluation, extraction and replays share.

It stands beside core.roll.roll, and not on it: several policies share a world, each with slots of its own, and the rows
of the dead are not computed.  The step itself is core.roll.act, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.play import tensors
from agents.policies import PolicyAgent, load_policy, sample
from agents.zoo.encoders import MASKED
from core.contracts import Agent, EnvSpec, Step, UserError, VecEnv
from core.roll import act
from core.trees import on, rows_of, with_rows

RANDOM = "random"  # the name under which the baseline plays; no run directory may have it


class RandomPolicy:
    """Chooses uniformly among what is legal; an agent that sees only the mask and whose state, h, is empty."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec, self.points = spec, {"h": 0}

    def initial(self, batch: int) -> Tensor:
        return torch.zeros(batch, 0)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        return obs["Mask"]

    def advance(self, seen: Tensor, state: Tensor, is_first_B: Tensor) -> Tensor:
        return state

    def heads(self, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(seen > 0, 0.0, MASKED), torch.zeros(len(seen), device=seen.device)

    def read(self, point: str, seen: Tensor, state: Tensor) -> Tensor:
        return {"h": state}[point]

    def replaced(self, point: str, x_BN: Tensor, seen: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return {"h": (seen, x_BN)}[point]


Player = Agent


@dataclass(frozen=True)
class Tick:
    """One step of every slot.  Rows of slots whose agent is not there (``step.alive``) mean nothing.

    ``h``: what entered each policy's decoder, float32 [slots of that policy, H], in the order of its slots; ``points``:
    other vectors of the first policy, likewise.
    """

    step: Step
    h: tuple[np.ndarray, ...]
    value_B: np.ndarray
    action_BP: np.ndarray
    next: Step
    points: Mapping[str, np.ndarray] = field(default_factory=dict)


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
    points: Sequence[str] = (),
) -> Iterator[Tick]:
    """Endless ticks from a fresh reset.  player_B: int [B], which of ``players`` acts in a slot; points: of the first
    player, to be read too."""
    generator = torch.Generator().manual_seed(seed)
    slots = [np.flatnonzero(player_B == p) for p in range(len(players))]
    states = [on(player.initial(len(mine)), device) for player, mine in zip(players, slots, strict=True)]
    step = env.reset(seed)
    t_B = np.zeros(env.spec.slots, np.int64)
    while True:
        t_B = np.where(step.is_first, 0, t_B)
        value_B = np.zeros(env.spec.slots, np.float32)
        action_BP = np.zeros((env.spec.slots, len(env.spec.action_parts)), np.int64)
        activations = []
        read = {name: np.zeros((len(slots[0]), players[0].points[name]), np.float32) for name in points}
        for p, (player, mine) in enumerate(zip(players, slots, strict=True)):
            alive = np.ones(len(mine), bool) if step.alive is None else step.alive[mine]
            there = mine[alive]
            h_BH = np.zeros((len(mine), player.points["h"]), np.float32)
            if len(there):  # the dead are not looked at
                obs = tensors({k: v[there] for k, v in step.obs.items()}, device)
                is_first, t, rows = (torch.from_numpy(x).to(device)
                                     for x in (step.is_first[there], t_B[there], np.flatnonzero(alive)))  # fmt: skip
                acted = act(player, obs, rows_of(states[p], rows), is_first, t)
                states[p] = with_rows(states[p], rows, acted.state)
                action_BP[there] = sample(acted.logits_BA.cpu(), env.spec, generator, greedy=greedy).numpy()
                value_B[there] = acted.value_B.cpu().numpy()
                h_BH[alive] = acted.h_BH.cpu().numpy()
                for name, x_BN in read.items() if p == 0 else ():
                    x_BN[alive] = player.read(name, acted.seen, acted.state).cpu().numpy()
            activations.append(h_BH)
        after = env.step(action_BP)
        yield Tick(step=step, h=tuple(activations), value_B=value_B, action_BP=action_BP, next=after, points=read)
        step, t_B = after, t_B + 1


def policies_in(path: Path) -> dict[str, Path]:
    """Name -> run directory of every policy in a directory (or of the one that it is); UserError if there is none."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: no such directory of policies; python train.py nmmo -a hybrid makes one")
    if (path / "policy.json").exists():
        found = {path.resolve().name: path}
    else:
        found = {p.name: p for p in sorted(path.iterdir()) if (p / "policy.json").exists()}
    if not found:
        raise UserError(f"{path} holds no policy: it needs run directories of `train.py nmmo`")
    if RANDOM in found:
        raise UserError(f"{found[RANDOM]}: this name is the baseline's; rename the directory")
    return found


def load_policies(paths: Mapping[str, Path], device: torch.device) -> dict[str, PolicyAgent]:
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
