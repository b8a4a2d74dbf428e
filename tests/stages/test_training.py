"""Training the simulator: its numbers at any number of processes, what it shows, and what it does when
something goes wrong.

Run as a script (by torchrun in the tests below) this file saves the gradients of a first update.
"""

from __future__ import annotations

import csv
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.load import load_agent
from core import artefacts, config as cli, lock
from core.contracts import UserError
from core.episodes import RolloutStore
from core.ranks import Processes, from_torchrun
from core.roll import Simulator
from core.training import learning_rate, load_state
from generative import train
from generative.recurrent_world import RSSMWorld
from generative.rssm import ModelConfig
from generative.simulator import as_module, load_simulator, simulator_of
from validation.report.commands import repeat

ROOT = Path(__file__).resolve().parent.parent.parent


def argv_of(pipeline: Path, out: Path, *more: str) -> list[str]:
    models = ["--agent", f"{pipeline}/agent", "--rollouts", f"{pipeline}/rollouts", "--out", f"{out}"]
    return ["--preset", "debug", "--threads", "1", *models, *more]


def config_of(pipeline: Path, out: Path, *more: str) -> train.GenTrainConfig:
    return cli.parse(train.GenTrainConfig, argv_of(pipeline, out, *more), train.STAGE)


def trainer_of(config: train.GenTrainConfig, processes: Processes) -> train.Trainer:
    """A trainer that stands before its first update."""
    from agents.recurrent import load_agent

    agent = load_agent(config.agent)
    torch.manual_seed(config.seed)
    simulator = simulator_of(config.model, agent)
    config.out.mkdir(parents=True, exist_ok=True)
    inputs = artefacts.Inputs({"agent": config.agent, "rollouts": config.rollouts})
    run = artefacts.Run(path=config.out, stage=train.STAGE, config=config, inputs=inputs)
    return train.Trainer(config, simulator, RolloutStore(config.rollouts), processes, run)


def first_gradients(config: train.GenTrainConfig) -> list[torch.Tensor]:
    """Of one update, by all processes of this torchrun."""
    processes = from_torchrun(config.optim.batch)
    trainer = trainer_of(config, processes)
    trainer.update()
    return [p.grad for p in trainer.parameters if p.grad is not None]


