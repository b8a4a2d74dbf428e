"""Clusters of steps: three methods, their stability over episodes, and how much of them is just time.

Shared by hidden_states (clusters of h) and behaviours (clusters of short histories).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from analysis.shared.units import stretches
from core import ranks
from core.artefacts import Result
from core.contracts import UserError
from core.progress import track
from core.stats import ALPHA, Estimate, band_of, eta_squared

Method = Literal["k_means", "ward", "hdbscan"]
NOISE = -1  # the label of what HDBSCAN leaves in no cluster
STEPS_PER_CLUSTER = 5  # fewer and a centre is a handful of neighbouring frames
STARTS = 4  # of k-means
WARD_POINTS = 4000  # of a Ward tree: its memory grows with their square (64 MB here)
TIME_BINS = 20


def k_means(x_NF: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """Centres float64 [clusters, F], the largest cluster first.

    Raises UserError if there are too few points, or so few different ones that a cluster would be empty.
    """
    check_enough(len(x_NF), clusters)
    centre_CF, count_C = _fit_centres(x_NF, clusters, seed)
    _check_not_empty(count_C)
    return centre_CF[np.argsort(-count_C, kind="stable")]


def check_enough(steps: int, clusters: int) -> None:
    """UserError if there are too few steps for so many clusters."""
    if clusters < 2:
        raise UserError(f"--clusters {clusters}: at least 2 are needed")
    if steps < STEPS_PER_CLUSTER * clusters:
        raise UserError(
            f"{steps} steps are too few for {clusters} clusters ({STEPS_PER_CLUSTER} a cluster); "
            "record more or ask for fewer --clusters"
        )


def _check_not_empty(count_C: np.ndarray) -> None:
    if not count_C.all():
        raise UserError(
            f"the {count_C.sum()} steps show only {int((count_C > 0).sum())} different states, so that of "
            f"{len(count_C)} clusters some would be empty; ask for fewer --clusters, or record more varied rollouts"
        )


def neighbours_of(samples: float, least: int) -> int:
    """HDBSCAN's ``min_samples``: ``samples`` times the smallest cluster, at least 1."""
    return max(1, round(samples * least))


Label = Callable[[np.ndarray], np.ndarray]  # points [N, F] -> their clusters int64 [N]


class Clustering(NamedTuple):
    """How points are clustered."""

    method: Method
    clusters: int  # k_means, ward
    least_share: float = 0.0  # hdbscan: the smallest cluster, as a share of the fitted points
    starts: int = STARTS  # k_means: the best is kept
    samples: float = 1.0  # hdbscan: points around each that say how dense it is there, in smallest clusters

    @classmethod
    def of(cls, method: Method, clusters: int, min_cluster_size: int, rows: int, samples: float = 1.0) -> Clustering:
        """min_cluster_size: of so many rows; 0: 1 % of them."""
        return cls(method, clusters, min_cluster_size / rows or 0.01, samples=samples)


class Clusters(NamedTuple):
    """Clusters of points, the largest 0: label int64 [N]; distance from the cluster's mean [N], NaN for NOISE; and what
    puts further points into them, as they are."""

    label_N: np.ndarray
    distance_N: np.ndarray
    place: Label


