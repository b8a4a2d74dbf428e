"""How much memory a stage takes at ten times the data: ``python benchmarks/memory.py [STAGE ...] [--work DIR]``.

Every stage runs as users run it, a process at size 1 and one at size 10, and the peak of its resident memory is taken
(what the kernel says of the process when it has ended), less that of a process that only imports what the stage
imports.  At size 10 it reads ten times the episodes (or is asked for ten times the samples, starts, steps); what bounds
a stage (``--most_states``, ``--fit_rows`` and the like) is the same at both.  A bound that is larger than the data at
size 1 bounds nothing there, so those of the stages are set lower than they are by default.

The agent and the simulator are untrained and small, and the recordings made up (a square on grey), so that what is
measured is the data.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

EPISODES, STEPS = 80, 64  # of the recording of size 1
SAMPLES, AHEAD = 128, 16  # rollouts of the simulator and their steps, of size 1
SIMULATOR, SIMULATED = "--simulator {w}/simulator", "--samples {w}/samples_{s}"
STATES = f"{SIMULATOR} --rollouts {{w}}/rollouts_{{s}} {SIMULATED} --embedding_states 500 --surrogates 0"
DIRECTIONS = "--hidden_states {w}/hidden_states --basis_kind pca"


ONE_THREAD = ("events",)  # has no such flag


@dataclass(frozen=True)
class Case:
    """A stage to measure."""

    data: str  # what there is ten times of
    flags: str  # {w}: the directory of models and recordings; {s}: 1 or 10; {NAME}: ``sizes`` times {s}
    sizes: Mapping[str, int]
    late: str  # what it imports only where there is enough to test or to draw, comma separated


def case(data: str, flags: str, late: str = "", **sizes: int) -> Case:
    return Case(data, flags, sizes, late)


# By the stage's name.  The bounds are below what there is at size 1.
CASES = {
    "train": case(
        "steps", "--preset debug --total_steps {steps}",
        steps=1024,
    ),
    "record": case(
        "episodes", "--agent {w}/agent --slots 4 --episodes {episodes} --shard_steps 512 --random 0.1", episodes=16
    ),
    "train_gen_model": case("episodes", "--preset debug --agent {w}/agent --rollouts {w}/rollouts_{s}"),
    "record_samples": case(
        "samples", f"{SIMULATOR} --rollouts {{w}}/rollouts_1 --samples {{samples}} --steps {AHEAD} "
        "--shard_steps 1024",
        samples=SAMPLES
    ),
    "fidelity": case(
        "episodes",
        f"{SIMULATOR} --rollouts {{w}}/rollouts_{{s}} --horizon 8 --windows 32 --starts 4 --latest_start 8 --no-video",
    ),
    "hidden_states": case(
        "episodes", f"--rollouts {{w}}/rollouts_{{s}} {SIMULATED} --embedding_states 500 --surrogates 0 "
        "--ica_restarts 2 --most_states 1500"
    ),
    "env_states": case("episodes", f"{STATES} --pca_size 16 --nmf_size 0 --most_states 1500"),
    "latents": case("episodes", f"{STATES} --pca_size 3 --most_states 500"),
    "behaviours": case(
        "episodes", f"{SIMULATOR} --rollouts {{w}}/rollouts_{{s}} {SIMULATED} --clusters 8 --surrogates 0 --no-video "
        "--fit_rows 1500"
    ),
    "events": case("episodes", "{w}/rollouts_{s}"),
    "probes": case(
        "episodes", "{w}/rollouts_{s} --max_rows 2000 --no-mlp --shuffles 99 --resamples 99 --targets level"
    ),
    "dynamics": case("episodes", "--agent {w}/agent --rollouts {w}/rollouts_{s} --iterations 20 --settle 20 "
        "--most_states 1500"),
    "similarity": case(
        "episodes", "--agents {w}/agent {w}/other --rollouts {w}/rollouts_{s} --episodes 32 --exchanges 2 "
        "--resamples 99"
    ),
    "saliency": case(
        "samples", f"{SIMULATOR} {SIMULATED} --sample_ids 0 to {{samples}} --integrated_steps 2 --no-video "
        "--batch_size 2",
        samples=8,
    ),
    "coupling": case(
        "samples, episodes, Jacobians",
        f"{SIMULATOR} {SIMULATED} {DIRECTIONS} --behaviours none --rollouts {{w}}/rollouts_{{s}} --max_directions 4 "
        "--samples_per_behaviour {jacobians} --permutations 199 --resamples 99 --batch_size 4 --most_states 1500",
        jacobians=64,
        late="scipy.stats, matplotlib.backends.backend_agg",
    ),
    "target_functions": case(
        "samples, episodes",
        f"{SIMULATOR} --rollouts {{w}}/rollouts_{{s}} --maximise value --samples {{samples}} --iterations 2 --screen 2 "
        "--noisy 2 --drawn 1 --no-video --memory_gb 0.02",
        samples=64,
    ),
    "interventions": case(
        "starts", f"{SIMULATOR} {DIRECTIONS} --behaviours none --directions 0 --amounts -1 1 --starts {{starts}} "
        "--horizon 4 --latest_start 8 --no-video",
        starts=32,
    ),
}  # fmt: skip


def make(work: Path) -> None:
    """Models and recordings of both sizes, those that are not there yet."""
    import core  # noqa: F401  (sets the OpenMP wait policy before torch is loaded)
    import torch  # isort: skip

    from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
    from analysis.shared.directions import fit_pca
    from core import artefacts
    from core.artefacts import Result
    from core.directions import fingerprint
    from core.episodes import RolloutStore
    from envs.procgen import ProcgenEnv, ProcgenOptions
    from generative.rssm import ModelConfig
    from generative.simulator import save_simulator, simulator_of

    torch.set_num_threads(1)
    spec = ProcgenEnv(ProcgenOptions(game="coinrun", use_backgrounds=False, restrict_themes=True), 1).spec
    for name in ("other", "agent"):
        torch.manual_seed(len(name))
        agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=16, hidden_size=64), spec)
        torch.nn.init.normal_(agent.policy.weight)
        if not (work / name).exists():
            with artefacts.new_run(work / name, "train", {}) as run:
                save_agent(agent, run.path)
    if not (work / "simulator").exists():
        sizes = ModelConfig(
            deterministic_size=256, hidden_size=16, groups=2, classes=4, depth=4, head_layers=1, latent_size=4,
            initial_frames=2,
        )  # fmt: skip
        simulator = simulator_of(sizes, agent)
        torch.nn.init.constant_(simulator.world.terminal_head[-1].bias, -6.0)  # the untrained world goes on
        with artefacts.new_run(work / "simulator", "train_gen_model", {}, {"agent": work / "agent"}) as run:
            save_simulator(simulator, run.path)
    for size in (1, 10):
        if not (work / f"rollouts_{size}").exists():
            write_rollouts(work / f"rollouts_{size}", agent, EPISODES * size)
    if not (work / "hidden_states").exists():
        with RolloutStore(work / "rollouts_1") as store:
            columns, index = store.pooled("h", episodes=range(32))
        basis = fit_pca(columns["h"], 8, fingerprint(agent))
        inputs = {"rollouts": work / "rollouts_1"}
        with artefacts.new_run(work / "hidden_states", "hidden_states", {}, inputs) as run:
            basis.save(run.path)
            c = basis.project(torch.from_numpy(columns["h"])).numpy()
            Result(arrays={"index": index, "source": 0 * index[:, 0], "c_pca": c}).save(run.path)
    for size in (1, 10):
        if not (work / f"samples_{size}").exists():
            flags = f"--simulator {work}/simulator --rollouts {work}/rollouts_1 --samples {SAMPLES * size}"
            words = f"-m generative.record_samples {flags} --steps {AHEAD} --out {work}/samples_{size} --threads 1"
            subprocess.run([sys.executable, *words.split()], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def write_rollouts(path: Path, agent: Any, episodes: int) -> None:
    """Made-up frames as record.py writes them, with what the agent makes of them."""
    import numpy as np
    import torch

    from core import artefacts
    from core.directions import fingerprint
    from core.episodes import Episode, StoreWriter
    from core.roll import Recorded, roll

    with artefacts.new_run(path, "record", {}, {"agent": path.parent / "agent"}) as run:
        artefacts.write_json(run.path / "spec.json", agent.spec.to_json())
        with StoreWriter(run.path, shard_steps=1024) as writer:
            for e in range(episodes):
                rng = np.random.default_rng(e)
                frames = np.full((STEPS, 64, 64, 3), 80, np.uint8)
                for t, (x, y) in enumerate(rng.integers(0, 40, (STEPS, 2))):
                    frames[t, x : x + 24, y : y + 24] = rng.integers(0, 255, 3)
                seen = Recorded(agent.spec, {"frames": torch.from_numpy(frames[None])})
                with torch.no_grad():
                    acted = [m.acted for m in roll(agent, seen, seen.begin(), steps=STEPS - 1)]
                h, logits, value = (
                    torch.cat([getattr(a, k) for a in acted]).numpy() for k in ("h_BH", "logits_BA", "value_B")
                )
                writer.add(
                    Episode(
                        obs={"frames": frames}, h=h, value=value, logits=logits,
                        action=(logits + rng.gumbel(size=logits.shape)).argmax(1),
                        reward=(rng.random(STEPS) < 0.02).astype(np.float32), terminated=True, truncated=False,
                        truth={"level": np.full(STEPS, e, np.int32)},
                        meta={"seed": 0, "slot": e % 4, "explores": False},
                    )
                )  # fmt: skip
        run.facts = {"agent": fingerprint(agent), "source": "real", "interventions": []}


def peak_mb(words: list[str]) -> float:
    """Peak resident memory of a process, MB; the benchmark ends where it fails."""
    with tempfile.TemporaryFile("w+") as said:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if process.returncode:
            sys.exit(f"error: {' '.join(words)}\n{said.read()[-2000:]}")
    return usage.ru_maxrss / 1024


def with_late(words: list[str], late: str) -> list[str]:
    """``-m MODULE ...`` in a process that first imports these."""
    return ["-c", f"import runpy, {late}\n"
            f"runpy.run_module({words[1]!r}, run_name='__main__', alter_sys=True)", *words[2:]]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(CASES)}; none: all")
    parser.add_argument("--work", type=Path, help="keep models and recordings there, and use those that are there")
    args = parser.parse_args()
    if unknown := set(args.stages) - {*CASES, "make"}:
        parser.error(f"no stage {', '.join(unknown)}; there are: {', '.join(CASES)}")
    if args.stages == ["make"]:  # in a process of its own: a child's peak begins at its parent's
        make(args.work)
        return
    from core.stages import STAGES

    with tempfile.TemporaryDirectory() as folder:
        work = (args.work or Path(folder)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, __file__, "make", "--work", str(work)], cwd=ROOT, check=True)
        print("| stage | ten times the | peak at 1, MB | peak at 10, MB | ratio |\n|---|---|---|---|---|", flush=True)
        for name in args.stages or CASES:
            stage, of = STAGES[name], CASES[name]
            door = f"from core.stages import STAGES; STAGES[{name!r}].door"
            empty = peak_mb(["-c", door + (f"\nimport {of.late}" if of.late else "")])
            peaks = []
            for size in (1, 10):
                sizes = {key: str(size * number) for key, number in of.sizes.items()}
                flags = of.flags.format(w=work, s=size, **sizes).split()
                out = Path(folder) / f"{name}_{size}"
                threads = [] if name in ONE_THREAD else ["--threads", "1"]
                words = [*stage.command.split(), *flags, *threads, "--out", str(out)]
                peaks.append(peak_mb(with_late(words, of.late) if of.late else words) - empty)
            one, ten = peaks
            print(f"| {name} | {of.data} | {one:,.0f} | {ten:,.0f} | {ten / one:.2f} |", flush=True)


if __name__ == "__main__":
    main()
