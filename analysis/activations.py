"""Map and cluster the activations of a policy, and ask what the clusters are:
``python -m analysis.activations runs/activations --out runs/clusters``.

Reads what analysis.extract_activations wrote: lives of agents, a row a tick.  Every tenth row of a life is kept,
mapped by UMAP and clustered by HDBSCAN (or clustered in the space of principal components, --cluster-before-umap).
Then come the questions of analysis.activation_verdicts: is a cluster behaviour, or only the time in the game, the
place, or the agent? ``--metric-only`` asks nothing of clusters: principal components and features only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from threadpoolctl import threadpool_limits

from analysis.activation_clusters import find, maps, principal, rolling_mean, stability, transitions
from analysis.activation_figures import draw
from analysis.activation_verdicts import (
    NO_CLUSTERS,
    Effects,
    Lives,
    Times,
    effects,
    missable,
    overall,
    rounded,
    times,
    told_by_time,
    verdict,
)
from analysis.clusters import NOISE, record_share_from_time
from analysis.lives import FEATURES, POSITION, worlds_of
from analysis.surrogates import ONE_CLOUD, compare, in_words
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore
from core.progress import track
from core.stats import ATANH, LOST, few, jackknifed, left_out, share_of

STAGE = "activations"
PLACE = ("row", "column", "from_centre")
FOLDS = 5  # of lives
COMPONENTS = 10  # principal components that are kept, and what the metric figures show
LEAST_AGENTS = 10  # different agents with lives of their own, below which every life counts as an agent
DENDROGRAM = "dendrogram_explorer.html"


@dataclass(frozen=True, kw_only=True)
class ActivationsConfig:
    """Map and cluster activations, and ask what the clusters are about."""

    directory: tyro.conf.Positional[Path | None] = None
    """the extraction: run directory of analysis.extract_activations"""
    out: Path = Path("runs/clusters")
    """run directory to write"""
    subsample: int = 10
    """keep every so many rows of a life, from its first on: neighbours are nearly the same"""
    umap_neighbors: int = 15
    """neighbours of a row on the map (UMAP)"""
    min_dist: float = 0.1
    """least distance of rows on the map, 0 to 1 (UMAP): smaller packs them tighter"""
    hdbscan_min_cluster: int = 15
    """rows of the smallest cluster (HDBSCAN)"""
    cluster_before_umap: bool = False
    """cluster the principal components instead of the map, which then only shows the clusters"""
    pre_cluster_dims: int = 30
    """how many principal components those are"""
    metric_only: bool = False
    """only principal components and features: no map, no clusters"""
    umap_pairs: bool = True
    """draw the pairs of dimensions of a map of more dimensions"""
    umap_pairs_dims: int = 10
    """how many dimensions that map has"""
    feature_scatter: bool = True
    """draw every feature against every other"""
    dendrogram_explorer: bool = True
    """write the page on which HDBSCAN's tree can be cut anywhere"""
    first_tick: int = 0
    """leave out the rows of a life before this one: a memory that starts from nothing makes a cluster of its own"""
    rolling: int = 10
    """ticks over which the features on the map are averaged, within a life"""
    permutations: int = 999
    """exchanges of labels among lives behind every p-value"""
    resamples: int = 1000
    """bootstraps of lives behind the intervals of effect sizes"""
    smallest: float = 0.3
    """smallest effect of interest (Cohen's d): noise is said only of clusters whose effects are all surely below it"""
    refits: int = 20
    """clusterings of bootstrapped lives that say how stable the clusters are"""
    surrogates: int = 39
    """data without clusters, of each of two kinds, that are mapped and clustered alike: stable means beyond 95 % of
    them, which fewer than 39 cannot say; 0: none (on a map some seconds each)"""
    seed: int = 0
    """seed of map, bootstraps and permutations"""
    threads: int = 2
    """CPU threads; the map uses one, or its seed would not repeat it"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def check(config: ActivationsConfig) -> None:
    """UserError for settings that mean nothing."""
    cli.require(1, subsample=config.subsample, rolling=config.rolling, permutations=config.permutations)
    cli.require(
        2, umap_neighbors=config.umap_neighbors, pre_cluster_dims=config.pre_cluster_dims, resamples=config.resamples
    )
    cli.require(1, refits=config.refits)
    cli.require(5, hdbscan_min_cluster=config.hdbscan_min_cluster)
    cli.require(0, first_tick=config.first_tick, surrogates=config.surrogates)
    cli.require(2, umap_pairs_dims=config.umap_pairs_dims)
    if not config.smallest > 0:
        raise UserError(f"--smallest must be above 0, not {config.smallest:g}")
    if not 0 <= config.min_dist <= 1:
        raise UserError(f"--min_dist must lie between 0 and 1, not {config.min_dist:g}")


# Reading


@dataclass(frozen=True)
class Records:
    """Every so many rows of every life, lives one after another.

    ``place_N3`` (row, column, distance from the middle of the map) or None; ``share_N`` of the lifespan; ``agent_E`` 0
    to A-1; ``worlds``: how many there are.
    """

    h_NH: np.ndarray
    features_NF: np.ndarray
    rolling_NF: np.ndarray
    place_N3: np.ndarray | None
    index_N2: np.ndarray
    lives: Lives
    names: tuple[str, ...]
    agents_are: str
    worlds: int

    def __len__(self) -> int:
        return len(self.index_N2)


def read(path: Path, subsample: int, rolling: int, first_tick: int = 0) -> Records:
    """The records of an extraction, one life in memory at a time.  Raises UserError for anything else, and for NaN."""
    artefacts.read_manifest(path, "extract_activations")
    parts: dict[str, list[np.ndarray]] = {k: [] for k in ("h", "features", "rolling", "place", "index", "share")}
    who: list[Any] = []  # the agent of every life
    with RolloutStore(path) as store:
        names = tuple(map(str, store.manifest["facts"].get("features", ())))
        if FEATURES not in store.column_names or not names:
            raise UserError(f"{path} has no features of the agents, so nothing to read clusters by; extract again")
        has_place = POSITION in store.column_names
        columns = ["h", FEATURES, *([POSITION] if has_place else [])]
        world_E = worlds_of(store)
        episodes = np.flatnonzero(np.minimum(store.steps, store.rows) > first_tick)
        for e in track(episodes.tolist(), "reading", unit="lives"):
            data, index_T2 = store.pooled(*columns, episodes=[e])
            for name in columns[1:]:  # h: the store has looked
                if not np.isfinite(data[name]).all():
                    raise UserError(f"{path}: life {e} has NaN or infinite values in {name}; extract again")
            if data[FEATURES].shape[1] != len(names):
                raise UserError(f"{path}: {data[FEATURES].shape[1]} features, but {len(names)} names; extract again")
            rows = slice(first_tick, None, subsample)
            parts["h"].append(data["h"][rows].astype(np.float32))
            parts["features"].append(data[FEATURES][rows].astype(np.float64))
            parts["rolling"].append(rolling_mean(data[FEATURES], rolling)[rows].astype(np.float32))
            if has_place:
                parts["place"].append(data[POSITION][rows].astype(np.float64))
            parts["index"].append(index_T2[rows])
            parts["share"].append((index_T2[rows, 1] + 0.5) / len(index_T2))
            meta = store.meta(e)
            who.append(meta.get("agent", ("life", e)))
    if not who:
        raise UserError(f"{path} holds no lives" + (f" of more than --first_tick {first_tick}" if first_tick else ""))
    data = {k: np.concatenate(v) for k, v in parts.items() if v}
    life_N = np.repeat(np.arange(len(who)), [len(v) for v in parts["index"]])
    agents = sorted(set(map(str, who)))
    recur = LEAST_AGENTS <= len(agents) < len(who)
    agent_E = np.array([agents.index(str(a)) for a in who]) if recur else np.arange(len(who))
    world_E = np.unique(world_E[episodes], return_inverse=True)[1]
    tick_N = data["features"][:, names.index("tick")] if "tick" in names else data["index"][:, 1].astype(np.float64)
    place_N3 = None
    if has_place:
        sizes = [artefacts.load_array(path, name).shape for name in artefacts.files_of(path, "map_*.npy")]
        middle = np.array(sizes[0]) / 2 if sizes else (data["place"].min(0) + data["place"].max(0)) / 2
        place_N3 = np.column_stack([data["place"], np.abs(data["place"] - middle).max(1)])
    return Records(
        data["h"], data["features"], data["rolling"], place_N3, data["index"],
        Lives(life_N, agent_E, tick_N, data["share"], world_E), names, "agents" if recur else "lives",
        int(world_E.max()) + 1,
    )  # fmt: skip


# Principal components and features


def relations(
    pc_NK: np.ndarray, features_NF: np.ndarray, names: Sequence[str], life_N: np.ndarray, *, rng: np.random.Generator,
    resamples: int,
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Tables ``pca_features`` (Pearson r of every component and feature, with intervals over lives) and ``pca_r2``
    (R^2 of every feature read from all components together, and of every component from all features, in lives not
    fitted on).

    Everything comes from the moments of each life, so that to resample lives is to add matrices up.  What never changes
    has neither.
    """
    lives, k = int(life_N.max()) + 1, pc_NK.shape[1]
    z_ND = np.concatenate([pc_NK, features_NF], 1).astype(np.float64)
    std_D = z_ND.std(0)
    flat_D = std_D <= 1e-12 * np.abs(z_ND).max(0)
    z_ND = (z_ND - z_ND.mean(0)) / np.where(flat_D, 1, std_D)
    z_ND[:, flat_D] = 0
    z_ND = np.concatenate([np.ones((len(z_ND), 1)), z_ND], 1)
    starts = np.flatnonzero(np.diff(life_N, prepend=-1))
    moments_EDD = np.stack([part.T @ part for part in np.split(z_ND, starts[1:])])

    def correlation(m_RDD: np.ndarray) -> np.ndarray:
        """[R, K, F] from sums of products."""
        mean_RD = m_RDD[:, 0, 1:] / m_RDD[:, :1, 0]
        cov_RDD = m_RDD[:, 1:, 1:] / m_RDD[:, :1, :1] - mean_RD[:, :, None] * mean_RD[:, None]
        variance_RD = np.diagonal(cov_RDD, axis1=1, axis2=2)
        with np.errstate(divide="ignore", invalid="ignore"):
            out = cov_RDD / np.sqrt(variance_RD[:, :, None] * variance_RD[:, None])
        return np.where(np.isfinite(out), out, np.nan)[:, :k, k:]

    r_KF = correlation(moments_EDD.sum(0)[None])[0]
    weight_GE = left_out(lives, rng)
    by_left_out = correlation(np.tensordot(weight_GE, moments_EDD, 1))
    _, low_KF, high_KF = jackknifed(by_left_out, rng=rng, link=ATANH, draws=resamples)
    table = [
        {"component": i, "feature": name, "r": rounded(r_KF[i, f]), "low": rounded(low_KF[i, f]),
         "high": rounded(high_KF[i, f])}
        for i in range(k)
        for f, name in enumerate(names)
    ]  # fmt: skip
    pcs, features = 1 + np.arange(k), 1 + k + np.arange(len(names))
    fold_E = rng.permutation(lives) % min(FOLDS, lives)
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
                "n": lives,
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
    """(R^2, low, high) of columns y by least squares on columns x, each life by a fit on the lives of other folds."""
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


