"""The configuration of analysis.probes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from analysis.shared.probe_fits import MlpOptions
from analysis.shared.units import Unit


@dataclass(frozen=True, kw_only=True)
class ProbesConfig:
    """Linear and network probes of recorded states, with controls and mediation."""

    extraction: tyro.conf.Positional[Path] = Path("runs/activations")
    """episodes with states and ground truth (analysis.extract_activations)"""
    out: Path = Path("runs/probes")
    """run directory to write"""
    states: str = "h"
    """stored column that is read: h, or world/NAME"""
    targets: tuple[str, ...] = ()
    """quantities to read (NMMO: the 14 features, row, col); none: every number of the ground truth"""
    given: tuple[str, ...] = ("tick", "row", "col", "in_combat")
    """confounders that are partialled out of states and quantities; step is time in the episode; none: no mediation"""
    smallest: float = 0.02
    """smallest partial R^2 of interest beyond --given: an interval above it counts as read, one below it as not read,
    any other as open"""
    observation: str | None = None
    """an observation column as a baseline of its own, such as obs/Entity:0 (its row 0: the agent itself)"""
    unit: Unit = "auto"
    """what is held out and resampled whole: map, world (one run of it) or life; auto: the largest with at least 10"""
    folds: int = 5
    """parts, each held out once"""
    first_step: int = 0
    """states of earlier steps are left out"""
    max_rows: int = 30_000
    """at most about so many states: every n-th of each life; 0: all"""
    shuffles: int = 199
    """exchanges of whole units for the control and its p-values"""
    resamples: int = 1000
    """bootstrap resamples of whole units"""
    mlp: bool = True
    """also fit networks"""
    net: MlpOptions = field(default_factory=MlpOptions)
    seed: int = 0
    """seed of folds, networks, exchanges and intervals"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""
