"""hybrid: takeru's encoders, a one-layer LSTM, yaofeng's reward.

Other agents never enter its activation; they are only pointed at.
"""

from __future__ import annotations

from agents.zoo.encoders import LSTM
from agents.zoo.takeru import Policy
from agents.zoo.yaofeng import RewardWrapper

__all__ = ["Policy", "Recurrent", "RewardWrapper"]


class Recurrent(LSTM):
    """One layer."""

    def __init__(self, embedding_size: int, size: int) -> None:
        super().__init__(embedding_size, size, layers=1)
