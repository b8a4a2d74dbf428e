"""A number of the world itself at another value: set at the starts, or in what the agent is shown alone.

Set: where the observation does not show the number, the agent must do at once exactly what it did: same logits, same
value.  What comes later comes by way of the world (an agent of health 1 dies of what one of 9 survives), and is given
beside what a change of the agent's own state does.  Shown: the world goes on as it was, and from the starts on the
agent sees what it would see if the number were that; one that cannot see the number does nothing, ever.

N starts, Q quantities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from agents.play import tensors
from core.config import nearest
from core.contracts import Editable, Step, UserError, VecEnv
from core.stats import ALPHA, benjamini_hochberg, means
from validation.interventions.statistics import step_of
from validation.interventions.verdicts import as_share
from validation.paired.course import in_words, is_late, unit_of
from validation.paired.real import RealWorld

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"


class WorldEdit(NamedTuple):
    """A truth column, and the value it is given; ``shown``: in what the agent sees alone, at every step."""

    column: str
    value: float
    shown: bool = False

    @property
    def name(self) -> str:
        return f"{self.column} = {self.value:g}"


def parse_world_edits(words: Sequence[str], truth: Sequence[str], shown: bool = False) -> tuple[WorldEdit, ...]:
    """Edits from ``NAME = VALUE``; truth: the columns that the world tells; shown: of what is seen.  UserError."""
    out, flag = [], "--shown_edits" if shown else "--world_edits"
    for word in words:
        found = re.fullmatch(rf"\s*(\w+)\s*=\s*({NUMBER})\s*", word)
        if not found or not np.isfinite(float(found[2])):
            raise UserError(f"{flag} {word!r}: expected NAME = VALUE, as in 'health = 2'")
        if found[1] not in truth:
            told = ", ".join(truth) or "nothing"
            raise UserError(
                f"{flag} {word!r}: the world tells no {found[1]}{nearest(found[1], truth)}; it tells {told}"
            )
        out.append(WorldEdit(found[1], float(found[2]), shown))
    return tuple(out)


@dataclass
class ShownWorld(RealWorld):
    """A real world that goes on as it is, in which the agent is shown another one."""

    edit: WorldEdit | None = None

    def observed(self, now: Step, states: Sequence[bytes], env: VecEnv) -> Mapping[str, np.ndarray]:
        assert self.edit is not None and isinstance(env, Editable)
        return env.restore(env.edited(states, self.edit.column, self.edit.value)).obs


def altered(world: RealWorld, edit: WorldEdit) -> RealWorld:
    """The starts with that edit."""
    assert isinstance(world.env, Editable)
    states = world.starts.states
    there = moved(world, world.env.edited(states, edit.column, edit.value))
    if not edit.shown:
        return there
    same = {f.name: getattr(there, f.name) for f in fields(there) if f.init}
    return ShownWorld(**same | {"starts": replace(there.starts, states=states)}, edit=edit)


@torch.no_grad()
def moved(world: RealWorld, states: Sequence[bytes]) -> RealWorld:
    """The same starts in other states of the world, as the agent sees them now: what it saw before stays."""
    starts = world.starts
    now = world.env.restore(states)
    seen = world.agent.encode(tensors(now, world.noise_NTA.device))
    first_B = torch.zeros(len(starts), dtype=torch.bool, device=world.noise_NTA.device)
    state = world.agent.advance(seen, starts.before, first_B)
    window = {k: np.concatenate([x[:, :-1], now.obs[k][:, None]], 1) for k, x in starts.window.items()}
    there = replace(starts, states=tuple(states), state=state, window=window, h_NH=world.agent.read("h", seen, state))
    return replace(world, state_N=state, starts=there)


def world_edit_rows(world: RealWorld, edits: Sequence[WorldEdit], rng: np.random.Generator) -> list[dict[str, Any]]:
    """A row an edit and quantity: with less without.  ``at_once``: of what follows from the agent's state at the start,
    the largest change at any start; 0 of a number that the agent cannot see.  ``q``: over all rows."""
    env, states = world.env, world.starts.states
    if not states or not isinstance(env, Editable):
        flag = "--shown_edits" if edits[0].shown else "--world_edits"
        raise UserError(f"{flag}: {env.spec.env_id} cannot set a number of a snapshot")
    before = {q: v[0] for q, v in moved(world, states).measure([None]).items()}  # by the same sums, to the last bit
    rows: list[dict[str, Any]] = []
    for edit in edits:
        after = {q: v[0] for q, v in altered(world, edit).measure([None]).items()}
        at_once = max(float(np.abs(after[q] - before[q]).max()) for q in before if not is_late(q))
        for q in (q for q in before if is_late(q)):
            change_N = after[q] - before[q]
            found = means(change_N[:, None], rng=rng)
            of_one, step = found.estimates(), step_of(q, before[q], change_N)
            if np.isfinite(step):  # an event: that no start's changed does not say that none would
                as_share(of_one, (0,), (change_N / step,), step, 0.95)
            (e,) = of_one
            rows.append({
                "edit": edit.name, "shown": edit.shown, "quantity": q, "unit": unit_of(q), "effect": e.value,
                "low": e.low, "high": e.high, "p": float(found.p()[0]), "n": len(world.starts), "at_once": at_once,
            })  # fmt: skip
    for row, q in zip(rows, benjamini_hochberg([row["p"] for row in rows]), strict=True):
        row["q"] = float(q)
    return rows


def told_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line an edit: what it does at once, and what of it is shown later, from its rows."""
    out = []
    for edit, shown in dict.fromkeys((row["edit"], row["shown"]) for row in rows):
        own = [row for row in rows if (row["edit"], row["shown"]) == (edit, shown)]
        said = "nothing" if own[0]["at_once"] == 0 else f"changes of up to {own[0]['at_once']:.3g}: the agent sees it"
        most = min(own, key=lambda row: row["p"])
        later = f"most clearly {in_words(most['quantity'])}"
        if not most["q"] <= ALPHA:
            later = f"none of {len(own)} quantities is shown to change, least doubtful {in_words(most['quantity'])}"
        effect = f"{most['effect']:+.3g} [{most['low']:+.3g}, {most['high']:+.3g}] {most['unit']}"
        where = "what the agent is shown," if shown else "the world's own"
        out.append(f"{where} {edit}: at once {said}; later {later} {effect} (q = {most['q']:.2g})")
    return out
