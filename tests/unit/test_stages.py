"""The table of stages: complete, true of the configurations, and what docs/stages.md and packages list."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest

from agents.train import TRAININGS
from core import config as cli, stages
from core.contracts import UserError
from core.stages import OF_ALL, OF_AN_AGENT, OF_POLICIES, STAGES, Stage
from tests.unit.test_imports import ROOT, dotted, is_door, modules

# Of a stage that reads one or the other, or what has a name of its own: it says which flag it needs.
SAYS_WHICH = {
    "env_states": "--rollouts DIR or --samples DIR is needed",
    "latents": "--rollouts DIR or --samples DIR is needed",
    "patching": "--policy is required",
    "bundle": "--(agent|simulator|out) is required",
}


def test_every_command_is_in_the_table() -> None:
    doors = {dotted(p).removesuffix(".__main__") for p in modules() if is_door(p.read_text())}
    doors -= {"core.artefacts", "analysis", "validation"}  # no stages
    assert doors <= {stage.module for stage in STAGES.values()}


@pytest.mark.parametrize("name", STAGES)
def test_the_table_is_true_of_the_stage(name: str) -> None:
    stage = STAGES[name]
    assert name == stage.door.STAGE and stage.does[0].islower()
    module = stage.command.removeprefix("-m ") if stage.command.startswith("-m ") else None
    assert importlib.util.find_spec(module) if module else (ROOT / stage.command.split()[0]).exists()
    flags = set(cli._flags(stage.cls))
    assert {f"--{flag}" for flag in (*stage.needs, *stage.takes)} <= flags


def defaults(stage: Stage) -> dict[str, Any]:
    """{flag: default} of the paths among a stage's own flags and those of its options."""
    out = {}
    for flag, value in cli.to_json_defaults(stage.cls).items():
        out.update(value if isinstance(value, dict) else {flag: value})
    return out


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_reads_what_the_stages_before_it_write(name: str) -> None:
    stage, found = STAGES[name], defaults(STAGES[name])
    assert found.get("out") in (stage.out or None, None)
    for flag in stage.needs:
        if name not in SAYS_WHICH:
            assert found[flag] in (stages.written(flag), [stages.written(flag)]), flag
    for flag in stage.takes:
        assert found[flag] in (stages.written(flag), None), flag
    chained = {stages.written(flag) for flag in (*stage.needs, *stage.takes, "basis", "behaviours")}
    runs = {str(v) for v in found.values() if isinstance(v, str) and v.startswith(("runs/", "bundles/"))}
    assert runs <= chained | {stage.out, "runs/nmmo_maps", "bundles/coinrun-robust"}, "a default that nothing writes"


@pytest.mark.parametrize("name", SAYS_WHICH)
def test_a_stage_without_its_inputs_says_which_flag_it_needs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stage = STAGES[name]
    with pytest.raises(UserError, match=SAYS_WHICH[name]):
        stage.door.main(cli.parse(stage.cls, [], name))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("runs/hidden_states", "; python -m analysis.hidden_states writes it"),
        ("runs/mine/hidden_states", "; python -m analysis.hidden_states --out runs/mine/hidden_states writes it"),
        ("runs/demo/behaviours", "; python -m validation.demo --out runs/demo writes it"),
        (
            "runs/demo_context/behaviours",
            "; python -m validation.demo --out runs/demo_context writes it, given --bundle",
        ),
        ("bundles/mine/agent", ""),
        ("runs/none", ""),
    ],
)
def test_what_makes_a_directory_is_known_by_where_it_is_to_lie(path: str, said: str) -> None:
    assert stages.writer(Path(path)).startswith(said) and bool(said) == bool(stages.writer(Path(path)))


def test_without_runs_of_ones_own_a_stage_reads_the_demo_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for there in stages.OF_THE_DEMO.values():
        (tmp_path / there).mkdir(parents=True)
    for name, stage in OF_AN_AGENT.items():
        found = cli.to_json(cli.parse(stage.cls, [], name))
        said = capsys.readouterr().err
        for flag in stage.needs if name not in SAYS_WHICH else ():
            there = stages.OF_THE_DEMO[stages.MADE_BY.get(flag, flag)]
            assert found[flag] in (there, [there]) and f"--{flag} {there}" in said
        assert said.count("\n") == bool(said)
    coupling = STAGES["coupling"].cls
    (tmp_path / "runs" / "samples").mkdir()
    found = cli.parse(coupling, ["--behaviours", "runs/behaviours"], "coupling")
    said = capsys.readouterr().err
    assert found.samples == Path("runs/samples") and "--samples" not in said  # type: ignore[attr-defined]
    assert found.behaviours == Path("runs/behaviours") and "--behaviours" not in said  # type: ignore[attr-defined]
    for argv, note in (([], "--rollouts runs/demo/rollouts"), (["mine"], "")):  # given by its place, without a flag
        cli.parse(STAGES["film"].cls, argv, "film")
        said = capsys.readouterr().err
        assert note in said and bool(said) == bool(note)
    cli.parse(STAGES["interventions"].cls, ["--policy", "p", "--hidden_states", "h"], "interventions")
    assert capsys.readouterr().err == ""  # a policy stands for the simulator
    for argv, note in ((["curves", "--curves", "a"], ""), (["curves", "names"], "--agent"), ([], "--agent")):
        cli.parse(STAGES["semantics"].cls, argv, "semantics")  # curves are of trainings: no agent is read
        said = capsys.readouterr().err
        assert note in said and bool(said) == bool(note)
    record = STAGES["record"].cls
    for argv, basis in (([], "runs/hidden_states"), (["--shift", "9=-2"], "runs/demo/hidden_states")):
        found = cli.parse(record, ["--agent", "a", *argv], "record")
        assert found.intervention.basis == Path(basis)  # type: ignore[attr-defined]
        assert ("--basis" in capsys.readouterr().err) == bool(argv)


