"""python -m agents.curves, and train.py --evaluate_every, whose measurements it draws."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents import curves, nmmo_train, train
from agents.learning_curves import Band, Curve, bands_of, draw_curves, of_the_ended, read_curves, told_apart
from core import artefacts, config as cli
from core.artefacts import Result, new_run
from core.contracts import UserError


def curve_csv(path: Path, returns: list[float], held_out: dict[int, tuple[float, float, float]] | None = None) -> None:
    """A training's curve.csv: an update each 100 steps; held-out {update: (return, low, high)}."""
    lines = ["step,return_mean,wall_s,held_out_return,held_out_low,held_out_high"]
    for i, value in enumerate(returns, 1):
        measured = ",".join(map(str, (held_out or {}).get(i, ("", "", ""))))
        lines.append(f"{i * 100},{value},1,{measured}")
    path.write_text("\n".join(lines) + "\n")


def training(path: Path, seed: int, base: float, *flags: str, held_out: bool = True) -> Path:
    config = cli.parse(train.TrainConfig, ["--seed", str(seed), "--out", str(path), *flags], train.STAGE)
    with new_run(path, train.STAGE, config) as run:
        measured = {i: (base + i, base + i - 1, base + i + 2) for i in (2, 4)} if held_out else None
        curve_csv(run.path / "curve.csv", [float("nan"), base, base + 1, base + 2], measured)
        run.record("steps", 400, "environment steps")
    return path


def drawn(tmp_path: Path, *words: object) -> list[dict[str, str]]:
    argv = [*map(str, words), "--out", str(tmp_path / "out"), "--overwrite"]
    curves.main(cli.parse(curves.CurvesConfig, argv, curves.STAGE))
    assert artefacts.verify(tmp_path / "out") == []
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "out" / "curves.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_seeds_are_averaged_with_an_interval_and_settings_told_apart(tmp_path: Path) -> None:
    runs = [training(tmp_path / f"a{seed}", seed, 4.0 + seed) for seed in (1, 2, 3)]
    runs.append(training(tmp_path / "b", 1, 1.0, "--learning_rate", "0.1", "--threads", "1"))
    rows = drawn(tmp_path, *runs)
    methods = {row["method"] for row in rows}
    assert methods == {"plain, learning_rate 0.0005", "plain, learning_rate 0.1"}
    mine = [row for row in rows if row["method"].endswith("0.0005") and row["split"] == "train"]
    assert [float(row["return"]) for row in mine] == [6.0, 7.0, 8.0] and {row["seeds"] for row in mine} == {"3"}
    half = 4.302652729 * 1.0 / np.sqrt(3)  # Student's with two degrees of freedom; the seeds lie 1 apart
    assert float(mine[0]["low"]) == pytest.approx(6 - half) and float(mine[0]["high"]) == pytest.approx(6 + half)
    measured = [row for row in rows if row["method"].endswith("0.0005") and row["split"] == "held out"]
    assert [(float(r["step"]), float(r["return"])) for r in measured] == [(200, 8.0), (400, 10.0)]
    alone = [row for row in rows if row["method"].endswith("0.1") and row["split"] == "held out"]
    assert [(float(r["low"]), float(r["high"])) for r in alone] == [(2.0, 5.0), (4.0, 7.0)]  # over its episodes
    trained = [row for row in rows if row["method"].endswith("0.1") and row["split"] == "train"]
    assert {row["low"] for row in trained} == {"nan"}


def test_an_evaluation_is_a_point_with_its_interval(tmp_path: Path) -> None:
    agent = training(tmp_path / "a", 1, 4.0, held_out=False)
    with new_run(tmp_path / "evaluation", "evaluate", {}, {"agent": agent}) as run:
        result = Result()
        result.scalar("return_mean", 9.0, "return", 5, (8.0, 9.5))
        result.save(run.path)
    (point,) = [row for row in drawn(tmp_path, agent, tmp_path / "evaluation") if row["split"] == "test"]
    assert [float(point[k]) for k in ("step", "return", "low", "high")] == [400, 9.0, 8.0, 9.5]


