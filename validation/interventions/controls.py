"""How a study chooses what it claims, and the directions that a claim is held against.

The simulator chooses, on starts of their own levels: of a family of K directions those whose late effect it foretells
to be largest, and of each the change (which sign, which amount, or the mean) and the quantity.  The largest of many is
large by luck, too.  So the same choice is made in mock families whose directions mean nothing, each as long as the
direction whose place it takes, drawn from two laws: *recorded*, differences between recorded states of different
episodes, which have the states' covariance; and *mixed*, the basis itself turned at random.  A basis's own directions
can be larger than recorded differences only because they lie where the states vary little, and larger than its mixtures
only because each stands for something by itself; so a claim has to stand out among both, and the larger p counts.
(Isotropic directions leave the states that occur; they stand beside and decide nothing.)  A claim that is made by name
is a family of one direction, or, where that was chosen among several before, of it as many times: its own choice is
then none, and its mocks' is the largest of as many.

M mocks, R directions that are chosen, W ways of changing each, N starts, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.contracts import UserError
from validation.hypotheses.changes import Moves
from validation.hypotheses.frames import mixed_frames, recorded_frames
from validation.hypotheses.grammar import Hypothesis
from validation.interventions.bench import Bench
from validation.interventions.statistics import Chosen, spread_of, spread_to_rank_by
from validation.paired.course import family_of, is_late, is_own
from validation.paired.tree import Paired

RANKED = 64  # starts that directions are ranked on before the simulator is run with the largest
FEWEST = 39  # controls: fewer cannot leave out 5 %
TOGETHER = 8192  # rows that the agent is run on at once
LAWS = ("recorded", "mixed")  # of mock families
CLAIMED = ("value_and_actions", "outcomes")  # kinds of quantities that a choice is made among


@dataclass(frozen=True)
class Family:
    """K directions, the W ways in which each may be changed (the same for all), and how many of them are chosen."""

    ways: tuple[tuple[Hypothesis, ...], ...]
    choose: int = 1
    quantity: str = ""  # that is claimed; '': the simulator chooses one
    by_world: bool = False  # the largest is sought of what runs through the world, beyond the agent's memory

    @property
    def through(self) -> str:
        return self.ways[0][0].through


class Pick(NamedTuple):
    """What was chosen: direction (its place in the family), way (its number), late quantity."""

    place: int
    way: int
    quantity: str


Mock = tuple[Tensor, ...]  # K frames [I, H]: the directions in place of the family's own


class NothingToChooseError(UserError):
    """No quantity that a claim may be about varies over the starts that choose."""


class Mocks(NamedTuple):
    """Mock families, and the law that each was drawn from (its place in LAWS)."""

    families: list[Mock]
    law_M: np.ndarray


def mocks_of(family: Family, bench: Bench, count: int, generator: torch.Generator) -> Mocks:
    """``count`` mock families of every law, from the states at the bench's starts (each of another episode) and from
    its basis.  Directions that are all of their basis have no mixtures but themselves, except where a move leads to a
    place among them (codes)."""
    sizes = [len(ways[0].ids) for ways in family.ways]
    recorded = [recorded_frames(bench.starts.h_NH, bench.basis, size, count, generator) for size in sizes]
    families = [tuple(frames[m] for frames in recorded) for m in range(count)]
    # Of codes in a plane they are: the same moves, turned at random in it, lead to random codes.
    if max(sizes) < bench.basis.size or all(way.codes for ways in family.ways for way in ways):
        families += [mixed_frames(bench.basis, sizes, generator) for _ in range(count)]
    return Mocks(families, np.repeat(range(len(LAWS)), count)[: len(families)])


def choose(family: Family, bench: Bench, mocks: Sequence[Mock | None]) -> list[list[Pick]]:
    """What the simulator chooses of each mock (None: of the family itself), R picks each, the largest first."""
    places = _places(family, bench, mocks)
    single = len(family.ways[0]) == 1
    if single and family.quantity:
        return [[Pick(place, 0, family.quantity) for place in mine] for mine in places]
    spread = _spreads(bench)
    effect = run_ways(family, bench, bench.predictor, mocks, places, "choosing")
    if family.by_world:
        effect = beyond_memory(effect, family, bench, bench.predictor, mocks, places, "choosing")
    asked = [q for q in spread if family.quantity in ("", q)]
    out: list[list[Pick]] = []
    for m, mine in enumerate(places):
        picks = []
        for r, place in enumerate(mine):
            best = max(
                (
                    (abs(float(effect[q][m, r, w][bench.rows[way]].mean())) / spread[q], Pick(place, w, q))
                    for w, way in enumerate(family.ways[place]) for q in asked if not is_own(q, way.ids)
                ),
                key=lambda found: found[0],
            )  # fmt: skip
            picks.append(best)
        out.append([pick for _, pick in sorted(picks, key=lambda found: -found[0])])
    return out


def _spreads(bench: Bench) -> dict[str, float]:
    """{late quantity that a claim may be about and that varies over the simulated starts: what its effects are ranked
    by}."""
    spread = {q: spread_of(v[0]) for q, v in bench.predictor.measure([None]).items()}
    asked = {q: x for q, x in spread.items() if is_late(q) and x > 0 and family_of(q) in CLAIMED}
    out = {q: spread_to_rank_by(q, x) for q, x in asked.items()}
    if not out:
        raise NothingToChooseError(
            "no late quantity varies over the starts in the simulator, so it has nothing to choose among: give more "
            "--starts or a longer --horizon, or say 'on QUANTITY'"
        )
    return out


def _places(family: Family, bench: Bench, mocks: Sequence[Mock | None]) -> list[list[int]]:
    """The directions of each mock whose late effect is largest to first order: |mean derivative| along a unit of the
    direction at the steps of the change, in spreads, by its best quantity."""
    if family.choose >= len(family.ways):
        return [list(range(len(family.ways))) for _ in mocks]
    spread = _spreads(bench)
    asked = [q for q in spread if family.quantity in ("", q)]
    if not asked:
        raise UserError(f"directions are not ranked by {family.quantity!r}, but by: {', '.join(spread)}")
    slope = bench.slopes(spread, RANKED, family.ways[0][0].steps, family.by_world)
    slope_QH = torch.stack([slope[q] * bench.basis.std_H / spread[q] for q in asked])
    own_KH = bench.basis.lift_KH[[ways[0].ids[0] for ways in family.ways]]
    out = []
    for mock in mocks:
        move_KH = own_KH if mock is None else torch.cat(list(mock)) * own_KH.norm(dim=1, keepdim=True)
        out.append((move_KH @ slope_QH.T).abs().amax(1).argsort(descending=True)[: family.choose].tolist())
    return out


def run_ways(
    family: Family, bench: Bench, world: Paired, mocks: Sequence[Mock | None], places: Sequence[Sequence[int]],
    label: str, path: str = "",
) -> dict[str, np.ndarray]:  # fmt: skip
    """{quantity: [M, R, W, N]}: effects of every way of changing the R directions at ``places`` of every mock, along
    the family's own path or another."""
    unaltered = {q: v[0] for q, v in world.measure([None]).items()}
    path, changes = path or family.through, []
    moves: dict[Hypothesis, Moves] = {}  # of changes at several steps, found once
    for mock, mine in zip(mocks, places, strict=True):
        for place in mine:
            other = None if mock is None else mock[place]
            for way in family.ways[place]:
                changes.append(bench.build(way) if other is None else bench.redirected(world, way, other, moves, path))
    together = max(1, TOGETHER // len(bench.starts))
    found = world.measure(changes, label, path, together)
    shape = (len(mocks), len(places[0]), len(family.ways[0]), -1)
    return {q: (v - unaltered[q]).reshape(shape) for q, v in found.items()}


def beyond_memory(
    effect: dict[str, np.ndarray], family: Family, bench: Bench, world: Paired, mocks: Sequence[Mock | None],
    places: Sequence[Sequence[int]], label: str,
) -> dict[str, np.ndarray]:  # fmt: skip
    """What of effects (of ``run_ways``) runs through the world: less what the agent's memory alone does."""
    kept = run_ways(family, bench, world, mocks, places, f"{label}, through memory", "memory")
    return {q: v - kept[q] for q, v in effect.items()}


class Contest(NamedTuple):
    """A family's own picks against what is picked of its mocks in the same way, in the real world."""

    own: list[Pick]
    places: list[list[int]]  # of the mocks' picks
    effect: dict[str, np.ndarray]  # of the mocks [M, R, W, N]
    largest: Chosen
    law_M: np.ndarray  # that every mock was drawn from

    def of(self, rank: int, way: int, rows_N: np.ndarray) -> dict[str, np.ndarray]:
        """{quantity: [M, starts]}: the controls of one way of changing what was picked ``rank``-th."""
        return {q: v[:, rank, way][:, rows_N] for q, v in self.effect.items()}


def contest(family: Family, choosing: Bench, bench: Bench, own: list[Pick], mocks: Mocks, label: str) -> Contest:
    """Choose among the mocks as ``own`` was chosen, and run in the real world what was picked."""
    assert bench.real is not None
    picks = choose(family, choosing, mocks.families)
    places = [[pick.place for pick in mine] for mine in picks]
    own_places = [[pick.place for pick in own]]
    effect = sought = run_ways(family, bench, bench.real, mocks.families, places, label)
    mine = run_ways(family, bench, bench.real, [None], own_places, label)
    if family.by_world:  # what was chosen by is what is compared
        sought = beyond_memory(effect, family, bench, bench.real, mocks.families, places, label)
        mine = beyond_memory(mine, family, bench, bench.real, [None], own_places, label)

    def means(some: dict[str, np.ndarray], chosen: Sequence[Sequence[Pick]], q: str) -> np.ndarray:
        """[M, R]: mean effect on a quantity of what was picked."""
        rows = [[bench.rows[family.ways[p.place][p.way]] for p in picked] for picked in chosen]
        found = [
            [some[q][m, r, p.way][rows[m][r]].mean() for r, p in enumerate(picked)] for m, picked in enumerate(chosen)
        ]
        return np.abs(np.array(found))

    # By the quantity, over everything that was picked, the family's own included: so that it is one of its like.
    mean = {q: means(sought, picks, q) for q in sought}
    every = {q: np.concatenate([v.ravel(), means(mine, [own], q).ravel()]) for q, v in mean.items()}
    scale = {q: float(np.sqrt(np.square(v).mean())) for q, v in every.items()}
    largest = [
        max(mean[p.quantity][m, r] / (scale[p.quantity] or 1.0) for r, p in enumerate(picked))
        for m, picked in enumerate(picks)
    ]
    return Contest(own, places, effect, Chosen(np.array(largest), scale, family.by_world), mocks.law_M)
