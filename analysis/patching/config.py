"""The configuration of analysis.patching."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from analysis.shared.units import Unit


@dataclass(frozen=True, kw_only=True)
class PatchingConfig:
    """Activation patching: replace one coordinate of recorded states and measure the change of every action head."""

    extraction: tyro.conf.Positional[Path] = Path("runs/activations")
    """recorded states with observations (record.py, or analysis.extract_activations of Neural MMO)"""
    policy: Path
    """run directory of the agent that was recorded: of train.py or adopted (docs/bring-your-own.md)"""
    out: Path = Path("runs/patching")
    """run directory to write"""
    pca_size: int = 8
    """so many first principal components of the recorded states are patched; 0: none"""
    probes: Path | None = None
    """a run of analysis.probes: the directions that its linear probes read"""
    features: tuple[str, ...] = ()
    """of --probes, only these; none: every one"""
    basis: Path | None = None
    """a run with a fitted basis of these states (analysis.hidden_states)"""
    basis_kind: str = "ica"
    """which basis of --basis"""
    direction_ids: tuple[str, ...] = ()
    """of --basis, only these, such as ica:0 ica:2; none: every one"""
    donor: Literal["life", "any"] = "life"
    """where the other value comes from: another time of the same life, or any time of another unit"""
    doses: tuple[float, ...] = (0.25, 0.5, 1.0)
    """shares of the way to the donor's coordinate; 1 is the patch itself and is always done"""
    states: int = 512
    """patched steps, drawn at random"""
    controls: int = 500
    """random directions that occur (each from a recorded state to one of another unit) for every direction, each moving
    every state as far"""
    unit: Unit = "auto"
    """what is resampled whole: map, level, world (one run of it) or life; auto: the largest with at least 10"""
    resamples: int = 1000
    """bootstrap resamples of whole units"""
    batch: int = 128
    """steps decided at once"""
    seed: int = 0
    """seed of steps, donors, random directions and intervals"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""
