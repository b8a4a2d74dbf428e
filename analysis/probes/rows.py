"""The steps that probes read: states, ground truth, and what else is known of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from analysis.shared.events import parse_condition
from analysis.shared.truths import names_of, numbers_of
from analysis.shared.units import groups_told_of
from core import config as cli
from core.contracts import UserError
from core.episodes import RolloutStore

STEP = "step"  # a name for time in the episode that every store has
LARGEST = 1e70  # sums of the fourth powers of larger quantities are no numbers


ANGLE = "_bearing"  # how the name of an angle ends
BENT: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"sin": np.sin, "cos": np.cos}  # what is read of an angle


class Rows(NamedTuple):
    """N states with what was true of them; rows of a life are consecutive and in order of time."""

    x_NF: np.ndarray  # float32
    quantities: dict[str, np.ndarray]  # float64 [N] each; NaN where there is no such thing
    observation_NF: np.ndarray | None
    index_N2: np.ndarray  # (episode, t)
    time_N: np.ndarray  # steps since the world began
    groups: dict[str, np.ndarray]  # life, and where known world, level and map: a number a row
    baselines: Mapping[str, np.ndarray] = MappingProxyType({})  # what else quantities are read from, [N, .] each
    agents: Mapping[str, np.ndarray] = MappingProxyType({})  # states of other agents along the same steps, [N, .]
    left_out: Mapping[str, int] = MappingProxyType({})  # rows left out, by why

    def of(self, some: np.ndarray) -> Rows:
        """Some of the rows; some: bool [N]."""
        if some.all():
            return self
        cut = {name: {k: v[some] for k, v in getattr(self, name).items()}
               for name in ("quantities", "groups", "baselines", "agents")}  # fmt: skip
        seen = None if self.observation_NF is None else self.observation_NF[some]
        return self._replace(
            x_NF=self.x_NF[some], observation_NF=seen, index_N2=self.index_N2[some], time_N=self.time_N[some], **cut
        )


def bent(names: Sequence[str]) -> list[str]:
    """Targets with an angle's sine and cosine in its place: it is read on a circle."""
    return [part for n in names for part in ([f"{f}({n})" for f in BENT] if n.endswith(ANGLE) else [n])]


def unbent(name: str) -> tuple[str, str]:
    """(the column's name, sin, cos or nothing)."""
    found = re.fullmatch(rf"({'|'.join(BENT)})\((\w+)\)", name)
    return (found[2], found[1]) if found else (name, "")


class Chosen(NamedTuple):
    """The steps of a store that are read, and the truth at them."""

    step_E: dict[int, np.ndarray]  # episode -> its steps, in order
    value_E: dict[int, dict[str, np.ndarray]]  # episode -> name -> float64 [steps]
    left_out: dict[str, int]  # steps left out, by why

    @property
    def index_N2(self) -> np.ndarray:
        """(episode, t) of every row."""
        return np.concatenate([np.stack([np.full(len(t), e), t], 1) for e, t in self.step_E.items()])

    def of(self, name: str) -> np.ndarray:
        """A number of the truth (or the step) at every row, float64 [N]."""
        return np.concatenate([self.value_E[e][name] for e in self.step_E])


