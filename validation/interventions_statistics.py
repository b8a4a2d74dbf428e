"""What paired runs say: effects with intervals, random bands, p and q; what an event needs; how predictions fare.

N starts (independent units), G hypotheses, C random controls, P points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from core.artefacts import Result
from core.stats import Estimate, band_of, benjamini_hochberg, bootstrap, bootstrap_mean, interval_of, sign_flip_p
from validation.interventions_hypotheses import Hypothesis
from validation.interventions_rollouts import family_of, in_words, is_late, is_own, unit_of

ALPHA = 0.05
PERMUTATIONS = 4999
RESAMPLES = 1000
CRITERIA = (
    "confirmed: the observed effect's 95 % interval excludes 0, q <= 0.05, the effect lies outside the band of the "
    "random directions (which an arbitrary direction does in 5 % of cases), and has the sign of the simulator's "
    "prediction. refuted: the interval excludes 0 with the opposite sign, or lies wholly inside the random band (the "
    "direction does no more than any other change of its size). inconclusive: anything else, or fewer than 6 starts."
)
NEEDS = (
    "necessary: of the starts at which the event happens without the change, the share at which it does not happen "
    "with it. sufficient: of those at which it does not, the share at which it does. Each start is its own "
    "counterfactual, with the same action noise (probabilities of necessity and of sufficiency; Pearl 2009, chapter "
    "9). Random changes of the same size prevent and cause events too. confirmed: the share lies above their band, and "
    "start by start above their mean (sign flips, q <= 0.05); refuted: the 95 % interval does not reach beyond the "
    "band; inconclusive: anything else, or too few starts."
)
LEAST_STARTS = 6  # fewer cannot say anything at level 0.05


class Effects(NamedTuple):
    """Effects (with minus without) of one world, {quantity: array}; NaN at starts that a hypothesis is not about."""

    hypotheses: dict[str, np.ndarray]  # [G, N]
    controls: dict[Hypothesis, dict[str, np.ndarray]]  # [C, M], on the M starts that the hypothesis is about
    unaltered: dict[str, np.ndarray]  # [N], the quantity itself
    zero_change: float  # largest |effect| of shifting by nothing; NaN if no amount is 0


def verdict(observed: float, low: float, high: float, q: float, predicted: float, band: tuple[float, float]) -> str:
    """confirmed, refuted or inconclusive, by CRITERIA."""
    sure = (low > 0 or high < 0) and q <= ALPHA
    outside = observed < band[0] or observed > band[1]
    if sure and np.sign(observed) == -np.sign(predicted) != 0:
        return "refuted"
    if sure and outside and np.sign(observed) == np.sign(predicted):
        return "confirmed"
    if low >= band[0] and high <= band[1]:
        return "refuted"
    return "inconclusive"


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
    return float(x_N.std()) if np.ptp(x_N) > 0 else 0.0


def table_of(
    world: str,
    effects: Effects,
    hypotheses: Sequence[Hypothesis],
    jacobian: Mapping[str, np.ndarray],
    simulated: Effects,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """One row a (hypothesis, quantity).  jacobian: {quantity: [G]}, first-order predictions."""
    rows: list[dict[str, Any]] = []
    owns: list[bool] = []
    names = list(effects.hypotheses)
    for g, h in enumerate(hypotheses):
        if h.is_nothing:
            continue
        here = about(effects.hypotheses[names[0]][g])
        effect_NQ = np.stack([effects.hypotheses[q][g][here] for q in names], 1)
        estimates = bootstrap_means(effect_NQ, rng)
        p_Q = np.atleast_1d(sign_flip_p(effect_NQ, rng=rng, permutations=PERMUTATIONS))
        random = {} if h.control is None else effects.controls.get(h.control, {})
        for q, estimate, p in zip(names, estimates, p_Q, strict=True):
            dreamed = float(mean_of(simulated.hypotheses[q][g])) if world == "real" else None
            row: dict[str, Any] = {
                "world": world, "hypothesis": h.name, "kind": h.kind, "direction": h.direction,
                "amount": h.amount, "quantity": q, "unit": unit_of(q),
                "predicted_jacobian": number_or_none(jacobian[q][g]), "predicted_simulated": dreamed,
                "observed": estimate.value, "low": estimate.low, "high": estimate.high, "p": float(p), "n": estimate.n,
            }  # fmt: skip
            if q in random:
                low, high = band_of(random[q].mean(1), ALPHA)
                row |= {"random_low": low, "random_high": high, "random_n": len(random[q])}
            rows.append(row)
            owns.append(is_own(q, h.ids))
    # Two families: what changes at once, and a direction itself, follow from the change and would lend the rest their
    # small p.
    certain = np.array([not is_late(row["quantity"]) or own for row, own in zip(rows, owns, strict=True)], bool)
    p = np.array([row["p"] for row in rows])
    q_values = np.where(certain, *(benjamini_hochberg(np.where(some, p, np.nan)) for some in (certain, ~certain)))
    for row, q_value in zip(rows, q_values, strict=True):
        row["q"] = float(q_value)
        predicted = row["predicted_simulated"] if world == "real" else row["predicted_jacobian"]
        if "random_low" not in row:
            row["verdict"] = "no control"
            continue
        band = (row["random_low"], row["random_high"])
        sign = float("nan") if predicted is None else predicted
        row["verdict"] = "inconclusive"
        if row["n"] >= LEAST_STARTS:
            row["verdict"] = verdict(row["observed"], row["low"], row["high"], row["q"], sign, band)
    return rows


def bootstrap_means(x_NQ: np.ndarray, rng: np.random.Generator, resamples: int = 2000) -> list[Estimate]:
    """Means of Q quantities over the same N independent starts, with 95 % intervals from shared resamples."""
    n = len(x_NQ)
    weight_RN = rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n
    low_Q, high_Q = interval_of(weight_RN @ x_NQ, n)
    ends = zip(x_NQ.mean(0), low_Q, high_Q, strict=True)
    return [Estimate(float(value), float(low), float(high), n) for value, low, high in ends]


def number_or_none(x: float) -> float | None:
    """A number for a table, None where it is undefined."""
    return float(x) if np.isfinite(x) else None


# What an event needs


def needs_of(
    worlds: Mapping[str, Effects], hypotheses: Sequence[Hypothesis], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """One row a (world, hypothesis, event, role): how often the change prevents the event, and how often it causes it
    (see NEEDS).  A hypothesis that makes a claim of its own is only asked that."""
    rows: list[dict[str, Any]] = []
    for world, effects in worlds.items():
        events = [q for q in effects.unaltered if q.startswith("event:")]
        for g, h in enumerate(hypotheses):
            for q in () if h.is_nothing else events:
                name = q.removeprefix("event:").partition("@")[0]
                for role in ("necessary", "sufficient"):
                    if not h.role or (h.role, h.event) == (role, name):
                        rows.append(_need(world, effects, g, h, q, name, role, rng))
    for row, q_value in zip(rows, benjamini_hochberg(np.array([row["p"] for row in rows])), strict=True):
        row["q"] = float(q_value)
        row["verdict"] = _need_verdict(row)
    return rows


def _need(
    world: str, effects: Effects, g: int, h: Hypothesis, q: str, name: str, role: str, rng: np.random.Generator
) -> dict[str, Any]:
    here = about(effects.hypotheses[q][g])
    base, change = effects.unaltered[q][here], effects.hypotheses[q][g][here]
    # What could be changed, and how much of it was: for 0 and 1 just counts (a simulator's events have chances).
    could = base if role == "necessary" else 1 - base

    def changed(effect: np.ndarray) -> np.ndarray:
        out: np.ndarray = np.clip(-effect if role == "necessary" else effect, 0, None)
        return out

    asked = np.flatnonzero(could > 0.5)
    row: dict[str, Any] = {
        "world": world, "hypothesis": h.name, "event": name, "role": role, "rate": number_or_none(float(mean_of(base))),
        "share": None, "low": None, "high": None, "n": len(asked), "p": float("nan"),
    }  # fmt: skip
    if not len(asked):
        return row
    estimate = bootstrap_mean((changed(change) / could.clip(1e-9))[asked], np.arange(len(asked)), rng=rng)
    row |= {"share": estimate.value, "low": estimate.low, "high": estimate.high}
    random = {} if h.control is None else effects.controls.get(h.control, {})
    if q in random:
        each_CM = (changed(random[q]) / could.clip(1e-9))[:, asked]
        null = each_CM.mean(1)
        row |= {"random_mean": float(null.mean()), "random_low": band_of(null, ALPHA)[0],
                "random_high": band_of(null, ALPHA)[1], "random_n": len(null)}  # fmt: skip
        excess = (changed(change) / could.clip(1e-9))[asked] - each_CM.mean(0)
        row["p"] = float(sign_flip_p(excess.round(12), rng=rng, permutations=PERMUTATIONS))
    return row


def _need_verdict(row: Mapping[str, Any]) -> str:
    if row.get("random_high") is None:
        return "no control" if row["n"] >= LEAST_STARTS else "inconclusive"
    if row["n"] < LEAST_STARTS:
        return "inconclusive"
    if row["share"] > row["random_high"] and row["q"] <= ALPHA:
        return "confirmed"
    return "refuted" if row["high"] <= row["random_high"] else "inconclusive"


# Patching


def recovered_of(
    worlds: Mapping[str, Effects], hypotheses: Sequence[Hypothesis], donors: Mapping[int, np.ndarray],
    rng: np.random.Generator,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row a (world, patch, quantity): how much of the way from the receiving starts to the giving ones the patch
    goes, 1 all of it.  donors: {hypothesis: the start [N] that every start takes from}."""
    rows = []
    for world, effects in worlds.items():
        for g, donor_N in donors.items():
            for q, effect_GN in effects.hypotheses.items():
                here = about(effect_GN[g])
                moved = effect_GN[g][here]
                gap = effects.unaltered[q][donor_N[here]] - effects.unaltered[q][here]
                if len(here) < 2 or abs(gap.mean()) <= 1e-9 * (1 + np.abs(gap).mean()):
                    continue

                def share(some: np.ndarray, moved: np.ndarray = moved, gap: np.ndarray = gap) -> float:
                    total = gap[some].sum()
                    return float(moved[some].sum() / total) if total else float("nan")

                value, low, high = bootstrap(share, np.arange(len(here)), rng=rng)
                rows.append({
                    "world": world, "hypothesis": hypotheses[g].name, "side": hypotheses[g].side, "quantity": q,
                    "recovered": float(value), "low": float(low), "high": float(high), "gap": float(gap.mean()),
                    "unit": unit_of(q), "n": len(here),
                })  # fmt: skip
    return rows


