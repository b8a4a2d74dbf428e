"""DeepLift's parts add up to the change through whatever an agent is made of, as captum runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from analysis.saliency.deeplift import modules_of
from analysis.saliency.frame import quietly
from core.contracts import UserError

N, X, F64 = 5, 6, torch.float64


@pytest.fixture(autouse=True)
def same_numbers() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class AsPicture(nn.Module):
    """A layer between a convolution and a read-out of a picture of 2 x 3 cells."""

    def __init__(self, layer: nn.Module, found: int) -> None:
        super().__init__()
        self.seen, self.layer, self.out = nn.Conv2d(1, 4, 3, padding=1), layer, nn.Linear(found, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.layer(self.seen(x.reshape(len(x), 1, 2, 3))).flatten(1))
        return y


class Permuted(nn.Module):
    """Pictures as they are recorded, as convolutions want them."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2)


class Memory(nn.Module):
    """A recurrent step from a memory that is held fixed."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.step, self.out = kind, getattr(nn, kind)(X, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_full((len(x), 8), 0.3)
        if self.kind in ("GRU", "LSTM"):
            after = self.step(x[None], (h[None], h[None]) if self.kind == "LSTM" else h[None])[0][0]
        else:
            after = self.step(x, (h, h))[0] if self.kind == "LSTMCell" else self.step(x, h)
        y: Tensor = self.out(after)
        return y


class Attention(nn.Module):
    """Two parts of what is seen attend to each other; masked, each to itself and what is before it."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.seen, self.heads, self.out = (
            nn.Linear(3, 8),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 1),
        )
        self.mask = torch.tensor([[0, -torch.inf], [0, 0]], dtype=F64) if masked else None

    def forward(self, x: Tensor) -> Tensor:
        parts = self.seen(x.reshape(len(x), 2, 3))
        y: Tensor = self.out(self.heads(parts, parts, parts, attn_mask=self.mask, need_weights=False)[0].mean(1))
        return y


class Straight(torch.autograd.Function):
    """A function of the agent's own; its parts are those of what it does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x + x.tanh()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


class Masked(Attention):
    """With the weights that the attention also gives, which is another way through torch."""

    def forward(self, x: Tensor) -> Tensor:
        parts = self.seen(x.reshape(len(x), 2, 3))
        y: Tensor = self.out(self.heads(parts, parts, parts, attn_mask=self.mask)[0].mean(1))
        return y


class InSequence(nn.Module):
    """A sequence of what is seen, its parts before the batch, as torch's own layers want it by default."""

    def __init__(self, attends: bool) -> None:
        super().__init__()
        self.seen = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16).eval() if attends else nn.Sequential(nn.GELU(), nn.ReLU())
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.seen(x.reshape(len(x), -1, 3).transpose(0, 1))
        y: Tensor = self.out(self.layer(parts).sum(0))
        return y


