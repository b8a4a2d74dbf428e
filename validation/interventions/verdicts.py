"""What may be said of a claim: five statements, each tested by itself, on paired starts that chose nothing.

Per claim and start: s, the effect seen in the real world; f, the effect that the simulator foretold there; m, the
effect seen through the agent's memory alone (the real world answers with the actions of the unaltered run); g, each
prediction that needs no world.  Sizes are in spreads of the quantity, its standard deviation over the unaltered real
starts (of one that the change alone makes vary, over both: ``spread_under``); shares of events are shares.  The
smallest size of interest is 0.1 spread, and 0.05 for shares.

exists          yes: the 95 % interval of the mean of s lies beyond the smallest size, and q <= .05.  no: its 90 %
                interval lies inside (equivalence; Schuirmann 1987), and so it does if the change acts at a share of the
                starts that N of them can all miss (``not_met``).  Else open.
size            as foretold: the means of (s - f/2) sign f and of (2f - s) sign f have one-sided 95 % bounds above 0, so
                that the effect is more than half and less than twice what was foretold.  wrong: one of them has its
                95 % interval below 0, starts that were not met included, and the mean of s - f exceeds the smallest
                size.  Else open.  Where less than the smallest size was foretold, it is as foretold too if *exists* is
                no; nothing at all has no half, and is wrong if *exists* is yes and s exceeds the smallest size.
special         yes: p (of several named claims: q) <= .05 against directions that occur in the data, and against
                mixtures of the basis's own, chosen as the claim was chosen (controls.py).  Else open.
through_world   *exists*, asked of s - m.  Where m is 0 by construction (rewards, endings, events of the action) nothing
                is tested.
needed          yes: the mean of (s - f)^2 lies below that of (s - g)^2 for every g, the 95 % interval of the paired
                difference below 0.  no: for some g it does not lie below in any part of the interval, and the starts
                tell what there was to foretell (the root mean square of s is of interest, or *exists* is no) and are
                as many as cannot all miss a difference of interest (``gain_not_met``).  Else open, as it is where s
                and f are 0 at every start.

confirmed       exists, size as foretold, special.  "The simulator foretold it" needs through_world and needed, too;
                where one of them is no, memory alone foretells it; else it is not shown that the world was needed.
refuted         size wrong; or foretold at the smallest size or more, and *exists* is no.
no effect       foretold below the smallest size, and *exists* is no: of this change alone, at this dose.
open            anything else; the open statements are named.

N starts (independent units), Q quantities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from core.stats import ALPHA, Estimate, few, gain_not_met, means, not_met, paired_share, units_for

DRAWS = 4999  # of the bootstrap, at least: p-values go down to 2 / 5000
SMALLEST = (0.1, 0.05)  # smallest sizes of interest: in spreads of a quantity; as a share of events
LEAST_STARTS = 6  # fewer cannot say anything at level 0.05
YES, NO, OPEN, FORETOLD, WRONG = "yes", "no", "open", "as foretold", "wrong"
BY_CONSTRUCTION, NOT_ASKED = "by construction", "not asked"
CONFIRMED, REFUTED, NO_EFFECT = "confirmed", "refuted", "no effect"
CRITERIA = (
    "Exists: the 95 % interval of the mean effect lies beyond the smallest size of interest, and q <= 0.05 (no: its"
    " 90 % interval lies inside, also if the change acts at as large a share of the starts as these can all have "
    "missed). Size as foretold: more than half and less than twice what the simulator foretold,"
    " each with a one-sided 95 % bound. Special: further than directions that occur in the data, and than mixtures of "
    "the basis's own, that were chosen in the same way, p (of several named claims: q) <= 0.05 against each. "
    "Confirmed: these three. Refuted: the size is wrong, or an effect of interest was foretold and there is none. "
    "Open: anything else. Through the world: the effect beyond what runs through the agent's memory alone. Needed: the "
    "simulator's squared error is below that of every prediction that needs no world. Only with these two as well did "
    "the simulator foretell it."
)
RIVALS = {
    "no change": "nothing changes",
    "held frame": "the agent sees its last frame for ever",
    "unaltered frames": "the agent sees the frames of the simulator's unaltered run",
    "memory": "the simulator's own run through memory alone",
}


class Sample(NamedTuple):
    """Effects of one change at the N starts it is about, in sizes (spreads, or shares), all [N, Q]."""

    seen: np.ndarray
    foretold: np.ndarray
    memory: np.ndarray  # NaN where it is 0 by construction
    rivals: Mapping[str, np.ndarray]  # predictions that need no world
    reach: np.ndarray  # [Q]: the largest change that a quantity could show
    step: np.ndarray | None = None  # [Q]: between the two levels that a quantity has (an event: 1); NaN: it has more


class Short(NamedTuple):
    """How many starts there are of an effect, and how many could tell that there is none."""

    starts: int
    enough: int


class Tested(NamedTuple):
    """What the tests of one change gave, Q of each."""

    seen: list[Estimate]
    seen_90: list[Estimate]
    p: np.ndarray
    foretold: list[Estimate]
    half: list[Estimate]  # (s - f/2) sign f, 95 %
    half_90: list[Estimate]
    twice: list[Estimate]  # (2f - s) sign f
    twice_90: list[Estimate]
    world: list[Estimate]  # s - m; NaN where m is 0 by construction
    world_90: list[Estimate]
    world_p: np.ndarray
    worse: dict[str, list[Estimate]]  # (s - f)^2 - (s - g)^2
    reach: np.ndarray  # the largest change of a start: what starts that were not met may show
    rms: np.ndarray  # of s: how large it is at the starts, whichever way
    nothing: np.ndarray  # bool: 0 at every start, seen and foretold

    def existence(self, j: int, q: float, smallest: float) -> dict[str, Any]:
        """Whether there is an effect on quantity j, for its row of a table: ``q``, ``exists`` and ``starts_for_no``."""
        there = exists(self.seen[j], self.seen_90[j], q, smallest)
        enough = starts_for_no(there, self.seen[j], float(self.reach[j]), smallest)
        return {"q": q, "exists": there, "starts_for_no": enough}

    def size_of(self, j: int, there: str, smallest: float) -> str:
        """Whether it is as large as foretold; ``there`` is whether there is one."""
        half, twice = (self.half[j], self.half_90[j]), (self.twice[j], self.twice_90[j])
        return size(self.seen[j], self.foretold[j].value, half, twice, there, smallest)

    def through_world(self, j: int, q: float, smallest: float) -> str:
        """Whether there is one beyond what runs through memory."""
        world = self.world[j]
        return exists(world, self.world_90[j], q, smallest) if np.isfinite(world.value) else BY_CONSTRUCTION

    def needed(self, j: int, there: str, smallest: float) -> str:
        """Whether a world was needed to foretell it."""
        told = foretellable([there], self.rms[[j]], smallest, self.nothing[[j]])
        return needed({name: some[j] for name, some in self.worse.items()}, told, self.short(j, smallest) is not None)

    def short(self, j: int, smallest: float) -> Short | None:
        """So few starts that all can have missed differences of interest in quantity j; None of enough."""
        n, reach = self.seen[j].n, float(self.reach[j])
        missable = gain_not_met(0.0, 0.0, n, 0.90, reach) >= smallest
        return Short(n, units_for(smallest / reach, 0.90)) if missable else None

    def paths(self, j: int, unit: float) -> dict[str, float]:
        """For its row: what memory alone does and what lies beyond it; {} where the first is 0 by construction."""
        e = self.world[j]
        if not np.isfinite(e.value):
            return {}
        beyond = {"world_effect": e.value * unit, "world_low": e.low * unit, "world_high": e.high * unit}
        return {"memory": (self.seen[j].value - e.value) * unit} | beyond

    def errors(self, j: int) -> dict[str, float]:
        """For its row: the squared error of the simulator less that of every prediction that needs no world."""
        out: dict[str, float] = {}
        for name, some in self.worse.items():
            out |= {f"error minus {name}": some[j].value, f"{name} low": some[j].low, f"{name} high": some[j].high}
        return out


def draws_for(tests: int) -> int:
    """Of the bootstrap, so that one effect alone can stand out in a family of so many tests (if its starts can)."""
    return max(DRAWS, math.ceil(2 / ALPHA * tests) - 1)


def test(sample: Sample, rng: np.random.Generator, draws: int = DRAWS) -> Tested:
    """Means, intervals and p of everything the statements are made of.  draws: for the p that DRAWS of them cannot tell
    from smaller ones.

    Where a quantity has two levels, its mean effect is a change of a share, and the interval that of Tango: no start of
    six that changes does not say that none would.  Of other quantities the ends that a "no" or "wrong" is read from
    leave room for starts that were ``not_met``.
    """
    s, f = sample.seen, sample.foretold
    sign = np.sign(f.mean(0))
    world = s - sample.memory
    parts = [s, f, (s - f / 2) * sign, (2 * f - s) * sign, np.nan_to_num(world)]
    parts += [(s - f) ** 2 - (s - g) ** 2 for g in sample.rivals.values()]
    count = s.shape[1]
    flat = np.concatenate(parts, 1)
    found = means(flat, rng=rng, draws=DRAWS)
    wide, narrow, p = found.estimates(), found.estimates(0.90), found.p()
    if draws > DRAWS and (least := p <= 2 / (DRAWS + 1)).any():
        (own,) = rng.spawn(1)  # so that no other number depends on these
        p[least] = means(flat[:, least], rng=own, draws=draws).p()

    def of(estimates: list[Estimate], i: int) -> list[Estimate]:
        return estimates[i * count : (i + 1) * count]

    for j, reach in enumerate(sample.reach.tolist()):
        for place in (j, 4 * count + j):
            narrow[place] = not_met(narrow[place], reach, 0.90)
        for place in (2 * count + j, 3 * count + j):
            e = wide[place]
            wide[place] = e._replace(high=not_met(e, reach, 0.95).high)
    for j, step in enumerate([] if sample.step is None else sample.step.tolist()):
        if np.isnan(step):
            continue
        for estimates, level in ((wide, 0.95), (narrow, 0.90)):
            as_share(estimates, (j, 4 * count + j), (s[:, j] / step, world[:, j] / step), step, level)
            _no_nearer(estimates, j, count, float(f[:, j].mean()), float(sign[j]))
    known = ~np.isnan(world).any(0)
    nothing = Estimate(np.nan, np.nan, np.nan, len(s))
    through, through_90 = (
        [e if k else nothing for e, k in zip(of(some, 4), known, strict=True)] for some in (wide, narrow)
    )
    return Tested(
        of(wide, 0), of(narrow, 0), p[:count], of(wide, 1), of(wide, 2), of(narrow, 2), of(wide, 3), of(narrow, 3),
        through, through_90, np.where(known, p[4 * count : 5 * count], np.nan),
        {name: of(wide, 5 + i) for i, name in enumerate(sample.rivals)},
        sample.reach, np.sqrt((s**2).mean(0)), ~(s.any(0) | f.any(0)),
    )  # fmt: skip


def as_share(
    estimates: list[Estimate], places: Sequence[int], changes: Sequence[np.ndarray], step: float, level: float
) -> None:
    """Estimates of changes by -1, 0 or 1 steps, in place."""
    for place, change_N in zip(places, changes, strict=True):
        whole_N = np.round(change_N)
        if np.allclose(change_N, whole_N, atol=1e-6) and np.abs(whole_N).max(initial=0) <= 1:
            e = paired_share(whole_N, level=level)
            estimates[place] = Estimate(e.value * step, e.low * step, e.high * step, e.n)


def _no_nearer(estimates: list[Estimate], j: int, count: int, foretold: float, sign: float) -> None:
    """(s - f/2) sign f and (2f - s) sign f are no better known than s, in place."""
    seen, f = estimates[j], sign * foretold
    for place, factor, shift in ((2 * count + j, sign, -f / 2), (3 * count + j, -sign, 2 * f)):
        e = estimates[place]
        low, high = sorted((factor * seen.low + shift, factor * seen.high + shift))
        estimates[place] = Estimate(e.value, min(e.low, low), max(e.high, high), e.n)


def exists(mean: Estimate, mean_90: Estimate, q: float, smallest: float) -> str:
    """yes, no or open: does an effect of interest exist?"""
    if mean.n < LEAST_STARTS:
        return OPEN
    if max(mean.low, -mean.high) > smallest and q <= ALPHA:
        return YES
    return NO if max(-mean_90.low, mean_90.high) < smallest else OPEN


def starts_for_no(there: str, mean: Estimate, reach: float, smallest: float) -> int | None:
    """How many starts could tell that an effect of interest does not exist, where nothing but what these may all have
    missed leaves that open; else None."""
    if there != OPEN or mean.n < LEAST_STARTS or max(-mean.low, mean.high) >= smallest:
        return None
    return units_for((smallest - abs(mean.value)) / reach, 0.90)


def too_few(n: int, starts: int | None, verdict: str = OPEN) -> str:
    """That in words, after what is open; '' for None, and where a claim is judged all the same."""
    if starts is None or verdict != OPEN:
        return ""
    return (
        f"; {n} starts can all miss an effect of the smallest size of interest, some {starts} could tell there is none"
    )


def among(row: Mapping[str, Any]) -> str:
    """In words, after q: what is open because it is one of many tests; '' elsewhere.  row: of a table of effects."""
    if row["exists"] != OPEN or not max(row["low"], -row["high"]) > row["smallest"] or row["q"] <= ALPHA:
        return ""
    return ", among all that this study tests"


def size(
    seen: Estimate, foretold: float, half: tuple[Estimate, Estimate], twice: tuple[Estimate, Estimate],
    there: str, smallest: float,
) -> str:  # fmt: skip
    """as foretold, wrong or open.  half, twice: their 95 % and 90 % intervals; there: the answer of ``exists``."""
    if abs(foretold) < smallest and there == NO:
        return FORETOLD
    if seen.n < LEAST_STARTS:
        return OPEN
    if min(half[1].low, twice[1].low) > 0:
        return FORETOLD
    # Of a foretold nothing there is neither half nor twice.
    other = min(half[0].high, twice[0].high) < 0 if foretold else there == YES
    return WRONG if other and abs(seen.value - foretold) > smallest else OPEN


def special(p: float | None) -> str:
    """yes, open, or not asked where there are no controls (NaN)."""
    if p is None or np.isnan(p):
        return NOT_ASKED
    return YES if p <= ALPHA else OPEN


def foretellable(there: Sequence[str], rms: np.ndarray, smallest: float | np.ndarray, nothing: np.ndarray) -> bool:
    """Whether the starts tell what there was to foretell: some effect is of interest at them, or it is told of all that
    they do not exist.  Else starts that show them may all have been missed, and a prediction of nothing looks best."""
    return bool((rms >= smallest).any() or (set(there) == {NO} and not nothing.all()))


def needed(worse: Mapping[str, Estimate], told: bool, missable: bool = False) -> str:
    """yes, no or open: does the simulator foretell better than every prediction that needs no world?  told: there was
    something to foretell (``foretellable``); missable: so few starts can all have missed differences of interest, so
    that a *no* is not theirs to say."""
    if any(e.n < LEAST_STARTS for e in worse.values()):
        return OPEN
    if all(e.high < 0 for e in worse.values()):
        return YES
    return NO if told and not missable and any(e.low >= 0 for e in worse.values()) else OPEN


def verdict(there: str, how_much: str, special: str, foretold: float, smallest: float) -> str:
    """confirmed, refuted, no effect or open."""
    if there == YES and how_much == FORETOLD and special == YES:
        return CONFIRMED
    if how_much == WRONG or (there == NO and abs(foretold) >= smallest):
        return REFUTED
    return NO_EFFECT if there == NO else OPEN


def sentence(said: str, parts: Mapping[str, str]) -> str:
    """What a verdict means; ``parts``: the answers of the five statements."""
    if said == CONFIRMED:
        if parts["through_world"] == parts["needed"] == YES:
            return "the simulator foretold it, and the real world confirmed it"
        if NO in (parts["through_world"], parts["needed"]):
            return "it holds in the real world; memory alone foretells it"
        return "it holds in the real world; that a world was needed to foretell it is not shown"
    if said == REFUTED:
        return refuted(parts["exists"], "foretold")
    if said == NO_EFFECT:
        return "no effect, alone, at this dose, and none was foretold"
    return "open: " + ", ".join(
        NAMES[name] for name in ("exists", "size", "special") if parts[name] in (OPEN, NO, NOT_ASKED)
    )


def refuted(there: str, told: str) -> str:
    """What is refuted: that there is an effect, or the size that was told of it.  there: the answer of ``exists``."""
    if there == NO:
        return f"the real world refutes it: one was {told}, and there is none of interest"
    existence = "" if there == YES else f"; {NAMES['exists']} is open"
    return f"the real world refutes the size that was {told}{existence}"


NAMES = {
    "exists": "whether it exists", "size": "whether its size is as foretold", "special": "whether it is special",
    "through_world": "whether it runs through the world", "needed": "whether the world was needed to foretell it",
}  # fmt: skip


class Gate(NamedTuple):
    """Was the world needed to foretell a study's late effects?  ``against`` each rival: the mean difference of squared
    errors, in squared smallest sizes of interest."""

    answer: str
    against: dict[str, Estimate]
    rows: int
    told: bool = True  # ``foretellable``, the late effects
    short: Short | None = None  # why it is open, and not a no

    @property
    def text(self) -> str:
        """In a sentence."""
        if not self.rows:
            return "No late effect was measured, so nothing says whether the world was needed."
        n = next(iter(self.against.values())).n
        told = "; ".join(
            f"{name} {e.value:+.3g} [{e.low:+.3g}, {e.high:+.3g}]" for name, e in self.against.items()
        )  # fmt: skip
        head = {
            YES: "The simulated world was needed to foretell the late effects: its squared error is below that of "
            "every prediction that needs no world",
            NO: "The simulated world was not needed to foretell the late effects: a prediction that needs no world "
            "does as well or better",
            OPEN: "Whether the simulated world was needed to foretell the late effects is open"
            + ("" if self.told else ": at these starts none of the smallest size of interest was seen")
            + ("" if self.short is None else too_few(*self.short)),
        }[self.answer]
        return (
            f"{head} (squared error of the simulator minus that of: {told}; in squared smallest sizes of interest, "
            f"{self.rows} late effects, n = {n} starts{few(n)})."
        )


def gate(errors: Mapping[str, np.ndarray], rng: np.random.Generator, told: bool, short: Short | None = None) -> Gate:
    """errors: of every rival [N, R], (s - f)^2 - (s - g)^2 of R late effects in squared smallest sizes; NaN at starts
    that a change is not about.  told: these effects are ``foretellable``; short: one of them has too few starts for a
    *no*, of a claim about it and so of all (``Tested.short``)."""
    rows = next(iter(errors.values())).shape[1]
    if not rows:
        return Gate(OPEN, {}, 0)
    about = ~np.isnan(next(iter(errors.values()))).all(1)  # some starts no change may be about
    each = np.stack([np.nanmean(v[about], 1) for v in errors.values()], 1)
    against = dict(zip(errors, means(each, rng=rng).estimates(), strict=True))
    answer = needed(against, told)
    if answer == NO and short is not None:
        return Gate(OPEN, against, rows, told, short)
    return Gate(answer, against, rows, told)