def a_curve(seed: str, steps: list[float], game: str = "coinrun", split: str = "train") -> Curve:
    """A return that is its step in thousands."""
    step_U = np.array(steps)
    return Curve("ppo", game, seed, split, "easy", step_U, step_U / 1000)


def test_runs_that_share_no_steps_have_no_mean() -> None:
    """One of 1,000 to 100,000 and one of 201,000 to 300,000 had a mean at 100,000."""

    def bands(*curves: Curve, normalise: bool = False) -> list[Band]:
        return bands_of(curves, smoothing=0, drop=0, normalise=normalise)[0]

    early, late = a_curve("1", [1e3, 1e5]), a_curve("2", [2.01e5, 3e5])
    with pytest.raises(UserError, match=r"ppo on coinrun \(train\): .* \(1,000 to 100,000, 201,000 to 300,000\)"):
        bands(early, late)
    with pytest.raises(UserError, match=r"ppo, seed 1 \(train\): these curves share no steps"):
        bands(early, a_curve("1", [2.01e5, 3e5], "ninja"), normalise=True)
    (band,) = bands(early, a_curve("2", [5e4, 2e5]))
    assert (band.step_T[0], band.step_T[-1]) == (5e4, 1e5) and band.mean_T == pytest.approx(band.step_T / 1000)
    (band,) = bands(early, a_curve("2", [1e5, 2e5]))  # one step in common
    assert (band.step_T.tolist(), band.mean_T.tolist()) == ([1e5], [100])
    (band,) = bands(a_curve("1", [1e5], split="test"), a_curve("2", [1.1e5], split="test"))  # evaluations
    assert (band.step_T.tolist(), band.mean_T.tolist()) == ([1e5], [105])


def test_seeds_that_all_have_the_same_have_no_interval() -> None:
    """Two seeds that reach every coin have returns of 10: the interval was 10 to 10, of two runs."""
    steps = [1e4, 2e4, 3e4]
    one, other = a_curve("1", steps), replace(a_curve("2", steps), return_U=np.array([10.0, 20.1, 30.0]))
    (band,) = bands_of([one, other], smoothing=0, drop=0, normalise=False)[0]
    assert np.isnan(band.low_T).tolist() == np.isnan(band.high_T).tolist() == [True, False, True]
    assert band.mean_T == pytest.approx([10, 20.05, 30]) and band.low_T[1] < 20 < 20.1 < band.high_T[1]


def test_results_are_means_of_updates_that_are_not_dropped() -> None:
    curve = a_curve("1", [1e3 * i for i in range(1, 21)])
    (row,) = bands_of([curve], smoothing=0.9, drop=10, normalise=False)[1]
    assert row["updates"] == 10 and row["return"] == pytest.approx(np.mean(range(11, 21)))
    (row,) = bands_of([replace(curve, split="held out")], smoothing=0.9, drop=10, normalise=False)[1]
    assert row["updates"] == 1 and row["return"] == 20


def test_normalised_held_out_returns_have_normalised_intervals(tmp_path: Path) -> None:
    runs = read_curves(str(training(tmp_path / "a", 1, 5.0)))
    bands, ends = bands_of(runs, smoothing=0.9, drop=1, normalise=True)
    (band,) = [b for b in bands if b.split == "held out"]
    assert band.mean_T == pytest.approx([0.4, 0.8]) and band.low_T == pytest.approx([0.2, 0.6])  # coinrun: 5 to 10
    assert [row["return"] for row in ends if row["split"] == "held out"] == pytest.approx([0.8])


