"""Figures of fitted states (analysis.states.fit): drawn from a saved Result alone, the same for h, d and z."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from analysis.shared.directions import SPACES
from analysis.shared.sources import REAL, SIMULATED
from analysis.states.pooled import UNKNOWN_LEVEL
from core.artefacts import Result
from core.contracts import numbers_of_distinct
from core.directions import name_of
from core.figures import (
    DIVERGING,
    INK,
    LINE,
    REAL as REAL_COLOUR,
    SEQUENTIAL,
    SIMULATED as SIMULATED_COLOUR,
    TIME,
    figure_of,
)
from core.pages import label_colours
from core.two_sample import NO_INTERVAL

MAX_COURSES = 4  # episodes in the figure of courses
MAX_PATHS = 3  # and of paths
MAX_WEIGHTS = 16  # directions of a basis in the figure of the heads
MAX_ACTIONS = 40  # and actions: those with the largest weights
DOTS = 2500  # states in a scatter plot
PLANES = ((0, 1), (2, 3), (4, 5))  # of principal components
MAPS = {"umap": "UMAP", "tsne": "t-SNE", "pca": "PCA"}
SOURCES = (("real", REAL_COLOUR), ("simulated", SIMULATED_COLOUR))
MEASURES = {
    "inside": "simulated states\namong real ones",
    "covered": "real states\namong simulated",
    "told_apart": "classifier two-\nsample test",
}
HEADS = {"head_weights": "independent component", "head_weights_pca": "principal component",
         "head_weights_nmf": "non-negative factor"}  # fmt: skip
LISTED = 6  # labels that a legend names
IN_PLANES = ("value", "action", "reward", "step", "level", "cluster")  # what planes are coloured by
SMALL_REWARD = 0.02  # of the largest: a simulator never says exactly 0


def figures_of(result: Result) -> dict[str, Callable[[Result], Any]]:
    """{file: what draws it} of every figure that the Result has the data for."""
    figures: dict[str, Callable[[Result], Any]] = {
        "explained.png": _draw_explained,
        "planes.png": _draw_planes,
        "map.png": _draw_map,
    }
    if any(len(rows) > 1 for rows in _some_episodes(result)):  # latents of samples alone are one an episode
        figures |= {"time_courses.png": _draw_time_courses, "paths.png": _draw_paths}
    if any(k in result.arrays for k in HEADS):
        figures["heads.png"] = _draw_heads
    if "overlap" in result.tables:
        figures["overlap.png"] = _draw_overlap
    return figures


def draw(result: Result, path: Path) -> list[str]:
    """Every figure the Result has the data for; the names of the files written."""
    figures = figures_of(result)
    for name, function in figures.items():
        function(result).savefig(path / name, dpi=90, metadata={"Software": None})
    return list(figures)


def space_of(result: Result) -> str:
    """'hidden states', 'world states' or 'latents'."""
    return SPACES[result.notes["space"]].state + "s"


def _fitted_source(result: Result) -> int:
    return REAL if (result.arrays["source"] == REAL).any() else SIMULATED


def _some_episodes(result: Result) -> list[np.ndarray]:
    """Row slices of the first few episodes that are not among the shortest third."""
    rows = np.flatnonzero(result.arrays["source"] == _fitted_source(result))
    episode = result.arrays["index"][rows, 0]
    ids, lengths = np.unique(episode, return_counts=True)
    long = ids[lengths >= np.quantile(lengths, 1 / 3)][:MAX_COURSES]
    return [rows[episode == e] for e in long]


def _planes(result: Result) -> list[tuple[int, int]]:
    """The planes that the components fill; the first is always there (with one component against itself)."""
    size = result.arrays["c_pca"].shape[1]
    return [p for p in PLANES if p[1] < size] or [(0, min(1, size - 1))]


def some_rows(result: Result) -> np.ndarray:
    rows = np.arange(len(result.arrays["index"]))
    return rows if len(rows) <= DOTS else np.sort(np.random.default_rng(0).permutation(rows)[:DOTS])


# What a state is coloured by


def colourings(result: Result) -> list[str]:
    """value, action (where it has one part), reward, step, level (where any is known), cluster, and as far as they are
    there the share of the episode, the policy's entropy, whether the episode is rewarded, and the largest factor."""
    a = result.arrays
    levels = (a["level"] != UNKNOWN_LEVEL).any()
    action = ["action"] if a["action"].ndim == 1 else []
    more = {"share": "share", "entropy": "entropy", "rewarded": "best_reward", "factor": "c_nmf"}
    return ["value", *action, "reward", "step", *(["level"] if levels else []), "cluster",
            *(what for what, name in more.items() if name in a)]  # fmt: skip


