"""How well what saliency says of objects agrees with what removing them does.

Objects are compared within a start, and starts are the independent units.  N starts, O objects, M rows of sizes.

rank      Spearman's rank correlation of sizes and true changes (both without sign).
hit       whether the object with the largest size is the one that changes most; ties share it.  chance: one of so many
          objects.
sign      share of the objects whose change has the sign that was foretold, of methods that foretell one; by chance .5.

A start at which all objects change a quantity equally (by nothing, mostly) says nothing and is left out.  Sizes that
are all equal say nothing of the objects: rank 0, a hit by chance.

finds     yes: the mean rank correlation lies beyond the smallest size of interest (95 % interval, q <= .05), so does
          what it exceeds that of random boxes by and that of the randomised agent, and hits exceed chance by more than
          their smallest size.  no: one of the four lies below it (90 % interval, with room for starts of a kind that
          none was, at which the method is right: ``core.stats.gain_not_met``).  Else open.  q is that of Benjamini and
          Hochberg over all methods and quantities, for each of the four.  By construction: at once, occlusion by what
          is behind the object shows the agent what the edited game does; it tests the boxes, not the method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from core.stats import ALPHA, Estimate, benjamini_hochberg, gain_not_met, means
from validation.interventions.verdicts import (
    BY_CONSTRUCTION,
    DRAWS,
    LEAST_STARTS,
    NO,
    NOT_ASKED,
    OPEN,
    SMALLEST,
    YES,
)
from validation.saliency_trial.removal import ROUNDING

PARTS = ("rank", "boxes", "randomised", "hit")  # what a verdict is made of
WHY = {
    "rank": "its ranks",
    "boxes": "beyond random boxes",
    "randomised": "beyond the randomised agent",
    "hit": "its hits",
}
NO_WHY = {
    "rank": "no rank correlation", "boxes": "no better than random boxes",
    "randomised": "no better than the randomised agent's", "hit": "no more hits than by chance",
}  # fmt: skip


class Claim(NamedTuple):
    """What one method says about one quantity, of all objects."""

    method: str
    world: str  # '' (the agent alone), or how the simulator had a part
    quantity: str
    size: np.ndarray  # [O]
    change: np.ndarray | None  # [O], with sign
    boxes: np.ndarray | None  # [R, O], the same of random boxes
    randomised: np.ndarray | None  # [P, O], the same by agents of shuffled weights
    given: bool = False  # it was told the true change, so that nothing is tested


def ranks_in(size_MO: np.ndarray, true_O: np.ndarray) -> np.ndarray:
    """Spearman's correlation [M] of sizes and true changes of one start's objects; 0 where sizes are all equal."""
    from scipy.stats import rankdata

    said, true = rankdata(size_MO, axis=1), rankdata(true_O)
    said, true = said - said.mean(1, keepdims=True), true - true.mean()
    norm = np.sqrt((said**2).sum(1) * (true**2).sum())
    return np.divide(said @ true, norm, out=np.zeros(len(said)), where=norm > 0)


def hits_in(size_MO: np.ndarray, true_O: np.ndarray) -> np.ndarray:
    """Share [M] of the objects of the largest size that change most."""
    top = size_MO == size_MO.max(1, keepdims=True)
    out: np.ndarray = (top & (true_O == true_O.max())).sum(1) / top.sum(1)
    return out


class Scored(NamedTuple):
    """Of one quantity: every row of sizes [M] at every start that says something [E]."""

    rank_EM: np.ndarray
    hit_EM: np.ndarray
    chance_E: np.ndarray
    starts_E: np.ndarray


def scored(size_MO: np.ndarray, true_O: np.ndarray, of_O: np.ndarray) -> Scored:
    """Scores of rows of sizes within every start."""
    true_O = np.where(np.abs(true_O) < ROUNDING, 0, np.abs(true_O))
    rank, hit, chance, kept = [], [], [], []
    for n in np.unique(of_O):
        here = of_O == n
        true = true_O[here]
        if (true == true[0]).all():
            continue
        rank.append(ranks_in(size_MO[:, here], true))
        hit.append(hits_in(size_MO[:, here], true))
        chance.append((true == true.max()).mean())
        kept.append(int(n))
    shape = (len(kept), len(size_MO))
    return Scored(np.reshape(rank, shape), np.reshape(hit, shape), np.array(chance), np.array(kept, np.int64))


def signs(change_O: np.ndarray, true_O: np.ndarray, of_O: np.ndarray, starts_E: np.ndarray) -> np.ndarray:
    """Share [E] of a start's objects whose change has the sign that was foretold; a foretold 0 counts half."""
    counts = np.abs(true_O) >= ROUNDING
    right = np.where(change_O == 0, 0.5, np.sign(change_O) == np.sign(true_O))
    return np.array([right[(of_O == n) & counts].mean() for n in starts_E])


