"""What every training shares: a state that is whole or refused, and an end that can be asked for."""

from __future__ import annotations

import importlib.machinery
import json
import os
import re
import shutil
import signal
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.craftax_train import CraftaxTrainConfig
from agents.gymnasium_train import GymnasiumTrainConfig
from agents.nmmo_train import NmmoTrainConfig
from agents.train import TrainConfig
from core import artefacts, config as cli
from core.artefacts import new_run
from core.contracts import UserError
from core.ranks import Processes
from core.training import (
    STATE,
    Log,
    Stop,
    WandbOptions,
    check_same,
    check_tracking,
    load_state,
    open_run,
    open_together,
    restarted,
    resume_command,
    rng_states,
    save_state,
    seconds_of,
    set_rng_states,
)
from generative.train import GenTrainConfig


def state_in(path: Path) -> Path:
    save_state(path / STATE, weights={"w": torch.randn(40)}, numbers=[1.5, 2], step=7)
    return path / STATE


def test_a_state_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = load_state(state_in(tmp_path), "weights", "step")
    torch.manual_seed(0)
    assert torch.equal(state["weights"]["w"], torch.randn(40)) and state["numbers"] == [1.5, 2]
    with pytest.raises(UserError, match="another version .it has no 'best'"):
        load_state(tmp_path / STATE, "best")


