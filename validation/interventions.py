"""Predict, intervene, compare: ``python -m validation.interventions --simulator DIR --hidden_states DIR``.

A hypothesis is a change of the hidden state along some directions (validation.interventions_hypotheses has the words);
a JSON file with hypotheses and events is a study of your own: ``--config docs/study.json``.
Every start is run on twice, with the change and without, from the same state, the same h and the same action
noise, in the simulator and in the real world.  The heads are linear, so what the change does *at*
step 0 to logits and value follows from the agent's weights alone: it is no test.  The test is what
comes later (quantities with an ``@``), which only a world answers.

N starts (each of its own episode, so each an independent unit), G hypotheses, k horizon.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from analysis.behaviours import load_behaviours
from core import artefacts, config as cli
from core.artefacts import Result
from core.config import nearest
from core.contracts import Simulator, UserError, VecEnv
from core.directions import Basis, fingerprint, load_basis
from core.interventions import parse_ids
from core.stats import bootstrap_mean, bootstrap_means, require_permutations
from core.video import check_video
from core.when import Rule, fit_rule
from envs.registry import make
from generative.simulator import load_simulator
from validation import verdicts
from validation.events import Event, parse_events
from validation.interventions_bench import Bench, effects_in
from validation.interventions_controls import FEWEST, Family, Pick, choose, contest, mocks_of, run_ways
from validation.interventions_figures import draw_effects, draw_headline, draw_needs, short, write_videos
from validation.interventions_hypotheses import (
    THROUGH,
    Hypothesis,
    check_events,
    hypotheses_of,
    parse_hypothesis,
    random_frames,
    shift_of,
)
from validation.interventions_rollouts import (
    HeldWorld,
    Measures,
    RealWorld,
    SimulatedWorld,
    Starts,
    collect_starts,
    distinct_actions,
    family_of,
    is_late,
    is_own,
    still_on,
    unit_of,
)
from validation.interventions_statistics import (
    NEEDS,
    Controls,
    Effects,
    Point,
    claim_of,
    claim_of_need,
    families,
    headline,
    mean_of,
    needs_of,
    number_or_none,
    points_of,
    recovered_of,
    restate,
    spread_of,
    table_of,
)
from validation.verdicts import ALPHA, CRITERIA, SMALLEST

STAGE = "interventions"
COLLECTORS = 256  # slots at most in which starts are looked for: few give many episodes each, which takes longer
BRANCHES = 32  # slots of the real world that branch at once
CHOOSING_SEED = 1_000_003  # added to the seed for the starts that the simulator chooses on
SHOWN = (0.1, 0.5, 0.9)  # of the effect over starts: the starts in the videos


@dataclass(frozen=True, kw_only=True)
class InterventionsConfig:
    """Change directions of the hidden state; compare the simulator's prediction with the real world."""

    simulator: Path = Path("bundles/coinrun-demo/simulator")
    """run directory of the simulator (with its agent)"""
    hidden_states: Path = Path("runs/hidden_states")
    """hidden-states run directory with the directions"""
    behaviours: Path | None = None
    """behaviours run directory: effects are also given for each behaviour that starts fall into"""
    out: Path = Path("runs/interventions")
    """run directory to write"""
    basis_kind: str = "ica"
    """which basis of --hidden_states: pca, ica, nmf, neurons"""
    hypotheses: tuple[str, ...] = ()
    """changes to test, instead of --directions and --amounts, each in quotes: 'shift 5 by +2', 'collapse 5 9 always
    necessary for jump_started', 'swap 5 9', 'keep_only 5', 'resample 5 through memory', 'patch 5 clean scared', 'shift
    5 by +2 for 4 steps through world when behaviour=3 sufficient for death'"""
    events: tuple[str, ...] = ()
    """events to measure, each in quotes: 'scared: value < 2 and action in (up, upleft, upright)' (default: death,
    reward and, where the world knows jumps, jump_started)"""
    directions: tuple[str, ...] = ("0", "1")
    """ids of the directions to test, or largest N: the N whose late effect the simulator predicts to be largest
    (chosen before the real world is asked)"""
    amounts: tuple[float, ...] = (-2.0, -1.0, 0.0, 1.0, 2.0)
    """changes to test, in units of the direction's coordinate (standard deviations for PCA and ICA)"""
    starts: int = 64
    """paired starts, each of another episode"""
    horizon: int = 8
    """steps after the change at which late effects are measured"""
    controls: int = 50
    """controls: directions that occur in the data, as long as the change, chosen as the claim was chosen; at least 39,
    and at least 20 a named claim"""
    smallest: tuple[float, ...] = SMALLEST
    """smallest sizes of interest: of an effect in spreads of its quantity over the unaltered starts, and of a share of
    events"""
    first_order: bool = True
    """also predict from the simulator's derivatives at the start (straight-through where an action is chosen)"""
    latest_start: int = 32
    """starts are taken at a random step of the episode up to this one"""
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


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What ``study`` needs of the configuration."""

    directions: tuple[int, ...] = ()  # () where ``largest`` are to be chosen, or hypotheses are given
    amounts: tuple[float, ...] = ()
    starts: int
    horizon: int
    controls: int
    latest_start: int
    hypotheses: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    greedy: bool = False
    seed: int = 0
    largest: int = 0  # where no directions are named: how many to choose
    video: bool = False  # keep frames of some starts
    smallest: tuple[float, float] = SMALLEST  # sizes of interest: spreads of a quantity, shares of events
    first_order: bool = True


def check_options(options: StudyOptions, basis: Basis | None = None) -> None:
    """UserError on anything the study cannot run with; of the directions only where the basis is given."""
    if not options.hypotheses:
        if not (options.directions or options.largest > 0):
            raise UserError("--directions names no direction")
        if len(set(options.directions)) < len(options.directions):
            raise UserError("--directions names a direction twice")
        if not any(options.amounts) or not np.isfinite(options.amounts).all():
            raise UserError("--amounts needs at least one finite amount other than 0")
        if len(set(options.amounts)) < len(options.amounts):
            raise UserError("--amounts names an amount twice")
    cli.require(1, horizon=options.horizon)
    cli.require(FEWEST, controls=options.controls)
    if not 0 < min(options.smallest) < np.inf:
        raise UserError("--smallest takes two sizes above 0: in spreads of a quantity, and as a share of events")
    cli.require(0, seed=options.seed)
    require_permutations(options.starts, ALPHA)
    if basis is None:
        return
    basis.check(options.directions)
    if options.largest > basis.size:
        raise UserError(f"--directions largest {options.largest}: the {basis.kind} basis has {basis.size} directions")


def parse_study(
    options: StudyOptions, basis: Basis, action_names: Sequence[str], rule: Rule | None
) -> tuple[list[Hypothesis], tuple[Event, ...]]:
    """The hypotheses (none where --directions says what to test) and events of a study; UserError on what is wrong with
    them."""
    events = parse_events(options.events, action_names, basis.size)
    hypotheses = [h for text in options.hypotheses for h in parse_hypothesis(text, basis)]
    check_events(hypotheses, [e.name for e in events])
    for name in (names := [h.name for h in hypotheses]):
        if names.count(name) > 1:
            raise UserError(f"hypothesis {name!r} is there twice")
    for h in hypotheses:
        if h.behaviours and rule is None:
            raise UserError(f"hypothesis {h.name!r} speaks of a behaviour: give --behaviours")
        if rule is not None:
            rule.check(h.behaviours)
    return hypotheses, events


# The study


def study(
    simulator: Simulator,
    make_env: Callable[[int], VecEnv],
    basis: Basis,
    options: StudyOptions,
    device: torch.device | None = None,
    rule: Rule | None = None,
    make_choosing: Callable[[int], VecEnv] | None = None,
) -> Result:
    """The whole comparison.  ``make_env(slots)`` makes the real world that claims are tested in, ``make_choosing`` the
    one whose starts the simulator chooses on (None: the same, other episodes); ``rule`` tells behaviours.

    Tables ``effects``, ``paths``, ``doses``, ``needs`` and ``recovered``; arrays of per-start effects; scalars of
    agreement; ``notes["claims"]`` and ``notes["gate"]``.  Raises UserError for what ``check_options`` and
    ``parse_study`` refuse.
    """
    check_options(options, basis)
    hypotheses, events = parse_study(options, basis, simulator.spec.action_names, rule)
    device = torch.device("cpu") if device is None else device
    rng = np.random.default_rng(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    agent = simulator.agent
    starts = find_starts(simulator, make_env, options, options.seed, device)
    before = find_starts(simulator, make_choosing or make_env, options, options.seed + CHOOSING_SEED, device)
    env = make_env(len(starts))
    few = make_env(min(len(starts), BRANCHES))
    try:
        actions = distinct_actions(env, starts)
        measures = Measures(actions, basis, options.directions, events)
        dreams = [dreamed_from(simulator, some, measures, options, generator) for some in (before, starts)]
        choosing, dreamed = Bench(basis, before, dreams[0], rule), dreams[1]
        real = RealWorld(agent, starts.h_NH, dreamed.noise_NTA, measures, env, starts, few)
        last = {k: torch.from_numpy(v[:, -1]).to(device) for k, v in starts.window.items()}
        with torch.no_grad():
            held = HeldWorld(agent, starts.h_NH, dreamed.noise_NTA, measures, agent.encode(last))
        bench = Bench(basis, starts, dreamed, rule, real, held)
        explicit = bool(hypotheses)
        plan = _plan(choosing, hypotheses, options, basis)
        everything = [h for family in plan for ways in family.ways for h in ways]
        choosing.prepare(everything, events, rng)
        if any(len(f.ways) > 1 or len(f.ways[0]) > 1 or not f.quantity for f in plan):
            choosing.require(
                everything, "starts that the simulator chooses on", "; say 'on QUANTITY' to choose nothing"
            )
        chosen = [choose(family, choosing, [None])[0] for family in plan]
        if not explicit:
            picks = [family.ways[pick.place][0] for family, own in zip(plan, chosen, strict=True) for pick in own]
            hypotheses = hypotheses_of([h.ids[0] for h in picks], options.amounts)
        named = dict.fromkeys(i for h in hypotheses if not h.everything for i in h.ids)
        for world in (real, dreamed, held):
            world.measures = replace(measures, directions=tuple(named))
        bench.prepare([*everything, *hypotheses], events, rng)
        bench.require(hypotheses, "starts")
        effects = effects_of(bench, hypotheses, options)
        controls, picked = controls_of(choosing, bench, plan, chosen, options, generator)
        result = _report(bench, hypotheses, effects, controls, picked, explicit, options, rng)
        result.notes["actions"] = {name: [simulator.spec.action_names[i] for i in ids] for name, ids in actions.items()}
        if options.video and _is_picture(starts):
            film(bench, result, hypotheses)
    finally:
        env.close()
        few.close()
    return result


def find_starts(
    simulator: Simulator, make_env: Callable[[int], VecEnv], options: StudyOptions, seed: int, device: torch.device
) -> Starts:
    """Starts of their own episodes."""
    collector = make_env(min(options.starts, COLLECTORS))
    if not collector.spec.can_snapshot:
        collector.close()
        collector = make_env(options.starts)
    try:
        return collect_starts(
            simulator.agent, collector, options.starts, initial_frames=simulator.initial_frames,
            latest=options.latest_start, seed=seed, greedy=options.greedy, device=device,
        )  # fmt: skip
    finally:
        collector.close()


def dreamed_from(
    simulator: Simulator, starts: Starts, measures: Measures, options: StudyOptions, generator: torch.Generator
) -> SimulatedWorld:
    """The simulator run on from these starts, with action noise of its own."""
    device = starts.h_NH.device
    shape = (len(starts), options.horizon + 1, simulator.agent.n_actions)
    exponential = torch.empty(shape).exponential_(generator=generator)
    noise_NTA = (torch.zeros(shape) if options.greedy else -exponential.log()).to(device)
    window = {k: torch.from_numpy(v).to(device) for k, v in starts.window.items()}
    with torch.no_grad():
        parts = [simulator.infer({k: v[i : i + 32] for k, v in window.items()})[0] for i in range(0, len(starts), 32)]
        z_NZ = simulator.normalise(torch.cat(parts))
    return SimulatedWorld(simulator.agent, starts.h_NH, noise_NTA, measures, simulator, z_NZ)


def _plan(bench: Bench, hypotheses: Sequence[Hypothesis], options: StudyOptions, basis: Basis) -> list[Family]:
    """The families that claims are chosen from: one of all directions; one a direction that was named; one a
    hypothesis in words."""
    if hypotheses:
        k = bench.dreamed.noise_NTA.shape[1] - 1
        known = list(bench.dreamed.measure([None]))

        def claimed(h: Hypothesis) -> str:
            if not (h.on or h.role):
                return ""
            on = f"event:{h.event}" if h.role else h.on
            found = [q for q in known if q.startswith(f"{on}@")]
            if on.startswith("direction:"):  # measured once the directions are known
                basis.check(parse_ids([on.partition(":")[2]], f"on {on}"))
                return f"{on}@{k}"
            if not found:
                late = list(dict.fromkeys(q.partition("@")[0] for q in known if is_late(q)))
                raise UserError(
                    f"hypothesis {h.name!r}: no quantity {on!r}{nearest(on, late)}; there are: {', '.join(late)}"
                )
            return found[0]

        return [Family(((h,),), quantity=claimed(h)) for h in hypotheses if not h.is_nothing and h.control is not None]
    if options.largest:
        return [Family(tuple(ways_of(i, options) for i in range(basis.size)), choose=options.largest)]
    return [Family((ways_of(i, options),)) for i in options.directions]


def ways_of(direction: int, options: StudyOptions) -> tuple[Hypothesis, ...]:
    """What may be done to a direction, and claimed: shifts, and the mean."""
    return (*(shift_of(direction, a) for a in options.amounts if a), Hypothesis("collapse", (direction,)))


def effects_of(bench: Bench, hypotheses: Sequence[Hypothesis], options: StudyOptions) -> Effects:
    """Both worlds along every path, and the predictions that need no world."""
    assert bench.real is not None and bench.held is not None

    def paths(world: RealWorld | SimulatedWorld, label: str) -> dict[str, dict[str, np.ndarray]]:
        own = effects_in(bench, world, hypotheses, None, label)
        return {"own": own} | {
            path: effects_in(bench, world, hypotheses, path, f"{label}, through {path}") for path in THROUGH
        }

    seen, foretold = paths(bench.real, "real world"), paths(bench.dreamed, "simulator")
    nothing = {q: np.where(np.isnan(v), np.nan, 0.0) for q, v in foretold["own"].items()}
    # What only the action carries on does nothing where the world does not answer.
    cut = np.array([h.through == "world" for h in hypotheses])[:, None]
    frames = effects_in(bench, bench.dreamed, hypotheses, "frames", "simulator, unaltered frames")
    rivals = {
        "no change": nothing,
        "held frame": effects_in(bench, bench.held, hypotheses, None, "held frame"),
        "unaltered frames": {q: np.where(cut, nothing[q], v) for q, v in frames.items()},
        "memory": {q: np.where(cut, nothing[q], v) for q, v in foretold["memory"].items()},
    }
    zero = [g for g, h in enumerate(hypotheses) if h.is_nothing]

    def largest(some: Mapping[str, np.ndarray]) -> float:
        return max(float(np.nanmax(np.abs(v[zero]))) for v in some.values()) if zero else float("nan")

    jacobian = {}
    if options.first_order:
        jacobian = bench.first_order(hypotheses, [None] * len(hypotheses))
        here = np.stack([bench.rows[h] for h in hypotheses])
        jacobian = {q: np.where(here, v, np.nan) for q, v in jacobian.items()}
    unaltered, expected = ({q: v[0] for q, v in w.measure([None]).items()} for w in (bench.real, bench.dreamed))
    return Effects(
        unaltered, seen, foretold, expected, rivals, jacobian, (largest(seen["own"]), largest(foretold["own"]))
    )


class Picked(NamedTuple):
    """What was claimed of a family: the chosen hypotheses with their quantities, and how the choice was made."""

    claims: list[tuple[Hypothesis, str]]
    words: str


def controls_of(
    choosing: Bench, bench: Bench, plan: Sequence[Family], chosen: Sequence[list[Pick]], options: StudyOptions,
    generator: torch.Generator,
) -> tuple[dict[Hypothesis, Controls], list[Picked]]:  # fmt: skip
    """What mock families do, each chosen as the family's own directions were."""
    assert bench.real is not None
    # Enough that one of as many named claims could stand out among them.
    count = options.controls if len(plan) == 1 else max(options.controls, 20 * len(plan) - 1)
    controls: dict[Hypothesis, Controls] = {}
    picked: list[Picked] = []
    for family, own in zip(plan, chosen, strict=True):
        label = "real world: controls of " + ", ".join(family.ways[pick.place][0].name for pick in own)
        mocks = mocks_of(family, choosing, count, generator)
        against = contest(family, choosing, bench, own, mocks, label)
        for r, pick in enumerate(own):
            for w, way in enumerate(family.ways[pick.place]):
                beside = {}
                if w == pick.way:
                    frames = random_frames(bench.basis, len(way.ids), count, generator)
                    alone, free = Family(((way,),)), [(frame,) for frame in frames]
                    some = run_ways(alone, bench, bench.real, free, [[0]] * count, f"isotropic, beside {way.name}")
                    beside = {q: v[:, 0, 0][:, bench.rows[way]] for q, v in some.items()}
                chosen_by = None if family.quantity else against.largest
                controls[way] = Controls(against.of(r, w, bench.rows[way]), mocks.law_M, beside, chosen_by)
        of, ways = len(family.ways), len(family.ways[0])
        words = f"the largest {family.choose} of {of} directions" if of > 1 else "one direction"
        words += f", {ways} ways of changing it" if ways > 1 else ""
        words += ", the quantity named" if family.quantity else ", the quantity foretold to change most"
        claims = [(family.ways[pick.place][pick.way], pick.quantity) for pick in own]
        picked.append(Picked(claims, words))
    return controls, picked


