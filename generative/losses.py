"""The simulator's training loss on a batch of windows.

In training the world's recurrence depends on recorded frames (observations with all their fields) and actions only,
so frames are encoded, decoded and shown to the agent once over L * B, not step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from core import config as cli
from core.contracts import Agent, UserError
from core.roll import Simulator, gumbel, one_hot
from core.trees import Tree, each, flatten, rows_of, unflatten
from generative.fields import as_read, error_of_field, loss_of_field
from generative.recurrent_world import RSSMWorld
from generative.rssm import kl


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the loss's terms; each is summed over steps and averaged over the batch."""

    image_std: float = 0.25
    """standard deviation of the Gaussian around a decoded pixel"""
    vector_weight: float = 25.0
    """vector fields: negative log-likelihood in nats; of a real number half its squared error in standard deviations"""
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
    """share of windows whose frames are hidden from the posterior after a random step, so that the prior itself learns
    to predict them"""

    def check(self) -> None:
        """UserError for settings that mean nothing."""
        cli.require_positive(image_std=self.image_std)
        cli.require_shares(kl_balance=self.kl_balance, open_loop_share=self.open_loop_share)
        for f in fields(self):
            if f.name.endswith("_weight") and getattr(self, f.name) < 0:
                raise UserError(f"--{f.name} must be at least 0, not {getattr(self, f.name):g}")


@dataclass(frozen=True)
class Batch:
    """A batch of windows on the model's device; I initial frames, L simulated steps.

    ``obs`` [B, I-1+L, *shape] by field; ``seen`` [B, L] the frame at simulated step i exists;
    ``happened`` [B, L] the transition *into* step i exists (it does at a terminal step whose frame
    the world never shows); ``reward`` and ``terminal`` belong to that transition; ``h`` [B, L, H] and
    ``action`` int64 [B, L] (several parts: [B, L, parts]) are the agent's at step i; ``state_before`` [B, S] (its whole
    state, flat) and ``action_before`` [B] (or [B, parts]) one step earlier.
    """

    obs: Mapping[str, Tensor]
    seen: Tensor
    happened: Tensor
    reward: Tensor
    terminal: Tensor
    action: Tensor
    h: Tensor
    state_before: Tensor
    action_before: Tensor

    def part(self, rows: slice) -> Batch:
        """Some of the windows."""
        obs = {k: x[rows] for k, x in self.obs.items()}
        return Batch(obs=obs, **{k: x[rows] for k, x in vars(self).items() if k != "obs"})


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


def name_of(sim: RSSMWorld, field: str) -> str:
    """What the loss of a field is called in the log: ``image``, where an image is all that the world shows."""
    return "image" if list(sim.fields) == [field] and sim.fields[field].means == "image" else f"obs/{field}"


