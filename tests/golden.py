"""Do two checkouts compute the same?  ``python tests/golden.py OLD NEW [--work DIR] [--only NAME ...]``

Runs the same commands in both, on the bundled models and at debug size (the demo's chain, the stages beside it and
Neural MMO's), and compares what they wrote: arrays, tables, weights, recordings and what the manifests say was found;
exactly, unless a command below has a tolerance and the reason for it.  A name that only one of them wrote is a
difference, too.  Pictures, pages and videos are drawn from what is compared; of them only the names are.

Every command of NEW reads what OLD wrote (inside a command, as in the demo, its own): a difference is reported where it
arises, any command can be compared alone, and NEW is shown to read the run directories of OLD.

``--work`` keeps the runs, and takes those of OLD that are there; NEW's are always made anew.  Both run with the Python
that this script was started with, on one thread.  Exit code 1: something differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

AGENT, SIMULATOR = "bundles/coinrun-context/agent", "bundles/coinrun-context/simulator"
POLICIES = "bundles/nmmo-demo/policies"
CLOCK = re.compile(r"(^|_)wall(_|$)|seconds|_per_s$|_ms$|^data_share$|^fps$|time_elapsed$")  # what a clock fills
# What is meant to differ: pattern of "COMMAND/WHERE" as a difference is printed (fnmatch's) -> why.
CHANGED = {
    "*fidelity/fidelity.csv:*": "has rows of the value's error and of SSIM less a held frame's",
    "*fidelity/scorecard.csv:*": "so too",
    "*:conditions*": "altered recordings list conditions, where they listed behaviours",
    "*altered*:behaviours*": "so too",
    "probes*:notes:resolution*": "says where too few --shuffles can show nothing",
    "target_functions/*targets*": "means are over the starts that are compared",
    "*saliency/result.json:notes:batch_size": "measured with an error of one in eighty before saved_bytes was mended",
    "*:direction": "ica:1, where a number was",
    "*:directions*": "so too",
    "*doses*:point": "so too",
    "*edges*:source": "so too",
    "*edges*:target": "so too",
    "*:hypothes*": "ica:1 where '1' was",
    "*:chosen*": "so too",
    "*:text": "so too",
    "*:sentence": "so too",
    "*:claim": "so too",
    "*:quantity": "so too",
    "*samples*:facts:start": "samples say how they start",
    "patching/*:random*": "random directions lead from a recorded state to another, where they were uniform over all",
    "patching/*:p": "so too",
    "patching/*:q": "so too",
    "patching/*:verdict*": "so too",
    "patching/*:used*": "so too",
    "*fidelity*:notes:dreams": "says that the agent acts by itself in the episodes that dreams are compared with",
    "*overlap.csv:floor_reason": "says why a floor has no interval",
    "*overlap.csv:interval_reason": "says why a number has none",
    "*overlap*floor*interval": "none with fewer than four episodes on a side",
    "*overlap.csv:floor_*": "so too",
    "*probes*targets.csv:given_by_few": "names confounders that too few units tell of",
    "*probes*targets.csv:verdict": "open for these",
    "*life*:notes:intervals": "says that an end which few lives cannot tell is empty",
    "*:lifespan_p75:interval": "so it is",
    "*manifest*:metrics:*_mean:interval*": "recordings give the intervals of their means",
    "coupling*kind*": "means are told apart, whatever the spread",
    "coupling*behaviour_pairs*": "so too",
    "coupling*extreme*": "drawn with what those leave of the random numbers",
    "coupling*correlat*": "of what the clock does not explain",
    "coupling*agree*": "so too",
    "coupling*edges.csv:*r": "so too",
    "*fidelity*:low": "of an average precision, with room for events that nobody foretold",
    "*average_precision*:interval": "so too",
    "ratings/*ratings.csv:low": "with room for worlds that were not met",
    "ratings/*ratings.csv:high": "so too",
    "*fidelity*:high": "no interval of halves of fewer than eight episodes",
    "*_distance*:interval": "so too",
    "*overlap*:low": "so too",
    "*overlap*:high": "so too",
    "*overlap*:interval": "so too",
    "probes/arrays.npz:null_partial": "ridge penalties go down to 1e-8 a row, which changes some R2 by up to .0002",
    "probes/arrays.npz:predicted_observation": "so too",
    "probes/targets.csv:*observation*": "so too",
    "probes/targets.csv:partial*": "so too",
    "probes/targets.csv:unique*": "so too",
    "evaluate/*:length_mean:interval": "the mean length of held-out episodes has its interval",
}


@dataclass(frozen=True)
class Command:
    """One run of a stage.  ``{w}`` stands for the directory of OLD's runs, ``{out}`` for the run that it writes."""

    name: str  # its directory, and what --only names
    words: str
    rtol: float = 0.0  # of numbers, by the largest of their array or column
    why: str = ""  # the tolerance

    @property
    def reads(self) -> list[str]:
        """Names of the commands whose runs it reads."""
        return list(dict.fromkeys(re.findall(r"\{w\}/(\w+)", self.words)))


