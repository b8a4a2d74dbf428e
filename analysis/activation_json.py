"""The earlier system's ``activations.json``, in and out of an extraction directory, one record at a time:
``python -m analysis.activation_json import activations.json runs/activations``, and ``export`` the other way.

A record is one step of one agent: ``step, env_id, agent_id, activation, observation {Tile, Entity, Inventory, Market,
CurrentTick}, action``; the file is one JSON list, or a record a line.  Actions are in the order of the parts' names.
This project's records add ``features`` and ``died`` (how the record's life ended).
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.activation_json", file=sys.stderr)
    sys.exit(2)

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from analysis.lives.earlier_format import life_of, lives_of, records, rows_as_json, spec_of
from analysis.lives.recording import SHARD_STEPS, STAGE as EXTRACTION, STORE
from core import artefacts, config as cli
from core.contracts import UserError
from core.episodes import RolloutStore, StoreWriter
from core.files import writing
from core.progress import bar
from envs.nmmo import CLASSES, FEATURES

STAGE = "activation_json"


@dataclass(frozen=True, kw_only=True)
class ActivationJsonConfig:
    """Turn an ``activations.json`` of the earlier system into an extraction directory, or back."""

    action: tyro.conf.Positional[Literal["import", "export"]] = "import"
    """import: read --file into --directory; export: write --directory as --file"""
    file: tyro.conf.Positional[Path] = Path("activations.json")
    """the JSON file (a list of records, or a record a line)"""
    directory: tyro.conf.Positional[Path] = Path("runs/activations")
    """the extraction's run directory"""
    policy: str | None = None
    """import: the name of the policy that was recorded"""
    overwrite: bool = False
    """replace what is there"""


def main(config: ActivationJsonConfig) -> None:
    (read if config.action == "import" else write)(config)


def read(config: ActivationJsonConfig) -> None:
    """JSON -> store."""
    first = next(records(config.file), None)
    if first is None:
        raise UserError(f"{config.file} holds no record")
    spec = spec_of(first)
    lives = steps = 0
    games: dict[tuple[int, int], int] = {}  # lives so far of (world, agent); an agent has one in each of its games
    with artefacts.new_run(config.directory, EXTRACTION, config, overwrite=config.overwrite) as run:
        artefacts.write_json(run.path / "spec.json", spec.to_json())
        with (
            StoreWriter(run.path, "part_0000", SHARD_STEPS, **STORE) as writer,
            bar("importing", None, "lives") as progress,
        ):
            for rows, again in lives_of(records(config.file)):
                who = rows[0]["env_id"], rows[0]["agent_id"]
                part = games[who] = games.get(who, -1) + 1
                try:
                    writer.add(life_of(rows, spec, {"policy": config.policy or "", "part": part}, again))
                except (KeyError, TypeError, ValueError) as error:
                    raise UserError(
                        f"{config.file}: the records of agent {who[1]} in world {who[0]} are not of one layout "
                        f"({type(error).__name__}: {str(error).splitlines()[0]})"
                    ) from None
                lives, steps = lives + 1, steps + len(rows)
                progress.advance()
        if not lives:
            raise UserError(f"{config.file}: every record is of a dead agent (no own row in its Entity table)")
        run.facts = {"policy": config.policy or "", "mode": "imported", "features": list(FEATURES)}
        run.facts |= {"classes": list(CLASSES)}
        run.record("lives", lives, "lives")
        run.record("steps", steps, "steps")
    print(f"{lives:,} lives, {steps:,} steps from {config.file}: {config.directory}")


def write(config: ActivationJsonConfig) -> None:
    """Store -> JSON."""
    if config.file.is_dir():
        raise UserError(f"{config.file} is a directory; name the JSON file first, then the extraction's directory")
    if config.file.exists() and not config.overwrite:
        raise UserError(f"{config.file} exists; pass --overwrite")
    store = RolloutStore(config.directory)
    steps = 0
    with writing(config.file, "w") as out:
        out.write("[")
        for life in store:
            for row in rows_as_json(life):
                out.write((",\n" if steps else "\n") + json.dumps(row))
                steps += 1
        out.write("\n]\n")
    print(f"{steps:,} records: {config.file}")


if __name__ == "__main__":
    cli.run(ActivationJsonConfig, main, STAGE)
