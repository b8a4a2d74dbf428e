"""The configuration of analysis.target_functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TargetFunctionsConfig:
    """Find latents whose simulated rollout shows a target: a value drop, walking backwards, a direction up or down."""

    simulator: Path = Path("runs/simulator")
    """simulator run directory"""
    rollouts: Path | None = None
    """real rollouts of that world, from which starts and controls are inferred; none: random latents"""
    out: Path = Path("runs/target_functions")
    """run directory to write"""
    maximise: tuple[str, ...] = ()
    """targets to raise, one optimisation each: value_drop, value_rise (from --first_step to the end), reward
    (predicted, summed), terminal (log-probability of ending), or the mean over steps of any quantity of
    analysis.saliency (of rollouts that live through half of them): value, any action by its name, the game's words for
    several (CoinRun: leftwards, jumping_up ...), ica:ID, neurons:ID ..."""
    minimise: tuple[str, ...] = ()
    """targets to lower, of the same names"""
    hidden_states: Path | None = None
    """hidden_states run directory, for targets that are directions"""
    basis_kind: str = "ica"
    """the basis that ID alone means: pca, ica, nmf, neurons, probe (of analysis.probes)"""
    samples: int = 16
    """latents to find for each target, each from a start of its own"""
    screen: int = 16
    """untrained latents read for every sample and target; the best is the start.  1: the start is not chosen"""
    restarts: int = 1
    """optimisations a start: the first from the start itself, the others from near it; the best is kept"""
    steps: int = 10
    """transitions of a rollout"""
    first_step: int = 1
    """the target is read from this step to the last; 0 is the first frame"""
    iterations: int = 50
    """steps of Adam"""
    learning_rate: float = 0.1
    """of Adam at the start, in standard deviations of the population; it falls linearly to 0"""
    prior_weight: float = 1.0
    """penalty for leaving the population, in standard deviations of the target over the population: what a latent costs
    whose distance from the population's centre is one standard deviation above the mean; at two it costs four times
    that; 0: no penalty"""
    env_grads: bool = True
    """let the gradient pass straight through the agent's actions to their consequences; the world's categorical states
    are passed straight through either way"""
    noisy: int = 8
    """noisy rollouts a start, before and after, which say whether the effect outlives the world's noise"""
    drawn: int = 8
    """starts that are drawn of each target, the first ones"""
    video: bool = True
    """write an MP4 beside every PNG"""
    memory_gb: float = 1.0
    """what one forward pass may keep for its backward pass, in GB"""
    seed: int = 0
    """seed of starts and noise"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""
