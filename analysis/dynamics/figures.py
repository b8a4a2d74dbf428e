"""Figures of analysis.dynamics, drawn from its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.dynamics.modes import time_constant
from core.artefacts import Result
from core.episodes import RolloutStore
from core.figures import BAND, HELD, INK, LINE, MEMORY, MEMORY_PALE, REAL, USUAL, as_rgb, figure_of
from core.words import counted

COLOURS = {"stable": MEMORY, "saddle": MEMORY_PALE, "unstable": INK, "marginal": USUAL}


def draw_points(result: Result, frames: Sequence[np.ndarray | None]) -> Any:
    """A panel an input: its points and the recorded states in the plane of the states' first two components."""
    a = result.arrays
    z_MH = (a["states"] - a["mean"]) / a["std"]
    plane_H2 = np.linalg.svd(z_MH - z_MH.mean(0), full_matrices=False)[2][:2].T
    plane_H2 = np.pad(plane_H2, ((0, 0), (0, 2 - plane_H2.shape[1])))  # of one number: a line
    xy_M2, points_P2 = z_MH @ plane_H2, ((a["points"] - a["mean"]) / a["std"]) @ plane_H2
    inputs = result.notes["inputs"]
    columns = min(4, len(inputs))
    rows = -(-len(inputs) // columns)
    figure = figure_of(3.4 * columns, 3.5 * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for number, (axis, one) in enumerate(zip(axes, inputs, strict=False)):
        axis.scatter(*xy_M2.T, s=1, color=BAND, linewidths=0)
        for row, (x, y) in zip(result.tables["points"], points_P2, strict=True):
            if row["input"] == number:
                fixed = row["kind"] == "fixed"
                axis.plot(x, y, "o" if fixed else "s", color=COLOURS[row["stability"]], markersize=5 if fixed else 4,
                          markerfacecolor=None if fixed else "none")  # fmt: skip
        mine = [r for r in result.tables["points"] if r["input"] == number]
        axis.set_title(f"{one['name']}: {counted(len(mine), 'point')}", fontsize=8)
        if (frame := frames[number]) is not None:
            inset = axis.inset_axes((0.72, 0.72, 0.28, 0.28))
            inset.imshow(as_rgb(frame))
            inset.set_axis_off()
    for axis in axes[len(inputs) :]:
        axis.axis("off")
    for name, colour in COLOURS.items():
        axes[0].plot([], [], "o", color=colour, label=name)
    axes[0].plot([], [], "s", color=INK, markerfacecolor="none", label="slow, not fixed")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.suptitle(
        "Fixed points of the memory under constant inputs (grey: recorded states; plane: two principal components)",
        fontsize=10,
    )
    return figure


def draw_eigenvalues(result: Result, slow_steps: float) -> Any:
    """Eigenvalues at every point in the complex plane, and the time constants they mean."""
    figure = figure_of(9.5, 4.3)
    left, right = figure.subplots(1, 2)
    turn = np.linspace(0, 2 * np.pi, 200)
    left.plot(np.cos(turn), np.sin(turn), color=LINE, linewidth=0.8)
    for row, values in zip(result.tables["points"], result.arrays["eigenvalues"], strict=True):
        colour = COLOURS[row["stability"]]
        left.plot(values.real, values.imag, ".", color=colour, markersize=4, alpha=0.6)
        tau = np.sort([time_constant(v) for v in values if abs(v) < 1])[::-1]
        right.plot(np.arange(1, len(tau) + 1), tau, color=colour, linewidth=0.8, alpha=0.6)
    left.set(xlabel="real part", ylabel="imaginary part", title="Eigenvalues (circle: neither grows nor shrinks)")
    left.set_aspect("equal")
    right.axhline(slow_steps, color=LINE, linestyle="--", linewidth=0.8)
    right.text(1, slow_steps * 1.05, "slow", fontsize=8, color=HELD)
    right.set(xlabel="decaying mode, slowest first", ylabel="time constant (steps)", yscale="log",
              title="Time constants (a line a point)")  # fmt: skip
    for name, colour in COLOURS.items():
        if any(row["stability"] == name for row in result.tables["points"]):
            right.plot([], [], color=colour, label=name)
    if result.tables["points"]:
        right.legend(frameon=False, fontsize=8)
    return figure


def draw_exponents(result: Result) -> Any:
    """What is left of a difference of memory, step by step; and the Lyapunov spectrum along recorded episodes and under
    every constant input."""
    figure = figure_of(12, 4)
    left, axis = figure.subplots(1, 2)
    rows = result.tables["left"]
    step, share, low, high = (np.array([r[c] for r in rows], float) for c in ("steps", "left", "low", "high"))
    left.plot(step, share, color=REAL, linewidth=2)
    left.fill_between(step, low, high, color=REAL, alpha=0.3, linewidth=0)
    left.axhline(1 / np.e, color=LINE, linewidth=0.8, linestyle="--")
    left.annotate("1/e", (step[-1], 1 / np.e), fontsize=8, ha="right", va="bottom")
    left.set(
        xlabel="steps under the same frames", ylabel="share of a small difference", ylim=(0, None),
        title=f"What is left of a difference of memory ({rows[0]['n']} episodes)",
    )  # fmt: skip
    axis.axhline(0, color=LINE, linewidth=0.8)
    for name in dict.fromkeys(row["input"] for row in result.tables["lyapunov"]):
        rows = [row for row in result.tables["lyapunov"] if row["input"] == name]
        x, value, low, high = (np.array([r[c] for r in rows], float) for c in ("exponent", "value", "low", "high"))
        if name == "recorded":
            axis.plot(x + 1, value, color=REAL, linewidth=2, label=f"recorded episodes ({rows[0]['n']})", zorder=3)
            axis.fill_between(x + 1, low, high, color=REAL, alpha=0.3, linewidth=0)
        else:
            label = "constant inputs" if name == "input 0" else None
            axis.plot(x + 1, value, color=HELD, linewidth=0.8, label=label)
    axis.set(
        xlabel="exponent, the largest first",
        ylabel="growth of a difference (nats a step)",
        title="Lyapunov exponents (below 0: differences of memory fade)",
    )
    axis.legend(frameon=False, fontsize=8)
    return figure


def draw(result: Result, store: RolloutStore, path: Path, slow_steps: float) -> None:
    """``points.png``, ``eigenvalues.png``, ``lyapunov.png``."""
    name = store.spec.picture
    frames = [
        None if name is None or one["where"] is None
        else store.read_windows([f"obs/{name}"], np.array([one["where"]]), 1)[f"obs/{name}"][0, 0]
        for one in result.notes["inputs"]
    ]  # fmt: skip
    draw_points(result, frames).savefig(path / "points.png", dpi=110)
    draw_eigenvalues(result, slow_steps).savefig(path / "eigenvalues.png", dpi=110)
    draw_exponents(result).savefig(path / "lyapunov.png", dpi=110)
