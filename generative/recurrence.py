"""Unrolling a recurrent cell for training, with the gradients of its weights found once for all steps.

Step by step, autograd computes a weight gradient at every step and adds it to the sum so far: L times the
traffic of a gradient as large as the weights, which at small batches is most of the recurrence's time.
Here only the cotangents walk back through time; the weights' gradients, and the inputs', come from one
batched pass over all L * B steps with those cotangents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def unroll(cell: nn.Module, carry: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """All outputs of a cell along L steps, stacked: each [B, L, ...].

    ``cell(*carry, *inputs at step i)`` gives its next carry followed by further outputs; ``inputs`` are
    [B, L, ...].  With trainable weights and several steps the result can be differentiated once only.
    """
    parameters = [p for p in cell.parameters() if p.requires_grad]
    if torch.is_grad_enabled() and parameters and inputs[0].shape[1] > 1:  # of one step there is nothing to gather
        tensors: tuple[Tensor, ...] = _Trained.apply(cell, len(carry), len(inputs), *carry, *inputs, *parameters)
        return tensors
    return _stack(_steps(cell, tuple(carry), inputs))


def _steps(cell: nn.Module, carry: tuple[Tensor, ...], inputs: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    rows = []
    for i in range(inputs[0].shape[1]):
        out = cell(*carry, *(x[:, i] for x in inputs))
        carry = out[: len(carry)]
        rows.append(out)
    return rows


def _stack(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(column, 1) for column in zip(*rows, strict=True))


class _Cut(nn.Module):
    """The cell along the steps, each with a graph of its own that begins at its carry."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(
        self, carry: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
        steps = []
        for i in range(inputs[0].shape[1]):
            leaves = tuple(c.detach().requires_grad_() for c in carry)
            out = self.cell(*leaves, *(x[:, i] for x in inputs))
            steps.append((leaves, out))
            carry = out[: len(leaves)]
        return steps


class _Trained(torch.autograd.Function):
    """``unroll`` with weights that need gradients."""

    @staticmethod
    def forward(ctx: Any, cell: nn.Module, n_carry: int, n_inputs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        carry, inputs = tensors[:n_carry], tensors[n_carry : n_carry + n_inputs]
        ctx.cell, ctx.inputs, ctx.parameters = cell, inputs, tensors[n_carry + n_inputs :]
        fixed = {f"cell.{name}": p.detach() for name, p in cell.named_parameters()}
        kind = carry[0].device.type
        ctx.cast = torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind))
        with torch.enable_grad():
            ctx.steps = torch.func.functional_call(_Cut(cell), fixed, (carry, [x.detach() for x in inputs]))
        return _stack([tuple(x.detach() for x in out) for _, out in ctx.steps])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        carries, cotangents = [], []
        later: Sequence[Tensor] = ()
        for i in reversed(range(len(ctx.steps))):
            carry, out = ctx.steps.pop()
            cotangent = [g[:, i] for g in grads]
            for k, g in enumerate(later):
                cotangent[k] = cotangent[k] + g
            later = torch.autograd.grad(out, carry, cotangent)
            carries.append(carry)
            cotangents.append(cotangent)
        carries.reverse()
        cotangents.reverse()
        inputs = [x.transpose(0, 1).flatten(0, 1).detach() for x in ctx.inputs]
        wanted = [x.requires_grad for x in ctx.inputs]
        for x, want in zip(inputs, wanted, strict=True):
            x.requires_grad_(want)
        with torch.enable_grad(), ctx.cast:  # autograd runs this outside of the caller's autocast
            out = ctx.cell(*(torch.cat(c).detach() for c in zip(*carries, strict=True)), *inputs)
        leaves = [x for x, want in zip(inputs, wanted, strict=True) if want]
        found = torch.autograd.grad(
            out, [*leaves, *ctx.parameters], [torch.cat(c) for c in zip(*cotangents, strict=True)]
        )
        size = (len(carries), -1)
        of_inputs = iter(g.unflatten(0, size).transpose(0, 1) for g in found[: len(leaves)])
        return (
            None, None, None, *later,
            *(next(of_inputs) if want else None for want in wanted),
            *found[len(leaves) :],
        )  # fmt: skip
