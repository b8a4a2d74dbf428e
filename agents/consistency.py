"""A policy and a value that do not hang on where exactly a pixel lies: data-regularised actor-critic (DrAC, Raileanu et
al. 2021, arXiv:2006.12862).  Augmented frames, and the loss that pulls what the agent makes of them to what it makes
of the frames as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agents.policies import kl_per_part, sample
from agents.ppo import PPOConfig, Rollout, clipped_loss, encode_sequences, unroll
from agents.recurrent import RecurrentAgent
from core import config as cli
from core.contracts import UserError
from core.ranks import ALONE, Processes
from core.trees import each, rows_of


@dataclass(frozen=True, kw_only=True)
class ConsistencyOptions:
    """The consistency term of the loss and its augmentation; one shift and one blur for a whole sequence."""

    consistency: float = 0.0
    """weight of the consistency term: it pulls policy and value of augmented frames to those of the frames (0: none)"""
    consistency_share: float = 0.25
    """share of a minibatch's environments that the consistency term is taken on"""
    max_shift: int = 4
    """augmentation: shift along each axis, drawn from minus to plus this many pixels"""
    max_blur: float = 0.0
    """augmentation: blur by [w, 3 - 2w, w] / 3 along each axis, w drawn from 0 to this (1: the mean of 3 x 3 pixels)"""

    def check(self, agent: RecurrentAgent) -> None:
        """UserError unless the options fit each other and the agent."""
        cli.require(0, consistency=self.consistency, max_shift=self.max_shift, max_blur=self.max_blur)
        if self.max_shift >= 64 or self.max_blur > 1 or not 0 < self.consistency_share <= 1:
            raise UserError(
                "--max_shift must be below 64, --max_blur at most 1, --consistency_share above 0 and at most 1"
            )
        if self.consistency and agent.config.encoder == "mlp":
            raise UserError("--consistency augments frames; an agent of vectors (--encoder mlp) has none")
        if self.consistency and not self.max_shift and not self.max_blur:
            raise UserError("--consistency without an augmentation does nothing; give --max_shift or --max_blur")


def axis_matrix(size: int, by: int, blur: float) -> Tensor:
    """What moves an axis of pixels up by ``by`` (edges repeated) and then mixes a mean over 3 into it with the weight
    ``blur``: float [size, size], its rows sum to 1."""
    pixel = torch.arange(size)
    moved, mixed = torch.zeros(size, size), torch.zeros(size, size)
    moved[pixel, (pixel - by).clamp(0, size - 1)] = 1
    for offset, weight in ((-1, blur / 3), (0, 1 - 2 * blur / 3), (1, blur / 3)):
        mixed.index_put_((pixel, (pixel + offset).clamp(0, size - 1)), torch.tensor(weight), accumulate=True)
    return mixed @ moved


def alter(frames_NHWC: Tensor, down: int = 0, right: int = 0, blur: float = 0.0) -> Tensor:
    """Frames moved by whole pixels, edges repeated, then blurred; ``blur`` 1 is the mean over 3 x 3 pixels, 0 none.
    Frames [N, H, W, C] are uint8, or float in [0, 1]; what is returned is float in [0, 1]."""
    x = frames_NHWC.float() / 255 if frames_NHWC.dtype == torch.uint8 else frames_NHWC
    _, height, width, channels = x.shape
    rows, columns = (axis_matrix(n, by, blur).to(x) for n, by in ((height, down), (width, right)))
    columns = torch.kron(columns, torch.eye(channels).to(x))  # one large product instead of many of C columns
    return ((rows @ x.flatten(2)) @ columns.T).view_as(x)


def augment(
    frames_TBHWC: Tensor, options: ConsistencyOptions, rng: np.random.Generator, processes: Processes = ALONE
) -> Tensor:
    """``alter``-ed sequences, uint8 [T, B, H, W, C] -> float in [0, 1]; each has one shift and one blur, drawn from
    ``rng``, so that its world moves as before.  Of several processes each draws for all and gives its share (which may
    be none)."""
    sequences = frames_TBHWC.unbind(1)
    by = rng.integers(-options.max_shift, options.max_shift + 1, (len(sequences), 2)).tolist()
    blur = rng.uniform(0, options.max_blur, len(sequences)).tolist()
    mine = processes.share(list(zip(sequences, by, blur, strict=True)))
    if not mine:
        return frames_TBHWC[:, :0].float()
    return torch.stack([alter(x, down, right, w) for x, (down, right), w in mine], 1)


def consistent_loss_of(
    options: ConsistencyOptions, rng: np.random.Generator
) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    """PPO's loss (the arguments of ``agents.ppo.loss_of``) plus the weighted consistency term on the first sequences of
    the minibatch: KL divergence of the policy on augmented frames from that on the frames, plus the squared difference
    of the values (equations 4 to 6).  Nothing flows back into the agent's view of the frames as they are.
    The parts of an action are independent given h: their divergences add up, and a choice is the same in all of them.

    Both views begin in the state the sequence really had and forget where an episode begins.
    """

    def loss_of(
        agent: RecurrentAgent,
        r: Rollout,
        advantage: Tensor,
        columns: Tensor,
        config: PPOConfig,
        entropy_coef: float,
        processes: Processes = ALONE,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        chosen = columns[: max(1, round(options.consistency_share * len(columns)))]
        mine, few = processes.share(columns), processes.share(chosen)  # its few are the first of its share
        n = len(mine)
        (name,) = agent.spec.obs
        frames = r.obs[name]
        with torch.no_grad():
            augmented = augment(frames.index_select(1, chosen), options, rng, processes)
        views = (frames.index_select(1, mine), augmented)
        seen = (encode_sequences(agent, {name: x}, config.bf16) for x in views if x.shape[1])
        both = torch.cat([mine, few])
        together = each(lambda *x: torch.cat(x, 1), *seen)
        logits, value = unroll(agent, together, rows_of(r.state_first, both), r.is_first[:, both])
        logits_TBA, value_TB = (x.unflatten(0, (-1, len(both))) for x in (logits, value))
        loss, parts = clipped_loss(
            logits_TBA[:, :n].flatten(0, 1), value_TB[:, :n].flatten(), r, advantage, columns, config, entropy_coef,
            processes, agent.spec.parts,
        )  # fmt: skip
        target, other = logits_TBA[:, : len(few)].detach(), logits_TBA[:, n:]
        steps = len(frames) * len(chosen)

        def mean(x_TB: Tensor) -> Tensor:
            """Over all that were chosen, of which the processes have unequal shares: what averages to it."""
            return x_TB.sum() / steps * processes.count

        kl = mean(kl_per_part(target, other, agent.spec).sum(-1))
        value_error = mean((value_TB[:, n:] - value_TB[:, : len(few)].detach()).square())
        parts["consistency_kl"], parts["consistency_value"] = kl.detach(), value_error.detach()
        choices = [sample(logits, agent.spec, greedy=True) for logits in (target, other)]
        parts["same_choice"] = mean((choices[0] == choices[1]).all(-1).float())
        return loss + options.consistency * (kl + value_error), parts

    return loss_of