# How predictions fare


class Point(NamedTuple):
    """A change to predict, as a weighted sum of hypotheses: a slope over amounts, or one hypothesis."""

    label: str
    weights: dict[int, float]  # hypothesis: weight
    unit: str
    directions: tuple[int, ...]  # that the change is of

    def of(self, effect_GN: np.ndarray) -> np.ndarray:
        """For every start [N]."""
        out: np.ndarray = sum((w * effect_GN[g] for g, w in self.weights.items()), np.zeros(effect_GN.shape[1:]))
        return out


def points_of(hypotheses: Sequence[Hypothesis], all_kinds: bool) -> list[Point]:
    """One-off shifts of one direction as their least-squares slope through the origin (no shift, no effect), in the
    order of their directions; with ``all_kinds`` every other hypothesis but keep_only as a point of its own."""
    out: dict[str, Point] = {}
    rest: list[Point] = []
    for g, h in enumerate(hypotheses):
        plain = h.kind == "shift" and h.direction is not None and (h.steps, h.through, h.behaviours) == (1, "", ())
        if plain and not h.is_nothing:
            point = out.setdefault(str(h.direction), Point(str(h.direction), {}, "per unit of the direction", h.ids))
            point.weights[g] = h.amounts[0]
        elif all_kinds and h.kind != "keep_only" and not h.is_nothing:
            rest.append(Point(h.name, {g: 1.0}, "", h.ids))
    slopes = []
    for point in out.values():
        power = sum(a * a for a in point.weights.values())
        slopes.append(point._replace(weights={g: a / power for g, a in point.weights.items()}))
    return slopes + rest


