"""The contracts every room keeps: environment, agent, world (a simulator is one), intervention.

Axes, used as suffixes in model code and in docstrings: B slots or batch, T steps of an episode,
L window length, H agent hidden, D deterministic world state, S stochastic world state, Z initial
latent, A actions, K directions, N pooled samples.

Alignment, stated once: ``h[t]`` is the hidden state *after* seeing ``obs[t]``; it gives
``logits[t]``, ``value[t]`` and ``action[t]``; ``reward[t]`` and ``obs[t+1]`` follow.

Frames are channels-last everywhere: uint8 in [0, 255] on disk and from an environment, float32 in
[0, 1] from a simulator.  ``Agent.encode`` takes either, and tells them apart by dtype.

States are trees: nested tuples of tensors, batch first, and nothing else (core.trees).  The one loop is core.roll.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from core.trees import Tree

Obs = Mapping[str, np.ndarray]


class UserError(Exception):
    """A mistake the user can mend.  Scripts print it as one line and exit with code 2."""


FieldKind = Literal["image", "real", "binary", "one_hot", "other"]


@dataclass(frozen=True, kw_only=True)
class Field:
    """Shape and dtype of one observation field, without the slot axis, and what its numbers stand for.

    ``kind`` is what a world model must know: an image is uint8 [height, width, channels]; real numbers, numbers that
    are 0 or 1 (binary) and one-hot categories are vectors; "" goes by shape and dtype (uint8 of three axes: image;
    float: real; bool: binary).  ``groups`` are the numbers of categories of a one-hot vector that holds several, one
    after the other (default: it holds one).  ``start`` is the number of the first category, where the world gives this
    field as the number of one, or of one a group.  All are words about the field: two fields of one shape and dtype
    are the same field.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: FieldKind | Literal[""] = field(default="", compare=False)
    groups: tuple[int, ...] = field(default=(), compare=False)
    start: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.kind and self.kind not in get_args(FieldKind):
            raise UserError(f"no kind of observation field {self.kind!r}; there are: {', '.join(get_args(FieldKind))}")
        if self.groups and (self.kind != "one_hot" or (sum(self.groups), min(self.groups) > 0) != (self.size, True)):
            raise UserError(
                f"an observation field of shape {self.shape} and kind {self.kind or self.means!r} cannot have groups "
                f"{self.groups}: a one-hot vector's add up to its length"
            )

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def means(self) -> FieldKind:
        """``kind``, or what shape and dtype say."""
        if self.kind:
            return self.kind
        if self.dtype == "uint8" and len(self.shape) == 3:
            return "image"
        return "real" if self.dtype.startswith("float") else "binary" if self.dtype == "bool" else "other"

    @property
    def categories(self) -> tuple[int, ...]:
        """``groups`` of a one-hot field: one, if it names none."""
        return self.groups or (self.size,)

    def one_hot(self, category: np.ndarray, what: str) -> np.ndarray:
        """Categories by the world's numbers, [...] or of several ``groups`` [..., groups] -> [..., size].  UserError,
        which begins with ``what``, for one that there is not, or where no number is known to be the first."""
        if self.start is None:
            raise UserError(
                f"{what} is given by numbers of categories, but which is the first is not known; give it one-hot, or "
                "make the agent's run directory again"
            )
        out = []
        for group, size in enumerate(self.categories):
            number = category[..., group] if self.groups else category
            is_it = number[..., None] == self.start + np.arange(size)
            known = is_it.any(-1)
            if not known.all():
                there, last = f" at {group}" if self.groups else "", self.start + size - 1
                said = f"{what} has the category {number[~known][0]}{there}"
                raise UserError(f"{said}; it has {self.start} to {last}, all whole")
            out.append(is_it)
        return np.concatenate(out, -1).astype(self.dtype)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The shape in which the world gives categories by their numbers."""
        return (len(self.groups),) if self.groups else ()

    def cast(self, value: np.ndarray, what: str) -> np.ndarray:
        """A fresh array of the field's dtype.  UserError, which begins with ``what``, where a number is not finite, or
        not in this dtype."""
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise UserError(f"{what} has NaN or infinite values")
        with np.errstate(over="ignore"):
            out = np.array(value, self.dtype)
        if out.dtype.kind == "f" and not (fits := np.isfinite(out)).all():
            raise UserError(f"{what} has {value[~fits][0]:g}, which does not fit {self.dtype}")
        return out


REWARD = Field(shape=(), dtype="float32")  # of a step


def numbers_of_distinct(actions: Mapping[str, Sequence[int]]) -> np.ndarray:
    """int64 [A]: of every id its number among ``actions`` (``EnvSpec.distinct_actions``), so that ids that do the same
    have one."""
    number_A = np.zeros(sum(map(len, actions.values())), np.int64)
    for number, ids in enumerate(actions.values()):
        number_A[list(ids)] = number
    return number_A


POOL = ("start_level", "num_levels", "first_map", "num_maps")  # options that say which levels, or maps, starts are of


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
    in the language of analysis.shared.events, by name.
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

    @property
    def parts(self) -> tuple[int, ...]:
        """Choices of each part of an action; one part where the world names none."""
        return tuple(self.action_parts.values()) or (self.n_actions,)

    @property
    def first_P(self) -> np.ndarray:
        """Where each part's choices begin among ``action_names``, flat logits and masks, int64 [P]: the numbers there
        of what an action [..., P] chose are ``action + first_P``."""
        return np.cumsum([0, *self.parts[:-1]])

    @property
    def names_of_parts(self) -> list[tuple[str, ...]]:
        """The names of each part's choices; of one part: of all."""
        return [self.action_names[i : i + n] for i, n in zip(self.first_P.tolist(), self.parts, strict=True)]

    def in_words(self, action: int | Sequence[int] | np.ndarray) -> str:
        """The name of an action, a number or one a part (int, [parts]): "left", of several parts "left + jump".
        ValueError where it has another number of parts."""
        numbers = np.atleast_1d(np.asarray(action)).tolist()
        return " + ".join(names[i] for names, i in zip(self.names_of_parts, numbers, strict=True))

    @property
    def pictures(self) -> tuple[str, ...]:
        """The fields that are pictures (``Field.means``), in order; as_rgb of core.figures shows any."""
        return tuple(name for name, field in self.obs.items() if field.means == "image")

    @property
    def picture(self) -> str | None:
        """The one that is drawn and filmed: the first in colour, else in grey, else the first; None where there is
        none."""
        order = {3: 0, 1: 1}  # by channels
        return min(self.pictures, key=lambda name: order.get(self.obs[name].shape[-1], 2), default=None)

    @property
    def main_field(self) -> str:
        """The field that is shown and measured where one of several is: ``picture``; where there is none the first."""
        return self.picture or next(iter(self.obs))

    @property
    def settings(self) -> dict[str, Any]:
        """The options that make it this world; which pool of levels its starts are drawn from is not among them."""
        return {k: v for k, v in self.options.items() if k not in POOL}

    def differences(self, other: EnvSpec) -> list[str]:
        """What makes the other one another world: some of env_id, obs, action_names, action_parts, options."""
        same = ("env_id", "obs", "action_names", "action_parts")
        found = [what for what in same if getattr(self, what) != getattr(other, what)]
        return found + (["options"] if self.settings != other.settings else [])

    def same_world(self, other: EnvSpec) -> bool:
        """Whether the two are of one world, whatever the pool of levels that their starts are drawn from."""
        return not self.differences(other)

    def distinct_actions(self) -> dict[str, list[int]]:
        """Ids by the name of what they do: those of ``same_actions`` together, every other one by itself."""
        stands_for = {name: group[0] for group in self.same_actions for name in group}
        out: dict[str, list[int]] = {}
        for i, name in enumerate(self.action_names):
            out.setdefault(stands_for.get(name, name), []).append(i)
        return out

    def distinct_choices(self) -> list[list[int]]:
        """Ids of what each part of an action can do, part after part: those of ``same_actions`` together, every other
        one by itself.  Of a world whose actions have one part: of ``distinct_actions``."""
        part_A = [part for part, count in enumerate(self.parts) for _ in range(count)]
        out: dict[tuple[int, str], list[int]] = {}
        for name, ids in self.distinct_actions().items():
            for i in ids:
                out.setdefault((part_A[i], name), []).append(i)
        return sorted(out.values(), key=lambda ids: part_A[ids[0]])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnvSpec:
        """A stored spec, of an earlier version without the world's words too; a UserError if a key is missing or
        foreign."""
        try:
            obs = {
                k: Field(**{**v, "shape": tuple(v["shape"]), "groups": tuple(v.get("groups", ()))})
                for k, v in data["obs"].items()
            }
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

    @classmethod
    def unmoved(cls, obs: Obs, is_first: np.ndarray, truth: Obs) -> Step:
        """What is there after a reset or a restoring: nothing was paid, and nothing ended."""
        slots = is_first.shape
        return cls(
            obs, np.zeros(slots, np.float32), np.zeros(slots, bool), np.zeros(slots, bool), is_first, truth=truth
        )


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


