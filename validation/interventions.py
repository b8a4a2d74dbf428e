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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.evaluate import HELD_OUT_LEVEL
from analysis.behaviours import load_behaviours
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import Intervention, Simulator, UserError, VecEnv
from core.directions import Basis, fingerprint, load_basis
from core.interventions import parse_ids
from core.stats import bootstrap_mean, require_permutations
from core.video import check_video
from core.when import Rule, fit_rule
from envs.registry import make
from generative.simulator import load_simulator
from validation.events import Event, parse_events
from validation.interventions_figures import draw_effects, draw_headline, draw_needs, short, write_videos
from validation.interventions_hypotheses import (
    Hypothesis,
    Moves,
    Repeat,
    check_events,
    hypotheses_of,
    own_frame,
    parse_hypothesis,
    random_frames,
)
from validation.interventions_rollouts import (
    Measures,
    RealWorld,
    SimulatedWorld,
    Starts,
    collect_starts,
    distinct_actions,
    family_of,
    is_late,
    is_own,
    rows_of,
    still_on,
    unit_of,
)
from validation.interventions_statistics import (
    ALPHA,
    CRITERIA,
    NEEDS,
    Effects,
    Point,
    bootstrap_means,
    claim_of,
    claim_of_need,
    families,
    headline,
    mean_of,
    needs_of,
    number_or_none,
    points_of,
    recovered_of,
    spread_of,
    table_of,
)

STAGE = "interventions"
TOGETHER = 8192  # rows of random controls that the agent is run on at once
COLLECTORS = 256  # slots at most in which starts are looked for: few give many episodes each, which takes longer
BRANCHES = 32  # slots of the real world that branch at once
RANDOM_POINTS = 4000  # of random changes in the agreement of arbitrary directions
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
    """norm-matched random directions; fewer than 39 cannot give a band that leaves out 5 % of them"""
    latest_start: int = 32
    """starts are taken at a random step of the episode up to this one"""
    start_level: int = HELD_OUT_LEVEL
    """first level of the pool the real world draws from (Procgen)"""
    num_levels: int = 100_000
    """size of that pool (Procgen)"""
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
    cli.require(1, horizon=options.horizon, controls=options.controls)
    cli.require(0, seed=options.seed)
    require_permutations(options.starts, ALPHA, "sign-flip")
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


