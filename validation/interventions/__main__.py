"""Predict, intervene, compare: ``python -m validation.interventions --simulator DIR --hidden_states DIR``.

Without a simulator (``--policy DIR --basis DIR``) only the real world is asked (validation/interventions/alone.py).

A hypothesis is a change of the hidden state along some directions (validation.hypotheses has the words);
a JSON file with hypotheses and events is a study of your own: ``--config docs/study.json``.
Every start is run on twice, with the change and without, from the same state, the same h and the same action
noise, in the simulator and in the real world.  The heads are linear, so what the change does *at*
step 0 to logits and value follows from the agent's weights alone: it is no test.  The test is what
comes later (quantities with an ``@``), which only a world answers.

N starts (each of its own episode, so each an independent unit), G hypotheses, k horizon.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.interventions", file=sys.stderr)
    sys.exit(2)

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from agents.load import load_agent
from analysis.shared.behaviours import load_behaviours
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import EnvSpec, UserError, VecEnv
from core.directions import FAR_OUTSIDE, LABEL, Basis, direction_ids, fingerprint, load_basis
from core.interventions import parse_ids
from core.video import check_video
from core.when import Rule, load_rule
from core.words import counted
from envs.nmmo import MAPS
from envs.procgen import ProcgenEnv
from envs.procgen_truth import WithTruth
from envs.registry import held_out_facts, held_out_pool, make
from generative.load import load_ensemble, members_as_inputs
from validation.interventions.alone import alone, matched_in, names_told
from validation.interventions.figures import draw_claims, draw_effects, draw_headline, draw_needs, short, write_videos
from validation.interventions.options import ChooseBy, StudyOptions, check_options, parse_study
from validation.interventions.study import study
from validation.interventions.tables import by_behaviour
from validation.interventions.verdicts import SMALLEST
from validation.interventions.world_edits import parse_world_edits, told_of

STAGE = "interventions"


@dataclass(frozen=True, kw_only=True)
class InterventionsConfig:
    """Change directions of the hidden state; compare the simulator's prediction with the real world."""

    simulator: tuple[Path, ...] = (Path("runs/simulator"),)
    """run directory of the simulator (with its agent); of several, which are an ensemble of one agent, the first
    chooses and foretells, and every claim says whether the others foretell the same"""
    policy: Path | None = None
    """run directory of an agent, in place of a simulator: the change is made in the real world alone, and nothing is
    predicted"""
    hidden_states: Path = Path("runs/hidden_states")
    """hidden-states run directory with the directions"""
    basis: Path | None = None
    """same as --hidden_states, under the name that the stages of policies know"""
    behaviours: Path | None = None
    """behaviours run directory: effects are also given for each behaviour that starts are in"""
    out: Path = Path("runs/interventions")
    """run directory to write"""
    basis_kind: str = "ica"
    """which basis of --hidden_states: pca, ica, nmf, neurons, probe (of analysis.probes)"""
    hypotheses: tuple[str, ...] = ()
    """changes to test, instead of --directions and --amounts, each in quotes: 'shift ica:5 by +2', 'collapse ica:5
    ica:9 always necessary for jump_started', 'swap ica:5 ica:9', 'keep_only ica:5', 'resample ica:5 through memory',
    'shift ica:5 by +2 always on time:death', 'patch ica:5 clean scared',
    'patch ica:all clean hungry matched age row col',
    'shift ica:5 by +2 for 4 steps through world when behaviour=3 sufficient for death'"""
    events: tuple[str, ...] = ()
    """events to measure: names that the world has (death, jump_started ...), or in quotes 'scared: value < 2 and
    action in (up, upleft, upright)'; without a simulator also of what is so in the world: 'eats: rises(food)'; none:
    those that the world has"""
    world_edits: tuple[str, ...] = ()
    """numbers of the world itself to set at the starts, each in quotes: 'health = 2'; without a simulator, in worlds
    that can.  The control of what the agent cannot see: at once it must do nothing"""
    shown_edits: tuple[str, ...] = ()
    """the same numbers in what the agent is shown alone, from the starts on: the world goes on as it is"""
    directions: tuple[str, ...] = ("0", "1")
    """the directions to test, such as ica:0 ica:1, or largest N: the N whose late effect the simulator predicts
    to be largest (chosen before the real world is asked)"""
    amounts: tuple[float, ...] = (-2.0, -1.0, 0.0, 1.0, 2.0)
    """changes to test, in units of the direction's coordinate (standard deviations for PCA and ICA)"""
    always: bool = False
    """make the changes of --directions at every step, not at the start alone"""
    choose_by: ChooseBy = "effect"
    """what the largest is sought of, where directions, change or quantity are chosen: effect: the late effect; world:
    what of it runs through the world, beyond the agent's memory"""
    starts: int = 64
    """paired starts, each of another episode (of a world of many agents: of another world)"""
    choosing_starts: int = 0
    """starts of their own that directions, changes and quantities are chosen on, at least 32; 0: as many as --starts"""
    who: Literal["one", "all"] = "one"
    """agents that are altered where a world has many: one a world, or all"""
    maps: Path = MAPS
    """Neural MMO: where the generated maps lie (generated on first use)"""
    horizon: int = 8
    """steps after the change at which late effects are measured"""
    controls: int = 50
    """controls: directions that occur in the data, as long as the change, chosen as the claim was chosen; so many of
    each of two kinds (docs/claims.md); at least 39, and at least 20 a named claim"""
    smallest: tuple[float, ...] = SMALLEST
    """smallest sizes of interest: of an effect in spreads of its quantity over the unaltered starts, and of a share of
    events"""
    first_order: bool = True
    """also predict from the simulator's derivatives at the start (straight-through where an action is chosen)"""
    latest_start: int = 32
    """starts are taken at a random step of the episode up to this one"""
    chosen_of: int = 1
    """of --hypotheses whose directions an earlier study chose as the largest: among how many; each control is then the
    largest of as many directions that mean nothing (of the quantity too, where the hypothesis names none)"""
    start_when: tuple[str, ...] = ()
    """starts are where one of these holds, each at the first such step from the random one on: behaviour=3 (of
    --behaviours), or ica:1 above 3, ica:1 below -2 (a direction's coordinate); none: in any state"""
    start_level: int = 700_000_000
    """first level of the pool that claims are tested in (Procgen)"""
    choosing_level: int = 600_000_000
    """first level of the pool that the simulator chooses on (Procgen)"""
    num_levels: int = 100_000
    """size of either pool (Procgen)"""
    greedy: bool = False
    """the agent takes its most likely action; default: it samples, with the same noise on both sides"""
    video: bool = True
    """write MP4s of some starts with and without the change, in both worlds side by side"""
    seed: int = 0
    """seed of levels, starts, action noise and random directions"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier study in --out"""