def test_the_levels_of_a_progress_csv_are_said_by_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Returns of hard levels were normalised by the range of the easy ones."""
    file = tmp_path / "progress.csv"
    file.write_text("misc/total_timesteps,eprewmean\n100,6\n200,6\n")
    words = [f"ppo/ninja/1={file}", str(training(tmp_path / "a", 1, 5.0, held_out=False))]

    def ends(*flags: str) -> dict[str, dict[str, str]]:
        drawn(tmp_path, *words, *flags)
        with open(tmp_path / "out" / "runs.csv", newline="") as rows:
            return {row["game"]: row for row in csv.DictReader(rows)}

    for mode, low in (("easy", 3.5), ("hard", 2)):
        found = ends("--normalise", "--distribution_mode", mode)
        assert float(found["ninja"]["return"]) == pytest.approx((6 - low) / (10 - low))
        assert [found["ninja"][k] for k in ("distribution_mode", "lowest", "highest")] == [mode, str(low), "10"]
        assert found["coinrun"]["distribution_mode"] == "easy"  # the training says it
        assert f"coinrun easy 5 to 10, ninja {mode} {low} to 10" in capsys.readouterr().out
    assert float(ends()["ninja"]["return"]) == 6 and "range" not in capsys.readouterr().out
    for flags, said in (
        (["--normalise"], "ppo/ninja/1: .* does not say which levels .* needs --distribution_mode easy or hard"),
        (["--distribution_mode", "hard"], "--distribution_mode is for --normalise of METHOD/GAME/SEED=FILE"),
    ):
        with pytest.raises(UserError, match=said):
            ends(*flags)


def test_one_that_still_runs_is_drawn_as_far_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = training(tmp_path / "a", 1, 4.0)
    (agent / "manifest.json").unlink()
    assert len(drawn(tmp_path, agent)) == 5 and "is not finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("edited", "says"),
    [
        ({"held_out_low": "low"}, r"curve.csv: row 1: 'low' in held_out_low is not a number"),
        ({"return_episodes": "many"}, r"curve.csv: row 2: 'many' in return_episodes is not a number"),
        ({"return_mean": "n/a"}, r"curve.csv: row 2: 'n/a' in return_mean is not a number"),
        ({"held_out_return": "nan"}, None),
        ({"step": ""}, None),
    ],
)
def test_a_curve_that_was_edited_by_hand_is_read_or_refused(
    edited: dict[str, str], says: str | None, tmp_path: Path
) -> None:
    """Every column of the rows that are drawn, and no more rows of one column than of another."""
    agent = training(tmp_path / "a", 1, 4.0)
    (agent / "manifest.json").unlink()
    file = agent / "curve.csv"
    rows = [row | {"return_episodes": "99"} for row in csv.DictReader(file.read_text().splitlines())]
    rows[1] |= edited
    file.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n")
    if says is None:
        _, held_out = read_curves(str(agent))
        assert held_out.bounds_U2 is not None and held_out.bounds_U2.tolist() == [[7, 10]]
        assert held_out.step_U.tolist() == [400]
        drawn(tmp_path, agent)
        return
    with pytest.raises(UserError, match=says):
        read_curves(str(agent))


def test_a_training_in_which_no_episode_ended_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = training(tmp_path / "a", 1, 4.0, held_out=False)
    with new_run(tmp_path / "short", train.STAGE, train.TrainConfig()) as run:
        (run.path / "curve.csv").write_text("step,return_mean\n100,nan\n")
    drawn(tmp_path, agent, tmp_path / "short")
    said = "short (coinrun, train) left out: no episode had ended"
    assert f"{said}\n" in capsys.readouterr().out and Result.load(tmp_path / "out").notes["left_out"] == said


def test_that_early_returns_are_of_the_short_episodes_is_said_and_until_when(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the figure, in the result and in the run's row; of an evaluation alone nothing is said."""
    agent = training(tmp_path / "old", 1, 4.0, held_out=False)
    drawn(tmp_path, agent)
    plain = "training returns are of the episodes that ended last, early on the short ones"
    assert f"{plain}\n" in capsys.readouterr().out  # an earlier training's curve does not say how many
    config = cli.parse(train.TrainConfig, ["--seed", "2", "--out", str(tmp_path / "new")], train.STAGE)
    with new_run(tmp_path / "new", train.STAGE, config) as run:
        rows = ["100,nan,0", "200,9,3", "300,8,99", "400,2,100"]
        (run.path / "curve.csv").write_text("\n".join(["step,return_mean,return_episodes", *rows]) + "\n")
        run.record("steps", 400, "environment steps")
    drawn(tmp_path, tmp_path / "new")
    said = f"{plain}: fewer than 100 until step 300"
    assert f"{said}\n" in capsys.readouterr().out
    assert Result.load(tmp_path / "out").notes["training"] == said
    (row,) = Result.load(tmp_path / "out").tables["runs"]
    assert float(row["few_episodes_until"]) == 300
    (curve,) = read_curves(str(tmp_path / "new"))
    bands, _ = bands_of([curve], smoothing=0.0, drop=0, normalise=False)
    assert draw_curves(bands, False, said).get_supxlabel().replace("\n", " ") == said
    assert of_the_ended([replace(curve, split="test")]) == ""
    assert of_the_ended([replace(curve, of="ticks a life", few_U=None)]).startswith("training lengths are of the lives")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a", "b"], "two runs of plain on coinrun with seed 1"),
        (["none"], "no such run directory"),
        (["rollouts"], "neither a training nor an evaluation of an agent"),
        (["a", "--smoothing", "1"], "--smoothing 1 must be at least 0 and below 1"),
        (["a", "--drop", "9"], "of which the first 9 are dropped"),
        (["empty"], "no episode ended"),
        (["broken"], "no column return_mean"),
        (["x=y.csv"], "expected a run directory, METHOD/GAME/SEED=FILE"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_leaves_nothing(words: list[str], says: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        training(tmp_path / name, 1, 4.0, held_out=False)
    for name, text in (("empty", "step,return_mean\n100,nan\n"), ("broken", "step,loss\n100,1\n")):
        with new_run(tmp_path / name, train.STAGE, train.TrainConfig()) as run:
            (run.path / "curve.csv").write_text(text)
    with new_run(tmp_path / "rollouts", "record", {}):
        pass
    argv = [str(tmp_path / w) if w.isalpha() else w for w in words]
    with pytest.raises(UserError, match=says) as refused:
        curves.main(cli.parse(curves.CurvesConfig, [*argv, "--out", str(tmp_path / "out")], curves.STAGE))
    assert "\n" not in str(refused.value) and not (tmp_path / "out").exists()


def test_runs_that_differ_in_much_are_called_by_the_first_run_of_their_kind(tmp_path: Path) -> None:
    more = ["--learning_rate", "0.1", "--gamma", "0.5", "--clip", "0.3"]
    runs = [training(tmp_path / "a", 1, 1.0), *(training(tmp_path / f"b{i}", i, 1.0, *more) for i in (1, 2))]
    found = told_apart([c for run in runs for c in read_curves(str(run)) if c.split == "train"])
    assert [c.method for c in found] == ["plain, as a", "plain, as b1", "plain, as b1"]


def test_what_ships_is_drawn_with_its_evaluation(tmp_path: Path) -> None:
    bundle = cli.ROOT / "bundles" / "coinrun-context"
    rows = drawn(tmp_path, bundle / "agent", bundle / "evaluation")
    (point,) = [row for row in rows if row["split"] == "test"]
    assert float(point["step"]) == 3997696 and {row["method"] for row in rows} == {"plain"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trainings of debug size: one with measurements, one of these stopped and resumed, one without."""
    root = tmp_path_factory.mktemp("trained")
    debug = ["--preset", "debug", "--threads", "1", "--total_steps", "1024"]
    small = [*debug, "--game", "leaper"]  # its episodes end soon
    every = ["--evaluate_every", "512", "--evaluate_episodes", "4"]
    for name, more in (("whole", every), ("cut", [*every, "--stop_after", "0.001s"]), ("without", [])):
        train.main(cli.parse(train.TrainConfig, [*small, *more, "--out", str(root / name)], train.STAGE))
    train.main(cli.parse(train.TrainConfig, [*small, *every, "--out", str(root / "cut"), "--resume"], train.STAGE))
    return {name: root / name for name in ("whole", "cut", "without")}


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path / "curve.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k != "wall_s"} for row in csv.DictReader(file)]


def test_a_training_measures_held_out_return_as_it_goes(trained: dict[str, Path]) -> None:
    rows = rows_of(trained["whole"])
    assert [row["step"] for row in rows if row["held_out_return"]] == ["512", "1024"]
    assert all(row["held_out_episodes"] in ("", "4") for row in rows)
    assert all(0 <= float(row["held_out_return"]) <= 10 for row in rows if row["held_out_return"])
    drawn_rows = read_curves(str(trained["whole"]))
    assert [c.split for c in drawn_rows] == ["train", "held out"]


def test_measuring_changes_no_training_and_goes_on_after_a_stop(trained: dict[str, Path]) -> None:
    assert rows_of(trained["whole"]) == rows_of(trained["cut"])
    bare = [{k: v for k, v in row.items() if not k.startswith("held_out")} for row in rows_of(trained["whole"])]
    assert bare == rows_of(trained["without"])
    weights = [(trained[name] / "model.safetensors").read_bytes() for name in ("whole", "cut", "without")]
    assert weights[0] == weights[1] == weights[2]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--evaluate_every", "-1"], "--evaluate_every must be at least 0"),
        (["--evaluate_every", "9", "--evaluate_episodes", "0"], "--evaluate_episodes must be at least 1"),
        (["--evaluate_every", "9", "--start_level", "500000000"], "overlap the training levels"),
        (["--wandb_project", "p"], "--wandb_project is for Weights & Biases: it needs --track"),
    ],
)
def test_bad_measurements_are_refused_before_anything_is_written(flags: list[str], says: str, tmp_path: Path) -> None:
    argv = ["--preset", "debug", "--threads", "1", *flags, "--out", str(tmp_path / "out")]
    with pytest.raises(UserError, match=says):
        train.main(cli.parse(train.TrainConfig, argv, train.STAGE))
    assert not (tmp_path / "out").exists()


def test_curves_of_policies_of_neural_mmo_are_of_the_length_of_lives(tmp_path: Path) -> None:
    for seed in (1, 2):
        argv = ["-a", "hybrid", "--seed", str(seed), "--out", str(tmp_path / str(seed))]
        with new_run(tmp_path / str(seed), nmmo_train.STAGE, cli.parse(nmmo_train.NmmoTrainConfig, argv, "t")) as run:
            (run.path / "curve.csv").write_text(
                "step,length_mean,held_out_length,held_out_low,held_out_high\n"
                f"100,{10 + seed},,,\n200,{20 + seed},{30 + seed},25,40\n"
            )
    rows = drawn(tmp_path, tmp_path / "1", tmp_path / "2")
    assert {(row["method"], row["game"]) for row in rows} == {("hybrid", "nmmo")}
    assert [float(row["return"]) for row in rows if row["split"] == "train"] == [11.5, 21.5]
    assert [float(row["return"]) for row in rows if row["split"] == "held out"] == [31.5]
    bands, _ = bands_of(read_curves(str(tmp_path / "1")), smoothing=0, drop=0, normalise=False)
    assert {band.of for band in bands} == {"ticks a life"}


def test_an_unfinished_run_of_another_stage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text("step,loss\n100,1\n")
    (tmp_path / "config.json").write_text('{"stage": "train_gen_model", "config": {}}')
    with pytest.raises(UserError, match="neither a training nor an evaluation of an agent"):
        read_curves(str(tmp_path))


@pytest.mark.parametrize("config", [None, "{}", "[]", '{"lr": 0.1}', '{"stage": "train", "config": []}'])
def test_another_systems_directory_is_told_from_an_unfinished_run(config: str | None, tmp_path: Path) -> None:
    (tmp_path / "progress.csv").write_text("eprewmean,misc/total_timesteps\n1,100\n")
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"config.json is not .*; name .* as METHOD/GAME/SEED=.*progress\.csv$") as said:
        read_curves(str(tmp_path))
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("shipped", ["nmmo-demo/policies/takeru", "craftax-probe/masked_scarce_1"])
def test_the_training_of_a_shipped_agent_is_drawn(shipped: str, tmp_path: Path) -> None:
    rows = drawn(tmp_path, cli.ROOT / "bundles" / shipped)
    assert {row["split"] for row in rows} == {"train"} and len(rows) > 10
