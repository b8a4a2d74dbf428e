"""What was found as tables and scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.target_functions.targets import Target
from core import artefacts
from core.stats import Estimate, benjamini_hochberg, bootstrap_mean, means

MEANS = {
    "before": "{unit}",
    "after": "{unit}",
    "control": "{unit}, best of as many untrained latents as were tried",
    "gain": "{unit}, in the sense asked for",
    "gain_sd": "standard deviations of the target over the population",
    "over_control": "{unit}, in the sense asked for",
    "noisy_gain": "{unit}, under noise",
    "nearer_before": "% of the population nearer to its centre",
    "nearer_after": "% of the population nearer to its centre",
}

ALL = ("nearer_before", "nearer_after")  # known of every start; of the rest, means are over those that are compared


def summarise(result: artefacts.Result, targets: Sequence[Target], left_out: Mapping[str, str], seed: int) -> None:
    """The table ``targets`` (a row a target; p and q of the gain over the control) and scalars; means over the starts
    that the gain over the control is known of (of ``ALL``: over all), whole episodes resampled.  ``reason``: why a
    number is not there."""
    rows: list[dict[str, Any]] = []
    for target in targets:
        sense = "up" if target.sign > 0 else "down"
        every = result.tables.get("samples", [])
        mine = [r for r in every if (r["target"], r["sense"]) == (target.name, sense)]
        unit_S = np.array([r["independent"] for r in mine])
        row: dict[str, Any] = {"target": target.name, "sense": sense, "unit": target.unit}
        over = np.array([r["over_control"] for r in mine], np.float64)
        known = np.isfinite(over)
        for name, unit in MEANS.items():
            values_S = np.array([r[name] for r in mine], np.float64)
            e = mean_of(np.where(known | (name in ALL), values_S, np.nan), unit_S, seed)
            result.scalar(f"{name}_{target.label}", e.value, unit.format(unit=target.unit), e.n, e.interval)
            ends = {name: e.value, f"{name}_low": e.low, f"{name}_high": e.high}
            row |= {k: artefacts.finite(v) for k, v in ends.items()}
        units = len(np.unique(unit_S[known]))
        reason = _left_out(mine, known)
        p = np.nan  # of the mean that has the interval
        if units:
            p = float(means(over[known, None], unit_S[known], rng=np.random.default_rng(seed), draws=9999).p()[0])
        rows.append(row | {"n": units, "p": p, "reason": left_out.get(target.label, reason)})
    for row, q in zip(rows, benjamini_hochberg(np.array([row["p"] for row in rows])), strict=True):
        row |= {"p": artefacts.finite(row["p"]), "q": artefacts.finite(q)}
    result.tables["targets"] = rows


def _left_out(mine: Sequence[Mapping[str, Any]], known_S: np.ndarray) -> str:
    """How many starts are not compared, and of how many that are the value before is not known; '': all are whole."""
    few = int((~known_S).sum())
    said = [f"{few} of {len(mine)} starts end too early to be compared"] if few else []
    before_S = np.array([r["before"] for r in mine], np.float64)
    early = int((known_S & ~np.isfinite(before_S)).sum())
    said += [f"of {early} that are compared the rollout before ends too early to be read"] if early else []
    return "; ".join(said)


def mean_of(values_S: np.ndarray, unit_S: np.ndarray, seed: int) -> Estimate:
    """Mean over the starts where it is known."""
    known = np.isfinite(values_S)
    return bootstrap_mean(values_S[known], unit_S[known], rng=np.random.default_rng(seed))
