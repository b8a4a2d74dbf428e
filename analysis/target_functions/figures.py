"""Pictures of what was found: strips, videos, and courses over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.shared.strips import GAP, GOLD, LABEL, TILE, arrow
from core import artefacts
from core.contracts import EnvSpec
from core.figures import BAND, INK, SIMULATED, as_rgb, figure_of, fitted, font_of, minus
from core.files import save_picture
from core.progress import bar
from core.video import write_video

ENDED = (225, 225, 225)


class Shown(NamedTuple):
    """A rollout as it is drawn."""

    frames: np.ndarray  # uint8 [T+1, h, w, 3]
    actions: list[str]
    value: np.ndarray
    trace: np.ndarray
    alive: np.ndarray


def shown_of(result: artefacts.Result, s: int, label: str, when: str, spec: EnvSpec) -> Shown:
    """Start ``s`` of a target, ``before`` or ``after``."""
    key = f"{when}_{label}"
    a = result.everything
    frames, alive = as_rgb(a[f"{result.notes['field']}_{key}"][s]).copy(), a[f"alive_{key}"][s]
    frames[~alive] = ENDED
    actions = [spec.in_words(action) for action in a[f"action_{key}"][s]]
    return Shown(frames, actions, a[f"value_{key}"][s], a[f"trace_{key}"][s], alive)


def title_of(result: artefacts.Result, s: int, label: str) -> str:
    about = result.notes["targets"][label]
    sense = "up" if about["sign"] > 0 else "down"
    row = next(
        r for r in result.tables["samples"] if (r["target"], r["sense"], r["sample"]) == (about["name"], sense, s)
    )
    return (
        f"start {s}, {about['name']} {sense}: {said(row['before'])} -> {said(row['after'])} {about['unit']} "
        f"(best of {result.notes['tries']} untrained: {said(row['control'])})"
    )


def said(value: float | None, spec: str = ".3g") -> str:
    """A number of a row in words."""
    return "not known" if value is None else f"{value:{spec}}"


def draw_strip(result: artefacts.Result, s: int, label: str, spec: EnvSpec) -> Any:
    """A PIL image: the rollout before and, below it, after; actions, frames, the target's reading and the value."""
    from PIL import Image, ImageDraw

    font, small = font_of(13), font_of(10)
    name, first = result.notes["targets"][label]["name"], result.notes["first_step"]
    rollouts = {when: shown_of(result, s, label, when, spec) for when in ("before", "after")}
    columns, top, arrows, words = len(rollouts["before"].frames), 28, 30, 40
    block = arrows + TILE + words
    image = Image.new("RGB", (LABEL + columns * (TILE + GAP), top + 2 * block), "white")
    pen = ImageDraw.Draw(image)
    pen.text((6, 6), minus(title_of(result, s, label)), fill="black", font=font)
    for row, (when, x) in enumerate(rollouts.items()):
        y = top + row * block
        pen.text((6, y + arrows + TILE // 2), when, fill="black", font=font)
        left = LABEL + first * (TILE + GAP)
        pen.line((left, y + arrows - 3, image.width - GAP, y + arrows - 3), fill=GOLD, width=3)
        for t in range(columns):
            left, middle = LABEL + t * (TILE + GAP), LABEL + t * (TILE + GAP) + TILE / 2
            image.paste(fitted(x.frames[t], TILE), (left, y + arrows))
            if x.alive[t]:
                arrow(pen, middle, y + arrows / 2 - 2, x.actions[t], 10, small)
            said = minus(f"step {t}, value {x.value[t]:.2f}") if x.alive[t] else f"step {t}, ended"
            pen.text((middle, y + arrows + TILE + 10), said, fill="black", anchor="mm", font=small)
            if x.alive[t] and name not in VALUES:
                said = minus(f"{name} {x.trace[t]:.3g}")
                pen.text((middle, y + arrows + TILE + 25), said, fill="black", anchor="mm", font=small)
    return image


VALUES = ("value", "value_drop", "value_rise")  # whose reading is the value, which is written anyway


def video_frames(result: artefacts.Result, s: int, label: str, spec: EnvSpec) -> list[np.ndarray]:
    """uint8 [320, 512, 3] a step: before, and beside it after."""
    from PIL import Image, ImageDraw

    font, side = font_of(13), 256
    rollouts = {when: shown_of(result, s, label, when, spec) for when in ("before", "after")}
    about = result.notes["targets"][label]
    out = []
    for t in range(len(rollouts["before"].frames)):
        image = Image.new("RGB", (2 * side, side + 64), "white")
        pen = ImageDraw.Draw(image)
        pen.text((6, 4), f"start {s}: {about['name']} {'up' if about['sign'] > 0 else 'down'}, t={t}", "black", font)
        for column, (when, x) in enumerate(rollouts.items()):
            left = column * side
            said = f"{when}, value {x.value[t]:.2f}" if x.alive[t] else f"{when}, ended"
            if x.alive[t] and about["name"] not in VALUES:
                said += f"  {x.trace[t]:.3g}"
            pen.text((left + 6, 32), minus(said), fill="black", font=font)
            if x.alive[t]:
                arrow(pen, left + side - 40, 44, x.actions[t], 9, font)
            image.paste(fitted(x.frames[t], side), (left, 64))
        out.append(np.asarray(image))
    return out


def draw_courses(result: artefacts.Result) -> Any:
    """A matplotlib Figure, a panel a target: every start's course, their mean, and what the untrained latents give."""
    a, labels = result.arrays, list(result.notes["targets"])
    columns = min(3, len(labels))
    rows = -(-len(labels) // columns)
    figure = figure_of(4.6 * columns, 3.4 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, label in zip(axes, labels, strict=False):
        about = result.notes["targets"][label]
        y, sign = a[f"y_{label}"], about["sign"]
        axis.plot(y, color=SIMULATED, alpha=0.3, linewidth=0.8)
        known = np.isfinite(y)
        mean = np.where(known, y, 0).sum(1) / np.where(known.any(1), known.sum(1), np.nan)
        axis.plot(mean, color=SIMULATED, linewidth=2, label=f"mean of {y.shape[1]} starts")
        control = a[f"control_{label}"]
        low, high = np.nanquantile(control, (0.05, 0.95))
        axis.axhspan(low, high, color=BAND, linewidth=0, label="90 % of untrained latents")
        best = result.scalars[f"control_{label}"]["value"]
        if best is not None:
            axis.axhline(best, color=INK, linestyle="--", linewidth=1, label=f"best of {result.notes['tries']} of them")
        axis.set(
            title=f"{about['name'].replace('_', ' ')}, {'up' if sign > 0 else 'down'}",
            xlabel="step of the search",
            ylabel=about["unit"],
        )
    axes[0].legend(fontsize=7)
    for axis in axes[len(labels) :]:
        axis.axis("off")
    return figure


def pictured(result: artefacts.Result, spec: EnvSpec) -> bool:
    """Whether what is kept of the rollouts is a picture.  spec: of the world."""
    return result.notes["field"] in spec.pictures


def draw(result: artefacts.Result, path: Path, spec: EnvSpec, drawn: int, video: bool) -> None:
    """``targets.png``; a PNG strip (and an MP4) a target and start, for worlds whose observation is a picture.  spec:
    of the world."""
    draw_courses(result).savefig(path / "targets.png", dpi=110)
    if not pictured(result, spec):
        return
    starts = min(drawn, len(result.everything[f"alive_before_{next(iter(result.notes['targets']))}"]))
    jobs = [(label, s) for label in result.notes["targets"] for s in range(starts)]
    with bar("drawing", len(jobs), "strips") as progress:
        for label, s in jobs:
            file = f"{label.replace(':', '_')}_{s}"  # ica:1: not every file system has colons
            save_picture(draw_strip(result, s, label, spec), path / f"{file}.png")
            if video:
                write_video(path / f"{file}.mp4", video_frames(result, s, label, spec))
            progress.advance()
