"""Figures of analysis.probes, drawn from a saved Result alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from core.artefacts import Result, column_of
from core.figures import (
    BAND,
    BOTH,
    HELD,
    INK,
    LINE,
    MEMORY,
    MEMORY_DEEP,
    MEMORY_PALE,
    REAL,
    SEQUENTIAL,
    USUAL,
    WORLD,
    figure_of,
    minus,
)
from core.pages import label_colours
from core.words import counted, plural

READINGS = (  # column, what it is called, colour
    ("linear", "linear probe", MEMORY),
    ("mlp", "network", MEMORY_PALE),
    ("partial", "linear probe, confounders partialled out", MEMORY_DEEP),
    ("observation", "own observation alone (linear)", WORLD),
    ("everything", "state, frame, time and previous actions", REAL),
    ("all", "frame, time and previous actions", BOTH),
    ("action", "frame and previous actions", HELD),
    ("frame", "the frame alone", WORLD),
    ("random", "the agent with its weights shuffled", BAND),
    ("time", "time alone", USUAL),
)
LOWEST = -0.25  # what lies below is drawn there
MOST_LINES = 12  # targets in emergence.png


def draw(result: Result) -> dict[str, Any]:
    """{file name: Figure}."""
    figures = {"probes.png": draw_readings(result)}
    if any(row.get("partial") is not None for row in result.tables["targets"]):
        figures["mediation.png"] = draw_mediation(result)
    if "inputs" in result.tables:
        figures["inputs.png"] = draw_inputs(result)
    if "emergence" in result.tables:
        figures["emergence.png"] = draw_emergence(result)
    if "agents" in result.tables:
        figures["agents.png"] = draw_agents(result)
    return figures


def draw_inputs(result: Result) -> Any:
    """Heat map, a row a target and a column an input: the score above what says nothing, as a share of what is
    left to 1."""
    table = result.tables["inputs"]
    targets = list(dict.fromkeys(row["target"] for row in table))
    inputs = list(dict.fromkeys(row["input"] for row in table))
    score_KI = np.full((len(targets), len(inputs)), np.nan)
    for row in table:
        if row["score"] is not None:
            chance = row.get("chance") or 0.0
            at = targets.index(row["target"]), inputs.index(row["input"])
            score_KI[at] = (row["score"] - chance) / (1 - chance)
    figure = figure_of(3.2 + 0.75 * len(inputs), 1.6 + 0.22 * len(targets))
    axis = figure.subplots()
    image = axis.imshow(score_KI.clip(0, 1), cmap=SEQUENTIAL, vmin=0, vmax=1, aspect="auto")
    for (k, i), value in np.ndenumerate(score_KI):
        if np.isfinite(value):
            axis.text(i, k, minus(f"{value:.2f}"), ha="center", va="center", fontsize=7,
                      color="w" if value < 0.6 else INK)  # fmt: skip
    axis.set_xticks(range(len(inputs)), inputs, rotation=30, ha="right", fontsize=8)
    axis.set_yticks(range(len(targets)), [t.replace("_", " ") for t in targets], fontsize=8)
    bar = figure.colorbar(image, ax=axis, shrink=0.6)
    bar.set_label("R², or balanced accuracy\nabove chance (1: all)", fontsize=8)
    axis.set_xlabel(f"linear probes, {plural(result.notes['unit'])} held out", fontsize=8)
    return figure


def draw_emergence(result: Result) -> Any:
    """Score of the targets from recording to recording (checkpoints in their order), a panel an input; of more than
    MOST_LINES the ones whose score from the first input moves most."""
    table = [row for row in result.tables["emergence"] if row["kind"] != "control"]
    inputs = list(dict.fromkeys(row["input"] for row in table))
    names = list(dict.fromkeys(row["recording"] for row in table))
    targets = list(dict.fromkeys(row["target"] for row in table))
    asked = len(targets)
    if asked > MOST_LINES:
        moved = {t: np.ptp([r["score"] for r in table if (r["input"], r["target"]) == (inputs[0], t)]) for t in targets}
        most = sorted(targets, key=lambda t: -moved[t])[:MOST_LINES]
        targets = [t for t in targets if t in most]
    colours = label_colours(np.arange(len(targets)))
    figure = figure_of(2.5 + 2.6 * len(inputs), 4.2)
    panels = figure.subplots(1, len(inputs), sharey=True, squeeze=False)[0]
    for axis, given in zip(panels, inputs, strict=True):
        for k, target in enumerate(targets):
            rows = [row for row in table if (row["input"], row["target"]) == (given, target)]
            value, low, high = _columns(rows, "score")
            x = np.array([names.index(row["recording"]) for row in rows]) + 0.2 * (k / max(1, len(targets) - 1) - 0.5)
            axis.plot(x, value.clip(LOWEST), "o-", color=colours[k], markersize=3, linewidth=1, label=target)
            axis.vlines(x, low.clip(LOWEST), high.clip(LOWEST), color=colours[k], linewidth=0.8)
        axis.set_title(given, fontsize=9)
        axis.axhline(0, color=INK, linewidth=0.6)
        axis.set_xticks(range(len(names)), [_trained(name) for name in names], rotation=30, ha="right", fontsize=8)
        axis.grid(axis="y", color=LINE)
        axis.set_ylim(LOWEST - 0.05, 1.05)
    panels[0].set_ylabel("R², or balanced accuracy", fontsize=8)
    if asked > len(targets):
        figure.supxlabel(
            f"the {len(targets)} of {asked} quantities whose score from {inputs[0]} moves most", fontsize=8
        )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=7, frameon=False)
    return figure


def _trained(name: str) -> str:
    """A checkpoint by its steps of training."""
    number = name.removeprefix("checkpoint_")
    return f"{int(number) / 1e6:.2g} M steps" if number != name and number.isdigit() else name


def draw_groups(result: Result) -> Any:
    """Of analysis.probes.over_agents: every agent as a point, every group's mean with its interval, a panel a
    measure."""
    means, agents = result.tables["groups"], result.tables["agents"]
    targets = list(dict.fromkeys(row["target"] for row in means))
    names = list(result.notes["groups"])
    colours = label_colours(np.arange(len(names)))
    figure = figure_of(2.5 + 3.4 * len(result.notes["measures"]), 1.6 + 0.13 * (len(names) + 1) * len(targets))
    panels = figure.subplots(1, len(result.notes["measures"]), sharey=True, squeeze=False)[0]
    for axis, measure in zip(panels, result.notes["measures"], strict=True):
        for g, name in enumerate(names):
            rows = [row for row in means if (row["measure"], row["group"]) == (measure, name)]
            value, low, high = _columns(rows, "value")
            y = {row["target"]: targets.index(row["target"]) + 0.8 * ((g + 0.5) / len(names) - 0.5) for row in rows}
            axis.plot(value, list(y.values()), "|", color=colours[g], markersize=8, label=f"{name}, mean")
            axis.hlines(list(y.values()), low, high, color=colours[g], linewidth=1)
            each = [row for row in agents if (row["measure"], row["group"]) == (measure, name) and row["target"] in y]
            axis.plot([row["value"] for row in each], [y[row["target"]] for row in each], "o", color=colours[g],
                      markersize=3)  # fmt: skip
        axis.set_title(measure, fontsize=9)
        axis.axvline(0, color=INK, linewidth=0.6)
        axis.grid(axis="x", color=LINE)
    panels[0].set_yticks(range(len(targets)), [t.replace("_", " ") for t in targets], fontsize=8)
    panels[0].set_ylim(len(targets) - 0.4, -0.6)
    figure.supxlabel("R², or balanced accuracy, or their difference; points: agents; 95 % intervals over agents",
                     fontsize=8)  # fmt: skip
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=min(4, len(names)),
                  fontsize=8, frameon=False)  # fmt: skip
    return figure


def draw_agents(result: Result) -> Any:
    """R^2 of every target, agent by agent (checkpoints in their order), with 95 % intervals."""
    table = result.tables["agents"]
    agents = list(dict.fromkeys(row["agent"] for row in table))
    targets = list(dict.fromkeys(row["target"] for row in table))
    figure = figure_of(2.5 + 0.9 * max(4, len(agents)), 4.2)
    axis = figure.subplots()
    colours = label_colours(np.arange(len(targets)))
    for k, target in enumerate(targets):
        rows = [row for row in table if row["target"] == target]
        value, low, high = _columns(rows, "r2")
        x = np.array([agents.index(row["agent"]) for row in rows]) + 0.3 * (k / max(1, len(targets) - 1) - 0.5)
        axis.plot(x, value.clip(LOWEST), "o-", color=colours[k], markersize=4, linewidth=1, label=target)
        axis.vlines(x, low.clip(LOWEST), high.clip(LOWEST), color=colours[k], linewidth=1)
    axis.axhline(0, color=INK, linewidth=0.6)
    axis.set_xticks(range(len(agents)), agents, rotation=30, ha="right", fontsize=8)
    axis.set_ylabel(f"variance explained (R²) on {plural(result.notes['unit'])} held out", fontsize=8)
    axis.grid(axis="y", color=LINE)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _rows(result: Result) -> list[dict[str, Any]]:
    """The targets that vary, best read last (matplotlib draws upwards)."""
    rows = [row for row in result.tables["targets"] if row.get("linear") is not None]
    return sorted(rows, key=lambda row: row["linear"])


def _constant(result: Result) -> str:
    names = [row["target"] for row in result.tables["targets"] if row["verdict"] == "constant"]
    return f"\nnever changed, so not drawn: {', '.join(names)}" if names else ""


def _columns(rows: Sequence[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, low and high of a reading; NaN where there is none."""
    value, low, high = (column_of(rows, f"{name}{end}") for end in ("", "_low", "_high"))
    return value, low, high


