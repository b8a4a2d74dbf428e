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

from agents.play import LiveWorld
from core.contracts import Agent, Intervention, Shown
from core.roll import Acted, Moment, choose, one_hot, roll
from core.trees import Tree
from envs.procgen import STANDING, ProcgenEnv
from validation.paired.course import Course, course_along
from validation.scenes.starts import places_of, sides_of

OUTCOMES = ("stuck", "passed", "died")


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
        side_N = sides_of(states)
        middle_N = np.floor(places_of(states)) + 0.5
        parts, draws = self.agent.spec.parts, iter(self.noise_NTA.unbind(1))
        standing = torch.full((n,), STANDING, device=device)
        last = settle + self.noise_NTA.shape[1] - 1
        waits = iter(range(last + 1))

        def choose_by(acted: Acted, shown: Shown) -> tuple[Tensor, Tensor]:
            if next(waits) < settle:
                return standing, one_hot(standing, parts, acted.logits_BA)
            return choose(acted.logits_BA, parts, next(draws))

        lost_N, on_N = np.zeros(n, bool), np.ones(n, bool)
        took_N, outcome_N = np.zeros(n, bool), np.zeros(n, np.int64)
        world = LiveWorld(self.env, device)
        moments: list[Moment] = []
        for moment in roll(self.agent, world, world.restore(states), steps=last, choose_by=choose_by,
                           intervene=intervene):  # fmt: skip
            t, now = len(moments), world.now
            assert now is not None
            moments.append(moment)
            over_N = now.terminated | now.truncated
            if t <= settle:
                lost_N |= over_N
            else:
                self._judge(outcome_N, on_N, now.reward, now.terminated, (middle_N, side_N, beyond))
                on_N &= ~over_N
            if settle <= t < last:
                took_N |= on_N & (outcome_N == 0) & np.isin(moment.action.cpu().numpy(), self.asked)
        seen = [m.shown.obs for m in [*moments[:1] * (self.frames - 1), *moments[: settle + 1]][-self.frames :]]
        shown = {k: torch.stack([obs[k] for obs in seen], 1).cpu().numpy() for k in seen[0]}
        course = course_along(moments[settle:])
        return Played(course, outcome_N, took_N, lost_N, shown, moments[settle].acted.state)

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
