"""Craftax behind the VecEnv contract (Matthews et al. 2024, arXiv:2402.16801): survival in a world of blocks.

JAX runs inside this file and nowhere else.  What makes Craftax a fine world for questions about memory: four
*intrinsics* (health, food, drink, energy) decide over life and death, and by default they are not in the observation
(``mask_intrinsics``), so that an agent knows them only if it remembers what it did and what befell it.

Every label is ``truth`` of the same state as the observation beside it.  Rewards are made of the changes of the state;
Craftax's own, which mixes achievements with a tenth of the change of health, is never used.

An episode is told by one key: its world and the chance of each of its steps are drawn from it, and so is the key of the
slot's next episode.  So a snapshot holds all that will ever happen in a slot.  To generate a world takes as long as
several steps, so worlds of episodes to come lie ready (spare), made several at once.

Axes: B slots, K worlds generated together, N numbers.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from core.config import from_json, nearest
from core.contracts import EnvSpec, Field, Step, UserError

MOST_WORLDS = 16  # generated together
NEXT_EPISODE, ITS_WORLD = 2**32 - 1, 2**32 - 2  # what is drawn from an episode's key, beside its steps
NEVER = 2**30  # steps
INTRINSICS = ("health", "food", "drink", "energy")
COUNTERS = ("recover", "hunger", "thirst", "fatigue")  # that decide when an intrinsic falls or rises
DIRECTIONS = ("left", "right", "up", "down")  # the categories of truth ``direction``, 0 to 3
CLASSES = ("direction",)  # labels that are names and not numbers
CLASSIC_ACTIONS = (
    "noop", "left", "right", "up", "down", "do", "sleep", "place_stone", "place_table", "place_furnace", "place_plant",
    "make_wood_pickaxe", "make_stone_pickaxe", "make_iron_pickaxe", "make_wood_sword", "make_stone_sword",
    "make_iron_sword",
)  # fmt: skip
FULL_ACTIONS = (
    *CLASSIC_ACTIONS, "rest", "descend", "ascend", "make_diamond_pickaxe", "make_diamond_sword", "make_iron_armour",
    "make_diamond_armour", "shoot_arrow", "make_arrow", "cast_fireball", "cast_iceball", "place_torch",
    "drink_potion_red", "drink_potion_green", "drink_potion_blue", "drink_potion_pink", "drink_potion_cyan",
    "drink_potion_yellow", "read_book", "enchant_sword", "enchant_armour", "make_torch", "level_up_dexterity",
    "level_up_strength", "level_up_intelligence", "enchant_bow",
)  # fmt: skip


@dataclass(frozen=True)
class Game:
    """One of Craftax's games: what its observation vector holds, in order, and which of its state's attributes are
    labels by other names than their own."""

    cells: int  # of the map in view
    channels: Mapping[str, int]  # of a cell
    rest: Mapping[str, int]  # numbers after the map
    actions: tuple[str, ...]
    labels: Mapping[str, str]  # name: attribute of EnvState
    arrays: Mapping[str, str]  # the same of attributes that are several numbers
    mobs: tuple[str, ...]
    one_hot: tuple[str, ...]  # fields that are categories; in the full game a block in the dark is none
    view: tuple[int, int]  # rows and columns of cells that a picture shows, the inventory's among them
    tile: int = 0  # pixels along a side of a cell of the picture that is seen in place of the vector; 0: the vector is

    def fields(self) -> dict[str, Field]:
        """Of the observation, nothing masked."""
        out = {}
        for name, size in self.channels.items():
            hot = name in self.one_hot
            groups = (size,) * self.cells if hot else ()
            kind: Any = "one_hot" if hot else "binary"
            out[name] = Field(shape=(self.cells * size,), dtype="bool", kind=kind, groups=groups)
        for name, size in self.rest.items():
            if name in ("direction", "sleeping"):
                kind = "one_hot" if name == "direction" else "binary"
                out[name] = Field(shape=(size,), dtype="bool", kind=kind)
            else:
                out[name] = Field(shape=(size,), dtype="float32", kind="real")
        if self.tile:
            out["frames"] = Field(shape=(*(n * self.tile for n in self.view), 3), dtype="uint8", kind="image")
        out["previous_action"] = Field(shape=(len(self.actions),), dtype="bool", kind="one_hot")
        return out

    def packed(self) -> dict[str, dict[str, int]]:
        """{type: {field: how many numbers}} of the vectors, in the order in which Packed holds them."""
        every = self.fields()
        return {t: {k: f.size for k, f in every.items() if f.dtype == t} for t in ("bool", "float32")}


OWN_LABELS = {name: f"player_{name}" for name in (*INTRINSICS, *COUNTERS)} | {
    name: name for name in ("timestep", "is_sleeping", "light_level")
}
SYMBOLIC = {
    "Craftax-Classic-Symbolic-v1": Game(
        cells=7 * 9,
        channels={"blocks": 17, "mobs": 4},
        rest={"inventory": 12, "intrinsics": 4, "direction": 4, "light": 1, "sleeping": 1},
        actions=CLASSIC_ACTIONS,
        labels=OWN_LABELS,
        arrays={},
        mobs=("zombies", "cows", "skeletons", "arrows"),
        one_hot=("blocks",),
        view=(7 + 2, 9),
    ),
    "Craftax-Symbolic-v1": Game(
        cells=9 * 11,
        channels={"blocks": 37, "items": 5, "mobs": 40, "lit": 1},
        rest={
            "inventory": 16, "potions": 6, "intrinsics": 4, "attributes": 5, "direction": 4, "armour": 8, "light": 1,
            "sleeping": 1, "status": 6,
        },
        actions=FULL_ACTIONS,
        labels=OWN_LABELS | {
            "floor": "player_level", "experience": "player_xp", "is_resting": "is_resting",
            "boss_progress": "boss_progress", "sword_enchantment": "sword_enchantment",
            "bow_enchantment": "bow_enchantment",
            **{name: f"player_{name}" for name in ("mana", "recover_mana", "dexterity", "strength", "intelligence")},
        },
        arrays={"armour_enchantment": "armour_enchantments", "spell": "learned_spells"},
        mobs=("melee_mobs", "passive_mobs", "ranged_mobs", "mob_projectiles"),
        one_hot=(),
        view=(9 + 4, 11),
    ),
}  # fmt: skip
GAMES = SYMBOLIC | {
    name.replace("Symbolic", "Pixels"): replace(game, channels={}, rest={}, one_hot=(), tile=tile)
    for (name, game), tile in zip(SYMBOLIC.items(), (7, 10), strict=True)
}


@dataclass(frozen=True, kw_only=True)
class CraftaxOptions:
    """Which Craftax world."""

    env_name: str = "Craftax-Classic-Symbolic-v1"
    """Craftax-Classic-Symbolic-v1, Craftax-Symbolic-v1, and with pictures in place of vectors Craftax-Classic-Pixels-v1
    (63 x 63 pixels) and Craftax-Pixels-v1 (130 x 110)"""
    mask_intrinsics: bool = True
    """health, food, drink and energy are not in the observation (--no-mask_intrinsics: the control that sees them)"""
    mask_sleeping: bool = False
    """nor is whether the player sleeps (a picture shows it awake)"""
    previous_action: bool = False
    """the observation holds the action before (one-hot; noop at an episode's start)"""
    reward_hp_coef: float = 0.1
    """reward for each point of health gained, and loss for each point lost"""
    reward_ach_coef: float = 1.0
    """reward for each achievement that is new in the episode"""
    reward_needs_coef: float = 0.0
    """reward for each point of food, drink and energy gained, and loss for each point lost (homeostatic reward)"""
    scarcity: int = 1
    """hunger, thirst and fatigue grow this many times as fast, and cows (the full game: animals) appear with one
    scarcity-th of the chance"""


def spec_of(options: CraftaxOptions, slots: int) -> EnvSpec:
    """The spec of a world, without JAX.  Raises UserError."""
    name = options.env_name
    if name not in GAMES:
        raise UserError(f"no Craftax world {name!r}{nearest(name, GAMES)}; there are: {', '.join(GAMES)}")
    if options.scarcity < 1:
        raise UserError(f"--scarcity must be at least 1, not {options.scarcity}")
    game = GAMES[name]
    left_out = {
        "intrinsics": options.mask_intrinsics,
        "sleeping": options.mask_sleeping,
        "previous_action": not options.previous_action,
    }
    obs = {field: about for field, about in game.fields().items() if not left_out.get(field)}
    return EnvSpec(
        env_id=f"craftax/{name}",
        obs=obs,
        action_names=game.actions,
        slots=slots,
        options={k: v for k, v in asdict(options).items() if k != "env_name"},
        can_snapshot=True,
        **words_of(name),
    )


def words_of(name: str) -> dict[str, Any]:
    """What an EnvSpec says of a game's actions and events."""
    words = {"placing": "place_", "making": "make_"}
    starting = {word: tuple(a for a in GAMES[name].actions if a.startswith(first)) for word, first in words.items()}
    # Who dies may be paid in that very step; the full game ends with the last boss, too, which pays.
    death = "ended and not truncated" + ("" if "Classic" in name else " and reward <= 0")
    events = {"death": death, "reward": "reward > 0"}
    return {"action_words": {"moving": DIRECTIONS, **starting}, "events": events}


def options_of(spec: EnvSpec) -> CraftaxOptions:
    """The options that make the world of a spec again."""
    return from_json(CraftaxOptions, {**spec.options, "env_name": spec.env_id.partition("/")[2]}, "options")


def _unseen(options: CraftaxOptions) -> tuple[str, ...]:
    """Attributes of the state that a picture does not show (of a vector, fields are left out)."""
    if not GAMES[options.env_name].tile:
        return ()
    needs = tuple(f"player_{name}" for name in INTRINSICS)
    return needs * options.mask_intrinsics + ("is_sleeping",) * options.mask_sleeping


# What JAX compiles


class Carry(NamedTuple):
    """A slot between two steps."""

    state: Any  # Craftax's EnvState
    key: Any  # uint32 [2], of the episode; its lowest bit is the split's
    previous: Any  # int32, the action before


class Packed(NamedTuple):
    """What is seen and what is so, [B, N] each; numbers of one type together, so that few arrays leave JAX."""

    binary: Any  # bool, observation
    real: Any  # float32, observation
    frames: Any  # uint8, [B, rows, columns, 3], or [B, 0] where no picture is seen
    flags: Any  # bool, labels
    whole: Any  # int32, labels
    broken: Any  # float32, labels


class Rules:
    """A game's rules as functions of one slot, which JAX traces."""

    def __init__(self, env_name: str, scarcity: int, unseen: tuple[str, ...]) -> None:
        self.jax, self.jnp, make = _import()
        self.game, self.unseen = GAMES[env_name], unseen
        self.env = make(env_name.replace("Pixels", "Symbolic"), auto_reset=False)  # the same but for what is seen
        module: Any = sys.modules[type(self.env).__module__]
        self.draw = _renderer(module, self.game.tile) if self.game.tile else None
        self.achievements = [a.name.lower() for a in module.Achievement]
        self.step, self.params = module.craftax_step, self.env.default_params
        if scarcity > 1:
            self._make_scarce(scarcity)

    def _make_scarce(self, scarcity: int) -> None:
        """Needs grow faster and animals are rarer."""
        jnp, scope = self.jnp, self.step.__globals__
        normal = scope["update_player_intrinsics"]

        def hurried(state: Any, action: Any, *rest: Any) -> Any:
            """Hunger, thirst and fatigue first grow ``scarcity`` - 1 times, then once more as they always do."""
            awake = ~normal(state, action, *rest).is_sleeping  # as it is once this action has been done
            dexterity = getattr(state, "player_dexterity", 1)  # slows them in the full game
            more = (scarcity - 1) * (1.0 - 0.125 * (dexterity - 1))
            state = state.replace(
                player_hunger=state.player_hunger + jnp.where(awake, more, more / 2),
                player_thirst=state.player_thirst + jnp.where(awake, more, more / 2),
                player_fatigue=state.player_fatigue + jnp.where(awake, more, 0.0),
            )
            return normal(state, action, *rest)

        changed = {"update_player_intrinsics": hurried}
        if hasattr(self.params, "spawn_cow_chance"):
            self.params = self.params.replace(spawn_cow_chance=self.params.spawn_cow_chance / scarcity)
        else:
            chances = scope["FLOOR_MOB_SPAWN_CHANCE"]  # [floor, (animals, melee, ranged, melee at night)]
            rarer = chances.at[:, 0].divide(scarcity)
            changed["spawn_mobs"] = _with(scope["spawn_mobs"], FLOOR_MOB_SPAWN_CHANCE=rarer)
        self.step = _with(self.step, **changed)

    def begin(self, before: Any) -> Carry:
        """The first state of the episode after the one with this key."""
        jax, jnp = self.jax, self.jnp
        key = jax.random.fold_in(before, NEXT_EPISODE)
        key = key.at[0].set((key[0] & ~jnp.uint32(1)) | (before[0] & 1))  # of the same split
        _, state = self.env.reset_env(jax.random.fold_in(key, ITS_WORLD), self.params)
        # Without JAX's weak types, which a fresh state has and a later one has not: the second step would compile
        # everything again.
        strong = jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.asarray(x).dtype), state)
        return Carry(strong, key, jnp.zeros((), jnp.int32))

    def advance(self, carry: Carry, action: Any) -> tuple[Carry, Any, Any]:
        """(what follows, changes of health, achievements and other needs, whether the episode ended and was cut)."""
        jax, jnp, was = self.jax, self.jnp, carry.state
        chance = jax.random.fold_in(carry.key, was.timestep)
        now, _ = self.step(chance, was, action, self.params, self.env.static_env_params)
        needs = sum(getattr(now, f"player_{x}") - getattr(was, f"player_{x}") for x in INTRINSICS[1:])
        new = now.achievements.sum() - was.achievements.sum()
        over = self.env.is_terminal(now, self.params.replace(max_timesteps=NEVER))
        cut = ~over & (now.timestep >= self.params.max_timesteps)
        now = jax.tree.map(lambda x, like: jnp.asarray(x).astype(like.dtype), now, was)
        changes = [x.astype(jnp.float32) for x in (now.player_health - was.player_health, new, needs)]
        return Carry(now, carry.key, action.astype(jnp.int32)), jnp.stack(changes), jnp.stack([over, cut])

    def look(self, carry: Carry) -> Packed:
        """What is seen of a state, nothing masked, and what is so."""
        jnp, game = self.jnp, self.game
        parts = {"previous_action": jnp.arange(len(game.actions)) == carry.previous}
        if game.channels:
            flat = self.env.get_obs(carry.state)
            area = flat[: game.cells * sum(game.channels.values())].reshape(game.cells, -1)
            for numbers, sizes in ((area, game.channels), (flat[area.size :], game.rest)):
                at = 0
                for name, size in sizes.items():
                    parts[name], at = numbers[..., at : at + size].reshape(-1), at + size
        none = jnp.zeros(0)
        binary, real = (jnp.concatenate([none, *(parts[x] for x in names)]) for names in game.packed().values())
        frames = none if self.draw is None else self.draw(self._as_seen(carry.state)).round().clip(0, 255)
        truth = self.labels(carry.state)
        kinds = [[x for x in truth.values() if x.dtype.kind == kind] for kind in "bif"]
        return Packed(binary > 0.5, real.astype(jnp.float32), frames.astype(jnp.uint8), *map(jnp.stack, kinds))

    def _as_seen(self, state: Any) -> Any:
        """The state with what is not to be seen at 0, so that no pixel tells it."""
        return state.replace(**{name: self.jnp.zeros_like(getattr(state, name)) for name in self.unseen})

    def labels(self, state: Any) -> dict[str, Any]:
        """What is so in a state: single numbers, by name."""
        row, col = state.player_position
        out = {"row": row, "col": col, "direction": state.player_direction - 1}
        out |= {name: getattr(state, attribute) for name, attribute in self.game.labels.items()}
        items = {f"inventory_{f.name}": getattr(state.inventory, f.name) for f in fields(state.inventory)}
        arrays = {name: getattr(state, attribute) for name, attribute in self.game.arrays.items()}
        for name, x in (items | arrays).items():
            out |= {f"{name}_{i}": x[i] for i in range(len(x))} if self.jnp.ndim(x) else {name: x}
        for name in self.game.mobs:
            there, place = getattr(state, name).mask, getattr(state, name).position  # full game: [floor, mob ...]
            if there.ndim > 1:
                there, place = there[state.player_level], place[state.player_level]
            steps = abs(place - state.player_position).sum(-1)
            out[name] = there.sum()
            out[f"nearest_{name}"] = self.jnp.nanmin(self.jnp.where(there, steps, self.jnp.nan))
        out |= {f"achieved_{name}": state.achievements[i] for i, name in enumerate(self.achievements)}
        return {name: self.jnp.asarray(out[name]) for name in sorted(out)}  # the order in which JAX gives a dict back


