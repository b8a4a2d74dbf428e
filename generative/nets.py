"""Convolutional encoder and decoder, and MLPs, of the world model."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def halvings(shape: Sequence[int]) -> int:
    """How many strided convolutions leave 4 to 7 pixels of an image's shorter side (none, of one below 8)."""
    return max(0, (min(shape[:2]) // 4).bit_length() - 1)


def channels_of(depth: int, count: int) -> list[int]:
    """Channels of ``count`` convolutions (at least one): twice as many each time, up to 8 * depth."""
    return [depth * min(2**i, 8) for i in range(max(1, count))]


class ConvEncoder(nn.Module):
    """Images float [N, height, width, channels] -> features [N, size]; as many strided convolutions as the image is
    large (four for 64 x 64 pixels, to 4 * 4 * 8 * depth features), for one below 8 pixels one that keeps its size."""

    def __init__(self, depth: int, shape: Sequence[int] = FRAME) -> None:
        super().__init__()
        height, width, before = shape
        count = halvings(shape)
        parts: list[nn.Module] = []
        for c in channels_of(depth, count):
            kernel, stride = (4, 2) if count else (3, 1)
            parts += [nn.Conv2d(before, c, kernel, stride=stride, padding=1), nn.SiLU()]
            before = c
        self.layers = nn.Sequential(*parts, nn.Flatten())
        self.size = (height >> count) * (width >> count) * before

    def forward(self, frames: Tensor) -> Tensor:
        out: Tensor = self.layers(frames.permute(0, 3, 1, 2) - 0.5)
        return out


class ConvDecoder(nn.Module):
    """Features [N, inputs] -> images float [N, height, width, channels], not clamped; ``ConvEncoder`` backwards."""

    def __init__(self, inputs: int, depth: int, shape: Sequence[int] = FRAME) -> None:
        super().__init__()
        height, width, colours = shape
        count = halvings(shape)
        before, *later = channels_of(depth, count)[::-1]
        self.map = (before, height >> count, width >> count)
        self.first = nn.Linear(inputs, math.prod(self.map))
        parts: list[nn.Module] = []
        for i, c in enumerate([*later, colours], 1):
            if count:  # twice the size, and one more where the halving rounded down
                odd = (height >> (count - i) & 1, width >> (count - i) & 1)
                parts += [nn.ConvTranspose2d(before, c, 4, stride=2, padding=1, output_padding=odd), nn.SiLU()]
            else:
                parts += [nn.Conv2d(before, c, 3, padding=1), nn.SiLU()]
            before = c
        self.layers = nn.Sequential(*parts[:-1])

    def forward(self, features: Tensor) -> Tensor:
        x = self.first(features).unflatten(-1, self.map)
        out: Tensor = self.layers(torch.nn.functional.silu(x).contiguous(memory_format=torch.channels_last))
        return out.permute(0, 2, 3, 1) + 0.5


GRID = 8  # side of the map that a world on a grid lives on
CELLS = GRID * GRID
PATCH = 4


def to_map(flat: Tensor) -> Tensor:
    """Flattened maps [..., 64 * C] (cell by cell) -> [N, C, 8, 8], channels last in memory."""
    return flat.reshape(-1, GRID, GRID, flat.shape[-1] // CELLS).permute(0, 3, 1, 2)


def from_map(x: Tensor) -> Tensor:
    """Maps [N, C, 8, 8] -> [N, 64 * C]."""
    return x.permute(0, 2, 3, 1).flatten(1)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of every cell of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


class ResidualCell(nn.Module):
    """x + conv1(silu(conv3(silu(norm(x)))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            ChannelNorm(channels), nn.SiLU(), conv(channels, channels), nn.SiLU(), nn.Conv2d(channels, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


class MapEncoder(nn.Module):
    """Frames float [N, 64, 64, 3] -> features [N, 64 * 4 * depth], a flattened 8 x 8 map.

    Patches of 4 x 4 pixels become channels first: convolutions of few channels at 64 x 64 are where a CPU's
    matrix units stand idle.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.PixelUnshuffle(PATCH),
            conv(FRAME[2] * PATCH**2, 2 * depth),
            nn.SiLU(),
            nn.PixelUnshuffle(2),
            nn.Conv2d(8 * depth, 4 * depth, 1),
            ResidualCell(4 * depth),
            ChannelNorm(4 * depth),
        )
        self.size = CELLS * 4 * depth

    def forward(self, frames: Tensor) -> Tensor:
        return from_map(self.layers(frames.permute(0, 3, 1, 2) - 0.5))


class MapDecoder(nn.Module):
    """Flattened maps [N, inputs] -> frames float [N, 64, 64, channels], not clamped."""

    def __init__(self, inputs: int, depth: int, channels: int = FRAME[2]) -> None:
        super().__init__()
        width = 4 * depth
        self.first = nn.Sequential(conv(inputs // CELLS, width), ChannelNorm(width), ResidualCell(width))
        self.layers = nn.Sequential(
            nn.SiLU(),
            nn.Conv2d(4 * depth, 8 * depth, 1),
            nn.PixelShuffle(2),
            ResidualCell(2 * depth),
            nn.SiLU(),
            conv(2 * depth, channels * PATCH**2),
            nn.PixelShuffle(PATCH),
        )

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.layers(self.first(to_map(features)))
        return out.permute(0, 2, 3, 1) + 0.5


class Flat(nn.Module):
    """A network of maps as a function of flattened ones [..., 64 * C]."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, flat: Tensor) -> Tensor:
        return from_map(self.layers(to_map(flat))).unflatten(0, flat.shape[:-1])


def map_head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Flattened map [..., inputs] -> [..., outputs]; one convolution, then dense over 16 channels a cell."""
    few = 16
    read = Flat(conv(inputs // CELLS, hidden), nn.SiLU(), nn.Conv2d(hidden, few, 1), nn.SiLU())
    return nn.Sequential(read, *mlp(CELLS * few, hidden, outputs, 1))


def clamp_straight_through(x: Tensor) -> Tensor:
    """Clamp to [0, 1]; the gradient passes as if it were the identity."""
    return x + (x.clamp(0, 1) - x).detach()