# The analysis


def analyse(records: Records, config: ActivationsConfig) -> Result:
    """Everything but the figures.

    Arrays, a row a record: ``index`` [N, 2] (episode, t), ``features`` and ``features_rolling`` [N, F], ``place`` [N,
    3] if known, ``share`` (of the lifespan), ``life`` and ``agent`` (numbers), ``pca`` [N, <= 10]; unless
    --metric-only also ``label`` int64 (-1 in no cluster, 0 the largest), ``probability``, ``umap`` [N, 2] and
    ``umap_10`` [N, <= 10], and, a row an edge of HDBSCAN's condensed tree, ``tree_parent``, ``tree_child``,
    ``tree_lambda`` and ``tree_size``.  Tables: ``pca_features``, ``pca_r2``, ``clusters`` (a verdict each) and
    ``effects``.  Raises UserError for bad input.
    """
    check(config)
    rng = np.random.default_rng(config.seed)
    lives = records.lives
    n_lives = len(lives.agent_E)
    if not config.metric_only and len(records) < config.hdbscan_min_cluster:
        raise UserError(
            f"{len(records)} records are fewer than --hdbscan_min_cluster {config.hdbscan_min_cluster}: keep more "
            f"(--subsample {config.subsample} now), extract more, or ask for --metric-only"
        )
    dims = COMPONENTS if config.metric_only else max(COMPONENTS, config.pre_cluster_dims)
    pc_NK, explained_K = principal(records.h_NH, dims)
    result = Result(
        arrays={
            "index": records.index_N2.astype(np.int64),
            "features": records.features_NF.astype(np.float32),
            "features_rolling": records.rolling_NF,
            "share": lives.share_N.astype(np.float32),
            "life": lives.life_N,
            "agent": lives.agent_E[lives.life_N],
            "pca": pc_NK[:, :COMPONENTS].astype(np.float32),
            "pca_explained": explained_K[:COMPONENTS],
        },
        notes={
            "features": list(records.names),
            "settings": cli.to_json(config) | {"directory": None, "out": None},
            "units": int(records.h_NH.shape[1]),
            "agents_are": records.agents_are,
            "unit": f"a life of an agent ({n_lives} lives in {records.worlds} worlds; lives of one world share its map "
            "and its events, so that intervals over lives are too narrow for what differs between worlds); of effect "
            f"sizes and verdicts: a {'world' if lives.by_world else 'life'}",
        },
    )
    if records.place_N3 is not None:
        result.arrays["place"] = records.place_N3.astype(np.float32)
    result.scalar("records", len(records), "records", n_lives)
    result.scalar("lives", n_lives, "lives")
    result.scalar("pca_explained", float(explained_K[:COMPONENTS].sum()), f"share of variance, {COMPONENTS} components")
    result.tables |= relations(
        pc_NK[:, :COMPONENTS], records.features_NF, records.names, lives.life_N, rng=rng, resamples=config.resamples
    )
    if not config.metric_only:
        _cluster(result, records, pc_NK, config, rng)
    return result


