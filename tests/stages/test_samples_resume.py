"""Simulated rollouts that were cut off anywhere, and the same command again: those that nothing stopped, to the last
byte, and nothing that was finished is simulated again.

An exception cuts them off here, and kills of one of two processes; tests/faults/test_kills.py kills at any moment.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import artefacts, config as cli
from core.artefacts import Result, read_manifest
from core.contracts import UserError
from core.episodes import StoreWriter
from generative import record_samples
from generative.finished import FOLDER, Finished
from generative.simulator import load_simulator, save_simulator
from tests.cut_off import Cut, cut_before, outcome, require_alike, without_hashes

ROOT = Path(__file__).resolve().parent.parent.parent
SHARDS = 4
SMALL = "--samples 10 --steps 5 --batch 3 --shard_steps 18 --threads 1"
KINDS = {
    "plain": "--simulator {p}/simulator --rollouts {p}/rollouts --stochastic",
    "filmed": "--simulator {p}/simulator --film",
    "one film of all": "--simulator {p}/simulator --actions all --steps 3 --batch 4 --shard_steps 16",
    "ensemble": "--simulator {p}/simulator {w}/other --rollouts {p}/rollouts --shard_steps 36",
    "altered": "--simulator {p}/simulator --basis {w}/basis --basis_kind neurons --shift neurons:1=2 --at_steps 1 3",
}


@pytest.fixture(scope="module")
def world(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """other/, a second simulator of the pipeline's agent; basis/, the neurons of that."""
    import torch

    from core.directions import Basis, fingerprint

    root = tmp_path_factory.mktemp("world")
    simulator = load_simulator(pipeline / "simulator")
    with torch.no_grad():
        for weights in simulator.world.parameters():
            weights.mul_(1.1)
    with artefacts.new_run(root / "other", "train_gen_model", {}, {"agent": pipeline / "agent"}) as run:
        save_simulator(simulator, run.path)
    size = simulator.agent.initial(1).shape[-1]
    eye = torch.eye(size)
    with artefacts.new_run(root / "basis", "hidden_states", {}) as run:
        name = fingerprint(simulator.agent)
        Basis("neurons", torch.zeros(size), torch.ones(size), eye, eye, agent=name).save(run.path)
    return root


Words = Callable[[str], list[str]]


@pytest.fixture
def words(pipeline: Path, world: Path) -> Words:
    """The flags of a kind."""
    return lambda kind: f"{SMALL} {KINDS[kind]}".replace("{p}", str(pipeline)).replace("{w}", str(world)).split()


def simulated(argv: list[str], out: Path, *more: str) -> Path:
    config = cli.parse(record_samples.RecordSamplesConfig, [*argv, "--out", str(out), *more], record_samples.STAGE)
    record_samples.main(config)
    return out


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture
def whole(words: Words, wholes: Path) -> Callable[[str], Path]:
    """Samples that nothing stopped."""

    def of(kind: str) -> Path:
        return wholes / kind if (wholes / kind).exists() else simulated(words(kind), wholes / kind)

    return of


def cut_off(argv: list[str], out: Path, owner: Any, name: str, call: int) -> Path:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        cut_before(patch, owner, name, call)
        simulated(argv, out)
    return out


def records(out: Path) -> list[str]:
    """The shards that are finished, each once its record is there."""
    return sorted(f"shard_{p.stem[-5:]}.h5" for p in (out / FOLDER).glob(".shard_*.json"))


def goes_on(argv: list[str], out: Path, *more: str) -> set[str]:
    """The command again; the shards that were written by it."""
    written = set()
    real = StoreWriter.write

    def watched(self: StoreWriter, *args: Any) -> str:
        written.add(name := real(self, *args))
        return name

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreWriter, "write", watched)
        simulated(argv, out, *more)
    return written


