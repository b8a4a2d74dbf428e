"""What paired runs say: effects with intervals, the statements of verdicts.py about every late one, what an
event needs, how predictions fare.  In words: claims.py.

N starts (independent units), G hypotheses, C controls, P points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from core.artefacts import Result, finite
from core.stats import ALPHA, Estimate, band_of, benjamini_hochberg, bootstrap_means, ratios, share_interval
from validation.hypotheses.grammar import ROLES, Claim, Hypothesis
from validation.interventions import verdicts
from validation.interventions.agreement import agreement, blocks_of, exchanged
from validation.interventions.verdicts import SMALLEST
from validation.paired.course import family_of, is_cut, is_described, is_late, is_own, is_probability, is_share, unit_of

H = TypeVar("H", bound=Claim)
TIMES = ("came_first", "came_median", "came_last", "later", "sooner")  # of a row of needs
ROUNDING = 1e-6  # of a quantity: what varies less does not vary
NEEDS = (
    "necessary: of the starts at which the event happens without the change, the share at which it does not happen "
    "with it. sufficient: of those at which it does not, the share at which it does. Each start is its own "
    "counterfactual, with the same action noise (probabilities of necessity and of sufficiency; Pearl 2009, chapter "
    "9). Not to happen within the horizon may be to happen later: came_first, _median and _last say how many steps "
    "pass before it, of a stopped event without the change, of one brought about with it, and 'on time:EVENT' asks by "
    "how many it is put off. What is stopped here may be brought about there: at contrary of contrary_n other starts. "
    "Controls of the same size prevent and cause events too: special is said against them. The share seen is compared "
    "with the share that the simulator foretold at the same starts."
)


class Effects(NamedTuple):
    """Effects (with minus without) at the test starts, {quantity: [G, N]}; NaN at starts that a hypothesis is not
    about, and where a path was not run."""

    unaltered: dict[str, np.ndarray]  # [N], the quantity itself, in the real world
    seen: dict[str, dict[str, np.ndarray]]  # by path: own, memory, world
    foretold: dict[str, dict[str, np.ndarray]]  # the same, in the simulator
    expected: dict[str, np.ndarray]  # [N], the quantity itself, in the simulator
    rivals: dict[str, dict[str, np.ndarray]]  # predictions that need no world, by name
    jacobian: dict[str, np.ndarray]  # first-order predictions
    zero: tuple[float, float]  # largest |effect| of shifting by nothing in (real world, simulator); NaN: none is
    members: Sequence[Mapping[str, np.ndarray]] = ()  # foretold along their own paths by the ensemble's other members


class Controls(NamedTuple):
    """What a hypothesis' controls did in the real world, {quantity: [C, M]}, on the M starts that it is about."""

    real: dict[str, np.ndarray]
    law_C: np.ndarray  # that each was drawn from
    isotropic: dict[str, np.ndarray]  # directions uniform over all, beside them; {} where none were run
    chosen: Chosen | None = None  # where the hypothesis was chosen among others


class Chosen(NamedTuple):
    """The distribution of the largest effect among directions that were chosen in the same way."""

    largest_M: np.ndarray  # of every mock choice: its largest |mean effect|, in ``scale`` of its quantity
    scale: dict[str, float]  # {quantity: root mean square of the mean effects of all that was chosen}
    by_world: bool = False  # these are effects through the world, beyond the agent's memory


def about(effect_N: np.ndarray) -> np.ndarray:
    """The starts that a hypothesis is about, int64 [M]."""
    return np.flatnonzero(~np.isnan(effect_N))


