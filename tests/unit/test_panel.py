"""The panel's page as a file: what it holds is what the runs hold, nothing in it asks anybody for anything, and a
mistake leaves nothing behind."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

from agents.load import load_agent
from analysis.saliency import maps
from analysis.saliency.__main__ import SaliencyConfig, main as saliency
from core import config as cli
from core.artefacts import MANIFEST, Result, new_run, read_manifest, sealed, sha256, write_json
from core.contracts import UserError
from core.directions import fingerprint, load_basis
from core.episodes import RolloutStore
from generative.record_samples import RecordSamplesConfig, main as record_samples
from tests.conftest import write_agent
from tests.panel_runs import NAMES, SAMPLES, STEPS, K, write_directions
from validation.panel.__main__ import STAGE, PanelConfig, ViewName, check, main, shown_of, write_panel
from validation.panel.contents import contents, together
from validation.panel.first import _evidence, lighter, sentences
from validation.panel.page import PAGE
from validation.panel.server import files_in, put_names, serve


def facts_in(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page, re.S)
    assert found
    return dict(json.loads(found[1]))


def block(page: str, name: str, packed: bool = True) -> bytes:
    found = re.search(rf'<script type="text/plain" id="b:{re.escape(name)}">(.*?)</script>', page)
    assert found, name
    data = base64.b64decode(found[1])
    return zlib.decompress(data) if packed else data


def test_courses_are_those_of_the_samples(panel_page: Path, panel_runs: Path) -> None:
    page = panel_page.read_text()
    facts = facts_in(page)
    with RolloutStore(panel_runs / "samples") as store:
        episodes = [store.episode(i) for i in range(SAMPLES)]
    value = np.frombuffer(block(page, "samples:value"), "<f4").reshape(SAMPLES, STEPS + 1)
    action = np.frombuffer(block(page, "samples:action"), "<i2").reshape(SAMPLES, STEPS + 1)
    c = np.frombuffer(block(page, "samples:c:ica"), "<i2").reshape(SAMPLES, STEPS + 1, K)
    basis = load_basis(panel_runs / "hidden_states", "ica")
    for n, episode in enumerate(episodes):
        assert np.array_equal(value[n], episode.value)
        assert np.array_equal(action[n], [*episode.action, -1])  # nothing was done after the last frame
        import torch

        for k, (low, step) in enumerate(facts["bases"]["ica"]["samples"]):
            said = low + (c[n, :, k].astype(float) + 32767) * step
            assert np.allclose(said, basis.project(torch.from_numpy(episode.h))[:, k].numpy(), atol=0.51 * step + 1e-6)
    label = np.frombuffer(block(page, "samples:label"), "<i2").reshape(SAMPLES, STEPS + 1)
    assert (label[:, :4] == 0).all() and (label[:, 4:STEPS] == 1).all() and (label[:, STEPS] == -1).all()


def test_frames_are_those_of_the_sample_and_of_its_real_episode(panel_page: Path, panel_runs: Path) -> None:
    page = panel_page.read_text()
    facts = facts_in(page)
    with RolloutStore(panel_runs / "samples") as store, RolloutStore(panel_runs / "rollouts") as real:
        frames = store.episode(1).obs["frames"]
        episode, first = facts["real"]["start"][1]
        beside = real.episode(episode).obs["frames"][first:]
        start = store.meta(1)["start"]
    assert episode == start[0] and first >= start[1]
    for name, want in (("frames:1", frames), ("real:1", beside)):
        with Image.open(io.BytesIO(block(page, name, packed=False))) as image:
            sheet = np.asarray(image.convert("RGB")).astype(float)
        for t in range(min(3, len(want))):
            assert np.abs(sheet[:64, t * 64 : t * 64 + 64] - want[t]).mean() < 12, (name, t)  # WebP is not exact


def test_maps_are_the_gradients_in_shades(panel_page: Path, panel_runs: Path, tmp_path: Path) -> None:
    """What the page holds in eight bits against the gradients of the same stage in full."""
    page = panel_page.read_text()
    told = facts_in(page)["saliency"]
    saliency(SaliencyConfig(
        simulator=panel_runs / "simulator", samples=panel_runs / "samples", out=tmp_path / "full",
        sample_ids=("0", "to", "4"), quantities=("action", "value"), methods=(), steps=STEPS, video=False, threads=1,
    ))  # fmt: skip
    full = Result.load(tmp_path / "full").arrays
    size = len(told["parts"]), told["steps"], 64, 64
    assert told["parts"] == ["whole/action", "whole/value", *(f"whole/ica:{k}" for k in range(K)),
                             "agent_only/action", "agent_only/value"]  # fmt: skip
    for s, i in enumerate(told["ids"]):
        shades = np.frombuffer(block(page, f"maps:{i}"), np.int8).reshape(size)
        for part, suffix in (("whole", ""), ("agent_only", "_agent_only")):
            for q in ("action", "value"):
                grad = full[f"grad_frames_{q}{suffix}"][s].sum(-1)[: told["steps"]]
                scale = told["scale"][f"{part}/{q}"][s]
                said = shades[told["parts"].index(f"{part}/{q}")] * scale
                assert np.abs(said - grad).max() <= 0.56 * scale + 1e-12
    assert facts_in(page)["bases"]["ica"]["gradients"] is not None


def test_eight_bits_are_right_to_half_a_step() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 2, 5, 4)).astype(np.float32)
    x[2] = 0
    levels, step = maps.quantised(x)
    assert levels.dtype == np.int8 and step[2] == 0 and not levels[2].any()
    assert (np.abs(levels * step[:, None, None, None] - x) <= step[:, None, None, None] / 2 + 1e-7).all()
    assert (np.abs(levels[:2]).reshape(2, -1).max(1) == maps.LEVELS).all()


def test_nothing_is_asked_of_anybody_and_only_this_script_runs(panel_page: Path) -> None:
    page = panel_page.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy[1].replace("&#x27;", "'").split(";"))
    assert rules["default-src"] == "'none'" and "connect-src" not in rules
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}' 'self'"
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page


def test_text_of_files_is_no_markup(panel_page: Path) -> None:
    page = panel_page.read_text()
    assert NAMES[0] not in page  # <b> is escaped wherever it stands
    assert any(b["name"] == NAMES[0] for b in facts_in(page)["behaviours"])


def test_parts_beside_the_page_hold_what_the_single_file_holds(
    panel_page: Path, panel_runs: Path, tmp_path: Path
) -> None:
    main(cli.parse(PanelConfig, ["build", str(panel_runs), "--out", str(tmp_path / "parts"), "--threads", "1"], STAGE))
    page = (tmp_path / "parts" / PAGE).read_text()
    assert 'id="b:frames:1"' not in page and 'id="b:samples:c:ica"' in page
    part = (tmp_path / "parts" / "data" / "maps_1.js").read_text()
    assert zlib.decompress(base64.b64decode(part.split('"')[3])) == block(panel_page.read_text(), "maps:1")


def test_a_figure_holds_its_samples_and_nothing_else(panel_runs: Path, tmp_path: Path) -> None:
    argv = ["build", str(panel_runs), "--only", "3", "1", "--view", "film", "--out", str(tmp_path / "figure")]
    main(cli.parse(PanelConfig, argv, STAGE))
    page = (tmp_path / "figure" / PAGE).read_text()
    assert facts_in(page)["samples"]["ids"] == [3, 1] and 'id="b:frames:2"' not in page
    assert len(page) < 2_000_000 and "What was asked" not in page


OF_A_VIEW = {  # the kinds of blocks, beside the courses of its samples
    "film": {"frames"}, "saliency": {"frames", "maps"}, "path": {"base"}, "courses": set(), "bars": {"gradients"},
    "all": {"frames", "maps", "base", "gradients"},
}  # fmt: skip


@pytest.mark.parametrize("view", get_args(ViewName))
def test_a_figure_of_one_view_holds_what_it_draws_and_no_more(view: str, panel_runs: Path, tmp_path: Path) -> None:
    argv = ["build", str(panel_runs), "--only", "3", "1", "--view", view, "--out", str(tmp_path / "figure")]
    main(cli.parse(PanelConfig, [*argv, "--threads", "1"], STAGE))
    page = (tmp_path / "figure" / PAGE).read_text()
    assert {name for name in re.findall(r'id="b:([a-z]+)', page)} - {"samples"} == OF_A_VIEW[view]
    assert not list((tmp_path / "figure").glob("data")) and "http-equiv" in page
    told = facts_in(page)
    if view == "all":  # of these samples alone, in their order
        assert told["saliency"]["ids"] == [3, 1] and len(told["bases"]) == 1
        every = facts_in(read_panel(panel_runs, tmp_path / "whole"))["saliency"]
        for part, scale in told["saliency"]["scale"].items():
            assert scale == [every["scale"][part][every["ids"].index(i)] for i in (3, 1)]


def read_panel(runs: Path, out: Path) -> str:
    main(cli.parse(PanelConfig, ["build", str(runs), "--out", str(out), "--threads", "1"], STAGE))
    return (out / PAGE).read_text()


def test_a_figure_that_cannot_be_drawn_is_refused(panel_runs: Path, tmp_path: Path) -> None:
    for runs, argv, says in (
        (panel_runs, ["--only", "1", "5", "--view", "saliency"], "sample 5 has no saliency map"),
        (panel_runs / "samples", ["--only", "1", "--view", "saliency"], "sample 1 has no saliency map"),
        (panel_runs / "samples", ["--only", "1", "--view", "path"], "none were fitted"),
        (panel_runs / "samples", ["--only", "1", "--view", "bars"], "none were fitted"),
    ):
        with pytest.raises(UserError, match=says):
            main(cli.parse(PanelConfig, ["build", str(runs), *argv, "--out", str(tmp_path / "out")], STAGE))
    assert not list(tmp_path.iterdir())


def test_the_server_says_its_address_first_and_ends_with_what_went_wrong(
    panel_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = cli.parse(PanelConfig, ["serve", str(panel_runs / "samples"), "--threads", "1"], STAGE)
    about = shown_of(config)
    assert about.chosen is not None
    said: list[str] = []

    def write_panel(path: Path, ended: Callable[[], bool]) -> int:
        said.append(capsys.readouterr().out)
        raise UserError("this cannot be shown")

    # In a thread of its own: browser tests before it may have left an event loop running in this one.
    with ThreadPoolExecutor(1) as thread, pytest.raises(UserError, match="this cannot be shown"):
        thread.submit(serve, config, check(config), about.chosen, write_panel).result()
    assert re.fullmatch(r"panel: http://127\.0\.0\.1:\d+/[\w-]+/  \(Ctrl-C ends it\)\n", said[0])


def test_without_a_stage_the_page_says_what_makes_it(panel_runs: Path, tmp_path: Path) -> None:
    main(cli.parse(PanelConfig, ["build", str(panel_runs / "samples"), "--out", str(tmp_path / "few")], STAGE))
    missing = facts_in((tmp_path / "few" / PAGE).read_text())["missing"]
    assert {"saliency", "directions", "behaviours"} <= set(missing)
    assert missing["saliency"]["line"].startswith("python -m analysis.saliency --simulator")


@pytest.fixture
def two_samples(panel_runs: Path, tmp_path: Path) -> Path:
    """The runs with further samples, which nothing was computed of."""
    root = tmp_path / "runs"
    shutil.copytree(panel_runs, root, symlinks=True)
    record_samples(RecordSamplesConfig(
        simulator=(root / "simulator",), rollouts=root / "rollouts", out=root / "samples_more", samples=SAMPLES,
        steps=STEPS, seed=5, threads=1,
    ))  # fmt: skip
    return root


def test_saliency_and_behaviours_lie_on_the_samples_that_they_are_of(two_samples: Path) -> None:
    root = two_samples
    config = cli.parse(PanelConfig, ["build", str(root)], STAGE)
    chosen = shown_of(config).chosen
    assert chosen is not None
    runs, of_others = together(chosen)
    want = {"samples", "saliency", "behaviours"}
    assert {name: path.name for name, path in runs.items() if path and name in want} == {name: name for name in want}
    assert of_others == {}
    for name in ("saliency", "behaviours"):  # without them the last samples are shown, and say what is not of them
        few = replace(chosen, runs=tuple(run for run in chosen.runs if run.path.name not in ("samples", name)))
        runs, of_others = together(few)
        other = {"saliency": "behaviours", "behaviours": "saliency"}[name]
        assert runs["samples"] == root / "samples_more" and runs["saliency"] is runs["behaviours"] is None
        assert list(of_others) == [other] and of_others[other].endswith(f"{other} is of other samples.")
    facts = contents(few, check(config), root.parent / "page").facts
    assert facts["missing"]["saliency"]["note"].startswith(of_others["saliency"]) and "saliency" not in facts
    # A basis that was fitted on other samples makes its saliency none of theirs.
    write_directions(
        root / "fitted", root / "rollouts", fingerprint(load_agent(root / "agent")), samples=root / "samples"
    )
    saliency(SaliencyConfig(
        simulator=root / "simulator", samples=root / "samples_more", hidden_states=root / "fitted",
        out=root / "saliency_more", sample_ids=("0",), quantities=("value",), methods=(), steps=STEPS, video=False,
        threads=1,
    ))  # fmt: skip
    chosen = shown_of(config).chosen
    assert chosen is not None
    runs, of_others = together(chosen)
    assert runs["samples"] == root / "samples_more" and runs["saliency"] == root / "saliency_more"
    assert runs["directions"] == (root / "fitted").resolve() and list(of_others) == ["behaviours"]


def test_every_run_is_an_input_of_the_panel(panel_runs: Path, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("a/hidden_states_2", "b/hidden_states", "c/hidden_states")]
    for place in places:
        write_directions(place, panel_runs / "rollouts", fingerprint(load_agent(panel_runs / "agent")))
    words = [str(p) for p in (panel_runs / "samples", *places)]
    main(cli.parse(PanelConfig, ["build", *words, "--out", str(tmp_path / "out"), "--threads", "1"], STAGE))
    inputs = read_manifest(tmp_path / "out")["inputs"]
    assert {(tmp_path / "out" / known["path"]).resolve() for known in inputs.values()} >= set(places)


def test_evidence_links_lead_to_the_basis_of_the_claim() -> None:
    def links(direction: str) -> str:
        return _evidence({"hypothesis": "", "direction": direction}, 0, ("ica", "pca"))

    assert "k=3&amp;basis=pca&amp;end=high" in links("pca:3") and "k=3&amp;basis=ica&amp;end=low" in links("ica:3")
    assert "k=3&amp;end=high" in links("3") and "view=directions" not in links("causal:3") + links("d_ica:3")


def test_names_are_not_given_to_behaviours_that_were_fitted_again(panel_runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "behaviours"
    shutil.copytree(panel_runs / "behaviours", root)
    made, names = sha256(root / MANIFEST), {"names": {"0": "waits", "1": "goes"}}
    assert put_names(root, made, names) == {"saved": True}
    (root / MANIFEST).write_text((root / MANIFEST).read_text() + " ")
    with pytest.raises(UserError, match="fitted again since this page was made"):
        put_names(root, made, names)


def test_a_second_saliency_of_the_same_samples_is_said_not_to_be_drawn(panel_runs: Path, tmp_path: Path) -> None:
    """Else the samples that it alone explains seem to have none."""
    root = tmp_path / "runs"
    shutil.copytree(panel_runs, root, symlinks=True)
    shutil.copytree(root / "saliency", root / "saliency_of_few")
    about = shown_of(cli.parse(PanelConfig, ["build", str(root)], STAGE))
    assert about.chosen is not None and about.left_out == about.chosen.left_out
    drawn = together(about.chosen)[0]["saliency"]
    other = root / "saliency" if drawn == root / "saliency_of_few" else root / "saliency_of_few"
    assert [words for words in about.left_out if "saliency" in words] == [
        f"{other} is not drawn beside the samples: {drawn} is. Name one of them alone to choose."
    ]


def test_what_is_of_another_agent_or_has_no_view_is_left_out_and_said(
    panel_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the page and in the terminal, of every run; what the page stands on is not left out."""
    other = write_agent(tmp_path / "runs" / "agent")
    for path, stage, agent in (
        ("runs/probes", "probes", other), ("runs/edits", "edits", other), ("own", "edits", panel_runs / "agent"),
    ):  # fmt: skip
        with new_run(tmp_path / path, stage, {}, {"agent": agent}):
            pass
    argv = ["build", str(panel_runs), str(tmp_path / "runs"), str(tmp_path / "own"), "--out", str(tmp_path / "out")]
    main(cli.parse(PanelConfig, [*argv, "--threads", "1"], STAGE))
    page = (tmp_path / "out" / PAGE).read_text()
    lines = [line for line in capsys.readouterr().out.splitlines() if " is left out: " in line]
    assert all(words in page for words in lines) and 'id="view-study_probes"' not in page
    assert {line.removeprefix(f"{tmp_path}/") for line in lines[1:]} == {
        "runs/probes is left out: it is of another agent.", "runs/edits is left out: it is of another agent.",
        "own is left out: the panel has no view of validation.edits.",
    }  # fmt: skip
    assert "runs/agent is left out: it is of the agent " in lines[0]


