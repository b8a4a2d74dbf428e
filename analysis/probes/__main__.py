"""What can be read from states, and what of it stays without the obvious: ``python -m analysis.probes DIR``.

DIR holds episodes with states and ground truth (analysis.extract_activations, or any recording with ``truth``).  Every
quantity is read by a linear probe and by a small network, on units (worlds, or lives) that took no part in fitting,
and is compared with exchanged targets, with time alone, with the agent's own observation, and with what the
confounders named by --given say: those are partialled out of states and quantities alike.  A quantity that can be read
is there; whether the agent uses it, analysis.patching and validation.interventions tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from analysis.probes.config import ProbesConfig
from analysis.probes.rows import STEP, names_of, read
from analysis.probes.scores import probe
from analysis.shared.probe_fits import ALPHA, LEAST_FOLDS
from analysis.shared.units import choose_unit
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore
from core.stats import few, least_permutations, least_units

STAGE = "probes"
NOT_TARGETS = ("agent", "map", "world", "seed", "level")  # names, not quantities


def check(config: ProbesConfig) -> None:
    """UserError for settings that mean nothing."""
    cli.require(LEAST_FOLDS, folds=config.folds)
    cli.require(least_permutations(ALPHA), shuffles=config.shuffles)
    cli.require(99, resamples=config.resamples)
    cli.require(0, first_step=config.first_step, max_rows=config.max_rows, seed=config.seed)
    if not 0 < config.smallest < 1:
        raise UserError(f"--smallest must lie between 0 and 1, not {config.smallest:g}")
    net = config.net
    cli.require(1, hidden=net.hidden, epochs=net.epochs, batch=net.batch, patience=net.patience)
    if net.rate <= 0 or net.decay < 0:
        raise UserError("--rate must be above 0 and --decay not below")
    for name in ("targets", "given"):
        values = getattr(config, name)
        if len(set(values)) < len(values):
            raise UserError(f"--{name} names {next(v for v in values if values.count(v) > 1)!r} twice")


def main(config: ProbesConfig) -> None:
    from analysis.probes.figures import draw

    check(config)
    torch.set_num_threads(config.threads)
    with RolloutStore(config.extraction) as store:
        every = names_of(store)
        known = [name for name in every if name not in NOT_TARGETS]
        for name in config.given:
            if name != STEP and name not in every:
                raise UserError(
                    f"{config.extraction} has no quantity {name!r}{cli.nearest(name, every)}; leave it out of --given "
                    f"(now {' '.join(config.given)})"
                )
        targets = list(config.targets) or known
        if not targets:
            raise UserError(f"{config.extraction} has no ground truth to read; record a world that tells it")
        names = list(dict.fromkeys([*targets, *config.given]))
        rows = read(store, config.states, names, observation=config.observation or "", first_step=config.first_step,
                    max_rows=config.max_rows)  # fmt: skip
        unit = choose_unit(rows.groups, config.unit, max(config.folds, least_units(ALPHA, "permutation")))
        agent = store.manifest["facts"].get("agent", "")
    with threadpool_limits(config.threads):
        result = probe(rows, targets, config.given, unit, config)
    result.notes |= {"agent": agent, "states": config.states, "observation": config.observation or ""}
    inputs = {"extraction": config.extraction}
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        for row in result.tables["targets"]:
            if row.get("linear") is not None:
                ends = [np.nan if row[f"linear_{end}"] is None else row[f"linear_{end}"] for end in ("low", "high")]
                result.scalar(f"r2_{row['target']}", row["linear"], "R^2", row["n"], ends)
        result.save(run.path)
        for name, figure in draw(result).items():
            figure.savefig(run.path / name, dpi=100, metadata={"Software": None})
        run.facts = {"agent": agent}
        run.metrics = result.scalars
    print(summary(result, config.out))


def summary(result: Result, out: Path) -> str:
    """What a person wants to know, in a few lines."""
    notes = result.notes
    lines = [f"{notes['rows']:,} states; held out and resampled whole: {notes['units']} units ({notes['unit']}): {out}"]
    for row in result.tables["targets"]:
        if row["verdict"] == "constant":
            lines.append(f"  {row['target']:<20} always {row['mean']:g}")
            continue
        said = f"  {row['target']:<20} R2 {_in_words(row, 'linear')}"
        if row.get("mlp") is not None:
            said += f", network {row['mlp']:.2f}"
        said += f", time alone {_two(row['time'])}"
        if row.get("partial") is not None:
            said += f"; given {' '.join(notes['given'])}: {_in_words(row, 'partial')}"
        if row.get("auroc_linear") is not None:
            said += f"; AUROC {row['auroc_linear']:.2f}"
        lines.append(f"{said}; {row['verdict']}")
    if notes["given"]:
        lines.append(f"  beyond what is given: more than R2 {notes['smallest']:g}, the smallest size of interest")
    if notes["unit"] == "life" and notes["worlds_shared"]:
        lines.append("  lives of one world share it, so these intervals are too narrow: record at least 10 worlds")
    for row in result.tables["controls"]:
        lines.append(f"  control: a random constant per {row['constant_per']}: R2 {row['r2']:.2f}")
    return "\n".join(lines)


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _in_words(row: Mapping[str, Any], name: str) -> str:
    return f"{_two(row[name])} [{_two(row[f'{name}_low'])}, {_two(row[f'{name}_high'])}]{few(row['n'])}"


if __name__ == "__main__":
    cli.run(ProbesConfig, main, STAGE)
