"""A replay of agents on a map as one offline page: a top-down map, agents coloured by any value or label, a scrub bar.

T ticks, A agents, map of R rows and C columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from core.figures import SEQUENTIAL
from core.pages import UNLABELLED, colour_scale, document, label_colours, label_name, packed

NOWHERE = -1  # the row and column of an agent that is not alive
NOT_KNOWN = -32768  # the stored int16 of a value that is not a number
LEVELS = 65534  # steps between the smallest and the largest stored value, -32767 and 32767

# Tile materials of Neural MMO by number: name, colour.
MATERIALS: Mapping[int, tuple[str, str]] = {
    0: ("void", "#26282b"), 1: ("water", "#8dbbd9"), 2: ("grass", "#c5d8a8"), 3: ("scrub", "#d6d0a2"),
    4: ("foliage", "#98b77b"), 5: ("stone", "#b5b1a8"), 6: ("slag", "#918a83"), 7: ("ore", "#bd8f69"),
    8: ("stump", "#b39d7b"), 9: ("tree", "#749759"), 10: ("fragment", "#b8b2ca"), 11: ("crystal", "#c0a9de"),
    12: ("weeds", "#b3ba74"), 13: ("herb", "#e0b4c2"), 14: ("ocean", "#5f8fb4"), 15: ("fish", "#a5dad7"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Where agents were on a map, tick by tick, and what is known of them."""

    map_RC: np.ndarray  # uint8 [R, C], material numbers
    row_TA: np.ndarray  # int16 [T, A], map row; NOWHERE where the agent is not alive
    col_TA: np.ndarray  # int16 [T, A]
    agent_A: np.ndarray  # int [A], ids, each once
    tick_T: np.ndarray  # int [T], increasing
    values: Mapping[str, np.ndarray] = field(default_factory=dict)  # name -> float [T, A]; NaN: not known
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)  # name -> int [T, A], 0 up; NOISE, UNLABELLED
    label_names: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # where they are not clusters
    title: str = "Replay"
    under: str = ""  # a line under the title: what the reader should know of these data
    materials: Mapping[int, tuple[str, str]] = field(default_factory=lambda: MATERIALS)

    def __post_init__(self) -> None:
        shape = len(self.tick_T), len(self.agent_A)
        if not all(shape):
            raise ValueError(f"{shape[0]} ticks and {shape[1]} agents; a replay needs at least one of each")
        if self.map_RC.ndim != 2 or self.map_RC.dtype != np.uint8:
            raise ValueError(f"the map is {self.map_RC.dtype} {self.map_RC.shape}, not uint8 [rows, columns]")
        for name, array in {"rows": self.row_TA, "columns": self.col_TA, **self.values, **self.labels}.items():
            if array.shape != shape:
                raise ValueError(f"{name} {array.shape} are not [ticks, agents] {shape}")
        if len(set(self.agent_A.tolist())) < shape[1] or (np.diff(self.tick_T) <= 0).any():
            raise ValueError("agent ids must differ and ticks increase")
        alive = self.alive_TA
        inside = (self.col_TA >= 0) & (self.row_TA < self.map_RC.shape[0]) & (self.col_TA < self.map_RC.shape[1])
        if not inside[alive].all():
            raise ValueError(f"{(~inside[alive]).sum()} positions lie outside the map {self.map_RC.shape}")

    @property
    def alive_TA(self) -> np.ndarray:
        """bool [T, A]."""
        return self.row_TA >= 0


def quantised(value_TA: np.ndarray) -> tuple[np.ndarray, float, float]:
    """(int16 [T, A], low, step) with value = low + (stored + 32767) step; NOT_KNOWN where it is not finite.

    Whole numbers that span at most 65,534 are kept exactly (step 1); others to within half a step, which is 1/65,534 of
    their range.
    """
    value_TA = np.asarray(value_TA, np.float64)
    known = np.isfinite(value_TA)
    if not known.any():
        return np.full(value_TA.shape, NOT_KNOWN, np.int16), 0.0, 1.0
    low, high = float(value_TA[known].min()), float(value_TA[known].max())
    whole = high - low <= LEVELS and (value_TA[known] % 1 == 0).all()
    step = 1.0 if whole or high == low else (high - low) / LEVELS
    level_TA = np.rint((np.where(known, value_TA, low) - low) / step) - 32767
    return np.where(known, level_TA, NOT_KNOWN).astype(np.int16), low, step


