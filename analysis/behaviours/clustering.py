"""Histories clustered into behaviours, and what each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.behaviours.config import BehaviourOptions, check
from analysis.behaviours.histories import Scale, States, Steps, histories, weighted
from analysis.behaviours.mdp import NO_BEHAVIOUR, Visits, aggregate, transitions
from analysis.behaviours.placed import DIMENSIONS, Fitted, again_from, least_cluster
from analysis.shared.behaviours import NAMES, SOURCES
from analysis.shared.clusters import (
    NOISE,
    cluster_stability,
    fit_clusters,
    record_share_from_time,
    time_eta2,
)
from analysis.shared.directions import names_left_out, principal_components, say_left_out, varying
from analysis.shared.maps import embed, mapped
from analysis.shared.placed import check_lives, cost, cost_in_words
from analysis.shared.sources import REAL
from analysis.shared.surrogates import compare, in_words
from core.artefacts import Result
from core.contracts import UserError
from core.stats import bootstrap_mean, cohens_d_interval, few, share_of, shares


def cluster(
    steps: Sequence[Steps | None], options: BehaviourOptions, seed: int, action_names: Sequence[str],
    parts: tuple[int, ...] = (),
) -> Result:  # fmt: skip
    """Behaviours of real and (if not None) simulated steps.  parts: choices of each part of an action; (): one part.

    Arrays: ``labels_real`` (-1: in no behaviour), ``index_real`` [N, 2] of (episode, t), the same with ``_sim``;
    ``map`` [M, 3] of all of them, real first; ``centre_index`` int64 [behaviours, samples, 3] of (source,
    episode, t), real ones first and the most central first among them, -1 where a behaviour has no more episodes;
    ``transitions`` int64 [S, S] counts of real steps t -> t+1, S the behaviours and, last, the steps that are in
    none if there are any.  Tables ``behaviours``, ``mdp`` and ``transitions`` (analysis.behaviours.mdp).
    Raises UserError for bad input.
    """
    return cluster_some(steps, options, seed, action_names, parts)[0]


def cluster_some(
    steps: Sequence[Steps | None], options: BehaviourOptions, seed: int, action_names: Sequence[str],
    parts: tuple[int, ...] = (), of: int = 0, alike: int | None = None,
) -> tuple[Result, Fitted | None]:  # fmt: skip
    """``cluster``, and what places further steps.  of: how many steps there are with the further ones, 0 where there
    are none; alike: how many of them are of the given sources (--min_cluster_size is of these; None: all are).  What
    placing costs is in the result (``analysis.shared.placed.Cost``)."""
    check(options)
    given = [(source, s) for source, s in enumerate(steps) if s is not None]
    result = Result()
    x_NF, states = _states(given, options.world_size, result)
    # An episode number of its own for every (source, episode): the two stores' histories never mix.
    index_N2 = np.concatenate([s.index_N2 * [2, 1] + [source, 0] for source, s in given])
    vectors_MF, rows_M = histories(x_NF, index_N2, options.lags)
    if not len(rows_M):
        raise UserError(f"no episode has more than {max(options.lags)} steps, which the --lags need")
    source_M, episode_M, t_M = index_N2[rows_M, 0] % 2, index_N2[rows_M, 0] // 2, index_N2[rows_M, 1]
    value_M, action_M = (np.concatenate([getattr(s, n) for _, s in given])[rows_M] for n in ("value_N", "action_N"))
    real_M = source_M == REAL
    if not real_M.any():
        raise UserError(f"no real episode has more than {max(options.lags)} steps, which the --lags need")
    history = Scale.of(vectors_MF)
    found = principal_components(weighted(vectors_MF, len(options.lags), history), options.pca_size)
    scores_MK, share_K = found.scores_NK, found.share_K
    if not scores_MK.shape[1]:
        raise UserError("no step that has --lags steps after it differs from another; record more varied rollouts")
    unit_M = _units(given, index_N2)[rows_M]
    if of:
        check_lives(unit_M, options.fit_rows, "episodes")
        options = replace(options, min_cluster_size=least_cluster(options, len(index_N2), alike or of))
    on_map = options.embedding != "pca" or options.method == "hdbscan"
    made = mapped(scores_MK, options.embedding, DIMENSIONS, seed, more=of > 0)
    points_MK = made.map_ND if on_map else scores_MK
    label_M, distance_M, place = fit_clusters(points_MK, options.method, **_sizes(options, seed))
    count = int(label_M.max()) + 1
    finished = None
    if of and made.place is not None:
        finished = Fitted(states, options.lags, history, found.project, made.place, place, on_map)
        paid = cost(label_M, unit_M, again_from(scores_MK, on_map, options, seed), np.random.default_rng(seed))
        paid.record(result, len(rows_M), of, "steps", "episodes")

    result.notes |= {
        "behaviours": count, "embedding": options.embedding, "method": options.method, "fit_on": options.fit_on,
    }  # fmt: skip
    result.scalar("explained", float(share_K.sum()), "share of the vectors' variance in the components", len(rows_M))
    arrays: dict[str, np.ndarray] = {"map": made.map_ND.astype(np.float32)}
    for source, name in enumerate(SOURCES):
        here = source_M == source
        if any(s == source for s, _ in given):
            arrays[f"labels_{name}"] = label_M[here].astype(np.int16)
            arrays[f"index_{name}"] = np.stack([episode_M[here], t_M[here]], 1)
    shown = max(options.filmstrips, options.videos)
    arrays["centre_index"] = _centres(label_M, distance_M, source_M, episode_M, t_M, count, shown)
    arrays["transitions"] = transitions(label_M[real_M], episode_M[real_M], t_M[real_M], count)
    result.arrays = arrays
    _trust(result, (scores_MK, points_MK), label_M, index_N2[rows_M, 0], unit_M, options, seed)
    _describe(result, label_M[real_M], episode_M[real_M], unit_M[real_M], t_M[real_M], seed)
    result.tables["behaviours"] = _table(
        label_M, source_M, episode_M, unit_M, t_M, value_M, action_M, action_names, count, seed
    )
    logits_MA = np.concatenate([s.logits_NA for _, s in given])[rows_M]
    columns = [c[real_M] for c in (label_M, episode_M, t_M, value_M, logits_MA, unit_M)]
    visits = Visits(*columns)._replace(parts=parts)
    in_rows, result.tables["transitions"] = aggregate(visits, count, seed)
    names = {int(r["behaviour"]): r["name"] for r in result.tables["behaviours"]} | {NOISE: NO_BEHAVIOUR}
    result.tables["mdp"] = [row | {"name": names[row["behaviour"]]} for row in in_rows]
    return result, finished


def _trust(
    result: Result, points: tuple[np.ndarray, np.ndarray], label_M: np.ndarray, sequence_M: np.ndarray,
    unit_M: np.ndarray, options: BehaviourOptions, seed: int,
) -> None:  # fmt: skip
    """How stable the clusters are, and those of surrogates.  points: (components, what is clustered)."""
    scores_MK, points_MX = points
    sizes = _sizes(options, seed)
    ari = cluster_stability(points_MX, label_M, unit_M, method=options.method, **sizes)
    result.scalar("stability", ari.value, "adjusted Rand index", ari.n, (ari.low, ari.high))
    if options.embedding != "pca":
        result.notes["stability"] = "the embedding is held fixed, so the stability is an upper bound"
    if options.surrogates:
        # Histories are as slow as their windows overlap: steps follow each other in an episode's order.
        on_map = points_MX is not scores_MK
        place = (lambda x_NK: embed(x_NK, options.embedding, DIMENSIONS, seed)) if on_map else None
        compare(
            scores_MK, sequence_M, unit_M, method=options.method, surrogates=options.surrogates, place=place, **sizes
        ).record(result)


def _sizes(options: BehaviourOptions, seed: int) -> dict[str, int]:
    return {"clusters": options.clusters, "min_cluster_size": options.min_cluster_size, "seed": seed}


def _states(given: Sequence[tuple[int, Steps]], world_size: int, result: Result) -> tuple[np.ndarray, States]:
    """What the steps of all sources are, z-scored, float64 [N, F]: h and, where all have them, components of the world
    states; how much these hold, and what was left out, into the result."""
    h_NH = np.concatenate([s.h_NH for _, s in given])
    live_L = varying(h_NH)
    dead = names_left_out(live_L, h_NH.shape[1])
    say_left_out(dead)
    live_NL = h_NH[:, live_L].astype(np.float64)
    states = States(live_L, Scale.of(live_NL), None, None)
    x_NF = states.of_h(live_NL)
    del live_NL
    with_world = all(s.d_ND is not None for _, s in given)
    if with_world:
        d_ND = np.concatenate([s.d_ND for _, s in given if s.d_ND is not None])
        world_NK, share_K, project = principal_components(d_ND, world_size)
        of_world = Scale.of(world_NK.astype(np.float64))
        x_NF = np.concatenate([x_NF, of_world(world_NK.astype(np.float64))], 1)
        share = float(share_K.sum()) if len(share_K) else np.nan
        result.scalar("world_explained", share, "share of the world states' variance in their components")
        if not world_NK.shape[1]:
            with_world = False
            dead.append("world states")
            say_left_out(["the simulator's world states"])
        else:
            states = states._replace(world=project, of_world=of_world)
    result.notes |= {"vector": "h and world components" if with_world else "h only", "left_out": dead}
    return x_NF, states


def _units(given: Sequence[tuple[int, Steps]], index_N2: np.ndarray) -> np.ndarray:
    """Of every step int64 [N]: equal for what is not independent.  index_N2: as pooled, episodes numbered anew."""
    if any(s.unit_E is None for _, s in given):
        return index_N2[:, 0]
    return np.concatenate([s.unit_E[s.index_N2[:, 0]] for _, s in given if s.unit_E is not None])


def _describe(
    result: Result, label_R: np.ndarray, episode_R: np.ndarray, unit_R: np.ndarray, t_R: np.ndarray, seed: int
) -> None:
    """Of real steps: how many are in no behaviour (hdbscan), and how much of a label is time."""
    rng = np.random.default_rng(seed)
    units = len(np.unique(unit_R))
    if result.notes["method"] == "hdbscan":
        noise = share_of(label_R == NOISE, unit_R)
        result.scalar("noise_share", noise.value, "share of real steps in no behaviour", noise.n, noise.interval)
    record_share_from_time(result, "", label_R, t_R, episode_R, episodes=units, rng=rng, together_N=unit_R)


def _centres(
    label_M: np.ndarray,
    distance_M: np.ndarray,
    source_M: np.ndarray,
    episode_M: np.ndarray,
    t_M: np.ndarray,
    clusters: int,
    samples: int,
) -> np.ndarray:
    """Only of a behaviour's more central half: a step at its edge, alone in its episode, shows something else."""
    out = np.full((clusters, samples, 3), -1, np.int64)
    for b in range(clusters):
        taken: set[tuple[int, int]] = set()
        rows = np.flatnonzero(label_M == b)
        typical = rows[distance_M[rows] <= np.median(distance_M[rows])] if len(rows) else rows
        for row in sorted(typical, key=lambda r: (source_M[r], distance_M[r])):
            episode = (int(source_M[row]), int(episode_M[row]))
            if len(taken) == samples:
                break
            if episode not in taken:
                out[b, len(taken)] = (*episode, t_M[row])
                taken.add(episode)
    return out


