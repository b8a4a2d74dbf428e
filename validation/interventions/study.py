"""A whole study: the simulator foretells, claims are chosen, the real world is asked.

N starts (each of its own episode, so each an independent unit), G hypotheses, k horizon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.shared.events import Event
from core.artefacts import Result
from core.contracts import Agent, LearnedWorld, Shown, UserError, VecEnv
from core.directions import Basis
from core.roll import Simulator
from core.trees import Tree
from core.when import Rule
from generative.starts import held_frame, started
from validation.hypotheses.frames import random_frames, require_varied
from validation.hypotheses.grammar import THROUGH, Hypothesis, hypotheses_of, timed
from validation.interventions.bench import Bench, effects_in
from validation.interventions.claims import Picked
from validation.interventions.controls import Family, Pick, choose, contest, mocks_of, run_ways
from validation.interventions.film import film
from validation.interventions.options import StudyOptions, check_options, claimed, in_time, parse_study
from validation.interventions.start_when import where_started
from validation.interventions.statistics import Controls, Effects
from validation.interventions.tables import report
from validation.paired.course import Measures, with_claimed, with_named
from validation.paired.limits import last_in_time
from validation.paired.real import RealWorld, note_unshared
from validation.paired.simulated import SimulatedWorld
from validation.paired.starts import PAST, Starts, When, collect_starts, distinct_actions

RARELY = 32  # slots where starts are to be in rare states: many of one slot are found sooner than one of each of many
COLLECTORS = 256  # slots at most in which starts are looked for: few give many episodes each, which takes longer
BRANCHES = 32  # slots of the real world that branch at once
CHOOSING_SEED = 1_000_003  # added to the seed for the starts that the simulator chooses on


def study(
    simulator: Simulator[Any],
    make_env: Callable[[int], VecEnv],
    basis: Basis,
    options: StudyOptions,
    device: torch.device | None = None,
    rule: Rule | None = None,
    make_choosing: Callable[[int], VecEnv] | None = None,
    simulated: type[SimulatedWorld] = SimulatedWorld,
    members: Sequence[Simulator[Any]] = (),
) -> Result:
    """The whole comparison.  ``make_env(slots)`` makes the real world that claims are tested in, ``make_choosing`` the
    one whose starts the simulator chooses on (None: the same, other episodes); ``rule`` tells behaviours; ``simulated``
    foretells (another class in controls of this method itself); ``members``: further simulators of the same agent,
    which are asked the same (``members.py``).

    Tables ``effects``, ``paths``, ``doses``, ``needs``, ``recovered`` and ``members``; arrays of per-start effects;
    scalars of agreement; ``notes["claims"]`` and ``notes["gate"]``.  Raises UserError for what ``check_options`` and
    ``parse_study`` refuse.  Starts lie before a time limit (``in_time``).
    """

    def once(some: StudyOptions) -> Result:
        return _study(
            simulator, make_env, basis, some, torch.device("cpu") if device is None else device, rule, make_choosing,
            simulated, members,
        )  # fmt: skip

    return in_time(once, options)


def _study(
    simulator: Simulator[Any], make_env: Callable[[int], VecEnv], basis: Basis, options: StudyOptions,
    device: torch.device, rule: Rule | None, make_choosing: Callable[[int], VecEnv] | None,
    simulated: type[SimulatedWorld], members: Sequence[Simulator[Any]],
) -> Result:  # fmt: skip
    """``study`` on one draw of starts; CutShort where a time limit cuts a run."""
    check_options(options, basis)
    hypotheses, events = parse_study(options, basis, simulator.world.spec, rule)
    for h in hypotheses:
        if h.says is not None:
            raise UserError(f"hypothesis {h.name!r}: the simulator foretells the size; leave out 'as {h.says:g}'")
    rng = np.random.default_rng(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    choosing, bench = both = both_benches(
        simulator, make_env, basis, options, device, generator, rule=rule, make_choosing=make_choosing,
        simulated=simulated, members=members, events=events, hypotheses=hypotheses,
    )  # fmt: skip
    try:
        bench.real.run()  # a time limit is met here, before hours are spent
        explicit = bool(hypotheses)
        plan, chosen, hypotheses = decide(choosing, bench, hypotheses, options, events, rng)
        effects = effects_of(bench, hypotheses, options)
        controls, picked = controls_of(choosing, bench, plan, chosen, options, generator)
        picked += without_controls(bench, hypotheses) if explicit else []
        result = report(bench, hypotheses, effects, controls, picked, explicit, options, rng)
        actions, names = bench.predictor.measures.actions, simulator.world.spec.action_names
        result.notes["actions"] = {name: [names[i] for i in ids] for name, ids in actions.items()}
        if options.video and simulator.world.spec.picture:
            film(bench, result, hypotheses)
    finally:
        both.close()
    return result


class Benches(NamedTuple):
    """A simulator and its real world: the starts that it chooses on, and those that claims are tested at."""

    choosing: Bench
    test: Bench

    def close(self) -> None:
        """Give back the real world."""
        self.test.real.env.close()
        self.test.real.few.close()


def both_benches(
    simulator: Simulator[Any], make_env: Callable[[int], VecEnv], basis: Basis, options: StudyOptions,
    device: torch.device, generator: torch.Generator, *, rule: Rule | None = None,
    make_choosing: Callable[[int], VecEnv] | None = None, simulated: type[SimulatedWorld] = SimulatedWorld,
    members: Sequence[Simulator[Any]] = (), events: tuple[Event, ...] = (),
    hypotheses: Sequence[Hypothesis] = (),
) -> Benches:  # fmt: skip
    """What a study runs on; the arguments are those of ``study``.  generator: of the action noise; hypotheses: what
    they speak of is measured.  The caller closes it."""
    agent, spec = simulator.agent, simulator.world.spec
    frames = max(one.world.initial_frames for one in (simulator, *members))
    when = where_started(options.start_when, basis, rule)
    starts = find_starts(agent, frames, make_env, options, options.seed, device, when)
    before = find_starts(
        agent, frames, make_choosing or make_env, options.to_choose(), options.seed + CHOOSING_SEED, device, when
    )
    env, few = make_env(len(starts)), make_env(min(len(starts), BRANCHES))
    try:
        note_unshared(env, starts)
        claims = [h.on for h in hypotheses]
        actions = with_named(distinct_actions(env, starts), env.spec, claims)
        directions = with_claimed(options.directions, basis, claims)
        measures = Measures(actions, basis, directions, events, spec.parts, timed=timed(hypotheses))
        dreams = [dreamed_from(simulator, some, measures, options, generator, simulated) for some in (before, starts)]
        noise_NTA = dreams[1].noise_NTA
        real = RealWorld(agent, starts.state, noise_NTA, measures, env, starts, few, whole=True)
        held = held_still(agent, starts, noise_NTA, measures, simulated)
        others = [
            simulated(agent, starts.state, noise_NTA, measures, one.world, starts_in(one.world, starts, device))
            for one in members
        ]
    except BaseException:
        env.close()
        few.close()
        raise
    return Benches(Bench(basis, before, dreams[0], rule), Bench(basis, starts, dreams[1], rule, real, held, others))


def find_starts(
    agent: Agent, frames: int, make_env: Callable[[int], VecEnv], options: StudyOptions, seed: int,
    device: torch.device, when: When | None = None,
) -> Starts:  # fmt: skip
    """Starts of their own episodes, each with the last ``frames`` observations, in such states (None: any)."""
    until = last_in_time(PAST, options.time_limit, options.horizon, max(1, frames - 1))
    collectors = COLLECTORS if when is None else RARELY
    collector = make_env(min(options.starts, collectors))
    if not collector.spec.can_snapshot and options.starts > collectors:
        collector.close()
        collector = make_env(options.starts)
    try:
        return collect_starts(
            agent, collector, options.starts, initial_frames=frames,
            latest=options.latest_start, seed=seed, greedy=options.greedy, device=device,
            when=when, until=until,
        )  # fmt: skip
    finally:
        collector.close()


def dreamed_from(
    simulator: Simulator[Any], starts: Starts, measures: Measures, options: StudyOptions, generator: torch.Generator,
    simulated: type[SimulatedWorld] = SimulatedWorld,
) -> SimulatedWorld:  # fmt: skip
    """The simulator run on from these starts, with action noise of its own."""
    device = starts.h_NH.device
    shape = (len(starts), options.horizon + 1, simulator.world.spec.n_actions)
    exponential = torch.empty(shape).exponential_(generator=generator)
    noise_NTA = (torch.zeros(shape) if options.greedy else -exponential.log()).to(device)
    start = starts_in(simulator.world, starts, device)
    return simulated(simulator.agent, starts.state, noise_NTA, measures, simulator.world, start)


@torch.no_grad()
def starts_in(world: LearnedWorld, starts: Starts, device: torch.device) -> tuple[Tree, Shown]:
    """What the world shows first at these starts, and its state, from their frames."""
    frames = world.initial_frames
    return started(world, {k: torch.from_numpy(v[:, -frames:]).to(device) for k, v in starts.window.items()})


def held_still(
    agent: Agent, starts: Starts, noise_NTA: Tensor, measures: Measures,
    simulated: type[SimulatedWorld] = SimulatedWorld,
) -> SimulatedWorld:  # fmt: skip
    """No world: the agent sees the last frame of its start for ever, is given no reward and never ends."""
    frame = held_frame(agent.spec, starts.window, noise_NTA.device)
    return simulated(agent, starts.state, noise_NTA, measures, frame, frame.begin())


def decide(
    choosing: Bench, bench: Bench, hypotheses: list[Hypothesis], options: StudyOptions, events: Sequence[Event],
    rng: np.random.Generator,
) -> tuple[list[Family], list[list[Pick]], list[Hypothesis]]:  # fmt: skip
    """(the families, what is chosen of each on starts of their own, the hypotheses: those in words, or all ways of the
    directions that were chosen); the worlds of ``bench`` measure their directions from here on."""
    basis = bench.basis
    plan = plan_of(choosing, hypotheses, options, basis)
    for family in plan:  # before hours are spent on what has no controls
        require_varied(choosing.starts.h_NH, basis, max(len(ways[0].ids) for ways in family.ways))
    everything = [h for family in plan for ways in family.ways for h in ways]
    choosing.prepare(everything, events, rng)
    if any(len(f.ways) > 1 or len(f.ways[0]) > 1 or not f.quantity for f in plan):
        choosing.require(everything, "starts that choose", "; say 'on QUANTITY' to choose nothing")
    chosen = [choose(family, choosing, [None])[0] for family in plan]
    if not hypotheses:
        picks = [family.ways[pick.place][0] for family, own in zip(plan, chosen, strict=True) for pick in own]
        hypotheses = hypotheses_of(basis.kind, [h.ids[0] for h in picks], options.amounts, options.always)
    changed = [i for h in hypotheses if not h.everything for i in h.ids]
    named = with_claimed(changed, basis, (h.on for h in hypotheses))
    for world in filter(None, (bench.real, bench.predictor, bench.held, *bench.members)):
        world.measures = replace(world.measures, directions=named)
    bench.prepare([*everything, *hypotheses], events, rng)
    bench.require(hypotheses, "starts")
    return plan, chosen, hypotheses


def plan_of(bench: Bench, hypotheses: Sequence[Hypothesis], options: StudyOptions, basis: Basis) -> list[Family]:
    """The families that claims are chosen from: one of all directions; one a direction that was named; one a
    hypothesis in words, as many times as there were directions that its own was chosen among, so that of each mock
    family of so many the largest is its control."""
    by_world = options.choose_by == "world"
    if hypotheses:
        k = bench.predictor.noise_NTA.shape[1] - 1
        known = list(bench.predictor.measure([None]))
        named = [(h, claimed(h, known, basis.kind, k)) for h in hypotheses]
        # A change that takes one path has no effect beside that.
        return [
            Family(((h,),) * options.chosen_of, quantity=quantity, by_world=by_world and not (quantity or h.through))
            for h, quantity in named if not h.is_nothing and h.control is not None
        ]  # fmt: skip
    if options.largest:
        every = tuple(ways_of(basis.kind, i, options) for i in range(basis.size))
        return [Family(every, choose=options.largest, by_world=by_world)]
    return [Family((ways_of(basis.kind, i, options),), by_world=by_world) for i in options.directions]


def ways_of(basis: str, direction: int, options: StudyOptions) -> tuple[Hypothesis, ...]:
    """What may be done to a direction, and claimed: shifts, and the mean."""
    amounts = [a for a in options.amounts if a]
    return tuple(h for h in hypotheses_of(basis, [direction], amounts, options.always) if h.kind != "keep_only")


def effects_of(bench: Bench, hypotheses: Sequence[Hypothesis], options: StudyOptions) -> Effects:
    """Both worlds along every path, and the predictions that need no world."""
    assert bench.real is not None and bench.held is not None

    def paths(world: RealWorld | SimulatedWorld, label: str) -> dict[str, dict[str, np.ndarray]]:
        own = effects_in(bench, world, hypotheses, None, label)
        return {"own": own} | {
            path: effects_in(bench, world, hypotheses, path, f"{label}, through {path}") for path in THROUGH
        }

    seen, foretold = paths(bench.real, "real world"), paths(bench.predictor, "simulator")
    nothing = {q: np.where(np.isnan(v), np.nan, 0.0) for q, v in foretold["own"].items()}
    # What only the action carries on does nothing where the world does not answer.
    cut = np.array([h.through == "world" for h in hypotheses])[:, None]
    frames = effects_in(bench, bench.predictor, hypotheses, "frames", "simulator, unaltered frames")
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
    unaltered, expected = ({q: v[0] for q, v in w.measure([None]).items()} for w in (bench.real, bench.predictor))
    members = [
        effects_in(bench, world, hypotheses, None, f"simulator {number}")
        for number, world in enumerate(bench.members, 2)
    ]
    zeros = largest(seen["own"]), largest(foretold["own"])
    return Effects(unaltered, seen, foretold, expected, rivals, jacobian, zeros, members)


def controls_of(
    choosing: Bench, bench: Bench, plan: Sequence[Family], chosen: Sequence[list[Pick]], options: StudyOptions,
    generator: torch.Generator, isotropic: bool = True,
) -> tuple[dict[Hypothesis, Controls], list[Picked]]:  # fmt: skip
    """What mock families do, each chosen as the family's own directions were; isotropic: and directions uniform over
    all, which decide nothing (a hidden state of one number has no other)."""
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
                if w == pick.way and isotropic and bench.basis.lift_KH.shape[1] > 1:
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
        words += " through the world, beyond memory" if family.by_world and not family.quantity else ""
        claims = [(family.ways[pick.place][pick.way], pick.quantity) for pick in own]
        picked.append(Picked(claims, words))
    return controls, picked


def without_controls(bench: Bench, hypotheses: Sequence[Hypothesis]) -> list[Picked]:
    """What is claimed of changes in words that nothing is held against; what is said to be needed for an event is
    claimed by itself."""
    known, k = list(bench.predictor.measure([None])), bench.predictor.noise_NTA.shape[1] - 1
    return [
        Picked([(h, claimed(h, known, bench.basis.kind, k))], "no controls")
        for h in hypotheses if h.control is None and not h.role
    ]  # fmt: skip
