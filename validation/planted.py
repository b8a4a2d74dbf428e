"""Does every method find what is there, and only that?  ``python -m validation.planted``

Every method runs on worlds whose truth is known (``envs.planted``), and each of its scores
(``validation.planted_scores``) stands beside what it must reach.  Rows marked as broken belong to methods broken on
purpose (a sign flipped, a decodable direction taken for a cause, single steps permuted instead of episodes, a
randomised agent): a table in which they look as good as the others measures nothing.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core import artefacts, config as cli
from core.artefacts import Result
from core.config import tune_allocator
from core.contracts import UserError
from core.progress import bar
from core.stats import bootstrap_mean, least_permutations, require_permutations, share_of
from envs.planted import KINDS, WRONG, Kind
from validation.planted_claims import (
    SHAPES,
    choice_job,
    claims_job,
    foretelling_job,
    power_job,
    tail_job,
)
from validation.planted_measures import ALPHA, CHOICE, CONTROL, MEASURES, RATES, Found
from validation.planted_scores import (
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

STAGE = "planted"
CHUNK = 50  # experiments a job
COUPLING_PERMUTATIONS = 1999  # as by default: with fewer no arrow of a world of few can be significant among so many
EFFECT_RUNS = 4  # of them for a configured one, where effects differ from episode to episode
CHOOSING: tuple[Kind, ...] = ("confounded", "linear", "gated", "null")  # worlds that random bases are tried in
FORETOLD_IN: tuple[Kind, ...] = ("confounded", "mediated")  # worlds in which simulators are wrong
CHOICES = 1  # random bases of every kind in each of their worlds
CLAIM_STARTS = 64  # of a study of claims of a known shape, or of heavy tails
POWER_STARTS = 192  # of a study whose power is counted
LEAN = 0.5  # mean of a fickle effect, in its own standard deviations, whose discovery is counted as power


@dataclass(frozen=True, kw_only=True)
class PlantedConfig:
    """Score every analysis against worlds whose causes are known."""

    out: Path = Path("runs/planted")
    """run directory to write"""
    worlds: tuple[Kind, ...] = KINDS
    """worlds to score on"""
    repeats: int = 10
    """drawn worlds a score rests on"""
    seeds: int = 100
    """confounded worlds in which a method may accuse the nuisance"""
    runs: int = 400
    """experiments without an effect, and with a small one, that rates of false and true discoveries are counted over"""
    episodes: int = 24
    """episodes, or paired starts, of each of those experiments"""
    permutations: int = 199
    """permutations of each of their tests; p-values are no finer than one over so many"""
    seed: int = 0
    """the first seed; every job has its own"""
    threads: int = 2
    """jobs at a time, each on a CPU thread of its own; 1: in this process"""
    overwrite: bool = False
    """replace an earlier run in --out"""


# All of them


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
        jobs += [(claims_job, (shape, CLAIM_STARTS, seed)) for shape in shapes]
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


def over_bases(found: Found) -> Found:
    """Random bases of every kind counted together: few of one kind say nothing of a rate."""
    together: Found = {}
    for key, values in found.items():
        random = key.measure == CHOICE and not key.method.startswith(CONTROL)
        to = key._replace(method="largest of 8 random directions") if random else key
        together.setdefault(to, []).extend(values)
    return together


def scores(found: Found, seed: int) -> list[dict[str, Any]]:
    """A row a score, with its interval over worlds, its target and whether it is met; the controls last."""
    rows = []
    order = [k for kind in (*KINDS, "") for k in found if k.world.partition(",")[0] == kind]
    for key in sorted(order, key=lambda k: k.method.startswith(CONTROL)):
        values, worlds = np.array(found[key]), np.arange(len(found[key]))
        if key.measure in RATES and np.isin(values, (0, 1)).all():
            e = share_of(values, worlds)
        else:
            e = bootstrap_mean(values, worlds, rng=np.random.default_rng(seed))
        target = key.measure.target
        rows.append({
            "world": key.world, "method": key.method.removeprefix(CONTROL), "control": key.method.startswith(CONTROL),
            "measure": key.measure.name, "value": e.value, "low": e.low, "high": e.high, "n": e.n,
            "target": target.text if target else "", "met": target.low <= e.value <= target.high if target else None,
            "in_words": key.measure.words,
        })  # fmt: skip
    return rows


def assemble(found: Found, config: PlantedConfig) -> Result:
    """Table ``scores``; scalars ``targets_met`` and ``controls_caught``; an array WORLD/METHOD/MEASURE of the numbers
    that a score is the mean of, a world or experiment each (methods broken on purpose: ``control: METHOD``)."""
    result = Result(tables={"scores": scores(found, config.seed)})
    result.arrays = {"/".join((k.world, k.method, k.measure.name)): np.array(v) for k, v in found.items()}
    judged = [row for row in result.tables["scores"] if row["met"] is not None]
    right = [row["met"] for row in judged if not row["control"]]
    caught = [not row["met"] for row in judged if row["control"]]
    result.scalar("targets_met", float(np.mean(right)) if right else float("nan"), "share of scores", len(right))
    result.scalar(
        "controls_caught", float(np.mean(caught)) if caught else float("nan"), "share of controls", len(caught)
    )
    result.notes["missed"] = [
        f"{r['world']}: {r['method']}, {r['measure']}" for r in judged if r["met"] == r["control"]
    ]
    return result


# The figure, drawn from the result


GOOD, BAD, PLAIN = "#d5ecd8", "#f4cccc", "#f2f2f2"


def draw_scores(result: Result, path: Path) -> None:
    """One cell a (method and measure, world): green where the target is reached, red where not, grey where there is
    none.  The rows below the line belong to methods broken on purpose."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    table, names = result.tables["scores"], [m.name for m in MEASURES]
    lines = list(dict.fromkeys((r["control"], r["measure"], r["method"]) for r in table))
    lines.sort(key=lambda line: (line[0], names.index(line[1])))
    worlds = list(dict.fromkeys(r["world"] for r in table))
    worlds.sort(key=lambda w: (KINDS.index(w.partition(",")[0]), w))
    cell = {((r["control"], r["measure"], r["method"]), r["world"]): r for r in table}
    height = 0.27 * len(lines) + 1.9
    figure = Figure(figsize=(15.5, height))
    axis = figure.add_axes((0.5, 0.1 / height, 0.49, 1 - 1.9 / height))
    axis.set(xlim=(0, len(worlds)), ylim=(len(lines), 0))
    axis.set_axis_off()
    for x, world in enumerate(worlds):
        axis.text(x + 0.5, -0.25, world.replace(", ", "\n"), ha="center", va="bottom", fontsize=9, weight="bold")
    before = None
    for y, line in enumerate(lines):
        control, measure, method = line
        if control != before and control:
            axis.axhline(y, color="black", lw=1.2, xmin=-1, clip_on=False)
        before = control
        asked = MEASURES[names.index(measure)]
        goal = f": {asked.target.text}".replace(">=", "≥").replace("<=", "≤") if asked.target else ""
        axis.text(-0.1, y + 0.5, asked.words + goal, ha="right", va="center", fontsize=8)
        name = f"broken on purpose: {method}" if control else method
        axis.text(-5.3, y + 0.5, name, ha="right", va="center", fontsize=8, style="italic" if control else "normal")
        for x, world in enumerate(worlds):
            row = cell.get((line, world))
            if row is None:
                continue
            colour = PLAIN if row["met"] is None else GOOD if row["met"] else BAD
            axis.add_patch(Rectangle((x + 0.03, y + 0.06), 0.94, 0.88, color=colour, lw=0))
            axis.text(x + 0.5, y + 0.5, brief(row["value"]), ha="center", va="center", fontsize=8)
    figure.text(
        0.01, 1 - 0.3 / height, "Does every method find what was planted, and only that?", fontsize=13, weight="bold"
    )
    figure.text(
        0.01, 1 - 0.58 / height,
        "Each column is a small world whose causes are known. Green: a score reaches what it must; red: it does not; "
        "grey: nothing is asked of it.",
        fontsize=9,
    )  # fmt: skip
    figure.text(
        0.01, 1 - 0.82 / height,
        "The methods below the line were broken on purpose and should be red: a yardstick that they could pass would "
        "measure nothing.",
        fontsize=9,
    )  # fmt: skip
    figure.savefig(path, dpi=110)


