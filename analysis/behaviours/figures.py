"""What behaviours look like: filmstrips and looping videos of their central samples, and how they follow each other."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.behaviours.config import BehaviourOptions
from core.artefacts import Result
from core.episodes import RolloutStore
from core.figures import SEQUENTIAL, as_rgb, figure_of, fitted, font_of, shortened
from core.files import save_picture
from core.pages import NOISE, label_colours
from core.progress import track
from core.video import write_video

SOURCES = ("real", "sim")
LEGEND_ENTRIES = 20
FPS = 5
CELL = 128  # pixels of a video's cell, a multiple of 16
HEADER = 32  # pixels above the cells
LEAST_EXIT = 0.1  # exits that are drawn as an arrow, as a share of all exits of a behaviour
LETTERS_AN_INCH = 12  # of 9 points
ACTION_WIDTH = 14  # letters above a frame of a strip
NAME_WIDTH = 22  # letters of a line of a name in the graph, which has at most two
LABEL = np.array([82.0, 32.0])  # points that such a label takes


def _colours(count: int) -> np.ndarray:
    """One RGBA row a behaviour, the same in every figure, and a last one for label -1."""
    from matplotlib.colors import to_rgba_array

    labels = [*range(count), NOISE]
    of = label_colours(labels)
    return np.asarray(to_rgba_array([of[b] for b in labels]))


def draw(
    result: Result,
    names: Mapping[int, str],
    stores: Sequence[RolloutStore | None],
    path: Path,
    options: BehaviourOptions,
    video: bool,
) -> list[str]:
    """Every figure there is data for, with these names; the names of the files written."""
    figures = {
        "graph.png": draw_graph(result, names),
        "transitions.png": _draw_transitions(result),
        "map.png": _draw_map(result, names),
        "time.png": _draw_time(result, names),
    }
    for file, figure in figures.items():
        figure.savefig(path / file, dpi=100, metadata={"Software": None})
    files = list(figures)
    for b in track(range(result.notes["behaviours"]), "drawing", unit="behaviours"):
        strip = _draw_strip(result, names, stores, b, range(0, max(options.lags) + 1), options.filmstrips)
        if strip is not None:
            strip.savefig(path / f"strip_{b}.png", dpi=100, metadata={"Software": None})
            files.append(f"strip_{b}.png")
        frames = video_frames(result, names, stores, b, options.videos, options.video_steps) if video else []
        if frames:
            write_video(path / f"video_{b}.mp4", frames, FPS)
            write_loop(path / f"loop_{b}.gif", frames)
            files += [f"video_{b}.mp4", f"loop_{b}.gif"]
    return files


def _central(result: Result, stores: Sequence[RolloutStore | None], b: int, most: int) -> tuple[list[Any], str | None]:
    """(source, episode, t) of at most ``most`` central samples, and which observation is a picture."""
    centres = [c for c in result.arrays["centre_index"][b] if c[0] >= 0][:most]
    return centres, next((s.spec.picture for s in stores if s is not None), None)


def _draw_strip(
    result: Result,
    names: Mapping[int, str],
    stores: Sequence[RolloutStore | None],
    b: int,
    ahead: Sequence[int],
    most: int,
) -> Any:
    """Frames and actions from each central sample on; None if the world has no pictures or the behaviour no steps."""
    centres, field = _central(result, stores, b, most)
    if not centres or field is None:
        return None
    figure = figure_of(1.15 * len(ahead), 1.32 * len(centres) + 0.4)
    axes = figure.subplots(len(centres), len(ahead), squeeze=False)
    for line, (source, episode, t) in zip(axes, centres, strict=True):
        store = stores[source]
        assert store is not None
        window = store.read_windows([f"obs/{field}", "action"], np.array([[episode, t]]), len(ahead))
        for i, axis in zip(ahead, line, strict=True):
            axis.set_axis_off()
            if window.seen[0, i]:
                axis.imshow(as_rgb(window[f"obs/{field}"][0, i]))
                action = store.spec.in_words(window["action"][0, i]) if window.acted[0, i] else "end"
                axis.set_title(shortened(action, ACTION_WIDTH), fontsize=7, pad=2)
        line[0].text(
            -0.06,
            0.5,
            f"{SOURCES[source]} {episode}\nstep {t}",
            transform=line[0].transAxes,
            ha="right",
            va="center",
            fontsize=7,
        )
    row = result.tables["behaviours"][b]
    title = f"{titled(b, names)} ({row['share']:.0%} of real steps, {row['n_episodes']} episodes)"
    # matplotlib's own wrapping takes a user's name for a formula.
    width = int(LETTERS_AN_INCH * figure.get_figwidth())
    figure.suptitle(textwrap.fill(title, width), fontsize=9, parse_math=False)
    return figure


def titled(b: int, names: Mapping[int, str]) -> str:
    """A behaviour's name, with its number where the name does not say it."""
    return names[b] if names[b].startswith(f"behaviour {b}") else f"{b}: {names[b]}"


