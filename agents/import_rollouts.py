"""Rollouts recorded elsewhere: ``python -m agents.import_rollouts rollouts.npz --agent runs/mine --out runs/rollouts``.

From an .npz file or a Minari dataset (HDF5).  Hidden states, logits and values are not read but computed: the agent is
shown the recorded observations, so they are exactly its own.  docs/bring-your-own.md has the arrays and the store that
is written.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m agents.import_rollouts", file=sys.stderr)
    sys.exit(2)

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from agents.load import load_agent
from core import artefacts, config as cli
from core.config import nearest
from core.contracts import REWARD, Agent, EnvSpec, Field, UserError
from core.directions import fingerprint
from core.episodes import Episode, StoreWriter
from core.export import STAGE as EXPORT
from core.files import dataset_of, npz_of, parsing
from core.progress import bar
from core.roll import act
from core.stats import bootstrap_mean
from core.trees import flatten
from core.words import counted

STAGE = "import_rollouts"
TRANSITIONS = ("action", "reward", "terminated", "truncated")
MINARI = {"action": "actions", "reward": "rewards", "terminated": "terminations", "truncated": "truncations"}
MINARI_FILE, METADATA = "main_data.hdf5", "metadata.json"


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """Make a rollout store of recorded episodes, with the agent's hidden states along them."""

    rollouts: tyro.conf.Positional[Path] = Path("rollouts.npz")
    """.npz file (docs/bring-your-own.md), or the directory of a Minari dataset"""
    agent: Path = Path("runs/agent")
    """run directory of the agent that acted"""
    out: Path = Path("runs/rollouts")
    """run directory to write"""
    batch: int = 32
    """episodes replayed side by side"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""


@dataclass(frozen=True)
class Recorded:
    """One episode of T transitions as somebody recorded it; ``obs`` has T+1 rows, or T without the last one."""

    obs: Mapping[str, np.ndarray]
    action: np.ndarray  # int64 [T] or [T, parts]
    reward: np.ndarray  # float32 [T]
    terminated: bool
    truncated: bool
    cut: bool = False  # the record stops though neither ended it: nothing is known of the end


# Reading


def read_rollouts(path: Path, spec: EnvSpec) -> list[Recorded]:
    """Episodes of a file in its order.  Raises UserError."""
    path = Path(path)
    if path.is_dir() or path.suffix in (".hdf5", ".h5"):
        return _read_minari(path, spec)
    if path.suffix != ".npz":
        raise UserError(f"{path} is neither an .npz file nor the directory of a Minari dataset")
    return _read_npz(path, spec)


def _read_npz(path: Path, spec: EnvSpec) -> list[Recorded]:
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    arrays = npz_of(path, path)
    if "obs" in arrays and len(spec.obs) == 1:
        arrays[f"obs/{next(iter(spec.obs))}"] = arrays.pop("obs")
    needs = [*TRANSITIONS, *(f"obs/{name}" for name in spec.obs)]
    for name in needs:
        if name not in arrays:
            raise UserError(f"{path} has no array {name!r}{nearest(name, arrays)}; it needs: {', '.join(needs)}")
    steps = len(arrays["action"])
    for name in TRANSITIONS:
        if len(arrays[name]) != steps:
            raise UserError(f"{path}: {name} has {len(arrays[name])} rows, action has {steps}")
    if not steps:
        raise UserError(f"{path} holds no transitions")
    ends = np.flatnonzero(arrays["terminated"].astype(bool) | arrays["truncated"].astype(bool)) + 1
    bounds = [0, *ends.tolist()] + ([steps] if not len(ends) or ends[-1] < steps else [])
    rows = len(arrays[f"obs/{next(iter(spec.obs))}"])
    last = {steps: 0, steps + len(bounds) - 1: 1}.get(rows)
    if last is None:
        raise UserError(
            f"{path}: {rows} observations for {steps} transitions in {len(bounds) - 1} episodes; there must be one a "
            "transition, or one more an episode (the last)"
        )
    out = []
    for i, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        part = {name: arrays[name][start:stop] for name in TRANSITIONS}
        seen = slice(start + last * i, stop + last * (i + 1))
        out.append(_recorded({k: arrays[f"obs/{k}"][seen] for k in spec.obs}, part, spec, f"{path}: episode {i}"))
    return out


def _read_minari(path: Path, spec: EnvSpec) -> list[Recorded]:
    """Episodes of Minari's HDF5 layout: groups episode_N of actions, rewards, terminations, truncations [T] and
    observations [T+1], a dataset or a group of one a field."""
    import h5py

    found = [path] if path.is_file() else sorted(path.rglob(MINARI_FILE))
    if len(found) != 1:
        raise UserError(f"{path} holds {len(found)} files {MINARI_FILE}; give the directory of one Minari HDF5 dataset")
    _check_exported(found[0])
    _check_world(found[0].with_name(METADATA), path, spec)
    out = []
    with parsing(found[0], "dataset of Minari's HDF5 layout"), h5py.File(found[0], "r") as file:
        numbers = sorted(int(m[1]) for name in file if (m := re.fullmatch(r"episode_(\d+)", name)))
        for i in numbers:
            group, where = f"episode_{i}", f"{found[0]}: episode {i}"
            seen, at = file[group].get("observations", getclass=True), f"{group}/observations"
            fields = list(file[at]) if seen is h5py.Group else list(spec.obs)[:1]
            for name in spec.obs:
                if name not in fields:
                    raise UserError(f"{where} has no observation field {name!r}; it has: {', '.join(fields)}")
            paths = {name: f"{at}/{name}" if seen is h5py.Group else at for name in spec.obs}
            part = {ours: dataset_of(file, f"{group}/{theirs}", found[0])[:] for ours, theirs in MINARI.items()}
            obs = {k: _frames(dataset_of(file, v, found[0]), spec.obs[k], f"{where}: {k}") for k, v in paths.items()}
            out.append(_recorded(obs, part, spec, where))
    if not out:
        raise UserError(f"{found[0]} holds no episodes")
    return out


def _check_exported(file: Path) -> None:
    """UserError where core.export wrote a dataset and it is not what the run directory's manifest knows."""
    run = file.absolute().parent.parent
    if artefacts.begun_by(run) == EXPORT:
        for name in (file.name, METADATA):
            artefacts.check_file(run, f"{file.parent.name}/{name}")


