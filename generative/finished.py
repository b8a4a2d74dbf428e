"""The finished shards of a run directory that is being written: a run that was killed goes on after them.

What a shard told the whole run lies beside it, in FOLDER: its arrays, then a sealed record of that, of the run, and of
the shard's files by their SHA-256.  A shard without a record that holds is made again.  The folder goes when the run is
whole.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agents.recording_state import FREE_IN_RECORDING, check_made_of
from core import artefacts, config as cli, ranks
from core.contracts import UserError
from core.files import npz_of, parsing, write_npz
from core.training import check_same, fixed_in

FOLDER = artefacts.FINISHED
ARRAY = "of the npz"  # a record has {ARRAY: name} in the place of an array


@dataclass(frozen=True)
class Finished:
    """Keeps and finds what finished shards told; for every process of a run."""

    path: Path  # the run directory, the first process's
    made_of: Mapping[str, Any]  # what must be the same (agents.recording_state.made_of)
    started: float  # when the run did, of time.monotonic

    def _file(self, shard: int, kind: str) -> Path:
        return self.path / FOLDER / f".shard_{shard:05d}.{kind}"  # hidden: no part of what the run makes

    def keep(self, shard: int, names: Sequence[str], told: Any) -> None:
        """After the shard's files, ``names``, are written.  told: JSON values and arrays."""
        arrays: dict[str, np.ndarray] = {}
        said = _apart(told, arrays)
        (self.path / FOLDER).mkdir(exist_ok=True)
        beside = self._file(shard, "npz")
        write_npz(beside, arrays)
        names = [*names, f"{FOLDER}/{beside.name}"]
        about = {
            "run": artefacts.run_name(self.path),
            "made_of": self.made_of,
            "wall_s": time.monotonic() - self.started,
            "files": {name: artefacts.sha256(self.path / name) for name in names},
            "told": said,
        }
        artefacts.write_json(self._file(shard, "json"), artefacts.sealed(about))

    def told(self, shard: int) -> Any:
        """What a finished shard told; None where it is not finished, or (said in a line) not what it was."""
        file, beside = self._file(shard, "json"), self._file(shard, "npz")
        if not file.exists():
            return None
        try:
            about = _record(file, self.path)
            with parsing(file, "record of a shard", "it is made again"):
                if about["made_of"] != self.made_of:
                    raise ValueError("it was made of something else")
                for name, known in about["files"].items():
                    if artefacts.sha256(self.path / name) != known:
                        raise ValueError(f"{name} is not the file that was written")
                return _whole(about["told"], npz_of(beside, beside))
        except UserError as error:
            print(f"note: {error}", file=sys.stderr)
            return None

    def forget(self) -> None:
        """The run is whole."""
        if ranks.first():
            shutil.rmtree(self.path / FOLDER, ignore_errors=True)


def _apart(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON, its arrays put into ``arrays``."""
    if isinstance(value, np.ndarray):
        arrays[name := str(len(arrays))] = value
        return {ARRAY: name}
    if isinstance(value, dict):
        return {k: _apart(v, arrays) for k, v in value.items()}
    return [_apart(v, arrays) for v in value] if isinstance(value, (list, tuple)) else value


def _whole(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """What ``_apart`` took apart; tuples come back as lists."""
    if isinstance(value, dict):
        return arrays[value[ARRAY]] if value.keys() == {ARRAY} else {k: _whole(v, arrays) for k, v in value.items()}
    return [_whole(v, arrays) for v in value] if isinstance(value, list) else value


def _record(file: Path, path: Path) -> dict[str, Any]:
    """A shard's record; UserError unless it is whole and of the run in ``path``."""
    about = cli.read_json(file)
    with parsing(file, "record of a shard", "it is made again"):
        if not isinstance(about, dict) or not artefacts.seal_holds(about):
            raise ValueError("it differs from its seal")
        if about["run"] != artefacts.run_name(path):
            raise ValueError("it is of another run")
    return about


def begun(config: Any, stage: str, made_of: Mapping[str, Any]) -> float:
    """Seconds that the run in config.out has taken; UserError unless it was begun with this command and has finished
    shards."""
    out: Path = config.out
    if not (out / FOLDER).is_dir():
        raise UserError(f"{out} has no finished shards to go on after ({FOLDER}); begin it without --resume "
                        "(--overwrite, if it holds anything)")  # fmt: skip
    check_same(config, out, stage, fixed_in(config, FREE_IN_RECORDING))
    seconds = 0.0
    for file in sorted((out / FOLDER).glob(".shard_*.json")):
        try:
            about = _record(file, out)
        except UserError:  # said when it is its turn
            continue
        check_made_of(out, about["made_of"], made_of)
        seconds = max(seconds, about["wall_s"])
    return seconds


@contextmanager
def opened(
    config: Any, stage: str, inputs: artefacts.Inputs, made_of: Mapping[str, Any]
) -> Iterator[tuple[artefacts.Run, Finished]]:
    """The run directory in config.out, fresh or with config.resume gone on with, and what is finished there."""
    kept = replace(config, resume=False)  # the run is that of a command that nothing stopped
    if config.resume and ranks.first():
        before = begun(config, stage, made_of)
        opening = artefacts.resumed(config.out, stage, kept, inputs)
    else:
        before, opening = 0.0, artefacts.new_run(config.out, stage, kept, inputs, overwrite=config.overwrite)
    with opening as run:
        run.started -= before
        yield run, Finished(ranks.processes().folder(run.path), made_of, run.started)