def _two(smallest: Sequence[float]) -> tuple[float, float]:
    if len(smallest) != 2:
        raise UserError("--smallest takes two sizes: in spreads of a quantity, and as a share of events")
    return smallest[0], smallest[1]


def check(config: InterventionsConfig) -> StudyOptions:
    """What the study needs of the configuration; UserError on anything it cannot run with."""
    cli.require(0, choosing_level=config.choosing_level, start_level=config.start_level)
    if config.policy is not None and config.simulator != InterventionsConfig.simulator:
        raise UserError("--policy stands in place of a simulator, so that nothing is foretold: leave one of them out")
    largest = 0
    directions: tuple[int, ...] = ()
    if config.hypotheses:
        pass
    elif config.directions[:1] == ("largest",):
        counts = parse_ids(config.directions[1:], "--directions largest")
        if len(counts) != 1 or counts[0] < 1:
            raise UserError("--directions largest takes one number: how many directions to choose")
        largest = counts[0]
    else:
        kind = config.basis_kind
        labelled = any(re.fullmatch(f"{kind}:{LABEL}", word) for word in config.directions)
        of = load_basis(config.hidden_states, kind) if labelled else kind
        directions = tuple(direction_ids(config.directions, of, "--directions"))
    options = StudyOptions(
        directions=directions, largest=largest, amounts=config.amounts, always=config.always,
        choose_by=config.choose_by, choosing_starts=config.choosing_starts,
        starts=config.starts, horizon=config.horizon, controls=config.controls,
        latest_start=config.latest_start, start_when=config.start_when, chosen_of=config.chosen_of,
        hypotheses=config.hypotheses, events=config.events,
        greedy=config.greedy, seed=config.seed, video=config.video, first_order=config.first_order,
        smallest=_two(config.smallest),
    )  # fmt: skip
    check_options(options)
    return options


