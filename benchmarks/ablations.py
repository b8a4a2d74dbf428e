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
WHOLE, GRID = "whole", "without pixels of the last frames (layout grid)"
# What is changed, in flags of train_gen_model.py; of a part that the preset leaves out it is what puts it in.
PARTS = {
    WHOLE: (),
    "with agent terms in the last quarter (hidden 20, feature 40, at most a tenth of the image's)": (
        "--agent_from", "0.75", "--hidden_weight", "20", "--feature_weight", "40"),
    GRID: ("--layout", "grid"),
    "without alignment (nothing moves by more than a pixel)": (
        "--reach_rows", "0", "--reach_columns", "0", "--motion_weight", "0", "--whole_weight", "0"),
    "without a memory beyond two frames (d of one channel)": ("--deterministic_size", "64"),
    "without feedback": ("--feedback", "1", "--feedback_shares", "1"),
    "without branches": ("--branch_share", "0"),
    "without the inverse head": ("--inverse_weight", "0"),
    "with pixel weights by saliency": ("--decisive_share", "0.5"),
}  # fmt: skip
# These once more, begun otherwise than their kind does (--start_from of validation.fidelity): that takes no training.
BEGUN: dict[str, tuple[str, Informed]] = {
    WHOLE: ("begun with the frame and the state that it infers", "inferred"),
    GRID: ("the same begun with those that were recorded", "recorded"),
}
HORIZONS = (1, 4, 8)
HELD_STARTS, LATEST = 128, 32  # places, each at a step of an episode up to this one, from which every action is held
MEASURES = {
    "PSNR, dB": "squared error",
    "SSIM": "similarity",
    "same action": "same action",
    "hidden-state error": "hidden error",
    "recognised": "recognised",
}  # {name: that of what is measured}
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
            if is_measured(out):
                continue
            if not (out / "manifest.json").exists():
                flags = (*PARTS[part], *args.more)
                updates, said = args.updates, ""
                if updates is None:
                    cpu = cpu_of.get(part) or cpu_of.setdefault(part, update_time(args, flags))
                    updates, said = max(LONG, round(60 * args.minutes / cpu)), f" of {cpu:.2f} CPU s"
                print(f"{part}, seed {seed}: {updates} updates{said}", file=sys.stderr, flush=True)
                trained(args, out, updates, flags, seed)
            if part in BEGUN:
                name, start = BEGUN[part]
                measured(args, out, name, seed, start)
            measured(args, out, part, seed, None)  # the last: it says that the part is done


def is_measured(simulator: Path) -> bool:
    """Whether all that can be measured of it is; of one whose weights are gone, whether anything is."""
    file = simulator.with_suffix(".json")
    return file.exists() and ("held" in json.loads(file.read_text()) or not (simulator / "manifest.json").exists())


def measured(args: argparse.Namespace, simulator: Path, part: str, seed: int, start: Informed | None) -> None:
    """Measure one simulator, in a process of its own."""
    code = "import sys; from benchmarks.ablations import measure; measure(*sys.argv[1:])"
    to = place(args.out, part, seed).with_suffix(".json")
    words = (simulator, args.held_out, args.windows, to, part, seed, *filter(None, [start]))
    subprocess.run([sys.executable, "-c", code, *map(str, words)], cwd=ROOT, env=environment(), check=True)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def words_of(args: argparse.Namespace, out: Path, updates: int, flags: Sequence[str], seed: int) -> list[str]:
    """The command line of a training, for train_gen_model.py."""
    words = ["--preset", args.preset, "--agent", args.agent, "--rollouts", args.rollouts, "--out", out, "--updates",
             updates, "--validate_every", updates, "--video_every", 0, "--seed", seed, "--threads", 1, "--preload",
             "--outcome_windows", 0, "--overwrite", *flags]  # fmt: skip
    return [str(word) for word in words]


