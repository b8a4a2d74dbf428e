"""What keeping a world as a tree of what was done saves: ``python -m benchmarks.analysis_interventions``.

The bundled agent, its simulator and CoinRun; STARTS paired starts, HORIZON steps, 50 random changes of the hidden state
(of the size of one standard deviation of every neuron together) in both worlds.  The naive way plays every step of
every start of every run.  Both must give the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from core import config as cli
from core.contracts import Intervention, VecEnv
from core.interventions import AddVector, AtSteps
from envs.procgen import HELD_OUT_LEVEL
from envs.registry import make
from generative.simulator import load_simulator
from validation.paired.course import Measures, quantities
from validation.paired.real import RealWorld
from validation.paired.simulated import SimulatedWorld, begun
from validation.paired.starts import collect_starts, distinct_actions

BUNDLE = cli.ROOT / "bundles" / "coinrun-context" / "simulator"
STARTS, HORIZON, CHANGES = 64, 8, 50


def timed(work: Callable[[], dict[str, np.ndarray]]) -> tuple[dict[str, np.ndarray], float]:
    """What it gives, and the processor seconds it took (of all threads: other work beside it does not count)."""
    began = time.process_time()
    return work(), time.process_time() - began


def main() -> None:
    cli.tune_allocator()
    torch.set_num_threads(1)
    simulator = load_simulator(BUNDLE)
    agent = simulator.agent

    def real_world(slots: int) -> VecEnv:
        return make(simulator.world.spec, slots, threads=1, start_level=HELD_OUT_LEVEL, num_levels=100_000)

    env, few, world = real_world(STARTS), real_world(32), simulator.world
    starts = collect_starts(agent, env, STARTS, initial_frames=world.initial_frames, latest=32, seed=0)
    measures = Measures(distinct_actions(env, starts))
    noise = torch.from_numpy(np.random.default_rng(0).gumbel(size=(STARTS, HORIZON + 1, world.spec.n_actions))).float()
    with torch.no_grad():
        z = world.normalise(world.infer({k: torch.from_numpy(v) for k, v in starts.window.items()})[0])
    real = RealWorld(agent, starts.state, noise, measures, env, starts, few)
    dreamed = SimulatedWorld(agent, starts.state, noise, measures, world, begun(world, z))
    generator = torch.Generator().manual_seed(0)
    units = torch.nn.functional.normalize(torch.randn(CHANGES, agent.points["h"], generator=generator), dim=-1)
    size = float(starts.h_NH.std(0).norm())
    changes: list[Intervention] = [AtSteps(AddVector(size * u), 0, 1) for u in units]
    every = torch.arange(STARTS)

    def naive(course: Callable[[Intervention], object]) -> dict[str, np.ndarray]:
        with torch.no_grad():
            found = [quantities(course(change), measures) for change in changes]  # type: ignore[arg-type]
        return {q: torch.stack([f[q] for f in found]).double().numpy() for q in found[0]}

    print(f"{STARTS} starts, {HORIZON} steps, {CHANGES} random changes; processor seconds, one thread")
    print(f"{'world':<12} {'naive':>8} {'tree':>8} {'times':>7} {'largest difference':>20}")
    for name, plain, tree in (
        ("real", lambda: naive(lambda g: real.course((g,))), lambda: real.measure(changes, together=CHANGES)),
        ("simulator", lambda: naive(lambda g: dreamed.course_from(every, (g,))),
         lambda: dreamed.measure(changes, together=CHANGES)),
    ):  # fmt: skip
        tree_found, fast = timed(tree)
        plain_found, slow = timed(plain)
        apart = max(float(np.abs(plain_found[q] - tree_found[q]).max()) for q in plain_found)
        print(f"{name:<12} {slow:>8.1f} {fast:>8.1f} {slow / fast:>7.1f} {apart:>20.1e}")


if __name__ == "__main__":
    main()
