"""Neural MMO 2 behind the VecEnv contract, through PufferLib's emulation (Suarez et al. 2023, arXiv:2311.03736).

Slots are worlds x agents: slot ``w * players + i`` is agent ``i + 1`` of world ``w``.  Known traps, met here: nmmo
reuses its observation arrays (PufferLib's buffer is a copy, and ours a copy of that); an agent's own row is not the
first of the entities (here it is); terrain depends on the map's number, not on the seed (hold out numbers); the
event log's index by tick is stale after a reset (it is queried anew); the paths that NPCs have found outlive the map
that they lead over (forgotten at every reset, or a game would depend on those before it).
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from core.contracts import EnvSpec, Field, Step, UserError
from core.files import npy_of, read_bytes
from envs.nmmo_tasks import embeddings, specs, tasks_of

FEATURES = (
    "n_visible_entities", "n_visible_npcs", "n_visible_players", "self_health", "self_food", "self_water", "self_gold",
    "max_combat_level", "in_combat", "n_inventory_items", "tick", "is_moving", "is_attacking", "is_trading",
)  # fmt: skip
ENTITY = (
    "id", "npc_type", "row", "col", "damage", "time_alive", "freeze", "item_level", "attacker_id",
    "latest_combat_tick", "message", "gold", "health", "food", "water",
    "melee_level", "melee_exp", "range_level", "range_exp", "mage_level", "mage_exp", "fishing_level", "fishing_exp",
    "herbalism_level", "herbalism_exp", "prospecting_level", "prospecting_exp", "carving_level", "carving_exp",
    "alchemy_level", "alchemy_exp",
)  # fmt: skip
COLUMN = {name: i for i, name in enumerate(ENTITY)}
MATERIALS = (
    "void", "water", "grass", "scrub", "foliage", "stone", "slag", "ore", "stump", "tree", "fragment", "crystal",
    "weeds", "herb", "ocean", "fish",
)  # fmt: skip
OWN_TILE = 112  # the row of Tile where the agent itself is
CLASSES = ("tile",)  # labels that are names and not numbers
MOVES = ("north", "south", "east", "west", "stay")
STYLES = ("melee", "range", "mage")
GIVING = ("Give.InventoryItem", "GiveGold.Target")
EAT_FOOD, DRINK_WATER = 1, 2  # nmmo.lib.event_code
COMBAT_TICKS = 10  # this long after a blow an agent counts as fighting (the game's own status lasts 3)
HELD_OUT_MAPS = 16  # the last ones of a pool; no training uses them
MAPS = Path("runs/nmmo_maps")


@dataclass(frozen=True, kw_only=True)
class NmmoOptions:
    """Which Neural MMO world."""

    map_size: Literal["small", "medium"] = "small"
    """nmmo's Small (64 x 64 tiles, half of them border) or Medium (160 x 160) map"""
    systems: Literal["all", "core"] = "all"
    """all game systems but communication, or only terrain, food and water, combat and NPCs"""
    players: int = 32
    """agents in a world"""
    npcs: int = 32
    """NPCs in a world"""
    horizon: int = 128
    """ticks after which a world begins again"""
    entities_seen: int = 32
    """rows of the entity table, the own one among them: the nearest are kept"""
    market_seen: int = 32
    """rows of the market table: the first are kept"""
    map_pool: int = 64
    """maps that are generated, once; the last 16 are held out"""
    first_map: int = 1
    """number of the first map in use"""
    num_maps: int = 48
    """how many maps are in use, from the first on"""


