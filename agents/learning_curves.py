"""Learning curves of several methods, seeds and games: of trainings (curve.csv), of evaluations, and of a progress.csv
with OpenAI Baselines' columns.

T points of a common grid of steps, U updates.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agents.progress import FILE
from core import stages
from core.artefacts import MANIFEST, Result, load_bytes, load_json, read_manifest, training_of
from core.config import merge, read_json, to_json_defaults
from core.contracts import UserError
from core.figures import figure_of, minus
from core.files import csv_of, read_bytes
from core.pages import label_colours
from core.stats import TIE, student
from core.training import STATE, RunOptions, unfinished_curve
from core.words import counted
from envs.procgen_returns import returns_of

NEEDED = ("eprewmean", "misc/total_timesteps")
RETURN, LIFE = "return", "ticks a life"  # what a curve is of
# Columns of curve.csv by the stage that writes it: of the training, of what was held out.
OF_TRAININGS = {
    "train": (RETURN, "return_mean", "held_out_return"), "train_craftax": (RETURN, "return_mean", "held_out_return"),
    "train_gymnasium": (RETURN, "return_mean", "held_out_return"),
    "train_nmmo": (LIFE, "length_mean", "held_out_length"),
}  # fmt: skip
BOUNDS = ("held_out_low", "held_out_high")
SPLITS = ("train", "test")
MEASURED = "held out"  # the split of what a training measured as it went (train.py --evaluate_every)
POINTS = 200
EPISODES = 100  # that a training's return is the mean of, once so many have ended
LAST = 50  # updates whose mean is a run's result
ALL_GAMES = "all games"
MOST_NAMED = 2  # settings in a method's name
# Settings by which two runs may differ and still be seeds of one method.
NO_METHOD = {f.name for f in fields(RunOptions)} | {
    "seed", "out", "threads", "checkpoints", "evaluate_every", "evaluate_episodes", "maps",
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One run's returns (of Neural MMO: lengths of lives); of an evaluation a single point."""

    method: str
    game: str
    seed: str
    split: str
    mode: str  # Procgen's levels, easy or hard; "": not known
    step_U: np.ndarray
    return_U: np.ndarray
    bounds_U2: np.ndarray | None = None  # 95 % interval over episodes, of what was measured on whole episodes
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""  # name of its directory
    of: str = RETURN
    few_U: np.ndarray | None = None  # bool: of fewer than EPISODES episodes; None: not told


@dataclass(frozen=True)
class Band:
    """Mean over seeds with its 95 % interval (Student).  One seed has that over episodes, or none; seeds that all have
    the same have none."""

    method: str
    game: str
    split: str
    seeds: int
    step_T: np.ndarray
    mean_T: np.ndarray
    low_T: np.ndarray
    high_T: np.ndarray
    of: str = RETURN


Mode = Literal["easy", "hard"]


def read_all(words: Sequence[str], normalise: bool, mode: Mode | None) -> list[Curve]:
    """The curves of several words (see ``read_curves``); ``mode``: which levels a progress.csv is of, which it does not
    say, and which their range is normalised by.  UserError where it is needed and not given, or given for nothing."""
    curves = [curve for word in words for curve in read_curves(word)]
    untold = [c for c in curves if not c.mode]
    if mode is not None and not (normalise and untold):
        raise UserError("--distribution_mode is for --normalise of METHOD/GAME/SEED=FILE words; trainings say theirs")
    if normalise and untold and mode is None:
        c = untold[0]
        raise UserError(f"{c.method}/{c.game}/{c.seed}: a progress.csv does not say which levels its returns are of; "
                        "--normalise needs --distribution_mode easy or hard")  # fmt: skip
    return [c if c.mode else replace(c, mode=mode or "") for c in curves]


