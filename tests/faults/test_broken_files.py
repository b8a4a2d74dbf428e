"""Files of every kind, cut short, with bits flipped, emptied, gone: read as they were, or one line that names the file.

What the machinery wrote is never read back otherwise than it was written.  A user's own table or JSON has no checksum:
there a change may be read, but never ends in a traceback.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from core import artefacts, export
from core.artefacts import MANIFEST, Result, load_array, load_json, load_weights, new_run, read_manifest, save_weights
from core.contracts import EnvSpec, Field, UserError
from core.directions import Basis, load_basis
from core.episodes import Episode, RolloutStore, StoreWriter
from core.training import STATE, load_state, save_state, unfinished_curve
from tests.faults.conftest import MOST

SPEC = EnvSpec(env_id="test", obs={"frames": Field(shape=(4, 4, 3), dtype="uint8")}, action_names=("a", "b"), slots=1)


def episode(steps: int, rng: np.random.Generator) -> Episode:
    return Episode(
        obs={"frames": rng.integers(0, 255, (steps, 4, 4, 3), np.uint8)},
        h=rng.normal(size=(steps, 3)).astype(np.float32),
        value=rng.normal(size=steps).astype(np.float32), action=rng.integers(0, 2, steps),
        logits=rng.normal(size=(steps, 2)).astype(np.float32), reward=np.ones(steps, np.float32), terminated=True,
        truncated=False, meta={"seed": 3},
    )  # fmt: skip


def make(root: Path) -> None:
    """A file of every kind."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    with new_run(root / "run", "test", {"seed": 0}) as run:
        save_weights(torch.nn.Linear(30, 20), run.path / artefacts.WEIGHTS)
        rows = [{"n": i, "x": float(rng.normal()), "word": "left, or right"} for i in range(9)]
        Result(arrays={"a": rng.normal(size=90), "b": np.arange(4)}, tables={"rows": rows}, notes={"k": 1}).save(
            run.path
        )
        Basis("pca", torch.zeros(2), torch.ones(2), torch.eye(2), torch.eye(2)).save(run.path)
        np.save(run.path / "map_1.npy", np.arange(60))
        artefacts.write_json(run.path / "spec.json", SPEC.to_json())
        with StoreWriter(run.path, shard_steps=30) as writer:
            for steps in (20, 15, 9):
                writer.add(episode(steps, rng))
        run.facts = {"source": "real"}
    with new_run(root / "export", export.STAGE, {}) as run, RolloutStore(root / "run") as kept:
        export.write_minari(kept, run.path / "data", "test-v0")
    (root / "training").mkdir()
    save_state(root / "training" / STATE, w=torch.randn(99), curve=[{"step": 8, "loss": "2.5"}], step=8)
    with open(root / "progress.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerows([("eprewmean", "misc/total_timesteps"), *((i / 3, 100 * i) for i in range(20))])
    (root / "config.json").write_text(
        json.dumps({"seed": 3, "episodes": 5, "out": "x", "exploration": {"random": 0.1}})
    )
    torch.save({"w": torch.randn(40), "deep": {"b": torch.ones(3)}}, root / "weights.pt")
    from safetensors.torch import save_file

    save_file({"w": torch.randn(40)}, root / "weights.safetensors")
    one = episode(20, rng)
    np.savez(root / "rollouts.npz", obs=one.obs["frames"], action=one.action, reward=one.reward,
             terminated=np.arange(20) == 19, truncated=np.zeros(20, bool))  # fmt: skip
    with h5py.File(root / "main_data.hdf5", "w") as file:
        group = file.create_group("episode_0")
        group["observations"], group["actions"], group["rewards"] = one.obs["frames"], one.action, one.reward
        group["terminations"], group["truncations"] = np.arange(20) == 19, np.zeros(20, bool)
    records = [{"step": t, "env_id": 0, "agent_id": 1, "activation": [0.5, t], "action": [0, 1, 2],
                "features": {}} for t in range(6)]  # fmt: skip
    (root / "activations.json").write_text(json.dumps(records))


def told(value: Any) -> Any:
    """A value that can be compared."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, torch.Tensor):
        return told(value.numpy())
    if isinstance(value, dict):
        return {k: told(v) for k, v in value.items()}
    return [told(v) for v in value] if isinstance(value, (list, tuple)) else value


def store(path: Path) -> Any:
    with RolloutStore(path) as opened:
        every = [(told(e.columns()), dict(e.meta), e.terminated, e.truncated) for e in opened]
        return every, told(opened.pooled("h", "action")[0])


def weights(path: Path) -> Any:
    module = torch.nn.Linear(30, 20)
    load_weights(module, path)
    return told(dict(module.state_dict()))


def rollouts(path: Path) -> Any:
    from agents.import_rollouts import read_rollouts

    return [told(vars(e)) for e in read_rollouts(path, SPEC)]


def activations(path: Path) -> Any:
    from analysis.lives.earlier_format import records

    return list(records(path))


def configuration(path: Path) -> Any:
    from agents.record import STAGE as RECORD, RecordConfig
    from core import config as cli

    return cli.to_json(cli.parse(RecordConfig, ["--config", str(path)], RECORD))


def curve(path: Path) -> Any:
    from agents.learning_curves import read_curves

    (found,) = read_curves(f"a/coinrun/1={path}")
    return told([found.step_U, found.return_U])


def tensors(path: Path) -> Any:
    from agents.adopted import read_weights

    return told(read_weights(path))


@dataclass(frozen=True)
class Kind:
    """A file below the root, what reads it, and whether a change of it is always seen."""

    file: str
    read: Callable[[Path], Any]
    checked: bool = True


def result(root: Path) -> Any:
    found = Result.load(root / "run")
    return told([found.scalars, found.arrays, found.tables, found.notes])


KINDS = [
    Kind(f"run/{MANIFEST}", lambda r: read_manifest(r / "run")),
    Kind("run/config.json", lambda r: load_json(r / "run", "config.json")),
    Kind("run/spec.json", lambda r: store(r / "run")),
    Kind("run/result.json", result),
    Kind("run/arrays.npz", result),
    Kind("run/rows.csv", result),
    Kind("run/map_1.npy", lambda r: told(load_array(r / "run", "map_1.npy"))),
    Kind("run/model.safetensors", lambda r: weights(r / "run")),
    Kind("run/basis_pca.safetensors", lambda r: told(vars(load_basis(r / "run", "pca")))),
    Kind("run/basis_pca.json", lambda r: told(vars(load_basis(r / "run", "pca")))),
    Kind("run/shard_00000.h5", lambda r: store(r / "run")),
    Kind("run/shard_00001.h5", lambda r: store(r / "run")),
    Kind(f"training/{STATE}", lambda r: told([load_state(r / "training" / STATE), unfinished_curve(r / "training")])),
    Kind("progress.csv", lambda r: curve(r / "progress.csv"), checked=False),
    Kind("config.json", lambda r: configuration(r / "config.json"), checked=False),
    Kind("weights.pt", lambda r: tensors(r / "weights.pt"), checked=False),
    Kind("weights.safetensors", lambda r: tensors(r / "weights.safetensors"), checked=False),
    Kind("rollouts.npz", lambda r: rollouts(r / "rollouts.npz")),
    Kind("main_data.hdf5", lambda r: rollouts(r / "main_data.hdf5"), checked=False),
    Kind("export/data/main_data.hdf5", lambda r: rollouts(r / "export")),
    Kind("export/data/metadata.json", lambda r: rollouts(r / "export" / "data")),
    Kind("activations.json", lambda r: activations(r / "activations.json"), checked=False),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("good")
    make(root)
    return root


def broken(data: bytes, rng: np.random.Generator) -> bytes | None:
    """The file after an accident; None: it is gone."""
    kind = rng.choice(["bit", "bit", "bits", "cut", "zeros", "bytes", "empty", "gone", "grown"])
    at = int(rng.integers(len(data)))
    if kind == "cut":
        return data[:at]
    if kind in ("empty", "gone"):
        return b"" if kind == "empty" else None
    if kind == "grown":
        return data + rng.bytes(int(rng.integers(1, 600)))
    out = bytearray(data)
    if kind in ("zeros", "bytes"):  # a block of the disk
        size = min(512, len(data) - at)
        out[at : at + size] = bytes(size) if kind == "zeros" else rng.bytes(size)
    for place in rng.integers(0, len(data), 1 if kind == "bit" else 20 if kind == "bits" else 0):
        out[place] ^= 1 << int(rng.integers(8))
    return bytes(out)


def mutations(kind: Kind, good: Path, tmp_path: Path, count: int, seed: int) -> None:
    root = Path(shutil.copytree(good, tmp_path / "copy"))
    file, before, rng = root / kind.file, (root / kind.file).read_bytes(), np.random.default_rng(seed)
    want = kind.read(root)
    for number in range(count):
        after = broken(before, rng)
        file.unlink() if after is None else file.write_bytes(after)
        try:
            found = kind.read(root)
        except UserError as error:
            text = str(error)
            assert "\n" not in text and (file.name in text or str(file.parent) in text), (number, text)
        else:
            assert not kind.checked or found == want, f"mutation {number} of {kind.file} was read as something else"
        file.write_bytes(before)
    assert kind.read(root) == want


def test_numbers_of_an_exported_dataset_are_compared_with_its_manifest(good: Path, tmp_path: Path) -> None:
    """HDF5 has no checksum of what Minari's layout keeps as it is: another action was read, another reward."""
    shutil.copytree(good / "export", tmp_path / "export")
    file = tmp_path / "export" / "data" / "main_data.hdf5"
    with h5py.File(file) as opened:
        places = [opened[f"episode_1/{name}"].id.get_offset() for name in ("actions", "rewards", "truncations")]
    before = file.read_bytes()
    for at in places:
        file.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
        for given in (tmp_path / "export", file.parent, file):
            with pytest.raises(UserError, match=f"^{file}: content differs from its manifest"):
                rollouts(given)
    file.write_bytes(before)
    assert rollouts(file) == rollouts(good / "export")
    (tmp_path / "export" / MANIFEST).unlink()
    with pytest.raises(UserError, match="export is half-written"):
        rollouts(tmp_path / "export")


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.file)
def test_some_accidents(kind: Kind, good: Path, tmp_path: Path) -> None:
    mutations(kind, good, tmp_path, 12, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.file)
def test_many_accidents(kind: Kind, good: Path, tmp_path: Path) -> None:
    """25 a kind and 50 in FAULTS: 500 and more."""
    mutations(kind, good, tmp_path, max(25, MOST), 1)
