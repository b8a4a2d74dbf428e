"""All that is asked of the real world from one set of snapshots of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from core.contracts import Agent, VecEnv
from core.directions import Basis
from core.roll import Simulator
from core.stats import benjamini_hochberg
from generative.starts import Informed
from validation.fidelity.counterfactual import (
    FORESIGHT,
    GRADIENTS,
    Found,
    Snapshots,
    counterfactual,
    gradients,
    other_policy,
    take,
)
from validation.fidelity.effects import EFFECTS, effects
from validation.fidelity.measures import unknown
from validation.fidelity.ranking import policies_of, ranking
from validation.fidelity.there_and_back import there_and_back
from validation.paired.limits import CutShort, has_room

GRADIENT_STARTS = 64  # at most: finite differences and derivatives are dear, and are about these alone
FEWEST = 2  # snapshots that a time limit leaves

T = TypeVar("T")


def try_again(
    simulator: Simulator[Any],
    make_env: Callable[[int], VecEnv],
    basis: Basis,
    rng: np.random.Generator,
    *,
    starts: int,
    latest: int,
    horizon: int,
    seed: int = 0,
    other: Agent | None = None,
    device: torch.device | None = None,
    start_from: Informed = "inferred",
    further: bool = False,
    policies: Mapping[str, Agent] | None = None,
    ranking_steps: int = 64,
) -> Found:
    """``basis``: directions of the hidden state to move it along; ``other``: another agent of the same world
    (none: random actions).  further: effects through enumerated actions, there and back, and the ranking of policies
    (``policies``: more of them by name), too.  Raises UserError where the world takes no snapshots or episodes are too
    short.
    """
    shots = take(simulator, make_env, starts, latest=latest, seed=seed, device=device, start_from=start_from)
    found = Found()
    try:
        counterfactual(shots, found, rng)
        other_policy(shots, other, horizon, found, rng)
        asked = answers_in_time(lambda some: answers(some, basis, make_env, rng, further), shots, found)
        if asked is None:
            asked = unanswered(shots, further, str(found.notes["cut"])), rng.spawn(1)[0] if further else None
        answered, own = asked
        found.add(answered)
        if own is not None:
            there_and_back(shots, found, own)
            ranking(shots, policies_of(simulator.agent, policies or {}), found, own, steps=ranking_steps, seed=seed)
    finally:
        shots.env.close()
    for line, q in zip(found.tests, benjamini_hochberg(np.array([t["p"] for t in found.tests])), strict=True):
        line["q"] = float(q)
    found.tables["tests"] = found.tests
    found.notes["snapshots"] = len(shots)
    return found


def answers_in_time(ask: Callable[[Snapshots], T], shots: Snapshots, found: Found) -> T | None:
    """What ``ask`` finds of those snapshots that no time limit cuts a real run of: by their step alone
    (validation.paired.limits), and found's notes say how many were left out.  None where hardly any are left."""
    left: Snapshots | None = shots
    while left is not None:
        try:
            return ask(left)
        except CutShort as cut:  # again where an altered run lives longer
            kept = np.flatnonzero(has_room(shots.starts.age_N, cut.limit, max(FORESIGHT)))
            if len(kept) < FEWEST:
                kept = kept[:0]
            left = shots.some(kept.tolist()) if len(kept) else None
            found.notes["cut"] = (
                f"gradients and enumerated effects of {len(shots) - len(kept)} of {len(shots)} snapshots: a time limit "
                f"cuts episodes after {cut.limit} steps, within {max(FORESIGHT)} steps of them"
            )
    return None


def unanswered(shots: Snapshots, further: bool, why: str) -> Found:
    """The rows of ``answers`` without a number."""
    measures = (*GRADIENTS, *EFFECTS) if further else GRADIENTS
    return Found([unknown(name, k, "share", len(shots), why) for name in measures for k in FORESIGHT])


def answers(
    shots: Snapshots, basis: Basis, make_env: Callable[[int], VecEnv], rng: np.random.Generator, further: bool
) -> tuple[Found, np.random.Generator | None]:
    """Gradients and, ``further``, enumerated effects; and what then draws the random numbers of what follows (None:
    nothing does), so that the rows before do not depend on these."""
    found, few = Found(), shots
    try:
        count = min(len(shots), GRADIENT_STARTS)
        if count != shots.env.spec.slots:
            few = first(shots, count, make_env)
        slopes = gradients(few, basis, found, rng)
        if not further:
            return found, None
        (own,) = rng.spawn(1)
        straight, noise = (None, None) if slopes is None else (slopes[0].through_world, slopes[1])
        effects(shots, basis, found, own, straight, noise)
        return found, own
    finally:
        if few is not shots:
            few.env.close()


def first(shots: Snapshots, count: int, make_env: Callable[[int], VecEnv]) -> Snapshots:
    """The first of them, in a real world of as many slots, which the caller closes."""
    return replace(
        shots, env=make_env(count), starts=shots.starts.some(range(count)), beginning=shots.beginning.some(slice(count))
    )
