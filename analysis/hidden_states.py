"""Directions and clusters of the agent's hidden state: ``python -m analysis.hidden_states --rollouts runs/rollouts``.

Directions are fitted on real states; simulated ones (--samples) are only projected, so that no
direction is an artefact of the simulator.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from threadpoolctl import threadpool_limits

from analysis.clusters import (
    Embedding,
    cluster_stability,
    embed,
    k_means,
    nearest_centre,
    record_share_from_time,
)
from analysis.directions import fit_ica, fit_nmf, fit_pca, neuron_basis, state_rank
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import Agent, UserError
from core.directions import Basis, fingerprint, load_basis
from core.episodes import RolloutStore
from core.stats import bootstrap

STAGE = "hidden_states"
REAL, SIMULATED = 0, 1
MAX_COURSES = 4  # episodes in the figures of single episodes


@dataclass(frozen=True, kw_only=True)
class DirectionOptions:
    """How many directions of which kind, and what counts as a state."""

    pca_size: int = 0
    """principal components; 0: as many as the states vary in"""
    ica_size: int = 16
    """independent components, of as many whitened principal ones"""
    ica_restarts: int = 20
    """FastICA runs, each on a bootstrap of the episodes, that the stability index compares"""
    nmf_size: int = 16
    """non-negative factors"""
    clusters: int = 32
    """k-means clusters of the principal components"""
    first_step: int = 1
    """states of earlier steps are left out: step 0 has seen one frame and is all initial state"""
    drop_outliers: bool = False
    """fit without states whose median distance to their neighbours lies 2 standard deviations above the mean"""
    outlier_neighbours: int = 20
    """neighbours of --drop_outliers"""
    embedding: Embedding = "umap"
    """2-D map of the states, saved as data: umap, tsne, or pca (none beside the components)"""
    embedding_states: int = 3000
    """states in that map, drawn at random"""


@dataclass(frozen=True, kw_only=True)
class HiddenStatesConfig:
    """Fit directions of the agent's hidden state and draw them."""

    action: tyro.conf.Positional[Literal["both", "precompute", "plot"]] = "both"
    """precompute writes bases and arrays, plot draws those of --hidden_states into --out, both does both at once"""
    rollouts: Path | None = None
    """real rollouts to fit on (precompute, both)"""
    samples: Path | None = None
    """simulated rollouts to project too"""
    agent: Path | None = None
    """the agent, for the weights of its policy and value heads in the directions"""
    hidden_states: Path | None = None
    """run directory to draw (plot)"""
    out: Path = Path("runs/hidden_states")
    """run directory to write"""
    fit: DirectionOptions = field(default_factory=DirectionOptions)
    seed: int = 0
    """seed of restarts, bootstraps, clusters and the map"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""


@dataclass(frozen=True)
class States:
    """Pooled steps of real and simulated rollouts: ``h_NH``, ``value_N``, ``index_N2`` (episode, t) and
    ``source_N`` (0 real, 1 simulated).  Steps of an episode are consecutive."""

    h_NH: np.ndarray
    value_N: np.ndarray
    index_N2: np.ndarray
    source_N: np.ndarray

    @property
    def unit_N(self) -> np.ndarray:
        """One number per episode of either source."""
        return self.index_N2[:, 0] * 2 + self.source_N


def open_stores(rollouts: Path, samples: Path | None) -> tuple[RolloutStore, RolloutStore | None, str]:
    """The real and (if given) simulated store and the fingerprint of the agent both must share.

    Raises UserError if they are of different agents or of the wrong kind.
    """
    real = RolloutStore(rollouts)
    agent = _fact(real, "agent")
    if _fact(real, "source") != "real":
        raise UserError(f"--rollouts {rollouts} are simulated; pass them as --samples, and real ones as --rollouts")
    if samples is None:
        return real, None, agent
    simulated = RolloutStore(samples)
    if _fact(simulated, "source") != "simulated":
        raise UserError(f"--samples {samples} are real rollouts; pass simulated ones (generative.record_samples)")
    if _fact(simulated, "agent") != agent:
        raise UserError(
            f"{rollouts} is of agent {agent}, {samples} of agent {_fact(simulated, 'agent')}: use one agent"
        )
    return real, simulated, agent


def _fact(store: RolloutStore, name: str) -> str:
    facts = store.manifest["facts"]
    if name not in facts:
        raise UserError(f"{store.path}: its manifest does not say its {name}; record the rollouts again")
    return str(facts[name])


def pool(stores: Sequence[RolloutStore | None], first_step: int) -> States:
    """Steps t >= first_step of the real store and, if not None, the simulated one."""
    parts = []
    for source, store in enumerate(stores):
        if store is not None:
            columns, index_N2 = store.pooled("h", "value", first=first_step)
            if not np.isfinite(columns["h"]).all():
                raise UserError(f"{store.path}: hidden states have NaN or infinite values; record them again")
            parts.append((columns["h"], columns["value"], index_N2, np.full(len(index_N2), source)))
    return States(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def outliers(h_NH: np.ndarray, neighbours: int) -> np.ndarray:
    """bool [N]: the median distance to the nearest ``neighbours`` lies 2 standard deviations above its mean."""
    from sklearn.neighbors import NearestNeighbors

    if neighbours >= len(h_NH):
        raise UserError(f"--outlier_neighbours {neighbours}: there are only {len(h_NH)} states")
    z_NH = (h_NH - h_NH.mean(0)) / np.maximum(h_NH.std(0), 1e-12)
    distance, _ = NearestNeighbors(n_neighbors=neighbours).fit(z_NH).kneighbors()
    median_N = np.median(distance, axis=1)
    out: np.ndarray = median_N > median_N.mean() + 2 * median_N.std()
    return out


def check(options: DirectionOptions) -> None:
    """UserError for settings that mean nothing."""
    for name, least in (("pca_size", 0), ("first_step", 0), ("outlier_neighbours", 1), ("embedding_states", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name} {getattr(options, name)}: at least {least}")


def fit(states: States, agent: str, options: DirectionOptions, seed: int) -> tuple[Result, dict[str, Basis]]:
    """Bases fitted on the real states, and everything projected on them.

    Arrays of the Result, a row a state: ``index`` [N, 2] (episode, t), ``source`` (0 real, 1 simulated),
    ``value``, ``kept`` (was fitted on), ``c_pca`` and ``c_ica`` [N, K] (standard deviations), ``cluster``; a row a
    mapped state: ``map`` [M, 2] and ``map_row``.  Raises UserError for bad input.
    """
    check(options)
    real_N = states.source_N == REAL
    kept_N = real_N.copy()
    if options.drop_outliers:
        kept_N[real_N] &= ~outliers(states.h_NH[real_N], options.outlier_neighbours)
    h_MH, unit_M = states.h_NH[kept_N], states.unit_N[kept_N]
    size = states.h_NH.shape[1]
    bases = {
        "pca": fit_pca(h_MH, options.pca_size or state_rank(h_MH), agent),
        "ica": fit_ica(h_MH, options.ica_size, agent, options.ica_restarts, seed, episode_N=unit_M),
        "nmf": fit_nmf(h_MH, options.nmf_size, agent, seed),
        "neurons": neuron_basis(h_MH, agent),
    }
    h = torch.from_numpy(states.h_NH)
    c_pca, c_ica = (bases[kind].project(h).numpy() for kind in ("pca", "ica"))
    # Distances between states, not between whitened coordinates: noise components must not count as much.
    x_NK = c_pca * np.sqrt(np.array(bases["pca"].facts["explained"]) * size)
    centre_CK = k_means(x_NK[kept_N], options.clusters, seed)
    cluster_N, _ = nearest_centre(x_NK, centre_CK)
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(x_NK))[: options.embedding_states])
    result = Result(
        arrays={
            "index": states.index_N2,
            "source": states.source_N.astype(np.int8),
            "value": states.value_N,
            "kept": kept_N,
            "c_pca": c_pca,
            "c_ica": c_ica,
            "cluster": cluster_N.astype(np.int16),
            "map": embed(x_NK[chosen], options.embedding, 2, seed).astype(np.float32),
            "map_row": chosen,
        }
    )
    episodes = len(np.unique(unit_M))
    result.notes = {"agent": agent, "embedding": options.embedding, "hidden_size": size, "episodes_fitted": episodes}
    _describe(result, bases, x_NK, states, kept_N, options, rng, seed)
    return result, bases


def _describe(
    result: Result,
    bases: Mapping[str, Basis],
    x_NK: np.ndarray,
    states: States,
    kept_N: np.ndarray,
    options: DirectionOptions,
    rng: np.random.Generator,
    seed: int,
) -> None:
    """The scalars and tables: explained variance, stability of ICA and of the clusters, and their share of time."""
    unit_M, t_M = states.unit_N[kept_N], states.index_N2[kept_N, 1]
    _, unit_M = np.unique(unit_M, return_inverse=True)
    episodes = unit_M.max() + 1
    pca, ica = bases["pca"], bases["ica"]
    held_EK = np.zeros((episodes, x_NK.shape[1]))
    np.add.at(held_EK, unit_M, x_NK[kept_N] ** 2)
    z_MH = (states.h_NH[kept_N] - pca.mean_H.numpy()) / pca.std_H.numpy()
    total_E = np.bincount(unit_M, (z_MH**2).sum(1))
    value, low, high = bootstrap(
        lambda rows: held_EK[rows].sum(0).cumsum() / total_E[rows].sum(), np.arange(episodes), rng=rng
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
    for k in sorted({2, options.ica_size, 16}):
        if k <= len(value):
            result.scalar(
                f"pca_explained_{k}", value[k - 1], "share of z-scored variance", episodes, (low[k - 1], high[k - 1])
            )
    result.tables["ica"] = [
        {"direction": i, "stability": s, "match": m, "explained": e}
        for i, (s, m, e) in enumerate(
            zip(ica.facts["stability"], ica.facts["match"], ica.facts["explained"], strict=True)
        )
    ]
    stability = np.array(ica.facts["stability"])
    result.scalar("ica_stability_median", float(np.median(stability)), "Iq, 1 is stable", episodes)
    result.scalar("ica_stability_least", float(stability.min()), "Iq, 1 is stable", episodes)
    result.scalar("ica_restarts_converged", ica.facts["restarts_converged"], f"of {ica.facts['restarts']} restarts")
    result.notes["ica_converged"] = ica.facts["converged"]
    result.notes["nmf_converged"] = bases["nmf"].facts["converged"]
    result.scalar("outliers", float((states.source_N == REAL).sum() - kept_N.sum()), "states left out of the fit")
    label_M = result.arrays["cluster"][kept_N].astype(np.int64)
    ari = cluster_stability(x_NK[kept_N], label_M, unit_M, clusters=options.clusters, seed=seed)
    result.scalar("cluster_stability", ari.value, "adjusted Rand index", ari.n, (ari.low, ari.high))
    record_share_from_time(result, "cluster_", label_M, t_M, unit_M, episodes=episodes, rng=rng)


def head_weights(agent: Agent, basis: Basis) -> np.ndarray:
    """float32 [A + 1, K]: change of every logit, and last of the value, per standard deviation of a direction.

    The slope at the mean state; exact everywhere where the heads are linear.
    """

    def heads(h_H: torch.Tensor) -> torch.Tensor:
        logits, value = agent.heads(h_H[None])
        return torch.cat([logits[0], value])

    slope_AH = torch.func.jacrev(heads)(basis.mean_H)
    out: np.ndarray = basis.pullback(slope_AH).detach().numpy()
    return out


# Figures


def draw(result: Result, path: Path) -> list[str]:
    """Every figure the Result has the data for; the names of the files written."""
    figures = {
        "explained.png": _draw_explained,
        "time_courses.png": _draw_time_courses,
        "paths.png": _draw_paths,
        "map.png": _draw_map,
    }
    if "head_weights" in result.arrays:
        figures["heads.png"] = _draw_heads
    for name, function in figures.items():
        function(result).savefig(path / name, dpi=110, metadata={"Software": None})
    return list(figures)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _some_episodes(result: Result) -> list[np.ndarray]:
    """Row slices of the first few real episodes that are not among the shortest third."""
    rows = np.flatnonzero(result.arrays["source"] == REAL)
    episode = result.arrays["index"][rows, 0]
    ids, lengths = np.unique(episode, return_counts=True)
    long = ids[lengths >= np.quantile(lengths, 1 / 3)][:MAX_COURSES]
    return [rows[episode == e] for e in long]


def _draw_explained(result: Result) -> Any:
    figure = _figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    table = result.tables["explained"]
    k, share, low, high = (np.array([row[c] for row in table]) for c in ("components", "share", "low", "high"))
    left.fill_between(k, low, high, alpha=0.3, label="95 % interval over episodes")
    left.plot(k, share, marker=".", label="share explained")
    left.set(xlabel="principal components", ylabel="share of z-scored variance", ylim=(0, 1.02), title="PCA")
    left.legend(frameon=False, loc="lower right")
    ica = result.tables["ica"]
    right.bar([row["direction"] for row in ica], [row["stability"] for row in ica])
    right.set(xlabel="independent component", ylabel="stability Iq", ylim=(0, 1), title="ICA: 1 stable, 0 arbitrary")
    return figure


def _draw_time_courses(result: Result) -> Any:
    episodes = _some_episodes(result)
    shown = min(8, result.arrays["c_ica"].shape[1])
    figure = _figure(3.2 * len(episodes), 1.0 * shown + 0.8)
    axes = figure.subplots(shown, len(episodes), squeeze=False, sharex="col", sharey="row")
    for column, rows in enumerate(episodes):
        t = result.arrays["index"][rows, 1]
        for i in range(shown):
            axis = axes[i, column]
            axis.axhline(0, color="0.8", linewidth=0.8)
            axis.plot(t, result.arrays["c_ica"][rows, i], linewidth=1)
            if column == 0:
                axis.set_ylabel(f"IC {i}")
        axes[0, column].set_title(f"episode {result.arrays['index'][rows[0], 0]}", fontsize=9)
        axes[-1, column].set_xlabel("step")
    figure.suptitle("Independent components over time (standard deviations)")
    return figure


def _draw_paths(result: Result) -> Any:
    figure = _figure(6, 5.2)
    axis = figure.subplots()
    c = result.arrays["c_pca"]
    real = result.arrays["source"] == REAL
    axis.scatter(*c[real][:, :2].T, s=2, color="0.85", linewidths=0)
    for number, rows in enumerate(_some_episodes(result)):
        step = np.diff(c[rows, :2], axis=0)
        label = f"episode {result.arrays['index'][rows[0], 0]}"
        axis.quiver(
            *c[rows[:-1], :2].T,
            *step.T,
            angles="xy",
            scale_units="xy",
            scale=1,
            width=0.003,
            color=f"C{number}",
            label=label,
        )
        axis.plot(*c[rows[0], :2], marker="o", color=f"C{number}")
    axis.set(
        xlabel="PC 0 (sd)", ylabel="PC 1 (sd)", title="Episodes in the plane of the first two components (dot: start)"
    )
    axis.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def _draw_map(result: Result) -> Any:
    figure = _figure(10, 4.4)
    left, right = figure.subplots(1, 2)
    xy, rows = result.arrays["map"], result.arrays["map_row"]
    dots = left.scatter(*xy.T, c=result.arrays["value"][rows], s=4, linewidths=0, cmap="viridis")
    figure.colorbar(dots, ax=left, label="value")
    right.scatter(*xy.T, c=result.arrays["cluster"][rows] % 20, s=4, linewidths=0, cmap="tab20")
    name = {"umap": "UMAP", "tsne": "t-SNE", "pca": "PCA"}[result.notes["embedding"]]
    for axis, title in ((left, f"{name} of hidden states, by value"), (right, "by k-means cluster")):
        axis.set(title=title, xticks=[], yticks=[])
    return figure


def _draw_heads(result: Result) -> Any:
    weights = result.arrays["head_weights"]
    names = [*result.notes["action_names"], "value"]
    figure = _figure(0.45 * weights.shape[1] + 2, 0.28 * len(names) + 1.6)
    top, bottom = figure.subplots(2, 1, height_ratios=[len(names) - 1, 1.5], sharex=True)
    for axis, part, labels in ((top, weights[:-1], names[:-1]), (bottom, weights[-1:], names[-1:])):
        limit = max(float(np.abs(part).max()), 1e-12)
        image = axis.imshow(part, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        axis.set_yticks(range(len(labels)), labels, fontsize=8)
        figure.colorbar(image, ax=axis)
    bottom.set_xticks(range(weights.shape[1]))
    bottom.set_xlabel("independent component")
    top.set_title("Change of logits and value per standard deviation")
    return figure


# The stage


def _load_agent(path: Path | None, agent: str, where: Path) -> Any:
    from agents.recurrent import load_agent

    if path is None:
        return None
    loaded = load_agent(path)
    if fingerprint(loaded) != agent:
        raise UserError(f"{where} is of agent {agent}, --agent {path} is {fingerprint(loaded)}")
    return loaded


def _add_heads(result: Result, agent: Any, ica: Basis) -> None:
    if agent is not None:
        result.arrays["head_weights"] = head_weights(agent, ica)
        result.notes["action_names"] = list(agent.spec.action_names)


def _plot(config: HiddenStatesConfig) -> None:
    source = config.hidden_states
    if source is None:
        raise UserError("plot needs --hidden_states DIR, the run directory to draw")
    artefacts.read_manifest(source, STAGE)
    result = Result.load(source)
    agent = _load_agent(config.agent, result.notes["agent"], source)
    _add_heads(result, agent, load_basis(source, "ica"))
    inputs = {"hidden_states": source} | ({} if config.agent is None else {"agent": config.agent})
    with artefacts.new_run(config.out, f"{STAGE}_plot", config, inputs, overwrite=config.overwrite) as run:
        names = draw(result, run.path)
        run.facts = {"agent": result.notes["agent"]}
    print(f"drew {', '.join(names)}: {config.out}")


def main(config: HiddenStatesConfig) -> None:
    began = time.time()
    torch.set_num_threads(config.threads)
    check(config.fit)
    if config.action == "plot":
        _plot(config)
        return
    if config.rollouts is None:
        raise UserError("--rollouts DIR is needed (real rollouts, written by record.py)")
    if config.hidden_states is not None:
        raise UserError("--hidden_states belongs to plot; precompute and both read --rollouts")
    real, simulated, name = open_stores(config.rollouts, config.samples)
    agent = _load_agent(config.agent, name, config.rollouts)
    given = {"rollouts": config.rollouts, "samples": config.samples, "agent": config.agent}
    inputs = {k: v for k, v in given.items() if v is not None}
    states = pool((real, simulated), config.fit.first_step)
    with threadpool_limits(config.threads):  # scikit-learn's own OpenMP does not hear torch.set_num_threads
        result, bases = fit(states, name, config.fit, config.seed)
    _add_heads(result, agent, bases["ica"])
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.started = began
        for basis in bases.values():
            basis.save(run.path)
        result.save(run.path)
        if config.action == "both":
            draw(result, run.path)
        run.facts = {"agent": name, "fitted_on": "real", "sources": ["real"] + ["simulated"] * (simulated is not None)}
        run.metrics = dict(result.scalars)
    print(summary(result, bases, config.out))


def summary(result: Result, bases: Mapping[str, Basis], out: Path) -> str:
    """What a person wants to know, in a few lines."""
    scalars = result.scalars
    explained = {k: v for k, v in scalars.items() if k.startswith("pca_explained")}
    lines = [
        f"fitted {', '.join(f'{k} ({b.size})' for k, b in bases.items())} on "
        f"{int(result.arrays['kept'].sum()):,} states of {result.notes['episodes_fitted']} episodes"
    ]
    for key, s in explained.items():
        interval = " [{:.0%}, {:.0%}]".format(*s["interval"]) if None not in s["interval"] else ""
        lines.append(f"  first {key.rpartition('_')[2]} components hold {s['value']:.0%}{interval} of the variance")
    lines.append(
        f"  ICA stability Iq: median {scalars['ica_stability_median']['value']:.2f}, "
        f"least {scalars['ica_stability_least']['value']:.2f}"
    )
    lines.append(
        f"  clusters: stability {scalars['cluster_stability']['value']:.2f} (ARI), time gives away "
        f"{scalars['cluster_share_from_time']['value']:.0%} of the label "
        f"(floor {scalars['cluster_share_from_time_floor']['value']:.0%})"
    )
    return "\n".join([*lines, f"  {out}"])


if __name__ == "__main__":
    cli.run(HiddenStatesConfig, main, STAGE)
