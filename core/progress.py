"""A progress bar with rate and time left; silent when standard error is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

X = TypeVar("X")


def track(items: Iterable[X], description: str, total: int | None = None, unit: str = "") -> Iterator[X]:
    """Iterate with a bar."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with bar(description, total=total, unit=unit) as b:
        for item in items:
            yield item
            b.advance()


class bar:
    """``with bar("training", total, "frames") as b: b.advance(n); b.note("loss 1.2")``."""

    def __init__(self, description: str, total: int | None = None, unit: str = "", show: bool = True) -> None:
        self._unit = unit
        self._progress: Any = None
        if not (show and sys.stderr.isatty()):
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.completed:,.0f} " + unit),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(description, total=total, rate="", note="")

    def __enter__(self) -> bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, amount: float = 1) -> None:
        if self._progress is not None:
            speed = self._progress.tasks[0].speed
            self._progress.update(self._task, advance=amount, rate=f"{speed:,.0f} {self._unit}/s" if speed else "")

    def note(self, text: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, note=text)
