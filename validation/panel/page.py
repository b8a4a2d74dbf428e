"""The panel's page, written piece by piece: what is said of the runs, the scripts, and the data that these unpack.

The scripts stand before the data, so that the first picture is drawn while the rest is still being read.  The policy
names the script by its hash: no other one runs, whatever a file says.  Text from files is set as text by the scripts
and escaped by validation.report; it is never markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import IO, Any, NamedTuple

from core import pages
from core.figures import minus
from core.files import write_atomically, writing
from validation.panel.contents import Block
from validation.report.page import STYLE as REPORT, text_of

PAGE = "panel.html"
DATA = "data"  # the directory of the parts that the page loads when it shows them
SCRIPTS = ("data.js", "draw.js", "filters.js", "samples.js", "views.js", "studies.js", "live.js", "start.js")
LARGE = ("frames:", "real:", "maps:", "film:")  # blocks that stand in files of their own, unless there is one file


class View(NamedTuple):
    """A tab of the page.  html: what it holds before the scripts add to it; command: what made what it shows."""

    id: str
    heading: str
    html: str = ""
    command: str = ""


def policy(script: str, served: bool) -> str:
    """Nothing from anywhere; one script, by its hash, and parts of the page that lie beside it."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    more = "; connect-src 'self'" if served else ""
    return (
        f"default-src 'none'; script-src 'sha256-{digest}' 'self'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"base-uri 'none'; form-action 'none'{more}"
    )


def script() -> str:
    """All scripts, one after the other."""
    here = Path(__file__).parent
    return "".join(["\n", pages.SCRIPT.read_text(), *((here / name).read_text() for name in SCRIPTS)])


def style() -> str:
    """The report's, and what the panel adds."""
    return pages.BASE + REPORT + (Path(__file__).parent / "panel.css").read_text()


def encoded(block: Block) -> str:
    """A block as text: its bytes, compressed where it asks for it, in base64."""
    return base64.b64encode(compressed(block.data) if block.packed else block.data).decode()


def compressed(data: bytes) -> bytes:
    """The smaller of two ways to deflate: of maps, which are mostly noise, chance matches cost more than they save."""

    def deflated(strategy: int) -> bytes:
        c = zlib.compressobj(9, strategy=strategy)
        return c.compress(data) + c.flush()

    return min(deflated(zlib.Z_DEFAULT_STRATEGY), deflated(zlib.Z_RLE), key=len)


def as_json(values: Mapping[str, Any]) -> str:
    """JSON that ends no tag."""
    return json.dumps(values, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def head(title: str, served: bool) -> str:
    """Everything before the body."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy(script(), served), quote=True)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(minus(title))}</title><style>{style()}</style></head>"
    )


def tabs(views: Sequence[View]) -> str:
    """The links between the views."""
    links = "".join(f'<a href="#view={v.id}" data-view="{v.id}">{text_of(v.heading)}</a>' for v in views)
    return f'<nav id="tabs" aria-label="Views">{links}</nav>'


def body(title: str, views: Sequence[View]) -> str:
    """What stands before the scripts: the tabs, the first view whole, all others that the scripts fill."""
    sections = "".join(_section(v, hidden=i > 0) for i, v in enumerate(views) if i == 0 or not v.html)
    return (
        '<a class="skip" href="#main">To the content</a>'
        f'<header id="top"><h1>{text_of(title)}</h1><button id="theme" type="button" aria-label="Dark or light">'
        f"◐</button>{tabs(views)}</header>"
        "<noscript><p>This page needs JavaScript; it loads nothing from anywhere.</p></noscript>"
        f'<main id="main" tabindex="-1">{sections}</main><div id="tip" role="status" hidden></div>'
        '<p id="said" class="aside" aria-live="polite"></p>'
    )


def _section(view: View, hidden: bool) -> str:
    told = f' data-command="{escape(view.command, quote=True)}"' if view.command else ""
    kind = "report" if view.html else "app"
    return (
        f'<section class="view {kind}" id="view-{view.id}" aria-label="{escape(view.heading, quote=True)}"{told}'
        f'{" hidden" if hidden else ""}>{view.html}</section>'
    )  # fmt: skip


def write(
    path: Path, title: str, views: Sequence[View], facts: Mapping[str, Any], blocks: Iterable[Block], single: bool,
    served: bool = False,
) -> int:  # fmt: skip
    """Write ``panel.html`` into a directory, block by block; without ``single``, pictures and maps into files beside
    it, which the page loads when it shows them.  Returns the bytes written.  ``facts`` may be filled until the first
    block is taken."""
    size = 0
    (path / DATA).mkdir() if not single else None
    with writing(path / PAGE, "w") as file:
        file.write(head(title, served) + "<body>" + body(title, views))
        _data(file, "facts", as_json({**facts, "served": served, "single": single}), "application/json")
        file.write(f"<script>{script()}</script>")
        for block in blocks:
            text = encoded(block)
            if single or not block.name.startswith(LARGE):
                _data(file, f"b:{block.name}", text, "text/plain")
            else:
                beside = path / DATA / part_of(block.name)
                write_atomically(beside, f'panelPart("{block.name}","{text}")'.encode())
                size += beside.stat().st_size
        for view in views[1:]:
            if view.html:
                file.write(_section(view, hidden=True))
        file.write("</body></html>\n")
        size += file.tell()
    return size


def part_of(block: str) -> str:
    """The file of a block."""
    return f"{block.replace(':', '_')}.js"


def _data(file: IO[str], name: str, text: str, kind: str) -> None:
    file.write(f'<script type="{kind}" id="{escape(name, quote=True)}">{text}</script>')
