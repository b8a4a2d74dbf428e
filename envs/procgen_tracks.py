"""Which thing of a Procgen state is which a step later: what an edit was made to is found again in other states.

A state does not number its things.  Each is where its velocity has taken it, so a thing's next self is the one of its
kind that is nearest to there, each taken once (the assignment of least total distance; Kuhn 1955), and none that is
further away than ``REACH``.  Followed step by step: two that cross keep their velocities, and are not exchanged.

n things of one state, m of the next.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.procgen_edits import REACH, Edit
from envs.procgen_state import PLAYER, THINGS, State

FAR = 1e6  # cells; the distance of what cannot be the same


class Things:
    """Things and where they are going."""

    def __init__(self, place: np.ndarray, velocity: np.ndarray, kind: np.ndarray) -> None:
        """place, velocity: float64 [n, 2]; kind: int64 [n], which stays what it is."""
        self.place, self.velocity, self.kind = place, velocity, kind

    @classmethod
    def called(cls, name: str, state: State) -> Things:
        """All of one name: the rows of ``State.places``."""
        place, index = state.places(name), state.of(name)
        velocity = np.zeros_like(place)
        velocity[: len(index)] = _pairs(state.entities[index], "vx", "vy")
        return cls(place, velocity, np.zeros(len(place), np.int64))

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
        from scipy.optimize import linear_sum_assignment

        out = np.full(len(self.place), -1)
        # Most stand still, and a grid has thousands of cells: what is still there is found without distances.
        still = {(k, *p): j for j, (k, p) in enumerate(zip(later.kind.tolist(), later.place.tolist(), strict=True))}
        taken = np.zeros(len(later.place), bool)
        resting = np.flatnonzero(~self.velocity.any(1))
        for i in resting:
            j = still.get((int(self.kind[i]), *self.place[i].tolist()), -1)
            if j >= 0 and not taken[j]:
                out[i], taken[j] = j, True
        mine, theirs = np.flatnonzero(out < 0), np.flatnonzero(~taken)
        if not (len(mine) and len(theirs)):
            return out
        there = self.place[mine] + (-1 if back else 1) * self.velocity[mine]
        far = np.hypot(*(there[:, None] - later.place[theirs]).transpose(2, 0, 1))
        far[(far >= REACH) | (self.kind[mine, None] != later.kind[theirs])] = FAR
        rows, columns = linear_sum_assignment(far)
        near = far[rows, columns] < FAR
        out[mine[rows[near]]] = theirs[columns[near]]
        return out


def _pairs(entities: np.ndarray, one: str, other: str) -> np.ndarray:
    return np.stack([entities[one], entities[other]], 1).astype(np.float64)


class Followed:
    """An edit whose place is fixed in one state (``Edit.fixed``), in the states after it."""

    def __init__(self, edit: Edit, state: State) -> None:
        self.edit: Edit | None = edit
        self.things, self.row = None, -1
        if is_of_one(edit):
            self.things = Things.called(edit.thing, state)
            self.row = row_at(self.things, edit.at)

    def to(self, state: State, back: bool = False) -> Edit | None:
        """The edit one step later (``back``: before): 'at X Y' goes where its thing has gone.  None: that is gone, and
        so it stays."""
        if self.things is None or self.edit is None:
            return self.edit
        later = Things.called(self.edit.thing, state)
        self.row = -1 if self.row < 0 else int(self.things.next(later, back)[self.row])
        self.things = later
        x, y = later.place[self.row].tolist() if self.row >= 0 else (0.0, 0.0)
        self.edit = replace(self.edit, at=(x, y)) if self.row >= 0 else None
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
        self.first = self.things = Things.called(edit.thing, state)
        self.rows = np.arange(len(self.first.place))  # that each of the first ones is now; -1: gone

    def to(self, state: State) -> None:
        """One step later."""
        later = Things.called(self.edit.thing, state)
        after = np.append(self.things.next(later), -1)  # what is gone stays gone
        self.rows, self.things = after[self.rows], later

    def found(self) -> Edit | None:
        """The edit in the first state, its place being that of the present one.  None: its thing was not there."""
        which = np.flatnonzero(self.rows == (row := row_at(self.things, self.edit.at)))
        if row < 0 or not len(which):
            return None
        x, y = self.first.place[which[0]].tolist()
        return replace(self.edit, at=(x, y))


class TakenBack:
    """An edit of ``before``, which made it into ``after``, taken back in the states that come after."""

    def __init__(self, before: State, after: State) -> None:
        self.before, self.after = before, after
        self.things = Things.entities(after)
        self.rows = np.arange(len(after.entities))  # that the edited state's entities are now; -1: gone

    def at_once(self, shown: State) -> State:
        """``shown``, a copy of ``after`` or of the state that was followed last, as the world would look, had it not
        been edited.  Changed in place.

        Removed things come back where they were, moved ones go back by as much, added ones go; cells only where the
        world has not changed them since.  A removed thing that moved by itself is shown where it was removed.
        """
        before, after, entities = self.before, self.after, shown.entities
        y, x = np.nonzero(before.cells != after.cells)
        same = shown.cells[y, x] == after.cells[y, x]
        shown.cells[y[same], x[same]] = before.cells[y[same], x[same]]
        if len(before.entities) > len(after.entities):
            kept = {row.tobytes() for row in after.entities}
            gone = [i for i, row in enumerate(before.entities) if row.tobytes() not in kept]
            shown.entities = np.append(before.entities[gone], entities)  # the agent stays the last of its type
        elif len(before.entities) < len(after.entities):
            added = self.rows[len(before.entities) :]
            shown.entities = np.delete(entities, added[added >= 0])
        else:
            agent = shown.agent
            for row, old, new in zip(self.rows, before.entities, after.entities, strict=True):
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
        later = Things.entities(shown)
        after = np.append(self.things.next(later), -1)
        self.rows, self.things = after[self.rows], later
        return self.at_once(shown)