@dataclass(frozen=True)
class Program:
    """The functions of a game compiled, for every number of slots anew."""

    begin: Callable[..., Carry]  # keys of the episodes before [K, 2] -> the first states of the next
    advance: Callable[..., tuple[Carry, Any, Any]]  # (carry, action [B]) -> carry, changes [B, 3], ended and cut [B, 2]
    look: Callable[..., Packed]
    put: Callable[..., Carry]  # (carry, rows [K], other carry [K]) -> carry; row B is nowhere
    swap: Callable[..., Carry]  # (carry, other carry, mask [B]) -> carry
    leaves: tuple[Any, ...]  # shape and type of every array of one slot's Carry
    tree: Any
    places: Mapping[tuple[str, ...], int]  # which of them, by the names that lead to it
    labels: tuple[tuple[str, ...], ...]  # names of the flags, whole and broken numbers of Packed

    @property
    def record(self) -> np.dtype[Any]:
        """One slot's Carry as a record: what a snapshot is the bytes of."""
        return np.dtype([(f"leaf_{i}", leaf.dtype, leaf.shape) for i, leaf in enumerate(self.leaves)])


@functools.cache
def program_of(env_name: str, scarcity: int, unseen: tuple[str, ...]) -> Program:
    """The compiled functions, shared by all worlds of a game; none is compiled before it is called.

    unseen: attributes of the state that its picture does not show.
    """
    rules = Rules(env_name, scarcity, unseen)
    jax, jnp = rules.jax, rules.jnp

    def put(carry: Carry, rows: Any, new: Carry) -> Any:
        return jax.tree.map(lambda x, y: x.at[rows].set(y, mode="drop"), carry, new)

    def swap(carry: Carry, new: Carry, mask: Any) -> Any:
        return jax.tree.map(lambda x, y: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), y, x), carry, new)

    first = jax.eval_shape(rules.begin, jax.ShapeDtypeStruct((2,), jnp.uint32))
    leaves, tree = jax.tree.flatten(first)
    paths, _ = jax.tree_util.tree_flatten_with_path(first)
    about = jax.eval_shape(rules.labels, first.state)
    return Program(
        begin=jax.jit(jax.vmap(rules.begin)),
        advance=jax.jit(jax.vmap(rules.advance), donate_argnums=0),
        look=jax.jit(jax.vmap(rules.look)),
        put=jax.jit(put, donate_argnums=0),
        swap=jax.jit(swap, donate_argnums=0),
        leaves=tuple(leaves),
        tree=tree,
        places={tuple(key.name for key in path): i for i, (path, _) in enumerate(paths)},
        labels=tuple(tuple(name for name, x in about.items() if x.dtype.kind == kind) for kind in "bif"),
    )


