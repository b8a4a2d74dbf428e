"""The objects in the picture of a Procgen state: where their pixels are, and the same state without one of them.

A box is (left, top, right, bottom) in whole pixels, right and bottom left out.  Lengths of the world are in cells.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from envs.procgen_edits import Edit
from envs.procgen_state import State, snapshot_of, state_of
from envs.procgen_truth import kinds_of, shown


class Item(NamedTuple):
    """One object: an entity or a cell, or all of one kind that share a place and are seen as one."""

    kind: str
    x: float  # its centre
    y: float
    rx: float  # half of its size, as it is drawn
    ry: float
    number: int  # entities or cells in that place


def items_of(state: State) -> list[Item]:
    """The objects whose centres are in the picture of this state."""
    found: list[Item] = []
    for kind in kinds_of(state.game):
        entities = state.entities[state.of(kind)]
        entities = entities[entities["use_abs_coords"] == 0]  # others stand on the screen, not in the world
        # A rotated picture covers less than its diagonal in either direction.
        turn = np.abs(entities["rotation"].astype(np.float64))
        rx, ry = entities["rx"].astype(np.float64), entities["ry"].astype(np.float64)
        wide = rx * np.abs(np.cos(turn)) + ry * np.abs(np.sin(turn))
        high = rx * np.abs(np.sin(turn)) + ry * np.abs(np.cos(turn))
        rows = [(float(e["x"]), float(e["y"]), w, h) for e, w, h in zip(entities, wide, high, strict=True)]
        rows += [(x + 0.5, y + 0.5, 0.5, 0.5) for x, y in state.cells_of(kind).tolist()]
        places: dict[tuple[float, float], list[tuple[float, float]]] = {}
        for (x, y, w, h), here in zip(rows, shown(state, np.array(rows).reshape(-1, 4)[:, :2]), strict=True):
            if here:
                places.setdefault((x, y), []).append((w, h))
        for (x, y), sizes in places.items():
            w, h = (float(max(size)) for size in zip(*sizes, strict=True))
            found.append(Item(kind, x, y, w, h, len(sizes)))
    return found


def box_of(state: State, item: Item, side: int) -> tuple[int, int, int, int]:
    """The pixels of an object in the picture that was last drawn, ``side`` pixels wide: those whose middles lie in its
    rectangle, and at least one each way."""
    view = float(state.view["view_dim"])
    unit = side / view
    x = unit * (item.x - float(state.motion["center_x"]) + view / 2)
    y = unit * (view / 2 + float(state.motion["center_y"]) - item.y)
    (x0, x1), (y0, y1) = (_covered(at, unit * half, side) for at, half in ((x, item.rx), (y, item.ry)))
    return x0, y0, x1, y1


def _covered(at: float, half: float, side: int) -> tuple[int, int]:
    """The pixels, first and one after the last, whose middles are at most ``half`` from ``at``."""
    first, last = (min(max(math.floor(at + way * half + 0.5), 0), side) for way in (-1, 1))
    if first == last:
        first = min(max(math.floor(at), 0), side - 1)
        last = first + 1
    return first, last


def without(snapshot: bytes, item: Item) -> bytes:
    """The same state without the object."""
    state = state_of(snapshot)
    for _ in range(item.number):
        Edit("remove", item.kind, "at", (item.x, item.y)).apply(state)
    return snapshot_of(state, snapshot)
