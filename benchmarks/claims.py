"""Does a claim mean what it says?  The rates that ``validation.planted`` has no time for, with exact (Clopper-Pearson)
95 % intervals: ``python -m benchmarks.claims STUDY ...``

    planted --studies 1000                      random bases through the choice and the contest of planted worlds
    bundle --studies 100 --hidden_states DIR    the same with the bundled CoinRun agent; all directions run once
    exact --studies 1000                        a real effect of twice the smallest size: found, or refuted?
    wrong --studies 200                         what is said of simulators that are wrong (--simulators: of these alone)

The bundle's studies draw their mocks from one pool, so that every direction runs once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core import config as cli
from core.contracts import VecEnv
from core.directions import load_basis
from core.stats import ALPHA, share_interval
from envs.planted import WRONG, Kind, Wrong
from envs.registry import make
from generative.simulator import load_simulator
from validation.hypotheses.grammar import shift_of
from validation.interventions.controls import Family, Mock, Pick, choose, mocks_of, run_ways
from validation.interventions.options import StudyOptions
from validation.interventions.statistics import worst_p
from validation.planted.claims import (
    DRAWN,
    FORETELLING,
    benches_of,
    choice_job,
    drawn_basis,
    foretelling_job,
    power_job,
)
from validation.planted.jobs import play
from validation.planted.measures import CONTROL, Found

BUNDLE = cli.ROOT / "bundles" / "coinrun-context" / "simulator"
WORLDS: tuple[Kind, ...] = ("confounded", "linear", "mediated", "delayed", "gated", "even", "redundant", "null")
EACH = 2  # random bases of every kind a drawn world
EXACT_AT_ONCE = 25
REPORT_EVERY = 8  # jobs: rates so far
MOCKS = 59  # of a study ...
POOL = 150  # ... drawn from so many
CHOSEN = 2  # the largest so many of the bundle's directions
AMOUNTS = (-2.0, 2.0)


def rate(name: str, values: Iterable[float]) -> str:
    """A rate, its exact interval and its count, in a line."""
    hits = np.array(list(values), np.float64)
    low, high = share_interval(int(round(hits.sum())), len(hits))
    return f"{name:<70} {hits.mean():.3f} [{low:.3f}, {high:.3f}]  {int(hits.sum())} of {len(hits)}"


def pooled(found: Found) -> None:
    """The same over worlds."""
    together: dict[tuple[str, str], list[float]] = {}
    for key, values in found.items():
        together.setdefault((key.measure.name, key.method), []).extend(values)
    for (measure, method), values in sorted(together.items()):
        print(rate(f"{measure}, all worlds: {method}", values), flush=True)


def play_some(jobs: Sequence[tuple[Callable[..., Found], tuple[Any, ...]]], processes: int) -> Found:
    """All jobs' numbers together."""
    together: Found = {}
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done, found in enumerate(pool.map(play, jobs), 1):
            for key, values in found.items():
                together.setdefault(key, []).extend(values)
            if done % REPORT_EVERY == 0 and done < len(jobs):
                print(f"after {done} of {len(jobs)} jobs", flush=True)
                pooled(together)
    return together


def show(found: Found) -> None:
    for key in sorted(found, key=lambda k: (k.measure.name, k.method, k.world)):
        print(rate(f"{key.measure.name}: {key.world}, {key.method.removeprefix(CONTROL)}", found[key]), flush=True)