def mean_of(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean over the starts that there are; NaN where there are none."""
    there = ~np.isnan(x)
    total = np.where(there, x, 0).sum(axis)
    out: np.ndarray = total / np.where(there.any(axis), there.sum(axis), np.nan)
    return out


def spread_of(x_N: np.ndarray) -> float:
    """Standard deviation over the starts; 0, not a rounding error, where all are the same."""
    spread = float(x_N.std())
    return spread if spread > ROUNDING * float(np.abs(x_N).max(initial=0.0)) else 0.0


def spread_under(unaltered_N: np.ndarray, effects: np.ndarray) -> float:
    """``spread_of`` a quantity; of one that nothing but a change makes vary, with what it is under that change (effects
    [..., N], NaN where there is none).  0: it never varies."""
    changed = (unaltered_N + effects).ravel()
    return spread_of(unaltered_N) or spread_of(np.concatenate([unaltered_N, changed[~np.isnan(changed)]]))


def spread_to_rank_by(quantity: str, spread: float) -> float:
    """What effects on a quantity are divided by where the largest is sought: its spread; of a probability at least the
    smallest share of interest, since what an agent hardly ever does varies so little that every change of it is large.
    """
    return max(spread, SMALLEST[1]) if is_probability(quantity) else spread


class Sizes(NamedTuple):
    """What a quantity's effects are measured in."""

    unit: float  # its spread, or 1 for a share
    smallest: float  # smallest size of interest, in units
    spread: float

    @classmethod
    def of(cls, quantity: str, spread: float, smallest: tuple[float, float] = SMALLEST) -> Sizes:
        return cls(1.0, smallest[1], spread) if is_share(quantity) else cls(spread, smallest[0], spread)


class Scale(NamedTuple):
    """What of one change is judged: Q quantities in their units, at the M starts that the change is about."""

    names: list[str]
    here: np.ndarray  # the starts: int64 [M], or bool [N]
    size: Mapping[str, Sizes]

    def of(self, some: Mapping[str, np.ndarray]) -> np.ndarray:
        """{quantity: [N]} as [M, Q], in units."""
        return np.stack([some[q][self.here] / self.size[q].unit for q in self.names], 1)

    def sample(
        self, seen: Mapping[str, np.ndarray], foretold: np.ndarray, memory: np.ndarray,
        rivals: Mapping[str, np.ndarray], unaltered: Mapping[str, np.ndarray], every: Mapping[str, np.ndarray],
    ) -> verdicts.Sample:  # fmt: skip
        """What the tests are made on.  seen: effects, {quantity: [N]}; foretold, memory, rivals: in units [M, Q];
        unaltered: the quantities themselves; every: effects [..., N] that tell their reach."""
        unit = np.array([self.size[q].unit for q in self.names])
        step = np.array([step_of(q, unaltered[q][self.here], seen[q][self.here]) for q in self.names]) / unit
        reach = np.array([reach_of(q, unaltered[q], every[q]) for q in self.names]) / unit
        return verdicts.Sample(self.of(seen), foretold, memory, rivals, reach, step)


def scale_of(
    h: Hypothesis, unaltered: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray], smallest: tuple[float, float]
) -> Scale:
    """The late quantities that vary and are not what a changed direction is itself later.  own: the effects of the
    hypothesis, {quantity: [N]}, NaN at starts that it is not about."""
    size = {q: Sizes.of(q, spread_under(unaltered[q], v), smallest) for q, v in own.items()}
    names = [q for q in own if is_late(q) and not is_own(q, h.ids) and size[q].unit > 0]
    return Scale(names, about(next(iter(own.values()))), size)


def through_memory(
    scale: Scale, h: Hypothesis, memory: Mapping[str, np.ndarray], events: Sequence[Any]
) -> np.ndarray:  # fmt: skip
    """Effects through memory alone [M, Q], in units; NaN where they are 0 by construction, and where the change itself
    takes one path."""
    out = scale.of(memory)
    out[:, [bool(h.through) or is_cut(q, events) for q in scale.names]] = np.nan
    return out


def of_change(some: Mapping[str, np.ndarray], g: int) -> dict[str, np.ndarray]:
    """Effects {quantity: [N]} of one of the hypotheses."""
    return {q: v[g] for q, v in some.items()}


def special_p(q: str, mean: float, controls: Controls) -> float:
    """p that a direction like the controls, chosen as this one was, has as large a mean effect: (1 + those as large) /
    (1 + all), the larger of the laws'.  NaN without controls."""
    if controls.chosen is not None:
        scale = controls.chosen.scale.get(q, 0.0)
        if scale <= 0:
            return 1.0  # nothing that was chosen moves it, this one included
        return worst_p(abs(mean) / scale, controls.chosen.largest_M, controls.law_C)
    if q not in controls.real:
        return float("nan")
    return worst_p(abs(mean), np.abs(controls.real[q].mean(1)), controls.law_C)


