"""CKA against its definition and its invariances; prediction of one agent's states from another's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from analysis.shared.agents import short_names
from analysis.shared.probe_fits import folds_of
from analysis.similarity import cka, comparison
from analysis.similarity.__main__ import units_of
from analysis.similarity.cka import Layer, covariance, linear_cka
from analysis.similarity.comparison import (
    FOLDS,
    LOGITS,
    PENALTY,
    assemble,
    choices,
    compare,
    layers_of,
    predicted,
)
from analysis.similarity.figures import draw
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


def cka_of(x: np.ndarray, y: np.ndarray, episode_N: np.ndarray = EPISODE_N) -> float:
    return linear_cka(Layer.of(x, episode_N), Layer.of(y, episode_N))


def test_covariance_is_the_u_statistic_over_different_episodes() -> None:
    """By hand: |A|^2 / m^2 - 2 a A b / m^3 + |a|^2 |b|^2 / m^4, each product of different episodes."""
    episode = np.repeat(np.arange(6), 3)
    x = rng().standard_normal((18, 2)) + 1
    y = np.random.default_rng(1).standard_normal((18, 3)) + x[:, :1]
    a, b = Layer.of(x, episode), Layer.of(y, episode)
    parts = [(a.x_NP[episode == e], b.x_NP[episode == e]) for e in range(6)]
    each = [(p.T @ q, p.sum(0), q.sum(0)) for p, q in parts]

    def by_hand(some: Sequence[int]) -> float:
        products = [(each[e][0] * each[f][0]).sum() for e, f in itertools.permutations(some, 2)]
        between = [each[e][1] @ each[f][0] @ each[g][2] for e, f, g in itertools.permutations(some, 3)]
        apart = [
            (each[e][1] @ each[f][1]) * (each[g][2] @ each[h][2]) for e, f, g, h in itertools.permutations(some, 4)
        ]
        return float(np.mean(products) / 3**2 - 2 * np.mean(between) / 3**3 + np.mean(apart) / 3**4)

    weight = np.array([[1.0] * 6, [1, 1, 0, 1, 1, 1]])
    want = [by_hand(range(6)), by_hand([0, 1, 3, 4, 5])]
    np.testing.assert_allclose(covariance(a, b, weight), want)
    assert np.isnan(covariance(a, b, np.array([[1.0, 1, 1, 0, 0, 0]]))).all()


def test_covariance_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rng().standard_normal((len(EPISODE_N), 4)), np.random.default_rng(1).standard_normal((len(EPISODE_N), 7))
    a, b, weight = Layer.of(x, EPISODE_N), Layer.of(y, EPISODE_N), np.ones((1, 20))
    whole = covariance(a, b, weight)
    monkeypatch.setattr(cka, "BLOCK", 1)
    np.testing.assert_allclose(covariance(a, b, weight), whole)


def test_linear_cka_does_not_see_rotation_scale_or_offset_but_a_stretch() -> None:
    x = rng().standard_normal((500, 6))
    turn = np.linalg.qr(rng().standard_normal((6, 6)))[0]
    assert cka_of(x, 3 * x @ turn + 7) == pytest.approx(1)
    assert cka_of(x, x * [10, 1, 1, 1, 1, 1]) < 0.6
    assert np.isnan(cka_of(x, np.ones((500, 2))))


def slow(generator: np.random.Generator, episodes: int, steps: int, size: int) -> np.ndarray:
    """Autocorrelated states [episodes, steps, size] of variance 1."""
    x = generator.standard_normal((episodes, steps, size))
    for t in range(1, steps):
        x[:, t] = 0.9 * x[:, t - 1] + np.sqrt(1 - 0.81) * x[:, t]
    return x


def agents_with(generator: np.random.Generator, episodes: int, shared: float) -> tuple[np.ndarray, ...]:
    """States [N, 8] of two agents and their episodes; a share ``shared`` of either's variance is common, which makes
    CKA its square."""
    common, one, two = (slow(generator, episodes, 20, 8).reshape(-1, 8) for _ in range(3))
    own = [np.sqrt(shared) * common + np.sqrt(1 - shared) * x for x in (one, two)]
    return own[0], own[1], np.repeat(np.arange(episodes), 20)


def plain_cka(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return float(((x.T @ y) ** 2).sum() / np.sqrt(((x.T @ x) ** 2).sum() * ((y.T @ y) ** 2).sum()))


def found_cka(episodes: int, shared: float, runs: int) -> np.ndarray:
    """[runs, 4]: plain CKA, and the debiased one with its interval."""
    out = []
    for seed in range(runs):
        x, y, episode = agents_with(np.random.default_rng(seed), episodes, shared)
        seen = {"a": {"embedding": x, "h": x}, "b": {"embedding": y, "h": y}}
        (row,) = [
            r for r in compare(seen, [("a", "b")], episode, exchanges=1, resamples=999, seed=0) if r["layer"] == "h"
        ]
        out.append([plain_cka(x, y), row["cka"], row["cka_low"], row["cka_high"]])
    return np.array(out)


@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_cka_is_without_bias_and_its_interval_covers(shared: float) -> None:
    plain, value, low, high = found_cka(16, shared, 30).T
    assert plain.mean() > shared**2 + 0.08  # unrelated states of slow steps look alike
    assert value.mean() == pytest.approx(shared**2, abs=0.03)
    assert ((low <= value) & (value <= high)).all()
    few = found_cka(5, shared, 5)
    assert (few[:, 2] <= np.maximum(few[:, 1], 0)).all() and (few[:, 3] <= np.maximum(few[:, 1], 1)).all()
    assert (few[:, 2] >= np.minimum(few[:, 1], 0)).all(), "no end lies below 0 but the estimate itself"
    assert ((low <= shared**2) & (shared**2 <= high)).mean() >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [8, 24, 64])
@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
def test_interval_of_cka_covers(shared: float, episodes: int) -> None:
    _, _, low, high = found_cka(episodes, shared, 300).T
    assert ((low <= shared**2) & (shared**2 <= high)).mean() >= 0.9


def test_prediction_is_out_of_fold() -> None:
    x = rng().standard_normal((len(EPISODE_N), 5))
    y = x @ rng().standard_normal((5, 3))
    exact = predicted(x, y, EPISODE_N, rng=rng(), resamples=99)
    assert exact.value == pytest.approx(1, abs=1e-3)
    assert exact.low <= exact.value <= exact.high
    noise = predicted(x, np.random.default_rng(5).standard_normal((len(x), 3)), EPISODE_N, rng=rng(), resamples=99)
    assert noise.value < 0.01
    assert noise.n == 20


def test_prediction_is_scikit_learns_ridge_of_z_scored_features() -> None:
    from sklearn.linear_model import Ridge

    x = rng().standard_normal((len(EPISODE_N), 5)) * [1, 10, 0.1, 3, 0] + 7
    y = x[:, :2] @ rng().standard_normal((2, 3)) + rng().standard_normal((len(x), 3))
    found = predicted(x, y, EPISODE_N, rng=rng(), resamples=99)
    fold, squared, spread = folds_of(EPISODE_N, FOLDS, rng()), 0.0, 0.0
    for g in range(FOLDS):
        train, test = fold != g, fold == g
        std = np.where(x[train].std(0) > 0, x[train].std(0), 1)
        z = (x - x[train].mean(0)) / std
        fitted = Ridge(PENALTY * train.sum()).fit(z[train], y[train]).predict(z[test])
        squared += float(((y[test] - fitted) ** 2).sum())
        spread += float(((y[test] - y[train].mean(0)) ** 2).sum())
    assert found.value == pytest.approx(1 - squared / spread, rel=1e-6)


def test_pairs_that_share_a_part_are_between_the_same_and_the_unrelated() -> None:
    shared = rng().standard_normal((len(EPISODE_N), 8))
    other = np.random.default_rng(1).standard_normal((2, len(EPISODE_N), 8))
    names = ["a", "b", "c"]
    each = {"a": shared, "b": shared + other[0], "c": other[1]}
    seen = {name: {"embedding": x, "h": x} for name, x in each.items()}
    control = {f"{n}{comparison.SHUFFLED}": {"embedding": other[1], "h": other[1]} for n in names}
    pairs = [("a", "b"), ("a", "c"), ("b", "c")] + [(n, n + comparison.SHUFFLED) for n in names]
    rows = compare({**seen, **control}, pairs, EPISODE_N, exchanges=5, resamples=99, seed=0)
    of = {(r["a"], r["b"]): r for r in rows if r["layer"] == "h"}
    # Half of b's covariance is a's: |X'Y|^2 / (|X'X| |Y'Y|) = 1 / 2 but for sampling.
    assert of["a", "b"]["cka"] == pytest.approx(0.5, abs=0.06)
    assert of["a", "b"]["cka_low"] < of["a", "b"]["cka"] < of["a", "b"]["cka_high"]
    assert of["a", "b"]["r2_a_from_b"] == pytest.approx(0.5, abs=0.06)
    assert of["a", "c"]["cka"] < 0.05
    assert of["a", "b"]["exchanged"] < 0.05
    result = assemble(names, rows, [])
    assert result.arrays["cka_h"] == pytest.approx(result.arrays["cka_h"].T)
    assert (result.arrays["cka_h"].diagonal() == 1).all()
    assert result.arrays["control_h"][2] == pytest.approx(1)


def test_rare_disagreement_is_a_share() -> None:
    """One episode in 25 disagrees, or none was met: an interval of [1, 1] was said of every third study."""
    covered, episode_N = 0, np.repeat(np.arange(24), 20)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        a = np.tile([1.0, 0.0], (len(episode_N), 1))
        b = np.where((rng.random(24) < 0.04)[episode_N, None], a[:, ::-1], a)
        (row,) = choices({"a": {LOGITS: a}, "b": {LOGITS: b}}, [("a", "b")], {"x": 2}, episode_N, resamples=99, seed=0)
        covered += row["same_low"] <= 0.96 <= row["same_high"]
    assert covered >= 54


def test_a_layer_that_never_changes_is_like_nothing() -> None:
    x = {n: {"h": np.random.default_rng(0).standard_normal((60, 3)) if n == "a" else np.ones((60, 3))} for n in "ab"}
    (row,) = compare(x, [("a", "b")], np.repeat(np.arange(6), 10), exchanges=2, resamples=99, seed=0)
    assert np.isnan([row["cka"], row["cka_low"], row["cka_high"]]).all()


def test_agents_are_compared_by_the_layers_that_all_have() -> None:
    """One of the user's own may have a hidden state alone."""
    bare, whole = (SimpleNamespace(points=points) for points in ({"h": 4}, {"embedding": 8, "h": 4}))
    assert layers_of([bare, whole]) == ["h"] and layers_of([whole]) == ["embedding", "h"]  # type: ignore[list-item]
    seen = {
        n: {"h": np.random.default_rng(i).standard_normal((60, 4))}
        for i, n in enumerate(("a", "a" + comparison.SHUFFLED))
    }
    rows = compare(
        seen, [("a", "a" + comparison.SHUFFLED)], np.repeat(np.arange(6), 10), exchanges=2, resamples=99, seed=0
    )
    draw(assemble(["a"], rows, []))
    assert [row["layer"] for row in rows] == ["h"]


