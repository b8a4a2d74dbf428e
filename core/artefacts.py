"""Run directories: payload, then ``manifest.json`` last and atomically.

A manifest says what made the directory (stage, argv, resolved config, seed, code and package
versions, device), what it was made from (each input's path and manifest hash) and what is in it
(each file's size and SHA-256, metrics with units), and seals all that with a SHA-256 of its own.  A
directory without one is half-written, and no stage reads it.  A file of a run directory is read through
``load_bytes`` (or what stands on it), which compares it with the manifest before anything is made of it.
``python -m core.artefacts verify DIR`` walks the whole chain.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m core.artefacts", file=sys.stderr)
    sys.exit(2)

import fnmatch
import hashlib
import importlib.metadata
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch

from core import lock, ranks
from core.config import ROOT, read_json, says, to_json
from core.contracts import UserError
from core.files import (
    AGAIN,
    DIFFERS,
    CannotFilm,
    Rows,
    csv_bytes,
    csv_of,
    is_inside,
    json_of,
    npy_of,
    npz_of,
    read_bytes,
    refused,
    tensors_of,
    write_atomically,
    write_npz,
)
from core.stages import writer
from core.stats import few
from core.words import counted

MANIFEST = "manifest.json"
HALF_CONFIG = ".config.json.*.tmp"  # of a process that was killed as it opened a run directory
SCHEMA = 2
READ = (1, 2)  # schema 1 has no seal
SEAL = "seal"
WEIGHTS = "model.safetensors"
PACKAGES = (
    "torch", "numpy", "scipy", "scikit-learn", "procgen-mirror", "nmmo", "pufferlib", "captum", "umap-learn", "hdbscan",
    "python-picard", "h5py", "jax", "craftax",
)  # fmt: skip
STATES = "training_state/"  # rewritten on resume, read by no other stage; has checksums of its own (core.training)
TRAINING_STATE = f"{STATES}state.pt"  # what a training goes on from; the folder is there before it
RECORDING_STATE = ".state.pt"  # of a recording, until it is whole
FINISHED = ".finished"  # directory of what finished shards told, until the run is whole
# Names that users edit: the manifest marks them "editable" and has the hash of what the stage wrote, so that an edit
# is seen and said, but is no fault.
EDITABLE = ("behaviours.json", "names.json")
BESIDE = "agent_beside"  # key of a bundle's simulator.json: fingerprint of its agent, in the folder beside it
# The file by which a run directory is one of an agent, or of a simulator; each kind has its own.
ADOPTED, OWN_WORLD = "adopted.json", "world.json"  # of users' modules
AGENTS = ("agent.json", "policy.json", ADOPTED)
SIMULATORS = ("simulator.json", OWN_WORLD)
HELD_OUT_WARNING = "held_out_warning"  # fact of a manifest, see ``envs.registry.held_out_facts``
SIMULATOR_WARNING = "simulator_warning"  # fact of a manifest, see ``simulator_warning``
REPLACED_INPUTS = "replaced_inputs"  # fact: names of the inputs that were others when the run ended
LESS_THAN_HELD = "free_running_mse_less_held_frame"  # metric of a simulator (generative.train)


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """JSON, atomically; a number that is not finite becomes null, so that it is never mistaken for one."""
    write_atomically(path, (json.dumps(_finite_only(to_json(value)), indent=1, allow_nan=False) + "\n").encode())


def _finite_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite_only(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite_only(v) for v in value]
    return finite(value) if isinstance(value, float) else value


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values with the SHA-256 of them all under ``seal``, so that a change of one is seen (see ``seal_holds``)."""
    plain = json.loads(json.dumps(_finite_only(to_json(values)), allow_nan=False))
    return {**plain, SEAL: _seal(plain)}


def seal_holds(values: Mapping[str, Any]) -> bool:
    """Whether JSON values are those that ``sealed`` sealed."""
    return values.get(SEAL) == _seal({k: v for k, v in values.items() if k != SEAL})