def torchrun(*words: str) -> None:
    """Two processes of a script; stops at the first failure."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def curve(path: Path) -> list[dict[str, float]]:
    with open(path / "curve.csv", newline="") as file:
        timed = ("wall_s", "frames_per_s", "data_share")
        return [{k: float(v) for k, v in row.items() if v and k not in timed} for row in csv.DictReader(file)]


LONG = ("--updates", "60", "--validate_every", "7", "--video_every", "0")  # long enough to be met in the middle


@pytest.fixture(scope="module")
def long_curve(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """The curve of such a training that nothing stopped."""
    out = tmp_path_factory.mktemp("whole") / "s"
    train.main(config_of(pipeline, out, *LONG))
    return curve(out)


class Killed(Exception):
    """Stands for kill -9 at a chosen moment."""


def kill_at(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """Raise Killed where this update would begin."""
    real = train.Trainer.update

    def dies(self: train.Trainer) -> None:
        if self.step == update:
            lock.release(self.run.path)  # as the system does for a process that is killed
            raise Killed
        real(self)

    monkeypatch.setattr(train.Trainer, "update", dies)


# As many processes as one likes


def test_two_processes_have_the_gradients_of_one(pipeline: Path, tmp_path: Path) -> None:
    free = ("--max_grad_norm", "1e12")  # clipping would hide a wrong scale
    torchrun(__file__, f"{tmp_path}/gradients.pt", *argv_of(pipeline, tmp_path / "two", *free))
    two = torch.load(tmp_path / "gradients.pt", weights_only=True)
    one = first_gradients(config_of(pipeline, tmp_path / "one", *free))
    assert len(one) == len(two)
    largest = max(float(g.abs().max()) for g in one)
    assert largest > 0
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * max(1.0, float(a.abs().max())))
    # The parts of the batch differ, so that one process's share alone would not do.
    config = config_of(pipeline, tmp_path / "half", "--batch", "1", *free)
    half = first_gradients(config)
    assert max(float((a - b).abs().max()) for a, b in zip(one, half, strict=True)) > 1e-3 * largest


def test_a_training_killed_alone_goes_on_with_torchrun(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, 4)
        with pytest.raises(Killed):
            train.main(config_of(pipeline, tmp_path / "s", "--save_minutes", "0"))
    torchrun("train_gen_model.py", *argv_of(pipeline, tmp_path / "s", "--resume"))
    assert artefacts.verify(tmp_path / "s") == []
    whole, resumed = curve(pipeline / "simulator"), curve(tmp_path / "s")
    assert [r["step"] for r in resumed] == [r["step"] for r in whole] == [3, 6]
    for a, b in zip(whole, resumed, strict=True):
        assert b == pytest.approx(a, rel=1e-3, abs=1e-4)


def test_a_batch_that_cannot_be_shared_is_refused(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UserError, match="--batch 2 cannot be shared equally by 3"):
        train.main(config_of(pipeline, tmp_path / "s"))
    assert not (tmp_path / "s").exists()


# Against a held frame


def still_windows(pipeline: Path, before: int, after: int) -> tuple[Simulator[RSSMWorld], train.Batch]:
    """A simulator that shows grey (0.5) for ever, and four windows that do not change after the initial frames."""
    simulator = load_simulator(pipeline / "simulator")
    for name, tensor in simulator.world.named_parameters():
        if name.startswith("decoder"):
            tensor.zero_()
    first, steps = simulator.world.initial_frames, 5
    frames = torch.full((4, first - 1 + steps, 64, 64, 3), after, dtype=torch.uint8)
    frames[:, :first] = before
    zero = torch.zeros(4, steps)
    seen = torch.ones(4, steps, dtype=torch.bool)
    seen[0, 3:] = False  # an episode that ends
    frames[0, first + 2 :] = 0
    h = torch.zeros(4, steps, simulator.agent.points["h"])
    return simulator, train.Batch(
        obs={"frames": frames}, seen=seen, happened=seen, reward=zero, terminal=zero, action=zero.long(), h=h,
        state_before=h[:, 0], action_before=zero[:, 0].long(),
    )  # fmt: skip


@pytest.mark.parametrize(("before", "after"), [(0, 255), (0, 0), (128, 128)])
def test_comparison_with_a_held_frame(pipeline: Path, before: int, after: int) -> None:
    """Exact where both are known: over steps 1 to 4 that exist, with the episode as the unit."""
    simulator, batch = still_windows(pipeline, before, after)
    found = train.against_held_frame(simulator, batch, np.array([7, 7, 8, 9]), 0)
    held, own = ((after - before) / 255) ** 2, (after / 255 - 0.5) ** 2
    assert found["held_frame_mse"].value == pytest.approx(held, abs=1e-6)
    for name in (artefacts.LESS_THAN_HELD, f"{artefacts.LESS_THAN_HELD}_1", f"{artefacts.LESS_THAN_HELD}_4"):
        assert found[name].value == pytest.approx(own - held, abs=1e-6)
        assert found[name].n == 3
    assert found["free_running_mse"].value == pytest.approx(own, abs=1e-6)
    said = artefacts.poor_simulator({k: artefacts.metric(e.value, "", e.n, e.interval) for k, e in found.items()})
    assert (said is None) == (own < held)


def test_six_updates_are_no_better_than_a_held_frame_and_all_that_follows_says_so(pipeline: Path) -> None:
    simulator = artefacts.read_manifest(pipeline / "simulator")
    said = simulator["facts"][artefacts.SIMULATOR_WARNING]
    less, held = (simulator["metrics"][n]["value"] for n in (artefacts.LESS_THAN_HELD, "held_frame_mse"))
    assert "than a held frame" in said and f"{less:+.3g}" in said
    own = simulator["metrics"]["free_running_mse"]["value"]
    assert own - held == pytest.approx(less, rel=1e-6)  # what is printed beside each other is of the same steps
    assert own == pytest.approx(min(row["free_mse"] for row in curve(pipeline / "simulator")), rel=1e-4)
    assert artefacts.read_manifest(pipeline / "samples")["facts"][artefacts.SIMULATOR_WARNING] == said
    assert artefacts.SIMULATOR_WARNING not in artefacts.read_manifest(pipeline / "rollouts")["facts"]


# What it shows and keeps


def test_best_and_last_weights_and_four_videos(pipeline: Path) -> None:
    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = pipeline / "simulator"
    best, last = load_simulator(path), load_simulator(path, name=train.LAST)
    state = load_state(path / "training_state" / "state.pt", *train.STATE)
    whole = as_module(last).state_dict()
    assert whole.keys() == state["simulator"].keys()
    for name, value in whole.items():
        assert torch.equal(value, state["simulator"][name]), name
    scores = [row["free_mse"] for row in curve(path)]
    same = all(torch.equal(a, b) for a, b in zip(*(as_module(s).parameters() for s in (best, last)), strict=True))
    assert same == (min(scores) == scores[-1])
    events = EventAccumulator(str(path / "training_state" / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    tags = {f"reconstruction/{k}" for k in ("true_true", "simulated_true", "simulated_simulated", "random")}
    assert set(events.Tags()["images"]) == tags
    assert {"valid/loss", "free_mse", "learning_rate", "frames_per_s"} <= set(events.Tags()["scalars"])
    import io

    for tag in tags:
        with Image.open(io.BytesIO(events.Images(tag)[-1].encoded_image_string)) as picture:
            assert picture.n_frames == 6  # type: ignore[attr-defined]
            assert picture.size == (4 * 64, 64 if tag.endswith("random") else 128)


def test_reconstructions_show_what_they_say(pipeline: Path, tmp_path: Path) -> None:
    trainer = trainer_of(config_of(pipeline, tmp_path / "s"), Processes())
    sim, batch = trainer.kept, trainer.validation
    first = sim.world.initial_frames - 1
    shown = train.reconstructions(sim, batch, seed=0)
    steps = batch.action.shape[1]
    for b in range(2):
        column = slice(64 * b, 64 * (b + 1))
        for name in ("true_true", "simulated_true", "simulated_simulated"):
            for i in range(steps):
                true = batch.obs["frames"][b, first + i].numpy() * bool(batch.seen[b, i])
                assert np.array_equal(shown[name][i, :64, column], true)
        z, _ = sim.world.infer({"frames": batch.obs["frames"][b : b + 1, : first + 1]})
        forced = sim.rollout(z, steps - 1, actions=batch.action[b : b + 1]).obs["frames"][0]
        np.testing.assert_allclose(shown["simulated_true"][:, 64:, column] / 255, forced, atol=0.01)
    assert not np.array_equal(shown["random"], train.reconstructions(sim, batch, seed=1)["random"])


def test_the_average_of_the_weights_is_what_is_kept(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the average taken by hand; and a killed training resumes to the same."""
    more = ("--average", "0.7", "--warm_up", "2")
    trainer = trainer_of(config_of(pipeline, tmp_path / "hand", *more), Processes())
    by_hand = [p.detach().clone() for p in trainer.parameters]
    for step in range(1, 7):
        trainer.update()
        share = min(0.7, step / (step + 9))
        for average, p in zip(by_hand, trainer.parameters, strict=True):
            average.mul_(share).add_(p.detach(), alpha=1 - share)
    with monkeypatch.context() as patch:
        kill_at(patch, 4)
        with pytest.raises(Killed):
            train.main(config_of(pipeline, tmp_path / "s", *more, "--save_minutes", "0"))
    train.main(config_of(pipeline, tmp_path / "s", *more, "--resume"))
    last = load_simulator(tmp_path / "s", name=train.LAST)
    moved = False
    for mine, average, p in zip(last.world.parameters(), by_hand, trainer.parameters, strict=True):
        torch.testing.assert_close(mine.detach(), average, rtol=1e-5, atol=1e-7)
        moved |= not torch.allclose(average, p.detach(), rtol=1e-3, atol=1e-6)
    assert moved


