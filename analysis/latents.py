"""Directions and clusters of the latents z that simulations start from:
``python -m analysis.latents --simulator runs/simulator --rollouts runs/rollouts --samples runs/samples``.

Of real rollouts these are inferred from windows of frames; the one that belongs to step t is of the window that
ends there.  Simulated rollouts carry theirs, which belongs to their step 0: inferred from a real window or, for
samples recorded without --rollouts, drawn from the prior, so that the overlap says how well the prior fits.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.latents", file=sys.stderr)
    sys.exit(2)

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro

from analysis.shared import sources, units
from analysis.states import pooled, runs
from analysis.states.fit import check
from analysis.states.pooled import FitOptions, States
from core import artefacts, config as cli
from core.episodes import RolloutStore

STAGE = "latents"
DEFAULTS = FitOptions(pca_size=64, ica_size=0, nmf_size=0, clusters=32, first_step=0, most_states=20_000)


@dataclass(frozen=True, kw_only=True)
class LatentsConfig:
    """Fit directions of the simulator's latents and draw them."""

    action: tyro.conf.Positional[Literal["both", "precompute", "plot"]] = "both"
    """precompute writes bases and arrays, plot draws those of --latents into --out, both does both at once"""
    simulator: Path | None = None
    """the simulator, which infers the latents of --rollouts"""
    rollouts: Path | None = None
    """real rollouts to fit on; none: the simulated ones are fitted on"""
    samples: Path | None = None
    """simulated rollouts whose latents to project too"""
    every: int = 4
    """steps between the windows of a real episode that a latent is inferred from: neighbours are nearly the same"""
    latents: Path | None = None
    """run directory to draw (plot)"""
    out: Path = Path("runs/latents")
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


def inferred(simulator: Any, store: RolloutStore, config: LatentsConfig, device: torch.device) -> States:
    """z (its mean) of every ``--every``-th window of real episodes; the step it belongs to is the window's last."""
    from generative.record_samples import informed_latents

    lead = simulator.world.initial_frames - 1
    first = max(lead, config.fit.first_step)
    most = config.fit.most_states * config.every
    read = units.drawn(store, first, most, config.seed)
    episodes = read.episodes
    ends = np.minimum(store.steps, store.rows)
    index_N2 = np.concatenate(
        [np.stack(np.broadcast_arrays(e, np.arange(first, ends[e], config.every)), 1) for e in episodes]
    )
    z_NZ = informed_latents(simulator.world, store, index_N2 - [0, lead], device).cpu().numpy()
    states = pooled.pool_rows(store, z_NZ, index_N2, units.units(store, store), episodes)
    return replace(states, drawn={"rollouts": read})


def stored(store: RolloutStore, real: RolloutStore | None, config: LatentsConfig) -> States:
    """The latents of simulated rollouts; each belongs to step 0 of its own."""
    episodes = every = [e for e in range(len(store)) if min(store.steps[e], store.rows[e]) > 0]
    if config.fit.most_states and len(episodes) > config.fit.most_states:
        drawn = np.random.default_rng(config.seed).permutation(episodes)[: config.fit.most_states]
        episodes = [int(e) for e in np.sort(drawn)]
    index_N2 = np.stack([episodes, np.zeros(len(episodes), np.int64)], 1)
    states = pooled.pool_rows(store, store.latents(episodes), index_N2, units.units(store, real), episodes)
    return replace(states, drawn={"samples": units.Drawn(episodes, len(episodes) / len(every))})


def main(config: LatentsConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    check(config.fit)
    cli.require(1, every=config.every)
    if config.action == "plot":
        inputs = artefacts.Inputs({"latents": config.latents})
        runs.plot(config, STAGE, inputs, runs.load_drawn(config.latents, STAGE))
        return
    runs.refuse(STAGE, config.latents)
    inputs = artefacts.Inputs({"simulator": config.simulator, "rollouts": config.rollouts, "samples": config.samples})
    real, simulated, simulator, facts = sources.open_sources(config.rollouts, config.samples, config.simulator, device)

    def parts() -> list[States]:
        of_real = [] if real is None else [inferred(simulator, real, config, device)]
        return of_real + ([] if simulated is None else [stored(simulated, real, config)])

    runs.fit_and_save(config, STAGE, inputs, "z", parts, real or simulated, facts)


if __name__ == "__main__":
    cli.run(LatentsConfig, main, STAGE, shared=True)