def held_out(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that choose the maps no training uses."""
    return {"first_map": int(options["map_pool"]) - HELD_OUT_MAPS + 1, "num_maps": HELD_OUT_MAPS}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """gym, which pufferlib and procgen bring, prints a notice at import; pufferlib and nmmo warn of the deprecated."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _nmmo_config(options: NmmoOptions, folder: Path) -> Any:
    """nmmo's configuration object; UserError if nmmo is not installed."""
    try:
        with _quiet():
            import nmmo
    except ImportError as error:
        raise UserError(f"Neural MMO does not import ({error}); install the lock file (make venv)") from None
    kinds = nmmo.config
    base = {"small": kinds.Small, "medium": kinds.Medium}[options.map_size]
    core = (kinds.Terrain, kinds.Resource, kinds.Combat, kinds.NPC)
    more = (kinds.Progression, kinds.Item, kinds.Equipment, kinds.Profession, kinds.Exchange)
    config = type("World", (base, *core, *(more if options.systems == "all" else ())), {})()
    settings = {
        "PLAYER_N": options.players,
        "NPC_N": options.npcs,
        "HORIZON": options.horizon,
        "PLAYER_N_OBS": options.players + options.npcs,  # more than are in view would be an IndexError
        "TASK_EMBED_DIM": embeddings(tasks_of(options.horizon, options.systems)).shape[1],
        "MAP_N": options.map_pool,
        "MAP_FORCE_GENERATION": False,
        "PATH_MAPS": str(folder.resolve()),
    }
    for name, value in settings.items():
        config.set(name, value)
    return config


def map_folder(options: NmmoOptions, maps: Path) -> Path:
    """Where the pool of maps of these options lies under ``maps``: everything that shapes them is in the name."""
    return maps / f"{options.map_size}_{options.systems}_{options.map_pool}"


def ready_maps(options: NmmoOptions, maps: Path, generate: bool = True) -> Path:
    """The folder with the pool of maps, generated now if it is not there; the same maps on every machine.

    Raises UserError where maps are missing and ``generate`` is off, or the folder cannot be written.
    """
    folder = map_folder(options, maps)
    begun = folder.exists()  # asked first: another process may make them now
    missing = [i for i in range(1, options.map_pool + 1) if not (folder / f"map{i}" / "map.npy").exists()]
    if not missing:
        return folder
    if not generate:
        raise UserError(f"{folder} has no map {missing[0]}: allow their generation, or choose another --maps")
    if begun:
        raise UserError(f"{folder} is incomplete (no map {missing[0]}); delete it, and it is generated again")
    try:
        maps.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(dir=maps, prefix=".half_"))
    except OSError as error:
        raise UserError(f"--maps {maps} cannot be written ({error.strerror}); choose another directory") from None
    try:
        made = half / folder.name  # with the rights that a directory has, not those of a temporary one
        made.mkdir()
        config = _nmmo_config(options, made)
        with _quiet():
            config.MAP_GENERATOR(config).generate_all_maps(0)
        with contextlib.suppress(OSError):  # another process was faster: its maps are the same
            os.rename(made, folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return folder


# (agents, the last world's tasks int64 [A], their progress float32 [A]) -> tasks of a new world, int64 [agents]
DrawTasks = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


class _World:
    """One nmmo world as a PettingZoo parallel environment with flat (MultiDiscrete) actions, for PufferLib.

    A reset's seed decides everything: the map, the tasks and the game's own randomness.
    """

    metadata: dict[str, Any] = {}

    def __init__(self, options: NmmoOptions, folder: Path, draw_tasks: DrawTasks | None) -> None:
        from gymnasium.spaces import MultiDiscrete

        config = _nmmo_config(options, folder)
        with _quiet():
            import nmmo

            self.env = nmmo.Env(config)
        self.options, self.draw_tasks = options, draw_tasks
        self.tasks = tasks_of(options.horizon, options.systems)
        self.specs = specs(self.tasks)
        space = self.env.action_space(1)
        self.parts = [(atn, arg) for atn in sorted(space) for arg in sorted(space[atn])]
        self.sizes = [int(space[atn][arg].n) for atn, arg in self.parts]
        self._space = MultiDiscrete(self.sizes)
        # An action whose item, target or listing is the last choice does nothing: nmmo need not look at it.
        self._plan: list[tuple[str, list[tuple[str, int]], list[tuple[int, int]]]] = []
        for atn in sorted(space):
            mine = [(arg, i) for i, (a, arg) in enumerate(self.parts) if a == atn]
            idle = [(i, self.sizes[i] - 1) for arg, i in mine if arg not in ("Style", "Price", "Direction")]
            self._plan.append((atn, mine, idle))
        self._observation_space = self._shown_space()
        self.possible_agents = list(range(1, options.players + 1))
        self.map = 0
        self.task_A = np.zeros(0, np.int64)  # of no world yet
        self.counts: dict[str, np.ndarray] = {}
        self.progress_A = np.zeros(0, np.float32)
        self._known: set[tuple[int, ...]] = set()

    @property
    def agents(self) -> list[int]:
        return list(self.env.agents)

    def observation_space(self, agent: int) -> Any:
        return self._observation_space

    def _shown_space(self) -> Any:
        """nmmo's observation without what the slot's number and the tick tell, and with the market cut."""
        from gymnasium.spaces import Box, Dict

        fields = {k: v for k, v in self.env.observation_space(1).items() if k not in ("AgentId", "CurrentTick")}
        if "Market" in fields:
            full = fields["Market"]
            if self.options.market_seen > full.shape[0]:
                raise UserError(f"--market_seen {self.options.market_seen}: the market has only {full.shape[0]} rows")
            shape = (self.options.market_seen, full.shape[1])
            fields["Market"] = Box(low=-(2**15), high=2**15 - 1, shape=shape, dtype=full.dtype)
        return Dict(fields)

    def _shown(self, obs: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """The fields of ``_shown_space``; nothing is copied."""
        rows, fields = self.options.market_seen, list(self._observation_space)
        return {agent: {k: of[k][:rows] if k == "Market" else of[k] for k in fields} for agent, of in obs.items()}

    def action_space(self, agent: int) -> Any:
        return self._space

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        from nmmo.task.task_spec import make_task_from_spec

        rng = np.random.default_rng(seed)
        options = self.options
        self.map = options.first_map + int(rng.integers(options.num_maps))
        if self.draw_tasks is None:  # as equal numbers of every task as there can be, in random order
            count = len(self.specs)
            tasks = np.arange(count) if options.players >= count else rng.permutation(count)
            self.task_A = rng.permutation(tasks[np.arange(options.players) % count])
        else:
            self.task_A = self.draw_tasks(options.players, self.task_A, self.progress_A)
        self._known = set()
        chosen = [self.specs[t] for t in self.task_A]
        self.env.realm.map.pathfinding_cache.clear()
        obs, _ = self.env.reset(
            seed=seed % 2**31,
            map_id=self.map,
            make_task_fn=lambda: make_task_from_spec(self.possible_agents, chosen),
        )
        self._count()
        self.progress_A = np.zeros(options.players, np.float32)
        return self._shown(obs), {}

    def step(self, actions: Mapping[int, np.ndarray]) -> tuple[Any, ...]:
        nested: dict[int, dict[str, dict[str, int]]] = {}
        for agent, action in actions.items():
            value = action.tolist()
            mine = nested[agent] = {}
            for atn, args, idle in self._plan:
                for i, last in idle:
                    if value[i] == last:
                        break
                else:
                    mine[atn] = {arg: value[i] for arg, i in args}
        obs, reward, terminated, truncated, infos = self.env.step(nested)
        self._count()
        for agent in infos:
            self.progress_A[agent - 1] = self.env.agent_task_map[agent][0].progress
        return self._shown(obs), reward, terminated, truncated, {}

    def _count(self) -> None:
        """What happened to each agent in this tick, by nmmo's event log."""
        from nmmo.lib.event_log import EventAttr, EventState

        n = self.options.players
        self.counts = {name: np.zeros(n, np.int16) for name in ("ate", "drank", "unique_events")}
        realm = self.env.realm
        rows = EventState.Query.by_tick(realm.datastore, realm.tick)
        wanted = [EventAttr[name] for name in ("ent_id", "event", "type", "level")]
        for who, event, kind, level in rows[:, wanted].tolist() if len(rows) else ():
            if who < 1:  # an NPC's
                continue
            if event == EAT_FOOD:
                self.counts["ate"][who - 1] += 1
            elif event == DRINK_WATER:
                self.counts["drank"][who - 1] += 1
            if (who, event, kind, level) not in self._known:
                self._known.add((who, event, kind, level))
                self.counts["unique_events"][who - 1] += 1

    def close(self) -> None:
        self.env.close()


class NmmoEnv:
    """``worlds`` worlds with ``options.players`` agents each, through PufferLib's Serial vectorisation.

    Observations of a slot: ``Tile`` int16 [225, 3] (row, column, material; the own tile is OWN_TILE), ``Entity`` int16
    [entities_seen, 31] (columns ENTITY; the own row first, the others by distance, then zeros), ``Task`` float16,
    ``Tick`` int16 [1], ``Mask`` int8 [A] (1: this choice is legal), and with all systems ``Inventory`` int16 [12, 16]
    and ``Market`` int16 [market_seen, 16].  An action is one index a part of ``spec.action_parts``; an illegal one does
    nothing.  Reward is the gain in task progress, -1 for death (nmmo's own).

    truth: ``world``, ``map``, ``agent``, ``tick``, ``task`` int64 [B]; ``progress`` float32 [B] (of the task, 0 to 1);
    ``position`` int16 [B, 2] (row, column); ``tile`` int16 [B] (the material there, an index of MATERIALS; of who is
    not there any more 0); ``visible`` int16 [B, 3] (others in view: all, NPCs, players, before the table was cut to the
    nearest); ``ate``, ``drank``, ``unique_events`` int16 [B] (in the tick that led here).
    final_truth, always there, belongs to the slots whose episode ended with this step.
    """

    def __init__(
        self,
        options: NmmoOptions,
        worlds: int,
        maps: Path = MAPS,
        *,
        generate_maps: bool = True,
        draw_tasks: DrawTasks | None = None,
        first_world: int = 0,
    ) -> None:
        """first_world: the number of the first of these among more worlds, of which a process has some: a world's games
        are drawn by its number."""
        _check(options, worlds)
        folder = ready_maps(options, Path(maps), generate_maps)
        with _quiet():
            import pufferlib.vector
            from pufferlib.emulation import PettingZooPufferEnv

            self._vec: Any = pufferlib.vector.make(
                lambda: PettingZooPufferEnv(env=_World(options, folder, draw_tasks)),
                backend=pufferlib.vector.Serial,
                num_envs=worlds,
            )
        self.options, self.folder = options, folder
        self.tasks = tasks_of(options.horizon, options.systems)  # truth's ``task`` numbers them
        self._worlds: list[_World] = [env.env for env in self._vec.envs]
        self._dtype = self._vec.driver_env.obs_dtype
        first = self._worlds[0]
        self._parts, raw_sizes = first.parts, first.sizes
        self._raw_entities = options.players + options.npcs
        cut = {"Target": options.entities_seen, "MarketItem": options.market_seen}
        sizes = [min(cut.get(arg, size), size - 1) + 1 if arg in cut else size
                 for (_, arg), size in zip(self._parts, raw_sizes, strict=True)]  # fmt: skip
        parts = {f"{atn}.{arg}": size for (atn, arg), size in zip(self._parts, sizes, strict=True)}
        self._raw_sizes, self._sizes = raw_sizes, sizes
        obs = {
            "Tile": Field(shape=(225, 3), dtype="int16"),
            "Entity": Field(shape=(min(options.entities_seen, self._raw_entities), len(ENTITY)), dtype="int16"),
            "Task": Field(shape=(embeddings(first.tasks).shape[1],), dtype="float16"),
            "Tick": Field(shape=(1,), dtype="int16"),
            "Mask": Field(shape=(sum(sizes),), dtype="int8"),
        }
        if options.systems == "all":
            obs["Inventory"] = Field(shape=self._dtype["Inventory"].shape, dtype="int16")
            obs["Market"] = Field(shape=(options.market_seen, self._dtype["Market"].shape[1]), dtype="int16")
        slots = worlds * options.players
        self.spec = EnvSpec(
            env_id="nmmo",
            obs=obs,
            action_names=tuple(f"{part} {_choice(part, i, size)}" for part, size in parts.items() for i in range(size)),
            action_parts=parts,
            slots=slots,
            options=asdict(options),
            gives_final_obs=False,
        )
        self._agent_B = np.tile(np.arange(1, options.players + 1), worlds)
        self._world_B = np.repeat(np.arange(worlds), options.players)
        self._slot_B = np.arange(slots)
        self._alive_B = np.ones(slots, bool)
        self._order_BK = np.zeros((slots, options.entities_seen), np.int64)
        self._first_world = first_world
        self._later: list[np.random.Generator] = []  # of every world, the seeds of its next episodes
        self.tape: Any = None

    def film(self, world: int) -> None:
        """Keep what nmmo's own viewer shows of a world's next episode in ``tape`` (its ``map`` and ``packets``)."""
        from nmmo.render.replay_helper import FileReplayHelper

        class Tape(FileReplayHelper):
            """nmmo's recorder for one episode: the realm's own reset, which would break it, ends the film."""

            running = False

            def reset(self) -> None:
                self.running = False

            def begin(self) -> None:
                super().reset()
                self.running = True

            def update(self) -> None:
                if self.running or self.packets == []:
                    super().update()

        self.tape = self._worlds[world].env.realm.record_replay(Tape())

    def reset(self, seed: int) -> Step:
        first, before = np.random.default_rng(seed), self._first_world
        # One generator a world: what it is next does not depend on when the others end, so on who plays.
        self._later = [np.random.default_rng([seed, before + w]) for w in range(len(self._worlds))]
        self._vec.reset([_seed(first) for _ in range(before + len(self._worlds))][before:])
        if self.tape is not None:
            self.tape.begin()
        slots = self.spec.slots
        self._alive_B = np.ones(slots, bool)
        no = np.zeros(slots, bool)
        truth = self._truth()
        return self._show(np.zeros(slots, np.float32), no, no, np.ones(slots, bool), truth, truth)

    def step(self, action: np.ndarray) -> Step:
        was_alive_B = self._alive_B
        self._vec.step(self._whole(np.asarray(action, np.int64)))
        buffer = self._vec.buf
        reward = np.where(was_alive_B, buffer.rewards, 0).astype(np.float32)
        terminated = was_alive_B & buffer.terminals & buffer.masks
        truncated = was_alive_B & buffer.truncations & buffer.masks & ~terminated
        final_truth = self._truth()
        alive_B = was_alive_B & ~terminated & ~truncated
        is_first = np.zeros(len(alive_B), bool)
        for w, env in enumerate(self._vec.envs):
            mine = self._world_B == w
            if not alive_B[mine].any():
                env.reset(seed=_seed(self._later[w]))
                alive_B[mine] = is_first[mine] = True
        self._alive_B = alive_B
        truth = self._truth() if is_first.any() else final_truth
        return self._show(reward, terminated, truncated, is_first, truth, final_truth)

    def _whole(self, action_BP: np.ndarray) -> np.ndarray:
        """Choices among the rows shown -> nmmo's choices among all rows."""
        if action_BP.shape != (self.spec.slots, len(self._sizes)):
            raise ValueError(f"actions of shape {action_BP.shape}; expected {(self.spec.slots, len(self._sizes))}")
        out = action_BP.copy()
        for p, ((_, arg), size, raw) in enumerate(zip(self._parts, self._sizes, self._raw_sizes, strict=True)):
            if arg == "Target":
                some = action_BP[:, p] < size - 1
                chosen = np.minimum(action_BP[:, p], size - 2)
                out[:, p] = np.where(some, self._order_BK[np.arange(len(out)), chosen], raw - 1)
            elif size != raw:
                out[:, p] = np.where(action_BP[:, p] < size - 1, action_BP[:, p], raw - 1)
        return out

    def _truth(self) -> dict[str, np.ndarray]:
        worlds, n = self._worlds, self.options.players
        entity_BKC = self._raw()["Entity"]
        ids_BK = np.ascontiguousarray(entity_BKC[..., 0])
        own_B = (ids_BK == self._agent_B[:, None]).argmax(1)  # row 0 where the agent is not there: all zeros then
        npcs, filled = (ids_BK < 0).sum(1, dtype=np.int16), (ids_BK != 0).sum(1, dtype=np.int16)
        others = filled - (ids_BK[self._slot_B, own_B] == self._agent_B)
        return {
            "world": self._world_B.copy(),
            "map": np.repeat([w.map for w in worlds], n),
            "agent": self._agent_B.copy(),
            "tick": np.repeat([int(w.env.realm.tick) for w in worlds], n),
            "task": np.concatenate([w.task_A for w in worlds]),
            "progress": np.concatenate([w.progress_A for w in worlds]),
            "position": entity_BKC[self._slot_B, own_B, COLUMN["row"] : COLUMN["col"] + 1].copy(),
            "tile": self._raw()["Tile"][:, OWN_TILE, 2].copy(),
            "visible": np.stack([others, npcs, others - npcs], 1),
            **{k: np.concatenate([w.counts[k] for w in worlds]) for k in worlds[0].counts},
        }

    def _raw(self) -> np.ndarray:
        """PufferLib's buffer as the structured array that it is, one record a slot."""
        raw: np.ndarray = self._vec.buf.observations.view(self._dtype)[:, 0]
        return raw

    def _show(
        self,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        is_first: np.ndarray,
        truth: dict[str, np.ndarray],
        final_truth: dict[str, np.ndarray],
    ) -> Step:
        raw = self._raw()
        rows = np.arange(len(raw))[:, None]
        entity_BKC = raw["Entity"]
        self._order_BK = _nearest(entity_BKC, self._agent_B, truth["position"])[:, : self.options.entities_seen]
        mask: list[np.ndarray] = []
        for (atn, arg), size in zip(self._parts, self._sizes, strict=True):
            part = raw["ActionTargets"][atn][arg]
            if arg == "Target":
                part = np.concatenate([part[rows, self._order_BK], part[:, -1:]], 1)
                # All legal targets were further away than the rows shown: then there is nothing to choose.
                part[:, -1] |= (part == 0).all(1)
            elif part.shape[1] != size:
                part = np.concatenate([part[:, : size - 1], part[:, -1:]], 1)  # the market's
            mask.append(part)
        obs = {
            "Tile": raw["Tile"].copy(),
            "Entity": entity_BKC[rows, self._order_BK],
            "Task": raw["Task"].copy(),
            "Tick": truth["tick"][:, None].astype(np.int16),
            "Mask": np.concatenate(mask, 1),
        }
        if self.options.systems == "all":
            obs["Inventory"] = raw["Inventory"].copy()
            obs["Market"] = raw["Market"].copy()
        return Step(
            obs={k: obs[k] for k in self.spec.obs},
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            is_first=is_first,
            truth=truth,
            final_truth=final_truth,
            alive=self._alive_B.copy(),
        )

    def materials(self, number: int) -> np.ndarray:
        """The map of a number as it is before anybody acts: uint8 [rows, columns], indices of MATERIALS."""
        file = self.folder / f"map{number}" / "map.npy"
        return npy_of(read_bytes(file), file).astype(np.uint8)

    def snapshot(self) -> tuple[bytes, ...]:
        raise UserError("Neural MMO has no snapshots: its state cannot be put back")

    def restore(self, states: Sequence[bytes]) -> Step:
        raise UserError("Neural MMO has no snapshots: its state cannot be put back")

    def close(self) -> None:
        self._vec.close()


def _check(options: NmmoOptions, worlds: int) -> None:
    if worlds < 1 or options.players < 1 or options.npcs < 0 or options.horizon < 2:
        raise UserError("--worlds, --players and --horizon must be at least 1, 1 and 2, --npcs not below 0")
    if options.players + options.npcs < 2:
        raise UserError("a world needs two players or NPCs at least: raise --players or --npcs")
    if options.entities_seen < 2 or options.market_seen < 1:
        raise UserError("--entities_seen must be at least 2 (the own row and another), --market_seen at least 1")
    if options.entities_seen > options.players + options.npcs:
        raise UserError(
            f"--entities_seen {options.entities_seen}: there are only {options.players + options.npcs} players and NPCs"
        )
    last = options.first_map + options.num_maps - 1
    if options.first_map < 1 or options.num_maps < 1 or last > options.map_pool:
        raise UserError(f"maps {options.first_map} to {last} are not all among the pool's 1 to {options.map_pool}")


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _choice(part: str, i: int, size: int) -> str:
    """What number ``i`` of a part is called."""
    arg = part.partition(".")[2]
    if arg == "Direction":
        return MOVES[i]
    if arg == "Style":
        return STYLES[i]
    if arg == "Price":
        return str(i + 1)
    return "nothing" if i == size - 1 else str(i)


def _nearest(entity_BNC: np.ndarray, agent_B: np.ndarray, position_B2: np.ndarray) -> np.ndarray:
    """Row numbers int64 [B, N]: the own row, then by distance (larger of rows and columns), then the empty ones."""
    ids_BN, row_BN, col_BN = (np.ascontiguousarray(entity_BNC[..., COLUMN[name]]) for name in ("id", "row", "col"))
    away_BN = np.maximum(np.abs(row_BN - position_B2[:, :1]), np.abs(col_BN - position_B2[:, 1:]))
    away_BN[ids_BN == 0] = np.iinfo(np.int16).max
    away_BN[ids_BN == agent_B[:, None]] = -1
    return away_BN.argsort(1, kind="stable")  # of int16: a radix sort


def features(
    obs: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray], action_BP: np.ndarray, spec: EnvSpec
) -> np.ndarray:
    """The 14 FEATURES of what every slot sees and does, float32 [B, 14]; zeros where an agent is dead.

    As the earlier study of these policies defines them (NeuralMMO-interpretability): ``n_visible_entities`` counts the
    agent itself; ``in_combat``: somebody attacks it, or the last blow, given or taken, is fewer than 10 ticks ago;
    ``is_trading``: something is bought, offered or given.  ``is_moving``: the direction chosen is not "stay";
    ``is_attacking``: a target was chosen.
    """
    own_BC = obs["Entity"][:, 0].astype(np.float32)
    tick_B = obs["Tick"][:, 0]
    parts = list(spec.action_parts)
    sizes = list(spec.action_parts.values())

    def chosen(part: str) -> np.ndarray:
        if part not in parts:
            return np.zeros(len(own_BC), bool)
        p = parts.index(part)
        return action_BP[:, p] != sizes[p] - 1

    def column(name: str) -> np.ndarray:
        return own_BC[:, COLUMN[name]]

    fought_B = column("latest_combat_tick")
    here_B = column("id") != 0
    values = {
        "n_visible_entities": truth["visible"][:, 0] + 1,
        "n_visible_npcs": truth["visible"][:, 1],
        "n_visible_players": truth["visible"][:, 2],
        "self_health": column("health"),
        "self_food": column("food"),
        "self_water": column("water"),
        "self_gold": column("gold"),
        "max_combat_level": np.max([column(f"{style}_level") for style in STYLES], 0),
        "in_combat": (column("attacker_id") != 0) | (fought_B > 0) & (tick_B - fought_B < COMBAT_TICKS),
        "n_inventory_items": (obs["Inventory"][..., 0] != 0).sum(1) if "Inventory" in obs else np.zeros(len(own_BC)),
        "tick": tick_B,
        "is_moving": chosen("Move.Direction"),
        "is_attacking": chosen("Attack.Target"),
        "is_trading": np.any([chosen(part) for part in ("Buy.MarketItem", "Sell.InventoryItem", *GIVING)], 0),
    }
    return (np.stack([values[name] for name in FEATURES], 1) * here_B[:, None]).astype(np.float32)


def words_of(parts: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """What an agent may do, in a word each (EnvSpec.action_words): its ways and styles, and to do anything at all of a
    part that has a choice to do nothing."""
    out: dict[str, tuple[str, ...]] = {}
    for part, size in parts.items():
        names = [f"{part} {_choice(part, i, size)}" for i in range(size)]
        if part.endswith((".Direction", ".Style")):
            out |= {name.partition(" ")[2]: (name,) for name in names}
        elif names[-1].endswith(" nothing"):
            atn, arg = part.split(".")
            sole = sum(p.startswith(f"{atn}.") and not p.endswith((".Style", ".Price")) for p in parts) == 1
            out[(atn if sole else f"{atn}_{arg}").lower()] = tuple(names[:-1])
    return out


LABELS = ("position", "tile", "visible", "progress", "ate", "drank", "unique_events")  # truth that changes in a life


def labels(
    obs: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray], action_BP: np.ndarray, spec: EnvSpec
) -> dict[str, np.ndarray]:
    """What a recording keeps of a tick beside the observations: LABELS and the ``features``, [B, ...]."""
    return {"features": features(obs, truth, action_BP, spec), **{name: truth[name] for name in LABELS}}


def life_of(truth: Mapping[str, np.ndarray], b: int, spec: EnvSpec) -> dict[str, Any]:
    """Whose life runs in slot ``b``: map, agent and the name of its task."""
    options = options_of(spec)
    task = tasks_of(options.horizon, options.systems)[int(truth["task"][b])].name
    return {"map": int(truth["map"][b]), "agent": int(truth["agent"][b]), "task": task}


def options_of(spec: EnvSpec) -> NmmoOptions:
    """The options that make the world of a spec again."""
    if spec.env_id != "nmmo":
        raise UserError(f"{spec.env_id} is not a Neural MMO world")
    return NmmoOptions(**dict(spec.options))
