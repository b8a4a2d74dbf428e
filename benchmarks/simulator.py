"""Training and rollout speed of the simulator at ``paper`` size, beside the step-by-step oracle.

``python benchmarks/simulator.py --rollouts runs/rollouts`` prints the tables of docs/performance.md; about five
minutes on two cores.  All variants run in turns within this one process, under one allocator setting and with
the same optimiser, and a ratio is the median of the ratios of neighbouring runs, so that other work on the
machine falls on both.  Peak memory comes from a child process a variant.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    import torch

    from core.roll import Simulator
    from generative.losses import Batch
    from generative.recurrent_world import RSSMWorld

STEPS = 32
VARIANTS = ("oracle float32", "ours float32", "oracle bf16", "ours bf16")


def build(preset: str) -> Simulator[RSSMWorld]:
    """The simulator of a preset around an untrained agent of that preset."""
    import torch

    from agents.recurrent import AgentConfig, RecurrentAgent
    from core import config as cli
    from envs.procgen import ProcgenEnv, ProcgenOptions
    from generative.rssm import ModelConfig
    from generative.simulator import simulator_of

    torch.manual_seed(0)
    net = cli.from_json(AgentConfig, cli.preset("train", preset)["net"])
    model = cli.from_json(ModelConfig, cli.preset("train_gen_model", preset)["model"])
    agent = RecurrentAgent(net, ProcgenEnv(ProcgenOptions(), 1).spec).requires_grad_(False)
    return simulator_of(model, agent)


def random_batch(sim: Simulator[RSSMWorld], size: int, generator: torch.Generator) -> Batch:
    """Windows of noise, none of which ends."""
    import torch

    from generative.losses import Batch

    hidden, actions = sim.agent.points["h"], sim.world.spec.n_actions
    shape = (size, sim.world.initial_frames - 1 + STEPS, 64, 64, 3)
    every = torch.ones(size, STEPS, dtype=torch.bool)
    return Batch(
        obs={"frames": torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)},
        seen=every,
        happened=every,
        reward=torch.zeros(size, STEPS),
        terminal=torch.zeros(size, STEPS),
        action=torch.randint(0, actions, (size, STEPS), generator=generator),
        h=torch.zeros(size, STEPS, hidden),
        state_before=torch.zeros(size, sim.world.memory_size),
        action_before=torch.zeros(size, dtype=torch.long),
    )


class Bench:
    """One simulator and its optimiser, updated by either implementation."""

    def __init__(self, preset: str, clock: Callable[[], float]) -> None:
        import torch

        self.clock = clock
        self.sim = build(preset)
        self.generator = torch.Generator().manual_seed(0)
        self.optimiser = torch.optim.Adam(self.sim.world.parameters(), lr=1e-5, fused=True)

    def gradients(self, variant: str, batch: Batch) -> None:
        from benchmarks.stepwise import loss_stepwise
        from core.ranks import Processes
        from generative.context_loss import ContextLossConfig
        from generative.courses import RecurrentCourse
        from generative.losses import LossConfig, draw
        from generative.recurrent_world import Precision
        from generative.train import backward

        implementation, precision = variant.split()
        self.sim.world.precision = Precision(precision == "bf16")
        size, length = batch.action.shape
        draws = draw(self.sim.world, size, length, LossConfig(), self.generator)
        if implementation == "ours":
            backward(self.sim, batch, draws, RecurrentCourse(LossConfig(), ContextLossConfig()), Processes())
        else:
            self.optimiser.zero_grad(set_to_none=True)
            loss_stepwise(self.sim, batch, LossConfig(), draws).backward()

    def update(self, variant: str, size: int) -> float:
        """Seconds of one update: loss, gradients, clipping, Adam."""
        import torch

        batch = random_batch(self.sim, size, self.generator)
        began = self.clock()
        self.gradients(variant, batch)
        parameters = list(self.sim.world.parameters())
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        torch.nn.utils.clip_grads_with_norm_(parameters, 100.0, norm)
        self.optimiser.step()
        return self.clock() - began

    def gflop(self, size: int = 2) -> float:
        """Floating-point operations of loss and gradients a simulated frame, in thousand millions: the oracle's,
        for ours computes a part twice to be faster."""
        from torch.utils.flop_counter import FlopCounterMode

        batch = random_batch(self.sim, size, self.generator)
        with FlopCounterMode(display=False) as counter:
            self.gradients("oracle float32", batch)
        return counter.get_total_flops() / 1e9 / (size * STEPS)

    def rollout(self, size: int) -> float:
        """Frames per second of a modal rollout without gradients."""
        import torch

        from generative.recurrent_world import Precision

        self.sim.world.precision = Precision()
        world = self.sim.world
        z = world.normalise(torch.randn(size, world.latent_size, generator=self.generator))
        with torch.no_grad():
            return best(lambda: self.sim.rollout(z, STEPS - 1), 3, size * STEPS, self.clock)


def best(work: Callable[[], object], repeats: int, amount: float, clock: Callable[[], float]) -> float:
    """Amount per second, the best of ``repeats`` after a warm-up."""
    work()
    times = []
    for _ in range(repeats):
        began = clock()
        work()
        times.append(clock() - began)
    return amount / min(times)


def peak_gflops(bf16: bool, clock: Callable[[], float]) -> float:
    """What a large matrix product reaches here, in GFLOP/s: the arithmetic peak in practice."""
    import torch

    n = 2048
    a, b = (torch.randn(n, n, dtype=torch.bfloat16 if bf16 else torch.float32) for _ in range(2))
    return best(lambda: a @ b, 9, 2 * n**3 / 1e9, clock)


def loading(rollouts: Path, batch: int, preload: bool, clock: Callable[[], float]) -> float:
    """Frames per second at which windows become batches."""
    import numpy as np
    import torch

    from core.episodes import RolloutStore
    from generative.train import columns_of, to_batch

    with RolloutStore(rollouts) as store:
        if preload:
            store.preload(*columns_of(store))
        windows = store.windows(columns_of(store), 2 + STEPS, batch, np.random.default_rng(0), at_least=4)
        return best(lambda: to_batch(next(windows), 3, torch.device("cpu")), 20, batch * STEPS, clock)


def memory(preset: str, variant: str, size: int, threads: int) -> float:
    """Peak resident size in GB of a process that makes two updates."""
    words = [sys.executable, __file__, "--preset", preset, "--threads", str(threads), "--child", variant, str(size)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    from core.config import tune_allocator

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--repeats", type=int, default=6, help="runs of each variant")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rollouts", type=Path, help="real rollouts, to measure data loading too")
    parser.add_argument("--busy", action="store_true", help="one thread, and its processor time instead of the wall's")
    parser.add_argument("--child", nargs=2, metavar=("VARIANT", "BATCH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    tune_allocator()
    import torch

    threads, clock = (1, time.process_time) if args.busy else (args.threads, time.perf_counter)
    torch.set_num_threads(threads)
    bench = Bench(args.preset, clock)
    if args.child:
        for _ in range(2):
            bench.update(args.child[0], int(args.child[1]))
        # Not getrusage's maximum: a child inherits its parent's.
        status = Path("/proc/self/status").read_text()
        print(int(status.split("VmHWM:")[1].split()[0]) / 1e6)
        return
    gflop = bench.gflop()
    peak = {"float32": peak_gflops(False, clock), "bf16": peak_gflops(True, clock)}
    parameters = sum(p.numel() for p in bench.sim.world.parameters()) / 1e6
    print(f"{args.preset}: {parameters:.1f} M parameters, {gflop:.2f} GFLOP a frame trained; {threads} threads;")
    print(f"large matrix products reach {peak['float32']:,.0f} GFLOP/s in float32, {peak['bf16']:,.0f} in bfloat16\n")
    print(
        "| batch x steps | variant | frames/s | x oracle float32 (range) | x oracle, same precision | peak | memory |"
    )
    print("|---|---|---|---|---|---|---|")
    rates: dict[tuple[str, int], float] = {}
    for size in args.batches:
        times: dict[str, list[float]] = {v: [] for v in VARIANTS}
        for variant in VARIANTS:
            bench.update(variant, size)
        for _ in range(args.repeats):
            for variant in VARIANTS:
                times[variant].append(bench.update(variant, size))
        for variant in VARIANTS:
            precision = variant.split()[1]
            rate = rates[variant, size] = size * STEPS / statistics.median(times[variant])
            plain, same = (
                [o / t for o, t in zip(times[f"oracle {p}"], times[variant], strict=True)]
                for p in ("float32", precision)
            )
            share = rate * gflop / peak[precision]
            print(
                f"| {size} x {STEPS} | {variant} | {rate:.0f} | {statistics.median(plain):.2f} ({min(plain):.2f} to "
                f"{max(plain):.2f}) | {statistics.median(same):.2f} | {share:.0%} | "
                f"{memory(args.preset, variant, size, threads):.1f} GB |",
                flush=True,
            )
    print("\nrollouts, modal, without gradients: ", end="")
    print(", ".join(f"{bench.rollout(n):.0f} frames/s at batch {n}" for n in (*args.batches, 32)))
    if args.rollouts:
        fastest = max(rates.values())
        for preload in (False, True):
            rate = loading(args.rollouts, max(args.batches), preload, clock)
            kind = "data loading, preloaded" if preload else "data loading"
            print(f"{kind}: {rate:,.0f} frames/s, {rate / fastest:.0f} x training")


if __name__ == "__main__":
    main()