@runtime_checkable
class Editable(Protocol):
    """A VecEnv in whose snapshots a number of its truth can be set."""

    def edited(self, states: Sequence[bytes], name: str, value: float) -> tuple[bytes, ...]:
        """The states with the number ``name`` (as analysis.shared.truths.told_by calls it) at ``value``, all else as it
        was; UserError for one that cannot be set."""
        ...


class Agent(Protocol):
    """A policy as a pure function in named parts: it keeps nothing between calls and changes nothing in place.

    ``points``: name -> width of every vector that can be read and replaced; ``h`` always, others such as ``cell``,
    ``embedding``, ``block_0``.  A feed-forward agent's state is its last layer.  A point may be a view of another one
    (a plane that h is projected onto): what is put there moves that one.
    """

    @property
    def spec(self) -> EnvSpec: ...

    @property
    def points(self) -> Mapping[str, int]: ...

    def initial(self, batch: int) -> Tree:
        """The state before the first observation."""
        ...

    def encode(self, obs: Mapping[str, Tensor]) -> Tree:
        """Observation fields [B, ...] -> all that the other parts need of them (``seen``), masks and keys included."""
        ...

    def advance(self, seen: Tree, state: Tree, is_first_B: Tensor) -> Tree:
        """The state after the observation; where is_first (bool [B]) the previous one counts as the initial one."""
        ...

    def heads(self, seen: Tree, state: Tree) -> tuple[Tensor, Tensor]:
        """(logits_BA, value_B); logits flat over the parts of an action, -1e9 where a choice is not allowed."""
        ...

    def read(self, point: str, seen: Tree, state: Tree) -> Tensor:
        """The vector at a point, float [B, width]."""
        ...

    def replaced(self, point: str, x_BN: Tensor, seen: Tree, state: Tree) -> tuple[Tree, Tree]:
        """(seen, state) with another vector at the point; ``read`` then gives it back."""
        ...


