"""Fit directions of the hidden state: PCA, ICA with its stability, NMF, single neurons, random ones.

Every basis here is affine on z-scored states and scaled so that each coordinate has mean 0 and
standard deviation 1 over the states it was fitted on: a shift of 1 is one standard deviation, and
gradients of two directions can be compared.  For ICA this is METHODS §4's
``h = mean + std * (C^T diag(sqrt(lambda)) A c)`` with C the principal components and A the mixing.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import torch

from core.contracts import UserError
from core.directions import Basis

SMALLEST_SHARE = 1e-8  # of the largest variance: below it a component is rounding error, not a direction
SAMPLES_PER_DIRECTION = 10  # ICA and NMF are meaningless with fewer


def fit_pca(h_NH: np.ndarray, k: int, agent: str = "") -> Basis:
    """Principal components of z-scored states, largest variance first, signs by skewness.

    h_NH: float [N, H].  k <= H directions.  facts: ``explained`` (share of the z-scored variance a
    direction holds), ``n``.  Raises UserError for too few samples, constant columns or NaN.
    """
    mean_H, std_H, x_NH = _z_score(h_NH, k, samples=k + 1)
    components_KH, variance_K = _components(x_NH, k)
    whitened_NK = x_NH @ (components_KH / np.sqrt(variance_K)[:, None]).T
    components_KH *= _skew_sign(whitened_NK)[:, None]
    scale_K1 = np.sqrt(variance_K)[:, None]
    facts = {"n": len(x_NH), "explained": (variance_K / x_NH.shape[1]).tolist()}
    return _basis("pca", mean_H, std_H, (components_KH / scale_K1).T, components_KH * scale_K1, agent, facts)


def fit_ica(
    h_NH: np.ndarray,
    k: int,
    agent: str = "",
    restarts: int = 20,
    seed: int = 0,
    *,
    episode_N: np.ndarray | None = None,
    max_iterations: int = 500,
    tolerance: float = 1e-4,
) -> Basis:
    """Independent components of the whitened first k principal components, most stable first.

    FastICA (Hyvärinen 1999, tanh contrast) runs ``restarts`` times, each from another start and on
    another bootstrap of whole episodes (of rows where ``episode_N`` is None).  All estimates are
    clustered by |correlation| with average linkage into k clusters; a cluster's index
    Iq = mean similarity inside - mean similarity to the rest (Icasso; Himberg & Hyvärinen 2003): 1 is
    perfectly stable, near 0 is arbitrary (a Gaussian subspace).  The basis is FastICA on all rows,
    started from the clusters' centrotypes.

    facts: ``stability`` [k] Iq, in the basis' (descending) order; ``match`` [k] |correlation| of a
    direction with its centrotype; ``explained`` [k] share of variance; ``converged`` of the final fit;
    ``restarts_converged`` how many of ``restarts`` did.  Non-convergence is also printed to stderr;
    the estimates of restarts that did not converge stay in, since leaving them out flatters Iq.
    Raises UserError for bad input.
    """
    if restarts < 2:
        raise UserError(f"ICA needs at least 2 restarts to know its stability, got {restarts}")
    mean_H, std_H, x_NH = _z_score(h_NH, k, samples=SAMPLES_PER_DIRECTION * k)
    if episode_N is not None and len(episode_N) != len(x_NH):
        raise ValueError(f"episode_N has {len(episode_N)} rows, h_NH has {len(x_NH)}")
    components_KH, variance_K = _components(x_NH, k)
    white_NK = x_NH @ (components_KH / np.sqrt(variance_K)[:, None]).T
    rng = np.random.default_rng(seed)
    groups = _groups(episode_N)

    estimates, converged = [], 0
    for _ in range(restarts):
        rows = _resample(groups, len(white_NK), rng)
        unmixing_KK, good = _bootstrap_ica(white_NK[rows], rng, max_iterations, tolerance)
        estimates.append(unmixing_KK)
        converged += good
    stability_K, centrotypes_KK = icasso(np.concatenate(estimates), k)

    final_KK, final_converged = _fast_ica(white_NK, _orthogonal(centrotypes_KK), max_iterations, tolerance)
    order, match_K = _pair(centrotypes_KK, final_KK)
    final_KK = final_KK[order] * _skew_sign(white_NK @ final_KK[order].T)[:, None]
    if converged < restarts or not final_converged:
        print(
            f"warning: FastICA did not converge in {max_iterations} iterations in {restarts - converged} of {restarts} "
            f"restarts{'' if final_converged else ' nor in the final fit'}; see the basis' facts",
            file=sys.stderr,
        )
    # White coordinates w = x C^T / sqrt(lambda); sources c = w W^T with W orthogonal, so w = c W.
    project_HK = (components_KH / np.sqrt(variance_K)[:, None]).T @ final_KK.T
    lift_KH = final_KK @ (components_KH * np.sqrt(variance_K)[:, None])
    facts = {
        "n": len(x_NH),
        "stability": stability_K.tolist(),
        "match": match_K.tolist(),
        "explained": ((lift_KH**2).sum(1) / x_NH.shape[1]).tolist(),
        "converged": final_converged,
        "restarts": restarts,
        "restarts_converged": converged,
        "resampled": "rows" if episode_N is None else "episodes",
    }
    return _basis("ica", mean_H, std_H, project_HK, lift_KH, agent, facts)


def fit_nmf(h_NH: np.ndarray, k: int, agent: str = "", seed: int = 0, *, max_iterations: int = 500) -> Basis:
    """Non-negative factors of the z-scored states counted from their minimum, largest share first.

    ``lift`` are the factors; ``project`` is their pseudo-inverse (least squares), so a coordinate is
    the factor's unconstrained code minus its mean, in standard deviations: 0 is the mean, as in every basis,
    and codes are not clipped at zero.  facts: ``explained``, ``relative_error`` of the factorisation,
    ``converged``.  Raises UserError for bad input, or if the factors found are linearly dependent.
    """
    from sklearn.decomposition import NMF
    from sklearn.exceptions import ConvergenceWarning

    mean_H, std_H, x_NH = _z_score(h_NH, k, samples=SAMPLES_PER_DIRECTION * k)
    positive_NH = x_NH - x_NH.min(0)
    model = NMF(k, init="nndsvda", random_state=seed, max_iter=max_iterations)
    converged = not _caught(ConvergenceWarning, lambda: model.fit(positive_NH))
    if not converged:
        print(f"warning: NMF did not converge in {max_iterations} iterations; see the basis' facts", file=sys.stderr)
    factors_KH = model.components_
    if np.linalg.matrix_rank(factors_KH, tol=1e-6 * np.linalg.norm(factors_KH, 2)) < k:
        raise UserError(f"NMF found linearly dependent factors for k = {k}; ask for fewer directions")
    project_HK = np.linalg.pinv(factors_KH)
    scale_K = (x_NH @ project_HK).std(0)
    lift_KH, project_HK = factors_KH * scale_K[:, None], project_HK / scale_K
    explained_K = (lift_KH**2).sum(1) / x_NH.shape[1]
    order = np.argsort(-explained_K)
    facts = {
        "n": len(x_NH),
        "explained": explained_K[order].tolist(),
        "relative_error": float(model.reconstruction_err_ / np.linalg.norm(positive_NH)),
        "converged": converged,
    }
    return _basis("nmf", mean_H, std_H, project_HK[:, order], lift_KH[order], agent, facts)


def neuron_basis(h_NH: np.ndarray, agent: str = "") -> Basis:
    """The H neurons themselves as directions, z-scored.  Raises UserError for constant columns or NaN."""
    mean_H, std_H, x_NH = _z_score(h_NH, k=1, samples=2)
    eye = np.eye(x_NH.shape[1])
    return _basis("neurons", mean_H, std_H, eye, eye, agent, {"n": len(x_NH)})


def random_basis(basis: Basis, k: int, rng: np.random.Generator) -> Basis:
    """k random orthogonal directions of the z-scored state space, norm-matched to ``basis``.

    Direction j's change of the z-scored state has the norm of ``basis.lift_KH[j % basis.size]``, so an
    equal amount moves the state equally far.  A control: direction i of a k-direction draw is matched
    to direction i.  For many controls in a small space draw often with small k.  Raises UserError for
    k > H.
    """
    size = len(basis.mean_H)
    if not 1 <= k <= size:
        raise UserError(f"{k} orthogonal random directions do not fit into {size} dimensions; draw several bases")
    directions_HK, r_KK = np.linalg.qr(rng.standard_normal((size, k)))
    directions_HK = directions_HK * np.sign(np.diag(r_KK))  # uniform over orthogonal frames (Mezzadri 2007)
    norm_K = basis.lift_KH.double().norm(dim=1).cpu().numpy()[np.arange(k) % basis.size]
    mean_H, std_H = basis.mean_H.double().cpu().numpy(), basis.std_H.double().cpu().numpy()
    project_HK, lift_KH = directions_HK / norm_K, (directions_HK * norm_K).T
    out = _basis("random", mean_H, std_H, project_HK, lift_KH, basis.agent, {"matched": basis.kind}, basis.space)
    return out.to(device=basis.mean_H.device, dtype=basis.mean_H.dtype)


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


def _z_score(h_NH: np.ndarray, k: int, samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean_H, std_H, z-scored float64 [N, H]), or a UserError saying what is wrong with the states."""
    x_NH = np.asarray(h_NH, np.float64)
    if x_NH.ndim != 2:
        raise ValueError(f"states must be [N, H], got shape {x_NH.shape}")
    n, size = x_NH.shape
    if not 1 <= k <= size:
        raise UserError(f"k = {k} directions: the hidden state has {size} dimensions, choose 1 to {size}")
    if n < samples:
        raise UserError(f"{n} states are too few for {k} directions; at least {samples} are needed: record more")
    broken = np.flatnonzero(~np.isfinite(x_NH).all(0))
    if len(broken):
        raise UserError(f"the states have NaN or infinite values (neuron {broken[0]}); record the rollouts again")
    mean_H, std_H = x_NH.mean(0), x_NH.std(0)
    constant = np.flatnonzero(std_H <= 1e-7 * np.maximum(1, np.abs(mean_H)))
    if len(constant):
        raise UserError(
            f"{len(constant)} neuron(s) never change (the first is {constant[0]}), so there is nothing to z-score; "
            "record more varied rollouts, or use another checkpoint"
        )
    return mean_H, std_H, (x_NH - mean_H) / std_H