def read_curves(word: str) -> list[Curve]:
    """A training's run directory (with what it measured on held-out levels as it went), an evaluation's, or
    METHOD/GAME/SEED[/test]=FILE of a progress.csv.  UserError."""
    label, equals, path = word.partition("=")
    if equals:
        parts = label.split("/")
        if len(parts) not in (3, 4) or (len(parts) == 4 and parts[3] not in SPLITS):
            raise UserError(f"{word!r}: expected a run directory, METHOD/GAME/SEED=FILE, or METHOD/GAME/SEED/test=FILE")
        step_U, return_U, _ = numbers_of(rows_of(_read(Path(path)), Path(path), NEEDED), Path(path), *NEEDED)
        return [Curve(parts[0], parts[1], parts[2], parts[3] if len(parts) == 4 else "train", "", step_U, return_U)]
    directory = Path(word)
    whole = (directory / MANIFEST).exists()
    if not whole and any((directory / name).exists() for name in ("curve.csv", FILE)):
        print(f"note: {directory} is not finished; its curve goes as far as it has come")
        return curves_of_training(directory, False)
    manifest = read_manifest(directory)
    stage, inputs = manifest["stage"], manifest["inputs"]
    if stage in OF_TRAININGS:
        return curves_of_training(directory, True)
    if stage != "evaluate" or "agent" not in inputs:
        raise UserError(f"{word}: neither a training nor an evaluation of an agent (stage {stage!r} wrote it)")
    agent = (directory / inputs["agent"]["path"]).resolve()
    if read_manifest(agent)["stage"] not in OF_TRAININGS:
        raise UserError(f"{word}: the agent was not trained here ({agent}): there is no step it is the return at")
    trained, saved = _trained(agent)
    steps = trained["metrics"].get("steps", {}).get("value", 0)
    mean = Result.load(directory).scalars["return_mean"]
    bounds = None if mean.get("interval") is None else np.array([mean["interval"]], np.float64)
    point = np.array([float(steps)]), np.array([mean["value"]])
    return [_curve_of(saved, agent, "test", *point, bounds)]


def _trained(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what the manifest of a finished training says, its stage and configuration), of a copy for shipping too."""
    manifest = read_manifest(directory)
    training = training_of(manifest)
    if "config" in manifest["facts"].get("training", {}):  # a copy's own config.json is of the copying
        return training, {"stage": manifest["stage"], "config": training["config"]}
    return training, load_json(directory, "config.json")


def _begun(directory: Path, curve: Path) -> dict[str, Any]:
    """Stage and configuration of a training that is not finished, from its config.json, which no manifest knows.
    UserError where no stage wrote that: another system's directory may hold a file of that name, and a curve."""
    file = directory / "config.json"
    saved = read_json(file) if file.exists() else None
    kinds = {"stage": str, "config": dict}
    if not isinstance(saved, dict) or not all(isinstance(saved.get(k), kind) for k, kind in kinds.items()):
        why = "is not the configuration of a run" if file.exists() else "is not there"
        raise UserError(f"{file} {why}, so that {directory} is no training's run directory; name another system's "
                        f"curve as METHOD/GAME/SEED={curve}")  # fmt: skip
    return saved


def curves_of_training(directory: Path, whole: bool) -> list[Curve]:
    """The training returns of a run directory, and the held-out ones that it measured.  UserError.

    whole: it is finished; its files are compared with its manifest.
    """
    path = directory / ("curve.csv" if (directory / "curve.csv").exists() else FILE)
    if whole:
        text = load_bytes(directory, path.name).decode()
    else:
        text = unfinished_curve(directory) or _read(path)
        path = directory / "curve.csv" if (directory / STATE).exists() else path
    saved = _trained(directory)[1] if whole else _begun(directory, path)
    if saved["stage"] not in OF_TRAININGS:
        raise UserError(f"{directory}: neither a training nor an evaluation of an agent (stage {saved['stage']!r})")
    _, training, held_out = OF_TRAININGS[saved["stage"]]
    needed = NEEDED if path.name == FILE else (training, "step")
    rows = rows_of(text, path, needed)
    step_U, return_U, ended_U1 = numbers_of(rows, path, *needed, "return_episodes")
    curve = _curve_of(saved, directory, "train", step_U, return_U)
    if "return_episodes" in rows[0]:  # earlier trainings do not say
        curve = replace(curve, few_U=ended_U1[:, 0] < EPISODES)
    curves = [curve]
    measured = [row for row in rows if row.get(held_out)]
    if measured:
        step_U, return_U, bounds_U2 = numbers_of(measured, path, held_out, "step", *BOUNDS)
        curves.append(_curve_of(saved, directory, MEASURED, step_U, return_U, bounds_U2))
    return curves


