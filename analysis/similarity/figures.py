"""Figures of analysis.similarity, drawn from its result."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.similarity.comparison import LAYERS, SHUFFLED
from core.artefacts import Result
from core.figures import SEQUENTIAL, figure_of


def draw(result: Result) -> Any:
    """A matplotlib Figure: CKA of every pair, and of each agent with its shuffled self, a panel a layer."""
    names = result.notes["agents"]
    figure = figure_of(2 * (0.5 * len(names) + 3.6), 0.5 * len(names) + 2.8)
    layers = [layer for layer in LAYERS if f"cka_{layer}" in result.arrays]
    for axis, layer in zip(np.atleast_1d(figure.subplots(1, len(layers))), layers, strict=True):
        shown = np.concatenate([result.arrays[f"cka_{layer}"], result.arrays[f"control_{layer}"][:, None]], 1)
        image = axis.imshow(shown, cmap=SEQUENTIAL, vmin=0, vmax=1)
        for (i, j), v in np.ndenumerate(shown):
            axis.text(
                j,
                i,
                "" if np.isnan(v) else f"{v:.2f}",
                ha="center",
                va="center",
                fontsize=7,
                color="w" if v < 0.6 else "k",
            )
        axis.axvline(len(names) - 0.5, color="w", linewidth=3)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_xticks(range(len(names) + 1), [*names, "itself" + SHUFFLED], fontsize=8, rotation=40, ha="right")
        axis.set_title("hidden state" if layer == "h" else layer, fontsize=10)
    figure.colorbar(image, ax=figure.axes, label="linear CKA", shrink=0.8)
    return figure
