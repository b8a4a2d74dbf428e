"""A process of several is killed: torchrun starts them anew (--max-restarts), they go on from the last saved state, and
what comes out is what two processes make that nothing stopped.  (Of simulators: tests/stages/test_training.py.)"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.artefacts import WEIGHTS, load_bytes, load_tensors, read_manifest, verify
from core.training import STATE, load_state

ROOT = Path(__file__).resolve().parents[2]
# Long enough to be met in the middle, as soon as there is a state.
TRAININGS = {
    "train.py": "--preset debug --threads 1 --total_steps 8192 --save_minutes 0",
    "train.py craftax": "--preset debug --threads 1 --total_steps 1280 --save_minutes 0",
}
TOLERANCE = 1e-3  # of weights, by the largest of their tensor: docs/scale.md's, of two processes against one


def torchrun(*words: object) -> subprocess.Popen[str]:
    """Two processes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*launch, *map(str, words)], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)


def kill(rank: int, launcher: subprocess.Popen[str]) -> None:
    """kill -9 of one of its processes."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    (victim,) = (p for p in children if f"RANK={rank}".encode() in Path(f"/proc/{p}/environ").read_bytes().split(b"\0"))
    os.kill(int(victim), signal.SIGKILL)


def lives(run: Path) -> list[tuple[str, ...]]:
    """What a curve says of the lives that ended: the same lives, the same digits."""
    rows = csv.DictReader(load_bytes(run, "curve.csv").decode().splitlines())
    return [(row["step"], row["return_mean"], row["length_mean"]) for row in rows]


@pytest.mark.parametrize(
    ("door", "rank"), [("train.py", 1), pytest.param("train.py craftax", 0, marks=pytest.mark.slow)]
)
def test_a_training_of_agents_goes_on_where_a_process_dies(door: str, rank: int, tmp_path: Path) -> None:
    if "craftax" in door:
        pytest.importorskip("craftax")
    words = [*door.split(), *TRAININGS[door].split(), "--out"]
    (tmp_path / "whole.json").write_text(json.dumps([[*words, str(tmp_path / "whole")]]))
    with torchrun("tests/under_torchrun.py", tmp_path / "whole.json") as undisturbed:
        said = undisturbed.communicate()[1]
    assert undisturbed.returncode == 0, said[-3000:]

    out = tmp_path / "killed"
    with torchrun("--max-restarts=1", *words, out) as process:
        while not (out / STATE).exists():
            assert process.poll() is None
            time.sleep(0.01)
        kill(rank, process)
        said = process.communicate()[1]
    assert process.returncode == 0, said[-3000:]
    assert read_manifest(out)["config"]["resume"] is True and verify(out) == []
    assert load_state(out / STATE)["step"] == load_state(tmp_path / "whole" / STATE)["step"]
    assert lives(out) == lives(tmp_path / "whole") and len(lives(out)) > 10
    before, after = (load_tensors(run, WEIGHTS) for run in (tmp_path / "whole", out))
    for name, weights in before.items():
        far = float((after[name] - weights).abs().max() / weights.abs().max().clamp_min(1e-12))
        assert far <= TOLERANCE, (name, far)
