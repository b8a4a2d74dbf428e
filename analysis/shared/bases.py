"""Bases of hidden and of world states by their kind, read once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from core.contracts import UserError
from core.directions import Basis, load_basis


def bases_in(
    path: Path | None, agent: str, device: torch.device, env_states: Path | None = None, simulator: str | None = None
) -> Callable[[str], Basis]:
    """kind -> basis of the hidden-states directory, and d_KIND -> that of the world-states one, each read once.

    agent, simulator: fingerprints that they must have been fitted on."""
    known: dict[str, Basis] = {}

    def basis_of(kind: str) -> Basis:
        if kind not in known:
            of_world = kind.startswith("d_")
            where, flag = (env_states, "--env_states") if of_world else (path, "--hidden_states")
            if where is None:
                raise UserError(f"{kind}:ID is a direction and needs {flag} DIR")
            basis = load_basis(where, kind.removeprefix("d_"), simulator if of_world else agent).to(device)
            if (basis.space == "d") != of_world:
                raise UserError(f"{where}: its {basis.kind} basis is one of {basis.space}; it does not go with {flag}")
            known[kind] = basis
        return known[kind]

    return basis_of
