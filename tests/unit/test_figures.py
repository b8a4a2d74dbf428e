"""What all figures share."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from core import figures
from core.config import ROOT

NAMED = ("REAL", "SIMULATED", "FORCED", "HELD", "USUAL", "BAND", "MEMORY", "WORLD", "BOTH", "POSITIVE", "NEGATIVE")
DRAWING = [p for room in ("analysis", "validation") for p in sorted((ROOT / room).glob("*.py"))
           if p.name not in ("interventions_figures.py", "planted.py")]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-3", "\u22123"), ("by -.5 to [-1,-2]", "by \u2212.5 to [\u22121,\u22122]"), ("1e-05", "1e\u221205"),
        ("value < -2 (-1)", "value < \u22122 (\u22121)"), ("t-1, 2024-05-06, half-life, x-1, -a", None),
    ],
)  # fmt: skip
def test_a_sign_becomes_a_minus_and_a_hyphen_stays(text: str, shown: str | None) -> None:
    assert figures.minus(text) == (text if shown is None else shown)


def test_no_two_meanings_have_colours_that_look_alike() -> None:
    colours = np.array([figures.rgb(getattr(figures, name)) for name in NAMED], float)
    apart = np.abs(colours[:, None] - colours).sum(-1) + 1000 * np.eye(len(NAMED))
    assert apart.min() > 60


def test_the_map_of_signed_numbers_is_blue_above_zero_like_the_marks() -> None:
    from matplotlib import colormaps

    low, high = (np.array(colormaps[figures.DIVERGING](at)[:3]) for at in (0.1, 0.9))
    assert high[2] > high[0] and low[0] > low[2]
    assert figures.rgb(figures.POSITIVE)[2] > figures.rgb(figures.POSITIVE)[0]
    assert figures.rgb(figures.NEGATIVE)[0] > figures.rgb(figures.NEGATIVE)[2]


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: path.stem)
def test_figures_take_their_colours_by_meaning(path: Path) -> None:
    literal = r"""["'](tab:\w+|C\d|(RdBu|coolwarm|viridis|plasma|magma|Blues|YlOrBr|OrRd|PuOr)(_r)?)["']"""
    assert [found[0] for found in re.finditer(literal, path.read_text())] == []


def test_the_font_of_drawn_pictures_has_a_minus_sign() -> None:
    font = figures.font_of(12)
    assert font.getmask("\u2212").getbbox() != font.getmask("\ufffe").getbbox()