def test_heavy_pictures_are_made_lighter_and_stay_what_they_are() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3)).astype(np.uint8)
    data = {}
    for name, x in (("heavy", noise.repeat(2, 0)), ("light", noise[:20, :20])):
        out = io.BytesIO()
        Image.fromarray(x).save(out, "PNG")
        data[name] = f'<img src="data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}">'
    html = lighter(f"<p>{data['heavy']}{data['light']}</p>")
    assert data["light"] in html and len(html) < len(data["heavy"]) / 2
    found = re.search('data:image/webp;base64,([^"]*)', html)
    assert found
    with Image.open(io.BytesIO(base64.b64decode(found[1]))) as image:
        assert image.size == (300, 400)


def test_two_sentences_a_study_with_the_gate() -> None:
    told = ["The gate: was the world needed? no. Because.", "What was asked: this?", "What came out: 2 open.", "more"]
    assert sentences(told) == ["What was asked: this?", "What came out: 2 open; the gate: was the world needed? no."]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--only", "99"], "no sample 99; there are 6"),
        (["--view", "film"], "--view says what --only SAMPLES shows"),
        (["--only", "1", "1"], "names a sample twice"),
        (["--samples", "0"], "--samples must be at least 1"),
    ],
)
def test_a_mistake_leaves_nothing_behind(argv: list[str], says: str, panel_runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        main(cli.parse(PanelConfig, ["build", str(panel_runs), "--out", str(tmp_path / "out"), *argv], STAGE))
    assert not list(tmp_path.iterdir())


def test_a_flipped_byte_in_the_maps_is_found(panel_runs: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(panel_runs, tmp_path / "runs")
    file = tmp_path / "runs" / "saliency" / maps.FILE
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"maps\.h5: content differs"):
        main(cli.parse(PanelConfig, ["build", str(tmp_path / "runs"), "--out", str(tmp_path / "out")], STAGE))


@pytest.mark.parametrize("argv", [["--single_file"], ["--only", "0"]])
def test_a_page_of_one_file_is_served(argv: list[str], panel_runs: Path, tmp_path: Path) -> None:
    config = cli.parse(PanelConfig, ["serve", str(panel_runs), *argv], STAGE)
    write_panel(tmp_path, shown_of(config), config, check(config), tmp_path)
    assert files_in(tmp_path) == {"": tmp_path / PAGE, PAGE: tmp_path / PAGE}


def test_a_run_that_is_replaced_while_the_page_is_written_is_one_line(two_samples: Path, tmp_path: Path) -> None:
    config = cli.parse(PanelConfig, ["build", str(two_samples)], STAGE)
    about = shown_of(config)
    record_samples(RecordSamplesConfig(
        simulator=(two_samples / "simulator",), rollouts=two_samples / "rollouts", out=two_samples / "samples",
        samples=SAMPLES, steps=STEPS, seed=9, threads=1, overwrite=True,
    ))  # fmt: skip
    (tmp_path / "page").mkdir()
    with pytest.raises(UserError, match="samples was replaced while it was shown"):
        write_panel(tmp_path / "page", about, config, check(config), tmp_path / "page")


def test_what_is_set_aside_and_links_are_not_shown_twice(panel_runs: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    shutil.copytree(panel_runs, root, symlinks=True)
    (root / "another").symlink_to(root / "behaviours")
    shutil.copytree(root / "behaviours", root / ".behaviours.replaced")
    chosen = shown_of(cli.parse(PanelConfig, ["build", str(root)], STAGE)).chosen
    assert chosen is not None and [run.path.name for run in chosen.of("behaviours")] == ["behaviours"]


@pytest.mark.parametrize("table", ["saliency", "behaviours"])
def test_tables_that_no_stage_writes_are_one_line(table: str, panel_runs: Path, tmp_path: Path) -> None:
    """Whole, sealed, and without what the page reads of them."""
    root = tmp_path / "runs"
    shutil.copytree(panel_runs, root, symlinks=True)
    manifest = read_manifest(root / table)
    (root / table / f"{table}.csv").write_text("sample,nothing\r\n0,1\r\n")
    known = manifest["files"][f"{table}.csv"]
    known |= {"bytes": (root / table / f"{table}.csv").stat().st_size, "sha256": sha256(root / table / f"{table}.csv")}
    write_json(root / table / MANIFEST, sealed({k: v for k, v in manifest.items() if k != "seal"}))
    with pytest.raises(UserError, match=f"{table} is not what its stage writes"):
        main(cli.parse(PanelConfig, ["build", str(root), "--out", str(tmp_path / "out")], STAGE))
    (root / "saliency" / maps.FILE).unlink()
    with pytest.raises(UserError, match="is missing|is not what its stage writes"):
        main(cli.parse(PanelConfig, ["build", str(root), "--out", str(tmp_path / "out")], STAGE))
