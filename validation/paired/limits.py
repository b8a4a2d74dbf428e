"""Time limits of the real world.  What one cuts says nothing of an effect: a simulator knows no limit.

No start may lie so near to a limit that its steps would be cut.  The rule looks at nothing but how many steps of its
episode a start is after, never at how a run went on: who dies before the limit in one run and lives to it in another
is not chosen by that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from core import ranks
from core.contracts import UserError
from validation.paired.course import Course

X = TypeVar("X")
Y = TypeVar("Y")
OF_TIME = "(an episode that ends for another reason than time is terminated, not truncated)"


def has_room(age_N: np.ndarray, limit: int, horizon: int) -> np.ndarray:
    """bool [N]: starts after so many steps of their episode from which no limit cuts any of ``horizon`` steps."""
    return age_N + horizon < limit


class CutShort(UserError):
    """A run was cut by a time limit of ``limit`` steps an episode; the starts are ``age_N`` steps after its first."""

    def __init__(self, limit: int, age_N: np.ndarray, horizon: int) -> None:
        self.limit, self.age_N, self.horizon = limit, age_N, horizon
        super().__init__(
            f"a time limit cuts episodes after {limit} steps, within {horizon} steps of starts at up to step "
            f"{age_N.max()}; lower --latest_start or --horizon {OF_TIME}"
        )

    def left_out(self, limit: int) -> int:
        """How many of the starts leave no room for all their steps before ``limit``."""
        return int((~has_room(self.age_N, limit, self.horizon)).sum())


def each_in_time(items: Sequence[X], do: Callable[[X], Y]) -> Iterator[Y]:
    """``core.ranks.each``, in which a run of ``do`` that is cut short is a CutShort in every process."""

    def whole(item: X) -> dict[str, Any]:
        try:
            return {"done": do(item)}
        except CutShort as cut:
            return {"limit": cut.limit, "age": cut.age_N, "horizon": cut.horizon}

    for found in ranks.each(items, whole):
        if "limit" in found:
            raise CutShort(found["limit"], found["age"], found["horizon"])
        yield found["done"]


def require_whole(course: Course, age_N: np.ndarray) -> None:
    """CutShort where a time limit cut a run of these starts, which are there one or several times."""
    assert course.truncated_RT is not None
    cut_RT = ((course.truncated_RT > 0) & (course.weight_RT[:, :-1] > 0)).cpu().numpy()
    if cut_RT.any():
        rows, steps = np.nonzero(cut_RT)
        raise CutShort(int((age_N[rows % len(age_N)] + steps + 1).min()), age_N, cut_RT.shape[1])


def last_in_time(latest: int, limit: int, horizon: int, first: int = 1) -> int:
    """The last step at or before ``latest`` from which no limit cuts any of ``horizon`` steps (limit 0: none is known).
    UserError where that is before the first step that there can be a start at."""
    if not limit:
        return latest
    last = min(latest, limit - horizon - 1)
    if last < first:
        longest = limit - 1 - first
        remedy = f"lower --horizon (to {longest} at most)" if longest > 0 else "give the world a longer one"
        raise UserError(
            f"a time limit cuts episodes after {limit} steps, so that no start from step {first} on leaves room for "
            f"{horizon} steps before it; {remedy} {OF_TIME}"
        )
    return last
