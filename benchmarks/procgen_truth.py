"""What truth columns cost: recording with ``--truth`` against recording without.

    python -m benchmarks.procgen_truth --agent bundles/coinrun-robust/agent

Every ratio is of CPU seconds in one run: the same episodes (levels, seeds and actions), recorded in turns, stores
written and all.  Also what reading one state takes, in steps of the world.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from agents.load import load_agent
from agents.record import RecordConfig, main as record
from core.artefacts import read_manifest
from envs.procgen_state import state_of
from envs.procgen_truth import truth_of
from envs.registry import make

WAYS: dict[str, tuple[str, ...] | None] = {
    "none": None, "positions": ("positions",), "every 4": ("every", "4"), "all": ("all",)
}  # fmt: skip


def recording(agent: Path, episodes: int, slots: int, rounds: int, threads: int) -> dict[str, list[float]]:
    """{way: CPU seconds of each round}; the first round warms up and is left out."""
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    steps = set()
    for turn in range(rounds + 1):
        for way, words in WAYS.items():
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                out = Path(folder) / "rollouts"
                begun = time.process_time()
                record(RecordConfig(agent=agent, out=out, episodes=episodes, slots=slots, truth=words, threads=threads))
                took = time.process_time() - begun
                steps.add(read_manifest(out)["metrics"]["steps"]["value"])
            if turn:
                spent[way].append(took)
    assert len(steps) == 1, f"not the same episodes: {steps} steps"
    return spent


def reading(agent: Path, slots: int, rounds: int) -> dict[str, float]:
    """CPU milliseconds a step of ``slots`` worlds: of the world, of get_state, of parsing it, and of the columns."""
    env = make(load_agent(agent).spec, slots, threads=1)
    rng = np.random.default_rng(0)
    env.reset(0)

    def each(work: Callable[[], object]) -> float:
        work()
        begun = time.process_time()
        for _ in range(rounds):
            work()
        return 1e3 * (time.process_time() - begun) / rounds

    out = {"step": each(lambda: env.step(rng.integers(15, size=slots))), "get_state": each(env.snapshot)}
    bytes_B = env.snapshot()
    out["parse"] = each(lambda: [state_of(one) for one in bytes_B])
    states = [state_of(one) for one in bytes_B]
    out["columns"] = each(lambda: truth_of(states))
    env.close()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", type=Path, default=Path("bundles/coinrun-robust/agent"))
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    parts = reading(args.agent, 64, 30)
    print("64 worlds, CPU ms: " + ", ".join(f"{name} {ms:.1f}" for name, ms in parts.items()))
    spent = recording(args.agent, args.episodes, args.slots, args.rounds, args.threads)
    least = min(spent["none"])
    for way, seconds in spent.items():
        ratios = np.array(seconds) / spent["none"]
        print(f"--truth {way:<10} {min(seconds):7.2f} CPU s, ratio of the least {min(seconds) / least:.2f} "
              f"(by round {', '.join(f'{r:.2f}' for r in ratios)})")  # fmt: skip


if __name__ == "__main__":
    main()
