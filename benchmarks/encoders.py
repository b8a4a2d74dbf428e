"""Frames per second of the agent's encoders, and what bfloat16, threads and the allocator do for them.

``python benchmarks/encoders.py`` prints one table; ratios are within this one run.  Each row comes from a child process
of the same script: threads and allocator are set per process.  ``--cpu`` counts the process's CPU time and not the wall
clock (one thread only): for machines on which other work runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

FRAMES = 1024
REPEATS = 5


def rates(kind: str, bf16: bool, threads: int, cpu: bool) -> tuple[float, float]:
    """Frames per second of the forward pass alone and of forward and backward, the best of REPEATS after a warm-up."""
    from core.config import tune_allocator

    tune_allocator()
    import torch

    from agents.networks import images, impala, strided, strided_blur

    torch.set_num_threads(threads)
    now = time.process_time if cpu else time.perf_counter
    tower = {"impala": impala, "strided": strided, "strided_blur": strided_blur}[kind]
    net = tower(256).to(memory_format=torch.channels_last)
    frames = torch.randint(0, 256, (FRAMES, 64, 64, 3), dtype=torch.uint8)
    best = [float("inf")] * 2
    for _ in range(REPEATS + 1):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            began = now()
            with torch.no_grad():
                net(images(frames))
            between = now()
            loss = net(images(frames)).float().sum()
        loss.backward()
        best = [min(best[0], between - began), min(best[1], now() - between)]
    return FRAMES / best[0], FRAMES / best[1]


def main(argv: list[str]) -> None:
    if argv[:1] == ["child"]:
        kind, precision, threads, clock = argv[1:]
        print(*rates(kind, precision == "bf16", int(threads), clock == "cpu"))
        return
    clock = "cpu" if argv == ["--cpu"] else "wall"
    kinds, counts = ("impala", "strided", "strided_blur"), ("1",) if clock == "cpu" else ("1", "2")
    rows = [(k, p, t, "keep") for t in counts for k in kinds for p in ("float32", "bf16")]
    line = "{:<14}{:<10}{:>7}  {:<10}{:>10}{:>12}{:>7}"
    print(line.format("encoder", "precision", "threads", "allocator", "forward/s", "and back/s", "ratio"))
    base = None
    for kind, precision, threads, allocator in [*rows, ("strided", "bf16", counts[-1], "system")]:
        env = {**os.environ, "DREAMLENS_ALLOCATOR": allocator, "OMP_WAIT_POLICY": "PASSIVE"}
        child = [sys.executable, __file__, "child", kind, precision, threads, clock]
        out = subprocess.run(child, env=env, capture_output=True, text=True, check=True).stdout
        forward, both = map(float, out.split())
        base = base or both
        numbers = f"{forward:,.0f}", f"{both:,.0f}", f"{both / base:.1f}"
        print(line.format(kind, precision, threads, allocator, *numbers), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
