"""DeepLift's rescale rule for operations that captum has none for: what a layer's output changes by, from the half of
the batch that holds baselines to that of the frames, is shared out among its inputs so that the parts add up to it.

Every rule runs frames and baselines as one batch, frames first, and gives both halves the same multipliers.  A function
of one number has the secant between the two, a product the mean of the other factor.  ``at``: the axis of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def _near(a: Tensor, b: Tensor) -> Tensor:
    """Where two numbers are so near, for their size, that the slope between them is surer than (y - y0) / (x - x0),
    which is off by rounding over distance; the slope is off by a share of the distance's square (their sum is least at
    about this)."""
    share = torch.finfo(a.dtype).eps ** (1 / 3) / 5  # 1e-3 of single precision
    return ((a - b).abs() <= share * (a.abs() + b.abs()) / 2) | (a == b)  # a mask's -inf, too


def _halves(x: Tensor, at: int) -> tuple[Tensor, Tensor]:
    frame, baseline = x.chunk(2, at)
    return frame, baseline


def _middle(x: Tensor, at: int) -> Tensor:
    a, b = _halves(x, at)
    return torch.cat([(a + b) / 2] * 2, at)


def _secant(x: Tensor, y: Tensor, slope: Tensor, at: int) -> Tensor:
    """(y - y0) / (x - x0) for both halves; ``slope``, of the middle between them, where they hardly differ, and where
    it differs from that by less than rounding does: about 0 an exponential is 1, and a sigmoid .5, whose rounding is
    large beside what they change by, however far for their size two numbers lie apart."""
    (a, b), (ya, yb), (between, _) = _halves(x, at), _halves(y, at), _halves(slope, at)
    near = _near(a, b)
    apart = torch.where(near, torch.ones_like(a), a - b)
    quotient = (ya - yb) / apart
    rounding = 2 * torch.finfo(y.dtype).eps * (ya.abs() + yb.abs()) / apart.abs()
    found = torch.where(near | ((between - quotient).abs() < rounding), between, quotient)
    return torch.cat([found] * 2, at)


class _OfOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[Tensor], Tensor], at: int) -> Tensor:
        y = run(x)
        ctx.run, ctx.at = run, at
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        x, y = ctx.saved_tensors
        with torch.enable_grad():
            middle = _middle(x.detach(), ctx.at).requires_grad_()
            (slope,) = torch.autograd.grad(ctx.run(middle).sum(), middle)
        slope = slope.nan_to_num(0, 0, 0)  # of a root at 0, where nothing differs
        return grad * _secant(x, y, slope, ctx.at), None, None


class Secant(nn.Module):
    """An elementwise operation of one tensor and of what does not depend on the frame."""

    def __init__(self, run: Callable[..., Tensor], position: int, at: int) -> None:
        super().__init__()
        self.run, self.position, self.at = run, position, at

    def forward(self, *args: Any, **options: Any) -> Tensor:
        n = self.position
        out: Tensor = _OfOne.apply(args[n], lambda x: self.run(*args[:n], x, *args[n + 1 :], **options), self.at)
        return out


class _Bilinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, run: Callable[[Tensor, Tensor], Tensor], at: Sequence[int]) -> Tensor:
        ctx.run, ctx.at = run, at
        ctx.save_for_backward(a, b)
        return run(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        with torch.enable_grad():
            a, b = (_middle(x.detach(), at).requires_grad_() for x, at in zip(ctx.saved_tensors, ctx.at, strict=True))
            of_a, of_b = torch.autograd.grad(ctx.run(a, b), (a, b), grad)
        return of_a, of_b, None, None


class _Rule(nn.Module):
    """at: the axis of the batch, or one of each input that depends on the frame."""

    def __init__(self, at: Any) -> None:
        super().__init__()
        self.at = at


class Product(_Rule):
    """a * b = a0 * b0 + mean(b) (a - a0) + mean(a) (b - b0)."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = _Bilinear.apply(a, b, torch.mul, self.at)
        return out


class MatrixProduct(_Rule):
    """The same of matrices, a pair a row: attention."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = _Bilinear.apply(a, b, torch.matmul, self.at)
        return out


class Quotient(_Rule):
    """a / b as the product of a, which may be the same for all rows, and the secant's 1 / b."""

    def forward(self, a: Any, b: Tensor) -> Tensor:
        inverse = _OfOne.apply(b, torch.reciprocal, self.at[-1])
        out: Tensor = a * inverse if len(self.at) == 1 else _Bilinear.apply(a, inverse, torch.mul, self.at)
        return out


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: tuple[int, ...], eps: float, at: int) -> Tensor:
        centred = x - x.mean(axes, keepdim=True)
        variance = centred.square().mean(axes, keepdim=True) + eps
        ctx.axes, ctx.at = axes, at
        ctx.save_for_backward(centred, variance)
        return centred * variance.rsqrt()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (centred, variance), at = ctx.saved_tensors, ctx.at
        scale, middle = variance.rsqrt(), _middle(centred, at)
        slope = _secant(variance, scale, -0.5 * _middle(variance, at).pow(-1.5), at)
        through = slope * (grad * middle).sum(ctx.axes, keepdim=True) * 2 * middle * variance.numel() / centred.numel()
        out = grad * _middle(scale, at) + through
        return out - out.mean(ctx.axes, keepdim=True), None, None, None