def brief(value: float) -> str:
    """A number in at most five characters or so."""
    if value != 0 and abs(value) < 0.001:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) < 100 else f"{value:.0f}"


# The stage


def check(config: PlantedConfig) -> None:
    """UserError for settings from which nothing could be concluded."""
    if not config.worlds:
        raise UserError(f"--worlds names no world; there are: {', '.join(KINDS)}")
    cli.require(1, repeats=config.repeats, seeds=config.seeds, threads=config.threads)
    cli.require(2, runs=config.runs)  # a probe reads each experiment's states for another one's
    cli.require(0, seed=config.seed)
    require_permutations(config.episodes, ALPHA)
    if config.permutations < (least := least_permutations(ALPHA)):
        raise UserError(f"--permutations {config.permutations}: a p-value of {ALPHA:g} needs at least {least}")


def main(config: PlantedConfig) -> None:
    check(config)
    with artefacts.new_run(config.out, STAGE, config, {}, overwrite=config.overwrite) as run:
        result = assemble(over_bases(play_all(jobs_of(config), config.threads)), config)
        result.save(run.path)
        draw_scores(result, run.path / "planted.png")
        run.metrics = dict(result.scalars)
    print(summary(result, config.out))


def summary(result: Result, out: Path) -> str:
    """The table for a terminal, and what was missed."""
    lines = []
    for row in result.tables["scores"]:
        known = row["low"] is not None and np.isfinite(row["low"])
        interval = f"[{row['low']:.3g}, {row['high']:.3g}]" if known else ""
        verdict = {None: "", True: "ok", False: "MISSED"}[row["met"]]
        if row["control"]:
            verdict = {None: "", True: "NOT CAUGHT", False: "caught"}[row["met"]]
        method = f"broken: {row['method']}" if row["control"] else row["method"]
        lines.append(
            f"{row['world']:<15} {method:<34} {row['measure']:<30} {row['value']:>9.3g} {interval:<22} "
            f"{row['n']:>4} {row['target'] or '':<13} {verdict}"
        )
    head = f"{'world':<15} {'method':<34} {'measure':<30} {'value':>9} {'95 % interval':<22} {'n':>4} {'target':<13}"
    met, caught = result.scalars["targets_met"], result.scalars["controls_caught"]
    tail = [
        f"{met['value']:.1%} of {met['n']} targets met, {caught['value']:.1%} of {caught['n']} broken caught: {out}",
        *(f"  missed: {name}" for name in result.notes["missed"]),
    ]
    return "\n".join([head, *lines, *tail])


if __name__ == "__main__":
    cli.run(PlantedConfig, main, STAGE)
