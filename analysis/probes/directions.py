"""The directions of linear probes as a basis like any other: ``probe:0``, ``probe:1`` ...

Coordinate k of a state is what probe k reads of it, in standard deviations of that reading over the rows.  Changing one
coordinate leaves the others as they are and moves the state as states with another reading differ on average (the
pattern of the probe: Haufe et al. 2014, "On the interpretation of weight vectors"): for one direction, cov(h, reading)
/ var(reading), so that collapsing it leaves no linear trace of the reading.

F features of a state, K directions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from core.directions import Basis, name_of

KIND = "probe"
OWN_SHARE = 0.02  # of a reading's variance that earlier directions must leave for it to be a direction of its own


def basis_of(x_NF: np.ndarray, read_KF: np.ndarray, names: Sequence[str], agent: str) -> Basis | None:
    """Readings ``read @ state`` as a basis, those in front first; one that the earlier ones say is left out, and named
    in the facts.  None where no probe reads anything."""
    x_NF = np.asarray(x_NF, np.float64)
    mean_F, std_F = x_NF.mean(0), x_NF.std(0)
    safe_F = np.where(std_F > 0, std_F, 1.0)
    z_NF = (x_NF - mean_F) / safe_F
    corr_FF = z_NF.T @ z_NF / len(z_NF)
    project_FK = (np.asarray(read_KF, np.float64) * std_F).T
    spread_K = np.einsum("fk,fg,gk->k", project_FK, corr_FF, project_FK)
    kept: list[int] = []
    for k in np.flatnonzero(spread_K > 1e-12 * spread_K.max(initial=0)):
        some = project_FK[:, [*kept, int(k)]] / np.sqrt(spread_K[[*kept, int(k)]])
        among_KK = some.T @ corr_FF @ some
        left = 1.0 if not kept else 1 - among_KK[-1, :-1] @ np.linalg.solve(among_KK[:-1, :-1], among_KK[:-1, -1])
        if left >= OWN_SHARE:
            kept.append(int(k))
    if not kept:
        return None
    project_FK = project_FK[:, kept] / np.sqrt(spread_K[kept])
    lift_KF = np.linalg.solve(project_FK.T @ corr_FF @ project_FK, project_FK.T @ corr_FF)
    arrays = (mean_F, safe_F, project_FK, lift_KF)
    mean, std, project, lift = (torch.from_numpy(np.ascontiguousarray(a, np.float32)) for a in arrays)
    facts = {"targets": {name_of(KIND, i): names[k] for i, k in enumerate(kept)},
             "left_out": [n for k, n in enumerate(names) if k not in kept]}  # fmt: skip
    return Basis(KIND, mean, std, project, lift, agent=agent, facts=facts)
