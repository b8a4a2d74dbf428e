"""A study of edits: what they do in the real game, by which way, and whether a simulator foretold it.

Every statement is that of validation.interventions.verdicts, tested on starts of episodes of their own.  ``special`` is
asked of what is claimed, against the same edit of other things (controls.py).  ``through_world`` is asked of what the
whole edit does beyond what it does through the pixels alone.  N starts, Q quantities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.shared.edit_starts import collect, fits, why_not
from analysis.shared.events import Event
from core.artefacts import Result
from core.conditions import Where
from core.contracts import Agent, UserError
from core.directions import Basis
from core.interventions import AtSteps, Resample
from core.progress import bar
from core.roll import Simulator, act, action_noise
from core.when import Rule
from envs.procgen import ProcgenEnv
from envs.procgen_edits import PICTURELESS, Edit
from envs.procgen_state import state_of
from generative.starts import held_frame, started
from validation.edits.claims import Against, Judged, claims_of, verdict_of, way_of
from validation.edits.controls import choices, others
from validation.edits.coupled import Edge, Tried, judged as judged_edges, tried
from validation.edits.course import ALL_ELSE, SET_BACK, AllElse, EditedWorld, Frames, Run, Way, differs, shown_with
from validation.hypotheses.grammar import EditHypothesis, timed
from validation.interventions import verdicts
from validation.interventions.options import claimed
from validation.interventions.statistics import Scale, Sizes, Trial, judge, spread_under
from validation.interventions.verdicts import SMALLEST
from validation.paired.course import (
    Course,
    Measures,
    is_described,
    is_late,
    quantities,
    unit_of,
    with_claimed,
    with_named,
)
from validation.paired.simulated import SimulatedWorld

COLLECTORS = 64
CONTROLS_SEED = 1  # so that what is asked of controls moves no other number
CRITERIA = (
    "Exists: the 95 % interval of the mean effect lies beyond the smallest size of interest, and q <= 0.05 over all "
    "rows of the table (no: its 90 % interval lies inside, also if the edit acts at as large a share of the starts as "
    "these can all have missed). Size as foretold: more than half and less than twice what the simulator foretold, "
    "each with a one-sided 95 % bound. Through the world: the effect of the whole edit beyond "
    "its effect through the pixels alone. Needed: the simulator's squared error is below that of no change and of a "
    "held frame. Special: of what is claimed, further than the same edit of other things in the same pictures, or at "
    "other places of it, chosen at random (p; of several claims: q <= 0.05); where there is nothing of the kind it is "
    "not asked, and a claim is confirmed without."
)


@dataclass(frozen=True, kw_only=True)
class EditOptions:
    """What ``study`` is asked."""

    hypotheses: tuple[EditHypothesis, ...]
    starts: int
    horizon: int
    latest: int
    seed: int
    greedy: bool
    events: tuple[Event, ...] = ()
    directions: tuple[int, ...] = ()  # that are set back
    edges: tuple[Edge, ...] = ()  # of a coupling run, to be tried
    random: int = 39  # directions that each of their sources is held against
    controls: int = 0  # others that the same edit is made to at every start, for *special*; 0: it is not asked
    smallest: tuple[float, float] = SMALLEST


def study(
    agent: Agent, make: Callable[[int], ProcgenEnv], options: EditOptions, *, simulator: Simulator[Any] | None = None,
    basis: Basis | None = None, rule: Rule | None = None, device: torch.device,
) -> Result:  # fmt: skip
    """make: the real game with so many slots; rule: tells the behaviours that hypotheses speak of.

    Tables ``effects`` (a row an edit, way and quantity), ``edits``, ``needs`` (of events) and ``coupling`` (of edges);
    arrays ``effect/EDIT/WAY/QUANTITY`` [N] (NaN where an edit is not about a start), ``foretold/EDIT/QUANTITY``; frames
    of some starts.  Raises UserError where an edit fits too few starts, or a quantity is not measured."""
    generator = torch.Generator().manual_seed(options.seed)
    spec = agent.spec
    frames = 1 if simulator is None else simulator.world.initial_frames
    collector = make(min(options.starts, COLLECTORS))
    env = drawer = None

    def about(h_H: np.ndarray) -> list[bool]:
        return [_inside(h, torch.from_numpy(h_H)[None].to(device), basis, rule)[0] for h in options.hypotheses]

    try:
        starts = collect(
            agent, collector, [h.edit for h in options.hypotheses], options.starts, initial_frames=frames,
            latest=options.latest, seed=options.seed, greedy=options.greedy, device=device,
            about=about if any(h.when for h in options.hypotheses) else None,
        )  # fmt: skip
        env, drawer = make(len(starts)), make(len(starts))
        shape = (len(starts), options.horizon + 1, spec.n_actions)
        noise = action_noise(shape, generator, options.greedy).to(device)
        world = EditedWorld(agent, env, drawer, starts, noise)
        claims = [h.on for h in options.hypotheses]
        directions = options.directions if basis is None else with_claimed(options.directions, basis, claims)
        actions = with_named(spec.distinct_actions(), spec, claims)
        measures = Measures(actions, basis, directions, options.events, timed=timed(options.hypotheses))
        return _asked(world, measures, options, simulator, rule)
    finally:
        for one in (collector, env, drawer):
            if one is not None:
                one.close()


def _inside(h: EditHypothesis, h_NH: Tensor, basis: Basis | None, rule: Rule | None) -> list[bool]:
    """Which of these hidden states a hypothesis is about."""
    held: list[bool] = Where(h.when, basis, rule)(h_NH).tolist() if h.when else [True] * len(h_NH)
    return held


def _asked(
    world: EditedWorld, measures: Measures, options: EditOptions, simulator: Simulator[Any] | None, rule: Rule | None
) -> Result:
    """The study on these starts."""
    starts, rng = world.starts, np.random.default_rng(options.seed)
    nobody: list[Edit | None] = [None] * len(starts)
    unedited = world.course(nobody)
    assert unedited.course.h_RTH is not None
    h_NH = unedited.course.h_RTH[:, 0]
    fixed: dict[str, list[Edit | None]] = {}  # by what is changed, which several claims may be of
    for h in options.hypotheses:
        if h.change in fixed:
            continue
        here = _inside(h, h_NH, measures.basis, rule)
        of = fixed[h.change] = [fits(h.edit, s) if on else None for s, on in zip(starts.states, here, strict=True)]
        if (n := sum(e is not None for e in of)) < verdicts.LEAST_STARTS:
            why = why_not(h.edit, (s for s, on in zip(starts.states, here, strict=True) if on))
            raise UserError(
                f"edit {h.change!r} can be made at {n} of {len(of)} starts, and at least {verdicts.LEAST_STARTS} are "
                f"needed (elsewhere: {why}); ask for {'more (--starts), ' if n else ''}later ones (--latest_start) or "
                "another edit"
            )
    plain = _measured(unedited.course, measures)
    late = [q for q in plain if is_late(q)]
    kind = "" if measures.basis is None else measures.basis.kind
    asked = [(h, claimed(h, late, kind, options.horizon) or f"return@{options.horizon}") for h in options.hypotheses]
    twin = differs(unedited, world.course(nobody))
    held = _foretellers(world, measures, simulator)
    result = Result(tables={"effects": [], "edits": []})
    tests: list[Trial] = []
    edges: list[Tried] = []
    expected = held["simulator"].plain if held else {}
    judged = Judged({}, {}, {}, plain, expected, world.agent.spec.env_id.partition("/")[2])
    with bar("edits", len(fixed), "edits") as progress:
        for change, of in fixed.items():
            seen, runs = _ways(world, of, measures, plain, unedited, options.directions)
            foretold = {name: one.effects(of) for name, one in held.items()}
            rows = _rows(change, seen, foretold, runs, plain, options, rng, tests)
            result.tables["effects"] += rows
            result.tables["edits"].append(_told(change, runs, len(starts)))
            for way, effects in seen.items():
                result.arrays |= {f"effect/{change}/{way}/{q}": v for q, v in effects.items()}
            for q, v in foretold.get("simulator", {}).items():
                result.arrays[f"foretold/{change}/{q}"] = v
            some = np.flatnonzero(runs["whole"].rows_N)[:2]
            result.arrays[f"frames/{change}"] = np.stack([unedited.frames[some], runs["whole"].frames[some]], 1)
            if options.edges:
                assert measures.basis is not None
                rng_edges, draws = np.random.default_rng([options.seed, 2]), torch.Generator().manual_seed(options.seed)
                edges += tried(world, change, of, unedited, runs["whole"], measures.basis, options.edges,
                               options.random, options.smallest[0], rng_edges, draws)  # fmt: skip
            judged.seen[change], judged.foretold[change] = seen, foretold.get("simulator", {})
            claims_here = [(h, q) for h, q in asked if h.change == change]
            told = judged.foretold[change]
            judged.against.update(_against(world, claims_here, of, (seen, told), plain, measures, options))
            progress.advance()
    _judge(tests)
    if edges:
        result.tables["coupling"] = judged_edges(edges, options.smallest[0])
    result.arrays |= {f"unaltered/{q}": v for q, v in plain.items()} | {"age": starts.age_N}
    result.scalar("twin_difference", twin, "largest difference of two unedited runs", len(starts))
    claims = claims_of(result, asked, judged, options.smallest[1], rng)
    result.notes = {
        "criteria": CRITERIA, "claims": claims, "simulator": simulator is not None, "horizon": options.horizon,
        "events": {e.name: e.text for e in options.events},
        "levels": len({int(state_of(s).episode["current_level_seed"]) for s in starts.states}),
    }  # fmt: skip
    return result


def _against(
    world: EditedWorld, asked: Sequence[tuple[EditHypothesis, str]], of: Sequence[Edit | None],
    effects: tuple[Mapping[str, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]], plain: Mapping[str, np.ndarray],
    measures: Measures, options: EditOptions,
) -> dict[EditHypothesis, Against]:  # fmt: skip
    """What the claims of one change are held against: the same edit of other things, the same way; nothing for claims
    of which there is nothing else in any picture.  effects: seen, by way, and foretold."""
    seen, told = effects
    states, rng = world.starts.states, np.random.default_rng([options.seed, CONTROLS_SEED])
    more = [[] if e is None else others(e, s, options.controls, rng) for e, s in zip(of, states, strict=True)]
    found: dict[Way, list[dict[str, np.ndarray]]] = {}
    out = {}
    for h, q in asked:
        way = way_of(h)
        own = seen.get(way.name, {}).get(q)
        if own is None or not any(more):
            continue
        if way == Way() and q in told:  # a claim is of the starts of which something was foretold
            own = np.where(np.isnan(told[q]), np.nan, own)
        if way not in found:
            found[way] = []
            for k in range(max(map(len, more))):
                run = world.course([m[k] if k < len(m) else None for m in more], *way)
                got = _measured(run.course, measures)
                found[way].append({name: np.where(run.rows_N, v - plain[name], np.nan) for name, v in got.items()})
        out[h] = Against(choices(q, own, np.stack([row[q] for row in found[way]]), rng), sum(map(bool, more)))
    return out


def _ways(
    world: EditedWorld, of: Sequence[Edit | None], measures: Measures, plain: Mapping[str, np.ndarray], unedited: Run,
    directions: tuple[int, ...] = (),
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Run]]:  # fmt: skip
    """Effects by every way, {way: {quantity: [N]}}, NaN at starts that a way is not about.  directions: set back."""
    edit = next(e for e in of if e is not None)
    ways = [Way()]
    if edit.thing not in PICTURELESS:
        ways += [Way("pixels"), Way("world")]
        if edit.thing != "agent":  # what the agent does next is not of its past
            ways += [Way(since="episode"), Way("pixels", "episode")]
    runs = {way.name: world.course(of, *way) for way in ways}
    if directions:
        # Object -> direction -> action: does what the edit does to these directions carry what it does to the action?
        basis, h = measures.basis, unedited.course.h_RTH
        assert basis is not None and h is not None
        for way, change in ((SET_BACK, Resample), (ALL_ELSE, AllElse)):
            back = AtSteps(change(basis, directions, h[:, 0]), 0, 1)
            runs[way] = world.course(of, intervene=(back,))
    seen = {}
    for way, run in runs.items():
        got = _measured(run.course, measures)
        if way in (SET_BACK, ALL_ELSE):  # there their own coordinates are what they were made to be
            got = {q: v for q, v in got.items() if q not in measures.names}
        seen[way] = {q: np.where(run.rows_N, v - plain[q], np.nan) for q, v in got.items()}
    return seen, runs


def _measured(course: Course, measures: Measures) -> dict[str, np.ndarray]:
    """``quantities``, and the directions' coordinates at once."""
    out = {q: v.cpu().double().numpy() for q, v in quantities(course, measures).items()}
    if measures.directions:
        assert course.h_RTH is not None
        out |= _coordinates(course.h_RTH[:, 0], measures)
    return out