def _seal(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def script_name() -> str:
    """The file that runs; of a folder that is one (``__main__.py``), the folder's name."""
    path = Path(sys.argv[0])
    return f"{path.parent.name}.py" if path.name == "__main__.py" else path.name


def code_version() -> str:
    """The commit of the checkout, with '+changed' if tracked files differ; 'unknown' outside git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        diff = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+changed" if diff.stdout.strip() else "")


@cache
def _installed() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def package_versions() -> dict[str, str]:
    """What this process computes with, by name."""
    versions = dict(_installed())
    if cuml := sys.modules.get("cuml"):  # RAPIDS' accelerator, which a user has switched on, fits in their place
        versions["cuml"] = str(getattr(cuml, "__version__", "unknown"))
    return versions


def parameter_count(module: torch.nn.Module) -> int:
    """How many trainable numbers a module holds."""
    return sum(p.numel() for p in module.parameters())


def finite(value: Any) -> float | None:
    """The number for a file; None where there is none or it is not finite, so that it is never mistaken for one."""
    return float(value) if value is not None and np.isfinite(value) else None


def column_of(rows: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """A table's column as float64 [rows]; NaN where a row has no number."""
    return np.array([row.get(key) for row in rows], np.float64)  # of None numpy makes NaN


def metric(
    value: float | None, unit: str, n: int | None = None, interval: Sequence[float] | None = None
) -> dict[str, Any]:
    """One number for a manifest or a result: value, unit, sample size and 95 % interval if known.

    A value that is not finite is stored as null, so that it is never mistaken for a number.
    """
    out: dict[str, Any] = {"value": finite(value), "unit": unit}
    if n is not None:
        out["n"] = int(n)
    if interval is not None:
        out["interval"] = [finite(v) for v in interval]
    return out


class Inputs(Mapping[str, Path]):
    """Run directories by name, as they were when they were named: a stage names them before it reads them, as they may
    be replaced in the hours that it takes.

    A path that is None, an option that was not given, is left out.  ``a | b`` has those of both, each as it was when it
    was named.  Raises UserError where one is no whole run directory.
    """

    def __init__(self, given: Mapping[str, Path | None] | None = None) -> None:
        self._paths = {name: Path(path) for name, path in (given or {}).items() if path is not None}
        self.made_from: dict[str, str]  # SHA-256 of their manifests
        self.warning: str | None  # what must be said of a simulator among them
        if isinstance(given, Inputs):
            self.made_from, self.warning = dict(given.made_from), given.warning
        else:
            self.made_from = {name: manifest_sha256(path) for name, path in self._paths.items()}
            self.warning = warning_of(self)

    def __getitem__(self, name: str) -> Path:
        return self._paths[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __or__(self, more: Mapping[str, Path | None]) -> Inputs:
        both, more = Inputs(self), Inputs(more)
        both._paths |= more._paths
        both.made_from |= more.made_from
        both.warning = self.warning or more.warning
        return both

    def replaced(self) -> list[str]:
        """Names of those that are no longer what they were, or no longer there."""
        return [name for name, path in self.items() if _manifest_or_none(path) != self.made_from[name]]


@dataclass
class Run:
    """A run directory being written."""

    path: Path
    stage: str
    config: Any
    inputs: Inputs = field(default_factory=Inputs)
    metrics: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # what other stages check: agent fingerprint, source ...
    started: float = field(default_factory=time.monotonic)
    replaced: Path | None = None  # the run that this one replaces, set aside until it is whole
    undrawn: Exception | None = None  # what ended the drawing of figures

    def record(self, name: str, value: float, unit: str, n: int | None = None, interval: Any = None) -> None:
        """Put a metric into the manifest."""
        self.metrics[name] = metric(value, unit, n, interval)

    @contextmanager
    def figures(self) -> Iterator[None]:
        """A block that draws what is saved.  An error in it costs the figures, not the numbers: the run becomes whole,
        with the fact ``figures`` that says what failed, and then ``new_run`` raises the error.  So does a video that
        ffmpeg cannot write.  Another UserError and what the system refuses (a full disk) end the run as anywhere."""
        try:
            yield
        except CannotFilm as error:
            self.undrawn = self.undrawn or error
        except Exception as error:
            if isinstance(error, UserError) or _users_part(error, self.path) is not None:
                raise
            self.undrawn = self.undrawn or error

    def tell_undrawn(self) -> None:
        """Of a whole run: raise what ended the drawing of its figures, if anything did."""
        if self.undrawn is not None:
            print(f"note: the numbers of {self.path} are saved, and can be read; not all figures were drawn:",
                  file=sys.stderr)  # fmt: skip
            raise self.undrawn

    def finish(self) -> None:
        """Hash what is there and write the manifest."""
        if self.undrawn is not None:
            self.facts = {**self.facts, "figures": f"failed: {type(self.undrawn).__name__}: {self.undrawn}"}
        if self.inputs.warning is not None:
            self.facts = {**self.facts, SIMULATOR_WARNING: self.inputs.warning}
            print(f"warning: {self.inputs.warning}", file=sys.stderr)
        if gone := self.inputs.replaced():
            self.facts = {**self.facts, REPLACED_INPUTS: gone}
            print(
                f"warning: {', '.join(str(self.inputs[name]) for name in gone)}: replaced or moved while this run was "
                "made, whose manifest names what was there before; make it again to be sure", file=sys.stderr,
            )  # fmt: skip
        files: dict[str, dict[str, Any]] = {
            p.relative_to(self.path).as_posix(): {"bytes": p.stat().st_size, "sha256": sha256(p)}
            for p in sorted(self.path.rglob("*"))
            if p.is_file() and _is_payload(p, self.path)
        }
        for name in files.keys() & set(EDITABLE):
            files[name]["editable"] = True
        inputs = {
            name: {"path": os.path.relpath(directory.resolve(), self.path.resolve()),
                   "manifest_sha256": self.inputs.made_from[name]}
            for name, directory in self.inputs.items()
        }  # fmt: skip
        config = to_json(self.config)
        about = {
            "schema": SCHEMA,
            "stage": self.stage,
            "argv": [script_name(), *sys.argv[1:]],
            "config": config,
            "seed": config.get("seed") if isinstance(config, dict) else None,
            "code": code_version(),
            "packages": package_versions(),
            "device": config.get("device", "cpu") if isinstance(config, dict) else "cpu",
            "machine": {
                "cpus": os.cpu_count(),
                "platform": platform.machine(),
                "threads": torch.get_num_threads(),
                "processes": ranks.count(),
            },
            "wall_s": round(time.monotonic() - self.started, 2),
            "inputs": inputs,
            "files": files,
            "facts": self.facts,
            "metrics": self.metrics,
        }
        write_json(self.path / MANIFEST, sealed(about))
        if self.replaced is not None:
            shutil.rmtree(self.replaced, ignore_errors=True)
        lock.release(self.path)


def manifest_sha256(path: Path) -> str:
    """SHA-256 of a whole run directory's manifest, by which others know it.  UserError where there is none."""
    read_manifest(path)
    return sha256(Path(path) / MANIFEST)


def warning_of(inputs: Mapping[str, Path]) -> str | None:
    """What a run must say of a simulator that it is made with (see ``simulator_warning``).

    Not of one whose weights a training began with: what was made of them was compared by itself."""
    made_with = (d for name, d in inputs.items() if not name.startswith("begin_with"))
    return next((said for d in made_with if (said := simulator_warning(d)) is not None), None)


def _manifest_or_none(path: Path) -> str | None:
    try:
        return sha256(path / MANIFEST)
    except OSError:
        return None


def _is_payload(path: Path, root: Path) -> bool:
    """Not a manifest, not state that is rewritten on resume, not inside a nested run directory."""
    name = path.relative_to(root).as_posix()
    if path.name == MANIFEST or path.name.startswith(".") or name.startswith(STATES):
        return False
    return not any((parent / MANIFEST).exists() for parent in path.parents if parent != root and root in parent.parents)


def aside_of(path: Path) -> Path:
    """Where the run that a new one replaces waits until the new one is whole."""
    path = _place_of(path)
    path = path if path.name else path.resolve()  # "."
    return path.parent / f".{path.name}.replaced"


def _waits(aside: Path) -> str:
    """What is in the directory of a run that was set aside, in words; '' where nothing is that one would want back."""
    if (aside / MANIFEST).exists():
        return "whole"
    return "half-written, with its saved state," if _goes_on(aside) else ""


def _goes_on(path: Path) -> bool:
    """Whether a half-written run can be gone on with."""
    states = (TRAINING_STATE, RECORDING_STATE, FINISHED)
    return (path / "config.json").exists() and any((path / name).exists() for name in states)


def _is_ours(aside: Path) -> bool:
    """Whether a directory of the name of a run that was set aside is one."""
    return bool(begun_by(aside)) or (aside.is_dir() and not _holds_data(aside))


def _earlier(path: Path) -> str:
    """Where the run is that one which was cut off was to replace, and how it comes back; '' if there is none."""
    aside, name = aside_of(path), quote(str(path))
    if not (how := _waits(aside)):
        return ""
    return f"; the earlier run is {how} in {aside}, and comes back by: rm -rf {name} && mv {quote(str(aside))} {name}"


# Keys of a configuration that say how a command begins and ends, not what it makes.
COMMANDS = ("resume", "overwrite", "stop_after", "save_minutes")


def cut_off(path: Path, stage: str, config: Any) -> bool:
    """Whether a directory is what this very command left when it was cut off: half-written, by this stage with this
    configuration (but for ``COMMANDS``), however its paths are spelled, and with no earlier run set aside."""
    mark = path / "config.json"
    if (path / MANIFEST).exists() or not mark.exists() or _waits(aside_of(path)):
        return False

    try:
        about = {"stage": None, **read_json(mark)}
    except (UserError, TypeError):  # a file of that name that no stage wrote
        return False
    was = about.get("config")
    if about["stage"] != stage or not isinstance(was, dict):
        return False
    now = config if isinstance(config, Mapping) else {f.name: getattr(config, f.name) for f in fields(config)}

    def makes(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {k: _path_in(settings, k) if k == "begin_with" else v for k, v in settings.items() if k not in COMMANDS}

    return says(makes(was), makes(now))


def begin_run(path: Path, stage: str, config: Any, inputs: Inputs | None = None, *, overwrite: bool = False) -> Run:
    """Open a fresh run directory for writing; ``finish`` makes it whole.

    An existing directory with anything in it is refused, unless this very command was cut off in it (``cut_off``): then
    it is made anew, and that is said.  With ``overwrite`` a run directory of the same stage (whole or half-written) is
    set aside, as ``.NAME.replaced`` beside it, and deleted only when the new one is whole.  Until then the directory is
    locked (core.lock).  Raises UserError.  inputs: a mapping of paths becomes ``Inputs``, of what is there now.
    """
    path, inputs = _place_of(path), Inputs(inputs)
    aside, replaced = aside_of(path), None
    with _writer_of(path):
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file, not a directory; choose another --out")
        holds, whole = path.exists() and _holds_data(path), (path / MANIFEST).exists()
        anew = holds and not overwrite and cut_off(path, stage, config)
        if anew:
            print(f"note: {path} was left half-written by this command: it is made anew", file=sys.stderr)
        elif not overwrite and (holds or _waits(aside)):
            raise UserError(_why_kept(path, holds, whole))
        elif holds:
            _check_replaceable(path, stage, inputs)
        if holds and overwrite and not whole:
            state = ", with a saved state from which --resume would go on" if _goes_on(path) else ""
            print(f"note: {path} was half-written{state}: it begins anew", file=sys.stderr)
        try:
            if overwrite and _waits(aside) and not whole:  # what another one, which was cut off, was to replace
                if begun_by(aside) != stage:
                    raise UserError(f"{aside} is in the way, a {begun_by(aside)!r} run: move it elsewhere")
                replaced = aside
            if anew or (holds and replaced is not None):
                _discard(path)
            elif holds:
                shutil.rmtree(aside, ignore_errors=True)
                if aside.exists():  # else it would be put back below, in place of the run that is there
                    raise UserError(f"{aside}, an earlier run, is in the way and cannot be removed: move it elsewhere")
                replaced = aside
                os.replace(path, aside)
            path.mkdir(parents=True, exist_ok=True)
            for half_written in path.glob(HALF_CONFIG):
                half_written.unlink()
            write_json(path / "config.json", _mark(stage, config, inputs))
        except BaseException:
            if replaced is not None and replaced.exists():
                _discard(path)
                os.replace(replaced, path)
            raise
    return Run(path, stage, config, inputs, replaced=replaced)


def _why_kept(path: Path, holds: bool, whole: bool) -> str:
    """What is said where a command without --overwrite would replace what is in a directory, or waits beside it."""
    if not holds:
        aside, empty = aside_of(path), f"rmdir {quote(str(path))} && " if path.exists() else ""
        return (f"{aside} holds an earlier run, {_waits(aside)} that waits to be replaced; put it back by: "
                f"{empty}mv {quote(str(aside))} {quote(str(path))}, or pass --overwrite")  # fmt: skip
    going_on = ", or --resume, which goes on from its state" if _goes_on(path) else ""
    earlier = "" if whole else _earlier(path)
    return f"{path} already holds data; choose another directory or pass --overwrite{going_on}{earlier}"


def _check_replaceable(path: Path, stage: str, inputs: Inputs) -> None:
    """UserError unless a run directory that holds data may be replaced, as --overwrite asks."""
    if begun_by(path) != stage:
        raise UserError(
            f"{path} is not a {stage!r} run directory; it is not overwritten; choose another --out, or remove it"
        )
    for directory in inputs.values():
        if directory.resolve().is_relative_to(path.resolve()):
            raise UserError(f"{directory} is an input of this run and would be overwritten; choose another --out")
    aside = aside_of(path)
    if aside.exists() and not _is_ours(aside):
        raise UserError(f"{aside} is in the way: what is replaced waits there; move it elsewhere")


def _mark(stage: str, config: Any, inputs: Inputs) -> dict[str, Any]:
    """What a run directory's config.json says from its beginning on; of its inputs the checksums of their manifests;
    and a name, by which the run knows its states (``run_name``)."""
    return {"stage": stage, "config": to_json(config), "inputs": inputs.made_from, "run": secrets.token_hex(8)}


def run_name(path: Path) -> str | None:
    """What tells a run directory from every other one, also of the same command; None of an earlier version's."""
    mark = path / "config.json"
    about = read_json(mark) if mark.exists() else None
    name = about.get("run") if isinstance(about, dict) else None
    return name if isinstance(name, str) else None


def _place_of(path: Path) -> Path:
    """The directory itself where ``path`` is a link to it: what is set aside and locked lies beside that."""
    path = Path(path)
    return path.resolve() if path.is_symlink() else path


def _holds_data(path: Path) -> bool:
    """Whether there is anything in a directory but what a process left that was killed as it opened a run there."""
    return bool({*path.iterdir()} - {*path.glob(HALF_CONFIG), path / ".lock"})


def _discard(path: Path) -> None:
    """Delete a directory; it is gone from its name at once, so that none is left there without its marks."""
    waste = path.with_name(f".{path.name}.discarded")
    shutil.rmtree(waste, ignore_errors=True)
    if path.exists():
        os.replace(path, waste)
        shutil.rmtree(waste, ignore_errors=True)


@contextmanager
def _writer_of(path: Path) -> Iterator[None]:
    """Lock a run directory; unlock it if the block, in which it is made ready, ends in an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.take(path)
        yield
    except OSError as error:
        lock.release(path)
        said = refused(error, path) or f"{error.filename or path}: {error.strerror}; choose another --out"
        raise UserError(f"cannot write the run directory {path} ({said})") from error
    except BaseException:
        lock.release(path)
        raise


def resumed_run(path: Path, stage: str, config: Any, inputs: Inputs) -> Run:
    """A run directory that was begun before, locked; half-written until ``finish``.

    UserError, and it stays as it is, unless it was begun with these inputs, wherever they lie now (of what an earlier
    version began: unless they have the same paths).
    """
    path, inputs = _place_of(path), Inputs(inputs)
    with _writer_of(path):
        mark = _mark(stage, config, inputs)
        saved = read_json(path / "config.json")
        before = saved.get("inputs", {}) if isinstance(saved, dict) else None
        if not isinstance(before, dict):
            raise UserError(f"{path / 'config.json'} is not the configuration of a run; {AGAIN}")
        now: dict[str, Any] = mark["inputs"]
        if "inputs" not in saved:  # an earlier version began it: the paths' text is all there is
            before, now = ({k: _path_in(of["config"], k) for k in ("begin_with", *inputs)} for of in (saved, mark))
        if others := [k for k in {**before, **now} if before.get(k) != now.get(k)]:
            raise UserError(f"{path} was begun with another {others[0]}; start another run for that")
        mark |= {"run": name} if (name := run_name(path)) else {}
        (path / MANIFEST).unlink(missing_ok=True)
        for half_written in path.rglob(".*.tmp"):  # by a process that was killed
            half_written.unlink()
        write_json(path / "config.json", mark)
    aside = aside_of(path)
    replaced = aside if _is_ours(aside) else None
    return Run(path, stage, config, inputs, replaced=replaced)


def _path_in(config: Mapping[str, Any], name: str) -> Any:
    """The directory that a configuration names, which some name one by one and some in a list."""
    value = config.get(name) or None
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


@contextmanager
def resumed(path: Path, stage: str, config: Any, inputs: Inputs) -> Iterator[Run]:
    """``resumed_run`` as a block: its manifest is written only if the block ends well; what is there stays anyway."""
    run = resumed_run(path, stage, config, inputs)
    try:
        yield run
        run.finish()
        run.tell_undrawn()
    except BaseException as error:
        lock.release(path)
        if (said := _users_part(error, path)) is not None:
            raise said from error
        raise


def _users_part(error: BaseException, path: Path) -> UserError | None:
    """What a user is told of an error while the run in ``path`` was written: what the system refuses, or that the
    directory is gone; None for other errors."""
    if isinstance(error, FileNotFoundError) and not path.is_dir():
        return UserError(f"{path} was moved or removed while this run wrote it; start it again")
    return refused(error, path) if isinstance(error, OSError) else None


def settle(path: Path) -> None:
    """Remove what a process left beside a whole run directory that was killed once it had written the manifest: the run
    that was replaced, the lock.  Raises UserError."""
    path = _place_of(path)
    with _writer_of(path):
        if _is_ours(aside_of(path)):
            shutil.rmtree(aside_of(path), ignore_errors=True)
    lock.release(path)


@contextmanager
def new_run(
    path: Path, stage: str, config: Any, inputs: Inputs | None = None, *, overwrite: bool = False
) -> Iterator[Run]:
    """``begin_run`` as a block: its manifest is written only if the block ends well.

    If it ends in an error, what it replaced comes back (one in ``Run.figures`` is raised when the run is whole); a
    directory in which nothing was written yet does not stay after a user's mistake or a signal.  Of the processes that
    do a stage together (core.ranks) only the first writes there; the others write into a directory that goes when the
    block ends.
    """
    if not ranks.first():
        with ranks.scratch() as folder:
            yield begin_run(folder, stage, config, inputs)
        return
    run = begin_run(path, stage, config, inputs, overwrite=overwrite)
    try:
        yield run
        run.finish()
        run.tell_undrawn()
    except BaseException as error:
        if (run.path / MANIFEST).exists():  # it is whole; only what it replaced may still be there
            lock.release(run.path)
            raise
        said = _users_part(error, run.path)
        untouched = not run.path.is_dir() or {p.name for p in run.path.iterdir()} <= {"config.json", ".lock"}
        nobody_s_fault = isinstance(said or error, UserError) or not isinstance(error, Exception)
        if run.replaced is not None or (untouched and nobody_s_fault):
            _discard(run.path)
        if run.replaced is not None:
            os.replace(run.replaced, run.path)
        lock.release(run.path)
        if said is not None:
            raise said from error
        raise


def read_manifest(path: Path, stage: str | None = None) -> dict[str, Any]:
    """The manifest of a whole run directory (of ``stage`` if given); UserError says what is missing."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(_no_directory(path))
    if not (path / MANIFEST).exists():
        runs = (p.parent for depth in ("[!.]*", "[!.]*/[!.]*") for p in path.glob(f"{depth}/{MANIFEST}"))
        inside = sorted(map(str, runs))
        if inside and not (path / "config.json").exists():  # with one it is a run, begun
            raise UserError(f"{path} is no run directory but holds some: name one, such as {' or '.join(inside[:3])}")
        if who := lock.holder(path):
            raise UserError(f"{path} is being written by {who}; wait for it")
        again = _earlier(path) or "; run the stage that writes it again"
        raise UserError(f"{path} is half-written (it has no {MANIFEST}){again}")
    manifest: dict[str, Any] = read_json(path / MANIFEST)
    if not _is_manifest(manifest):
        raise UserError(f"{path / MANIFEST} is not a manifest of this project; run the stage that writes it again")
    if manifest["schema"] not in READ:
        raise UserError(f"{path}: manifest schema {manifest['schema']}, this version reads {READ[0]} to {READ[-1]}")
    if (manifest["schema"] != 1 or SEAL in manifest) and not seal_holds(manifest):
        raise UserError(f"{path / MANIFEST}: content differs from its seal; copy or make the directory again")
    if stage is not None and manifest["stage"] != stage:
        raise UserError(f"{path} was written by stage {manifest['stage']!r}; a {stage!r} directory is needed")
    return manifest


def begun_by(path: Path) -> str:
    """The stage of a run directory, whole or half-written, as its configuration names it; '' where there is none."""
    mark = read_json(path / "config.json") if (path / "config.json").exists() else None
    return str(mark.get("stage", "")) if isinstance(mark, dict) else ""


def _no_directory(path: Path) -> str:
    """What is said of a path that is to be a run directory and is no directory."""
    if path.exists():
        run = next((p for p in path.parents if (p / MANIFEST).exists()), None)
        return f"{path} is a file; name {'a run directory' if run is None else f'the run directory {run}'}"
    if path.is_symlink():
        return f"{path} is a link that leads nowhere; mend it, or name the run directory itself"
    return f"{path}: no such run directory{_earlier(path) or writer(path)}"


def _is_manifest(value: Any) -> bool:
    """Whether JSON has the form of a manifest."""

    def holds(part: Any, keys: Mapping[str, type]) -> bool:
        return isinstance(part, dict) and all(isinstance(part.get(k), kind) for k, kind in keys.items())

    parts = {"schema": int, "stage": str, "files": dict, "inputs": dict, "facts": dict}
    return (
        holds(value, parts)
        and all(holds(known, {"bytes": int, "sha256": str}) for known in value["files"].values())
        and all(is_inside(name) and Path(name).name != MANIFEST for name in value["files"])
        and all(holds(known, {"path": str, "manifest_sha256": str}) for known in value["inputs"].values())
    )


def description(manifest: Mapping[str, Any], kinds: Sequence[str]) -> str | None:
    """The file of ``AGENTS`` or ``SIMULATORS`` that a run directory holds; None: it holds no such thing."""
    return next((name for name in kinds if name in manifest["files"]), None)


def training_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of a training, that of a copy made for shipping (``facts.training``) too."""
    return {**manifest, **manifest["facts"].get("training", {})}


def simulator_warning(path: Path) -> str | None:
    """What a result must say of the simulator that it was made with: that this is worse than a held frame, is not shown
    to be better, or was never compared with one.  None: it is better, or there is no simulator behind the run ``path``.

    A simulator's manifest has the comparison among its metrics (``LESS_THAN_HELD``).  Every run made from a warned-of
    simulator, at whatever remove, has the sentence under the fact ``simulator_warning`` of its manifest and prints it
    once; this reads it there, or finds the simulator up the chain of inputs, as far as that is still in place.
    """
    manifest = read_manifest(path)
    facts = manifest["facts"]
    if SIMULATOR_WARNING in facts:
        return str(facts[SIMULATOR_WARNING])
    if manifest["stage"] == "train_gen_model":
        training = facts.get("training")
        own = training.get("metrics") if isinstance(training, dict) else None
        return poor_simulator(*(m for m in (manifest.get("metrics"), own) if isinstance(m, dict)))
    sources = [(Path(path) / known["path"], known["manifest_sha256"]) for known in manifest["inputs"].values()]
    there = [d for d, known in sources if (d / MANIFEST).exists() and sha256(d / MANIFEST) == known]
    return next((said for d in there if (said := simulator_warning(d)) is not None), None)


def compared(known: Any) -> tuple[float | None, Any, tuple[float | None, float | None]]:
    """(value, n, interval) of a stored comparison; UserError where it is none."""
    try:
        ends = known.get("interval") or (None, None)
        value, low, high = (None if x is None else float(x) for x in (known["value"], *ends))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise UserError(f"a manifest's {LESS_THAN_HELD} is no comparison; {AGAIN}") from None
    return value, known.get("n"), (low, high)


def poor_simulator(*metrics: Mapping[str, Any]) -> str | None:
    """The sentence about a simulator from its metrics (the first that have the comparison count), or None.

    It is worse where the whole interval says so; an interval that holds 0, or none, leaves it open."""
    known = next((m[LESS_THAN_HELD] for m in metrics if LESS_THAN_HELD in m), None)
    if known is None:
        return (
            "the simulator was never compared with a held frame (an earlier version trained it): "
            "see frame_mse_less_copy of validation.fidelity, or train it again"
        )
    value, n, (low, high) = compared(known)
    if high is not None and high < 0:
        return None
    off = "not a number" if value is None else f"{value:+.3g}"
    between = "" if low is None or high is None else f" [{low:+.3g}, {high:+.3g}]"
    worse = low is not None and low > 0
    return (
        f"the simulator is {'worse' if worse else 'not shown to be better'} than a held frame: the "
        f"squared error of its free-running frames less that of the last frame seen, repeated, is {off}{between} "
        f"(n = {n} validation episodes{few(n) if isinstance(n, int) else ''})"
    )


def save_weights(
    module: torch.nn.Module, path: Path, half: Callable[[str], bool] | None = None, small: bool = False
) -> None:
    """Parameters and buffers as safetensors, atomically; those whose name ``half`` picks as float16.  small: also
    those that lose nothing by it."""
    from safetensors.torch import save

    def is_half(name: str, tensor: torch.Tensor) -> bool:
        exact = small and tensor.dtype == torch.float32 and torch.equal(tensor.half().float(), tensor)
        return exact or (half is not None and half(name))

    # Copies: safetensors refuses tensors that share memory, as tied weights do.
    state = {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in module.state_dict().items()}
    write_atomically(path, save({k: v.half() if is_half(k, v) else v for k, v in state.items()}))


def files_of(path: Path, pattern: str = "*") -> list[str]:
    """Names of a whole run directory's files, sorted, that match a shell pattern.  Raises UserError."""
    return sorted(fnmatch.filter(read_manifest(path)["files"], pattern))


def load_bytes(path: Path, name: str) -> bytes:
    """A file of a whole run directory, compared with the manifest: what comes back has its size and its SHA-256.

    The file is read once, so that what was compared is what is used.  A file that users may edit comes back as it is
    (``edited_files`` tells).  Raises UserError if the directory is half-written, or the file is not of it, gone or
    another.
    """
    path = Path(path)
    manifest = read_manifest(path)
    known = manifest["files"].get(name)
    if known is None and name not in EDITABLE:  # earlier versions kept no hash of those
        raise UserError(f"{path} has no {name} in its manifest (stage {manifest['stage']!r} wrote it)")
    if not (path / name).exists():
        raise UserError(f"{path / name} is missing; {AGAIN}")
    if known is None or known.get("editable"):
        if not (path / name).resolve().is_relative_to(path.resolve()):
            raise UserError(f"{path / name} leads out of its directory; put the file itself there")
        return read_bytes(path / name)
    data = read_bytes(path / name, bytes_known=known["bytes"])
    if not _is_known(data, known):
        raise UserError(f"{path / name}: {DIFFERS}")
    return data


def check_file(path: Path, name: str) -> Path:
    """A file of a whole run directory that is too large to be read whole (``load_bytes``), compared with the manifest;
    where it lies.  UserError likewise."""
    path = Path(path)
    known = read_manifest(path)["files"].get(name)
    if known is None:
        raise UserError(f"{path} has no {name} in its manifest")
    if not (path / name).exists():
        raise UserError(f"{path / name} is missing; {AGAIN}")
    if sha256(path / name) != known["sha256"]:
        raise UserError(f"{path / name}: {DIFFERS}")
    return path / name


@contextmanager
def as_written(path: Path) -> Iterator[None]:
    """A block that shows what a result holds: one that lacks what its stage writes (its files are whole, so it was
    written by something else) is a UserError that names it."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is not what its stage writes ({said}); {AGAIN}") from error


def _is_known(data: bytes, known: Mapping[str, Any]) -> bool:
    return len(data) == known["bytes"] and hashlib.sha256(data).hexdigest() == known["sha256"]


def edited_files(path: Path) -> list[str]:
    """The files of a whole run directory that users may edit and have edited since the stage wrote them."""
    files = read_manifest(path)["files"]
    return [n for n, known in files.items() if known.get("editable") and not _is_known(load_bytes(path, n), known)]


def load_json(path: Path, name: str) -> Any:
    """A JSON file of a whole run directory (see ``load_bytes``)."""
    return json_of(load_bytes(path, name), Path(path) / name)


def load_array(path: Path, name: str) -> np.ndarray:
    """An .npy file of a whole run directory (see ``load_bytes``)."""
    return npy_of(load_bytes(path, name), Path(path) / name)


def load_tensors(path: Path, name: str) -> dict[str, torch.Tensor]:
    """A safetensors file of a whole run directory (see ``load_bytes``), on the CPU."""
    return tensors_of(load_bytes(path, name), Path(path) / name)


def load_weights(module: torch.nn.Module, path: Path, name: str = WEIGHTS) -> None:
    """Strict load from a whole run directory; the first missing, unexpected or misshapen tensor is a UserError."""
    _fill(module, load_tensors(path, name), Path(path) / name)


def load_unsealed(module: torch.nn.Module, run: Run, name: str = WEIGHTS) -> None:
    """The same of weights that ``run``, still being written, has saved itself."""
    _fill(module, tensors_of(read_bytes(run.path / name), run.path / name), run.path / name)


def _fill(module: torch.nn.Module, have: Mapping[str, torch.Tensor], file: Path) -> None:
    want = module.state_dict()
    for tensor in sorted(set(want) | set(have)):
        if tensor not in have or tensor not in want:
            kind = "missing from" if tensor not in have else "not expected in"
            raise UserError(
                f"{file}: tensor {tensor!r} is {kind} the file; its config.json is of another architecture, or "
                "an earlier version wrote it"
            )
        if want[tensor].shape != have[tensor].shape:
            raise UserError(
                f"{file}: tensor {tensor!r} has shape {tuple(have[tensor].shape)}, the configuration needs "
                f"{tuple(want[tensor].shape)}; the weights are of another architecture"
            )
    module.load_state_dict(have, strict=True)


def fingerprint_of(tensors: Mapping[str, torch.Tensor], **sources: str) -> str:
    """16 hex digits that name a set of tensors, by their names, shapes and values, and the users' modules that they are
    of (SHA-256 by what it makes; '': our own)."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + str(tuple(tensor.shape)).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for name, sha in sorted(sources.items()):
        if sha:
            digest.update(f"{name} {sha}".encode())
    return digest.hexdigest()[:16]


@dataclass
class Result:
    """What an analysis found: scalars with units and intervals, arrays, tables; the record of a stage.

    Saved as ``result.json`` + ``arrays.npz`` + one CSV a table.  Figures are drawn from these.  ``spooled``: further
    arrays, of many samples, that lie in a file until they are saved among the others (core.files.Spool).
    """

    scalars: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    spooled: Mapping[str, Rows] = field(default_factory=dict)

    def scalar(self, name: str, value: float, unit: str, n: int | None = None, interval: Any = None) -> None:
        self.scalars[name] = metric(value, unit, n, interval)

    @property
    def everything(self) -> dict[str, Any]:
        """All arrays by name, those in memory and those that are spooled."""
        return {**self.arrays, **self.spooled}

    def save(self, path: Path) -> None:
        path = Path(path)
        about = {"scalars": self.scalars, "tables": sorted(self.tables), "notes": self.notes}
        text = {name: columns for name, rows in sorted(self.tables.items()) if (columns := _of_text(rows))}
        write_json(path / "result.json", about | ({"text": text} if text else {}))
        write_npz(path / "arrays.npz", self.everything)
        for name, rows in self.tables.items():
            columns = list(dict.fromkeys(k for row in rows for k in row))
            cells = ([row.get(column, "") for column in columns] for row in rows)
            write_atomically(path / f"{name}.csv", csv_bytes(columns, cells))

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read a saved result back.  What was a number in a table is one again; names that look like numbers stay
        names."""
        data = load_json(path, "result.json")
        kinds = {"scalars": dict, "tables": list, "notes": dict}
        if not isinstance(data, dict) or not all(isinstance(data.get(k), kind) for k, kind in kinds.items()):
            raise UserError(f"{Path(path) / 'result.json'} is not the record of a result; {AGAIN}")
        arrays = npz_of(load_bytes(path, "arrays.npz"), Path(path) / "arrays.npz")
        tables = {}
        for name in data["tables"]:
            rows = csv_of(load_bytes(path, f"{name}.csv"), Path(path) / f"{name}.csv")
            text = data.get("text", {}).get(name, ())
            tables[name] = [{k: (v or None) if k in text else _cell(v) for k, v in row.items()} for row in rows]
        return cls(scalars=data["scalars"], arrays=arrays, tables=tables, notes=data["notes"])


def _of_text(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of names, some of which would be read as something else."""
    cells: dict[str, list[Any]] = {}
    for row in rows:
        for name, cell in row.items():
            cells.setdefault(name, []).append(cell)
    named = {k: [c for c in of if c is not None] for k, of in cells.items()}
    return [
        k for k, of in named.items() if all(isinstance(c, str) for c in of) and any(c and _cell(c) != c for c in of)
    ]


def _cell(text: str) -> Any:
    """What a cell was: a number where one would have been written so, else text."""
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        single = str(np.float32(number)) if kind is float and abs(number) < 1e38 else ""
        if text in (repr(number), single):
            return number
    return text


@dataclass(frozen=True)
class _Models:
    """Fingerprints that a run directory stands for; '' where it names none."""

    weights: bool  # they are those of weights in it
    agent: str = ""
    simulator: str = ""
    checkpoints: tuple[str, ...] = ()  # agents that its agent once was


def _models_of(directory: Path, manifest: Mapping[str, Any]) -> _Models:
    """From the weights of an agent or a simulator, else from what the manifest says.  Raises UserError."""
    files, facts = manifest["files"], manifest["facts"]
    said = str(facts.get("agent") or "")
    if WEIGHTS not in files or description(manifest, AGENTS + SIMULATORS) is None:
        return _Models(False, said, str(facts.get("simulator") or ""))
    tensors = _as_loaded(directory)
    if (about := description(manifest, SIMULATORS)) is None:
        earlier = sorted(name for name in files if Path(name).match("checkpoint_*.safetensors"))
        return _Models(
            True, fingerprint_of(tensors, agent=_adopted_from(directory, ADOPTED)),
            checkpoints=tuple(fingerprint_of(load_tensors(directory, name)) for name in earlier),
        )  # fmt: skip
    beside = BESIDE in load_json(directory, about)
    where = (directory.resolve().parent if beside else directory) / "agent"
    if beside or about == OWN_WORLD:  # which has the world's weights alone, and the agent's directory in it
        tensors |= {f"agent.{k}": v for k, v in _as_loaded(where).items()}
    agent = {k.removeprefix("agent."): v for k, v in tensors.items() if k.startswith("agent.")}
    by = _adopted_from(where, ADOPTED)
    world = _adopted_from(directory, OWN_WORLD)
    return _Models(True, fingerprint_of(agent, agent=by), fingerprint_of(tensors, agent=by, world=world))


def _adopted_from(directory: Path, about: str) -> str:
    """SHA-256 of the user's module that an agent or a world was adopted from; '' where it is our own."""
    return str(load_json(directory, about)["source_sha256"]) if (directory / about).exists() else ""


def _as_loaded(directory: Path) -> dict[str, torch.Tensor]:
    """Weights as models have them: what bundles hold as float16 is float32."""
    tensors = load_tensors(directory, WEIGHTS)
    return {k: v.float() if v.dtype == torch.float16 else v for k, v in tensors.items()}


def _other_models(
    directory: Path, manifest: Mapping[str, Any], own: _Models, inputs: Mapping[str, _Models]
) -> list[str]:
    """Problems: what the manifest says of agent and simulator against the directory's weights and its inputs'.

    A stage may have several agents' weights (policies that share a world, a guest in another agent's simulator, an
    agent to compare with): one of them must be the recorded one.  Data and results among the inputs must be the
    recorded agent's, but where a guest acted in a world of which they are.
    """
    agent, simulator = (str(manifest["facts"].get(k) or "") for k in ("agent", "simulator"))
    if not agent:
        return []
    problems = []
    if own.weights and own.agent != agent:
        problems.append(f"{directory}: its weights are agent {own.agent}, it says {agent}")
    loaded = {name: of for name, of in inputs.items() if of.weights}
    if loaded and not any(agent in (of.agent, *of.checkpoints) for of in loaded.values()):
        have = ", ".join(f"{name} {of.agent}" for name, of in loaded.items())
        problems.append(f"{directory}: it says agent {agent}, its inputs are of others ({have})")
    worlds = {name: of for name, of in loaded.items() if of.simulator}
    if any(of.agent != agent for of in worlds.values()):
        return problems
    for name, of in inputs.items():
        if not of.weights and of.agent and of.agent != agent:
            problems.append(f"{directory}: it says agent {agent}, its input {name!r} is of agent {of.agent}")
    if simulator and worlds and simulator not in {of.simulator for of in worlds.values()}:
        have = ", ".join(f"{name} {of.simulator}" for name, of in worlds.items())
        problems.append(f"{directory}: it says simulator {simulator}, its inputs hold others ({have})")
    return problems


def verify(path: Path) -> list[str]:
    """Check a run directory and everything it was made from; the list of problems, empty if none.

    Every file is compared with its manifest, every manifest with its seal and with what the runs made from it say;
    the agent and the simulator that a manifest names with the weights there are, along the inputs.
    """
    problems: list[str] = []
    seen: dict[Path, _Models] = {}

    def walk(directory: Path) -> _Models:
        directory = directory.resolve()
        if directory in seen:
            return seen[directory]
        seen[directory] = _Models(False)
        try:
            return of_run(directory, read_manifest(directory))
        except UserError as error:
            problems.append(str(error))
        except OSError as error:  # what may not be read is not known to hold
            problems.append(f"{error.filename or directory}: cannot be read ({error.strerror})")
        return seen[directory]

    def of_run(directory: Path, manifest: Mapping[str, Any]) -> _Models:
        before = len(problems)
        for name, known in manifest["files"].items():
            file = directory / name
            if not file.is_file():
                problems.append(f"{file}: missing")
            elif not known.get("editable") and (
                file.stat().st_size != known["bytes"] or sha256(file) != known["sha256"]
            ):
                problems.append(f"{file}: content differs from its manifest")
        for file in directory.rglob("*"):
            name = file.relative_to(directory).as_posix()
            if file.is_file() and _is_payload(file, directory) and name not in {*manifest["files"], *EDITABLE}:
                problems.append(f"{file}: not in the manifest")
        if len(problems) == before:
            try:
                seen[directory] = _models_of(directory, manifest)
            except UserError as error:  # a manifest can be right about weights that never were any
                problems.append(str(error))
        inputs = {}
        for name, known in manifest["inputs"].items():
            source = directory / known["path"]
            if not (source / MANIFEST).exists():
                problems.append(f"{directory}: its input {name!r} is gone from {source.resolve()}")
                continue
            if sha256(source / MANIFEST) != known["manifest_sha256"]:
                problems.append(f"{directory}: its input {name!r}, {source.resolve()}, is not the one it was made from")
            inputs[name] = walk(source)
        problems.extend(_other_models(directory, manifest, seen[directory], inputs))
        return seen[directory]

    walk(Path(path))
    return problems


def chain(path: Path) -> list[tuple[int, str, Path]]:
    """(depth, stage, directory) of a run and all its inputs, depth first, each once."""
    out: list[tuple[int, str, Path]] = []

    def walk(directory: Path, depth: int) -> None:
        directory = directory.resolve()
        if any(d == directory for _, _, d in out):
            return
        manifest = read_manifest(directory)
        out.append((depth, manifest["stage"], directory))
        for known in manifest["inputs"].values():
            walk(directory / known["path"], depth + 1)

    walk(Path(path), 0)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m core.artefacts verify DIR``: exit code 0 if everything holds, 1 if not, 2 for misuse."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if len(argv) != 2 or argv[0] != "verify":
        print("usage: python -m core.artefacts verify DIR", file=sys.stderr)
        return 2
    path = Path(argv[1])
    if not path.is_dir():
        print(f"error: {_no_directory(path)}", file=sys.stderr)
        return 2
    problems = verify(path)
    for problem in problems:
        print(f"BAD  {problem}")
    if problems:
        print(f"{counted(len(problems), 'problem')} in {path} or what it was made from")
        return 1
    for depth, stage, directory in chain(path):
        edited = "".join(f"  ({name} was edited since, as users may)" for name in edited_files(directory))
        print(f"ok   {'  ' * depth}{stage:<16} {os.path.relpath(directory)}{edited}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
