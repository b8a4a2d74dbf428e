"""The directions of a change, and random ones in their place: isotropic, recorded, mixed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.contracts import UserError
from core.directions import Basis


def own_frame(basis: Basis, ids: Sequence[int]) -> Tensor:
    """Orthonormal rows [I, H] that span what changes of these directions move, the first along the first one."""
    return orthonormal(basis.lift_KH[list(ids)].T)[0].contiguous()


def orthonormal(columns_HI: Tensor) -> tuple[Tensor, Tensor]:
    """(orthonormal rows [..., I, H] that span the columns [..., H, I], the first along the first one; how much of each
    column is new [..., I]).  Of normal columns they are uniform over all frames (Mezzadri 2007)."""
    q, r = torch.linalg.qr(columns_HI)
    new_I = torch.diagonal(r, dim1=-2, dim2=-1)
    return (q * torch.where(new_I < 0, -1.0, 1.0)[..., None, :]).transpose(-2, -1), new_I.abs()


def random_frames(basis: Basis, size: int, count: int, generator: torch.Generator) -> Tensor:
    """Orthonormal frames [count, size, H] of the z-scored state space, uniform over all.  UserError where the hidden
    state has too few dimensions for random ones to differ.

    Not only over those orthogonal to the tested direction: an arbitrary direction would not be one of their like and
    lie outside their band too often (8 dimensions: in 10 % of cases, not 5 %).
    """
    like = basis.lift_KH
    if like.shape[1] < 2:
        raise UserError("random directions need a hidden state of at least 2 dimensions")
    draws = torch.randn(count, like.shape[1], size, generator=generator, dtype=like.dtype)
    return orthonormal(draws)[0].contiguous().to(like.device)


def recorded_frames(h_NH: Tensor, basis: Basis, size: int, count: int, generator: torch.Generator) -> Tensor:
    """Orthonormal frames [count, size, H] of the z-scored state space that lie in the data: each spans ``size``
    differences between recorded states of different rows (episodes), as far as the basis sees them.  So they are in
    the span of the states and of the directions that they stand for, and have the states' covariance there.  UserError
    where the states do not vary in so many ways."""
    require_varied(h_NH, basis, size)
    z_NH = (basis.project(h_NH) @ basis.lift_KH).cpu()
    n = len(z_NH)
    frames = torch.zeros(count, size, z_NH.shape[1], dtype=z_NH.dtype)
    missing = torch.arange(count)
    while len(missing):  # states that are alike, or on one line, span nothing: drawn again
        first = torch.randint(n, (len(missing), size), generator=generator)
        other = (first + torch.randint(1, n, first.shape, generator=generator)) % n
        frames[missing], new = orthonormal((z_NH[first] - z_NH[other]).transpose(1, 2))
        missing = missing[(new <= 1e-5).any(1)]
    return frames.to(h_NH.device)


def require_varied(h_NH: Tensor, basis: Basis, size: int) -> None:
    """UserError where these states do not vary in ``size`` ways that the basis sees."""
    z_NH = basis.project(h_NH) @ basis.lift_KH
    if torch.linalg.matrix_rank((z_NH - z_NH.mean(0)).double().cpu(), rtol=1e-5) < size:
        raise UserError(
            f"the agent's states at {len(h_NH)} starts vary in too few ways for controls of {size} direction(s); "
            "give more --starts (or --choosing_starts), or change fewer directions"
        )


def mixed_frames(basis: Basis, sizes: Sequence[int], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Orthonormal frames [size, H] of the z-scored state space, one per entry of ``sizes`` (together at most K): the
    basis turned at random (Haar), so that every direction is an equal mixture of its own."""
    size = basis.lift_KH.shape[0]
    turn_KK = orthonormal(torch.randn(size, size, generator=generator, dtype=torch.float64))[0].T.to(basis.lift_KH)
    return tuple(orthonormal(rows.T)[0] for rows in (turn_KK[: sum(sizes)] @ basis.lift_KH).split(list(sizes)))