def observation_loss(
    sim: RSSMWorld,
    said: Mapping[str, Tensor],
    decoded: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    seen: Tensor,
    config: LossConfig,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Losses of the fields by their names in the log, and their errors in ``ERROR_UNITS``, of frames [B * L] that exist
    where ``seen`` [B, L]; what was said of them, what is shown, and what was."""
    parts, errors, count = {}, {}, seen.sum().clamp_min(1)
    for k, field in sim.fields.items():
        name, scale = name_of(sim, k), sim.scales[k]
        loss = loss_of_field(field, said[k], target[k], scale).unflatten(0, seen.shape) * seen
        if field.means == "image":
            # Of the unclamped pixels: nothing else calls one back that has left [0, 1], while the agent's terms push
            # it further for no effect.  With the clamped one a quarter of the pixels had drifted, some to -500, and
            # the training diverged.
            error = loss.detach().sum() / (target[k][0].numel() * count)
            loss = loss / (2 * config.image_std**2)
        else:
            wrong = error_of_field(field, decoded[k].detach(), target[k], scale)
            error = (wrong.unflatten(0, seen.shape) * seen).sum() / count
        parts[name] = loss.sum(1).mean()
        errors["frame_mse" if name == "image" else f"error/{k}"] = error
    return parts, errors


def loss_of(
    simulator: Simulator[RSSMWorld], batch: Batch, config: LossConfig, draws: Draws
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """The loss (a scalar) and its parts (detached; nats or squared units a window)."""
    sim = simulator.world
    first = sim.initial_frames - 1
    size, length = batch.seen.shape
    e = sim.embed_obs(batch.obs)
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
    world, said = sim.follow(begun.state, known_last, batch.obs, e, batch.action, shown, draws.state_BLS)

    seen, happened = batch.seen.float(), batch.happened.float()
    target = {k: as_read(f, batch.obs[k][:, first:].flatten(0, 1), z.dtype) for k, f in sim.fields.items()}
    decoded = sim.show(said)
    fields, errors = observation_loss(sim, said, decoded, target, seen, config)
    forward = kl(world.posterior.detach(), world.prior)
    backward = kl(world.posterior, world.prior.detach())
    divergence = (config.kl_balance * forward + (1 - config.kl_balance) * backward) * shown
    reward = 0.5 * (sim.reward_head(world.d_BLD)[..., 0] - batch.reward) ** 2 * happened
    ended = sim.terminal_head(world.d_BLD)[..., 0]
    terminal = F.binary_cross_entropy_with_logits(ended, batch.terminal, reduction="none") * happened
    agent_h, feature = agent_loss(simulator, decoded, target, start, batch, config)
    path = torch.cat([d_start[:, None], world.d_BLD], 1)
    # The root's gradient is infinite at 0: a constant far below any real distance keeps it finite.
    slow = (((path[:, 1:] - path[:, :-1]) ** 2).sum(-1) + 1e-8).sqrt() * happened
    start_h = 0.5 * ((start - batch.state_before) ** 2).sum(-1).mean()
    last_action = sim.start_agent(z.detach())[:, sim.memory_size :].split(list(sim.spec.parts), -1)
    taken = batch.action_before.reshape(size, -1).unbind(-1)  # part by part
    start_action = sum(F.cross_entropy(logits, a) for logits, a in zip(last_action, taken, strict=True))

    parts = {
        **fields,
        "kl": divergence.sum(1).mean(),
        "reward": reward.sum(1).mean(),
        "terminal": terminal.sum(1).mean(),
        "hidden": agent_h.sum(1).mean(),
        "feature": feature.sum(1).mean(),
        "slowness": slow.sum(1).mean(),
        "latent": latent,
        "start": start_h + start_action,
    }
    weights = {name_of(sim, k): 1.0 if f.means == "image" else config.vector_weight for k, f in sim.fields.items()}
    if drawn := sim.drawn(begun):
        before = {k: as_read(f, batch.obs[k][:, first - 1], z.dtype) for k, f in sim.fields.items()}
        fields, _ = observation_loss(sim, drawn, sim.show(drawn), before, torch.ones_like(seen[:, :1]), config)
        parts["drawn"] = torch.stack([weights[k] * x for k, x in fields.items()]).sum()
        weights["drawn"] = 1.0
    weighted = [weights[k] * v if k in weights else getattr(config, f"{k}_weight") * v for k, v in parts.items()]
    return torch.stack(weighted).sum(), {**{k: v.detach() for k, v in parts.items()}, **errors}


def states_before(agent: Agent, seen: Tree, start_BS: Tensor, length: int) -> Tensor:
    """The agent's flat states [B * L, S] before each observation of windows, of which ``seen`` [B * L] is what it
    makes; from the start on, to which alone a gradient passes."""
    size = len(start_BS)
    along = each(lambda x: x.detach().unflatten(0, (size, length)), seen)
    states, goes_on = [start_BS], torch.zeros(size, dtype=torch.bool, device=start_BS.device)
    state = unflatten(start_BS.detach(), agent.initial(size))
    with torch.no_grad():
        for i in range(length - 1):
            state = agent.advance(rows_of(along, (slice(None), i)), state, goes_on)
            states.append(flatten(state))
    return torch.stack(states, 1).flatten(0, 1)


def seen_by_agent(simulator: Simulator[Any], obs: Mapping[str, Tensor]) -> Tree:
    """What the agent makes of observations, encoded in the precision of the training, given in full precision."""
    with simulator.world.precision.cast(next(iter(obs.values())).device):
        out = simulator.agent.encode(obs)
    return each(lambda x: x.float() if x.dtype == torch.bfloat16 else x, out)


def agent_loss(
    simulator: Simulator[Any],
    decoded: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    start_BS: Tensor,
    batch: Batch,
    config: LossConfig,
) -> tuple[Tensor, Tensor]:
    """Half the squared distances [B, L] of the agent's hidden state along decoded frames [B * L] from the recorded one,
    and of what its encoder makes of them from what it makes of the real ones."""
    agent = simulator.agent
    size, length = batch.seen.shape
    seen = batch.seen.float()
    agent_seen = seen_by_agent(simulator, decoded)
    # A frame answers for its own step only, which keeps the gradient of the agent's recurrence short;
    # so the states before can be found without a graph, and the steps with one all at once.
    like, goes_on = agent.initial(size), torch.zeros(size * length, dtype=torch.bool, device=seen.device)
    flat = states_before(agent, agent_seen, start_BS, length)
    state = agent.advance(agent_seen, unflatten(flat, like), goes_on)
    h = agent.read("h", agent_seen, state).unflatten(0, (size, length))
    agent_h = 0.5 * (h - batch.h).square().sum(-1) * seen
    feature = torch.zeros_like(seen)
    if config.feature_weight:
        with torch.no_grad():
            real = seen_by_agent(simulator, target)
        gap = flatten(agent_seen) - flatten(real)
        feature = 0.5 * gap.unflatten(0, (size, length)).square().sum(-1) * seen
    return agent_h, feature
