"""The notebooks: what they hold, and that every cell runs, at the debug sizes that they have.

Their code is plain Python without IPython's own syntax, so that a cell is run by ``exec``, one after the other in one
namespace, as a kernel does; the notebook format is JSON.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from core.config import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SLOW = {"coinrun", "neural_mmo"}  # a minute or more each
NAMES = [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in SLOW else []) for p in NOTEBOOKS]


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    return cells


def code_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_there_is_a_notebook_for_each_of_the_three() -> None:
    assert [p.stem for p in NOTEBOOKS] == ["coinrun", "neural_mmo", "own_agent"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_text_and_code_without_outputs_or_places_of_a_machine(notebook: Path) -> None:
    held = json.loads(notebook.read_text())
    assert (held["nbformat"], held["nbformat_minor"]) == (4, 5)
    assert held["metadata"]["kernelspec"]["name"] == "python3"
    cells = held["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for before, cell in zip([None, *cells], cells, strict=False):
        if cell["cell_type"] == "markdown":
            continue
        assert cell["cell_type"] == "code" and not cell["outputs"] and cell["execution_count"] is None
        assert before is not None and before["cell_type"] == "markdown", f"nothing introduces: {code_of(cell)}"
        ast.parse(code_of(cell))  # no magics: this is Python
    text = notebook.read_text()
    assert not re.search(r"(/home/|/root/|/tmp/|/work/|[A-Z]:\\\\)", text)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_its_links_lead_somewhere(notebook: Path) -> None:
    text = "\n".join(code_of(cell) for cell in cells_of(notebook) if cell["cell_type"] == "markdown")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets and all((notebook.parent / target).exists() for target in targets)


@pytest.mark.parametrize("notebook", NAMES)
def test_every_cell_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From where Jupyter starts it, the notebook's own directory, in a checkout without runs."""
    desk = tmp_path / "checkout"
    (desk / "notebooks").mkdir(parents=True)
    for name in ("bundles", "docs"):
        (desk / name).symlink_to(ROOT / name)
    shutil.copy(notebook, desk / "notebooks")
    monkeypatch.chdir(desk / "notebooks")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells_of(notebook):
        if cell["cell_type"] == "code":
            exec(compile(code_of(cell), f"{notebook.name}, {cell['id']}", "exec"), namespace)
    assert {p.name for p in (desk / "notebooks").iterdir()} == {notebook.name}  # nothing lands beside it
    namespace["RUNS"].resolve(strict=True).relative_to(desk)
    check = globals()[f"check_{notebook.stem}"]
    check(namespace)


def check_own_agent(names: dict[str, Any]) -> None:
    """The number that decides does, and one that nothing reads does not."""
    from core.episodes import RolloutStore

    stands = {}
    for name in ("rollouts", "decides", "idle"):
        with RolloutStore(names["RUNS"] / name) as store:
            stands[name] = store.steps.mean()
    assert stands["idle"] == stands["rollouts"] > 3 * stands["decides"]


def check_coinrun(names: dict[str, Any]) -> None:
    assert names["Result"].load(names["RUNS"] / "interventions").notes["claims"]
    assert (names["RUNS"].parent / "coinrun_panel" / "panel.html").stat().st_size > 100_000


def check_neural_mmo(names: dict[str, Any]) -> None:
    assert len(names["lives"]) == 6 and all(isinstance(one["last_label"], int) for one in names["lives"])
