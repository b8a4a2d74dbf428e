"""Fixed points of the memory under a constant input: where h stays as it is, and where it settles."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from analysis.dynamics.recurrence import Recurrence

FIXED = 1e-8  # speed below which a point counts as fixed, rms standard deviations a step (in float64)
LOST = 10.0  # a search that leaves the recorded states by so many standard deviations is given up


class Search(NamedTuple):
    """Where searches for a fixed point ended, a row a start."""

    h_BH: Tensor
    speed_B: Tensor  # rms standard deviations a step
    settled_B: Tensor  # bool: a local minimum of the speed (0 or not); false: out of iterations or lost


def apart(a: Tensor, b: Tensor, std_H: Tensor) -> Tensor:
    """How far states [..., H] lie apart, [...]: rms standard deviations."""
    return ((a - b) / std_H).square().mean(-1).sqrt()


def search(memory: Recurrence, e_BE: Tensor, h_BH: Tensor, std_H: Tensor, iterations: int) -> Search:
    """Minimise the speed |F(h; e) - h| from every start by Levenberg-Marquardt, on z-scored states.

    Finds repelling points as well as attracting ones.  Give float64: the gradient's floor decides what is fixed.
    """
    h_all, speed_all = h_BH.clone(), torch.zeros(len(h_BH), dtype=h_BH.dtype, device=h_BH.device)
    settled_all = torch.zeros(len(h_BH), dtype=torch.bool, device=h_BH.device)
    eye = torch.eye(h_BH.shape[1], dtype=h_BH.dtype, device=h_BH.device)
    on_N = torch.arange(len(h_BH), device=h_BH.device)  # searches that go on
    e, start, h = e_BE, h_BH, h_BH
    damping = torch.full((len(h), 1, 1), 1e-2, dtype=h.dtype, device=h.device)

    after, jacobian = memory.with_jacobian(e, h)
    speed = apart(after, h, std_H)
    for _ in range(iterations):
        residual = (after - h) / std_H
        slope = (jacobian - eye) * std_H / std_H[:, None]
        gradient = torch.einsum("bij,bi->bj", slope, residual)
        # A local minimum that is no fixed point: the speed is far above what its slope could still take away.
        settled = (speed < FIXED) | (gradient.square().mean(1).sqrt() < 1e-6 * speed)
        lost = ((h - start) / std_H).abs().amax(1) > LOST
        settled_all[on_N], h_all[on_N], speed_all[on_N] = settled & ~lost, h, speed
        goes_on = ~(settled | lost)
        if not goes_on.any():
            break
        if not goes_on.all():
            on_N, e, start, h, after = (x[goes_on] for x in (on_N, e, start, h, after))
            jacobian, speed, damping, slope, gradient = (
                x[goes_on] for x in (jacobian, speed, damping, slope, gradient)
            )
        normal = slope.transpose(1, 2) @ slope
        move = solve(normal + damping * eye, -gradient) * std_H
        tried_after, tried_jacobian = memory.with_jacobian(e, h + move)
        tried = apart(tried_after, h + move, std_H)
        better = tried < speed
        damping = torch.where(better[:, None, None], damping * 0.2, damping * 5).clamp(1e-14, 1e8)
        h = torch.where(better[:, None], h + move, h)
        after = torch.where(better[:, None], tried_after, after)
        jacobian = torch.where(better[:, None, None], tried_jacobian, jacobian)
        speed = torch.where(better, tried, speed)
    else:
        h_all[on_N], speed_all[on_N] = h, speed
    return Search(h_all, speed_all, settled_all)


def on_whole(memory: Recurrence, e_BE: Tensor, found: Search, std_H: Tensor) -> Search:
    """What a search found, with its speeds at the nearest states that there are: of whole numbers (a counter of steps)
    the map sees no others, and between two of them it would seem to stand still."""
    if not memory.whole_S.any():
        return found
    h_BH = torch.where(memory.whole_S, found.h_BH.round(), found.h_BH)
    with torch.no_grad():
        speed_B = apart(memory(e_BE, h_BH), h_BH, std_H)
    return Search(h_BH, speed_B, found.settled_B)


def solve(a_BHH: Tensor, b_BH: Tensor) -> Tensor:
    """x of a x = b, one system after the other: torch's batched solve fails on several CPU threads beyond 150 unknowns
    (pytorch/pytorch#142815: "Pivots given to lu_solve")."""
    return torch.stack([torch.linalg.solve(a_HH, b_H) for a_HH, b_H in zip(a_BHH, b_BH, strict=True)])


def distinct(h_NH: Tensor, speed_N: Tensor, std_H: Tensor, merge: float) -> list[int]:
    """Rows that differ by more than ``merge`` (rms standard deviations), the slowest of each neighbourhood."""
    kept: list[int] = []
    for n in torch.argsort(speed_N, stable=True).tolist():
        gaps = [float(apart(h_NH[n], h_NH[k], std_H)) for k in kept]
        if not gaps or min(gaps) > merge:
            kept.append(n)
    return kept


def settle(memory: Recurrence, e_BE: Tensor, h_BH: Tensor, steps: int) -> Tensor:
    """The states after ``steps`` steps of a constant input."""
    with torch.no_grad():
        for _ in range(steps):
            h_BH = memory(e_BE, h_BH)
    return h_BH