def choose(
    store: RolloutStore, names: Sequence[str], *, first_step: int = 0, last_step: int | None = None, max_rows: int = 0,
    where: str = "", needed: Sequence[str] = (), any_of: Sequence[str] = (),
) -> Chosen:  # fmt: skip
    """Every n-th of the steps from first_step to last_step (None: the end) of each life, so that at most about max_rows
    are read (0: all).

    names: quantities.  where: a condition on the truth (analysis.shared.events.parse_condition).  Steps at which one of
    ``needed``, or all of ``any_of``, have no value are left out.
    """
    known = names_of(store)
    for name in names:
        if (column := unbent(name)[0]) != STEP and column not in known:
            raise UserError(f"{store.path} has no quantity {column!r}{cli.nearest(column, known)}; it has: "
                            f"{', '.join([*known, STEP])}")  # fmt: skip
    holds = parse_condition("--where", where, list(known)) if where else None
    told = list(dict.fromkeys(n for n in map(lambda n: unbent(n)[0], names) if n != STEP))
    words = [n for n in known if re.search(rf"\b{re.escape(n)}\b", where)]
    ends = np.minimum(store.steps, store.rows)
    stop = int(ends.max()) if last_step is None else last_step + 1
    kept: dict[int, np.ndarray] = {}
    values: dict[int, dict[str, np.ndarray]] = {}
    left = {"nothing to read": 0, "not where": 0}
    for e in np.flatnonzero(ends > first_step).tolist():
        truth = numbers_of(store, e, [*told, *words], known)
        here = truth | {STEP: np.arange(ends[e], dtype=np.float64)}
        on = _has_values(here, needed, any_of, int(ends[e]))
        on[:first_step] = False
        on[stop:] = False
        left["nothing to read"] += int(min(ends[e], stop) - first_step - on.sum())
        if holds is not None:
            true_1T = holds({n: torch.from_numpy(here[n])[None] for n in words or [STEP]})
            before = int(on.sum())
            on &= true_1T[0].numpy()
            left["not where"] += before - int(on.sum())
        kept[e] = np.flatnonzero(on)
        values |= {} if max_rows else {e: truth}  # of many steps those that are chosen are read again
    every = max(1, -(-sum(map(len, kept.values())) // max_rows)) if max_rows else 1
    if not kept:
        raise UserError(f"{store.path}: no episode is longer than {first_step} steps; lower --first_step")
    step_E = thinned(kept, every)
    if not step_E:
        said = f", and of which it is true that {where}" if where else ""
        raise UserError(f"{store.path}: no step at which a quantity has a value{said}; record more")
    at = {}
    for e, step in step_E.items():
        truth = values[e] if e in values else numbers_of(store, e, told, known)
        at[e] = {n: x[step] for n, x in truth.items()} | {STEP: step.astype(np.float64)}
    return Chosen(step_E, at, left)


def thinned(step_E: Mapping[int, np.ndarray], every: int) -> dict[int, np.ndarray]:
    """Every n-th of the steps of each life; of lives that are over before the first of these, of which none would be
    read, as many of all their steps together, drawn at random (every n-th could be the same one of each life)."""
    few_E = {e: step for e, step in step_E.items() if len(step) <= every // 2}
    count = sum(map(len, few_E.values()))
    on_M = np.random.default_rng(0).permutation(count) < round(count / every)
    of_few = dict(zip(few_E, np.split(on_M, np.cumsum([len(step) for step in few_E.values()])), strict=False))
    found = {e: step[of_few[e]] if e in few_E else step[every // 2 :: every] for e, step in step_E.items()}
    return {e: step for e, step in found.items() if len(step)}


def read(
    store: RolloutStore, states: str, names: Sequence[str], *, observation: str = "", first_step: int = 0,
    last_step: int | None = None, max_rows: int = 0, where: str = "", needed: Sequence[str] = (),
    any_of: Sequence[str] = (),
) -> Rows:  # fmt: skip
    """The states of every n-th step from first_step to last_step (None: the end) of each life, so that at most about
    max_rows are read (0: all).

    names: quantities.  where: a condition on the truth (analysis.shared.events.parse_condition).  Steps at which one of
    ``needed``, or all of ``any_of``, have no value are left out.
    """
    chosen = choose(
        store, names, first_step=first_step, last_step=last_step, max_rows=max_rows, where=where, needed=needed,
        any_of=any_of,
    )  # fmt: skip
    column, _, row = observation.partition(":")
    for wanted in filter(None, (states, column)):
        if wanted not in store.column_names:
            raise UserError(f"{store.path}: no column {wanted!r}; there are: {', '.join(store.column_names)}")
    if row and not row.isdigit():
        raise UserError(f"--observation {observation}: after the colon comes the number of a row, such as obs/Entity:0")
    parts: list[dict[str, np.ndarray]] = []
    for e, step in chosen.step_E.items():
        columns, index_N2 = store.pooled(*dict.fromkeys(filter(None, (states, column))), episodes=[e])
        part: dict[str, np.ndarray] = {"index": index_N2[step], "x": columns[states].reshape(len(index_N2), -1)[step]}
        part["time"] = step + int(store.meta(e).get("first_tick", 0))
        if column:
            seen = columns[column]
            if row and (seen.ndim < 3 or int(row) >= seen.shape[1]):
                have = "no rows" if seen.ndim < 3 else f"rows 0 to {seen.shape[1] - 1}"
                raise UserError(f"--observation {observation}: {column} has {have}")
            part["observation"] = (seen[:, int(row)] if row else seen).reshape(len(seen), -1)[step].astype(np.float32)
        parts.append(part)
    whole = {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
    quantities = {}
    for name in names:
        quantities[name] = value_of(chosen, name, whole["time"])
    for name, value_N in (("states", whole["x"]), *quantities.items()):
        if not (np.isfinite(value_N) if name == "states" else ~np.isinf(value_N)).all():
            raise UserError(f"{store.path}: {name} have NaN or infinite values; record again, or leave it out")
    groups = groups_along(store, whole["index"])
    return Rows(
        whole["x"],
        quantities,
        whole.get("observation"),
        whole["index"],
        whole["time"],
        groups,
        left_out=chosen.left_out,
    )


def _has_values(truth: Mapping[str, np.ndarray], needed: Sequence[str], any_of: Sequence[str], size: int) -> np.ndarray:
    """Steps at which all needed and one of any_of have a value, bool [T]."""
    on = np.ones(size, bool)
    for name in needed:
        on &= ~np.isnan(truth[unbent(name)[0]])
    if any_of:
        on &= np.any([~np.isnan(truth[unbent(name)[0]]) for name in any_of], 0)
    return on


def value_of(chosen: Chosen, name: str, time_N: np.ndarray) -> np.ndarray:
    """A quantity at every row: a number of the truth, the sine or cosine of an angle, or the time.  UserError where it
    is beyond LARGEST, as a number is that stands for none."""
    at, bend = unbent(name)
    value_N = time_N.astype(np.float64) if at == STEP else chosen.of(at)
    value_N = BENT[bend](value_N) if bend else value_N
    if (largest := float(np.abs(value_N[np.isfinite(value_N)]).max(initial=0.0))) > LARGEST:
        raise UserError(f"{name} is as large as {largest:.3g}, too large to be read; leave it out, or let the world "
                        "say NaN where there is no such thing")  # fmt: skip
    return value_N


def groups_along(store: RolloutStore, index_N2: np.ndarray) -> dict[str, np.ndarray]:
    """What the lives of some rows share, a number a row."""
    return {name: of[index_N2[:, 0]] for name, of in groups_told_of(store).items()}