def _curve_of(
    saved: Mapping[str, Any], directory: Path, split: str, step_U: np.ndarray, return_U: np.ndarray,
    bounds_U2: np.ndarray | None = None,
) -> Curve:  # fmt: skip
    """saved: the agent's stage and configuration; directory: its run."""
    defaults = to_json_defaults(stages.STAGES[saved["stage"]].cls)  # earlier versions lack settings
    config = merge(defaults, saved["config"])
    env: Any = config["env"]
    if isinstance(env, str):  # a world of Gymnasium, by its name with or without the kind before it
        config["env"] = env.removeprefix("gymnasium/")
        env = {"game": config["env"]}
    settings = {k: v for k, v in _leaves(config) if k.partition(".")[0] not in NO_METHOD}
    game, mode = env.get("game", env.get("env_name", "nmmo")), env.get("distribution_mode", "easy")
    method = Path(config["architecture"]).stem if "architecture" in config else config.get("policy", "plain")
    of = OF_TRAININGS[saved["stage"]][0]
    return Curve(
        method, game, str(config["seed"]), split, mode, step_U, return_U, bounds_U2, settings, directory.name, of
    )


def _leaves(config: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in config.items():
        out += _leaves(value, f"{above}{key}.") if isinstance(value, Mapping) else [(f"{above}{key}", value)]
    return out


def told_apart(curves: Sequence[Curve]) -> list[Curve]:
    """The same curves; where runs of one method and game have other settings, these are in the method's name (of many,
    a run's), so that only seeds are averaged.  UserError for two runs of one seed."""
    out = []
    first: dict[tuple[str, str, str], str] = {}
    for curve in curves:
        others = [c.settings for c in curves if (c.method, c.game) == (curve.method, curve.game) and c.settings]
        keys = sorted({k for k, v in curve.settings.items() if any(o.get(k, v) != v for o in others)})
        more = [f"{key.rpartition('.')[2]} {curve.settings[key]}" for key in keys]
        if len(more) > MOST_NAMED:
            run = first.setdefault((curve.method, curve.game, str(more)), curve.run)
            more = [f"as {run}"]
        out.append(replace(curve, method=", ".join([curve.method, *more])))
    seen: set[tuple[str, str, str, str]] = set()
    for curve in out:
        key = (curve.method, curve.game, curve.split, curve.seed)
        if key in seen:
            raise UserError(f"two runs of {curve.method} on {curve.game} with seed {curve.seed} ({curve.split}): an "
                            "interval over seeds needs different ones")  # fmt: skip
        seen.add(key)
    return out


def _read(path: Path) -> str:
    try:
        return read_bytes(path, "curve").decode()
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {path}: {error}") from None


def rows_of(text: str, path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV with these columns.  UserError."""
    rows = csv_of(text.encode(), path)
    have = rows[0].keys() if rows else ()
    missing = [name for name in needed if name not in have]
    if missing:
        raise UserError(f"{path}: {'no rows' if not rows else f'no column {missing[0]}'}; needed: "
                        f"{' and '.join(needed)}")  # fmt: skip
    return rows


def numbers_of(
    rows: Sequence[Mapping[str, str]], path: Path, of_return: str, of_step: str, *beside: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(steps [U], mean returns [U], further columns ``beside`` them [U, columns], NaN where there is none), float64;
    rows from before the first episode ended are left out.  UserError, also where steps do not increase."""
    columns = (of_step, of_return, *beside)
    found = np.full((len(rows), len(columns)), np.nan)
    for u, row in enumerate(rows):
        for i, name in enumerate(columns):
            try:
                found[u, i] = float(row.get(name) or "nan")
            except ValueError:
                raise UserError(f"{path}: row {u + 1}: {row[name]!r} in {name} is not a number") from None
    told = np.flatnonzero(np.isfinite(found[:, 0]))
    before, after = found[told[:-1], 0], found[told[1:], 0]
    if (stuck := np.flatnonzero(after <= before)).size:
        i = int(stuck[0])
        raise UserError(f"{path}: row {told[i + 1] + 1} is at step {after[i]:,.0f}, the one before at {before[i]:,.0f} "
                        f"({of_step}); steps must increase: keep the rows of one training")  # fmt: skip
    found = found[np.isfinite(found[:, :2]).all(1)]
    return found[:, 0], found[:, 1], found[:, 2:]


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

    normalise: returns as shares of the game's range, which is in the rows, and one more game, the mean of all.
    UserError for a curve with nothing left of it, and for curves of a mean that share no steps.
    """
    rows: list[dict[str, Any]] = []
    runs: dict[tuple[str, str, str], list[tuple[np.ndarray, np.ndarray, str]]] = {}
    bounds: dict[tuple[str, str, str], np.ndarray | None] = {}  # of the last run
    for curve in curves:
        step_U, return_U = curve.step_U, curve.return_U
        last = return_U[-1:]
        if curve.split != MEASURED and (len(step_U) > 1 or curve.split == "train"):
            step_U, last = step_U[drop:], return_U[drop:][-LAST:]
            return_U = smoothed(return_U[drop:], smoothing)
        if not len(step_U):
            raise UserError(f"the curve {curve.method}/{curve.game}/{curve.seed} has {len(curve.step_U)} updates in "
                            f"which episodes ended, of which the first {drop} are dropped (--drop)")  # fmt: skip
        bounds_U2 = curve.bounds_U2
        ranges: dict[str, Any] = {}
        if normalise:
            low, high = returns_of(curve.game, curve.mode)
            ranges = {"distribution_mode": curve.mode, "lowest": low, "highest": high}
            return_U, last = (return_U - low) / (high - low), (last - low) / (high - low)
            bounds_U2 = None if bounds_U2 is None else (bounds_U2 - low) / (high - low)
        rows.append({"method": curve.method, "game": curve.game, "seed": curve.seed, "split": curve.split, **ranges,
                     "steps": float(step_U[-1]), "return": float(last.mean()), "updates": len(last),
                     "few_episodes_until": few_until(curve)})  # fmt: skip
        key = (curve.method, curve.game, curve.split)
        runs.setdefault(key, []).append((step_U, return_U, curve.seed))
        bounds[key] = bounds_U2
    of = {curve.game: curve.of for curve in curves}
    bands = [_band(key, [(s, r) for s, r, _ in some], bounds[key], of[key[1]]) for key, some in runs.items()]
    games = {game for _, game, _ in runs}
    if normalise and len(games) > 1:
        for method, split in dict.fromkeys((m, s) for m, _, s in runs):
            by_seed: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
            for (m, _, s), some in runs.items():
                for step_U, return_U, seed in some if (m, s) == (method, split) else []:
                    by_seed.setdefault(seed, []).append((step_U, return_U))
            whole = [
                _on_one_grid(parts, f"{method}, seed {seed} ({split})")
                for seed, parts in by_seed.items() if len(parts) == len(games)
            ]  # fmt: skip
            if whole:
                bands.append(_band((method, ALL_GAMES, split), [(grid, rows_RT.mean(0)) for grid, rows_RT in whole]))
    return bands, rows


def of_the_ended(curves: Sequence[Curve]) -> str:
    """A line on what training returns are the mean of, and until which step of few episodes; '' where none is drawn."""
    trained = [c for c in curves if c.split == "train"]
    if not trained:
        return ""
    last = max((few_until(c) or 0.0 for c in trained), default=0.0)
    what = "lengths are of the lives" if all(c.of == LIFE for c in trained) else "returns are of the episodes"
    until = f": fewer than {EPISODES} until step {last:,.0f}" if last else ""
    return f"training {what} that ended last, early on the short ones{until}"


def few_until(curve: Curve) -> float | None:
    """The last step at which a training's return is of fewer than EPISODES episodes; None: at none, or it is not
    told."""
    few = np.array([]) if curve.few_U is None else curve.step_U[curve.few_U]
    return float(few[-1]) if len(few) else None


def ranges_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line on what returns were normalised by, of the rows of ``bands_of``; '' where they were not."""
    each = {f"{r['game']} {r['distribution_mode']} {r['lowest']:g} to {r['highest']:g}" for r in rows if "lowest" in r}
    return f"returns are shares of the range of the game's levels: {', '.join(sorted(each))}" if each else ""


def _on_one_grid(parts: Sequence[tuple[np.ndarray, np.ndarray]], what: str) -> tuple[np.ndarray, np.ndarray]:
    """Curves on steps that all of them have: (steps [T], [R, T]); of single points the earliest's.  UserError, which
    begins with ``what``, where they share none."""
    if all(np.array_equal(s, parts[0][0]) for s, _ in parts):
        return parts[0][0], np.stack([r for _, r in parts])
    first, last = max(s[0] for s, _ in parts), min(s[-1] for s, _ in parts)
    if all(len(s) == 1 for s, _ in parts):
        return np.array([last]), np.stack([r for _, r in parts])
    if last < first:
        each = ", ".join(f"{s[0]:,.0f} to {s[-1]:,.0f}" for s, _ in parts)
        raise UserError(f"{what}: these curves share no steps ({each}), so that they have no mean; draw them apart")
    grid = np.linspace(first, last, POINTS) if last > first else np.array([last])
    return grid, np.stack([np.interp(grid, s, r) for s, r in parts])


def _band(
    key: tuple[str, str, str], parts: Sequence[tuple[np.ndarray, np.ndarray]], bounds_U2: np.ndarray | None = None,
    of: str = RETURN,
) -> Band:  # fmt: skip
    method, game, split = key
    grid, rows_RT = _on_one_grid(parts, f"{method} on {game} ({split})")
    mean_T, half_T = rows_RT.mean(0), np.full(len(grid), np.nan)
    low_T, high_T = mean_T - half_T, mean_T + half_T
    if len(parts) > 1:
        half_T = student(len(parts), 0.95) * rows_RT.std(0, ddof=1) / np.sqrt(len(parts))
        alike_T = np.ptp(rows_RT, 0) <= TIE * np.abs(rows_RT).max(0)
        half_T[alike_T] = np.nan  # that all seeds have the same does not tell how far another would be
        low_T, high_T = mean_T - half_T, mean_T + half_T
    elif bounds_U2 is not None:
        low_T, high_T = bounds_U2.T
    return Band(method, game, split, len(parts), grid, mean_T, low_T, high_T, of)


def draw_curves(bands: Sequence[Band], normalised: bool, below: str = "") -> Any:
    """A panel a game; a line a method and split, with its interval over seeds.  below: words under the figure."""
    games = list(dict.fromkeys(band.game for band in bands))
    methods = list(dict.fromkeys(band.method for band in bands))
    colours = label_colours(range(len(methods)))
    figure = figure_of(6 * min(len(games), 4), 3.8 * -(-len(games) // 4))
    axes = np.atleast_1d(figure.subplots(-(-len(games) // 4), min(len(games), 4))).ravel()
    for axis in axes[len(games) :]:
        axis.set_axis_off()
    for axis, game in zip(axes, games, strict=False):
        for band in (b for b in bands if b.game == game):
            colour = colours[methods.index(band.method)]
            name = f"{band.method}, {band.split}, {counted(band.seeds, 'seed')}"
            axis.plot(band.step_T, band.mean_T, color=colour, linestyle="-" if band.split == "train" else "--",
                      marker="" if len(band.step_T) > 1 else "o", label=name)  # fmt: skip
            if len(band.step_T) > 1:
                axis.fill_between(band.step_T, band.low_T, band.high_T, color=colour, alpha=0.2, linewidth=0)
            else:
                error = np.abs(np.array([band.low_T - band.mean_T, band.high_T - band.mean_T]))
                known = np.isfinite(error).all(0)  # where it is not, there is none to draw
                axis.errorbar(band.step_T[known], band.mean_T[known], yerr=error[:, known], color=colour, capsize=3)
        of = next(band.of for band in bands if band.game == game)
        steps = "live agents' steps" if of == LIFE else "environment steps"
        axis.set(title=game, xlabel=steps, ylabel=minus("normalised return" if normalised else of))
        axis.legend(frameon=False, fontsize=7)
    if below:
        figure.supxlabel("\n".join(textwrap.wrap(below, 90 * min(len(games), 4))), fontsize=7)
    return figure
