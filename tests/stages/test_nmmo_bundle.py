"""The bundled policies of Neural MMO and the module that README offers as an example."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agents import nmmo_train
from agents.nmmo_evaluate import lives
from agents.nmmo_play import RandomPolicy, load_policies, policies_in
from agents.policies import load_module
from core import artefacts, config as cli
from core.config import ROOT
from envs.nmmo import NmmoEnv, held_out, options_of

BUNDLE = ROOT / "bundles" / "nmmo-demo" / "policies"
CPU = torch.device("cpu")


def test_what_is_bundled_is_whole_and_says_what_it_is() -> None:
    found = policies_in(BUNDLE)
    assert list(found) == ["forager", "hybrid", "start_kit", "takeru", "yaofeng"]
    for name, policy in load_policies(found, CPU).items():
        assert artefacts.verify(found[name]) == []
        facts = artefacts.read_manifest(found[name])["facts"]
        recurrence = {"yaofeng": "LSTM, 2 layers, 128", "takeru": "none"}.get(name, "LSTM, 1 layer, 128")
        assert facts["recurrence"] == policy.recurrence == recurrence
        assert policy.describe()["remembers"] == (name != "takeru")
        assert facts["training"]["steps"] >= 2_000_000
    for kept in ("eval_pve", "eval_pvp", "metrics_pve", "metrics_pvp"):
        assert artefacts.verify(BUNDLE / kept) == []
    assert (BUNDLE / "forager" / "policy_module.py").read_bytes() == (ROOT / "docs" / "forager.py").read_bytes()
    for text in BUNDLE.rglob("*.json"):
        assert "/tmp" not in text.read_text() and '"/' not in text.read_text(), text  # no path of a machine


def test_all_outlive_random_choices_in_the_stored_tables() -> None:
    result = artefacts.Result.load(BUNDLE / "metrics_pve")
    for row in result.tables["pairs"]:
        if row["against"] == "random" and row["measure"] == "length":
            assert row["low"] > 0 and row["q"] < 0.001


@pytest.mark.parametrize("name", ["forager", "hybrid", "start_kit", "takeru", "yaofeng"])
def test_bundled_policies_outlive_random_choices(name: str, tmp_path: Path) -> None:
    """A world on a held-out map: far fewer than the card's, and the difference is far larger than their spread."""
    policy = load_policies(policies_in(BUNDLE / name), CPU)[name]
    env = NmmoEnv(replace(options_of(policy.spec), **held_out(policy.spec.options)), 1, tmp_path)
    slots = np.zeros(env.spec.slots, np.int64)
    played = [lives([p], slots, env, 1, seed=5, device=CPU) for p in (policy, RandomPolicy(policy.spec))]
    length, ate = ([np.mean([life[k] for life in of]) for of in played] for k in ("length", "ate"))
    env.close()
    assert length[0] > length[1] and ate[0] > 1.5 * ate[1]


def test_a_module_of_one_s_own_trains_and_travels_with_its_weights(tmp_path: Path) -> None:
    argv = ["--preset", "debug", "-a", str(ROOT / "docs" / "forager.py"), "--threads", "1"]
    out = ["--maps", str(tmp_path / "maps"), "--out", str(tmp_path / "p")]
    nmmo_train.main(cli.parse(nmmo_train.NmmoTrainConfig, [*argv, *out], nmmo_train.STAGE))
    assert (tmp_path / "p" / "policy_module.py").read_bytes() == (ROOT / "docs" / "forager.py").read_bytes()
    about = json.loads((tmp_path / "p" / "policy.json").read_text())
    assert about["module"] == "forager" and about["source_sha256"] == load_module(ROOT / "docs" / "forager.py").sha256
    assert list(load_policies(policies_in(tmp_path / "p"), CPU)) == ["p"]
