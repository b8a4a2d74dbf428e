"""Watch what was recorded: ``python -m agents.film runs/rollouts``.

Episodes beside each other; under every frame the action taken, the probabilities of all actions, and courses of the
agent's value and of chosen directions of its hidden state.  A recording in ``--beside`` is a row below: samples of a
simulator below the real windows that they started from, altered episodes below unaltered ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import tyro

from core import artefacts, config as cli
from core.contracts import EnvSpec, UserError
from core.directions import Basis, direction_ids, load_basis
from core.episodes import RolloutStore
from core.figures import enlarged, font_of, minus, rgb
from core.progress import bar
from core.video import check_video, image_field, write_gif, write_video

STAGE = "film"
WIDTH = 256  # pixels of a column; sides of an MP4 are multiples of 16
TITLE, NAMED, PROBABILITIES, COURSE = 32, 24, 56, 64  # heights of the strips above and under a frame
INK, PALE, LINE, NOW = "#1d2329", "#8a8f94", "#2a6f97", "#a3341f"
PAPER = (255, 255, 255)


@dataclass(frozen=True, kw_only=True)
class FilmConfig:
    """Film recorded episodes, with the agent's value, its action probabilities and directions under every frame."""

    rollouts: tyro.conf.Positional[Path] = Path("runs/rollouts")
    """recording: rollouts or samples"""
    beside: tuple[Path, ...] = ()
    """recordings to put below it: the same episode numbers, or, where one is of samples and the other holds the real
    rollouts that they started from, the same windows"""
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


class Reel(NamedTuple):
    """What is drawn of an episode: T steps that were acted in, and one more where what they led to was shown."""

    title: str
    frames: np.ndarray  # uint8 [T(+1), height, width, 3]
    action: np.ndarray  # int64 [T] or [T, parts]
    logits: np.ndarray | None  # float [T, A]
    courses: dict[str, np.ndarray]  # float [T(+1)] by name


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


def parts_of(config: FilmConfig, store: RolloutStore, episodes: Sequence[int]) -> list[list[Part]]:
    """The rows of the film, each of as many parts as there are episodes.  UserError where one is not there."""
    rows = [[Part(store, config.rollouts.name, e, 0) for e in episodes]]
    for path in config.beside:
        other = RolloutStore(path)
        if other.spec.obs != store.spec.obs or other.spec.env_id != store.spec.env_id:
            raise UserError(f"{path} is of {other.spec.env_id}, {config.rollouts} of {store.spec.env_id}")
        if started_from(store, config.rollouts, path):
            rows.append([real_window(store, config.rollouts, e, other, path) for e in episodes])
        elif started_from(other, path, config.rollouts):
            raise UserError(f"{path} started from {config.rollouts}: film {path} --beside {config.rollouts}")
        else:
            for e in episodes:
                check_episode(other, path, e)
            rows.append([Part(other, path.name, e, 0) for e in episodes])
    return rows


def started_from(samples: RolloutStore, path: Path, rollouts: Path) -> bool:
    """Whether the samples at ``path`` started from the recording at ``rollouts``."""
    made_from = samples.manifest["inputs"].get("rollouts")
    real = samples.manifest["facts"].get("source") == "real"
    return (
        made_from is not None
        and not real
        and made_from["manifest_sha256"] == artefacts.sha256(rollouts / artefacts.MANIFEST)
    )


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
    stop = None if longest is None else part.first + longest + 1
    shown, acted = slice(part.first, stop), slice(part.first, None if stop is None else stop - 1)
    courses = {"value": episode.value[shown]}
    courses |= {d.name: d.along(episode.h[shown]) for d in directions}
    gained = float(episode.reward[acted].sum())
    where = f" from step {part.first}" if part.first else ""
    return Reel(
        minus(f"{part.label} {part.episode}{where}, reward {gained:.3g}"),
        episode.obs[field][shown],
        episode.action[acted],
        None if episode.logits is None else episode.logits[acted],
        courses,
    )


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
        (i,) = direction_ids([word], kind, "--directions")
        basis.check([i])
        found.append(Direction(basis, i))
    return found


