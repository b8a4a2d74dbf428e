"""A debug-sized agent, its simulator and the demo on them compute what they computed when this was stored.

tests/golden/NAME.json holds a few numbers of every array: its length, its root mean square and entries spread over it.
They hold within a thousandth of that size (and a millionth, the rounding of float32 near 1), also where torch, numpy,
MKL and OpenBLAS are kept to AVX2 or SSE4, but for what hangs on a choice between near equals: that is named in
``CHOICES``, and in ``NEARLY`` where it holds within a fiftieth.  tests/golden.py compares two checkouts on one machine,
exactly.

Where a change is meant: remove tests/golden/NAME.json, run ``python -m pytest -k golden tests/stages/test_golden.py
tests/stages/test_demo_report.py`` (it writes the file and fails, once), and say in the commit what changed and why.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from core import config as cli
from tests.golden import contents

RTOL = 1e-3
ROUNDING = 1e-6
ENTRIES = 8
CHOICES = (  # parts of names
    "umap", "tsne", "markov", "surrogates.csv",  # maps; paths drawn from cluster to cluster, tables with both
    "saliency/arrays.npz:deeplift", "saliency/arrays.npz:grad_frames", "saliency/arrays.npz:grad_d",  # ReLUs at 0
    "deeplift_delta", "completeness",  # what is left of a sum that should be 0
    "manifest.json",  # said in result.json, too
)  # fmt: skip
NEARLY = {  # beginnings of names: what one choice otherwise makes of them on another CPU
    "behaviours/behaviours.csv": 0.02, "behaviours/mdp.csv": 0.02, "behaviours/transitions.csv": 0.02,  # 1 step's label
    "interventions/effects.csv:q": 0.02,  # ranks of near equals
    "coupling/arrays.npz:q_correlation": 0.02, "coupling/edges.csv:q_r": 0.02,  # the same
    "coupling/arrays.npz:correlation": 0.02, "coupling/edges.csv:r": 0.02,  # over few episodes: .0014 apart on one CPU
    "saliency/arrays.npz:integrated_delta": 0.02, "saliency/saliency.csv:integrated_delta": 0.02,  # left of a sum
}  # fmt: skip


def numbers(directory: Path) -> dict[str, list[float]]:
    """{name: [length, root mean square, entries]} of every float array, number and column of a run directory."""
    out: dict[str, list[float]] = {}
    for name, value in contents(directory).items():
        x = np.asarray(value).ravel()
        if x.dtype.kind == "f" and not np.isnan(x).all() and not any(part in name for part in CHOICES):
            spread = x[np.linspace(0, x.size - 1, min(ENTRIES, x.size)).astype(int)]
            size = np.sqrt(np.nanmean(np.square(x, dtype=np.float64)))
            out[name] = [float(f"{v:.5g}") for v in (x.size, size, *spread)]
    return out


def unlike(found: dict[str, list[float]], stored: dict[str, list[float]]) -> list[str]:
    """A line for everything that is not as stored; what was not stored may be anything."""
    out = []
    for name, old in stored.items():
        new = found.get(name, [0.0])
        if new[0] != old[0]:
            out.append(f"{name}: {new[0]:.0f} numbers, {old[0]:.0f} stored")
            continue
        rtol = next((r for beginning, r in NEARLY.items() if name.startswith(beginning)), RTOL)
        if not np.allclose(new[1:], old[1:], rtol=rtol, atol=rtol * old[1] + ROUNDING, equal_nan=True):
            out.append(f"{name}: {new[1:]}, stored {old[1:]}")
    return out


def check(name: str, found: dict[str, list[float]]) -> None:
    """Fails where ``found`` is not what tests/golden/NAME.json holds; writes that file where there is none."""
    path = cli.ROOT / "tests" / "golden" / f"{name}.json"
    if not path.exists():
        path.write_text("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n")
        pytest.fail(f"{path} is written anew; what changed in it?")
    assert unlike(found, json.loads(path.read_text())) == []


def test_golden_pipeline(pipeline: Path) -> None:
    found = {name: numbers(pipeline / name) for name in ("agent", "rollouts", "simulator", "samples")}
    check("pipeline", {f"{name}/{k}": v for name, of_it in found.items() for k, v in of_it.items()})


def test_one_number_that_is_one_percent_off_is_found() -> None:
    stored = {"a": [3.0, 2.0, 1.0, 2.0, 2.6], "b": [2.0, 1.0, 1.0, float("nan")]}
    assert unlike(stored, stored) == []
    assert unlike({**stored, "a": [3.0, 2.0, 1.0, 2.02, 2.6]}, stored) != []
    assert unlike({**stored, "b": [2.0, 1.0, 1.0, 1.0]}, stored) != []
    assert unlike({"b": stored["b"]}, stored) == ["a: 0 numbers, 3 stored"]
    assert unlike({**stored, "a": [2.0, 2.0, 1.0, 2.6]}, stored) == ["a: 2 numbers, 3 stored"]
