"""The activations stage, run as a script on a small extraction with a planted behaviour, and given bad input."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from analysis.activations import __main__ as activations, described
from analysis.activations.config import ActivationsConfig
from analysis.activations.dendrogram import page
from analysis.activations.records import read
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import EnvSpec, Field, UserError
from core.episodes import Episode, RolloutStore, StoreWriter

FEATURES = (
    "n_visible_entities", "n_visible_npcs", "n_visible_players", "self_health", "self_food", "self_water", "self_gold",
    "max_combat_level", "in_combat", "n_inventory_items", "tick", "is_moving", "is_attacking", "is_trading",
)  # fmt: skip
LIVES, UNITS = 24, 9
SMALL = ("--permutations", 99, "--resamples", 50, "--refits", 1, "--surrogates", 2, "--threads", 1)
METRICS = {"pca_pairs.png", "pca_feature_correlations.png", "pca_feature_profiles.png", "feature_scatter.png"}
MAPS = {"umap_scatter.png", "cluster_features.png", "umap_metric_scatter.png", "umap_pairs.png"}


def write_extraction(
    path: Path, *, fights: bool = True, rows: int = 60, nan: bool = False, columns: Sequence[str] = FEATURES
) -> Path:
    """Lives of agents that fight now and then, which their activations show; or not."""
    rng = np.random.default_rng(0)
    centre = 5.0 * rng.standard_normal((2, UNITS))
    spec = EnvSpec(env_id="nmmo", obs={"Tick": Field(shape=(1,), dtype="int16")}, action_names=("stay", "go"), slots=4)
    with artefacts.new_run(path, "extract_activations", {}) as run:
        with StoreWriter(run.path) as writer:
            for e in range(LIVES):
                t = np.arange(rows - 7 * (e % 3))
                state = (rng.random(len(t) // 10 + 1) < 0.5).repeat(10)[: len(t)]
                features = rng.standard_normal((len(t), len(FEATURES)))
                features[:, FEATURES.index("tick")] = t
                features[:, FEATURES.index("is_attacking")] = state & (rng.random(len(t)) < 0.8)
                features[:, FEATURES.index("is_trading")] = 0
                h = centre[state.astype(int)] * fights + rng.standard_normal((len(t), UNITS))
                if nan and e == 5:
                    h[3, 2] = np.nan
                zero = np.zeros(len(t), np.float32)
                writer.add(
                    Episode(
                        obs={"Tick": t[:, None].astype(np.int16)},
                        h=h.astype(np.float32),
                        value=zero,
                        action=np.zeros((len(t), 3), np.int64),
                        reward=zero,
                        terminated=True,
                        truncated=False,
                        truth={
                            "features": features[:, : len(columns)].astype(np.float32),
                            "position": rng.integers(16, 144, (len(t), 2)).astype(np.int16),
                        },
                        meta={"seed": 0, "world": e // 8, "map": 1, "agent": e % 8, "policy": "test", "first_tick": 0},
                    )
                )
        artefacts.write_json(run.path / "spec.json", spec.to_json())
        np.save(run.path / "map_1.npy", np.zeros((160, 160), np.uint8))
        run.facts = {"agent": "a1", "policy": "test", "features": list(columns)}
    return path


def run(*argv: object) -> None:
    cli.run(ActivationsConfig, activations.main, activations.STAGE, [*map(str, argv)])


@pytest.fixture(scope="module")
def extraction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_extraction(tmp_path_factory.mktemp("extraction") / "lives")


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_extraction(tmp_path_factory.mktemp("noise") / "lives", fights=False, rows=24)


@pytest.fixture(scope="module")
def clusters(extraction: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("clusters") / "clusters"
    run(extraction, "--out", out, "--subsample", 3, *SMALL)
    return out


def test_everything_is_written_and_says_behaviour(extraction: Path, clusters: Path) -> None:
    assert artefacts.verify(clusters) == []
    assert {p.name for p in clusters.glob("*.png")} == METRICS | MAPS
    manifest = artefacts.read_manifest(clusters, "activations")
    assert manifest["inputs"]["activations"]["manifest_sha256"] == artefacts.sha256(extraction / "manifest.json")
    assert manifest["facts"]["policy"] == "test"
    result = Result.load(clusters)
    n = len(result.arrays["index"])
    assert {k: result.arrays[k].shape for k in ("label", "umap", "umap_10", "features", "place")} == {
        "label": (n,), "umap": (n, 2), "umap_10": (n, UNITS), "features": (n, 14), "place": (n, 3),
    }  # fmt: skip
    assert result.arrays["label"].dtype == result.arrays["tree_parent"].dtype == np.int64
    assert result.notes["verdict"] == "behaviour" and result.scalars["dbcv"]["value"] > 0.3
    assert result.notes["clusters_are"] == "not compared: at least 39 --surrogates are needed"
    assert {row["surrogate"] for row in result.tables["surrogates"]} == {"gaussian", "markov"}
    assert "is_attacking" in result.notes["verdicts"]["0"]["why"]
    assert result.scalars["transition_rate"]["interval"][1] < result.scalars["transition_rate_floor"]["value"]
    assert len(result.tables["effects"]) == (14 + 3) * len(result.tables["clusters"])
    assert {row["cluster"] for row in result.tables["moments"]} == set(range(len(result.tables["clusters"])))
    assert "Moments of every cluster" in (clusters / "moments.html").read_text()
    with open(clusters / "effects.csv") as file:
        assert {"d", "low", "high", "p", "q", "beyond", "beyond_q"} <= set(next(csv.DictReader(file)))


def test_rows_are_every_third_of_each_life_from_its_first(extraction: Path, clusters: Path) -> None:
    arrays = Result.load(clusters).arrays
    store = RolloutStore(extraction)
    expected = [(e, t) for e in range(LIVES) for t in range(0, store.steps[e], 3)]
    assert arrays["index"].tolist() == [list(row) for row in expected]
    life = store.episode(7)
    mine = arrays["index"][:, 0] == 7
    np.testing.assert_array_equal(arrays["features"][mine], life.truth["features"][::3])
    np.testing.assert_array_equal(arrays["place"][mine][:, :2], life.truth["position"][::3])
    np.testing.assert_allclose(arrays["features_rolling"][mine][5], life.truth["features"][6:16].mean(0), atol=1e-5)
    assert np.ptp(arrays["share"]) < 1


def test_rows_before_the_first_tick_and_lives_without_later_ones_are_left_out(extraction: Path) -> None:
    whole, late = read(extraction, 3, 10), read(extraction, 3, 10, 50)
    assert whole.index_N2[:, 1].min() == 0 and late.index_N2[:, 1].min() == 50
    assert set(late.index_N2[:, 0]) == {e for e in range(LIVES) if 60 - 7 * (e % 3) > 50}
    every = read(extraction, 1, 10)
    at = {tuple(i): row for row, i in enumerate(every.index_N2.tolist())}
    rows = [at[tuple(i)] for i in late.index_N2.tolist()]
    np.testing.assert_array_equal(every.h_NH[rows], late.h_NH)
    np.testing.assert_array_equal(every.rolling_NF[rows], late.rolling_NF)
    np.testing.assert_array_equal(every.lives.share_N[rows], late.lives.share_N)
    assert whole.worlds == 3
    with pytest.raises(UserError, match="no lives of more than --first_tick 60"):
        read(extraction, 3, 10, 60)


def test_the_dendrogram_is_of_these_clusters(clusters: Path) -> None:
    html = (clusters / "dendrogram_explorer.html").read_text()
    assert html == page(Result.load(clusters)) and "<html" in html


def test_clustered_before_the_map(
    extraction: Path, clusters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The map is the same, seed for seed; the clusters are of the components."""
    flags = ("--cluster-before-umap", "--pre-cluster-dims", 4, "--subsample", 3)
    run(extraction, "--out", tmp_path / "out", *flags, *SMALL)
    assert "said of these lives of 3 worlds" in capsys.readouterr().out
    found, map_clusters = Result.load(tmp_path / "out"), Result.load(clusters)
    np.testing.assert_array_equal(found.arrays["umap"], map_clusters.arrays["umap"])
    assert found.notes["clustered"] == "4 principal components" and found.notes["verdict"] == "behaviour"
    assert not np.array_equal(found.arrays["tree_lambda"], map_clusters.arrays["tree_lambda"])


