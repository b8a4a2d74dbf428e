"""What a study is asked: its options, checked, and its hypotheses and events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from analysis.shared.events import Event, parse_events
from core import config as cli
from core.artefacts import Result
from core.conditions import check_behaviours, parse_conditions
from core.config import nearest
from core.contracts import EnvSpec, UserError
from core.directions import FAR_OUTSIDE, Basis, far_outside
from core.stats import ALPHA, require_permutations
from core.when import Rule
from envs.procgen_truth import truth_events
from envs.registry import renewed
from validation.hypotheses.grammar import Claim, Hypothesis, check_events, is_direction, parse_hypothesis, to_define
from validation.interventions.bench import AGE
from validation.interventions.controls import FEWEST
from validation.interventions.start_when import FLAG, where_started
from validation.interventions.verdicts import SMALLEST
from validation.paired.course import is_late
from validation.paired.limits import CutShort

FEWEST_TO_CHOOSE = 32  # starts: controls are differences of their states, which fewer do not tell well
CHOOSABLE = ("shift", "collapse")  # kinds of changes of what is chosen as the largest
ChooseBy = Literal["effect", "world"]  # the largest is sought of the late effect, or of what of it is beyond memory


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What ``study`` needs of the configuration."""

    directions: tuple[int, ...] = ()  # () where ``largest`` are to be chosen, or hypotheses are given
    amounts: tuple[float, ...] = ()
    always: bool = False  # directions are changed at every step, not at the start alone
    starts: int
    horizon: int
    controls: int
    latest_start: int
    time_limit: int = 0  # steps after which a time limit cuts episodes, so that no start lies near it; 0: none is known
    start_when: tuple[str, ...] = ()  # starts are where one of these holds (start_when.py); (): in any state
    hypotheses: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    greedy: bool = False
    seed: int = 0
    largest: int = 0  # where no directions are named: how many to choose
    chosen_of: int = 1  # of hypotheses: among how many directions each one's was chosen
    choose_by: ChooseBy = "effect"
    choosing_starts: int = 0  # that the choice is made on; 0: as many as claims are tested on
    video: bool = False  # keep frames of some starts
    smallest: tuple[float, float] = SMALLEST  # sizes of interest: spreads of a quantity, shares of events
    first_order: bool = True

    def to_choose(self) -> StudyOptions:
        """These with the starts that the choice is made on."""
        return replace(self, starts=self.choosing_starts or self.starts)


def in_time(once: Callable[[StudyOptions], Result], options: StudyOptions) -> Result:
    """The study ``once`` on starts none of whose runs a time limit cuts: where one cuts a run, all is asked again of
    starts that are drawn before it, and the result says how many were left out."""
    first: CutShort | None = None
    while True:
        try:
            result = once(options)
            break
        except CutShort as cut:
            # Without its frames, which hold the worlds and all that they played.
            first = cut.with_traceback(None) if first is None else first
            options = replace(options, time_limit=cut.limit)
    if first is not None:
        k, limit, count = options.horizon, options.time_limit, first.left_out(options.time_limit)
        last = limit - k - 1
        result.notes["time_limit"] = {"steps": limit, "left_out": count, "latest_start": last}
        result.notes["warnings"].append(
            f"A time limit cuts episodes after {limit} steps, which says nothing of an effect: {count} of the "
            f"{len(first.age_N)} starts among which it was met left no room for {k} steps (--horizon) before it; all "
            f"starts, those that choose too, were drawn anew, none after step {last}."
        )
    return result


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
        if options.chosen_of > 1:
            raise UserError(
                "--chosen_of is of --hypotheses, whose directions an earlier study chose; '--directions largest N' "
                "chooses among all, and its controls too (leave --chosen_of out)"
            )
    cli.require(1, horizon=options.horizon, chosen_of=options.chosen_of)
    cli.require(FEWEST, controls=options.controls)
    if not 0 < min(options.smallest) < np.inf:
        raise UserError("--smallest takes two sizes above 0: in spreads of a quantity, and as a share of events")
    cli.require(0, seed=options.seed)
    parse_conditions(options.start_when, None, FLAG)
    require_permutations(options.starts, ALPHA)
    if options.hypotheses and options.always:
        raise UserError(
            "--always is of --directions; of a hypothesis say it in its words: 'shift ica:5 by +2 always' "
            "(and --no-always where a preset set it)"
        )
    if options.choosing_starts:
        cli.require(FEWEST_TO_CHOOSE, choosing_starts=options.choosing_starts)
    if basis is None:
        return
    basis.check(options.directions)
    if options.largest > basis.size:
        raise UserError(f"--directions largest {options.largest}: the {basis.kind} basis has {basis.size} directions")
    if options.chosen_of > basis.size:
        raise UserError(f"--chosen_of {options.chosen_of}: the {basis.kind} basis has {basis.size} directions")


