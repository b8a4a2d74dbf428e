"""Whether what probes found of single agents holds of agents: ``python -m analysis.probes.over_agents NAME=DIR ...``.

Each DIR is a run of analysis.probes on the recording of another agent; those of one NAME (agents that differ by their
seed) are a group.  The unit is the agent: a mean over the agents of a group has Student's interval, a contrast of
groups Welch's.  What an interval over lives says of one agent says nothing of the next one trained.

A handful of agents says something only if a distribution is assumed: here that their numbers are normal.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.probes.over_agents", file=sys.stderr)
    sys.exit(2)

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from analysis.probes.matrix import NO, OPEN, YES, signed
from analysis.shared.agents import short_names
from core import artefacts, config as cli
from core.artefacts import Result, column_of, finite
from core.contracts import UserError
from core.stats import ALPHA, benjamini_hochberg, contrast, few

STAGE = "probes_over_agents"
MANY = 48  # rows
BEYOND = "beyond"  # what h adds to the frame, the time and the previous actions together


@dataclass(frozen=True, kw_only=True)
class OverAgentsConfig:
    """Compare groups of agents by what probes found of each: means and contrasts with intervals over agents."""

    probes: tyro.conf.Positional[tuple[str, ...]] = ()
    """NAME=DIR for each agent: the group that it belongs to, and its run directory of analysis.probes"""
    measures: tuple[str, ...] = ()
    """what is compared: an input (its score), STATE - BASELINE (the advantage), or beyond (R^2 that the states add to
    frame, time and previous actions together); none: beyond and h - obs, as far as the runs have them"""
    targets: tuple[str, ...] = ()
    """quantities; none: all that every run has"""
    contrasts: tuple[str, ...] = ()
    """sums and differences of groups, such as 'scarce - normal' or 'a - b - c + d' (by how much more the first two
    differ than the last two); none: the difference of every two groups"""
    smallest: float = 0.02
    """smallest size of interest, of means and contrasts alike"""
    out: Path = Path("runs/probes_over_agents")
    """run directory to write: groups.csv, contrasts.csv, agents.csv, over_agents.png"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def main(config: OverAgentsConfig) -> None:
    from analysis.probes.figures import draw_groups

    if not 0 < config.smallest < 1:
        raise UserError(f"--smallest must lie between 0 and 1, not {config.smallest:g}")
    groups = groups_of(config.probes)
    inputs = artefacts.Inputs({f"{name}_{i}": path for name, paths in groups.items() for i, path in enumerate(paths)})
    read = {path: values_of(path) for paths in groups.values() for path in paths}
    every = [path for paths in groups.values() for path in paths]
    require_agents(every)
    short = dict(zip(every, short_names(every), strict=True))
    measures = measures_of(config.measures, read)
    targets = targets_of(config.targets, measures, read)
    contrasts = {words: weights_of(words, list(groups)) for words in config.contrasts or pairs(list(groups))}
    result = Result(notes={"groups": {name: [short[p] for p in paths] for name, paths in groups.items()},
                           "measures": list(measures), "smallest": config.smallest,
                           "interval": "95 %, over agents (Student, Welch)"})  # fmt: skip
    result.tables["agents"] = [
        {"group": name, "agent": short[p], "target": target, "measure": measure, "value": read[p][target, measure]}
        for measure in measures for target in targets for name, paths in groups.items() for p in paths
        if (target, measure) in read[p]
    ]  # fmt: skip
    of_group: dict[str, list[dict[str, Any]]] = {"groups": [], "contrasts": []}
    for measure in measures:
        for target in targets:
            cell = {n: np.array([v for p in paths if (v := read[p].get((target, measure))) is not None])
                    for n, paths in groups.items()}  # fmt: skip
            if any(len(cell[name]) < len(paths) for name, paths in groups.items()):
                continue  # not read of some agent: no cell of the table is of fewer agents than it says
            about = {"target": target, "measure": measure}
            for name in groups:
                of_group["groups"].append(about | {"group": name} | row_of([cell[name]], [1]))
            for words, weights in contrasts.items():
                of_group["contrasts"].append(about | {"contrast": words} | row_of(list(cell.values()), weights))
    for rows in of_group.values():
        judge(rows, config.smallest, both_ways=rows is of_group["contrasts"])
    result.tables |= of_group
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result.save(run.path)
        with run.figures():
            draw_groups(result).savefig(run.path / "over_agents.png", dpi=120, metadata={"Software": None})
    print(summary(result, config.out))


def groups_of(words: Sequence[str]) -> dict[str, list[Path]]:
    """{name: run directories}, in the order given."""
    out: dict[str, list[Path]] = {}
    for word in words:
        name, _, path = word.partition("=")
        if not path or not re.fullmatch(r"\w+", name):
            raise UserError(f"{word}: write NAME=DIR, a group (letters, digits, _) and a run directory of its agent")
        out.setdefault(name, []).append(Path(path))
    if not out:
        raise UserError("nothing to compare: name NAME=DIR for each agent, DIR a run of analysis.probes")
    return out


def values_of(path: Path) -> dict[tuple[str, str], float]:
    """{(target, measure): number} of one agent; targets without a number are left out."""
    if (stage := artefacts.read_manifest(path)["stage"]) != "probes":
        raise UserError(f"{path} is a run of {stage}, not of analysis.probes")
    tables = Result.load(path).tables
    out: dict[tuple[str, str], Any] = {}
    for row in tables["targets"]:
        out[row["target"], BEYOND] = row.get("everything_minus_all")
    for row in tables.get("inputs", ()):
        if row["kind"] != "control":
            out[row["target"], row["input"]] = row["score"]
    for row in tables.get("advantages", ()):
        if row["probe"] == "linear":
            out[row["target"], f"{row['input']} - {row['over']}"] = row["advantage"]
    return {key: float(value) for key, value in out.items() if value is not None}


