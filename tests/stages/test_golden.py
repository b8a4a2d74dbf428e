"""A debug-sized agent, its simulator and the demo on them compute what they computed when this was stored.

tests/golden/NAME.json holds a few numbers of every array: its length, its root mean square and entries spread over it.
They hold within 1e-3 of that size, also with other instruction sets (tried: AVX-512, AVX2 and SSE4), where nothing
depends on a choice between near equals; what does is named in ``CHOICES``.  tests/golden.py compares two checkouts on one
machine, and exactly.

Where a change is meant: remove tests/golden/NAME.json, run ``python -m pytest tests/stages/test_golden.py
tests/stages/test_demo_report.py -k golden`` (it writes the file and fails, once), and say in the commit what changed.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from core import config as cli
from tests.golden import contents

RTOL = 1e-3
ENTRIES = 12
CHOICES: tuple[str, ...] = ()


def numbers(directory: Path) -> dict[str, list[float]]:
    """{name: [length, root mean square, entries]} of every float array, number and column of a run directory."""
    out = {}
    for name, value in contents(directory).items():
        x = np.asarray(value).ravel()
        if x.dtype.kind == "f" and x.size and not any(part in name for part in CHOICES):
            spread = x[np.linspace(0, x.size - 1, min(ENTRIES, x.size)).astype(int)]
            out[name] = [float(f"{v:.6g}") for v in (x.size, np.sqrt(np.nanmean(np.square(x, dtype=float))), *spread)]
    return out


def unlike(found: dict[str, list[float]], stored: dict[str, list[float]]) -> list[str]:
    """A line for everything that is not as stored."""
    out = [f"{name}: not there any more" for name in stored.keys() - found.keys()]
    for name, values in found.items():
        old = np.array(stored.get(name, []))
        if len(old) != len(values) or old[0] != values[0]:
            out.append(f"{name}: {len(old) and int(old[0])} numbers stored, {int(values[0])} found")
        elif not np.allclose(values[1:], old[1:], rtol=RTOL, atol=RTOL * abs(old[1]), equal_nan=True):
            out.append(f"{name}: {values[1:]}, stored {list(old[1:])}")
    return sorted(out)


def check(name: str, found: dict[str, list[float]]) -> None:
    """Fails where ``found`` is not what tests/golden/NAME.json holds; writes that file where there is none."""
    path = cli.ROOT / "tests" / "golden" / f"{name}.json"
    if not path.exists():
        path.write_text("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n")
        pytest.fail(f"{path} is written anew; what changed in it?")
    assert unlike(found, json.loads(path.read_text())) == []


def test_golden_pipeline(pipeline: Path) -> None:
    check("pipeline", numbers(pipeline))


def test_one_number_that_is_one_percent_off_is_found() -> None:
    stored = {"a": [3.0, 2.0, 1.0, 2.0, 2.6], "b": [1.0, float("nan"), float("nan")]}
    assert unlike(stored, stored) == []
    assert unlike({**stored, "a": [3.0, 2.0, 1.0, 2.02, 2.6]}, stored) != []
    assert unlike({**stored, "b": [1.0, 0.0, 0.0]}, stored) != []
    assert unlike({"b": stored["b"]}, stored) == ["a: not there any more"]
    assert unlike(stored, {"b": stored["b"]}) == ["a: 0 numbers stored, 3 found"]
