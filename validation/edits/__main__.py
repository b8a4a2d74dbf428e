"""Edit the real game and see what follows: ``python -m validation.edits --edits "remove coin" "remove saw nearest"``.

Edits are words (envs/procgen_edits.py): remove, move, add and set.  Each is made in the real game at starts of episodes
of their own, beside an unedited twin with the same action noise: whole, through the pixels alone, through the world
alone, and from the episode's first step on.  With a simulator, what it foretells from the edited frames is compared
with what came.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.edits", file=sys.stderr)
    sys.exit(2)

import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from analysis.shared.events import Event, parse_events
from analysis.shared.live import LiveConfig
from core import artefacts, config as cli
from core.conditions import check_behaviours
from core.contracts import EnvSpec, UserError
from core.directions import Basis, direction_ids, fingerprint, load_basis
from core.when import Rule, load_rule
from generative.load import load_simulator
from validation.edits.coupled import Edge, load_edges
from validation.edits.figures import draw
from validation.edits.study import EditOptions, study
from validation.hypotheses.grammar import EditHypothesis, check_events, parse_edit_hypothesis
from validation.interventions.controls import FEWEST
from validation.interventions.options import claimed
from validation.interventions.verdicts import LEAST_STARTS
from validation.paired.course import OF_EVENTS, choices_of

STAGE = "edits"


@dataclass(frozen=True, kw_only=True)
class EditsConfig(LiveConfig):
    """Remove, move or add objects in the real game (Procgen), and compare with what was foretold."""

    simulator: Path | None = None
    """run directory of a simulator: it foretells from the edited frames (its agent is then the one that is studied)"""
    edits: tuple[str, ...] = ("remove coin",)
    """edits, each in quotes, in the grammar of hypotheses: 'remove saw nearest when behaviour=6 on value', 'move coin
    by 3 0 on prob:right', 'remove coin through pixels since episode', 'add wall ahead 2 sufficient for jump_started',
    'set velocity 0 0'; without 'on' the claim is of the return"""
    events: tuple[str, ...] = ()
    """events that edits speak of, each in quotes: 'scared: value < 2 and action in (up, upleft, upright)'; none: those
    of the game (death, reward and, where one jumps, jump_started)"""
    behaviours: Path | None = None
    """behaviours run directory, for 'when behaviour=ID'"""
    controls: int = 8
    """others in the same picture that the same edit is made to at every start, which tell whether what is claimed is
    special; 0: it is not asked"""
    basis: Path | None = None
    """hidden-states run directory, for --directions and for edits that name a direction: 'on ica:5', 'when ica:1 above
    3'"""
    basis_kind: str = "ica"
    """which basis of --basis: pca, ica, nmf, neurons, probe (of analysis.probes)"""
    directions: tuple[str, ...] = ()
    """directions, as ica:0 or 0, said to carry the object: what the edit does to their coordinates, and what is left of
    its effects when they are set back to what they were, or everything but they is; none: no directions"""
    coupling: Path | None = None
    """coupling run directory, whose drawn edges are tried: does the edit move the source, the target and the action,
    and is that restored where the source is set back? (with the basis that it was made from)"""
    edges: int = 4
    """how many of them, the strongest between different directions"""
    random_directions: int = 39
    """random directions that each source is held against"""
    out: Path = Path("runs/edits")
    """run directory to write"""
    starts: int = 128
    """paired starts, each of another episode, at which some edit can be made to something in the picture"""
    horizon: int = 8
    """steps after the start at which late effects are measured"""
    latest_start: int = 64
    """starts are taken at a random step of the episode up to this one, or at the first later one that fits"""