class Layers(nn.Module):
    """A memory of two layers that reads a sequence."""

    def __init__(self, kind: str, **options: bool) -> None:
        super().__init__()
        self.memory, self.out = (
            getattr(nn, kind)(3, 4, 2, batch_first=True, **options),
            nn.Linear(8 * (1 + len(options)), 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.memory(x.reshape(len(x), 2, 3))[0].flatten(1))
        return y


class Does(nn.Module):
    """A function of numbers in the middle of a network."""

    def __init__(self, what: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        return self.what(x)


def written(x: Tensor) -> Tensor:
    """Parts of a tensor that is there before they are, and one that is changed in its place."""
    out = torch.zeros(x.shape, dtype=x.dtype)
    out[:, :9] = x[:, :9].relu()
    out[:, 9:] += x[:, 9:].tanh()
    out[:, 3:6].mul_(x[:, 3:6])
    return out


def attended(x: Tensor) -> Tensor:
    """Attention in which a part may attend to nothing at all."""
    parts, mask = x.reshape(len(x), 1, 2, 8), torch.tensor([[True, False], [False, False]])
    return nn.functional.scaled_dot_product_attention(parts, parts, parts, attn_mask=mask).flatten(1) + x


ODD = torch.tensor([False, True] * 8)
COUNTS = torch.arange(16, dtype=torch.uint8)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "written in parts": written,
    "attention to nothing": attended,
    "log-sum-exp of two axes": lambda x: x + x.reshape(len(x), 2, 8).logsumexp((1, 2))[:, None],
    "GLU": lambda x: nn.functional.glu(torch.cat([x, x.flip(1)], 1)),
    "normalised": lambda x: nn.functional.normalize(x, dim=1),
    "by hand": lambda x: (x - x.mean(1, True)) / (x.var(1, keepdim=True) + 0.1).sqrt() + x / x.std(1, keepdim=True),
    "greater of a constant": lambda x: torch.maximum(x, torch.zeros_like(x)) + torch.minimum(x, x.new_full((), 0.1)),
    "greatest and least of parts": lambda x: x.reshape(len(x), 4, 4).max(1)[0].repeat(1, 4) + x.min(1, True).values,
    "greatest of two axes": lambda x: x * x.reshape(len(x), 2, 2, 4).amax((1, -1)).repeat(1, 8),
    "greatest as columns": lambda x: (x.T + x.T.reshape(4, 4, -1).amax((0, 1), True)[0] - x.T.amin(0)).T,
    "greatest of what hardly differs": lambda x: x + 1e3 * (9 + 1e-3 * x).reshape(-1, 4, 4).amax(1).repeat(1, 4),
    "log-sum-exp of columns": lambda x: (x.T * x.T.logsumexp(0)).T,
    "greater of two": lambda x: torch.maximum(x, x.flip(1)) - torch.minimum(x.tanh(), x[:, :1]),
    "greater of two that are masked": lambda x: (
        torch.maximum(x.masked_fill(ODD, -torch.inf), x.flip(1).masked_fill(~ODD, -torch.inf))
        + torch.minimum(x.tanh().masked_fill(ODD, 1e20), x).tanh()
    ),
    "least of bytes and masks": lambda x: (
        x.tanh()
        * (
            torch.minimum(COUNTS, COUNTS[8])
            + COUNTS.reshape(4, 4).min(0)[0].repeat(4) * (COUNTS > 0).reshape(2, 8).amin(1)[1]
        )
    ),
    "between two": lambda x: x.clamp(x.flip(1), x.tanh() + 1) + torch.sub(*x.aminmax(dim=1, keepdim=True)),
    "products with a sum": lambda x: torch.addcmul(x, x, x.tanh()) + torch.lerp(x, x.tanh(), x.sigmoid()),
    "columns": lambda x: (x.T.relu() * x.T.tanh() + nn.functional.gelu(x.T) / (1 + x.T.exp())).T,
    "a function of its own": lambda x: Straight.apply(x) * x,  # type: ignore[no-untyped-call]
    "nothing's norm": lambda x: x + (0 * x).norm(dim=1, keepdim=True),
}


def tower(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(X, 16), layer, nn.Linear(16, 16), layer, nn.Linear(16, 1))


ELEMENTWISE = ("ReLU", "Sigmoid", "Tanh", "GELU", "SiLU", "ELU", "LeakyReLU", "Softplus", "Hardtanh", "Mish",
               "Hardswish", "LogSigmoid", "PReLU")  # fmt: skip
CASES: dict[str, Callable[[], nn.Module]] = {
    **{name: lambda name=name: tower(getattr(nn, name)()) for name in ELEMENTWISE},  # type: ignore[misc]
    **{name: lambda name=name: Memory(name) for name in ("GRUCell", "LSTMCell", "GRU", "LSTM")},  # type: ignore[misc]
    "LayerNorm": lambda: tower(nn.LayerNorm(16)),
    "RMSNorm": lambda: tower(nn.RMSNorm(16)),
    "LayerNorm of a picture": lambda: AsPicture(nn.LayerNorm([4, 2, 3]), 24),
    "GroupNorm": lambda: AsPicture(nn.GroupNorm(2, 4), 24),
    "BatchNorm": lambda: AsPicture(nn.BatchNorm2d(4).eval(), 24),
    "MaxPool, overlapping": lambda: AsPicture(nn.MaxPool2d(3, 1, 1), 24),
    "MaxPool": lambda: AsPicture(nn.MaxPool2d(2, 1), 8),
    "MaxPool to a size": lambda: AsPicture(nn.AdaptiveMaxPool2d(1), 4),
    "Softmax": lambda: nn.Sequential(nn.Linear(X, 4), nn.Softmax(-1), nn.Linear(4, 1)),
    "LogSoftmax": lambda: nn.Sequential(nn.Linear(X, 4), nn.LogSoftmax(-1), nn.Linear(4, 1)),
    "attention": lambda: Attention(masked=False),
    "attention, masked": lambda: Attention(masked=True),
    "attention, masked, with its weights": lambda: Masked(masked=True),
    "transformer over a sequence": lambda: InSequence(attends=True),
    "a sequence": lambda: InSequence(attends=False),
    "GRU of two layers": lambda: Layers("GRU"),
    "LSTM of two layers, both ways": lambda: Layers("LSTM", bidirectional=True),
    **{name: lambda does=does: tower(Does(does)) for name, does in FUNCTIONS.items()},  # type: ignore[misc]
}


def explained(net: nn.Module, x: Tensor, baseline: Tensor, like: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(maps, change of the output) of captum's DeepLift with our rules.  like: what is traced, if not these."""
    from captum.attr import DeepLift

    class Traced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            traced = torch.cat([x, baseline]) if like is None else like
            self.graph = modules_of(lambda both: net(both)[:, 0], [traced])

        def forward(self, seen: Tensor) -> Tensor:
            y: Tensor = self.graph(seen) if len(seen) == 2 * len(x) else net(seen)[:, 0]
            return y

    with quietly():
        maps: Tensor = DeepLift(Traced()).attribute(x, baseline)
    with torch.no_grad():
        return maps, (net(x) - net(baseline))[:, 0]


@pytest.mark.parametrize("case", CASES)
def test_the_parts_add_up_to_the_change(case: str) -> None:
    net = CASES[case]().to(F64).requires_grad_(False)
    x, baseline = torch.randn(2, N, X, dtype=F64)
    x[0, :3] = baseline[0, :3]  # what does not differ has no part, and gives the others no share
    maps, change = explained(net, x, baseline)
    assert change.abs().median() > 1e-4 and (maps[0, :3] == 0).all()
    torch.testing.assert_close(maps.sum(1), change, rtol=1e-9, atol=1e-11)
    assert torch.backends.mha.get_fastpath_enabled() and torch.backends.mkldnn.enabled


@pytest.mark.parametrize("rows", [1, 3])
def test_a_batch_that_is_not_the_first_axis_is_told_from_one_that_is(rows: int) -> None:
    """Of 2 frames and baselines a sequence of 2 was halved itself."""
    for net in (InSequence(attends=True), tower(Does(FUNCTIONS["columns"]))):
        net = net.to(F64).requires_grad_(False)
        maps, change = explained(net, *torch.randn(2, rows, X, dtype=F64))
        torch.testing.assert_close(maps.sum(1), change, rtol=1e-9, atol=1e-11)


def test_a_batch_that_is_not_the_first_axis_is_found_in_frames_of_zeros() -> None:
    """Which stay what they are when they are halved."""
    net = tower(Does(FUNCTIONS["greatest as columns"])).to(F64).requires_grad_(False)
    x, baseline = torch.randn(2, N, X, dtype=F64)
    maps, change = explained(net, x, baseline, like=torch.zeros(2 * N, X, dtype=F64))
    torch.testing.assert_close(maps.sum(1), change, rtol=1e-9, atol=1e-11)


def test_what_is_traced_runs_in_another_order_in_memory() -> None:
    """In float32, oneDNN's convolutions order cells before channels; while an agent is traced it is off."""
    tall = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(72, 1))
    net = tall.requires_grad_(False)
    x, baseline = torch.randn(2, N, 12, 12, 4)
    maps, change = explained(nn.Sequential(Permuted(), net), x, baseline)
    torch.testing.assert_close(maps.flatten(1).sum(1), change, rtol=1e-3, atol=1e-5)


def test_a_step_that_goes_by_what_it_sees_is_refused_in_a_line() -> None:
    """It was torch's own traceback."""
    flags = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled, torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(UserError, match="leave deeplift out of --methods"):
        modules_of(lambda x: x if x.isfinite().all() else 0 * x, [torch.ones(2, X)])
    assert flags == (
        torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled, torch.backends.mha.get_fastpath_enabled()
    )  # fmt: skip


def test_a_function_of_one_number_has_its_secant_and_near_the_baseline_its_slope() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.SiLU(), nn.Linear(1, 1)).to(F64).requires_grad_(False)
    x = torch.tensor([[2.0], [1.0 + 1e-7], [1.0]], dtype=F64)
    baseline = torch.ones(3, 1, dtype=F64)
    maps, change = explained(net, x, baseline)
    torch.testing.assert_close(maps[:, 0], change, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("about_0", [False, True])
@pytest.mark.parametrize("act", [nn.Tanh(), nn.Sigmoid(), nn.SiLU(), nn.GELU(), nn.Softplus(), nn.LogSoftmax(1)])
def test_rounding_harms_no_part_however_near_a_number_is_to_its_baseline(act: nn.Module, about_0: bool) -> None:
    """A part over the difference of the input, in single precision and in double: rounding over a distance that is just
    not near (1e-4 of the number, once) was a thousandth of the slope, and more; about 0, where a sigmoid is .5 however
    far two numbers lie apart for their size, all of it."""
    draw = torch.Generator().manual_seed(0)
    base = torch.empty(2000, 4).uniform_(0.5, 2, generator=draw)
    x = base * (1 + torch.empty(2000, 4).uniform_(-14, -2, generator=draw).exp())
    if about_0:
        sizes = torch.empty(2000, 1).uniform_(-14, -2, generator=draw).exp()
        base, x = sizes * torch.randn(2, 2000, 4, generator=draw)
    net = nn.Sequential(nn.Identity(), act, nn.Linear(4, 1, bias=False)).requires_grad_(False)
    (single, _), (double, _) = (explained(net.to(t), x.to(t), base.to(t)) for t in (torch.float32, F64))
    slope_1, slope_2 = (maps.detach().double() / (x - base).double() for maps in (single, double))
    assert (slope_1 - slope_2).abs().max() < 6e-4 * slope_2.abs().max()


def fused_gru(inputs: Tensor, hidden: Tensor, h: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
    """The operation that torch has for a GRU cell on a GPU, which a CPU lacks."""
    a, b = ((gates + bias).chunk(3, 1) for gates, bias in zip((inputs, hidden), biases, strict=True))
    reset, update = (a[0] + b[0]).sigmoid(), (a[1] + b[1]).sigmoid()
    new = (a[2] + reset * b[2]).tanh()
    return (1 - update) * new + update * h, torch.empty_like(h)


def test_a_cell_that_is_one_operation_as_on_a_gpu_has_the_same_parts() -> None:
    """They were those of its gradient: 11 to 18 % off on an H100 and an H200."""
    net = Memory("GRUCell").to(F64).requires_grad_(False)
    cell = net.step
    assert isinstance(cell, nn.GRUCell)

    class OnGpu(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            h = x.new_full((len(x), 8), 0.3)
            gates = x @ cell.weight_ih.T, h @ cell.weight_hh.T
            after = torch.ops.aten._thnn_fused_gru_cell(*gates, h, cell.bias_ih, cell.bias_hh)[0]
            y: Tensor = net.out(after)
            return y

    x, baseline = torch.randn(2, N, X, dtype=F64)
    with torch.library._scoped_library("aten", "IMPL") as there:
        there.impl("_thnn_fused_gru_cell", fused_gru, "CPU")
        maps, change = explained(OnGpu(), x, baseline)
    torch.testing.assert_close((maps, change), explained(net, x, baseline))
