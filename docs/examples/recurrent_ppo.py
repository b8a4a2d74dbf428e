"""sb3-contrib's RecurrentPPO with an MlpLstmPolicy, or a MultiInputLstmPolicy of vectors and categories, as a module
for ``python -m agents.adopt``.

Actor and critic have an LSTM each, so the state is four tensors.  ``h`` is both hidden states side by side: an
intervention on it reaches logits and value.  The sizes are the defaults of sb3-contrib; ``--weights model.zip`` fits.
"""

from __future__ import annotations

import torch
from torch import nn

SIZE = 256  # lstm_hidden_size
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
        # Cells, not fused LSTMs: these refuse gradients in eval mode on a GPU.
        self.lstm_actor, self.lstm_critic = (nn.LSTMCell(size, SIZE) for _ in range(2))
        self.mlp_extractor = nn.ModuleDict({"policy_net": tower(SIZE), "value_net": tower(SIZE)})
        self.action_net, self.value_net = nn.Linear(LAYERS[-1], spec.n_actions), nn.Linear(LAYERS[-1], 1)
        self.points = {"h": 2 * SIZE, "actor": SIZE, "critic": SIZE}

    def initial(self, batch):
        return tuple(self.action_net.weight.new_zeros(batch, SIZE) for _ in range(4))

    def encode(self, obs):
        return torch.cat([obs[name] for name in self.fields], 1)

    def advance(self, seen, state, is_first):
        h_actor, c_actor, h_critic, c_critic = (torch.where(is_first[:, None], 0, x) for x in state)
        return *self.lstm_actor(seen, (h_actor, c_actor)), *self.lstm_critic(seen, (h_critic, c_critic))

    def heads(self, seen, state):
        actor, critic = self.mlp_extractor["policy_net"](state[0]), self.mlp_extractor["value_net"](state[2])
        return self.action_net(actor), self.value_net(critic)[:, 0]

    def read(self, point, seen, state):
        h_actor, _, h_critic, _ = state
        return {"h": torch.cat([h_actor, h_critic], 1), "actor": h_actor, "critic": h_critic}[point]

    def replaced(self, point, x, seen, state):
        h_actor, c_actor, h_critic, c_critic = state
        if point == "h":
            h_actor, h_critic = x.split(SIZE, 1)
        elif point == "actor":
            h_actor = x
        else:
            h_critic = x
        return seen, (h_actor, c_actor, h_critic, c_critic)


def make_agent(spec):
    return Agent(spec)


def rename(name):
    """The file's name of a tensor -> the module's."""
    return name.replace("_l0", "")  # lstm_actor.weight_ih_l0: the first layer of a fused LSTM
