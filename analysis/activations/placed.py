"""A map and clusters of more rows than one can make them from: some are chosen, the others placed afterwards.

Whether that is as good is measured on the chosen rows, whose clusters are known: map and clusters are made again from
half of their lives, and the rows of the other half placed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analysis.activations.config import ActivationsConfig
from analysis.activations.density import find, share_of_least
from analysis.shared.maps import umaps
from core.contracts import UserError
from core.stats import Estimate, jackknife

LEAST_LIVES = 4  # two that map and clusters are made from again, two whose rows are placed


def evenly(rows: int, most: int) -> np.ndarray | None:
    """int64 [most]: so many of the rows 0 to ``rows`` - 1, as far apart as can be; of rows that lie life by life every
    life and every part of it has its share.  None where all are few enough, or most is 0."""
    if not 0 < most < rows:
        return None
    return np.floor((np.arange(most) + 0.5) * rows / most).astype(np.int64)


class Cost(NamedTuple):
    """Adjusted Rand index between the clusters of all chosen rows and those made from half of their lives, by whole
    lives: of rows that were placed, and of those that they were made from (what half of the data costs by itself)."""

    placed: Estimate
    remade: Estimate


def cost(
    x_NF: np.ndarray, label_N: np.ndarray, life_N: np.ndarray, fitted_M: np.ndarray, config: ActivationsConfig,
    rng: np.random.Generator,
) -> Cost:  # fmt: skip
    """x: what is mapped, or clustered itself with --cluster_before_umap; label: the clusters of all rows.  UserError
    for too few lives."""
    from sklearn.metrics import adjusted_rand_score

    x_MF, label_M, life_M = x_NF[fitted_M], label_N[fitted_M], life_N[fitted_M]
    lives = np.unique(life_M)
    if len(lives) < LEAST_LIVES:
        raise UserError(
            f"--fit_rows {len(fitted_M)}: what that costs cannot be measured on {len(lives)} lives; at least "
            f"{LEAST_LIVES} are needed"
        )
    half_M = np.isin(life_M, rng.permutation(lives)[: len(lives) // 2])
    rows = np.flatnonzero(half_M)
    if not config.cluster_before_umap:
        (x_MF,) = umaps(
            x_MF, (2,), neighbours=config.umap_neighbors, min_dist=config.min_dist, seed=config.seed, fitted_M=rows
        )
    least = share_of_least(config.hdbscan_min_cluster, len(fitted_M), len(x_NF))
    again_M = find(x_MF, least, config.threads, rows).label_N

    def agreement(of_M: np.ndarray) -> Estimate:
        label_P, again_P, life_P = label_M[of_M], again_M[of_M], life_M[of_M]

        def ari(chosen: np.ndarray) -> float:
            return float(adjusted_rand_score(label_P[chosen], again_P[chosen]))

        value, low, high = jackknife(ari, life_P, rng=rng)
        return Estimate(float(value), float(low), float(high), len(np.unique(life_P)))

    return Cost(agreement(~half_M), agreement(half_M))
