"""The commands that a page prints."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from agents.record import RecordConfig
from agents.train import TrainConfig
from core import config as cli
from core.artefacts import new_run
from core.stages import OF_AN_AGENT as STAGES
from tests.conftest import write_agent, write_evaluation, write_simulator
from validation.report.commands import make, repeat


def _parsed(line: str, stage: str) -> object:
    """What the stage's own parser makes of a printed line."""
    words = shlex.split(line)
    known = STAGES[stage]
    program = ["python", *known.command.split()]
    assert words[: len(program)] == program
    return cli.parse(known.cls, words[len(program) :], stage)


def test_a_run_is_repeated_from_its_configuration_into_a_new_directory(tmp_path: Path) -> None:
    run = write_evaluation(tmp_path / "evaluation", write_agent(tmp_path / "agent"), 1.0)
    how = repeat(run, tmp_path / "again" / "evaluation")
    config = _parsed(how.line, "evaluate")
    assert (config.agent, config.out) == (tmp_path / "agent", tmp_path / "again" / "evaluation")  # type: ignore[attr-defined]
    assert how.note == "" and "--agent" not in how.line


def test_inputs_that_were_moved_or_named_from_elsewhere_are_named_anew(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "agent")
    saved = RecordConfig(agent=Path("agent"), out=Path("x"))  # as one in another directory than the root wrote it
    with new_run(tmp_path / "rollouts", "record", saved, {"agent": agent}):
        pass
    config = _parsed(repeat(tmp_path / "rollouts", tmp_path / "again").line, "record")
    assert config.agent == agent  # type: ignore[attr-defined]


def test_the_earlier_name_of_out_is_overridden_too(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "agent")
    saved = {
        **cli.to_json(RecordConfig(agent=agent)),
        "data_save_dir": str(tmp_path / "rollouts"),
    }  # an earlier version's
    with new_run(tmp_path / "rollouts", "record", saved, {"agent": agent}):
        pass
    config = _parsed(repeat(tmp_path / "rollouts", tmp_path / "again").line, "record")
    assert config.out == tmp_path / "again"  # type: ignore[attr-defined]


def test_a_resumed_training_is_repeated_from_its_beginning(tmp_path: Path) -> None:
    with new_run(tmp_path / "agent", "train", TrainConfig(out=tmp_path / "agent", resume=True)):
        pass
    config = _parsed(repeat(tmp_path / "agent", tmp_path / "again").line, "train")
    assert not config.resume  # type: ignore[attr-defined]


def test_a_copy_for_shipping_says_what_its_training_needs() -> None:
    for name, needed in (("agent", "that configuration"), ("simulator", "the rollouts")):
        how = repeat(cli.ROOT / "bundles" / "coinrun-context" / name, Path("again"))
        assert how.line == "" and "facts.training" in how.note and needed in how.note
    assert _parsed(repeat(cli.ROOT / "bundles/coinrun-context/evaluation", Path("again")).line, "evaluate")


def test_a_configuration_of_another_version_gives_a_command_without_it(tmp_path: Path) -> None:
    simulator = write_simulator(tmp_path / "simulator", write_agent(tmp_path / "agent"))
    with new_run(tmp_path / "study", "interventions", {"bogus": 1}, {"simulator": simulator}):
        pass
    how = repeat(tmp_path / "study", tmp_path / "again")
    assert "unknown key 'bogus'" in how.note and "--config" not in how.line
    assert _parsed(how.line, "interventions").simulator == (simulator,)  # type: ignore[attr-defined]


def test_a_path_with_a_space_survives_the_shell(tmp_path: Path) -> None:
    run = write_evaluation(tmp_path / "my runs" / "evaluation", write_agent(tmp_path / "my agent"), 1.0)
    assert _parsed(repeat(run, tmp_path / "again").line, "evaluate").agent == tmp_path / "my agent"  # type: ignore[attr-defined]


@pytest.mark.parametrize("stage", STAGES)
def test_a_missing_stage_is_made_from_what_is_there(stage: str, tmp_path: Path) -> None:
    flags = ("agent", "agents", "simulator", "rollouts", "samples", "hidden_states", "behaviours")
    known = {flag: tmp_path / flag for flag in flags}
    config = _parsed(make(stage, known, tmp_path / "runs").line, stage)
    for flag in (*STAGES[stage].needs, *STAGES[stage].takes):
        assert getattr(config, flag) in (tmp_path / flag, (tmp_path / flag,))
    without = {flag: path for flag, path in known.items() if flag in STAGES[stage].needs}
    config = _parsed(make(stage, without, tmp_path / "runs").line, stage)
    for flag in STAGES[stage].takes:
        assert getattr(config, flag) is None  # not a default that may not be there


def test_what_a_missing_stage_needs_comes_first(tmp_path: Path) -> None:
    how = make("coupling", {"agent": tmp_path / "agent", "simulator": tmp_path / "simulator"}, tmp_path / "runs")
    assert "generative.record_samples" in how.line and "needs samples" in how.note
    (tmp_path / "runs" / "saliency").mkdir(parents=True)
    known = {"simulator": tmp_path / "simulator", "samples": tmp_path / "samples"}
    assert make("saliency", known, tmp_path / "runs").line.endswith("runs/saliency_2")
