"""Pictures of a study of edits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from core.artefacts import Result
from core.figures import BOTH, LINE, MEMORY, MEMORY_PALE, NEGATIVE, REAL, SIMULATED, USUAL, WORLD, figure_of
from validation.edits.course import ALL_ELSE, SET_BACK, Way
from validation.interventions.statistics import spread_to_rank_by
from validation.interventions.verdicts import SMALLEST

WAYS = {Way().name: REAL, Way("pixels").name: MEMORY, Way("world").name: WORLD, Way(since="episode").name: USUAL,
        Way("pixels", "episode").name: NEGATIVE, SET_BACK: BOTH, ALL_ELSE: MEMORY_PALE}  # fmt: skip
MOST = 12  # quantities in a figure
ABREAST = 4  # edits beside each other
LEGEND_INCHES = 1.7  # of a name in the legend
FIRST, STEP, LAST = -0.195, 0.13, 0.4  # where ways lie about the line of their quantity; the next one's begin at 0.6


def draw(result: Result, path: Path) -> None:
    """effects.png: late effects in spreads, by way, beside what was foretold; frames.png: two starts of every edit,
    unedited and edited."""
    rows = [row for row in result.tables["effects"] if row["late"]]
    edits = list(dict.fromkeys(row["edit"] for row in rows))
    effects(rows, edits).savefig(path / "effects.png", dpi=110)
    _frames(result, edits, path / "frames.png")


def effects(rows: list[dict[str, object]], edits: list[str]) -> Any:
    """Dots with 95 % intervals, a panel an edit, a line a quantity, a dot a way."""
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(str(row["quantity"]) for row in rows))
    largest = {q: max(abs(float(r["effect"]) / _unit(r)) for r in rows if r["quantity"] == q) for q in names}  # type: ignore[arg-type]
    shown = sorted(sorted(names, key=lambda q: -largest[q])[:MOST], key=names.index)
    rows_of_axes = -(-len(edits) // ABREAST)
    wide = min(ABREAST, len(edits))
    figure = figure_of(2 + 3.2 * wide, (1.2 + 0.42 * len(shown)) * rows_of_axes + 0.5)
    axes = figure.subplots(rows_of_axes, wide, sharey=True, squeeze=False).ravel()
    for axis in axes[len(edits) :]:
        axis.axis("off")
    there = {row["way"] for row in rows}
    ways = {way: colour for way, colour in WAYS.items() if way in there}
    step = min(STEP, (LAST - FIRST) / max(len(ways) - 1, 1))
    for axis, edit in zip(axes, edits, strict=False):
        axis.axvline(0, color=LINE, lw=1)
        for k, (way, colour) in enumerate(ways.items()):
            mine = {str(r["quantity"]): r for r in rows if r["edit"] == edit and r["way"] == way}
            for y, q in enumerate(shown):
                if q not in mine:
                    continue
                unit = _unit(mine[q])
                value, low, high = (float(mine[q][n]) / unit for n in ("effect", "low", "high"))  # type: ignore[arg-type]
                place = y + FIRST + step * k
                axis.plot([low, high], [place, place], color=colour, lw=1.2)
                axis.plot(value, place, "o", color=colour, ms=4)
                if way == "whole" and "foretold" in mine[q]:
                    told = float(mine[q]["foretold"]) / unit  # type: ignore[arg-type]
                    axis.plot(told, y - 0.4, "D", color=SIMULATED, ms=4)
        axis.set_title(f"{edit}", fontsize=9)
        axis.set_xlabel(
            f"effect, in spreads of the quantity (95 % interval;\na probability's spread is taken to be at least "
            f"{SMALLEST[1]:g})", fontsize=8,
        )  # fmt: skip
        axis.tick_params(labelsize=8)
    axes[0].set_yticks(range(len(shown)), shown)
    axes[0].invert_yaxis()
    marks = [Line2D([], [], color=colour, marker="o", lw=1.2, ms=4, label=way) for way, colour in ways.items()]
    if any("foretold" in row for row in rows):
        marks.append(Line2D([], [], color=SIMULATED, marker="D", lw=0, ms=4, label="foretold (whole)"))
    columns = min(len(marks), int(figure.get_figwidth() / LEGEND_INCHES))
    figure.legend(handles=marks, loc="outside upper center", ncols=columns, fontsize=8)
    return figure


def _unit(row: dict[str, object]) -> float:
    """What an effect is drawn in: of what hardly ever happens, and so has next to no spread, every change would be
    thousands of spreads, and nothing else on the axis could be seen."""
    return spread_to_rank_by(str(row["quantity"]), float(row["spread"]))  # type: ignore[arg-type]


def _frames(result: Result, edits: list[str], path: Path) -> None:
    """Start and last step of two starts of every edit, unedited above edited."""
    figure = figure_of(8.4, 2.3 * len(edits) + 0.3)
    axes = figure.subplots(2 * len(edits), 8, squeeze=False)
    for axis in axes.ravel():
        axis.axis("off")
    for e, edit in enumerate(edits):
        frames = result.arrays[f"frames/{edit}"]  # [starts, 2, T, ...]
        steps = np.linspace(0, frames.shape[2] - 1, 4).round().astype(int)
        for n in range(min(2, len(frames))):
            for side in range(2):
                for j, t in enumerate(steps):
                    axis = axes[2 * e + side, 4 * n + j]
                    axis.imshow(frames[n, side, t])
                    words = ("unedited" if side == 0 else edit) if n + j == 0 else f"step {t}" if side == 0 else ""
                    axis.set_title(words, fontsize=7, loc="left")
    figure.savefig(path, dpi=110)