def _report(
    bench: Bench, hypotheses: Sequence[Hypothesis], effects: Effects, controls: Mapping[Hypothesis, Controls],
    picked: Sequence[Picked], explicit: bool, options: StudyOptions, rng: np.random.Generator,
) -> Result:  # fmt: skip
    """Everything that follows from the runs."""
    starts, basis = bench.starts, bench.basis
    assert bench.real is not None
    events = bench.real.measures.events
    judged = table_of(effects, hypotheses, controls, events, options.smallest, rng)
    needs = needs_of(effects, hypotheses, controls, options.smallest[1], rng)
    patched = {g: bench.donors[h] for g, h in enumerate(hypotheses) if h.kind == "patch"}
    result = Result(tables={"effects": judged.rows, "paths": [], "doses": [], "needs": needs})
    if patched:
        result.tables["recovered"] = recovered_of(effects, hypotheses, patched, rng)
    result.arrays = {"h": starts.h_NH.cpu().numpy(), "age": starts.age_N}
    for q in effects.unaltered:
        for name, some in (("observed", effects.seen), ("simulated", effects.foretold)):
            result.arrays |= {f"{name}/{q}": some["own"][q]}
            result.arrays |= {f"{name}, through {path}/{q}": some[path][q] for path in THROUGH}
        result.arrays |= {f"{name}/{q}": some[q] for name, some in effects.rivals.items() if name != "no change"}
        result.arrays[f"unaltered/{q}"] = effects.unaltered[q]
        if q in effects.jacobian:
            result.arrays[f"jacobian/{q}"] = effects.jacobian[q]
    gate = verdicts.gate(judged.errors, rng)
    result.notes |= {
        "verdicts": 2,
        "gate": {
            "answer": gate.answer, "text": gate.text, "rows": gate.rows,
            "against": {name: e._asdict() for name, e in gate.against.items()},
        },
        "warnings": [],
        "hypotheses": [h.name for h in hypotheses],
        "events": {e.name: e.text for e in events},
        "paired_by": starts.paired_by,
        "criteria": CRITERIA,
        "needs": NEEDS,
        "immediate": "Effects at step 0 follow from the agent's linear heads: both worlds give the same numbers and "
        "the first-order prediction of logits and value is exact. They are no evidence about the world.",
        "controls": f"{options.controls} or more directions that occur in the data (differences between recorded "
        "states of different episodes) and as many mixtures of the basis's own directions, at every start and step as "
        "long as the change, in units of each neuron's standard deviation; what was chosen is held against what is "
        "chosen of each kind in the same way, and the larger p counts. 'keep_only' has no single length and so no "
        "controls",
        "chosen": [one.words for one in picked],
    }  # fmt: skip
    if starts.paired_by == "seed":
        result.notes["paired"] = "The world has no snapshots: pairs replay the same seed and actions up to the start."
    result.scalar("zero_change_real", effects.zero[0], "largest effect of amount 0")
    result.scalar("zero_change_simulator", effects.zero[1], "largest effect of amount 0")

    # Units for the headline: the spread of each quantity over the real, unaltered starts.
    scale = {q: spread_of(v) for q, v in effects.unaltered.items()}
    late = [q for q in effects.unaltered if is_late(q) and scale[q] > 0]
    result.notes["without_spread"] = [q for q in effects.unaltered if is_late(q) and scale[q] == 0]
    points = points_of(hypotheses, explicit)
    sources = {"simulated": effects.foretold["own"], "observed": effects.seen["own"]}
    if effects.jacobian:
        sources["jacobian"] = effects.jacobian
    for point in points:
        result.tables["doses"] += _doses(point, sources, scale, rng)
    _agreements(result, points, sources, late, scale, rng)
    claims = _claims(result, hypotheses, picked, basis.kind, explicit)
    result.tables["paths"] = [row for claim in claims for row in _paths(claim, effects, hypotheses, rng)]
    result.notes["claims"] = claims
    result.notes["claim"] = " ".join(claim["text"] for claim in claims if claim["headline"])
    return result


