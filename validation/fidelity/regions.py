"""How the view moves, and with it three regions of a frame: known, revealed and moving.

The view is followed by whole pixels: each frame is laid on the one before (least mean difference of grey levels, over
all offsets up to REACH), the offsets are added up, and the sum is corrected by a pixel where the frame still overlaps
the first.  Of a frame k steps ahead a pixel is then

revealed   not in view in the first frame: nothing that a simulator was shown told what would be there;
known      in view then, and explained by it: a pixel of the first frame, at most one beside the place where it should
           be, has this colour within LIKE;
moving     in view then, but of another colour now: what moves by itself, changes, or was hidden.

Nothing of this is told by the game, so it holds for every world of images; where the view stands still nothing is
revealed.  In CoinRun 95 % of the offsets are within a pixel of what the agent's recorded position says (tests).

N films, T frames, C channels, offsets (dy, dx): pixel (y, x) of a frame is pixel (y + dy, x + dx) of the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from core.stats import Estimate, ratios
from validation.fidelity.measures import NO_ERROR, Row, psnr, row
from validation.fidelity.pairing import Batch, Paired

REACH = 10  # pixels that the view moves a step, at most
LIKE = 0.1  # of the range: colours that count as the same
OVERLAP = 0.25  # of the frame: the least that two are compared on
SURE = 1e-6  # by how much an offset must be better than a nearer one
REGIONS = ("known", "revealed", "moving")
HORIZONS = (1, 2, 4, 8, 16, 24, 32)


def around(reach: int) -> tuple[tuple[int, int], ...]:
    """Offsets up to ``reach`` either way, the nearest first."""
    both = [(dy, dx) for dy in range(-reach, reach + 1) for dx in range(-reach, reach + 1)]
    return tuple(sorted(both, key=lambda o: (o[0] ** 2 + o[1] ** 2, o)))


def best_offset(first_NHW: Tensor, frame_NHW: Tensor, base_N2: Tensor, reach: int) -> Tensor:
    """Of the offsets up to ``reach`` from ``base`` the one that lays the frame on the first best, int64 [N, 2]; the
    nearest to the base where others are no better."""
    n, height, width = frame_NHW.shape
    moved, there = laid_on(first_NHW, base_N2, reach)
    least_N, best_N2 = torch.full((n,), torch.inf), torch.zeros_like(base_N2)
    for dy, dx in around(reach):
        part = slice(reach + dy, reach + dy + height), slice(reach + dx, reach + dx + width)
        on = there[:, *part]
        area_N = on.sum((1, 2))
        cost_N = (moved[:, *part] - frame_NHW).abs_().mul_(on).sum((1, 2)) / area_N.clamp(min=1)
        better_N = (area_N >= OVERLAP * height * width) & (cost_N < least_N - SURE)
        least_N = torch.where(better_N, cost_N, least_N)
        best_N2[better_N] = torch.tensor((dy, dx))
    return base_N2 + best_N2


def laid_on(first_NHW: Tensor, offset_N2: Tensor, margin: int) -> tuple[Tensor, Tensor]:
    """Pixels of the first frames [N, H + 2 margin, W + 2 margin (, C)] where the offset leads, the border's beyond it,
    and where there are any (bool, without C)."""
    height, width = first_NHW.shape[1:3]
    y_NH = torch.arange(-margin, height + margin) + offset_N2[:, :1]
    x_NW = torch.arange(-margin, width + margin) + offset_N2[:, 1:]
    rows = torch.arange(len(first_NHW))[:, None, None]
    moved = first_NHW[rows, y_NH.clamp(0, height - 1)[:, :, None], x_NW.clamp(0, width - 1)[:, None]]
    there = ((y_NH >= 0) & (y_NH < height))[:, :, None] & ((x_NW >= 0) & (x_NW < width))[:, None]
    return moved, there


def followed(films_NTHWC: np.ndarray) -> np.ndarray:
    """Offsets int64 [N, T, 2] of every frame against its film's first, frames in [0, 1]."""
    grey = torch.from_numpy(np.ascontiguousarray(films_NTHWC, np.float32)).mean(-1)
    n, frames = grey.shape[:2]
    before, after = grey[:, :-1].flatten(0, 1), grey[:, 1:].flatten(0, 1)
    small, smaller = (torch.nn.functional.avg_pool2d(x[:, None], 2)[:, 0] for x in (before, after))
    rough = best_offset(small, smaller, torch.zeros(len(before), 2, dtype=torch.int64), REACH // 2)
    step = best_offset(before, after, 2 * rough, 1).unflatten(0, (n, frames - 1))
    out = [torch.zeros(n, 2, dtype=torch.int64)]
    for t in range(1, frames):
        out.append(best_offset(grey[:, 0], grey[:, t], out[-1] + step[:, t - 1], 1))
    found: np.ndarray = torch.stack(out, 1).numpy()
    return found


def in_view(offset_N2: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows [N, H] and columns [N, W] of a frame were in view where its offset leads."""
    y_NH, x_NW = (np.arange(size) + offset_N2[:, i, None] for i, size in enumerate((height, width)))
    return (y_NH >= 0) & (y_NH < height), (x_NW >= 0) & (x_NW < width)


def regions_of(films_NTHWC: np.ndarray, at: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """The three regions of the frames ``at`` (None: of all), bool [N, T, H, W] each; of the first all is known."""
    n, frames, height, width = films_NTHWC.shape[:4]
    shown = list(range(frames)) if at is None else list(at)
    offset_M2 = followed(films_NTHWC)[:, shown].reshape(-1, 2)
    rows_MH, columns_MW = in_view(offset_M2, height, width)
    seen = rows_MH[:, :, None] & columns_MW[:, None]
    film = torch.from_numpy(np.ascontiguousarray(films_NTHWC, np.float32))
    frame = film[:, shown].flatten(0, 1)
    first = film[:, :1].expand(-1, len(shown), -1, -1, -1).flatten(0, 1)
    offset = torch.from_numpy(offset_M2)
    moved, _ = laid_on(first, offset, 1)
    explained = torch.zeros(len(frame), height, width, dtype=torch.bool)
    for dy, dx in around(1):
        beside = moved[:, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]
        explained |= (beside - frame).abs_().amax(-1) <= LIKE
    known = seen & explained.numpy()
    parts = {"known": known, "revealed": ~seen, "moving": seen & ~known}
    return {k: v.reshape(n, len(shown), height, width) for k, v in parts.items()}


def edge_filled(films_NTHWC: np.ndarray, revealed_NTHW: np.ndarray) -> np.ndarray:
    """Every frame, of what is revealed only the edge: each revealed row and column is the nearest that was in view; a
    frame of which nothing was is the mean of its film's first."""
    n, frames = films_NTHWC.shape[:2]
    out = np.array(films_NTHWC)
    for i, t in itertools.product(range(n), range(frames)):
        seen = ~revealed_NTHW[i, t]
        if seen.all():
            continue
        rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
        if not len(rows):
            out[i, t] = films_NTHWC[i, 0].mean((0, 1))
            continue
        y = np.arange(seen.shape[0]).clip(rows[0], rows[-1])
        x = np.arange(seen.shape[1]).clip(columns[0], columns[-1])
        out[i, t] = films_NTHWC[i, t][y[:, None], x]
    return out


class Regions:
    """Errors of known, revealed and moving parts of the frames apart; images only."""

    def draw(self, shape: tuple[int, int]) -> None:
        return None

    def along(self, batch: Batch, drawn: np.ndarray | None) -> dict[str, np.ndarray]:
        if not batch.images:
            return {}
        shown = [k for k in HORIZONS if k < batch.real.shape[1]]
        areas = regions_of(batch.real, shown)
        out: dict[str, np.ndarray] = {}
        for name, area in areas.items():
            out[f"area/{name}"] = area.sum((2, 3))
        for kind in ("simulated", "copy"):
            off = ((batch.guesses[kind][:, shown] - batch.real[:, shown]) ** 2).mean(-1)
            for name, area in areas.items():
                out[f"missed/{name}/{kind}"] = (off * area).sum((2, 3), dtype=np.float64)
        filled = edge_filled(batch.real[:, shown], areas["revealed"])
        out["error/edge_filled"] = ((filled - batch.real[:, shown]) ** 2).mean((2, 3, 4), dtype=np.float64)
        return out

    def rows(self, p: Paired, rng: np.random.Generator) -> Iterator[Row]:
        if "area/known" not in p.kept:
            return
        pixels = p.strip["real"].shape[2] * p.strip["real"].shape[3]
        shown = [k for k in HORIZONS if k < p.seen.shape[1]]
        for (i, k), name in itertools.product(enumerate(shown), REGIONS):
            on = p.seen[:, k]
            if not on.any():
                continue
            missed, area = (p.kept[f"{w}/{name}{s}"][on, i] for w, s in (("missed", "/simulated"), ("area", "")))
            held = p.kept[f"missed/{name}/copy"][on, i]
            at = p.episode[on]
            error = ratio_of(missed, area, at, rng)
            copy = float(held.sum() / area.sum()) if area.any() else float("nan")
            decibel = Estimate(psnr(error.value), psnr(error.high), psnr(error.low), error.n)
            why = NO_ERROR if area.any() else f"nothing is {name} by then"
            yield row(f"frame_psnr_{name}", k, decibel, "dB", copy=psnr(copy), reason=why)
            share = ratio_of(area, np.full(len(area), float(pixels)), at, rng)
            yield row(f"frame_share_{name}", k, share, "share of pixels")
        for i, k in enumerate(shown):
            on = p.seen[:, k]
            if on.any():
                e = ratio_of(p.kept["error/edge_filled"][on, i], np.ones(on.sum()), p.episode[on], rng)
                decibel = Estimate(psnr(e.value), psnr(e.high), psnr(e.low), e.n)
                why = NO_ERROR if p.kept["area/revealed"][on, i].any() else "nothing is revealed by then"
                yield row("frame_psnr_edge_filled", k, decibel, "dB", copy=psnr(float(p.error["copy"][on, k].mean())),
                          reason=why)  # fmt: skip


def ratio_of(sum_N: np.ndarray, count_N: np.ndarray, episode_N: np.ndarray, rng: np.random.Generator) -> Estimate:
    """Sum over count of all rows, with the interval over episodes (core.stats.ratios)."""
    _, of_N = np.unique(episode_N, return_inverse=True)
    sums, counts = (np.bincount(of_N, np.asarray(x, np.float64))[:, None] for x in (sum_N, count_N))
    return ratios(sums, counts, rng=rng).estimates()[0]


def came_back(offset_N2: np.ndarray, middle_N2: np.ndarray, height: int, width: int) -> np.ndarray:
    """Pixels of a last frame, bool [N, H, W], that were in view in the first one and not in a middle one; its offset
    and the middle one's are both against the first."""
    rows_NH, columns_NW = in_view(offset_N2, height, width)
    still_NH, across_NW = in_view(offset_N2 - middle_N2, height, width)
    return (rows_NH[:, :, None] & columns_NW[:, None]) & ~(still_NH[:, :, None] & across_NW[:, None])
