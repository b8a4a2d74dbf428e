"""The target_functions script on the debug pipeline, and the mistakes users make."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.shared import strips
from analysis.target_functions import __main__ as target_functions
from core import artefacts, config as cli
from core.artefacts import Result
from core.directions import Basis, fingerprint
from core.episodes import RolloutStore
from generative.simulator import load_simulator

SAMPLES, STEPS, ITERATIONS, SCREEN = 3, 4, 3, 2


@pytest.fixture(scope="module")
def neurons(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hidden_states run directory with the neuron basis alone."""
    simulator = load_simulator(pipeline / "simulator")
    eye, size = torch.eye(simulator.agent.points["h"]), simulator.agent.points["h"]
    agent = fingerprint(simulator.agent)
    out = tmp_path_factory.mktemp("basis") / "hidden_states"
    with artefacts.new_run(out, "hidden_states", {}) as run:
        Basis("neurons", torch.zeros(size), torch.ones(size), eye, eye, agent=agent).save(run.path)
    return out


def argv(pipeline: Path, out: Path, *more: object) -> list[str]:
    sizes = ["--samples", SAMPLES, "--steps", STEPS, "--iterations", ITERATIONS, "--screen", SCREEN, "--noisy", 2,
             "--drawn", 2]  # fmt: skip
    words = ["--simulator", pipeline / "simulator", "--out", out, "--threads", 1, *sizes, *more]
    return [str(w) for w in words]


def find(pipeline: Path, out: Path, *more: object) -> Result:
    cli.run(
        target_functions.TargetFunctionsConfig,
        target_functions.main,
        target_functions.STAGE,
        argv(pipeline, out, *more),
    )
    return Result.load(out)


def test_targets_of_real_starts(
    pipeline: Path, neurons: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    out = tmp_path / "targets"
    result = find(
        pipeline, out, "--rollouts", pipeline / "rollouts", "--hidden_states", neurons,
        "--maximise", "value_drop", "neurons:1", "--minimise", "neurons_1", "terminal", "--no-video",
    )  # fmt: skip
    labels = ["value_drop_up", "neurons:1_up", "neurons:1_down", "terminal_down"]
    assert list(result.notes["targets"]) == labels
    simulator = load_simulator(pipeline / "simulator")
    a = result.arrays
    for label in labels:
        assert a[f"y_{label}"].shape == (ITERATIONS + 1, SAMPLES)
        assert a[f"control_{label}"].shape == (SAMPLES, SCREEN + ITERATIONS + 1)
        assert a[f"frames_after_{label}"].shape == (SAMPLES, STEPS + 1, 64, 64, 3)
        # What is on disk is what the simulator makes of the latents on disk.
        shown = simulator.rollout(torch.from_numpy(a[f"z_after_{label}"]), STEPS)
        np.testing.assert_allclose(shown.value, a[f"value_after_{label}"], atol=1e-4)
        assert np.array_equal(shown.action, a[f"action_after_{label}"])
        for s in range(2):
            with Image.open(out / f"{label.replace(':', '_')}_{s}.png") as image:
                assert image.size == (strips.LABEL + (STEPS + 1) * 132, 28 + 2 * 198)
        assert not (out / f"{label}_2.png").exists()
    shown = simulator.rollout(torch.from_numpy(a["z_after_neurons:1_up"]), STEPS)
    lived = shown.alive[:, 1:]  # the debug world ends now and then
    h = (shown.h[:, 1:, 1] * lived).sum(1) / lived.sum(1)
    rows = [r for r in result.tables["samples"] if (r["target"], r["sense"]) == ("neurons:1", "up")]
    np.testing.assert_allclose(h, np.array([r["after"] for r in rows], float), atol=1e-5, equal_nan=True)
    with RolloutStore(pipeline / "rollouts") as store:  # a start is a draw from what its window tells
        for s, r in enumerate(rows):
            window = store.read_windows(["obs/frames"], np.array([[r["episode"], r["step"]]]), 3)
            mean, log_std = simulator.world.infer({"frames": torch.from_numpy(window["obs/frames"])})
            assert (abs(a["z_before_neurons:1_up"][s] - mean[0].numpy()) < 6 * log_std[0].exp().numpy()).all()
    with open(out / "targets.csv") as file:
        summary = list(csv.DictReader(file))
    assert [row["target"] for row in summary] == ["value_drop", "neurons:1", "neurons:1", "terminal"]
    for row in summary:
        mine = [r for r in result.tables["samples"] if (r["target"], r["sense"]) == (row["target"], row["sense"])]
        read = sum(r["over_control"] is not None for r in mine)
        for r in mine:
            assert bool(r["reason"]) == (None in (r["before"], r["after"], r["control"]))
            assert (r["over_control"] is None) == (None in (r["after"], r["control"]))
        assert 0 <= float(row["q"]) <= 1 and 1 <= int(row["n"]) == read <= SAMPLES
    assert (out / "targets.png").stat().st_size > 5000
    manifest = artefacts.read_manifest(out)
    assert set(manifest["inputs"]) == {"simulator", "rollouts", "hidden_states"}
    assert artefacts.verify(out) == []
    assert "4 targets, 3 latents each" in capsys.readouterr().out


def test_random_starts_are_determined_by_the_seed(pipeline: Path, tmp_path: Path) -> None:
    flags = ["--maximise", "leftwards", "--drawn", 0, "--restarts", 2]
    a, b, c = (find(pipeline, tmp_path / f"{i}", *flags, "--seed", seed).arrays for i, seed in enumerate((0, 0, 1)))
    assert a["control_leftwards_up"].shape == (SAMPLES, SCREEN + 2 * (ITERATIONS + 1))
    assert all(np.array_equal(a[k], b[k], equal_nan=a[k].dtype.kind == "f") for k in a)
    assert not np.array_equal(a["z_before_leftwards_up"], c["z_before_leftwards_up"])


def test_the_video_can_be_played(pipeline: Path, tmp_path: Path) -> None:
    import imageio_ffmpeg

    find(pipeline, tmp_path / "t", "--minimise", "value", "--drawn", 1)
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(tmp_path / "t" / "value_down_0.mp4")]
    raw = subprocess.run([*decode, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    assert len(np.frombuffer(raw, np.uint8).reshape(-1, 320, 512, 3)) == STEPS + 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a target"),
        (["--maximise", "valeu"], "no target 'valeu' (did you mean value?)"),
        (["--maximise", "ica_0"], "--hidden_states"),
        (["--maximise", "neurons_16", "--hidden_states", "NEURONS"], "direction neurons:16 does not exist"),
        (["--maximise", "value", "--first_step", "5"], "--first_step 5 is not between 0 and --steps 4"),
        (["--maximise", "value_delta", "--first_step", "0"], "--first_step 1 or later"),
        (["--maximise", "value", "--samples", "1"], "--samples must be at least 2"),
        (["--maximise", "value", "--learning_rate", "0"], "--learning_rate"),
        (["--maximise", "value", "--rollouts", "SAMPLES"], "holds no real rollouts"),
        (["--maximise", "value", "--rollouts", "REAL", "--samples", "100000"], "windows to start from"),
    ],
)
def test_mistakes_leave_nothing(
    pipeline: Path, neurons: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"NEURONS": neurons, "SAMPLES": pipeline / "samples", "REAL": pipeline / "rollouts"}
    with pytest.raises(SystemExit) as ended:
        find(pipeline, tmp_path / "t", *[places.get(w, w) for w in words])
    assert ended.value.code == 2 and not (tmp_path / "t").exists()
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
