"""What the report says, as views of the panel: the answer first, with its evidence as links; then its sections."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from core import artefacts, directions, pages
from core.artefacts import Result
from core.figures import are_pictures, minus
from validation.panel.contents import COLUMNS, Block
from validation.panel.page import View
from validation.report import claims
from validation.report.commands import repeat
from validation.report.contents import AGAIN, Parts
from validation.report.lineage import Chosen
from validation.report.page import box, details, key, number, paragraph, tag, text_of

HEAVY = 60_000  # characters of a picture that is made lighter
DRAWN = 80  # quality of those
FILMED = ("real world, unaltered", "real world, changed", "simulator, unaltered", "simulator, changed")
SHORT = {
    "How true the simulator is": "Fidelity", "Directions in the hidden state": "Hidden states",
    "What the memory does by itself": "Memory", "What drives what": "Coupling", "The tested claims": "Claims",
    "The agent and its world": "World", "What this does not show": "Limits", "Where it comes from": "Provenance",
}  # fmt: skip


def first_page(parts: Parts, chosen: Chosen, bases: Collection[str]) -> View:
    """What was asked and what came out in two sentences, with the gate; then the evidence, each a link.  bases: the
    kinds whose directions the page shows."""
    evidence = "".join(_evidence(claim, i, bases) for i, claim in enumerate(_claims(chosen)))
    links = f"<h2>The evidence</h2>{evidence}" if evidence else ""
    found = "".join(f"<li>{text_of(words)}</li>" for words in parts.findings)
    told = f'<div class="lead">{"".join(paragraph(words) for words in sentences(parts.told))}</div>'
    return View(
        "answer", "Answer",
        f'<div class="read">{told}{parts.gate}{parts.warnings}{links}'
        f'{details("What was asked and what came out", parts.answers) if parts.answers else ""}'
        f'{box(f"<h2>What was found</h2><ul>{found}</ul>")}{parts.left_out}</div>',
    )  # fmt: skip


def sentences(told: Sequence[str]) -> list[str]:
    """What was asked, and what came out with the gate's answer: two sentences a study."""
    out: list[str] = []
    gate = ""
    for words in told:
        if words.startswith("The gate"):
            gate = "T" + words.partition(". ")[0][1:]
        elif words.startswith("What was asked"):
            out.append(words)
        elif words.startswith("What came out"):
            out.append(f"{words.removesuffix('.')}; {gate[0].lower()}{gate[1:]}." if gate else words)
            gate = ""
    return out


def _claims(chosen: Chosen) -> list[dict[str, Any]]:
    """The headline claims of the studies that are shown."""
    found: list[dict[str, Any]] = []
    for run in chosen.of("interventions"):
        with artefacts.as_written(run.path):
            found += [c for c in Result.load(run.path).notes["claims"] if c.get("headline", True)]
    return found


def direction_of(claim: dict[str, Any]) -> tuple[str, int] | None:
    """The basis ('': not said) and number of the direction that a claim is about; None of one that has a label."""
    return directions.direction_of(str(claim.get("direction", "")), "")


def _evidence(claim: dict[str, Any], number_of: int, bases: Collection[str]) -> str:
    """A claim and the links to what it rests on.  bases: the kinds whose directions the page shows."""
    verdict = str(claim.get("verdict", ""))
    links = []
    known = direction_of(claim)
    if known is not None and known[0] in ("", *bases):
        kind, k = known
        to = f"#view=directions&amp;k={k}{f'&amp;basis={kind}' if kind else ''}"
        links += [
            f'<a href="{to}&amp;end=high">frames at which direction {k} is high</a>',
            f'<a href="{to}&amp;end=low">and low</a>',
            '<a href="#view=hidden_states">the heads it feeds</a>',
        ]  # fmt: skip
    links += [
        f'<a href="#view=films&amp;film={number_of}">the paired film</a>' if "filmed" in claim else "",
        '<a href="#view=interventions">the split by path</a>',
    ]  # fmt: skip
    said = text_of(str(claim.get("text", claim.get("hypothesis", ""))))
    tip = ""
    if claim.get("observed") is not None:
        what = f"{claim.get('hypothesis', '')}: {number(claim['observed'])} {claim.get('unit', '')}"
        between = f"95 % interval {number(claim.get('low'))} to {number(claim.get('high'))}"
        count = number(claim.get("n"))
        tip = f' data-tip="{text_of(f"{what}, {between}, n = {count}")}"'
    return box(
        f'<p tabindex="0"{tip}>{said} {tag(verdict, claims.KINDS.get(verdict, "none"))}</p>'
        f'<p class="links">{" · ".join(link for link in links if link)}</p>',
        claims.KINDS.get(verdict, "none"),
    )  # fmt: skip


