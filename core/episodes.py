"""Episodes and the store that keeps them: lossless, compressed, atomic HDF5 shards.

A shard holds the episodes of one writer, concatenated along time: datasets ``obs/NAME``,
``steps/NAME`` (one row an observation, or one a transition) and per-episode index columns.
Frames are chunked by 32 steps.

A shard may be gigabytes, so it is not hashed when it is opened; HDF5 finds what changed in it where it is read.  Its
metadata are of the format of 1.10, which gives each block of them a checksum, and every chunk of every dataset, those
of the index too, has a Fletcher-32.  Shards of earlier versions have no checksum of index and metadata (superblock 0),
or of their chunks zlib's Adler-32 alone, which misses some flipped bits: those are compared with the manifest's SHA-256
as a whole, once a store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.artefacts import MANIFEST, check_file, load_json, read_manifest
from core.contracts import EnvSpec, UserError
from core.files import FAST, compressed_dataset, dataset_of, hdf5_file, json_of, parsing, write_rows

INDEX = ("steps", "rows", "terminated", "truncated")  # columns of the index
REMEDY = "copy or record it again"
CHUNK_STEPS = 32
SHARD_STEPS = 16_384
OPEN = 16  # files of a store at a time: HDF5 keeps one to two megabytes of each
GROUPS = ("obs", "truth", "world", "points")  # columns of an episode that have a name in a group
MOST_CUT = 0.01  # of the episodes: what a recorder cut off are the long ones, so that those left are shorter than most
TRANSITION = ("action", "logits", "reward")  # one row a transition, T; all others one row an observation


def without_cut(cut: int, whole: int) -> str:
    """What is said beside a mean of whole episodes that leaves out those that the recorder cut: " (3 cut ...)"."""
    shorter = ", so that these are the shorter ones" if cut > MOST_CUT * (cut + whole) else ""
    return f" ({cut} cut short left out{shorter})" if cut else ""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One episode of T transitions, aligned as core.contracts says.

    Observation-like arrays (``obs, h, state, value, truth``, ``points``, ``world``) have T+1 rows, or T where the
    world never showed the last observation (``final_known`` false: Procgen after a terminal step);
    the last frame is never invented.  ``truncated`` without ``terminated`` means cut: by a time
    limit, or because the recorder stopped.
    """

    obs: Mapping[str, np.ndarray]
    h: np.ndarray  # float32 [T(+1), H]
    value: np.ndarray  # float32 [T(+1)]
    action: np.ndarray  # int64 [T] or [T, parts], the action taken
    reward: np.ndarray  # float32 [T]
    terminated: bool
    truncated: bool
    logits: np.ndarray | None = None  # float32 [T, A], the agent's own, before any exploration; None: not kept
    truth: Mapping[str, np.ndarray] = field(default_factory=dict)  # labels of the world, a row an observation
    world: Mapping[str, np.ndarray] = field(default_factory=dict)  # simulator's state, a row an observation
    points: Mapping[str, np.ndarray] = field(default_factory=dict)  # other vectors of the agent, a row an observation
    latent: np.ndarray | None = None  # float32 [Z], what a simulated episode started from
    state: np.ndarray | None = None  # float32 [T(+1), S], the agent's whole state, flat, where it is more than h
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows, steps = len(self.h), len(self.action)
        if rows not in (steps, steps + 1):
            raise ValueError(f"h has {rows} rows for {steps} transitions; expected {steps} or {steps + 1}")
        own = {"value": self.value} | ({} if self.state is None else {"state": self.state})
        for name, array in (
            *self.obs.items(), *self.truth.items(), *self.world.items(), *self.points.items(), *own.items()
        ):  # fmt: skip
            if len(array) != rows:
                raise ValueError(f"{name} has {len(array)} rows, h has {rows}")
        for name in TRANSITION:
            rows_of = getattr(self, name)
            if rows_of is not None and len(rows_of) != steps:
                raise ValueError(f"{name} has {len(rows_of)} rows, action has {steps}")

    @property
    def steps(self) -> int:
        """Number of transitions T."""
        return len(self.action)

    @property
    def final_known(self) -> bool:
        """Whether the observation after the last transition is there."""
        return len(self.h) == len(self.action) + 1

    def columns(self) -> dict[str, np.ndarray]:
        """All per-step arrays by their stored names."""
        out = {"h": self.h, "value": self.value, "action": self.action, "reward": self.reward}
        out |= {k: v for k in ("logits", "state") if (v := getattr(self, k)) is not None}
        for group in GROUPS:
            out |= {f"{group}/{k}": v for k, v in getattr(self, group).items()}
        return out


