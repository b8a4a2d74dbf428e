"""How far two samples are apart, with the episode as the unit: simulated against real, and real against real.

N samples, K columns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from core.stats import Estimate, bootstrap_mean

SPLITS = 40  # random halves of the episodes


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


def classifier_hits(
    x_NK: np.ndarray, label_N: np.ndarray, episode_N: np.ndarray, rng: np.random.Generator, folds: int = 5
) -> np.ndarray:
    """Share of the two classes' rows told apart by logistic regression: out-of-fold hits bool [N]; no
    episode is in training and test at once."""
    from sklearn.linear_model import LogisticRegression

    hits = np.zeros(len(x_NK), bool)
    units = rng.permutation(np.unique(episode_N))
    for held in np.array_split(units, min(folds, len(units))):
        test = np.isin(episode_N, held)
        if len(np.unique(label_N[~test])) < 2:
            hits[test] = rng.random(int(test.sum())) < 0.5  # nothing to learn from: a coin
            continue
        model = LogisticRegression(max_iter=1000).fit(x_NK[~test], label_N[~test])
        hits[test] = model.predict(x_NK[test]) == label_N[test]
    return hits


def told_apart(a_NK: np.ndarray, b_NK: np.ndarray, episode_N: np.ndarray, rng: np.random.Generator) -> Estimate:
    """Classifier two-sample test of rows that share their episodes."""
    twice = np.tile(episode_N, 2)
    hits = classifier_hits(np.concatenate([a_NK, b_NK]), np.repeat([0, 1], len(a_NK)), twice, rng)
    return bootstrap_mean(hits.astype(float), twice, rng=rng)


def halves(
    real: np.ndarray, simulated: np.ndarray, episode_N: np.ndarray, distance: Callable[[np.ndarray, np.ndarray], float],
    rng: np.random.Generator, simulated_episode_M: np.ndarray | None = None,
) -> tuple[Estimate, Estimate]:  # fmt: skip
    """(simulated against real, real against real), each between disjoint halves of the episodes, so
    that both are of equal size and unpaired.  The interval is over random halves: the delete-half
    jackknife, whose spread is that of the estimate from all episodes.

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
    out = []
    for values in np.array(found).T:
        low, high = np.quantile(values, [0.025, 0.975])
        out.append(Estimate(float(values.mean()), float(low), float(high), len(units)))
    return out[0], out[1]
