"""Paired runs in the real world."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.play import tensors
from analysis.shared.truths import told_by
from core import ranks
from core.contracts import Intervention, Step, VecEnv
from core.roll import choose, decide, known_rewards, one_hot
from core.trees import where
from validation.paired.course import Course, course_of
from validation.paired.limits import require_whole
from validation.paired.starts import Starts
from validation.paired.tree import Paired, Places, together


def can_be_given(states: Sequence[Any]) -> bool:
    """Whether one process can give another these snapshots: bytes, and not a Gymnasium environment's copies, which are
    Python objects.  Those each process makes for itself, all of them."""
    return all(isinstance(state, bytes) for state in states)


def note_unshared(env: VecEnv, starts: Starts) -> None:
    """Say once, to whoever starts several processes, that none of them is spared a step of this world."""
    if ranks.count() > 1 and not can_be_given(starts.states):
        print(
            f"note: the snapshots of {env.spec.env_id} are Python objects, which processes cannot give each other: "
            "each plays all of the real world itself, and only what is simulated gets faster",
            file=sys.stderr,
        )


@dataclass
class RealWorld(Paired):
    """The agent in the real world, run on from the starts."""

    env: VecEnv  # a slot a start
    starts: Starts
    few: VecEnv | None = None  # the same world with fewer slots, which branch faster; None: env itself
    whole: bool = False  # what a time limit cuts raises CutShort
    _taken: list[np.ndarray] = field(init=False, default_factory=list)

    @torch.no_grad()
    def begin(self) -> Places:
        none = self.noise_NTA.new_zeros(len(self.starts))
        last = {k: torch.from_numpy(v[:, -1]).to(none.device) for k, v in self.starts.window.items()}
        told = none[:, None][:, :0]
        if self.measures.truths:
            told = self.told(self.env.restore(self.starts.states))
        return Places(list(self.starts.states), self.agent.encode(last), none, known_rewards(none), none, none, told)

    def told(self, step: Step) -> Tensor:
        """The truth columns that are asked for, [B, M]."""
        known, names, like = told_by(step.truth), self.measures.truths, self.noise_NTA
        out = np.stack([known[name] for name in names], 1) if names else np.zeros((len(step.reward), 0))
        return torch.from_numpy(out).to(like)

    def observed(self, now: Step, states: Sequence[bytes], env: VecEnv) -> Mapping[str, np.ndarray]:
        """What the agent is shown of a step, after which ``env`` is in these states."""
        return now.obs

    def go(self, t: int, states: Sequence[Any], actions: Tensor) -> Places:
        env, like = self.env if self.few is None else self.few, self.noise_NTA
        slots, done = env.spec.slots, actions.cpu().numpy()

        def branch(first: int) -> Places:
            some, acts = list(states[first : first + slots]), done[first : first + slots]
            count = len(some)
            env.restore(some + some[:1] * (slots - count))
            now = env.step(np.concatenate([acts, np.zeros_like(acts, shape=(slots - count, *acts.shape[1:]))]))
            over = (now.terminated | now.truncated)[:count]
            timed_out = (now.truncated & ~now.terminated)[:count]
            reward, ends, truncated = (torch.from_numpy(x).to(like) for x in (now.reward[:count], over, timed_out))
            left = env.snapshot()
            after = [None if end else state for state, end in zip(left, over, strict=False)]
            seen = {k: torch.from_numpy(v[:count]).to(like.device) for k, v in self.observed(now, left, env).items()}
            paid = known_rewards(reward)
            return Places(after, self.agent.encode(seen), reward, paid, ends, truncated, self.told(now)[:count])

        blocks = range(0, len(states), slots)
        if not can_be_given(states):
            return together([branch(first) for first in blocks])
        return together([self.as_here(found) for found in ranks.each(blocks, branch)])

    @property
    def plays_whole_courses(self) -> bool:
        return not self.starts.states

    def run(
        self, intervene: Sequence[Intervention] = (), through: str = "", copies: int = 1,
        noise_RTA: Tensor | None = None,
    ) -> Course:  # fmt: skip
        """As in Paired."""
        course = super().run(intervene, through, copies, noise_RTA)
        if self.whole:
            require_whole(course, self.starts.age_N)
        return course

    @torch.no_grad()
    def course(
        self, intervene: Sequence[Intervention] = (), through: str = "", watch: list[np.ndarray] | None = None
    ) -> Course:
        """``run``, every step of every start played: from snapshots, or by replaying the seed where there are none.

        watch: is given what is shown (EnvSpec.main_field) at every step [N, ...], from the first played on.
        """
        starts, device, parts = self.starts, self.noise_NTA.device, self.agent.spec.parts
        if through == "memory" and not self._taken:
            self.course()
        n, steps, choices = self.noise_NTA.shape
        offset_N, last = starts.offset_N, int(starts.offset_N.max()) + steps - 1
        now = self.env.restore(starts.states) if starts.states else self.env.reset(starts.seed)
        carried, rows, like = starts.state, torch.arange(n, device=device), self.noise_NTA
        logits_NTA, value_NT = like.new_zeros(n, steps, choices), like.new_zeros(n, steps)
        reward_NT, ended_NT, truncated_NT = (like.new_zeros(n, steps - 1) for _ in range(3))
        h_NTH, action_NTA = like.new_zeros(n, steps, starts.h_NH.shape[1]), torch.zeros_like(logits_NTA)
        told_NTM = like.new_zeros(n, steps, len(self.measures.truths))
        taken: list[np.ndarray] = []
        for m in range(last + 1):
            t_N = m - torch.from_numpy(offset_N).to(device)
            on_N = (t_N >= 0) & (t_N < steps)
            at = t_N.clamp(0, steps - 1)
            seen = self.agent.encode(tensors(now, device))
            went_on = self.agent.advance(seen, carried, torch.from_numpy(now.is_first).to(device))
            before = where(t_N > 0, went_on, starts.state)
            acted = decide(self.agent, seen, before, t_N, intervene, on_N)
            carried = before if through == "world" else acted.state
            logits_NTA[rows[on_N], at[on_N]] = acted.logits_BA[on_N]
            value_NT[rows[on_N], at[on_N]] = acted.value_B[on_N]
            h_NTH[rows[on_N], at[on_N]] = acted.h_BH[on_N]
            told_NTM[rows[on_N], at[on_N]] = self.told(now)[on_N]
            if watch is not None:
                watch.append(now.obs[self.env.spec.main_field])
            chosen = choose(acted.logits_BA, parts, self.noise_NTA[rows, at])[0].cpu().numpy()
            waits_N = (t_N < 0).cpu().numpy()
            if m < len(starts.actions) and waits_N.any():
                chosen[waits_N] = starts.actions[m][waits_N]
            if through == "memory":
                chosen = self._taken[m]
            taken.append(chosen)
            action_NTA[rows[on_N], at[on_N]] = one_hot(torch.from_numpy(chosen).to(device), parts, like)[on_N]
            if m == last:
                break
            now = self.env.step(chosen)
            counts_N = on_N & (t_N < steps - 1)
            over_N = torch.from_numpy(now.terminated | now.truncated).to(ended_NT)
            reward_NT[rows[counts_N], at[counts_N]] = torch.from_numpy(now.reward).to(reward_NT)[counts_N]
            ended_NT[rows[counts_N], at[counts_N]] = over_N[counts_N]
            timed_out_N = torch.from_numpy(now.truncated & ~now.terminated).to(ended_NT)
            truncated_NT[rows[counts_N], at[counts_N]] = timed_out_N[counts_N]
        if not intervene:
            self._taken = taken
        course = course_of(logits_NTA, value_NT, reward_NT, ended_NT, h_NTH, action_NTA, told_NTM, truncated_NT)
        if self.whole:
            require_whole(course, starts.age_N)
        return course
