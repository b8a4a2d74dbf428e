"""The independent unit: which episodes, lives or worlds belong together, and rows or whole episodes drawn of many."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from analysis.shared.truths import levels_of
from core import artefacts
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore
from core.words import counted, plural


def episodes_of(store: RolloutStore, first: int, most: int, seed: int) -> list[int]:
    """Episodes that have a step >= first: all, or random ones with at most about ``most`` steps together (0: all)."""
    steps_E = np.minimum(store.steps, store.rows) - first
    ids = np.flatnonzero(steps_E > 0)
    if not len(ids):
        raise UserError(
            f"{store.path}: no episode is longer than {first} steps; lower --first_step, or leave these states out"
        )
    if most and steps_E[ids].sum() > most:
        drawn = np.random.default_rng(seed).permutation(ids)
        ids = np.sort(drawn[: max(2, int(np.searchsorted(np.cumsum(steps_E[drawn]), most, side="right")))])
    return [int(i) for i in ids]


class Drawn(NamedTuple):
    """Episodes that are read, and their share of a store's steps."""

    episodes: list[int]
    share: float

    def say(self, result: Result, of: str) -> None:
        """Where not all are read: how much, into the result (``drawn_OF``) and on standard error."""
        if self.share < 1:
            said = f"share of the steps of {of} that were read (--most_states)"
            result.scalar(f"drawn_{of}", self.share, said, len(self.episodes))
            print(f"note: {self.share:.1%} of the steps of {of} are read, of {len(self.episodes):,} whole episodes "
                  "drawn at random (--most_states)", file=sys.stderr)  # fmt: skip


def drawn(store: RolloutStore, first: int, most: int, seed: int, also: Iterable[int] = ()) -> Drawn:
    """``episodes_of``, and the episodes ``also``."""
    episodes = sorted({*episodes_of(store, first, most, seed), *also})
    steps_E = np.maximum(np.minimum(store.steps, store.rows) - first, 0)
    return Drawn(episodes, float(steps_E[episodes].sum() / steps_E.sum()))


def units(store: RolloutStore, real: RolloutStore | None) -> np.ndarray:
    """int64 [episodes]: equal for what is not independent.

    A real episode is a unit; where a world has many agents, a playing of the world with all its lives.  So are the
    samples that started in one: that of ``real``, where they were made from these.  A sample from a random latent is a
    unit of its own.
    """
    if store is real or store.manifest["facts"]["source"] == "real":
        return 3 * played_together(store)
    of_real = units(real, real) if real is not None and made_from(store, real) else None

    def unit(e: int, start: Sequence[int] | None) -> int:
        if start is None:
            return 3 * e + 2
        return 3 * int(start[0]) + 1 if of_real is None else int(of_real[start[0]])

    return np.array([unit(e, store.meta(e).get("start")) for e in range(len(store))])


def made_from(samples: RolloutStore, real: RolloutStore) -> bool:
    """Whether samples started in windows of these real rollouts."""
    known = samples.manifest["inputs"].get("rollouts", {}).get("manifest_sha256")
    return bool(known == artefacts.manifest_sha256(real.path))


def stretches(*keys_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first row, length) int64 [R] of the stretches of consecutive rows in which every key is the same."""
    change_N = np.any([key_N[1:] != key_N[:-1] for key_N in keys_N], 0)
    first_R = np.flatnonzero(np.r_[True, change_N])
    return first_R, np.diff(np.r_[first_R, len(keys_N[0])])


ENOUGH_UNITS = 10  # two a fold
Unit = Literal["auto", "map", "level", "world", "life"]
COARSE: tuple[Unit, ...] = ("map", "level", "world")  # what lives can share, the largest first


def groups_of(store: RolloutStore) -> dict[str, np.ndarray]:
    """What lives share, a number an episode: the life itself and, where their meta says so, a run of a world, a map."""
    metas = [store.meta(e) for e in range(len(store))]
    out = {"life": np.arange(len(store))}
    for name, keys in {"world": ("seed", "world", "map"), "map": ("map",)}.items():
        if all(name in meta for meta in metas):
            out[name] = np.unique([str([meta.get(k) for k in keys]) for meta in metas], return_inverse=True)[1]
    return out


def played_together(store: RolloutStore) -> np.ndarray:
    """int64 [episodes] of a real recording: equal for lives of one playing of a world; else a number of its own."""
    groups = groups_of(store)
    return groups.get("world", groups["life"])


def groups_told_of(store: RolloutStore) -> dict[str, np.ndarray]:
    """``groups_of`` and, where the truth of the recording says so, the level."""
    level_E = levels_of(store)
    return groups_of(store) | ({} if level_E is None else {"level": level_E})


def choose_unit(groups: Mapping[str, np.ndarray], asked: Unit, least: int, of: Path, fewer: str = "") -> str:
    """The name of the group that is held out and resampled whole; UserError if there are too few of it.  of: the
    recording; fewer: what else than more of them would do."""
    sizes = {name: len(np.unique(of)) for name, of in groups.items()}
    if asked == "auto":
        asked = next((u for u in COARSE if sizes.get(u, 0) >= ENOUGH_UNITS), "life")
    if asked not in sizes:
        raise UserError(f"--unit {asked}: neither the episodes' meta nor their truth says it; use life")
    if sizes[asked] < least:
        enough = [f"use --unit {name}" for name, n in sizes.items() if n >= least]
        raise UserError(
            f"{of}: {sizes[asked]} units ({asked}) are too few; at least {least} are needed: "
            + ", or ".join(["record more", *enough, *([fewer] if fewer else [])])
        )
    return asked


def shared_by(groups: Mapping[str, np.ndarray], unit: str) -> dict[str, int]:
    """{group: how many there are} of what several units have in common, so that holding one unit out leaves others of
    the same level, map or world in."""
    units = len(np.unique(groups[unit]))
    coarser = COARSE[: COARSE.index(unit)] if unit in COARSE else COARSE
    return {name: n for name in coarser if name in groups and (n := len(np.unique(groups[name]))) < units}


def say_shared(shared: Mapping[str, int], unit: str, held_out: bool = True) -> str:
    """What that means, in a sentence; '' where nothing is shared.  held_out: whether units are, or are resampled
    alone."""
    if not shared:
        return ""
    name, count = min(shared.items(), key=lambda of: of[1])
    names = plural(name)
    said = f"these {plural(unit)} share {counted(count, name)}"
    if not held_out:
        return f"{said}: intervals say little of other {names}; record at least {ENOUGH_UNITS}"
    return (
        f"{said}, and a {unit} that is held out leaves others of its {name} "
        f"in: scores and intervals are of these {names}, and say little of others. Record at least {ENOUGH_UNITS} "
        f"{names}, or hold {names} out with --unit {name}"
    )
