"""What hidden_states (h), env_states (d) and latents (z) share: pooled states, directions fitted on them, clusters,
maps, and how far simulated states lie where real ones do.

Directions are fitted on real states where there are any; simulated ones are only projected, so that no
direction is an artefact of the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from analysis.shared.clusters import (
    check_enough,
    cluster_stability,
    k_means,
    nearest_centre,
    record_share_from_time,
)
from analysis.shared.directions import (
    EXACT_SIZE,
    SAMPLES_PER_DIRECTION,
    SPACES,
    check_live,
    check_size,
    fit_ica,
    fit_nmf,
    fit_pca,
    names_left_out,
    neuron_basis,
    say_left_out,
    state_rank,
    varying,
)
from analysis.shared.maps import check_mappable, embed
from analysis.shared.sources import REAL
from analysis.shared.surrogates import compare
from analysis.states.overlap import FEWEST_COMPARED, overlap
from analysis.states.pooled import FitOptions, States
from core.artefacts import Result
from core.contracts import UserError
from core.directions import Basis
from core.stats import LOGIT, jackknife


def check(options: FitOptions) -> None:
    """UserError for settings that mean nothing."""
    least = {"pca_size": 0, "ica_size": 0, "nmf_size": 0, "nmf_states": 0, "first_step": 0, "most_states": 0}
    least["surrogates"] = 0
    least["ica_restarts"] = 2 if options.ica_size else 0  # its stability is known from several
    for name, low in (least | {"outlier_neighbours": 1, "embedding_states": 1}).items():
        if getattr(options, name) < low:
            raise UserError(f"--{name} {getattr(options, name)}: at least {low}")
    if not options.embedding or len(set(options.embedding)) < len(options.embedding):
        raise UserError("--embedding: name at least one map, and none twice (umap, tsne, pca)")


def outliers(h_NH: np.ndarray, neighbours: int) -> np.ndarray:
    """bool [N]: the median distance to the nearest ``neighbours`` lies 2 standard deviations above its mean."""
    from sklearn.neighbors import NearestNeighbors

    check_neighbours(neighbours, len(h_NH))
    z_NH = (h_NH - h_NH.mean(0)) / np.maximum(h_NH.std(0), 1e-12)
    distance, _ = NearestNeighbors(n_neighbors=neighbours).fit(z_NH).kneighbors()
    median_N = np.median(distance, axis=1)
    out: np.ndarray = median_N > median_N.mean() + 2 * median_N.std()
    return out


def check_neighbours(neighbours: int, count: int) -> None:
    """UserError if there are too few states to have so many neighbours."""
    if neighbours >= count:
        raise UserError(f"--outlier_neighbours {neighbours}: there are only {count} states")


# The fit


def fit(states: States, space: str, owner: str, options: FitOptions, seed: int) -> tuple[Result, dict[str, Basis]]:
    """Bases of a space (h, d or z) fitted on the real states (simulated ones where there are no others), and
    everything projected on them.  owner: fingerprint of the agent (h) or simulator (d, z).

    Arrays of the Result, a row a state: ``index`` [N, 2] (episode, t), ``source`` (0 real, 1 simulated), ``value``,
    ``action``, ``reward`` (that followed), ``level`` (-1 unknown), ``kept`` (was fitted on), what ``States.more`` has,
    ``c_pca``, ``c_ica`` and
    ``c_nmf`` [N, K] (standard deviations), ``cluster``; a row a mapped state: ``map`` [M, 2] (the first --embedding;
    further ones ``map_KIND``) and ``map_row``.  Raises UserError for bad input.
    """
    check(options)
    fitted_N = states.fitted_N
    x_MF, unit_M = states.x_NF[fitted_N], states.unit_N[fitted_N]
    live_L = varying(x_MF, space)
    check_sizes(x_MF, unit_M, live_L, len(states.x_NF), space, options)
    dead = names_left_out(live_L, states.x_NF.shape[1], space)
    say_left_out(dead)
    kept_N = fitted_N.copy()
    if options.drop_outliers:
        near_MF = x_MF[:, live_L]
        if x_MF.shape[1] > EXACT_SIZE:  # distances in thousands of dimensions: those in the components' space
            size, said = options.pca_size or state_rank(x_MF, space), f"--pca_size {options.pca_size}"
            basis = fit_pca(x_MF, size, owner, space=space, seed=seed, asked=said)
            near_MF = spread(basis, project(basis, x_MF))
        kept_N[fitted_N] = ~outliers(near_MF, options.outlier_neighbours)
        x_MF, unit_M = states.x_NF[kept_N], states.unit_N[kept_N]
    size = options.pca_size or state_rank(x_MF, space)
    bases = {"pca": fit_pca(x_MF, size, owner, space=space, seed=seed, asked=f"--pca_size {options.pca_size}")}
    # Distances between states, not between whitened coordinates: noise components must not count as much.
    x_NK = spread(bases["pca"], project(bases["pca"], states.x_NF))
    centre_CK = k_means(x_NK[kept_N], options.clusters, seed)
    cluster_N, _ = nearest_centre(x_NK, centre_CK)
    bases |= _more_bases(x_MF, unit_M, space, owner, options, seed)
    if space == "h":
        bases["neurons"] = neuron_basis(x_MF, owner)
    coordinates = {f"c_{k}": project(b, states.x_NF) for k, b in bases.items() if k != "neurons"}
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(x_NK))[: options.embedding_states])
    maps = {k: embed(x_NK[chosen], k, 2, seed).astype(np.float32) for k in options.embedding}
    result = Result(
        arrays={
            "index": states.index_N2,
            "source": states.source_N.astype(np.int8),
            "value": states.value_N,
            "action": states.action_N.astype(np.int16),
            "reward": states.reward_N,
            "level": states.level_N,
            **{name: x.astype(np.float32) for name, x in states.more.items()},
            "kept": kept_N,
            **coordinates,
            "cluster": cluster_N.astype(np.int16),
            "map": maps[options.embedding[0]],
            **{f"map_{k}": maps[k] for k in options.embedding[1:]},
            "map_row": chosen,
        }
    )
    result.notes = {
        "space": space,
        "embedding": options.embedding[0],
        "embeddings": list(options.embedding),
        "hidden_size": states.x_NF.shape[1],
        "units_fitted": len(np.unique(unit_M)),
        "fitted_of": _fitted_of(states, kept_N),
        "fitted_on": "real" if (states.source_N[fitted_N] == REAL).all() else "simulated",
        "left_out": dead,
    }
    for name, read in states.drawn.items():
        read.say(result, name)
    _describe(result, bases, x_NK, states, kept_N, options, rng, seed)
    if 0 < (states.source_N == REAL).sum() < len(states.source_N):
        _compare(result, x_NK, states, seed)
    return result, bases


def _more_bases(
    x_MF: np.ndarray, unit_M: np.ndarray, space: str, owner: str, options: FitOptions, seed: int
) -> dict[str, Basis]:
    """ICA and NMF of these states, where they are asked for.  UserError naming the flag that asks for too much."""
    bases, ica, nmf = {}, options.ica_size, options.nmf_size
    if ica:
        bases["ica"] = fit_ica(
            x_MF, ica, owner, options.ica_restarts, seed, space=space, episode_N=unit_M, asked=f"--ica_size {ica}"
        )
    if nmf:
        bases["nmf"] = fit_nmf(
            x_MF, nmf, owner, seed, space=space, most_states=options.nmf_states, asked=f"--nmf_size {nmf}"
        )
    return bases


def _fitted_of(states: States, kept_N: np.ndarray) -> str:
    """How many independent units the rows are of, in words: where lives share a world, these are fewer than lives."""
    units = len(np.unique(states.unit_N[kept_N]))
    lives = len(np.unique(states.index_N2[kept_N & (states.source_N == REAL), 0]))
    return f"{lives:,} lives in {units:,} worlds" if lives > units else f"{units:,} episodes"


def check_sizes(
    x_MF: np.ndarray, unit_M: np.ndarray, live_L: np.ndarray, mapped: int, space: str, options: FitOptions
) -> None:
    """UserError, before anything is fitted, for what the states are too few or vary in too little for."""
    if (episodes := len(np.unique(unit_M))) < 2:
        raise UserError(f"the states are of {episodes} episode, 2 are needed to say how stable a fit is; record more")
    size_of = {"--pca_size": options.pca_size or 1, "--ica_size": options.ica_size, "--nmf_size": options.nmf_size}

    def beyond(most: int) -> str:
        return " and ".join(f"{flag} {k}" for flag, k in size_of.items() if k > most)

    size, largest = x_MF.shape[1], max(size_of.values())
    check_size(x_MF.shape, largest, 0, space, beyond(size))
    check_live(largest, live_L, size, space, beyond(len(live_L)))
    for flag, k in size_of.items():
        if k:
            samples = k + 1 if flag == "--pca_size" else SAMPLES_PER_DIRECTION * k
            check_size(x_MF.shape, k, samples, space)
    check_enough(len(x_MF), options.clusters)
    for kind in options.embedding:
        check_mappable(min(mapped, options.embedding_states), kind)
    if options.drop_outliers:
        check_neighbours(options.outlier_neighbours, len(x_MF))


def project(basis: Basis, x_NF: np.ndarray) -> np.ndarray:
    """Coordinates float32 [N, K]."""
    with torch.no_grad():
        out: np.ndarray = basis.project(torch.from_numpy(np.asarray(x_NF, np.float32))).numpy()
    return out


def spread(pca: Basis, c_NK: np.ndarray) -> np.ndarray:
    """Principal coordinates in the (z-scored) states' own units: distances of rows are those of states."""
    scale_K: np.ndarray = pca.lift_KH.norm(dim=1).numpy()
    return c_NK * scale_K


