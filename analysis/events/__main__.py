"""How often what happens: ``python -m analysis.events runs/rollouts [runs/altered] --events ...``.

Events are small expressions over what was recorded a step (analysis.shared.events), also over the world's truth where
the recording tells it (record.py --truth all): ``truth(on_crate) and not previous(truth(on_crate))``.  A world has some
by name.  Of every event: how many times an episode it happens, and in which share of episodes, with intervals over
whole units (levels, where they are known).  Episodes that the recorder cut (record.py --num_steps) are left out.

Of two recordings, such as one without and one with an intervention (record.py --basis ... --shift ...), also the
difference, paired where both played the same levels.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.events", file=sys.stderr)
    sys.exit(2)

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from analysis.events.counts import Counts, assemble, chosen_events, count
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore, without_cut
from core.stats import few
from core.words import counted, plural

STAGE = "events"


@dataclass(frozen=True, kw_only=True)
class EventsConfig:
    """Count events in one recording, or in two, and compare."""

    rollouts: tyro.conf.Positional[Path] = Path("runs/rollouts")
    """a recording"""
    altered: tyro.conf.Positional[Path | None] = None
    """another one of the same world, such as with an intervention, that is compared with it"""
    events: tuple[str, ...] = ()
    """names of events that the world has, or 'NAME: EXPRESSION'; none: all that the world has and the recording can
    tell"""
    out: Path = Path("runs/events")
    """run directory to write"""
    seed: int = 0
    """seed of the intervals"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def main(config: EventsConfig) -> None:
    from analysis.events.figures import draw

    cli.require(0, seed=config.seed)
    inputs = artefacts.Inputs({"rollouts": config.rollouts, "altered": config.altered})
    with RolloutStore(config.rollouts) as store:
        other = None if config.altered is None else RolloutStore(config.altered)
        if other is not None and (differ := store.spec.differences(other.spec)):
            raise UserError(f"{config.altered} is of another world than {config.rollouts}: {', '.join(differ)}")
        events = chosen_events(config.events, store, other)
        one = count(events, store)
        altered = None if other is None else count(events, other)
        agents = [s.manifest["facts"].get("agent", "") for s in (store, other) if s is not None]
        if other is not None:
            other.close()
    if altered is not None and altered.unit != one.unit:
        raise UserError(f"the units of {config.rollouts} are a {one.unit} each, those of {config.altered} a "
                        f"{altered.unit}: record both with --truth, or neither")  # fmt: skip
    names = {"rollouts": config.rollouts.name, "altered": "" if config.altered is None else config.altered.name}
    if names["altered"] == names["rollouts"]:
        names = {"rollouts": str(config.rollouts), "altered": str(config.altered)}
    result = assemble(events, one, altered, config.seed, names)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        for row in result.tables["events"]:
            interval = (row["rate_low"], row["rate_high"])
            result.scalar(f"rate_{row['event']}", row["rate"], "times an episode", row["n"], interval)
        result.save(run.path)
        with run.figures():
            draw(result).savefig(run.path / "events.png", dpi=100, metadata={"Software": None})
        run.facts = {"agent": agents[0]}
        run.metrics = result.scalars
    print(summary(result, one, altered, config.out))


def summary(result: Result, one: Counts, altered: Counts | None, out: Path) -> str:
    """A sentence an event."""
    sizes = [_size(counts) for counts in (one, altered) if counts is not None]
    lines = [f"{' and '.join(sizes)}; resampled whole: {plural(result.notes['unit'])}: {out}"]
    return "\n".join([*lines, *(f"  {sentence(row, result.notes['names'])}" for row in result.tables["events"])])


def _size(counts: Counts) -> str:
    """How much was counted, and what was left out."""
    n = len(counts.times_EX)
    return f"{counted(n, 'episode')}, {counted(counts.steps, 'step')}{without_cut(counts.cut, n)}"


def sentence(row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """What is said of one event."""
    said = f"{row['event']}: {_numbers(row, 'rate')} times an episode (n = {row['n']}{few(row['n'])}), in "
    said += f"{_numbers(row, 'share', '.1%')} of episodes"
    if "difference" not in row:
        return said
    shared = f", {row['paired']} of them in both" if row["paired"] else ""
    said += f"; in {names['altered']} {_numbers(row, 'altered_rate')}: "
    said += f"difference {_numbers(row, 'difference', '+.3f')}, "
    q = "" if row["q"] is None else f"q = {row['q']:.2g}, "
    return f"{said}{q}n = {row['units']}{shared}: {row['verdict']}"


def _numbers(row: Mapping[str, Any], name: str, form: str = ".3f") -> str:
    if row[f"{name}_low"] is None:
        return f"{row[name]:{form}}"
    return f"{row[name]:{form}} [{row[f'{name}_low']:{form}}, {row[f'{name}_high']:{form}}]"


if __name__ == "__main__":
    cli.run(EventsConfig, main, STAGE)
