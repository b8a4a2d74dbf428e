"""Saliency: 18 quantities of every sample from one pass, against a pass for each, in the same run.

``python benchmarks/analysis_saliency.py --simulator bundles/coinrun-demo/simulator --samples runs/demo/samples``

Naive (a): for each (sample, quantity) one forward and one backward pass on a batch of its 9 noised copies.
Naive (b): one forward and one backward pass for each copy.  Ours: ``shared.gradients.gradients`` on all samples.
Times are of the CPU (all threads), which other programs on the machine disturb little; the best of the repeats.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    import torch

    from core.directions import Basis

COPIES, TARGET, QUANTITIES = 9, 4, 18


def seconds(work: Callable[[], object], repeats: int) -> float:
    """CPU time of the fastest of ``repeats`` runs, after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def relative(x: torch.Tensor, y: torch.Tensor) -> float:
    """Largest difference of two maps, of the largest entry of the second."""
    return float((x - y).abs().max() / y.abs().max().clamp_min(1e-30))


def no_basis(kind: str) -> Basis:
    from core.contracts import UserError

    raise UserError(f"no basis {kind}")


def main() -> None:
    import torch

    from analysis.saliency.explain import noised
    from analysis.shared.gradients import compare_copies, each_copy, gradients, unroll
    from analysis.shared.quantities import find_quantities, known_quantities
    from core.config import tune_allocator
    from core.episodes import RolloutStore
    from generative.simulator import load_simulator

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulator", type=Path, default=ROOT / "bundles/coinrun-demo/simulator")
    parser.add_argument("--samples", type=Path, default=ROOT / "runs/demo/samples")
    parser.add_argument("--count", type=int, default=16, help="samples")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    tune_allocator()
    torch.set_num_threads(args.threads)
    simulator = load_simulator(args.simulator)
    with RolloutStore(args.samples) as store:
        z_SZ = torch.from_numpy(store.latents(list(range(args.count))))
    spec = replace(simulator.spec, same_actions=())  # every id a quantity: as many as were measured at first
    known = known_quantities(spec)
    # jumping_up, jumping_left and jumping_right are actions: each number once.
    names = [n for n in known if n not in ("up", "upleft", "upright")][:QUANTITIES]
    quantities = find_quantities(names, spec, no_basis)
    with torch.no_grad():
        _, outs = unroll(simulator, simulator.start(z_SZ), TARGET + 1)
    chosen_B = outs[TARGET].action_B.repeat_interleave(COPIES)
    z_BZ = noised(simulator, z_SZ, range(args.count), COPIES, 1.25e-4, 0)

    def ours(cuts: tuple[bool, ...]) -> list[object]:
        shared = compare_copies(simulator, z_BZ, chosen_B, TARGET, COPIES)
        return [
            gradients(
                simulator, z_BZ, chosen_B, quantities, TARGET,
                steps=TARGET, copies=COPIES, env_grads=cut, compared=shared,
            )
            for cut in cuts
        ]  # fmt: skip

    def naive(rows: int) -> float:
        """Seconds of one (sample, quantity): the mean over two samples and two quantities."""
        some = [(s, q) for s in range(min(2, args.count)) for q in quantities[:2]]

        def work() -> None:
            for s, q in some:
                for first in range(s * COPIES, (s + 1) * COPIES, rows):
                    part = slice(first, first + rows)
                    each_copy(simulator, z_BZ[part], chosen_B[part], [q], TARGET, steps=TARGET, copies=rows)

        return seconds(work, args.repeats) / len(some)

    a, b = naive(COPIES), naive(1)
    per = args.count * len(quantities)
    one = seconds(lambda: ours((True,)), args.repeats) / per
    both = seconds(lambda: ours((True, False)), args.repeats) / per
    start = time.process_time()
    each_copy(simulator, z_BZ, chosen_B, quantities, TARGET, steps=TARGET, copies=COPIES)
    plain = (time.process_time() - start) / per
    # Rounding differs with the batch, and opens a ReLU here and there that another batch leaves shut: what is compared
    # runs on the same rows.  The last line says how far naive (a) is from itself, sample by sample and all at once.
    misses, of_itself = [], []
    options: dict[str, int] = {"steps": TARGET, "copies": COPIES}
    short = gradients(simulator, z_BZ, chosen_B, quantities, TARGET, **options)
    long = each_copy(simulator, z_BZ, chosen_B, quantities, TARGET, **options)
    for s in range(args.count):
        rows = slice(s * COPIES, (s + 1) * COPIES)
        (alone,) = each_copy(simulator, z_BZ[rows], chosen_B[rows], quantities[:1], TARGET, **options)
        for field in short[0].obs:
            misses += [relative(x.obs[field][s], y.obs[field][s]) for x, y in zip(short, long, strict=True)]
            of_itself.append(relative(alone.obs[field][0], long[0].obs[field][s]))
    print(f"{args.count} samples x {len(quantities)} quantities x {COPIES} copies, {args.threads} threads; CPU time")
    print(f"{'way':58} {'ms per (sample, quantity)':>26} {'naive (a) / it':>15}")
    for name, value, reference in (
        ("naive (a): a pass each, 9 copies a batch", a, a),
        ("naive (b): a pass a copy", b, a),
        ("one forward pass for all, a backward pass a quantity", plain, a),
        ("ours", one, a),
        ("ours, with and without the world (naive (a) twice)", both, 2 * a),
    ):
        print(f"{name:58} {1e3 * value:26.2f} {reference / value:15.1f}")
    over = sum(miss > 1e-5 for miss in misses)
    print(f"largest difference from naive (a), of a map's largest entry: {max(misses):.1e}; above 1e-5 in {over} of "
          f"{len(misses)} maps")  # fmt: skip
    print(f"of naive (a) from itself in a batch of {len(z_BZ)} rows: {max(of_itself):.1e} ({len(of_itself)} maps)")


if __name__ == "__main__":
    main()
