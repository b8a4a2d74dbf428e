"""A faster gradient of convolutions that read few channels, for passes that ask for the inputs' gradients only.

What a frame answers for goes back through the agent's first convolution, 3 channels wide.  oneDNN's backward pass
reaches a tenth of its usual speed there: it was a tenth of the time of a Jacobian (benchmarks/analysis_jacobian.py).
The same sum as a convolution of the output's gradient, one channel a pixel of a stride x stride block, does not
(sub-pixel convolution; Shi et al. 2016, arXiv:1609.05158).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

THIN = 4  # channels


def input_gradient(
    grad_NOYX: Tensor, weight_OIKK: Tensor, size: Sequence[int], stride: int, padding: Sequence[int]
) -> Tensor:
    """The gradient [N, I, *size] of a convolution's input, from that of its output.

    Output y adds weight k to input y * stride - padding + k.  So an input in row Q * stride + r - padding hears
    outputs Q - m through weights r + stride * m: a convolution over Q for every r.
    """
    kernel = weight_OIKK.shape[2:]
    taps = [-(-k // stride) for k in kernel]
    w = F.pad(weight_OIKK, (0, taps[1] * stride - kernel[1], 0, taps[0] * stride - kernel[0]))
    w = w.unflatten(3, (taps[1], stride)).unflatten(2, (taps[0], stride)).flip(2, 4)  # O I m r m r
    w = w.permute(1, 3, 5, 0, 2, 4).flatten(0, 2).contiguous(memory_format=torch.channels_last)
    whole = F.pixel_shuffle(F.conv2d(grad_NOYX, w, padding=[m - 1 for m in taps]), stride)
    (top, left), (height, width) = padding, size
    lacks = [max(0, p + n - have) for p, n, have in zip(padding, size, whole.shape[2:], strict=True)]
    if any(lacks):  # the last rows that no output read
        whole = F.pad(whole, (0, lacks[1], 0, lacks[0]))
    return whole[..., top : top + height, left : left + width]


class _Thin(torch.autograd.Function):
    """A convolution with fixed weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: list[int]) -> Tensor:
        ctx.weight, ctx.size, ctx.stride, ctx.padding = weight, x.shape[2:], stride, padding
        return torch.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        return input_gradient(grad, ctx.weight, ctx.size, ctx.stride, ctx.padding), None, None, None, None


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """``torch.conv2d`` with the gradient above; None where that does not apply."""
    pairs = [[v, v] if isinstance(v, int) else v for v in (stride, padding, dilation)]
    fixed = not weight.requires_grad and (bias is None or not bias.requires_grad)
    plain = groups == 1 and input.dim() == 4 and not any(isinstance(v, str) for v in pairs)
    if not (fixed and plain and input.requires_grad and input.shape[1] <= THIN and input.device.type == "cpu"):
        return None
    (down, across), (top, left), dilations = pairs
    if down != across or set(dilations) != {1}:
        return None
    out: Tensor = _Thin.apply(input, weight, bias, down, [top, left])
    return out


class thin_convolutions(TorchFunctionMode):  # noqa: N801  (a context, as torch.no_grad is)
    """Inside, 2-D convolutions with fixed weights that read at most THIN channels get the gradient above, on a CPU.
    Their values stay what they were, bit by bit."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.conv2d:
            out = _conv2d(*args, **(kwargs or {}))
            if out is not None:
                return out
        return func(*args, **(kwargs or {}))
