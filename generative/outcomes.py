"""Rewards and endings of a world that sees what it showed, learned once more when the rest of it is trained.

While a world learns, its frames are nearly all of its loss, and it meets a reward or an ending in one transition of
many.  Afterwards it stays as it is, and only what it reads rewards and endings from (``ContextWorld.outcome_head``)
goes on learning: from modal rollouts of the recorded actions, begun at recorded frames, so that it learns what these
look like in the world's own frames.  What such a rollout shows it is stored, so that every transition is met often.

Most endings of most games are of one kind, and rollouts from anywhere meet few of the others.  So further rollouts lead
to an ending each; only that is learned from them, and all endings together count as often as those met from anywhere.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.roll import one_hot
from core.training import learning_rate
from generative.context import ContextWorld
from generative.context_loss import outcome_losses
from generative.losses import Batch

AT_ONCE = 256  # transitions a gradient step
WARM_UP = 20  # gradient steps over which the learning rate rises
CALM = 0.05  # weight decay


@dataclass(frozen=True, kw_only=True)
class OutcomeConfig:
    """How rewards and endings are learned once more at the end (worlds of the layout context)."""

    outcome_windows: int = 0
    """rollouts of recorded actions from which rewards and endings are learned once more, when the rest of a context
    world is trained; 0: they are not"""
    outcome_endings: int = 0
    """further rollouts, at most one an episode, each of which leads to its ending: more kinds of endings; of no effect
    where --outcome_windows is 0"""
    outcome_steps: int = 32
    """steps of each of these rollouts (before an ending: up to as many); what they show takes 12 kB a step of memory in
    the preset context"""
    outcome_passes: int = 6
    """times that every transition is met; the pass that is best on the validation's episodes is kept"""
    outcome_rate: float = 1e-3
    """Adam's learning rate in it, at its highest"""


class Known(NamedTuple):
    """N transitions of rollouts: what a world reads their outcome from, and what their outcome was."""

    known_NK: Tensor  # float16
    reward_N: Tensor
    terminal_N: Tensor  # 1: the transition ended the episode
    window_N: Tensor  # int64, number of the rollout
    weight_N: Tensor  # as how many transitions it counts

    def part(self, rows: Tensor | slice) -> Known:
        """Some of the transitions."""
        return Known(*(x[rows] for x in self))


@torch.no_grad()
def known_along(world: ContextWorld, batches: Iterable[Batch], endings_alone: bool = False) -> Known:
    """The transitions of modal rollouts with the recorded actions, from the recorded frames that windows begin with;
    those that were not recorded (past an episode's end) left out, and all but endings where asked for."""
    parts: list[Known] = []
    windows = 0
    for batch in batches:
        size, length = batch.seen.shape
        state, _ = world.begin_at({k: x[:, : world.initial_frames] for k, x in batch.obs.items()})
        window = torch.arange(windows, windows + size, device=batch.seen.device)
        windows += size
        for i in range(1, length):
            state, known = world.go_on(state, one_hot(batch.action[:, i - 1], world.spec.parts, state.d_BD))
            on = batch.happened[:, i] & (batch.terminal[:, i] > 0) if endings_alone else batch.happened[:, i]
            reward = batch.reward[on, i]
            parts.append(Known(known[on].half(), reward, batch.terminal[on, i], window[on], torch.ones_like(reward)))
    return Known(*(torch.cat(x) for x in zip(*parts, strict=True)))


def windows_to_endings(
    steps_E: np.ndarray, episodes: np.ndarray, lead: int, most: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Windows that lead to the ends of some episodes, 1 to ``most`` transitions after their ``lead`` + 1 first
    observations: (starts int64 [N, 2], transitions [N]), the shortest first.  steps_E: transitions of all episodes."""
    room = np.minimum(most, steps_E[episodes] - lead)
    episodes, room = episodes[room >= 1], room[room >= 1]
    ahead = rng.integers(1, room + 1)
    starts = np.stack([episodes, steps_E[episodes] - lead - ahead], 1).astype(np.int64)
    order = np.argsort(ahead, kind="stable")
    return starts[order], ahead[order]


def with_endings(told: Known, further: Sequence[Known]) -> Known:
    """Transitions from anywhere and further endings: all endings together count as those from anywhere did."""
    met, more = int((told.terminal_N > 0).sum()), sum(len(x.reward_N) for x in further)
    share = met / max(1, met + more)
    weight = torch.where(told.terminal_N > 0, share * told.weight_N, told.weight_N)
    parts = [told._replace(weight_N=weight), *(x._replace(weight_N=share * x.weight_N) for x in further)]
    return Known(*(torch.cat(x) for x in zip(*parts, strict=True)))


def outcome_loss(world: ContextWorld, told: Known, weight: float) -> Tensor:
    """What foretelling each of N transitions costs, [N]: ``outcome_losses``, both together."""
    outcome = world.outcome(told.known_NK)
    paid, ended = outcome_losses(outcome, told.reward_N, told.terminal_N.to(outcome.size.dtype), weight)
    return told.weight_N * (paid + ended)


@torch.no_grad()
def cost_of(world: ContextWorld, told: Known) -> np.ndarray:
    """The cross-entropies [N] of a reward and of an ending together, nats a transition."""
    out = []
    for part in torch.arange(len(told.reward_N)).split(4 * AT_ONCE):
        rows = told.part(part)
        outcome = world.outcome(rows.known_NK)
        sure = outcome._replace(size=rows.reward_N.to(outcome.size.dtype))  # what a reward's size costs left out
        paid, ended = outcome_losses(sure, rows.reward_N, rows.terminal_N.to(outcome.size.dtype), 1.0)
        out.append(paid + ended)
    return torch.cat(out).double().cpu().numpy()


def learn_outcomes(
    world: ContextWorld, train: Known, held_out: Known, config: OutcomeConfig, weight: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the world's ``outcome_head`` to ``train``, the rest unchanged; the pass with the least mean ``cost_of``
    ``held_out`` is kept, the head as it was if none is better.  (The costs before, the costs after), [N] each."""
    head = world.outcome_head
    before = after = cost_of(world, held_out)
    best = copy.deepcopy(head.state_dict())
    count = len(train.reward_N)
    updates = config.outcome_passes * math.ceil(count / AT_ONCE)
    trained = [p.requires_grad for p in head.parameters()]
    head.requires_grad_(True)
    optimiser = torch.optim.AdamW(head.parameters(), lr=config.outcome_rate, weight_decay=CALM)
    done = 0
    for _ in range(config.outcome_passes):
        for rows in torch.from_numpy(rng.permutation(count)).split(AT_ONCE):
            rate = learning_rate(done, updates, config.outcome_rate, WARM_UP, "cosine")
            optimiser.param_groups[0]["lr"] = rate
            optimiser.zero_grad()
            outcome_loss(world, train.part(rows), weight).mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            done += 1
        cost = cost_of(world, held_out)
        if cost.mean() < after.mean():
            best, after = copy.deepcopy(head.state_dict()), cost
    head.load_state_dict(best)
    for p, was in zip(head.parameters(), trained, strict=True):
        p.requires_grad_(was)
    return before, after
