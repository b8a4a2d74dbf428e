"""Users' modules: known by their hash, run exactly as agreed to, and nowhere else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from core.artefacts import new_run, write_atomically
from core.contracts import UserError
from core.plugins import Source, agreed_folder, agreed_source, copied_source, read_source


@pytest.fixture(autouse=True)
def own_agreements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def written(tmp_path: Path, text: str) -> Source:
    (tmp_path / "mine.py").write_text(text)
    return read_source(tmp_path / "mine.py")


def test_nothing_runs_without_agreement(tmp_path: Path) -> None:
    source = written(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with pytest.raises(UserError, match=rf"agents\.adopt {tmp_path}/mine\.py --trust {source.sha256}$"):
        source.run()
    assert not (tmp_path / "ran").exists()
    source.agree()
    source.run()
    assert (tmp_path / "ran").exists()


def test_a_module_runs_as_the_bytes_that_were_read(tmp_path: Path) -> None:
    source = written(
        tmp_path, "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 3\ndef f(): return A()"
    )
    source.agree()
    (tmp_path / "mine.py").write_text("def f(): return 9")  # edited since
    module = source.run(("f",))
    assert module.f().x == 3 and not (tmp_path / "__pycache__").exists()
    with pytest.raises(UserError, match="has no function g; see docs"):
        source.run(("g",))
    with pytest.raises(UserError, match="code that nobody agreed to run"):
        read_source(tmp_path / "mine.py").run()


def test_a_module_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(sys.modules)
    for text, said in (("1 / 0", "ZeroDivisionError"), ("def", "SyntaxError"), ("raise SystemExit", "SystemExit")):
        source = written(tmp_path, text)
        source.agree()
        with pytest.raises(UserError, match=f"cannot be loaded: {said}"):
            source.run()
    assert not {name for name in set(sys.modules) - before if name.startswith("_plugin_")}


def test_copies_are_compared_with_their_hash(tmp_path: Path) -> None:
    source = written(tmp_path, "x = 1")
    source.agree()
    assert agreed_source("mine", source.sha256).text == b"x = 1"
    with new_run(tmp_path / "run", "adopt", {}) as run:
        write_atomically(run.path / "copy.py", source.text)
    assert copied_source(tmp_path / "run", "copy.py", "mine", source.sha256).text == source.text
    with pytest.raises(UserError, match="is not the module that its description names"):
        copied_source(tmp_path / "run", "copy.py", "mine", "0" * 64)
    kept = agreed_folder() / f"{source.sha256}.py"
    kept.write_text("x = 2")
    with pytest.raises(UserError, match="is not the module that its name says"):
        agreed_source("mine", source.sha256)
    with pytest.raises(UserError, match="nobody agreed to run mine.py of SHA-256 0000"):
        agreed_source("mine", "0" * 64)


def test_what_is_no_module(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a .py file"):
        read_source(tmp_path / "mine.txt")
    with pytest.raises(UserError, match="cannot read the module .*No such file"):
        read_source(tmp_path / "gone.py")