@dataclass
class Bench:
    """The two worlds at the same starts, and what every hypothesis is there."""

    real: RealWorld
    dreamed: SimulatedWorld
    basis: Basis
    starts: Starts
    rule: Rule | None
    frames: dict[tuple[int, ...], Tensor] = field(default_factory=dict)  # random ones [C, I, H], by own directions
    donors: dict[Hypothesis, np.ndarray] = field(default_factory=dict)  # the start that every start takes from [N]
    rows: dict[Hypothesis, np.ndarray] = field(default_factory=dict)  # bool [N], the starts it is about

    def build(self, h: Hypothesis, other_IH: Tensor | None = None) -> Intervention:
        donor = self.donors.get(h)
        given = None if donor is None else self.starts.h_NH[torch.from_numpy(donor).to(self.starts.h_NH.device)]
        return h.build(self.basis, given, self.rule, other_IH)

    def prepare(
        self, hypotheses: Sequence[Hypothesis], events: Sequence[Event], controls: int, rng: np.random.Generator,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        """Random frames, donors and starts of every hypothesis and its control."""
        n = len(self.starts)
        label_N = None if self.rule is None else self.rule(self.starts.h_NH).cpu().numpy()
        now = {e.name: e for e in events}
        course = self.real.run() if any(h.clean for h in hypotheses) else None
        cycle = rng.permutation(n)
        another_N = np.empty(n, np.int64)
        another_N[cycle] = np.roll(cycle, 1)
        across: dict[str, np.ndarray] = {}
        for h in hypotheses:
            key = h.control or h
            on_N = np.ones(n, bool)
            if h.behaviours:
                assert label_N is not None
                on_N = np.isin(label_N, h.behaviours)
            if h.kind == "resample":
                self.donors[h] = self.donors[key] = another_N
            if h.kind == "patch":
                assert course is not None
                clean_N = now[h.clean](rows_of(course, self.basis)[:1])[:, 0].cpu().numpy() > 0.5
                across.setdefault(h.clean, _across(clean_N, rng))
                self.donors[h] = self.donors[key] = across[h.clean]
                on_N = on_N & (clean_N if h.side == "noising" else ~clean_N)
            least = 2
            if on_N.sum() < least:
                raise UserError(
                    f"hypothesis {h.name!r} is about {on_N.sum()} of {n} starts; at least {least} are needed"
                )
            self.rows[h] = self.rows[key] = on_N
            if h.control is not None and h.ids not in self.frames:
                self.frames[h.ids] = random_frames(self.basis, len(h.ids), controls, generator)

    def effects(self, world: RealWorld | SimulatedWorld, hypotheses: Sequence[Hypothesis]) -> Effects:
        """Run all hypotheses and their controls in one world."""
        where = "real world" if isinstance(world, RealWorld) else "simulator"
        unaltered = {q: v[0] for q, v in world.measure([None], where).items()}
        effect = {q: np.full((len(hypotheses), len(v)), np.nan) for q, v in unaltered.items()}
        for through in dict.fromkeys(h.through for h in hypotheses):
            mine = [g for g, h in enumerate(hypotheses) if h.through == through]
            got = world.measure([self.build(hypotheses[g]) for g in mine], where, through)
            for q, v in got.items():
                effect[q][mine] = v - unaltered[q]
        for g, h in enumerate(hypotheses):
            for v in effect.values():
                v[g, ~self.rows[h]] = np.nan
        # A change of nothing is run and checked, but it has no effect to test.
        zero = [g for g, h in enumerate(hypotheses) if h.is_nothing]
        nothing = max((float(np.nanmax(np.abs(v[zero]))) for v in effect.values()), default=0.0) if zero else np.nan
        controls: dict[Hypothesis, dict[str, np.ndarray]] = {}
        for key in dict.fromkeys(h.control for h in hypotheses if not h.is_nothing):
            if key is None:
                continue
            label = f"{where}: random for {key.name}"
            random = world.measure(self.controls(world, key), label, key.through, max(1, TOGETHER // len(self.starts)))
            controls[key] = {q: (v - unaltered[q])[:, self.rows[key]] for q, v in random.items()}
        return Effects(effect, controls, unaltered, nothing)

    def controls(self, world: RealWorld | SimulatedWorld, key: Hypothesis) -> list[Intervention]:
        """The random changes that are a hypothesis' control: at every step as long as the change itself is there."""
        if key.steps == 1:
            return [self.build(key, other) for other in self.frames[key.ids]]
        own = Moves(self.build(key), self.basis, own_frame(self.basis, key.ids))
        world.run((own,), key.through)
        return [Repeat(own.made, self.basis, other) for other in self.frames[key.ids]]

    def first_order(self, hypotheses: Sequence[Hypothesis], others: Sequence[Tensor | None]) -> dict[str, np.ndarray]:
        """{quantity: [G, N]}: derivatives times the changes that would be made along the unaltered run; exact to first
        order in the strength of a change.  ``others``: the frame that each is redirected into, if any."""
        steps_of = [
            min(h.steps or self.dreamed.noise_NTA.shape[1], self.dreamed.noise_NTA.shape[1]) for h in hypotheses
        ]
        states = self.starts.h_NH[None]
        if max(steps_of) > 1:
            along = self.dreamed.run().h_RTH
            assert along is not None
            states = along.transpose(0, 1)
        everywhere = torch.ones(len(self.starts), dtype=torch.bool, device=states.device)
        out: dict[str, list[Tensor]] = {}
        for h, steps, other in zip(hypotheses, steps_of, others, strict=True):
            jacobian = self.jacobian(h.through, max(steps_of))
            change = self.build(h, other)
            moved = torch.stack([change(states[t], t, everywhere) - states[t] for t in range(steps)])
            for q, j in jacobian.items():
                out.setdefault(q, []).append((j[:steps] * moved).sum((0, 2)))  # NaN where q has no derivative
        return {q: torch.stack(v).detach().cpu().double().numpy() for q, v in out.items()}

    def jacobian(self, through: str = "", steps: int = 1) -> dict[str, Tensor]:
        """Derivatives [S, N, H] with S at least ``steps``, made once."""
        known = self._jacobians.get(through, {})
        if known and len(next(iter(known.values()))) < steps:
            known = {}
        if not known or any(f"direction:{i}@" not in " ".join(known) for i in self.dreamed.measures.directions):
            known = known | self.dreamed.jacobian(steps=steps, through=through, known=known)
            self._jacobians[through] = known
        return known

    _jacobians: dict[str, dict[str, Tensor]] = field(init=False, default_factory=dict)


def _across(clean_N: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For every start one of the other class, each as seldom twice as can be, int64 [N]."""
    out = np.zeros(len(clean_N), np.int64)
    for mine, theirs in ((clean_N, ~clean_N), (~clean_N, clean_N)):
        pool, need = np.flatnonzero(theirs), int(mine.sum())
        if len(pool) and need:
            out[mine] = np.concatenate([rng.permutation(pool) for _ in range(-(-need // len(pool)))])[:need]
    return out


def study(
    simulator: Simulator,
    make_env: Callable[[int], VecEnv],
    basis: Basis,
    options: StudyOptions,
    device: torch.device | None = None,
    rule: Rule | None = None,
) -> Result:
    """The whole comparison.  ``make_env(slots)`` makes the simulator's real world; ``rule`` tells behaviours.

    Tables ``effects``, ``doses``, ``needs`` and ``recovered``; arrays of per-start effects; scalars of agreement;
    ``notes["claims"]``.  Raises UserError for what ``check_options`` and ``parse_study`` refuse.
    """
    check_options(options, basis)
    hypotheses, events = parse_study(options, basis, simulator.spec.action_names, rule)
    device = torch.device("cpu") if device is None else device
    rng = np.random.default_rng(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    agent = simulator.agent
    collector = make_env(min(options.starts, COLLECTORS))
    if not collector.spec.can_snapshot:
        collector.close()
        collector = make_env(options.starts)
    starts = collect_starts(
        agent, collector, options.starts, initial_frames=simulator.initial_frames, latest=options.latest_start,
        seed=options.seed, greedy=options.greedy, device=device,
    )  # fmt: skip
    collector.close()
    env = make_env(len(starts))
    few = make_env(min(len(starts), BRANCHES))
    try:
        actions = distinct_actions(env, starts)
        shape = (len(starts), options.horizon + 1, agent.n_actions)
        exponential = torch.empty(shape).exponential_(generator=generator)
        noise_NTA = (torch.zeros(shape) if options.greedy else -exponential.log()).to(device)
        window = {k: torch.from_numpy(v).to(device) for k, v in starts.window.items()}
        with torch.no_grad():
            z_NZ = simulator.normalise(torch.cat([simulator.infer({k: v[i : i + 32] for k, v in window.items()})[0]
                                                  for i in range(0, len(starts), 32)]))  # fmt: skip
        measures = Measures(actions, basis, options.directions, events)
        dreamed = SimulatedWorld(agent, starts.h_NH, noise_NTA, measures, simulator, z_NZ)
        real = RealWorld(agent, starts.h_NH, noise_NTA, measures, env, starts, few)
        bench = Bench(real, dreamed, basis, starts, rule)
        explicit = bool(hypotheses)
        if not explicit:
            directions = options.directions or most_promising(dreamed, bench.jacobian(), basis, options.largest)
            hypotheses = hypotheses_of(directions, options.amounts)
        named = dict.fromkeys(i for h in hypotheses if not h.everything for i in h.ids)
        real.measures = dreamed.measures = replace(measures, directions=tuple(named))
        bench.prepare(hypotheses, events, options.controls, rng, generator)
        # All Jacobians at their full number of steps at once.
        predicted = bench.first_order(hypotheses, [None] * len(hypotheses))
        simulated = bench.effects(dreamed, hypotheses)
        observed = bench.effects(real, hypotheses)
        result = _report(bench, hypotheses, predicted, simulated, observed, explicit, options, rng)
        result.notes["actions"] = {name: [simulator.spec.action_names[i] for i in ids] for name, ids in actions.items()}
        if options.video and _is_picture(starts):
            film(bench, result, hypotheses)
    finally:
        env.close()
        few.close()
    return result


def _report(
    bench: Bench, hypotheses: Sequence[Hypothesis], predicted_GN: Mapping[str, np.ndarray], simulated: Effects,
    observed: Effects, explicit: bool, options: StudyOptions, rng: np.random.Generator,
) -> Result:  # fmt: skip
    """Everything that follows from the runs."""
    starts, basis = bench.starts, bench.basis
    here = np.stack([bench.rows[h] for h in hypotheses])
    predicted_GN = {q: np.where(here, v, np.nan) for q, v in predicted_GN.items()}
    means = {q: mean_of(v) for q, v in predicted_GN.items()}
    rows = table_of("simulator", simulated, hypotheses, means, simulated, rng)
    rows += table_of("real", observed, hypotheses, means, simulated, rng)
    worlds = {"real": observed, "simulator": simulated}
    needs = needs_of(worlds, hypotheses, rng)
    patched = {g: bench.donors[h] for g, h in enumerate(hypotheses) if h.kind == "patch"}
    result = Result(tables={"effects": rows, "doses": [], "needs": needs})
    if patched:
        result.tables["recovered"] = recovered_of(worlds, hypotheses, patched, rng)
    result.arrays = {"h": starts.h_NH.cpu().numpy(), "age": starts.age_N}
    for q in predicted_GN:
        result.arrays |= {f"simulated/{q}": simulated.hypotheses[q], f"observed/{q}": observed.hypotheses[q]}
        result.arrays |= {f"jacobian/{q}": predicted_GN[q], f"unaltered/{q}": observed.unaltered[q]}
    result.notes |= {
        "hypotheses": [h.name for h in hypotheses],
        "events": {e.name: e.text for e in bench.real.measures.events},
        "paired_by": starts.paired_by,
        "criteria": CRITERIA,
        "needs": NEEDS,
        "immediate": "Effects at step 0 follow from the agent's linear heads: both worlds give the same numbers and "
        "the first-order prediction of logits and value is exact. They are no evidence about the world.",
        "controls": f"{options.controls} random directions a hypothesis, at every start and step of the same length "
        "in units of each neuron's standard deviation; 'keep_only' has no single length and so no band",
    }
    if starts.paired_by == "seed":
        result.notes["paired"] = "The world has no snapshots: pairs replay the same seed and actions up to the start."
    result.scalar("zero_change_real", observed.zero_change, "largest effect of amount 0")
    result.scalar("zero_change_simulator", simulated.zero_change, "largest effect of amount 0")

    # Units for the headline: the spread of each quantity over the real, unaltered starts.
    scale = {q: spread_of(v) for q, v in observed.unaltered.items()}
    late = [q for q in predicted_GN if is_late(q) and scale[q] > 0]
    result.notes["without_spread"] = [q for q in predicted_GN if is_late(q) and scale[q] == 0]
    points = points_of(hypotheses, explicit)
    sources = {"jacobian": predicted_GN, "simulated": simulated.hypotheses, "observed": observed.hypotheses}
    for point in points:
        result.tables["doses"] += _doses(point, sources, scale, rng)
    _agreements(result, bench, hypotheses, points, sources, (simulated, observed), late, scale, rng)

    claims = []
    if explicit:
        for h in hypotheses:
            if h.role:
                by_world = {r["world"]: r for r in needs if r["hypothesis"] == h.name}
                claims.append(claim_of_need(by_world["real"], by_world["simulator"]))
            elif not h.is_nothing:
                asked = [q for q in late if not is_own(q, h.ids)]
                claims.append(claim_of(h.name, rows, scale, basis.kind, asked))
    else:
        claims = [claim_of(i, rows, scale, basis.kind, late) for i in dict.fromkeys(h.ids[0] for h in hypotheses)]
    result.notes["claims"] = claims
    result.notes["claim"] = " ".join(claim["text"] for claim in claims)
    return result


def _doses(
    point: Point, sources: Mapping[str, Mapping[str, np.ndarray]], scale: Mapping[str, float], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """A point's rows, one a quantity: its predictions and what both worlds answered."""
    of = {name: np.stack([point.of(effect[q]) for q in scale], 1) for name, effect in sources.items()}
    here = ~np.isnan(of["observed"]).any(1)
    seen, dream = (bootstrap_means(of[name][here], rng) for name in ("observed", "simulated"))
    return [
        {
            "point": point.label, "direction": point.directions[0] if len(point.directions) == 1 else None,
            "own": is_own(q, point.directions), "quantity": q,
            "unit": f"{unit_of(q)} {point.unit}".strip(), "predicted_jacobian": number_or_none(float(first)),
            "predicted_simulated": d.value, "simulated_low": d.low, "simulated_high": d.high,
            "observed": e.value, "low": e.low, "high": e.high, "n": e.n, "spread": scale[q],
        }
        for q, first, e, d in zip(scale, mean_of(of["jacobian"][here].T), seen, dream, strict=True)
    ]  # fmt: skip


def _agreements(
    result: Result, bench: Bench, hypotheses: Sequence[Hypothesis], points: Sequence[Point],
    sources: Mapping[str, Mapping[str, np.ndarray]], effects: tuple[Effects, Effects], late: Sequence[str],
    scale: Mapping[str, float], rng: np.random.Generator,
) -> None:  # fmt: skip
    """Sign agreement, rank correlation and slope of predictions over points x quantities; by family of quantities too,
    and of predictions that are those of random directions instead."""
    simulated, observed = effects
    if not points or not late:
        return

    def asked(p: Point, some: Sequence[str]) -> list[str]:
        return [q for q in some if not is_own(q, p.directions)]

    def stacked(name: str, some: Sequence[str]) -> np.ndarray:
        found = [p.of(sources[name][q]) / scale[q] for p in points for q in asked(p, some)]
        return np.stack(found) if found else np.empty((0, len(bench.starts)))

    def chance(some: Sequence[str]) -> np.ndarray | None:
        """The simulated effects of random changes in place of those of the points' own [C, P, M]."""
        null = []
        for p in points:
            strongest = max(p.weights, key=lambda g: abs(hypotheses[g].amount or 0))
            key = hypotheses[strongest].control
            if key is None:
                return None
            size = 1 / abs(hypotheses[strongest].amounts[0]) if p.unit else 1.0
            null += [simulated.controls[key][q].mean(1, keepdims=True) * size / scale[q] for q in asked(p, some)]
        return np.stack(null, 1) if null else None

    for family, some in families(late).items():
        headline(result, f"_{family}", stacked("simulated", some), stacked("observed", some), rng, chance(some))
    # Events are counts of few, and most have no derivative: they stay apart.
    late = [q for q in late if family_of(q) != "events"]
    if not late:
        return
    headline(result, "", stacked("simulated", late), stacked("observed", late), rng, chance(late))
    headline(result, "_jacobian", stacked("jacobian", late), stacked("observed", late), rng)
    headline(result, "_jacobian_simulator", stacked("jacobian", late), stacked("simulated", late), rng)
    # The same for arbitrary directions: how far the simulator can be trusted before any hypothesis.
    first, seen, dream = [], [], []
    for p in points:
        g = max(p.weights, key=lambda g: hypotheses[g].amount or 0)
        h = hypotheses[g].control
        if not p.unit or h is None:
            continue
        frames = list(bench.frames[h.ids])[: max(1, RANDOM_POINTS // (len(points) * len(late)))]
        guess = bench.first_order([h] * len(frames), frames)
        first += [guess[q] / scale[q] for q in late]
        seen += [observed.controls[h][q][: len(frames)] / scale[q] for q in late]
        dream += [simulated.controls[h][q][: len(frames)] / scale[q] for q in late]
    if seen:
        headline(result, "_random_jacobian", np.concatenate(first), np.concatenate(seen), rng)
        headline(result, "_random", np.concatenate(dream), np.concatenate(seen), rng)


def _is_picture(starts: Starts) -> bool:
    name = next(iter(starts.window))
    return starts.window[name].ndim == 5 and starts.window[name].shape[-1] == 3


def film(bench: Bench, result: Result, hypotheses: Sequence[Hypothesis]) -> None:
    """Frames of three starts for every claim, without and with the change in the real world and in the simulator, into
    arrays ``film/CLAIM`` uint8 [starts, 4, T, 64, 64, 3]: those whose effect is at the SHOWN quantiles.  Black where
    the episode is over."""
    names = [h.name for h in hypotheses]
    for number, claim in enumerate(result.notes["claims"]):
        if not {"quantity", "event"} & claim.keys():
            continue
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


def most_promising(world: SimulatedWorld, jacobian: Mapping[str, Tensor], basis: Basis, count: int) -> tuple[int, ...]:
    """The ``count`` directions with the largest predicted late effect, largest first.

    Predicted: |mean derivative| of a late quantity that is no event along the direction, in spreads of that quantity
    over the unaltered simulated starts; a direction counts by its best quantity.
    """
    spread = {q: spread_of(v[0]) for q, v in world.measure([None]).items() if is_late(q) and family_of(q) != "events"}
    scores = [basis.pullback(jacobian[q][0]).mean(0).abs() / s for q, s in spread.items() if s > 0]
    if not scores:
        raise UserError("no late quantity varies over the starts, so no direction is promising; name --directions")
    return tuple(torch.stack(scores).amax(0).argsort(descending=True)[:count].tolist())


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
        greedy=config.greedy, seed=config.seed, video=config.video,
    )  # fmt: skip
    check_options(options)
    return options


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

    def make_env(slots: int) -> VecEnv:
        levels = {"start_level": config.start_level, "num_levels": config.num_levels}
        return make(simulator.spec, slots, threads=config.threads, **levels)

    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result = study(simulator, make_env, basis, options, device, rule)
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
    if "paired" in result.notes:
        print(result.notes["paired"])
    for name in ("sign_agreement", "rank_correlation", "slope"):
        if name in result.scalars:
            print(f"{name.replace('_', ' ')}, simulated against observed: {short(result.scalars[name])}")
    for claim in result.notes["claims"]:
        print(claim["text"])


if __name__ == "__main__":
    cli.run(InterventionsConfig, main, STAGE)
