"""What patching changed as a table: every direction and action head against random directions that occur.

N patched steps, D directions, C random controls, P heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.patching.patch import Patched
from analysis.shared.units import say_shared
from core.artefacts import Result, finite
from core.stats import ALPHA, band_of, benjamini_hochberg, few, least_units, ratios

NOTHING = 1e-10  # nats; what rounding to float32 does is less
ALL = "all heads"


def table_of(
    patched: Patched, names: Sequence[str], parts: Sequence[str], doses: Sequence[float], unit_N: np.ndarray, *,
    resamples: int, rng: np.random.Generator,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:  # fmt: skip
    """(a row a direction and head, a row a direction, head and dose).

    Means are over the steps at which the head had a choice; a head with choices in fewer than six units is not tested.
    q: of the rank among the random directions, over all directions and heads; those of all heads together are a family
    of their own, since they follow from the others.
    """
    heads = [*parts, ALL]
    units, of_N = np.unique(unit_N, return_inverse=True)
    choice_NQ = np.column_stack([patched.choice_NP, patched.choice_NP.any(1)])
    member_EN = (of_N == np.arange(len(units))[:, None]).astype(np.float64)
    count_EQ = member_EN @ choice_NQ

    def sums(kl_NP: np.ndarray) -> np.ndarray:
        """[E, Q] over the steps with a choice of every unit."""
        out: np.ndarray = member_EN @ (np.column_stack([kl_NP, kl_NP.sum(-1)]) * choice_NQ)
        return out

    last = list(doses).index(1.0)
    swap_EQ = sums(patched.swap_NP)
    count_Q = choice_NQ.sum(0)
    rows: list[dict[str, Any]] = []
    dosed: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        kl_XEQ = np.stack([sums(kl_DNP[i]) for kl_DNP in patched.dose_XDNP])
        towards_EQ = sums(patched.towards_DNP[i])
        random = patched.random_DCNP[i].astype(np.float64)
        random = np.concatenate([random, random.sum(-1, keepdims=True)], -1)
        for k, head in enumerate(heads):
            if not count_Q[k]:
                rows.append({"direction": name, "head": head, "steps": 0, "verdict": "never had a choice"})
                continue
            here = count_EQ[:, k] > 0
            n, steps = int(here.sum()), count_EQ[here, k, None]
            by_dose = ratios(kl_XEQ[:, here, k].T, steps, rng=rng, draws=resamples).estimates()
            share = ratios(kl_XEQ[last, here, k, None], swap_EQ[here, k, None], rng=rng, draws=resamples).estimates()[0]
            dose_1, swap = by_dose[last], float(swap_EQ[:, k].sum() / steps.sum())
            random_C = random[:, choice_NQ[:, k], k].mean(1)
            band = band_of(random_C, ALPHA)
            rows.append(
                {
                    "direction": name, "head": head, "kl": dose_1.value, "low": finite(dose_1.low),
                    "high": finite(dose_1.high), "swap": swap, "share": finite(share.value),
                    "share_low": finite(share.low), "share_high": finite(share.high),
                    "towards_donor": float(towards_EQ[:, k].sum() / steps.sum()),
                    "random": float(random_C.mean()), "random_low": band[0], "random_high": band[1],
                    "p": float((1 + (random_C >= dose_1.value).sum()) / (1 + len(random_C))),
                    "steps": int(count_Q[k]), "n": n,
                }
            )  # fmt: skip
            dosed += [
                {"direction": name, "head": head, "dose": dose, "kl": e.value, "low": finite(e.low),
                 "high": finite(e.high)}
                for dose, e in zip(doses, by_dose, strict=True)
            ]  # fmt: skip
    enough = least_units(ALPHA)
    p = np.array([row["p"] if row.get("n", 0) >= enough else np.nan for row in rows])
    whole = np.array([row["head"] == ALL for row in rows])
    q = np.where(whole, *(benjamini_hochberg(np.where(some, p, np.nan)) for some in (whole, ~whole)))
    for row, q_value in zip(rows, q, strict=True):
        if "p" in row:
            row["q"] = finite(q_value)
            row["verdict"] = verdict(row)
    return rows, dosed


def verdict(row: Mapping[str, Any]) -> str:
    """What a row says, in words."""
    if row["q"] is None:
        return "too few choices to tell"
    if row["kl"] < NOTHING:
        return "moves nothing"
    if row["q"] <= ALPHA and row["low"] > 0:
        return "moves it more than random directions do"
    return "no more than random directions" if row["kl"] <= row["random_high"] else "not sure"


def read_and_used(
    targets: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """A row a probe's direction: how well the probe reads its quantity (R^2, and beyond what was given), beside what
    patching the direction changes: KL of all heads together, and the head that it moves most.

    targets: the table of that name of analysis.probes; rows: those of ``table_of``.
    """
    told = {row["target"]: row for row in targets}
    out = []
    for name in names:
        read = told[name]
        mine = [row for row in rows if row["direction"] == name and row["steps"]]
        (whole,) = (row for row in mine if row["head"] == ALL)
        most = max((row for row in mine if row["head"] != ALL), key=lambda row: row["kl"])
        row = {"direction": name, "n_read": read.get("n"), "n_used": whole["n"]}
        for column, key in (("r2", "linear"), ("beyond", "partial")):
            row |= {f"{column}{end}": read.get(f"{key}{end}") for end in ("", "_low", "_high")}
        row |= {"read": read["verdict"], "kl": whole["kl"], "kl_low": whole["low"], "kl_high": whole["high"]}
        row |= {key: whole[key] for key in ("random_low", "random_high", "share", "q")}
        out.append({**row, "used": whole["verdict"], "most_moved": most["head"], "most_moved_kl": most["kl"]})
    return out


def summary(result: Result, out: Path) -> str:
    """What a person wants to know, in a few lines."""
    notes = result.notes
    rows = [row for row in result.tables["patching"] if row["head"] != ALL]
    tested = [row for row in rows if row.get("q") is not None]
    moved = [row for row in tested if row["verdict"].startswith("moves it")]
    shared = say_shared(notes["shared"], notes["unit"], held_out=False)
    lines = [
        f"{notes['states']} steps of {notes['units']} units ({notes['unit']}), donor: "
        f"{'the same life' if notes['donor'] == 'life' else 'another unit'}; {len(notes['directions'])} directions, "
        f"{notes['controls']} random ones each: {out}",
        *([f"  warning: {shared}"] if shared else []),
        f"  patching in the step's own coordinate changes {notes['identity']:g} nats; recorded values come out again "
        f"within {notes['value_off']:.1g}",
        f"  {len(moved)} of {len(tested)} pairs of direction and head move more than random directions as long "
        f"(q <= {ALPHA})",
    ]
    fewest = math.ceil(len(tested) / (1 + notes["controls"]) / ALPHA)
    if len(moved) < fewest > 1:
        lines.append(f"  fewer than {fewest} such pairs cannot be told from chance with {notes['controls']} --controls")
    for row in sorted(moved, key=lambda row: -row["kl"])[:10]:
        lines.append(
            f"  {row['direction']} -> {row['head']}: {row['kl']:.3g} nats [{row['low']:.3g}, {row['high']:.3g}]"
            f"{few(row['n'])}, random {row['random']:.3g}, "
            f"{row['share'] or 0:.0%} of the whole state's {row['swap']:.3g}"
        )
    for row in sorted(result.tables.get("read_used", ()), key=lambda row: -(row["r2"] or 0)):
        lines.append(
            f"  {row['direction']}: a probe reads R2 {row['r2']:.2f} ({row['read']}); patched, {row['kl']:.2g} nats, "
            f"random {row['random_low']:.2g} to {row['random_high']:.2g} ({row['used']})"
        )
    return "\n".join(lines)
