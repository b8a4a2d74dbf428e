"""Fit directions of a state space: PCA, ICA with its stability, NMF, single neurons, random ones.

Every basis here is affine on z-scored states (latents are only centred: see ``SPACES``) and scaled so
that each coordinate has mean 0 and standard deviation 1 over the states it was fitted on: a shift of 1 is
one standard deviation, and gradients of two directions can be compared.  For ICA this is METHODS §4's
``h = mean + std * (C^T diag(sqrt(lambda)) A c)`` with C the principal components and A the mixing.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from core import ranks
from core.contracts import UserError
from core.directions import Basis
from core.progress import track
from core.words import counted

SMALLEST_SHARE = 1e-8  # of the largest variance: below it a component is rounding error, not a direction
SAMPLES_PER_DIRECTION = 10  # ICA and NMF are meaningless with fewer
EXACT_SIZE = 1000  # dimensions up to which all principal components are computed, in float64
NAMED = 12  # of the numbers left out, in a line
OVERSAMPLES = 64  # further components that the randomised solver carries, so that the last ones are right too


class Space(NamedTuple):
    """How the states of a space are named in messages, and what is done with them before a fit."""

    state: str
    unit: str  # one of its numbers
    z_scored: bool  # else only centred


SPACES = {
    "h": Space("hidden state", "neuron", True),
    "d": Space("world state", "unit", True),
    # A latent's scale has a meaning (the prior's deviation is 1), which z-scoring would undo: a number that
    # the encoder does not use would count as much as one it does.
    "z": Space("latent", "dimension", False),
}


class Components(NamedTuple):
    """Scores [N, K] of rows on principal components, share of the variance of each float64 [K], and what gives those of
    further rows."""

    scores_NK: np.ndarray
    share_K: np.ndarray
    project: Callable[[np.ndarray], np.ndarray]


def principal_scores(x_NF: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(scores [N, K], share of the variance of each, float64 [K]): ``principal_components``."""
    return principal_components(x_NF, size)[:2]


def principal_components(x_NF: np.ndarray, size: int) -> Components:
    """The first K = min(size, rank) principal components of the rows; K is 0 where nothing changes.

    Centred, not scaled: for columns of comparable units.  Beyond EXACT_SIZE dimensions by the randomised solver.
    """
    from sklearn.decomposition import PCA

    if not np.ptp(x_NF, axis=0).any():
        return Components(np.zeros((len(x_NF), 0), x_NF.dtype), np.zeros(0), lambda x_PF: x_PF[:, :0])
    solver = "randomized" if x_NF.shape[1] > EXACT_SIZE else "covariance_eigh"
    model = PCA(min(size, *x_NF.shape), svd_solver=solver, n_oversamples=OVERSAMPLES, random_state=0)
    scores_NK = model.fit_transform(x_NF)
    kept = model.explained_variance_ > 1e-10 * model.explained_variance_[0]
    share_K = model.explained_variance_ratio_[kept].astype(np.float64)
    return Components(scores_NK[:, kept], share_K, lambda x_PF: model.transform(x_PF)[:, kept])


def fit_pca(
    h_NH: np.ndarray, k: int, agent: str = "", *, space: str = "h", seed: int = 0, asked: str = ""
) -> Basis:  # fmt: skip
    """Principal components of z-scored states, largest variance first, signs by skewness.

    h_NH: float [N, H].  k <= H directions.  facts: ``explained`` (share of the z-scored variance a
    direction holds), ``n``, and ``left_out`` (names of the numbers that never change, see ``names_left_out``) where
    there are any.  More than 1000 dimensions: by scikit-learn's randomised solver (Halko et al. 2011) in float32.
    asked: by which flag, for messages ("--pca_size 9").  Raises UserError for too few samples, states that never
    change or vary in fewer directions, or NaN.
    """
    scaled = _scale(h_NH, k, k + 1, space)
    components_KL, variance_K = _components(scaled, k, seed, asked)
    whitened_NK = scaled.x_NL @ (components_KL / np.sqrt(variance_K)[:, None]).T.astype(scaled.x_NL.dtype)
    components_KL *= _skew_sign(whitened_NK)[:, None]
    scale_K1 = np.sqrt(variance_K)[:, None]
    facts = {"n": len(scaled.x_NL), "explained": (variance_K / scaled.variance).tolist()}
    return scaled.basis("pca", (components_KL / scale_K1).T, components_KL * scale_K1, agent, facts)


