"""Let an agent act in a world: the loop that recording and evaluation share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from core.contracts import Agent, Intervention, Step, VecEnv, apply_interventions


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """How actions are drawn from the agent's logits; works in any world with one discrete action."""

    greedy: bool = False
    """take the largest logit (no noise at all)"""
    explore_share: float = 0.0
    """share of slots that explore with the three settings below; the others follow the agent's policy"""
    temperature: float = 1.0
    """logits are divided by this in exploring slots"""
    sticky: float = 0.0
    """probability of repeating the previous action in exploring slots"""
    random: float = 0.0
    """probability of a uniformly random action in exploring slots"""


@dataclass
class Chooser:
    """Draws actions; all its randomness comes from ``rng``."""

    exploration: Exploration
    slots: int
    rng: np.random.Generator
    explores_B: np.ndarray = field(init=False)
    _previous_B: np.ndarray | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        count = round(self.exploration.explore_share * self.slots)
        self.explores_B = np.arange(self.slots) < count

    def __call__(self, logits_BA: np.ndarray, is_first_B: np.ndarray) -> np.ndarray:
        x = self.exploration
        if x.greedy:
            return logits_BA.argmax(-1).astype(np.int64)
        temperature_B = np.where(self.explores_B, x.temperature, 1.0)
        action_B = (logits_BA / temperature_B[:, None] + self.rng.gumbel(size=logits_BA.shape)).argmax(-1)
        uniform_B = self.rng.integers(logits_BA.shape[1], size=self.slots)
        action_B = np.where(self.explores_B & (self.rng.random(self.slots) < x.random), uniform_B, action_B)
        if self._previous_B is not None:
            sticks_B = self.explores_B & ~is_first_B & (self.rng.random(self.slots) < x.sticky)
            action_B = np.where(sticks_B, self._previous_B, action_B)
        self._previous_B = action_B.astype(np.int64)
        return self._previous_B


@dataclass(frozen=True)
class Moment:
    """One step of every slot, and what followed it."""

    obs: dict[str, np.ndarray]
    truth: dict[str, np.ndarray]
    is_first_B: np.ndarray
    age_B: np.ndarray  # steps since the episode began
    h_BH: np.ndarray
    altered_B: np.ndarray  # bool, an intervention changed this h
    value_B: np.ndarray
    logits_BA: np.ndarray
    action_B: np.ndarray
    next: Step
    final_h_BH: np.ndarray | None  # after next.final_obs, where the world shows one
    final_value_B: np.ndarray | None


def tensors(obs: dict[str, np.ndarray] | Step, device: torch.device) -> dict[str, Tensor]:
    """Observation fields as tensors on a device."""
    fields = obs.obs if isinstance(obs, Step) else obs
    return {k: torch.from_numpy(v).to(device) for k, v in fields.items()}


def intervene_by_age(interventions: Sequence[Intervention], h_BH: Tensor, age_B: np.ndarray) -> Tensor:
    """Apply interventions where every slot is at its own step of its own episode."""
    if not interventions:
        return h_BH
    for age in np.unique(age_B):
        mask_B = torch.from_numpy(age_B == age).to(h_BH.device)
        h_BH = apply_interventions(interventions, h_BH, int(age), mask_B)
    return h_BH


@torch.no_grad()
def play(
    agent: Agent,
    env: VecEnv,
    chooser: Chooser,
    *,
    seed: int,
    device: torch.device,
    intervene: Sequence[Intervention] = (),
) -> Iterator[Moment]:
    """Endless moments from a fresh reset."""
    slots = env.spec.slots
    step = env.reset(seed)
    h_BH = agent.initial(slots)
    age_B = np.zeros(slots, np.int64)
    while True:
        age_B = np.where(step.is_first, 0, age_B)
        is_first = torch.from_numpy(step.is_first).to(device)
        untouched_BH = agent.advance(agent.encode(tensors(step, device)), h_BH, is_first)
        h_BH = intervene_by_age(intervene, untouched_BH, age_B)
        logits, value = agent.heads(h_BH)
        action_B = chooser(logits.cpu().numpy(), step.is_first)
        after = env.step(action_B)
        final_h = final_value = None
        if after.final_obs is not None and (after.terminated | after.truncated).any():
            final = agent.encode(tensors(dict(after.final_obs), device))
            final_h = agent.advance(final, h_BH, torch.zeros_like(is_first))
            final_h = intervene_by_age(intervene, final_h, age_B + 1)
            final_value = agent.heads(final_h)[1]
        yield Moment(
            obs=dict(step.obs),
            truth=dict(step.truth),
            is_first_B=step.is_first,
            age_B=age_B,
            h_BH=h_BH.cpu().numpy(),
            altered_B=(h_BH != untouched_BH).any(-1).cpu().numpy(),
            value_B=value.cpu().numpy(),
            logits_BA=logits.cpu().numpy(),
            action_B=action_B,
            next=after,
            final_h_BH=None if final_h is None else final_h.cpu().numpy(),
            final_value_B=None if final_value is None else final_value.cpu().numpy(),
        )
        step, age_B = after, age_B + 1
