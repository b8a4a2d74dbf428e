"""Every file of every run directory, with a bit flipped: its reader finds it, and no stage uses it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import evaluate, record
from agents.recurrent import load_agent
from analysis import hidden_states
from core import artefacts, config as cli
from core.contracts import UserError
from core.episodes import RolloutStore
from generative import record_samples, train
from generative.simulator import load_simulator

DEBUG = ["--preset", "debug", "--threads", "1"]


def read_all(path: Path) -> object:
    """Every value of a store."""
    with RolloutStore(path) as store:
        return [({k: v.tobytes() for k, v in e.columns().items()}, e.terminated, dict(e.meta)) for e in store]


def reader_of(run: str, name: str) -> Callable[[Path], object]:
    """What stages read this file with."""
    if name in ("config.json", "curve.csv", "progress.csv"):
        return lambda path: artefacts.load_bytes(path, name)
    if run == "agent":
        return lambda path: load_agent(path, name=name if name.endswith(".safetensors") else artefacts.WEIGHTS)
    if run == "simulator":
        return lambda path: load_simulator(path, name=name if name.endswith(".safetensors") else artefacts.WEIGHTS)
    return read_all


@pytest.mark.parametrize("run", ["agent", "rollouts", "simulator", "samples"])
def test_a_flip_in_any_file_of_a_run_is_found_by_its_reader(run: str, pipeline: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(pipeline / run, tmp_path / run))
    rng = np.random.default_rng(0)
    for name in artefacts.files_of(copy):
        before, read = (copy / name).read_bytes(), reader_of(run, name)
        known = read(copy) if name.endswith(".h5") else None
        for at in rng.choice(len(before), min(len(before), 12), replace=False).tolist():
            flipped = bytearray(before)
            flipped[at] ^= 1 << int(rng.integers(8))
            (copy / name).write_bytes(flipped)
            if name.endswith(".h5"):  # a shard has bytes that no value lies in
                try:
                    assert read(copy) == known, (name, at)
                except UserError as error:
                    assert name in str(error) and "\n" not in str(error)
            else:
                with pytest.raises(UserError, match=f"{name}: content differs from its manifest; copy or make it"):
                    read(copy)
        (copy / name).write_bytes(before)
        read(copy)


def spoil(file: Path) -> None:
    """Random bytes in the middle."""
    data = bytearray(file.read_bytes())
    half = len(data) // 2
    data[half : half + 16] = np.random.default_rng(0).bytes(16)
    file.write_bytes(data)


STAGES: list[tuple[Any, str, str, list[str]]] = [
    (record, "RecordConfig", "agent/model.safetensors", ["--agent"]),
    (record, "RecordConfig", "agent/agent.json", ["--agent"]),
    (evaluate, "EvaluateConfig", "agent/model.safetensors", ["--agent"]),
    (train, "GenTrainConfig", "agent/model.safetensors", ["--agent", "--rollouts"]),
    (train, "GenTrainConfig", "rollouts/spec.json", ["--agent", "--rollouts"]),
    (record_samples, "RecordSamplesConfig", "simulator/model.safetensors", ["--simulator"]),
    (record_samples, "RecordSamplesConfig", "simulator/simulator.json", ["--simulator"]),
    (record_samples, "RecordSamplesConfig", "rollouts/spec.json", ["--simulator", "--rollouts"]),
    (hidden_states, "HiddenStatesConfig", "rollouts/spec.json", ["--rollouts"]),
]


@pytest.mark.parametrize(
    ("module", "config", "file", "flags"), STAGES, ids=lambda x: getattr(x, "__name__", None) or str(x)
)
def test_a_stage_refuses_what_is_not_its_manifests_and_writes_nothing(
    module: Any, config: str, file: str, flags: list[str], pipeline: Path, tmp_path: Path
) -> None:
    shutil.copytree(pipeline, tmp_path / "p")
    spoil(tmp_path / "p" / file)
    argv = [*DEBUG, *(word for flag in flags for word in (flag, str(tmp_path / "p" / flag[2:])))]
    with pytest.raises(UserError, match=f"{file}: content differs from its manifest") as error:
        module.main(cli.parse(getattr(module, config), [*argv, "--out", str(tmp_path / "out")], module.STAGE))
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_a_result_made_with_other_weights_than_its_inputs_is_found(pipeline: Path, tmp_path: Path) -> None:
    """As earlier versions made them: corrupted weights were used, and are whole again now."""
    shutil.copytree(pipeline, tmp_path / "p")
    run = tmp_path / "p" / "rollouts"
    about = artefacts.read_manifest(run)
    inputs = {name: run / known["path"] for name, known in about["inputs"].items()}
    again = artefacts.Run(path=run, stage=about["stage"], config=about["config"], inputs=artefacts.Inputs(inputs))
    again.facts = {**about["facts"], "agent": "0" * 16}
    again.finish()
    (said,) = artefacts.verify(run)
    assert said.startswith(
        f"{run}: it says agent {'0' * 16}, its inputs are of others (agent {about['facts']['agent']}"
    )
