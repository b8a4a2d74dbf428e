"""Reward wrappers of the zoo: the task's reward plus what shapes it, pure functions of two neighbouring steps.

Nothing is added where there is no transition within one life: where ``after`` starts an episode, and where the agent is
dead before or after.
"""

from __future__ import annotations

import numpy as np

from agents.zoo.encoders import DEFENSES, ENTITY, EXPERIENCES, ITEM
from core.contracts import Step


def same_life(before: Step, after: Step) -> np.ndarray:
    """bool [B]: both steps are of the same agent, alive."""
    alive_B = ~after.is_first
    for step in (before, after):
        alive_B = alive_B if step.alive is None else alive_B & step.alive
    return alive_B


def shaped(before: Step, after: Step, bonus_B: np.ndarray) -> np.ndarray:
    """The task's reward with the bonus where there is one life on both sides, float32 [B]."""
    return (after.reward + np.where(same_life(before, after), bonus_B, 0)).astype(np.float32)


def own(step: Step, column: str) -> np.ndarray:
    """A column of one's own Entity row (row 0), float64 [B]."""
    return np.asarray(step.obs["Entity"][:, 0, ENTITY[column]], np.float64)


class HealAndEvents:
    """start_kit: 0.03 where health rose, 0.01 for each new kind of event, at most 3 a step."""

    def __call__(self, before: Step, after: Step) -> np.ndarray:
        healed_B = own(after, "health") > own(before, "health")
        return shaped(before, after, 0.03 * healed_B + 0.01 * np.minimum(after.truth["unique_events"], 3))


class UniqueEvents:
    """takeru: 0.01 for each new kind of event."""

    def __call__(self, before: Step, after: Step) -> np.ndarray:
        return shaped(before, after, 0.01 * after.truth["unique_events"])


class Growth:
    """yaofeng and hybrid: 0.1 x (0.03 health + 0.002 experience + 0.04 defence + 0.001 gold), changes in points.

    Experience is the sum over the eight skills; defence the sum over equipped items and the three styles (0 where the
    world shows no inventory).
    """

    WEIGHTS = np.array([0.003, 0.0002, 0.004, 0.0001])  # of health, experience, defence, gold

    def __call__(self, before: Step, after: Step) -> np.ndarray:
        return shaped(before, after, (self._points(after) - self._points(before)) @ self.WEIGHTS)

    def _points(self, step: Step) -> np.ndarray:
        """Health, experience, defence, gold: float64 [B, 4]."""
        experience_B = step.obs["Entity"][:, 0, EXPERIENCES].astype(np.float64).sum(1)
        defence_B = np.zeros(len(experience_B))
        if "Inventory" in step.obs:
            items = step.obs["Inventory"].astype(np.float64)
            defence_B = (items[..., DEFENSES].sum(2) * (items[..., ITEM["equipped"]] > 0)).sum(1)
        return np.stack([own(step, "health"), experience_B, defence_B, own(step, "gold")], 1)
