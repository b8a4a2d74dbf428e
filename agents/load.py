"""The agent of a run directory, whatever kind it is; each kind is told by its description file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agents.adopted import DESCRIPTION as ADOPTED, load_adopted
from agents.policies import DESCRIPTION as POLICY, load_policy
from agents.recurrent import load_agent as load_recurrent
from agents.semantic import DESCRIPTION as SEMANTIC, load_semantic
from core.artefacts import WEIGHTS, read_manifest
from core.contracts import Agent, UserError

LOADERS: dict[str, Callable[..., Any]] = {
    SEMANTIC: load_semantic,  # which has an agent.json too
    "agent.json": load_recurrent,
    POLICY: load_policy,
    ADOPTED: load_adopted,
}


def load_agent(path: Path, device: torch.device | str = "cpu", name: str = WEIGHTS) -> Agent:
    """The agent of a run directory, in eval mode, frozen; name: its weights file (a checkpoint's, for instance).

    UserError if there is none in it, if it is half-written or misfits, or if it is a user's code that nobody agreed to
    run on this machine.
    """
    manifest = read_manifest(Path(path))
    kinds = [load for file, load in LOADERS.items() if file in manifest["files"]]
    if not kinds:
        raise UserError(f"{path} holds no agent (stage {manifest['stage']!r} wrote it)")
    agent: Agent = kinds[0](path, device, name)
    return agent
