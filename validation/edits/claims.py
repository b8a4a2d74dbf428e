"""What is claimed of edits, in the five statements of validation.interventions.verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from core.artefacts import Result
from core.stats import ALPHA, band_of, benjamini_hochberg, few
from validation.edits.controls import another
from validation.edits.course import Way
from validation.hypotheses.grammar import EditHypothesis
from validation.interventions import verdicts
from validation.interventions.claims import claim_of_need, no_claim, parts_of, squared_errors
from validation.interventions.statistics import Controls, Effects, needs_of, special_p
from validation.interventions.verdicts import NOT_ASKED, OPEN, YES
from validation.paired.course import in_words

SEEN = "seen"  # it exists; nothing foretold it
ASKED = ("exists", "size", "special")
RIVALS = ("no change", "held frame")


class Against(NamedTuple):
    """What a claim is held against."""

    controls: Controls
    starts: int  # at which there is something else to make the edit to


class Judged(NamedTuple):
    """What the runs of a study gave, by what was changed: {quantity: [N]}, NaN at starts that it is not about."""

    seen: dict[str, dict[str, dict[str, np.ndarray]]]  # by way
    foretold: dict[str, dict[str, np.ndarray]]  # {} without a simulator
    against: dict[EditHypothesis, Against]
    unaltered: Mapping[str, np.ndarray]  # the quantities themselves
    expected: Mapping[str, np.ndarray]  # the same in the simulator; {} without one
    game: str


def way_of(h: EditHypothesis) -> Way:
    """The way that a hypothesis is about."""
    return Way(h.through or "whole", h.since)


def verdict_of(row: Mapping[str, Any]) -> str:
    """confirmed, refuted, no effect or open; seen, where nothing was foretold.  What has nothing to be special among is
    judged without that."""
    there, special = row["exists"], YES if row["special"] == NOT_ASKED else row["special"]
    if row["size"] != NOT_ASKED:
        smallest = row["smallest"] / row["spread"]
        return verdicts.verdict(there, row["size"], special, row["foretold"] / row["spread"], smallest)
    if there == YES and special == YES:
        return SEEN
    return verdicts.NO_EFFECT if there == verdicts.NO else OPEN


def claims_of(
    result: Result, asked: Sequence[tuple[EditHypothesis, str]], judged: Judged, smallest: float,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:  # fmt: skip
    """A claim a hypothesis and its quantity; the rows of ``needs`` go into the result.  smallest: share of events."""
    rows = {(row["edit"], row["way"], row["quantity"]): row for row in result.tables["effects"]}
    found = [(h, q, rows.get((h.change, way_of(h).name, q))) for h, q in asked]
    needs = _needs([h for h, _ in asked if h.role], judged, smallest, rng)
    result.tables["needs"] = list(needs.values())
    # What is claimed by name is a family of tests.
    p = [np.nan if row is None or h.role else _special_p(h, q, row, judged) for h, q, row in found]
    out: list[dict[str, Any]] = []
    for (h, q, row), special_q in zip(found, benjamini_hochberg(p), strict=True):
        if h.role:
            out.append(_claim_of_need(h, needs[h], row, judged))
        elif row is None:
            out.append(no_claim(h, _why_not(h, q, judged)))
        else:
            out.append(_claim(h, {**row, "special_q": float(special_q)}, judged))
    return out


def _why_not(h: EditHypothesis, quantity: str, judged: Judged) -> str:
    """Why there is no row of a claim."""
    way = way_of(h).name
    effects = judged.seen[h.change].get(way, {})
    n = int((~np.isnan(next(iter(effects.values())))).sum()) if effects else 0
    if n < 2:
        return f"it can be made {way} at {n} starts"
    if quantity in effects:
        return f"what it is claimed to change, {in_words(quantity)}, is the same at all starts, with it and without"
    return f"what it is claimed to change, {in_words(quantity)}, is not measured {way}"


def _special_p(h: EditHypothesis, quantity: str, row: Mapping[str, Any], judged: Judged) -> float:
    """p that another choice of what is edited does as much; NaN without others."""
    if h not in judged.against:
        return float("nan")
    return special_p(quantity, row["effect"], judged.against[h].controls)


def _claim(h: EditHypothesis, row: dict[str, Any], judged: Judged) -> dict[str, Any]:
    """A claim in words from its row."""
    row |= {"special": verdicts.special(row["special_q"])}
    row |= {"verdict": verdict_of(row)}
    unit = row["unit"]
    seen = f"{row['effect']:+.3g} [{row['low']:+.3g}, {row['high']:+.3g}] {unit}"
    text = f"'{h.name}' changes {in_words(row['quantity'])}: {seen} in the real game (n = {row['n']}{few(row['n'])})"
    told = "foretold" in row
    if told:
        text += f", foretold {row['foretold']:+.3g} [{row['foretold_low']:+.3g}, {row['foretold_high']:+.3g}]"
    if row["verdict"] == SEEN:
        said = "it exists; nothing foretold it"
    elif row["verdict"] == verdicts.NO_EFFECT and not told:
        said = "no effect of interest"
    elif row["verdict"] == OPEN:
        undecided = [row[name] in (OPEN, verdicts.NO) for name in ASKED]
        said = "open: " + ", ".join(verdicts.NAMES[name] for name, open_ in zip(ASKED, undecided, strict=True) if open_)
    else:
        said = verdicts.sentence(row["verdict"], row)
    words = {
        "exists": f"{seen}; the smallest of interest is {row['smallest']:.2g}; q = {row['q']:.2g}{verdicts.among(row)}"
        f"{verdicts.too_few(row['n'], row['starts_for_no'])}",
        "size": f"foretold {row['foretold']:+.3g} {unit}, seen {row['effect']:+.3g}" if told else "nothing foretold it",
        "special": _against(h, row, judged),
        "through_world": _through(row),
        "needed": squared_errors(row, RIVALS) if told else "nothing foretold it",
    }  # fmt: skip
    said += verdicts.too_few(row["n"], row["starts_for_no"], row["verdict"])
    text += f": {said}{f'; {_beyond(row)}' if 'beyond_pixels' in row else ''}."
    claim = {"headline": True, "hypothesis": h.name, **row, "sentence": said, "text": text}
    return claim | {"parts": parts_of(row, words)}


def _beyond(row: Mapping[str, Any]) -> str:
    return f"beyond what is seen {row['beyond_pixels']:+.3g} [{row['beyond_low']:+.3g}, {row['beyond_high']:+.3g}]"


def _through(row: Mapping[str, Any]) -> str:
    """What *through the world* was asked of, in words."""
    return f"{_beyond(row)} {row['unit']}" if "beyond_pixels" in row else "there is one way alone"


def _against(h: EditHypothesis, row: Mapping[str, Any], judged: Judged) -> str:
    """What *special* was asked against, in words."""
    if not (what := another(h.edit, judged.game)):
        return "there is nothing of its kind to make the same edit to"
    if h not in judged.against:
        return f"it was not asked, or no picture allows the same edit {what}"
    against = judged.against[h]
    (draws,) = against.controls.real.values()
    low, high = band_of(draws[against.controls.law_C == 0].mean(1), ALPHA)
    return (
        f"against the same edit {what}, or it itself, chosen at random ({against.starts} of {draws.shape[1]} starts "
        f"have another): q = {row['special_q']:.2g}; 95 % of such choices give {low:+.3g} to {high:+.3g}"
    )


# What an event needs


def _needs(
    hypotheses: Sequence[EditHypothesis], judged: Judged, smallest: float, rng: np.random.Generator
) -> dict[EditHypothesis, dict[str, Any]]:
    """The row of ``needs_of`` of every hypothesis of an event."""
    if not hypotheses:
        return {}
    events = [q for q in judged.unaltered if q.startswith(("event:", "first:"))]
    told = {q: np.stack([judged.foretold[h.change][q] for h in hypotheses]) for q in events}
    own = {q: np.stack([judged.seen[h.change]["whole"][q] for h in hypotheses]) for q in events}
    own = {q: np.where(np.isnan(told[q]), np.nan, v) for q, v in own.items()}
    nothing = (float("nan"), float("nan"))
    effects = Effects(dict(judged.unaltered), {"own": own}, {"own": told}, dict(judged.expected), {}, {}, nothing)
    controls = {h: judged.against[h].controls for h in hypotheses if h in judged.against}
    rows = needs_of(effects, hypotheses, controls, smallest, rng)
    for row in rows:
        if row["special"] == NOT_ASKED and row["share"] is not None:
            row["verdict"] = verdicts.verdict(row["exists"], row["size"], YES, row["foretold"], smallest)
    return dict(zip(hypotheses, rows, strict=True))


def _claim_of_need(
    h: EditHypothesis, row: Mapping[str, Any], effect: Mapping[str, Any] | None, judged: Judged
) -> dict[str, Any]:
    """The claim that an edit makes of an event; effect: its row of the table of effects, if the event varies."""
    about_world = {name: effect[name] for name in ("through_world", "needed")} if effect else {}
    claim = claim_of_need(row, about_world, "")
    if row["share"] is not None:
        claim["parts"]["special"]["words"] = _against(h, row, judged)
    if effect and row["share"] is not None:
        claim["parts"]["needed"]["words"] = squared_errors(effect, RIVALS)
        claim["parts"]["through_world"]["words"] = _through(effect)
    return claim
