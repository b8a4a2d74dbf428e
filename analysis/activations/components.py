"""Principal components of activations and the features of the game: what of one is told by the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.activations.verdicts import rounded
from core.stats import ATANH, LOST, jackknifed, left_out

FOLDS = 5  # of units


def relations(
    pc_NK: np.ndarray, features_NF: np.ndarray, names: Sequence[str], unit_N: np.ndarray, *, rng: np.random.Generator,
    resamples: int,
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Tables ``pca_features`` (Pearson r of every component and feature, with intervals over units) and ``pca_r2``
    (R^2 of every feature read from all components together, and of every component from all features, in units not
    fitted on).  unit: 0 to E-1, what is independent (a world or a life).

    Everything comes from the moments of each unit, so that to resample units is to add matrices up.  What never changes
    has neither.
    """
    units, k = int(unit_N.max()) + 1, pc_NK.shape[1]
    z_ND = np.concatenate([pc_NK, features_NF], 1).astype(np.float64)
    std_D = z_ND.std(0)
    flat_D = std_D <= 1e-12 * np.abs(z_ND).max(0)
    z_ND = (z_ND - z_ND.mean(0)) / np.where(flat_D, 1, std_D)
    z_ND[:, flat_D] = 0
    z_ND = np.concatenate([np.ones((len(z_ND), 1)), z_ND], 1)
    order = np.argsort(unit_N, kind="stable")
    starts = np.cumsum(np.bincount(unit_N))[:-1]
    moments_EDD = np.stack([part.T @ part for part in np.split(z_ND[order], starts)])

    def correlation(m_RDD: np.ndarray) -> np.ndarray:
        """[R, K, F] from sums of products."""
        mean_RD = m_RDD[:, 0, 1:] / m_RDD[:, :1, 0]
        cov_RDD = m_RDD[:, 1:, 1:] / m_RDD[:, :1, :1] - mean_RD[:, :, None] * mean_RD[:, None]
        variance_RD = np.diagonal(cov_RDD, axis1=1, axis2=2)
        with np.errstate(divide="ignore", invalid="ignore"):
            out = cov_RDD / np.sqrt(variance_RD[:, :, None] * variance_RD[:, None])
        return np.where(np.isfinite(out), out, np.nan)[:, :k, k:]

    r_KF = correlation(moments_EDD.sum(0)[None])[0]
    weight_GE = left_out(units, rng)
    by_left_out = correlation(np.tensordot(weight_GE, moments_EDD, 1))
    _, low_KF, high_KF = jackknifed(by_left_out, rng=rng, link=ATANH, draws=resamples)
    table = [
        {"component": i, "feature": name, "r": rounded(r_KF[i, f]), "low": rounded(low_KF[i, f]),
         "high": rounded(high_KF[i, f])}
        for i in range(k)
        for f, name in enumerate(names)
    ]  # fmt: skip
    pcs, features = 1 + np.arange(k), 1 + k + np.arange(len(names))
    fold_E = rng.permutation(units) % min(FOLDS, units)
    r2 = []
    for kind, x, y, of in (
        ("feature", pcs, features, list(names)),
        ("component", features, pcs, [f"PC {i}" for i in range(k)]),
    ):
        value, low, high = _held_out_r2(moments_EDD, np.r_[0, x], y, fold_E, weight_GE, rng, resamples)
        r2 += [
            {
                "kind": kind,
                "name": name,
                "r2": rounded(value[j]),
                "low": rounded(low[j]),
                "high": rounded(high[j]),
                "n": units,
            }
            for j, name in enumerate(of)
        ]
    return {"pca_features": table, "pca_r2": r2}


def _held_out_r2(
    moments_EDD: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    fold_E: np.ndarray,
    weight_GE: np.ndarray,
    rng: np.random.Generator,
    resamples: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(R^2, low, high) of columns y by least squares on columns x, each unit by a fit on the units of other folds."""
    error_EY, spread_EY = np.full((2, len(moments_EDD), len(y)), np.nan)
    for fold in np.unique(fold_E) if fold_E.max() else []:
        train = moments_EDD[fold_E != fold].sum(0)
        ridge = 1e-9 * np.trace(train[np.ix_(x, x)]) * np.eye(len(x))  # columns may be constant or copies of each other
        b_XY = np.linalg.solve(train[np.ix_(x, x)] + ridge, train[np.ix_(x, y)])
        mean_Y = train[0, y] / train[0, 0]
        for e in np.flatnonzero(fold_E == fold):
            m = moments_EDD[e]
            squares_Y = m[y, y]
            error_EY[e] = squares_Y - 2 * (b_XY * m[np.ix_(x, y)]).sum(0) + (b_XY * (m[np.ix_(x, x)] @ b_XY)).sum(0)
            spread_EY[e] = squares_Y - 2 * mean_Y * m[0, y] + m[0, 0] * mean_Y**2

    def r2(error: np.ndarray, spread: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(spread > 1e-9, 1 - error / spread, np.nan)

    return jackknifed(r2(weight_GE @ error_EY, weight_GE @ spread_EY), rng=rng, link=LOST, draws=resamples)