def fit_ica(
    h_NH: np.ndarray,
    k: int,
    agent: str = "",
    restarts: int = 20,
    seed: int = 0,
    *,
    space: str = "h",
    episode_N: np.ndarray | None = None,
    max_iterations: int = 500,
    tolerance: float = 1e-6,
    asked: str = "",
) -> Basis:
    """Independent components of the whitened first k principal components, most stable first.

    The criterion is FastICA's (Hyvärinen 1999, tanh contrast, symmetric), of which Picard-O finds a stationary point
    (Ablin, Cardoso & Gramfort 2018: preconditioned L-BFGS on rotations); FastICA's own iteration goes round and round
    where components are nearly Gaussian, so that its number of iterations and the processor's rounding choose them.
    It runs ``restarts`` times, each from another start and on another bootstrap of whole episodes (of rows where
    ``episode_N`` is None).  All estimates are clustered by |correlation| with average linkage into k clusters; a
    cluster's index Iq = mean similarity inside - mean similarity to the rest (Icasso; Himberg & Hyvärinen 2003): 1 is
    perfectly stable, near 0 is arbitrary (a Gaussian subspace).  The basis is that of all rows, started from the
    clusters' centrotypes.

    facts: ``stability`` [k] Iq, in the basis' (descending) order; ``match`` [k] |correlation| of a
    direction with its centrotype; ``explained`` [k] share of variance; ``converged`` of the final fit;
    ``restarts_converged`` how many of ``restarts`` did (the largest entry of the gradient below ``tolerance``).
    Non-convergence is also printed to stderr; the estimates of restarts that did not converge stay in, since leaving
    them out flatters Iq.
    asked: as in ``fit_pca``.  Raises UserError for bad input.
    """
    if restarts < 2:
        raise UserError(f"ICA needs at least 2 restarts to know its stability, got {restarts}")
    scaled = _scale(h_NH, k, SAMPLES_PER_DIRECTION * k, space)
    if episode_N is not None and len(episode_N) != len(scaled.x_NL):
        raise ValueError(f"episode_N has {len(episode_N)} rows, h_NH has {len(scaled.x_NL)}")
    components_KL, variance_K = _components(scaled, k, seed, asked)
    white_NK = scaled.x_NL.astype(np.float64) @ (components_KL / np.sqrt(variance_K)[:, None]).T
    rng = np.random.default_rng(seed)
    groups = _groups(episode_N)

    def restart(drawn: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, bool]:
        rows, start_KK = drawn
        return _bootstrap_ica(white_NK[rows], start_KK, max_iterations, tolerance)

    draws = [(_resample(groups, len(white_NK), rng), _orthogonal(rng.standard_normal((k, k)))) for _ in range(restarts)]
    estimates, converged = [], 0
    for unmixing_KK, good in track(ranks.each(draws, restart), "ICA restarts", restarts):
        estimates.append(unmixing_KK)
        converged += good
    stability_K, centrotypes_KK = icasso(np.concatenate(estimates), k)

    final_KK, final_converged = _unmix(white_NK, _orthogonal(centrotypes_KK), max_iterations, tolerance)
    order, match_K = _pair(centrotypes_KK, final_KK)
    final_KK = final_KK[order] * _skew_sign(white_NK @ final_KK[order].T)[:, None]
    failed = [f"{restarts - converged} of {restarts} restarts"] if converged < restarts else []
    failed += [] if final_converged else ["the final fit"]
    if failed:
        print(
            f"warning: ICA did not converge in {max_iterations} iterations in {' and in '.join(failed)}; "
            "see the basis' facts",
            file=sys.stderr,
        )
    # White coordinates w = x C^T / sqrt(lambda); sources c = w W^T with W orthogonal, so w = c W.
    project_LK = (components_KL / np.sqrt(variance_K)[:, None]).T @ final_KK.T
    lift_KL = final_KK @ (components_KL * np.sqrt(variance_K)[:, None])
    facts = {
        "n": len(white_NK),
        "stability": stability_K.tolist(),
        "match": match_K.tolist(),
        "explained": ((lift_KL**2).sum(1) / scaled.variance).tolist(),
        "converged": final_converged,
        "restarts": restarts,
        "restarts_converged": converged,
        "resampled": "rows" if episode_N is None else "episodes",
    }
    return scaled.basis("ica", project_LK, lift_KL, agent, facts)