def _claims(
    result: Result, hypotheses: Sequence[Hypothesis], picked: Sequence[Picked], kind: str, explicit: bool
) -> list[dict[str, Any]]:
    """What was claimed, the chosen dose first and then, each by itself, the other doses of the same direction."""
    real = {(r["hypothesis"], r["quantity"]): r for r in result.tables["effects"] if r["world"] == "real"}
    headlines = [(h, real.get((h.name, q)), one) for one in picked for h, q in one.claims if not h.role]
    # One family's p holds for all that was chosen of it; several are a family of tests.
    p = [row["special_p"] if row and "verdict" in row else np.nan for _, row, _ in headlines]
    q_special = p if len(picked) == 1 else verdicts.adjusted(p)
    claims: list[dict[str, Any]] = []
    for (h, row, one), q in zip(headlines, q_special, strict=True):
        if row is None or "verdict" not in row:
            text = f"'{h.name}' ({kind}): what it is claimed to change does not vary, so there is no claim."
            claims.append({"hypothesis": h.name, "direction": h.direction, "amount": h.amount, "verdict": verdicts.OPEN,
                           "headline": True, "sentence": "open", "text": text, "parts": {}})  # fmt: skip
            continue
        restate(row, float(q))
        claims.append(claim_of(row, kind, one.words, True))
        if not explicit:
            others = [o for o in hypotheses if o.ids == h.ids and o != h and (o.name, row["quantity"]) in real]
            for other in others:
                if "verdict" in (dose := real[other.name, row["quantity"]]) and other.kind != "keep_only":
                    claims.append(claim_of(dose, kind, one.words, False))
    words = {h.name: one.words for one in picked for h, _ in one.claims}
    for row in result.tables["needs"]:
        if row["claimed"]:
            asked = (row["hypothesis"], f"event:{row['event']}")
            effect = next((r for (name, q), r in real.items() if (name, q.partition("@")[0]) == asked), {})
            claims.append(claim_of_need(row, effect, words.get(row["hypothesis"], "")))
    return claims


