"""The gradient of thin convolutions: the same as torch's, and only where it may stand in for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from analysis import convolutions
from analysis.convolutions import thin_convolutions


def gradient(y: Tensor, x: Tensor) -> Tensor:
    g = torch.Generator().manual_seed(1)
    return torch.autograd.grad(y, x, torch.randn(y.shape, dtype=y.dtype, generator=g))[0]


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "padding", "size"),
    [
        (3, 8, 4, 2, (64, 64)),  # the strided agent's
        (3, 3, 1, 1, (9, 7)),  # IMPALA's
        (2, 5, 3, 0, (17, 20)),  # the last column is read by nobody
        (3, 3, 2, 1, (10, 11)),
        (4, 1, 2, 0, (7, 8)),
        (1, (4, 2), 2, (1, 0), (10, 9)),
    ],
)
def test_gradient_and_value_are_torch_s(
    channels: int, kernel: int | tuple[int, int], stride: int, padding: int | tuple[int, int], size: tuple[int, int]
) -> None:
    g = torch.Generator().manual_seed(0)
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    x = torch.randn(2, channels, *size, generator=g, dtype=torch.float64).requires_grad_()
    w, b = torch.randn(5, channels, height, width, generator=g, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    plain = F.conv2d(x, w, b, stride, padding)
    with thin_convolutions():
        ours = F.conv2d(x, w, b, stride=stride, padding=padding)
    assert torch.equal(plain, ours) and "Thin" in type(ours.grad_fn).__name__
    torch.testing.assert_close(gradient(ours, x), gradient(plain, x), rtol=1e-12, atol=1e-12)


def test_other_convolutions_are_left_alone() -> None:
    x, w = torch.randn(1, 3, 8, 8, requires_grad=True), torch.randn(4, 3, 3, 3)
    wide = torch.randn(1, convolutions.THIN + 1, 8, 8, requires_grad=True)
    with thin_convolutions():
        outs = [
            F.conv2d(x, w.clone().requires_grad_()),  # weights that learn
            F.conv2d(x, w, padding="same"),
            F.conv2d(x, w, dilation=2),
            F.conv2d(x, w, stride=(1, 2)),
            F.conv2d(x, w[:3, :1], groups=3),
            F.conv2d(wide, torch.randn(4, convolutions.THIN + 1, 3, 3)),
        ]
        assert F.conv2d(x.detach(), w).grad_fn is None
        seen = F.conv2d(x, w)
    assert all("Convolution" in type(out.grad_fn).__name__ for out in outs)
    assert "Thin" in type(seen.grad_fn).__name__
    assert "Convolution" in type(F.conv2d(x, w).grad_fn).__name__  # outside
