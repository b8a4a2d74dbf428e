"""The hidden_states and behaviours stages, run as scripts on small stores, chained, and given bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from analysis import hidden_states
from analysis.behaviours import __main__ as behaviours
from analysis.shared.behaviours import load_behaviours
from analysis.states.fit import outliers
from analysis.states.heads import head_weights
from analysis.states.pooled import FitOptions, join, pool
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import EnvSpec, Field, UserError
from core.directions import fingerprint, load_basis
from core.episodes import Episode, RolloutStore, StoreWriter
from generative.rssm import ModelConfig
from generative.simulator import save_simulator, simulator_of

H = 12
SPEC = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=("left", "none", "right"),
    slots=4,
)


def write_store(
    path: Path, source: str, facts: dict[str, Any], episodes: int, seed: int, size: int = H, spoil: float | None = None
) -> None:
    """Episodes whose h shows three modes, with frames (and world states) that show them too.

    spoil: what neuron 7 always is.
    """
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    mixing, of_world = fixed.standard_normal((8, size)), fixed.standard_normal((8, 6))
    with artefacts.new_run(path, "record", {"seed": seed}) as run, StoreWriter(run.path) as writer:
        artefacts.write_json(run.path / "spec.json", SPEC.to_json())
        for _ in range(episodes):
            steps = 16 if source == "simulated" else int(rng.integers(14, 24))
            rows = steps + (source == "simulated")
            mode = np.repeat(rng.integers(3, size=rows // 6 + 1), 6)[:rows]
            z = rng.laplace(size=(rows, 8))
            z[:, :3] += 8 * np.eye(3)[mode]
            frames = rng.integers(0, 60, (rows, 64, 64, 3), np.uint8)
            frames[np.arange(rows), :, :, mode] += 180
            h = (np.tanh(0.1 * z @ mixing) + 0.01 * rng.standard_normal((rows, size))).astype(np.float32)
            simulated = source == "simulated"
            if spoil is not None:
                h[:, 7] = spoil
            writer.add(
                Episode(
                    obs={"frames": frames},
                    h=h,
                    value=mode.astype(np.float32),
                    action=mode[:steps].astype(np.int64),
                    logits=rng.standard_normal((steps, 3)).astype(np.float32),
                    reward=np.zeros(steps, np.float32),
                    terminated=True,
                    truncated=False,
                    world={"d": (z @ of_world).astype(np.float32)} if simulated else {},
                    latent=rng.standard_normal(4).astype(np.float32) if simulated else None,
                )
            )
        run.facts = {"source": source, **facts}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with agent, simulator, rollouts and samples."""
    root = tmp_path_factory.mktemp("world")
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=H), SPEC)
    config = ModelConfig(
        deterministic_size=6, hidden_size=8, groups=2, classes=3, depth=2, head_layers=1, latent_size=4
    )
    simulator = simulator_of(config, agent)
    with artefacts.new_run(root / "agent", "train", {"seed": 0}) as run:
        save_agent(agent, run.path)
    with artefacts.new_run(root / "simulator", "train_gen_model", {"seed": 0}) as run:
        save_simulator(simulator, run.path)
    facts = {"agent": fingerprint(agent)}
    write_store(root / "rollouts", "real", facts, 20, 0)
    write_store(root / "samples", "simulated", facts | {"simulator": fingerprint(simulator)}, 8, 1)
    return root


def states_argv(world: Path, out: Path) -> list[str]:
    return [
        "--rollouts", str(world / "rollouts"), "--samples", str(world / "samples"), "--agent", str(world / "agent"),
        "--out", str(out), "--ica-size", "4", "--ica_restarts", "3", "--nmf_size", "3", "--clusters", "3",
        "--embedding_states", "150", "--surrogates", "2", "--threads", "1",
    ]  # fmt: skip


