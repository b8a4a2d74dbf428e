"""Figures of a study of edits: every dot beside its own quantity, every name in the legend to be read."""

from __future__ import annotations

import pytest

from validation.edits.course import ALL_ELSE, SET_BACK
from validation.edits.figures import WAYS, effects

QUANTITIES = ("value@3", "return@3", "ica:0@3")


@pytest.mark.parametrize("edits", [1, 2, 5])
@pytest.mark.parametrize("foretold", [False, True])
def test_dots_lie_with_their_quantity_and_the_legend_in_the_picture(edits: int, foretold: bool) -> None:
    names = [f"remove thing {i}" for i in range(edits)]
    assert {SET_BACK, ALL_ELSE} <= set(WAYS)
    rows: list[dict[str, object]] = [
        {"edit": edit, "way": way, "quantity": q, "effect": 0.1, "low": 0.0, "high": 0.2, "spread": 1.0}
        | ({"foretold": 0.3} if foretold and way == "whole" else {})
        for edit in names for way in WAYS for q in QUANTITIES
    ]  # fmt: skip
    figure = effects(rows, names)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= figure.axes[0].get_window_extent().y1
    assert ("foretold (whole)" in [text.get_text() for text in legend.get_texts()]) is foretold
    at = [float(line.get_ydata()[0]) for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert len(at) == len(set(at)) == len(WAYS) * len(QUANTITIES)
    for k in range(len(WAYS)):  # drawn way by way; what was foretold of the next quantity stands at its line - .4
        mine = at[k * len(QUANTITIES) : (k + 1) * len(QUANTITIES)]
        assert all(abs(place - y) < 0.5 for y, place in enumerate(mine))