def _describe(
    result: Result, bases: Mapping[str, Basis], x_NK: np.ndarray, states: States, kept_N: np.ndarray,
    options: FitOptions, rng: np.random.Generator, seed: int,
) -> None:  # fmt: skip
    """The scalars and tables: explained variance, stability of ICA and of the clusters, and their share of time."""
    episode_M, t_M = states.index_N2[kept_N].T
    _, unit_M = np.unique(states.unit_N[kept_N], return_inverse=True)
    episodes = unit_M.max() + 1
    pca = bases["pca"]
    held_EK = np.zeros((episodes, x_NK.shape[1]))
    np.add.at(held_EK, unit_M, x_NK[kept_N].astype(np.float64) ** 2)
    live = (pca.lift_KH != 0).any(0).numpy()
    z_MF = ((states.x_NF[kept_N] - pca.mean_H.numpy()) / pca.std_H.numpy())[:, live]
    total_E = np.bincount(unit_M, np.einsum("nf,nf->n", z_MF, z_MF, dtype=np.float64))
    value, low, high = jackknife(
        lambda rows: held_EK[rows].sum(0).cumsum() / total_E[rows].sum(), np.arange(episodes), rng=rng, link=LOGIT
    )
    result.tables["explained"] = [
        {
            "components": k + 1,
            "share": float(value[k]),
            "low": float(low[k]),
            "high": float(high[k]),
            "n": int(episodes),
        }
        for k in range(len(value))
    ]
    of = "share of z-scored variance" if SPACES[pca.space].z_scored else "share of variance"
    for k in sorted({2, options.ica_size, 16, len(value)} - {0}):
        if k <= len(value):
            result.scalar(f"pca_explained_{k}", value[k - 1], of, episodes, (low[k - 1], high[k - 1]))
    if "ica" in bases:
        ica = bases["ica"].facts
        rows = zip(ica["stability"], ica["match"], ica["explained"], strict=True)
        result.tables["ica"] = [
            {"direction": name, "stability": s, "match": m, "explained": e}
            for name, (s, m, e) in zip(bases["ica"].names, rows, strict=True)
        ]
        stability = np.array(ica["stability"])
        result.scalar("ica_stability_median", float(np.median(stability)), "Iq, 1 is stable", episodes)
        result.scalar("ica_stability_least", float(stability.min()), "Iq, 1 is stable", episodes)
        result.scalar("ica_restarts_converged", ica["restarts_converged"], f"of {ica['restarts']} restarts")
        result.notes["ica_converged"] = ica["converged"]
    if "nmf" in bases:
        nmf = bases["nmf"].facts
        result.scalar("nmf_relative_error", nmf["relative_error"], "of the states' norm", nmf["states"])
        result.notes["nmf_converged"] = nmf["converged"]
    left = float(states.fitted_N.sum() - kept_N.sum())
    result.scalar("outliers", left, "states left out of the fit")
    label_M = result.arrays["cluster"][kept_N].astype(np.int64)
    ari = cluster_stability(x_NK[kept_N], label_M, unit_M, clusters=options.clusters, seed=seed)
    result.scalar("cluster_stability", ari.value, "adjusted Rand index", ari.n, (ari.low, ari.high))
    if options.surrogates:
        compare(
            x_NK[kept_N], states.index_N2[kept_N, 0], unit_M, method="k_means", clusters=options.clusters,
            surrogates=options.surrogates, seed=seed,
        ).record(result, "cluster_")  # fmt: skip
    record_share_from_time(result, "cluster_", label_M, t_M, episode_M, episodes=episodes, rng=rng, together_N=unit_M)


