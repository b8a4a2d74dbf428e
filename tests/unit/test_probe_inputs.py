"""The table of quantities by inputs on planted rows: advantages where there are any, inflation where rows are split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from analysis.probes import alignment
from analysis.probes.__main__ import main, recordings_of, tables_of
from analysis.probes.alignment import aside, check_labels, check_states
from analysis.probes.config import ProbesConfig
from analysis.probes.directions import basis_of
from analysis.probes.figures import MOST_LINES, draw_emergence
from analysis.probes.inputs import EPISODE, Input, block_words, check_words, inputs_of, kept
from analysis.probes.labels import Known, Rule, Tally, labels_of
from analysis.probes.matrix import (
    CONTROL,
    Rows,
    advantage_rows,
    apart,
    cells,
    input_rows,
    latex,
    markdown,
    paper,
    score_inputs,
    verdict,
    with_room,
)
from analysis.probes.scores import Scores, _areas
from analysis.probes.streamed import Split, linear
from analysis.shared.probe_fits import FoldedRidge, MlpOptions, r2_of, unit_sums
from benchmarks.probes import THERE, planted_rows
from core import artefacts
from core.artefacts import Result, write_json
from core.contracts import UserError
from core.directions import fingerprint, load_basis
from core.episodes import Episode, RolloutStore, StoreWriter
from core.stats import left_out
from envs.planted import PlantedAgent, PlantedOptions, record_planted

QUICK = ProbesConfig(mlp=False, exchanges=1, resamples=199)
Table = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def found() -> Iterator[tuple[Table, list[dict[str, Any]]]]:
    rows, inputs = planted_rows(0)
    life = Input(EPISODE, 0, lambda e, at: np.zeros((at.stop - at.start, 0), np.float32))
    scored = score_inputs(rows, [*inputs, life], ("kind",), QUICK)
    table = {(row["target"], row["input"]): row for row in input_rows(scored, QUICK)}
    yield table, advantage_rows(scored, [*inputs, life], QUICK)


def test_the_advantage_is_found_where_it_was_planted(found: tuple[Table, list[dict[str, Any]]]) -> None:
    said = {row["target"]: row for row in found[1] if row["over"] == "obs"}
    assert {name for name, row in said.items() if row["verdict"] == "yes"} == set(THERE)
    assert all(said[name]["advantage_low"] < 0.02 for name in ("shown", "neither", "blind"))
    assert said["kept"]["advantage"] > 0.6 and said["kept"]["p"] < 0.001 and said["kept"]["q"] < 0.01
    assert said["kind"]["metric"] == said["flag"]["metric"] == "balanced_accuracy"


def test_scores_of_numbers_and_of_classes(found: tuple[Table, list[dict[str, Any]]]) -> None:
    table, _ = found
    kept_, flag, kind = (table[name, "h"] for name in ("kept", "flag", "kind"))
    assert (kept_["kind"], flag["kind"], kind["kind"]) == ("number", "binary", "classes")
    assert 0.7 < kept_["r2"] == kept_["score"] < 0.85 and "accuracy" not in kept_
    assert flag["chance"] == 0.5 and kind["chance"] == pytest.approx(1 / 3) and kind["classes"] == 3
    assert flag["score"] > 0.75 and kind["score"] > 0.6
    assert flag["accuracy"] > flag["majority"] and kind["accuracy"] > kind["majority"] + 0.1
    blind = table["blind", "obs"]
    assert abs(blind["score"] - 0.5) < 0.15 and blind["accuracy"] < blind["majority"] + 0.02
    assert abs(kept_["exchanged"]) < 0.2 and kept_["selectivity_low"] > 0.5


def test_a_split_by_step_gives_away_what_only_the_episode_knows(found: tuple[Table, list[dict[str, Any]]]) -> None:
    table, _ = found
    for given in ("h", "obs"):
        control = table[CONTROL, given]
        assert control["kind"] == "control" and control["score"] < 0 < 0.05 < control["by_step"], given
        assert control["inflation"] == pytest.approx(control["by_step"] - control["score"])
    assert table["neither", "h"]["inflation"] > 0.03 and table["neither", "h"]["score"] < 0.02
    life = table["neither", EPISODE]
    assert life["score"] < 0.02 and life["by_step"] > 0.3 and table[CONTROL, EPISODE]["by_step"] > 0.99


def test_sums_over_folds_say_what_the_rows_say() -> None:
    """The streamed fit is the ridge regression of analysis.shared.probe_fits, to the precision of its products."""
    rows, inputs = planted_rows(1)
    labels = labels_of({"kept": rows.quantities["kept"], "shown": rows.quantities["shown"]}, ())
    fold = rows.unit_N % 5
    (tally,) = linear(inputs[0], rows.step_E, labels, [Split("unit", fold, True)], 2, rows.unit_N, 40)
    x = inputs[0].of(0, slice(0, len(fold)))
    want = unit_sums(FoldedRidge(x, fold).predict(labels.y_NS.astype(float)), labels.y_NS, rows.unit_N)
    np.testing.assert_allclose(tally.error_US, want[:, 0], rtol=1e-3)
    assert (r2_of(want.sum(0)) > 0.6).all()
    still = kept("h", np.concatenate([np.full((len(x), 3), 0.3, np.float32), x], 1))  # what never changes says nothing
    (again,) = linear(still, rows.step_E, labels, [Split("unit", fold, True)], 2, rows.unit_N, 40)
    np.testing.assert_allclose(again.error_US, tally.error_US, rtol=1e-9)


def test_what_an_observation_shows_is_read_among_many_rare_features() -> None:
    """One-hot fields of a world hold hundreds of rare and redundant features; sums that round lose the rest (R2 .4)."""
    rng = np.random.default_rng(0)
    places = np.cumsum(rng.integers(-1, 2, (3000, 40)), 0)
    x = np.concatenate([rng.random((3000, 200)) < 2e-3, *(p[:, None] // 8 == np.arange(-6, 6) for p in places.T)], 1)
    shown = np.abs(np.cos(np.arange(3000) / 50))[:, None]
    seen, unit = np.concatenate([x, shown], 1).astype(np.float32), np.arange(3000) // 75
    steps, fold = {e: np.arange(75) for e in range(40)}, np.arange(3000) // 75 % 5
    labels = labels_of({"shown": shown[:, 0]}, ())
    (tally,) = linear(kept("obs", seen), steps, labels, [Split("unit", fold, True)], 1, unit, 40)
    assert tally.error_US.sum() / 3000 < 1e-3  # of a variance of 1


def test_networks_have_a_column_and_an_advantage_of_their_own() -> None:
    rows, inputs = planted_rows(2, episodes=24)
    product = np.sign(rows.quantities["kept"]) * np.sign(rows.quantities["shown"])
    only = rows._replace(quantities={"product": product, "kept": rows.quantities["kept"]})
    net = MlpOptions(epochs=25, patience=25, batch=128, rate=5e-3, decay=0.1, shared=48)
    config = ProbesConfig(exchanges=0, resamples=99, folds=3, net=net)
    scored = score_inputs(only, inputs, (), config)
    table = {(row["target"], row["input"]): row for row in input_rows(scored, config)}
    assert table["product", "h"]["network"] > table["product", "h"]["score"] + 0.1
    assert table["kept", "h"]["network"] == pytest.approx(table["kept", "h"]["score"], abs=0.1)
    assert "exchanged" not in table["kept", "h"]
    assert {row["probe"] for row in advantage_rows(scored, inputs, config)} == {"linear", "network"}


def test_targets_without_a_value_somewhere_are_read_elsewhere() -> None:
    rows, inputs = planted_rows(3)
    seldom = np.where(rows.unit_N < 15, rows.quantities["kept"], np.nan)
    seldom[::7] = np.nan
    some = rows._replace(quantities={"kept": rows.quantities["kept"], "seldom": seldom, "still": np.zeros(len(seldom))})
    table = {(r["target"], r["input"]): r for r in input_rows(score_inputs(some, inputs, (), QUICK), QUICK)}
    assert table["seldom", "h"]["rows"] == np.isfinite(seldom).sum() and table["seldom", "h"]["n"] == 15
    assert table["seldom", "h"]["score"] > 0.5 > 0.3 > table["seldom", "obs"]["score"]
    assert ("still", "h") not in table


@pytest.mark.parametrize(("units", "positive"), [(100, 6), (24, 12)])
def test_no_leaves_room_for_units_that_were_not_met(units: int, positive: int) -> None:
    """A flag that is the same all through a unit; the state tells it, the observation misses one in ten of the positive
    units, which is an advantage of .05.  "No" was said in .46 and .24, as often with an interval of 0 [0, 0]."""
    rng = np.random.default_rng(0)
    rule = Rule(np.array([[0.0, 1.0]]), np.array([0.0, -0.5]), np.array([0.0, -0.5]))
    unit_N, held, said = np.repeat(np.arange(units), 10), [], []
    for _ in range(40):
        flag_U = rng.permutation(units) < positive
        told_U = flag_U & (rng.random(units) >= 0.1)
        labels = labels_of({"flag": flag_U[unit_N].astype(float)}, ())
        known = Known.of(labels, unit_N, units)
        tallies = Tally(labels, unit_N, units), Tally(labels, unit_N, units)
        for tally, read_U in zip(tallies, (flag_U, told_U), strict=True):
            tally.add(np.arange(len(unit_N)), read_U[unit_N][:, None].astype(float), {0: (rule, rule)})
        weight_RU = left_out(units, rng)
        gain_R = known.score(tallies[0], 0, weight_RU) - known.score(tallies[1], 0, weight_RU)
        row = cells("advantage", gain_R, rng, QUICK, levels=(0.95, 0.9))
        row |= with_room(row, *known.could_gain(0, positive)) | {"q": 0.01}
        said.append(verdict(row, 0.02))
        held.append(row["advantage_low"] <= 0.05 <= row["advantage_high"])
    assert "no" not in said and np.mean(held) >= 0.9


def test_the_area_of_a_good_reading_leaves_room_for_units_that_it_misses() -> None:
    """Of a true AUROC of .994 the interval of 24 episodes, 8 positive, held it in .67, and had no width in .15."""
    rng = np.random.default_rng(1)
    unit_N, held = np.repeat(np.arange(24), 10), []
    truth = scipy_stats.norm.cdf(4 / np.sqrt(2.5))
    for _ in range(60):
        flag_N = (rng.permutation(24) < 8)[unit_N]
        read_N = 4 * flag_N + rng.standard_normal(24)[unit_N] + 0.5 * rng.standard_normal(240)
        found = _areas({"linear": read_N[:, None]}, 0, flag_N, Scores(unit_N, 199, rng), False)
        held.append(found["auroc_linear_low"] <= truth <= found["auroc_linear_high"])
    assert np.mean(held) >= 0.9


def test_two_recordings_are_compared_by_their_intervals() -> None:
    one = {"target": "x", "input": "h", "metric": "r2", "score": 0.5, "score_low": 0.4, "score_high": 0.6, "n": 9,
           "kind": "number", "units_varying": 9}  # fmt: skip
    other = {**one, "input": "visible", "score": 0.2, "score_low": 0.16, "score_high": 0.23}
    (row,) = apart([one], [other], 0.02)
    assert row["advantage"] == pytest.approx(0.3) and row["verdict"] == "yes"
    half = np.hypot(0.1, 0.03)
    assert row["advantage_high_90"] is None  # scores have intervals of 95 % alone
    assert row["advantage_low"] == pytest.approx(0.3 - half)
    assert row["p"] == row["q"] == pytest.approx(2 * scipy_stats.norm.sf(0.3 / half * scipy_stats.norm.ppf(0.975)))
    assert apart([other], [one], 0.02)[0]["verdict"] == "no"
    for unknown in ({"score_low": None}, {"units_varying": 2}, {"score_low": 0.5, "score_high": 0.5}):
        (row,) = apart([{**one, **unknown}], [{**other, "score_low": 0.2, "score_high": 0.2}], 0.02)
        assert row["verdict"] == "open", unknown


def test_recordings_that_say_the_same_are_not_told_apart_by_one_of_many_targets() -> None:
    """Of 45 targets one clears its own 95 % interval; by their 95 % intervals alone it was a yes."""
    scores = [{"target": f"t{i}", "input": "h", "metric": "r2", "score": 0.3, "score_low": 0.2, "score_high": 0.4,
               "n": 9, "kind": "number", "units_varying": 9} for i in range(45)]  # fmt: skip
    others = [{**row, "input": "other"} for row in scores]
    scores[7] |= {"score": 0.47, "score_low": 0.37, "score_high": 0.57}
    found = apart(scores, others, 0.02)
    assert found[7]["advantage_low"] > 0.02 and found[7]["q"] > 0.05
    assert {row["verdict"] for row in found} == {"open"}


def test_the_paper_table_is_markdown_and_latex(found: tuple[Table, list[dict[str, Any]]]) -> None:
    table = paper(list(found[0].values()), found[1])
    said = markdown(table).splitlines()
    assert said[0].startswith("| target | metric | h | obs | episode | h - obs |") and len(said) == 2 + 7
    assert r"\begin{tabular}{lllllll}" in latex(table) and r"balanced accuracy" in latex(table)


# A basis


def test_probes_are_directions_of_which_each_leaves_the_others() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 6)) @ rng.standard_normal((6, 6)) + 3
    read = np.stack([rng.standard_normal(6), rng.standard_normal(6), np.zeros(6)])
    read = np.concatenate([read, [read[0] - 2 * read[1], 1.01 * read[0]]])
    basis = basis_of(x, read, ["a", "b", "nothing", "both", "again"], "agent")
    assert basis is not None and basis.names == ["probe:0", "probe:1"]
    assert basis.facts == {"targets": {"probe:0": "a", "probe:1": "b"}, "left_out": ["nothing", "both", "again"]}
    h = torch.from_numpy(x).float()
    c = basis.project(h)
    torch.testing.assert_close(basis.project(basis.lift(c)), c, atol=1e-3, rtol=0)
    np.testing.assert_allclose(c.std(0), 1, atol=1e-3)
    assert np.corrcoef(c[:, 0], x @ read[0])[0, 1] > 0.9999
    left = (h @ torch.eye(6) + basis.lift_change(-c)).double().numpy()  # both collapsed
    assert np.abs(np.cov(np.c_[left, x @ read[:2].T].T)[:6, 6:]).max() < 1e-3 * x.var()  # no linear trace of them
    assert basis_of(x, np.zeros((1, 6)), ["nothing"], "") is None


# Recordings


OPTIONS = PlantedOptions(horizon=30)


def record(
    path: Path, seed: int = 0, late: int = 0, slip: int = 0, blocks: Mapping[str, int] | None = None, cell: str = ""
) -> Path:
    """A recording of the planted agent.  late: by how many steps labels, slip: by how many states lag behind; cell: of
    the agent that is said to have been recorded."""
    agent: Any = PlantedAgent(OPTIONS)
    if cell:
        sizes = AgentConfig(encoder="mlp", embedding_size=4, hidden_size=4, recurrence=cell)  # type: ignore[arg-type]
        agent = RecurrentAgent(sizes, agent.spec)
        with artefacts.new_run(path / "agent", "train", {}) as run:
            save_agent(agent, run.path)
            run.facts = {"agent": fingerprint(agent)}
        path = path / "rollouts"
    with artefacts.new_run(path, "record", {}, {"agent": path.parent / "agent"} if cell else {}) as run:
        write_json(run.path / "spec.json", agent.spec.to_json())
        run.facts = {"agent": fingerprint(agent), "source": "real", "classes": ["side"]}
        with StoreWriter(run.path) as writer:
            for e in record_planted(OPTIONS, 12, 30, seed):
                truth = {"stimulus": np.roll(e.truth["stimulus"], late, 0)}
                truth["side"] = np.digitize(truth["stimulus"][:, 0], [-0.5, 0.5])
                truth["hidden"] = np.random.default_rng(seed).standard_normal(len(e.h))
                truth["constant"] = np.full(len(e.h), 3.0)
                world = {f"block_{i}": e.h[:, :size] for i, size in enumerate((blocks or {}).values())}
                writer.add(Episode(
                    obs=e.obs, h=np.roll(e.h, slip, 0), value=e.value, action=e.action, reward=e.reward,
                    terminated=e.terminated, truncated=e.truncated, truth=truth, world=world, meta=e.meta,
                ))  # fmt: skip
    return path


def config_of(path: Path, **changes: Any) -> ProbesConfig:
    given = {"mlp": False, "shuffles": 19, "resamples": 99, "exchanges": 1, "folds": 3, "threads": 1, **changes}
    return ProbesConfig(extraction=path, **given)


def test_all_checkpoints_in_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for steps in (900, 1000):
        record(tmp_path / "runs" / f"checkpoint_{steps}", steps, blocks={"a": 4, "b": 8})
    config = config_of(ProbesConfig.extraction, run_dir=tmp_path / "runs", all_ckpts=True, block="all",
                       out=tmp_path / "out", targets=("stimulus_0", "side"), directions=("stimulus_0",))  # fmt: skip
    assert [p.name for p in recordings_of(config)] == ["checkpoint_900", "checkpoint_1000"]
    main(config)
    assert artefacts.verify(tmp_path / "out") == []
    result = Result.load(tmp_path / "out")
    assert result.notes["inputs"] == ["block_0", "block_1", "obs", "time", "actions"]
    of = {(r["recording"], r["target"], r["input"]) for r in result.tables["emergence"]}
    assert {name for name, _, _ in of} == {"checkpoint_900", "checkpoint_1000"} and len(of) == 2 * 3 * 5
    kind = next(r for r in result.tables["inputs"] if (r["target"], r["input"]) == ("side", "obs"))
    assert kind["kind"] == "classes" and kind["score"] > 0.6  # as the recording says
    assert load_basis(tmp_path / "out", "probe").facts["targets"] == {"probe:0": "stimulus_0"}
    assert [row["target"] for row in result.tables["targets"]] == ["stimulus_0"]  # a name has no R2, nor a direction
    files = {p.name for p in (tmp_path / "out").iterdir()}
    assert files >= {"inputs.png", "emergence.png", "paper.md", "paper.tex", "paper.csv", "advantages.csv"}
    assert "block_1 - obs: side" in capsys.readouterr().out


def test_one_line_for_each_mistake(tmp_path: Path) -> None:
    good, small = record(tmp_path / "good"), record(tmp_path / "small", blocks={"a": 4})
    for changes, said in (
        ({"targets": ("stimulus_9",)}, "no quantity 'stimulus_9'"),
        ({"targets": ("constant", "side")}, "constant is 3 at every step, so there is nothing to read"),
        ({"folds": 7}, "12 units .life. are too few; at least 14"),
        ({"inputs": ("hh",)}, "--inputs hh: .* has no such column"),
        ({"inputs": ("obs:1", "h")}, "expected obs:K"),
        ({"inputs": ("obs", "time")}, "names baselines only"),
        ({"inputs": ("h", "h")}, "--inputs names 'h' twice"),
        ({"inputs": ("h", "random")}, "random needs the agent that was recorded: give --agent"),
        ({"inputs": ("h", "other=")}, "expected NAME=DIR"),
        ({"inputs": ("h", f"h={small}")}, "h is an input of the recording itself; give it another name"),
        ({"inputs": ("h", f"v={small}", f"v={good}")}, "--inputs names 'v' twice"),
        ({"inputs": ("h", "episode+time")}, "--inputs episode.time: episode stands alone"),
        ({"run_dir": tmp_path / "good"}, "leave out the first argument and --recordings"),
        ({"block": "3"}, "has 1 block, 0 to 0"),
        ({"block": "first"}, "--block first: last, all, or the number"),
        ({"all_ckpts": True}, "belong to --run_dir"),
        ({"recordings": (small,)}, "several recordings are compared by what is read from --inputs"),
        ({"inputs": ("h",), "classes": ("stimulus_1",)}, "values are too many for names"),
        ({"directions": ("sid",)}, "no target .did you mean side"),
        ({"classes": ("sid",)}, "--classes sid: no target .did you mean side"),
        ({"directions": ("side",)}, "--directions side: a name of several values is no direction"),
        ({"targets": ("side", "stimulus_0")}, "side is a name of several values, which the table of --inputs tells"),
        ({"inputs": ("h",), "targets": ("side",)}, "give --inputs h, and a number among --targets"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            main(config_of(good, out=tmp_path / "out", given=(), **changes))
    with pytest.raises(UserError, match="empty holds no recording.*record.py --run_dir .*empty"):
        main(config_of(ProbesConfig.extraction, run_dir=tmp_path / "empty", out=tmp_path / "out", given=()))
    wide = record(tmp_path / "wide", blocks={"a": 8})
    with pytest.raises(UserError, match="block_0 is 4 numbers wide, 8 in .* of the same cell and blocks"):
        main(config_of(small, recordings=(wide,), inputs=("block_0",), targets=("stimulus_0",), out=tmp_path / "out"))
    gru, ema = (record(tmp_path / cell, cell=cell) for cell in ("gru", "ema"))
    with pytest.raises(UserError, match="gru.rollouts: its agent has other weights than the one of .*ema.rollouts"):
        tables_of([ema, good, gru], ["h"], ["stimulus_0"], config_of(gru))
    assert not (tmp_path / "out").exists()


def test_labels_and_states_that_are_out_of_line_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = PlantedAgent(OPTIONS)
    for name, late, slip in (("good", 0, 0), ("late", 1, 0), ("early", -1, 0), ("slipped", 0, 1)):
        with RolloutStore(record(tmp_path / name, late=late, slip=slip)) as store:
            if name in ("late", "early"):
                step = "after" if name == "early" else "before"
                with pytest.raises(UserError, match="labels out of line with observations: stimulus_0 is what"):
                    check_labels(store)
                assert step
            else:
                check_labels(store)
            if slip:
                with pytest.raises(UserError, match="states out of line with observations"):
                    check_states(agent, store)
            else:
                check_states(agent, store)
    with pytest.raises(UserError, match="labels out of line"):  # though the label that is read is not shown
        main(config_of(tmp_path / "late", targets=("hidden",), out=tmp_path / "out"))
    for more in ({"recordings": (tmp_path / "late",)}, {"inputs": ("h", f"other={tmp_path / 'late'}")}):
        with pytest.raises(UserError, match="late: labels out of line"):  # whichever recording it is
            main(config_of(tmp_path / "good", targets=("hidden",), out=tmp_path / "out", **{"inputs": ("h",), **more}))
    monkeypatch.setattr(alignment, "WIDEST", 4)
    with RolloutStore(tmp_path / "late") as store:
        assert check_labels(store).startswith("no field of the observation is narrow enough")
    exact, none, clock = np.array([0.999, 0.2]), np.array([0.6, 0.2]), np.array([1.0, 1.0])
    assert aside({-1: none, 0: none, 1: exact}) == (0, 1) and aside({-1: exact, 0: exact[::-1], 1: none}) is None
    assert aside({-1: clock, 0: clock, 1: clock}) is None  # what is so for long says nothing


class Layers(PlantedAgent):
    """An agent of four recurrent layers, by name."""

    def __init__(self) -> None:
        super().__init__(OPTIONS)
        self.points = {"h": 8, "block_0": 8, "block_1": 8, "block_2": 8}


def test_inputs_are_what_they_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = PlantedAgent(OPTIONS)
    with RolloutStore(record(tmp_path / "good", blocks={"a": 4, "b": 8})) as store:
        step_E = {e: np.arange(1, 9, 2) for e in range(4)}
        words = ["h", "obs", "obs:3", "embedding", "frame", "random", "time+actions", "block_1"]
        check_words(words, store, agent)
        inputs = {x.name: x for x in inputs_of(words, store, agent, step_E, np.tile(np.arange(1, 9, 2), 4), 0)}
        assert [x.is_baseline for x in inputs.values()] == [False, True, True, True, True, True, True, False]
        columns, _ = store.pooled("h", "obs/x", "action", "world/block_1", episodes=[2])
        rows, obs = slice(8, 12), columns["obs/x"]
        np.testing.assert_array_equal(inputs["h"].of(2, rows), columns["h"][1:9:2])
        np.testing.assert_array_equal(inputs["block_1"].of(2, rows), columns["world/block_1"][1:9:2])
        np.testing.assert_array_equal(inputs["obs:3"].of(2, rows)[1], np.concatenate([obs[3], obs[2], obs[1]]))
        np.testing.assert_array_equal(inputs["obs:3"].of(2, rows)[0], np.concatenate([obs[1], obs[0], 0 * obs[0]]))
        seen = agent.encode({"x": torch.from_numpy(obs)})
        np.testing.assert_allclose(inputs["embedding"].of(2, rows), seen[1:9:2], atol=1e-6)
        np.testing.assert_allclose(inputs["frame"].of(2, rows)[:, :8], seen[1:9:2], atol=1e-6)
        assert np.abs(inputs["random"].of(2, rows) - columns["h"][1:9:2]).max() > 0.1
        counts = inputs["time+actions"].of(2, rows)[:, -3:]
        np.testing.assert_array_equal(counts, [np.bincount(columns["action"][:t], minlength=3) for t in (1, 3, 5, 7)])
        assert block_words("last", store, agent) == ["block_1"] and block_words("all", store, Layers()) == [
            "block_0", "block_1", "block_2", "h"
        ]  # fmt: skip
        assert block_words("last", store, None) == ["block_1"] and block_words("0", store, None) == ["block_0"]
        assert all(x.width == x.of(2, rows).shape[1] and x.of(2, rows).dtype == np.float32 for x in inputs.values())
        named = ["points/embedding", "obs/x", "action", "h+time", "obs+time", "world/h"]
        assert [Input(n, 1, inputs["h"].of).is_baseline for n in named] == [True, True, True, False, True, False]
        monkeypatch.setattr("analysis.probes.inputs.MOST_WIDE", 7)
        monkeypatch.setattr("analysis.probes.inputs.WIDE_WIDTH", 3)
        wide, last = inputs_of(["obs", "obs:2"], store, None, step_E, np.tile(np.arange(1, 9, 2), 4), 0)
        assert wide.width == 3 and last.width == 6
        every = np.concatenate([store.pooled("obs/x", episodes=[e])[0]["obs/x"][1:9:2] for e in range(4)])
        told = np.concatenate([wide.of(e, rows) for e in range(4)])
        main3 = np.linalg.svd(every - every.mean(0))[2][:3]
        np.testing.assert_allclose(np.abs(told), np.abs(every @ main3.T), atol=1e-3)


def test_rows_of_a_kept_input() -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    assert kept("x", x).of(3, slice(2, 4)).tolist() == [[4, 5], [6, 7]]
    rows = Rows({4: np.arange(3), 7: np.arange(2)}, {}, np.zeros(5, np.int64))
    assert rows.life_N.tolist() == [0, 0, 0, 1, 1]


def test_an_end_of_no_use_is_printed_in_words():
    row = {"target": "t", "metric": "r2", "input": "time", "score": 1.0, "score_low": -2.5e16, "score_high": 1.0}
    (line,) = paper([row], [])
    assert line["time"] == "1.00 [below -1, 1.00]"


def test_a_picture_of_many_quantities_shows_those_that_move_most():
    rows = [
        {"recording": f"checkpoint_{step:09d}", "target": f"t{k}", "kind": "number", "input": "h",
         "score": k * step / 1e8, "score_low": 0.0, "score_high": 0.5}
        for k in range(20) for step in (1_250_000, 2_500_000)
    ]  # fmt: skip
    (panel,) = draw_emergence(Result(tables={"emergence": rows})).axes
    assert [line.get_label() for line in panel.get_lines() if line.get_label().startswith("t")] == [
        f"t{k}" for k in range(20 - MOST_LINES, 20)
    ]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1.2 M steps", "2.5 M steps"]
