"""Figures of activations and their clusters (analysis.activations): drawn from a saved Result alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.artefacts import Result
from core.figures import BAND, DIVERGING, INK, MEMORY, SEQUENTIAL, TIME, figure_of, minus
from core.pages import NOISE, NOISE_COLOUR, UNLABELLED_COLOUR, label_colours, label_name
from core.stats import ALPHA

DOTS = 4000  # records in a scatter plot, drawn at random
PAIR_DOTS = 1500  # and in one of many
SHOWN_CLUSTERS = 30  # in the figure of effect sizes: the largest
NAMED_CLUSTERS = 25  # on the map
PROFILED_COMPONENTS = 3  # of every feature: those it goes with most
PROFILE_BINS = 20
PER_LINE = 5  # planes of components beside each other
FAINTEST = 0.08  # opacity of a feature's middle value on a map
LISTED = 12  # clusters that a legend names
D_LIMIT = 2.0  # where the colours of effect sizes end
KIND_COLOURS = {
    "behaviour": "#1b7f4d", "phase": "#d9822b", "identity": "#7b4fa3", "place": "#2b74b8", "noise": NOISE_COLOUR,
    "undecided": "#c9b037", "in no cluster": UNLABELLED_COLOUR,
}  # fmt: skip


def draw(result: Result, path: Path, without: Sequence[str] = ()) -> list[str]:
    """Every figure the Result has the data for, but those named; the names of the files written."""
    figures: dict[str, Callable[[Result], Any]] = {
        "pca_pairs.png": _draw_pca_pairs,
        "pca_feature_correlations.png": _draw_correlations,
        "pca_feature_profiles.png": _draw_profiles,
    }
    if len(result.notes["features"]) > 1:  # else there is no pair
        figures["feature_scatter.png"] = _draw_feature_scatter
    if "umap" in result.arrays:
        figures |= {
            "umap_scatter.png": _draw_map,
            "umap_metric_scatter.png": _draw_metric_map,
            "cluster_features.png": _draw_effects,
        }
    if "umap_10" in result.arrays:
        figures["umap_pairs.png"] = _draw_umap_pairs
    figures = {name: function for name, function in figures.items() if name not in without}
    for name, function in figures.items():
        function(result).savefig(path / name, dpi=90, metadata={"Software": None})
    return list(figures)


def _some(result: Result, most: int) -> np.ndarray:
    """Records drawn at random, in random order, so that none hides another for its place in the file."""
    return np.random.default_rng(0).permutation(len(result.arrays["index"]))[:most]


def _words(name: str) -> str:
    """A feature's name for an axis."""
    return name.replace("_", " ")


def _limits(x_NF: np.ndarray) -> np.ndarray:
    """[F, 2] (low, high) that leave the most extreme 0.4 % out, with a margin."""
    low, high = np.quantile(x_NF, [0.002, 0.998], axis=0)
    margin = 0.04 * np.maximum(high - low, 1e-9)
    return np.stack([low - margin, high + margin], 1)


# The map


