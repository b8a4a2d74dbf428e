"""Coupling: correlations and Jacobians against closed forms, and p-values that keep their level."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agents.recurrent import AgentConfig, RecurrentAgent
from analysis.coupling import (
    agreement,
    clock,
    correlation,
    estimates,
    figures as coupling_figures,
    jacobian,
    labels,
    tables,
)
from analysis.coupling.config import CouplingConfig
from analysis.coupling.correlation import Labelled
from analysis.coupling.edges import PATHS
from analysis.coupling.jacobian import jacobians
from analysis.shared.behaviours import Behaviours
from core.contracts import EnvSpec, Field, UserError
from core.directions import Basis
from core.episodes import spread_over_episodes
from core.interventions import AddVector, AtSteps
from core.roll import Simulator, go_on
from core.stats import benjamini_hochberg
from core.trees import rows_of
from envs.planted import PlantedModel, PlantedOptions, TwinModel, matrices, planted_simulator, record_planted
from envs.planted_truth import truth
from envs.procgen import ACTION_NAMES
from generative.recurrent_world import RSSMWorld
from generative.rssm import ModelConfig
from generative.simulator import simulator_of

SPEC = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=ACTION_NAMES,
    slots=1,
)
CAUSE, NUISANCE, CONTROLLED, MEMORY = range(4)  # directions of the planted world
NAMES = [f"planted:{i}" for i in range(8)]
LAGS = [1, 2, 4]


@pytest.fixture(scope="module")
def planted() -> Simulator[PlantedModel]:
    return planted_simulator(dtype=torch.float64)


@pytest.fixture(scope="module")
def learned() -> Simulator[RSSMWorld]:
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=5), SPEC)
    torch.nn.init.normal_(agent.policy.weight, std=2.0)
    sizes = {"deterministic_size": 12, "hidden_size": 16, "groups": 3, "classes": 4, "depth": 2, "latent_size": 6}
    simulator = simulator_of(ModelConfig(head_layers=1, **sizes), agent)
    torch.nn.init.normal_(simulator.world.decoder.first.weight, std=1.0)  # type: ignore[arg-type,union-attr]
    for part in (agent, simulator.world):
        part.double().eval().requires_grad_(False)
    return simulator


def basis_of(size: int, k: int) -> Basis:
    g = torch.Generator().manual_seed(2)
    project = torch.randn(size, k, generator=g, dtype=torch.float64)
    std = torch.rand(size, generator=g, dtype=torch.float64) + 0.5
    return Basis("ica", torch.zeros_like(std), std, project, torch.linalg.pinv(project))


def planted_latents(episodes: int, seed: int = 1) -> Tensor:
    """First states as the world draws them, so that nuisance and cause are correlated, and no memory."""
    x = np.random.default_rng(seed).normal(size=(episodes, 8)) @ matrices(PlantedOptions()).first_XX.T
    return torch.from_numpy(np.concatenate([x, np.zeros_like(x)], 1))


# Correlation


def test_pairs_stay_inside_an_episode_and_leave_step_0_out() -> None:
    index = np.array([(e, t) for e in (2, 5) for t in range(5)])
    source, target = correlation.lagged_rows(index, 2)
    assert [tuple(x) for x in np.concatenate([index[source], index[target]], 1)] == [
        (2, 1, 2, 3), (2, 2, 2, 4), (5, 1, 5, 3), (5, 2, 5, 4)
    ]  # fmt: skip
    assert len(correlation.lagged_rows(index, 5)[0]) == 0


def test_weighted_sums_give_the_correlation_of_repeated_episodes() -> None:
    rng = np.random.default_rng(0)
    unit = np.repeat([0, 1, 2], [4, 7, 5])
    x, y = rng.normal(size=(2, 16, 3))
    y[:, 0] = 2 * x[:, 1] + 5
    x[:, 2] = 3.0  # no variance: no correlation
    weight = np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 3.0]])
    got = correlation.Sums.of(x, y, unit, 3).correlation(weight)
    for w, r in zip(weight, got, strict=True):
        rows = np.repeat(np.arange(16), w[unit].astype(int))
        expected = np.corrcoef(x[rows, :2].T, y[rows].T)[:2, 2:]
        np.testing.assert_allclose(r[:2], expected, atol=1e-12)
        assert np.isnan(r[2]).all()
    assert got[0][1, 0] == pytest.approx(1.0)


@pytest.mark.parametrize("lengths", [(4, 4, 4, 4), (3, 5, 4, 4)])
def test_permuted_correlations_give_every_direction_episodes_of_its_own(lengths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    present = np.array([0, 1, 3, 4])  # unit 2 has no pairs
    unit = np.repeat(present, lengths)
    x, y = rng.normal(size=(2, 16, 3))
    got = correlation.permuted_correlations(x, y, unit, 5, 20, 7)
    xs, ys = ((v - v.mean(0)) / v.std(0) for v in (x, y))
    ((first, shuffled),) = correlation.shuffles(7, 20, 5, 3, present)
    assert first == 0 and shuffled.shape == (20, 4, 3)
    assert (shuffled[:, :, 0] != shuffled[:, :, 1]).any()
    padded = np.zeros((2, 4, max(lengths), 3))
    for e, u in enumerate(present):
        padded[0, e, : lengths[e]], padded[1, e, : lengths[e]] = xs[unit == u], ys[unit == u]
    variance = correlation.sum_variance(padded[0], padded[1], np.array(lengths))
    for s_EK, r in zip(shuffled, got, strict=True):
        for i, j in np.ndindex(3, 3):
            total, paired = 0.0, 0.0
            for source, target in zip(np.arange(4) if i == j else s_EK[:, i], s_EK[:, j], strict=True):
                n = min(lengths[source], lengths[target])
                total += padded[0, source, :n, i] @ padded[1, target, :n, j]
                paired += variance[n - 1, i, j]
            stretch = np.sqrt(sum(variance[n - 1, i, j] for n in lengths) / paired)
            assert r[i, j] == pytest.approx(total / 16 * stretch, rel=1e-6, abs=1e-9)
            assert len(set(lengths)) > 1 or stretch == pytest.approx(1)


def test_permuted_t_is_a_correlation_over_its_error_over_episodes() -> None:
    rng, lengths = np.random.default_rng(1), (3, 5, 4, 4)
    unit = np.repeat(np.arange(4), lengths)
    x, y = rng.normal(size=(2, 16, 2))
    got = correlation.permuted_t(x, y, unit, 4, 20, 7)
    xs, ys = ((v - v.mean(0)) / v.std(0) for v in (x, y))
    ((_, shuffled),) = correlation.shuffles(7, 20, 4, 2, np.arange(4))
    for s_EK, t in zip(shuffled, got, strict=True):
        pairs = [(xs[unit == a, 0], ys[unit == b, 1]) for a, b in s_EK]
        product = np.array([sum(p * q for p, q in zip(a, b, strict=False)) for a, b in pairs])
        norm = np.array([(a @ a + b @ b) / 2 for a, b in pairs])
        error = (product - product.sum() / 16 * norm).std(ddof=1) / 2
        assert t[0, 1] == pytest.approx(abs(product.mean()) / error, rel=1e-5)


def test_what_is_permuted_alike_does_not_depend_on_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with one seed share their permutations, whoever is present and however many are held at a time."""
    present = np.arange(6)
    ((_, whole),) = correlation.shuffles(3, 40, 8, 2, present)
    monkeypatch.setattr(correlation, "KEYS", 16 * 7)
    parts = list(correlation.shuffles(3, 40, 8, 2, present))
    assert [first for first, _ in parts] == [0, 7, 14, 21, 28, 35]
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), whole)


