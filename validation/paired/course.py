"""What is measured along a run, and the names of its quantities.

N starts, R rows, G changes, k horizon, T = k + 1 steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.shared.events import Event, Rows
from core.contracts import EnvSpec
from core.directions import Basis
from core.roll import Moment, known_rewards, paid_in, probabilities
from envs.procgen import ACTION_NAMES, JUMPING


class Course(NamedTuple):
    """What followed R starts.  ``weight``: 1 while the episode goes on (real) or the probability that it
    does (simulated); row t of ``reward`` and ``ended`` is the transition t -> t+1."""

    logits_RTA: Tensor
    value_RT: Tensor
    reward_RT: Tensor  # [R, T-1]
    weight_RT: Tensor
    h_RTH: Tensor | None = None
    action_RTA: Tensor | None = None  # one-hot
    ended_RT: Tensor | None = None  # [R, T-1], 0 or 1 (simulated: probability)
    told_RTM: Tensor | None = None  # the truth columns that events read (``Measures.truths``), where a world tells them
    truncated_RT: Tensor | None = None  # [R, T-1], 0 or 1: ended at a time limit
    paid_RT2: Tensor | None = None  # [R, T-1, 2], chance of a reward where it [goes on, ends]; None: rewards are known


OF_EVENTS = ("rate", "event", "time")  # late quantities
JUMPS = ("up", "upleft", "upright")
Actions = Mapping[str, Sequence[int]]  # name of a distinct action -> the ids that do it


def choices_of(spec: EnvSpec) -> dict[str, list[int]]:
    """Ids of what can be asked about: every distinct action, the world's words for sets of actions, and ``jump`` in the
    games in which one does."""
    words = {word: [spec.action_names.index(a) for a in names] for word, names in spec.action_words.items()}
    if spec.env_id.partition("/")[2] in JUMPING:
        words["jump"] = [ACTION_NAMES.index(a) for a in JUMPS]
    return {**spec.distinct_actions(), **words}


def with_named(actions: Actions, spec: EnvSpec, quantities: Iterable[str]) -> dict[str, Sequence[int]]:
    """These and those of ``choices_of`` that some quantities name (``prob:jump``)."""
    names = {q.removeprefix("prob:") for q in quantities if q.startswith("prob:")}
    return {**actions, **{name: ids for name, ids in choices_of(spec).items() if name in names}}


def with_claimed(directions: Iterable[int], basis: Basis, quantities: Iterable[str]) -> tuple[int, ...]:
    """These directions of a basis and those that some quantities are (``ica:5``), each once."""
    names = basis.names
    return tuple(dict.fromkeys([*directions, *(names.index(q) for q in quantities if q in names)]))


@dataclass(frozen=True)
class Measures:
    """What is asked of a course besides what every study asks."""

    actions: Actions
    basis: Basis | None = None
    directions: tuple[int, ...] = ()  # whose later coordinates are measured
    events: tuple[Event, ...] = ()
    parts: tuple[int, ...] = ()  # choices of each part of an action, where there are several
    matched: tuple[str, ...] = ()  # truth columns by which donors are matched
    timed: tuple[str, ...] = ()  # which of time:EVENT and first:EVENT are measured

    @property
    def truths(self) -> tuple[str, ...]:
        """The truth columns that are asked for."""
        return tuple(sorted({*self.matched, *(name for event in self.events for name in event.truths)}))

    @property
    def names(self) -> list[str]:
        """Of ``directions``."""
        return [] if self.basis is None else [self.basis.names[i] for i in self.directions]


def quantities(course: Course, measures: Measures) -> dict[str, Tensor]:
    """Everything measured, each [R].

    At once: ``value``, ``logit:ACTION`` (log-sum-exp where several ids do the same) and ``prob:ACTION``.
    Up to the horizon k, where an ended episode counts as 0: ``value@k``; ``reward@k``, summed;
    ``return@k``, their sum; ``ended@k``, 0 or 1 (simulated: probability); ``prob:ACTION@1..k``, mean
    probability of the action over steps 1 to k; of a direction ``ica:5@k``, its coordinate; ``rate:EVENT@k``, the share
    of steps 0 to k-1 at which the event happens; ``event:EVENT@k``, whether it happens at one of them; of
    ``measures.timed``, ``time:EVENT@k``: how many of them pass before it first does, k where it does not.  The same is
    ``first:EVENT``, which is described and not judged (``is_described``): ``event:EVENT@k`` is, of which it is a part.
    """
    k = course.value_RT.shape[1] - 1
    probs, weight = probabilities(course.logits_RTA, measures.parts), course.weight_RT
    out = {"value": course.value_RT[:, 0]}
    for name, ids in measures.actions.items():
        out[f"logit:{name}"] = course.logits_RTA[:, 0, list(ids)].logsumexp(-1)
    for name, ids in measures.actions.items():
        out[f"prob:{name}"] = probs[:, 0, list(ids)].sum(-1)
    out[f"value@{k}"] = weight[:, k] * course.value_RT[:, k]
    out[f"reward@{k}"] = (weight[:, :-1] * course.reward_RT).sum(1)
    out[f"return@{k}"] = out[f"value@{k}"] + out[f"reward@{k}"]
    out[f"ended@{k}"] = 1 - weight[:, k]
    for name, ids in measures.actions.items():
        out[f"prob:{name}@1..{k}"] = (weight[:, 1:] * probs[:, 1:, list(ids)].sum(-1)).mean(1)
    if course.h_RTH is None:
        return out
    if measures.basis is not None and measures.directions:
        c_RK = measures.basis.project(course.h_RTH[:, k])
        for i, name in zip(measures.directions, measures.names, strict=True):
            out[f"{name}@{k}"] = weight[:, k] * c_RK[:, i]
    if measures.events:
        rows = rows_of(course, measures)
        for event in measures.events:
            out[f"rate:{event.name}@{k}"] = event.rate(rows, weight[:, :-1])
        for event in measures.events:
            out[f"event:{event.name}@{k}"] = event.happens(rows, weight[:, :-1])
            places = {f"time:{event.name}": f"@{k}", f"first:{event.name}": ""}
            if asked := [q for q in places if q in measures.timed]:
                wait = event.wait(rows, weight[:, :-1])
                out |= {q + places[q]: wait for q in asked}
    return out


def policy_of(measured: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The probabilities of all actions together, at once (``policy``) and later (``policy@1..k``), each [N, A]."""
    found: dict[str, list[np.ndarray]] = {}
    for q, x in measured.items():
        if q.startswith("prob:"):
            found.setdefault("policy" + q[q.index("@") :] if is_late(q) else "policy", []).append(x)
    return {q: np.stack(parts, -1) for q, parts in found.items()}


