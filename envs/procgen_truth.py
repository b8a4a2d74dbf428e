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
drop_ahead and drop_depth (the same of the ground that ends), pit_depth (how far the feet are below the lower of the
nearest walls on both sides; 0: in no pit), floor_below (how far below the feet the nearest place to stand on is),
ledge_ahead and ledge_height (the nearest place to stand on before the agent where its own ground has ended, up to AHEAD
cells away, and how much higher than the feet it is), jump_charge (ninja: 0 to 1, of the jump that is prepared).  On
walls with lava, fire or a bomb upon them nobody stands.  ``support`` is what the game last worked out, before it moved
the agent.  Of plunder, whose levels end long before their time is up: juice_left (0 to 1; at 0 the level is lost).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from core.config import nearest
from core.contracts import EnvSpec, Step, UserError
from envs.procgen import ProcgenEnv
from envs.procgen_state import ENTITY, NEEDED, PLAYER, THINGS, State, state_of

Read = Literal["all", "positions"]
POSITIONS = ("agent_x", "agent_y", "agent_vx", "agent_vy")
UPWARDS = ("climber", "fruitbot")  # their picture is as wide as the world and ahead of the agent: as it was last drawn
SUPPORTING = ("climber", "coinrun", "jumper", "ninja")
AHEAD = 16  # cells before the agent that are looked at
OWN = {
    "has_support": "support",
    "facing_right": "facing_right",
    "is_on_crate": "on_crate",
    "jump_charge": "jump_charge",
    "juice_left": "juice_left",
}
# Games of the words of OWN; of the others all SUPPORTING.
ONLY_OF = {"on_crate": ("coinrun",), "jump_charge": ("ninja",), "juice_left": ("plunder",)}
AROUND = ("wall_ahead", "wall_ahead_height", "drop_ahead", "drop_depth", "pit_depth")
LEDGES = ("floor_below", "ledge_ahead", "ledge_height")
_FIELDS = ENTITY.names or ()
TERRAIN = ("wall", "dirt", "road", "water")  # what there are fields of: neither counts nor the nearest say much
HARMFUL = ("lava", "fire")  # more of it


DEATH = "ended and reward <= 0 and truth(time_left) > 1"
# The step that kills is not shown: what touches the agent there is what its speed takes it to.
TOUCHES = "-1.3 < truth({0}_dx) - truth(agent_vx) < 1.3 and -1.5 < truth({0}_dy) - truth(agent_vy) < 1.5"
TRUTH_EVENTS = {  # by game, in the language of analysis.shared.events
    "coinrun": {
        "jumps_on_crate": "truth(on_crate) and not previous(truth(on_crate))",
        "dies_by_saw": f"{DEATH} and {TOUCHES.format('saw')}",
        "dies_by_monster": f"{DEATH} and {TOUCHES.format('monster')}",
        "dies_in_lava": f"{DEATH} and {TOUCHES.format('lava')}",
        "falls_into_pit": f"{DEATH} and truth(pit_depth) >= 2 and not truth(support)",
        "time_is_up": "ended and reward <= 0 and truth(time_left) <= 1",
    },
}  # fmt: skip


def truth_events(spec: EnvSpec) -> dict[str, str]:
    """Events of a world that its truth columns tell, by name."""
    kind, _, game = spec.env_id.partition("/")
    return TRUTH_EVENTS.get(game, {}) if kind == "procgen" else {}


def columns_of(game: str, read: Read) -> tuple[str, ...]:
    """Names of the columns, in order."""
    if read == "positions":
        return POSITIONS
    out = [*POSITIONS, "time", "time_left"]
    for name, thing in THINGS[game].items():
        if name not in TERRAIN and not (name == "barrier" and thing.cells):  # these barriers nobody sees
            out += [f"{name}_{what}" for what in ("count", "in_view", "dx", "dy", "distance", "bearing")]
    out += [word for word in OWN.values() if game in ONLY_OF.get(word, SUPPORTING)]
    out += [*AROUND, *LEDGES] if game in SUPPORTING else []
    return tuple(out)


