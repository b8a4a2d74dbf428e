"""Where all starts of a study are (--start_when), in the words of core.conditions."""

from __future__ import annotations

from collections.abc import Sequence

from core.conditions import Where, check_behaviours, parse_conditions
from core.directions import Basis
from core.when import Rule
from validation.paired.starts import When

FLAG = "--start_when"


def where_started(words: Sequence[str], basis: Basis, rule: Rule | None) -> When | None:
    """In which of the agent's states starts may be: where any of the words holds; None where there are none: in any.
    rule: of the behaviours, None where none are given.  UserError."""
    conditions = parse_conditions(words, basis, FLAG)
    if not conditions:
        return None
    check_behaviours(conditions, rule, FLAG)
    return When(Where(conditions, basis, rule), " or ".join(one.of_a_start for one in conditions))


def started_in(words: Sequence[str], basis: Basis, rule: Rule | None) -> str:
    """``where_started`` in words, as they follow "starts": ``in behaviour=3``; '' where they may be anywhere."""
    when = where_started(words, basis, rule)
    return "" if when is None else when.words