@pytest.mark.parametrize("schedule, middle", [("cosine", 0.5), ("linear", 0.5), ("constant", 1.0)])
def test_the_learning_rate_rises_and_falls(schedule: str, middle: float) -> None:
    rates = [learning_rate(s, 110, 2.0, 10, schedule) for s in range(110)]  # type: ignore[arg-type]
    assert rates[0] > 0 and all(a < b for a, b in zip(rates[:10], rates[1:11], strict=True))
    assert rates[10] == 2.0 and rates[60] == pytest.approx(2.0 * middle)
    assert rates[-1] == 2.0 if schedule == "constant" else 0 < rates[-1] < 0.05
    quarter = {"cosine": 2.0 * 0.853553, "linear": 1.5, "constant": 2.0}[schedule]
    assert rates[35] == pytest.approx(quarter, rel=1e-5)


# What goes wrong


def test_a_training_killed_at_any_moment_resumes_to_the_same_curve(
    pipeline: Path, long_curve: list[dict[str, float]], tmp_path: Path
) -> None:
    """SIGKILL, wherever it falls: what is lost is at most what came after the last state."""
    words = argv_of(pipeline, tmp_path / "s", *LONG, "--save_minutes", "0")
    with subprocess.Popen([sys.executable, "train_gen_model.py", *words], cwd=ROOT) as process:
        state = tmp_path / "s" / "training_state" / "state.pt"
        while not state.exists():
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(np.random.default_rng().uniform(0, 0.5))  # anywhere in the middle of things
        process.kill()
    assert not (tmp_path / "s" / artefacts.MANIFEST).exists()
    assert 1 <= load_state(state, *train.STATE)["step"] < 60
    (tmp_path / "s" / ".model.safetensors.1.tmp").write_bytes(b"half")
    train.main(cli.parse(train.GenTrainConfig, [*words, "--resume"], train.STAGE))
    assert not list((tmp_path / "s").rglob(".*.tmp"))
    assert curve(tmp_path / "s") == long_curve


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_names_the_command_that_goes_on(
    number: signal.Signals, code: int, pipeline: Path, long_curve: list[dict[str, float]], tmp_path: Path
) -> None:
    """The command that is printed ends as the training would have ended (what a shell makes of one:
    test_demo_report)."""
    words = [*argv_of(pipeline, tmp_path / "s", *LONG), "--overwrite"]
    with subprocess.Popen(
        [sys.executable, "train_gen_model.py", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "s" / "curve.csv").exists():  # the first validation; no state for minutes
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        said = process.communicate()[1].splitlines()
    assert process.returncode == code, said
    assert not (tmp_path / "s" / artefacts.MANIFEST).exists()
    step = load_state(tmp_path / "s" / "training_state" / "state.pt", *train.STATE)["step"]
    assert said[-1].startswith(f"{number.name}: not finished, saved after {step} of 60 updates; go on with: python ")
    command = said[-1].partition("go on with: ")[2]
    assert command == shlex.join(["python", "train_gen_model.py", *words[:-1], "--resume"])
    train.main(cli.parse(train.GenTrainConfig, shlex.split(command)[2:], train.STAGE))
    assert curve(tmp_path / "s") == long_curve


def started_under_torchrun(out: Path, words: Sequence[str], *flags: str) -> subprocess.Popen[str]:
    """Two processes of a simulator's training, as soon as it has saved a state."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *flags]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*launch, "train_gen_model.py", *words], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True
    )
    while not (out / "training_state" / "state.pt").exists():
        assert process.poll() is None
        time.sleep(0.02)
    return process


def test_a_training_whose_process_dies_goes_on_by_itself(
    pipeline: Path, tmp_path: Path, long_curve: list[dict[str, float]]
) -> None:
    words = argv_of(pipeline, tmp_path / "s", *LONG, "--save_minutes", "0")
    with started_under_torchrun(tmp_path / "s", words, "--max-restarts=1") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        said = process.communicate()[1]
    assert process.returncode == 0, said[-3000:]
    resumed = curve(tmp_path / "s")
    assert [r["step"] for r in resumed] == [r["step"] for r in long_curve]
    for a, b in zip(long_curve, resumed, strict=True):
        assert b["valid/loss"] == pytest.approx(a["valid/loss"], rel=1e-3)
    assert artefacts.read_manifest(tmp_path / "s")["config"]["resume"] is True


def test_a_signal_to_torchrun_saves_once_for_all_processes(pipeline: Path, tmp_path: Path) -> None:
    words = argv_of(pipeline, tmp_path / "s", "--updates", "100000", "--save_minutes", "0")
    with started_under_torchrun(tmp_path / "s", words) as process:
        process.terminate()
        said = process.communicate()[1].splitlines()
    step = load_state(tmp_path / "s" / "training_state" / "state.pt", *train.STATE)["step"]
    (line,) = (line for line in said if "go on with" in line)
    assert line.endswith(
        f"saved after {step} of 100,000 updates; go on with: "
        f"{shlex.join(['torchrun', '--nproc-per-node=2', 'train_gen_model.py', *words, '--resume'])}"
    )


def test_the_time_that_was_given_ends_it_in_order(
    pipeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An update at a time, until all are done: the same curve as without a stop."""
    argv = argv_of(pipeline, tmp_path / "s", "--stop_after", "0.001s")
    with pytest.raises(UserError, match="--stop_after '2': expected a time"):
        train.main(config_of(pipeline, tmp_path / "s", "--stop_after", "2"))
    assert not (tmp_path / "s").exists()
    for update in range(1, 6):
        train.main(cli.parse(train.GenTrainConfig, argv if update == 1 else [*argv, "--resume"], train.STAGE))
        assert f"time is up: not finished, saved after {update} of 6 updates" in capsys.readouterr().err
        with pytest.raises(UserError, match="half-written"):
            load_simulator(tmp_path / "s")
    train.main(cli.parse(train.GenTrainConfig, [*argv, "--resume"], train.STAGE))
    assert artefacts.verify(tmp_path / "s") == [] and curve(tmp_path / "s") == curve(pipeline / "simulator")


def test_a_full_disk_leaves_the_old_state_whole(pipeline: Path, tmp_path: Path) -> None:
    """The kernel refuses files above a limit; the state of an earlier update stays, and --resume goes on."""
    out = tmp_path / "s"
    trainer_config = config_of(pipeline, out, "--save_minutes", "0")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    real = train.Trainer.update

    def fills_the_disk(self: train.Trainer) -> None:
        if self.step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.state_file.stat().st_size // 2, hard))
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Trainer, "update", fills_the_disk)
        try:
            with pytest.raises(UserError, match=r"cannot write to .* at update 5 .*--resume goes on from update 4"):
                train.main(trainer_config)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_state(out / "training_state" / "state.pt", *train.STATE)["step"] == 4
    assert not list(out.rglob("*.tmp"))
    train.main(config_of(pipeline, out, "--resume"))
    assert curve(out) == curve(pipeline / "simulator")


