"""kill -9 before any file operation of a stage: the same command again ends as if nothing had happened.

What is on disk changes at file operations alone, so that these are all the moments there are.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.recording_state import STATE as RECORDING
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from core.artefacts import MANIFEST, aside_of, new_run, read_manifest, sha256, verify
from core.contracts import UserError
from core.episodes import RolloutStore
from core.training import STATE, load_state
from envs.planted import PlantedOptions, spec_of
from generative.finished import FOLDER
from tests.conftest import write_agent, write_simulator
from tests.faults.conftest import MOST, Runner, one_line

TRAIN = [
    "--preset", "debug", "--threads", "1", "--total_steps", "128", "--envs", "4", "--rollout_steps", "8",
    "--save_minutes", "0",
]  # fmt: skip
TIMED = ("wall_s", "fps", "misc/time_elapsed", "frames_per_s", "data_share")


def outcome(path: Path) -> dict[str, Any]:
    """What a run holds, but for times."""
    out: dict[str, Any] = {}
    for name in read_manifest(path)["files"]:
        if name.endswith(".csv"):
            with open(path / name, newline="") as file:
                out[name] = [{k: v for k, v in row.items() if k not in TIMED} for row in csv.DictReader(file)]
        elif name != "config.json":
            out[name] = sha256(path / name)
    return out


def test_every_moment_of_an_overwrite(stage: Runner, tmp_path: Path) -> None:
    """The earlier run, or the new one, is whole after each; where the earlier one waits is said."""
    path = tmp_path / "runs" / "r"
    assert stage("overwrite", [str(path), "10"], path.parent).code == 0
    before, shelf = outcome(path), tmp_path / "earlier"
    shutil.copytree(path, shelf)
    total = stage("overwrite", [str(path), "20"], path.parent).operations
    after = outcome(path)
    assert total > 20 and after != before
    kept = {"aside": 0, "old": 0, "new": 0}
    every = range(1, total + 1, max(1, total // 6))
    for moment in every:
        shutil.rmtree(path.parent)
        shutil.copytree(shelf, path)
        assert stage("overwrite", [str(path), "20"], path.parent, kill_at=moment).code == -9
        try:
            found = outcome(path)
            kept["old" if found == before else "new"] += 1
            assert found in (before, after)
        except UserError as error:
            kept["aside"] += 1
            assert outcome(aside_of(path)) == before and str(aside_of(path)) in str(error)
        again = stage("overwrite", [str(path), "20"], path.parent)
        assert again.code == 0, again.said
        assert outcome(path) == after and verify(path) == [] and not list(path.parent.glob(".r.*"))
    assert kept["old"] and kept["aside"], kept


@pytest.fixture(scope="session")
def whole(stage: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A training that nothing stopped, and how many file operations it did."""
    out = tmp_path_factory.mktemp("agent") / "agent"
    ended = stage("agents.train", [*TRAIN, "--out", str(out)], out)
    assert ended.code == 0, ended.said
    return out, ended.operations


@pytest.fixture(scope="session")
def agent(whole: tuple[Path, int]) -> Path:
    return whole[0]