def _table(
    label_M: np.ndarray,
    source_M: np.ndarray,
    episode_M: np.ndarray,
    unit_M: np.ndarray,
    t_M: np.ndarray,
    value_M: np.ndarray,
    action_M: np.ndarray,
    action_names: Sequence[str],
    clusters: int,
    seed: int,
) -> list[dict[str, Any]]:
    """One row a behaviour: shares, mean values and their Cohen's d with 95 % intervals over real units.

    ``value_d``: by how many pooled standard deviations the agent's value in the behaviour's steps lies above that
    in all other steps; None for a behaviour of fewer than 2 steps, its interval None for one of a single episode.
    """
    real = source_M == REAL
    label_R, episode_R, several = label_M[real], episode_M[real], action_M.ndim > 1
    units, unit_R = np.unique(unit_M[real], return_inverse=True)
    overall_A = np.bincount(action_M[real].ravel(), minlength=len(action_names)) / max(real.sum(), 1)
    counts_UB = np.zeros((len(units), clusters + 1))  # the last: steps in no behaviour
    np.add.at(counts_UB, (unit_R, label_R), 1)
    share, low, high, _ = shares(counts_UB, counts_UB.sum(1, keepdims=True))
    out = []
    for b in range(clusters):
        here, name = label_R == b, ""
        row: dict[str, Any] = {
            "behaviour": b,
            "n_steps": int(here.sum()),
            "n_episodes": len(np.unique(episode_R[here])),
            "share": float(share[b]),
            "share_low": float(low[b]),
            "share_high": float(high[b]),
            "n_sim_steps": int((label_M[~real] == b).sum()),
            "time_eta2": time_eta2(here, t_M[real]),
            "value": None,
            "value_low": None,
            "value_high": None,
            "value_d": None,
            "value_d_low": None,
            "value_d_high": None,
            "actions": "",
        }
        if here.any():
            rng = np.random.default_rng(seed)
            value = bootstrap_mean(value_M[real][here], unit_R[here], rng=rng)
            row |= {"value": value.value, "value_low": value.low, "value_high": value.high}
            d = cohens_d_interval(value_M[real][:, None], here, unit_R, rng=rng)
            for column, (number,) in zip(("value_d", "value_d_low", "value_d_high"), d, strict=True):
                row[column] = float(number) if np.isfinite(number) else None
            often = np.bincount(action_M[real][here].ravel(), minlength=len(action_names))
            # Of several parts most do nothing nearly always: what is done here more than elsewhere says something.
            by = often / here.sum() - overall_A if several else often
            top = [a for a in np.argsort(-by, kind="stable")[:3] if often[a]]
            said = [f"{action_names[a]} {often[a] / here.sum():.0%}" for a in top]
            row["actions"] = ", ".join(said)
            mostly = 2 * often[top[0]] >= here.sum()  # half of the steps, or the name would mislead
            name = f"mostly {action_names[top[0]]}" if mostly else ", ".join(said[:2])
        row["name"] = f"behaviour {b}" + (f": {name}" if name else "")
        out.append(row)
    return out


