"""Figures of analysis.events, drawn from a saved Result alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.artefacts import Result, column_of
from core.figures import INK, LINE, MEMORY, REAL, figure_of

LINEAR = 0.1  # times an episode up to which axes are linear; beyond, logarithmic


def draw(result: Result) -> Any:
    """Times an episode of every event with 95 % intervals; of two recordings both, and the difference beside them."""
    rows = result.tables["events"]
    two = "difference" in rows[0]
    figure = figure_of(8.5 if two else 5.5, 1.4 + 0.36 * len(rows))
    axes = np.atleast_1d(figure.subplots(1, 2 if two else 1, sharey=True))
    place = np.arange(len(rows))[::-1]
    names = result.notes["names"]
    shown = [("rate", names["rollouts"], REAL, 0.12 if two else 0.0)]
    shown += [("altered_rate", names["altered"], MEMORY, -0.12)] if two else []
    for column, label, colour, off in shown:
        _dots(axes[0], rows, column, place + off, colour, label)
    axes[0].set_xlim(left=-LINEAR / 5)
    axes[0].set_xlabel("times an episode (95 % interval)", fontsize=8)
    axes[0].set_yticks(place, [row["event"].replace("_", " ") for row in rows], fontsize=8)
    if two:
        _dots(axes[1], rows, "difference", place, INK, "")
        axes[1].axvline(0, color=INK, linewidth=0.6)
        axes[1].set_xlabel(f"{names['altered']} less {names['rollouts']} (95 % interval)", fontsize=8)
        figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    for axis in axes:
        axis.set_xscale("symlog", linthresh=LINEAR)  # jumps are many, deaths few
        axis.grid(axis="x", color=LINE)
        axis.set_axisbelow(True)
    return figure


def _dots(axis: Any, rows: list[dict[str, Any]], name: str, place: np.ndarray, colour: str, label: str) -> None:
    value, low, high = (column_of(rows, f"{name}{end}") for end in ("", "_low", "_high"))
    axis.hlines(place, low, high, color=colour, linewidth=1.2)
    axis.plot(value, place, "o", color=colour, markersize=5, label=label)
