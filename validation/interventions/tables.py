"""What a study found: tables, claims, the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.artefacts import Result, finite
from core.stats import bootstrap_mean, bootstrap_means
from validation.hypotheses.grammar import THROUGH, Hypothesis
from validation.interventions import verdicts
from validation.interventions.bench import Bench
from validation.interventions.claims import Picked, about_starts, claim_of, claim_of_need, claims_of
from validation.interventions.members import tell
from validation.interventions.options import StudyOptions, note_directions
from validation.interventions.start_when import started_in
from validation.interventions.statistics import (
    NEEDS,
    Controls,
    Effects,
    Point,
    families,
    headline,
    mean_of,
    needs_of,
    points_of,
    recovered_of,
    spread_under,
    table_of,
    verdict_of,
)
from validation.interventions.verdicts import CRITERIA
from validation.paired.course import family_of, is_described, is_late, is_own, unit_of


def report(
    bench: Bench, hypotheses: Sequence[Hypothesis], effects: Effects, controls: Mapping[Hypothesis, Controls],
    picked: Sequence[Picked], explicit: bool, options: StudyOptions, rng: np.random.Generator,
) -> Result:  # fmt: skip
    """Everything that follows from the runs."""
    starts = bench.starts
    assert bench.real is not None
    events = bench.real.measures.events
    judged = table_of(effects, hypotheses, controls, events, options.smallest, rng)
    needs = needs_of(effects, hypotheses, controls, options.smallest[1], rng)
    patched = {g: bench.donors[h] for g, h in enumerate(hypotheses) if h.kind == "patch"}
    result = Result(tables={"effects": judged.rows, "paths": [], "doses": [], "needs": needs})
    if patched:
        result.tables["recovered"] = recovered_of(effects, hypotheses, patched, rng)
    result.arrays = {"h": starts.h_NH.cpu().numpy(), "age": starts.age_N}
    for q in effects.unaltered:
        for name, some in (("observed", effects.seen), ("simulated", effects.foretold)):
            result.arrays |= {f"{name}/{q}": some["own"][q]}
            result.arrays |= {f"{name}, through {path}/{q}": some[path][q] for path in THROUGH}
        result.arrays |= {f"{name}/{q}": some[q] for name, some in effects.rivals.items() if name != "no change"}
        result.arrays[f"unaltered/{q}"] = effects.unaltered[q]
        if q in effects.jacobian:
            result.arrays[f"jacobian/{q}"] = effects.jacobian[q]
    gate = verdicts.gate(judged.errors, rng, judged.told, judged.short)
    result.notes |= {
        "verdicts": 2,
        "gate": {
            "answer": gate.answer, "text": gate.text, "rows": gate.rows,
            "against": {name: e._asdict() for name, e in gate.against.items()},
        },
        "warnings": [],
        "hypotheses": [h.name for h in hypotheses],
        "events": {e.name: e.text for e in events},
        "paired_by": starts.paired_by,
        "criteria": CRITERIA,
        "needs": NEEDS,
        "immediate": "Effects at step 0 follow from the agent's linear heads: both worlds give the same numbers and "
        "the first-order prediction of logits and value is exact. They are no evidence about the world.",
        "controls": f"{options.controls} or more directions that occur in the data (differences between recorded "
        "states of different episodes) and as many mixtures of the basis's own directions, at every start and step as "
        "long as the change, in units of each neuron's standard deviation; what was chosen is held against what is "
        "chosen of each kind in the same way, and the larger p counts. 'keep_only' has no single length and so no "
        "controls",
        "chosen": [one.words for one in picked],
    }  # fmt: skip
    note_directions(result, hypotheses, bench.basis)
    if starts.paired_by == "seed":
        result.notes["paired"] = "The world has no snapshots: pairs replay the same seed and actions up to the start."
    result.scalar("zero_change_real", effects.zero[0], "largest effect of amount 0")
    result.scalar("zero_change_simulator", effects.zero[1], "largest effect of amount 0")

    # Units for the headline: the spread of each quantity over the real starts, unaltered where it varies there.
    scale = {q: spread_under(v, effects.seen["own"][q]) for q, v in effects.unaltered.items() if not is_described(q)}
    late = [q for q in scale if is_late(q) and scale[q] > 0]
    result.notes["without_spread"] = [q for q in scale if is_late(q) and scale[q] == 0]
    points = points_of(hypotheses, explicit)
    sources = {"simulated": effects.foretold["own"], "observed": effects.seen["own"]}
    if effects.jacobian:
        sources["jacobian"] = effects.jacobian
    for point in points:
        result.tables["doses"] += _doses(point, sources, scale, rng)
    _agreements(result, points, sources, late, scale, rng)
    claims = _claims(result, picked, explicit)
    if effects.members:
        result.tables["members"] = tell(claims, effects, hypotheses, options.smallest[1], rng)
        for number, member in enumerate(effects.members, 2):
            result.arrays |= {f"simulated by member {number}/{q}": v for q, v in member.items()}
    result.tables["paths"] = [row for claim in claims for row in _paths(claim, effects, hypotheses, rng)]
    result.notes |= {"claims": claims, "starts_in": started_in(options.start_when, bench.basis, bench.rule)}
    about_starts([result.notes["gate"], *claims], result.notes["starts_in"])
    result.notes["claim"] = " ".join(claim["text"] for claim in claims if claim["headline"])
    return result


def _claims(result: Result, picked: Sequence[Picked], explicit: bool) -> list[dict[str, Any]]:
    """What was claimed: of effects, then of what events need."""
    real = [row for row in result.tables["effects"] if row["world"] == "real"]
    claims = claims_of(real, picked, explicit, verdict_of, claim_of)
    words = {h.name: one.words for one in picked for h, _ in one.claims}
    for row in result.tables["needs"]:
        if row["claimed"]:
            asked = (row["hypothesis"], f"event:{row['event']}")
            effect = next((r for r in real if (r["hypothesis"], r["quantity"].partition("@")[0]) == asked), {})
            claims.append(claim_of_need(row, effect, words.get(row["hypothesis"], "")))
    return claims


def _paths(
    claim: Mapping[str, Any], effects: Effects, hypotheses: Sequence[Hypothesis], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """A claim's effect whole, through memory alone and through the world alone, in both worlds.  The two parts need
    not add up: paths may interact."""
    if not claim["headline"] or "quantity" not in claim:
        return []
    g = next(i for i, h in enumerate(hypotheses) if h.name == claim["hypothesis"])
    rows = []
    for world, some in (("real", effects.seen), ("simulator", effects.foretold)):
        for path, v in some.items():
            effect_N = v[claim["quantity"]][g]
            effect_N = effect_N[~np.isnan(effect_N)]
            if len(effect_N):
                (e,) = bootstrap_means(effect_N[:, None], rng=rng)
                rows.append({"hypothesis": claim["hypothesis"], "quantity": claim["quantity"], "world": world,
                             "path": "whole" if path == "own" else f"{path} alone", "unit": claim["unit"],
                             "value": e.value, "low": e.low, "high": e.high, "n": e.n})  # fmt: skip
    return rows


def _doses(
    point: Point, sources: Mapping[str, Mapping[str, np.ndarray]], scale: Mapping[str, float], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """A point's rows, one a quantity: its predictions and what both worlds answered."""
    of = {name: np.stack([point.of(effect[q]) for q in scale], 1) for name, effect in sources.items()}
    here = ~np.isnan(of["observed"]).any(1)
    seen, dream = (bootstrap_means(of[name][here], rng=rng) for name in ("observed", "simulated"))
    first = mean_of(of["jacobian"][here].T) if "jacobian" in of else np.full(len(scale), np.nan)
    return [
        {
            "point": point.label, "direction": point.of_one, "own": is_own(q, point.ids), "quantity": q,
            "unit": f"{unit_of(q)} {point.unit}".strip(), "predicted_jacobian": finite(float(j)),
            "predicted_simulated": d.value, "simulated_low": d.low, "simulated_high": d.high,
            "observed": e.value, "low": e.low, "high": e.high, "n": e.n, "spread": scale[q],
        }
        for q, j, e, d in zip(scale, first, seen, dream, strict=True)
    ]  # fmt: skip


