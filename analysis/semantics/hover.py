"""A page on which every point is a state: its frame under the pointer, coloured by code, found by level and step."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from pathlib import Path

import numpy as np

from analysis.semantics.states import States
from core.episodes import RolloutStore
from core.figures import as_rgb
from core.pages import document, label_colours, packed, sheet

SHEET = 20  # frames along a side of a sheet
FRAME = 256  # pixels of the longer side of the frame that is shown
MOST = 0.2  # of the points that one code may have
SCRIPT = Path(__file__).with_name("hover.js")


def chosen_rows(states: States, count: int, rng: np.random.Generator) -> np.ndarray:
    """Rows at random, int64 [M], of each code at most MOST of ``count``.  UserError where the recording has fewer
    states than asked."""
    states.drawn(count, "hover_states", rng)
    most = max(1, int(MOST * count))
    parts = [rng.permutation(np.flatnonzero(states.code_N == c))[:most] for c in range(states.codes)]
    return np.sort(rng.permutation(np.concatenate(parts))[:count])


def sheets_of(frames_NHWC: np.ndarray) -> list[str]:
    """Frames on sheets of SHEET x SHEET, as data URLs of lossless WebP pictures."""
    each = [frames_NHWC[i : i + SHEET**2] for i in range(0, len(frames_NHWC), SHEET**2)]
    pictures = (sheet(part, SHEET, lossless=True) for part in each)
    return ["data:image/webp;base64," + base64.b64encode(data).decode() for data in pictures]


def frames_of(store: RolloutStore, index_M2: np.ndarray, field: str) -> np.ndarray:
    """The frames of some steps, uint8 [M, height, width, 3]."""
    parts = [
        store.read_windows([f"obs/{field}"], index_M2[i : i + 256], 1)[f"obs/{field}"][:, 0]
        for i in range(0, len(index_M2), 256)
    ]
    return as_rgb(np.concatenate(parts))


def page(
    frames_MHWC: np.ndarray, states: States, rows_M: np.ndarray, maps: Mapping[str, np.ndarray],
    level_E: np.ndarray | None, names: Mapping[int, str], title: str,
) -> str:  # fmt: skip
    """The page of some rows, with their frames.  maps: {what it is: places of the rows, [M, 2]}; level_E: the level of
    every episode, where known."""
    index_M2 = states.index_N2[rows_M]
    level_M = index_M2[:, 0] if level_E is None else level_E[index_M2[:, 0]]
    data = {
        "maps": {name: packed(np.asarray(xy, np.float32)) for name, xy in maps.items()},
        "code": packed(states.code_N[rows_M].astype(np.int32)), "level": packed(level_M.astype(np.int32)),
        "step": packed(index_M2[:, 1].astype(np.int32)), "value": packed(states.value_N[rows_M].astype(np.float32)),
        "names": list(names.values()), "colours": list(label_colours(range(states.codes)).values()),
        "sheets": sheets_of(frames_MHWC), "sheet": SHEET, "frame": [frames_MHWC.shape[2], frames_MHWC.shape[1]],
        "levels": "level" if level_E is not None else "episode",
    }  # fmt: skip
    body = (
        f"<h1>{escape(title)}</h1><p class='soft'>{len(rows_M):,} states; no code has more than a fifth of those asked "
        "for. Point at a state to see its frame.</p><div id='all'><div><canvas id='map'></canvas></div><div id='side'>"
        "<canvas id='frame'></canvas><p id='about'></p><label>Map <select id='which'></select></label>"
        f"<p><label>{escape(str(data['levels']).capitalize())} <input id='level' size='9'></label> <label>Step <input "
        "id='step' size='5'></label></p><p id='found' class='soft'></p><table id='legend'></table></div></div>"
    )
    height, width = frames_MHWC.shape[1:3]
    wide, high = (round(FRAME * side / max(height, width)) for side in (width, height))
    style = (
        "#all { display: flex; gap: 1rem; flex-wrap: wrap } #map { width: min(70vw, 46rem); height: min(70vw, 46rem) }"
        f" #frame {{ width: {wide}px; height: {high}px }} #side {{ width: 17rem }}"
    )
    return document(title, body, data, SCRIPT, style)
