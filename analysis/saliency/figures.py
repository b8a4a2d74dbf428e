"""Pictures of saliency: strips of frames under signed maps, and their videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.shared.strips import GAP, GOLD, LABEL, TILE, arrow
from core import artefacts, ranks
from core.contracts import EnvSpec
from core.figures import NEGATIVE, POSITIVE, fitted, font_of, minus, rgb
from core.files import save_picture
from core.progress import track
from core.video import write_video

CAPTION = LINE = 18
TARGET_METHODS = {"integrated": "integrated gradients", "deeplift": "DeepLift", "occlusion": "occlusion"}


def signed_map(grad: np.ndarray) -> np.ndarray:
    """Gradient [..., h, w, channels] -> [..., h, w], summed over colours and blurred by one pixel, for display only."""
    from scipy.ndimage import gaussian_filter

    flat = grad.sum(-1)
    out: np.ndarray = gaussian_filter(flat, sigma=(0,) * (flat.ndim - 2) + (1, 1))
    return out


def overlay(frame: np.ndarray, signed: np.ndarray, scale: float) -> np.ndarray:
    """uint8 frame [h, w, channels] in grey under a signed map [h, w] -> [h, w, 3]: blue where positive, red where
    negative; full colour at ``scale``."""
    grey = frame.astype(np.float64).mean(-1, keepdims=True) * 0.55
    strength = np.clip(np.abs(signed) / scale, 0, 1)[..., None] if scale > 0 else np.zeros((*signed.shape, 1))
    colour = np.where(signed[..., None] > 0, np.array(rgb(POSITIVE), np.float64), np.array(rgb(NEGATIVE), np.float64))
    return (grey * (1 - strength) + colour * strength).astype(np.uint8)


class Strip(NamedTuple):
    """What is drawn of one sample and one quantity."""

    frames: np.ndarray  # uint8 [T+1, h, w, channels]
    maps: dict[str, np.ndarray]  # row label -> signed [T+1, h, w]
    target_maps: dict[str, np.ndarray]  # method -> signed [h, w], of the target frame, agent alone
    actions: list[str]
    value: np.ndarray
    alive: np.ndarray
    target: int
    title: str


def strip_of(result: artefacts.Result, s: int, quantity: str, field: str, spec: EnvSpec) -> Strip:
    """The drawing data of row ``s`` of a result.  field: a picture; spec: of the world, which names actions."""
    a = result.everything
    smooth = "smoothed\n" if result.notes["copies"] > 1 else ""
    parts = {f"{smooth}gradient": "", "agent only": "_agent_only", "through world,\nstraight-through": "_through_world"}
    methods = [m for m in TARGET_METHODS if f"{m}_{field}_{quantity}" in a]
    target = result.notes["target_step"]
    name = "combined samples" if result.notes["combined"] else f"sample {result.arrays['sample_ids'][s]}"
    actions = [spec.in_words(action) for action in a["action"][s]]
    chosen = f" ({actions[target]})" if quantity == "action" else ""
    unit = result.notes["units"][quantity]
    ended = "" if a["alive"][s][target] else " (ended)"
    return Strip(
        frames=a[field][s],
        maps={label: signed_map(a[f"grad_{field}_{quantity}{part}"][s]) for label, part in parts.items()},
        target_maps={TARGET_METHODS[m]: signed_map(a[f"{m}_{field}_{quantity}"][s]) for m in methods},
        actions=actions,
        value=a["value"][s],
        alive=a["alive"][s],
        target=target,
        title=minus(
            f"{name}: {quantity.replace('_', ' ')}{chosen} at step {target}{ended} = {a[f'y_{quantity}'][s]:.3f} {unit}"
        ),
    )


def draw_strip(strip: Strip) -> Any:
    """A PIL image: actions, frames, saliency with and without the world, values, and what explains the target frame."""
    from PIL import Image, ImageDraw

    font, small = font_of(13), font_of(11)
    columns = len(strip.frames)
    scale = display_scale(strip)
    rows = ["frames", *strip.maps]
    width = LABEL + columns * (TILE + GAP)
    full = f"[blue: raises it, red: lowers it; full colour at {scale:.2g} per unit of brightness]"
    header = [f"{strip.title}    {full}"]
    if font.getlength(header[0]) > width - 12:  # few steps
        header = [strip.title, full]
        width = max(width, *(12 + int(font.getlength(line)) for line in header))
    top, arrows = 10 + LINE * len(header), 30
    extra = bool(strip.target_maps)
    bottom = top + arrows + len(rows) * (TILE + GAP) + 24
    height = bottom + extra * (CAPTION + TILE + GAP)
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for n, line in enumerate(header):
        draw.text((6, 6 + LINE * n), line, fill="black", font=font)
    draw.text((6, top + 8), "action", fill="black", font=small)
    for t, name in enumerate(strip.actions):
        arrow(draw, LABEL + t * (TILE + GAP) + TILE / 2, top + arrows / 2, name, 10, small)

    def tile(pixels: np.ndarray, row: int, t: int) -> None:
        image.paste(fitted(pixels, TILE), (LABEL + t * (TILE + GAP), top + arrows + row * (TILE + GAP)))

    for row, label in enumerate(rows):
        draw.text((6, top + arrows + row * (TILE + GAP) + TILE // 2), label, fill="black", font=small)
        for t in range(columns):
            frame = strip.frames[t]
            tile(frame if row == 0 else overlay(frame, strip.maps[label][t], scale), row, t)
    if extra:
        y = bottom + CAPTION
        words = f"step {strip.target} alone,\nagent only,\neach at its\nown scale"
        draw.text((6, y + TILE // 2 - 30), words, fill="black", font=small)
        for n, (name, signed) in enumerate(strip.target_maps.items()):
            column = LABEL + n * (TILE + GAP)
            draw.text((column + TILE / 2, bottom + CAPTION / 2), name, fill="black", anchor="mm", font=small)
            largest = float(np.quantile(np.abs(signed), 0.995))
            image.paste(fitted(overlay(strip.frames[strip.target], signed, largest), TILE), (column, y))
    left = LABEL + strip.target * (TILE + GAP)
    draw.rectangle((left - 3, top + arrows - 3, left + TILE + 2, bottom - 24), outline=GOLD, width=3)
    for t in range(columns):
        x = LABEL + t * (TILE + GAP) + TILE / 2
        words = minus(f"step {t}, value {strip.value[t]:.2f}") if strip.alive[t] else f"step {t}, ended"
        draw.text((x, bottom - 11), words, fill="black", anchor="mm", font=font_of(10))
    return image


def display_scale(strip: Strip) -> float:
    """The gradient that is drawn in full colour: the 99.5 % quantile up to the target, one for all rows."""
    return float(np.quantile(np.abs(next(iter(strip.maps.values()))[: strip.target + 1]), 0.995))


def video_frames(strip: Strip) -> list[np.ndarray]:
    """uint8 [304, 512, 3] a step: the frame and, beside it, the whole gradient's overlay."""
    from PIL import Image, ImageDraw

    font, side, scale = font_of(13), 256, display_scale(strip)
    signed = next(iter(strip.maps.values()))
    out = []
    for t, frame in enumerate(strip.frames):
        image = Image.new("RGB", (2 * side, side + 48), GOLD if t == strip.target else "white")
        draw = ImageDraw.Draw(image)
        draw.text((6, 4), strip.title, fill="black", font=font)
        words = minus(f"step {t}, value {strip.value[t]:.2f}") if strip.alive[t] else f"step {t}, ended"
        draw.text((6, 25), words + ("  (target)" if t == strip.target else ""), fill="black", font=font)
        arrow(draw, side + 60, 34, strip.actions[t], 9, font)
        for x, pixels in ((0, frame), (side, overlay(frame, signed[t], scale))):
            image.paste(fitted(pixels, side), (x, 48))
        out.append(np.asarray(image))
    return out


