"""An agent's step as modules for DeepLift, with the rules that captum lacks (``analysis.saliency.rules``).

DeepLift runs frames and baselines as one batch, frames first.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from analysis.saliency import rules
from analysis.saliency.frame import Frame
from analysis.shared.gradients import reached
from analysis.shared.quantities import Quantity, Reading
from core.contracts import UserError


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
        return reached(self.quantity(*self.step(*inputs), before, chosen), inputs)


aten = torch.ops.aten
RULES: dict[Any, Callable[[int], nn.Module]] = {
    aten.native_layer_norm.default: rules.SecantLayerNorm, aten.logsumexp.default: rules.SecantLogSumExp,
    aten._softmax.default: rules.SecantSoftmax, aten._safe_softmax.default: rules.SecantSoftmax,
    aten.amax.default: rules.SecantMax,
    **{run: partial(rules.SecantMaxPool, run=run)
       for run in (aten.max_pool2d_with_indices.default, aten.adaptive_max_pool2d.default)},
}  # fmt: skip
# Elementwise operations whose gradient is their rule: linear in the one tensor that depends on the frame.
LINEAR = {
    aten.neg.default, aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar,
    aten.rsub.Tensor, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.masked_fill.Scalar,
    aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf,
}  # fmt: skip
MADE = {  # of the shape of what depends on the frame, and do not themselves
    aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.empty_like.default,
    aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.new_empty.default,
}  # fmt: skip
ELEMENTWISE = {aten.hardswish.default, aten._prelu_kernel.default}  # torch does not tag these as pointwise


def modules_of(step: Callable[..., Any], like: Sequence[Tensor]) -> nn.Module:
    """``step`` as a graph, for arguments like these, in which every nonlinearity is a module of its own.

    An operation without a rule keeps its gradient: where it is not linear, parts do not add up to the change, and the
    completeness that is measured of every map says by how much.  UserError where it cannot be traced.
    """
    graph = _traced(step, like)
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            node.target = _out_of_place(node.target)
            if node.target in (aten.view.default, aten._unsafe_view.default):  # the order in memory may be another then
                node.target = aten.reshape.default
    batch, depends = batch_axes(graph, like), set[fx.Node]()
    for n, node in enumerate(list(graph.graph.nodes)):
        if node.op == "placeholder" or (depends.intersection(node.all_input_nodes) and _varies(node)):
            depends.add(node)
        rule = rule_of(node, depends, batch) if node.op == "call_function" and node in depends else None
        if rule is None:
            continue
        graph.add_submodule(f"rule_{n}", rule)
        inputs: tuple[Any, ...] = node.args
        if len(inputs) == 1:  # captum's hooks overwrite all of the gradient of a module's input, a residual's too
            with graph.graph.inserting_before(node):
                inputs = (graph.graph.call_function(aten.clone.default, inputs),)
        with graph.graph.inserting_after(node):
            put = graph.graph.call_module(f"rule_{n}", inputs, node.kwargs)
        put.meta = node.meta
        if node in batch:
            batch[put] = batch[node]
        node.replace_all_uses_with(put)
        graph.graph.erase_node(node)
        depends.add(put)
    graph.graph.lint()
    graph.recompile()
    out: nn.Module = graph
    return out


def _traced(step: Callable[..., Any], like: Sequence[Tensor]) -> fx.GraphModule:
    """A step as a graph in which, where torch can say so, nothing is overwritten: what is written into a part of a
    tensor would be lost.  (It cannot of autograd functions of the agent's own, whose graph is as they are.)"""
    from torch.fx.experimental.proxy_tensor import make_fx

    why = ""
    for run in (torch.func.functionalize(step), step):
        try:
            with torch.no_grad(), in_single_operations():
                return make_fx(run, decomposition_table=DECOMPOSED)(*like)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            why = (str(error).splitlines() or [""])[0]
    raise UserError("DeepLIFT cannot take the agent's step apart, which may not go by what a tensor holds (an if, an "
                    f"assert, .item()) nor be compiled; leave deeplift out of --methods ({why})")  # fmt: skip


def _out_of_place(operation: Any) -> Any:
    """What makes the same without overwriting its input, of the operations inside a memory (elsewhere the trace has
    none left): the rules need both operands whole."""
    name = operation._schema.name.removeprefix("aten::")
    same = getattr(aten, name[:-1], None) if name.endswith("_") else None
    taken = [str(x.type) for x in operation._schema.arguments]
    found = [] if same is None else [getattr(same, kind) for kind in same.overloads()]
    return next((x for x in found if [str(a.type) for a in x._schema.arguments] == taken), operation)


def _varies(node: fx.Node) -> bool:
    """Whether a node's value is of real numbers (or several values, or unknown) that depend on its inputs'."""
    value = node.meta.get("val")
    return node.target not in MADE and (not isinstance(value, Tensor) or value.is_floating_point())


@torch.no_grad()
def batch_axes(graph: fx.GraphModule, like: Sequence[Tensor]) -> dict[fx.Node, int]:
    """Which axis of a value holds the frames and baselines (of some agents' not the first): where other numbers in the
    first of them in ``like`` change the first part of the axis alone, and in the last the last.  The first axis where
    neither changes anything; a value without such an axis is not there."""
    rows = len(like[0])
    runs = [fx.Interpreter(graph) for _ in range(3)]
    for run, row in zip(runs, (None, 0, rows - 1), strict=True):
        inputs = [x.clone() for x in like]
        for x in inputs if row is not None else ():
            if x.is_floating_point():  # a frame of zeros, too; what is from 0 to 1 stays there
                x[row] = x[row] / 2 + torch.linspace(0.1, 0.5, x[row].numel()).to(x).reshape(x[row].shape)
        run.args_iter = iter(inputs)
    out: dict[fx.Node, int] = {}
    for node in graph.graph.nodes:
        values = [run.run_node(node) for run in runs]
        for run, value in zip(runs, values, strict=True):
            run.env[node] = value
            for over in run.user_to_last_uses.get(node, ()):
                del run.env[over]
        if isinstance(values[0], Tensor):
            first, last = (~torch.isclose(x, values[0], equal_nan=True) for x in values[1:])
            axes = range(first.ndim) if first.any() or last.any() else range(min(1, first.ndim))
            axis = next((i for i in axes if first.shape[i] % rows == 0 and _apart(first, last, i, rows)), None)
            if axis is not None:
                out[node] = axis
    return out


def _apart(first: Tensor, last: Tensor, axis: int, rows: int) -> bool:
    """Whether what is marked lies in the first, and in the last, of so many parts of an axis alone."""
    part = first.shape[axis] // rows
    rest = first.shape[axis] - part
    return not (first.narrow(axis, part, rest).any() or last.narrow(axis, 0, rest).any())


def rule_of(node: fx.Node, depends: set[fx.Node], batch: Mapping[fx.Node, int]) -> nn.Module | None:
    """The rule of an operation, some of whose arguments are among what ``depends`` on the frames, which lie along the
    axes ``batch``; None where its gradient is the rule, or where there is none."""
    target, found = node.target, {i: x for i, x in enumerate(node.args) if isinstance(x, fx.Node) and x in depends}
    where, at = [*found], tuple(batch[x] for x in found.values() if x in batch)
    if not where or len(at) < len(where) or not isinstance(target, torch._ops.OpOverload):
        return None
    if target is aten.relu.default and at == (0,):
        return nn.ReLU()  # captum's rule; its rule of tanh and sigmoid takes no heed of rounding near the baseline
    if target in RULES:
        of_rows_too = isinstance(node.meta.get("val"), Tensor) and node not in batch
        return None if of_rows_too else RULES[target](at[0])
    if target is aten.mul.Tensor and len(where) == 2:
        return rules.Product(at)
    if target is aten.div.Tensor and 1 in where:
        return rules.Quotient(at)
    if target is aten.maximum.default and len(where) == 2:
        return rules.Greater(batch[node]) if node in batch else None
    if target in (aten.bmm.default, aten.matmul.default) and len(where) == 2:
        return rules.MatrixProduct(at)
    if target in LINEAR or len(where) != 1 or any(isinstance(x, fx.Node) for x in node.kwargs.values()):
        return None
    if torch.Tag.pointwise in target.tags or target in ELEMENTWISE:
        return rules.Secant(target, where[0], at[0])
    return None


@contextmanager
def in_single_operations() -> Iterator[None]:
    """While torch's fused kernels of memories and of attention are off: nothing can be said of what is inside them."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with warnings.catch_warnings(), ExitStack() as off:
        warnings.filterwarnings("ignore", "TF32 acceleration on top of oneDNN", UserWarning)  # torch, of its own flag
        off.enter_context(torch.backends.mkldnn.flags(enabled=False))
        off.enter_context(torch.backends.cudnn.flags(enabled=False))
        off.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def _gru_cell(
    inputs: Tensor, hidden: Tensor, h: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What a GRU cell is on a GPU, where torch has one operation for it: (h, work space)."""
    parts = []
    for gates, bias in ((inputs, input_bias), (hidden, hidden_bias)):
        parts.append((gates if bias is None else gates + bias).chunk(3, 1))
    (reset_x, update_x, new_x), (reset_h, update_h, new_h) = parts
    reset, update = (reset_x + reset_h).sigmoid(), (update_x + update_h).sigmoid()
    new = (new_x + reset * new_h).tanh()
    return new + update * (h - new), torch.empty_like(h)


def _lstm_cell(
    inputs: Tensor, hidden: Tensor, c: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """What an LSTM cell is on a GPU: (h, c, work space)."""
    gates = inputs + hidden
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    take, forget, new, show = gates.chunk(4, 1)
    after = forget.sigmoid() * c + take.sigmoid() * new.tanh()
    return show.sigmoid() * after.tanh(), after, torch.empty_like(c)


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, channels: int, cells: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm as a layer norm of every group; mean and scale, which only torch's gradient reads, are left out."""
    flat = x.reshape(n, groups, -1)
    out = aten.native_layer_norm(flat, [flat.shape[-1]], None, None, eps)[0].reshape(x.shape)
    a_channel = (1, channels, *(1,) * (x.ndim - 2))
    out = out if weight is None else out * weight.reshape(a_channel)
    return out if bias is None else out + bias.reshape(a_channel), x.new_empty(0), x.new_empty(0)


def _vector_norm(x: Tensor, order: float = 2, axes: Any = None, keep: bool = False, *, dtype: Any = None) -> Tensor:
    """A norm as a sum of squares; of another order, torch's own."""
    if order != 2 or dtype is not None or not x.is_floating_point():
        return NotImplemented
    return x.square().sum(axes, keep).sqrt()


def _variance(x: Tensor, axes: Any = None, *, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    """A variance as a mean of squares."""
    if not axes:
        return NotImplemented
    centred = x - x.mean(axes, True)
    count = math.prod(x.shape[i] for i in axes)
    return centred.square().sum(axes, keepdim) / (count - (1 if correction is None else correction))


def _deviation(x: Tensor, axes: Any = None, **options: Any) -> Tensor:
    return _variance(x, axes, **options).sqrt() if axes else NotImplemented


def _least(x: Tensor, axes: Sequence[int] = (), keep: bool = False) -> Tensor:
    """A minimum as a maximum; of numbers without a negative (bool, uint8), torch's own."""
    return -aten.amax(-x, axes, keep) if x.is_floating_point() else NotImplemented


def _lesser(a: Tensor, b: Tensor) -> Tensor:
    return -aten.maximum(-a, -b) if a.is_floating_point() and b.is_floating_point() else NotImplemented


def _between(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    x = x if low is None else aten.maximum(x, low)
    return x if high is None else aten.minimum(x, high)


DECOMPOSED: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten.native_group_norm.default: _group_norm,
    aten.glu.default: lambda x, axis=-1: (lambda a, gate: a * gate.sigmoid())(*x.chunk(2, axis)),
    aten.baddbmm.default: lambda c, a, b, *, beta=1, alpha=1: beta * c + alpha * aten.bmm(a, b),
    aten.addcmul.default: lambda c, a, b, *, value=1: c + value * (a * b),
    aten.lerp.Tensor: lambda a, b, share: a + share * (b - a),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.var.correction: _variance,
    aten.std.correction: _deviation,
    aten.max.dim: lambda x, axis, keep=False: (aten.amax(x, [axis], keep), aten.argmax(x, axis, keep)),
    aten.min.dim: lambda x, axis, keep=False: (aten.amin(x, [axis], keep), aten.argmin(x, axis, keep)),
    aten.amin.default: _least,
    aten.minimum.default: _lesser,
    aten.aminmax.default: lambda x, *, dim=None, keepdim=False: tuple(
        run(x, () if dim is None else [dim], keepdim) for run in (aten.amin, aten.amax)
    ),
    aten.clamp.Tensor: _between,
    aten.copy.default: lambda to, x, wait=False: x.to(to.dtype).expand_as(to),  # has no gradient
    aten._log_softmax.default: lambda x, axis, half: x - aten.logsumexp(x, [axis], True),
    aten.log_sigmoid_forward.default: lambda x: (-nn.functional.softplus(-x), x.new_empty(0)),
}