def summary(result: Result, out: Path) -> str:
    """What a person wants to know, in a few lines."""
    s = result.scalars
    low, high = s["stability"]["interval"]
    lines = [
        f"{result.notes['behaviours']} behaviours from {result.notes['vector']}: "
        f"stability {s['stability']['value']:.2f} [{low:.2f}, {high:.2f}] (ARI, {s['stability']['n']} episodes"
        f"{few(s['stability']['n'])}); "
        f"normalised mutual information of label and step {s['share_from_time']['value']:.2f} "
        f"(of rotated labels {s['share_from_time_floor']['value']:.2f})"
    ]
    if "surrogates" in result.tables:
        lines.append(f"  {in_words(result)}")
    if "fitted" in s:
        flag = "--fit_on real" if result.notes["fit_on"] == "real" else "--fit_rows"
        lines.append(f"  {cost_in_words(result, 'steps', flag)}")
    if "noise_share" in s:
        noise = s["noise_share"]["value"]
        lines.append(f"  {noise:.0%} of real steps are in none of them")
        if noise > 0.5:
            lines[-1] += ": most; try --embedding umap, a smaller --min_cluster_size, or another --method"
    for row in result.tables["behaviours"][:12]:
        lines.append(
            f"  {row['behaviour']:>3}  {row['share']:5.1%} of real steps in {row['n_episodes']} episodes, "
            f"{row['n_sim_steps']} simulated steps; {row['actions']}"
        )
    return "\n".join([*lines, f"  names to edit: {out / NAMES}"])
