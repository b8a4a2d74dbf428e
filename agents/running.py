"""The rows so far of the episodes that run in the slots of a world."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

Columns = dict[str, np.ndarray]
WHOLE = 16  # steps that are held as they came, with the rows of all slots


class Running:
    """Rows by slot.

    The last steps, WHOLE at most, are held as they came: to copy each row of each slot by itself is a seventh of a
    recording's time.  Then each slot's own are taken out, so that rows of episodes that are over, or of slots that
    record no longer, are not kept with those of a long one.
    """

    def __init__(self, slots: int) -> None:
        self._steps: list[Columns] = []
        self._mine: list[list[int]] = [[] for _ in range(slots)]  # which of these steps are of a slot's episode
        self._before: list[list[Columns]] = [[] for _ in range(slots)]  # and its rows of earlier ones

    @property
    def lengths(self) -> list[int]:
        """Rows of each slot."""
        return [
            sum(len(part["reward"]) for part in before) + len(mine)
            for before, mine in zip(self._before, self._mine, strict=True)
        ]

    def add(self, shown: Mapping[str, np.ndarray], slots: Iterable[int]) -> None:
        """A step, a row a slot in every column; it counts for these slots.  Copies."""
        if len(self._steps) == WHOLE:
            self._take_out()
        for b in slots:
            self._mine[b].append(len(self._steps))
        self._steps.append({name: np.array(rows) for name, rows in shown.items()})

    def _take_out(self) -> None:
        if self._steps:
            whole = {name: np.stack([step[name] for step in self._steps]) for name in self._steps[0]}
            for b, mine in enumerate(self._mine):
                if mine:
                    self._before[b].append({name: rows[mine, b] for name, rows in whole.items()})
        self._steps, self._mine = [], [[] for _ in self._mine]

    def column(self, b: int, name: str, last: Sequence[np.ndarray] = ()) -> np.ndarray:
        """A slot's rows of a column, and these after them."""
        recent = [*(self._steps[i][name][b] for i in self._mine[b]), *last]
        parts = [part[name] for part in self._before[b]] + ([np.stack(recent)] if recent else [])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def take(self, b: int, final: Mapping[str, np.ndarray] | None = None) -> Columns:
        """A slot's episode, which is over.  final: a row a slot of what was seen last, if it was."""
        names = (self._before[b][0] if self._before[b] else self._steps[self._mine[b][0]]).keys()
        last = {} if final is None else {name: [rows[b]] for name, rows in final.items()}
        columns = {name: self.column(b, name, last.get(name, ())) for name in names}
        self._before[b], self._mine[b] = [], []
        return columns

    def all(self) -> Columns:
        """The rows of all slots, one slot's after the other's."""
        self._take_out()
        parts = [part for before in self._before for part in before]
        return {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}

    def restore(self, rows: Mapping[str, np.ndarray], lengths: Sequence[int]) -> None:
        """What ``all`` and ``lengths`` gave."""
        for b, (end, length) in enumerate(zip(np.cumsum(lengths), lengths, strict=True)):
            if length:
                self._before[b] = [{name: np.array(column[end - length : end]) for name, column in rows.items()}]
