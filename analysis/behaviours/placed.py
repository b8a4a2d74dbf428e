"""Steps beyond those that map and clusters are made from: read some at a time, and placed.

Whole episodes are drawn, and not single steps of all: a step's vector needs the steps that follow it, the world states
of one need all frames before it, and what is said of the behaviours (transitions, surrogates as slow as the data)
needs an episode's steps in a row.  So placed and fitted episodes are alike but for chance, and what placing costs is
measured on such as are placed: those of the fitted that were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analysis.behaviours.config import BehaviourOptions
from analysis.behaviours.histories import Scale, States, Steps, histories, weighted
from analysis.shared.behaviours import SOURCES
from analysis.shared.clusters import STEPS_PER_CLUSTER, Clustering, labeller
from analysis.shared.maps import LEAST_MAPPED, check_placeable, mapped
from analysis.shared.placed import LEAST_LIVES, check_lives, share_of_least
from analysis.shared.sources import SIMULATED
from analysis.shared.units import Drawn, drawn, episodes_of
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore
from core.progress import bar

DIMENSIONS = 3  # of the map
STEPS_AT_ONCE = 20_000  # read and placed, of whole episodes; no more than the map and clusters are made from


class Placed(NamedTuple):
    """Further steps: labels int64 [P], places on the map [P, 3], (episode, t) int64 [P, 2]."""

    label_P: np.ndarray
    map_PX: np.ndarray
    index_P2: np.ndarray


@dataclass(frozen=True)
class Fitted:
    """Map and clusters as they were found, for further steps: all that is done to these are the fitted steps' numbers.
    ``on_map``: the clusters are of the map, else of the components."""

    states: States
    lags: tuple[int, ...]
    history: Scale
    components: Callable[[np.ndarray], np.ndarray]
    map: Callable[[np.ndarray], np.ndarray]
    clusters: Callable[[np.ndarray], np.ndarray]
    on_map: bool

    def __call__(self, steps: Steps) -> Placed:
        """Where further steps of one source lie, of whole episodes."""
        vectors_PF, rows_P = histories(self.states(steps.h_NH, steps.d_ND), steps.index_N2, self.lags)
        if not len(rows_P):
            return Placed(np.zeros(0, np.int64), np.zeros((0, DIMENSIONS)), np.zeros((0, 2), np.int64))
        scores_PK = self.components(weighted(vectors_PF, len(self.lags), self.history))
        map_PX = self.map(scores_PK)
        return Placed(self.clusters(map_PX if self.on_map else scores_PK), map_PX, steps.index_N2[rows_P])


def least_cluster(options: BehaviourOptions, rows: int, of: int) -> int:
    """--min_cluster_size among some of the steps that it is of; itself where it is 0 or too small to mean anything."""
    given = options.min_cluster_size
    return given if given < STEPS_PER_CLUSTER else share_of_least(given, rows, of)


def again_from(
    scores_MK: np.ndarray, on_map: bool, options: BehaviourOptions, seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """What makes map and clusters again from some rows, and labels all (for ``cost``); the components are held
    fixed."""

    def again(rows: np.ndarray) -> np.ndarray:
        fewest = 2 * STEPS_PER_CLUSTER if options.method == "hdbscan" else STEPS_PER_CLUSTER * options.clusters
        fewest = max(fewest, LEAST_MAPPED if options.embedding == "umap" else 0)
        if len(rows) < fewest:
            raise UserError(
                f"--fit_rows {options.fit_rows}: what that costs is measured by clusters of half of the episodes, and "
                f"their {len(rows)} steps are too few (at least {fewest}); raise --fit_rows"
                + (", record more real steps, or use --fit_on all" if options.fit_on == "real" else "")
            )
        others = np.setdiff1d(np.arange(len(scores_MK)), rows)
        some, more = scores_MK[rows], scores_MK[others]
        if on_map:
            made = mapped(some, options.embedding, DIMENSIONS, seed, more=True)
            assert made.place is not None
            some, more = made.map_ND, made.place(more)
        how = Clustering.of(options.method, options.clusters, options.min_cluster_size, len(scores_MK))
        label = labeller(some, how, seed)
        out = np.empty(len(scores_MK), np.int64)
        out[rows], out[others] = label(some), label(more)
        return out

    return again


# Reading


@dataclass(frozen=True)
class Source:
    """The episodes of a store that get labels, and those of them that map and clusters are made from."""

    store: RolloutStore
    first: int  # step of an episode that is read
    unit_E: np.ndarray
    steps_of: Callable[[Sequence[int]], Steps]  # reads the steps of some (sorted) episodes
    drawn: Drawn
    fitted: list[int]

    @property
    def steps_E(self) -> np.ndarray:
        """Steps of every episode, int64 [E]."""
        return np.maximum(np.minimum(self.store.steps, self.store.rows) - self.first, 0)

    @property
    def others(self) -> list[int]:
        """The episodes whose steps are placed."""
        return sorted({*self.drawn.episodes} - {*self.fitted})

    def pieces(self, most: int) -> Iterator[list[int]]:
        """``others``, at most about so many steps (or one episode) at a time."""
        steps_E, piece, steps = self.steps_E, list[int](), 0
        for e in self.others:
            if piece and steps + steps_E[e] > most:
                yield piece
                piece, steps = [], 0
            piece.append(e)
            steps += int(steps_E[e])
        if piece:
            yield piece


def source(
    store: RolloutStore, first: int, unit_E: np.ndarray, steps_of: Callable[[Sequence[int]], Steps],
    options: BehaviourOptions, seed: int,
) -> Source:  # fmt: skip
    """Who is read and who of them fitted: both the first of the same random order.  UserError where no episode is long
    enough."""
    read = drawn(store, first, options.most_states, seed)
    fitted = {*episodes_of(store, first, options.fit_rows, seed)} & {*read.episodes}
    return Source(store, first, unit_E, steps_of, read, sorted(fitted))


def check_placing(sources: Sequence[Source | None], options: BehaviourOptions) -> tuple[int, int]:
    """How many steps there are if some are to be placed, and how many of them are of the sources that map and clusters
    are made from (--fit_on), else 0; UserError where these cannot be."""
    there = [s for s in sources if s is not None]
    if not any(s.others for s in there):
        return 0, 0
    check_placeable(options.embedding)
    instead = f", or leave the others out (--most_states {options.fit_rows})"
    instead += ", or --fit_on all" if options.fit_on == "real" else ""
    fitted = np.concatenate([s.unit_E[s.fitted] for s in there])
    if not any(s.others for s in there if s.fitted) and (n := len(np.unique(fitted))) < LEAST_LIVES:
        raise UserError(
            f"--fit_on real: what that costs cannot be measured on {n} independent episodes or worlds; at least "
            f"{LEAST_LIVES} are needed: record more, or use --fit_on all"
        )
    check_lives(fitted, options.fit_rows, "independent episodes or worlds", instead)
    steps = [int(s.steps_E[s.drawn.episodes].sum()) for s in there]
    return sum(steps), sum(n for n, s in zip(steps, there, strict=True) if s.fitted)


def place_others(result: Result, finished: Fitted, sources: Sequence[Source | None]) -> None:
    """The other episodes' steps beside the fitted ones in ``labels``, ``index`` and ``map`` of every source, in the
    order of episodes; ``fitted`` int64 [M], the rows of the map that are not placed, and how many these are."""
    arrays, begin = result.arrays, 0
    most = min(STEPS_AT_ONCE, max(int(of.steps_E[of.fitted].sum()) for of in sources if of is not None))
    maps: list[np.ndarray] = []
    fitted: list[np.ndarray] = []
    for name, of in zip(SOURCES, sources, strict=True):
        if of is None:
            continue
        label_N = arrays.get(f"labels_{name}", np.zeros(0, np.int16))
        index_N2 = arrays.get(f"index_{name}", np.zeros((0, 2), np.int64))
        made, begin = len(label_N), begin + len(label_N)
        map_NX = arrays["map"][begin - made : begin]
        parts = [Placed(label_N, map_NX, index_N2)]
        others = of.steps_E[of.others].sum()
        with bar(f"placing {name} steps", int(others), "steps") as progress:
            for episodes in of.pieces(most):
                further = finished(of.steps_of(episodes))
                parts.append(
                    Placed(further.label_P.astype(label_N.dtype), further.map_PX.astype(map_NX.dtype), further.index_P2)
                )
                progress.advance(int(of.steps_E[episodes].sum()))
        label_N, map_NX, index_N2 = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.lexsort(index_N2.T[::-1])
        fitted.append(np.flatnonzero(order < made) + sum(len(m) for m in maps))
        maps.append(map_NX[order])
        arrays |= {f"labels_{name}": label_N[order], f"index_{name}": index_N2[order]}
    arrays |= {"map": np.concatenate(maps), "fitted": np.concatenate(fitted)}
    result.scalars["fitted"]["n"] = len(arrays["map"])
    simulated = sources[SIMULATED]
    if simulated is not None and not simulated.fitted:
        for row in result.tables["behaviours"]:
            row["n_sim_steps"] = int((arrays["labels_sim"] == row["behaviour"]).sum())