# Where it is cut off, and how many shards are finished then.
PLACES: dict[str, tuple[Any, str, int, int]] = {
    "in the first shard": (record_samples, "simulated", 1, 0),
    "before a shard": (StoreWriter, "write", 3, 2),
    "between a shard and its record": (Finished, "keep", 2, 1),
    "within a record": (artefacts, "write_json", 4, 2),  # config.json before
    "before the manifest": (artefacts.Run, "finish", 1, SHARDS),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_same_command_goes_on_after_the_finished_shards(
    place: str, words: Words, whole: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *at, done = PLACES[place]
    out = cut_off(words("plain"), tmp_path / "r", *at)
    every = {f"shard_{i:05d}.h5" for i in range(SHARDS)}
    had = set(records(out))
    assert len(had) == done and out.exists() == (done > 0)
    assert goes_on(words("plain"), out) == every - had
    said = capsys.readouterr().err
    assert ("going on from its state, as with --resume" in said) == (done > 0), said
    assert outcome(out) == outcome(whole("plain"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plain"])
def test_what_finished_shards_told_is_kept(
    kind: str, words: Words, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    """Films, the table of an ensemble, sums: as if nothing had been stopped."""
    want = outcome(whole(kind))
    out = cut_off(words(kind), tmp_path / "r", StoreWriter, "write", 3)
    assert len(records(out)) == 2
    assert goes_on(words(kind), out, "--resume").isdisjoint(records(out))
    assert outcome(out) == want


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("leftover", ["shard_00001.h5", "sample_00004.mp4", "json", "npz", "of another run"])
def test_a_leftover_that_is_not_what_it_was_is_made_again(
    leftover: str, words: Words, whole: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = words("filmed")
    out = cut_off(argv, tmp_path / "r", StoreWriter, "write", 4)
    record = out / FOLDER / ".shard_00001.json"
    if leftover == "of another run":
        other = cut_off([*argv, "--seed", "5"], tmp_path / "other", StoreWriter, "write", 3)
        names = [f"{FOLDER}/.shard_00001.json", f"{FOLDER}/.shard_00001.npz", "shard_00001.h5"]
        for name in (*names, *(f"sample_{i:05d}.mp4" for i in (3, 4, 5))):
            shutil.copy(other / name, out / name)
    elif leftover == "json":
        text = record.read_text()
        record.write_text(text.replace('"steps": ', '"steps": 1', 1))
        assert record.read_text() != text
    else:
        flipped(record.with_suffix(".npz") if leftover == "npz" else out / leftover)
    assert goes_on(argv, out, "--resume") == {"shard_00001.h5", "shard_00003.h5"}
    said = capsys.readouterr().err
    assert said.count("it is made again") == 1 and f"note: {record}: " in said, said
    assert outcome(out) == outcome(whole("filmed"))


def test_what_is_refused(words: Words, tmp_path: Path, pipeline: Path, world: Path) -> None:
    argv, out = words("plain"), tmp_path / "r"
    with pytest.raises(UserError, match=r"has no finished shards to go on after \(.finished\); begin it without"):
        simulated(argv, out, "--resume")
    assert not out.exists()
    shutil.copytree(world / "other", copy := tmp_path / "copy")
    argv += ["--simulator", str(copy)]
    cut_off(argv, out, StoreWriter, "write", 3)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for more, said in (
        (["--seed", "3"], "--resume: seed was 0 and is now 3; start another run for that"),
        (["--no-stochastic"], "stochastic was True and is now False"),
        (["--simulator", str(pipeline / "simulator")], "simulator was .* and is now"),
        (["--overwrite"], "--resume goes on with a run and --overwrite starts anew: choose one"),
    ):
        with pytest.raises(UserError, match=said):
            simulated(argv, out, "--resume", *more)
    with pytest.raises(UserError, match="already holds data"):
        simulated(argv, out, "--seed", "3")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="was begun by the code .* this is oth"):
        patch.setattr(artefacts, "code_version", lambda: "other")
        simulated(argv, out)
    with artefacts.resumed(copy, "train_gen_model", {"another": "manifest"}, {"agent": pipeline / "agent"}):
        pass
    with pytest.raises(UserError, match="the simulator is not the one that .* was begun with"):
        simulated(argv, out)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_whole_samples_stay_as_they_are(words: Words, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv, out = words("plain"), simulated(words("plain"), tmp_path / "r")
    before = {p: p.read_bytes() for p in out.rglob("*")}
    (out / FOLDER).mkdir()  # of a process killed between manifest and end
    simulated(argv, out, "--resume")
    assert capsys.readouterr().out.endswith(f"{out} is whole: nothing was left to simulate\n")
    assert {p: p.read_bytes() for p in out.rglob("*")} == before
    with pytest.raises(UserError, match="already holds data"):
        simulated(argv, out)


def test_an_interruption_says_how_to_go_on_and_time_adds_up(
    words: Words, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [str(ROOT / "generative" / "record_samples.py"), "--samples", "3"])
    out = cut_off(words("plain"), tmp_path / "r", StoreWriter, "write", 3)
    said = "go on with: python -m generative.record_samples --samples 3 --resume\n"
    assert capsys.readouterr().err == f"note: {out} is not whole; {said}"
    record = out / FOLDER / ".shard_00001.json"
    about = {k: v for k, v in json.loads(record.read_text()).items() if k != artefacts.SEAL}
    artefacts.write_json(record, artefacts.sealed({**about, "wall_s": 1e6}))
    simulated(words("plain"), out)
    assert read_manifest(out)["wall_s"] > 1e6


# Two processes


def torchrun(argv: list[str], *flags: str) -> subprocess.Popen[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *flags]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [*launch, "-m", "generative.record_samples", *argv]
    return subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)


def times(out: Path, names: list[str]) -> dict[str, int]:
    return {name: (out / name).stat().st_mtime_ns for name in names}


def test_two_processes_go_on_with_what_one_began_and_by_themselves(words: Words, tmp_path: Path) -> None:
    """One process is cut off; two go on, of which the second is killed; torchrun starts both again."""
    argv = [*words("ensemble"), "--samples", "90", "--steps", "12", "--shard_steps", "78"]
    want, out = outcome(simulated(argv, tmp_path / "whole")), tmp_path / "r"
    cut_off(argv, out, StoreWriter, "write", 3)
    began = times(out, records(out))
    assert len(began) == 2
    with torchrun([*argv, "--out", str(out)], "--max-restarts=1") as process:
        while len(records(out)) < 6:
            assert process.poll() is None
            time.sleep(0.02)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        finished_then = times(out, records(out))
        os.kill(int(children[-1]), signal.SIGKILL)
        said = process.communicate()[1]
    assert process.returncode == 0, said[-3000:]
    assert said.count("going on from its state, as with --resume") == 2  # once a start
    assert began.items() <= finished_then.items() and len(finished_then) < 30
    assert times(out, list(finished_then)) == finished_then
    assert without_hashes(outcome(out)) == without_hashes(want)
    require_alike(out, tmp_path / "whole")


def test_events_that_read_a_reward_are_not_counted_in_simulated_rollouts(
    pipeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They hold the mean that the world foretells, which is hardly ever 0: 28 rewards an episode were counted, and no
    death."""
    from analysis.events import __main__ as events

    def count(*more: str) -> None:
        argv = [str(pipeline / "samples"), "--out", str(tmp_path / "out"), *more]
        events.main(cli.parse(events.EventsConfig, argv, events.STAGE))

    count()
    assert "note: death, reward left out: " in capsys.readouterr().err
    assert [row["event"] for row in Result.load(tmp_path / "out").tables["events"]] == ["jump_started"]
    with pytest.raises(UserError, match="event 'death': .*samples is simulated, .* count it in real rollouts"):
        count("--events", "death", "--overwrite")
