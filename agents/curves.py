"""Draw learning curves: ``python -m agents.curves runs/agent_1 runs/agent_2 runs/agent_3``.

Training return, and return on held-out levels where a training measured it (train.py --evaluate_every) or evaluations
are named; of policies of Neural MMO the length of their lives.  Runs whose settings differ by more than their seed are
lines of their own; the others are averaged, with a 95 % interval over seeds.  A single run's held-out return has its
interval over episodes.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m agents.curves", file=sys.stderr)
    sys.exit(2)

from dataclasses import dataclass
from pathlib import Path

import tyro

from agents.learning_curves import LAST, Mode, bands_of, draw_curves, of_the_ended, ranges_of, read_all, told_apart
from core import artefacts, config as cli
from core.artefacts import MANIFEST, Result
from core.contracts import UserError
from core.stats import between
from core.words import counted

STAGE = "curves"


@dataclass(frozen=True, kw_only=True)
class CurvesConfig:
    """Draw learning curves of several runs: training return and held-out return, with intervals over seeds."""

    trainings: tyro.conf.Positional[tuple[str, ...]] = ("runs/agent",)
    """run directories of trainings and of evaluations, or METHOD/GAME/SEED=progress.csv (with /test after the seed:
    held-out levels); one that still runs, too"""
    smoothing: float = 0.0
    """weight of the past in the moving average of training returns, which are means already, of the last 100 episodes
    that ended (early on the short ones; return_episodes in curve.csv is how many)"""
    drop: int = 0
    """first updates of a training that are left out"""
    normalise: bool = False
    """returns as shares of the game's range (Procgen), and the mean of all games"""
    distribution_mode: Mode | None = None
    """easy or hard: the levels that a progress.csv's returns are of, which --normalise needs; trainings say theirs"""
    out: Path = Path("runs/curves")
    """run directory to write: curves.png, curves.csv (the lines), runs.csv (the end of every run)"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def main(config: CurvesConfig) -> None:
    cli.require(0, drop=config.drop)
    if not 0 <= config.smoothing < 1:
        raise UserError(f"--smoothing {config.smoothing:g} must be at least 0 and below 1")
    if not config.trainings:
        raise UserError("nothing to draw: name run directories of trainings")
    whole = {f"training_{i}": Path(w) for i, w in enumerate(config.trainings) if (Path(w) / MANIFEST).exists()}
    inputs = artefacts.Inputs(whole)
    read = read_all(config.trainings, config.normalise, config.distribution_mode)
    curves = told_apart([curve for curve in read if len(curve.step_U)])
    if not curves:
        raise UserError(f"{' '.join(config.trainings)}: no episode ended and nothing was measured; there is no return")
    bands, ends = bands_of(curves, smoothing=config.smoothing, drop=config.drop, normalise=config.normalise)
    result = Result(notes={"interval": "95 %, over seeds (Student); of one seed over episodes, where it was measured"})
    ended = of_the_ended(curves)
    result.notes |= {"training": ended} if ended else {}
    empty = [f"{c.run or f'{c.method}/{c.game}/{c.seed}'} ({c.game}, {c.split})" for c in read if not len(c.step_U)]
    left_out = f"{', '.join(empty)} left out: no episode had ended" if empty else ""
    result.notes |= {"left_out": left_out} if empty else {}
    result.tables["runs"] = ends
    result.tables["curves"] = [
        {"method": b.method, "game": b.game, "split": b.split, "seeds": b.seeds, "step": float(step),
         "return": float(mean), "low": float(low), "high": float(high)}
        for b in bands for step, mean, low, high in zip(b.step_T, b.mean_T, b.low_T, b.high_T, strict=True)
    ]  # fmt: skip
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result.save(run.path)
        with run.figures():
            draw_curves(bands, config.normalise, ended).savefig(run.path / "curves.png", dpi=140)
    for band in bands:
        interval = between(band.low_T[-1], band.high_T[-1], ".2f")
        seeds = counted(band.seeds, "seed")
        print(f"{band.game}, {band.method}, {band.split}: {band.mean_T[-1]:.2f}{interval} at "
              f"{band.step_T[-1]:,.0f} steps ({seeds})")  # fmt: skip
    for said in (ranges_of(ends), ended, left_out):
        if said:
            print(said)
    print(f"(where the curves end; the means of each run's last {LAST} updates are in runs.csv)")
    print(f"curves: {config.out}/curves.png")


if __name__ == "__main__":
    cli.run(CurvesConfig, main, STAGE)
