"""Pictures of randomised agents and worlds (Adebayo et al. 2018, arXiv:1810.03292) against what two randomised ones and
two noises have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from analysis.shared.gradients import agent_gradients, gradients
from analysis.shared.quantities import Quantity
from analysis.shared.randomised import randomised, randomised_world
from core.contracts import Agent
from core.roll import Simulator
from core.trees import Tree

LATENT_NOISE = 1.25e-4  # of every number of a latent: two rollouts that differ by next to nothing


def parts_from_the_output(agent: Agent) -> list[str]:
    """Parts of an agent, the last computed first: those that are registered last."""
    if not isinstance(agent, nn.Module):
        return []
    return list(dict.fromkeys(name.split(".")[0] for name, _ in reversed(list(agent.named_parameters()))))


def rank_correlation(a_BX: np.ndarray, b_BX: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation [B] of the absolute values of two maps, row by row; NaN for a constant map."""
    from scipy.stats import rankdata

    ranks = [rankdata(np.abs(x.reshape(len(x), -1)), axis=1) for x in (a_BX, b_BX)]
    a, b = (r - r.mean(1, keepdims=True) for r in ranks)
    norm = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.divide((a * b).sum(1), norm, out=np.full(len(a), np.nan), where=norm > 0)


def agent_randomisation(
    agent: Agent, seen: Mapping[str, Tensor], memory: Tree, chosen_S: Tensor, quantity: Quantity, seed: int,
    noise: float, cascade: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Pictures of the last of the frames [S, T, ...] by the agent and by agents with shuffled weights.

    By what is shuffled: rank correlations [S, 3] of |gradient| between the agent and a shuffled one; between two
    shuffled ones; and the agent's own under two noises of the frames.
    cascade: also with the parts shuffled one after the other, from the output back.  noise: standard deviation.
    """

    def last(who: Agent, frames: Mapping[str, Tensor]) -> np.ndarray:
        maps = agent_gradients(who, frames, memory, chosen_S, quantity)
        return np.concatenate([x[:, -1].flatten(1).cpu().numpy() for x in maps.values()], 1)

    generator = torch.Generator().manual_seed(seed)

    def noised(x: Tensor) -> Tensor:  # the same for every sample, whatever its batch
        return x + noise * torch.randn(x.shape[1:], generator=generator, dtype=x.dtype).to(x.device)

    mine, whole = last(agent, seen), last(randomised(agent, seed), seen)
    found = {"agent": rank_correlation(mine, whole)}
    parts = parts_from_the_output(agent) if cascade else []
    for n in range(1, len(parts)):
        name = "agent, from the output to " + parts[n - 1]
        found[name] = rank_correlation(mine, last(randomised(agent, seed, parts[:n]), seen))
    floor = rank_correlation(whole, last(randomised(agent, seed + 1), seen))
    ceiling = rank_correlation(*(last(agent, {n: noised(x) for n, x in seen.items()}) for _ in range(2)))
    return {name: np.stack([x, floor, ceiling], 1) for name, x in found.items()}


def world_randomisation(
    simulator: Simulator[Any], z_SZ: Tensor, chosen_S: Tensor, quantities: Sequence[Quantity], target: int, seed: int,
) -> list[dict[str, np.ndarray]]:  # fmt: skip
    """The same for the world around the agent, a quantity each: gradients on all frames up to the target, and on d.

    Noise: of the latent, with standard deviation LATENT_NOISE.  A shuffled world also shows and does
    other things, so that its pictures are of other frames.
    """
    generator = torch.Generator().manual_seed(seed)

    def maps(used: Simulator[Any], z: Tensor) -> list[dict[str, np.ndarray]]:
        found = gradients(used, z, chosen_S, quantities, target, steps=target, paths=(True,))
        return [
            {
                "frames": np.concatenate([x.flatten(1).cpu().numpy() for x in g.obs.values()], 1),
                "world states": g.d.flatten(1).cpu().numpy(),
            }
            for (g,) in found
        ]

    def noised() -> Tensor:
        return simulator.world.normalise(
            z_SZ + LATENT_NOISE * torch.randn(z_SZ.shape[1:], generator=generator, dtype=z_SZ.dtype).to(z_SZ.device)
        )

    mine = maps(simulator, z_SZ)
    one, two = (maps(randomised_world(simulator, seed + n), z_SZ) for n in range(2))
    again = [maps(simulator, noised()) for _ in range(2)]
    return [
        {
            f"world, on {what}": np.stack(
                [rank_correlation(x[q][what], y[q][what]) for x, y in ((mine, one), (one, two), tuple(again))], 1
            )
            for what in mine[q]
        }
        for q in range(len(quantities))
    ]