def test_the_null_keeps_what_ties_the_two_ways() -> None:
    """r of i with a later j and r of j with a later i share episodes: slow directions make them nearly one number,
    and a null in which they were two would make agreement with a symmetric Jacobian look surprising."""
    rng = np.random.default_rng(8)
    data, lengths = [], np.full(24, 20)
    for _ in range(200):
        found = correlation.correlate(steps_of(autoregressive(rng, lengths, 2), lengths), [0], [1, 2], 19, 2, rng)
        data.append(found["correlation"][0])
    null = correlation.correlate(steps_of(autoregressive(rng, lengths, 2), lengths), [0], [1, 2], 999, 2, rng)["null"][
        :, 0
    ]

    def tie(r: np.ndarray) -> tuple[float, float]:
        return np.corrcoef(r[:, 0, 0, 1], r[:, 0, 1, 0])[0, 1], np.corrcoef(r[:, 0, 0, 1], r[:, 1, 0, 1])[0, 1]

    assert min(tie(np.array(data))) > 0.8 and min(tie(null)) > 0.8


def test_variance_of_a_sum_is_bartlett_s() -> None:
    rng = np.random.default_rng(9)
    x, y = (autoregressive(rng, np.full(3000, 12), 1).reshape(3000, 12) for _ in range(2))
    counts = np.repeat([12, 6], 1500)
    for series in (x, y):
        series[1500:, 6:] = 0
    variance = correlation.sum_variance(x[:, :, None], y[:, :, None], counts)[:, 0, 0]
    for m in (1, 3, 6, 12):
        assert variance[m - 1] == pytest.approx(((x * y)[:1500, :m].sum(1) ** 2).mean(), rel=0.15)
    assert variance[11] > 5 * 12  # far from the 12 of steps that are news


def steps_of(c: np.ndarray, lengths: np.ndarray) -> Labelled:
    index = np.concatenate([np.stack([np.full(n, e), np.arange(n)], 1) for e, n in enumerate(lengths)])
    return Labelled(index, index[:, 0], np.zeros(len(index), np.int64), c)


def autoregressive(rng: np.random.Generator, lengths: np.ndarray, k: int, rho: float = 0.95) -> np.ndarray:
    """Independent slow series: within an episode hardly two steps are news."""
    out = []
    for n in lengths:
        x = rng.normal(size=(int(n), k))
        for t in range(1, int(n)):
            x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * x[t]
        out.append(x)
    return np.concatenate(out)


@pytest.mark.parametrize("equal", [True, False])
def test_unrelated_directions_are_not_called_correlated(equal: bool) -> None:
    rng = np.random.default_rng(2)
    hits, naive, tests = 0, 0, 0
    observed, null = [], []
    for _ in range(60):
        lengths = np.full(16, 20) if equal else rng.integers(6, 40, size=16)
        found = correlation.correlate(steps_of(autoregressive(rng, lengths, 5), lengths), [0], [2], 199, 2, rng)
        off = ~np.eye(5, dtype=bool)
        p, r, n = found["p"][0, 0][off], found["correlation"][0, 0][off], found["pairs"][0, 0]
        hits, tests = hits + (p <= 0.05).sum(), tests + len(p)
        naive += (np.abs(r) * np.sqrt(n) > 1.96).sum()
        observed.append(r)
        null.append(found["null"][:, 0, 0][:, off])
    assert 0.025 < hits / tests < 0.08  # 1200 tests at 0.05: standard error 0.006, more as they are not independent
    assert np.std(null) / np.std(observed) == pytest.approx(1, abs=0.12)  # no wider, no narrower than what is tested
    assert naive / tests > 0.3  # taking steps as independent would have found something here


def test_a_lagged_effect_is_found_at_its_lag_and_direction() -> None:
    rng = np.random.default_rng(3)
    lengths = np.full(20, 20)
    c = rng.normal(size=(400, 3))
    c[2:, 1] += 0.8 * c[:-2, 0]
    found = correlation.correlate(steps_of(c, lengths), [0], [1, 2], 999, 200, rng)
    assert found["p"][0, 1, 0, 1] <= 0.002 and found["correlation"][0, 1, 0, 1] > 0.4
    assert (np.delete(found["p"][0].ravel(), 9 + 1) > 0.002).all()
    low, high = found["ends"][:, 0, 1, 0, 1]
    assert low < 0.8 / np.sqrt(1.64) < high and high - low < 0.3


