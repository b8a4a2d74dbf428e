"""Two processes of torchrun give what one gives where work is shared: arrays, tables and numbers, but for a sum's last
digit."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents import record
from agents.record import RecordConfig
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from analysis.shared.directions import fit_pca
from core import artefacts, config as cli, stages
from core.artefacts import Result
from core.directions import fingerprint
from core.episodes import RolloutStore
from envs.procgen import ProcgenEnv, ProcgenOptions
from generative.rssm import ModelConfig
from generative.simulator import save_simulator, simulator_of
from tests.conftest import once

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = ModelConfig(
    deterministic_size=16, hidden_size=16, groups=2, classes=4, depth=4, head_layers=1, latent_size=4, initial_frames=2
)
# By the stage's name, and after a hyphen what of it: the flags, all that one process and two have in common.
SHARED = {
    "record_samples": "--simulator {w}/simulator --rollouts {w}/rollouts --samples 10 --steps 8 --batch 3 --stochastic "
    "--shard_steps 30 --no-film",
    "saliency": "--simulator {w}/simulator --samples {w}/samples --sample_ids 0 to 5 --batch_size 2 --steps 4 "
    "--target_step 3 --no-video --methods integrated --integrated_steps 3 --quantities value --no-checks",
    "coupling": "--simulator {w}/simulator --samples {w}/samples --hidden_states {w}/hidden_states --basis_kind pca "
    "--behaviours none --max_directions 2 --lags 1 2 --batch_size 4 --samples_per_behaviour 9 --permutations 199 "
    "--resamples 99",
    "target_functions": "--simulator {w}/simulator --maximise value --samples 3 --steps 4 --iterations 2 --screen 2 "
    "--noisy 3 --drawn 1 --no-video --memory_gb 0.001",
    "fidelity": "--simulator {w}/simulator --rollouts {w}/rollouts --horizon 5 --windows 10 --batch 3 --starts 6 "
    "--latest_start 8 --rungs all --no-video",
    "interventions": "--simulator {w}/simulator --hidden_states {w}/hidden_states --behaviours none --basis_kind pca "
    "--directions 0 --amounts -1 1 --starts 20 --horizon 2 --latest_start 8 --no-video",
    "hidden_states": "--preset debug --rollouts {w}/rollouts --samples none --agent none",
    "env_states": "--preset debug --simulator {w}/simulator --rollouts {w}/rollouts --samples none",
    "latents": "--preset debug --simulator {w}/simulator --rollouts {w}/rollouts --samples none",
    "record": "--agent {w}/agent --slots 4 --episodes 4 --num_steps 70 --explore_share 0.5 --sticky 0.3 --random 0.2 "
    "--shard_steps 45 --truth all",
    "extract_activations": "pve -p {w}/one/train_nmmo --maps {w}/maps --parts 3 --points cell",
}  # fmt: skip
# Trainings: equal within TOLERANCE.
TRAINED = {
    "train": "--preset debug",
    "train-semantic": "--preset debug --policy semantic --env_name chaser --refresh 1 --score_max 0.1",
    "train-semantic_of_steps": "--preset debug --policy semantic --env_name chaser --refresh 1 --score_max 0.1 "
    "--recurrence features --hidden_size 32 --minibatch_of steps",
    "train-consistency": "--preset debug --consistency 0.1 --consistency_share 0.5",
    "train_nmmo": "--preset debug -a hybrid --maps {w}/maps --envs 4 --npcs 16 --horizon 48 --total_steps 3072",
    "train_craftax": "--preset debug --rollout_steps 128 --total_steps 2048",
    "train_gymnasium": "--preset debug --env CartPole-v1",
    "train_gen_model": "--preset debug --agent {w}/agent --rollouts {w}/rollouts",
}
# One of every kind of sharing; the others are tested with the slow ones.
EVERYDAY = ("record_samples", "saliency", "interventions", "hidden_states", "record", "train_gen_model")
TOLERANCE = 1e-3  # of weights, by the largest of their tensor, after the updates of debug size


def make_world(root: Path) -> None:
    """An untrained agent and simulator, rollouts, samples and directions."""
    torch.manual_seed(0)
    spec = ProcgenEnv(ProcgenOptions(game="coinrun", use_backgrounds=False, restrict_themes=True), 1).spec
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=16, hidden_size=8), spec)
    torch.nn.init.normal_(agent.policy.weight, std=2.0)
    simulator = simulator_of(SMALL, agent)
    torch.nn.init.constant_(simulator.world.terminal_head[-1].bias, -3.0)  # the untrained world goes on
    with artefacts.new_run(root / "agent", "train", {}) as run:
        save_agent(agent, run.path)
    with artefacts.new_run(root / "simulator", "train_gen_model", {}, {"agent": root / "agent"}) as run:
        save_simulator(simulator, run.path)
    record.main(RecordConfig(agent=root / "agent", out=root / "rollouts", num_steps=50, slots=8, threads=1))
    with RolloutStore(root / "rollouts") as store:
        columns, index = store.pooled("h")
    basis = fit_pca(columns["h"], 4, fingerprint(agent))
    with artefacts.new_run(root / "hidden_states", "hidden_states", {}, {"rollouts": root / "rollouts"}) as run:
        basis.save(run.path)
        c = basis.project(torch.from_numpy(columns["h"])).numpy()
        Result(arrays={"index": index, "source": np.zeros(len(index), np.int8), "c_pca": c}).save(run.path)
    of_stage(
        "record_samples", f"--simulator {root}/simulator --samples 12 --steps 8 --batch 6 --no-film", root / "samples"
    )


def flags_of(name: str, root: Path) -> str:
    return ({**SHARED, **TRAINED}[name] + " --threads 1").replace("{w}", str(root))


def stage_of(name: str) -> stages.Stage:
    return stages.STAGES[name.partition("-")[0]]


def of_stage(name: str, flags: str, out: Path) -> None:
    """A stage in this process."""
    stage = stage_of(name)
    stage.door.main(cli.parse(stage.cls, [*flags.split(), "--out", str(out)], name.partition("-")[0]))


def command_of(name: str, root: Path) -> list[str]:
    return [*stage_of(name).command.split(), *flags_of(name, root).split(), "--out", f"{root}/two/{name}"]


def torchrun(commands: Sequence[Sequence[str]], file: Path) -> subprocess.CompletedProcess[str]:
    """Commands, one after the other, in two processes."""
    file.write_text(json.dumps(commands))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [*launch, "tests/under_torchrun.py", str(file)]
    return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)


def run_both(root: Path, names: Sequence[str]) -> None:
    """Runs of these stages, of one process and of two: one/NAME and two/NAME."""
    make_world(root)
    for name in names:
        of_stage(name, flags_of(name, root), root / "one" / name)
    done = torchrun([command_of(name, root) for name in names], root / "commands.json")
    (root / "said.txt").write_text(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="session")
def everyday(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "everyday", lambda root: run_both(root, EVERYDAY))


@pytest.fixture
def both(name: str, request: pytest.FixtureRequest) -> Path:
    """Where ``run_both`` made the stage ``name``."""
    return request.getfixturevalue("everyday" if name in EVERYDAY else "others")  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = [name for name in (*TRAINED, *SHARED) if name not in EVERYDAY]  # an extraction is of a policy that is there
    return once(tmp_path_factory, "others", lambda root: run_both(root, names))


def marked(names: Iterable[str]) -> list[Any]:
    """Slow, but for those of every day."""
    return [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.slow) for name in names]


ROUNDING = {"rel": 1e-6, "abs": 1e-9}  # a sum's last digit can depend on where its numbers lie in memory


def number(word: str) -> Any:
    """A cell of a table as a number, where it is one."""
    try:
        return float(word)
    except ValueError:
        return word


def assert_alike(one: Any, two: Any, where: str) -> None:
    """Nested JSON values that are equal but for rounding."""
    if isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_alike(one[key], two[key], f"{where} {key}")
    elif isinstance(one, list):
        assert len(one) == len(two), where
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            assert_alike(a, b, f"{where} {i}")
    elif isinstance(one, float) and isinstance(two, float):
        assert one == pytest.approx(two, **ROUNDING, nan_ok=True), where
    else:
        assert one == two, where


def assert_same(one: Path, two: Path) -> None:
    """The files of two runs, but for figures and what tells when and where they were made."""
    manifests = [artefacts.read_manifest(path) for path in (one, two)]
    assert [m["machine"]["processes"] for m in manifests] == [1, 2]
    for part in ("facts", "metrics"):
        assert_alike(manifests[0][part], manifests[1][part], part)
    assert manifests[0]["files"].keys() == manifests[1]["files"].keys()
    for name in manifests[0]["files"]:
        if name.endswith(".csv"):
            tables = [list(csv.reader((path / name).read_text().splitlines())) for path in (one, two)]
            assert_alike(*([[number(x) for x in row] for row in table] for table in tables), name)
        elif name.endswith(".json") and name != "config.json":
            assert_alike(*(json.loads((path / name).read_text()) for path in (one, two)), name)
        elif name.endswith((".npy", ".safetensors")):
            assert (one / name).read_bytes() == (two / name).read_bytes(), name
    if (one / "arrays.npz").exists():
        a, b = (Result.load(path).arrays for path in (one, two))
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == b[name].dtype
            if a[name].dtype.kind == "f":
                np.testing.assert_allclose(a[name], b[name], rtol=ROUNDING["rel"], atol=ROUNDING["abs"], err_msg=name)
            else:
                assert np.array_equal(a[name], b[name]), name


@pytest.mark.parametrize("name", marked(SHARED))
def test_shared_work_is_that_of_one_process(both: Path, name: str) -> None:
    assert_same(both / "one" / name, both / "two" / name)
    assert artefacts.verify(both / "two" / name) == []


@pytest.mark.parametrize(
    ("name", "rounding"),
    [
        ("record_samples", 0.0),
        ("record", 2e-5),
        pytest.param("extract_activations", 0.0, marks=pytest.mark.slow),
    ],
)
def test_episodes_of_two_processes_are_those_of_one(both: Path, name: str, rounding: float) -> None:
    """rounding: where a process's agent sees its slots alone, of what it makes of them."""
    with RolloutStore(both / "one" / name) as one, RolloutStore(both / "two" / name) as two:
        assert_same_episodes(one, two, rounding)


