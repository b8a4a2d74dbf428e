"""Figures of a coupling, drawn from its result: matrices, graphs of the surviving edges, and the paths compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.coupling.edges import COMPARED, PATHS, STRAIGHT, WORDS, drawn, label
from core.artefacts import Result
from core.figures import (
    BAND,
    BOTH,
    DIVERGING,
    HELD,
    INK,
    LINE,
    MEMORY,
    NEGATIVE,
    NOT_TESTED,
    POSITIVE,
    SEQUENTIAL,
    WHOLE,
    WORLD,
    figure_of,
)
from core.words import counted

PATH_COLOURS = dict(zip(PATHS, (WHOLE, MEMORY, WORLD), strict=True))
STRONGEST = 24  # edges of a graph's panel: more than that hide each other


def draw(result: Result, path: Path) -> None:
    """Every figure: matrix_B.png of every behaviour, graph_B.png of those with Jacobians, and paths.png; kinds.png of
    two behaviours or more, extremes.png where these were asked for."""
    for b, behaviour in enumerate(result.arrays["behaviours"]):
        draw_matrices(result, b).savefig(path / f"matrix_{behaviour}.png", dpi=90)
        if np.isfinite(result.arrays["jacobian"][b]).any():
            draw_graph(result, b).savefig(path / f"graph_{behaviour}.png", dpi=90)
    draw_paths(result).savefig(path / "paths.png", dpi=110)
    if "kind" in result.arrays and (result.arrays["kind"] >= 0).sum() > 1:
        draw_kinds(result).savefig(path / "kinds.png", dpi=110)
    if "extreme_mean" in result.arrays:
        draw_extremes(result).savefig(path / "extremes.png", dpi=90)


def _title(result: Result, b: int) -> str:
    a = result.arrays
    behaviour = int(a["behaviours"][b])
    counts = f"{a['samples'][b]} Jacobians from {a['sample_episodes'][b]} episodes"
    return f"{label(result.notes['names'], behaviour)}: {counts}"


def _before(lag: int) -> str:
    if lag == 0:
        return "at the same step"
    return f"{counted(lag, 'step')} before"


def _off(k: int) -> np.ndarray:
    off: np.ndarray = ~np.eye(k, dtype=bool)
    return off


def _ticks(result: Result) -> dict[str, Any]:
    """Names of the directions at their places, of many only some."""
    names = result.notes["directions"]
    few = max(1, len(names) // 32)
    return {"ticks": range(0, len(names), few), "labels": names[::few]}


def _strongest(x: np.ndarray, off: bool = True) -> float:
    """The largest |x|, between different directions; 1 if there is none."""
    kept = np.abs(x[..., _off(x.shape[-1])] if off else x)
    return float(np.nanmax(kept, initial=0)) or 1.0


def draw_matrices(result: Result, b: int) -> Any:
    """A matplotlib Figure for behaviour number ``b`` of the result: a row a lag; whole Jacobian, its two parts, the
    straight-through number beside the second, and the correlation.  Dots mark what is drawn as an edge, of
    correlations what is significant; colours of a Jacobian end at the strongest effect between different directions, so
    that a direction's own past does not hide the rest.  What was not tested is grey, or it would look like no effect.
    """
    from matplotlib import colormaps

    a, alpha = result.arrays, result.notes["alpha"]
    k = a["jacobian"].shape[-1]
    world = STRAIGHT["_through_world"]
    columns = {**{f"jacobian{path}": WORDS[path] for path in PATHS}, world: COMPARED, "correlation": "correlation"}
    marked = {f"jacobian{path}": drawn(result, path, alpha)[b] for path in PATHS}
    marked |= {world: np.zeros_like(marked["jacobian"]), "correlation": a["q_correlation"][b] <= alpha}
    whole = max(_strongest(a["jacobian"][b]), _strongest(a["jacobian_agent_only"][b]))
    limits = (whole, whole, *[_strongest(a["jacobian_through_world"][b])] * 2, 1.0)
    side = 3.0 if k <= 24 else 4.2
    figure = figure_of(5 * side + 1, side * len(a["lags"]) + 1.4)
    axes = figure.subplots(len(a["lags"]), len(columns), sharex=True, sharey=True, squeeze=False)
    colours = colormaps[DIVERGING].with_extremes(bad=NOT_TESTED)
    figure.suptitle(
        f"{_title(result, b)}\ndots: q ≤ {alpha:g}, of Jacobians also an interval beyond 0 and the straight-through "
        "sign; grey: not tested; darkest Jacobian: the strongest between directions"
    )
    for column, (key, title), limit in zip(axes.T, columns.items(), limits, strict=True):
        for at, axis in enumerate(column):
            image = axis.imshow(a[key][b, at], cmap=colours, vmin=-limit, vmax=limit)
            i, j = np.nonzero(marked[key][at])
            axis.plot(j, i, ".", color="black", markersize=4 if k <= 16 else 40 / k)
        column[0].set_title(title, fontsize=9)
        column[-1].set_xlabel("direction now")
        extend = "neither" if _strongest(a[key][b], off=False) <= limit else "both"
        figure.colorbar(image, ax=list(column), location="bottom", shrink=0.8, pad=0.02, extend=extend)
    for of in (axes[0, 0].xaxis, axes[0, 0].yaxis):  # all panels share them
        of.set_ticks(**_ticks(result))
    for axis in axes.flat:
        axis.tick_params(labelsize=6, labelrotation=45)
    for axis, lag in zip(axes[:, 0], a["lags"], strict=True):
        axis.set_ylabel(f"direction {_before(lag)}")
    return figure


class Arrow(NamedTuple):
    """An edge of a graph as it is drawn; ``style``: solid, where J and r agree, dashed, where they differ, dotted,
    where r is not significant."""

    source: int
    target: int
    J: float
    style: str


def arrows(result: Result, b: int, at: int, path: str) -> tuple[list[Arrow], int]:
    """What a panel shows, the weakest first: the effects of a path that are ``drawn``, on a direction's own later
    value, and the strongest STRONGEST between different ones; and how many of those there are."""
    a, alpha = result.arrays, result.notes["alpha"]
    J, r = a[f"jacobian{path}"][b, at], a["correlation"][b, at]
    found = []
    for i, j in np.argwhere(drawn(result, path, alpha)[b, at]):
        agree = np.sign(J[i, j]) == np.sign(r[i, j])
        style = ":" if not a["q_correlation"][b, at, i, j] <= alpha else "-" if agree else "--"
        found.append(Arrow(int(i), int(j), float(J[i, j]), style))
    found.sort(key=lambda arrow: abs(arrow.J))
    between = [arrow for arrow in found if arrow.source != arrow.target]
    return [arrow for arrow in found if arrow.source == arrow.target] + between[-STRONGEST:], len(between)


def draw_graph(result: Result, b: int) -> Any:
    """A matplotlib Figure for behaviour number ``b``: a row a path, a column a lag, time from left to right."""
    a, alpha = result.arrays, result.notes["alpha"]
    k, later = a["jacobian"].shape[-1], np.flatnonzero(a["lags"])  # lag 0 has no effects
    lags = a["lags"][later]
    figure = figure_of(4.2 * max(2, len(lags)), len(PATHS) * (2.2 + 0.13 * k) + 0.9)
    axes = figure.subplots(len(PATHS), len(lags), squeeze=False)
    figure.suptitle(
        f"{_title(result, b)}\nq ≤ {alpha:g}, interval beyond 0, straight-through sign agrees; at most the {STRONGEST} "
        "strongest of a panel"
    )
    for path, row in zip(PATHS, axes, strict=True):
        panels = [arrows(result, b, int(at), path) for at in later]
        sizes = [abs(arrow.J) for shown, _ in panels for arrow in shown if arrow.source != arrow.target]
        strongest = max(sizes, default=0.0)
        for at, (axis, lag, (shown, count)) in enumerate(zip(row, lags, panels, strict=True)):
            for arrow in shown:
                _draw_arrow(axis, arrow, strongest)
            for x in (0, 1):
                axis.scatter(np.full(k, x), range(k), s=14, color=INK, zorder=5)
            axis.set_yticks(**_ticks(result), fontsize=8 if k <= 32 else 6)
            axis.tick_params(length=0, labelleft=at == 0, labelright=at == len(lags) - 1)
            axis.set_xticks([0, 1], [_before(lag), "now"], fontsize=9)
            for text, side in zip(axis.get_xticklabels(), ("left", "right"), strict=True):
                text.set_horizontalalignment(side)
            axis.set(xlim=(-0.04, 1.04), ylim=(k - 0.5, -0.5))
            axis.spines[:].set_visible(False)
            drawn = sum(arrow.source != arrow.target for arrow in shown)
            some = f"{drawn} of {counted(count, 'effect')}" if drawn < count else counted(count, "effect")
            widest = f"\nwidest: size {strongest:.2g}" if count else "\n"
            axis.set_title(f"{WORDS[path]}\nlag {lag}: {some}{widest}", fontsize=9)
    figure.get_layout_engine().set(wspace=0.09)
    _legend(figure)
    return figure


def _draw_arrow(axis: Any, arrow: Arrow, strongest: float) -> None:
    colour = POSITIVE if arrow.J > 0 else NEGATIVE
    if arrow.source == arrow.target:
        axis.plot([0, 1], [arrow.source, arrow.target], color=colour, linewidth=1.0, alpha=0.22, zorder=1)
        return
    size = min(1.0, abs(arrow.J) / strongest)
    axis.annotate(
        "",
        xy=(0.985, arrow.target),
        xytext=(0.015, arrow.source),
        zorder=2 + size,
        arrowprops={
            "arrowstyle": "-|>,head_width=0.22,head_length=0.45",
            "color": colour,
            "linewidth": 0.5 + 3 * size,
            "linestyle": arrow.style,
            "alpha": 0.3 + 0.7 * size,
            "shrinkA": 0,
            "shrinkB": 0,
            "mutation_scale": 12,
        },
    )


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=POSITIVE, label="raises"),
        Line2D([], [], color=NEGATIVE, label="lowers"),
        Line2D([], [], color=INK, label="correlation has the same sign"),
        Line2D([], [], color=INK, linestyle="--", label="the other sign"),
        Line2D([], [], color=INK, linestyle=":", label="no significant correlation"),
        Line2D([], [], color=INK, alpha=0.3, label="own past"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)


def draw_paths(result: Result) -> Any:
    """A matplotlib Figure: direct against through-world effects, and how far each path agrees with correlation."""
    figure = figure_of(15, 4.6)
    left, *right = figure.subplots(1, 3, width_ratios=(1.1, 1, 1))
    _draw_parts(left, result)
    measures = {
        "sign_agreement": "share of entries with the same sign",
        "magnitude_rank_correlation": "rank correlation of their sizes",
    }
    for axis, (measure, unit) in zip(right, measures.items(), strict=True):
        _draw_agreement(axis, result, measure, unit)
    right[0].set_title("Do Jacobian and correlation agree in sign? (grey: permuted episodes)", fontsize=10)
    right[1].set_title("... and in size?", fontsize=10)
    return figure


def _draw_parts(axis: Any, result: Result) -> None:
    """Every edge between different directions, by its two parts."""
    a, alpha = result.arrays, result.notes["alpha"]
    off = np.broadcast_to(_off(a["jacobian"].shape[-1]), a["jacobian"].shape)
    whole, direct, world = (drawn(result, path, alpha) for path in PATHS)
    there = whole & off
    kinds = (
        ("direct alone", there & direct & ~world, PATH_COLOURS["_agent_only"]),
        ("both parts", there & direct & world, BOTH),
        ("through world alone", there & ~direct & world, PATH_COLOURS["_through_world"]),
        ("neither part alone", there & ~direct & ~world, HELD),
    )
    for name, mask, colour in kinds:
        x, y = a["jacobian_agent_only"][mask], a["jacobian_through_world"][mask]
        axis.plot(x, y, ".", color=colour, markersize=5, alpha=0.7, label=f"{name}: {mask.sum()}")
    reach = 1.08 * max(_strongest(a[f"jacobian{path}"]) for path in PATHS[1:])
    axis.axhline(0, color=LINE, linewidth=0.8, zorder=0)
    axis.axvline(0, color=LINE, linewidth=0.8, zorder=0)
    axis.plot([-reach, reach], [reach, -reach], color=LINE, linewidth=0.8, linestyle="--", zorder=0)
    axis.text(reach * 0.97, -reach * 0.9, "cancel", color=HELD, fontsize=8, ha="right")
    axis.set(
        xlim=(-reach, reach), ylim=(-reach, reach), xlabel="Jacobian, direct (memory)",
        ylabel="Jacobian, through the world",
    )  # fmt: skip
    axis.set_title(f"Edges between directions (q ≤ {alpha:g}), by the part that would be one by itself", fontsize=10)
    axis.legend(fontsize=8)


def _draw_agreement(axis: Any, result: Result, measure: str, unit: str) -> None:
    """One measure for every path, against the band of permuted episodes."""
    ticks = []
    for x, path in enumerate(PATHS):
        scalar, null = result.scalars[f"{measure}{path}"], result.scalars[f"{measure}{path}_null"]
        ticks.append(f"{WORDS[path].replace(' (', chr(10) + '(')}\nn = {scalar['n']}")
        if scalar["value"] is None or not np.isfinite(scalar["value"]):
            axis.text(x, 0.5, "too few", ha="center", color=HELD, fontsize=8, transform=axis.get_xaxis_transform())
            continue
        low, high = null["interval"]
        axis.fill_between([x - 0.32, x + 0.32], low, high, color=BAND)
        p = result.scalars[f"{measure}{path}_p"]["value"]
        axis.plot(x, scalar["value"], "o", color=PATH_COLOURS[path])
        axis.annotate(f" p = {p:.2g}", (x, scalar["value"]), xytext=(6, 0), textcoords="offset points", fontsize=8)
    axis.set_xticks(range(len(PATHS)), ticks, fontsize=9)
    axis.set(xlim=(-0.6, len(PATHS) - 0.3), ylabel=unit)


def draw_kinds(result: Result) -> Any:
    """A matplotlib Figure: how far the Jacobians of behaviours differ, sorted by kind; dots where they are told apart,
    frames around a kind."""
    from matplotlib.patches import Rectangle

    a, alpha = result.arrays, result.notes["alpha"]
    order = np.argsort(a["kind"], kind="stable")
    order = order[a["kind"][order] >= 0]
    distance, q = (a[name][np.ix_(order, order)] for name in ("behaviour_distance", "q_behaviour_distance"))
    n, names = len(order), [label(result.notes["names"], int(b)) for b in a["behaviours"][order]]
    figure = figure_of(0.34 * n + 5.6, 0.34 * n + 2.6)
    axis = figure.subplots()
    image = axis.imshow(distance, cmap=f"{SEQUENTIAL}_r", vmin=0, vmax=max(1.0, float(distance.max())))
    j, i = np.nonzero(q <= alpha)
    # Half of them stand on dark, half on bright.
    axis.scatter(i, j, s=14, color="black", edgecolors="white", linewidths=0.7)
    kind = a["kind"][order]
    for of in np.unique(kind):
        first, last = np.flatnonzero(kind == of)[[0, -1]]
        axis.add_patch(Rectangle((first - 0.5, first - 0.5), last - first + 1, last - first + 1, fill=False,
                                 edgecolor=NEGATIVE, linewidth=2))  # fmt: skip
    short = [name if len(name) <= 44 else f"{name[:43]}…" for name in names]
    axis.set_yticks(range(n), short, fontsize=8)
    axis.set_xticks(range(n), [str(int(b)) for b in a["behaviours"][order]], fontsize=8)
    axis.set_xlabel("behaviour")
    figure.colorbar(
        image, ax=axis, label="distance of mean Jacobians\n(0 alike, 1.4 unrelated, 2 opposite)", shrink=0.8
    )
    count = int(kind.max()) + 1
    figure.suptitle(
        f"Behaviours by Jacobian: {counted(count, 'kind')} (frames)\n"
        f"dots: told apart, q ≤ {alpha:g}", fontsize=11,
    )  # fmt: skip
    return figure


def draw_extremes(result: Result) -> Any:
    """A matplotlib Figure: a row a lag; later means of the targets and Jacobians, given that the source was at its
    upper or its lower end.  Dots: significant, with an interval beyond 0.  Grey: not tested."""
    from matplotlib import colormaps

    a, alpha, lags = result.arrays, result.notes["alpha"], result.arrays["lags"]
    k = a["jacobian"].shape[-1]
    side = 3.0 if k <= 24 else 4.2
    figure = figure_of(4 * side + 1, side * len(lags) + 1.4)
    axes = figure.subplots(len(lags), 4, sharex=True, sharey=True, squeeze=False)
    colours = colormaps[DIVERGING].with_extremes(bad=NOT_TESTED)
    share = f"{100 * result.notes['extremes']:.3g} %"
    kinds = (("mean", "mean of the target (SD)"), ("jacobian", "Jacobian, whole"))
    for of, (name, title) in enumerate(kinds):
        x = a[f"extreme_{name}"]
        limit = _strongest(x)
        shown = (a[f"q_extreme_{name}"] <= alpha) & ((a[f"extreme_{name}_low"] > 0) | (a[f"extreme_{name}_high"] < 0))
        for tail, end in enumerate(("upper", "lower")):
            column = axes[:, 2 * of + tail]
            for at, axis in enumerate(column):
                image = axis.imshow(x[tail, at], cmap=colours, vmin=-limit, vmax=limit)
                i, j = np.nonzero(shown[tail, at])
                axis.plot(j, i, ".", color="black", markersize=4 if k <= 16 else 40 / k)
            column[0].set_title(f"{title}\nsource in its {end} {share}", fontsize=9)
            column[-1].set_xlabel("target now")
        pair = axes[:, 2 * of : 2 * of + 2]
        extend = "neither" if _strongest(x, off=False) <= limit else "both"
        figure.colorbar(image, ax=list(pair.flat), location="bottom", shrink=0.6, pad=0.02, extend=extend, label=title)
    for of_axis in (axes[0, 0].xaxis, axes[0, 0].yaxis):
        of_axis.set_ticks(**_ticks(result))
    for axis in axes.flat:
        axis.tick_params(labelsize=6, labelrotation=45)
    for axis, lag in zip(axes[:, 0], lags, strict=True):
        axis.set_ylabel(f"source {_before(lag)}")
    figure.suptitle(f"Where a direction is extreme, over all behaviours\ndots: q ≤ {alpha:g}; grey: not tested")
    return figure
