"""The directions of a change, and random ones in their place: isotropic, recorded, mixed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.contracts import UserError
from core.directions import Basis


def own_frame(basis: Basis, ids: Sequence[int]) -> Tensor:
    """Orthonormal rows [I, H] that span what changes of these directions move, the first along the first one."""
    q, r = torch.linalg.qr(basis.lift_KH[list(ids)].T)
    frame: Tensor = (q * torch.where(r.diagonal() < 0, -1.0, 1.0)).T.contiguous()
    return frame


def random_units(basis: Basis, count: int, generator: torch.Generator) -> Tensor:
    """Unit vectors [count, H] of the z-scored state space, uniform over all.

    Not only over those orthogonal to the tested direction: an arbitrary direction would not be one of their like and
    lie outside their band too often (8 dimensions: in 10 % of cases, not 5 %).
    """
    return random_frames(basis, 1, count, generator)[:, 0]


def random_frames(basis: Basis, size: int, count: int, generator: torch.Generator) -> Tensor:
    """Orthonormal frames [count, size, H] of the z-scored state space, uniform over all.  UserError where the hidden
    state has too few dimensions for random ones to differ."""
    like = basis.lift_KH
    if like.shape[1] < 2:
        raise UserError("random directions need a hidden state of at least 2 dimensions")
    draws = torch.randn(count, like.shape[1], size, generator=generator, dtype=like.dtype)
    q, r = torch.linalg.qr(draws)
    sign = torch.where(torch.diagonal(r, dim1=1, dim2=2) < 0, -1.0, 1.0)
    return (q * sign[:, None]).transpose(1, 2).contiguous().to(like.device)


def recorded_frames(h_NH: Tensor, basis: Basis, size: int, count: int, generator: torch.Generator) -> Tensor:
    """Orthonormal frames [count, size, H] of the z-scored state space that lie in the data: each spans ``size``
    differences between recorded states of different rows (episodes), as far as the basis sees them.  So they are in
    the span of the states and of the directions that they stand for, and have the states' covariance there.  UserError
    where the states do not vary in so many ways."""
    z_NH = (basis.project(h_NH) @ basis.lift_KH).cpu()
    n = len(z_NH)
    if torch.linalg.matrix_rank((z_NH - z_NH.mean(0)).double(), rtol=1e-5) < size:
        raise UserError(f"the agent's states at {n} starts vary in too few ways for controls of {size} direction(s)")
    frames = torch.zeros(count, size, z_NH.shape[1], dtype=z_NH.dtype)
    missing = torch.arange(count)
    while len(missing):  # states that are alike, or on one line, span nothing: drawn again
        first = torch.randint(n, (len(missing), size), generator=generator)
        other = (first + torch.randint(1, n, first.shape, generator=generator)) % n
        q, r = torch.linalg.qr((z_NH[first] - z_NH[other]).transpose(1, 2))  # [., H, size]
        size_of = torch.diagonal(r, dim1=1, dim2=2)
        frames[missing] = (q * size_of.sign()[:, None]).transpose(1, 2)
        missing = missing[(size_of.abs() <= 1e-5).any(1)]
    return frames.to(h_NH.device)


def mixed_frames(basis: Basis, sizes: Sequence[int], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Orthonormal frames [size, H] of the z-scored state space, one per entry of ``sizes`` (together at most K): the
    basis turned at random (Haar), so that every direction is an equal mixture of its own."""
    size = basis.lift_KH.shape[0]
    turn, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    turn_KK = (turn * torch.diagonal(r).sign()).to(basis.lift_KH)
    frames = []
    for rows_IH in (turn_KK[: sum(sizes)] @ basis.lift_KH).split(list(sizes)):
        q, r = torch.linalg.qr(rows_IH.T)
        frames.append((q * torch.diagonal(r).sign()).T)
    return tuple(frames)