def _short(b: int, names: Mapping[int, str], width: int) -> str:
    """The number, and of the user's or the automatic name what fits."""
    own = names[b].removeprefix(f"behaviour {b}").removeprefix(": ")
    return shortened(f"{b} {own}".strip(), width)


# Videos


def video_frames(
    result: Result, names: Mapping[int, str], stores: Sequence[RolloutStore | None], b: int, most: int, steps: int
) -> list[np.ndarray]:
    """uint8 frames of a grid of central samples that all begin at their central step; sides a multiple of 16.

    A cell whose episode has ended keeps its last frame, darkened.  Empty without pictures, or steps.
    """
    from PIL import Image, ImageDraw

    centres, field = _central(result, stores, b, most)
    if not centres or field is None:
        return []
    cells = []
    for source, episode, t in centres:
        store = stores[source]
        assert store is not None
        window = store.read_windows([f"obs/{field}"], np.array([[episode, t]]), steps)
        last = int(window.seen[0].sum()) - 1
        pictures = [fitted(frame, CELL - 4) for frame in window[f"obs/{field}"][0, : last + 1]]
        dark = pictures[-1].point(lambda v: v // 3)
        cells.append(pictures + [dark] * (steps - len(pictures)))
    columns = math.ceil(math.sqrt(len(cells)))
    width, height = CELL * max(columns, 2), CELL * math.ceil(len(cells) / columns) + HEADER
    font = font_of(11)
    out = []
    for i in range(steps):
        image = Image.new("RGB", (width, height), "white")
        pen = ImageDraw.Draw(image)
        pen.text((4, 8), _short(b, names, width // 8), fill="black", font=font)
        pen.text((width - 4, 8), f"+{i}", fill="black", font=font, anchor="ra")
        pen.rectangle((0, HEADER - 4, width * (i + 1) // steps, HEADER - 2), fill="black")
        for n, cell in enumerate(cells):
            image.paste(cell[i], (n % columns * CELL + 2, HEADER + n // columns * CELL + 2))
        out.append(np.asarray(image))
    return out


def write_loop(path: Path, frames: Sequence[np.ndarray]) -> None:
    """A GIF that loops forever; it rests a moment on its last frame, so that the beginning shows."""
    from PIL import Image

    method, dither = Image.Quantize.FASTOCTREE, Image.Dither.NONE
    first, *rest = [Image.fromarray(f).quantize(256, method, dither=dither) for f in frames]
    durations = [1000 // FPS] * (len(frames) - 1) + [1000]
    save_picture(first, path, save_all=True, append_images=rest, duration=durations, loop=0)


# Figures


def draw_graph(result: Result, names: Mapping[int, str]) -> Any:
    """Behaviours as circles (area: share of real steps, colour: mean value), arrows to where they lead when left.

    Steps in no behaviour are a grey circle, if there are any.  Data coordinates are points (1/72 inch).
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Circle

    rows = [r for r in result.tables["mdp"] if r["n_steps"]]
    exits = [r for r in result.tables["transitions"] if r["exit_probability"] is not None]
    total, side = sum(r["n_steps"] for r in rows), 72 * max(6.0, 2.3 * math.sqrt(len(rows)))
    radius = {r["behaviour"]: 7 + 0.16 * side * math.sqrt(r["n_steps"] / total) for r in rows}
    place = _layout(radius, exits, side)
    xy_S2, radius_S1 = np.array(list(place.values())), np.array(list(radius.values()))[:, None]
    low = (xy_S2 - radius_S1).min(0) - [LABEL[0] / 2, LABEL[1]]
    high = (xy_S2 + radius_S1).max(0) + [LABEL[0] / 2, 4]
    figure = figure_of(*(high - low) / 72 + [1.3, 0.6])
    axis = figure.subplots()
    axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axis.set_axis_off()
    value = [r["value"] for r in rows if r["behaviour"] >= 0]
    norm, colours = Normalize(min(value, default=0), max(value, default=1)), colormaps[SEQUENTIAL]
    nodes: dict[int, _Node] = {}
    for r in rows:
        b, xy = r["behaviour"], place[r["behaviour"]]
        face = _colours(0)[-1] if b < 0 else colours(norm(r["value"]))
        circle = axis.add_patch(Circle(tuple(xy), radius[b], facecolor=face, edgecolor="k", linewidth=0.6, zorder=2))
        dwell = "never left" if r["dwell"] is None else f"{r['dwell']:.1f} steps"
        name = "in none" if b < 0 else textwrap.fill(_short(b, names, 2 * NAME_WIDTH - 4), NAME_WIDTH)
        text = f"{name}\n{dwell}"
        label = axis.text(
            xy[0], xy[1] - radius[b] - 2, text, ha="center", va="top", fontsize=7.5, zorder=3, linespacing=1.1,
            parse_math=False,
            bbox={"facecolor": "w", "alpha": 0.8, "edgecolor": "none", "pad": 1},  # arrows pass behind it
        )  # fmt: skip
        nodes[b] = _Node(circle, label)
    _draw_arrows(axis, exits, place, nodes)
    figure.colorbar(ScalarMappable(norm, colours), ax=axis, label="agent's mean value", shrink=0.6)
    figure.suptitle(
        f"What follows what. A circle's area: its share of {total:,} real steps; an arrow's width: how often an exit "
        f"leads there ({LEAST_EXIT:.0%} of exits or more, or the most frequent); below: mean steps until the exit",
        fontsize=9,
        wrap=True,  # few behaviours make a narrow figure
    )
    return figure


class _Node(NamedTuple):
    """A circle with its label, as what an arrow ends at."""

    circle: Any
    label: Any

    def contains(self, event: Any) -> tuple[bool, dict[str, Any]]:
        """Whether a point of the screen lies in either, as matplotlib asks a patch."""
        return self.circle.contains(event)[0] or self.label.get_window_extent().contains(event.x, event.y), {}


def _draw_arrows(axis: Any, exits: Sequence[Mapping[str, Any]], place: Mapping[int, np.ndarray], nodes: Any) -> None:
    """From node to node, between their outlines, labels included; behind all of them."""
    from matplotlib.patches import FancyArrowPatch

    most: dict[int, float] = {}
    for e in exits:
        most[e["from"]] = max(most.get(e["from"], 0), e["exit_probability"])
    for e in sorted(exits, key=lambda e: float(e["exit_probability"])):
        i, j, p = e["from"], e["to"], e["exit_probability"]
        if p >= LEAST_EXIT or p == most[i]:
            axis.add_patch(
                FancyArrowPatch(
                    tuple(place[i]), tuple(place[j]), connectionstyle="arc3,rad=0.14", arrowstyle="-|>",
                    mutation_scale=7 + 9 * p, linewidth=0.5 + 5 * p, color="0.25", alpha=0.25 + 0.6 * p,
                    patchA=nodes[i], patchB=nodes[j], shrinkA=1, shrinkB=1, zorder=1,
                )
            )  # fmt: skip


def _layout(radius: Mapping[int, float], exits: Sequence[Mapping[str, Any]], side: float) -> dict[int, np.ndarray]:
    """Where the circles stand, in points: the closer, the more often one follows the other (a spring model); then
    pushed apart until neither circles nor the labels below them overlap."""
    import networkx as nx  # type: ignore[import-untyped]

    graph = nx.Graph()
    graph.add_nodes_from(radius)
    for e in exits:
        i, j = e["from"], e["to"]
        before = graph.edges[i, j]["weight"] if graph.has_edge(i, j) else 0.0
        graph.add_edge(i, j, weight=before + e["exit_probability"])
    turns = {b: 2 * math.pi * n / len(radius) for n, b in enumerate(radius)}
    start = {b: (math.cos(turn), math.sin(turn)) for b, turn in turns.items()}
    found = nx.spring_layout(graph, k=2.2 / math.sqrt(len(radius)), pos=start, iterations=200, seed=0)
    xy_S2 = np.array([found[b] for b in radius]) * side / 2
    r_S = np.array(list(radius.values()))
    # Boxes of circle and label: their half sizes, and their middle, which is below the circle's.
    half_S2 = np.stack([np.maximum(r_S, LABEL[0] / 2), r_S + LABEL[1] / 2], 1) + 8
    for _ in range(300):
        gap_SS2 = xy_S2[:, None] - xy_S2
        overlap_SS2 = half_S2[:, None] + half_S2 - np.abs(gap_SS2)
        bad_SS = (overlap_SS2 > 0).all(-1) & ~np.eye(len(r_S), dtype=bool)
        if not bad_SS.any():
            break
        across = overlap_SS2.argmin(-1)[..., None] == np.arange(2)  # the shorter way out
        xy_S2 = xy_S2 + 0.3 * (bad_SS[..., None] * across * overlap_SS2 * np.where(gap_SS2 < 0, -1, 1)).sum(1)
    return dict(zip(radius, xy_S2, strict=True))


def _draw_transitions(result: Result) -> Any:
    counts = result.arrays["transitions"].astype(float)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure = figure_of(max(0.32 * len(counts) + 3, 5), max(0.32 * len(counts) + 2.2, 4))  # room for title and label
    axis = figure.subplots()
    image = axis.imshow(share, cmap=SEQUENTIAL, vmin=0, vmax=1)
    figure.colorbar(image, ax=axis, label="probability of the next step's behaviour")
    for i, j in np.argwhere(share >= 0.05):
        colour = "w" if share[i, j] < 0.6 else "k"
        axis.text(j, i, f"{100 * share[i, j]:.0f}", ha="center", va="center", fontsize=6, color=colour)
    ticks = range(len(counts))
    labels = [str(b) if b < result.notes["behaviours"] else "none" for b in ticks]
    axis.set_xticks(ticks, labels)
    axis.set_yticks(ticks, labels)
    axis.set(
        xlabel="behaviour at the next step",
        ylabel="behaviour now",
        title=f"Transitions of {int(counts.sum()):,} real steps, in per cent",
    )
    return figure


def _legend(axis: Any, handles: Sequence[Any], names: Mapping[int, str], noise: bool, **where: Any) -> None:
    """The behaviours by name, if they are few, and what is in none."""
    count = len(names)
    chosen = [*range(count)] if count <= LEGEND_ENTRIES else []
    texts = [_short(b, names, 44) for b in chosen] + ["in none"] * noise
    shown = [handles[b] for b in chosen] + [handles[count]] * noise
    if shown:
        legend = axis.legend(
            shown, texts, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title="behaviour", fontsize=7,
            **where,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)


def _draw_map(result: Result, names: Mapping[int, str]) -> Any:
    figure = figure_of(7.2, 5.2)
    axis = figure.subplots()
    label = np.concatenate([result.arrays[f"labels_{s}"] for s in SOURCES if f"labels_{s}" in result.arrays])
    made = result.arrays.get("fitted", np.arange(len(label)))  # those placed afterwards may be any number
    label, xy = label[made], result.arrays["map"][made, :2]
    colours = _colours(result.notes["behaviours"])
    below_first = np.argsort(label >= 0, kind="stable")  # noise beneath
    axis.scatter(*xy[below_first].T, c=colours[label[below_first]], s=3, linewidths=0)
    handles = [axis.scatter([], [], color=colour, s=12) for colour in colours]
    _legend(axis, handles, names, bool((label < 0).any()))
    kind = {"pca": "principal components", "umap": "UMAP", "tsne": "t-SNE"}[result.notes["embedding"]]
    axis.set(title=f"Behaviours, first two coordinates ({kind})", xticks=[], yticks=[])
    return figure


def _draw_time(result: Result, names: Mapping[int, str]) -> Any:
    label, (episode, t) = result.arrays["labels_real"], result.arrays["index_real"].T
    count = result.notes["behaviours"]
    # Beyond the step that a tenth of the episodes reach, a few long episodes would be all there is to see.
    each, of = np.unique(episode, return_inverse=True)
    longest_E = np.zeros(len(each), t.dtype)
    np.maximum.at(longest_E, of, t)
    last = int(np.quantile(longest_E, 0.9))
    share = np.zeros((count + 1, last + 1))  # the last: steps in no behaviour
    keep = t <= last
    np.add.at(share, (label[keep], t[keep]), 1)
    present = share.sum(0) > 0
    share = share[:, present] / share[:, present].sum(0)
    figure = figure_of(7.6, 3.6)
    axis = figure.subplots()
    handles = axis.stackplot(np.flatnonzero(present), share, colors=_colours(count))
    own, floor = result.scalars["share_from_time"]["value"], result.scalars["share_from_time_floor"]["value"]
    axis.set(
        xlabel="step of the episode", ylabel="share of real steps", ylim=(0, 1),
        title=f"Behaviours over time: normalised mutual information {own:.2f} (of rotated labels {floor:.2f})",
    )  # fmt: skip
    axis.margins(x=0)
    _legend(axis, handles, names, bool((label < 0).any()), reverse=True)
    return figure
