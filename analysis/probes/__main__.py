"""What can be read from states, and what of it stays without the obvious: ``python -m analysis.probes DIR``.

DIR holds episodes with states and ground truth (analysis.extract_activations, or any recording with ``truth``, such as
record.py --truth all makes).  Every quantity is read by a linear probe and by a small network, on units (worlds, levels
or lives) that took no part in fitting, and is compared with exchanged targets, with time alone, with the agent's own
observation, and with what the confounders named by --given say: those are partialled out of states and quantities
alike.  Where the agent of a recording is at hand, also with what the frame alone, the previous actions, all of these
together and the agent with its weights shuffled say, and with further agents (--agents).  A quantity that can be read
is there; whether the agent uses it, analysis.patching and validation.interventions tell.

Quantities that have no value at some steps (the nearest saw, where there is none) are read at the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from analysis.probes.baselines import baselines_of, names_in, recorded_agent, states_of
from analysis.probes.config import ProbesConfig
from analysis.probes.rows import STEP, bent, read
from analysis.probes.scores import LEAST_VARYING, probe
from analysis.shared.agents import load
from analysis.shared.events import parse_condition
from analysis.shared.probe_fits import ALPHA, LEAST_FOLDS
from analysis.shared.truths import every_of, names_of
from analysis.shared.units import choose_unit
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore
from core.stats import few, least_permutations, least_units

STAGE = "probes"
NOT_TARGETS = ("agent", "map", "world", "seed", "level")  # names, not quantities
CONFOUNDERS = ("tick", "row", "col", "in_combat")  # what --given auto takes of a recording
AUTO = ("auto",)


def check(config: ProbesConfig) -> None:
    """UserError for settings that mean nothing."""
    cli.require(LEAST_FOLDS, folds=config.folds)
    cli.require(least_permutations(ALPHA), shuffles=config.shuffles)
    cli.require(99, resamples=config.resamples)
    cli.require(0, first_step=config.first_step, max_rows=config.max_rows, seed=config.seed)
    cli.require(1, previous=config.previous)
    if config.last_step is not None:
        cli.require(config.first_step, last_step=config.last_step)
    if config.checkpoints and not config.agents:
        raise UserError("--checkpoints belongs to --agents")
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
        given = given_of(config, every)
        for name in given:
            if name != STEP and name not in every:
                raise UserError(
                    f"{config.extraction} has no quantity {name!r}{cli.nearest(name, every)}; leave it out of --given "
                    f"(now {' '.join(given)})"
                )
        targets = bent(list(config.targets) or [name for name in every if name not in NOT_TARGETS])
        if not targets:
            raise UserError(f"{config.extraction} has no ground truth to read; record a world that tells it")
        if config.where:
            parse_condition("--where", config.where, list(every))
        recorded = recorded_agent(store, config.agent)
        others = load(config.agents, config.checkpoints, torch.device("cpu")) if config.agents else {}
        rows = read(store, config.states, list(dict.fromkeys([*targets, *given])), where=config.where,
                    observation=config.observation or "", first_step=config.first_step, last_step=config.last_step,
                    max_rows=config.max_rows, needed=[name for name in given if name != STEP],
                    any_of=targets)  # fmt: skip
        unit = choose_unit(rows.groups, config.unit, max(config.folds, least_units(ALPHA, "permutation")))
        if recorded is not None:
            found = baselines_of(recorded[0], store, rows.index_N2, rows.time_N, config.previous, config.seed)
            rows = rows._replace(baselines=found)
        rows = rows._replace(agents=states_of(others, store, rows.index_N2))
        agent = store.manifest["facts"].get("agent", "")
        read_every = every_of(store)
    with threadpool_limits(config.threads):
        result = probe(rows, targets, given, unit, config)
    result.notes |= {"agent": agent, "states": config.states, "observation": config.observation or ""}
    result.notes |= {"where": config.where, "truth_every": read_every}
    inputs = {"extraction": config.extraction}
    if recorded is not None:
        inputs["agent"] = recorded[1]
    inputs |= {f"agent_{i}": path for i, path in enumerate(config.agents)}
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


def given_of(config: ProbesConfig, every: Collection[str]) -> tuple[str, ...]:
    """The confounders: of --given auto, those that are recorded, else the step."""
    if config.given != AUTO:
        return config.given
    return tuple(name for name in CONFOUNDERS if name in every) or (STEP,)


def summary(result: Result, out: Path) -> str:
    """What a person wants to know: a few lines, and one for each quantity."""
    notes = result.notes
    lines = [f"{notes['rows']:,} states; held out and resampled whole: {notes['units']} units ({notes['unit']}): {out}"]
    if any(notes["left_out"].values()):
        left, where = notes["left_out"], notes.get("where") or ""
        said = [f"{left['nothing to read']:,} at which no quantity has a value"] if left["nothing to read"] else []
        said += [f"{left['not where']:,} at which not: {where}"] if left["not where"] else []
        lines.append(f"  steps left out: {'; '.join(said)}")
    lines.append(f"  given: {' '.join(notes['given']) or 'nothing'}")
    if notes["baselines"]:
        lines.append(
            "  the frame alone: what the agent makes of it with an empty memory; of the previous actions there are "
            f"{notes['previous']}"
        )
    else:
        lines.append("  no agent at hand: --agent compares with the frame alone, previous actions and a random agent")
    for row in result.tables["targets"]:
        lines.append(f"  {row['target']:<20} {_sentence(row, notes)}")
    if notes["given"]:
        lines.append(f"  beyond what is given: more than R2 {notes['smallest']:g}, the smallest size of interest")
    if notes["unit"] == "life" and notes["worlds_shared"]:
        lines.append("  lives of one world share it, so these intervals are too narrow: record at least 10 worlds")
    if (last := notes["last_reached"]) is not None:
        lines.append(
            f"  fewer than {LEAST_VARYING} units have steps after {last}, so that time is not known there, and a few "
            f"long ones may sway what is said: --last_step {last} leaves these out"
        )
    for row in result.tables["controls"]:
        lines.append(f"  control: a random constant per {row['constant_per']}: R2 {row['r2']:.2f}")
    for row in result.tables.get("agents", ()):
        lines.append(f"  {row['agent']}: {row['target']} R2 {_in_words(row, 'r2')}")
    return "\n".join(lines)


def _sentence(row: Mapping[str, Any], notes: Mapping[str, Any]) -> str:
    """What is said of one quantity."""
    some = f", at {row['rows']:,} steps" if row.get("rows", notes["rows"]) < notes["rows"] else ""
    if row.get("linear") is None:
        return f"always {row['mean']:g}{some}" if row["verdict"] == "constant" else f"{row['verdict']}{some}"
    said = f"R2 {_in_words(row, 'linear')}{some}"
    if row.get("mlp") is not None:
        said += f", network {row['mlp']:.2f}"
    said += f", time alone {_two(row['time'])}"
    words = names_in(notes["baselines"], notes["previous"])
    said += "".join(f", {words[n]} {_two(row[n])}" for n in words if n != "time")
    if row.get("partial") is not None:
        said += f"; given {' '.join(notes['given'])}: {_in_words(row, 'partial')}"
    if row.get("auroc_linear") is not None:
        said += f"; AUROC {row['auroc_linear']:.2f}"
        if row.get("auroc_frame") is not None:
            said += f" (the frame alone {row['auroc_frame']:.2f})"
    said += f"; {row['verdict']}"
    if row.get("everything_minus_all") is not None:
        said += f"; adds {_in_words(row, 'everything_minus_all')} to {words['all']}: {row['memory']}"
    return said


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _in_words(row: Mapping[str, Any], name: str) -> str:
    return f"{_two(row[name])} [{_two(row[f'{name}_low'])}, {_two(row[f'{name}_high'])}]{few(row['n'])}"


if __name__ == "__main__":
    cli.run(ProbesConfig, main, STAGE)
