"""What hidden_states (h), env_states (d) and latents (z) share: pooled states, directions fitted on them, clusters,
maps, and how far simulated states lie where real ones do.

Directions are fitted on real states where there are any; simulated ones are only projected, so that no
direction is an artefact of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from analysis.clusters import (
    Embedding,
    check_enough,
    check_mappable,
    cluster_stability,
    embed,
    k_means,
    nearest_centre,
    record_share_from_time,
)
from analysis.directions import (
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
from analysis.surrogates import compare, in_words
from core import artefacts
from core.artefacts import Result
from core.contracts import UserError
from core.directions import Basis
from core.episodes import RolloutStore
from core.stats import LOGIT, Estimate, few, jackknife
from core.two_sample import frechet, halves, squared_distances, told_apart

REAL, SIMULATED = 0, 1
LEVEL = "truth/level"
UNKNOWN_LEVEL = -1
NEIGHBOURS = 5  # of a state, that say how far around it the states of its kind lie
OVERLAP_STATES = 1000  # a side, in each of the random halves that are compared
CLASSIFIED_STATES = 5000  # of either kind
FEWEST_COMPARED = 4 * NEIGHBOURS  # states of either kind
TOO_FEW_IN_A_HALF = f"a random half of the episodes has no {NEIGHBOURS} neighbours of other episodes for any state"


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How many directions of which kind, and what counts as a state."""

    pca_size: int = 0
    """principal components; 0: as many as the states vary in"""
    ica_size: int = 16
    """independent components, of as many whitened principal ones; 0: none"""
    ica_restarts: int = 20
    """FastICA runs, each on a bootstrap of the episodes, that the stability index compares"""
    nmf_size: int = 16
    """non-negative factors; 0: none"""
    nmf_states: int = 20_000
    """states the factors are found on, drawn at random; 0: all"""
    clusters: int = 32
    """k-means clusters of the principal components"""
    surrogates: int = 39
    """data without clusters, of each of two kinds, that are clustered alike: stable means beyond 95 % of them, which
    fewer than 39 cannot say; 0: none"""
    first_step: int = 1
    """states of earlier steps are left out: step 0 has seen one frame and is all initial state"""
    most_states: int = 200_000
    """at most about so many states of either source, of whole episodes drawn at random; 0: all"""
    drop_outliers: bool = False
    """fit without states whose median distance to their neighbours lies 2 standard deviations above the mean"""
    outlier_neighbours: int = 20
    """neighbours of --drop_outliers"""
    embedding: tuple[Embedding, ...] = ("umap",)
    """2-D maps of the states, saved as data: umap, tsne, or pca (none beside the components)"""
    embedding_states: int = 3000
    """states in a map, drawn at random"""


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


# The states


@dataclass(frozen=True)
class States:
    """Pooled steps: the states ``x_NF`` and, row by row, what the agent thought and did and what followed.

    ``index_N2`` (episode, t); ``source_N`` 0 real, 1 simulated; ``level_N`` -1 where it is not known; ``unit_N``:
    rows of equal number are not independent (an episode, and the samples that started in it).  Steps of an
    episode are consecutive.
    """

    x_NF: np.ndarray
    value_N: np.ndarray
    action_N: np.ndarray
    reward_N: np.ndarray
    level_N: np.ndarray
    index_N2: np.ndarray
    source_N: np.ndarray
    unit_N: np.ndarray

    @property
    def fitted_N(self) -> np.ndarray:
        """bool [N]: the real states; where there are none, the simulated ones."""
        real_N = self.source_N == REAL
        return real_N if real_N.any() else ~real_N


def join(parts: Sequence[States]) -> States:
    """The rows of all of them, in this order."""
    if len(parts) == 1:
        return parts[0]
    return States(*(np.concatenate([getattr(p, name) for p in parts]) for name in States.__dataclass_fields__))


