"""Stable-Baselines3's PPO with an MlpPolicy, or a MultiInputPolicy of vectors and categories, as a module for
``python -m agents.adopt``.

Layers are named as there, so that the zip of ``model.save`` fits.  It has no memory: its state is the last hidden layer
of actor and critic, and ``h`` both side by side.
"""

from __future__ import annotations

import torch
from torch import nn

LAYERS = (64, 64)  # net_arch of policy and value


def tower(size):
    layers = []
    for width in LAYERS:
        layers += [nn.Linear(size, width), nn.Tanh()]
        size = width
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.fields = tuple(spec.obs)  # one; those of a Dict side by side, in the order of its space
        size = sum(field.shape[0] for field in spec.obs.values())
        self.mlp_extractor = nn.ModuleDict({"policy_net": tower(size), "value_net": tower(size)})
        self.action_net, self.value_net = nn.Linear(LAYERS[-1], spec.n_actions), nn.Linear(LAYERS[-1], 1)
        self.points = {"h": 2 * LAYERS[-1]}

    def initial(self, batch):
        return self.action_net.weight.new_zeros(batch, 2 * LAYERS[-1])

    def encode(self, obs):
        return torch.cat([obs[name] for name in self.fields], 1)

    def advance(self, seen, state, is_first):
        return torch.cat([self.mlp_extractor["policy_net"](seen), self.mlp_extractor["value_net"](seen)], 1)

    def heads(self, seen, state):
        actor, critic = state.split(LAYERS[-1], 1)
        return self.action_net(actor), self.value_net(critic)[:, 0]

    def read(self, point, seen, state):
        return {"h": state}[point]

    def replaced(self, point, x, seen, state):
        return {"h": (seen, x)}[point]


def make_agent(spec):
    return Agent(spec)
