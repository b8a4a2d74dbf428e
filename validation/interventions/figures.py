"""Pictures and videos of a study, drawn from its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from core.artefacts import Result
from core.figures import BAND, LINE, MEMORY, REAL, SIMULATED, enlarged, figure_of
from core.pages import label_colours
from core.stats import FEW_UNITS, between, few
from core.video import write_video
from validation.interventions.statistics import spread_to_rank_by
from validation.interventions.verdicts import LEAST_STARTS
from validation.paired.course import family_of, in_words, is_late

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCALE = 2  # screen pixels a frame pixel
PANELS = ("real", "real, changed", "simulated", "simulated, changed")
FPS = 2
MOST = 12  # rows of needs.png: those that stand out of the random changes most in the real world


def draw_effects(result: Result, path: Path, top: int = 4) -> None:
    """Dose-response, a row a direction: of what is claimed of it and the late quantities that the simulator predicts to
    move most; of shifts that are made once or, where there are none, always; beside both worlds what the agent's memory
    alone does.  No file where no direction was shifted by itself, in doses."""
    shifts = [
        r for r in result.tables["effects"]
        if r["kind"] == "shift" and r["amount"] is not None and is_late(r["quantity"])
    ]  # fmt: skip
    named = {r["hypothesis"]: f"shift {r['direction']} by {r['amount']:+g}" for r in shifts}
    always = not any(own == name for own, name in named.items())
    rows = [r for r in shifts if r["hypothesis"] == named[r["hypothesis"]] + (" always" if always else "")]
    directions = list(dict.fromkeys(r["direction"] for r in rows))
    if not directions:
        return
    doses = [
        d for d in result.tables["doses"]
        if is_late(d["quantity"]) and d["spread"] > 0 and d["point"] in directions and not d["own"]
    ]  # fmt: skip
    claimed = {(c.get("direction"), c.get("quantity")) for c in result.notes["claims"] if c.get("headline")}
    doses.sort(key=lambda d: (
        (d["direction"], d["quantity"]) not in claimed,
        -abs(d["predicted_simulated"]) / spread_to_rank_by(d["quantity"], d["spread"]),
    ))  # fmt: skip
    chosen = {i: [d for d in doses if d["direction"] == i][:top] for i in directions}
    if not any(chosen.values()):  # of held changes in words each stands for itself
        return
    columns = max(len(c) for c in chosen.values())
    figure = figure_of(3.2 * columns, 2.9 * max(1, len(directions)))
    axes = figure.subplots(max(1, len(directions)), columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for row, i in enumerate(directions):
        for column, dose in enumerate(chosen[i]):
            ax, q = axes[row][column], dose["quantity"]
            ax.set_axis_on()
            ax.axhline(0, color=LINE, lw=0.8)
            for world, colour in (("real", REAL), ("simulator", SIMULATED)):
                mine = sorted(
                    (r for r in rows if r["direction"] == i and r["quantity"] == q and r["world"] == world),
                    key=lambda r: r["amount"],
                )
                _draw_course(ax, mine, world, colour)
            ax.set_title(fill(f"{i}: {in_words(q)}", 44), fontsize=8)
            ax.set_ylabel(f"change ({dose['unit'].partition(' per')[0]})", fontsize=8)
            ax.set_xlabel(f"standard deviations added{' at every step' if always else ''}", fontsize=8)
            ax.tick_params(labelsize=7)
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)


def _draw_course(ax: Axes, rows: Sequence[Mapping[str, Any]], world: str, colour: str) -> None:
    """Effects in one world by amount, through the amount that changes nothing."""
    x = [r["amount"] for r in rows]
    name = "real world" if world == "real" else "simulator"
    if world == "real":
        at, low, high = _through_zero(x, [r["random_low"] for r in rows], [r["random_high"] for r in rows])
        ax.fill_between(at, low, high, color=BAND, label="controls (95 %)")
        if all(r["memory"] is not None for r in rows):
            at, memory = _through_zero(x, [r["memory"] for r in rows])
            ax.plot(at, memory, color=MEMORY, lw=1, ls="--", label="real world, by memory alone")
    at, y = _through_zero(x, [r["observed"] for r in rows])
    ax.plot(at, y, color=colour, lw=1)
    spread = [[r["observed"] - r["low"] for r in rows], [r["high"] - r["observed"] for r in rows]]
    around = {"ms": 3} if world == "real" else {"ms": 6, "mfc": "none"}  # where both worlds agree both are seen
    ax.errorbar(x, [r["observed"] for r in rows], spread, color=colour, marker="o", lw=0, elinewidth=1, capsize=2,
                label=name, **around)  # fmt: skip


def _through_zero(x: Sequence[float], *ys: Sequence[float]) -> list[list[float]]:
    """Amounts and effects with the amount 0, whose effect is 0, where it lies between two others."""
    if 0 in x or not min(x) < 0 < max(x):
        return [list(x), *map(list, ys)]
    at = sum(a < 0 for a in x)
    return [[*v[:at], 0.0, *v[at:]] for v in (x, *ys)]


HEADLINE = (
    ("predicted_jacobian", "simulator", "_jacobian_simulator", "Jacobian, against the simulator"),
    ("predicted_jacobian", "real", "_jacobian", "Jacobian, against the real world"),
    ("predicted_simulated", "real", "", "simulator, against the real world"),
)


def draw_headline(result: Result, path: Path) -> None:
    """Predicted against observed, a point a (change, late quantity), in spreads of the quantity: the first order of the
    simulator against what the simulator does, against what the real world does, and the two worlds."""
    doses = [
        d for d in result.tables["doses"]
        if is_late(d["quantity"]) and d["spread"] > 0 and family_of(d["quantity"]) != "events"
        and not d["own"]
    ]  # fmt: skip
    shown = [of for of in HEADLINE if f"sign_agreement{of[2]}" in result.scalars]
    figure = figure_of(4.2 * max(1, len(shown)), 4.7)
    axes = figure.subplots(1, max(1, len(shown)), squeeze=False)[0]
    labels = list(dict.fromkeys(str(d["point"]) for d in doses))
    colours = list(label_colours(range(len(labels))).values())
    ends = [d[k] / d["spread"] for d in doses for k in ("predicted_simulated", "observed") if d[k] is not None]
    reach = 1.08 * max((abs(x) for x in ends), default=1.0) or 1.0
    for ax, (key, world, suffix, title) in zip(axes, shown, strict=False):
        ax.axhline(0, color=LINE, lw=0.8)
        ax.axvline(0, color=LINE, lw=0.8)
        seen = (
            ("observed", "low", "high")
            if world == "real"
            else ("predicted_simulated", "simulated_low", "simulated_high")
        )
        for label, colour in zip(labels, colours, strict=True):
            mine = [d for d in doses if str(d["point"]) == label and d[key] is not None]
            y, low, high = (np.array([_over(d[k], d["spread"]) for d in mine]) for k in seen)
            x = [d[key] / d["spread"] for d in mine]
            ax.errorbar(x, y, [y - low, high - y], fmt="o", ms=3, lw=0.6, color=colour, alpha=0.8, label=label)
        ax.axline((0, 0), slope=1, color=LINE, lw=0.8, ls="--")
        ax.set_xlim(-reach, reach)
        ax.set_ylim(-reach, reach)
        ax.set_xlabel("predicted (spreads of the quantity)", fontsize=8)
        ax.set_ylabel(f"observed in the {'real world' if world == 'real' else 'simulator'}", fontsize=8)
        ax.tick_params(labelsize=7)
        said = [title]
        for word, name in (("sign", "sign_agreement"), ("rank", "rank_correlation"), ("slope", "slope")):
            if name + suffix in result.scalars:
                p = result.scalars[f"{name}{suffix}_p"]["value"]
                by_chance = "" if p is None else f"; p = {p:.2g}, exchanged among directions"
                said.append(f"{word} {short(result.scalars[name + suffix])}{by_chance}")
        ax.set_title("\n".join(said), fontsize=7.5)
    if labels:
        columns = min(8 if max(map(len, labels)) < 12 else 3, len(labels))
        handles = axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=columns, fontsize=7, frameon=False)
    figure.savefig(path, dpi=120)


def _over(x: float | None, spread: float) -> float:
    return float("nan") if x is None else x / spread


def draw_needs(result: Result, path: Path) -> None:
    """What each event needs: shares prevented or brought about in the real world, what the simulator foretold, and the
    bands of controls; no file where no event could be prevented or brought about."""
    rows = [r for r in result.tables["needs"] if r.get("random_high") is not None and r["n"] >= LEAST_STARTS]
    rows = sorted(rows, key=lambda r: r["random_high"] - r["share"])[:MOST]
    if not rows:
        return
    figure = figure_of(9, 0.9 + 0.34 * len(rows))
    ax = figure.subplots()
    for y, r in enumerate(rows):
        known = y > 0  # the legend names each once
        ax.barh(y, r["random_high"] - r["random_low"], 0.6, r["random_low"], color=BAND,
                label=None if known else "controls (95 %)")  # fmt: skip
        ax.errorbar(
            r["share"], y - 0.12, xerr=[[r["share"] - r["low"]], [r["high"] - r["share"]]], fmt="o", ms=4,
            color=REAL, lw=1, capsize=2, label=None if known else "real world",
        )  # fmt: skip
        ax.plot(r["foretold"], y + 0.14, "D", ms=4, color=SIMULATED, label=None if known else "simulator foretold")
    words = {"necessary": "prevents", "sufficient": "brings about"}
    ax.set_yticks(range(len(rows)), [f"{r['hypothesis']} {words[r['role']]} {r['event']}" for r in rows], fontsize=7)
    ax.invert_yaxis()
    ax.set_xlabel("share of the starts at which it could", fontsize=8)
    ax.tick_params(axis="x", labelsize=7)
    ax.set_xlim(left=0)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)


def draw_claims(result: Result, path: Path) -> None:
    """Claims of a study without a simulator: the effect seen and the bands of its controls, in spreads of the quantity;
    no file where there is none."""
    rows = [c for c in result.notes["claims"] if c.get("spread")]
    if not rows:
        return
    figure = figure_of(9, 1.1 + 0.34 * len(rows))
    ax = figure.subplots()
    ax.axvline(0, color=LINE, lw=0.8)
    for y, r in enumerate(rows):
        if r.get("random_n"):
            low, high = r["random_low"] / r["spread"], r["random_high"] / r["spread"]
            ax.barh(y, high - low, 0.6, low, color=BAND, label=None if y else "controls (95 %)")
        at, ends = r["observed"] / r["spread"], (r["low"] / r["spread"], r["high"] / r["spread"])
        ax.errorbar(at, y, xerr=[[at - ends[0]], [ends[1] - at]], fmt="o", ms=4, color=REAL, lw=1, capsize=2,
                    label=None if y else "real world")  # fmt: skip
    names = [fill(f"{r['hypothesis']}: {in_words(r['quantity'])} ({r['verdict']})", 60) for r in rows]
    ax.set_yticks(range(len(rows)), names, fontsize=7)
    ax.invert_yaxis()
    ax.set_xlabel("effect (spreads of the quantity over the unaltered starts)", fontsize=8)
    ax.tick_params(axis="x", labelsize=7)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)


def short(scalar: Mapping[str, Any]) -> str:
    """Such as 0.91 [0.86, 0.96]."""
    middle, (low, high) = scalar["value"], scalar.get("interval") or (None, None)
    if middle is None:
        return "undefined"
    return f"{middle:.2f}{between(low, high, '.2f')}{few(scalar.get('n') or FEW_UNITS)}"


def write_videos(result: Result, path: Path) -> None:
    """``paired_NUMBER.mp4`` for every filmed claim: real and simulated, without and with the change, a row a start."""
    for number, claim in enumerate(c for c in result.notes["claims"] if "filmed" in c):
        film = result.arrays[f"film/{number}"]
        effects = [shown["effect"] for shown in claim["filmed"]]
        what = f"{claim['hypothesis']}: effect on {claim.get('quantity') or claim.get('event')}"
        write_video(path / f"paired_{number}.mp4", list(_screens(film, what, effects)), FPS)


def _screens(film: np.ndarray, what: str, effects: Sequence[float]) -> list[np.ndarray]:
    """Frames uint8 for film [starts, 4, T, H, W, 3]; the first, which shows the changed start, is held for a while."""
    from PIL import Image, ImageDraw

    starts, panels, steps, height, width = film.shape[:5]
    top, left, gap = 28, 64, 6
    wide, high = left + panels * (width * SCALE + gap), top + starts * (height * SCALE + gap)
    wide, high = -(-wide // 16) * 16, -(-high // 16) * 16
    out = []
    for t in range(steps):
        page = Image.new("RGB", (wide, high), "white")
        draw = ImageDraw.Draw(page)
        draw.text((4, 1), f"step {t}   {what}", fill="black")
        for p, name in enumerate(PANELS):
            draw.text((left + p * (width * SCALE + gap), 14), name, fill="black")
        for n in range(starts):
            y = top + n * (height * SCALE + gap)
            draw.text((4, y + 4), f"effect\n{effects[n]:+.3g}", fill="black")
            for p in range(panels):
                picture = enlarged(film[n, p, t], width * SCALE, height * SCALE)
                page.paste(picture, (left + p * (width * SCALE + gap), y))
        out += [np.asarray(page)] * (3 if t == 0 else 1)
    return out