def trained(args: argparse.Namespace, out: Path, updates: int, flags: Sequence[str], seed: int) -> float:
    """Train; the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = words_of(args, out, updates, flags, seed)
    done = subprocess.run([sys.executable, "train_gen_model.py", *words], cwd=ROOT, env=environment(),
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
    training = artefacts.read_manifest(Path(simulator))
    data = {"part": part, "seed": int(seed), "episode": p.episode.tolist(), "seen": p.seen[:, k].tolist(),
            "training_s": training["wall_s"], "updates": training["metrics"]["updates"]["value"],
            "values": as_lists(values), "held": held(found, start)}  # fmt: skip
    artefacts.write_json(Path(to), data)


def held(simulator: Any, start: Informed | None) -> dict[str, Any]:
    """Every distinct action held from HELD_STARTS places on held-out levels, in the game and in the simulator: of each
    place whether the simulated frame is nearest to the real one of the same action, and the squared error."""
    import numpy as np

    from envs.registry import make
    from generative.starts import informed_by
    from validation.fidelity.counterfactual import hold, retrieval, simulate, take
    from validation.fidelity.measures import as_float

    def env(slots: int) -> Any:
        return make(simulator.world.spec, slots, threads=1, split="held_out")

    informed = informed_by(simulator.world, start)
    shots = take(simulator, env, HELD_STARTS, latest=LATEST, seed=0, start_from=informed)
    try:
        actions, steps, k = [ids[0] for ids in shots.actions.values()], max(HORIZONS), list(HORIZONS)
        tried = [hold(shots, action, steps) for action in actions]
        real_ANK, there_ANK = (np.stack([x[i][:, k] for x in tried]) for i in (0, 1))
        dreamed = [
            np.concatenate([obs[:, k] for _, obs in simulate(shots, np.full((len(shots), steps + 1), action))])
            for action in actions
        ]
    finally:
        shots.env.close()
    values = {"recognised": np.empty((len(shots), len(k))), "squared error": np.empty((len(shots), len(k)))}
    for i in range(len(k)):
        there_AN, real_AN = there_ANK[:, :, i], as_float(real_ANK[:, :, i])
        dream_AN = np.stack([x[:, i] for x in dreamed])
        hit_AN = np.einsum("aan->an", retrieval(dream_AN, real_AN, there_AN))
        error_AN = ((dream_AN - real_AN) ** 2).reshape(*there_AN.shape, -1).mean(-1)
        for name, x_AN in (("recognised", hit_AN), ("squared error", error_AN)):
            values[name][:, i] = np.where(there_AN, x_AN, 0).sum(0) / there_AN.sum(0).clip(1)
    seen_NK = there_ANK.sum(0) >= 2  # of one future alone nothing is to be told
    return {"episode": list(range(len(shots))), "seen": seen_NK.tolist(), "values": as_lists(values)}


def as_lists(values: Mapping[str, Any]) -> dict[str, list[list[float]]]:
    return {name: [[rounded(v) for v in row] for row in x] for name, x in values.items()}


def rounded(x: float) -> float:
    """To six figures, so that the file is small enough for a repository."""
    return float(f"{x:.6g}")


Measured = dict[tuple[str, int], tuple[float, float, float, list[float]]]


def differences(whole: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> Measured:
    """{(measure, horizon): (difference from the whole, low, high, that of each seed)}, over held-out episodes.  PSNR is
    that of the mean squared error, so that its difference is the logarithm of a ratio."""
    means = over_episodes([*whole, *other])
    return summarised({of: mean_SR[len(whole) :] - mean_SR[: len(whole)] for of, mean_SR in means.items()})


def over_episodes(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Any]:
    """{(measure, horizon): float64 [run, 1 + blocks of episodes left out]}: a measure's mean, all episodes first."""
    import numpy as np

    from core.stats import left_out

    for run in runs:
        if run["episode"] != runs[0]["episode"] or run["seen"] != runs[0]["seen"]:
            raise SystemExit(f"{run['part']}, seed {run['seed']}: measured on other windows than the rest")
    episode, of_W = np.unique(runs[0]["episode"], return_inverse=True)
    weight_RW = left_out(len(episode), np.random.default_rng(0))[:, of_W]
    out: dict[tuple[str, int], Any] = {}
    for name, key in MEASURES.items():
        if key not in runs[0]["values"]:
            continue
        for i, k in enumerate(HORIZONS):
            seen_W = np.array(runs[0]["seen"])[:, i]
            value_SW = np.array([np.array(run["values"][key], np.float64)[seen_W, i] for run in runs])
            mean_SR = value_SW @ weight_RW[:, seen_W].T / weight_RW[:, seen_W].sum(1)
            out[name, k] = -10 * np.log10(mean_SR) if key == "squared error" else mean_SR
    return out


