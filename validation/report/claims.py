"""How a study of interventions stands on the page: the gate above everything else, what was asked and what came out,
and its claims as cards.  Results whose verdicts follow older rules are shown as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.artefacts import Result
from core.stats import ALPHA
from core.words import counted
from validation.paired.course import in_words
from validation.report.commands import repeat
from validation.report.lineage import Traced
from validation.report.page import Html, around, box, command, details, interval, number, paragraph, table, tag, text_of

VERDICTS = 2  # results whose verdicts follow today's rules say so
OLDER = "These verdicts follow older rules"

PARTS = {
    "exists": "The effect exists", "size": "Its size is as foretold", "special": "It is special among directions",
    "through_world": "It runs through the world", "needed": "The world was needed to foretell it",
    "members": "The ensemble's members foretell the same",
}  # fmt: skip
KINDS = {
    "yes": "good", "as foretold": "good", "confirmed": "good", "no": "bad", "wrong": "bad", "refuted": "bad",
    "open": "open",
}  # fmt: skip  # other answers decide nothing


def is_today(result: Result) -> bool:
    """Whether its verdicts follow today's rules."""
    return bool(result.notes.get("verdicts") == VERDICTS)


def _headlines(result: Result) -> list[Mapping[str, Any]]:
    """The claims that stand for the rest: of a direction that was tried in several doses, the chosen one."""
    return [claim for claim in result.notes["claims"] if claim.get("headline", True)]


# The top of the page


def gate(result: Result, where: str) -> str:
    """Whether the world was needed to foretell the late effects: the box that stands above everything else."""
    question = f"Was the world needed to foretell the late effects{where}?"
    said = result.notes.get("gate") if is_today(result) else None
    if said is None:
        return box(f"<h2>{text_of(question)} {tag('not asked', 'none')}</h2>"
                   f"{paragraph('The study follows older rules, which did not ask.')}")  # fmt: skip
    kind = KINDS.get(said["answer"], "none")
    rows = [{"of": name, "less": around(r, "value")} for name, r in said.get("against", {}).items()]
    titles = {"of": "foretold without the world, by", "less": "the simulator's squared error minus its [95 %]"}
    caption = (
        f"Below 0, the simulator is nearer to what was observed ({number(said['rows'])} late effects, in squared "
        f"smallest sizes of interest)"
    )
    return box(
        f"<h2>{text_of(question)} {tag(said['answer'], kind)}</h2>{paragraph(said['text'])}"
        f"{table(rows, caption, titles) if rows else ''}",
        kind,
    )


def _when(hypothesis: str) -> str:
    """At which steps a change is made."""
    if "always" in hypothesis.split():
        return "at every step"
    return "at several steps" if re.search(r" for \d+ steps", hypothesis) else "at one moment"


def answers(run: Traced, where: str, again: Path) -> tuple[str, list[str]]:
    """What a study asked and what came out, as HTML and as plain sentences."""
    result = Result.load(run.path)
    claims, said = _headlines(result), result.notes.get("gate")
    pairs = max((c["n"] for c in claims if c.get("n") is not None), default=0)
    when = " or ".join(sorted({_when(c["hypothesis"]) for c in claims})) or "at one moment"
    foretold = " as the simulator foretold" if run.simulators else ""
    asked = (
        f"What was asked{where}: if the agent's hidden state is changed {when}, does what follows in the real world "
        f"change{foretold}? {len(claims)} claim{'s were' if len(claims) != 1 else ' was'} tested "
        f"on up to {number(pairs)} paired starts."
    )
    if not is_today(result):
        came = f"What came out{where}: numbers, shown below without verdicts."
        return paragraph(asked) + paragraph(came) + _run_again(run, again), [asked, f"{came} {OLDER}."]
    verdicts = [str(c["verdict"]) for c in claims]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
    came = f"What came out{where}: {counts or 'no claim could be made'}."
    items = "".join(f"<li>{text_of(c['text'])} {_verdict(c)}</li>" for c in claims)
    told = [f"The gate{where}: was the world needed? {said['answer']}. {said['text']}"] if said else []
    told += [asked, came, *(str(c["text"]) for c in claims)]
    return f"{paragraph(asked)}{paragraph(came)}<ul>{items}</ul>", told


def _verdict(claim: Mapping[str, Any]) -> str:
    return tag(str(claim["verdict"]), KINDS.get(claim["verdict"], "none"))


def _run_again(run: Traced, again: Path) -> str:
    """That a result follows older rules, and what to type."""
    how = repeat(run.path, again / run.path.name)
    note = f" {how.note}" if how.note else ""
    return f"<p>{text_of(OLDER)}; run {command(how.line)} again.{text_of(note)}</p>"


# The claims and the effects