def test_a_default_that_is_not_there_names_the_command_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from core.artefacts import read_manifest

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="^runs/rollouts: no such run directory; python record.py writes it$"):
        read_manifest(Path("runs/rollouts"))


def rows() -> list[tuple[str, list[str]]]:
    """(what it is for, words of the command) of the tables of stages."""
    text = (ROOT / "docs" / "stages.md").read_text()
    return [(does, shlex.split(line)) for does, line in re.findall(r"^\| ([^|]+) \| `python ([^`]+)` \|", text, re.M)]


def stage_of(words: list[str]) -> str:
    """The stage that a command runs; two scripts choose by their first word."""
    program = " ".join(words[: 2 if words[0] == "-m" else 1])
    rest = words[len(program.split()) :]
    if program == "train.py" and rest[0] in TRAININGS:
        return f"train_{rest[0]}"
    if program == "-m agents.evaluate" and not rest[0].startswith("-"):
        return "evaluate_nmmo"
    return next(name for name, stage in STAGES.items() if stage.command == program)


def test_docs_list_the_stages_of_the_table_in_its_order() -> None:
    listed = [name for does, words in rows() if (name := stage_of(words)) and does == STAGES[name].does]
    assert listed == [name for name in (*OF_AN_AGENT, *OF_ALL, *OF_POLICIES) if name not in ("bundle", "demo")]


def test_docs_say_of_stages_what_they_ask_and_how_they_can_mislead() -> None:
    """By the names that the table of stages gives them."""
    text = (ROOT / "docs" / "stages.md").read_text().partition("| stage | asks |")[2]
    said = re.findall(r"^\| ([^|]+) \| [^|]+\? \| [^|]+ \| [^|]+ \|$", text, re.M)
    assert len(said) == len(set(said)) > 20 and set(said) <= {stage.does for stage in STAGES.values()}


@pytest.mark.parametrize("package", ["analysis", "validation"])
def test_a_package_lists_its_commands(package: str) -> None:
    done = subprocess.run([sys.executable, "-m", package], cwd=ROOT, capture_output=True, text=True, check=True)
    for stage in STAGES.values():
        line = [line for line in done.stdout.splitlines() if line.split()[:3] == ["python", "-m", stage.module]]
        assert any(stage.does in one for one in line) == (stage.module.split(".")[0] == package)


def test_the_table_imports_no_door() -> None:
    code = "import sys, core.stages; print([m for m in sys.modules if m.startswith(('agents', 'analysis', 'envs'))])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert typing.get_type_hints(Stage)["needs"] == tuple[str, ...]


def costly_figures(source: str) -> list[int]:
    """Lines of blocks that write a run in which something is drawn before the result is saved, or outside
    ``Run.figures``."""
    found: list[int] = []

    def calls_in(node: ast.AST, ends: str) -> list[int]:
        calls = (call for call in ast.walk(node) if isinstance(call, ast.Call))
        return [call.lineno for call in calls if re.fullmatch(ends, ast.unparse(call.func))]

    for block in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.With)):
        if any("new_run(" in ast.unparse(item.context_expr) for item in block.items):
            saved, drawn = calls_in(block, r"result\.save"), calls_in(block, r"(figures\.)?(draw|write_video)\w*")
            inside = [node for node in ast.walk(block) if isinstance(node, ast.With)
                      and "run.figures()" in map(ast.unparse, (item.context_expr for item in node.items))]  # fmt: skip
            safe = {line for node in inside for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
            found += [line for line in drawn if saved and (line < min(saved) or line not in safe)]
    return found


def test_a_figure_that_fails_costs_no_number() -> None:
    """It is drawn when they are saved, and where an error does not undo the run."""
    bad = "with new_run() as run:\n    draw(result)\n    result.save(run.path)\n    draw(result)"
    assert costly_figures(bad) == [2, 4]
    assert not costly_figures(
        bad.replace("    draw(result)\n", "").replace("draw", "with run.figures():\n        draw")
    )
    found = {str(p): lines for p in modules() if (lines := costly_figures(p.read_text()))}
    assert not found
