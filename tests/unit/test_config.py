"""Configurations: JSON round trip, layers in order, and mistakes that name their cure."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from agents import nmmo_train, record, train
from agents.train import STAGE, TrainConfig
from core import artefacts, stages
from core.config import device_of, from_json, merge, nearest, parse, preset, require_accelerator, run, to_json
from core.contracts import UserError


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Part of it."""

    depth: int = 2
    """layers"""
    scale: float = 1.0
    """factor"""
    kind: Literal["a", "b"] = "a"
    """which"""


@dataclass(frozen=True, kw_only=True)
class Outer:
    """All of it."""

    name: str = "x"
    """a word"""
    out: Path = Path("runs/x")
    """where"""
    start: int | None = None
    """perhaps a number"""
    ids: tuple[str, ...] = ()
    """words"""
    amounts: tuple[float, ...] = (1.0,)
    """numbers"""
    inner: Inner = field(default_factory=Inner)
    verbose: bool = False
    """say more"""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Has a flag without default."""

    agent: Path
    """which agent"""
    seed: int = 0
    """seed"""


floats = st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(Inner, depth=st.integers(), scale=floats, kind=st.sampled_from(["a", "b"]))
outers = st.builds(
    Outer,
    name=st.text(),
    out=st.text("abc/_.", min_size=1).map(Path),
    start=st.none() | st.integers(),
    ids=st.lists(st.text()).map(tuple),
    amounts=st.lists(floats).map(tuple),
    inner=inners,
    verbose=st.booleans(),
)


@given(outers)
@settings(max_examples=60, deadline=None)
def test_json_round_trip(config: Outer) -> None:
    assert from_json(Outer, json.loads(json.dumps(to_json(config)))) == config


def test_a_whole_number_is_a_float_where_one_is_due() -> None:
    assert from_json(Inner, {"scale": 3}) == Inner(scale=3.0)
    assert isinstance(from_json(Inner, {"scale": 3}).scale, float)


def test_one_directory_stands_for_a_list_of_one() -> None:
    """So that files of versions that took a single one can be read."""

    @dataclass(frozen=True, kw_only=True)
    class Several:
        simulator: tuple[Path, ...] = ()

    assert from_json(Several, {"simulator": "a/b"}).simulator == (Path("a/b"),)
    assert from_json(Several, {"simulator": ["a", "b"]}).simulator == (Path("a"), Path("b"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"nam": "y"}, r"config: unknown key 'nam' \(did you mean name\?\)"),
        ({"inner": {"detph": 3}}, r"config.inner: unknown key 'detph' \(did you mean depth\?\)"),
        ({"inner": 3}, "config.inner: expected an object, got 3"),
        ({"inner": {"depth": 2.5}}, "config.inner.depth: expected int, got 2.5"),
        ({"inner": {"depth": True}}, "config.inner.depth: expected int, got True"),
        ({"inner": {"kind": "c"}}, "config.inner.kind: 'c' is not one of a, b"),
        ({"ids": "abc"}, "config.ids: expected a list"),
        ({"amounts": ["1"]}, "config.amounts: expected float, got '1'"),
        ({"verbose": 1}, "config.verbose: expected bool, got 1"),
        ({"out": 3}, "config.out: expected a path, got 3"),
        ({"start": "soon"}, "config.start: expected int, got 'soon'"),
    ],
)
def test_wrong_json_names_the_place(data: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as error:
        from_json(Outer, data)
    assert "\n" not in str(error.value)


def test_required_keys() -> None:
    with pytest.raises(UserError, match="the key 'agent' is missing"):
        from_json(Needs, {"seed": 1})
    with pytest.raises(UserError, match="--agent is required"):
        parse(Needs, ["--seed", "1"], "needs")
    assert parse(Needs, ["--agent", "runs/a"], "needs") == Needs(agent=Path("runs/a"))


def test_config_first_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    saved = {"name": "filed", "inner": {"depth": 7}, "ids": ["1", "2"]}
    file.write_text(json.dumps({"stage": "outer", "config": saved}))
    for argv in (["--config", str(file), "--depth", "9"], ["--depth=9", f"--config={file}"]):
        config = parse(Outer, argv, "outer")
        assert config == Outer(name="filed", inner=Inner(depth=9), ids=("1", "2"))
    file.write_text(json.dumps({"name": "bare"}))
    assert parse(Outer, ["--config", str(file)], "outer").name == "bare"


def test_flags_of_every_kind() -> None:
    argv = ["--name", "y", "--ids", "0", "to", "8", "--amounts", "-1", "2.5"]
    argv += ["--start", "3", "--verbose", "--kind", "b"]
    want = Outer(name="y", ids=("0", "to", "8"), amounts=(-1.0, 2.5), start=3, verbose=True, inner=Inner(kind="b"))
    assert parse(Outer, argv, "outer") == want
    assert parse(Outer, ["--no-verbose", "--start", "None", "--ids", "12", "None"], "outer").ids == ("12", "None")
    hyphen, underscore = (parse(TrainConfig, [flag, "0.5"], STAGE) for flag in ("--learning-rate", "--learning_rate"))
    assert hyphen == underscore and hyphen.ppo.learning_rate == 0.5


def test_resolved_config_of_a_run_is_the_run_again(tmp_path: Path) -> None:
    first = parse(TrainConfig, ["--preset", "demo", "--seed", "5", "--game", "ninja"], STAGE)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"stage": STAGE, "config": to_json(first)}))
    assert parse(TrainConfig, ["--config", str(file)], STAGE) == first
    assert parse(TrainConfig, ["--config", str(file), "--seed", "2"], STAGE) == dataclasses.replace(first, seed=2)


def test_the_config_of_a_whole_run_is_compared_with_its_manifest(tmp_path: Path) -> None:
    want = Outer(name="a", inner=Inner(depth=7))
    with artefacts.new_run(tmp_path / "r", "outer", want):
        pass
    file = tmp_path / "r" / "config.json"
    assert parse(Outer, ["--config", str(file)], "outer") == want
    file.write_text(file.read_text().replace("7", "8"))
    with pytest.raises(UserError, match=r"config.json: content differs from its manifest; copy or make it again"):
        parse(Outer, ["--config", str(file)], "outer")
    mine = file.rename(tmp_path / "r" / "mine.json")  # a user's own: no manifest knows it
    assert parse(Outer, ["--config", str(mine)], "outer").inner.depth == 8


def test_a_preset_asks_for_bfloat16_only_where_it_is_native(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Emulated it is six to thirteen times slower than float32 (docs/performance.md)."""

    def made(*argv: str) -> tuple[bool, str]:
        config = parse(TrainConfig, list(argv), STAGE)
        return config.ppo.bf16, capsys.readouterr().err

    earlier = tmp_path / "earlier.json"
    earlier.write_text('{"ppo": {"bf16": true}}')
    monkeypatch.setattr("core.precision.native_bf16", lambda device: True)
    assert made("--preset", "demo") == (True, "") and made("--preset", "demo", "--no-bf16") == (False, "")
    assert made("--preset", "debug", "--bf16") == (True, "")

    monkeypatch.setattr("core.precision.native_bf16", lambda device: False)
    said = "note: this CPU has no bfloat16 arithmetic, which the preset asks for: in float32\n"
    assert made("--preset", "demo") == (False, said) and made("--preset", "demo", "--preset", "debug")[0] is False
    assert made("--preset", "demo", "--no-bf16") == (False, "") and made("--preset", "debug") == (False, "")
    for asked in (["--preset", "demo", "--bf16"], ["--preset", "demo", "--config", str(earlier)]):
        on, note = made(*asked)
        assert on and "this CPU only emulates bfloat16, many times slower than float32" in note

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert made("--preset", "demo", "--device", "cuda")[0] is False
    with pytest.raises(UserError, match="this GPU has no bfloat16"):
        parse(TrainConfig, ["--bf16", "--device", "cuda"], STAGE)


