"""The weights of an agent's heads along directions of its hidden state."""

from __future__ import annotations

import numpy as np
import torch

from core.contracts import Agent
from core.directions import Basis
from core.roll import heads_at


def head_weights(agent: Agent, basis: Basis) -> np.ndarray:
    """float32 [A + 1, K]: change of every logit, and last of the value, per standard deviation of a direction.

    The slope at the mean state; exact everywhere where the heads are linear.
    """

    def heads(h_H: torch.Tensor) -> torch.Tensor:
        logits, value = heads_at(agent, h_H[None])
        return torch.cat([logits[0], value])

    slope_AH = torch.func.jacrev(heads)(basis.mean_H)
    out: np.ndarray = basis.pullback(slope_AH).detach().numpy()
    return out
