"""Paired runs in the real world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from agents.play import tensors
from core.contracts import Intervention, VecEnv, apply_interventions
from validation.paired.course import Course, course_of
from validation.paired.starts import Starts
from validation.paired.tree import Places, World, joined


@dataclass
class RealWorld(World):
    """The agent in the real world, run on from the starts."""

    env: VecEnv  # a slot a start
    starts: Starts
    few: VecEnv | None = None  # the same world with fewer slots, which branch faster; None: env itself
    _taken: list[np.ndarray] = field(init=False, default_factory=list)

    def begin(self) -> Places:
        none = self.h_NH.new_zeros(len(self.h_NH))
        return Places(list(self.starts.states), none[:, None], none, none)

    def go(self, t: int, states: Sequence[Any], actions: Sequence[int]) -> Places:
        env, device = self.env if self.few is None else self.few, self.h_NH.device
        slots, parts = env.spec.slots, []
        for first in range(0, len(states), slots):
            some = list(states[first : first + slots])
            count = len(some)
            env.restore(some + some[:1] * (slots - count))
            now = env.step(np.array([*actions[first : first + count], *[0] * (slots - count)]))
            over = (now.terminated | now.truncated)[:count]
            seen = {k: torch.from_numpy(v[:count]).to(device) for k, v in now.obs.items()}
            reward, ends = (
                torch.from_numpy(x[:count]).to(self.h_NH) for x in (now.reward, now.terminated | now.truncated)
            )
            after = [None if end else state for state, end in zip(env.snapshot(), over, strict=False)]
            parts.append(Places(after, self.agent.encode(seen), reward, ends))
        return joined(parts)

    def run(self, intervene: Sequence[Intervention] = (), through: str = "", copies: int = 1) -> Course:
        if self.starts.states:
            return super().run(intervene, through, copies)
        if copies != 1:
            raise ValueError("a world without snapshots plays one change at a time")
        return self.course(intervene, through)

    def measure(
        self, groups: Sequence[Intervention | None], description: str = "", through: str = "", together: int = 1
    ) -> dict[str, np.ndarray]:
        return super().measure(groups, description, through, together if self.starts.states else 1)

    @torch.no_grad()
    def course(
        self, intervene: Sequence[Intervention] = (), through: str = "", watch: list[np.ndarray] | None = None
    ) -> Course:
        """``run``, every step of every start played: from snapshots, or by replaying the seed where there are none.

        watch: is given the observations of every step [N, ...], from the first played on.
        """
        starts, device = self.starts, self.h_NH.device
        if through == "memory" and not self._taken:
            self.course()
        n, steps, choices = self.noise_NTA.shape
        offset_N, last = starts.offset_N, int(starts.offset_N.max()) + steps - 1
        now = self.env.restore(starts.states) if starts.states else self.env.reset(starts.seed)
        carried, rows = starts.h_NH, torch.arange(n, device=device)
        logits_NTA, value_NT = carried.new_zeros(n, steps, choices), carried.new_zeros(n, steps)
        reward_NT, ended_NT = carried.new_zeros(n, steps - 1), carried.new_zeros(n, steps - 1)
        h_NTH, action_NT = carried.new_zeros(n, steps, carried.shape[1]), torch.zeros_like(value_NT, dtype=torch.int64)
        taken: list[np.ndarray] = []
        for m in range(last + 1):
            step_N = m - offset_N
            t_N = torch.from_numpy(step_N).to(device)
            on_N = (t_N >= 0) & (t_N < steps)
            at = t_N.clamp(0, steps - 1)
            went_on = self.agent.advance(
                self.agent.encode(tensors(now, device)), carried, torch.from_numpy(now.is_first).to(device)
            )
            before = torch.where((t_N > 0)[:, None], went_on, starts.h_NH)
            h = before
            for t in np.unique(step_N[(step_N >= 0) & (step_N < steps)]):
                h = apply_interventions(intervene, h, int(t), t_N == int(t))
            carried = before if through == "world" else h
            logits, value = self.agent.heads(h)
            logits_NTA[rows[on_N], at[on_N]], value_NT[rows[on_N], at[on_N]] = logits[on_N], value[on_N]
            h_NTH[rows[on_N], at[on_N]] = h[on_N]
            if watch is not None:
                watch.append(next(iter(now.obs.values())))
            chosen = (logits + self.noise_NTA[rows, at]).argmax(-1).cpu().numpy()
            if m < len(starts.actions) and (step_N < 0).any():
                chosen = np.where(step_N < 0, starts.actions[m], chosen)
            if through == "memory":
                chosen = self._taken[m]
            taken.append(chosen)
            action_NT[rows[on_N], at[on_N]] = torch.from_numpy(chosen).to(action_NT)[on_N]
            if m == last:
                break
            now = self.env.step(chosen)
            counts_N = on_N & (t_N < steps - 1)
            over_N = torch.from_numpy(now.terminated | now.truncated).to(ended_NT)
            reward_NT[rows[counts_N], at[counts_N]] = torch.from_numpy(now.reward).to(reward_NT)[counts_N]
            ended_NT[rows[counts_N], at[counts_N]] = over_N[counts_N]
        if not intervene:
            self._taken = taken
        one_hot = torch.nn.functional.one_hot(action_NT, choices).to(logits_NTA.dtype)
        return course_of(logits_NTA, value_NT, reward_NT, ended_NT, h_NTH, one_hot)
