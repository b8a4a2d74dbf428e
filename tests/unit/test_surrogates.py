"""Clusterings beside the same clusterings of data that have no clusters: a cut of one cloud is not called stable."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.shared.clusters import NOISE, cluster_stability, k_means, nearest_centre
from analysis.shared.surrogates import ONE_CLOUD, Comparison, compare, in_words, slowness, valley, walk
from core.artefacts import Result

EPISODES, STEPS = 30, 20
SEQUENCE = np.repeat(np.arange(EPISODES), STEPS)


def slow(rng: np.random.Generator, size: int, keep: float) -> np.ndarray:
    """Unit-variance rows [N, size] that begin anew with every episode."""
    x = rng.standard_normal((len(SEQUENCE), size))
    for i in np.flatnonzero(np.r_[False, SEQUENCE[1:] == SEQUENCE[:-1]]):
        x[i] = keep * x[i - 1] + np.sqrt(1 - keep**2) * x[i]
    return x


def modes(rng: np.random.Generator, count: int, stay: float = 0.9) -> np.ndarray:
    out = rng.integers(count, size=len(SEQUENCE))
    for i in np.flatnonzero(np.r_[False, SEQUENCE[1:] == SEQUENCE[:-1]] & (rng.random(len(SEQUENCE)) < stay)):
        out[i] = out[i - 1]
    return out


def compared(x: np.ndarray, clusters: int, surrogates: int = 39, **more: object) -> Comparison:
    of = {"method": "k_means", "clusters": clusters, "surrogates": surrogates, "seed": 0, **more}
    return compare(x, SEQUENCE[: len(x)], SEQUENCE[: len(x)], **of)  # type: ignore[arg-type]


@pytest.mark.parametrize(("keep", "ari"), [(0.0, 0.9), (0.9, 0.6)])
def test_a_long_cloud_cut_in_two_is_not_stable(keep: float, ari: float) -> None:
    """Although every refit cuts it in nearly the same place (slow rows are fewer, so that the place moves more)."""
    x = slow(np.random.default_rng(0), 4, keep) * [5, 1, 1, 1]
    label, _ = nearest_centre(x, k_means(x, 2, 0))
    assert cluster_stability(x, label, SEQUENCE, clusters=2, seed=0, repeats=10).value > ari
    assert compared(x, 2).says == ONE_CLOUD


@pytest.mark.parametrize("clusters", [2, 4])
def test_cuts_of_a_box_are_not_apart(clusters: int) -> None:
    """Flatter than a Gaussian, but as full half-way between two centres as at them."""
    x = np.random.default_rng(0).uniform(size=(len(SEQUENCE), 2)) * [5, 1]
    assert compared(x, clusters).says in (ONE_CLOUD, "stable, but no further apart than the cuts of one cloud")


def test_clusters_are_stable_and_apart() -> None:
    rng = np.random.default_rng(0)
    found = compared(0.5 * slow(rng, 6, 0.5) + 3 * np.eye(6)[modes(rng, 3)], 3)
    assert found.says == "stable clusters" and found.rows == len(SEQUENCE)
    assert found.observed[0] > 0.99 and found.observed[1] > 0.9 and found.observed[2] == 3
    assert {kind: draws.shape for kind, draws in found.draws.items()} == {"gaussian": (39, 3), "markov": (39, 3)}


def test_density_clusters_are_compared_with_what_density_finds_in_a_cloud() -> None:
    rng = np.random.default_rng(0)
    crowds = 0.3 * rng.standard_normal((len(SEQUENCE), 2)) + 3 * np.eye(2)[modes(rng, 2)]
    some = slice(12 * STEPS)  # episodes: a tree is grown for them a thousand times
    assert compared(crowds[some], 0, method="hdbscan", min_cluster_size=20).says == "stable clusters"
    cloud = compared(slow(rng, 2, 0.5)[some], 0, method="hdbscan", min_cluster_size=8)
    assert cloud.says == ONE_CLOUD and (cloud.draws["gaussian"][:, 0] < 0.99).all()


def test_what_is_done_before_clustering_is_done_to_surrogates_too() -> None:
    """A step that pushes any cloud apart makes clusters of surrogates as well."""
    pushed = []

    def push(x_NK: np.ndarray) -> np.ndarray:
        pushed.append(len(x_NK))
        return x_NK + 5 * np.sign(x_NK)

    found = compared(slow(np.random.default_rng(0), 2, 0.0) * [3, 1], 4, place=push)
    assert pushed == [len(SEQUENCE)] * (1 + 2 * 39)
    assert found.observed[0] > 0.95 and found.observed[1] > 0.9 and found.says == ONE_CLOUD


def test_surrogates_have_the_covariance_and_the_slowness_of_the_data() -> None:
    rng = np.random.default_rng(0)
    sequence = np.repeat(np.arange(400), 30)
    turn = 0.9 * np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
    x = walk(rng.standard_normal((len(sequence), 2)), sequence, turn, np.sqrt(1 - 0.81) * np.eye(2))
    np.testing.assert_allclose(np.cov(x, rowvar=False), np.eye(2), atol=0.08)
    for lag, power in ((1, turn), (3, np.linalg.matrix_power(turn, 3))):
        follow, noise = slowness(x, sequence, lag)
        np.testing.assert_allclose(follow, power, atol=0.06)
        np.testing.assert_allclose(follow @ follow.T + noise @ noise.T, np.eye(2), atol=1e-9)
    again = walk(rng.standard_normal(x.shape), sequence, *slowness(x, sequence, 1))
    np.testing.assert_allclose(slowness(again, sequence, 1)[0], turn, atol=0.06)
    first = np.flatnonzero(np.diff(sequence, prepend=-1))
    assert abs(np.corrcoef(again[first[1:] - 1, 0], again[first[1:], 0])[0, 1]) < 0.15  # nothing passes on


def test_episodes_of_one_row_have_no_slowness() -> None:
    follow, noise = slowness(np.random.default_rng(0).standard_normal((50, 3)), np.arange(50), 1)
    assert not follow.any() and (noise == np.eye(3)).all()


@pytest.mark.parametrize(("distance", "low", "high"), [(0.0, -1.0, 0.0), (3.0, 0.1, 0.6), (8.0, 0.99, 1.0)])
def test_a_valley_is_as_deep_as_the_density_says(distance: float, low: float, high: float) -> None:
    """Two Gaussians; at 3 standard deviations the middle has 64 % of a top's density."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20_000, 3)) + np.outer(rng.integers(2, size=20_000), [distance, 0, 0])
    label = (x[:, 0] > distance / 2).astype(np.int64)
    label[:50] = NOISE
    assert low <= valley(x, label) <= high