def require_agents(paths: Sequence[Path]) -> None:
    """UserError where a run is named twice, or two runs are of one agent: the unit is the agent."""
    seen: dict[str, Path] = {}
    for path in paths:
        manifest = artefacts.read_manifest(path)
        agent = manifest["facts"].get("agent") or str(path.resolve())
        if agent in seen:
            raise UserError(f"{path} and {seen[agent]} are of one agent; an agent counts once")
        seen[agent] = path


def measures_of(named: Sequence[str], read: Mapping[Path, Mapping[tuple[str, str], float]]) -> tuple[str, ...]:
    has = {path: dict.fromkeys(measure for _, measure in values) for path, values in read.items()}
    if not named:
        found = tuple(m for m in (BEYOND, "h - obs") if all(m in some for some in has.values()))
        if not found:
            raise UserError("the runs have neither beyond (--agent) nor h - obs (--inputs h obs) in common: --measures")
        return found
    for measure in named:
        for path, some in has.items():
            if measure not in some:
                raise UserError(
                    f"{path} has no {measure!r}{cli.nearest(measure, list(some))}; it has: {', '.join(some)}"
                )
    return tuple(named)


def targets_of(
    named: Sequence[str], measures: Sequence[str], read: Mapping[Path, Mapping[tuple[str, str], float]]
) -> list[str]:
    first = next(iter(read.values()))
    every = [t for t in dict.fromkeys(t for t, _ in first)
             if any(all((t, m) in values for values in read.values()) for m in measures)]  # fmt: skip
    for name in named:
        if name not in every:
            raise UserError(f"--targets {name}: not read of every agent{cli.nearest(name, every)}")
    if not every:
        raise UserError("no quantity was read of every agent by one of --measures")
    return list(named) or every


def pairs(names: Sequence[str]) -> list[str]:
    return [f"{b} - {a}" for a, b in itertools.combinations(names, 2)]


def weights_of(words: str, names: Sequence[str]) -> list[float]:
    """The weight of each group in a contrast; UserError for what is none."""
    if not re.fullmatch(r"\s*[+-]?\s*\w+(\s*[+-]\s*\w+)*\s*", words):
        raise UserError(f"--contrasts {words!r}: write groups with + and -, such as 'scarce - normal'")
    out = dict.fromkeys(names, 0.0)
    for sign, name in re.findall(r"([+-]?)\s*(\w+)", words):
        if name not in out:
            raise UserError(f"--contrasts {words!r}: no group {name}{cli.nearest(name, names)}")
        out[name] += -1 if sign == "-" else 1
    if sum(out.values()) or not any(out.values()):
        raise UserError(f"--contrasts {words!r}: as many groups must be taken away as are added")
    return list(out.values())


def row_of(groups: Sequence[np.ndarray], weights: Sequence[float]) -> dict[str, Any]:
    """A weighted sum of group means as table cells."""
    found = contrast(groups, weights)
    out: dict[str, Any] = {}
    for level, mark in ((0.95, ""), (0.9, "_90")):
        value, low, high, n = found.estimate(level)
        out |= {"value": value, f"value_low{mark}": finite(low), f"value_high{mark}": finite(high), "n": n}
    return out | {"p": finite(found.p)}


def judge(rows: Sequence[dict[str, Any]], smallest: float, *, both_ways: bool) -> None:
    """q over the rows of each measure, and docs/claims.md's word for *exists*: yes where the 95 % interval lies beyond
    the smallest size and q is at most 0.05, no where the 90 % interval lies within it, else open.  A mean is asked
    whether it is above, a contrast whether it is anything (``both_ways``)."""
    for measure in dict.fromkeys(row["measure"] for row in rows):
        family = [row for row in rows if row["measure"] == measure]
        q = benjamini_hochberg(column_of(family, "p"))
        for row, q_row in zip(family, q, strict=True):
            row["q"] = finite(q_row)
            row["verdict"] = OPEN
            if row["value_low"] is None:
                continue
            beyond = row["value_low"] > smallest or (both_ways and row["value_high"] < -smallest)
            if beyond and q_row <= ALPHA:
                row["verdict"] = YES
            elif row["value_high_90"] < smallest and (not both_ways or row["value_low_90"] > -smallest):
                row["verdict"] = NO


def summary(result: Result, out: Path) -> str:
    """What is told, line by line; of many rows those that say yes."""
    lines = ["over agents: " + "; ".join(f"{name} {len(some)}" for name, some in result.notes["groups"].items())]
    for kind, name in (("groups", "group"), ("contrasts", "contrast")):
        rows = result.tables[kind]
        said = rows if len(rows) <= MANY else [row for row in rows if row["verdict"] == YES]
        for row in said:
            lines.append(f"  {row['measure']}: {row['target']}, {row[name]}: {signed(row, 'value')} "
                         f"(n = {row['n']}{few(row['n'])}): {row['verdict']}")  # fmt: skip
        if len(said) < len(rows):
            lines.append(f"  {len(rows) - len(said)} others are open or no: {out / kind}.csv")
    return "\n".join([*lines, f"  {out}"])


if __name__ == "__main__":
    cli.run(OverAgentsConfig, main, STAGE)
