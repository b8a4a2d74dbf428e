"""yaofeng: a residual tile encoder with layer norm, players as attributes and pooled, a two-layer LSTM; its reward adds
0.1 x (0.03 health + 0.002 experience + 0.04 defence + 0.001 gold), each as what it changed by."""

from __future__ import annotations

from torch import nn

from agents.networks import Residual
from agents.zoo.encoders import LSTM, MaterialTiles, ZooPolicy, check, side_of
from agents.zoo.rewards import Growth as RewardWrapper
from core.contracts import EnvSpec

__all__ = ["Policy", "Recurrent", "RewardWrapper"]


def tiles(side: int, size: int) -> MaterialTiles:
    """Two strided stages of the materials with a residual block each: [B, side * side, 3] -> [B, size]."""
    width, after = max(8, size // 8), (side + 3) // 4
    flat = 2 * width * after * after
    return MaterialTiles(
        width,
        nn.Conv2d(width, width, 3, 2, 1),
        Residual(width),
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        Residual(2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(flat),
        nn.Linear(flat, size),
        nn.LayerNorm(size),
        nn.ReLU(),
    )


class Policy(ZooPolicy):
    """size: width of the embedding e."""

    def __init__(self, spec: EnvSpec, size: int = 256) -> None:
        check(spec)
        super().__init__(spec, size, tiles(side_of(spec), size), ids=False, pools=True)


class Recurrent(LSTM):
    """Two layers."""

    def __init__(self, embedding_size: int, size: int) -> None:
        super().__init__(embedding_size, size, layers=2)
