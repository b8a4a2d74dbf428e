"""Watch what was recorded: ``python -m agents.film runs/rollouts``.

Episodes beside each other; under every frame the action taken, the probabilities of all actions, and courses of the
agent's value and of chosen directions of its hidden state.  A recording in ``--beside`` is a row below: samples of a
simulator below the real windows that they started from, altered episodes below unaltered ones.

This films what is recorded.  ``python -m validation.panel serve RUNS`` plays live, in a browser: the agent from starts
of the real game and in its simulator, with and without a change, and by hand.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m agents.film", file=sys.stderr)
    sys.exit(2)

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
import tyro

from agents.camera import Camera, Reel, reel
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import Basis, direction_ids, load_basis
from core.episodes import RolloutStore
from core.progress import track
from core.video import check_video, write_gif, write_video
from core.words import counted

STAGE = "film"


@dataclass(frozen=True, kw_only=True)
class FilmConfig:
    """Film recorded episodes, with the agent's value, its action probabilities and directions under every frame.

    Live play, in a browser: python -m validation.panel serve runs/demo (its view Live).
    """

    rollouts: tyro.conf.Positional[Path] = Path("runs/rollouts")
    """recording: rollouts or samples"""
    beside: tuple[Path, ...] = ()
    """recordings shown as further rows below.  Under each episode stands the one of the same seed, slot and turn in the
    slot (of the same number, where a recording does not tell slots), if both begin with the same picture.  Of samples
    and the real rollouts that they started from: the real steps from each sample's start on"""
    episodes: tuple[int, ...] = ()
    """episodes (or samples) to film beside each other; none: the first four"""
    basis: Path | None = None
    """run directory with directions (analysis.hidden_states), for --directions"""
    directions: tuple[str, ...] = ()
    """directions whose courses are drawn: names such as ica:3, or numbers of the basis --kind"""
    kind: str = "ica"
    """basis that numbers in --directions are of"""
    format: Literal["mp4", "gif"] = "mp4"
    """of the film"""
    fps: float = 8.0
    """steps a second"""
    steps: int | None = None
    """longest film, in steps from each episode's beginning; none: to the end of the longest episode"""
    out: Path = Path("runs/film")
    """run directory to write; the film is film.mp4 or film.gif in it"""
    overwrite: bool = False
    """replace an earlier film in --out"""


class Part(NamedTuple):
    """Steps of a recorded episode."""

    store: RolloutStore
    label: str
    episode: int
    first: int  # row


class Direction(NamedTuple):
    """One direction of a basis of hidden states."""

    basis: Basis
    number: int

    @property
    def name(self) -> str:
        return self.basis.names[self.number]

    def along(self, h_TH: np.ndarray) -> np.ndarray:
        """How far states [T, H] lie along it, [T]."""
        out: np.ndarray = self.basis.project(torch.from_numpy(h_TH))[:, self.number].numpy()
        return out


def parts_of(config: FilmConfig, store: RolloutStore, field: str, episodes: Sequence[int]) -> list[list[Part]]:
    """The rows of the film, each of as many parts; an episode without its like in a row below is left out, and said.
    UserError where one is not there, or none is left."""
    rows: list[dict[int, Part]] = [{e: Part(store, config.rollouts.name, e, 0) for e in episodes}]
    for path in config.beside:
        other = RolloutStore(path)
        if other.spec.obs != store.spec.obs or other.spec.env_id != store.spec.env_id:
            raise UserError(f"{path} is of {other.spec.env_id}, {config.rollouts} of {store.spec.env_id}")
        if started_from(store, config.rollouts, path):
            rows.append({e: real_window(store, config.rollouts, e, other, path) for e in episodes})
        elif started_from(other, path, config.rollouts):
            raise UserError(f"{path} started from {config.rollouts}: film {path} --beside {config.rollouts}")
        else:
            rows.append(
                {e: Part(other, path.name, i, 0) for e, i in likes(store, other, path, field, episodes).items()}
            )
        if lost := [str(e) for e in episodes if e not in rows[-1]]:
            why = f"no episode of {path} is of the same slot (or number) and begins with the same picture"
            if not rows[-1]:
                raise UserError(f"--beside: {why} as one of {config.rollouts}; record both with the same --seed, "
                                "--slots, --split and levels")  # fmt: skip
            print(f"note: left out: {', '.join(lost)}, as which {why}", file=sys.stderr)
    kept = [e for e in episodes if all(e in row for row in rows)]
    if not kept:
        raise UserError("--beside: no episode has its like in every one of these recordings; film them one at a time")
    return [[row[e] for e in kept] for row in rows]


