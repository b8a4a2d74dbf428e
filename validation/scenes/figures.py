"""Pictures of a scene's curves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from core.artefacts import Result
from core.figures import INK, LINE, MEMORY, REAL, SIMULATED, USUAL, WORLD, figure_of
from validation.scenes.study import PLAIN, SHIFTED, estimates_of

COLOURS = {PLAIN: REAL, SHIFTED: MEMORY}
STYLES = ("-", "--", ":", "-.")
OF_OUTCOMES = {"passed": WORLD, "died": SIMULATED, "stuck": USUAL}


def draw(result: Result, path: Path) -> None:
    """curves.png: choice (at once, and taken within the horizon), value and outcome against the variable, above the
    scene at every value."""
    notes = result.notes
    values, name, k = notes["values"], notes["placeholder"], notes["horizon"]
    figure = figure_of(13, 5.8)
    grid = figure.add_gridspec(3, 4, height_ratios=[0.5, 3, 1.2])
    choice, taken, value, outcome = (figure.add_subplot(grid[1, i]) for i in range(4))
    word, styles = notes["choice"], dict(zip(notes["settles"], STYLES, strict=False))
    for axis, quantity, label in ((choice, f"prob:{word}", f"probability of '{word}'"),
                                  (taken, f"chosen:{word}@{k}", f"share that takes '{word}' within {k} steps"),
                                  (value, "value", "value (return)")):  # fmt: skip
        for variant, colour in COLOURS.items():
            for settle, style in styles.items():
                _line(axis, estimates_of(result, variant, settle, quantity), colour, style)
        axis.set_ylabel(label)
    choice.axhline(0.5, color=LINE, lw=1)
    for name_of, colour in OF_OUTCOMES.items():
        for settle, style in styles.items():
            _line(outcome, estimates_of(result, PLAIN, settle, f"{name_of}@{k}"), colour, style)
    outcome.set_ylabel(f"share of starts within {k} steps")
    for axis in (choice, taken, value, outcome):
        axis.set_xlabel(name)
        axis.set_xticks(values)
    for axis in (choice, taken, outcome):
        axis.set_ylim(-0.03, 1.03)
    seen = {row["variant"] for row in result.tables["curves"]}
    _legend(figure.add_subplot(grid[0, :3]), {v: c for v, c in COLOURS.items() if v in seen}, styles, 6)
    _legend(figure.add_subplot(grid[0, 3]), OF_OUTCOMES, styles, 2)
    below = grid[2, :].subgridspec(1, max(len(values), 4))
    for j, (v, frame) in enumerate(zip(values, result.arrays["frames"], strict=True)):
        axis = figure.add_subplot(below[0, j])
        axis.imshow(frame)
        axis.set_title(f"{name} = {v:g}", fontsize=8)
        axis.axis("off")
    says = notes["says"].replace(f"{{{name}}}", name)
    figure.suptitle(f"{notes['scene']}: {says} (95 % intervals over {notes['bases']} bases)", fontsize=10)
    figure.savefig(path / "curves.png", dpi=110)


def _legend(axis: Any, colours: Mapping[str, str], styles: Mapping[int, str], columns: int) -> None:
    """What colours and lines stand for, above the panels that they are in."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, marker="o", ms=3.5, lw=1.5, label=word) for word, colour in colours.items()]
    handles += [
        Line2D([], [], color=INK, ls=style, lw=1.5, label="first sight" if n == 0 else f"after {n} steps")
        for n, style in styles.items()
    ]
    axis.axis("off")
    axis.legend(
        handles=handles, loc="center left", ncols=columns, fontsize=7, handlelength=3.6, columnspacing=1.5,
        borderaxespad=0, frameon=False,
    )  # fmt: skip


def _line(axis: Any, found: dict[float, Any], colour: str, style: str) -> None:
    if not found:
        return
    x = np.array(list(found))
    y, low, high = (np.array([e[i] for e in found.values()]) for i in range(3))
    axis.plot(x, y, style, color=colour, marker="o", ms=3.5, lw=1.5)
    axis.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
