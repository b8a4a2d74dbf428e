"""The simulator's training loss on a batch of windows.

In training the world's recurrence depends on recorded frames and actions only, so frames are
encoded, decoded and shown to the agent once over L * B, not step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from generative.rssm import gumbel, kl
from generative.simulator import RSSMSimulator


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the loss's terms; each is summed over steps and averaged over the batch."""

    image_std: float = 0.25
    """standard deviation of the Gaussian around a decoded pixel"""
    kl_weight: float = 1.0
    """KL(posterior || prior), in nats"""
    kl_balance: float = 0.8
    """share of the KL's gradient that moves the prior"""
    reward_weight: float = 1.0
    """half the squared error"""
    terminal_weight: float = 1.0
    """cross-entropy"""
    hidden_weight: float = 1.0
    """half the squared distance of the agent's simulated hidden state from the recorded one"""
    slowness_weight: float = 0.5
    """distance between successive deterministic states"""
    latent_weight: float = 1.0
    """gaussian: KL(q(z) || N(0, 1)); hypersphere: uniformity (arXiv:2005.10242)"""
    start_weight: float = 1.0
    """the agent's state and last action, read from the (detached) latent"""
    open_loop_share: float = 0.5
    """share of windows whose frames are hidden from the posterior after a random step, so that the
    prior itself learns to foretell them"""


@dataclass(frozen=True)
class Batch:
    """A batch of windows on the model's device; I initial frames, L simulated steps.

    ``frames`` uint8 [B, I-1+L, 64, 64, 3]; ``seen`` [B, L] the frame at simulated step i exists;
    ``happened`` [B, L] the transition *into* step i exists (it does at a terminal step whose frame
    the world never shows); ``reward`` and ``terminal`` belong to that transition; ``h`` [B, L, H] and
    ``action`` [B, L] are the agent's at step i; ``h_before`` [B, H] and ``action_before`` [B] one
    step earlier.
    """

    frames: Tensor
    seen: Tensor
    happened: Tensor
    reward: Tensor
    terminal: Tensor
    action: Tensor
    h: Tensor
    h_before: Tensor
    action_before: Tensor


def uniformity(z_BZ: Tensor) -> Tensor:
    """log mean exp(2 cos - 2) over distinct pairs of unit vectors; 0 for a batch of one."""
    count = z_BZ.shape[0]
    if count < 2:
        return z_BZ.sum() * 0
    cosine = (z_BZ @ z_BZ.T)[~torch.eye(count, dtype=torch.bool, device=z_BZ.device)]
    return torch.logsumexp(2 * cosine - 2, 0) - torch.log(torch.tensor(float(count * (count - 1))))


def loss_of(
    sim: RSSMSimulator, batch: Batch, config: LossConfig, generator: torch.Generator
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The loss (a scalar) and its parts (detached; nats or squared units a window)."""
    first = sim.initial_frames - 1
    size, length = batch.action.shape
    e = sim.embed_frames(batch.frames)
    mean, log_std = sim.infer_from(e[:, : first + 1])
    if sim.config.latent == "gaussian":
        draw = torch.randn(mean.shape, generator=generator, device=mean.device)
        z = mean + log_std.exp() * draw
        latent = (0.5 * (mean**2 + (2 * log_std).exp() - 1) - log_std).sum(-1).mean()
    else:
        z, latent = mean, uniformity(mean)
    state = sim.start_from(z, z.detach())
    d_start = state.d_BD
    h_start = state.h_BH
    # Hide the frames of some windows after a random step: there the prior must do.
    hidden = torch.rand(size, generator=generator, device=z.device) < config.open_loop_share
    first_hidden = torch.randint(0, length, (size,), generator=generator, device=z.device)
    steps = torch.arange(length, device=z.device)
    shown = batch.seen & ~(hidden[:, None] & (steps >= first_hidden[:, None]))
    noise = gumbel((size, length, sim.rssm.stochastic_size), generator, z)
    # a_{-1} is known here; the start head's guess of it is trained on its own below.
    known_last = F.one_hot(batch.action_before, sim.agent.n_actions).to(z.dtype)
    world = sim.unroll(state._replace(action_BA=known_last), e[:, first:], batch.action, shown, noise)

    seen, happened = batch.seen.float(), batch.happened.float()
    decoded = sim.decode(world.d_BLD.flatten(0, 1), world.s_BLS.flatten(0, 1))
    target = batch.frames[:, first:].flatten(0, 1).float() / 255
    squared = (decoded - target).square().sum((-3, -2, -1)).unflatten(0, (size, length)) * seen
    image = squared / (2 * config.image_std**2)
    forward = kl(world.posterior.detach(), world.prior)
    backward = kl(world.posterior, world.prior.detach())
    divergence = (config.kl_balance * forward + (1 - config.kl_balance) * backward) * shown
    reward = 0.5 * (sim.reward_head(world.d_BLD)[..., 0] - batch.reward) ** 2 * happened
    ended = sim.terminal_head(world.d_BLD)[..., 0]
    terminal = F.binary_cross_entropy_with_logits(ended, batch.terminal, reduction="none") * happened

    with sim.precision.cast(decoded.device):
        agent_e = sim.agent.encode({sim.agent.obs_name: decoded}).float().unflatten(0, (size, length))
    h, errors = h_start, []
    goes_on = torch.zeros(size, dtype=torch.bool, device=z.device)
    for i in range(length):
        # A frame answers for its own step only, which keeps the gradient of the agent's recurrence short.
        h = sim.agent.advance(agent_e[:, i], h if i == 0 else h.detach(), goes_on)
        errors.append(0.5 * ((h - batch.h[:, i]) ** 2).sum(-1))
    agent_h = torch.stack(errors, 1) * seen
    path = torch.cat([d_start[:, None], world.d_BLD], 1)
    # The root's gradient is infinite at 0: a constant far below any real distance keeps it finite.
    slow = (((path[:, 1:] - path[:, :-1]) ** 2).sum(-1) + 1e-8).sqrt() * happened
    start_h = 0.5 * ((h_start - batch.h_before) ** 2).sum(-1).mean()
    start_action = F.cross_entropy(sim.start_agent(z.detach())[:, sim.agent.hidden_size :], batch.action_before)

    parts = {
        "image": image.sum(1).mean(),
        "kl": divergence.sum(1).mean(),
        "reward": reward.sum(1).mean(),
        "terminal": terminal.sum(1).mean(),
        "hidden": agent_h.sum(1).mean(),
        "slowness": slow.sum(1).mean(),
        "latent": latent,
        "start": start_h + start_action,
    }
    loss = torch.stack(
        [getattr(config, f"{name}_weight") * v if name != "image" else v for name, v in parts.items()]
    ).sum()
    log = {k: v.detach() for k, v in parts.items()}
    log["frame_mse"] = squared.detach().sum() / (target[0].numel() * seen.sum().clamp_min(1))
    return loss, log
