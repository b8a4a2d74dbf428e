"""Views of other studies, of small but real runs: what they show is what the runs hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import env_states, life, life_phase
from analysis.probes import __main__ as probes
from analysis.target_functions import __main__ as targets
from core import config as cli
from core.artefacts import Result, new_run
from core.contracts import UserError
from tests.browser.test_panel import Address, LivePanel, Panel, serving
from tests.conftest import once
from validation.panel.__main__ import STAGE, PanelConfig, check, main, shown_of, write_panel
from validation.panel.page import PAGE
from validation.panel.server import HOST


@pytest.fixture(scope="module")
def page(extraction: Path, clusters: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clusters, lives, phases of life and probes of one extraction."""

    def make(root: Path) -> None:
        runs = root / "runs"
        of = [str(extraction), "--cluster_dir", str(clusters)]
        life.main(cli.parse(life.LifeConfig, [*of, "--num_agents", "2", "--out", str(runs / "life")], life.STAGE))
        argv = [*of, "--min_lifespan", "10", "--rotations", "99", "--resamples", "99", "--out", str(runs / "phases")]
        life_phase.main(cli.parse(life_phase.LifePhaseConfig, argv, life_phase.STAGE))
        argv = [str(extraction), "--targets", "self_health", "self_food", "--no-mlp", "--shuffles", "39"]
        argv += ["--resamples", "99", "--given", "tick", "--threads", "1", "--inputs", "h", "time"]
        probes.main(cli.parse(probes.ProbesConfig, [*argv, "--out", str(runs / "probes")], probes.STAGE))
        built = ["build", str(runs), str(clusters), "--out", str(root / "panel"), "--threads", "1"]
        main(cli.parse(PanelConfig, built, STAGE))

    return once(tmp_path_factory, "studies", make) / "panel" / PAGE


def open_at(browser: Any, page: Path, view: str, **more: Any) -> Panel:
    return Panel(browser, page, f"view={view}", **more)


def test_the_first_page_names_them_and_what_is_missing(browser: Any, page: Path) -> None:
    opened = open_at(browser, page, "answer")
    assert opened.tab.locator("#view-answer li").count() == 4
    opened.tab.click("text=Phases of life >> nth=0")
    opened.until("document.documentElement.dataset.ready === 'study_life_phase'")
    opened.close()


def test_studies_alone_are_served(browser: Any, clusters: Path, tmp_path: Path) -> None:
    """Of Neural MMO there is no simulator and so nothing live; the rest is there."""
    config = PanelConfig(task="serve", runs=(clusters,))
    about = shown_of(config)
    assert about.chosen is None
    with serving(
        lambda path, ended: write_panel(path, about, config, check(config), path, ended), tmp_path, None
    ) as served:
        address = Address(f"http://{HOST}:{served.port}/token/")
        opened = LivePanel(browser, address, "view=study_activations")  # type: ignore[arg-type]
        assert opened.tab.locator("#study_activations-points").is_visible()
        assert opened.tab.locator("#tabs a[data-view=live]").count() == 0
        opened.close()


def test_clusters_are_points_to_colour_and_point_at(browser: Any, page: Path, clusters: Path, tmp_path: Path) -> None:
    opened = open_at(browser, page, "study_activations")
    arrays = Result.load(clusters).arrays
    count = len(np.unique(arrays["label"]))
    box = opened.tab.locator("#study_activations-legend input")
    assert box.count() == count
    before = opened.pixels("study_activations-points")
    box.nth(count - 1).uncheck()
    assert opened.pixels("study_activations-points") != before
    box.nth(count - 1).check()
    assert opened.pixels("study_activations-points") == before
    opened.tab.select_option("#study_activations-colour", label="self_health")
    coloured = opened.pixels("study_activations-points")
    assert coloured != before
    opened.until("!writing")
    opened.tab.reload()
    opened.until("document.documentElement.dataset.ready === 'study_activations'")
    assert opened.pixels("study_activations-points") == coloured  # what was picked is in the address
    row = int(arrays["umap"][:, 0].argmax())  # the point at the right edge
    height = opened.tab.locator("#study_activations-points").bounding_box()["height"]
    low, high = arrays["umap"][:, 1].min(), arrays["umap"][:, 1].max()
    place = opened.tab.locator("#study_activations-points").bounding_box()
    y = height - 8 - (arrays["umap"][row, 1] - low) / (high - low) * (height - 16)
    opened.tab.mouse.move(place["x"] + place["width"] - 8, place["y"] + y)
    episode, step = arrays["index"][row]
    assert f"episode {episode}, step {step}" in opened.text("tip")
    opened.tab.screenshot(path=tmp_path / "clusters.png")
    opened.close()


