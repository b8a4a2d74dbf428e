"""The training loss of a world that sees what it showed (generative.context), on a batch of windows.

World states along a window follow the recorded frames.  From some of them, ``feedback`` steps apart, the world goes on
by itself: its own frames are shown to it again, until the next of these places.  With a feedback of 1 every frame is
foretold from recorded ones (teacher forcing), all at once.  Windows are as long as the longest feedback that a training
has reached: it begins with many single steps, and ends with few long windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from core import config as cli
from core.contracts import UserError
from core.roll import Simulator, gumbel, one_hot
from core.trees import each, joined, unflatten
from generative.alignment import SIDE, Shifts, expected_cost, shift_costs
from generative.context import ContextWorld, Outcome, Seen
from generative.losses import (
    Batch,
    LossConfig,
    agent_loss,
    seen_by_agent,
    states_before,
    uniformity,
)
from generative.nets import FRAME, clamp_straight_through
from generative.recurrent_world import WorldPath
from generative.rssm import choose, kl

PIXEL_PART = 0.1  # of a pixel, within which a frame's shift is seen
STARTS = 8  # transitions to one start whose frames are drawn
# Settings at 0 that leave out what a world of another layout does not have either.
OFF_AT_0 = ("motion_weight", "whole_weight", "inverse_weight", "noise_std", "decisive_share")


@dataclass(frozen=True, kw_only=True)
class ContextLossConfig:
    """What the loss of a context world has beside the terms of every world."""

    free_nats: float = 1.0
    """KL of a frame below which it is not lowered further, in nats"""
    motion_weight: float = 100.0
    """what the shifts of the frame's parts cost in expectation: mean absolute difference of a block of 4 x 4 pixels
    from where it is said to come from, summed over the blocks"""
    motion_share: float = 0.125
    """share of the frames on which that is computed"""
    whole_weight: float = 100.0
    """distance, in pixels, of how far the frame as a whole is said to move from how far it is seen to (Huber's loss)"""
    inverse_weight: float = 1.0
    """cross-entropy of the action, read from the frames before and after it, recorded and own"""
    positive_weight: float = 20.0
    """how many times a transition with a reward, or one that ends the episode, counts; the probabilities are not moved
    by it (the logits that are trained are shifted by its logarithm)"""
    noise_std: float = 0.05
    """standard deviation, at its highest, of the noise on the frames that a world is shown in training"""
    decisive_share: float = 0.5
    """share of the image's weight that goes by the agent's saliency on the recorded frames (how far its policy and its
    value depend on a pixel), smoothed over 5 x 5 pixels; the rest is the same for all pixels"""
    agent_from: float = 1.0
    """share of the updates after which the agent's terms (--hidden_weight, --feature_weight) count; 1: never"""
    agent_cap: float = 0.1
    """how large they may become together, as a share of the image's; beyond, they are scaled down to it"""
    feedback: tuple[int, ...] = (1, 2, 4, 8)
    """steps that a world is shown its own frames, 1: none; each of these in turn in the course of the training, in
    windows of one step more (of --steps at most), as many transitions an update always"""
    feedback_shares: tuple[float, ...] = (0.4, 0.2, 0.2, 0.2)
    """share of the updates in which each of these is the longest"""

    def asked(self) -> list[str]:
        """Names of the settings by which more is asked for than a world of another layout does by itself."""
        other = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return [name for name in other if getattr(self, name) != 0 or name not in OFF_AT_0]

    def check(self) -> None:
        """UserError for settings that mean nothing."""
        cli.require_shares(
            motion_share=self.motion_share, decisive_share=self.decisive_share, agent_from=self.agent_from
        )
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, float) and value < 0:
                raise UserError(f"--{f.name} must be at least 0, not {value:g}")
        if not self.positive_weight > 0:
            raise UserError("--positive_weight must be above 0: transitions that count nothing are not learnt")
        steps, shares = self.feedback, self.feedback_shares
        if not steps or steps[0] < 1 or any(a >= b for a, b in pairwise(steps)):
            raise UserError("--feedback takes steps from 1 on, each more than the one before: --feedback 1 2 4 8")
        if len(shares) != len(steps) or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
            raise UserError(f"--feedback_shares takes {len(steps)} shares above 0, one for each of --feedback, adding "
                            f"up to 1; not {' '.join(f'{x:g}' for x in shares)}")  # fmt: skip