def truth_of(states: Sequence[State], read: Read = "all") -> dict[str, np.ndarray]:
    """The columns of a batch of states of one game, each float32 [B]."""
    if len(games := {state.game for state in states}) != 1:
        raise UserError(f"states of several games: {', '.join(sorted(games))}")
    (game,) = games
    entities = _Entities.of(states)
    agent_B = entities.agents(states)
    out = {name: entities.number(name.removeprefix("agent_"))[agent_B] for name in POSITIONS}
    if read == "all":
        out["time"] = np.array([s.episode["cur_time"] for s in states], np.float32)
        out["time_left"] = np.array([s.episode["timeout"] for s in states], np.float32) - out["time"]
        grids = [(np.array(rows), np.stack([states[b].cells for b in rows])) for rows in _by_shape(states)]
        _things(game, states, entities, agent_B, grids, out)
        for name, word in OWN.items():
            if name in states[0].has:
                out[word] = np.array([s.own[name] for s in states])
        if game in SUPPORTING:
            _around(game, entities, agent_B, grids, out)
            _ledges(game, entities, agent_B, grids, out)
    return {name: np.asarray(out[name], np.float32) for name in columns_of(game, read)}


@dataclass(frozen=True)
class _Entities:
    """All entities of B states, state after state: a plain array, as records of many fields are slow to join."""

    float_MF: np.ndarray  # float32, a column a field of ENTITY; those of integers hold their bits
    slot_M: np.ndarray

    @classmethod
    def of(cls, states: Sequence[State]) -> _Entities:
        parts = [np.ascontiguousarray(s.entities).view(np.float32).reshape(len(s.entities), -1) for s in states]
        return cls(np.concatenate(parts), np.repeat(np.arange(len(states)), [len(part) for part in parts]))

    def number(self, name: str) -> np.ndarray:
        """float32 [M]."""
        return self.float_MF[:, _FIELDS.index(name)]

    @cached_property
    def type_M(self) -> np.ndarray:
        """int32 [M]."""
        return self.float_MF[:, _FIELDS.index("type")].view(np.int32)

    def agents(self, states: Sequence[State]) -> np.ndarray:
        """Row of every state's agent, its last entity of that type: int64 [B].  UserError where there is none."""
        out = np.full(len(states), -1)
        players = np.flatnonzero(self.type_M == PLAYER)
        out[self.slot_M[players]] = players
        for b in np.flatnonzero(out < 0)[:1]:
            _ = states[b].agent  # raises, and says of what game
        return out


Grids = list[tuple[np.ndarray, np.ndarray]]  # states whose grids are of one size (rows [G], cells [G, height, width])


def _things(
    game: str, states: Sequence[State], entities: _Entities, agent_B: np.ndarray, grids: Grids,
    out: dict[str, np.ndarray],
) -> None:  # fmt: skip
    """Counts and nearest of every kind of object."""
    size, columns = len(states), columns_of(game, "all")
    names = [name for name in THINGS[game] if f"{name}_dx" in columns]
    reach_B = np.array([s.view["visibility"] for s in states]) / 2
    x_M, y_M = (entities.number(name).astype(np.float64) for name in "xy")
    xy_B2 = np.stack([x_M[agent_B], y_M[agent_B]], 1)
    centre_B2 = np.array([_centre(s, xy_2) for s, xy_2 in zip(states, xy_B2, strict=True)], np.float64)
    cells = [_cells_of([v for name in names for v in THINGS[game][name].cells], *grid) for grid in grids]
    value_C, slot_C, x_C, y_C = (np.concatenate(parts) for parts in zip(*cells, strict=True))
    for name in names:
        mine = np.isin(entities.type_M, THINGS[game][name].entities)
        mine &= np.array([not hidden(s, name) for s in states])[entities.slot_M]
        too = np.isin(value_C, THINGS[game][name].cells)
        slot_N, x_N, y_N = (
            np.concatenate([of_M[mine], of_C[too]])
            for of_M, of_C in ((entities.slot_M, slot_C), (x_M, x_C), (y_M, y_C))
        )
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


