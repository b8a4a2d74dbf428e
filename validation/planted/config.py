"""The configuration of validation.planted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core import config as cli
from core.contracts import UserError
from core.stats import ALPHA, least_permutations, require_permutations
from envs.planted import KINDS, Kind


@dataclass(frozen=True, kw_only=True)
class PlantedConfig:
    """Score every analysis against worlds whose causes are known."""

    out: Path = Path("runs/planted")
    """run directory to write"""
    worlds: tuple[Kind, ...] = KINDS
    """worlds to score on"""
    repeats: int = 10
    """drawn worlds a score rests on"""
    seeds: int = 100
    """confounded worlds in which a method may accuse the nuisance"""
    runs: int = 400
    """experiments without an effect, and with a small one, that rates of false and true discoveries are counted over"""
    episodes: int = 24
    """episodes, or paired starts, of each of those experiments"""
    permutations: int = 199
    """permutations of each of their tests; p-values are no finer than one over so many"""
    seed: int = 0
    """the first seed; every job has its own"""
    threads: int = 2
    """jobs at a time, each on a CPU thread of its own; 1: in this process"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def check(config: PlantedConfig) -> None:
    """UserError for settings from which nothing could be concluded."""
    if not config.worlds:
        raise UserError(f"--worlds names no world; there are: {', '.join(KINDS)}")
    cli.require(1, repeats=config.repeats, seeds=config.seeds, threads=config.threads)
    cli.require(2, runs=config.runs)  # a probe reads each experiment's states for another one's
    cli.require(0, seed=config.seed)
    require_permutations(config.episodes, ALPHA)
    if config.permutations < (least := least_permutations(ALPHA)):
        raise UserError(f"--permutations {config.permutations}: a p-value of {ALPHA:g} needs at least {least}")
