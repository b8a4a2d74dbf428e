"""Tables from result files of ``agents.evaluate``: ``python -m analysis.proc_eval_result runs/policies``.

The unit is the world: agents of one world compete and share its map, so their lives are not independent.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.proc_eval_result", file=sys.stderr)
    sys.exit(2)

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from agents.nmmo_evaluate import STAGE as EVALUATION
from analysis.lives.evaluations import draw, evaluations, load, tables
from core import artefacts, config as cli
from core.stats import between, few

STAGE = "proc_eval_result"


@dataclass(frozen=True, kw_only=True)
class ProcEvalResultConfig:
    """Metrics of every policy with intervals, pairwise comparisons, and ratings from shared worlds (pvp)."""

    policies: tyro.conf.Positional[Path] = Path("runs/policies")
    """the directory whose evaluations (eval_pve, eval_pvp) are read, or one evaluation's run directory"""
    out: Path | None = None
    """run directory to write; where both evaluations are read, metrics_MODE in it; none: beside each evaluation"""
    resamples: int = 2000
    """bootstrap resamples of worlds"""
    seed: int = 0
    """seed of resamples"""
    overwrite: bool = False
    """replace earlier tables"""


def main(config: ProcEvalResultConfig) -> None:
    cli.require(1, resamples=config.resamples)
    found = []
    for directory in evaluations(config.policies):
        inputs = artefacts.Inputs({"evaluation": directory})
        mode = artefacts.read_manifest(directory, EVALUATION)["facts"]["mode"]
        found.append((directory, inputs, mode, load(directory)))
    with ExitStack() as all_runs:
        runs = []  # all are opened before the first is written
        for directory, inputs, mode, _ in found:
            own = config.out if config.out and len(found) == 1 else (config.out or directory.parent) / f"metrics_{mode}"
            opened = artefacts.new_run(own, STAGE, config, inputs, overwrite=config.overwrite)
            runs.append(all_runs.enter_context(opened))
        for run, (*_, mode, lives) in zip(runs, found, strict=True):
            result = tables(lives, mode=mode, seed=config.seed, resamples=config.resamples)
            result.save(run.path)
            draw(result, run.path)
            run.metrics = dict(result.scalars)
            print(f"{mode}: {run.path}")
            for row in result.tables["metrics"]:
                if row["metric"] in ("length", "weighted_score"):
                    print(_line(row, row["metric"], row["value"]))
            for row in result.tables.get("ratings", ()):
                print(_line(row, "rating", row["rating"]))


def _line(row: Mapping[str, Any], what: str, value: float) -> str:
    return f"  {row['policy']:<20} {what:<16} {value:7.1f}{between(row['low'], row['high'], '.1f')}{few(row['worlds'])}"


if __name__ == "__main__":
    cli.run(ProcEvalResultConfig, main, STAGE)
