"""The memory linearised at a point: eigenvalues, time constants, periods, stability."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.dynamics.fixed_points import settle
from analysis.dynamics.recurrence import Recurrence


class Modes(NamedTuple):
    """Eigenmodes at one point, the slowest to decay (or fastest to grow) first."""

    value_M: np.ndarray  # complex eigenvalues
    right_HM: np.ndarray  # complex, unit columns: where a mode is
    left_MH: np.ndarray  # complex, left @ right = 1: what excites it


def modes(jacobian_HH: np.ndarray) -> Modes:
    """Eigenvalues and eigenvectors of one Jacobian, largest modulus first.

    ``left`` are rows of the pseudo-inverse of ``right``: the inverse, unless the Jacobian is defective.
    """
    value_M, right_HM = np.linalg.eig(jacobian_HH)
    order = np.lexsort((-value_M.imag, -value_M.real, -np.abs(value_M).round(12)))
    value_M, right_HM = value_M[order], right_HM[:, order]
    return Modes(value_M, right_HM, np.linalg.pinv(right_HM))


def time_constant(value: complex) -> float:
    """Steps in which a mode shrinks (modulus below 1) or grows (above) by a factor e; infinite at exactly 1."""
    size = abs(value)
    if size == 0:
        return 0.0
    rate = abs(float(np.log(size)))
    return 1 / rate if rate > 0 else float("inf")


def period(value: complex) -> float:
    """Steps of one turn of an oscillating mode (2 for a negative real one); infinite for a positive real one."""
    angle = abs(float(np.angle(value)))
    return 2 * float(np.pi) / angle if angle > 1e-9 else float("inf")


def stability(value_M: np.ndarray) -> str:
    """stable: every mode shrinks; unstable: every mode grows; saddle: some of each; marginal: one stays as it is."""
    size = np.abs(value_M)
    if (np.abs(size - 1) < 1e-9).any():
        return "marginal"
    return "stable" if (size < 1).all() else "unstable" if (size > 1).all() else "saddle"


def attractor(value_M: np.ndarray, slow_steps: float) -> str:
    """What slow modes (decaying, or growing as slowly) make of a point: point, line, plane, or how many dimensions.

    Counted where no mode grows faster than that; else ``none``.
    """
    slow = np.array([time_constant(v) >= slow_steps for v in value_M])
    if ((np.abs(value_M) > 1) & ~slow).any():
        return "none"
    return {0: "point", 1: "line", 2: "plane"}.get(int(slow.sum()), f"{int(slow.sum())} slow dimensions")


def persistence(
    memory: Recurrence, e_E: Tensor, h_H: Tensor, mode: Modes, m: int, recorded_NH: Tensor, steps: int
) -> float:
    """Share of a displacement along a real mode that is left after ``steps`` steps of the full, non-linear map.

    The state is moved both ways by one standard deviation of the recorded states' coordinate along the mode.  A
    linear map gives eigenvalue ** steps; a line attractor gives about 1 at any distance on the line.
    """
    right_H, left_H = (
        torch.from_numpy(np.ascontiguousarray(v.real)).to(h_H) for v in (mode.right_HM[:, m], mode.left_MH[m])
    )
    spread = (recorded_NH @ left_H).std()
    moved = torch.stack([h_H + s * spread * right_H for s in (1, -1)] + [h_H])
    after = settle(memory, e_E.expand(len(moved), -1), moved, steps)
    # The undisturbed run beside them: a slow point drifts by itself.
    left = ((after[:2] - after[2]) @ left_H) / (spread * torch.tensor([1.0, -1.0]).to(h_H))
    return float(left.mean())
