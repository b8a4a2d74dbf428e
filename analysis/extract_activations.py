"""Record what enters a policy's decoder while it lives in Neural MMO, with what it saw and did, life by life:
``python -m analysis.extract_activations pve -p hybrid -o runs/activations``.

Streams to a rollout store: memory does not grow with the length, an interrupted extraction goes on with ``--resume``,
and dead agents never enter.  The directory is what analysis.activations, life, life_phase, probes and patching read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from agents.nmmo_play import Player, Tick, game_seed, load_policies, play, policies_in
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import Episode, StoreWriter
from core.progress import bar
from core.training import open_run
from envs.nmmo import FEATURES, MAPS, NmmoEnv, features, held_out, options_of

STAGE = "extract_activations"
PROGRESS = "progress.json"  # how many parts are whole
SHARD_STEPS = 4096  # about 25 MB in memory
STORE = {"chunk_steps": 512, "level": 6}  # lives are read whole, and most of an observation is as it was a tick ago


@dataclass(frozen=True, kw_only=True)
class ExtractConfig:
    """Record activations, the 14 features, observations and actions of a policy of Neural MMO, a life an episode."""

    mode: tyro.conf.Positional[Literal["pve", "pvp"]] = "pve"
    """pve: all agents are this policy; pvp: it shares the worlds with all others in --policies; only it is recorded"""
    policy: Annotated[str, tyro.conf.arg(aliases=["-p"])] = ""
    """name of a policy in --policies, or its run directory"""
    policies: Path = Path("runs/policies")
    """directory of policies' run directories"""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("runs/activations")
    """run directory to write"""
    list: bool = False
    """only list the policies there are"""
    smoke_test: bool = False
    """one world of one part, cut after 10 ticks: does it run at all?"""
    parts: int = 8
    """parts of the recording; each has its own seed, and is what an interruption may cost"""
    worlds: int = 4
    """worlds side by side, each played once from beginning to end in every part"""
    training_maps: bool = False
    """play on the maps of the training instead of the held-out ones"""
    greedy: bool = False
    """take the likeliest choice of every part instead of sampling"""
    maps: Path = MAPS
    """where the generated maps lie (generated on first use)"""
    seed: int = 0
    """seed of maps, tasks, spawns and action noise"""
    resume: bool = False
    """go on with an interrupted extraction in --out"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier extraction in --out"""


