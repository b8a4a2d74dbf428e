"""A frame's blocks moved, with a gradient for how far.

What a game shows next is mostly what it shows now, somewhere else, and rarely a whole number of pixels away.

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
LEVEL = 1e-4  # mean absolute difference from a neighbour below which a shift's cost is level
AT_ONCE = 16  # pairs of frames whose shift is searched at once
ELSEWHERE = 0.02  # probability that a part does not move as the whole


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


def share_of_neighbours(logits: Tensor, shift: Tensor) -> Tensor:
    """Probabilities [N, 16, 16, 3] of a shift and of the ones before and after it, among these; 0 beyond the reach."""
    last = logits.shape[-1] - 1
    at = (shift + last // 2)[..., None] + torch.arange(-1, 2, device=logits.device)
    near = logits.gather(-1, at.clamp(0, last))
    return near.masked_fill((at < 0) | (at > last), -torch.inf).softmax(-1)


def around(planes: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Every block at its shift, int64 [N, 16, 16] each, and the pixels next to it: [N, C, 16, 16, 6, 6]; beyond the
    frame's edge its pixels are repeated."""
    n, channels = planes.shape[:2]
    first = PATCH * torch.arange(BLOCKS, device=planes.device)
    own = torch.arange(-1, PATCH + 1, device=planes.device)
    y = (first[:, None, None] + row[..., None] + own).clamp(0, SIDE - 1)
    x = (first[:, None] + column[..., None] + own).clamp(0, SIDE - 1)
    index = (y[..., :, None] * SIDE + x[..., None, :]).reshape(n, 1, -1).expand(-1, channels, -1)
    return planes.flatten(2).gather(2, index).unflatten(2, (BLOCKS, BLOCKS, PATCH + 2, PATCH + 2))


def align(planes: Tensor, shifts: Shifts) -> Tensor:
    """Every block from where its likeliest shift says: the expectation over this shift and the ones next to it, 3 x 3,
    under the probabilities of the shifts.  A part that moves by a fraction of a pixel is interpolated so, and how far
    it moves has a gradient, exact as long as another shift does not become the likeliest."""
    row, column = shifts.likeliest
    out = around(planes, row, column)
    y, x = (share_of_neighbours(*both)[:, None] for both in ((shifts.rows, row), (shifts.columns, column)))
    for share, axis in ((y, -2), (x, -1)):
        parts = (out.narrow(axis, i, PATCH) * share[..., i, None, None] for i in range(3))
        out = sum(parts, start=next(parts))
    return out.transpose(3, 4).reshape(planes.shape)