def episodes_of(store: RolloutStore, first: int, most: int, seed: int) -> list[int]:
    """Episodes that have a step >= first: all, or random ones with at most about ``most`` steps together (0: all)."""
    steps_E = np.minimum(store.steps, store.rows) - first
    ids = np.flatnonzero(steps_E > 0)
    if not len(ids):
        raise UserError(
            f"{store.path}: no episode is longer than {first} steps; lower --first_step, or leave these states out"
        )
    if most and steps_E[ids].sum() > most:
        drawn = np.random.default_rng(seed).permutation(ids)
        ids = np.sort(drawn[: max(2, int(np.searchsorted(np.cumsum(steps_E[drawn]), most, side="right")))])
    return [int(i) for i in ids]


def pool(
    store: RolloutStore, column: str | Sequence[np.ndarray], options: FitOptions, unit_E: np.ndarray, *, lead: int = 0,
    seed: int = 0,
) -> States:  # fmt: skip
    """The states of a store's steps t >= first_step.

    column: the name of a stored one; or per-episode states whose row i belongs to step ``lead + i``.  unit_E: a number
    an episode, see ``units``.
    """
    first = max(options.first_step, lead)
    episodes = episodes_of(store, first, options.most_states, seed)
    known = [LEVEL] if LEVEL in store.column_names else []
    stored = [column] if isinstance(column, str) else []
    columns, index_N2 = store.pooled("value", "action", "reward", *known, *stored, episodes=episodes, first=first)
    if isinstance(column, str):
        x_NF = columns[column]
    else:
        ends = {e: int(min(store.steps[e], store.rows[e])) for e in episodes}
        x_NF = np.concatenate([column[e][first - lead : ends[e] - lead] for e in episodes])
    return _states(store, x_NF, columns, index_N2, unit_E)


def pool_rows(
    store: RolloutStore, x_NF: np.ndarray, index_N2: np.ndarray, unit_E: np.ndarray, episodes: Sequence[int]
) -> States:
    """States that belong to the steps ``index_N2`` (episode, t) of these (sorted) episodes, in order."""
    known = [LEVEL] if LEVEL in store.column_names else []
    columns, all_M2 = store.pooled("value", "action", "reward", *known, episodes=episodes)
    row = {(int(e), int(t)): i for i, (e, t) in enumerate(all_M2)}
    rows_N = np.array([row[int(e), int(t)] for e, t in index_N2])
    return _states(store, x_NF, {k: v[rows_N] for k, v in columns.items()}, index_N2, unit_E)


def _states(
    store: RolloutStore, x_NF: np.ndarray, columns: Mapping[str, np.ndarray], index_N2: np.ndarray, unit_E: np.ndarray
) -> States:
    n = len(index_N2)
    level_N = columns[LEVEL].reshape(n).astype(np.int64) if LEVEL in columns else np.full(n, UNKNOWN_LEVEL)
    source = REAL if store.manifest["facts"]["source"] == "real" else SIMULATED
    return States(
        x_NF, columns["value"], columns["action"], columns["reward"], level_N, index_N2, np.full(n, source),
        unit_E[index_N2[:, 0]],
    )  # fmt: skip


def open_stores(rollouts: Path, samples: Path | None) -> tuple[RolloutStore, RolloutStore | None, str]:
    """The real and (if given) simulated store and the fingerprint of the agent both must share.

    Raises UserError if they are of different agents or of the wrong kind.
    """
    real = RolloutStore(rollouts)
    agent = fact(real, "agent")
    if fact(real, "source") != "real":
        raise UserError(f"--rollouts {rollouts} are simulated; pass them as --samples, and real ones as --rollouts")
    if samples is None:
        return real, None, agent
    simulated = open_samples(samples)
    if fact(simulated, "agent") != agent:
        raise UserError(f"{rollouts} is of agent {agent}, {samples} of agent {fact(simulated, 'agent')}: use one agent")
    return real, simulated, agent


def open_samples(samples: Path) -> RolloutStore:
    """A store of simulated rollouts; UserError for real ones."""
    store = RolloutStore(samples)
    if fact(store, "source") != "simulated":
        raise UserError(f"--samples {samples} are real rollouts; pass simulated ones (generative.record_samples)")
    return store