def fit_nmf(
    h_NH: np.ndarray,
    k: int,
    agent: str = "",
    seed: int = 0,
    *,
    space: str = "h",
    most_states: int = 0,
    max_iterations: int = 500,
    asked: str = "",
) -> Basis:
    """Non-negative factors of the z-scored states counted from their minimum, largest share first.

    ``lift`` are the factors; ``project`` is their pseudo-inverse (least squares), so a coordinate is
    the factor's unconstrained code minus its mean, in standard deviations: 0 is the mean, as in every basis,
    and codes are not clipped at zero.  most_states: the factors are found on that many states, drawn at
    random, and scaled on all (0: all of them).  facts: ``explained``, ``relative_error`` of the factorisation,
    ``states``, ``converged``.  asked: as in ``fit_pca``.  Raises UserError for bad input, or if the factors found are
    linearly dependent.
    """
    from sklearn.decomposition import NMF
    from sklearn.exceptions import ConvergenceWarning

    scaled = _scale(h_NH, k, SAMPLES_PER_DIRECTION * k, space)
    some_NL = scaled.x_NL
    if 0 < most_states < len(some_NL):
        most_states = max(most_states, SAMPLES_PER_DIRECTION * k)
        some_NL = some_NL[np.sort(np.random.default_rng(seed).permutation(len(some_NL))[:most_states])]
    positive_NL = some_NL - some_NL.min(0)
    model = NMF(k, init="nndsvda", random_state=seed, max_iter=max_iterations)
    converged = not caught(ConvergenceWarning, lambda: model.fit(positive_NL))
    if not converged:
        print(f"warning: NMF did not converge in {max_iterations} iterations; see the basis' facts", file=sys.stderr)
    factors_KL = model.components_.astype(np.float64)
    if np.linalg.matrix_rank(factors_KL, tol=1e-6 * np.linalg.norm(factors_KL, 2)) < k:
        raise UserError(f"NMF found linearly dependent factors for {asked or f'k = {k}'}; ask for fewer directions")
    project_LK = np.linalg.pinv(factors_KL)
    scale_K = (scaled.x_NL @ project_LK).std(0)
    lift_KL, project_LK = factors_KL * scale_K[:, None], project_LK / scale_K
    explained_K = (lift_KL**2).sum(1) / scaled.variance
    order = np.argsort(-explained_K)
    facts = {
        "n": len(scaled.x_NL),
        "states": len(some_NL),
        "explained": explained_K[order].tolist(),
        "relative_error": float(model.reconstruction_err_ / np.linalg.norm(positive_NL)),
        "converged": converged,
    }
    return scaled.basis("nmf", project_LK[:, order], lift_KL[order], agent, facts)


def neuron_basis(h_NH: np.ndarray, agent: str = "") -> Basis:
    """The H neurons themselves as directions, z-scored; direction i is neuron i.

    One that never changes has a standard deviation of 0: its coordinate is always 0 and moves nothing, and
    ``Basis.check`` refuses it by name.  Raises UserError if none changes, or for NaN.
    """
    scaled = _scale(h_NH, 1, 2, "h")
    live_HL = np.eye(len(scaled.mean_H))[:, scaled.live_L]
    return scaled.basis("neurons", live_HL.T, live_HL, agent, {"n": len(scaled.x_NL)})