class Metas:
    """What a recording says of its episodes."""

    def __init__(self, *worlds: int | None) -> None:
        self.worlds = worlds

    def __len__(self) -> int:
        return len(self.worlds)

    def meta(self, episode: int) -> dict[str, int]:
        world = self.worlds[episode]
        return {} if world is None else {"seed": 0, "world": world, "map": world}


def test_lives_of_one_world_are_one_unit(capsys: pytest.CaptureFixture[str]) -> None:
    """Unrelated codes of eight worlds were alike (CKA .27 [.22, .34]) with their lives as units."""
    unit, of_E = units_of(Metas(*np.repeat(np.arange(8), 3).tolist()), range(24))  # type: ignore[arg-type]
    assert unit == "world" and of_E.tolist() == np.repeat(np.arange(8), 3).tolist()
    assert units_of(Metas(*[None] * 9), range(9))[0] == "episode" and capsys.readouterr().err == ""  # type: ignore[arg-type]
    unit, of_E = units_of(Metas(0, 0, 0, 1, 1, 1), range(6))  # type: ignore[arg-type]
    assert unit == "life" and len(set(of_E.tolist())) == 6 and "6 lives of 2 worlds" in capsys.readouterr().err


def test_choices_are_compared_where_there_is_one() -> None:
    """Two parts of an action; the first has no choice at every other step; agents differ there in a known share."""
    n, no = 500, -1e9
    first = np.tile([[0.0, np.log(3.0)]], (n, 1))
    first[::2, 0] = no  # one legal option
    other = first.copy()
    flipped = np.arange(n) % 10 == 1
    other[flipped] = first[flipped][:, ::-1]
    second = np.zeros((n, 3))
    seen = {"a": {LOGITS: np.hstack([first, second])}, "b": {LOGITS: np.hstack([other, second + 5])}}
    one, two = choices(seen, [("a", "b")], {"move": 2, "style": 3}, EPISODE_N, resamples=199, seed=0)
    assert (one["part"], one["steps"], one["n"], one["same"]) == ("move", 250, 20, 0.8)
    assert one["kl"] == pytest.approx(0.2 * 0.5 * np.log(3))  # KL of (1/4, 3/4) and (3/4, 1/4) is half a log 3
    assert one["same_low"] <= 0.8 <= one["same_high"] and (two["same"], two["kl"]) == (1.0, pytest.approx(0, abs=1e-6))
    (never,) = choices(seen, [("a", "b")], {"all": 1}, EPISODE_N, resamples=199, seed=0)
    assert never["steps"] == 0 and np.isnan(never["same"])