def _coordinates(h_NH: Tensor, measures: Measures) -> dict[str, np.ndarray]:
    """Of the directions that are measured, by name."""
    assert measures.basis is not None
    c_NK = measures.basis.project(h_NH).cpu().double().numpy()
    return {name: c_NK[:, i] for i, name in zip(measures.directions, measures.names, strict=True)}


class Foreteller(NamedTuple):
    """What is foretold at the starts, {quantity: [N]}."""

    plain: dict[str, np.ndarray]  # the quantities themselves, unedited
    effects: Callable[[Sequence[Edit | None]], dict[str, np.ndarray]]  # of edits; NaN where one cannot be drawn


def _foretellers(world: EditedWorld, measures: Measures, simulator: Simulator[Any] | None) -> dict[str, Foreteller]:
    """What foretells an edit's effects from the edited frames alone: the simulator, and a held frame."""
    starts, device = world.starts, world.noise_NTA.device

    def run_from(frames: Frames, made: Callable[[Frames, Any], SimulatedWorld]) -> dict[str, np.ndarray]:
        last = {k: torch.from_numpy(v[:, -1]).to(device) for k, v in frames.items()}
        none = torch.zeros(len(starts), dtype=torch.bool, device=device)
        with torch.no_grad():
            state = act(world.agent, last, starts.before, none, torch.zeros_like(none, dtype=torch.int64)).state
        out = {q: v[0] for q, v in made(frames, state).measure([None]).items()}
        if measures.directions:
            out |= _coordinates(world.agent.read("h", world.agent.encode(last), state), measures)
        return out

    def dreamed(frames: Frames, state: Any) -> SimulatedWorld:
        assert simulator is not None
        begin = started(simulator.world, {k: torch.from_numpy(v).to(device) for k, v in frames.items()})
        return SimulatedWorld(world.agent, state, world.noise_NTA, measures, simulator.world, begin)

    def still(frames: Frames, state: Any) -> SimulatedWorld:
        frame = held_frame(world.agent.spec, frames, device)
        return SimulatedWorld(world.agent, state, world.noise_NTA, measures, frame, frame.begin())

    def of(made: Callable[[Frames, Any], SimulatedWorld]) -> Foreteller:
        plain = run_from(dict(starts.frames), made)

        def foretell(edits: Sequence[Edit | None]) -> dict[str, np.ndarray]:
            frames, fine_N = shown_with(starts, edits, world.drawer)
            got = run_from(frames, made)
            return {q: np.where(fine_N, v - plain[q], np.nan) for q, v in got.items()}

        return Foreteller(plain, foretell)

    return {} if simulator is None else {"simulator": of(dreamed), "held frame": of(still)}