def score_rows(
    claims: Sequence[Claim], baselines: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray], of_O: np.ndarray,
    ceiling: Mapping[str, tuple[np.ndarray, np.ndarray]], smallest: float, rng: np.random.Generator,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row a (quantity, method), baselines and ceilings after the methods.

    baselines: {name: size [O]}, the same for every quantity.  ceiling: {quantity: the true change by one half of the
    draws of the action noise, and by the other}: how well the truth foretells itself.
    """
    rows: list[dict[str, Any]] = []
    tests: dict[str, list[Tested | None]] = {part: [] for part in PARTS}
    for q, true_O in truth.items():
        mine = [c for c in claims if c.quantity == q]
        stacked: list[np.ndarray] = []
        places: list[dict[str, slice]] = []
        for c in mine:
            place = {}
            for name, more in (("own", c.size[None]), ("boxes", c.boxes), ("randomised", c.randomised)):
                if more is not None:
                    start = sum(map(len, stacked))
                    stacked.append(more)
                    place[name] = slice(start, start + len(more))
            places.append(place)
        first = sum(map(len, stacked))
        stacked += [x[None] for x in baselines.values()]
        found = scored(np.concatenate(stacked), true_O, of_O)
        known = {"quantity": q, "n": len(found.starts_E), "chance": mean_or_none(found.chance_E)}
        columns: list[np.ndarray] = []
        put = partial(_put, columns)
        of_row: list[dict[str, int]] = []
        for c, place in zip(mine, places, strict=True):
            own = found.rank_EM[:, place["own"].start]
            at = {"rank": put(own), "hit": put(found.hit_EM[:, place["own"].start] - found.chance_E)}
            for name in ("boxes", "randomised"):
                if name in place:
                    control = found.rank_EM[:, place[name]].mean(1)
                    at |= {f"rank of {name}": put(control), name: put(own - control)}
                    at[f"hit of {name}"] = put(found.hit_EM[:, place[name]].mean(1))
            for b, name in enumerate(baselines):
                at[f"minus {name}"] = put(own - found.rank_EM[:, first + b])
            if c.change is not None:
                at["sign"] = put(signs(c.change, true_O, of_O, found.starts_E))
            of_row.append(at)
        others = [
            (name, {"rank": put(found.rank_EM[:, first + b]), "hit": put(found.hit_EM[:, first + b] - found.chance_E)})
            for b, name in enumerate(baselines)
        ]
        m = means(np.stack(columns, 1), rng=rng, draws=DRAWS) if len(found.starts_E) > 1 else None
        wide, narrow, p = (m.estimates(), m.estimates(0.90), m.p()) if m is not None else ([], [], np.zeros(0))
        p_half = m.p(0.5) if m is not None else p
        for c, at in zip(mine, of_row, strict=True):
            row: dict[str, Any] = {"method": c.method, "world": c.world, "kind": "method", **known}
            row |= _told(at, wide)
            row["given"] = c.given
            if "sign" in at and m is not None:
                row["sign_p"] = float(p_half[at["sign"]])
            rows.append(row)
            for part in PARTS:
                i = None if c.given else at.get(part)
                tests[part].append(Tested(wide[i], narrow[i], float(p[i])) if i is not None and wide else None)
        for name, at in others:
            rows.append({"method": name, "world": "", "kind": "baseline", **known, **_told(at, wide)})
        if q in ceiling:
            half = scored(np.abs(ceiling[q][1])[None], ceiling[q][0], of_O)
            about = means(np.concatenate([half.rank_EM, half.hit_EM - half.chance_E[:, None]], 1), rng=rng)
            known = {"quantity": q, "n": len(half.starts_E), "chance": mean_or_none(half.chance_E)}
            told = _told({"rank": 0, "hit": 1}, about.estimates())
            rows.append({"method": "the same, other action noise", "world": "", "kind": "ceiling", **known, **told})
    judge([r for r in rows if r["kind"] == "method"], tests, smallest)
    return rows


def mean_or_none(x_E: np.ndarray) -> float | None:
    return float(x_E.mean()) if len(x_E) else None


def _put(columns: list[np.ndarray], values_E: np.ndarray) -> int:
    """One more column, and its number."""
    columns.append(values_E)
    return len(columns) - 1


def _told(at: Mapping[str, int], estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Means and intervals, by the names of their columns."""
    if not estimates:
        return {}
    out: dict[str, float] = {}
    for name, i in at.items():
        value, low, high, _ = estimates[i]
        if name.startswith("rank"):  # a correlation; the bootstrapped ends know no bounds
            low, high = max(low, -1.0), min(high, 1.0)
        out |= {name: value, f"{name} low": low, f"{name} high": high}
    return out


class Tested(NamedTuple):
    """One number that a verdict is made of."""

    mean: Estimate
    mean_90: Estimate
    p: float


def above(mean: Estimate, mean_90: Estimate, q: float, smallest: float) -> str:
    """yes, no or open: is a mean larger than the smallest size of interest?"""
    if mean.n < LEAST_STARTS:
        return OPEN
    if mean.low > smallest and q <= ALPHA:
        return YES
    return NO if gain_not_met(mean.value, mean_90.high, mean.n, 0.9) < smallest else OPEN


def judge(rows: Sequence[dict[str, Any]], tests: Mapping[str, Sequence[Tested | None]], smallest: float) -> None:
    """q, the four answers and the verdict of every method's row, into it; one family of tests a part."""
    limits = dict.fromkeys(PARTS, smallest) | {"hit": SMALLEST[1]}
    for part, some in tests.items():
        q = benjamini_hochberg([np.nan if t is None else t.p for t in some])
        for row, t, of in zip(rows, some, q, strict=True):
            row[f"{part}_q"] = float(of)
            row[f"{part}_answer"] = NOT_ASKED if t is None else above(t.mean, t.mean_90, float(of), limits[part])
    for row, of in zip(rows, benjamini_hochberg([r.get("sign_p", np.nan) for r in rows]), strict=True):
        row["sign_q"] = float(of)
    for row in rows:
        row["finds"], row["why"] = verdict({part: row[f"{part}_answer"] for part in PARTS})
        if row["given"]:
            row["finds"], row["why"] = BY_CONSTRUCTION, "it is shown the game without the object"


def verdict(answers: Mapping[str, str]) -> tuple[str, str]:
    """(yes, no or open; what it rests on, in words).  A part that was not asked leaves it open."""
    if NO in answers.values():
        return NO, "; ".join(NO_WHY[part] for part, said in answers.items() if said == NO)
    left = [WHY[part] for part, said in answers.items() if said != YES]
    return (OPEN, "not shown: " + ", ".join(left)) if left else (YES, "")
