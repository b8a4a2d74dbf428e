"""The life of an agent, tick by tick: ``python -m analysis.life runs/activations --cluster_dir runs/clusters``.

Health, food, water, place, company and what the agent does, over the ticks of its life, with the cluster that each
moment is in as coloured bands.  Without a wish: the life whose length is at the 75th percentile.  What is drawn is in
timeline.csv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from analysis.lives import (
    Between,
    Clusters,
    about,
    feature_names,
    named,
    open_lives,
    read_clusters,
    read_life,
    worlds_of,
)
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore
from core.figures import figure_of
from core.pages import UNLABELLED, label_colours, label_name
from core.stats import few, quantile_interval, share_of

STAGE = "life"
QUANTILE = 0.75
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
# Events: what they are called, from which column; "+" means that it rises in the next tick.
EVENTS = (
    ("eating", "self_food+"), ("drinking", "self_water+"), ("moving", "is_moving"), ("attacking", "is_attacking"),
    ("in combat", "in_combat"), ("trading", "is_trading"),
)  # fmt: skip
SHORT = {"self_": "", "n_visible_": "", "n_inventory_": "", "max_": "", "_": " "}


@dataclass(frozen=True, kw_only=True)
class LifeConfig:
    """Draw the timeline of one life, or of several."""

    extraction: tyro.conf.Positional[Path] = Path("runs/activations")
    """run directory of analysis.extract_activations"""
    cluster_dir: Path | None = None
    """run directory of analysis.activations of the same extraction; without it there are no bands"""
    num_agents: int = 0
    """so many lives drawn at random; 0: the one life whose length is at the 75th percentile"""
    episodes: tuple[int, ...] = ()
    """these lives instead, by their episode number"""
    between: Between = "nearest"
    """what a tick that was not clustered itself shows: the cluster of the nearest tick that was, or none (grey)"""
    out: Path = Path("runs/life")
    """run directory to write"""
    seed: int = 0
    """seed of the draw and of the interval"""
    overwrite: bool = False
    """replace an earlier run at --out"""


def choose(steps_E: np.ndarray, agents: int, episodes: Sequence[int], seed: int) -> list[int]:
    """Episode numbers: those wished for, or ``agents`` random ones, or that with the length nearest to the 75th
    percentile (of equals the first).  UserError for what is not there."""
    n = len(steps_E)
    if episodes and agents:
        raise UserError("--num_agents and --episodes are two ways to choose; give one of them")
    if wrong := [e for e in episodes if not 0 <= e < n]:
        raise UserError(f"--episodes {wrong[0]}: there are {n} lives, 0 to {n - 1}")
    if agents > n:
        raise UserError(f"--num_agents {agents}: there are only {n} lives")
    if episodes:
        return list(dict.fromkeys(episodes))
    if agents:
        return sorted(np.random.default_rng(seed).choice(n, agents, replace=False).tolist())
    return [int(np.abs(steps_E - np.quantile(steps_E, QUANTILE)).argmin())]


def events_of(life: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Event -> bool [T], in the order of EVENTS; those whose column is missing are left out.

    Eating and drinking are ticks after which food or water has risen (both only fall by themselves), so that a meal
    on a full stomach is not seen, nor what the last tick brought.
    """
    out = {}
    for event, source in EVENTS:
        name = source.removesuffix("+")
        if name in life:
            x = np.asarray(life[name])
            out[event] = np.r_[np.diff(x) > 0, False] if source.endswith("+") else x > 0
    return out


def timeline(
    store: RolloutStore, which: Mapping[str, Any], clusters: Clusters | None, between: Between
) -> list[dict[str, Any]]:
    """A row a tick of the life that ``about`` describes: t, tick, every column of the life, every event, label, and
    whether it was clustered itself."""
    episode = int(which["episode"])
    life = read_life(store, episode)
    rows, events = int(store.steps[episode]), events_of(life)
    label = own = None
    if clusters is not None:
        label, own = clusters.along(episode, rows, between)
    out = []
    for t in range(rows):
        row: dict[str, Any] = {"episode": episode, "agent": which["agent"], "t": t, "tick": which["first_tick"] + t}
        # The shortest text that gives the same float32 back.
        row |= {name: float(str(np.float32(x[t]))) for name, x in life.items() if name != "tick"}
        row |= {name.replace(" ", "_"): int(happens[t]) for name, happens in events.items()}
        if label is not None and own is not None:
            row |= {"label": int(label[t]), "clustered": int(own[t])}
        out.append(row)
    return out