def _check_world(metadata: Path, path: Path, spec: EnvSpec) -> None:
    """UserError for a dataset of another world, where its metadata name one (core.export's do)."""
    said = cli.read_json(metadata) if metadata.is_file() else None
    ours = said.get("dreamlens") if isinstance(said, dict) else None
    world = ours.get("env_id") if isinstance(ours, dict) else None
    if world not in (None, spec.env_id):
        raise UserError(f"{path} was recorded in {world}, this agent plays {spec.env_id}")


def _frames(data: Any, field: Field, where: str) -> np.ndarray:
    """A field's rows; frames that Minari keeps encoded (its own as JPEG, which loses some; core.export's as PNG) are
    decoded."""
    from PIL import Image, UnidentifiedImageError

    rows: np.ndarray = data[:]
    if rows.dtype != object and not (rows.ndim == 2 and rows.dtype == np.uint8 and len(field.shape) > 1):
        return rows
    pictures = []
    try:
        for row in rows:
            image = Image.open(io.BytesIO(row.tobytes()))
            if (image.height, image.width) != field.shape[:2]:
                size = f"{image.height} x {image.width}"
                raise UserError(f"{where} has pictures of {size}, the world's are {field.shape}")
            pictures.append(np.asarray(image))
    except (UnidentifiedImageError, OSError) as error:
        raise UserError(f"{where} is encoded, but not as pictures that can be read ({error})") from None
    frames = np.stack(pictures)
    return frames[..., None] if frames.ndim == 3 and field.shape[-1:] == (1,) else frames


