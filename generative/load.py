"""The simulator of any run directory that holds one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from core.artefacts import WEIGHTS, read_manifest
from core.roll import Simulator
from generative import adopted, simulator


def load_simulator(path: Path, device: torch.device | str = "cpu", name: str = WEIGHTS) -> Simulator[Any]:
    """A trained simulator, or a world model of a user's own; frozen, in eval mode.  Raises UserError."""
    path = Path(path)
    if adopted.DESCRIPTION in read_manifest(path)["files"]:
        return adopted.load_adopted(path, device)
    return simulator.load_simulator(path, device, name)
