"""How much of a difference of memory is left, step by step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from analysis.dynamics.recurrence import Recurrence


@torch.no_grad()
def left_after(memory: Recurrence, e_BTE: Tensor, h_BH: Tensor, length_B: np.ndarray) -> np.ndarray:
    """What is left of a small difference of memory after t steps under the same inputs, float64 [B, T+1]: the root mean
    square over all directions of a unit difference, ||J_t ... J_1|| / sqrt(H) in the Frobenius norm.  1 at t = 0; NaN
    after an episode's ``length`` steps."""
    h, size = h_BH, h_BH.shape[1]
    product = torch.eye(size, dtype=h.dtype, device=h.device).expand(len(h), -1, -1)
    scale, left = torch.zeros(len(h), dtype=h.dtype, device=h.device), [np.ones(len(h))]
    for t in range(e_BTE.shape[1]):
        h, jacobian = memory.with_jacobian(e_BTE[:, t], h)
        product = jacobian @ product
        norm = torch.linalg.matrix_norm(product)
        product = product / torch.where(norm > 0, norm, 1.0)[:, None, None]
        scale = scale + norm.log()
        left.append((scale - 0.5 * np.log(size)).exp().cpu().numpy())
    left_BT = np.stack(left, 1)
    left_BT[np.arange(left_BT.shape[1]) > np.asarray(length_B)[:, None]] = np.nan
    return left_BT
