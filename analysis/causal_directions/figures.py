"""Picture of a study of subspaces."""

from __future__ import annotations

from pathlib import Path

from core.artefacts import Result
from core.figures import LINE, MEMORY, MEMORY_PALE, REAL, SIMULATED, USUAL, WORLD, figure_of

COLOURS = {
    "causal": REAL, "pca": WORLD, "ica": MEMORY, "probe": SIMULATED, "mean difference": MEMORY_PALE, "random": USUAL,
}  # fmt: skip


def draw(result: Result, path: Path, edit: str) -> None:
    """subspaces.png: by rank, how well each kind of subspace carries the edit, with 95 % intervals."""
    rows = [row for row in result.tables["subspaces"] if row["edit"] == edit]
    late = f"recovered kl@1..{result.notes['horizon']}"
    panels = {
        "interchange accuracy": "interchange accuracy\n(share of pairs)",
        "recovered kl": "divergence taken away\nat once",
        late: f"divergence taken away\nover {result.notes['horizon']} steps",
    }  # fmt: skip
    figure = figure_of(10.5, 3.4)
    axes = figure.subplots(1, len(panels))
    ranks = sorted({row["rank"] for row in rows if row["method"] == "causal"})
    for axis, (name, title) in zip(axes, panels.items(), strict=True):
        axis.axhline(0, color=LINE, lw=1)
        for row in rows:
            if row["method"] == "whole state" and row["measure"] == name:
                axis.axhline(row["value"], color=REAL, lw=1, ls=":", label="whole state")
        for k, (method, colour) in enumerate(COLOURS.items()):
            mine = {row["rank"]: row for row in rows if row["method"] == method and row["measure"] == name}
            if not mine:  # of a basis that was not given
                continue
            at = [i + 0.1 * (k - 2.5) for i, rank in enumerate(ranks) if rank in mine]
            there = [mine[rank] for rank in ranks if rank in mine]
            axis.plot(at, [row["value"] for row in there], "o", color=colour, ms=4, label=method)
            axis.vlines(at, [row["low"] for row in there], [row["high"] for row in there], color=colour, lw=1.2)
        axis.set_title(title, fontsize=9)
        axis.set_xticks(range(len(ranks)), [str(rank) for rank in ranks])
        axis.set_xlabel("rank", fontsize=8)
        axis.tick_params(labelsize=8)
        low = min([row["low"] for row in rows if row["measure"] == name and row["method"] in COLOURS], default=0)
        axis.set_ylim(max(-1.5, min(-0.1, low)), 1.1)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, loc="outside right center")
    figure.suptitle(f"{edit}: held-out levels, 95 % intervals", fontsize=9)
    figure.savefig(path / "subspaces.png", dpi=110)
