"""What tests of runs that were cut off share: a cut in place of a kill, and what a run holds in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.artefacts import read_manifest, verify
from core.episodes import RolloutStore


class Cut(BaseException):
    """What stands for a kill."""


def cut_before(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Cut off before the ``call``-th call of a function from now on."""
    real, count = getattr(owner, name), 0

    def counted(*args: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            raise Cut
        return real(*args, **named)

    patch.setattr(owner, name, counted)


def outcome(path: Path) -> Any:
    """All that a run holds, and what its manifest says of it; but where it lies."""
    manifest = read_manifest(path)
    assert verify(path) == []
    assert not list(path.rglob(".*"))
    config = {k: v for k, v in manifest["config"].items() if k != "out"}
    files = {k: v for k, v in manifest["files"].items() if k != "config.json"}
    inputs = {k: v["manifest_sha256"] for k, v in manifest["inputs"].items()}
    return config, files, inputs, manifest["facts"], manifest["metrics"], manifest["seed"]


def without_hashes(found: Any) -> Any:
    """An ``outcome`` with the names of the files alone."""
    config, files, *rest = found
    return config, sorted(files), *rest


def require_alike(one: Path, other: Path) -> None:
    """That two recordings hold the same episodes: all that is whole numbers to the last bit, others within 1e-5, as the
    last digit of a sum can depend on where its numbers lie in a process's memory."""
    with RolloutStore(one) as a, RolloutStore(other) as b:
        assert len(a) == len(b)
        for i in range(len(a)):
            x, y = a.episode(i), b.episode(i)
            assert (dict(x.meta), x.terminated, x.truncated) == (dict(y.meta), y.terminated, y.truncated)
            of_x, of_y = x.columns(), y.columns()
            assert of_x.keys() == of_y.keys()
            for name, values in of_x.items():
                np.testing.assert_allclose(values, of_y[name], rtol=0, atol=1e-5 * (values.dtype.kind == "f"))