def _paths(
    claim: Mapping[str, Any], effects: Effects, hypotheses: Sequence[Hypothesis], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """A claim's effect whole, through memory alone and through the world alone, in both worlds.  The two parts need
    not add up: paths may interact."""
    if not claim["headline"] or "quantity" not in claim:
        return []
    g = next(i for i, h in enumerate(hypotheses) if h.name == claim["hypothesis"])
    rows = []
    for world, some in (("real", effects.seen), ("simulator", effects.foretold)):
        for path, v in some.items():
            effect_N = v[claim["quantity"]][g]
            effect_N = effect_N[~np.isnan(effect_N)]
            if len(effect_N):
                (e,) = bootstrap_means(effect_N[:, None], rng=rng)
                rows.append({"hypothesis": claim["hypothesis"], "quantity": claim["quantity"], "world": world,
                             "path": "whole" if path == "own" else f"{path} alone", "unit": claim["unit"],
                             "value": e.value, "low": e.low, "high": e.high, "n": e.n})  # fmt: skip
    return rows


def _doses(
    point: Point, sources: Mapping[str, Mapping[str, np.ndarray]], scale: Mapping[str, float], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """A point's rows, one a quantity: its predictions and what both worlds answered."""
    of = {name: np.stack([point.of(effect[q]) for q in scale], 1) for name, effect in sources.items()}
    here = ~np.isnan(of["observed"]).any(1)
    seen, dream = (bootstrap_means(of[name][here], rng=rng) for name in ("observed", "simulated"))
    first = mean_of(of["jacobian"][here].T) if "jacobian" in of else np.full(len(scale), np.nan)
    return [
        {
            "point": point.label, "direction": point.directions[0] if len(point.directions) == 1 else None,
            "own": is_own(q, point.directions), "quantity": q,
            "unit": f"{unit_of(q)} {point.unit}".strip(), "predicted_jacobian": number_or_none(float(j)),
            "predicted_simulated": d.value, "simulated_low": d.low, "simulated_high": d.high,
            "observed": e.value, "low": e.low, "high": e.high, "n": e.n, "spread": scale[q],
        }
        for q, j, e, d in zip(scale, first, seen, dream, strict=True)
    ]  # fmt: skip


def _agreements(
    result: Result, points: Sequence[Point], sources: Mapping[str, Mapping[str, np.ndarray]], late: Sequence[str],
    scale: Mapping[str, float], rng: np.random.Generator,
) -> None:  # fmt: skip
    """Sign agreement, rank correlation and slope of predictions over points x quantities, and by their families."""
    if not points or not late:
        return

    def stacked(name: str, some: Sequence[str]) -> np.ndarray:
        found = [p.of(sources[name][q]) / scale[q] for p in points for q in some if not is_own(q, p.directions)]
        return np.stack(found) if found else np.empty((0, sources["observed"][late[0]].shape[1]))

    for family, some in families(late).items():
        if len(seen_PN := stacked("observed", some)):  # what a direction is itself later is no point
            headline(result, f"_{family}", stacked("simulated", some), seen_PN, rng)
    # Events are counts of few, and most have no derivative: they stay apart.
    late = [q for q in late if family_of(q) != "events"]
    if not late:
        return
    headline(result, "", stacked("simulated", late), stacked("observed", late), rng)
    if "jacobian" in sources:
        headline(result, "_jacobian", stacked("jacobian", late), stacked("observed", late), rng)
        headline(result, "_jacobian_simulator", stacked("jacobian", late), stacked("simulated", late), rng)


def _is_picture(starts: Starts) -> bool:
    name = next(iter(starts.window))
    return starts.window[name].ndim == 5 and starts.window[name].shape[-1] == 3


def film(bench: Bench, result: Result, hypotheses: Sequence[Hypothesis]) -> None:
    """Frames of three starts for every claim, without and with the change in the real world and in the simulator, into
    arrays ``film/NUMBER`` uint8 [starts, 4, T, 64, 64, 3]: those whose effect is at the SHOWN quantiles.  Black where
    the episode is over."""
    assert bench.real is not None
    names = [h.name for h in hypotheses]
    filmed = [c for c in result.notes["claims"] if c["headline"] and {"quantity", "event"} & c.keys()]
    for number, claim in enumerate(filmed):
        h = hypotheses[names.index(claim["hypothesis"])]
        k = bench.real.noise_NTA.shape[1] - 1
        quantity = claim.get("quantity", f"event:{claim.get('event')}@{k}")
        effect_N = result.arrays[f"observed/{quantity}"][names.index(h.name)]
        about = np.flatnonzero(~np.isnan(effect_N))
        order = about[np.argsort(effect_N[about], kind="stable")]
        chosen = [int(order[round(share * (len(order) - 1))]) for share in SHOWN]
        rows = torch.tensor(chosen, device=bench.starts.h_NH.device)
        panels = []
        for change in (None, bench.build(h)):
            seen: list[np.ndarray] = []
            course = bench.real.course(() if change is None else (change,), h.through, seen)
            # Slots replay different stretches where there are no snapshots; a start's own begins at its offset.
            shown = [[seen[int(bench.starts.offset_N[n]) + t][n] for t in range(k + 1)] for n in chosen]
            panels.append(np.stack(shown) * still_on(course, rows))
        panels += list(bench.dreamed.film(bench.build(h), h.through, rows))
        result.arrays[f"film/{number}"] = np.stack(panels, 1)
        claim["filmed"] = [{"start": n, "effect": float(effect_N[n])} for n in chosen]


def by_behaviour(
    result: Result, behaviour_N: np.ndarray, names: Mapping[int, str], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Each claim's observed effect for every behaviour that at least 2 of the starts it is about are in."""
    rows = []
    for claim in result.notes["claims"]:
        if "quantity" not in claim:
            continue
        g = result.notes["hypotheses"].index(claim["hypothesis"])
        effect_N = result.arrays[f"observed/{claim['quantity']}"][g]
        for b in np.unique(behaviour_N):
            inside = np.flatnonzero((behaviour_N == b) & ~np.isnan(effect_N))
            if len(inside) < 2:
                continue
            e = bootstrap_mean(effect_N[inside], inside, rng=rng)
            rows.append({
                "behaviour": int(b), "name": names.get(int(b), ""), "hypothesis": claim["hypothesis"],
                "quantity": claim["quantity"], "observed": e.value, "low": e.low, "high": e.high, "n": e.n,
            })  # fmt: skip
    return rows


# The stage


def _two(smallest: Sequence[float]) -> tuple[float, float]:
    if len(smallest) != 2:
        raise UserError("--smallest takes two sizes: in spreads of a quantity, and as a share of events")
    return smallest[0], smallest[1]


def check(config: InterventionsConfig) -> StudyOptions:
    """What the study needs of the configuration; UserError on anything it cannot run with."""
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
        directions = tuple(parse_ids(config.directions, "--directions"))
    options = StudyOptions(
        directions=directions, largest=largest, amounts=config.amounts, starts=config.starts, horizon=config.horizon,
        controls=config.controls, latest_start=config.latest_start, hypotheses=config.hypotheses, events=config.events,
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
        if stage == "record" and first is not None and count:  # otherwise the agent's own pool, or all levels there are
            spans[f"the directions ({path.name})"] = range(first, first + count)
    return [
        f"The levels of {a} and of {b} overlap, so the test is not on levels that chose nothing."
        for a, b in itertools.combinations(spans, 2)
        if max(spans[a].start, spans[b].start) < min(spans[a].stop, spans[b].stop)
    ]


def main(config: InterventionsConfig) -> None:
    options = check(config)
    if config.video:
        check_video()
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    simulator = load_simulator(config.simulator, device)
    name = fingerprint(simulator.agent)
    basis = load_basis(config.hidden_states, config.basis_kind, name).to(device)
    check_options(options, basis)
    inputs = {"simulator": config.simulator, "hidden_states": config.hidden_states}
    rule = None
    if config.behaviours is not None:
        inputs["behaviours"] = config.behaviours
        names = load_behaviours(config.behaviours).names
        rule = fit_rule(config.behaviours, name).to(device)
    parse_study(options, basis, simulator.spec.action_names, rule)

    def pool(level: int) -> Callable[[int], VecEnv]:
        levels = {"start_level": level, "num_levels": config.num_levels}
        return lambda slots: make(simulator.spec, slots, threads=config.threads, **levels)

    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result = study(simulator, pool(config.start_level), basis, options, device, rule, pool(config.choosing_level))
        result.notes["warnings"] += shared_levels(config)
        if rule is not None:
            behaviour_N = rule(torch.from_numpy(result.arrays["h"]).to(device)).cpu().numpy()
            result.arrays["behaviour"] = behaviour_N
            result.tables["behaviours"] = by_behaviour(result, behaviour_N, names, np.random.default_rng(config.seed))
            found = rule.facts
            result.scalar("behaviour_labels_found", found["found"], "share of recorded labels that the present h tells",
                          found["episodes"], found["found_interval"])  # fmt: skip
        result.save(run.path)
        draw_effects(result, run.path / "effects.png")
        draw_headline(result, run.path / "predicted_vs_observed.png")
        draw_needs(result, run.path / "needs.png")
        write_videos(result, run.path)
        run.metrics = dict(result.scalars)
        run.facts = {"agent": name, "simulator": fingerprint(simulator)}
    print_summary(result)
    print(
        f"{len(result.notes['hypotheses'])} changes of the hidden state on {config.starts} paired starts: {config.out}"
    )


def print_summary(result: Result) -> None:
    """The headline in a few lines."""
    for said in (result.notes.get("paired"), *result.notes["warnings"], result.notes["gate"]["text"]):
        if said:
            print(said)
    for name in ("sign_agreement", "rank_correlation", "slope"):
        if name in result.scalars:
            print(f"{name.replace('_', ' ')}, simulated against observed: {short(result.scalars[name])}")
    for claim in result.notes["claims"]:
        if claim["headline"]:
            print(claim["text"])


if __name__ == "__main__":
    cli.run(InterventionsConfig, main, STAGE)
