"""The env_states and latents stages, run as scripts on a debug-sized chain, and given bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from analysis import env_states, hidden_states, latents
from analysis.shared import sources, units
from analysis.shared.world_states import world_states
from analysis.states import pooled, runs
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.directions import fingerprint, load_basis
from core.episodes import RolloutStore
from generative.record_samples import informed_latents
from generative.simulator import load_simulator

CPU = torch.device("cpu")
FIGURES = {"explained.png", "time_courses.png", "paths.png", "planes.png", "map.png", "overlap.png"}


def run(module: object, config: str, *argv: object) -> None:
    words = ["--preset", "debug", "--threads", "1", *map(str, argv)]
    cli.run(getattr(module, config), module.main, module.STAGE, words)  # type: ignore[attr-defined]


def given(pipeline: Path, *names: str) -> list[object]:
    return [word for name in names for word in (f"--{name}", pipeline / name)]


@pytest.fixture(scope="module")
def world(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("env") / "env_states"
    run(env_states, "EnvStatesConfig", *given(pipeline, "simulator", "rollouts", "samples"), "--out", out)
    return out


@pytest.fixture(scope="module")
def starts(pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("z") / "latents"
    run(latents, "LatentsConfig", "precompute", *given(pipeline, "simulator", "rollouts", "samples"), "--out", out)
    return out


def test_env_states_are_the_posterior_of_real_and_the_own_of_simulated(pipeline: Path, world: Path) -> None:
    assert artefacts.verify(world) == []
    assert {p.name for p in world.glob("*.png")} == FIGURES
    simulator = load_simulator(pipeline / "simulator", CPU)
    name = fingerprint(simulator)
    basis = load_basis(world, "pca", name)
    assert basis.space == "d" and load_basis(world, "nmf", name).size == 4
    with pytest.raises(UserError, match=f"fitted on simulator {name}, not on another"):
        load_basis(world, "pca", "another")
    result = Result.load(world)
    row = int(np.flatnonzero(result.arrays["source"] == sources.SIMULATED)[-1])
    e, t = result.arrays["index"][row]
    episode = RolloutStore(pipeline / "samples").episode(int(e))
    own = basis.project(torch.from_numpy(episode.world["d"][t])).numpy()
    np.testing.assert_allclose(own, result.arrays["c_pca"][row], atol=1e-4)
    for column in ("value", "action", "reward"):
        assert result.arrays[column][row] == getattr(episode, column)[t]
    assert result.arrays["level"][row] == pooled.UNKNOWN_LEVEL
    real, lead = RolloutStore(pipeline / "rollouts"), simulator.world.initial_frames - 1
    row = int(np.flatnonzero(result.arrays["source"] == sources.REAL)[7])
    e, t = result.arrays["index"][row]
    seen = world_states(simulator.world, real, CPU)[e][t - lead]
    np.testing.assert_allclose(
        basis.project(torch.from_numpy(seen)).numpy(), result.arrays["c_pca"][row], atol=1e-4, rtol=1e-4
    )
    assert result.arrays["level"][row] == real.episode(int(e)).truth["level"][t]
    assert result.arrays["action"][row] == real.episode(int(e)).action[t]


def test_latents_belong_to_the_last_frame_of_their_window(pipeline: Path, starts: Path) -> None:
    assert artefacts.verify(starts) == []
    assert list(starts.glob("*.png")) == []
    simulator = load_simulator(pipeline / "simulator", CPU)
    basis = load_basis(starts, "pca", fingerprint(simulator))
    assert basis.space == "z" and (basis.std_H == 1).all()
    result, real = Result.load(starts), RolloutStore(pipeline / "rollouts")
    assert "too few" in result.notes["overlap"]
    row = int(np.flatnonzero(result.arrays["source"] == sources.REAL)[5])
    e, t = result.arrays["index"][row]
    assert t % 2 == 0  # --every 2, from the last initial frame on
    z = informed_latents(simulator.world, real, np.array([[e, t - simulator.world.initial_frames + 1]]), CPU)
    np.testing.assert_allclose(basis.project(z)[0].detach().numpy(), result.arrays["c_pca"][row], atol=2e-3)
    assert result.arrays["value"][row] == real.episode(int(e)).value[t]
    samples = RolloutStore(pipeline / "samples")
    row = int(np.flatnonzero(result.arrays["source"] == sources.SIMULATED)[3])
    e, t = result.arrays["index"][row]
    z = torch.from_numpy(samples.latents([int(e)]))
    np.testing.assert_allclose(basis.project(z)[0].numpy(), result.arrays["c_pca"][row], atol=1e-4)
    assert t == 0 and result.arrays["value"][row] == samples.episode(int(e)).value[0]


def test_samples_share_the_unit_of_the_episode_they_started_in(pipeline: Path) -> None:
    real, samples = RolloutStore(pipeline / "rollouts"), RolloutStore(pipeline / "samples")
    begun = [samples.meta(e)["start"][0] for e in range(len(samples))]
    assert units.units(samples, real).tolist() == [3 * e for e in begun]
    assert units.units(real, real).tolist() == [3 * e for e in range(len(real))]
    assert units.units(samples, None).tolist() == [3 * e + 1 for e in begun]  # together, but not with real ones


def test_samples_alone_are_fitted_on_and_need_no_simulator(pipeline: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(env_states, "EnvStatesConfig", "precompute", *given(pipeline, "samples"), "--out", out)
    manifest = artefacts.read_manifest(out)
    assert manifest["facts"]["fitted_on"] == "simulated" and manifest["facts"]["sources"] == ["simulated"]
    assert manifest["facts"]["simulator"] == fingerprint(load_simulator(pipeline / "simulator", CPU))
    assert list(out.glob("*.png")) == []


def test_plot_draws_the_same_figures_again(world: Path, starts: Path, tmp_path: Path) -> None:
    run(env_states, "EnvStatesConfig", "plot", "--env_states", world, "--out", tmp_path / "drawn")
    for figure in world.glob("*.png"):
        assert (tmp_path / "drawn" / figure.name).read_bytes() == figure.read_bytes()
    assert artefacts.verify(tmp_path / "drawn") == []
    run(latents, "LatentsConfig", "plot", "--latents", starts, "--out", tmp_path / "more")
    drawn = {p.name for p in (tmp_path / "more").glob("*.png")}
    assert drawn == FIGURES - {"overlap.png"}  # 8 samples cannot be compared


def test_at_most_so_many_states_of_whole_episodes(pipeline: Path, tmp_path: Path) -> None:
    store = RolloutStore(pipeline / "rollouts")
    steps = np.minimum(store.steps, store.rows) - 2
    most = int(np.sort(steps)[-3:].sum())
    chosen = units.episodes_of(store, 2, most, 0)
    assert 2 <= len(chosen) < len(store) and steps[chosen].sum() <= most
    assert units.episodes_of(store, 2, 0, 0) == units.episodes_of(store, 2, 10**9, 0) == list(range(len(store)))
    out = tmp_path / "few"
    argv = given(pipeline, "simulator", "rollouts")
    run(env_states, "EnvStatesConfig", "precompute", *argv, "--most_states", most, "--out", out)
    result = Result.load(out)
    assert sorted(set(result.arrays["index"][:, 0])) == chosen
    assert len(result.arrays["index"]) == steps[chosen].sum()
    assert result.scalars["drawn_rollouts"]["value"] == pytest.approx(steps[chosen].sum() / steps.sum())


def test_mistakes_are_one_line_and_leave_nothing(
    pipeline: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", tmp_path / "out"]
    both = [*given(pipeline, "simulator", "rollouts"), "--most_states", 1000]
    with artefacts.new_run(tmp_path / "another", "record_samples", {}) as other:
        for file in (pipeline / "samples").glob("*.h5"):
            (other.path / file.name).write_bytes(file.read_bytes())
        (other.path / "spec.json").write_bytes((pipeline / "samples" / "spec.json").read_bytes())
        other.facts = {**artefacts.read_manifest(pipeline / "samples")["facts"], "simulator": "0" * 16}
    cases: list[tuple[list[object], str]] = [
        ([], "--rollouts DIR or --samples DIR is needed"),
        (given(pipeline, "rollouts"), "--rollouts needs --simulator DIR"),
        (["plot"], "DIR, the run directory to draw"),
        (["plot", "--env_states", pipeline / "samples"], "directory is needed"),
        ([*both, "--pca_size", 4000], "--pca_size 4000 directions: "),
        ([*both, "--clusters", 4000], "are too few for 4000 clusters"),
        ([*both, "--samples", pipeline / "rollouts"], "are real rollouts"),
        ([*both, "--samples", tmp_path / "another"], "was not generated by the simulator"),
        ([*both, "--rollouts", pipeline / "samples"], "are simulated"),
        ([*both, "--simulator", pipeline / "agent"], "holds no simulator"),
        ([*both, "--first_step", 100_000], "no episode is longer than"),
        ([*both, "--embedding", "pca", "pca"], "none twice"),
    ]
    for module, config in ((env_states, "EnvStatesConfig"), (latents, "LatentsConfig")):
        for words, says in cases if module is env_states else cases[:6]:
            words = [w.replace("--env_states", f"--{module.STAGE}") if isinstance(w, str) else w for w in words]
            with pytest.raises(SystemExit) as ended:
                run(module, config, *words, *out)
            error = capsys.readouterr().err.strip()
            assert ended.value.code == 2 and says in error and error.count("\n") == 0, (words, error)
            assert not (tmp_path / "out").exists()


def test_a_basis_of_another_space_is_refused(pipeline: Path, world: Path, tmp_path: Path) -> None:
    """World directions where an agent's are expected: the fingerprint is the simulator's."""
    agent = artefacts.read_manifest(pipeline / "rollouts")["facts"]["agent"]
    with pytest.raises(UserError, match=f"fitted on simulator [0-9a-f]+, not on {agent}"):
        load_basis(world, "pca", agent)
    with pytest.raises(UserError, match="a 'hidden_states' directory is needed"):
        runs.load_drawn(world, hidden_states.STAGE)