def behaviours_argv(world: Path, out: Path) -> list[str]:
    return [
        "--rollouts", str(world / "rollouts"), "--samples", str(world / "samples"), "--simulator",
        str(world / "simulator"), "--out", str(out), "--clusters", "3", "--lags", "1", "2", "--filmstrips", "2",
        "--surrogates", "2", "--threads", "1",
    ]  # fmt: skip


def run_states(*argv: str) -> None:
    cli.run(hidden_states.HiddenStatesConfig, hidden_states.main, hidden_states.STAGE, list(argv))


def run_behaviours(*argv: str) -> None:
    cli.run(behaviours.BehavioursConfig, behaviours.main, behaviours.STAGE, list(argv))


@pytest.fixture(scope="module")
def states(world: Path) -> Path:
    run_states(*states_argv(world, world / "hidden_states"))
    return world / "hidden_states"


@pytest.fixture(scope="module")
def labelled(world: Path) -> Path:
    run_behaviours(*behaviours_argv(world, world / "behaviours"))
    return world / "behaviours"


def test_hidden_states_writes_bases_arrays_and_figures(world: Path, states: Path) -> None:
    assert artefacts.verify(states) == []
    name = artefacts.read_manifest(world / "rollouts")["facts"]["agent"]
    result = Result.load(states)
    n = len(result.arrays["index"])
    for kind, size in (("pca", H), ("ica", 4), ("nmf", 3), ("neurons", H)):
        assert load_basis(states, kind, name).size == size
    assert result.arrays["c_ica"].shape == (n, 4) and result.arrays["c_pca"].shape == (n, H)
    assert result.arrays["index"][:, 1].min() == 1  # step 0 is dropped
    assert set(result.arrays["source"]) == {0, 1} and not result.arrays["kept"][result.arrays["source"] == 1].any()
    assert {p.name for p in states.glob("*.png")} == {
        "explained.png", "time_courses.png", "paths.png", "planes.png", "map.png", "heads.png", "overlap.png"
    }  # fmt: skip
    assert all(p.stat().st_size > 5000 for p in states.glob("*.png"))
    assert (states / "turning.html").stat().st_size > 20_000
    manifest = artefacts.read_manifest(states)
    assert set(manifest["inputs"]) == {"rollouts", "samples", "agent"}
    assert manifest["metrics"]["cluster_stability"]["value"] > 0.9
    overlap = {row["measure"]: row for row in result.tables["overlap"]}  # both sources are made alike
    assert abs(overlap["inside"]["simulated"] - overlap["inside"]["floor"]) < 0.15
    assert overlap["told_apart"]["low"] < 0.6
    store = RolloutStore(world / "rollouts")
    for row in np.flatnonzero(result.arrays["source"] == 0)[[0, 40, -1]]:
        e, t = result.arrays["index"][row]
        for column in ("value", "action", "reward"):
            assert result.arrays[column][row] == getattr(store.episode(int(e)), column)[t]
    assert manifest["metrics"]["cluster_share_from_time_floor"]["interval"][0] >= 0


def test_hidden_states_coordinates_are_those_of_the_basis(world: Path, states: Path) -> None:
    result, basis = Result.load(states), load_basis(states, "ica")
    row = int(np.flatnonzero(result.arrays["source"] == 1)[5])
    episode, t = result.arrays["index"][row]
    h = RolloutStore(world / "samples").episode(int(episode)).h[t]
    np.testing.assert_allclose(basis.project(torch.from_numpy(h)).numpy(), result.arrays["c_ica"][row], atol=1e-4)


