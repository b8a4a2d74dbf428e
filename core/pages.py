"""Interactive pages: one HTML file with its data and its script inside, which asks no server for anything.

What a page shows is its caller's; this is how data get into it, how it looks, and the colours that pages and figures
share.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from core.figures import as_rgb

NOISE = -1  # the label of what HDBSCAN leaves in no cluster
UNLABELLED = -2  # the label of what was not clustered
NOISE_COLOUR, UNLABELLED_COLOUR = "#9a9a9a", "#e3e1da"
DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "float32", "float64")  # those a browser has typed arrays for

# What the page may load: nothing from anywhere, so that it also works offline and tells nobody that it was opened.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"

BASE = """
:root { --ink: #1d2329; --soft: #5b6570; --paper: #fbfaf7; --card: #ffffff; --line: #dcd9d0; --accent: #1f5f8b; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td.n, th.n { text-align: right; }
"""  # of every page

STYLE = """
body { padding: .9rem 1.2rem 1.2rem;
  font: 14px/1.45 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; }
h1 { font-size: 1.2rem; line-height: 1.3; margin: 0 0 .1rem; }
h2 { font-size: .95rem; margin: 1rem 0 .3rem; }
p { margin: .2rem 0; } .soft { color: var(--soft); }
label { display: inline-flex; align-items: center; gap: .4rem; }
input[type=range] { width: 100%; accent-color: var(--accent); }
select, button { font: inherit; color: inherit; background: var(--card); border: 1px solid #b9b5aa; border-radius: 5px;
  padding: .15rem .5rem; }
button { cursor: pointer; min-width: 2.3rem; }
canvas { display: block; background: var(--card); border: 1px solid var(--line); border-radius: 5px; }
table { font-size: .88rem; width: 100%; }
td, th { padding: .1rem .5rem .1rem 0; text-align: left; font-weight: normal; border-bottom: 1px solid var(--line); }
td.n, th.n { padding-right: 0; }
.swatch { display: inline-block; width: .85rem; height: .85rem; border-radius: 3px; margin-right: .4rem;
  vertical-align: -.1rem; border: 1px solid #0003; }
noscript { color: #a3341f; }
"""

QUALITY = 85  # of the WebP pictures of frames
DATA = 'const page = JSON.parse(byId("data").textContent);\n'
SCRIPT = Path(__file__).with_suffix(".js")  # what every page's script stands on


def bytes_of(array: np.ndarray) -> bytes:
    """Its bytes, little-endian, as browsers read them."""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def packed(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON: dtype, shape and its little-endian bytes in base64.  ValueError for a dtype browsers lack."""
    if array.dtype.name not in DTYPES:
        raise ValueError(f"a page cannot hold an array of {array.dtype}; use one of {', '.join(DTYPES)}")
    data = base64.b64encode(bytes_of(array)).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "base64": data}


def sheet(frames_NHWC: np.ndarray, columns: int, *, lossless: bool = False, effort: int = 4) -> bytes:
    """Frames uint8 [N, H, W, channels] (``as_rgb``) as one WebP picture, so many beside each other.  effort: 0 (fast)
    to 6 (small)."""
    from PIL import Image

    count, height, width, _ = frames_NHWC.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    whole = np.zeros((rows * columns, height, width, 3), np.uint8)
    whole[:count] = as_rgb(frames_NHWC)
    flat = whole.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(rows * height, columns * width, 3)
    out = io.BytesIO()
    options = {"lossless": True, "method": effort} if lossless else {"quality": QUALITY, "method": effort}
    Image.fromarray(flat).save(out, "WEBP", **options)
    return out.getvalue()


def document(title: str, body: str, data: Mapping[str, Any], script: Path, style: str = "") -> str:
    """A whole interactive page.  body: HTML; data: JSON values and what ``packed`` returns, ``page`` in the script;
    style: CSS."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")  # so that no tag ends here
    return html(
        title,
        STYLE + style,
        f"<noscript>This page needs JavaScript; it loads nothing from anywhere.</noscript>{body}"
        f'<script type="application/json" id="data">{text}</script>'
        f"<script>{SCRIPT.read_text()}{DATA}{script.read_text()}"
        "</script>",
    )


def html(title: str, style: str, body: str) -> str:
    """A page that loads nothing from anywhere: the skeleton of every one.  style: CSS after ``BASE``."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{BASE}{style}</style></head><body>{body}</body></html>\n"
    )


def label_colours(labels: Sequence[int] | np.ndarray) -> dict[int, str]:
    """'#rrggbb' of every label that occurs, the same whoever else does: matplotlib's tab10, then tab20's pale ones
    (they repeat after 18), without their greys, which NOISE and UNLABELLED have."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    tab20 = [to_hex(colormaps["tab20"](i)) for i in range(20)]
    palette = [c for c in tab20[::2] + tab20[1::2] if len({c[1:3], c[3:5], c[5:]}) > 1]
    greys = {NOISE: NOISE_COLOUR, UNLABELLED: UNLABELLED_COLOUR}
    return {int(v): greys.get(int(v)) or palette[v % len(palette)] for v in np.unique(np.asarray(labels, np.int64))}


def label_name(label: int) -> str:
    """What a label is called: 'cluster 3', 'in no cluster' or 'not clustered'."""
    return {NOISE: "in no cluster", UNLABELLED: "not clustered"}.get(label, f"cluster {label}")


def colour_scale(name: str, steps: int = 64) -> list[str]:
    """'#rrggbb' of a matplotlib colour map at even steps from its low to its high end."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[name](v)) for v in np.linspace(0, 1, steps)]
