"""The simulator's training loss on a batch of windows.

In training the world's recurrence depends on recorded frames and actions only, so frames are
encoded, decoded and shown to the agent once over L * B, not step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from core.roll import Simulator, gumbel, one_hot
from core.trees import Tree, each, flatten, rows_of, unflatten
from generative.nets import clamp_straight_through
from generative.rssm import kl
from generative.simulator import RSSMWorld


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
    feature_weight: float = 0.0
    """half the squared distance of what the agent's encoder makes of the decoded frame from what it makes of the
    real one: decisive pixels count, few as they may be"""
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
    ``action`` [B, L] are the agent's at step i; ``state_before`` [B, S] (its whole state, flat) and ``action_before``
    [B] one step earlier.
    """

    frames: Tensor
    seen: Tensor
    happened: Tensor
    reward: Tensor
    terminal: Tensor
    action: Tensor
    h: Tensor
    state_before: Tensor
    action_before: Tensor


class Draws(NamedTuple):
    """All the chance in the loss of B windows of L steps."""

    latent_BZ: Tensor  # standard normal
    hidden_B: Tensor  # bool, the window's frames are hidden from some step on
    first_hidden_B: Tensor  # int64, that step
    state_BLS: Tensor  # standard Gumbel

    def part(self, rows: slice) -> Draws:
        """Those of some of the windows."""
        return Draws(*(x[rows] for x in self))


def draw(sim: RSSMWorld, size: int, length: int, config: LossConfig, generator: torch.Generator) -> Draws:
    """Draws for ``size`` windows of ``length`` steps, on the generator's device."""
    device = generator.device
    latent = torch.randn(size, sim.latent_size, generator=generator, device=device)
    hidden = torch.rand(size, generator=generator, device=device) < config.open_loop_share
    # Squared, so that early steps come more often: a rollout's prior is on its own from the first.
    first_hidden = (torch.rand(size, generator=generator, device=device) ** 2 * length).long()
    return Draws(latent, hidden, first_hidden, gumbel((size, length, sim.rssm.stochastic_size), generator, latent))


def uniformity(z_BZ: Tensor) -> Tensor:
    """log mean exp(2 cos - 2) over distinct pairs of unit vectors; 0 for a batch of one."""
    count = z_BZ.shape[0]
    if count < 2:
        return z_BZ.sum() * 0
    cosine = (z_BZ @ z_BZ.T)[~torch.eye(count, dtype=torch.bool, device=z_BZ.device)]
    return torch.logsumexp(2 * cosine - 2, 0) - torch.log(torch.tensor(float(count * (count - 1))))


def loss_of(
    simulator: Simulator[RSSMWorld], batch: Batch, config: LossConfig, draws: Draws
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The loss (a scalar) and its parts (detached; nats or squared units a window)."""
    sim, agent = simulator.world, simulator.agent
    first = sim.initial_frames - 1
    size, length = batch.action.shape
    e = sim.embed_frames(batch.frames)
    mean, log_std = sim.infer_from(e[:, : first + 1])
    if sim.config.latent == "gaussian":
        z = mean + log_std.exp() * draws.latent_BZ
        latent = (0.5 * (mean**2 + (2 * log_std).exp() - 1) - log_std).sum(-1).mean()
    else:
        z, latent = mean, uniformity(mean)
    begun = sim.begin(z, z.detach())
    d_start, start = begun.state.d_BD, begun.memory_BS
    # Hide the frames of some windows after a random step: there the prior must do.
    steps = torch.arange(length, device=z.device)
    shown = batch.seen & ~(draws.hidden_B[:, None] & (steps >= draws.first_hidden_B[:, None]))
    # a_{-1} is known here; the start head's guess of it is trained on its own below.
    known_last = one_hot(batch.action_before, sim.spec.parts, z)
    world = sim.unroll(begun.state, known_last, e[:, first:], batch.action, shown, draws.state_BLS)

    seen, happened = batch.seen.float(), batch.happened.float()
    unclamped = sim.decode_unclamped(world.d_BLD.flatten(0, 1), world.s_BLS.flatten(0, 1))
    decoded = clamp_straight_through(unclamped)
    target = batch.frames[:, first:].flatten(0, 1).float() / 255
    # Of the unclamped frame: nothing else calls a pixel back that has left [0, 1], while the agent's terms push
    # it further for no effect.  With the clamped one a quarter of the pixels had drifted, some to -500, and
    # the training diverged.
    squared = (unclamped - target).square().sum((-3, -2, -1)).unflatten(0, (size, length)) * seen
    image = squared / (2 * config.image_std**2)
    forward = kl(world.posterior.detach(), world.prior)
    backward = kl(world.posterior, world.prior.detach())
    divergence = (config.kl_balance * forward + (1 - config.kl_balance) * backward) * shown
    reward = 0.5 * (sim.reward_head(world.d_BLD)[..., 0] - batch.reward) ** 2 * happened
    ended = sim.terminal_head(world.d_BLD)[..., 0]
    terminal = F.binary_cross_entropy_with_logits(ended, batch.terminal, reduction="none") * happened

    def seen_by_agent(frames: Tensor) -> Tree:
        with sim.precision.cast(frames.device):
            seen = agent.encode({sim.obs_name: frames})
        return each(lambda x: x.float() if x.dtype == torch.bfloat16 else x, seen)

    agent_seen = seen_by_agent(decoded)
    # A frame answers for its own step only, which keeps the gradient of the agent's recurrence short;
    # so the states before can be found without a graph, and the steps with one all at once.
    goes_on = torch.zeros(size, dtype=torch.bool, device=z.device)
    like = agent.initial(size)
    with torch.no_grad():
        along = each(lambda x: x.unflatten(0, (size, length)), agent_seen)
        before = [unflatten(start.detach(), like)]
        for i in range(length - 1):
            before.append(agent.advance(rows_of(along, (slice(None), i)), before[-1], goes_on))
    flat = torch.stack([start, *map(flatten, before[1:])], 1).flatten(0, 1)
    state = agent.advance(agent_seen, unflatten(flat, like), goes_on.repeat_interleave(length))
    h = agent.read("h", agent_seen, state).unflatten(0, (size, length))
    agent_h = 0.5 * (h - batch.h).square().sum(-1) * seen
    feature = torch.zeros_like(seen)
    if config.feature_weight:
        with torch.no_grad():
            real = seen_by_agent(target)
        gap = flatten(agent_seen) - flatten(real)
        feature = 0.5 * gap.unflatten(0, (size, length)).square().sum(-1) * seen
    path = torch.cat([d_start[:, None], world.d_BLD], 1)
    # The root's gradient is infinite at 0: a constant far below any real distance keeps it finite.
    slow = (((path[:, 1:] - path[:, :-1]) ** 2).sum(-1) + 1e-8).sqrt() * happened
    start_h = 0.5 * ((start - batch.state_before) ** 2).sum(-1).mean()
    last_action = sim.start_agent(z.detach())[:, sim.memory_size :]
    start_action = F.cross_entropy(last_action, batch.action_before)

    parts = {
        "image": image.sum(1).mean(),
        "kl": divergence.sum(1).mean(),
        "reward": reward.sum(1).mean(),
        "terminal": terminal.sum(1).mean(),
        "hidden": agent_h.sum(1).mean(),
        "feature": feature.sum(1).mean(),
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
