"""The saliency and coupling scripts on a simulator directory and its samples, and the mistakes users make."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.recurrent import AgentConfig, RecurrentAgent
from analysis.coupling import __main__ as coupling
from analysis.saliency import __main__ as saliency, tables
from analysis.saliency.figures import strip_of
from analysis.shared import bases, sources, strips
from analysis.shared.quantities import find_quantities
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import EnvSpec, Field
from core.directions import Basis, fingerprint
from core.episodes import RolloutStore
from envs.procgen import ACTION_NAMES
from generative import record_samples
from generative.rssm import ModelConfig
from generative.simulator import load_simulator, save_simulator, simulator_of

SPEC = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=ACTION_NAMES,
    slots=1,
)
SAMPLES = 12


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """simulator, samples and hidden_states run directories of an untrained hypersphere simulator."""
    root = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=6), SPEC)
    torch.nn.init.normal_(agent.policy.weight, std=2.0)
    sizes = {"deterministic_size": 12, "hidden_size": 16, "groups": 3, "classes": 4, "depth": 2, "latent_size": 6}
    simulator = simulator_of(ModelConfig(head_layers=1, latent="hypersphere", **sizes), agent)
    torch.nn.init.normal_(simulator.world.decoder.first.weight, std=1.0)  # type: ignore[arg-type,union-attr]
    torch.nn.init.constant_(simulator.world.terminal_head[-1].bias, -3.0)  # the untrained world goes on
    with artefacts.new_run(root / "simulator", "train_gen_model", {}) as run:
        save_simulator(simulator, run.path)
    record_samples.main(
        record_samples.RecordSamplesConfig(
            simulator=(root / "simulator",), out=root / "samples", samples=SAMPLES, steps=12, threads=1
        )
    )
    q, _ = torch.linalg.qr(torch.randn(6, 6))
    with artefacts.new_run(root / "hidden_states", "hidden_states", {}) as run:
        Basis(
            "ica", torch.zeros(6), torch.ones(6), q[:, :4].contiguous(), q[:, :4].T.contiguous(), fingerprint(agent)
        ).save(run.path)
    with artefacts.new_run(root / "env_states", "env_states", {}) as run:
        project = torch.linalg.qr(torch.randn(12, 12))[0][:, :3].contiguous()
        Basis(
            "pca", torch.zeros(12), torch.ones(12), project, project.T.contiguous(), fingerprint(simulator), "d"
        ).save(run.path)
    return root


def argv(runs: Path, out: Path, *more: object) -> list[str]:
    words = ["--simulator", runs / "simulator", "--samples", runs / "samples", "--out", out, "--threads", 1, *more]
    return [str(w) for w in words]


def explain(runs: Path, out: Path, *more: object) -> Result:
    words = argv(
        runs, out, "--steps", 5, "--target_step", 2, "--copies", 2, "--noise", 0.1, "--integrated_steps", 4, *more
    )
    cli.run(saliency.SaliencyConfig, saliency.main, saliency.STAGE, words)
    return Result.load(out)


def test_samples_quantities_and_pictures(runs: Path, tmp_path: Path) -> None:
    from PIL import Image

    out = tmp_path / "saliency"
    quantities = ["action", "value_delta", "jumping_right", "ica:3", "ica:0"]
    result = explain(
        runs,
        out,
        "--sample_ids",
        7,
        2,
        "--quantities",
        *quantities[:3],
        "direction_3",  # as earlier versions wrote it
        "ica:0",
        "--hidden_states",
        runs / "hidden_states",
        "--no-video",
    )
    assert result.arrays["sample_ids"].tolist() == [7, 2]
    assert result.arrays["frames"].shape == (2, 6, 64, 64, 3) and result.arrays["frames"].dtype == np.uint8
    for q in quantities:
        for part in ("", "_agent_only", "_through_world"):
            assert result.arrays[f"grad_frames_{q}{part}"].shape == (2, 6, 64, 64, 3)
            assert result.arrays[f"grad_h_{q}{part}"].shape == (2, 6, 6)
            assert result.arrays[f"grad_d_{q}{part}"].shape == (2, 6, 12)
        assert np.abs(result.arrays[f"grad_frames_{q}"]).max() > 0
        assert result.scalars[f"completeness_delta_{q}"]["n"] == 2
        for i in (7, 2):
            with Image.open(out / f"sample_{i}_{q.replace(':', '_')}.png") as image:
                assert image.size[0] > 6 * strips.TILE
    np.testing.assert_allclose(
        result.arrays["grad_h_action"] - result.arrays["grad_h_action_agent_only"],
        result.arrays["grad_h_action_through_world"],
        atol=1e-6,
    )
    with open(out / "saliency.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10 and {row["sample"] for row in rows} == {"7", "2"}
    assert artefacts.verify(out) == []
    # The samples were recorded in this simulator: the rollouts shown are those on disk.
    from core.episodes import RolloutStore

    with RolloutStore(runs / "samples") as store:
        recorded = store.episode(7)
    assert np.abs(result.arrays["frames"][0].astype(int) - recorded.obs["frames"][:6]).max() <= 1
    assert (result.arrays["action"][0] == recorded.action[:6]).all()


def test_every_method_and_check(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "saliency"
    result = explain(
        runs, out, "--sample_ids", 1, 2, "--quantities", "action", "ica_1", "d_pca_0", "--no-video",
        "--hidden_states", runs / "hidden_states", "--env_states", runs / "env_states", "--checks", "--draws", 2,
        "--methods", "plain", "integrated", "deeplift", "occlusion", "latent", "--window", 32, "--stride", 32,
    )  # fmt: skip
    assert "DeepLIFT" not in capsys.readouterr().err
    a = result.arrays
    for q in ("action", "ica:1"):
        for method in ("integrated", "deeplift", "occlusion"):
            assert a[f"{method}_frames_{q}"].shape == (2, 64, 64, 3) and np.isfinite(a[f"{method}_frames_{q}"]).all()
        change = a[f"change_{q}"]
        total = a[f"deeplift_frames_{q}"].sum((1, 2, 3))
        np.testing.assert_allclose(total, change, atol=1e-4 * max(1, np.abs(change).max()))
        assert a[f"plain_frames_{q}"].shape == (2, 6, 64, 64, 3) and a[f"latent_{q}"].shape == (2, 6)
        assert a[f"grad_ica_{q}"].shape == (2, 6, 4)
        assert result.scalars[f"completeness_delta_deeplift_{q}"]["n"] == 2
    # A direction of the world: the agent alone has nothing to say of it, the rollout has.
    assert "deeplift_frames_d_pca:0" not in a and np.abs(a["grad_d_d_pca:0"]).max() > 0
    assert result.tables["checks"] and (out / "checks.csv").exists()
    kinds = {(row["check"], row["of"]) for row in result.tables["checks"] if row["quantity"] == "action"}
    for method in ("gradient", "integrated", "deeplift", "occlusion"):
        assert {(c, method) for c in ("infidelity", "sensitivity", "insertion", "deletion")} <= kinds
    assert ("randomised", "world, on frames") in kinds and ("randomised", "agent, from the output to cell") in kinds
    assert all(row["n"] == 2 for row in result.tables["checks"] if row["value"] is not None)
    assert (out / "sample_1_d_pca_0.png").exists()


def test_a_range_leaves_its_end_out_and_samples_combine(runs: Path, tmp_path: Path) -> None:
    one = explain(runs, tmp_path / "range", "--sample_ids", 3, "to", 5, "--quantities", "value", "--no-video")
    assert one.arrays["sample_ids"].tolist() == [3, 4]
    out = tmp_path / "combined"
    both = explain(
        runs, out, "--sample_ids", 3, "to", 5, "--combine_samples_not_iterate", "--quantities", "value", "--no-video"
    )
    assert both.notes["combined_ids"] == [3, 4] and both.arrays["frames"].shape[0] == 1
    assert (out / "sample_combined_value.png").exists()
    simulator = load_simulator(runs / "simulator")
    with sources.open_samples(runs / "samples") as store:
        z = simulator.world.normalise(torch.from_numpy(store.latents([3, 4])).mean(0, keepdim=True))
    assert torch.linalg.norm(z).item() == pytest.approx(1.0)
    with torch.no_grad():
        expected = simulator.rollout(z, 5).value.numpy()
    np.testing.assert_allclose(both.arrays["value"], expected, rtol=1e-4, atol=1e-6)


def test_the_video_can_be_played(runs: Path, tmp_path: Path) -> None:
    import imageio_ffmpeg

    out = tmp_path / "saliency"
    explain(runs, out, "--sample_ids", 0, "--quantities", "value")
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(out / "sample_0_value.mp4")]
    raw = subprocess.run([*decode, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    frames = np.frombuffer(raw, np.uint8).reshape(-1, 304, 512, 3).astype(float)
    assert len(frames) == 6
    assert np.abs(frames[2][40:47, 300:500].mean((0, 1)) - np.array(strips.GOLD)).max() < 40  # the target step
    assert frames[1][40:47, 300:500].mean() > 235


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sample_ids", "12"], "no sample 12; there are 12 (0 to 11)"),
        (["--sample_ids", "0", "to", "13"], "no sample 12"),
        (["--quantities", "jumping"], "no quantity 'jumping'"),
        (["--quantities", "ica_0"], "--hidden_states"),
        (["--quantities", "ica_4", "--hidden_states", "HIDDEN"], "direction ica:4 does not exist"),
        (["--quantities", "pca_0", "--hidden_states", "HIDDEN"], "no 'pca' basis"),
        (["--quantities", "value_delta", "--target_step", "0"], "--target_step 1 or later"),
        (["--target_step", "11"], "--target_step 11"),
        (["--copies", "0"], "--copies"),
        (["--copies", "4"], "--copies and --noise go together, as in --copies 16 --noise 0.1"),
        (["--noise", "0.1"], "--copies and --noise go together"),
        (["--quantities", "d_pca_0"], "needs --env_states"),
        (["--methods", "grad"], "methods"),
        (["--stride", "9"], "--stride"),
        (["--draws", "0"], "--draws"),
        (["--radius", "nan"], "--radius must be a finite number"),
        (["--radius", "0"], "--radius above 0"),
        (["--noise", "nan"], "--noise"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--memory_gb", "nan"], "--memory_gb"),
        (["--window", "65", "--methods", "occlusion"], "--window 65 does not fit into a frame of 64 pixels"),
        (["--samples", "HIDDEN"], "holds no rollouts"),
    ],
)
def test_mistakes_leave_nothing(
    runs: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "saliency"
    words = [str(runs / "hidden_states") if w == "HIDDEN" else w for w in words]
    with pytest.raises(SystemExit) as ended:
        cli.run(saliency.SaliencyConfig, saliency.main, saliency.STAGE, argv(runs, out, "--no-video", *words))
    assert ended.value.code == 2 and not out.exists()
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_window_that_nothing_is_covered_with_may_be_of_any_size(runs: Path, tmp_path: Path) -> None:
    """The default one is larger than a frame of MiniGrid's, which has 7 pixels a side."""
    words = ["--window", 65, "--methods", "plain", "--quantities", "value", "--sample_ids", 0, "--no-video"]
    assert "plain_frames_value" in explain(runs, tmp_path / "saliency", *words).arrays


