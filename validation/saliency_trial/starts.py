"""The starts of a trial: states of the real game with several objects in the picture, each of its own episode (N)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from core.contracts import Agent, VecEnv
from envs.procgen_state import state_of
from validation.paired.starts import Keep, Starts, collect_starts
from validation.saliency_trial.objects import Item, items_of


class Scenes(NamedTuple):
    """N starts, and what is in their pictures."""

    starts: Starts
    items: tuple[tuple[Item, ...], ...]


def collect(
    agent: Agent, env: VecEnv, count: int, *, objects: int, initial_frames: int, latest: int, seed: int,
    device: torch.device,
) -> Scenes:  # fmt: skip
    """``collect_starts`` where at least ``objects`` objects are in the picture; UserError where that is rare."""
    remedy = "lower --objects" if objects > 2 else "take a game with more"
    keep = Keep(lambda s: len(items_of(state_of(s))) >= objects, f"{objects} objects in the picture; {remedy}")
    starts = collect_starts(agent, env, count, initial_frames=initial_frames, latest=latest, seed=seed, device=device,
                            keep=keep)  # fmt: skip
    return Scenes(starts, tuple(tuple(items_of(state_of(s))) for s in starts.states))