def special_of(q: str, mean: float, controls: Controls, memory_N: np.ndarray) -> dict[str, Any]:
    """A row's p of being special, whether the choice is in it, and of which effect it is.  memory: what memory alone
    does at the starts."""
    by_world = controls.chosen is not None and controls.chosen.by_world
    p = special_p(q, mean - float(memory_N.mean()) if by_world else mean, controls)
    return {"special_p": p, "by_choice": controls.chosen is not None, "special_by_world": by_world}


def rank_p(value: float, null_C: np.ndarray) -> float:
    """(1 + draws at least as large) / (1 + draws); a draw that repeats the value counts, whatever its rounding."""
    return float((1 + (null_C >= value * (1 - 1e-9)).sum()) / (1 + len(null_C)))


def worst_p(value: float, null_C: np.ndarray, law_C: np.ndarray) -> float:
    """The largest ``rank_p`` of a value among the draws of every law."""
    return max(rank_p(value, null_C[law_C == law]) for law in np.unique(law_C))


class Trial(NamedTuple):
    """A row of a table of effects that is to be judged: quantity j of what was tested."""

    row: dict[str, Any]
    tested: verdicts.Tested
    j: int
    size: Sizes
    told: bool = True  # a size was foretold, and is asked


class Judged(NamedTuple):
    """The table of effects, and what the gate is made of."""

    rows: list[dict[str, Any]]
    errors: dict[str, np.ndarray]  # of every rival [N, R], in squared smallest sizes of interest
    told: bool  # ``verdicts.foretellable`` of the late effects
    short: verdicts.Short | None  # ``Tested.short`` of the late effect that lacks most starts


def table_of(
    effects: Effects, hypotheses: Sequence[Hypothesis], controls: Mapping[Hypothesis, Controls],
    events: Sequence[Any], smallest: tuple[float, float], rng: np.random.Generator,
) -> Judged:  # fmt: skip
    """One row a (hypothesis, quantity, world).  Rows of the real world carry the five statements and a verdict where
    the quantity is late, varies over the starts and is not what a changed direction is itself later."""
    rows: list[dict[str, Any]] = []
    errors: dict[str, list[np.ndarray]] = {name: [] for name in effects.rivals}
    names = [q for q in effects.seen["own"] if not is_described(q)]
    tests: list[Trial] = []
    draws = verdicts.draws_for(len(hypotheses) * sum(map(is_late, names)))
    for g, h in enumerate(hypotheses):
        if h.is_nothing or h.name in {o.name for o in hypotheses[:g]}:  # of one change there may be several claims
            continue
        seen = of_change(effects.seen["own"], g)
        scale = scale_of(h, effects.unaltered, seen, smallest)
        judged, here, size = scale
        plain = [q for q in names if q not in judged]
        sample = _sample(effects, g, h, scale, events) if judged else None
        tested = verdicts.test(sample, rng, draws) if sample is not None else None
        if sample is not None:
            for name, rival in sample.rivals.items():
                worse = (sample.seen - sample.foretold) ** 2 - (sample.seen - rival) ** 2
                whole = np.full((len(effects.unaltered[names[0]]), len(judged)), np.nan)
                whole[here] = worse / np.array([size[q].smallest for q in judged]) ** 2
                errors[name].append(whole)
        of_plain = _means(seen, here, plain, rng)
        dreamed = _means(of_change(effects.foretold["own"], g), here, names, rng)
        mine = controls.get(h)
        for i, q in enumerate(names):
            known = {
                "hypothesis": h.name, "kind": h.kind, "direction": h.direction, "amount": h.amount, "quantity": q,
                "unit": unit_of(q), "path": h.through,
                "predicted_jacobian": finite(float(mean_of(effects.jacobian[q][g])))
                if q in effects.jacobian else None,
            }  # fmt: skip
            f = dreamed[i]
            rows.append({"world": "simulator", **known, "observed": f.value, "low": f.low, "high": f.high, "n": f.n})
            row: dict[str, Any] = {"world": "real", **known, "foretold": f.value}
            if q in judged:
                assert tested is not None
                j = judged.index(q)
                row |= seen_of(tested, j, size[q]) | NO_PATHS | tested.paths(j, size[q].unit) | tested.errors(j)
                row["smallest"] = size[q].smallest * size[q].unit
                tests.append(Trial(row, tested, j, size[q]))
            else:
                e = of_plain[plain.index(q)]
                row |= {"observed": e.value, "low": e.low, "high": e.high, "n": e.n}
            if mine is not None:
                row |= bands_of(q, mine)
                row |= special_of(q, row["observed"], mine, effects.seen["memory"][q][g][here])
            rows.append(row)
    for test, q_world in zip(tests, judge(tests), strict=True):
        test.row["world_q"] = finite(q_world)
    judge_special(tests)
    for test in tests:
        test.row["verdict"] = verdict_of(test.row)
    count = len(effects.unaltered[names[0]])
    together = {k: np.concatenate(v, 1) if v else np.empty((count, 0)) for k, v in errors.items()}
    rms, nothing = (np.array([getattr(a.tested, name)[a.j] for a in tests]) for name in ("rms", "nothing"))
    smallest_of = np.array([a.size.smallest for a in tests])
    told = verdicts.foretellable([a.row["exists"] for a in tests], rms, smallest_of, nothing)
    lacking = [short for a in tests if (short := a.tested.short(a.j, a.size.smallest)) is not None]
    return Judged(rows, together, told, max(lacking, key=lambda x: x.enough - x.starts, default=None))


