"""How the statements about a claim (interventions.verdicts) are scored in the planted worlds: what is chosen among many
directions that mean nothing, effects of every shape, simulators that are wrong.

The jobs of ``validation.planted`` and ``benchmarks.claims``; N starts, K directions, M mocks, H hidden.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from core.contracts import UserError, VecEnv
from core.directions import Basis
from core.roll import Simulator
from core.stats import ALPHA, bootstrap_mean
from core.when import Rule
from envs.planted import (
    Kind,
    PlantedModel,
    PlantedOptions,
    PlantedWorld,
    Wrong,
    WrongModel,
    planted_simulator,
    record_planted,
)
from envs.planted_truth import truth
from validation.hypotheses.grammar import Hypothesis, parse_hypothesis, shift_of
from validation.interventions import verdicts
from validation.interventions.bench import Bench
from validation.interventions.claims import claim_of, q_of_claims, restate
from validation.interventions.controls import Family, NothingToChooseError, Pick, choose, contest, mocks_of, run_ways
from validation.interventions.options import StudyOptions
from validation.interventions.statistics import (
    Controls,
    Effects,
    special_p,
    spread_of,
    table_of,
    verdict_of,
    worst_p,
)
from validation.interventions.study import Benches, both_benches, controls_of, effects_of, starts_in, study, ways_of
from validation.interventions.verdicts import SMALLEST
from validation.paired.course import is_late
from validation.paired.simulated import SimulatedWorld
from validation.planted.measures import (
    CHOICE,
    CONFIRMED,
    CONTROL,
    EXISTING,
    FALSE_ALARMS,
    FORETOLD,
    FORETOLD_RIGHTLY,
    FORETOLD_WITHOUT,
    FOUND,
    NO_EFFECT,
    POWER,
    REFUTED,
    WRONG_CONFIRMED,
    Found,
    Key,
    Measure,
    significant,
)

Drawn = Literal["isotropic", "in span", "covariance matched", "rotated"]
DRAWN: tuple[Drawn, ...] = get_args(Drawn)
MOCKS = 59  # p <= .05 is then exactly 5 % of the null
WITHOUT_A_WORLD: tuple[Wrong, ...] = ("held frame", "garbage frames", "garbage states")
SENTENCE = "the simulator foretold it, and the real world confirmed it"
FORETELLING: tuple[Kind, ...] = ("confounded", "mediated", "linear", "gated")
LATEST = 4  # latest step of a start where many small studies are cut from one run
KEPT = 0.5  # of a direction from one step to the next in the null world


def require_snapshots(world: VecEnv) -> None:
    """UserError for a world in which nothing can be run twice from the same state."""
    if not world.spec.can_snapshot:
        raise UserError(f"{world.spec.env_id} gives no snapshots: a counterfactual needs the same state twice")


def benches_of(
    simulator: Simulator[Any], make_env: Callable[[int], VecEnv], basis: Basis, options: StudyOptions,
    make_choosing: Callable[[int], VecEnv] | None = None,
) -> Benches:  # fmt: skip
    """What ``validation.interventions.study.study`` runs on, with the same starts and action noise."""
    with closing(make_env(1)) as world:
        require_snapshots(world)
    generator = torch.Generator().manual_seed(options.seed)
    device = basis.lift_KH.device
    return both_benches(simulator, make_env, basis, options, device, generator, make_choosing=make_choosing)


def prepare(both: Benches, hypotheses: Sequence[Hypothesis]) -> None:
    for bench in both:
        bench.prepare(hypotheses, (), np.random.default_rng(0))


# The choice among many


def drawn_basis(how: Drawn, basis: Basis, h_NH: Tensor, rng: np.random.Generator) -> Basis:
    """A random basis of as many directions as ``basis`` has, each as long as the one in its place, that means nothing.

    isotropic: at right angles, uniform over the state space.  in span: uniform over the span of the states.  covariance
    matched: with their covariance.  rotated: the basis itself, turned at random.
    """
    z_NH = ((h_NH - basis.mean_H) / basis.std_H).double().cpu().numpy()
    lift_KH = basis.lift_KH.double().cpu().numpy()
    count, size = lift_KH.shape
    _, scale_R, axis_RH = np.linalg.svd(z_NH - z_NH.mean(0), full_matrices=False)
    inside = scale_R > 1e-4 * scale_R[0]
    scale_R, axis_RH = scale_R[inside], axis_RH[inside]
    if how == "isotropic":
        drawn_KH = np.linalg.qr(rng.standard_normal((size, min(count, size))))[0].T
    elif how == "rotated":
        drawn_KH = np.linalg.qr(rng.standard_normal((count, count)))[0] @ lift_KH
    else:
        drawn_KH = (
            rng.standard_normal((count, len(scale_R))) * (scale_R if how == "covariance matched" else 1) @ axis_RH
        )
    drawn_KH *= np.linalg.norm(lift_KH, axis=1, keepdims=True) / np.linalg.norm(drawn_KH, axis=1, keepdims=True)
    lift = torch.from_numpy(drawn_KH).to(basis.lift_KH)
    return replace(basis, kind=how, lift_KH=lift, project_HK=torch.linalg.pinv(lift))


class Chance(NamedTuple):
    """p of what was chosen of a random basis: against what was chosen in the same way; asked again by name, against the
    largest of as many; and against single directions that were not chosen."""

    p: float
    named_p: float
    alone_p: float


def chance_of(benches: Benches, basis: Basis, options: StudyOptions, generator: torch.Generator) -> Chance:
    """The choice of one direction of a basis, and how special it is, as in a study."""
    choosing, test = (replace(bench, basis=basis) for bench in benches)
    choosing._jacobians = benches.choosing._jacobians  # of the simulator, not of the basis
    family = Family(tuple(ways_of(basis.kind, i, options) for i in range(basis.size)))
    prepare(Benches(choosing, test), [way for ways in family.ways for way in ways])
    (own,) = choose(family, choosing, [None])
    mocks = mocks_of(family, choosing, MOCKS, generator)
    against = contest(family, choosing, test, own, mocks, "random basis")
    assert test.real is not None
    (pick,) = own
    mean = float(run_ways(family, test, test.real, [None], [[pick.place]], "own")[pick.quantity][0, 0, pick.way].mean())
    alone = Family((family.ways[pick.place],))
    single = run_ways(
        alone, test, test.real, [(m[pick.place],) for m in mocks.families], [[0]] * len(mocks.law_M), "single"
    )
    p = special_p(pick.quantity, mean, Controls({}, mocks.law_M, {}, against.largest))
    alone_p = worst_p(abs(mean), np.abs(single[pick.quantity][:, 0, pick.way].mean(1)), mocks.law_M)
    way = family.ways[pick.place][pick.way]
    named = Family(((way,),) * basis.size)  # what --chosen_of asks
    again = contest(named, choosing, test, [Pick(0, 0, pick.quantity)], mocks, "asked by name")
    named_p = special_p(pick.quantity, mean, Controls({}, mocks.law_M, {}, again.largest))
    return Chance(p, named_p, alone_p)


def choice_job(kind: Kind, each: int, seed: int) -> Found:
    """``each`` random bases of every kind: how often is the largest of their directions called special?"""
    chosen = PlantedOptions(kind=kind, seed=seed, fickle=1.0)  # in the null world an effect must be there to be chosen
    options = StudyOptions(
        amounts=(-2.0, 2.0), starts=48, horizon=3, controls=MOCKS, latest_start=12, largest=1, seed=seed
    )
    benches = benches_of(
        planted_simulator(chosen), lambda slots: PlantedWorld(chosen, slots), truth(chosen).basis, options
    )
    rng, generator = np.random.default_rng([seed, 2]), torch.Generator().manual_seed(seed)
    benches.choosing.jacobian()
    out: Found = {}
    for _ in range(each):
        for how in DRAWN:
            basis = drawn_basis(how, benches.choosing.basis, benches.choosing.starts.h_NH, rng)
            try:
                found = chance_of(benches, basis, options, generator)
            except NothingToChooseError:  # a study that claims nothing
                found = Chance(1.0, 1.0, 1.0)
            out.setdefault(Key(kind, f"largest of 8, {how}", CHOICE), []).append(float(found.p <= ALPHA))
            out.setdefault(Key(kind, f"by name among 8, {how}", CHOICE), []).append(float(found.named_p <= ALPHA))
            name = f"{CONTROL}the choice not repeated"
            out.setdefault(Key(kind, name, CHOICE), []).append(float(found.alone_p <= ALPHA))
    return out


# Many small studies of one claim, from one long run


def many_claims(
    simulator: Simulator[PlantedModel], options: PlantedOptions, basis: Basis, hypothesis: Hypothesis, quantity: str,
    starts: int, runs: int, seed: int, whole: bool = False,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """The row of a claim in each of ``runs`` studies of ``starts`` starts of their own.  whole: of all late quantities,
    which are then one family of tests."""
    horizon = int(quantity.partition("@")[2])
    setup = StudyOptions(starts=starts * runs, horizon=horizon, controls=MOCKS, latest_start=LATEST, seed=seed,
                         first_order=False)  # fmt: skip
    benches = benches_of(simulator, lambda slots: PlantedWorld(options, slots), basis, setup)
    prepare(benches, [hypothesis])
    bench, family = benches.test, Family(((hypothesis,),), quantity=quantity)
    assert bench.real is not None
    effects = effects_of(bench, [hypothesis], setup)
    mocks = mocks_of(family, bench, MOCKS, torch.Generator().manual_seed(seed))
    control = run_ways(family, bench, bench.real, mocks.families, [[0]] * len(mocks.law_M), "controls")
    names = [q for q in effects.unaltered if (whole and is_late(q)) or q == quantity]
    rng = np.random.default_rng([seed, 3])
    for part in np.array_split(np.arange(starts * runs), runs):
        mine = Controls({q: control[q][:, 0, 0][:, part] for q in names}, mocks.law_M, {})
        judged = table_of(some_of(effects, part, names), [hypothesis], {hypothesis: mine}, (), SMALLEST, rng)
        yield next(r for r in judged.rows if r["world"] == "real" and r["quantity"] == quantity)


def judged_claims(
    benches: Benches, plan: Sequence[Family], options: StudyOptions
) -> tuple[list[tuple[Hypothesis, str]], list[dict[str, Any]]]:
    """(what is claimed of every family, all rows of the real world): a study as far as its verdicts, without what only
    a report needs."""
    prepare(benches, [way for family in plan for ways in family.ways for way in ways])
    choosing, test = benches
    chosen = [choose(family, choosing, [None])[0] for family in plan]
    hypotheses = [
        way for family, own in zip(plan, chosen, strict=True) for pick in own for way in family.ways[pick.place]
    ]
    effects = effects_of(test, hypotheses, options)
    generator = torch.Generator().manual_seed(options.seed)
    controls, picked = controls_of(choosing, test, plan, chosen, options, generator)
    judged = table_of(effects, hypotheses, controls, (), SMALLEST, np.random.default_rng(options.seed))
    claims = [claim for one in picked for claim in one.claims]
    rows = {(r["hypothesis"], r["quantity"]): r for r in judged.rows if r["world"] == "real"}
    mine = [rows[h.name, q] for h, q in claims]
    q_special = q_of_claims([row.get("special_p", np.nan) for row in mine], len(plan))
    for row, special_q in zip(mine, q_special.tolist(), strict=True):
        if "verdict" in row:
            restate(row, special_q, verdict_of)
    return claims, list(rows.values())


def some_of(effects: Effects, starts: np.ndarray, names: Sequence[str]) -> Effects:
    """Effects at some of the starts, on some quantities."""

    def of(some: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {q: some[q][..., starts] for q in names if q in some}

    def paths(some: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
        return {name: of(v) for name, v in some.items()}

    return Effects(
        of(effects.unaltered), paths(effects.seen), paths(effects.foretold), of(effects.expected),
        paths(effects.rivals), of(effects.jacobian), effects.zero,
    )  # fmt: skip


def power_job(runs: int, starts: int, seed: int) -> Found:
    """An exact simulator, and an effect of twice the smallest size of interest that differs from start to start by half
    a spread: is it found to exist, and is it ever refuted?"""
    mean, spread = 2 * SMALLEST[0], 0.5
    # The effect on the value is (lean + mood) c, and the mood has standard deviation 1.
    options = PlantedOptions(kind="null", seed=seed, hazard=0.0, fickle=1.0, lean=mean / spread)
    recorded = record_planted(options, 4000, LATEST + 1, seed)
    value = np.concatenate([episode.value[2:] for episode in recorded])  # a step after a start
    amount = mean * float(value.std()) / (options.lean * KEPT)
    method, found = f"exact simulator, {starts} starts", shift_of("planted", 0, amount)
    known, simulator = truth(options, torch.float64).basis, planted_simulator(options, torch.float64)
    rows = list(many_claims(simulator, options, known, found, "value@1", starts, runs, seed, whole=True))
    return {
        Key("null, lean 0.4", method, POWER): [float(r["exists"] == verdicts.YES) for r in rows],
        Key("null, lean 0.4", method, REFUTED): [float(r["verdict"] == verdicts.REFUTED) for r in rows],
    }


def tail_job(runs: int, starts: int, lean: float, seed: int) -> Found:
    """Effects that are lognormal over episodes, few of which hold most of it; with ``lean`` -1 they are nothing on
    average, and skewed."""
    options = PlantedOptions(kind="null", seed=seed, hazard=0.0, fickle=1.0, tail=1.0, lean=lean)
    known, simulator = truth(options, torch.float64).basis, planted_simulator(options, torch.float64)
    found = shift_of("planted", 0, 2.0)
    rows = list(many_claims(simulator, options, known, found, "value@1", starts, runs, seed))
    world, method = "null, heavy tails", f"claims, {starts} starts"
    there = [float(r["exists"] == verdicts.YES) for r in rows]
    out: Found = {Key(world, method, REFUTED): [float(r["verdict"] == verdicts.REFUTED) for r in rows]}
    if lean != -1:
        out[Key(world, method, FOUND)] = [
            float(r["exists"] == verdicts.YES and r["size"] == verdicts.FORETOLD) for r in rows
        ]
        return out
    out = {Key(world, f"{method}, none on average", k.measure): v for k, v in out.items()}
    method += ", none on average"
    out[Key(world, method, FALSE_ALARMS)] = [float(significant(np.array(r["p"]))) for r in rows]
    out[Key(world, method, EXISTING)] = there
    out[Key(world, method, CONFIRMED)] = [float(r["verdict"] == verdicts.CONFIRMED) for r in rows]
    return out


# Effects of every shape


class Claimed(NamedTuple):
    """A claim about the value, and whether it is true that it acts."""

    hypothesis: str
    acts: bool


CLAIMED: dict[str, tuple[Claimed, ...]] = {
    "gated": (
        Claimed("shift 0 by +2 when behaviour=1 on value", True),
        Claimed("shift 0 by +2 when behaviour=0 on value", False),
    ),
    "even": (
        Claimed("shift 0 by +2 on value", True), Claimed("shift 0 by -2 on value", True),
        Claimed("shift 3 by +2 on value", False),
    ),
    "redundant": (
        Claimed("shift 0 by -2 on value", False), Claimed("shift 1 by -2 on value", False),
        Claimed("shift 0 by -2 1 by -2 on value", True),
    ),
    "redundant, in part": (
        Claimed("shift 0 by -2 on value", True), Claimed("shift 1 by -2 on value", True),
        Claimed("shift 0 by -2 1 by -2 on value", True),
    ),
}  # fmt: skip
SHAPES = tuple(CLAIMED)
OVERLAP = 0.8  # of directions that are redundant in part


def claims_job(world: str, starts: int, seed: int) -> Found:
    """A study of claims in words, with an exact simulator, about effects of a shape that is easily missed."""
    kind: Kind = world.partition(",")[0]  # type: ignore[assignment]
    # Behaviours last: what does nothing in one of them acts after all where it ends a step later.
    chosen = PlantedOptions(kind=kind, seed=seed, hazard=0.0, dwell=0, overlap=OVERLAP if "," in world else 1.0)
    known = truth(chosen)
    rule = None
    if known.behaviours > 1:
        (switch,) = known.numbers.behaviour_switches
        toward_H = known.basis.project_HK[:, switch]
        rule = Rule(torch.stack([-toward_H, toward_H], 1), torch.zeros(2), torch.arange(2))
    options = StudyOptions(
        hypotheses=tuple(c.hypothesis for c in CLAIMED[world]), starts=starts, horizon=2, controls=MOCKS,
        latest_start=8, seed=seed, first_order=False,
    )  # fmt: skip
    result = study(
        planted_simulator(chosen), lambda slots: PlantedWorld(chosen, slots), known.basis, options, rule=rule
    )
    claims = {claim["hypothesis"]: claim for claim in result.notes["claims"]}
    name_of = {c.hypothesis: parse_hypothesis(c.hypothesis, known.basis)[0].name for c in CLAIMED[world]}
    out: Found = {}

    def note(method: str, measure: Measure, value: bool) -> None:
        out.setdefault(Key(world, method, measure), []).append(float(value))

    for claimed in CLAIMED[world]:
        claim = claims[name_of[claimed.hypothesis]]
        there, how_much = claim["exists"] == verdicts.YES, claim["size"] == verdicts.FORETOLD
        if claimed.acts:
            note("claims", FOUND, there and how_much)
        else:
            note("claims", EXISTING, there)
            note("claims", NO_EFFECT, claim["verdict"] == verdicts.NO_EFFECT)
        note("claims", REFUTED, claim["verdict"] == verdicts.REFUTED)

    def effect(hypothesis: str) -> np.ndarray:
        effect_N: np.ndarray = result.arrays["observed/value@2"][result.notes["hypotheses"].index(name_of[hypothesis])]
        return effect_N

    def beyond(effect_N: np.ndarray) -> bool:
        mean = bootstrap_mean(effect_N, np.arange(len(effect_N)), rng=np.random.default_rng(seed))
        spread = spread_of(result.arrays["unaltered/value@2"])
        return max(mean.low, -mean.high) > SMALLEST[0] * spread

    first, second, *rest = (effect(claimed.hypothesis) for claimed in CLAIMED[world])
    if world == "gated":
        note(f"{CONTROL}behaviours pooled", EXISTING, beyond(np.where(np.isnan(first), second, first)))
    if world == "even":
        slope = first - second  # what it is per unit says the opposite of raising and of lowering
        for sign in (1, -1):
            note(f"{CONTROL}slope over doses", FOUND, beyond(slope) and sign * slope.mean() > 0)
    if world == "redundant":
        note(f"{CONTROL}one by one, added up", FOUND, beyond(first + second))
    return out


# Simulators that are wrong


class Told(NamedTuple):
    """The claim of a study whose simulator may be wrong, and what an exact one foretells there."""

    claim: Mapping[str, Any]
    right: bool  # the simulator's mean is as the exact one's: between half and twice, or both below the smallest size
    signs_alone: bool  # a verdict that reads nothing but signs would confirm it


def in_world(world: PlantedModel, bench: Bench) -> SimulatedWorld:
    """The simulated runs of a bench in another world from the same latents."""
    return replace(
        bench.predictor, world=world, start_N=starts_in(world, bench.starts, bench.predictor.noise_NTA.device)
    )


def told_by(simulator: Simulator[PlantedModel], exact: Benches, family: Family, options: StudyOptions) -> Told | None:
    """What a simulator claims of a family, on the benches of an exact one.  None where it has nothing to choose."""
    choosing, test = (
        Bench(bench.basis, bench.starts, in_world(simulator.world, bench), None, bench.real, bench.held)
        for bench in exact
    )
    try:
        ((hypothesis, quantity),), rows = judged_claims(Benches(choosing, test), [family], options)
    except NothingToChooseError:
        return None
    row = next(r for r in rows if (r["hypothesis"], r["quantity"]) == (hypothesis.name, quantity))
    if "verdict" not in row:
        return None
    claim = claim_of(row, "the largest of 8 directions", True)
    runs = exact.test.predictor.measure([None, exact.test.build(hypothesis)])[quantity]
    true, foretold, smallest = float((runs[1] - runs[0]).mean()), claim["foretold"], claim["smallest"]
    right = abs(true) < smallest and abs(foretold) < smallest
    if abs(foretold) >= smallest:
        right = 0.5 < true / foretold < 2
    excludes = max(claim["low"], -claim["high"]) > 0
    return Told(claim, right, excludes and np.sign(claim["observed"]) == np.sign(foretold))


def foretelling_job(kind: Kind, wrongs: Sequence[Wrong | None], seed: int) -> Found:
    """What is said of the claim that each of some simulators chose, right or wrong in one way (None: exact)."""
    chosen = PlantedOptions(kind=kind, seed=seed)
    options = StudyOptions(
        amounts=(-2.0, 2.0), starts=48, horizon=4, controls=MOCKS, latest_start=8, largest=1, seed=seed,
        first_order=False,
    )  # fmt: skip
    right = planted_simulator(chosen)
    exact = benches_of(right, lambda slots: PlantedWorld(chosen, slots), truth(chosen).basis, options)
    families = {"": Family(tuple(ways_of("planted", i, options) for i in range(exact.test.basis.size)))}
    if kind == "mediated":  # its causes reach the value by way of the action alone
        families[", of the value"] = Family(((shift_of("planted", 0, 2.0),),), quantity="value@4")
    out: Found = {}
    for wrong, (what, family) in itertools.product(wrongs, families.items()):
        told = told_by(
            right if wrong is None else planted_simulator(model=WrongModel(chosen, wrong)), exact, family, options
        )
        if told is None:
            continue
        method = f"simulator: {wrong or 'exact'}{what}"
        foretold = FORETOLD_WITHOUT if wrong in WITHOUT_A_WORLD else FORETOLD
        if wrong is None and what:
            foretold = FORETOLD_RIGHTLY
        out[Key(kind, method, foretold)] = [float(told.claim["sentence"] == SENTENCE)]
        verdict = told.claim["verdict"]
        if told.right:
            out[Key(kind, method, REFUTED)] = [float(verdict == verdicts.REFUTED)]
        else:
            out[Key(kind, method, WRONG_CONFIRMED)] = [float(verdict == verdicts.CONFIRMED)]
        if wrong in WITHOUT_A_WORLD and not what:
            out[Key(kind, f"{CONTROL}signs alone, {wrong}", FORETOLD_WITHOUT)] = [float(told.signs_alone)]
    return out