def shared_levels(config: InterventionsConfig) -> list[str]:
    """A sentence for each pool of starts that shares levels with what the directions were fitted to, and for the two
    pools where they share any: what was chosen or fitted there is then not tested on anything new."""
    pools = {"choosing": config.choosing_level, "testing": config.start_level}
    spans = {name: range(first, first + config.num_levels) for name, first in pools.items()}
    for _, stage, path in artefacts.chain(config.hidden_states):
        levels = artefacts.read_manifest(path)["config"]
        first, count = levels.get("start_level"), levels.get("num_levels")
        # Otherwise they are the agent's own pool, or all levels that there are.
        if stage in ("record", "causal_directions") and first is not None and count:
            spans[f"the directions ({path.name})"] = range(first, first + count)
    return [
        f"The levels of {a} and of {b} overlap, so the test is not on levels that chose nothing."
        for a, b in itertools.combinations(spans, 2)
        if max(spans[a].start, spans[b].start) < min(spans[a].stop, spans[b].stop)
    ]


def asks_truth(options: StudyOptions) -> bool:
    """Whether events or donors may ask what is so in the world."""
    return bool(options.events) or any(word in text for text in options.hypotheses for word in (" matched ", " clean "))


def pool(
    spec: EnvSpec, config: InterventionsConfig, choosing: bool = False, told: bool = False
) -> Callable[[int], VecEnv]:
    """Makes the world, with so many slots, in which claims are tested, or chosen.  told: with all that it can tell of
    itself (Procgen, of which it must be read off the state; other worlds always tell it)."""
    where = held_out_pool(spec, config.choosing_level if choosing else config.start_level, config.num_levels)
    if spec.env_id == "nmmo":  # of few maps: those of the training may choose
        where = {"split": "train" if choosing else "held_out", "maps": config.maps}

    def made(slots: int) -> VecEnv:
        env = make(spec, slots, threads=config.threads, **where)
        if told and isinstance(env, ProcgenEnv):
            return WithTruth(env)  # type: ignore[return-value]
        return env

    return made


def rule_of(config: InterventionsConfig, agent: str, device: torch.device) -> Rule | None:
    """What tells the behaviours that hypotheses speak of, if they are given."""
    return None if config.behaviours is None else load_rule(config.behaviours, agent).to(device)


def without_simulator(config: InterventionsConfig, policy: Path, options: StudyOptions) -> None:
    """The study with the real world alone."""
    if options.largest:
        raise UserError("--directions largest needs a simulator, which ranks them; name directions or --hypotheses")
    if options.chosen_of > 1:
        raise UserError("--chosen_of needs a simulator, which ranks the controls' directions")
    device = cli.device_of(config.device)
    inputs = artefacts.Inputs(
        {"policy": policy, "hidden_states": config.hidden_states, "behaviours": config.behaviours}
    )
    agent = load_agent(policy, device)
    name = fingerprint(agent)
    basis: Basis = load_basis(config.hidden_states, config.basis_kind, name).to(device)
    check_options(options, basis)
    rule = rule_of(config, name, device)
    asks = asks_truth(options) or bool(config.world_edits or config.shown_edits)
    truth = names_told(pool(agent.spec, config, told=True), agent.spec, config.starts) if asks else ()
    edits = parse_world_edits(config.world_edits, truth) + parse_world_edits(config.shown_edits, truth, shown=True)
    with basis.wording():
        hypotheses, events = parse_study(options, basis, agent.spec, rule, truth)
    told = bool(matched_in(hypotheses)) or any(event.truths for event in events)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        pools = pool(agent.spec, config, told=told), pool(agent.spec, config, choosing=True, told=told)
        doubted = held_out_facts(agent.spec)
        with basis.wording():
            result = alone(agent, pools, basis, options, device, rule, config.who, truth, edits)
        result.notes["warnings"] += doubted.values()
        result.notes["warnings"] += shared_levels(config) if agent.spec.env_id.startswith("procgen/") else []
        call_by_label(result, basis)
        result.save(run.path)
        with run.figures():
            draw_claims(result, run.path / "claims.png")
        run.metrics = dict(result.scalars)
        run.facts = {"agent": name, **doubted, **far_in(result)}
    print_summary(result)
    for line in told_of(result.tables.get("world_edits", ())):
        print(line)
    print(f"{_changes(result)}, real world alone: {config.out}")


