"""Let an agent act in a world: the loop that recording and evaluation share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.contracts import Agent, Intervention, Obs, Shown, Step, UserError, VecEnv
from core.ranks import Processes
from core.roll import Acted, act, one_hot, roll
from core.trees import Tree


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

    def check(self, slots: int) -> None:
        """UserError where a setting would do nothing, or nothing of what was asked.  (A preset that explores does not
        where --greedy is said.)"""
        if self.greedy:
            return
        noise = self.temperature != 1 or self.sticky > 0 or self.random > 0
        if noise and not self.explore_share:
            raise UserError("--temperature, --sticky and --random are of slots that explore: give --explore_share too")
        if self.explore_share and not noise:
            raise UserError("--explore_share says how many slots explore: say how (--random, --sticky, --temperature)")
        if self.explore_share and not round(self.explore_share * slots):
            raise UserError(f"--explore_share {self.explore_share:g} of {slots} slots is none: give more of either")


def likeliest(scores_BA: np.ndarray, parts: Sequence[int]) -> np.ndarray:
    """The choice of the largest score of every part of an action, int64 [B, P]."""
    of_parts = np.split(scores_BA, np.cumsum(parts)[:-1], -1)
    return np.stack([scores.argmax(-1) for scores in of_parts], -1).astype(np.int64)


@dataclass
class Chooser:
    """Draws actions, int64 [B], or [B, P] where they have several parts; all its randomness comes from ``rng``."""

    exploration: Exploration
    slots: int
    rng: np.random.Generator
    parts: tuple[int, ...] = ()  # choices of each part; (): one part
    mine: slice = field(default_factory=lambda: slice(None))  # the slots asked for, of those that are drawn for
    explores_B: np.ndarray = field(init=False)
    _previous_BP: np.ndarray | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        count = 0 if self.exploration.greedy else round(self.exploration.explore_share * self.slots)
        self.explores_B = (np.arange(self.slots) < count)[self.mine]

    def __call__(self, logits_BA: np.ndarray, is_first_B: np.ndarray) -> np.ndarray:
        x, parts = self.exploration, self.parts or (logits_BA.shape[1],)
        if x.greedy:
            action_BP = likeliest(logits_BA, parts)
            return action_BP if len(parts) > 1 else action_BP[:, 0]
        temperature_B = np.where(self.explores_B, x.temperature, 1.0)
        noise_BA = self.rng.gumbel(size=(self.slots, logits_BA.shape[1]))[self.mine]
        action_BP = likeliest(logits_BA / temperature_B[:, None] + noise_BA, parts)
        uniform_BP = np.stack([self.rng.integers(n, size=self.slots)[self.mine] for n in parts], -1)
        random_B = self.explores_B & (self.rng.random(self.slots)[self.mine] < x.random)
        action_BP = np.where(random_B[:, None], uniform_BP, action_BP)
        if self._previous_BP is not None:
            sticks_B = self.explores_B & ~is_first_B & (self.rng.random(self.slots)[self.mine] < x.sticky)
            action_BP = np.where(sticks_B[:, None], self._previous_BP, action_BP)
        self._previous_BP = action_BP
        return action_BP if len(parts) > 1 else action_BP[:, 0]

    def state(self) -> dict[str, Any]:
        """All that the next draw depends on, as tensors and numbers."""
        previous = None if self._previous_BP is None else torch.from_numpy(self._previous_BP.copy())
        return {"rng": self.rng.bit_generator.state, "previous": previous}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Draw on from what ``state`` gave."""
        self.rng.bit_generator.state = state["rng"]
        self._previous_BP = None if state["previous"] is None else state["previous"].numpy()


def tensors(obs: Obs | Step, device: torch.device) -> dict[str, Tensor]:
    """Observation fields as tensors on a device."""
    fields = obs.obs if isinstance(obs, Step) else obs
    return {k: torch.from_numpy(v).to(device) for k, v in fields.items()}


