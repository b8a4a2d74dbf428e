"""Other games and other agents through the whole chain: nothing in it knows CoinRun or needs a memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agents import record, train as train_agent
from agents.recurrent import load_agent
from analysis.coupling import __main__ as coupling
from analysis.saliency import __main__ as saliency
from analysis.target_functions import __main__ as target_functions
from core import artefacts, config as cli
from core.artefacts import Result
from core.directions import Basis, fingerprint
from core.episodes import RolloutStore
from generative import record_samples, train as train_gen
from generative.simulator import load_simulator

DEBUG = ["--preset", "debug", "--threads", "1"]


def stage(module: object, config_name: str, *argv: object) -> None:
    cls = getattr(module, config_name)
    module.main(cli.parse(cls, [*DEBUG, *map(str, argv)], module.STAGE))  # type: ignore[attr-defined]


@pytest.mark.parametrize(("game", "recurrence"), [("bigfish", "none"), ("fruitbot", "gru")])
def test_any_game_and_any_agent(game: str, recurrence: str, tmp_path: Path) -> None:
    agent, rollouts, simulator, samples = (tmp_path / n for n in ("agent", "rollouts", "simulator", "samples"))
    stage(train_agent, "TrainConfig", "--game", game, "--recurrence", recurrence, "--out", agent)
    stage(record, "RecordConfig", "--agent", agent, "--out", rollouts, "--episodes", 4)
    stage(train_gen, "GenTrainConfig", "--agent", agent, "--rollouts", rollouts, "--out", simulator)
    starts = ["--simulator", simulator, "--rollouts", rollouts]
    stage(record_samples, "RecordSamplesConfig", *starts, "--stochastic", "--out", tmp_path / "stochastic")
    stage(record_samples, "RecordSamplesConfig", *starts, "--out", samples)
    real, dreamt, sim = RolloutStore(rollouts), RolloutStore(samples), load_simulator(simulator)
    assert real.spec.env_id == dreamt.spec.env_id == f"procgen/{game}"
    assert sim.agent.config.recurrence == recurrence
    assert fingerprint(sim.agent) == fingerprint(load_agent(agent)) == dreamt.manifest["facts"]["agent"]
    assert artefacts.verify(samples) == []
    # Samples look like this game's frames more than like none: the untrained decoder would give grey.
    with open(simulator / "curve.csv") as file:
        header, *rows = file.read().splitlines()
    mse = [float(row.split(",")[header.split(",").index("free_mse")]) for row in rows]
    assert len(mse) == 2 and mse[1] < mse[0]
    if recurrence == "none":  # what a hidden state says is said by its own frame
        episode = real.episode(0)
        e = sim.agent.encode({"frames": torch.from_numpy(episode.obs["frames"])})
        h = sim.agent.advance(e, torch.ones(len(e), sim.agent.points["h"]), torch.zeros(len(e), dtype=torch.bool))
        np.testing.assert_allclose(h, episode.h, atol=1e-5)


def test_analyses_of_an_agent_without_memory(tmp_path: Path) -> None:
    """Gradients with respect to a past that it forgets are 0, through the world they are not; no stage stumbles."""
    from agents.recurrent import AgentConfig, RecurrentAgent
    from core.contracts import EnvSpec, Field
    from envs.procgen import ACTION_NAMES
    from generative.rssm import ModelConfig
    from generative.simulator import save_simulator, simulator_of

    frames = {"frames": Field(shape=(64, 64, 3), dtype="uint8")}
    spec = EnvSpec(env_id="procgen/bigfish", obs=frames, action_names=ACTION_NAMES, slots=1)
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=6, recurrence="none"), spec)
    torch.nn.init.normal_(agent.policy.weight, std=2.0)
    sizes = {"deterministic_size": 12, "hidden_size": 16, "groups": 3, "classes": 4, "depth": 2, "latent_size": 6}
    simulator = simulator_of(ModelConfig(head_layers=1, **sizes), agent)
    torch.nn.init.normal_(simulator.world.decoder.first.weight, std=1.0)
    torch.nn.init.constant_(simulator.world.terminal_head[-1].bias, -3.0)
    sim, samples, hidden = (tmp_path / n for n in ("simulator", "samples", "hidden_states"))
    with artefacts.new_run(sim, "train_gen_model", {}) as run:
        save_simulator(simulator, run.path)
    eye = torch.eye(6)
    with artefacts.new_run(hidden, "hidden_states", {}) as run:
        Basis("ica", torch.zeros(6), torch.ones(6), eye, eye, agent=fingerprint(agent)).save(run.path)
    stage(record_samples, "RecordSamplesConfig", "--simulator", sim, "--out", samples, "--samples", 12)
    common = ["--simulator", sim, "--samples", samples]
    stage(saliency, "SaliencyConfig", *common, "--out", tmp_path / "saliency")
    found = Result.load(tmp_path / "saliency").arrays
    target = 3  # of the debug preset
    assert np.abs(found["grad_h_value_agent_only"][:, target]).max() > 0
    assert (found["grad_h_value_agent_only"][:, :target] == 0).all()
    assert np.abs(found["grad_h_value"][:, :target]).max() > 0
    stage(coupling, "CouplingConfig", *common, "--hidden_states", hidden, "--behaviours", "None",
          "--out", tmp_path / "coupling")  # fmt: skip
    found = Result.load(tmp_path / "coupling").arrays
    assert (found["jacobian_agent_only"] == 0).all() and np.abs(found["jacobian"]).max() > 0
    stage(target_functions, "TargetFunctionsConfig", "--simulator", sim, "--maximise", "value_drop", "ica_1",
          "--hidden_states", hidden, "--out", tmp_path / "targets")  # fmt: skip
    assert [row["n"] for row in Result.load(tmp_path / "targets").tables["targets"]] == [3, 3]
