"""How fast the heavy stages are on a GPU, and how much of the time it computes.

``python benchmarks/gpu.py --out runs/gpu`` trains an agent of the ``paper`` preset for a few updates, records it,
trains simulators on it and runs analyses that go through them, all in one process, and prints the table of
docs/performance.md.  Rates of trainings are of their curves, from the first row to the last, so that start-up and the
search for kernels are left out; other times are the manifests' ``wall_s``.  ``--cpu`` has the stages that CPUs can do
in time done by them too (``--threads``).  ``--profile`` watches the trainings by torch's profiler instead: the share of
the time in which the GPU computes, and what it computes.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PPO = "--preset paper --total_steps {ppo}"
GEN = "--agent {w}/agent --rollouts {w}/rollouts --validation_windows 8 --video_every 0 --validate_every 20 "
SIMULATOR = "--simulator {w}/simulator"
CASES = {  # by the name of its run: stage, flags, and whether CPUs can do it in time
    "agent": ("train", PPO, False),
    "ppo_bf16": ("train", PPO + " --bf16", False),
    "rollouts": ("record", "--agent {w}/agent --episodes 256 --slots 256", True),
    "simulator": ("train_gen_model", f"--preset paper --updates {{gen}} {GEN}", False),
    "paper_float32": ("train_gen_model", f"--preset paper --no-bf16 --updates {{gen}} {GEN}", False),
    "paper_32_windows": ("train_gen_model", f"--preset paper --batch 32 --updates {{gen}} {GEN}", False),
    "context": ("train_gen_model", f"--preset context --outcome_windows 0 --updates {{gen}} {GEN}", False),
    "samples": ("record_samples", SIMULATOR + " --rollouts {w}/rollouts --samples 256 --steps 64 --no-film", True),
    "saliency": ("saliency", SIMULATOR + " --samples {w}/samples --sample_ids 0 to 32 --no-video", True),
    "target_functions": ("target_functions", SIMULATOR + " --rollouts {w}/rollouts --maximise value --no-video", True),
}  # fmt: skip


def run(stage: str, flags: str) -> tuple[float, float | None]:
    """One stage in this process: the manifest's wall time, and frames a second of its curve."""
    from core import artefacts, config as cli, stages

    known = stages.STAGES[stage]
    config = cli.parse(known.cls, flags.split(), stage)
    known.door.main(config)
    wall, curve = float(artefacts.read_manifest(config.out)["wall_s"]), Path(config.out) / "curve.csv"
    if not curve.exists():
        return wall, None
    with open(curve) as lines:
        rows = [r for r in csv.DictReader(lines) if r.get("wall_s")]
    step, at = ([float(r[name]) for r in rows] for name in ("step", "wall_s"))
    if len(rows) < 2:
        return wall, None
    frames = config.optim.batch * config.optim.steps if stage == "train_gen_model" else 1
    return wall, frames * (step[-1] - step[0]) / (at[-1] - at[0])


def watched(stage: str, flags: str) -> None:
    """One stage under torch's profiler: how long kernels ran, and the twelve that ran longest."""
    import torch

    began = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run(stage, flags)
    took = time.perf_counter() - began
    rows = sorted(profile.key_averages(), key=lambda r: -r.self_device_time_total)
    total = sum(r.self_device_time_total for r in rows) / 1e6
    print(f"{stage}: {took:.1f} s in all, kernels {total:.1f} s in {sum(r.count for r in rows):,} calls")
    for r in rows[:12]:
        print(f"  {r.self_device_time_total / 1e6:7.2f} s {r.count:>8,} {r.key[:90]}", flush=True)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--cases", nargs="+", default=[*CASES], choices=[*CASES])
    parser.add_argument("--cpu", action="store_true", help="CPUs too, where they end in time")
    parser.add_argument("--profile", action="store_true", help="watch the cases' trainings instead of timing them")
    parser.add_argument("--ppo_steps", type=int, default=6 * 65536)
    parser.add_argument("--updates", type=int, default=80, help="of a simulator")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name() if args.device == 'cuda' else 'CPU'}, torch {torch.__version__}")
    if not args.profile:
        print("| run | device | wall, s | frames/s | GPU memory, GB |\n|---|---|---|---|---|", flush=True)
    for name in args.cases:
        stage, flags, both = CASES[name]
        for device in [args.device, *(["cpu"] if both and args.cpu else [])]:
            out = args.out / (name if device == args.device else f"{name}_cpu")
            words = flags.format(w=args.out, ppo=args.ppo_steps, gen=args.updates)
            words += f" --device {device} --threads {args.threads} --out {out} --overwrite"
            if args.profile:
                watched(stage, words)
                continue
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            wall, rate = run(stage, words)
            peak = f"{torch.cuda.max_memory_allocated() / 1e9:.2f}" if device == "cuda" else ""
            print(f"| {name} | {device} | {wall:.1f} | {'' if rate is None else f'{rate:,.0f}'} | {peak} |", flush=True)


if __name__ == "__main__":
    main()
