"""Result files of agents.evaluate as tables: metrics, differences, ratings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agents.nmmo_evaluate import STAGE as EVALUATION
from core import artefacts
from core.contracts import UserError
from core.figures import REAL, figure_of
from core.stats import DRAWS, benjamini_hochberg, failure_not_met, jackknife, means
from envs.nmmo_tasks import CATEGORIES

UNITS = {
    "length": "ticks a life",
    "ate": "meals a life",
    "drank": "drinks a life",
    "task_progress": "mean progress over tasks, 0 to 1",
    "weighted_score": "points of 100, a sixth from each category",
}
COLUMNS = ("world", "task", "category", "length", "ate", "drank", "progress")  # that are read, an entry a life
ELO = 400 / np.log(10)  # rating points a unit of log odds


@dataclass(frozen=True)
class Lives:
    """One policy's lives: columns [N]; ``task`` are names, ``world`` numbers the worlds of all files."""

    world: np.ndarray
    task: np.ndarray
    category: np.ndarray
    columns: dict[str, np.ndarray]


def load(directory: Path) -> dict[str, Lives]:
    """The lives of every policy in the result files of an evaluation; UserError if a file is not one of them."""
    files = artefacts.files_of(directory, "result_*.json")
    if not files:
        raise UserError(f"{directory} holds no result file; run agents.evaluate first")
    parts: dict[str, list[dict[str, Any]]] = {}
    first = 0
    for name_of_file in files:
        data, file = artefacts.load_json(directory, name_of_file), directory / name_of_file
        if not isinstance(data, dict) or not data or not all(isinstance(of, dict) for of in data.values()):
            raise UserError(f"{file} is not a result file of agents.evaluate: expected an object of policies")
        last = first
        for name, of in data.items():
            missing = set(COLUMNS) - of.keys()
            if missing:
                raise UserError(f"{file}: {name} has no {sorted(missing)[0]!r}; not a result file of agents.evaluate")
            of = {k: of[k] for k in COLUMNS}
            if len(lengths := {len(column) for column in of.values()}) > 1 or 0 in lengths:
                raise UserError(f"{file}: {name} has no lives, or columns of different lengths; evaluate again")
            parts.setdefault(name, []).append({**of, "world": np.asarray(of["world"]) + first})
            last = max(last, first + max(of["world"]) + 1)
        first = last
    out = {}
    for name, of in parts.items():
        columns = {k: np.concatenate([np.asarray(p[k]) for p in of]) for k in COLUMNS}
        measured = {k: columns[k].astype(np.float64) for k in ("length", "ate", "drank", "progress")}
        out[name] = Lives(columns["world"], columns["task"], columns["category"], measured)
    return out


def metrics(lives: Lives, rows: np.ndarray) -> np.ndarray:
    """What UNITS names, of some lives: float64 [5].  A task, or a category, that nobody had is left out of its mean."""
    of = {k: v[rows] for k, v in lives.columns.items()}
    task, category = lives.task[rows], lives.category[rows]
    by_task = {t: of["progress"][task == t].mean() for t in np.unique(task)}
    scores = [of["progress"][category == c].mean() for c in CATEGORIES if (category == c).any()]
    return np.array(
        [
            of["length"].mean(),
            of["ate"].mean(),
            of["drank"].mean(),
            np.mean(list(by_task.values())),
            100 * np.mean(scores),
        ]
    )


def score_by_world(lives: Lives, worlds: int) -> np.ndarray:
    """Mean length and mean progress of a policy's lives in every world, float64 [worlds, 2]; NaN where it was not."""
    out = np.full((worlds, 2), np.nan)
    count = np.bincount(lives.world, minlength=worlds)
    for i, name in enumerate(("length", "progress")):
        there = count > 0
        out[there, i] = np.bincount(lives.world, lives.columns[name], worlds)[there] / count[there]
    return out


def ratings(win_WPP: np.ndarray) -> np.ndarray:
    """Bradley-Terry strengths on Elo's scale, mean 0, float64 [P].

    win_WPP: how often policy i beat j in a world (0, 0.5 for a draw, 1).  Half a won and half a lost game against an
    average opponent are added for each, so that an unbeaten one stays finite.  (Hunter 2004, Ann. Statist. 32, eq. 3.)
    """
    wins_PP = win_WPP.sum(0)
    games_PP = wins_PP + wins_PP.T
    strength_P = np.ones(len(wins_PP))
    for _ in range(500):
        pairs_PP = games_PP / (strength_P[:, None] + strength_P)
        np.fill_diagonal(pairs_PP, 0)
        new_P = (wins_PP.sum(1) + 0.5) / (pairs_PP.sum(1) + 1 / (strength_P + 1))
        new_P /= np.exp(np.log(new_P).mean())
        done = np.abs(np.log(new_P / strength_P)).max() < 1e-9
        strength_P = new_P
        if done:
            break
    return ELO * np.log(strength_P)


