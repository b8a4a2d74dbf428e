"""Figures of analysis.life: one life in panels, many lives as bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.lives.recorded import Between, named
from analysis.lives.timeline import EVENTS
from analysis.shared.units import stretches
from core.figures import figure_of
from core.pages import UNLABELLED, label_name

# Panels: title, features in it.  Features in none get a panel of their own.
PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("condition", ("self_health", "self_food", "self_water")),
    ("gold, items", ("self_gold", "n_inventory_items")),
    ("in view", ("n_visible_npcs", "n_visible_players")),
    ("combat level", ("max_combat_level",)),
    ("place", ("row", "col")),
    ("value, reward", ("value", "reward")),
)
LEFT_OUT = ("tick", "n_visible_entities")  # the horizontal axis; the sum of two that are drawn
SHORT = {"self_": "", "n_visible_": "", "n_inventory_": "", "max_": "", "_": " "}


def _runs(labels: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first, one past the last, label) of every stretch of one label."""
    x = np.asarray(labels)
    return [(int(a), int(a + n), int(x[a])) for a, n in zip(*stretches(x), strict=True)]


def _short(name: str) -> str:
    for long, short in SHORT.items():
        name = name.replace(long, short)
    return name


def _legend_of_bands(figure: Any, labels: Sequence[int], colours: Mapping[int, str], between: Between) -> None:
    from matplotlib.patches import Patch

    there = sorted(set(labels), key=lambda k: (k < 0, abs(k)))
    handles = [Patch(facecolor=colours[k], edgecolor="0.4", linewidth=0.5, label=label_name(k)) for k in there]
    says = "between clustered ticks: the nearest one's" if between == "nearest" else "only clustered ticks are coloured"
    figure.legend(handles=handles, loc="outside lower center", ncols=min(7, len(there)), fontsize=8, frameon=False,
                  title=f"bands: cluster ({says})", title_fontsize=8)  # fmt: skip


def draw_life(
    life: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], colours: Mapping[int, str], between: Between
) -> Any:
    """A matplotlib Figure: the panels above each other over the ticks, events below, cluster bands behind all."""
    data = {name: np.array([row[name] for row in rows], float) for name in rows[0] if name not in ("agent", "episode")}
    event_names = {e.replace(" ", "_"): e for e, _ in EVENTS if e.replace(" ", "_") in data}
    sources = {s.removesuffix("+") for _, s in EVENTS if not s.endswith("+")}
    named_in = {name for _, names in PANELS for name in names}
    rest = [n for n in data
            if n not in {*named_in, *LEFT_OUT, *event_names, *sources, "t", "label", "clustered"}]  # fmt: skip
    panels = [(title, [n for n in names if n in data]) for title, names in PANELS] + [(_short(n), [n]) for n in rest]
    panels = [(title, names) for title, names in panels if names]
    heights = [0.22, *[1.0] * len(panels), 0.2 * len(event_names) + 0.1]
    figure = figure_of(10, 1.25 * len(panels) + 0.35 * len(event_names) + 1.5)
    axes = figure.subplots(len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights})
    tick = data["tick"]
    for axis, (title, names) in zip(axes[1:-1], panels, strict=True):
        for i, name in enumerate(names):
            colour = ("#1d2329", "#b5482a", "#2a6fb5")[i % 3]
            axis.plot(tick, data[name], linewidth=1.3, color=colour, label=_short(name), drawstyle="steps-mid")
        axis.set_ylabel(title, fontsize=8, rotation=0, ha="right", va="center")
        axis.tick_params(labelsize=7)
        axis.margins(x=0)
        if len(names) > 1:
            axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    for i, (column, _) in enumerate(event_names.items()):
        at = tick[data[column] > 0]
        axes[-1].vlines(at, i - 0.35, i + 0.35, color="#1d2329", linewidth=0.9)
    axes[-1].set_yticks(range(len(event_names)), list(event_names.values()), fontsize=7)
    axes[-1].set_ylim(len(event_names) - 0.4, -0.6)
    axes[-1].set_xlabel("tick", fontsize=8)
    axes[-1].tick_params(axis="x", labelsize=7)
    axes[0].set_yticks([])
    for axis in axes:
        axis.set_xlim(tick[0] - 0.5, tick[-1] + 0.5)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    if "label" in data:
        for first, end, label in _runs(data["label"].astype(int).tolist()):
            for axis in axes:
                if axis is axes[0] or label != UNLABELLED:
                    axis.axvspan(tick[0] + first - 0.5, tick[0] + end - 0.5, color=colours[label], linewidth=0,
                                 alpha=1 if axis is axes[0] else 0.22, zorder=0)  # fmt: skip
        _legend_of_bands(figure, data["label"].astype(int).tolist(), colours, between)
    else:
        axes[0].set_visible(False)
    figure.suptitle(f"{named(life).capitalize()}: {life['lifespan']} ticks, {life['ended']}", fontsize=10)
    return figure


def draw_lives(
    lives: Sequence[Mapping[str, Any]],
    rows: Mapping[int, Sequence[Mapping[str, Any]]],
    colours: Mapping[int, str],
    between: Between,
) -> Any:
    """A matplotlib Figure: a bar a life over the ticks, in the colours of its clusters; a cross where it ended in
    death."""
    figure = figure_of(10, 0.3 * len(lives) + 1.6)
    axis = figure.subplots()
    seen: list[int] = []
    longest = max(life["lifespan"] for life in lives)
    for i, life in enumerate(lives):
        mine = rows[life["episode"]]
        labels = [row.get("label", UNLABELLED) for row in mine]
        seen += labels
        for first, end, label in _runs(labels):
            axis.broken_barh([(mine[0]["tick"] + first - 0.5, end - first)], (i - 0.38, 0.76), linewidth=0,
                             facecolors=colours.get(label, "#7f9db5"))  # fmt: skip
        if life["ended"] == "died":
            axis.plot(mine[-1]["tick"] + 0.5 + 0.012 * longest, i, marker="x", color="#b0121b", markersize=5)
    axis.set_yticks(range(len(lives)), [named(life) for life in lives], fontsize=7)
    axis.set_ylim(len(lives) - 0.4, -0.6)
    axis.set_xlabel("tick (cross: death)", fontsize=8)
    axis.tick_params(axis="x", labelsize=7)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    if colours:
        _legend_of_bands(figure, seen, colours, between)
    return figure
