"""A Procgen state by names: parse the bytes of ``get_state``, edit them, and put them together again, for all 16 games.

The game reads a state back without looking: one that it could not have written kills the process.  So ``State.check``
says what is wrong before a byte goes back, as a UserError; ``to_bytes`` calls it.  The layout was worked out from the
published sources (Cobbe et al. 2020, procgen/src/game.cpp, entity.cpp, basic-abstract-game.cpp, games/*.cpp) and is
held to what the installed build writes by tests: a round trip gives the same bytes.

Lengths are in cells.  Cell (x, y) covers [x, x + 1) by [y, y + 1), y grows upwards; an entity's x, y is its centre and
rx, ry are its half sizes.  What the game works out anew whenever it draws (unit, x_off, y_off, view_dim, center_x,
center_y) is stored too, and means nothing before it was drawn.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from core.config import nearest
from core.contracts import UserError

VERSION = 0
END = 0xCAFECAFE
LONGEST = 1 << 20  # bytes that the game has room for
SPACE = 100  # an empty cell
PLAYER = 0


def _record(ints: str = "", floats: str = "", *parts: tuple[str, str]) -> np.dtype[Any]:
    """A packed little-endian record: names of int32 fields, then of float32 fields, then further (type, names)."""
    fields: list[tuple[str, str]] = []
    for kind, names in (("<i4", ints), ("<f4", floats), *parts):
        fields += [(name, kind) for name in names.split()]
    return np.dtype(fields)


OPTIONS = _record(
    "paint_vel_info use_generated_assets use_monochrome_assets restrict_themes use_backgrounds center_agent debug_mode "
    "distribution_mode use_sequential_levels use_easy_jump plain_assets physics_mode grid_step level_seed_low "
    "level_seed_high game_type game_n"
)
EPISODE = _record(
    "", "reward",
    ("<i4", "done level_complete action timeout current_level_seed prev_level_seed episodes_remaining episode_done "
     "last_reward_timer"),
    ("<f4", "last_reward"), ("<i4", "default_action fixed_asset_seed cur_time is_waiting_for_step"),
)  # fmt: skip
ENTITY = _record(
    "", "x y vx vy rx ry",
    ("<i4", "type image_type image_theme render_z will_erase collides_with_entities"),
    ("<f4", "collision_margin rotation vrot"),
    ("<i4", "is_reflected fire_time spawn_time life_time expire_time use_abs_coords"), ("<f4", "friction"),
    ("<i4", "smart_step avoids_collisions auto_erase"),
    ("<f4", "alpha health theta grow_rate alpha_decay climber_spawn_x"),
)  # fmt: skip
MOTION = _record(
    "use_procgen_background background_index", "bg_tile_ratio bg_pct_x char_dim",
    ("<i4", "last_move_action move_action special_action"),
    ("<f4", "mixrate maxspeed max_jump action_vx action_vy action_vrot center_x center_y"),
    ("<i4", "random_agent_start has_useful_vel_info step_rand_int"),
)  # fmt: skip
VIEW = _record("main_width main_height out_of_bounds_object", "unit view_dim x_off y_off visibility min_visibility")

# What a game keeps for itself: a record, before or after lists of its own (LISTS), which are left as bytes.
TAILS: dict[str, np.dtype[Any]] = {
    "bigfish": _record("fish_eaten", "r_inc"),
    "bossfight": _record(
        "last_fire_time time_to_swap invulnerable_duration vulnerable_duration num_rounds round_num round_health "
        "boss_vel_timeout curr_vel_timeout attack_mode player_laser_theme boss_laser_theme damaged_until_time "
        "shields_are_up barriers_moves_right",
        "base_fire_prob boss_bullet_vel barrier_vel barrier_spawn_prob rand_pct rand_fire_pct rand_pct_x rand_pct_y"),
    "caveflyer": _record(),
    "chaser": _record("eat_timeout egg_timeout eat_time total_enemies total_orbs orbs_collected maze_dim"),
    "climber": _record("has_support facing_right coin_quota coins_collected wall_theme", "gravity air_control"),
    "coinrun": _record("", "last_agent_y", ("<i4", "wall_theme has_support facing_right is_on_crate"),
                       ("<f4", "gravity air_control")),
    "dodgeball": _record("", "min_dim hard_min_dim ball_vscale ball_r",
                         ("<i4", "last_fire_time num_enemies enemy_fire_delay")),
    "fruitbot": _record("", "min_dim bullet_vscale", ("<i4", "last_fire_time")),
    "heist": _record("num_keys world_dim keys"),
    "jumper": _record("jump_count jump_delta jump_time has_support facing_right wall_theme", "compass_dim"),
    "leaper": _record(),
    "maze": _record("maze_dim world_dim"),
    "miner": _record("diamonds_remaining"),
    "ninja": _record("has_support facing_right last_fire_time wall_theme", "gravity air_control",
                     ("<f4", "jump_charge jump_charge_inc")),
    "plunder": _record("num_lanes num_current_ship_types targets_hit target_quota",
                       "juice_left r_scale spawn_prob legend_r min_agent_x"),
    "starpilot": _record(),
}  # fmt: skip
LISTS = {"bossfight": "before", "chaser": "before", "heist": "after", "leaper": "after", "plunder": "before",
         "starpilot": "after"}  # fmt: skip


@dataclass(frozen=True)
class Thing:
    """What an object of a game is in its state: entities of these types, and cells of these values."""

    entities: tuple[int, ...] = ()
    cells: tuple[int, ...] = ()


def _e(*types: int) -> Thing:
    return Thing(entities=types)


def _c(*values: int) -> Thing:
    return Thing(cells=values)


THINGS: dict[str, dict[str, Thing]] = {
    "bigfish": {"fish": _e(2)},
    "bossfight": {"own_bullet": _e(1), "boss": _e(2), "shields": _e(3), "bullet": _e(4), "reflected": _e(6),
                  "barrier": _e(7)},
    "caveflyer": {"goal": _e(1), "obstacle": _e(2), "target": _e(3), "own_bullet": _e(4), "enemy": _e(5),
                  "wall": _c(8)},
    "chaser": {"large_orb": _e(2), "egg": _e(4), "enemy": _e(6), "wall": _c(5), "orb": _c(1002)},
    "climber": {"coin": _e(1), "enemy": _e(5), "wall": _c(15, 16)},
    "coinrun": {"coin": _c(1), "saw": _e(2, 3), "monster": _e(5, 6, 7), "crate": _e(20), "wall": _c(15, 16),
                "lava": _c(17, 18), "barrier": _c(19)},
    "dodgeball": {"wall": _e(1), "own_ball": _e(3), "enemy": _e(4), "door": _e(5), "enemy_ball": _e(6)},
    "fruitbot": {"barrier": _e(1), "key": _e(3), "bad": _e(4), "good": _e(7), "door": _e(10), "lock": _e(11),
                 "present": _e(12)},
    "heist": {"door": _e(1), "key": _e(2), "gem": _e(9), "wall": _c(51)},
    "jumper": {"goal": _e(1), "spike": _e(2), "wall": _c(6, 7)},
    "leaper": {"log": _e(1), "car": _e(4), "finish": _e(5), "road": _c(2), "water": _c(3)},
    "maze": {"cheese": _c(2), "wall": _c(51)},
    "miner": {"exit": _e(6), "boulder": _c(1, 3), "diamond": _c(2, 4), "dirt": _c(9)},
    "ninja": {"goal": _e(1), "star": _e(7), "bomb": _c(6), "fire": _c(14), "wall": _c(20)},
    "plunder": {"ball": _e(1), "legend": _e(2, 3), "panel": _e(6), "ship": _e(7)},
    "starpilot": {"own_bullet": _e(1), "bullet": _e(2, 3), "flyer": _e(4), "meteor": _e(5), "cloud": _e(6),
                  "turret": _e(7), "fast_flyer": _e(8), "finish": _e(9)},
}  # fmt: skip
# Pictures that a game has of an image type; of a type without a word here one is generated, whatever the theme.
PICTURES: dict[str, dict[int, int]] = {
    "bigfish": {0: 1, 2: 3}, "bossfight": {0: 4, 1: 3, 2: 4, 3: 1, 4: 3, 7: 8},
    "caveflyer": {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 8: 1, 9: 1},
    "chaser": {0: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1},
    "climber": {0: 4, 1: 1, 6: 1, 7: 1, 9: 4, 12: 4, 13: 4, 15: 4, 16: 4},
    "coinrun": {0: 5, 1: 1, 2: 1, 3: 1, 6: 9, 7: 9, 9: 5, 12: 5, 13: 5, 15: 6, 16: 6, 17: 1, 18: 1, 20: 4},
    "dodgeball": {0: 1, 1: 1, 3: 1, 4: 10, 5: 1, 6: 1, 7: 1, 8: 9, 10: 1},
    "fruitbot": {0: 1, 1: 1, 2: 1, 3: 1, 4: 6, 7: 6, 10: 1, 11: 1, 12: 3}, "heist": {0: 1, 1: 3, 2: 3, 9: 1, 51: 1},
    "jumper": {0: 1, 1: 1, 2: 1, 6: 4, 7: 4, 9: 1, 10: 1, 11: 1, 12: 1, 13: 1},
    "leaper": {0: 5, 1: 1, 2: 1, 3: 1, 4: 5, 5: 1}, "maze": {0: 1, 2: 1, 51: 1},
    "miner": {0: 1, 1: 1, 2: 1, 6: 1, 9: 1, 10: 1},
    "ninja": {0: 1, 1: 6, 6: 1, 7: 1, 9: 1, 12: 1, 13: 1, 14: 1, 20: 3}, "plunder": {1: 1, 3: 1, 6: 1, 7: 6},
    "starpilot": {0: 1, 1: 1, 2: 1, 3: 1, 4: 7, 5: 8, 6: 9, 7: 2, 8: 7, 9: 4},
}  # fmt: skip
RESERVED_PICTURES = dict.fromkeys((54, 55, 56, 57, 58, 59), 1)  # explosions and the trail, of every game
MOST_THEMES, MOST_TYPES = 10, 100
# Image types that are drawn as others too, so that a theme has to do for all of them.
DRAWN_AS: dict[str, dict[int, tuple[int, ...]]] = {
    "chaser": {6: (3, 6, 7, 8)}, "climber": {0: (0, 9, 12, 13)}, "coinrun": {0: (0, 12, 13)},
    "dodgeball": {5: (5, 7)}, "jumper": {0: (0, 10, 11, 12, 13)}, "miner": {3: (1,), 4: (2,)},
    "ninja": {0: (0, 12, 13)},
}  # fmt: skip
# Values that a grid may hold: 51 and the games' own walls hold the agent up everywhere.
CELLS = {
    "bigfish": (51, 100), "bossfight": (51, 100), "caveflyer": (8, 51, 100), "chaser": (5, 51, 100, 1002),
    "climber": (15, 16, 51, 100), "coinrun": (1, 15, 16, 17, 18, 19, 51, 100), "dodgeball": (10, 51, 100),
    "fruitbot": (2, 51, 100), "heist": (51, 100), "jumper": (6, 7, 51, 100), "leaper": (2, 3, 51, 100),
    "maze": (2, 51, 100), "miner": (1, 2, 3, 4, 9, 10, 51, 100), "ninja": (6, 14, 20, 51, 100),
    "plunder": (51, 100), "starpilot": (51, 100),
}  # fmt: skip
WALL_THEMES = {
    "climber": 4, "coinrun": 6, "jumper": 4, "ninja": 3,
}  # fmt: skip
BACKGROUNDS = {
    "bigfish": 7, "bossfight": 13, "caveflyer": 13, "chaser": 1, "climber": 62, "coinrun": 62, "dodgeball": 9,
    "fruitbot": 9, "heist": 9, "jumper": 62, "leaper": 9, "maze": 9, "miner": 62, "ninja": 62, "plunder": 4,
    "starpilot": 13,
}  # fmt: skip
NEEDED = {"bossfight": ("boss", "shields"), "jumper": ("goal",)}  # without them the game ends the process


@dataclass
class State:
    """One state, in named parts.  Records, ``entities`` and ``cells`` are arrays to be changed in place; ``entities``
    may be replaced by a longer or a shorter array.

    ``entities``: ENTITY [n]; ``cells``: int32 [height, width].
    """

    game: str
    before: bytearray  # all up to the entities
    episode_at: int
    grid_size: int
    entities: np.ndarray
    after: bytearray  # all from the entities to the grid
    view_at: int
    cells: np.ndarray
    tail: bytearray

    @classmethod
    def parse(cls, data: bytes) -> State:
        """Read the bytes of ``get_state``.  UserError where they are no state, or of another version."""
        try:
            game, at = _text(data, 4)
            if struct.unpack_from("<i", data, 0)[0] != VERSION:
                raise UserError(f"a Procgen state of another version than {VERSION}")
            if game not in TAILS:
                raise UserError(f"a state of {game!r}, which is none of Procgen's games")
            at += OPTIONS.itemsize
            for _ in range(2):
                at = _text(data, at + 4)[1]
            episode_at = at
            at += EPISODE.itemsize
            grid_size, n = struct.unpack_from("<ii", data, at)
            first = at + 8
            at = first + n * ENTITY.itemsize
            entities = np.frombuffer(data, ENTITY, n, first).copy()
            middle = at
            at = _text(data, at + MOTION.itemsize + 4)[1]
            view_at = at - middle
            at += VIEW.itemsize
            w, h, size = struct.unpack_from("<iii", data, at)
            if min(w, h) < 0 or size != w * h:
                raise UserError(f"not a Procgen state: a grid of {w} by {h} with {size} cells")
            cells = np.frombuffer(data, "<i4", size, at + 12).reshape(h, w).copy()
            rest = at + 12 + 4 * size
            if len(data) - rest < 4 or struct.unpack_from("<I", data, len(data) - 4)[0] != END:
                raise UserError("not a whole Procgen state: its end mark is missing")
        except (struct.error, ValueError, UnicodeDecodeError) as error:
            raise UserError(f"not a whole Procgen state ({error})") from None
        state = cls(
            game, bytearray(data[: first - 8]), episode_at, grid_size, entities, bytearray(data[middle:at]),
            view_at, cells, bytearray(data[rest:-4]),
        )  # fmt: skip
        length, least = len(state.tail), TAILS[game].itemsize
        if length < least or (length > least and game not in LISTS):
            raise UserError(f"not a state of this version of {game}: {length} bytes of its own for {least}")
        return state

    def to_bytes(self) -> bytes:
        """The bytes for ``set_state``; UserError where ``check`` finds what would kill the game."""
        self.check()
        return self._joined()

    def _joined(self) -> bytes:
        h, w = self.cells.shape
        return b"".join((
            self.before, struct.pack("<ii", self.grid_size, len(self.entities)), self.entities.tobytes(), self.after,
            struct.pack("<iii", w, h, self.cells.size), self.cells.astype("<i4").tobytes(), self.tail,
            struct.pack("<I", END),
        ))  # fmt: skip

    # Records: views of the bytes, so that a field that is set is written.

    @cached_property
    def options(self) -> np.void:
        return _view(self.before, OPTIONS, 8 + len(self.game))

    @cached_property
    def episode(self) -> np.void:
        return _view(self.before, EPISODE, self.episode_at)

    @cached_property
    def motion(self) -> np.void:
        return _view(self.after, MOTION, 0)

    @cached_property
    def view(self) -> np.void:
        return _view(self.after, VIEW, self.view_at)

    @cached_property
    def own(self) -> np.void:
        """The game's own record."""
        kind = TAILS[self.game]
        return _view(self.tail, kind, len(self.tail) - kind.itemsize if LISTS.get(self.game) == "before" else 0)

    @property
    def level_generator(self) -> slice:
        """Where in ``before`` the generator of the next levels is stored; its text is not always as long."""
        at = 8 + len(self.game) + OPTIONS.itemsize
        return slice(at, _text(self.before, at + 4)[1])

    @property
    def has(self) -> tuple[str, ...]:
        """Names of the game's own record."""
        return TAILS[self.game].names or ()

    @property
    def agent(self) -> np.void:
        """The last entity of type 0, as the game has it."""
        found = np.flatnonzero(self.entities["type"] == PLAYER)
        if not len(found):
            raise UserError(f"a state of {self.game} without an agent")
        return self.entities[found[-1]]  # type: ignore[no-any-return]

    # Objects by name.

    def thing(self, name: str) -> Thing:
        """UserError with the game's names where there is no such thing."""
        things = THINGS[self.game]
        if name not in things:
            raise UserError(f"{self.game} has no {name!r}{nearest(name, things)}; it has: {', '.join(things)}")
        return things[name]

    def of(self, name: str) -> np.ndarray:
        """Which entities are such things, int64 [n]: indices into ``entities``."""
        return np.flatnonzero(np.isin(self.entities["type"], self.thing(name).entities))

    def cells_of(self, name: str) -> np.ndarray:
        """(x, y) of the cells that are such things, int64 [n, 2]."""
        return np.argwhere(np.isin(self.cells, self.thing(name).cells))[:, ::-1]

    def places(self, name: str) -> np.ndarray:
        """Centres of all such things, float64 [n, 2]; entities first."""
        found = self.entities[self.of(name)]
        entities = np.stack([found["x"], found["y"]], 1).astype(np.float64)
        return np.concatenate([entities, self.cells_of(name) + 0.5])

    # What the game could not survive.

    def check(self) -> None:
        """UserError that names the first thing that this state could not have been written with."""
        game = self.game
        if self.options["use_generated_assets"]:
            raise UserError("a state of generated assets (use_generated_assets) cannot be saved or put back")
        agent = self.agent
        for name in NEEDED.get(game, ()):
            if not len(self.of(name)):
                raise UserError(f"a state of {game} needs its {name}: the game cannot go on without it")
        if len(odd := np.setdiff1d(self.cells, CELLS[game])):
            has = ", ".join(map(str, CELLS[game]))
            raise UserError(f"{game} has no cells {', '.join(map(str, odd[:4]))}; it has {has}")
        if not all(np.isfinite(self.entities[name]).all() for name in ENTITY.names or () if ENTITY[name].kind == "f"):
            raise UserError("an entity with a number that is not finite")
        if game == "heist" and (keys := self._beyond_keys()):
            raise UserError(f"this level of heist has {self.own['keys']} colours of keys, not colour {keys[0]}")
        h, w = self.cells.shape
        if not (0 <= agent["x"] <= w and 0 <= agent["y"] <= h):  # bigfish's may be at the very border
            raise UserError(f"the agent at ({agent['x']:.3g}, {agent['y']:.3g}) is outside of a world of {w} by {h}")
        self._check_pictures()
        if len(data := self._joined()) > LONGEST:
            raise UserError(f"a state of {len(data):,} bytes, where the game has room for {LONGEST:,}")

    def _beyond_keys(self) -> list[int]:
        """Colours of keys and doors that the level's list of keys has no place for."""
        mine = self.entities[np.isin(self.entities["type"], (1, 2, 11))]["image_theme"]
        return [int(theme) for theme in mine if not 0 <= theme < self.own["keys"]]

    def _check_pictures(self) -> None:
        """Every entity has a picture, and the walls and the background have."""
        game = self.game
        if not 0 <= self.motion["background_index"] < BACKGROUNDS[game]:
            raise UserError(
                f"{game} has no background {self.motion['background_index']}; it has 0 to {BACKGROUNDS[game] - 1}"
            )
        for kind, theme in {(int(e["image_type"]), int(e["image_theme"])) for e in self.entities}:
            if not 0 <= theme < (most := self.pictures(kind)):
                raise UserError(f"{game} has no theme {theme} of pictures of type {kind}; it has 0 to {most - 1}")
        if "wall_theme" in self.has and not 0 <= self.own["wall_theme"] < (most := WALL_THEMES[game]):
            raise UserError(f"{game} has no wall theme {self.own['wall_theme']}; it has 0 to {most - 1}")

    def pictures(self, kind: int) -> int:
        """How many pictures there are of an image type, whatever it is drawn as."""
        if not abs(kind) < MOST_TYPES:
            return 0
        known = RESERVED_PICTURES | PICTURES[self.game]
        return min(known.get(k, MOST_THEMES) for k in (abs(kind), *DRAWN_AS.get(self.game, {}).get(kind, ())))


def _view(buffer: bytearray, kind: np.dtype[Any], at: int) -> np.void:
    return np.frombuffer(buffer, kind, 1, at)[0]  # type: ignore[no-any-return]


def _text(data: bytes | bytearray, at: int) -> tuple[str, int]:
    """The string at ``at`` where it is short (else ''), and where it ends."""
    (n,) = struct.unpack_from("<i", data, at)
    if n < 0 or at + 4 + n > len(data):
        raise struct.error(f"a text of {n} bytes at {at}")
    return data[at + 4 : at + 4 + n].decode("ascii") if n < 64 else "", at + 4 + n


AGE = 8  # bytes before the state in a snapshot of ProcgenEnv: the steps of its episode


def state_of(snapshot: bytes) -> State:
    """The state in one slot's part of ``ProcgenEnv.snapshot``."""
    return State.parse(snapshot[AGE:])


def snapshot_of(state: State, like: bytes) -> bytes:
    """``like`` with another state in it, checked; UserError where it is not of the same game and options."""
    before = state_of(like)
    if before.game != state.game:
        raise UserError(f"a state of {state.game} where one of {before.game} is wanted")
    return like[:AGE] + state.to_bytes()
