"""Changes of a Procgen world in words.

    remove THING [WHICH]                     saw, coin, wall ...: the names of procgen_state.THINGS
    move THING [WHICH] by DX DY | to X Y     the agent too
    add THING at X Y | ahead N [up M]        N cells before the agent (the way it faces), M above the one it stands in
    add | remove THING ahead N [up M] [wide W] [high H]    a block of cells that begins there: W away from the agent, H
                                             upwards, 1 each where it is not said; 0 changes nothing
    add | remove THING at X Y wide W high H  the same to the right of and above the cell at X Y
    set velocity VX VY                       the agent's, cells a step
    set agent_theme | wall_theme | background N

WHICH: nearest (to the agent), at X Y (the one there), or left out: all.  Lengths are in cells, y grows upwards.

An edit is of whole states: it is applied to a parsed one, and what the game could not survive is refused as a
UserError before it sees a byte.  It lasts until its level ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from core.config import nearest
from core.contracts import UserError
from core.words import counted
from envs.procgen_state import ENTITY, NEEDED, SPACE, TAILS, THINGS, State

VERBS = ("remove", "move", "add", "set")
SETTINGS = {"velocity": 2, "agent_theme": 1, "wall_theme": 1, "background": 1}
SIDEWAYS = ("coinrun", "climber", "jumper", "ninja")  # games in which 'ahead' is to the right or to the left
WALLS = {"caveflyer": 8, "climber": 15, "coinrun": 15, "heist": 51, "jumper": 6, "maze": 51, "ninja": 20}
TOPS = {"climber": 16, "coinrun": 16, "jumper": 7}  # a wall with nothing above it
LAVA, LAVA_TOP = 17, 18  # CoinRun's
SOLID = {  # cells that hold the agent up, besides 51
    "caveflyer": (8,), "chaser": (5,), "climber": (15, 16), "coinrun": (15, 16), "dodgeball": (10,), "fruitbot": (2,),
    "jumper": (6, 7), "miner": (1, 3, 10), "ninja": (20,),
}  # fmt: skip
UNSEEN = 19  # CoinRun's barriers of monsters: a cell that is empty to all others
BY_CELLS = ("maze", "miner")  # the agent moves by whole cells
REACH = 1.5  # cells within which something is 'the one at X Y'
ONE_BOSS = (("move", "shields"), ("add", "shields"), ("add", "boss"))
SIZES = {("coinrun", "saw"): 0.5, ("coinrun", "monster"): 0.5, ("coinrun", "crate"): 0.5}  # what no level need hold


@dataclass(frozen=True)
class Edit:
    """One change; ``words`` parses to it again."""

    verb: str
    thing: str  # or the setting
    which: str = ""  # '', nearest, at or block
    at: tuple[float, float] = (0.0, 0.0)  # of 'at X Y', or where something is added
    by: tuple[float, float] | None = None  # of a move
    to: tuple[float, float] | None = None
    ahead: tuple[float, float] | None = None  # (N, M) of an addition or a block
    size: tuple[int, int] | None = None  # (W, H) of a block
    values: tuple[float, ...] = ()  # of a setting

    @property
    def words(self) -> str:
        out = [self.verb, self.thing]
        if self.ahead is not None:
            out += [f"ahead {self.ahead[0]:g}"] + [f"up {self.ahead[1]:g}"] * bool(self.ahead[1])
        elif self.which in ("at", "block") or self.verb == "add":
            out.append(f"at {self.at[0]:g} {self.at[1]:g}")
        elif self.which:
            out.append(self.which)
        for word, pair in (("by", self.by), ("to", self.to)):
            out += [] if pair is None else [f"{word} {pair[0]:g} {pair[1]:g}"]
        out += [] if self.size is None else [f"wide {self.size[0]} high {self.size[1]}"]
        return " ".join([*out, *(f"{v:g}" for v in self.values)])

    def apply(self, state: State) -> State:
        """The same state, changed in place.  UserError where there is nothing to change, where the place is taken, or
        where the game could not go on."""
        self.check(state.game)
        {"remove": self._remove, "move": self._move, "add": self._add, "set": self._set}[self.verb](state)
        return state

    def check(self, game: str) -> None:
        """UserError for what no state of this game allows."""
        of_cells = self.thing in THINGS[game] and bool(THINGS[game][self.thing].cells)
        if of_cells and self.thing == "wall" and self.verb in ("add", "remove") and game not in WALLS:
            raise UserError(
                f"{self.words}: walls of {game} cannot be edited; those of these games can: {', '.join(WALLS)}"
            )
        if self.ahead is not None and game not in SIDEWAYS:
            raise UserError(
                f"{self.words}: 'ahead' is for games seen from the side ({', '.join(SIDEWAYS)}); say 'at X Y'"
            )
        if game == "bossfight" and (self.verb, self.thing) in ONE_BOSS:
            raise UserError(
                f"{self.words}: bossfight has one boss, and puts its shields there at every step; say 'move boss ...'"
            )
        if self.verb == "remove" and self.thing in NEEDED.get(game, ()):
            raise UserError(f"{self.words}: {game} cannot go on without its {self.thing}")
        if self.thing == "wall_theme" and "wall_theme" not in (TAILS[game].names or ()):
            raise UserError(f"{self.words}: {game} has no themes of walls")

    def fixed(self, state: State) -> Edit:
        """The same edit with the place where it is made here: 'nearest' and 'ahead' become 'at X Y', so that it means
        the same place in later states; where its thing is in these, envs.procgen_tracks finds."""
        if self.ahead is not None:
            return replace(self, ahead=None, at=self._corner(state))
        if self.which == "nearest":
            index, cells = self._chosen(state)
            place = [state.entities[i] for i in index]
            found = (place[0]["x"], place[0]["y"]) if place else tuple(cells[0] + 0.5)
            return replace(self, which="at", at=(float(found[0]), float(found[1])))
        return self

    def _chosen(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """(indices of entities, (x, y) of cells) that are meant.  UserError where there is none."""
        index, cells = state.of(self.thing), state.cells_of(self.thing)
        if not len(index) + len(cells):
            raise UserError(f"{self.words}: there is no {self.thing} in this level")
        if not self.which:
            return index, cells
        if self.which == "block":
            index, cells = self._inside(state)
            if 0 not in (self.size or (1, 1)) and not len(index) + len(cells):
                raise UserError(f"{self.words}: there is no {self.thing} in it")
            return index, cells
        agent = state.agent
        at = (agent["x"], agent["y"]) if self.which == "nearest" else self.at
        far = np.hypot(*(state.places(self.thing) - at).T)
        n = int(far.argmin())
        if self.which == "at" and far[n] >= REACH:
            raise UserError(f"{self.words}: there is no {self.thing} there; the nearest is {far[n]:.3g} cells away")
        return (index[n : n + 1], cells[:0]) if n < len(index) else (index[:0], cells[n - len(index) :][:1])

    def _corner(self, state: State) -> tuple[float, float]:
        """The middle of the lowest cell on the left of what is added, or of the block."""
        if self.ahead is None:
            return self.at
        x, y = _ahead(state, *self.ahead)
        return (x if state.own["facing_right"] else x - max((self.size or (1, 1))[0] - 1, 0)), y

    def _inside(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """``_chosen`` of a block: what has its middle in it."""
        x, y = (math.floor(v) for v in self._corner(state))
        low, high = np.array((x, y)), np.array((x, y)) + (self.size or (1, 1))
        index, cells = state.of(self.thing), state.cells_of(self.thing)
        found = state.entities[index]
        places = np.stack([found["x"], found["y"]], 1)
        inside = [((p >= low) & (p < high)).all(1) for p in (places, cells)]
        return index[inside[0]], cells[inside[1]]

    def _remove(self, state: State) -> None:
        index, cells = self._chosen(state)
        state.entities = np.delete(state.entities, index)
        state.cells[cells[:, 1], cells[:, 0]] = SPACE
        if self.thing == "wall" and self.which:
            _redraw(state, cells)
        _recount(state)

    def _move(self, state: State) -> None:
        if self.thing == "agent":
            return self._move_agent(state)
        index, cells = self._chosen(state)
        if self.to is not None and len(index) + len(cells) != 1:
            raise UserError(f"{self.words}: there are {len(index) + len(cells)} of them; say which, as in 'nearest'")
        values = state.cells[cells[:, 1], cells[:, 0]].copy()
        state.cells[cells[:, 1], cells[:, 0]] = SPACE
        for (x, y), value in zip(cells, values, strict=True):
            new_x, new_y = self._moved(x + 0.5, y + 0.5)
            if (new_x % 1, new_y % 1) != (0.5, 0.5) and self.to is None:
                raise UserError(f"{self.words}: {self.thing} is a cell of the grid, and moves by whole cells")
            _free(state, new_x, new_y, self.words)
            state.cells[int(new_y), int(new_x)] = value
        for i in index:
            entity = state.entities[i]
            x, y = self._moved(float(entity["x"]), float(entity["y"]))
            _free(state, x, y, self.words, solid=True)
            if state.game == "climber":
                entity["climber_spawn_x"] += x - entity["x"]
            if state.game == "chaser":  # they turn at the middles of cells
                x, y = math.floor(x) + 0.5, math.floor(y) + 0.5
                entity["vx"] = entity["vy"] = 0
            entity["x"], entity["y"] = x, y
            if self.thing == "boss":
                for shields in state.of("shields"):
                    state.entities["x"][shields], state.entities["y"][shields] = x, y

    def _moved(self, x: float, y: float) -> tuple[float, float]:
        if self.to is not None:
            return self.to
        assert self.by is not None
        return x + self.by[0], y + self.by[1]

    def _move_agent(self, state: State) -> None:
        """With all that says where it came from and what it stands on."""
        agent = state.agent
        x, y = self._moved(float(agent["x"]), float(agent["y"]))
        if state.game in BY_CELLS and (x % 1, y % 1) != (0.5, 0.5):
            raise UserError(f"{self.words}: the agent of {state.game} moves by whole cells")
        rx, ry = float(agent["rx"]) * 0.98, float(agent["ry"]) * 0.98
        for px in (x - rx, x + rx):
            for py in (y - ry, y + ry):
                _free(state, px, py, self.words, solid=True)
        agent["x"], agent["y"] = x, y
        for name, value in (("last_agent_y", y), ("is_on_crate", 0)):
            if name in state.has:
                state.own[name] = value
        if "has_support" in state.has:
            state.own["has_support"] = supported(state)

    def _add(self, state: State) -> None:
        x, y = self._corner(state)
        wide, high = self.size or (1, 1)
        for up in range(high):
            for right in range(wide):
                self._add_one(state, x + right, y + up)
        _recount(state)

    def _add_one(self, state: State, x: float, y: float) -> None:
        thing = state.thing(self.thing)
        _free(state, x, y, self.words, solid=not thing.cells)
        if not thing.cells:
            state.entities = np.append(state.entities, _copy(state, self.thing, x, y, self.words))
            return
        i, j, agent = int(x), int(y), state.agent
        if abs(i + 0.5 - agent["x"]) < 0.5 + agent["rx"] and abs(j + 0.5 - agent["y"]) < 0.5 + agent["ry"]:
            raise UserError(f"{self.words}: the agent is there")
        state.cells[j, i] = WALLS[state.game] if self.thing == "wall" else thing.cells[0]
        if self.thing in ("wall", "lava"):
            _redraw(state, np.array([[i, j]]))

    def _set(self, state: State) -> None:
        if self.thing == "velocity":
            most = 2 * max(float(state.motion["maxspeed"]), float(state.motion["max_jump"]))
            if max(abs(v) for v in self.values) > most:
                raise UserError(f"{self.words}: {state.game}'s velocities lie between -{most:g} and {most:g}")
            state.agent["vx"], state.agent["vy"] = self.values
        elif self.thing.endswith("theme") and state.options["restrict_themes"]:
            raise UserError(f"{self.words}: in a world of restrict_themes all themes look the same")
        elif self.thing == "background" and not state.options["use_backgrounds"]:
            raise UserError(f"{self.words}: this world shows no backgrounds (use_backgrounds)")
        elif self.thing == "agent_theme":
            state.agent["image_theme"] = int(self.values[0])
        elif self.thing == "background":
            state.motion["background_index"] = int(self.values[0])
        else:
            state.own["wall_theme"] = int(self.values[0])


PICTURELESS = ("velocity",)  # settings that nothing shows


def parse_edit(text: str, game: str) -> Edit:
    """An edit in words.  UserError on what does not parse, names what the game does not have, or is no edit of it."""
    edit = _parse(text, game)
    edit.check(game)
    return edit


def _parse(text: str, game: str) -> Edit:
    words, where = text.split(), f"edit {text!r}"
    if not words or words[0] not in VERBS:
        hint = nearest(words[0], VERBS) if words else ""
        raise UserError(f"{where}: begins with no known edit{hint}; there are: {', '.join(VERBS)}")
    if len(words) < 2:
        raise UserError(f"{where}: {words[0]} what?")
    verb, thing, rest = words[0], words[1], words[2:]
    if verb == "set":
        if thing not in SETTINGS:
            raise UserError(f"{where}: nothing called {thing!r}{nearest(thing, SETTINGS)} can be set; there are: "
                            f"{', '.join(SETTINGS)}")  # fmt: skip
        values = _numbers(rest, SETTINGS[thing], where)
        if thing != "velocity" and (values[0] < 0 or values[0] % 1):
            raise UserError(f"{where}: a {thing} is a whole number, from 0")
        return Edit(verb, thing, values=values)
    things = THINGS[game]
    if thing not in things and not (thing == "agent" and verb == "move"):
        raise UserError(f"{where}: {game} has no {thing!r}{nearest(thing, things)}; it has: {', '.join(things)}")
    if verb == "add" or (verb == "remove" and {"ahead", "wide", "high"} & set(rest)):
        return _parse_placed(verb, thing, rest, where)
    which, at = "", (0.0, 0.0)
    if rest[:1] == ["nearest"]:
        which, rest = "nearest", rest[1:]
    elif rest[:1] == ["at"]:
        which, at, rest = "at", _pair(rest[1:3], where), rest[3:]
    if verb == "remove":
        if rest:
            raise UserError(
                f"{where}: {' '.join(rest)!r} is too much; after the thing come 'nearest', 'at X Y' or nothing"
            )
        return Edit(verb, thing, which, at)
    if len(rest) != 3 or rest[0] not in ("by", "to"):
        raise UserError(f"{where}: move {thing} 'by DX DY' or 'to X Y'")
    pair = _pair(rest[1:], where)
    return Edit(verb, thing, which, at, **{rest[0]: pair})  # type: ignore[arg-type]


def _parse_placed(verb: str, thing: str, rest: list[str], where: str) -> Edit:
    """What is added, or removed from a block: a place, and how much."""
    forms = "'at X Y' or 'ahead N [up M]', each with [wide W] [high H] after it"
    if rest[:2] == ["at", "ahead"]:
        rest = rest[1:]  # 'at ahead N'
    count = {"at": 2, "ahead": 1}.get(rest[0] if rest else "", 0)
    more = rest[1 + count :]
    said = dict(zip(more[::2], more[1::2], strict=False))
    known = ("up", "wide", "high") if count == 1 else ("wide", "high")
    if not count or len(rest) < 1 + count or 2 * len(said) != len(more) or not set(said) <= set(known):
        raise UserError(f"{where}: {verb} {thing} {forms}")
    place = _numbers(rest[1 : 1 + count], count, where)
    whole = {word: _numbers([number], 1, where)[0] for word, number in said.items()}
    if (count == 1 and (place[0] < 1 or place[0] % 1)) or any(v % 1 for v in whole.values()):
        raise UserError(f"{where}: ahead N up M wide W high H are whole cells, N at least 1")
    if min(whole.get("wide", 0), whole.get("high", 0)) < 0:
        raise UserError(f"{where}: a block is not {min(whole.values()):g} cells wide or high")
    sized = {"wide", "high"} & set(whole)
    size = (int(whole.get("wide", 1)), int(whole.get("high", 1))) if sized or verb == "remove" else None
    which = "block" if verb == "remove" else ""
    if count == 1:
        return Edit(verb, thing, which, ahead=(place[0], whole.get("up", 0.0)), size=size)
    return Edit(verb, thing, which, at=(place[0], place[1]), size=size)


def _numbers(words: list[str], count: int, where: str) -> tuple[float, ...]:
    try:
        out = tuple(float(w) for w in words)
    except ValueError:
        raise UserError(f"{where}: {' '.join(words)!r} are not numbers") from None
    if len(out) != count or not all(math.isfinite(v) for v in out):
        raise UserError(f"{where}: takes {counted(count, 'finite number')}, not {' '.join(words) or 'none'}")
    return out


def _pair(words: list[str], where: str) -> tuple[float, float]:
    x, y = _numbers(words, 2, where)
    return x, y


def supported(state: State) -> bool:
    """Whether the agent of a game with walls to stand on has one beneath it, as the game works it out."""
    agent, walls = state.agent, (*THINGS[state.game]["wall"].cells, int(state.view["out_of_bounds_object"]))
    y = float(agent["y"] - (agent["ry"] + 0.01))
    feet = [_cell(state, float(agent["x"]) + side * (float(agent["rx"]) - 0.01), y) for side in (-1, 1)]
    return any(value in walls for value in feet) and (state.game != "coinrun" or agent["vy"] == 0)


def _cell(state: State, x: float, y: float) -> int:
    h, w = state.cells.shape
    inside = 0 <= x < w and 0 <= y < h
    return int(state.cells[int(y), int(x)]) if inside else int(state.view["out_of_bounds_object"])


def _free(state: State, x: float, y: float, words: str, solid: bool = False) -> None:
    """UserError where a place is outside or its cell is taken (solid: taken by a wall)."""
    h, w = state.cells.shape
    if not (0 <= x < w and 0 <= y < h):
        raise UserError(f"{words}: ({x:g}, {y:g}) is outside of a world of {w} by {h} cells")
    value = _cell(state, x, y)
    if value in (51, *SOLID.get(state.game, ())) if solid else value not in (SPACE, UNSEEN):
        raise UserError(f"{words}: the cell at ({int(x)}, {int(y)}) is taken")


def _redraw(state: State, cells: np.ndarray) -> None:
    """Draw walls and lava in and right below these cells, (x, y) int64 [n, 2], as what they are now: with more of
    their kind above, or uppermost."""
    kinds = [(WALLS[state.game], TOPS[state.game])] if state.game in TOPS else []
    kinds += [(LAVA, LAVA_TOP)] if state.game == "coinrun" else []
    for i, j in cells:
        for k in (j - 1, j):
            above = state.cells[k + 1, i] if k + 1 < len(state.cells) else SPACE
            for kind in kinds:
                if k >= 0 and state.cells[k, i] in kind and above in (*kind, SPACE):
                    state.cells[k, i] = kind[int(above == SPACE)]


def _ahead(state: State, n: float, up: float) -> tuple[float, float]:
    """The middle of the cell N before the agent and M above the one its feet are in."""
    agent = state.agent
    side = 1 if state.own["facing_right"] else -1
    foot = math.floor(float(agent["y"] - agent["ry"]) + 0.02)
    return math.floor(float(agent["x"])) + side * n + 0.5, foot + up + 0.5


def _copy(state: State, name: str, x: float, y: float, words: str) -> np.ndarray:
    """One more entity of a kind, ENTITY [1]: like the first that the level holds, else one that stands still."""
    index = state.of(name)
    if len(index):
        new = state.entities[index[:1]].copy()
        new["spawn_time"] = new["spawn_time"] if state.game == "dodgeball" else -1
    elif (state.game, name) in SIZES:
        new = np.zeros(1, ENTITY)
        kind = state.thing(name).entities[0]
        new["type"], new["image_type"] = kind, 6 if name == "monster" else kind
        new["rx"] = new["ry"] = SIZES[state.game, name]
        for field in ("alpha", "grow_rate", "alpha_decay", "friction", "health", "auto_erase"):
            new[field] = 1
        new["fire_time"] = new["spawn_time"] = new["expire_time"] = -1
        new["theta"] = -100
        if name == "monster":
            new["smart_step"] = new["render_z"] = 1
            new["vx"] = 0.15
    else:
        raise UserError(f"{words}: this level holds no {name} to make another one like")
    new["x"], new["y"] = x, y
    if state.game == "climber":
        new["climber_spawn_x"] = x
    return new


def _recount(state: State) -> None:
    """What the game counts only when its level begins, or a step late.  Of coins and orbs that end a level when all are
    collected one is left to be collected, so that no level ends because the last of them was taken out of it."""
    own = state.own
    if state.game == "dodgeball":
        own["num_enemies"] = len(state.of("enemy"))
    elif state.game == "miner":
        own["diamonds_remaining"] = len(state.cells_of("diamond"))
    elif state.game == "chaser":
        own["total_enemies"] = len(state.of("enemy")) + len(state.of("egg"))
        own["total_orbs"] = own["orbs_collected"] + max(len(state.cells_of("orb")), 1)
    elif state.game == "climber":
        own["coin_quota"] = own["coins_collected"] + max(len(state.of("coin")), 1)
