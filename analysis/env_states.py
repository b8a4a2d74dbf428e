"""Directions and clusters of the simulator's world state d:
``python -m analysis.env_states --simulator runs/simulator --rollouts runs/rollouts --samples runs/samples``.

Of real rollouts these are the states that the simulator infers from the recorded frames (its posterior);
simulated rollouts carry their own.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.env_states", file=sys.stderr)
    sys.exit(2)

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro

from analysis.shared import sources, units
from analysis.shared.world_states import world_states
from analysis.states import pooled, runs
from analysis.states.fit import check
from analysis.states.pooled import FitOptions, States
from core import artefacts, config as cli

STAGE = "env_states"
DEFAULTS = FitOptions(
    pca_size=128, ica_size=0, nmf_size=64, nmf_states=4000, clusters=128, most_states=20_000
)  # METHODS section 4; a state has thousands of numbers


@dataclass(frozen=True, kw_only=True)
class EnvStatesConfig:
    """Fit directions of the simulator's world state and draw them."""

    action: tyro.conf.Positional[Literal["both", "precompute", "plot"]] = "both"
    """precompute writes bases and arrays, plot draws those of --env_states into --out, both does both at once"""
    simulator: Path | None = None
    """the simulator, through which the frames of --rollouts go"""
    rollouts: Path | None = None
    """real rollouts to fit on; none: the simulated ones are fitted on"""
    samples: Path | None = None
    """simulated rollouts to project too"""
    env_states: Path | None = None
    """run directory to draw (plot)"""
    out: Path = Path("runs/env_states")
    """run directory to write"""
    fit: FitOptions = field(default_factory=lambda: DEFAULTS)
    seed: int = 0
    """seed of the solver, bootstraps, clusters and the map"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def main(config: EnvStatesConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    check(config.fit)
    if config.action == "plot":
        inputs = artefacts.Inputs({"env_states": config.env_states})
        runs.plot(config, STAGE, inputs, runs.load_drawn(config.env_states, STAGE))
        return
    runs.refuse(STAGE, config.env_states)
    inputs = artefacts.Inputs({"simulator": config.simulator, "rollouts": config.rollouts, "samples": config.samples})
    real, simulated, simulator, facts = sources.open_sources(config.rollouts, config.samples, config.simulator, device)

    def parts() -> list[States]:
        out = []
        if simulated is not None:  # first: they are read at once
            out.append(pooled.pool(simulated, "world/d", config.fit, real, seed=config.seed))
        if real is not None:
            lead = simulator.world.initial_frames - 1
            chosen = units.episodes_of(real, max(lead, config.fit.first_step), config.fit.most_states, config.seed)
            world: list[np.ndarray] = world_states(simulator.world, real, device, chosen)
            out.insert(0, pooled.pool(real, world, config.fit, real, lead=lead, seed=config.seed))
        return out

    runs.fit_and_save(config, STAGE, inputs, "d", parts, real or simulated, facts)


if __name__ == "__main__":
    cli.run(EnvStatesConfig, main, STAGE, shared=True)
