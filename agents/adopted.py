"""Agents of users' own: a module with ``make_agent``, and weights from wherever they were trained.

A user's module has one function, ``make_agent(spec) -> torch.nn.Module``; what it returns keeps core.contracts.Agent
(``spec`` is set here).  It may have another, ``rename(name) -> str | None``: the module's name of a tensor of the
weights file, or None to leave that tensor out.  docs/bring-your-own.md has complete ones.

Weights are read without unpickling anything: safetensors, state dicts that ``torch.save`` wrote (``weights_only=True``;
of nested dicts the names are joined with dots), and ``policy.pth`` out of a zip of Stable-Baselines3.
"""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from core.artefacts import (
    ADOPTED,
    WEIGHTS,
    load_json,
    load_weights,
    read_manifest,
    save_weights,
    sha256,
    write_atomically,
    write_json,
)  # fmt: skip
from core.config import nearest
from core.contracts import Agent, EnvSpec, UserError
from core.files import bounded, read_bytes, tensors_of
from core.plugins import Source, agreed, agreed_source, copied_source, made
from envs.registry import renewed

DESCRIPTION = ADOPTED
SOURCE = "agent_module.py"  # the copy of the user's module in the run directory
WORLD_SOURCE = "world_module.py"  # that of the environment's, where this is the user's too
PARTS = ("points", "initial", "encode", "advance", "heads", "read", "replaced")
POLICY = "policy.pth"  # the state dict in a zip of Stable-Baselines3


def build(module: ModuleType, source: Source, spec: EnvSpec) -> Any:
    """What a user's ``make_agent`` makes for a world, in eval mode, frozen.  Raises UserError."""
    return made(module, "agent", source, spec, PARTS)


# Weights


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a weights file by name, on the CPU.  Raises UserError."""
    data = read_bytes(path, "weights")
    if Path(path).suffix == ".safetensors":
        tensors = tensors_of(data, path)
    else:
        tensors = dict(_tensors(_unpacked(path, data), ""))
    if not tensors:
        raise UserError(f"{path} holds no tensors")
    for name, x in tensors.items():
        if x.layout != torch.strided or x.is_quantized or x.is_complex() or x.is_meta:
            raise UserError(f"{path}: the tensor {name!r} is sparse, quantised, complex or without its numbers; save "
                            "dense ones of real numbers (to_dense(), dequantize())")  # fmt: skip
        if x.numel() * x.element_size() > x.untyped_storage().nbytes():
            raise UserError(f"{path}: the tensor {name!r} is larger than what the file holds of it")
    broken = [name for name, x in tensors.items() if x.is_floating_point() and not x.isfinite().all()]
    if broken:
        raise UserError(f"{path}: the tensor {broken[0]!r} has NaN or infinite values")
    return tensors


def _unpacked(path: Path, data: bytes) -> Any:
    """What ``torch.save`` put into a file, or into policy.pth of a zip; nothing but tensors and plain containers."""
    try:
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if POLICY in archive.namelist():
                    member = archive.getinfo(POLICY)
                    bounded(member.file_size, member.compress_size, path)
                    data = archive.read(member)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # of a file that is then refused, or read
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} holds pickled objects, which are never loaded; save the state dict alone: "
            "torch.save(agent.state_dict(), ...)"
        ) from None
    except UserError:
        raise
    except Exception as error:  # of whatever kind: torch knows no end of them
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{path} is no safetensors file, no state dict and no zip of Stable-Baselines3: {reason}"
        ) from error


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(part, f"{name}.{key}" if name else str(key))


def fill(agent: nn.Module, tensors: Mapping[str, Tensor], rename: Callable[[str], Any] | None, file: Path) -> None:
    """Put tensors into an agent, renamed; UserError for the first that is missing, left over or of another shape."""
    want = agent.state_dict()
    have: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        new = name if rename is None else rename(name)
        if new is None:
            continue
        called = f"{name!r}" if new == name else f"{name!r} (renamed {new!r})"
        if new not in want:
            raise UserError(
                f"{file}: the agent has no tensor {called}{nearest(str(new), want)}; rename(name) in its module maps "
                "the file's names to its own (None leaves one out)"
            )
        if new in have:
            raise UserError(f"{file}: two tensors are renamed {new!r}")
        if want[new].shape != tensor.shape:
            shapes = f"{list(tensor.shape)}; the agent's is {list(want[new].shape)}"
            raise UserError(f"{file}: the tensor {called} has shape {shapes}")
        have[new] = tensor
    for name in want:
        if name not in have:
            raise UserError(f"{file} has no tensor for the agent's {name!r}{nearest(name, tensors)}; see rename(name)")
    agent.load_state_dict(have, strict=True)


def fill_or_none(
    net: nn.Module, kind: str, module: ModuleType, tensors: Mapping[str, Tensor] | None, file: Path | None, where: Path
) -> None:
    """Put the tensors of a weights file into what the user's module at ``where`` made; without a file, UserError unless
    it has none.  kind: what it is, ``agent`` or ``world``."""
    if tensors is not None and file is not None:
        fill(net, tensors, getattr(module, "rename", None), file)
    elif own := list(net.state_dict()):
        raise UserError(f"{where}: the {kind} has tensors ({own[0]!r}), so it needs --weights")


# Run directories


def world_source(spec: EnvSpec) -> Source | None:
    """The user's module of a world, if it is one of a user's own.  Raises UserError."""
    kind, _, name = spec.env_id.partition("/")
    return agreed_source(name, str(spec.options["sha256"])) if kind == "module" else None


def save_adopted(agent: Any, source: Source, path: Path, weights: Mapping[str, str] | None = None) -> None:
    """Weights, the module and all that is needed to build the agent again.  weights: where they came from."""
    path, world = Path(path), world_source(agent.spec)
    write_atomically(path / SOURCE, source.text)
    if world is not None:
        write_atomically(path / WORLD_SOURCE, world.text)
    about = {"module": source.name, "source_sha256": source.sha256, "points": dict(agent.points), "weights": weights}
    write_json(path / DESCRIPTION, {**about, "spec": agent.spec.to_json()})
    save_weights(agent, path / WEIGHTS)


def load_adopted(path: Path, device: torch.device | str = "cpu", name: str = WEIGHTS) -> Agent:
    """The agent of a run directory, in eval mode, frozen.

    UserError if it is half-written, if one of its files is not the one that was written, or if nobody agreed on this
    machine to run the modules in it.
    """
    path = Path(path)
    if DESCRIPTION not in read_manifest(path)["files"]:
        raise UserError(f"{path} holds no adopted agent (it has no {DESCRIPTION}); see python -m agents.adopt --help")
    data = load_json(path, DESCRIPTION)
    if not isinstance(data, dict) or not {"module", "source_sha256", "spec"} <= data.keys():
        raise UserError(f"{path / DESCRIPTION} is not the description of an adopted agent; copy or adopt it again")
    spec = renewed(EnvSpec.from_json(data["spec"]))
    source = copied_source(path, SOURCE, str(data["module"]), str(data["source_sha256"]))
    if spec.env_id.startswith("module/"):
        agreed(copied_source(path, WORLD_SOURCE, spec.env_id.partition("/")[2], str(spec.options["sha256"])))
    agent = build(source.run(("make_agent",)), source, spec)
    load_weights(agent, path, name)
    out: Agent = agent.to(device)
    return out


def hash_of(path: Path) -> str:
    """Hex SHA-256 of a weights file."""
    return sha256(path)
