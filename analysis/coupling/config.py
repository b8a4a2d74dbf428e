"""The configuration of analysis.coupling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class CouplingConfig:
    """Cross-correlation and Jacobian between directions, per behaviour and lag, and how far they agree."""

    simulator: Path = Path("runs/simulator")
    """simulator run directory"""
    samples: Path = Path("runs/samples")
    """simulated rollouts of that simulator; the Jacobians' starting points"""
    hidden_states: Path = Path("runs/hidden_states")
    """hidden_states run directory with the directions"""
    behaviours: Path | None = Path("runs/behaviours")
    """behaviours run directory that labels the steps of --samples; none: all steps are one behaviour"""
    rollouts: Path | None = None
    """real rollouts to take the correlations from (labelled by --behaviours too); none: --samples"""
    out: Path = Path("runs/coupling")
    """run directory to write"""
    basis_kind: str = "ica"
    """pca, ica, nmf, neurons, probe (of analysis.probes)"""
    directions: tuple[str, ...] = ()
    """the directions, such as ica:0 ica:5; none: the first --max_directions of the basis"""
    max_directions: int = 8
    """at most so many directions where --directions names none; 0: all"""
    lags: tuple[int, ...] = (1, 2, 4)
    """steps between source and target; 0 is the same step, of which there is a correlation but no Jacobian"""
    extremes: float = 0.0
    """share of steps at either end of a direction (0.02: its upper and lower 2 %) given which later means and Jacobians
    of the others are taken too, up to --samples_per_behaviour an end, direction and lag; 0: none"""
    samples_per_behaviour: int = 32
    """Jacobians averaged per behaviour, from as many episodes as there are"""
    most_states: int = 200_000
    """at most about so many steps of either recording, of whole episodes drawn at random; 0: all.  Correlations also
    need eight bytes a pair of episodes and direction"""
    alpha: float = 0.05
    """false discovery rate at which an entry counts as significant; behaviours with too few episodes for it are
    left out"""
    permutations: int = 1999
    """permutations of whole episodes; p-values are no finer than one over so many"""
    resamples: int = 1000
    """resamples of whole episodes behind the 95 % intervals of correlations"""
    batch_size: int = 0
    """samples a forward pass; 0: as many as --memory_gb holds"""
    memory_gb: float = 1.0
    """what one forward pass and its batched backward pass may hold, in GB"""
    seed: int = 0
    """seed of the choice of samples and of the permutations"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""
