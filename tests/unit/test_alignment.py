"""Shifts of a frame's blocks: what is copied, and the gradient for how far."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, one_hot

from envs.procgen import ProcgenEnv, ProcgenOptions
from envs.procgen_truth import WithTruth
from generative.alignment import (
    BLOCKS,
    Shifts,
    align,
    around_shift,
    coarse_costs,
    coarse_shifts,
    expected_cost,
    shift_costs,
    to_blocks,
    to_planes,
    whole_shift,
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


def sure_of(row: Tensor, column: Tensor) -> Shifts:
    """Logits that leave no doubt of shifts int64 [N, 16, 16]."""
    return Shifts(*(900.0 * one_hot(x + r, 2 * r + 1).double() for x, r in zip((row, column), REACH, strict=True)))


def moved(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Every block a whole number of pixels away."""
    return align(x, sure_of(row, column))


def everywhere(shift: tuple[int, int], count: int) -> tuple[Tensor, Tensor]:
    row, column = (torch.full((count, BLOCKS, BLOCKS), s) for s in shift)
    return row, column


def test_every_block_is_copied_from_where_a_sure_shift_says() -> None:
    x, (row, column) = frames(), logits().likeliest
    got = moved(x, row, column)
    assert row.abs().max() == REACH[0] and column.abs().max() == REACH[1]
    for n, by, bx in ((0, 0, 0), (0, 7, 8), (1, 15, 3), (1, 15, 15)):
        for py, px in ((0, 0), (3, 1)):
            y = min(63, max(0, 4 * by + py + int(row[n, by, bx])))
            x_ = min(63, max(0, 4 * bx + px + int(column[n, by, bx])))
            assert torch.equal(got[n, :, 4 * by + py, 4 * bx + px], x[n, :, y, x_])


def test_what_moves_by_a_part_of_a_pixel_is_interpolated() -> None:
    """A ramp of 1 / 64 a pixel, moved by .3 pixels up and .75 left; and the unsure: the mean of what is next to the
    likeliest shift, of which there is nothing beyond the reach."""
    down = (torch.arange(64, dtype=torch.float64) / 64)[:, None].expand(64, 64)
    ramps = torch.stack([down, down.T])[None]
    rows = torch.tensor([0, 0, 0.7, 0.3, 0, 0, 0], dtype=torch.float64).log().expand(1, BLOCKS, BLOCKS, -1)
    columns = torch.tensor([0, 0.75, 0.25, 0, 0], dtype=torch.float64).log().expand(1, BLOCKS, BLOCKS, -1)
    got = align(ramps, Shifts(rows, columns))[0, :, 8:56, 8:56] - ramps[0, :, 8:56, 8:56]
    torch.testing.assert_close(got, torch.tensor([-0.7, -0.75], dtype=torch.float64)[:, None, None].expand_as(got) / 64)
    x = frames(1)
    unsure = Shifts(*(torch.zeros(1, BLOCKS, BLOCKS, 2 * r + 1, dtype=torch.float64) for r in REACH))
    for y in unsure:
        y[..., -1] = 1e-9  # the last shift is the likeliest
    mean = sum(moved(x, *everywhere((REACH[0] - i, REACH[1] - j), 1)) for i in (0, 1) for j in (0, 1)) / 4
    torch.testing.assert_close(align(x, unsure), mean)


def test_how_far_a_block_moves_has_the_right_gradient() -> None:
    """Against central differences in float64, of the logits along random directions, and of a frame."""
    x, shifts = frames(1), logits(1)
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def along(step: Tensor) -> Tensor:
        at = Shifts(*(y + step[i] * v for i, (y, v) in enumerate(zip(shifts, logits(1, seed=3), strict=True))))
        return (align(x, at) * weight).sum()

    zero = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(along, (zero,))
    assert bool((torch.autograd.grad(along(zero), zero)[0] != 0).all())
    small = torch.rand(1, 1, 64, 64, dtype=torch.float64, requires_grad=True)
    back = torch.autograd.grad((align(small, shifts) * weight[:, :1]).sum(), small)[0]
    ahead = (align(small.detach() + weight[:, 1:2], shifts) - align(small.detach(), shifts)) * weight[:, :1]
    torch.testing.assert_close((back * weight[:, 1:2]).sum(), ahead.sum())  # in the frame it is linear


@pytest.mark.parametrize("shift", [(0, 0), (-3, 2), (2, -1)])
def test_the_cheapest_shift_is_the_true_one(shift: tuple[int, int]) -> None:
    """And a world that is sure of it pays nothing; of another, what it costs."""
    last = frames(1)
    now = moved(last, *everywhere(shift, 1))
    costs = shift_costs(last, now, REACH)
    middle = costs[0, 2:14, 2:14].flatten(2).argmin(-1)
    assert bool((middle == (shift[0] + REACH[0]) * (2 * REACH[1] + 1) + shift[1] + REACH[1]).all())

    assert float(expected_cost(costs, sure_of(*everywhere(shift, 1)))[0, 2:14, 2:14].max()) < 1e-9
    wrong = expected_cost(costs, sure_of(*everywhere((1, 1), 1)))
    torch.testing.assert_close(wrong, costs[..., 1 + REACH[0], 1 + REACH[1]] - costs.amin((-2, -1)))


