"""The simulator of any run directory that holds one, and several of one agent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from core.artefacts import WEIGHTS, read_manifest
from core.contracts import EnvSpec, UserError
from core.directions import fingerprint
from core.roll import Simulator
from generative import adopted, simulator


def load_simulator(path: Path, device: torch.device | str = "cpu", name: str = WEIGHTS) -> Simulator[Any]:
    """A trained simulator, or a world model of a user's own; frozen, in eval mode.  Raises UserError."""
    path = Path(path)
    if adopted.DESCRIPTION in read_manifest(path)["files"]:
        return adopted.load_adopted(path, device)
    return simulator.load_simulator(path, device, name)


def check_world(spec: EnvSpec, own: EnvSpec, what: str) -> None:
    """UserError unless ``what`` belongs to the simulator's world; which levels of it does not matter."""
    if set(spec.differences(own)) - {"options"}:
        raise UserError(f"{what} is of {spec.env_id}, the simulator of {own.env_id}")
    for name in sorted({*spec.settings, *own.settings}):
        theirs, ours = spec.options.get(name), own.options.get(name)
        if theirs != ours:
            raise UserError(f"{what} is of a world with {name} {theirs}, the simulator of one with {name} {ours}")


def load_ensemble(paths: Sequence[Path], device: torch.device | str = "cpu") -> list[Simulator[Any]]:
    """Simulators of one agent and world; UserError where there is none, one is of another agent or world, or one is
    there twice."""
    if not paths:
        raise UserError("--simulator names no directory")
    loaded: dict[str, Path] = {}
    found: list[Simulator[Any]] = []
    for path in paths:
        simulator = load_simulator(path, device)
        own = fingerprint(simulator)
        if own in loaded:
            raise UserError(f"--simulator {path} is the same as {loaded[own]}; the members of an ensemble differ")
        if found:
            check_world(simulator.world.spec, found[0].world.spec, str(path))
            ours, theirs = fingerprint(found[0].agent), fingerprint(simulator.agent)
            if ours != theirs:
                raise UserError(
                    f"--simulator {path} is around agent {theirs}, {paths[0]} around {ours}; the members of an "
                    "ensemble are of one agent"
                )
            frames = [one.world.initial_frames for one in (found[0], simulator)]
            if frames[0] != frames[1]:
                raise UserError(f"--simulator {path} reads {frames[1]} first frames, {paths[0]} {frames[0]}: they "
                                "cannot begin at the same starts")  # fmt: skip
        loaded[own] = path
        found.append(simulator)
    return found


def members_as_inputs(paths: Sequence[Path]) -> dict[str, Path]:
    """The members of an ensemble after the first, as inputs of a run: it is about the first, compared with these."""
    return {f"other_simulator_{i}": path for i, path in enumerate(paths[1:], 2)}
