"""How long a preset of train_gen_model.py takes from scratch on this machine, with and without its matrix units.

``python benchmarks/preset_time.py --agent AGENT --rollouts ROLLOUTS`` (of ``record.py --preset context``, branches with
it) trains twice for a few updates, each through the whole course of the schedule (one step, feedback over 2, 4, 8), so
that the difference of the two is what updates cost; the same with oneDNN held to AVX2 and in float32, in turns.  The
rewards and endings that are learned at the end are timed by themselves.  What is printed is the wall time of the whole
preset that follows, validation apart (every ``--validate_every`` updates; it costs what it is set to).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHORT, LONG = 24, 72  # updates
WAYS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "as it is": ({}, ()),
    "AVX2": ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, ()),
    "float32": ({}, ("--no-bf16",)),
    "AVX2, float32": ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, ("--no-bf16",)),
}
OUTCOMES = 160  # rollouts by which the time of the last part is measured


def wall(args: argparse.Namespace, env: dict[str, str], flags: tuple[str, ...], updates: int, outcomes: int) -> float:
    """Seconds of one training, without imports and loading."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["train_gen_model.py", "--preset", args.preset, "--agent", args.agent, "--rollouts", args.rollouts,
                 "--updates", updates, "--validate_every", updates, "--validation_windows", 16, "--video_every", 0,
                 "--outcome_windows", outcomes, "--outcome_endings", 0, "--threads", args.threads, "--out", out,
                 *flags]  # fmt: skip
        done = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True,
                              env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **env})  # fmt: skip
        if done.returncode:
            sys.exit(f"error: the training failed: {done.stderr[-2000:]}")
        return float(json.loads((out / "manifest.json").read_text())["wall_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--rollouts", required=True)
    parser.add_argument("--preset", default="context", choices=["context"], help="one that learns outcomes at the end")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    args = parser.parse_args()
    preset = json.loads((ROOT / "configs" / f"{args.preset}.json").read_text())["train_gen_model"]
    optim = preset["optim"]
    # A rollout that leads to an ending is half as long, on average.
    outcomes = preset["outcomes"]["outcome_windows"] + preset["outcomes"]["outcome_endings"] / 2
    update: dict[str, list[float]] = {way: [] for way in args.ways}
    last: dict[str, list[float]] = {way: [] for way in args.ways}
    for _ in range(args.repeats):
        for way in args.ways:
            env, flags = WAYS[way]
            short, long = (wall(args, env, flags, n, 0) for n in (SHORT, LONG))
            update[way].append((long - short) / (LONG - SHORT))
            last[way].append((wall(args, env, flags, SHORT, OUTCOMES) - short) / OUTCOMES)
    frames = optim["batch"] * optim["steps"]
    for way in args.ways:
        one, of_outcome = statistics.median(update[way]), statistics.median(last[way])
        minutes = (one * optim["updates"] + of_outcome * outcomes) / 60
        print(f"{way}: {one:.3f} s an update, {frames / one:.0f} frames/s; {args.preset} from scratch "
              f"{minutes:.0f} min ({optim['updates']} updates, {outcomes:.0f} rollouts for outcomes)")  # fmt: skip


if __name__ == "__main__":
    main()