class ContextDraws(NamedTuple):
    """All the chance in the loss of B windows of L steps."""

    latent_BZ: Tensor  # standard normal
    hidden_BL: Tensor  # bool, s is the prior's mode in what begins at a step
    state_BLS: Tensor  # standard Gumbel, of the L-1 steps after the first
    noise: Tensor  # [B, L+1, 3, 64, 64], what is added to the frames that are shown
    costed_BL: Tensor  # bool, what the shifts that lead to a step cost is computed
    feedback: int
    by_agent: bool  # the agent's terms count

    def part(self, rows: slice) -> ContextDraws:
        """Those of some of the windows."""
        fields: dict[str, Any] = {k: x[rows] if isinstance(x, Tensor) else x for k, x in self._asdict().items()}
        return ContextDraws(**fields)


def reached_at(progress: float, config: ContextLossConfig) -> int:
    """Which of the feedbacks is the longest that is reached; progress: share of the updates that are done."""
    reached, until = 0, config.feedback_shares[0]
    while progress >= until and reached + 1 < len(config.feedback):
        reached += 1
        until += config.feedback_shares[reached]
    return reached


def feedback_at(progress: float, config: ContextLossConfig, chance: float) -> int:
    """Steps of feedback of an update; chance: uniform in [0, 1).  Half of the updates have the longest that is reached,
    the others any of the shorter ones."""
    reached = reached_at(progress, config)
    if not reached or chance < 0.5:
        return config.feedback[reached]
    return config.feedback[min(reached - 1, int((chance - 0.5) * 2 * reached))]