def _import() -> tuple[Any, Any, Any]:
    """(jax, jax.numpy, what makes a Craftax environment)."""
    try:
        import jax
        import jax.numpy as jnp
        from craftax.craftax_env import make_craftax_env_from_name
    except ImportError as error:
        raise UserError(
            f"Craftax needs the packages craftax, jax and flax ({error}): pip install --no-deps -r requirements.lock"
        ) from None
    return jax, jnp, make_craftax_env_from_name


def _renderer(module: Any, tile: int) -> Callable[[Any], Any]:
    """Draws a state as float numbers [rows, columns, 3], 0 to 255, with cells of so many pixels.

    Craftax's own reads textures of three sizes from a pickle, and writes one beside its code where there is none; here
    they are made of its pictures, in this size alone, which takes seconds.
    """
    renderer = importlib.import_module(f"{module.__name__.rpartition('.envs.')[0]}.renderer")
    make = renderer.make_craftax_pixel_renderer
    textures = {tile: renderer.load_all_textures_given_size(tile)}
    draw: Callable[[Any], Any] = _with(make, load_all_textures=lambda: textures)(tile)
    return draw


def _with(function: Any, **names: Any) -> Any:
    """The function as it would be if its module had these names otherwise."""
    scope = {**function.__globals__, **names}
    return types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)


