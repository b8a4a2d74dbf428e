"""Quantities: differentiable numbers of a rollout at a step, found by name.

value, value_delta, action, any action by its name, the world's own words for sets of them (leftwards ...), any
direction of a basis of hidden or world states.  Actions that do the same are one quantity.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from core import config as cli
from core.contracts import EnvSpec, UserError
from core.directions import LABEL, Basis, direction_of, name_of
from core.roll import places_of


class Reading(NamedTuple):
    """What the agent says at the target step."""

    h_BH: Tensor
    logits_BA: Tensor
    value_B: Tensor
    value_before_B: Tensor  # at the step before; at step 0 the same as value
    chosen_B: Tensor  # int64, the action that the rollout without noise chose
    d_BD: Tensor | None = None  # the world state; None where the agent alone was asked


@dataclass(frozen=True)
class Quantity:
    """A differentiable number of a reading: ``read(reading) -> y_B``."""

    name: str
    unit: str
    read: Callable[[Reading], Tensor]
    first_step: int = 0  # the earliest step at which it means something
    of_world: bool = False  # a number of the world state, of which the agent knows nothing


def log_probability(logits_BA: Tensor, actions: Sequence[int], parts: Sequence[int]) -> Tensor:
    """Log-probability [B] in nats that the action's part that ``actions`` are of is one of them."""
    first = 0
    for count in parts:
        if first <= actions[0] < first + count:
            break
        first += count
    return logits_BA[:, list(actions)].logsumexp(-1) - logits_BA[:, first : first + count].logsumexp(-1)


def _chosen(actions: Sequence[Sequence[int]], parts: Sequence[int]) -> Callable[[Reading], Tensor]:
    """Log-probability of doing what the chosen action does, all its parts together."""

    def read(r: Reading) -> Tensor:
        each_BK = torch.stack([log_probability(r.logits_BA, ids, parts) for ids in actions], -1)
        of_A = torch.zeros(r.logits_BA.shape[-1], dtype=torch.int64, device=r.chosen_B.device)
        for number, ids in enumerate(actions):
            of_A[list(ids)] = number
        return each_BK.gather(-1, of_A[places_of(r.chosen_B, parts)]).sum(-1)

    return read


def _of_actions(name: str, actions: Sequence[int], parts: Sequence[int]) -> Quantity:
    return Quantity(name, "nats", lambda r: log_probability(r.logits_BA, actions, parts))


def _of_direction(name: str, basis: Basis, i: int) -> Quantity:
    def of_world(r: Reading) -> Tensor:
        if r.d_BD is None:
            raise ValueError(f"{name} is a quantity of the world, and only the agent was asked")
        return basis.project(r.d_BD)[:, i]

    if basis.space == "d":
        return Quantity(name, "coordinate", of_world, of_world=True)
    return Quantity(name, "coordinate", lambda r: basis.project(r.h_BH)[:, i])


def known_quantities(spec: EnvSpec) -> dict[str, Quantity]:
    """Every quantity of a world, but the directions."""
    actions = spec.distinct_actions()
    out = {
        "value": Quantity("value", "return", lambda r: r.value_B),
        "value_delta": Quantity("value_delta", "return", lambda r: r.value_B - r.value_before_B, first_step=1),
        "action": Quantity("action", "nats", _chosen(list(actions.values()), spec.parts)),
    }
    for word, members in spec.action_words.items():
        out[word] = _of_actions(word, [spec.action_names.index(m) for m in members], spec.parts)
    for name, ids in actions.items():
        out.setdefault(name, _of_actions(name, ids, spec.parts))
    return out


def find_direction(word: str, basis_of: Callable[[str], Basis], kind: str) -> tuple[str, int] | None:
    """(kind of basis, id) of a direction by its name (``core.directions.direction_of``) or its label, ``probe:drink``;
    None if it is neither.  UserError for a label that a basis with labels lacks."""
    if word.startswith("prob:"):  # in the words of hypotheses
        raise UserError(f"{word!r}: here an action's log-probability goes by its name alone: {word[5:]}")
    if found := re.fullmatch(rf"([a-z]+):{LABEL}", word):
        word = basis_of(found[1]).numbered(word, "a direction")
    return direction_of(word, kind)


def find_quantities(
    names: Sequence[str], spec: EnvSpec, basis_of: Callable[[str], Basis], basis_kind: str = "ica"
) -> list[Quantity]:
    """Quantities of a world by name.  basis_of: kind of basis -> basis, or a UserError.

    Raises UserError for a name that this world does not have (and lists those it has), a direction
    that does not exist, and a name given twice.
    """
    known = known_quantities(spec)
    stands_for = {spec.action_names[i]: name for name, ids in spec.distinct_actions().items() for i in ids}
    out: list[Quantity] = []
    for name in names:
        if name in known:
            if direction_of(name, basis_kind):
                of_basis = f"{basis_kind}:{name}"
                print(f"note: {name!r} is the action of that name; the direction is {of_basis}", file=sys.stderr)
            out.append(known[name])
        elif name in stands_for:
            raise UserError(f"{name!r} does the same as {stands_for[name]!r} in this world: ask for {stands_for[name]}")
        elif direction := find_direction(name, basis_of, basis_kind):
            basis = basis_of(direction[0])
            basis.check([direction[1]])
            out.append(_of_direction(basis.called(name_of(*direction)), basis, direction[1]))
        else:
            raise UserError(
                f"no quantity {name!r}{cli.nearest(name, known)}; this world has: {', '.join(known)}, "
                "and ica:ID, pca:ID ... with --hidden_states, d_pca:ID ... with --env_states"
            )
    if not out:
        raise UserError("--quantities is empty; name at least one, such as value")
    labels = [quantity.name for quantity in out]
    if len(set(labels)) < len(labels):
        raise UserError(f"--quantities names {next(n for n in labels if labels.count(n) > 1)!r} twice")
    return out
