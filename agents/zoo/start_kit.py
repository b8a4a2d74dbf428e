"""start_kit (the competition's baseline): all three tile channels embedded, players as attributes and pooled, a
one-layer LSTM; its reward adds 0.03 for healing and 0.01 for each new kind of event (at most 3 a step)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agents.zoo.encoders import LSTM, MATERIALS, ZooPolicy, check, side_of
from agents.zoo.rewards import HealAndEvents as RewardWrapper
from core.contracts import EnvSpec

__all__ = ["Policy", "Recurrent", "RewardWrapper", "Tiles"]


class Tiles(nn.Module):
    """Row and column (relative to one's own) and material of the tiles in sight [B, R, 3] -> [B, size]."""

    def __init__(self, side: int, size: int) -> None:
        super().__init__()
        width, thin = max(8, size // 8), max(4, size // 32)
        self.side = side
        self.embed = nn.Embedding(2 * side + MATERIALS, width)
        self.convolve = nn.Sequential(
            nn.Conv2d(3 * width, width, 3),
            nn.ReLU(),
            nn.Conv2d(width, thin, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(thin * (side - 4) ** 2, size),
            nn.ReLU(),
        )

    def forward(self, tile_BR3: Tensor) -> Tensor:
        side, tile = self.side, tile_BR3.long()
        centre = tile[:, [tile.shape[1] // 2], :2]
        place = (tile[..., :2] - centre + side // 2).clamp(0, side - 1)
        material = tile[..., 2:].clamp(0, MATERIALS - 1)
        starts = torch.tensor([0, side, 2 * side], device=tile.device)
        embedded = self.embed(torch.cat([place, material], 2) + starts).flatten(2)
        out: Tensor = self.convolve(embedded.unflatten(1, (side, side)).permute(0, 3, 1, 2))
        return out


class Policy(ZooPolicy):
    """size: width of the embedding e."""

    def __init__(self, spec: EnvSpec, size: int = 256) -> None:
        check(spec)
        super().__init__(spec, size, Tiles(side_of(spec), size), ids=False, pools=True)


class Recurrent(LSTM):
    """One layer."""

    def __init__(self, embedding_size: int, size: int) -> None:
        super().__init__(embedding_size, size, layers=1)
