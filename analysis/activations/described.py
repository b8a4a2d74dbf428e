"""Activations mapped and clustered, and every cluster described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from analysis.activations.components import relations
from analysis.activations.config import ActivationsConfig, check
from analysis.activations.density import find, stability, transitions
from analysis.activations.moments import FILE as MOMENTS, moments
from analysis.activations.records import Records
from analysis.activations.verdicts import (
    LEAST_WORLDS,
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
from analysis.shared.clusters import NOISE, record_share_from_time
from analysis.shared.directions import principal_scores
from analysis.shared.maps import umaps
from analysis.shared.placed import Cost, check_lives, cost, cost_in_words, evenly, share_of_least
from analysis.shared.surrogates import ONE_CLOUD, compare, in_words
from core import config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.stats import ALPHA, band_of, few, share_of
from core.words import counted

PLACE = ("row", "column", "from_centre")


def analyse(records: Records, config: ActivationsConfig) -> Result:
    """Everything but the figures.

    Arrays, a row a record: ``index`` [N, 2] (episode, t), ``features`` and ``features_rolling`` [N, F], ``place`` [N,
    3] if known, ``share`` (of the lifespan), ``life`` and ``agent`` (numbers), ``pca`` [N, <= --pre_cluster_dims];
    unless --metric-only also ``label`` int64 (-1 in no cluster, 0 the largest), ``probability``, ``umap`` [N, 2] and,
    unless --no-umap-pairs, ``umap_10`` [N, <= 10], and, a row an edge of HDBSCAN's condensed tree, ``tree_parent``,
    ``tree_child``, ``tree_lambda`` and ``tree_size``; with --fit_rows ``fitted`` int64 [M], the rows that map and
    clusters are made from, which the tree is of.  Tables: ``pca_features``, ``pca_r2``, ``clusters`` (a verdict
    each), ``effects`` and ``moments`` (exemplars of every cluster).  Raises UserError for bad input.
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
    pc_NK, explained_K = principal_scores(np.asarray(records.h_NH, np.float32), config.pre_cluster_dims)
    if not len(explained_K):
        raise UserError("the activations never change, so there is nothing to find; extract from another policy")
    result = Result(
        arrays={
            "index": records.index_N2.astype(np.int64),
            "features": records.features_NF.astype(np.float32),
            "features_rolling": records.rolling_NF,
            "share": lives.share_N.astype(np.float32),
            "life": lives.life_N,
            "agent": lives.agent_E[lives.life_N],
            "pca": pc_NK.astype(np.float32),
            "pca_explained": explained_K,
        },
        notes={
            "features": list(records.names),
            "settings": cli.to_json(config) | {"directory": None, "out": None},
            "units": int(records.h_NH.shape[1]),
            "agents_are": records.agents_are,
            "unit": f"a {'world' if lives.by_world else 'life of an agent'} ({n_lives} lives in "
            f"{records.worlds or 'unknown'} worlds; lives of one world share its map and its events, so that intervals "
            "over lives are too narrow for what differs between worlds); of stability: a life",
        },
    )
    result.scalar("worlds", records.worlds, "worlds")
    if records.place_N3 is not None:
        result.arrays["place"] = records.place_N3.astype(np.float32)
    result.scalar("records", len(records), "records", n_lives)
    result.scalar("lives", n_lives, "lives")
    result.scalar("pca_explained", float(explained_K.sum()), f"share of variance, {len(explained_K)} components")
    result.tables |= relations(
        pc_NK, records.features_NF, records.names, lives.unit_E[lives.life_N], rng=rng, resamples=config.resamples
    )
    if not config.metric_only:
        _cluster(result, records, pc_NK, config, rng)
    return result


def _cluster(
    result: Result, records: Records, pc_NK: np.ndarray, config: ActivationsConfig, rng: np.random.Generator
) -> None:
    """Map, clusters and what they are about, into the result."""
    if pc_NK.shape[1] < 2:
        raise UserError("the activations vary in 1 direction only, which makes no map; use --metric-only")
    sizes = (2, min(config.umap_pairs_dims, pc_NK.shape[1])) if config.umap_pairs else (2,)
    fitted_M = evenly(len(records), config.fit_rows)
    if fitted_M is not None:
        check_lives(records.lives.life_N[fitted_M], config.fit_rows)
    umap_N2, *more = umaps(
        records.h_NH, sizes, neighbours=config.umap_neighbors, min_dist=config.min_dist, seed=config.seed,
        fitted_M=fitted_M,
    )  # fmt: skip
    if more:
        result.arrays["umap_10"] = more[0]
    clustered_NX = pc_NK if config.cluster_before_umap else umap_N2
    found = find(clustered_NX, config.hdbscan_min_cluster, config.threads, fitted_M, config.samples_share)
    if fitted_M is not None:
        result.arrays["fitted"] = fitted_M
        x_NF = pc_NK if config.cluster_before_umap else records.h_NH
        paid = placing(x_NF, found.label_N, records.lives.life_N, fitted_M, config, rng)
        paid.record(result, len(fitted_M), len(records))
    result.arrays |= {
        "umap": umap_N2, "label": found.label_N,
        "probability": found.probability_N.astype(np.float32),
        "tree_parent": found.tree_parent, "tree_child": found.tree_child, "tree_lambda": found.tree_lambda,
        "tree_size": found.tree_size,
    }  # fmt: skip
    where = f"{clustered_NX.shape[1]} principal components" if config.cluster_before_umap else "the 2-D map"
    result.notes["clustered"] = where
    result.tables["moments"] = moments(clustered_NX, found.label_N, found.probability_N, records, config.moments)
    describe(result, records, clustered_NX, found.dbcv, config, rng)
    if config.surrogates and found.label_N.max() >= 0 and len(records.lives.agent_E) >= 2:
        _beside_surrogates(result, records, pc_NK, config)


