"""Lyapunov exponents of the memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from analysis.dynamics.recurrence import Recurrence
from core.progress import bar
from core.threads import one_thread


def lyapunov(
    memory: Recurrence, e_BTE: Tensor, h_BH: Tensor, length_B: np.ndarray, burn_in: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finite-time Lyapunov exponents, nats a step: float64 [B, H], and the steps they rest on [B].

    Of the states h driven by inputs e[:, t] for ``length`` steps each, the first ``burn_in`` not counted (they only
    turn the frame of directions, a random one, to where it belongs).  By QR of the Jacobians' product (Benettin et al.
    1980).  Largest first by their mean over all steps.  An episode's own are in the same order and not sorted: the
    largest of several that differ by chance only is too large, and the more so the shorter the episode.
    """
    h, size = h_BH, h_BH.shape[1]
    # Along the axes a diagonal Jacobian would never turn it.
    first = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frame = torch.linalg.qr(first)[0].to(h).expand(len(h), -1, -1)
    total = torch.zeros(len(h), size, dtype=h.dtype, device=h.device)
    length = torch.from_numpy(np.asarray(length_B)).to(h.device)
    tiny = torch.finfo(h.dtype).tiny
    with bar("Lyapunov exponents", e_BTE.shape[1], "steps") as progress:
        for t in range(e_BTE.shape[1]):
            h, jacobian = memory.with_jacobian(e_BTE[:, t], h)
            with one_thread():
                frame, r = torch.linalg.qr(jacobian @ frame)
            growth = torch.diagonal(r, dim1=1, dim2=2).abs().clamp_min(tiny).log()
            total += torch.where((t >= burn_in) & (t < length), 1.0, 0.0)[:, None] * growth
            progress.advance()
    steps_B = np.maximum(np.minimum(length_B, e_BTE.shape[1]) - burn_in, 0)
    total_BH = total.cpu().numpy()
    total_BH = total_BH[:, np.argsort(-total_BH.sum(0), kind="stable")]
    return total_BH / np.maximum(steps_B, 1)[:, None], steps_B
