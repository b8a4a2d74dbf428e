"""The table, the page and the drawings of surviving edges, from a result made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.coupling import figures as coupling_figures
from analysis.coupling.edges import MOST, beyond_zero, drawn, edges, label, page, strongest_pairs
from core.artefacts import Result

ALPHA = 0.05
K = 3


def made_by_hand(k: int = K) -> Result:
    """Two behaviours and lags; in behaviour 5 at lag 2: 0 -> 1 direct, 0 -> 2 through the world against its
    correlation, 1 -> 1 itself, 2 -> 0 whose two parts cancel, 2 -> 1 whose straight-through number has the other sign,
    1 -> 2 whose interval holds 0; in behaviour 3 nothing."""
    result = Result()
    a, shape = result.arrays, (2, 2, k, k)
    a["behaviours"], a["lags"] = np.array([3, 5]), np.array([1, 2])
    a["samples"], a["sample_episodes"] = np.array([8, 9]), np.array([8, 7])
    a["correlation"], a["q_correlation"] = np.full(shape, 0.3), np.full(shape, 0.5)
    a["correlation"][1, 1, 0, 1], a["q_correlation"][1, 1, 0, :] = 0.4, 0.01
    for path in coupling_figures.PATHS:
        a[f"jacobian{path}"], a[f"q_jacobian{path}"] = np.zeros(shape), np.ones(shape)
    for entry, direct, world, q_direct, q_world in (
        ((0, 1), 0.5, 0.01, 0.001, 0.6),
        ((0, 2), 0.02, -0.4, 0.7, 0.002),
        ((1, 1), 0.9, 0.0, 0.001, 1.0),
        ((2, 0), 0.3, -0.3, 0.001, 0.001),
        ((2, 1), 0.0, 0.6, 1.0, 0.001),
        ((1, 2), 0.05, 0.0, 0.001, 1.0),
    ):
        here = (1, 1, *entry)
        a["jacobian_agent_only"][here], a["q_jacobian_agent_only"][here] = direct, q_direct
        a["jacobian_through_world"][here], a["q_jacobian_through_world"][here] = world, q_world
        a["jacobian"][here] = direct + world
        a["q_jacobian"][here] = 0.003 if entry != (2, 0) else 0.9
    a["straight_through_world"] = 0.5 * a["jacobian_through_world"]
    a["straight_through_world"][1, 1, 2, 1] = -0.2
    a["straight_through"] = a["jacobian_agent_only"] + a["straight_through_world"]
    for path in coupling_figures.PATHS:
        for end, by in (("low", -0.1), ("high", 0.1)):
            a[f"jacobian{path}_{end}"] = a[f"jacobian{path}"] + by
        for measure in ("sign_agreement", "magnitude_rank_correlation"):
            result.scalar(f"{measure}{path}", 0.8 if path else float("nan"), "share", 5, (0.6, 0.9))
            result.scalar(f"{measure}{path}_null", 0.5, "share", 5, (0.3, 0.7))
            result.scalar(f"{measure}{path}_p", 0.01, "permutation p")
    result.notes |= {
        "alpha": ALPHA, "basis_kind": "ica", "directions": [f"ica:{i}" for i in range(k)],
        "names": {"3": "behaviour 3", "5": "behaviour 5: jumps | pits"},
        "left_out": ["behaviour 7 has no episodes"], "resolution": [], "actions": [["left"], ["none", "key_d"]],
    }  # fmt: skip
    result.scalar("branches_ended", 0.0123, "share")
    result.tables["edges"] = edges(result, ALPHA)
    return result


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("", "behaviour 5"),
        ("behaviour 5", "behaviour 5"),
        ("behaviour 5: mostly right", "behaviour 5 (mostly right)"),
        ("jumps over\n a pit", "behaviour 5 (jumps over a pit)"),
    ],
)
def test_a_behaviour_is_called_what_the_user_called_it(name: str, shown: str) -> None:
    assert label({"5": name}, 5) == shown


def test_edges_say_which_part_they_have() -> None:
    own, direct, world = made_by_hand().tables["edges"]
    assert [row["path"] for row in (own, direct, world)] == ["direct", "direct", "through world"]
    assert (direct["J"], direct["J_direct"], direct["q_direct"]) == (pytest.approx(0.51), 0.5, 0.001)
    assert (world["J_through_world"], world["q_through_world"]) == (-0.4, 0.002)
    assert (world["J_through_world_low"], world["J_direct_high"]) == (pytest.approx(-0.5), pytest.approx(0.12))
    assert [row["agree"] for row in (own, direct, world)] == [None, True, False]
    assert (world["J_straight_through"], world["J_through_world_straight_through"]) == (pytest.approx(-0.18), -0.2)
    assert direct["sentence"] == (
        "ica:0 at t-2 raises ica:1 in behaviour 5 (jumps | pits): J = 0.51, r = 0.40, q = 0.003; "
        "direct (memory) 0.5 (q = 0.001), through the world (actions enumerated) 0.01 (q = 0.6); "
        "straight-through, for comparison: whole 0.505, through the world 0.005"
    )
    assert "lowers ica:2" in world["sentence"] and "raises itself" in own["sentence"]


def test_an_edge_needs_its_interval_beyond_0_and_the_straight_through_sign() -> None:
    result = made_by_hand()
    a = result.arrays
    significant = {(int(i), int(j)) for i, j in np.argwhere(a["q_jacobian"][1, 1] <= ALPHA)}
    beyond = {(int(i), int(j)) for i, j in np.argwhere(beyond_zero(result, "", ALPHA)[1, 1])}
    edge = {(int(i), int(j)) for i, j in np.argwhere(drawn(result, "", ALPHA)[1, 1])}
    assert significant - beyond == {(1, 2)} and beyond - edge == {(2, 1)} and edge == {(0, 1), (0, 2), (1, 1)}
    assert not drawn(result, "_through_world", ALPHA)[1, 1, 2, 1] and drawn(result, "_agent_only", ALPHA)[1, 1, 0, 1]
    assert "1 more are left out because their straight-through number has the other sign" in page(result)
    a["straight_through"][1, 1, 2, 1] = a["straight_through_world"][1, 1, 2, 1] = 0.001
    assert drawn(result, "", ALPHA)[1, 1, 2, 1] and drawn(result, "_through_world", ALPHA)[1, 1, 2, 1]
    a["straight_through"][1, 1, 2, 1] = 0.0
    assert not drawn(result, "", ALPHA)[1, 1, 2, 1]


def test_both_parts_or_neither_may_be_significant() -> None:
    result = made_by_hand()
    a = result.arrays
    a["q_jacobian"][1, 1, 2, 0], a["jacobian"][1, 1, 2, 0], a["jacobian_low"][1, 1, 2, 0] = 0.04, 0.001, 0.0005
    a["q_jacobian_agent_only"][1, 1, 0, 1] = 0.2
    paths = {(row["source"][-1] + row["target"][-1]): row["path"] for row in edges(result, ALPHA)}
    assert paths == {"01": "neither alone", "02": "through world", "11": "direct", "20": "both"}


def test_the_strongest_of_every_pair_is_told_once() -> None:
    rows = [{"source": i, "target": j, "n": n} for n, (i, j) in enumerate([(1, 1), (0, 1), (1, 0), (0, 1)])]
    assert [row["n"] for row in strongest_pairs(rows)] == [1, 2]


def test_the_page_reads_by_strength_and_keeps_a_name_in_its_cell() -> None:
    result = made_by_hand()
    text = page(result)
    between, own = text.split("## ")[1:]
    rows = [line for line in between.splitlines() if " at t-2 " in line]
    assert [row.split(" | ")[0] for row in rows] == ["| ica:0 at t-2 raises ica:1", "| ica:0 at t-2 lowers ica:2"]
    assert "behaviour 5 (jumps \\| pits)" in rows[0] and "0.51 [0.41, 0.61] | 0.505 | 0.5* | 0.01 | 0.005 |" in rows[0]
    assert "2 different actions were tried (none = key_d); after 1.2 % of them the simulated episode ends" in text
    result.notes["parts"] = ["move", "jump"]
    assert "An action has 2 parts (move, jump): their 2 different choices were tried, one at a time" in page(result)
    assert rows[0].count("agree") == 1 and rows[1].count("differ") == 1 and "ica:1 at t-2 raises ica:1" in own
    assert "Note: behaviour 7 has no episodes." in text
    result.tables["edges"] *= MOST
    assert f"{MOST} weaker ones are in edges.csv" in page(result)
    result.tables["edges"] = []
    assert page(result).count("None.") == 2


def test_a_graph_draws_what_survived_and_says_how_much_it_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    result = made_by_hand()
    shown, count = coupling_figures.arrows(result, 1, 1, "")
    assert [(a.source, a.target, a.style) for a in shown] == [(1, 1, ":"), (0, 2, "--"), (0, 1, "-")] and count == 2
    through, _ = coupling_figures.arrows(result, 1, 1, "_through_world")
    assert [(a.source, a.target, a.J) for a in through] == [(2, 0, -0.3), (0, 2, -0.4)]  # and not 2 -> 1
    assert coupling_figures.arrows(result, 0, 0, "") == ([], 0)
    figure = coupling_figures.draw_graph(result, 1)
    titles = [axis.get_title().replace("\n", " ").strip() for axis in figure.axes]
    names = ("whole", "direct (memory)", "through the world (actions enumerated)")
    assert titles[::2] == [f"{name} lag 1: 0 effects" for name in names]
    assert titles[1::2] == [
        f"{name} lag 2: 2 effects widest: size {J}" for name, J in zip(names, (0.51, 0.5, 0.4), strict=True)
    ]
    colours = {text.arrow_patch.get_edgecolor() for text in figure.axes[1].texts}
    assert len(figure.axes[1].texts) == 2 and len(colours) == 2  # one raises, one lowers
    monkeypatch.setattr(coupling_figures, "STRONGEST", 1)
    (own, strongest), count = coupling_figures.arrows(result, 1, 1, "")
    assert count == 2 and (strongest.target, own.target) == (1, 1) and strongest.source == 0
    assert "1 of 2 effects" in coupling_figures.draw_graph(result, 1).axes[1].get_title()


def test_matrices_show_both_parts_on_scales_of_their_own() -> None:
    figure = coupling_figures.draw_matrices(made_by_hand(), 1)
    images = [axis.images[0] for axis in figure.axes if axis.get_title()]
    assert [image.norm.vmax for image in images[:5]] == [0.6, 0.6, 0.6, 0.6, 1.0]  # not the own past's 0.9
    assert "jumps | pits" in figure.get_suptitle()


def test_what_was_not_tested_does_not_look_like_no_effect() -> None:
    image = coupling_figures.draw_matrices(of_size(3), 0).axes[0].images[0]
    assert image.get_array().mask.all()
    red, *_, opaque = image.cmap.get_bad()
    assert opaque == 1 and red < 0.93 < image.cmap(0.5)[0]


def test_titles_fit_on_the_figure_of_a_single_lag() -> None:
    result = made_by_hand()
    one = Result(arrays={n: x[:, :1] if x.ndim == 4 else x for n, x in result.arrays.items()}, notes=result.notes)
    one.arrays["lags"] = result.arrays["lags"][:1]
    one.notes["names"] = {"3": "", "5": "mostly downright"}
    figure = coupling_figures.draw_graph(one, 1)
    figure.canvas.draw()
    box = figure._suptitle.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_the_paths_are_compared_and_too_few_is_said() -> None:
    figure = coupling_figures.draw_paths(made_by_hand())
    left, signs, _ = figure.axes
    counts = [text.get_text() for text in left.get_legend().get_texts()]
    assert counts == ["direct alone: 1", "both parts: 0", "through world alone: 1", "neither part alone: 0"]
    assert [text.get_text().strip() for text in signs.texts] == ["too few", "p = 0.01", "p = 0.01"]


def of_size(k: int) -> Result:
    result = made_by_hand(max(k, K))
    for name, x in result.arrays.items():
        if x.ndim == 4:
            result.arrays[name] = x[..., :k, :k]
    result.notes["directions"] = result.notes["directions"][:k]
    result.arrays["jacobian"][0] = np.nan  # too few episodes
    result.tables["edges"] = edges(result, ALPHA)
    return result


def test_every_figure_is_written_even_of_one_direction(tmp_path: Path) -> None:
    coupling_figures.draw(of_size(1), tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"matrix_3.png", "matrix_5.png", "graph_5.png", "paths.png"}


def test_many_directions_get_more_room_and_fewer_labels() -> None:
    few, many = (coupling_figures.draw_graph(of_size(k), 1) for k in (3, 64))
    assert many.get_size_inches()[1] > 2 * few.get_size_inches()[1]
    assert [len(figure.axes[0].get_yticks()) for figure in (few, many)] == [3, 32]
