"""The recurrent state-space model (Hafner et al. 2021, arXiv:2010.02193).

D deterministic state, S = groups x classes one-hot stochastic state (flattened), E embedding of a
frame, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from core.config import require
from core.contracts import UserError
from core.roll import hot
from generative.nets import CELLS, ChannelNorm, Flat, conv, from_map, mlp, to_map

UNIFORM_SHARE = 0.01  # of each categorical, so that no log-probability is infinite (arXiv:2301.04104)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of the world model."""

    layout: Literal["vector", "residual", "grid", "context"] = "vector"
    """vector: states of arXiv:2010.02193, mixed by dense layers; residual: the same, told the last observation, of
    which it foretells the next as a change; grid: states, embeddings and latents are 8 x 8 maps, mixed by convolutions
    and one global vector, so that what a frame shows stays where it is; context: a grid whose state also holds the last
    two frames, from which it paints the next.
    On a grid and with a context D, groups and Z count all 64 cells, hidden_size is channels, and head_layers has no
    effect; they are for worlds that show one image of 64 x 64 pixels"""
    deterministic_size: int = 512
    """D, the GRU's state"""
    hidden_size: int = 1000
    """width of every MLP"""
    groups: int = 32
    """categorical variables of the stochastic state"""
    classes: int = 32
    """classes of each"""
    depth: int = 48
    """channels of the first convolution of an image; the last has up to 8 times as many"""
    head_layers: int = 4
    """hidden layers of the heads of reward, ending and vector fields"""
    latent_size: int = 128
    """Z, the latent a rollout starts from"""
    latent: Literal["gaussian", "hypersphere"] = "gaussian"
    """gaussian: a VAE's; hypersphere: unit vectors kept apart by a uniformity term"""
    initial_frames: int = 3
    """observations the latent is inferred from; the last of them is the first simulated one"""
    reach_rows: int = 8
    """context: pixels up or down that a part of a frame can move within a step"""
    reach_columns: int = 4
    """context: pixels left or right"""
    motions: int = 1
    """context: measured motions of the whole frame, of the last steps, from which the next one is read; 1 or 2"""
    trunk_blocks: int = 4
    """context: residual blocks of the network that paints a frame; every other one hears the mean over all cells"""
    joint_outcome: bool = False
    """context: the chance of a reward is another one where the episode ends than where it goes on (else the same, so
    that a reward which ends the episode is foretold as an ending without one, too)"""

    def __post_init__(self) -> None:
        require(1, deterministic_size=self.deterministic_size, hidden_size=self.hidden_size, groups=self.groups,
                    classes=self.classes, depth=self.depth, latent_size=self.latent_size)  # fmt: skip
        require(0, head_layers=self.head_layers, reach_rows=self.reach_rows, reach_columns=self.reach_columns,
                    trunk_blocks=self.trunk_blocks)  # fmt: skip
        if self.motions not in (1, 2):
            raise UserError(f"--motions is 1 or 2, not {self.motions}")

    def require_cells(self) -> None:
        """UserError for sizes that a layout of cells cannot have.  It is asked of worlds that can be simulated so."""
        for name in ("deterministic_size", "groups", "latent_size"):
            if getattr(self, name) % CELLS:
                raise UserError(f"--{name} must be a multiple of {CELLS} on a {self.layout}, not {getattr(self, name)}")