# Real against simulated


def _compare(result: Result, x_NK: np.ndarray, states: States, seed: int) -> None:
    """Table ``overlap`` and its scalars, of what the agent does by itself; a note instead where there are too few
    states or episodes."""
    by_itself = states.by_itself_N
    real_N = (states.source_N == REAL)[by_itself]
    unit_N = states.unit_N[by_itself]
    counts = [len(np.unique(unit_N[m])) for m in (real_N, ~real_N)]
    explored = len(np.unique(states.unit_N[~by_itself]))
    if explored:
        result.notes["explored"] = (
            f"compared without {explored} episodes in which the agent explored and the samples that start in them"
        )
    if min(real_N.sum(), (~real_N).sum()) < FEWEST_COMPARED or min(counts) < 4:
        without = "; record others without exploration (record.py without --explore_share)" if explored else ""
        result.notes["overlap"] = (
            f"left out: {real_N.sum()} real states of {counts[0]} episodes and {(~real_N).sum()} simulated ones of "
            f"{counts[1]} are too few{without}"
        )
        return
    result.tables["overlap"] = overlap(x_NK[by_itself], result.arrays["c_pca"][by_itself], real_N, unit_N, seed)
    for row in result.tables["overlap"]:
        name = f"overlap_{row['measure']}"
        result.scalar(name, row["simulated"], row["unit"], row["n"], (row["low"], row["high"]))
        floor = row["floor_low"], row["floor_high"]
        result.scalar(f"{name}_floor", row["floor"], f"{row['unit']}, real against real", row["n"], floor)