def main(config: LifeConfig) -> None:
    cli.require(0, num_agents=config.num_agents, seed=config.seed)
    with open_lives(config.extraction) as store:
        chosen = choose(store.steps, config.num_agents, config.episodes, config.seed)
        clusters = None if config.cluster_dir is None else read_clusters(config.cluster_dir, config.extraction)
        result = Result(notes={"between": config.between, "features": feature_names(store)})
        world_E = worlds_of(store)
        lives = [about(store, e, int(world_E[e])) for e in chosen]
        rows = {life["episode"]: timeline(store, life, clusters, config.between) for life in lives}
        record_lifespans(result, store.steps, store.terminated)
        result.tables["timeline"] = [row for e in chosen for row in rows[e]]
        result.tables["lives"] = [{**life, **summary(rows[life["episode"]])} for life in lives]
    inputs = {"extraction": config.extraction} | (
        {} if config.cluster_dir is None else {"clusters": config.cluster_dir}
    )
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result.save(run.path)
        colours = label_colours([row["label"] for row in result.tables["timeline"] if "label" in row])
        for life in lives:
            figure = draw_life(life, rows[life["episode"]], colours, config.between)
            figure.savefig(run.path / f"life_{life['episode']}.png", dpi=110)
        if len(lives) > 1:
            draw_lives(lives, rows, colours, config.between).savefig(run.path / "lives.png", dpi=110)
    p75 = result.scalars["lifespan_p75"]
    low, high = p75["interval"]  # None, None of a single life
    between = "" if low is None else f" [{low:.0f}, {high:.0f}]{few(p75['n'])}"
    print(f"75 % of {p75['n']} lives last at most {p75['value']:.0f} ticks{between}; drawn: {config.out}")
    for life in lives:
        print(f"  {named(life)}: {life['lifespan']} ticks, {life['ended']}")


def record_lifespans(result: Result, steps_E: np.ndarray, terminated_E: np.ndarray) -> None:
    """Scalars ``lifespan_p75`` and ``died``.  Lives that were cut off lasted at least so long."""
    lifespan = quantile_interval(steps_E, QUANTILE)
    result.scalar("lifespan_p75", lifespan.value, "ticks", lifespan.n, lifespan.interval)
    died = share_of(terminated_E, np.arange(len(terminated_E)))
    result.scalar("died", died.value, "share of lives", died.n, died.interval)
    result.notes["intervals"] = (
        "95 %, lives as units; agents of one world meet and compete, so where one world gives many lives they are "
        "narrower than they should be"
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One life in numbers: how many ticks of every event, how many clustered ones, how often the cluster changes."""
    out = {f"{event}_ticks": sum(row[name] for row in rows)
           for event, _ in EVENTS if (name := event.replace(" ", "_")) in rows[0]}  # fmt: skip
    out = {name.replace(" ", "_"): count for name, count in out.items()}
    if "label" in rows[0]:
        own = [row["label"] for row in rows if row["clustered"]]
        out |= {"clustered_ticks": len(own), "changes": sum(a != b for a, b in zip(own, own[1:], strict=False))}
    return out


# Figures


def _runs(labels: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first, one past the last, label) of every stretch of one label."""
    x = np.asarray(labels)
    edges = np.r_[0, np.flatnonzero(np.diff(x)) + 1, len(x)]
    return [(int(a), int(b), int(x[a])) for a, b in zip(edges[:-1], edges[1:], strict=True)]


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


if __name__ == "__main__":
    cli.run(LifeConfig, main, STAGE)
