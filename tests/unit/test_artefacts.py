"""Run directories: what is whole is provably whole, and what exists is not harmed."""

from __future__ import annotations

import ast
import contextlib
import errno
import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from core import artefacts, config as cli
from core.artefacts import (
    LESS_THAN_HELD,
    MANIFEST,
    SIMULATOR_WARNING,
    Inputs,
    Result,
    Run,
    chain,
    edited_files,
    files_of,
    fingerprint_of,
    load_json,
    load_weights,
    main,
    metric,
    new_run,
    read_manifest,
    save_weights,
    seal_holds,
    sealed,
    sha256,
    simulator_warning,
    verify,
    write_atomically,
    write_json,
)
from core.config import Terminated
from core.contracts import UserError
from core.directions import Basis, bases_of, load_basis
from generative.train import GenTrainConfig


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """agent <- rollouts <- report, with the agent inside the report's directory."""
    with new_run(tmp_path / "agent", "train", {"seed": 3, "device": "cpu"}) as run:
        save_weights(torch.nn.Linear(3, 2), run.path / "model.safetensors")
        run.record("score", 1.5, "return", n=4, interval=(1.0, 2.0))
        run.facts["agent"] = "abc"
    with new_run(tmp_path / "rollouts", "record", {}, {"agent": tmp_path / "agent"}) as run:
        (run.path / "data").mkdir()
        (run.path / "data" / "shard.bin").write_bytes(bytes(range(256)))
    with new_run(tmp_path / "report", "report", {}, {"rollouts": tmp_path / "rollouts"}) as run:
        (run.path / "page.html").write_text("<p>")
    return tmp_path


def test_manifest_says_what_made_it(runs: Path) -> None:
    manifest = read_manifest(runs / "agent", "train")
    assert manifest["seed"] == 3 and manifest["config"] == {"seed": 3, "device": "cpu"}
    assert manifest["facts"] == {"agent": "abc"} and manifest["stage"] == "train"
    assert manifest["metrics"]["score"] == {"value": 1.5, "unit": "return", "n": 4, "interval": [1.0, 2.0]}
    assert set(manifest["files"]) == {"model.safetensors", "config.json"}
    known = manifest["files"]["model.safetensors"]
    assert known == {
        "bytes": (runs / "agent/model.safetensors").stat().st_size,
        "sha256": sha256(runs / "agent/model.safetensors"),
    }
    assert manifest["packages"]["torch"] == torch.__version__.partition("+")[0] or manifest["packages"]["torch"]
    inputs = read_manifest(runs / "rollouts")["inputs"]
    assert inputs["agent"] == {"path": "../agent", "manifest_sha256": sha256(runs / "agent" / MANIFEST)}
    with pytest.raises(UserError, match="written by stage 'train'; a 'record' directory is needed"):
        read_manifest(runs / "agent", "record")