def killed_training(stage: Runner, whole: tuple[Path, int], tmp_path: Path, count: int, seed: int) -> None:
    """A training killed twice on its way."""
    want, rng = outcome(whole[0]), np.random.default_rng(seed)
    for number in range(count):
        out = tmp_path / f"run_{number}"
        argv, said = [*TRAIN, "--out", str(out)], []
        for most in (whole[1], whole[1] // 2):
            ended = stage("agents.train", argv, out, kill_at=int(rng.integers(1, most)))
            if ended.code == 2:  # it had been whole before it was killed
                assert "already holds data" in ended.said and (out / MANIFEST).exists()
                break
            assert ended.code in (-9, 0) and "Traceback" not in ended.said, ended.said
            said.append(ended.code)
        if not (out / MANIFEST).exists():
            ended = stage("agents.train", argv, out)
            assert ended.code == 0 and "Traceback" not in ended.said, ended.said
        assert outcome(out) == want and verify(out) == [], said


def test_a_training_killed_twice_is_the_training(stage: Runner, whole: tuple[Path, int], tmp_path: Path) -> None:
    killed_training(stage, whole, tmp_path, 1, 3)


@pytest.mark.slow
def test_many_killed_trainings(stage: Runner, whole: tuple[Path, int], tmp_path: Path) -> None:
    killed_training(stage, whole, tmp_path, MOST // 2, 4)


def contents(path: Path) -> list[Any]:
    with RolloutStore(path) as store:
        return [({k: v.tobytes() for k, v in e.columns().items()}, json.dumps(e.meta)) for e in store]


def killed_recording(stage: Runner, agent: Path, tmp_path: Path, count: int) -> None:
    argv = ["--preset", "debug", "--threads", "1", "--agent", str(agent), "--num_steps", "12", "--out"]
    whole = stage("agents.record", [*argv, str(tmp_path / "whole")], tmp_path / "whole")
    assert whole.code == 0, whole.said
    rng = np.random.default_rng(5)
    for number in range(count):
        out = tmp_path / f"run_{number}"
        ended = stage("agents.record", [*argv, str(out)], out, kill_at=int(rng.integers(1, whole.operations)))
        assert ended.code == -9
        if not (out / MANIFEST).exists():  # else it had been whole before it was killed
            with pytest.raises(UserError, match="half-written|no such run"):
                RolloutStore(out)
            ended = stage("agents.record", [*argv, str(out)], out)
            assert ended.code == 0 and "Traceback" not in ended.said, ended.said
        assert contents(out) == contents(tmp_path / "whole") and verify(out) == []


def test_a_killed_recording_again(stage: Runner, agent: Path, tmp_path: Path) -> None:
    killed_recording(stage, agent, tmp_path, 1)


@pytest.mark.slow
def test_many_killed_recordings(stage: Runner, agent: Path, tmp_path: Path) -> None:
    killed_recording(stage, agent, tmp_path, MOST // 2)


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained agent of a fast world with short episodes."""
    torch.manual_seed(0)
    spec = spec_of(PlantedOptions(horizon=24, hazard=0.05), 1)
    with new_run(tmp_path_factory.mktemp("planted") / "agent", "train", {}) as run:
        save_agent(RecurrentAgent(AgentConfig(encoder="mlp", embedding_size=8, hidden_size=6), spec), run.path)
    return run.path


def resumed_recording(stage: Runner, agent: Path, tmp_path: Path, count: int, seed: int) -> None:
    """Recordings killed twice on their way, every second one in place of an earlier one; shards that a state knows are
    not written again."""
    argv = ["--agent", str(agent), "--episodes", "12", "--slots", "4", "--shard_steps", "45", "--threads", "1"]
    argv += ["--explore_share", "0.5", "--sticky", "0.4", "--branches", "2", "--out"]
    whole = stage("agents.record", [*argv, str(tmp_path / "whole")], tmp_path / "whole")
    assert whole.code == 0, whole.said
    earlier = tmp_path / "earlier"
    assert stage("agents.record", [*argv, str(earlier), "--seed", "1"], earlier).code == 0
    want, old, rng = outcome(tmp_path / "whole"), outcome(earlier), np.random.default_rng(seed)
    for number in range(count):
        out, finished = tmp_path / f"run_{number}" / "r", dict[str, int]()
        if number % 2:
            shutil.copytree(earlier, out)
        for most in (whole.operations, whole.operations // 2, 0):
            there = out.exists() and not ((out / MANIFEST).exists() and outcome(out) == old)
            goes_on = there and ((out / MANIFEST).exists() or (out / RECORDING).exists())
            # The same command is enough where nothing earlier is replaced.
            again = ["--overwrite"] if number % 2 and not goes_on else ["--resume"] if number % 2 else []
            if not number % 2 and (out / MANIFEST).exists():
                break
            kill_at = int(rng.integers(1, most)) if most else 0
            ended = stage("agents.record", [*argv, str(out), *again], out.parent, kill_at=kill_at)
            assert ended.code in ((-9, 0) if most else (0,)) and "Traceback" not in ended.said, ended.said
            assert {name: (out / name).stat().st_mtime_ns for name in finished} == finished
            if (out / RECORDING).exists():
                writer = load_state(out / RECORDING, of="recording")["writer"] or {"shards": 0}
                names = [f"shard_{i:05d}.h5" for i in range(writer["shards"])]
                finished = {name: (out / name).stat().st_mtime_ns for name in names}
        assert outcome(out) == want and verify(out) == []
        assert [p.name for p in out.parent.iterdir()] == ["r"] and not list(out.rglob(".*"))


def test_a_killed_recording_goes_on(stage: Runner, planted: Path, tmp_path: Path) -> None:
    resumed_recording(stage, planted, tmp_path, 3, 6)


@pytest.mark.slow
def test_many_killed_recordings_go_on(stage: Runner, planted: Path, tmp_path: Path) -> None:
    resumed_recording(stage, planted, tmp_path, MOST, 7)


@pytest.fixture(scope="session")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained one."""
    root = tmp_path_factory.mktemp("simulator")
    return write_simulator(root / "simulator", write_agent(root / "agent"))


def killed_samples(stage: Runner, simulator: Path, tmp_path: Path, count: int, seed: int) -> None:
    """Simulated rollouts killed twice on their way, every second ones in place of earlier ones; shards with a record
    are not written again."""
    argv = ["--simulator", str(simulator), "--samples", "7", "--steps", "4", "--batch", "2", "--shard_steps", "1"]
    argv += ["--threads", "1", "--out"]
    whole = stage("record_samples", [*argv, str(tmp_path / "whole"), "--stochastic"], tmp_path / "whole")
    assert whole.code == 0, whole.said
    earlier = tmp_path / "earlier"
    assert stage("record_samples", [*argv, str(earlier)], earlier).code == 0
    want, old, rng = outcome(tmp_path / "whole"), outcome(earlier), np.random.default_rng(seed)
    kept = 0
    for number in range(count):
        out, finished = tmp_path / f"run_{number}" / "r", dict[str, int]()
        if number % 2:
            shutil.copytree(earlier, out)
        for most in (whole.operations, whole.operations // 2, 0):
            is_whole = (out / MANIFEST).exists() and outcome(out) == want
            goes_on = is_whole or (out / FOLDER).exists()
            # The same command is enough where nothing earlier is replaced.
            again = ["--resume"] if is_whole or (number % 2 and goes_on) else ["--overwrite"] if number % 2 else []
            kill_at = int(rng.integers(1, most)) if most else 0
            ended = stage("record_samples", [*argv, str(out), "--stochastic", *again], out.parent, kill_at=kill_at)
            assert ended.code in ((-9, 0) if most else (0,)) and "Traceback" not in ended.said, ended.said
            assert {name: (out / name).stat().st_mtime_ns for name in finished} == finished
            names = [f"shard_{p.stem[-5:]}.h5" for p in out.glob(f"{FOLDER}/.shard_*.json")]
            finished = {name: (out / name).stat().st_mtime_ns for name in names}
            kept += len(finished)
        assert outcome(out) == want != old and verify(out) == []
        assert [p.name for p in out.parent.iterdir()] == ["r"] and not list(out.rglob(".*"))
    assert kept


def test_killed_samples_go_on(stage: Runner, simulator: Path, tmp_path: Path) -> None:
    killed_samples(stage, simulator, tmp_path, 3, 9)


@pytest.mark.slow
def test_many_killed_samples_go_on(stage: Runner, simulator: Path, tmp_path: Path) -> None:
    killed_samples(stage, simulator, tmp_path, MOST, 10)


ANALYSES = {
    "hidden_states": "--preset debug --rollouts {r} --samples none --agent none --threads 1",
    "events": "{r}",
    "probes": "{r} --no-mlp --shuffles 99 --resamples 99 --threads 1",
    "dynamics": "--agent {a} --rollouts {r} --iterations 20 --settle 20 --burn_in 4 --threads 1",
}


@pytest.fixture(scope="session")
def recorded(stage: Runner, planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recorded") / "r"
    ended = stage(
        "agents.record", ["--agent", str(planted), "--episodes", "40", "--threads", "1", "--out", str(out)], out
    )
    assert ended.code == 0, ended.said
    return out


def killed_analysis(stage: Runner, name: str, recorded: Path, planted: Path, tmp_path: Path, count: int) -> None:
    """An analysis killed on its way, then the same command."""
    argv = [*ANALYSES[name].format(r=recorded, a=planted).split(), "--out"]
    whole = stage(name, [*argv, str(tmp_path / "whole")], tmp_path / "whole")
    assert whole.code == 0, whole.said
    want, rng = outcome(tmp_path / "whole"), np.random.default_rng(8)
    for number in range(count):
        out = tmp_path / f"run_{number}"
        assert stage(name, [*argv, str(out)], out, kill_at=int(rng.integers(1, whole.operations))).code == -9
        ended = stage(name, [*argv, str(out)], out)
        if ended.code == 2:  # it had been whole before it was killed
            assert "already holds data" in ended.said
        else:
            assert ended.code == 0 and "Traceback" not in ended.said, ended.said
        assert outcome(out) == want and verify(out) == []


def test_a_killed_analysis_again(stage: Runner, recorded: Path, planted: Path, tmp_path: Path) -> None:
    killed_analysis(stage, "events", recorded, planted, tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ANALYSES)
def test_many_killed_analyses(name: str, stage: Runner, recorded: Path, planted: Path, tmp_path: Path) -> None:
    killed_analysis(stage, name, recorded, planted, tmp_path, MOST // 4)


# The disk


@pytest.mark.parametrize("name", ["events", pytest.param("hidden_states", marks=pytest.mark.slow)])
def test_an_analysis_on_a_full_disk(name: str, stage: Runner, recorded: Path, planted: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    argv = [*ANALYSES[name].format(r=recorded, a=planted).split(), "--out", str(out)]
    said = one_line(stage(name, argv, out, largest=1000))
    assert "File too large; raise the limit" in said and not (out / MANIFEST).exists()
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("largest", [0, 100, 20_000])
def test_a_recording_on_a_full_disk(largest: int, stage: Runner, agent: Path, tmp_path: Path) -> None:
    argv = ["--preset", "debug", "--threads", "1", "--agent", str(agent), "--num_steps", "40", "--out"]
    out = tmp_path / "r"
    said = one_line(stage("agents.record", [*argv, str(out)], out, largest=largest or 1))
    assert "File too large; raise the limit" in said and str(out) in said
    assert not list(tmp_path.rglob("*.tmp")) and not (out / MANIFEST).exists()


def test_a_training_on_a_full_disk_keeps_its_state(stage: Runner, tmp_path: Path) -> None:
    out = tmp_path / "t"
    argv = [*TRAIN, "--out", str(out)]
    assert stage("agents.train", [*argv, "--stop_after", "0.001s"], out).code == 0
    state = sha256(out / STATE)
    said = one_line(stage("agents.train", [*argv, "--resume"], out, largest=2000))
    assert "File too large; raise the limit" in said and "--resume goes on from step 32" in said
    assert sha256(out / STATE) == state
