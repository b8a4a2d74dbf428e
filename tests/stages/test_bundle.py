"""What ships: the same agent, the simulator in half precision, and nothing of the machine it came from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.recurrent import load_agent
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import fingerprint
from envs.registry import make
from generative import bundle
from generative.simulator import as_module, load_simulator
from generative.starts import begin_at

BUNDLES = Path(__file__).resolve().parents[2] / "bundles"
SHIPPED = [BUNDLES / name for name in ("coinrun-robust", "coinrun-context", "fruitbot")]


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


def test_a_simulator_joins_an_agent_that_is_bundled_already(
    pipeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured of the bundled agent still chains to it."""
    argv = ["--agent", f"{pipeline}/agent", "--out", f"{tmp_path}/b"]
    bundle.main(cli.parse(bundle.BundleConfig, argv, bundle.STAGE))
    there = tmp_path / "b" / "agent"
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["agent"] and artefacts.verify(there) == []
    assert not list(there.glob("checkpoint_*")) and list((pipeline / "agent").glob("checkpoint_*"))
    before = (there / artefacts.MANIFEST).read_bytes()
    bundle.main(cli.parse(bundle.BundleConfig, [*argv, "--simulator", f"{pipeline}/simulator"], bundle.STAGE))
    assert (there / artefacts.MANIFEST).read_bytes() == before and "left as it is" in capsys.readouterr().out
    assert artefacts.verify(tmp_path / "b" / "simulator") == []
    # A bundle of a bundle says how the models were trained, not how they were copied.
    argv = ["--agent", f"{there}", "--simulator", f"{tmp_path}/b/simulator", "--out", f"{tmp_path}/again"]
    bundle.main(cli.parse(bundle.BundleConfig, argv, bundle.STAGE))
    for name in ("agent", "simulator"):
        said = [artefacts.read_manifest(tmp_path / d / name)["facts"]["training"] for d in ("b", "again")]
        assert said[0] == said[1] and said[0]["metrics"]


def test_a_bundled_simulator_is_read_with_the_agent_beside_it(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--agent", f"{pipeline}/agent", "--simulator", f"{pipeline}/simulator", "--out", f"{tmp_path}/b"]
    bundle.main(cli.parse(bundle.BundleConfig, argv, bundle.STAGE))
    there = tmp_path / "b" / "simulator"
    assert not [k for k in artefacts.load_tensors(there, artefacts.WEIGHTS) if k.startswith("agent.")]
    with monkeypatch.context() as patch:
        patch.chdir(there)
        assert fingerprint(load_simulator(Path()).agent) == fingerprint(load_agent(pipeline / "agent"))
    # The same again in its place, and from its own files; the agent alone would leave the simulator behind.
    again = ["--agent", f"{there.parent}/agent", "--simulator", f"{there}", "--out", f"{tmp_path}/b", "--overwrite"]
    for argv_ in ([*argv, "--overwrite"], again):
        bundle.main(cli.parse(bundle.BundleConfig, argv_, bundle.STAGE))
        assert artefacts.verify(there) == [] and load_simulator(there)
    with pytest.raises(UserError, match="b holds a simulator, which is read with the agent beside it; give"):
        alone = ["--agent", f"{pipeline}/agent", "--out", f"{tmp_path}/b", "--overwrite"]
        bundle.main(cli.parse(bundle.BundleConfig, alone, bundle.STAGE))
    shutil.copytree(there, tmp_path / "alone" / "simulator")
    with pytest.raises(UserError, match="is a part of a bundle whose agent is not in .*; copy the whole bundle"):
        load_simulator(tmp_path / "alone" / "simulator")
    rounded = ["--agent", f"{pipeline}/agent", "--half_agent", "--out", f"{tmp_path}/rounded"]
    bundle.main(cli.parse(bundle.BundleConfig, rounded, bundle.STAGE))
    shutil.copytree(tmp_path / "rounded" / "agent", tmp_path / "alone" / "agent")
    with pytest.raises(UserError, match="is not the agent that this simulator was trained around; copy it again"):
        load_simulator(tmp_path / "alone" / "simulator")


def test_an_agent_may_be_rounded_and_is_then_another_one(pipeline: Path, tmp_path: Path) -> None:
    argv = ["--agent", f"{pipeline}/agent", "--half_agent"]
    bundle.main(cli.parse(bundle.BundleConfig, [*argv, "--out", f"{tmp_path}/b"], bundle.STAGE))
    there = tmp_path / "b" / "agent"
    whole, small = load_agent(pipeline / "agent"), load_agent(there)
    assert fingerprint(small) != fingerprint(whole)
    assert artefacts.read_manifest(there)["facts"]["agent"] == fingerprint(small)
    for name, tensor in small.state_dict().items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, whole.state_dict()[name].half().float())
    assert (there / artefacts.WEIGHTS).stat().st_size < 0.6 * (pipeline / "agent" / artefacts.WEIGHTS).stat().st_size
    again = ["--agent", f"{there}", "--out", f"{tmp_path}/again"]  # stays this agent, and as small
    bundle.main(cli.parse(bundle.BundleConfig, again, bundle.STAGE))
    assert (tmp_path / "again" / "agent" / artefacts.WEIGHTS).read_bytes() == (there / artefacts.WEIGHTS).read_bytes()
    with pytest.raises(UserError, match="--half_agent: a simulator is around the agent as it was; bundle the rounded"):
        more = ["--simulator", f"{pipeline}/simulator", "--out", f"{tmp_path}/c"]
        bundle.main(cli.parse(bundle.BundleConfig, [*argv, *more], bundle.STAGE))
    with pytest.raises(UserError, match="is where the bundle would be written; give another --out"):
        itself = ["--agent", f"{there}", "--half_agent", "--overwrite", "--out", f"{tmp_path}/b"]
        bundle.main(cli.parse(bundle.BundleConfig, itself, bundle.STAGE))
    assert fingerprint(load_agent(there)) == fingerprint(small)


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_bundle_is_whole_around_its_agent_and_within_its_size(shipped: Path) -> None:
    assert artefacts.verify(shipped / "agent") == [] == artefacts.verify(shipped / "simulator")
    simulator, agent = load_simulator(shipped / "simulator"), load_agent(shipped / "agent")
    assert fingerprint(simulator.agent) == fingerprint(agent)
    assert sum(p.stat().st_size for p in shipped.rglob("*") if p.is_file()) <= 25e6


