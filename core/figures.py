"""What all figures and pages share: colours that mean the same everywhere, one minus sign, and a matplotlib figure
without pyplot, whose state is global.

A colour below has the one meaning that its name says.  What has none here (a cluster, a behaviour, an agent) takes
``core.pages.label_colours``, by its number.
"""

from __future__ import annotations

import io
import re
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from core import ranks
from core.files import write_atomically

# Whose number it is.  Real against real, the floor, is the real world's, in another line style.
REAL, SIMULATED, FORCED = "#26323e", "#e8820c", "#f4bd72"  # FORCED: the simulator, shown every real frame
HELD, USUAL = "#6f6f6f", "#a3a3a3"  # predictions without a world: the last frame held; the mean, or chance
BAND = "#d9d9d9"  # what random changes, permuted or exchanged data give

# Which way an effect runs.
WHOLE, MEMORY, WORLD = REAL, "#7b4fa3", "#17949e"
MEMORY_PALE, MEMORY_DEEP = "#c3a2dd", "#4c2a73"  # more kinds of it in one figure
BOTH = "#8c6d31"  # significant by either way alone

# More and less.
POSITIVE, NEGATIVE = "#2a66d9", "#d4263a"  # the hues of DIVERGING, bright enough for a darkened frame
DIVERGING, SEQUENTIAL, TIME = "RdBu", "viridis", "plasma"  # colour maps: signed (blue above 0), unsigned, when

# Verdicts colour words and the edges of boxes, never a mark in a figure.
GOOD, BAD, OPEN = "#1b6b43", "#a3341f", "#7a5b00"

NOT_TESTED = "#e9e6df"  # no number at all
LINE, INK = "#cfcfcf", "#1d2329"  # axes through 0; text and intervals on coloured bars


ALSO = ("pdf", "svg")  # vector formats that a command writes its figures in too (--figures)
also: ContextVar[tuple[str, ...]] = ContextVar("also", default=())


def figure_of(width: float, height: float) -> Any:
    """An empty Figure (inches) that makes room for its labels."""
    return _figure_class()(figsize=(width, height), layout="constrained")


def shortened(text: str, width: int) -> str:
    """What fits of a name that a user gave, in letters."""
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


@cache
def _figure_class() -> Any:
    from matplotlib.figure import Figure

    class Laid(Figure):
        """To save a figure matplotlib draws it twice, at first into nothing, for the layout alone.  This one is only
        laid out then: the same picture in five sixths of the time."""

        laying = False

        def savefig(self, fname: Any, **options: Any) -> None:
            """To a stream, or whole to a path and to its like in the formats of ``also`` (by the first process)."""
            if not isinstance(fname, (str, Path)):
                self.laying = True
                super().savefig(fname, **options)
                return
            if not ranks.first():
                return
            path = Path(fname)
            self._whole(path, options)
            for kind in also.get():
                dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]  # the same figure, the same file
                self._whole(path.with_suffix(f".{kind}"), options | {"metadata": dates})

        def _whole(self, path: Path, options: dict[str, Any]) -> None:
            data = io.BytesIO()
            self.laying = True
            super().savefig(data, format=path.suffix[1:], **options)
            write_atomically(path, data.getvalue())

        def draw(self, renderer: Any) -> None:
            engine = self.get_layout_engine()
            if self.laying and engine is not None:
                self.laying = False
                if self.axes:
                    engine.execute(self)
            else:
                super().draw(renderer)

    return Laid


def font_of(size: int) -> Any:
    """The font of pictures and videos that PIL draws: matplotlib's own DejaVu Sans (PIL's has no minus sign)."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf", size)


def as_bytes(frames: np.ndarray) -> np.ndarray:
    """Frames of numbers from 0 to 1 as uint8, what is beyond cut off; those that are uint8 already as they are."""
    return frames if frames.dtype == np.uint8 else (frames * 255).round().clip(0, 255).astype(np.uint8)


def as_rgb(frames: np.ndarray) -> np.ndarray:
    """Frames [..., h, w, channels] in three: of any other number the mean, as grey."""
    if frames.shape[-1] == 3:
        return frames
    grey: np.ndarray = frames.mean(-1, keepdims=True).astype(frames.dtype)
    return np.broadcast_to(grey, (*frames.shape[:-1], 3))


def are_pictures(frames: np.ndarray, axes: int) -> bool:
    """Whether what a stage has kept are frames [..., h, w, channels], behind so many axes: of a field that is a picture
    (``EnvSpec.pictures``) they are kept as uint8, of any other as the floats that they are."""
    return frames.dtype == np.uint8 and frames.ndim == axes + 3


def enlarged(frame: np.ndarray, width: int, height: int) -> Any:
    """A frame uint8 [h, w, channels] as a PIL image of that size whose pixels stay sharp."""
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(as_rgb(frame))).resize((width, height), Image.Resampling.NEAREST)


def fitted(frame: np.ndarray, side: int) -> Any:
    """A frame uint8 [h, w, channels] as a PIL image of side x side, as large as fits in it, on white: a frame that is
    no square keeps its shape."""
    from PIL import Image

    height, width = frame.shape[:2]
    scale = side / max(height, width)
    picture = enlarged(frame, max(1, round(width * scale)), max(1, round(height * scale)))
    if picture.size == (side, side):
        return picture
    whole = Image.new("RGB", (side, side), "white")
    whole.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    return whole


def rgb(colour: str) -> tuple[int, int, int]:
    """'#rrggbb' as three numbers of 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def minus(text: str) -> str:
    """Text whose negative numbers have the minus sign (U+2212), as matplotlib's ticks do.  Hyphens stay: a sign stands
    at the beginning, after a space or an opening bracket, or is an exponent's."""
    return re.sub(r"(?<![^\s(\[{=|<>,/±])-(?=\.?\d)|(?<=\de)-(?=\d)", "−", text)
