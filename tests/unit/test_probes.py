"""Linear probes: R^2 at its closed form on whole held-out episodes, a control that knows chance, and clear refusals."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from analysis.probes.baselines import time_features
from analysis.shared.probe_fits import PENALTIES, FoldedRidge, exchanged, linear_probe
from core.contracts import UserError

EPISODES, STEPS = 30, 20


def planted(
    rng: np.random.Generator, noise: float = 0.5, keep: float = 0.9, episodes: int = EPISODES
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x [N, 6], y [N], episode [N]): slow features of variance 1, y = x0 - x1 + noise."""
    x = rng.normal(size=(episodes, STEPS, 6))
    for t in range(1, STEPS):
        x[:, t] = keep * x[:, t - 1] + np.sqrt(1 - keep**2) * x[:, t]
    x = x.reshape(-1, 6)
    y = x[:, 0] - x[:, 1] + noise * rng.normal(size=len(x))
    return 3 * x + 7, y, np.repeat(np.arange(episodes), STEPS)


def test_a_direction_of_a_millionth_of_the_spread_is_read() -> None:
    """Of an LSTM that had hardly learnt, a speed was read at R2 .79; least squares by hand read .86."""
    rng = np.random.default_rng(3)
    shared, y, episode = rng.normal(size=600), rng.normal(size=600), np.repeat(np.arange(60), 10)
    found = linear_probe(np.stack([shared, shared + 1e-3 * y], 1), y, episode, rng=rng)
    assert found.r2.value > 0.99