def test_no_clusters_are_said_and_the_rest_is_written(
    noise: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--cluster_before_umap", "--subsample", 2, "--hdbscan_min_cluster", 40)
    run(noise, "--out", tmp_path / "out", *flags, *SMALL)
    assert "verdict: no clusters (HDBSCAN finds none" in capsys.readouterr().out
    result = Result.load(tmp_path / "out")
    assert (result.arrays["label"] == -1).all() and result.scalars["noise_share"]["value"] == 1
    assert result.tables["clusters"] == []
    assert {p.name for p in (tmp_path / "out").glob("*.png")} == METRICS | MAPS
    assert (tmp_path / "out" / "dendrogram_explorer.html").exists()


def test_metrics_only(extraction: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(extraction, "--out", tmp_path / "out", "--metric-only", "--threads", 1)
    assert {p.name for p in (tmp_path / "out").glob("*.png")} == METRICS
    result = Result.load(tmp_path / "out")
    assert not {"label", "umap", "tree_parent"} & set(result.arrays) and "verdict" not in result.notes
    assert not (tmp_path / "out" / "dendrogram_explorer.html").exists()
    assert "components hold" in capsys.readouterr().out
    best = max((r for r in result.tables["pca_r2"] if r["kind"] == "feature" and r["r2"]), key=lambda r: r["r2"])
    assert best["name"] == "is_attacking"


@pytest.mark.parametrize(
    ("kind", "flags", "says"),
    [
        ("missing", (), "no such run directory"),
        ("another stage", (), "written by stage 'train'; a 'extract_activations' directory is needed"),
        ("nan", (), "episode 5 has NaN or infinite values in 'h'"),
        ("features", (), "2 features, but 14 names"),
        (
            "few",
            ("--hdbscan_min_cluster", 500),
            "are fewer than --hdbscan_min_cluster 500: keep more (--subsample 10 now)",
        ),
        ("few", ("--umap_neighbors", 400), "rows are too few for a map of 400 neighbours (--umap-neighbors)"),
        ("few", ("--point", "cell"), "has h; record more with analysis.extract_activations --points"),
        ("few", ("--subsample", 0), "--subsample must be at least 1"),
        ("few", ("--min_dist", 2), "--min_dist must lie between 0 and 1"),
        ("few", ("--hdbscan_min_cluster", 4), "--hdbscan_min_cluster must be at least 5"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    kind: str,
    flags: tuple[object, ...],
    says: str,
    extraction: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tmp_path / "in"
    if kind == "another stage":
        with artefacts.new_run(tmp_path / "in", "train", {}):
            pass
    elif kind == "few":
        source = extraction
    elif kind == "nan":
        write_extraction(tmp_path / "in", nan=True)
    elif kind == "features":
        write_extraction(tmp_path / "in", columns=FEATURES[:2])
        about = artefacts.read_manifest(tmp_path / "in")
        facts = about["facts"] | {"features": list(FEATURES)}
        artefacts.Run(path=tmp_path / "in", stage=about["stage"], config={}, facts=facts).finish()
    with pytest.raises(SystemExit) as ended:
        run(source, "--out", tmp_path / "out", *flags, *SMALL)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert says in line
    assert not (tmp_path / "out").exists()


def test_activations_that_never_change_are_refused(extraction: Path) -> None:
    records = read(extraction, 10, 10)
    records.h_NH[:] = 1
    with pytest.raises(UserError, match="the activations never change"):
        described.analyse(records, ActivationsConfig(metric_only=True))
