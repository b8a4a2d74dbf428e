"""What every training shares: its run directory fresh or resumed, its state on disk, its curve, its
learning rate and how it ends early."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import math
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
import torch

from core import artefacts, config as cli
from core.contracts import UserError
from core.files import AGAIN, csv_of, parsing, read_bytes, refused, unpickled_tensors, write_atomically, writing
from core.ranks import Processes
from core.stats import Estimate

Schedule = Literal["cosine", "linear", "constant"]


def learning_rate(step: int, total: int, peak: float, warm_up: int, schedule: Schedule) -> float:
    """The rate of update ``step`` (from 0) of ``total``: up to ``peak`` linearly over ``warm_up`` updates,
    then down to 0 by ``schedule``."""
    if step < warm_up:
        return peak * (step + 1) / (warm_up + 1)
    done = (step - warm_up) / max(1, total - warm_up)
    left = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[schedule]
    return peak * left


SIZES = (("ppo", "total_steps"), ("optim", "updates"))  # how long trainings go on, in their configurations
STATE = artefacts.TRAINING_STATE  # what a training goes on from
ANEW = "copy it or start the {} anew"
BEGUN_BY = ".begun_by"  # which launch of several processes wrote the directory
RUN = "run"  # part of a state: the name of the run that it is of
STATE_MARK = b"training state, sha256 "  # how its file begins; the checksum and a line's end follow, then torch's bytes


# What --resume may change in a training: where its parts lie and how it ends, is measured, is kept and is computed, and
# what is done once it is over (outcomes).  Of everything else the manifest would say, of all updates, what is true of
# the last ones alone.  Directories that it was made from are compared by their checksums (``artefacts.resumed_run``).
FREE = (
    "out", "save_minutes", "stop_after", "resume", "overwrite", "device", "threads", "track", "wandb", "preload",
    "maps", "agent", "rollouts", "begin_with", "checkpoints", "evaluate_every", "evaluate_episodes", "validate_every",
    "video_every", "outcomes", "ppo.total_steps", "ppo.bf16", "optim.updates", "optim.bf16",
)  # fmt: skip
NOT_SET = object()  # the value of a setting that a configuration lacks
TIME_IS_UP = 1  # among numbers of signals


class Stop:
    """When a training ends before its last update: at Ctrl-C, at SIGTERM, after --stop_after.

    ``with stop:`` around the updates; where ``due`` after one, the training saves its state, leaves the loop and calls
    ``say``.  A second signal stops at once.
    """

    def __init__(
        self, after: str | None, processes: Processes | None = None, device: torch.device | str = "cpu"
    ) -> None:
        """after: the wall time from now, as 90s, 30m, 2h or 1.5h (None: no end).  Raises UserError."""
        self.until = math.inf if after is None else time.monotonic() + seconds_of(after)
        self.processes, self.device = processes or Processes(), device
        self.signal = self.reason = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {n: signal.signal(n, self._ask) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self.__exit__()
        os.write(2, b"finishing this update, then saving; a second signal stops at once\n")  # print is not reentrant

    def due(self) -> bool:
        """Whether this was the last update; all processes get the same answer."""
        mine = self.signal or (TIME_IS_UP if time.monotonic() >= self.until else 0)
        self.reason = self.processes.largest(mine, self.device)
        return self.reason > 0

    def say(self, config: Any, done: str) -> None:
        """One line on what was done and how to go on; after a signal, the end of the process (130 or 143)."""
        if self.processes.first:
            why = "time is up" if self.reason == TIME_IS_UP else signal.Signals(self.reason).name
            go_on = resume_command(config, self.processes)
            print(f"{why}: not finished, saved after {done}; go on with: {go_on}", file=sys.stderr)
        self.processes.wait()  # torchrun kills the others when one has ended
        if self.reason != TIME_IS_UP:
            raise SystemExit(128 + self.reason)


def seconds_of(text: str) -> float:
    """--stop_after in seconds; UserError for what is no time."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh])", text)
    if match is None or (seconds := float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]) <= 0:
        raise UserError(f"--stop_after {text!r}: expected a time above 0, as in 90s, 30m, 2h or 1.5h")
    return seconds