def test_folded_ridge_is_scikit_learns() -> None:
    """Penalties chosen fold by fold, predictions, errors and the fit on all rows, against the same done by hand."""
    rng = np.random.default_rng(9)
    x, y, episode = planted(rng, episodes=6)
    x[:, 2] = 4.0  # never changes
    x[:, 3] = x[:, 4]
    y_NS, fold = np.stack([y, y**2, rng.normal(size=len(y)), np.full(len(y), 2.0)], 1), episode % 3

    def fitted(train: np.ndarray, penalty: float, s: int) -> Pipeline:
        return make_pipeline(StandardScaler(), Ridge(penalty * train.sum())).fit(x[train], y_NS[train, s])

    def error(train: np.ndarray, test: np.ndarray, penalty: float, s: int) -> float:
        return float(((fitted(train, penalty, s).predict(x[test]) - y_NS[test, s]) ** 2).sum())

    want, whole = np.empty_like(y_NS), np.empty((6, 4))
    for s in range(4):
        for f in range(3):
            others = [g for g in range(3) if g != f]
            best = min(PENALTIES, key=lambda p: sum(error((fold != f) & (fold != g), fold == g, p, s) for g in others))
            want[fold == f, s] = fitted(fold != f, best, s).predict(x[fold == f])
        best = min(PENALTIES, key=lambda p: sum(error(fold != g, fold == g, p, s) for g in range(3)))
        scale, model = (step for _, step in fitted(fold >= 0, best, s).steps)
        whole[:, s] = model.coef_ / scale.scale_
    probe = FoldedRidge(x, fold)
    np.testing.assert_allclose(probe.predict(y_NS), want, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(probe.errors(y_NS), ((y_NS - want) ** 2).sum(0), rtol=1e-7, atol=1e-7)
    live = [0, 1, 3, 4, 5]
    np.testing.assert_allclose(probe.whole(y_NS)[live], whole[live], rtol=1e-6, atol=1e-9)
    assert (probe.whole(y_NS)[2] == 0).all()


def test_r2_is_the_closed_form_and_its_interval_covers() -> None:
    """Signal variance 2, noise variance 1/4: R^2 = 2 / 2.25, less what fitting costs."""
    hits, values = 0, []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found = linear_probe(*planted(rng), rng=rng, shuffles=1, resamples=200)
        values.append(found.r2.value)
        hits += found.r2.low <= 2 / 2.25 <= found.r2.high
    assert np.mean(values) == pytest.approx(2 / 2.25, abs=0.01)
    assert hits >= 16 and found.r2.n == EPISODES


def test_what_is_planted_is_told_from_its_shuffles() -> None:
    rng = np.random.default_rng(0)
    found = linear_probe(*planted(rng), rng=rng)
    assert found.p == 0.01 and found.r2.low > found.shuffled.high
    assert found.shuffled.low <= found.shuffled.value <= found.shuffled.high < 0.2
    assert np.corrcoef(found.predicted_N, planted(np.random.default_rng(0))[1])[0, 1] > 0.9


def test_no_episode_is_on_both_sides_of_a_split() -> None:
    """A target that is constant within an episode: rows would give it away, episodes do not."""
    rng = np.random.default_rng(1)
    x, _, episode = planted(rng, keep=1.0)  # constant features: an episode is recognised by any of its rows
    y = rng.normal(size=EPISODES)[episode]
    x = np.concatenate([x, np.eye(EPISODES)[episode]], 1)
    held_out = linear_probe(x, y, episode, rng=rng, shuffles=19)
    assert all(len(np.unique(held_out.fold_N[episode == e])) == 1 for e in range(EPISODES))
    assert sorted(np.bincount(held_out.fold_N) // STEPS) == [6] * 5
    assert held_out.r2.value < 0.2 and held_out.p > 0.05
    assert linear_probe(x, y, np.arange(len(x)), rng=rng, shuffles=1).r2.value > 0.99  # rows as units: memorised


def test_p_keeps_its_level_on_slow_series_where_permuting_steps_does_not() -> None:
    by_episode, by_step = [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        x, y, episode = planted(rng, keep=0.97, episodes=12)
        y = planted(rng, noise=0.0, keep=0.97, episodes=12)[1]  # as slow, and unrelated
        by_episode.append(linear_probe(x, y, episode, rng=rng, shuffles=19, folds=3, resamples=2).p <= 0.05)
        broken = np.stack([rng.permutation(y) for _ in range(19)])
        r = np.abs([np.corrcoef(x[:, 0], v)[0, 1] for v in (y, *broken)])
        by_step.append(r[0] > r[1:].max())
    assert np.mean(by_episode) <= 0.13  # binomial, 100 runs at 0.05: P(more) < 1e-3
    assert np.mean(by_step) > 0.4


def test_time_in_the_episode_is_what_the_control_is_for() -> None:
    """A clock in the state and a target that only depends on time: decoded perfectly, and not selective."""
    rng = np.random.default_rng(2)
    x, _, episode = planted(rng)
    clock = np.tile(np.arange(STEPS, dtype=float), EPISODES)
    found = linear_probe(np.column_stack([x, clock]), clock + 0.1 * rng.normal(size=len(x)), episode, rng=rng)
    assert found.r2.value > 0.99 and abs(found.r2.value - found.shuffled.value) < 0.01 and found.p > 0.05


def test_exchanged_episodes_keep_their_time() -> None:
    of_N = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    assert exchanged(of_N, np.array([2, 0, 1])).tolist() == [5, 6, 7, 0, 1, 3, 4, 3, 4]
    assert exchanged(of_N, np.arange(3)).tolist() == list(range(9))
    mixed = np.array([0, 1, 0, 1])  # interleaved rows
    assert exchanged(mixed, np.array([1, 0])).tolist() == [1, 0, 3, 2]


def test_the_same_seed_gives_the_same_probe() -> None:
    data = planted(np.random.default_rng(3))
    one, two = (linear_probe(*data, rng=np.random.default_rng(5), shuffles=5) for _ in range(2))
    assert one.r2 == two.r2 and one.shuffled == two.shuffled
    np.testing.assert_array_equal(one.predicted_N, two.predicted_N)


def test_bad_input_is_refused_with_what_is_needed() -> None:
    rng = np.random.default_rng(4)
    x, y, episode = planted(rng, episodes=4)
    with pytest.raises(UserError, match="4 episodes are too few for a probe with 5 folds; at least 5 are needed"):
        linear_probe(x, y, episode, rng=rng)
    with pytest.raises(UserError, match="3 episodes .* at least 4 are needed"):  # 3! orders tell nothing at 0.05
        linear_probe(x[:60], y[:60], episode[:60], rng=rng, folds=3)
    assert linear_probe(x, y, episode, rng=rng, folds=4, shuffles=1).r2.n == 4
    with pytest.raises(UserError, match="target is 3 at every step"):
        linear_probe(x, np.full(len(x), 3.0), episode, rng=rng, folds=3)
    for what, (a, b) in {"features": (np.nan, 0.0), "target": (0.0, np.inf)}.items():
        with pytest.raises(UserError, match=f"{what} have NaN"):
            linear_probe(x + np.where(np.arange(80) == 7, a, 0)[:, None], y + b, episode, rng=rng, folds=3)
    with pytest.raises(ValueError, match="do not fit"):
        linear_probe(x, y[:-1], episode, rng=rng)
    with pytest.raises(ValueError, match="folds"):
        linear_probe(x, y, episode, rng=rng, folds=2)


def test_time_says_what_a_clock_says() -> None:
    """A counter of 30 steps, at 0 where an episode begins: time says it, powers of time do not."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(60, 300, size=40)
    time = np.concatenate([np.arange(n) for n in lengths]).astype(float)
    fold = np.repeat(np.arange(40) % 5, lengths)
    clock = time % 30 + rng.normal(size=len(time))

    def told(x: np.ndarray) -> float:
        error = clock - FoldedRidge(x, fold).predict(clock[:, None])[:, 0]
        return float(1 - error.var() / clock.var())

    assert told(time_features(time)) > 0.5
    assert told(np.stack([(time / 300) ** p for p in range(1, 6)], 1)) < 0.1
    assert time_features(np.full(4, 7.0)).tolist() == [[0.0]] * 4


def test_time_does_not_run_away_where_only_one_life_has_been() -> None:
    """What falls for 50 steps in every life, and in one goes on at its end for 1,000."""
    lengths = np.array([50] * 40 + [1000])
    time = np.concatenate([np.arange(n) for n in lengths]).astype(float)
    fold = np.repeat(np.arange(41) % 5, lengths)
    falls = np.maximum(9 - time / 5, 0) + np.random.default_rng(0).normal(size=len(time))
    guess = FoldedRidge(time_features(time), fold).predict(falls[:, None])[:, 0]
    assert guess.min() > -3 and guess.max() < 12