def claimed(h: Claim, known: Sequence[str], kind: str, horizon: int) -> str:
    """The late quantity that a hypothesis names, '' where it names none.  known: what is measured; kind: of the basis
    whose directions may be named.  UserError."""
    if not (h.on or h.role):
        return ""
    on = f"event:{h.event}" if h.role else h.on
    if is_direction(on, kind):  # measured once the directions are known
        return f"{on}@{horizon}"
    found = [q for q in known if q.startswith(f"{on}@")]
    if not found:
        late = list(dict.fromkeys(q.partition("@")[0] for q in known if is_late(q)))
        measure, _, event = on.partition(":")
        define = to_define(event) if measure in ("event", "rate") else ""
        raise UserError(
            f"hypothesis {h.name!r}: no quantity {on!r}{nearest(on, late)}{define}; there are: {', '.join(late)}"
        )
    return found[0]


def parse_study(
    options: StudyOptions, basis: Basis, spec: EnvSpec, rule: Rule | None, truth: Sequence[str] = ()
) -> tuple[list[Hypothesis], tuple[Event, ...]]:
    """The hypotheses (none where --directions says what to test) and events of a study; UserError on what is wrong with
    them.  truth: the columns that the real world tells of itself."""
    spec = renewed(spec)
    told = {name: text for name, text in truth_events(spec).items() if truth}
    events = parse_events(options.events, spec.action_names, basis.size, spec.same_actions, spec.events, truth, told)
    hypotheses = [h for text in options.hypotheses for h in parse_hypothesis(text, basis)]
    check_events(hypotheses, [e.name for e in events])
    if options.choose_by == "world" and hypotheses and all(h.on or h.role or h.through for h in hypotheses):
        raise UserError(
            "--choose_by world: every hypothesis names what it changes, or its path, so nothing is chosen; "
            "leave it out, or --choose_by effect where a preset set it"
        )
    for h in hypotheses:
        if hypotheses.count(h) > 1:
            raise UserError(f"hypothesis {h.name!r} is there twice")
        if options.chosen_of > 1 and (len(h.ids) > 1 or h.kind not in CHOOSABLE or h.through or h.when or h.role):
            raise UserError(
                f"hypothesis {h.name!r}: --chosen_of is of what '--directions largest' chooses, one direction that is "
                "shifted or collapsed along every path at every start; name that, or leave --chosen_of out"
            )
    for h in hypotheses:
        for name in h.matched:
            if name not in (AGE, *truth):
                raise UserError(f"hypothesis {h.name!r}: matched {name}: no such column{nearest(name, [AGE, *truth])}; "
                                f"there are: {', '.join([AGE, *truth])}")  # fmt: skip
        check_behaviours(h.when, rule, f"hypothesis {h.name!r}")
    where_started(options.start_when, basis, rule)
    return hypotheses, events


def note_directions(result: Result, hypotheses: Sequence[Hypothesis], basis: Basis) -> None:
    """Note, among the warnings, changes that lead far from what was recorded (also by themselves, ``FAR_OUTSIDE``), and
    that no claim about the only direction of its basis can be special."""
    if (said := far_outside({h.name: h.amounts for h in hypotheses})) is not None:
        result.notes["warnings"].append(said)
        result.notes[FAR_OUTSIDE] = said
    if basis.size == 1:
        result.notes["warnings"].append(
            f"The {basis.kind} basis has one direction, so that controls are this direction or its opposite: no claim "
            "about it can be shown to be special."
        )