# The batch


class CraftaxEnv:
    """``slots`` worlds of one game.  Observations: the fields of ``spec_of``; truth: every label of ``Rules.labels``,
    bool, int64 or float32 [B]."""

    def __init__(self, options: CraftaxOptions, slots: int, split: Literal["train", "held_out"] = "train") -> None:
        self.spec = spec_of(options, slots)
        self.options = options
        self._odd = split == "held_out"
        self._fields = GAMES[options.env_name].packed()
        self._program = program_of(options.env_name, options.scarcity, _unseen(options))
        self._carry: Carry | None = None
        self._spare: Carry | None = None  # the first state of every slot's next episode, and what it shows,
        self._spare_shown: Packed | None = None
        self._ready = np.zeros(slots, bool)  # where it is one

    def reset(self, seed: int) -> Step:
        slots = self.spec.slots
        keys = np.stack([np.random.SeedSequence([seed, b]).generate_state(2, np.uint32) for b in range(slots)])
        keys[:, 0] = keys[:, 0] // 2 * 2 + self._odd
        self._ready[:] = False
        self._fill(keys, np.arange(slots))
        self._carry = self._program.swap(self._blank(), self._spare, np.ones(slots, bool))
        self._ready[:] = False
        return self._show_unmoved()

    def step(self, action: np.ndarray) -> Step:
        if self._carry is None:
            raise ValueError("reset or restore the world before stepping it")
        action = np.asarray(action)
        if action.shape != (self.spec.slots,) or (action < 0).any() or (action >= self.spec.n_actions).any():
            raise ValueError(f"actions are {self.spec.slots} numbers from 0 to {self.spec.n_actions - 1}: {action!r}")
        carry, changes, ended = self._program.advance(self._carry, action.astype(np.int32))
        shown = last = self._look(carry)
        terminated, truncated = np.array(ended).T
        done = terminated | truncated
        if done.any():
            carry, shown = self._begun(carry, last, done)
        self._carry = carry
        coefs = [self.options.reward_hp_coef, self.options.reward_ach_coef, self.options.reward_needs_coef]
        obs, truth = self._named(shown)
        final_obs, final_truth = self._named(last)
        return Step(
            obs=obs, reward=(np.array(changes) * np.array(coefs, np.float32)).sum(1), terminated=terminated.copy(),
            truncated=truncated.copy(), is_first=truth["timestep"] == 0, final_obs=final_obs, truth=truth,
            final_truth=final_truth,
        )  # fmt: skip

    def _begun(self, carry: Carry, last: Packed, done: np.ndarray) -> tuple[Carry, Packed]:
        """The same with a new episode in the slots that are done."""
        self._fill(np.array(carry.key), np.flatnonzero(done & ~self._ready))
        self._ready[done] = False
        assert self._spare_shown is not None
        pairs = zip(last, self._spare_shown, strict=True)
        shown = Packed(*(np.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old) for old, new in pairs))
        return self._program.swap(carry, self._spare, done), shown

    def _fill(self, keys: np.ndarray, wanted: np.ndarray) -> None:
        """Have the next episodes of these slots ready, and of others as far as they are made with them."""
        if not len(wanted):
            return
        slots = self.spec.slots
        together = min(slots, MOST_WORLDS)
        others = np.setdiff1d(np.flatnonzero(~self._ready), wanted)
        calls = -(-len(wanted) // together)
        rows = np.concatenate([wanted, others])[: calls * together]
        rows = np.pad(rows, (0, calls * together - len(rows)), constant_values=slots)  # row B is nowhere
        for some in rows.reshape(calls, together):
            new = self._program.begin(keys[np.minimum(some, slots - 1)])
            self._spare = self._program.put(self._blank() if self._spare is None else self._spare, some, new)
        self._ready[rows[rows < slots]] = True
        self._spare_shown = self._look(self._spare)

    def _blank(self) -> Any:
        """A Carry of zeros."""
        import jax

        leaves = [np.zeros((self.spec.slots, *leaf.shape), leaf.dtype) for leaf in self._program.leaves]
        return jax.tree.unflatten(self._program.tree, jax.device_put(leaves))

    def _look(self, carry: Carry | None) -> Packed:
        """As arrays of our own."""
        return Packed(*(np.array(x) for x in self._program.look(carry)))

    def _named(self, shown: Packed) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Observation and truth."""
        every = {"frames": shown.frames}
        for sizes, numbers in zip(self._fields.values(), shown[:2], strict=True):
            at = 0
            for name, size in sizes.items():
                every[name], at = numbers[:, at : at + size], at + size
        numbers_of = zip(self._program.labels, (shown.flags, shown.whole.astype(np.int64), shown.broken), strict=True)
        truth = {name: numbers[:, i] for names, numbers in numbers_of for i, name in enumerate(names)}
        return {name: every[name] for name in self.spec.obs}, truth

    def _show_unmoved(self) -> Step:
        obs, truth = self._named(self._look(self._carry))
        return Step.unmoved(obs, truth["timestep"] == 0, truth)

    def snapshot(self) -> tuple[bytes, ...]:
        if self._carry is None:
            raise ValueError("reset or restore the world before taking a snapshot")
        import jax

        records = np.empty(self.spec.slots, self._program.record)
        for name, leaf in zip(self._program.record.names or (), jax.tree.leaves(self._carry), strict=True):
            records[name] = np.asarray(leaf)
        return tuple(row.tobytes() for row in records)

    def restore(self, states: Sequence[bytes]) -> Step:
        """Works before a reset too.  A restored slot goes on to the episodes that the snapshot's own would have had."""
        if len(states) != self.spec.slots:
            raise ValueError(f"{len(states)} states for {self.spec.slots} slots")
        import jax

        record = self._program.record
        if any(len(state) != record.itemsize for state in states):
            raise ValueError(f"a state of {self.spec.env_id} has {record.itemsize} bytes; these are of another world")
        records = np.frombuffer(b"".join(states), record)
        leaves = [np.ascontiguousarray(records[name]) for name in record.names or ()]
        self._carry = jax.tree.unflatten(self._program.tree, jax.device_put(leaves))
        self._ready[:] = False
        return self._show_unmoved()

    def _most(self, need: str, records: np.ndarray) -> int:
        """The most that a need can be in every one of the states: 9, and in the full game by what the player has
        trained."""
        places, (base, each) = self._program.places, (8, 1) if need == "health" else (7, 2)
        trained = ("state", "player_strength" if need == "health" else "player_dexterity")
        return base + each * (int(records[f"leaf_{places[trained]}"].min()) if trained in places else 1)

    def edited(self, states: Sequence[bytes], name: str, value: float) -> tuple[bytes, ...]:
        """Snapshots in which a need, a counter, another number of the player or a number of things it carries is
        another (core.contracts.Editable)."""
        game, places = GAMES[self.options.env_name], self._program.places
        own = {label: ("state", attribute) for label, attribute in game.labels.items()}
        carried = {f"inventory_{path[-1]}": path for path in places if path[:2] == ("state", "inventory")}
        can = {k: path for k, path in (own | carried).items() if path in places}
        can = {k: path for k, path in can.items() if self._program.leaves[places[path]].shape == ()}
        if name not in can:
            raise UserError(f"{self.spec.env_id}: {name} cannot be set; what can: {', '.join(sorted(can))}")
        leaf = places[can[name]]
        kind = self._program.leaves[leaf].dtype.kind
        if kind == "b" and value not in (0, 1):
            raise UserError(f"{self.spec.env_id}: {name} is 0 or 1, not {value:g}")
        if kind in "iu" and value != int(value):
            raise UserError(f"{self.spec.env_id}: {name} is a whole number, not {value:g}")
        if kind in "iu" and not (bounds := np.iinfo(self._program.leaves[leaf].dtype)).min <= value <= bounds.max:
            raise UserError(f"{self.spec.env_id}: {name} lies between {bounds.min} and {bounds.max}, not at {value:g}")
        records = np.frombuffer(b"".join(states), self._program.record).copy()
        if name in INTRINSICS:
            most = self._most(name, records)
            if not 0 <= value <= most:
                raise UserError(
                    f"{self.spec.env_id}: {name} lies between 0 and {most} at these states, not at {value:g}"
                )
        records[f"leaf_{leaf}"] = value
        return tuple(row.tobytes() for row in records)

    def close(self) -> None:
        self._carry = self._spare = self._spare_shown = None
