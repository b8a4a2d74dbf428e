"""The agent in a scene: what it thinks at first sight, or after it stood before it, and what then becomes of it.

N rows (stances on bases), T = horizon + 1 steps, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.play import tensors
from core.contracts import Agent, Intervention
from core.roll import act, choose
from core.trees import Tree
from envs.procgen import ACTION_NAMES, ProcgenEnv
from validation.paired.course import Course, course_of
from validation.scenes.starts import places_of, sides_of

OUTCOMES = ("stuck", "passed", "died")
STANDING = ACTION_NAMES.index("none")


class Played(NamedTuple):
    """What followed N starts."""

    course: Course  # from the first step at which the agent chooses
    outcome_N: np.ndarray  # int64, of OUTCOMES: what came first
    took_N: np.ndarray  # bool: it chose one of the asked actions before it passed or died
    lost_N: np.ndarray  # bool: its level ended while it was made to stand
    window: Mapping[str, np.ndarray]  # [N, I, ...], the last frames up to the choice, the first one repeated before it
    state: Tree  # the agent's after the frame at which it chooses


@dataclass
class SceneWorld:
    """The agent in the real game; ``env`` has a slot a row.  ``noise_NTA`` is added to the logits before the argmax;
    zero: greedy."""

    agent: Agent
    env: ProcgenEnv
    noise_NTA: Tensor
    asked: Sequence[int]  # ids of the actions that the scene asks about
    frames: int = 1  # how many a simulator looks back

    @torch.no_grad()
    def play(
        self, states: Sequence[bytes], settle: int, beyond: float | None, intervene: Sequence[Intervention] = ()
    ) -> Played:
        """settle: steps for which the agent is made to stand first; beyond: cells from its first one's middle to that
        of the last one of the scene (None: it passes only by a reward).  The agent's memory begins with the scene."""
        device, n = self.noise_NTA.device, len(states)
        now = self.env.restore(states)
        side_N = sides_of(states)
        middle_N = np.floor(places_of(states)) + 0.5
        state: Tree = self.agent.initial(n)
        none = torch.zeros(n, dtype=torch.bool, device=device)
        lost_N, on_N = np.zeros(n, bool), np.ones(n, bool)
        took_N, outcome_N = np.zeros(n, bool), np.zeros(n, np.int64)
        window: list[Mapping[str, np.ndarray]] = []
        kept: list[tuple[Tensor, ...]] = []
        after: Tree = state
        for t in range(settle + self.noise_NTA.shape[1]):
            if t <= settle:
                window = [*(window or [now.obs] * (self.frames - 1)), now.obs][-self.frames :]
            acted = act(
                self.agent, tensors(now, device), state, none, torch.full_like(none, t, dtype=torch.int64), intervene
            )
            state = acted.state
            if t < settle:
                now = self.env.step(np.full(n, STANDING))
                lost_N |= now.terminated | now.truncated
                continue
            after = state if t == settle else after
            index, hot = choose(acted.logits_BA, self.agent.spec.parts, self.noise_NTA[:, t - settle])
            taken = index.cpu().numpy()
            last = t == settle + self.noise_NTA.shape[1] - 1  # its transition is not of the course
            took_N |= on_N & (outcome_N == 0) & np.isin(taken, self.asked) & (not last)
            now = self.env.step(taken)
            over = now.terminated | now.truncated
            reward = np.where(on_N, now.reward, 0)
            ends = (over & on_N).astype(np.float32)
            if not last:
                self._judge(outcome_N, on_N, now.reward, now.terminated, (middle_N, side_N, beyond))
            on_N = on_N & ~over
            kept.append((acted.logits_BA, acted.value_B, torch.from_numpy(reward).to(device),
                         torch.from_numpy(ends).to(device), acted.h_BH, hot))  # fmt: skip
        logits, value, reward_NT, ends_NT, h, one_hot = (torch.stack(x, 1) for x in zip(*kept, strict=True))
        course = course_of(logits, value, reward_NT[:, :-1], ends_NT[:, :-1], h, one_hot)
        shown = {k: np.stack([obs[k] for obs in window], 1) for k in window[0]}
        return Played(course, outcome_N, took_N, lost_N, shown, after)

    def _judge(
        self, outcome_N: np.ndarray, on_N: np.ndarray, reward_N: np.ndarray, ended_N: np.ndarray,
        scene: tuple[np.ndarray, np.ndarray, float | None],
    ) -> None:  # fmt: skip
        """What has come by now, into ``outcome_N``, where nothing had."""
        middle_N, side_N, beyond = scene
        passed_N = reward_N > 0
        if beyond is not None:
            passed_N = passed_N | (~ended_N & ((places_of(self.env.snapshot()) - middle_N) * side_N > beyond + 0.5))
        open_N = on_N & (outcome_N == 0)
        outcome_N[open_N & passed_N] = OUTCOMES.index("passed")
        outcome_N[open_N & ended_N & ~passed_N] = OUTCOMES.index("died")
