"""Recurrent PPO in the open (Schulman et al. 2017, arXiv:1707.06347): advantages, losses, one update.

Axes: T steps of a rollout, B environments; a minibatch is a set of whole environments, so that the
recurrence is unrolled from the state it really had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from core import config as cli
from core.contracts import Agent
from core.ranks import ALONE, Processes
from core.trees import Tree, each, floats, joined, rows_of, unstacked

PARTS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipped_share")  # of the loss, for the log


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of the optimisation (PPO; Schulman et al. 2017, arXiv:1707.06347)."""

    total_steps: int = 200_000_000
    """environment steps in all"""
    envs: int = 256
    """environments side by side"""
    rollout_steps: int = 256
    """steps an environment makes between updates; also the length of back-propagation through time"""
    epochs: int = 3
    """passes over a rollout"""
    minibatches: int = 8
    """minibatches a pass; must divide envs (with --minibatch_of steps: envs x rollout_steps)"""
    minibatch_of: Literal["environments", "steps"] = "environments"
    """what a minibatch is drawn from: whole environments, whose recurrence is unrolled, or single steps (agents without
    a memory alone)"""
    learning_rate: float = 5e-4
    """Adam's, at the start"""
    anneal: bool = True
    """lower the learning rate linearly to 0"""
    gamma: float = 0.999
    """discount"""
    gae_lambda: float = 0.95
    """generalised advantage estimation (Schulman et al. 2016)"""
    clip: float = 0.2
    """clip of probability ratio and of value change"""
    entropy_coef: float = 0.01
    """weight of the entropy bonus, at the start"""
    anneal_entropy: bool = False
    """lower the entropy bonus linearly to 0"""
    value_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """clip of the gradient's norm"""
    bf16: bool = False
    """run the encoder in bfloat16 in training (several times faster on CPUs with AMX, many times slower on CPUs that
    have no arithmetic for it, where presets leave it off)"""

    def check(self) -> None:
        """UserError for numbers that mean nothing."""
        cli.require(1, envs=self.envs, minibatches=self.minibatches, rollout_steps=self.rollout_steps,
                    epochs=self.epochs, total_steps=self.total_steps)  # fmt: skip
        cli.require(0, learning_rate=self.learning_rate, entropy_coef=self.entropy_coef, value_coef=self.value_coef)
        cli.require_shares(gamma=self.gamma, gae_lambda=self.gae_lambda)
        cli.require_positive(clip=self.clip, max_grad_norm=self.max_grad_norm)


@dataclass
class RewardScale:
    """Divides rewards by the running standard deviation of whole episodes' discounted returns (clip 10).

    The usual running sum of rewards so far is nearly always 0 where the only reward ends the episode
    (CoinRun): it blows that reward up to the clip, the value loss swamps the policy's gradient, and
    learning all but stops (approximate KL 3e-4 an update; with this scale 4e-3).
    """

    gamma: float
    returns_B: np.ndarray  # discounted return of the running episodes
    discount_B: np.ndarray
    mean: float = 0.0
    var: float = 1.0
    count: float = 1.0

    def __call__(self, reward_B: np.ndarray, done_B: np.ndarray) -> np.ndarray:
        self.returns_B = self.returns_B + self.discount_B * reward_B
        self.discount_B = self.discount_B * self.gamma
        for finished in self.returns_B[done_B]:
            self.count += 1
            delta = finished - self.mean
            self.mean += delta / self.count
            self.var += (delta * (finished - self.mean) - self.var) / self.count
        self.returns_B = np.where(done_B, 0.0, self.returns_B)
        self.discount_B = np.where(done_B, 1.0, self.discount_B)
        return np.clip(reward_B / np.sqrt(self.var + 1e-8), -10, 10).astype(np.float32)


@dataclass
class Rollout:
    """What the environments gave in T steps; tensors [T, B, ...], ``state_first`` [B, ...] is the agent's state before
    step 0."""

    obs: dict[str, Tensor]
    is_first: Tensor
    action: Tensor
    logp: Tensor
    value: Tensor
    reward: Tensor
    done: Tensor
    state_first: Tree
    next_value: Tensor  # [B]
    alive: Tensor | None = None  # bool [T, B], this step was lived; None: every one


