"""Edit the real game and see what follows: ``python -m validation.edits --edits "remove coin" "remove saw nearest"``.

Edits are words (envs/procgen_edits.py): remove, move, add and set.  Each is made in the real game at starts of episodes
of their own, beside an unedited twin with the same action noise: whole, through the pixels alone, through the world
alone, and from the episode's first step on.  With a simulator, what it foretells from the edited frames is compared
with what came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agents.load import load_agent
from analysis.shared.live import LiveConfig
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import direction_ids, fingerprint, load_basis
from envs.procgen_edits import parse_edit
from generative.load import load_simulator
from validation.edits.figures import draw
from validation.edits.study import EditOptions, study
from validation.interventions.verdicts import LEAST_STARTS

STAGE = "edits"


@dataclass(frozen=True, kw_only=True)
class EditsConfig(LiveConfig):
    """Remove, move or add objects in the real game (Procgen), and compare with what was foretold."""

    simulator: Path | None = None
    """run directory of a simulator: it foretells from the edited frames (its agent is then the one that is studied)"""
    edits: tuple[str, ...] = ("remove coin",)
    """edits, each in quotes: 'remove saw nearest', 'move coin by 3 0', 'add wall ahead 2', 'set velocity 0 0'"""
    basis: Path | None = None
    """hidden-states run directory, for --directions"""
    basis_kind: str = "ica"
    """which basis of --basis: pca, ica, nmf, neurons"""
    directions: tuple[str, ...] = ()
    """directions, as ica:0 or 0, said to carry the object: what the edit does to their coordinates, and what is left of
    its effects when they are set back to what they were, or everything but they is; none: no directions"""
    out: Path = Path("runs/edits")
    """run directory to write"""
    starts: int = 128
    """paired starts, each of another episode, at which some edit can be made to something in the picture"""
    horizon: int = 8
    """steps after the start at which late effects are measured"""
    latest_start: int = 64
    """starts are taken at a random step of the episode up to this one, or at the first later one that fits"""


def main(config: EditsConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, horizon=config.horizon)
    cli.require(LEAST_STARTS, starts=config.starts)
    cli.require(0, seed=config.seed, latest_start=config.latest_start)
    simulator = None if config.simulator is None else load_simulator(config.simulator, device)
    agent = load_agent(config.agent, device) if simulator is None else simulator.agent
    made = config.worlds(agent.spec)
    game = agent.spec.env_id.partition("/")[2]
    edits = tuple(parse_edit(text, game) for text in config.edits)
    if not edits:
        raise UserError("--edits names none")
    for words in (names := [edit.words for edit in edits]):
        if names.count(words) > 1:
            raise UserError(f"edit {words!r} is there twice")
    basis = None
    directions: tuple[int, ...] = ()
    if config.basis is not None:
        basis = load_basis(config.basis, config.basis_kind, agent=fingerprint(agent))
        directions = tuple(direction_ids(config.directions, config.basis_kind, "--directions"))
        basis.check(directions)
    elif config.directions:
        raise UserError("--directions are those of a basis: give --basis")
    options = EditOptions(
        edits=edits, starts=config.starts, horizon=config.horizon, latest=config.latest_start, seed=config.seed,
        greedy=config.greedy, directions=directions,
    )  # fmt: skip
    inputs: dict[str, Any] = {"agent": config.agent} if config.simulator is None else {"simulator": config.simulator}
    inputs |= {} if config.basis is None else {"basis": config.basis}
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result = study(agent, made, options, simulator=simulator, basis=basis, device=device)
        result.save(run.path)
        run.facts = {"agent": fingerprint(agent)}
        if simulator is not None:
            run.facts["simulator"] = fingerprint(simulator)
        draw(result, run.path)
        for row in result.tables["effects"]:
            if row["quantity"] == f"return@{config.horizon}" and math.isfinite(row["effect"]):
                run.record(f"{row['edit']}, {row['way']}".replace(" ", "_"), row["effect"], row["unit"], row["n"])
    for claim in result.notes["claims"]:
        print(claim["text"])
    seen = sum(row["exists"] == "yes" for row in result.tables["effects"])
    print(f"{len(edits)} edits, {seen} of {len(result.tables['effects'])} effects exist: {config.out}")


if __name__ == "__main__":
    cli.run(EditsConfig, main, STAGE)
