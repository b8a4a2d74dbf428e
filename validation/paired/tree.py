"""The agent run on from the same starts with and without a change of its hidden state, in one world.

A paired run costs little: until an altered agent first acts otherwise than the unaltered one did, both see the same
world.  So each world is kept as a tree of what was done: runs that act alike from the same start share its places, and
most random changes part alike.  Only places where no run has been are played.

N starts (each of its own episode, so each an independent unit), R rows, G changes, k horizon, T = k + 1 steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from core import ranks
from core.contracts import Agent, EnvSpec, Intervention, Shown
from core.progress import bar
from core.roll import Noise, choose, decide, index_of, roll
from core.trees import Tree, alike, each, joined, leaves, rows_of
from validation.hypotheses.changes import Blocks, nothing
from validation.paired.course import Course, Measures, course_of, quantities

SNAPSHOT = 50_000  # bytes that a snapshot is taken to hold where it is neither bytes nor tensors (Gymnasium's)
MOST_BYTES = 1 << 30  # of a world kept: 9,600 places of the bundled simulator, some 29,000 of CoinRun


class Places(NamedTuple):
    """Where B steps of a world led to."""

    states: list[Any]  # to go on from; None: the episode is over
    seen: Tree  # what the agent makes of what it sees there, [B, ...]
    reward_B: Tensor  # of the transition that led there
    paid_B2: Tensor  # the chance that there was one at all where the episode [goes on, ends] (1: it is known)
    terminal_B: Tensor  # probability that it ended the episode (real: 0 or 1)
    truncated_B: Tensor  # 1: it ended it at a time limit
    told_BM: Tensor  # the truth columns that events read, where the world tells them


def together(parts: Sequence[Places]) -> Places:
    """The places of all parts, in this order."""
    states, *trees = zip(*parts, strict=True)
    return Places([state for part in states for state in part], *map(joined, trees))


@dataclass
class Level:
    """Every place of a world at one step that some run has come to: M nodes, of which the first N are those of the
    unaltered runs.  A node is a start and what was done since."""

    places: Places
    action: Tensor  # what the unaltered agent does there, [N] or [N, parts]
    child: dict[int, int]  # node * (all actions there are) + action: node of the next level

    def add(self, more: Places) -> None:
        """More nodes."""
        self.places = together([self.places, more])


@dataclass
class Paired:
    """The agent in a world that can be gone on with from any place in it: a tree of what was done.

    Subclasses say where the starts are and where an action leads.
    """

    agent: Agent
    state_N: Tree  # the agent's, at the starts, after it has seen their observations
    noise_NTA: Tensor  # added to the logits before the argmax; zero: greedy
    measures: Measures
    _tree: list[Level] = field(init=False, default_factory=list)

    def begin(self) -> Places:
        """The N starts."""
        raise NotImplementedError

    def go(self, t: int, states: Sequence[Any], actions: Tensor) -> Places:
        """Where these actions, int64 [B] or [B, parts], lead from these places: to step ``t``."""
        raise NotImplementedError

    def course(self, intervene: Sequence[Intervention] = (), through: str = "") -> Course:
        """``run`` with every step played, nothing remembered."""
        raise NotImplementedError

    @property
    def plays_whole_courses(self) -> bool:
        """Whether it cannot be gone on with from any place, so that every run is a ``course``."""
        return False

    @property
    def steps(self) -> int:
        return self.noise_NTA.shape[1]

    def _noise(self, of_R: Tensor) -> list[Noise]:
        return [Noise(action_BA=noise_RA) for noise_RA in self.noise_NTA[of_R].unbind(1)]

    @torch.no_grad()
    def tree(self) -> list[Level]:
        """What is known of the world, a level a step: at first, and again where it has grown too large, the unaltered
        runs."""
        kept = sum(len(level.places.states) for level in self._tree)
        if self._tree and kept < max(self._most_nodes(), 2 * self._unaltered_places):
            return self._tree
        device, parts = self.noise_NTA.device, self.agent.spec.parts
        of_N = torch.arange(len(self.noise_NTA), device=device)
        state, places = self.state_N, self.begin()
        self._tree, first, action = [], torch.zeros_like(of_N, dtype=torch.bool), of_N
        for t, noise in enumerate(self._noise(of_N)):
            if t:
                places = self._go(t, places.states, action)
                state = self.agent.advance(places.seen, state, first)
            logits_BA = decide(self.agent, places.seen, state, torch.full_like(of_N, t)).logits_BA
            action, _ = choose(logits_BA, parts, noise.action_BA)
            child = {key: i for i, key in enumerate(self._key(of_N, action).tolist())}
            self._tree.append(Level(Places(list(places.states), *places[1:]), action, child))
        return self._tree

    @property
    def _unaltered_places(self) -> int:
        """How many places the unaltered runs have."""
        return len(self.noise_NTA) * self.steps

    def _most_nodes(self) -> int:
        """How many of its places fit in ``MOST_BYTES``."""
        places = self._tree[0].places
        seen = sum(x[:1].nbytes for x in leaves(places.seen))
        return MOST_BYTES // max(1, _bytes_of(places.states[0]) + seen)

    def _key(self, node_R: Tensor, action: Tensor) -> Tensor:
        """A number for a node and what is done there."""
        parts = self.agent.spec.parts
        for choices, chosen in zip(parts, action.reshape(len(node_R), -1).unbind(1), strict=True):
            node_R = node_R * choices + chosen
        return node_R

    def _go(self, t: int, states: Sequence[Any], action: Tensor) -> Places:
        """``go``, where nothing follows an episode's end but more of it."""
        on = [i for i, state in enumerate(states) if state is not None]
        reached = self.go(t, [states[i] for i in on], action[on]) if on else None
        if reached is not None and len(on) == len(states):
            return reached
        like = self._tree[t - 1].places if reached is None else reached
        blank = each(lambda x: x.new_zeros(len(states), *x.shape[1:]), like[1:])
        out = Places([None] * len(states), *blank)
        out = out._replace(terminal_B=torch.ones_like(out.terminal_B))
        if reached is None:
            return out
        for i, state in zip(on, reached.states, strict=True):
            out.states[i] = state
        rows = torch.tensor(on, device=out.reward_B.device)
        return Places(out.states, *each(lambda whole, part: whole.index_copy(0, rows, part), out[1:], reached[1:]))

    def as_here(self, found: Sequence[Any]) -> Places:
        """Places that another process may have gone to, whose trees then are plain tuples, as this one's."""
        if ranks.count() == 1:
            return Places(*found)
        states, seen, *rest = found
        like = self._tree[0].places
        if isinstance(like.states[0], tuple):
            states = [state if state is None else alike(state, like.states[0]) for state in states]
        return Places(states, alike(seen, like.seen), *rest)

    def grow(self, t: int, node_R: Tensor, action: Tensor) -> Tensor:
        """The nodes of level ``t`` that these actions lead to from nodes of the level before."""
        before, level = self._tree[t - 1], self._tree[t]
        keys, back_R = torch.unique(self._key(node_R, action), return_inverse=True)
        wanted = keys.tolist()
        missing = [n for n, key in enumerate(wanted) if key not in before.child]
        if missing:
            row_of = torch.empty_like(keys)
            row_of[back_R] = torch.arange(len(back_R), device=keys.device)  # whichever: all rows of a key are alike
            some = row_of[missing]
            parents = [before.places.states[node] for node in node_R[some].tolist()]
            before.child |= {wanted[n]: len(level.places.states) + i for i, n in enumerate(missing)}
            level.add(self._go(t, parents, action[some]))
        return torch.tensor([before.child[key] for key in wanted], device=node_R.device)[back_R]

    @torch.no_grad()
    def run(
        self, intervene: Sequence[Intervention] = (), through: str = "", copies: int = 1,
        noise_RTA: Tensor | None = None,
    ) -> Course:  # fmt: skip
        """The course of all starts, ``copies`` times one below the other, R = copies * N rows; of the world only what
        no run has come to yet is played.

        noise: other action noise than the world's, a row each (a large number forces an action).

        through: as in validation.hypotheses ('': whichever way); 'frames': the agent sees what the unaltered run
        shows, and its own actions count although nothing comes of them.
        """
        if self.plays_whole_courses:
            if copies != 1 or noise_RTA is not None:
                raise ValueError("a world without snapshots plays one change at a time, under its own noise")
            return self.course(intervene, through)
        tree = self.tree()
        of_R = torch.arange(len(self.noise_NTA), device=self.noise_NTA.device).repeat(copies)  # the start of every row
        forced = None
        if through in ("memory", "frames"):
            forced = torch.stack([level.action[of_R] for level in tree], 1)
        nodes = Nodes(self, tree)
        noise = self._noise(of_R) if noise_RTA is None else [Noise(action_BA=x) for x in noise_RTA.unbind(1)]
        moments = roll(
            Remembering(self.agent, tree), nodes, nodes.begin(of_R), state=rows_of(self.state_N, of_R),
            steps=len(tree) - 1, actions=forced, noise=noise, intervene=intervene, forget=through == "world",
        )  # fmt: skip
        kept: list[tuple[Tensor, ...]] = []
        for moment, draw in zip(moments, noise, strict=True):
            said, action_BA = moment.acted, moment.action_BA
            if through == "frames":
                action_BA = choose(said.logits_BA, self.agent.spec.parts, draw.action_BA)[1]
            kept.append((said.logits_BA, said.value_B, *moment.shown[1:4], said.h_BH, action_BA))
        logits, value, reward, terminal, told, h, action_RTA = (torch.stack(x, 1) for x in zip(*kept, strict=True))
        truncated, paid, told = told[:, 1:, 0], told[:, 1:, 1:3], told[..., 3:]
        return course_of(logits, value, reward[:, 1:], terminal[:, 1:], h, action_RTA, told, truncated, paid)

    def measure(
        self, groups: Sequence[Intervention | None], description: str = "", through: str = "", together: int = 1
    ) -> dict[str, np.ndarray]:
        """{quantity: [G, N]}; None is the unaltered run.

        together: groups at once, at most, and no more than can fill the memory of a world once.  One at a time, a
        change of nothing changes no bit.
        """
        together = 1 if self.plays_whole_courses else together
        if together > 1:
            self.tree()
            together = max(1, min(together, self._most_nodes() // self._unaltered_places))
        found: dict[str, list[Tensor]] = {}
        with bar(description, len(groups), "runs") as progress:
            for first in range(0, len(groups), together):
                some = tuple(nothing if g is None else g for g in groups[first : first + together])
                course = self.run((Blocks(some),) if len(some) > 1 else some, through, len(some))
                for q, v in quantities(course, self.measures).items():
                    found.setdefault(q, []).append(v.unflatten(0, (len(some), -1)))
                progress.advance(len(some))
        return {q: torch.cat(v).cpu().double().numpy() for q, v in found.items()}


def _bytes_of(state: Any) -> int:
    """About how much memory a place to go on from takes."""
    if isinstance(state, bytes):
        return len(state)
    try:
        return sum(x.nbytes for x in leaves(state))
    except TypeError:  # no tree of tensors
        return SNAPSHOT


class Nodes:
    """The tree of a world as core.contracts.World: what it shows is where one is, and its state is that.

    The tree is that of one run, which grows as it goes: a world is planted again only between runs.
    """

    def __init__(self, paired: Paired, tree: Sequence[Level]) -> None:
        self.paired, self.levels, self.spec = paired, tree, paired.agent.spec

    def begin(self, of_R: Tensor) -> tuple[Tensor, Shown]:
        """The starts of some rows."""
        return self._show(0, of_R)

    def step(self, state: Tensor, action_BA: Tensor, noise: None = None) -> tuple[Tensor, Shown]:
        """Where actions lead: what no run has come to yet is played."""
        node_R, t = state[:, 0], int(state[0, 1]) + 1
        return self._show(t, self.paired.grow(t, node_R, index_of(action_BA, self.spec.parts)))

    def _show(self, t: int, node_R: Tensor) -> tuple[Tensor, Shown]:
        state, places = torch.stack([node_R, torch.full_like(node_R, t)], 1), self.levels[t].places
        more = torch.cat([places.truncated_B[:, None], places.paid_B2, places.told_BM], 1)
        return state, Shown({"place": state}, places.reward_B[node_R], places.terminal_B[node_R], more[node_R])


class Remembering:
    """The agent as it finds its way in ``Nodes``: what it makes of a place is known there."""

    def __init__(self, agent: Agent, tree: Sequence[Level]) -> None:
        self.levels = tree
        self.spec: EnvSpec = agent.spec
        self.points: Mapping[str, int] = agent.points
        self.initial, self.advance, self.heads = agent.initial, agent.advance, agent.heads
        self.read, self.replaced = agent.read, agent.replaced

    def encode(self, obs: Mapping[str, Tensor]) -> Tree:
        """What has been seen at these places, all of one step."""
        state = obs["place"]
        return rows_of(self.levels[int(state[0, 1])].places.seen, state[:, 0])
