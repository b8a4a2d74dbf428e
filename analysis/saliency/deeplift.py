"""An agent's step as modules for DeepLift, with the rules that captum lacks: products, layer norm, log-sum-exp.

DeepLift runs frames and baselines as one batch, frames first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from analysis.saliency.frame import Frame
from analysis.shared.quantities import Quantity, Reading


class OneFrame(nn.Module):
    """A frame's quantity with a module of its own for every nonlinearity, which captum's DeepLift needs.

    DeepLift hooks modules of ReLU, sigmoid and tanh that run once and whose input nothing else reads; torch.relu, the
    gates inside a GRU cell and the skip of a residual block would go wrong without a word.  So the agent's step and the
    quantity are traced to single operations, for the ``rows`` frames and baselines that captum runs as one batch; any
    other number of rows, which captum hooks nothing of, is the step itself.

    steps: traced steps by rows, of one agent and kind of frame; what is not there is put there.
    """

    def __init__(self, frame: Frame, quantity: Quantity, rows: int, steps: dict[int, nn.Module]) -> None:
        super().__init__()
        self.plain, self.rows = frame.read(quantity), rows
        *inputs, before, chosen = (torch.cat([x[:1]] * rows) for x in (*frame.inputs, *frame.fixed))
        if rows not in steps:
            steps[rows] = modules_of(frame.step, inputs)
        with torch.no_grad():
            acted = frame.step(*inputs)

        def read(*args: Tensor) -> Tensor:
            h, logits, value, before, chosen = args
            return quantity.read(Reading(h, logits, value, before, chosen))

        self.step, self.quantity = steps[rows], modules_of(read, (*acted, before, chosen))

    def forward(self, *args: Tensor) -> Tensor:
        *inputs, before, chosen = args
        if len(inputs[0]) != self.rows:
            return self.plain(*args)
        out: Tensor = self.quantity(*self.step(*inputs), before, chosen)
        return out


def modules_of(step: Callable[..., Any], like: Sequence[Tensor]) -> nn.Module:
    """``step`` as a graph, for arguments like these, in which every nonlinearity is a module of its own."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        graph = make_fx(step)(*like)
    aten = torch.ops.aten
    kinds: dict[Any, Callable[..., nn.Module]] = {
        aten.relu.default: nn.ReLU, aten.sigmoid.default: nn.Sigmoid, aten.tanh.default: nn.Tanh,
        aten.mul.Tensor: Product, aten.native_layer_norm.default: SecantLayerNorm,
        aten.logsumexp.default: SecantLogSumExp,
    }  # fmt: skip
    for n, node in enumerate(list(graph.graph.nodes)):
        if node.op != "call_function":
            continue
        if isinstance(node.target, torch._ops.OpOverload):
            name = node.target._schema.name.removeprefix("aten::")
            if name.endswith("_"):  # in place, inside a GRU cell; the rules need both operands whole
                node.target = getattr(getattr(aten, name[:-1]), node.target._overloadname)
        if node.target not in kinds or (node.target is aten.mul.Tensor and len(node.all_input_nodes) < 2):
            continue
        graph.add_submodule(f"rule_{n}", kinds[node.target]())
        inputs: tuple[Any, ...] = node.args
        if len(inputs) == 1:  # captum's hooks overwrite all of the gradient of a module's input, a residual's too
            with graph.graph.inserting_before(node):
                inputs = (graph.graph.call_function(aten.clone.default, inputs),)
        with graph.graph.inserting_after(node):
            node.replace_all_uses_with(graph.graph.call_module(f"rule_{n}", inputs))
        graph.graph.erase_node(node)
    graph.graph.lint()
    graph.recompile()
    out: nn.Module = graph
    return out


def _secant(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """(y - y0) / (x - x0) for both halves; ``slope`` where they do not differ."""
    (dx, dy) = (torch.cat([half[0] - half[1]] * 2) for half in (x.chunk(2), y.chunk(2)))
    same = dx.abs() < 1e-6
    return torch.where(same, slope, dy / torch.where(same, torch.ones_like(dx), dx))


def _middle(x: Tensor) -> Tensor:
    a, b = x.chunk(2)
    return torch.cat([(a + b) / 2] * 2)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        a, b = ctx.saved_tensors
        return grad * _middle(b), grad * _middle(a)


class Product(nn.Module):
    """a * b = a0 * b0 + mean(b) (a - a0) + mean(a) (b - b0)."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = _Product.apply(a, b) if a.shape == b.shape else a * b
        return out


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True) + eps
        ctx.save_for_backward(centred, variance)
        return centred * variance.rsqrt()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        centred, variance = ctx.saved_tensors
        scale, middle = variance.rsqrt(), _middle(centred)
        slope = _secant(variance, scale, -0.5 * variance.pow(-1.5))
        through = slope * (grad * middle).sum(-1, keepdim=True) * 2 * middle / centred.shape[-1]
        out = grad * _middle(scale) + through
        return out - out.mean(-1, keepdim=True), None


class SecantLayerNorm(nn.Module):
    """Layer norm of the last axis as squares, a secant of the inverse root, and a product."""

    def forward(
        self, x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, None, None]:
        if len(shape) != 1:
            raise ValueError(f"layer norm of {len(shape)} axes has no rule here")
        return _LayerNorm.apply(x, eps) * weight + bias, None, None


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.logsumexp(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        top = torch.cat([torch.maximum(*x.chunk(2)).amax(-1, keepdim=True)] * 2)
        share = (x - top).exp()
        total = share.sum(-1, keepdim=True)
        of_log = _secant(total, total.log(), 1 / total)
        return grad[..., None] * of_log * _secant(x, share, share)


class SecantLogSumExp(nn.Module):
    """Log-sum-exp of the last axis as a secant of the exponentials and one of the logarithm."""

    def forward(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        if list(axes) not in ([-1], [x.ndim - 1]):
            raise ValueError(f"log-sum-exp over axes {list(axes)} has no rule here")
        out: Tensor = _LogSumExp.apply(x)
        return out