def gae(reward: Tensor, value: Tensor, done: Tensor, next_value: Tensor, gamma: float, lam: float) -> Tensor:
    """Advantages [T, B]; ``done[t]`` (bool) means the episode ended with transition t."""
    advantage = torch.zeros_like(reward)
    running = torch.zeros_like(next_value)
    for t in reversed(range(reward.shape[0])):
        after = next_value if t == reward.shape[0] - 1 else value[t + 1]
        going_on = (~done[t]).to(reward.dtype)
        delta = reward[t] + gamma * after * going_on - value[t]
        running = delta + gamma * lam * going_on * running
        advantage[t] = running
    return advantage


def encode(agent: Agent, obs: Mapping[str, Tensor], bf16: bool) -> Tree:
    """The agent's encoder, in bfloat16 if asked; float32 out."""
    device = next(iter(obs.values())).device.type
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        return floats(agent.encode(obs))


def single_steps(r: Rollout) -> Rollout:
    """Every step of a rollout as an environment of its own, [1, T * B, ...]: for agents without a memory, whose state
    before a step says nothing."""
    steps = r.reward.shape[0]

    def row(x: Tensor) -> Tensor:
        return x.flatten(0, 1)[None]

    columns = ("is_first", "action", "logp", "value", "reward", "done")
    more = {name: row(getattr(r, name)) for name in columns}
    state = each(lambda x: x.repeat(steps, *[1] * (x.ndim - 1)), r.state_first)
    alive = None if r.alive is None else row(r.alive)
    return Rollout(
        obs={k: row(v) for k, v in r.obs.items()}, state_first=state, next_value=r.next_value, alive=alive, **more
    )


