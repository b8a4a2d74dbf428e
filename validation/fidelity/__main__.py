"""How true is the simulator: ``python -m validation.fidelity --simulator DIR --rollouts DIR``.

Held-out real episodes against simulations that start from the same frames and are given the recorded
actions (free-running), the recorded frames too (teacher-forced), or nothing more (dreamed: the agent acts by itself,
beside the episodes in which it did so in the record).  Then, from snapshots of the real world, what recordings cannot
tell (counterfactual.py).  Every number stands beside what trivial predictions score (the last frame seen, the mean),
and beside the real-vs-real floor.  The measures are in measures.py, the figures in figures.py.

``--rungs all`` adds what is dearer, each in a file of its own: frames by region (regions.py), what right actions are
worth, a judge and ensembles (along.py), effects through enumerated actions (effects.py), places that come back into
view (there_and_back.py), the ranking of policies (ranking.py).

B windows, I initial frames, k horizon: row k of a simulation is k steps after its last initial frame.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.fidelity", file=sys.stderr)
    sys.exit(2)

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from agents.load import load_agent
from analysis.shared.directions import changing, fit_pca, state_rank
from analysis.shared.exploration import played_greedily
from core import artefacts, config as cli
from core.contracts import Agent, UserError, VecEnv
from core.directions import Basis, fingerprint
from core.episodes import RolloutStore
from core.roll import Simulator
from core.video import check_video
from envs.procgen import HELD_OUT_LEVEL
from envs.registry import held_out_facts, held_out_pool, make
from generative.load import check_world, load_ensemble, members_as_inputs
from generative.splits import trained_on
from generative.starts import Informed, informed_by, note_forgotten, state_column_of
from validation.fidelity import figures
from validation.fidelity.along import Ensemble, Judge, RandomActions
from validation.fidelity.checks import check_dreams, check_lengths, check_store
from validation.fidelity.counterfactual import DIRECTIONS, require_snapshots
from validation.fidelity.pairing import Paired, Rung, choose_starts, pair
from validation.fidelity.regions import Regions
from validation.fidelity.snapshots import try_again
from validation.fidelity.summary import print_table
from validation.fidelity.tables import compare
from validation.fidelity.whole import as_whole, whole_actions

STAGE = "fidelity"


@dataclass(frozen=True, kw_only=True)
class FidelityConfig:
    """Compare a simulator with held-out real rollouts, step by step."""

    simulator: tuple[Path, ...] = (Path("runs/simulator"),)
    """run directory of the simulator (with its agent); of several, the first is compared, and all together are an
    ensemble: do their differences tell how wrong they are?"""
    rollouts: Path = Path("runs/rollouts")
    """real rollouts of the same agent, on levels that the simulator was not trained on; dreams are compared with those
    of its episodes in which it does not explore"""
    out: Path = Path("runs/fidelity")
    """run directory to write"""
    horizon: int = 32
    """simulated steps"""
    windows: int = 128
    """starts, spread evenly over the episodes; those of one episode count as one independent unit"""
    batch: int = 16
    """windows simulated at once"""
    start_from: Informed | None = None
    """recorded: simulations begin with the real frame shown unchanged and the agent's recorded state; inferred: as the
    simulator reads both off the frames; none: as its kind was trained to"""
    rungs: Literal["quick", "all"] = "all"
    """all: regions of frames, worth of right actions, survival, effects through enumerated actions, places that come
    back into view and the ranking of policies, too"""
    judge: Path | None = None
    """run directory of another agent of the same world: does it do in simulated frames what it does in real ones?"""
    policies: tuple[Path, ...] = ()
    """run directories of further agents of the same world, ranked beside the twelve made of the simulator's own"""
    ranking_steps: int = 64
    """steps within which the rewards of ranked policies count"""
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


def load_other(path: Path, flag: str, simulator: Simulator[Any], device: torch.device) -> Agent:
    """Another agent of the simulator's world; UserError unless it is one."""
    other = load_agent(path, device)
    check_world(other.spec, simulator.world.spec, str(path))
    if fingerprint(other) == fingerprint(simulator.agent):
        raise UserError(f"{flag} {path} is the simulator's own agent")
    return other


def directions_of(p: Paired, agent: str) -> Basis:
    """The first principal components of the recorded hidden states; none where these never change."""
    h_NH = p.real.h[p.seen]
    if not changing(h_NH).any():
        empty = torch.zeros(h_NH.shape[1], 0)
        return Basis("pca", torch.zeros(len(empty)), torch.ones(len(empty)), empty, empty.T, agent)
    return fit_pca(h_NH, min(DIRECTIONS, state_rank(h_NH), len(h_NH) - 1), agent)