def in_spells(rng: np.random.Generator, c_ETK: np.ndarray, trend_T: np.ndarray, entered_T: np.ndarray) -> Labelled:
    """Steps of which 15 in a row, from a random one, are behaviour 1; all directions follow the clocks, up or down."""
    c_ETK, (episodes, length, k) = c_ETK.copy(), c_ETK.shape
    sign_K, label_ET = rng.choice([-1, 1], k), np.zeros((episodes, length), np.int64)
    c_ETK += trend_T[:, None] * sign_K
    for e, first in enumerate(rng.integers(length - 15, size=episodes)):
        label_ET[e, first : first + 15] = 1
        c_ETK[e, first : first + 15] += entered_T[:15, None] * sign_K
    return steps_of(c_ETK.reshape(-1, k), np.full(episodes, length))._replace(label_N=label_ET.ravel())


CLOCK = np.arange(40)
CLOCKS = {
    "a quarter of the variance": 0.58 * np.sqrt(12) * (CLOCK / 40 - 0.5), "most of it": 7 * (CLOCK / 40 - 0.5),
    "there and back": np.sin(2 * np.pi * CLOCK / 40),
}  # fmt: skip


@pytest.mark.parametrize("trend", CLOCKS)
def test_directions_that_share_only_the_clock_are_not_correlated_in_a_behaviour(trend: str) -> None:
    """With the clock left in, .31, 1 and .89 of these are significant, as the null pairs early steps with late ones."""
    hits, out = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        c = autoregressive(rng, np.full(24, 40), 3, 0.7).reshape(24, 40, 3)
        steps = in_spells(rng, c, CLOCKS[trend], 2 * np.exp(-CLOCK / 4))
        found = correlation.correlate(steps, [1], [1], 99, 99, rng)
        off = ~np.eye(3, dtype=bool)
        hits.append(found["p"][0, 0][off] <= 0.05)
        low, high = found["ends"][:, 0, 0][:, off]
        out.append((low > 0) | (high < 0))
    assert np.mean(hits) < 0.09 and np.mean(out) < 0.09  # 360 tests, six a data set


def test_what_is_correlated_beside_the_clock_is_found_in_a_behaviour() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        c = autoregressive(rng, np.full(24, 40), 3, 0.7).reshape(24, 40, 3)
        c[:, 1:, 1] = 0.4 * c[:, :-1, 0] + np.sqrt(1 - 0.4**2) * c[:, 1:, 1]
        steps = in_spells(rng, c, CLOCKS["most of it"], 2 * np.exp(-CLOCK / 4))
        found = correlation.correlate(steps, [1], [1], 199, 99, rng)
        assert found["p"][0, 0, 0, 1] <= 0.01 and found["correlation"][0, 0, 0, 1] == pytest.approx(0.4, abs=0.15)
        assert found["ends"][0, 0, 0, 0, 1] > 0


@pytest.mark.parametrize(("episodes", "spell"), [(5, 15), (8, 3), (24, 15)])
def test_taking_the_clock_out_of_few_rows_invents_no_correlation(episodes: int, spell: int) -> None:
    """A fit of many functions to a few slow episodes leaves little, which may look alike: in the null too."""
    hits = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        lengths = np.full(episodes, spell + 1)
        found = correlation.correlate(steps_of(autoregressive(rng, lengths, 3), lengths), [0], [1], 99, 2, rng)
        hits.append(found["p"][0, 0][~np.eye(3, dtype=bool)] <= 0.05)
    assert np.mean(hits) < 0.09


def test_clocks_begin_with_an_episode_a_behaviour_and_after_a_gap() -> None:
    index = np.array([(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 8), (1, 9)])
    label = np.array([0, 0, 1, 1, 1, 1, 1, 0])
    assert clock.clocks(index, label).tolist() == [
        [0, 0], [1, 1], [2, 0], [3, 1], [4, 0], [5, 1], [8, 0], [9, 0]
    ]  # fmt: skip


def test_trends_are_taken_out_and_what_is_nothing_else_has_no_correlation() -> None:
    rng, t = np.random.default_rng(0), np.tile(np.arange(10), 12)
    both = np.stack([t, rng.permutation(t)], 1)
    trend = clock.trends(both)
    np.testing.assert_allclose(trend.T @ trend, np.eye(trend.shape[1]), atol=1e-9)
    x = np.stack([3 + both @ [2.0, -5.0], np.full(120, 7.0), rng.normal(size=120) + t], 1)
    left = clock.beyond(x, trend)
    assert (left[:, :2] == 0).all() and left[:, 2].std() > 0.5
    assert np.abs(left[:, 2] @ both).max() < 1e-9 and abs(left[:, 2].sum()) < 1e-9
    assert clock.trends(both[:9]).shape == (9, 0)  # too few rows
    x[:, 0] = 3 + 2 * t
    found = correlation.correlate(steps_of(x, np.full(12, 10)), [0], [1], 99, 9, rng)
    assert np.isfinite(found["correlation"]).sum() == np.isfinite(found["p"]).sum() == 1  # the last with its own past


def test_what_a_fit_takes_by_chance_is_the_mean_over_permutations() -> None:
    rng = np.random.default_rng(0)
    value, trend = rng.normal(size=(5, 4, 2)), rng.normal(size=(5, 4, 3))
    each = [
        (np.einsum("emk,emq->kq", value[list(order)], trend) ** 2).sum(1) for order in itertools.permutations(range(5))
    ]
    np.testing.assert_allclose(clock.taken(value, trend), np.mean(each, 0) / (value**2).sum((0, 1)))


