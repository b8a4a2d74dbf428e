"""The panel in a real browser: from a file, and served with the real game behind it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from core import config as cli
from core.contracts import UserError
from core.directions import load_basis
from core.episodes import RolloutStore
from tests.browser.test_pages import Opened
from tests.panel_runs import NAMES, SAMPLES, STEPS, K, P
from validation.panel.__main__ import STAGE, PanelConfig, ViewName, check, main, shown_of, write_panel
from validation.panel.contents import together
from validation.panel.live import Live
from validation.panel.page import PAGE
from validation.panel.server import HOST, Loader, Served, listening, live_from, server_of
from validation.panel.work import Cancelled, Job

WIDE = "document.documentElement.scrollWidth > window.innerWidth"
READY = "document.documentElement.dataset.ready === '{}'"


class Panel(Opened):
    """The panel at a view."""

    def __init__(self, browser: Any, file: Path, state: str, width: int = 1280, **more: Any) -> None:
        super().__init__(browser, file, width, **more)
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
def samples(browser: Any, panel_page: Path, tmp_path: Path) -> Iterator[Panel]:
    opened = Panel(browser, panel_page, "view=samples&s=1&t=0")
    yield opened
    opened.tab.screenshot(path=tmp_path / "samples.png", full_page=True)
    opened.close()


def settled(panel: Panel) -> None:
    panel.until("drawing === drawn && !writing")


def test_the_first_page_answers_and_links_to_the_evidence(browser: Any, panel_page: Path, tmp_path: Path) -> None:
    opened = Panel(browser, panel_page, "view=answer")
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
    settled(samples)
    first = samples.pixels("course-value")
    key.press("ArrowRight")
    settled(samples)
    assert samples.state()["t"] == "1"
    assert samples.pixels("course-value") != first  # the mark has moved (an untrained simulator's frames stand still)
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
    assert samples.tab.input_value("#q-more") == "ica:1"


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
    assert float(field.nth(0).get_attribute("placeholder").replace("−", "-")) == pytest.approx(smallest, rel=0.06)
    field.nth(0).fill("0.5")
    field.nth(0).press("Tab")
    assert "active" in field.nth(0).get_attribute("class")
    slope = samples.tab.locator("#bounds input[data-k='1'][data-w='g']").nth(0)
    slope.fill("0")
    slope.press("Tab")
    settled(samples)
    assert "1g0~" in samples.tab.evaluate("decodeURIComponent(location.hash)")
    samples.tab.select_option("#f-quantity", "ica:2")  # another quantity resets the gradients' bounds alone
    assert samples.tab.evaluate("JSON.stringify([...bounds])") == json.dumps(
        [[0, {"v": [0.5, None]}]], separators=(",", ":")
    )
    samples.tab.select_option("#f-step", "2")  # another step resets all
    assert samples.tab.evaluate("bounds.size") == 0


def test_every_action_that_was_taken_has_its_probability(samples: Panel, panel_runs: Path) -> None:
    """Of actions that do the same one stands for all."""
    with RolloutStore(panel_runs / "samples") as store:
        spec, episode = store.spec, store.episode(1)
    ids = [ids for t, a in enumerate(episode.action) for ids in spec.distinct_actions().values() if a in ids]
    assert episode.logits is not None
    prob = torch.from_numpy(episode.logits).softmax(-1)
    want = [float(prob[t, one].sum()) for t, one in enumerate(ids)]
    shown = samples.tab.evaluate(
        "Array.from({length: data.steps[1] - 1}, (_, t) => data.T + t)"
        ".map(row => data.prob[row * data.A + data.taken[data.action[row]]] / 250)"
    )
    assert shown == pytest.approx(want, abs=0.003)
    assert len(spec.distinct_actions()) < len(set(spec.action_names))


def test_another_basis_is_chosen(samples: Panel, panel_runs: Path) -> None:
    samples.go("view=samples&s=1&t=2&f=0v-1~&x=3")
    before = samples.pixels("plane")
    samples.tab.select_option("#basis", "pca")
    other = "data && data.kind === 'pca' && byId('frame') && drawing === drawn && !writing"
    samples.until(other)
    assert samples.tab.evaluate("[data.K, bounds.size, state.x]") == [P, 0, 0] and samples.pixels("plane") != before
    with RolloutStore(panel_runs / "samples") as store:
        h = torch.from_numpy(store.episode(1).h)
    said = samples.tab.evaluate("Array.from(data.c.subarray((data.T + 2) * data.K, (data.T + 3) * data.K))")
    assert said == pytest.approx(load_basis(panel_runs / "hidden_states", "pca").project(h)[2].tolist(), abs=1e-3)
    same = samples.pixels("plane")
    samples.tab.reload()
    samples.until(other)
    assert samples.pixels("plane") == same and samples.state()["basis"] == "pca"
    samples.go("view=directions")  # the address says nothing of a basis: the first one
    assert samples.tab.locator("#d-k option").count() == K


def test_behaviours_are_text_and_found(browser: Any, panel_page: Path) -> None:
    opened = Panel(browser, panel_page, "view=gallery")
    assert opened.tab.locator("#view-gallery h3 input").nth(0).input_value() == NAMES[0]
    assert opened.tab.locator("#view-gallery b").count() == 0
    opened.tab.locator("#view-gallery h3 input").nth(1).fill("waits")
    opened.tab.click("#names")
    assert json.loads(opened.tab.locator("#view-gallery textarea").input_value()) == {"0": NAMES[0], "1": "waits"}
    opened.go("view=samples&fb=1")
    assert opened.tab.evaluate("matches.found.every(m => m.t === 4)")  # the second behaviour begins at step 4
    opened.close()


@pytest.mark.parametrize("view", ["films", "bookmarks", "interventions", "s0"])
def test_other_views_open(browser: Any, panel_page: Path, view: str) -> None:
    opened = Panel(browser, panel_page, f"view={view}")
    assert len(opened.text(f"view-{view}")) > 40
    assert opened.tab.locator(f"main > #view-{view}").count() == 1
    opened.close()


def test_a_number_says_what_it_is(samples: Panel) -> None:
    samples.tab.locator("#facts .num").nth(0).focus()
    assert "n = 1" in samples.text("tip") and "return" in samples.text("tip") and "interval" in samples.text("tip")
    samples.tab.locator(".pane.frames .made button").click()
    assert samples.tab.locator(".pane.frames .line").input_value().startswith("python -m generative.record_samples")


@pytest.mark.parametrize("view", ["answer", "samples", "directions", "gallery", "films", "bookmarks"])
def test_it_fits_a_phone(browser: Any, panel_page: Path, view: str, tmp_path: Path) -> None:
    opened = Panel(browser, panel_page, f"view={view}", width=390)
    assert not opened.tab.evaluate(WIDE)
    opened.tab.screenshot(path=tmp_path / f"{view}.png")
    for heading in opened.tab.locator(f"#view-{view} :is(h2, h3)").all():  # names and paths have no blanks
        heading.evaluate("e => { e.textContent = '/runs' + '/directory'.repeat(20); }")
    assert not opened.tab.evaluate(WIDE)
    opened.close()


def test_a_figure_for_a_paper(browser: Any, panel_runs: Path, tmp_path: Path) -> None:
    argv = ["build", str(panel_runs), "--only", "2", "0", "--out", str(tmp_path / "figure"), "--threads", "1"]
    main(cli.parse(PanelConfig, argv, STAGE))
    opened = Panel(browser, tmp_path / "figure" / PAGE, "view=figure&t=0")
    first = opened.pixels("courses-0")
    assert opened.tab.locator("article").count() == 2 and opened.text("where").startswith("step 0 of ")
    opened.go("view=figure&t=1")
    assert opened.text("where").startswith("step 1 of ")
    assert opened.pixels("courses-0") != first  # the mark has moved (an untrained simulator's frames stand still)
    opened.close()


@pytest.mark.parametrize("view", [view for view in get_args(ViewName) if view != "all"])
def test_a_figure_of_every_view_is_drawn(view: str, browser: Any, panel_runs: Path, tmp_path: Path) -> None:
    argv = ["build", str(panel_runs), "--only", "2", "0", "--view", view, "--out", str(tmp_path / "figure")]
    main(cli.parse(PanelConfig, [*argv, "--threads", "1"], STAGE))
    opened = Panel(browser, tmp_path / "figure" / PAGE, "view=figure&t=1")
    drawn = opened.tab.evaluate("Array.from(document.querySelectorAll('article canvas'), c => c.id)")
    assert drawn == [f"{view}-0", f"{view}-1"] and opened.tab.locator("figcaption").count() == 2
    nothing = "c => { const n = document.createElement('canvas'); n.width = c.width; n.height = c.height; return n; }"
    for name in drawn:
        bare = opened.tab.evaluate(f"({nothing})(document.getElementById('{name}')).toDataURL()")
        assert opened.pixels(name) != bare
    opened.tab.screenshot(path=tmp_path / f"{view}.png")
    opened.close()


# Served


@contextmanager
def serving(
    write: Callable[[Path, Callable[[], bool]], int], directory: Path, make_live: Callable[[], Live] | None
) -> Iterator[Served]:
    """What is served, when all of it is loaded; write, make_live: as in Loader."""
    with listening(0) as sock:
        served = Served({}, "token", sock.getsockname()[1])
        running = server_of(served)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        loader = Loader(served, directory, write, make_live, lambda: None)
        loader.start()
        loader.join()
        assert loader.failed is None and not served.loading
        yield served
        running.should_exit = True
        thread.join(10)
        loader.stop()


@pytest.fixture(scope="module")
def server(panel_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """What is served, with two starts of the real game behind it."""
    directory = tmp_path_factory.mktemp("served")
    config = PanelConfig(task="serve", runs=(panel_runs,), starts=2, threads=1)
    options, about = check(config), shown_of(config)
    assert about.chosen is not None
    with serving(
        lambda path, ended: write_panel(path, about, config, options, path, ended), directory,
        lambda: live_from(about.chosen, together(about.chosen)[0]["directions"], options, 2, 0, 1),
    ) as served:  # fmt: skip
        yield served


@pytest.fixture(scope="module")
def served(server: Served) -> str:
    """Its address."""
    return f"http://{HOST}:{server.port}/token/"


class Address:
    """What ``Opened`` takes for a file."""

    def __init__(self, url: str) -> None:
        self.url = url

    def as_uri(self) -> str:
        return self.url


class LivePanel(Panel):
    """The served panel; it may ask its own server, and nobody else."""

    def ask(self) -> None:
        self.tab.evaluate("delete live.result")
        self.tab.click("#live-go")
        self.until("live.job === null && !document.getElementById('live-go').disabled")

    def close(self) -> None:
        own = self.url
        self.requests = [url for url in self.requests if not url.startswith(own)] + [own]
        super().close()


@pytest.fixture
def live(browser: Any, served: str, tmp_path: Path) -> Iterator[LivePanel]:
    opened = LivePanel(browser, Address(served), "view=live")  # type: ignore[arg-type]
    yield opened
    opened.tab.screenshot(path=tmp_path / "live.png", full_page=True)
    opened.close()


def test_the_live_view_waits_for_what_is_loaded(browser: Any, server: Served, served: str) -> None:
    live, worker = server.live, server.worker
    server.live, server.worker, server.loading = None, None, "starts are being played"
    try:
        opened = LivePanel(browser, Address(served), "view=samples")  # type: ignore[arg-type]
        opened.tab.evaluate("location.hash = 'view=live'")
        opened.until(
            "(document.getElementById('live-loading') || {}).textContent === 'Loading: starts are being played …'"
        )
    finally:
        server.live, server.worker, server.loading = live, worker, ""
    opened.until(READY.format("live"))
    assert opened.tab.locator(".starts button").count() >= 2
    assert all("status of 503" in complaint for complaint in opened.complaints)  # the browser says what was asked
    opened.complaints.clear()
    opened.close()


def test_a_change_is_made_in_both_worlds(live: LivePanel) -> None:
    live.tab.fill("#live-horizon", "6")
    live.tab.fill("#live-change", "shift ica:0 by +0")
    live.ask()
    told = live.tab.evaluate("live.result.runs")
    assert set(told) == {"simulator", "simulator, changed", "real", "real, changed"}
    for world in ("simulator", "real"):  # a change of nothing changes nothing
        assert told[world]["value"] == told[f"{world}, changed"]["value"] and len(told[world]["value"]) == 7
        assert told[world]["action"] == told[f"{world}, changed"]["action"]
    assert live.tab.locator("#live-far").count() == 0
    live.tab.fill("#live-change", "shift ica:0 by +1000")
    live.ask()
    assert "1e+03 recorded standard deviations" in live.tab.locator("#live-far").inner_text()
    assert told["simulator"]["c"][0] == told["real"]["c"][0]  # one start, one hidden state
    live.tab.fill("#live-change", "shift ica:0 by +2")
    live.tab.select_option("#live-quantity", "value")
    live.ask()
    told = live.tab.evaluate("live.result.runs")
    for world in ("simulator", "real"):
        moved = told[f"{world}, changed"]["c"][0][0] - told[world]["c"][0][0]
        assert moved == pytest.approx(2, abs=1e-3)
    assert live.tab.locator("#live-out canvas").count() == 6 and live.tab.locator("#live-map").count() == 1
    live.tab.fill("#live-change", "shift pca:0 by -1")  # of another basis: the fourth number of h, which is ica:3
    live.ask()
    told = live.tab.evaluate("live.result.runs")
    moved = told["real, changed"]["c"][0][3] - told["real"]["c"][0][3]
    assert moved == pytest.approx(-1, abs=1e-3) and "pca:0" in live.tab.evaluate("live.facts.directions")
    before = live.pixels("live-2")
    live.slide("live-scrub", 5)
    assert live.pixels("live-2") != before


# What of a view's controls a finger cannot reach: outside of the screen, under something else, or too small.
UNREACHABLE = """() => {
  const bad = [];
  for (const one of document.querySelectorAll("section.view:not([hidden]) :is(button, select, input)")) {
    if (!one.offsetParent) continue;
    one.scrollIntoView({ block: "center" });
    const box = one.getBoundingClientRect(), at = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    const small = one.type !== "range" && (box.width < 24 || box.height < 24);
    if (box.left < 0 || box.right > innerWidth || !at || !(one.contains(at) || at.contains(one)) || small) bad.push(one.id || one.textContent);
  }
  scrollTo(0, 0);
  return bad;
}"""  # noqa: E501
ON_SCREEN = """id => {
  const box = document.getElementById(id).getBoundingClientRect();
  return box.height > 0 && box.top >= 0 && box.bottom <= innerHeight;
}"""


def test_a_change_is_made_on_a_phone(browser: Any, served: str, tmp_path: Path) -> None:
    opened = LivePanel(browser, Address(served), "view=live", width=390, height=844, phone=True)  # type: ignore[arg-type]
    tab = opened.tab
    assert not tab.evaluate(WIDE) and tab.evaluate("innerWidth") == 390
    assert tab.evaluate(UNREACHABLE) == []
    here = tab.locator("#tabs a[aria-current]").bounding_box()  # of a row that is wider than the screen
    assert here["x"] >= 0 and here["x"] + here["width"] <= 390
    tab.select_option("#live-kind", "collapse")
    tab.select_option("#live-quantity", "value")
    tab.fill("#live-horizon", "48")
    tab.tap("#live-go")
    opened.until("live.job !== null")
    assert tab.evaluate(ON_SCREEN, "live-cancel")  # what gives it up is where one looks now
    opened.until("live.job === null && !document.getElementById('live-go').disabled")
    told = tab.evaluate("live.result")
    assert told["asked"]["change"].startswith("collapse") and "real, changed" in told["runs"]
    for i in range(4):
        assert tab.evaluate(ON_SCREEN, f"live-{i}"), i
    assert not tab.evaluate(WIDE) and tab.evaluate(UNREACHABLE) == []
    heads = tab.locator("#live-probs th").all_inner_texts()
    assert tab.locator("#live-probs thead").is_visible() and len(heads) == 5  # numbers stand below what they are of
    box = [tab.locator("#live-probs th").nth(i).bounding_box() for i in (1, 4)]
    under = [tab.locator("#live-probs tbody tr").nth(2).locator("td").nth(i).bounding_box() for i in (1, 4)]
    assert [b["x"] for b in box] == pytest.approx([u["x"] for u in under]) and box[1]["x"] + box[1]["width"] <= 390
    tab.screenshot(path=tmp_path / "whole.png", full_page=True)
    tab.locator(".keys button", has_text="left").first.scroll_into_view_if_needed()
    tab.locator(".keys button", has_text="left").first.tap()
    opened.until("live.job !== null || live.result.asked.actions.length === 1")
    opened.until("live.job === null && !document.getElementById('live-go').disabled")
    assert tab.evaluate("live.result.runs.real.action[0]") == tab.evaluate("live.facts.choices[0]")
    assert tab.evaluate(ON_SCREEN, "live-0") and tab.evaluate(ON_SCREEN, "hand")
    tab.screenshot(path=tmp_path / "phone.png")
    opened.close()


def tab_to(tab: Any, name: str, most: int) -> None:
    """Press Tab until the element has the keyboard, at most so often."""
    for _ in range(most):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.id") == name:
            break


def test_a_change_is_made_by_keyboard(live: LivePanel) -> None:
    """Where the keyboard is stays known: a button that is switched off while it works gets it back."""
    key = live.tab.keyboard
    live.tab.locator(".starts button").nth(1).focus()
    key.press("Enter")
    tab_to(live.tab, "live-horizon", 40)
    key.press("Control+a")
    key.type("3")
    tab_to(live.tab, "live-go", 4)
    key.press("Enter")
    live.until("live.result && live.job === null && !document.getElementById('live-go').disabled")
    asked = live.tab.evaluate("live.result.asked")
    assert asked["start"] == 1 and asked["horizon"] == 3
    assert live.tab.evaluate("document.activeElement.id") == "live-go"
    tab_to(live.tab, "live-play", 40)
    key.press("Enter")
    live.until("live.step === 2")
    key.press("Enter")
    assert live.tab.locator("#live-play").get_attribute("aria-label") == "Play"
    live.tab.locator("#tabs a[data-view=samples]").focus()
    key.press("Enter")
    live.until(READY.format("samples"))
    assert not live.tab.evaluate("document.activeElement.closest('section.view[hidden]')")


def test_the_world_is_edited_and_played_by_hand(live: LivePanel) -> None:
    live.tab.fill("#live-horizon", "4")
    live.tab.fill("#live-edit", "move agent by 0 2")
    live.ask()
    told = live.tab.evaluate("live.result.runs")
    assert told["real"]["frames"] != told["real, changed"]["frames"] and "simulator, changed" in told
    live.tab.fill("#live-edit", "")
    live.tab.fill("#live-change", "")
    for _ in range(2):
        live.tab.locator(".keys button", has_text="right").nth(1).click()
        live.until("live.job === null && !document.getElementById('live-go').disabled")
    told = live.tab.evaluate("live.result.runs")
    chosen = live.tab.locator(".keys button").nth(7).inner_text().split()[-1]
    assert told["real"]["action"][:2] == told["simulator"]["action"][:2] and chosen in ("right", "upright", "downright")


def test_starts_are_drawn(live: LivePanel) -> None:
    before = live.tab.locator(".starts button").count()
    live.tab.click("#live-draw")
    live.until("live.job === null && !document.getElementById('live-go').disabled")
    assert live.tab.locator(".starts button").count() == before + 4
    assert live.tab.locator(".starts button.now").get_attribute("title") == f"start {before}"
    frames = [live.pixels(f"start-{i}") for i in range(before + 4)]
    assert len(set(frames)) == len(frames)
    live.tab.fill("#live-horizon", "2")
    live.tab.select_option("#live-kind", "resample")  # other fields go, that of the donor comes
    assert not live.tab.is_visible("#live-amount") and not live.tab.is_visible("#live-two")
    live.tab.select_option("#live-donor", "0")
    live.ask()
    told = live.tab.evaluate("live.result")
    assert told["asked"]["start"] == before and told["asked"]["donor"] == 0 and "real, changed" in told["runs"]


def test_mistakes_are_told_and_work_is_cancelled(live: LivePanel) -> None:
    live.tab.fill("#live-change", "shift ica:99 by +1")
    live.tab.click("#live-go")
    live.until("document.getElementById('live-said').textContent.includes('ica:99 does not exist')")
    live.tab.fill("#live-change", "")
    live.tab.fill("#live-edit", "remove dragon")
    live.tab.click("#live-go")
    live.until("document.getElementById('live-said').textContent.includes('dragon')")
    live.tab.fill("#live-edit", "")
    live.tab.fill("#live-horizon", "64")
    live.tab.fill("#live-change", "shift ica:0 by +1 always")
    live.tab.click("#live-go")
    live.until("live.job !== null")
    live.tab.click("#live-cancel")
    live.until("['cancelled', ''].includes(document.getElementById('live-said').textContent) && live.job === null")


class Counted(threading.Event):
    """Counts how often it is asked, and is set from the ``last`` time on."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.asked, self.last = 0, last

    def is_set(self) -> bool:
        self.asked += 1
        return self.asked >= self.last


