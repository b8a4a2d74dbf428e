"""The figure of validation.planted, drawn from its result."""

from __future__ import annotations

from pathlib import Path

from core.artefacts import Result
from core.figures import figure_of
from envs.planted import KINDS
from validation.planted.measures import MEASURES

GOOD, BAD, PLAIN = "#d5ecd8", "#f4cccc", "#f2f2f2"
NAME, ASKED, CELL = 3.7, 4.9, 0.82  # inches: the columns of methods, of what is asked, of a world


def draw_scores(result: Result, path: Path) -> None:
    """One cell a (method and measure, world): green where the target is reached, red where not, grey where there is
    none.  The rows below the line belong to methods broken on purpose."""
    from matplotlib.patches import Rectangle

    table, names = result.tables["scores"], [m.name for m in MEASURES]
    lines = list(dict.fromkeys((r["control"], r["measure"], r["method"]) for r in table))
    lines.sort(key=lambda line: (line[0], names.index(line[1])))
    worlds = list(dict.fromkeys(r["world"] for r in table))
    worlds.sort(key=lambda w: (KINDS.index(w.partition(",")[0]), w))
    cell = {((r["control"], r["measure"], r["method"]), r["world"]): r for r in table}
    height = 0.27 * len(lines) + 1.9
    width = NAME + ASKED + CELL * len(worlds) + 0.1
    figure = figure_of(width, height)
    figure.set_layout_engine("none")  # the cells have their places
    cells = (NAME + ASKED) / width
    axis = figure.add_axes((cells, 0.1 / height, CELL * len(worlds) / width, 1 - 1.9 / height))
    axis.set(xlim=(0, len(worlds)), ylim=(len(lines), 0))
    axis.set_axis_off()
    for x, world in enumerate(worlds):
        axis.text(x + 0.5, -0.25, world.replace(", ", "\n"), ha="center", va="bottom", fontsize=9, weight="bold")
    before = None
    for y, line in enumerate(lines):
        control, measure, method = line
        if control != before and control:
            axis.axhline(y, color="black", lw=1.2, xmin=-(NAME + ASKED - 0.1) / (CELL * len(worlds)), clip_on=False)
        before = control
        asked = MEASURES[names.index(measure)]
        goal = f": {asked.target.text}".replace(">=", "≥").replace("<=", "≤") if asked.target else ""
        axis.text(-0.1, y + 0.5, asked.words + goal, ha="right", va="center", fontsize=8)
        name = f"broken on purpose: {method}" if control else method
        axis.text(
            -ASKED / CELL, y + 0.5, name, ha="right", va="center", fontsize=8, style="italic" if control else "normal"
        )
        for x, world in enumerate(worlds):
            row = cell.get((line, world))
            if row is None:
                continue
            colour = PLAIN if row["met"] is None else GOOD if row["met"] else BAD
            axis.add_patch(Rectangle((x + 0.03, y + 0.06), 0.94, 0.88, color=colour, lw=0))
            axis.text(x + 0.5, y + 0.5, brief(row["value"]), ha="center", va="center", fontsize=8)
    figure.text(
        0.01, 1 - 0.3 / height, "Does every method find what was planted, and only that?", fontsize=13, weight="bold"
    )
    figure.text(
        0.01, 1 - 0.58 / height,
        "Each column is a small world whose causes are known. Green: a score reaches what it must; red: it does not; "
        "grey: nothing is asked of it.",
        fontsize=9,
    )  # fmt: skip
    figure.text(
        0.01, 1 - 0.82 / height,
        "The methods below the line were broken on purpose and should be red: a yardstick that they could pass would "
        "measure nothing.",
        fontsize=9,
    )  # fmt: skip
    figure.savefig(path, dpi=110)


def brief(value: float) -> str:
    """A number in at most five characters or so."""
    if value != 0 and abs(value) < 0.001:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) < 100 else f"{value:.0f}"
