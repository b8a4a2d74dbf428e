"""The configuration of analysis.dynamics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DynamicsConfig:
    """Fixed points, time constants and Lyapunov exponents of an agent's recurrence."""

    agent: Path = Path("runs/agent")
    """agent run directory"""
    rollouts: Path = Path("runs/rollouts")
    """real rollouts of that agent: starts of the searches, frames for constant inputs, inputs for the exponents"""
    behaviours: Path | None = None
    """behaviours run directory: the constant inputs are the central frames of its behaviours; none: typical frames"""
    hidden_states: Path | None = None
    """hidden_states run directory: say which directions of --basis_kind each mode lies along"""
    basis_kind: str = "ica"
    """pca, ica, nmf, neurons, probe (of analysis.probes)"""
    out: Path = Path("runs/dynamics")
    """run directory to write"""
    inputs: int = 6
    """constant inputs beside the mean one: so many typical frames (without --behaviours)"""
    starts: int = 128
    """recorded states from which the search for fixed points starts, from as many episodes as there are"""
    iterations: int = 300
    """most steps of that search"""
    slow_speed: float = 0.01
    """a point where the search ends and the state still moves, but less than this, is a slow point (rms standard
    deviations of the recorded states a step)"""
    merge: float = 0.1
    """points nearer than this are one (rms standard deviations)"""
    most_states: int = 200_000
    """at most about so many recorded states, of whole episodes drawn at random; 0: all"""
    settle: int = 300
    """steps after which a state under a constant input has settled"""
    slow_steps: float = 20.0
    """a mode with at least this time constant (steps) is slow: a line attractor has one, a plane two"""
    burn_in: int = 32
    """first steps of an episode that the Lyapunov exponents leave out, in which their directions turn to where
    differences last longest; with too few, memory looks shorter than it is"""
    lyapunov_steps: int = 96
    """at most so many steps of an episode, and of a constant input, for the exponents; --burn_in is among them"""
    seed: int = 0
    """seed of the choice of frames and starts, and of the intervals"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""
