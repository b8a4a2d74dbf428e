"""``progress.csv`` of OpenAI Baselines, beside a training's own ``curve.csv``, for tools that read those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.ppo import PPOConfig
from core.artefacts import write_atomically

FILE = "progress.csv"
# Their column -> the curve's; skill_loss is what semantic clustering calls the loss of its embedding.
SAME = {
    "eplenmean": "length_mean", "eprewmean": "return_mean", "loss/approxkl": "approx_kl",
    "loss/clipfrac": "clipped_share", "loss/loss": "loss", "loss/policy_entropy": "entropy",
    "loss/policy_loss": "policy_loss", "loss/skill_loss": "fdr_loss", "loss/value_loss": "value_loss",
    "loss/vq_loss": "vq_loss", "misc/explained_variance": "explained_variance", "misc/time_elapsed": "wall_s",
    "misc/total_timesteps": "step",
}  # fmt: skip
COLUMNS = (
    "eplenmean", "eprewmean", "fps", "loss/approxkl", "loss/clipfrac", "loss/cluster_value_loss", "loss/loss",
    "loss/policy_entropy", "loss/policy_loss", "loss/skill_loss", "loss/value_loss", "loss/vq_loss",
    "misc/explained_variance", "misc/nupdates", "misc/serial_timesteps", "misc/time_elapsed", "misc/total_timesteps",
)  # fmt: skip


def progress_rows(
    curve: Sequence[Mapping[str, Any]], ppo: PPOConfig, fdr_weight: float = 0.0, vq_weight: float = 0.0
) -> list[dict[str, Any]]:
    """A row an update, with their columns ('' where a training has no such number).  Of the settings those alone are
    read that --resume may not change: the rows of before it stay as they are.

    ``cluster_value_loss`` is both losses of semantic clustering, weighted, as they stand in ``loss``.
    """
    rows = []
    collected = ppo.envs * ppo.rollout_steps
    before: Mapping[str, Any] = {"step": 0, "wall_s": 0.0}
    for number in curve:
        row: dict[str, Any] = {theirs: number.get(ours, "") for theirs, ours in SAME.items()}
        step, seconds = int(float(number["step"])), float(number["wall_s"]) - float(before["wall_s"])
        weight = float(number.get("semantic_weight") or 0)
        fdr, vq = (float(number.get(name) or 0) for name in ("fdr_loss", "vq_loss"))
        clusters = weight * (fdr_weight * fdr + vq_weight * vq)
        row |= {
            "fps": f"{(step - int(float(before['step']))) / max(seconds, 1e-9):.6g}",
            "loss/cluster_value_loss": f"{clusters:.6g}" if "fdr_loss" in number else "",
            "misc/nupdates": step // collected, "misc/serial_timesteps": step // ppo.envs,
        }  # fmt: skip
        rows.append({name: row[name] for name in COLUMNS})
        before = number
    return rows


def write_progress(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write them into a run directory."""
    lines = [",".join(COLUMNS), *(",".join(str(row[name]) for name in COLUMNS) for row in rows)]
    write_atomically(path / FILE, ("\n".join(lines) + "\n").encode())
