"""Measures of how far simulated is from real: pure functions of arrays, with the episode as the unit.

N samples, K columns; a ``Row`` is one line of the fidelity table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from core.artefacts import finite
from core.stats import LOGIT, Estimate, failure_not_met, jackknife, jackknifed, left_out, share_of

BINS = 10  # of equal width, in a reliability table
FORECASTS = 200  # draws of what a calibrated forecaster would have met
WINDOW, WINDOW_STD = 11, 1.5  # pixels, of SSIM's Gaussian window

Row = dict[str, Any]


def as_float(obs: np.ndarray) -> np.ndarray:
    """Observations in the simulator's units: uint8 frames become [0, 1]."""
    return obs.astype(np.float32) / 255 if obs.dtype == np.uint8 else obs.astype(np.float32)


def average_precision(score_N: np.ndarray, event_N: np.ndarray) -> float:
    """Area under precision over recall, sum of (R_n - R_{n-1}) P_n; tied scores enter together.  NaN
    without an event."""
    if not event_N.any():
        return float("nan")
    order = np.argsort(-score_N, kind="stable")
    hits = np.cumsum(event_N[order])
    last = np.append(np.diff(score_N[order]) != 0, True)  # the end of every run of ties
    hits, among = hits[last], np.flatnonzero(last) + 1
    return float(np.sum(np.diff(hits, prepend=0) * hits / among) / event_N.sum())


def precision_estimate(
    score_N: np.ndarray, event_N: np.ndarray, episode_N: np.ndarray, rng: np.random.Generator
) -> Estimate:
    """Average precision with its interval over episodes (jackknife of its logit, with room for episodes whose event is
    not foretold and that none was: ``failure_not_met``); NaN where nothing happened, no interval where it happened in
    one episode only."""
    count = len(np.unique(episode_N))
    if not event_N.any():
        return Estimate.unknown(count)
    value, low, high = jackknife(
        lambda rows: average_precision(score_N[rows], event_N[rows]), episode_N, rng=rng, link=LOGIT
    )
    least = failure_not_met(float(low), len(np.unique(episode_N[event_N])))
    return Estimate(float(value), least, float(high), count)


