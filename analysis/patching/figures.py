"""Figures of analysis.patching, drawn from a saved Result alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.artefacts import Result, column_of
from core.figures import BAND, INK, MEMORY, SEQUENTIAL, figure_of
from core.stats import ALPHA

MOST_LINES = 8  # directions in the figure of doses


def draw(result: Result) -> dict[str, Any]:
    """{file name: Figure}."""
    out = {
        "patching.png": draw_heads(result),
        "controls.png": draw_controls(result),
        "doses.png": draw_doses(result),
    }
    return out | ({"read_used.png": draw_read_used(result)} if "read_used" in result.tables else {})


def _rows(result: Result) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["direction"], row["head"]): row for row in result.tables["patching"] if row["steps"]}


def _heads(result: Result) -> list[str]:
    """Heads that had a choice at some step."""
    rows = _rows(result)
    return [h for h in result.notes["heads"] if any((d, h) in rows for d in result.notes["directions"])]


def draw_heads(result: Result) -> Any:
    """KL of every direction and head, coloured by it: as a share of what the whole state does to a head, a cell of
    hardly any KL would set the scale (``share`` in patching.csv has them)."""
    from matplotlib.colors import PowerNorm

    rows, heads, names = _rows(result), _heads(result), result.notes["directions"]
    silent = [h for h in result.notes["heads"] if h not in heads]
    figure = figure_of(2.6 + 0.85 * len(heads), 2.3 + 0.34 * len(names))
    axis = figure.subplots()
    kl = np.array([[rows[d, h]["kl"] for h in heads] for d in names], float)
    tested_KL = np.array([[rows[d, h]["q"] is not None for h in heads] for d in names])
    most = max(float(kl[tested_KL].max(initial=0)) or float(kl.max(initial=0)), 1e-9)
    image = axis.imshow(kl, cmap=SEQUENTIAL, norm=PowerNorm(0.5, 0, most, clip=True), aspect="auto")
    for i, d in enumerate(names):
        for k, h in enumerate(heads):
            row = rows[d, h]
            tested = row["q"] is not None
            mark = "?" if not tested else "*" if row["q"] <= ALPHA and row["low"] > 0 else ""
            colour = "k" if kl[i, k] > 0.36 * most else "w" if tested else "0.75"
            weight = "bold" if mark == "*" else "normal"
            axis.text(k, i, f"{_short(row['kl'])}{mark}", ha="center", va="center", fontsize=7, color=colour,
                      weight=weight)  # fmt: skip
    axis.set_xticks(range(len(heads)), heads, rotation=40, ha="right", fontsize=8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.axvline(len(heads) - 1.5, color="w", linewidth=3)
    extend = "max" if kl.max(initial=0) > most else "neither"
    ticks = most * np.linspace(0, 1, 5) ** 2
    bar = figure.colorbar(image, label="KL in nats (square-root scale)", extend=extend, ticks=ticks)
    bar.ax.set_yticklabels([f"{tick:.2g}" for tick in ticks])
    left_out = f"; never a choice: {', '.join(silent)}" if silent else ""
    axis.set_title(
        f"KL(original || patched), nats; * more than {result.notes['controls']} random directions that occur "
        f"(q ≤ {ALPHA})\n? choices in too few {result.notes['unit']}s to tell{left_out}", fontsize=8,
    )  # fmt: skip
    return figure


def _short(kl: float) -> str:
    return "0" if kl < 1e-10 else f"{kl:.1e}" if kl < 1e-3 else f"{kl:.3f}" if kl < 1 else f"{kl:.1f}"


def draw_controls(result: Result) -> Any:
    """All heads together: each direction beside random ones, a move towards the donor, and the donor's whole state."""
    names, rows = result.notes["directions"], _rows(result)
    head = result.notes["heads"][-1]
    found = [rows[d, head] for d in names]
    figure = figure_of(7.5, 1.8 + 0.3 * len(names))
    axis = figure.subplots()
    place = np.arange(len(names))[::-1]
    low, high = (np.array([row[f"random_{end}"] for row in found]) for end in ("low", "high"))
    floor = max(1e-7, min([row["kl"] for row in found if row["kl"] > 0] + list(low[low > 0]), default=1e-6) / 3)
    axis.barh(place, high.clip(floor) - low.clip(floor), 0.6, left=low.clip(floor), color=BAND,
              label="95 % of random directions that occur, as far")  # fmt: skip
    ends = [np.array([row[end] for row in found], float).clip(floor) for end in ("low", "high")]  # None: one unit
    axis.hlines(place, *ends, color=MEMORY, linewidth=1.4)
    axis.plot([max(row["kl"], floor) for row in found], place, "o", color=MEMORY, label="the direction (95 %)")
    axis.plot([max(row["towards_donor"], floor) for row in found], place, "|", color=INK, markersize=12,
              markeredgewidth=2, label="towards the donor, as far")  # fmt: skip
    axis.axvline(found[0]["swap"], color=INK, linestyle="--", linewidth=1, label="the donor's whole state")
    axis.set_xscale("log")
    axis.set_yticks(place, names, fontsize=8)
    axis.set_xlabel(f"change of all heads, KL(original || patched) in nats; {result.notes['states']} steps, "
                    f"{result.notes['units']} {result.notes['unit']}s", fontsize=8)  # fmt: skip
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return figure