MODELS = f"--simulator {SIMULATOR} --rollouts {{w}}/demo/rollouts --samples {{w}}/demo/samples"
DEBUG = "--preset debug --threads 1"
COMMANDS = (
    Command("demo", "-m validation.demo --sizes debug --threads 1 --out {out}"),
    Command("evaluate", f"-m agents.evaluate --agent {AGENT} --episodes 16 --slots 8 --threads 1 --out {{out}}"),
    Command(
        "altered",
        f"record.py {DEBUG} --agent {AGENT} --basis {{w}}/demo/hidden_states --basis_kind ica --swap_directions_from 0 "
        "1 --swap_directions_to 2 None --data_save_dir {out}",
    ),
    Command(
        "altered_samples",
        f"-m generative.record_samples {DEBUG} --simulator {SIMULATOR} --rollouts {{w}}/demo/rollouts --basis "
        "{w}/demo/hidden_states --shift 1=-2 --at_steps 0 2 --behaviours {w}/demo/behaviours --when behaviour=1 "
        "--data_save_dir {out}",
    ),
    Command("env_states", f"-m analysis.env_states {DEBUG} {MODELS} --out {{out}}"),
    Command("latents", f"-m analysis.latents {DEBUG} {MODELS} --out {{out}}"),
    Command(
        "similarity",
        f"-m analysis.similarity {DEBUG} --agents {AGENT} {{w}}/agent --rollouts {{w}}/demo/rollouts --out {{out}}",
    ),
    Command(
        "target_functions",
        f"-m analysis.target_functions {DEBUG} --simulator {SIMULATOR} --rollouts {{w}}/demo/rollouts --hidden_states "
        "{w}/demo/hidden_states --maximise value_drop ica_1 --out {out}",
    ),
    Command(
        "saliency",
        f"-m analysis.saliency {DEBUG} --simulator {SIMULATOR} --samples {{w}}/demo/samples --hidden_states "
        "{w}/demo/hidden_states --quantities action value value_delta leftwards direction_1 --methods plain integrated "
        "deeplift occlusion latent --checks --stride 16 --window 16 --draws 2 --out {out}",
    ),
    Command(
        "study",
        "-m validation.interventions --config docs/study.json --hidden_states {w}/demo/hidden_states --behaviours "
        "{w}/demo/behaviours --start_when --hypotheses 'shift 1 by +3 sufficient for presses' "
        "'shift 1 by -2 on prob:right' --starts 12 --horizon 4 --controls 39 --latest_start 8 --threads 1 --out {out}",
    ),
    Command("agent", f"train.py {DEBUG} --out {{out}}"),
    Command("agent_rollouts", f"record.py {DEBUG} --agent {{w}}/agent --out {{out}}"),
    Command(
        "simulator", f"train_gen_model.py {DEBUG} --agent {{w}}/agent --rollouts {{w}}/agent_rollouts --out {{out}}"
    ),
    Command("policies", "train.py nmmo --preset debug --threads 1 -a hybrid --maps {w}/maps --out {out}/hybrid"),
    Command(
        "evaluations",
        "-m agents.evaluate {w}/policies pve --episodes 8 --worlds 1 --threads 1 --maps {w}/maps --out {out}",
    ),
    Command("ratings", f"-m analysis.proc_eval_result {POLICIES}/eval_pvp --resamples 50 --out {{out}}"),
    Command(
        "activations",
        f"-m analysis.extract_activations pve -p hybrid --policies {POLICIES} --parts 1 --worlds 1 --threads 1 --maps "
        "{w}/maps -o {out}",
    ),
    Command(
        "clusters", f"-m analysis.activations {{w}}/activations {DEBUG} --surrogates 2 --subsample 8 --out {{out}}"
    ),
    Command("life", "-m analysis.life {w}/activations --cluster_dir {w}/clusters --num_agents 2 --out {out}"),
    Command(
        "life_phase",
        "-m analysis.life_phase {w}/activations --cluster_dir {w}/clusters --unit lives --min_lifespan 10 --resamples "
        "99 --rotations 99 --out {out}",
    ),
    Command("replay", "-m analysis.replay {w}/activations --cluster_dir {w}/clusters --world 0 --out {out}"),
    Command("probes", f"-m analysis.probes {{w}}/activations {DEBUG} --observation obs/Entity:0 --out {{out}}"),
    Command(
        "patching",
        f"-m analysis.patching {{w}}/activations {DEBUG} --policy {POLICIES}/hybrid --probes {{w}}/probes --out "
        "{out}",
    ),
    Command(
        "planted", "-m validation.planted --worlds linear mixture null --repeats 1 --runs 4 --threads 1 --out {out}"
    ),
)


