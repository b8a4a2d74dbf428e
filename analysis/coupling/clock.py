"""What the clock alone explains: directions that only share a trend, over the episode or since a behaviour was entered,
have nothing to do with each other.

Where all steps of an episode are paired with all of another, step meets like step, and the null keeps such a trend.  Of
the steps of a behaviour, which begin at another time in every episode, it keeps none (half of such pairs were called
correlated at .05; pairing like steps leaves most of them).  So the trends are taken out of both coordinates first, and
what is correlated is the rest.
"""

from __future__ import annotations

import numpy as np

PIECES = 8  # straight pieces of the trend over a clock at most
ROWS = 10  # a piece
SAID = "less their trends over the step of the episode and the steps since the behaviour was entered"  # of coordinates
ROUNDING = 1e-9  # of a coordinate: what is left of one that never changes, or is a trend and nothing else


def clocks(index_N2: np.ndarray, label_N: np.ndarray) -> np.ndarray:
    """Step of the episode and steps since the behaviour was entered, int64 [N, 2], of an index (episode, step)."""
    first_N = np.ones(len(index_N2), bool)
    first_N[1:] = (label_N[1:] != label_N[:-1]) | (np.diff(index_N2, axis=0) != [0, 1]).any(1)
    entered_N = np.maximum.accumulate(np.where(first_N, np.arange(len(index_N2)), 0))
    return np.stack([index_N2[:, 1], index_N2[:, 1] - index_N2[entered_N, 1]], 1)


def trends(clock_N2: np.ndarray) -> np.ndarray:
    """Orthonormal functions of the clocks, of mean 0, float64 [N, Q]: they span all sums of a piecewise linear trend
    over each, bent at quantiles of the rows.  There are as many pieces as there are ROWS for, up to PIECES."""
    pieces = min(PIECES, len(clock_N2) // ROWS)
    bends_B2 = np.quantile(clock_N2, np.arange(pieces) / max(1, pieces), axis=0)
    trend_NQ = np.maximum(clock_N2[:, None] - bends_B2, 0).reshape(len(clock_N2), -1)
    trend_NQ = trend_NQ - trend_NQ.mean(0)
    norm_Q = np.linalg.norm(trend_NQ, axis=0)
    u_NQ, size_Q, _ = np.linalg.svd(trend_NQ[:, norm_Q > 0] / norm_Q[norm_Q > 0], full_matrices=False)
    return u_NQ[:, size_Q > ROUNDING]


def beyond(value_NK: np.ndarray, trend_NQ: np.ndarray) -> np.ndarray:
    """Coordinates less their means and least-squares trends; 0 where nothing but rounding is left."""
    left_NK = value_NK - value_NK.mean(0)
    left_NK -= trend_NQ @ (trend_NQ.T @ left_NK)
    left_NK[:, (np.abs(left_NK) <= ROUNDING * np.abs(value_NK).max(0)).all(0)] = 0
    return left_NK


def taken(value_EMK: np.ndarray, trend_EMQ: np.ndarray) -> np.ndarray:
    """Share of the squares of each coordinate, float64 [K], that a fit of trends takes where every episode has the
    clocks of another: the mean over all permutations.  Zero after an episode's last row, as ``by_episode`` lays them.

    A fit takes as much of what is tested, so that permuted coordinates are fitted again (Freedman and Lane 1983, "A
    nonstochastic interpretation of reported significance levels"); here on average.
    """
    n, square_K = len(value_EMK), np.zeros(value_EMK.shape[2])
    for k in range(len(square_K)):
        for q in range(trend_EMQ.shape[2]):
            # The moments of a sum over random pairs (Hoeffding 1951, "A combinatorial central limit theorem").
            pair_EE = value_EMK[:, :, k] @ trend_EMQ[:, :, q].T
            mean = pair_EE.mean()
            pair_EE += mean - pair_EE.mean(0) - pair_EE.mean(1)[:, None]
            square_K[k] += (pair_EE**2).sum() / (n - 1) + (n * mean) ** 2
    with np.errstate(invalid="ignore"):
        return square_K / (value_EMK**2).sum((0, 1))
