"""A policy module of one's own: start_kit's network, and a reward for staying alive.

``python train.py nmmo -a docs/forager.py --out runs/policies/forager``.  A module needs three names: ``Policy`` and
``Recurrent`` (or ``Recurrent = None``) and ``RewardWrapper``; agents/policies.py says what each must do.
"""

from __future__ import annotations

import numpy as np

from agents.zoo.rewards import own, shaped
from agents.zoo.start_kit import Policy, Recurrent
from core.contracts import Step

__all__ = ["Policy", "Recurrent", "RewardWrapper"]

HUNGRY = 70  # points of food or water (of 100) below which a meal or a drink is rewarded


class RewardWrapper:
    """The task's reward; 0.01 a tick, 0.005 a point of health gained or lost, 0.05 a meal or drink when in need."""

    def __call__(self, before: Step, after: Step) -> np.ndarray:
        health_B = own(after, "health") - own(before, "health")
        ate_B = (after.truth["ate"] > 0) & (own(before, "food") < HUNGRY)
        drank_B = (after.truth["drank"] > 0) & (own(before, "water") < HUNGRY)
        return shaped(before, after, 0.01 + 0.005 * health_B + 0.05 * (ate_B.astype(float) + drank_B))
