"""Maps of points: what makes them is compiled once."""

from __future__ import annotations

import importlib
import sys
import types

import numpy as np
import pytest

from analysis.shared.maps import KEPT, embed, mapped
from core.contracts import UserError


class Uncached(types.ModuleType):
    """umap, where numba finds no directory that it can write."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"cannot cache function {name!r}: no locator available for file 'layouts.py'")


def test_a_umap_that_can_keep_nothing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", Uncached("umap"))
    with pytest.raises(UserError, match="set NUMBA_CACHE_DIR to a directory that you can write"):
        embed(np.zeros((100, 3)), "umap", 2, 0)


def test_what_umap_compiles_is_kept_for_other_processes() -> None:
    x_NF = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
    embed(x_NF, "umap", 2, 0)
    place = mapped(x_NF, "umap", 2, 0, more=True).place
    assert place is not None and np.isfinite(place(x_NF[:10] + 0.1)).all()
    for name, functions in KEPT.items():
        for function in functions:
            compiled = getattr(importlib.import_module(f"umap.{name}"), function)
            stats = compiled.stats
            used = sum(stats.cache_hits.values()) + sum(stats.cache_misses.values())
            assert compiled.signatures and stats.cache_path and used == len(compiled.signatures), function
