"""The stages at debug size on a GPU, where there is one, and what is asked of one: the CPU's numbers, no waiting for
the host in loops, memory within what was allowed.  ``make test`` says how many tests were left out where there is
none."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from analysis.shared.gradients import samples_that_fit, unroll
from core import artefacts, config as cli, stages
from core.artefacts import Result
from core.interventions import AddVector, AtSteps
from core.roll import Gate, roll
from core.training import rng_states, set_rng_states
from generative.load import load_simulator
from tests.conftest import once

DEVICE = "cuda"
CHAIN = {  # by the run's name: its stage and inputs, in an order in which they can run
    "agent": "train",
    "rollouts": "record --agent {w}/agent --episodes 24",
    "evaluation": "evaluate --agent {w}/agent --episodes 8 --slots 4",
    "simulator": "train_gen_model --agent {w}/agent --rollouts {w}/rollouts",
    "samples": "record_samples --samples 24 --simulator {w}/simulator --rollouts {w}/rollouts --no-film",
    "hidden_states": "hidden_states --rollouts {w}/rollouts --samples none --agent none",
}
ON_CHAIN = {  # ditto, in any order
    "fidelity": "fidelity --simulator {w}/simulator --rollouts {w}/rollouts --no-video",
    "env_states": "env_states --simulator {w}/simulator --rollouts {w}/rollouts --samples none",
    "latents": "latents --simulator {w}/simulator --rollouts {w}/rollouts --samples none",
    "behaviours": "behaviours --simulator {w}/simulator --rollouts {w}/rollouts --samples none",
    "saliency": "saliency --simulator {w}/simulator --samples {w}/samples",
    "coupling": "coupling --simulator {w}/simulator --samples {w}/samples --hidden_states {w}/hidden_states "
    "--behaviours none",
    "dynamics": "dynamics --agent {w}/agent --rollouts {w}/rollouts --hidden_states {w}/hidden_states "
    "--behaviours none",
    "similarity": "similarity --agents {w}/agent --checkpoints --rollouts {w}/rollouts",
    "target_functions": "target_functions --simulator {w}/simulator --rollouts {w}/rollouts --maximise value",
    "interventions": "interventions --simulator {w}/simulator --hidden_states {w}/hidden_states --behaviours none "
    "--no-video",
    "saliency_trial": "saliency_trial --agent {w}/agent --simulator {w}/simulator",
    "edits": "edits --agent {w}/agent --simulator {w}/simulator",
    "causal_directions": "causal_directions --agent {w}/agent",
    "semantic": "train --policy semantic --env_name chaser --refresh 1",
}
LAYOUTS = {
    "grid": "--layout grid --deterministic_size 64 --hidden_size 8 --groups 64 --classes 2 --latent_size 64",
    "residual": "--layout residual",
    "context": "--layout context --trunk_blocks 1 --deterministic_size 64 --hidden_size 8 --groups 64 --classes 2 "
    "--depth 2 --latent_size 64",
}
# Stages without --device: they compute without torch, or run small models on the CPU (planted, panel, the trial runs of
# adopt).
WITHOUT = {
    "hidden_states", "proc_eval_result", "activation_json", "activations", "life", "life_phase", "replay", "export",
    "film", "curves", "events", "bundle", "panel", "report", "adopt", "adopt_world", "planted", "probes_over_agents",
}  # fmt: skip


def run(command: str, work: Path, out: Path, device: str = DEVICE) -> Path:
    """A stage and its flags, at debug size; its run is whole and says where it computed."""
    name, *words = command.replace("{w}", str(work)).split()
    stage = stages.STAGES[name]
    flags = ["--preset", "debug", *words, "--threads", "1", "--out", str(out)]
    flags += ["--device", device] if name not in WITHOUT else []
    stage.door.main(cli.parse(stage.cls, flags, name))
    assert artefacts.verify(out) == []
    if name not in WITHOUT:
        assert artefacts.read_manifest(out)["device"] == device
    return out


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The runs of CHAIN, made on the GPU."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")

    def make(root: Path) -> None:
        for out, command in CHAIN.items():
            run(command, root, root / out)

    yield once(tmp_path_factory, "chain_on_gpu", make)


@pytest.mark.parametrize("stage", ON_CHAIN)
def test_a_stage_runs_on_a_gpu(stage: str, chain: Path, tmp_path: Path) -> None:
    run(ON_CHAIN[stage], chain, tmp_path / "out")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_world_of_each_layout_is_trained_and_rolled_on_a_gpu(layout: str, chain: Path, tmp_path: Path) -> None:
    train = f"train_gen_model --agent {{w}}/agent --rollouts {{w}}/rollouts {LAYOUTS[layout]}"
    made = run(train, chain, tmp_path / "simulator")
    run(f"record_samples --simulator {made} --rollouts {{w}}/rollouts --no-film", chain, tmp_path / "samples")
    run(train + " --bf16", chain, tmp_path / "bf16")


def sized_by(key: str, arrays: Mapping[str, np.ndarray]) -> float:
    """What a difference in an array is small or large beside: of a difference, what it was taken of."""
    of = key.removesuffix("_through_world")
    for delta in ("integrated_delta_", "deeplift_delta_"):
        of = of.replace(delta, "y_")
    return float(np.nanmax(np.abs(arrays.get(of, arrays[key])), initial=1e-12))


@pytest.mark.parametrize("stage", ["env_states", "saliency", "coupling"])
def test_an_analysis_on_a_gpu_has_the_numbers_of_the_cpu(stage: str, chain: Path, tmp_path: Path) -> None:
    """Of one recording and one simulator; rounding alone may differ."""
    a, b = (Result.load(run(ON_CHAIN[stage], chain, tmp_path / device, device)).arrays for device in (DEVICE, "cpu"))
    kept = [k for k, x in b.items() if x.dtype.kind == "f" and x.size and not k.startswith(("q_", "randomised_"))]
    far = {k: float(np.nanmax(np.abs(a[k] - b[k]), initial=0)) / sized_by(k, b) for k in kept}
    over = {k: x for k, x in far.items() if not x < 1e-3}
    assert far and not over, "; ".join(f"{k} {x:.2g} of {sized_by(k, b):.2g}" for k, x in over.items())


def allocated(work: Callable[[], object]) -> float:
    """Bytes that a call takes on the GPU at its highest, above what is there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_a_gpus_memory_is_bound_by_what_is_allowed(chain: Path) -> None:
    sim = load_simulator(chain / "simulator", torch.device(DEVICE))
    z = torch.randn(4096, sim.world.latent_size, device=DEVICE)
    most = 50e6
    rows = samples_that_fit(sim, z[:1], 8, most)
    assert 1 < rows < 4096
    kept: list[object] = []
    peak = allocated(lambda: kept.append(unroll(sim, z[:rows].requires_grad_(), 7)))
    assert 0.3 * most < peak < 1.5 * most


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_simulated_steps_and_gradients_through_them_never_wait_for_the_host(chain: Path) -> None:
    """torch itself raises where an operation waits."""
    sim = load_simulator(chain / "simulator", torch.device(DEVICE))
    z = torch.randn(4, sim.world.latent_size, device=DEVICE, requires_grad=True)
    push = AtSteps(AddVector(torch.ones(sim.agent.points["h"], device=DEVICE)), 1, 2)
    for mode in ("default", "error"):  # the first time kernels are looked for
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the mode is a prototype, once a process
            torch.cuda.set_sync_debug_mode(mode)
        try:
            moments = list(roll(sim.agent, sim.world, sim.world.start(z), steps=4, intervene=(push,), env_grads=Gate()))
            moments[-1].acted.value_B.sum().backward()  # type: ignore[no-untyped-call]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert isinstance(z.grad, Tensor) and z.grad.isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@pytest.mark.parametrize("earlier", [False, True])
def test_every_process_goes_on_with_the_generator_of_the_first(earlier: bool) -> None:
    """Wherever it computes now: here on the machine's last GPU, as the last of several processes does."""
    first, own = torch.device("cuda:0"), torch.device("cuda", torch.cuda.device_count() - 1)
    torch.rand(7, device=first)
    states = rng_states(first)
    assert set(states) == {"cpu", "gpu"}
    if earlier:
        states, own = {"cpu": states["cpu"], "cuda": torch.cuda.get_rng_state_all()}, first
    drawn = torch.rand(5, device=first).cpu()
    torch.cuda.manual_seed_all(1)
    set_rng_states(states, own)
    assert torch.equal(torch.rand(5, device=own).cpu(), drawn)


def test_stages_without_a_device_are_known() -> None:
    lacking = {n for n, s in stages.STAGES.items() if "device" not in {f.name for f in dataclasses.fields(s.cls)}}
    assert lacking == WITHOUT
