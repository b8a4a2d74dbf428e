"""Pictures of a scene's curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from core.artefacts import Result
from core.figures import LINE, MEMORY, REAL, SIMULATED, USUAL, WORLD, figure_of
from validation.scenes.study import PLAIN, SHIFTED, estimates_of

COLOURS = {PLAIN: REAL, SHIFTED: MEMORY}
STYLES = ("-", "--", ":", "-.")
OF_OUTCOMES = {"passed": WORLD, "died": SIMULATED, "stuck": USUAL}


def draw(result: Result, path: Path) -> None:
    """curves.png: choice (at once, and taken within the horizon), value and outcome against the variable, above the
    scene at every value."""
    notes, frames = result.notes, result.arrays["frames"]
    values, name, k = notes["values"], notes["placeholder"], notes["horizon"]
    figure = figure_of(13, 5.4)
    grid = figure.add_gridspec(2, 4, height_ratios=[3, 1.2])
    choice, taken, value, outcome = (figure.add_subplot(grid[0, i]) for i in range(4))
    word = notes["choice"]
    for axis, quantity, label in ((choice, f"prob:{word}", f"probability of '{word}'"),
                                  (taken, f"chosen:{word}@{k}", f"share that takes '{word}' within {k} steps"),
                                  (value, "value", "value (return)")):  # fmt: skip
        for variant, colour in COLOURS.items():
            for settle, style in zip(notes["settles"], STYLES, strict=False):
                words = f"{variant}, {'first sight' if settle == 0 else f'after {settle} steps'}"
                _line(axis, estimates_of(result, variant, settle, quantity), colour, style, words)
        axis.set_ylabel(label)
    choice.axhline(0.5, color=LINE, lw=1)
    for name_of, colour in OF_OUTCOMES.items():
        for settle, style in zip(notes["settles"], STYLES, strict=False):
            _line(outcome, estimates_of(result, PLAIN, settle, f"{name_of}@{k}"), colour, style,
                  name_of if style == "-" else "")  # fmt: skip
    outcome.set_ylabel(f"share of starts within {k} steps")
    for axis in (choice, taken, value, outcome):
        axis.set_xlabel(name)
        axis.set_xticks(values)
        axis.legend(fontsize=7)
    for axis in (choice, taken, outcome):
        axis.set_ylim(-0.03, 1.03)
    below = grid[1, :].subgridspec(1, max(len(values), 4))
    for j, (v, frame) in enumerate(zip(values, frames, strict=True)):
        axis = figure.add_subplot(below[0, j])
        axis.imshow(frame)
        axis.set_title(f"{name} = {v:g}", fontsize=8)
        axis.axis("off")
    figure.suptitle(f"{notes['scene']}: {notes['says']} (95 % intervals over {notes['bases']} bases)", fontsize=10)
    figure.savefig(path / "curves.png", dpi=110)


def _line(axis: Any, found: dict[float, Any], colour: str, style: str, label: str) -> None:
    if not found:
        return
    x = np.array(list(found))
    y, low, high = (np.array([e[i] for e in found.values()]) for i in range(3))
    axis.plot(x, y, style, color=colour, marker="o", ms=3.5, lw=1.5, label=label or None)
    axis.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