def resume_command(config: Any, processes: Processes) -> str:
    """The command that began this run, with --resume."""
    launcher = ["python"]
    if processes.count > 1:
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        # Where the machines meet is torchrun's own affair and not told to its processes.
        met = [f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=HOST:PORT"] if nodes > 1 else []
        launcher = ["torchrun", *met, f"--nproc-per-node={processes.here}"]
    flags = [word for word in sys.argv[1:] if word not in ("--overwrite", "--resume")]
    if config.overwrite and "--overwrite" not in sys.argv:  # it stood in a --config or --preset
        flags.append("--no-overwrite")
    return shlex.join([*launcher, *_door(), *flags, "--resume"])


def _door() -> list[str]:
    """What runs, as it is typed: a script, or -m and a module of this project."""
    path = Path(sys.argv[0]).resolve()
    parts = path.relative_to(cli.ROOT).with_suffix("").parts if path.is_relative_to(cli.ROOT) else ()
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        return [sys.argv[0]]
    return ["-m", ".".join(parts).removesuffix(".__main__")]


@dataclass(frozen=True, kw_only=True)
class WandbOptions:
    """Where Weights & Biases keeps a run (with --track)."""

    wandb_project: str = "dreamlens"
    """its project"""
    wandb_entity: str | None = None
    """user or team it is logged for; none: the account's own"""
    wandb_group: str | None = None
    """group of runs it belongs to, such as the seeds of one setting"""
    wandb_name: str | None = None
    """its name; none: Weights & Biases makes one up"""
    wandb_tags: tuple[str, ...] = ()
    """tags"""

    def settings(self) -> dict[str, Any]:
        """The arguments of wandb.init."""
        named = {k.removeprefix("wandb_"): v for k, v in vars(self).items()}
        return {**named, "tags": list(self.wandb_tags)}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a training runs and is kept, of whatever it trains."""

    save_minutes: float = 5.0
    """minutes between saves of the state that --resume goes on from"""
    stop_after: str | None = None
    """end in an orderly way after this wall time (90s, 30m, 2h, 1.5h), not finished; --resume goes on"""
    resume: bool = False
    """go on from the training state in --out"""
    overwrite: bool = False
    """replace an earlier run in --out"""
    device: str = "cpu"
    """cpu or cuda"""
    track: bool = False
    """log to Weights & Biases too (needs the wandb package and an account)"""
    wandb: WandbOptions = field(default_factory=WandbOptions)


def check_tracking(config: Any) -> None:
    """UserError where --track cannot be done, or its options stand without it."""
    track, options = getattr(config, "track", False), getattr(config, "wandb", WandbOptions())
    if track and importlib.util.find_spec("wandb") is None:
        raise UserError("--track needs the wandb package: pip install wandb")
    given = [f"--{k}" for k, v in vars(options).items() if v != getattr(WandbOptions(), k)]
    if given and not track:
        raise UserError(f"{given[0]} is for Weights & Biases: it needs --track")


def save_state(path: Path, **parts: Any) -> None:
    """Write the training state with its checksum, atomically; the old one stays whole until then."""
    path.parent.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    torch.save({RUN: _run_of(path)} | parts, buffer)
    data = buffer.getbuffer()
    mark = STATE_MARK + hashlib.sha256(data).hexdigest().encode() + b"\n"
    with writing(path) as file:  # in two parts: a recording's is large
        file.write(mark)
        file.write(data)


class Log:
    """``curve.csv`` (the record) and TensorBoard event files (the view), plus W&B with --track."""

    def __init__(
        self,
        path: Path,
        config: Any,
        track: bool,
        keep: int | None = None,
        rows: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """keep: the last step of a training that goes on; rows: the curve in its state, which has a checksum (states of
        earlier versions have none: curve.csv is read)."""
        from torch.utils.tensorboard import SummaryWriter

        self.file = path / "curve.csv"
        self.rows: list[dict[str, Any]] = [dict(row) for row in rows or ()]
        if keep is not None and rows is None:
            self.rows = _rows_until(keep, self.file)
        # What a killed training wrote after its last state is done again.
        purge = None if keep is None else keep + 1
        self._events = path / "training_state" / "tensorboard"
        with self._showing():
            self.board = SummaryWriter(str(self._events), purge_step=purge)
        self.wandb = None
        if track:
            import wandb  # open_run has seen that it is there

            self.wandb = wandb.init(config=cli.to_json(config), dir=str(path), **config.wandb.settings())

    def add(self, step: int, **values: float) -> None:
        self.rows.append({"step": step, **{k: f"{v:.6g}" for k, v in values.items()}})
        with self._showing():
            for name, value in values.items():
                self.board.add_scalar(name, value, step)
        if self.wandb is not None:
            self.wandb.log(values, step=step)

    def add_video(self, step: int, name: str, frames_THWC: np.ndarray, fps: int = 8) -> None:
        """Show uint8 frames as an animated picture in TensorBoard (its own add_video needs moviepy)."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        first, *rest = (Image.fromarray(frame) for frame in frames_THWC)
        data = io.BytesIO()
        first.save(data, "GIF", save_all=True, append_images=rest, duration=1000 // fps, loop=0)
        picture = Summary.Image(
            height=first.height, width=first.width, colorspace=3, encoded_image_string=data.getvalue()
        )
        with self._showing():
            self.board._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=name, image=picture)]), step)

    @contextmanager
    def _showing(self) -> Iterator[None]:
        """TensorBoard writes in a thread of its own and raises later what the system refused."""
        try:
            yield
        except OSError as error:
            if (said := refused(error, self._events)) is None:
                raise
            raise said from error

    def save(self) -> None:
        if not self.rows:
            return
        artefacts.write_atomically(self.file, curve_text(self.rows).encode())
        with self._showing():
            self.board.flush()


