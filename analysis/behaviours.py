"""What the agent does, as clusters of short histories: ``python -m analysis.behaviours --rollouts runs/rollouts``.

A step's vector is [h ; world components] and how both change over the next 2, 4 and 6 steps, all
z-scored, the changes together as heavy as the state, and reduced by PCA.  Real and simulated steps are
clustered together, so that both can be labelled and a cluster that only the simulator has shows as such.
``plot`` draws everything again, with the names a user has put into behaviours.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from threadpoolctl import threadpool_limits

from analysis.behaviour_figures import draw
from analysis.clusters import (
    NOISE,
    Embedding,
    Method,
    cluster_stability,
    embed,
    find_clusters,
    record_share_from_time,
    time_eta2,
)
from analysis.directions import EXACT_SIZE, OVERSAMPLES, names_left_out, say_left_out, varying
from analysis.mdp import NO_BEHAVIOUR, Visits, aggregate, transitions
from analysis.states import REAL, open_stores, units
from analysis.surrogates import compare, in_words
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import Simulator, UserError
from core.directions import fingerprint
from core.episodes import RolloutStore
from core.progress import bar
from core.stats import bootstrap_mean, cohens_d_interval, few, share_of, shares
from core.video import check_video
from envs.registry import renewed
from generative.simulator import require_finite

STAGE = "behaviours"
NAMES = "behaviours.json"
SOURCES = ("real", "sim")
OBSERVED_FRAMES = 2048  # frames filtered at once: about 100 MB as float32
LABEL_STEPS = 5  # a simulated sample is labelled by its first steps (METHODS section 5)


@dataclass(frozen=True, kw_only=True)
class BehaviourOptions:
    """How steps become vectors and vectors become clusters."""

    lags: tuple[int, ...] = (2, 4, 6)
    """steps ahead whose change is part of the vector; the last of them are cut from every episode"""
    world_size: int = 16
    """principal components of the world state (with --simulator)"""
    pca_size: int = 64
    """principal components of the vectors that are clustered"""
    embedding: Embedding = "pca"
    """pca clusters those directly: fast, and distances stay what they were; umap and tsne embed them in 3-D first"""
    method: Method = "k_means"
    """k_means; ward (a tree of 4,000 steps, every step then in the nearest of its clusters); hdbscan (in the
    embedding's 3-D, as density means little in 64: best with umap; finds how many there are, and leaves noise)"""
    clusters: int = 32
    """number of behaviours (k_means, ward)"""
    min_cluster_size: int = 0
    """steps of the smallest behaviour (hdbscan); 0: 1 % of all steps"""
    surrogates: int = 39
    """data without clusters, of each of two kinds, that are clustered alike: stable means beyond 95 % of them, which
    fewer than 39 cannot say; 0: none (umap and tsne embed each of them: seconds to minutes)"""
    first_step: int = 1
    """earlier steps are left out: step 0 is all initial state"""
    filmstrips: int = 4
    """central samples in the filmstrip of every behaviour, each from another episode"""
    videos: int = 9
    """central samples in the video of every behaviour"""
    video_steps: int = 16
    """steps in that video, from each sample's central step on"""


@dataclass(frozen=True, kw_only=True)
class BehavioursConfig:
    """Cluster what the agent does into behaviours."""

    action: tyro.conf.Positional[Literal["both", "precompute", "plot"]] = "both"
    """precompute writes labels and tables, plot draws those of --behaviours with the names in it, both does both"""
    rollouts: Path | None = None
    """real rollouts (precompute, both)"""
    samples: Path | None = None
    """simulated rollouts to cluster and label too"""
    simulator: Path | None = None
    """gives world states of the real frames; without it behaviours are clusters of h alone"""
    behaviours: Path | None = None
    """run directory to draw (plot)"""
    out: Path = Path("runs/behaviours")
    """run directory to write"""
    fit: BehaviourOptions = field(default_factory=BehaviourOptions)
    seed: int = 0
    """seed of clusters, bootstraps and the embedding"""
    video: bool = True
    """an MP4 and an endlessly looping GIF of every behaviour too"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""


@dataclass(frozen=True)
class Behaviours:
    """Labels by source ('real', 'sim'): ``labels`` int64 [N] and ``index`` int64 [N, 2] of (episode, t).

    Steps that are in no behaviour (HDBSCAN's noise) are not among them.  ``sample_labels`` int64: one a simulated
    episode, the mode over its first steps, -1 where that is none or it is too short (empty without samples).
    ``names`` as the user has edited them.
    """

    labels: dict[str, np.ndarray]
    index: dict[str, np.ndarray]
    sample_labels: np.ndarray
    names: dict[int, str]
    agent: str

    def steps(self, behaviour: int, source: str = "real") -> np.ndarray:
        """(episode, t) int64 [M, 2] of a behaviour; UserError if it or the source does not exist."""
        if source not in self.labels:
            raise UserError(f"these behaviours have no {source!r} labels; they have: {', '.join(self.labels)}")
        if behaviour not in self.names:
            raise UserError(f"behaviour {behaviour} does not exist; there are 0 to {max(self.names)}")
        return self.index[source][self.labels[source] == behaviour]


def load_behaviours(path: Path) -> Behaviours:
    """The labels of a behaviours run directory, and the names in its behaviours.json.  Raises UserError."""
    path = Path(path)
    manifest = artefacts.read_manifest(path, STAGE)
    result = Result.load(path)
    have = [s for s in SOURCES if f"labels_{s}" in result.arrays]
    raw = artefacts.load_json(path, NAMES)
    if NAMES in artefacts.edited_files(path):
        print(f"note: {path / NAMES} was edited since the behaviours were made; its names are used", file=sys.stderr)
    count = int(result.notes["behaviours"])
    if not isinstance(raw, dict) or sorted(raw) != sorted(str(b) for b in range(count)):
        raise UserError(f"{path / NAMES} must name each of the behaviours 0 to {count - 1}, as {{'0': 'a name', ...}}")
    for key, name in raw.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise UserError(f"{path / NAMES}: the name of behaviour {key} must be one line of text, not {name!r}")
    labels = {s: result.arrays[f"labels_{s}"].astype(np.int64) for s in have}
    return Behaviours(
        labels={s: labels[s][labels[s] != NOISE] for s in have},
        index={s: result.arrays[f"index_{s}"][labels[s] != NOISE] for s in have},
        sample_labels=result.arrays["sample_labels"].astype(np.int64),
        names={int(k): v.strip() for k, v in raw.items()},
        agent=manifest["facts"]["agent"],
    )


# Vectors


def world_states(
    simulator: Simulator, store: RolloutStore, device: torch.device, chosen: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Posterior world states d float32 [rows - initial_frames + 1, D] of every (or every chosen) episode, from its
    frames.

    Row i is the state at step ``initial_frames - 1 + i``; an episode shorter than that has none.  UserError where the
    simulator makes no numbers of the frames.
    """
    lead = simulator.initial_frames - 1
    out: list[np.ndarray] = [np.zeros((0, 0), np.float32)] * len(store)
    names = list(store.spec.obs)
    rows_E = store.rows if chosen is None else np.where(np.isin(np.arange(len(store)), chosen), store.rows, 0)
    with bar("world states", int(np.maximum(rows_E - lead, 0).sum()), "steps") as progress, torch.no_grad():
        for episodes in _batches(rows_E, lead):
            length = int(store.rows[episodes].max())
            starts = np.stack([episodes, np.zeros_like(episodes)], 1)
            window = store.read_windows([*(f"obs/{n}" for n in names), "action"], starts, length)
            obs = {n: torch.from_numpy(window[f"obs/{n}"]).to(device) for n in names}
            # The action after an unknown end is padding: no state that is kept follows it.
            action = torch.from_numpy(window["action"][:, lead:]).to(device)
            seen = torch.from_numpy(window.seen[:, lead:]).to(device)
            d = simulator.observe(obs, action, seen)
            require_finite({"world states": d[seen]})
            for b, e in enumerate(episodes):
                out[e] = d[b, : store.rows[e] - lead].cpu().numpy()
                progress.advance(len(out[e]))
    return out


def _batches(rows_E: np.ndarray, lead: int) -> Iterator[np.ndarray]:
    """Episode ids in batches of similar length, at most OBSERVED_FRAMES padded frames each."""
    ids = np.flatnonzero(rows_E > lead)
    ids = ids[np.argsort(-rows_E[ids], kind="stable")]
    while len(ids):
        size = max(1, OBSERVED_FRAMES // int(rows_E[ids[0]]))
        yield ids[:size]
        ids = ids[size:]


@dataclass(frozen=True)
class Steps:
    """Steps of one store: ``h_NH``, ``d_ND`` (None without a simulator), what happened, and (episode, t).

    Steps of an episode are consecutive.  ``unit_E`` int64 [episodes]: equal for what is not independent, also across
    stores (analysis.states.units); None: every episode is a unit.
    """

    h_NH: np.ndarray
    d_ND: np.ndarray | None
    value_N: np.ndarray
    action_N: np.ndarray
    logits_NA: np.ndarray
    index_N2: np.ndarray
    unit_E: np.ndarray | None = None


def read_steps(
    store: RolloutStore, first_step: int, world: Sequence[np.ndarray] | str | None = None, lead: int = 0,
    unit_E: np.ndarray | None = None,
) -> Steps:  # fmt: skip
    """Pooled steps t >= first_step.

    world: per-episode states whose row i belongs to step ``lead + i``, or the name of a stored column.
    """
    first = max(first_step, lead)
    names = ["h", "value", "action", "logits", *([world] if isinstance(world, str) else [])]
    columns, index_N2 = store.pooled(*names, first=first)
    d_ND = columns[world] if isinstance(world, str) else None
    if world is not None and not isinstance(world, str):
        ends = [int(min(store.steps[e], store.rows[e])) for e in range(len(store))]
        d_ND = np.concatenate([world[e][first - lead : ends[e] - lead] for e in range(len(store)) if ends[e] > first])
    return Steps(columns["h"], d_ND, columns["value"], columns["action"], columns["logits"], index_N2, unit_E)


def in_effect(steps: Steps, actions: Mapping[str, Sequence[int]]) -> Steps:
    """The steps with actions that do the same as one: of every name in ``actions`` (EnvSpec.distinct_actions), its
    number among them, and the logit of doing any of them."""
    of_A = np.zeros(sum(map(len, actions.values())), np.int64)
    for number, ids in enumerate(actions.values()):
        of_A[list(ids)] = number
    logits_NA = np.stack([np.logaddexp.reduce(steps.logits_NA[:, list(ids)], axis=1) for ids in actions.values()], 1)
    return replace(steps, action_N=of_A[steps.action_N], logits_NA=logits_NA)


def histories(x_NF: np.ndarray, index_N2: np.ndarray, lags: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [x_t, x_{t+k} - x_t for every lag] of all steps that have max(lags) more steps in their episode.

    Returns float64 [M, F * (1 + lags)] and the row of each in x, int64 [M].
    """
    ahead = max(lags)
    n = len(x_NF) - ahead
    rows_M = np.flatnonzero(index_N2[ahead:, 0] == index_N2[: max(n, 0), 0]) if n > 0 else np.zeros(0, np.int64)
    x = np.asarray(x_NF, np.float64)
    return np.concatenate([x[rows_M]] + [x[rows_M + k] - x[rows_M] for k in lags], 1), rows_M


def reduce(x_NF: np.ndarray, size: int) -> tuple[np.ndarray, float]:
    """Scores [N, K] on the first K = min(size, rank) principal components, and their share of the variance; none, and
    NaN, of what never changes.

    Beyond EXACT_SIZE dimensions (world states) by the randomised solver: all components of 4,096 take minutes.
    """
    from sklearn.decomposition import PCA

    if not np.ptp(x_NF, axis=0).any():
        return np.zeros((len(x_NF), 0)), np.nan
    size = min(size, *x_NF.shape)
    solver = "randomized" if x_NF.shape[1] > EXACT_SIZE else "covariance_eigh"
    model = PCA(size, svd_solver=solver, n_oversamples=OVERSAMPLES, random_state=0)
    scores_NK = model.fit_transform(x_NF)
    kept = model.explained_variance_ > 1e-10 * model.explained_variance_[0]
    return scores_NK[:, kept], float(model.explained_variance_ratio_[kept].sum())


def weighted(vectors_MF: np.ndarray, lags: int) -> np.ndarray:
    """Histories of ``lags`` lags, z-scored, the changes of all lags together as heavy as the state alone.

    With a weight of 1 each, changes outweigh the state by the number of lags.  They share what is new in a
    step, so that where few units carry the behaviours, the first components are that and no behaviour is found.
    """
    out_MF = _z(vectors_MF)
    out_MF[:, out_MF.shape[1] // (1 + lags) :] /= np.sqrt(lags)
    return out_MF


def _z(x_NF: np.ndarray) -> np.ndarray:
    std_F = x_NF.std(0)
    return (x_NF - x_NF.mean(0)) / np.where(std_F > 0, std_F, 1)


def sample_labels(label_N: np.ndarray, index_N2: np.ndarray, episodes: int, first: int = LABEL_STEPS) -> np.ndarray:
    """Mode of each episode's first labels int64 [episodes]; the earliest wins a tie, -1 where there is none."""
    out = np.full(episodes, -1)
    for e in np.unique(index_N2[:, 0]):
        labels = label_N[index_N2[:, 0] == e][:first]
        out[e] = labels[np.argmax([(labels == label).sum() for label in labels])]
    return out


# Clusters


def check(options: BehaviourOptions) -> None:
    """UserError for settings that mean nothing."""
    if not options.lags or min(options.lags) < 1:
        raise UserError(f"--lags {' '.join(map(str, options.lags))}: at least one lag, and none below 1")
    for name, least in (
        ("world_size", 1), ("pca_size", 1), ("first_step", 0), ("filmstrips", 0), ("videos", 0), ("video_steps", 2),
        ("min_cluster_size", 0), ("surrogates", 0),
    ):  # fmt: skip
        if getattr(options, name) < least:
            raise UserError(f"--{name} {getattr(options, name)}: at least {least}")


def cluster(steps: Sequence[Steps | None], options: BehaviourOptions, seed: int, action_names: Sequence[str]) -> Result:
    """Behaviours of real and (if not None) simulated steps.

    Arrays: ``labels_real`` (-1: in no behaviour), ``index_real`` [N, 2] of (episode, t), the same with ``_sim``;
    ``map`` [M, 2 or 3] of all of them, real first; ``centre_index`` int64 [behaviours, samples, 3] of (source,
    episode, t), real ones first and the most central first among them, -1 where a behaviour has no more episodes;
    ``transitions`` int64 [S, S] counts of real steps t -> t+1, S the behaviours and, last, the steps that are in
    none if there are any.  Tables ``behaviours``, ``mdp`` and ``transitions`` (analysis.mdp).
    Raises UserError for bad input.
    """
    check(options)
    given = [(source, s) for source, s in enumerate(steps) if s is not None]
    with_world = all(s.d_ND is not None for _, s in given)
    h_NH = np.concatenate([s.h_NH for _, s in given])
    live_L = varying(h_NH)
    dead = names_left_out(live_L, h_NH.shape[1])
    say_left_out(dead)
    x_NF, world_share = _z(h_NH[:, live_L].astype(np.float64)), None
    if with_world:
        d_ND = np.concatenate([s.d_ND for _, s in given if s.d_ND is not None])
        world_NK, world_share = reduce(d_ND, options.world_size)
        x_NF = np.concatenate([x_NF, _z(world_NK.astype(np.float64))], 1)
        if not world_NK.shape[1]:
            with_world = False
            dead.append("world states")
            say_left_out(["the simulator's world states"])
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
    scores_MK, share = reduce(weighted(vectors_MF, len(options.lags)), options.pca_size)
    if not scores_MK.shape[1]:
        raise UserError("no step that has --lags steps after it differs from another; record more varied rollouts")
    map_MK = embed(scores_MK, options.embedding, 3, seed)
    points_MK = scores_MK if options.embedding == "pca" and options.method != "hdbscan" else map_MK
    sizes = {"clusters": options.clusters, "min_cluster_size": options.min_cluster_size, "seed": seed}
    label_M, distance_M = find_clusters(points_MK, options.method, **sizes)  # type: ignore[arg-type]
    count = int(label_M.max()) + 1

    result = Result(notes={"behaviours": count, "embedding": options.embedding, "method": options.method})
    result.notes["vector"] = "h and world components" if with_world else "h only"
    result.notes["left_out"] = dead
    result.scalar("explained", share, "share of the vectors' variance in the components", len(rows_M))
    if world_share is not None:
        result.scalar("world_explained", world_share, "share of the world states' variance in their components")
    arrays: dict[str, np.ndarray] = {"map": map_MK.astype(np.float32)}
    for source, name in enumerate(SOURCES):
        here = source_M == source
        if any(s == source for s, _ in given):
            arrays[f"labels_{name}"] = label_M[here].astype(np.int16)
            arrays[f"index_{name}"] = np.stack([episode_M[here], t_M[here]], 1)
    shown = max(options.filmstrips, options.videos)
    arrays["centre_index"] = _centres(label_M, distance_M, source_M, episode_M, t_M, count, shown)
    arrays["transitions"] = transitions(label_M[real_M], episode_M[real_M], t_M[real_M], count)
    result.arrays = arrays
    unit_M = _units(given, index_N2)[rows_M]
    ari = cluster_stability(points_MK, label_M, unit_M, method=options.method, **sizes)  # type: ignore[arg-type]
    result.scalar("stability", ari.value, "adjusted Rand index", ari.n, (ari.low, ari.high))
    if options.embedding != "pca":
        result.notes["stability"] = "the embedding is held fixed, so the stability is an upper bound"
    if options.surrogates:
        # Histories are as slow as their windows overlap: steps follow each other in an episode's order.
        place = None if points_MK is scores_MK else lambda x_NK: embed(x_NK, options.embedding, 3, seed)
        compare(
            scores_MK, index_N2[rows_M, 0], unit_M, method=options.method, surrogates=options.surrogates, place=place,
            **sizes,
        ).record(result)  # fmt: skip
    _describe(result, label_M[real_M], episode_M[real_M], t_M[real_M], seed)
    result.tables["behaviours"] = _table(
        label_M, source_M, episode_M, t_M, value_M, action_M, action_names, count, seed
    )
    logits_MA = np.concatenate([s.logits_NA for _, s in given])[rows_M]
    columns = (label_M, episode_M, t_M, value_M, logits_MA)
    states, result.tables["transitions"] = aggregate(Visits(*(c[real_M] for c in columns)), count, seed)
    names = {int(r["behaviour"]): r["name"] for r in result.tables["behaviours"]} | {NOISE: NO_BEHAVIOUR}
    result.tables["mdp"] = [row | {"name": names[row["behaviour"]]} for row in states]
    return result


def _units(given: Sequence[tuple[int, Steps]], index_N2: np.ndarray) -> np.ndarray:
    """Of every step int64 [N]: equal for what is not independent.  index_N2: as pooled, episodes numbered anew."""
    if any(s.unit_E is None for _, s in given):
        return index_N2[:, 0]
    return np.concatenate([s.unit_E[s.index_N2[:, 0]] for _, s in given if s.unit_E is not None])


def _describe(result: Result, label_R: np.ndarray, episode_R: np.ndarray, t_R: np.ndarray, seed: int) -> None:
    """Of real steps: how many are in no behaviour (hdbscan), and how much of a label is time."""
    rng = np.random.default_rng(seed)
    episodes = len(np.unique(episode_R))
    if result.notes["method"] == "hdbscan":
        noise = share_of(label_R == NOISE, episode_R)
        result.scalar("noise_share", noise.value, "share of real steps in no behaviour", noise.n, noise.interval)
    record_share_from_time(result, "", label_R, t_R, episode_R, episodes=episodes, rng=rng)


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
    t_M: np.ndarray,
    value_M: np.ndarray,
    action_M: np.ndarray,
    action_names: Sequence[str],
    clusters: int,
    seed: int,
) -> list[dict[str, Any]]:
    """One row a behaviour: shares, mean values and their Cohen's d with 95 % intervals over real episodes.

    ``value_d``: by how many pooled standard deviations the agent's value in the behaviour's steps lies above that
    in all other steps; None for a behaviour of fewer than 2 steps, its interval None for one of a single episode.
    """
    real = source_M == REAL
    label_R, episode_R = label_M[real], episode_M[real]
    units, unit_R = np.unique(episode_R, return_inverse=True)
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
            value = bootstrap_mean(value_M[real][here], episode_R[here], rng=rng)
            row |= {"value": value.value, "value_low": value.low, "value_high": value.high}
            d = cohens_d_interval(value_M[real][:, None], here, episode_R, rng=rng)
            for column, (number,) in zip(("value_d", "value_d_low", "value_d_high"), d, strict=True):
                row[column] = float(number) if np.isfinite(number) else None
            often = np.bincount(action_M[real][here], minlength=len(action_names))
            top = [a for a in np.argsort(-often, kind="stable")[:3] if often[a]]
            said = [f"{action_names[a]} {often[a] / here.sum():.0%}" for a in top]
            row["actions"] = ", ".join(said)
            mostly = 2 * often[top[0]] >= here.sum()  # half of the steps, or the name would mislead
            name = f"mostly {action_names[top[0]]}" if mostly else ", ".join(said[:2])
        row["name"] = f"behaviour {b}" + (f": {name}" if name else "")
        out.append(row)
    return out


# The stage


def _load_simulator(config: BehavioursConfig, agent: str, simulated: RolloutStore | None, device: torch.device) -> Any:
    if config.simulator is None:
        return None
    from generative.simulator import load_simulator

    simulator = load_simulator(config.simulator, device)
    if fingerprint(simulator.agent) != agent:
        raise UserError(f"{config.rollouts} is of agent {agent}, {config.simulator} of {fingerprint(simulator.agent)}")
    if simulated is not None and simulated.manifest["facts"].get("simulator") != fingerprint(simulator):
        raise UserError(
            f"{config.samples} was not generated by the simulator in {config.simulator}: world states differ"
        )
    return simulator


def _plot(config: BehavioursConfig) -> None:
    """Figures of a run directory with the names in it now, from the rollouts it was made from."""
    source = config.behaviours
    if source is None:
        raise UserError("plot needs --behaviours DIR, the run directory to draw")
    manifest, names, result = artefacts.read_manifest(source, STAGE), load_behaviours(source).names, Result.load(source)
    if "mdp" not in result.tables:
        raise UserError(f"{source} was written by an earlier version, without the transition graph; make it again")
    fit = cli.from_json(BehaviourOptions, artefacts.load_json(source, "config.json")["config"]["fit"], STAGE)
    stores: list[RolloutStore | None] = [None, None]
    for i, name in enumerate(("rollouts", "samples")):
        if (known := manifest["inputs"].get(name)) is not None:
            stores[i] = store = RolloutStore(source / known["path"])
            if artefacts.sha256(store.path / artefacts.MANIFEST) != known["manifest_sha256"]:
                raise UserError(f"{store.path} is not what {source} was made from any more; make the behaviours again")
    inputs = {"behaviours": source}
    with artefacts.new_run(config.out, f"{STAGE}_plot", config, inputs, overwrite=config.overwrite) as run:
        drawn = draw(result, names, stores, run.path, fit, config.video)
        run.facts = {"agent": manifest["facts"]["agent"]}
    print(f"drew {len(drawn)} figures and videos: {config.out}")


def main(config: BehavioursConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    check(config.fit)
    if config.video and config.action != "precompute":
        check_video()
    if config.action == "plot":
        _plot(config)
        return
    if config.rollouts is None:
        raise UserError("--rollouts DIR is needed (real rollouts, written by record.py)")
    if config.behaviours is not None:
        raise UserError("--behaviours belongs to plot; precompute and both read --rollouts")
    real, simulated, agent = open_stores(config.rollouts, config.samples)
    simulator = _load_simulator(config, agent, simulated, device)
    given = {"rollouts": config.rollouts, "samples": config.samples, "simulator": config.simulator}
    inputs = {k: v for k, v in given.items() if v is not None}
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        first = config.fit.first_step
        lead = 0 if simulator is None else simulator.initial_frames - 1
        steps: list[Steps | None] = [None, None]
        if simulated is not None:  # first: they are read at once
            column = None if simulator is None else "world/d"
            steps[1] = read_steps(simulated, first, column, unit_E=units(simulated, real))
        world = None if simulator is None else world_states(simulator, real, device)
        steps[0] = read_steps(real, first, world, lead, units(real, real))
        spec = renewed(real.spec)
        if spec.same_actions:
            steps = [None if s is None else in_effect(s, spec.distinct_actions()) for s in steps]
        with threadpool_limits(config.threads):
            result = cluster(steps, config.fit, config.seed, list(spec.distinct_actions()))
        result.arrays["sample_labels"] = (
            np.zeros(0, np.int64)
            if simulated is None
            else sample_labels(result.arrays["labels_sim"], result.arrays["index_sim"], len(simulated))
        )
        names = {int(row["behaviour"]): str(row["name"]) for row in result.tables["behaviours"]}
        if run.replaced is not None:
            names = _kept_names(run.replaced, result, names)
        result.save(run.path)
        artefacts.write_json(run.path / NAMES, {str(b): name for b, name in names.items()})
        if config.action == "both":
            draw(result, names, (real, simulated), run.path, config.fit, config.video)
        run.facts = {"agent": agent, "vector": result.notes["vector"], "left_out": result.notes["left_out"]}
        if simulator is not None:
            run.facts["simulator"] = fingerprint(simulator)
        run.metrics = dict(result.scalars)
    print(summary(result, config.out))


def _kept_names(replaced: Path, result: Result, names: dict[int, str]) -> dict[int, str]:
    """The names of the run that is replaced, if it has the same labels; new clusters get new names."""
    try:
        before, old = Result.load(replaced).arrays, load_behaviours(replaced).names
    except (UserError, KeyError):  # half-written, or of another stage
        return names
    same = all(np.array_equal(before[k], result.arrays[k]) for k in ("labels_real", "index_real"))
    if not same:
        print("the clusters are not those that were here before: behaviours.json has new names")
    return old if same else names


def summary(result: Result, out: Path) -> str:
    """What a person wants to know, in a few lines."""
    s = result.scalars
    low, high = s["stability"]["interval"]
    lines = [
        f"{result.notes['behaviours']} behaviours from {result.notes['vector']}: "
        f"stability {s['stability']['value']:.2f} [{low:.2f}, {high:.2f}] (ARI, {s['stability']['n']} episodes"
        f"{few(s['stability']['n'])}); "
        f"time gives away {s['share_from_time']['value']:.0%} of a label "
        f"(floor {s['share_from_time_floor']['value']:.0%})"
    ]
    if "surrogates" in result.tables:
        lines.append(f"  {in_words(result)}")
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


if __name__ == "__main__":
    cli.run(BehavioursConfig, main, STAGE)