def _draw_map(result: Result) -> Any:
    """The same dots by cluster, verdict, tick and agent."""
    rows, xy = _some(result, 2 * DOTS), result.arrays["umap"]
    label = result.arrays["label"]
    figure = figure_of(12.5, 10.4)
    axes = figure.subplots(2, 2).ravel()
    limits = _limits(xy)
    for axis in axes:
        axis.set(xticks=[], yticks=[], xlim=limits[0], ylim=limits[1])
    dots: dict[str, Any] = {"s": 5, "linewidths": 0}
    noise, clustered = rows[label[rows] == NOISE], rows[label[rows] != NOISE]
    of_label = label_colours(label)
    count = int(label.max()) + 1
    axes[0].scatter(*xy[noise].T, color=NOISE_COLOUR, alpha=0.35, **dots)
    if len(clustered):
        axes[0].scatter(*xy[clustered].T, color=[of_label[int(v)] for v in label[clustered]], **dots)
    from matplotlib.patheffects import withStroke

    for c in range(min(count, NAMED_CLUSTERS)):
        at = xy[label == c][np.argmin(((xy[label == c] - np.median(xy[label == c], axis=0)) ** 2).sum(1))]
        outlined = [withStroke(linewidth=2.5, foreground="white")]
        axes[0].annotate(str(c), at, (0, 4), textcoords="offset points", ha="center", fontsize=8, path_effects=outlined)
    named = f", the largest {NAMED_CLUSTERS} numbered" if count > NAMED_CLUSTERS else ""
    axes[0].set_title(
        f"{count} clusters of {result.notes.get('clustered', 'the map')}{named}; grey: in none", fontsize=10
    )
    _map_legend(axes[0], label, of_label)
    kinds = np.array(["in no cluster", *(result.notes["verdicts"][str(c)]["verdict"] for c in range(count))])
    kind = kinds[label + 1]
    for name, colour in KIND_COLOURS.items():
        here = rows[kind[rows] == name]
        if (kind == name).any():
            axes[1].scatter(*xy[here].T, color=colour, label=f"{name} ({(kind == name).mean():.0%})", **dots)
    axes[1].legend(frameon=True, fontsize=8, markerscale=2.5, loc="best")
    timed = result.scalars.get("told_by_time")
    also = f"; time alone tells the clusters of {timed['value']:.0%}" if timed else ""
    axes[1].set_title(f"What clusters are about: {result.notes['verdict']}{also}", fontsize=10)
    tick = _tick(result)
    drawn = axes[2].scatter(*xy[rows].T, c=tick[rows], cmap=TIME, **dots)
    figure.colorbar(drawn, ax=axes[2], label="tick")
    axes[2].set_title("Tick", fontsize=10)
    # Agents are many: colours repeat, so that equal colours nearby, not anywhere, mean one agent.
    of_agent = label_colours(result.arrays["agent"])
    axes[3].scatter(*xy[rows].T, color=[of_agent[int(a)] for a in result.arrays["agent"][rows]], **dots)
    what = "Agent" if result.notes["agents_are"] == "agents" else "Life (one agent from birth to death)"
    axes[3].set_title(f"{what}; colours repeat", fontsize=10)
    figure.suptitle(f"UMAP of {_of(result, rows)}", fontsize=12)
    return figure


def _map_legend(axis: Any, label: np.ndarray, of_label: Mapping[int, str]) -> None:
    """The largest clusters' colours and sizes, in the map's corner; none where there are no clusters."""
    listed = [c for c in of_label if c != NOISE][:LISTED]
    if not listed:
        return
    for c in listed:
        axis.scatter([], [], color=of_label[c], s=12, label=f"{c} ({(label == c).sum():,})")
    axis.legend(frameon=True, fontsize=7, loc="best", title="cluster (records)", title_fontsize=7, markerscale=1.2)


def _of(result: Result, rows: np.ndarray) -> str:
    total = len(result.arrays["index"])
    some = f"{len(rows):,} of {total:,}" if len(rows) < total else f"{total:,}"
    return f"{some} activations, {result.scalars['lives']['value']:.0f} lives"


def _tick(result: Result) -> np.ndarray:
    names = result.notes["features"]
    return result.arrays["features"][:, names.index("tick")] if "tick" in names else result.arrays["index"][:, 1]


