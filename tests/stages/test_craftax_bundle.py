"""The bundled agents of Craftax, and the tables that docs/craftax.md gives (tests/unit/test_tables.py)."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.play import Chooser, Exploration, play
from agents.recurrent import load_agent
from core import artefacts
from core.config import ROOT
from core.stats import contrast
from envs.registry import make

BUNDLE = ROOT / "bundles" / "craftax-probe"
STUDY = BUNDLE / "study"
CELLS = ("masked_normal", "masked_scarce", "visible_normal", "visible_scarce")
SEEDS = (1, 2, 3)
AGENTS = tuple(f"{cell}_1" for cell in CELLS)


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", AGENTS)
def test_what_is_bundled_is_whole(name: str) -> None:
    assert artefacts.verify(BUNDLE / name) == []
    spec = load_agent(BUNDLE / name).spec
    assert ("intrinsics" in spec.obs) == name.startswith("visible")
    assert spec.options["scarcity"] == (3 if "scarce" in name else 1)
    facts = artefacts.read_manifest(BUNDLE / name)["facts"]
    assert facts["training"]["steps"] >= 2_590_000
    for text in BUNDLE.rglob("*.json"):
        assert "/tmp" not in text.read_text() and '"/' not in text.read_text(), text  # no path of a machine
    assert sum(p.stat().st_size for p in BUNDLE.rglob("*") if p.is_file()) <= 24e6


def test_what_is_said_over_agents_is_what_the_tables_of_the_agents_give() -> None:
    """Of all twelve, and each counts once."""
    each = {(row["group"], row["agent"], row["target"]): float(row["value"])
            for row in table(STUDY / "over_agents" / "agents.csv") if row["measure"] == "beyond"}  # fmt: skip
    for row in table(STUDY / "over_agents" / "groups.csv"):
        if row["measure"] != "beyond":
            continue
        values = []
        for seed in SEEDS:
            name = f"{row['group']}_{seed}"
            own = next(r for r in table(STUDY / name / "targets.csv") if r["target"] == row["target"])
            values.append(float(own["everything_minus_all"]))
            assert values[-1] == pytest.approx(each[row["group"], f"probes_{name}", row["target"]])
        found = contrast([np.array(values)], [1]).estimate()
        assert found == pytest.approx((*(float(row[f"value{end}"]) for end in ("", "_low", "_high")), 3), abs=1e-9)


def test_a_bundled_agent_achieves_more_than_random_choices() -> None:
    """Eight lives each, to their 100th step: far fewer than the card's, and the difference is far larger."""
    agent, achieved = load_agent(BUNDLE / "masked_normal_1").eval(), []
    for at_random in (0.0, 1.0):
        env = make(agent.spec, 8, split="held_out")
        chooser = Chooser(Exploration(explore_share=1.0, random=at_random), 8, np.random.default_rng(0))
        most = np.zeros(8)
        for moment in itertools.islice(play(agent, env, chooser, seed=3, device=torch.device("cpu")), 100):
            truth = moment.next.truth
            most = np.maximum(most, np.sum([x for name, x in truth.items() if name.startswith("achieved_")], 0))
        env.close()
        achieved.append(most.mean())
    assert achieved[0] > achieved[1] + 1.5
