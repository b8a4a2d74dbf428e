"""One worker for what is asked live: a queue that is bounded, progress, and an end whenever it is asked for."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from core.contracts import UserError

WAITING = 4  # jobs that may wait
KEPT = 16  # finished jobs whose results can still be fetched


class Cancelled(Exception):
    """The job was given up by who asked for it."""


@dataclass
class Job:
    """What was asked, how far it is, and what came of it."""

    id: int
    asked: Mapping[str, Any]
    state: str = "waiting"  # running, done, failed, cancelled
    done: int = 0
    total: int = 0
    result: Any = None
    error: str = ""
    stop: threading.Event = field(default_factory=threading.Event)

    def step(self, count: int = 1) -> None:
        """One more step is done; Cancelled where nobody wants the rest."""
        self.done += count
        if self.stop.is_set():
            raise Cancelled

    def told(self) -> dict[str, Any]:
        """As JSON."""
        out = {"id": self.id, "state": self.state, "done": self.done, "total": self.total}
        return out | ({"result": self.result} if self.state == "done" else {}) | (
            {"error": self.error} if self.error else {}
        )  # fmt: skip


class Full(Exception):
    """As many jobs wait as may."""


class Worker:
    """Does one job after the other, in a thread of its own, so that looking is never held up."""

    def __init__(self, do: Callable[[Mapping[str, Any], Job], Any]) -> None:
        """do: makes a job's result of what was asked; calls ``job.step`` at least every second."""
        self._do = do
        self._ids = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._waiting: queue.Queue[Job] = queue.Queue(WAITING)
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="panel-worker")
        self._thread.start()

    def close(self) -> None:
        """Give everything up, and wait until the step that is being made is over: what it uses may then be closed."""
        self._closed = True
        for job in list(self._jobs.values()):
            job.stop.set()
        with suppress(queue.Full):  # it wakes where it waits
            self._waiting.put_nowait(Job(0, {}))
        self._thread.join()

    def ask(self, asked: Mapping[str, Any]) -> Job:
        """A new job.  Full where too many wait."""
        with self._lock:
            job = Job(next(self._ids), asked)
            try:
                self._waiting.put_nowait(job)
            except queue.Full:
                raise Full from None
            self._jobs[job.id] = job
            over = [i for i, j in self._jobs.items() if j.state in ("done", "failed", "cancelled")]
            for i in over[: max(0, len(over) - KEPT)]:
                del self._jobs[i]
        return job

    def job(self, number: int) -> Job | None:
        return self._jobs.get(number)

    def cancel(self, number: int) -> Job | None:
        """Give a job up: at its next step, or before it begins."""
        job = self._jobs.get(number)
        if job is not None:
            job.stop.set()
            with self._lock:
                if job.state == "waiting":
                    job.state = "cancelled"
        return job

    def _work(self) -> None:
        while True:
            job = self._waiting.get()
            if self._closed:
                return
            with self._lock:
                if job.state != "waiting":
                    continue
                job.state = "running"
            try:
                result = self._do(job.asked, job)
                job.result = result
                job.state = "done"
            except Cancelled:
                job.state = "cancelled"
            except UserError as error:
                job.error, job.state = str(error), "failed"
            except Exception as error:  # the worker goes on; who asked is told
                job.error, job.state = f"{type(error).__name__}: {error}", "failed"
