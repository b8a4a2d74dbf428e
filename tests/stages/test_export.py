"""Results as CSV and Parquet with units, rollouts as Minari datasets and back, figures as PDF and SVG."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from agents import import_rollouts
from agents.import_rollouts import ImportConfig
from core import artefacts, config as cli, export, figures
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore
from core.export import ExportConfig, Table, main, unit_of, write_tables


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A run directory with a scalar, a table and arrays of one to three axes."""
    found = Result(notes={"unit": "target per source"})
    found.scalar("return_mean", 3.25, "return", 12, (1.5, 5.0))
    found.scalar("nothing", float("nan"), "nats")
    found.tables["edges"] = [
        {"source": "ica:0", "lag": 2, "q": 0.03, "J": 1.5, "agree": None},
        {"source": "ica:1", "lag": 4, "q": 0.5, "J": -2, "agree": True},
    ]
    found.tables["empty"] = []
    found.arrays |= {
        "value": np.arange(3.0),
        "jacobian": np.arange(8.0).reshape(2, 2, 2),
        "index": np.eye(2, dtype=int),
    }
    with artefacts.new_run(tmp_path / "run", "coupling", ExportConfig(directory=tmp_path)) as run:
        found.save(run.path)
    return tmp_path / "run"


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_result_as_csv_has_its_units(result: Path, tmp_path: Path) -> None:
    main(ExportConfig(directory=result, out=tmp_path / "out"))
    assert artefacts.verify(tmp_path / "out") == []
    scalar, nothing = rows_of(tmp_path / "out" / "scalars.csv")
    assert scalar == {"name": "return_mean", "value": "3.25", "unit": "return", "n": "12", "low": "1.5", "high": "5.0"}
    assert nothing["value"] == "" and nothing["unit"] == "nats"
    edges = rows_of(tmp_path / "out" / "edges.csv")
    assert [(row["source"], row["lag"], row["J"]) for row in edges] == [("ica:0", "2", "1.5"), ("ica:1", "4", "-2")]
    cells = rows_of(tmp_path / "out" / "array_jacobian.csv")
    assert cells[5] == {"axis_0": "1", "axis_1": "0", "axis_2": "1", "value": "5.0"}
    assert rows_of(tmp_path / "out" / "array_index.csv") == [{"0": "1", "1": "0"}, {"0": "0", "1": "1"}]
    units = {(row["table"], row["column"]): row["unit"] for row in rows_of(tmp_path / "out" / "units.csv")}
    assert units["edges", "lag"] == "steps" and units["edges", "q"] == "q-value (Benjamini-Hochberg)"
    assert units["array_jacobian", "value"] == "target per source" and units["scalars", "value"] == "see unit"
    assert rows_of(tmp_path / "out" / "empty.csv") == []


def test_names_that_are_no_file_names_are_exported_too(result: Path, tmp_path: Path) -> None:
    """Arrays of interventions, edits, causal directions and scenes are named by paths and sentences."""
    names = [
        "observed/value@8",
        "observed value@8",
        "Observed/value@8",
        "effect/remove bad nearest/whole/value",
        "a" * 300,
    ]
    found = Result.load(result)
    found.arrays |= {name: np.full(2, float(i)) for i, name in enumerate(names)}
    with artefacts.new_run(tmp_path / "more", "interventions", ExportConfig(directory=tmp_path)) as run:
        found.save(run.path)
    main(ExportConfig(directory=tmp_path / "more", out=tmp_path / "out"))
    files = {row["table"]: row["file"] for row in rows_of(tmp_path / "out" / "units.csv")}
    assert files["array_observed/value@8"] == "array_observed_value@8.csv" and files["edges"] == "edges.csv"
    for i, name in enumerate(names):
        assert rows_of(tmp_path / "out" / files[f"array_{name}"])[0] == {"value": f"{float(i)}"}
    assert len({file.lower() for file in files.values()}) == len(files)


def test_units_by_name() -> None:
    assert [unit_of(name) for name in ("p_correlation", "mean_sd", "wall_s", "surprise_nats", "kind")] == [
        "p-value", "standard deviations", "s", "nats", ""
    ]  # fmt: skip