def _rows(
    edit: str, seen: Mapping[str, Mapping[str, np.ndarray]], foretold: Mapping[str, Mapping[str, np.ndarray]],
    runs: Mapping[str, Run], plain: Mapping[str, np.ndarray], options: EditOptions, rng: np.random.Generator,
    tests: list[Trial],
) -> list[dict[str, Any]]:  # fmt: skip
    """One row a way and quantity that varies; what is to be judged goes to ``tests``."""
    every = {q: np.stack([v[q] for v in seen.values() if q in v]) for q in plain}
    size = {
        q: Sizes.of(q, spread_under(v, every[q]), options.smallest) for q, v in plain.items() if not is_described(q)
    }
    rows: list[dict[str, Any]] = []
    draws = verdicts.draws_for(len({h.change for h in options.hypotheses}) * len(seen) * len(size))
    for way, effects in seen.items():
        told = foretold.get("simulator", {}) if way == "whole" else {}
        names = [q for q in effects if q in size and size[q].unit > 0 and (q in told or not told)]
        here = runs[way].rows_N & ~np.isnan(effects[names[0]])
        if told:
            here &= ~np.isnan(told[names[0]])
        if here.sum() < 2:
            continue
        scale = Scale(names, here, size)
        nothing = np.zeros((int(here.sum()), len(names)))
        pixels = scale.of(seen["pixels"]) if way == "whole" and "pixels" in seen else np.full_like(nothing, np.nan)
        rivals = {"no change": nothing, "held frame": scale.of(foretold["held frame"])} if told else {}
        sample = scale.sample(effects, scale.of(told) if told else nothing, pixels, rivals, plain, every)
        tested = verdicts.test(sample, rng, draws)
        for j, q in enumerate(names):
            unit, e = size[q].unit, tested.seen[j]
            row: dict[str, Any] = {
                "edit": edit, "way": way, "quantity": q, "late": is_late(q), "unit": unit_of(q),
                "effect": e.value * unit, "low": e.low * unit, "high": e.high * unit, "n": e.n, "p": float(tested.p[j]),
                "spread": unit, "smallest": size[q].smallest * unit,
            }  # fmt: skip
            if told:
                row |= {"foretold": tested.foretold[j].value * unit, "foretold_low": tested.foretold[j].low * unit,
                        "foretold_high": tested.foretold[j].high * unit, **tested.errors(j)}  # fmt: skip
            if np.isfinite(tested.world[j].value):
                w = tested.world[j]
                row |= {"beyond_pixels": w.value * unit, "beyond_low": w.low * unit, "beyond_high": w.high * unit}
            rows.append(row)
            tests.append(Trial(row, tested, j, size[q], bool(told) and is_late(q)))
    return rows


def _judge(tests: Sequence[Trial]) -> None:
    """The answers of every row, into it; one family of tests for all edits, ways and quantities."""
    judge(tests)
    for row, *_ in tests:
        row["special"] = verdicts.NOT_ASKED  # but of claims
        if "beyond_pixels" not in row:
            row["through_world"] = verdicts.NOT_ASKED
        row["verdict"] = verdict_of(row)


def _told(edit: str, runs: Mapping[str, Run], starts: int) -> dict[str, Any]:
    """What an edit was about."""
    out: dict[str, Any] = {"edit": edit, "starts": starts, "fits": int(runs["whole"].rows_N.sum())}
    since = runs.get(Way(since="episode").name)
    if since is not None:
        out |= {"since_the_episode": int(since.rows_N.sum()), "apart": int((since.apart_N & since.rows_N).sum())}
    return out
