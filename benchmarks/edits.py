"""Paired edits of the real game: how many in how long?

    python -m benchmarks.edits        # 2,048 edits of 16 steps, each beside its unedited twin

Prints the time of each way, and its ratio to the unedited twin's of the same run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from agents.load import load_agent
from analysis.shared.edit_starts import collect, fits
from envs.procgen import ProcgenEnv, ProcgenOptions
from envs.procgen_edits import parse_edit
from validation.edits.course import EditedWorld

EDITS = ("remove coin", "remove saw", "remove crate", "move coin by -3 0", "add wall ahead 2", "add saw ahead 3",
         "set velocity 0 0", "move agent by 0 1")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", type=Path, default=Path("bundles/coinrun-robust/agent"))
    parser.add_argument("--starts", type=int, default=256)
    parser.add_argument("--horizon", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    agent, cpu = load_agent(args.agent), torch.device("cpu")
    options = ProcgenOptions(**{**agent.spec.options, "start_level": 700_000_000})
    collector, env, drawer = (ProcgenEnv(options, n, args.threads) for n in (64, args.starts, args.starts))
    edits = [parse_edit(text, "coinrun") for text in EDITS]
    begun = time.perf_counter()
    starts = collect(agent, collector, edits, args.starts, initial_frames=1, latest=64, seed=0, greedy=True, device=cpu)
    print(f"{args.starts} starts: {time.perf_counter() - begun:.1f} s")
    noise = torch.zeros(args.starts, args.horizon + 1, agent.spec.n_actions)
    world = EditedWorld(agent, env, drawer, starts, noise)
    begun = time.perf_counter()
    world.course([None] * args.starts)
    twin = time.perf_counter() - begun
    print(f"unedited twin: {twin:.2f} s")
    total, count = twin, 0
    for way in ("whole", "pixels", "world"):
        begun, made = time.perf_counter(), 0
        for edit in edits:
            if way == "pixels" and edit.verb == "set":
                continue
            of = [fits(edit, s) for s in starts.states]
            made += world.course(of, way).rows_N.sum()
        spent = time.perf_counter() - begun
        each = spent / len(edits) / twin
        print(f"{way}: {made:,} edits of {args.horizon} steps, {spent:.1f} s; a run costs {each:.1f} twins")
        if way == "whole":
            total, count = total + spent, made
    print(f"{count:,} paired edits of {args.horizon} steps in {total:.1f} s: 2,000 in {2000 * total / count:.0f} s")


if __name__ == "__main__":
    main()
