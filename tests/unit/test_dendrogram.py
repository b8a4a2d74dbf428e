"""The condensed tree by branch and by point, its layout and its colours, on real HDBSCAN runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.activations.dendrogram import Tree, colours, layout, page, span
from core.artefacts import Result
from core.contracts import UserError
from core.pages import NOISE, label_colours


def clustered(x_NF: np.ndarray, least: int = 10) -> tuple[Any, Tree]:
    from hdbscan import HDBSCAN  # type: ignore[import-untyped]

    model = HDBSCAN(min_cluster_size=least, core_dist_n_jobs=1).fit(x_NF)
    tree = model.condensed_tree_.to_numpy()
    return model, Tree.of(tree["parent"], tree["child"], tree["lambda_val"], tree["child_size"], len(x_NF))


def blobs(seed: int = 0, n: int = 300) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centre = np.array([[0, 0], [1.6, 0], [9, 9], [0, 12]])[rng.integers(4, size=n)]
    return np.r_[centre + 0.35 * rng.normal(size=(n, 2)), rng.uniform(-6, 16, (n // 10, 2))]


def result_of(model: Any, x_N2: np.ndarray) -> Result:
    tree = model.condensed_tree_.to_numpy()
    n = len(x_N2)
    arrays = {
        "index": np.stack([np.arange(n) // 20, np.arange(n) % 20], 1), "label": model.labels_, "umap": x_N2,
        "tree_parent": tree["parent"], "tree_child": tree["child"], "tree_lambda": tree["lambda_val"],
        "tree_size": tree["child_size"],
    }  # fmt: skip
    return Result(arrays=arrays)


def test_branches_hold_the_points_that_they_say() -> None:
    x = blobs()
    _, tree = clustered(x)
    assert len(tree.parent_M) > 6
    below = {b: {p for p in tree.downwards() if b in tree.path(p)} for b in tree.downwards()}
    for b, down in below.items():
        assert np.isin(tree.branch_N, list(down)).sum() == tree.size_M[b]
        for c in tree.children(b):
            assert tree.birth_M[c] == tree.death_M[b] >= tree.birth_M[b]
        mine = tree.leaves_N[tree.branch_N == b]
        assert ((mine >= tree.birth_M[b]) & (mine <= tree.death_M[b])).all()
    assert tree.parent_M[0] == -1 and (tree.parent_M[1:] >= 0).all()


def test_the_chosen_branches_hold_their_label_and_nothing_of_others() -> None:
    x = blobs(1)
    model, tree = clustered(x)
    chosen = tree.chosen(model.labels_)
    assert sorted(chosen) == list(range(model.labels_.max() + 1)) and len(set(chosen.values())) == len(chosen) > 2
    for label, branch in chosen.items():
        inside = np.array([branch in tree.path(b) for b in tree.branch_N])
        assert set(model.labels_[inside]) <= {label, NOISE} and inside[model.labels_ == label].all()


def test_bars_stand_side_by_side_in_their_slots() -> None:
    _, tree = clustered(blobs(2))
    left, width, unit = layout(tree)
    assert left[0] == 0 and width[0] == 1
    for b in tree.downwards():
        assert unit * np.sqrt(tree.size_M[b]) <= width[b] * (1 + 1e-9)
        below = sorted(tree.children(b), key=lambda c: left[c])
        edges = [left[b], *(e for c in below for e in (left[c], left[c] + width[c])), left[b] + width[b]]
        assert (np.diff(edges) >= -1e-9).all()


def test_the_larger_child_keeps_the_colour_and_chosen_branches_have_their_labels() -> None:
    model, tree = clustered(blobs(3))
    chosen = tree.chosen(model.labels_)
    colour = colours(tree, chosen)
    of_label = label_colours(list(chosen))
    assert {label: colour[branch] for label, branch in chosen.items()} == of_label
    for b in tree.downwards():
        if kids := tree.children(b):
            largest = max(kids, key=lambda c: tree.size_M[c])
            assert colour[largest] == colour[b]
            assert all(colour[c] != colour[b] for c in kids if c != largest)


def test_nothing_but_noise_still_makes_a_page() -> None:
    x = np.random.default_rng(0).uniform(size=(60, 2))
    model, tree = clustered(x, least=30)
    assert (model.labels_ == NOISE).all() and tree.chosen(model.labels_) == {}
    assert "Condensed tree" in page(result_of(model, x))


def test_points_that_coincide_have_an_infinite_density_and_a_finite_axis() -> None:
    x = np.repeat([[0.0, 0], [5, 5], [0, 9]], 20, axis=0)
    model, tree = clustered(x)
    assert np.isinf(tree.leaves_N).all()
    low, high = span(tree)
    assert 0 < low < high < np.inf
    page(result_of(model, x))


def test_a_tree_of_other_points_is_refused() -> None:
    x = blobs()
    result = result_of(clustered(x)[0], x)
    for name in ("label", "umap", "index"):
        result.arrays[name] = result.arrays[name][:-3]
    with pytest.raises(UserError, match="not one of"):
        page(result)
