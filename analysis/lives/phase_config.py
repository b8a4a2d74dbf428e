"""The configuration of analysis.life_phase."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class LifePhaseConfig:
    """Share of the clusters in every phase of life, their mutual information, and the clusters that lives end in."""

    extraction: tyro.conf.Positional[Path] = Path("runs/activations")
    """run directory of analysis.extract_activations"""
    cluster_dir: Path = Path("runs/clusters")
    """run directory of analysis.activations of the same extraction"""
    n_bins: int = 20
    """equal parts that a life is cut into"""
    min_lifespan: int = 50
    """shorter lives, in ticks, are left out"""
    unit: Literal["lives", "worlds"] = "worlds"
    """what intervals resample and tests rotate together: agents of one world meet and compete, so lives are no
    independent units"""
    resamples: int = 1000
    """bootstrap resamples of whole lives or worlds, for a mean"""
    rotations: int = 999
    """rotations of the labels within their lives, for the null distribution"""
    out: Path = Path("runs/life_phase")
    """run directory to write"""
    seed: int = 0
    """seed of resamples and rotations"""
    overwrite: bool = False
    """replace an earlier run at --out"""
