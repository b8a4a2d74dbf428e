"""Who may ask the served panel, what it gives, and the one worker behind it."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from core.contracts import UserError
from validation.panel.live import _rounded, asked_of
from validation.panel.server import HOST, Loader, Served, files_in, listening, refusal, server_of
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


def test_the_server_leaves_the_logging_of_others_alone() -> None:
    class Foreign(logging.Handler):
        closed = False

        def close(self) -> None:
            self.closed = True
            super().close()

    foreign = Foreign()
    server_of(SERVED)
    assert not foreign.closed
    foreign.close()


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


def test_a_question_of_a_short_run_is_of_its_last_step() -> None:
    """It was refused for a target step that nobody had named."""
    assert asked_of({"start": 0, "horizon": 2}, 3).target == 2
    assert asked_of({"start": 0, "horizon": 9}, 3).target == 4
    for values in ({"start": 0, "horizon": 2, "target": 4}, {"start": 0, "horizon": 0}, {"start": 0, "horizon": -1}):
        with pytest.raises(UserError, match="horizon must be from 1"):
            asked_of(values, 3)


@pytest.fixture
def address() -> Iterator[tuple[Served, str]]:
    """A server that has nothing yet, and its address."""
    with listening(0) as sock:
        served = Served({}, "token", sock.getsockname()[1])
        server = server_of(served)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        yield served, f"http://{HOST}:{served.port}/token/"
        server.should_exit = True
        thread.join(10)


def got(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_address_answers_before_the_page_is_written(address: tuple[Served, str], tmp_path: Path) -> None:
    served, url = address
    write, play = threading.Event(), threading.Event()

    def write_panel(path: Path, ended: Callable[[], bool]) -> int:
        write.wait()
        (path / "data").mkdir()
        return (path / "panel.html").write_text("the page")

    def make_live() -> Any:
        play.wait()
        raise UserError("nothing can be played")

    ended = threading.Event()
    loader = Loader(served, tmp_path, write_panel, make_live, ended.set)
    loader.start()
    status, page = got(url)
    assert status == 200 and "the page is being written" in page and 'http-equiv="refresh"' in page
    status, told = got(f"{url}live")
    assert status == 503 and json.loads(told) == {"error": "the page is being written", "loading": True}
    write.set()
    while not served.files:
        time.sleep(0.005)
    assert got(url) == (200, "the page")  # it can be looked at while starts are played
    assert got(f"{url}live")[0] == 503
    play.set()
    loader.join()
    assert ended.is_set() and str(loader.failed) == "nothing can be played"


@pytest.mark.parametrize("body", ["[" * 16_000, '{"start": 0, "quantity": "\\ud800"}', "{"])
def test_what_is_no_json_that_can_be_said_back_is_refused(address: tuple[Served, str], body: str) -> None:
    served, url = address
    served.live, served.worker = object(), object()  # type: ignore[assignment]
    asked = urllib.request.Request(f"{url}live", body.encode(), {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as error, urllib.request.urlopen(asked, timeout=10):
        pass
    assert error.value.code == 400 and json.load(error.value) == {"error": "not JSON"}


def test_numbers_that_json_has_not_are_null() -> None:
    told = _rounded(torch.tensor([[1.0, math.nan], [math.inf, 0.123456789]]))
    assert json.loads(json.dumps(told, allow_nan=False)) == [[1.0, None], [None, 0.12346]]


def test_a_panel_that_is_ended_writes_no_more(tmp_path: Path) -> None:
    parts: list[int] = []

    def write_panel(path: Path, ended: Callable[[], bool]) -> int:
        while not ended():
            parts.append(1)
            time.sleep(0.005)
        return 0

    loader = Loader(Served({}, "token", 1), tmp_path, write_panel, lambda: pytest.fail("not after the end"), print)
    loader.start()
    loader.stop()
    assert not loader.is_alive() and loader.failed is None and not loader.served.files


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


def test_a_worker_that_is_closed_is_over_with_what_it_did() -> None:
    doing, closed = threading.Event(), threading.Event()

    def work(_: Mapping[str, Any], job: Job) -> None:
        doing.set()
        while True:
            time.sleep(0.01)
            assert not closed.is_set(), "what it uses was closed under it"
            job.step()

    worker = Worker(work)
    job, waits = worker.ask({}), worker.ask({})
    doing.wait()
    worker.close()
    closed.set()
    assert job.state == "cancelled" and waits.state == "waiting"