def body(run: Traced, again: Path) -> str:
    """The claims of a study."""
    result = Result.load(run.path)
    if not is_today(result):
        return _run_again(run, again) + _in_numbers(result.notes["claims"])
    rest = [claim for claim in result.notes["claims"] if not claim.get("headline", True)]
    html = "".join(map(_card, _headlines(result)))
    more = f"{counted(len(rest), 'more claim')}: other doses of the same directions"
    html += details(more, "".join(map(_card, rest))) if rest else ""
    return html + details("What the words mean", paragraph(result.notes["criteria"])) + _paths(result)


def _card(claim: Mapping[str, Any]) -> str:
    """A claim with its five answers."""
    rows = [
        {"part": words, "answer": Html(tag(part["answer"], KINDS.get(part["answer"], "none"))), "words": part["words"]}
        for name, words in PARTS.items()
        if (part := claim["parts"].get(name)) is not None
    ]
    titles = {"part": "question", "answer": "answer", "words": "in numbers"}
    told = table(rows, f"The parts of the claim on {_about(claim)}", titles) if rows else ""
    return box(f"<h3>{text_of(claim['text'])} {_verdict(claim)}</h3>{told}", KINDS.get(claim["verdict"], "none"))


def _paths(result: Result) -> str:
    """The headline effects, whole and by either path alone, in both worlds."""
    rows = [{**r, "quantity": in_words(r["quantity"]), "value": around(r, "value")} for r in result.tables["paths"]]
    titles = {
        "hypothesis": "change", "quantity": "of what", "world": "world", "path": "path", "value": "effect [95\xa0%]",
        "unit": "unit", "n": "n",
    }  # fmt: skip
    caption = "The effects that are claimed, by path, in both worlds (paths may interact, so parts need not add up)"
    return table(rows, caption, titles, most=100) if rows else ""


def _about(claim: Mapping[str, Any]) -> str:
    """What a claim is of, and on what: 'shift 13 by +2: the agent's value 8 steps later'."""
    on = ""
    if claim.get("quantity"):
        on = f": {in_words(claim['quantity'])}"
    elif claim.get("event"):
        on = f": {claim['role']} for {claim['event']}"
    return f"{claim['hypothesis']}{on}"


def _in_numbers(claims: Sequence[Mapping[str, Any]]) -> str:
    """The numbers of claims whose verdicts followed older rules."""
    rows = [
        {
            "claim": _about(c),
            "foretold": c.get("predicted_simulated"),
            "observed": around(c, "share" if "share" in c else "observed"),
            "unit": c.get("unit", "share of the starts"),
            "random": interval(c.get("random_low"), c.get("random_high")).strip() or None,
            **{k: c.get(k) for k in ("q", "n")},
        }
        for c in claims
        if "hypothesis" in c
    ]
    titles = {
        "claim": "claim", "foretold": "foretold", "observed": "observed [95 %]", "unit": "unit", "q": "q",
        "random": "random changes give", "n": "n",
    }  # fmt: skip
    return table(rows, "The claims in numbers", titles, most=100)


def late_effects(result: Result) -> str:
    """The late effects in the real world: the significant ones, and all of them folded away."""
    today = is_today(result)
    rows = [
        {
            **r,
            "quantity": f"{in_words(r['quantity'])} ({r['unit']})",
            "foretold": r.get("foretold", r.get("predicted_simulated")),
            "observed": around(r, "observed"),
            "world": around(r, "world_effect", "world_low", "world_high"),
            "random": interval(r.get("random_low"), r.get("random_high")).strip() or None,
        }
        for r in result.tables["effects"]
        if "@" in str(r["quantity"]) and r["world"] != "simulator"
    ]
    titles = {
        "hypothesis": "change", "quantity": "of what (unit)", "foretold": "foretold",
        "observed": "observed [95 %]", "q": "q",
    }  # fmt: skip
    titles |= {
        "memory": "through memory alone", "world": "whole minus memory [95 %]", "exists": "exists", "size": "size",
        "special_p": "p of special", "through_world": "through world", "needed": "world needed", "verdict": "verdict",
    } if today else {"predicted_jacobian": "first order foretold", "random": "random changes give"}  # fmt: skip
    titles["n"] = "n"
    tested = [r for r in rows if r["q"] is not None]  # not what a changed direction is itself later
    clear = sorted((r for r in tested if r["q"] <= ALPHA), key=lambda r: r["q"])
    caption = f"Late effects in the real world with q ≤ {ALPHA:g}: {len(clear)} of {len(tested)} tested"
    some = table(clear, caption, titles, most=30) if clear else paragraph(f"{caption}.")
    return some + details("All late effects in the real world", table(rows, "Late effects", titles, most=300))