def number_of(result: Result, what: str) -> tuple[np.ndarray, float, float, str] | None:
    """(a number a state [N], the lower and upper end of its colours, their map); None: not coloured by a number."""
    a = result.arrays
    numbers = {
        "value": (a["value"], (0.01, 0.99), SEQUENTIAL), "step": (a["index"][:, 1], (0, 0.95), TIME),
        "share": (a.get("share"), (0, 1), TIME), "entropy": (a.get("entropy"), (0.01, 0.99), SEQUENTIAL),
    }  # fmt: skip
    if what not in numbers:
        return None
    number, ends, cmap = numbers[what]
    assert number is not None  # ``colourings`` names what is there
    known = number[np.isfinite(number)]
    low, high = np.quantile(known, ends) if len(known) else (0.0, 1.0)
    return number, float(low), max(float(high), float(low) + 1e-9), cmap


def label_of(result: Result, what: str) -> tuple[np.ndarray, dict[int, str]]:
    """(a label a state, int64 [N], the names of those a legend lists, commonest first)."""
    a = result.arrays
    if what == "rewarded":
        best, limit = a["best_reward"], max(float(np.abs(a["reward"]).max()), 1e-9)
        label: np.ndarray = np.where(best > SMALL_REWARD * limit, 0, 1)
        return label, {0: "rewarded", 1: "not"}
    if what == "factor":
        label = a["c_nmf"].argmax(1)
        often = np.argsort(-np.bincount(label), kind="stable")[:LISTED]
        return label, {int(i): direction_name(result, "nmf", int(i)) for i in often}
    label = a[what].astype(np.int64)
    if what == "action":
        every = result.notes.get("action_names") or [str(i) for i in range(int(label.max()) + 1)]
        actions = result.notes.get("distinct_actions") or {name: [i] for i, name in enumerate(every)}  # of older runs
        label, names = numbers_of_distinct(actions)[label], list(actions)
        often = np.argsort(-np.bincount(label, minlength=len(names)), kind="stable")[:LISTED]
        return label, {int(i): names[i] for i in often}
    return label, {}


def _paint(figure: Any, axis: Any, xy: np.ndarray, result: Result, rows: np.ndarray, what: str, key: bool) -> None:
    """Scatter the states at xy [M, 2], coloured by one of ``colourings``; key: with its colour bar or legend."""
    dots = {"s": 4, "linewidths": 0}
    if (numbers := number_of(result, what)) is not None:
        number, low, high, cmap = numbers
        drawn = axis.scatter(*xy.T, c=number[rows], vmin=low, vmax=high, cmap=cmap, **dots)
        if key:
            beyond = number.min() < low, number.max() > high
            extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
            figure.colorbar(drawn, ax=axis, extend=extend)
    elif what == "reward":
        reward = result.arrays["reward"][rows]
        limit = max(float(np.abs(reward).max()), 1e-9)
        some = np.abs(reward) > SMALL_REWARD * limit
        axis.scatter(*xy[~some].T, color="0.85", **dots)
        # What is rare is drawn last and larger, or it would not be seen.
        order = np.flatnonzero(some)[np.argsort(np.abs(reward[some]))]
        drawn = axis.scatter(*xy[order].T, c=reward[order], cmap=DIVERGING, vmin=-limit, vmax=limit, s=14, linewidths=0)
        if key:
            figure.colorbar(drawn, ax=axis)
    elif what == "level":
        level = result.arrays["level"][rows]
        known = level != UNKNOWN_LEVEL
        axis.scatter(*xy[~known].T, color="0.9", **dots)
        # Levels are many: colours repeat, so that equal colours nearby, not anywhere, mean one level.
        _, number = np.unique(level[known], return_inverse=True)
        of = label_colours(number)
        axis.scatter(*xy[known].T, color=[of[n] for n in number], **dots)
    else:
        number, names = label_of(result, what)
        of = label_colours(number)
        axis.scatter(*xy.T, color=[of[int(n)] for n in number[rows]], **dots)
        if key and names:
            for i, name in names.items():
                axis.scatter([], [], color=of.get(i), s=12, label=name)
            axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=7, handletextpad=0.1)