@pytest.mark.parametrize(
    ("ways", "made"),
    [
        (["--actions", "2"], "--actions 2"),
        (["--stochastic"], "--stochastic"),
        (["--stochastic", "--shift", "ica:0=40"], "--stochastic and an intervention (Shift)"),
    ],
)
def test_samples_that_are_not_the_rollouts_from_their_latents_are_refused(
    runs: Path, tmp_path: Path, ways: list[str], made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    samples, out = tmp_path / "altered", tmp_path / "saliency"
    if "--shift" in ways:
        ways = [*ways, "--basis", str(runs / "hidden_states")]
    words = ["--simulator", runs / "simulator", "--out", samples, "--samples", 3, "--steps", 6, "--threads", 1]
    cli.run(record_samples.RecordSamplesConfig, record_samples.main, "s", [*map(str, words), *ways])
    of = ["--samples", samples, "--sample_ids", 0, 1, "--quantities", "value", "--no-video"]
    with pytest.raises(SystemExit) as ended:
        explain(runs, out, *of)
    assert ended.value.code == 2 and not out.exists()
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert "of the sampled steps come out again from their latents" in line
    assert f"({samples} was recorded with {made}); saliency needs samples recorded without noise" in line
    explain(runs, out, *of, "--combine_samples_not_iterate")  # of their latents alone


def test_one_sample_that_rounding_turned_is_named_and_the_rest_explained(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = RolloutStore.read_windows

    def turned(self: RolloutStore, columns: Sequence[str], starts: np.ndarray, steps: int) -> Any:
        window = read(self, columns, starts, steps)
        if "action" in columns and "h" in columns:
            window.columns["h"][starts[:, 0] == 1, 1] += 1.0
        return window

    monkeypatch.setattr(RolloutStore, "read_windows", turned)
    result = explain(runs, tmp_path / "saliency", "--sample_ids", 0, 1, 2, "--quantities", "value", "--no-video")
    assert result.notes["not_as_recorded"] == [1]
    assert "warning: samples 1 do not come out again" in capsys.readouterr().err


def couple(runs: Path, out: Path, *more: object) -> None:
    words = argv(runs, out, "--hidden_states", runs / "hidden_states", "--behaviours", "None", *more)
    cli.run(coupling.CouplingConfig, coupling.main, coupling.STAGE, words)


def test_coupling_of_samples(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "coupling"
    couple(
        runs, out, "--lags", 1, 3, "--max_directions", 3, "--samples_per_behaviour", 10,
        "--permutations", 199, "--resamples", 99,
    )  # fmt: skip
    result = Result.load(out)
    for name in ("jacobian", "jacobian_agent_only", "correlation", "q_jacobian", "q_correlation", "jacobian_low"):
        assert result.arrays[name].shape == (1, 2, 3, 3) and np.isfinite(result.arrays[name]).all(), name
    assert result.arrays["samples"].tolist() == [10]
    assert (out / "matrix_0.png").stat().st_size > 5000 and (out / "edges.csv").exists()
    assert artefacts.verify(out) == []
    said = capsys.readouterr()
    assert "directions in 1 behaviours" in said.out
    assert said.err.count("note: 18 Jacobians are tested together and p is never below 0.005") == 1
    assert len(result.notes["resolution"]) == 2 and result.notes["left_out"] == []
    assert result.notes["directions"] == ["ica:0", "ica:1", "ica:2"]
    # Of few steps: whole samples drawn, and how many.
    few = tmp_path / "few"
    couple(
        runs, few, "--lags", 1, "--max_directions", 3, "--samples_per_behaviour", 10, "--most_states", 100,
        "--permutations", 199, "--resamples", 99,
    )  # fmt: skip
    share = Result.load(few).scalars["drawn_samples"]
    assert 0 < share["value"] < 1 and f"of {share['n']} whole episodes drawn" in capsys.readouterr().err
    # Those that are named, in that order: the same numbers.
    two = tmp_path / "two"
    couple(
        runs, two, "--lags", 1, 3, "--directions", "ica:2", "0", "--samples_per_behaviour", 10,
        "--permutations", 199, "--resamples", 99,
    )  # fmt: skip
    named = Result.load(two)
    assert named.notes["directions"] == ["ica:2", "ica:0"]
    for name in ("jacobian", "correlation", "straight_through"):
        np.testing.assert_allclose(named.arrays[name], result.arrays[name][..., [2, 0], :][..., [2, 0]], atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lags", "0"], "--lags"),
        (["--lags", "2", "2"], "--lags"),
        (["--lags", "30"], "too short"),
        (["--basis_kind", "pca"], "no 'pca' basis"),
        (["--samples_per_behaviour", "5"], "at --alpha 0.05 needs at least 6"),
        (["--alpha", "0.005"], "99 permutations are too few at level 0.005: the smallest p they can give is 0.01; use"),
        (["--alpha", "0.0001", "--permutations", "9999", "--samples_per_behaviour", "20"], "at most 12, and a"),
        (["--alpha", "0"], "--alpha 0 is not between 0 and 1"),
        (["--permutations", "9"], "--permutations must be at least 99"),
        (["--max_directions", "-1"], "--max_directions must be at least 0"),
        (["--directions", "ica:9"], "direction ica:9 does not exist"),
        (["--directions", "pca:0"], "is of another basis than ica"),
        (["--directions", "ica:1", "1"], "--directions names ica:1 twice"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--memory_gb", "nan"], "--memory_gb"),
        (["--rollouts", "SAMPLES"], "does not hold real rollouts"),
    ],
)
def test_coupling_mistakes_leave_nothing(
    runs: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "coupling"
    with pytest.raises(SystemExit) as ended:
        couple(
            runs,
            out,
            *(["--permutations", "99"] if "--permutations" not in words else []),
            *[str(runs / "samples") if w == "SAMPLES" else w for w in words],
        )
    assert ended.value.code == 2 and not out.exists()
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_samples_that_ended_before_the_target_are_not_in_the_means(runs: Path, tmp_path: Path) -> None:
    result = explain(runs, tmp_path / "s", "--sample_ids", 0, "to", 3, "--quantities", "value", "--no-video")
    result.arrays["alive"] = np.ones_like(result.arrays["alive"])
    result.arrays["alive"][1, 2:] = False
    quantities = find_quantities(["value"], SPEC, bases.bases_in(None, "", torch.device("cpu")))
    tables.summarise(result, quantities, [0, 1, 2], np.arange(3), 0)
    mean, each = result.scalars["randomised_correlation_value"], result.arrays["randomised_correlation_value"]
    assert mean["n"] == 2 and mean["value"] == pytest.approx((each[0] + each[2]) / 2)
    assert [row["alive"] for row in result.tables["saliency"]] == [True, False, True]
    result.notes["target_step"], said = result.arrays["alive"].shape[1] - 1, "ended before step"
    assert tables.said_of_ended(result).startswith(f"sample 1 {said}")
    result.arrays["alive"][2, -1] = False
    assert tables.said_of_ended(result).startswith(f"samples 1, 2 {said}")
    assert "(ended)" in strip_of(result, 1, "value", "frames", SPEC).title
    assert "(ended)" not in strip_of(result, 0, "value", "frames", SPEC).title
    result.arrays["alive"][:] = True
    assert tables.said_of_ended(result) == ""
