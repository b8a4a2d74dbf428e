"""What the memory is driven by: recorded episodes, and single frames of them as a constant input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.dynamics.recurrence import Recurrence
from analysis.shared.behaviours import load_behaviours
from analysis.shared.clusters import STEPS_PER_CLUSTER, k_means
from analysis.shared.units import units
from core.artefacts import Result
from core.contracts import Agent, UserError
from core.episodes import RolloutStore
from core.trees import leaves

FRAMES = 1024  # encoded at once


class Still(NamedTuple):
    """Constant inputs: a name, the (episode, t) of its frame (None: no frame), and the embedding."""

    name: str
    where: tuple[int, int] | None
    e_E: Tensor


class Recorded(NamedTuple):
    """The agent's recorded steps, pooled: states, embeddings, and (episode, t)."""

    h_NH: Tensor
    e_NE: Tensor
    index_N2: np.ndarray
    unit_N: np.ndarray | None = None  # equal for what is not independent; None: the episode

    @property
    def units(self) -> np.ndarray:
        """A number for what is not independent [N]."""
        return self.index_N2[:, 0] if self.unit_N is None else self.unit_N


def read(memory: Recurrence, agent: Agent, store: RolloutStore, episodes: Sequence[int] | None = None) -> Recorded:
    """Every recorded state of all or some (sorted) episodes and, by the agent's own encoder, everything that drove
    them; float64.  Frames are in memory FRAMES at a time, with the rest of the episodes that those are of."""
    names, column = list(store.spec.obs), "state" if "state" in store.column_names else "h"
    columns, index_N2 = store.pooled(column, episodes=episodes)
    device = next(leaves(agent.initial(1))).device
    parts = []
    with torch.no_grad():
        for n in range(0, len(index_N2), FRAMES):
            of = np.unique(index_N2[n : n + FRAMES, 0]).tolist()
            shown, at_M2 = store.pooled(*(f"obs/{k}" for k in names), episodes=of)
            first = int(np.flatnonzero((at_M2 == index_N2[n]).all(1))[0])
            obs = {k: torch.from_numpy(shown[f"obs/{k}"][first : first + FRAMES]).to(device) for k in names}
            parts.append(memory.inputs(agent, obs).double())
    state_NS = torch.from_numpy(columns[column]).to(device).double()
    return Recorded(state_NS, torch.cat(parts), index_N2, units(store, store)[index_N2[:, 0]])


def typical(recorded: Recorded, count: int, seed: int) -> list[Still]:
    """The mean input, and ``count`` recorded ones: the nearest to the centres of clusters of all inputs."""
    out = [Still("mean input", None, recorded.e_NE.mean(0))]
    if count == 0:
        return out
    if len(recorded.e_NE) < STEPS_PER_CLUSTER * count:
        raise UserError(f"--inputs {count}: {len(recorded.e_NE)} recorded steps are too few; ask for fewer")
    e_NE = recorded.e_NE.cpu().numpy()
    centres = k_means(e_NE, count, seed) if count > 1 else e_NE.mean(0, keepdims=True)
    for centre in centres:
        n = int(((e_NE - centre) ** 2).sum(1).argmin())
        e, t = (int(v) for v in recorded.index_N2[n])
        out.append(Still(f"frame {e}:{t}", (e, t), recorded.e_NE[n]))
    return out


def centres(path: Path) -> dict[str, tuple[int, int]]:
    """(episode, t) of the most central real frame of every behaviour that has one, by its name.  UserError."""
    centre, out = Result.load(path).arrays["centre_index"], {}
    for b, name in load_behaviours(path).names.items():
        real = [(int(e), int(t)) for source, e, t in centre[b] if source == 0] if centre.shape[1] else []
        if real:
            out[name] = real[0]
    if not out:
        raise UserError(f"{path} shows no real frame of any behaviour; run it with --filmstrips 1 or more")
    return out


def of_behaviours(recorded: Recorded, centre_of: Mapping[str, tuple[int, int]]) -> list[Still]:
    """The mean input, and the frames ``centres`` gave."""
    row_of = {(int(e), int(t)): n for n, (e, t) in enumerate(recorded.index_N2)}
    stills = [Still(name, where, recorded.e_NE[row_of[where]]) for name, where in centre_of.items()]
    return [Still("mean input", None, recorded.e_NE.mean(0)), *stills]