def main(config: InterventionsConfig) -> None:
    if config.basis is not None:
        config = replace(config, hidden_states=config.basis, basis=None)
    options = check(config)
    torch.set_num_threads(config.threads)
    for flag, edits in {"--world_edits": config.world_edits, "--shown_edits": config.shown_edits}.items():
        if edits and config.policy is None:
            raise UserError(f"{flag} are of the real world: give --policy in place of a simulator")
    if config.policy is not None:
        without_simulator(config, config.policy, options)
        return
    if config.video:
        check_video()
    device = cli.device_of(config.device)
    inputs = artefacts.Inputs({
        "simulator": next(iter(config.simulator), None), "hidden_states": config.hidden_states,
        **members_as_inputs(config.simulator), "behaviours": config.behaviours,
    })  # fmt: skip
    simulator, *members = load_ensemble(config.simulator, device)
    name = fingerprint(simulator.agent)
    basis = load_basis(config.hidden_states, config.basis_kind, name).to(device)
    check_options(options, basis)
    rule: Rule | None = None
    if config.behaviours is not None:
        names = load_behaviours(config.behaviours).names
        rule = rule_of(config, name, device)
    spec = simulator.world.spec
    with basis.wording():
        parse_study(options, basis, spec, rule)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        doubted = held_out_facts(spec)
        with basis.wording():
            result = study(
                simulator, pool(spec, config), basis, options, device, rule, pool(spec, config, choosing=True),
                members=members,
            )  # fmt: skip
        result.notes["warnings"] += [*doubted.values(), *shared_levels(config)]
        if rule is not None:
            behaviour_N = rule(torch.from_numpy(result.arrays["h"]).to(device)).cpu().numpy()
            result.arrays["behaviour"] = behaviour_N
            result.tables["behaviours"] = by_behaviour(result, behaviour_N, names, np.random.default_rng(config.seed))
            found = rule.facts
            result.scalar("behaviour_labels_found", found["found"], "share of recorded labels that the present h tells",
                          found["episodes"], found["found_interval"])  # fmt: skip
        call_by_label(result, basis)
        result.save(run.path)
        with run.figures():
            draw_effects(result, run.path / "effects.png")
            draw_headline(result, run.path / "predicted_vs_observed.png")
            draw_needs(result, run.path / "needs.png")
            write_videos(result, run.path)
        run.metrics = dict(result.scalars)
        run.facts = {"agent": name, "simulator": fingerprint(simulator), **doubted, **far_in(result)}
    print_summary(result)
    print(f"{_changes(result)} on {config.starts} paired starts: {config.out}")


def _changes(result: Result) -> str:
    """How many were tried."""
    count = len(result.notes["hypotheses"])
    return f"{counted(count, 'change')} of the hidden state"


def far_in(result: Result) -> dict[str, str]:
    """Of the manifest: what is said of changes that lead far from what was recorded."""
    return {FAR_OUTSIDE: result.notes[FAR_OUTSIDE]} if FAR_OUTSIDE in result.notes else {}


def call_by_label(result: Result, basis: Basis) -> None:
    """What is said of directions that have labels (probes: what they read) is said of these, not of numbers."""
    if basis.labels:
        result.tables, result.notes = basis.worded(result.tables), basis.worded(result.notes)


def print_summary(result: Result) -> None:
    """The headline in a few lines."""
    for said in (result.notes.get("paired"), *result.notes["warnings"], result.notes["gate"]["text"]):
        if said:
            print(said)
    about = f"at starts {result.notes['starts_in']}, " if result.notes["starts_in"] else ""
    for name in ("sign_agreement", "rank_correlation", "slope"):
        if name in result.scalars:
            by_chance, p = result.scalars[f"{name}_p"], ""
            if by_chance["value"] is not None:
                p = f"; p = {by_chance['value']:.2g} with predictions exchanged among {by_chance['n']} directions"
            print(f"{about}{name.replace('_', ' ')}, simulated against observed: {short(result.scalars[name])}{p}")
    for claim in result.notes["claims"]:
        if claim["headline"]:
            print(claim["text"])


if __name__ == "__main__":
    cli.run(InterventionsConfig, main, STAGE, shared=True)
