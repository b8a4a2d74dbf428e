"""Make the world of a spec: the one place that knows which adapters there are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.artefacts import HELD_OUT_WARNING
from core.config import from_json, nearest
from core.contracts import EnvSpec, UserError, VecEnv

KINDS = {  # the first word of an env_id -> how a user writes it
    "procgen": "procgen/GAME",
    "planted": "planted/KIND",
    "nmmo": "nmmo",
    "craftax": "craftax/NAME",
    "gymnasium": "gymnasium/ID",
}
SPLITS = ("train", "held_out")


def renewed(spec: EnvSpec) -> EnvSpec:
    """A stored spec with the words that its adapter has today for its actions and events; the world is the same."""
    kind, _, name = spec.env_id.partition("/")
    if kind == "procgen":
        from envs.procgen import ACTION_NAMES, GAMES, words_of

        return replace(spec, **words_of(name)) if name in GAMES and spec.action_names == ACTION_NAMES else spec
    if kind == "craftax":
        from envs.craftax import GAMES as CRAFTAX, words_of as words_of_craftax

        return replace(spec, **words_of_craftax(name)) if name in CRAFTAX else spec
    if kind == "nmmo":
        from envs.nmmo import words_of as words_of_parts

        return replace(spec, action_words=words_of_parts(spec.action_parts))
    return spec


def spec_of(name: str, options: Mapping[str, Any]) -> EnvSpec:
    """The spec of a world by what a user writes: ``procgen/coinrun``, ``gymnasium/CartPole-v1``, ``planted/null``,
    ``nmmo``, or the path of a .py file with ``make_env``, which is then agreed to.

    options: the world's own (JSON values).  Raises UserError.
    """
    kind, _, rest = name.partition("/")
    if name.endswith(".py"):
        from envs.gymnasium_env import agreed_module

        name, options = agreed_module(Path(name), options)
        kind = "module"
    elif kind not in KINDS:
        forms = ", ".join(KINDS.values())
        raise UserError(f"no world {name!r}{nearest(kind, KINDS)}; write {forms}, or the path of a .py file")
    if kind == "procgen":
        from envs.procgen import ProcgenEnv, ProcgenOptions

        return ProcgenEnv(from_json(ProcgenOptions, {**options, "game": rest}, name), 1).spec
    if kind == "planted":
        from envs.planted import PlantedOptions, spec_of as planted_spec_of

        return planted_spec_of(from_json(PlantedOptions, {**options, "kind": rest}, name), 1)
    if kind == "craftax":
        from envs.craftax import CraftaxOptions, spec_of as craftax_spec_of

        return craftax_spec_of(from_json(CraftaxOptions, {**options, "env_name": rest}, name), 1)
    if kind == "nmmo":
        from envs.nmmo import NmmoEnv, NmmoOptions

        world: VecEnv = NmmoEnv(from_json(NmmoOptions, options, name), 1)
    else:
        from envs.gymnasium_env import GymnasiumEnv, GymnasiumOptions

        world = GymnasiumEnv(name, from_json(GymnasiumOptions, options, name), 1)
    spec = world.spec
    world.close()
    return spec


def agents_a_world(spec: EnvSpec) -> int:
    """Slots that share a world, one after the other: its agents."""
    return int(spec.options["players"]) if spec.env_id == "nmmo" else 1


def classes_of(spec: EnvSpec) -> tuple[str, ...]:
    """The labels of a world that are names and not numbers."""
    kind = spec.env_id.partition("/")[0]
    if kind == "craftax":
        from envs.craftax import CLASSES as IN_CRAFTAX

        return IN_CRAFTAX
    if kind == "nmmo":
        from envs.nmmo import CLASSES as IN_NMMO

        return IN_NMMO
    return ()


def held_out_pool(spec: EnvSpec, start_level: int, num_levels: int) -> dict[str, Any]:
    """Options of ``make`` for starts that no training sees: these levels where the world has levels (Procgen), else the
    split "held_out".  UserError for a pool that is none or all levels; of levels among those of the training a warning.
    """
    if spec.env_id.partition("/")[0] != "procgen":
        return {"split": "held_out"}
    if num_levels < 1:
        raise UserError(f"--num_levels must be at least 1, not {num_levels}"
                        + ": all levels, those of the training among them" * (num_levels == 0))  # fmt: skip
    low, count = spec.options.get("start_level", 0), spec.options.get("num_levels", 0)
    if start_level < low + count and low < start_level + num_levels:
        print(
            f"warning: levels {start_level} to {start_level + num_levels - 1} overlap those of the training ({low} to "
            f"{low + count - 1}): what is found there is not of levels that the agent never saw", file=sys.stderr,
        )  # fmt: skip
    return {"start_level": start_level, "num_levels": num_levels}


def held_out_facts(spec: EnvSpec) -> dict[str, Any]:
    """Facts of the manifest of whatever is measured on held-out starts: a sentence where those of a user's world were
    seen to be the training's, or may be, which is told, too; ``{}``: nothing of it was seen."""
    if spec.env_id.partition("/")[0] not in ("gymnasium", "module"):
        return {}  # ours keep the two apart
    from envs.gymnasium_env import options_of, starts_in_both

    said = starts_in_both(spec.env_id, options_of(spec))
    if said is None:
        return {}
    print(f"warning: {said}", file=sys.stderr)
    return {HELD_OUT_WARNING: said}


