"""How much of a difference of memory is left, step by step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Left:
    """What is left of a small difference of memory after t steps under the same inputs: the root mean square over all
    directions of a unit difference, ||J_t ... J_1|| / sqrt(H) in the Frobenius norm."""

    def __init__(self, h_BH: Tensor) -> None:
        size = h_BH.shape[1]
        self._product = torch.eye(size, dtype=h_BH.dtype, device=h_BH.device).repeat(len(h_BH), 1, 1)
        self._scale = torch.zeros(len(h_BH), dtype=h_BH.dtype, device=h_BH.device)
        self._left = [np.ones(len(h_BH))]

    def add(self, on_N: Tensor, jacobian_NHH: Tensor) -> None:
        """A step of the rows that go on, whose numbers are ``on_N``."""
        product = jacobian_NHH @ self._product[on_N]
        norm = torch.linalg.matrix_norm(product)
        self._product[on_N] = product / torch.where(norm > 0, norm, 1.0)[:, None, None]
        self._scale[on_N] += norm.log()
        left = torch.full_like(self._scale, torch.nan)
        left[on_N] = (self._scale[on_N] - 0.5 * np.log(product.shape[1])).exp()
        self._left.append(left.cpu().numpy())

    @property
    def left_BT(self) -> np.ndarray:
        """float64 [B, T+1]; 1 at t = 0, NaN after a row's last step."""
        return np.stack(self._left, 1)
