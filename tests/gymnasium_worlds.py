"""Files that make worlds of Gymnasium, for tests."""

from __future__ import annotations

from pathlib import Path


def module(path: Path, body: str) -> str:
    """A .py file whose ``make_env`` gives an environment of the given spaces and answers."""
    source = f"""
import gymnasium
import numpy as np
from gymnasium import spaces


class Env(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {{}}

    def step(self, action):
        return self.observation_space.sample() * 0, 0.0, False, False, {{}}


def make_env(**kwargs):
    return Env()

{body}
"""
    path.write_text(source)
    return str(path)