def test_too_few_surrogates_say_nothing_and_many_rows_are_thinned() -> None:
    rng = np.random.default_rng(0)
    x = np.repeat(rng.standard_normal((150, 2)), 30, 0) + 0.1 * rng.standard_normal((4500, 2))
    sequence = np.repeat(np.arange(90), 50)
    found = compare(x, sequence, sequence, method="k_means", clusters=2, surrogates=3, seed=0)
    assert found.rows == 1500 and found.says == "not compared: at least 39 --surrogates are needed"
    result = Result()
    found.record(result, "cluster_")
    assert len(result.tables["cluster_surrogates"]) == 6 and result.notes["cluster_clusters_are"] == found.says
    assert result.scalars["cluster_stability_markov"]["n"] == 3
    assert "beside 3 surrogates without clusters of each kind" in in_words(result, "cluster_")


@pytest.mark.slow
def test_long_clouds_are_seldom_called_stable() -> None:
    """At 5 % or less: two bands of 97.5 % have to be passed."""
    said = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = slow(rng, 3, rng.choice([0.0, 0.5, 0.9])) * [rng.uniform(1, 6), 1, 1]
        said.append(compared(x, int(rng.integers(2, 5))).says)
    assert sum("stable" in word and "no stabler" not in word for word in said) <= 4
