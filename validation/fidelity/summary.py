"""The headline numbers of fidelity, and the table that a person reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.artefacts import Result
from core.stats import few
from validation.fidelity.figures import SHOWN

HEADLINES = (
    "frame_psnr", "frame_mse", "frame_ssim", "action_agreement", "action_agreement_in_effect", "value_error",
    "value_difference", "counterfactual_top1", "policy_dependence",
)  # fmt: skip


def summarise(result: Result) -> Result:
    """Scalars for the manifest and the model card."""
    rows = result.tables["fidelity"]
    for r in rows:
        keep = r["measure"].startswith("gradient") or (r["measure"] in HEADLINES and r["horizon"] in SHOWN)
        if (keep or r["horizon"] is None) and r["simulated"] is not None:
            name = r["measure"] if r["horizon"] is None else f"{r['measure']}@{r['horizon']}"
            result.scalar(name, r["simulated"], r["unit"], r["n"], (r["low"], r["high"]))
    for name in ("copy", "mean"):
        less = [r for r in rows if r["measure"] == f"frame_mse_less_{name}" and r["horizon"] >= 2]
        if less:
            below = [r["horizon"] for r in less if r["simulated"] < 0]
            surely = [r["horizon"] for r in less if r["high"] is not None and r["high"] < 0]
            result.scalar(f"horizons_below_{name}", len(below) / len(less), "share of horizons from 2", len(less))
            result.notes[f"not_below_{name}"] = [r["horizon"] for r in less if r["horizon"] not in below]
            result.notes[f"not_surely_below_{name}"] = [r["horizon"] for r in less if r["horizon"] not in surely]
    above = {
        r["horizon"]: r["simulated"] - max(r["baseline_copy"], r["baseline_mean"])
        for r in rows
        if r["measure"] == "frame_psnr" and r["horizon"] and None not in (r["simulated"], r["baseline_copy"])
    }
    for upto in sorted({min(8, max(above)), max(above)}) if above else ():
        margins = [margin for k, margin in above.items() if k <= upto]
        result.scalar(f"frame_psnr_least_margin_to@{upto}", min(margins), "dB above both baselines", len(margins))
    for r in rows:
        if r["measure"] == "counterfactual_top1" and r["baseline_mean"]:
            times = [np.nan if r[k] is None else r[k] / r["baseline_mean"] for k in ("simulated", "low", "high")]
            result.scalar(f"counterfactual_times_chance@{r['horizon']}", times[0], "times chance", r["n"], times[1:])
    return result


def to_show(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows for a page: what is pooled, pooled; the rest at a near, a middle and the last horizon."""
    pooled = {r["measure"] for r in rows if r["horizon"] is None}
    last = {r["measure"]: r["horizon"] for r in rows}
    return [
        r for r in rows
        if "_less_" not in r["measure"]
        and (r["horizon"] is None if r["measure"] in pooled else r["horizon"] in (1, 4, last[r["measure"]]))
    ]  # fmt: skip


def print_table(result: Result) -> None:
    """The rows at a few horizons, on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="simulated against real, held-out episodes")
    for name in ("measure", "horizon", "simulated", "95 %", "floor", "last held", "mean", "unit", "n"):
        table.add_column(name, justify="left" if name in ("measure", "unit") else "right", no_wrap=name == "measure")

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.3g}"

    for r in to_show(result.tables["fidelity"]):
        interval = f"{cell(r['low'])} to {cell(r['high'])}" if r["low"] is not None else ""
        table.add_row(
            r["measure"], "all" if r["horizon"] is None else str(r["horizon"]), cell(r["simulated"]), interval,
            cell(r["floor"]), cell(r["baseline_copy"]), cell(r["baseline_mean"]), r["unit"], f"{r['n']}{few(r['n'])}",
        )  # fmt: skip
    Console(width=150).print(table)