def placing(
    x_NF: np.ndarray, label_N: np.ndarray, life_N: np.ndarray, fitted_M: np.ndarray, config: ActivationsConfig,
    rng: np.random.Generator,
) -> Cost:  # fmt: skip
    """What it costs to place rows.  x: what is mapped, or clustered itself with --cluster_before_umap; label: the
    clusters of all rows.  UserError for too few lives."""
    check_lives(life_N[fitted_M], len(fitted_M))
    x_MF = x_NF[fitted_M]

    def again(rows: np.ndarray) -> np.ndarray:
        least = share_of_least(config.hdbscan_min_cluster, len(fitted_M), len(x_NF))
        if config.cluster_before_umap:
            return find(x_MF, least, config.threads, rows, config.samples_share).label_N
        (map_M2,) = umaps(
            x_MF, (2,), neighbours=config.umap_neighbors, min_dist=config.min_dist, seed=config.seed, fitted_M=rows
        )
        return find(map_M2, least, config.threads, rows, config.samples_share).label_N

    return cost(label_N[fitted_M], life_N[fitted_M], again, rng)


def _beside_surrogates(result: Result, records: Records, pc_NK: np.ndarray, config: ActivationsConfig) -> None:
    """The clustering beside that of data without clusters; where it is no other, the verdict of the whole is that."""

    def mapped(x_NK: np.ndarray) -> np.ndarray:
        (umap_N2,) = umaps(x_NK, (2,), neighbours=config.umap_neighbors, min_dist=config.min_dist, seed=config.seed)
        return umap_N2.astype(np.float64)

    life_N = records.lives.life_N
    x_NK, place = (pc_NK, None) if config.cluster_before_umap else (records.h_NH, mapped)
    found = compare(
        x_NK, life_N, life_N, method="hdbscan", clusters=0, min_cluster_size=config.hdbscan_min_cluster,
        surrogates=config.surrogates, seed=config.seed, place=place, samples=config.samples_share,
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
    noise = share_of(label_N == NOISE, lives.unit_E[lives.life_N])
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
        fitted = result.arrays.get("fitted", np.arange(len(label_N)))
        least = share_of_least(config.hdbscan_min_cluster, len(fitted), len(label_N))
        ari, rows = stability(
            clustered_NX[fitted], label_N[fitted], lives.life_N[fitted], min_cluster_size=least, seed=config.seed,
            repeats=config.refits, samples=config.samples_share,
        )  # fmt: skip
        some = "" if rows == len(label_N) else f", on {rows:,} records"
        result.scalar(
            "stability", ari.value, f"adjusted Rand index over bootstraps of lives{some}", ari.n, ari.interval
        )
        world_N = None if lives.world_E is None else lives.world_E[lives.life_N]
        record_share_from_time(result, "", label_N, lives.tick_N, lives.life_N, episodes=n, rng=rng, together_N=world_N)
    result.scalar(
        "dbcv", dbcv, "density-based validity, -1 to 1 (fast form)", len(result.arrays.get("fitted", label_N))
    )
    change, floor = transitions(label_N, lives.life_N, rng=rng, unit_E=lives.unit_E)
    unit = "changes of cluster a pair of consecutive records in clusters"
    result.scalar("transition_rate", change.value, unit, change.n, change.interval)
    if change.n:
        result.scalar(
            "transition_rate_floor", floor.mean(), f"{unit}, order within lives shuffled", change.n,
            band_of(floor, ALPHA),
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
        low, high = band_of(floor, ALPHA)
        out |= {name: rounded(getattr(t, name)[c]), f"{name}_floor": rounded(np.mean(floor))}
        out |= {f"{name}_floor_low": rounded(low), f"{name}_floor_high": rounded(high)}
    return out


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
        if "fitted" in s:
            lines.append(cost_in_words(result))
        lines.append(f"verdict: {notes['verdict']} ({notes['said']})")
        if (worlds := int(s["worlds"]["value"])) < LEAST_WORLDS:
            lines.append(
                f"  said of these lives of {counted(worlds, 'world')}, whose map and events they share: record at "
                f"least {LEAST_WORLDS} worlds to speak of others"
                if worlds
                else "  said of single lives: which of them share a world is not recorded"
            )
        for row in result.tables["clusters"][:12]:
            lines.append(f"  {row['cluster']:>3}  {row['records']:>6,} records  {row['verdict']:<10} {row['why']}")
        if result.tables.get("moments"):
            lines.append(f"moments of every cluster to look at: {out / MOMENTS}")
        if (more := len(result.tables["clusters"]) - 12) > 0:
            lines.append(f"  and {more} smaller ones in clusters.csv")
    return "\n".join([*lines, f"written: {out}"])
