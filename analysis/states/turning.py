"""A page on which the states turn in the space of their first three principal components."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from analysis.states.figures import DOTS, TITLES, colourings, direction_name, label_of, number_of, space_of
from core.artefacts import Result
from core.figures import DIVERGING, minus
from core.pages import colour_scale, document, label_colours, packed

FILE = "turning.html"
SCRIPT = Path(__file__).with_name("turning.js")
SHADES = 64  # colours of a number
CLIPPED = 0.002  # of the states at either end of a component are drawn at its end
UNKNOWN = "#d5d2ca"


def page(result: Result) -> str:
    """The page, offline: it turns by itself, or is turned by dragging; what colours the states is chosen."""
    count = len(result.arrays["index"])
    rows = np.sort(np.random.default_rng(0).permutation(count)[:DOTS])
    c_NK = result.arrays["c_pca"][:, :3]
    axes = [direction_name(result, "pca", i) for i in range(c_NK.shape[1])]
    low, high = np.quantile(c_NK, (CLIPPED, 1 - CLIPPED), axis=0)
    xyz = np.zeros((len(rows), 3), np.float32)  # one scale for all three: directions' lengths stay comparable
    xyz[:, : len(axes)] = (np.clip(c_NK[rows], low, high) - (low + high) / 2) / max(float((high - low).max()) / 2, 1e-9)
    data = {
        "xyz": packed(xyz), "axes": axes, "space": space_of(result), "unknown": UNKNOWN,
        "by": [_coloured(result, rows, what) for what in colourings(result)],
    }  # fmt: skip
    some = f"{len(rows):,} of {count:,}" if len(rows) < count else f"{count:,}"
    title = f"{some} {space_of(result)} in their first {len(axes)} principal components (standard deviations)"
    body = (
        f"<h1>{escape(title)}</h1><p class='soft'>Drag to turn. What is far is drawn first, and paler.</p>"
        "<div id='all'><div><canvas id='space'></canvas></div><div id='side'><p><label>Coloured by <select id='by'>"
        "</select></label></p><p><button id='turn'>Stop</button></p><table id='legend'></table>"
        "<div id='scale' hidden><canvas id='bar'></canvas><p id='ends'></p></div></div></div>"
    )
    style = (
        "#all { display: flex; gap: 1rem; flex-wrap: wrap } #space { width: min(92vw, 40rem); height: min(92vw, 40rem);"
        " touch-action: none; cursor: grab } #side { width: 18rem } #bar { width: 16rem; height: 1rem }"
        " #ends { display: flex; justify-content: space-between; width: 16rem }"
    )
    return document(title, body, data, SCRIPT, style)


def _coloured(result: Result, rows: np.ndarray, what: str) -> dict[str, Any]:
    """One choice of colours: ``shade`` (-1: not known) numbers ``colours``; ``ends`` of a number, ``legend`` of
    labels."""
    out: dict[str, Any] = {"title": TITLES[what]}
    if what == "reward":
        reward = result.arrays["reward"]
        limit = max(float(np.abs(reward).max()), 1e-9)
        return out | _scaled(reward[rows], -limit, limit, DIVERGING)
    if (numbers := number_of(result, what)) is not None:
        number, low, high, cmap = numbers
        return out | _scaled(number[rows], low, high, cmap)
    label_N, names = label_of(result, what)
    of = label_colours(label_N)
    shade = np.searchsorted(list(of), label_N[rows])
    legend = [[list(of).index(i), name] for i, name in names.items() if i in of]
    return out | {"colours": list(of.values()), "shade": packed(shade.astype(np.int16)), "legend": legend}


def _scaled(number_M: np.ndarray, low: float, high: float, cmap: str) -> dict[str, Any]:
    known = np.isfinite(number_M)
    share = np.clip((np.where(known, number_M, low) - low) / (high - low), 0, 1)
    shade = np.where(known, np.rint(share * (SHADES - 1)), -1).astype(np.int16)
    ends = [minus(f"{end:.3g}") for end in (low, high)]
    return {"colours": colour_scale(cmap, SHADES), "shade": packed(shade), "ends": ends}
