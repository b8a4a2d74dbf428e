"""train.py --begin_with: an agent that goes on from another one's weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from agents import train
from agents.load import load_agent
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from core import artefacts, config as cli
from core.contracts import EnvSpec, Field, UserError

SMALL = ("--game", "coinrun", "--distribution_mode", "easy", "--encoder", "strided", "--embedding_size", "8",
         "--hidden_size", "6", "--envs", "4", "--rollout_steps", "8", "--minibatches", "2", "--total_steps", "64",
         "--threads", "1", "--save_minutes", "0")  # fmt: skip


def trained(out: Path, *more: str) -> Path:
    train.main(cli.parse(train.TrainConfig, [*SMALL, *more, "--out", str(out)], train.STAGE))
    return out


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("begin") / "earlier")


def test_a_training_begins_with_the_weights_of_an_agent(earlier: Path, tmp_path: Path) -> None:
    """At a learning rate of 0 they stay what they were, in another game and with another loss too."""
    still = ("--begin_with", str(earlier), "--seed", "2", "--learning_rate", "0")
    before = load_agent(earlier).state_dict()
    for more in ((), ("--consistency", "0.1"), ("--game", "maze")):
        out = trained(tmp_path / "-".join(("still", *more)), *still, *more)
        after = load_agent(out).state_dict()
        assert all(torch.equal(before[k], after[k]) for k in before)
        assert artefacts.read_manifest(out)["inputs"]["begin_with"]["path"].endswith("earlier")
    moved = load_agent(trained(tmp_path / "moved", "--begin_with", str(earlier))).state_dict()
    assert any(not torch.equal(before[k], moved[k]) for k in before)


def write_other_agent(path: Path) -> Path:
    """An agent of the same sizes that plays another world with pictures of another size."""
    spec = EnvSpec(env_id="planted/dots", obs={"frames": Field(shape=(32, 32, 3), dtype="uint8")},
                   action_names=("left", "right"), slots=1)  # fmt: skip
    with artefacts.new_run(path, "train", {}) as run:
        save_agent(RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=6), spec), run.path)
    return path


def test_what_it_cannot_begin_with_is_refused(earlier: Path, tmp_path: Path) -> None:
    begin = ("--begin_with", str(earlier))
    with pytest.raises(UserError, match="was trained with --hidden_size 6, not 7: --begin_with takes an agent of the"):
        trained(tmp_path / "a", *begin, "--hidden_size", "7")
    semantic = ("--policy", "semantic", "--recurrence", "features", "--hidden_size", "8", "--minibatch_of", "steps",
                "--semantic_minibatch", "16")  # fmt: skip
    with pytest.raises(UserError, match="holds an agent of another kind"):
        trained(tmp_path / "b", *begin, *semantic)
    coded = trained(tmp_path.parent / f"{tmp_path.name}_coded", *semantic)
    with pytest.raises(UserError, match="is of another size than here, so --begin_with cannot take its weights"):
        trained(tmp_path / "d", "--begin_with", str(coded), *semantic, "--codes", "5")
    others = write_other_agent(tmp_path.parent / f"{tmp_path.name}_others")
    with pytest.raises(UserError, match="plays planted/dots, whose observations or actions are not those of procgen"):
        trained(tmp_path / "e", "--begin_with", str(others))
    with pytest.raises(UserError, match="no such run directory"):
        trained(tmp_path / "c", "--begin_with", str(tmp_path / "nothing"))
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="was begun with another begin_with; start another run"):
        trained(earlier, *begin, "--resume", "--total_steps", "128")


def test_a_resumed_training_began_with_the_same_weights_wherever_they_lie_now(earlier: Path, tmp_path: Path) -> None:
    """Its manifest names what it was begun with, not what lies in that place when it is finished."""
    source = tmp_path / "source"
    shutil.copytree(earlier, source)
    whole = trained(tmp_path / "whole", "--begin_with", str(source), "--total_steps", "128")
    out = trained(tmp_path / "out", "--begin_with", str(source))
    moved = source.rename(tmp_path / "moved")
    more = ("--resume", "--total_steps", "128")
    trained(source, "--seed", "3")
    with pytest.raises(UserError, match="was begun with another begin_with; start another run"):
        trained(out, "--begin_with", str(source), *more)
    with pytest.raises(UserError, match="was begun with another begin_with; start another run"):
        trained(out, *more)
    trained(out, "--begin_with", str(moved), *more)
    inputs = [artefacts.read_manifest(run)["inputs"]["begin_with"]["manifest_sha256"] for run in (out, whole)]
    assert inputs[0] == inputs[1]
    assert artefacts.read_manifest(out)["metrics"]["steps"]["value"] == 128
