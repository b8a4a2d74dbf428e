"""Directories that came from elsewhere: nothing of them runs, nothing leaves its place, no name is followed out."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from core.artefacts import (
    MANIFEST,
    SEAL,
    Run,
    load_bytes,
    load_json,
    new_run,
    read_manifest,
    sealed,
    verify,
    write_json,
)
from core.contracts import EnvSpec, Field, UserError
from core.episodes import Episode, RolloutStore, StoreWriter
from envs.gymnasium_env import GymnasiumEnv, GymnasiumOptions


def with_file(path: Path, name: str) -> Path:
    """A run directory whose manifest, rightly sealed, names another file."""
    with new_run(path, "train", {}):
        pass
    about = read_manifest(path)
    about["files"][name] = {"bytes": 6, "sha256": "0" * 64, "editable": True}
    write_json(path / MANIFEST, sealed({k: v for k, v in about.items() if k != SEAL}))
    return path


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "sub/manifest.json", "manifest.json"])
def test_a_manifest_that_names_files_outside_its_directory(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    path = with_file(tmp_path / "r", name)
    said = f"^{path / MANIFEST} is not a manifest of this project"
    with pytest.raises(UserError, match=said):
        load_bytes(path, name)
    with pytest.raises(UserError, match=said), new_run(tmp_path / "next", "record", {}, {"agent": path}):
        raise AssertionError("the block must not run")
    assert verify(path) and not (tmp_path / "next").exists()


def test_an_editable_file_that_is_a_link_out_of_its_directory(tmp_path: Path) -> None:
    """Others are compared with their hash, so that a link to them gives away nothing; these are read as they are."""
    (tmp_path / "secret.json").write_text('{"a": "secret"}')
    path = with_file(tmp_path / "r", "behaviours.json")
    os.symlink(tmp_path / "secret.json", path / "behaviours.json")
    with pytest.raises(UserError, match="behaviours.json leads out of its directory"):
        load_json(path, "behaviours.json")


@pytest.mark.parametrize("field", ["wrappers", "id"])
def test_options_cannot_name_code_that_came_along(field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of a run directory could be imported by its path below the current directory."""
    pytest.importorskip("gymnasium")
    (tmp_path / "runs" / "theirs").mkdir(parents=True)
    (tmp_path / "runs" / "theirs" / "code.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    named = "runs.theirs.code"
    options = GymnasiumOptions(wrappers=[f"{named}:Wrapper"] if field == "wrappers" else [])
    with pytest.raises(UserError, match="no installed package has 'runs.theirs.code'"):
        GymnasiumEnv(f"gymnasium/{'CartPole-v1' if field == 'wrappers' else f'{named}:Any-v0'}", options, 1)
    assert not (tmp_path / "ran").exists()


def test_a_file_beside_that_is_named_as_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent's module in the current directory may be called minigrid.py as its world's package is: the package is
    meant."""
    pytest.importorskip("gymnasium")
    (tmp_path / "site" / "package_of_wrappers").mkdir(parents=True)
    (tmp_path / "site" / "package_of_wrappers" / "more.py").write_text(
        "import gymnasium\nclass Same(gymnasium.Wrapper):\n    pass\n"
    )
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "package_of_wrappers.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path / "beside")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend("")
    before = list(sys.path)
    options = GymnasiumOptions(wrappers=["package_of_wrappers.more:Same"])
    GymnasiumEnv("gymnasium/CartPole-v1", options, 1).close()
    assert sys.path == before and not (tmp_path / "beside" / "ran").exists()


def test_a_package_may_bring_more_places_to_import_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some add a directory of their own, and import from it where they need it."""
    pytest.importorskip("gymnasium")
    (tmp_path / "brings_its_own" / "more").mkdir(parents=True)
    (tmp_path / "brings_its_own" / "more" / "brought_along.py").touch()
    (tmp_path / "brings_its_own" / "__init__.py").write_text(
        "import sys\nimport gymnasium\nsys.path.append(__path__[0] + '/more')\n"
        "class Same(gymnasium.Wrapper):\n"
        "    def __init__(self, env):\n        import brought_along\n        super().__init__(env)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    GymnasiumEnv("gymnasium/CartPole-v1", GymnasiumOptions(wrappers=["brings_its_own:Same"]), 1).close()


def test_a_policy_s_own_module_runs_only_where_its_user_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agents.policies import DESCRIPTION, SOURCE, load_policy

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    text = f"open({str(tmp_path / 'ran')!r}, 'w')"
    spec = EnvSpec(env_id="nmmo", obs={"x": Field(shape=(1,), dtype="float32")}, action_names=("a",), slots=1)
    with new_run(tmp_path / "theirs", "train_nmmo", {}) as run:
        (run.path / SOURCE).write_text(text)
        about = {"module": "mine", "size": 16, "source_sha256": hashlib.sha256(text.encode()).hexdigest()}
        write_json(run.path / DESCRIPTION, {**about, "spec": spec.to_json()})
    with pytest.raises(UserError, match="is code that nobody agreed to run on this machine; .*--trust [0-9a-f]{64}"):
        load_policy(tmp_path / "theirs")
    assert not (tmp_path / "ran").exists()


def test_no_pickle_is_loaded_anywhere() -> None:
    """The only names of pickle in the code are an error that torch raises and numpy's and torch's switches, off."""
    root = Path(__file__).resolve().parents[2]
    rooms = ("core", "envs", "agents", "generative", "analysis", "validation")
    for file in (p for room in rooms for p in (root / room).rglob("*.py")):
        text = file.read_text()
        for bad in ("pickle.load", "allow_pickle=True", "np.load(", "weights_only=False", "joblib.load", "yaml.load"):
            assert bad not in text, f"{file}: {bad}"
        assert text.count("torch.load(") == text.count("weights_only=True)"), file


def resealed(path: Path) -> Path:
    """The directory with a manifest of what is in it now."""
    about = read_manifest(path)
    Run(path=path, stage=about["stage"], config={}).finish()
    return path


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("index/steps", np.array([1 << 40]), "index contradicts itself"),
        ("index/steps", np.array([-3]), "index contradicts itself"),
        ("index/steps", np.array([2.5]), "index contradicts itself"),
        ("index/rows", np.array([[7]]), "index contradicts itself"),
        ("index/meta", np.array([1 << 40]), "index contradicts itself"),
        ("index/meta", np.array([b"["]), "not valid JSON"),
        ("index/meta", np.array([b"[1]"]), "has no description"),
        ("columns/h", np.zeros((3, 3), np.float32), "'h' has 3 rows, its index says 7"),
        ("columns/h", None, "no column 'h'"),
        ("index/rows", None, "has no 'index/rows'"),
    ],
)
def test_a_shard_that_contradicts_itself(name: str, value: np.ndarray | None, said: str, tmp_path: Path) -> None:
    spec = EnvSpec(env_id="t", obs={"x": Field(shape=(2,), dtype="float32")}, action_names=("a",), slots=1)
    zeros = np.zeros((7, 3), np.float32)
    with new_run(tmp_path / "r", "record", {}) as run, StoreWriter(run.path) as writer:
        write_json(run.path / "spec.json", spec.to_json())
        writer.add(Episode(obs={"x": zeros[:, :2]}, h=zeros, value=zeros[:, 0], action=np.zeros(7, np.int64),
                           reward=zeros[:, 0], terminated=True, truncated=False))  # fmt: skip
    with h5py.File(tmp_path / "r" / "shard_00000.h5", "r+") as file:
        del file[name]
        if value is not None:
            file[name] = value
    for _ in range(2):  # a second look is no kinder
        with pytest.raises(UserError, match=said), RolloutStore(resealed(tmp_path / "r")) as store:
            store.pooled("h")
            store.meta(0)
