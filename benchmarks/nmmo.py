"""Neural MMO: our adapter against the raw environment, extraction against the rollout alone, the store against JSON.

    python -m benchmarks.nmmo --policy bundles/nmmo-demo/policies/hybrid

Every ratio is of CPU seconds (or bytes) in one run: the same worlds, seeds and actions on both sides, in turns.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.nmmo_play import play
from agents.policies import load_policy
from analysis import activation_json
from analysis.lives.recording import SHARD_STEPS, STORE, record_lives
from core import config as cli
from core.episodes import StoreWriter
from envs.nmmo import NmmoEnv, NmmoOptions, _World, held_out, options_of

CPU = torch.device("cpu")


def stepping(options: NmmoOptions, maps: Path, worlds: int, ticks: int) -> tuple[float, float, int]:
    """(CPU seconds of our step, of the raw env's, live agent-steps) over the same trajectories.

    Raw: nmmo.Env.step with its nested actions, and a reset when a world is over; what it returns is not even copied.
    """
    env = NmmoEnv(options, worlds, maps)
    raw = [_World(options, env.folder, None) for _ in range(worlds)]
    first, later = np.random.default_rng(0), [np.random.default_rng([0, w]) for w in range(worlds)]  # as NmmoEnv's
    rng = np.random.default_rng(1)
    step = env.reset(0)
    for world in raw:
        world.reset(int(first.integers(2**31)))
    sizes = list(env.spec.action_parts.values())
    ours = theirs = 0.0
    steps = 0
    gc.disable()  # a collection would be booked on whichever side happens to set it off
    for tick in range(ticks):
        gc.collect(0)
        parts = np.split(step.obs["Mask"], np.cumsum(sizes)[:-1], axis=1)
        action = np.stack([(part * rng.uniform(0.1, 1, part.shape)).argmax(1) for part in parts], 1)
        whole = env._whole(action)
        alive, truth = step.alive, step.truth
        assert alive is not None
        nested: list[dict[int, Any]] = [{} for _ in raw]
        for b in np.flatnonzero(alive):
            mine: dict[str, dict[str, int]] = {}
            for (atn, arg), value in zip(env._parts, whole[b].tolist(), strict=True):
                mine.setdefault(atn, {})[arg] = value
            nested[int(truth["world"][b])][int(truth["agent"][b])] = mine
        steps += int(alive.sum())
        for mine_now in (True, False) if tick % 2 else (False, True):
            began = time.process_time()
            if mine_now:
                step = env.step(action)
                ours += time.process_time() - began
                continue
            for world, actions, seeds in zip(raw, nested, later, strict=True):
                obs = world.env.step(actions)[0]
                if not world.env.agents:
                    obs = world.reset(int(seeds.integers(2**31)))[0]
            theirs += time.process_time() - began
        for w, world in enumerate(raw):  # the two stay one and the same
            assert world.env.realm.tick == step.truth["tick"][step.truth["world"] == w][0]
    gc.enable()
    del obs
    env.close()
    return ours, theirs, steps


def extraction(policy: Path, maps: Path, folder: Path, rounds: int) -> tuple[float, float, int, int]:
    """(CPU seconds of extracting, of the rollout alone, bytes of the store, live steps), in turns."""
    agent = load_policy(policy)
    options = replace(options_of(agent.spec), **held_out(agent.spec.options))
    env = NmmoEnv(options, 4, maps)
    player_B = np.zeros(env.spec.slots, np.int64)
    with_store = alone = 0.0
    steps = 0
    for seed in range(rounds):
        began = time.process_time()
        over = np.zeros(4, bool)
        for tick in play([agent], player_B, env, seed=seed, device=CPU):
            over[np.unique(tick.step.truth["world"][tick.next.is_first])] = True
            if over.all():
                break
        middle = time.process_time()
        with StoreWriter(folder, f"part_{seed:04d}", SHARD_STEPS, **STORE) as writer:
            for life in record_lives([agent], player_B, env, seed=seed, device=CPU):
                writer.add(life)
                steps += life.steps
        alone += middle - began
        with_store += time.process_time() - middle
    env.close()
    return with_store, alone, sum(p.stat().st_size for p in folder.glob("*.h5")), steps


PEAK = """
import resource, sys
from core import config as cli
from analysis import extract_activations as e
e.main(cli.parse(e.ExtractConfig, sys.argv[1:], e.STAGE))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak_mb(policy: Path, maps: Path, out: Path, parts: int) -> int:
    """Peak resident memory of an extraction of its own process, MB."""
    argv = ["pve", "-p", str(policy), "-o", str(out), "--parts", str(parts), "--maps", str(maps), "--threads", "1"]
    done = subprocess.run([sys.executable, "-c", PEAK, *argv], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", type=Path, required=True, help="run directory of a policy")
    parser.add_argument("--maps", type=Path, default=Path("runs/nmmo_maps"))
    parser.add_argument("--ticks", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--parts", type=int, default=1, help="memory is compared at this many parts and ten times as many"
    )
    args = parser.parse_args()
    cli.tune_allocator()
    torch.set_num_threads(1)
    for systems in ("core", "all"):
        ours, theirs, steps = stepping(NmmoOptions(systems=systems), args.maps, 4, args.ticks)
        rates = f"ours {steps / ours:,.0f}, raw {steps / theirs:,.0f} live agent-steps a CPU second"
        print(f"stepping, {systems} systems: {rates}: {theirs / ours:.3f} of raw ({steps:,} steps)")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "store"
        folder.mkdir()
        with_store, alone, _, steps = extraction(args.policy, args.maps, folder, args.rounds)
        slower = 100 * (with_store / alone - 1)
        print(f"extraction: {with_store:.1f} CPU s, rollout alone {alone:.1f}: {slower:.1f} % slower ({steps:,} steps)")
        few = peak_mb(args.policy, args.maps, Path(temporary) / "few", args.parts)
        many = peak_mb(args.policy, args.maps, Path(temporary) / "many", 10 * args.parts)
        print(f"peak memory: {few} MB for {args.parts} part(s), {many} MB for {10 * args.parts}: {many / few:.3f} x")
        file = Path(temporary) / "activations.json"
        config = activation_json.ActivationJsonConfig(action="export", file=file, directory=Path(temporary) / "few")
        activation_json.main(config)
        stored = sum(p.stat().st_size for p in (Path(temporary) / "few").glob("*.h5"))
        said = file.stat().st_size
        print(f"bytes: store {stored:,}, JSON {said:,}: 1/{said / stored:.1f}")


if __name__ == "__main__":
    main()
