"""Figures and videos of a fidelity run, drawn from its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from core.artefacts import Result, column_of
from core.figures import (
    FORCED,
    HELD,
    REAL,
    SEQUENTIAL,
    SIMULATED,
    USUAL,
    are_pictures,
    as_rgb,
    figure_of,
    fitted,
    font_of,
)
from core.files import save_picture
from core.video import write_video

SHOWN = (1, 2, 4, 8, 16, 24, 32)  # horizons in printed tables and in the strip
TILE, GAP, MARGIN, HEAD = 128, 6, 92, 46  # pixels of a video's grid
FPS = 4


WORDS = {"free-running": "simulator on its own", "teacher-forced": "simulator shown every real frame"}


class Panel(NamedTuple):
    """One of the small multiples."""

    title: str
    better: str
    unit: str
    lines: tuple[tuple[str, str], ...]  # measure, colour


def _both(measure: str) -> tuple[tuple[str, str], ...]:
    return ((measure, SIMULATED), (f"{measure}_teacher_forced", FORCED))


PANELS = (
    Panel("Frames, pixel by pixel", "higher", "PSNR (dB)", _both("frame_psnr")),
    Panel("Frames, by structure", "higher", "SSIM (1: equal)", _both("frame_ssim")),
    Panel("Agent picks the same action", "higher", "share of steps", _both("action_agreement")),
    Panel("Agent's value is off by", "lower", "return", _both("value_error")),
    Panel("Agent's memory is off by", "lower", "variances", _both("h_error")),
    Panel("Held action is recognised", "higher", "share of snapshots", (("counterfactual_top1", SIMULATED),)),
    Panel("Gradients have the real sign", "higher", "share of signs", (("gradient_sign_action", SIMULATED),)),
    Panel("... through the world (straight-through)", "higher", "share of signs",
          (("gradient_sign_action_through_world", SIMULATED),)),
    Panel("Effects through the world (enumerated)", "higher", "share of signs", (("effect_sign_action", SIMULATED),)),
    Panel("Frames better under the right actions", "higher", "dB", (("delta_psnr", SIMULATED),)),
    Panel("Error under another policy's actions", "1 is best", "ratio to the agent's own",
          (("policy_dependence", SIMULATED),)),
)  # fmt: skip


def draw(result: Result, path: Path, action_names: Sequence[str], video: bool) -> None:
    """Every figure that the result has the data for."""
    draw_horizons(result, path / "horizons.png")
    draw_calibration(result, path / "calibration.png")
    draw_lives(result, path / "dreams.png", action_names)
    if "counterfactual_confusion" in result.arrays:
        draw_confusion(result, path / "confusion.png")
    if not are_pictures(result.arrays["strip_real"], 2):
        return
    draw_strip(result, path / "strip.png")
    paired = paired_frames(result, action_names)
    tried = tried_frames(result) if "counterfactual_real" in result.arrays else []
    if tried:
        from PIL import Image

        save_picture(Image.fromarray(tried[-1]), path / "counterfactual.png")
    if video:
        write_video(path / "paired.mp4", paired, FPS)
        if tried:
            write_video(path / "counterfactual.mp4", tried, FPS // 2)


def _rows(result: Result, measure: str) -> list[dict[str, Any]]:
    return [r for r in result.tables["fidelity"] if r["measure"] == measure and r["horizon"] is not None]


def draw_horizons(result: Result, path: Path) -> None:
    """Small multiples over horizons: simulated with intervals, between floor and baselines."""
    # Without a number (no gradient of anything runs through this world, say) there is nothing to see in a panel.
    panels = [p for p in PANELS if any(np.isfinite(column_of(_rows(result, m), "simulated")).any() for m, _ in p.lines)]
    columns = 3
    lines = max(1, -(-len(panels) // columns))
    figure = figure_of(11, 2.9 * lines + 0.8)
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    for ax, panel in zip(axes, panels, strict=False):
        _panel(ax, panel, result)
    handles: dict[str, Any] = {}
    for ax in axes[: len(panels)]:
        handles |= {label: h for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), fontsize=9, frameon=False, loc="outside lower center", ncols=3)
    figure.suptitle(
        f"Simulated against real, by steps simulated ({result.notes['episodes']} episodes; bands: 95 %)", fontsize=11
    )
    figure.savefig(path, dpi=110)


def _panel(ax: Any, panel: Panel, result: Result) -> None:
    for measure, colour in panel.lines:
        rows = _rows(result, measure)
        if not rows:
            continue
        x = [r["horizon"] for r in rows]
        dots = "o" if len(x) <= 8 else None
        words = WORDS["teacher-forced" if colour == FORCED else "free-running"]
        ax.plot(x, column_of(rows, "simulated"), color=colour, marker=dots, ms=3, label=words)
        ax.fill_between(x, column_of(rows, "low"), column_of(rows, "high"), color=colour, alpha=0.2, lw=0)
    rows = _rows(result, panel.lines[0][0])
    for cell, colour, style, words in (
        ("floor", REAL, "-.", "real against real: the best there is"),
        ("baseline_copy", HELD, "--", "last frame held"),
        ("baseline_mean", USUAL, ":", "chance or mean"),
    ):  # fmt: skip
        y = column_of(rows, cell)
        if np.isfinite(y).any():
            ax.plot([r["horizon"] for r in rows], y, color=colour, ls=style, lw=1, alpha=0.8, label=words)
    ax.xaxis.get_major_locator().set_params(integer=True)
    better = panel.better if panel.better[0].isdigit() else f"{panel.better} is better"
    ax.set_title(f"{panel.title}\n({better})", fontsize=9)
    ax.set_ylabel(panel.unit, fontsize=8)
    ax.set_xlabel("steps ahead", fontsize=8)
    ax.tick_params(labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)


def draw_calibration(result: Result, path: Path) -> None:
    """Reliability: what was foretold against how often it happened; on the diagonal, forecasts are right."""
    lines = result.tables["calibration"]
    events = list(dict.fromkeys(r["event"] for r in lines))
    figure = figure_of(4.2 * max(1, len(events)), 3.9)
    axes = figure.subplots(1, max(1, len(events)), squeeze=False)[0]
    titles = {
        "reward": "A reward follows", "terminal": "The episode ends", "unpaid_ending": "It ends without a reward",
    }  # fmt: skip
    for ax, event in zip(axes, events, strict=True):
        ax.plot([0, 1], [0, 1], color=REAL, ls="-.", lw=1, label="right forecasts")
        for kind, colour, shift in (("free-running", SIMULATED, -0.008), ("teacher-forced", FORCED, 0.008)):
            mine = [r for r in lines if r["event"] == event and r["simulation"] == kind]
            if not mine:
                continue
            x, y = column_of(mine, "forecast") + shift, column_of(mine, "happened")
            spread = np.stack([y - column_of(mine, "low"), column_of(mine, "high") - y]).clip(0)
            ax.errorbar(x, y, np.nan_to_num(spread), color=colour, fmt="none", lw=1, capsize=2, alpha=0.6)
            ax.scatter(
                x, y, 12 * np.log2(2 * column_of(mine, "steps")), color=colour, alpha=0.8, lw=0, label=WORDS[kind]
            )
        ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
        ax.set_title(titles[event], fontsize=10)
        ax.set_xlabel("foretold probability", fontsize=9)
        ax.set_ylabel("share that happened (larger dots: more forecasts)", fontsize=8)
        ax.tick_params(labelsize=8)
    axes[0].legend(fontsize=8, frameon=False, loc="upper left")
    figure.savefig(path, dpi=110)


def draw_lives(result: Result, path: Path, action_names: Sequence[str]) -> None:
    """What happens within the horizon, really and in dreams: returns, lengths, actions."""
    figure = figure_of(11, 3.3)
    axes = figure.subplots(1, 3, width_ratios=(1, 1, 1.6))
    kinds = (("real", REAL, "real"), ("dreamed", SIMULATED, "simulated"))
    for ax, name, unit in ((axes[0], "return", "return within the horizon"), (axes[1], "length", "steps lived")):
        values = [result.arrays[f"{name}_{kind}"] for kind, _, _ in kinds]
        if not len(values[0]):
            ax.text(0.5, 0.5, "no window ends\nor lasts to the horizon", ha="center", va="center", fontsize=8,
                    transform=ax.transAxes)  # fmt: skip
            continue
        edges = np.histogram_bin_edges(np.concatenate(values), bins=11)
        shares = [np.histogram(v, edges)[0] / len(v) for v in values]
        width = (edges[1] - edges[0]) * 0.42
        for i, (share, (_, colour, label)) in enumerate(zip(shares, kinds, strict=True)):
            ax.bar((edges[:-1] + edges[1:]) / 2 + (i - 0.5) * width, share, width, color=colour, label=label)
        ax.set_xlabel(unit, fontsize=9)
        ax.set_ylabel("share of windows", fontsize=9)
    action_names = result.notes.get("distinct_actions", action_names)
    count = len(action_names)
    for i, (kind, colour, _) in enumerate(kinds):
        actions = result.arrays[f"actions_{kind}"]
        if len(actions):
            axes[2].bar(np.arange(count) + (i - 0.5) * 0.42, np.bincount(actions, minlength=count) / len(actions),
                        0.42, color=colour)  # fmt: skip
    axes[2].set_xticks(np.arange(count), action_names, rotation=60, ha="right", rotation_mode="anchor")
    axes[2].set_ylabel("share of actions", fontsize=9)
    if len(result.arrays["return_real"]):
        axes[0].legend(fontsize=8, frameon=False)
    for ax in axes:
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def draw_confusion(result: Result, path: Path) -> None:
    """Which real action the simulated frames of each look like, after the longest hold."""
    share = result.arrays["counterfactual_confusion"][-1]
    names = list(result.notes["actions"])
    held = max(r["held"] for r in result.tables["counterfactual"])
    figure = figure_of(4.8, 4.3)
    ax = figure.subplots()
    image = ax.imshow(share, vmin=0, vmax=1, cmap=SEQUENTIAL)
    for (a, b), value in np.ndenumerate(share):
        ax.text(b, a, f"{value:.2f}"[1:] if value < 1 else "1", ha="center", va="center", fontsize=7,
                color="black" if value > 0.6 else "white")  # fmt: skip
    ax.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.set_ylabel("action held in the simulator", fontsize=9)
    ax.set_xlabel("action whose real frame is nearest", fontsize=9)
    ax.set_title(f"Held {held} steps: share of starts (right: the diagonal)", fontsize=9)
    figure.colorbar(image, ax=ax, shrink=0.8).ax.tick_params(labelsize=7)
    figure.savefig(path, dpi=110)


def draw_strip(result: Result, path: Path) -> None:
    """Real frames above simulated ones, several starts; images only."""
    kinds = [k for k in ("real", "simulated", "forced") if f"strip_{k}" in result.arrays]
    strips = {k: result.arrays[f"strip_{k}"] for k in kinds}
    seen = result.arrays["seen"][result.arrays["strip_row"]]
    count, length = strips["real"].shape[:2]
    columns = [k for k in (0, *SHOWN) if k < length]
    figure = figure_of(1.15 * len(columns) + 0.9, 1.18 * len(kinds) * count)
    axes = figure.subplots(len(kinds) * count, len(columns), squeeze=False)
    labels = {"real": "real", "simulated": "simulated", "forced": "shown each\nreal frame"}
    for line in range(len(kinds) * count):
        start, kind = divmod(line, len(kinds))
        for column, k in enumerate(columns):
            ax = axes[line][column]
            ax.set_xticks([])
            ax.set_yticks([])
            if seen[start, k] or kinds[kind] == "simulated":
                ax.imshow(as_rgb(strips[kinds[kind]][start, k]))
            else:
                ax.text(0.5, 0.5, "ended", ha="center", va="center", fontsize=7, transform=ax.transAxes)
            if line == 0:
                ax.set_title(f"+{k}", fontsize=9)
            if column == 0:
                ax.set_ylabel(labels[kinds[kind]], fontsize=8)
    figure.savefig(path, dpi=110)


# Videos


def grid(title: str, heads: Sequence[str], lines: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> np.ndarray:
    """One picture uint8 [., ., 3] of labelled rows of frames, sides a multiple of 16.

    lines: (label, frames uint8 [n, height, width, channels], which of them exist bool [n]); heads: a word a column.
    """
    from PIL import Image, ImageDraw

    font, small = font_of(14), font_of(12)
    width, height = MARGIN + len(heads) * (TILE + GAP), HEAD + len(lines) * (TILE + GAP)
    image = Image.new("RGB", (-(-width // 16) * 16, -(-height // 16) * 16), "white")
    draw = ImageDraw.Draw(image)
    draw.text((GAP, 4), title, fill="black", font=font)
    for column, word in enumerate(heads):
        draw.text((MARGIN + column * (TILE + GAP) + TILE / 2, 34), word, fill="black", font=small, anchor="mm")
    for line, (label, frames, exists) in enumerate(lines):
        y = HEAD + line * (TILE + GAP)
        draw.multiline_text((GAP, y + TILE / 2 - 14), label, fill="black", font=small)
        for column, (frame, there) in enumerate(zip(frames, exists, strict=True)):
            x = MARGIN + column * (TILE + GAP)
            if there:
                image.paste(fitted(frame, TILE), (x, y))
            else:
                draw.rectangle((x, y, x + TILE - 1, y + TILE - 1), fill="#dddddd")
                draw.text((x + TILE / 2, y + TILE / 2), "ended", fill="black", font=small, anchor="mm")
    return np.asarray(image)


def paired_frames(result: Result, action_names: Sequence[str]) -> list[np.ndarray]:
    """A picture a step: several starts, real above simulated, under the same recorded actions."""
    labels = {"real": "real", "simulated": "simulated,\non its own", "forced": "simulated,\nshown each\nreal frame"}
    strips = {k: result.arrays[f"strip_{k}"] for k in labels if f"strip_{k}" in result.arrays}
    seen, actions = result.arrays["seen"][result.arrays["strip_row"]], result.arrays["strip_action"]
    out = []
    for k in range(seen.shape[1]):
        here = {kind: np.ones(len(seen), bool) if kind == "simulated" else seen[:, k] for kind in strips}
        heads = [action_names[a] if there else "" for a, there in zip(actions[:, k], seen[:, k], strict=True)]
        title = f"step {k} of {seen.shape[1] - 1}    above each column: the action taken now, in all worlds"
        out.append(grid(title, heads, [(labels[kind], strips[kind][:, k], here[kind]) for kind in strips]))
    return out


def tried_frames(result: Result) -> list[np.ndarray]:
    """A picture a step: one start, every action held, in the real world and in the simulator."""
    real, simulated = result.arrays["counterfactual_real"], result.arrays["counterfactual_simulated"]
    seen, names = result.arrays["counterfactual_seen"], list(result.notes["actions"])
    out = []
    for k in range(real.shape[1]):
        lines = [("real", real[:, k], seen[:, k]), ("simulated", simulated[:, k], np.ones(len(names), bool))]
        out.append(
            grid(
                f"every action held, from the moment whose real futures differ most: step {k} of {real.shape[1] - 1}",
                names,
                lines,
            )
        )
    return out
