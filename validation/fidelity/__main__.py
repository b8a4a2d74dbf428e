"""How true is the simulator: ``python -m validation.fidelity --simulator DIR --rollouts DIR``.

Held-out real episodes against simulations that start from the same frames and are given the recorded
actions (free-running), the recorded frames too (teacher-forced), or nothing more (dreamed: the agent acts
as it likes).  Then, from snapshots of the real world, what recordings cannot tell
(counterfactual.py).  Every number stands beside what trivial predictions score (the last frame
seen, the mean), and beside the real-vs-real floor.  The measures are in measures.py, the figures in
figures.py.

B windows, I initial frames, k horizon: row k of a simulation is k steps after its last initial frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.load import load_agent
from analysis.shared.directions import changing, fit_pca, state_rank
from core import artefacts, config as cli
from core.contracts import Agent, UserError, VecEnv
from core.directions import Basis, fingerprint
from core.episodes import RolloutStore
from core.roll import Simulator
from core.video import check_video
from envs.procgen import HELD_OUT_LEVEL
from envs.registry import held_out_pool, make
from generative.load import load_simulator
from validation.fidelity import figures
from validation.fidelity.checks import check_lengths, check_store, check_world, trained_on
from validation.fidelity.counterfactual import DIRECTIONS, require_snapshots, try_again
from validation.fidelity.pairing import Paired, choose_starts, pair
from validation.fidelity.summary import print_table
from validation.fidelity.tables import compare

STAGE = "fidelity"


@dataclass(frozen=True, kw_only=True)
class FidelityConfig:
    """Compare a simulator with held-out real rollouts, step by step."""

    simulator: Path = Path("runs/simulator")
    """run directory of the simulator (with its agent)"""
    rollouts: Path = Path("runs/rollouts")
    """real rollouts of the same agent, on levels that the simulator was not trained on"""
    out: Path = Path("runs/fidelity")
    """run directory to write"""
    horizon: int = 32
    """simulated steps"""
    windows: int = 128
    """starts, spread evenly over the episodes; those of one episode count as one independent unit"""
    batch: int = 16
    """windows simulated at once"""
    counterfactual: bool = True
    """also try actions, gradients and another policy in the real world, which must take snapshots"""
    starts: int = 64
    """snapshots for that, each of another episode"""
    latest_start: int = 32
    """they are taken at a random step of the episode up to this one"""
    other_agent: Path | None = None
    """run directory of another agent of the same world, whose actions the simulator is given too; none: random ones"""
    start_level: int = HELD_OUT_LEVEL
    """first level of the pool the real world draws from (Procgen)"""
    num_levels: int = 100_000
    """size of that pool (Procgen)"""
    video: bool = True
    """MP4s of real above simulated"""
    seed: int = 0
    """seed of the starts, of all noise and of the bootstrap"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier comparison in --out"""


def load_other(config: FidelityConfig, simulator: Simulator[Any], device: torch.device) -> Agent | None:
    """The agent of --other_agent, or None; UserError unless it is another one of the same world."""
    if config.other_agent is None:
        return None
    if not config.counterfactual:
        raise UserError("--other_agent acts in the real world: leave --no-counterfactual out")
    other = load_agent(config.other_agent, device)
    check_world(other.spec, simulator.world.spec, str(config.other_agent))
    if fingerprint(other) == fingerprint(simulator.agent):
        raise UserError(f"--other_agent {config.other_agent} is the simulator's own agent")
    return other


def directions_of(p: Paired, agent: str) -> Basis:
    """The first principal components of the recorded hidden states; none where these never change."""
    h_NH = p.real.h[p.seen]
    if not changing(h_NH).any():
        empty = torch.zeros(h_NH.shape[1], 0)
        return Basis("pca", torch.zeros(len(empty)), torch.ones(len(empty)), empty, empty.T, agent)
    return fit_pca(h_NH, min(DIRECTIONS, state_rank(h_NH), len(h_NH) - 1), agent)


def main(config: FidelityConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, horizon=config.horizon, windows=config.windows, batch=config.batch)
    cli.require(2, starts=config.starts)
    simulator = load_simulator(config.simulator, device)
    other = load_other(config, simulator, device)
    if config.video:
        check_video()

    def make_env(slots: int) -> VecEnv:
        levels = held_out_pool(simulator.world.spec, config.start_level, config.num_levels)
        return make(simulator.world.spec, slots, threads=config.threads, **levels)

    if config.counterfactual:
        require_snapshots(make_env(1))
    rng = np.random.default_rng(config.seed)
    inputs = {"simulator": config.simulator, "rollouts": config.rollouts}
    if config.other_agent is not None:
        inputs["other_agent"] = config.other_agent
    with RolloutStore(config.rollouts) as store:
        check_store(store, simulator)
        check_lengths(store, simulator.world.initial_frames, config.horizon)
        starts = choose_starts(store, simulator.world.initial_frames + 1, config.windows, rng)
        with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
            paired = pair(simulator, store, starts, config.horizon, batch=config.batch, device=device, seed=config.seed)
            found = None
            if config.counterfactual:
                basis = directions_of(paired, fingerprint(simulator.agent)).to(device)
                found = try_again(
                    simulator, make_env, basis, rng, starts=config.starts, latest=config.latest_start,
                    horizon=config.horizon, seed=config.seed, other=other, device=device,
                )  # fmt: skip
            result = compare(paired, rng, found, simulator.world.spec.distinct_actions())
            result.notes["held_out"] = not trained_on(config.simulator, config.rollouts)
            result.save(run.path)
            figures.draw(result, run.path, simulator.world.spec.action_names, config.video)
            run.metrics = dict(result.scalars)
            run.facts = {"agent": fingerprint(simulator.agent), "simulator": fingerprint(simulator)}
    print_table(result)
    for words in result.notes["left_out"]:
        print(f"left out: {words}")
    if not result.notes["held_out"]:
        print("note: the simulator was trained on these very rollouts; record others for an honest comparison")
    print(f"fidelity over {len(starts)} windows of {len(np.unique(starts[:, 0]))} episodes: {config.out}")


if __name__ == "__main__":
    cli.run(FidelityConfig, main, STAGE)
