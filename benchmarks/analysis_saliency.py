"""Saliency: all quantities from one forward pass, beside a forward and a backward pass for each, in the same run.

``python benchmarks/analysis_saliency.py --threads 1``

F is a forward pass of a batch of rollouts from random latents up to the target step, with what a backward pass needs; B
a backward pass of one quantity to every frame, hidden state and world state.  Naive: F and B for every quantity by
itself.  Ours: ``analysis.shared.gradients.gradients``, one forward pass and a backward pass a quantity.  No way that
takes a backward pass a quantity can be faster than the naive one by more than the bound (F + B) / (F / Q + B).  The
strided agent is the bundled one, the IMPALA agent has random weights; the world is the bundled one.

Times are of the CPU (all threads), which other programs on the machine disturb little: medians of repeats in turns.
"""

from __future__ import annotations

import argparse
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

    from analysis.shared.quantities import Quantity
    from core.directions import Basis
    from core.roll import Simulator

TARGET, QUANTITIES = 4, 18
TIMED = 2  # quantities that the naive way is timed on in each turn: it does the same work for each
CLOSE = 1e-5  # of a map's largest entry


def no_basis(kind: str) -> Basis:
    from core.contracts import UserError

    raise UserError(f"no basis {kind}")


def relative(x: Tensor, y: Tensor) -> float:
    """Largest difference of two maps, of the largest entry of the second."""
    return float((x - y).abs().max() / y.abs().max().clamp_min(1e-30))


def measure(simulator: Simulator[Any], z_SZ: Tensor, quantities: list[Quantity], repeats: int) -> dict[str, float]:
    """Medians of seconds (F, B, a naive quantity, all of ours), and the largest difference of the maps."""
    import statistics

    import torch

    from analysis.shared.gradients import gradients, reading_at, row_gradients, unroll

    with torch.no_grad():
        chosen_S = unroll(simulator, z_SZ, TARGET)[TARGET].action

    def forward() -> tuple[Tensor, list[Tensor]]:
        moments = unroll(simulator, z_SZ.detach().requires_grad_(), TARGET)
        fields = [x for m in moments for x in m.shown.obs.values()]
        sources = fields + [m.h_BH for m in moments] + [m.shown.features_BD for m in moments]
        return quantities[0].read(reading_at(moments, TARGET, chosen_S)), sources

    def naive(some: list[Quantity]) -> list[dict[str, Tensor]]:
        found = []
        for q in some:
            moments = unroll(simulator, z_SZ.detach().requires_grad_(), TARGET)
            y_S = q.read(reading_at(moments, TARGET, chosen_S))
            sources = [x for m in moments for x in (*m.shown.obs.values(), m.h_BH, m.shown.features_BD)]
            grads = iter(row_gradients([y_S], sources)[0])
            names = [*moments[0].shown.obs, "h", "d"]
            steps = [{name: next(grads) for name in names} for _ in moments]
            found.append({name: torch.stack([step[name] for step in steps], 1) for name in names})
        return found

    seconds: dict[str, list[float]] = {name: [] for name in ("F", "B", "naive", "ours")}

    def timed(name: str, work: Callable[[], Any], count: int = 1) -> Any:
        start = time.process_time()
        found = work()
        seconds[name].append((time.process_time() - start) / count)
        return found

    misses: list[float] = []
    for n in range(repeats + 1):  # the first warms up
        y_S, sources = timed("F", forward)
        row_gradients([y_S], sources, keep=True)  # a first one allocates what the later ones use again
        timed("B", lambda y_S=y_S, sources=sources: row_gradients([y_S], sources, keep=True))
        del y_S, sources
        ours = timed(
            "ours", lambda: gradients(simulator, z_SZ, chosen_S, quantities, TARGET, steps=TARGET, paths=(True,))
        )
        if n:
            timed("naive", lambda: naive(quantities[:TIMED]), TIMED)
            continue
        for (mine,), exact in zip(ours, naive(quantities), strict=True):
            misses += [relative(mine.of(name)[s], x[s]) for name, x in exact.items() for s in range(len(z_SZ))]
    medians = {name: statistics.median(found[-repeats:]) for name, found in seconds.items()}
    return {**medians, "miss": max(misses), "over": sum(miss > CLOSE for miss in misses), "maps": len(misses)}


def main() -> None:
    import core  # noqa: F401, I001  (before torch: its threads must not spin while they wait)
    import torch

    from agents.recurrent import AgentConfig, RecurrentAgent
    from analysis.shared.quantities import find_quantities, known_quantities
    from core.config import tune_allocator
    from generative.record_samples import random_latents
    from generative.simulator import load_simulator

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulator", type=Path, default=ROOT / "bundles/coinrun-context/simulator")
    parser.add_argument("--count", type=int, default=16, help="rollouts")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    tune_allocator()
    torch.set_num_threads(args.threads)
    bundled = load_simulator(args.simulator)
    spec = bundled.world.spec
    torch.manual_seed(0)
    impala = RecurrentAgent(AgentConfig(encoder="impala"), spec).eval().requires_grad_(False)
    z_SZ = random_latents(bundled.world, args.count, torch.Generator().manual_seed(0))
    # Every id a quantity; jumping_up, jumping_left and jumping_right are actions: each number once.
    every = replace(spec, same_actions=())
    names = [n for n in known_quantities(every) if n not in ("up", "upleft", "upright")][:QUANTITIES]
    quantities = find_quantities(names, every, no_basis)
    count = len(quantities)
    print(f"{args.count} rollouts, target step {TARGET}, {count} quantities, {args.threads} threads; CPU time\n")
    print("| agent | F, s | B, s | naive, s a quantity | ours, s a quantity | naive / ours | bound | share of it | "
          f"largest difference | maps above {CLOSE:g} |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, simulator in (("strided", bundled), ("IMPALA", bundled.with_agent(impala))):
        m = measure(simulator, z_SZ, quantities, args.repeats)
        ratio, bound = m["naive"] / (m["ours"] / count), (m["F"] + m["B"]) / (m["F"] / count + m["B"])
        print(
            f"| {name} | {m['F']:.3f} | {m['B']:.3f} | {m['naive']:.3f} | {m['ours'] / count:.3f} | {ratio:.2f} | "
            f"{bound:.2f} | {ratio / bound:.2f} | {m['miss']:.1e} | {m['over']:.0f} of {m['maps']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