def test_a_loss_that_is_not_finite_stops_and_says_what_is_left(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight becomes infinite on its own: the states and the best simulator of before stay."""
    out, real = tmp_path / "s", train.Trainer.update

    def breaks(self: train.Trainer) -> None:
        if self.step == 4:
            with torch.no_grad():
                self.simulator.world.reward_head[-1].bias.fill_(float("inf"))
        real(self)

    monkeypatch.setattr(train.Trainer, "update", breaks)
    with pytest.raises(
        UserError, match=r"loss is (inf|nan).* at update 4; the best so far is in .*goes on from update 4"
    ):
        train.main(config_of(pipeline, out, "--save_minutes", "0"))
    monkeypatch.setattr(train.Trainer, "update", real)
    with pytest.raises(UserError, match="half-written"):
        load_simulator(out)
    train.main(config_of(pipeline, out, "--resume"))
    assert curve(out) == curve(pipeline / "simulator")


def test_rollouts_of_another_world_are_refused(pipeline: Path, tmp_path: Path) -> None:
    shutil.copytree(pipeline / "rollouts", tmp_path / "rollouts")
    spec_file = tmp_path / "rollouts" / "spec.json"
    spec = json.loads(spec_file.read_text())
    about = artefacts.read_manifest(tmp_path / "rollouts")

    def attempt(**changed: object) -> None:
        spec_file.write_text(json.dumps({**spec, **changed}))
        artefacts.Run(path=spec_file.parent, stage=about["stage"], config={}, facts=about["facts"]).finish()
        train.main(config_of(pipeline, tmp_path / "s", "--rollouts", f"{tmp_path}/rollouts", "--updates", "1"))

    for other in ({"env_id": "procgen/maze"}, {"options": {**spec["options"], "distribution_mode": "hard"}}):
        with pytest.raises(UserError, match="is of another world"):
            attempt(**other)
    assert not (tmp_path / "s").exists()
    attempt(options={**spec["options"], "start_level": 77})  # other levels are the same world
    assert artefacts.read_manifest(tmp_path / "s", train.STAGE)


def test_one_episode_that_is_long_enough_is_refused_with_what_would_do(pipeline: Path, tmp_path: Path) -> None:
    """It was said to lower --steps, which does not help."""
    store = RolloutStore(pipeline / "rollouts")
    for second, said in ((3, "lower --initial_frames to 2 or record"), (2, "record")):
        store.rows = np.array([second, 6, 2])
        with pytest.raises(UserError, match=rf"2 are needed \(one to validate on\): {said} longer episodes"):
            train.check(
                config_of(pipeline, tmp_path / "s", "--steps", "9", "--initial_frames", "3"),
                store,
                store.manifest["facts"]["agent"],
                store.spec,
            )


def test_episodes_shorter_than_the_window_are_refused_with_what_would_do(pipeline: Path, tmp_path: Path) -> None:
    longest = int(RolloutStore(pipeline / "rollouts").rows.max())
    fits = longest - 2
    with pytest.raises(UserError, match=f"lower --steps to {fits} "):
        train.main(config_of(pipeline, tmp_path / "s", "--steps", str(fits + 1)))
    with pytest.raises(UserError, match=rf"\(the longest has {longest}\); record longer episodes"):
        train.main(config_of(pipeline, tmp_path / "s", "--steps", "2", "--initial_frames", str(longest)))
    assert not (tmp_path / "s").exists()
    train.check(
        config_of(pipeline, tmp_path / "s", "--steps", str(fits)),
        store := RolloutStore(pipeline / "rollouts"),
        store.manifest["facts"]["agent"],
        store.spec,
    )


if __name__ == "__main__":
    out, *words = sys.argv[1:]
    found = first_gradients(cli.parse(train.GenTrainConfig, words, train.STAGE))
    if os.environ["RANK"] == "0":
        torch.save(found, out)


# From the weights of an earlier simulator


def test_a_training_begins_with_the_weights_of_a_simulator(pipeline: Path, tmp_path: Path) -> None:
    """Its first row is the earlier simulator's, and what is kept is never worse than that on the validation's windows,
    as at a learning rate that destroys the weights, where it is the earlier simulator itself."""
    earlier = pipeline / "simulator"
    before = artefacts.read_manifest(earlier)["metrics"]["free_running_mse"]["value"]
    for rate in ("1e-4", "0.1"):
        out = tmp_path / rate
        train.main(config_of(pipeline, out, "--begin_with", f"{earlier}", "--learning_rate", rate, "--average", "0"))
        rows = {row["step"]: row["free_mse"] for row in curve(out)}
        assert list(rows) == [0, 3, 6] and rows[0] == pytest.approx(before, rel=1e-4)
        kept = artefacts.read_manifest(out)["metrics"]["free_running_mse"]["value"]
        assert kept == pytest.approx(min(rows.values()), rel=1e-4)
        if kept == pytest.approx(before, rel=1e-6):
            weights = (as_module(load_simulator(p)).state_dict().values() for p in (earlier, out))
            assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
        assert artefacts.read_manifest(out)["inputs"]["begin_with"]["path"].endswith("simulator")
        assert artefacts.verify(out) == []


def test_a_training_begins_with_the_mean_of_several(pipeline: Path, tmp_path: Path) -> None:
    earlier = str(pipeline / "simulator")
    moved = tmp_path / "moved"
    train.main(config_of(pipeline, moved, "--begin_with", earlier, "--learning_rate", "0.01", "--average", "0"))
    other = str(tmp_path / "further")
    further = ("--begin_with", earlier, "--seed", "5", "--learning_rate", "0.003", "--average", "0")
    train.main(config_of(pipeline, tmp_path / "further", *further))
    out = tmp_path / "mean"
    train.main(config_of(pipeline, out, "--begin_with", earlier, other, "--learning_rate", "0", "--average", "0"))
    one, two, mean = (as_module(load_simulator(Path(p)), False).state_dict() for p in (earlier, other, out))
    for name, value in mean.items():
        torch.testing.assert_close(value, (one[name] + two[name]) / 2, rtol=1e-6, atol=1e-7)
    assert any(not torch.equal(one[k], two[k]) for k in one)
    assert {"begin_with", "begin_with_2"} <= set(artefacts.read_manifest(out)["inputs"])
    how = repeat(out, tmp_path / "again")
    assert "--begin_with_2" not in how.line and not how.note
    with pytest.raises(UserError, match="was begun with another begin_with_2; start another run"):
        train.main(config_of(pipeline, out, "--begin_with", earlier, str(moved), "--learning_rate", "0", "--resume"))
    train.main(config_of(pipeline, tmp_path / "apart", "--seed", "5"))
    with pytest.raises(UserError, match="were trained apart .cosine of their weights"):
        train.main(config_of(pipeline, tmp_path / "no", "--begin_with", earlier, str(tmp_path / "apart")))


@pytest.mark.parametrize("preset", ["demo", "context"])
def test_the_mean_of_strangers_is_refused_at_sizes_of_use(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a long training most of the weights' length is in gains of 1, which all share."""
    model = cli.from_json(ModelConfig, cli.preset("train_gen_model", preset)["model"])
    agent = load_agent(Path("bundles/coinrun-robust/agent"), torch.device("cpu"))
    found = {}
    for seed in (1, 2):
        torch.manual_seed(seed)
        found[Path(str(seed))] = simulator_of(model, agent)
    monkeypatch.setattr(train, "load_simulator", lambda path: found[path])
    with pytest.raises(UserError, match="were trained apart"):
        train.take_weights(simulator_of(model, agent), list(found), model)


def test_a_training_from_weights_goes_on_as_if_nothing_had_stopped_it(
    pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("--begin_with", f"{pipeline}/simulator", "--save_minutes", "0")
    train.main(config_of(pipeline, tmp_path / "whole", *more))
    with monkeypatch.context() as patch:
        kill_at(patch, 4)
        with pytest.raises(Killed):
            train.main(config_of(pipeline, tmp_path / "s", *more))
    with pytest.raises(UserError, match="was begun with another begin_with; start another run"):
        train.main(config_of(pipeline, tmp_path / "s", "--resume"))
    train.main(config_of(pipeline, tmp_path / "s", *more, "--resume"))
    assert curve(tmp_path / "s") == curve(tmp_path / "whole")


def test_weights_of_other_sizes_or_of_another_world_are_refused(pipeline: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="was trained with --deterministic_size .*, not .*: --begin_with takes"):
        train.main(
            config_of(pipeline, tmp_path / "s", "--begin_with", f"{pipeline}/simulator", "--deterministic_size", "24")
        )
    with pytest.raises(UserError, match="agent holds no simulator"):
        train.main(config_of(pipeline, tmp_path / "s", "--begin_with", f"{pipeline}/agent"))
    assert not (tmp_path / "s").exists()
