"""The demo, whole, at debug size: every stage in a chain from a freshly trained bundle, and its report."""

from __future__ import annotations

import io
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from validation import demo, page, report


@pytest.fixture(scope="module")
def bundle(pipeline: Path) -> Path:
    """A directory with an agent and a simulator, hardly trained."""
    return pipeline


@pytest.fixture(scope="module")
def run(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo over the leftovers of an earlier, interrupted one."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    config = demo.DemoConfig(bundle=bundle, out=out, sizes="debug", threads=1)
    with pytest.raises(KeyboardInterrupt), artefacts.new_run(out, demo.STAGE, config):
        (out / "rollouts").mkdir()
        (out / "rollouts" / "half.h5").write_bytes(b"half")
        raise KeyboardInterrupt
    demo.main(config)
    return out


class Reader(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def test_every_stage_left_a_whole_directory_and_the_leftovers_are_gone(run: Path) -> None:
    for part in demo.PARTS:
        assert artefacts.read_manifest(run / part.name)["wall_s"] > 0
    assert not (run / "rollouts" / "half.h5").exists()


def test_the_chain_reaches_the_agent_and_a_flipped_byte_is_found(run: Path) -> None:
    assert artefacts.verify(run) == []
    stages = [stage for _, stage, _ in artefacts.chain(run)]
    assert stages[0] == "demo"
    assert {"train", "train_gen_model", "record", "interventions", "saliency"} <= set(stages)
    file = run / "fidelity" / "fidelity.csv"
    whole = file.read_bytes()
    try:
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert [p for p in artefacts.verify(run) if "fidelity.csv" in p and "differs" in p]
    finally:
        file.write_bytes(whole)


def test_the_page_stands_alone_and_every_picture_has_words(run: Path) -> None:
    html = (run / report.PAGE).read_text()
    reader = read(html)
    for tag, attrs in reader.tags:
        assert tag not in ("script", "iframe", "object")
        for name in ("src", "href"):
            target = attrs.get(name)
            assert target is None or target.startswith(("data:", "#")), target
        if tag == "img":
            assert len(attrs["alt"] or "") > 10
            begins = ("data:image/png;base64,iVBORw0KGgo", "data:image/gif;base64,R0lGODlh")
            assert (attrs["src"] or "").startswith(begins)
    assert "url(" not in html
    counts = {tag: sum(t == tag for t, _ in reader.tags) for tag in ("table", "caption", "img")}
    assert counts["table"] == counts["caption"] > 5
    assert counts["img"] > 8


def test_the_summary_says_what_the_results_say(run: Path) -> None:
    claims = Result.load(run / "interventions").notes["claims"]
    text = re.sub(r"\s+", " ", "".join(read((run / report.PAGE).read_text()).text))
    assert len(claims) == 2
    for claim in claims:
        assert text.count(claim["text"]) == 2  # in the summary and in its section
    rows = [r for r in Result.load(run / "fidelity").tables["fidelity"] if r["measure"] == "frame_mse"]
    for row in (r for r in rows if r["horizon"] in (1, rows[-1]["horizon"])):  # in the table, in the summary
        assert page.number(row["simulated"]) in text
    for part in demo.PARTS:
        assert artefacts.sha256(run / part.name / artefacts.MANIFEST)[:12] in text


def test_the_page_is_the_same_for_the_same_runs(bundle: Path, run: Path) -> None:
    dirs = demo.directories(bundle, run)
    assert report.build(dirs).html == (run / report.PAGE).read_text()


def test_a_stage_that_was_not_run_is_named(bundle: Path, run: Path) -> None:
    dirs = {k: v for k, v in demo.directories(bundle, run).items() if k != "saliency"}
    built = report.build(dirs)
    assert "Saliency: not run." in built.findings
    assert "This stage (saliency) was not run." in built.html


def test_the_report_alone_is_a_run_directory(
    bundle: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.main(report.ReportConfig(runs=run, bundle=bundle, out=tmp_path / "report"))
    assert artefacts.verify(tmp_path / "report") == []
    assert set(artefacts.read_manifest(tmp_path / "report")["inputs"]) >= {p.name for p in demo.PARTS}
    assert str(tmp_path / "report" / report.PAGE) in capsys.readouterr().out.splitlines()[-1]


def test_a_report_about_nothing_is_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match="no stage's run directory"):
        report.main(report.ReportConfig(runs=tmp_path / "runs", bundle=tmp_path / "bundle", out=tmp_path / "report"))
    assert not (tmp_path / "report").exists()


def test_a_preset_may_not_choose_the_demos_directories(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.json").write_text('{"fidelity": {"rollouts": "elsewhere"}}')
    with pytest.raises(UserError, match=r"fidelity\.rollouts is set"):
        demo.main(demo.DemoConfig(bundle=bundle, out=tmp_path / "demo", sizes="mine"))
    assert not (tmp_path / "demo").exists()


def test_a_mistake_in_a_stages_sizes_is_met_before_an_earlier_demo_is_touched(
    bundle: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run / "fidelity", tmp_path / "demo")
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.json").write_text('{"interventions": {"strats": 3}}')
    with pytest.raises(UserError, match="did you mean starts"):
        demo.main(demo.DemoConfig(bundle=bundle, out=tmp_path / "demo", sizes="mine"))
    assert (tmp_path / "demo" / artefacts.MANIFEST).exists()


def test_numbers_are_written_as_people_read_them() -> None:
    values = [None, float("nan"), True, 12345, -3, 0.123456, -1234.5, np.float32(2.0), np.int64(7), "x"]
    shown = [page.number(v) for v in values]
    assert shown == ["–", "–", "yes", "12,345", "−3", "0.123", "−1,234", "2", "7", "x"]


def test_a_table_escapes_its_cells_and_says_that_it_is_cut() -> None:
    rows = [{"a": "<b>", "n": i} for i in range(5)]
    html = page.table(rows, "Cells", most=2)
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "the first 2 of 5 rows" in html
    assert html.count("<tr>") == 3


def test_a_heavy_picture_is_made_lighter_and_stays_the_same_to_the_eye() -> None:
    rng = np.random.default_rng(0)
    shade = np.linspace(0, 200, 64)[:, None, None]
    frames = [(shade + rng.integers(0, 50, (64, 64, 3))).astype(np.uint8) for _ in range(24)]
    heavy = page.strip_png(frames, scale=1)
    assert len(heavy) > page.HEAVY_BYTES
    light = page.lighter(heavy)
    assert len(light) < len(heavy)
    before, after = (np.asarray(Image.open(io.BytesIO(b)).convert("RGB"), np.int64) for b in (heavy, light))
    assert before.shape == after.shape
    assert np.abs(before - after).mean() < 16  # of 255
    assert page.lighter(b"small") == b"small"


def test_a_verdict_keeps_its_meaning_in_colour() -> None:
    html = report._coloured("first: neither confirmed nor refuted. second: confirmed. third: refuted.")
    assert '<span class="open">neither confirmed nor refuted</span>' in html
    assert '<span class="good">confirmed</span>' in html
    assert '<span class="bad">refuted</span>' in html


@pytest.mark.parametrize("converged", [True, False])
def test_directions_say_what_ica_did(tmp_path: Path, converged: bool) -> None:
    notes = {"hidden_size": 8, "ica_converged": converged}
    scalars = {"ica_stability_median": artefacts.metric(0.5, "Iq")}
    row = {"direction": 0, "stability": 0.5, "match": 1.0, "explained": 0.1}
    with artefacts.new_run(tmp_path / "with", "hidden_states", {}) as made:
        Result(scalars=scalars, notes=notes, tables={"ica": [row]}).save(made.path)
    with artefacts.new_run(tmp_path / "without", "hidden_states", {}) as made:
        Result(notes={"hidden_size": 8}).save(made.path)
    (found,) = report.directions({"hidden_states": tmp_path / "with"}).findings
    assert ("did not converge" in found) != converged
    (found,) = report.directions({"hidden_states": tmp_path / "without"}).findings
    assert found == "Directions: 0 independent components of the agent's 8 hidden units."


def test_every_stage_of_the_readme_can_be_repeated_from_the_page() -> None:
    readme = (cli.ROOT / "README.md").read_text().split("## Neural MMO")[0]  # that study has no report page
    stages = set(re.findall(r"`python ((?:-m )?[\w.]+)", readme)) - {"-m core.artefacts", "-m validation.report"}
    assert stages <= set(report.MODULES.values())
