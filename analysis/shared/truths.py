"""The ground truth of a recording, number by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from core.episodes import RolloutStore

MOST_NUMBERS = 64  # of a truth column; larger ones are maps and pictures


def names_of(store: RolloutStore) -> dict[str, tuple[str, int]]:
    """Every number of a store's ground truth by name: (column, which of its numbers).

    The manifest's facts may name the numbers of a column; those of ``position`` are row and col, others are counted.
    """
    columns = sorted((n for n in store.column_names if n.startswith("truth/")), key=lambda n: n != "truth/features")
    some, _ = store.pooled(*columns, episodes=[int(np.argmax(np.minimum(store.steps, store.rows)))])
    out: dict[str, tuple[str, int]] = {}
    for column, values in some.items():
        name, shape = column.partition("/")[2], values.shape[1:]
        size = int(np.prod(shape))
        if size > MOST_NUMBERS or values.dtype.kind not in "fiub":
            continue
        given = store.manifest["facts"].get(name)
        if isinstance(given, list) and len(given) == size:
            parts = [str(part) for part in given]
        else:
            parts = parts_of(name, shape)
        for i, part in enumerate(parts):
            out.setdefault(part, (column, i))
    return out


def parts_of(name: str, shape: tuple[int, ...]) -> list[str]:
    """The names of the numbers of a truth column of that shape that nobody named."""
    size = int(np.prod(shape))
    if name == "position" and size == 2:
        return ["row", "col"]
    return [name] if not shape else [f"{name}_{i}" for i in range(size)]


def told_by(truth: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every number of what a world says of itself at one step (core.contracts.Step.truth) by name, float32 [B] each."""
    out: dict[str, np.ndarray] = {}
    for name, values in truth.items():
        shape = values.shape[1:]
        if int(np.prod(shape)) <= MOST_NUMBERS and values.dtype.kind in "fiub":
            flat = values.reshape(len(values), -1).astype(np.float32)
            for i, part in enumerate(parts_of(name, shape)):
                out.setdefault(part, flat[:, i])
    return out


def every_of(store: RolloutStore) -> int:
    """At every how many steps the truth was read; between them it is NaN."""
    told = store.manifest["facts"].get("truth")
    return int(told["every"]) if isinstance(told, dict) else 1


def numbers_of(
    store: RolloutStore, episode: int, names: Sequence[str], known: Mapping[str, tuple[str, int]]
) -> dict[str, np.ndarray]:
    """Some numbers of the truth along an episode, float64 [T] each."""
    if not names:
        return {}
    columns, index_N2 = store.pooled(*dict.fromkeys(known[n][0] for n in names), episodes=[episode])
    flat = {name: values.reshape(len(index_N2), -1) for name, values in columns.items()}
    return {n: flat[known[n][0]][:, known[n][1]].astype(np.float64) for n in names}


def levels_of(store: RolloutStore) -> np.ndarray | None:
    """The number of the level of every episode, int64 [E]; None where the truth does not say it of each, or one has
    several.  Steps at which it is not told (NaN) say nothing.  Levels whose numbers are not whole are counted, from 0
    on, in the order of these."""
    known = names_of(store)
    if "level" not in known:
        return None
    level_E = np.full(len(store), -1.0)
    for e in np.flatnonzero(np.minimum(store.steps, store.rows) > 0).tolist():
        level_T = numbers_of(store, e, ["level"], known)["level"]
        level_T = level_T[np.isfinite(level_T)]
        if not len(level_T) or np.ptp(level_T) > 0:
            return None
        level_E[e] = level_T[0]
    if (level_E != np.rint(level_E)).any():
        return np.unique(level_E, return_inverse=True)[1].astype(np.int64)
    return level_E.astype(np.int64)
