"""Lyapunov exponents of the memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from analysis.dynamics.fixed_points import apart, settle
from analysis.dynamics.recurrence import Recurrence
from analysis.dynamics.retention import Left
from core.progress import bar
from core.threads import one_thread

RESTS = 1e-12  # a state that a step moves by less rests (rms standard deviations)
SAME = 1e-9  # resting states that lie nearer to each other are one


def lyapunov(
    memory: Recurrence, e_BTE: Tensor, h_BH: Tensor, length_B: np.ndarray, burn_in: int, left: Left | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Finite-time Lyapunov exponents, nats a step: float64 [B, H], and the steps they rest on [B].

    Of the states h driven by inputs e[:, t] for ``length`` steps each, the first ``burn_in`` not counted (they only
    turn the frame of directions, a random one, to where it belongs).  By QR of the Jacobians' product (Benettin et al.
    1980).  Largest first by their mean over all steps.  An episode's own are in the same order and not sorted: the
    largest of several that differ by chance only is too large, and the more so the shorter the episode.

    left: is told every Jacobian too, which take most of the time.
    """
    h, size = h_BH, h_BH.shape[1]
    # Along the axes a diagonal Jacobian would never turn it.
    first = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frame = torch.linalg.qr(first)[0].to(h).expand(len(h), -1, -1)
    total = torch.zeros(len(h), size, dtype=h.dtype, device=h.device)
    length = torch.from_numpy(np.asarray(length_B)).to(h.device)
    on_N = torch.arange(len(h), device=h.device)  # which go on
    tiny = torch.finfo(h.dtype).tiny
    with bar("Lyapunov exponents", e_BTE.shape[1], "steps") as progress:
        for t in range(e_BTE.shape[1]):
            goes_on = length[on_N] > t
            if not goes_on.all():
                on_N, h, frame = on_N[goes_on], h[goes_on], frame[goes_on]
            if not len(on_N):
                break
            h, jacobian = memory.with_jacobian(e_BTE[on_N, t], h)
            with one_thread():
                frame, r = torch.linalg.qr(jacobian @ frame)
            if t >= burn_in:
                total[on_N] += torch.diagonal(r, dim1=1, dim2=2).abs().clamp_min(tiny).log()
            if left is not None:
                left.add(on_N, jacobian)
            progress.advance()
    steps_B = np.maximum(np.minimum(length_B, e_BTE.shape[1]) - burn_in, 0)
    total_BH = total.cpu().numpy()
    total_BH = total_BH[:, np.argsort(-total_BH.sum(0), kind="stable")]
    return total_BH / np.maximum(steps_B, 1)[:, None], steps_B


def of_settled(
    memory: Recurrence, e_E: Tensor, h_BH: Tensor, std_H: Tensor, steps: int, burn_in: int
) -> tuple[np.ndarray, np.ndarray]:
    """``lyapunov`` of so many steps under a constant input, of states that have settled under it [B, H].

    Those that came to rest at the same point, which draws in whatever is near, have the same exponents, but for
    rounding: they are computed once.
    """
    gap_B = apart(settle(memory, e_E.expand(len(h_BH), -1), h_BH, 1), h_BH, std_H)
    stands_B = np.arange(len(h_BH))  # the row whose exponents are a row's
    resting = torch.nonzero(gap_B < RESTS)[:, 0]
    while len(resting):
        near = apart(h_BH[resting], h_BH[resting[0]], std_H) < SAME
        stands_B[resting[near].cpu().numpy()] = int(resting[0])
        resting = resting[~near]
    rows, of_B = np.unique(stands_B, return_inverse=True)
    along = e_E.expand(len(rows), steps, -1)
    each, count = lyapunov(memory, along, h_BH[rows], np.full(len(rows), steps), burn_in)
    return each[of_B], count[of_B]
