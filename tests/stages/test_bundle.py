"""What ships: the same agent, the simulator in half precision, and nothing of the machine it came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agents.recurrent import load_agent
from core import artefacts, config as cli
from core.directions import fingerprint
from generative import bundle
from generative.simulator import as_module, load_simulator

SHIPPED = Path(__file__).resolve().parents[2] / "bundles" / "coinrun-demo"


def test_a_bundle_holds_the_same_agent_and_a_rounded_simulator(pipeline: Path, tmp_path: Path) -> None:
    argv = ["--agent", f"{pipeline}/agent", "--simulator", f"{pipeline}/simulator", "--out", f"{tmp_path}/b"]
    bundle.main(cli.parse(bundle.BundleConfig, argv, bundle.STAGE))
    assert artefacts.verify(tmp_path / "b" / "simulator") == []
    whole, small = load_simulator(pipeline / "simulator"), load_simulator(tmp_path / "b" / "simulator")
    assert fingerprint(whole.agent) == fingerprint(small.agent) == fingerprint(load_agent(tmp_path / "b" / "agent"))
    weights = as_module(small).state_dict()
    for name, tensor in as_module(whole).state_dict().items():
        kept = weights[name]
        assert kept.dtype == torch.float32
        assert torch.equal(kept, tensor if name.startswith("agent.") else tensor.half().float()), name
    training = json.loads((tmp_path / "b" / "agent" / artefacts.MANIFEST).read_text())["facts"]["training"]
    assert training["metrics"]["steps"]["value"] == 1024
    assert str(pipeline) not in json.dumps(training)


@pytest.mark.parametrize("part", ["agent", "simulator"])
def test_the_shipped_bundle_is_whole(part: str) -> None:
    assert artefacts.verify(SHIPPED / part) == []


def test_the_shipped_simulator_is_around_the_shipped_agent_and_within_its_size() -> None:
    simulator, agent = load_simulator(SHIPPED / "simulator"), load_agent(SHIPPED / "agent")
    assert fingerprint(simulator.agent) == fingerprint(agent)
    assert sum(p.stat().st_size for p in SHIPPED.rglob("*") if p.is_file()) <= 25e6