def agreement(predicted_P: np.ndarray, observed_P: np.ndarray) -> np.ndarray:
    """(sign agreement, rank correlation, slope of observed on predicted through the origin); NaN where
    a constant leaves one undefined.  Exactly 0 agrees with 0 alone, so that "nothing happened" counts against
    a prediction."""
    from scipy.stats import rankdata

    same = float((np.sign(predicted_P) == np.sign(observed_P)).mean())
    # Equal values share a rank: the many effects of exactly 0 are in no order.
    ranks = rankdata(np.stack([predicted_P, observed_P]), axis=1)
    constant = len(predicted_P) < 3 or np.ptp(predicted_P) == 0 or np.ptp(observed_P) == 0
    rank = float("nan") if constant else float(np.corrcoef(ranks)[0, 1])
    power = float(predicted_P @ predicted_P)
    return np.array([same, rank, float(predicted_P @ observed_P) / power if power > 0 else float("nan")])


def headline(
    result: Result, name: str, predicted_PN: np.ndarray, observed_PN: np.ndarray, rng: np.random.Generator,
    null_RPN: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Agreement over P points of means over N starts, with an interval over starts, into ``result``.

    null_RPN: predictions that are of other changes; the band [R draws] of their agreement is the note ``band``.
    Points that were not predicted (NaN) are left out.
    """
    there = ~np.isnan(mean_of(predicted_PN)) & ~np.isnan(mean_of(observed_PN))
    predicted_PN, observed_PN = predicted_PN[there], observed_PN[there]
    if not len(predicted_PN):
        return
    n = observed_PN.shape[1]
    weight_NR = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).T.astype(np.float64)

    def resampled(x_PN: np.ndarray) -> np.ndarray:
        known = ~np.isnan(x_PN)
        with np.errstate(invalid="ignore", divide="ignore"):
            out: np.ndarray = (np.where(known, x_PN, 0) @ weight_NR) / (known @ weight_NR)
        return out

    value = agreement(mean_of(predicted_PN), mean_of(observed_PN))
    pairs_R = zip(resampled(predicted_PN).T, resampled(observed_PN).T, strict=True)
    draws = np.stack([agreement(*both[:, ~np.isnan(both).any(0)]) for both in map(np.stack, pairs_R)])
    low, high = interval_of(draws, n)
    words = (("sign_agreement", "share"), ("rank_correlation", "1"), ("slope", "1"))
    for i, (what, unit) in enumerate(words):
        result.scalar(f"{what}{name}", float(value[i]), unit, n, (float(low[i]), float(high[i])))
    result.notes[f"points{name}"] = len(predicted_PN)
    if null_RPN is not None:
        observed_P = mean_of(observed_PN)
        null = np.stack([agreement(null_PN[there].mean(1), observed_P) for null_PN in null_RPN])
        for i, (what, _) in enumerate(words[:2]):
            draws = null[:, i][~np.isnan(null[:, i])]
            if len(draws):
                ends = band_of(draws, ALPHA)
                result.scalar(f"{what}{name}_by_chance", float(draws.mean()), words[i][1], len(draws), ends)


def families(late: Sequence[str]) -> dict[str, list[str]]:
    """{family: its late quantities}, those that have any."""
    out: dict[str, list[str]] = {}
    for q in late:
        out.setdefault(family_of(q), []).append(q)
    return out


# Claims


def claim_of(
    direction: int | str, rows: Sequence[Mapping[str, Any]], scale: Mapping[str, float], kind: str, late: Sequence[str]
) -> dict[str, Any]:
    """The claim of a direction, or of a hypothesis by its name: of all its late effects, the one that the simulator
    predicts to be largest (in spreads of the quantity), tested in the real world.  So what is claimed is fixed before
    the world is asked.  Events are left to ``needs_of``."""
    key = "direction" if isinstance(direction, int) else "hypothesis"
    mine = [
        r for r in rows
        if r["world"] == "real" and r[key] == direction and r["quantity"] in late
        and (key == "hypothesis" or r["kind"] in ("shift", "collapse"))
        and family_of(r["quantity"]) != "events" and not is_own(r["quantity"], (r["direction"],))
    ]  # fmt: skip
    subject = f"Direction {direction} ({kind})" if key == "direction" else f"'{direction}' ({kind})"
    if not mine:
        text = f"{subject}: nothing measured after the change varies, so there is no claim."
        return {key: direction, "verdict": "inconclusive", "text": text}
    best = max(mine, key=lambda r: abs(r["predicted_simulated"]) / scale[r["quantity"]])
    what = "it"
    if key == "direction":
        what = "setting it to its mean" if best["kind"] == "collapse" else f"adding {best['amount']:+g} to it"
    found = {"confirmed": "confirmed", "refuted": "refuted"}.get(best["verdict"], "neither confirmed nor refuted")
    band = ", with no random changes to compare with"
    if best.get("random_n"):
        band = (
            f", where {best['random_n']} random changes of the same size give {best['random_low']:+.3g} to "
            f"{best['random_high']:+.3g}"
        )
    text = (
        f"{subject}: the simulator predicts that {what} changes {in_words(best['quantity'])} by "
        f"{best['predicted_simulated']:+.3g} {best['unit']}; in the real world it changed by {best['observed']:+.3g} "
        f"[{best['low']:+.3g}, {best['high']:+.3g}] (n = {best['n']} starts, q = {best['q']:.2g}){band}: {found}."
    )
    return {"direction": best["direction"], "verdict": best["verdict"], "text": text, **best}


def claim_of_need(row: Mapping[str, Any], dreamed: Mapping[str, Any]) -> dict[str, Any]:
    """The claim that a hypothesis makes of an event, tested in the real world."""
    did = "stops" if row["role"] == "necessary" else "brings about"
    of = "where it happens anyway" if row["role"] == "necessary" else "where it does not happen by itself"
    found = {"confirmed": "confirmed", "refuted": "refuted"}.get(row["verdict"], "neither confirmed nor refuted")
    subject = f"'{row['hypothesis']}' is {row['role']} for '{row['event']}'"
    if row["share"] is None:
        text = f"{subject}: there is no start {of}, so nothing can be said."
    else:
        band = ""
        if row.get("random_high") is not None:
            low, high = row["random_low"], row["random_high"]
            band = f", {row['random_n']} random changes of the same size {low:.0%} to {high:.0%}"
        said = "nothing to compare" if dreamed["share"] is None else f"{dreamed['share']:.0%}"
        text = (
            f"{subject}: it {did} the event at {row['share']:.0%} [{row['low']:.0%}, {row['high']:.0%}] of the real "
            f"starts {of} (n = {row['n']}, q = {row['q']:.2g}; the simulator foretold {said}){band}: {found}."
        )
    return {**row, "text": text}
