"""The steps that probes read: states, ground truth, and what else is known of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.shared.units import groups_of
from core import config as cli
from core.contracts import UserError
from core.episodes import RolloutStore

MOST_NUMBERS = 64  # of a truth column; larger ones are maps and pictures
STEP = "step"  # a name for time in the episode that every store has


class Rows(NamedTuple):
    """N states with what was true of them; rows of a life are consecutive and equally far apart in time."""

    x_NF: np.ndarray  # float32
    quantities: dict[str, np.ndarray]  # float64 [N] each
    observation_NF: np.ndarray | None
    index_N2: np.ndarray  # (episode, t)
    time_N: np.ndarray  # steps since the world began
    groups: dict[str, np.ndarray]  # life, and where known world and map: a number a row


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
        elif name == "position" and size == 2:
            parts = ["row", "col"]
        else:
            parts = [name] if not shape else [f"{name}_{i}" for i in range(size)]
        for i, part in enumerate(parts):
            out.setdefault(part, (column, i))
    return out


def read(
    store: RolloutStore, states: str, names: Sequence[str], *, observation: str = "", first_step: int = 0,
    max_rows: int = 0,
) -> Rows:  # fmt: skip
    """The states of every n-th step t >= first_step of each life, so that at most about max_rows are read (0: all)."""
    known = names_of(store)
    for name in names:
        if name != STEP and name not in known:
            raise UserError(f"{store.path} has no quantity {name!r}{cli.nearest(name, known)}; it has: "
                            f"{', '.join([*known, STEP])}")  # fmt: skip
    column, _, row = observation.partition(":")
    for wanted in filter(None, (states, column)):
        if wanted not in store.column_names:
            raise UserError(f"{store.path}: no column {wanted!r}; there are: {', '.join(store.column_names)}")
    if row and not row.isdigit():
        raise UserError(f"--observation {observation}: after the colon comes the number of a row, such as obs/Entity:0")
    wanted_columns = dict.fromkeys(filter(None, (states, column, *(known[n][0] for n in names if n != STEP))))
    ends = np.minimum(store.steps, store.rows)
    every = -(-int((ends - first_step).clip(0).sum()) // max_rows) if max_rows else 1
    first = first_step + max(1, every) // 2
    parts: list[dict[str, np.ndarray]] = []
    for e in np.flatnonzero(ends > first):
        columns, index_N2 = store.pooled(*wanted_columns, episodes=[int(e)], first=first)
        part: dict[str, np.ndarray] = {"index": index_N2, "x": columns[states].reshape(len(index_N2), -1)}
        part["time"] = index_N2[:, 1] + int(store.meta(int(e)).get("first_tick", 0))
        if column:
            seen = columns[column]
            if row and (seen.ndim < 3 or int(row) >= seen.shape[1]):
                have = "no rows" if seen.ndim < 3 else f"rows 0 to {seen.shape[1] - 1}"
                raise UserError(f"--observation {observation}: {column} has {have}")
            part["observation"] = (seen[:, int(row)] if row else seen).reshape(len(seen), -1).astype(np.float32)
        for name in names:
            if name != STEP:
                at, i = known[name]
                part[f"of {name}"] = columns[at].reshape(len(index_N2), -1)[:, i].astype(np.float64)
        parts.append({k: v[::every] for k, v in part.items()})
    if not parts:
        raise UserError(f"{store.path}: no episode is longer than {first} steps; lower --first_step")
    whole = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
    quantities = {n: whole["time"].astype(np.float64) if n == STEP else whole[f"of {n}"] for n in names}
    for name, values in (("states", whole["x"]), *quantities.items()):
        if not np.isfinite(values).all():
            raise UserError(f"{store.path}: {name} have NaN or infinite values; record again, or leave it out")
    groups = {name: of[whole["index"][:, 0]] for name, of in groups_of(store).items()}
    return Rows(whole["x"], quantities, whole.get("observation"), whole["index"], whole["time"], groups)