def icasso(estimates_MK: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Cluster unit-norm component estimates [M, K] of white data by |correlation|.

    Returns the index Iq [k], descending, and each cluster's centrotype [k, K].
    """
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    unit_MK = estimates_MK / np.linalg.norm(estimates_MK, axis=1, keepdims=True)
    similarity_MM = np.abs(unit_MK @ unit_MK.T).clip(0, 1)
    np.fill_diagonal(similarity_MM, 1)
    tree = linkage(squareform(1 - similarity_MM, checks=False), "average")
    cluster_M = cut_tree(tree, n_clusters=k)[:, 0]
    index_K, centrotype_KK = np.zeros(k), np.zeros((k, unit_MK.shape[1]))
    for c in range(k):
        inside = cluster_M == c
        within = similarity_MM[np.ix_(inside, inside)]
        beyond = similarity_MM[np.ix_(inside, ~inside)]
        index_K[c] = within.mean() - (beyond.mean() if beyond.size else 0)
        centrotype_KK[c] = unit_MK[np.flatnonzero(inside)[within.sum(1).argmax()]]
    order = np.argsort(-index_K)
    return index_K[order], centrotype_KK[order]


@dataclass(frozen=True)
class _Scaled:
    """States of a space as they are fitted: ``x_NL`` centred (and z-scored), without the numbers that never change."""

    x_NL: np.ndarray  # float64; float32 beyond EXACT_SIZE dimensions
    mean_H: np.ndarray
    std_H: np.ndarray  # what a state is divided by: 1 where it is not
    live_L: np.ndarray  # which numbers of a state vary
    space: str

    @property
    def variance(self) -> float:
        """Of the fitted states, summed over their numbers."""
        if SPACES[self.space].z_scored:
            return float(self.x_NL.shape[1])
        return float(np.einsum("nl,nl->", self.x_NL, self.x_NL, dtype=np.float64) / len(self.x_NL))

    def basis(self, kind: str, project_LK: np.ndarray, lift_KL: np.ndarray, agent: str, facts: dict[str, Any]) -> Basis:
        """A basis of the whole space; what never changes is neither read nor moved."""
        size, k = len(self.mean_H), len(lift_KL)
        project_HK, lift_KH = np.zeros((size, k)), np.zeros((k, size))
        project_HK[self.live_L], lift_KH[:, self.live_L] = project_LK, lift_KL
        if dead := names_left_out(self.live_L, size, self.space):
            facts = {**facts, "left_out": dead}
        arrays = (self.mean_H, self.std_H, project_HK, lift_KH)
        mean, std, project, lift = (torch.from_numpy(np.array(a, np.float32)) for a in arrays)
        return Basis(kind, mean, std, project, lift, agent=agent, space=self.space, facts=facts)


def _scale(h_NH: np.ndarray, k: int, samples: int, space: str) -> _Scaled:
    """The states as they are fitted, or a UserError saying what is wrong with them."""
    about = SPACES[space]
    x_NH = np.asarray(h_NH, np.float64 if np.shape(h_NH)[-1] <= EXACT_SIZE else np.float32)
    if x_NH.ndim != 2:
        raise ValueError(f"states must be [N, H], got shape {x_NH.shape}")
    n, size = x_NH.shape
    check_size(x_NH.shape, k, samples, space)
    live_L = varying(x_NH, space)
    mean_H = x_NH.mean(0, dtype=np.float64)
    std_H = np.ones(size)
    if about.z_scored:
        std_H[live_L] = x_NH.std(0, dtype=np.float64)[live_L]
    check_live(k, live_L, size, space)
    x_NL = x_NH if len(live_L) == size else x_NH[:, live_L]
    x_NL = (x_NL - mean_H[live_L].astype(x_NL.dtype)) / std_H[live_L].astype(x_NL.dtype)
    return _Scaled(x_NL, mean_H, std_H, live_L, space)


def check_size(shape_NH: tuple[int, ...], k: int, samples: int, space: str, asked: str = "") -> None:
    """UserError if the space has no k directions, or there are too few states for them.  asked: by which flags."""
    n, size = shape_NH
    if not 1 <= k <= size:
        asked, dimensions = asked or f"k = {k}", counted(size, "dimension")
        raise UserError(f"{asked} directions: the {SPACES[space].state} has {dimensions}, choose 1 to {size}")
    if n < samples:
        raise UserError(f"{n} states are too few for {k} directions; at least {samples} are needed: record more")


def check_live(k: int, live_L: np.ndarray, size: int, space: str, asked: str = "") -> None:
    """UserError if fewer than k numbers of the state ever change.  asked: by which flags."""
    if k > len(live_L):
        raise UserError(
            f"{asked or f'k = {k}'} directions: only {len(live_L)} of the {SPACES[space].state}'s {size} dimensions "
            "ever change; ask for fewer"
        )


def varying(h_NH: np.ndarray, space: str = "h") -> np.ndarray:
    """Which columns of the states [N, H] change at all, int64 [L].

    The others (a ReLU that is never on, what a trained world model leaves unused) have no scale, and no fit that
    z-scores has a use for them.  Raises UserError naming a column with NaN or infinite values, or where none changes.
    """
    about = SPACES[space]
    broken = np.flatnonzero(~np.isfinite(h_NH).all(0))
    if len(broken):
        raise UserError(f"the states have NaN or infinite values ({about.unit} {broken[0]}); record the rollouts again")
    changes_H = changing(h_NH)
    if not changes_H.any():
        raise UserError(
            f"none of the {about.state}'s {len(changes_H)} {about.unit}s ever changes, so there is nothing to fit; "
            "record more varied rollouts, or use another checkpoint"
        )
    return np.flatnonzero(changes_H)


def changing(h_NH: np.ndarray) -> np.ndarray:
    """Which columns of the states [N, H] change by more than rounding errors, bool [H]."""
    mean_H, std_H = h_NH.mean(0, dtype=np.float64), h_NH.std(0, dtype=np.float64)
    out: np.ndarray = std_H > 1e-7 * np.maximum(1, np.abs(mean_H))
    return out


def names_left_out(live_L: np.ndarray, size: int, space: str = "h") -> list[str]:
    """The names (``neuron 3``) of a state's numbers that are not among ``live_L`` (see ``varying``)."""
    return [f"{SPACES[space].unit} {i}" for i in np.setdiff1d(np.arange(size), live_L)]


def say_left_out(names: Sequence[str]) -> None:
    """One line on standard error, if there are any."""
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        print(f"warning: left out, since they never change: {', '.join(names[:NAMED])}{more}", file=sys.stderr)


def state_rank(h_NH: np.ndarray, space: str = "h") -> int:
    """How many independent directions the states [N, H] vary in; the most that ``fit_pca`` can give."""
    x_NL = _scale(h_NH, 1, 2, space).x_NL.astype(np.float64)
    n, size = x_NL.shape
    variance = np.linalg.eigvalsh((x_NL.T @ x_NL if size <= n else x_NL @ x_NL.T) / n)
    return int((variance > SMALLEST_SHARE * variance[-1]).sum())


def _components(scaled: _Scaled, k: int, seed: int, asked: str = "") -> tuple[np.ndarray, np.ndarray]:
    """The first k principal components [k, L] of the states and their variances [k]."""
    from sklearn.decomposition import PCA

    x_NL = scaled.x_NL
    n, size = x_NL.shape
    most = min(n - 1, size)
    if size <= EXACT_SIZE:
        model = PCA(min(k, n), svd_solver="covariance_eigh")
    elif k + OVERSAMPLES < most // 2:
        model = PCA(k, svd_solver="randomized", n_oversamples=OVERSAMPLES, random_state=seed)
    else:  # a random subspace of nearly all dimensions is no cheaper
        model = PCA(min(k, n), svd_solver="full")
    model.fit(x_NL)
    variance_K = model.explained_variance_.astype(np.float64) * (n - 1) / n
    smallest = max(SMALLEST_SHARE, 10 * float(np.finfo(x_NL.dtype).eps))
    rank = int((variance_K > smallest * variance_K[0]).sum())
    if rank < k:
        raise UserError(
            f"the states vary in only {rank} independent directions, not in {asked or f'k = {k}'}; ask for {rank} at "
            "most"
        )
    return model.components_.astype(np.float64), variance_K


def _skew_sign(c_NK: np.ndarray) -> np.ndarray:
    """+1 or -1 [K]: the sign that makes each column's skewness positive."""
    third_K = ((c_NK - c_NK.mean(0)) ** 3).mean(0)
    return np.where(third_K < 0, -1.0, 1.0)


def _groups(episode_N: np.ndarray | None) -> list[np.ndarray] | None:
    if episode_N is None:
        return None
    order = np.argsort(episode_N, kind="stable")
    _, starts = np.unique(episode_N[order], return_index=True)
    return np.split(order, starts[1:])


def _resample(groups: list[np.ndarray] | None, n: int, rng: np.random.Generator) -> np.ndarray:
    """Row indices of one bootstrap: of whole groups, or of n rows."""
    if groups is None:
        return rng.integers(n, size=n)
    return np.concatenate([groups[g] for g in rng.integers(len(groups), size=len(groups))])


def _orthogonal(w_KK: np.ndarray) -> np.ndarray:
    """The closest orthogonal matrix (symmetric decorrelation)."""
    u, _, v = np.linalg.svd(w_KK)
    out: np.ndarray = u @ v
    return out


def _bootstrap_ica(
    sample_NK: np.ndarray, start_KK: np.ndarray, max_iterations: int, tolerance: float
) -> tuple[np.ndarray, bool]:
    """ICA from an (orthogonal) start on a bootstrap, in the coordinates of the whole (white) data."""
    k = sample_NK.shape[1]
    centred_NK = sample_NK - sample_NK.mean(0)
    variance_K, vectors_KK = np.linalg.eigh(centred_NK.T @ centred_NK / len(centred_NK))
    if variance_K[0] <= SMALLEST_SHARE * variance_K[-1]:
        raise UserError(f"a bootstrap of the episodes does not span {k} directions; record more episodes or lower k")
    whiten_KK = vectors_KK / np.sqrt(variance_K)
    unmixing_KK, converged = _unmix(centred_NK @ whiten_KK, start_KK, max_iterations, tolerance)
    return unmixing_KK @ whiten_KK.T, converged


def _unmix(
    white_NK: np.ndarray, start_KK: np.ndarray, max_iterations: int, tolerance: float
) -> tuple[np.ndarray, bool]:
    """(orthogonal unmixing rows [K, K], whether it converged) of white rows."""
    from picard import picard

    options = {"whiten": False, "centering": False, "w_init": start_KK, "max_iter": max_iterations, "tol": tolerance}
    found: list[np.ndarray] = []  # whitening, unmixing, sources
    converged = not caught(UserWarning, lambda: found.extend(picard(white_NK.T, **options)))
    return found[1], converged


def _pair(reference_KK: np.ndarray, found_KK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order of ``found`` rows that best matches ``reference``, and each pair's |correlation|."""
    from scipy.optimize import linear_sum_assignment

    similarity_KK = np.abs(reference_KK @ found_KK.T)
    rows, columns = linear_sum_assignment(-similarity_KK)
    return columns, similarity_KK[rows, columns]


def caught(category: type[Warning], call: Any) -> bool:
    """Whether ``call()`` warned of ``category``; other warnings go on as they would have."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category)
        call()
    found = [w for w in caught if issubclass(w.category, category)]
    for other in caught:
        if other not in found:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return bool(found)