def fact(store: RolloutStore, name: str) -> str:
    """What the store's manifest says of its ``agent``, ``source`` or ``simulator``; UserError if nothing."""
    facts = store.manifest["facts"]
    if name not in facts:
        raise UserError(f"{store.path}: its manifest does not say its {name}; record the rollouts again")
    return str(facts[name])


def open_sources(
    rollouts: Path | None, samples: Path | None, simulator: Path | None, device: torch.device
) -> tuple[RolloutStore | None, RolloutStore | None, Any, dict[str, str]]:
    """(real store, simulated store, simulator, {agent and simulator: their fingerprints}) of a stage whose states are
    the simulator's.  Real rollouts need it; samples must be its own.  Raises UserError.
    """
    from core.directions import fingerprint
    from generative.simulator import load_simulator

    if rollouts is None and samples is None:
        raise UserError("--rollouts DIR or --samples DIR is needed (real rollouts, simulated ones, or both)")
    if rollouts is not None and simulator is None:
        raise UserError("--rollouts needs --simulator DIR, through which the real frames go")
    if rollouts is not None:
        real, simulated, agent = open_stores(rollouts, samples)
    else:
        assert samples is not None
        real, simulated = None, open_samples(samples)
        agent = fact(simulated, "agent")
    loaded, name = None, "" if simulated is None else fact(simulated, "simulator")
    if simulator is not None:
        loaded = load_simulator(simulator, device)
        if rollouts is not None and fingerprint(loaded.agent) != agent:
            raise UserError(f"{rollouts} is of agent {agent}, {simulator} of {fingerprint(loaded.agent)}")
        if simulated is not None and fingerprint(loaded) != name:
            raise UserError(f"{samples} was not generated by the simulator in {simulator}: its states differ")
        name = fingerprint(loaded)
    return real, simulated, loaded, {"agent": agent, "simulator": name}


def units(store: RolloutStore, real: RolloutStore | None) -> np.ndarray:
    """int64 [episodes]: equal for what is not independent.

    A real episode is a unit.  So are the samples that started in one: that episode's own, where the samples were
    made from ``real``.  A sample from a random latent is a unit of its own.
    """
    if store is real or store.manifest["facts"]["source"] == "real":
        return 3 * np.arange(len(store))
    made_from = store.manifest["inputs"].get("rollouts", {}).get("manifest_sha256")
    shared = real is not None and made_from == artefacts.sha256(real.path / artefacts.MANIFEST)
    starts = [store.meta(e).get("start") for e in range(len(store))]
    return np.array([3 * e + 2 if s is None else 3 * int(s[0]) + (not shared) for e, s in enumerate(starts)])


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
    ``action``, ``reward`` (that followed), ``level`` (-1 unknown), ``kept`` (was fitted on), ``c_pca``, ``c_ica`` and
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
            basis = fit_pca(x_MF, options.pca_size or state_rank(x_MF, space), owner, space=space, seed=seed)
            near_MF = spread(basis, project(basis, x_MF))
        kept_N[fitted_N] = ~outliers(near_MF, options.outlier_neighbours)
        x_MF, unit_M = states.x_NF[kept_N], states.unit_N[kept_N]
    size = options.pca_size or state_rank(x_MF, space)
    bases = {"pca": fit_pca(x_MF, size, owner, space=space, seed=seed)}
    # Distances between states, not between whitened coordinates: noise components must not count as much.
    x_NK = spread(bases["pca"], project(bases["pca"], states.x_NF))
    centre_CK = k_means(x_NK[kept_N], options.clusters, seed)
    cluster_N, _ = nearest_centre(x_NK, centre_CK)
    if options.ica_size:
        restarts = options.ica_restarts
        bases["ica"] = fit_ica(x_MF, options.ica_size, owner, restarts, seed, space=space, episode_N=unit_M)
    if options.nmf_size:
        bases["nmf"] = fit_nmf(x_MF, options.nmf_size, owner, seed, space=space, most_states=options.nmf_states)
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
        "episodes_fitted": len(np.unique(unit_M)),
        "fitted_on": "real" if (states.source_N[fitted_N] == REAL).all() else "simulated",
        "left_out": dead,
    }
    _describe(result, bases, x_NK, states, kept_N, options, rng, seed)
    if 0 < (states.source_N == REAL).sum() < len(states.source_N):
        _compare(result, x_NK, states, seed)
    return result, bases


