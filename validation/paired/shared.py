"""Paired runs in a real world of many agents, which has no snapshots: every run plays the seed again.

One agent of every world is altered, or all of them, from a tick of the world's own on; all others, before that tick and
after it, are the same policy with the same action noise.  Lives of a world depend on each other, so that the world is
the unit.

N starts (agents that are altered), W worlds, B slots, T = k + 1 steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from agents.play import Chooser, Exploration, Moment, play
from analysis.shared.truths import told_by
from core.contracts import Agent, Intervention, UserError, VecEnv
from core.roll import apply_interventions, one_hot
from core.trees import joined, rows_of
from envs.registry import agents_a_world
from validation.hypotheses.changes import nothing
from validation.paired.course import Course, Measures, course_of
from validation.paired.limits import last_in_time, require_whole
from validation.paired.starts import Starts
from validation.paired.tree import Paired


@dataclass(frozen=True)
class FromStarts:
    """Interventions on the N rows ``slot_N`` of B slots, whose step 0 is the tick ``offset_N`` of their life."""

    inner: tuple[Intervention, ...]
    slot_N: Tensor
    offset_N: Tensor

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        t_N = t_B[self.slot_N] - self.offset_N
        h_NH = apply_interventions(self.inner, h_BH[self.slot_N], t_N, mask_B[self.slot_N] & (t_N >= 0))
        return h_BH.index_copy(0, self.slot_N, h_NH)


def replayed(actions: Sequence[np.ndarray]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Chooses what was done before, whatever the logits."""
    given = iter(actions)
    return lambda logits_BA, is_first_B: next(given)


@dataclass
class SharedWorld(Paired):
    """Some agents of worlds of many, run on from a tick of their worlds; the action noise is that of the seed."""

    env: VecEnv
    starts: Starts
    slot_N: np.ndarray
    world_N: np.ndarray  # the unit of every start
    greedy: bool = False
    whole: bool = False  # a ``run`` that a time limit cuts raises CutShort
    _taken: list[np.ndarray] = field(init=False, default_factory=list)
    _unaltered: Course | None = field(init=False, default=None)

    @property
    def plays_whole_courses(self) -> bool:
        return True

    def run(
        self, intervene: Sequence[Intervention] = (), through: str = "", copies: int = 1,
        noise_RTA: Tensor | None = None,
    ) -> Course:  # fmt: skip
        """As in Paired; the unaltered run is played once."""
        if through or noise_RTA is not None or any(change is not nothing for change in intervene):
            course = super().run(intervene, through, copies, noise_RTA)
        else:
            course = self._unaltered = self.course() if self._unaltered is None else self._unaltered
        if self.whole:
            require_whole(course, self.starts.age_N)
        return course

    @torch.no_grad()
    def course(self, intervene: Sequence[Intervention] = (), through: str = "") -> Course:
        """``run``, every tick of every world played again."""
        if through == "memory" and not self._taken:
            self.course()
        device, parts, like = self.noise_NTA.device, self.agent.spec.parts, self.starts.h_NH
        slot_N, offset_N = torch.from_numpy(self.slot_N).to(device), torch.from_numpy(self.starts.offset_N).to(device)
        n, steps = len(self.starts), self.steps
        last = int(self.starts.offset_N.max()) + steps - 1
        choose = replayed(self._taken) if through == "memory" else noise_of(self.agent, self.env, self.starts.seed,
                                                                            self.greedy)  # fmt: skip
        moved = (FromStarts(tuple(intervene), slot_N, offset_N),) if intervene else ()
        logits, value = like.new_zeros(n, steps, self.agent.spec.n_actions), like.new_zeros(n, steps)
        reward, ended, truncated = (like.new_zeros(n, steps - 1) for _ in range(3))
        h, action = like.new_zeros(n, steps, like.shape[1]), torch.zeros_like(logits)
        names = self.measures.truths
        told = like.new_zeros(n, steps, len(names))
        taken: list[np.ndarray] = []
        moments = play(self.agent, self.env, choose, seed=self.starts.seed, device=device, intervene=moved,
                       forget=through == "world")  # fmt: skip
        for m, moment in enumerate(islice(moments, last + 1)):
            taken.append(moment.action_B)
            t_N = m - self.starts.offset_N
            on = np.flatnonzero((t_N >= 0) & (t_N < steps))
            at, slots = t_N[on], self.slot_N[on]
            logits[on, at] = torch.from_numpy(moment.logits_BA[slots]).to(like)
            value[on, at] = torch.from_numpy(moment.value_B[slots]).to(like)
            h[on, at] = torch.from_numpy(moment.h_BH[slots]).to(like)
            action[on, at] = one_hot(torch.from_numpy(moment.action_B[slots]).to(device), parts, like)
            if names:
                known = told_by(moment.truth)
                told[on, at] = torch.from_numpy(np.stack([known[name][slots] for name in names], 1)).to(like)
            on = on[t_N[on] < steps - 1]
            at, slots, after = t_N[on], self.slot_N[on], moment.next
            reward[on, at] = torch.from_numpy(after.reward[slots]).to(like)
            ended[on, at] = torch.from_numpy(after.terminated[slots] | after.truncated[slots]).to(like)
            truncated[on, at] = torch.from_numpy(after.truncated[slots] & ~after.terminated[slots]).to(like)
        if not intervene:
            self._taken = taken
        return course_of(logits, value, reward, ended, h, action, told, truncated)


