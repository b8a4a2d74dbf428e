"""A self-contained HTML page: typography, tables, pictures as base64, no request to anywhere.

What a page says is its caller's; this is only how it looks.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from core.artefacts import load_bytes

DASH = "–"
HEAVY_BYTES = 150_000  # a PNG above this is shown with 256 colours

STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5b6570; --paper: #fbfaf7; --card: #ffffff;
  --line: #dcd9d0; --accent: #1f5f8b; --good: #1b6b43; --bad: #a3341f; --open: #7a5b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e4de; --soft: #a3a9b0; --paper: #15181b; --card: #1d2125;
  --line: #363c42; --accent: #86bde6; --good: #7fd0a3; --bad: #f0917d; --open: #e0c069; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.6 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, "DejaVu Serif", serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem; }
h1, h2, h3, table, nav, figcaption, summary {
  font-family: system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; line-height: 1.3; margin: 3.2rem 0 .8rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
p, li { max-width: 42rem; }
.under { color: var(--soft); margin-top: 0; }
a { color: var(--accent); }
nav { font-size: .88rem; margin: 1.2rem 0 0; display: flex; flex-wrap: wrap; gap: .3rem 1rem; }
.summary { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--accent);
  border-radius: 6px; padding: 1rem 1.3rem; margin: 1.6rem 0; }
.summary h2 { border: 0; margin: 0 0 .4rem; padding: 0; font-size: 1.1rem; }
.summary li { margin: .45rem 0; }
.summary ul { padding-left: 1.1rem; margin: .4rem 0; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.open { color: var(--open); font-weight: 600; }
.scroll { overflow-x: auto; margin: 1rem 0; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; font-size: .84rem; line-height: 1.4; font-variant-numeric: tabular-nums; }
caption { caption-side: top; text-align: left; color: var(--soft); padding-bottom: .45rem; }
th, td { padding: .32rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; border-bottom-width: 2px; vertical-align: bottom; }
td, th { white-space: nowrap; }
td.n, th.n { text-align: right; }
td.long { white-space: normal; min-width: 17rem; }
figure { margin: 1.3rem 0; }
figure .scroll { margin: 0; background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: .5rem; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figure.wide img { min-width: 44rem; margin: 0; }
figure.pixels img { image-rendering: pixelated; }
figcaption { color: var(--soft); font-size: .86rem; line-height: 1.45; margin-top: .45rem; max-width: 42rem; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--accent); font-size: .92rem; }
code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .82em;
  overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { font-size: 16px; } main { padding: 1.4rem 1rem 3rem; } h1 { font-size: 1.6rem; } }
@media print { body { background: #fff; } details { display: block; } }
"""


def number(value: Any, digits: int = 3) -> str:
    """A number as a person reads it; a dash for what is unknown."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return DASH
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}".replace("-", "−")
    if isinstance(value, (float, np.floating)):
        value = float(value)
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"
        return text.replace("-", "−")
    return str(value)


def interval(low: Any, high: Any) -> str:
    """' [low, high]', or '' where there is none."""
    return "" if low is None or high is None else f" [{number(low)}, {number(high)}]"


def with_interval(
    row: Mapping[str, Any], low: str = "low", high: str = "high", name: str = "interval"
) -> dict[str, Any]:
    """A row with its two ends as one more cell '[low, high]', or None where there are none."""
    return {**row, name: interval(row.get(low), row.get(high)).strip() or None}


def estimate(scalar: Mapping[str, Any]) -> str:
    """A stored metric as '0.42 [0.31, 0.55] unit, n = 50'."""
    low, high = scalar.get("interval") or (None, None)
    text = number(scalar["value"]) + interval(low, high)
    text += f" {scalar['unit']}" if scalar.get("unit") not in (None, "", "1") else ""
    return text + (f", n = {number(scalar['n'])}" if scalar.get("n") is not None else "")


def paragraph(text: str) -> str:
    """Plain text as one paragraph."""
    return f"<p>{escape(text)}</p>"


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
    cls = {k: f' class="{kind}"' if (kind := _kind([row.get(k) for row in rows])) else "" for k in titles}
    head = "".join(f'<th scope="col"{cls[k]}>{escape(title)}</th>' for k, title in titles.items())
    body = "".join(
        "<tr>" + "".join(f"<td{cls[k]}>{escape(number(row.get(k)))}</td>" for k in titles) + "</tr>"
        for row in rows[:most]
    )
    return (
        f'<div class="scroll" tabindex="0"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _kind(cells: Sequence[Any]) -> str:
    """How a column is set: n (numbers and intervals, to the right), long (text that may wrap) or ''."""
    if all(isinstance(c, (int, float, np.number, type(None))) or str(c).startswith("[") for c in cells):
        return "n"
    return "long" if max(len(str(c)) for c in cells) > 40 else ""


def picture(source: Path | bytes, alt: str, caption: str, *, wide: bool = False, pixels: bool = False) -> str:
    """A PNG or GIF (bytes, or a file of a run directory) inside the page.  ``wide``: scrolls sideways on a narrow
    screen instead of shrinking; ``pixels``: enlarged without smoothing."""
    data = source if isinstance(source, bytes) else load_bytes(source.parent, source.name)
    form = "gif" if data.startswith(b"GIF8") else "png"
    data = lighter(data) if form == "png" else data
    kind = " ".join(name for name, on in (("wide", wide), ("pixels", pixels)) if on)
    return (
        f'<figure class="{kind}"><div class="scroll" tabindex="0"><img loading="lazy" alt="{escape(alt, quote=True)}" '
        f'src="data:image/{form};base64,{base64.b64encode(data).decode()}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
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
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def strip_png(frames_N: Sequence[np.ndarray], gap: int = 2, scale: int = 2) -> bytes:
    """Frames uint8 [H, W, 3] side by side on white, as PNG bytes."""
    from PIL import Image

    height, width = frames_N[0].shape[:2]
    sheet = np.full((height, len(frames_N) * (width + gap) - gap, 3), 255, np.uint8)
    for i, frame in enumerate(frames_N):
        sheet[:, i * (width + gap) : i * (width + gap) + width] = frame
    image = Image.fromarray(sheet)
    out = io.BytesIO()
    image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST).save(out, "PNG", optimize=True)
    return out.getvalue()


def figure_png(figure: Any) -> bytes:
    """A matplotlib Figure as PNG bytes."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110, facecolor="white")
    return out.getvalue()


def document(title: str, under: str, summary: Sequence[str], sections: Sequence[tuple[str, str]]) -> str:
    """The whole page.  summary: HTML list items; sections: (heading, HTML body)."""
    ids = [f"s{i}" for i in range(len(sections))]
    links = "".join(f'<a href="#{i}">{escape(h)}</a>' for i, (h, _) in zip(ids, sections, strict=True))
    body = "".join(
        f'<section id="{i}"><h2>{escape(h)}</h2>{html}</section>' for i, (h, html) in zip(ids, sections, strict=True)
    )
    items = "".join(f"<li>{item}</li>" for item in summary)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}</style></head><body><main>'
        f'<header><h1>{escape(title)}</h1><p class="under">{escape(under)}</p></header>'
        f'<div class="summary"><h2>What was found</h2><ul>{items}</ul></div>'
        f'<nav aria-label="Contents">{links}</nav>{body}</main></body></html>\n'
    )
