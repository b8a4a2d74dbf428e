"""The figure of patching shows how far heads move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.patching.figures import draw_heads
from core.artefacts import Result


def test_colours_are_of_kl_so_that_no_share_of_hardly_anything_sets_the_scale(tmp_path: Path) -> None:
    """pca:0 moves Destroy by nine tenths of all that moves it, which is next to nothing; pca:1 Move by a third of much;
    of Buy there were too few choices to tell."""
    names, heads = ["pca:0", "pca:1", "tick"], ["Move", "Destroy", "Buy", "all heads"]
    kl = np.array([[0.02, 9e-6, 0.9, 0.02], [0.2, 1e-6, 0.1, 0.21], [1e-5, 0.0, 1e-4, 1e-5]])
    swap = np.array([0.6, 1e-5, 1.0, 0.7])
    rows = [
        {"direction": d, "head": h, "kl": kl[i, k], "share": kl[i, k] / swap[k], "swap": swap[k], "low": kl[i, k] / 2,
         "q": None if h == "Buy" else 0.01 if kl[i, k] > 1e-3 else 0.8, "steps": 100}
        for i, d in enumerate(names) for k, h in enumerate(heads)
    ]  # fmt: skip
    notes = {"directions": names, "heads": heads, "controls": 500, "unit": "map"}
    figure = draw_heads(Result(tables={"patching": rows}, notes=notes))
    figure.savefig(tmp_path / "patching.png", dpi=80)
    (image,) = figure.axes[0].images
    assert image.norm.vmax == pytest.approx(0.21)
    np.testing.assert_allclose(image.get_array(), kl)
    shade = image.norm(kl)
    assert shade[0, 1] < 0.01 < shade[0, 0] < shade[1, 0]
    assert figure.axes[1].get_ylabel() == "KL in nats (square-root scale)"
