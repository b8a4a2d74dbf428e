"""The contracts every room keeps.

Axes, used as suffixes in model code and in docstrings: B slots or batch, T steps of an episode,
L window length, H agent hidden, D deterministic world state, S stochastic world state, Z initial
latent, A actions, K directions, N pooled samples.

Alignment, stated once: ``h[t]`` is the hidden state *after* seeing ``obs[t]``; it gives
``logits[t]``, ``value[t]`` and ``action[t]``; ``reward[t]`` and ``obs[t+1]`` follow.

Frames are channels-last everywhere: uint8 in [0, 255] on disk and from an environment, float32 in
[0, 1] from a simulator.  ``Agent.encode`` takes either, and tells them apart by dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

Obs = Mapping[str, np.ndarray]


class UserError(Exception):
    """A mistake the user can mend.  Scripts print it as one line and exit with code 2."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Shape and dtype of one observation field, without the slot axis."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """What a world looks like from outside.

    ``action_names`` are all the choices there are.  In a world whose actions have several parts, ``action_parts``
    says how many of them, in order, belong to each part; logits and masks are then flat, part after part, and an
    action is one index a part.  ``options`` are the settings that make it the same world (JSON values only): two
    specs with the same ``env_id``, ``options``, ``obs`` and ``action_names`` are interchangeable.

    The last three are words of this world, which no stage knows by itself; a world need not have any.
    ``same_actions``: names of actions that do the same in every state, group by group, the first of which stands for
    all.  ``action_words``: a word for each of some sets of actions ("leftwards").  ``events``: what is worth counting,
    in the language of validation.events, by name.
    """

    env_id: str
    obs: Mapping[str, Field]
    action_names: tuple[str, ...]
    slots: int
    options: Mapping[str, Any] = field(default_factory=dict)
    action_parts: Mapping[str, int] = field(default_factory=dict)
    gives_final_obs: bool = True
    can_snapshot: bool = False
    same_actions: tuple[tuple[str, ...], ...] = ()
    action_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    events: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_actions(self) -> int:
        return len(self.action_names)

    def distinct_actions(self) -> dict[str, list[int]]:
        """Ids by the name of what they do: those of ``same_actions`` together, every other one by itself."""
        stands_for = {name: group[0] for group in self.same_actions for name in group}
        out: dict[str, list[int]] = {}
        for i, name in enumerate(self.action_names):
            out.setdefault(stands_for.get(name, name), []).append(i)
        return out

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnvSpec:
        """A stored spec, of an earlier version without the world's words too; a UserError if a key is missing or
        foreign."""
        try:
            obs = {k: Field(shape=tuple(v["shape"]), dtype=v["dtype"]) for k, v in data["obs"].items()}
            same = tuple(tuple(group) for group in data.get("same_actions", ()))
            words = {k: tuple(v) for k, v in data.get("action_words", {}).items()}
            names = tuple(data["action_names"])
            return cls(**{**data, "obs": obs, "action_names": names, "same_actions": same, "action_words": words})
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"not the description of an environment ({error!r})") from None


@dataclass(frozen=True)
class Step:
    """What a vectorised world says after a reset or a step.

    Autoreset is same-step: where ``terminated | truncated``, ``obs`` already belongs to the next
    episode and ``is_first`` is true.  ``final_obs`` holds the last observation of the episode that
    ended (rows elsewhere are meaningless), or is None if the world never shows it (Procgen).
    ``truth`` are ground-truth labels belonging to ``obs``; ``final_truth``, given wherever ``final_obs`` is,
    belongs to that.

    Where a world has many agents, each is a slot.  One that dies has ``terminated`` once, and is then not
    ``alive``: its rows are meaningless and its actions are ignored until its world begins again (``is_first``),
    which happens when nobody is left or the time is up.
    """

    obs: Obs
    reward: np.ndarray  # float32 [B], for the transition that led to obs
    terminated: np.ndarray  # bool [B]
    truncated: np.ndarray  # bool [B]
    is_first: np.ndarray  # bool [B], obs starts an episode
    final_obs: Obs | None = None
    truth: Obs = field(default_factory=dict)
    final_truth: Obs | None = None
    alive: np.ndarray | None = None  # bool [B], this slot's agent is there; None: every one