def ssim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Structural similarity of frames [..., H, W, C] in [0, 1] -> [...], 1 for equal ones.

    Mean over channels and over all windows that fit, Gaussian of 11 pixels and standard deviation 1.5,
    population moments, K1 = 0.01, K2 = 0.03 (Wang, Bovik, Sheikh and Simoncelli 2004, DOI 10.1109/TIP.2003.819861).
    Own code: scikit-image, which has it, is not among the dependencies.
    """
    return ssim_to(b)(a)


def ssim_to(b: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """``ssim`` of anything that broadcasts to these frames, whose own moments are taken once."""
    import torch

    if min(b.shape[-3:-1]) < WINDOW:
        raise ValueError(f"SSIM needs frames of at least {WINDOW} pixels a side, not {b.shape[-3:-1]}")
    rows, columns = (_blur(n) for n in b.shape[-3:-1])

    def planes(v: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(v, np.float32)).movedim(-1, -3)

    def smooth(v: torch.Tensor) -> torch.Tensor:
        return rows @ v @ columns.T

    y = planes(b)
    mean_y, square_y = smooth(y), smooth(y**2)

    def of(a: np.ndarray) -> np.ndarray:
        x = planes(a)
        mean_x = smooth(x)
        square = mean_x**2 + mean_y**2
        spread = smooth(x**2) + square_y - square
        together = smooth(x * y) - mean_x * mean_y
        c1, c2 = 0.01**2, 0.03**2
        similarity = (2 * mean_x * mean_y + c1) * (2 * together + c2) / ((square + c1) * (spread + c2))
        out: np.ndarray = similarity.mean((-3, -2, -1)).double().numpy()
        return out

    return of


def _blur(size: int) -> Any:
    """The Gaussian window at every place where it fits, as a matrix [size - 10, size]."""
    import torch

    at = torch.arange(WINDOW) - WINDOW // 2
    weight = torch.exp(-(at**2) / (2 * WINDOW_STD**2))
    out = torch.zeros(size - WINDOW + 1, size)
    for i in range(len(out)):
        out[i, i : i + WINDOW] = weight / weight.sum()
    return out


def brier_terms(probability_N: np.ndarray, event_N: np.ndarray) -> np.ndarray:
    """Squared error of every forecast probability; their mean is the Brier score (Brier 1950)."""
    out: np.ndarray = (np.asarray(probability_N, np.float64) - event_N) ** 2
    return out


def calibration_error(probability_N: np.ndarray, event_N: np.ndarray) -> float:
    """Expected calibration error: |mean forecast - share that happened|, mean over equal-width bins by
    their number of forecasts (Naeini, Cooper and Hauskrecht 2015).  Of finitely many events it is too large, also where
    forecasts are right: ``calibration``."""
    bin_N = _bins(probability_N)
    missed_B = np.bincount(bin_N, probability_N, BINS) - np.bincount(bin_N, event_N, BINS)
    return float(np.abs(missed_B).sum() / len(bin_N))


def _bins(probability_N: np.ndarray) -> np.ndarray:
    out: np.ndarray = (np.asarray(probability_N) * BINS).astype(int).clip(0, BINS - 1)
    return out


def calibration(
    probability_N: np.ndarray, event_N: np.ndarray, episode_N: np.ndarray, rng: np.random.Generator
) -> tuple[Estimate, float]:
    """(root mean squared calibration error without its bias, its floor), with whole episodes as units.

    The square of a bin's missed probability holds the square of its noise.  Here only products of different episodes
    enter, so that right forecasts have 0 on average (Kumar, Liang and Ma 2019, arXiv:1909.10155, with episodes as
    units); mean over bins by their number of forecasts, cut off below 0.  Interval: jackknife of the square.  Floor:
    what noise alone gives, where every episode's deviations from its bins' means have a random sign (wild bootstrap,
    Liu 1988), so that steps of an episode stay as alike as they are.
    """
    bin_N, (units, of_N) = _bins(probability_N), np.unique(episode_N, return_inverse=True)
    n, cell_N = len(units), of_N * BINS + bin_N
    row_EB, foretold_EB, happened_EB = (
        np.bincount(cell_N, w, n * BINS).reshape(n, BINS) for w in (None, probability_N, event_N)
    )
    missed_EB = foretold_EB - happened_EB
    if n < 2:
        return Estimate(calibration_error(probability_N, event_N), float("nan"), float("nan"), n), float("nan")
    weight_GE = left_out(n, rng)
    square_G = _squared(weight_GE @ missed_EB, weight_GE @ missed_EB**2, weight_GE @ row_EB, weight_GE @ row_EB**2)
    ends = jackknifed(square_G, rng=rng, units=n)
    value, low, high = (float(np.sqrt(np.clip(x, 0, 1))) for x in ends)
    right_EB = missed_EB - row_EB * (missed_EB.sum(0) / np.maximum(row_EB.sum(0), 1))
    signs_FE = rng.choice([-1.0, 1.0], size=(FORECASTS, n))
    by_noise_F = _squared(signs_FE @ right_EB, (right_EB**2).sum(0), row_EB.sum(0), (row_EB**2).sum(0))
    return Estimate(value, low, high, n), float(np.sqrt(np.maximum(by_noise_F, 0)).mean())


def _squared(missed_GB: np.ndarray, missed2_GB: np.ndarray, row_GB: np.ndarray, row2_GB: np.ndarray) -> np.ndarray:
    """Mean squared missed probability [G] from sums over episodes of what they miss, of its square, of their forecasts
    and of their square.  A bin that one episode fills says nothing."""
    pairs_GB = row_GB**2 - row2_GB
    with np.errstate(divide="ignore", invalid="ignore"):
        each_GB = np.where(pairs_GB > 0, (missed_GB**2 - missed2_GB) / pairs_GB, 0.0)
        out: np.ndarray = (each_GB * row_GB).sum(-1) / np.where(pairs_GB > 0, row_GB, 0).sum(-1)
    return out


def reliability(probability_N: np.ndarray, event_N: np.ndarray, episode_N: np.ndarray) -> list[Row]:
    """A line a bin that holds a forecast: mean forecast against the share that happened, with its interval."""
    bin_N = _bins(probability_N)
    rows = []
    for i in np.unique(bin_N):
        on = bin_N == i
        happened = share_of(event_N[on], episode_N[on])
        rows.append({
            "from": i / BINS, "to": (i + 1) / BINS, "forecast": float(probability_N[on].mean()),
            "happened": happened.value, "low": finite(happened.low), "high": finite(happened.high),
            "steps": int(on.sum()), "n": happened.n,
        })  # fmt: skip
    return rows


def total_variation(a_N: np.ndarray, b_M: np.ndarray) -> float:
    """Half the summed difference of two samples' shares of each whole number: 0 the same, 1 disjoint; NaN where a
    sample is empty."""
    if not len(a_N) or not len(b_M):
        return float("nan")
    size = int(max(a_N.max(), b_M.max())) + 1
    shares = [np.bincount(x, minlength=size) / len(x) for x in (a_N, b_M)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def wasserstein(a_N: np.ndarray, b_M: np.ndarray) -> float:
    """Earth mover's distance of two samples of a number, in its unit."""
    from scipy.stats import wasserstein_distance

    return float(wasserstein_distance(a_N, b_M))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities, float64, over the last axis."""
    from scipy.special import log_softmax as of_scipy

    out: np.ndarray = of_scipy(logits.astype(np.float64), axis=-1)
    return out


def in_effect(probability: np.ndarray, actions: Mapping[str, Sequence[int]]) -> np.ndarray:
    """The likeliest of the distinct actions, where ids that do the same add up: int64 [...]."""
    out: np.ndarray = np.stack([probability[..., list(ids)].sum(-1) for ids in actions.values()], -1).argmax(-1)
    return out


def by_chance(a_N: np.ndarray, b_N: np.ndarray) -> float:
    """The share in which two series of actions, int64 [N], would agree if neither heeded the other."""
    size = int(max(a_N.max(), b_N.max())) + 1
    share_a, share_b = (np.bincount(x, minlength=size) / len(x) for x in (a_N, b_N))
    return float(share_a @ share_b)


def beyond_chance(agreement: float, chance: float) -> float:
    """Cohen's kappa (1960): 1 where all agree, 0 where no more than by chance; NaN where chance leaves nothing."""
    return (agreement - chance) / (1 - chance) if chance < 1 else float("nan")