def still_on(course: Course, rows: Tensor | slice = slice(None)) -> np.ndarray:
    """Where frames of some starts are of the episode they began in: uint8 [n, T, 1, 1, 1] of 1 and 0."""
    if course.ended_RT is None:
        raise ValueError("a course without endings")
    before = (course.ended_RT[rows] > 0.5).cumsum(1) == 0
    on = torch.cat([torch.ones_like(before[:, :1]), before], 1)
    return on[..., None, None, None].to(torch.uint8).cpu().numpy()


def rows_of(course: Course, measures: Measures) -> Rows:
    """The steps of a course whose transition is known, for events; without a basis, for those of no direction."""
    basis, told = measures.basis, course.told_RTM
    if course.h_RTH is None or course.action_RTA is None or course.ended_RT is None:
        raise ValueError("events need a course with hidden states, actions and endings")
    now = slice(0, course.reward_RT.shape[1])
    truth = {}
    if told is not None and told.shape[-1]:  # a simulator tells none
        truth = {name: told[:, now, m] for m, name in enumerate(measures.truths)}
    return Rows(
        course.value_RT[:, now], course.reward_RT, course.ended_RT, course.action_RTA[:, now],
        course.logits_RTA[:, now], (course.h_RTH[..., :0] if basis is None else basis.project(course.h_RTH))[:, now],
        measures.parts, truth, course.truncated_RT, course.paid_RT2,
    )  # fmt: skip


def _kind(quantity: str) -> str:
    """``direction`` of the later coordinate of one, ``ica:5@8``; else the word that the quantity begins with."""
    kind, named, _ = quantity.partition("@")[0].partition(":")
    return "direction" if named and kind not in ("logit", "prob", "first", *OF_EVENTS) else kind


