"""DeepLift's rescale rule for operations that captum has none for: what a layer's output changes by, from the half of
the batch that holds baselines to that of the frames, is shared out among its inputs so that the parts add up to it.

Every rule runs frames and baselines as one batch, frames first, and gives both halves the same multipliers.  A function
of one number has the secant between the two, a product the mean of the other factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

NEAR = 1e-4  # of two numbers' size: nearer ones have the slope between them, which rounding harms less


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    frame, baseline = x.chunk(2)
    return frame, baseline


def _middle(x: Tensor) -> Tensor:
    a, b = _halves(x)
    return torch.cat([(a + b) / 2] * 2)


def _secant(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """(y - y0) / (x - x0) for both halves; ``slope``, of the middle between them, where they hardly differ."""
    (a, b), (ya, yb) = _halves(x), _halves(y)
    near = ((a - b).abs() <= NEAR * (a.abs() + b.abs()) / 2) | (a == b)  # a mask's -inf, too
    found = torch.where(near, slope.chunk(2)[0], (ya - yb) / torch.where(near, torch.ones_like(a), a - b))
    return torch.cat([found] * 2)


class _OfOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        y = run(x)
        ctx.run = run
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        with torch.enable_grad():
            middle = _middle(x.detach()).requires_grad_()
            (slope,) = torch.autograd.grad(ctx.run(middle).sum(), middle)
        return grad * _secant(x, y, slope), None


class Secant(nn.Module):
    """An elementwise operation of one tensor and of what does not depend on the frame."""

    def __init__(self, run: Callable[..., Tensor], position: int) -> None:
        super().__init__()
        self.run, self.position = run, position

    def forward(self, *args: Any, **options: Any) -> Tensor:
        at = self.position
        out: Tensor = _OfOne.apply(args[at], lambda x: self.run(*args[:at], x, *args[at + 1 :], **options))
        return out


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        a, b = ctx.saved_tensors
        return (grad * _middle(b)).sum_to_size(a.shape), (grad * _middle(a)).sum_to_size(b.shape)


class Product(nn.Module):
    """a * b = a0 * b0 + mean(b) (a - a0) + mean(a) (b - b0)."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = _Product.apply(a, b)
        return out


class Quotient(nn.Module):
    """a / b as the product of a, which may be the same for all rows, and the secant's 1 / b."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, a: Any, b: Tensor) -> Tensor:
        inverse = _OfOne.apply(b, torch.reciprocal)
        out: Tensor = a * inverse if self.shared else _Product.apply(a, inverse)
        return out


class _MatrixProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        a, b = ctx.saved_tensors
        return grad @ _middle(b).mT, _middle(a).mT @ grad


class MatrixProduct(nn.Module):
    """Products of matrices, a pair a row: attention."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = _MatrixProduct.apply(a, b)
        return out


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
        centred = x - x.mean(axes, keepdim=True)
        variance = centred.square().mean(axes, keepdim=True) + eps
        ctx.axes = axes
        ctx.save_for_backward(centred, variance)
        return centred * variance.rsqrt()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        centred, variance = ctx.saved_tensors
        scale, middle = variance.rsqrt(), _middle(centred)
        slope = _secant(variance, scale, -0.5 * _middle(variance).pow(-1.5))
        through = slope * (grad * middle).sum(ctx.axes, keepdim=True) * 2 * middle * variance.numel() / centred.numel()
        out = grad * _middle(scale) + through
        return out - out.mean(ctx.axes, keepdim=True), None, None


class SecantLayerNorm(nn.Module):
    """Layer norm of the last axes as squares, a secant of the inverse root, and a product."""

    def forward(
        self, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, None, None]:
        out: Tensor = _LayerNorm.apply(x, tuple(range(-len(shape), 0)), eps)
        out = out if weight is None else out * weight
        return out if bias is None else out + bias, None, None


def _shares(x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """exp(x - top) with one top for both halves, what it changes by for each number, and its sum."""
    top = torch.cat([torch.maximum(*_halves(x)).amax(axis, keepdim=True)] * 2)
    share = (x - top).exp()
    return share, _secant(x, share, (_middle(x) - top).exp()), share.sum(axis, keepdim=True)


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, keep: bool) -> Tensor:
        ctx.axis, ctx.keep = axis, keep
        ctx.save_for_backward(x)
        return x.logsumexp(axis, keep)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        _, of_share, total = _shares(ctx.saved_tensors[0], ctx.axis)
        grad = grad if ctx.keep else grad.unsqueeze(ctx.axis)
        return grad * _secant(total, total.log(), 1 / _middle(total)) * of_share, None, None


class SecantLogSumExp(nn.Module):
    """Log-sum-exp of one axis as a secant of the exponentials and one of the logarithm."""

    def forward(self, x: Tensor, axes: Sequence[int], keep: bool = False) -> Tensor:
        if len(axes) != 1:
            raise ValueError(f"log-sum-exp over axes {list(axes)} has no rule here")
        out: Tensor = _LogSumExp.apply(x, axes[0], keep)
        return out


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int) -> Tensor:
        ctx.axis = axis
        ctx.save_for_backward(x)
        return x.softmax(axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        share, of_share, total = _shares(ctx.saved_tensors[0], ctx.axis)
        inverse = 1 / total
        of_total = (grad * _middle(share)).sum(ctx.axis, keepdim=True)
        of_total = of_total * _secant(total, inverse, -_middle(total).pow(-2))
        return (grad * _middle(inverse) + of_total) * of_share, None


class SecantSoftmax(nn.Module):
    """Softmax of one axis: exponentials, each a secant, times the secant of one over their sum."""

    def forward(self, x: Tensor, axis: int, *options: Any) -> Tensor:
        out: Tensor = _Softmax.apply(x, axis)
        return out


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        out, at = torch.ops.aten.max_pool2d_with_indices.default(x, *options)
        ctx.mark_non_differentiable(at)
        ctx.save_for_backward(x, out, at)
        return out, at

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        x, out, at = ctx.saved_tensors
        flat, (higher, lower), (at_frame, at_baseline) = x.flatten(-2), _halves(out), _halves(at)
        winner = torch.cat([torch.where(higher >= lower, at_frame, at_baseline)] * 2).flatten(-2)
        chosen = flat.gather(-1, winner)
        share = grad.flatten(-2) * _secant(chosen, out.flatten(-2), torch.ones_like(chosen))
        return torch.zeros_like(flat).scatter_add_(-1, winner, share).view_as(x), None


class SecantMaxPool(nn.Module):
    """Max-pooling: what a window's maximum changes by goes to the cell that holds the greater of the two maxima, which
    changes by as much or more, in the same direction."""

    def forward(self, x: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = _MaxPool.apply(x, options)
        return out
