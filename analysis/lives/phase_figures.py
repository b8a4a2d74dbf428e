"""Figures of analysis.life_phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from core.artefacts import Result
from core.figures import figure_of
from core.pages import label_colours, label_name
from core.stats import ALPHA

STACKED, DRAWN = 17, 24  # labels in a figure: the largest; all are in the tables
OTHERS_COLOUR = "#d9d5ca"


def _order(labels: Sequence[int], size: Sequence[float], most: int) -> list[int]:
    """Positions of the ``most`` largest labels as they are stacked: clusters from below, noise on top."""
    largest = sorted(range(len(labels)), key=lambda i: (labels[i] >= 0, -size[i]))[:most]
    return sorted(largest, key=lambda i: (labels[i] < 0, labels[i]))


def _of_all(shown: int, everything: int) -> str:
    return "" if shown == everything else f" (the {shown} largest of {everything} labels)"


def draw_phases(result: Result) -> Any:
    """A matplotlib Figure: stacked areas over the phases; eta squared of every label beside what rotations give."""
    labels = result.arrays["label"].tolist()
    size = [row["rows"] for row in result.tables["clusters"]]
    order = _order(labels, size, STACKED)
    painted = label_colours(labels)
    colours = [painted[labels[i]] for i in order]
    share_LB = np.nan_to_num(result.arrays["share"])
    others_B = share_LB.sum(0) - share_LB[order].sum(0)
    share_LB, bins = share_LB[order], share_LB.shape[1]
    figure = figure_of(11, max(4.2, 0.28 * len(order) + 2.2))
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.7, 1]})
    edges, names = np.arange(bins + 1) / bins, [label_name(labels[i]) for i in order]
    # As steps: a share is one of a whole bin.
    steps_LB = np.repeat(np.concatenate([share_LB, others_B[None]]), 2, axis=1)
    left.stackplot(np.repeat(edges, 2)[1:-1], steps_LB, colors=[*colours, OTHERS_COLOUR], linewidth=0)
    left.set_xlim(0, 1)
    left.set_ylim(0, 1)
    others = len(labels) - len(order)
    left.set_xlabel("phase of life (0 birth, 1 end)" + (f"; on top, pale: {others} others" if others else ""))
    left.set_ylabel("share of clustered rows")
    lives, scalar = result.notes["lives"], result.scalars
    left.set_title(
        f"{lives} lives of at least {result.notes['min_lifespan']} ticks, {scalar['died']['value']:.0%} ended in death",
        fontsize=9,
    )
    rows = {row["label"]: row for row in result.tables["clusters"]}
    for y, i in enumerate(order):
        row = rows[labels[i]]
        right.barh(y, row["eta2_phase"], color=colours[y], height=0.62)
        floor = [row["eta2_rotated"], row["eta2_rotated_97_5"]]
        right.plot(floor, [y, y], color="#1d2329", linewidth=2.2, solid_capstyle="butt")
        if row["q"] <= ALPHA:
            right.text(max(row["eta2_phase"], floor[1]), y, " *", va="center")
    right.set_yticks(range(len(order)), names, fontsize=8)
    right.set_xlim(left=0)
    right.set_xlabel("share of membership's variance between phases (η²)", fontsize=8)
    title = f"black: rotated labels, mean to 97.5 %; *: q ≤ {ALPHA}"
    right.set_title("\n".join([title, _of_all(len(order), len(labels)).strip()]).strip(), fontsize=9)
    for side in ("top", "right"):
        right.spines[side].set_visible(False)
    return figure


def draw_clusters(result: Result) -> Any:
    """A matplotlib Figure: a panel a label, its share by phase with the 95 % interval."""
    labels = result.arrays["label"].tolist()
    colours = label_colours(labels)
    order = _order(labels, [row["rows"] for row in result.tables["clusters"]], DRAWN)
    bins = result.arrays["share"].shape[1]
    columns = min(4, len(order))
    lines = -(-len(order) // columns)
    figure = figure_of(2.9 * columns, 2.0 * lines + 0.5)
    axes = figure.subplots(lines, columns, sharex=True, squeeze=False)
    middle = (np.arange(bins) + 0.5) / bins
    for axis, i in zip(axes.flat, order, strict=False):
        a = result.arrays
        axis.fill_between(
            middle, a["share_low"][i], a["share_high"][i], color=colours[labels[i]], alpha=0.3, linewidth=0
        )
        axis.plot(middle, a["share"][i], color=colours[labels[i]], linewidth=1.6)
        axis.axhline(
            np.average(np.nan_to_num(a["share"][i]), weights=a["rows"]), color="0.5", linewidth=0.8, linestyle=":"
        )
        axis.set_title(label_name(labels[i]), fontsize=9)
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, 1)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(order) :]:
        axis.set_visible(False)
    figure.supxlabel("phase of life (dotted: share over all phases)" + _of_all(len(order), len(labels)), fontsize=9)
    figure.supylabel("share of rows, 95 % interval", fontsize=9)
    return figure


def draw_ends(result: Result) -> Any:
    """A matplotlib Figure: what deaths end in, beside the same lives as a whole."""
    rows = result.tables["ends"]
    colours = label_colours([row["label"] for row in rows])
    size = [row["share_of_ends"] + row["share_of_lives"] for row in rows]
    order = _order([row["label"] for row in rows], size, DRAWN)
    figure = figure_of(7, 0.32 * len(order) + 1.5)
    axis = figure.subplots()
    for y, row in enumerate(rows[i] for i in order):
        axis.barh(y, row["share_of_ends"], color=colours[row["label"]], height=0.62)
        axis.plot([row["low"], row["high"]], [y, y], color="#1d2329", linewidth=1.2)
        axis.plot([row["share_of_lives"]] * 2, [y - 0.4, y + 0.4], color="#b0121b", linewidth=2)
        if row["q"] <= ALPHA:
            axis.text(max(row["high"], row["share_of_lives"]), y, "  *", va="center")
    axis.set_yticks(range(len(order)), [label_name(rows[i]["label"]) for i in order], fontsize=8)
    axis.set_xlim(left=0)
    axis.set_xlabel(
        f"share of {rows[0]['deaths']} deaths whose last clustered row has the label, 95 % interval\n"
        f"(red: its share of all rows of the same lives; *: differs, q ≤ {ALPHA})" + _of_all(len(order), len(rows)),
        fontsize=8,
    )
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure
