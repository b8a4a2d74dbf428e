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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from core.episodes import Episode, StoreWriter
from core.files import writing
from core.progress import bar
from core.ranks import Processes
from core.training import going_on, open_run
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
    policies = load_policies(paths, device)
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

    def lives_of(part: int) -> Iterator[Episode]:
        for life in record_lives(
            players, player_B, env, seed=game_seed(config.seed, part), device=device, greedy=config.greedy,
            most_ticks=10 if config.smoke_test else None, points=points,
        ):  # fmt: skip
            yield replace(life, meta={**life.meta, "policy": name, "part": part})

    processes = Processes(ranks.rank(), ranks.count())
    played = of_parts(range(done["parts"], parts), lives_of, processes)
    if not processes.first:
        processes.wait()  # until the run directory is open
        deque(played, maxlen=0)
        env.close()
        return
    run = open_run(config, STAGE, paths, fixed, state=PROGRESS)
    processes.wait()
    for shard in run.path.glob("*.h5"):
        if int(shard.stem.split("_")[1]) >= done["parts"]:  # of a part that was cut off
            shard.unlink()
    artefacts.write_json(run.path / "spec.json", env.spec.to_json())
    artefacts.write_json(run.path / PROGRESS, artefacts.sealed(done))
    with bar("extracting", parts, "parts") as progress:
        progress.advance(done["parts"])
        for part, lives in played:
            with StoreWriter(run.path, f"part_{part:04d}", SHARD_STEPS, **STORE) as writer:
                for life in lives:
                    writer.add(life)
                    done["lives"] += 1
                    done["steps"] += life.steps
                    done["maps"] = sorted({*done["maps"], life.meta["map"]})
            done["parts"] = part + 1
            artefacts.write_json(run.path / PROGRESS, artefacts.sealed(done))
            progress.advance()
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


def of_parts(
    parts: Sequence[int], lives_of: Callable[[int], Iterable[Episode]], processes: Processes
) -> Iterator[tuple[int, Iterable[Episode]]]:
    """(part, its lives), in order.  Of several processes each plays one part at a time, and the first one is given all,
    the others nothing."""
    if processes.count == 1:
        yield from ((part, lives_of(part)) for part in parts)
        return
    if len(parts) < processes.count:
        print(f"note: {len(parts)} part(s) for {processes.count} processes: the others wait; raise --parts",
              file=sys.stderr)  # fmt: skip
    for start in range(0, len(parts), processes.count):
        mine = parts[start + processes.rank :][:1]
        shares = processes.to_first([vars(life) for part in mine for life in lives_of(part)])
        for part, lives in zip(parts[start:], shares, strict=False):
            yield part, [Episode(**columns) for columns in lives]


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
        print(f"{error}; python train.py nmmo -a hybrid makes one")
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
