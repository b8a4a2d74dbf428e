"""Record what enters a policy's decoder while it lives in Neural MMO, with what it saw and did, life by life:
``python -m analysis.extract_activations pve -p hybrid -o runs/activations``.

Streams to a rollout store: memory does not grow with the length, an interrupted extraction goes on with ``--resume``,
and dead agents never enter.  The directory is what analysis.activations, life, life_phase, probes and patching read.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.extract_activations", file=sys.stderr)
    sys.exit(2)

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from agents.nmmo_play import game_seed, load_policies, policies_in
from agents.record import points_of
from analysis.lives.recording import SHARD_STEPS, STAGE, STORE, record_lives
from core import artefacts, config as cli, ranks
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import StoreWriter
from core.files import writing
from core.progress import bar
from core.training import going_on, open_run
from core.words import counted
from envs.nmmo import CLASSES, FEATURES, MAPS, NmmoEnv, held_out, options_of

PROGRESS = "progress.json"  # how many parts are whole
BUNDLED = Path("bundles/nmmo-demo/policies")


@dataclass(frozen=True, kw_only=True)
class ExtractConfig:
    """Record activations, the 14 features, observations and actions of a policy of Neural MMO, a life an episode."""

    mode: tyro.conf.Positional[Literal["pve", "pvp"]] = "pve"
    """pve: all agents are this policy; pvp: it shares the worlds with all others in --policies; only it is recorded"""
    policy: Annotated[str | None, tyro.conf.arg(aliases=["-p"])] = None
    """name of a policy in --policies, or its run directory; none: the only one there (--smoke-test: the first)"""
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
    points: tuple[str, ...] = ()
    """vectors recorded beside h, what enters the decoder (of a policy with an LSTM its hidden state): cell, the LSTM's
    cell state; embedding, the encoder's output; analysis.activations --point takes them"""
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


