"""Is this machine ready?  ``python -m validation.doctor`` says in a line each what it finds, with advice; exit code 1
if something that is needed is broken.

Versions, devices, environments, threads, memory, disk, and a short chain of stages on the bundled agent and simulator.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.doctor", file=sys.stderr)
    sys.exit(2)

import contextlib
import importlib
import importlib.metadata
import io
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from core import artefacts, config as cli, lock
from core.config import ROOT
from core.contracts import UserError
from core.files import memory_bytes
from core.precision import native_bf16
from core.stages import STAGES
from envs.procgen import ProcgenEnv, ProcgenOptions

STAGE = "doctor"
OK, NOTE, BROKEN = "ok", "note", "BROKEN"
NEEDED = (
    "captum", "h5py", "hdbscan", "imageio_ffmpeg", "matplotlib", "numpy", "picard", "PIL", "safetensors", "scipy",
    "sklearn", "starlette", "tensorboard", "torch", "tyro", "umap",
)  # fmt: skip
# Environments beside Procgen, which the bundled models need: what is imported, and what installs it.
WORLDS = {
    "nmmo": "pip install --no-deps nmmo pufferlib", "gymnasium": "pip install gymnasium minigrid",
    "craftax": "pip install craftax jax flax",
}  # fmt: skip
LITTLE_MEMORY, LITTLE_DISK = 4e9, 5e9  # bytes


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Say whether this machine is ready for all stages, and what to do where it is not."""

    runs: Path = Path("runs")
    """where run directories will be written"""
    bundle: Path = Path("bundles/coinrun-robust")
    """directory with the trained agent/ and simulator/ that are tried"""
    smoke: bool = True
    """try a short chain of stages too: record, simulate, fit directions (about ten seconds)"""
    device: str = "cpu"
    """cpu or cuda, for the chain"""
    threads: int = 2
    """CPU threads, for the chain"""


@dataclass(frozen=True)
class Finding:
    """What was found about one thing; ``advice`` where it is not ok."""

    state: str  # OK, NOTE or BROKEN
    what: str
    said: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.state:<6} {self.what:<12} {self.said}" + (f"; {self.advice}" if self.advice else "")


def versions() -> Iterator[Finding]:
    """Python and the packages, beside requirements.lock."""
    right = sys.version_info[:2] in ((3, 11), (3, 12))
    advice = "" if right else "use Python 3.11 or 3.12 (make venv finds one)"
    yield Finding(OK if right else BROKEN, "python", f"{platform.python_version()} on {platform.machine()}", advice)
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.M))
    missing, other = [], []
    for name, version in pinned.items():
        try:
            have = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if have.partition("+")[0] != version.partition("+")[0]:
            other.append(f"{name} {have} (tested: {version})")
    if missing or other:
        said = "; ".join([*other, *([f"not installed: {', '.join(missing)}"] if missing else [])])
        yield Finding(NOTE, "packages", said, "make venv installs what is tested")
    else:
        yield Finding(OK, "packages", f"{len(pinned)} as in requirements.lock")
    broken = [f"{name} ({said})" for name in NEEDED if (said := _imports(name))]
    if broken:
        yield Finding(BROKEN, "imports", ", ".join(broken), "make venv")


def _imports(name: str) -> str:
    """Why a package does not import; '' if it does."""
    try:
        quiet = io.StringIO()  # some greet, some warn
        with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    except Exception as error:  # whatever a broken installation raises
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def devices() -> Iterator[Finding]:
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        yield Finding(OK, "gpu", f"{names}: use --device cuda")
    elif shutil.which("nvidia-smi"):
        advice = "install torch for the driver's CUDA version (docs/dependencies.md), or look at the driver"
        yield Finding(NOTE, "gpu", "there is one, which torch does not see", advice)
    else:
        yield Finding(OK, "gpu", "none: stages run on the CPU")


def procgen() -> Finding:
    if why := _imports("procgen"):
        return Finding(BROKEN, "procgen", why, "make venv")
    world = ProcgenEnv(ProcgenOptions(), 1, threads=1)
    try:
        world.reset(0)
    except UserError as error:  # a library of the system is missing
        said, _, advice = str(error).partition("; ")
        return Finding(BROKEN, "procgen", said, advice)
    finally:
        world.close()
    return Finding(OK, "procgen", "imports and runs", "")


def worlds() -> Iterator[Finding]:
    yield procgen()
    for name, command in WORLDS.items():
        why = _imports(name)
        gone = why.startswith("ModuleNotFoundError") and f"'{name}'" in why
        said = "not installed" if gone else why or "imports"
        yield Finding(NOTE if why else OK, name, said, f"for its worlds: {command}" if why else "")