def ordered(names: list[str]) -> list[Command]:
    """The named commands and those whose runs they read, what is read first."""
    by_name = {c.name: c for c in COMMANDS}
    out: list[Command] = []

    def add(name: str) -> None:
        for read in by_name[name].reads:
            if read in by_name:
                add(read)
        if by_name[name] not in out:
            out.append(by_name[name])

    for name in names:
        add(name)
    return out


def run(root: Path, inputs: Path, out: Path, command: Command) -> tuple[str, float]:
    """What a command said where it failed ('' where it did not), and its CPU seconds."""
    words = [sys.executable, *(word.format(w=inputs, out=out) for word in shlex.split(command.words))]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("PYTHONPATH", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return "" if done.returncode == 0 else (done.stderr.strip() or done.stdout.strip())[-2000:] or "failed", seconds


def contents(directory: Path, roots: Sequence[Path] = ()) -> dict[str, Any]:
    """{name: array, number, text or None} of everything that a run directory holds; None also for pictures and pages.

    Tables are taken by columns.  From texts, the directory and ``roots`` are cut out.
    """
    found: dict[str, Any] = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file() and not p.name.startswith("events.out.")):
        found |= leaves(_read(path), path.relative_to(directory).as_posix(), [directory, *roots])
    return {re.sub(r"(?<![a-z])(?:direction|ica)[_:](?=\d)", "ica:", name): value for name, value in found.items()}


def _read(path: Path) -> Any:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.name == "manifest.json":  # the rest: paths, times, versions
        manifest = json.loads(path.read_text())
        return {key: manifest[key] for key in ("stage", "facts", "metrics")}
    if path.suffix == ".json" and path.name != "config.json":  # a new flag is no difference
        return json.loads(path.read_text())
    if path.suffix == ".csv":
        with open(path, newline="") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(path)
    return _datasets(path) if path.suffix == ".h5" else None


def _datasets(path: Path) -> dict[str, Any]:
    """Datasets and attributes of an HDF5 file."""
    import h5py

    found: dict[str, Any] = {}

    def keep(name: str, node: Any) -> None:
        found.update({f"{name}@{k}": v for k, v in node.attrs.items()})
        if isinstance(node, h5py.Dataset):
            found[name] = node[()]

    with h5py.File(path) as file:
        keep("", file)
        file.visititems(keep)
    return found


def leaves(value: Any, where: str, roots: Sequence[Path] = ()) -> dict[str, Any]:
    """{where: array, number, text or None} of what JSON, a table or a file of arrays holds, without clocks' numbers."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not CLOCK.search(str(k))}
        return {name: leaf for k, v in kept.items() for name, leaf in leaves(v, f"{where}:{k}", roots).items()}
    if isinstance(value, list):
        if value and all(isinstance(v, dict) and v.keys() == value[0].keys() for v in value):
            return leaves({k: [v[k] for v in value] for k in value[0]}, where, roots)
        cells = [_cell(v, roots) for v in value]
        if all(isinstance(v, int | float | None) and not isinstance(v, bool) for v in cells):
            return {where: np.array([np.nan if v is None else v for v in cells])}
        return {name: x for i, v in enumerate(cells) for name, x in leaves(v, f"{where}:{i}", roots).items()}
    return {where: _cell(value, roots)}


def _cell(value: Any, roots: Sequence[Path]) -> Any:
    """A CSV's numbers as such, texts without the directories."""
    if not isinstance(value, str):
        return value
    for root in roots:
        value = value.replace(str(root), "")
    try:
        return float(value)
    except ValueError:
        return value or None