def held_out_columns(name: str, mean: Estimate) -> dict[str, float]:
    """Columns of a curve: a mean over held-out episodes, its interval where it has one, and how many they are."""
    bounds = {"held_out_low": mean.low, "held_out_high": mean.high}
    finite = {k: v for k, v in bounds.items() if np.isfinite(v)}
    return {name: mean.value, **finite, "held_out_episodes": float(mean.n)}


def curve_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of a curve as CSV."""
    columns = list(dict.fromkeys(name for row in rows for name in row))  # not every row has all of them
    lines = [",".join(columns), *(",".join(str(row.get(name, "")) for name in columns) for row in rows)]
    return "\n".join(lines) + "\n"


def _rows_until(step: int, file: Path) -> list[dict[str, Any]]:
    """The rows of a curve.csv up to a step.  UserError where it is cut or holds what is no number."""
    if not file.exists():
        print(f"note: there is no {file}: the curve goes on from step {step}", file=sys.stderr)
        return []
    data = read_bytes(file)
    rows = csv_of(data, file)
    with parsing(file, "curve", ANEW.format("training")):
        steps = [int(float(row["step"])) for row in rows]
        if not data.endswith(b"\n") or steps != sorted(steps):
            raise ValueError("it is cut, or its steps go back")
        for row in rows:
            [float(cell) for cell in row.values() if cell]
    return [dict(row) for row, at in zip(rows, steps, strict=True) if at <= step]


def unfinished_curve(path: Path) -> str | None:
    """The curve of a training that is not finished, as CSV, from its state, which has a checksum; None where that has
    none (it was not saved yet, or by an earlier version).  Raises UserError."""
    rows = load_state(path / STATE).get("curve") if (path / STATE).exists() else None
    return None if rows is None else curve_text(rows)


def open_run(
    config: Any, stage: str, inputs: artefacts.Inputs, fixed: Sequence[str], state: str = STATE
) -> artefacts.Run:
    """The run directory of a long job (a training): fresh, or with --resume the one it goes on in.

    ``fixed`` are the config's keys (``a.b`` for nested ones) that a resumed job may not change; ``state`` is the file
    that it goes on from; a training's must have its checksum.  The saved config.json becomes the resumed one, and the
    directory is half-written until the end.
    """
    check_tracking(config)
    if not config.resume:
        return artefacts.begin_run(config.out, stage, config, inputs, overwrite=config.overwrite)
    if config.overwrite:
        raise UserError("--resume goes on with a run and --overwrite starts anew: choose one")
    if not (config.out / state).exists():
        raise UserError(f"{config.out} has no state to resume from ({state})")
    if state == STATE and not _state_bytes(config.out / state)[1]:
        print(f"note: {config.out / state} was written by an earlier version, without a checksum", file=sys.stderr)
    check_same(config, config.out, stage, fixed)
    if state == STATE:
        _check_size(config)
    return artefacts.resumed_run(config.out, stage, config, inputs)


def going_on(config: Any, stage: str, state: str = STATE, out: Path | None = None) -> Any:
    """The configuration of a long job whose command is given again after it was cut off or stopped: it goes on from its
    state, as with --resume, and says so.  Else the configuration as it is.  out: config.out, if not another one."""
    path = config.out if out is None else out
    if config.resume or config.overwrite or not (path / state).exists() or not artefacts.cut_off(path, stage, config):
        return config
    print(f"note: {path} was not finished by this command: going on from its state, as with --resume", file=sys.stderr)
    return replace(config, resume=True)


def fixed_in(config: Any, free: Sequence[str] = FREE) -> list[str]:
    """The keys of a configuration that are not among ``free`` ones; ``a.b`` of groups that hold free ones."""
    out = []
    for key, value in cli.to_json(config).items():
        has_free = any(name.startswith(f"{key}.") for name in free)
        out += [f"{key}.{inner}" for inner in value] if has_free else [key]
    return [key for key in out if key not in free]


def check_same(config: Any, out: Path, stage: str, fixed: Sequence[str]) -> None:
    """UserError unless the run directory ``out`` was begun by this stage with these ``fixed`` keys of the config."""
    saved = cli.read_json(out / "config.json")
    if not isinstance(saved, dict) or not isinstance(saved.get("config"), dict):
        raise UserError(f"{out / 'config.json'} is not the configuration of a run; {AGAIN}")
    if saved.get("stage") != stage:
        raise UserError(f"{out} is a {saved.get('stage')!r} run, this is {stage!r}")
    now = cli.to_json(config)
    before: Any = _begun_with(config, saved)
    for key in fixed:
        was, is_, given = before, now, config
        for part in key.split("."):
            was, is_, given = was.get(part), is_[part], getattr(given, part, None)
        if was != is_ and not cli.says(was, given):
            name, was, is_ = _differing(key, was, is_, given)
            said = f"{name} was {_told(was)} and is now {_told(is_)}; start another run for that"
            raise UserError(f"--resume: {said}{_way_on(name, was, is_)}")


def _differing(key: str, was: Any, is_: Any, given: Any) -> tuple[str, Any, Any]:
    """(Name, value before, value now) of the first setting of a group that differs; NOT_SET: it has none.  was, is_: as
    JSON; given: as it is."""
    if isinstance(was, dict) and isinstance(is_, dict):
        for k in {**was, **is_}:
            one = given.get(k) if isinstance(given, Mapping) else getattr(given, k, None)
            if k not in is_ or k not in was:
                return f"{key}.{k}", was.get(k, NOT_SET), is_.get(k, NOT_SET)
            if was[k] != is_[k] and not cli.says(was[k], one):
                return _differing(f"{key}.{k}", was[k], is_[k], one)
    return key, was, is_


def _told(value: Any) -> str:
    return "not set" if value is NOT_SET else repr(value)


def _way_on(name: str, was: Any, now: Any) -> str:
    """How to go on as the run was begun, where a flag says it: a preset may have another value than it had then."""
    flag = name.rpartition(".")[2]
    if now is NOT_SET or isinstance(now, dict):
        return ""
    if isinstance(was, bool):
        return f" (as it was: --{'' if was else 'no-'}{flag})"
    return f" (as it was: --{flag} {shlex.quote(str(was))})" if isinstance(was, (int, float, str)) else ""


def _begun_with(config: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run's config.json, as one of this version's: an earlier one lacks keys."""
    return cli.merge(cli.to_json_defaults(type(config)), saved["config"])


