"""How a study of interventions stands on the page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from core import artefacts
from core.artefacts import Result
from core.stages import OF_AN_AGENT as STAGES
from tests.conftest import write_agent, write_simulator, write_study
from validation.report import claims, contents
from validation.report.contents import percent
from validation.report.lineage import choose, trace


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    return write_simulator(root / "simulator", write_agent(root / "agent"))


def _page(runs: Path) -> contents.Page:
    return contents.build(choose(runs, STAGES), runs / "report")


def _text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<(style|head).*?</\1>", "", html, flags=re.S).replace("<", " <"))


@pytest.mark.parametrize(("answer", "kind"), [("yes", "good"), ("no", "bad"), ("open", "open"), ("?", "none")])
def test_the_gate_stands_above_everything_in_the_colour_of_its_answer(
    simulator: Path, tmp_path: Path, answer: str, kind: str
) -> None:
    write_study(tmp_path / "runs" / "study", simulator, answer=answer)
    html = _page(tmp_path / "runs").html
    first = html[html.index("</h1>") :].removeprefix("</h1></header>")
    assert first.startswith(f'<div class="box {kind}"><h2>Was the world needed to foretell the late effects?')
    assert f'<span class="tag {kind}">{answer}</span>' in first[:300]
    order = ["Memory alone foretells as well, by −0.01.", "share 12 levels", "What was asked", "What came out",
             "Direction 0 changes", "What was found"]  # fmt: skip
    places = [html.index(words) for words in order]
    assert places == sorted(places)


def test_a_claim_is_a_card_with_five_answers(simulator: Path, tmp_path: Path) -> None:
    html = claims.body(trace(write_study(tmp_path / "study", simulator)), tmp_path)
    cards = re.findall(r'<div class="box (\w+)"><h3>(.*?)</h3>(.*?)</div>(?=<div class="box|<details|$)', html, re.S)
    assert [kind for kind, _, _ in cards[:3]] == ["good", "bad", "open"]
    assert 'tag good">confirmed' in cards[0][1] and 'tag bad">refuted' in cards[1][1]
    rows = re.findall(r'<tr>.*?tag (\w+)">([\w ]+)</span>.*?</tr>', cards[0][2])
    assert rows == [("good", "yes"), ("bad", "wrong"), ("open", "open"), ("none", "by construction"),
                    ("none", "not asked")]  # fmt: skip
    assert "exists by −0.28" in cards[0][2] and "foretold −0.31" in cards[0][1]
    assert "Direction 9 has nothing to change" in html and html.count("memory alone") == 2  # by path
    assert "1 more claim: other doses" in html and 'tag none">no effect' in html


def test_a_study_without_a_simulator_does_not_ask_what_that_foretold(simulator: Path, tmp_path: Path) -> None:
    run = trace(write_study(tmp_path / "study", simulator))
    alone = replace(run, chain={run.path: run.manifest})
    for one, asks in ((run, "the real world change as the simulator foretold?"), (alone, "the real world change?")):
        assert any(asks in said for said in claims.answers(one, "", tmp_path)[1])


def test_older_verdicts_are_numbers_and_a_command(simulator: Path, tmp_path: Path) -> None:
    write_study(tmp_path / "runs" / "study", simulator, today=False)
    page = _page(tmp_path / "runs")
    text = _text(page.html)
    assert "These verdicts follow older rules; run" in text and "<i>-m </i>validation.interventions" in text.replace(
        " </i> ", " </i>"
    )
    for word in ("confirmed", "refuted", "inconclusive"):
        assert word not in text and not any(word in found for found in page.findings)
    assert "the agent's value 8 steps later" in text.replace("&#x27;", "'")  # a quantity in words
    assert "[−0.4, −0.2]" in text and "prob:left" not in text


def test_what_speaks_against_the_simulator_stands_at_every_section_made_with_it(
    simulator: Path, tmp_path: Path
) -> None:
    warning = "The simulator was never compared with a held frame"
    write_study(tmp_path / "runs" / "study", simulator)
    html = _page(tmp_path / "runs").html
    sections = dict(re.findall(r"<section[^>]*><h2>(.*?)</h2>(.*?)</section>", html, re.S))
    assert warning in sections["The tested claims"] and warning not in sections["The agent and its world"]
    assert warning in html[: html.index("What was asked")]


def test_two_studies_are_told_apart(simulator: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_study(tmp_path / "runs" / name, simulator)
    html = _page(tmp_path / "runs").html
    assert html.count("Was the world needed to foretell the late effects") == 2
    assert f"The tested claims: {tmp_path}/runs/one" in html and f"({tmp_path}/runs/two)" in html


def test_a_study_without_claims_or_effects_is_told(simulator: Path, tmp_path: Path) -> None:
    notes = {"verdicts": 2, "claims": [], "criteria": "Exists: it does."}
    result = Result(tables={"effects": [], "paths": []}, notes=notes)
    with artefacts.new_run(tmp_path / "runs" / "study", "interventions", {}, {"simulator": simulator}) as run:
        result.save(run.path)
    assert "no claim could be made" in _page(tmp_path / "runs").html


def test_a_share_that_is_rounded_to_nothing_keeps_an_interval_with_a_width() -> None:
    """1e-7 [.9e-7, 1.2e-7] was '0 % [0, 0]', as if it were known to be nothing."""
    assert percent({"value": 1e-7, "interval": [0.9e-7, 1.2e-7], "n": 40}).startswith("0 % [0,\xa01]")
    assert percent({"value": 0.29, "interval": [0.29, 0.2901], "n": 40}).startswith("29 % [29,\xa030]")
    assert percent({"value": 0.421, "interval": [0.312, 0.55], "n": 40}).startswith("42 % [31,\xa055]")


def test_slow_points_are_no_stable_fixed_points() -> None:
    """Three were counted among one fixed point's stable ones."""
    slow = {"kind": "slow", "stability": "stable", "time_constant": 90.0}
    fixed = {"kind": "fixed", "stability": "stable", "time_constant": 4.0}
    assert contents.points_in_words([fixed, fixed | {"stability": "saddle", "time_constant": 8.0}]) == (
        "2 fixed points, 1 of them stable; their slowest modes last 4 to 8 steps"
    )
    assert contents.points_in_words([slow, fixed, slow, slow]) == (
        "1 fixed point, 1 of them stable; their slowest modes last 4 to 4 steps; and 3 slow points, where it nearly "
        "stands still"
    )
    assert contents.points_in_words([slow]).startswith("0 fixed points, 0 of them stable; and 1 slow point")
