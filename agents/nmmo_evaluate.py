"""Evaluate policies of Neural MMO on held-out maps: ``python -m agents.evaluate runs/policies pve|pvp -r 2``.

pve: every policy plays alone, all agents of a world are it; all meet the same worlds.  pvp: they share each world in
equal groups.  What comes out are result files; ``analysis.proc_eval_result`` makes tables of them.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m agents.evaluate", file=sys.stderr)
    sys.exit(2)

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from agents.nmmo_play import RANDOM, Player, RandomPolicy, game_seed, load_policies, play, policies_in
from agents.policies import DESCRIPTION
from core import artefacts, config as cli
from core.contracts import UserError
from core.progress import bar
from core.words import counted
from envs.nmmo import MAPS, NmmoEnv, held_out, options_of

STAGE = "evaluate_nmmo"
EPISODES = {"pve": 32, "pvp": 200}


@dataclass(frozen=True, kw_only=True)
class NmmoEvaluateConfig:
    """Evaluate policies of Neural MMO on held-out maps; write the outcome of every life, as result_NNN.json."""

    policies: tyro.conf.Positional[Path] = Path("runs/policies")
    """a directory of policies' run directories, or one of them"""
    mode: tyro.conf.Positional[Literal["pve", "pvp"]] = "pve"
    """pve: each policy alone; pvp: all in the same worlds, in equal groups"""
    out: Path | None = None
    """run directory to write; none: eval_MODE inside the directory of policies"""
    repeats: Annotated[int, tyro.conf.arg(aliases=["-r"])] = 1
    """result files"""
    episodes: int | None = None
    """worlds played to their end, a result file (pve: for each policy); none: 32 in pve, 200 in pvp"""
    worlds: int = 8
    """worlds side by side"""
    random: bool = True
    """let the baseline that chooses uniformly among what is legal take part, under the name 'random'"""
    greedy: bool = False
    """take the likeliest choice of every part instead of sampling"""
    maps: Path = MAPS
    """where the generated maps lie (generated on first use)"""
    seed: int = 0
    """seed of maps, tasks, spawns and action noise"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier evaluation"""

    @property
    def worlds_played(self) -> int:
        """``episodes``, or as many as the competition's evaluation plays."""
        return EPISODES[self.mode] if self.episodes is None else self.episodes


def lives(
    players: Sequence[Player],
    player_B: np.ndarray,
    env: NmmoEnv,
    episodes: int,
    *,
    seed: int,
    device: torch.device,
    greedy: bool = False,
    show: bool = True,
) -> list[dict[str, Any]]:
    """Every life in ``episodes`` whole worlds (at least: every world side by side plays the same number); show: a bar.

    One dict a life: player (its number), world (0 .. episodes-1 in order of worlds and their repeats), map, agent,
    length (ticks), died (else the time was up), task (its name), category, progress [0, 1], ate, drank.
    """
    worlds = env.spec.slots // env.options.players
    quota = -(-episodes // worlds)
    played_W = np.zeros(worlds, np.int64)
    ate_B, drank_B = np.zeros(env.spec.slots, np.int64), np.zeros(env.spec.slots, np.int64)
    out: list[dict[str, Any]] = []
    with bar("evaluating", quota * worlds, "worlds", show) as progress:
        for tick in play(players, player_B, env, seed=seed, device=device, greedy=greedy):
            after = tick.next
            assert after.final_truth is not None and tick.step.alive is not None
            ate_B += np.where(tick.step.alive, after.final_truth["ate"], 0)
            drank_B += np.where(tick.step.alive, after.final_truth["drank"], 0)
            done_B = after.terminated | after.truncated
            world_B, truth = after.final_truth["world"], after.final_truth
            for b in np.flatnonzero(done_B):
                w = int(world_B[b])
                if played_W[w] < quota:
                    task = env.tasks[int(truth["task"][b])]
                    out.append(
                        {
                            "player": int(player_B[b]),
                            "world": int(played_W[w]) * worlds + w,
                            "map": int(truth["map"][b]),
                            "agent": int(truth["agent"][b]),
                            "length": int(truth["tick"][b]),
                            "died": bool(after.terminated[b]),
                            "task": task.name,
                            "category": task.category,
                            "progress": float(truth["progress"][b]),
                            "ate": int(ate_B[b]),
                            "drank": int(drank_B[b]),
                        }
                    )
                ate_B[b] = drank_B[b] = 0
            for w in np.unique(world_B[after.is_first]):
                if played_W[w] < quota:
                    progress.advance()
                played_W[w] += 1
            if (played_W >= quota).all():
                return out
    raise AssertionError("play never ends by itself")


def file_of(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """A result file: for each policy parallel lists with an entry a life, and ``curriculum/TASK`` with the progress of
    those whose task it was (the layout of the competition's files)."""
    out: dict[str, Any] = {}
    for p, name in enumerate(names):
        mine = [row for row in rows if row["player"] == p]
        of: dict[str, list[Any]] = {key: [row[key] for row in mine] for key in rows[0] if key != "player"}
        for row in mine:
            of.setdefault(f"curriculum/{row['task']}", []).append(row["progress"])
        out[name] = of
    return out


def main(config: NmmoEvaluateConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    episodes = config.worlds_played
    cli.require(1, repeats=config.repeats, episodes=episodes, worlds=config.worlds)
    cli.require(0, seed=config.seed)
    if any((config.policies / name).exists() for name in artefacts.AGENTS if name != DESCRIPTION):
        raise UserError(f"{config.policies} is an agent of another world: say --agent {config.policies}")
    inputs = artefacts.Inputs(policies_in(config.policies))
    policies: dict[str, Player] = dict(load_policies(inputs, device))
    spec = next(iter(policies.values())).spec
    if config.random:
        policies[RANDOM] = RandomPolicy(spec)
    if config.mode == "pvp" and len(policies) < 2:
        raise UserError("pvp needs at least two policies (or --random)")
    options = replace(options_of(spec), **held_out(spec.options))
    if config.mode == "pvp" and options.players < len(policies):
        raise UserError(f"{len(policies)} policies do not fit into worlds of {options.players} agents")
    env = NmmoEnv(options, config.worlds, config.maps)
    out = config.out or config.policies / f"eval_{config.mode}"
    slots = env.spec.slots
    with artefacts.new_run(out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        lived = 0
        for repeat in range(config.repeats):
            seed = game_seed(config.seed, repeat)
            if config.mode == "pve":
                rows = []
                for p, player in enumerate(policies.values()):
                    alone = lives([player], np.zeros(slots, np.int64), env, episodes, seed=seed, device=device,
                                  greedy=config.greedy)  # fmt: skip
                    rows += [{**row, "player": p} for row in alone]
            else:
                # Groups move on by one slot from world to world, so that no policy always has the first numbers.
                player_B = (np.arange(slots) % options.players + np.arange(slots) // options.players) % len(policies)
                rows = lives(list(policies.values()), player_B, env, episodes, seed=seed, device=device,
                             greedy=config.greedy)  # fmt: skip
            said = json.dumps(file_of(rows, list(policies)))
            artefacts.write_atomically(run.path / f"result_{repeat:03d}.json", said.encode())
            lived += len(rows)
        run.facts = {"mode": config.mode, "policies": list(policies), "episodes": episodes}
        run.record("lives", lived, "lives")
    env.close()
    print(f"{counted(config.repeats, 'file')} with {counted(lived, 'life')} of {', '.join(policies)}: {out}")