class SharedEnv:
    """A process's slots of a world that has more of them: they go on from what all are at a reset.  ``inner`` has these
    slots alone, ``spec`` is of the whole."""

    def __init__(self, make: Callable[[int], VecEnv], slots: int, processes: Processes) -> None:
        """make: the world with so many slots.  Raises UserError where it takes no snapshots."""
        self._make, self._slots, self._mine = make, slots, processes.part(slots)
        self.inner = make(slots // processes.count)
        if not self.inner.spec.can_snapshot:
            raise UserError(f"{self.inner.spec.env_id} takes no snapshots, so several processes cannot share it: start "
                            "this with python, not with torchrun")  # fmt: skip
        self.spec = replace(self.inner.spec, slots=slots)
        self.step, self.snapshot, self.restore, self.close = (
            self.inner.step, self.inner.snapshot, self.inner.restore, self.inner.close,
        )  # fmt: skip

    def reset(self, seed: int) -> Step:
        whole = self._make(self._slots)
        try:
            whole.reset(seed)
            step = self.inner.restore(whole.snapshot()[self._mine])
        finally:
            whole.close()
        return replace(step, is_first=np.ones_like(step.is_first))


class LiveWorld:
    """A VecEnv as core.contracts.World, as far as it can be one.

    Its state is a token, int64 [B], that can be gone on from once: the environment moves on.  Asked again with the same
    token and action, it shows the same again.  An episode that ended is followed by the next (``Shown.is_first_B``),
    ``ending_B`` is 0 or 1, and there are no features, no noise and no gradients.
    """

    def __init__(self, env: VecEnv, device: torch.device) -> None:
        self.env, self.spec, self.device = env, env.spec, device
        self.now: Step | None = None  # what the environment said last
        self._steps = 0
        self._went: tuple[int, Tensor, Tensor, Shown] | None = None  # from which step, by what, to what

    def reset(self, seed: int) -> tuple[Tensor, Shown]:
        """The first observations of a fresh run; ``start`` of a world that has latents."""
        self._went = None
        return self._said(self.env.reset(seed))

    def restore(self, states: Sequence[bytes]) -> tuple[Tensor, Shown]:
        """What these snapshots show, one a slot."""
        self._went = None
        return self._said(self.env.restore(states))

    def step(self, state: Tensor, action_BA: Tensor, noise: None = None) -> tuple[Tensor, Shown]:
        """One step of every slot."""
        step = int(state[0])
        if self._went is not None and step == self._went[0] and torch.equal(action_BA, self._went[1]):
            return self._went[2:]
        if step != self._steps:
            raise ValueError(f"this environment is at step {self._steps}; it cannot go on from step {step}")
        parts = action_BA.split(list(self.spec.parts), 1)
        action = torch.stack([part.argmax(1) for part in parts], 1).cpu().numpy()
        self._steps += 1
        after, shown = self._said(self.env.step(action if self.spec.action_parts else action[:, 0]))
        self._went = step, action_BA, after, shown
        return after, shown

    def _said(self, step: Step) -> tuple[Tensor, Shown]:
        self.now = step
        obs = tensors(step, self.device)
        reward, ending, is_first = (torch.from_numpy(x).to(self.device) for x in (
            step.reward, step.terminated | step.truncated, step.is_first))  # fmt: skip
        slots = len(reward)
        shown = Shown(obs, reward, ending.to(reward.dtype), reward.new_zeros(slots, 0), is_first)
        return torch.full((slots,), self._steps), shown


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
    seen: Tree  # what the agent makes of the observation, on its device
    state: Tree  # the agent's whole state, on its device
    final_seen: Tree | None
    final_state: Tree | None
    alive_B: np.ndarray  # bool, this slot's agent is there


class Begin(NamedTuple):
    """Where ``play`` goes on after a step."""

    snapshots: Sequence[bytes]  # of every slot
    state: Tree  # the agent's
    age_B: np.ndarray  # int64, steps of the episodes at that step


@torch.no_grad()
def play(
    agent: Agent,
    env: VecEnv,
    chooser: Callable[[np.ndarray, np.ndarray], np.ndarray],
    *,
    seed: int,
    device: torch.device,
    intervene: Sequence[Intervention] = (),
    forget: bool = False,
    begin: Begin | None = None,
) -> Iterator[Moment]:
    """Endless moments from a fresh reset, or on from ``begin``.

    chooser: (logits [B, A], is_first [B]) -> actions, int64 [B] or [B, P], such as a ``Chooser``.  forget: as in
    core.roll.roll.
    """
    world = LiveWorld(env, device)

    def choose_by(acted: Acted, shown: Shown) -> tuple[Tensor, Tensor]:
        assert shown.is_first_B is not None
        chosen = chooser(acted.logits_BA.cpu().numpy(), shown.is_first_B.cpu().numpy())
        index = torch.from_numpy(chosen).to(device)
        return index, one_hot(index, agent.spec.parts, acted.logits_BA)

    if begin is None:
        shown, place = world.reset(seed), {}
    else:
        shown = world.restore(begin.snapshots)
        place = {"memory": begin.state, "first": torch.from_numpy(begin.age_B).to(device) + 1}
    for m in roll(agent, world, shown, choose_by=choose_by, intervene=intervene, forget=forget, **place):
        step = world.now
        world.step(m.world, m.action_BA)  # now, so that a moment knows what followed; the roll is shown the same
        after = world.now
        assert step is not None and after is not None
        final = None
        if after.final_obs is not None and (after.terminated | after.truncated).any():
            last, going = tensors(after.final_obs, device), torch.zeros_like(m.alive_B)
            final = act(agent, last, m.acted.state, going, m.t_B + 1, intervene)
        h = m.h_BH
        altered = (h != agent.read("h", m.acted.seen, m.acted.untouched)).any(-1) if intervene else h.new_zeros(len(h))
        yield Moment(
            obs=dict(step.obs),
            truth=dict(step.truth),
            is_first_B=step.is_first,
            age_B=m.t_B.cpu().numpy(),
            h_BH=h.cpu().numpy(),
            altered_B=altered.bool().cpu().numpy(),
            value_B=m.acted.value_B.cpu().numpy(),
            logits_BA=m.acted.logits_BA.cpu().numpy(),
            action_B=m.action.cpu().numpy(),
            next=after,
            final_h_BH=None if final is None else final.h_BH.cpu().numpy(),
            final_value_B=None if final is None else final.value_B.cpu().numpy(),
            seen=m.acted.seen,
            state=m.acted.state,
            final_seen=None if final is None else final.seen,
            final_state=None if final is None else final.state,
            alive_B=np.ones(len(h), bool) if step.alive is None else step.alive,
        )