def test_coarse_costs_are_of_every_second_shift() -> None:
    last = frames(1)
    now = last.roll((4, -2), (2, 3))
    costs = coarse_costs(last, now, (8, 4))
    assert costs.shape == (1, coarse_shifts((8, 4)), BLOCKS, BLOCKS) == (1, 9 * 5, BLOCKS, BLOCKS)
    middle = costs[0, :, 3:13, 3:13]
    assert bool((middle.argmin(0) == (-2 + 4) * 5 + 1 + 2).all()) and float(middle.amin(0).max()) < 1e-12


@pytest.mark.parametrize("shift", [(0, 0), (-5, 3), (7.25, -3.5), (-0.75, 0.5)])
def test_how_a_whole_frame_has_moved_is_found_to_a_part_of_a_pixel(shift: tuple[float, float]) -> None:
    """Of frames cut from one picture, smooth at the scale of a pixel, eight times as fine; a part of it stays."""
    draw = torch.Generator().manual_seed(0)
    fine = avg_pool2d(torch.rand(2, 3, 800, 800, generator=draw, dtype=torch.float64), 17, 1, 8)
    last, now = (
        fine[:, :, 120 + y : 120 + y + 512 : 8, 120 + x : 120 + x + 512 : 8]
        for y, x in ((0, 0), [int(8 * s) for s in shift])
    )
    now = now.clone()
    now[:, :, 20:30, 20:30] = last[:, :, 20:30, 20:30]
    found = whole_shift(last, now, (8, 4))
    torch.testing.assert_close(found, torch.tensor([shift, shift], dtype=torch.float64), atol=0.1, rtol=0)


def test_the_measured_shift_passes_gradients_and_takes_frames_that_show_nothing() -> None:
    last = torch.full((1, 3, 64, 64), 0.5, dtype=torch.float64, requires_grad=True)
    found = whole_shift(last, torch.full_like(last, 0.5), REACH)
    (slope,) = torch.autograd.grad(found.sum(), last)
    assert found.abs().max() <= 2 * REACH[0] and bool(slope.isfinite().all())
    x = frames(1).requires_grad_()
    (slope,) = torch.autograd.grad(whole_shift(x, 0.5 * frames(1) + 0.5 * frames(1).roll(1, 2), REACH).sum(), x)
    assert bool(slope.isfinite().all()) and bool((slope != 0).any())


def test_the_shifts_around_one_are_where_it_is() -> None:
    """Between two pixels both are as likely; elsewhere little is, and nothing impossible."""
    odds = around_shift(torch.tensor([1.5, -9.0], dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64), 3).exp()
    torch.testing.assert_close(odds.sum(-1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(odds[0, 4], odds[0, 5])
    assert float(odds[0, 4:6].sum()) > 0.95 and float(odds.min()) > 0.002 and int(odds[1].argmax()) == 0


def test_the_view_s_motion_in_a_real_game_is_found() -> None:
    """CoinRun's view moves with the player, whose position is known.  Its tiles repeat every five pixels, and much of
    it is flat, so that a search of some of the pixels finds look-alikes: of every fourth, in 16 % of these steps."""
    options = ProcgenOptions(game="coinrun", use_backgrounds=False, restrict_themes=True)
    env = WithTruth(ProcgenEnv(options, 16), "positions")
    step, rng = env.reset(1), np.random.default_rng(1)
    action, found, true = rng.integers(0, 15, 16), [], []
    for _ in range(60):
        before, action = step, np.where(rng.random(16) < 0.7, action, rng.choice([6, 7, 8, 7, 8], 16))
        step = env.step(action)
        places = (np.stack([s.truth["agent_y"], s.truth["agent_x"]], 1) for s in (before, step))
        moved = np.subtract(*reversed(list(places))) * [-1, 1] * 64 / 13  # 13 cells in view in easy levels
        rows = ~step.is_first & (np.abs(moved) < [7.5, 3.5]).all(1) & (np.abs(moved) > 0.02).any(1)
        last, now = (torch.from_numpy(s.obs["frames"][rows]).permute(0, 3, 1, 2) / 255 for s in (before, step))
        found.append(whole_shift(last, now, (8, 4)))
        true.append(moved[rows])
    env.close()
    wrong = np.abs(torch.cat(found).numpy() - np.concatenate(true))
    assert len(wrong) > 800 and (wrong[:, 0] > 0.3).mean() < 0.1 and wrong.mean() < 0.25
