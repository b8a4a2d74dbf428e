"""The simplex noise that nmmo's terrain stands on, against what the algorithm promises."""

from __future__ import annotations

import numpy as np
import pytest

from vec_noise import SKEW, UNSKEW, snoise2


def test_it_is_zero_at_the_lattice_s_corners_and_nowhere_flat() -> None:
    i, j = np.meshgrid(np.arange(-300, 300, 7), np.arange(-300, 300, 11))
    x, y = i - (i + j) * UNSKEW, j - (i + j) * UNSKEW
    assert np.abs(snoise2(x, y)).max() < 1e-9
    assert np.abs(snoise2(x + 0.3, y + 0.1)).min() > 0


def test_range_mean_and_spread() -> None:
    rng = np.random.default_rng(0)
    value = snoise2(*rng.uniform(-120, 120, (2, 200_000)))
    assert -1 <= value.min() < -0.9 and 0.9 < value.max() <= 1
    assert abs(value.mean()) < 0.02 and 0.35 < value.std() < 0.55


def test_it_is_smooth_and_has_a_continuous_gradient() -> None:
    t = np.linspace(0, 40, 400_001)
    value = snoise2(0.3 + t * np.cos(1.1), t * np.sin(1.1))
    slope = np.diff(value) / np.diff(t)
    assert np.abs(slope).max() < 10
    assert np.abs(np.diff(slope)).max() < 0.02  # a jump of the gradient would be of the order of 1


def test_it_repeats_after_256_cells_and_not_before() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.uniform(0, 40, (2, 500))
    i, j = 256.0, 0.0
    dx, dy = i - (i + j) * UNSKEW, j - (i + j) * UNSKEW
    np.testing.assert_allclose(snoise2(x + dx, y + dy), snoise2(x, y), atol=1e-9)
    assert np.corrcoef(snoise2(x + dx / 2, y + dy / 2), snoise2(x, y))[0, 1] < 0.2


def test_shapes_broadcast_and_a_point_is_its_own_field() -> None:
    x, y = np.linspace(0, 3, 5), np.linspace(0, 2, 4)
    field = snoise2(x[None], y[:, None])
    assert field.shape == (4, 5)
    assert field[2, 3] == snoise2(x[3], y[2]) and np.ndim(snoise2(0.2, 0.1)) == 0


def test_neighbouring_triangles_meet() -> None:
    """Along the diagonal of a cell, where the two triangles touch, both formulas give the same value."""
    s = np.linspace(0.05, 0.95, 19)
    x = y = s + 3 - (2 * (s + 3)) * UNSKEW
    just = 1e-7
    np.testing.assert_allclose(snoise2(x + just, y), snoise2(x, y + just), atol=1e-5)
    assert pytest.approx(0.366025, abs=1e-6) == SKEW
