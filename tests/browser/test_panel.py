"""The panel in a real browser: from a file, and served with the real game behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import config as cli
from tests.browser.test_pages import Opened
from tests.conftest import once
from tests.panel_runs import NAMES, SAMPLES, STEPS, K, make_runs
from validation.panel.__main__ import STAGE, PanelConfig, main
from validation.panel.page import PAGE

READY = "document.documentElement.dataset.ready === '{}'"


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "panel_runs", make_runs)


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("panel") / "single"
    main(cli.parse(PanelConfig, ["build", str(runs), "--single_file", "--out", str(out), "--threads", "1"], STAGE))
    return out / PAGE


class Panel(Opened):
    """The panel at a view."""

    def __init__(self, browser: Any, file: Path, state: str, width: int = 1280) -> None:
        super().__init__(browser, file, width)
        self.go(state)

    def go(self, state: str) -> None:
        self.tab.evaluate("s => { delete document.documentElement.dataset.ready; location.hash = s; }", state)
        view = state.partition("view=")[2].partition("&")[0]
        self.until(READY.format(view))

    def state(self) -> dict[str, str]:
        found = self.tab.evaluate("location.hash.slice(1)")
        return dict(part.partition("=")[::2] for part in found.split("&"))

    def close(self) -> None:
        self.requests = list(dict.fromkeys(url.partition("#")[0] for url in self.requests))
        super().close()


@pytest.fixture
def samples(browser: Any, page: Path, tmp_path: Path) -> Iterator[Panel]:
    opened = Panel(browser, page, "view=samples&s=1&t=0")
    yield opened
    opened.tab.screenshot(path=tmp_path / "samples.png", full_page=True)
    opened.close()


def settled(panel: Panel) -> None:
    panel.tab.wait_for_timeout(120)


def test_the_first_page_answers_and_links_to_the_evidence(browser: Any, page: Path, tmp_path: Path) -> None:
    opened = Panel(browser, page, "view=answer")
    lead = opened.tab.locator(".lead p").all_inner_texts()
    assert len(lead) == 2 and lead[0].startswith("What was asked") and "was the world needed? no" in lead[1]
    opened.tab.click("text=frames at which direction 1 is high")
    opened.until(READY.format("directions"))
    assert opened.state()["k"] == "1" and opened.tab.locator("#shots a").count() == SAMPLES
    opened.tab.screenshot(path=tmp_path / "directions.png")
    opened.tab.locator("#shots a").nth(0).click()
    opened.until(READY.format("samples"))
    settled(opened)
    values = opened.tab.evaluate(
        "Array.from({length: data.steps[state.s]}, (_, t) => data.c[(state.s * data.T + t) * data.K + 1])"
    )
    shown = opened.tab.evaluate("data.c[(state.s * data.T + state.t) * data.K + 1]")
    assert shown == max(values)  # the frame that the link leads to is the one that it promised
    opened.close()


def test_steps_samples_and_play_by_keyboard(samples: Panel) -> None:
    key = samples.tab.keyboard
    first = samples.pixels("frame")
    key.press("ArrowRight")
    settled(samples)
    assert samples.state()["t"] == "1" and samples.pixels("frame") != first
    key.press("ArrowDown")
    settled(samples)
    assert samples.state()["s"] == "2" and samples.tab.input_value("#sample") == "2"
    key.press("ArrowUp")
    key.press("End")
    settled(samples)
    assert samples.text("where").startswith(f"step {STEPS} of {STEPS}")
    key.press("Home")
    samples.tab.select_option("#speed", "30")
    samples.tab.click("#go-play")
    samples.until(f"document.getElementById('scrub').value === '{STEPS}'")
    samples.until("document.getElementById('scrub').value === '2'")  # it begins again
    key.press("Escape")
    at = samples.text("where")
    samples.tab.wait_for_timeout(200)
    assert samples.text("where") == at


def test_a_reload_shows_the_same(samples: Panel) -> None:
    samples.go("view=samples&s=2&t=3&q=ica:1&x=2&y=3&f=0v-1~&theme=dark")
    settled(samples)
    before = {name: samples.pixels(name) for name in ("frame", "map", "plane", "bars", "course-value")}
    said = samples.text("matches")
    samples.tab.reload()
    samples.until(READY.format("samples"))
    settled(samples)
    assert {name: samples.pixels(name) for name in before} == before and samples.text("matches") == said
    assert samples.tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_saliency_by_quantity_and_path(samples: Panel) -> None:
    samples.go("view=samples&s=1&t=4")
    settled(samples)
    seen = {}
    for q in ("value", "action"):
        samples.tab.check(f"input[name=q][value={q}]")
        for path in ("whole", "agent", "world"):
            samples.tab.check(f"input[name=path][value={path}]")
            settled(samples)
            seen[q, path] = samples.pixels("map")
    assert seen["value", "whole"] != seen["action", "whole"]
    assert seen["value", "whole"] != seen["value", "world"] and seen["value", "agent"] != seen["value", "world"]
    maps = "[...['whole','agent','world']].map(p => Array.from(mapAt(m, 1, 4, 'value', p).map))"
    whole, agent, world = samples.tab.evaluate(f"loadMaps(1).then(m => {maps})")
    assert max(abs(w - a - t) for w, a, t in zip(whole, agent, world, strict=True)) < 1e-6
    samples.go("view=samples&s=5&t=4")  # of which no saliency was computed
    settled(samples)
    assert "python -m analysis.saliency" in samples.text("map-said")


def test_filters_hold_at_the_same_step(samples: Panel) -> None:
    """The page's matches against those counted here, from its own numbers."""
    c = samples.tab.evaluate("Array.from(data.c, v => Number.isNaN(v) ? null : v)")
    width = (STEPS + 1) * K
    rows = [[c[n * width + t * K : n * width + t * K + K] for t in range(STEPS + 1)] for n in range(SAMPLES)]
    low, high = sorted(r[0] for row in rows for r in row)[10], sorted(r[1] for row in rows for r in row)[-10]
    mine = [n for n, row in enumerate(rows) if any(r[0] <= low and r[1] >= high for r in row)]
    apart = [n for n, row in enumerate(rows) if any(r[0] <= low for r in row) and any(r[1] >= high for r in row)]
    samples.go(f"view=samples&f=0v~{low}!1v{high}~")
    assert samples.tab.evaluate("matches.found.map(m => m.n)") == mine
    assert set(mine) <= set(apart)
    said = samples.text("matches")
    assert said.startswith(f"{len(mine)} of {SAMPLES}") if mine else said.startswith("no sample matches")
    samples.tab.click("#reset")
    assert samples.text("matches") == f"{SAMPLES} of {SAMPLES} samples match"
    samples.go("view=samples&f=0v99~")
    assert samples.text("matches").startswith("no sample matches") and not samples.tab.locator("#found li").count()