def _check_size(config: Any) -> None:
    """UserError where a training is to go on to fewer steps than are done: its weights would be of more than the
    configuration, which is then saved, says."""
    curve = load_state(config.out / STATE).get("curve")
    saved = _begun_with(config, cli.read_json(config.out / "config.json"))
    for group, name in SIZES:
        asked, before = (c.get(group, {}).get(name) for c in (cli.to_json(config), saved))
        done = int(float(curve[-1]["step"])) if curve else 0
        if asked is not None and asked < min(before, done):
            raise UserError(
                f"--{name} {asked:,}: {config.out} has {done:,} already, with which --resume goes on; ask for as many "
                "or more, or name another --out"
            )


def require_same_sizes(path: Path, config: Any, earlier: Any, what: str) -> None:
    """UserError unless the model of ``path`` (``what``: a simulator) was configured as the one that is to begin with
    its weights."""
    own, other = cli.to_json(config), cli.to_json(earlier)
    for name in (k for k in own if own[k] != other.get(k)):
        raise UserError(f"{path} was trained with --{name} {other.get(name)}, not {own[name]}: --begin_with takes "
                        f"{what} of the same sizes")  # fmt: skip


def open_together(
    config: Any, stage: str, inputs: artefacts.Inputs, fixed: Sequence[str], processes: Processes
) -> artefacts.Run:
    """``open_run`` by the first process; the others, which write nothing, wait for it."""
    if processes.first:
        run = open_run(config, stage, inputs, fixed)
        if processes.count > 1:
            write_atomically(run.path / BEGUN_BY, _launch().encode())
    else:
        run = artefacts.Run(path=config.out, stage=stage, config=config, inputs=inputs)
    processes.wait()
    return run