def test_a_result_as_parquet_has_its_units(result: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow, an extra, is not installed")
    main(ExportConfig(directory=result, to="parquet", out=tmp_path / "out"))
    edges = parquet.read_table(tmp_path / "out" / "edges.parquet")
    assert edges.column("J").to_pylist() == [1.5, -2.0] and edges.column("agree").to_pylist() == [None, True]
    assert edges.schema.field("lag").metadata == {b"unit": b"steps"}
    assert parquet.read_table(tmp_path / "out" / "empty.parquet").num_rows == 0


def test_columns_of_words_and_numbers_are_words(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow, an extra, is not installed")
    write_tables({"t": Table({"a": [1, "x", None], "b": [1, 2.5, None]}, {})}, tmp_path, "parquet")
    assert parquet.read_table(tmp_path / "t.parquet").to_pydict() == {"a": ["1", "x", None], "b": [1.0, 2.5, None]}


def test_parquet_without_pyarrow_is_one_line_and_leaves_nothing(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match="--to parquet needs pyarrow .* pip install 'pyarrow<20'; or use --to csv"):
        main(ExportConfig(directory=result, to="parquet", out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported_so_is_one_line(result: Path, pipeline: Path, tmp_path: Path) -> None:
    for options, said in (
        ({"directory": result, "to": "minari"}, "holds a result; use csv or parquet"),
        ({"directory": pipeline / "rollouts", "to": "csv"}, "holds rollouts; use minari"),
        ({"directory": pipeline / "agent"}, "holds neither a result nor rollouts"),
        ({"directory": pipeline / "rollouts", "name": "no version"}, "--name no version: as in dreamlens/coinrun-v0"),
        ({"directory": tmp_path / "gone"}, "no such run directory"),
    ):
        with pytest.raises(UserError, match=said):
            main(ExportConfig(out=tmp_path / "out", **options))  # type: ignore[arg-type]
        assert not (tmp_path / "out").exists()


def test_rollouts_go_to_minari_and_come_back_without_a_lost_pixel(pipeline: Path, tmp_path: Path) -> None:
    main(ExportConfig(directory=pipeline / "rollouts", out=tmp_path / "minari"))
    assert artefacts.verify(tmp_path / "minari") == []
    meta = json.loads((tmp_path / "minari" / "data" / "metadata.json").read_text())
    back = ImportConfig(rollouts=tmp_path / "minari", agent=pipeline / "agent", out=tmp_path / "back", threads=1)
    import_rollouts.main(back)
    with RolloutStore(pipeline / "rollouts") as before, RolloutStore(tmp_path / "back") as after:
        assert len(before) == len(after) == meta["total_episodes"]
        assert meta["total_steps"] == before.steps.sum()
        for one, other in zip(before, after, strict=True):
            for name in one.obs:
                np.testing.assert_array_equal(one.obs[name], other.obs[name])
            np.testing.assert_array_equal(one.action, other.action)
            np.testing.assert_array_equal(one.reward, other.reward)
            assert one.terminated == other.terminated
            np.testing.assert_allclose(one.h[: len(other.h)], other.h, atol=1e-5)


def test_minari_itself_reads_what_is_written(pipeline: Path, tmp_path: Path) -> None:
    minari = pytest.importorskip("minari", reason="minari, an extra, is not installed")
    main(ExportConfig(directory=pipeline / "rollouts", name="dreamlens/coinrun-v3", out=tmp_path / "minari"))
    data = minari.MinariDataset(tmp_path / "minari" / "data")
    assert data.spec.dataset_id == "dreamlens/coinrun-v3"
    with RolloutStore(pipeline / "rollouts") as store:
        assert data.total_episodes == len(store) and data.total_steps == store.steps.sum()
        for mine, theirs in zip(store, data.iterate_episodes(), strict=True):
            np.testing.assert_array_equal(theirs.observations, mine.obs["frames"])
            np.testing.assert_array_equal(theirs.actions, mine.action)
            np.testing.assert_array_equal(theirs.rewards, mine.reward)
            assert theirs.terminations[-1] == mine.terminated and theirs.truncations[-1] == mine.truncated


# Figures


def test_figures_are_written_as_vectors_too_where_asked(tmp_path: Path) -> None:
    def drawn() -> set[str]:
        figure = figures.figure_of(2, 1)
        figure.subplots().plot([0, 1])
        figure.savefig(tmp_path / "a.png", dpi=50, metadata={"Software": None})
        return {p.name for p in tmp_path.iterdir()}

    assert drawn() == {"a.png"}
    token = figures.also.set(("pdf", "svg"))
    try:
        assert drawn() == {"a.png", "a.pdf", "a.svg"}
        before = {kind: (tmp_path / f"a.{kind}").read_bytes() for kind in ("pdf", "svg")}
        assert before["pdf"].startswith(b"%PDF") and b"<svg" in before["svg"]
    finally:
        figures.also.reset(token)


def test_the_flag_is_every_command_s(result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def noted(config: ExportConfig) -> None:
        seen.append((config.out, figures.also.get()))

    out = tmp_path / "out"
    words = [str(result), "--figures", "pdf", "svg", "--out", str(out)]
    cli.run(ExportConfig, noted, export.STAGE, words)
    cli.run(ExportConfig, noted, export.STAGE, [str(result), "--figures=svg", "--out", str(out)])
    cli.run(ExportConfig, noted, export.STAGE, [str(result), "--out", str(out)])
    assert seen == [(out, ("pdf", "svg")), (out, ("svg",)), (out, ())] and figures.also.get() == ()
    for wrong in (["--figures", "jpg"], ["--figures"]):
        with pytest.raises(SystemExit) as end:
            cli.run(ExportConfig, noted, export.STAGE, [*wrong, "--out", str(out)])
        assert end.value.code == 2 and "--figures takes pdf and svg" in capsys.readouterr().err
