"""Speed of Craftax: its functions alone, the adapter around them, a training, and paired branches.

``python -m benchmarks.craftax --slots 128 --branches 10000``.  The adapter's overhead is what CraftaxEnv.step takes
more than the compiled functions that it calls (step, observation, new worlds): transfers, naming, rewards.  State the
machine's load beside every figure: on shared cores they are orders of magnitude.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from agents.craftax_train import CraftaxCollector, CraftaxTrainConfig
from agents.ppo import update
from agents.recurrent import RecurrentAgent
from envs.craftax import CraftaxEnv, CraftaxOptions, program_of


def timed(program: Any, spent: dict[str, float]) -> Any:
    """The compiled functions, which add up the seconds until their results are there."""
    import jax

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            out = jax.block_until_ready(function(*arguments))
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
            return out

        return call

    names = ("begin", "advance", "look", "put", "swap")
    return dataclasses.replace(program, **{name: watched(name, getattr(program, name)) for name in names})


def stepping(slots: int, steps: int) -> None:
    """Random actions: the functions' seconds and the whole."""
    env, rng = CraftaxEnv(CraftaxOptions(), slots), np.random.default_rng(0)
    spent: dict[str, float] = {}
    env.reset(0)
    for _ in range(150):  # compiled, and episodes end at all ages
        env.step(rng.integers(env.spec.n_actions, size=slots))
    env._program = timed(program_of(env.options.env_name, env.options.scarcity, ()), spent)
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        env.step(rng.integers(env.spec.n_actions, size=slots))
    cpu = time.process_time() - cpu
    whole, inside = time.perf_counter() - began, sum(spent.values())
    parts = ", ".join(f"{name} {1e3 * s / steps:.2f}" for name, s in spent.items())
    print(
        f"environment: {slots * steps / whole:,.0f} steps/s ({slots} slots; {slots * steps / cpu:,.0f} a CPU second); "
        f"ms a step: {parts}"
    )
    print(f"adapter overhead: {100 * (whole / inside - 1):.1f} % of the functions' time")


def training(slots: int, updates: int) -> None:
    """Environment, agent and update at the default sizes."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = CraftaxTrainConfig()
    ppo = dataclasses.replace(config.ppo, envs=slots)
    env = CraftaxEnv(config.env, slots)
    agent = RecurrentAgent(config.net, env.spec)
    collector = CraftaxCollector(agent, env, ppo, 0, torch.device("cpu"))
    optimiser, rng, collecting, updating = torch.optim.Adam(agent.parameters()), np.random.default_rng(0), 0.0, 0.0
    burnt = 0.0
    for i in range(updates + 1):
        began, before = time.perf_counter(), time.process_time()
        rollout = collector.collect()
        between = time.perf_counter()
        update(agent, optimiser, rollout, ppo, rng, ppo.entropy_coef)
        if i:  # the first compiles
            collecting, updating = collecting + between - began, updating + time.perf_counter() - between
            burnt += time.process_time() - before
    n = updates * collector.collected
    print(
        f"training: {n / (collecting + updating):,.0f} steps/s ({slots} slots, {ppo.rollout_steps} steps, "
        f"{ppo.epochs} epochs; {n / burnt:,.0f} a CPU second); {100 * updating / (collecting + updating):.0f} % of "
        "the time the update"
    )


def branching(branches: int, steps: int, slots: int) -> None:
    """Pairs of runs from the same snapshots, the second with another first action, ``slots`` at a time."""
    env, rng = CraftaxEnv(CraftaxOptions(), slots), np.random.default_rng(0)
    env.reset(0)
    for _ in range(20):
        env.step(rng.integers(env.spec.n_actions, size=slots))
    began, before, parted = time.perf_counter(), time.process_time(), 0
    for _ in range(-(-branches // slots)):
        states = env.snapshot()
        action, last = rng.integers(env.spec.n_actions, size=(steps, slots)), []
        for first in (action[0], (action[0] + 1) % env.spec.n_actions):
            env.restore(states)
            for chosen in (first, *action[1:]):
                step = env.step(chosen)
            last.append(step.obs["blocks"])
        parted += int((last[0] != last[1]).any(1).sum())
    took, cpu = time.perf_counter() - began, time.process_time() - before
    print(f"{branches:,} paired branches of {steps} steps: {took:.0f} s, {cpu:.0f} of CPU time ({slots} slots); "
          f"{parted:,} pairs parted")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--branches", type=int, default=10_000)
    parser.add_argument("--branch_slots", type=int, default=500)
    given = parser.parse_args()
    parts = CraftaxTrainConfig().ppo.minibatches
    if given.updates and given.slots % parts:
        parser.error(f"--slots must be a multiple of {parts}, the training's minibatches, not {given.slots}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    stepping(given.slots, given.steps)
    if given.updates:
        training(given.slots, given.updates)
    if given.branches:
        branching(given.branches, 32, given.branch_slots)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
