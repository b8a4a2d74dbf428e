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
    "value_difference", "counterfactual_top1", "policy_dependence", "delta_psnr", "judge_agreement", "dreams_alive",
    "policy_kl",
)  # fmt: skip


AT = (1, 4, 8, 32)  # horizons of the scorecard
SCORECARD = {  # measure: in words
    "frame_psnr": "PSNR of frames",
    "frame_ssim": "SSIM of frames",
    "frame_ssim_less_copy": "SSIM, less a held frame's",
    "frame_psnr_known": "PSNR, what was in view",
    "frame_psnr_revealed": "PSNR, what comes into view",
    "frame_psnr_moving": "PSNR, what moves by itself",
    "frame_psnr_edge_filled": "PSNR if all but the new were right",
    "delta_psnr": "PSNR gained by the right actions",
    "action_agreement": "same action",
    "action_agreement_in_effect": "same action, by what it does",
    "action_kappa": "same action beyond chance, kappa",
    "action_kappa_in_effect": "the same, by what it does",
    "policy_distance": "policy, total variation",
    "policy_kl": "policy, Kullback-Leibler",
    "judge_agreement": "same action of the judge",
    "h_error": "hidden-state error",
    "value_error": "value error",
    "value_error_less_copy": "value error, less a held frame's",
    "counterfactual_top1": "held actions recognised",
    "effect_sign_action": "sign of effects through the world, on actions",
    "effect_sign_action_straight_through": "the same, straight-through",
    "effect_sign_value": "sign of effects through the world, on the value",
    "effect_sign_value_straight_through": "the same, straight-through",
    "gradient_sign_action_through_world": "sign, straight-through against finite differences",
    "reward_average_precision": "rewards foretold, average precision",
    "terminal_average_precision": "endings foretold, average precision",
    "unpaid_ending_average_precision": "endings without a reward foretold, average precision",
    "reward_calibration_error": "rewards foretold, calibration",
    "terminal_calibration_error": "endings foretold, calibration",
    "dreams_alive": "dreams still alive",
    "dreams_alive_difference": "dreams alive, less real episodes",
    "policy_dependence": "error ratio under other actions",
    "h_classifier": "real and simulated states told apart",
    "h_classifier_dreamed": "real and dreamed states told apart",
    "there_and_back_psnr": "PSNR of a place that comes back into view",
    "there_and_back_share": "share of places that come back",
    "ranking_spearman": "ranking of policies",
    "ranking_regret": "regret of the policy ranked first",
    "ensemble_coverage_frame": "ensemble, pixels within 90 % bands",
    "ensemble_coverage_value": "ensemble, values within 90 % bands",
    "ensemble_rank_frame": "ensemble, spread against error of frames",
    "ensemble_rank_value": "ensemble, spread against error of values",
}


def scorecard(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of the measures above, in that order: at the horizons of AT, or at all of the few a measure has; what is
    pooled over stretches, pooled."""
    out: list[Mapping[str, Any]] = []
    for measure in SCORECARD:
        mine = [r for r in rows if r["measure"] == measure]
        pooled = [r for r in mine if r["horizon"] is None]
        last = mine[-1]["horizon"] if mine else None
        at = [r for r in mine if r["horizon"] in (*AT, last)]
        out += pooled or (mine if len(mine) <= len(AT) else at)
    return out


def summarise(result: Result) -> Result:
    """Scalars for the manifest and the model card, and the scorecard."""
    rows = result.tables["fidelity"]
    result.tables["scorecard"] = [{"what": SCORECARD[r["measure"]], **r} for r in scorecard(rows)]
    for r in rows:
        keep = r["measure"].startswith(("gradient", "effect", "ranking", "there_and_back"))
        keep = keep or (r["measure"] in HEADLINES and r["horizon"] in SHOWN)
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
    """The scorecard, on standard output; every row is in the result."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="simulated against real, held-out episodes")
    for name in ("measure", "horizon", "simulated", "95 %", "real vs real", "last held", "mean", "unit", "n"):
        table.add_column(name, justify="left" if name in ("measure", "unit") else "right", no_wrap=name == "measure")

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.3g}"

    for r in result.tables["scorecard"]:
        interval = f"{cell(r['low'])} to {cell(r['high'])}" if r["low"] is not None else ""
        table.add_row(
            r["measure"], "all" if r["horizon"] is None else str(r["horizon"]), cell(r["simulated"]), interval,
            cell(r["floor"]), cell(r["baseline_copy"]), cell(r["baseline_mean"]), r["unit"], f"{r['n']}{few(r['n'])}",
        )  # fmt: skip
    Console(width=150).print(table)
