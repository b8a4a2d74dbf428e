"""Observation encoders.  Frames go in channels-last and come out as flat features."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

EncoderKind = Literal["impala", "strided", "strided_blur", "mlp"]
PICTURE = (64, 64, 3)  # height, width, channels
SMALLEST = 32  # pixels along a side that an encoder of pictures reads


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3 x 3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(torch.relu(x))))


def _bounded(size: int, norm: bool) -> list[nn.Module]:
    """Layer norm before the last ReLU: features of free scale drive the GRU's tanh into saturation
    (three quarters of |h| above 0.97), and learning stalls."""
    return [nn.LayerNorm(size), nn.ReLU()] if norm else [nn.ReLU()]


def _ended(tower: Sequence[nn.Module], size: int, norm: bool, picture: tuple[int, int, int]) -> nn.Sequential:
    """A tower of convolutions and the layer that makes features of all that it gives for a picture."""
    height, width, channels = picture
    flat = nn.Sequential(*tower, nn.Flatten())
    with torch.no_grad():
        found = flat(torch.zeros(1, channels, height, width)).shape[1]
    return nn.Sequential(*flat, nn.Linear(found, size), *_bounded(size, norm))


def impala(
    size: int, norm: bool = True, picture: tuple[int, int, int] = PICTURE, channels: tuple[int, ...] = (16, 32, 32)
) -> nn.Sequential:
    """IMPALA's residual tower (Espeholt et al. 2018, arXiv:1802.01561): a picture -> ``size``."""
    layers: list[nn.Module] = []
    before = picture[2]
    for c in channels:
        layers += [nn.Conv2d(before, c, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(c), Residual(c)]
        before = c
    return _ended([*layers, nn.ReLU()], size, norm, picture)


def strided(size: int, norm: bool = True, picture: tuple[int, int, int] = PICTURE) -> nn.Sequential:
    """A light tower for machines without a GPU: strided convolutions and one residual block at an eighth of the
    resolution, about four times faster than ``impala`` (benchmarks/encoders.py)."""
    tower = [
        nn.Conv2d(picture[2], 32, 8, stride=4, padding=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2, padding=1),
        Residual(64),
        nn.ReLU(),
    ]
    return _ended(tower, size, norm, picture)


class BlurPool(nn.Module):
    """Blur with the binomial kernel [1 2 1] x [1 2 1] / 16, then keep every second row and column: a map that is
    bounded in frequency before it is subsampled changes less when the picture shifts (Zhang 2019, arXiv:1904.11486).

    The same kernel for every channel, written as a dense convolution: in bfloat16 oneDNN takes 13 times as long for
    the backward pass of a depthwise one, and the products with zero change nothing.
    """

    kernel: Tensor  # [C, C, 3, 3], not a parameter and not stored

    def __init__(self, channels: int) -> None:
        super().__init__()
        row = torch.tensor([0.25, 0.5, 0.25])
        kernel = torch.eye(channels)[:, :, None, None] * torch.outer(row, row)
        self.register_buffer("kernel", kernel, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.kernel, stride=2, padding=1)


def strided_blur(size: int, norm: bool = True, picture: tuple[int, int, int] = PICTURE) -> nn.Sequential:
    """A light tower with an anti-aliased stem: after the first convolution both steps, from 32 x 32 to 8 x 8, blur what
    the ReLU left before they subsample it.  IMPALA's 32 channels and two residual blocks at 8 x 8, about a third faster
    than ``strided`` (benchmarks/encoders.py)."""
    tower = [
        nn.Conv2d(picture[2], 16, 4, stride=2, padding=1),
        nn.ReLU(),
        BlurPool(16),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        BlurPool(32),
        Residual(32),
        Residual(32),
        nn.ReLU(),
    ]
    return _ended(tower, size, norm, picture)


class EMACell(nn.Module):
    """Running means: h = a h + (1 - a) W x, with a learnt a in (0, 1) for each unit.

    At first the units' memories, 1 / (1 - a), are spread evenly in logarithm from 2 to 200 steps.
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, size, bias=False)
        forgets = torch.logspace(math.log10(1 / 2), math.log10(1 / 200), size)
        self.keeps = nn.Parameter(torch.logit(1 - forgets))

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        a = torch.sigmoid(self.keeps)
        return a * h + (1 - a) * self.input(x)


class Standardised(nn.Module):
    """Vectors [..., n] in standard deviations from the mean of all that was taken in, those of ``real`` numbers; the
    others, and a number that never changed but for rounding, keep their units."""

    mean: Tensor
    variance: Tensor
    count: Tensor  # vectors taken in
    real: Tensor  # bool [n], not stored

    def __init__(self, real: Sequence[bool]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(real)))
        self.register_buffer("variance", torch.ones(len(real)))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("real", torch.tensor(real), persistent=False)

    @torch.no_grad()
    def take_in(self, x_NM: Tensor) -> None:
        """More vectors [N, n]: mean and variance are of these and of all before (Chan, Golub and LeVeque 1983)."""
        x = x_NM.double()
        count = self.count + len(x)
        share, away = len(x) / count.double(), x.mean(0) - self.mean
        spread = (1 - share) * self.variance + share * x.var(0, correction=0) + share * (1 - share) * away**2
        self.mean.copy_(torch.where(self.real, self.mean + share * away, 0.0))
        self.variance.copy_(torch.where(self.real, spread, 1.0))
        self.count.copy_(count)

    def forward(self, x: Tensor) -> Tensor:
        changes = self.variance > 1e-12 * self.mean**2
        return (x - self.mean) / torch.where(changes, self.variance, 1.0).sqrt()


def mlp(inputs: int, size: int) -> nn.Sequential:
    """For vector observations."""
    return nn.Sequential(nn.Linear(inputs, size), nn.Tanh())


def images(frames: Tensor) -> Tensor:
    """Frames [N, height, width, channels], uint8 or float in [0, 1] -> float NCHW (channels-last in memory).

    Bytes become autocast's type at once where it is on: the first convolution rounds to it anyway (bytes are exact in
    bfloat16, so the quotient is rounded once and the same), and a float32 copy of all frames is saved.
    """
    scaled = frames
    if frames.dtype == torch.uint8:
        device = frames.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
        scaled = frames.to(dtype) / 255
    return scaled.permute(0, 3, 1, 2)


def glorot(module: nn.Module) -> None:
    """Weights uniform in +-sqrt(6 / (inputs + outputs)) and zero biases for every linear and convolutional layer."""
    _initialised(module, nn.init.xavier_uniform_)


def orthogonal(module: nn.Module, gain: float = 2**0.5) -> None:
    """Orthogonal weights and zero biases for every linear and convolutional layer (PPO's custom)."""
    _initialised(module, partial(nn.init.orthogonal_, gain=gain))


def _initialised(module: nn.Module, draw: Callable[[Tensor], Tensor]) -> None:
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            draw(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