class Intervention(Protocol):
    """A pure change of the hidden state, applied after ``advance`` and before ``heads``."""

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        """h_BH at steps ``t`` (int64 [B], of each row's episode) -> h_BH; rows where mask (bool [B]) is false come
        back unchanged."""
        ...


class Shown(NamedTuple):
    """What a world shows after a start or a step.  ``reward`` and ``ending`` belong to the transition that led here."""

    obs: Mapping[str, Tensor]  # [B, ...]
    reward_B: Tensor
    ending_B: Tensor  # probability that the transition ended the episode (0 or 1 where it is known)
    features_BD: Tensor  # what the world's state is for analyses
    is_first_B: Tensor | None = None  # bool, obs starts an episode; None: nowhere but at a start without a memory
    # Chance of a reward at all where the episode [goes on, ends]; reward_B is the mean.  None: reward_B is known.
    paid_B2: Tensor | None = None


class World(Protocol):
    """A differentiable world with no agent in it: pure, noise is an argument, no gradient is switched off inside."""

    @property
    def spec(self) -> EnvSpec: ...

    def start(self, z_BZ: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        """The first observation that a latent stands for, and the state that goes on from it."""
        ...

    def step(self, state: Tree, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        """What follows an action, a float one-hot for each part, concatenated.  noise: one ``draw_noise``; None: the
        likeliest course."""
        ...

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tree:
        """The noise of one step of ``batch`` rows; the generator is on the world's device."""
        ...


class Inference(Protocol):
    """Latents from frames, where a world can infer them."""

    @property
    def latent_size(self) -> int: ...

    @property
    def initial_frames(self) -> int:
        """I, the observations that ``infer`` takes; the last of them is the first one that ``start`` shows."""
        ...

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """A window of observations [B, I, ...] -> mean and log-standard-deviation of z_BZ."""
        ...

    def normalise(self, z_BZ: Tensor) -> Tensor:
        """The nearest legal latent (z itself where every vector is legal); idempotent, differentiable."""
        ...

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        """World states d_BLD along recorded observations [B, I-1+L, ...], without noise.

        Observation I-1+i is simulated step i, at which ``action[:, i]`` (int64) was taken; where
        ``seen`` (bool) is false it is not looked at.
        """
        ...


class LearnedWorld(World, Inference, Protocol):
    """A world whose starts are inferred from frames."""


class Memory(Protocol):
    """What an agent remembers at the start that a latent stands for, trained with the world."""

    def __call__(self, z_BZ: Tensor) -> Tree:
        """The agent's state before the first observation."""
        ...
