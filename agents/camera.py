"""What films of episodes are drawn with: episodes beside each other; under every frame the action taken, the
probabilities of all actions, and courses of quantities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from core.contracts import EnvSpec
from core.episodes import Episode
from core.figures import enlarged, font_of, minus, rgb

WIDTH, GAP = 256, 16  # pixels of a column, and between two; sides of an MP4 are multiples of 16
TITLE, NAMED, PROBABILITIES, COURSE = 32, 24, 56, 64  # heights of the strips above and under a frame
INK, PALE, LINE, NOW = "#1d2329", "#8a8f94", "#2a6f97", "#a3341f"
PAPER = (255, 255, 255)


class Reel(NamedTuple):
    """What is drawn of an episode: T steps that were acted in, and one more where what they led to was shown."""

    title: str
    frames: np.ndarray  # uint8 [T(+1), height, width, 3 or 1]
    action: np.ndarray  # int64 [T] or [T, parts]
    logits: np.ndarray | None  # float [T, A]
    courses: dict[str, np.ndarray]  # float [T(+1)] by name


def reel(
    episode: Episode,
    title: str,
    field: str,
    courses: Mapping[str, np.ndarray] | None = None,
    first: int = 0,
    longest: int | None = None,
) -> Reel:
    """An episode, from row ``first`` on, for at most ``longest`` steps, with courses of its value and of quantities
    [T(+1)]; field: the observation that is a picture."""
    stop = None if longest is None else first + longest + 1
    shown, acted = slice(first, stop), slice(first, None if stop is None else stop - 1)
    gained = float(episode.reward[acted].sum())
    return Reel(
        minus(f"{title}, reward {gained:.3g}"),
        episode.obs[field][shown],
        episode.action[acted],
        None if episode.logits is None else episode.logits[acted],
        {"value": episode.value[shown]} | {name: x[shown] for name, x in (courses or {}).items()},
    )


class Camera:
    """Draws a film's frames: rows of reels (the last may be shorter); the axes of a course are the same in every column
    and row."""

    def __init__(self, rows: Sequence[Sequence[Reel]], spec: EnvSpec) -> None:
        self.rows, self.spec = rows, spec
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
        return (WIDTH + GAP) * len(self.rows[0]) - GAP, self.cell * len(self.rows)

    def at(self, step: int) -> np.ndarray:
        """The film's frame, uint8 [height, width, 3], at a step."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", self.size, PAPER)
        draw = ImageDraw.Draw(image)
        for i, row in enumerate(self.rows):
            for j, reel in enumerate(row):
                self.cell_at(image, draw, reel, step, j * (WIDTH + GAP), i * self.cell)
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
            text = self.spec.in_words(reel.action[now])
            draw.text((x + 6, top + 4), f"step {now}: {text}", fill=INK, font=self.font)
        else:
            draw.text((x + 6, top + 4), f"step {now}", fill=INK, font=self.font)
        if reel.logits is not None and now < len(reel.logits) and not over:
            self.bars(draw, reel.logits[now], reel.action[now], x, top + NAMED)
        for k, name in enumerate(self.courses):
            self.course(draw, name, reel.courses[name], now, x, top + NAMED + PROBABILITIES + COURSE * k)

    def bars(self, draw: Any, logits_A: np.ndarray, action: np.ndarray, x: int, y: int) -> None:
        """Probabilities of all choices, those of each part of an action apart; what was chosen is darker."""
        first_P = self.spec.first_P
        chosen = set((first_P + np.atleast_1d(action)).tolist())
        wide = (WIDTH - 12) / (self.spec.n_actions + len(first_P) - 1)
        for part, (low, count) in enumerate(zip(first_P.tolist(), self.spec.parts, strict=True)):
            exp = np.exp(logits_A[low : low + count] - logits_A[low : low + count].max())
            for i, p in enumerate(exp / exp.sum(), low):
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

    def frames(self) -> Iterator[np.ndarray]:
        """All of them."""
        return (self.at(step) for step in range(self.steps))
