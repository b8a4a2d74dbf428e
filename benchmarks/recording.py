"""What recording costs beside the game and the agent: ``python benchmarks/recording.py [--steps N] [--turns N]``.

The same agent and the same slots, in turns: a bare loop (observation, agent's step, drawn action, game's step) and
``record.py``'s way from the first step to the last shard on disk.  CPU seconds of one thread, so that what else runs
beside it counts little.  At least 0.8 of the bare loop's rate is aimed at.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

AGENT = ROOT / "bundles/coinrun-robust/agent"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", type=Path, default=AGENT)
    parser.add_argument("--slots", type=int, default=64, help="environments side by side")
    parser.add_argument("--steps", type=int, default=768, help="of every slot, in each turn")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()

    import core  # noqa: F401  (sets the OpenMP wait policy before torch is loaded)
    import torch  # isort: skip
    from agents.load import load_agent
    from agents.play import tensors
    from agents.record import RecordConfig, write_episodes
    from core.config import tune_allocator
    from core.contracts import Agent, VecEnv
    from core.roll import act
    from envs.registry import make

    tune_allocator()  # as the script does
    torch.set_num_threads(1)
    cpu = torch.device("cpu")

    @torch.no_grad()
    def bare(agent: Agent, env: VecEnv) -> None:
        now, state = env.reset(0), agent.initial(args.slots)
        t_B = torch.zeros(args.slots, dtype=torch.int64)
        for _ in range(args.steps):
            acted = act(agent, tensors(now, cpu), state, torch.from_numpy(now.is_first), t_B)
            state = acted.state
            noise_BA = -torch.empty_like(acted.logits_BA).exponential_().log()
            now = env.step((acted.logits_BA + noise_BA).argmax(-1).numpy())

    def recorded(agent: Agent, env: VecEnv) -> None:
        config = RecordConfig(agent=args.agent, num_steps=args.steps, slots=args.slots, threads=1)
        with tempfile.TemporaryDirectory() as folder:
            write_episodes(agent, env, config, Path(folder), intervene=(), points=(), device=cpu)

    agent = load_agent(args.agent, cpu)
    env = make(agent.spec, args.slots, threads=1)
    env.reset(0)  # loads the game's pictures
    taken: dict[str, list[float]] = {"bare": [], "recorded": []}
    for turn in range(args.turns):
        for kind, go in (("bare", bare), ("recorded", recorded)):
            begun = time.process_time()
            go(agent, env)
            taken[kind].append(time.process_time() - begun)
        print(f"turn {turn + 1}: bare {taken['bare'][-1]:.2f} s, recorded {taken['recorded'][-1]:.2f} s", flush=True)
    one, two = (statistics.median(taken[kind]) for kind in ("bare", "recorded"))
    steps = args.slots * args.steps
    print(f"bare {steps / one:,.0f} steps a CPU second, recorded {steps / two:,.0f}: {one / two:.2f} of the bare rate")


if __name__ == "__main__":
    main()
