"""The scripts chained from a clean directory: what each stage writes, the next one reads."""

from __future__ import annotations

import csv
import itertools
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from agents import evaluate, record, train as train_agent, trainer
from agents.consistency import alter
from agents.play import Chooser, Exploration, Moment, play
from agents.recurrent import load_agent
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import RolloutStore
from core.roll import act
from core.training import STATE, load_state
from envs.procgen import HELD_OUT_LEVEL
from envs.registry import make
from generative import courses, record_samples, train as train_gen
from generative.simulator import load_simulator

ROOT = Path(__file__).resolve().parents[2]
DEBUG = ["--preset", "debug", "--threads", "1"]


def test_every_directory_verifies_and_the_chain_reaches_the_agent(pipeline: Path) -> None:
    assert artefacts.verify(pipeline / "samples") == []
    stages = [stage for _, stage, _ in artefacts.chain(pipeline / "samples")]
    assert sorted(stages) == ["record", "record_samples", "train", "train_gen_model"]


def test_a_flipped_byte_anywhere_in_the_chain_is_found(pipeline: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pipeline, copy)
    weights = copy / "agent" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)
    problems = artefacts.verify(copy / "samples")
    assert len(problems) == 1 and "model.safetensors" in problems[0]


def test_recorded_alignment(pipeline: Path) -> None:
    """h[t] is the agent's state after obs[t]; it gives logits[t], value[t]; the agent rebuilt from disk
    gives the same numbers."""
    agent = load_agent(pipeline / "agent")
    store = RolloutStore(pipeline / "rollouts")
    assert store.manifest["facts"]["agent"] == fingerprint(agent)
    episode = store.episode(0)
    assert not episode.final_known or episode.truncated  # Procgen hides the frame after an ending
    assert episode.state is None  # this agent's state is h
    state = agent.initial(1)
    for t in range(min(20, episode.steps)):
        obs = {"frames": torch.from_numpy(episode.obs["frames"][t : t + 1])}
        acted = act(agent, obs, state, torch.tensor([t == 0]), torch.tensor([t]))
        state = acted.state
        np.testing.assert_allclose(acted.h_BH[0], episode.h[t], atol=1e-5)
        np.testing.assert_allclose(acted.logits_BA[0], episode.logits[t], atol=1e-5)
        np.testing.assert_allclose(acted.value_B[0], episode.value[t], atol=1e-5)


def test_samples_are_what_the_simulator_says(pipeline: Path) -> None:
    simulator = load_simulator(pipeline / "simulator")
    store = RolloutStore(pipeline / "samples")
    assert store.manifest["facts"]["source"] == "simulated"
    z = torch.from_numpy(store.latents())
    out = simulator.rollout(z[:2], 12)
    for b in range(2):
        episode = store.episode(b)
        rows = len(episode.h)
        np.testing.assert_allclose(out.h[b, :rows], episode.h, atol=1e-4)
        np.testing.assert_allclose(out.d[b, :rows], episode.world["d"], atol=1e-4)
        assert np.array_equal(out.action[b, : episode.steps], episode.action)


def test_a_recording_says_where_it_holds_more_episodes_than_asked(
    pipeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*DEBUG, "--agent", f"{pipeline}/agent", "--out", f"{tmp_path}/a", "--episodes", "3", "--slots", "2"]
    record.main(cli.parse(record.RecordConfig, argv, record.STAGE))
    assert "note: 4 episodes are recorded for --episodes 3: as many of each of the 2 slots" in capsys.readouterr().err


