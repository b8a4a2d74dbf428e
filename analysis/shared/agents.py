"""Several agents, or the checkpoints of one, by short names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from agents.load import load_agent
from core import artefacts
from core.contracts import Agent, UserError


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each directory's path, or as many of the last parts as tell it from the others.

    UserError for a directory that is given twice."""
    parts = [Path(path).resolve().parts for path in paths]
    for own in parts:
        if parts.count(own) > 1:
            raise UserError(f"--agents names {Path(*own)} twice")
    out = []
    for own in parts:
        size = 1
        while sum(other[-size:] == own[-size:] for other in parts) > 1:
            size += 1
        out.append("/".join(own[-size:]))
    return out


def load(paths: Sequence[Path], checkpoints: bool, device: torch.device) -> dict[str, Agent]:
    """Agents by a short name; UserError if one is given twice, or no checkpoint is there to compare."""
    out: dict[str, Agent] = {}
    for path, name in zip(paths, short_names(paths), strict=True):
        files = [artefacts.WEIGHTS]
        if checkpoints:
            files = artefacts.files_of(path, "checkpoint_*.safetensors") + files
            if len(files) == 1:
                raise UserError(f"{path} has no checkpoints; train with --checkpoints, or leave the flag away")
        for file in files:
            label = name
            if file != artefacts.WEIGHTS:
                label += f" @ {int(Path(file).stem.rpartition('_')[2]):,}"
            out[label] = load_agent(path, device, file)
    return out
