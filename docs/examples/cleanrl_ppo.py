"""CleanRL's PPO agent for Procgen (ppo_procgen.py) as a module for ``python -m agents.adopt``.

Layers are named as there, so that its state dict fits without ``rename``.  It has no memory: its state is its last
hidden layer.
"""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv1(torch.relu(self.conv0(torch.relu(x))))


class Block(nn.Module):
    def __init__(self, before, channels):
        super().__init__()
        self.conv = nn.Conv2d(before, channels, 3, padding=1)
        self.res_block0, self.res_block1 = Residual(channels), Residual(channels)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv(x), 3, stride=2, padding=1)
        return self.res_block1(self.res_block0(x))


class Agent(nn.Module):
    def __init__(self, spec, size=256):
        super().__init__()
        ((self.obs_name, field),) = spec.obs.items()
        height, width, channels = field.shape
        for _ in range(3):
            height, width = (height + 1) // 2, (width + 1) // 2
        self.network = nn.Sequential(
            Block(channels, 16), Block(16, 32), Block(32, 32),
            nn.Flatten(), nn.ReLU(), nn.Linear(32 * height * width, size), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(size, spec.n_actions), nn.Linear(size, 1)
        self.points = {"h": size}

    def initial(self, batch):
        return self.actor.weight.new_zeros(batch, self.points["h"])

    def encode(self, obs):
        x = obs[self.obs_name]
        x = x.float() / 255 if x.dtype == torch.uint8 else x  # simulators show floats in [0, 1]
        return self.network(x.permute(0, 3, 1, 2))

    def advance(self, seen, state, is_first):
        return seen

    def heads(self, seen, state):
        return self.actor(state), self.critic(state)[:, 0]

    def read(self, point, seen, state):
        return {"h": state}[point]

    def replaced(self, point, x, seen, state):
        return {"h": (seen, x)}[point]


def make_agent(spec):
    return Agent(spec)
