"""What a recording that was killed goes on from (``record.py --resume``).

A state is saved when shards were written: snapshots of the worlds, the agent's state, the generator of the actions, the
rows of the episodes that run and the episodes that wait for the next shard.  All that is random comes from these, so
that what follows is what would have followed.  Where the running episodes hold more steps than were recorded since the
last state, the next shards are awaited: so no more is written into states than is recorded.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from agents.branches import FOLDER
from core import artefacts
from core.contracts import UserError, VecEnv
from core.ranks import ALONE, Processes
from core.training import check_same, fixed_in, load_state, resume_command, save_state
from envs.gymnasium_env import GymnasiumEnv

STATE = artefacts.RECORDING_STATE
PARTS = ("made_of", "wall_s", "over", "recorder", "writer", "kept", "processes", "step")
OWN = ("recorder", "writer")  # parts that every process has of its own
FREE_IN_RECORDING = ("out", "overwrite", "resume", "npz", "threads", "device")  # what another command may say


class Writer(Protocol):
    """core.episodes.StoreWriter or agents.shared_recording.SharedWriter: below the number ``shards`` all are written;
    waiting: steps that are not."""

    shards: int

    @property
    def waiting(self) -> int: ...

    def state(self) -> dict[str, Any]: ...


class Recorder(Protocol):
    """agents.record.Recorder, which imports this."""

    t: int

    @property
    def held(self) -> int: ...

    @property
    def over(self) -> bool: ...

    def state(self) -> dict[str, Any]: ...


def keeps_states(env: VecEnv) -> bool:
    """Whether a recording of this world can be gone on with: its snapshots are bytes (Gymnasium's are objects)."""
    return env.spec.can_snapshot and not isinstance(env, GymnasiumEnv)


def made_of(agent: str, inputs: artefacts.Inputs) -> dict[str, Any]:
    """What must be the same: the agent (its fingerprint), the code, and what was read."""
    return {"agent": agent, "code": artefacts.code_version(), **inputs.made_from}


def check_whole(config: Any, out: Path, stage: str, inputs: artefacts.Inputs) -> None:
    """UserError unless a whole run is what this command would make; what a kill left beside it is removed."""
    check_same(config, out, stage, fixed_in(config, FREE_IN_RECORDING))
    known = artefacts.read_manifest(out, stage)["inputs"]
    for name, path in inputs.items():
        if known.get(name, {}).get("manifest_sha256") != inputs.made_from[name]:
            raise UserError(f"--resume: {path} is not what {out} was made of; start another run for that")
    artefacts.settle(out)


def check_made_of(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """UserError unless what ``out`` was begun with (``made_of``) is what is there now."""
    for name in {**now, **before}:
        was, is_ = before.get(name), now.get(name)
        if was == is_:
            continue
        if name == "code":
            raise UserError(f"--resume: {out} was begun by the code {was} and this is {is_}; go back to that (git "
                            "checkout), or record it anew with --overwrite")  # fmt: skip
        raise UserError(f"--resume: the {name} is not the one that {out} was begun with; start another run for that")


def _own(out: Path, step: int, rank: int) -> Path:
    """A process's part of the state at a step, where there are several."""
    return out / f".state_{step}_{rank}.pt"


def forget(out: Path, but: int | None = None, rank: int | None = None) -> None:
    """Remove the states of a recording that is whole; of one that goes on, the parts (of a process) of other steps than
    ``but``."""
    kept = "" if but is None else f".state_{but}_"
    for file in out.glob(f".state_*_{'*' if rank is None else rank}.pt"):
        if not kept or not file.name.startswith(kept):
            file.unlink()
    if but is None:
        (out / STATE).unlink(missing_ok=True)


def saved_in(
    config: Any, out: Path, stage: str, made: Mapping[str, Any], processes: Processes = ALONE
) -> dict[str, Any]:
    """The state of a recording that was begun with this command, and by as many processes.  Raises UserError."""
    if not (out / STATE).exists():
        raise UserError(f"{out} has no state to resume from ({STATE}); begin it without --resume (--overwrite, if it "
                        "holds anything)")  # fmt: skip
    check_same(config, out, stage, fixed_in(config, FREE_IN_RECORDING))
    state = load_state(out / STATE, *PARTS, of="recording")
    check_made_of(out, state["made_of"], made)
    if state["over"]:
        return state
    if (count := state["processes"]) != processes.count:
        by = "one process" if count == 1 else f"{count} processes (torchrun --nproc-per-node={count})"
        raise UserError(f"--resume: {out} was begun by {by} and this is {processes.count}; go on with as many, or "
                        "record it anew with --overwrite")  # fmt: skip
    if count > 1 and state["step"]:
        own = load_state(_own(out, state["step"], processes.rank), *OWN, of="recording")
        state |= {part: own[part] for part in OWN}
    return state


class Saves:
    """Saves the states of a recording; gives back, once, the parts of the one that it goes on from.  Every process has
    one."""

    def __init__(
        self, run: artefacts.Run, made: Mapping[str, Any], every: int = 1, saved: dict[str, Any] | None = None,
        processes: Processes = ALONE,
    ) -> None:  # fmt: skip
        """every: steps between those at which the world can be put back.  Without a state one of no step is saved, so
        that --resume works from here on; with one, what came after it is removed."""
        self._out, self._made, self._every = processes.folder(run.path), dict(made), every
        self._processes = processes
        self._saved = saved or {}
        self._shards = self._recorded = 0
        if saved is None:
            self._started = run.started
            if processes.first:
                self._save()
            return
        run.started = self._started = time.monotonic() - saved["wall_s"]
        self._shards = saved["writer"]["shards"] if saved["writer"] else 0
        processes.wait()  # until all have read their parts
        if processes.first:
            shutil.rmtree(self._out / FOLDER, ignore_errors=True)
            forget(self._out, but=saved["step"])
            for shard in self._out.glob("*.h5"):
                if int(shard.stem.rpartition("_")[2]) >= self._shards:
                    shard.unlink()
        processes.wait()  # until none of what others write now can be taken for what came after the state

    def take(self, part: str) -> Any:
        """A part of the state, which is not held any longer; None where there is none."""
        return self._saved.pop(part, None)

    def after_step(self, recorder: Recorder, writer: Writer, kept: Any) -> None:
        """Save, if it is time.  kept: the sums over all episodes that ended (agents.record.Kept).  Of several processes
        all call this after the same step, but for those that are through with their slots."""
        if writer.shards == self._shards:
            return
        told = self._processes.listed((recorder.t, recorder.over, recorder.held, writer.waiting))
        ts, over, held, waiting = zip(*told, strict=True)
        step = max(ts)
        if step % self._every or all(over):
            return
        self._shards, recorded = writer.shards, kept.steps + sum(held)
        if sum(held) + sum(waiting) <= recorded - self._recorded:
            self._recorded = recorded
            self._save_own(step, {"recorder": recorder.state(), "writer": writer.state()}, kept)

    def _save_own(self, step: int, own: dict[str, Any], kept: Any) -> None:
        """Save the process's part with the state, or, of several, before it."""
        if self._processes.count == 1:
            self._save(step=step, kept=vars(kept), **own)
            return
        save_state(_own(self._out, step, self._processes.rank), **own)
        self._processes.wait()
        if self._processes.first:
            self._save(step=step, kept=vars(kept))
        self._processes.wait()
        forget(self._out, but=step, rank=self._processes.rank)

    def end(self, writer: Writer, kept: Any) -> None:
        """Save that all episodes are written, by all processes."""
        if self._processes.first:
            self._save(over=True, writer=writer.state(), kept=vars(kept))

    def _save(self, **parts: Any) -> None:
        about = {"over": False, "made_of": self._made, "wall_s": time.monotonic() - self._started, "step": 0}
        about["processes"] = self._processes.count
        save_state(self._out / STATE, **dict.fromkeys(PARTS) | about | parts)


@contextmanager
def telling(config: Any, out: Path, state: str = STATE, processes: Processes = ALONE) -> Iterator[Callable[[], None]]:
    """Where the block ends before the recording is whole, and shards were written, say how it goes on from ``state``
    there; but only once the block said, by calling what it is given, that the recording is open."""
    is_open: list[None] = []
    try:
        yield lambda: is_open.append(None)
    except BaseException:
        if is_open and processes.first and (out / state).exists() and any(out.glob("*.h5")):
            print(f"note: {out} is not whole; go on with: {resume_command(config, processes)}", file=sys.stderr)
        raise
