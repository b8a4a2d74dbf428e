"""What the tests of faults share: stages in processes that can be killed before any of their file operations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

MOST = int(os.environ.get("FAULTS", "50"))  # faults in each of the slow tests


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (-9: killed), what it said, how many file operations it did."""

    code: int
    said: str
    operations: int


Runner = Callable[..., Ended]


@pytest.fixture(scope="session")
def stage() -> Iterator[Runner]:
    """``stage(module, argv, place, kill_at=0, largest=0)``, as tests/faults/server.py says."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("server.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert server.stdin is not None and server.stdout is not None
    asks, answers = server.stdin, server.stdout

    def run(module: str, argv: list[str], place: Path, kill_at: int = 0, largest: int = 0) -> Ended:
        asked = {"module": module, "argv": argv, "place": str(place), "kill_at": kill_at, "largest": largest}
        asks.write(json.dumps(asked) + "\n")
        asks.flush()
        return Ended(**json.loads(answers.readline()))

    yield run
    server.communicate()


def one_line(ended: Ended) -> str:
    """The message of a run that a user's mistake, or the machine, ended: one line, no traceback."""
    assert ended.code == 2 and "Traceback" not in ended.said, ended.said
    lines = [line for line in ended.said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, ended.said
    return lines[0]