def main(config: ExtractConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, parts=config.parts, worlds=config.worlds)
    cli.require(0, seed=config.seed)
    if config.list:
        list_policies(config.policies)
        return
    config = going_on(config, STAGE, PROGRESS)
    paths, name = chosen(config)
    inputs = artefacts.Inputs(paths)
    policies = load_policies(inputs, device)
    players = list(policies.values())
    spec = players[0].spec
    points = points_of(players[0], config.points)
    options = options_of(spec)
    if not config.training_maps:
        options = replace(options, **held_out(spec.options))
    env = NmmoEnv(options, 1 if config.smoke_test else config.worlds, config.maps)
    parts = 1 if config.smoke_test else config.parts
    player_B = np.arange(env.spec.slots) % len(players)
    fixed = ("mode", "policy", "policies", "worlds", "training_maps", "greedy", "seed", "smoke_test", "points")
    done = done_before(config, parts, {k: fingerprint(policy) for k, policy in policies.items()})

    def recorded(part: int) -> dict[str, Any]:
        """Plays a part and writes it; what it adds to ``done``."""
        lives = record_lives(
            players, player_B, env, seed=game_seed(config.seed, part), device=device, greedy=config.greedy,
            most_ticks=10 if config.smoke_test else None, points=points,
        )  # fmt: skip
        count, steps = 0, 0
        maps: set[int] = set()
        with StoreWriter(config.out, f"part_{part:04d}", SHARD_STEPS, **STORE) as writer:
            for life in lives:
                writer.add(replace(life, meta={**life.meta, "policy": name, "part": part}))
                count, steps, maps = count + 1, steps + life.steps, maps | {life.meta["map"]}
        return {"lives": count, "steps": steps, "maps": sorted(maps)}

    processes = ranks.processes()
    if processes.first:
        run = open_run(config, STAGE, inputs, fixed, state=PROGRESS)
        for shard in run.path.glob("*.h5"):
            if int(shard.stem.split("_")[1]) >= done["parts"]:  # of a part that was cut off
                shard.unlink()
        artefacts.write_json(run.path / "spec.json", env.spec.to_json())
        artefacts.write_json(run.path / PROGRESS, artefacts.sealed(done))
    processes.wait()  # until the run directory is open
    if 0 < parts - done["parts"] < processes.count:
        left = counted(parts - done["parts"], "part")
        print(f"note: {left} for {processes.count} processes: the others wait; raise --parts", file=sys.stderr)
    with bar("extracting", parts, "parts") as progress:
        progress.advance(done["parts"])
        for start in range(done["parts"], parts, processes.count):  # a part a process
            mine = start + processes.rank
            added = [x for x in processes.listed(recorded(mine) if mine < parts else None) if x is not None]
            for x in added:
                done |= {k: done[k] + x[k] for k in ("lives", "steps")}
                done["maps"] = sorted({*done["maps"], *x["maps"]})
            done["parts"] += len(added)
            if processes.first:
                artefacts.write_json(run.path / PROGRESS, artefacts.sealed(done))
            progress.advance(len(added))
    if not processes.first:
        env.close()
        return
    for number in done["maps"]:
        with writing(run.path / f"map_{number}.npy") as file:
            np.save(file, env.materials(number))
    run.facts = {"agent": fingerprint(players[0]), "policy": name, "mode": config.mode, "features": list(FEATURES)}
    run.facts |= {"classes": list(CLASSES)}
    run.record("lives", done["lives"], "lives")
    run.record("steps", done["steps"], "steps")
    run.record("worlds", parts * env.spec.slots // options.players, "worlds")
    run.finish()
    env.close()
    print(f"{done['lives']:,} lives, {done['steps']:,} steps of {name}: {config.out}")


def done_before(config: ExtractConfig, parts: int, agents: dict[str, str]) -> dict[str, Any]:
    """What an extraction holds already, with --resume; UserError if that is of other agents or of more parts."""
    none: dict[str, Any] = {"parts": 0, "lives": 0, "steps": 0, "maps": [], "agents": agents}
    if not config.resume or not (config.out / PROGRESS).exists():
        return none
    saved = cli.read_json(config.out / PROGRESS)
    if not isinstance(saved, dict) or not artefacts.seal_holds(saved):
        raise UserError(f"{config.out / PROGRESS} differs from its seal; copy it or start the extraction anew")
    del saved[artefacts.SEAL]
    if saved.get("agents") != agents:
        raise UserError("--resume: a policy is not the one the extraction began with; start another for that")
    if saved["parts"] > parts:
        raise UserError(f"--resume: {saved['parts']} parts are recorded; --parts {parts} would be fewer")
    return saved


def listed(policies: Path) -> str:
    """The policies in a directory, a line each."""
    rows = [f"in {policies}:"]
    for name, path in policies_in(policies).items():
        facts = artefacts.read_manifest(path)["facts"]
        rows.append(f"{name:<20} {facts['architecture']}, size {facts['size']}, recurrence: {facts['recurrence']}")
    return "\n".join(rows)


def list_policies(policies: Path) -> None:
    """Print the policies there are; where there is none, how one is made, and those that ship."""
    try:
        print(listed(policies))
    except UserError as error:
        print(error)
        if BUNDLED.is_dir():
            print(listed(BUNDLED))


def default_policy(config: ExtractConfig) -> str:
    """The policy where -p was not given.  UserError where that leaves a choice."""
    if config.smoke_test and not config.policies.exists() and BUNDLED.is_dir():
        print(f"note: there is no {config.policies}; from the bundle: -p {BUNDLED / 'hybrid'}", file=sys.stderr)
        return str(BUNDLED / "hybrid")
    there = policies_in(config.policies)
    if len(there) > 1 and not config.smoke_test:
        raise UserError(f"-p (--policy) is required: {config.policies} holds {', '.join(there)}")
    return next(iter(there))


def chosen(config: ExtractConfig) -> tuple[dict[str, Path], str]:
    """(the policies that play, the recorded one first; its name).  UserError if there is no such policy."""
    wanted = config.policy or default_policy(config)
    path = Path(wanted)
    if (path / "policy.json").exists():
        mine = {path.name: path}
    elif len(path.parts) > 1:
        raise UserError(f"-p {wanted}: no run directory of one policy; give one, such as {BUNDLED / 'hybrid'}")
    else:
        there = policies_in(config.policies)
        if wanted not in there:
            near = cli.nearest(wanted, there)
            raise UserError(f"no policy {wanted!r}{near} in {config.policies}; there are: {', '.join(there)}")
        mine = {wanted: there[wanted]}
    (name,) = mine
    if config.mode == "pvp":
        others = {k: v for k, v in policies_in(config.policies).items() if k != name}
        if not others:
            raise UserError(f"pvp needs another policy than {name} in {config.policies}")
        mine |= others
    return mine, name


if __name__ == "__main__":
    cli.run(ExtractConfig, main, STAGE, shared=True)