def test_lives_and_phases_are_courses(browser: Any, page: Path, tmp_path: Path) -> None:
    opened = open_at(browser, page, "study_life")
    first = opened.pixels("study_life-courses")
    opened.tab.select_option("#study_life-which", "1")
    assert opened.pixels("study_life-courses") != first
    opened.tab.screenshot(path=tmp_path / "life.png")
    opened.go("view=study_life_phase")
    place = opened.tab.locator("#study_life_phase-courses").bounding_box()
    opened.tab.mouse.move(place["x"] + place["width"] / 2, place["y"] + 50)
    assert re.search(r"cluster 0: [\d.]+ \[[\d.]+, [\d.]+\]", opened.text("tip")) and "n = " in opened.text("tip")
    opened.tab.screenshot(path=tmp_path / "phases.png")
    opened.close()


def test_what_probes_read_has_its_interval(browser: Any, page: Path, tmp_path: Path) -> None:
    opened = open_at(browser, page, "study_probes")
    row = Result.load(page.parent.parent / "runs" / "probes").tables["targets"][0]
    place = opened.tab.locator("#study_probes-bars").bounding_box()
    opened.tab.mouse.move(place["x"] + 200, place["y"] + 8)
    tip = opened.text("tip")
    assert f"{row['target']}, linear probe" in tip and "95 % interval" in tip and f"n = {row['n']}" in tip
    shown = float(tip.splitlines()[1].split()[0].replace("−", "-"))
    assert shown == pytest.approx(row["linear"], abs=0.0006)
    assert "python -m analysis.probes --config" in opened.tab.locator("#view-study_probes .line-of").inner_text()
    inputs = Result.load(page.parent.parent / "runs" / "probes").tables["inputs"]
    fits = "t => t.scrollWidth <= t.clientWidth"
    assert opened.tab.locator("#view-study_probes .scroll", has_text="beyond what is given").first.evaluate(fits)
    said = opened.tab.locator("table", has_text="What each input says")
    assert said.locator("tbody tr").count() == len(inputs)
    assert said.evaluate("t => t.scrollWidth <= innerWidth")  # no column beyond the window
    for picture in opened.tab.locator("#view-study_probes img").all():  # they load when they are scrolled to
        picture.scroll_into_view_if_needed()
        assert picture.evaluate("i => i.decode().then(() => i.naturalWidth)") > 100
    opened.tab.screenshot(path=tmp_path / "probes.png")
    opened.close()


def test_an_interval_that_reaches_far_below_does_not_squeeze_the_bars(browser: Any, page: Path) -> None:
    opened = open_at(browser, page, "study_probes")
    drawn = """least => {
        const into = document.createElement("div");
        document.body.append(into);
        const rows = [{ name: "", n: 1, bars: [["", .5, -6, .9]] }];
        studyBars("tried", { title: "", unit: "", least, rows }, into)();
        return into.querySelector("canvas").dataset.from;
    }"""
    assert [float(opened.tab.evaluate(drawn, least)) for least in (-1, None)] == [-1, -6]
    opened.close()


@pytest.mark.parametrize("view", ["study_activations", "study_life", "study_probes"])
def test_studies_fit_a_phone(browser: Any, page: Path, view: str) -> None:
    opened = open_at(browser, page, view, width=390)
    assert opened.tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    opened.close()


def test_one_study_says_what_makes_the_others(clusters: Path, extraction: Path, tmp_path: Path) -> None:
    main(cli.parse(PanelConfig, ["build", str(clusters), "--out", str(tmp_path / "out")], STAGE))
    text = re.sub(r"</?i>", "", (tmp_path / "out" / PAGE).read_text())
    for stage in ("life", "life_phase", "probes"):
        assert f"python -m analysis.{stage} {extraction}" in text
    assert f"--cluster_dir {clusters}" in text


def test_a_run_of_an_earlier_version_says_what_it_lacks(extraction: Path, tmp_path: Path) -> None:
    with new_run(tmp_path / "old", "activations", {}, {"activations": extraction}) as run:
        Result(arrays={"label": np.zeros(3, np.int64)}).save(run.path)
    main(cli.parse(PanelConfig, ["build", str(tmp_path / "old"), "--out", str(tmp_path / "out")], STAGE))
    assert "it has no index, features. The command above makes it again" in (tmp_path / "out" / PAGE).read_text()


def test_learning_curves_and_matches_are_shown(tmp_path: Path) -> None:
    """A run of curves alone was said to be of an earlier version, and what matches was on no page."""
    ends = {"method": "ppo <b>", "game": "coinrun", "split": "train", "seeds": 1, "return": 7.5, "steps": 100.0}
    matches = [
        {"description": "in mid air", "verdict": "not seen", "share": 0.0},
        {"description": "at the end", "verdict": "match", "code": 1, "phi": 0.5, "low": 0.4, "high": 0.6},
    ]
    for name, tables, notes in (
        ("curves", {"curve_ends": [ends]}, {}),
        ("matches", {"matches": matches}, {"names": {"0": "a", "1": "runs & jumps"}, "states": 3}),
    ):
        with new_run(tmp_path / "runs" / name, "semantics", {}) as run:
            codes = {"tsne_index": np.zeros((3, 2), np.int64), "code": np.zeros(3, np.int64)}
            maps = {key: np.zeros((3, 2), np.float32) for key in ("plane", "tsne")}
            Result(tables=tables, notes=notes, arrays={**codes, **maps} if notes else {}).save(run.path)
    main(cli.parse(PanelConfig, ["build", str(tmp_path / "runs"), "--out", str(tmp_path / "out")], STAGE))
    text = (tmp_path / "out" / PAGE).read_text()
    assert "An earlier version" not in text and "ppo &lt;b&gt;" in text and "Where learning curves end" in text
    row = re.search("<tr><td[^>]*><span>at the end.*?</tr>", text)
    assert row is not None and "runs &amp; jumps" in row[0] and "0.5" in row[0]


