"""The life stages on a made-up extraction and its clusters."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from analysis import life, life_phase, replay
from analysis.lives import world_replay
from core import config as cli
from core.artefacts import Result, new_run, read_manifest, verify
from core.contracts import UserError
from core.episodes import RolloutStore
from core.pages import UNLABELLED, label_name
from tests.conftest import write_extraction

CONFIGS = {life: "LifeConfig", life_phase: "LifePhaseConfig", replay: "ReplayConfig"}
QUICK = ["--resamples", "99", "--rotations", "99"]


def run(stage: ModuleType, *argv: object) -> None:
    """Parse as the script would and run."""
    stage.main(cli.parse(getattr(stage, CONFIGS[stage]), [str(a) for a in argv], stage.STAGE))


def test_the_p75_life_with_its_clusters(
    extraction: Path, clusters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "life"
    run(life, extraction, "--cluster_dir", clusters, "--out", out)
    result = Result.load(out)
    (lived,) = result.tables["lives"]
    with RolloutStore(extraction) as store:
        e = lived["episode"]
        assert store.steps[e] == lived["lifespan"] == pytest.approx(np.quantile(store.steps, 0.75), abs=3)
        features = store.episode(e).truth["features"]
    assert result.scalars["lifespan_p75"]["n"] == 24 and len(result.scalars["lifespan_p75"]["interval"]) == 2
    rows = result.tables["timeline"]
    assert len(rows) == lived["lifespan"] and (out / f"life_{e}.png").stat().st_size > 20_000
    names = read_manifest(extraction)["facts"]["features"]
    np.testing.assert_array_equal([row["self_food"] for row in rows], features[:, names.index("self_food")])
    food = features[:, names.index("self_food")]
    assert sum(row["eating"] for row in rows) == (np.diff(food) > 0).sum() == lived["eating_ticks"] > 0
    labelled = Result.load(clusters).arrays
    mine = labelled["index"][:, 0] == e
    assert [row["t"] for row in rows if row["clustered"]] == labelled["index"][mine, 1].tolist()
    assert [row["label"] for row in rows if row["clustered"]] == labelled["label"][mine].tolist()
    assert not verify(out)
    said = capsys.readouterr().out
    assert lived["last_label"] == rows[-1]["label"]
    assert f"{lived['lifespan']} ticks, {lived['ended']}, at the end {label_name(lived['last_label'])}\n" in said


def test_several_lives_without_labels_between(extraction: Path, clusters: Path, tmp_path: Path) -> None:
    out = tmp_path / "lives"
    run(life, extraction, "--cluster_dir", clusters, "--num_agents", 3, "--between", "none", "--out", out)
    result = Result.load(out)
    assert len(result.tables["lives"]) == 3 and (out / "lives.png").exists()
    assert all((row["label"] == UNLABELLED) == (not row["clustered"]) for row in result.tables["timeline"])


def test_a_single_life_has_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(life, write_extraction(tmp_path / "one", parts=1, worlds=1, players=1), "--out", tmp_path / "life")
    assert "75 % of 1 lives last at most" in capsys.readouterr().out


def test_few_lives_have_no_upper_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(life, write_extraction(tmp_path / "few", parts=1, worlds=1, players=6), "--out", tmp_path / "life")
    low, high = Result.load(tmp_path / "life").scalars["lifespan_p75"]["interval"]
    assert low is not None and high is None
    assert f"[{low:.0f}, ?], few; drawn" in capsys.readouterr().out


def test_a_life_without_clusters(extraction: Path, tmp_path: Path) -> None:
    run(life, extraction, "--episodes", 5, 2, "--out", tmp_path / "life")
    result = Result.load(tmp_path / "life")
    assert [row["episode"] for row in result.tables["lives"]] == [5, 2]
    assert "label" not in result.tables["timeline"][0]


def test_phases_of_life(extraction: Path, clusters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "phase"
    run(life_phase, extraction, "--cluster_dir", clusters, "--n_bins", 5, "--min_lifespan", 45, "--out", out, *QUICK)
    result = Result.load(out)
    with RolloutStore(extraction) as store:
        long = int((store.steps >= 45).sum())
    assert 2 < long < 24
    assert result.notes["lives"] == long and result.notes["lives_too_short"] == 24 - long
    assert result.arrays["share"].shape[1] == 5
    rows = {row["label"]: row for row in result.tables["clusters"]}
    # conftest planted two labels that are the halves of a life, and one that is anywhere
    assert sorted(row["q"] <= 0.05 for label, row in rows.items() if label >= 0) == [False, True, True]
    assert result.scalars["phase_share_from_time"]["value"] > 0.2
    assert {p.name for p in out.glob("*.png")} == {"life_phase.png", "life_phase_clusters.png", "life_ends.png"}
    assert not verify(out)
    said = capsys.readouterr().out
    assert f"{long} lives of at least 45 ticks" in said and "2 of 4 labels follow phase" in said


def test_worlds_as_the_unit(extraction: Path, clusters: Path, tmp_path: Path) -> None:
    run(
        life_phase, extraction, "--cluster_dir", clusters, "--unit", "worlds", "--out", tmp_path / "w", *QUICK,
        "--min_lifespan", 1,
    )  # fmt: skip
    result = Result.load(tmp_path / "w")
    assert result.scalars["died"]["n"] == 4 and result.tables["ends"][0]["units"] == 4
    assert result.notes["lives"] == 24


def test_a_replay_of_one_world(extraction: Path, clusters: Path, tmp_path: Path) -> None:
    out = tmp_path / "replay"
    run(replay, extraction, "--cluster_dir", clusters, "--world", 3, "--out", out)
    assert (out / "replay.html").stat().st_size > 20_000 and not verify(out)
    with RolloutStore(extraction) as store:
        mine = world_replay.lives_of(store, 3)
        assert mine == list(range(18, 24))  # second world of the second part
        shown = world_replay.replay_of(store, 3, None, "nearest")
        assert shown.labels == {} and shown.agent_A.tolist() == [1, 2, 3, 4, 5, 6]
        for a, e in enumerate(mine):
            episode = store.episode(e)
            np.testing.assert_array_equal(shown.row_TA[: episode.steps, a], episode.truth["position"][:, 0])
            assert (shown.row_TA[episode.steps :, a] == -1).all()
            np.testing.assert_array_equal(shown.values["value"][: episode.steps, a], episode.value)


@pytest.mark.parametrize("stage", CONFIGS)
def test_clusters_of_another_extraction_are_refused(
    stage: ModuleType, other_extraction: Path, clusters: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="of another extraction"):
        run(stage, other_extraction, "--cluster_dir", clusters, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_extraction_that_moved_is_still_the_same(extraction: Path, clusters: Path, tmp_path: Path) -> None:
    shutil.copytree(extraction, tmp_path / "moved")
    run(life, tmp_path / "moved", "--cluster_dir", clusters, "--out", tmp_path / "life")
    assert Result.load(tmp_path / "life").tables["timeline"][0]["clustered"] == 1


@pytest.mark.parametrize(
    ("stage", "flags", "says"),
    [
        (life, ["--num_agents", 25], "only 24 lives"),
        (life, ["--episodes", 24], "0 to 23"),
        (life, ["--num_agents", 2, "--episodes", 1], "give one of them"),
        (life_phase, ["--min_lifespan", 500], "smaller --min_lifespan"),
        (life_phase, ["--n_bins", 1], "--n_bins"),
        (life_phase, ["--rotations", 5], "--rotations"),
        (replay, ["--world", 4], "0 to 3"),
    ],
)
def test_mistakes_leave_nothing_behind(
    stage: ModuleType, flags: list[object], says: str, extraction: Path, clusters: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says):
        run(stage, extraction, "--cluster_dir", clusters, "--out", tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()


def test_what_is_no_extraction_or_no_clustering_is_refused(extraction: Path, clusters: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no rollouts"):
        run(life, clusters, "--out", tmp_path / "out")
    with pytest.raises(UserError, match="'activations' directory is needed"):
        run(life, extraction, "--cluster_dir", extraction, "--out", tmp_path / "out")


def test_no_clusters_have_no_phase(extraction: Path, clusters: Path, tmp_path: Path) -> None:
    """A clustering that found none is a result, but there is nothing to ask of it."""
    none = tmp_path / "none"
    with new_run(none, "activations", {}, {"activations": extraction}) as made:
        arrays = Result.load(clusters).arrays
        Result(arrays={"index": arrays["index"], "label": np.full(len(arrays["label"]), -1)}).save(made.path)
    with pytest.raises(UserError, match="has no clusters"):
        run(life_phase, extraction, "--cluster_dir", none, "--out", tmp_path / "phase", *QUICK)
    assert not (tmp_path / "phase").exists()