class SecantLayerNorm(_Rule):
    """Layer norm of the last axes as squares, a secant of the inverse root, and a product."""

    def forward(
        self, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, None, None]:
        out: Tensor = _LayerNorm.apply(x, tuple(range(-len(shape), 0)), eps, self.at)
        out = out if weight is None else out * weight
        return out if bias is None else out + bias, None, None


def _shares(x: Tensor, axes: Sequence[int], at: int) -> tuple[Tensor, Tensor, Tensor]:
    """exp(x - top) with one top for both halves, what it changes by for each number, and its sum."""
    top = torch.cat([torch.maximum(*_halves(x, at)).amax(tuple(axes), keepdim=True)] * 2, at)
    top = top.nan_to_num(neginf=0.0)  # where a mask leaves nothing
    share = (x - top).exp()
    return share, _secant(x, share, (_middle(x, at) - top).exp(), at), share.sum(tuple(axes), keepdim=True)


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: Sequence[int], at: int) -> Tensor:
        ctx.axes, ctx.at = axes, at
        ctx.save_for_backward(x)
        return x.logsumexp(tuple(axes), keepdim=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        at = ctx.at
        _, of_share, total = _shares(ctx.saved_tensors[0], ctx.axes, at)
        return grad * _secant(total, total.log(), 1 / _middle(total, at), at) * of_share, None, None


class SecantLogSumExp(_Rule):
    """Log-sum-exp as a secant of the exponentials and one of the logarithm."""

    def forward(self, x: Tensor, axes: Sequence[int], keep: bool = False) -> Tensor:
        out: Tensor = _LogSumExp.apply(x, axes, self.at)
        return out if keep else out.squeeze(tuple(axes))


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, at: int) -> Tensor:
        ctx.axis, ctx.at = axis, at
        ctx.save_for_backward(x)
        return torch.ops.aten._safe_softmax.default(x, axis)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        at = ctx.at
        share, of_share, total = _shares(ctx.saved_tensors[0], (ctx.axis,), at)
        total = torch.where(total == 0, 1.0, total)  # all are masked
        inverse = 1 / total
        of_total = (grad * _middle(share, at)).sum(ctx.axis, keepdim=True)
        of_total = of_total * _secant(total, inverse, -_middle(total, at).pow(-2), at)
        return (grad * _middle(inverse, at) + of_total) * of_share, None, None


class SecantSoftmax(_Rule):
    """Softmax of one axis: exponentials, each a secant, times the secant of one over their sum."""

    def forward(self, x: Tensor, axis: int, *options: Any) -> Tensor:
        out: Tensor = _Softmax.apply(x, axis, self.at)
        return out


def _to_winners(grad: Tensor, flat: Tensor, top: Tensor, where: Tensor, at: int) -> Tensor:
    """What maxima change by (the last axis of ``top``, ``where`` in that of ``flat``) goes to the cell that holds the
    greater of the two maxima, which changes by as much or more, in the same direction."""
    (higher, lower), (at_frame, at_baseline) = _halves(top, at), _halves(where, at)
    winner = torch.cat([torch.where(higher >= lower, at_frame, at_baseline)] * 2, at)
    a, b = _halves(flat.gather(-1, winner), at)
    # Exact however near the two are: rounding keeps it from 0 to 1, and a slope would not tell another cell's maximum.
    share = torch.where(a == b, 1, (higher - lower) / torch.where(a == b, 1, a - b))
    return torch.zeros_like(flat).scatter_add_(-1, winner, grad * torch.cat([share] * 2, at))


class _Max(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[..., Any], options: tuple[Any, ...], axis: int) -> Any:
        out, at = run(x, *options)
        ctx.mark_non_differentiable(at)
        ctx.axis = axis
        ctx.save_for_backward(x, out, at)
        return out, at

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        x, out, at = ctx.saved_tensors
        flat = (grad.flatten(-2), x.flatten(-2), out.flatten(-2), at.flatten(-2))
        return _to_winners(*flat, ctx.axis).view_as(x), None, None, None


class SecantMaxPool(_Rule):
    """Max-pooling by torch's operation ``run``: every window's maximum."""

    def __init__(self, at: int, run: Callable[..., Any]) -> None:
        super().__init__(at)
        self.run = run

    def forward(self, x: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = _Max.apply(x, self.run, options, self.at)
        return out


class SecantMax(_Rule):
    """The maximum over axes, none of which is the batch's."""

    def forward(self, x: Tensor, axes: Sequence[int], keep: bool = False) -> Tensor:
        axes = sorted(axis % x.ndim for axis in axes)
        last = x.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes)).unsqueeze(-2)  # one window
        at = self.at - sum(axis < self.at for axis in axes)
        out: tuple[Tensor, Tensor] = _Max.apply(last, torch.ops.aten.max.dim, (-1, True), at)
        top = out[0].squeeze((-2, -1))
        for axis in axes if keep else ():
            top = top.unsqueeze(axis)
        return top


class _Greater(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, at: int) -> Tensor:
        out = torch.maximum(a, b)
        ctx.at = at
        ctx.save_for_backward(torch.where(a == b, 0, a - b))  # of a mask's -inf, too
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        (more,) = ctx.saved_tensors
        share = _secant(more, more.relu(), (_middle(more, ctx.at) > 0).to(more.dtype), ctx.at)
        return grad * share, grad * (1 - share), None


class Greater(_Rule):
    """The greater of two as one of them and the part above zero of what the other is more."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = _Greater.apply(*torch.broadcast_tensors(a, b), self.at)
        return out
