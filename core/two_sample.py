"""How far two samples are apart, with the episode as the unit: simulated against real, and real against real.

N samples, K columns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from core.stats import ALPHA, Estimate, band_of, share_interval, student

SPLITS = 40  # random halves of the episodes
CLASSIFIERS = 10  # random splits into training and test
LEAST_A_SIDE = 4  # units of a sample from which on a half held out, of two, has a spread that its error is told by
NO_INTERVAL = f"no interval of fewer than {LEAST_A_SIDE} episodes on a side"


def frechet(a_NK: np.ndarray, b_MK: np.ndarray) -> float:
    """Squared Frechet distance of the two Gaussians with the samples' moments: |m - m'|^2 +
    tr(S + S' - 2 (S S')^(1/2)) (Dowson and Landau 1982)."""
    mean = a_NK.mean(0) - b_MK.mean(0)
    s, t = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (a_NK, b_MK))
    values, vectors = np.linalg.eigh(s)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ t @ root).clip(0)).sum()
    return float(mean @ mean + np.trace(s) + np.trace(t) - 2 * cross)


def mmd(a_NK: np.ndarray, b_MK: np.ndarray, width: float) -> float:
    """Unbiased squared maximum mean discrepancy with a Gaussian kernel (Gretton et al. 2012, eq. 3);
    around 0, also below, for equal distributions."""

    def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.exp(-squared_distances(x, y) / (2 * width**2))

    n, m = len(a_NK), len(b_MK)
    aa, bb, ab = kernel(a_NK, a_NK), kernel(b_MK, b_MK), kernel(a_NK, b_MK)
    return float((aa.sum() - np.trace(aa)) / (n * (n - 1)) + (bb.sum() - np.trace(bb)) / (m * (m - 1)) - 2 * ab.mean())


def squared_distances(x_NK: np.ndarray, y_MK: np.ndarray) -> np.ndarray:
    """[N, M]."""
    cross: np.ndarray = (x_NK**2).sum(1)[:, None] + (y_MK**2).sum(1) - 2 * x_NK @ y_MK.T
    return cross.clip(0)


def median_width(x_NK: np.ndarray, rng: np.random.Generator) -> float:
    """The median distance between samples, the usual kernel width."""
    some = x_NK[rng.permutation(len(x_NK))[:500]]
    distance = np.sqrt(squared_distances(some, some)[np.triu_indices(len(some), 1)])
    return float(np.median(distance)) or 1.0


def told_apart(x_NK: np.ndarray, label_N: np.ndarray, unit_N: np.ndarray, rng: np.random.Generator) -> Estimate:
    """Classifier two-sample test (Lopez-Paz & Oquab 2017): share of rows that a logistic regression puts into the right
    one of two samples, mean of both; 0.5 if nothing tells them apart.  NaN where a sample is of one unit; of fewer than
    LEAST_A_SIDE, no interval.

    label_N: 0 or 1; unit_N: rows of one unit are never in training and test at once.  A half of each sample's units is
    held out at random, CLASSIFIERS times.  Given its training half, each share is a mean over the units of the other,
    and has the error of one; that of the mean of all splits is at most their root mean square (they are alike, since
    they share all units), and is taken to be it.  So the interval errs on the long side.
    """
    from sklearn.linear_model import LogisticRegression

    units, of_N = np.unique(unit_N, return_inverse=True)
    in_class_2U = np.array([np.bincount(of_N[label_N == c], minlength=len(units)) > 0 for c in (0, 1)])
    a_side = int(in_class_2U.sum(1).min())
    if a_side < 2:
        return Estimate(np.nan, np.nan, np.nan, len(units))
    found, errors2, tested = [], [], []
    for _ in range(CLASSIFIERS):
        order_U = rng.permutation(len(units))
        held = [order_U[mine[order_U]][: int(mine.sum()) // 2] for mine in in_class_2U]
        test_N = np.isin(of_N, np.concatenate(held))
        if any(len(np.unique(label_N[some])) < 2 for some in (test_N, ~test_N)):
            continue
        model = LogisticRegression(max_iter=1000, class_weight="balanced").fit(x_NK[~test_N], label_N[~test_N])
        hit_M = model.predict(x_NK[test_N]) == label_N[test_N]
        share, error2, count = _balanced(hit_M, label_N[test_N], of_N[test_N])
        found.append(share)
        errors2.append(error2)
        tested.append(count)
    if not found:
        return Estimate(np.nan, np.nan, np.nan, len(units))
    value, fewest = float(np.mean(found)), min(tested)
    if a_side < LEAST_A_SIDE:
        return Estimate(value, np.nan, np.nan, len(units))
    if value in (0.0, 1.0):  # nothing varies: so many units can hide some that are not
        return Estimate(value, *share_interval(value * fewest, fewest), len(units))
    width = float(student(fewest, 0.95)) * float(np.sqrt(np.mean(errors2)))
    return Estimate(value, max(0.0, value - width), min(1.0, value + width), len(units))


def _balanced(hit_M: np.ndarray, label_M: np.ndarray, of_M: np.ndarray) -> tuple[float, float, int]:
    """(share of hits, mean of both samples; its squared standard error over units; units)."""
    units, of_M = np.unique(of_M, return_inverse=True)
    shares, away_U = [], np.zeros(len(units))
    for c in (0, 1):
        mine = label_M == c
        shares.append(hit_M[mine].mean())
        away_U += np.bincount(of_M[mine], hit_M[mine] - shares[-1], len(units)) / mine.sum() / 2
    more = len(units) / max(1, len(units) - 1)
    return float(np.mean(shares)), float((away_U**2).sum() * more), len(units)


def halves(
    real: np.ndarray, simulated: np.ndarray, episode_N: np.ndarray, distance: Callable[[np.ndarray, np.ndarray], float],
    rng: np.random.Generator, simulated_episode_M: np.ndarray | None = None,
) -> tuple[Estimate, Estimate]:  # fmt: skip
    """(simulated against real, real against real), each between disjoint halves of the episodes, so
    that both are of equal size and unpaired.  The interval is over random halves: the delete-half
    jackknife, whose spread is that of the estimate from all episodes.  Of so few episodes of a kind that is compared
    that a half has fewer than LEAST_A_SIDE there is none: four have three pairs of halves.

    ``simulated`` has the rows of ``real``, or those that ``simulated_episode_M`` belongs to: the same
    number there and here is one unit, which is never on both sides.
    """
    other_M = episode_N if simulated_episode_M is None else simulated_episode_M
    units = np.union1d(episode_N, other_M)
    found = []
    for _ in range(SPLITS):
        half = rng.permutation(units)[: len(units) // 2]
        first, others = np.isin(episode_N, half), ~np.isin(other_M, half)
        found.append((distance(real[first], simulated[others]), distance(real[first], real[~first])))
    ours, theirs = len(np.unique(episode_N)), len(np.unique(other_M))
    out = []
    for values, fewest in zip(np.array(found).T, (min(ours, theirs), ours), strict=True):
        value = float(values.mean())
        low, high = band_of(values, ALPHA) if fewest >= 2 * LEAST_A_SIDE else (np.nan, np.nan)
        out.append(Estimate(value, float(np.minimum(low, value)), float(np.maximum(high, value)), len(units)))
    return out[0], out[1]