def _recorded(obs: Mapping[str, np.ndarray], part: Mapping[str, np.ndarray], spec: EnvSpec, where: str) -> Recorded:
    """Shapes, dtypes and ranges compared with the world's.  Raises UserError."""
    action = part["action"]
    parts, steps = np.array(spec.parts), len(action)
    if action.dtype.kind not in "iu" or action.shape != ((steps,) if len(parts) == 1 else (steps, len(parts))):
        form = "[T]" if len(parts) == 1 else f"[T, {len(parts)}]"
        raise UserError(f"{where}: action is {action.dtype} {list(action.shape)}; it must be whole numbers {form}")
    if not steps:
        raise UserError(f"{where} has no transition")
    flat = action.reshape(steps, len(parts))
    if (flat < 0).any() or (flat >= parts).any():
        last = ", ".join(map(str, parts - 1))
        raise UserError(f"{where} has an action outside 0 to {last}, which {spec.env_id} does not have")
    paid = np.asarray(part["reward"])
    if paid.shape != (steps,):
        raise UserError(f"{where}: reward is {list(paid.shape)}; it must be {steps} numbers, one a transition")
    reward = REWARD.cast(paid, f"{where}: reward")
    terminated = bool(part["terminated"][-1])
    fields = {name: _field(np.asarray(obs[name]), name, spec, where) for name in spec.obs}
    if {len(x) for x in fields.values()} not in ({steps}, {steps + 1}):
        rows = {name: len(x) for name, x in fields.items()}
        raise UserError(f"{where}: {rows} observations for {steps} transitions; there must be {steps} or {steps + 1}")
    cut = not terminated and not bool(part["truncated"][-1])
    return Recorded(fields, action.astype(np.int64), reward, terminated, not terminated, cut)


def _field(value: np.ndarray, name: str, spec: EnvSpec, where: str) -> np.ndarray:
    about, what = spec.obs[name], f"{where}: the observation field {name!r}"
    by_number = value.shape[1:] == about.numbers != about.shape
    if by_number and value.dtype.kind in "iu" and about.kind == "one_hot":
        value = about.one_hot(value, what)
    whole = np.dtype(about.dtype).kind != "f"
    if value.shape[1:] != about.shape or value.dtype.kind not in "biuf" or (whole and str(value.dtype) != about.dtype):
        raise UserError(
            f"{what} is {value.dtype} {list(value.shape[1:])}; {spec.env_id} has {about.dtype} {list(about.shape)}"
        )
    return about.cast(value, what)


# Replaying


@torch.no_grad()
def replayed(
    agent: Agent, recorded: Sequence[Recorded], batch: int, device: torch.device | str = "cpu"
) -> Iterator[Episode]:
    """The episodes in their order, with what the agent makes of their observations from its initial state on."""
    for first in range(0, len(recorded), batch):
        some = recorded[first : first + batch]
        rows = [len(next(iter(e.obs.values()))) for e in some]
        state, kept = agent.initial(len(some)), _Kept()
        for t in range(max(rows)):
            at = [min(t, n - 1) for n in rows]  # an episode that is over stands still; what comes of it is cut off
            obs = {
                k: torch.from_numpy(np.stack([e.obs[k][i] for e, i in zip(some, at, strict=True)])).to(device)
                for k in agent.spec.obs
            }
            time = torch.full((len(some),), t, device=device)
            acted = act(agent, obs, state, time == 0, time)
            state = acted.state
            h = agent.read("h", acted.seen, acted.state)
            kept.add(h=h, value=acted.value_B, logits=acted.logits_BA, state=flatten(state))
        for b, one in enumerate(some):
            columns = {name: np.stack([x[b] for x in column[: rows[b]]]) for name, column in kept.columns.items()}
            logits, whole = columns.pop("logits")[: len(one.action)], columns.pop("state")
            more = whole.shape != columns["h"].shape or not np.array_equal(whole, columns["h"])  # than h
            yield Episode(
                **columns, obs=one.obs, action=one.action, reward=one.reward, terminated=one.terminated,
                truncated=one.truncated, logits=logits, **({"state": whole} if more else {}),
                meta={"imported": first + b, **({"cut": True} if one.cut else {})},
            )  # fmt: skip