def _draw_metric_map(result: Result) -> Any:
    """A map a feature, averaged over the last ticks of the life; the further from its median, the more opaque and the
    later drawn, so that low health is seen as well as high."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    names, values = result.notes["features"], result.arrays["features_rolling"]
    rows, xy = _some(result, DOTS), result.arrays["umap"]
    limits, per_line = _limits(xy), 4
    lines = -(-len(names) // per_line)
    figure = figure_of(3.4 * per_line, 2.9 * lines + 0.4)
    axes = figure.subplots(lines, per_line, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    for f, (axis, name) in enumerate(zip(axes, names, strict=False)):
        axis.set_axis_on()
        low, middle, high = np.quantile(values[:, f], [0.01, 0.5, 0.99])
        if high <= low:  # rare: hardly any record differs
            low, high = float(values[:, f].min()), float(values[:, f].max())
        axis.set(xticks=[], yticks=[], xlim=limits[0], ylim=limits[1])
        axis.scatter(*xy[rows].T, color=BAND, s=2, linewidths=0)
        axis.set_title(_words(name) if high > low else f"{_words(name)}: always {low:g}", fontsize=9)
        if high <= low:
            continue
        scale = Normalize(low, high, clip=True)
        away = np.abs(values[rows, f] - middle) / max(high - middle, middle - low)
        away = np.minimum(away, 1)
        order = np.argsort(away, kind="stable")  # what is far from the middle last, on top
        rgba = colormaps[f"{SEQUENTIAL}_r"](np.clip(np.asarray(scale(values[rows[order], f]), float), 0, 1))
        rgba[:, 3] = FAINTEST + (1 - FAINTEST) * away[order]
        axis.scatter(*xy[rows[order]].T, color=rgba, s=5, linewidths=0)
        bar = figure.colorbar(ScalarMappable(scale, f"{SEQUENTIAL}_r"), ax=axis)
        bar.ax.tick_params(labelsize=7)
        bar.set_label(f"mean of {_words(name)}", fontsize=7)
        bar.ax.axhline(middle, color=INK, linewidth=1)
    window = result.notes["settings"]["rolling"]
    figure.suptitle(
        f"Features on the map: means over {window} ticks of the life; the further from the median (line on the scale), "
        "the more opaque", fontsize=11,
    )  # fmt: skip
    return figure


# Pairs of coordinates


def _triangle(
    x_ND: np.ndarray, names: Sequence[str], rows: np.ndarray, colours: Any, title: str, panel: float = 1.35
) -> Any:
    """Every pair of columns as a scatter plot, in a triangle; limits leave the most extreme 0.4 % out."""
    d = len(names) - 1  # panels a side
    figure = figure_of(panel * d + 1.2, panel * d + 1.1)
    figure.set_layout_engine("none")  # a hundred panels have their places
    grid = figure.add_gridspec(d, d, left=0.9 / (panel * d + 1.2), right=0.99, bottom=0.75 / (panel * d + 1.1),
                               top=1 - 0.4 / (panel * d + 1.1), wspace=0.06, hspace=0.06)  # fmt: skip
    limits, slanted = _limits(x_ND), max(map(len, names)) > 14
    for i in range(d):
        for j in range(i + 1):
            axis = figure.add_subplot(grid[i, j])
            axis.scatter(x_ND[rows, j], x_ND[rows, i + 1], c=colours, s=3, linewidths=0, alpha=0.7)
            axis.set(xticks=[], yticks=[], xlim=limits[j], ylim=limits[i + 1])
            if j == 0:
                axis.set_ylabel(_words(names[i + 1]), fontsize=8)
            if i == d - 1:
                axis.set_xlabel(
                    _words(names[j]), fontsize=8, rotation=20 * slanted, ha="right" if slanted else "center"
                )
    figure.suptitle(title, fontsize=11, x=0.99, ha="right", y=0.99, va="top")
    return figure


def _legend(figure: Any, result: Result, **where: Any) -> None:
    """The clusters' colours, the largest named; the ticks' where there are none."""
    if "label" not in result.arrays:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        tick = _tick(result)
        scale = ScalarMappable(Normalize(float(tick.min()), float(tick.max())), TIME)
        axis = figure.add_axes((0.7, 0.9, 0.25, 0.012)) if figure.get_layout_engine() is None else None
        figure.colorbar(scale, cax=axis, ax=None if axis is not None else figure.axes, label="tick",
                        **({"orientation": "horizontal"} if axis is not None else {"shrink": 0.5}))  # fmt: skip
        return
    from matplotlib.lines import Line2D

    of, count = label_colours(result.arrays["label"]), np.bincount(result.arrays["label"] + 1)
    labels = [c for c in of if c != NOISE][:LISTED] + [NOISE] * (NOISE in of)
    handles = [
        Line2D([], [], linestyle="", marker="o", markersize=5, color=of[c], label=f"{label_name(c)} ({count[c + 1]:,})")
        for c in labels
    ]
    more = len(of) - len(labels)
    title = f"records; {more} smaller clusters not named" if more else "records"
    figure.legend(handles=handles, fontsize=8, frameon=False, title=title, title_fontsize=8, **where)


def _paint(result: Result, rows: np.ndarray) -> tuple[Any, str]:
    """(colours of records, what they mean): clusters, or ticks where there are none."""
    if "label" in result.arrays:
        of_label = label_colours(result.arrays["label"])
        return [of_label[int(v)] for v in result.arrays["label"][rows]], "coloured by cluster (grey: none)"
    from matplotlib import colormaps

    tick = _tick(result)
    span = max(float(np.ptp(tick)), 1e-9)
    return colormaps[TIME]((tick[rows] - tick.min()) / span), "coloured by tick (dark early, bright late)"


def _jittered(x_NF: np.ndarray) -> np.ndarray:
    """Columns with few values, spread a little, so that dots do not hide each other."""
    out = np.asarray(x_NF, np.float64).copy()
    rng = np.random.default_rng(0)
    for f in range(out.shape[1]):
        values = np.unique(out[:, f])
        if len(values) <= 30:
            step = np.diff(values).min() if len(values) > 1 else 1.0
            out[:, f] += rng.uniform(-0.3, 0.3, len(out)) * step
    return out


def _draw_pca_pairs(result: Result) -> Any:
    """Consecutive pairs of components (0 and 1, 2 and 3, ...), all that were kept."""
    pc, share = result.arrays["pca"], result.arrays["pca_explained"]
    rows = _some(result, DOTS)
    colours, meaning = _paint(result, rows)
    pairs = [(i, min(i + 1, pc.shape[1] - 1)) for i in range(0, pc.shape[1], 2)]
    lines, wide = -(-len(pairs) // PER_LINE), min(PER_LINE, len(pairs))
    figure = figure_of(2.6 * max(2, wide), 2.55 * lines + 1.5)
    axes = figure.subplots(lines, wide, squeeze=False).ravel()
    limits = _limits(pc)
    for axis, (a, b) in zip(axes, pairs, strict=False):
        axis.scatter(pc[rows, a], pc[rows, b], c=colours, s=3, linewidths=0, alpha=0.7)
        axis.set(xticks=[], yticks=[], xlim=limits[a], ylim=limits[b])
        axis.set_xlabel(f"component {a} ({share[a]:.1%})", fontsize=8)
        axis.set_ylabel(f"component {b} ({share[b]:.1%})", fontsize=8)
    for axis in axes[len(pairs) :]:
        axis.set_axis_off()
    _legend(figure, result, loc="outside lower center", ncols=5)
    figure.suptitle(f"Pairs of principal components, {meaning}\n{_of(result, rows)}", fontsize=11)
    return figure


def _draw_umap_pairs(result: Result) -> Any:
    x = result.arrays["umap_10"]
    rows = _some(result, PAIR_DOTS)
    colours, meaning = _paint(result, rows)
    names = [f"dimension {i}" for i in range(x.shape[1])]
    figure = _triangle(x, names, rows, colours, f"{x.shape[1]}-D UMAP, {meaning}\n{_of(result, rows)}")
    return _legended(figure, result)


def _legended(triangle: Any, result: Result) -> Any:
    """With its legend in the corner that a triangle leaves empty."""
    _legend(triangle, result, loc="upper right", bbox_to_anchor=(0.98, 0.93), ncols=2)
    return triangle


def _draw_feature_scatter(result: Result) -> Any:
    names = result.notes["features"]
    rows = _some(result, PAIR_DOTS)
    colours, meaning = _paint(result, rows)
    pairs = len(names) * (len(names) - 1) // 2
    window = result.notes["settings"]["rolling"]
    title = f"{pairs} pairs of features, {meaning}\nmeans over {window} ticks of the life; {_of(result, rows)}"
    averages = _jittered(result.arrays["features_rolling"])
    return _legended(_triangle(averages, names, rows, colours, title, panel=1.15), result)


# Components and features


def _table(result: Result, key: str, *by: str) -> dict[Any, dict[str, Any]]:
    return {tuple(row[k] for k in by): row for row in result.tables[key]}


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)


def _draw_correlations(result: Result) -> Any:
    names = result.notes["features"]
    of = _table(result, "pca_features", "component", "feature")
    k = 1 + max(i for i, _ in of)
    units = "worlds" if result.notes["unit"].startswith("a world") else "lives"
    r = np.array([[_number(of[i, name]["r"]) for i in range(k)] for name in names])
    sure = np.array([[_number(of[i, n]["low"]) > 0 or _number(of[i, n]["high"]) < 0 for i in range(k)] for n in names])
    wide, size = (0.62, 7) if k <= 12 else (0.46, 6)  # of many components
    figure = figure_of(wide * k + 8.2, 0.34 * len(names) + 3.4)
    axes = figure.subplots(
        2, 2, width_ratios=(wide * k + 1.5, 3.2), height_ratios=(0.34 * len(names), 1.7), squeeze=False
    )
    axis = axes[0, 0]
    image = axis.imshow(r, cmap=DIVERGING, vmin=-1, vmax=1, aspect="auto")
    for (y, x), value in np.ndenumerate(r):
        if np.isfinite(value):
            weight = "bold" if sure[y, x] else "normal"
            colour = "white" if abs(value) > 0.6 else ("black" if sure[y, x] else "0.55")
            text = minus(f"{value:+.2f}")
            axis.text(x, y, text, ha="center", va="center", fontsize=size, color=colour, weight=weight)
    axis.set_yticks(range(len(names)), list(map(_words, names)), fontsize=8)
    axis.set_xticks(range(k), [str(i) for i in range(k)], fontsize=8)
    axis.set_xlabel("principal component", fontsize=8)
    axis.set_title(f"Pearson r (bold: 95 % interval over {units} excludes 0)", fontsize=10)
    figure.colorbar(image, ax=axis, location="left", shrink=0.8, label="Pearson r")
    r2 = _table(result, "pca_r2", "kind", "name")
    _r2_bars(axes[0, 1], [r2["feature", n] for n in names], names, flat=False)
    axes[0, 1].invert_yaxis()
    axes[0, 1].set_title(f"Feature from {k} components", fontsize=10)
    axes[0, 1].set_xlabel(f"R² in {units} not fitted on", fontsize=8)
    components = [f"PC {i}" for i in range(k)]
    _r2_bars(axes[1, 0], [r2["component", n] for n in components], [str(i) for i in range(k)], flat=True)
    axes[1, 0].set_xlabel("principal component", fontsize=8)
    axes[1, 0].set_title(f"Component from {len(names)} features", fontsize=10)
    axes[1, 0].set_ylabel("R²", fontsize=8)
    axes[1, 1].set_axis_off()
    n = result.scalars["lives"]["value"]
    figure.suptitle(
        f"Principal components and features ({n:.0f} lives; bars: 95 % intervals over {units})", fontsize=11
    )
    return figure


def _r2_bars(axis: Any, rows: Sequence[dict[str, Any]], names: Sequence[str], flat: bool) -> None:
    """Bars of R^2 with intervals; below 0 (worse than the mean) is cut at -0.1."""
    value = np.array([_number(row["r2"]) for row in rows])
    ends = np.array([[_number(row["low"]), _number(row["high"])] for row in rows])
    at = np.arange(len(rows))
    (axis.bar if flat else axis.barh)(at, np.maximum(np.nan_to_num(value), -0.1), color=MEMORY)
    for i, (low, high) in enumerate(np.clip(ends, -0.1, 1)):
        if np.isfinite(low):
            axis.plot(*(([i, i], [low, high]) if flat else ([low, high], [i, i])), color=INK, linewidth=1.4)
    if flat:
        axis.set_xticks(at, names, fontsize=8)
        axis.set(ylim=(min(0, np.nanmin(value, initial=0)), 1.0))
    else:
        axis.set_yticks(at, [""] * len(names))
        axis.set(xlim=(min(0.0, max(-0.1, np.nanmin(value, initial=0))), 1.0), ylim=(-0.5, len(rows) - 0.5))
    axis.tick_params(labelsize=8)


def _draw_profiles(result: Result) -> Any:
    """Every feature along the components it goes with most (largest |r|): records, and means over bins of as many.
    The panels of a feature share their axes."""
    names, x, pc = result.notes["features"], result.arrays["features"].astype(np.float64), result.arrays["pca"]
    of = _table(result, "pca_features", "component", "feature")
    share, rows = result.arrays["pca_explained"], _some(result, PAIR_DOTS)
    shown = min(PROFILED_COMPONENTS, pc.shape[1])
    colours, meaning = _paint(result, rows)
    spread, limits = _jittered(x), _limits(x)
    pairs = 2 if len(names) > 1 else 1  # features beside each other
    lines = -(-len(names) // pairs)
    figure = figure_of(2.15 * shown * pairs + 1.2, 1.75 * lines + 1.3)
    grid = figure.subplots(lines, shown * pairs, squeeze=False)
    for axis in grid.flat:
        axis.set_axis_off()
    for f, name in enumerate(names):
        line, at = f % lines, f // lines * shown
        r = np.array([_number(of[i, name]["r"]) for i in range(pc.shape[1])])
        best = np.argsort(-np.abs(np.nan_to_num(r)), kind="stable")[:shown]
        ends = _limits(pc[:, best])
        for axis, i in zip(grid[line, at : at + shown], best, strict=True):
            axis.set_axis_on()
            axis.scatter(pc[rows, i], spread[rows, f], c=colours, s=2, linewidths=0, alpha=0.5)
            order = np.argsort(pc[:, i], kind="stable")
            bins = [part for part in np.array_split(order, PROFILE_BINS) if len(part)]
            axis.plot([pc[part, i].mean() for part in bins], [x[part, f].mean() for part in bins], color="white", lw=3)
            axis.plot([pc[part, i].mean() for part in bins], [x[part, f].mean() for part in bins], color=INK, lw=1.5)
            axis.set(xlim=(ends[:, 0].min(), ends[:, 1].max()), ylim=limits[f])
            said = "never changes" if np.isnan(r[i]) else minus(f"r = {r[i]:+.2f}")
            axis.set_title(f"component {i} ({share[i]:.1%}), {said}", fontsize=7)
            axis.tick_params(labelsize=6, labelleft=axis is grid[line, at])
        grid[line, at].set_ylabel(_words(name), fontsize=8)
    _legend(figure, result, loc="outside lower center", ncols=6)
    figure.suptitle(
        f"Features along the {shown} components they go with most, {meaning}; lines: means of {PROFILE_BINS} bins of "
        f"as many records\n{_of(result, rows)}", fontsize=10,
    )  # fmt: skip
    return figure


# Effect sizes


def _draw_effects(result: Result) -> Any:
    """Cohen's d of clusters and features, plain and beyond time and life, and the verdicts."""
    clusters = result.tables["clusters"][:SHOWN_CLUSTERS]
    if not clusters:
        figure = figure_of(7, 2)
        figure.text(0.5, 0.5, result.notes["said"], ha="center", va="center", fontsize=11)
        return figure
    names = list(dict.fromkeys(row["feature"] for row in result.tables["effects"]))
    of = _table(result, "effects", "cluster", "feature")
    figure = figure_of(0.36 * 2 * len(names) + 6.0, 0.27 * len(clusters) + 2.6)
    axes = figure.subplots(1, 2, sharey=True)
    kinds = (("d", "q", "Against all other records"), ("beyond", "beyond_q", "Beyond time and who"))
    for axis, (key, q, title) in zip(axes, kinds, strict=True):
        d = np.array([[_number(of[row["cluster"], n][key]) for n in names] for row in clusters])
        image = axis.imshow(d, cmap=DIVERGING, vmin=-D_LIMIT, vmax=D_LIMIT, aspect="auto")
        for (y, x), value in np.ndenumerate(d):
            cell = of[clusters[y]["cluster"], names[x]]
            if np.isfinite(value) and _number(cell[q]) <= ALPHA:
                axis.plot(x, y, marker="o", markersize=2.6, color="white" if abs(value) > 1.1 else "black")
        axis.set_xticks(range(len(names)), list(map(_words, names)), fontsize=8, rotation=60, ha="right")
        axis.set_title(title, fontsize=10)
    axes[0].set_yticks(
        range(len(clusters)), [f"{row['cluster']}  ({row['records']:,})" for row in clusters], fontsize=8
    )
    axes[0].set_ylabel("cluster (records)", fontsize=9)
    right = axes[1].secondary_yaxis("right")
    right.set_yticks(range(len(clusters)), [row["verdict"] for row in clusters], fontsize=8)
    for text, row in zip(right.get_yticklabels(), clusters, strict=True):
        text.set_color(KIND_COLOURS[row["verdict"]])
        text.set_fontweight("bold")
    figure.colorbar(image, ax=list(axes), location="bottom", shrink=0.35, aspect=40, label="Cohen's d", extend="both")
    more = len(result.tables["clusters"]) - len(clusters)
    some = f"; {more} smaller clusters are in clusters.csv" if more > 0 else ""
    figure.suptitle(f"Clusters and features (dots: q ≤ {ALPHA} against labels of other lives){some}", fontsize=11)
    return figure
