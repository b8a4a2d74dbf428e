"""The agent run on from the same starts with and without a change of its hidden state, in the real world and in the
simulator.

A paired run costs little: until an altered agent first acts otherwise than the unaltered one did, both see the same
world.  So each world is kept as a tree of what was done: runs that act alike from the same start share its places, and
most random changes part alike.  Only places where no run has been are played.

N starts (each of its own episode, so each an independent unit), R rows, G changes, k horizon, T = k + 1 steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.contracts import Agent, Intervention, apply_interventions, straight_through
from core.progress import bar
from validation.hypotheses.changes import Blocks
from validation.paired.course import Course, Measures, course_of, quantities

MOST_NODES = 20_000  # of a world kept: 400 MB of the bundled simulator's, 740 MB of CoinRun's


@dataclass(frozen=True)
class Become:
    """Replace the state by another [B, H]: both worlds start from the recorded one."""

    h: Tensor

    def __call__(self, h_BH: Tensor, t: int, mask_B: Tensor) -> Tensor:
        return torch.where(mask_B[:, None] & (t == 0), self.h, h_BH)


@dataclass(frozen=True)
class AddSteps:
    """Add ``changes`` [S, B, H] at steps 0 to S-1: what Jacobians are taken with respect to."""

    changes: Tensor

    def __call__(self, h_BH: Tensor, t: int, mask_B: Tensor) -> Tensor:
        return h_BH + self.changes[t] if t < len(self.changes) else h_BH


class Places(NamedTuple):
    """Where B steps of a world led to."""

    states: list[Any]  # to go on from; None: the episode is over
    e_BE: Tensor  # embeddings of what the agent sees there
    reward_B: Tensor  # of the transition that led there
    terminal_B: Tensor  # probability that it ended the episode (real: 0 or 1)


def joined(parts: Sequence[Places]) -> Places:
    """The places of all parts, in this order."""
    states, *tensors = zip(*parts, strict=True)
    return Places([state for part in states for state in part], *map(torch.cat, tensors))


@dataclass
class Level:
    """Every place of a world at one step that some run has come to: M nodes, of which the first N are those of the
    unaltered runs.  A node is a start and what was done since."""

    states: list[Any]
    e_ME: Tensor
    reward_M: Tensor
    terminal_M: Tensor
    action_N: Tensor  # what the unaltered agent does there
    child: dict[int, int]  # node * actions + action: node of the next level

    def add(self, places: Places) -> None:
        """More nodes."""
        self.states += places.states
        self.e_ME = torch.cat([self.e_ME, places.e_BE])
        self.reward_M = torch.cat([self.reward_M, places.reward_B])
        self.terminal_M = torch.cat([self.terminal_M, places.terminal_B])


@dataclass
class World:
    """A world that can be gone on with from any place in it, with the agent in it: a tree of what was done.

    Subclasses say where the starts are and where an action leads.
    """

    agent: Agent
    h_NH: Tensor
    noise_NTA: Tensor  # added to the logits before the argmax; zero: greedy
    measures: Measures
    _tree: list[Level] = field(init=False, default_factory=list)

    def begin(self) -> Places:
        """The N starts; embeddings are not looked at, since h is known."""
        raise NotImplementedError

    def go(self, t: int, states: Sequence[Any], actions: Sequence[int]) -> Places:
        """Where these actions lead from these places: to step ``t``."""
        raise NotImplementedError

    def _choose(self, h_BH: Tensor, of_B: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(logits, value, action, one-hot)"""
        logits, value = self.agent.heads(h_BH)
        index, one_hot = straight_through(logits, self.noise_NTA[of_B, t])
        return logits, value, index, one_hot

    @torch.no_grad()
    def tree(self) -> list[Level]:
        """What is known of the world, a level a step: at first, and again where it has grown too large, the unaltered
        runs."""
        if self._tree and sum(len(level.states) for level in self._tree) < MOST_NODES:
            return self._tree
        n, steps, choices = self.noise_NTA.shape
        of_N, h = torch.arange(n, device=self.h_NH.device), self.h_NH
        self._tree, places, index = [], self.begin(), of_N
        for t in range(steps):
            if t:
                places = self._go(t, places.states, index.tolist())
                h = self.agent.advance(places.e_BE, h, torch.zeros(n, dtype=torch.bool, device=h.device))
            index = self._choose(h, of_N, t)[2]
            child = {i * choices + a: i for i, a in enumerate(index.tolist())}
            level = Level(list(places.states), places.e_BE, places.reward_B, places.terminal_B, index, child)
            self._tree.append(level)
        return self._tree

    def _go(self, t: int, states: Sequence[Any], actions: Sequence[int]) -> Places:
        """``go``, where nothing follows an episode's end but more of it."""
        on = [i for i, state in enumerate(states) if state is not None]
        reached = self.go(t, [states[i] for i in on], [actions[i] for i in on]) if on else None
        if reached is not None and len(on) == len(states):
            return reached
        like = self.h_NH.new_zeros(len(states))
        width = self._tree[t - 1].e_ME.shape[1] if reached is None else reached.e_BE.shape[1]
        out = Places([None] * len(states), like.new_zeros(len(states), width), like.clone(), torch.ones_like(like))
        if reached is not None:
            for i, state in zip(on, reached.states, strict=True):
                out.states[i] = state
            for whole, part in zip(out[1:], reached[1:], strict=True):
                whole[on] = part
        return out

    def _grow(self, t: int, node_R: Tensor, action_R: Tensor) -> Tensor:
        """The nodes of level ``t`` that these actions lead to from nodes of the level before."""
        before, level, choices = self._tree[t - 1], self._tree[t], self.noise_NTA.shape[2]
        keys, back_R = torch.unique(node_R * choices + action_R, return_inverse=True)
        wanted = keys.tolist()
        missing = [key for key in wanted if key not in before.child]
        if missing:
            parents = [before.states[key // choices] for key in missing]
            before.child |= {key: len(level.states) + i for i, key in enumerate(missing)}
            level.add(self._go(t, parents, [key % choices for key in missing]))
        return torch.tensor([before.child[key] for key in wanted], device=node_R.device)[back_R]

    @torch.no_grad()
    def run(self, intervene: Sequence[Intervention] = (), through: str = "", copies: int = 1) -> Course:
        """The course of all starts, ``copies`` times one below the other, R = copies * N rows; of the world only what
        no run has come to yet is played.

        through: as in hypotheses.grammar ('': whichever way); 'frames': the agent sees what the unaltered run
        shows, and its own actions count although nothing comes of them.
        """
        tree = self.tree()
        of_R = torch.arange(len(self.h_NH), device=self.h_NH.device).repeat(copies)  # the start of every row
        going = torch.zeros(len(of_R), dtype=torch.bool, device=of_R.device)
        node_R = index = of_R
        carried = before = self.h_NH[of_R]
        kept: list[tuple[Tensor, ...]] = []
        for t, level in enumerate(tree):
            if t:
                node_R = self._grow(t, node_R, index)
                before = self.agent.advance(level.e_ME[node_R], carried, going)
            h = apply_interventions(intervene, before, t)
            carried = before if through == "world" else h
            logits, value, index, one_hot = self._choose(h, of_R, t)
            if through in ("memory", "frames"):
                index = level.action_N[of_R]
            if through == "memory":
                one_hot = torch.nn.functional.one_hot(index, logits.shape[-1]).to(logits.dtype)
            kept.append((logits, value, level.reward_M[node_R], level.terminal_M[node_R], h, one_hot))
        logits, value, reward, terminal, h, one_hot = (torch.stack(x, 1) for x in zip(*kept, strict=True))
        return course_of(logits, value, reward[:, 1:], terminal[:, 1:], h, one_hot)

    def measure(
        self, groups: Sequence[Intervention | None], description: str = "", through: str = "", together: int = 1
    ) -> dict[str, np.ndarray]:
        """{quantity: [G, N]}; None is the unaltered run.

        together: groups at once.  One at a time, a change of nothing changes no bit.
        """
        found: dict[str, list[Tensor]] = {}
        nothing = AddSteps(self.h_NH[:0])
        with bar(description, len(groups), "runs") as progress:
            for first in range(0, len(groups), together):
                some = tuple(nothing if g is None else g for g in groups[first : first + together])
                course = self.run((Blocks(some),) if len(some) > 1 else some, through, len(some))
                for q, v in quantities(course, self.measures).items():
                    found.setdefault(q, []).append(v.unflatten(0, (len(some), -1)))
                progress.advance(len(some))
        return {q: torch.cat(v).cpu().double().numpy() for q, v in found.items()}
