"""PPO's advantages against their closed form, and the reward scale against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agents.ppo import PPOConfig, RewardScale, gae
from core.contracts import UserError

numbers = st.integers(0, 2**31 - 1)


@given(numbers, st.integers(1, 12), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.7))
@settings(max_examples=80, deadline=None)
def test_gae_is_its_closed_form(seed: int, steps: int, envs: int, gamma: float, lam: float, ends: float) -> None:
    """A_t = sum_k (gamma lambda)^k delta_{t+k}, cut at the end of the episode (arXiv:1506.02438, eq. 16)."""
    rng = np.random.default_rng(seed)
    reward, value = rng.normal(size=(2, steps, envs))
    done, next_value = rng.random((steps, envs)) < ends, rng.normal(size=envs)
    after = np.concatenate([value[1:], next_value[None]])
    delta = reward + gamma * np.where(done, 0, after) - value
    want = np.zeros((steps, envs))
    for b in range(envs):
        for t in range(steps):
            for k in range(steps - t):
                want[t, b] += (gamma * lam) ** k * delta[t + k, b]
                if done[t + k, b]:
                    break
    got = gae(*(torch.from_numpy(x) for x in (reward, value, done, next_value)), gamma=gamma, lam=lam)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)  # gamma * lambda is rounded to float32


def test_gae_at_its_limits() -> None:
    """lambda 1: discounted return minus value; lambda 0: the one-step error.  No look across an end."""
    reward, value = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.5], [0.25], [8.0]])
    done, after = torch.tensor([[False], [True], [False]]), torch.tensor([16.0])
    whole = gae(reward, value, done, after, 0.5, 1.0)
    assert whole[:, 0].tolist() == [1 + 0.5 * 2 - 0.5, 2 - 0.25, 4 + 0.5 * 16 - 8]
    assert gae(reward, value, done, after, 0.5, 0.0)[:, 0].tolist() == [1 + 0.125 - 0.5, 2 - 0.25, 4 + 8 - 8]


@given(numbers, st.integers(1, 4), st.floats(0.5, 1))
@settings(max_examples=40, deadline=None)
def test_reward_scale_is_the_spread_of_whole_discounted_returns(seed: int, envs: int, gamma: float) -> None:
    """After n episodes the variance is that of their discounted returns and one prior point: mean 0, variance 1."""
    rng = np.random.default_rng(seed)
    scale = RewardScale(gamma, np.zeros(envs), np.ones(envs))
    running, discount, returns = np.zeros(envs), np.ones(envs), [0.0]
    for _ in range(40):
        reward, done = rng.normal(2, 3, size=envs), rng.random(envs) < 0.2
        given_ = reward.copy(), done.copy()
        out = scale(reward, done)
        np.testing.assert_array_equal(reward, given_[0])
        running = running + discount * reward
        discount = discount * gamma
        returns += running[done].tolist()
        running[done], discount[done] = 0, 1
        variance = np.var(returns) + 1 / len(returns)
        np.testing.assert_allclose(out, np.clip(reward / np.sqrt(variance + 1e-8), -10, 10), rtol=1e-5)
        assert out.dtype == np.float32


def test_reward_scale_clips() -> None:
    scale = RewardScale(0.99, np.zeros(2), np.ones(2))
    assert scale(np.array([1e6, -1e6]), np.array([False, False])).tolist() == [10, -10]


@pytest.mark.parametrize(
    ("name", "value"),
    [("learning_rate", -1.0), ("gamma", 2.0), ("gae_lambda", -0.1), ("clip", 0.0), ("max_grad_norm", -1.0)],
)
def test_numbers_that_mean_nothing_are_refused(name: str, value: float) -> None:
    PPOConfig().check()
    with pytest.raises(UserError, match=f"--{name} must"):
        PPOConfig(**{name: value}).check()  # type: ignore[arg-type]