def parsed(
    config: EditsConfig, spec: EnvSpec, basis: Basis | None, rule: Rule | None
) -> tuple[tuple[EditHypothesis, ...], tuple[Event, ...]]:
    """The hypotheses, and the events that they speak of or that are asked for; UserError on what is wrong with them."""
    game = spec.env_id.partition("/")[2]
    hypotheses = tuple(parse_edit_hypothesis(text, game, basis) for text in config.edits)
    if not hypotheses:
        raise UserError("--edits names none")
    for h in hypotheses:
        if hypotheses.count(h) > 1:
            raise UserError(f"edit {h.name!r} is there twice")
        check_behaviours(h.when, rule, f"edit {h.name!r}")
        if h.role and config.simulator is None:
            raise UserError(f"edit {h.name!r}: '{h.role} for' needs a simulator; say 'on event:{h.event}'")
    events: tuple[Event, ...] = ()
    if config.events or any(h.role or h.on.partition(":")[0] in OF_EVENTS for h in hypotheses):
        events = parse_events(config.events, spec.action_names, 0 if basis is None else basis.size, spec.same_actions,
                              spec.events)  # fmt: skip
    check_events(hypotheses, [e.name for e in events])
    known = ["value", "reward", "return", "ended", *(f"prob:{a}" for a in choices_of(spec))]
    known += [f"{kind}:{e.name}" for kind in OF_EVENTS for e in events]
    for h in hypotheses:
        claimed(h, [f"{q}@" for q in known], "" if basis is None else basis.kind, config.horizon)
    return hypotheses, events


def main(config: EditsConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, horizon=config.horizon, edges=config.edges)
    cli.require(FEWEST, random_directions=config.random_directions)
    cli.require(LEAST_STARTS, starts=config.starts)
    cli.require(0, seed=config.seed, latest_start=config.latest_start, controls=config.controls)
    inputs = artefacts.Inputs({
        "agent": config.agent if config.simulator is None else None, "simulator": config.simulator,
        "coupling": config.coupling, "basis": config.basis, "behaviours": config.behaviours,
    })  # fmt: skip
    simulator = None if config.simulator is None else load_simulator(config.simulator, device)
    agent = config.studied(simulator, device)
    made = config.worlds(agent.spec)
    basis = None
    edges: tuple[Edge, ...] = ()
    if config.coupling is not None:
        where, basis, edges = load_edges(config.coupling, config.basis, config.edges, fingerprint(agent))
        inputs |= {} if config.basis is not None else {"basis": where}
        if (longest := max(edge.lag for edge in edges)) > config.horizon:
            raise UserError(f"an edge of {config.coupling} is {longest} steps long: give --horizon {longest} or more")
    elif config.basis is not None:
        basis = load_basis(config.basis, config.basis_kind, agent=fingerprint(agent))
    elif config.directions:
        raise UserError("--directions are those of a basis: give --basis")
    directions: tuple[int, ...] = ()
    if basis is not None:
        basis = basis.to(device)
        directions = tuple(direction_ids(config.directions, basis, "--directions"))
        basis.check(directions)
    rule = None if config.behaviours is None else load_rule(config.behaviours, fingerprint(agent)).to(device)
    with nullcontext() if basis is None else basis.wording():
        hypotheses, events = parsed(config, agent.spec, basis, rule)
    options = EditOptions(
        hypotheses=hypotheses, starts=config.starts, horizon=config.horizon, latest=config.latest_start,
        seed=config.seed, greedy=config.greedy, events=events, directions=directions, controls=config.controls,
        edges=edges, random=config.random_directions,
    )  # fmt: skip
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result = study(agent, made, options, simulator=simulator, basis=basis, rule=rule, device=device)
        result.save(run.path)
        run.facts = {"agent": fingerprint(agent)}
        if simulator is not None:
            run.facts["simulator"] = fingerprint(simulator)
        with run.figures():
            draw(result, run.path)
        for row in result.tables["effects"]:
            if row["quantity"] == f"return@{config.horizon}" and math.isfinite(row["effect"]):
                run.record(f"{row['edit']}, {row['way']}".replace(" ", "_"), row["effect"], row["unit"], row["n"])
    for claim in result.notes["claims"]:
        print(claim["text"])
    for row in result.tables.get("coupling", []):
        if row["quantity"] == "policy":
            print(row["sentence"])
    if (levels := result.notes["levels"]) < config.starts:
        print(f"note: the {config.starts} starts are of {levels} levels; those of one level are no independent units: "
              "intervals are about these levels alone")  # fmt: skip
    edits, effects = result.tables["edits"], result.tables["effects"]
    seen = sum(row["exists"] == "yes" for row in effects)
    print(f"{len(edits)} edits, {seen} of {len(effects)} effects are shown to exist: {config.out}")


if __name__ == "__main__":
    cli.run(EditsConfig, main, STAGE)
