"""The numbers of all jobs as scores beside what they must reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from core.artefacts import Result
from core.stats import bootstrap_mean, share_of
from envs.planted import KINDS
from validation.planted.config import PlantedConfig
from validation.planted.measures import CHOICE, CONTROL, RATES, Found


def over_bases(found: Found) -> Found:
    """Random bases of every kind counted together: few of one kind say nothing of a rate."""
    together: Found = {}
    for key, values in found.items():
        random = key.measure == CHOICE and not key.method.startswith(CONTROL)
        to = key._replace(method=f"{key.method.rpartition(', ')[0]} random directions") if random else key
        together.setdefault(to, []).extend(values)
    return together


def scores(found: Found, seed: int) -> list[dict[str, Any]]:
    """A row a score, with its interval over worlds, its target and whether it is met; the controls last."""
    rows = []
    order = [k for kind in (*KINDS, "") for k in found if k.world.partition(",")[0] == kind]
    for key in sorted(order, key=lambda k: k.method.startswith(CONTROL)):
        values, worlds = np.array(found[key]), np.arange(len(found[key]))
        if key.measure in RATES and np.isin(values, (0, 1)).all():
            e = share_of(values, worlds)
        else:
            e = bootstrap_mean(values, worlds, rng=np.random.default_rng(seed))
        target = key.measure.target
        rows.append({
            "world": key.world, "method": key.method.removeprefix(CONTROL), "control": key.method.startswith(CONTROL),
            "measure": key.measure.name, "value": e.value, "low": e.low, "high": e.high, "n": e.n,
            "target": target.text if target else "", "met": target.low <= e.value <= target.high if target else None,
            "in_words": key.measure.words,
        })  # fmt: skip
    return rows


def assemble(found: Found, config: PlantedConfig) -> Result:
    """Table ``scores``; scalars ``targets_met`` and ``controls_caught``; an array WORLD/METHOD/MEASURE of the numbers
    that a score is the mean of, a world or experiment each (methods broken on purpose: ``control: METHOD``)."""
    result = Result(tables={"scores": scores(found, config.seed)})
    result.arrays = {"/".join((k.world, k.method, k.measure.name)): np.array(v) for k, v in found.items()}
    judged = [row for row in result.tables["scores"] if row["met"] is not None]
    right = [row["met"] for row in judged if not row["control"]]
    caught = [not row["met"] for row in judged if row["control"]]
    result.scalar("targets_met", float(np.mean(right)) if right else float("nan"), "share of scores", len(right))
    result.scalar(
        "controls_caught", float(np.mean(caught)) if caught else float("nan"), "share of controls", len(caught)
    )
    result.notes["missed"] = [
        f"{r['world']}: {r['method']}, {r['measure']}" for r in judged if r["met"] == r["control"]
    ]
    return result


def summary(result: Result, out: Path) -> str:
    """The table for a terminal, and what was missed."""
    lines = []
    for row in result.tables["scores"]:
        known = row["low"] is not None and np.isfinite(row["low"])
        interval = f"[{row['low']:.3g}, {row['high']:.3g}]" if known else ""
        verdict = {None: "", True: "ok", False: "MISSED"}[row["met"]]
        if row["control"]:
            verdict = {None: "", True: "NOT CAUGHT", False: "caught"}[row["met"]]
        method = f"broken: {row['method']}" if row["control"] else row["method"]
        lines.append(
            f"{row['world']:<15} {method:<34} {row['measure']:<30} {row['value']:>9.3g} {interval:<22} "
            f"{row['n']:>4} {row['target'] or '':<13} {verdict}"
        )
    head = f"{'world':<15} {'method':<34} {'measure':<30} {'value':>9} {'95 % interval':<22} {'n':>4} {'target':<13}"
    met, caught = result.scalars["targets_met"], result.scalars["controls_caught"]
    tail = [
        f"{met['value']:.1%} of {met['n']} targets met, {caught['value']:.1%} of {caught['n']} broken caught: {out}",
        *(f"  missed: {name}" for name in result.notes["missed"]),
    ]
    return "\n".join([head, *lines, *tail])
