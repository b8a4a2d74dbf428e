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


def summarise(result: artefacts.Result, targets: Sequence[Target], left_out: Mapping[str, str], seed: int) -> None:
    """The table ``targets`` (a row a target; p and q of the gain over the control) and scalars; means over the starts
    where they are known, whole episodes resampled.  ``reason``: why a number is not there."""
    rows: list[dict[str, Any]] = []
    for target in targets:
        sense = "up" if target.sign > 0 else "down"
        every = result.tables.get("samples", [])
        mine = [r for r in every if (r["target"], r["sense"]) == (target.name, sense)]
        unit_S = np.array([r["independent"] for r in mine])
        row: dict[str, Any] = {"target": target.name, "sense": sense, "unit": target.unit}
        for name, unit in MEANS.items():
            e = mean_of(np.array([r[name] for r in mine], np.float64), unit_S, seed)
            result.scalar(f"{name}_{target.label}", e.value, unit.format(unit=target.unit), e.n, e.interval)
            ends = {name: e.value, f"{name}_low": e.low, f"{name}_high": e.high}
            row |= {k: artefacts.finite(v) for k, v in ends.items()}
        over = np.array([r["over_control"] for r in mine], np.float64)
        known = np.isfinite(over)
        units = len(np.unique(unit_S[known]))
        unread = sum(bool(r["reason"]) for r in mine)
        reason = f"{unread} of {len(mine)} starts end too early to be read or compared" if unread else ""
        p = np.nan  # of the mean that has the interval
        if units:
            p = float(means(over[known, None], unit_S[known], rng=np.random.default_rng(seed), draws=9999).p()[0])
        rows.append(row | {"n": units, "p": p, "reason": left_out.get(target.label, reason)})
    for row, q in zip(rows, benjamini_hochberg(np.array([row["p"] for row in rows])), strict=True):
        row |= {"p": artefacts.finite(row["p"]), "q": artefacts.finite(q)}
    result.tables["targets"] = rows


def mean_of(values_S: np.ndarray, unit_S: np.ndarray, seed: int) -> Estimate:
    """Mean over the starts where it is known."""
    known = np.isfinite(values_S)
    return bootstrap_mean(values_S[known], unit_S[known], rng=np.random.default_rng(seed))
