"""The replay page holds what it was given: positions, values to within the stated step, labels; and nothing from
outside."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from core.pages import NOISE, UNLABELLED, label_colours, packed
from core.replay import NOT_KNOWN, NOWHERE, Replay, page, quantised


def small(**changes: Any) -> Replay:
    """Three ticks of two agents; the second dies before the last."""
    given: dict[str, Any] = {
        "map_RC": np.array([[0, 1], [2, 2]], np.uint8),
        "row_TA": np.array([[0, 1], [0, 1], [1, NOWHERE]], np.int16),
        "col_TA": np.array([[0, 1], [1, 1], [1, NOWHERE]], np.int16),
        "agent_A": np.array([3, 9]),
        "tick_T": np.array([5, 6, 7]),
        "values": {"health": np.array([[1.0, 2], [3, 4], [5, 99]])},
        "labels": {"cluster": np.array([[0, NOISE], [1, UNLABELLED], [0, 7]])},
    }
    return Replay(**given | changes)


def data_of(html: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    return dict(json.loads(text))


def unpacked(array: dict[str, Any]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(array["base64"]), np.dtype(array["dtype"]).newbyteorder("<"))
    return flat.reshape(array["shape"])


def test_the_page_holds_what_it_was_given() -> None:
    replay = small()
    data = data_of(page(replay))
    assert np.array_equal(unpacked(data["map"]), replay.map_RC)
    assert np.array_equal(unpacked(data["row"]), replay.row_TA) and np.array_equal(unpacked(data["col"]), replay.col_TA)
    assert (data["agents"], data["ticks"]) == ([3, 9], [5, 6, 7])
    (health,) = data["values"]
    level = unpacked(health["data"])
    assert level[2, 1] == NOT_KNOWN  # 99 is the value of the dead: not shown, nor part of the range
    assert (health["low"], health["high"], health["step"]) == (1, 5, 1)
    alive = replay.alive_TA
    assert np.array_equal((health["low"] + (level + 32767.0) * health["step"])[alive], replay.values["health"][alive])
    (cluster,) = data["labels"]
    assert [c["name"] for c in cluster["classes"]] == ["cluster 0", "cluster 1", "in no cluster", "not clustered"]
    assert unpacked(cluster["data"]).tolist() == [[0, -1], [1, -2], [0, -2]]
    assert [m["name"] for m in data["materials"]] == ["void", "water", "grass"]


def test_labels_that_are_no_clusters_have_their_names() -> None:
    data = data_of(page(small(label_names={"cluster": {0: "hybrid", 1: "takeru"}})))
    assert [c["name"] for c in data["labels"][0]["classes"]] == ["hybrid", "takeru", "in no cluster", "not clustered"]


def test_nothing_comes_from_outside_and_no_name_breaks_out() -> None:
    html = page(small(title="</script><img src=x onerror=alert(1)>", values={"</script>": np.zeros((3, 2))}))
    assert "default-src 'none'" in html
    assert not re.search(r"https?://|src=[\"']?[^\"' >]*\.|@import|url\(", html.replace("&lt;img src=x", ""))
    assert html.count("</script>") == 2  # of the data and of the program
    assert data_of(html)["values"][0]["name"] == "</script>"


@given(
    st.lists(st.one_of(st.floats(-1e9, 1e9), st.just(np.nan), st.just(np.inf)), min_size=1, max_size=40), st.booleans()
)
@settings(max_examples=200, deadline=None)
def test_values_are_kept_to_within_half_a_step(numbers: list[float], whole: bool) -> None:
    x = np.array(numbers)
    x = np.rint(x / 1e5) if whole else x
    level, low, step = quantised(x)
    known = np.isfinite(x)
    assert ((level == NOT_KNOWN) == ~known).all()
    if known.any():
        back = low + (level[known] + 32767.0) * step
        reach = np.ptp(x[known])
        assert np.abs(back - x[known]).max() <= step / 2 * (1 + 1e-6) + 1e-12 * np.abs(x[known]).max()
        assert step <= max(1, reach / 65534 * (1 + 1e-9))
        if whole:
            assert step == 1 and np.array_equal(back, x[known])


def test_a_large_replay_stays_below_15_mb() -> None:
    rng = np.random.default_rng(0)
    t, a = 1024, 128
    where = rng.integers(0, 160, (2, t, a)).astype(np.int16)
    html = page(
        small(
            map_RC=rng.integers(0, 16, (160, 160), dtype=np.uint8), row_TA=where[0], col_TA=where[1],
            agent_A=np.arange(a), tick_T=np.arange(t), labels={"cluster": rng.integers(-1, 9, (t, a))},
            values={f"v{i}": rng.normal(size=(t, a)).astype(np.float32) for i in range(15)},
        )
    )  # fmt: skip
    assert len(html) < 15e6


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"col_TA": np.full((3, 2), 2, np.int16)}, "outside the map"),
        ({"values": {"x": np.zeros((2, 2))}}, "not \\[ticks, agents\\]"),
        ({"agent_A": np.array([3, 3])}, "ids must differ"),
        ({"tick_T": np.array([5, 5, 6])}, "ticks increase"),
        ({"map_RC": np.zeros((2, 2))}, "not uint8"),
        ({"agent_A": np.array([], int)}, "at least one"),
    ],
)
def test_what_cannot_be_shown_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        small(**changes)


def test_colours_of_clusters_differ_and_none_is_grey() -> None:
    for count, differ in ((3, 3), (9, 9), (18, 18), (40, 18)):
        colours = label_colours([NOISE, UNLABELLED, *range(count)])
        clusters = {colours[i] for i in range(count)}
        assert len(clusters) == differ and not clusters & {colours[NOISE], colours[UNLABELLED]}
        assert all(len({c[1:3], c[3:5], c[5:]}) > 1 for c in clusters)
    assert label_colours([4, NOISE])[4] == label_colours(range(40))[4]  # whoever else is there


def test_only_what_browsers_know_is_packed() -> None:
    with pytest.raises(ValueError, match="cannot hold an array of int64"):
        packed(np.zeros(2, np.int64))