def _cluster(
    result: Result, records: Records, pc_NK: np.ndarray, config: ActivationsConfig, rng: np.random.Generator
) -> None:
    """Map, clusters and what they are about, into the result."""
    second = min(config.umap_pairs_dims, pc_NK.shape[1])
    if second < 2:
        raise UserError(f"the activations vary in {second} direction only, which makes no map; use --metric-only")
    umap_N2, umap_N10 = maps(
        records.h_NH, (2, second), neighbours=config.umap_neighbors, min_dist=config.min_dist, seed=config.seed
    )
    clustered_NX = pc_NK[:, : config.pre_cluster_dims] if config.cluster_before_umap else umap_N2
    found = find(clustered_NX, config.hdbscan_min_cluster, config.threads)
    result.arrays |= {
        "umap": umap_N2, "umap_10": umap_N10, "label": found.label_N,
        "probability": found.probability_N.astype(np.float32),
        "tree_parent": found.tree_parent, "tree_child": found.tree_child, "tree_lambda": found.tree_lambda,
        "tree_size": found.tree_size,
    }  # fmt: skip
    where = f"{clustered_NX.shape[1]} principal components" if config.cluster_before_umap else "the 2-D map"
    result.notes["clustered"] = where
    describe(result, records, clustered_NX, found.dbcv, config, rng)
    if config.surrogates and found.label_N.max() >= 0 and len(records.lives.agent_E) >= 2:
        _beside_surrogates(result, records, pc_NK, config)


