"""Which methods are played in which planted worlds, over processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import numpy as np
import torch

from core.config import tune_allocator
from core.progress import bar
from envs.planted import WRONG, Kind
from validation.planted.claims import SHAPES, choice_job, claims_job, foretelling_job, power_job, tail_job
from validation.planted.config import PlantedConfig
from validation.planted.measures import Found
from validation.planted.scores import (
    ACTING,
    accusation_job,
    behaviours_job,
    correlation_job,
    coupling_job,
    directions_job,
    effect_job,
    interventions_job,
    saliency_job,
    weak_correlation_job,
)

CHUNK = 50  # experiments a job
COUPLING_PERMUTATIONS = 1999  # as by default: with fewer no arrow of a world of few can be significant among so many
EFFECT_RUNS = 4  # of them for a configured one, where effects differ from episode to episode
CHOOSING: tuple[Kind, ...] = ("confounded", "linear", "gated", "null")  # worlds that random bases are tried in
FORETOLD_IN: tuple[Kind, ...] = ("confounded", "mediated")  # worlds in which simulators are wrong
CHOICES = 1  # random bases of every kind in each of their worlds
CLAIM_STARTS = 64  # of a study of claims where tails are heavy
SHAPE_STARTS = 384  # of claims of a known shape; half of them lie in a behaviour, and few cannot say "no effect"
POWER_STARTS = 192  # of a study whose power is counted
LEAN = 0.5  # mean of a fickle effect, in its own standard deviations, whose discovery is counted as power
Job = tuple[Callable[..., Found], tuple[Any, ...]]


def jobs_of(config: PlantedConfig) -> list[Job]:
    """Everything that the configured worlds are scored by, the longest first."""
    jobs: list[Job] = []
    seeds = range(config.seed, config.seed + config.repeats)
    chunks = max(1, config.runs // CHUNK)
    sizes = [len(part) for part in np.array_split(np.arange(config.runs), chunks)]
    for i, runs in enumerate(sizes):
        seed = config.seed + i
        if "null" in config.worlds:
            jobs.append((correlation_job, (runs, config.episodes, config.permutations, seed)))
            # Cheap, and one test a run: the more runs, the less a rate near 5 % is a matter of luck.
            jobs.append((effect_job, (EFFECT_RUNS * runs, config.episodes, config.permutations, 0.0, seed)))
            jobs.append((effect_job, (runs, config.episodes, config.permutations, LEAN, seed)))
            jobs.append((power_job, (runs // 2, POWER_STARTS, seed)))
            jobs += [(tail_job, (runs // 2, CLAIM_STARTS, lean, seed)) for lean in (0.0, -1.0)]
        if "linear" in config.worlds:
            jobs.append((weak_correlation_job, (runs, config.episodes, config.permutations, seed)))
    if "confounded" in config.worlds:
        jobs += [(accusation_job, (config.permutations, config.seed + s)) for s in range(config.seeds)]
    for seed in seeds[: max(1, config.repeats // 2)]:  # whole studies, several claims in each
        shapes = [shape for shape in SHAPES if shape.partition(",")[0] in config.worlds]
        jobs += [(claims_job, (shape, SHAPE_STARTS, seed)) for shape in shapes]
        told = [kind for kind in config.worlds if kind in FORETOLD_IN]
        jobs += [(foretelling_job, (kind, (None, *WRONG), seed)) for kind in told]
    for seed in seeds:
        if "mixture" in config.worlds:
            jobs.append((behaviours_job, (seed,)))
        for kind in config.worlds:
            if kind in CHOOSING:
                jobs.append((choice_job, (kind, CHOICES, seed)))
            if kind in ("linear", "delayed"):
                jobs.append((directions_job, (kind, seed)))
            if kind in ACTING:
                jobs.append((coupling_job, (kind, COUPLING_PERMUTATIONS, seed)))
            if kind in ACTING and kind != "gated":
                jobs.append((saliency_job, (kind, seed)))
            if kind in ACTING and kind != "pixels":
                jobs.append((interventions_job, (kind, seed)))
    return jobs


def play(job: Job) -> Found:
    """One job, on one CPU thread."""
    torch.set_num_threads(1)
    tune_allocator()
    function, arguments = job
    return function(*arguments)


def play_all(jobs: Sequence[Job], processes: int) -> Found:
    """Every job's numbers together, in the order of the jobs whatever order they ended in."""
    results: dict[int, Found] = {}
    with bar("planted worlds", len(jobs), "jobs") as progress:
        if processes == 1:
            for n, job in enumerate(jobs):
                results[n] = play(job)
                progress.advance()
        else:
            with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
                try:
                    futures = {pool.submit(play, job): n for n, job in enumerate(jobs)}
                    for future in as_completed(futures):
                        results[futures[future]] = future.result()
                        progress.advance()
                except BaseException:  # the pool would wait for its processes, minutes a job
                    for process in multiprocessing.active_children():
                        process.terminate()
                    raise
    together: Found = {}
    for n in range(len(jobs)):
        for key, values in results[n].items():
            together.setdefault(key, []).extend(values)
    return together
