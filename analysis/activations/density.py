"""Density clusters of activations, and how far they can be trusted.

What is clustered, by default, is a map (UMAP), which pulls apart what hangs together only loosely: clusters of a map
are no evidence by themselves.  Principal components can be clustered instead.

N rows, H units of an activation.  (HDBSCAN: Campello, Moulavi and Sander 2013.  DBCV: Moulavi and others 2014.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from analysis.shared.clusters import NOISE, cluster_stability, neighbours_of
from analysis.shared.placed import share_of_least
from core.stats import Estimate, shares

STABILITY_ROWS = 8000  # refitted in more dimensions than a map has, where HDBSCAN is slow; whole lives


class Clustering(NamedTuple):
    """HDBSCAN's clusters, the largest 0, and its condensed tree, a row an edge.

    ``tree_child`` below M, the rows that were clustered, is one of them, else a branch; ``tree_lambda`` one over the
    distance at which it leaves ``tree_parent``.
    """

    label_N: np.ndarray  # int64, NOISE in none
    probability_N: np.ndarray  # float64, how deep in its cluster
    tree_parent: np.ndarray
    tree_child: np.ndarray
    tree_lambda: np.ndarray
    tree_size: np.ndarray
    dbcv: float  # -1 to 1, NaN with fewer than two clusters


def find(
    x_NF: np.ndarray, min_cluster_size: int, threads: int, fitted_M: np.ndarray | None = None, samples: float = 1.0
) -> Clustering:
    """HDBSCAN of the rows; all NOISE where it finds no cluster.  ``dbcv`` is its fast form, from the spanning tree.

    fitted_M: rows that are clustered; the others are put into the finished clusters (none: all are clustered).
    min_cluster_size: of all N rows, and of fewer as many fewer; samples: as in ``analysis.shared.clusters.Clustering``.
    """
    from hdbscan import HDBSCAN, approximate_predict

    x_NF = np.asarray(x_NF, np.float64)
    fitted_M = np.arange(len(x_NF)) if fitted_M is None else fitted_M
    other_P = np.setdiff1d(np.arange(len(x_NF)), fitted_M)
    least = min_cluster_size if not len(other_P) else share_of_least(min_cluster_size, len(fitted_M), len(x_NF))
    model = HDBSCAN(
        min_cluster_size=least, min_samples=neighbours_of(samples, least), gen_min_span_tree=True,
        core_dist_n_jobs=threads, prediction_data=len(other_P) > 0,
    )  # fmt: skip
    model.fit(x_NF[fitted_M])
    label_N, probability_N = np.full(len(x_NF), NOISE), np.zeros(len(x_NF))
    label_N[fitted_M], probability_N[fitted_M] = model.labels_, model.probabilities_
    if len(other_P) and model.labels_.max() >= 0:
        label_N[other_P], probability_N[other_P] = approximate_predict(model, x_NF[other_P])
    count_C = np.bincount(label_N[label_N >= 0])
    place_C = np.argsort(np.argsort(-count_C, kind="stable"))
    tree = model.condensed_tree_.to_numpy()
    return Clustering(
        np.where(label_N >= 0, place_C[label_N] if len(count_C) else NOISE, NOISE),
        probability_N,
        tree["parent"].astype(np.int64),
        tree["child"].astype(np.int64),
        tree["lambda_val"].astype(np.float64),
        tree["child_size"].astype(np.int64),
        float(model.relative_validity_) if len(count_C) > 1 else np.nan,
    )


def stability(
    x_NF: np.ndarray, label_N: np.ndarray, life_N: np.ndarray, *, min_cluster_size: int, seed: int, repeats: int,
    samples: float = 1.0,
) -> tuple[Estimate, int]:  # fmt: skip
    """(``cluster_stability`` of HDBSCAN over bootstraps of lives, the rows it looked at).

    The coordinates are held fixed.  In more than 3 dimensions only about STABILITY_ROWS rows of lives drawn at random.
    """
    rows = np.arange(len(x_NF))
    if x_NF.shape[1] > 3 and len(rows) > STABILITY_ROWS:
        order = np.random.default_rng(seed).permutation(int(life_N.max()) + 1)
        kept = order[: max(2, int(np.searchsorted(np.cumsum(np.bincount(life_N)[order]), STABILITY_ROWS)))]
        rows = np.flatnonzero(np.isin(life_N, kept))
    least = share_of_least(min_cluster_size, len(rows), len(x_NF))
    found = cluster_stability(
        np.asarray(x_NF[rows], np.float64), label_N[rows], life_N[rows], clusters=0, seed=seed, repeats=repeats,
        method="hdbscan", min_cluster_size=least, samples=samples,
    )  # fmt: skip
    return found, len(rows)


def transitions(
    label_N: np.ndarray,
    life_N: np.ndarray,
    *,
    rng: np.random.Generator,
    shuffles: int = 100,
    unit_E: np.ndarray | None = None,
) -> tuple[Estimate, np.ndarray]:
    """(share of consecutive records of a life, both in a cluster, that are in different ones; the same [shuffles] where
    every life's records are in random order).  NaN where there are no such records.  unit_E: 0 to U-1, which lives are
    not independent (none: every life is its own unit)."""
    unit_E = np.arange(int(life_N.max()) + 1) if unit_E is None else unit_E

    def pairs(labels: np.ndarray) -> np.ndarray:
        """(changes, pairs) of every unit, [U, 2]."""
        both = (life_N[1:] == life_N[:-1]) & (labels[1:] != NOISE) & (labels[:-1] != NOISE)
        changed = both & (labels[1:] != labels[:-1])
        return np.stack([np.bincount(unit_E[life_N[1:]], w, int(unit_E.max()) + 1) for w in (changed, both)], 1)

    def rate(pairs_U2: np.ndarray) -> float:
        changed, both = pairs_U2.sum(0)
        return float(changed / both) if both else np.nan

    pairs_U2 = pairs(label_N)
    value, low, high, units = (x[0] for x in shares(pairs_U2[:, :1], pairs_U2[:, 1:]))
    floor = [rate(pairs(label_N[np.lexsort((rng.random(len(label_N)), life_N))])) for _ in range(shuffles)]
    return Estimate(float(value), float(low), float(high), int(units)), np.array(floor)


def rolling_mean(x_TF: np.ndarray, window: int) -> np.ndarray:
    """Mean of each row and the ``window`` - 1 before it, of fewer at the beginning; float64 [T, F]."""
    total_TF = np.cumsum(np.asarray(x_TF, np.float64), 0)
    out: Any = total_TF.copy()
    out[window:] -= total_TF[:-window]
    return out / np.minimum(np.arange(1, len(out) + 1), window)[:, None]
