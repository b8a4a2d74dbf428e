"""How often events happen in recorded episodes, and how much more often in one recording than in another.

E episodes, U independent units, X events, T steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from analysis.shared.events import GENERIC, Event, Rows, parse_event
from analysis.shared.truths import every_of, levels_of, names_of
from analysis.shared.units import units
from core.artefacts import Result, finite
from core.contracts import EnvSpec, UserError
from core.episodes import MOST_CUT, RolloutStore
from core.roll import one_hot
from core.stats import ALPHA, Estimate, benjamini_hochberg, difference, means, paired_share, ratios, shares
from envs.procgen_truth import truth_events
from envs.registry import renewed

NOT_TOLD = "not told: many episodes were cut, and whole ones are the shorter ones; record with --episodes"
FEWEST = 8  # units of the smaller of two recordings: what these vary among themselves says what others may be
TOO_FEW = f"not told: too few levels (or lives) in one of the recordings; record at least {FEWEST}"


class Counts(NamedTuple):
    """How often every event happens in each episode."""

    times_EX: np.ndarray  # int64, steps at which it holds
    unit_E: np.ndarray  # equal for what is not independent
    unit: str  # what a unit is
    steps: int
    cut: int = 0  # episodes that are left out, since the recorder cut them

    @property
    def share_cut(self) -> float:
        """The share of episodes that are left out."""
        return self.cut / (self.cut + len(self.times_EX))


def known_events(spec: EnvSpec, truth: bool) -> dict[str, str]:
    """The events that a world has words for; truth: also those that are told by truth columns."""
    return {**(spec.events or GENERIC), **(truth_events(spec) if truth else {})}


def chosen_events(words: Sequence[str], store: RolloutStore, other: RolloutStore | None = None) -> tuple[Event, ...]:
    """Events from names that the world knows and ``NAME: EXPRESSION``; none given: all that it knows and the recordings
    can tell.  UserError."""
    spec = renewed(store.spec)
    truth = [name for name in names_of(store) if other is None or name in names_of(other)]
    often = max(every_of(s) for s in (store, other) if s is not None)
    can = set(truth) if often == 1 else set()
    known = {
        name: text for name, text in known_events(spec, True).items()
        if name in known_events(spec, False) or (can and _told(text) <= can)
    }  # fmt: skip
    texts: dict[str, str] = {}
    for word in words or known:
        name, colon, text = word.partition(":")
        name = name.strip()
        if not colon and name not in known:
            there = ", ".join(known)
            if name in known_events(spec, True):
                raise UserError(f"--events {name} needs what record.py --truth all records; known here: {there}")
            raise UserError(f"--events {name!r}: no such event; known here: {there}; or write NAME: EXPRESSION")
        if name in texts:
            raise UserError(f"--events names {name!r} twice")
        texts[name] = text.strip() if colon else known[name]
    events = tuple(
        parse_event(name, text, spec.action_names, 0, spec.same_actions, truth) for name, text in texts.items()
    )
    for event in events:
        if often > 1 and "truth" in event.reads:
            raise UserError(
                f"event {event.name!r}: the truth was read at every {often} steps only; record with --truth all"
            )
        if event.reads & {"prob", "logit"}:
            for s in filter(None, (store, other)):
                if "logits" not in s.column_names:
                    raise UserError(f"event {event.name!r}: {s.path} has no logits")
    return _told_by_means(events, bool(words), store, other)


def _told_by_means(
    events: tuple[Event, ...], named: bool, store: RolloutStore, other: RolloutStore | None
) -> tuple[Event, ...]:
    """The events without those that read rewards, where rollouts are simulated: these hold the mean reward that a world
    foretells, which is hardly ever 0.  UserError where they were named, or no event is left."""
    dreamed = [s for s in (store, other) if s is not None and s.manifest["facts"].get("source") == "simulated"]
    out = [event.name for event in events if "reward" in event.reads] if dreamed else []
    if not out:
        return events
    why = f"{dreamed[0].path} is simulated, where a reward is the mean that the world foretells, not one that was given"
    if named or len(out) == len(events):
        raise UserError(f"event {out[0]!r}: {why}; count it in real rollouts")
    print(f"note: {', '.join(out)} left out: {why}", file=sys.stderr)
    return tuple(event for event in events if event.name not in out)


def _told(text: str) -> set[str]:
    """Names that an expression's truth() reads."""
    return {part.partition(")")[0].strip(" '\"") for part in text.split("truth(")[1:]}


