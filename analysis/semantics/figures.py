"""Figures of analysis.semantics: where states lie, and what codes do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.figures import INK, SEQUENTIAL, figure_of, shortened
from core.pages import label_colours

NAME, TITLE = 28, 44  # letters of a code's name in a legend, and above a panel


def draw_embeddings(
    tsne_N2: np.ndarray, plane_N2: np.ndarray, code_N: np.ndarray, value_N: np.ndarray, codebook_C2: np.ndarray,
    names: Mapping[int, str],
) -> Any:  # fmt: skip
    """The features' t-SNE and the plane, both coloured by code, and the plane by value."""
    figure = figure_of(16, 5.2)
    axes = figure.subplots(1, 3)
    colours = label_colours(range(len(names)))
    for axis, xy_N2, title in ((axes[0], tsne_N2, "features, t-SNE"), (axes[1], plane_N2, "plane (FDR)")):
        for c, name in names.items():
            mine = code_N == c
            dead = "" if mine.any() else " (dead)"
            axis.scatter(*xy_N2[mine].T, s=3, linewidths=0, color=colours[c], label=f"{shortened(name, NAME)}{dead}")
        axis.set(title=title, xticks=[], yticks=[])
    axes[1].scatter(*codebook_C2.T, marker="x", color=INK, s=24, linewidths=1)
    legend = axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=7, markerscale=3)
    for text in legend.get_texts():
        text.set_parse_math(False)
    points = axes[2].scatter(*plane_N2.T, c=value_N, cmap=SEQUENTIAL, s=3, linewidths=0)
    axes[2].set(title="plane, by value", xticks=[], yticks=[])
    figure.colorbar(points, ax=axes[2], label="the agent's value (return)")
    return figure


def draw_effects(rows: Sequence[Mapping[str, Any]], names: Mapping[int, str], most: int = 6) -> Any:
    """The surest effects of every code that has states, a panel each."""
    codes = sorted({row["code"] for row in rows})
    figure = figure_of(4.6 * min(len(codes), 4), 2.4 * -(-len(codes) // 4) + 0.4)
    axes = np.atleast_1d(figure.subplots(-(-len(codes) // 4), min(len(codes), 4))).ravel()
    colours = label_colours(range(len(names)))
    for axis in axes[len(codes) :]:
        axis.set_axis_off()
    for axis, c in zip(axes, codes, strict=False):
        mine = [row for row in rows if row["code"] == c][:most][::-1]
        place = np.arange(len(mine))
        d = np.array([row["d"] for row in mine])
        error = np.abs(np.array([[row["low"], row["high"]] for row in mine]) - d[:, None]).T
        axis.barh(place, d, color=colours[c], xerr=np.nan_to_num(error), error_kw={"ecolor": INK, "elinewidth": 0.8})
        axis.set_yticks(place, [shortened(row["what"], NAME) for row in mine], fontsize=7)
        axis.axvline(0, color=INK, linewidth=0.6)
        axis.set_title(shortened(names[c], TITLE), fontsize=9, parse_math=False)
        axis.tick_params(axis="x", labelsize=7)
    figure.supxlabel(
        "Cohen's d, inside the code against outside, in standard deviations (95 %, for all bars jointly)", fontsize=8
    )
    return figure
