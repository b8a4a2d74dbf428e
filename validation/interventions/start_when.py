"""Where all starts of a study are (--start_when): in a behaviour, or where a direction's coordinate is beyond a number.

How states are cut into behaviours decides what "behaviour 7" is; a coordinate means the same whatever the cut.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core.contracts import UserError
from core.directions import Basis, direction_ids, name_of
from core.interventions import parse_when
from core.when import Rule
from validation.paired.starts import When

FLAG = "--start_when"
BEYOND = re.compile(r"(\S+)\s+(above|below)\s+(\S+)")


def check_words(words: Sequence[str]) -> None:
    """UserError on what is no condition, whatever behaviours and directions there are."""
    for word in words:
        if beyond := BEYOND.fullmatch(word.strip()):
            _bound(word, beyond[3])
        elif word.startswith("behaviour"):
            parse_when((word,), FLAG)
        else:
            raise UserError(
                f"{FLAG} {word!r}: expected behaviour=ID, or, in quotes, a direction above or below a number: "
                f"behaviour=3, 'ica:1 above 3'"
            )


def where_started(words: Sequence[str], basis: Basis, rule: Rule | None) -> When | None:
    """In which of the agent's states starts may be: where any of the words holds (``behaviour=3``, ``ica:1 above 3``);
    None where there are none: in any.  rule: of the behaviours, None where none are given.  UserError."""
    if not words:
        return None
    check_words(words)
    conditions, said = zip(*(_condition(word, basis, rule) for word in words), strict=True)
    return When(lambda h_BH: torch.stack([holds(h_BH) for holds in conditions]).any(0), " or ".join(said))


def started_in(words: Sequence[str], basis: Basis, rule: Rule | None) -> str:
    """``where_started`` in words, as they follow "starts": ``in behaviour=3``; '' where they may be anywhere."""
    when = where_started(words, basis, rule)
    return "" if when is None else when.words


def _condition(word: str, basis: Basis, rule: Rule | None) -> tuple[Callable[[Tensor], Tensor], str]:
    """One condition of hidden states [B, H] -> bool [B], and how it is said of starts."""
    beyond = BEYOND.fullmatch(word.strip())
    if beyond is None:
        (behaviour,) = parse_when((word,), FLAG)
        if rule is None:
            raise UserError(f"{FLAG} speaks of a behaviour: give --behaviours")
        own = rule.check((behaviour,))
        return lambda h_BH: own(h_BH) == behaviour, f"in behaviour={behaviour}"
    name, side, text = beyond.groups()
    (i,) = direction_ids([name], basis, FLAG)
    basis.check([i])
    bound, sign = _bound(word, text), 1 if side == "above" else -1
    said = f"with {name_of(basis.kind, i, basis.space)} {side} {bound:g}"
    return lambda h_BH: sign * basis.project(h_BH)[:, i] > sign * bound, said


def _bound(word: str, text: str) -> float:
    try:
        bound = float(text)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise UserError(f"{FLAG} {word!r}: {text!r} is no finite number")
    return bound