def test_a_behaviour_of_few_episodes_is_left_out() -> None:
    rng = np.random.default_rng(4)
    steps = steps_of(rng.normal(size=(60, 2)), np.full(6, 10))
    steps = steps._replace(label_N=(steps.unit_N < 2).astype(np.int64))
    found = correlation.correlate(steps, [0, 1], [1], 99, 5, rng)  # 4! = 24 pairings can tell at 0.05, 2! cannot
    assert found["episodes"].tolist() == [[4], [2]]
    assert np.isfinite(found["p"][0]).all() and np.isnan(found["p"][1]).all()
    with pytest.raises(UserError, match=r"correlations: at most 4, .* --alpha 0.01 needs 5"):
        correlation.correlate(steps, [0, 1], [1], 99, 5, rng, alpha=0.01)
    # Rollouts from one and the same real episode are one unit, however many they are.
    steps = steps._replace(label_N=np.zeros(60, np.int64), unit_N=steps.unit_N // 2)
    with pytest.raises(UserError, match="at most 3, .* needs 4"):
        correlation.correlate(steps, [0], [1], 99, 5, rng)


# Jacobian


def test_effects_through_the_world_are_the_closed_form_of_enumerated_actions(planted: Simulator[PlantedModel]) -> None:
    known = truth(dtype=torch.float64)
    z, step = planted_latents(6), 5
    played = jacobian.replay(planted, z, 6)
    state = played.places(np.arange(6), np.full(6, step - max(LAGS) - 1))
    got = jacobians(planted, state, known.basis, LAGS)
    path = planted.rollout(z, step)
    c = known.basis.project(path.h).numpy()
    for b in range(6):
        for at, lag in enumerate(LAGS):
            expected = known.effect_of_actions(path.d[b, step - lag].numpy(), c[b, step - lag], lag)
            np.testing.assert_allclose(got["through_world"][b, at].numpy(), expected, rtol=1e-10, atol=1e-13)
    # The action answers to the controlled stimulus, so that straight-through misses what later actions make of it.
    straight = got["straight_through"] - got["direct"]
    assert (straight - got["through_world"])[:, 0].abs().max() < 1e-13
    assert (straight - got["through_world"])[:, 2].abs().max() > 0.05
    assert (got["ended"] == 0).all()


def test_a_simulator_s_answer_between_actions_moves_only_the_straight_through_number() -> None:
    """Two simulators that are the same at every action: no rollout tells them apart, autograd gives opposite signs."""
    options, known = PlantedOptions(kind="mediated"), truth(PlantedOptions(kind="mediated"), torch.float64)
    z = planted_latents(16)
    one, two = (planted_simulator(dtype=torch.float64, model=m) for m in (PlantedModel(options), TwinModel(options)))
    torch.testing.assert_close(one.rollout(z, 8).h, two.rollout(z, 8).h, rtol=0, atol=0)
    h = one.rollout(z, 8).h
    steps = steps_of(known.basis.project(h.flatten(0, 1)).numpy(), np.full(16, 9))
    results, exact = [], config(permutations=1999)
    for simulator in (one, two):
        planned = estimates.plan(simulator, z, steps, h.flatten(0, 1).numpy(), [0], exact)
        found = estimates.couple(simulator, planned, steps, known.basis, [0], exact)
        results.append(tables.assemble(found, [0], {}, NAMES, exact))
    a, b = (r.arrays for r in results)
    world = a["jacobian_through_world"]
    assert world[0, 0, 0, 1] > 0.05 and a["q_jacobian_through_world"][0, 0, 0, 1] <= 0.05  # driver -> pushed
    np.testing.assert_array_equal(world, b["jacobian_through_world"])
    np.testing.assert_array_equal(a["q_jacobian"], b["q_jacobian"])
    np.testing.assert_allclose(a["straight_through_world"], -b["straight_through_world"], atol=1e-15)
    # What rests on the actions is an edge only where both numbers have one sign.
    pairs = [{(e["source"], e["target"]) for e in r.tables["edges"] if e["path"] != "direct"} for r in results]
    assert pairs == [{("planted:0", "planted:1"), ("planted:2", "planted:1")}, set()]
    agree = [r.scalars["straight_through_agrees_through_world"] for r in results]
    assert [x["value"] for x in agree] == [1.0, 0.0] and agree[0]["n"] == agree[1]["n"] == 4


@pytest.mark.parametrize("env_grads", [True, False])
def test_jacobian_is_the_closed_form_of_the_planted_world(planted: Simulator[PlantedModel], env_grads: bool) -> None:
    known = truth(dtype=torch.float64)
    z, step = planted_latents(6), 5
    played = jacobian.replay(planted, z, 6)
    state = played.places(np.arange(6), np.full(6, step - max(LAGS) - 1))
    got = jacobians(planted, state, known.basis, LAGS)["straight_through" if env_grads else "direct"]
    p = planted.rollout(z, step).logits.softmax(-1).numpy()
    for b in range(6):
        for at, lag in enumerate(LAGS):
            expected = known.jacobian(p[b, step - lag : step], env_grads)
            np.testing.assert_allclose(got[b, at].numpy(), expected, rtol=1e-12, atol=1e-14)
    assert got[:, :, CAUSE, MEMORY].min() > 0.1
    others = [j for j in range(8) if j != NUISANCE]
    assert got[:, :, NUISANCE, others].abs().max() < 1e-15 and got[:, :, others, NUISANCE].abs().max() < 1e-15
    assert ((got[:, :, CAUSE, CONTROLLED].abs() > 1e-4) == env_grads).all()


@pytest.mark.parametrize("env_grads", [True, False])
def test_jacobian_is_the_finite_difference(
    planted: Simulator[PlantedModel], env_grads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, step, basis, small = planted_latents(3), 5, basis_of(8, 4), 1e-5
    forced = None
    if env_grads:  # what straight-through's gradient pretends: the action is a mixture
        monkeypatch.setattr("core.roll.straight_through", lambda x, noise=None: (x.argmax(-1), x.softmax(-1)))
    else:
        forced = planted.rollout(z, step).action
    played = jacobian.replay(planted, z, 6)
    state = played.places(np.arange(3), np.full(3, step - max(LAGS) - 1))
    got = jacobians(planted, state, basis, LAGS)["straight_through" if env_grads else "direct"]
    for at, lag in enumerate(LAGS):
        for i in range(4):
            change = basis.lift_change(torch.eye(4, dtype=torch.float64)[i] * small)
            ends = [
                planted.rollout(
                    z, step, actions=forced, intervene=(AtSteps(AddVector(sign * change), step - lag, step - lag + 1),)
                ).h[:, step]
                for sign in (1, -1)
            ]
            slope = (basis.project(ends[0]) - basis.project(ends[1])) / (2 * small)
            torch.testing.assert_close(slope, got[:, at, i], rtol=1e-6, atol=1e-9)


def test_jacobian_of_the_agent_alone_is_the_product_of_its_cells(learned: Simulator[RSSMWorld]) -> None:
    g = torch.Generator().manual_seed(1)
    z, basis, step = torch.randn(3, 6, generator=g, dtype=torch.float64), basis_of(5, 3), 5
    path = learned.rollout(z, step)
    played = jacobian.replay(learned, z, step + 1)
    state = played.places(np.arange(3), np.full(3, step - max(LAGS) - 1))
    found = jacobians(learned, state, basis, LAGS)
    agent: Any = learned.agent
    got = found["direct"]
    for b in range(3):
        for at, lag in enumerate(LAGS):
            whole = torch.eye(5, dtype=torch.float64)
            for t in range(step - lag + 1, step + 1):
                e = agent.encode({"frames": path.obs["frames"][b : b + 1, t]})
                cell = torch.func.jacrev(lambda h, e=e: agent.cell(e, h[None])[0])(path.h[b, t - 1])
                whole = cell @ whole
            # dh(T)/dh(T-k) between the lifted direction i and coordinate j
            expected = (basis.lift_change(torch.eye(3, dtype=torch.float64)) @ whole.T / basis.std_H) @ basis.project_HK
            torch.testing.assert_close(got[b, at], expected, rtol=1e-8, atol=1e-12)
    assert not torch.allclose(found["straight_through"][:, 1:], got[:, 1:], rtol=1e-6, atol=0)
    one = jacobians(learned, rows_of(state, slice(1, 2)), basis, LAGS)
    for name, x in found.items():
        torch.testing.assert_close(one[name][0], x[1], rtol=1e-8, atol=1e-12)


def test_gathered_states_go_on_as_their_rollouts_did(learned: Simulator[RSSMWorld]) -> None:
    g = torch.Generator().manual_seed(1)
    z = torch.randn(4, 6, generator=g, dtype=torch.float64)
    played = jacobian.replay(learned, z, 8)
    torch.testing.assert_close(played.h_ETH, learned.rollout(z, 7).h)
    episode, step = np.array([3, 0, 2, 2]), np.array([1, 4, 2, 5])
    place = played.places(episode, step - 1)
    moments = list(go_on(learned.agent, learned.world, place, steps=2))
    for n in range(4):
        for k in range(3):
            torch.testing.assert_close(moments[k].h_BH[n], played.h_ETH[episode[n], step[n] + k])


def test_samples_are_spread_over_episodes() -> None:
    unit = np.repeat([7, 8, 9], [10, 2, 1])
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert sorted(unit[spread_over_episodes(np.arange(13), unit, 3, rng)]) == [7, 8, 9]
        assert sorted(unit[spread_over_episodes(np.arange(13), unit, 6, rng)]) == [7, 7, 7, 8, 8, 9]
    assert spread_over_episodes(np.arange(13), unit, 50, rng).tolist() == list(range(13))
    assert set(spread_over_episodes(np.array([1, 5]), unit, 1, rng)) <= {1, 5}


def test_memory_bounds_the_batch(learned: Simulator[RSSMWorld]) -> None:
    state = jacobian.replay(learned, torch.zeros(1, 6, dtype=torch.float64), 3).after[1]
    sizes = [jacobian.rows_that_fit(learned, state, 4, size) for size in (1e12, 1e8, 1e7, 1.0)]
    assert jacobian.MOST_ROWS == sizes[0] > sizes[1] > sizes[2] > sizes[3] == 1
    assert jacobian.rows_that_fit(learned, state, 8, 1e8) < sizes[1]


def test_mean_effects_keep_their_level_and_count_episodes() -> None:
    rng = np.random.default_rng(5)
    unit = np.repeat(np.arange(12), 4)
    of_unit = rng.normal(size=(12, 400)) * rng.choice([0.1, 3.0], size=(12, 1))
    effect = np.repeat(of_unit, 4, 0) + 0.01 * rng.normal(size=(48, 400))
    found = estimates.mean_effect(effect, unit, 999, rng)
    np.testing.assert_allclose(found.mean_X, effect.mean(0))
    assert (found.p_X < 0.05).mean() < 0.085  # 400 columns: standard error 0.011; few differ, which makes it careful
    low, high = found.ends_2X
    assert ((low < 0) & (high > 0)).mean() > 0.92
    assert (estimates.mean_effect(effect + 6.0, unit, 999, rng).p_X < 0.05).mean() > 0.95
    nothing = estimates.mean_effect(np.zeros((48, 2)), unit, 99, rng)
    assert (nothing.p_X == 1).all() and (nothing.ends_2X == 0).all()


def test_skewed_effects_keep_their_level() -> None:
    """By flipping signs 0.17 of these are significant."""
    rng = np.random.default_rng(6)
    effect = rng.lognormal(size=(32, 1500)) - np.exp(0.5)
    found = estimates.mean_effect(effect, np.arange(32), 499, rng)
    assert (found.p_X <= 0.05).mean() < 0.07


def test_p_of_few_episodes_says_no_more_than_they_can() -> None:
    """All of one sign, 6 episodes: 2 of the 64 patterns of signs reach it, whatever the draws."""
    effect, unit = np.repeat(np.linspace(3, 4, 6), 2)[:, None], np.repeat(np.arange(6), 2)
    for seed in range(5):
        assert estimates.mean_effect(effect, unit, 99, np.random.default_rng(seed)).p_X[0] == 2 / 64
    assert estimates.mean_effect(effect[:10], unit[:10], 99, np.random.default_rng(0)).p_X[0] == 2 / 32 > 0.05
    many = estimates.mean_effect(np.ones((40, 1)), np.arange(40), 99, np.random.default_rng(0))
    assert many.p_X[0] == 1 / 100


@pytest.mark.parametrize("n", [24, pytest.param(8, marks=pytest.mark.slow), pytest.param(128, marks=pytest.mark.slow)])
def test_interval_of_a_lagged_correlation_covers(n: int, record_property: Callable[[str, object], None]) -> None:
    """Of two autocorrelated coordinates in episodes of unequal length; its truth is 0.6 by construction."""
    rng, hits = np.random.default_rng(n), []
    for _ in range(200 if n == 24 else 1000):
        lengths = rng.integers(8, 25, size=n)
        x, noise = (autoregressive(rng, lengths, 2).T for _ in range(2))
        c = np.stack([x[0], np.r_[0, 0.6 * x[0][:-1]] + 0.8 * noise[0]], 1)
        index = steps_of(c, lengths)
        found = correlation.correlate(index, [0], [1], 19, 999, rng)
        low, high = found["ends"][:, 0, 0, 0, 1]
        assert low <= found["correlation"][0, 0, 0, 1] <= high
        hits.append(low <= 0.6 <= high)
    record_property("coverage", float(np.mean(hits)))
    assert np.mean(hits) >= (0.9 if n == 24 else 0.88 if n == 8 else 0.92)


@pytest.mark.parametrize("truth", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("n", [24, pytest.param(96, marks=pytest.mark.slow)])
def test_interval_of_a_correlation_of_rare_events_covers(
    n: int, truth: float, record_property: Callable[[str, object], None]
) -> None:
    """Events in one step of twenty, which hardly ever meet: leaving out an episode changes nothing, and intervals of
    independent ones excluded 0 in half of the data sets."""
    rng, hits = np.random.default_rng(n), []
    for _ in range(200 if n == 24 else 1000):
        x, other = rng.exponential(size=(2, n * 21)) * (rng.random((2, n * 21)) < 0.05)
        c = np.stack([x, truth * x + np.sqrt(1 - truth**2) * other], 1)
        found = correlation.correlate(steps_of(c, np.full(n, 21)), [0], [0], 19, 399, rng)
        low, high = found["ends"][:, 0, 0, 0, 1]
        hits.append(low <= truth <= high)
    record_property("coverage", float(np.mean(hits)))
    assert np.mean(hits) >= 0.9


def test_permutations_that_repeat_a_correlation_reach_it() -> None:
    """Two events of each kind in eight episodes: most permutations give the same number, but for rounding."""
    called = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        c = np.zeros((8 * 21, 2))
        for kind in range(2):
            c[rng.integers(len(c), size=2), kind] = rng.normal(size=2)
        found = correlation.correlate(steps_of(c, np.full(8, 21)), [0], [0], 999, 19, np.random.default_rng(0))
        called += bool(found["p"][0, 0, 0, 1] <= 0.05)
    assert called <= 5


# Both


def config(permutations: int = 499, **options: object) -> CouplingConfig:
    return CouplingConfig(lags=(1, 2), permutations=permutations, resamples=199, samples_per_behaviour=24, **options)


@pytest.fixture(scope="module")
def planted_coupling(planted: Simulator[PlantedModel]) -> estimates.Coupling:
    known, z = truth(dtype=torch.float64), planted_latents(24)
    h = planted.rollout(z, 12).h.flatten(0, 1).numpy()
    sampled = steps_of(known.basis.project(torch.from_numpy(h)).numpy(), np.full(24, 13))
    real = record_planted(episodes=40, steps=24, seed=5)
    lengths = np.array([e.steps for e in real])
    h_real = np.concatenate([e.h[: e.steps] for e in real])
    observed = steps_of(known.basis.project(torch.from_numpy(h_real).double()).numpy(), lengths)
    planned = estimates.plan(planted, z, sampled, h, [0], config())
    return estimates.couple(planted, planned, observed, known.basis, [0], config())


def test_the_jacobian_clears_what_correlation_accuses(planted_coupling: estimates.Coupling) -> None:
    """Nuisance and memory share a cause: correlated beyond doubt, and the Jacobian is none."""
    known = truth()
    result = tables.assemble(planted_coupling, [0], {0: "all"}, NAMES, config())
    a = result.arrays
    assert a["q_correlation"][0, 0, NUISANCE, MEMORY] < 0.05
    assert a["jacobian"][0, 0, NUISANCE, MEMORY] == 0 and a["q_jacobian"][0, 0, NUISANCE, MEMORY] == 1
    significant = a["q_jacobian"][0, 0] < 0.05
    planted_edges = known.in_agent_KK | known.through_world_KK | np.eye(8, dtype=bool)
    assert not (significant & ~planted_edges).any()
    assert significant[CAUSE, MEMORY] and significant[CAUSE, CONTROLLED] and significant[MEMORY, CONTROLLED]
    assert (a["q_jacobian_agent_only"][0, 0] < 0.05).tolist() == (known.in_agent_KK | np.eye(8, dtype=bool)).tolist()
    world = a["q_jacobian_through_world"][0, 0] < 0.05
    assert world[CAUSE, CONTROLLED] and not (world & ~known.through_world_KK).any()
    assert (a["jacobian_low"][0, 0, CAUSE, MEMORY] <= a["jacobian"][0, 0, CAUSE, MEMORY]).all()
    assert result.notes["actions"] == [["left"], ["wait"], ["right"]]


def test_all_three_paths_are_compared_with_the_correlation(planted_coupling: estimates.Coupling) -> None:
    result = tables.assemble(planted_coupling, [0], {}, NAMES, config())
    a = result.arrays
    np.testing.assert_allclose(a["jacobian"], a["jacobian_agent_only"] + a["jacobian_through_world"], atol=1e-12)
    off = ~np.eye(8, dtype=bool)
    for path in PATHS:
        both = (a[f"q_jacobian{path}"] <= 0.05) & (a["q_correlation"] <= 0.05) & off
        share = (np.sign(a[f"jacobian{path}"]) == np.sign(a["correlation"]))[both].mean()
        scalar = result.scalars[f"sign_agreement{path}"]
        assert scalar["n"] == both.sum() and scalar["value"] == (pytest.approx(share) if both.sum() >= 3 else None)
        tests = result.scalars[f"significant_jacobian{path}"]
        assert tests["value"] == pytest.approx((a[f"q_jacobian{path}"] <= 0.05).mean())
    parts = (a["q_jacobian_agent_only"] <= 0.05) | (a["q_jacobian_through_world"] <= 0.05)
    assert result.scalars["parts_without_whole"]["value"] == (parts & (a["q_jacobian"] > 0.05)).sum()


def test_gradients_that_explode_are_refused(planted: Simulator[PlantedModel]) -> None:
    steps, h, z = small_study(planted, 12, 0)
    planned = estimates.plan(planted, z, steps, h, [0], config())
    right = jacobian.jacobians

    def broken(*a: object) -> dict[str, Tensor]:
        found = right(*a)  # type: ignore[arg-type]
        found["straight_through"][2, 0, 1, 1] = torch.inf
        return found

    with pytest.raises(UserError, match=r"1 of 24 Jacobians are NaN or infinite: .* use shorter --lags"):
        estimates.couple(planted, planned, steps, truth(dtype=torch.float64).basis, [0], config(), broken)


def test_edges_read_as_sentences(planted_coupling: estimates.Coupling) -> None:
    result = tables.assemble(planted_coupling, [0], {}, NAMES, config())
    edges = result.tables["edges"]
    a = result.arrays
    shown = (a["q_jacobian"] <= 0.05) & ((a["jacobian_low"] > 0) | (a["jacobian_high"] < 0))
    shown &= np.sign(a["jacobian"]) == np.sign(a["straight_through"])
    assert len(edges) == shown.sum() == result.scalars["edges"]["value"]
    assert all(abs(a["J"]) >= abs(b["J"]) for a, b in zip(edges, edges[1:], strict=False))
    (edge,) = [e for e in edges if (e["lag"], e["source"], e["target"]) == (1, NAMES[CAUSE], NAMES[MEMORY])]
    assert edge["sentence"].startswith(f"{NAMES[CAUSE]} at t-1 raises {NAMES[MEMORY]} in behaviour 0: J = 0.25")
    assert edge["agree"] and edge["n"] == edge["episodes"] == 24 and edge["J_direct"] == pytest.approx(0.25)


def test_a_replay_that_differs_is_refused(planted: Simulator[PlantedModel]) -> None:
    z, basis = planted_latents(6), truth(dtype=torch.float64).basis
    h = planted.rollout(z, 6).h.flatten(0, 1).numpy()
    steps = steps_of(basis.project(torch.from_numpy(h)).numpy(), np.full(6, 7))
    with pytest.raises(UserError, match="0% of the sampled steps come out again"):
        estimates.plan(planted, z, steps, h + 1, [0], config())
    with pytest.raises(UserError, match="too short"):
        estimates.plan(planted, z, steps, h, [0], CouplingConfig(lags=(9,)))


def small_study(
    planted: Simulator[PlantedModel], episodes: int, behaviour_1: int
) -> tuple[Labelled, np.ndarray, Tensor]:
    """Modal rollouts; the first ``behaviour_1`` episodes are behaviour 1, the others 0."""
    z = planted_latents(episodes)
    h = planted.rollout(z, 6).h.flatten(0, 1).numpy()
    c = truth(dtype=torch.float64).basis.project(torch.from_numpy(h)).numpy()
    steps = steps_of(c, np.full(episodes, 7))
    return steps._replace(label_N=(steps.unit_N < behaviour_1).astype(np.int64)), h, z


def test_behaviours_of_too_few_episodes_are_named_with_what_they_need(planted: Simulator[PlantedModel]) -> None:
    basis = truth(dtype=torch.float64).basis
    steps, h, z = small_study(planted, 13, 5)
    planned = estimates.plan(planted, z, steps, h, [0, 1], config())
    found = estimates.couple(planted, planned, steps, basis, [0, 1], config())
    assert found.sample_episodes.tolist() == [8, 5]
    # 5 episodes have 2^4 patterns: no p below 0.0625, so no number at all; 5! pairings do for the correlation.
    assert np.isfinite(found.p_jacobian[""][0]).all() and np.isnan(found.p_jacobian[""][1]).all()
    assert np.isnan(found.jacobian[""][1]).all() and np.isfinite(found.p_correlation).all()
    result = tables.assemble(found, [0, 1], {}, NAMES, config())
    assert result.notes["left_out"] == ["behaviour 1 has Jacobians from 5 episodes, 6 are needed"]
    assert {row["behaviour"] for row in result.tables["edges"]} <= {0}
    strict = config(alpha=0.01)
    assert tables.untested(found, [0, 1], strict) == ["behaviour 1 has Jacobians from 5 episodes, 8 are needed"]
    few = found._replace(pair_episodes=np.array([[8, 3], [5, 2]]))
    assert tables.untested(few, [4, 7], config())[0] == (
        "behaviour 4 has time pairs from few episodes (3 at lag 2), 4 are needed"
    )


def test_too_few_episodes_or_permutations_for_any_test_are_refused(planted: Simulator[PlantedModel]) -> None:
    steps, h, z = small_study(planted, 8, 3)
    with pytest.raises(UserError, match=r"enough episodes for its Jacobians: at most 5, .* --alpha 0.05 needs 6"):
        estimates.plan(planted, z, steps, h, [0, 1], config())
    # Eight rollouts, but from four real episodes.
    shared = steps._replace(label_N=np.zeros(56, np.int64), unit_N=steps.unit_N // 2)
    with pytest.raises(UserError, match="at most 4, .* needs 6"):
        estimates.plan(planted, z, shared, h, [0], config())
    steps = steps._replace(label_N=np.zeros(56, np.int64))
    planned = estimates.plan(planted, z, steps, h, [0], config())
    with pytest.raises(UserError, match="499 permutations are too few at level 0.001: .* use at least 999"):
        estimates.couple(planted, planned, steps, truth(dtype=torch.float64).basis, [0], config(alpha=0.001))


def test_what_no_entry_alone_could_reach_is_said(planted_coupling: estimates.Coupling) -> None:
    """128 tests: 1/500 * 128 > 0.05, so it takes 6 entries at the smallest p; 2559 permutations lift that."""
    said = tables.resolution(planted_coupling, config())
    assert len(said) == 2 and said[0].startswith("128 Jacobians are tested together and p is never below 0.002: at ")
    assert "at least 6 must reach" in said[0] and "--permutations 2559," in said[0]
    assert tables.resolution(planted_coupling, CouplingConfig(lags=(1, 2), permutations=2559)) == []
    few = planted_coupling._replace(sample_episodes=np.array([8]))
    (sentence,) = tables.resolution(few, CouplingConfig(lags=(1, 2), permutations=2559))
    assert "p is never below 0.0078" in sentence and "could with 13 episodes of a behaviour, or" in sentence
    # The promise, kept: one entry at the smallest p does not count, six do.
    for count, counted in ((5, False), (6, True)):
        p = np.where(np.arange(128) < count, 1 / 500, 1.0)
        assert (benjamini_hochberg(p).min() <= 0.05) == counted


def agreement_of(j: np.ndarray, r: np.ndarray, rng: np.random.Generator) -> agreement.Agreement:
    null = rng.normal(size=(199, *j.shape)).astype(np.float32)
    counts = np.full((1, 1), 20)
    found = estimates.Coupling(
        r, r, null, r, {"": j}, {"": j}, {"": j}, {"": j}, counts, counts, np.array([20]), np.array([20]), 0.0, (),
    )  # fmt: skip
    return agreement.agreement(found, np.abs(j) > 0.1, "sign_agreement")


def test_agreement_is_told_from_chance() -> None:
    rng = np.random.default_rng(6)
    j = rng.normal(size=(1, 1, 8, 8))
    same = agreement_of(j, 0.1 * j, rng)
    assert same.value == 1 and same.p <= 0.005 and same.null_high < 1 and 0.3 < same.null_low < 0.5
    assert agreement_of(j, -j, rng).value == 0 and agreement_of(j, -j, rng).p <= 0.005
    other = agreement_of(j, rng.normal(size=j.shape), rng)
    assert other.null_low <= other.value <= other.null_high
    assert np.isnan(agreement_of(np.zeros_like(j), j, rng).value)


def test_magnitudes_are_compared_without_their_signs() -> None:
    j = np.array([1.0, -2.0, 3.0, -4.0])
    assert agreement.MEASURES["magnitude_rank_correlation"][0](j, np.array([-0.1, 0.2, 0.3, 0.4])) == pytest.approx(1)
    assert agreement.MEASURES["magnitude_rank_correlation"][0](j, -1 / j) == pytest.approx(-1)


def test_labels_go_to_their_steps() -> None:
    index = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
    known = Behaviours(
        {"sim": np.array([3, 4])}, {"sim": np.array([(1, 0), (0, 1)])}, np.zeros(0), {3: "a", 4: "b"}, "x"
    )
    assert labels.behaviour_labels(index, known, "sim").tolist() == [-1, 4, 3, -1]
    assert labels.behaviour_labels(index, None, "sim").tolist() == [0, 0, 0, 0]
    with pytest.raises(UserError, match="no labels of real rollouts"):
        labels.behaviour_labels(index, known, "real")


def test_matrices_are_drawn_with_their_significance(planted_coupling: estimates.Coupling) -> None:
    result = tables.assemble(planted_coupling, [0], {0: "walking"}, NAMES, config())
    figure = coupling_figures.draw_matrices(result, 0)
    assert "walking" in figure.get_suptitle()
    axes = [axis for axis in figure.axes if axis.get_title()]
    assert [a.get_title() for a in axes[:5]] == [
        "whole", "direct (memory)", "through the world (actions enumerated)", "straight-through, for comparison",
        "correlation",
    ]  # fmt: skip
    assert axes[0].get_ylabel() == "direction 1 step before"
    dots = [{(int(y), int(x)) for x, y in axis.lines[0].get_xydata()} for axis in axes[:5]]
    edges = {(NAMES.index(e["source"]), NAMES.index(e["target"])) for e in result.tables["edges"] if e["lag"] == 1}
    assert dots[0] == edges and dots[3] == set()
    assert dots[4] == set(zip(*np.nonzero(result.arrays["q_correlation"][0, 0] <= 0.05), strict=True))


def test_samples_that_no_behaviour_labels_are_refused_with_what_helps() -> None:
    assert labels.labels_in(np.array([-1, 2, 0, 2]), Path("b"), Path("s")) == [0, 2]
    with pytest.raises(UserError, match=r"b labels no step of s: .*record longer ones .*shorter --lags"):
        labels.labels_in(np.array([-1, -1]), Path("b"), Path("s"))
