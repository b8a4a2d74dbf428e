"""How much faster two processes of one thread are than one of one thread, for a stage that shares its work.

``python benchmarks/scale.py saliency --runs runs/demo``, for flags of the stage's own after ``--``:
``python benchmarks/scale.py saliency --runs runs/demo -- --sample_ids 0 to 64``

Times are the stage's own (``wall_s`` of its manifest: from the open run directory to the last file, without imports and
the loading of models).  One process, two that share, and two that know nothing of each other at the same time, in
turns; the ratio of the first two is what torchrun gives, the ratio of the first and the last, twice, what the machine
has to give: 2 on two free cores, less on two threads of one core or beside other work.  At least LONG seconds of one
process, or the numbers say little.
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
sys.path.insert(0, str(ROOT))

LONG = 60.0  # seconds
BUNDLE = "bundles/coinrun-robust"
MODELS = f"--simulator {BUNDLE}/simulator"
CASES = {  # flags besides --threads and --out; {r}: the directory of --runs
    "record": f"--agent {BUNDLE}/agent --num_steps 2600",
    "train": "--preset demo --total_steps 262144",
    "train_craftax": "--total_steps 131072",
    "train_gen_model": f"--preset context --agent {BUNDLE}/agent --rollouts {{r}}/rollouts --updates 128 "
    "--outcome_windows 0 --validation_windows 32 --video_every 0",
    "record_samples": f"{MODELS} --rollouts {{r}}/rollouts --samples 512 --steps 60 --no-film",
    "fidelity": f"{MODELS} --rollouts {{r}}/rollouts --no-video",
    "saliency": f"{MODELS} --samples {{r}}/samples --sample_ids 0 to 32 --batch_size 4 --no-video",
    "coupling": f"{MODELS} --samples {{r}}/samples --hidden_states {{r}}/hidden_states --behaviours none "
    "--batch_size 16 --samples_per_behaviour 256",
    "target_functions": f"{MODELS} --maximise value --samples 16 --no-video --memory_gb 0.2",
    "interventions": f"{MODELS} --hidden_states {{r}}/hidden_states --behaviours none --starts 192 --no-video",
    "hidden_states": "--rollouts {r}/rollouts --samples none --agent none",
    "env_states": f"{MODELS} --rollouts {{r}}/rollouts --samples none",
    "extract_activations": "pve -p bundles/nmmo-demo/policies/hybrid --parts 4",
}


def started(stage: str, flags: list[str], out: Path, processes: int) -> subprocess.Popen[str]:
    """A stage on its way."""
    from core.stages import STAGES

    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    words = [*launch, *STAGES[stage].command.split(), *flags, "--threads", "1", "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def seconds(runs: list[tuple[subprocess.Popen[str], Path]]) -> float:
    """The longest of these runs' own time, once all have ended; the process ends where one of them failed."""
    for process, _ in runs:
        said = process.communicate()[1]
        if process.returncode:
            sys.exit(f"error: a run failed: {said[-2000:]}")
    return max(json.loads((out / "manifest.json").read_text())["wall_s"] for _, out in runs)


def siblings() -> str:
    """The CPUs that share the first one's core, as Linux says it; '' elsewhere."""
    file = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    return file.read_text().strip() if file.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=CASES)
    parser.add_argument(
        "--runs",
        default="runs/demo",
        help="directory with rollouts (record.py --preset context), samples and hidden_states",
    )
    parser.add_argument("--repeats", type=int, default=2, help="turns")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)  # the stage's own flags follow
    args = parser.parse_args(sys.argv[1:end])
    flags = [*CASES[args.stage].replace("{r}", args.runs).split(), *sys.argv[end + 1 :]]
    taken: dict[str, list[float]] = {"one": [], "shared": [], "apart": []}
    for turn in range(args.repeats):
        for kind, found in taken.items():
            with tempfile.TemporaryDirectory() as folder:
                outs = [Path(folder) / name for name in (("a", "b") if kind == "apart" else ("a",))]
                processes = 2 if kind == "shared" else 1
                found.append(seconds([(started(args.stage, flags, out, processes), out) for out in outs]))
            print(f"turn {turn + 1}: {kind} {found[-1]:.1f} s", flush=True)
    one, shared, apart = (statistics.median(found) for found in taken.values())
    print(f"{args.stage}: one process {one:.1f} s, two {shared:.1f} s: {one / shared:.2f} times as fast")
    print(f"two that share nothing take {apart:.1f} s each: the machine gives {2 * one / apart:.2f}")
    if one < LONG:
        print(f"note: less than {LONG:.0f} s of work; give the stage more, after --", file=sys.stderr)
    if (same := siblings()) not in ("", "0"):
        print(f"note: CPUs {same} are threads of one core, which two processes share", file=sys.stderr)


if __name__ == "__main__":
    main()