def check_sizes(
    x_MF: np.ndarray, unit_M: np.ndarray, live_L: np.ndarray, mapped: int, space: str, options: FitOptions
) -> None:
    """UserError, before anything is fitted, for what the states are too few or vary in too little for."""
    if (episodes := len(np.unique(unit_M))) < 2:
        raise UserError(f"the states are of {episodes} episode, 2 are needed to say how stable a fit is; record more")
    for k, samples in (
        (options.pca_size or 1, (options.pca_size or 1) + 1),
        (options.ica_size, SAMPLES_PER_DIRECTION * options.ica_size),
        (options.nmf_size, SAMPLES_PER_DIRECTION * options.nmf_size),
    ):
        if k:
            check_size(x_MF.shape, k, samples, space)
            check_live(k, live_L, x_MF.shape[1], space)
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
    unit_M, t_M = states.unit_N[kept_N], states.index_N2[kept_N, 1]
    _, unit_M = np.unique(unit_M, return_inverse=True)
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
            {"direction": i, "stability": s, "match": m, "explained": e} for i, (s, m, e) in enumerate(rows)
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
    record_share_from_time(result, "cluster_", label_M, t_M, unit_M, episodes=episodes, rng=rng)


# Real against simulated


def _compare(result: Result, x_NK: np.ndarray, states: States, seed: int) -> None:
    """Table ``overlap`` and its scalars; a note instead where there are too few states or episodes."""
    real = states.source_N == REAL
    counts = [len(np.unique(states.unit_N[m])) for m in (real, ~real)]
    if min(real.sum(), (~real).sum()) < FEWEST_COMPARED or min(counts) < 4:
        result.notes["overlap"] = (
            f"left out: {real.sum()} real states of {counts[0]} episodes and {(~real).sum()} simulated ones of "
            f"{counts[1]} are too few"
        )
        return
    result.tables["overlap"] = overlap(x_NK, result.arrays["c_pca"], real, states.unit_N, seed)
    for row in result.tables["overlap"]:
        name = f"overlap_{row['measure']}"
        result.scalar(name, row["simulated"], row["unit"], row["n"], (row["low"], row["high"]))
        floor = row["floor_low"], row["floor_high"]
        result.scalar(f"{name}_floor", row["floor"], f"{row['unit']}, real against real", row["n"], floor)


