"""What a claim about an edit is held against: the same edit made to something else in the same picture.

An edit is *special* where it does more than the same edit of other things there would.  If what it is made to were any
of them, which one it is at each start would be chance; so the claim's mean effect is compared with the means of such
random choices, its own among them (a randomisation test; Fisher 1935), and with those of choices among the others
alone: an own effect of -1 beside another's of +2 is further than chance makes it, and less than the other's.

remove, move THING nearest | at     another object that can be removed (no walls, no lava), moved by as much
remove, move THING                  all objects of another kind
add, and blocks                     the same at another place of the picture
move agent, set                     there is nothing of the kind, so it is not asked

N starts, K others, C choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from analysis.shared.edit_starts import fits
from envs.procgen_edits import Edit
from envs.procgen_state import State, state_of
from envs.procgen_truth import kinds_of, shown
from validation.interventions.statistics import Controls

CHOICES = 1999


def another(edit: Edit, game: str) -> str:
    """What the others are, in words; '' where there are none of their like."""
    if edit.verb == "add" or edit.which == "block":
        return "at another place of the picture"
    if edit.verb == "set" or edit.thing not in kinds_of(game):
        return ""
    return "of another object of the picture" if edit.which else "of all objects of another kind"


def others(edit: Edit, snapshot: bytes, most: int, rng: np.random.Generator) -> list[Edit]:
    """At most so many edits like this one, whose place is fixed (``fits``), of other things in the picture."""
    out: list[Edit] = []
    for other in _all(edit, state_of(snapshot), rng):
        if len(out) == most:
            break
        if (fixed := fits(other, snapshot)) is not None:
            out.append(fixed)
    return out


def _all(edit: Edit, state: State, rng: np.random.Generator) -> Iterator[Edit]:
    """Everything that may be another one, in random order."""
    if not another(edit, state.game):
        return
    if edit.verb == "add" or edit.which == "block":
        y, x = np.indices(state.cells.shape).reshape(2, -1) + 0.5
        places = np.stack([x, y], 1)
        for at in rng.permutation(places[shown(state, places)]).tolist():
            if np.floor(at).tolist() != np.floor(edit.at).tolist():
                yield replace(edit, at=tuple(at))
        return
    found: list[Edit] = []
    for kind in kinds_of(state.game):
        if not edit.which:
            found += [replace(edit, thing=kind)] if kind != edit.thing else []
            continue
        places = state.places(kind)
        if kind == edit.thing:
            far = np.hypot(*(places - edit.at).T)
            places = places[far > far.min()]
        places = np.unique(places[shown(state, places)], axis=0)
        found += [replace(edit, thing=kind, at=tuple(at)) for at in places.tolist()]
    yield from (found[i] for i in rng.permutation(len(found)))


def choices(quantity: str, own_N: np.ndarray, others_KN: np.ndarray, rng: np.random.Generator) -> Controls:
    """Effects of random choices among the edit and its others, and then (law 1) among its others alone, at the starts
    that it is about ([2 C, M]); where there is no other it is the edit itself."""
    here = ~np.isnan(own_N)
    each = np.concatenate([own_N[None], others_KN])[:, here]
    draws = np.empty((2, CHOICES, each.shape[1]))
    for m, column in enumerate(each.T):
        known = column[~np.isnan(column)]
        for law in range(2):
            draws[law, :, m] = rng.choice(known[min(law, len(known) - 1) :], CHOICES)
    return Controls({quantity: draws.reshape(2 * CHOICES, -1)}, np.repeat([0, 1], CHOICES), {})