def inputs_of(config: FidelityConfig) -> artefacts.Inputs:
    """What is measured, then what it is compared with."""
    return artefacts.Inputs({
        "simulator": next(iter(config.simulator), None), "rollouts": config.rollouts,
        **members_as_inputs(config.simulator),
        **{f"other_policy_{i}": path for i, path in enumerate(config.policies, 1)},
        "other_judge": config.judge, "other_agent": config.other_agent,
    })  # fmt: skip


def main(config: FidelityConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, **{name: getattr(config, name) for name in ("horizon", "windows", "batch", "ranking_steps")})
    cli.require(2, starts=config.starts)
    inputs = inputs_of(config)
    members = load_ensemble(config.simulator, device)
    simulator, asked = members[0], config.rungs == "all"
    acts: dict[str, Any] = {"--other_agent": config.other_agent, "--policies": config.policies}
    for flag, given in acts.items():
        if given and not config.counterfactual:
            raise UserError(f"{flag} acts in the real world: leave --no-counterfactual out")
    more: dict[str, Any] = {"--judge": config.judge, "--policies": config.policies, "an ensemble": members[1:]}
    for what, given in more.items():
        if given and not asked:
            raise UserError(f"{what} is measured with --rungs all, not with --rungs quick")
    other = judge = None
    if config.other_agent is not None:
        other = load_other(config.other_agent, "--other_agent", simulator, device)
    if config.judge is not None:
        judge = load_other(config.judge, "--judge", simulator, device)
    policies = {str(path): load_other(path, "--policies", simulator, device) for path in config.policies}
    if config.video:
        check_video()

    def make_env(slots: int) -> VecEnv:
        levels = held_out_pool(simulator.world.spec, config.start_level, config.num_levels)
        return make(simulator.world.spec, slots, threads=config.threads, **levels)

    if config.counterfactual:
        require_snapshots(make_env(1))
    doubted = held_out_facts(simulator.world.spec) if config.counterfactual else {}
    rng = np.random.default_rng(config.seed)
    spec = simulator.world.spec
    distinct, whole = spec.distinct_actions(), whole_actions(spec)
    does = {name: [i] for i, name in enumerate(whole)} if spec.action_parts else distinct
    rungs: list[Rung] = []
    if asked:
        rungs = [Regions(), RandomActions(simulator, distinct, np.random.default_rng([config.seed, 1]))]
        rungs += [] if judge is None else [Judge(judge, does)]
        rungs += [Ensemble(members[1:])] if len(members) > 1 else []
    with RolloutStore(config.rollouts) as store:
        check_store(store, simulator)
        check_lengths(store, simulator.world.initial_frames, config.horizon)
        starts = choose_starts(store, simulator.world.initial_frames + 1, config.windows, rng)
        check_dreams(store, starts)
        start_from = informed_by(simulator.world, config.start_from)
        note_forgotten(simulator, config.start_from, "--start_from")
        if start_from == "recorded":
            state_column_of(simulator.agent, store.episode(int(starts[0, 0])))
        with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
            paired = pair(
                simulator, store, starts, config.horizon, batch=config.batch, device=device, seed=config.seed,
                start_from=start_from, rungs=rungs, greedy=played_greedily(store),
            )  # fmt: skip
            found = None
            if config.counterfactual:
                basis = directions_of(paired, fingerprint(simulator.agent)).to(device)
                found = try_again(
                    simulator, make_env, basis, rng, starts=config.starts, latest=config.latest_start,
                    horizon=config.horizon, seed=config.seed, other=other, device=device, start_from=start_from,
                    further=asked, policies=policies, ranking_steps=config.ranking_steps,
                )  # fmt: skip
            result = compare(as_whole(paired, spec), rng, found, does, rungs if asked else None)
            seen = trained_on(config.simulator, store)
            result.notes |= {"held_out": not seen, "trained_on": seen, "start_from": start_from}
            result.notes["field"] = spec.main_field
            result.save(run.path)
            with run.figures():
                figures.draw(result, run.path, whole, config.video)
            run.metrics = dict(result.scalars)
            run.facts = {"agent": fingerprint(simulator.agent), "simulator": fingerprint(simulator), **doubted}
    print_table(result)
    for words in result.notes["left_out"]:
        print(f"left out: {words}")
    if not result.notes["held_out"]:
        print(f"note: {result.notes['trained_on']}; record others for an honest comparison")
    print(f"fidelity over {len(starts)} windows of {len(np.unique(starts[:, 0]))} episodes: {config.out}")


if __name__ == "__main__":
    cli.run(FidelityConfig, main, STAGE, shared=True)