@pytest.mark.parametrize("shipped", ["coinrun-robust", "fruitbot"])
def test_a_shipped_context_world_foretells_a_step_of_the_real_game_better_than_a_held_frame(shipped: str) -> None:
    simulator = load_simulator(BUNDLES / shipped / "simulator")
    world, rng = simulator.world, np.random.default_rng(0)
    env = make(simulator.agent.spec, 16, threads=1, split="held_out")
    shown = [env.reset(0).obs["frames"]]
    for _ in range(8):  # by random actions, as in half of the slots that it was trained on
        action = rng.integers(9, size=16)
        step = env.step(action)
        shown.append(step.obs["frames"])
    env.close()
    goes_on = ~step.is_first
    window = torch.from_numpy(np.stack(shown[-4:-1], 1)[goes_on])
    with torch.no_grad():
        state, begun = begin_at(world, {"frames": window})
        foretold = world.step(state, torch.eye(15)[action[goes_on]])[1].obs["frames"]
    real = torch.from_numpy(shown[-1][goes_on]) / 255
    error = [float((x - real).square().mean()) for x in (foretold, begun.obs["frames"])]
    assert goes_on.sum() >= 8 and error[0] < 0.5 * error[1]


ROBUST = BUNDLES / "coinrun-robust"


def test_the_robust_agent_is_whole_small_and_what_its_card_says() -> None:
    assert artefacts.verify(ROBUST / "evaluation") == []  # and the agent that it is of
    assert artefacts.read_manifest(ROBUST / "agent")["facts"]["training"]["metrics"]["steps"]["value"] == 3_997_696
    assert all(torch.equal(w, w.half().float()) for w in load_agent(ROBUST / "agent").state_dict().values())
    _no_path_of_a_machine(ROBUST)
    card, page = (ROBUST / "README.md").read_text(), (BUNDLES.parent / "docs" / "simulator.md").read_text()
    stored = artefacts.Result.load(ROBUST / "evaluation").scalars
    low, high = stored["return_mean"]["interval"]
    said = f"{stored['return_mean']['value']:.2f} [{low:.2f}, {high:.2f}]"
    assert said in card and said in page and stored["return_mean"]["n"] == 1024
    _same_choices_are_told(card, stored)
    other = artefacts.Result.load(BUNDLES / "coinrun-context" / "evaluation").scalars  # in the column beside it
    assert _told(other["return_mean"]["value"], *other["return_mean"]["interval"]) in card
    _same_choices_are_told(card, other)


def _told(value: float, low: float, high: float, digits: int = 2) -> str:
    return "{} [{}, {}]".format(*(f"{x:.{digits}f}".removeprefix("0") for x in (value, low, high)))


def _no_path_of_a_machine(bundle: Path) -> None:
    for text in bundle.rglob("*.json"):
        assert '"/' not in text.read_text(), text


def _same_choices_are_told(card: str, stored: Mapping[str, Any]) -> None:
    for way in ("shift_horizontal", "shift_vertical", "blur"):
        same = stored[f"same_choice_{way}"]
        assert _told(same["value"], *same["interval"]) in card, way


FRUITBOT = BUNDLES / "fruitbot"


def test_the_fruitbot_agent_is_whole_and_what_its_card_says() -> None:
    assert artefacts.verify(FRUITBOT / "evaluation") == []
    _no_path_of_a_machine(FRUITBOT)
    card, stored = (FRUITBOT / "README.md").read_text(), artefacts.Result.load(FRUITBOT / "evaluation").scalars
    mean = stored["return_mean"]
    assert _told(mean["value"], *mean["interval"], 1) in card and f"{mean['n']} episodes" in card
    _same_choices_are_told(card, stored)
