"""Measure a choice against one variable of the world:
``python -m validation.scenes --agent runs/agent --scene wall_height --values 0 1 2 3 4 5``.

The scenes are those of docs/scenes.json, or of a file of one's own (envs/procgen_scenes.py says how they are written).
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.scenes", file=sys.stderr)
    sys.exit(2)

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch

from analysis.shared.live import LiveConfig
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import fingerprint
from core.interventions import InterventionOptions, build
from envs.procgen_scenes import LAST_LEVEL, SCENES, scene_of
from generative.load import load_simulator
from validation.scenes.figures import draw
from validation.scenes.starts import build_starts
from validation.scenes.study import FITS, SceneOptions, check_choice, study

STAGE = "scenes"
FEWEST, MOST_JITTER = 2, 0.45  # bases; cells


@dataclass(frozen=True, kw_only=True)
class ScenesConfig(LiveConfig):
    """Measure an agent's choice, its value and what becomes of it against one variable of a scene (Procgen)."""

    simulator: Path | None = None
    """run directory of a simulator: it foretells what follows (its agent is then the one that is studied)"""
    scene: str = "wall_height"
    """which scene of --scenes"""
    scenes: Path = SCENES
    """JSON file of scenes"""
    values: tuple[float, ...] = ()
    """of the scene's variable, rising; default: those that the scene names"""
    choice: str = ""
    """action, or word of actions, that is asked about; default: the one that the scene names"""
    settle: tuple[int, ...] = (0,)
    """steps for which the agent is made to stand before the scene until it may choose; one curve each, 0 is first
    sight"""
    fit: str = "logistic"
    """monotone curve to fit to the choice and to the share that passes: none, isotonic, logistic"""
    bases: int = 32
    """levels on which the scene is built, the units of the intervals"""
    positions: int = 2
    """how often the agent stands before it on every base, at each of the velocities"""
    jitter: float = 0.4
    """how far it stands to the side of the middle of its cell, at most, in cells"""
    velocities: tuple[float, ...] = (0.0,)
    """the agent's sideways velocities at the beginning, in cells a step"""
    horizon: int = 16
    """steps within which it passes, dies or is stuck"""
    intervention: InterventionOptions = field(default_factory=InterventionOptions)
    out: Path = Path("runs/scenes")
    """run directory to write"""


def main(config: ScenesConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    scene = scene_of(config.scene, config.scenes)
    values = config.values or scene.values
    _check(config, values)
    for value in values:
        scene.at(value)
    inputs = artefacts.Inputs({
        "agent": config.agent if config.simulator is None else None, "simulator": config.simulator,
        **config.intervention.inputs,
    })  # fmt: skip
    simulator = None if config.simulator is None else load_simulator(config.simulator, device)
    agent = config.studied(simulator, device)
    if agent.spec.env_id != f"procgen/{scene.game}":
        raise UserError(f"scene {scene.name!r} is of procgen/{scene.game}; this agent's world is {agent.spec.env_id}")
    if not (config.choice or scene.choice):
        raise UserError(f"scene {scene.name!r} names no choice to ask about: give --choice")
    choice = check_choice(config.choice or scene.choice, agent.spec)
    intervene = build(config.intervention, fingerprint(agent), device=device)
    bases = 1 if isinstance(scene.base, int) else config.bases
    rows = bases * config.positions * len(config.velocities)
    options = SceneOptions(
        choice=choice, settles=config.settle, horizon=config.horizon, fit=config.fit, seed=config.seed,
        greedy=config.greedy, intervene=intervene,
    )  # fmt: skip
    env = config.worlds(agent.spec)(rows)
    try:
        starts = build_starts(
            scene, values, env, bases=bases, positions=config.positions, jitter=config.jitter,
            velocities=config.velocities, start_level=config.start_level, seed=config.seed,
        )  # fmt: skip
        with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
            result = study(agent, env, starts, options, simulator=simulator, device=device)
            result.save(run.path)
            run.facts = {"agent": fingerprint(agent)}
            if simulator is not None:
                run.facts["simulator"] = fingerprint(simulator)
            with run.figures():
                draw(result, run.path)
            for row in result.tables["fits"]:
                if math.isfinite(row.get("middle", math.nan)):
                    name = f"{row['variant']}, {row['settle']}, {row['quantity']}".replace(" ", "_")
                    run.record(
                        name, row["middle"], scene.placeholder, row["n"], (row["middle_low"], row["middle_high"])
                    )
    finally:
        env.close()
    for claim in result.notes["claims"]:
        print(claim["text"])
    left = f", {starts.left_out} levels that cannot hold it left out" if starts.left_out else ""
    print(f"{len(values)} values of {scene.placeholder} on {len(starts.levels)} bases{left}: {config.out}")


def _check(config: ScenesConfig, values: tuple[float, ...]) -> None:
    """UserError for settings that mean nothing."""
    cli.require(1, horizon=config.horizon, positions=config.positions)
    cli.require(FEWEST, bases=config.bases)
    cli.require(0, seed=config.seed, start_level=config.start_level, settle=min(config.settle, default=-1))
    if not values:
        raise UserError(f"scene {config.scene!r} names no values: give --values")
    if list(values) != sorted(set(values)) or not all(map(math.isfinite, values)):
        raise UserError(f"--values {' '.join(f'{v:g}' for v in values)}: give finite numbers that rise")
    if len(set(config.settle)) < len(config.settle):
        raise UserError("--settle names a number of steps twice")
    if config.fit not in FITS:
        raise UserError(f"--fit {config.fit!r} is none of {', '.join(FITS)}")
    if not 0 <= config.jitter <= MOST_JITTER:
        raise UserError(
            f"--jitter {config.jitter:g}: between 0 and {MOST_JITTER} cells, so that the agent stays in its cell"
        )
    if not config.velocities or not all(map(math.isfinite, config.velocities)):
        raise UserError("--velocities: give one finite number or more")
    if config.start_level + 4 * config.bases > LAST_LEVEL:
        raise UserError(f"--start_level {config.start_level}: levels end at {LAST_LEVEL}")


if __name__ == "__main__":
    cli.run(ScenesConfig, main, STAGE)