def summarised(means: Mapping[tuple[str, int], Any]) -> Measured:
    """The mean over runs with its 95 % interval, and each run's."""
    import numpy as np

    from core.stats import jackknifed

    found = {}
    for of, mean_SR in means.items():
        value, low, high = jackknifed(mean_SR.mean(0), rng=np.random.default_rng(0))
        found[of] = (float(value), float(low), float(high), mean_SR[:, 0].tolist())
    return found


def markdown(out: Path) -> str:
    """The table of what is in a directory."""
    runs: dict[str, list[dict[str, Any]]] = {}
    order = [name for part in PARTS for name in (part, *BEGUN.get(part, ())[:1])]
    found = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    for run in sorted(found, key=lambda run: order.index(run["part"]) if run["part"] in order else len(order)):
        runs.setdefault(run["part"], []).append(run)
    if WHOLE not in runs:
        raise SystemExit(f"{out} has no measures of the whole preset; benchmarks.ablations run makes them")
    seeds = {run["seed"]: run for run in runs[WHOLE]}
    columns = [("PSNR, dB", 1), ("PSNR, dB", 8), ("SSIM", 1), ("same action", 1), ("same action", 8),
               ("hidden-state error", 1)]  # fmt: skip
    n = len(set(runs[WHOLE][0]["episode"]))
    lines = [
        *rows_of(runs, columns), "",
        f"Below the whole preset what each is less it (seeds {', '.join(map(str, seeds))}); 95 % intervals "
        f"over {n} held-out episodes, of the mean over seeds; in brackets every seed of several.",
    ]  # fmt: skip
    tried = {part: [{**run, **run["held"]} for run in some if "held" in run] for part, some in runs.items()}
    if tried[WHOLE]:
        n = len(tried[WHOLE][0]["episode"])
        columns = [("recognised", 1), ("recognised", 4), ("recognised", 8), ("PSNR, dB", 4), ("PSNR, dB", 8)]
        lines += ["", f"The same where every action is held for so many steps, whatever the agent would do, from {n} "
                  "places of as many held-out episodes: the share of actions that are recognised (the simulated frame "
                  "is nearest to the real one of the same action), and the frames.", ""]  # fmt: skip
        lines += rows_of(tried, columns)
    return "\n".join(lines)


def rows_of(runs: Mapping[str, Sequence[dict[str, Any]]], columns: Sequence[tuple[str, int]]) -> list[str]:
    """A table of {part: its runs}; parts of which no seed has its whole are left out."""
    lines = ["| | updates | " + " | ".join(f"{name} at {k}" for name, k in columns) + " |",
             "|---|---|" + "---|" * len(columns)]  # fmt: skip
    seeds = {run["seed"]: run for run in runs[WHOLE]}
    for part, some in runs.items():
        pairs = [(seeds[run["seed"]], run) for run in some if run["seed"] in seeds]
        if not pairs:
            continue
        itself = part == WHOLE
        row = summarised(over_episodes(some)) if itself else differences(*zip(*pairs, strict=True))
        cells = []
        for column in columns:
            value, low, high, each = row[column]
            form = ("" if itself else "+") + (".2f" if "dB" in column[0] else ".3f")
            seeds_said = f" ({', '.join(format(x, form) for x in each)})" if len(each) > 1 else ""
            cells.append(f"{value:{form}} [{low:{form}}, {high:{form}}]{seeds_said}")
        updates = ", ".join(format(run["updates"], ".0f") for _, run in pairs)
        lines.append(f"| {part} | {updates} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