def test_verify_accepts_what_is_whole(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(runs / "report") == []
    assert [(d, s) for d, s, _ in chain(runs / "report")] == [(0, "report"), (1, "record"), (2, "train")]
    assert main(["verify", str(runs / "report")]) == 0
    assert capsys.readouterr().out.count("ok ") == 3


@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_byte_of_any_run_of_the_chain_is_found(runs: Path, data: st.DataObject) -> None:
    files = [p for p in sorted(runs.rglob("*")) if p.is_file()]
    payload = [p for p in files if p != runs / "report" / MANIFEST]  # nothing later holds that one's hash
    file = data.draw(st.sampled_from(payload))
    before = file.read_bytes()
    at = data.draw(st.integers(0, len(before) - 1))
    flipped = bytearray(before)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(flipped)
    try:
        problems = verify(runs / "report")
        assert problems and any(str(file.parent) in p for p in problems)
        assert main(["verify", str(runs / "report")]) == 1
    finally:
        file.write_bytes(before)
    assert verify(runs / "report") == []


def test_a_broken_top_manifest_is_no_traceback(runs: Path) -> None:
    file = runs / "report" / MANIFEST
    before = file.read_bytes()
    for broken in (b"", b"[]", b"{}", b"\xff\xfe", before[:-20], before.replace(b'"files"', b'"filet"')):
        file.write_bytes(broken)
        assert verify(runs / "report"), broken
    file.write_bytes(before)


def test_verify_finds_missing_extra_and_replaced(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = runs / "rollouts" / "data" / "more.bin"
    extra.write_bytes(b"x")
    assert [p for p in verify(runs / "report") if "more.bin: not in the manifest" in p]
    extra.unlink()
    (runs / "rollouts" / "data" / "shard.bin").unlink()
    assert [p for p in verify(runs / "report") if "shard.bin: missing" in p]
    (runs / "rollouts" / "data" / "shard.bin").write_bytes(bytes(range(256)))
    with new_run(runs / "agent", "train", {"seed": 4}, overwrite=True):
        pass
    assert [p for p in verify(runs / "report") if "is not the one it was made from" in p]
    (runs / "agent" / MANIFEST).unlink()
    assert [p for p in verify(runs / "report") if "is gone" in p]
    assert main(["verify", str(runs / "report")]) == 1
    assert main(["verify", str(runs / "nowhere")]) == 2
    assert main(["check"]) == 2
    assert "BAD" in capsys.readouterr().out
    (runs / "note.md").write_text("x")
    assert main(["verify", str(runs / "note.md")]) == 2 and "note.md is a file" in capsys.readouterr().err


def test_training_state_may_change(runs: Path) -> None:
    (runs / "agent" / "training_state").mkdir()
    (runs / "agent" / "training_state" / "state.pt").write_bytes(b"resumed")
    assert verify(runs / "report") == []


def test_nested_runs_are_their_own(runs: Path) -> None:
    """A run inside another's directory has a manifest of its own and is not the outer one's payload."""
    with new_run(runs / "demo" / "inner", "record", {}) as run:
        (run.path / "a").write_text("a")
    assert verify(runs / "demo" / "inner") == []
    assert contents(runs / "demo").keys() == {"inner/a", "inner/config.json", f"inner/{MANIFEST}"}


def test_existing_data_is_refused_and_left_alone(runs: Path) -> None:
    before = contents(runs)
    foreign = runs / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    (foreign / "config.json").write_text('{"stage": "other"}')
    plain = runs / "file"
    plain.write_text("x")
    before = contents(runs)
    refusals = [
        (runs / "agent", False, "already holds data"),
        (foreign, False, "already holds data"),
        (plain, False, "is a file, not a directory"),
        (foreign, True, "not a 'train' run directory"),
        (runs / "rollouts", True, "not a 'train' run directory"),
        (plain, True, "is a file, not a directory"),
    ]
    for path, overwrite, reason in refusals:
        with pytest.raises(UserError, match=reason), new_run(path, "train", {}, overwrite=overwrite):
            raise AssertionError("the block must not run")
    assert contents(runs) == before


def test_overwriting_an_input_is_refused(runs: Path) -> None:
    """A stage must not delete what it is about to read."""
    with new_run(runs / "rollouts" / "sub", "record", {}):
        pass
    before = contents(runs)
    for inputs in ({"itself": runs / "rollouts"}, {"inside": runs / "rollouts" / "sub"}):
        with (
            pytest.raises(UserError, match="is an input of this run"),
            new_run(runs / "rollouts", "record", {}, inputs, overwrite=True),
        ):
            raise AssertionError("the block must not run")
    assert contents(runs) == before


def test_overwrite_replaces_the_same_stage_whole_or_half(runs: Path) -> None:
    with new_run(runs / "agent", "train", {"seed": 9}, overwrite=True) as run:
        assert not (run.path / "model.safetensors").exists()
    assert read_manifest(runs / "agent")["seed"] == 9
    (runs / "agent" / MANIFEST).unlink()
    with new_run(runs / "agent", "train", {"seed": 10}, overwrite=True):
        pass
    assert read_manifest(runs / "agent")["seed"] == 10


def test_missing_input_leaves_nothing_behind(runs: Path) -> None:
    (runs / "agent" / MANIFEST).unlink()
    for bad, reason in ((runs / "agent", "half-written"), (runs / "no", "no such run directory")):
        with pytest.raises(UserError, match=reason), new_run(runs / "new", "record", {}, {"agent": bad}):
            raise AssertionError("the block must not run")
    assert not (runs / "new").exists()


@pytest.mark.parametrize("end", [KeyboardInterrupt, Terminated, UserError])
def test_a_directory_in_which_nothing_was_written_does_not_stay(end: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(end), new_run(tmp_path / "r", "record", {"seed": 1}):
        raise end
    assert not (tmp_path / "r").exists()


def test_a_failing_block_leaves_a_half_written_directory(tmp_path: Path) -> None:
    def fails() -> None:
        with new_run(tmp_path / "r", "train", {}):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fails()
    with pytest.raises(UserError, match="half-written"):
        read_manifest(tmp_path / "r")


@pytest.mark.parametrize("replaces", [False, True])
def test_a_figure_that_fails_costs_no_number(
    replaces: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def draws(error: BaseException, number: float) -> None:
        result = Result()
        result.scalar("number", number, "units")
        with new_run(tmp_path / "r", "dynamics", {}, overwrite=replaces) as run:
            result.save(run.path)
            with run.figures():
                raise error
            run.facts = {"agent": "abc"}

    def kept() -> Any:
        return Result.load(tmp_path / "r").scalars["number"]["value"]

    if replaces:
        with new_run(tmp_path / "r", "dynamics", {}):
            pass
    with pytest.raises(ValueError, match="no such colour"):
        draws(ValueError("no such colour"), 1.5)
    assert kept() == 1.5 and artefacts.verify(tmp_path / "r") == [] and sorted(tmp_path.iterdir()) == [tmp_path / "r"]
    assert read_manifest(tmp_path / "r")["facts"] == {"agent": "abc", "figures": "failed: ValueError: no such colour"}
    assert f"the numbers of {tmp_path / 'r'} are saved" in capsys.readouterr().err
    if replaces:
        full = OSError(errno.ENOSPC, "No space left on device")
        for other in (UserError("no such flag"), KeyboardInterrupt(), full):  # no figure's fault
            with pytest.raises(UserError if other is full else type(other)):
                draws(other, 2.5)
            assert kept() == 1.5
        with pytest.raises(OSError, match="cannot open resource"):  # pillow's, of a font
            draws(OSError("cannot open resource"), 3.5)
        assert kept() == 3.5


def test_a_video_that_ffmpeg_cannot_write_costs_no_number(tmp_path: Path) -> None:
    """It was a user's mistake by its kind, which undid a saliency of hours.  Of a short film ffmpeg writes all at its
    end, where nobody asked how it ended: half of it, which nothing can show, stood for the film."""
    from core.video import write_video

    out, result, before = tmp_path / "r", Result(), resource.getrlimit(resource.RLIMIT_FSIZE)
    frames = np.random.default_rng(0).integers(0, 255, (9, 64, 64, 3), np.uint8)
    result.scalar("number", 1.5, "units")
    said = f"^{out / 'v.mp4'}: ffmpeg cannot write it .*; free some space, or write elsewhere$"
    with pytest.raises(UserError, match=said), new_run(out, "saliency", {}) as run:
        result.save(run.path)
        with run.figures():
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))  # as on a full disk
            try:
                write_video(run.path / "v.mp4", list(frames))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Result.load(out).scalars["number"]["value"] == 1.5 and artefacts.verify(out) == []
    assert read_manifest(out)["facts"]["figures"].startswith("failed: CannotFilm")
    assert {p.name for p in out.iterdir()} == {"config.json", "manifest.json", "result.json", "arrays.npz"}


def test_a_video_is_written_without_a_fork_that_runs_python(tmp_path: Path) -> None:
    """Which can hang beside threads, and of which JAX warned at every film of Craftax."""
    from core.video import write_video

    forks: list[int] = []
    os.register_at_fork(before=lambda: forks.append(1))
    write_video(tmp_path / "v.mp4", [np.zeros((64, 64, 3), np.uint8)] * 9)
    assert (tmp_path / "v.mp4").stat().st_size and not forks


def test_a_film_has_frames_of_any_size(tmp_path: Path) -> None:
    import imageio_ffmpeg

    from core.video import write_video

    write_video(tmp_path / "v.mp4", [np.full((63, 65, 3), 40 * i, np.uint8) for i in range(5)])
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    read = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(tmp_path / "v.mp4"), *raw]
    film = np.frombuffer(subprocess.run(read, capture_output=True, check=True).stdout, np.uint8)
    film_T = film.reshape(5, 64, 66, 3)[:, :63, :65].mean((1, 2, 3))
    assert np.abs(film_T - 40 * np.arange(5)).max() < 4


@pytest.mark.parametrize("again", [False, True])
def test_a_directory_that_is_removed_under_a_run_is_one_line(again: bool, tmp_path: Path) -> None:
    """The run may be new, or gone on with."""
    out = tmp_path / "run"
    if again:
        with pytest.raises(ZeroDivisionError), artefacts.new_run(out, "stage", {}) as run:
            (run.path / "file").write_text("")
            raise ZeroDivisionError
    opened = artefacts.resumed(out, "stage", {}, {}) if again else artefacts.new_run(out, "stage", {})
    with pytest.raises(UserError, match="was moved or removed while this run wrote it; start it again"), opened as run:
        shutil.rmtree(out)
        artefacts.write_json(run.path / "file.json", {})
    assert not out.exists()


def test_another_schema_is_refused(runs: Path) -> None:
    manifest = json.loads((runs / "agent" / MANIFEST).read_text())
    write_json(runs / "agent" / MANIFEST, {**manifest, "schema": 99})
    with pytest.raises(UserError, match="schema 99"):
        read_manifest(runs / "agent")


def test_atomic_write_keeps_the_old_until_the_new_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_atomically(file, b"old")
    with pytest.raises(TypeError):
        write_atomically(file, "not bytes")  # type: ignore[arg-type]
    assert contents(tmp_path) == {"a": b"old"}
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(file, object())
    assert contents(tmp_path) == {"a": b"old"}


def weights_in(path: Path, module: torch.nn.Module) -> Path:
    with new_run(path, "test", {}) as run:
        save_weights(module, run.path / artefacts.WEIGHTS)
    return path


def test_weights_round_trip_is_exact(tmp_path: Path) -> None:
    a, b = (torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)) for _ in range(2))
    a.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    load_weights(b, weights_in(tmp_path / "r", a))
    for name, tensor in a.state_dict().items():
        assert torch.equal(tensor, b.state_dict()[name])


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (torch.nn.Linear(3, 4), r"'bias' has shape \(2,\), the configuration needs \(4,\)"),
        (torch.nn.Linear(5, 2), r"'weight' has shape \(2, 3\), the configuration needs \(2, 5\)"),
        (torch.nn.Linear(3, 2, bias=False), "'bias' is not expected in the file"),
        (torch.nn.Sequential(torch.nn.Linear(3, 2)), "'0.bias' is missing from the file"),
    ],
)
def test_misfitting_weights_are_one_line(tmp_path: Path, module: torch.nn.Module, reason: str) -> None:
    path = weights_in(tmp_path / "r", torch.nn.Linear(3, 2))
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with pytest.raises(UserError, match=reason) as error:
        load_weights(module, path)
    assert "\n" not in str(error.value)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_missing_weights_and_those_that_never_were_any(tmp_path: Path) -> None:
    path = weights_in(tmp_path / "r", torch.nn.Linear(3, 2))
    with pytest.raises(UserError, match=r"has no none.safetensors in its manifest \(stage 'test' wrote it\)"):
        load_weights(torch.nn.Linear(3, 2), path, "none.safetensors")
    (path / artefacts.WEIGHTS).write_bytes(b"no tensors")
    Run(path=path, stage="test", config={}).finish()
    with pytest.raises(UserError, match="broken tensor file"):
        load_weights(torch.nn.Linear(3, 2), path)
    (path / artefacts.WEIGHTS).unlink()
    with pytest.raises(UserError, match="model.safetensors is missing; copy or make it again"):
        load_weights(torch.nn.Linear(3, 2), path)