def _cells_of(values: Sequence[int], rows: np.ndarray, cells_GYX: np.ndarray) -> tuple[np.ndarray, ...]:
    """(value, state, x, y) of the centre of every cell of these values, each [C]."""
    _, h, w = cells_GYX.shape
    at = np.flatnonzero(_is_any(cells_GYX, values))
    return cells_GYX.ravel()[at], rows[at // (h * w)], at % w + 0.5, at // w % h + 0.5


def _is_any(cells: np.ndarray, values: Sequence[int]) -> np.ndarray:
    """``np.isin`` of few values."""
    out = np.zeros(cells.shape, bool)
    for value in values:
        out |= cells == value
    return out


def _by_shape(states: Sequence[State]) -> list[list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for b, state in enumerate(states):
        groups.setdefault(state.cells.shape, []).append(b)
    return list(groups.values())


def _around(game: str, entities: _Entities, agent_B: np.ndarray, grids: Grids, out: dict[str, np.ndarray]) -> None:
    """Walls, drops and pits about agents that stand on walls; outside of the grid there is what is at its border."""
    out |= {name: np.full(len(agent_B), np.nan) for name in AROUND}
    x_B, y_B, ry_B = (entities.number(name)[agent_B].astype(np.float64) for name in ("x", "y", "ry"))
    for rows, cells_GYX in grids:
        _, h, w = cells_GYX.shape
        g, here_G = np.arange(len(rows)), np.floor(x_B[rows]).astype(int)
        foot_G = np.clip(np.floor(y_B[rows] - ry_B[rows] + 0.02), 1, h - 1).astype(int)
        right_G = out["facing_right"][rows] > 0
        wall_GYX = _is_any(cells_GYX, THINGS[game]["wall"].cells)
        y_Y = np.arange(h)
        height, ahead = {}, {}
        for side in (1, -1):
            column_GK = np.clip(here_G[:, None] + side * np.arange(1, AHEAD), 0, w - 1)
            at_foot_GK = wall_GYX[g[:, None], foot_G[:, None], column_GK]
            first_G = at_foot_GK.argmax(1)
            wall_GY = wall_GYX[g, :, column_GK[g, first_G]]
            stops_GY = ~wall_GY & (y_Y >= foot_G[:, None])
            height_G = np.where(stops_GY.any(1), stops_GY.argmax(1), h) - foot_G
            is_wall_G = at_foot_GK.any(1)
            height[side] = np.where(is_wall_G & stops_GY.any(1), height_G, 0)  # the border's wall is no edge
            gone_GK = ~wall_GYX[g[:, None], foot_G[:, None] - 1, column_GK]
            gone_GK &= ~np.logical_or.accumulate(at_foot_GK, 1)  # a drop behind a wall is not ahead
            drop_G = gone_GK.argmax(1)
            below_GY = wall_GYX[g, :, column_GK[g, drop_G]] & (y_Y < foot_G[:, None])
            floor_G = np.where(below_GY.any(1), h - 1 - below_GY[:, ::-1].argmax(1), -1)
            edge_G = here_G + 1 - x_B[rows] if side > 0 else x_B[rows] - here_G
            is_drop_G = gone_GK.any(1)
            ahead[side] = (
                np.where(is_wall_G, first_G + edge_G, np.nan), np.where(is_wall_G, height_G, np.nan),
                np.where(is_drop_G, drop_G + edge_G, np.nan), np.where(is_drop_G, foot_G - 1 - floor_G, np.nan),
            )  # fmt: skip
        for name, to_right, to_left in zip(AROUND, ahead[1], ahead[-1], strict=False):
            out[name][rows] = np.where(right_G, to_right, to_left)
        out["pit_depth"][rows] = np.minimum(height[1], height[-1])


def _ledges(game: str, entities: _Entities, agent_B: np.ndarray, grids: Grids, out: dict[str, np.ndarray]) -> None:
    """Places to stand on, under the agent and ahead of it."""
    out |= {name: np.full(len(agent_B), np.nan) for name in LEDGES}
    x_B, y_B, rx_B, ry_B = (entities.number(name)[agent_B].astype(np.float64) for name in ("x", "y", "rx", "ry"))
    harm = [v for name in (*HARMFUL, "bomb") if name in THINGS[game] for v in THINGS[game][name].cells]
    for rows, cells_GYX in grids:
        _, h, w = cells_GYX.shape
        g = np.arange(len(rows))[:, None]
        wall_GYX = _is_any(cells_GYX, THINGS[game]["wall"].cells)
        stands_GYX = np.zeros_like(wall_GYX)  # on top of a cell
        stands_GYX[:, :-1] = wall_GYX[:, :-1] & ~wall_GYX[:, 1:] & ~_is_any(cells_GYX[:, 1:], harm)
        feet_G1 = (y_B[rows] - ry_B[rows])[:, None]
        above_GY = 1 + np.arange(h) - feet_G1  # how far above the feet the top of a cell is
        under_GY = above_GY <= 0.3
        for side in (-1, 1):  # under either foot
            column_G1 = np.clip(np.floor(x_B[rows] + side * (rx_B[rows] - 0.02)).astype(int), 0, w - 1)[:, None]
            there_GY = stands_GYX[g, np.arange(h), column_G1] & under_GY
            deep_G = np.where(there_GY, np.maximum(-above_GY, 0.0), np.inf).min(1) + 0.0
            out["floor_below"][rows] = np.fmin(out["floor_below"][rows], np.where(np.isinf(deep_G), np.nan, deep_G))
        here_G1 = np.floor(x_B[rows]).astype(int)[:, None]
        side_G1 = np.where(out["facing_right"][rows] > 0, 1, -1)[:, None]
        column_GK = here_G1 + side_G1 * np.arange(1, AHEAD)
        inside_GK = (column_GK >= 0) & (column_GK < w)
        stands_GKY = stands_GYX[g[..., None], np.arange(h), np.clip(column_GK, 0, w - 1)[..., None]]
        stands_GKY &= inside_GK[..., None]
        level_GK = (stands_GKY & (abs(above_GY) <= 0.3)[:, None]).any(2)
        beyond_GK = stands_GKY.any(2) & ~np.logical_and.accumulate(level_GK, 1)
        first_G = beyond_GK.argmax(1)
        far_GY = np.where(stands_GKY[g[:, 0], first_G], abs(above_GY), np.inf)
        edge_G = np.where(side_G1[:, 0] > 0, here_G1[:, 0] + 1 - x_B[rows], x_B[rows] - here_G1[:, 0])
        is_G = beyond_GK.any(1)
        out["ledge_ahead"][rows] = np.where(is_G, first_G + edge_G, np.nan)
        out["ledge_height"][rows] = np.where(is_G, above_GY[g[:, 0], far_GY.argmin(1)], np.nan)


class WithTruth:
    """A Procgen world as core.contracts.VecEnv that tells the columns beside the level; read at every ``every``-th step
    (``reset`` and ``restore`` too), and NaN between.

    Reading costs about four steps of the world, most of it the game's own writing of its state: docs/truth.md.
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


def parse_truth(words: Sequence[str]) -> tuple[Read, int]:
    """What ``--truth`` says: ``all`` or ``positions``, each with ``every N`` or alone; ``every N`` is of all."""
    left = list(words)
    if not left:
        raise UserError("--truth names nothing to read: write --truth all, positions, or every N (N from 1)")
    read: Read = "all"
    if left[0] in ("all", "positions"):
        read = "positions" if left.pop(0) == "positions" else "all"
    if not left:
        return read, 1
    if left[0] != "every" or len(left) != 2 or not left[1].isdecimal() or int(left[1]) < 1:
        hint = nearest(left[0], ("all", "positions", "every"))
        raise UserError(f"--truth {' '.join(words)}: write all, positions, or one of them and every N (N from 1){hint}")
    return read, int(left[1])


def _centre(state: State, agent_2: Sequence[float] | np.ndarray) -> Sequence[float] | np.ndarray:
    """(x, y) that the picture is centred on; agent: where that is."""
    if state.game in UPWARDS:
        return state.motion["center_x"], state.motion["center_y"]
    return agent_2 if state.options["center_agent"] else (state.view["main_width"] / 2, state.view["main_height"] / 2)


def kinds_of(game: str) -> tuple[str, ...]:
    """Kinds of objects that can be removed from a game, one by one."""
    return tuple(
        name
        for name, thing in THINGS[game].items()
        if name not in (*TERRAIN, *HARMFUL, *NEEDED.get(game, ())) and not (name == "barrier" and thing.cells)
    )


def in_view(state: State, name: str, at: tuple[float, float] | None = None) -> bool:
    """Whether a thing of this name (at: the one there) has its middle in the picture."""
    places = state.places(name)[: 0 if hidden(state, name) else None]
    if at is not None and len(places):
        places = places[np.hypot(*(places - at).T).argmin()][None]
    return bool(shown(state, places).any())


def hidden(state: State, name: str) -> bool:
    """Whether the state keeps such things that are not there at the moment: bossfight's shields, when they are down."""
    return (state.game, name) == ("bossfight", "shields") and not state.own["shields_are_up"]


def shown(state: State, places_N2: np.ndarray) -> np.ndarray:
    """Which places lie in the picture, bool [N]."""
    agent, reach = state.agent, float(state.view["visibility"]) / 2
    far_N2: np.ndarray = abs(places_N2 - _centre(state, (agent["x"], agent["y"])))
    return far_N2.max(1, initial=0) < reach