def differences(old: dict[str, Any], new: dict[str, Any], rtol: float) -> Iterator[tuple[str, str]]:
    """(where, what) of everything that is not the same in both contents."""
    for where in sorted(old.keys() | new.keys()):
        if where not in old or where not in new:
            yield where, f"only {'NEW' if where not in old else 'OLD'} has it"
        elif said := _unlike(old[where], new[where], rtol):
            yield where, said


def _unlike(old: Any, new: Any, rtol: float) -> str:
    a, b = np.asarray(old), np.asarray(new)
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind or (a.ndim and a.dtype != b.dtype and a.dtype.kind != "U"):
        return f"{a.dtype} {a.shape}, then {b.dtype} {b.shape}"
    if a.dtype.kind not in "fc":
        if np.array_equal(a, b):
            return ""
        return f"{old!r}, then {new!r}" if a.ndim == 0 else f"{(a != b).sum()} of {a.size} entries differ"
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return f"NaN {np.isnan(a).sum()} times, then {np.isnan(b).sum()} times, or elsewhere"
    unlike = ~np.isnan(a) & (a != b)  # equal infinities are no difference
    if not unlike.any():
        return ""
    gap, size = float(np.abs(a[unlike] - b[unlike]).max()), float(np.abs(a[np.isfinite(a)]).max(initial=0))
    return "" if gap <= rtol * size else f"differs by {gap:.3g}, {gap / size if size else np.inf:.1e} of its largest"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--work", type=Path, help="directory that keeps the runs (a temporary one)")
    parser.add_argument(
        "--only", nargs="+", choices=[c.name for c in COMMANDS], metavar="NAME", help="compare only these"
    )
    given = parser.parse_args()
    work = (given.work or Path(tempfile.mkdtemp(prefix="golden_"))).resolve()
    roots = {"old": given.old.resolve(), "new": given.new.resolve()}
    places = {"old": work / "old", "new": work / f"new_{roots['new'].name}"}
    asked = given.only or [c.name for c in COMMANDS]
    wrong = 0
    for command in ordered(asked):
        took: dict[str, float] = {}
        for side, place in places.items():
            out, done = place / command.name, place / f"{command.name}.done"
            made_by = f"{roots[side]}\n{command.words}\n"
            kept = side == "old" and done.exists() and done.read_text() == made_by
            if kept or (side == "new" and command.name not in asked):
                continue
            shutil.rmtree(out, ignore_errors=True)
            done.unlink(missing_ok=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            said, took[side] = run(roots[side], places["old"], out, command)
            if said:
                print(f"{command.name}: failed in {roots[side]}\n{said}", flush=True)
                break
            done.write_text(made_by)
        else:
            if command.name in asked:
                wrong += _compared(command, *places.values(), list(roots.values()), took)
            continue
        wrong += 1
    print(f"{wrong} of {len(asked)} commands differ; runs in {work}")
    return int(wrong > 0)


def _compared(command: Command, old: Path, new: Path, roots: list[Path], took: dict[str, float]) -> bool:
    """Whether the command's runs differ; says it."""
    one, two = (contents(place / command.name, [old, new, *roots]) for place in (old, new))
    lines = [
        f"    {command.name}/{where}: {what}\n"
        for where, what in differences(one, two, command.rtol)
        if not any(fnmatchcase(f"{command.name}/{where}", pattern) for pattern in CHANGED)
    ]
    seconds = ", ".join(f"{side.upper()} {s:.0f} s" for side, s in took.items())
    print(f"{command.name}: {len(one)} entries, {len(lines) or 'no'} differences ({seconds})", flush=True)
    print("".join(lines[:40]), end="", flush=True)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
