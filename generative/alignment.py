"""A frame's blocks moved by whole pixels, with a gradient for how far.

What a game shows next is mostly what it shows now, somewhere else.  A gather of whole pixels copies it without blur,
but has no gradient with respect to the shift.  It is given that of the expectation over the shift that was taken and
its neighbours, under the probabilities of the shifts (straight-through; Bengio et al. 2013, arXiv:1308.3432).

Frames are planes here, [N, C, 64, 64]; a block is 4 x 4 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from generative.nets import FRAME, PATCH

SIDE = FRAME[0]
BLOCKS = SIDE // PATCH  # along a side


class Shifts(NamedTuple):
    """Logits of the whole-pixel shifts of every block along each axis, [N, 16, 16, 2 * reach + 1]; the middle one is no
    shift.  A block that is shifted by (y, x) shows what stood y pixels below and x to the right of it."""

    rows: Tensor
    columns: Tensor

    @property
    def likeliest(self) -> tuple[Tensor, Tensor]:
        """int64 [N, 16, 16] each, in pixels."""
        row, column = (x.argmax(-1) - x.shape[-1] // 2 for x in self)
        return row, column


def to_blocks(planes: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Planes [N, C, 64, 64] -> maps [N, 16 * C, 16, 16], channels last in memory."""
    n, channels = planes.shape[:2]
    apart = planes.reshape(n, channels, BLOCKS, PATCH, BLOCKS, PATCH).permute(0, 2, 4, 1, 3, 5)
    flat = apart.to(dtype or planes.dtype, memory_format=torch.contiguous_format)
    return flat.reshape(n, BLOCKS, BLOCKS, -1).permute(0, 3, 1, 2)


