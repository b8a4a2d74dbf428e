"""Fidelity: measures against closed forms, and the planted simulator against its own world."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from core.contracts import UserError
from envs.planted import PlantedOptions, PlantedSimulator, record_planted
from validation.fidelity import (
    Paired,
    average_precision,
    choose_starts,
    classifier_hits,
    compare,
    frechet,
    halves,
    mmd,
    pair,
    psnr,
    stretches,
)

STILL = PlantedOptions(noise=0.0, hazard=0.05)  # the world without noise is the modal simulator itself
HORIZON = 6


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def compared(simulator, options, seed=0):
    episodes = record_planted(options, episodes=16, steps=24, seed=seed)
    starts = choose_starts(episodes, 2, 40, rng())
    paired = pair(simulator, episodes, starts, HORIZON, batch=7)
    return paired, compare(paired, rng(), frames=False)


@pytest.fixture(scope="module")
def exact():
    return compared(PlantedSimulator(STILL), STILL)


@pytest.fixture(scope="module")
def noisy():
    options = PlantedOptions()
    return compared(PlantedSimulator(options), options)


def rows_of(result, measure):
    return {r["horizon"]: r for r in result.tables["fidelity"] if r["measure"] == measure}


def test_the_true_simulator_of_a_noiseless_world_makes_no_error(exact):
    """Which also pins the alignment: an off-by-one in frames, actions or rewards would show here."""
    paired, result = exact
    assert paired.seen[:, 1:].any(0).all(), "the windows must reach every horizon"
    errors = rows_of(result, "frame_mse")
    assert sorted(errors) == list(range(HORIZON + 1))
    assert max(r["simulated"] for r in errors.values()) < 1e-8
    assert min(r["baseline_copy"] for k, r in errors.items() if k) > 1e-4
    assert (
        rows_of(result, "reward_mse")[None]["simulated"] < 1e-8 < rows_of(result, "reward_mse")[None]["baseline_mean"]
    )
    assert rows_of(result, "reward_average_precision")[None]["simulated"] == pytest.approx(1)


def test_a_wrong_simulator_of_it_does(exact):
    wrong, _ = compared(Shifted(STILL), STILL)
    paired, _ = exact
    assert wrong.error["simulated"][wrong.seen].mean() > 0.1 > paired.error["simulated"][paired.seen].mean()


class Shifted(PlantedSimulator):
    """Shows everything moved by one, and moves the agent's state too."""

    def step(self, state, action=None, noise=None, intervene=(), env_grads=True):
        state, out = super().step(state, action, noise, intervene, env_grads)
        return state, out._replace(obs={"x": out.obs["x"] + 1}, h_BH=out.h_BH + 1)


def test_in_a_noisy_world_error_grows_and_stays_below_the_held_frame(noisy):
    _, result = noisy
    errors = rows_of(result, "frame_mse")
    assert errors[0]["simulated"] < 1e-8  # the initial frame itself
    assert errors[1]["simulated"] < errors[3]["simulated"]
    assert errors[1]["simulated"] < errors[1]["baseline_mean"]
    for r in errors.values():
        assert r["low"] <= r["simulated"] <= r["high"] and r["floor"] == 0 and r["n"] <= 16


def test_paired_difference_is_the_difference(noisy):
    _, result = noisy
    for name in ("copy", "mean"):
        for k, r in rows_of(result, f"frame_mse_less_{name}").items():
            e = rows_of(result, "frame_mse")[k]
            assert r["simulated"] == pytest.approx(e["simulated"] - e[f"baseline_{name}"])


def test_hidden_distribution_of_the_simulator_lies_between_floor_and_a_wrong_one(noisy):
    _, result = noisy
    _, wrong = compared(Shifted(PlantedOptions()), PlantedOptions())
    for name in ("h_frechet", "h_mmd", "h_classifier"):
        right, bad = rows_of(result, name)[None], rows_of(wrong, name)[None]
        assert bad["simulated"] > right["simulated"], name
        assert bad["floor"] == pytest.approx(right["floor"]), name
        assert bad["low"] > bad["floor"], name


def test_episodes_are_the_unit(noisy):
    paired, result = noisy
    assert len(paired.episode) == 40 and {r["n"] for r in rows_of(result, "frame_mse").values()} <= set(range(2, 17))


def test_what_an_episode_does_not_have_is_not_compared():
    options = replace(PlantedOptions(), hazard=1.0)
    episodes = record_planted(options, episodes=12, steps=30)
    starts = choose_starts(episodes, 2, 24, rng())
    paired = pair(PlantedSimulator(options), episodes, starts, HORIZON)
    for (e, t), seen, acted, terminal in zip(starts, paired.seen, paired.acted, paired.terminal[0], strict=True):
        left = episodes[e].steps - t
        assert seen.sum() == min(left + 1, HORIZON + 1) and acted.sum() == min(left, HORIZON)
        ends_inside = episodes[e].terminated and left <= HORIZON
        assert terminal[acted].sum() == ends_inside and (not ends_inside or terminal[left - 1])


