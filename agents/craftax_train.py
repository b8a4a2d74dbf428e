"""Train an agent in Craftax: ``python train.py craftax --preset demo --out runs/craftax``."""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python train.py craftax", file=sys.stderr)
    sys.exit(2)

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.consistency import ConsistencyOptions
from agents.ppo import PPOConfig
from agents.recurrent import AgentConfig
from agents.train import AgentTraining, Collector, train_agent
from core.contracts import Step
from envs.craftax import CraftaxEnv, CraftaxOptions

STAGE = "train_craftax"


@dataclass(frozen=True, kw_only=True)
class CraftaxTrainConfig(AgentTraining):
    """Train a recurrent PPO agent in Craftax and save it as a run directory.

    Also by the names that its earlier users know: --total_timesteps, --num_envs, --num_steps (of a rollout),
    --num_checkpoints, --cell, --out_dir.
    """

    out: Path = Path("runs/craftax")
    """run directory to write (also --out_dir)"""
    env: CraftaxOptions = field(default_factory=CraftaxOptions)
    net: AgentConfig = field(default_factory=lambda: AgentConfig(encoder="mlp", embedding_size=256, hidden_size=256))
    ppo: PPOConfig = field(
        default_factory=lambda: PPOConfig(
            total_steps=5_000_000,
            envs=128,
            rollout_steps=64,
            epochs=4,
            minibatches=8,
            learning_rate=3e-4,
            gamma=0.99,
        )
    )
    checkpoints: int = 5
    """evenly spaced checkpoints kept (checkpoint_STEPS.safetensors; also --num_checkpoints)"""
    threads: int = 1
    """CPU threads for torch (those of the environment are JAX's: two kinds that wait for each other are slow)"""


class CraftaxCollector(Collector):
    """Counts achievements too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.achievements: deque[int] = deque(maxlen=100)

    def _count(self, step: Step, reward: np.ndarray, done: np.ndarray) -> None:
        super()._count(step, reward, done)
        if done.any():
            assert step.final_truth is not None  # Craftax always says
            own = np.sum([x for name, x in step.final_truth.items() if name.startswith("achieved_")], 0, np.int64)
            achieved = self.processes.joined(torch.from_numpy(own)).numpy()
            self.achievements.extend(achieved[done].tolist())

    def means(self) -> dict[str, float]:
        mean = float(np.mean(self.achievements)) if self.achievements else np.nan
        return {**super().means(), "achievements_mean": mean}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "achievements": list(self.achievements)}

    def restore(self, state: dict[str, Any], step: int) -> None:
        super().restore(state, step)
        self.achievements.extend(state["achievements"])


def main(config: CraftaxTrainConfig) -> None:
    train_agent(config, STAGE, lambda slots: CraftaxEnv(config.env, slots), ConsistencyOptions(), CraftaxCollector)