def tables(lives: dict[str, Lives], *, mode: str, seed: int, resamples: int) -> artefacts.Result:
    """``metrics``: a row a policy and metric; ``pairs``: a row a pair and measure; ``ratings`` (pvp): a row a policy;
    ``tasks``: mean progress a policy and task."""
    rng = np.random.default_rng(seed)
    result = artefacts.Result(notes={"mode": mode, "unit": "world"})
    rows: list[dict[str, Any]] = []
    for name, of in lives.items():
        values, low, high = jackknife(partial(metrics, of), of.world, rng=rng, draws=resamples)
        n = len(np.unique(of.world))
        for i, (metric, unit) in enumerate(UNITS.items()):
            rows.append(
                {"policy": name, "metric": metric, "value": values[i], "low": low[i], "high": high[i], "unit": unit,
                 "worlds": n, "lives": len(of.world)}
            )  # fmt: skip
            result.scalar(f"{name}/{metric}", values[i], unit, n, (low[i], high[i]))
    result.tables["metrics"] = rows
    result.tables["tasks"] = [
        {"policy": name, "task": task, "progress": of.columns["progress"][of.task == task].mean(),
         "lives": int((of.task == task).sum())}
        for name, of in lives.items() for task in np.unique(of.task)
    ]  # fmt: skip
    worlds = 1 + max(int(of.world.max()) for of in lives.values())
    by_world = {name: score_by_world(of, worlds) for name, of in lives.items()}
    result.tables["pairs"] = pairs(by_world, rng, resamples)
    if mode == "pvp":
        result.tables["ratings"] = rating_rows(by_world, rng, resamples)
    return result


def pairs(by_world: dict[str, np.ndarray], rng: np.random.Generator, resamples: int) -> list[dict[str, Any]]:
    """Differences of every two policies, paired by world (the same seed, map and tasks), with p and BH q."""
    rows = []
    names = list(by_world)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            for column, measure in enumerate(("length", "progress")):
                difference = by_world[a][:, column] - by_world[b][:, column]
                difference = difference[~np.isnan(difference)]
                found = means(difference[:, None], rng=rng, draws=max(DRAWS, resamples))  # p is never below 2 / draws
                (e,) = found.estimates()
                rows.append(
                    {"policy": a, "against": b, "measure": measure, "difference": e.value, "low": e.low,
                     "high": e.high, "worlds": e.n, "p": float(found.p()[0])}
                )  # fmt: skip
    for row, q in zip(rows, benjamini_hochberg(np.array([row["p"] for row in rows])), strict=True):
        row["q"] = float(q)
    return rows


def rating_rows(by_world: dict[str, np.ndarray], rng: np.random.Generator, resamples: int) -> list[dict[str, Any]]:
    """Elo-like ratings by who lives longer in a shared world, with intervals over worlds.

    These leave room for worlds of a kind that none was, in which a policy loses, or wins, against all that it met
    (``core.stats.not_met``).  A policy that some other has not beaten, nor by way of one that it has beaten, has no
    upper end: nothing says by how much it is better; so of the lower end of one that has not beaten another.
    """
    length_WP = np.stack([of[:, 0] for of in by_world.values()], 1)
    win_WPP = np.where(
        np.isnan(length_WP[:, :, None] + length_WP[:, None]),
        0.0,
        0.5 + 0.5 * np.sign(length_WP[:, :, None] - length_WP[:, None]),
    )
    for p in range(len(by_world)):
        win_WPP[:, p, p] = 0
    value, low, high = jackknife(lambda r: ratings(win_WPP[r]), np.arange(len(win_WPP)), rng=rng, draws=resamples)
    won_PP = win_WPP.sum(0)
    low, high = np.minimum(low, _unmet(won_PP, len(win_WPP), -1)), np.maximum(high, _unmet(won_PP, len(win_WPP), 1))
    above_PP = np.linalg.matrix_power((won_PP > 0) + np.eye(len(won_PP)), len(won_PP)) > 0  # by way of others, too
    low, high = np.where(above_PP.all(1), low, np.nan), np.where(above_PP.all(0), high, np.nan)
    return [
        {"policy": name, "rating": value[p], "low": low[p], "high": high[p], "worlds": len(win_WPP)}
        for p, name in enumerate(by_world)
    ]


def _unmet(won_PP: np.ndarray, worlds: int, sign: int) -> np.ndarray:
    """Each policy's rating [P] if it lost (sign -1) or won (1) against all that it met in as many further worlds as can
    all have been missed."""
    more = worlds * (1 - failure_not_met(1.0, worlds))
    out = np.empty(len(won_PP))
    for p, met_P in enumerate(won_PP + won_PP.T > 0):
        further_PP = np.zeros_like(won_PP)
        (further_PP if sign > 0 else further_PP.T)[p] = more * met_P
        out[p] = ratings(np.stack([won_PP, further_PP]))[p]
    return out


def draw(result: artefacts.Result, path: Path) -> None:
    """metrics.png: every metric with its interval, a panel each."""
    rows = result.tables["metrics"]
    names = list(dict.fromkeys(row["policy"] for row in rows))
    figure = figure_of(13, 1.2 + 0.4 * len(names))
    for axis, (metric, unit) in zip(figure.subplots(1, len(UNITS), sharey=True), UNITS.items(), strict=True):
        for y, name in enumerate(reversed(names)):
            row = next(r for r in rows if r["policy"] == name and r["metric"] == metric)
            axis.plot([row["low"], row["high"]], [y, y], color=REAL)
            axis.plot(row["value"], y, "o", color=REAL)
        axis.set_yticks(range(len(names)), reversed(names))
        axis.set_title(metric.replace("_", " "), fontsize=10)
        axis.set_xlabel(unit.partition(",")[0], fontsize=8)
        axis.set_xlim(left=0)
        axis.tick_params(labelsize=8)
    figure.savefig(path / "metrics.png", dpi=110)


def evaluations(path: Path) -> list[Path]:
    """The evaluations in a directory of policies, or the one that it is."""
    if (path / artefacts.MANIFEST).exists() and artefacts.read_manifest(path)["stage"] == EVALUATION:
        return [path]
    found = [p for p in (path / "eval_pve", path / "eval_pvp") if p.is_dir()]
    if not found:
        raise UserError(f"{path} holds no evaluation; run: python -m agents.evaluate {path} pve")
    return found
