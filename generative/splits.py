"""Which episodes a simulator's weights were trained on, and which were held out, along all that it was begun with.

A training notes under the fact ``held_out`` of its manifest, for every recording that it or what it was begun with was
trained on (SHA-256 of the recording's manifest), the episodes that none of them saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from core import artefacts
from core.contracts import UserError
from core.episodes import RolloutStore

HELD_OUT = "held_out"  # fact of a manifest
HeldOut = dict[str, list[int]]  # {SHA-256 of a recording's manifest: episodes that were not trained on}


def split_episodes(
    episodes: int, share: float, seed: int, unseen: Collection[int] | None = None
) -> tuple[list[int], list[int]]:
    """(training, validation) episode numbers; at least one each.  unseen: those that may be validated on (None: all);
    UserError where there is none."""
    order = np.random.default_rng(seed).permutation(episodes)
    may = order if unseen is None else order[np.isin(order, list(unseen))]
    if not len(may):
        raise UserError("what --begin_with names was trained on all episodes of --rollouts, so that none is left to "
                        "validate on: record others, or begin with trainings of one --seed")  # fmt: skip
    held = may[: min(episodes - 1, max(1, round(share * episodes)))]
    return sorted(np.setdiff1d(order, held).tolist()), sorted(held.tolist())


def held_out_of(paths: Sequence[Path], store: RolloutStore, usable: Callable[[int], list[int]]) -> HeldOut:
    """Of every recording that one of these simulators was trained on, as far as their manifests tell, the episodes that
    none of them was.  usable: the episodes of ``store`` that a training with so many initial frames takes (for what an
    earlier version trained, whose manifest says seed and share only)."""
    out: HeldOut = {}
    for path in paths:
        for name, known in _told(path, store, usable).items():
            out[name] = sorted(set(out.get(name, known)) & set(known))
    return out


def _told(path: Path, store: RolloutStore, usable: Callable[[int], list[int]]) -> HeldOut:
    manifest = artefacts.read_manifest(path)
    if HELD_OUT in manifest["facts"]:
        return {k: list(v) for k, v in manifest["facts"][HELD_OUT].items()}
    out = held_out_of(list(_begun_with(path)), store, usable)
    own = manifest["inputs"].get("rollouts", {}).get("manifest_sha256")
    if own == artefacts.manifest_sha256(store.path):
        config = manifest["config"]
        among = usable(config["model"]["initial_frames"])
        held = {among[i] for i in split_episodes(len(among), config["validation_share"], config["seed"])[1]}
        out[own] = sorted(held & set(out.get(own, held)))
    elif own:
        out.setdefault(own, [])
    return out


def _begun_with(path: Path) -> Iterator[Path]:
    """What a training began with, as far as it is still in place."""
    for name, known in artefacts.read_manifest(path)["inputs"].items():
        source = Path(path) / known["path"]
        there = (source / artefacts.MANIFEST).exists()
        if name.startswith("begin_with") and there and artefacts.manifest_sha256(source) == known["manifest_sha256"]:
            yield source


def trained_on(simulators: Sequence[Path], store: RolloutStore) -> str:
    """Which of these simulators, or of what they were begun with, was trained on these episodes, in a sentence; ''
    where none is known to be.  Episodes that were recorded again by the same agent with the same seed are the same."""
    own, mine = artefacts.manifest_sha256(store.path), None
    for path in simulators:
        lineage = [path, *_all_begun_with(path)]
        seen = {sha for one in lineage for sha in artefacts.read_manifest(one)["facts"].get(HELD_OUT, {})}
        for one in lineage:
            known = artefacts.read_manifest(one)["inputs"].get("rollouts")
            if own in seen or (known and known["manifest_sha256"] == own):
                return f"{path} was trained on these very rollouts"
            source = Path(one) / known["path"] if known else None
            if source is None or not (source / artefacts.MANIFEST).exists():
                continue
            with RolloutStore(source) as theirs:
                mine = _courses(store) if mine is None else mine
                if same := len(mine & _courses(theirs)):
                    return f"{path} was trained on {same} of these {len(store)} episodes, recorded in {source} too"
    return ""


def _all_begun_with(path: Path) -> Iterator[Path]:
    for source in _begun_with(path):
        yield source
        yield from _all_begun_with(source)


def _courses(store: RolloutStore) -> set[bytes]:
    """Digests of what was done and expected in every episode."""
    found, index = store.pooled("action", "value")
    ends = np.flatnonzero(np.diff(index[:, 0], append=-1)) + 1
    out, begin = set(), 0
    for end in ends.tolist():
        out.add(hashlib.sha256(found["action"][begin:end].tobytes() + found["value"][begin:end].tobytes()).digest())
        begin = end
    return out
