"""A world model to adopt (generative.adopt): CartPole's next observation by a small network.

The latent is the observation itself; nothing is hidden, and no noise is needed.
"""

from __future__ import annotations

import torch
from torch import nn

from core.contracts import Shown


class World(nn.Module):
    latent_size, initial_frames = 4, 1

    def __init__(self, actions):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4 + actions, 64), nn.Tanh(), nn.Linear(64, 5))

    def infer(self, obs):
        z = obs["x"][:, 0]
        return z, torch.full_like(z, -10.0)  # it is known exactly

    def normalise(self, z):
        return z

    def observe(self, obs, action, seen):
        return obs["x"]  # [B, L, 4]: nothing is hidden

    def start(self, z, noise=None):
        return z, Shown({"x": z}, torch.ones_like(z[:, 0]), torch.zeros_like(z[:, 0]), z)

    def step(self, state, action, noise=None):
        out = self.network(torch.cat([state, action], 1))
        x = state + out[:, :4]
        return x, Shown({"x": x}, torch.ones_like(x[:, 0]), torch.sigmoid(out[:, 4]), x)

    def draw_noise(self, batch, generator):
        return ()


def make_world(spec):
    return World(spec.n_actions)
