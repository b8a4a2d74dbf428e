"""Make the world of a spec: the one place that knows which adapters there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.contracts import EnvSpec, UserError, VecEnv


def renewed(spec: EnvSpec) -> EnvSpec:
    """A stored spec with the words that its adapter has today for its actions and events; the world is the same."""
    kind, _, name = spec.env_id.partition("/")
    if kind == "procgen":
        from envs.procgen import ACTION_NAMES, words_of

        return replace(spec, **words_of(name)) if spec.action_names == ACTION_NAMES else spec
    return spec


def make(spec: EnvSpec, slots: int, *, threads: int = 2, **options: Any) -> VecEnv:
    """A fresh world like ``spec`` with ``slots`` slots; ``options`` override single settings
    (``start_level=...`` for held-out levels)."""
    kind = spec.env_id.partition("/")[0]
    if kind == "procgen":
        from envs.procgen import ProcgenEnv, options_of

        return ProcgenEnv(replace(options_of(spec), **options), slots, threads)
    if kind == "nmmo":
        from envs.nmmo import MAPS, NmmoEnv, options_of as nmmo_options_of

        maps = options.pop("maps", MAPS)
        world = replace(nmmo_options_of(spec), **options)
        if slots % world.players:
            raise UserError(f"{slots} slots are not whole worlds of {world.players} agents")
        return NmmoEnv(world, slots // world.players, maps)
    if kind == "planted":
        from envs.planted import make_planted

        return make_planted(spec, slots)
    raise UserError(f"no adapter for the world {spec.env_id!r}")


def same_actions(spec: EnvSpec) -> list[list[int]]:
    """Ids of actions that do the same whenever they are taken, together; every id once, in order of their first.

    Where nothing is known of a world each id stands by itself.
    """
    if spec.env_id.partition("/")[0] == "procgen":
        from envs.procgen import same_actions as of_game

        return of_game(spec)
    return [[i] for i in range(spec.n_actions)]
