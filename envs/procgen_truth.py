"""What is so in a Procgen world, by names: labels read off its state, for recordings, probes and events.

B slots.  Lengths are in cells, velocities in cells a step, angles in radians (0 to the right, pi/2 up); NaN where there
is no such thing.  Columns of every game:

    agent_x, agent_y, agent_vx, agent_vy    of the agent's centre
    time, time_left                          steps played of this level, and until its time is up
    THING_count, THING_in_view               of each kind of object of procgen_state.THINGS: how many there are, and in
                                             the picture
    THING_dx, THING_dy, THING_distance, THING_bearing    from the agent's centre to that of the nearest one

and of games with walls that one stands on (SUPPORTING): support, facing_right, on_crate (CoinRun), wall_ahead and
wall_ahead_height (the nearest wall at foot level before the agent, up to AHEAD cells away, and how high it is),
drop_ahead and drop_depth (the same of the ground that ends).  ``support`` is what the game last worked out, before it
moved the agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from core.config import nearest
from core.contracts import Step, UserError
from envs.procgen import ProcgenEnv
from envs.procgen_state import THINGS, State, state_of

Read = Literal["all", "positions"]
POSITIONS = ("agent_x", "agent_y", "agent_vx", "agent_vy")
SUPPORTING = ("climber", "coinrun", "jumper", "ninja")
AHEAD = 16  # cells before the agent that are looked at
FLAGS = {"has_support": "support", "facing_right": "facing_right", "is_on_crate": "on_crate"}
TERRAIN = ("wall", "dirt", "road", "water")  # what there are fields of: neither counts nor the nearest say much


def columns_of(game: str, read: Read) -> tuple[str, ...]:
    """Names of the columns, in order."""
    if read == "positions":
        return POSITIONS
    out = [*POSITIONS, "time", "time_left"]
    for name, thing in THINGS[game].items():
        if name not in TERRAIN and not (name == "barrier" and thing.cells):  # these barriers nobody sees
            out += [f"{name}_{what}" for what in ("count", "in_view", "dx", "dy", "distance", "bearing")]
    if game in SUPPORTING:
        out += [word for word in FLAGS.values() if word != "on_crate" or game == "coinrun"]
        out += ["wall_ahead", "wall_ahead_height", "drop_ahead", "drop_depth"]
    return tuple(out)


def truth_of(states: Sequence[State], read: Read = "all") -> dict[str, np.ndarray]:
    """The columns of a batch of states of one game, each float32 [B]."""
    if len(games := {state.game for state in states}) != 1:
        raise UserError(f"states of several games: {', '.join(sorted(games))}")
    agents = np.stack([state.agent for state in states])
    out = {name: agents[name.removeprefix("agent_")] for name in POSITIONS}
    if read == "all":
        (game,) = games
        out["time"] = np.array([s.episode["cur_time"] for s in states], np.float32)
        out["time_left"] = np.array([s.episode["timeout"] for s in states], np.float32) - out["time"]
        _things(game, states, agents, out)
        if game in SUPPORTING:
            for name, word in FLAGS.items():
                if name in states[0].has:
                    out[word] = np.array([s.own[name] for s in states])
            _ahead(states, agents, out)
    return {name: np.asarray(out[name], np.float32) for name in columns_of(states[0].game, read)}


def _things(game: str, states: Sequence[State], agents: np.ndarray, out: dict[str, np.ndarray]) -> None:
    """Counts and nearest of every kind of object."""
    size = len(states)
    entities = np.concatenate([s.entities for s in states])
    slot_M = np.repeat(np.arange(size), [len(s.entities) for s in states])
    reach_B = np.array([s.view["visibility"] for s in states]) / 2
    centre_B2 = np.array([_centre(s) for s in states])
    grids = [(np.array(rows), np.stack([states[b].cells for b in rows])) for rows in _by_shape(states)]
    xy_B2 = np.stack([agents["x"], agents["y"]], 1).astype(np.float64)
    for name, thing in THINGS[game].items():
        if f"{name}_dx" not in columns_of(game, "all"):
            continue
        mine = np.isin(entities["type"], thing.entities)
        found = [(slot_M[mine], entities["x"][mine].astype(np.float64), entities["y"][mine].astype(np.float64))]
        for value in thing.cells:
            for rows, cells in grids:
                b, y, x = np.nonzero(cells == value)
                found.append((rows[b], x + 0.5, y + 0.5))
        slot_N, x_N, y_N = (np.concatenate(parts) for parts in zip(*found, strict=True))
        far_N = np.maximum(abs(x_N - centre_B2[slot_N, 0]), abs(y_N - centre_B2[slot_N, 1]))
        out[f"{name}_count"] = np.bincount(slot_N, minlength=size)
        out[f"{name}_in_view"] = np.bincount(slot_N[far_N < reach_B[slot_N]], minlength=size)
        delta_N2 = np.stack([x_N, y_N], 1) - xy_B2[slot_N]
        order = np.lexsort(((delta_N2**2).sum(1), slot_N))
        slots, first = np.unique(slot_N[order], return_index=True)
        nearest_B2 = np.full((size, 2), np.nan)
        nearest_B2[slots] = delta_N2[order[first]]
        dx_B, dy_B = nearest_B2.T
        out |= {f"{name}_dx": dx_B, f"{name}_dy": dy_B, f"{name}_distance": np.hypot(dx_B, dy_B)}
        out[f"{name}_bearing"] = np.arctan2(dy_B, dx_B)


def _centre(state: State) -> tuple[float, float]:
    """What the picture is centred on."""
    if state.options["center_agent"]:
        return float(state.agent["x"]), float(state.agent["y"])
    return state.view["main_width"] / 2, state.view["main_height"] / 2


def _by_shape(states: Sequence[State]) -> list[list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for b, state in enumerate(states):
        groups.setdefault(state.cells.shape, []).append(b)
    return list(groups.values())


def _ahead(states: Sequence[State], agents: np.ndarray, out: dict[str, np.ndarray]) -> None:
    """Walls and drops before agents that stand on walls; outside of the grid there is wall."""
    for name in ("wall_ahead", "wall_ahead_height", "drop_ahead", "drop_depth"):
        out[name] = np.full(len(states), np.nan)
    walls = THINGS[states[0].game]["wall"].cells
    k = np.arange(1, AHEAD)
    for b, (state, agent) in enumerate(zip(states, agents, strict=True)):
        h, w = state.cells.shape
        foot = int(np.clip(np.floor(agent["y"] - agent["ry"] + 0.02), 1, h - 1))
        right = bool(state.own["facing_right"])
        here = int(np.floor(agent["x"]))
        edge = here + 1 - agent["x"] if right else agent["x"] - here
        column_K = np.clip(here + (k if right else -k), 0, w - 1)
        wall_YK = np.isin(state.cells[:, column_K], walls)
        at_foot_K, gone_K = wall_YK[foot], ~wall_YK[foot - 1]
        gone_K &= ~np.logical_or.accumulate(at_foot_K)  # a drop behind a wall is not ahead
        if at_foot_K.any():
            n = int(at_foot_K.argmax())
            above = ~wall_YK[foot:, n]
            out["wall_ahead"][b] = n + edge
            out["wall_ahead_height"][b] = above.argmax() if above.any() else len(above)
        if gone_K.any():
            n = int(gone_K.argmax())
            below = wall_YK[:foot, n][::-1]
            out["drop_ahead"][b] = n + edge
            out["drop_depth"][b] = below.argmax() if below.any() else foot


class WithTruth:
    """A Procgen world as core.contracts.VecEnv that tells the columns beside the level; read at every ``every``-th step
    (``reset`` and ``restore`` too), and NaN between.

    Reading costs about as much as the world itself: docs/truth.md.
    """

    def __init__(self, env: ProcgenEnv, read: Read = "all", every: int = 1) -> None:
        if env.options.use_generated_assets:
            raise UserError("a world of generated assets (use_generated_assets) has no state that can be read")
        self.env, self.spec, self.read, self.every = env, env.spec, read, every
        self._steps = 0

    def reset(self, seed: int) -> Step:
        self._steps = 0
        return self._told(self.env.reset(seed))

    def step(self, action: np.ndarray) -> Step:
        self._steps += 1
        return self._told(self.env.step(action))

    def snapshot(self) -> tuple[bytes, ...]:
        return self.env.snapshot()

    def restore(self, states: Sequence[bytes]) -> Step:
        self._steps = 0
        return self._told(self.env.restore(states))

    def close(self) -> None:
        self.env.close()

    def _told(self, step: Step) -> Step:
        if self._steps % self.every:
            nothing = np.full(self.spec.slots, np.nan, np.float32)
            truth = dict.fromkeys(columns_of(self.env.options.game, self.read), nothing)
        else:
            truth = truth_of([state_of(snapshot) for snapshot in self.env.snapshot()], self.read)
        return replace(step, truth={**step.truth, **truth})


def parse_truth(words: Sequence[str]) -> tuple[Read, int] | None:
    """What ``--truth`` says: ``all`` or ``positions``, each with ``every N`` or alone; ``every N`` is of all; nothing:
    None."""
    left = list(words)
    if not left:
        return None
    read: Read = "all"
    if left[0] in ("all", "positions"):
        read = "positions" if left.pop(0) == "positions" else "all"
    if not left:
        return read, 1
    if left[0] != "every" or len(left) != 2 or not left[1].isdecimal() or int(left[1]) < 1:
        hint = nearest(left[0], ("all", "positions", "every"))
        raise UserError(f"--truth {' '.join(words)}: write all, positions, or one of them and every N (N from 1){hint}")
    return read, int(left[1])


def in_view(state: State, name: str, at: tuple[float, float] | None = None) -> bool:
    """Whether a thing of this name (at: the one there) has its middle in the picture."""
    reach, (x, y) = float(state.view["visibility"]) / 2, _centre(state)
    places = state.places(name)
    if at is not None:
        places = places[np.hypot(*(places - at).T).argmin()][None]
    return bool((abs(places - (x, y)).max(1, initial=0) < reach).any())