def draw_doses(result: Result) -> Any:
    """KL of all heads against the share of the way moved, of the directions that move most."""
    head = result.notes["heads"][-1]
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in result.tables["doses"]:
        if row["head"] == head:
            curves.setdefault(row["direction"], []).append(row)
    figure = figure_of(6, 4)
    axis = figure.subplots()
    for name, rows in sorted(curves.items(), key=lambda item: -item[1][-1]["kl"])[:MOST_LINES]:
        dose, kl, low, high = (np.r_[0.0, column_of(rows, k)] for k in ("dose", "kl", "low", "high"))
        (line,) = axis.plot(dose, kl, "o-", label=name, markersize=3)
        axis.fill_between(dose, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axis.set_xlim(0, 1.02)
    axis.set_ylim(0)
    axis.set_xlabel("share of the way to the donor's coordinate")
    axis.set_ylabel("change of all heads (KL in nats, 95 %)")
    axis.legend(fontsize=8, frameon=False)
    return figure


def draw_read_used(result: Result) -> Any:
    """Directions of probes: what they read of their quantity beside what patching them changes, the best read first."""
    rows = sorted(result.tables["read_used"], key=lambda row: -(row["r2"] or 0))
    figure = figure_of(9, 1.9 + 0.3 * len(rows))
    left, right = figure.subplots(1, 2, sharey=True)
    place = np.arange(len(rows))[::-1]

    def column(key: str) -> np.ndarray:
        return column_of(rows, key)

    for key, label, shift, face in (("r2", "what the probe reads", 0.12, MEMORY), ("beyond", "beyond what is given",
                                    -0.12, "w")):  # fmt: skip
        if np.isfinite(column(key)).any():
            left.hlines(place + shift, column(f"{key}_low"), column(f"{key}_high"), color=MEMORY, linewidth=1.2)
            left.plot(column(key), place + shift, "o", color=MEMORY, markerfacecolor=face, markersize=5, label=label)
    left.axvline(0, color=INK, linewidth=0.6)
    left.set_xlim(min(-0.05, float(np.nanmin([column("r2_low"), column("beyond_low")]))) if rows else None, 1)
    left.set_xlabel("read: R² on held-out states (95 %)", fontsize=8)
    low, high = column("random_low"), column("random_high")
    floor = max(1e-7, min([*column("kl")[column("kl") > 0], *low[low > 0]], default=1e-6) / 3)
    right.barh(place, high.clip(floor) - low.clip(floor), 0.6, left=low.clip(floor), color=BAND,
               label="95 % of random directions that occur, as far")  # fmt: skip
    right.hlines(place, column("kl_low").clip(floor), column("kl_high").clip(floor), color=MEMORY, linewidth=1.4)
    right.plot(column("kl").clip(floor), place, "o", color=MEMORY, markersize=5, label="this direction, patched")
    right.set_xscale("log")
    right.set_xlabel("used: change of all heads, KL in nats (95 %)", fontsize=8)
    left.set_yticks(place, [row["direction"] for row in rows], fontsize=8)
    right.tick_params(labelleft=False)
    for axis in (left, right):
        axis.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure
