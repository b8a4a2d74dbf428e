"""Whole-pixel shifts of a frame's blocks: what is copied, and the gradient for how far."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from generative.alignment import (
    BLOCKS,
    Shifts,
    align,
    coarse_costs,
    coarse_shifts,
    expected,
    expected_cost,
    moved,
    shift_costs,
    to_blocks,
    to_planes,
    whole_odds,
)

REACH = (3, 2)


def frames(count: int = 2) -> Tensor:
    return torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def logits(count: int = 2, seed: int = 1) -> Shifts:
    draw = torch.Generator().manual_seed(seed)
    sizes = [2 * r + 1 for r in REACH]
    return Shifts(*(torch.randn(count, BLOCKS, BLOCKS, n, generator=draw, dtype=torch.float64) for n in sizes))


def test_blocks_and_back() -> None:
    x = frames()
    blocks = to_blocks(x)
    assert blocks.shape == (2, 48, 16, 16) and torch.equal(to_planes(blocks, x.dtype), x)
    assert torch.equal(blocks[1, :, 5, 7], x[1, :, 20:24, 28:32].flatten())


def test_every_block_is_copied_from_where_its_shift_says() -> None:
    x, shifts = frames(), logits()
    row, column = shifts.likeliest
    got = align(x, shifts)
    assert row.abs().max() == REACH[0] and column.abs().max() == REACH[1]
    for n, by, bx in ((0, 0, 0), (0, 7, 8), (1, 15, 3), (1, 15, 15)):
        for py, px in ((0, 0), (3, 1)):
            y = min(63, max(0, 4 * by + py + int(row[n, by, bx])))
            x_ = min(63, max(0, 4 * bx + px + int(column[n, by, bx])))
            assert torch.equal(got[n, :, 4 * by + py, 4 * bx + px], x[n, :, y, x_])


def test_the_soft_form_has_the_right_gradient() -> None:
    """Against central differences in float64, of the logits along random directions and of a frame; and the aligned
    frame has the copy's value with that gradient."""
    x, shifts = frames(1), logits(1)
    row, column = shifts.likeliest
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def along(step: Tensor, form: str) -> Tensor:
        at = Shifts(*(y + step[i] * v for i, (y, v) in enumerate(zip(shifts, logits(1, seed=3), strict=True))))
        out = expected(x, at, row, column) if form == "soft" else align(x, at)
        return (out * weight).sum()

    zero = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda step: along(step, "soft"), (zero,))
    soft, hard = (torch.autograd.grad(along(zero, form), zero)[0] for form in ("soft", "hard"))
    assert torch.equal(soft, hard) and bool((soft != 0).all())
    small = torch.rand(1, 1, 64, 64, dtype=torch.float64, requires_grad=True)
    back = torch.autograd.grad((align(small, shifts) * weight[:, :1]).sum(), small)[0]
    ahead = (align(small.detach() + weight[:, 1:2], shifts) - align(small.detach(), shifts)) * weight[:, :1]
    torch.testing.assert_close((back * weight[:, 1:2]).sum(), ahead.sum())  # a copy is linear


def test_beyond_the_reach_there_is_nothing_to_expect() -> None:
    x, sizes = frames(1), [2 * r + 1 for r in REACH]
    shifts = Shifts(*(torch.zeros(1, BLOCKS, BLOCKS, n, dtype=torch.float64) for n in sizes))
    end = [torch.full((1, BLOCKS, BLOCKS), r) for r in REACH]
    half = [sum(moved(x, end[0] - i, end[1] - j) for i in (0, 1) for j in (0, 1)) / 4]  # type: ignore[arg-type]
    torch.testing.assert_close(expected(x, shifts, *end), half[0])


@pytest.mark.parametrize("shift", [(0, 0), (-3, 2), (2, -1)])
def test_the_cheapest_shift_is_the_true_one(shift: tuple[int, int]) -> None:
    """And a world that is sure of it pays nothing; of another, what it costs."""
    last = frames(1)
    now = moved(last, *(torch.full((1, BLOCKS, BLOCKS), s) for s in shift))
    costs = shift_costs(last, now, REACH)
    middle = costs[0, 2:14, 2:14].flatten(2).argmin(-1)
    assert bool((middle == (shift[0] + REACH[0]) * (2 * REACH[1] + 1) + shift[1] + REACH[1]).all())

    def sure_of(y: int, x: int) -> Shifts:
        hot = (torch.eye(2 * r + 1, dtype=torch.float64)[at + r] for at, r in zip((y, x), REACH, strict=True))
        return Shifts(*(60 * h.expand(1, BLOCKS, BLOCKS, -1) for h in hot))

    assert float(expected_cost(costs, sure_of(*shift))[0, 2:14, 2:14].max()) < 1e-9
    wrong = expected_cost(costs, sure_of(1, 1))
    torch.testing.assert_close(wrong, costs[..., 1 + REACH[0], 1 + REACH[1]] - costs.amin((-2, -1)))


def test_coarse_costs_are_of_every_second_shift() -> None:
    last = frames(1)
    now = moved(last, *(torch.full((1, BLOCKS, BLOCKS), s) for s in (-4, 2)))
    costs = coarse_costs(last, now, (8, 4))
    assert costs.shape == (1, coarse_shifts((8, 4)), BLOCKS, BLOCKS) == (1, 9 * 5, BLOCKS, BLOCKS)
    middle = costs[0, :, 3:13, 3:13]
    assert bool((middle.argmin(0) == (-2 + 4) * 5 + 1 + 2).all()) and float(middle.amin(0).max()) < 1e-12


@pytest.mark.parametrize("shift", [(0, 0), (-5, 3), (7, -4)])
def test_how_a_whole_frame_has_moved_is_found_to_the_pixel(shift: tuple[int, int]) -> None:
    last, reach = frames(2), (8, 4)
    now = moved(last, *(torch.full((2, BLOCKS, BLOCKS), s) for s in shift))
    odds, rows, columns = whole_odds(last, now, reach, torch.tensor(100.0)).split([17 * 9, 17, 9], -1)
    assert odds.argmax(-1).tolist() == 2 * [(shift[0] + 8) * 9 + shift[1] + 4]
    assert rows.argmax(-1).tolist() == 2 * [shift[0] + 8] and columns.argmax(-1).tolist() == 2 * [shift[1] + 4]
    for part in (odds, rows, columns):
        torch.testing.assert_close(part.exp().sum(-1), torch.ones(2, dtype=part.dtype))
