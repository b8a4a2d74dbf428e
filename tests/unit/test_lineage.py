"""Which runs stand on one page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agents import semantic
from agents.load import LOADERS
from core import artefacts
from core.artefacts import new_run, read_manifest
from core.contracts import UserError
from core.stages import OF_AN_AGENT as STAGES
from generative import adopted
from tests.conftest import write_agent, write_evaluation, write_simulator, write_study
from validation.report.lineage import agents_in, choose, trace, traced


def _run(path: Path, stage: str, inputs: dict[str, Path]) -> Path:
    with new_run(path, stage, {"seed": 0}, inputs):
        pass
    return path


def _stages(chosen: object) -> list[str]:
    return [run.stage for run in chosen.runs]  # type: ignore[attr-defined]


def test_runs_of_several_games_are_refused_by_naming_them_and_one_can_be_chosen(tmp_path: Path) -> None:
    for i, game in enumerate(("maze", "coinrun", "heist")):
        agent = write_agent(tmp_path / f"agent_{game}", seed=i, world=f"procgen/{game}")
        write_evaluation(tmp_path / "runs" / f"evaluation_{game}", agent, float(i))
    with pytest.raises(UserError, match="3 agents: evaluation_coinrun .*agent_coinrun.*evaluation_maze.*--agent DIR"):
        choose(tmp_path / "runs", STAGES)
    chosen = choose(tmp_path / "runs", STAGES, agent=tmp_path / "agent_heist")
    assert [run.path.name for run in chosen.runs] == ["evaluation_heist"]
    assert chosen.agent == tmp_path / "agent_heist"
    assert len(chosen.left_out) == 2 and "evaluation_maze is left out: it is of the agent" in chosen.left_out[1]


def test_one_agent_in_two_worlds_is_no_one_page(tmp_path: Path) -> None:
    agents = [write_agent(tmp_path / mode, options={"distribution_mode": mode}) for mode in ("easy", "hard")]
    for i, agent in enumerate(agents):
        write_evaluation(tmp_path / "runs" / f"evaluation_{i}", agent, 1.0)
    assert len(agents_in({path: read_manifest(path) for path in agents})) == 1  # the same weights
    with pytest.raises(UserError, match="2 worlds"):
        choose(tmp_path / "runs", STAGES)
    assert _stages(choose(tmp_path / "runs", STAGES, agent=agents[0])) == ["evaluate"]


def test_other_levels_of_a_world_are_the_same_world(tmp_path: Path) -> None:
    for i, start in enumerate((0, 500)):
        agent = write_agent(tmp_path / str(i), options={"start_level": start})
        write_evaluation(tmp_path / "runs" / f"evaluation_{i}", agent, 1.0)
    assert len(choose(tmp_path / "runs", STAGES).runs) == 2


def test_two_simulators_of_an_agent_are_refused_and_one_can_be_chosen(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "agent")
    simulators = [write_simulator(tmp_path / f"simulator_{i}", agent, seed=i) for i in range(2)]
    for i, simulator in enumerate(simulators):
        write_study(tmp_path / "runs" / f"study_{i}", simulator)
    write_evaluation(tmp_path / "runs" / "evaluation", agent, 1.0)
    with pytest.raises(UserError, match="2 simulators: study_0 .*simulator_0.*study_1 .*--simulator DIR"):
        choose(tmp_path / "runs", STAGES)
    chosen = choose(tmp_path / "runs", STAGES, simulator=simulators[1])
    assert [run.path.name for run in chosen.runs] == ["evaluation", "study_1"]  # an evaluation needs no simulator
    assert chosen.simulator == simulators[1]


def test_what_can_be_loaded_is_known_as_an_agent_and_a_simulator() -> None:
    assert set(LOADERS) - {semantic.DESCRIPTION} == set(artefacts.AGENTS)  # which stands beside an agent.json
    assert artefacts.SIMULATORS == ("simulator.json", adopted.DESCRIPTION)


def test_a_copy_of_an_agent_is_that_agent(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "agent")
    shutil.copytree(agent, tmp_path / "copy")
    write_evaluation(tmp_path / "runs" / "evaluation", agent, 1.0)
    assert _stages(choose(tmp_path / "runs", STAGES, agent=tmp_path / "copy")) == ["evaluate"]


def test_a_run_whose_input_is_gone_or_another_is_left_out_by_name(tmp_path: Path) -> None:
    agents = [write_agent(tmp_path / str(i)) for i in range(3)]
    for i, agent in enumerate(agents):
        write_evaluation(tmp_path / "runs" / f"evaluation_{i}", agent, 1.0)
    shutil.rmtree(agents[0])
    manifest = json.loads((agents[1] / artefacts.MANIFEST).read_text())
    artefacts.write_json(agents[1] / artefacts.MANIFEST, {**manifest, "seed": 7})
    chosen = choose(tmp_path / "runs", STAGES)
    assert [run.path.name for run in chosen.runs] == ["evaluation_2"]
    assert "evaluation_0 is left out: its input 'agent' is gone" in chosen.left_out[0]
    assert "evaluation_1 is left out" in chosen.left_out[1] and "no longer the one" in chosen.left_out[1]
    (tmp_path / "runs" / "evaluation_0" / artefacts.MANIFEST).unlink()
    half = choose(tmp_path / "runs", STAGES).left_out[0]
    assert "evaluation_0 is left out: it is half-written" in half and half.count("evaluation_0") == 1


def test_a_run_that_names_another_agent_than_its_inputs_is_left_out(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "agent")
    simulator = write_simulator(tmp_path / "simulator", agent)
    write_evaluation(tmp_path / "runs" / "evaluation", agent, 1.0)
    write_study(tmp_path / "runs" / "study", simulator, facts={"agent": "0123456789abcdef"})
    chosen = choose(tmp_path / "runs", STAGES)
    assert _stages(chosen) == ["evaluate"]
    assert "it names the agent 0123456789abcdef" in chosen.left_out[0]


def test_a_run_made_from_two_agents_is_of_neither_but_may_be_compared_with_one(tmp_path: Path) -> None:
    one, other = (write_agent(tmp_path / f"agent_{i}", seed=i) for i in range(2))
    simulator = write_simulator(tmp_path / "simulator", one)
    _run(tmp_path / "runs" / "mixed", "record_samples", {"simulator": simulator, "agent": other})
    _run(tmp_path / "runs" / "compared", "fidelity", {"simulator": simulator, "other_agent": other})
    chosen = choose(tmp_path / "runs", STAGES)
    assert [run.path.name for run in chosen.runs] == ["compared"]
    assert "mixed is left out" in chosen.left_out[0] and " and the agent " in chosen.left_out[0]
    assert len(agents_in(chosen.every)) == 2 and len(trace(tmp_path / "runs" / "compared").agents) == 1


def test_a_model_that_nothing_was_made_with_does_not_choose(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "runs" / "agent")
    write_agent(tmp_path / "runs" / "agent_2", seed=2)
    with pytest.raises(UserError, match="2 agents"):
        choose(tmp_path / "runs", STAGES)
    write_evaluation(tmp_path / "runs" / "evaluation", agent, 1.0)
    chosen = choose(tmp_path / "runs", STAGES)
    assert chosen.agent == agent and "agent_2 is left out" in chosen.left_out[0]


def test_an_evaluation_beside_the_agent_counts_if_it_is_of_that_agent(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "bundle" / "agent")
    other = write_agent(tmp_path / "other", seed=1)
    simulator = write_simulator(tmp_path / "bundle" / "simulator", agent)
    write_study(tmp_path / "runs" / "study", simulator)
    write_evaluation(tmp_path / "bundle" / "evaluation", other, 8.27)
    assert _stages(choose(tmp_path / "runs", STAGES)) == ["interventions"]
    write_evaluation(tmp_path / "bundle" / "evaluation_2", agent, 3.0)
    shutil.copytree(tmp_path / "bundle" / "evaluation_2", tmp_path / "bundle" / "copy_of_it")
    assert _stages(choose(tmp_path / "runs", STAGES)) == ["interventions", "evaluate"]


def test_every_directory_stands_after_its_inputs(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "agent")
    simulator = write_simulator(tmp_path / "simulator", agent)
    rollouts = _run(tmp_path / "runs" / "rollouts", "record", {"agent": agent})
    samples = _run(tmp_path / "runs" / "samples", "record_samples", {"simulator": simulator, "rollouts": rollouts})
    last = {"simulator": simulator, "samples": samples, "agent": agent}
    _run(tmp_path / "runs" / "behaviours", "behaviours", last)
    every = choose(tmp_path / "runs", STAGES).every
    assert set(every) == {agent, simulator, rollouts, samples, tmp_path / "runs" / "behaviours"}
    for at, path in enumerate(every):
        inputs = [(path / known["path"]).resolve() for known in every[path]["inputs"].values()]
        assert set(inputs) <= set(list(every)[:at])
    assert every[agent] == read_manifest(agent)


def test_a_broken_manifest_is_left_out_by_name(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "runs" / "evaluation", write_agent(tmp_path / "agent"), 1.0)
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / artefacts.MANIFEST).write_text("{")
    chosen = choose(tmp_path / "runs", STAGES)
    assert _stages(chosen) == ["evaluate"] and "broken is left out" in chosen.left_out[0]


def test_a_half_written_run_is_left_out_by_name(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "runs" / "evaluation", write_agent(tmp_path / "agent"), 1.0)
    for name, stage in (("begun", "saliency"), ("other", "planted")):
        _run(tmp_path / "runs" / name, stage, {})
        (tmp_path / "runs" / name / artefacts.MANIFEST).unlink()
    chosen = choose(tmp_path / "runs", [*STAGES, "saliency"])
    (said,) = chosen.left_out
    assert _stages(chosen) == ["evaluate"] and "begun is left out" in said and "half-written" in said
    with pytest.raises(UserError, match="holds no run for a page.*half-written"):
        choose(tmp_path / "runs" / "begun", ["saliency"])


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such directory"):
        choose(tmp_path / "nowhere", STAGES)
    _run(tmp_path / "runs" / "planted", "planted", {})
    with pytest.raises(UserError, match="holds no run for a page; a page shows the stages train"):
        choose(tmp_path / "runs", STAGES)


def test_a_link_to_itself_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert traced(tmp_path, STAGES) == ([], [])
