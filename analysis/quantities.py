"""Quantities: differentiable numbers of a rollout at a step, found by name.

value, value_delta, action, leftwards ..., any action by its name, any direction of a basis of hidden or world states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from core import config as cli
from core.contracts import UserError
from core.directions import Basis


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


ACTION_GROUPS: Mapping[str, tuple[str, ...]] = {
    "leftwards": ("left", "downleft", "upleft"),
    "rightwards": ("right", "downright", "upright"),
    "jumping_up": ("up",),
    "jumping_left": ("upleft",),
    "jumping_right": ("upright",),
}


def log_probability(logits_BA: Tensor, actions: Sequence[int]) -> Tensor:
    """Log-probability [B] in nats that the action is one of ``actions``."""
    return logits_BA[:, list(actions)].logsumexp(-1) - logits_BA.logsumexp(-1)


def _chosen(r: Reading) -> Tensor:
    return r.logits_BA.gather(-1, r.chosen_B[:, None])[:, 0] - r.logits_BA.logsumexp(-1)


def _of_actions(name: str, actions: Sequence[int]) -> Quantity:
    return Quantity(name, "nats", lambda r: log_probability(r.logits_BA, actions))


def _of_direction(name: str, basis: Basis, i: int) -> Quantity:
    def of_world(r: Reading) -> Tensor:
        if r.d_BD is None:
            raise ValueError(f"{name} is a quantity of the world, and only the agent was asked")
        return basis.project(r.d_BD)[:, i]

    if basis.space == "d":
        return Quantity(name, "coordinate", of_world, of_world=True)
    return Quantity(name, "coordinate", lambda r: basis.project(r.h_BH)[:, i])


def known_quantities(action_names: Sequence[str]) -> dict[str, Quantity]:
    """Every quantity of a world with these actions, but the directions."""
    out = {
        "value": Quantity("value", "return", lambda r: r.value_B),
        "value_delta": Quantity("value_delta", "return", lambda r: r.value_B - r.value_before_B, first_step=1),
        "action": Quantity("action", "nats", _chosen),
    }
    for name, members in ACTION_GROUPS.items():
        actions = [action_names.index(m) for m in members if m in action_names]
        if actions:
            out[name] = _of_actions(name, actions)
    for i, name in enumerate(action_names):
        out.setdefault(name, _of_actions(name, [i]))
    return out


def find_quantities(
    names: Sequence[str], action_names: Sequence[str], basis_of: Callable[[str], Basis], basis_kind: str = "ica"
) -> list[Quantity]:
    """Quantities by name.  basis_of: kind of basis -> basis, or a UserError.

    Raises UserError for a name that this world does not have (and lists those it has), a direction
    that does not exist, and a name given twice.
    """
    known = known_quantities(action_names)
    out: list[Quantity] = []
    for name in names:
        direction = re.fullmatch(r"((?:d_)?[a-z]+)_(\d+)", name)
        if name in known:
            out.append(known[name])
        elif direction:
            kind = basis_kind if direction[1] == "direction" else direction[1]
            basis, i = basis_of(kind), int(direction[2])
            basis.check([i])
            out.append(_of_direction(name, basis, i))
        else:
            raise UserError(
                f"no quantity {name!r}{cli.nearest(name, known)}; this world has: {', '.join(known)}, "
                "and direction_ID, ica_ID, pca_ID ... with --hidden_states, d_pca_ID ... with --env_states"
            )
    if not out:
        raise UserError("--quantities is empty; name at least one, such as value")
    if len(set(names)) < len(names):
        raise UserError(f"--quantities names {next(n for n in names if list(names).count(n) > 1)!r} twice")
    return out
