"""The behaviours that a run of analysis.behaviours found: labels of steps and names, written and read back."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.shared.clusters import NOISE
from core import artefacts
from core.artefacts import Result
from core.contracts import UserError

STAGE = "behaviours"
NAMES = "behaviours.json"
SOURCES = ("real", "sim")
LONGEST_NAME = 200  # characters
LABEL_STEPS = 5  # a simulated sample is labelled by its first steps (METHODS section 5)


@dataclass(frozen=True)
class Behaviours:
    """Labels by source ('real', 'sim'): ``labels`` int64 [N] and ``index`` int64 [N, 2] of (episode, t).

    Steps that are in no behaviour (HDBSCAN's noise) are not among them.  ``sample_labels`` int64: one a simulated
    episode, the mode over its first steps, -1 where that is none or it is too short (empty without samples).
    ``names`` as the user has edited them.
    """

    labels: dict[str, np.ndarray]
    index: dict[str, np.ndarray]
    sample_labels: np.ndarray
    names: dict[int, str]
    agent: str

    def steps(self, behaviour: int, source: str = "real") -> np.ndarray:
        """(episode, t) int64 [M, 2] of a behaviour; UserError if it or the source does not exist."""
        if source not in self.labels:
            raise UserError(f"these behaviours have no {source!r} labels; they have: {', '.join(self.labels)}")
        if behaviour not in self.names:
            raise UserError(f"behaviour {behaviour} does not exist; there are 0 to {max(self.names)}")
        return self.index[source][self.labels[source] == behaviour]


def check_names(names: Any, count: int, where: str, of: str = "behaviour", every: bool = True) -> dict[int, str]:
    """A user's names of ``count`` behaviours (or codes, ``of``), from JSON: {"0": "a name", ...}; every: none is left
    out.  UserError, which begins with ``where``, unless each is one line of text that a page has room for."""
    known = {str(number): number for number in range(count)}
    if not isinstance(names, dict) or (every and names.keys() != known.keys()):
        which = f"each of the {of}s 0 to {count - 1}" if every else f"{of}s"
        raise UserError(f"{where} must name {which}, as {{'0': 'a name', ...}}")
    for key, name in names.items():
        if key not in known:
            raise UserError(f"{where}: there is no {of} {key!r}; there are 0 to {count - 1}")
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise UserError(f"{where}: the name of {of} {key} must be one line of text, not {name!r}")
        if len(name) > LONGEST_NAME:
            raise UserError(f"{where}: the name of {of} {key} has {len(name)} characters; {LONGEST_NAME} at most")
    return {known[key]: name.strip() for key, name in names.items()}


def load_behaviours(path: Path) -> Behaviours:
    """The labels of a behaviours run directory, and the names in its behaviours.json.  Raises UserError."""
    path = Path(path)
    manifest = artefacts.read_manifest(path, STAGE)
    result = Result.load(path)
    have = [s for s in SOURCES if f"labels_{s}" in result.arrays]
    raw = artefacts.load_json(path, NAMES)
    if NAMES in artefacts.edited_files(path):
        print(f"note: {path / NAMES} was edited since the behaviours were made; its names are used", file=sys.stderr)
    names = check_names(raw, int(result.notes["behaviours"]), str(path / NAMES))
    labels = {s: result.arrays[f"labels_{s}"].astype(np.int64) for s in have}
    return Behaviours(
        labels={s: labels[s][labels[s] != NOISE] for s in have},
        index={s: result.arrays[f"index_{s}"][labels[s] != NOISE] for s in have},
        sample_labels=result.arrays["sample_labels"].astype(np.int64),
        names=names,
        agent=manifest["facts"]["agent"],
    )


def sample_labels(label_N: np.ndarray, index_N2: np.ndarray, episodes: int, first: int = LABEL_STEPS) -> np.ndarray:
    """Mode of each episode's first labels int64 [episodes]; the earliest wins a tie, -1 where there is none."""
    out = np.full(episodes, -1)
    order = np.argsort(index_N2[:, 0], kind="stable")
    each, begin = np.unique(index_N2[order, 0], return_index=True)
    for e, rows in zip(each, np.split(order, begin[1:]), strict=len(each) > 0):
        labels = label_N[rows[:first]]
        out[e] = labels[np.argmax([(labels == label).sum() for label in labels])]
    return out
