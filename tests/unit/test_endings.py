"""Recordings whose episodes die, run out of time or were cut, through analysis.events: which are deaths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.evaluate import whole_episodes
from agents.record import Kept, record_episodes
from analysis.events import __main__ as events
from core import artefacts
from core.artefacts import Result, write_json
from core.contracts import UserError
from core.episodes import Episode, StoreWriter
from envs.planted import PlantedOptions, PlantedWorld, planted_simulator
from envs.procgen import ProcgenEnv, ProcgenOptions
from validation.report.contents import _recorded

STEPS = 4


def episode(level: int, reward: float = 0.0, *, died: bool = False, cut: bool = False) -> Episode:
    action = np.full(STEPS, 4)
    return Episode(
        obs={}, h=np.zeros((STEPS, 2), np.float32), value=np.zeros(STEPS, np.float32), action=action,
        reward=np.array([0] * (STEPS - 1) + [reward], np.float32), terminated=died, truncated=not died,
        truth={"level": np.full(STEPS, level)}, meta={"slot": 0} | ({"cut": True} if cut else {}),
    )  # fmt: skip


def write(path: Path, episodes: Sequence[Episode]) -> Path:
    with artefacts.new_run(path, "record", {"seed": 0}) as run:
        write_json(run.path / "spec.json", ProcgenEnv(ProcgenOptions(game="jumper"), 1).spec.to_json())
        with StoreWriter(run.path) as writer:
            for e in episodes:
                writer.add(e)
    return path


def count(path: Path, out: Path, altered: Path | None = None) -> dict[str, dict[str, object]]:
    events.main(events.EventsConfig(rollouts=path, altered=altered, out=out))
    return {row["event"]: row for row in Result.load(out).tables["events"]}


def test_who_runs_out_of_time_has_not_died(tmp_path: Path) -> None:
    ends = [episode(0, died=True), episode(1, died=True), episode(2), episode(3), episode(4, 10.0, died=True)]
    path = write(tmp_path / "r", ends)
    assert count(path, tmp_path / "events")["death"]["times"] == 2
    words = ("timeouts: truncated", "endings: ended", "lost: ended and reward <= 0")
    events.main(events.EventsConfig(rollouts=path, events=words, out=tmp_path / "own"))
    assert [row["times"] for row in Result.load(tmp_path / "own").tables["events"]] == [2, 5, 4]


@pytest.mark.parametrize(
    ("cut", "whole", "said"),
    [(0, 2, ""), (1, 200, " (1 cut short left out)"),
     (8, 2, " (8 cut short left out, so that these are the shorter ones)")],
)  # fmt: skip
def test_a_recordings_mean_return_says_what_it_leaves_out(cut: int, whole: int, said: str) -> None:
    kept = Kept(returns=[1.0] * whole, lengths=[STEPS] * whole, cut=cut, cut_steps=STEPS * cut)
    assert kept.in_words(False).endswith(f", mean return 1.00{said}")
    metrics = {"return_mean": {"value": 1.0, "n": whole}} | ({"cut": {"value": cut}} if cut else {})
    words = _recorded(Path("r"), {"metrics": metrics, "facts": {}, "config": {}})
    assert words.startswith(f"In the {whole} episodes") and words.endswith(f"its mean return is 1{said}.")


def test_cut_episodes_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = [episode(i, died=True) for i in range(3)] + [episode(3 + i, cut=True) for i in range(5)]
    row = count(write(tmp_path / "r", some), tmp_path / "events")["death"]
    assert (row["times"], row["episodes"], row["share"]) == (3, 3, 1.0)
    assert (
        "3 episodes, 12 steps (5 cut short left out, so that these are the shorter ones); resampled whole: levels: "
        in capsys.readouterr().out
    )
    none = write(tmp_path / "none", [episode(i, cut=True) for i in range(5)])
    with pytest.raises(UserError, match=r"all 5 episodes were cut .*record with --episodes") as error:
        count(none, tmp_path / "nothing")
    assert "\n" not in str(error.value) and not (tmp_path / "nothing").exists()


def test_one_episode_has_no_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write(tmp_path / "r", [episode(0, died=True)]), write(tmp_path / "s", [episode(0)])
    row = count(one, tmp_path / "events")["death"]
    assert row["share"] == 1 and row["share_low"] is None
    assert "death: 1.000 times an episode (n = 1, few), in 100.0% of episodes" in capsys.readouterr().out
    row = count(one, tmp_path / "two", other)["death"]
    assert row["difference"] == -1 and row["verdict"] == "no difference found"


def test_episodes_that_never_end_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation, or a recording of whole episodes, ran on and said nothing."""
    monkeypatch.setattr("agents.evaluate.ENDLESS", 50)
    options = PlantedOptions(hazard=0.0, horizon=10_000)
    agent, device = planted_simulator(options).agent, torch.device("cpu")
    with pytest.raises(UserError, match="no episode that is still to come has ended within 50 steps.*--num_steps"):
        whole_episodes(agent, PlantedWorld(options, 2), 2, seed=0, device=device, show=False)
    with pytest.raises(UserError, match="--num_steps"):
        list(record_episodes(agent, PlantedWorld(options, 2), 2, seed=0, device=device))
    cut = list(record_episodes(agent, PlantedWorld(options, 2), 2, seed=0, device=device, steps=60))
    assert [e.steps for e in cut] == [60, 60]
