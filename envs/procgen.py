"""Procgen's 16 games behind the VecEnv contract (Cobbe et al. 2020, arXiv:1912.01588).

Procgen resets on the same step and never shows an episode's last frame: ``final_obs`` is None and
an Episode recorded here ends one observation early after a terminal step.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from core.config import nearest
from core.contracts import EnvSpec, Field, Step, UserError
from envs.procgen_state import state_of

GAMES = (
    "bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot",
    "heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot",
)  # fmt: skip
TIMEOUT_STEPS = {"bigfish": 6000, "bossfight": 4000, "plunder": 4000, "leaper": 500, "maze": 500}
DEFAULT_TIMEOUT_STEPS = 1000
HELD_OUT_LEVEL = 500_000_000  # far from any training pool
HELD_OUT = {"start_level": HELD_OUT_LEVEL, "num_levels": 100_000}
MEMORY_GAMES = ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner")
EXTREME_GAMES = ("chaser", "dodgeball", "leaper", "starpilot")
# Games of the modes that not all have: in another one Procgen ends the process.
MODE_GAMES = {
    "exploration": ("coinrun", "leaper", "maze"), "extreme": EXTREME_GAMES, "memory": MEMORY_GAMES,
}  # fmt: skip
SYSTEM_LIBRARIES = (
    "it needs libGL and glib of the system, which machines without a screen may lack: "
    "apt-get install libgl1 libglib2.0-0 (Debian, Ubuntu)"
)
ACTION_NAMES = (
    "downleft", "left", "upleft", "down", "none", "up", "downright", "right", "upright",
    "key_d", "key_a", "key_w", "key_s", "key_q", "key_e",
)  # fmt: skip
STANDING = ACTION_NAMES.index("none")
# What the games do with an action: ids 9 to 14 are keys, and at a key that a game does not read it stands still.
# Measured in all 16 (tests/contract/test_envs.py), as the sources have it (src/basic-abstract-game.cpp, src/games/).
KEYS = ("key_d", "key_a", "key_w", "key_s", "key_q", "key_e")
KEYS_THAT_ACT: dict[str, tuple[tuple[str, ...], ...]] = {  # groups of them that do the same
    **dict.fromkeys(("bossfight", "caveflyer", "dodgeball", "fruitbot", "plunder"), (("key_d",),)),
    "ninja": (("key_d", "key_q", "key_e"), ("key_a",), ("key_w",), ("key_s",)),
    "starpilot": (("key_d", "key_w", "key_s", "key_q", "key_e"), ("key_a",)),
}
LEFT, RIGHT = ("left", "downleft", "upleft"), ("right", "downright", "upright")
NO_VERTICAL = ("fruitbot", "plunder")  # games in which up and down do nothing
SIDEWAYS_FIRST = ("leaper", "maze", "miner")  # up and down do nothing beside left or right
NO_DOWN = ("climber", "jumper", "ninja")
JUMPING = ("climber", "coinrun", "jumper", "ninja")
# Nobody dies there: it ends at the goal, or when the time is up (plunder: its juice, which time and shots use up).
ENDLESS = ("heist", "maze", "plunder")
JUMP = "action in (up, upleft, upright)"
PAID_ON_THE_WAY = (
    "bigfish", "bossfight", "caveflyer", "chaser", "climber", "dodgeball", "fruitbot", "miner", "starpilot",
)  # fmt: skip
GOAL = 5  # in every game whoever completes a level is paid 10 or more in that step, and less for anything else


def words_of(game: str) -> dict[str, Any]:
    """What an EnvSpec says of a game's actions and events (its last three fields)."""
    act: tuple[tuple[str, ...], ...] = KEYS_THAT_ACT.get(game, ())
    none = ["none", *(key for key in KEYS if not any(key in group for group in act))]
    none += ["down", "up"] if game in NO_VERTICAL else ["down"] if game in NO_DOWN else []
    same = [tuple(none), *act]
    if game in NO_VERTICAL + SIDEWAYS_FIRST:
        same += [LEFT, RIGHT]
    if game in NO_DOWN:
        same += [("left", "downleft"), ("right", "downright")]
    words: dict[str, tuple[str, ...]] = {"leftwards": LEFT, "rightwards": RIGHT}
    if game == "caveflyer":
        words = {}  # there they turn the ship
    lost = f"reward < {GOAL}" if game in PAID_ON_THE_WAY else "reward <= 0"
    events = {} if game in ENDLESS else {"death": f"ended and not truncated and {lost}"}
    events["reward"] = "reward > 0"
    if game in JUMPING:
        words |= {"jumping_up": ("up",), "jumping_left": ("upleft",), "jumping_right": ("upright",)}
        events["jump_started"] = f"{JUMP} and not previous({JUMP})"
    return {
        "same_actions": tuple(group for group in same if len(group) > 1),
        "action_words": words,
        "events": events,
    }


@dataclass(frozen=True, kw_only=True)
class ProcgenOptions:
    """Which Procgen world."""

    game: str = "coinrun"
    """one of the 16 games"""
    num_levels: int = 100_000
    """size of the level pool; 0 is unlimited (and then start_level means nothing)"""
    start_level: int = 0
    """first level of the pool"""
    distribution_mode: Literal["easy", "hard", "extreme", "memory", "exploration"] = "easy"
    """difficulty"""
    use_backgrounds: bool = True
    """draw textured backgrounds (off: black)"""
    restrict_themes: bool = False
    """one theme for walls and agent instead of a random one per level"""
    use_monochrome_assets: bool = False
    """coloured rectangles instead of sprites"""
    use_sequential_levels: bool = False
    """go on to the next level when one is solved, as one episode"""
    center_agent: bool = True
    """the view follows the agent"""
    use_generated_assets: bool = False
    """random generated sprites"""
    paint_vel_info: bool = False
    """draw the agent's velocity in the corner (coinrun, jumper and others)"""


