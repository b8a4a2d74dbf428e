"""takeru: material-only tiles, embeddings of id, kind and attacker, no pooled players, no recurrence.

Other agents never enter its activation; they are only pointed at.  Its reward adds 0.01 for each new kind of event.
"""

from __future__ import annotations

from torch import nn

from agents.zoo.encoders import MaterialTiles, ZooPolicy, check, side_of
from agents.zoo.rewards import UniqueEvents as RewardWrapper
from core.contracts import EnvSpec

__all__ = ["Policy", "Recurrent", "RewardWrapper"]

Recurrent = None


def tiles(side: int, size: int) -> MaterialTiles:
    """Two strided convolutions of the materials: [B, side * side, 3] -> [B, size]."""
    width, after = max(8, size // 8), (side + 3) // 4
    return MaterialTiles(
        width,
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * width * after * after, size),
        nn.ReLU(),
    )


class Policy(ZooPolicy):
    """size: width of the embedding e (which is h, as nothing recurs)."""

    def __init__(self, spec: EnvSpec, size: int = 256) -> None:
        check(spec)
        super().__init__(spec, size, tiles(side_of(spec), size), ids=True, pools=False)