def windows_at(progress: float, config: ContextLossConfig, batch: int, steps: int) -> tuple[int, int]:
    """(windows, their steps) of an update, of as many transitions as ``batch`` windows of ``steps`` have."""
    length = min(steps, config.feedback[reached_at(progress, config)] + 1)
    return max(1, batch * (steps - 1) // (length - 1)), length


def draw_context(
    world: ContextWorld, size: int, length: int, loss: LossConfig, config: ContextLossConfig,
    generator: torch.Generator, progress: float,
) -> ContextDraws:  # fmt: skip
    """Draws for ``size`` windows of ``length`` steps, on the generator's device."""
    device = generator.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    latent = torch.randn(size, world.latent_size, generator=generator, device=device)
    hidden = uniform(size, length) < loss.open_loop_share
    state = gumbel((size, length - 1, world.rssm.stochastic_size), generator, latent)
    std = config.noise_std * uniform(size, 1, 1, 1, 1).square()
    # Uniform, which is drawn several times as fast as normal noise.
    noise = std * math.sqrt(12) * (uniform(size, length + 1, FRAME[2], SIDE, SIDE) - 0.5)
    costed = uniform(size, length) < config.motion_share
    feedback = feedback_at(progress, config, float(uniform(1)))
    return ContextDraws(latent, hidden, state, noise, costed, feedback, progress >= config.agent_from)


class Foretold(NamedTuple):
    """What is foretold of steps 1 to L-1 of B windows; N = (L-1) * B rows in the order of ``at``."""

    at: Tensor  # int64 [N], step i of window b is i * B + b
    frame: Tensor  # planes [N, 3, 64, 64], not clamped
    shifts: Shifts
    moved: Tensor  # pixels, [N, 2]
    outcome: Outcome  # [N] each
    prior: Tensor  # log-probabilities of s, [N, groups, classes]
    posterior: Tensor
    looked: Tensor  # what the first of the frames, shown to the world again, shows of them, [M, E], M < N


def of_steps(x_BL: Tensor, steps: Tensor) -> Tensor:
    """[B, L, ...] -> [steps * B, ...], the windows of a step beside each other."""
    return x_BL[:, steps].transpose(0, 1).flatten(0, 1)


def foretell(world: ContextWorld, batch: Batch, shown: Tensor, draws: ContextDraws) -> tuple[Foretold, WorldPath, Seen]:
    """What the world foretells, the states along the recorded frames as far as it is put back on them, and what the
    recorded frames show, [B, L, ...].

    shown: the frames [B, L+1, 3, 64, 64] that the world sees, of steps -1 to L-1.
    """
    size, length = batch.seen.shape
    seen = world.look_along(shown, world.moved_before(batch.obs, world.initial_frames - 2))
    far = seen.far_NE
    at_places = range(0, length - 1, draws.feedback)  # numbers of the host's, which need not wait for a GPU
    places = torch.tensor(at_places, device=far.device)
    known = at_places[-1] + 2  # steps
    followed = (x[:, :known] for x in (far, batch.action, batch.seen, draws.state_BLS[:, : known - 1]))
    path = world.unroll(world.begin(far[:, 0]), *followed)
    acted = one_hot(batch.action, world.spec.parts, far)
    rows = torch.arange(size, device=far.device)
    last, look = of_steps(shown[:, 1:], places), Seen(*(of_steps(x, places) for x in seen))
    hidden = of_steps(draws.hidden_BL, places)
    d = s = far.new_zeros(0)
    parts: list[Foretold] = []
    longest = min(draws.feedback, length - 1)
    for j in range(longest):
        steps = places[: sum(place + 1 + j < length for place in at_places)] + 1 + j
        n = len(steps) * size
        last, look, hidden = last[:n], Seen(*(x[:n] for x in look)), hidden[:n]
        action = of_steps(acted, steps - 1)
        if j == 0:
            d, prior, posterior = (of_steps(x, steps - 1) for x in (path.d_BLD, path.prior, path.posterior))
        else:
            d = world.recall(s[:n], action, d[:n], look.far_NE)
            prior, posterior = world.guesses(d, of_steps(far, steps))
        told = of_steps(batch.seen, steps) & ~hidden
        noise = of_steps(draws.state_BLS, steps - 1)
        s = choose(torch.where(told[:, None, None], posterior, prior), noise * told[:, None])
        sketch = world.sketch(look, last, d, action)
        frame = world.paint(sketch, s)
        own = clamp_straight_through(frame)
        look = world.look(own, last, look.moved[:, :2]) if j + 1 < longest else Seen(*(x[:0] for x in look))
        at = (steps[:, None] * size + rows).flatten()
        outcome = world.outcome(world.known(sketch.trunk, d))
        parts.append(Foretold(at, frame, sketch.shifts, sketch.moved, outcome, prior, posterior, look.far_NE))
        last = own
    return joined(parts), path, seen


def weighted(logit: Tensor, happens: Tensor, weight: float) -> Tensor:
    """Cross-entropy [N] where what happens counts ``weight`` times.  The logit is shifted by the logarithm of it: its
    own sigmoid then is the probability (prior correction; King & Zeng 2001)."""
    shifted = logit + math.log(weight)
    return F.binary_cross_entropy_with_logits(shifted, happens, pos_weight=logit.new_tensor(weight), reduction="none")


def outcome_losses(told: Outcome, reward: Tensor, terminal: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """What foretelling rewards [N] and endings (0 or 1) costs, [N] each: cross-entropies, what happens counting
    ``weight`` times, and half the squared error of a reward's size."""
    some = (reward != 0).to(reward.dtype)
    paid = weighted(torch.where(terminal > 0, told.paid_end, told.paid_on), some, weight)
    return paid + 0.5 * (told.size - reward).square() * some, weighted(told.ended, terminal, weight)


def inverse_loss(world: ContextWorld, far_NE: Tensor, action: Tensor) -> Tensor:
    """Cross-entropy [N] of the actions int64 [N] (or [N, parts]) between two frames, from what these show."""
    with world.precision.cast(far_NE.device):
        logits = world.acts_head(far_NE).to(far_NE.dtype).split(list(world.spec.parts), -1)
    taken = action.unsqueeze(-1).flatten(1).unbind(-1)
    return torch.stack([F.cross_entropy(x, a, reduction="none") for x, a in zip(logits, taken, strict=True)]).sum(0)


def context_loss_of(
    simulator: Simulator[ContextWorld], batch: Batch, loss: LossConfig, config: ContextLossConfig, draws: ContextDraws
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The loss (a scalar) and its parts (detached; nats or squared units a window)."""
    world = simulator.world
    size, length = batch.seen.shape
    frames = world.planes_of(batch.obs, world.initial_frames - 2)  # of steps -1 to L-1
    told, _, looked = foretell(world, batch, (frames + draws.noise).clamp(0, 1), draws)

    far = looked.far_NE

    def of(x_BL: Tensor) -> Tensor:
        return x_BL.transpose(0, 1).flatten(0, 1)[told.at]

    seen, happened = of(batch.seen), of(batch.happened)
    target, reward = of(frames[:, 1:]), of(batch.reward)
    error = (told.frame - target).square() * seen[:, None, None, None]
    image = error
    if config.decisive_share:
        decisive = told.frame.new_ones(size, length, SIDE, SIDE)
        decisive[:, 1:] = decisive_pixels(simulator, frames[:, 1:], batch)
        decisive = of(decisive)
        image = error * (1 + config.decisive_share * (decisive[:, None] - 1))
    costed = (of(draws.costed_BL) & seen).nonzero()[:, 0]
    with torch.no_grad():
        costs = shift_costs(of(frames[:, :-1])[costed], target[costed], world.painter.reach)
    motion = expected_cost(costs, Shifts(*(x[costed] for x in told.shifts))).sum() / config.motion_share
    whole = F.smooth_l1_loss(told.moved, of(looked.moved[..., :2]), beta=PIXEL_PART, reduction="none").sum(-1) * seen
    paid, ended = outcome_losses(told.outcome, reward, of(batch.terminal), config.positive_weight)
    later = batch.seen[:, 1:]
    inverse = inverse_loss(world, far[:, 1:].flatten(0, 1), batch.action[:, :-1].flatten(0, 1)) * later.flatten()
    m = len(told.looked)
    before = torch.cat([batch.action[:, :1], batch.action[:, :-1]], 1)  # that led to a step
    own = inverse_loss(world, told.looked, of(before)[:m]) * seen[:m]
    forward = kl(told.posterior.detach(), told.prior).clamp_min(config.free_nats)
    backward = kl(told.posterior, told.prior.detach()).clamp_min(config.free_nats)
    divergence = (loss.kl_balance * forward + (1 - loss.kl_balance) * backward) * seen

    parts = {
        "image": image.sum() / (2 * loss.image_std**2 * size),
        "kl": divergence.sum() / size,
        "motion": motion / size,
        "whole": whole.sum() / size,
        "reward": (paid * happened).sum() / size,
        "terminal": (ended * happened).sum() / size,
        "inverse": (inverse.sum() + own.sum()) / size,
        **start_losses(world, far[:, 0].detach(), frames[:, :2], batch.state_before, loss, draws.latent_BZ, length),
    }
    weights = {**vars(loss), **vars(config), "image_weight": 1.0, "drawn_weight": 1.0}
    total = torch.stack([weights[f"{k}_weight"] * v for k, v in parts.items()]).sum()
    if draws.by_agent:
        more = agent_terms(simulator, told, frames, batch, loss)
        wanted = loss.hidden_weight * more["hidden"] + loss.feature_weight * more["feature"]
        most = config.agent_cap * parts["image"].detach()
        total = total + wanted * (most / wanted.detach().clamp_min(1e-12)).clamp_max(1.0)
        parts |= more
    mse = error.detach().sum() / (target[0].numel() * seen.sum().clamp_min(1))
    return total, {**{k: v.detach() for k, v in parts.items()}, "frame_mse": mse}


def decisive_pixels(simulator: Simulator[ContextWorld], frames: Tensor, batch: Batch) -> Tensor:
    """How far the agent's policy and value depend on each pixel of recorded frames [B, L, 3, 64, 64] from step 1 on:
    [B, L-1, 64, 64], of mean 1 a frame.

    The mean of two saliencies: absolute gradients of the likeliest action's log-probability and of the value with
    respect to the frame (the state before it as it was), summed over channels, over 5 x 5 pixels, each by its mean.
    """
    world, agent = simulator.world, simulator.agent
    size, length = batch.seen.shape
    with torch.no_grad():
        first = seen_by_agent(simulator, world.as_shown(frames[:, 0]))
    with torch.enable_grad():
        planes = frames[:, 1:].flatten(0, 1).detach().requires_grad_()
        seen = seen_by_agent(simulator, world.as_shown(planes))

        def from_first(x: Tensor, later: Tensor) -> Tensor:
            return torch.cat([x[:, None], later.detach().unflatten(0, (size, length - 1))], 1).flatten(0, 1)

        along = each(from_first, first, seen)
        state_BLS = states_before(agent, along, batch.state_before, length).unflatten(0, (size, length))
        before = unflatten(state_BLS[:, 1:].flatten(0, 1), agent.initial(size))
        goes_on = torch.zeros(size * (length - 1), dtype=torch.bool, device=planes.device)
        logits, value = agent.heads(seen, agent.advance(seen, before, goes_on))
        chosen = sum(x.log_softmax(-1).amax(-1).sum() for x in logits.split(list(agent.spec.parts), -1))
        depends = [torch.autograd.grad(y, planes, retain_graph=True)[0] for y in (chosen, value.sum())]
    out = torch.zeros_like(planes[:, 0])
    for gradient in depends:
        smooth = F.avg_pool2d(gradient.abs().sum(1, keepdim=True), 5, 1, 2, count_include_pad=False)[:, 0]
        mean = smooth.mean((1, 2), keepdim=True)
        out += torch.where(mean > 0, smooth / mean.clamp_min(1e-30), 1.0) / len(depends)
    return out.unflatten(0, (size, length - 1))


def agent_terms(
    simulator: Simulator[ContextWorld], told: Foretold, frames: Tensor, batch: Batch, loss: LossConfig
) -> dict[str, Tensor]:
    """Half the squared distances, a window, of the agent's hidden state and of what its encoder makes of the frames,
    along what is foretold (from a recorded frame at step 0 on) from those along the recorded frames [B, L+1, ...]."""
    world, (size, length) = simulator.world, batch.seen.shape
    own = clamp_straight_through(told.frame)[told.at.argsort()].unflatten(0, (length - 1, size)).transpose(0, 1)
    ways = (torch.cat([frames[:, 1:2], own], 1), frames[:, 1:])
    decoded, target = (world.as_shown(x.flatten(0, 1)) for x in ways)
    hidden, feature = agent_loss(simulator, decoded, target, batch.state_before, batch, loss)
    return {"hidden": hidden.sum(1).mean(), "feature": feature.sum(1).mean()}


def start_losses(
    world: ContextWorld, far_BE: Tensor, frames: Tensor, state_before: Tensor, loss: LossConfig, noise_BZ: Tensor,
    length: int,
) -> dict[str, Tensor]:  # fmt: skip
    """What random latents need: the frames [B, 2, 3, 64, 64] that they stand for, and the agent's memory.  No gradient
    reaches what the world does afterwards.  Of some of the windows, of ``length`` steps, where these are many."""
    some = slice(max(2, len(frames) * (length - 1) // STARTS))
    far_BE, frames, state_before, noise_BZ = far_BE[some], frames[some], state_before[some], noise_BZ[some]
    mean, log_std = world.infer_from(far_BE)
    if world.config.latent == "gaussian":
        z = mean + log_std.exp() * noise_BZ
        latent = (0.5 * (mean**2 + (2 * log_std).exp() - 1) - log_std).sum(-1).mean()
    else:
        z, latent = mean, uniformity(mean)
    last, before = world.drawn(z)
    drawn = (last - frames[:, 1]).square().sum() + (before - frames[:, 0]).square().sum()
    start = 0.5 * (world.memory(z.detach()) - state_before).square().sum(-1).mean()
    return {"drawn": drawn / (2 * loss.image_std**2 * len(frames)), "latent": latent, "start": start}
