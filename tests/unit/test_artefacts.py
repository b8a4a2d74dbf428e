"""Run directories: what is whole is provably whole, and what exists is not harmed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from core import artefacts
from core.artefacts import (
    LESS_THAN_HELD,
    MANIFEST,
    SIMULATOR_WARNING,
    Result,
    chain,
    load_weights,
    main,
    metric,
    new_run,
    read_manifest,
    save_weights,
    sha256,
    simulator_warning,
    verify,
    write_atomically,
    write_json,
)
from core.contracts import UserError


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
        (plain, False, "already holds data"),
        (foreign, True, "not a 'train' run directory"),
        (runs / "rollouts", True, "not a 'train' run directory"),
        (plain, True, "not a 'train' run directory"),
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


def test_a_failing_block_leaves_a_half_written_directory(tmp_path: Path) -> None:
    def fails() -> None:
        with new_run(tmp_path / "r", "train", {}):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fails()
    with pytest.raises(UserError, match="half-written"):
        read_manifest(tmp_path / "r")


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
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(file, float("nan"))
    assert contents(tmp_path) == {"a": b"old"}


def weights_file(tmp_path: Path, module: torch.nn.Module) -> Path:
    save_weights(module, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_weights_round_trip_is_exact(tmp_path: Path) -> None:
    a, b = (torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)) for _ in range(2))
    a.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    load_weights(b, weights_file(tmp_path, a))
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
    file = weights_file(tmp_path, torch.nn.Linear(3, 2))
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with pytest.raises(UserError, match=reason) as error:
        load_weights(module, file)
    assert "\n" not in str(error.value)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_broken_and_missing_weights(tmp_path: Path) -> None:
    file = weights_file(tmp_path, torch.nn.Linear(3, 2))
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(UserError, match="broken weights"):
        load_weights(torch.nn.Linear(3, 2), file)
    file.write_bytes(b"")
    with pytest.raises(UserError, match="broken weights"):
        load_weights(torch.nn.Linear(3, 2), file)
    with pytest.raises(UserError, match="no such weights"):
        load_weights(torch.nn.Linear(3, 2), tmp_path / "none")


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


# What is made with a poor simulator says so


@pytest.mark.parametrize(
    ("less", "said"),
    [
        ((-0.02, (-0.03, -0.01)), None),
        ((0.02, (0.01, 0.03)), "is no better than a held frame: .*is \\+0.02 \\[\\+0.01, \\+0.03\\] \\(n = 6"),
        ((0.0, (0.0, 0.0)), "is no better than a held frame"),
        ((-0.02, (-0.05, 0.01)), "is not shown to be better than a held frame"),
        ((-0.02, (np.nan, np.nan)), "is not shown to be better.*is -0.02 \\(n = 6"),
        ((np.nan, (np.nan, np.nan)), "is no better.*is not a number"),
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
    write_json(tmp_path / "samples" / MANIFEST, manifest)
    assert "no better" in str(simulator_warning(tmp_path / "samples"))
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
