"""Frames per second of the agent's encoders, and what bfloat16 and the allocator do for them.

``python benchmarks/encoders.py`` prints one table; ratios are within this one run.  The allocator is
set per process, so its row comes from a child process of the same script.
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
REPEATS = 3


def rate(kind: str, bf16: bool) -> float:
    """Frames per second of forward and backward, the best of REPEATS after a warm-up."""
    import torch

    from agents.networks import images, impala, strided

    net = {"impala": impala, "strided": strided}[kind](256).to(memory_format=torch.channels_last)
    frames = torch.randint(0, 256, (FRAMES, 64, 64, 3), dtype=torch.uint8)
    best = float("inf")
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = net(images(frames)).float().sum()
        loss.backward()
        best = min(best, time.perf_counter() - began)
    return FRAMES / best


def main() -> None:
    from core.config import tune_allocator

    tune_allocator()
    if len(sys.argv) == 3:  # the child: one number
        print(rate(sys.argv[1], sys.argv[2] == "bf16"))
        return
    rows = [("strided", "float32"), ("strided", "bf16"), ("impala", "float32"), ("impala", "bf16")]
    rates = {(kind, p, "keep"): rate(kind, p == "bf16") for kind, p in rows}
    child = [sys.executable, __file__, "strided", "bf16"]
    env = {**os.environ, "DREAMLENS_ALLOCATOR": "system"}
    out = subprocess.run(child, env=env, capture_output=True, text=True, check=True).stdout
    rates["strided", "bf16", "system"] = float(out)
    base = rates["impala", "float32", "keep"]
    print(f"{'encoder':<10}{'precision':<10}{'allocator':<10}{'frames/s':>10}{'ratio':>8}")
    for (kind, precision, allocator), value in rates.items():
        print(f"{kind:<10}{precision:<10}{allocator:<10}{value:>10,.0f}{value / base:>8.1f}")


if __name__ == "__main__":
    main()
