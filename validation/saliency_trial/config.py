"""The configuration of validation.saliency_trial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Method = Literal["gradient", "deeplift", "occlusion"]


@dataclass(frozen=True, kw_only=True)
class SaliencyTrialConfig:
    """Remove each object in view from the real game, and see which saliency method foretold what that changes (Procgen
    only)."""

    agent: Path = Path("runs/agent")
    """run directory of the agent"""
    simulator: Path | None = None
    """run directory of a simulator around it: methods are also tried through the world"""
    out: Path = Path("runs/saliency_trial")
    """run directory to write"""
    starts: int = 200
    """starts, each of another episode"""
    objects: int = 3
    """objects in the picture that a start must have (saws, monsters, crates, the coin ...; no walls, no lava)"""
    horizon: int = 8
    """steps after the removal at which late changes are measured"""
    draws: int = 8
    """draws of the action noise over which late changes in the real game are averaged; the same with and without the
    object"""
    methods: tuple[Method, ...] = ("gradient", "deeplift", "occlusion")
    """gradient (plain, times input, integrated), deeplift (the agent alone; leave it out for an agent whose step cannot
    be traced), occlusion (by the mean around, and by what is behind)"""
    integrated_steps: int = 128
    """points on the path of integrated gradients, of the agent alone; 0 leaves them out"""
    world_integrated_steps: int = 0
    """the same through the simulator, where each costs as much as a gradient"""
    world_draws: int = 1
    """draws of the action noise over which what the simulator says is averaged (at most --draws)"""
    boxes: int = 8
    """random boxes that the box of an object is compared with, of the same size in the same frame"""
    shuffles: int = 2
    """agents with shuffled weights whose saliency is tried beside"""
    smallest: float = 0.1
    """smallest rank correlation, and difference of two, that is of interest"""
    latest_start: int = 64
    """starts are taken at a random step of the episode up to this one"""
    start_level: int = 700_000_000
    """first level of the pool that starts are drawn from"""
    num_levels: int = 100_000
    """size of the pool"""
    batch_size: int = 64
    """rows that the agent, or the simulator, reads at once"""
    seed: int = 0
    """seed of levels, starts, action noise, random boxes and shuffled weights"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""
