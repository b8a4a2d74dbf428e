"""Tables of evaluations: metrics against hand counts, comparisons and ratings against planted strengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.nmmo_evaluate import STAGE as EVALUATION
from analysis.lives.evaluations import COLUMNS, ELO, Lives, load, metrics, rating_rows, ratings, tables
from analysis.proc_eval_result import ProcEvalResultConfig, main
from core import artefacts
from core.contracts import UserError


def lives(length: np.ndarray, world: np.ndarray, seed: int = 0, tasks: tuple[tuple[str, str], ...] = ()) -> Lives:
    rng = np.random.default_rng(seed)
    tasks = tasks or (("eat", "survival"), ("hit", "combat"), ("kill", "combat"))
    pick = rng.integers(len(tasks), size=len(length))
    columns = {
        "length": length.astype(float),
        "ate": rng.poisson(3, len(length)).astype(float),
        "drank": rng.poisson(5, len(length)).astype(float),
        "progress": rng.uniform(size=len(length)),
    }
    task, category = (np.array([tasks[i][part] for i in pick]) for part in (0, 1))
    return Lives(world, task, category, columns)


def test_metrics_are_hand_counts() -> None:
    of = Lives(
        world=np.array([0, 0, 1, 1]),
        task=np.array(["eat", "hit", "kill", "hit"]),
        category=np.array(["survival", "combat", "combat", "combat"]),
        columns={
            "length": np.array([10.0, 20.0, 30.0, 40.0]),
            "ate": np.array([1.0, 0.0, 0.0, 3.0]),
            "drank": np.zeros(4),
            "progress": np.array([0.5, 0.1, 0.2, 0.3]),
        },
    )
    # tasks: .5, (.1 + .3) / 2, .2; categories: .5, (.1 + .2 + .3) / 3
    np.testing.assert_allclose(metrics(of, np.arange(4)), [25, 1, 0, 0.3, 35])
    np.testing.assert_allclose(metrics(of, np.array([1, 2, 3]))[3:], [0.2, 20])


@pytest.mark.parametrize(
    ("said", "data"),
    [
        ("expected an object of policies", []),
        ("expected an object of policies", {"a": 3}),
        ("has no 'ate'", {"a": {"world": [0]}}),
        ("no lives, or columns", {"a": dict.fromkeys(COLUMNS, [])}),
        ("no lives, or columns", {"a": {**dict.fromkeys(COLUMNS, [0, 1]), "length": [3]}}),
    ],
)
def test_what_is_no_result_file_is_refused(said: str, data: Any, tmp_path: Path) -> None:
    with artefacts.new_run(tmp_path / "e", EVALUATION, {}) as run:
        artefacts.write_json(run.path / "result_000.json", data)
    with pytest.raises(UserError, match=said):
        load(tmp_path / "e")


def test_one_that_always_wins_has_a_rating_without_an_upper_end() -> None:
    """[273.7, 273.7] was said of 8 worlds, which may as well be those of one that wins nine in ten."""
    lives = {name: np.tile([length, 0.0], (8, 1)) for name, length in (("a", 2.0), ("b", 1.0))}
    rows = rating_rows(lives, np.random.default_rng(0), 99)
    top, least = rows
    assert np.isnan(top["high"]) and np.isnan(least["low"])
    assert 0 < top["low"] < ELO / 2 * np.log(9) < top["rating"] and top["low"] == pytest.approx(-least["high"])


def test_ratings_of_policies_that_hardly_ever_lose_hold_the_truth() -> None:
    """Three policies far apart, 8 worlds: of some pairs one always wins.  .65 to .87 of intervals held the truth that
    there were, their width that of the other pair alone."""
    strength = np.array([2.5, 0.0, -2.5])

    def lengths(generator: np.random.Generator, worlds: int) -> dict[str, np.ndarray]:
        world_W = 0.7 * generator.normal(size=worlds)
        return {str(p): np.stack([x + world_W + generator.normal(size=worlds), world_W], 1)
                for p, x in enumerate(strength)}  # fmt: skip

    true = [row["rating"] for row in rating_rows(lengths(np.random.default_rng(9), 2000), np.random.default_rng(0), 2)]
    holds = []
    for seed in range(40):
        rows = rating_rows(lengths(np.random.default_rng(seed), 8), np.random.default_rng(0), 99)
        assert all(not r["low"] >= r["rating"] and not r["high"] <= r["rating"] for r in rows)
        holds.append([not (x < r["low"] or x > r["high"]) for r, x in zip(rows, true, strict=True)])
    assert (np.mean(holds, 0) >= 0.9).all()


def test_ratings_recover_planted_strengths() -> None:
    rng = np.random.default_rng(0)
    truth = np.array([150.0, 0.0, -150.0])
    worlds = 4000
    win = np.zeros((worlds, 3, 3))
    for i in range(3):
        for j in range(i + 1, 3):
            won = rng.random(worlds) < 1 / (1 + np.exp(-(truth[i] - truth[j]) / ELO))
            win[:, i, j], win[:, j, i] = won, ~won
    np.testing.assert_allclose(ratings(win), truth, atol=15)
    order = [2, 0, 1]
    np.testing.assert_allclose(ratings(win[:, order][:, :, order]), ratings(win)[order], atol=1e-6)
    unbeaten = np.zeros((5, 2, 2))
    unbeaten[:, 0, 1] = 1
    assert np.isfinite(ratings(unbeaten)).all() and ratings(unbeaten)[0] > 100


def test_agents_of_a_world_are_not_counted_as_independent() -> None:
    """Lives of one world share its luck: intervals over worlds hold the true mean, and are wider than lives' own."""
    hits, widths, naive = 0, [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        world = np.repeat(np.arange(24), 8)
        length = 50 + np.repeat(rng.normal(0, 10, 24), 8) + rng.normal(0, 5, len(world))
        row = tables({"a": lives(length, world)}, mode="pve", seed=0, resamples=200).tables["metrics"][0]
        hits += row["low"] <= 50 <= row["high"]
        widths.append(row["high"] - row["low"])
        naive.append(2 * 1.96 * length.std() / len(length) ** 0.5)
    assert hits >= 34 and np.mean(widths) > 1.8 * np.mean(naive)


def test_a_pair_differs_only_where_there_is_a_difference() -> None:
    wrong = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        world = np.repeat(np.arange(20), 4)
        luck = np.repeat(rng.normal(0, 20, 20), 4)
        same = {n: lives(60 + luck + rng.normal(0, 10, 80), world, seed + k) for k, n in enumerate("ab")}
        rows = tables(same, mode="pvp", seed=0, resamples=50).tables["pairs"]
        wrong += next(r for r in rows if r["measure"] == "length")["p"] < 0.05
    assert wrong <= 5
    better = {**same, "b": Lives(world, same["b"].task, same["b"].category,
                                 {**same["b"].columns, "length": same["b"].columns["length"] - 25})}  # fmt: skip
    result = tables(better, mode="pvp", seed=0, resamples=200)
    row = next(r for r in result.tables["pairs"] if r["measure"] == "length")
    assert row["q"] < 0.01 and row["low"] > 0
    top, low = (result.tables["ratings"][i] for i in (0, 1))
    assert top["rating"] > low["rating"] and np.isnan(top["high"])  # it wins in every world
    assert top["rating"] + low["rating"] == pytest.approx(0, abs=1e-6)


def evaluation(path: Path, mode: str) -> Path:
    """A small evaluation of two policies."""
    rng = np.random.default_rng(0)
    world = [0, 0, 1, 1, 2, 2, 3, 3]

    def one() -> dict[str, Any]:
        numbers = {name: rng.uniform(1, 9, len(world)).round(3).tolist() for name in ("length", "ate", "drank")}
        words = {"task": ["eat"] * len(world), "category": ["survival"] * len(world)}
        return {"world": world, **words, **numbers, "progress": rng.uniform(size=len(world)).tolist()}

    with artefacts.new_run(path / f"eval_{mode}", EVALUATION, {}) as run:
        artefacts.write_json(run.path / "result_000.json", {"a": one(), "b": one()})
        run.facts = {"mode": mode}
    return path / f"eval_{mode}"


def test_two_evaluations_fit_into_one_out(tmp_path: Path) -> None:
    alone = evaluation(tmp_path, "pve")
    main(ProcEvalResultConfig(policies=tmp_path, out=tmp_path / "one", resamples=20))
    assert artefacts.verify(tmp_path / "one") == []
    evaluation(tmp_path, "pvp")
    main(ProcEvalResultConfig(policies=tmp_path, out=tmp_path / "both", resamples=20))
    assert {p.name for p in (tmp_path / "both").iterdir()} == {"metrics_pve", "metrics_pvp"}
    main(ProcEvalResultConfig(policies=alone, resamples=20))
    with pytest.raises(UserError, match="metrics_pve already holds data"):
        main(ProcEvalResultConfig(policies=tmp_path, resamples=20))
    (tmp_path / "metrics_pvp").mkdir()
    (tmp_path / "metrics_pve").rename(tmp_path / "metrics_pvp" / "kept")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="metrics_pvp already holds data"):
        main(ProcEvalResultConfig(policies=tmp_path, resamples=20))
    assert sorted(tmp_path.rglob("*")) == before  # the first is not begun either