def test_presets_lie_under_flags(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.precision.native_bf16", lambda device: True)
    demo = parse(TrainConfig, ["--preset", "demo"], STAGE)
    assert demo.net.encoder == preset(STAGE, "demo")["net"]["encoder"]
    assert parse(TrainConfig, ["--preset", "demo", "--encoder", "impala"], STAGE).net.encoder == "impala"
    assert capsys.readouterr().err == ""
    assert parse(TrainConfig, ["--preset", "demo"], "a_stage").net == TrainConfig().net
    said = capsys.readouterr().err
    assert said == "note: configs/demo.json has no section for a_stage: defaults are used\n"
    with pytest.raises(UserError, match=r"no preset 'dmo' \(did you mean demo\?\)"):
        preset(STAGE, "dmo")


@pytest.mark.parametrize("name", ["demo", "paper", "debug"])
def test_shipped_presets_are_legal(name: str) -> None:
    parse(TrainConfig, ["--preset", name], STAGE)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--nmae", "y"], "unknown flag --nmae (did you mean --name?)"),
        (["--preset", "nonsense"], "no preset 'nonsense'"),
        (["--config", "nowhere.json"], "nowhere.json: no such file"),
        (["--config"], "--config needs a value"),
        (["--scale", "nan"], "--scale must be a finite number, not nan"),
        (["--amounts", "1", "inf"], "--amounts must be a finite number, not inf"),
    ],
)
def test_mistakes_exit_2_with_one_line(argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    def main(config: Outer) -> None:
        raise AssertionError("must not run")

    with pytest.raises(SystemExit) as stopped:
        run(Outer, main, "outer", argv)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and reason in printed.err
    assert printed.err.count("\n") == 1 and not printed.out


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", "3", '{"stage": "other", "config": {}}', '{"nmae": 1}', '{"stage": "outer", "config": []}', "\xff"],
)
def test_broken_config_files_are_user_errors(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError):
        parse(Outer, ["--config", str(file)], "outer")
    with pytest.raises(UserError, match="directory"):
        parse(Outer, ["--config", str(tmp_path)], "outer")