def _sample(effects: Effects, g: int, h: Hypothesis, scale: Scale, events: Sequence[Any]) -> verdicts.Sample:
    seen, foretold = (of_change(some["own"], g) for some in (effects.seen, effects.foretold))
    memory = through_memory(scale, h, of_change(effects.seen["memory"], g), events)
    rivals = {name: scale.of(of_change(some, g)) for name, some in effects.rivals.items()}
    return scale.sample(seen, scale.of(foretold), memory, rivals, effects.unaltered, seen)


NO_PATHS = dict.fromkeys(("memory", "world_effect", "world_low", "world_high"))  # where memory alone does nothing


def seen_of(tested: verdicts.Tested, j: int, size: Sizes) -> dict[str, Any]:
    """What was seen of quantity j, for its row of a table."""
    e, unit = tested.seen[j], size.unit
    seen = {"observed": e.value * unit, "low": e.low * unit, "high": e.high * unit, "n": e.n}
    return seen | {"p": float(tested.p[j]), "spread": size.spread}


def step_of(quantity: str, unaltered_N: np.ndarray, effect_N: np.ndarray) -> float:
    """The distance of the two levels that a quantity has (an event: 1; a reward: its size), NaN where it has more.  Of
    a share that no change alters, which is at most all of it, 1."""
    if is_share(quantity) and not effect_N.any():
        return 1.0
    levels = np.unique(np.concatenate([unaltered_N, unaltered_N + effect_N]).round(9))
    return float(levels[1] - levels[0]) if len(levels) == 2 else float("nan")


def reach_of(quantity: str, unaltered_N: np.ndarray, effects: np.ndarray) -> float:
    """The largest change that a quantity could show: its range over all starts, also those that a change is not about
    (whose effect is NaN), unaltered and altered ([..., N]); of a share 1."""
    if is_share(quantity):
        return 1.0
    values = np.concatenate([unaltered_N, (unaltered_N + effects).ravel()])
    return float(np.nanmax(values) - np.nanmin(values))


def _means(
    some: Mapping[str, np.ndarray], here: np.ndarray, names: Sequence[str], rng: np.random.Generator
) -> list[Estimate]:
    return bootstrap_means(np.stack([some[q][here] for q in names], 1), rng=rng) if names else []


def bands_of(q: str, controls: Controls) -> dict[str, Any]:
    """Where 95 % of the controls' mean effects lie, and of isotropic directions', for a row of a table."""
    out: dict[str, Any] = {}
    for name, some in (("random", controls.real), ("isotropic", controls.isotropic)):
        if q in some:
            out |= _band(name, some[q].mean(1))
    return out


def _band(name: str, draws_C: np.ndarray) -> dict[str, Any]:
    low, high = band_of(draws_C, ALPHA)
    return {f"{name}_low": low, f"{name}_high": high, f"{name}_n": len(draws_C)}


