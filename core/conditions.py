"""Conditions on the agent's present hidden state: it is in a behaviour, or a direction's coordinate is beyond a number.

    behaviour=3        ica:1 above 3        ica:1 below -2

Of several any may hold.  Which states a behaviour has depends on how states were cut into behaviours; a coordinate
means the same whatever the cut.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.contracts import UserError
from core.directions import Basis, direction_ids, name_of
from core.when import Rule

SIDES = {"above": 1, "below": -1}
SUCH = "expected behaviour=ID, or a direction above or below a number: behaviour=3, 'ica:1 above 3'"


@dataclass(frozen=True)
class Condition:
    """One of them: ``behaviour``, or else what the coordinate of ``direction`` is to be beyond."""

    behaviour: int | None = None
    direction: int = -1  # -1: it was read without a basis
    name: str = ""  # of the direction
    side: str = "above"
    bound: float = 0.0

    @property
    def words(self) -> str:
        """As it is written."""
        if self.behaviour is not None:
            return f"behaviour={self.behaviour}"
        return f"{self.name} {self.side} {repr(self.bound).removesuffix('.0')}"

    @property
    def of_a_start(self) -> str:
        """As it is said of a start: ``in behaviour=3``, ``with ica:1 above 3``."""
        return f"{'with' if self.behaviour is None else 'in'} {self.words}"


def parse_conditions(words: Sequence[str], basis: Basis | None, what: str) -> tuple[Condition, ...]:
    """The conditions that words say, each in one word or several; what: begins a UserError.  basis: of the directions;
    without one these are only read, and not looked up."""
    rest = " ".join(words).split()
    out = []
    while rest:
        if found := re.fullmatch("behaviour=([0-9]+)", rest[0]):
            out.append(Condition(behaviour=int(found[1])))
            rest = rest[1:]
        elif len(rest) >= 3 and rest[1] in SIDES:
            out.append(_beyond(rest[0], rest[1], rest[2], basis, what))
            rest = rest[3:]
        else:
            raise UserError(f"{what} {' '.join(rest)!r}: {SUCH}")
    return tuple(out)


def _beyond(name: str, side: str, number: str, basis: Basis | None, what: str) -> Condition:
    try:
        bound = float(number)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise UserError(f"{what} '{name} {side} {number}': {number!r} is no finite number")
    if basis is None:
        return Condition(name=name, side=side, bound=bound)
    (i,) = direction_ids([name], basis, what)
    basis.check([i])
    return Condition(direction=i, name=name_of(basis.kind, i, basis.space), side=side, bound=bound)


@dataclass(frozen=True)
class Where:
    """Where any of some conditions holds.  basis: of their directions; rule: of their behaviours (None: there are
    none)."""

    conditions: tuple[Condition, ...]
    basis: Basis | None = None
    rule: Rule | None = None

    def __call__(self, h_BH: Tensor) -> Tensor:
        """bool [B], of hidden states [B, H]."""
        held_B = torch.zeros(len(h_BH), dtype=torch.bool, device=h_BH.device)
        if behaviours := behaviours_in(self.conditions):
            assert self.rule is not None
            held_B |= torch.isin(self.rule(h_BH), torch.tensor(behaviours, device=h_BH.device))
        for one in self.conditions:
            if one.behaviour is None:
                assert self.basis is not None
                c_B, sign = self.basis.project(h_BH)[:, one.direction], SIDES[one.side]
                held_B |= sign * c_B > sign * one.bound
        return held_B

    def to_json(self) -> dict[str, Any]:
        """For a manifest: the conditions, and how right the rule is about the behaviours."""
        out: dict[str, Any] = {"conditions": [one.words for one in self.conditions]}
        if (behaviours := behaviours_in(self.conditions)) and self.rule is not None:
            out["rule"] = self.rule.said_of(behaviours)
        return out


def behaviours_in(conditions: Sequence[Condition]) -> tuple[int, ...]:
    """The behaviours that conditions speak of."""
    return tuple(one.behaviour for one in conditions if one.behaviour is not None)


def check_behaviours(conditions: Sequence[Condition], rule: Rule | None, what: str) -> None:
    """UserError, which begins with ``what``, where conditions speak of behaviours and there are none, or not these."""
    if behaviours := behaviours_in(conditions):
        if rule is None:
            raise UserError(f"{what} speaks of a behaviour: give --behaviours")
        rule.check(behaviours)