def test_studies_alone_have_no_samples(clusters: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="shows samples of an agent; these runs have none"):
        main(cli.parse(PanelConfig, ["build", str(clusters), "--only", "1", "--out", str(tmp_path / "out")], STAGE))
    assert not list(tmp_path.iterdir())


# Of an agent and its simulator


@pytest.fixture(scope="module")
def simulated(panel_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A panel of the agent's runs, with its simulator's states and target functions beside them."""

    def make(root: Path) -> None:
        runs, preset = root / "runs", ["--preset", "debug", "--threads", "1"]
        of = [*preset, "--simulator", str(panel_runs / "simulator"), "--rollouts", str(panel_runs / "rollouts")]
        argv = ["precompute", *of, "--samples", str(panel_runs / "samples"), "--out", str(runs / "env_states")]
        env_states.main(cli.parse(env_states.EnvStatesConfig, argv, env_states.STAGE))
        few = [
            "--maximise",
            "value_drop",
            "--minimise",
            "value_drop",
            "--samples",
            "2",
            "--steps",
            "4",
            "--iterations",
            "2",
            "--screen",
            "2",
            "--noisy",
            "2",
            "--drawn",
            "0",
        ]
        argv = [*of, *few, "--out", str(runs / "target_functions")]
        targets.main(cli.parse(targets.TargetFunctionsConfig, argv, targets.STAGE))
        built = ["build", str(panel_runs), str(runs), "--single_file", "--out", str(root / "panel"), "--threads", "1"]
        main(cli.parse(PanelConfig, built, STAGE))

    return once(tmp_path_factory, "simulated_studies", make) / "panel" / PAGE


def test_states_of_the_world_are_points(browser: Any, simulated: Path, tmp_path: Path) -> None:
    opened = open_at(browser, simulated, "study_env_states")
    before = opened.pixels("study_env_states-points")
    opened.tab.select_option("#study_env_states-map", label="pca:0 and 1")
    assert opened.pixels("study_env_states-points") != before
    opened.tab.select_option("#study_env_states-colour", label="source")
    assert opened.tab.locator("#study_env_states-legend label").all_inner_texts() == ["real", "simulated"]
    opened.tab.screenshot(path=tmp_path / "env_states.png")
    opened.go("view=more")
    said = opened.tab.locator("#view-more").inner_text()
    assert "python -m analysis.latents --simulator" in said and "analysis.env_states" not in said
    opened.close()


def test_a_target_function_is_picked(browser: Any, simulated: Path, tmp_path: Path) -> None:
    opened = open_at(browser, simulated, "study_target_functions")
    names = opened.tab.locator("#study_target_functions-target option").all_inner_texts()
    told = Result.load(simulated.parent.parent / "runs" / "target_functions").notes["targets"]
    assert [name.rpartition(" ")[0] for name in names] == [about["name"] for about in told.values()]
    before = opened.pixels("study_target_functions-trace")
    opened.tab.select_option("#study_target_functions-target", str(len(names) - 1))
    opened.until(f"document.getElementById('study_target_functions-trace').toDataURL() !== {before!r}")
    opened.tab.select_option("#study_target_functions-start", "1")
    opened.tab.screenshot(path=tmp_path / "targets.png")
    opened.close()


# Of a semantic policy


@pytest.fixture(scope="module")
def semantic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from analysis.semantics import __main__ as semantics
    from tests.stages.test_semantics import config_of, make_run

    made = once(tmp_path_factory, "semantics", make_run)

    def make(root: Path) -> None:
        semantics.main(config_of(made, root / "runs" / "semantics", "embeddings", "quality"))
        main(cli.parse(PanelConfig, ["build", str(root / "runs"), "--out", str(root / "panel")], STAGE))

    return once(tmp_path_factory, "semantic_study", make) / "panel" / PAGE


def test_codes_are_points_with_their_names(browser: Any, semantic: Path, tmp_path: Path) -> None:
    opened = open_at(browser, semantic, "study_semantics")
    result = Result.load(semantic.parent.parent / "runs" / "semantics")
    there = [result.notes["names"][str(c)] for c in np.unique(result.arrays["code"])]
    assert opened.tab.locator("#study_semantics-legend label").all_inner_texts() == there
    before = opened.pixels("study_semantics-points")
    opened.tab.select_option("#study_semantics-map", "1")
    assert opened.pixels("study_semantics-points") != before
    assert opened.tab.locator("#view-study_semantics table").count() >= 3
    opened.tab.screenshot(path=tmp_path / "semantics.png")
    opened.close()