def judge(tests: Sequence[Trial]) -> np.ndarray:
    """Four of the five answers of every row, into it, of which *size* and *needed* are not asked where nothing foretold
    it; one family of tests for all.  The q of what runs through the world [tests]."""
    q_seen = benjamini_hochberg([t.row["p"] for t in tests])
    q_world = benjamini_hochberg([t.tested.world_p[t.j] for t in tests])
    for (row, tested, j, size, told), q, qw in zip(tests, q_seen, q_world, strict=True):
        smallest = size.smallest
        row |= tested.existence(j, float(q), smallest)
        there = row["exists"]
        # A change that the agent forgets reaches later quantities by way of the world or not at all.
        by_world_alone = row.get("path") == "world"
        row["through_world"] = there if by_world_alone else tested.through_world(j, float(qw), smallest)
        row["size"] = tested.size_of(j, there, smallest) if told else verdicts.NOT_ASKED
        row["needed"] = tested.needed(j, there, smallest) if told and tested.worse else verdicts.NOT_ASKED
    return q_world


def judge_special(tests: Sequence[Trial]) -> None:
    """The fifth answer, into every row."""
    # The choice is in the p of what was chosen; everything else is one of as many as there are.
    p = np.array([t.row.get("special_p", np.nan) for t in tests])
    by_choice = np.array([t.row.get("by_choice", False) for t in tests], bool)
    q_special = np.where(by_choice, p, benjamini_hochberg(np.where(by_choice, np.nan, p)))
    for (row, *_), q in zip(tests, q_special.tolist(), strict=True):
        row |= {"special_q": q, "special": verdicts.special(q)}


def verdict_of(row: Mapping[str, Any]) -> str:
    """confirmed, refuted, no effect or open."""
    return verdicts.verdict(row["exists"], row["size"], row["special"], row["foretold"], row["smallest"])


# What an event needs


