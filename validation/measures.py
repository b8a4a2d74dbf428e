"""Measures of how far simulated is from real: pure functions of arrays, with the episode as the unit.

N samples, K columns; a ``Row`` is one line of the fidelity table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from core.stats import Estimate, bootstrap, bootstrap_mean

BINS = 10  # of equal width, in a reliability table
FORECASTS = 200  # draws of what a calibrated forecaster would have met
RESAMPLES = 500  # of the dearer statistics
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
    """Average precision with its interval over episodes; NaN where nothing happened."""
    count = len(np.unique(episode_N))
    if not event_N.any():
        return Estimate(float("nan"), float("nan"), float("nan"), count)
    return estimate_of(lambda rows: average_precision(score_N[rows], event_N[rows]), episode_N, rng)


def ssim(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Structural similarity of frames [..., H, W, C] in [0, 1] -> [...], 1 for equal ones.

    Mean over channels and over all windows that fit, Gaussian of 11 pixels and standard deviation 1.5,
    population moments, K1 = 0.01, K2 = 0.03 (Wang, Bovik, Sheikh and Simoncelli 2004, DOI 10.1109/TIP.2003.819861).
    Own code: scikit-image, which has it, is not among the dependencies.
    """
    import torch

    if min(a.shape[-3:-1]) < WINDOW:
        raise ValueError(f"SSIM needs frames of at least {WINDOW} pixels a side, not {a.shape[-3:-1]}")
    x, y = (torch.from_numpy(np.ascontiguousarray(v, np.float32)).movedim(-1, -3) for v in (a, b))
    rows, columns = (_blur(n) for n in x.shape[-2:])

    def smooth(v: torch.Tensor) -> torch.Tensor:
        return rows @ v @ columns.T

    mean_x, mean_y = smooth(x), smooth(y)
    square = mean_x**2 + mean_y**2
    spread = smooth(x**2 + y**2) - square
    together = smooth(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    similarity = (2 * mean_x * mean_y + c1) * (2 * together + c2) / ((square + c1) * (spread + c2))
    out: np.ndarray = similarity.mean((-3, -2, -1)).double().numpy()
    return out


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
    their number of forecasts (Naeini, Cooper and Hauskrecht 2015)."""
    count, foretold, happened = _binned(probability_N, event_N)
    return float(np.abs(foretold - happened).sum() / count.sum())


def _binned(probability_N: np.ndarray, event_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(forecasts, their sum, events) of every bin."""
    bin_N = (np.asarray(probability_N) * BINS).astype(int).clip(0, BINS - 1)
    count, foretold, happened = (np.bincount(bin_N, w, BINS) for w in (None, probability_N, event_N))
    return count, foretold, happened


def calibration_floor(probability_N: np.ndarray, rng: np.random.Generator) -> float:
    """The expected calibration error that these very forecasts would have if they were right: it is above
    0 since the events of a bin are finitely many."""
    draws = rng.random((FORECASTS, len(probability_N))) < probability_N
    return float(np.mean([calibration_error(probability_N, d) for d in draws]))


def reliability(
    probability_N: np.ndarray, event_N: np.ndarray, episode_N: np.ndarray, rng: np.random.Generator
) -> list[Row]:
    """A line a bin that holds a forecast: mean forecast against the share that happened, with its interval."""
    bin_N = (np.asarray(probability_N) * BINS).astype(int).clip(0, BINS - 1)
    rows = []
    for i in np.unique(bin_N):
        on = bin_N == i
        happened = bootstrap_mean(event_N[on], episode_N[on], rng=rng)
        rows.append({
            "from": i / BINS, "to": (i + 1) / BINS, "forecast": float(probability_N[on].mean()),
            "happened": happened.value, "low": known(happened.low), "high": known(happened.high),
            "steps": int(on.sum()), "n": happened.n,
        })  # fmt: skip
    return rows


def estimate_of(statistic: Callable[[np.ndarray], float], episode_N: np.ndarray, rng: np.random.Generator) -> Estimate:
    """Any statistic of the rows, with its interval over episodes."""
    value, low, high = bootstrap(statistic, episode_N, rng=rng, resamples=RESAMPLES)
    return Estimate(float(value), float(low), float(high), len(np.unique(episode_N)))


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


def known(value: float | None) -> float | None:
    """A cell: None where the number is undefined or infinite."""
    return None if value is None or not np.isfinite(value) else float(value)


def row(
    measure: str, horizon: int | None, estimate: Estimate, unit: str, *, floor: float | None = None,
    copy: float | None = None, mean: float | None = None, reason: str = "",
) -> Row:  # fmt: skip
    """One line of the table; horizon None: all together.  Unknown cells stay empty; ``reason``: why the first one would
    be, where it is."""
    cells = {"simulated": estimate.value, "low": estimate.low, "high": estimate.high, "floor": floor,
             "baseline_copy": copy, "baseline_mean": mean}  # fmt: skip
    told = {k: known(v) for k, v in cells.items()}
    return {"measure": measure, "horizon": horizon, **told, "unit": unit, "n": estimate.n,
            "reason": reason if told["simulated"] is None else ""}  # fmt: skip


def psnr(mse: float) -> float:
    """Peak signal-to-noise ratio in dB of frames in [0, 1] with a mean squared error; infinite at 0."""
    return float(-10 * np.log10(mse)) if mse > 0 else float("inf")