def state_rank(h_NH: np.ndarray) -> int:
    """How many independent directions the states [N, H] vary in; the most that ``fit_pca`` can give."""
    _, _, x_NH = _z_score(h_NH, 1, samples=2)
    variance_H = np.linalg.eigvalsh(x_NH.T @ x_NH / len(x_NH))
    return int((variance_H > SMALLEST_SHARE * variance_H[-1]).sum())


def _components(x_NH: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The first k principal components [k, H] of centred rows and their variances [k]."""
    variance_H, vectors_HH = np.linalg.eigh(x_NH.T @ x_NH / len(x_NH))
    variance_K, components_KH = variance_H[::-1][:k], vectors_HH[:, ::-1][:, :k].T.copy()
    rank = int((variance_H > SMALLEST_SHARE * variance_H[-1]).sum())
    if rank < k:
        raise UserError(f"the states vary in only {rank} independent directions, not in k = {k}; ask for fewer")
    return components_KH, variance_K


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
    sample_NK: np.ndarray, rng: np.random.Generator, max_iterations: int, tolerance: float
) -> tuple[np.ndarray, bool]:
    """FastICA from a random start on a bootstrap, in the coordinates of the whole (white) data."""
    k = sample_NK.shape[1]
    centred_NK = sample_NK - sample_NK.mean(0)
    variance_K, vectors_KK = np.linalg.eigh(centred_NK.T @ centred_NK / len(centred_NK))
    if variance_K[0] <= SMALLEST_SHARE * variance_K[-1]:
        raise UserError(f"a bootstrap of the episodes does not span {k} directions; record more episodes or lower k")
    whiten_KK = vectors_KK / np.sqrt(variance_K)
    start_KK = _orthogonal(rng.standard_normal((k, k)))
    unmixing_KK, converged = _fast_ica(centred_NK @ whiten_KK, start_KK, max_iterations, tolerance)
    return unmixing_KK @ whiten_KK.T, converged


def _fast_ica(
    white_NK: np.ndarray, start_KK: np.ndarray, max_iterations: int, tolerance: float
) -> tuple[np.ndarray, bool]:
    """(orthogonal unmixing rows [K, K], whether it converged) of white rows."""
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    model = FastICA(whiten=False, fun="logcosh", w_init=start_KK, max_iter=max_iterations, tol=tolerance)
    converged = not _caught(ConvergenceWarning, lambda: model.fit(white_NK))
    return model.components_, converged


def _pair(reference_KK: np.ndarray, found_KK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order of ``found`` rows that best matches ``reference``, and each pair's |correlation|."""
    from scipy.optimize import linear_sum_assignment

    similarity_KK = np.abs(reference_KK @ found_KK.T)
    rows, columns = linear_sum_assignment(-similarity_KK)
    return columns, similarity_KK[rows, columns]


def _caught(category: type[Warning], call: Any) -> bool:
    """Whether ``call()`` warned of ``category``; other warnings go on as they would have."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", category)
        call()
    found = [w for w in caught if issubclass(w.category, category)]
    for other in caught:
        if other not in found:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    return bool(found)


def _basis(
    kind: str,
    mean_H: np.ndarray,
    std_H: np.ndarray,
    project_HK: np.ndarray,
    lift_KH: np.ndarray,
    agent: str,
    facts: dict[str, Any],
    space: str = "h",
) -> Basis:
    mean, std, project, lift = (torch.from_numpy(np.array(a, np.float32)) for a in (mean_H, std_H, project_HK, lift_KH))
    return Basis(kind, mean, std, project, lift, agent=agent, space=space, facts=facts)