def overlap(x_NK: np.ndarray, c_NK: np.ndarray, real_N: np.ndarray, unit_N: np.ndarray, seed: int) -> list[dict]:
    """How far simulated states lie where real ones do, each row beside the same of real against real.

    x_NK: states whose distances count; c_NK: the same, whitened; both simulated and real ones.  Measures:
    ``inside`` share of simulated states that are closer to some real state than its 5th neighbour is, and
    ``covered`` the share of real ones that lie so among the simulated (precision and recall of Kynkaanniemi et al.
    2019, with neighbours from other episodes only; undefined where no state has as many); ``frechet`` distance of the
    two Gaussians, in shares of the real variance; ``told_apart`` of core.two_sample (0.5: not).
    The first three are taken between disjoint random halves of the episodes, whose spread is the interval.  A number
    that is not defined in every half is None, and ``reason`` says why.
    """
    real_rows, other_rows = np.flatnonzero(real_N), np.flatnonzero(~real_N)
    # As many states a side whoever is compared: the measures depend on it.
    most = max(NEIGHBOURS + 1, min(OVERLAP_STATES, int(0.4 * min(len(real_rows), len(other_rows)))))
    x_NK = np.asarray(x_NK, np.float64)
    variance = float(x_NK[real_rows].var(0).sum())

    def measured(measure: Callable[[np.ndarray, np.ndarray], float]) -> tuple[Estimate, Estimate]:
        rng = np.random.default_rng(seed)

        def of_some(a: np.ndarray, b: np.ndarray) -> float:
            if min(len(a), len(b)) <= NEIGHBOURS:
                return np.nan
            return measure(*(rng.permutation(rows)[:most] for rows in (a, b)))

        return halves(real_rows, other_rows, unit_N[real_rows], of_some, rng, unit_N[other_rows])

    rng = np.random.default_rng(seed)
    apart = {}
    half = np.isin(unit_N, rng.permutation(np.unique(unit_N[real_rows]))[::2])
    for name, one, two in (("simulated", real_N, ~real_N), ("floor", real_N & half, real_N & ~half)):
        n = min(one.sum(), two.sum(), CLASSIFIED_STATES)
        rows = np.concatenate([rng.permutation(np.flatnonzero(m))[:n] for m in (one, two)])
        apart[name] = told_apart(c_NK[rows], np.repeat([0, 1], n), unit_N[rows], rng)

    found = [
        ("inside", *measured(lambda a, b: _inside(x_NK, unit_N, a, b)), "share of simulated states"),
        ("covered", *measured(lambda a, b: _inside(x_NK, unit_N, b, a)), "share of real states"),
        ("frechet", *measured(lambda a, b: frechet(x_NK[a], x_NK[b]) / variance), "of the real states' variance"),
        ("told_apart", apart["simulated"], apart["floor"], "share told apart, 0.5 is chance"),
    ]  # fmt: skip
    rows = []
    for name, value, floor, unit in found:
        numbers = {"simulated": value.value, "low": value.low, "high": value.high, "floor": floor.value,
                   "floor_low": floor.low, "floor_high": floor.high}  # fmt: skip
        known = {k: artefacts.finite(v) for k, v in numbers.items()}
        reason = TOO_FEW_IN_A_HALF if None in (known["simulated"], known["floor"]) else ""
        rows.append({"measure": name, **known, "unit": unit, "n": value.n, "reason": reason})
    return rows


def _inside(x_NK: np.ndarray, unit_N: np.ndarray, there: np.ndarray, asked: np.ndarray) -> float:
    """Share of the rows ``asked`` within some row ``there``'s distance to its 5th neighbour of another episode; NaN
    where none has so many."""
    among = squared_distances(x_NK[there], x_NK[there])
    among[unit_N[there][:, None] == unit_N[there]] = np.inf
    radius = np.partition(among, NEIGHBOURS - 1, axis=1)[:, NEIGHBOURS - 1]
    if np.isinf(radius).all():
        return np.nan
    radius[np.isinf(radius)] = -1  # it has fewer neighbours of other episodes than that: nobody is near it
    return float((squared_distances(x_NK[asked], x_NK[there]) <= radius).any(1).mean())


# The run directories


class StateConfig(Protocol):
    """What the three stages' configs share."""

    @property
    def out(self) -> Path: ...
    @property
    def overwrite(self) -> bool: ...


def new_fit(
    config: StateConfig, stage: str, inputs: Mapping[str, Path | None]
) -> AbstractContextManager[artefacts.Run]:
    """The run directory of a fit, opened before the work begins: one that is not free is refused then."""
    given = {k: v for k, v in inputs.items() if v is not None}
    return artefacts.new_run(config.out, stage, config, given, overwrite=config.overwrite)


def fit_and_save(
    config: Any, stage: str, space: str, parts: Callable[[], Sequence[States]], store: RolloutStore | None,
    facts: dict[str, Any],
) -> None:  # fmt: skip
    """How env_states and latents go on: fit the states of a simulator's space, write the run, say what was found.

    parts: makes the states; store: one of those they are of, for the names of its actions."""
    assert store is not None
    inputs = {"simulator": config.simulator, "rollouts": config.rollouts, "samples": config.samples}
    with new_fit(config, stage, inputs) as run:
        with threadpool_limits(config.threads):  # scikit-learn's own OpenMP does not hear torch.set_num_threads
            result, bases = fit(join(parts()), space, facts["simulator"], config.fit, config.seed)
        result.notes |= {**facts, "action_names": list(store.spec.action_names)}
        save(run, result, bases, facts, config.action == "both")
    print(summary(result, bases, config.out))


