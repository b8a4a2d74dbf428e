"""tests/golden.py sees what differs between two run directories, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from core.artefacts import Result, new_run
from core.directions import Basis
from core.episodes import StoreWriter
from tests.conftest import made_up_life
from tests.golden import COMMANDS, contents, differences, ordered


def write(path: Path, *, value: float = 1.0, entry: float = 2.0, cell: object = 3.0, name: str = "a") -> Path:
    """A run directory with a scalar, an array, a table, a text that names the directory, a clock and a picture."""
    result = Result(arrays={name: np.array([entry, np.nan, 0.0])}, notes={"said": f"written to {path}/x"})
    result.tables["rows"] = [{"kind": "one", "x": cell}, {"kind": "two", "x": 0.5}]
    result.scalar("size", value, "steps", 4, (0, 2))
    with new_run(path, "made_up", {}) as run:
        result.save(run.path)
        run.facts = {"agent": "none"}
        run.record("wall_all", float(np.random.default_rng().random()), "s")
        (run.path / "picture.png").write_bytes(path.name.encode())
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write(tmp_path / "old")


def where(old: Path, new: Path, rtol: float = 0.0) -> list[str]:
    return [name for name, _ in differences(contents(old), contents(new), rtol)]


def test_the_same_is_the_same_whatever_clocks_and_directories_are(old: Path, tmp_path: Path) -> None:
    assert where(old, write(tmp_path / "elsewhere")) == []


def test_every_difference_is_found_where_it_is(old: Path, tmp_path: Path) -> None:
    assert where(old, write(tmp_path / "1", value=1.0 + 1e-12)) == ["result.json:scalars:size:value"]
    assert where(old, write(tmp_path / "2", entry=np.inf)) == ["arrays.npz:a"]
    assert where(old, write(tmp_path / "3", entry=np.nan)) == ["arrays.npz:a"]
    assert where(old, write(tmp_path / "4", cell=3.5)) == ["rows.csv:x"]
    assert where(old, write(tmp_path / "5", cell="")) == ["rows.csv:x"]
    assert where(old, write(tmp_path / "6", name="b")) == ["arrays.npz:a", "arrays.npz:b"]
    (write(tmp_path / "7") / "picture.png").unlink()
    assert where(old, tmp_path / "7") == ["picture.png"]


def test_a_tolerance_is_of_the_largest(old: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new", entry=2.002, cell=3.003)
    assert where(old, new, rtol=1e-2) == [] and where(old, new, rtol=1e-4) == ["arrays.npz:a", "rows.csv:x"]


def test_recordings_and_weights_are_compared(tmp_path: Path) -> None:
    for name, scale in (("old", 1.0), ("same", 1.0), ("new", 2.0)):
        (tmp_path / name).mkdir()
        Basis("pca", torch.zeros(2), torch.ones(2), torch.eye(2), torch.eye(2) * scale).save(tmp_path / name)
        with StoreWriter(tmp_path / name) as writer:
            writer.add(made_up_life(int(scale), 1, 0, 0, 20))
    assert where(tmp_path / "old", tmp_path / "same") == []
    found = {name.rpartition("/")[2] for name in where(tmp_path / "old", tmp_path / "new")}
    assert {"h", "position", "reward", "basis_pca.safetensors:lift_KH"} <= found


def test_commands_are_made_after_those_whose_runs_they_read() -> None:
    names = [c.name for c in ordered([c.name for c in COMMANDS])]
    assert sorted(names) == sorted({c.name for c in COMMANDS})
    assert all(names.index(read) < names.index(c.name) for c in COMMANDS for read in c.reads if read in names)
    assert [c.name for c in ordered(["life"])] == ["activations", "clusters", "life"]