_SHARE, _WHICH = "share(_known|_revealed|_moving)?", "(_in_effect)?(_teacher_forced|_other_policy)?$"
# Measures of size, distance and share, which end at 0 and whose intervals do; and those that end at 1.
AT_LEAST_0 = re.compile(f"(^|_)(mse|brier|kl|distance|error|frechet|{_SHARE}){_WHICH}")
AT_MOST_1 = re.compile(f"(^|_)(ssim|brier|calibration_error|(policy|action|transition)_distance|{_SHARE}){_WHICH}")


def row(
    measure: str, horizon: int | None, estimate: Estimate, unit: str, *, floor: float | None = None,
    copy: float | None = None, mean: float | None = None, reason: str = "",
) -> Row:  # fmt: skip
    """One line of the table; horizon None: all together.  Unknown cells stay empty; ``reason``: why the first one would
    be, where it is."""
    low = max(estimate.low, 0.0) if AT_LEAST_0.search(measure) and estimate.value >= 0 else estimate.low
    high = min(estimate.high, 1.0) if AT_MOST_1.search(measure) and estimate.value <= 1 else estimate.high
    cells = {"simulated": estimate.value, "low": low, "high": high, "floor": floor,
             "baseline_copy": copy, "baseline_mean": mean}  # fmt: skip
    told = {k: finite(v) for k, v in cells.items()}
    return {"measure": measure, "horizon": horizon, **told, "unit": unit, "n": estimate.n,
            "reason": reason if told["simulated"] is None else ""}  # fmt: skip


def unknown(measure: str, horizon: int | None, unit: str, n: int, reason: str) -> Row:
    """A line that has no numbers, and says why."""
    return row(measure, horizon, Estimate(np.nan, np.nan, np.nan, n), unit, reason=reason)


NO_ERROR = "no error at all: infinite"  # why a row of it has no number


def psnr(mse: float) -> float:
    """Peak signal-to-noise ratio in dB of frames in [0, 1] with a mean squared error; infinite at 0."""
    return float(-10 * np.log10(mse)) if mse > 0 else float("inf")
