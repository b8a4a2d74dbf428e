"""The pretended GPU refuses what a GPU refuses, and nothing else; what computes on one is float32 there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from core import config as cli
from tests.pretend_gpu import pretended


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with pretended():
        yield


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(3),
        lambda x: x.scatter(0, torch.tensor([0]), 1.0),
        lambda x: torch.ones(3)[x.long() * 0],
        lambda x: torch.where(torch.ones(3) > 0, x, x),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: torch.nn.Linear(3, 3)(x),
        lambda x: x.numpy(),
    ],
)
def test_both_devices_together_are_refused(mixed: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        mixed(torch.zeros(3, device="cuda"))
    with torch.no_grad():
        mixed(torch.zeros(3))


def test_results_are_where_their_operands_are() -> None:
    x, here = torch.arange(3.0, device="cuda"), torch.ones(3)
    for y in (x + 1, x * torch.tensor(2.0), x[torch.tensor([1, 2])], x.new_zeros(2), torch.zeros_like(x), x.data,
              torch.nn.Parameter(x), here.to(x), here.to("cuda"), torch.tensor([1.0], device=x.device),
              torch.func.vmap(lambda row: row + row.new_ones(1))(x[:, None])):  # fmt: skip
        assert y.is_cuda and y.device == torch.device("cuda", 0)
    for y in (x.cpu(), x.cpu() + here, x.to("cpu"), here.clone()):
        assert not y.is_cuda and y.device == torch.device("cpu")
    assert torch.equal(x.cpu(), torch.arange(3.0)) and x.is_cuda


def test_modules_gradients_and_optimisers() -> None:
    layer = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).to("cuda")
    optimiser = torch.optim.Adam(layer.parameters(), fused=True)
    before = layer.weight.detach().clone()
    layer(torch.ones(2, 3, 8, 8, device="cuda")).sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.is_cuda
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimiser.step()
    assert layer.weight.is_cuda and copy.deepcopy(layer).weight.is_cuda and not torch.equal(before, layer.weight)
    generator = torch.Generator("cuda").manual_seed(0)
    assert torch.rand(2, generator=generator, device=generator.device).is_cuda


def test_float32_is_float32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch lets convolutions round to TF32: on an H100 that made gradients through the world alone, a difference of
    two passes, mostly rounding."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert cli.device_of("cpu").type == "cpu" and torch.backends.cudnn.allow_tf32
    assert cli.device_of("cuda").type == "cuda"
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
