"""Maps of points: what makes them is compiled once."""

from __future__ import annotations

import importlib

import numpy as np

from analysis.shared.maps import KEPT, embed, mapped


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
