"""The chain at debug size on a GPU, where there is one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from core import artefacts, config as cli, stages
from core.training import rng_states, set_rng_states

CHAIN = {  # by the stage's name: its inputs
    "train": "",
    "record": "--agent {w}/train",
    "train_gen_model": "--agent {w}/train --rollouts {w}/record",
    "record_samples": "--simulator {w}/train_gen_model --rollouts {w}/record",
    "fidelity": "--simulator {w}/train_gen_model --rollouts {w}/record --no-video",
    "hidden_states": "--rollouts {w}/record --samples none --agent none",
    "env_states": "--simulator {w}/train_gen_model --rollouts {w}/record --samples none",
    "saliency": "--simulator {w}/train_gen_model --samples {w}/record_samples",
    "target_functions": "--simulator {w}/train_gen_model --rollouts {w}/record --maximise value",
    "interventions": "--simulator {w}/train_gen_model --hidden_states {w}/hidden_states --behaviours none --no-video",
}
# Stages without --device: they compute without torch, or run small models on the CPU (planted, panel, the trial runs of
# adopt).
WITHOUT = {
    "hidden_states", "proc_eval_result", "activation_json", "activations", "life", "life_phase", "replay", "export",
    "film", "curves", "events", "bundle", "panel", "report", "adopt", "adopt_world", "planted", "probes_over_agents",
}  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_the_chain_runs_on_a_gpu(tmp_path: Path) -> None:
    for name, inputs in CHAIN.items():
        stage = stages.STAGES[name]
        flags = ["--preset", "debug", *inputs.replace("{w}", str(tmp_path)).split(), "--threads", "1"]
        flags += ["--device", "cuda"] if name not in WITHOUT else []
        stage.door.main(cli.parse(stage.cls, [*flags, "--out", f"{tmp_path}/{name}"], name))
        assert artefacts.verify(tmp_path / name) == []
        if name not in WITHOUT:
            assert artefacts.read_manifest(tmp_path / name)["device"] == "cuda"


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
