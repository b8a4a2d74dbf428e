"""A GPU that is pretended: tensors on "cuda" lie in the machine's memory, and what mixes them with others is refused,
as on a GPU.

So whether a stage puts everything where it computes is tested where there is no GPU; what a real one computes is not.
Tensors are marked by their storage, which views, parameters and gradients share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
ANYWHERE = {"aten::_to_copy", "aten::copy_", "aten::lift_fresh"}  # tensors of several devices are let in
FACTORIES = (
    "zeros", "ones", "full", "empty", "rand", "randn", "randint", "randperm", "arange", "linspace", "eye",
)  # fmt: skip
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}  # by indices on the CPU too


def marked(x: torch.Tensor) -> bool:
    """Whether a tensor lies on the pretended GPU."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):  # type: ignore[attr-defined]
        x = torch._C._functorch.get_unwrapped(x)  # type: ignore[attr-defined]
    return hasattr(x.untyped_storage(), "pretended")


def open_to_both(x: torch.Tensor) -> bool:
    return hasattr(x.untyped_storage(), "anywhere")


def mark(x: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().pretended = True  # type: ignore[attr-defined]
    return x


def is_gpu(device: Any) -> bool:
    return device is not None and not isinstance(device, int) and torch.device(device).type == "cuda"


class Generator(torch.Generator):
    """A generator of the CPU or of the pretended GPU."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = super().__new__(cls)
        made.on = GPU if is_gpu(device) else CPU
        return made

    device = property(lambda self: self.on)  # type: ignore[assignment]


class Apart(TorchDispatchMode):
    """Refuses operations on tensors of both devices, and puts results where their operands are."""

    asked = 0  # calls of FACTORIES that are under way

    def asking(self, real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """One of FACTORIES, by which a caller in Python says where its tensor is to be."""

        def make(*args: Any, **kwargs: Any) -> torch.Tensor:
            self.asked += 1
            try:
                return real(*args, **kwargs)
            finally:
                self.asked -= 1

        return make

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func._schema.name
        told = kwargs.get("device")
        if told is not None:
            kwargs["device"] = CPU
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        # Of a tensor on the pretended GPU, C++ asks for the CPU; callers in Python go by Tensor.to, which sees to it.
        here = is_gpu(told) or any(map(marked, tensors))
        if name not in ANYWHERE:
            self._check(name, args, tensors, here)
        out = func(*args, **kwargs)
        if name == "aten::copy_":
            return out
        # What C++ or a traced graph makes from nothing (zeros for no gradient) or holds: it does not say where that is.
        made = name == "aten::lift_fresh_copy" or (not tensors and not self.asked)
        nowhere = made or any(map(open_to_both, tensors))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and here:
                mark(x)
            elif isinstance(x, torch.Tensor) and nowhere:
                x.untyped_storage().anywhere = True  # type: ignore[attr-defined]
        return out

    @staticmethod
    def _check(name: str, args: Any, tensors: list[torch.Tensor], here: bool) -> None:
        if name in INDEXED and marked(args[0]):
            tensors = [x for x in tensors if not any(x is i for i in args[1] if i is not None)]
        tensors = [x for x in tensors if x.ndim and not open_to_both(x)]
        if here and not all(map(marked, tensors)):
            shapes = [(tuple(x.shape), "cuda" if marked(x) else "cpu") for x in tensors]
            raise RuntimeError(f"{name}: Expected all tensors to be on the same device, but got {shapes}")


def _moving(real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Tensor.to, which C++ would leave undone where a tensor already lies in the machine's memory."""

    def to(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        where, dtypes = kwargs.pop("device", None), []
        for a in args:
            if isinstance(a, torch.Tensor):
                where = a.device
                dtypes.append(a.dtype)
            elif isinstance(a, torch.dtype):
                dtypes.append(a)
            elif isinstance(a, (str, torch.device)):
                where = a
        kwargs.pop("non_blocking", None)
        out = real(x, *dtypes, **kwargs) if dtypes or kwargs else x
        if where is None or is_gpu(where) == marked(x):
            return out
        out = out.clone() if out.untyped_storage()._cdata == x.untyped_storage()._cdata else out
        if is_gpu(where):
            return mark(out)
        vars(out.untyped_storage()).pop("pretended", None)
        return out

    return to


def _made(real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch.tensor and as_tensor."""

    def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        out = real(data, *args, **kwargs)
        return out if device is None else out.to(device)

    return make


def _read(real: Callable[..., Any]) -> Callable[..., Any]:
    def numpy(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if marked(x):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        return real(x, *args, **kwargs)

    return numpy


def _module_to(real: Callable[..., Any]) -> Callable[..., Any]:
    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        devices = [a for a in (*args, kwargs.get("device")) if isinstance(a, (str, torch.device))]
        rest = [a for a in args if not isinstance(a, (str, torch.device))]
        if rest:
            real(module, *rest)
        for device in devices:
            for x in [*module.parameters(), *module.buffers()]:
                x.data = x.data.to(device)
        return module

    return to


@contextlib.contextmanager
def pretended() -> Iterator[None]:
    """Inside, torch sees one GPU."""
    where, new = torch.Tensor.device.__get__, torch.Tensor.new_tensor  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "is_available": lambda: True, "device_count": lambda: 1, "set_device": lambda device: None,
            "_lazy_init": lambda: None, "is_bf16_supported": lambda including_emulation=True: True,
            "get_rng_state": lambda device=None: torch.get_rng_state(), "synchronize": lambda device=None: None,
            "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
            "get_device_name": lambda device=None: "a pretended GPU",
        }.items():  # fmt: skip
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch.Tensor, "device", property(lambda x: GPU if marked(x) else where(x)))
        patch.setattr(torch.Tensor, "new_tensor", lambda x, data, **more: new(x, data, **more).to(x.device))
        patch.setattr(torch.Tensor, "is_cuda", property(marked))
        patch.setattr(torch.Tensor, "to", _moving(torch.Tensor.to))
        patch.setattr(torch.Tensor, "cpu", lambda x: x.to("cpu"))
        patch.setattr(torch.Tensor, "cuda", lambda x: x.to("cuda"))
        patch.setattr(torch.Tensor, "numpy", _read(torch.Tensor.numpy))
        patch.setattr(torch.nn.Module, "to", _module_to(torch.nn.Module.to))
        patch.setattr(torch, "tensor", _made(torch.tensor))
        patch.setattr(torch, "as_tensor", _made(torch.as_tensor))
        patch.setattr(torch, "Generator", Generator)
        autocast = torch.autocast
        patch.setattr(
            torch,
            "autocast",
            lambda device, *args, **more: autocast("cpu" if is_gpu(device) else device, *args, **more),
        )
        apart = Apart()
        for name in FACTORIES:
            patch.setattr(torch, name, apart.asking(getattr(torch, name)))
        with apart:
            yield