def save(run: artefacts.Run, result: Result, bases: Mapping[str, Basis], facts: Mapping[str, Any], drawn: bool) -> None:
    """Write what a fit found into its run directory, and its figures."""
    from analysis.state_figures import draw

    for basis in bases.values():
        basis.save(run.path)
    result.save(run.path)
    if drawn:
        draw(result, run.path)
    sources = [name for i, name in enumerate(("real", "simulated")) if (result.arrays["source"] == i).any()]
    left_out = {"left_out": result.notes["left_out"]} if result.notes["left_out"] else {}
    run.facts = {**facts, "fitted_on": result.notes["fitted_on"], "sources": sources, **left_out}
    run.metrics = dict(result.scalars)


def load_drawn(source: Path | None, stage: str) -> Result:
    """The Result that ``plot`` draws; UserError."""
    if source is None:
        raise UserError(f"plot needs --{stage} DIR, the run directory to draw")
    artefacts.read_manifest(source, stage)
    return Result.load(source)


def plot(config: StateConfig, stage: str, result: Result, inputs: Mapping[str, Path | None]) -> None:
    """Draw a saved Result into a run directory of its own."""
    from analysis.state_figures import draw

    given = {k: v for k, v in inputs.items() if v is not None}
    with artefacts.new_run(config.out, f"{stage}_plot", config, given, overwrite=config.overwrite) as run:
        names = draw(result, run.path)
        run.facts = {k: result.notes[k] for k in ("agent", "simulator") if k in result.notes}
    print(f"drew {', '.join(names)}: {config.out}")


def refuse(stage: str, given: Path | None) -> None:
    """UserError where ``--STAGE DIR``, which belongs to plot, is given to another action."""
    if given is not None:
        raise UserError(f"--{stage} belongs to plot; precompute and both read --rollouts")


def summary(result: Result, bases: Mapping[str, Basis], out: Path) -> str:
    """What a person wants to know, in a few lines."""
    scalars = result.scalars
    lines = [
        f"fitted {', '.join(f'{k} ({b.size})' for k, b in bases.items())} on "
        f"{int(result.arrays['kept'].sum()):,} {result.notes['fitted_on']} states of "
        f"{result.notes['episodes_fitted']} episodes"
    ]
    for key, s in scalars.items():
        if key.startswith("pca_explained"):
            count = key.rpartition("_")[2]
            lines.append(f"  first {count} components hold {s['value']:.0%}{_interval(s, '.0%')} of the variance")
    if "ica" in bases:
        lines.append(
            f"  ICA stability Iq: median {scalars['ica_stability_median']['value']:.2f}, "
            f"least {scalars['ica_stability_least']['value']:.2f}"
        )
    lines.append(
        f"  clusters: stability {scalars['cluster_stability']['value']:.2f} (ARI), time gives away "
        f"{scalars['cluster_share_from_time']['value']:.0%} of the label "
        f"(floor {scalars['cluster_share_from_time_floor']['value']:.0%})"
    )
    if "cluster_surrogates" in result.tables:
        lines.append(f"  {in_words(result, 'cluster_')}")
    said = {
        "inside": "simulated states lie among real ones", "covered": "real states lie among simulated ones",
        "told_apart": "both are told apart by a linear classifier",
    }  # fmt: skip
    for row in result.tables.get("overlap", []):
        name = row["measure"]
        if name in said and row["reason"]:
            lines.append(f"  how many {said[name]} is not known: {row['reason']}")
        elif name in said:
            share, floor = scalars[f"overlap_{name}"], scalars[f"overlap_{name}_floor"]["value"]
            words = said[name]
            lines.append(f"  {share['value']:.0%}{_interval(share, '.0%')} of {words} (real against real: {floor:.0%})")
    if "overlap" in result.notes:
        lines.append(f"  real against simulated: {result.notes['overlap']}")
    return "\n".join([*lines, f"  {out}"])


def _interval(scalar: Mapping[str, Any], spec: str) -> str:
    low, high = scalar["interval"]
    return "" if low is None or high is None else f" [{low:{spec}}, {high:{spec}}]{few(scalar['n'])}"