def _require_same(spec: EnvSpec, found: EnvSpec, split: str) -> None:
    """UserError where a user's world is no longer one that an agent of ``spec`` sees and acts in: another version of
    its package, or its arguments in this split, make it another one."""
    for name, was, now in (
        ("observations", *({k: [f.dtype, *f.shape] for k, f in one.obs.items()} for one in (spec, found))),
        ("choices of an action", [*spec.parts], [*found.parts]),
    ):
        if was != now:
            raise UserError(f"{spec.env_id} in the split {split!r} has other {name} than the agent's world ({now}, not "
                            f"{was}): the option held_out, or another version of the world, changes them")  # fmt: skip


def make(spec: EnvSpec, slots: int, *, threads: int = 2, split: str = "train", **options: Any) -> VecEnv:
    """A fresh world like ``spec`` with ``slots`` slots.

    split: "train", the starts that ``spec`` describes, or "held_out", others that no training sees: another pool of
    levels (Procgen) or maps (Neural MMO), odd seeds (Gymnasium); a planted world's are all drawn alike.
    options: single settings in place of the spec's (``start_level=...``).
    """
    if split not in SPLITS:
        raise UserError(f"no split {split!r}{nearest(split, SPLITS)}; there are: {', '.join(SPLITS)}")
    kind, away = spec.env_id.partition("/")[0], split == "held_out"
    if kind == "procgen":
        from envs.procgen import HELD_OUT, ProcgenEnv, options_of

        if away:
            options = {**HELD_OUT, **options}
        return ProcgenEnv(replace(options_of(spec), **options), slots, threads)
    if kind == "nmmo":
        from envs.nmmo import MAPS, NmmoEnv, held_out, options_of as nmmo_options_of

        odd = [name for name in options if name not in (*spec.options, "maps")]
        if odd:
            raise UserError(f"{spec.env_id} has no {', '.join(odd)}; its maps are those of a split")
        if away:
            options = {**held_out(spec.options), **options}
        maps = options.pop("maps", MAPS)
        world = replace(nmmo_options_of(spec), **options)
        if slots % world.players:
            raise UserError(f"{slots} slots are not whole worlds of {world.players} agents")
        return NmmoEnv(world, slots // world.players, maps)
    if kind == "planted":
        from envs.planted import make_planted

        return make_planted(spec, slots)
    if options:
        raise UserError(f"{spec.env_id} has no {', '.join(options)}; its starts are those of a split")
    if kind == "craftax":
        from envs.craftax import CraftaxEnv, options_of as craftax_options_of

        return CraftaxEnv(craftax_options_of(spec), slots, "held_out" if away else "train")
    if kind in ("gymnasium", "module"):
        from envs.gymnasium_env import GymnasiumEnv, Split, options_of as gymnasium_options_of

        its: Split = "held_out" if away else "train"
        own = GymnasiumEnv(spec.env_id, gymnasium_options_of(spec), slots, its)
        _require_same(spec, own.spec, its)
        return own
    raise UserError(f"no adapter for the world {spec.env_id!r}")
