"""Every script's help, and the mistakes users make: one line, exit code 2, nothing on disk harmed."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tyro

from agents.record import RecordConfig, main as record
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from core import artefacts, config as cli, stages
from core.contracts import EnvSpec, Field
from envs.procgen import ACTION_NAMES, ProcgenOptions

ROOT = Path(cli.__file__).resolve().parent.parent
STAGES = {known.module: known for known in stages.STAGES.values()}


def stage(module: str) -> tuple[Any, Any, str]:
    known = STAGES[module]
    return known.cls, known.door.main, known.door.STAGE


def fails(capsys: pytest.CaptureFixture[str], module: str, argv: Sequence[object]) -> str:
    """Run a script in this process; it must end with exit code 2 and one line, which is returned."""
    with pytest.raises(SystemExit) as ended:
        cli.run(*stage(module), [str(a) for a in argv])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def contents(path: Path) -> dict[str, str]:
    """Hash of every file below a directory."""
    files = [p for p in sorted(path.rglob("*")) if p.is_file()]
    return {p.relative_to(path).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def write_agent(path: Path, *, seed: int = 0, game: str = "coinrun", hidden: int = 8) -> Path:
    """A random agent as a run directory."""
    options = ProcgenOptions(game=game, use_backgrounds=False, restrict_themes=True)
    spec = make_spec(options)
    torch.manual_seed(seed)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=16, hidden_size=hidden), spec)
    with artefacts.new_run(path, "train", {}) as run:
        save_agent(agent, run.path)
    return path


def make_spec(options: ProcgenOptions) -> EnvSpec:
    kept = {k: v for k, v in cli.to_json(options).items() if k != "game"}
    frames = Field(shape=(64, 64, 3), dtype="uint8")
    return EnvSpec(
        env_id=f"procgen/{options.game}", obs={"frames": frames}, action_names=ACTION_NAMES, slots=1, options=kept
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """agent, another agent, one of another game, and a few real rollouts of the first."""
    root = tmp_path_factory.mktemp("cli")
    write_agent(root / "agent")
    write_agent(root / "other", seed=1)
    write_agent(root / "maze", seed=2, game="maze")
    record(RecordConfig(agent=root / "agent", out=root / "rollouts", episodes=2, slots=2, threads=1))
    return root


@pytest.mark.parametrize("module", STAGES)
def test_help_documents_every_flag(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    cls, main, name = stage(module)
    with pytest.raises(SystemExit) as ended:
        cli.run(cls, main, name, ["--help"])
    assert ended.value.code == 0
    words = capsys.readouterr().out.replace("-", "_")
    hints = typing.get_type_hints(cls, include_extras=True)
    positional = {
        f"--{name}" for name, hint in hints.items() if tyro.conf.Positional in getattr(hint, "__metadata__", ())
    }
    for flag in set(cli._flags(cls)) - positional:
        assert flag.replace("-", "_") in words, flag


@pytest.mark.parametrize(
    "command",
    [
        ["record.py"],
        ["-m", "analysis.saliency", "--sample_ids", "0", "to", "8", "--combine_samples_not_iterate"],
    ],
    ids=lambda c: " ".join(c[:2]),
)
def test_scripts_start_from_the_shell(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout
    assert done.stderr == ""


def test_a_mistake_from_the_shell_is_one_line_without_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "record.py", "--agent", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [f"error: {tmp_path / 'none'}: no such run directory"]
    assert list(tmp_path.iterdir()) == []
    debug = subprocess.run([*command, "--debug"], cwd=ROOT, capture_output=True, text=True)
    assert debug.returncode == 2
    assert "Traceback" in debug.stderr


@pytest.mark.parametrize("module", STAGES)
def test_unknown_flag_names_the_nearest(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    flag = "--threads" if module == "validation.doctor" else "--overwrite"  # the doctor writes nothing
    line = fails(capsys, module, [flag[:-1]])
    assert flag[:-1] in line
    assert flag in line.replace(f"{flag[:-1]} ", "")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--seed", "abc"], "--seed: 'abc' is not a whole number"),
        (["--episodes"], "Missing value for argument '--episodes'"),
        (["--agent", "x", "y"], "y"),
    ],
)
def test_a_flag_that_does_not_parse_is_one_line(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = fails(capsys, "agents.record", ["--agent", "x", "--out", tmp_path / "out", *argv])
    assert says in line
    assert line.endswith("; see --help")


def test_unknown_config_key_names_the_nearest(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"episods": 3}))
    line = fails(capsys, "agents.record", ["--config", tmp_path / "c.json", "--agent", world / "agent"])
    assert "'episods'" in line
    assert "episodes" in line


def test_unknown_preset_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, "agents.train", ["--preset", "dmeo"])
    assert "did you mean demo" in line


def test_config_of_another_stage(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, "agents.evaluate", ["--config", world / "rollouts" / "config.json"])
    assert "'record'" in line


def broken(world: Path, path: Path, kind: str) -> list[object]:
    """A mistake of this kind below ``path``, and the arguments of the script that meets it."""
    out = path / "out"
    if kind == "missing":
        return ["agents.record", "--agent", path / "none", "--out", out]
    if kind == "half-written":
        shutil.copytree(world / "agent", path / "agent")
        (path / "agent" / "manifest.json").unlink()
        return ["agents.record", "--agent", path / "agent", "--out", out]
    if kind == "not an agent":
        return ["agents.record", "--agent", world / "rollouts", "--out", out]
    if kind == "not rollouts":
        return ["analysis.hidden_states", "--rollouts", world / "agent", "--out", out]
    if kind == "not a simulator":
        return ["generative.record_samples", "--simulator", world / "agent", "--out", out]
    if kind == "wrong shape":
        shutil.copytree(world / "agent", path / "agent")
        about = json.loads((path / "agent" / "agent.json").read_text())
        about["net"]["hidden_size"] = 9
        (path / "agent" / "agent.json").write_text(json.dumps(about))
        artefacts.Run(path=path / "agent", stage="train", config={}).finish()
        return ["agents.record", "--agent", path / "agent", "--out", out]
    if kind == "broken weights":
        shutil.copytree(world / "agent", path / "agent")
        weights = path / "agent" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        return ["agents.record", "--agent", path / "agent", "--out", out]
    if kind == "truncated shard":
        shutil.copytree(world / "rollouts", path / "rollouts")
        (shard,) = (path / "rollouts").glob("*.h5")
        shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
        return ["analysis.hidden_states", "--rollouts", path / "rollouts", "--out", out]
    if kind == "another agent":
        return ["generative.train", "--agent", world / "other", "--rollouts", world / "rollouts", "--out", out]
    if kind == "another env":
        return ["generative.train", "--agent", world / "maze", "--rollouts", world / "rollouts", "--out", out]
    if kind == "levels it was trained on":
        return ["agents.evaluate", "--agent", world / "agent", "--start_level", 5, "--out", out]
    if kind == "no such game":
        return ["agents.train", "--preset", "debug", "--game", "coinrum", "--out", out]
    if kind == "no GPU":
        return ["agents.record", "--agent", world / "agent", "--device", "cuda", "--out", out]
    if kind == "bundle without models":
        return ["validation.demo", "--bundle", path / "none", "--out", out]
    assert kind == "broken config"
    (path / "c.json").write_text('{"episodes": ')
    return ["agents.record", "--config", path / "c.json", "--agent", world / "agent", "--out", out]


MISTAKES = {
    "missing": "no such run directory",
    "half-written": "half-written",
    "not an agent": "holds no agent",
    "not rollouts": "holds no rollouts",
    "not a simulator": "simulator",
    "wrong shape": "shape",
    "broken weights": "model.safetensors: content differs from its manifest",
    "truncated shard": "truncated or broken shard",
    "another agent": "agent",
    "another env": "agent",
    "levels it was trained on": "overlap",
    "no such game": "did you mean coinrun",
    "no GPU": "--device cpu",
    "bundle without models": "no such directory; name a bundle",
    "broken config": "not valid JSON",
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_says_what_to_do_and_harms_nothing(
    kind: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "no GPU" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    module, *argv = broken(world, tmp_path, kind)
    before = contents(world), contents(tmp_path)
    assert MISTAKES[kind] in fails(capsys, str(module), argv)
    assert (contents(world), contents(tmp_path)) == before
    assert not (tmp_path / "out").exists()


ANOTHER = r"choose another place\)?$"
IN_THE_WAY = {
    "file": "file is a file, not a directory; choose another --out$",
    "file/run": f"file: File exists; it is no directory, .*{ANOTHER}",
    "file/a/run": f"file/a: Not a directory; a part of this path is a file: {ANOTHER}",
    "nowhere/run": f"nowhere: File exists; .*or a link to nothing: move it away, or {ANOTHER}",
    "circle": f"circle: Too many levels of symbolic links; its links lead in a circle: mend them, or {ANOTHER}",
    "circle/run": f"circle/run: Too many levels of symbolic links; .*{ANOTHER}",
}


def with_ways(path: Path) -> Path:
    """A directory with a file, a link to nothing, and a link to itself."""
    (path / "file").write_text("")
    (path / "nowhere").symlink_to("none")
    (path / "circle").symlink_to("circle")
    return path


@pytest.mark.parametrize("out", IN_THE_WAY)
@pytest.mark.parametrize("module", ["agents.record", "agents.train"])
def test_an_out_that_can_be_no_directory(
    module: str, out: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--preset", "debug"] if module == "agents.train" else ["--agent", world / "agent"]
    there = with_ways(tmp_path)
    line = fails(capsys, module, [*argv, "--out", there / out])
    assert re.search(IN_THE_WAY[out], line), line
    assert sorted(p.name for p in there.iterdir()) == ["circle", "file", "nowhere"]


@pytest.mark.parametrize(
    ("module", "flag"),
    [
        ("agents.record", "--agent"), ("agents.evaluate", "--agent"), ("agents.train", "--begin_with"),
        ("generative.record_samples", "--simulator"), ("analysis.hidden_states", "--rollouts"),
        ("analysis.similarity", "--agents"), ("analysis.saliency", "--simulator"),
    ],
)  # fmt: skip
def test_an_input_that_is_no_directory(
    module: str, flag: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, weights = with_ways(tmp_path), world / "agent" / "model.safetensors"
    for given, said in (
        (there / "file", "file is a file; name a run directory$"),
        (weights, f"{weights} is a file; name the run directory {world / 'agent'}$"),
        (there / "nowhere", "nowhere is a link that leads nowhere; mend it, or name the run directory itself$"),
        (there / "circle", "circle: Too many levels of symbolic links; its links lead in a circle: mend them"),
    ):
        line = fails(capsys, module, [flag, given, "--out", there / "out"])
        assert re.search(said, line), line
    assert not (there / "out").exists()


@pytest.mark.parametrize("module", ["agents.record", "agents.evaluate"])
def test_what_is_not_its_own_run_is_never_overwritten(
    module: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.txt").write_text("years of work")
    argv = ["--agent", world / "agent", "--episodes", 1, "--slots", 1, "--out", out]
    assert "--overwrite" in fails(capsys, module, argv)
    assert "not a" in fails(capsys, module, [*argv, "--overwrite"])
    assert contents(tmp_path) == {"thesis/chapter.txt": hashlib.sha256(b"years of work").hexdigest()}


def test_the_demo_replaces_only_demos(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(world / "rollouts", tmp_path / "demo")
    (tmp_path / "bundle").mkdir()
    for name in ("agent", "simulator"):
        shutil.copytree(world / "agent", tmp_path / "bundle" / name)
    before = contents(tmp_path)
    line = fails(capsys, "validation.demo", ["--bundle", tmp_path / "bundle", "--out", tmp_path / "demo"])
    assert "not a 'demo' run directory" in line
    assert contents(tmp_path) == before


def test_a_flipped_byte_is_found_from_the_shell(world: Path, tmp_path: Path) -> None:
    for name in ("agent", "rollouts"):
        shutil.copytree(world / name, tmp_path / name)
    command = [sys.executable, "-m", "core.artefacts", "verify", str(tmp_path / "rollouts")]
    assert artefacts.main(command[-2:]) == 0
    weights = tmp_path / "agent" / "model.safetensors"
    data = np.frombuffer(weights.read_bytes(), np.uint8).copy()
    data[-1] ^= 1
    weights.write_bytes(data.tobytes())
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 1
    assert "model.safetensors: content differs" in found.stdout