class LayerNormGRU(nn.Module):
    """A GRU cell with one layer norm over its three gates; update bias -1 (arXiv:2010.02193)."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs + size, 3 * size, bias=False)
        self.norm = nn.LayerNorm(3 * size)

    def forward(self, x_BX: Tensor, d_BD: Tensor) -> Tensor:
        reset, candidate, update = self.norm(self.gates(torch.cat([x_BX, d_BD], -1))).chunk(3, -1)
        update = torch.sigmoid(update - 1)
        candidate = torch.tanh(torch.sigmoid(reset) * candidate)
        out: Tensor = update * candidate + (1 - update) * d_BD
        return out


class RSSM(nn.Module):
    """Transition, prior and posterior."""

    def __init__(self, config: ModelConfig, actions: int, embedding: int) -> None:
        super().__init__()
        self.groups, self.classes = config.groups, config.classes
        size = config.groups * config.classes
        self.stochastic_size = size
        self.enter: nn.Module = mlp(size + actions, config.hidden_size, config.hidden_size, 0)
        self.enter_norm = nn.LayerNorm(config.hidden_size)
        self.cell = LayerNormGRU(config.hidden_size, config.deterministic_size)
        self.prior_net: nn.Module = mlp(config.deterministic_size, config.hidden_size, size, 1)
        self.posterior_net: nn.Module = mlp(config.deterministic_size + embedding, config.hidden_size, size, 1)

    def forward(
        self, d_BD: Tensor, s_BS: Tensor, last_BA: Tensor, e_BE: Tensor, seen_B: Tensor, noise_BS: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One recorded step: next d and s, and the log-probabilities of prior and posterior.

        s is the posterior's mode (drawn where noise is given) where the frame is seen, the prior's mode
        where not."""
        return self.known(self.transition(s_BS, last_BA, d_BD), e_BE, seen_B, noise_BS)

    def known(
        self, d: Tensor, e_BE: Tensor, seen_B: Tensor, noise_BS: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``forward`` from the next d on."""
        prior, posterior = self.prior(d), self.posterior(d, e_BE)
        # An unseen state is the prior's mode, as in a modal rollout: drawn ones made the gradient of
        # the frames that follow so noisy that the training diverged.
        either = torch.where(seen_B[:, None, None], posterior, prior)
        s = choose(either, None if noise_BS is None else noise_BS * seen_B[:, None])
        return d, s, prior, posterior

    def transition(self, s_BS: Tensor, action_BA: Tensor, d_BD: Tensor) -> Tensor:
        """d_t from s_{t-1}, a_{t-1}, d_{t-1}."""
        x = torch.nn.functional.silu(self.enter_norm(self.enter(torch.cat([s_BS, action_BA], -1))))
        out: Tensor = self.cell(x, d_BD)
        return out

    def prior(self, d_BD: Tensor) -> Tensor:
        """Log-probabilities [..., groups, classes] of p(s_t | d_t)."""
        return self.log_probs(self.prior_net(d_BD))

    def posterior(self, d_BD: Tensor, e_BE: Tensor) -> Tensor:
        """Log-probabilities [..., groups, classes] of q(s_t | d_t, o_t)."""
        return self.log_probs(self.posterior_net(torch.cat([d_BD, e_BE], -1)))

    def log_probs(self, flat: Tensor) -> Tensor:
        """Logits [..., S] -> log-probabilities [..., groups, classes], none of them infinite."""
        flat = flat.float() if flat.dtype == torch.bfloat16 else flat
        probs = flat.unflatten(-1, (self.groups, self.classes)).softmax(-1)
        return ((1 - UNIFORM_SHARE) * probs + UNIFORM_SHARE / self.classes).log()


class GridRSSM(RSSM):
    """The same on an 8 x 8 map: a convolutional GRU (arXiv:1511.06432) that also hears one global vector,
    read from the whole map and the action, by which a jump at the centre moves every cell."""

    def __init__(self, config: ModelConfig, actions: int, embedding: int, heard: int = 0) -> None:
        """heard: numbers that ``mixed`` is given beside d and s."""
        nn.Module.__init__(self)
        self.groups, self.classes = config.groups, config.classes
        size = config.groups * config.classes
        self.stochastic_size = size
        d, s, e, more = (n // CELLS for n in (config.deterministic_size, size, embedding, heard))
        width, few = config.hidden_size, 8
        self.summary = nn.Conv2d(d + s + more, few, 1)
        self.whole = mlp(CELLS * few + actions, 2 * width, width, 1)
        self.enter = conv(d + s + more, width)
        self.enter_norm = ChannelNorm(width)
        self.gates = nn.Conv2d(width + d, 3 * d, 3, padding=1, bias=False)
        self.gates_norm = ChannelNorm(3 * d)
        self.prior_net = Flat(conv(d, width), ChannelNorm(width), nn.SiLU(), nn.Conv2d(width, s, 1))
        self.posterior_net = Flat(conv(d + e, width), ChannelNorm(width), nn.SiLU(), nn.Conv2d(width, s, 1))

    def transition(self, s_BS: Tensor, action_BA: Tensor, d_BD: Tensor) -> Tensor:
        d = to_map(d_BD)
        return self.mixed(torch.cat([to_map(s_BS), d], 1), action_BA, d)

    def mixed(self, both: Tensor, action_BA: Tensor, d: Tensor) -> Tensor:
        """The next d from all maps, d's among them, and the action."""
        # In training no gradient goes back in time by this path: all cells pull together on the few numbers that all
        # cells hear, a gain above 1 a step, and the training diverged.  Analyses (eval mode) have the whole gradient.
        heard = both.detach() if self.training else both
        whole = self.whole(torch.cat([from_map(self.summary(heard)), action_BA], -1))
        x = torch.nn.functional.silu(self.enter_norm(self.enter(both) + whole[:, :, None, None]))
        reset, candidate, update = self.gates_norm(self.gates(torch.cat([x, d], 1))).to(d.dtype).chunk(3, 1)
        update = torch.sigmoid(update - 1)
        return from_map(update * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - update) * d)

    def posterior(self, d_BD: Tensor, e_BE: Tensor) -> Tensor:
        both = torch.cat([to_map(d_BD), to_map(e_BE)], 1)
        return self.log_probs(self.posterior_net(from_map(both)))


def choose(log_probs: Tensor, noise: Tensor | None) -> Tensor:
    """One-hot s [..., S] with the gradient of the probabilities: the mode, or a sample by Gumbel noise
    [..., S]."""
    groups, classes = log_probs.shape[-2:]
    scores = log_probs if noise is None else log_probs + noise.unflatten(-1, (groups, classes))
    hard = hot(scores.argmax(-1), classes, log_probs)
    probs = log_probs.exp()
    return (hard + (probs - probs.detach())).flatten(-2)


def kl(p_log: Tensor, q_log: Tensor) -> Tensor:
    """KL(p || q) summed over groups, in nats: [..., groups, classes] -> [...]."""
    return (p_log.exp() * (p_log - q_log)).sum((-2, -1))
