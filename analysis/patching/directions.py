"""The directions that are patched: principal components, those that probes read, those of a basis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.shared.directions import fit_pca
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.directions import direction_ids, load_basis


class Directions(NamedTuple):
    """D directions, each on its own: a state's coordinate is ``read @ h``; ``h + x * move`` has x more of it."""

    names: list[str]
    read_DH: np.ndarray
    move_DH: np.ndarray


def pca_directions(h_NH: np.ndarray, k: int) -> Directions:
    """The first k principal components of the z-scored states; numbers that never change are left alone."""
    basis = fit_pca(h_NH, k, asked=f"--pca_size {k}")
    read_DH = (basis.project_HK / basis.std_H[:, None]).double().numpy().T
    move_DH = (basis.std_H * basis.lift_KH).double().numpy()
    return Directions(basis.names, read_DH, move_DH)


def probe_directions(path: Path, features: Sequence[str], agent: str) -> Directions:
    """The directions that the linear probes of a run of analysis.probes read.  Raises UserError."""
    artefacts.read_manifest(path, "probes")
    result = Result.load(path)
    names = list(result.notes["directions"])
    if result.notes["agent"] != agent or result.notes["states"] != "h":
        raise UserError(f"{path} read {result.notes['states']} of agent {result.notes['agent']}, not h of {agent}")
    for name in features:
        if name not in names:
            raise UserError(f"{path} has no probe of {name!r}{cli.nearest(name, names)}; it has: {', '.join(names)}")
    ids = [names.index(name) for name in features or names]
    move_DH = result.arrays["direction_move"][ids]
    ids = [i for i, move_H in zip(ids, move_DH, strict=True) if move_H.any()]  # what is not read has no direction
    read_DH, move_DH = (result.arrays[f"direction_{x}"][ids] for x in ("read", "move"))
    return Directions([names[i] for i in ids], read_DH, move_DH)


def basis_directions(path: Path, kind: str, names: Sequence[str], agent: str) -> Directions:
    """Directions of a fitted basis of h: those named, or all.  Raises UserError."""
    basis = load_basis(path, kind, agent)
    if basis.space != "h":
        raise UserError(f"{path}: the {kind} basis is of {basis.space}; a basis of h is needed")
    basis.check(ids := direction_ids(names, basis, "--direction_ids"))
    chosen = ids or list(range(basis.size))
    read_DH = (basis.project_HK / basis.std_H[:, None]).double().numpy().T[chosen]
    move_DH = (basis.std_H * basis.lift_KH).double().numpy()[chosen]
    return Directions([basis.names[i] for i in chosen], read_DH, move_DH)


def joined(parts: Sequence[Directions]) -> Directions:
    """All of them; UserError for none, or two of one name."""
    names = [name for part in parts for name in part.names]
    if not names:
        raise UserError("no direction to patch: give --pca_size, --probes or --basis")
    if len(set(names)) < len(names):
        raise UserError(f"two directions are called {next(n for n in names if names.count(n) > 1)!r}")
    return Directions(names, *(np.concatenate([part[i] for part in parts]) for i in (1, 2)))