def needs_of(
    effects: Effects, hypotheses: Sequence[H], controls: Mapping[H, Controls], smallest: float,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row a (hypothesis, event, role): how often the change prevents the event, and how often it causes it (see
    NEEDS), beside what the simulator foretold at the same starts.  A hypothesis that makes a claim of its own is only
    asked that."""
    rows: list[dict[str, Any]] = []
    shares: list[verdicts.Tested | None] = []
    events = [q for q in effects.unaltered if q.startswith("event:")]
    for g, h in enumerate(hypotheses):
        for q in () if h.is_nothing else events:
            name = q.removeprefix("event:").partition("@")[0]
            for role in ROLES:
                if not h.role or (h.role, h.event) == (role, name):
                    row, tested = _need(effects, g, h, controls.get(h), q, name, role, smallest, rng)
                    rows.append({**row, "claimed": bool(h.role)})
                    shares.append(tested)
    # What was claimed by name is one family of tests, everything else another.
    claimed = np.array([row["claimed"] for row in rows], bool)
    for name, to in (("p", "q"), ("special_p", "special_q")):
        p = np.array([row[name] for row in rows], np.float64)
        both = [benjamini_hochberg(np.where(some, p, np.nan)) for some in (claimed, ~claimed)]
        for row, adjusted in zip(rows, np.where(claimed, *both), strict=True):
            row[to] = float(adjusted)
    for row, tested in zip(rows, shares, strict=True):
        row["special"] = verdicts.special(row["special_q"])
        row |= {"exists": verdicts.OPEN, "size": verdicts.OPEN, "verdict": verdicts.OPEN}
        if tested is None:
            continue
        low, high = share_interval(row["prevented_or_caused"], row["n"], level=0.90)
        wide = Estimate(row["share"], row["low"], row["high"], row["n"])
        there = verdicts.exists(wide, Estimate(row["share"], low, high, row["n"]), row["q"], smallest)
        how_much = verdicts.size(
            wide, row["foretold"], (tested.half[0], tested.half_90[0]), (tested.twice[0], tested.twice_90[0]), there,
            smallest,
        )  # fmt: skip
        row |= {"exists": there, "size": how_much}
        row["verdict"] = verdicts.verdict(there, how_much, row["special"], row["foretold"], smallest)
    return rows


def changed_share(effect: np.ndarray, base_N: np.ndarray, role: str) -> tuple[np.ndarray, np.ndarray]:
    """(whether the event was prevented or caused at each start at which it could be: 0 or 1 [..., M]; these starts)."""
    could = base_N > 0.5 if role == "necessary" else base_N <= 0.5
    return np.clip(-effect if role == "necessary" else effect, 0, 1)[..., could], np.flatnonzero(could)


def _need(
    effects: Effects, g: int, h: Claim, controls: Controls | None, q: str, name: str, role: str,
    smallest: float, rng: np.random.Generator,
) -> tuple[dict[str, Any], verdicts.Tested | None]:  # fmt: skip
    from scipy.special import bdtrc

    here = about(effects.seen["own"][q][g])
    base = effects.unaltered[q][here]
    seen, asked = changed_share(effects.seen["own"][q][g][here], base, role)
    contrary, others = changed_share(effects.seen["own"][q][g][here], base, next(r for r in ROLES if r != role))
    row: dict[str, Any] = {
        "hypothesis": h.name, "event": name, "role": role, "rate": finite(float(mean_of(base))), "share": None,
        "low": None, "high": None, "foretold": None, "expected": None, "n": len(asked), "p": float("nan"),
        "special_p": float("nan"), "horizon": int(q.partition("@")[2]), "contrary": int(round(contrary.sum())),
        "contrary_n": len(others), **dict.fromkeys(TIMES),
    }  # fmt: skip
    if not len(asked):
        return row, None
    # What the simulator foretold there: by how much the change lowers (raises) the event's chance at the same start.
    sign = -1 if role == "necessary" else 1
    foretold = np.clip(sign * effects.foretold["own"][q][g][here][asked], 0, 1)
    count = int(round(seen.sum()))
    low, high = share_interval(count, len(asked))
    row |= {"share": count / len(asked), "low": low, "high": high, "prevented_or_caused": count}
    row |= _times(effects, g, q, here[asked], seen > 0.5, role)
    row["foretold"] = float(foretold.mean())
    row["expected"] = float(effects.expected[q][here][asked].mean())  # the chance of the event without the change
    nothing = {"no change": np.zeros_like(seen)[:, None]}
    sample = verdicts.Sample(seen[:, None], foretold[:, None], seen[:, None], nothing, np.ones(1), np.ones(1))
    tested = verdicts.test(sample, rng)
    # Every start at which it was changed is a proof of one; the question is whether there are enough of them.
    row["p"] = float(bdtrc(count - 1, len(asked), smallest)) if count else 1.0
    if controls is not None and q in controls.real:
        null = changed_share(controls.real[q], base, role)[0].mean(1)
        row |= {"random_mean": float(null.mean())} | _band("random", null)
        row["special_p"] = worst_p(row["share"], null, controls.law_C)
    return row, tested


def _times(
    effects: Effects, g: int, q: str, asked: np.ndarray, changed: np.ndarray, role: str
) -> dict[str, Any]:  # fmt: skip
    """When an event comes that is stopped or brought about, for its row of needs: not to come within the horizon may be
    to come later.  asked: the starts [M]; changed: where it was stopped or brought about [M]."""
    first, _, steps = q.replace("event:", "first:", 1).partition("@")
    if first not in effects.unaltered:  # of what nobody claimed
        return {}
    without = effects.unaltered[first][asked]
    altered = without + effects.seen["own"][first][g][asked]
    when = (without if role == "necessary" else altered)[changed]
    both = ~changed & (np.maximum(without, altered) < int(steps))  # it comes with the change and without it
    out: dict[str, Any] = {
        "later": int((altered > without)[both].sum()),
        "sooner": int((altered < without)[both].sum()),
    }
    if len(when):
        out |= {"came_first": float(when.min()), "came_median": float(np.median(when)), "came_last": float(when.max())}
    return out


# Patching


def recovered_of(
    effects: Effects, hypotheses: Sequence[Hypothesis], donors: Mapping[int, np.ndarray], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """One row a (world, patch, quantity): how much of the way from the receiving starts to the giving ones the patch
    goes, 1 all of it.  It has no interval where the starts are not known to differ from their givers (the interval of
    ``gap`` holds 0).  donors: {hypothesis: the start [N] that every start takes from}."""
    rows = []
    worlds = {
        "real": (effects.seen["own"], effects.unaltered),
        "simulator": (effects.foretold["own"], effects.expected),
    }
    for world, (effect, unaltered) in worlds.items():
        for g, donor_N in donors.items():
            for q, effect_GN in effect.items():
                here = about(effect_GN[g])
                moved = effect_GN[g][here]
                gap = unaltered[q][donor_N[here]] - unaltered[q][here]
                if len(here) < 2 or abs(gap.mean()) <= 1e-9 * (1 + np.abs(gap).mean()):
                    continue
                of_gap = bootstrap_means(gap[:, None], rng=rng)[0]
                share = ratios(moved[:, None], gap[:, None], rng=rng).estimates()[0]
                # Of no difference any part may have been gone.
                ends = share.interval if max(of_gap.low, -of_gap.high) > 0 else (float("nan"), float("nan"))
                low, high = (finite(x) for x in ends)
                rows.append({
                    "world": world, "hypothesis": hypotheses[g].name, "side": hypotheses[g].side, "quantity": q,
                    "recovered": share.value, "low": low, "high": high, "gap": float(gap.mean()),
                    "unit": unit_of(q), "n": len(here),
                })  # fmt: skip
    return rows


# How predictions fare


class Point(NamedTuple):
    """A change to predict, as a weighted sum of hypotheses: a slope over amounts, or one hypothesis."""

    label: str
    weights: dict[int, float]  # hypothesis: weight
    unit: str
    ids: tuple[int, ...]  # of the directions that the change is of
    of_one: str | None  # the name of the direction, if it is one
    like: tuple[Any, ...] = ()  # what it is but for its directions

    def of(self, effect_GN: np.ndarray) -> np.ndarray:
        """For every start [N]."""
        out: np.ndarray = sum((w * effect_GN[g] for g, w in self.weights.items()), np.zeros(effect_GN.shape[1:]))
        return out


def points_of(hypotheses: Sequence[Hypothesis], all_kinds: bool) -> list[Point]:
    """Shifts of one direction (all once, or all always) as their least-squares slope through the origin (no shift, no
    effect), in the order of their directions; with ``all_kinds`` those that are made once, and every other hypothesis
    but keep_only as a point of its own."""
    out: dict[str, Point] = {}
    rest: list[Point] = []
    for g, h in enumerate(hypotheses):
        plain = h.kind == "shift" and h.direction is not None and not (h.through or h.when)
        plain &= h.steps == 1 or not all_kinds
        if plain and not h.is_nothing:
            name = h.directions[0]
            point = out.setdefault(name, Point(name, {}, "per unit of the direction", h.ids, name))
            point.weights[g] = h.amounts[0]
        elif all_kinds and h.kind != "keep_only" and not h.is_nothing:
            like = (h.kind, h.amounts, h.steps, h.through, h.when, h.clean, h.side)
            rest.append(Point(h.name, {g: 1.0}, "", h.ids, h.direction, like))
    slopes = []
    for point in out.values():
        power = sum(a * a for a in point.weights.values())
        slopes.append(point._replace(weights={g: a / power for g, a in point.weights.items()}))
    return slopes + rest


def headline(
    result: Result, name: str, predicted_DQN: np.ndarray, observed_DQN: np.ndarray, points: Sequence[Point],
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Agreement of predictions with observations over D changes of Q quantities, with intervals over the N starts, and
    p of predictions exchanged among directions, into ``result``.  What was not predicted (NaN) is left out."""
    found = agreement(*(x.reshape(-1, x.shape[-1]) for x in (predicted_DQN, observed_DQN)), rng=rng)
    blocks = blocks_of([point.ids for point in points], [point.like for point in points])
    p_3 = exchanged(predicted_DQN, observed_DQN, blocks, rng=rng)
    for what, unit, e, p in (
        ("sign_agreement", "share of effect", found.sign, p_3[0]), ("rank_correlation", "1", found.rank, p_3[1]),
        ("slope", "1", found.slope, p_3[2]),
    ):  # fmt: skip
        result.scalar(f"{what}{name}", e.value, unit, e.n, e.interval)
        result.scalar(f"{what}{name}_p", float(p), "p, predictions exchanged among directions", sum(map(len, blocks)))
    result.notes[f"points{name}"] = found.points


def families(late: Sequence[str]) -> dict[str, list[str]]:
    """{family: its late quantities}, those that have any."""
    out: dict[str, list[str]] = {}
    for q in late:
        out.setdefault(family_of(q), []).append(q)
    return out
