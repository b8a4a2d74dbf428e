"""Two-dimensional simplex noise under the name that nmmo's terrain generator imports.

nmmo asks for the package vec-noise, whose last release no current pip can build; it uses this one function.
The algorithm is public domain (Ken Perlin's simplex noise as laid out by Stefan Gustavson, "Simplex noise
demystified", 2005); maps made with it are like those of the original package, not equal to them bit for bit.
"""

from __future__ import annotations

import numpy as np

SKEW, UNSKEW = (3**0.5 - 1) / 2, (3 - 3**0.5) / 6
GRADIENT_82 = np.array([[1, 1], [-1, 1], [1, -1], [-1, -1], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float64)
SEED = 20231107  # of the table below: any permutation will do, but it must be one and the same for ever
PERMUTATION = np.tile(np.random.RandomState(SEED).permutation(256), 2)
SCALE = 70.0  # brings the sum of three corners to about [-1, 1]


def snoise2(x: np.ndarray | float, y: np.ndarray | float) -> np.ndarray:
    """Noise at points (x, y), any shapes that broadcast: float64 in [-1, 1], continuous, 0 at the lattice's corners."""
    x, y = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(y, np.float64))
    i, j = np.floor(x + (x + y) * SKEW), np.floor(y + (x + y) * SKEW)  # the cell of the skewed square grid
    x0, y0 = x - (i - (i + j) * UNSKEW), y - (j - (i + j) * UNSKEW)
    lower = x0 > y0  # which of the cell's two triangles
    total = np.zeros(x.shape)
    for di, dj, steps in ((0, 0, 0), (lower, ~lower, 1), (1, 1, 2)):
        dx, dy = x0 - di + steps * UNSKEW, y0 - dj + steps * UNSKEW
        a, b = (i + di).astype(np.int64) & 255, (j + dj).astype(np.int64) & 255
        gradient = GRADIENT_82[PERMUTATION[a + PERMUTATION[b]] % 8]
        falloff = np.maximum(0.5 - dx**2 - dy**2, 0)
        total += falloff**4 * (gradient[..., 0] * dx + gradient[..., 1] * dy)
    return SCALE * total