def draw_readings(result: Result) -> Any:
    """Bars of R^2 with 95 % intervals: every reading of every target, and what exchanged targets reach."""
    rows = _rows(result)
    shown = [r for r in READINGS if any(row.get(r[0]) is not None for row in rows)]
    height = 0.8 / len(shown)
    figure = figure_of(8.5, 1.8 + 0.1 * (len(shown) + 1.5) * len(rows))
    axis = figure.subplots()
    place = np.arange(len(rows))
    for i, (name, label, colour) in enumerate(shown):
        value, low, high = _columns(rows, name)
        y = place + 0.4 - (i + 0.5) * height
        axis.barh(y, value.clip(LOWEST), height * 0.92, color=colour, label=label)
        axis.hlines(y, low.clip(LOWEST), high.clip(LOWEST), color=INK, linewidth=0.9)
        for x, at in zip(value, y, strict=True):
            if x < LOWEST:
                axis.text(LOWEST, at, minus(f" {x:.2f} "), ha="left", va="center", fontsize=6, color="w")
    chance = _columns(rows, "linear_shuffled")[0], _columns(rows, "linear_shuffled_high")[0]
    axis.vlines(np.maximum(*chance), place - 0.42, place + 0.42, color=INK, linewidth=1.6,
                label="95 % of exchanged targets, linear probe")  # fmt: skip
    axis.axvline(0, color=INK, linewidth=0.6)
    axis.set_yticks(place, [_label(row) for row in rows], fontsize=8)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    drawn = [_columns(rows, name)[k] for name, _, _ in shown for k in (0, 1)]
    axis.set_xlim(max(LOWEST, min(-0.02, float(np.nanmin(np.concatenate(drawn))) - 0.02)), 1.02)
    axis.set_xlabel(
        f"variance explained (R²) on {plural(result.notes['unit'])} held out (95 % interval over "
        f"{counted(result.notes['units'], result.notes['unit'])}; {result.notes['rows']:,} states){_constant(result)}",
        fontsize=8,
    )  # fmt: skip
    axis.grid(axis="x", color=LINE)
    axis.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return figure