def views_of(served: bool = False, figure: bool = False) -> list[View]:
    """The views that the scripts fill."""
    if figure:
        return [View("figure", "Figure")]
    views = [View("samples", "Samples"), View("directions", "Directions"), View("gallery", "Behaviours"),
             View("films", "Interventions"), View("bookmarks", "Bookmarks")]  # fmt: skip
    return [*views, View("live", "Live")] if served else views


def sections(parts: Parts, chosen: Chosen, made: Path) -> list[View]:
    """The report's sections, each with the command that repeats what it tells of."""
    views, taken = [], set()
    for i, section in enumerate(parts.sections):
        stage = next((run.stage for run in chosen.runs if section.run is not None and run.path == section.run), f"s{i}")
        name = stage if stage not in taken else f"{stage}_{i}"
        taken.add(name)
        line = "" if section.run is None else repeat(section.run, made.parent / AGAIN / section.run.name).line
        kind, several, _ = section.heading.partition(": ")
        heading = SHORT.get(kind, kind)
        if several and section.run is not None:  # the report tells runs of a stage apart by their paths
            heading = f"{heading}: {section.run.name}"
        if heading == "Behaviours":
            heading = "Behaviours in numbers"
        html = f'<div class="read"><h2>{text_of(section.heading)}</h2>{key()}{section.html}</div>'
        views.append(View(name, heading, lighter(html), line))
    return views


def lighter(html: str) -> str:
    """The same with its heavy pictures as WebP, which a page to look at may lose a little of."""

    def smaller(found: re.Match[str]) -> str:
        from PIL import Image

        with Image.open(io.BytesIO(base64.b64decode(found[1]))) as image:
            out = io.BytesIO()
            clear = image.mode in ("RGBA", "LA") or "transparency" in image.info
            image.convert("RGBA" if clear else "RGB").save(out, "WEBP", quality=DRAWN, method=4)
        return min(found[0], f"data:image/webp;base64,{base64.b64encode(out.getvalue()).decode()}", key=len)

    return re.sub(f"data:image/png;base64,([A-Za-z0-9+/=]{{{HEAVY},}})", smaller, html)


TOLD = ("text", "hypothesis", "quantity", "unit", "verdict", "n", "observed", "low", "high", "foretold", "filmed")


def films(chosen: Chosen) -> tuple[list[dict[str, Any]], list[Block]]:
    """(facts, pictures) of the films of every claim: the starts below each other, without and with the change, in both
    worlds."""
    facts: list[dict[str, Any]] = []
    blocks: list[Block] = []
    for run in chosen.of("interventions"):
        result = Result.load(run.path)
        filmed = 0
        for claim in (c for c in result.notes["claims"] if c.get("headline", True)):
            fact: dict[str, Any] = {k: claim.get(k) for k in TOLD}
            fact["text"] = minus(str(fact["text"] or ""))
            fact["parts"] = {name: part.get("answer") for name, part in (claim.get("parts") or {}).items()}
            frames = result.arrays.get(f"film/{filmed}") if fact["filmed"] else None
            filmed += bool(fact["filmed"])
            if frames is not None and are_pictures(frames, 3):
                starts, worlds, steps, height, width, _ = frames.shape
                blocks.append(
                    Block(f"film:{len(facts)}", pages.sheet(frames.reshape(-1, *frames.shape[3:]), COLUMNS), False)
                )
                fact |= {"block": blocks[-1].name, "starts": starts, "worlds": FILMED[:worlds], "steps": steps,
                         "height": height, "width": width}  # fmt: skip
            facts.append(fact)
    return facts, blocks
