"""Which thing of a Procgen state is which a step later: what an edit was made to is found again in other states.

A state does not number its things.  An entity is where its velocity has taken it, so its next self is the one of its
kind near there, each taken once: the assignment of least total cost (Kuhn 1955), where a cell of distance costs 1, and
to be gone or new half of ``REACH``.  Followed step by step: two that cross keep their velocities, and so their places.
Cells of the grid stay where they are, but for what falls and rolls in miner: there as many as can be are the same.

n things of one state, m of the next.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.procgen_edits import REACH, Edit
from envs.procgen_state import PLAYER, THINGS, State

ROLL = {"miner": ("boulder", "diamond")}  # cells that move
FAR = 1e6  # cells; the distance of what cannot be the same


class Things:
    """Things and where they are going: entities first, then cells."""

    def __init__(
        self, place: np.ndarray, velocity: np.ndarray, kind: np.ndarray, cells: int = 0, roll: bool = False
    ) -> None:
        """place: float64 [n, 2]; velocity: of the entities, [n - cells, 2]; kind: int64 [n - cells], which stays what
        it is; cells: how many of the n are cells; roll: these may move."""
        self.place, self.velocity, self.kind, self.cells, self.roll = place, velocity, kind, cells, roll

    @classmethod
    def called(cls, name: str, state: State) -> Things:
        """All of one name: the rows of ``State.places``."""
        place, index = state.places(name), state.of(name)
        velocity = _pairs(state.entities[index], "vx", "vy")
        kind = np.zeros(len(index), np.int64)
        return cls(place, velocity, kind, len(place) - len(index), name in ROLL.get(state.game, ()))

    @classmethod
    def entities(cls, state: State) -> Things:
        """All entities, in order; of several types that are one thing the type may change."""
        kinds = state.entities["type"].astype(np.int64)
        for thing in THINGS[state.game].values():
            if thing.entities:
                kinds[np.isin(kinds, thing.entities)] = thing.entities[0]
        return cls(_pairs(state.entities, "x", "y"), _pairs(state.entities, "vx", "vy"), kinds)

    def next(self, later: Things, back: bool = False) -> np.ndarray:
        """The rows of ``later``, a step on (``back``: a step before), that these are there, int64 [n]; -1: gone."""
        mine, theirs = len(self.kind), len(later.kind)
        there = self.place[:mine] + (-1 if back else 1) * self.velocity
        far = _distances(there, later.place[:theirs])
        far[self.kind[:, None] != later.kind] = FAR
        entities = _same(far, REACH / 2)
        here, then = self.place[mine:], later.place[theirs:]
        cells = _same(_distances(here, then), FAR) if self.roll else _standing(here, then)
        return np.concatenate([entities, np.where(cells < 0, -1, cells + theirs)])


class Tracks:
    """Things of one state in the states after it, step by step."""

    def __init__(self, things: Things) -> None:
        self.things = things  # of the present state
        self.rows = np.arange(len(things.place))  # that each of the first ones is now; -1: gone, and so it stays

    def step(self, later: Things, back: bool = False) -> None:
        """One step later (``back``: before)."""
        self.rows, self.things = np.append(self.things.next(later, back), -1)[self.rows], later


def _distances(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """[n, m]; FAR from REACH on."""
    far: np.ndarray = np.hypot(*(here[:, None] - there).transpose(2, 0, 1))
    far[far >= REACH] = FAR
    return far


def _same(far: np.ndarray, gone: float) -> np.ndarray:
    """Which is which, int64 [n]; -1: gone.  far: distances [n, m]; gone: what to be gone, or new, costs."""
    from scipy.optimize import linear_sum_assignment

    n, m = far.shape
    cost = np.full((n + m, n + m), 4 * FAR)
    cost[:n, :m] = np.where(far < FAR, far, 4 * FAR)
    np.fill_diagonal(cost[:n, m:], gone)
    np.fill_diagonal(cost[n:, :m], gone)
    cost[n:, m:] = 0
    _, column = linear_sum_assignment(cost)
    out: np.ndarray = np.where(column[:n] < m, column[:n], -1)
    return out


def _standing(here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Which of the cells ``there`` are at the places ``here``, int64 [n]; -1: none."""
    wide = 1 << 16
    one, other = (np.floor(x[:, 1]).astype(np.int64) * wide + np.floor(x[:, 0]).astype(np.int64) for x in (here, there))
    order = np.argsort(other, kind="stable")
    at = np.searchsorted(other[order], one).clip(0, max(len(other) - 1, 0))
    if not len(other):
        return np.full(len(one), -1)
    out: np.ndarray = np.where(other[order][at] == one, order[at], -1)
    return out


