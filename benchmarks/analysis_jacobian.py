"""Jacobians of 16 directions over 10 steps for 256 samples, beside a backward pass a direction.

``python benchmarks/analysis_jacobian.py`` prints the table of docs/performance.md, about six minutes on two free
cores; ``--samples 64 --repeats 1`` gives a first answer in one.  All on the bundled simulator, whose weights are
frozen in every variant, from states a few steps after random latents, in a random basis of 16 directions.

naive: for every sample and every target direction one forward and one backward pass, which gives that target's row
at all lags.  It is timed on a part of the samples (--naive_samples): it does the same work for each.
one pass a direction: the milder way, one forward pass over many samples, then a backward pass a target over them.
ours: ``coupling.jacobian.jacobians``, which gives the direct part (action -> world cut) too; straight-through, as in
the naive way, with all actions in one group, so that none is tried.
actions enumerated: the same with every distinct action tried at every step, on as many samples as the naive way.

The table says what a variant computes: the whole Jacobian, or the whole and its direct part, which the stage needs.
Variants run in turns in one process; a ratio is the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from torch import Tensor

    from core.directions import Basis
    from core.roll import Place, Simulator

DIRECTIONS, LAGS = 16, tuple(range(1, 11))


def one_by_one(sim: Simulator[Any], place: Place, basis: Basis, env_grads: bool = True) -> Tensor:
    """The naive way, a forward and a backward pass a sample and target: dc_j(T) / dc_i(T-lag) [B, lags, i, j]."""
    import torch

    from core.trees import rows_of

    rows = []
    for b in range(len(place.alive_B)):
        one = rows_of(place, slice(b, b + 1))
        columns = [a_direction(sim, one, basis, [j], env_grads) for j in range(DIRECTIONS)]
        rows.append(torch.cat(columns, -1))
    return torch.cat(rows)


def a_direction(sim: Simulator[Any], place: Place, basis: Basis, targets: list[int], env_grads: bool = True) -> Tensor:
    """One forward pass over all samples, then a backward pass a target: float [B, lags, i, targets]."""
    import torch

    from analysis.shared.gradients import unchanged
    from core.roll import go_on
    from core.trees import each

    place = place._replace(state=each(lambda x: x.detach().requires_grad_(), place.state))
    options: dict[str, Any] = {"steps": max(LAGS), "env_grads": env_grads, "intervene": (unchanged,)}
    moments = list(go_on(sim.agent, sim.world, place, **options))
    c_BK = basis.project(moments[-1].h_BH)
    sources = [moments[-1 - lag].h_BH for lag in LAGS]
    columns = []
    for n, j in enumerate(targets, 1):
        grads = torch.autograd.grad(c_BK[:, j].sum(), sources, retain_graph=n < len(targets))
        columns.append(basis.pullback(torch.stack(grads, 1)))
    return torch.stack(columns, -1)


def chunked(work: Callable[[Place], Tensor], place: Place, size: int, dim: int = 0) -> Tensor:
    """Work on ``size`` samples at a time."""
    import torch

    from core.trees import rows_of

    count = len(place.alive_B)
    return torch.cat([work(rows_of(place, slice(n, n + size))) for n in range(0, count, size)], dim)


def places(sim: Simulator[Any], count: int) -> Place:
    """Where rollouts from random latents are after three steps."""
    import torch

    from core.roll import after
    from generative.record_samples import random_latents

    with torch.no_grad():
        z = random_latents(sim.world, count, torch.Generator().manual_seed(0))
        return after(list(sim.roll(z, steps=2))[-1])


def main() -> None:
    from core.config import tune_allocator

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulator", type=Path, default=ROOT / "bundles/coinrun-context/simulator")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--naive_samples", type=int, default=4, help="of them, timed in the naive way in each turn")
    parser.add_argument("--memory_gb", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", action="store_true", help="one thread, and its processor time instead of the wall's")
    args = parser.parse_args()
    tune_allocator()
    import numpy as np
    import torch

    from analysis.coupling.jacobian import jacobians, rows_that_fit
    from analysis.shared.directions import neuron_basis
    from core.trees import rows_of
    from generative.simulator import load_simulator

    threads, clock = (1, time.process_time) if args.busy else (args.threads, time.perf_counter)
    torch.set_num_threads(threads)
    sim = load_simulator(args.simulator)
    place = places(sim, args.samples)
    neurons = neuron_basis(np.random.default_rng(0).standard_normal((256, sim.agent.points["h"])).astype(np.float32))
    some = slice(DIRECTIONS)
    basis = replace(neurons, project_HK=neurons.project_HK[:, some], lift_KH=neurons.lift_KH[some])
    size = min(args.samples, rows_that_fit(sim, place, max(LAGS), args.memory_gb * 1e9))
    few = rows_of(place, slice(args.naive_samples))
    every = list(range(DIRECTIONS))
    every_action = list(range(sim.agent.spec.n_actions))
    distinct = list(sim.world.spec.distinct_actions().values())

    def both_parts(some: Place, groups: list[list[int]]) -> Tensor:
        parts = jacobians(sim, some, basis, LAGS, groups)
        return torch.stack([parts["straight_through"], parts["direct"]])

    variants: dict[str, tuple[int, Callable[[], Tensor]]] = {
        "naive": (args.naive_samples, lambda: one_by_one(sim, few, basis)),
        "naive, agent only": (args.naive_samples, lambda: one_by_one(sim, few, basis, False)),
        "one pass a direction": (
            args.samples, lambda: chunked(lambda s: a_direction(sim, s, basis, every), place, size)
        ),
        "ours": (args.samples, lambda: chunked(lambda s: both_parts(s, [every_action]), place, size, 1)),
        "actions enumerated": (args.naive_samples, lambda: both_parts(few, distinct)),
    }  # fmt: skip
    found: dict[str, Tensor] = {}
    times: dict[str, list[float]] = {name: [] for name in variants}
    both_parts(few, [every_action])
    for _ in range(args.repeats):
        for name, (count, work) in variants.items():
            began = clock()
            found[name] = work()
            times[name].append((clock() - began) / count)
    ours, n = found["ours"], args.naive_samples
    worst = max(
        float((ours[0, :n] - found["naive"]).abs().max()), float((ours[1, :n] - found["naive, agent only"]).abs().max())
    )
    print(
        f"{DIRECTIONS} directions, lags {LAGS[0]} to {LAGS[-1]}, {args.samples} samples, {size} at a time, "
        f"{threads} threads"
    )
    print(f"largest |J| {float(ours.abs().max()):.3g}; ours and the naive way differ by at most {worst:.1e}\n")
    print("| work | variant | ms a sample | naive / this (range) |")
    print("|---|---|---|---|")
    both = [a + b for a, b in zip(times["naive"], times["naive, agent only"], strict=True)]
    rows = (
        ("whole", "naive", times["naive"], times["naive"]),
        ("whole", "one pass a direction", times["one pass a direction"], times["naive"]),
        ("whole and direct part", "naive", both, both),
        ("whole and direct part", "ours", times["ours"], both),
        ("(whole alone, in the same time)", "ours", times["ours"], times["naive"]),
        ("both, and through the world by trying actions", "actions enumerated", times["actions enumerated"], both),
    )
    for work_done, name, mine, yardstick in rows:
        ratios = [a / b for a, b in zip(yardstick, mine, strict=True)]
        print(
            f"| {work_done} | {name} | {1000 * statistics.median(mine):.1f} | {statistics.median(ratios):.1f} "
            f"({min(ratios):.1f} to {max(ratios):.1f}) |"
        )


if __name__ == "__main__":
    main()
