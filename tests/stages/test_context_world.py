"""A world that sees what it showed, trained and recorded from by the scripts themselves."""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agents import record
from benchmarks.ablations import PARTS, words_of
from core import artefacts, config as cli
from core.contracts import UserError
from core.episodes import RolloutStore
from generative import record_samples, train
from generative.context import ContextWorld
from generative.load import load_simulator

SIZES = {"deterministic_size": 64, "hidden_size": 8, "groups": 64, "classes": 2, "depth": 2, "latent_size": 64}
SMALL = ["--preset", "debug", "--layout", "context", "--trunk_blocks", "1", "--threads", "1", "--video_every", "1"]
SMALL += [word for k, v in SIZES.items() for word in (f"--{k}", str(v))]


def train_config(pipeline: Path, out: Path, *more: str) -> train.GenTrainConfig:
    argv = [*SMALL, "--agent", f"{pipeline}/agent", "--rollouts", f"{pipeline}/rollouts", "--out", f"{out}", *more]
    return cli.parse(train.GenTrainConfig, argv, train.STAGE)


@pytest.fixture(scope="module")
def trained(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("context") / "simulator"
    train.main(train_config(pipeline, out, "--feedback", "1", "2", "--feedback_shares", "0.5", "0.5"))
    return out


def test_it_is_trained_and_read_again(trained: Path) -> None:
    assert artefacts.verify(trained) == []
    with open(trained / "curve.csv") as file:
        last = list(csv.DictReader(file))[-1]
    parts = ("image", "kl", "motion", "reward", "terminal", "inverse", "drawn")
    assert all(np.isfinite(float(last[f"train/{k}"])) for k in parts)
    assert isinstance(load_simulator(trained).world, ContextWorld)


def test_samples_start_from_what_is_known(pipeline: Path, trained: Path, tmp_path: Path) -> None:
    base = ["--preset", "debug", "--simulator", f"{trained}", "--threads", "1"]
    real, first = RolloutStore(pipeline / "rollouts"), {}
    for start in ("recorded", "inferred"):
        more = [] if start == "recorded" else ["--start", start]
        argv = [*base, "--rollouts", f"{pipeline}/rollouts", "--out", f"{tmp_path}/{start}", *more]
        record_samples.main(cli.parse(record_samples.RecordSamplesConfig, argv, record_samples.STAGE))
        store = RolloutStore(tmp_path / start)
        assert store.manifest["facts"]["start"] == start
        first[start] = store.episode(0)
        e, t = store.meta(0)["start"]
        shown, h = real.episode(e).obs["frames"][t + 2], real.episode(e).h[t + 2]
        assert np.array_equal(first[start].obs["frames"][0], shown) is (start == "recorded")
        assert np.allclose(first[start].h[0], h, atol=1e-4) is (start == "recorded")
    with pytest.raises(UserError, match="--start needs --rollouts"):
        argv = [*base, "--out", f"{tmp_path}/none", "--start", "recorded"]
        record_samples.main(cli.parse(record_samples.RecordSamplesConfig, argv, record_samples.STAGE))


def test_a_preset_that_wants_branches_says_so(pipeline: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no branches, of which --branch_share 0.3 is asked"):
        train.main(train_config(pipeline, tmp_path / "s", "--branch_share", "0.3"))
    assert not (tmp_path / "s").exists()


def test_branches_are_trained_on(pipeline: Path, tmp_path: Path) -> None:
    argv = ["--preset", "debug", "--agent", f"{pipeline}/agent", "--out", f"{tmp_path}/r", "--threads", "1"]
    record.main(cli.parse(record.RecordConfig, [*argv, "--branches", "3"], record.STAGE))
    config = train_config(pipeline, tmp_path / "s", "--rollouts", f"{tmp_path}/r", "--branch_share", "0.9")
    windows = train.branches_of(config)
    assert (windows.batch, windows.steps, len(windows.starts)) == (2 * 5 // 4, 5, 27)
    batch = train.to_batch(
        windows.store.read_windows(train.columns_of(windows.store), windows.starts, 7), 3, torch.device("cpu")
    )
    tried = torch.tensor([windows.store.meta(e)["action"] for e in range(27)])
    assert torch.equal(batch.action[:, 0], tried) and bool(batch.seen[:, 0].all())
    assert torch.equal(batch.obs["frames"][:9, 2], batch.obs["frames"][:1, 2].expand(9, -1, -1, -1))
    train.main(config)
    assert artefacts.verify(tmp_path / "s") == []
    with pytest.raises(UserError, match="so --initial_frames can be 3 at most, not 4"):
        train.branches_of(replace(config, model=replace(config.model, initial_frames=4)))


def test_outcomes_are_learned_once_more_and_what_that_changed_is_recorded(
    pipeline: Path, trained: Path, tmp_path: Path
) -> None:
    feedback = ["--feedback", "1", "2", "--feedback_shares", "0.5", "0.5"]
    more = ["--outcome_windows", "12", "--outcome_steps", "4", "--outcome_passes", "2", "--outcome_endings", "3"]
    train.main(train_config(pipeline, tmp_path / "s", *feedback, *more))
    assert artefacts.verify(tmp_path / "s") == []
    metrics = artefacts.read_manifest(tmp_path / "s")["metrics"]
    change = metrics["outcome_cost_change"]
    assert change["unit"] == "nats a transition" and len(change["interval"]) == 2
    assert metrics["outcome_cost_after"]["value"] <= metrics["outcome_cost_before"]["value"]
    one, other = (load_simulator(x).world.state_dict() for x in (trained, tmp_path / "s"))
    assert {k for k in one if not torch.equal(one[k], other[k])} <= {k for k in one if k.startswith("outcome_head")}


def test_a_finished_training_that_goes_on_learns_outcomes_from_the_best_weights_as_they_were_trained(
    pipeline: Path, tmp_path: Path
) -> None:
    """They were learned once more upon what was learned already, and stayed where they were asked for no longer."""
    more = ["--outcome_windows", "12", "--outcome_steps", "4", "--outcome_passes", "2", "--outcome_rate", "0.03"]
    heads, costs = [], []
    for again in ([], ["--resume"], ["--resume", "--outcome_windows", "0"], ["--resume"]):
        train.main(train_config(pipeline, tmp_path / "s", *more, *again))
        assert artefacts.verify(tmp_path / "s") == []
        weights = load_simulator(tmp_path / "s").world.state_dict()
        heads.append({k: x for k, x in weights.items() if k.startswith("outcome_head")})
        costs.append(artefacts.read_manifest(tmp_path / "s")["metrics"].get("outcome_cost_before"))
    learned, same, unlearned, learned_again = heads
    assert any(not torch.equal(x, unlearned[k]) for k, x in learned.items())
    assert all(torch.equal(x, same[k]) and torch.equal(x, learned_again[k]) for k, x in learned.items())
    assert costs[0] == costs[1] == costs[3] and costs[2] is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            ("--outcome_windows", "12", "--layout", "grid"),
            "--outcome_windows 12 is of --layout context, not of grid: where a preset has it, say --outcome_windows 0",
        ),
        (("--outcome_windows", "1"), "--outcome_windows must be at least 2"),
        (("--outcome_windows", "12", "--outcome_rate", "0"), "--outcome_rate must be above 0, not 0"),
    ],
)
def test_outcomes_that_cannot_be_learned_are_refused(
    pipeline: Path, tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        train.main(train_config(pipeline, tmp_path / "s", *more))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("part", PARTS)
def test_every_ablation_is_a_training_that_is_accepted(pipeline: Path, tmp_path: Path, part: str) -> None:
    args = argparse.Namespace(preset="context", agent=pipeline / "agent", rollouts=pipeline / "rollouts")
    flags = (*PARTS[part], "--branch_share", "0", "--steps", "4")  # of short episodes without branches
    config = cli.parse(train.GenTrainConfig, words_of(args, tmp_path / "s", 2, flags, 1), train.STAGE)
    store = RolloutStore(config.rollouts)
    train.check(config, store, store.manifest["facts"]["agent"], store.spec)


@pytest.mark.parametrize(
    ("words", "asked"), [(("--noise_std", "0.1"), "noise_std"), (("--agent_cap", "0"), "agent_cap")]
)
def test_what_another_layout_has_not_is_refused_there_beside_what_the_preset_leaves_out(
    pipeline: Path, tmp_path: Path, words: tuple[str, ...], asked: str
) -> None:
    grid = ("--layout", "grid", "--decisive_share", "0", *words)
    with pytest.raises(UserError, match=f"^--{asked} is of --layout context, not of grid"):
        train.main(train_config(pipeline, tmp_path / "s", *grid))
    assert not (tmp_path / "s").exists()


def test_the_trained_precision_does_not_change_what_is_loaded(trained: Path) -> None:
    """bfloat16 is of the training alone; a loaded world computes in float32."""
    world = load_simulator(trained).world
    z = torch.zeros(1, world.latent_size)
    assert world.start(z)[1].obs["frames"].dtype == torch.float32 and not world.precision.bf16


def test_without_further_endings_nothing_is_drawn_for_them(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that commands from before there were any have the digits they had."""

    def asked(self: train.Trainer, *_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(train.Trainer, "endings", asked)
    train.main(train_config(pipeline, tmp_path / "s", "--outcome_windows", "12", "--outcome_passes", "1"))
    with pytest.raises(AssertionError):
        more = ("--outcome_windows", "12", "--outcome_endings", "3")
        train.main(train_config(pipeline, tmp_path / "t", *more))


def test_a_simulator_goes_on_with_a_joint_outcome_and_not_back(pipeline: Path, trained: Path, tmp_path: Path) -> None:
    still = ["--begin_with", str(trained), "--learning_rate", "0", "--updates", "1"]
    train.main(train_config(pipeline, tmp_path / "joint", "--joint_outcome", *still))
    one, other = (load_simulator(x).world for x in (trained, tmp_path / "joint"))
    z = torch.zeros(2, one.latent_size)
    acted = torch.eye(15)[:2]
    was, now = (world.step(world.start(z)[0], acted)[1] for world in (one, other))
    for name in ("reward_B", "ending_B", "features_BD", "paid_B2"):
        torch.testing.assert_close(getattr(was, name), getattr(now, name))
    back = ["--begin_with", f"{tmp_path}/joint", "--updates", "1"]
    with pytest.raises(UserError, match="was trained with --joint_outcome True, not False"):
        train.main(train_config(pipeline, tmp_path / "back", *back))