# Nothing is read that is not what the manifest says


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with a file of every kind that loaders read."""
    path = tmp_path_factory.mktemp("whole") / "run"
    result = Result(arrays={"a": np.arange(40.0)}, tables={"rows": [{"n": 1, "x": 0.5}]}, notes={"k": 1})
    with new_run(path, "test", {"seed": 0}) as run:
        save_weights(torch.nn.Linear(3, 2), run.path / artefacts.WEIGHTS)
        result.save(run.path)
        Basis("pca", torch.zeros(2), torch.ones(2), torch.eye(2), torch.eye(2)).save(run.path)
        np.save(run.path / "map_1.npy", np.arange(6))
        run.facts = {"agent": "abc"}
    return path


READERS: dict[str, Callable[[Path], Any]] = {
    artefacts.WEIGHTS: lambda p: load_weights(torch.nn.Linear(3, 2), p),
    "result.json": Result.load,
    "arrays.npz": Result.load,
    "rows.csv": Result.load,
    "basis_pca.safetensors": lambda p: load_basis(p, "pca"),
    "basis_pca.json": lambda p: load_basis(p, "pca"),
    "map_1.npy": lambda p: artefacts.load_array(p, "map_1.npy"),
    "config.json": lambda p: load_json(p, "config.json"),
    MANIFEST: read_manifest,
}


def test_there_is_a_reader_of_every_file(whole: Path) -> None:
    assert {p.name for p in whole.iterdir()} == READERS.keys()
    assert set(files_of(whole)) == READERS.keys() - {MANIFEST}
    for read in READERS.values():
        read(whole)


@pytest.mark.parametrize("name", READERS)
def test_every_reader_finds_every_flipped_byte(name: str, whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    before = (copy / name).read_bytes()
    values = json.loads(before) if name == MANIFEST else None
    rng = np.random.default_rng(0)
    for at in range(0, len(before), max(1, len(before) // 150)):
        flipped = bytearray(before)
        flipped[at] ^= 1 << int(rng.integers(8))
        (copy / name).write_bytes(flipped)
        try:
            harmless = values is not None and json.loads(bytes(flipped)) == values  # white space of the manifest
        except ValueError:
            harmless = False
        if harmless:
            READERS[name](copy)
            continue
        with pytest.raises(UserError) as error:
            READERS[name](copy)
        assert "\n" not in str(error.value)
        if name != MANIFEST:
            assert f"{copy / name}: content differs from its manifest; copy or make it again" in str(error.value)


def test_a_file_cut_short_or_grown_is_found(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    data = (copy / "result.json").read_bytes()
    for other in (b"", data[:-1], data + b" "):
        (copy / "result.json").write_bytes(other)
        with pytest.raises(UserError, match="content differs"):
            Result.load(copy)


def test_a_file_that_no_manifest_knows_is_not_read(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    for kind in ("safetensors", "json"):
        shutil.copy(copy / f"basis_pca.{kind}", copy / f"basis_ica.{kind}")
    assert bases_of(copy) == ["pca"]
    with pytest.raises(UserError, match="has no 'ica' basis"):
        load_basis(copy, "ica")
    with pytest.raises(UserError, match="has no basis_ica.json in its manifest"):
        load_json(copy, "basis_ica.json")


def test_manifests_of_the_earlier_schema_are_read(whole: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    about = json.loads((copy / MANIFEST).read_text())
    del about["seal"]
    write_json(copy / MANIFEST, about | {"schema": 1})
    assert Result.load(copy).notes == {"k": 1} and verify(copy) == []
    for broken in (about, about | {"schema": 1, "seal": "0"}, about | {"schema": 3}):
        write_json(copy / MANIFEST, broken)
        with pytest.raises(UserError, match="differs from its seal|manifest schema 3"):
            Result.load(copy)
    write_json(copy / MANIFEST, {k: v for k, v in about.items() if k != "seal"} | {"schema": 1})
    before = (copy / MANIFEST).read_bytes()
    for at in range(0, len(before), 3):  # without a seal not all are found, but none ends in a traceback
        (copy / MANIFEST).write_bytes(before[:at] + bytes([before[at] ^ 4]) + before[at + 1 :])
        with contextlib.suppress(UserError):
            Result.load(copy)
        verify(copy)


@given(st.dictionaries(st.text(max_size=5), st.recursive(st.integers() | st.text(max_size=5) | st.none(), st.lists)))
@settings(max_examples=50, deadline=None)
def test_a_seal_holds_for_these_values_only(values: dict[str, Any]) -> None:
    values.pop("seal", None)
    known = json.loads(json.dumps(sealed(values)))
    assert seal_holds(known) and not seal_holds(values)
    assert not seal_holds({**known, "one more": 0}) and not seal_holds({**known, "seal": None})


def test_what_users_may_edit_is_read_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with new_run(tmp_path / "r", "behaviours", {}) as run:
        write_json(run.path / "behaviours.json", {"0": "behaviour 0"})
    assert read_manifest(tmp_path / "r")["files"]["behaviours.json"]["editable"] is True
    assert edited_files(tmp_path / "r") == []
    assert main(["verify", str(tmp_path / "r")]) == 0 and "edited" not in capsys.readouterr().out
    write_json(tmp_path / "r" / "behaviours.json", {"0": "waits"})
    assert load_json(tmp_path / "r", "behaviours.json") == {"0": "waits"}
    assert edited_files(tmp_path / "r") == ["behaviours.json"] and verify(tmp_path / "r") == []
    assert main(["verify", str(tmp_path / "r")]) == 0
    assert "(behaviours.json was edited since, as users may)" in capsys.readouterr().out


# Whose result it is


def model_run(path: Path, kind: str, module: torch.nn.Module, said: str | None = None) -> str:
    """A run directory with weights; the fingerprint of its agent."""
    with new_run(path, "train", {}) as run:
        write_json(run.path / f"{kind}.json", {})
        save_weights(module, run.path / artefacts.WEIGHTS)
        agent = fingerprint_of(module.agent.state_dict() if kind == "simulator" else module.state_dict())  # type: ignore[union-attr]
        run.facts = {"agent": agent if said is None else said}
    return agent


class World(torch.nn.Module):
    def __init__(self, agent: torch.nn.Module) -> None:
        super().__init__()
        self.agent, self.head = agent, torch.nn.Linear(2, 1)


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    """Below tmp_path: agents ``a`` and ``b``, the simulator ``s`` around a; their fingerprints."""
    a, b = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    world = World(a)
    names = {"a": model_run(tmp_path / "a", "agent", a), "b": model_run(tmp_path / "b", "policy", b)}
    assert model_run(tmp_path / "s", "simulator", world) == names["a"]
    return {**names, "s": fingerprint_of(world.state_dict())}


def made_from(path: Path, facts: dict[str, Any], *inputs: str) -> list[str]:
    """The problems of a run with these facts and inputs beside it."""
    with new_run(path, "test", {}, {name: path.parent / name for name in inputs}) as run:
        run.facts = facts
    return verify(path)


def test_a_results_agent_is_one_of_its_inputs(tmp_path: Path, models: dict[str, str]) -> None:
    a, b = models["a"], models["b"]
    assert made_from(tmp_path / "one", {"agent": a}, "a") == []
    assert made_from(tmp_path / "sim", {"agent": a, "simulator": models["s"]}, "s", "one") == []
    assert made_from(tmp_path / "compared", {"agent": a}, "a", "b", "one") == []  # an agent to compare with
    assert made_from(tmp_path / "guest", {"agent": b, "simulator": "other"}, "s", "b", "one") == []  # in a's world
    assert made_from(tmp_path / "nobody", {}, "a", "b") == []
    (said,) = made_from(tmp_path / "wrong", {"agent": "0" * 16}, "a")
    assert said == f"{tmp_path / 'wrong'}: it says agent {'0' * 16}, its inputs are of others (a {a})"
    model_run(tmp_path / "around b", "simulator", World(torch.nn.Linear(3, 2)))
    own = read_manifest(tmp_path / "around b")["facts"]["agent"]
    inputs = Inputs({"agent": tmp_path / "b"})
    again = Run(path=tmp_path / "around b", stage="train_gen_model", config={}, inputs=inputs)
    again.facts = {"agent": own}
    again.finish()
    assert verify(again.path) == [f"{again.path}: it says agent {own}, its inputs are of others (agent {b})"]
    (said,) = made_from(tmp_path / "mixed", {"agent": b}, "b", "one")
    assert said == f"{tmp_path / 'mixed'}: it says agent {b}, its input 'one' is of agent {a}"
    (said,) = made_from(tmp_path / "dreamt", {"agent": a, "simulator": "0" * 16}, "s")
    assert "it says simulator 0000" in said
    assert made_from(tmp_path / "after", {"agent": "0" * 16}, "wrong")[-1].startswith(f"{tmp_path / 'wrong'}: it says")


def test_weights_that_are_none_are_a_problem_and_no_traceback(tmp_path: Path) -> None:
    with new_run(tmp_path / "r", "train", {}) as run:
        write_json(run.path / "agent.json", {})
        (run.path / artefacts.WEIGHTS).write_bytes(b"no tensors")
    (said,) = verify(tmp_path / "r")
    assert "broken tensor file" in said


@pytest.mark.parametrize("kind", ["agent", "policy", "simulator"])
def test_weights_that_are_not_the_recorded_agent_are_found(kind: str, tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    agent = model_run(tmp_path / "r", kind, World(module) if kind == "simulator" else module, said="0" * 16)
    assert verify(tmp_path / "r") == [f"{tmp_path / 'r'}: its weights are agent {agent}, it says {'0' * 16}"]
    assert main(["verify", str(tmp_path / "r")]) == 1


def test_rounded_weights_are_the_agent_that_they_load_as(tmp_path: Path) -> None:
    world = World(torch.nn.Linear(3, 2))
    with torch.no_grad():
        for p in world.head.parameters():
            p.copy_(p.half())
    with new_run(tmp_path / "s", "bundle", {}) as run:
        write_json(run.path / "simulator.json", {})
        save_weights(world, run.path / artefacts.WEIGHTS, half=lambda name: not name.startswith("agent."))
        run.facts = {"agent": fingerprint_of(world.agent.state_dict())}
    assert verify(tmp_path / "s") == []
    facts = {"agent": fingerprint_of(world.agent.state_dict()), "simulator": fingerprint_of(world.state_dict())}
    assert made_from(tmp_path / "samples", facts, "s") == []


def test_result_round_trip(tmp_path: Path) -> None:
    result = Result(notes={"claim": "direction 3 drives left, p < 0.05"})
    result.scalar("effect", 0.5, "logit", n=12, interval=(0.1, 0.9))
    result.scalar("undefined", float("nan"), "1", n=0, interval=(float("nan"), 1.0))
    result.arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, 2]), "flag": np.array(True)}
    result.tables = {
        "rows": [{"name": "jump, left", "n": 3, "x": 0.1, "ok": True, "none": None}, {"name": "b", "more": -2}],
        "empty": [],
    }
    with new_run(tmp_path / "r", "test", {}) as run:
        result.save(run.path)
    back = Result.load(tmp_path / "r")
    assert back.notes == result.notes
    assert back.scalars["effect"] == {"value": 0.5, "unit": "logit", "n": 12, "interval": [0.1, 0.9]}
    assert back.scalars["undefined"] == {"value": None, "unit": "1", "n": 0, "interval": [None, 1.0]}
    assert back.arrays.keys() == result.arrays.keys()
    for name, array in result.arrays.items():
        assert back.arrays[name].dtype == array.dtype and back.arrays[name].tobytes() == array.tobytes()
    assert back.tables["empty"] == []
    first, second = back.tables["rows"]
    assert first == {"name": "jump, left", "n": 3, "x": 0.1, "ok": True, "none": None, "more": None}
    assert second["more"] == -2 and second["n"] is None
    assert verify(tmp_path / "r") == []


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=50, deadline=None)
def test_table_numbers_come_back_exactly(x: float) -> None:
    assert artefacts._cell(str(x)) == x


def test_metric_of_what_is_not_finite_is_null() -> None:
    assert metric(float("inf"), "1") == {"value": None, "unit": "1"}
    assert metric(np.float32(2), "m", n=np.int64(3), interval=np.array([1, np.nan])) == {
        "value": 2.0, "unit": "m", "n": 3, "interval": [1.0, None],
    }  # fmt: skip


# No way around the comparison

ROOT = Path(__file__).resolve().parents[2]
RAW = ("open", "read_text", "read_bytes", "read_json", "load_file", "safe_open", "File", "fromfile", "loadtxt")
MODULES = ("np", "json", "safetensors", "torch", "shutil")
# Who may read a file as it is, and which.
MAY = {
    ("core/artefacts.py", "open"): "sha256, which compares",
    ("core/artefacts.py", "read_bytes"): "load_bytes, which compares",
    ("core/artefacts.py", "read_json"): "the manifest, which has a seal; the stage of a half-written run",
    ("core/config.py", "read_bytes"): "read_json",
    ("core/earlier.py", "read_bytes"): "the world of a run directory, which an old flag is compared with",
    ("core/files.py", "load"): "bytes, whose readers compare or bound them",
    ("core/files.py", "open"): "a member of an npz; what is written",
    ("core/files.py", "read_bytes"): "a whole file, of a size that is known or bounded",
    ("core/lock.py", "open"): "who writes a run directory",
    ("core/config.py", "read_json"): "presets, and a user's --config",
    ("core/episodes.py", "File"): "shards, which have checksums of their own",
    ("core/episodes.py", "open"): "the version of a shard",
    ("core/pages.py", "read_text"): "JavaScript of the checkout",
    ("core/training.py", "read_text"): "which launch began a directory, one word that is compared",
    ("core/training.py", "read_bytes"): "states, which have checksums of their own; curves of earlier versions",
    ("core/training.py", "read_json"): "the configuration of a half-written run",
    ("agents/adopt.py", "read_json"): "a user's --env_options",
    ("agents/adopted.py", "load"): "a user's weights, tensors alone",
    ("agents/import_rollouts.py", "File"): "a user's Minari dataset",
    ("agents/import_rollouts.py", "open"): "a picture in memory",
    ("agents/import_rollouts.py", "read_json"): "a user's metadata beside a Minari dataset",
    ("core/files.py", "read_text"): "what the system says of memory, below /proc and /sys",
    ("core/plugins.py", "read_bytes"): "a user's own module, which is compared with its hash before it runs",
    ("generative/finished.py", "read_json"): "records of shards, which have a seal",
    ("generative/simulator.py", "read_bytes"): "a manifest, which has a seal",
    ("analysis/lives/earlier_format.py", "open"): "a user's own JSON file",
    ("analysis/extract_activations.py", "read_json"): "progress.json, which has a seal",
    ("envs/procgen_scenes.py", "read_json"): "a user's scenes",
    ("envs/nmmo.py", "read_bytes"): "maps, generated on first use",
    ("validation/doctor.py", "read_text"): "the machine's own files, and requirements.lock",
    ("validation/report/page.py", "open"): "a picture in memory",
    ("validation/panel/first.py", "open"): "a picture in memory",
    ("validation/panel/page.py", "read_text"): "scripts and style of the checkout",
    ("validation/panel/saliency.py", "File"): "maps, whose hash is compared first",
    ("agents/learning_curves.py", "read_bytes"): "a user's progress.csv, or the curve of a half-written run",
    ("agents/train.py", "read_json"): "the stage of a configuration that is given by --config",
    ("agents/learning_curves.py", "read_json"): "the configuration of a half-written run",
    ("analysis/semantics/states.py", "read_json"): "a user's names",
    ("analysis/semantics/matches.py", "read_json"): "a user's descriptions",
}


def raw_reads(path: Path) -> set[str]:
    """The names of the calls in a source file that read a file, or may."""
    out = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        of = node.func
        name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
        module = of.value.id if isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name) else ""
        modes = [a.value for a in node.args[1:] if isinstance(a, ast.Constant)]
        reads = name in RAW or (module in MODULES and name in ("load", "copy", "copyfile", "copytree"))
        if reads and not any(str(mode).startswith("w") for mode in modes):
            out.add(name)
    return out


def test_only_these_read_files_as_they_are() -> None:
    rooms = ("core", "envs", "agents", "generative", "analysis", "validation")
    files = [p for room in rooms for p in sorted((ROOT / room).rglob("*.py"))] + sorted(ROOT.glob("*.py"))
    found = {(p.relative_to(ROOT).as_posix(), call) for p in files for call in raw_reads(p)}
    assert found - MAY.keys() == set() and MAY.keys() - found == set()


def raw_writes(path: Path) -> set[str]:
    """The calls in a source file that write a file other than through core.files."""
    out = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        modes = [str(a.value) for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, ast.Constant)]
        opens = name in ("open", "File") and any(m and set(m) <= set("wax+bt") for m in modes)
        if opens or name in ("write_text", "write_bytes", "tofile", "savetxt", "to_csv", "copyfile", "copytree"):
            out.add(name)
    return out


def test_every_file_is_written_by_core_files() -> None:
    rooms = ("core", "envs", "agents", "generative", "analysis", "validation")
    files = [p for room in rooms for p in sorted((ROOT / room).rglob("*.py"))] + sorted(ROOT.glob("*.py"))
    found = {(p.relative_to(ROOT).as_posix(), call) for p in files for call in raw_writes(p)}
    # Of core.files: HDF5, and members of an .npz; of core.ranks: where other processes print.
    assert found == {("core/files.py", "File"), ("core/files.py", "open"), ("core/ranks.py", "open")}


# What is made with a poor simulator says so


@pytest.mark.parametrize(
    ("less", "said"),
    [
        ((-0.02, (-0.03, -0.01)), None),
        ((0.02, (0.01, 0.03)), "is worse than a held frame: .*is \\+0.02 \\[\\+0.01, \\+0.03\\] \\(n = 6 .*, few\\)"),
        ((0.003, (-0.01, 0.02)), "is not shown to be better than a held frame: .*is \\+0.003"),
        ((0.0, (0.0, 0.0)), "is not shown to be better than a held frame"),
        ((-0.02, (-0.05, 0.01)), "is not shown to be better than a held frame"),
        ((-0.02, (np.nan, np.nan)), "is not shown to be better.*is -0.02 \\(n = 6"),
        ((np.nan, (np.nan, np.nan)), "is not shown to be better.*is not a number"),
        (None, "was never compared with a held frame"),
    ],
)
def test_a_poor_simulator_is_named_by_all_that_is_made_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], less: tuple[float, tuple[float, float]] | None, said: str | None
) -> None:
    with new_run(tmp_path / "simulator", "train_gen_model", {}) as run:
        if less is not None:
            run.record(LESS_THAN_HELD, less[0], "squared pixel in [0, 1]", 6, less[1])
    with new_run(tmp_path / "samples", "record_samples", {}, {"simulator": tmp_path / "simulator"}) as run:
        run.facts = {"source": "simulated"}
    with new_run(tmp_path / "longer", "train_gen_model", {}, {"begin_with": tmp_path / "simulator"}) as run:
        run.record(LESS_THAN_HELD, -0.02, "squared pixel in [0, 1]", 6, (-0.03, -0.01))
    assert simulator_warning(tmp_path / "longer") is None  # another simulator, and a better one
    capsys.readouterr()
    with new_run(tmp_path / "saliency", "saliency", {}, {"samples": tmp_path / "samples"}):
        pass
    printed = capsys.readouterr().err
    for name in ("simulator", "samples", "saliency"):
        found = simulator_warning(tmp_path / name)
        assert (found is None) == (said is None)
        if said is not None:
            assert re.search(said, str(found)) and printed == f"warning: {found}\n"
            assert name == "simulator" or read_manifest(tmp_path / name)["facts"][SIMULATOR_WARNING] == found
    assert said is not None or (
        printed == "" and SIMULATOR_WARNING not in read_manifest(tmp_path / "saliency")["facts"]
    )


def test_results_of_an_earlier_version_find_their_simulator(tmp_path: Path) -> None:
    """Their manifests lack the fact; another simulator in the old one's place says nothing about them."""

    def simulator(less: float, **more: bool) -> None:
        with new_run(tmp_path / "simulator", "train_gen_model", {}, **more) as run:
            run.record(LESS_THAN_HELD, less, "squared pixel in [0, 1]", 6, (less - 0.1, less + 0.1))

    simulator(0.5)
    with new_run(tmp_path / "samples", "record_samples", {}, {"simulator": tmp_path / "simulator"}):
        pass
    manifest = read_manifest(tmp_path / "samples")
    del manifest["facts"][SIMULATOR_WARNING]
    write_json(tmp_path / "samples" / MANIFEST, sealed({k: v for k, v in manifest.items() if k != "seal"}))
    assert "is worse" in str(simulator_warning(tmp_path / "samples"))
    simulator(-0.5, overwrite=True)
    assert simulator_warning(tmp_path / "samples") is None
    with new_run(tmp_path / "agent", "train", {}):
        pass
    assert simulator_warning(tmp_path / "agent") is None