def threads(wanted: int) -> Iterator[Finding]:
    """Cores, who else computes on them, and how waiting threads wait."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0]
    said = f"{cores} for this process, load {load:.1f}"
    if load > cores:
        yield Finding(NOTE, "cores", said, "others compute here too: stages take longer; fewer --threads wait less")
    elif wanted > cores:
        yield Finding(NOTE, "cores", said, f"--threads {wanted} would wait for each other: use --threads {cores}")
    else:
        yield Finding(OK, "cores", said)
    can = native_bf16("cpu")
    advice = "" if can else "presets train in float32 here; --bf16 would be emulated, many times slower"
    yield Finding(OK if can else NOTE, "bfloat16", f"{'arithmetic' if can else 'none'} of this CPU's own", advice)
    policy, limit = os.environ.get("OMP_WAIT_POLICY", "unset"), os.environ.get("OMP_NUM_THREADS", "unset")
    said = f"OMP_WAIT_POLICY {policy}, OMP_NUM_THREADS {limit}, torch {torch.get_num_threads()}"
    if policy.upper() == "PASSIVE":
        yield Finding(OK, "threads", said)
    else:
        advice = "threads that spin while they wait slow everything beside other work: OMP_WAIT_POLICY=PASSIVE"
        yield Finding(NOTE, "threads", said, advice)


def memory() -> Iterator[Finding]:
    whole = memory_bytes()
    available = re.search(r"MemAvailable:\s+(\d+) kB", _text(Path("/proc/meminfo")))
    free = min(whole, int(available[1]) * 1024) if available else whole
    advice = "" if free > LITTLE_MEMORY else "use smaller --batch and --slots, or end what else runs"
    yield Finding(NOTE if advice else OK, "memory", f"{whole / 1e9:.1f} GB, {free / 1e9:.1f} GB free", advice)


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def disk(runs: Path) -> Iterator[Finding]:
    """Whether runs can be written, locked and kept."""
    there = next(p for p in (runs.absolute(), *runs.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryDirectory(dir=there, prefix=".doctor_") as folder:
            lock.take(Path(folder) / "run")
            lock.release(Path(folder) / "run")
            artefacts.write_atomically(Path(folder) / "file", bytes(1 << 20))
        free = shutil.disk_usage(there).free
    except (OSError, UserError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        yield Finding(
            BROKEN, "disk", f"{there} cannot be written ({said})", "choose another --runs, or mend its rights"
        )
        return
    advice = "" if free > LITTLE_DISK else "a recorded step takes 1.2 kB, a simulator 100 MB: free some space"
    yield Finding(NOTE if advice else OK, "disk", f"{there}: {free / 1e9:.1f} GB free", advice)
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if size != resource.RLIM_INFINITY:
        yield Finding(NOTE, "file size", f"at most {size:,} bytes", "raise the limit (ulimit -f) where writing fails")


def bundle(path: Path) -> Iterator[Finding]:
    problems = [problem for name in ("agent", "simulator") for problem in artefacts.verify(path / name)]
    if problems:
        yield Finding(BROKEN, "bundle", problems[0], f"git checkout -- {path}")
    else:
        yield Finding(OK, "bundle", f"{path} is whole")


def smoke(config: DoctorConfig) -> Iterator[Finding]:
    """Record, simulate and fit directions in a folder that is deleted again."""
    there = next(p for p in (config.runs.absolute(), *config.runs.absolute().parents) if p.exists())
    said = io.StringIO()
    with tempfile.TemporaryDirectory(dir=there, prefix=".doctor_") as folder:
        root, models = Path(folder), config.bundle
        common = ["--preset", "debug", "--threads", str(config.threads)]
        agent, simulator = ["--agent", f"{models}/agent"], ["--simulator", f"{models}/simulator"]
        rollouts, device = ["--rollouts", f"{root}/rollouts"], ["--device", config.device]
        chain = {
            "record": [*agent, *device], "record_samples": [*simulator, *rollouts, *device],
            "hidden_states": [*agent, *rollouts, "--samples", f"{root}/record_samples"],
        }  # fmt: skip
        for name, argv in chain.items():
            out = root / ("rollouts" if name == "record" else name)
            try:
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    STAGES[name].door.main(cli.parse(STAGES[name].cls, [*common, *argv, "--out", str(out)], name))
            except Exception as error:  # whatever is broken here
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                yield Finding(BROKEN, "chain", f"{name} fails: {reason}", f"see python {STAGES[name].command} --help")
                return
        problems = artefacts.verify(root / "hidden_states")
    if problems:
        yield Finding(BROKEN, "chain", problems[0], "the disk, or the memory, does not keep what is written")
    else:
        yield Finding(OK, "chain", "recorded, simulated, fitted directions, and all of it verifies")


def findings(config: DoctorConfig) -> Iterator[Finding]:
    yield from versions()
    yield from devices()
    yield from worlds()
    yield from threads(config.threads)
    yield from memory()
    on_disk = list(disk(config.runs))
    yield from on_disk
    yield from bundle(config.bundle)
    if config.smoke and not any(finding.state == BROKEN for finding in on_disk):
        yield from smoke(config)


def main(config: DoctorConfig) -> None:
    cli.device_of(config.device)
    broken = 0
    for finding in findings(config):
        print(finding, flush=True)
        broken += finding.state == BROKEN
    if broken:
        print(f"{broken} of what is needed {'is' if broken == 1 else 'are'} broken")
        raise SystemExit(1)
    print("ready")


if __name__ == "__main__":
    cli.run(DoctorConfig, main, STAGE)