@pytest.mark.parametrize("name", marked(TRAINED))
def test_a_training_of_two_processes_is_that_of_one(both: Path, name: str) -> None:
    one, two = (artefacts.load_tensors(both / where / name, artefacts.WEIGHTS) for where in ("one", "two"))
    assert one.keys() == two.keys()
    for tensor in one:
        off = (one[tensor] - two[tensor]).abs().max() / one[tensor].abs().max().clamp_min(1e-3)
        assert off < TOLERANCE, (tensor, float(off))
    curves = [
        list(csv.DictReader((both / where / name / "curve.csv").read_text().splitlines())) for where in ("one", "two")
    ]
    for told in ("step", "return_mean", "length_mean", "achievements_mean", "ate_mean", "progress_mean"):
        assert [row.get(told) for row in curves[0]] == [row.get(told) for row in curves[1]], told
    assert len(curves[0]) > 1
    assert artefacts.verify(both / "two" / name) == []


@pytest.mark.slow
def test_an_extraction_of_one_process_goes_on_in_two(others: Path, tmp_path: Path) -> None:
    name, out = "extract_activations", tmp_path / "cut"
    flags = flags_of(name, others)
    of_stage(name, f"{flags} --parts 1", out)
    go_on = [*stage_of(name).command.split(), *flags.split(), "--resume", "--out", str(out)]
    done = torchrun([go_on], tmp_path / "commands.json")
    assert done.returncode == 0, done.stderr[-4000:]
    with RolloutStore(others / "one" / name) as one, RolloutStore(out) as two:
        assert_same_episodes(one, two, 0.0)
    assert artefacts.verify(out) == []


def assert_same_episodes(one: RolloutStore, two: RolloutStore, rounding: float) -> None:
    assert len(one) == len(two) and one.column_names == two.column_names
    for e in range(len(one)):
        a, b = one.episode(e), two.episode(e)
        assert a.meta == b.meta and a.terminated == b.terminated
        assert np.array_equal(a.action, b.action) and np.array_equal(a.reward, b.reward)
        assert all(np.array_equal(a.obs[k], b.obs[k]) for k in a.obs)
        assert all(np.array_equal(a.truth[k], b.truth[k], equal_nan=True) for k in a.truth)
        for name in ("h", "value", "logits"):
            of_a, of_b = getattr(a, name), getattr(b, name)
            assert (of_a is None) == (of_b is None)
            if of_a is not None:
                np.testing.assert_allclose(of_a, of_b, rtol=0, atol=rounding)
        assert a.points.keys() == b.points.keys()
        assert all(np.allclose(a.points[k], b.points[k], rtol=0, atol=rounding) for k in a.points)


def test_only_the_first_process_speaks(everyday: Path) -> None:
    said = (everyday / "said.txt").read_text()
    assert said.count("saliency of 5 rollouts") == 1 and said.count("simulated 10 rollouts") == 1
