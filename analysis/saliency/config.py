"""The configuration of analysis.saliency."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Method = Literal["plain", "integrated", "deeplift", "occlusion", "latent"]


@dataclass(frozen=True, kw_only=True)
class SaliencyConfig:
    """Gradients of quantities at a target step with respect to frames, hidden states and world states; straight-through
    where they pass an action of the agent or a categorical state of the world."""

    simulator: Path = Path("runs/simulator")
    """simulator run directory"""
    samples: Path = Path("runs/samples")
    """simulated rollouts of that simulator (generative.record_samples)"""
    out: Path = Path("runs/saliency")
    """run directory to write"""
    sample_ids: tuple[str, ...] = ("0", "to", "8")
    """which episodes of --samples: ids, as in 33 39 56 84, and ranges A to B, which end before B as in Python
    (0 to 8 is 0, 1 ... 7)"""
    combine_samples_not_iterate: bool = False
    """explain one rollout from the mean of the samples' latents instead of each sample"""
    quantities: tuple[str, ...] = ("action", "value")
    """what to explain: value, value_delta (change since the step before), action (log-probability of the chosen
    one), any action by its name, the game's words for several (CoinRun: leftwards, rightwards, jumping_up ...),
    or a direction: ica:ID, pca:ID ... (with --hidden_states; ID alone: of --basis_kind),
    d_pca:ID ... (with --env_states)"""
    hidden_states: Path | None = None
    """hidden_states run directory, for quantities that are directions, and for gradients in their coordinates"""
    env_states: Path | None = None
    """run directory with a basis of world states, for the quantities d_pca:ID ..."""
    basis_kind: str = "ica"
    """the basis that ID alone means, and gradients are given in: pca, ica, nmf, neurons, probe (of analysis.probes)"""
    methods: tuple[Method, ...] = ("integrated",)
    """besides the gradients: plain (gradients without noise), integrated (captum's integrated gradients of the
    target frame), deeplift and occlusion (captum's, of the target frame), latent (captum's integrated gradients of
    the whole rollout, by its latent; slow)"""
    checks: bool = False
    """check every picture of the target frame: infidelity, sensitivity, insertion and deletion, and parts of the agent
    and the world with shuffled weights"""
    steps: int = 10
    """transitions of the rollout that is shown"""
    target_step: int = 4
    """step at which the quantity is read; 0 is the first frame"""
    copies: int = 1
    """noised copies of the frames that every picture is averaged over (SmoothGrad, of any method), with --noise; 1:
    none"""
    noise: float = 0.0
    """standard deviation of that noise, as a share of the frame's range, as in --noise 0.1 --copies 16"""
    integrated_steps: int = 128
    """points on the path of integrated gradients, whose parts miss the change by less the more there are; 0 leaves them
    out"""
    window: int = 8
    """side of the square that occlusion covers, in pixels"""
    stride: int = 4
    """pixels between two such squares"""
    draws: int = 8
    """random changes of a frame that infidelity and sensitivity are measured on"""
    radius: float = 0.02
    """largest change of a number of the frame that sensitivity is asked for; a tenth of it is the standard deviation of
    the noise behind the ceiling of the randomised agents"""
    baseline: Literal["black", "mean"] = "black"
    """what the target frame is compared with: a black frame, or the mean frame of the rollout"""
    batch_size: int = 0
    """samples a forward pass; 0: as many as --memory_gb holds"""
    memory_gb: float = 1.0
    """what one batch may keep for its backward passes, in GB"""
    quantised: bool = False
    """for many samples: keep of the gradients by frames only one signed number a pixel in eight bits (maps.h5), written
    batch by batch, and no gradients by world states; no strips are drawn.  What validation.panel shows"""
    video: bool = True
    """write an MP4 beside every PNG"""
    seed: int = 0
    """seed of the noise and of the randomised agent"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""
