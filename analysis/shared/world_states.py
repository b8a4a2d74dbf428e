"""The world states that a simulator infers from the frames of recorded episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from core import ranks
from core.contracts import LearnedWorld
from core.episodes import RolloutStore
from core.progress import bar
from generative.simulator import require_finite

OBSERVED_FRAMES = 2048  # frames filtered at once: about 100 MB as float32


def world_states(
    world: LearnedWorld, store: RolloutStore, device: torch.device, chosen: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Posterior world states d float32 [rows - initial_frames + 1, D] of every (or every chosen) episode, from its
    frames.

    Row i is the state at step ``initial_frames - 1 + i``; an episode shorter than that has none.  UserError where the
    simulator makes no numbers of the frames.
    """
    lead = world.initial_frames - 1
    out: list[np.ndarray] = [np.zeros((0, 0), np.float32)] * len(store)
    names = list(store.spec.obs)
    rows_E = store.rows if chosen is None else np.where(np.isin(np.arange(len(store)), chosen), store.rows, 0)

    @torch.no_grad()
    def observed(episodes: np.ndarray) -> list[np.ndarray]:
        length = int(store.rows[episodes].max())
        starts = np.stack([episodes, np.zeros_like(episodes)], 1)
        window = store.read_windows([*(f"obs/{n}" for n in names), "action"], starts, length)
        obs = {n: torch.from_numpy(window[f"obs/{n}"]).to(device) for n in names}
        # The action after an unknown end is padding: no state that is kept follows it.
        action = torch.from_numpy(window["action"][:, lead:]).to(device)
        seen = torch.from_numpy(window.seen[:, lead:]).to(device)
        d = world.observe(obs, action, seen)
        require_finite({"world states": d[seen]})
        return [d[b, : store.rows[e] - lead].cpu().numpy() for b, e in enumerate(episodes)]

    batches = list(_batches(rows_E, lead))
    with bar("world states", int(np.maximum(rows_E - lead, 0).sum()), "steps") as progress:
        for episodes, states in zip(batches, ranks.each(batches, observed), strict=True):
            for e, d in zip(episodes, states, strict=True):
                out[e] = d
                progress.advance(len(d))
    return out


def _batches(rows_E: np.ndarray, lead: int) -> Iterator[np.ndarray]:
    """Episode ids in batches of similar length, at most OBSERVED_FRAMES padded frames each."""
    ids = np.flatnonzero(rows_E > lead)
    ids = ids[np.argsort(-rows_E[ids], kind="stable")]
    while len(ids):
        size = max(1, OBSERVED_FRAMES // int(rows_E[ids[0]]))
        yield ids[:size]
        ids = ids[size:]
