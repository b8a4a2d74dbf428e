"""Learning curves of several methods, seeds and games, from trainings' progress.csv (OpenAI Baselines' columns).

T points of a common grid of steps.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.progress import FILE
from core.artefacts import MANIFEST, Result, load_bytes, load_json, read_manifest
from core.config import read_json
from core.contracts import UserError
from core.stats import student
from envs.procgen_returns import returns_of

NEEDED = ("eprewmean", "misc/total_timesteps")
SPLITS = ("train", "test")
POINTS = 200
LAST = 50  # updates whose mean is a run's result
ALL_GAMES = "all games"


@dataclass(frozen=True)
class Curve:
    """One run's returns; of an evaluation a single point."""

    method: str
    game: str
    seed: str
    split: str
    mode: str
    step_U: np.ndarray
    return_U: np.ndarray


@dataclass(frozen=True)
class Band:
    """Mean over seeds with its 95 % interval (Student); one seed has none."""

    method: str
    game: str
    split: str
    seeds: int
    step_T: np.ndarray
    mean_T: np.ndarray
    low_T: np.ndarray
    high_T: np.ndarray


def read_curve(word: str) -> Curve:
    """A training's run directory, an evaluation's, or METHOD/GAME/SEED[/test]=FILE of a progress.csv.  UserError."""
    label, equals, path = word.partition("=")
    if equals:
        parts = label.split("/")
        if len(parts) not in (3, 4) or (len(parts) == 4 and parts[3] not in SPLITS):
            raise UserError(f"--curves {word!r}: expected METHOD/GAME/SEED=FILE, or METHOD/GAME/SEED/test=FILE")
        step_U, return_U = read_progress(Path(path))
        return Curve(parts[0], parts[1], parts[2], parts[3] if len(parts) == 4 else "train", "easy", step_U, return_U)
    directory = Path(word)
    if (directory / FILE).exists() and not (directory / MANIFEST).exists():
        print(f"note: {directory} is not finished; its curve goes as far as it has come")
        stage, inputs = "train", {}
    else:
        manifest = read_manifest(directory)
        stage, inputs = manifest["stage"], manifest["inputs"]
    if stage == "train":
        if (directory / MANIFEST).exists():
            load_bytes(directory, FILE)  # compares it with the manifest
            config = load_json(directory, "config.json")
        else:
            config = read_json(directory / "config.json")
        return _curve_of(config["config"], "train", *read_progress(directory / FILE))
    if stage != "evaluate" or "agent" not in inputs:
        raise UserError(f"--curves {word}: neither a training nor an evaluation (stage {stage!r} wrote it)")
    agent = (directory / inputs["agent"]["path"]).resolve()
    steps = read_manifest(agent)["metrics"].get("steps", {}).get("value", 0)
    value = Result.load(directory).scalars["return_mean"]["value"]
    return _curve_of(load_json(agent, "config.json")["config"], "test", np.array([float(steps)]), np.array([value]))


def _curve_of(config: dict[str, Any], split: str, step_U: np.ndarray, return_U: np.ndarray) -> Curve:
    env = config["env"]
    return Curve(config.get("policy", "plain"), env["game"], str(config["seed"]), split, env["distribution_mode"],
                 step_U, return_U)  # fmt: skip


def read_progress(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(steps, mean returns), float64 [U]; rows from before the first episode ended are left out.  UserError."""
    try:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    have = rows[0].keys() if rows else ()
    missing = [name for name in NEEDED if name not in have]
    if missing:
        raise UserError(f"{path}: {'no rows' if not rows else f'no column {missing[0]}'}; a progress.csv has "
                        f"{' and '.join(NEEDED)}")  # fmt: skip
    try:
        found = np.array([[float(row[name] or "nan") for name in reversed(NEEDED)] for row in rows])
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: not a number in {' or '.join(NEEDED)} ({error})") from None
    found = found[np.isfinite(found).all(1)]
    return found[:, 0], found[:, 1]


def smoothed(x_U: np.ndarray, weight: float) -> np.ndarray:
    """Exponential moving average that begins at the first value."""
    out = np.array(x_U, np.float64)
    for i in range(1, len(out)):
        out[i] = weight * out[i - 1] + (1 - weight) * out[i]
    return out


def bands_of(
    curves: Sequence[Curve], *, smoothing: float, drop: int, normalise: bool
) -> tuple[list[Band], list[dict[str, Any]]]:
    """(mean over the seeds of every method, game and split; a row a run with the mean of its last LAST updates).

    normalise: returns as shares of the game's range, and one more game, the mean of all.  UserError for a curve with
    nothing left of it.
    """
    rows: list[dict[str, Any]] = []
    runs: dict[tuple[str, str, str], list[tuple[np.ndarray, np.ndarray, str]]] = {}
    for curve in curves:
        step_U, return_U = curve.step_U, curve.return_U
        if len(step_U) > 1 or curve.split == "train":
            step_U, return_U = step_U[drop:], smoothed(return_U[drop:], smoothing)
        if not len(step_U):
            raise UserError(f"the curve {curve.method}/{curve.game}/{curve.seed} has {len(curve.step_U)} updates in "
                            f"which episodes ended, of which the first {drop} are dropped (--drop)")  # fmt: skip
        last = curve.return_U[-LAST:]
        if normalise:
            low, high = returns_of(curve.game, curve.mode)
            return_U, last = (return_U - low) / (high - low), (last - low) / (high - low)
        rows.append({"method": curve.method, "game": curve.game, "seed": curve.seed, "split": curve.split,
                     "steps": float(step_U[-1]), "return": float(last.mean()), "updates": len(last)})  # fmt: skip
        runs.setdefault((curve.method, curve.game, curve.split), []).append((step_U, return_U, curve.seed))
    bands = [_band(key, [(s, r) for s, r, _ in some]) for key, some in runs.items()]
    games = {game for _, game, _ in runs}
    if normalise and len(games) > 1:
        for method, split in dict.fromkeys((m, s) for m, _, s in runs):
            by_seed: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
            for (m, _, s), some in runs.items():
                for step_U, return_U, seed in some if (m, s) == (method, split) else []:
                    by_seed.setdefault(seed, []).append((step_U, return_U))
            whole = [_on_one_grid(parts) for parts in by_seed.values() if len(parts) == len(games)]
            if whole:
                bands.append(_band((method, ALL_GAMES, split), [(grid, rows_RT.mean(0)) for grid, rows_RT in whole]))
    return bands, rows


def _on_one_grid(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Curves on steps that all of them have: (steps [T], [R, T])."""
    first, last = max(s[0] for s, _ in parts), min(s[-1] for s, _ in parts)
    if last <= first:
        return np.array([last]), np.array([[r[-1]] for _, r in parts])
    grid = np.linspace(first, last, POINTS)
    return grid, np.stack([np.interp(grid, s, r) for s, r in parts])


def _band(key: tuple[str, str, str], parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Band:
    grid, rows_RT = _on_one_grid(parts)
    mean_T, half_T = rows_RT.mean(0), np.full(len(grid), np.nan)
    if len(parts) > 1:
        half_T = student(len(parts), 0.95) * rows_RT.std(0, ddof=1) / np.sqrt(len(parts))
    method, game, split = key
    return Band(method, game, split, len(parts), grid, mean_T, mean_T - half_T, mean_T + half_T)