def test_user_errors_of_main_too_and_a_traceback_only_with_debug(capsys: pytest.CaptureFixture[str]) -> None:
    def main(config: Outer) -> None:
        raise UserError("the bundle is of another env; pass another one")

    for argv in ([], ["--debug"]):
        with pytest.raises(SystemExit) as stopped:
            run(Outer, main, "outer", argv)
        assert stopped.value.code == 2
        err = capsys.readouterr().err
        assert err.splitlines()[-1] == "error: the bundle is of another env; pass another one"
        assert ("Traceback" in err) == (argv == ["--debug"])


def exhaust_gpu() -> None:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 9 GiB."
    )


@pytest.mark.parametrize(
    "exhaust", [lambda: np.empty(1 << 50), lambda: torch.empty(1 << 50, dtype=torch.uint8), exhaust_gpu]
)
def test_too_little_memory_is_one_line_that_says_what_needs_less(
    exhaust: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, flags in {
        "train": "lower --envs, or raise --minibatches",
        "train_gen_model": "lower --batch",
        "coupling": "lower --memory_gb, or lower --batch_size",
        "hidden_states": "it needs a machine with more",
    }.items():
        known = stages.STAGES[name]
        with pytest.raises(SystemExit) as stopped:
            run(known.cls, lambda config: exhaust(), "stage", [])
        said = capsys.readouterr().err.splitlines()[-1]
        assert stopped.value.code == 2 and said.startswith("error: out of ") and said.endswith(f"; {flags}"), said
        assert "memory (" in said and " more asked for)" in said and ("GPU" in said) == (exhaust is exhaust_gpu)
    with pytest.raises(RuntimeError, match="another"):
        run(Outer, lambda config: (_ for _ in ()).throw(RuntimeError("another")), "outer", [])


@pytest.mark.parametrize("argv", [[], ["--preset", "paper"], ["--config", "large.json"]])
@pytest.mark.parametrize("first", [True, False])
def test_a_training_with_debug_is_of_debug_size(
    argv: list[str], first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[TrainConfig] = []
    (tmp_path / "large.json").write_text('{"ppo": {"total_steps": 200000000}}')
    argv = [str(tmp_path / word) if word.endswith(".json") else word for word in argv]
    run(TrainConfig, made.append, STAGE, ["--debug", *argv] if first else [*argv, "--debug"], small_debug=True)
    assert made[0].ppo == parse(TrainConfig, ["--preset", "debug"], STAGE).ppo and made[0].ppo.total_steps < 1e4
    run(TrainConfig, made.append, STAGE, [*argv, "--debug", "--total_steps", "5e3"], small_debug=True)
    assert made[1].ppo.total_steps == 5000


@pytest.mark.parametrize(("word", "hint"), [("carftax", " (did you mean craftax?)"), ("climber", "")])
def test_a_training_that_there_is_not_is_one_line(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        train.choose([word, "--debug"])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith(f"error: no training '{word}'{hint}: ") and "--game NAME\n" in said


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--out", "runs/gymnasium/agent", "--seeed", "1"], "unknown flag --seeed"),
        (["--preset", "debug", "craftax"], "'craftax' comes first: train.py craftax, and then its flags\n"),
        (["--debug", "nmmo"], "'nmmo' comes first: "),
        (["--seed=1", "nmmo", "--overwrite"], "'nmmo' comes first: "),
        (["--cell", "lstm"], "invalid choice 'lstm' for argument '--recurrence' (typed as --cell). Expected one of"),
    ],
)
def test_what_is_typed_out_of_place_or_by_an_earlier_name_is_called_so(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train.choose(argv)
    assert f"error: {says}" in capsys.readouterr().err
    assert not train.late_word(["--out", "craftax", "--preset", "debug"])  # a flag's value


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["--num_steps", "10", "--episodes", "4"],
            "note: --episodes means nothing here: --num_steps 10 is in its place\n",
        ),
        (["--num_steps", "10", "--preset", "debug"], ""),  # nobody typed the preset's
        (["--episodes", "4"], ""),
    ],
)
def test_of_steps_and_episodes_it_is_said_which_count(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parse(record.RecordConfig, ["--agent", "runs/mine", *argv], record.STAGE)
    assert capsys.readouterr().err == said


def test_the_script_trains_at_debug_size_with_debug_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(train, "main", made.append)
    monkeypatch.setattr(nmmo_train, "main", made.append)
    for argv in (["--debug"], ["nmmo", "--debug"]):
        train.choose(argv)
        assert made[-1].ppo.total_steps < 1e4
        with pytest.raises(SystemExit):
            train.choose([*argv[:-1], "--help"])
        assert "--debug is --preset debug" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "number"), [("5e6", 5_000_000), ("1_000_000", 1_000_000), ("1.5e1", 15), ("-2", -2), ("3.0", 3)]
)
def test_whole_numbers_may_be_written_with_an_exponent(word: str, number: int, tmp_path: Path) -> None:
    assert parse(Outer, ["--depth", word, "--start", word], "outer").start == number
    assert parse(Outer, ["--depth", word], "outer").inner.depth == number
    (tmp_path / "c.json").write_text(f'{{"start": {word.replace("_", "")}}}')
    found = parse(Outer, ["--config", str(tmp_path / "c.json")], "outer").start
    assert found == number and type(found) is int