def restarted(config: Any) -> Any:
    """The configuration of a training that torchrun has started anew after a process died (--max-restarts): it goes on
    from its state, or begins again where none was saved yet.  A directory that another launch wrote stays as it is."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        return config
    begun_by = config.out / BEGUN_BY
    if not begun_by.exists() or begun_by.read_text() != _launch() or (config.out / artefacts.MANIFEST).exists():
        return config
    saved = (config.out / STATE).exists()
    return replace(config, resume=saved, overwrite=not saved)


def _launch() -> str:
    """What tells this start of torchrun from others: its --rdzv-id, or its process."""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return run if run != "none" else f"process {os.getppid()}"


def _state_bytes(path: Path, of: str = "training") -> tuple[bytes, bool]:
    """(What torch saved in a training state, whether it has a checksum); UserError if that does not hold."""
    data = read_bytes(path, f"{of} state")
    if data.startswith(b"PK") and of == "training":  # a bare archive of torch's, as earlier versions wrote it
        return data, False
    mark, _, saved = data.partition(b"\n")
    if mark != STATE_MARK + hashlib.sha256(saved).hexdigest().encode():
        raise UserError(f"{path}: broken {of} state (it has not its checksum); {ANEW.format(of)}")
    return saved, True


def load_state(path: Path, *parts: str, of: str = "training") -> dict[str, Any]:
    """The state of a training (or of another ``of``), on the CPU; UserError if it is broken or lacks one of
    ``parts``."""
    anew = ANEW.format(of)
    state: dict[str, Any] = unpickled_tensors(_state_bytes(path, of)[0], path, f"{of} state", anew)
    if not isinstance(state, dict):
        raise UserError(f"{path}: broken {of} state (it holds no parts); {anew}")
    if state.get(RUN) and (own := _run_of(path)) and state[RUN] != own:
        raise UserError(f"{path} is the state of another run ({state[RUN]}; this one is {own}): put its own back, or "
                        f"start the {of} anew")  # fmt: skip
    for part in parts:
        if part not in state:
            raise UserError(f"{path} was written by another version (it has no {part!r}); start the {of} anew")
    return state


def _run_of(state: Path) -> str | None:
    """The name of the run directory that a state lies in."""
    return artefacts.run_name(state.parent) or artefacts.run_name(state.parent.parent)


def rng_states(device: torch.device) -> dict[str, Any]:
    """torch's generators, for a training state: the CPU's, and that of the GPU that this process computes on.

    Of several processes the first one's are those of all: each draws for all of them, as one does, so that results do
    not depend on how many they are.
    """
    return {"cpu": torch.get_rng_state(), "gpu": torch.cuda.get_rng_state(device) if device.type == "cuda" else None}


def set_rng_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Put ``rng_states`` back, whichever GPU this process has now."""
    torch.set_rng_state(states["cpu"])
    # An earlier version's have those of all GPUs of the machine, of which the first process had the first.
    own = states["gpu"] if "gpu" in states else dict(enumerate(states["cuda"])).get(device.index or 0)
    if device.type == "cuda" and own is not None:
        torch.cuda.set_rng_state(own, device)