def happening(
    events: Sequence[Event], store: RolloutStore, episodes: Iterable[int] | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """Every episode (of some; none: of all) that has steps, and which events hold at each of them, bool [T, X]."""
    spec, known = store.spec, names_of(store)
    truth = {name: known[name] for name in known if any(name in event.truths for event in events)}
    columns = ["value", "reward", "action", *dict.fromkeys(column for column, _ in truth.values())]
    logits = any(event.reads & {"prob", "logit"} for event in events)
    columns += ["logits"] if logits else []
    for e in with_steps(store).tolist() if episodes is None else episodes:
        found = {name: torch.from_numpy(np.asarray(x)) for name, x in store.pooled(*columns, episodes=[e])[0].items()}
        value_1T = found["value"].double()[None]
        action_1TA = one_hot(found["action"].long(), spec.parts, value_1T)[None]
        ended_1T, truncated_1T = torch.zeros_like(value_1T), torch.zeros_like(value_1T)
        if len(ended_1T[0]) == store.steps[e]:
            ended_1T[0, -1] = float(store.terminated[e] or store.truncated[e])
            truncated_1T[0, -1] = float(store.truncated[e] and not store.terminated[e])
        told = {name: found[column].reshape(len(value_1T[0]), -1)[:, k].double()[None]
                for name, (column, k) in truth.items()}  # fmt: skip
        logits_1TA = found["logits"].double()[None] if logits else torch.zeros_like(action_1TA)
        rows = Rows(
            value_1T, found["reward"].double()[None], ended_1T, action_1TA, logits_1TA, value_1T[..., None][..., :0],
            spec.parts if len(spec.parts) > 1 else (), told, truncated_1T,
        )  # fmt: skip
        on_TX = torch.stack([event(rows)[0] for event in events], 1) if events else torch.zeros(len(value_1T[0]), 0)
        yield e, on_TX.round().bool().numpy()


def with_steps(store: RolloutStore) -> np.ndarray:
    """The episodes that have steps."""
    return np.flatnonzero(np.minimum(store.steps, store.rows) > 0)


def count(events: Sequence[Event], store: RolloutStore) -> Counts:
    """Counts of every whole episode: one that the recorder cut says nothing of its end.  UserError if none is whole."""
    known = with_steps(store)
    episodes = known[[store.whole(e) for e in known.tolist()]]
    if len(known) and not len(episodes):
        raise UserError(f"{store.path}: all {len(known)} episodes were cut (--num_steps), and events are counted in "
                        "whole ones; record with --episodes, or more steps")  # fmt: skip
    times_EX = np.zeros((len(episodes), len(events)), np.int64)
    for i, (_, on_TX) in enumerate(happening(events, store, episodes.tolist())):
        times_EX[i] = on_TX.sum(0)
    level_E = levels_of(store)
    unit_E = units(store, store) if level_E is None else level_E
    unit = "level" if level_E is not None else "life" if len(np.unique(unit_E)) == len(store) else "world"
    return Counts(times_EX, unit_E[episodes], unit, int(store.steps[episodes].sum()), len(known) - len(episodes))


def _by_unit(counts: Counts, unit_U: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(times, episodes with it, episodes) of every unit: [U, X], [U, X], [U, 1]."""
    at_E = np.searchsorted(unit_U, counts.unit_E)
    out = []
    for value_EX in (counts.times_EX, counts.times_EX > 0, np.ones((len(at_E), 1))):
        sum_UX = np.zeros((len(unit_U), value_EX.shape[1]))
        np.add.at(sum_UX, at_E, value_EX)
        out.append(sum_UX)
    return out[0], out[1], out[2]


def rates(counts: Counts, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Of every event: times an episode and the share of episodes in which it happens, with 95 % intervals over whole
    units."""
    times_UX, with_UX, n_U1 = _by_unit(counts, np.unique(counts.unit_E))
    mean = ratios(times_UX, n_U1, rng=rng)
    low_X, high_X = mean.interval()
    low_X = np.maximum(low_X, 0.0)
    share_X, share_low_X, share_high_X, _ = shares(with_UX, n_U1)
    once_X = (counts.times_EX <= 1).all(0)  # then the rate is the share, whose interval is exact
    low_X, high_X = np.where(once_X, share_low_X, low_X), np.where(once_X, share_high_X, high_X)
    return [
        {
            "times": int(counts.times_EX[:, x].sum()), "rate": finite(mean.value_Q[x]), "rate_low": finite(low_X[x]),
            "rate_high": finite(high_X[x]), "share": finite(share_X[x]), "share_low": finite(share_low_X[x]),
            "share_high": finite(share_high_X[x]), "episodes": len(counts.times_EX), "n": len(n_U1),
        }
        for x in range(counts.times_EX.shape[1])
    ]  # fmt: skip


def differences(one: Counts, other: Counts, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Of every event: how many times more an episode of ``other`` has it, with interval, p, and q over all events.

    Levels that are in both are paired: a difference of two ratios of sums over units is linearised, so that with an
    episode a unit in each it is the mean of the paired differences.  Lives and worlds only have numbers, which say
    nothing of another recording's.  Of fewer than ``FEWEST`` units, unless they are the same in both, nothing is told:
    one has no spread, and beside forty others a recording of it differed in three of four tries.
    """
    if not one.unit == other.unit == "level":
        other = other._replace(unit_E=other.unit_E - other.unit_E.min() + one.unit_E.max() + 1)
    unit_U = np.union1d(one.unit_E, other.unit_E)
    value_X, away_UX = np.zeros(one.times_EX.shape[1]), np.zeros((len(unit_U), one.times_EX.shape[1]))
    for counts, sign in ((one, -1.0), (other, 1.0)):
        times_UX, _, n_U1 = _by_unit(counts, unit_U)
        rate_X = times_UX.sum(0) / n_U1.sum()
        value_X += sign * rate_X
        away_UX += sign * (times_UX - rate_X * n_U1) / n_U1.mean()
    found = means(value_X + away_UX, rng=rng)
    low_X, high_X = found.interval()
    once_X = ((one.times_EX <= 1).all(0)) & ((other.times_EX <= 1).all(0))
    for x in np.flatnonzero(once_X & (low_X == high_X)):  # nothing varies, as of what never happens: of what is a share
        low_X[x], high_X[x] = _of_alike(float(value_X[x]), _share(one, x), _share(other, x), len(unit_U))
    p_X = np.where((one.times_EX.sum(0) + other.times_EX.sum(0)) > 0, found.p(), np.nan)  # never: nothing to test
    smaller = min(len(np.unique(c.unit_E)) for c in (one, other))
    if too_few := smaller < FEWEST and smaller < len(unit_U):  # not the same units in both
        low_X, high_X, p_X = np.full((3, len(value_X)), np.nan)
    q_X = benjamini_hochberg(p_X)
    paired = len(np.intersect1d(one.unit_E, other.unit_E))
    cut = max(one.share_cut, other.share_cut) > MOST_CUT
    not_told = NOT_TOLD if cut else TOO_FEW if too_few else ""
    return [
        {
            "difference": finite(value_X[x]), "difference_low": finite(low_X[x]), "difference_high": finite(high_X[x]),
            "p": finite(p_X[x]), "q": finite(q_X[x]), "units": len(unit_U), "paired": paired,
            "verdict": not_told or verdict(float(value_X[x]), finite(q_X[x])),
        }
        for x in range(len(value_X))
    ]  # fmt: skip


def _share(counts: Counts, x: int) -> Estimate:
    """The share of episodes in which event x happens."""
    _, with_UX, n_U1 = _by_unit(counts, np.unique(counts.unit_E))
    share, low, high, n = (found.item() for found in shares(with_UX[:, [x]], n_U1))
    return Estimate(share, low, high, n)


def _of_alike(value: float, one: Estimate, other: Estimate, units: int) -> tuple[float, float]:
    """The interval of a difference of two shares where no unit differs from any other: what so few can hide, of pairs
    where both recordings have all units."""
    paired = one.n == other.n == units and value in (-1.0, 0.0, 1.0)
    e = paired_share(np.full(units, value)) if paired else difference(other, one)
    return e.low, e.high


def verdict(value: float, q: float | None) -> str:
    """What a difference says, in words."""
    if q is None:
        return "never happens"
    if q > ALPHA:
        return "no difference found"
    return "more often" if value > 0 else "less often"


def assemble(events: Sequence[Event], one: Counts, other: Counts | None, seed: int, names: Mapping[str, str]) -> Result:
    """Table ``events``, a row each; arrays of counts an episode.  names: of the recordings, for pages."""
    rng = np.random.default_rng(seed)
    cut = [c.cut for c in (one, other) if c is not None]
    result = Result(notes={"unit": one.unit, "names": dict(names), "cut": cut})
    rows = [{"event": e.name, "expression": e.text} | r for e, r in zip(events, rates(one, rng), strict=True)]
    result.arrays |= {"times": one.times_EX, "unit": one.unit_E}
    if other is not None:
        both = zip(rows, rates(other, rng), differences(one, other, rng), strict=True)
        rows = [row | {f"altered_{k}": v for k, v in again.items()} | more for row, again, more in both]
        result.arrays |= {"altered_times": other.times_EX, "altered_unit": other.unit_E}
    result.tables["events"] = rows
    return result
