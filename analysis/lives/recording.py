"""Lives of a policy's agents in Neural MMO, recorded as they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from agents.nmmo_play import Player, Tick, play
from core.episodes import Episode
from envs.nmmo import NmmoEnv, features

STAGE = "extract_activations"
SHARD_STEPS = 4096  # about 25 MB in memory
STORE = {"chunk_steps": 512, "level": 6}  # lives are read whole, and most of an observation is as it was a tick ago


def record_lives(
    players: Sequence[Player],
    player_B: np.ndarray,
    env: NmmoEnv,
    *,
    seed: int,
    device: torch.device,
    greedy: bool = False,
    most_ticks: int | None = None,
    points: Sequence[str] = (),
) -> Iterator[Episode]:
    """Every life of player 0 in one game of every world, as it ends; all of them by the last tick.

    A life has as many rows as decisions: nobody sees what follows the last.  most_ticks cuts them all there.
    points: vectors of the policy that are kept beside h.
    """
    slot_of_row = np.flatnonzero(player_B == 0)
    columns = _Columns(env, slot_of_row)
    over_W = np.zeros(env.spec.slots // env.options.players, bool)
    ticks = play(players, player_B, env, seed=seed, device=device, greedy=greedy, points=points)
    for number, tick in enumerate(ticks):
        after = tick.next
        columns.add(tick, ~over_W)
        cut = most_ticks is not None and number + 1 >= most_ticks
        for row, b in enumerate(slot_of_row):
            if columns.rows[row] and (after.terminated[b] or after.truncated[b] or cut):
                over = bool(after.terminated[b] or after.truncated[b])
                yield columns.take(row, after.terminated[b], tick, seed, {} if over else {"cut": True})
        over_W[np.unique(tick.step.truth["world"][after.is_first])] = True
        if cut or over_W.all():
            return


class _Columns:
    """What the slots of a game show, a row a tick; all lives begin with the game, so that a life is its first rows."""

    def __init__(self, env: NmmoEnv, slots: np.ndarray) -> None:
        self.env, self.slots, self.ticks = env, slots, 0
        self.kept: dict[str, np.ndarray] = {}  # [horizon, slots, ...]
        self.rows = np.zeros(len(slots), np.int64)  # of the running lives; 0: over

    def add(self, tick: Tick, playing_W: np.ndarray) -> None:
        step, slots = tick.step, self.slots
        assert step.alive is not None
        of = features(step.obs, step.truth, tick.action_BP, self.env.spec)
        shown = {
            "h": tick.h[0],
            "value": tick.value_B[slots],
            "action": tick.action_BP[slots],
            "reward": tick.next.reward[slots],
            "truth/features": of[slots],
            **{f"truth/{k}": step.truth[k][slots] for k in ("position", "tile", "ate", "drank")},
            **{f"obs/{k}": v[slots] for k, v in step.obs.items()},
            **{f"points/{k}": v for k, v in tick.points.items()},
        }
        for name, array in shown.items():
            if name not in self.kept:
                self.kept[name] = np.empty((self.env.options.horizon, *array.shape), array.dtype)
            self.kept[name][self.ticks] = array
        self.ticks += 1
        living = step.alive[slots] & playing_W[step.truth["world"][slots]]
        self.rows = np.where(living, self.ticks, self.rows)

    def take(self, row: int, died: bool, tick: Tick, seed: int, more: dict[str, Any]) -> Episode:
        """The life of a slot that has just ended; more: of its meta."""
        steps, self.rows[row] = int(self.rows[row]), 0
        truth, b = tick.step.truth, self.slots[row]
        columns = {name: kept[:steps, row].copy() for name, kept in self.kept.items()}
        of = {group: {k.partition("/")[2]: v for k, v in columns.items() if k.startswith(f"{group}/")}
              for group in ("obs", "truth", "points")}  # fmt: skip
        return Episode(
            obs=of["obs"],
            truth=of["truth"],
            points=of["points"],
            h=columns["h"],
            value=columns["value"],
            action=columns["action"],
            reward=columns["reward"],
            terminated=bool(died),
            truncated=not died,
            meta={
                "seed": seed,
                **{name: int(truth[name][b]) for name in ("world", "map", "agent")},
                "task": self.env.tasks[int(truth["task"][b])].name,
                "first_tick": 0,
                **more,
            },
        )
