"""What every training shares: its run directory fresh or resumed, its state on disk, its curve, its
learning rate and the processes that torchrun starts."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from core import artefacts, config as cli
from core.contracts import UserError

Schedule = Literal["cosine", "linear", "constant"]


def learning_rate(step: int, total: int, peak: float, warm_up: int, schedule: Schedule) -> float:
    """The rate of update ``step`` (from 0) of ``total``: up to ``peak`` linearly over ``warm_up`` updates,
    then down to 0 by ``schedule``."""
    if step < warm_up:
        return peak * (step + 1) / (warm_up + 1)
    done = (step - warm_up) / max(1, total - warm_up)
    left = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[schedule]
    return peak * left


STATE = "training_state/state.pt"  # what a training goes on from


@dataclass(frozen=True)
class Processes:
    """The processes that train one model together, each on its part of every batch: one, or torchrun's."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    def part(self, batch: int) -> slice:
        """The rows of a batch that are this process's; ``count`` divides ``batch``."""
        each = batch // self.count
        return slice(self.rank * each, (self.rank + 1) * each)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            torch.distributed.barrier()

    def average(self, parameters: Sequence[nn.Parameter], values: Tensor) -> Tensor:
        """Average the gradients over the processes, in place, and ``values`` (1-D), which come back."""
        if self.count == 1:
            return values
        grads = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([*(g.flatten() for g in grads), values])
        torch.distributed.all_reduce(flat)
        *parts, mean = (flat / self.count).split([*(g.numel() for g in grads), len(values)])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))
        return mean


def from_torchrun(batch: int) -> Processes:
    """What torchrun says of this process, or the only one; UserError if ``batch`` cannot be shared equally."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if batch % count:
        raise UserError(f"--batch {batch} cannot be shared equally by {count} processes; choose a multiple")
    return Processes(int(os.environ.get("RANK", "0")), count)


@contextmanager
def together(processes: Processes, device: torch.device) -> Iterator[None]:
    """Connect the processes: NCCL on GPUs, gloo on CPUs."""
    if processes.count == 1:
        yield
        return
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def save_state(path: Path, **parts: Any) -> None:
    """Write the training state atomically; the old one stays whole until then."""
    path.parent.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    torch.save(parts, buffer)
    artefacts.write_atomically(path, buffer.getvalue())


class Log:
    """``curve.csv`` (the record) and TensorBoard event files (the view), plus W&B with --track."""

    def __init__(self, path: Path, config: Any, track: bool, keep: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.file = path / "curve.csv"
        self.rows: list[dict[str, Any]] = []
        if keep is not None and self.file.exists():
            with open(self.file, newline="") as file:
                self.rows = [row for row in csv.DictReader(file) if int(float(row["step"])) <= keep]
        # What a killed training wrote after its last state is done again.
        purge = None if keep is None else keep + 1
        self.board = SummaryWriter(str(path / "training_state" / "tensorboard"), purge_step=purge)
        self.wandb = None
        if track:
            import wandb  # open_run has seen that it is there

            self.wandb = wandb.init(project="dreamlens", config=cli.to_json(config), dir=str(path))

    def add(self, step: int, **values: float) -> None:
        self.rows.append({"step": step, **{k: f"{v:.6g}" for k, v in values.items()}})
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
        self.board._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=name, image=picture)]), step)

    def save(self) -> None:
        if not self.rows:
            return
        lines = [",".join(self.rows[0])] + [",".join(str(v) for v in row.values()) for row in self.rows]
        artefacts.write_atomically(self.file, ("\n".join(lines) + "\n").encode())
        self.board.flush()


def open_run(
    config: Any, stage: str, inputs: Mapping[str, Path], fixed: Sequence[str], state: str = STATE
) -> artefacts.Run:
    """The run directory of a long job (a training): fresh, or with --resume the one it goes on in.

    ``fixed`` are the config's keys (``a.b`` for nested ones) that a resumed job may not change; ``state`` is the file
    that it goes on from.  The saved config.json becomes the resumed one, and the directory is half-written until the
    end.
    """
    if getattr(config, "track", False) and importlib.util.find_spec("wandb") is None:
        raise UserError("--track needs the wandb package: pip install wandb")
    if not config.resume:
        return artefacts.begin_run(config.out, stage, config, inputs, overwrite=config.overwrite)
    if config.overwrite:
        raise UserError("--resume goes on with a run and --overwrite starts anew: choose one")
    if not (config.out / state).exists():
        raise UserError(f"{config.out} has no state to resume from ({state})")
    for directory in inputs.values():
        artefacts.read_manifest(directory)
    saved = cli.read_json(config.out / "config.json")
    if saved.get("stage") != stage:
        raise UserError(f"{config.out} is a {saved.get('stage')!r} run, this is {stage!r}")
    now = cli.to_json(config)
    for key in fixed:
        was, is_ = saved["config"], now
        for part in key.split("."):
            was, is_ = was.get(part), is_[part]
        if was != is_:
            raise UserError(f"--resume: {key} was {was!r} and is now {is_!r}; start another run for that")
    (config.out / artefacts.MANIFEST).unlink(missing_ok=True)
    for half_written in config.out.rglob(".*.tmp"):  # by a training that was killed
        half_written.unlink()
    artefacts.write_json(config.out / "config.json", {"stage": stage, "config": now})
    return artefacts.Run(path=config.out, stage=stage, config=config, inputs=dict(inputs))


def load_state(path: Path, *parts: str) -> dict[str, Any]:
    """The training state of a run, on the CPU; UserError if it is broken or lacks one of ``parts``."""
    import pickle

    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: broken training state ({reason}); start the training anew") from None
    for part in parts:
        if part not in state:
            raise UserError(f"{path} was written by another version (it has no {part!r}); start the training anew")
    return state


def rng_states(device: torch.device) -> dict[str, Any]:
    """torch's generators, for a training state."""
    cuda = torch.cuda.get_rng_state_all() if device.type == "cuda" else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_rng_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["cpu"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