def planted(studies: int, processes: int, seed: int) -> None:
    worlds = -(-studies // (len(WORLDS) * len(DRAWN) * EACH))
    found = play_some([(choice_job, (kind, EACH, seed + s)) for s in range(worlds) for kind in WORLDS], processes)
    show(found)
    pooled(found)
    right = [x for key, values in found.items() if not key.method.startswith(CONTROL) for x in values]
    print(rate("all random bases of planted worlds (at most .07)", right))


def exact(studies: int, processes: int, seed: int) -> None:
    show(
        play_some([(power_job, (EXACT_AT_ONCE, 192, seed + s)) for s in range(-(-studies // EXACT_AT_ONCE))], processes)
    )


def wrong(studies: int, processes: int, seed: int, simulators: Sequence[Wrong | None]) -> None:
    each = -(-studies // len(FORETELLING))
    jobs = [(foretelling_job, (kind, simulators, seed + s)) for s in range(each) for kind in FORETELLING]
    found = play_some(jobs, processes)
    show(found)
    pooled(found)


def bundle(studies: int, hidden_states: Path, starts: int, seed: int) -> None:
    torch.set_num_threads(1)
    cli.tune_allocator()
    began = time.time()
    simulator = load_simulator(BUNDLE)
    basis = load_basis(hidden_states, "ica", None)

    def pool(level: int) -> Callable[[int], VecEnv]:
        return lambda slots: make(simulator.world.spec, slots, threads=1, start_level=level, num_levels=100_000)

    options = StudyOptions(
        amounts=AMOUNTS, starts=starts, horizon=8, controls=MOCKS, latest_start=32, largest=CHOSEN, seed=seed
    )
    choosing, test = benches_of(simulator, pool(700_000_000), basis, options, pool(600_000_000))
    assert test.real is not None
    family = Family(tuple(tuple(shift_of(basis.kind, i, a) for a in AMOUNTS) for i in range(basis.size)), choose=CHOSEN)
    for bench in (choosing, test):
        bench.prepare([way for ways in family.ways for way in ways], (), np.random.default_rng(0))
    # A shift moves as far along whatever direction it is given, so that a random basis is run as mocks are.
    rng = np.random.default_rng([seed, 2])
    each = -(-studies // len(DRAWN))
    how_S = [how for how in DRAWN for _ in range(each)]
    drawn: list[Mock] = []
    for how in how_S:
        lift_KH = drawn_basis(how, basis, choosing.starts.h_NH, rng).lift_KH
        drawn.append(tuple((row / row.norm())[None] for row in lift_KH))
    mocks = mocks_of(family, choosing, POOL, torch.Generator().manual_seed(seed))
    print(f"benches: {time.time() - began:.0f} s", flush=True)
    every = [*drawn, *mocks.families]
    picks = choose(family, choosing, every)
    print(f"chosen: {time.time() - began:.0f} s", flush=True)
    places = [[pick.place for pick in mine] for mine in picks]
    effect = run_ways(family, test, test.real, every, places, "real world: all that was chosen")
    print(f"run: {time.time() - began:.0f} s", flush=True)
    mean = {q: np.abs(v.mean(-1)) for q, v in effect.items()}  # [bases and mocks, R, W]
    p_S, of_law = [], [np.flatnonzero(mocks.law_M == law) for law in np.unique(mocks.law_M)]
    for s in range(len(drawn)):
        some = np.concatenate([rng.permutation(mine)[:MOCKS] for mine in of_law])
        p_S.append(chance(mean, picks, s, len(drawn) + some, mocks.law_M[some]))
    for how in DRAWN:
        print(rate(f"bundle, {how}", [p <= ALPHA for p, other in zip(p_S, how_S, strict=True) if other == how]))
    print(rate("bundle, all random bases (at most .10)", [p <= ALPHA for p in p_S]))


def chance(
    mean: dict[str, np.ndarray], picks: Sequence[Sequence[Pick]], own: int, mocks: np.ndarray, law_M: np.ndarray
) -> float:
    """p of the largest of what was picked of a basis, as ``validation.interventions.controls.contest`` has it."""

    def size(m: int, r: int, q: str) -> float:
        return float(mean[q][m, r, picks[m][r].way])

    several = range(len(picks[own]))
    scale = {
        q: float(np.sqrt(np.mean([size(m, r, q) ** 2 for m in (own, *mocks) for r in several]))) or 1.0 for q in mean
    }
    largest = [max(size(m, r, p.quantity) / scale[p.quantity] for r, p in enumerate(picks[m])) for m in (own, *mocks)]
    return worst_p(largest[0], np.array(largest[1:]), law_M)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("planted", "bundle", "exact", "wrong"))
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--hidden_states", type=Path, default=Path("runs/hidden_states"))
    parser.add_argument("--starts", type=int, default=96, help="starts to choose on and to test at (bundle)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=10_000)
    parser.add_argument("--simulators", nargs="+", choices=WRONG, help="default: the exact one, and all that are wrong")
    given = parser.parse_args()
    if given.study == "bundle":
        bundle(given.studies, given.hidden_states, given.starts, given.seed)
    elif given.study == "wrong":
        wrong(given.studies, given.processes, given.seed, given.simulators or (None, *WRONG))
    else:
        {"planted": planted, "exact": exact}[given.study](given.studies, given.processes, given.seed)


if __name__ == "__main__":
    main()