def episode_of(columns: Mapping[str, np.ndarray], **rest: Any) -> Episode:
    """The episode of these per-step arrays, by their stored names as ``Episode.columns`` gives them; rest: its other
    fields."""
    flat: dict[str, Any] = {}
    groups: dict[str, Any] = {group: {} for group in GROUPS}
    for name, array in columns.items():
        group, _, inside = name.partition("/")
        (groups[group] if inside else flat)[inside or name] = array
    return Episode(**flat, **groups, **rest)


def state_column(leaf: int) -> str:
    """The column of a tensor of the world's state, by its place in the tree (core.trees.leaves); one that is the very
    features of the world is not stored twice and has none."""
    return f"world/state_{leaf}"


def is_transition(name: str) -> bool:
    """Whether a stored column has one row a transition (else one an observation)."""
    return name in TRANSITION


class StoreWriter:
    """Write episodes into shards of one directory; one writer a prefix, so processes never share a file.

    chunk_steps: rows that are compressed, and read, together (few for random windows of frames); level: see
    ``write_rows``.
    Use as a context manager; a shard appears only when it is whole.
    """

    def __init__(
        self,
        path: Path,
        prefix: str = "shard",
        shard_steps: int = SHARD_STEPS,
        *,
        chunk_steps: int = CHUNK_STEPS,
        level: int = FAST,
    ) -> None:
        self.path, self.prefix, self.shard_steps = Path(path), prefix, shard_steps
        self.chunk_steps, self.level = chunk_steps, level
        self._episodes: list[Episode] = []
        self.waiting = self.shards = 0  # steps of the episodes that wait for the next shard; shards written
        self._columns: dict[str, tuple[tuple[int, ...], str]] | None = None

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.flush()

    def add(self, episode: Episode) -> None:
        self._check(episode)
        self._episodes.append(episode)
        self.waiting += episode.steps
        if self.waiting >= self.shard_steps:
            self.flush()

    def _check(self, episode: Episode) -> None:
        """ValueError unless it has the columns that the others have."""
        columns = {k: (v.shape[1:], str(v.dtype)) for k, v in episode.columns().items()}
        columns["latent"] = ((), "none") if episode.latent is None else (episode.latent.shape, "float32")
        if self._columns is None:
            self._columns = columns
        if columns != self._columns:
            odd = sorted(set(columns.items()) ^ set(self._columns.items()))
            raise ValueError(f"episode columns differ from the store's: {odd}")

    def flush(self) -> None:
        """Write the pending episodes as one shard."""
        if self._episodes:
            self._write(self.shards, self._episodes)
            self._episodes, self.waiting, self.shards = [], 0, self.shards + 1

    def write(self, shard: int, episodes: Sequence[Episode]) -> str:
        """These as the shard of this number, whose file's name comes back; for a writer that has only some of the
        shards."""
        for episode in episodes:
            self._check(episode)
        self._write(shard, episodes)
        return self._name(shard)

    def _name(self, shard: int) -> str:
        return f"{self.prefix}_{shard:05d}.h5"

    def _write(self, shard: int, episodes: Sequence[Episode]) -> None:
        with hdf5_file(self.path / self._name(shard)) as (file, check):

            def put(name: str, *parts: np.ndarray) -> None:
                """These, one after the other."""
                dataset = compressed_dataset(file, name, parts[0], sum(map(len, parts)), self.chunk_steps)
                for at, block in blocks(parts, 8 * self.chunk_steps):
                    write_rows(dataset, at, block, self.level)
                check()

            columns = [e.columns() for e in episodes]
            for name in columns[0]:
                put(f"columns/{name}", *(of_episode[name] for of_episode in columns))
            if episodes[0].latent is not None:
                put("latent", np.stack([e.latent for e in episodes]))  # type: ignore[arg-type, misc]
            put("index/steps", np.array([e.steps for e in episodes], np.int64))
            put("index/rows", np.array([len(e.h) for e in episodes], np.int64))
            put("index/terminated", np.array([e.terminated for e in episodes]))
            put("index/truncated", np.array([e.truncated for e in episodes]))
            put("index/meta", np.array([json.dumps(dict(e.meta)).encode() for e in episodes]))

    def state(self) -> dict[str, Any]:
        """How many shards there are, and the episodes that wait for the next (see ``packed``)."""
        return {"shards": self.shards, **packed(self._episodes)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on after what ``state`` gave."""
        self.shards = state["shards"]
        for episode in unpacked(state):
            self.add(episode)


def packed(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Episodes without latents, which recorded ones have not, as tensors, numbers and text."""
    columns = [e.columns() for e in episodes]
    return {
        "columns": {k: torch.from_numpy(np.concatenate([c[k] for c in columns])) for k in next(iter(columns), ())},
        "episodes": [
            {
                "steps": e.steps,
                "rows": len(e.h),
                "terminated": bool(e.terminated),
                "truncated": bool(e.truncated),
                "meta": json.dumps(dict(e.meta)),
            }
            for e in episodes
        ],
    }


def unpacked(state: Mapping[str, Any]) -> Iterator[Episode]:
    """What ``packed`` packed."""
    step = row = 0
    for about in state["episodes"]:
        to_step, to_row = step + about["steps"], row + about["rows"]
        columns = {
            k: x[step:to_step].numpy() if is_transition(k) else x[row:to_row].numpy()
            for k, x in state["columns"].items()
        }
        ended = {k: about[k] for k in ("terminated", "truncated")}
        yield episode_of(columns, **ended, meta=json.loads(about["meta"]))
        step, row = to_step, to_row


def blocks(parts: Iterable[np.ndarray], rows: int) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, rows) of the parts one after the other, in blocks of a multiple of ``rows`` but for the last."""
    at, waiting = 0, 0
    pending: list[np.ndarray] = []
    for part in parts:
        pending.append(part)
        waiting += len(part)
        if waiting >= rows:
            joined = np.concatenate(pending)
            whole = waiting // rows * rows
            yield at, joined[:whole]
            at, waiting, pending = at + whole, waiting - whole, [joined[whole:]]
    if waiting:
        yield at, np.concatenate(pending)


@dataclass(frozen=True)
class Window:
    """A batch of windows that never cross an episode's end.

    ``obs`` [B, L, ...]; ``h, value`` [B, L, ...]; ``action, logits, reward, terminated`` [B, L]:
    row i of ``reward`` and ``terminated`` is the transition that *follows* row i.  ``seen`` [B, L]:
    row i's observation exists; ``acted`` [B, L]: the transition after row i exists.  Rows beyond the
    episode are zero.
    """

    columns: dict[str, np.ndarray]
    terminated: np.ndarray
    seen: np.ndarray
    acted: np.ndarray
    index: np.ndarray  # int64 [B, 2], (episode, first step)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]


def spread_over_episodes(rows: np.ndarray, unit_N: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` of ``rows`` at random (all, if fewer), from as many episodes as there are."""
    shuffled = rng.permutation(rows)
    seen: dict[int, int] = {}
    turn = np.empty(len(shuffled), np.int64)
    for n, row in enumerate(shuffled):
        e = int(unit_N[row])
        turn[n] = seen[e] = seen.get(e, -1) + 1
    chosen: np.ndarray = np.sort(shuffled[np.argsort(turn, kind="stable")[:count]])
    return chosen