@runtime_checkable
class VecEnv(Protocol):
    """A batch of B worlds.  ``snapshot``/``restore`` exist where ``spec.can_snapshot``."""

    spec: EnvSpec

    def reset(self, seed: int) -> Step: ...

    def step(self, action: np.ndarray) -> Step:
        """Act in every slot.  action: int [B], or [B, parts] where ``spec.action_parts`` says so."""
        ...

    def snapshot(self) -> tuple[bytes, ...]:
        """The full state of every slot, so that any state can be put into any slot."""
        ...

    def restore(self, states: Sequence[bytes]) -> Step:
        """Put one state into every slot; the Step shows the restored observation (reward 0)."""
        ...

    def close(self) -> None: ...


class Agent(Protocol):
    """A policy as a pure function in named parts; it stores nothing and changes nothing in place."""

    hidden_size: int
    n_actions: int

    def initial(self, batch: int) -> Tensor:
        """The state before the first observation, h_BH."""
        ...

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Observation fields [B, ...] -> e_BE."""
        ...

    def advance(self, e_BE: Tensor, h_BH: Tensor, is_first_B: Tensor) -> Tensor:
        """Next h_BH; where is_first (bool [B]) the previous state is replaced by the initial one."""
        ...

    def heads(self, h_BH: Tensor) -> tuple[Tensor, Tensor]:
        """(logits_BA, value_B)."""
        ...


class Intervention(Protocol):
    """A pure change of the hidden state, applied after ``advance`` and before ``heads``."""

    def __call__(self, h_BH: Tensor, t: int, mask_B: Tensor) -> Tensor:
        """h_BH at step ``t`` -> h_BH; rows where mask (bool [B]) is false come back unchanged."""
        ...


def apply_interventions(
    interventions: Sequence[Intervention], h_BH: Tensor, t: int, mask_B: Tensor | None = None
) -> Tensor:
    """Compose interventions in order.  An empty tuple returns the very same tensor."""
    if not interventions:
        return h_BH
    mask_B = torch.ones(h_BH.shape[0], dtype=torch.bool, device=h_BH.device) if mask_B is None else mask_B
    for intervene in interventions:
        h_BH = intervene(h_BH, t, mask_B)
    return h_BH


class SimState(NamedTuple):
    """Everything a simulator needs to go on.  ``d, s, action`` are the world's, ``h`` the agent's.

    After ``start(z)`` it stands just before the first frame.
    """

    d_BD: Tensor
    s_BS: Tensor
    h_BH: Tensor
    action_BA: Tensor  # the last action, one-hot (straight-through)
    alive_B: Tensor  # bool, the episode has not ended
    t: int


class StepNoise(NamedTuple):
    """Explicit noise of one stochastic step; the first two are standard Gumbel draws (or Gaussian in a
    Gaussian world).  ``None`` in place of the whole means the modal step."""

    s_BS: Tensor
    action_BA: Tensor
    terminal_B: Tensor | None = None  # uniform: the episode ends below its probability; None: if likelier than not


class StepOut(NamedTuple):
    """One simulated step.  ``reward`` and ``terminal`` belong to the transition *into* ``obs``."""

    obs: Mapping[str, Tensor]  # [B, ...]
    reward_B: Tensor
    terminal_B: Tensor  # probability
    d_BD: Tensor
    h_BH: Tensor
    logits_BA: Tensor
    value_B: Tensor
    action_B: Tensor  # int64
    alive_B: Tensor  # bool, this obs exists


class Trajectory(NamedTuple):
    """T simulated transitions, aligned like an Episode: T+1 rows of obs, d, h, logits, value and
    action; T rows of reward and terminal probability (row t is the transition t -> t+1)."""

    obs: Mapping[str, Tensor]  # [B, T+1, ...]
    d: Tensor  # [B, T+1, D]
    h: Tensor  # [B, T+1, H]
    logits: Tensor  # [B, T+1, A]
    value: Tensor  # [B, T+1]
    action: Tensor  # [B, T+1] int64
    reward: Tensor  # [B, T]
    terminal: Tensor  # [B, T]
    alive: Tensor  # [B, T+1] bool


class Simulator(Protocol):
    """A differentiable world with the agent inside.

    Pure: noise is an argument, gradients are never switched off inside.  ``env_grads=False`` cuts
    the gradient at action -> world, and only there.
    """

    spec: EnvSpec
    latent_size: int
    initial_frames: int  # I, observations that ``infer`` takes; the last of them is the first simulated one

    @property
    def agent(self) -> Agent:
        """The very agent; read-only, so that a simulator may declare its own kind."""
        ...

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """A window of initial observations [B, I, ...] -> mean and log-standard-deviation of z_BZ."""
        ...

    def normalise(self, z_BZ: Tensor) -> Tensor:
        """The nearest legal latent (z itself where every vector is legal); idempotent, differentiable."""
        ...

    def start(self, z_BZ: Tensor) -> SimState: ...

    def step(
        self,
        state: SimState,
        action: Tensor | None = None,
        noise: StepNoise | None = None,
        intervene: Sequence[Intervention] = (),
        env_grads: bool = True,
    ) -> tuple[SimState, StepOut]:
        """Advance the world by the state's action, show it to the agent, let it act.

        action: int64 [B], forces what the agent does *now* (in answer to this obs)."""
        ...

    def rollout(
        self,
        z_BZ: Tensor,
        steps: int,
        *,
        actions: Tensor | None = None,
        noise: Sequence[StepNoise] | None = None,
        intervene: Sequence[Intervention] = (),
        env_grads: bool = True,
    ) -> Trajectory:
        """``steps`` transitions from z.  actions: int64 [B, steps+1] forced; noise: steps+1 draws."""
        ...

    def draw_noise(self, batch: int, generator: torch.Generator) -> StepNoise:
        """The noise of one step of ``batch`` rollouts; the generator is on the simulator's device."""
        ...

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        """World states d_BLD along recorded observations [B, I-1+L, ...], without noise.

        Observation I-1+i is simulated step i, at which ``action[:, i]`` (int64) was taken; where
        ``seen`` (bool) is false it is not looked at.
        """
        ...