def noise_of(agent: Agent, env: VecEnv, seed: int, greedy: bool) -> Chooser:
    """The same action noise for every run of a seed."""
    return Chooser(Exploration(greedy=greedy), env.spec.slots, np.random.default_rng(seed), agent.spec.parts)


@torch.no_grad()
def shared_world(
    agent: Agent, env: VecEnv, measures: Measures, *, horizon: int, latest: int, seed: int, who: str, greedy: bool,
    device: torch.device, limit: int = 0, whole: bool = False,
) -> SharedWorld:  # fmt: skip
    """The worlds of ``env`` at a tick of each, drawn uniformly from [1, latest], with an agent drawn from those that
    live there (``who`` all: with all of them).  A world that is over by then gives no start; UserError where hardly any
    goes on so long.  limit: of a time limit that is known, the steps after which it cuts (limits.py); 0: none."""
    if latest < 1:
        raise UserError(f"--latest_start {latest}: at least 1")
    latest = last_in_time(latest, limit, horizon)
    agents = agents_a_world(env.spec)
    rng = np.random.default_rng([seed, latest])
    tick_W = rng.integers(1, latest + 1, env.spec.slots // agents)
    found: list[tuple[int, int, Moment]] = []  # slot, tick
    over_W = np.zeros(len(tick_W), bool)
    moments = play(agent, env, noise_of(agent, env, seed, greedy), seed=seed, device=device)
    for m, moment in enumerate(islice(moments, latest + 1)):
        for w in np.flatnonzero((tick_W == m) & ~over_W):
            there = w * agents + np.flatnonzero(moment.alive_B[w * agents : (w + 1) * agents])
            found += [(int(b), m, moment) for b in (there if who == "all" else rng.choice(there, 1))]
        over_W |= moment.next.is_first.reshape(-1, agents).any(1)
    slots = np.array([b for b, _, _ in found], np.int64)
    if len(np.unique(slots // agents)) < 2:
        raise UserError(f"hardly a world goes on to its drawn tick; lower --latest_start ({latest})")
    order = np.argsort(slots, kind="stable")
    found, slots = [found[i] for i in order], slots[order]
    starts = Starts(
        window={}, before=None,
        state=joined([rows_of(moment.state, slice(b, b + 1)) for b, _, moment in found]),
        h_NH=torch.from_numpy(np.stack([moment.h_BH[b] for b, _, moment in found])).to(device),
        age_N=np.array([m for _, m, _ in found]), states=(), offset_N=np.array([m for _, m, _ in found]),
        actions=np.zeros((0, len(found))), seed=seed,
    )  # fmt: skip
    noise = starts.h_NH.new_zeros(len(found), horizon + 1, 1)  # of which only the steps are asked: the seed's counts
    return SharedWorld(agent, starts.state, noise, measures, env, starts, slots, slots // agents, greedy,
                       whole)  # fmt: skip
