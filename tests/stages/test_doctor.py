"""The doctor: a line a thing, and an exit code that can be believed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core import config as cli
from validation import doctor
from validation.doctor import BROKEN, NOTE, OK, STAGE, DoctorConfig, Finding, main

ROOT = Path(__file__).resolve().parents[2]


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str]]:
    """(exit code, lines) of the command."""
    try:
        cli.run(DoctorConfig, main, STAGE, ["--threads", "1", *argv])
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    return code, capsys.readouterr().out.splitlines()


def test_this_machine_is_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = said(capsys, "--runs", str(tmp_path / "runs"))
    assert code == 0 and lines[-1] == "ready", lines
    named = [line.split()[1] for line in lines[:-1]]
    for what in (
        "python",
        "packages",
        "gpu",
        "procgen",
        "nmmo",
        "cores",
        "threads",
        "memory",
        "disk",
        "bundle",
        "chain",
    ):
        assert named.count(what) == 1, what
    assert all(line.split()[0] in (OK, NOTE) for line in lines[:-1])
    assert all("; " in line for line in lines if line.startswith(NOTE)), "a note without advice"
    assert not list(tmp_path.iterdir())


def test_a_broken_bundle_and_a_place_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "bundles" / "coinrun-robust", tmp_path / "bundle")
    file = tmp_path / "bundle" / "simulator" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(doctor, "NEEDED", ("numpy", "no_such_package"))
    words = ("--bundle", str(tmp_path / "bundle"), "--runs", str(tmp_path / "file" / "runs"))
    code, lines = said(capsys, *words)
    broken = [line for line in lines if line.startswith(BROKEN)]
    assert code == 1 and lines[-1] == "3 of what is needed are broken", lines
    assert [line.split()[1] for line in broken] == ["imports", "disk", "bundle"]
    assert "no_such_package (ModuleNotFoundError" in broken[0] and "make venv" in broken[0]
    assert "file cannot be written (Not a directory); choose another --runs" in broken[1]
    assert str(file) in broken[2] and "git checkout" in broken[2]


def test_a_chain_that_fails_names_its_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = doctor.smoke(DoctorConfig(runs=tmp_path, bundle=tmp_path / "none", threads=1))
    assert found.state == BROKEN and "record fails: UserError" in found.said and "no such run directory" in found.said
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--device", "cuda")[0] == 2


def test_a_finding_is_one_line() -> None:
    assert str(Finding(OK, "disk", "there")) == "ok     disk         there"
    assert str(Finding(BROKEN, "disk", "full", "free some")) == "BROKEN disk         full; free some"


def test_a_system_library_that_procgen_lacks_is_named(tmp_path: Path) -> None:
    """Machines without a screen may have no libGL: that was cffi's traceback, and all was well by the doctor."""
    (tmp_path / "libGL.so.1").write_text("")  # found first, and no library
    for command in ("train.py --preset debug", "-m validation.doctor --no-smoke"):
        words = [sys.executable, *command.split(), *(["--out", str(tmp_path / "run")] if "train" in command else [])]
        done = subprocess.run(
            words, cwd=ROOT, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True
        )
        said = done.stderr + done.stdout
        assert "libGL.so.1" in said and "apt-get install libgl1" in said and "Traceback" not in said, said
        assert done.returncode != 0
