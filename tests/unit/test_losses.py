"""Windows as the simulator's loss sees them: which row belongs to which simulated step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from agents.recurrent import AgentConfig, RecurrentAgent
from core.artefacts import new_run, write_json
from core.contracts import EnvSpec, Field
from core.episodes import Episode, RolloutStore, StoreWriter
from envs.procgen import ACTION_NAMES
from generative.losses import Batch, LossConfig, draw, loss_of
from generative.rssm import ModelConfig
from generative.simulator import simulator_of
from generative.train import columns_of, to_batch

T, INITIAL, L = 12, 3, 6
SPEC = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=ACTION_NAMES,
    slots=1,
    gives_final_obs=False,
)


def batch_at(path: Path, start: int, terminated: bool) -> Batch:
    """The window of an episode whose every column counts its steps; no frame after the ending."""
    rows = T if terminated else T + 1
    count = np.arange(rows)
    episode = Episode(
        obs={"frames": np.broadcast_to(count[:, None, None, None], (rows, 64, 64, 3)).astype(np.uint8)},
        h=np.broadcast_to(count[:, None], (rows, 4)).astype(np.float32),
        value=count.astype(np.float32),
        action=np.arange(T),
        logits=np.zeros((T, 15), np.float32),
        reward=np.arange(T).astype(np.float32),
        terminated=terminated,
        truncated=not terminated,
    )
    with new_run(path, "record", {}) as run:
        write_json(run.path / "spec.json", SPEC.to_json())
        with StoreWriter(run.path) as writer:
            writer.add(episode)
    store = RolloutStore(path)
    window = store.read_windows(columns_of(store), np.array([[0, start]]), INITIAL - 1 + L)
    return to_batch(window, INITIAL, torch.device("cpu"))


def test_rows_of_a_window_that_ends_with_the_episode(tmp_path: Path) -> None:
    """Window T-5...: simulated step 0 is row 2; the terminal transition into step 3 has no frame."""
    b = batch_at(tmp_path / "r", T - 5, terminated=True)
    assert b.seen[0].tolist() == [True, True, True, False, False, False]
    assert b.happened[0].tolist() == [True, True, True, True, False, False]
    assert b.terminal[0].tolist() == [0, 0, 0, 1, 0, 0]
    assert b.reward[0, :4].tolist() == [8, 9, 10, 11]  # reward[t-1] leads into obs[t]
    assert b.action[0, :3].tolist() == [9, 10, 11]  # taken at obs[t]
    assert b.h[0, :3, 0].tolist() == [9, 10, 11]
    assert b.obs["frames"][0, INITIAL - 1 : INITIAL + 2, 0, 0, 0].tolist() == [9, 10, 11]
    assert b.state_before[0, 0] == 8 and b.action_before[0] == 8


def test_a_cut_episode_has_no_terminal_and_keeps_its_last_frame(tmp_path: Path) -> None:
    b = batch_at(tmp_path / "r", T - 5, terminated=False)
    assert b.seen[0].tolist() == [True, True, True, True, False, False]
    assert b.happened[0].tolist() == [True, True, True, True, False, False]
    assert not b.terminal.any()


def test_what_did_not_happen_does_not_count(tmp_path: Path) -> None:
    """Rows past the end and unseen frames can hold anything without changing the loss; seen ones cannot."""
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=4), SPEC)
    config = ModelConfig(
        deterministic_size=8, hidden_size=8, groups=2, classes=3, depth=2, head_layers=1, latent_size=4
    )
    sim = simulator_of(config, agent.requires_grad_(False))
    b = batch_at(tmp_path / "r", T - 5, terminated=True)

    def loss(batch: Batch) -> float:
        draws = draw(sim.world, 1, L, LossConfig(), torch.Generator().manual_seed(1))
        return float(loss_of(sim, batch, LossConfig(), draws)[0].detach())

    def changed(name: str, step: int, value: float) -> Batch:
        tensor = (b.obs["frames"] if name == "frames" else getattr(b, name)).clone()
        tensor[:, step] = value
        return replace(b, **({"obs": {"frames": tensor}} if name == "frames" else {name: tensor}))

    first = INITIAL - 1
    for name, step in (("frames", first + 3), ("frames", first + 5), ("h", 3), ("reward", 4), ("terminal", 5)):
        assert loss(changed(name, step, 7)) == loss(b), name
    for name, step in (("frames", first + 1), ("h", 2), ("reward", 3), ("terminal", 2)):
        assert loss(changed(name, step, 7)) != loss(b), name
