"""Convolutional encoder and decoder, and MLPs, of the world model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FRAME = (64, 64, 3)


def mlp(inputs: int, hidden: int, outputs: int, layers: int) -> nn.Sequential:
    """``layers`` hidden layers (linear, layer norm, SiLU) and a linear output."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.SiLU()]
        inputs = hidden
    return nn.Sequential(*parts, nn.Linear(inputs, outputs))


class ConvEncoder(nn.Module):
    """Frames float [N, 64, 64, 3] -> features [N, 4 * 4 * 8 * depth]; four strided convolutions."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        before = FRAME[2]
        for c in (depth, 2 * depth, 4 * depth, 8 * depth):
            parts += [nn.Conv2d(before, c, 4, stride=2, padding=1), nn.SiLU()]
            before = c
        self.layers = nn.Sequential(*parts, nn.Flatten())
        self.size = 16 * before

    def forward(self, frames: Tensor) -> Tensor:
        out: Tensor = self.layers(frames.permute(0, 3, 1, 2) - 0.5)
        return out


class ConvDecoder(nn.Module):
    """Features [N, inputs] -> frames float [N, 64, 64, 3], not clamped."""

    def __init__(self, inputs: int, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.first = nn.Linear(inputs, 16 * 8 * depth)
        parts: list[nn.Module] = []
        before = 8 * depth
        for c in (4 * depth, 2 * depth, depth):
            parts += [nn.ConvTranspose2d(before, c, 4, stride=2, padding=1), nn.SiLU()]
            before = c
        self.layers = nn.Sequential(*parts, nn.ConvTranspose2d(before, FRAME[2], 4, stride=2, padding=1))

    def forward(self, features: Tensor) -> Tensor:
        x = self.first(features).unflatten(-1, (8 * self.depth, 4, 4))
        out: Tensor = self.layers(torch.nn.functional.silu(x).contiguous(memory_format=torch.channels_last))
        return out.permute(0, 2, 3, 1) + 0.5


def clamp_straight_through(x: Tensor) -> Tensor:
    """Clamp to [0, 1]; the gradient passes as if it were the identity."""
    return x + (x.clamp(0, 1) - x).detach()