def _pairs(entities: np.ndarray, one: str, other: str) -> np.ndarray:
    return np.stack([entities[one], entities[other]], 1).astype(np.float64)


class Followed:
    """An edit whose place is fixed in one state (``Edit.fixed``), in the states after it."""

    def __init__(self, edit: Edit, state: State) -> None:
        self.edit: Edit | None = edit
        self.tracks = None
        if is_of_one(edit):
            self.tracks = Tracks(Things.called(edit.thing, state))
            self.row = row_at(self.tracks.things, edit.at)

    def to(self, state: State, back: bool = False) -> Edit | None:
        """The edit one step later (``back``: before): 'at X Y' goes where its thing has gone.  None: that is gone, and
        so it stays."""
        if self.tracks is None or self.edit is None:
            return self.edit
        self.tracks.step(Things.called(self.edit.thing, state), back)
        now = -1 if self.row < 0 else int(self.tracks.rows[self.row])
        self.edit = replace(self.edit, at=tuple(self.tracks.things.place[now].tolist())) if now >= 0 else None
        return self.edit


def is_of_one(edit: Edit) -> bool:
    """Whether an edit whose place is fixed is made to one thing, which may move."""
    return edit.verb in ("remove", "move") and edit.which == "at" and edit.thing != "agent"


def row_at(things: Things, at: tuple[float, float]) -> int:
    """Which of them is 'the one at X Y'; -1: none is."""
    if not len(things.place):
        return -1
    far = np.hypot(*(things.place - at).T)
    return int(far.argmin()) if far.min() < REACH else -1


class Beginning:
    """Where what an edit is made to was before: all of its kind are followed from an earlier state on."""

    def __init__(self, edit: Edit, state: State) -> None:
        self.edit = edit
        self.first = Things.called(edit.thing, state)
        self.tracks = Tracks(self.first)

    def to(self, state: State) -> None:
        """One step later."""
        self.tracks.step(Things.called(self.edit.thing, state))

    def found(self) -> Edit | None:
        """The edit in the first state, its place being that of the present one.  None: its thing was not there."""
        which = np.flatnonzero(self.tracks.rows == (row := row_at(self.tracks.things, self.edit.at)))
        if row < 0 or not len(which):
            return None
        x, y = self.first.place[which[0]].tolist()
        return replace(self.edit, at=(x, y))


class TakenBack:
    """An edit of ``before``, which made it into ``after``, taken back in the states that come after."""

    def __init__(self, before: State, after: State) -> None:
        self.before, self.after = before, after
        self.tracks = Tracks(Things.entities(after))

    def at_once(self, shown: State) -> State:
        """``shown``, a copy of ``after`` or of the state that was followed last, as the world would look, had it not
        been edited.  Changed in place.

        Removed things come back where they were, moved ones go back by as much, added ones go; cells only where the
        world has not changed them since.  A removed thing that moved by itself is shown where it was removed.
        """
        before, after, entities, rows = self.before, self.after, shown.entities, self.tracks.rows
        y, x = np.nonzero(before.cells != after.cells)
        same = shown.cells[y, x] == after.cells[y, x]
        shown.cells[y[same], x[same]] = before.cells[y[same], x[same]]
        if len(before.entities) > len(after.entities):
            kept = {row.tobytes() for row in after.entities}
            gone = [i for i, row in enumerate(before.entities) if row.tobytes() not in kept]
            shown.entities = np.append(before.entities[gone], entities)  # the agent stays the last of its type
        elif len(before.entities) < len(after.entities):
            added = rows[len(before.entities) :]
            shown.entities = np.delete(entities, added[added >= 0])
        else:
            agent = shown.agent
            for row, old, new in zip(rows, before.entities, after.entities, strict=True):
                if (old["x"], old["y"]) == (new["x"], new["y"]):
                    continue
                moved = agent if new["type"] == PLAYER else entities[row] if row >= 0 else None
                if moved is not None:
                    moved["x"] += old["x"] - new["x"]
                    moved["y"] += old["y"] - new["y"]
            agent["image_theme"] = before.agent["image_theme"]
        if "wall_theme" in shown.has:
            shown.own["wall_theme"] = before.own["wall_theme"]
        shown.motion["background_index"] = before.motion["background_index"]
        return shown

    def to(self, shown: State) -> State:
        """``at_once``, one step later."""
        self.tracks.step(Things.entities(shown))
        return self.at_once(shown)
