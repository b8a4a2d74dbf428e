"""A coupling as a result: arrays, tables, scalars, and what could not be tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analysis.coupling.agreement import MEASURES, Agreement, agreement
from analysis.coupling.clock import SAID
from analysis.coupling.config import CouplingConfig
from analysis.coupling.correlation import MEAN, PAIRING
from analysis.coupling.edges import METHOD, PATHS, STRAIGHT, WORDS, beyond_zero, drawn, edges
from analysis.coupling.estimates import Coupling
from analysis.coupling.extremes import TAILS, Extremes
from analysis.coupling.kinds import Kinds
from core import artefacts
from core.stats import benjamini_hochberg, least_permutations, least_units, never_alone, smallest_p


def assemble(
    coupling: Coupling, behaviours: Sequence[int], names: Mapping[int, str], directions: Sequence[str],
    config: CouplingConfig,
) -> artefacts.Result:  # fmt: skip
    """q-values over the whole family, the table of surviving edges, and the consistency, as a Result.  names: of the
    behaviours; directions: names of the axes i and j."""
    result = artefacts.Result()
    a = result.arrays
    a["behaviours"], a["lags"] = np.asarray(behaviours, np.int64), np.asarray(config.lags, np.int64)
    a["correlation"], a["q_correlation"] = coupling.correlation, benjamini_hochberg(coupling.p_correlation)
    a["correlation_low"], a["correlation_high"] = coupling.correlation_ends
    for path in PATHS:
        a[f"jacobian{path}"] = coupling.jacobian[path]
        a[f"q_jacobian{path}"] = benjamini_hochberg(coupling.p_jacobian[path])
        a[f"jacobian{path}_low"], a[f"jacobian{path}_high"] = coupling.jacobian_ends[path]
    for path, name in STRAIGHT.items():
        a[name] = coupling.straight_through[path]
    for name in ("pairs", "pair_episodes", "samples", "sample_episodes"):
        a[name] = getattr(coupling, name)
    result.notes |= {
        "alpha": config.alpha,
        "basis_kind": config.basis_kind,
        "directions": list(directions),
        "names": {str(b): names.get(b, "") for b in behaviours},
        "left_out": untested(coupling, behaviours, config),
        "resolution": resolution(coupling, config),
        "unit": "change of target coordinate per change of source coordinate",
        "method": METHOD,
        "correlated": f"coordinates {SAID}",
        "actions": [list(names) for names in coupling.actions],
    }
    if coupling.parts:
        result.notes["parts"] = list(coupling.parts)
    result.scalar(
        "branches_ended", coupling.ended, "share of enumerated actions after which the simulated episode ends before T"
    )
    result.tables["edges"] = edges(result, config.alpha)
    if coupling.kinds is not None:
        _add_kinds(result, coupling.kinds, config.alpha)
    if coupling.extremes is not None:
        _add_extremes(result, coupling.extremes, config)
    diagonal = np.eye(coupling.correlation.shape[-1], dtype=bool)
    correlated = a["q_correlation"] <= config.alpha
    for path in PATHS:
        both = (a[f"q_jacobian{path}"] <= config.alpha) & correlated
        for measure in MEASURES:
            _put(result, f"{measure}{path}", agreement(coupling, both & ~diagonal, measure, path))
    both = (a["q_jacobian"] <= config.alpha) & correlated
    _put(result, "sign_agreement_with_diagonal", agreement(coupling, both, "sign_agreement"))
    for name in (*(f"jacobian{path}" for path in PATHS), "correlation"):
        q = a[f"q_{name}"]
        tests = int(np.isfinite(q).sum())
        share = float((q <= config.alpha).sum() / tests) if tests else float("nan")
        result.scalar(f"significant_{name}", share, f"share of entries with q <= {config.alpha}", tests)
    result.scalar("edges", len(result.tables["edges"]), "directed edges between different directions or own past")
    for path in STRAIGHT:
        there = beyond_zero(result, path, config.alpha)
        same = drawn(result, path, config.alpha)[there]
        agrees = float(same.mean()) if same.size else float("nan")
        unit = f"share of effects, {WORDS[path]}, with q <= {config.alpha} and an interval beyond 0"
        result.scalar(f"straight_through_agrees{path}", agrees, unit, int(same.size))
    parts = (a["q_jacobian_agent_only"] <= config.alpha) | (a["q_jacobian_through_world"] <= config.alpha)
    hidden = int((parts & ~(a["q_jacobian"] <= config.alpha)).sum())
    result.scalar(
        "parts_without_whole", hidden, "entries with a significant part whose whole is not: parts that cancel"
    )
    return result


def _add_kinds(result: artefacts.Result, found: Kinds, alpha: float) -> None:
    """Arrays ``behaviour_distance``, ``q_behaviour_distance`` and ``kind``, and the table ``behaviour_pairs``."""
    a = result.arrays
    a["behaviour_distance"], a["q_behaviour_distance"], a["kind"] = found.distance_BB, found.q_BB, found.kind_B
    result.tables["behaviour_pairs"] = [
        {"one": int(a["behaviours"][i]), "other": int(a["behaviours"][j]), "distance": float(found.distance_BB[i, j]),
         "p": float(found.p_BB[i, j]), "q": float(found.q_BB[i, j]), "apart": bool(found.q_BB[i, j] <= alpha)}
        for i, j in zip(*np.triu_indices(len(found.kind_B), 1), strict=True)
        if np.isfinite(found.p_BB[i, j])
    ]  # fmt: skip
    tested = int((found.kind_B >= 0).sum())
    result.scalar("kinds", int(found.kind_B.max(initial=-1)) + 1, "groups of behaviours told apart by Jacobian", tested)


def _add_extremes(result: artefacts.Result, found: Extremes, config: CouplingConfig) -> None:
    """Arrays ``extreme_*`` [tails, lags, i, j], and the table ``extremes`` of what is significant."""
    a, names, alpha = result.arrays, result.notes["directions"], config.alpha
    for name in ("mean", "jacobian"):
        a[f"extreme_{name}"] = getattr(found, name)
        a[f"extreme_{name}_low"], a[f"extreme_{name}_high"] = getattr(found, f"{name}_ends")
        a[f"q_extreme_{name}"] = benjamini_hochberg(getattr(found, f"p_{name}"))
    for name in ("steps", "episodes", "samples", "sample_episodes"):
        a[f"extreme_{name}"] = getattr(found, name)
    result.notes["extremes"] = config.extremes
    shown = {name: (a[f"q_extreme_{name}"] <= alpha) & _beyond(a, f"extreme_{name}") for name in ("mean", "jacobian")}
    rows = []
    for tail, at, i, j in np.argwhere(shown["mean"] | shown["jacobian"]):
        here = (tail, at, i, j)
        rows.append(
            {"source": names[i], "end": TAILS[tail], "lag": int(a["lags"][at]), "target": names[j],
             "mean_sd": float(a["extreme_mean"][here]), "mean_low": float(a["extreme_mean_low"][here]),
             "mean_high": float(a["extreme_mean_high"][here]), "q_mean": float(a["q_extreme_mean"][here]),
             "J": float(a["extreme_jacobian"][here]), "J_low": float(a["extreme_jacobian_low"][here]),
             "J_high": float(a["extreme_jacobian_high"][here]), "q_J": float(a["q_extreme_jacobian"][here]),
             "steps": int(found.steps[tail, at, i]), "episodes": int(found.episodes[tail, at, i]),
             "Jacobians": int(found.samples[tail, at, i])}
        )  # fmt: skip
    result.tables["extremes"] = sorted(rows, key=lambda row: -abs(np.nan_to_num(float(row["mean_sd"]))))
    for name in ("mean", "jacobian"):
        tests = int(np.isfinite(a[f"q_extreme_{name}"]).sum())
        share = float(shown[name].sum() / tests) if tests else float("nan")
        result.scalar(f"significant_extreme_{name}", share, f"share of entries with q <= {alpha}", tests)


def _beyond(a: dict[str, np.ndarray], name: str) -> np.ndarray:
    """bool: the entries whose 95 % interval leaves 0 out."""
    beyond: np.ndarray = (a[f"{name}_low"] > 0) | (a[f"{name}_high"] < 0)
    return beyond


def untested(coupling: Coupling, behaviours: Sequence[int], config: CouplingConfig) -> list[str]:
    """What was not tested for want of episodes, a sentence each that says how many are needed."""
    need, pairing = least_units(config.alpha, MEAN), least_units(config.alpha, PAIRING)
    said = []
    for b, jacobians_of, pairs_of in zip(behaviours, coupling.sample_episodes, coupling.pair_episodes, strict=True):
        if jacobians_of < need:
            said.append(f"behaviour {b} has Jacobians from {jacobians_of} episodes, {need} are needed")
        few = [f"{n} at lag {lag}" for lag, n in zip(config.lags, pairs_of, strict=True) if n < pairing]
        if few:
            said.append(f"behaviour {b} has time pairs from few episodes ({', '.join(few)}), {pairing} are needed")
    return said


def resolution(coupling: Coupling, config: CouplingConfig) -> list[str]:
    """A sentence a family in which no entry could be significant by itself: its smallest possible p times the number
    of tests is larger than alpha, so that Benjamini-Hochberg passes only many at once."""
    families = (
        ("Jacobians", MEAN, coupling.p_jacobian[""], coupling.sample_episodes),
        ("correlations", PAIRING, coupling.p_correlation, coupling.pair_episodes),
    )
    said: list[str] = []
    for name, kind, p, episodes in families:
        tests, most = int(np.isfinite(p).sum()), int(episodes.max())
        least = max(smallest_p(most, kind), 1 / (1 + config.permutations))
        if tests:
            alone = config.alpha / tests
            need = [f"--permutations {least_permutations(alone)}"] if 1 / (1 + config.permutations) > alone else []
            need += [f"{least_units(alone, kind)} episodes of a behaviour"] if smallest_p(most, kind) > alone else []
            said += never_alone(tests, name, least, config.alpha, need, "--lags or --directions")
    return said


def _put(result: artefacts.Result, name: str, found: Agreement) -> None:
    unit = "share of entries" if name.startswith("sign") else "Spearman correlation of |J| and |r|"
    result.scalar(name, found.value, unit, found.n)
    result.scalar(
        f"{name}_null", (found.null_low + found.null_high) / 2, unit, found.n, (found.null_low, found.null_high)
    )
    result.scalar(f"{name}_p", found.p, "permutation p")
