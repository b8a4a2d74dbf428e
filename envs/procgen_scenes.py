"""Procgen's levels on demand, and scenes by hand: worlds that differ in one variable alone (a wall's height, a saw's
distance).

A level is asked for by its number, and comes with the pool of the slot that it is put into.  A scene is a game, a base
and edits in words (envs/procgen_edits.py) that hold one placeholder, ``{h}``; scenes have their place in
docs/scenes.json:

    {"name": "wall_height", "game": "coinrun", "base": "flat", "edits": ["add wall ahead 3 high {h}"],
     "says": "a wall {h} cells high, three cells before the agent", "choice": "jump"}

base: a level's number; "levels", each level of a pool in turn as it begins; or "flat", CoinRun alone: each level of a
pool with its themes and its background, and plain ground in place of all else.  How thick that ground is and how far
the agent stands from the left end is drawn by the level's number; ``ground`` fixes the thickness.  Where a world shows
one theme and no backgrounds, flat bases look alike but for that.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from core.config import ROOT, from_json, nearest, read_json
from core.contracts import UserError
from envs.procgen import GAMES, ProcgenEnv, ProcgenOptions
from envs.procgen_edits import TOPS, WALLS, Edit, parse_edit
from envs.procgen_state import AGE, PLAYER, SPACE, State, snapshot_of, state_of

SCENES = ROOT / "docs" / "scenes.json"
LAST_LEVEL = 2**31 - 2
RESET = -1  # an action that ends the level, and is none of the game's own
BATCH = 64  # levels made at once
FLAT = "coinrun"  # the game whose ground can be made flat
THICK, COLUMNS = (1, 5), (4, 25)  # ranges (the last is out) of what is drawn for flat ground


# Levels


def level_states(options: ProcgenOptions, levels: Sequence[int], likes: Sequence[bytes]) -> tuple[bytes, ...]:
    """Snapshots (``ProcgenEnv.snapshot``) at the first step of these levels, one for each of ``likes``.

    likes: snapshots of the slots that they are for; each keeps its pool and its generator of levels, so that the levels
    that follow are those that it would have shown after its present one.  Raises UserError for a level that there is
    not, and for worlds whose levels have no numbers.
    """
    for level in levels:
        if not 0 <= level <= LAST_LEVEL:
            raise UserError(f"level {level}: levels have the numbers 0 to {LAST_LEVEL}")
    if options.distribution_mode == "exploration":
        raise UserError("the mode 'exploration' has one level of its own; there are no others to ask for")
    if options.use_generated_assets:
        raise UserError("a world of generated assets (use_generated_assets) has no state that can be put back")
    out: list[bytes] = []
    env = ProcgenEnv(options, min(len(levels), BATCH), threads=1)
    try:
        env.reset(0)
        for first in range(0, len(levels), env.spec.slots):
            some, mine = levels[first : first + BATCH], likes[first : first + BATCH]
            begun = list(env.snapshot())
            for n, level in enumerate(some):
                state = state_of(begun[n])
                state.options["level_seed_low"], state.options["level_seed_high"] = level, level + 1
                begun[n] = snapshot_of(state, begun[n])
            env.restore(begun)
            env.step(np.full(env.spec.slots, RESET))
            made = env.snapshot()
            out += [_in_pool_of(s, like) for s, like in zip(made[: len(some)], mine, strict=True)]
    finally:
        env.close()
    return tuple(out)


def _in_pool_of(snapshot: bytes, like: bytes) -> bytes:
    """A level's first state with the pool of another slot."""
    state, its = state_of(snapshot), state_of(like)
    if state.game != its.game:
        raise UserError(f"a level of {state.game} for a slot of {its.game}")
    for name in ("level_seed_low", "level_seed_high", "game_n"):
        state.options[name] = its.options[name]
    data, old, new = state.to_bytes(), state.level_generator, its.level_generator
    return bytes(AGE) + data[: old.start] + its.before[new] + data[old.stop :]


# Scenes


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One scene of a file of scenes; the words of its fields are those of the JSON."""

    name: str
    game: str
    base: str | int
    edits: tuple[str, ...]
    says: str
    choice: str = ""
    """the action, or word of actions, that the scene asks about"""
    ground: int = 0
    """how many cells thick flat ground is; 0: drawn by the level"""
    values: tuple[float, ...] = ()
    """of the placeholder, where none are asked for"""
    ends_at: int = 0
    """cells ahead beyond which the scene lies behind the agent, where that is not the farthest of its edits"""

    @property
    def placeholder(self) -> str:
        (name,) = _placeholders(self.edits)
        return name

    def at(self, value: float) -> tuple[Edit, ...]:
        """Its edits with this value in the placeholder's stead; UserError where they are then no edits."""
        words = f"{value:g}"
        try:
            return tuple(parse_edit(text.replace(f"{{{self.placeholder}}}", words), self.game) for text in self.edits)
        except UserError as error:
            raise UserError(f"scene {self.name!r} cannot be built with {self.placeholder} = {words}: {error}") from None

    def beyond(self, value: float) -> float | None:
        """Cells from the middle of the agent's first cell to that of the last one that the scene takes up; None: it
        stands nowhere ahead."""
        if self.ends_at:
            return float(self.ends_at)
        ends = [e.ahead[0] + max((e.size or (1, 1))[0], 1) - 1 for e in self.at(value) if e.ahead is not None]
        return max(ends, default=None)