def test_states_know_their_episode_and_the_policy_s_doubt(world: Path) -> None:
    """Share, best reward and entropy of stored rollouts, recomputed episode by episode; kept where sources join."""
    with RolloutStore(world / "rollouts") as store:
        states = pool(store, "h", FitOptions(), store)
        for row in (0, len(states.x_NF) // 2, -1):
            e, t = states.index_N2[row]
            episode = store.episode(int(e))
            assert states.more["share"][row] == pytest.approx(t / (min(episode.steps, len(episode.h)) - 1))
            assert states.more["best_reward"][row] == episode.reward.max()
            assert episode.logits is not None
            p = np.exp(episode.logits[t] - np.logaddexp.reduce(episode.logits[t]))
            assert states.more["entropy"][row] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-4)
    without = replace(states, more={"share": states.more["share"]})
    both = join([states, without])
    assert np.isnan(both.more["entropy"][-len(states.x_NF) :]).all()
    assert (both.more["share"][-len(states.x_NF) :] == states.more["share"]).all()


def test_umap_keeps_the_modes_apart(states: Path) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    result = Result.load(states)
    mode = result.arrays["value"][result.arrays["map_row"]].astype(int)  # the planted mode, by construction
    xy = result.arrays["map"]
    assert xy.shape == (150, 2) and result.notes["embedding"] == "umap"
    assert KNeighborsClassifier(5).fit(xy[::2], mode[::2]).score(xy[1::2], mode[1::2]) > 0.9


def test_head_weights_are_the_finite_differences(world: Path, states: Path) -> None:
    from agents.recurrent import load_agent
    from core.roll import heads_at

    agent, basis = load_agent(world / "agent"), load_basis(states, "ica")
    c = torch.tensor([[0.5, -1, 2, 0]])
    shifted = [torch.cat([logits[0], value]) for logits, value in (heads_at(agent, basis.lift(x)) for x in (c, c * 0))]
    torch.testing.assert_close(
        torch.from_numpy(head_weights(agent, basis)) @ c[0], shifted[0] - shifted[1], atol=1e-5, rtol=1e-4
    )
    saved = Result.load(states).arrays
    np.testing.assert_allclose(saved["head_weights"], head_weights(agent, basis), atol=1e-6)
    for kind in ("pca", "nmf", "neurons"):
        weights = head_weights(agent, load_basis(states, kind))
        np.testing.assert_allclose(saved[f"head_weights_{kind}"], weights, atol=1e-6)
    # Whatever the basis, the heads see the same state: complete ones give the same change for the same step.
    h, of = torch.randn(3, H), {kind: load_basis(states, kind) for kind in ("pca", "neurons")}
    steps = {kind: (b.project(h) @ torch.from_numpy(saved[f"head_weights_{kind}"]).T) for kind, b in of.items()}
    torch.testing.assert_close(steps["pca"], steps["neurons"], atol=1e-4, rtol=1e-3)


def test_plot_draws_the_same_figures_into_another_directory(states: Path, world: Path, tmp_path: Path) -> None:
    before = artefacts.sha256(states / artefacts.MANIFEST)
    run_states("plot", "--hidden_states", str(states), "--out", str(tmp_path / "figures"))
    for name in ("explained.png", "time_courses.png", "paths.png", "planes.png", "map.png", "heads.png", "overlap.png",
                 "turning.html"):  # fmt: skip
        assert (tmp_path / "figures" / name).read_bytes() == (states / name).read_bytes()
    assert artefacts.sha256(states / artefacts.MANIFEST) == before
    assert artefacts.verify(tmp_path / "figures") == []


def test_plot_with_another_agent_is_refused(
    states: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    other = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=H), SPEC)
    with artefacts.new_run(tmp_path / "agent", "train", {"seed": 1}) as run:
        save_agent(other, run.path)
    with pytest.raises(SystemExit) as ended:
        run_states(
            "plot", "--hidden_states", str(states), "--agent", str(tmp_path / "agent"), "--out", str(tmp_path / "o")
        )
    assert ended.value.code == 2 and "is of agent" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_precompute_draws_nothing(world: Path, tmp_path: Path) -> None:
    run_states("precompute", *states_argv(world, tmp_path / "out"), "--embedding", "pca", "--drop_outliers")
    assert list((tmp_path / "out").glob("*.png")) == []
    result = Result.load(tmp_path / "out")
    left = result.scalars["outliers"]["value"]
    assert 0 < left == (~result.arrays["kept"] & (result.arrays["source"] == 0)).sum()