def likes(
    store: RolloutStore, other: RolloutStore, path: Path, field: str, episodes: Sequence[int]
) -> dict[int, int]:  # fmt: skip
    """{episode: the other recording's of the same start}: the n-th of the same slot and seed, of recordings that do not
    tell slots the one of the same number; if both begin with the same picture."""
    mine, theirs = turns(store), turns(other)
    if mine is None or theirs is None:
        for e in episodes:
            check_episode(other, path, e)
        found = {e: e for e in episodes}
    else:
        number = {turn: i for i, turn in enumerate(theirs)}
        found = {e: number[mine[e]] for e in episodes if mine[e] in number}
    return {e: i for e, i in found.items() if np.array_equal(first_of(store, e, field), first_of(other, i, field))}


def turns(store: RolloutStore) -> list[tuple[int, int, int]] | None:
    """(seed, slot, number among those of the slot) of every episode, whatever the order in which they ended; None where
    a recording does not tell."""
    out, seen = [], Counter[tuple[int, int]]()
    for e in range(len(store)):
        meta = store.meta(e)
        if "slot" not in meta or "seed" not in meta:
            return None
        at = int(meta["seed"]), int(meta["slot"])
        out.append((*at, seen[at]))
        seen[at] += 1
    return out


def first_of(store: RolloutStore, episode: int, field: str) -> np.ndarray:
    """The picture that an episode begins with."""
    return store.read_windows([f"obs/{field}"], np.array([[episode, 0]]), 1)[f"obs/{field}"][0, 0]


def started_from(samples: RolloutStore, path: Path, rollouts: Path) -> bool:
    """Whether the samples at ``path`` started from the recording at ``rollouts``."""
    made_from = samples.manifest["inputs"].get("rollouts")
    real = samples.manifest["facts"].get("source") == "real"
    return made_from is not None and not real and made_from["manifest_sha256"] == artefacts.manifest_sha256(rollouts)


def real_window(samples: RolloutStore, path: Path, sample: int, real: RolloutStore, real_path: Path) -> Part:
    """What was recorded from the frame on that a sample shows first."""
    start, first = samples.meta(sample).get("start"), samples.manifest["facts"].get("first_shown")
    if start is None or first is None:
        raise UserError(f"{path} does not say from which real frame its samples start; record them again")
    episode, row = int(start[0]), int(start[1]) + int(first)
    check_episode(real, real_path, episode)
    return Part(real, real_path.name, episode, row)


def check_episode(store: RolloutStore, path: Path, episode: int) -> None:
    if not 0 <= episode < len(store):
        raise UserError(f"--episodes: {path} has episodes 0 to {len(store) - 1}, not {episode}")


def reel_of(part: Part, field: str, directions: Sequence[Direction], longest: int | None) -> Reel:
    """An episode, from a row on, for at most ``longest`` steps."""
    episode = part.store.episode(part.episode)
    where = f" from step {part.first}" if part.first else ""
    courses = {d.name: d.along(episode.h) for d in directions}
    return reel(episode, f"{part.label} {part.episode}{where}", field, courses, part.first, longest)


def directions_of(config: FilmConfig, agent: str | None) -> list[Direction]:
    """The directions whose courses are drawn.  UserError where one does not exist or is of another agent."""
    if not config.directions:
        return []
    if config.basis is None:
        raise UserError("--directions needs --basis, the run directory of analysis.hidden_states that they are of")
    found = []
    for word in config.directions:
        kind = word.partition(":")[0] if ":" in word else config.kind
        basis = load_basis(config.basis, kind, agent)
        (i,) = direction_ids([word], basis, "--directions")
        basis.check([i])
        found.append(Direction(basis, i))
    return found


def main(config: FilmConfig) -> None:
    cli.require(1, steps=1 if config.steps is None else config.steps)
    cli.require_positive(fps=config.fps)
    if config.format == "mp4":
        check_video("--format gif")
    inputs = artefacts.Inputs({
        "rollouts": config.rollouts, **{f"beside_{i}": path for i, path in enumerate(config.beside)},
        "basis": config.basis,
    })  # fmt: skip
    store = RolloutStore(config.rollouts)
    if not len(store):
        raise UserError(f"{config.rollouts} holds no episode to film")
    field = store.spec.picture
    if field is None:
        raise UserError(f"{config.rollouts} holds no pictures: nothing of {store.spec.env_id} can be filmed")
    episodes = config.episodes or tuple(range(min(4, len(store))))
    for e in episodes:
        check_episode(store, config.rollouts, e)
    directions = directions_of(config, store.manifest["facts"].get("agent"))
    parts = parts_of(config, store, field, episodes)
    rows = [[reel_of(part, field, directions, config.steps) for part in row] for row in parts]
    camera = Camera(rows, store.spec)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        frames = list(track(camera.frames(), "drawing", camera.steps, "frames"))
        path = run.path / f"film.{config.format}"
        write = write_gif if config.format == "gif" else write_video
        write(path, frames, config.fps)
        run.record("frames", len(frames), "frames")
    count = len(rows[0])
    print(f"{counted(count, 'episode')}, {counted(camera.steps, 'step')}: {config.out / path.name}")


if __name__ == "__main__":
    cli.run(FilmConfig, main, STAGE)
