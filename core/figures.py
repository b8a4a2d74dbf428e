"""A matplotlib figure without pyplot, whose state is global."""

from __future__ import annotations

from typing import Any


def figure_of(width: float, height: float) -> Any:
    """An empty Figure (inches) that makes room for its labels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
