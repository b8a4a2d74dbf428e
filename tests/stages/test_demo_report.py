"""The demo, whole, at debug size: every stage in a chain from a freshly trained bundle, and its report."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agents.train import Collector
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.stages import OF_AN_AGENT as STAGES, Stage
from tests.conftest import write_agent, write_evaluation, write_simulator, write_study
from tests.stages.conftest import make_pipeline
from tests.stages.test_golden import check, numbers
from validation import demo
from validation.report import __main__ as report, contents, page
from validation.report.commands import repeat
from validation.report.lineage import Chosen, choose, trace


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an agent and a simulator, hardly trained, from whole episodes."""
    root = tmp_path_factory.mktemp("bundle")
    make_pipeline(root, recorded=())
    return root


@pytest.fixture(scope="module")
def run(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo over the leftovers of an earlier, interrupted one."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    config = demo.DemoConfig(bundle=bundle, out=out, sizes="debug", threads=2)
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
        assert artefacts.read_manifest(run / part)["wall_s"] > 0
    assert not (run / "rollouts" / "half.h5").exists()


def test_golden_demo(run: Path) -> None:
    check("demo", numbers(run))


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
    html = (run / contents.PAGE).read_text()
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


def test_the_summary_describes_the_agent_and_not_a_recording(bundle: Path, run: Path) -> None:
    (said,) = contents.agent_and_world(chosen_of(bundle, run)).findings
    assert said.startswith("The agent: an agent with a memory of ") and ".." not in said


def test_the_page_says_what_the_results_say(run: Path) -> None:
    text = re.sub(r"\s+", " ", "".join(read((run / contents.PAGE).read_text()).text))
    rows = [r for r in Result.load(run / "fidelity").tables["fidelity"] if r["measure"] == "frame_mse"]
    for row in (r for r in rows if r["horizon"] in (1, rows[-1]["horizon"])):  # in the table, in the summary
        assert page.number(row["simulated"]) in text
    for part in demo.PARTS:
        assert artefacts.sha256(run / part / artefacts.MANIFEST)[:12] in text


def chosen_of(bundle: Path, run: Path) -> Chosen:
    return choose(run, STAGES, bundle / "agent", bundle / "simulator")


def test_the_page_is_the_same_for_the_same_runs(bundle: Path, run: Path) -> None:
    assert contents.build(chosen_of(bundle, run), run).html == (run / contents.PAGE).read_text()


def without(run: Path, root: Path, *stages: str) -> Path:
    """The demo's directories but some, seen from another directory."""
    root.mkdir()
    for part in demo.PARTS:
        if part not in stages:
            (root / part).symlink_to(run / part)
    return root


def codes(html: str) -> list[str]:
    """The lines that a page prints to type."""
    return [unescape(re.sub("</?i>", "", code)) for code in re.findall(r"<code>(.*?)</code>", html)]


def type_in(line: str, *more: str) -> None:
    """Run a printed line as the script would, with more words at its end.  As it stands, a line that repeats a run says
    all of that run's settings but where its inputs and its outputs are."""
    words = shlex.split(line)
    assert words[0] == "python"
    if words[1:4] == ["-m", "core.artefacts", "verify"]:
        assert artefacts.main(words[3:]) == 0
        return
    length = 2 if words[1] == "-m" else 1
    program, flags = " ".join(words[1 : 1 + length]), words[1 + length :]
    stage = next(known for known in STAGES.values() if known.command == program)
    if flags[0] == "--config":
        said = cli.to_json(cli.parse(stage.cls, flags, stage_of(stage)))
        saved = artefacts.load_json(Path(flags[1]).parent, "config.json")["config"]
        places = {*stage.needs, *stage.takes, "out"}
        assert {k: v for k, v in said.items() if k not in places} == {k: v for k, v in saved.items() if k not in places}
    stage.door.main(cli.parse(stage.cls, [*flags, *more], stage_of(stage)))


def stage_of(stage: Stage) -> str:
    return next(name for name, known in STAGES.items() if known is stage)


def test_every_printed_command_works(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed in the repository's root, as it stands on the page."""
    report.main(report.ReportConfig(runs=without(run, tmp_path / "runs"), out=tmp_path / "report"))
    monkeypatch.chdir(cli.ROOT)
    for line in dict.fromkeys(codes((tmp_path / "report" / contents.PAGE).read_text())):
        type_in(line, *next((words for program, words in SMALLER.items() if program in line), ()))
    made = {path.name for path in (tmp_path / contents.AGAIN).iterdir() if artefacts.read_manifest(path)}
    # The simulator learned from rollouts of its own.
    assert made == {"agent", "simulator", "rollouts_2", *demo.PARTS}
    assert artefacts.read_manifest(tmp_path / "runs" / "evaluate")["stage"] == "evaluate"


FEWER = ["--episodes", "4", "--slots", "2"]  # no preset has sizes for an evaluation
# What is printed says the demo's own sizes, at which everything ran before; that it runs again is seen at these.
SMALLER = {
    "agents.evaluate": FEWER,
    "python record.py": ["--episodes", "2", "--slots", "2"],
    "validation.fidelity": ["--windows", "4", "--horizon", "2", "--no-video"],
    "analysis.hidden_states": ["--ica_restarts", "2", "--surrogates", "0", "precompute"],
    "analysis.behaviours": ["--surrogates", "0", "--videos", "0"],
    "analysis.dynamics": ["--starts", "4", "--inputs", "1"],
}


def test_what_a_shell_makes_of_a_printed_command(bundle: Path, run: Path, tmp_path: Path) -> None:
    line = repeat(run / "samples", tmp_path / "again").line
    words = line.replace("python", shlex.quote(sys.executable), 1)
    subprocess.run(words, shell=True, cwd=cli.ROOT, check=True, capture_output=True)
    assert artefacts.verify(tmp_path / "again") == []


def test_a_stage_that_was_not_run_is_named_with_a_command_that_makes_it(
    bundle: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = without(run, tmp_path / "runs", "saliency", "dynamics", "interventions")
    built = contents.build(chosen_of(bundle, runs), tmp_path / "report")
    assert "Not run: What the memory does by itself, Saliency, The tested claims." in built.findings
    assert any("What was asked: nothing yet." in found for found in built.findings)
    lines = [line for line in codes(built.html) if str(runs) in line and contents.AGAIN not in line]
    assert {line.split()[2] for line in lines} == {
        "analysis.saliency", "analysis.dynamics", "validation.interventions", "agents.evaluate",
    }  # fmt: skip
    monkeypatch.chdir(cli.ROOT)
    for line in dict.fromkeys(lines):
        type_in(line, "--threads", "1", *FEWER if "agents.evaluate" in line else ["--preset", "debug"])
    there = choose(runs, STAGES)
    assert {r.stage for r in there.runs} >= {"saliency", "dynamics", "interventions", "evaluate"}
    assert "not run" not in contents.build(there, tmp_path / "report").html.lower()


def test_the_report_alone_is_a_run_directory(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.main(report.ReportConfig(runs=run, out=tmp_path / "report"))
    assert artefacts.verify(tmp_path / "report") == []
    assert set(artefacts.read_manifest(tmp_path / "report")["inputs"]) >= set(demo.PARTS)
    assert str(tmp_path / "report" / contents.PAGE) in capsys.readouterr().out.splitlines()[-1]


def test_a_report_about_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match="holds no run for a page"):
        report.main(report.ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    assert not (tmp_path / "report").exists()


def test_no_page_borrows_another_agents_evaluation(tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "agent", world="procgen/maze")
    write_study(tmp_path / "runs" / "study", write_simulator(tmp_path / "simulator", agent))
    report.main(report.ReportConfig(runs=tmp_path / "runs", out=tmp_path / "report"))
    html = (tmp_path / "report" / contents.PAGE).read_text()
    borrowed = Result.load(cli.ROOT / "bundles/coinrun-robust/evaluation").scalars["return_mean"]["value"]
    assert page.number(borrowed) not in html and "coinrun" not in html
    assert "was not evaluated" in html and f"python -m agents.evaluate --agent {agent}" in codes(html)[0]
    write_evaluation(tmp_path / "runs" / "evaluation", agent, 4.5)
    write_evaluation(tmp_path / "beside", write_agent(tmp_path / "other", seed=1), 7.25)
    built = contents.build(choose(tmp_path / "runs", STAGES), tmp_path / "report")
    assert "4.5 [3.5,\xa05.5] (few) return, n = 16" in built.html and "7.25" not in built.html


def test_an_agent_that_began_with_another_s_weights_is_said_to(tmp_path: Path) -> None:
    for first in (None, Path("runs/first")):
        root = tmp_path / str(first is None)
        agent = write_agent(root / "agent", begin_with=first)
        write_study(root / "runs" / "study", write_simulator(root / "simulator", agent))
        html = contents.build(choose(root / "runs", STAGES), root / "report").html
        assert ("beginning with the weights of runs/first" in html) == (first is not None)


@pytest.mark.parametrize(
    ("recurrence", "words"),
    [("gru", "a memory of 6 units (GRU)"), ("none", "no memory (feed-forward"), ("lstm", "(LSTM)")],
)
def test_an_agent_is_described_as_what_it_is(recurrence: str, words: str) -> None:
    """A kind that this version does not know is named all the same."""
    said = contents.described({"net": {"encoder": "strided", "hidden_size": 6, "recurrence": recurrence}})
    assert words in said and "'strided'" in said and ("GRU" in said) == (recurrence == "gru")


def test_a_learning_curve_says_of_how_many_episodes_its_points_are() -> None:
    """Early on those that ended are the short ones; a curve of an earlier version does not say how many."""
    collector = Collector.__new__(Collector)
    collector.returns, collector.lengths = deque([10.0, 0.0]), deque([3, 5])
    assert collector.means() == {"return_mean": 5.0, "length_mean": 4.0, "return_episodes": 2.0}
    drawn = contents._learning_curve("step,return_mean,return_episodes\n1024,10.0,2.0\n2048,1.5,100.0\n")
    assert "episodes that ended" in drawn and "until step 1,024 fewer than 100 had ended" in drawn
    assert "fewer than 100" not in contents._learning_curve("step,return_mean\n1024,10.0\n2048,1.5\n")
    hybrid = (cli.ROOT / "bundles/nmmo-demo/policies/hybrid/curve.csv").read_text()
    assert "mean length of the training&#x27;s lives" in contents._learning_curve(hybrid)  # which has no return
    assert contents._learning_curve("step,score\n1024,10.0\n") == ""


def test_one_agent_is_said_as_long_as_it_is_so(tmp_path: Path) -> None:
    agent, other = (write_agent(tmp_path / f"agent_{i}", seed=i) for i in range(2))
    simulator = write_simulator(tmp_path / "simulator", agent)
    write_evaluation(tmp_path / "runs" / "evaluation", agent, 1.0)
    said = contents.limits(choose(tmp_path / "runs", STAGES)).html
    assert "One agent, one training seed, no simulators, one world." in said
    write_study(tmp_path / "runs" / "study", simulator)
    assert "One agent, one training seed, one simulator" in contents.limits(choose(tmp_path / "runs", STAGES)).html
    inputs = {"simulator": simulator, "other_agent": other}
    with artefacts.new_run(tmp_path / "runs" / "fidelity", "fidelity", {}, inputs):
        pass
    said = contents.limits(choose(tmp_path / "runs", STAGES)).html
    assert "Two agents, two training seeds, one simulator" in said and "agent_1 is only compared with" in said


def test_the_page_fits_the_window(browser: Any, run: Path, tmp_path: Path) -> None:
    """No sideways scrolling of the page; what is wider has a scroll bar of its own, and at these widths no table."""
    agent = without(run, tmp_path / "fits", "interventions")
    write_study(agent / "study", artefacts_input(run, "simulator"))
    report.main(report.ReportConfig(runs=agent, out=agent / "report"))
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto((agent / "report" / contents.PAGE).as_uri())
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width, scheme in itertools.product((1280, 400), ("light", "dark")):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        assert tab.evaluate("innerWidth") == width and tab.evaluate(
            f"matchMedia('(prefers-color-scheme: {scheme})').matches"
        )
        assert tab.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), (width, scheme)
        wide = tab.evaluate(
            "Array.from(document.querySelectorAll('.scroll:has(table)')).filter(d => d.scrollWidth > d.clientWidth)"
            ".map(d => d.querySelector('caption').innerText)"
        )
        assert wide == [], (width, scheme)
        cells = tab.evaluate("getComputedStyle(document.querySelector('td'), '::before').content")
        assert (cells != "none") == (width == 400)  # stacked: every cell says what it is
    tab.close()


def artefacts_input(run: Path, name: str) -> Path:
    """The directory that the demo itself was made from."""
    return (run / artefacts.read_manifest(run)["inputs"][name]["path"]).resolve()


def test_what_is_no_bundle_is_refused_by_the_name_that_was_typed(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    for typed, why in ((tmp_path, "holds no simulator/"), (tmp_path / "agent", "holds no agent/ and no simulator/"),
                       (tmp_path / "no", "no such directory")):  # fmt: skip
        with pytest.raises(UserError, match=f"^--bundle {typed}: {why}; name a bundle"):
            demo.main(demo.DemoConfig(bundle=typed, out=tmp_path / "demo"))


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


def begun(out: Path, until: str) -> subprocess.Popen[str]:
    """A demo on the bundled models in a session of its own, run until it prints a line that begins so."""
    argv = [sys.executable, "-m", "validation.demo", "--sizes", "debug", "--threads", "2", "--out", str(out)]
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # As a terminal starts it: a suite in the background of a shell ignores SIGINT, which is inherited.
    heard: Any = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    running = subprocess.Popen(argv, start_new_session=True, **piped, **heard)
    assert running.stdout is not None
    assert any(line.startswith(until) for line in running.stdout)
    return running


def test_signals_wait_for_a_process_that_begins_whichever_thread_hears_them() -> None:
    """The system gives a signal to any thread that does not block it, as torch's threads do not."""
    begun, over, order = threading.Event(), threading.Event(), list[str]()

    def hears() -> None:
        begun.set()
        over.wait()

    def ours(*_: object) -> None:
        order.append("handled")

    other = threading.Thread(target=hears)
    other.start()
    begun.wait()
    before = signal.signal(signal.SIGTERM, ours)
    try:
        with demo.held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)  # in which Python would call the handler
            order.append("block is over")
    finally:
        over.set()
        other.join()
        signal.signal(signal.SIGTERM, before)
    assert order == ["block is over", "handled"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_two_stages_beside_each_other_end_with_the_demo(tmp_path: Path, number: int, code: int) -> None:
    running = begun(tmp_path / "demo", "[3/10] fidelity")
    if number == signal.SIGINT:
        os.killpg(running.pid, number)  # as a terminal does
    else:
        running.send_signal(number)
    said, _ = running.communicate(timeout=300)
    assert running.returncode == code and "Traceback" not in said, said
    with pytest.raises(ProcessLookupError):  # nobody of the session stays
        for _ in range(300):
            os.killpg(running.pid, 0)
            time.sleep(0.1)
    assert not (tmp_path / "demo" / artefacts.MANIFEST).exists()


def test_a_stage_that_fails_ends_the_one_beside_it(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {name: dict(cli.preset(name, "debug")) for name in demo.PARTS}
    sections["samples"]["actions"] = ["fly"]
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.json").write_text(json.dumps(sections))
    with pytest.raises(UserError, match="stage samples: .*fly"):
        demo.main(demo.DemoConfig(bundle=bundle, out=tmp_path / "demo", sizes="mine"))
    assert "[3/10] fidelity: " in capsys.readouterr().out and not multiprocessing.active_children()
    assert not (tmp_path / "demo" / "fidelity" / artefacts.MANIFEST).exists()


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


def test_intervals_say_where_they_are_of_few_and_numbers_have_one_minus_sign() -> None:
    assert page.interval(-0.5, 1, 23) == " [−0.5,\xa01] (few)" and page.interval(-0.5, 1, 24) == " [−0.5,\xa01]"
    assert page.interval(None, 1, 5) == " [?,\xa01] (few)" and page.interval(None, None, 5) == ""
    html = page.paragraph("between -0.5 and -.2, in a half-life of 1e-05 (t-1, 2024-05)")
    assert html == "<p>between −0.5 and −.2, in a half-life of 1e−05 (t-1, 2024-05)</p>"
    assert page.command("--shift 9=-2") == "<code><i>--shift</i> 9=-2</code>"  # what is typed stays as it is


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


@pytest.mark.parametrize("converged", [True, False])
def test_directions_say_what_ica_did(tmp_path: Path, converged: bool) -> None:
    notes = {"hidden_size": 8, "ica_converged": converged}
    scalars = {"ica_stability_median": artefacts.metric(0.5, "Iq")}
    row = {"direction": 0, "stability": 0.5, "match": 1.0, "explained": 0.1}
    with artefacts.new_run(tmp_path / "with", "hidden_states", {}) as made:
        Result(scalars=scalars, notes=notes, tables={"ica": [row]}).save(made.path)
    with artefacts.new_run(tmp_path / "without", "hidden_states", {}) as made:
        Result(notes={"hidden_size": 8}).save(made.path)
    (found,) = contents.directions(trace(tmp_path / "with")).findings
    assert ("did not converge" in found) != converged
    (found,) = contents.directions(trace(tmp_path / "without")).findings
    assert found == "Directions: 0 independent components of the agent's 8 hidden units."
