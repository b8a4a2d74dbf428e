"""What strips of frames share: measures, a colour, the arrow of an action."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from core.figures import shortened

GOLD = (255, 190, 0)  # the target's frame
TILE, GAP, LABEL = 128, 4, 118
LETTERS = 21  # of a name that fits above a tile
NO_PICTURE = "no observation field of this world is a picture (uint8 [height, width, channels])"


def action_direction(name: str) -> tuple[int, int]:
    """(right, down) of an action, from its name; (0, 0) for one that does not move."""
    known = re.fullmatch(r"(up|down)?(left|right)?", name)
    if not known:
        return 0, 0
    return {"left": -1, "right": 1}.get(known[2], 0), {"up": -1, "down": 1}.get(known[1], 0)


def arrow(draw: Any, x: float, y: float, name: str, size: float, font: Any) -> None:
    """An action at (x, y): an arrow if its name says where to, or the name itself, as much as fits above a tile."""
    dx, dy = action_direction(name)
    norm = float(np.hypot(dx, dy))
    if not norm:
        draw.text((x, y), shortened(name, LETTERS), fill="black", anchor="mm", font=font)
        return
    ux, uy = dx / norm, dy / norm
    tip, tail = (x + ux * size, y + uy * size), (x - ux * size, y - uy * size)
    draw.line([tail, tip], fill="black", width=3)
    wings = [(tip[0] - size * (0.8 * ux + s * 0.5 * uy), tip[1] - size * (0.8 * uy - s * 0.5 * ux)) for s in (-1, 1)]
    draw.polygon([(tip[0] + 2 * ux, tip[1] + 2 * uy), *wings], fill="black")
