"""What every training shares: its run directory fresh or resumed, its state on disk, its curve."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from core import artefacts, config as cli
from core.contracts import UserError


def save_state(path: Path, **parts: Any) -> None:
    """Write the training state atomically; the old one stays whole until then."""
    import io

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
        self.board = SummaryWriter(str(path / "training_state" / "tensorboard"))
        self.wandb = None
        if track:
            try:
                import wandb
            except ImportError:
                raise UserError("--track needs the wandb package: pip install wandb") from None
            self.wandb = wandb.init(project="dreamlens", config=cli.to_json(config), dir=str(path))

    def add(self, step: int, **values: float) -> None:
        self.rows.append({"step": step, **{k: f"{v:.6g}" for k, v in values.items()}})
        for name, value in values.items():
            self.board.add_scalar(name, value, step)
        if self.wandb is not None:
            self.wandb.log(values, step=step)

    def save(self) -> None:
        if not self.rows:
            return
        lines = [",".join(self.rows[0])] + [",".join(str(v) for v in row.values()) for row in self.rows]
        artefacts.write_atomically(self.file, ("\n".join(lines) + "\n").encode())
        self.board.flush()


def open_run(config: Any, stage: str, inputs: Mapping[str, Path], fixed: Sequence[str]) -> artefacts.Run:
    """A training's run directory: fresh, or with --resume the one it goes on in.

    ``fixed`` are the config's keys (``a.b`` for nested ones) that a resumed training may not change;
    the saved config.json becomes the resumed one, and the directory is half-written again until the end.
    """
    if not config.resume:
        return artefacts.begin_run(config.out, stage, config, inputs, overwrite=config.overwrite)
    if config.overwrite:
        raise UserError("--resume goes on with a run and --overwrite starts anew: choose one")
    if not (config.out / "training_state" / "state.pt").exists():
        raise UserError(f"{config.out} has no training state to resume from")
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
    artefacts.write_json(config.out / "config.json", {"stage": stage, "config": now})
    return artefacts.Run(path=config.out, stage=stage, config=config, inputs=dict(inputs))


def load_state(path: Path) -> dict[str, Any]:
    """The training state of a run, on the CPU; UserError if it is broken."""
    import pickle

    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: broken training state ({reason}); start the training anew") from None
    return state


def rng_states(device: torch.device) -> dict[str, Any]:
    """torch's generators, for a training state."""
    cuda = torch.cuda.get_rng_state_all() if device.type == "cuda" else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def set_rng_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["cpu"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
