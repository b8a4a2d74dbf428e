"""Benchmarks of the real game run to their end at the smallest size, and print tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agents import record, recording_state
from benchmarks import announced, misgeneralisation, procgen_truth, record_states
from core import config as cli
from core.stats import Estimate
from envs.procgen_truth import parse_truth

AGENT = cli.ROOT / "bundles" / "coinrun-robust" / "agent"


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cli.ROOT)


def tables(said: str) -> list[list[str]]:
    """The Markdown tables in a text, line by line."""
    found: list[list[str]] = [[]]
    for line in said.splitlines():
        if line.startswith("|"):
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def test_a_users_mistake_is_one_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.courses", "write", f"{tmp_path}/gone", f"{tmp_path}/x.npz"]
    done = subprocess.run(words, cwd=cli.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path}/gone: no such run directory\n")


def test_the_states_of_a_recording(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for owner, name in ((recording_state.Saves, "_save"), (recording_state.Saves, "after_step"),
                        (record, "write_episodes")):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))  # what the benchmark puts a clock around is put back
    record_states.main(["--num_steps", "4", "--slots", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["CPU", "wall"]
    assert sum(line.startswith("state of ") for line in lines) == 2  # of no step, and that it is over


def test_every_way_whose_cost_is_asked_is_one_that_truth_takes() -> None:
    assert procgen_truth.WAYS["none"] is None
    assert [parse_truth(words) for words in procgen_truth.WAYS.values() if words is not None] == [
        ("positions", 1), ("all", 4), ("all", 1),
    ]  # fmt: skip


def test_misgeneralisation_prints_tables_whose_rows_have_a_cell_for_every_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", "--agent", f"{AGENT}", "--levels", "4", "--steps", "2", "--threads", "1"])
    misgeneralisation.main()
    found = tables(capsys.readouterr().out)
    assert [len(table) - 2 for table in found] == [5, 5, 4]
    for head, rule, *rows in found:
        assert rule == f"|{'---|' * (head.count('|') - 1)}"
        assert {row.count("|") for row in rows} == {head.count("|")}
    assert found[2][2].endswith("|  |")  # the first world is not compared with itself


def test_the_picture_of_what_is_announced_leaves_out_what_nobody_did(tmp_path: Path) -> None:
    """Of few episodes none dies, a bin has no step, and a course of one episode has no interval."""
    found = [Estimate.unknown(), *[Estimate(0.2, 0.1, 0.4, 9)] * 5]
    announced.draw(found, {"death": [], "reward": [np.ones((16, 2))]}, "ica:1", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000