def test_outliers_are_the_far_ones() -> None:
    rng = np.random.default_rng(0)
    h_NH = rng.standard_normal((300, 4))
    h_NH[:5] += 20 * np.eye(5, 4) + np.arange(5)[:, None] * 9
    found = outliers(h_NH, 10)
    assert found[:5].all() and found[5:].mean() < 0.05


def test_behaviours_writes_labels_tables_and_figures(world: Path, labelled: Path) -> None:
    assert artefacts.verify(labelled) == []
    result = Result.load(labelled)
    found = load_behaviours(labelled)
    assert found.agent == artefacts.read_manifest(world / "rollouts")["facts"]["agent"]
    assert set(found.labels) == {"real", "sim"} and set(found.names) == {0, 1, 2}
    assert len(found.sample_labels) == 8 and found.sample_labels.min() >= 0
    assert sum(len(found.steps(b)) for b in found.names) == len(found.index["real"])
    assert found.index["real"][:, 1].min() == 2  # world states begin with the last initial frame
    assert found.index["sim"][:, 1].min() == 1
    figures = {"graph.png", "transitions.png", "map.png", "time.png", *(f"strip_{b}.png" for b in found.names)}
    assert {p.name for p in labelled.glob("*.png")} == figures
    assert [row["behaviour"] for row in result.tables["behaviours"]] == [0, 1, 2]
    assert artefacts.read_manifest(labelled)["facts"]["vector"] == "h and world components"
    with pytest.raises(UserError, match="behaviour 7 does not exist"):
        found.steps(7)