class Camera:
    """Draws the film's frames; the axes of a course are the same in every column and row."""

    def __init__(self, rows: Sequence[Sequence[Reel]], spec: EnvSpec) -> None:
        self.rows, self.spec, self.parts = rows, spec, spec.parts
        reels = [reel for row in rows for reel in row]
        self.steps = max(len(reel.frames) for reel in reels)
        height, width = reels[0].frames.shape[1:3]
        self.picture = max(16, 16 * round(WIDTH * height / width / 16))
        self.courses = list(reels[0].courses)
        self.ranges = {}
        for name in self.courses:
            x = np.concatenate([reel.courses[name] for reel in reels])
            low, high = float(np.nanmin(x)), float(np.nanmax(x))
            self.ranges[name] = (low, high) if high > low else (low - 0.5, high + 0.5)
        cell = TITLE + self.picture + NAMED + PROBABILITIES + COURSE * len(self.courses)
        self.cell = 16 * -(-cell // 16)
        self.small, self.font = font_of(11), font_of(13)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return WIDTH * len(self.rows[0]), self.cell * len(self.rows)

    def at(self, step: int) -> np.ndarray:
        """The film's frame, uint8 [height, width, 3], at a step."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", self.size, PAPER)
        draw = ImageDraw.Draw(image)
        for i, row in enumerate(self.rows):
            for j, reel in enumerate(row):
                self.cell_at(image, draw, reel, step, j * WIDTH, i * self.cell)
        return np.asarray(image)

    def cell_at(self, image: Any, draw: Any, reel: Reel, step: int, x: int, y: int) -> None:
        """One episode at a step; an episode that is over keeps its last frame, paler."""
        from PIL import Image

        last = len(reel.frames) - 1
        now, over = min(step, last), step > last
        draw.text((x + 6, y + 8), reel.title, fill=PALE if over else INK, font=self.small)
        frame = enlarged(reel.frames[now], WIDTH, self.picture)
        if over:
            frame = Image.blend(frame, Image.new("RGB", frame.size, PAPER), 0.6)
        image.paste(frame, (x, y + TITLE))
        top = y + TITLE + self.picture
        if over:
            draw.text((x + 6, top + 4), f"over after step {len(reel.action)}", fill=PALE, font=self.font)
        elif now < len(reel.action):
            text = self.spec.in_words(reel.action[now].tolist())
            draw.text((x + 6, top + 4), f"step {now}: {text}", fill=INK, font=self.font)
        else:
            draw.text((x + 6, top + 4), f"step {now}", fill=INK, font=self.font)
        if reel.logits is not None and now < len(reel.logits) and not over:
            self.bars(draw, reel.logits[now], reel.action[now], x, top + NAMED)
        for k, name in enumerate(self.courses):
            self.course(draw, name, reel.courses[name], now, x, top + NAMED + PROBABILITIES + COURSE * k)

    def bars(self, draw: Any, logits_A: np.ndarray, action: np.ndarray, x: int, y: int) -> None:
        """Probabilities of all choices, those of each part of an action apart; what was chosen is darker."""
        starts = np.cumsum([0, *self.parts])
        chosen = set((starts[:-1] + np.atleast_1d(action)).tolist())
        wide = (WIDTH - 12) / (starts[-1] + len(self.parts) - 1)
        for part, (low, high) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
            exp = np.exp(logits_A[low:high] - logits_A[low:high].max())
            for i, p in enumerate(exp / exp.sum(), int(low)):
                left = x + 6 + (i + part) * wide
                tall = float(p) * (PROBABILITIES - 12)
                box = (left, y + PROBABILITIES - 8 - tall, left + max(1.0, wide - 2), y + PROBABILITIES - 8)
                draw.rectangle(box, fill=NOW if i in chosen else LINE)
        draw.line((x + 6, y + PROBABILITIES - 7, x + WIDTH - 6, y + PROBABILITIES - 7), fill=PALE)

    def course(self, draw: Any, name: str, values: np.ndarray, now: int, x: int, y: int) -> None:
        """A quantity along the episode, with a mark where it is now."""
        low, high = self.ranges[name]
        xs = x + 6 + np.arange(len(values)) * (WIDTH - 12) / max(1, self.steps - 1)
        ys = y + COURSE - 6 - (values - low) / (high - low) * (COURSE - 26)
        draw.text((x + 6, y), minus(f"{name} {values[now]:.2f}"), fill=INK, font=self.small)
        if len(values) > 1:
            draw.line(list(zip(xs.tolist(), ys.tolist(), strict=True)), fill=rgb(LINE), width=2)
        draw.ellipse((xs[now] - 3, ys[now] - 3, xs[now] + 3, ys[now] + 3), fill=rgb(NOW))


def main(config: FilmConfig) -> None:
    cli.require(1, steps=1 if config.steps is None else config.steps)
    if not config.fps > 0:
        raise UserError(f"--fps must be above 0, not {config.fps}")
    if config.format == "mp4":
        check_video("--format gif")
    store = RolloutStore(config.rollouts)
    if not len(store):
        raise UserError(f"{config.rollouts} holds no episode to film")
    field = image_field(store)
    if field is None:
        raise UserError(f"{config.rollouts} holds no pictures: nothing of {store.spec.env_id} can be filmed")
    episodes = config.episodes or tuple(range(min(4, len(store))))
    for e in episodes:
        check_episode(store, config.rollouts, e)
    directions = directions_of(config, store.manifest["facts"].get("agent"))
    rows = [
        [reel_of(part, field, directions, config.steps) for part in row] for row in parts_of(config, store, episodes)
    ]
    camera = Camera(rows, store.spec)
    inputs = {"rollouts": config.rollouts} | {f"beside_{i}": path for i, path in enumerate(config.beside)}
    inputs |= {} if config.basis is None else {"basis": config.basis}
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        frames = []
        with bar("drawing", camera.steps, "frames") as progress:
            for step in range(camera.steps):
                frames.append(camera.at(step))
                progress.advance()
        path = run.path / f"film.{config.format}"
        write = write_gif if config.format == "gif" else write_video
        write(path, frames, config.fps)
        run.record("frames", len(frames), "frames")
    print(f"{len(episodes)} episodes, {camera.steps} steps: {config.out / path.name}")


if __name__ == "__main__":
    cli.run(FilmConfig, main, STAGE)