@pytest.mark.parametrize("word", ["1.5", "5e-1", "nan", "inf", "1e999999999", "abc", "", "0x10", "1e", "True"])
def test_what_is_no_whole_number_is_one_line(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--depth", "--start"):
        with pytest.raises(SystemExit) as ended:
            run(Outer, lambda config: None, "outer", [flag, word])
        said = capsys.readouterr().err
        assert ended.value.code == 2 and said.count("\n") == 1 and repr(word) in said


def test_a_mistake_is_one_sentence_without_unicode_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in ("ascii", "utf-8"):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        with pytest.raises(UserError, match="^Error parsing --depth: 'abc' is not a whole number; see --help$"):
            parse(Outer, ["--depth", "abc"], "outer")


def test_a_word_without_its_flag_is_told_to_need_one() -> None:
    said = "^'runs/agent' stands behind no flag that takes it: put its flag before it; see --help$"
    for words in (["runs/agent"], ["--depth", "3", "runs/agent"]):
        with pytest.raises(UserError, match=said):
            parse(Outer, words, "outer")


def test_json_numbers_that_are_not_whole_are_refused() -> None:
    for value in (1.5, float("nan"), float("inf"), True, "5e6"):
        with pytest.raises(UserError, match="expected int"):
            from_json(Outer, {"start": value})


def test_an_empty_default_says_none_which_may_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(Outer, ["--help"], "outer")
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "perhaps a number (default: none)" in said and "words (default: none)" in said and "None" not in said
    assert parse(Outer, ["--ids", "none", "--start", "none"], "outer") == Outer()
    assert parse(Outer, ["--ids", "none", "b"], "outer").ids == ("none", "b")
    assert parse(Outer, ["--amounts", "none", "--start", "None"], "outer") == Outer(amounts=())


@pytest.mark.parametrize(
    ("number", "said", "code"), [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143)]
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_signals_end_in_one_line_and_leave_no_half_run_that_looks_whole(
    number: signal.Signals, said: str, code: int, overwrite: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r"
    if overwrite:
        with artefacts.new_run(out, "outer", {}) as earlier:
            (earlier.path / "a").write_text("earlier")

    def main(config: Outer) -> None:
        with artefacts.new_run(out, "outer", config, overwrite=overwrite) as later:
            (later.path / "a").write_text("half")
            os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    ours = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # where the tests run in the background, it is ignored
    try:
        with pytest.raises(SystemExit) as stopped:
            run(Outer, main, "outer", [])
    finally:
        signal.signal(signal.SIGINT, ours)
    assert stopped.value.code == code and capsys.readouterr().err == f"{said}\n"
    assert signal.getsignal(signal.SIGTERM) == before
    if overwrite:
        assert artefacts.verify(out) == [] and (out / "a").read_text() == "earlier"
    else:
        with pytest.raises(UserError, match="half-written"):
            artefacts.read_manifest(out)


def test_help_names_flags_units_and_layers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(Outer, ["--help"], "outer")
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "--depth" in text and "layers" in text and "--preset" in text and "--inner.depth" not in text


def test_an_accelerator_that_did_not_load_is_no_silent_fallback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUML_ACCEL_ENABLED", "1")
    with pytest.raises(SystemExit, match="2"):
        run(Outer, print, "outer", [])
    assert "cuml was not loaded" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "cuml", SimpleNamespace(__version__="26.10.00"))
    require_accelerator()
    assert artefacts.package_versions()["cuml"] == "26.10.00"


def test_helpers() -> None:
    assert nearest("coinrum", ["coinrun", "ninja"]) == " (did you mean coinrun?)"
    assert nearest("zzz", ["coinrun"]) == nearest("every", ["every"]) == ""
    merged = merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 5}, "d": {"e": 1}})
    assert merged == {"a": {"b": 5, "c": 2}, "d": {"e": 1}}
    assert device_of("cpu").type == "cpu"
    with pytest.raises(UserError, match="not a device"):
        device_of("abacus")
