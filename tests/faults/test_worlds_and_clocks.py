"""What goes wrong while a stage runs: an environment that raises, numbers that are none, a clock that goes back, a
directory that may not be written, two writers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents import train as train_agent
from agents.trainer import Trainer
from core import artefacts, config as cli, lock
from core.artefacts import MANIFEST, new_run, read_manifest, sha256
from core.contracts import UserError
from core.training import STATE, load_state
from tests.faults.conftest import Runner, one_line

TRAIN = [
    "--preset", "debug", "--threads", "1", "--total_steps", "96", "--envs", "4", "--rollout_steps", "8",
    "--save_minutes", "0",
]  # fmt: skip


def trained(out: Path, *more: str) -> None:
    train_agent.main(cli.parse(train_agent.TrainConfig, [*TRAIN, "--out", str(out), *more], train_agent.STAGE))


@pytest.mark.parametrize("what", ["gradient", "loss", "weight"])
def test_numbers_that_are_none(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state before stays, the message says from where to go on, and going on ends as a training does."""
    out, real = tmp_path / "t", Trainer._update
    said = {"gradient": "PPO gradient norm is nan", "loss": "PPO loss is nan", "weight": "the weights are no longer"}

    def breaks(self: Trainer) -> None:
        one = dict(self.agent.named_parameters())["encoder.0.bias"]
        if self.step == 64 and not self.config.resume:
            if what == "gradient":
                one.register_hook(lambda grad: grad * torch.nan)
            elif what == "weight":
                one.data[0] = torch.nan
            else:
                loss_of = self.loss

                def none(*given: Any) -> Any:
                    loss, parts = loss_of(*given)
                    return loss * torch.nan, parts

                self.loss = none
        real(self)

    monkeypatch.setattr(Trainer, "_update", breaks)
    with pytest.raises(UserError, match=f"stopped at step 64: {said[what]}.*; --resume goes on from step 64$"):
        trained(out)
    assert load_state(out / STATE)["step"] == 64
    trained(out, "--resume")
    assert artefacts.verify(out) == []
    curve = artefacts.load_bytes(out, "curve.csv").decode().splitlines()
    assert [line.split(",")[0] for line in curve] == ["step", "32", "64", "96"]


def test_a_curve_that_was_cut_is_the_state_s_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, real = tmp_path / "t", Trainer._update

    def stops(self: Trainer) -> None:
        if self.step == 64 and not self.config.resume:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(Trainer, "_update", stops)
    with pytest.raises(KeyboardInterrupt):
        trained(out)
    whole = (out / "curve.csv").read_text().splitlines()
    assert len(whole) == 3
    for broken in (whole[0], "step,loss\n1", "", None):
        (out / "curve.csv").unlink(missing_ok=True)
        if broken is not None:
            (out / "curve.csv").write_text(broken)
        rows = load_state(out / STATE)["curve"]
        assert [row["step"] for row in rows] == [32, 64]
    trained(out, "--resume")
    assert (out / "curve.csv").read_text().splitlines()[:3] == whole


def test_a_clock_that_goes_back_delays_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour a call: by such a clock nothing would be saved for days, and runs would take less than no time."""
    now = [time.time()]

    def earlier() -> float:
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr(time, "time", earlier)
    saves: list[int] = []
    real = Trainer.save
    monkeypatch.setattr(Trainer, "save", lambda self: (saves.append(self.step), real(self)))
    trained(tmp_path / "t")
    assert saves == [32, 64, 96, 96]
    manifest = read_manifest(tmp_path / "t")
    assert manifest["wall_s"] > 0 and manifest["metrics"]["training_wall"]["value"] > 0


ENV = """
import gymnasium
import numpy as np

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def reset(self, seed=None, options=None):
        return np.zeros(3, np.float32), {}
    def step(self, action):
        self.steps += 1
        if self.steps > 8:
            raise ZeroDivisionError("the seventh seal\\nis broken")
        return np.zeros(3, np.float32), 0.0, False, False, {}

def make_env():
    return Env()
"""


def test_an_environment_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    from core.plugins import read_source
    from envs.gymnasium_env import GymnasiumEnv, GymnasiumOptions

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "seal.py").write_text(ENV)
    source = read_source(tmp_path / "seal.py")
    source.agree()
    env = GymnasiumEnv("module/seal", GymnasiumOptions(sha256=source.sha256), 2)
    with (
        pytest.raises(UserError, match="^the environment's step fails: ZeroDivisionError: the seventh seal is broken$"),
        new_run(tmp_path / "r", "record", {}),
    ):
        env.reset(0)
        for _ in range(20):
            env.step(np.zeros(2, np.int64))
    assert not (tmp_path / "r").exists() and not list(tmp_path.glob(".*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="as root only /proc refuses")
def test_a_directory_that_refuses_root(stage: Runner) -> None:
    argv = [*TRAIN, "--out", "/proc/runs/t"]
    assert "cannot write the run directory /proc/runs/t" in one_line(stage("agents.train", argv, Path("/proc/runs")))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_read_only(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(UserError, match=f"cannot write the run directory .*{closed}.*chmod") as error:
        trained(closed / "t")
    assert "\n" not in str(error.value) and not list(closed.iterdir())


def test_two_trainings_in_one_directory(tmp_path: Path, stage: Runner) -> None:
    """This process has it; the other says so, and touches nothing."""
    out = tmp_path / "t"
    trained(out)
    before = {p.name: sha256(p) for p in out.iterdir() if p.is_file()}
    lock.take(out)
    for more in ("--resume", "--overwrite"):
        said = one_line(stage("agents.train", [*TRAIN, "--out", str(out), more], out))
        assert f"is being written by process {os.getpid()} on " in said and "or choose another --out" in said
    lock.release(out)
    assert {p.name: sha256(p) for p in out.iterdir() if p.is_file()} == before and (out / MANIFEST).exists()