class _Kept:
    """Rows of columns, on the CPU."""

    def __init__(self) -> None:
        self.columns: dict[str, list[np.ndarray]] = {}

    def add(self, **rows: torch.Tensor) -> None:
        for name, row in rows.items():
            self.columns.setdefault(name, []).append(row.float().cpu().numpy())


def surprise(episode: Episode, parts: Sequence[int], shares: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Mean of -log p(action) less the policy's entropy in nats, 0 where the actions are draws of this policy; and the
    same of actions that have nothing to do with what was seen, drawn by the recording's ``shares``, a part each."""
    assert episode.logits is not None
    action = torch.from_numpy(episode.action.reshape(episode.steps, len(parts)))
    own = others = 0.0
    of_part = torch.from_numpy(episode.logits).split(list(parts), 1)
    for logits, chosen, share in zip(of_part, action.unbind(1), shares, strict=True):
        logp = logits.log_softmax(1)
        negentropy = (logp.exp() * logp).sum(1)
        own += float((negentropy - logp.gather(1, chosen[:, None])[:, 0]).mean())
        others += float((negentropy - (logp * share).sum(1)).mean())
    return own, others


def shares_of(recorded: Sequence[Recorded], parts: Sequence[int]) -> list[torch.Tensor]:
    """How often each choice of every part is in the recorded actions."""
    actions = np.concatenate([e.action.reshape(len(e.action), len(parts)) for e in recorded])
    return [
        torch.from_numpy(np.bincount(a, minlength=n) / len(a)).float() for a, n in zip(actions.T, parts, strict=True)
    ]


def said_of(own: np.ndarray, others: np.ndarray) -> str:
    """Whether it was this agent, as far as how much its actions surprise it tells.  own, others: ``surprise`` of every
    episode [E]."""
    rng = np.random.default_rng(0)
    may_be, told = (bootstrap_mean(x, np.arange(len(own)), rng=rng) for x in (own, others - own))
    said = (
        f"the recorded actions are {own.mean():+.2f} nats more surprising to the agent than its own draws (0: it was "
        f"this agent), the same actions at any other time {others.mean():+.2f}"
    )
    if may_be.low > 0 or told.low > 0:  # it was not, or it shows; ends that are not known (nan) say neither
        return said
    return f"{said}, not shown to be more: this does not tell whether it was this agent"


def main(config: ImportConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, batch=config.batch)
    inputs = artefacts.Inputs({"agent": config.agent})
    agent: Any = load_agent(config.agent, device)
    spec: EnvSpec = agent.spec
    recorded = read_rollouts(config.rollouts, spec)
    shares, surprises = shares_of(recorded, spec.parts), []
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        artefacts.write_json(run.path / "spec.json", spec.to_json())
        with StoreWriter(run.path) as writer, bar("replaying", len(recorded), "episodes") as progress:
            for episode in replayed(agent, recorded, config.batch, device):
                writer.add(episode)
                surprises.append(surprise(episode, spec.parts, shares))
                progress.advance()
        run.facts = {"agent": fingerprint(agent), "source": "real", "interventions": []}
        n = len(recorded)
        run.record("return_mean", float(np.mean([e.reward.sum() for e in recorded])), "return", n)
        run.record("length_mean", float(np.mean([len(e.action) for e in recorded])), "steps", n)
        run.record("steps", sum(len(e.action) for e in recorded), "steps")
        own, others = np.array(surprises).T
        run.record("surprise_mean", float(own.mean()), "nats above the policy's entropy", n)
        run.record("surprise_at_other_times_mean", float(others.mean()), "nats above the policy's entropy", n)
    steps = sum(len(e.action) for e in recorded)
    sizes = f"{counted(n, 'episode')}, {counted(steps, 'step')}"
    print(f"imported {sizes}: {config.out}; {said_of(own, others)}")


if __name__ == "__main__":
    cli.run(ImportConfig, main, STAGE)
