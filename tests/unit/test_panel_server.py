"""Who may ask the served panel, what it gives, and the one worker behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.contracts import UserError
from validation.panel.live import asked_of
from validation.panel.server import HOST, Served, files_in, refusal
from validation.panel.work import WAITING, Full, Job, Worker

SERVED = Served({}, "a-token", 8123)


@pytest.mark.parametrize(
    ("host", "origin", "path", "status"),
    [
        ("127.0.0.1:8123", "", "/a-token/", 0),
        ("localhost:8123", "http://localhost:8123", "/a-token/live", 0),
        ("127.0.0.1:8123", "", "/", 404),
        ("127.0.0.1:8123", "", "/a-toke", 404),
        ("127.0.0.1:8123", "", "/ä/", 404),
        ("evil.example:8123", "", "/a-token/", 421),  # a name that was made to lead here
        ("127.0.0.1", "", "/a-token/", 421),
        ("", "", "/a-token/", 421),
        ("127.0.0.1:8123", "http://evil.example", "/a-token/live", 403),
        ("127.0.0.1:8123", "null", "/a-token/live", 403),
    ],
)
def test_only_who_has_the_address_may_ask(host: str, origin: str, path: str, status: int) -> None:
    assert refusal(host, origin, path, SERVED) == status


def test_only_files_that_were_written_are_served(tmp_path: Path) -> None:
    (tmp_path / "panel.html").write_text("page")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "maps_1.js").write_text("part")
    (tmp_path / "secret").write_text("no")
    (tmp_path / "data" / "link.js").symlink_to(tmp_path / "secret")
    assert set(files_in(tmp_path)) == {"", "panel.html", "data/maps_1.js"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "start must be"),
        ({"start": 3}, "start must be a number from 0 to 2"),
        ({"start": True}, "start must be int"),
        ({"start": "0"}, "start must be int"),
        ({"start": 0, "horizon": 65}, "horizon must be"),
        ({"start": 0, "change": "x" * 400}, "more than 300"),
        ({"start": 0, "actions": ["up"] * 65}, "at most 64"),
        ({"start": 0, "actions": [1]}, "at most 64 names"),
        ({"start": 0, "path": "/etc/passwd"}, "nothing called 'path'"),
        ({"start": 0, "change": "collapse 0", "edit": "remove coin"}, "one at a time"),
    ],
)
def test_a_question_is_checked(values: Mapping[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        asked_of(values, 3)


class Slow:
    """Work that goes on until it is let go or given up."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, asked: Mapping[str, Any], job: Job) -> Any:
        if asked.get("bad"):
            raise UserError("cannot")
        while not self.go.is_set():
            job.step()
            time.sleep(0.005)
        return asked["x"]


def ended(job: Job) -> str:
    while job.state in ("waiting", "running"):
        time.sleep(0.005)
    return job.state


def test_one_worker_a_bounded_queue_and_cancel() -> None:
    work = Slow()
    worker = Worker(work)
    first = worker.ask({"x": 0})
    while first.state == "waiting":
        time.sleep(0.005)
    rest = [worker.ask({"x": i + 1}) for i in range(WAITING)]
    with pytest.raises(Full):
        worker.ask({"x": 9})
    assert {job.state for job in rest} == {"waiting"}
    worker.cancel(rest[0].id)
    worker.cancel(first.id)
    assert ended(first) == "cancelled" and rest[0].state == "cancelled" and first.done > 0
    work.go.set()
    assert [ended(job) for job in rest[1:]] == ["done"] * (WAITING - 1) and rest[-1].result == WAITING
    assert rest[0].state == "cancelled"


def test_a_mistake_is_told_and_the_worker_goes_on() -> None:
    work = Slow()
    work.go.set()
    worker = Worker(work)
    bad, good = worker.ask({"bad": True}), worker.ask({"x": 5})
    assert ended(bad) == "failed" and bad.told()["error"] == "cannot"
    assert ended(good) == "done" and good.told()["result"] == 5
    assert worker.job(99) is None and HOST == "127.0.0.1"