def unit_of(quantity: str) -> str:
    """The unit a quantity is in."""
    kind = _kind(quantity)
    units = {"logit": "nats", "direction": "coordinate", "rate": "share of steps", "time": "steps", "first": "steps"}
    return "probability" if kind in ("prob", "ended", "event") else units.get(kind, "return")


def in_words(quantity: str) -> str:
    """A quantity for a sentence."""
    name, _, when = quantity.partition("@")
    kind, action = _kind(quantity), name.partition(":")[2]
    if kind in ("direction", "first", *OF_EVENTS):
        said = {
            "direction": f"{name} {when} steps later",
            "rate": f"the share of the {when} steps after at which '{action}' happens",
            "event": f"the chance that '{action}' happens within {when} steps",
            "first": f"the steps that pass before '{action}' first happens",
            "time": f"the steps that pass before '{action}' first happens ({when} where it does not within {when})",
        }
        return said[kind]
    if kind in ("prob", "logit"):
        what = {"prob": "the probability", "logit": "the logit"}[kind] + f" of '{action}'"
        return f"{what} over steps {when.replace('..', ' to ')} after" if when else what
    words = {
        "value": "the agent's value", "reward": "the reward within", "return": "reward plus value after",
        "ended": "the chance that the episode ends within",
    }  # fmt: skip
    if kind == "value":
        return f"{words[kind]} {when} steps later" if when else words[kind]
    return f"{words[kind]} {when} steps"


def family_of(quantity: str) -> str:
    """What a late quantity is about: value_and_actions, directions, outcomes (reward, return, ended) or events."""
    kind = _kind(quantity)
    names = {"value": "value_and_actions", "prob": "value_and_actions", "direction": "directions"}
    return names.get(kind, "events" if kind in OF_EVENTS else "outcomes")


def is_late(quantity: str) -> bool:
    """Whether it is measured after step 0, so that a world has a say in it."""
    return "@" in quantity


def is_described(quantity: str) -> bool:
    """Whether it is told beside what is judged: part of what an event's own quantities say."""
    return _kind(quantity) == "first"


def is_cut(quantity: str, events: Sequence[Event]) -> bool:
    """Whether a late quantity cannot change through memory alone, by construction: there the actions are those of the
    unaltered run, and so are rewards, endings and what is told by them."""
    kind, _, name = quantity.partition("@")[0].partition(":")
    told = {event.name for event in events if event.of_actions_alone}
    return kind in ("reward", "ended") or (kind in OF_EVENTS and name in told)


def is_share(quantity: str) -> bool:
    """Whether it is a share of events, whose sizes of interest are shares and not spreads."""
    return _kind(quantity) in ("rate", "event", "ended")


def is_probability(quantity: str) -> bool:
    """Whether it is the probability of an action, or of several."""
    return _kind(quantity) == "prob"


def is_own(quantity: str, directions: Sequence[int]) -> bool:
    """Whether it is what one of these directions is itself later: no claim to make of a change of it."""
    name = quantity.partition("@")[0]
    return _kind(quantity) == "direction" and int(name.partition(":")[2]) in directions


def course_of(
    logits: Tensor, value: Tensor, reward: Tensor, ends: Tensor, h: Tensor, one_hot: Tensor,
    told: Tensor | None = None, truncated: Tensor | None = None, paid: Tensor | None = None,
) -> Course:  # fmt: skip
    """A course from what its steps gave; ``ends`` [R, T-1] are probabilities of ending (0 or 1 where it is known)."""
    goes_on = torch.cat([torch.ones_like(value[:, :1]), 1 - ends], 1).cumprod(1)
    told = logits[..., :0] if told is None else told
    truncated = torch.zeros_like(ends) if truncated is None else truncated  # never, in a simulator
    paid = known_rewards(reward) if paid is None else paid
    return Course(logits, value, reward, goes_on, h, one_hot, ends, told, truncated, paid)


def course_along(moments: Sequence[Moment]) -> Course:
    """What the T moments of a roll say, open to gradients."""

    def stack(parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts), 1)

    return course_of(
        stack([m.acted.logits_BA for m in moments]), stack([m.acted.value_B for m in moments]),
        stack([m.shown.reward_B for m in moments[1:]]), stack([m.shown.ending_B for m in moments[1:]]),
        stack([m.h_BH for m in moments]), stack([m.action_BA for m in moments]),
        paid=stack([paid_in(m.shown) for m in moments[1:]]),
    )  # fmt: skip