def pictures_in(result: artefacts.Result, spec: EnvSpec) -> list[str]:
    """The observation fields that are pictures, of any size and number of colours.  spec: of the world."""
    return [name for name in result.notes["fields"] if name in spec.pictures]


def draw(result: artefacts.Result, path: Path, spec: EnvSpec, video: bool) -> None:
    """A PNG strip (and an MP4) a sample and quantity, each by one of the processes, in the run directory of the first,
    of the first of ``pictures_in``, nothing where there is none."""
    pictures = pictures_in(result, spec)
    if not pictures:
        return
    jobs = [(s, q) for s in range(len(result.arrays["sample_ids"])) for q in result.notes["units"]]
    folder = ranks.processes().folder(path)

    def one(job: tuple[int, str]) -> None:
        s, quantity = job
        strip = strip_of(result, s, quantity, pictures[0], spec)
        name = "combined" if result.notes["combined"] else str(result.arrays["sample_ids"][s])
        file = f"sample_{name}_{quantity.replace(':', '_')}"  # ica:1: not every file system has colons
        save_picture(draw_strip(strip), folder / f"{file}.png")
        if video:
            write_video(folder / f"{file}.mp4", video_frames(strip))

    for _ in track(ranks.each(jobs, one), "drawing", unit="strips", total=len(jobs)):
        pass
