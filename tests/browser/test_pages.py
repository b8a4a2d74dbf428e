"""The interactive pages in a real browser, opened from a file: no error, no request, and what is clicked is what
changes."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from analysis import replay
from analysis.activations import dendrogram
from analysis.semantics import hover
from analysis.semantics.states import States
from analysis.states import turning
from core.artefacts import Result
from core.pages import NOISE, UNLABELLED, label_colours
from core.replay import NOWHERE, Replay, page as replay_page


class Opened:
    """A page on the screen, with everything it complained of or asked for."""

    def __init__(self, browser: Any, file: Path, width: int = 1280, height: int = 900, phone: bool = False) -> None:
        """phone: touched, and as wide as the page says, as browsers of phones do it."""
        self.tab = browser.new_page(viewport={"width": width, "height": height}, has_touch=phone, is_mobile=phone)
        self.complaints: list[str] = []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.requests: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(file.as_uri())
        self.url = file.as_uri()

    def text(self, id_: str) -> str:
        return str(self.tab.locator(f"#{id_}").inner_text())

    def pixels(self, id_: str) -> str:
        """The picture on a canvas, as text: equal if and only if no pixel differs."""
        return str(self.tab.evaluate(f"document.getElementById('{id_}').toDataURL()"))

    def has_colour(self, id_: str, colour: str) -> int:
        """How many pixels of a canvas have exactly this '#rrggbb'."""
        with Image.open(io.BytesIO(base64.b64decode(self.pixels(id_).partition(",")[2]))) as image:
            picture = np.asarray(image.convert("RGB"))
        return int((picture == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(-1).sum())

    def until(self, condition: str) -> None:
        """Wait for a JavaScript condition, ten seconds at most (the page's policy forbids playwright's own waiting)."""
        for _ in range(200):
            if self.tab.evaluate(condition):
                return
            self.tab.wait_for_timeout(50)
        raise AssertionError(f"never true: {condition}")

    def slide(self, id_: str, value: float) -> None:
        """Move a slider as a hand would: its value, then the event."""
        self.tab.locator(f"#{id_}").evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", value)

    def close(self) -> None:
        """The page must have been quiet and alone."""
        self.tab.close()
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("data:", "blob:"))] == [self.url]


# Replay


@pytest.fixture(scope="module")
def world() -> Replay:
    """Ten ticks, three agents: 4 walks east; 7 stands, moves away and dies after tick 3; 9 is there from tick 5 on."""
    row, col = np.full((10, 3), NOWHERE, np.int16), np.full((10, 3), NOWHERE, np.int16)
    row[:, 0], col[:, 0] = 2, np.arange(10) + 1
    row[:4, 1], col[:4, 1] = 8, [5, 5, 5, 9]
    row[5:, 2], col[5:, 2] = 10, 10
    label = np.zeros((10, 3), int)
    label[:, 1], label[6:, 0], label[:, 2] = 1, NOISE, UNLABELLED
    health = np.where(row >= 0, np.arange(10)[:, None] * 10.0, np.nan)
    material = np.full((14, 14), 2, np.uint8)
    material[[0, -1]] = material[:, [0, -1]] = 0
    return Replay(
        map_RC=material, row_TA=row, col_TA=col, agent_A=np.array([4, 7, 9]), tick_T=np.arange(100, 110),
        values={"self_health": health}, labels={"cluster": label}, title="Three <agents>",
    )  # fmt: skip


@pytest.fixture
def played(browser: Any, world: Replay, tmp_path: Path) -> Iterator[Opened]:
    (tmp_path / "replay.html").write_text(replay_page(world))
    opened = Opened(browser, tmp_path / "replay.html")
    yield opened
    opened.tab.screenshot(path=tmp_path / "replay.png")
    opened.close()


def test_the_scrub_bar_moves_the_world(played: Opened) -> None:
    assert played.tab.locator("h1").inner_text() == "Three <agents>"
    assert played.text("status") == "tick 100 · 2 of 3 alive"
    before = played.pixels("map")
    played.slide("scrub", 7)
    assert played.text("status") == "tick 107 · 2 of 3 alive"  # 7 is dead, 9 has come
    assert played.pixels("map") != before
    played.slide("scrub", 0)
    assert played.pixels("map") == before


def test_a_link_leads_to_a_tick_and_an_agent(browser: Any, world: Replay, tmp_path: Path) -> None:
    (tmp_path / "replay.html").write_text(replay_page(world))
    opened = Opened(browser, tmp_path / "replay.html")
    opened.tab.evaluate("location.hash = '#tick=106&agent=4'")
    opened.until("now === 6")
    assert opened.text("status").startswith("tick 106 ") and "agent 4" in opened.text("who").lower()
    opened.tab.evaluate("location.hash = '#tick=999&agent=77'")  # what is not there: the last tick, nobody else
    opened.until("now === 9")
    opened.tab.reload()
    opened.until("now === 9")
    opened.tab.close()
    assert opened.complaints == []


def test_the_keyboard_steps_plays_and_stops(played: Opened) -> None:
    keyboard = played.tab.keyboard
    keyboard.press("ArrowRight")
    keyboard.press("ArrowRight")
    assert played.text("status").startswith("tick 102 ")
    keyboard.press("ArrowLeft")
    assert played.text("status").startswith("tick 101 ")
    played.tab.locator("#scrub").focus()
    keyboard.press("ArrowRight")  # one tick, not one of the bar's and one of the page's
    assert played.text("status").startswith("tick 102 ")
    keyboard.press("End")
    assert played.text("status").startswith("tick 109 ")
    keyboard.press("Home")
    assert played.text("status").startswith("tick 100 ")
    keyboard.press("Shift+ArrowRight")
    assert played.text("status").startswith("tick 109 ")
    played.tab.select_option("#speed", "60")
    played.tab.click("#play")  # at the end: begins again
    played.until("document.getElementById('play').textContent === '▶'")  # ends by itself
    assert played.text("status").startswith("tick 109 ")


def test_colours_are_those_of_the_legend(played: Opened, world: Replay) -> None:
    blue, orange, grey = "#1f77b4", "#ff7f0e", "#9a9a9a"
    legend = re.sub(r"\s+", " ", played.text("legend")).strip()
    assert legend == "cluster 0 1 cluster 1 1 in no cluster 0 not clustered 0"
    assert played.has_colour("map", blue) > 20 and played.has_colour("map", orange) > 20
    played.slide("scrub", 9)
    assert played.has_colour("map", orange) == 0 and played.has_colour("map", grey) > 20  # 7 has died, 4 is noise
    counts = re.sub(r"\s+", " ", played.text("legend")).strip()
    assert counts == "cluster 0 0 cluster 1 0 in no cluster 1 not clustered 1"  # the dead do not count
    label = played.pixels("map")
    played.tab.select_option("#colour", label="self_health")
    assert played.pixels("map") != label and played.has_colour("map", blue) == 0
    assert (played.text("low"), played.text("high"), played.text("legend")) == ("0", "90", "")


def test_an_agent_is_named_and_clicked(played: Opened) -> None:
    box = played.tab.locator("#map").bounding_box()
    tiles = 12  # the void round the map is not shown
    scale = min(box["width"], box["height"]) / tiles
    x = box["x"] + box["width"] / 2 + (5.5 - 7) * scale
    y = box["y"] + box["height"] / 2 + (8.5 - 7) * scale
    played.tab.mouse.move(x, y)
    assert played.text("tip") == "agent 7 at 8, 5\ncluster: cluster 1"
    plain = played.pixels("map")
    played.tab.mouse.click(x, y)
    assert played.text("who") == "Agent 7" and played.pixels("map") != plain
    assert "self_health\t0" in played.text("facts") and "100 to 103" in played.text("facts")
    played.slide("scrub", 6)
    assert played.text("who") == "Agent 7 (dead)"
    unmarked = played.pixels("map")
    played.tab.check("#deaths")
    assert played.pixels("map") != unmarked and played.has_colour("map", "#b0121b") > 3
    played.slide("scrub", 2)
    assert played.has_colour("map", "#b0121b") == 0  # nobody has died yet


def test_trails_zoom_and_back(played: Opened) -> None:
    played.slide("scrub", 5)
    with_trail = played.pixels("map")
    played.tab.select_option("#trail", "0")
    without = played.pixels("map")
    assert without != with_trail
    box = played.tab.locator("#map").bounding_box()
    played.tab.mouse.move(box["x"] + 200, box["y"] + 200)
    size = "[map.clientWidth, map.clientHeight]"
    under = f"{size}.map(s => (200 - s / 2) / scaleOf(...{size}))"
    tile = f"(([x, y]) => [view.col + x, view.row + y])({under})"
    before = played.tab.evaluate(tile)
    played.tab.mouse.wheel(0, -400)
    played.until("view.span < 9")
    assert played.pixels("map") != without
    assert played.tab.evaluate(tile) == pytest.approx(before, abs=0.05)  # what is under the pointer stays there
    played.tab.click("#whole")
    assert played.pixels("map") == without


def test_the_stage_s_own_page(browser: Any, extraction: Path, clusters: Path, tmp_path: Path) -> None:
    replay.main(replay.ReplayConfig(extraction=extraction, cluster_dir=clusters, world=1, out=tmp_path / "run"))
    opened = Opened(browser, tmp_path / "run" / replay.PAGE)
    assert opened.tab.locator("h1").inner_text() == "World 1 on map 51, policy made-up"
    assert opened.text("status") == "tick 0 · 6 of 6 alive"
    names = opened.tab.locator("#colour option").all_inner_texts()
    assert names[0] == "cluster" and "self_health" in names and "value" in names and len(names) == 1 + 14 + 2
    for name in names:
        opened.tab.select_option("#colour", label=name)
    opened.tab.keyboard.press("End")
    opened.tab.screenshot(path=tmp_path / "replay.png")
    opened.close()


# Dendrogram


@pytest.fixture(scope="module")
def clustered(clusters: Path) -> Result:
    return Result.load(clusters)


@pytest.fixture
def explored(browser: Any, clustered: Result, tmp_path: Path) -> Iterator[Opened]:
    (tmp_path / dendrogram.FILE).write_text(dendrogram.page(clustered))
    opened = Opened(browser, tmp_path / dendrogram.FILE)
    yield opened
    opened.tab.screenshot(path=tmp_path / "dendrogram.png")
    opened.close()


def test_it_opens_with_hdbscan_s_own_choice(explored: Opened, clustered: Result) -> None:
    label = clustered.arrays["label"]
    n, noise = len(label), int((label == -1).sum())
    assert explored.text("found") == (
        f"HDBSCAN's own choice: {label.max() + 1} clusters, {100 * noise / n:.1f} % in none ({noise} of {n} points)"
    )
    assert explored.tab.evaluate("Array.from(own)") == label.tolist()
    rows = explored.tab.locator("#clusters tr").all_inner_texts()
    sizes = {k: int((label == k).sum()) for k in range(label.max() + 1)}
    assert rows[0].split("\t") == ["cluster", "points", "share"]
    assert {r.split("\t")[0]: int(r.split("\t")[1]) for r in rows[1:-1]} == {
        f"cluster {k}": v for k, v in sizes.items()
    }


def test_a_cut_is_what_hdbscan_says_it_is(explored: Opened, clustered: Result) -> None:
    """The page's clusters at a cut against hdbscan's own DBSCAN* at that distance, computed from the points."""
    from hdbscan import HDBSCAN  # type: ignore[import-untyped]
    from sklearn.metrics import adjusted_rand_score

    model = HDBSCAN(min_cluster_size=8, core_dist_n_jobs=1).fit(clustered.arrays["umap"])
    counts, pictures = [], [explored.pixels("scatter")]
    for at in range(50, 1000, 150):
        explored.slide("cut", at)
        density = explored.tab.evaluate("lambda")
        mine = np.array(explored.tab.evaluate("Array.from(shown)"))
        theirs = model.dbscan_clustering(1 / density, min_cluster_size=8)
        assert np.array_equal(mine == -1, theirs == -1) and adjusted_rand_score(mine, theirs) == 1
        counts.append(len(set(mine) - {-1}))
        said = explored.text("found")
        assert f": {counts[-1]} cluster" in said and f"({(mine == -1).sum()} of {len(mine)} points)" in said
        pictures.append(explored.pixels("scatter"))
    assert len(set(counts)) > 1 and len(set(pictures)) > 5
    explored.tab.click("#own")
    assert explored.text("found").startswith("HDBSCAN's own choice") and explored.pixels("scatter") in pictures


def test_small_clusters_can_be_left_out(explored: Opened) -> None:
    explored.slide("cut", 700)
    before = explored.tab.evaluate("sizesOf(shown)[0].size")
    explored.slide("least", 80)
    least = explored.tab.evaluate("least")
    assert least > 8 and f"at least {least} points" in explored.text("least_text")
    after = np.array(explored.tab.evaluate("Array.from(shown)"))
    assert 0 < len(set(after) - {-1}) < before
    assert min(np.unique(after[after >= 0], return_counts=True)[1]) >= least


def test_a_branch_is_clicked_and_let_go(explored: Opened, clustered: Result) -> None:
    plain, tree = explored.pixels("scatter"), explored.pixels("tree")
    box = explored.tab.locator("#tree").bounding_box()
    left, right, first, last = explored.tab.evaluate(
        "boxOf(branches.find(b => b.label === 0), byId('tree').clientWidth, byId('tree').clientHeight)"
    )
    where = box["x"] + 1 + (left + right) / 2, box["y"] + 1 + (first + last) / 2
    explored.tab.mouse.move(*where)
    assert explored.text("tip").startswith("cluster 0: ")
    explored.tab.mouse.click(*where)
    assert explored.text("who") == "Cluster 0"
    facts = explored.text("facts")
    size = int(re.search(r"points\t(\d+)", facts).group(1))  # type: ignore[union-attr]
    assert size >= (clustered.arrays["label"] == 0).sum()
    assert "Features that differ most" in facts and any(name in facts for name in clustered.notes["features"])
    assert explored.pixels("scatter") != plain and explored.pixels("tree") != tree
    explored.tab.mouse.click(*where)
    assert explored.text("who") == "No branch chosen"
    assert explored.pixels("scatter") == plain and explored.pixels("tree") == tree


def test_the_map_takes_the_colours_of_a_feature(explored: Opened) -> None:
    plain = explored.pixels("scatter")
    explored.tab.select_option("#colour", label="tick")
    assert explored.pixels("scatter") != plain and "(dark) to" in explored.text("range")
    explored.tab.select_option("#colour", "-1")
    assert explored.pixels("scatter") == plain


def test_it_fits_a_narrow_screen(browser: Any, clustered: Result, tmp_path: Path) -> None:
    (tmp_path / dendrogram.FILE).write_text(dendrogram.page(clustered))
    opened = Opened(browser, tmp_path / dendrogram.FILE, width=420, height=800)
    assert opened.tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    opened.tab.screenshot(path=tmp_path / "narrow.png", full_page=True)
    opened.close()


# States of a policy's own clusters


@pytest.fixture
def hovered(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """500 states of 5 episodes on a grid; each frame is of one colour, which tells its row; code 3 is dead."""
    n = 500
    grid = np.stack([np.arange(n) % 25, np.arange(n) // 25], 1).astype(np.float32)
    index = np.stack([np.arange(n) // 100, np.arange(n) % 100], 1)
    code = np.arange(n) % 3
    states = States(grid, grid, code, np.linspace(0, 1, n), code, index, index[:, 0], 4)
    frames = np.zeros((n, 48, 64, 3), np.uint8)
    frames[..., 0], frames[..., 1] = (np.arange(n) % 256)[:, None, None], (np.arange(n) // 256 * 100)[:, None, None]
    names = {0: "walks <on>", 1: "jumps", 2: "falls", 3: "code 3"}
    maps = {"plane": grid, "turned": grid[:, ::-1]}
    text = hover.page(frames, states, np.arange(n), maps, np.array([7, 8, 9, 10, 11]), names, "States & <codes>")
    (tmp_path / "hover.html").write_text(text)
    opened = Opened(browser, tmp_path / "hover.html")
    yield opened
    opened.tab.screenshot(path=tmp_path / "hover.png")
    opened.close()


def test_a_state_under_the_pointer_shows_its_frame_and_what_it_is(hovered: Opened) -> None:
    box = hovered.tab.locator("#map").bounding_box()
    hovered.tab.mouse.move(box["x"] + box["width"] - 8, box["y"] + 8)  # the last one: right, and highest
    assert hovered.text("about") == "jumps; level 11, step 99; value 1.00"  # 499 % 3 = 1
    hovered.until("sheets.every((sheet) => sheet.complete)")
    assert hovered.has_colour("frame", f"#{499 % 256:02x}{100:02x}00") > 200**2
    shape = hovered.tab.locator("#frame").bounding_box()
    assert (shape["width"], shape["height"]) == (256, 192)  # the frame's own


def test_states_are_found_by_level_and_step(hovered: Opened) -> None:
    hovered.tab.fill("#level", "9")
    assert hovered.text("found") == "100 of 500 states match"
    hovered.tab.fill("#step", "4")
    assert hovered.text("found") == "1 of 500 states match"
    assert hovered.text("about") == "walks <on>; level 9, step 4; value 0.41"  # 204 % 3 = 0
    hovered.tab.fill("#level", "12")
    assert hovered.text("found") == "0 of 500 states match"


def test_codes_are_hidden_and_dead_ones_named(hovered: Opened) -> None:
    colour = label_colours(range(4))[1]
    assert hovered.has_colour("map", colour) > 0 and "code 3 (dead)" in hovered.text("legend")
    before = hovered.pixels("map")
    hovered.tab.uncheck("#code1")
    assert hovered.has_colour("map", colour) == 0
    hovered.tab.check("#code1")
    assert hovered.pixels("map") == before
    hovered.tab.select_option("#which", "turned")
    assert hovered.pixels("map") != before


# States that turn


def test_states_turn_stop_and_take_another_colour(browser: Any, tmp_path: Path) -> None:
    n = 400
    rng = np.random.default_rng(0)
    result = Result(
        arrays={
            "index": np.stack([np.arange(n) // 40, np.arange(n) % 40], 1), "source": np.zeros(n, np.int8),
            "value": rng.normal(size=n), "action": np.arange(n) % 2, "reward": np.zeros(n), "level": np.full(n, -1),
            "c_pca": rng.normal(size=(n, 4)), "cluster": np.arange(n) % 3, "share": np.arange(n) % 40 / 39,
        },
        notes={"space": "h", "action_names": ["<left>", "right"]},
    )  # fmt: skip
    (tmp_path / "turning.html").write_text(turning.page(result))
    opened = Opened(browser, tmp_path / "turning.html")
    before = opened.pixels("space")
    opened.until("angle > 0.65")
    assert opened.pixels("space") != before
    opened.tab.click("#turn")
    assert opened.text("turn") == "Turn"
    stopped = opened.pixels("space")
    opened.tab.wait_for_timeout(200)
    assert opened.pixels("space") == stopped
    numbers = turning.number_of(result, "value")
    assert numbers is not None
    assert opened.text("ends").split() == [f"{v:.3g}".replace("-", "\u2212") for v in numbers[1:3]]
    opened.tab.select_option("#by", "1")
    assert opened.pixels("space") != stopped
    assert opened.text("legend").split() == ["<left>", "right"] and not opened.tab.locator("#scale").is_visible()
    opened.tab.screenshot(path=tmp_path / "turning.png")
    box = opened.tab.locator("#space").bounding_box()
    angle = opened.tab.evaluate("angle")
    opened.tab.mouse.move(box["x"] + 200, box["y"] + 200)
    opened.tab.mouse.down()
    opened.tab.mouse.move(box["x"] + 350, box["y"] + 200)
    opened.tab.mouse.up()
    assert opened.tab.evaluate("angle") == pytest.approx(angle - 1)
    opened.close()
