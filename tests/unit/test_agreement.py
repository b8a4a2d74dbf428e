"""Agreement of predictions with noisy effects: what it is without the noise, and intervals that hold it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import rankdata

from validation.interventions.agreement import LEAST, agreement, blocks_of, exchanged


def truth(m_P: np.ndarray, s_P: np.ndarray) -> tuple[float, float, float]:
    """Sign, rank and slope of exact effects."""
    rank_m, rank_s = (rankdata(x) - (1 + len(x)) / 2 for x in (m_P, s_P))
    alike = np.abs(s_P)[np.sign(m_P) == np.sign(s_P)].sum() / np.abs(s_P).sum()
    return float(alike), float((s_P @ rank_m) / (s_P @ rank_s)), float((m_P @ s_P) / (m_P @ m_P))


def drawn(rng: np.random.Generator, starts: int, noise: float = 4.0) -> tuple[np.ndarray, np.ndarray, tuple]:
    """60 predictions, effects that agree with them in part, seen through noise that points share."""
    m_P = rng.standard_normal(60)
    s_P = 0.8 * m_P + 0.6 * rng.standard_normal(60)
    shared_PN = rng.standard_normal((60, 5)) @ rng.standard_normal((5, starts)) / np.sqrt(5)
    seen_PN = s_P[:, None] + noise * (shared_PN + rng.standard_normal((60, starts))) / np.sqrt(2)
    return m_P[:, None], seen_PN, truth(m_P, s_P)


def test_exact_effects_have_their_own_agreement() -> None:
    m_P1, seen_PN, want = drawn(np.random.default_rng(0), 40, noise=0.0)
    found = agreement(m_P1, seen_PN, rng=np.random.default_rng(0))
    np.testing.assert_allclose([e.value for e in found[:3]], want)
    np.testing.assert_allclose([e.low for e in found[:3]], want)


def test_few_starts_and_no_points_say_nothing() -> None:
    nothing = agreement(np.zeros((0, 20)), np.zeros((0, 20)), rng=np.random.default_rng(0))
    assert nothing.points == 0 and np.isnan(nothing.sign.value)
    m_P1, seen_PN, _ = drawn(np.random.default_rng(0), LEAST - 1)
    assert np.isnan(agreement(m_P1, seen_PN, rng=np.random.default_rng(0)).rank.value)


@pytest.mark.parametrize("starts", [24, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 128))])
def test_intervals_of_agreement_hold_what_it_is_without_noise(
    starts: int, record_property: Callable[[str, object], None]
) -> None:
    rng, holds, values, plain = np.random.default_rng(starts), [], [], []
    for _ in range(200 if starts == 24 else 1000):
        m_P1, seen_PN, want = drawn(rng, starts)
        found = agreement(m_P1, seen_PN, rng=rng)[:3]
        assert all(e.low <= e.value <= e.high for e in found if np.isfinite(e.low))
        holds.append([not (e.low > w or e.high < w) for e, w in zip(found, want, strict=True)])
        values.append([e.value - w for e, w in zip(found, want, strict=True)])
        plain.append(truth(m_P1[:, 0], seen_PN.mean(1))[1] - want[1])
    for name, covers in zip(("sign", "rank", "slope"), np.mean(holds, 0), strict=True):
        record_property(f"coverage {name}", float(covers))
    assert (np.mean(holds, 0) >= (0.88 if starts == 8 else 0.9)).all()
    if starts >= 24:
        assert np.abs(np.nanmedian(values, 0)).max() < 0.05
        assert np.mean(plain) < -0.02  # noise hides agreement


@pytest.mark.parametrize(("alike", "called"), [(0.0, (0, 6)), (0.9, (36, 40))])
def test_predictions_are_held_against_those_of_other_changes(alike: float, called: tuple[int, int]) -> None:
    """Intervals over starts exclude chance for predictions that have nothing to do with the effects, where points are
    few; p of exchanged predictions does not."""
    beyond, small = 0, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        s_DQ = rng.standard_normal((6, 4))
        m_DQ = alike * s_DQ + np.sqrt(1 - alike**2) * rng.standard_normal((6, 4))
        m_DQN, s_DQN = (x[..., None] + rng.standard_normal((6, 4, 32)) for x in (m_DQ, s_DQ))
        beyond += agreement(m_DQN.reshape(24, 32), s_DQN.reshape(24, 32), rng=rng).sign.low > 0.5
        small += bool(exchanged(m_DQN, s_DQN, rng=rng)[0] <= 0.05)
    assert called[0] <= small <= called[1]
    assert beyond >= 5, "of unrelated predictions an eighth and more agree by the intervals alone"


def test_changes_of_one_direction_are_exchanged_together() -> None:
    """Twice as far along a direction has twice the effect, foretold and seen: that is no second thing foretold.
    Exchanged one by one, unrelated predictions had p <= .05 in .15 of such studies."""
    small, points = 0, 3
    ids, like = [(d,) for d in range(6) for _ in range(points)], [("shift", k) for _ in range(6) for k in range(points)]
    blocks = blocks_of(ids, like)
    assert [x.tolist() for x in blocks] == [[[3 * d, 3 * d + 1, 3 * d + 2] for d in range(6)]]
    for seed in range(60):
        rng = np.random.default_rng(seed)
        s_DQN, m_DQN = (
            (rng.standard_normal((6, 1, 2)) * np.array([1.0, 2.0, 3.0])[:, None]).reshape(18, 2, 1)
            + 0.3 * rng.standard_normal((18, 2, 32))
            for _ in range(2)
        )
        small += bool(exchanged(m_DQN, s_DQN, blocks, rng=rng)[1] <= 0.05)
    assert small <= 8  # binomial, 60 at 0.05: P(more) < 2e-3
    mixed = blocks_of([(0,), (1,), (0, 1), (2,), (2,)], ["a", "a", "b", "a", "a"])
    assert [x.tolist() for x in mixed] == [[[0, 1, 2]], [[3, 4]]]  # nothing is alike
    assert np.isnan(exchanged(s_DQN[:5], s_DQN[:5], mixed, rng=rng)).all()


def test_two_changes_say_little_and_one_nothing() -> None:
    rng = np.random.default_rng(0)
    s_DQN = rng.standard_normal((2, 5))[..., None] + 0.01 * rng.standard_normal((2, 5, 24))
    assert exchanged(s_DQN, s_DQN, rng=rng).tolist() == [0.5, 0.5, 0.5]
    assert np.isnan(exchanged(s_DQN[:1], s_DQN[:1], rng=rng)).all()
