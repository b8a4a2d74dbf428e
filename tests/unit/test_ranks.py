"""Independent blocks shared by processes: the same results, errors and order as in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from core import config as cli, ranks
from core.contracts import UserError

ROOT = Path(__file__).resolve().parent.parent.parent


class Pair(NamedTuple):
    a: np.ndarray
    b: dict[tuple[str, int], float]


def block(i: int) -> Any:
    """A result of every kind."""
    x = torch.arange(i + 1, dtype=torch.float32) / 3
    return {
        "pair": Pair(np.full((i, 2), i / 7), {("of", i): 0.1 * i}), "x": x, "half": x.bfloat16(), "none": None,
        "empty": torch.zeros(0, 3), "strided": torch.arange(4.0)[None].T[:1], "scalar": np.float64(i),
        "last": [True, "word", b"\x00\n\xff", float("nan")],
    }  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (np.ndarray, np.generic)):
        return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and (a == b or (a != a and b != b))


def torchrun(*words: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([*launch, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def test_a_result_comes_back_from_its_bytes() -> None:
    for i in range(3):
        assert same(ranks._unpacked(ranks._packed(block(i))), block(i))
    with pytest.raises(TypeError, match="a object cannot be given"):
        ranks._packed(object())


def test_one_process_shares_nothing_out() -> None:
    started = []

    def do(i: int) -> int:
        started.append(i)
        return i

    found = ranks.each([1, 2, 3], do)
    assert next(found) == 1 and started == [1]  # a block at a time, as they are asked for
    assert list(found) == [2, 3] and not torch.distributed.is_initialized()


ENDS = """
import atexit, os, sys
from pathlib import Path
import torch
from core import ranks

def ends():  # after what ranks has to do at the end, which is registered later
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    os._exit(any("gloo" in name for name in threads))

atexit.register(ends)
processes = ranks.processes()
processes.wait()
import torch._dynamo  # as every optimiser does
processes.average([], torch.ones(1000))
"""


def test_no_thread_of_the_processes_outlives_what_they_do_together(tmp_path: Path) -> None:
    """One that did, and waited for the interpreter as that ended, aborted the process after all was done."""
    (tmp_path / "ends.py").write_text(ENDS)
    done = torchrun(str(tmp_path / "ends.py"))
    assert done.returncode == 0, done.stderr[-3000:]


def test_processes_get_the_same_results_in_order(tmp_path: Path) -> None:
    done = torchrun(__file__, str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        assert said == {
            "whole": True, "computed": [0, 2, 4] if rank == 0 else [1, 3], "error": "block 3 is broken",
            "before": [0, 1, 2], "one": [0],
        }  # fmt: skip
    assert done.stderr.count("note: 1 block of work for 2 processes: the others wait; lower --size") == 1


def test_a_stage_of_one_process_refuses_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from analysis.events import __main__ as door

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as end:
        cli.run(door.EventsConfig, door.main, door.STAGE, ["--out", str(tmp_path / "out")])
    assert end.value.code == 2 and not (tmp_path / "out").exists()
    assert capsys.readouterr().err == (
        "error: events is the work of one process: start it with python, not with torchrun\n"
    )


def test_a_mistake_that_all_find_is_said_once(tmp_path: Path) -> None:
    done = torchrun(__file__, str(tmp_path), "broken")
    assert done.returncode == 1
    ours = [line for line in done.stderr.splitlines() if line.startswith(("error", "terminated"))]  # torchrun has more
    assert ours == ["error: block 9 is broken"], done.stderr[-3000:]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_dies_ends_the_run_with_one_line(number: int, tmp_path: Path) -> None:
    done = torchrun(__file__, str(tmp_path), f"die {number}")
    assert done.returncode == 1
    ours = [line for line in done.stderr.splitlines() if line.startswith(("error", "terminated"))]  # torchrun has more
    assert len(ours) == 1 and "another process of this run died" in ours[0], done.stderr[-3000:]
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert number == 0 or not (tmp_path / "out").exists()  # what the writer began it cannot clear away once it is dead


def test_what_the_first_process_finds_alone_is_said_once(tmp_path: Path) -> None:
    """The second, which torchrun then ends in the middle of its own work, does not take it for killed."""
    done = torchrun(__file__, str(tmp_path), "first alone")
    assert done.returncode == 1
    ours = [line for line in done.stderr.splitlines() if line.startswith(("error", "terminated"))]
    assert ours == ["error: the first one's own mistake"], done.stderr[-3000:]


def main(folder: Path) -> None:
    """What every process of the tests above does."""
    computed: list[int] = []

    def do(i: int) -> Any:
        computed.append(i)
        return block(i)

    found = list(ranks.each(range(5), do))
    said: dict[str, Any] = {"whole": same(found, [block(i) for i in range(5)]), "computed": list(computed)}

    def broken(i: int) -> int:
        if i >= 3:
            raise UserError(f"block {i} is broken")
        return i

    before: list[int] = []
    try:
        for i in ranks.each(range(5), broken):
            before.append(i)
    except UserError as error:
        said["error"] = str(error)
    said |= {"before": before, "one": list(ranks.each([0], broken, "lower --size"))}
    (folder / f"{ranks.rank()}.json").write_text(json.dumps(said))


def stage(folder: Path, end: str) -> None:
    """A stage in which a process is killed ("die 0"), or a block is broken."""
    import signal
    from dataclasses import dataclass

    from core import artefacts

    @dataclass(frozen=True, kw_only=True)
    class Config:
        out: Path = folder / "out"

    def do(i: int) -> int:
        if i == 9 and end == "broken":
            raise UserError("block 9 is broken")
        if end == f"die {i - 8}":
            os.kill(os.getpid(), signal.SIGKILL)
        return i

    def body(config: Config) -> None:
        with artefacts.new_run(config.out, "ends", config):
            for _ in ranks.each(range(50), do):
                pass
            if end == "first alone" and ranks.first():
                raise UserError("the first one's own mistake")
            if end == "first alone":
                time.sleep(60)

    cli.run(Config, body, "ends", [], shared=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        stage(Path(sys.argv[1]), sys.argv[2])
    else:
        main(Path(sys.argv[1]))