def load_scenes(path: Path = SCENES) -> dict[str, Scene]:
    """The scenes of a file, checked, by name.  Raises UserError."""
    rows = read_json(path)
    if not isinstance(rows, list):
        raise UserError(f"{path}: expected a list of scenes")
    out: dict[str, Scene] = {}
    for n, row in enumerate(rows):
        where = f"{path}: scene {row.get('name', n)!r}" if isinstance(row, dict) else f"{path}: scene {n}"
        if not isinstance(row, dict):
            raise UserError(f"{where}: expected an object")
        base = row.get("base", "")
        scene = replace(from_json(Scene, {**row, "base": str(base)}, where), base=base)
        if scene.name in out:
            raise UserError(f"{where} is there twice")
        _check(scene, where)
        out[scene.name] = scene
    return out


def scene_of(name: str, path: Path = SCENES) -> Scene:
    """One scene by name; UserError where there is none."""
    scenes = load_scenes(path)
    if name not in scenes:
        raise UserError(f"no scene {name!r}{nearest(name, scenes)} in {path}; there are: {', '.join(scenes)}")
    return scenes[name]


def _check(scene: Scene, where: str) -> None:
    if scene.game not in GAMES:
        raise UserError(f"{where}: no Procgen game {scene.game!r}{nearest(scene.game, GAMES)}")
    number = isinstance(scene.base, int) and not isinstance(scene.base, bool)
    if not number and scene.base not in ("flat", "levels"):
        raise UserError(f"{where}: the base {scene.base!r} is neither a level's number nor 'flat' nor 'levels'")
    if scene.base == "flat" and scene.game != FLAT:
        raise UserError(f"{where}: only {FLAT} has flat ground; {scene.game} can take 'levels' or a level's number")
    if scene.ground and scene.base != "flat":
        raise UserError(f"{where}: 'ground' is the thickness of flat ground, and the base is {scene.base!r}")
    if scene.ground < 0:
        raise UserError(f"{where}: ground {scene.ground} cells thick")
    names = _placeholders(scene.edits)
    if len(names) != 1:
        found = f"has {', '.join(sorted(names))}" if names else "has none"
        raise UserError(f"{where}: its edits need one placeholder, as in 'add wall ahead 3 high {{h}}'; it {found}")
    for value in scene.values:
        scene.at(value)


def _placeholders(edits: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for text in edits:
        try:
            found |= {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
        except ValueError as error:
            raise UserError(f"edit {text!r}: {error}") from None
    odd = [name for name in found if not re.fullmatch("[a-z]+", name)]
    if odd:
        raise UserError(f"a placeholder is small letters in braces, as in {{h}}, not {{{odd[0]}}}")
    return found


def flattened(state: State, ground: int = 0) -> State:
    """A level of CoinRun with plain ground in place of all else, the agent standing on it and facing right.  Changed in
    place.

    ground: cells thick; 0: drawn by the level's number, as is the agent's column.
    """
    if state.game != FLAT:
        raise UserError(f"only {FLAT} has flat ground, not {state.game}")
    rng = np.random.default_rng(int(state.episode["current_level_seed"]))
    thick, column = int(rng.integers(*THICK)), int(rng.integers(*COLUMNS))
    thick = ground or thick
    if not thick < len(state.cells) - 1:
        raise UserError(f"ground {thick} cells thick in a world {len(state.cells)} cells high")
    state.cells[:] = SPACE
    state.cells[:thick] = WALLS[FLAT]
    state.cells[thick - 1] = TOPS[FLAT]
    state.cells[:, 0] = WALLS[FLAT]
    state.entities = state.entities[state.entities["type"] == PLAYER][-1:].copy()
    agent = state.agent
    agent["x"], agent["y"] = column + 0.5, thick + agent["ry"]
    agent["vx"] = agent["vy"] = state.motion["action_vx"] = state.motion["action_vy"] = 0
    state.own["last_agent_y"], state.own["is_on_crate"] = agent["y"], 0
    state.own["has_support"] = state.own["facing_right"] = 1
    return state


@dataclass(frozen=True)
class Stance:
    """How the agent stands at a scene's beginning: cells to the side of where its base has it (to the other side where
    a wall is in the way), and its velocity."""

    dx: float = 0.0
    vx: float = 0.0


def built(scene: Scene, value: float, base: bytes, stance: Stance) -> bytes:
    """The snapshot of a scene, from that of a level's first step.  UserError where it cannot be built there."""
    state = state_of(base)
    if state.game != scene.game:
        raise UserError(f"scene {scene.name!r} is of {scene.game}, the world of {state.game}")
    if scene.base == "flat":
        flattened(state, scene.ground)
    try:
        for edit in scene.at(value):
            edit.apply(state)
        _stand(state, stance)
        return snapshot_of(state, base)
    except UserError as error:
        said = f"scene {scene.name!r} cannot be built with {scene.placeholder} = {value:g}"
        raise UserError(str(error) if said in str(error) else f"{said}: {error}") from None


def _stand(state: State, stance: Stance) -> None:
    """Put the agent where it stands, on the other side of its cell's middle where a wall is in the way."""
    moves = [parse_edit(f"move agent by {dx:g} 0", state.game) for dx in (stance.dx, -stance.dx) if dx]
    for n, move in enumerate(moves):
        try:
            move.apply(state)  # refused before anything is changed
            break
        except UserError:
            if n + 1 == len(moves):
                raise
    if stance.vx:
        parse_edit(f"set velocity {stance.vx:g} 0", state.game).apply(state)
