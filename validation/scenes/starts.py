"""Scenes as starts: every value of the variable, on every base, in every stance (V values, E bases, P stances)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.contracts import UserError
from envs.procgen import ProcgenEnv
from envs.procgen_scenes import Scene, Stance, built, level_states
from envs.procgen_state import state_of

TRIES = 4  # levels looked at for each one that is wanted


@dataclass(frozen=True)
class SceneStarts:
    """Snapshots of one scene; row n = e * P + p is stance p on base e, the same for every value."""

    scene: Scene
    values: tuple[float, ...]
    levels: tuple[int, ...]  # [E]
    states: tuple[tuple[bytes, ...], ...]  # [V][E * P]
    stances: tuple[Stance, ...]  # [E * P]
    left_out: int  # levels in which it cannot be built

    @property
    def base_N(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.levels)), len(self.stances) // len(self.levels))

    def __len__(self) -> int:
        return len(self.stances)


def stances_of(bases: int, positions: int, jitter: float, velocities: Sequence[float], seed: int) -> tuple[Stance, ...]:
    """Stances of every base in turn: so many positions, drawn evenly, at each of the velocities."""
    rng = np.random.default_rng(seed)
    return tuple(
        Stance(round(float(rng.uniform(-jitter, jitter)), 3), vx)
        for _ in range(bases)
        for _ in range(positions)
        for vx in velocities
    )


def build_starts(
    scene: Scene, values: Sequence[float], env: ProcgenEnv, *, bases: int, positions: int, jitter: float,
    velocities: Sequence[float], start_level: int, seed: int,
) -> SceneStarts:  # fmt: skip
    """The starts, for slots of ``env``, which keep its pool.  A level in which some value cannot be built is left out,
    where the base is the levels themselves; UserError where too few are left, and where a scene cannot be built."""
    number = isinstance(scene.base, int)
    bases = 1 if number else bases
    env.reset(seed)
    like = env.snapshot()[0]
    stances = stances_of(bases, positions, jitter, velocities, seed)
    each = len(stances) // bases
    found: list[tuple[int, list[list[bytes]]]] = []
    tried, left_out, why = 0, 0, ""
    while len(found) < bases and tried < TRIES * bases:
        some = [int(scene.base)] if number else list(range(start_level + tried, start_level + tried + bases))
        tried += len(some)
        for level, base in zip(some, level_states(env.options, some, [like] * len(some)), strict=True):
            if len(found) == bases:
                break
            mine = stances[len(found) * each : (len(found) + 1) * each]
            try:
                found.append((level, [[built(scene, value, base, stance) for stance in mine] for value in values]))
            except UserError as error:
                if scene.base != "levels":
                    raise
                left_out, why = left_out + 1, str(error)
    if len(found) < bases:
        remedy = "ask for fewer (--bases)" if found else "ask for another scene or other values"
        raise UserError(f"only {len(found)} of {tried} levels can hold the scene at every value ({why}); {remedy}")
    states = tuple(tuple(s for _, rows in found for s in rows[v]) for v in range(len(values)))
    return SceneStarts(scene, tuple(values), tuple(level for level, _ in found), states, stances, left_out)


def places_of(snapshots: Sequence[bytes]) -> np.ndarray:
    """The agents' x, float64 [N]."""
    return np.array([float(state_of(s).agent["x"]) for s in snapshots])


def sides_of(snapshots: Sequence[bytes]) -> np.ndarray:
    """1 where the agent faces right, else -1, int64 [N]; 1 in games whose agents face nowhere."""
    states = [state_of(s) for s in snapshots]
    return np.array([1 if "facing_right" not in s.has or s.own["facing_right"] else -1 for s in states])