def minibatches(envs: int, parts: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """A random partition of the environments."""
    yield from np.split(rng.permutation(envs), parts)


def loss_of(
    agent: Agent,
    r: Rollout,
    advantage: Tensor,
    columns: Tensor,
    config: PPOConfig,
    entropy_coef: float,
    processes: Processes = ALONE,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's loss on this process's share of a minibatch, the environments ``columns`` (int64), and its parts for the
    log.  The mean over the processes, and that of the gradients, are the whole minibatch's."""
    mine = processes.share(columns)
    obs = {k: v.index_select(1, mine) for k, v in r.obs.items()}
    seen = encode_sequences(agent, obs, config.bf16)
    logits, value = unroll(agent, seen, rows_of(r.state_first, mine), r.is_first[:, mine])
    return clipped_loss(logits, value, r, advantage, columns, config, entropy_coef, processes, agent.spec.parts)


def encode_sequences(agent: Agent, obs: Mapping[str, Tensor], bf16: bool) -> Tree:
    """Observations [T, B, ...] -> what the agent saw, [T, B, ...]."""
    steps = next(iter(obs.values())).shape[0]
    seen = encode(agent, {k: v.flatten(0, 1) for k, v in obs.items()}, bf16)
    return each(lambda x: x.unflatten(0, (steps, -1)), seen)


def unroll(agent: Agent, seen: Tree, state: Tree, is_first_TB: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [T * B, A] and values [T * B] of sequences seen [T, B, ...] that begin in ``state``."""
    return agent.heads(*unrolled(agent, seen, state, is_first_TB))


def unrolled(agent: Agent, seen: Tree, state: Tree, is_first_TB: Tensor) -> tuple[Tree, Tree]:
    """What was seen and the states, [T * B, ...] each, of sequences seen [T, B, ...] that begin in ``state``."""
    states = []
    for seen_B, is_first_B in zip(unstacked(seen), is_first_TB, strict=True):
        state = agent.advance(seen_B, state, is_first_B)
        states.append(state)
    return each(lambda x: x.flatten(0, 1), seen), joined(states)


def clipped_loss(
    logits: Tensor,
    value: Tensor,
    r: Rollout,
    advantage: Tensor,
    columns: Tensor,
    config: PPOConfig,
    entropy_coef: float,
    processes: Processes = ALONE,
    parts: Sequence[int] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's loss of what the agent now gives ([T * B, A] and [T * B]) on this process's share of the environments
    ``columns``.

    parts: choices of each part of an action, which are independent given h; (): one part."""
    mine = processes.share(columns)
    logp_all = [x.log_softmax(-1) for x in logits.split(list(parts or (logits.shape[-1],)), -1)]
    action = r.action[:, mine].reshape(-1, len(logp_all))
    logp = torch.stack([x.gather(1, action[:, [p]])[:, 0] for p, x in enumerate(logp_all)]).sum(0)
    adv, among = advantage[:, mine].flatten(), advantage[:, columns].flatten()
    old_logp, old_value = r.logp[:, mine].flatten(), r.value[:, mine].flatten()
    entropy = torch.stack([-(x.exp() * x).sum(-1).mean() for x in logp_all]).sum()
    return objective(logp, old_logp, adv, among, value, old_value, entropy, config, entropy_coef)


def objective(
    logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    among: Tensor,
    value: Tensor,
    old_value: Tensor,
    entropy: Tensor,
    config: PPOConfig,
    entropy_coef: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped loss of N steps (tensors [N], ``entropy`` a scalar), and its parts for the log.

    among: the advantages by whose mean and standard deviation these are standardised, those of the whole minibatch."""
    target = advantage + old_value
    advantage = (advantage - among.mean()) / (among.std() + 1e-8)
    ratio = (logp - old_logp).exp()
    policy = -torch.min(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage).mean()
    clipped = old_value + (value - old_value).clamp(-config.clip, config.clip)
    value_loss = 0.5 * torch.max((value - target) ** 2, (clipped - target) ** 2).mean()
    loss = policy + config.value_coef * value_loss - entropy_coef * entropy
    with torch.no_grad():
        kl = ((ratio - 1) - (logp - old_logp)).mean()
        clipped_share = ((ratio - 1).abs() > config.clip).float().mean()
    parts = (policy, value_loss, entropy, kl, clipped_share)
    return loss, {k: v.detach() for k, v in zip(PARTS, parts, strict=True)}


def update(
    agent: nn.Module,
    optimiser: torch.optim.Optimizer,
    r: Rollout,
    config: PPOConfig,
    rng: np.random.Generator,
    entropy_coef: float,
    loss_of: Callable[..., tuple[Tensor, dict[str, Tensor]]] = loss_of,
    processes: Processes = ALONE,
) -> dict[str, float]:
    """All epochs over one rollout; the mean of each log entry.  Raises FloatingPointError on a NaN loss or gradient.

    ``loss_of``: the loss of another kind of agent, with the arguments of this module's.  processes: all have the whole
    rollout, each takes its share of every minibatch, and the gradients are averaged.
    """
    advantage = gae(r.reward, r.value, r.done, r.next_value, config.gamma, config.gae_lambda)
    if config.minibatch_of == "steps":
        r, advantage = single_steps(r), advantage.reshape(1, -1)
    logs: dict[str, list[float]] = {}
    for _ in range(config.epochs):
        for part in minibatches(r.reward.shape[1], config.minibatches, rng):
            columns = torch.as_tensor(part, device=r.reward.device)
            loss, parts = loss_of(agent, r, advantage, columns, config, entropy_coef, processes)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if processes.count > 1:
                values = processes.average(list(agent.parameters()), torch.stack([loss.detach(), *parts.values()]))
                loss, parts = values[0], dict(zip(parts, values[1:], strict=True))
            norm = nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm)
            # The one wait for a GPU in a minibatch.
            told, size, *mean_parts = torch.stack([loss.detach(), norm, *parts.values()]).tolist()
            if not math.isfinite(told):
                raise FloatingPointError(f"PPO loss is {told}")
            if not math.isfinite(size):
                raise FloatingPointError(f"PPO gradient norm is {size}")
            optimiser.step()
            for k, v in (("loss", told), *zip(parts, mean_parts, strict=True)):
                logs.setdefault(k, []).append(v)
    lived = slice(None) if r.alive is None else r.alive
    out = {k: float(np.mean(v)) for k, v in logs.items()}
    out["explained_variance"] = float(1 - advantage[lived].var() / ((advantage + r.value)[lived].var() + 1e-8))
    return out
