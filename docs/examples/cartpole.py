"""CleanRL's PPO agent for vectors (ppo.py) as a module for ``python -m agents.adopt``.

Actor and critic are two networks; the state is the last hidden layer of each, and ``h`` both side by side.
"""

from __future__ import annotations

import torch
from torch import nn

SIZE = 64


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, outputs))


class Agent(nn.Module):
    def __init__(self, spec):
        super().__init__()
        ((self.obs_name, field),) = spec.obs.items()
        self.actor, self.critic = network(field.shape[0], spec.n_actions), network(field.shape[0], 1)
        self.points = {"h": 2 * SIZE}

    def initial(self, batch):
        return self.actor[0].weight.new_zeros(batch, 2 * SIZE)

    def encode(self, obs):
        return obs[self.obs_name]

    def advance(self, seen, state, is_first):
        return torch.cat([self.actor[:-1](seen), self.critic[:-1](seen)], 1)

    def heads(self, seen, state):
        actor, critic = state.split(SIZE, 1)
        return self.actor[-1](actor), self.critic[-1](critic)[:, 0]

    def read(self, point, seen, state):
        return {"h": state}[point]

    def replaced(self, point, x, seen, state):
        return {"h": (seen, x)}[point]


def make_agent(spec):
    return Agent(spec)
