"""A convolutional agent with an LSTM for MiniGrid's RGB frames, as a module for ``python -m agents.adopt``.

It takes frames of 36 pixels a side or more.  Its points besides ``h`` are the LSTM's cell and the embedding of a frame.
"""

from __future__ import annotations

import torch
from torch import nn

SIZE = 128


class Agent(nn.Module):
    def __init__(self, spec):
        super().__init__()
        ((self.obs_name, field),) = spec.obs.items()
        self.convolutions = nn.Sequential(
            nn.Conv2d(field.shape[2], 16, 8, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(),
            nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        with torch.no_grad():
            width = self.convolutions(torch.zeros(1, field.shape[2], *field.shape[:2])).shape[1]
        self.embedding = nn.Sequential(nn.Linear(width, SIZE), nn.Tanh())
        self.memory = nn.LSTMCell(SIZE, SIZE)
        self.actor, self.critic = nn.Linear(SIZE, spec.n_actions), nn.Linear(SIZE, 1)
        self.points = {"h": SIZE, "cell": SIZE, "embedding": SIZE}

    def initial(self, batch):
        return tuple(self.actor.weight.new_zeros(batch, SIZE) for _ in range(2))

    def encode(self, obs):
        x = obs[self.obs_name]
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        return self.embedding(self.convolutions(x.permute(0, 3, 1, 2)))

    def advance(self, seen, state, is_first):
        return self.memory(seen, tuple(torch.where(is_first[:, None], 0, x) for x in state))

    def heads(self, seen, state):
        return self.actor(state[0]), self.critic(state[0])[:, 0]

    def read(self, point, seen, state):
        return {"h": state[0], "cell": state[1], "embedding": seen}[point]

    def replaced(self, point, x, seen, state):
        h, cell = state
        return {"h": (seen, (x, cell)), "cell": (seen, (h, x)), "embedding": (x, state)}[point]


def make_agent(spec):
    return Agent(spec)
