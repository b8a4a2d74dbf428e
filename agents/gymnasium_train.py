"""Train an agent in a world of Gymnasium, or in one of your own: ``python train.py gymnasium --env CartPole-v1``."""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python train.py gymnasium", file=sys.stderr)
    sys.exit(2)

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from agents.adopt import options_of
from agents.consistency import ConsistencyOptions
from agents.ppo import PPOConfig
from agents.recurrent import AgentConfig
from agents.train import AgentTraining, Collector, train_agent
from core.contracts import EnvSpec, Step, UserError
from envs.procgen import GAMES
from envs.registry import KINDS, make, spec_of

STAGE = "train_gymnasium"
OTHERS = {"procgen": "train.py --game NAME", "nmmo": "train.py nmmo", "craftax": "train.py craftax"}


@dataclass(frozen=True, kw_only=True)
class GymnasiumTrainConfig(AgentTraining):
    """Train a recurrent PPO agent in a world of Gymnasium, or in one of your own, and save it as a run directory.

    Vectors are read by --encoder mlp, a picture by strided or impala.  --resume begins the episodes anew that were
    running: such worlds are objects, which no file holds.
    """

    env: str = "CartPole-v1"
    """the world: an id of Gymnasium, or a .py file with make_env (docs/bring-your-own.md)"""
    env_options: str = "{}"
    """the world's options as a JSON object, or a file that holds one"""
    net: AgentConfig = field(default_factory=lambda: AgentConfig(encoder="mlp"))
    ppo: PPOConfig = field(
        default_factory=lambda: PPOConfig(
            total_steps=500_000, envs=32, rollout_steps=64, epochs=4, minibatches=4, learning_rate=1e-3, gamma=0.99
        )
    )
    threads: int = 1
    """CPU threads for torch (the worlds are stepped one after the other)"""


class GymnasiumCollector(Collector):
    """Keeps which world it is in place of its state."""

    def state(self) -> dict[str, Any]:
        return {**super().state(), "world": self.env.spec.to_json()}

    def _snapshots(self) -> list[torch.Tensor]:
        return []

    def _shown_again(self, snapshots: list[torch.Tensor], step: int) -> Step:
        fresh = int(np.random.SeedSequence([self.seed, step]).generate_state(1)[0])
        return self.env.reset(fresh)

    def restore(self, state: dict[str, Any], step: int) -> None:
        if other := self.env.spec.differences(EnvSpec.from_json(state["world"])):
            raise UserError(f"--resume: the world is no longer the one that this training began in ({other[0]})")
        super().restore(state, step)
        self.score[:], self.length[:], self.scale.returns_B[:], self.scale.discount_B[:] = 0, 0, 0, 1


def world_of(env: str, options: str) -> EnvSpec:
    """The world that --env and --env_options name.  Raises UserError."""
    kind, own = env.partition("/")[0], env.endswith(".py")
    if env in GAMES:
        raise UserError(f"--env {env}: say train.py --game {env}")
    if kind in OTHERS and not own:
        raise UserError(f"--env {env}: say {OTHERS[kind]}")
    named = own or kind in KINDS
    return spec_of(env if named else f"gymnasium/{env}", options_of(options))


def main(config: GymnasiumTrainConfig) -> None:
    spec = world_of(config.env, config.env_options)
    if spec.env_id.partition("/")[0] not in ("gymnasium", "module"):
        raise UserError(f"--env {config.env}: train.py gymnasium trains in worlds of Gymnasium, and in .py files")
    train_agent(config, STAGE, lambda slots: make(spec, slots), ConsistencyOptions(), GymnasiumCollector)
