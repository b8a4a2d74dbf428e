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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from agents.branches import FOLDER
from core import artefacts, config as cli
from core.artefacts import MANIFEST
from core.contracts import UserError, VecEnv
from core.episodes import StoreWriter
from core.ranks import ALONE, Processes
from core.training import check_same, load_state, resume_command, save_state
from envs.gymnasium_env import GymnasiumEnv

STATE = ".state.pt"  # in the run directory until it is whole
PARTS = ("made_of", "wall_s", "over", "recorder", "writer", "kept")
FREE = ("out", "overwrite", "resume", "npz", "threads", "device")  # what another command may say


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


def made_of(agent: str, inputs: Mapping[str, Path]) -> dict[str, Any]:
    """What must be the same: the agent (its fingerprint), the code, and what was read."""
    manifests = {name: artefacts.sha256(path / MANIFEST) for name, path in inputs.items()}
    return {"agent": agent, "code": artefacts.code_version(), **manifests}


def fixed(config: Any) -> list[str]:
    """The keys that must be the same, ``a.b`` for nested ones."""
    out = []
    for key, value in cli.to_json(config).items():
        out += [f"{key}.{inner}" for inner in value] if isinstance(value, dict) else [key]
    return [key for key in out if key not in FREE]


def check_whole(config: Any, out: Path, stage: str, inputs: Mapping[str, Path]) -> None:
    """UserError unless a whole run is what this command would make; what a kill left beside it is removed."""
    check_same(config, out, stage, fixed(config))
    known = artefacts.read_manifest(out, stage)["inputs"]
    for name, path in inputs.items():
        if known.get(name, {}).get("manifest_sha256") != artefacts.sha256(path / MANIFEST):
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


def saved_in(config: Any, out: Path, stage: str, made: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a recording that was begun with this command.  Raises UserError."""
    if not (out / STATE).exists():
        raise UserError(f"{out} has no state to resume from ({STATE}); begin it without --resume (--overwrite, if it "
                        "holds anything)")  # fmt: skip
    check_same(config, out, stage, fixed(config))
    state = load_state(out / STATE, *PARTS, of="recording")
    check_made_of(out, state["made_of"], made)
    return state


class Saves:
    """Saves the states of a recording; gives back, once, the parts of the one that it goes on from."""

    def __init__(
        self, run: artefacts.Run, made: Mapping[str, Any], every: int = 1, saved: dict[str, Any] | None = None
    ) -> None:
        """every: steps between those at which the world can be put back.  Without a state one of no step is saved, so
        that --resume works from here on; with one, what came after it is removed."""
        self._file, self._made, self._every = run.path / STATE, dict(made), every
        self._saved = saved or {}
        self._shards = self._recorded = 0
        if saved is None:
            self._started = run.started
            self._save()
            return
        run.started = self._started = time.monotonic() - saved["wall_s"]
        shutil.rmtree(run.path / FOLDER, ignore_errors=True)
        self._shards = saved["writer"]["shards"] if saved["writer"] else 0
        for shard in run.path.glob("*.h5"):
            if int(shard.stem.rpartition("_")[2]) >= self._shards:
                shard.unlink()

    def take(self, part: str) -> Any:
        """A part of the state, which is not held any longer; None where there is none."""
        return self._saved.pop(part, None)

    def after_step(self, recorder: Recorder, writer: StoreWriter, kept: Any) -> None:
        """Save, if it is time.  kept: the sums over all episodes that ended (agents.record.Kept)."""
        if writer.shards == self._shards or recorder.t % self._every or recorder.over:
            return
        self._shards, held = writer.shards, recorder.held
        recorded = kept.steps + held
        if held + writer.waiting <= recorded - self._recorded:
            self._recorded = recorded
            self._save(recorder=recorder.state(), writer=writer.state(), kept=vars(kept))

    def end(self, writer: StoreWriter, kept: Any) -> None:
        """Save that all episodes are written."""
        self._save(over=True, writer=writer.state(), kept=vars(kept))

    def _save(self, **parts: Any) -> None:
        about = {"over": False, "made_of": self._made, "wall_s": time.monotonic() - self._started}
        save_state(self._file, **dict.fromkeys(PARTS) | about | parts)


@contextmanager
def telling(config: Any, out: Path, state: str = STATE, processes: Processes = ALONE) -> Iterator[None]:
    """Where the block ends before the recording is whole, and shards were written, say how it goes on from ``state``
    there."""
    try:
        yield
    except BaseException:
        if processes.first and (out / state).exists() and any(out.glob("*.h5")):
            print(f"note: {out} is not whole; go on with: {resume_command(config, processes)}", file=sys.stderr)
        raise