def find_clusters(
    x_NF: np.ndarray, method: Method, *, clusters: int, min_cluster_size: int = 0, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(label of every point int64 [N], the largest cluster 0; its distance from its cluster's mean [N]):
    ``fit_clusters``."""
    return fit_clusters(x_NF, method, clusters=clusters, min_cluster_size=min_cluster_size, seed=seed)[:2]


def fit_clusters(
    x_NF: np.ndarray, method: Method, *, clusters: int, min_cluster_size: int = 0, seed: int
) -> Clusters:  # fmt: skip
    """Clusters of all points.

    k_means: of ``clusters``.  ward: a tree of at most WARD_POINTS points drawn at random, cut into ``clusters``; every
    point then belongs to the nearest of their means.  hdbscan: as many as there are that have ``min_cluster_size``
    points (0: 1 % of them); what is in none is NOISE, at distance NaN.  Raises UserError for too few points, for a
    cluster that would be empty, and where HDBSCAN finds none.
    """
    if method == "hdbscan":
        if min_cluster_size and min_cluster_size < STEPS_PER_CLUSTER:
            raise UserError(f"--min_cluster_size {min_cluster_size}: at least {STEPS_PER_CLUSTER}")
        least = min_cluster_size or max(STEPS_PER_CLUSTER, len(x_NF) // 100)
        if len(x_NF) < 2 * least:
            raise UserError(
                f"{len(x_NF)} steps are too few for two clusters of --min_cluster_size {least}; record more"
            )
        label = labeller(x_NF, Clustering(method, clusters, least / len(x_NF)), seed)
        label_N = label(x_NF)
        if label_N.max() < 0:
            raise UserError(
                f"hdbscan finds no cluster of {least} or more of the {len(x_NF)} steps, all are noise: set a smaller "
                "--min_cluster_size, try --embedding umap, or --method k_means"
            )
    else:
        check_enough(len(x_NF), clusters)
        label = labeller(x_NF, Clustering(method, clusters), seed)
        label_N = label(x_NF)
        _check_not_empty(np.bincount(label_N, minlength=clusters))
    count_C = np.bincount(label_N[label_N >= 0])
    place_C = np.argsort(np.argsort(-count_C, kind="stable"))

    def by_size(label_N: np.ndarray) -> np.ndarray:
        return np.where(label_N >= 0, place_C[label_N], NOISE)

    label_N = by_size(label_N)
    distance_N = np.full(len(x_NF), np.nan)
    for c in range(len(count_C)):
        here = label_N == c
        distance_N[here] = np.linalg.norm(x_NF[here] - x_NF[here].mean(0), axis=1)
    return Clusters(label_N, distance_N, lambda x_PF: by_size(label(x_PF)))


def labeller(fitted_MF: np.ndarray, how: Clustering, seed: int) -> Label:
    """What labels points by the clusters of the fitted ones, which are in any order and perhaps empty.  The array of
    the fitted points itself gets the labels that they were given (hdbscan)."""
    if how.method != "hdbscan":
        ward = how.method == "ward"
        centre_CF = (
            _ward_centres(fitted_MF, how.clusters, seed)
            if ward
            else _fit_centres(fitted_MF, how.clusters, seed, how.starts)[0]
        )
        return lambda x_NF: nearest_centre(x_NF, centre_CF)[0]
    from hdbscan import HDBSCAN, approximate_predict  # type: ignore[import-untyped]

    least = max(STEPS_PER_CLUSTER, round(how.least_share * len(fitted_MF)))
    near = neighbours_of(how.samples, least)

    def quietly(work: Callable[[], Any]) -> Any:
        with warnings.catch_warnings():
            # Where there is no cluster it says so; the labels say it too.
            warnings.filterwarnings("ignore", message="Clusterer does not have any defined clusters")
            return work()

    model = quietly(
        lambda: HDBSCAN(min_cluster_size=least, min_samples=near, prediction_data=True, core_dist_n_jobs=1).fit(
            fitted_MF
        )
    )

    def label(x_NF: np.ndarray) -> np.ndarray:
        found_N = model.labels_ if x_NF is fitted_MF else quietly(lambda: approximate_predict(model, x_NF)[0])
        return np.asarray(found_N, np.int64)

    return label


def _ward_centres(x_NF: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """Means float64 [clusters, F] of the clusters that Ward's tree is cut into."""
    from sklearn.cluster import AgglomerativeClustering

    if len(x_NF) > WARD_POINTS:
        x_NF = x_NF[np.random.default_rng(seed).choice(len(x_NF), WARD_POINTS, replace=False)]
    label_N = AgglomerativeClustering(clusters, linkage="ward").fit_predict(np.asarray(x_NF, np.float64))
    return np.stack([x_NF[label_N == c].mean(0) for c in range(clusters)])


def _fit_centres(x_NF: np.ndarray, clusters: int, seed: int, starts: int = STARTS) -> tuple[np.ndarray, np.ndarray]:
    """k-means: (centres float64 [clusters, F], how many points each has)."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Fewer different points than clusters: the counts say so.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(clusters, n_init=starts, random_state=seed).fit(np.asarray(x_NF, np.float64))
    return model.cluster_centers_, np.bincount(model.labels_, minlength=clusters)


def nearest_centre(x_NF: np.ndarray, centre_CF: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(index of the nearest centre int64 [N], distance to it [N])."""
    squared_NC = (x_NF**2).sum(1)[:, None] - 2 * x_NF @ centre_CF.T + (centre_CF**2).sum(1)
    label_N = squared_NC.argmin(1)
    return label_N, np.sqrt(np.maximum(squared_NC[np.arange(len(x_NF)), label_N], 0))


def cluster_stability(
    x_NF: np.ndarray,
    label_N: np.ndarray,
    unit_N: np.ndarray,
    *,
    clusters: int,
    seed: int,
    repeats: int = 20,
    method: Method = "k_means",
    min_cluster_size: int = 0,
    samples: float = 1.0,
) -> Estimate:
    """Agreement (adjusted Rand index, 1 same, 0 chance) of ``label_N`` with the method refitted on bootstraps of
    whole episodes; every refit labels all points.

    unit_N: which episode a row belongs to.  The interval is the 2.5 and 97.5 percentile over refits; n counts
    episodes.  F coordinates are held fixed: a refit does not redo what made them.  A Ward refit draws its points
    anew.  HDBSCAN takes each drawn episode once, as copies would be peaks of density, and asks for the same share of
    points a cluster; its noise counts as one more class.  samples: see ``Clustering``.  Raises UserError for one
    episode, which says nothing of stability.
    """
    if (units := len(np.unique(unit_N))) < 2:
        raise UserError(f"{units} episode is too few to say how stable clusters are; record at least 2")
    how = Clustering.of(method, clusters, min_cluster_size, len(x_NF), samples)
    scores = rand_indices(x_NF, label_N, unit_N, how, seed, repeats, said="cluster stability")
    if not len(scores):
        raise UserError("episodes are too short to say how stable clusters are; record longer ones, or more")
    low, high = np.percentile(scores, [2.5, 97.5])
    return Estimate(float(np.mean(scores)), float(low), float(high), units)


def rand_indices(
    x_NF: np.ndarray, label_N: np.ndarray, unit_N: np.ndarray, how: Clustering, seed: int, repeats: int, said: str = ""
) -> np.ndarray:
    """Adjusted Rand indices of ``label_N`` with ``repeats`` refits on bootstraps of whole units; those that drew too
    few points are left out (``cluster_stability``).  torchrun's processes share the refits; said: of a bar, where there
    is one."""
    from sklearn.metrics import adjusted_rand_score

    rng = np.random.default_rng(seed)
    units, inverse_N = np.unique(unit_N, return_inverse=True)
    rows = np.split(np.argsort(inverse_N, kind="stable"), np.cumsum(np.bincount(inverse_N))[:-1])
    draws = [rng.integers(len(units), size=len(units)) for _ in range(repeats)]

    def score(repeat: int) -> float | None:
        picks = draws[repeat]
        drawn = np.concatenate([rows[u] for u in (np.unique(picks) if how.method == "hdbscan" else picks)])
        if len(drawn) < (2 * STEPS_PER_CLUSTER if how.method == "hdbscan" else how.clusters):
            return None  # short episodes only
        refit_N = labeller(x_NF[drawn], how, seed + 1 + repeat)(x_NF)
        return float(adjusted_rand_score(label_N, refit_N))

    scores = ranks.each(range(repeats), score)
    return np.array([x for x in (track(scores, said, repeats) if said else scores) if x is not None])


def time_bins(t_N: np.ndarray) -> np.ndarray:
    """Step numbers -> int64 bin numbers [N], at most TIME_BINS bins of about equal counts."""
    edges = np.unique(np.quantile(t_N, np.linspace(0, 1, TIME_BINS + 1)[1:-1]))
    return np.searchsorted(edges, t_N, side="right")


def share_from_time(label_N: np.ndarray, t_N: np.ndarray) -> float:
    """Mutual information of label and (binned) step number, normalised by the labels' entropy: I(label; time) /
    H(label), 0 to 1.

    NOISE is a label like others.
    """
    label_N = label_N - min(label_N.min(), 0)
    counts_LT = np.zeros((label_N.max() + 1, TIME_BINS))
    np.add.at(counts_LT, (label_N, time_bins(t_N)), 1)
    joint = counts_LT / counts_LT.sum()
    label, time = joint.sum(1, keepdims=True), joint.sum(0, keepdims=True)
    some = joint > 0
    mutual = (joint[some] * np.log(joint[some] / (label * time)[some])).sum()
    entropy = -(label[label > 0] * np.log(label[label > 0])).sum()
    return float(mutual / entropy) if entropy > 0 else 0.0


def rotated_rows(episode_N: np.ndarray, rng: np.random.Generator, together_N: np.ndarray | None = None) -> np.ndarray:
    """Row numbers int64 [N] in which every episode is rotated by a shift of its own: ``label_N[rotated]`` keeps runs,
    lengths and label frequencies and loses only the alignment with time.  Rows of an episode must be consecutive.

    together_N: episodes of one such group are rotated by the same share of their lengths, so that what they have in
    common (a clock, an event) stays common.
    """
    starts, lengths = stretches(episode_N)
    position_N = np.arange(len(episode_N)) - np.repeat(starts, lengths)
    groups, group_E = np.unique((episode_N if together_N is None else together_N)[starts], return_inverse=True)
    if len(groups) == len(starts):
        shift_E = rng.integers(lengths)
    else:
        shift_E = (rng.random(len(groups))[group_E] * lengths).astype(np.int64)
    return np.repeat(starts, lengths) + (position_N + np.repeat(shift_E, lengths)) % np.repeat(lengths, lengths)


def share_from_time_floor(
    label_N: np.ndarray, t_N: np.ndarray, episode_N: np.ndarray, *, rng: np.random.Generator, repeats: int = 100,
    together_N: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """``share_from_time`` [repeats] where every episode's labels are rotated by a shift of its own (``rotated_rows``).

    What finite data give by themselves.  A floor to read the share against, not a test (a rotation joins an
    episode's end to its beginning).  Rows of an episode must be consecutive.
    """
    return np.array([share_from_time(label_N[rotated_rows(episode_N, rng, together_N)], t_N) for _ in range(repeats)])


def record_share_from_time(
    result: Result,
    prefix: str,
    label_N: np.ndarray,
    t_N: np.ndarray,
    episode_N: np.ndarray,
    *,
    episodes: int,
    rng: np.random.Generator,
    together_N: np.ndarray | None = None,
) -> None:
    """Put ``PREFIXshare_from_time`` and its floor, with the rotations' 95 % range, into a result."""
    floor = share_from_time_floor(label_N, t_N, episode_N, rng=rng, together_N=together_N)
    name, unit = f"{prefix}share_from_time", "I(label; time) / H(label)"
    result.scalar(name, share_from_time(label_N, t_N), unit, episodes)
    rotated = f"{unit}, labels rotated within episodes"
    result.scalar(f"{name}_floor", float(floor.mean()), rotated, episodes, band_of(floor, ALPHA))


def time_eta2(member_N: np.ndarray, t_N: np.ndarray) -> float:
    """``core.stats.eta_squared`` of membership (bool [N]) over time bins; 0 where all, or none, are members."""
    bin_N = time_bins(t_N)
    count_1B, all_B = (np.bincount(b, minlength=TIME_BINS) for b in (bin_N[np.asarray(member_N, bool)], bin_N))
    return float(np.nan_to_num(eta_squared(count_1B[None], all_B))[0])
