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
    recordings: tuple[Path, ...] = ()
    """further recordings of the same world, such as of other checkpoints, in their order: the table of --inputs for
    each of them (how what is read comes about in training)"""
    run_dir: Path | None = None
    """folder that holds recordings, such as one a checkpoint (in place of the first argument and --recordings)"""
    ckpt: str = "last"
    """which recording of --run_dir: last, or a number in its name"""
    all_ckpts: bool = False
    """all recordings of --run_dir, in the order of the numbers in their names"""
    block: str | None = None
    """whose state is read first, where the agent has several recurrent layers: last, all, or its number; stands for
    --inputs of these and obs, embedding, time, actions and random as far as they are at hand"""
    out: Path = Path("runs/probes")
    """run directory to write"""
    states: str = "h"
    """stored column that is read: h, or world/NAME"""
    targets: tuple[str, ...] = ()
    """quantities to read (NMMO: the 14 features, row, col; Procgen: docs/truth.md), of angles (NAME_bearing) the sine
    and the cosine; none: every number of the ground truth"""
    given: tuple[str, ...] = ("auto",)
    """confounders that are partialled out of states and quantities; step is time in the episode; auto: those of tick,
    row, col and in_combat that are recorded, and step where no tick is; none: no mediation"""
    where: str = ""
    """only steps of which this is true, a condition over the ground truth such as "coin_in_view == 0 and support" """
    agent: Path | None = None
    """the agent that was recorded, for what the frame alone, the previous actions and the agent with its weights
    shuffled say; none: the one that the recording names, where it is still there"""
    previous: int = 4
    """previous actions that are compared with, beside the frame"""
    agents: tuple[Path, ...] = ()
    """run directories of further agents, shown the same recorded observations: a table by agent"""
    checkpoints: bool = False
    """also all saved checkpoints of each of --agents"""
    smallest: float = 0.02
    """smallest R^2 of interest that states add (partial beyond --given, advantages over other inputs): a 95 % interval
    above it, with q, says yes, a 90 % one below it no, any other leaves it open (docs/probes.md)"""
    observation: str | None = None
    """an observation column as a baseline of its own, such as obs/Entity:0 (its row 0: the agent itself)"""
    inputs: tuple[str, ...] = ()
    """what quantities are read from for the table of quantities by inputs, on all steps: h, block_0, embedding (columns
    of the recording, or points of its agent), obs, obs:4 (the last 4), time, actions (how often each so far), episode,
    frame, random (the agent with its weights shuffled), several joined (obs+time), or NAME=DIR, the states of another
    agent's recording; none: no such table"""
    classes: tuple[str, ...] = ()
    """quantities that are names and not numbers (a direction, a type), beside those that the recording says are"""
    exchanges: int = 3
    """exchanges of whole units whose scores are the table's chance"""
    input_rows: int = 0
    """at most about so many steps for that table; 0: all"""
    unit: Unit = "auto"
    """what is held out and resampled whole: map, level, world (one run of it) or life (an episode); auto: the largest
    with at least 10"""
    folds: int = 5
    """parts, each held out once"""
    directions: tuple[str, ...] = ()
    """targets whose probes are the directions of basis_probe (of --states h), those in front first; none: all that
    vary"""
    first_step: int = 0
    """states of earlier steps are left out"""
    last_step: int | None = None
    """states of later steps are left out; none: no states"""
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
    device: str = "cpu"
    """cpu or cuda: where agents are shown the episodes and networks are fitted; regressions are the CPU's"""
    overwrite: bool = False
    """replace an earlier run in --out"""