def test_saliency_is_given_up_between_any_two_steps(server: Served) -> None:
    """Forward and back: a long one would hold up what is asked next."""
    assert server.live is not None
    asked = {"start": 0, "horizon": 3, "quantity": "value", "target": 3}
    job = Job(1, asked, stop=Counted(10**6))
    server.live.answer(asked, job)
    ticks = 2 * 4  # of the rollouts
    forward, back = 2 * 4, 2 * 3  # to read it and for gradients; whole and by the agent alone, to the first frame
    assert isinstance(job.stop, Counted) and job.stop.asked == ticks + forward + back
    for last in (ticks + forward // 2, ticks + forward + back):
        with pytest.raises(Cancelled):
            server.live.answer(asked, Job(2, asked, stop=Counted(last)))


def test_both_courses_at_once_are_those_of_one_at_a_time(server: Served) -> None:
    """A change beside an unaltered course does not touch it, and is what it would be alone."""
    assert server.live is not None
    asked = {"start": 0, "horizon": 4}
    plain = server.live.answer(asked, Job(1, asked))["runs"]
    assert set(plain) == {"simulator", "real"}
    for words, again in (("always", True), ("always through memory", True), ("through world", False)):
        values = {**asked, "change": f"shift ica:0 by +3 {words}"}
        runs = server.live.answer(values, job := Job(2, values))["runs"]
        assert job.done == job.total == 4 * 5
        assert runs["real"] == plain["real"] and runs["simulator"]["action"] == plain["simulator"]["action"]
        assert np.allclose(
            runs["simulator"]["c"], plain["simulator"]["c"], atol=1e-4
        )  # beside it another sums otherwise
        changed = runs["simulator, changed"]
        by = np.array(changed["c"])[:, 0] - np.array(runs["simulator"]["c"])[:, 0]
        assert by[0] == pytest.approx(3, abs=1e-3) and (by[1] > 2) == again
        assert changed["action"] == runs["simulator"]["action"] or "memory" not in words


def test_an_edit_that_goes_one_way_alone_is_not_foretold(server: Served) -> None:
    """As in validation.edits: the simulator would show the whole edit beside a real world that has a part of it."""
    assert server.live is not None
    for words, told in (("", True), (" through pixels", False), (" through world", False)):
        asked = {"start": 0, "horizon": 2, "edit": f"move agent by 0 2{words}"}
        runs = server.live.answer(asked, Job(1, asked))["runs"]
        assert "real, changed" in runs and ("simulator, changed" in runs) == told
    asked["edit"] = "move agent by 0 2 sufficient for reward"
    with pytest.raises(UserError, match="'necessary' and 'sufficient' are for studies"):
        server.live.answer(asked, Job(1, asked))


def test_strangers_get_nothing(served: str) -> None:
    import http.client

    host = served.split("/")[2]

    def status(path: str, method: str = "GET", **heads: str) -> int:
        there = http.client.HTTPConnection(host, timeout=10)
        there.request(method, path, headers=heads)
        answer = there.getresponse()
        answer.read()
        there.close()
        return answer.status

    assert status("/token/") == 200
    assert status("/") == 404 and status("/other/") == 404
    for path in ("/token/../panel.html", "/token/data/../../manifest.json", "/token/data/%2e%2e/secret", "/token/data"):
        assert status(path) == 404, path
    assert status("/token/", Host="evil.example") == 421
    assert status("/token/live", Origin="http://evil.example") == 403
    assert status("/token/live", "POST") == 400  # not JSON
    assert status("/token/live", "PUT") == 405
