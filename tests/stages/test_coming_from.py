"""docs/coming-from.md: every row is typed as it stands, and does what the page says or says what to type."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shlex
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.extract_activations import ExtractConfig, chosen, main as extract
from analysis.lives.timeline import choose
from core import config as cli
from core.config import mistyped
from core.contracts import UserError
from core.earlier import COMMANDS, FLAGS, SCRIPTS, VALUES, Gone
from core.stages import STAGES
from tests.stages.test_readme_commands import typed

# The tests before have imported what is run again here.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules after import of package:RuntimeWarning")
ROOT = cli.ROOT
PAGE = (ROOT / "docs" / "coming-from.md").read_text()
ROWS = [row.strip("| \n").split(" | ") for row in re.findall(r"^\| `.*$", PAGE, re.M)]
TYPED = [(row[0].strip("`"), row[1]) for row in ROWS if len(row) == 2 and row[0].startswith(("`python ", "`cs-"))]
FLAG_ROWS = [row for row in ROWS if len(row) == 3]
PAIRS = [(stage, old) for stage, table in FLAGS.items() for old in table]


def script_of(words: list[str]) -> str:
    """The script by an old name that these words run, or ''."""
    path = words[1].replace(".", "/") + ".py" if words[0] == "-m" else words[0]
    return path if path in SCRIPTS else ""


@pytest.mark.parametrize(("there", "here"), TYPED, ids=[there[:70] for there, _ in TYPED])
def test_every_command_of_the_page_is_understood_or_says_what_to_type(
    there: str, here: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(there)
    if program in COMMANDS:  # of a package that is installed there
        assert f"`python {' '.join(COMMANDS[program].split()[:2])}" in here.replace("record.py`", "record.py --agent`")
        words = [*COMMANDS[program].split()[: 1 if program == "cs-collect" else 2], *words]
    by_old_name = script_of(words) or "analysis/" in words[0]
    if by_old_name:
        done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and not done.stdout, done.stderr
        (command,) = re.findall(r"type: (python .*)$", done.stderr.strip())
        program = command.split()[: 3 if command.startswith("python -m") else 2]
        assert here.strip("`").split("`")[0].split()[: len(program)] == program
    else:
        found = typed(words, monkeypatch)
        assert dataclasses.is_dataclass(found), capsys.readouterr().err
    for command in re.findall(r"`python ([^`]*)`", here):
        with monkeypatch.context() as patch:
            found = typed([*shlex.split(command)], patch)
            assert dataclasses.is_dataclass(found), command
    assert "Traceback" not in capsys.readouterr().err


def test_the_page_says_that_a_shell_does_not_know_the_commands_of_a_package() -> None:
    (words,) = [part for part in PAGE.split("\n\n") if "command not found" in part]
    assert all(f"`{command}`" in words for command in COMMANDS)
    assert {shlex.split(there)[0] for there, _ in TYPED} - {"python"} == set(COMMANDS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_by_an_old_name_has_its_row_and_its_file(script: str) -> None:
    assert (ROOT / script).read_text().count("say(__file__)") == 1
    assert any(script_of(shlex.split(there)[1:]) == script for there, _ in TYPED)


def test_files_by_old_names_are_those_of_the_table() -> None:
    said = {p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py") if ".venv" not in p.parts and p.is_file()
            and p.name != Path(__file__).name and "say(__file__)" in p.read_text()}  # fmt: skip
    assert said == set(SCRIPTS)


def test_the_page_lists_the_flags_of_the_table() -> None:
    listed = [(command.strip("`"), flag.strip("`-"), here) for command, flag, here in FLAG_ROWS]
    table = []
    for (stage, old), to in zip(PAIRS, (to for t in FLAGS.values() for to in t.values()), strict=True):
        if isinstance(to, Gone):
            what = ("refused: " if to.stops else "taken and left out: ") + to.says
        else:
            today, _, form = to.partition("=")
            what = f"`--{today}`" + (f", as `{form.format('NAME')}`" if form else "")
        table.append((STAGES[stage].command, old, what))
    assert listed == table


def fields(cls: type) -> Iterator[tuple[str, Any]]:
    """(flag, type) of every setting."""
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        hint = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
        if dataclasses.is_dataclass(hint):
            yield from fields(typing.cast(type, hint))
        else:
            yield name, hint


def value_for(hint: Any) -> list[str]:
    """Words that such a setting takes."""
    if hint is bool:
        return []
    if typing.get_origin(hint) is typing.Literal:
        return [str(typing.get_args(hint)[-1])]
    if typing.get_origin(hint) in (types.UnionType, typing.Union, tuple):
        return value_for(typing.get_args(hint)[0])
    return {int: ["7"], float: ["0.7"]}.get(hint, ["there"])


@pytest.mark.parametrize(("stage", "old"), PAIRS)
def test_every_flag_is_understood_or_says_what_replaced_it(
    stage: str, old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cls, to = STAGES[stage].cls, FLAGS[stage][old]
    mine = dict(fields(cls))
    assert old not in mine, "a flag of today is no old one"
    flag = f"-{old}" if len(old) == 1 else f"--{old}"
    if isinstance(to, Gone):
        of_the_demo = {"env_name": "coinrun", "distribution_mode": "easy"}
        argv = [flag, *[of_the_demo[old] if to.of else "1"] * to.words]
        if to.stops:
            with pytest.raises(UserError, match=re.escape(f"{flag} means nothing here any more: {to.says}")):
                cli.parse(cls, argv, stage)
            return
        assert cli.parse(cls, argv, stage) == cli.parse(cls, [], stage)
        assert capsys.readouterr().err.count(f"note: {flag} means nothing here: {to.says}\n") == 1
        return
    today, _, form = to.partition("=")
    values = ["hard-rec"] if today == "preset" else value_for(mine[today])
    of_today = [form.format(v) if form else VALUES.get(today, {}).get(v, v) for v in values]
    want = cli.parse(cls, [f"--{today}", *of_today], stage)
    assert cli.parse(cls, [flag, *values], stage) == want != cli.parse(cls, [], stage)
    if len(old) > 1 and len(values) == 1:
        assert cli.parse(cls, [f"{flag.replace('_', '-')}={values[0]}"], stage) == want


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("record", "--env_name maze --agent bundles/fruitbot/agent"),
        ("record", "--distribution_mode hard --model_file bundles/fruitbot/agent"),
        ("train_gen_model", "--env_name coinrun --agent_file bundles/fruitbot/agent"),
        (
            "record_samples",
            "--env_name coinrun --simulator bundles/coinrun-robust/simulator bundles/fruitbot/simulator",
        ),
        ("saliency", "--env_name maze --model_file bundles/fruitbot/simulator"),
    ],
)
def test_a_world_that_a_run_directory_says_is_not_replaced_by_its_own_in_silence(stage: str, words: str) -> None:
    argv = [str(ROOT / w) if w.startswith("bundles/") else w for w in words.split()]
    with pytest.raises(UserError, match=f"^{argv[0]} {argv[1]}: .*fruitbot.* is of "):
        cli.parse(STAGES[stage].cls, argv, stage)


def test_the_world_of_an_adopted_agent_is_compared_too_and_a_whole_id_is_its_games_name(tmp_path: Path) -> None:
    (tmp_path / "adopted.json").write_text(json.dumps({"spec": {"env_id": "gymnasium/CartPole-v1", "options": {}}}))
    with pytest.raises(UserError, match="--env_name coinrun: .* is of gymnasium/CartPole-v1"):
        cli.parse(STAGES["record"].cls, ["--env_name", "coinrun", "--agent", str(tmp_path)], "record")
    for name in ("coinrun", "procgen/coinrun"):
        cli.parse(
            STAGES["record"].cls, ["--env_name", name, "--agent", str(ROOT / "bundles/coinrun-robust/agent")], "record"
        )


@pytest.mark.parametrize(
    ("stage", "argv", "says"),
    [
        ("train", "--env_name coinrun --game maze", "--env_name coinrun and --game maze are two names of one setting"),
        ("train", "--exp_name a --out runs/b", "--exp_name runs/a and --out runs/b are two names of one setting"),
        ("record", "--out a --data_save_dir=b", "--out a and --data_save_dir b are two names of one setting"),
        ("saliency", "--sample_ids 1 2 --saliency_sample_ids 1 3", "--sample_ids 1 2 and --saliency_sample_ids 1 3"),
        ("train_nmmo", "-a hybrid --architecture takeru", "-a hybrid and --architecture takeru are two names"),
        (
            "record",
            "--model_file logs/model_80412672.pth",
            "is a file of an earlier system; what is named here is a run",
        ),
    ],
)
def test_what_cannot_be_both_is_refused_in_one_line(stage: str, argv: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)) as refused:
        cli.parse(STAGES[stage].cls, argv.split(), stage)
    assert "\n" not in str(refused.value)


def test_two_names_with_the_same_value_and_weights_of_a_run_are_understood() -> None:
    found = cli.parse(STAGES["train"].cls, ["--env_name", "maze", "--game=maze", "--exp_name=x"], "train")
    assert found.env.game == "maze" and found.out == Path("runs/x")  # type: ignore[attr-defined]
    record = cli.parse(STAGES["record"].cls, ["--model_file", "runs/a/model.safetensors"], "record")
    assert record.agent == Path("runs/a")  # type: ignore[attr-defined]
    assert cli.parse(STAGES["train"].cls, ["--device", "gpu"], "train").device == "cuda"  # type: ignore[attr-defined]


def test_a_configuration_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for old, out in (("null", "x"), ('"y"', "y")):
        file.write_text(f'{{"out": "x", "data_save_dir": {old}}}')
        assert cli.parse(STAGES["record"].cls, ["--config", str(file)], "record").out == Path(out)  # type: ignore[attr-defined]


def test_did_you_mean_names_no_flag_that_means_something_else() -> None:
    """Each stage is asked for the flags of all others and of the earlier systems that it has not."""
    named = {stage: [name for name, _ in fields(known.cls)] for stage, known in STAGES.items()}
    everywhere = set(itertools.chain(*named.values(), *FLAGS.values()))
    guesses = {(other, mistyped(other, names)[15:-2]) for names in named.values() for other in everywhere - set(names)}
    slips = {(a, b) for a, b in guesses if b and a.rstrip("s") != b.rstrip("s")}
    assert slips <= {("alpha1", "alpha"), ("alpha2", "alpha"), ("rungs", "runs"), ("runs", "rungs")}
    assert not mistyped("num_timesteps", ["num_steps"]) and not mistyped("exp_name", ["env_name", "name"])
    assert not mistyped("sed", ["seed", "sad"]) and not mistyped("ica_size", ["pca_size"])
    for slip, name in (
        ("overwrit", "overwrite"),
        ("sede", "seed"),
        ("wieghts", "weights"),
        ("num_levals", "num_levels"),
    ):
        assert mistyped(slip, [name, "out"]) == f" (did you mean {name}?)"


def test_a_switch_that_is_off_is_named_as_one() -> None:
    with pytest.raises(UserError, match=r"unknown flag --no-trakc \(did you mean --no_track\?\)"):
        cli.parse(STAGES["train"].cls, ["--no-trakc"], "train")
    with pytest.raises(UserError, match=r"unknown flag --no_sede; see --help"):
        cli.parse(STAGES["train"].cls, ["--no_sede"], "train")


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_s_file_by_its_path_says_what_to_type(stage: str) -> None:
    known = STAGES[stage]
    path = Path(known.module.replace(".", "/"))
    path = path / "__main__.py" if (ROOT / path).is_dir() else path.with_suffix(".py")
    done = subprocess.run([sys.executable, str(path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == f"error: a part of a package; type: python {known.command}\n"


@pytest.mark.parametrize("path", ["analysis", "analysis/coupling", "validation", "core/artefacts.py"])
def test_so_does_a_package_s(path: str) -> None:
    done = subprocess.run([sys.executable, path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "type: python -m " + path.removesuffix(".py").replace("/", ".") in done.stderr


def test_list_with_nothing_there_says_how_one_is_made_and_what_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cli.run(ExtractConfig, extract, "extract_activations", ["--list"])
    said = capsys.readouterr().out
    assert said == ("runs/policies: no such directory of policies; python train.py nmmo -a hybrid makes one\n")
    (tmp_path / "bundles").symlink_to(ROOT / "bundles")
    cli.run(ExtractConfig, extract, "extract_activations", ["--list"])
    assert "in bundles/nmmo-demo/policies:" in (said := capsys.readouterr().out) and "hybrid" in said


def test_a_smoke_test_alone_takes_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def policy(*argv: str) -> str:
        _, name = chosen(cli.parse(ExtractConfig, list(argv), "extract_activations"))
        return name

    with pytest.raises(UserError, match="runs/policies: no such directory of policies"):
        policy("--smoke-test")
    with pytest.raises(UserError, match="-p runs/other/hybrid: no run directory of one policy; give one, such as"):
        policy("-p", "runs/other/hybrid")
    (tmp_path / "bundles").symlink_to(ROOT / "bundles")
    assert policy("--smoke-test") == "hybrid"
    assert "from the bundle: -p bundles/nmmo-demo/policies/hybrid" in capsys.readouterr().err
    with pytest.raises(UserError, match="runs/policies: no such directory"):
        policy("pve")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "policies").symlink_to(ROOT / "bundles" / "nmmo-demo" / "policies")
    assert policy("--smoke-test") == "forager"
    with pytest.raises(UserError, match=r"-p \(--policy\) is required: runs/policies holds forager, hybrid"):
        policy("pve")


def test_one_agent_is_that_at_the_75th_percentile() -> None:
    lengths = np.array([10, 40, 20, 30, 50])
    assert choose(lengths, 1, (), 0) == choose(lengths, 0, (), 0) == [1]  # 40
    assert len(choose(lengths, 2, (), 0)) == 2 and choose(lengths, 1, (3,), 0) == [3]


@pytest.mark.parametrize(
    ("argv", "stage", "note"),
    [
        ("-a hybrid", "train_nmmo", "note: read as python train.py nmmo -a hybrid"),
        ("-m replay -p there", "train_nmmo", "note: read as python train.py nmmo -m replay -p there"),
        ("--syllabus --no-track", "train_nmmo", "note: read as python train.py nmmo --syllabus --no-track"),
        ("--env_name Craftax-Symbolic-v1", "train_craftax", "note: read as python train.py craftax"),
        ("--no-mask_intrinsics", "train_craftax", "note: read as python train.py craftax --no-mask_intrinsics"),
        (
            "--env_id CartPole-v1 --num_envs 8",
            "train_gymnasium",
            "note: read as python train.py gymnasium --env_id Cart",
        ),
        ("--game gymnasium/CartPole-v1", "train_gymnasium", "note: read as python train.py gymnasium --game gymnas"),
        ("gymnasium --env mine.py", "train_gymnasium", ""),
        ("--debug --no-track", "train", "note: this trains on Procgen; Neural MMO is python train.py nmmo"),
        ("--env_name coinrun --seed 3", "train", ""),
        ("nmmo -a takeru", "train_nmmo", ""),
    ],
)
def test_a_training_is_known_by_its_flags(
    argv: str, stage: str, note: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = typed(["train.py", *argv.split()], monkeypatch)
    assert type(found) is STAGES[stage].cls
    assert capsys.readouterr().err.startswith(note) and (note or not capsys.readouterr().err)