def pooled(x: Tensor, size: int) -> Tensor:
    """Means over squares of pixels, [..., H, W] -> [..., H / size, W / size]; by products, which are faster than
    pooling."""

    def averaging(side: int) -> Tensor:
        return torch.eye(side // size, dtype=x.dtype, device=x.device).repeat_interleave(size, 1) / size

    return averaging(x.shape[-2]) @ (x @ averaging(x.shape[-1]).T)


def gaps_at_shifts(last: Tensor, now: Tensor, reach: tuple[int, int]) -> Iterator[Tensor]:
    """Absolute differences of ``now`` [N, H, W] from ``last`` at every shift: for each shift along the rows, those of
    all along the columns, [N, columns, H, W].

    Beyond its edge the pixels of ``last`` are repeated.
    """
    return gaps_within(bordered(last, reach), now)


def bordered(planes: Tensor, border: tuple[int, int]) -> Tensor:
    """[N, H, W] with so many rows and columns more at every edge, which repeat its pixels."""
    rows, columns = border
    return F.pad(planes[:, None], (columns, columns, rows, rows), mode="replicate")[:, 0]


def gaps_within(wide: Tensor, now: Tensor) -> Iterator[Tensor]:
    """Absolute differences of ``now`` [N, H, W] from every place of its size in ``wide``: row by row of places,
    [N, columns, H, W]."""
    height, width = now.shape[1:]
    places = wide.unfold(1, height, 1).unfold(2, width, 1)
    now = now[:, None].contiguous()
    for row in places.unbind(1):
        yield (row.contiguous() - now).abs()  # windows that overlap in memory take several times as long


def shift_costs(last: Tensor, now: Tensor, reach: tuple[int, int]) -> Tensor:
    """Mean absolute differences [N, 16, 16, rows, columns] of every block of the frames ``now`` from ``last`` at every
    shift; of the mean over their channels."""
    gaps = gaps_at_shifts(last.mean(1), now.mean(1), reach)
    return torch.stack([pooled(gap, PATCH) for gap in gaps], 1).permute(0, 3, 4, 1, 2)


def coarse_costs(last: Tensor, now: Tensor, reach: tuple[int, int]) -> Tensor:
    """``shift_costs`` at half the resolution, of every second shift: maps [N, K, 16, 16].  Where parts of a frame came
    from is hard to read off two frames by small convolutions, and plain here."""
    last, now = (pooled(x.mean(1), 2) for x in (last, now))
    gaps = gaps_at_shifts(last, now, (reach[0] // 2, reach[1] // 2))
    return pooled(torch.cat(list(gaps), 1), PATCH // 2)


def whole_shift(last: Tensor, now: Tensor, reach: tuple[int, int]) -> Tensor:
    """How far the frames ``now`` as wholes have moved from ``last``, in fractions of pixels, (down, right) [N, 2]; of
    the means over channels.

    The shift within the reach of the least mean absolute difference over the pixels that it takes from within the
    frame; then where two lines of equal slope through its cost and those of its neighbours meet (equiangular fit;
    Shimizu & Okutomi 2005).
    """
    last, now = last.mean(1), now.mean(1)
    (height, width), columns = now.shape[1:], 2 * reach[1] + 1
    with torch.no_grad():
        best = costs_inside(last, now, reach).flatten(1).argmin(-1)
    corner = torch.stack([best // columns, best % columns], -1)  # of the window within the bordered frame
    rows, along = (corner[:, i, None] + torch.arange(n + 2, device=now.device) for i, n in enumerate((height, width)))
    border = (reach[0] + 1, reach[1] + 1)
    at = (torch.arange(len(now), device=now.device)[:, None, None], rows[:, :, None], along[:, None, :])
    inside = F.pad(now.new_ones(1, height, width), (border[1], border[1], border[0], border[0]))[0][at[1:]]
    gaps = gaps_within(bordered(last, border)[at], now)
    weights = inside.unfold(1, height, 1).unfold(2, width, 1).unbind(1)
    costs = torch.stack([(gap * w).sum((2, 3)) / w.sum((2, 3)) for gap, w in zip(gaps, weights, strict=True)], 1)
    before, after = (torch.stack([costs[:, i, 1], costs[:, 1, i]], -1) for i in (0, 2))
    slope = (torch.maximum(before, after) - costs[:, 1, 1, None]).clamp_min(LEVEL)
    part = ((before - after) / (2 * slope)).clamp(-0.5, 0.5)
    return (corner - torch.tensor(reach, device=now.device)).to(part.dtype) + part


def costs_inside(last: Tensor, now: Tensor, reach: tuple[int, int]) -> Tensor:
    """Mean absolute differences [N, rows, columns] of ``now`` [N, H, W] from ``last`` at every shift, over the pixels
    that it takes from within the frame."""
    if len(now) > AT_ONCE:  # more do not fit a processor's cache
        pairs = zip(last.split(AT_ONCE), now.split(AT_ONCE), strict=True)
        return torch.cat([costs_inside(*pair, reach) for pair in pairs])
    height, width = now.shape[1:]
    x = torch.arange(-reach[1], reach[1] + 1, device=now.device)[:, None] + torch.arange(width, device=now.device)
    inside = ((x >= 0) & (x < width)).to(now.dtype)
    wide = F.pad(last, (reach[1], reach[1])).unfold(2, width, 1).contiguous()  # [N, H, columns, W]

    def cost(y: int) -> Tensor:
        gaps = wide[:, max(0, y) : height + min(0, y)] - now[:, max(0, -y) : height - max(0, y), None]
        return (gaps.abs().sum(1) * inside).sum(-1) / (height - abs(y))

    return torch.stack([cost(y) for y in range(-reach[0], reach[0] + 1)], 1) / inside.sum(-1)


def around_shift(shift: Tensor, spread: Tensor, reach: int) -> Tensor:
    """Log-probabilities [N, 2 * reach + 1] of whole shifts along an axis where the true one is about ``shift`` [N]:
    normal of a standard deviation of ``spread`` pixels, and a little of all."""
    whole = torch.arange(-reach, reach + 1, device=shift.device, dtype=shift.dtype)
    near = (-0.5 * ((whole - shift[:, None]) / spread).square()).softmax(-1)
    return ((1 - ELSEWHERE) * near + ELSEWHERE / len(whole)).log()


def coarse_shifts(reach: tuple[int, int]) -> int:
    """How many shifts ``coarse_costs`` knows."""
    return (2 * (reach[0] // 2) + 1) * (2 * (reach[1] // 2) + 1)


def expected_cost(costs: Tensor, shifts: Shifts) -> Tensor:
    """What the shifts cost in expectation, [N, 16, 16], beyond the cheapest of each block."""
    y, x = shifts.rows.softmax(-1), shifts.columns.softmax(-1)
    mean = ((costs * x[..., None, :]).sum(-1) * y).sum(-1)
    return mean - costs.amin((-2, -1))