def to_planes(blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """``to_blocks`` undone."""
    n, size = blocks.shape[:2]
    channels = size // PATCH**2
    apart = blocks.permute(0, 2, 3, 1).reshape(n, BLOCKS, BLOCKS, channels, PATCH, PATCH).permute(0, 3, 1, 4, 2, 5)
    return apart.to(dtype, memory_format=torch.contiguous_format).reshape(n, channels, SIDE, SIDE)


def moved(planes: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Every block at its shift, int64 [N, 16, 16] each; beyond the frame's edge its pixels are repeated."""
    n = len(planes)
    at = torch.arange(SIDE, device=planes.device)

    def source(shift: Tensor, own: Tensor) -> Tensor:
        whole = shift[:, :, None, :, None] + own
        return whole.clamp(0, SIDE - 1)

    y = source(row, at.reshape(BLOCKS, PATCH, 1, 1))
    x = source(column, at.reshape(BLOCKS, PATCH))
    index = (y * SIDE + x).reshape(n, 1, -1).expand(-1, planes.shape[1], -1)
    return planes.flatten(2).gather(2, index).unflatten(2, (SIDE, SIDE))


def share_of_neighbours(logits: Tensor, shift: Tensor) -> Tensor:
    """Probabilities [N, 16, 16, 3] of a shift and of the ones before and after it, among these; 0 beyond the reach."""
    last = logits.shape[-1] - 1
    at = (shift + last // 2)[..., None] + torch.arange(-1, 2, device=logits.device)
    near = logits.gather(-1, at.clamp(0, last))
    return near.masked_fill((at < 0) | (at > last), -torch.inf).softmax(-1)


def expected(planes: Tensor, shifts: Shifts, row: Tensor, column: Tensor) -> Tensor:
    """The expectation of every block over the 3 x 3 shifts around one: the soft form, by whose gradient the logits are
    moved."""
    y, x = share_of_neighbours(shifts.rows, row), share_of_neighbours(shifts.columns, column)
    out = torch.zeros_like(planes)
    for i in range(3):
        for j in range(3):
            share = (y[..., i] * x[..., j]).repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
            out = out + share[:, None] * moved(planes, row + i - 1, column + j - 1)
    return out


def align(planes: Tensor, shifts: Shifts) -> Tensor:
    """Every block at its likeliest shift.  Backward, a gradient passes to the frame as through this copy, and to the
    logits as through ``expected``."""
    row, column = shifts.likeliest
    copy = moved(planes, row, column)
    if torch.is_grad_enabled() and (shifts.rows.requires_grad or shifts.columns.requires_grad):
        soft = expected(planes.detach(), shifts, row, column)
        copy = copy + (soft - soft.detach())
    return copy


def pooled(x: Tensor, size: int) -> Tensor:
    """Means over squares of pixels, [..., H, W] -> [..., H / size, W / size]; by products, which are faster than
    pooling."""

    def averaging(side: int) -> Tensor:
        return torch.eye(side // size, dtype=x.dtype, device=x.device).repeat_interleave(size, 1) / size

    return averaging(x.shape[-2]) @ (x @ averaging(x.shape[-1]).T)


def gaps_at_shifts(last: Tensor, now: Tensor, reach: tuple[int, int], every: int = 1) -> Iterator[Tensor]:
    """Absolute differences [N, H, W] of ``now`` [N, H, W] from ``last`` at every shift, row by row of shifts.

    Beyond its edge the pixels of ``last`` are repeated.  every: pixels of ``last`` from one of ``now`` to the next.
    """
    height, width = last.shape[1:]
    padded = F.pad(last[:, None], (reach[1], reach[1], reach[0], reach[0]), mode="replicate")[:, 0]
    for y in range(2 * reach[0] + 1):
        for x in range(2 * reach[1] + 1):
            yield (padded[:, y : y + height : every, x : x + width : every] - now).abs()


def shift_costs(last: Tensor, now: Tensor, reach: tuple[int, int]) -> Tensor:
    """Mean absolute differences [N, 16, 16, rows, columns] of every block of the frames ``now`` from ``last`` at every
    shift; of the mean over their channels."""
    gaps = gaps_at_shifts(last.mean(1), now.mean(1), reach)
    return torch.stack([pooled(gap, PATCH) for gap in gaps], -1).unflatten(-1, (2 * reach[0] + 1, 2 * reach[1] + 1))


def coarse_costs(last: Tensor, now: Tensor, reach: tuple[int, int]) -> Tensor:
    """``shift_costs`` at half the resolution, of every second shift: maps [N, K, 16, 16].  Where parts of a frame came
    from is hard to read off two frames by small convolutions, and plain here."""
    last, now = (pooled(x.mean(1), 2) for x in (last, now))
    gaps = gaps_at_shifts(last, now, (reach[0] // 2, reach[1] // 2))
    return pooled(torch.stack(list(gaps), 1), PATCH // 2)


def whole_odds(last: Tensor, now: Tensor, reach: tuple[int, int], scale: Tensor) -> Tensor:
    """How the frames ``now`` as wholes have moved from ``last``: the logarithms of the shares of all shifts, then of
    those of rows and of columns, [N, rows * columns + rows + columns].

    The shares are a softmax of the mean absolute differences at every shift, of every second pixel of every second row
    (all of the earlier frame), of the mean over channels; scale: how many nats a difference of 1 is worth.
    """
    gaps = gaps_at_shifts(last.mean(1), now.mean(1)[:, ::2, ::2], reach, every=2)
    odds = (-scale * torch.stack([gap.mean((1, 2)) for gap in gaps], -1)).log_softmax(-1)
    each = odds.unflatten(-1, (2 * reach[0] + 1, 2 * reach[1] + 1))
    return torch.cat([odds, each.logsumexp(2), each.logsumexp(1)], -1)


def coarse_shifts(reach: tuple[int, int]) -> int:
    """How many shifts ``coarse_costs`` knows."""
    return (2 * (reach[0] // 2) + 1) * (2 * (reach[1] // 2) + 1)


def expected_cost(costs: Tensor, shifts: Shifts) -> Tensor:
    """What the shifts cost in expectation, [N, 16, 16], beyond the cheapest of each block."""
    y, x = shifts.rows.softmax(-1), shifts.columns.softmax(-1)
    mean = ((costs * x[..., None, :]).sum(-1) * y).sum(-1)
    return mean - costs.amin((-2, -1))