TITLES = {
    "value": "value", "action": f"action (the {LISTED} commonest named)",
    "reward": f"reward that follows (grey: below {SMALL_REWARD:.0%})",
    "step": "step of the episode", "level": "level (colours repeat; grey: unknown)", "cluster": "k-means cluster",
    "share": "share of the episode that is over", "entropy": "entropy of the policy (nats)",
    "rewarded": "episodes with a reward", "factor": "largest non-negative factor",
}  # fmt: skip


def _draw_map(result: Result) -> Any:
    rows = result.arrays["map_row"]
    kinds = result.notes["embeddings"]
    painted = colourings(result)
    per_line = 3
    lines = -(-len(painted) // per_line)
    figure = figure_of(12.5, 3.7 * lines * len(kinds) + 0.4)
    axes = figure.subplots(lines * len(kinds), per_line, squeeze=False)
    for axis in axes.flat[:]:
        axis.set_axis_off()
    for k, kind in enumerate(kinds):
        xy = result.arrays["map" if k == 0 else f"map_{kind}"]
        for i, what in enumerate(painted):
            axis = axes[k * lines + i // per_line, i % per_line]
            axis.set_axis_on()
            _paint(figure, axis, xy, result, rows, what, key=True)
            title = f"{MAPS[kind]}: {TITLES[what]}" if len(kinds) > 1 else TITLES[what]
            axis.set(xticks=[], yticks=[])
            axis.set_title(title, fontsize=10)
    names = " and ".join(MAPS[k] for k in kinds)
    figure.suptitle(f"{names} of {len(rows):,} {space_of(result)}, coloured by")
    return figure


def _draw_planes(result: Result) -> Any:
    rows, planes = some_rows(result), _planes(result)
    painted = [what for what in colourings(result) if what in IN_PLANES]
    c = result.arrays["c_pca"]
    figure = figure_of(2.75 * len(painted) + 1, 2.5 * len(planes) + 0.6)
    axes = figure.subplots(len(planes), len(painted), squeeze=False)
    for number, (line, (a, b)) in enumerate(zip(axes, planes, strict=True)):
        xy = c[rows][:, [a, b]]
        low, high = np.quantile(c[:, [a, b]], (0.002, 0.998), axis=0)
        for axis, what in zip(line, painted, strict=True):
            _paint(figure, axis, xy, result, rows, what, key=number == 0)
            axis.set(xlim=(low[0], high[0] + 1e-6), ylim=(low[1], high[1] + 1e-6))
            axis.tick_params(labelsize=7)
            axis.set_xlabel(direction_name(result, "pca", a), fontsize=8)
        line[0].set_ylabel(direction_name(result, "pca", b), fontsize=8)
    for axis, what in zip(axes[0], painted, strict=True):
        axis.set_title(TITLES[what].split(" (")[0], fontsize=9)
    figure.suptitle(
        f"Planes of principal components, in standard deviations: {len(rows):,} {space_of(result)}", fontsize=11
    )
    return figure


# Variance, courses, paths


def _draw_explained(result: Result) -> Any:
    ica = result.tables.get("ica")
    figure = figure_of(9 if ica else 5, 3.4)
    axes = np.atleast_1d(figure.subplots(1, 2 if ica else 1))
    table = result.tables["explained"]
    k, share, low, high = (np.array([row[c] for row in table], float) for c in ("components", "share", "low", "high"))
    axes[0].fill_between(k, low, high, color=INK, alpha=0.2, lw=0, label="95 % interval over episodes")
    axes[0].plot(k, share, color=INK, marker=".", label="share explained")
    of = "z-scored variance" if SPACES[result.notes["space"]].z_scored else "variance"
    axes[0].set(
        xlabel="principal components", ylabel=f"share of {of}", ylim=(0, 1.02), title=f"PCA of {space_of(result)}"
    )
    axes[0].legend(frameon=False, loc="lower right")
    if ica:
        axes[1].bar(range(len(ica)), [row["stability"] for row in ica], color=INK)
        axes[1].set(
            xlabel=f"independent component, from {direction_name(result, 'ica', 0)} on",
            ylabel="stability (index Iq)",
            ylim=(0, 1),
            title="ICA: 1 stable, 0 arbitrary",
        )
    return figure


def direction_name(result: Result, kind: str, i: int) -> str:
    """Of direction ``i`` of the basis ``kind``."""
    return name_of(kind, i, result.notes["space"])


def _draw_time_courses(result: Result) -> Any:
    episodes = _some_episodes(result)
    of, kind = ("ica", "Independent") if "c_ica" in result.arrays else ("pca", "Principal")
    name = f"c_{of}"
    shown = min(8, result.arrays[name].shape[1])
    figure = figure_of(3.2 * len(episodes), 1.0 * shown + 0.8)
    axes = figure.subplots(shown, len(episodes), squeeze=False, sharex="col", sharey="row")
    for column, rows in enumerate(episodes):
        t = result.arrays["index"][rows, 1]
        for i in range(shown):
            axis = axes[i, column]
            axis.axhline(0, color=LINE, linewidth=0.8)
            axis.plot(t, result.arrays[name][rows, i], color=INK, linewidth=1)
            if column == 0:
                axis.set_ylabel(direction_name(result, of, i))
        axes[0, column].set_title(f"episode {result.arrays['index'][rows[0], 0]}", fontsize=9)
        axes[-1, column].set_xlabel("step")
    figure.suptitle(f"{kind} components of {space_of(result)} over time (standard deviations)")
    return figure


def _draw_paths(result: Result) -> Any:
    """A row an episode, a column a plane; arrows from each step to the next, coloured by the step."""
    from matplotlib import colormaps

    planes, episodes = _planes(result), _some_episodes(result)[:MAX_PATHS]
    figure = figure_of(4.1 * len(planes) + 0.6, 3.5 * len(episodes) + 0.4)
    axes = figure.subplots(len(episodes), len(planes), squeeze=False)
    c = result.arrays["c_pca"]
    some = some_rows(result)
    some = some[result.arrays["source"][some] == _fitted_source(result)]
    walked = c[np.concatenate(episodes)]
    low, high = np.quantile(c, (0.002, 0.998), axis=0)
    limits = np.stack([np.minimum(low, walked.min(0)) - 0.1, np.maximum(high, walked.max(0)) + 0.1], 1)
    for line, rows in zip(axes, episodes, strict=True):
        t = result.arrays["index"][rows, 1]
        for axis, (a, b) in zip(line, planes, strict=True):
            axis.scatter(*c[some][:, [a, b]].T, s=2, color="0.87", linewidths=0)
            xy = c[rows][:, [a, b]]
            arrows = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.005, "cmap": TIME}
            drawn = axis.quiver(*xy[:-1].T, *np.diff(xy, axis=0).T, t[:-1], **arrows)
            for row, marker in ((0, "o"), (-1, "s")):
                colour = colormaps[TIME](0.0 if row == 0 else 1.0)
                axis.plot(*xy[row], marker=marker, color=colour, markeredgecolor="k", markersize=7)
            axis.set(xlim=limits[a], ylim=limits[b])
            axis.set_xlabel(direction_name(result, "pca", a), fontsize=8)
            axis.set_ylabel(direction_name(result, "pca", b), fontsize=8)
        line[0].set_title(f"episode {result.arrays['index'][rows[0], 0]}", fontsize=9)
        figure.colorbar(drawn, ax=line[-1], label="step")
    of = space_of(result)
    figure.suptitle(
        f"Paths of episodes through planes of principal components of {of}, in standard deviations "
        f"(dot: start, square: end)"
    )
    return figure


# Heads


def _draw_heads(result: Result) -> Any:
    """Weights in the independent, the first principal and the non-negative directions, one above another."""
    whole = {k: result.arrays[k][:, :MAX_WEIGHTS] for k in HEADS if k in result.arrays}
    largest_A = np.max([np.abs(w[:-1]).max(1) / max(np.abs(w[:-1]).max(), 1e-12) for w in whole.values()], 0)
    rows = np.sort(np.argsort(-largest_A, kind="stable")[:MAX_ACTIONS])
    names = [*(result.notes["action_names"][a] for a in rows), "value"]
    shown = {k: w[[*rows, -1]] for k, w in whole.items()}
    most = max(w.shape[1] for w in shown.values())
    figure = figure_of(0.45 * most + 2.4, (0.2 * len(names) + 1.1) * len(shown))
    ratios = [len(names) - 1, 1.5] * len(shown)
    axes = figure.subplots(2 * len(shown), 1, height_ratios=ratios).reshape(len(shown), 2)
    for (top, bottom), (kind, weights) in zip(axes, shown.items(), strict=True):
        for axis, part, labels in ((top, weights[:-1], names[:-1]), (bottom, weights[-1:], names[-1:])):
            limit = max(float(np.abs(part).max()), 1e-12)
            image = axis.imshow(part, cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto")
            axis.set_yticks(range(len(labels)), labels, fontsize=7)
            axis.set_xticks(range(weights.shape[1]), [] if axis is top else range(weights.shape[1]), fontsize=7)
            figure.colorbar(image, ax=axis).ax.tick_params(labelsize=7)
        of = result.arrays[kind].shape[1]
        some = f" (the first {MAX_WEIGHTS} of {of})" if of > MAX_WEIGHTS else ""
        first = direction_name(result, kind.removeprefix("head_weights").lstrip("_") or "ica", 0)
        bottom.set_xlabel(f"{HEADS[kind]}, from {first} on{some}", fontsize=9)
    figure.suptitle("Change of logits and value per standard deviation", fontsize=11)
    return figure


# Real against simulated


def _draw_overlap(result: Result) -> Any:
    figure = figure_of(13.5, 4.4)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
    rows = result.arrays["map_row"]
    _two_sources(left, result.arrays["map"], result.arrays["source"][rows])
    left.set(xticks=[], yticks=[], title=f"{MAPS[result.notes['embedding']]} of {space_of(result)}")
    some = some_rows(result)
    a, b = _planes(result)[0]
    c = result.arrays["c_pca"][:, [a, b]]
    _two_sources(middle, c[some], result.arrays["source"][some])
    low, high = np.quantile(c, (0.002, 0.998), axis=0)
    middle.set(
        xlim=(low[0], high[0] + 1e-6), ylim=(low[1], high[1] + 1e-6), xlabel=direction_name(result, "pca", a),
        ylabel=direction_name(result, "pca", b),
        title="First two principal components",
    )  # fmt: skip
    table = {row["measure"]: row for row in result.tables["overlap"]}
    for y, name in enumerate(MEASURES):
        row = table[name]
        for shift, prefix, colour in ((0.12, "", SIMULATED_COLOUR), (-0.12, "floor", REAL_COLOUR)):
            value = row["floor" if prefix else "simulated"]
            if value is None:  # the row's reason says why
                continue
            ends = [row["floor_low" if prefix else "low"], row["floor_high" if prefix else "high"]]
            right.plot(value, y + shift, "o", color=colour)
            if None not in ends:
                right.plot(ends, [y + shift] * 2, color=colour)
            else:
                right.annotate(f" {NO_INTERVAL}", (value, y + shift), fontsize=6, color=colour, va="center",
                               ha="left" if value < 0.5 else "right")  # fmt: skip
    right.axvline(0.5, ymin=0.68, color="0.6", linestyle=":", linewidth=1)
    right.set_yticks(range(len(MEASURES)), list(MEASURES.values()), fontsize=8)
    right.set(xlim=(-0.02, 1.02), ylim=(-0.5, len(MEASURES) - 0.5), xlabel="share of states", title="Overlap")
    for colour, label in ((SIMULATED_COLOUR, "simulated against real"), (REAL_COLOUR, "real against real")):
        right.plot([], [], "o-", color=colour, label=label)
    right.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    return figure


def _two_sources(axis: Any, xy: np.ndarray, source: np.ndarray) -> None:
    """Equally many dots of either source, in random order, so that neither hides the other."""
    rng = np.random.default_rng(0)
    count = min((source == s).sum() for s in (REAL, SIMULATED))
    rows = np.concatenate([rng.permutation(np.flatnonzero(source == s))[:count] for s in (REAL, SIMULATED)])
    rows = rng.permutation(rows)
    axis.scatter(*xy[rows].T, c=[SOURCES[s][1] for s in source[rows]], s=5, linewidths=0, alpha=0.6)
    for name, colour in SOURCES:
        axis.scatter([], [], color=colour, s=14, label=name)
    axis.legend(frameon=False, fontsize=8, loc="upper right")
