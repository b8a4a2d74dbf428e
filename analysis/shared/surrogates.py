"""Are clusters stable, or is one cloud cut?  Clusterings beside the same clusterings of data that have no clusters.

Any method cuts any cloud, and where the cloud is long it cuts it in the same place every time: one elongated Gaussian
in two halves has an adjusted Rand index of .96 over bootstraps.  So how stable clusters are, and how far apart, says
something only beside surrogates that go the same way (Theiler et al. 1992):

* *gaussian*: one Gaussian of the same covariance; rows are independent;
* *markov*: z[t+1] = R z[t] + (1 - R R')^(1/2) e[t] in whitened coordinates, R the correlations of neighbouring rows of
  an episode (its singular values below 1): Gaussian of the same covariance again, and as slow in time.

Data and surrogates are clustered alike, at the same size: at most about ROWS rows, every n-th of each episode, in their
first DIMS principal components.  N rows, K coordinates, S surrogates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.shared.clusters import NOISE, STEPS_PER_CLUSTER, Clustering, Method, labeller, neighbours_of, rand_indices
from analysis.shared.units import stretches
from core import ranks
from core.artefacts import Result
from core.progress import track
from core.stats import ALPHA, band_of

ROWS = 2000
DIMS = 64
REFITS = 5  # bootstraps of whole episodes, of the data and of every surrogate
ENOUGH = round(2 / ALPHA) - 1  # surrogates whose extremes leave out ALPHA / 2 on either side (core.stats.band_of)
CENTRE = 0.125  # half the width of a slice, in distances of two clusters' centres
KINDS = ("gaussian", "markov")
MEASURES = ("stability", "separation", "clusters")
SAYS = {
    "gaussian": "one Gaussian of the same covariance",
    "markov": "one Gaussian of the same covariance and as slow in time",
}

ONE_CLOUD = "a cut of one cloud"

# rows [N, K] of data or of a surrogate -> the coordinates [N, X] in which they are clustered
Place = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Comparison:
    """``observed`` [3] (MEASURES) of the data and ``draws`` [S, 3] of each kind of surrogate; ``rows`` that were
    clustered.  Stability: mean adjusted Rand index; separation: ``valley``, or DBCV for hdbscan."""

    observed: np.ndarray
    draws: dict[str, np.ndarray]
    rows: int

    def beyond(self, measure: str) -> bool:
        """Whether the data lie above the 95 % band of every kind."""
        i = MEASURES.index(measure)
        return all(self.observed[i] > band_of(draws[:, i], ALPHA)[1] for draws in self.draws.values())

    @property
    def says(self) -> str:
        """What the clusters are, in words."""
        if min(map(len, self.draws.values())) < ENOUGH:
            return f"not compared: at least {ENOUGH} --surrogates are needed"
        # A box is flatter than a Gaussian, so that its cuts are further apart, but there is no valley between them.
        stable = self.beyond("stability")
        apart = self.beyond("separation") and self.observed[MEASURES.index("separation")] > 0
        if stable:
            return "stable clusters" if apart else "stable, but no further apart than the cuts of one cloud"
        return "apart, but no stabler than the cuts of one cloud" if apart else ONE_CLOUD

    def record(self, result: Result, prefix: str = "") -> None:
        """Table ``PREFIXsurrogates``, note ``PREFIXclusters_are``, and scalars of stability beside its surrogates."""
        rows: list[dict[str, Any]] = []
        for i, measure in enumerate(MEASURES):
            for kind, draws in self.draws.items():
                low, high = band_of(draws[:, i], ALPHA)
                mean = float(draws[:, i].mean())
                rows.append({"measure": measure, "surrogate": kind, "observed": float(self.observed[i]), "mean": mean,
                             "low": low, "high": high, "surrogates": len(draws), "rows": self.rows})  # fmt: skip
                if measure == "stability":
                    unit = f"adjusted Rand index on {self.rows:,} rows"
                    result.scalar(f"{prefix}stability_compared", float(self.observed[i]), unit)
                    result.scalar(f"{prefix}stability_{kind}", mean, f"{unit}, {SAYS[kind]}", len(draws), (low, high))
        result.tables[f"{prefix}surrogates"] = rows
        result.notes[f"{prefix}clusters_are"] = self.says


def compare(
    x_NK: np.ndarray, sequence_N: np.ndarray, unit_N: np.ndarray, *, method: Method, clusters: int, surrogates: int,
    seed: int, min_cluster_size: int = 0, place: Place | None = None, samples: float = 1.0,
) -> Comparison:  # fmt: skip
    """The clustering of these rows beside that of ``surrogates`` of each kind.

    sequence_N: rows of one episode are consecutive, in order of time and of equal number; unit_N: what is resampled
    whole.  min_cluster_size: of all N rows (hdbscan; 0: 1 %).  place: what is done to the rows before they are
    clustered, surrogates alike.  samples: see ``analysis.shared.clusters.Clustering``.
    """
    every = -(-len(x_NK) // max(ROWS, STEPS_PER_CLUSTER * clusters))
    x_NK = np.asarray(x_NK, np.float64)
    mean_K = x_NK.mean(0)
    variance_D, axes_KD = np.linalg.eigh(np.atleast_2d(np.cov(x_NK - mean_K, rowvar=False)))
    kept = np.argsort(-variance_D, kind="stable")[:DIMS]
    kept = kept[variance_D[kept] > 1e-10 * variance_D.max()]
    scale_D, white_ND = np.sqrt(variance_D[kept]), (x_NK - mean_K) @ (axes_KD[:, kept] / np.sqrt(variance_D[kept]))
    follow_DD, noise_DD = slowness(white_ND, sequence_N, every)
    sequence_M = sequence_N[::every]
    _, unit_M = np.unique(unit_N[::every], return_inverse=True)
    least = max(STEPS_PER_CLUSTER, round((min_cluster_size or len(x_NK) // 100) / every))

    def measured(white_MD: np.ndarray) -> np.ndarray:
        x_MX = white_MD * scale_D if place is None else place(white_MD * scale_D)
        how = Clustering(method, clusters, least / len(x_MX), starts=1, samples=samples)
        label_M = labeller(x_MX, how, seed)(x_MX)
        found = len(np.unique(label_M[label_M != NOISE]))
        if found < 2:  # nothing is cut: neither stable nor apart
            return np.array([0.0, -1.0, found])
        scores = rand_indices(x_MX, label_M, unit_M, how, seed, REFITS)
        apart = density_validity(x_MX, least, samples) if method == "hdbscan" else valley(x_MX, label_M)
        return np.array([np.mean(scores) if len(scores) else 0.0, apart, found])

    shape, rng = (len(sequence_M), len(kept)), np.random.default_rng(seed)
    states = []  # of the generator before each surrogate: what they draw would fill the memory
    for _ in range(surrogates):
        states.append(rng.bit_generator.state)
        rng.standard_normal((2, *shape))

    def surrogate(state: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        own = np.random.default_rng()
        own.bit_generator.state = state
        gaussian = measured(own.standard_normal(shape))
        return gaussian, measured(walk(own.standard_normal(shape), sequence_M, follow_DD, noise_DD))

    both = track(ranks.each(states, surrogate), "surrogates without clusters", surrogates)
    draws = dict(zip(KINDS, zip(*both, strict=True), strict=True))
    observed = measured(white_ND[::every])
    return Comparison(observed, {kind: np.array(rows) for kind, rows in draws.items()}, len(sequence_M))


def in_words(result: Result, prefix: str = "") -> str:
    """What a recorded comparison says, in one line."""
    here = [row for row in result.tables[f"{prefix}surrogates"] if row["measure"] == "stability"]
    said = ", ".join(f"{row['surrogate']} {row['low']:.2f} to {row['high']:.2f}" for row in here)
    return (
        f"{result.notes[f'{prefix}clusters_are']}: ARI {here[0]['observed']:.2f} on {here[0]['rows']:,} rows, beside "
        f"{here[0]['surrogates']} surrogates without clusters of each kind (95 %: {said})"
    )


def slowness(white_ND: np.ndarray, sequence_N: np.ndarray, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """(R, (1 - R R')^(1/2)) [D, D] of whitened rows: R correlates rows of an episode that are ``lag`` apart."""
    size = white_ND.shape[1]
    pairs = np.flatnonzero(sequence_N[lag:] == sequence_N[:-lag]) if len(sequence_N) > lag else np.zeros(0, np.int64)
    if not len(pairs):
        return np.zeros((size, size)), np.eye(size)
    left_DD, follows_D, right_DD = np.linalg.svd(white_ND[pairs + lag].T @ white_ND[pairs] / len(pairs))
    follows_D = follows_D.clip(0, 1 - 1e-6)
    return (left_DD * follows_D) @ right_DD, left_DD * np.sqrt(1 - follows_D**2)


def walk(noise_MD: np.ndarray, sequence_M: np.ndarray, follow_DD: np.ndarray, noise_DD: np.ndarray) -> np.ndarray:
    """Rows [M, D] of the Markov surrogate, each episode begun anew; noise_MD: standard normal."""
    start_E, length_E = stretches(sequence_M)
    out = noise_MD.copy()
    for t in range(1, int(length_E.max())):
        rows = start_E[length_E > t] + t
        out[rows] = out[rows - 1] @ follow_DD.T + noise_MD[rows] @ noise_DD.T
    return out


def valley(x_NX: np.ndarray, label_N: np.ndarray) -> float:
    """How much sparser it is half-way between two neighbouring clusters than at the sparser of their centres, -1 to 1:
    1 is empty, 0 or less a cloud that goes on.  Mean over clusters, weighted by size, each with its nearest other.

    Density is counted in slices across the line between the centres, among the rows of both clusters; every count is
    taken a standard error to the cautious side, so that a few rows more here than there make no valley.
    """
    labels = np.unique(label_N[label_N != NOISE])
    mean_CX = np.stack([x_NX[label_N == c].mean(0) for c in labels])
    out, size = [], []
    for i, c in enumerate(labels):
        away_C = ((mean_CX - mean_CX[i]) ** 2).sum(1)
        away_C[i] = np.inf
        j = int(away_C.argmin())
        of_both = x_NX[(label_N == c) | (label_N == labels[j])]
        along = (of_both - mean_CX[i]) @ (mean_CX[j] - mean_CX[i]) / away_C[j]
        here, between, there = ((np.abs(along - at) < CENTRE).sum() for at in (0, 0.5, 1))
        top = min(here, there)
        out.append(max(-1.0, 1 - (between + np.sqrt(between)) / max(1.0, top - np.sqrt(top))))
        size.append(int((label_N == c).sum()))
    return float(np.average(out, weights=size))


def density_validity(x_NX: np.ndarray, least: int, samples: float = 1.0) -> float:
    """DBCV of HDBSCAN's clusters in its fast form, -1 to 1 (Moulavi et al. 2014)."""
    from hdbscan import HDBSCAN  # type: ignore[import-untyped]

    around = neighbours_of(samples, least)
    model = HDBSCAN(
        min_cluster_size=least, min_samples=around, gen_min_span_tree=True, core_dist_n_jobs=1
    ).fit(x_NX)  # fmt: skip
    return float(model.relative_validity_)
