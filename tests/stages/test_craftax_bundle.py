"""The bundled agents of Craftax, and the numbers that their card and docs/craftax.md give."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.play import tensors
from agents.recurrent import load_agent
from core import artefacts
from core.config import ROOT
from envs.registry import make

BUNDLE = ROOT / "bundles" / "craftax-probe"
AGENTS = ("masked_normal_1", "masked_scarce_1", "visible_normal_1", "visible_scarce_1")
NEEDS = ("row", "col", "health", "food", "drink", "energy")


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", AGENTS)
def test_what_is_bundled_is_whole(name: str) -> None:
    assert artefacts.verify(BUNDLE / name) == []
    agent = load_agent(BUNDLE / name)
    spec = agent.spec
    assert ("intrinsics" in spec.obs) == name.startswith("visible")
    assert spec.options["scarcity"] == (3 if "scarce" in name else 1)
    facts = artefacts.read_manifest(BUNDLE / name)["facts"]
    assert facts["training"]["steps"] >= 2_590_000
    for text in BUNDLE.rglob("*.json"):
        assert "/tmp" not in text.read_text() and '"/' not in text.read_text(), text  # no path of a machine
    assert sum(p.stat().st_size for p in BUNDLE.rglob("*") if p.is_file()) <= 24e6


def test_numbers_that_are_told_are_the_stored_ones() -> None:
    told = (ROOT / "docs" / "craftax.md").read_text()
    for name in AGENTS:
        for row in table(BUNDLE / "study" / name / "targets.csv"):
            if row["target"] in NEEDS:
                value, low, high = (float(row[f"everything_minus_all{end}"]) for end in ("", "_low", "_high"))
                shown = f"{value:+.2f} [{low:+.2f}, {high:+.2f}]".replace("0.", ".")
                assert shown in told, (name, row["target"], shown)


def test_a_bundled_agent_achieves_more_than_random_choices() -> None:
    """Eight lives each, to their 100th step: far fewer than the card's, and the difference is far larger."""
    agent = load_agent(BUNDLE / "masked_normal_1").eval()
    rng, generator, achieved = np.random.default_rng(0), torch.Generator().manual_seed(0), []
    for acts in (True, False):
        env = make(agent.spec, 8, split="held_out")
        step, state = env.reset(3), agent.initial(8)
        best = np.zeros(8)
        for _ in range(100):
            with torch.no_grad():
                seen = agent.encode(tensors(step.obs, torch.device("cpu")))
                state = agent.advance(seen, state, torch.from_numpy(step.is_first))
                logits, _ = agent.heads(seen, state)
            chosen = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0].numpy()
            step = env.step(chosen if acts else rng.integers(env.spec.n_actions, size=8))
            now = np.sum([x for name, x in step.truth.items() if name.startswith("achieved_")], 0)
            best = np.maximum(best, now)
        env.close()
        achieved.append(best.mean())
    assert achieved[0] > achieved[1] + 1.5
