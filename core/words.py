"""Numbers of things, in words."""

from __future__ import annotations

import re


def plural(unit: str) -> str:
    """The plural of a unit's name: lives of a life, quantities of a quantity, episodes of an episode."""
    if unit == "life":
        return "lives"
    return f"{unit[:-1]}ies" if re.search("[^aeo]y$", unit) else f"{unit}s"


def counted(number: int, unit: str) -> str:
    """``1 episode``, ``1,024 episodes``, ``0 lives``: a number of units, the unit's name in the singular."""
    return f"{number:,} {unit if number == 1 else plural(unit)}"
