"""The bundled policies that cluster their own states, and what their card and docs/semantics.md say beside the tables
that tests/unit/test_tables.py reads."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.play import Chooser, Exploration, play
from agents.semantic import load_semantic
from core import artefacts
from core.artefacts import Result
from core.config import ROOT
from envs.registry import make

BUNDLE = ROOT / "bundles" / "coinrun-semantic"
STUDY = BUNDLE / "study"
POLICIES = ("semantic_1", "semantic_2", "semantic_3")
TOLD = ((ROOT / "docs" / "semantics.md").read_text(), (BUNDLE / "README.md").read_text())


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def short(x: float, digits: int = 2) -> str:
    """A number as the page gives it: .11, 5.2."""
    text = f"{x:.{digits}f}"
    return text.replace("0.", ".", 1) if abs(x) < 1 else text


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_bundled_is_whole(name: str) -> None:
    assert artefacts.verify(BUNDLE / name / "evaluation") == []  # and the agent that it is of
    training = artefacts.read_manifest(BUNDLE / name / "agent")["facts"]["training"]
    assert training["metrics"]["steps"]["value"] == 3_997_696 and training["config"]["policy"] == "semantic"
    assert training["seed"] == int(name[-1])
    for text in (BUNDLE / name).rglob("*.json"):
        assert '"/' not in text.read_text(), text  # no path of a machine
    bundles = [p.stat().st_size for p in (ROOT / "bundles").rglob("*") if p.is_file()]
    assert max(bundles) <= 16 * 2**20 and sum(bundles) <= 60 * 2**20


def test_returns_that_are_told_are_the_stored_ones() -> None:
    for name in POLICIES:
        stored = Result.load(BUNDLE / name / "evaluation").scalars["return_mean"]
        low, high = stored["interval"]
        said = f"{stored['value']:.2f} [{low:.2f}, {high:.2f}]"
        assert stored["n"] == 1024 and all(said in told for told in TOLD), said


@pytest.mark.parametrize(
    ("begins", "runs"),
    [
        ("with the module, seeds", "causes_"),
        ("gradient through *p*, half", "causes_gradient_"),
        ("and `--ordinal`", "causes_ordinal_"),
    ],
)
def test_what_held_codes_do_is_told(begins: str, runs: str) -> None:
    (line,) = [line for line in TOLD[0].splitlines() if line.startswith(f"| {begins}") and "seeds 1, 2, 3" in line]
    rows = [
        [row for row in table(STUDY / f"{runs}{i}.csv") if row["hypothesis"].startswith("hold") and row["foretold"]]
        for i in (1, 2, 3)
    ]
    assert [len(mine) for mine in rows] == [8, 8, 8]
    counts = [
        ", ".join(str(sum(row[part] == answer for row in mine)) for mine in rows)
        for part, answer in (("exists", "yes"), ("size", "as foretold"), ("size", "wrong"), ("special", "yes"))
    ]
    least = ", ".join(short(min(float(row["special_q"]) for row in mine)) for mine in rows)
    assert [cell.strip() for cell in line.split("|")[2:-1]] == [*counts, least]


@pytest.mark.parametrize("name", POLICIES)
def test_every_code_of_a_bundled_policy_is_in_use(name: str) -> None:
    agent = load_semantic(BUNDLE / name / "agent")
    env = make(agent.spec, 32, split="held_out")
    chooser, counts = Chooser(Exploration(), 32, np.random.default_rng(0)), np.zeros(8, np.int64)
    for moment in itertools.islice(play(agent, env, chooser, seed=5, device=torch.device("cpu")), 60):
        h = torch.from_numpy(moment.h_BH)
        counts += np.bincount(agent.code(agent.plane(h)).numpy(), minlength=8)
    env.close()
    assert (counts > 0).sum() >= 7 and counts.max() < 0.5 * counts.sum(), counts