def page(replay: Replay) -> str:
    """The page; about 2.7 bytes an agent, tick and column of data."""
    alive_TA = replay.alive_TA
    values: list[dict[str, Any]] = []
    for name, value_TA in replay.values.items():
        level_TA, low, step = quantised(np.where(alive_TA, value_TA, np.nan))
        high = low + step * (int(level_TA.max()) + 32767) if (level_TA != NOT_KNOWN).any() else low
        values.append({"name": name, "low": low, "high": high, "step": step, "data": packed(level_TA)})
    labels = []
    for name, label_TA in replay.labels.items():
        stored_TA = np.where(alive_TA, label_TA, UNLABELLED).astype(np.int16)
        colours = label_colours(stored_TA[alive_TA])
        ids = sorted(colours, key=lambda i: (i < 0, abs(i)))
        called = replay.label_names.get(name, {})
        classes = [{"id": i, "name": called.get(i, label_name(i)), "colour": colours[i]} for i in ids]
        labels.append({"name": name, "classes": classes, "data": packed(stored_TA)})
    there, count = np.unique(replay.map_RC, return_counts=True)
    materials = [
        {"id": int(m), "name": name, "colour": colour, "tiles": int(n)}
        for m, n in zip(there, count, strict=True)
        for name, colour in [replay.materials.get(int(m), (f"material {m}", "#ff00ff"))]
    ]
    data: dict[str, Any] = {
        "map": packed(replay.map_RC),
        "row": packed(np.where(alive_TA, replay.row_TA, NOWHERE).astype(np.int16)),
        "col": packed(np.where(alive_TA, replay.col_TA, NOWHERE).astype(np.int16)),
        "agents": [int(a) for a in replay.agent_A],
        "ticks": [int(t) for t in replay.tick_T],
        "values": values,
        "labels": labels,
        "materials": materials,
        "scale": colour_scale(SEQUENTIAL),
    }
    body = BODY.replace("TITLE", escape(replay.title)).replace("UNDER", escape(replay.under))
    return document(replay.title, body, data, Path(__file__).with_suffix(".js"), STYLE)


STYLE = """
#all { display: grid; grid-template-columns: minmax(20rem, 1fr) 19rem; gap: .4rem 1.2rem; align-items: start;
  max-width: 1300px; margin: 0 auto; }
header { grid-column: 1 / -1; }
#map { width: 100%; aspect-ratio: 1; max-height: 76vh; cursor: crosshair; touch-action: none; background: #26282b; }
#line { width: 100%; height: 74px; cursor: pointer; margin-top: .3rem; }
#controls { display: flex; flex-wrap: wrap; gap: .35rem .9rem; align-items: center; margin-top: .35rem; }
#scale canvas { width: 100%; height: 16px; }
#ends { display: flex; justify-content: space-between; }
#legend, #materials { columns: 2; column-gap: .8rem; margin: .3rem 0; padding: 0; list-style: none; }
#legend { max-height: 13rem; overflow-y: auto; }
#legend li, #materials li { break-inside: avoid; }
.count { color: var(--soft); }
#tip { position: fixed; pointer-events: none; background: #1d2329ee; color: #fff; padding: .25rem .5rem;
  border-radius: 5px; font-size: .82rem; display: none; white-space: pre; z-index: 2; }
@media (max-width: 52rem) { #all { grid-template-columns: 1fr; } }
"""

BODY = """
<div id="all">
<header><h1>TITLE</h1><p class="soft">UNDER</p></header>
<main>
<canvas id="map" role="img" aria-label="Map with the agents"></canvas>
<canvas id="line" role="img" aria-label="Agents alive, and the chosen agent, over time"></canvas>
<input id="scrub" type="range" min="0" value="0" step="1" aria-label="Tick">
<div id="controls">
<button id="play" aria-label="Play">▶</button>
<strong id="status"></strong>
<label>speed <select id="speed"><option value="2">2 ticks/s</option><option value="5">5 ticks/s</option>
<option value="10" selected>10 ticks/s</option><option value="30">30 ticks/s</option>
<option value="60">60 ticks/s</option></select></label>
<label>trail <select id="trail"><option value="0">none</option><option value="8">8 ticks</option>
<option value="16" selected>16 ticks</option><option value="64">64 ticks</option>
<option value="100000">whole life</option></select></label>
<label><input id="deaths" type="checkbox"> mark deaths</label>
<button id="whole">whole map</button>
</div>
<p class="soft">Space plays and stops; arrows step by a tick (with Shift by ten), Home and End go to the ends.
Wheel zooms, dragging moves; click an agent to see all its values.</p>
</main>
<aside>
<label>colour by <select id="colour" aria-label="Colour agents by"></select></label>
<div id="scale"><canvas aria-hidden="true"></canvas><div id="ends"><span id="low"></span><span id="high"></span></div>
<p class="soft" id="exact"></p></div>
<ul id="legend"></ul>
<h2 id="who">No agent chosen</h2>
<table id="facts"></table>
<h2>Map</h2>
<ul id="materials"></ul>
</aside>
</div>
<div id="tip"></div>
"""
