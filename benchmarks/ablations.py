"""What each part of a simulator's training is worth: the preset without it, at equal CPU time, on the same windows.

``python -m benchmarks.ablations run --agent AGENT --rollouts ROLLOUTS --held_out HELD_OUT --out DIR`` trains what is
still missing in DIR (so that it can be stopped and gone on with) and ends with the table of ``... table DIR``: how much
better or worse the simulator is without a part, on windows of held-out episodes that are the same for all.  Intervals
are over these episodes, of the mean over seeds; what each seed said stands beside it, as a handful of seeds has no
interval worth the name.  One thread a training; CPU time, not wall time, is what is equal, or with --updates these.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from generative.starts import Informed

ROOT = Path(__file__).resolve().parent.parent
WHOLE = "whole"
# What is changed, in flags of train_gen_model.py; of a part that the preset leaves out it is what puts it in.
PARTS = {
    WHOLE: (),
    "with agent terms in the last quarter": ("--agent_from", "0.75"),
    "without the last frames' pixels (layout grid)": ("--layout", "grid"),
    "without alignment (nothing moves by more than a pixel)": (
        "--reach_rows", "0", "--reach_columns", "0", "--motion_weight", "0", "--whole_weight", "0"),
    "without a memory beyond two frames (d of one channel)": ("--deterministic_size", "64"),
    "without feedback": ("--feedback", "1", "--feedback_shares", "1"),
    "without branches": ("--branch_share", "0"),
    "without the inverse head": ("--inverse_weight", "0"),
    "with pixel weights by saliency": ("--decisive_share", "0.5"),
}  # fmt: skip
# The whole one again, begun otherwise (--start_from of validation.fidelity): that takes no training.
BEGUN: dict[str, Informed] = {"begun with the frame and the state that it infers": "inferred"}
HORIZONS = (1, 4, 8)
SHORT, LONG = 16, 48  # updates of the two trainings by which an update's CPU time is measured


def main(argv: Sequence[str] | None = None) -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train what is missing, then print the table")
    for name in ("agent", "rollouts", "held_out", "out"):
        run.add_argument(f"--{name}", type=Path, required=True)
    run.add_argument("--preset", default="context", help="of train_gen_model.py")
    run.add_argument("--minutes", type=float, default=20.0, help="CPU minutes of each training")
    run.add_argument(
        "--updates", type=int, help="updates of each, in place of CPU minutes, where other work disturbs these"
    )
    run.add_argument("--seeds", type=int, default=2)
    run.add_argument("--windows", type=int, default=192, help="held-out windows, each of another episode if possible")
    run.add_argument("--parts", nargs="+", default=list(PARTS)[1:], choices=list(PARTS)[1:], metavar="PART")
    run.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="further flags for every training; the last")
    table = commands.add_parser("table", help="print the table of what is there")
    table.add_argument("out", type=Path)
    args = parser.parse_args(argv)
    if args.command == "run":
        train_all(args)
    print(markdown(args.out))


def place(out: Path, part: str, seed: int) -> Path:
    return out / f"{part.partition(' (')[0].replace(' ', '_')}_{seed}"


def train_all(args: argparse.Namespace) -> None:
    """Every training and its measures, which are not there yet."""
    args.out.mkdir(parents=True, exist_ok=True)
    cpu_of: dict[str, float] = {}  # of an update without the part
    for seed in range(1, args.seeds + 1):
        for part in (WHOLE, *args.parts):
            out = place(args.out, part, seed)
            if out.with_suffix(".json").exists():
                continue
            if not (out / "manifest.json").exists():
                flags = (*PARTS[part], *args.more)
                updates, said = args.updates, ""
                if updates is None:
                    cpu = cpu_of.get(part) or cpu_of.setdefault(part, update_time(args, flags))
                    updates, said = max(LONG, round(60 * args.minutes / cpu)), f" of {cpu:.2f} CPU s"
                print(f"{part}, seed {seed}: {updates} updates{said}", file=sys.stderr, flush=True)
                trained(args, out, updates, flags, seed)
            measured(args, out, part, seed, None)
            for name, start in BEGUN.items() if part == WHOLE else ():
                measured(args, out, name, seed, start)


def measured(args: argparse.Namespace, simulator: Path, part: str, seed: int, start: Informed | None) -> None:
    """Measure one simulator, in a process of its own."""
    code = "import sys; from benchmarks.ablations import measure; measure(*sys.argv[1:])"
    to = place(args.out, part, seed).with_suffix(".json")
    words = (simulator, args.held_out, args.windows, to, part, seed, *filter(None, [start]))
    subprocess.run([sys.executable, "-c", code, *map(str, words)], cwd=ROOT, env=environment(), check=True)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def trained(args: argparse.Namespace, out: Path, updates: int, flags: Sequence[str], seed: int) -> float:
    """Train; the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["--preset", args.preset, "--agent", args.agent, "--rollouts", args.rollouts, "--out", out, "--updates",
             updates, "--validate_every", updates, "--video_every", 0, "--seed", seed, "--threads", 1, "--preload",
             "--outcome_windows", 0, "--overwrite", *flags]  # fmt: skip
    done = subprocess.run([sys.executable, "train_gen_model.py", *map(str, words)], cwd=ROOT, env=environment(),
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{out}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def update_time(args: argparse.Namespace, flags: Sequence[str]) -> float:
    """CPU seconds of an update over the whole course of a training, which both of two short ones go through."""
    short, long = (trained(args, args.out / "timing", n, flags, 1) for n in (SHORT, LONG))
    return max(1e-3, (long - short) / (LONG - SHORT))


def measure(
    simulator: str, held_out: str, windows: str, to: str, part: str, seed: str, start: Informed | None = None
) -> None:
    """Write what a simulator does on the held-out windows, window by window; start: how it begins, None: as its kind
    does."""
    import numpy as np

    from core import artefacts
    from core.episodes import RolloutStore
    from generative.load import load_simulator
    from generative.starts import informed_by
    from validation.fidelity.pairing import choose_starts, pair

    found = load_simulator(Path(simulator))
    with RolloutStore(Path(held_out)) as store:
        least = found.world.initial_frames + 1
        starts = choose_starts(store, least, int(windows), np.random.default_rng(0))
        p = pair(found, store, starts, max(HORIZONS), batch=32, start_from=informed_by(found.world, start))
    k = list(HORIZONS)
    apart = ((p.free.h - p.real.h)[:, k] ** 2).sum(-1)
    values = {
        "squared error": p.error["simulated"][:, k],
        "similarity": p.similarity["simulated"][:, k] if p.images else np.full((len(starts), len(k)), np.nan),
        "same action": (p.free.logits.argmax(-1) == p.real.logits.argmax(-1))[:, k].astype(float),
        "hidden error": apart / p.real.h[p.seen].var(0).sum(),
    }
    data = {"part": part, "seed": int(seed), "episode": p.episode.tolist(), "seen": p.seen[:, k].tolist(),
            "training_s": artefacts.read_manifest(Path(simulator))["wall_s"],
            "updates": artefacts.read_manifest(Path(simulator))["metrics"]["updates"]["value"],
            "values": {name: x.tolist() for name, x in values.items()}}  # fmt: skip
    artefacts.write_json(Path(to), data)


def differences(whole: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Any]:
    """{(measure, horizon): (difference from the whole, low, high, that of each seed)}, over held-out episodes.  PSNR is
    that of the mean squared error, so that its difference is the logarithm of a ratio."""
    import numpy as np

    from core.stats import jackknifed, left_out

    rng = np.random.default_rng(0)
    episode, of_W = np.unique(whole[0]["episode"], return_inverse=True)
    weight_RW = left_out(len(episode), rng)[:, of_W]
    out: dict[tuple[str, int], Any] = {}
    for name in ("PSNR, dB", "SSIM", "same action", "hidden-state error"):
        key = {"PSNR, dB": "squared error", "SSIM": "similarity", "hidden-state error": "hidden error"}.get(name, name)
        for i, k in enumerate(HORIZONS):
            seen_W = np.array(whole[0]["seen"])[:, i]
            mean_SR = []
            for run in (*whole, *other):
                if run["episode"] != whole[0]["episode"] or run["seen"] != whole[0]["seen"]:
                    raise SystemExit(f"{run['part']}, seed {run['seed']}: measured on other windows than the rest")
                value_W = np.array(run["values"][key], np.float64)[:, i]
                mean_R = weight_RW[:, seen_W] @ value_W[seen_W] / weight_RW[:, seen_W].sum(1)
                mean_SR.append(-10 * np.log10(mean_R) if key == "squared error" else mean_R)
            each_SR = np.array(mean_SR[len(whole) :]) - np.array(mean_SR[: len(whole)])
            value, low, high = jackknifed(each_SR.mean(0), rng=rng)
            out[name, k] = (float(value), float(low), float(high), each_SR[:, 0].tolist())
    return out


def markdown(out: Path) -> str:
    """The table of what is in a directory."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(out.glob("*.json")):
        run = json.loads(file.read_text())
        runs.setdefault(run["part"], []).append(run)
    if WHOLE not in runs:
        raise SystemExit(f"{out} has no measures of the whole preset; benchmarks.ablations run makes them")
    seeds = {run["seed"]: run for run in runs[WHOLE]}
    columns = [("PSNR, dB", 1), ("PSNR, dB", 8), ("SSIM", 1), ("same action", 1), ("same action", 8),
               ("hidden-state error", 1)]  # fmt: skip
    lines = ["| | updates | " + " | ".join(f"{name} at {k}" for name, k in columns) + " |",
             "|---|---|" + "---|" * len(columns)]  # fmt: skip
    for part, some in runs.items():
        if part == WHOLE:
            continue
        pairs = [(seeds[run["seed"]], run) for run in some if run["seed"] in seeds]
        if not pairs:
            continue
        found = differences(*zip(*pairs, strict=True))
        cells = []
        for column in columns:
            value, low, high, each = found[column]
            cells.append(f"{value:+.3f} [{low:+.3f}, {high:+.3f}] ({', '.join(f'{x:+.3f}' for x in each)})")
        lines.append(f"| {part} | {', '.join(str(run['updates']) for run in some)} | {' | '.join(cells)} |")
    n = len(set(runs[WHOLE][0]["episode"]))
    lines.append("")
    updates = ", ".join(str(run["updates"]) for run in runs[WHOLE])
    lines.append(f"Each less the whole preset ({updates} updates; seeds {', '.join(map(str, seeds))}); 95 % intervals "
                 f"over {n} held-out episodes, of the mean over seeds; in brackets every seed.")  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