def _agreements(
    result: Result, points: Sequence[Point], sources: Mapping[str, Mapping[str, np.ndarray]], late: Sequence[str],
    scale: Mapping[str, float], rng: np.random.Generator,
) -> None:  # fmt: skip
    """Sign agreement, rank correlation and slope of predictions over points x quantities, and by their families."""
    if not points or not late:
        return

    def stacked(name: str, some: Sequence[str]) -> np.ndarray:
        """[changes, quantities, starts]; NaN where a direction would be asked what it is itself later."""
        none_N = np.full(sources["observed"][late[0]].shape[1], np.nan)
        return np.stack([
            [none_N if is_own(q, p.ids) else p.of(sources[name][q]) / scale[q] for q in some] for p in points
        ])  # fmt: skip

    for family, some in families(late).items():
        if np.isfinite(seen_DQN := stacked("observed", some)).any():
            headline(result, f"_{family}", stacked("simulated", some), seen_DQN, points, rng)
    # Events are counts of few, and most have no derivative: they stay apart.
    late = [q for q in late if family_of(q) != "events"]
    if not late:
        return
    headline(result, "", stacked("simulated", late), stacked("observed", late), points, rng)
    if "jacobian" in sources:
        headline(result, "_jacobian", stacked("jacobian", late), stacked("observed", late), points, rng)
        headline(result, "_jacobian_simulator", stacked("jacobian", late), stacked("simulated", late), points, rng)


def by_behaviour(
    result: Result, behaviour_N: np.ndarray, names: Mapping[int, str], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Each claim's observed effect for every behaviour that at least 2 of the starts it is about are in."""
    rows = []
    for claim in result.notes["claims"]:
        if "quantity" not in claim:
            continue
        g = result.notes["hypotheses"].index(claim["hypothesis"])
        effect_N = result.arrays[f"observed/{claim['quantity']}"][g]
        for b in np.unique(behaviour_N):
            inside = np.flatnonzero((behaviour_N == b) & ~np.isnan(effect_N))
            if len(inside) < 2:
                continue
            e = bootstrap_mean(effect_N[inside], inside, rng=rng)
            rows.append({
                "behaviour": int(b), "name": names.get(int(b), ""), "hypothesis": claim["hypothesis"],
                "quantity": claim["quantity"], "observed": e.value, "low": e.low, "high": e.high, "n": e.n,
            })  # fmt: skip
    return rows
