"""From a restart to the first step: how long a stage that was killed takes, beyond imports, until it works again.

``python benchmarks/restart.py`` (all) or ``python benchmarks/restart.py train record``.  Each stage is begun at the
size of its demo, killed once it has saved something, and begun again with the same command (and ``--resume``).  What
is timed runs from the end of the imports to the first step of an environment, or the first update of the weights
where there is none.  A stage's imports are timed beside it.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = "bundles/coinrun-robust"
CASES = {  # {out}: the run; {rollouts}: a small recording
    "train": "train.py --preset demo --save_minutes 0.05 --out {out}",
    "record": f"record.py --agent {BUNDLE}/agent --episodes 4096 --out {{out}}",
    "train_gen_model": f"train_gen_model.py --preset context --branch_share 0 --agent {BUNDLE}/agent "
    "--rollouts {rollouts} --save_minutes 0.05 --out {out}",
}
RESUMED = ("train", "train_gen_model")  # with --resume; a recording goes on by itself
FIRST_STEP = """
import os, runpy, sys, time
begun = time.perf_counter()
import torch, torch.optim.optimizer as optimizer
import agents.record, agents.train, generative.train
from envs.procgen import ProcgenEnv
imported = time.perf_counter()
def first(*args, **rest):
    now = time.perf_counter()
    print(f"first step: {imported - begun:.2f} {now - imported:.2f}", flush=True)
    os._exit(0)
if sys.argv[1] == "train_gen_model.py":
    optimizer.register_optimizer_step_pre_hook(first)
else:
    ProcgenEnv.step = first
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def saved(stage: str, out: Path) -> bool:
    """Whether a run has something to go on from."""
    if stage == "record":
        return any(out.glob("shard_*.h5"))
    return (out / "training_state" / "state.pt").exists()


def killed_once_saved(stage: str, words: list[str], out: Path, env: dict[str, str]) -> None:
    """Begin a stage; SIGKILL when it has saved."""
    process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not saved(stage, out):
        if process.poll() is not None:
            sys.exit(f"error: {stage} ended before it was killed: {process.communicate()[1][-2000:]}")
        time.sleep(0.2)
    time.sleep(1.0)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def seconds(stage: str, folder: Path, repeats: int, threads: int) -> list[tuple[float, float]]:
    """(imports, from then to the first step) of every restart."""
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    rollouts, out = folder / "rollouts", folder / stage
    if stage == "train_gen_model":
        small = ["record.py", "--agent", f"{BUNDLE}/agent", "--episodes", "256", "--out", str(rollouts)]
        subprocess.run([sys.executable, *small], cwd=ROOT, env=env, check=True, capture_output=True)
    line = [*CASES[stage].format(out=out, rollouts=rollouts).split(), "--threads", str(threads)]
    killed_once_saved(stage, [sys.executable, *line], out, env)
    again = [*line, "--resume"] if stage in RESUMED else line
    found = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-c", FIRST_STEP, *again], cwd=ROOT, env=env, text=True,
                              capture_output=True)  # fmt: skip
        told = [x for x in done.stdout.splitlines() if x.startswith("first step: ")]
        if not told:
            sys.exit(f"error: {stage} did not come to a first step: {done.stderr[-2000:]}")
        imports, first = map(float, told[0].removeprefix("first step: ").split())
        found.append((imports, first))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if unknown := set(args.stages) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are: {', '.join(CASES)}")
    for stage in args.stages or CASES:
        with tempfile.TemporaryDirectory() as folder:
            found = seconds(stage, Path(folder), args.repeats, args.threads)
        imports, first = (statistics.median(x) for x in zip(*found, strict=True))
        each = ", ".join(f"{x:.1f}" for _, x in found)
        print(
            f"{stage}: {first:.1f} s from the imports to the first step ({each}); imports {imports:.1f} s", flush=True
        )


if __name__ == "__main__":
    main()