def record_lives(
    players: Sequence[Player],
    player_B: np.ndarray,
    env: NmmoEnv,
    *,
    seed: int,
    device: torch.device,
    greedy: bool = False,
    most_ticks: int | None = None,
) -> Iterator[Episode]:
    """Every life of player 0 in one game of every world, as it ends; all of them by the last tick.

    A life has as many rows as decisions: nobody sees what follows the last.  most_ticks cuts them all there.
    """
    slot_of_row = np.flatnonzero(player_B == 0)
    columns = _Columns(env, slot_of_row)
    over_W = np.zeros(env.spec.slots // env.options.players, bool)
    for number, tick in enumerate(play(players, player_B, env, seed=seed, device=device, greedy=greedy)):
        after = tick.next
        columns.add(tick, ~over_W)
        cut = most_ticks is not None and number + 1 >= most_ticks
        for row, b in enumerate(slot_of_row):
            if columns.rows[row] and (after.terminated[b] or after.truncated[b] or cut):
                yield columns.take(row, after.terminated[b], tick, seed)
        over_W[np.unique(tick.step.truth["world"][after.is_first])] = True
        if cut or over_W.all():
            return


class _Columns:
    """What the slots of a game show, a row a tick; all lives begin with the game, so that a life is its first rows."""

    def __init__(self, env: NmmoEnv, slots: np.ndarray) -> None:
        self.env, self.slots, self.ticks = env, slots, 0
        self.kept: dict[str, np.ndarray] = {}  # [horizon, slots, ...]
        self.rows = np.zeros(len(slots), np.int64)  # of the running lives; 0: over

    def add(self, tick: Tick, playing_W: np.ndarray) -> None:
        step, slots = tick.step, self.slots
        assert step.alive is not None
        of = features(step.obs, step.truth, tick.action_BP, self.env.spec)
        shown = {
            "h": tick.h[0],
            "value": tick.value_B[slots],
            "action": tick.action_BP[slots],
            "reward": tick.next.reward[slots],
            "truth/features": of[slots],
            **{f"truth/{k}": step.truth[k][slots] for k in ("position", "ate", "drank")},
            **{f"obs/{k}": v[slots] for k, v in step.obs.items()},
        }
        for name, array in shown.items():
            if name not in self.kept:
                self.kept[name] = np.empty((self.env.options.horizon, *array.shape), array.dtype)
            self.kept[name][self.ticks] = array
        self.ticks += 1
        living = step.alive[slots] & playing_W[step.truth["world"][slots]]
        self.rows = np.where(living, self.ticks, self.rows)

    def take(self, row: int, died: bool, tick: Tick, seed: int) -> Episode:
        """The life of a slot that has just ended."""
        steps, self.rows[row] = int(self.rows[row]), 0
        truth, b = tick.step.truth, self.slots[row]
        columns = {name: kept[:steps, row].copy() for name, kept in self.kept.items()}
        of = {group: {k.partition("/")[2]: v for k, v in columns.items() if k.startswith(f"{group}/")}
              for group in ("obs", "truth")}  # fmt: skip
        return Episode(
            obs=of["obs"],
            truth=of["truth"],
            h=columns["h"],
            value=columns["value"],
            action=columns["action"],
            reward=columns["reward"],
            terminated=bool(died),
            truncated=not died,
            meta={
                "seed": seed,
                **{name: int(truth[name][b]) for name in ("world", "map", "agent")},
                "task": self.env.tasks[int(truth["task"][b])].name,
                "first_tick": 0,
            },
        )


def main(config: ExtractConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, parts=config.parts, worlds=config.worlds)
    cli.require(0, seed=config.seed)
    if config.list:
        for name, path in policies_in(config.policies).items():
            facts = artefacts.read_manifest(path)["facts"]
            print(f"{name:<20} {facts['architecture']}, size {facts['size']}, recurrence: {facts['recurrence']}")
        return
    paths, name = chosen(config)
    policies = load_policies(paths, device)
    players = list(policies.values())
    spec = players[0].spec
    options = options_of(spec)
    if not config.training_maps:
        options = replace(options, **held_out(spec.options))
    env = NmmoEnv(options, 1 if config.smoke_test else config.worlds, config.maps)
    parts = 1 if config.smoke_test else config.parts
    player_B = np.arange(env.spec.slots) % len(players)
    fixed = ("mode", "policy", "policies", "worlds", "training_maps", "greedy", "seed", "smoke_test")
    done: dict[str, Any] = {"parts": 0, "lives": 0, "steps": 0, "maps": []}
    done["agents"] = {k: fingerprint(policy) for k, policy in policies.items()}
    if config.resume and (config.out / PROGRESS).exists():
        saved = cli.read_json(config.out / PROGRESS)
        if not isinstance(saved, dict) or not artefacts.seal_holds(saved):
            raise UserError(f"{config.out / PROGRESS} differs from its seal; copy it or start the extraction anew")
        del saved[artefacts.SEAL]
        if saved.get("agents") != done["agents"]:
            raise UserError("--resume: a policy is not the one the extraction began with; start another for that")
        if saved["parts"] > parts:
            raise UserError(f"--resume: {saved['parts']} parts are recorded; --parts {parts} would be fewer")
        done = saved
    run = open_run(config, STAGE, paths, fixed, state=PROGRESS)
    for shard in run.path.glob("*.h5"):
        if int(shard.stem.split("_")[1]) >= done["parts"]:  # of a part that was cut off
            shard.unlink()
    artefacts.write_json(run.path / "spec.json", env.spec.to_json())
    artefacts.write_json(run.path / PROGRESS, artefacts.sealed(done))
    with bar("extracting", parts, "parts") as progress:
        progress.advance(done["parts"])
        for part in range(done["parts"], parts):
            with StoreWriter(run.path, f"part_{part:04d}", SHARD_STEPS, **STORE) as writer:
                for life in record_lives(
                    players, player_B, env, seed=game_seed(config.seed, part), device=device, greedy=config.greedy,
                    most_ticks=10 if config.smoke_test else None,
                ):  # fmt: skip
                    writer.add(replace(life, meta={**life.meta, "policy": name, "part": part}))
                    done["lives"] += 1
                    done["steps"] += life.steps
                    done["maps"] = sorted({*done["maps"], life.meta["map"]})
            done["parts"] = part + 1
            artefacts.write_json(run.path / PROGRESS, artefacts.sealed(done))
            progress.advance()
    for number in done["maps"]:
        np.save(run.path / f"map_{number}.npy", env.materials(number))
    run.facts = {"agent": fingerprint(players[0]), "policy": name, "mode": config.mode, "features": list(FEATURES)}
    run.record("lives", done["lives"], "lives")
    run.record("steps", done["steps"], "steps")
    run.record("worlds", parts * env.spec.slots // options.players, "worlds")
    run.finish()
    env.close()
    print(f"{done['lives']:,} lives, {done['steps']:,} steps of {name}: {config.out}")


def chosen(config: ExtractConfig) -> tuple[dict[str, Path], str]:
    """(the policies that play, the recorded one first; its name).  UserError if there is no such policy."""
    if not config.policy:
        raise UserError("-p (--policy) is required: a name that --list shows, or a run directory")
    path = Path(config.policy)
    if (path / "policy.json").exists():
        mine = {path.name: path}
    else:
        there = policies_in(config.policies)
        if config.policy not in there:
            near = cli.nearest(config.policy, there)
            raise UserError(f"no policy {config.policy!r}{near} in {config.policies}; there are: {', '.join(there)}")
        mine = {config.policy: there[config.policy]}
    (name,) = mine
    if config.mode == "pvp":
        others = {k: v for k, v in policies_in(config.policies).items() if k != name}
        if not others:
            raise UserError(f"pvp needs another policy than {name} in {config.policies}")
        mine |= others
    return mine, name


if __name__ == "__main__":
    cli.run(ExtractConfig, main, STAGE)