def test_bounds_begin_at_what_matches_the_rest(samples: Panel) -> None:
    samples.tab.click("text=bounds on directions and gradients")
    field = samples.tab.locator("#bounds input[data-k='0'][data-w='v']")
    smallest = samples.tab.evaluate("Math.min(...Array.from(data.c).filter((v, i) => i % data.K === 0 && v === v))")
    assert float(field.nth(0).get_attribute("placeholder").replace("−", "-")) == pytest.approx(smallest, rel=0.01)
    field.nth(0).fill("0.5")
    field.nth(0).press("Tab")
    assert "active" in field.nth(0).get_attribute("class")
    slope = samples.tab.locator("#bounds input[data-k='1'][data-w='g']").nth(0)
    slope.fill("0")
    slope.press("Tab")
    assert "1g0~" in samples.tab.evaluate("decodeURIComponent(location.hash)")
    samples.tab.select_option("#f-quantity", "ica:2")  # another quantity resets the gradients' bounds alone
    assert samples.tab.evaluate("JSON.stringify([...bounds])") == json.dumps(
        [[0, {"v": [0.5, None]}]], separators=(",", ":")
    )
    samples.tab.select_option("#f-step", "2")  # another step resets all
    assert samples.tab.evaluate("bounds.size") == 0


def test_behaviours_are_text_and_found(browser: Any, page: Path) -> None:
    opened = Panel(browser, page, "view=gallery")
    assert opened.tab.locator("#view-gallery h3 input").nth(0).input_value() == NAMES[0]
    assert opened.tab.locator("#view-gallery b").count() == 0
    opened.tab.locator("#view-gallery h3 input").nth(1).fill("waits")
    opened.tab.click("#names")
    assert json.loads(opened.tab.locator("#view-gallery textarea").input_value()) == {"0": NAMES[0], "1": "waits"}
    opened.go("view=samples&fb=1")
    assert opened.tab.evaluate("matches.found.every(m => m.t === 4)")  # the second behaviour begins at step 4
    opened.close()


@pytest.mark.parametrize("view", ["films", "bookmarks", "interventions", "s0"])
def test_other_views_open(browser: Any, page: Path, view: str) -> None:
    opened = Panel(browser, page, f"view={view}")
    assert len(opened.text(f"view-{view}")) > 40
    opened.close()


def test_a_number_says_what_it_is(samples: Panel) -> None:
    samples.tab.locator("#facts .num").nth(0).focus()
    assert "n = 1" in samples.text("tip") and "return" in samples.text("tip") and "interval" in samples.text("tip")
    samples.tab.locator(".pane.frames .made button").click()
    assert samples.tab.locator(".pane.frames .line").input_value().startswith("python -m generative.record_samples")


@pytest.mark.parametrize("view", ["answer", "samples", "directions", "gallery", "films", "bookmarks"])
def test_it_fits_a_phone(browser: Any, page: Path, view: str, tmp_path: Path) -> None:
    opened = Panel(browser, page, f"view={view}", width=390)
    assert opened.tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    opened.tab.screenshot(path=tmp_path / f"{view}.png")
    opened.close()


def test_a_figure_for_a_paper(browser: Any, runs: Path, tmp_path: Path) -> None:
    argv = ["build", str(runs), "--only", "2", "0", "--out", str(tmp_path / "figure"), "--threads", "1"]
    main(cli.parse(PanelConfig, argv, STAGE))
    opened = Panel(browser, tmp_path / "figure" / PAGE, "view=figure&t=4")
    settled(opened)
    first = opened.pixels("film-0")
    assert first != opened.pixels("film-1") and opened.tab.locator("article").count() == 2
    opened.slide("scrub", 6)
    settled(opened)
    assert opened.pixels("film-0") != first
    opened.close()