class ProcgenEnv:
    """``slots`` worlds of one game.  Observation ``frames`` uint8 [B, 64, 64, 3].

    truth: ``level`` int64 [B], the level seed on show.
    """

    def __init__(self, options: ProcgenOptions, slots: int, threads: int = 2) -> None:
        if options.game not in GAMES:
            raise UserError(
                f"no Procgen game {options.game!r}{nearest(options.game, GAMES)}; there are: {', '.join(GAMES)}"
            )
        if not 0 <= options.num_levels < 2**31 or not 0 <= options.start_level < 2**31:
            raise UserError("--num_levels and --start_level must lie between 0 and 2147483647")
        mode, having = options.distribution_mode, MODE_GAMES.get(options.distribution_mode, GAMES)
        if options.game not in having:
            raise UserError(f"{options.game} has no mode {mode!r}; these do: {', '.join(having)}")
        if options.distribution_mode == "exploration" and (options.num_levels, options.start_level) != (1, 0):
            raise UserError("the mode 'exploration' has one level of its own: say --num_levels 1, and no --start_level")
        self.options = options
        self.spec = EnvSpec(
            env_id=f"procgen/{options.game}",
            obs={"frames": Field(shape=(64, 64, 3), dtype="uint8", kind="image")},
            action_names=ACTION_NAMES,
            slots=slots,
            options={k: v for k, v in asdict(options).items() if k != "game"},
            gives_final_obs=False,
            can_snapshot=not options.use_generated_assets,  # the game does not save those
            **words_of(options.game),
        )
        self._threads = threads
        self._timeout = TIMEOUT_STEPS.get(options.game, DEFAULT_TIMEOUT_STEPS)
        self._env: Any = None
        self._age = np.zeros(slots, np.int64)  # steps of the episode
        self._time = np.zeros(slots, np.int64)  # steps of the level: less, where levels follow each other in an episode

    def reset(self, seed: int) -> Step:
        self.close()
        self._env = self._make(seed)
        self._age[:] = self._time[:] = 0
        return self._show_unmoved()

    def _make(self, seed: int) -> Any:
        # gym, which gym3 imports, prints a long deprecation notice to stderr; procgen leaves its
        # version file open.
        try:
            with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                from procgen import ProcgenGym3Env
        except ImportError as error:
            raise UserError(f"Procgen does not import ({error}); install the lock file (make venv)") from None
        settings = {k: v for k, v in asdict(self.options).items() if k != "game"}
        if self.options.distribution_mode == "exploration":  # Procgen chooses the level itself
            del settings["num_levels"], settings["start_level"]
        try:
            return ProcgenGym3Env(
                num=self.spec.slots,
                env_name=self.options.game,
                rand_seed=seed % 2**31,
                num_threads=self._threads,
                **settings,
            )
        except OSError as error:  # its library, which is loaded here
            why = str(error).partition("Additionally")[0].strip(" .")
            raise UserError(f"Procgen does not load ({why}); {SYSTEM_LIBRARIES}") from None

    def step(self, action: np.ndarray) -> Step:
        self._env.act(np.ascontiguousarray(action, np.int32))
        reward, obs, first = self._env.observe()
        infos = self._env.get_info()
        completed = np.array([info["prev_level_complete"] for info in infos], bool)
        # A timeout is only told from a death by the count; a level that is completed on that very step is an ending.
        timed_out = first & (self._time + 1 >= self._timeout) & ~completed
        self._age = np.where(first, 0, self._age + 1)
        self._time = np.where(first | completed, 0, self._time + 1)
        return self._show(infos, obs["rgb"], reward.astype(np.float32), first & ~timed_out, timed_out)

    def _show(
        self, infos: Sequence[Any], frames: np.ndarray, reward: np.ndarray, terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> Step:  # fmt: skip
        levels = np.array([info["level_seed"] for info in infos], np.int64)
        return Step(
            obs={"frames": frames},  # a copy of gym3's own
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            is_first=self._age == 0,
            truth={"level": levels},
        )

    def _show_unmoved(self) -> Step:
        slots = self.spec.slots
        frames = self._env.observe()[1]["rgb"]
        none = np.zeros(slots, bool)
        return self._show(self._env.get_info(), frames, np.zeros(slots, np.float32), none, none.copy())

    def snapshot(self) -> tuple[bytes, ...]:
        ages = [struct.pack("<q", int(a)) for a in self._age]
        return tuple(age + state for age, state in zip(ages, self._env.callmethod("get_state"), strict=True))

    def restore(self, states: Sequence[bytes]) -> Step:
        """Works before a reset too.  A restored slot's auto-resets draw from the restored state."""
        if len(states) != self.spec.slots:
            raise ValueError(f"{len(states)} states for {self.spec.slots} slots")
        if self._env is None:
            self._env = self._make(0)
        self._age[:] = [struct.unpack("<q", s[:8])[0] for s in states]
        self._time[:] = self._age
        if self.options.use_sequential_levels:
            self._time[:] = [state_of(s).episode["cur_time"] for s in states]
        self._env.callmethod("set_state", [s[8:] for s in states])
        return self._show_unmoved()

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


def options_of(spec: EnvSpec) -> ProcgenOptions:
    """The options that make the world of a spec again."""
    kind, _, game = spec.env_id.partition("/")
    if kind != "procgen":
        raise UserError(f"{spec.env_id} is not a Procgen world")
    return ProcgenOptions(game=game, **json.loads(json.dumps(dict(spec.options))))
