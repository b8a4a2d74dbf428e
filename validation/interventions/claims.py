"""What is claimed, and in which words: every claim has a sentence, a text and the five answers with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from core.stats import benjamini_hochberg, few
from validation.hypotheses.grammar import Claim, Hypothesis
from validation.interventions import verdicts
from validation.paired.course import in_words, is_own, is_share

WORLD = ("through_world", "needed")  # the two statements about the world
Row = dict[str, Any]


class Picked(NamedTuple):
    """What was claimed of a family: the chosen hypotheses with their quantities, and how the choice was made."""

    claims: list[tuple[Hypothesis, str]]
    words: str


def claims_of(
    rows: Sequence[Row], picked: Sequence[Picked], explicit: bool, verdict_of: Callable[[Row], str],
    said_of: Callable[[Row, str, bool], Row],
) -> list[Row]:  # fmt: skip
    """What was claimed, the chosen dose first and then, where directions were named, each by itself, their other doses.
    rows: effects in the real world; verdict_of: what follows from a row's answers; said_of: the claim in words of a
    row, how it was chosen, whether it is a headline."""
    of = {(row["hypothesis"], row["quantity"]): row for row in rows if "verdict" in row}
    headlines = [(h, q, of.get((h.name, q)), one.words) for one in picked for h, q in one.claims if not h.role]
    p_special = [np.nan if row is None else row.get("special_p", np.nan) for *_, row, _ in headlines]
    out: list[Row] = []
    for (h, quantity, row, how), q in zip(headlines, q_of_claims(p_special, len(picked)), strict=True):
        if row is None:
            none = no_claim(h, _why_none(h, quantity))
            out.append(none | {"direction": h.direction, "amount": h.amount})
            continue
        restate(row, float(q), verdict_of)
        out.append(said_of(row, how, True))
        if not explicit:
            doses = [r for r in of.values() if (r["direction"], r["quantity"]) == (h.direction, row["quantity"])]
            out += [said_of(r, how, False) for r in doses if r is not row and r["kind"] != "keep_only"]
    return out


def _why_none(h: Hypothesis, quantity: str) -> str:
    """Why there is no row of a claim."""
    if not quantity:
        return "it has no controls, by which a quantity is chosen, and names none (on QUANTITY)"
    if is_own(quantity, h.ids):
        return "what it is claimed to change is a direction that it changes itself"
    return "what it is claimed to change does not vary"


def q_of_claims(p: Sequence[float], families: int) -> np.ndarray:
    """The q of being special: one family's p holds for all that was chosen of it; several are a family of tests."""
    return np.asarray(p, np.float64) if families == 1 else benjamini_hochberg(p)


def restate(row: Row, special_q: float, verdict_of: Callable[[Row], str]) -> None:
    """A row's verdict again, as one of the claims of a study: with their q of being special."""
    row |= {"special_q": special_q, "special": verdicts.special(special_q)}
    row["verdict"] = verdict_of(row)


def about_starts(said: Iterable[dict[str, Any]], words: str) -> None:
    """Put where all starts are (``started_in``; '': anywhere) in front of the ``text`` of claims and of the gate."""
    for one in said if words else ():
        one["text"] = f"At starts {words}: {one['text']}"


def no_claim(h: Claim, why: str) -> Row:
    """In the place of a claim of which nothing can be said."""
    text = f"'{h.name}': {why}, so there is no claim."
    return {"hypothesis": h.name, "verdict": verdicts.OPEN, "headline": True, "sentence": "open", "text": text,
            "parts": {}}  # fmt: skip


def claim_of(row: Mapping[str, Any], how: str, headline: bool) -> dict[str, Any]:
    """A claim in words from its row of the real world.  how: it was chosen."""
    subject = f"'{row['hypothesis']}'"
    if row["direction"] is not None and row["kind"] in ("shift", "collapse"):
        to = f"Setting {row['direction']} to its mean"
        way = to if row["kind"] == "collapse" else f"Adding {row['amount']:+g} to {row['direction']}"
        words = row["hypothesis"].split()[2 if row["kind"] == "collapse" else 4 :]
        subject = {(): way, ("always",): f"{way} at every step"}.get(tuple(words), subject)
    said = verdicts.sentence(row["verdict"], row)
    q, unit = row["quantity"], row["unit"]
    text = (
        f"{subject} changes {in_words(q)}: foretold {row['foretold']:+.3g} {unit}, seen {row['observed']:+.3g} "
        f"[{row['low']:+.3g}, {row['high']:+.3g}] in the real world (n = {row['n']} starts{few(row['n'])}): {said}"
        f"{verdicts.too_few(row['n'], row['starts_for_no'], row['verdict'])}."
    )
    return {**row, "headline": headline, "sentence": said, "text": text, "parts": parts_of(row, _numbers(row, how))}


def beyond_memory(row: Mapping[str, Any]) -> str:
    """What runs through memory and what through the world, in numbers."""
    if row.get("memory") is None:
        return "memory alone cannot change it, by construction, so there is nothing to compare"
    return (
        f"memory alone gives {row['memory']:+.3g}; beyond it {row['world_effect']:+.3g} [{row['world_low']:+.3g}, "
        f"{row['world_high']:+.3g}] {row['unit']}"
    )


def squared_errors(row: Mapping[str, Any], rivals: Iterable[str], scale: str = "") -> str:
    """How well the simulator foretold beside predictions that need no world, in numbers.  scale: of the errors."""
    errors = [
        f"{name} {row[f'error minus {name}']:+.2g} [{row[f'{name} low']:+.2g}, {row[f'{name} high']:+.2g}]"
        for name in rivals
    ]
    return f"squared error of the simulator minus that of each prediction without a world{scale}: " + "; ".join(errors)


