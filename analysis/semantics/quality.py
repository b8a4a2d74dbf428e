"""How good clusters inside a policy are, in numbers, and what each of them does.

N steps, C codes, F features (the state h), K coordinates, S surrogates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from agents.semantic import SemanticOptions, entropies
from analysis.semantics.states import States, episodes_for
from analysis.shared.clusters import (
    k_means as centres_of,
    nearest_centre,
    record_share_from_time,
    rotated_rows,
    time_bins,
)
from analysis.shared.surrogates import ENOUGH, slowness, walk
from analysis.shared.units import stretches
from core.artefacts import Result
from core.progress import track
from core.stats import ALPHA, band_of, bootstrap_mean, cohens_d_interval, jackknife

SILHOUETTE_ROWS = 2000  # distances of all pairs
NEIGHBOURS = 10  # of trustworthiness and continuity
RUN_ROWS = 8000  # whole episodes of about so many rows are compared with surrogates
BINS = 8  # of a number, where it is compared with codes
ROTATIONS = 20


def measure(
    states: States, code_of: Callable[[np.ndarray], np.ndarray], labellings: Mapping[str, np.ndarray],
    own_space: Mapping[str, tuple[np.ndarray, np.ndarray]], truths: Mapping[str, np.ndarray], *, surrogates: int,
    seed: int,
) -> Result:  # fmt: skip
    """Scalars; tables ``use``, ``silhouettes``, ``runs`` and ``agreement``.

    code_of: the agent's codes int64 [M] of any features [M, F]; labellings: other labels int64 [N] of the same steps,
    -1 where there is none; own_space: labels with the features that they were made of (a plain agent's k-means);
    truths: numbers of the world, float [N], NaN where there is none.
    """
    rng = np.random.default_rng(seed)
    result = Result()
    episodes = len(np.unique(states.index_N2[:, 0]))
    use_of_codes(states, result, rng)
    live = states.codes - len(states.dead)
    centre_CF = centres_of(states.h_NH, live, seed)
    plane_centre_C2 = centres_of(states.plane_N2, live, seed)
    labels = {
        "codes": states.code_N,
        "k-means of the features": nearest_centre(states.h_NH, centre_CF)[0],
        "k-means of the plane": nearest_centre(states.plane_N2, plane_centre_C2)[0],
        **labellings,
    }
    silhouettes(states, labels, own_space, result, rng)
    neighbourhoods(states, result, rng)
    run_lengths(states, code_of, labels["k-means of the features"], surrogates, result, rng)
    result.tables["agreement"] = agreement(states, labels, truths, rng)
    t_N, episode_N = states.index_N2[:, 1], states.index_N2[:, 0]
    record_share_from_time(
        result, "", states.code_N, t_N, episode_N, episodes=episodes, rng=rng, together_N=states.unit_N
    )
    return result


def use_of_codes(states: States, result: Result, rng: np.random.Generator) -> None:
    """Perplexity of the codes' use, and a row a code."""
    unit_N = states.unit_N
    n = len(np.unique(unit_N))

    def perplexity(rows: np.ndarray) -> float:
        share = np.bincount(states.code_N[rows], minlength=states.codes) / max(1, len(rows))
        return float(np.exp(-(share[share > 0] * np.log(share[share > 0])).sum()))

    value, low, high = jackknife(perplexity, unit_N, rng=rng)
    # Student's interval knows no bounds; cut to what there can be, it covers as often.
    low, high = np.clip((low, high), 1, states.codes)
    result.scalar("perplexity", float(value), "codes", n, (float(low), float(high)))
    result.scalar("codes_alive", states.codes - len(states.dead), "codes", n)
    result.notes["dead"] = states.dead
    first_R, run_R = stretches(states.code_N, states.index_N2[:, 0])
    result.tables["use"] = []
    for c, count in enumerate(states.counts.tolist()):
        mine = states.code_N == c
        length_R = run_R[states.code_N[first_R] == c]
        result.tables["use"].append({
            "code": c, "states": count, "share": count / len(states), "units": len(np.unique(unit_N[mine])),
            "run_length": float(length_R.mean()) if count else float("nan"),
            "value": float(states.value_N[mine].mean()) if count else float("nan"),
        })  # fmt: skip


def silhouettes(
    states: States, labels: Mapping[str, np.ndarray], own_space: Mapping[str, tuple[np.ndarray, np.ndarray]],
    result: Result, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Of every labelling in the features' space, on the same rows; of ``own_space`` in that one's."""
    from sklearn.metrics import silhouette_score

    rows = rng.permutation(len(states))[:SILHOUETTE_ROWS]

    def score(x_NF: np.ndarray, label_N: np.ndarray) -> tuple[float, int]:
        here = rows[label_N[rows] >= 0]
        kinds = len(np.unique(label_N[here]))
        if not 2 <= kinds < len(here):
            return float("nan"), len(here)
        return float(silhouette_score(np.asarray(x_NF[here], np.float64), label_N[here])), len(here)

    found = {name: score(states.h_NH, label_N) for name, label_N in labels.items()}
    own = {name: score(x_NF, label_N) for name, (x_NF, label_N) in own_space.items()}
    result.tables["silhouettes"] = [
        {"labels": name, "space": space, "silhouette": value, "rows": n}
        for space, each in (("features", found), ("its own", own)) for name, (value, n) in each.items()
    ]  # fmt: skip
    result.scalar("silhouette", found["codes"][0], "of the codes, in the features' space", found["codes"][1])
    for name, (value, n) in own.items():
        if value > 0:
            result.scalar("silhouette_against_plain", found["codes"][0] / value,
                          f"of the codes, over {name}'s, each in its own space", n)  # fmt: skip


def neighbourhoods(states: States, result: Result, rng: np.random.Generator) -> None:
    """Trustworthiness (neighbours in the plane are neighbours) and continuity (neighbours stay together) of the plane
    (Venna and Kaski 2001), 1 at best."""
    from sklearn.manifold import trustworthiness

    rows = rng.permutation(len(states))[:SILHOUETTE_ROWS]
    near = min(NEIGHBOURS, max(1, (len(rows) - 1) // 2 - 1))
    h, plane = (np.asarray(x[rows], np.float64) for x in (states.h_NH, states.plane_N2))
    unit = f"1, of {near} neighbours"
    result.scalar("trustworthiness", float(trustworthiness(h, plane, n_neighbors=near)), unit, len(rows))
    result.scalar("continuity", float(trustworthiness(plane, h, n_neighbors=near)), unit, len(rows))


def neighbours(states: States, options: SemanticOptions, seed: int, result: Result) -> None:
    """How many neighbours a state has by the kernels that the policy learned with, in the features and in the plane,
    among as many states as a minibatch of its training had: e to the mean entropy of the neighbourhoods, with an
    interval over whole levels."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(states))[: options.semantic_minibatch]
    result.notes["neighbours_of"] = len(rows) - 1
    for name, x_NK, alpha in (("features", states.h_NH, options.alpha1), ("plane", states.plane_N2, options.alpha2)):
        entropy_M = entropies(torch.from_numpy(np.asarray(x_NK[rows], np.float64)), alpha).numpy()
        e = bootstrap_mean(entropy_M, states.unit_N[rows], rng=rng)
        value, low, high = np.exp([e.value, e.low, e.high]).tolist()
        result.scalar(f"neighbours_{name}", value, f"states, of {len(rows) - 1}", e.n, (low, high))


def run_lengths(
    states: States, code_of: Callable[[np.ndarray], np.ndarray], k_means_N: np.ndarray, surrogates: int,
    result: Result, rng: np.random.Generator,
) -> None:  # fmt: skip
    """Mean length of a run of one code, beside that of VAR(1) surrogates of the features, which get their codes as the
    features do: Gaussian, of the same mean and covariance, and as slow in time, but with no clusters
    (analysis.shared.surrogates)."""
    rows = episodes_for(states.index_N2, RUN_ROWS)
    episode_M, h_MF = states.index_N2[rows, 0], np.asarray(states.h_NH[rows], np.float64)

    def mean_run(label_M: np.ndarray) -> float:
        return float(stretches(label_M, episode_M)[1].mean())

    mean_F = h_MF.mean(0)
    variance_K, axes_FK = np.linalg.eigh(np.atleast_2d(np.cov(h_MF - mean_F, rowvar=False)))
    kept = variance_K > 1e-10 * variance_K.max()
    scale_K, axes_FK = np.sqrt(variance_K[kept]), axes_FK[:, kept]
    white_MK = (h_MF - mean_F) @ (axes_FK / scale_K)
    follow_KK, noise_KK = slowness(white_MK, episode_M, 1)
    draws = []
    for _ in track(range(surrogates), "surrogates without clusters"):
        x_MK = walk(rng.standard_normal(white_MK.shape), episode_M, follow_KK, noise_KK)
        draws.append(mean_run(code_of(mean_F + (x_MK * scale_K) @ axes_FK.T)))
    unit, n = "steps", len(np.unique(episode_M))
    table: list[dict[str, Any]] = []
    for name, label_N in (("codes", states.code_N), ("k-means of the features", k_means_N)):
        table.append({"labels": name, "run_length": mean_run(label_N[rows]), "rows": len(rows), "episodes": n})
    if surrogates:
        low, high = band_of(np.array(draws), ALPHA)
        table.append({"labels": "codes of VAR(1) surrogates", "run_length": float(np.mean(draws)), "rows": len(rows),
                      "episodes": n, "low": low, "high": high, "surrogates": surrogates})  # fmt: skip
        result.scalar("run_length_surrogates", float(np.mean(draws)), unit, surrogates, (low, high))
    result.tables["runs"] = table
    result.scalar("run_length", table[0]["run_length"], unit, n)
    result.notes["runs_are"] = f"not compared: at least {ENOUGH} --surrogates are needed"
    if surrogates >= ENOUGH:
        longer = table[0]["run_length"] > high
        result.notes["runs_are"] = f"{'longer' if longer else 'not longer'} than those of data without clusters"


def agreement(
    states: States, labels: Mapping[str, np.ndarray], truths: Mapping[str, np.ndarray], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """A row a labelling, a number of the world (in BINS bins of equal counts) and time: adjusted Rand index and
    normalised mutual information with the codes, and the same where the codes of the episodes are rotated, those of a
    unit (a level) together, which keeps their runs and loses what they are about."""
    others = {name: ("labels", label_N) for name, label_N in labels.items() if name != "codes"}
    others |= {name: ("truth", _binned(x_N)) for name, x_N in truths.items()}
    others["step of the episode"] = ("time", time_bins(states.index_N2[:, 1]))
    rotated = [states.code_N[rotated_rows(states.index_N2[:, 0], rng, states.unit_N)] for _ in range(ROTATIONS)]
    rows: list[dict[str, Any]] = []
    for name, (kind, label_N) in others.items():
        here = label_N >= 0
        if len(np.unique(label_N[here])) < 2:
            continue
        ari, nmi = agree(states.code_N[here], label_N[here])
        floor = np.array([agree(r[here], label_N[here]) for r in rotated])
        rows.append({
            "with": name, "kind": kind, "ari": ari, "nmi": nmi,
            "ari_rotated": float(floor[:, 0].mean()), "ari_rotated_most": float(floor[:, 0].max()),
            "nmi_rotated": float(floor[:, 1].mean()), "nmi_rotated_most": float(floor[:, 1].max()),
            "steps": int(here.sum()), "n": len(np.unique(states.unit_N[here])),
        })  # fmt: skip
    return rows


def agree(a_N: np.ndarray, b_N: np.ndarray) -> tuple[float, float]:
    """(adjusted Rand index, normalised mutual information) of two labellings, ints from 0 on: scikit-learn's, from one
    table of counts."""
    table = np.bincount(a_N * (int(b_N.max()) + 1) + b_N, minlength=(int(a_N.max()) + 1) * (int(b_N.max()) + 1))
    both = table.reshape(int(a_N.max()) + 1, -1).astype(np.float64)
    n, a, b = both.sum(), both.sum(1), both.sum(0)

    def pairs(counts: np.ndarray) -> float:
        return float((counts * (counts - 1)).sum() / 2)

    def entropy(counts: np.ndarray) -> float:
        share = counts[counts > 0] / n
        return float(-(share * np.log(share)).sum())

    by_chance = pairs(a) * pairs(b) / pairs(np.array([n]))
    most = (pairs(a) + pairs(b)) / 2
    ari = (pairs(both) - by_chance) / (most - by_chance) if most > by_chance else 1.0
    each = entropy(a) + entropy(b)
    nmi = 2 * max(each - entropy(both.ravel()), 0.0) / each if each > 0 else 1.0
    return float(ari), float(nmi)


def _binned(x_N: np.ndarray) -> np.ndarray:
    """Numbers as int64 bins: their own values, where these are few, else BINS bins of about equal counts; -1 for
    NaN."""
    known = np.isfinite(x_N)
    out = np.full(len(x_N), -1)
    values, place = np.unique(x_N[known], return_inverse=True)
    if len(values) > BINS:
        edges = np.unique(np.quantile(x_N[known], np.linspace(0, 1, BINS + 1)[1:-1]))
        place = np.searchsorted(edges, x_N[known], side="right")
    out[known] = place
    return out


def effects(states: States, features: Mapping[str, tuple[str, np.ndarray]], *, seed: int) -> list[dict[str, Any]]:
    """What each code does: Cohen's d of every feature (kind, float [N], NaN where there is none), its states against
    all others, with intervals over whole units that hold jointly (95 % for the whole table, Bonferroni); the surest
    first.  Dead codes have no rows."""
    rng = np.random.default_rng(seed)
    live = [c for c, count in enumerate(states.counts.tolist()) if count]
    level = 1 - ALPHA / max(1, len(live) * len(features))
    rows: list[dict[str, Any]] = []
    groups: dict[bytes, list[str]] = {}
    for name, (_, x_N) in features.items():
        groups.setdefault(np.isfinite(x_N).tobytes(), []).append(name)
    for known, names in groups.items():
        here = np.frombuffer(known, bool)
        if not here.any():
            continue
        x_NF = np.stack([features[name][1][here] for name in names], 1).astype(np.float64)
        for c in live:
            mine = states.code_N[here] == c
            if mine.sum() < 2 or (~mine).sum() < 2:
                continue
            d, low, high = cohens_d_interval(x_NF, mine, states.unit_N[here], rng=rng, level=level)
            inside, outside = x_NF[mine].mean(0), x_NF[~mine].mean(0)
            for f, name in enumerate(names):
                if np.isfinite(d[f]):
                    rows.append({
                        "code": c, "what": name, "kind": features[name][0], "d": float(d[f]), "low": float(low[f]),
                        "high": float(high[f]), "inside": float(inside[f]), "outside": float(outside[f]),
                        "steps": int(mine.sum()), "n": len(np.unique(states.unit_N[here][mine])),
                    })  # fmt: skip
    sure = {id(row): max(row["low"], -row["high"], -1e9) if np.isfinite(row["low"]) else -1e9 for row in rows}
    return sorted(rows, key=lambda row: (row["code"], -sure[id(row)]))


def surest(rows: list[dict[str, Any]], code: int, most: int = 3) -> list[dict[str, Any]]:
    """The first effects of a code whose interval does not hold 0."""
    return [r for r in rows if r["code"] == code and (r["low"] > 0 or r["high"] < 0)][:most]