def test_no_number_is_null_wherever_it_comes_from(tmp_path: Path) -> None:
    """An interval that a table has already cleared is stored like one that is not finite; so is what a stage puts into
    its facts."""
    write_json(tmp_path / "x.json", {"a": [1.5, float("nan")], "b": {"c": float("inf")}, "n": 3})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [1.5, None], "b": {"c": None}, "n": 3}
    assert metric(None, "1", 3, (None, np.nan)) == {"value": None, "unit": "1", "n": 3, "interval": [None, None]}


def test_a_directory_of_runs_is_not_called_half_written(whole: Path, tmp_path: Path) -> None:
    for name in ("simulator", "agent"):
        shutil.copytree(whole, tmp_path / "bundle" / name)
    with pytest.raises(
        UserError, match="bundle is no run directory but holds some: name one, such as .*/bundle/agent or "
    ):
        artefacts.read_manifest(tmp_path / "bundle")
    (tmp_path / "bundle" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="is half-written"):
        artefacts.read_manifest(tmp_path / "bundle")


def test_a_command_goes_on_with_what_an_earlier_version_cut_off(tmp_path: Path) -> None:
    """--begin_with named one directory, or none, where it now takes a list."""
    for saved, now in ((None, ()), ("runs/a", (Path("runs/a"),))):
        config = GenTrainConfig(begin_with=now)
        path = tmp_path / str(saved is None)
        path.mkdir()
        before = cli.to_json(config) | {"begin_with": saved}
        (path / "config.json").write_text(json.dumps({"stage": "train_gen_model", "config": before}))
        assert artefacts.cut_off(path, "train_gen_model", config)
        assert not artefacts.cut_off(path, "train_gen_model", GenTrainConfig(begin_with=(Path("runs/b"),)))
        assert cli.from_json(GenTrainConfig, before, "train_gen_model") == config