def test_starts_are_spread_over_episodes_and_fit():
    episodes = record_planted(PlantedOptions(), episodes=8, steps=20)
    starts = choose_starts(episodes, 5, 20, rng())
    counts = np.bincount(starts[:, 0], minlength=8)
    assert len(starts) == 20 and counts.max() - counts.min() <= 1 or min(len(e.h) for e in episodes) < 8
    assert all(t + 5 <= len(episodes[e].h) for e, t in starts)
    assert len({tuple(s) for s in starts}) == 20
    with pytest.raises(UserError, match="record more"):
        choose_starts(episodes, 50, 20, rng())


# Measures


def test_average_precision_by_hand_and_against_sklearn():
    from sklearn.metrics import average_precision_score

    assert average_precision(np.array([0.9, 0.8, 0.7]), np.array([True, False, True])) == pytest.approx((1 + 2 / 3) / 2)
    assert np.isnan(average_precision(np.ones(3), np.zeros(3, bool)))
    generator = rng()
    for _ in range(5):
        score, event = generator.integers(0, 6, 50) / 5, generator.random(50) < 0.3
        assert average_precision(score, event) == pytest.approx(average_precision_score(event, score))


def test_frechet_of_gaussians():
    a = rng().standard_normal((200_00, 3))
    b = a * np.array([1, 2, 1]) + np.array([3, 0, 0])
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)
    # Diagonal covariances: |m - m'|^2 + sum (s - s')^2
    assert frechet(a, b) == pytest.approx(9 + 1, rel=0.05)


def test_mmd_is_unbiased_and_grows():
    draws = [mmd(*np.split(np.random.default_rng(i).standard_normal((80, 2)), 2), 1.0) for i in range(60)]
    assert abs(np.mean(draws)) < 3 * np.std(draws) / np.sqrt(60)
    a = rng().standard_normal((100, 2))
    assert mmd(a, a + 1, 1.0) > mmd(a, a + 0.5, 1.0) > max(draws[:1])


def test_classifier_tells_apart_only_what_differs_and_not_by_the_episode():
    generator = rng()
    episode = np.repeat(np.arange(20), 10)
    base = generator.standard_normal((20, 4))[episode]  # an episode is recognisable ...
    a, b = (base + 0.1 * generator.standard_normal(base.shape) for _ in range(2))
    label, both = np.repeat([0, 1], 200), np.tile(episode, 2)
    # ... but says nothing of the class: about half right.
    same = classifier_hits(np.concatenate([a, b]), label, both, rng()).mean()
    other = classifier_hits(np.concatenate([a, b + 2]), label, both, rng()).mean()
    assert abs(same - 0.5) < 0.15 < 0.45 < other - 0.3


def test_halves_compare_equal_sizes():
    generator = rng()
    episode = np.repeat(np.arange(30), 8)
    x, y = generator.standard_normal((2, 240, 3))
    sim, floor = halves(x, y, episode, frechet, rng())
    assert sim.n == floor.n == 30 and abs(sim.value - floor.value) < 0.15
    far, again = halves(x, y + 2, episode, frechet, rng())
    assert far.low > again.high


def test_psnr_and_stretches():
    assert psnr(0.01) == pytest.approx(20) and psnr(0) == float("inf")
    assert stretches(32) == [(None, 0, 32), (4, 0, 4), (12, 4, 12), (32, 12, 32)]
    assert stretches(3) == [(None, 0, 3), (3, 0, 3)]


def test_teacher_forced_is_measured_where_the_simulator_can(exact):
    class Forced(PlantedSimulator):
        def reconstruct(self, obs, action, seen):
            return self.observe(obs, action, seen) @ self.C_XX.T

    options = PlantedOptions()
    paired, result = compared(Forced(options), options)
    forced = rows_of(result, "frame_mse_teacher_forced")
    assert sorted(forced) == list(range(HORIZON + 1)) and max(r["simulated"] for r in forced.values()) < 1e-8
    assert not rows_of(exact[1], "frame_mse_teacher_forced") and isinstance(paired, Paired)


def test_nothing_in_the_table_is_out_of_json(noisy):
    for r in noisy[1].tables["fidelity"]:
        for key in ("simulated", "low", "high", "floor", "baseline_copy", "baseline_mean"):
            assert r[key] is None or np.isfinite(r[key])
    assert torch.is_grad_enabled()


def test_hidden_states_values_and_actions_are_those_of_the_same_step():
    """From an episode's first observation the planted simulator knows the agent's state too, so all must agree."""
    options = replace(STILL, hazard=0.0)
    episodes = record_planted(options, episodes=6, steps=10)
    paired = pair(PlantedSimulator(options), episodes, np.array([(e, 0) for e in range(6)]), HORIZON)
    assert paired.seen.all()
    for real, simulated in (paired.h, paired.value):
        np.testing.assert_allclose(real, simulated, atol=1e-4)
    np.testing.assert_array_equal(*paired.greedy)
