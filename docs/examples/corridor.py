"""An environment of one's own: ``--env docs/examples/corridor.py``.

A corridor with a goal at one end, which a lamp shows on the first step only: whoever forgets it cannot know where to
go.  Observation: the place (one-hot) and the lamp.  Two parts of an action: where to go, and how far.  The goal is
told in ``info``, for probes.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    def __init__(self, length=9, horizon=20):
        self.length, self.horizon = length, horizon
        self.observation_space = spaces.Dict({"place": spaces.Discrete(length), "lamp": spaces.Box(-1, 1, (1,))})
        self.action_space = spaces.MultiDiscrete([2, 3])  # left or right, 0 to 2 places

    def _obs(self):
        lamp = self.goal if self.age == 0 else 0
        return {"place": self.place, "lamp": np.array([lamp], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.age, self.goal = self.length // 2, 0, int(self.np_random.choice([-1, 1]))
        return self._obs(), {"goal": self.goal}

    def step(self, action):
        direction, distance = action
        self.place = int(np.clip(self.place + (1 if direction else -1) * distance, 0, self.length - 1))
        self.age += 1
        at_end = self.place in (0, self.length - 1)
        reward = float(at_end and (self.place > 0) == (self.goal > 0))
        return self._obs(), reward, at_end, self.age >= self.horizon, {"goal": self.goal}


def make_env(**kwargs):
    return Corridor(**kwargs)
