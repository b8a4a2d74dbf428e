"""Episodes of several processes in the very shards that one process would write, each written by one of them.

The processes tell each other how long the episodes are that ended, which says in which shard each comes; it goes to
the process that owns that shard, every ``count``-th from its rank on.  Shards are compressed side by side, once each
process has one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from core.episodes import Episode, StoreWriter, packed, unpacked
from core.ranks import Processes

ROUND = 64  # steps after which processes hand over what has ended


class Ended(NamedTuple):
    """What all processes know of an episode."""

    steps: int
    total: float  # reward
    altered: int  # steps at which an intervention changed h
    cut: bool

    @classmethod
    def of(cls, episode: Episode) -> Ended:
        meta = episode.meta
        return cls(episode.steps, float(episode.reward.sum()), len(meta.get("altered", ())), bool(meta.get("cut")))


def rounds(steps: Iterable[list[Episode]], processes: Processes) -> Iterator[list[list[Episode]]]:
    """What ends at each of ROUND steps in a process's slots, until all processes are through with theirs."""
    own, going = iter(steps), True
    while going:
        some = list(itertools.islice(own, ROUND))
        going = processes.largest(len(some) == ROUND, "cpu") > 0
        yield some


class SharedWriter:
    """Writes the processes' episodes in the order of their steps, then of the processes (each has the slots after those
    of the one before it); what was cut comes last.  Use as a context manager, in all processes."""

    def __init__(self, path: Path, processes: Processes, **store: Any) -> None:
        """path: the run directory that is being written, which is the first process's; store: as of a StoreWriter."""
        self.processes = processes
        self.writer = StoreWriter(processes.folder(path), **store)
        self.shards = 0  # below this number all are written
        self._full = self._filled = 0  # shards that are full; steps in the one that is not
        self._mine: dict[int, list[Episode]] = {}  # by shard

    @property
    def waiting(self) -> int:
        """Steps of the episodes that wait here for their shards to be written."""
        return sum(e.steps for episodes in self._mine.values() for e in episodes)

    def __enter__(self) -> SharedWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._write(self._full + 1)
            self.processes.wait()  # the first one reads what is there

    def add(self, steps: Sequence[Sequence[Episode]]) -> list[Ended]:
        """What ended here, by step; what ended in all processes comes back, in order."""
        own = [(t, Ended.of(e), e) for t, ended in enumerate(steps) for e in ended]
        told = self.processes.listed([(t, *about) for t, about, _ in own])
        found = [(t, Ended(*about), rank, i) for rank, some in enumerate(told) for i, (t, *about) in enumerate(some)]
        found.sort(key=lambda x: (x[0], x[1].cut, *x[2:]))
        to: list[list[Any]] = [[] for _ in range(self.processes.count)]  # of this process's, for each
        for place, (_, about, rank, i) in enumerate(found):
            if rank == self.processes.rank:
                to[self._full % self.processes.count].append((place, self._full, vars(own[i][2])))
            self._filled += about.steps
            if self._filled >= self.writer.shard_steps:
                self._full, self._filled = self._full + 1, 0
        for rank, given in enumerate(to):
            got = itertools.chain.from_iterable(self.processes.gathered(given, rank))
            for _, shard, columns in sorted(got, key=lambda x: x[0]):
                self._mine.setdefault(shard, []).append(Episode(**columns))
        self._write(self._full // self.processes.count * self.processes.count)
        return [about for _, about, *_ in found]

    def _write(self, before: int) -> None:
        """This process's shards of lower numbers."""
        for shard in sorted(s for s in self._mine if s < before):
            self.writer.write(shard, self._mine.pop(shard))
        self.shards = before

    def state(self) -> dict[str, Any]:
        """What this process goes on from, as tensors, numbers and text."""
        waiting = {shard: packed(episodes) for shard, episodes in self._mine.items()}
        return {"shards": self.shards, "full": self._full, "filled": self._filled, "waiting": waiting}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on after what ``state`` gave."""
        self.shards, self._full, self._filled = state["shards"], state["full"], state["filled"]
        self._mine = {shard: list(unpacked(episodes)) for shard, episodes in state["waiting"].items()}