def _label(row: dict[str, Any]) -> str:
    area = row.get("auroc_linear")
    name = row["target"].replace("_", " ")
    return name if area is None else f"{name}\n(AUROC {area:.2f})"


def draw_mediation(result: Result) -> Any:
    """How much of a target the confounders say, and what the states say beyond them; the probe alone as a mark."""
    rows = [row for row in _rows(result) if row.get("partial") is not None]
    figure = figure_of(8.5, 1.8 + 0.34 * len(rows))
    axis = figure.subplots()
    place = np.arange(len(rows))
    given = _columns(rows, "given")[0]
    unique, low, high = _columns(rows, "unique")
    base = given.clip(0)  # what says nothing is drawn as nothing
    axis.barh(place, base, 0.6, color=USUAL, label=f"said by {', '.join(result.notes['given'])} alone")
    axis.barh(place, unique.clip(0), 0.6, left=base, color=MEMORY, label="added by the states")
    axis.hlines(place - 0.13, (base + low).clip(0), (base + high).clip(0), color=INK, linewidth=0.9)
    value, probe_low, probe_high = _columns(rows, "linear")
    axis.hlines(place + 0.13, probe_low.clip(0), probe_high.clip(0), color=INK, linewidth=1)
    axis.plot(value.clip(0), place + 0.13, "o", color=INK, markersize=5, label="linear probe of the states alone")
    axis.set_yticks(place, [row["target"].replace("_", " ") for row in rows], fontsize=8)
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlim(0, 1.02)
    axis.set_xlabel(
        f"share of the quantity's variance (R² on {plural(result.notes['unit'])} held out, 95 % intervals); a quantity "
        "that is itself given is given the others", fontsize=8,
    )  # fmt: skip
    axis.grid(axis="x", color=LINE)
    axis.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return figure