def test_a_command_is_the_same_however_its_paths_are_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "agent")
    out = tmp_path / "out"
    begun = GenTrainConfig(agent=Path("agent"), begin_with=(Path("a"), Path("b")), out=Path("out"))
    out.mkdir()
    (out / "config.json").write_text(json.dumps({"stage": "train_gen_model", "config": cli.to_json(begun)}))
    for same in ({"agent": tmp_path / "agent"}, {"agent": Path("./x/../agent")}, {"agent": Path("link")}, {"out": out},
                 {"begin_with": (tmp_path / "a", Path("b"))}):  # fmt: skip
        assert artefacts.cut_off(out, "train_gen_model", replace(begun, **same)), same
    for other in ({"agent": Path("link2")}, {"begin_with": (Path("b"), Path("a"))}, {"begin_with": ()}, {"seed": 7}):
        assert not artefacts.cut_off(out, "train_gen_model", replace(begun, **other)), other
    assert not artefacts.cut_off(out, "train", begun)


def test_what_a_run_was_made_from_is_what_was_there_when_it_began(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An input that is replaced while it is read, or renamed once all is computed."""
    first = sha256(runs / "rollouts" / MANIFEST)
    made = {"agent": runs / "agent"}
    with (
        new_run(runs / "read", "hidden_states", {}, {"rollouts": runs / "rollouts"}),
        new_run(runs / "rollouts", "record", {"seed": 77}, made, overwrite=True),
    ):
        pass
    manifest = read_manifest(runs / "read")
    assert manifest["inputs"]["rollouts"]["manifest_sha256"] == first != sha256(runs / "rollouts" / MANIFEST)
    assert manifest["facts"]["replaced_inputs"] == ["rollouts"]
    assert "rollouts: replaced or moved while this run was made" in capsys.readouterr().err
    before = artefacts.Inputs({"rollouts": runs / "rollouts", "samples": None})  # what is read before the run begins
    second = sha256(runs / "rollouts" / MANIFEST)
    with new_run(runs / "rollouts", "record", {"seed": 78}, made, overwrite=True):
        pass
    with new_run(runs / "later", "hidden_states", {}, before | {"agent": runs / "agent"}) as run:
        run.inputs |= {"new": runs / "rollouts"}  # known on the way, and what it is now
    manifest = read_manifest(runs / "later")
    assert manifest["facts"]["replaced_inputs"] == ["rollouts"]
    now = {name: sha256(runs / of / MANIFEST) for name, of in {"agent": "agent", "new": "rollouts"}.items()}
    assert {k: v["manifest_sha256"] for k, v in manifest["inputs"].items()} == {"rollouts": second, **now}
    assert not {first, second} & {*now.values()} and list(before) == ["rollouts"]
    assert any("is not the one it was made from" in problem for problem in verify(runs / "read"))
    with new_run(runs / "renamed", "hidden_states", {}, {"rollouts": runs / "rollouts"}):
        (runs / "rollouts").rename(runs / "elsewhere")
    assert read_manifest(runs / "renamed")["facts"]["replaced_inputs"] == ["rollouts"]


def test_an_earlier_run_that_waits_is_not_deleted_unasked(runs: Path) -> None:
    """What an --overwrite that was killed had set aside; and a directory of that name that is something else."""
    aside = artefacts.aside_of(runs / "agent")
    shutil.move(runs / "agent", aside)
    before = contents(aside)
    with pytest.raises(UserError, match="holds an earlier run, whole that waits.*mv "), new_run(
        runs / "agent", "train", {}
    ):  # fmt: skip
        raise AssertionError("the block must not run")
    with pytest.raises(UserError, match="is in the way, a 'train' run"):
        artefacts.begin_run(runs / "agent", "record", {}, overwrite=True)
    assert contents(aside) == before and not (runs / "agent").exists()
    with pytest.raises(ZeroDivisionError), new_run(runs / "agent", "train", {}, overwrite=True) as run:
        assert run.replaced == aside
        raise ZeroDivisionError
    assert contents(runs / "agent") == before and not aside.exists()
    aside.mkdir()
    (aside / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is in the way: what is replaced waits there"):
        artefacts.begin_run(runs / "agent", "train", {}, overwrite=True)
    shutil.move(runs / "agent", runs / "kept")
    with new_run(runs / "agent", "train", {"seed": 1}):
        pass
    assert (aside / "notes.txt").read_text() == "mine"


def test_an_earlier_run_that_cannot_be_deleted_does_not_cost_the_present_one(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without write permission, or with a file on NFS that somebody has open, stays aside when the run that
    replaced it is whole: it came back in the place of that one, which was deleted."""
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with new_run(runs / "agent", "train", {"seed": 2}, overwrite=True):
            pass
        before, aside = contents(runs / "agent"), artefacts.aside_of(runs / "agent")
        with pytest.raises(UserError, match=f"^{aside}, an earlier run, .* cannot be removed: move it elsewhere$"):
            artefacts.begin_run(runs / "agent", "train", {"seed": 3}, overwrite=True)
    assert contents(runs / "agent") == before and aside.exists()
    with new_run(runs / "agent", "train", {"seed": 3}, overwrite=True):
        pass
    assert read_manifest(runs / "agent")["seed"] == 3 and not aside.exists()


def test_a_saved_state_is_not_thrown_away_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, config = tmp_path / "a", {"seed": 1}
    artefacts.begin_run(out, "train", config)
    artefacts.lock.release(out)
    (out / "training_state").mkdir()
    (out / "training_state" / "state.pt").write_bytes(b"")
    artefacts.begin_run(out, "train", config, overwrite=True)  # and it is killed
    artefacts.lock.release(out)
    assert "was half-written, with a saved state from which --resume would go on: it begins anew" in (
        capsys.readouterr().err
    )
    with pytest.raises(UserError, match="the earlier run is half-written, with its saved state, in .*comes back by"):
        artefacts.begin_run(out, "train", config)
    assert (artefacts.aside_of(out) / "training_state").exists()


def test_a_training_that_saved_no_state_is_not_said_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a"
    artefacts.begin_run(out, "train", {"seed": 1})
    artefacts.lock.release(out)
    (out / "training_state" / "tensorboard").mkdir(parents=True)  # of a training whose first step failed
    with pytest.raises(UserError, match="already holds data; choose another directory or pass --overwrite$"):
        artefacts.begin_run(out, "train", {"seed": 2})
    artefacts.begin_run(out, "train", {"seed": 2}, overwrite=True)
    artefacts.lock.release(out)
    assert capsys.readouterr().err == f"note: {out} was half-written: it begins anew\n"


@pytest.mark.parametrize("names", [["1_0", "10", "1e5"], ["007", "nan", "inf"], ["1234567e12345678", "a", "b"]])
def test_names_that_look_like_numbers_stay_names(names: list[str], tmp_path: Path) -> None:
    result = Result(tables={"pairs": [{"agent": name, "r": 0.5, "n": 3, "none": None} for name in names]})
    with new_run(tmp_path / "r", "similarity", {}) as run:
        result.save(run.path)
    loaded = Result.load(tmp_path / "r").tables["pairs"]
    assert [row["agent"] for row in loaded] == names and all(row["r"] == 0.5 and row["n"] == 3 for row in loaded)


def test_what_cannot_be_read_is_a_problem_and_no_traceback(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = artefacts.sha256

    def refuses(path: Path) -> str:
        if path.name == "shard.bin":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(artefacts, "sha256", refuses)
    assert any("shard.bin: cannot be read (Permission denied)" in problem for problem in verify(runs / "report"))


def test_a_run_that_cannot_begin_puts_back_what_it_would_replace(runs: Path) -> None:
    """Its simulator's manifest has a comparison that is none."""
    with new_run(runs / "simulator", "train_gen_model", {}) as run:
        run.metrics[LESS_THAN_HELD] = {"value": "no"}
    before = contents(runs / "rollouts")
    with pytest.raises(UserError, match="is no comparison"), new_run(
        runs / "rollouts", "record", {}, {"simulator": runs / "simulator"}, overwrite=True
    ):  # fmt: skip
        raise AssertionError("the block must not run")
    assert contents(runs / "rollouts") == before and not artefacts.aside_of(runs / "rollouts").exists()
    with new_run(runs / "rollouts", "record", {"seed": 5}, {"agent": runs / "agent"}, overwrite=True):
        pass  # nothing holds its lock


def test_a_foreign_directory_with_a_config_is_not_ours(runs: Path) -> None:
    aside = artefacts.aside_of(runs / "agent")
    aside.mkdir()
    (aside / "config.json").write_text('{"model": "mine"}')
    artefacts.settle(runs / "agent")
    assert (aside / "config.json").exists()
    aside = artefacts.aside_of(runs / "empty")
    shutil.copytree(runs / "rollouts", aside)
    (runs / "empty").mkdir()
    with pytest.raises(UserError, match=r"rmdir .*empty && mv "):
        artefacts.begin_run(runs / "empty", "record", {})