def _beside_surrogates(result: Result, records: Records, pc_NK: np.ndarray, config: ActivationsConfig) -> None:
    """The clustering beside that of data without clusters; where it is no other, the verdict of the whole is that."""

    def mapped(x_NK: np.ndarray) -> np.ndarray:
        (umap_N2,) = maps(x_NK, (2,), neighbours=config.umap_neighbors, min_dist=config.min_dist, seed=config.seed)
        return umap_N2.astype(np.float64)

    life_N = records.lives.life_N
    x_NK, place = (pc_NK[:, : config.pre_cluster_dims], None) if config.cluster_before_umap else (records.h_NH, mapped)
    found = compare(
        x_NK, life_N, life_N, method="hdbscan", clusters=0, min_cluster_size=config.hdbscan_min_cluster,
        surrogates=config.surrogates, seed=config.seed, place=place,
    )  # fmt: skip
    found.record(result)
    if found.says == ONE_CLOUD:
        pieces = result.notes["said"]
        result.notes |= {"verdict": NO_CLUSTERS, "said": f"{ONE_CLOUD}, no stabler and no further apart; {pieces}"}


def describe(
    result: Result, records: Records, clustered_NX: np.ndarray, dbcv: float, config: ActivationsConfig,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Numbers and verdicts of the clusters in ``result.arrays['label']``, into the result."""
    lives, label_N = records.lives, result.arrays["label"]
    clusters, n = int(label_N.max()) + 1, len(lives.agent_E)
    noise = share_of(label_N == NOISE, lives.life_N)
    result.scalar("noise_share", noise.value, "share of records in no cluster", noise.n, noise.interval)
    result.scalar("clusters", clusters, "clusters")
    result.tables |= {"clusters": [], "effects": [], "joint": []}
    if not clusters:
        result.notes |= {
            "verdict": NO_CLUSTERS,
            "verdicts": {},
            "said": "HDBSCAN finds none: the records are one cloud",
        }
        return
    if n >= 2:
        ari, rows = stability(
            clustered_NX, label_N, lives.life_N, min_cluster_size=config.hdbscan_min_cluster, seed=config.seed,
            repeats=config.refits,
        )  # fmt: skip
        some = "" if rows == len(label_N) else f", on {rows:,} records"
        result.scalar(
            "stability", ari.value, f"adjusted Rand index over bootstraps of lives{some}", ari.n, ari.interval
        )
        record_share_from_time(result, "", label_N, lives.tick_N, lives.life_N, episodes=n, rng=rng)
    result.scalar("dbcv", dbcv, "density-based validity, -1 to 1 (fast form)", len(label_N))
    change, floor = transitions(label_N, lives.life_N, rng=rng)
    unit = "changes of cluster a pair of consecutive records in clusters"
    result.scalar("transition_rate", change.value, unit, change.n, change.interval)
    if change.n:
        result.scalar(
            "transition_rate_floor", floor.mean(), f"{unit}, order within lives shuffled", change.n,
            np.percentile(floor, [2.5, 97.5]),
        )  # fmt: skip
    columns = [records.features_NF, *([] if records.place_N3 is None else [records.place_N3])]
    names = [*records.names, *([] if records.place_N3 is None else PLACE)]
    e = effects(
        np.concatenate(columns, 1), names, len(names) - len(records.names), label_N, lives, rng,
        permutations=config.permutations, resamples=config.resamples,
    )  # fmt: skip
    t = times(label_N, lives, rng)
    kinds, size_C = [], np.bincount(label_N[label_N >= 0])
    for c in range(clusters):
        kind, why = verdict(e, t, c, lives, config.smallest)
        kinds.append(kind)
        result.tables["clusters"].append(_row(c, label_N, lives, e, t) | {"verdict": kind, "why": why})
    result.tables |= {"effects": e.table(), "joint": e.joint.rows()}
    whole, shares = overall(kinds, size_C)
    for kind, share in shares.items():
        result.scalar(f"verdict_{kind}", share, "share of records in clusters", n)
    for name, values_C in (("tick_eta2", t.tick_eta2), ("phase_eta2", t.phase_eta2), ("life_share", t.life_share)):
        weights_C = size_C * (1 - size_C / len(label_N))  # of the variance of membership
        unit = "share of the variance of membership, all clusters"
        result.scalar(name, float(np.average(values_C, weights=weights_C)), unit, n)
    timed = float(sum(size_C[c] for c in range(clusters) if told_by_time(t, c)) / size_C.sum())
    result.scalar("told_by_time", timed, "share of records in clusters whose cluster time alone tells", n)
    said = ", ".join(f"{share:.0%} {kind}" for kind, share in sorted(shares.items(), key=lambda kv: -kv[1]))
    result.notes |= {
        "verdict": whole,
        "said": f"of the records in clusters: {said}; time alone tells the clusters of {timed:.0%}",
        "verdicts": {
            str(c): {"verdict": row["verdict"], "why": row["why"]} for c, row in enumerate(result.tables["clusters"])
        },
    }


def _row(c: int, label_N: np.ndarray, lives: Lives, e: Effects, t: Times) -> dict[str, Any]:
    """What the table of clusters says of one, but for the verdict."""
    here = label_N == c
    out: dict[str, Any] = {
        "cluster": c,
        "records": int(here.sum()),
        "share": rounded(here.mean()),
        "lives": len(np.unique(lives.life_N[here])),
        "units": len(np.unique(lives.unit_E[lives.life_N[here]])),
        "tick": rounded(np.median(lives.tick_N[here])),
        "tick_low": rounded(np.quantile(lives.tick_N[here], 0.1)),
        "tick_high": rounded(np.quantile(lives.tick_N[here], 0.9)),
    }
    for name in ("tick_eta2", "phase_eta2", "life_share", "in_and_out"):
        out[name] = rounded(getattr(t, name)[c])
    out["missable"] = rounded(missable(e, c))
    out |= {f"neighbours_{k}": rounded(getattr(e.near, k)[c]) for k in ("share", "chance", "p", "q")}
    out["eta2_floor"] = rounded(np.quantile(t.eta2_floor[:, c], 0.975))
    for name in ("auc", "tick_entropy", "agent_entropy", "agents"):
        floor = getattr(t, f"{name}_floor")[:, c]
        out |= {name: rounded(getattr(t, name)[c]), f"{name}_floor": rounded(np.mean(floor))}
        out |= {
            f"{name}_floor_low": rounded(np.quantile(floor, 0.025)),
            f"{name}_floor_high": rounded(np.quantile(floor, 0.975)),
        }
    return out


# The stage


def summary(result: Result, out: Path) -> str:
    """What a person wants to know, in a few lines."""
    s, notes = result.scalars, result.notes
    records, lives, components = s["records"]["value"], s["lives"]["value"], len(result.arrays["pca_explained"])
    lines = [
        f"{records:,.0f} records of {lives:.0f} lives; {components} components hold {s['pca_explained']['value']:.0%} "
        f"of the variance of {notes['units']} units"
    ]
    if "verdict" in notes:
        noise = s["noise_share"]["value"]
        lines.append(
            f"{s['clusters']['value']:.0f} clusters in {notes['clustered']}; {noise:.0%} of records are in none"
        )
        if "stability" in s:
            low, high = s["stability"]["interval"]
            over = f"(ARI over lives{few(s['stability']['n'])})"
            lines[-1] += f"; stability {s['stability']['value']:.2f} [{low:.2f}, {high:.2f}] {over}"
        if "surrogates" in result.tables:
            lines.append(in_words(result))
        lines.append(f"verdict: {notes['verdict']} ({notes['said']})")
        for row in result.tables["clusters"][:12]:
            lines.append(f"  {row['cluster']:>3}  {row['records']:>6,} records  {row['verdict']:<10} {row['why']}")
        if (more := len(result.tables["clusters"]) - 12) > 0:
            lines.append(f"  and {more} smaller ones in clusters.csv")
    return "\n".join([*lines, f"written: {out}"])


def main(config: ActivationsConfig) -> None:
    from analysis.dendrogram import page

    began = time.time()
    check(config)
    if config.directory is None:
        raise UserError(
            "name the extraction: python -m analysis.activations DIR (analysis.extract_activations writes it)"
        )
    torch.set_num_threads(config.threads)
    records = read(config.directory, config.subsample, config.rolling, config.first_tick)
    with threadpool_limits(config.threads):
        result = analyse(records, config)
    inputs = {"activations": config.directory}
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.started = began
        result.save(run.path)
        wanted = {"umap_pairs.png": config.umap_pairs, "feature_scatter.png": config.feature_scatter}
        draw(result, run.path, without=[name for name, yes in wanted.items() if not yes])
        if config.dendrogram_explorer and "label" in result.arrays:
            artefacts.write_atomically(run.path / DENDROGRAM, page(result).encode())
        facts = artefacts.read_manifest(config.directory)["facts"]
        run.facts = {k: facts[k] for k in ("agent", "policy", "features") if k in facts}
        run.metrics = dict(result.scalars)
    print(summary(result, config.out))


if __name__ == "__main__":
    cli.run(ActivationsConfig, main, STAGE)
