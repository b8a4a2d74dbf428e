"""Steps per second of training with and without semantic clustering: ``python benchmarks/semantic.py``.

Whole updates of both, in turns in one run: 64 environments of 32 steps are collected, then learnt from in 3 epochs of
one minibatch of 2,048 steps (an update of the presets is eight times the same).  The ratio is that of the least times
over the rounds.  One thread; ``--cpu`` counts the process's CPU time and not the wall clock, for machines on which
other work runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

ROUNDS = {"strided": 4, "impala": 2}  # after a warm-up
ASKED = {"strided": 0.6, "impala": 0.87}
PRESET = {"strided": "semantic", "impala": "semantic-paper"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="count the process's CPU time, not the wall clock")
    cpu = parser.parse_args().cpu
    from core.config import tune_allocator

    tune_allocator()
    import numpy as np
    import torch

    from agents.ppo import update
    from agents.train import STAGE, Collector, TrainConfig, agent_of, loss_for, semantic_of
    from core.config import parse
    from envs.procgen import ProcgenEnv

    torch.set_num_threads(1)
    now = time.process_time if cpu else time.perf_counter
    line = "{:<10}{:>12}{:>12}{:>8}{:>8}"
    print(line.format("encoder", "plain, 1/s", "with, 1/s", "ratio", "asked"))
    for encoder, rounds in ROUNDS.items():
        sides = {}
        for policy in ("plain", "semantic"):
            flags = ["--preset", PRESET[encoder], "--policy", policy, "--rollout_steps", "32", "--minibatches", "1"]
            config = parse(TrainConfig, flags, STAGE)
            torch.manual_seed(1)
            env = ProcgenEnv(config.env, config.ppo.envs, 1)
            semantic = semantic_of(config)
            controller = None if semantic is None else semantic.controller
            agent = agent_of(config.net, env.spec, semantic)
            if controller is not None:
                controller.weight, controller.refresh = 1.0, 10**9
            collector = Collector(agent, env, config.ppo, config.seed, torch.device("cpu"), controller)
            adam = torch.optim.Adam(agent.parameters(), lr=5e-4, eps=1e-5)
            rng = np.random.default_rng(0)
            sides[policy] = (agent, adam, collector, config.ppo, rng, loss_for(config.drac, rng, semantic))
        best = dict.fromkeys(sides, float("inf"))
        for turn in range(rounds + 1):
            for policy, (agent, adam, collector, ppo, rng, loss) in sides.items():
                began = now()
                update(agent, adam, collector.collect(), ppo, rng, ppo.entropy_coef, loss)
                if turn:
                    best[policy] = min(best[policy], now() - began)
        plain, with_it = (2048 / best[policy] for policy in ("plain", "semantic"))
        print(line.format(encoder, f"{plain:,.0f}", f"{with_it:,.0f}", f"{with_it / plain:.2f}", ASKED[encoder]))


if __name__ == "__main__":
    main()
