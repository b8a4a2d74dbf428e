"""Directions that carry a variable: ``python -m analysis.causal_directions --agent DIR --edit "remove coin"``.

A start in the real game (base) and the same start edited (source) differ in one thing.  The smallest subspace of the
hidden state is sought whose part of the source's, put into the base's, makes the agent act as in the edited world, and
put back undoes it (distributed alignment search; Geiger et al. 2023, arXiv:2303.02536).  Fitted on half of the levels,
judged on the other half, at once and steps later in the real game, beside PCA, ICA, a probe, random subspaces and the
whole state.  The subspace is written as a basis, ``--basis_kind causal`` of every stage that takes one.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.causal_directions", file=sys.stderr)
    sys.exit(2)

from dataclasses import dataclass
from pathlib import Path

import torch

from agents.load import load_agent
from analysis.causal_directions import subspaces
from analysis.causal_directions.figures import draw
from analysis.causal_directions.pairs import Pairs, lag_of, pairs_of
from analysis.causal_directions.study import LEAST_LEVELS, Asked, study
from analysis.shared.edit_starts import collect, fits
from analysis.shared.live import LiveConfig
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import Basis, bases_of, fingerprint, load_basis
from core.roll import action_noise
from core.words import counted
from envs.procgen_edits import parse_edit

STAGE = "causal_directions"
COLLECTORS = 64
BESIDE = ("pca", "ica")  # bases that subspaces are held against


@dataclass(frozen=True, kw_only=True)
class CausalDirectionsConfig(LiveConfig):
    """Find directions of the hidden state that carry what an edit changes (Procgen)."""

    edit: str = "remove coin"
    """the edit in which base and source differ, as 'remove saw nearest', 'add wall ahead 3', 'set velocity 0 0'"""
    transfer: tuple[str, ...] = ()
    """other edits of the same variable, to which the subspaces are carried over unchanged"""
    ranks: tuple[int, ...] = (1, 2, 4, 8)
    """dimensions of the subspaces, each fitted by itself"""
    basis: Path | None = None
    """hidden-states run directory: its pca and ica directions are tried beside; none: they are not"""
    out: Path = Path("runs/causal_directions")
    """run directory to write"""
    starts: int = 256
    """pairs, each of another episode; half of the levels fit, the other half judges"""
    horizon: int = 8
    """steps after the patch over which runs are compared"""
    lag: int | None = None
    """steps after the edit, with the same actions in both worlds, at which hidden states are exchanged; default: 0, and
    2 for what a picture hardly shows (velocity)"""
    latest_start: int = 64
    """starts are taken at a random step of the episode up to this one, or at the first later one that fits"""
    start_level: int = 800_000_000
    """first level of the pool"""
    draws: int = 20
    """random subspaces of each rank (5 of them are played on)"""
    steps: int = 300
    """gradient steps of a fit"""


def main(config: CausalDirectionsConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, horizon=config.horizon, steps=config.steps, draws=config.draws, threads=config.threads)
    cli.require(2 * LEAST_LEVELS, starts=config.starts)
    cli.require(0, seed=config.seed, latest_start=config.latest_start)
    inputs = artefacts.Inputs({"agent": config.agent, "basis": config.basis})
    agent = load_agent(config.agent, device)
    made = config.worlds(agent.spec)
    game = agent.spec.env_id.partition("/")[2]
    edit, transfer = parse_edit(config.edit, game), [parse_edit(text, game) for text in config.transfer]
    names = [one.words for one in (edit, *transfer)]
    for words in names:
        if names.count(words) > 1:
            raise UserError(f"edit {words!r} is there twice")
    size = agent.points["h"]
    ranks = tuple(sorted({*config.ranks}))
    if not ranks or ranks[0] < 1 or ranks[-1] > size:
        raise UserError(f"--ranks {' '.join(map(str, config.ranks))}: h has {size} dimensions, choose from 1 to {size}")
    lag = lag_of(edit) if config.lag is None else config.lag
    cli.require(0, lag=lag)
    bases: dict[str, Basis] = {}
    if config.basis is not None:
        there = [kind for kind in BESIDE if kind in bases_of(config.basis)]
        if not there:
            raise UserError(f"{config.basis} has neither a pca nor an ica basis to hold subspaces against")
        bases = {kind: load_basis(config.basis, kind, fingerprint(agent)).to(device) for kind in there}
    options = subspaces.FitOptions(steps=config.steps, seed=config.seed)
    asked = Asked(edit.words, ranks, config.horizon, config.draws, config.seed)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        collector = made(min(config.starts, COLLECTORS))
        try:
            starts = collect(
                agent, collector, [edit], config.starts, initial_frames=1, latest=config.latest_start, seed=config.seed,
                greedy=config.greedy, device=device,
            )  # fmt: skip
        finally:
            collector.close()
        shape = (len(starts), lag + config.horizon + 1, agent.spec.n_actions)
        generator = torch.Generator().manual_seed(config.seed)
        noise = action_noise(shape, generator, config.greedy)
        twins: dict[str, Pairs] = {}
        world = made(len(starts))
        try:
            for one in (edit, *transfer):
                here = [fits(one, s) for s in starts.states]
                twins[one.words] = pairs_of(agent, world, starts, here, lag, noise.to(device))
        finally:
            world.close()
        pairs = twins.pop(edit.words)
        result, found, states_MH = study(agent, pairs, twins, made, asked, options, bases)
        result.save(run.path)
        rank = result.notes["rank"]
        facts = {"edit": edit.words, "lag": lag, "rank": rank, "carries": result.notes["carries"],
                 "interchange_accuracy": result.scalars["interchange_accuracy"]}  # fmt: skip
        subspaces.as_basis(found[rank], states_MH, fingerprint(agent), facts).save(run.path)
        with run.figures():
            draw(result, run.path, edit.words)
        run.facts = {"agent": fingerprint(agent)}
        run.metrics |= result.scalars
    for claim in result.notes["claims"]:
        print(claim["text"])
    print(f"basis causal, {counted(rank, 'direction')} (--basis_kind causal): {config.out}")


if __name__ == "__main__":
    cli.run(CausalDirectionsConfig, main, STAGE)
