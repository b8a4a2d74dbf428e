"""bfloat16 only where it is faster: a device without arithmetic for it emulates it, ten times slower than float32."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, TypeVar

import torch

from core.contracts import UserError

C = TypeVar("C")
OF_ITS_OWN = ("avx512_bf16", "amx_bf16", "bf16")  # of CPUs: x86, x86 with matrix units, Arm


def native_bf16(device: str) -> bool:
    """Whether this machine's CPU, or its GPU, has arithmetic for bfloat16."""
    if device.startswith("cuda"):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    can = torch.cpu.get_capabilities()
    return any(can.get(name) for name in OF_ITS_OWN)


def settled(config: C, by_preset: bool) -> C:
    """A stage's config in which ``bf16`` (of itself or of a part) is on where that is native.  by_preset: a preset asks
    for it, which gives way to float32 and says so; a user who asks is told what it costs, or of a GPU refused."""
    device = getattr(config, "device", "cpu")
    of = "GPU" if device.startswith("cuda") else "CPU"
    missing = of == "GPU" and not torch.cuda.is_available()  # which is refused where it is asked for
    if not _asks(config) or missing or native_bf16(device):
        return config
    if by_preset:
        print(f"note: this {of} has no bfloat16 arithmetic, which the preset asks for: in float32", file=sys.stderr)
        return _without(config)
    if of == "GPU":
        raise UserError("--bf16: this GPU has no bfloat16; train without it")
    print("note: this CPU only emulates bfloat16, many times slower than float32 (--no-bf16)", file=sys.stderr)
    return config


def _parts(config: Any) -> dict[str, Any]:
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}


def _asks(config: Any) -> bool:
    return getattr(config, "bf16", False) is True or any(map(_asks, _parts(config).values()))


def _without(config: Any) -> Any:
    own = {"bf16": False} if hasattr(config, "bf16") else {}
    return dataclasses.replace(config, **own, **{name: _without(part) for name, part in _parts(config).items()})
