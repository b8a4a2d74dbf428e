"""Figures of validation.saliency_trial, drawn from a saved Result alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from core.artefacts import Result
from core.figures import BAND, GOOD, HELD, INK, MEMORY, NEGATIVE, REAL, SIMULATED, USUAL, WORLD, figure_of
from core.stats import Estimate

EXAMPLES = 6
COLOURS = {"": MEMORY, "start held": SIMULATED, "start inferred": WORLD}  # how the simulator has a part
OTHERS = {"baseline": USUAL, "ceiling": REAL}
WORDS = {"": "agent alone", "start held": "through the simulator, its start held", "start inferred":
         "through the simulator, its start inferred from the frame too"}  # fmt: skip


def estimate_of(row: dict[str, Any], name: str) -> Estimate:
    """A number of a row with its interval; NaN where it has none."""
    low, value, high = (np.nan if row.get(k) is None else row[k] for k in (f"{name} low", name, f"{name} high"))
    return Estimate(value, low, high, row["n"])


def headline(result: Result) -> list[dict[str, Any]]:
    """The rows of value, return and policy; those of single actions are in the table alone."""
    rows = [row for row in result.tables["scores"] if not row["quantity"].startswith("prob:")]
    return [{**row, "label": row["method"] + (f", {row['world']}" if row["world"] else "")} for row in rows]


def draw_scores(result: Result) -> Any:
    """Bars of rank correlation and hits with 95 % intervals, a panel a quantity."""
    rows = headline(result)
    names = list(dict.fromkeys(row["quantity"] for row in rows))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    figure = figure_of(3.1 * len(names) + 2.6, 0.27 * len(labels) + 1.9)
    axes = np.atleast_1d(figure.subplots(1, len(names), sharey=True))
    for axis, q in zip(axes, names, strict=True):
        for row in (r for r in rows if r["quantity"] == q):
            y = -labels.index(row["label"])
            e = estimate_of(row, "rank")
            if not np.isfinite(e.value):
                continue
            colour = COLOURS.get(row["world"] or "", MEMORY) if row["kind"] == "method" else OTHERS[row["kind"]]
            axis.barh(y, e.value, 0.72, color=colour)
            axis.hlines(y, e.low, e.high, color=INK, linewidth=1)
            for name, marker, shade in (("boxes", "|", HELD), ("randomised", "x", NEGATIVE)):
                at = row.get(f"rank of {name}")
                if at is not None and np.isfinite(at):
                    axis.plot(at, y, marker, color=shade, markersize=6)
            if row.get("finds") == "yes":
                axis.text(min(e.high, 0.97) + 0.02, y, "finds", fontsize=7, color=GOOD, va="center")
        n = next(r["n"] for r in rows if r["quantity"] == q)
        axis.axvline(0, color=INK, linewidth=0.6)
        axis.axvspan(-result.notes["smallest"], result.notes["smallest"], color=BAND, alpha=0.5, linewidth=0)
        axis.set_xlim(-0.4, 1.08)
        axis.set_title(f"{q}  (n = {n} starts)", fontsize=9)
        axis.tick_params(labelsize=8)
    axes[0].set_yticks([-i for i in range(len(labels))], labels, fontsize=8)
    figure.suptitle("Which saliency finds the objects whose removal changes the agent most", fontsize=11)
    figure.supxlabel(
        "rank correlation of saliency and true change, mean over starts (95 % interval).  |: random boxes of the same "
        "size; x: agent with shuffled weights; grey band: below the smallest size of interest", fontsize=8,
    )  # fmt: skip
    return figure


def draw_examples(result: Result) -> Any:
    """Some starts with the boxes of their objects, what removing each does and what methods say of it."""
    a, k = result.arrays, result.notes["horizon"]
    starts = np.unique(a["of"])[:EXAMPLES]
    columns = [
        ("change of value", "true value"),
        ("of policy", "true policy"),
        (f"of policy to step {k}", f"true policy@1..{k}"),
    ]
    for label in ("gradient", "integrated gradients", "occlusion by what is behind"):
        name = f"said value by {label}"
        columns += [(label, name)] if name in a else []
    kinds: Sequence[str] = result.notes["kinds"]
    figure = figure_of(15, 3.1 * ((len(starts) + 1) // 2) + 0.9)
    grid = np.atleast_2d(figure.subplots((len(starts) + 1) // 2, 4, width_ratios=(1, 1.5, 1, 1.5)))
    for axis in grid.flat:
        axis.set_axis_off()
    for i, n in enumerate(starts):
        picture, text = grid[i // 2, 2 * (i % 2)], grid[i // 2, 2 * (i % 2) + 1]
        picture.imshow(a["frames"][n], interpolation="nearest")
        rows = np.flatnonzero(a["of"] == n)
        cells = []
        for number, o in enumerate(rows):
            x0, y0, x1, y1 = a["boxes"][o]
            picture.plot(
                np.array([x0, x1, x1, x0, x0]) - 0.5, np.array([y0, y0, y1, y1, y0]) - 0.5, color="w", linewidth=1
            )
            picture.text(x0, y0 - 1, str(number + 1), color="w", fontsize=7)
            cells.append([f"{number + 1} {kinds[o]}", *(_brief(a[name][o]) for _, name in columns)])
        table = text.table(
            cellText=cells[:10], colLabels=["object", *(label.replace(" ", "\n", 2) for label, _ in columns)],
            loc="center", colWidths=[0.17, *[0.83 / len(columns)] * len(columns)],
        )  # fmt: skip
        table.auto_set_font_size(False)
        table.set_fontsize(6.5)
        for (row, _), cell in table.get_celld().items():
            cell.set_linewidth(0.3)
            if row == 0:
                cell.set_height(0.2)
    figure.suptitle(
        "Objects removed from the real game: true changes (with minus without the removal), and the size that methods "
        "give each object for the value", fontsize=10,
    )  # fmt: skip
    return figure


def _brief(x: float) -> str:
    return f"{x:+.1g}" if x and abs(x) < 0.001 else f"{x:+.3f}"