def test_recording_is_determined_by_its_seed(pipeline: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        argv = [*DEBUG, "--agent", f"{pipeline}/agent", "--out", f"{tmp_path}/{name}", "--episodes", "2"]
        record.main(cli.parse(record.RecordConfig, [*argv, "--slots", "2", "--seed", seed], record.STAGE))
    a, b, c = (RolloutStore(tmp_path / n).pooled("action", "h")[0] for n in "abc")
    assert np.array_equal(a["action"], b["action"]) and np.array_equal(a["h"], b["h"])
    assert a["h"].shape != c["h"].shape or not np.array_equal(a["h"], c["h"])


class Killed(Exception):
    """Stands for kill -9 at a chosen moment."""


def test_a_killed_agent_training_resumes_to_the_same_weights(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [*DEBUG, "--out", f"{tmp_path}/agent", "--save_minutes", "0"]
    real, calls = trainer.update, []

    def dies_later(*args: object) -> dict[str, float]:
        if len(calls) == 2:
            raise Killed
        calls.append(1)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer, "update", dies_later)
    with pytest.raises(Killed):
        train_agent.main(cli.parse(train_agent.TrainConfig, argv, train_agent.STAGE))
    with pytest.raises(UserError, match="half-written"):
        load_agent(tmp_path / "agent")
    monkeypatch.setattr(trainer, "update", real)
    train_agent.main(cli.parse(train_agent.TrainConfig, [*argv, "--resume"], train_agent.STAGE))
    whole, resumed = load_agent(pipeline / "agent"), load_agent(tmp_path / "agent")
    assert fingerprint(whole) == fingerprint(resumed)


def test_an_agents_training_stops_after_its_time_and_goes_on_to_the_same_agent(
    pipeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*DEBUG, "--out", f"{tmp_path}/agent", "--stop_after", "0.001s"]
    for steps in (256, 512, 768):
        more = [] if steps == 256 else ["--resume"]
        train_agent.main(cli.parse(train_agent.TrainConfig, [*argv, *more], train_agent.STAGE))
        assert f"time is up: not finished, saved after {steps} of 1,024 steps" in capsys.readouterr().err
        assert not (tmp_path / "agent" / artefacts.MANIFEST).exists()
    train_agent.main(cli.parse(train_agent.TrainConfig, [*argv, "--resume"], train_agent.STAGE))
    assert artefacts.verify(tmp_path / "agent") == []
    whole = fingerprint(load_agent(pipeline / "agent"))
    assert fingerprint(load_agent(tmp_path / "agent")) == whole
    assert artefacts.read_manifest(tmp_path / "agent")["facts"]["agent"] == whole


def test_a_signal_to_an_agents_training_saves_its_state(tmp_path: Path) -> None:
    """SIGTERM; test_training.py sends both kinds, which core.training meets for all trainings."""
    number, code = signal.SIGTERM, 143
    words = [*DEBUG, "--out", f"{tmp_path}/agent", "--total_steps", "10000000", "--save_minutes", "0"]
    with subprocess.Popen([sys.executable, "train.py", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "agent" / STATE).exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        said = process.communicate()[1].splitlines()
    assert process.returncode == code, said
    step = load_state(tmp_path / "agent" / STATE)["step"]
    assert f"{number.name}: not finished, saved after {step:,} of 9,999,872 steps; go on with: python" in said[-1]
    assert said[-1].endswith(shlex.join(["train.py", *words, "--resume"]))
    assert not (tmp_path / "agent" / artefacts.MANIFEST).exists()


def test_a_training_with_augmented_frames_resumes_to_the_same_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The augmentation's draws go on where they stopped; the curve shows what the term is."""
    words = ["--encoder", "strided_blur", "--consistency", "0.1", "--max_blur", "1", "--save_minutes", "0", "--bf16"]

    def config(out: str, *more: str) -> train_agent.TrainConfig:
        argv = [*DEBUG, *words, "--out", f"{tmp_path}/{out}", *more]
        return cli.parse(train_agent.TrainConfig, argv, train_agent.STAGE)

    def curve(out: str) -> list[dict[str, str]]:
        with open(tmp_path / out / "curve.csv", newline="") as file:
            return [{k: v for k, v in row.items() if k != "wall_s"} for row in csv.DictReader(file)]

    real, calls = trainer.update, []

    def dies_later(*args: object) -> dict[str, float]:
        if len(calls) == 2:
            raise Killed
        calls.append(1)
        return real(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "update", dies_later)
        with pytest.raises(Killed):
            train_agent.main(config("agent"))
    train_agent.main(config("agent", "--resume"))
    train_agent.main(config("whole"))
    assert curve("agent") == curve("whole")
    assert len(curve("agent")) == 4
    assert all(float(row["consistency_kl"]) > 0 and 0 <= float(row["same_choice"]) <= 1 for row in curve("whole"))
    whole, resumed = load_agent(tmp_path / "whole"), load_agent(tmp_path / "agent")
    assert whole.config.encoder == "strided_blur" and fingerprint(whole) == fingerprint(resumed)


def test_without_a_weight_the_augmentation_changes_nothing(pipeline: Path, tmp_path: Path) -> None:
    argv = [*DEBUG, "--max_shift", "2", "--max_blur", "1", "--out", f"{tmp_path}/agent"]
    train_agent.main(cli.parse(train_agent.TrainConfig, argv, train_agent.STAGE))
    assert fingerprint(load_agent(tmp_path / "agent")) == fingerprint(load_agent(pipeline / "agent"))
    with pytest.raises(UserError, match="--max_blur at most 1"):
        argv = [*DEBUG, "--max_blur", "2", "--out", f"{tmp_path}/other"]
        train_agent.main(cli.parse(train_agent.TrainConfig, argv, train_agent.STAGE))
    assert not (tmp_path / "other").exists()


def test_a_killed_simulator_training_resumes_to_the_same_curve(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ["--agent", f"{pipeline}/agent", "--rollouts", f"{pipeline}/rollouts"]
    argv = [*DEBUG, *models, "--out", f"{tmp_path}/simulator", "--save_minutes", "0"]
    real, calls = courses.loss_of, []

    def dies_later(*args: object) -> object:
        if len(calls) == 4:
            raise Killed
        calls.append(1)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(courses, "loss_of", dies_later)
    with pytest.raises(Killed):
        train_gen.main(cli.parse(train_gen.GenTrainConfig, argv, train_gen.STAGE))
    monkeypatch.setattr(courses, "loss_of", real)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="learned rewards in units of 1, where this"):
        patch.setattr(train_gen, "unit_of_rewards", lambda *_: 900.0)
        train_gen.main(cli.parse(train_gen.GenTrainConfig, [*argv, "--resume"], train_gen.STAGE))
    train_gen.main(cli.parse(train_gen.GenTrainConfig, [*argv, "--resume"], train_gen.STAGE))
    whole, resumed = load_simulator(pipeline / "simulator"), load_simulator(tmp_path / "simulator")
    assert fingerprint(whole) == fingerprint(resumed)
    curves = []
    for root in (pipeline, tmp_path):
        with open(root / "simulator" / "curve.csv", newline="") as file:
            timed = ("wall_s", "frames_per_s", "data_share")
            curves.append([{k: v for k, v in row.items() if k not in timed} for row in csv.DictReader(file)])
    assert curves[0] == curves[1]


def test_a_nan_loss_stops_the_simulator_and_says_where(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ["--agent", f"{pipeline}/agent", "--rollouts", f"{pipeline}/rollouts"]
    argv = [*DEBUG, *models, "--out", f"{tmp_path}/simulator"]
    real, calls = courses.loss_of, []

    def breaks(*args: object) -> object:
        calls.extend([1] * torch.is_grad_enabled())  # not the validations
        loss, parts = real(*args)  # type: ignore[arg-type]
        return (loss * float("nan") if len(calls) == 5 else loss), parts

    monkeypatch.setattr(courses, "loss_of", breaks)
    with pytest.raises(UserError, match="loss is nan.*at update 4"):
        train_gen.main(cli.parse(train_gen.GenTrainConfig, argv, train_gen.STAGE))
    assert (tmp_path / "simulator" / "model.safetensors").exists()  # validated at update 3
    assert not (tmp_path / "simulator" / artefacts.MANIFEST).exists()


def test_resuming_with_another_shape_or_agent_is_refused_and_harms_nothing(pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline / "agent", tmp_path / "agent")
    argv = [*DEBUG, "--out", f"{tmp_path}/agent", "--resume"]
    for flag, said in (
        (["--seed", "5"], "seed was 1"),
        (["--hidden_size", "8"], "net.hidden_size was 16 and is now 8"),
        (["--learning_rate", "0.1"], r"ppo.learning_rate was 0.0005 and is now 0.1; start another run"),
        (["--consistency", "1"], "drac.consistency was 0.0 and is now 1.0"),
        (["--overwrite"], "choose one"),
    ):
        with pytest.raises(UserError, match=said):
            train_agent.main(cli.parse(train_agent.TrainConfig, [*argv, *flag], train_agent.STAGE))
    assert artefacts.verify(tmp_path / "agent") == []
    state = tmp_path / "agent" / "training_state" / "state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(UserError, match="broken training state"):
        train_agent.main(cli.parse(train_agent.TrainConfig, argv, train_agent.STAGE))


def test_a_simulators_training_goes_on_as_it_was_begun(pipeline: Path, tmp_path: Path) -> None:
    """Its manifest says of all updates what --resume was given; how it is measured and kept may change."""
    models = ["--agent", f"{pipeline}/agent", "--rollouts", f"{pipeline}/rollouts"]
    argv = [*DEBUG, *models, "--out", f"{tmp_path}/s"]
    train_gen.main(cli.parse(train_gen.GenTrainConfig, [*argv, "--stop_after", "0.001s"], train_gen.STAGE))
    before = {p.name: p.read_bytes() for p in (tmp_path / "s").iterdir() if p.is_file()}
    for flags, said in (
        (["--learning_rate", "0.1"], "optim.learning_rate was .* and is now 0.1; start another run"),
        (["--steps", "9"], "optim.steps was .* and is now 9"),
        (["--reward_weight", "3"], "loss.reward_weight was 1.0 and is now 3.0"),
        (["--average", "0.5"], "optim.average was 0.0 and is now 0.5"),
        (["--validation_windows", "3"], "validation_windows was .* and is now 3"),
    ):
        with pytest.raises(UserError, match=f"^--resume: {said}"):
            train_gen.main(cli.parse(train_gen.GenTrainConfig, [*argv, "--resume", *flags], train_gen.STAGE))
    assert {p.name: p.read_bytes() for p in (tmp_path / "s").iterdir() if p.is_file()} == before
    more = ["--validate_every", "2", "--save_minutes", "9", "--preload", "--updates", "7", "--video_every", "0"]
    train_gen.main(cli.parse(train_gen.GenTrainConfig, [*argv, "--resume", *more], train_gen.STAGE))
    assert artefacts.read_manifest(tmp_path / "s")["metrics"]["updates"]["value"] == 7


def test_a_mistake_with_overwrite_brings_the_old_run_back(pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline, tmp_path / "p")
    root = tmp_path / "p"
    argv = [*DEBUG, "--agent", f"{root}/agent", "--out", f"{root}/rollouts", "--overwrite"]
    for wrong in (["--seed", "-1"], ["--temperature", "0"], ["--num_levels", "-5"]):
        with pytest.raises(UserError):
            record.main(cli.parse(record.RecordConfig, [*argv, *wrong], record.STAGE))
    assert artefacts.verify(root / "samples") == []


def test_rollouts_of_another_agent_are_refused(pipeline: Path, tmp_path: Path) -> None:
    train_agent.main(
        cli.parse(train_agent.TrainConfig, [*DEBUG, "--seed", "9", "--out", f"{tmp_path}/other"], train_agent.STAGE)
    )
    models = ["--agent", f"{tmp_path}/other", "--rollouts", f"{pipeline}/rollouts"]
    with pytest.raises(UserError, match="was recorded with agent"):
        train_gen.main(cli.parse(train_gen.GenTrainConfig, [*DEBUG, *models, "--out", f"{tmp_path}/s"], "x"))
    assert not (tmp_path / "s").exists()


def test_a_simulator_needs_real_rollouts(pipeline: Path, tmp_path: Path) -> None:
    models = ["--agent", f"{pipeline}/agent", "--rollouts", f"{pipeline}/samples"]
    with pytest.raises(UserError, match="real rollouts"):
        train_gen.main(cli.parse(train_gen.GenTrainConfig, [*DEBUG, *models, "--out", f"{tmp_path}/s"], "x"))


def test_held_out_levels_are_none_of_the_trainings(pipeline: Path, tmp_path: Path) -> None:
    words = ["--agent", f"{pipeline}/agent", "--split", "held_out", "--start_level", "5", "--num_levels", "3"]
    with pytest.raises(UserError, match=r"levels 5 to 7 overlap the training levels 0 to \d+; choose a --start_level"):
        record.main(cli.parse(record.RecordConfig, [*words, "--out", f"{tmp_path}/r"], record.STAGE))
    words[words.index("--num_levels") + 1] = "0"
    with pytest.raises(UserError, match=r"--num_levels 0 is all levels, the training levels 0 to \d+ among them"):
        record.main(cli.parse(record.RecordConfig, [*words, "--out", f"{tmp_path}/r"], record.STAGE))
    assert not (tmp_path / "r").exists()


def test_evaluation_is_on_whole_held_out_episodes(pipeline: Path, tmp_path: Path) -> None:
    common = ["--agent", f"{pipeline}/agent", "--episodes", "4", "--threads", "1"]  # of 64 slots 4 play
    with pytest.raises(UserError, match=r"overlap the training levels 0 to \d+; choose a --start_level from \d+ on"):
        evaluate.main(
            cli.parse(evaluate.EvaluateConfig, [*common, "--start_level", "10", "--out", f"{tmp_path}/e"], "x")
        )
    evaluate.main(cli.parse(evaluate.EvaluateConfig, [*common, "--out", f"{tmp_path}/e"], evaluate.STAGE))
    result = artefacts.Result.load(tmp_path / "e")
    assert result.scalars["return_mean"]["n"] == 4
    assert result.scalars["return_mean"]["value"] == pytest.approx(result.arrays["returns"].mean())
    length = result.scalars["length_mean"]
    low, high = length["interval"]
    assert length["n"] == 4 and low < length["value"] < high
    assert length["value"] == pytest.approx(result.arrays["lengths"].mean())


def test_robustness_is_the_share_of_states_in_which_the_choice_stays(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--agent", f"{pipeline}/agent", "--slots", "4", "--episodes", "4", "--threads", "1", "--robustness"]
    evaluate.main(cli.parse(evaluate.EvaluateConfig, [*argv, "--out", f"{tmp_path}/e"], evaluate.STAGE))
    result = artefacts.Result.load(tmp_path / "e")
    of_N = result.arrays["same_choice_episode"]
    assert len(np.unique(of_N)) <= 4 and len(of_N) >= result.arrays["lengths"].sum() // evaluate.STATES_EVERY - 4
    for name, steps in (("shift_horizontal", 2), ("shift_vertical", 2), ("blur", 1)):
        same_N, said = result.arrays[f"same_choice_{name}"], result.scalars[f"same_choice_{name}"]
        assert set(np.round(same_N * steps, 9)) <= set(range(steps + 1))
        assert said["value"] == pytest.approx(same_N.mean()) and said["n"] == len(np.unique(of_N))
        assert said["interval"][0] <= said["value"] <= said["interval"][1]
    # The frame alone is another, seen from the recorded state; unaltered, the choice stays.
    agent = load_agent(pipeline / "agent")
    env = make(agent.spec, 4, start_level=HELD_OUT_LEVEL, num_levels=1000)
    chooser = Chooser(Exploration(), 4, np.random.default_rng(0))
    device = torch.device("cpu")

    def moments() -> list[Moment]:
        return list(itertools.islice(play(agent, env, chooser, seed=0, device=device), 12))

    # Hardly trained, it always takes one action: a policy about its mean state chooses.
    agent.policy.weight.normal_(generator=torch.Generator().manual_seed(0))
    mean_H = torch.from_numpy(np.concatenate([m.h_BH for m in moments()])).mean(0)
    agent.policy.bias.copy_(-agent.policy.weight @ mean_H)
    rows = np.array([0, 2, 3])
    monkeypatch.setattr(evaluate, "ALTERATIONS", {"none": ({},), "moved": ({"down": 20}, {})})
    stays = []
    for before, now in itertools.pairwise(moments()):
        found = evaluate.same_choice(agent, now, before.state, rows, device)
        assert (found["none"] == 1).all()
        seen = agent.encode({"frames": alter(torch.from_numpy(now.obs["frames"]), 20)})
        h = agent.advance(seen, torch.from_numpy(before.h_BH), torch.from_numpy(now.is_first_B))
        same = (agent.heads(seen, h)[0].numpy().argmax(-1) == now.logits_BA.argmax(-1))[rows]
        np.testing.assert_array_equal(found["moved"], (1 + same) / 2)
        stays += same.tolist()
    assert 0 < np.mean(stays) < 1
    env.close()


def test_altered_samples_go_where_data_save_dir_says_and_the_manifest_says_what_was_done(
    pipeline: Path, tmp_path: Path
) -> None:
    from core.directions import Basis

    agent = load_agent(pipeline / "agent")
    size = agent.points["h"]
    eye = torch.eye(size)
    basis = Basis("neurons", torch.zeros(size), torch.ones(size), eye, eye, agent=fingerprint(agent))
    with artefacts.new_run(tmp_path / "basis", "hidden_states", {}) as run:
        basis.save(run.path)
    argv = [
        *DEBUG, "--simulator", f"{pipeline}/simulator", "--rollouts", f"{pipeline}/rollouts",
        "--basis", f"{tmp_path}/basis", "--basis_kind", "neurons",
        "--swap_directions_from", "10", "5", "--swap_directions_to", "12", "None",
        "--data_save_dir", f"{tmp_path}/altered",
    ]  # fmt: skip
    record_samples.main(cli.parse(record_samples.RecordSamplesConfig, argv, record_samples.STAGE))
    facts = artefacts.read_manifest(tmp_path / "altered")["facts"]["interventions"]
    assert [f["kind"] for f in facts] == ["Swap", "Nullspace"]
    assert facts[0]["pairs"] == [[10, 12]] and facts[1]["ids"] == [5]
    altered = RolloutStore(tmp_path / "altered")
    assert np.abs(altered.episode(0).h[:, 5]).max() == 0  # collapsed to the mean, here 0
    before = json.loads((pipeline / "samples" / artefacts.MANIFEST).read_text())
    with pytest.raises(UserError, match="holds unaltered data"):
        record_samples.main(
            cli.parse(record_samples.RecordSamplesConfig, [*argv[:-1], f"{pipeline}/samples"], record_samples.STAGE)
        )
    assert json.loads((pipeline / "samples" / artefacts.MANIFEST).read_text()) == before


@pytest.fixture(scope="module")
def told(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A basis of neurons and two behaviours (is neuron 0 above its median?) of the pipeline's agent."""
    from core.directions import Basis

    root = tmp_path_factory.mktemp("told")
    agent = load_agent(pipeline / "agent")
    eye = torch.eye(agent.points["h"])
    basis = Basis("neurons", torch.zeros(len(eye)), torch.ones(len(eye)), eye, eye, agent=fingerprint(agent))
    with artefacts.new_run(root / "hidden_states", "hidden_states", {}) as run:
        basis.save(run.path)
    with RolloutStore(pipeline / "rollouts") as store:
        columns, index = store.pooled("h", first=1)
    labels = (columns["h"][:, 0] > np.median(columns["h"][:, 0])).astype(np.int64)
    with artefacts.new_run(root / "behaviours", "behaviours", {}, {"rollouts": pipeline / "rollouts"}) as run:
        artefacts.Result(arrays={"index_real": index, "labels_real": labels}).save(run.path)
        run.facts = {"agent": fingerprint(agent)}
    return root


def altered(pipeline: Path, told: Path, which: str, out: Path, *more: str) -> RolloutStore:
    """A recording with the same words for both recorders."""
    words = [
        *DEBUG, "--basis", f"{told}/hidden_states", "--basis_kind", "neurons", "--behaviours", f"{told}/behaviours",
        *more, "--data_save_dir", str(out),
    ]  # fmt: skip
    if which == "real":
        words += ["--agent", f"{pipeline}/agent", "--slots", "4", "--num_steps", "64"]
        record.main(cli.parse(record.RecordConfig, words, record.STAGE))
    else:
        words += ["--simulator", f"{pipeline}/simulator", "--rollouts", f"{pipeline}/rollouts"]
        record_samples.main(cli.parse(record_samples.RecordSamplesConfig, words, record_samples.STAGE))
    return RolloutStore(out)


@pytest.mark.parametrize("which", ["real", "simulated"])
def test_both_recorders_alter_inside_a_behaviour_only_and_say_what_they_did(
    pipeline: Path, told: Path, tmp_path: Path, which: str
) -> None:
    from core.when import load_rule

    b = {"real": 1, "simulated": 0}[which]  # one that some of its steps are in
    words = ["--shift", "3=5", "--at_steps", "2", "9", "--when", f"behaviour={b}"]
    store = altered(pipeline, told, which, tmp_path / "a", *words)
    (said,) = store.manifest["facts"]["interventions"]
    assert said["kind"] == "When" and said["conditions"] == [f"behaviour={b}"] and 0.5 < said["rule"]["found"] <= 1
    (inner,) = said["inner"]
    assert (inner["kind"], inner["first"], inner["stop"]) == ("AtSteps", 2, 9)
    assert inner["inner"] == {"kind": "Shift", "ids": [3], "amounts": [5.0], "basis": inner["inner"]["basis"]}
    assert {"hidden_states", "behaviours"} <= set(store.manifest["inputs"])
    assert artefacts.verify(tmp_path / "a") == []
    steps = [store.meta(e)["altered"] for e in range(len(store))]
    assert store.manifest["metrics"]["altered_steps"]["value"] == sum(map(len, steps)) > 0
    assert all(2 <= t < 9 for ts in steps for t in ts)
    # Exactly there, and by exactly this: the agent once more, along what was recorded.
    agent, rule = load_agent(pipeline / "agent"), load_rule(told / "behaviours")
    some = max(range(len(store)), key=lambda e: len(steps[e]))
    episode = store.episode(some)
    for t in range(1, min(12, episode.steps)):
        e = agent.encode({"frames": torch.from_numpy(episode.obs["frames"][t : t + 1])})
        before = agent.advance(e, torch.from_numpy(episode.h[t - 1 : t]), torch.tensor([False]))
        change = torch.from_numpy(episode.h[t]) - before[0]
        want = torch.zeros_like(change)
        want[3] = 5.0 * (t in steps[some])
        # Simulated frames are rounded to bytes on disk.
        torch.testing.assert_close(change, want, atol=1e-4 if which == "real" else 0.1, rtol=0)
        if which == "real":
            assert (t in steps[some]) == (int(rule(before)) == b and 2 <= t < 9)


@pytest.mark.parametrize("which", ["real", "simulated"])
def test_a_behaviour_that_never_comes_is_said(
    pipeline: Path, told: Path, tmp_path: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """--when alters nothing in the whole recording: no error, but neither a recording like any other."""
    words = ["--shift", "3=5", "--when", "behaviour=1", "--at_steps", "5000"]
    store = altered(pipeline, told, which, tmp_path / "a", *words)
    said = store.manifest["facts"]["intervention_warning"]
    assert said.startswith("nothing was altered: ") and "never in behaviour=1 (--when) at --at_steps 5000" in said
    assert f"warning: {said}\n" in capsys.readouterr().err
    assert store.manifest["metrics"]["altered_steps"]["value"] == 0
    store = altered(pipeline, told, which, tmp_path / "b", "--shift", "3=5", "--at_steps", "0")
    assert "intervention_warning" not in store.manifest["facts"] and "nothing was" not in capsys.readouterr().err


@pytest.mark.parametrize("which", ["real", "simulated"])
def test_strength_nothing_records_the_same_bits(pipeline: Path, told: Path, tmp_path: Path, which: str) -> None:
    nothing = altered(pipeline, told, which, tmp_path / "a", "--shift", "3=0", "0=0")
    plain = altered(pipeline, told, which, tmp_path / "b")
    assert nothing.manifest["metrics"]["altered_steps"]["value"] == 0
    assert "changed the hidden state at no step" in nothing.manifest["facts"]["intervention_warning"]
    assert "altered_steps" not in plain.manifest["metrics"] and "intervention_warning" not in plain.manifest["facts"]
    for e in range(len(plain)):
        one, other = nothing.episode(e), plain.episode(e)
        for name, column in one.columns().items():
            assert np.array_equal(column, other.columns()[name]), (e, name)


@pytest.mark.parametrize("which", ["real", "simulated"])
def test_unaltered_recordings_are_never_overwritten_by_altered_ones(
    pipeline: Path, told: Path, tmp_path: Path, which: str
) -> None:
    altered(pipeline, told, which, tmp_path / "a")
    before = (tmp_path / "a" / artefacts.MANIFEST).read_bytes()
    with pytest.raises(UserError, match="holds unaltered data"):
        altered(pipeline, told, which, tmp_path / "a", "--swap_directions_from", "1", "--swap_directions_to", "None",
                "--overwrite")  # fmt: skip
    assert (tmp_path / "a" / artefacts.MANIFEST).read_bytes() == before and artefacts.verify(tmp_path / "a") == []
    for words, said in ((["--when", "behaviour=1"], "--when needs an intervention"),
                        (["--shift", "1=1", "--when", "behaviour=7"], "behaviour 7 does not exist"),
                        (["--swap_directions_from", "1", "2", "--swap_directions_to", "3"], "has 2 ids")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            altered(pipeline, told, which, tmp_path / "c", *words)
        assert not (tmp_path / "c").exists()