def rollout(
    simulator: Simulator,
    z_BZ: Tensor,
    steps: int,
    *,
    actions: Tensor | None = None,
    noise: Sequence[StepNoise] | None = None,
    intervene: Sequence[Intervention] = (),
    env_grads: bool = True,
) -> Trajectory:
    """``Simulator.rollout`` in terms of ``start`` and ``step``; simulators call it."""
    state, outs = simulator.start(z_BZ), []
    for t in range(steps + 1):
        state, out = simulator.step(
            state,
            action=None if actions is None else actions[:, t],
            noise=None if noise is None else noise[t],
            intervene=intervene,
            env_grads=env_grads,
        )
        outs.append(out)

    def stack(name: str, first: int = 0) -> Tensor:
        return torch.stack([getattr(out, name) for out in outs[first:]], dim=1)

    return Trajectory(
        obs={k: torch.stack([out.obs[k] for out in outs], dim=1) for k in outs[0].obs},
        d=stack("d_BD"),
        h=stack("h_BH"),
        logits=stack("logits_BA"),
        value=stack("value_B"),
        action=stack("action_B"),
        reward=stack("reward_B", 1) if steps else z_BZ.new_zeros(z_BZ.shape[0], 0),
        terminal=stack("terminal_B", 1) if steps else z_BZ.new_zeros(z_BZ.shape[0], 0),
        alive=stack("alive_B"),
    )


def straight_through(logits_BA: Tensor, noise_BA: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(index int64 [B], one-hot [B, A]) of the largest logit, or of a Gumbel-max sample.

    The one-hot's gradient is that of the softmax (straight-through; Bengio et al. 2013,
    arXiv:1308.3432).
    """
    scores = logits_BA if noise_BA is None else logits_BA + noise_BA
    index = scores.argmax(-1)
    hard = torch.nn.functional.one_hot(index, logits_BA.shape[-1]).to(logits_BA.dtype)
    soft = logits_BA.softmax(-1)
    return index, hard + (soft - soft.detach())