def about_the_world(row: Mapping[str, Any]) -> dict[str, str]:
    """The two statements about the world in numbers."""
    scale = "" if is_share(row["quantity"]) else ", in squared spreads"
    return {"through_world": beyond_memory(row), "needed": squared_errors(row, verdicts.RIVALS, scale)}


def against_controls(row: Mapping[str, Any], how: str) -> str:
    """How an effect stands beside its controls: its p or, of several claims, the q."""
    by_world = row.get("special_by_world", False)
    p = "p" if row["special_q"] == row["special_p"] else "q"
    return (
        f"against {row['random_n']} controls that occur in the data, {how}: {p} = {row['special_q']:.2g}"
        f"{' for what runs through the world' if by_world else ''}; 95 % of them give {row['random_low']:+.3g} to "
        f"{row['random_high']:+.3g}{' in all' if by_world else ''}"
    )


def parts_of(answers: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The five statements, each with its answer and the numbers behind it in words."""
    return {name: {"answer": str(answers[name]), "words": words[name]} for name in verdicts.NAMES}


def _numbers(row: Mapping[str, Any], how: str) -> dict[str, str]:
    """The numbers behind the five statements in words."""
    unit = row["unit"]
    ratio = f"{row['observed'] / row['foretold']:.2g} times that" if row["foretold"] else "nothing"
    words = {
        "exists": f"the mean effect is {row['observed']:+.3g} [{row['low']:+.3g}, {row['high']:+.3g}] {unit}; the "
        f"smallest of interest is {row['smallest']:.2g}; q = {row['q']:.2g}{verdicts.among(row)}"
        f"{verdicts.too_few(row['n'], row['starts_for_no'])}",
        "size": f"foretold {row['foretold']:+.3g} {unit}, seen {row['observed']:+.3g}: {ratio}",
        "special": "it has no controls",
        **about_the_world(row),
    }
    if row.get("random_n"):
        words["special"] = against_controls(row, f"chosen in the same way ({how})")
    return words


def claim_of_need(row: Mapping[str, Any], effect: Mapping[str, Any], how: str) -> dict[str, Any]:
    """The claim that a hypothesis makes of an event, from its row of needs; ``effect``: its row of the table of effects
    on whether the event happens, which has the two statements about the world."""
    did, undid = ("stops", "brings it about") if row["role"] == "necessary" else ("brings about", "stops it")
    of = "where it happens anyway" if row["role"] == "necessary" else "where it does not happen by itself"
    subject = f"'{row['hypothesis']}' is {row['role']} for '{row['event']}'"
    answers = {"exists": row["exists"], "size": row["size"], "special": row["special"]}
    answers |= {name: effect.get(name, verdicts.NOT_ASKED) for name in WORLD}
    if row["share"] is None:
        words = dict.fromkeys(answers, f"there is no start {of}")
        said = verdicts.sentence(verdicts.OPEN, answers)
        text = f"{subject}: there is no start {of}, so nothing can be said."
        return {**row, "headline": True, "sentence": said, "text": text, "parts": parts_of(answers, words)}
    said = verdicts.sentence(row["verdict"], answers)
    chance = ""
    if row["role"] == "necessary":  # what the simulator does not see coming it cannot say to be stopped
        chance = f", of a chance of {row['expected']:.0%} that it gives the event there without the change"
    when, beside = _times(row)
    words = {
        "exists": f"{row['share']:.0%} [{row['low']:.0%}, {row['high']:.0%}] of the starts; q = {row['q']:.2g}"
        f"{beside}",
        "size": f"seen {row['share']:.0%}, foretold {row['foretold']:.0%}{chance}",
        "special": "it has no controls" if row.get("random_n") is None else
        f"{row['random_n']} controls that occur in the data ({how}) give {row['random_low']:.0%} to "
        f"{row['random_high']:.0%}; q = {row['special_q']:.2g}",
        **(about_the_world(effect) if "verdict" in effect else dict.fromkeys(WORLD, "the event never varies")),
    }  # fmt: skip
    contrary = f", and {undid} at {row['contrary']} of the {row['contrary_n']} others" if row["contrary_n"] else ""
    share = f"{row['share']:.0%} [{row['low']:.0%}, {row['high']:.0%}]"
    text = (
        f"{subject}: within {row['horizon']} steps it {did} the event at {share} of the real starts {of} (n = "
        f"{row['n']}{few(row['n'])}){when}{contrary}; the simulator foretold {row['foretold']:.0%}{chance}: {said}."
    )
    return {**row, "headline": True, "sentence": said, "text": text, "parts": parts_of(answers, words)}


def _times(row: Mapping[str, Any]) -> tuple[str, str]:
    """(when the event comes that is stopped or brought about, how often it comes later or sooner than without the
    change), in words; '' where there is none."""
    when = beside = ""
    if row["came_median"] is not None:
        first, median, last = (f"{row[f'came_{name}']:.3g}" for name in ("first", "median", "last"))
        by, less = ("without", "with") if row["role"] == "necessary" else ("with", "without")
        when = f", there after {first} to {last} steps {by} the change (median {median}), {less} it later or never"
    if row["later"] or row["sooner"]:
        beside = (
            f"; of those that still happen {row['later']} come later than without the change, {row['sooner']} sooner"
        )
    return when, beside