def test_every_flipped_byte_of_a_state_is_found(tmp_path: Path) -> None:
    file = state_in(tmp_path)
    before, rng = file.read_bytes(), np.random.default_rng(0)
    for at in [*range(120), *rng.choice(len(before), 200, replace=False).tolist()]:
        flipped = bytearray(before)
        flipped[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        with pytest.raises(UserError, match=r"state.pt: broken training state .*; copy it or start the training anew"):
            load_state(file)
    for other in (b"", before[:-1], before[: len(before) // 2], before + b"\0"):
        file.write_bytes(other)
        with pytest.raises(UserError, match="broken training state"):
            load_state(file)


@dataclass(frozen=True, kw_only=True)
class Config:
    out: Path
    agent: Path | None = None
    resume: bool = False
    overwrite: bool = False
    seed: int = 0


def test_a_broken_state_leaves_the_whole_run_whole(tmp_path: Path) -> None:
    out = tmp_path / "r"
    run = open_run(Config(out=out), "train", {}, ("seed",))
    file = state_in(out)
    run.finish()
    before = {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()}
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="broken training state"):
        open_run(Config(out=out, resume=True), "train", {}, ("seed",))
    assert {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()} == before
    file.unlink()
    with pytest.raises(UserError, match="no state to resume from"):
        open_run(Config(out=out, resume=True), "train", {}, ("seed",))


def test_a_refused_resume_leaves_the_whole_run_whole(tmp_path: Path) -> None:
    """Another input, or a mark that says nothing; a run of an earlier version, which has none, goes on."""
    agents = [tmp_path / name for name in ("one", "other")]
    for i, path in enumerate(agents):
        with new_run(path, "train", {"seed": i}):
            pass
    out, mark = tmp_path / "r", tmp_path / "r" / "config.json"
    run = open_run(Config(out=out, agent=agents[0]), "train", {"agent": agents[0]}, ("seed",))
    state_in(out)
    run.finish()
    before = {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()}
    for inputs in ({"agent": agents[1]}, {}):
        with pytest.raises(UserError, match="r was begun with another agent; start another run for that"):
            open_run(Config(out=out, resume=True), "train", inputs, ("seed",))
    assert {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()} == before
    saved = json.loads(mark.read_text())
    mark.write_text(json.dumps({**saved, "inputs": ["agent"]}))
    with pytest.raises(UserError, match="config.json is not the configuration of a run"):
        open_run(Config(out=out, resume=True), "train", {"agent": agents[0]}, ("seed",))
    mark.write_text(json.dumps({k: v for k, v in saved.items() if k != "inputs"}))
    with pytest.raises(UserError, match="r was begun with another agent"):
        open_run(Config(out=out, resume=True, agent=agents[1]), "train", {"agent": agents[1]}, ("seed",))
    open_run(Config(out=out, resume=True, agent=agents[0]), "train", {"agent": agents[0]}, ("seed",))


@dataclass(frozen=True)
class Sized:
    total_steps: int = 4096


@dataclass(frozen=True, kw_only=True)
class Training(Config):
    ppo: Sized = Sized()


def test_a_resume_to_fewer_steps_than_are_done_is_refused(tmp_path: Path) -> None:
    """Else the saved configuration would say less than its weights were trained for."""
    out = tmp_path / "r"
    run = open_run(Training(out=out), "train", {}, ("seed",))
    (out / STATE).parent.mkdir()
    save_state(out / STATE, step=4096, curve=[{"step": 2048}, {"step": 4096}])
    run.finish()
    before = {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()}
    with pytest.raises(UserError, match=r"--total_steps 2,048: .*r has 4,096 already, with which --resume goes on"):
        open_run(Training(out=out, resume=True, ppo=Sized(2048)), "train", {}, ("seed",))
    assert {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()} == before
    for more in (4096, 8192):
        open_run(Training(out=out, resume=True, ppo=Sized(more)), "train", {}, ("seed",))


def test_a_resume_of_other_settings_names_the_one_that_differs(tmp_path: Path) -> None:
    out = tmp_path / "r"
    open_run(Training(out=out), "train", {}, ("ppo",)).finish()
    with pytest.raises(UserError, match=r"^--resume: ppo.total_steps was 4096 and is now 8192; start another run"):
        check_same(Training(out=out, ppo=Sized(8192)), out, "train", ("seed", "ppo"))
    saved = json.loads((out / "config.json").read_text())
    saved["config"]["ppo"] |= {"left": None}
    (out / "config.json").write_text(json.dumps(saved))
    with pytest.raises(
        UserError, match=r"^--resume: ppo.left was None and is now not set; start another run for that$"
    ):
        check_same(Training(out=out), out, "train", ("seed", "ppo"))


def test_a_resume_says_how_to_go_on_as_it_was_begun(tmp_path: Path) -> None:
    """A preset may have got another value since: semantic has stop_p."""
    out = tmp_path / "r"
    words = ["--preset", "semantic", "--out", f"{out}"]
    parsed = [cli.parse(TrainConfig, [*words, *more], "train") for more in (["--no-stop_p"], [], ["--epochs", "1"])]
    open_run(parsed[0], "train", {}, ()).finish()
    for config, group, said in ((parsed[1], "semantic", "semantic.stop_p was False and is now True"),
                                (parsed[2], "ppo", "ppo.epochs was 3 and is now 1")):  # fmt: skip
        with pytest.raises(UserError, match=f"^--resume: {said}; start another run for that ") as error:
            check_same(config, out, "train", [group])
        (way,) = re.findall(r" \(as it was: (.+)\)$", str(error.value))
        check_same(cli.parse(TrainConfig, [*words, *way.split()], "train"), out, "train", [group])


def test_a_state_of_an_earlier_version_is_read_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r"
    open_run(Config(out=out), "train", {}, ("seed",))
    state_in(out)
    open_run(Config(out=out, resume=True), "train", {}, ("seed",))
    assert capsys.readouterr().err == ""
    torch.save({"step": 3}, out / STATE)
    open_run(Config(out=out, resume=True), "train", {}, ("seed",))
    assert "state.pt was written by an earlier version, without a checksum" in capsys.readouterr().err
    assert load_state(out / STATE) == {"step": 3}
    (out / STATE).write_bytes((out / STATE).read_bytes()[:200])
    with pytest.raises(UserError, match="broken training state"):
        load_state(out / STATE)


# The end before the last update


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5h", 5400), ("0.1s", 0.1)])
def test_times(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "2", "h", "2 h", "-1h", "0s", "0.0h", "1e3s", "infh", "2d", "1.h", ".5h", "2h30m"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--stop_after .*: expected a time above 0, as in 90s, 30m, 2h or 1.5h"):
        Stop(text)


def test_nothing_asked_nothing_due() -> None:
    with Stop(None) as stop:
        assert not stop.due()
    with Stop("1000h") as stop:
        assert not stop.due()


def test_the_time_is_up_and_the_process_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with Stop("0.000001s") as stop:
        assert stop.due()
    stop.say(Config(out=tmp_path), "3 of 9 updates")
    said = capsys.readouterr().err
    assert said.startswith("time is up: not finished, saved after 3 of 9 updates; go on with: python ")
    assert said.endswith(" --resume\n") and said.count("\n") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_first_signal_waits_and_a_second_does_not(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Second(Exception):
        pass

    def second(number: int, frame: object) -> None:
        raise Second

    before = signal.signal(number, second)
    try:
        with Stop(None) as stop:
            os.kill(os.getpid(), number)
            assert stop.due() and stop.reason == number
            with pytest.raises(Second):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is second
    finally:
        signal.signal(number, before)
    with pytest.raises(SystemExit) as ended:
        stop.say(Config(out=tmp_path), "3 of 9 updates")
    assert ended.value.code == code
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{number.name}: not finished, saved after 3 of 9")


@pytest.mark.parametrize(
    ("argv", "overwrite", "count", "want"),
    [
        (["train.py", "--out", "my runs/a"], False, 1, "python train.py --out 'my runs/a' --resume"),
        (["train.py", "nmmo", "-a", "x", "--resume"], False, 1, "python train.py nmmo -a x --resume"),
        (["train.py", "--overwrite", "--seed", "2"], True, 1, "python train.py --seed 2 --resume"),
        (["train.py", "--config", "c.json"], True, 1, "python train.py --config c.json --no-overwrite --resume"),
        (["g.py", "--seed", "2"], False, 4, "torchrun --nproc-per-node=4 g.py --seed 2 --resume"),
    ],
)
def test_the_command_to_go_on_with(
    argv: list[str], overwrite: bool, count: int, want: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert resume_command(Config(out=tmp_path, overwrite=overwrite), Processes(0, count)) == want


def test_the_command_of_several_machines_names_those_and_not_their_sum(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["g.py", "--seed", "2"])
    monkeypatch.setenv("GROUP_WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    said = resume_command(Config(out=tmp_path, overwrite=False), Processes(0, 32))
    assert said.startswith("torchrun --nnodes=4 ") and " --nproc-per-node=8 g.py --seed 2 --resume" in said


def test_threads_are_shared_by_the_processes_of_a_machine_and_not_by_those_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert Processes().threads_of(3) == 3 and Processes(0, 2).threads_of(3) == Processes(0, 8).threads_of(3) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert Processes(17, 32).threads_of(32) == 4


def test_the_state_of_another_run_is_refused(tmp_path: Path) -> None:
    """Two runs of one command but for the seed: each knows its own state."""
    for name in ("a", "b"):
        with artefacts.new_run(tmp_path / name, "train", {"seed": name}) as run:
            save_state(run.path / STATE, step=3)
        assert load_state(tmp_path / name / STATE, "step")["step"] == 3
    shutil.copy(tmp_path / "a" / STATE, tmp_path / "b" / STATE)
    with pytest.raises(UserError, match="state.pt is the state of another run"):
        load_state(tmp_path / "b" / STATE, "step")
    with artefacts.resumed(tmp_path / "a", "train", {"seed": "a"}, {}):
        pass
    assert load_state(tmp_path / "a" / STATE, "step")["step"] == 3  # a run that goes on stays the same one


def test_where_weights_and_biases_keeps_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package asks for an account: what it is told is read off a stand-in."""
    told: list[dict[str, Any]] = []
    stand_in = types.ModuleType("wandb")
    stand_in.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    stand_in.init = lambda **named: told.append(named)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    words = ["--track", "--wandb_project", "p", "--wandb_entity", "e", "--wandb_group", "g", "--wandb_name", "n"]
    for cls in (TrainConfig, CraftaxTrainConfig, GymnasiumTrainConfig, NmmoTrainConfig, GenTrainConfig):
        config = cli.parse(cls, [*words, "--wandb_tags", "a", "b"], "a_stage")
        Log(tmp_path, config, config.track)  # type: ignore[attr-defined]
        names = {k: told[-1][k] for k in ("project", "entity", "group", "name", "tags")}
        assert names == {"project": "p", "entity": "e", "group": "g", "name": "n", "tags": ["a", "b"]}
        assert told[-1]["config"] == cli.to_json(config) and told[-1]["dir"] == str(tmp_path)
    Log(tmp_path, TrainConfig(track=True), True)
    assert (told[-1]["project"], told[-1]["entity"], told[-1]["tags"]) == ("dreamlens", None, [])


def test_settings_of_weights_and_biases_without_it_are_refused() -> None:
    for options in (WandbOptions(wandb_group="g"), WandbOptions(wandb_tags=("a",))):
        with pytest.raises(UserError, match="is for Weights & Biases: it needs --track"):
            check_tracking(TrainConfig(wandb=options))
    check_tracking(TrainConfig())


def test_a_curve_may_have_columns_that_only_some_rows_have(tmp_path: Path) -> None:
    log = Log(tmp_path, None, False)
    log.add(1, loss=2.0)
    log.add(2, loss=1.0, held_out=3.0)
    log.save()
    assert (tmp_path / "curve.csv").read_text() == "step,loss,held_out\n1,2,\n2,1,3\n"
    again = Log(tmp_path, None, False, keep=2)
    again.add(3, loss=0.5)
    again.save()
    assert (tmp_path / "curve.csv").read_text().splitlines()[1:] == ["1,2,", "2,1,3", "3,0.5,"]


@pytest.mark.parametrize(
    ("launch", "state", "whole", "want"),
    [
        ("mine", True, False, (True, False)),  # goes on
        ("mine", False, False, (False, True)),  # nothing saved yet: begins again
        ("mine", True, True, (False, False)),  # done: refused as ever
        ("another", True, False, (False, False)),  # somebody else's: refused as ever
    ],
)
def test_a_training_that_torchrun_starts_again_goes_on_with_its_own_directory_alone(
    launch: str, state: bool, whole: bool, want: tuple[bool, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = GenTrainConfig(out=tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", launch)
    open_together(config, "train_gen_model", {}, (), Processes(0, 1))
    monkeypatch.setattr(Processes, "wait", lambda self: None)  # there is no other
    open_together(replace(config, overwrite=True), "train_gen_model", {}, (), Processes(0, 2))
    if state:
        state_in(tmp_path)
    if whole:
        (tmp_path / "manifest.json").write_text("{}")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "mine")
    assert restarted(config) == config  # the first start
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    found = restarted(config)
    assert (found.resume, found.overwrite) == want


@pytest.mark.parametrize("earlier", [False, True])
def test_generators_go_on_where_a_state_was_saved(earlier: bool, tmp_path: Path) -> None:
    """By way of the file, also of one that an earlier version wrote, which had those of all GPUs there were."""
    device = torch.device("cpu")
    states = rng_states(device)
    save_state(tmp_path / STATE, torch_rng={"cpu": states["cpu"], "cuda": []} if earlier else states)
    before = torch.rand(3)
    torch.rand(5)
    set_rng_states(load_state(tmp_path / STATE)["torch_rng"], device)
    assert torch.equal(torch.rand(3), before)