def _same_file(path: Path) -> tuple[int, ...]:
    """What tells a file from another one that takes its name; () where there is none."""
    try:
        of = path.stat()
    except OSError:
        return ()
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns


class RolloutStore:
    """Read-only view of a directory of shards written by a recording stage.

    Opens shards lazily; safe to use from several processes.  Raises UserError on a half-written
    directory, and on a shard that is missing, truncated or changed: at once where its index is, else where a changed
    part is read.
    """

    def __init__(self, path: Path, part: str = "") -> None:
        """part: a folder of the run directory that holds a store of its own, such as a recording's ``branches``."""
        self.path = Path(path)
        # Which files these are, of the manifest and of every shard that was opened: another may take the name.
        self._checked = {MANIFEST: _same_file(self.path / MANIFEST)}
        self.manifest = read_manifest(self.path)
        if "spec.json" not in self.manifest["files"]:
            raise UserError(f"{self.path} holds no rollouts (stage {self.manifest['stage']!r} wrote it)")
        self.spec = EnvSpec.from_json(load_json(self.path, "spec.json"))
        # Another system's files (analysis.activation_json) may know neither; there they are NaN.
        self._not_recorded = ("value", "reward") if self.manifest["facts"].get("mode") == "imported" else ()
        self._compared: set[str] = set()  # shards whose SHA-256 is the manifest's
        self._files: dict[int, Any] = {}
        self._bounded: set[tuple[int, str]] = set()  # datasets whose sizes were found right
        self._opened: dict[tuple[int, str], Any] = {}  # datasets of the shard that was read last
        self._length: list[tuple[int, int]] = []  # of each shard: transitions, observations
        self._loaded: dict[str, list[np.ndarray]] = {}
        self._pid = os.getpid()
        shards = (name.rpartition("/") for name in self.manifest["files"] if name.endswith(".h5"))
        self._shards = sorted(folder + slash + name for folder, slash, name in shards if folder == part)
        parts = []
        for shard in range(len(self._shards)):
            steps, rows, *ended = (self._whole(shard, f"index/{k}") for k in INDEX)
            meta = self._dataset(shard, "index/meta")
            whole = {x.shape for x in (steps, rows, *ended, meta)} == {(len(steps),)}
            whole &= steps.dtype.kind == rows.dtype.kind == "i" and meta.dtype.kind in "SO"
            if not whole or (steps < 0).any() or not np.isin(rows - steps, (0, 1)).all():
                raise self._broken(shard, "its index contradicts itself")
            self._length.append((int(steps.sum()), int(rows.sum())))
            parts.append(
                np.stack(
                    [np.full(len(steps), shard), np.arange(len(steps)), np.cumsum(steps) - steps, steps,
                     np.cumsum(rows) - rows, rows, *ended], axis=1
                )
            )  # fmt: skip
        if not parts:
            raise UserError(f"{self.path} holds no {part or 'shards'}")
        table = np.concatenate(parts).astype(np.int64)
        self._shard, self._row, self._step0, self.steps, self._obs0, self.rows = table.T[:6]
        self.terminated, self.truncated = table.T[6].astype(bool), table.T[7].astype(bool)

    def _open(self, shard: int) -> Any:
        import h5py

        if shard in self._files:
            self._files[shard] = self._files.pop(shard)  # the last that is closed
            return self._files[shard]
        self._check(self._shards[shard])
        while len(self._files) >= OPEN:
            longest_ago = next(iter(self._files))
            self._opened = {key: of for key, of in self._opened.items() if key[0] != longest_ago}
            self._files.pop(longest_ago).close()
        file = h5py.File(self.path / self._shards[shard], "r")
        try:
            self._check(self._shards[shard])  # that it is still the file that was looked at
        except UserError:
            file.close()
            raise
        self._files[shard] = file
        return file

    def _check(self, name: str) -> None:
        """Compare a shard's size with the manifest, and its SHA-256 where its metadata have no checksums.  UserError
        where another recording has taken this one's place since it was opened."""
        path, known = self.path / name, self.manifest["files"][name]
        if self._checked[MANIFEST] != _same_file(self.path / MANIFEST):
            raise UserError(f"{self.path} was replaced or moved while it was read; start again")
        if name in self._checked:
            if self._checked[name] != _same_file(path):
                raise UserError(f"{path} was replaced while it was read; start again")
            return
        if not path.exists():
            raise UserError(f"{self.path}: shard {name} is missing; record it again")
        if path.stat().st_size != known["bytes"]:
            raise UserError(f"{path}: truncated or broken shard (its manifest knows another size); record it again")
        with open(path, "rb") as file:
            superblock = file.read(9)  # HDF5's signature, then the version: 3 in 1.10's format
        if superblock[8:] < b"\3":
            self._compare(name)
        self._checked[name] = _same_file(path)

    def _compare(self, name: str) -> None:
        """A shard as a whole with the manifest's SHA-256, once."""
        if name not in self._compared:
            check_file(self.path, name)
            self._compared.add(name)

    def _broken(self, shard: int, why: str) -> UserError:
        return UserError(f"{self.path / self._shards[shard]}: broken shard ({why}); {REMEDY}")

    @contextmanager
    def _reading(self, shard: int) -> Iterator[Any]:
        """The shard's file; what HDF5 says of a checksum that does not hold is a UserError."""
        if os.getpid() != self._pid:  # HDF5's handles do not survive a fork
            self._files, self._opened, self._pid = {}, {}, os.getpid()
        with parsing(self.path / self._shards[shard], "shard", REMEDY):
            yield self._open(shard)

    def _dataset(self, shard: int, name: str) -> Any:
        """A dataset of a shard, of a size that its bytes account for.  Those of one shard stay open (one
        keeps a megabyte of chunks in memory)."""
        with self._reading(shard) as file:
            if (shard, name) in self._opened:
                return self._opened[shard, name]
            known = (shard, name) in self._bounded
            found = file[name] if known else dataset_of(file, name, self.path / self._shards[shard])
            if not found.fletcher32:
                self._compare(self._shards[shard])
            self._bounded.add((shard, name))
            self._opened = {key: of for key, of in self._opened.items() if key[0] == shard} | {(shard, name): found}
            return found

    def _whole(self, shard: int, name: str) -> np.ndarray:
        dataset = self._dataset(shard, name)
        with self._reading(shard):
            data: np.ndarray = dataset[:]
        return data

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files, self._opened = {}, {}

    def __enter__(self) -> RolloutStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.steps)

    @property
    def column_names(self) -> list[str]:
        names: list[str] = []
        with self._reading(0) as file:
            file["columns"].visititems(lambda n, d: names.append(n) if hasattr(d, "shape") else None)
        return names

    def preload(self, *names: str) -> None:
        """Keep whole columns decompressed in memory (frames take 12.3 kB a step)."""
        for name in names:
            self._loaded[name] = [self._rows(i, name, 0, None) for i in range(len(self._shards))]

    def _read(self, name: str, episode: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        first, rows = (self._step0, self.steps) if is_transition(name) else (self._obs0, self.rows)
        offset, end = int(first[episode]), int(rows[episode])
        stop = end if stop is None else min(stop, end)
        shard = int(self._shard[episode])
        data = self._rows(shard, name, offset + start, offset + max(start, stop))
        # Labels of the world (truth) may say "not known"; what a policy or a simulator made may not.
        known = not name.startswith("truth/") and name not in self._not_recorded
        if known and data.dtype.kind == "f" and not np.isfinite(data).all():
            step, *number = np.argwhere(~np.isfinite(data))[0]
            at = f"step {start + step}" + "".join(f", number {i}" for i in number)
            raise UserError(
                f"{self.path / self._shards[shard]}: episode {episode} has NaN or infinite values in {name!r} "
                f"(the first: {at}); record it again"
            )
        return data

    def _rows(self, shard: int, name: str, start: int, stop: int | None) -> np.ndarray:
        """Rows of a shard's column; UserError if there is no such column or it cannot be read."""
        if name in self._loaded:
            return self._loaded[name][shard][start:stop]
        column = self._column(shard, name)
        with self._reading(shard):
            data: np.ndarray = column[start:stop]
        return data

    def _column(self, shard: int, name: str) -> Any:
        """A column of a shard, with as many rows as the index says."""
        if (shard, f"columns/{name}") in self._bounded:
            return self._dataset(shard, f"columns/{name}")
        if name not in self.column_names:
            raise UserError(f"{self.path}: no column {name!r}; there are: {', '.join(self.column_names)}")
        column = self._dataset(shard, f"columns/{name}")
        want = self._length[shard][0 if is_transition(name) else 1]
        if len(column) != want:
            self._bounded.discard((shard, f"columns/{name}"))
            raise self._broken(shard, f"{name!r} has {len(column)} rows, its index says {want}")
        return column

    def meta(self, episode: int) -> dict[str, Any]:
        shard = int(self._shard[episode])
        dataset = self._dataset(shard, "index/meta")
        with self._reading(shard):
            raw = bytes(dataset[int(self._row[episode])])
        meta = json_of(raw, self.path / self._shards[shard])
        if not isinstance(meta, dict):
            raise self._broken(shard, f"episode {episode} has no description")
        return meta

    def whole(self, episode: int) -> bool:
        """Whether an episode is known to its end: False where the recorder cut it (``--num_steps``)."""
        return not self.meta(episode).get("cut")

    def latents(self, episodes: Sequence[int] | None = None) -> np.ndarray:
        """float32 [N, Z] of simulated episodes; UserError if these are not simulated."""
        episodes = range(len(self)) if episodes is None else episodes
        rows = [self._latent(e) for e in episodes]
        if any(row is None for row in rows):
            raise UserError(f"{self.path} has no latents: its episodes are not simulated")
        return np.stack(rows)  # type: ignore[arg-type]

    def _latent(self, episode: int) -> np.ndarray | None:
        shard = int(self._shard[episode])
        with self._reading(shard) as file:
            if "latent" not in file:
                return None
        dataset = self._dataset(shard, "latent")
        with self._reading(shard):
            z: np.ndarray = dataset[int(self._row[episode])]
        if not np.isfinite(z).all():
            raise UserError(
                f"{self.path}: episode {episode} started from a latent with NaN or infinite values; record it again"
            )
        return z

    def episode(self, i: int) -> Episode:
        if not 0 <= i < len(self):
            raise UserError(f"{self.path}: episode {i} is out of range; it holds {len(self)} (0 to {len(self) - 1})")
        return episode_of(
            {name: self._read(name, i) for name in self.column_names},
            latent=self._latent(i),
            terminated=bool(self.terminated[i]),
            truncated=bool(self.truncated[i]),
            meta=self.meta(i),
        )

    def __iter__(self) -> Iterator[Episode]:
        return (self.episode(i) for i in range(len(self)))

    def pooled(
        self, *names: str, episodes: Sequence[int] | None = None, first: int = 0
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Columns of all steps t >= first that have both an observation and a transition.

        Returns {name: [N, ...]} and the index int64 [N, 2] of (episode, t).
        """
        episodes = list(range(len(self))) if episodes is None else list(episodes)
        ends = {e: int(min(self.steps[e], self.rows[e])) for e in episodes}
        episodes = [e for e in episodes if ends[e] > first]
        if not episodes:
            raise UserError(f"{self.path}: no episode is longer than {first} steps")
        parts = [np.stack([np.full(ends[e] - first, e), np.arange(first, ends[e])], 1) for e in episodes]
        index = np.concatenate(parts)
        return {n: np.concatenate([self._read(n, e, first, ends[e]) for e in episodes]) for n in names}, index

    def read_windows(self, names: Sequence[str], starts: np.ndarray, length: int) -> Window:
        """The windows that begin at ``starts`` int64 [B, 2] (episode, t), zero-padded past the end."""
        columns: dict[str, list[np.ndarray]] = {n: [] for n in names}
        shape = (len(starts), length)
        terminated, seen, acted = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape, bool)
        for b, (e, t) in enumerate(starts):
            for name in names:
                part = self._read(name, int(e), int(t), int(t) + length)
                padded = np.zeros((length, *part.shape[1:]), part.dtype)
                padded[: len(part)] = part
                columns[name].append(padded)
            seen[b, : max(0, int(self.rows[e]) - t)] = True
            acted[b, : max(0, int(self.steps[e]) - t)] = True
            last = int(self.steps[e]) - 1 - t
            if self.terminated[e] and 0 <= last < length:
                terminated[b, last] = True
        return Window({n: np.stack(c) for n, c in columns.items()}, terminated, seen, acted, np.asarray(starts))

    def window_starts(
        self, length: int, episodes: Sequence[int] | None = None, going_on: bool = False
    ) -> np.ndarray:  # fmt: skip
        """All starts int64 [M, 2] whose first ``length`` observations exist.  going_on: of which the last is not what
        an episode ended in, from where no world goes on."""
        episodes = range(len(self)) if episodes is None else episodes
        ended = self.terminated & (self.rows > self.steps) if going_on else np.zeros(len(self), bool)
        count = self.rows - ended - length + 1
        parts = [np.stack([np.full(count[e], e), np.arange(count[e])], 1) for e in episodes if count[e] > 0]
        if not parts:
            longest, of = int((self.rows - ended).max()), " that it goes on after" if going_on else ""
            raise UserError(f"{self.path}: no episode has {length} observations{of} (the longest has {longest})")
        return np.concatenate(parts).astype(np.int64)

    def windows(
        self,
        names: Sequence[str],
        length: int,
        batch: int,
        rng: np.random.Generator,
        *,
        at_least: int | None = None,
        episodes: Sequence[int] | None = None,
    ) -> Iterator[Window]:
        """An endless stream of random windows; a window may run past the end after its first
        ``at_least`` observations (default: all of them exist)."""
        starts = self.window_starts(length if at_least is None else at_least, episodes)

        def stream() -> Iterator[Window]:
            while True:
                yield self.read_windows(names, starts[rng.integers(len(starts), size=batch)], length)

        return stream()  # the starts are found now, so that a mistake is not put off to the first window
