"""The dynamics and similarity stages as scripts: on a debug-sized agent, and with what users get wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agents.recurrent import AgentConfig, RecurrentAgent, load_agent, save_agent
from analysis import hidden_states
from analysis.behaviours import __main__ as behaviours
from analysis.dynamics import __main__ as dynamics, inputs
from analysis.dynamics.recurrence import Recurrence
from analysis.probes import baselines
from analysis.probes.baselines import seen_by
from analysis.similarity import __main__ as similarity
from analysis.similarity.comparison import states
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore

DEBUG = ["--preset", "debug", "--threads", "1"]


@pytest.fixture(scope="module")
def analysed(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hidden_states/ and behaviours/ of the pipeline's rollouts."""
    root = tmp_path_factory.mktemp("dynamics")
    real = [*DEBUG, "--rollouts", str(pipeline / "rollouts")]
    for module, name, *action in (
        (hidden_states, "HiddenStatesConfig", "precompute"),
        (behaviours, "BehavioursConfig"),
    ):
        argv = [*action, *real, "--out", str(root / module.STAGE)]
        module.main(cli.parse(getattr(module, name), argv, module.STAGE))
    return root


def config_of(pipeline: Path, out: Path, *argv: str) -> dynamics.DynamicsConfig:
    given = ["--agent", str(pipeline / "agent"), "--rollouts", str(pipeline / "rollouts"), "--out", str(out)]
    return cli.parse(dynamics.DynamicsConfig, [*DEBUG, *given, *argv], dynamics.STAGE)


def test_frames_are_read_in_blocks_and_whole_episodes_drawn(
    pipeline: Path, analysed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = load_agent(pipeline / "agent")
    memory = Recurrence.of(agent)
    with RolloutStore(pipeline / "rollouts") as store:
        columns, index_N2 = store.pooled("obs/frames")
        whole = memory.inputs(agent, {"frames": torch.from_numpy(columns["obs/frames"])}).double().detach()
        monkeypatch.setattr(inputs, "FRAMES", 61)  # blocks begin and end within episodes
        recorded = inputs.read(memory, agent, store)
        assert torch.allclose(recorded.e_NE, whole, atol=1e-5)
        assert np.array_equal(recorded.index_N2, index_N2)
        some = inputs.read(memory, agent, store, [1, 3])
        mine = torch.from_numpy(np.isin(index_N2[:, 0], [1, 3]))
        assert torch.equal(some.h_NH, recorded.h_NH[mine]) and torch.allclose(some.e_NE, whole[mine], atol=1e-5)
        # Probes show an agent the episodes some steps at a time.
        once = seen_by(agent, store, index_N2)
        monkeypatch.setattr(baselines, "BLOCK", 17)
        again = seen_by(agent, store, index_N2)
        assert np.array_equal(once.h_NH, again.h_NH) and np.array_equal(once.alone_NF, again.alone_NF)
        assert np.allclose(once.h_NH, store.pooled("h")[0]["h"], atol=1e-5)
    # The episodes of the behaviours' central frames are read whatever else is drawn.
    chosen = ["--behaviours", str(analysed / "behaviours"), "--most_states", "2"]
    dynamics.main(config_of(pipeline, tmp_path / "out", *chosen))
    assert 0 < Result.load(tmp_path / "out").scalars["drawn_rollouts"]["value"] <= 1


def test_dynamics_of_an_agent(
    pipeline: Path, analysed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    chosen = ["--behaviours", str(analysed / "behaviours"), "--hidden_states", str(analysed / "hidden_states")]
    dynamics.main(config_of(pipeline, out, *chosen))
    result = Result.load(out)
    names = [one["name"] for one in result.notes["inputs"]]
    assert names[0] == "mean input" and names[1].startswith("behaviour 0")
    assert len(result.tables["points"]) >= len(names)  # a barely trained memory fades: one stable point an input
    for row in result.tables["points"]:
        assert row["stability"] == "stable"
        assert row["speed"] < 1e-8
        # The stored point is one: the agent itself, shown the input for ever, stays there.
    assert result.scalars["lyapunov_driven"]["value"] < 0
    assert all("(" in row["directions"] for row in result.tables["modes"])
    for name in ("points.png", "eigenvalues.png", "lyapunov.png"):
        assert (out / name).stat().st_size > 5000
    assert artefacts.verify(out) == []
    assert "fixed points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--slow_speed", "0"], "--slow_speed 0.0: above 0"),
        (["--starts", "0"], "--starts"),
        (["--lyapunov_steps", "3", "--burn_in", "5"], "--lyapunov_steps 3 must be above --burn_in 5"),
        (["--inputs", "4000"], "--inputs 4000: .* steps are too few"),
        (["--slow_steps", "0"], "--slow_steps 0.0: at least 1"),
    ],
)
def test_numbers_that_make_no_sense(pipeline: Path, tmp_path: Path, argv: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dynamics.main(config_of(pipeline, tmp_path / "out", *argv))
    assert not (tmp_path / "out").exists()


def other_agent(pipeline: Path, path: Path, recurrence: str) -> Path:
    with RolloutStore(pipeline / "rollouts") as store:
        agent = RecurrentAgent(
            AgentConfig(encoder="strided", embedding_size=16, hidden_size=8, recurrence=recurrence),  # type: ignore[arg-type]
            store.spec,
        )
    with artefacts.new_run(path, "train", {}) as run:
        save_agent(agent, run.path)
    return path


@pytest.mark.parametrize(("recurrence", "message"), [("none", "has no recurrence"), ("gru", "is of agent")])
def test_agents_that_do_not_fit(pipeline: Path, tmp_path: Path, recurrence: str, message: str) -> None:
    agent = other_agent(pipeline, tmp_path / "other", recurrence)
    argv = ["--agent", str(agent), "--rollouts", str(pipeline / "rollouts"), "--out", str(tmp_path / "out")]
    with pytest.raises(UserError, match=message):
        dynamics.main(cli.parse(dynamics.DynamicsConfig, argv, dynamics.STAGE))
    assert not (tmp_path / "out").exists()


def test_an_agents_states_are_those_that_were_recorded(pipeline: Path) -> None:
    agent = load_agent(pipeline / "agent")
    with RolloutStore(pipeline / "rollouts") as store:
        columns, _ = store.pooled("h", first=2)
        again = states(agent, store, range(len(store)), 2)
    assert torch.allclose(torch.from_numpy(again["h"]), torch.from_numpy(columns["h"]).double(), atol=1e-5)


def test_the_stage_compares_checkpoints(pipeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = similarity.SimilarityConfig(
        agents=(pipeline / "agent",), checkpoints=True, rollouts=pipeline / "rollouts",
        out=tmp_path / "out", episodes=5, exchanges=2, resamples=99, threads=1,
    )  # fmt: skip
    similarity.main(config)
    result = Result.load(tmp_path / "out")
    assert len(result.notes["agents"]) >= 2
    assert (tmp_path / "out" / "similarity.png").exists()
    assert "CKA" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"episodes": 2}, "--episodes"), ({"exchanges": 0}, "--exchanges"), ({"twice": True}, "--agents names .* twice")],
)
def test_bad_input(pipeline: Path, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    agents = (pipeline / "agent",) * (2 if changes.pop("twice", False) else 1)
    config = similarity.SimilarityConfig(
        agents=agents,
        rollouts=pipeline / "rollouts",
        out=tmp_path / "out",
        **changes,  # type: ignore[arg-type]
    )
    with pytest.raises(UserError, match=message):
        similarity.main(config)
    assert not (tmp_path / "out").exists()
