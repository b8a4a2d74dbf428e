"""Every command that users were told to type, typed as it is.

Each is run as the shell would run it, in this process, with the program's own choice of stage, presets and parser,
until its configuration is resolved (other tests run the stages themselves).
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core import config as cli
from tests.conftest import write_agent

# The tests before have imported what is run again here.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules after import of package:RuntimeWarning")
ROOT = cli.ROOT
FROZEN = ROOT / "tests" / "golden" / "readme_commands.txt"
DOCS = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "coming-from.md"]  # its own test types it
CARDS = sorted((ROOT / "bundles").glob("*/README.md"))
TEXTS = (ROOT / "README.md", *DOCS, *CARDS, *sorted((ROOT / "benchmarks").glob("*.md")))


def commands_of(text: str) -> list[str]:
    """The ``python ...`` commands of a Markdown text, each on one line, comments left out."""
    text = text.replace("\\\n", " ")
    found = re.findall(r"^(python .*)$", text, re.MULTILINE) + re.findall(r"`(python [^`]*)`", text)
    return [shlex.join(shlex.split(command, comments=True)) for command in found]


def all_commands() -> list[str]:
    """The frozen ones and those of today's texts, once each."""
    frozen = [line for line in FROZEN.read_text().splitlines() if line and not line.startswith("#")]
    today = [command for path in TEXTS for command in commands_of(path.read_text())]
    return list(dict.fromkeys(shlex.join(shlex.split(command)) for command in (*frozen, *today)))


class Understood(BaseException):
    """Stops a program once its command line is parsed; carries what was made of it."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory like a user's: the checkout's files, and runs of an agent under the names that commands read before
    their configuration is resolved."""
    root = tmp_path_factory.mktemp("desk")
    for path in ROOT.iterdir():
        if path.name != "runs":
            (root / path.name).symlink_to(path)
    for name in ("agent", "demo"):
        write_agent(root / "runs" / name)
    for name in ("simulator", "rollouts", "samples", "hidden_states", "behaviours"):  # else a note says there are none
        (root / "runs" / name).mkdir()
    (root / "runs" / "semantics").mkdir(exist_ok=True)
    (root / "runs" / "semantics" / "causes.json").write_text("{}")  # a configuration that a stage writes
    return root


def typed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The resolved configuration of ``python WORDS``, or the exit code of what ended before there was one."""
    benchmark = "benchmarks" in words[0] + words[1] if words[0] == "-m" else words[0].startswith("benchmarks")
    owner, name = (argparse.ArgumentParser, "parse_args") if benchmark else (cli, "parse")
    parse = getattr(owner, name)

    def stop(*arguments: Any, **named: Any) -> None:
        raise Understood(parse(*arguments, **named))

    monkeypatch.setattr(owner, name, stop)
    program, argv = (words[1], words[2:]) if words[0] == "-m" else (words[0], words[1:])
    monkeypatch.setattr(sys, "argv", [program, *argv])
    # A benchmark without arguments does not stop before its work: it is only imported.
    run_name = "imported" if benchmark and not argv else "__main__"
    try:
        if words[0] == "-m":
            runpy.run_module(program, run_name=run_name, alter_sys=True)
        else:
            runpy.run_path(program, run_name=run_name)
    except Understood as understood:
        return understood.args[0]
    except SystemExit as ended:
        return ended.code
    return 0


@pytest.mark.parametrize("command", all_commands(), ids=lambda command: command[:60])
def test_what_users_were_told_to_type_is_understood(
    command: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setattr("core.precision.native_bf16", lambda device: True)  # else presets say that this CPU has none
    program, *words = shlex.split(command)
    if program == "make":
        subprocess.run(["make", "-n", *words], cwd=ROOT, check=True, capture_output=True)
        return
    found = typed(words, monkeypatch)
    assert capsys.readouterr().err == ""  # no error, and no preset without a section for the stage
    if dataclasses.is_dataclass(found):  # a stage's configuration
        held = str(cli.to_json(found))
        directories = [word for word in words if word.startswith(("runs/", "bundles/")) and not word.endswith(".json")]
        assert all(word in held for word in directories)
    else:
        assert found == 0 or isinstance(found, argparse.Namespace)


def test_a_command_that_is_not_understood_is_found(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    for command, says in (
        ("train.py --preset gone --out runs/agent", "no preset 'gone'"),
        ("train.py --gone 1", "unknown flag --gone"),
        ("-m agents.evaluate runs/policies pvx", "pvx"),
    ):
        with monkeypatch.context() as patch:
            assert typed(shlex.split(command), patch) == 2
        assert says in capsys.readouterr().err
    with pytest.raises(ImportError), monkeypatch.context() as patch:
        typed(["-m", "analysis.gone"], patch)
