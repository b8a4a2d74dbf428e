"""Pairs in the real game: a world and its edited twin at the same step, and how either goes on (Procgen).

N pairs, T = horizon + 1 steps, L lag, D distinct actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.play import LiveWorld
from analysis.causal_directions.subspaces import Exchange, Readout
from analysis.shared.edit_starts import EditStarts
from core.contracts import Agent
from core.interventions import AtSteps
from core.roll import Noise, roll
from core.trees import Tree, rows_of
from envs.procgen import ProcgenEnv
from envs.procgen_edits import PICTURELESS, Edit
from envs.procgen_state import snapshot_of, state_of

LAG = 2  # steps after which a velocity has shown; at once, at most the agent's pose does


def lag_of(edit: Edit) -> int:
    """Steps after the edit at which h is compared, where nobody says."""
    return LAG if edit.verb == "set" and edit.thing in PICTURELESS else 0


class Side(NamedTuple):
    """One world of every pair, at the step at which h is exchanged."""

    seen: Tree
    state: Tree  # the agent's, after this step's frame
    snapshots: tuple[bytes, ...]

    def rows(self, rows: np.ndarray) -> Side:
        index = torch.from_numpy(rows)
        return Side(rows_of(self.seen, index), rows_of(self.state, index), tuple(self.snapshots[n] for n in rows))


@dataclass(frozen=True)
class Pairs:
    """Worlds and their edited twins."""

    base: Side
    source: Side
    exchange: Exchange
    level_N: np.ndarray
    noise_NTA: Tensor  # of the actions from this step on

    def __len__(self) -> int:
        return len(self.level_N)

    def rows(self, rows: np.ndarray) -> Pairs:
        index = torch.from_numpy(rows)
        return Pairs(
            self.base.rows(rows), self.source.rows(rows), self.exchange.rows(index), self.level_N[rows],
            self.noise_NTA[index],
        )  # fmt: skip


def levels_of(starts: EditStarts) -> np.ndarray:
    """The level that each start is in, int64 [N]."""
    return np.array([int(state_of(s).episode["current_level_seed"]) for s in starts.states])


def pairs_of(
    agent: Agent, env: ProcgenEnv, starts: EditStarts, edits: Sequence[Edit | None], lag: int, noise_NLTA: Tensor
) -> Pairs:
    """The starts at which there is an edit, after ``lag`` steps of the unedited world's actions in both.  Pairs of
    which one has ended by then are left out.

    noise: [N, L + T, A], of the actions of all steps.
    """
    there = np.array([edit is not None for edit in edits])
    edited = list(starts.states)
    for n in np.flatnonzero(there):
        edit = edits[n]
        assert edit is not None
        edited[n] = snapshot_of(edit.apply(state_of(edited[n])), edited[n])
    base, actions, on_N = _lead(agent, env, starts, starts.states, lag, noise_NLTA)
    source, _, also_N = _lead(agent, env, starts, edited, lag, noise_NLTA, actions)
    groups = tuple(tuple(ids) for ids in agent.spec.distinct_actions().values())
    sides = [Readout(agent, side.seen, side.state, groups) for side in (base, source)]
    h_base, h_source = (agent.read("h", side.seen, side.state) for side in (base, source))
    pairs = Pairs(base, source, Exchange(h_base, h_source, *sides), levels_of(starts), noise_NLTA[:, lag:])
    return pairs.rows(np.flatnonzero(there & on_N & also_N))


@torch.no_grad()
def _lead(
    agent: Agent, env: ProcgenEnv, starts: EditStarts, states: Sequence[bytes], lag: int, noise_NLTA: Tensor,
    actions: Tensor | None = None,
) -> tuple[Side, Tensor, np.ndarray]:  # fmt: skip
    """(where ``lag`` steps lead, the actions taken, which rows are still on); actions None: the agent's own."""
    world = LiveWorld(env, noise_NLTA.device)
    moments = list(roll(agent, world, world.restore(states), memory=starts.before, steps=lag, actions=actions,
                        noise=[Noise(action_BA=x) for x in noise_NLTA.unbind(1)]))  # fmt: skip
    over = torch.stack([m.shown.ending_B > 0 for m in moments], 1).any(1)
    acted = moments[-1].acted
    taken = torch.stack([m.action for m in moments], 1)
    return Side(acted.seen, acted.state, env.snapshot()), taken, ~over.cpu().numpy()


class Run(NamedTuple):
    """How N worlds went on; what is not ``on`` is of another episode."""

    logp_NTD: Tensor
    value_NT: Tensor
    h_NTH: Tensor
    on_NT: Tensor  # bool


@torch.no_grad()
def go_on(
    agent: Agent, env: ProcgenEnv, side: Side, noise_NTA: Tensor, told: Readout, h_NH: Tensor | None = None
) -> Run:
    """Play on, with another hidden state (None: its own) at the first step.  In as many goes as the slots need."""
    count, slots = len(side.snapshots), env.spec.slots
    parts = []
    for first in range(0, count, slots):
        rows = np.arange(first, first + slots) % count  # the last go is filled up with rows that were already played
        index = torch.from_numpy(rows)
        run = _go_on(agent, env, side.rows(rows), noise_NTA[index], told, None if h_NH is None else h_NH[index])
        parts.append(Run(*(x[: count - first] for x in run)))
    return Run(*(torch.cat(x) for x in zip(*parts, strict=True)))


def _go_on(agent: Agent, env: ProcgenEnv, side: Side, noise_NTA: Tensor, told: Readout, h_NH: Tensor | None) -> Run:
    patch = () if h_NH is None else (AtSteps(lambda h, t, mask: torch.where(mask[:, None], h_NH, h), 0, 1),)
    world = LiveWorld(env, noise_NTA.device)
    moments = list(roll(agent, world, world.restore(side.snapshots), state=side.state, steps=noise_NTA.shape[1] - 1,
                        noise=[Noise(action_BA=x) for x in noise_NTA.unbind(1)], intervene=patch))  # fmt: skip
    on_NT = torch.stack([m.shown.ending_B == 0 for m in moments], 1).cumprod(1).bool()
    logp, value, h = zip(*((told.told(m.acted.logits_BA), m.acted.value_B, m.h_BH) for m in moments), strict=True)
    return Run(torch.stack(logp, 1), torch.stack(value, 1), torch.stack(h, 1), on_NT)
