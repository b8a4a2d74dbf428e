"""CKA against its definition and its invariances; prediction of one agent's states from another's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis import similarity
from analysis.similarity import Layer, assemble, compare, covariances, linear_cka, predicted, short_names
from core.contracts import UserError

EPISODE_N = np.repeat(np.arange(20), 25)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a/agent"], ["agent"]),
        (["runs/a/agent", "runs/b/agent"], ["a/agent", "b/agent"]),
        (["runs/a/agent", "runs/b/agent", "runs/other"], ["a/agent", "b/agent", "other"]),
        (["x/runs/agent", "y/runs/agent", "y/jogs/agent"], ["x/runs/agent", "y/runs/agent", "jogs/agent"]),
        (["agent", "deep/agent"], ["WHERE/agent", "deep/agent"]),
    ],
)
def test_directories_of_one_name_are_told_apart_by_what_is_above(paths: list[str], names: list[str]) -> None:
    where = Path.cwd().name
    assert short_names([Path(p) for p in paths]) == [name.replace("WHERE", where) for name in names]
    with pytest.raises(UserError, match="--agents names .* twice"):
        short_names([Path(p) for p in (*paths, f"./{paths[0]}")])


def test_linear_cka_is_the_centred_kernels_cosine() -> None:
    x, y = rng().standard_normal((60, 5)) + 3, rng().standard_normal((60, 4)) ** 2
    centre = np.eye(60) - 1 / 60
    k, m = (centre @ v @ v.T @ centre for v in (x, y))
    assert linear_cka(x, y) == pytest.approx((k * m).sum() / np.sqrt((k**2).sum() * (m**2).sum()))


def test_linear_cka_does_not_see_rotation_scale_or_offset_but_a_stretch() -> None:
    x = rng().standard_normal((500, 6))
    turn = np.linalg.qr(rng().standard_normal((6, 6)))[0]
    assert linear_cka(x, 3 * x @ turn + 7) == pytest.approx(1)
    assert linear_cka(x, x * [10, 1, 1, 1, 1, 1]) < 0.6
    assert np.isnan(linear_cka(x, np.ones((500, 2))))


def test_weights_count_episodes_as_often_as_they_say() -> None:
    x, y = (rng().standard_normal((len(EPISODE_N), k)) for k in (3, 4))
    weight = rng().multinomial(20, np.full(20, 1 / 20), 4).astype(float)
    found = covariances(Layer.of(x, EPISODE_N), Layer.of(y, EPISODE_N), weight)
    for w, value in zip(weight, found, strict=True):
        rows = np.concatenate([np.flatnonzero(e == EPISODE_N) for e in range(20) for _ in range(int(w[e]))])
        a, b = (v[rows] - v[rows].mean(0) for v in (x, y))
        assert value == pytest.approx(((a.T @ b) ** 2).sum())


def test_prediction_is_out_of_fold() -> None:
    x = rng().standard_normal((len(EPISODE_N), 5))
    y = x @ rng().standard_normal((5, 3))
    exact = predicted(x, y, EPISODE_N, rng=rng(), resamples=99)
    assert exact.value == pytest.approx(1, abs=1e-3)
    assert exact.low <= exact.value <= exact.high
    noise = predicted(x, np.random.default_rng(5).standard_normal((len(x), 3)), EPISODE_N, rng=rng(), resamples=99)
    assert noise.value < 0.01
    assert noise.n == 20


def test_pairs_that_share_a_part_are_between_the_same_and_the_unrelated() -> None:
    shared = rng().standard_normal((len(EPISODE_N), 8))
    other = np.random.default_rng(1).standard_normal((2, len(EPISODE_N), 8))
    names = ["a", "b", "c"]
    each = {"a": shared, "b": shared + other[0], "c": other[1]}
    seen = {name: {"embedding": x, "h": x} for name, x in each.items()}
    control = {f"{n}{similarity.SHUFFLED}": {"embedding": other[1], "h": other[1]} for n in names}
    pairs = [("a", "b"), ("a", "c"), ("b", "c")] + [(n, n + similarity.SHUFFLED) for n in names]
    rows = compare({**seen, **control}, pairs, EPISODE_N, exchanges=5, resamples=99, seed=0)
    of = {(r["a"], r["b"]): r for r in rows if r["layer"] == "h"}
    # Half of b's covariance is a's: |X'Y|^2 / (|X'X| |Y'Y|) = 1 / 2 but for sampling.
    assert of["a", "b"]["cka"] == pytest.approx(0.5, abs=0.06)
    assert of["a", "b"]["cka_low"] < of["a", "b"]["cka"] < of["a", "b"]["cka_high"]
    assert of["a", "b"]["r2_a_from_b"] == pytest.approx(0.5, abs=0.06)
    assert of["a", "c"]["cka"] < 0.05
    assert of["a", "b"]["exchanged"] < 0.05
    result = assemble(names, rows)
    assert result.arrays["cka_h"] == pytest.approx(result.arrays["cka_h"].T)
    assert (result.arrays["cka_h"].diagonal() == 1).all()
    assert result.arrays["control_h"][2] == pytest.approx(1)
