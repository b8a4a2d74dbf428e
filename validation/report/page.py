"""A self-contained HTML page: typography, tables, pictures as base64, no request to anywhere.

What a page says is its caller's; this is only how it looks.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from core import pages
from core.artefacts import load_bytes
from core.figures import (
    BAD,
    BAND,
    GOOD,
    HELD,
    MEMORY,
    NEGATIVE,
    OPEN,
    POSITIVE,
    REAL,
    SIMULATED,
    WORLD,
    enlarged,
    minus,
)
from core.stats import FEW_UNITS, between

DASH = "–"
HEAVY_BYTES = 150_000  # a PNG above this is shown with 256 colours
BROAD = 7  # columns; a table with more may be as wide as the window
LONG = 40  # characters; a cell with more is text
KEY = {
    "real world": REAL, "simulator": SIMULATED, "no world (held frame, mean)": HELD, "through memory": MEMORY,
    "through the world": WORLD, "random changes, permuted data": BAND, "more, raises": POSITIVE,
    "less, lowers": NEGATIVE,
}  # fmt: skip

STYLE = (
    f"""
:root {{ color-scheme: light dark; --good: {GOOD}; --bad: {BAD}; --open: {OPEN}; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6e4de; --soft: #a3a9b0; --paper: #15181b; --card: #1d2125;
  --line: #363c42; --accent: #86bde6; --good: #7fd0a3; --bad: #f0917d; --open: #e0c069; }} }}
"""
    + """
html { -webkit-text-size-adjust: 100%; }
body { font: 17px/1.6 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, "DejaVu Serif", serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem; }
h1, h2, h3, h4, table, nav, figcaption, summary, .key, .tag {
  font-family: system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 1rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 3.2rem 0 .8rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; line-height: 1.4; margin: 1.8rem 0 .5rem; }
p, li { max-width: 42rem; overflow-wrap: break-word; }
ul { padding-left: 1.1rem; margin: .4rem 0; }
a { color: var(--accent); }
nav { font-size: .88rem; margin: 1.2rem 0 0; display: flex; flex-wrap: wrap; gap: .3rem 1rem; }
.box { background: var(--card); border: 1px solid var(--line); border-left: 5px solid var(--soft); border-radius: 6px;
  padding: .8rem 1.3rem; margin: 1.2rem 0; }
.box > :first-child { margin-top: .2rem; } .box > :last-child { margin-bottom: .2rem; }
.box h2 { border: 0; margin: 0 0 .3rem; padding: 0; font-size: 1.1rem; }
.box li { margin: .45rem 0; }
.box.good { border-left-color: var(--good); } .box.bad { border-left-color: var(--bad); }
.box.open { border-left-color: var(--open); }
.tag { font-weight: 600; } .good > .tag, .tag.good { color: var(--good); } .tag.bad { color: var(--bad); }
.tag.open { color: var(--open); } .tag.none { color: var(--soft); font-weight: 400; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .8rem; color: var(--soft); margin: 1rem 0 0;
  padding: 0; list-style: none; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em;
  border: 1px solid #8888; }
.scroll { overflow-x: auto; margin: 1rem 0; scrollbar-width: thin; scrollbar-color: var(--soft) var(--line); }
.broad { width: max-content; min-width: 100%; max-width: min(100vw - 3rem, 76rem); position: relative; left: 50%;
  transform: translateX(-50%); }
table { font-size: .84rem; line-height: 1.4; }
.broad table { font-size: .76rem; line-height: 1.35; } .broad td, .broad th { padding: .28rem .35rem; }
.broad td.long { min-width: 10rem; }
caption { caption-side: top; text-align: left; color: var(--soft); padding-bottom: .45rem; }
th, td { padding: .32rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; border-bottom-width: 2px; vertical-align: bottom; }
td.n { white-space: nowrap; }
td.long { min-width: 14rem; }
figure { margin: 1.3rem 0; }
figure .scroll { margin: 0; background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .5rem; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figure.wide img { min-width: 44rem; margin: 0; }
figure.pixels img { image-rendering: pixelated; }
figcaption { color: var(--soft); font-size: .86rem; line-height: 1.45; margin-top: .45rem; max-width: 42rem; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--accent); font-size: .92rem; }
code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .82em;
  overflow-wrap: anywhere; }
code i { font-style: normal; white-space: nowrap; }
@media (max-width: 40rem) {
  body { font-size: 16px; } main { padding: 1.4rem 1rem 3rem; } h1 { font-size: 1.6rem; } .box { padding: .7rem .9rem; }
  .broad { width: auto; max-width: none; left: 0; transform: none; }
  .broad td, .broad td.long { padding: .1rem 0; min-width: 0; }
  table, tbody, tr, caption { display: block; } thead { display: none; }
  tr { border-top: 2px solid var(--line); padding: .4rem 0; }
  td, td.n, td.long { display: grid; grid-template-columns: minmax(6rem, 38%) 1fr; gap: .7rem; border: 0;
    padding: .1rem 0; min-width: 0; text-align: left; white-space: normal; overflow-wrap: anywhere; }
  td::before { content: attr(data-title); color: var(--soft); }
}
@media print { body { background: #fff; } details { display: block; } }
"""
)


def number(value: Any, digits: int = 3) -> str:
    """A number as a person reads it; a dash for what is unknown."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return DASH
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return minus(f"{int(value):,}")
    if isinstance(value, (float, np.floating)):
        value = float(value)
        return minus(f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}")
    return minus(str(value))


def interval(low: Any, high: Any, n: Any = None) -> str:
    """' [low, high]', with 'few' where it is from fewer than ``FEW_UNITS`` units; '' where there is none."""
    said = between(low, high, number).replace(", ", ",\xa0")
    return said + (" (few)" if said and n is not None and n < FEW_UNITS else "")


def around(row: Mapping[str, Any], value: str, low: str = "low", high: str = "high", n: str = "n") -> str:
    """A row's number with its interval: '0.42 [0.31, 0.55]'."""
    return number(row.get(value)) + interval(row.get(low), row.get(high), row.get(n))


def estimate(scalar: Mapping[str, Any]) -> str:
    """A stored metric as '0.42 [0.31, 0.55] unit, n = 50'."""
    low, high = scalar.get("interval") or (None, None)
    text = number(scalar["value"]) + interval(low, high, scalar.get("n"))
    text += f" {scalar['unit']}" if scalar.get("unit") not in (None, "", "1") else ""
    return text + (f", n = {number(scalar['n'])}" if scalar.get("n") is not None else "")


def text_of(text: str) -> str:
    """Plain text as HTML."""
    return escape(minus(text))


def paragraph(text: str) -> str:
    """Plain text as one paragraph."""
    return f"<p>{text_of(text)}</p>"


def listed(items: Sequence[str]) -> str:
    """Plain texts as a list."""
    return f"<ul>{''.join(f'<li>{text_of(item)}</li>' for item in items)}</ul>"


def command(line: str) -> str:
    """Something to type; no line is broken inside a flag."""
    words = (f"<i>{escape(word)}</i>" if word.startswith("-") else escape(word) for word in line.split(" "))
    return f"<code>{' '.join(words)}</code>"


def tag(text: str, kind: str) -> str:
    """A word in the colour of a verdict.  kind: good, bad, open or none."""
    return f'<span class="tag {kind}">{text_of(text)}</span>'


def box(html: str, kind: str = "none") -> str:
    """Something set apart, its edge in the colour of a verdict."""
    return f'<div class="box {kind}">{html}</div>'


class Html(str):
    """Text that is HTML already: a table does not escape it."""


def table(
    rows: Sequence[Mapping[str, Any]], caption: str, titles: Mapping[str, str] | None = None, most: int = 24
) -> str:
    """Rows under a caption.  ``titles`` names (and orders, and chooses) the columns; without it all
    columns stand under their own names.  More than ``most`` rows are cut, and the caption says so."""
    if not rows:
        return paragraph(f"{caption}: no rows.")
    titles = {k: k.replace("_", " ") for k in rows[0]} if titles is None else titles
    if len(rows) > most:
        caption += f" (the first {most} of {len(rows)} rows)"
    kind = {k: f' class="{name}"' if (name := _kind([row.get(k) for row in rows])) else "" for k in titles}
    head = "".join(f'<th scope="col"{kind[k]}>{text_of(title)}</th>' for k, title in titles.items())
    body = "".join(
        "<tr>" + "".join(
            f'<td{kind[k]} data-title="{escape(title, quote=True)}">{_cell(row.get(k))}</td>'
            for k, title in titles.items()
        ) + "</tr>"
        for row in rows[:most]
    )  # fmt: skip
    broad = " broad" if len(titles) > BROAD else ""
    return (
        f'<div class="scroll{broad}" tabindex="0"><table><caption>{text_of(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    # One element, so that a stacked cell has two parts: its title and this.
    return f"<span>{value if isinstance(value, Html) else escape(number(value))}</span>"


def _kind(cells: Sequence[Any]) -> str:
    """How a column is set: n (numbers, to the right), v (with intervals, which may wrap), long (text) or ''."""
    if all(isinstance(c, (int, float, np.number, type(None))) for c in cells):
        return "n"
    if all(re.fullmatch(r"[−\d.,e–]*( ?\[.*\]( \(few\))?)?", number(c)) for c in cells):
        return "v"
    return "long" if max(len(re.sub(r"<[^>]*>", "", str(c))) for c in cells) > LONG else ""


def picture(source: Path | bytes, alt: str, caption: str, *, wide: bool = False, pixels: bool = False) -> str:
    """A PNG or GIF (bytes, or a file of a run directory) inside the page.  ``wide``: scrolls sideways on a narrow
    screen instead of shrinking; ``pixels``: enlarged without smoothing."""
    data = source if isinstance(source, bytes) else load_bytes(source.parent, source.name)
    form = "gif" if data.startswith(b"GIF8") else "png"
    data = lighter(data) if form == "png" else data
    kind = " ".join(name for name, on in (("wide", wide), ("pixels", pixels)) if on)
    inline = f"data:image/{form};base64,{base64.b64encode(data).decode()}"
    return (
        f'<figure class="{kind}"><div class="scroll" tabindex="0"><img loading="lazy" '
        f'alt="{escape(minus(alt), quote=True)}" src="{inline}"></div>'
        f"<figcaption>{text_of(caption)}</figcaption></figure>"
    )


def lighter(png: bytes) -> bytes:
    """A heavy PNG with the 256 colours that suit it best, if that is smaller: the page is looked at, the file
    in the run directory stays as it is."""
    from PIL import Image

    if len(png) <= HEAVY_BYTES:
        return png
    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return min(png, out.getvalue(), key=len)


def details(summary: str, body: str) -> str:
    """Something folded away under one line."""
    return f"<details><summary>{text_of(summary)}</summary>{body}</details>"


def strip_png(frames_N: Sequence[np.ndarray], gap: int = 2, scale: int = 2) -> bytes:
    """Frames uint8 [H, W, 3 or 1] side by side on white, as PNG bytes."""

    height, width = frames_N[0].shape[:2]
    sheet = np.full((height, len(frames_N) * (width + gap) - gap, 3), 255, np.uint8)
    for i, frame in enumerate(frames_N):
        sheet[:, i * (width + gap) : i * (width + gap) + width] = frame
    out = io.BytesIO()
    enlarged(sheet, sheet.shape[1] * scale, sheet.shape[0] * scale).save(out, "PNG", optimize=True)
    return out.getvalue()


def figure_png(figure: Any) -> bytes:
    """A matplotlib Figure as PNG bytes."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110, facecolor="white")
    return out.getvalue()


def key() -> str:
    """What the colours of all figures mean."""
    return f"""<ul class="key" aria-label="Colours">{
        "".join(f'<li><i style="background:{colour}"></i>{name}</li>' for name, colour in KEY.items())
    }</ul>"""


def document(title: str, top: str, findings: Sequence[str], sections: Sequence[tuple[str, str]]) -> str:
    """The whole page.  top: HTML below the title, before anything else; findings: HTML list items; sections: (heading,
    HTML body)."""
    ids = [f"s{i}" for i in range(len(sections))]
    links = "".join(f'<a href="#{i}">{text_of(h)}</a>' for i, (h, _) in zip(ids, sections, strict=True))
    body = "".join(
        f'<section id="{i}"><h2>{text_of(h)}</h2>{html}</section>' for i, (h, html) in zip(ids, sections, strict=True)
    )
    found = f"<h2>What was found</h2><ul>{''.join(f'<li>{item}</li>' for item in findings)}</ul>"
    return pages.html(
        minus(title),
        STYLE,
        f"<main><header><h1>{text_of(title)}</h1></header>{top}{box(found)}"
        f'<nav aria-label="Contents">{links}</nav>{key()}{body}</main>',
    )