def test_names_can_be_edited_and_are_checked(
    labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "behaviours"
    shutil.copytree(labelled, copy)
    names = json.loads((copy / "behaviours.json").read_text())
    load_behaviours(copy)
    assert "edited" not in capsys.readouterr().err
    (copy / "behaviours.json").write_text(json.dumps({**names, "1": "jumps over the saw"}))
    assert load_behaviours(copy).names[1] == "jumps over the saw"
    assert "behaviours.json was edited since the behaviours were made; its names are used" in capsys.readouterr().err
    assert not any("behaviours.json" in problem for problem in artefacts.verify(copy))
    (copy / "behaviours.json").write_text(json.dumps({"0": "only one"}))
    with pytest.raises(UserError, match="must name each of the behaviours 0 to 2"):
        load_behaviours(copy)


def test_behaviours_without_simulator_say_so(world: Path, tmp_path: Path) -> None:
    argv = behaviours_argv(world, tmp_path / "out")
    del argv[2:6]
    run_behaviours(*argv)
    assert artefacts.read_manifest(tmp_path / "out")["facts"]["vector"] == "h only"
    found = load_behaviours(tmp_path / "out")
    assert set(found.labels) == {"real"} and len(found.sample_labels) == 0
    assert found.index["real"][:, 1].min() == 1
    with pytest.raises(UserError, match="no 'sim' labels"):
        found.steps(0, "sim")


def test_a_dead_neuron_is_left_out_by_name(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a feed-forward agent's last layer: every basis leaves it alone, and the run says which it is."""
    name = artefacts.read_manifest(world / "rollouts")["facts"]["agent"]
    write_store(tmp_path / "rollouts", "real", {"agent": name}, 8, 0, spoil=0.5)
    write_store(tmp_path / "samples", "simulated", {"agent": name, "simulator": "x"}, 8, 0)  # there it is alive
    argv = states_argv(world, tmp_path / "out") + ["--embedding", "pca"]
    run_states(*argv, "--rollouts", str(tmp_path / "rollouts"), "--samples", str(tmp_path / "samples"))
    assert "left out, since they never change: neuron 7\n" in capsys.readouterr().err
    assert artefacts.read_manifest(tmp_path / "out")["facts"]["left_out"] == ["neuron 7"]
    for kind in ("pca", "ica", "nmf", "neurons"):
        basis = load_basis(tmp_path / "out", kind, name)
        assert basis.facts["left_out"] == ["neuron 7"] and not basis.lift_KH[:, 7].any()
    assert Result.load(tmp_path / "out").arrays["head_weights_neurons"][:, 7].tolist() == [0] * 4


def test_a_directory_that_is_taken_is_refused_before_the_work(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").write_text("a note")
    for module, name, script, argv in (
        (hidden_states.states_fit, "fit", run_states, states_argv(world, tmp_path)),
        (behaviours, "cluster_some", run_behaviours, behaviours_argv(world, tmp_path)),
    ):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("it was fitted first"))
        with pytest.raises(SystemExit):
            script(*argv)
        assert "already holds data" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "a note"


def test_mistakes_are_one_line_and_leave_nothing(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"agent": "f" * 16}
    write_store(tmp_path / "another_agent", "simulated", other, 2, 0)
    name = artefacts.read_manifest(world / "rollouts")["facts"]["agent"]
    write_store(tmp_path / "another_simulator", "simulated", {"agent": name, "simulator": "0" * 16}, 2, 0)
    write_store(tmp_path / "few", "real", {"agent": name}, 1, 0)
    write_store(tmp_path / "nan", "real", {"agent": name}, 8, 0, spoil=np.nan)
    torch.manual_seed(1)
    other_agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=H), SPEC)
    with artefacts.new_run(tmp_path / "agent", "train", {"seed": 1}) as run:
        save_agent(other_agent, run.path)
    out = tmp_path / "out"
    states, labels = states_argv(world, out), behaviours_argv(world, out)
    cases: list[tuple[Callable[..., None], list[str], str]] = [
        (run_states, ["--rollouts", "None", "--out", str(out)], "--rollouts DIR is needed"),
        (run_states, ["plot", "--out", str(out)], "plot needs --hidden_states"),
        (
            run_states,
            ["plot", "--hidden_states", str(world / "rollouts"), "--out", str(out)],
            "a 'hidden_states' directory",
        ),
        (run_states, [*states, "--samples", str(tmp_path / "another_agent")], "use one agent"),
        (run_states, [*states, "--samples", str(world / "rollouts")], "are real rollouts"),
        (run_states, [*states, "--rollouts", str(world / "samples")], "are simulated"),
        (run_states, [*states, "--rollouts", str(world / "none")], "no such run directory"),
        (run_states, [*states, "--rollouts", str(tmp_path / "few")], "are of 1 episode, 2 are needed"),
        (run_states, [*states, "--rollouts", str(tmp_path / "nan")], "NaN or infinite values"),
        (run_states, [*states, "--agent", str(tmp_path / "agent")], "is of agent"),
        (run_states, [*states, "--hidden_states", str(world / "rollouts")], "--hidden_states belongs to plot"),
        (run_states, [*states, "--ica_size", "40"], "choose 1 to 12"),
        (run_states, [*states, "--first_step", "-1"], "--first_step -1: at least 0"),
        (run_states, [*states, "--first_step", "500"], "no episode is longer than 500 steps"),
        (run_behaviours, [*labels, "--samples", str(tmp_path / "another_agent")], "use one agent"),
        (
            run_behaviours,
            [*labels, "--samples", str(tmp_path / "another_simulator")],
            "was not generated by the simulator",
        ),
        (run_behaviours, [*labels, "--simulator", str(world / "agent")], "holds no simulator"),
        (run_behaviours, [*labels, "--clusters", "1"], "at least 2"),
        (run_behaviours, [*labels, "--lags", "0"], "none below 1"),
    ]
    for script, argv, message in cases:
        with pytest.raises(SystemExit) as ended:
            script(*argv)
        error = capsys.readouterr().err.strip()
        assert ended.value.code == 2 and message in error and error.count("\n") == 0, (argv, error)
        assert not out.exists()
