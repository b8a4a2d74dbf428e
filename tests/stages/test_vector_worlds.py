"""Simulators of vector worlds, learned by the scripts: they learn, and any agent's is kept and can be made again."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.adopted import build, save_adopted
from agents.play import LiveWorld, likeliest
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from analysis.coupling import __main__ as coupling
from analysis.saliency import __main__ as saliency, figures as saliency_figures
from analysis.shared import strips
from analysis.shared.directions import fit_pca
from analysis.target_functions import __main__ as target_functions
from core import artefacts, config as cli
from core.contracts import EnvSpec, Field, Step, UserError, VecEnv
from core.directions import fingerprint
from core.episodes import Episode, RolloutStore, StoreWriter
from core.plugins import read_source
from core.roll import Noise, gumbel, roll, trajectory_of
from envs.planted import PlantedOptions, PlantedWorld, spec_of
from generative import bundle, record_samples, train
from generative.context_loss import ContextLossConfig
from generative.losses import LossConfig
from generative.simulator import load_simulator
from generative.splits import held_out_of, trained_on
from validation.fidelity import __main__ as fidelity
from validation.fidelity.pairing import choose_starts, pair
from validation.fidelity.whole import as_whole, whole_actions
from validation.panel.samples import named_actions
from validation.report import contents

SMALL = [
    "--threads", "1", "--deterministic_size", "32", "--hidden_size", "64", "--groups", "8", "--classes", "8",
    "--head_layers", "1", "--latent_size", "16", "--initial_frames", "2", "--learning_rate", "5e-3", "--batch", "32",
    "--steps", "6", "--validation_windows", "256", "--video_every", "0", "--validation_share", "0.25", "--preload",
]  # fmt: skip


def stage(module: Any, config_name: str, *argv: object) -> None:
    module.main(cli.parse(getattr(module, config_name), [str(word) for word in argv], module.STAGE))


def record(path: Path, agent: Any, env: VecEnv, horizon: int, episodes: int) -> Path:
    """``episodes`` a slot of ``horizon`` steps, which none ends before, by an agent that samples its actions."""
    torch.set_num_threads(1)
    world, slots, draw = LiveWorld(env, torch.device("cpu")), env.spec.slots, torch.Generator().manual_seed(0)
    count = horizon * episodes
    noise = [Noise(None, gumbel((slots, env.spec.n_actions), draw, torch.zeros(0))) for _ in range(count + 1)]
    with torch.no_grad():
        out = trajectory_of(list(roll(agent, world, world.reset(0), steps=count, noise=noise)))
    with artefacts.new_run(path, "record", {}) as run:
        artefacts.write_json(run.path / "spec.json", env.spec.to_json())
        with StoreWriter(run.path) as writer:
            for b, i in np.ndindex(slots, episodes):
                at = slice(i * horizon, (i + 1) * horizon)
                h, state = out.h[b, at].numpy(), out.state[b, at].numpy()
                columns = {k: getattr(out, k)[b, at].numpy() for k in ("value", "action", "logits", "reward")}
                writer.add(
                    Episode(
                        obs={k: x[b, at].numpy() for k, x in out.obs.items()}, h=h,
                        state=None if np.array_equal(h, state) else state, **columns,
                        terminated=False, truncated=True,
                    )
                )  # fmt: skip
        run.facts = {"source": "real", "agent": fingerprint(agent)}
    return path


def last_row(path: Path) -> dict[str, float]:
    with open(path / "curve.csv", newline="") as file:
        *_, row = csv.DictReader(file)
    return {k: float(v) for k, v in row.items()}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """agent/, rollouts/ and simulator/ of a planted world, whose observation is one vector."""
    root = tmp_path_factory.mktemp("planted")
    options = PlantedOptions(kind="linear", horizon=16, hazard=0.0)
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="mlp", embedding_size=16, hidden_size=8), spec_of(options, 1))
    agent.eval().requires_grad_(False)
    with artefacts.new_run(root / "agent", "train", {}) as run:
        save_agent(agent, run.path)
        artefacts.write_atomically(run.path / "curve.csv", b"step\n0\n")
        run.facts = {"agent": fingerprint(agent)}
    record(root / "rollouts", agent, PlantedWorld(options, 64), 16, 4)
    stage(train, "GenTrainConfig", *SMALL, "--agent", root / "agent", "--rollouts", root / "rollouts",
          "--out", root / "simulator", "--updates", 250, "--validate_every", 250)  # fmt: skip
    return root


def test_a_vector_world_is_learned(planted: Path) -> None:
    """Alone it is better than the last observation held still (of this world's noise it can know no more than the
    mean); what it was shown it knows."""
    manifest = artefacts.read_manifest(planted / "simulator")
    less, held = manifest["metrics"][artefacts.LESS_THAN_HELD], manifest["metrics"]["held_frame_mse"]
    assert less["unit"] == "squared standard deviations"
    assert less["value"] < -0.25 * held["value"] and less["interval"][1] < 0
    assert artefacts.SIMULATOR_WARNING not in manifest["facts"]
    world = load_simulator(planted / "simulator", name=train.LAST).world
    with RolloutStore(planted / "rollouts") as store:
        window = store.read_windows(train.columns_of(store), store.window_starts(9)[::50], 9)
    batch = train.to_batch(window, 2, torch.device("cpu"))
    shown = torch.stack([x.obs["x"] for x in world.along(batch.obs, batch.action, batch.seen)], 1)
    assert float(world.errors({"x": shown}, {"x": batch.obs["x"][:, 1:]})["x"].mean()) < 0.5  # of a variance of 1


def test_samples_of_a_vector_world_are_read_back(planted: Path, tmp_path: Path) -> None:
    starts = ["--simulator", planted / "simulator", "--rollouts", planted / "rollouts", "--threads", 1, "--samples", 24]
    stage(record_samples, "RecordSamplesConfig", *starts, "--steps", 6, "--out", tmp_path / "modal")
    stage(record_samples, "RecordSamplesConfig", *starts, "--steps", 6, "--stochastic", "--out", tmp_path / "drawn")
    simulator = load_simulator(planted / "simulator")
    with RolloutStore(tmp_path / "modal") as modal, RolloutStore(tmp_path / "drawn") as drawn:
        assert modal.spec.obs["x"].means == "real" and "state" not in modal.column_names
        x, _ = modal.pooled("obs/x")
        assert x["obs/x"].dtype == np.float32 and len(np.unique(x["obs/x"])) > 256  # no bytes
        again = simulator.rollout(torch.from_numpy(modal.latents([0])), 6).obs["x"][0]
        np.testing.assert_allclose(modal.episode(0).obs["x"], again[: modal.rows[0]], atol=1e-5)
        assert not np.array_equal(drawn.episode(0).obs["x"][:2], modal.episode(0).obs["x"][:2])
    assert artefacts.verify(tmp_path / "modal") == []


def test_a_bundle_of_a_vector_world_keeps_its_units(planted: Path, tmp_path: Path) -> None:
    stage(bundle, "BundleConfig", "--agent", planted / "agent", "--simulator", planted / "simulator",
          "--out", tmp_path / "bundle")  # fmt: skip
    one, other = (load_simulator(p) for p in (planted / "simulator", tmp_path / "bundle" / "simulator"))
    assert torch.equal(one.world.scales["x"].deviation, other.world.scales["x"].deviation)  # type: ignore[union-attr]
    z = torch.randn(2, 16)
    torch.testing.assert_close(one.rollout(z, 2).obs["x"], other.rollout(z, 2).obs["x"], atol=0.05, rtol=0.05)
    assert artefacts.verify(tmp_path / "bundle" / "simulator") == []


def test_a_world_without_pictures_says_that_none_are_drawn(
    planted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--simulator", planted / "simulator", "--threads", 1, "--steps", 4]
    stage(record_samples, "RecordSamplesConfig", *words, "--rollouts", planted / "rollouts", "--samples", 2,
          "--out", tmp_path / "samples")  # fmt: skip
    stage(saliency, "SaliencyConfig", *words, "--samples", tmp_path / "samples", "--sample_ids", 0,
          "--target_step", 2, "--integrated_steps", 2, "--out", tmp_path / "saliency")  # fmt: skip
    why = "no observation field of this world is a picture (uint8 [height, width, channels])"
    assert artefacts.Result.load(tmp_path / "saliency").notes["figures"] == f"none: {why}"
    assert capsys.readouterr().err.splitlines() == [f"note: no strips are drawn: {why}"]
    stage(target_functions, "TargetFunctionsConfig", *words, "--out", tmp_path / "targets", "--samples", 2,
          "--screen", 2, "--restarts", 1, "--iterations", 1, "--maximise", "value", "--minimise")  # fmt: skip
    assert artefacts.Result.load(tmp_path / "targets").notes["figures"] == f"no strips: {why}"
    assert f"note: no strips are drawn: {why}" in capsys.readouterr().err


# A world of several fields, an agent of somebody's own

LSTM = """
import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self, spec, size=6):
        super().__init__()
        self.points, self.size = {"h": size}, size
        self.lstm = nn.LSTMCell(sum(f.size for f in spec.obs.values()), size)
        self.actor, self.critic = nn.Linear(size, spec.n_actions), nn.Linear(size, 1)

    def initial(self, batch):
        zeros = self.actor.weight.new_zeros(batch, self.size)
        return zeros, zeros

    def encode(self, obs):
        parts = [x / 255 if x.dtype == torch.uint8 else x for x in (obs["at"], obs["lit"], obs["sensor"], obs["view"])]
        return torch.cat([x.float().flatten(1) for x in parts], 1)

    def advance(self, seen, state, is_first):
        return self.lstm(seen, tuple(torch.where(is_first[:, None], 0 * x, x) for x in state))

    def heads(self, seen, state):
        return self.actor(state[0]), self.critic(state[0])[:, 0]

    def read(self, point, seen, state):
        return state[0]

    def replaced(self, point, x, seen, state):
        return seen, (x, state[1])


def make_agent(spec):
    return Agent(spec)
"""
PLACES = 5


class Corridor:
    """A place of five (one-hot), a lamp (0 or 1), how far the end is (real, in odd units) and a picture of it all; an
    action is a step and where the switch is put."""

    def __init__(self, slots: int) -> None:
        self.spec = EnvSpec(
            env_id="toy/corridor",
            obs={
                "view": Field(shape=(8, 10, 1), dtype="uint8"),
                "at": Field(shape=(PLACES,), dtype="float32", kind="one_hot"),
                "lit": Field(shape=(1,), dtype="int8", kind="binary"),
                "sensor": Field(shape=(1,), dtype="float32"),
            },
            action_names=("back", "stay", "on", "dark", "light"),
            action_parts={"step": 3, "switch": 2},
            slots=slots,
        )
        self.at, self.lit, self.age = (np.zeros(slots, np.int64) for _ in range(3))

    def _look(self) -> dict[str, np.ndarray]:
        view = np.zeros((self.spec.slots, 8, 10, 1), np.uint8)
        for b, (at, lit) in enumerate(zip(self.at, self.lit, strict=True)):
            view[b, 2:6, 2 * at : 2 * at + 2] = 255
            view[b, :2] = 128 * lit
        sensor = (4000 + 0.01 * (PLACES - 1 - self.at)).astype(np.float32)[:, None]
        lit = self.lit.astype(np.int8)[:, None]
        return {"view": view, "at": np.eye(PLACES, dtype=np.float32)[self.at], "lit": lit, "sensor": sensor}

    def reset(self, seed: int) -> Step:
        self.rng = np.random.default_rng(seed)
        self._begin(np.ones(self.spec.slots, bool))
        none = np.zeros(self.spec.slots, bool)
        return Step(self._look(), np.zeros(self.spec.slots, np.float32), none, none, ~none)

    def _begin(self, where: np.ndarray) -> None:
        self.at = np.where(where, self.rng.integers(PLACES, size=len(where)), self.at)
        self.lit = np.where(where, self.rng.integers(2, size=len(where)), self.lit)
        self.age = np.where(where, 0, self.age)

    def step(self, action: np.ndarray) -> Step:
        self.at = (self.at + action[:, 0] - 1).clip(0, PLACES - 1)
        self.lit, self.age = action[:, 1], self.age + 1
        final, over = self._look(), self.age >= 12
        reward = (self.at == PLACES - 1).astype(np.float32)
        self._begin(over)
        return Step(self._look(), reward, np.zeros_like(over), over, self.age == 0, final_obs=final)

    def close(self) -> None:
        """Nothing to release."""


@pytest.fixture(scope="module")
def corridor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """agent/ (somebody's LSTM), rollouts/ and simulator/ of the corridor."""
    root = tmp_path_factory.mktemp("corridor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(root / "data"))
        (root / "lstm.py").write_text(LSTM)
        source, env = read_source(root / "lstm.py"), Corridor(32)
        source.agree()
        torch.manual_seed(0)
        agent: Any = build(source.run(("make_agent",)), source, env.spec)
        with artefacts.new_run(root / "agent", "adopt", {}) as run:
            save_adopted(agent, source, run.path)
            run.facts = {"agent": fingerprint(agent)}
        record(root / "rollouts", agent, env, 12, 6)
        stage(train, "GenTrainConfig", *SMALL, "--agent", root / "agent", "--rollouts", root / "rollouts",
              "--out", root / "simulator", "--updates", 250, "--validate_every", 250, "--depth", 4)  # fmt: skip
    return root


def test_a_world_of_several_fields_is_learned_around_somebody_s_agent(corridor: Path) -> None:
    manifest = artefacts.read_manifest(corridor / "simulator")
    assert manifest["metrics"][artefacts.LESS_THAN_HELD]["interval"][1] < 0
    row = last_row(corridor / "simulator")
    assert {f"valid/obs/{k}" for k in ("at", "lit", "sensor", "view")} < set(row)
    assert row["free_error/at"] < 0.25 and row["free_error/lit"] < 0.15  # shares wrong; by chance 0.8 and 0.5
    assert row["free_error/sensor"] < 0.15  # squared standard deviations


def test_a_world_that_is_told_its_last_observation(
    corridor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is learned, starts from what is recorded, and a random latent draws what came before the first observation."""
    monkeypatch.setenv("XDG_DATA_HOME", str(corridor / "data"))  # in which its code was agreed to
    inputs = ["--agent", corridor / "agent", "--rollouts", corridor / "rollouts"]
    stage(train, "GenTrainConfig", *SMALL, *inputs, "--layout", "residual", "--out", tmp_path / "simulator",
          "--updates", 250, "--validate_every", 250, "--depth", 4)  # fmt: skip
    manifest = artefacts.read_manifest(tmp_path / "simulator")
    assert manifest["metrics"][artefacts.LESS_THAN_HELD]["interval"][1] < 0
    row = last_row(tmp_path / "simulator")
    assert row["free_error/at"] < 0.25 and row["free_error/lit"] < 0.15 and row["free_error/sensor"] < 0.15
    assert row["free_mse_1"] < last_row(corridor / "simulator")["free_mse_1"]  # of a `vector`
    for more, start in ((("--rollouts", corridor / "rollouts"), "recorded"), ((), "random")):
        out = tmp_path / start
        stage(record_samples, "RecordSamplesConfig", "--simulator", tmp_path / "simulator", *more, "--threads", 1,
              "--samples", 8, "--steps", 4, "--out", out)  # fmt: skip
        assert artefacts.read_manifest(out)["facts"]["start"] == start


def test_a_simulator_keeps_its_agent_whatever_its_kind(
    corridor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(corridor / "data"))
    simulator = load_simulator(corridor / "simulator")
    assert fingerprint(simulator.agent) == artefacts.read_manifest(corridor / "agent")["facts"]["agent"]  # type: ignore[arg-type]
    assert artefacts.verify(corridor / "simulator") == []
    h, c = simulator.remembered(torch.zeros(2, 16))
    assert h.shape == c.shape == (2, 6)
    words = ["--simulator", corridor / "simulator", "--rollouts", corridor / "rollouts", "--threads", 1,
             "--samples", 8, "--steps", 4]  # fmt: skip
    stage(
        record_samples,
        "RecordSamplesConfig",
        *words,
        "--actions",
        "on,light",
        "1,0",
        "stay,light",
        "--out",
        tmp_path / "s",
    )
    with RolloutStore(tmp_path / "s") as store, RolloutStore(corridor / "rollouts") as real:
        assert store.episode(0).action.tolist() == [[2, 1], [1, 0], [1, 1], [1, 1]]
        assert set(store.column_names) > {*real.column_names, "state", "world/d"}  # the LSTM's whole state among them
        lit = np.stack([store.episode(i).obs["lit"][:, 0] for i in range(8)])
        assert lit.dtype == np.int8 and (lit[:, 1:] == [1, 0, 1, 1]).mean() > 0.9
    stage(
        record_samples, "RecordSamplesConfig", *words, "--actions", "recorded", "--stochastic", "--out", tmp_path / "r"
    )
    stage(bundle, "BundleConfig", "--agent", corridor / "agent", "--simulator", corridor / "simulator",
          "--out", tmp_path / "bundle")  # fmt: skip
    again = load_simulator(tmp_path / "bundle" / "simulator")
    assert fingerprint(again.agent) == fingerprint(simulator.agent)  # type: ignore[arg-type]


def test_another_agent_in_its_folder_is_noticed(corridor: Path, tmp_path: Path) -> None:
    import shutil

    path = tmp_path / "simulator"
    shutil.copytree(corridor / "simulator", path)
    with artefacts.new_run(tmp_path / "other", "adopt", {"seed": 1}) as run:
        for name in ("adopted.json", "agent_module.py", "model.safetensors"):
            shutil.copy(corridor / "agent" / name, run.path)
    shutil.rmtree(path / "agent")
    shutil.copytree(tmp_path / "other", path / "agent")
    with pytest.raises(cli.UserError, match="is not the agent that this simulator was trained around"):
        load_simulator(path)
    shutil.rmtree(path / "agent")
    with pytest.raises(cli.UserError, match="no such run directory"):
        load_simulator(path)


@pytest.fixture(scope="module")
def dreams(corridor: Path) -> Path:
    """samples/ of the corridor's simulator, 48 rollouts of 6 steps, and hidden_states/, two directions of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(corridor / "data"))
        stage(record_samples, "RecordSamplesConfig", "--simulator", corridor / "simulator", "--rollouts",
              corridor / "rollouts", "--threads", 1, "--samples", 48, "--steps", 6, "--out",
              corridor / "samples")  # fmt: skip
    with (RolloutStore(corridor / "samples") as store,
          artefacts.new_run(corridor / "hidden_states", "hidden_states", {}) as run):  # fmt: skip
        fit_pca(store.pooled("h")[0]["h"], 2, store.manifest["facts"]["agent"]).save(run.path)
    return corridor


def test_couplings_through_actions_of_several_parts(
    dreams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every choice of each part is tried, and it says so."""
    monkeypatch.setenv("XDG_DATA_HOME", str(dreams / "data"))
    out = tmp_path / "coupling"
    stage(coupling, "CouplingConfig", "--simulator", dreams / "simulator", "--samples", dreams / "samples",
          "--hidden_states", dreams / "hidden_states", "--basis_kind", "pca", "--behaviours", "none", "--threads", 1,
          "--lags", 1, 2, "--samples_per_behaviour", 16, "--permutations", 99,
          "--resamples", 99, "--out", out)  # fmt: skip
    result = artefacts.Result.load(out)
    assert result.notes["actions"] == [["back"], ["stay"], ["on"], ["dark"], ["light"]]
    assert result.notes["parts"] == ["step", "switch"]
    a = result.arrays
    whole = a["jacobian_agent_only"] + a["jacobian_through_world"]
    np.testing.assert_allclose(a["jacobian"], whole, atol=1e-6)
    assert np.isfinite(a["jacobian"][0, :]).all() and (a["jacobian_through_world"] != 0).any()
    said = (out / "edges.md").read_text()
    assert "An action has 2 parts (step, switch): their 5 different choices were tried, one at a time" in said


def test_a_grey_picture_of_any_size_is_drawn(
    dreams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And filmed, with the names of actions of several parts; it keeps its shape."""
    from PIL import Image

    monkeypatch.setenv("XDG_DATA_HOME", str(dreams / "data"))
    words = ["--simulator", dreams / "simulator", "--threads", 1, "--steps", 4]
    samples = ["--samples", dreams / "samples", "--sample_ids", 0, "--target_step", 2, "--integrated_steps", 2]
    out = tmp_path / "saliency"
    stage(saliency, "SaliencyConfig", *words, *samples, "--out", out)
    result = artefacts.Result.load(out)
    assert "figures" not in result.notes and "no strips" not in capsys.readouterr().err
    a, spec = result.arrays, load_simulator(dreams / "simulator").world.spec
    assert a["view"].dtype == np.uint8 and a["view"].shape == (1, 5, 8, 10, 1) and a["view"].max() > 50
    assert {p.name for p in out.glob("sample_*")} == {f"sample_0_{q}.{kind}" for q in ("action", "value")
                                                      for kind in ("png", "mp4")}  # fmt: skip
    strip = saliency_figures.strip_of(result, 0, "value", "view", spec)
    assert strip.actions == [spec.in_words(x) for x in a["action"][0]] and " + " in strip.actions[0]
    drawn = np.asarray(Image.open(out / "sample_0_value.png").convert("RGB"))
    x, y = strips.LABEL, 28 + 30  # of the first frame
    tile = drawn[y : y + strips.TILE, x : x + strips.TILE]
    assert (tile[:12] == 255).all() and (tile[-12:] == 255).all()  # 10 pixels wide, 8 high
    assert (tile[70, 6::13, 0] == a["view"][0, 0, 4, :, 0]).all()

    found = tmp_path / "targets"
    stage(target_functions, "TargetFunctionsConfig", *words, "--out", found, "--samples", 2, "--screen", 2,
          "--restarts", 1, "--iterations", 1, "--maximise", "value", "--minimise", "--drawn", 1)  # fmt: skip
    assert artefacts.Result.load(found).notes["field"] == "view"
    assert {p.suffix for p in found.glob("value_up_0.*")} == {".png", ".mp4"}


def test_numbers_outlive_a_figure_that_fails(dreams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(dreams / "data"))

    def fails(*_: object) -> None:
        raise RuntimeError("no such font")

    monkeypatch.setattr(saliency, "draw", fails)
    out = tmp_path / "saliency"
    with pytest.raises(RuntimeError, match="no such font"):
        stage(saliency, "SaliencyConfig", "--simulator", dreams / "simulator", "--samples", dreams / "samples",
              "--threads", 1, "--sample_ids", 0, "--steps", 4, "--target_step", 2, "--integrated_steps", 2,
              "--out", out)  # fmt: skip
    with np.load(out / "arrays.npz") as saved:
        assert np.isfinite(saved["grad_view_value"]).all()
    assert (out / "saliency.csv").exists()


def test_a_recorded_action_of_several_parts_is_named_by_all_of_them(corridor: Path) -> None:
    """The same in the report's strip, in the panel and wherever else an action has a name."""
    with RolloutStore(corridor / "rollouts") as store:
        spec, episode = store.spec, int(np.argmin(np.abs(store.steps - np.median(store.steps))))
        action = store.episode(episode).action
        known, names = named_actions(action[None], np.ones((1, len(action)), bool), spec)
    said = [spec.in_words(a) for a in action]
    assert said[0] in {f"{step} + {lamp}" for step in ("back", "stay", "on") for lamp in ("dark", "light")}
    assert [names[i] for i in known[0]] == said
    assert f"The steps shown and the actions taken: 0 {said[0]}, " in contents._real_strip(corridor / "rollouts")


def test_what_cannot_be_simulated_is_said_before_anything_is_written(
    corridor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(corridor / "data"))
    with pytest.raises(cli.UserError, match="--layout grid is for worlds that show one image"):
        stage(train, "GenTrainConfig", "--agent", corridor / "agent", "--rollouts", corridor / "rollouts",
              "--out", tmp_path / "s", "--layout", "grid", "--deterministic_size", 64, "--groups", 64,
              "--latent_size", 64, "--steps", 6)  # fmt: skip
    assert not (tmp_path / "s").exists()


def test_fidelity_of_actions_of_several_parts_and_a_small_picture(
    corridor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the agent does is one choice among all combinations; of several fields the picture is compared."""
    monkeypatch.setenv("XDG_DATA_HOME", str(corridor / "data"))
    out = tmp_path / "fidelity"
    stage(fidelity, "FidelityConfig", "--simulator", corridor / "simulator", "--rollouts", corridor / "rollouts",
          "--windows", 48, "--horizon", 4, "--rungs", "all", "--no-counterfactual", "--threads", 1,
          "--out", out)  # fmt: skip
    result = artefacts.Result.load(out)
    assert result.notes["field"] == "view" and "trained on these very rollouts" in result.notes["trained_on"]
    rows = {(row["measure"], row["horizon"]): row for row in result.tables["fidelity"]}
    assert rows["frame_ssim", 1]["simulated"] is None and "fewer than 11 pixels" in rows["frame_ssim", 1]["reason"]
    assert rows["frame_psnr", 1]["simulated"] is not None and (out / "strip.png").exists()
    simulator, parts = load_simulator(corridor / "simulator"), (3, 2)
    with RolloutStore(corridor / "rollouts") as store:
        starts = choose_starts(store, simulator.world.initial_frames + 1, 48, np.random.default_rng(0))
        p = pair(simulator, store, starts, 4)
    one, other = (
        np.stack([x.argmax(-1) for x in np.split(side.logits, [3], -1)], -1)[p.acted[:, 1], 1]
        for side in (p.real, p.free)
    )
    assert rows["action_agreement", 1]["simulated"] == pytest.approx((one == other).all(-1).mean())
    whole = as_whole(p, simulator.world.spec)
    assert np.exp(whole.real.logits).sum(-1) == pytest.approx(1) and whole.real.logits.shape[-1] == 6
    assert np.array_equal(whole.real.logits[p.acted[:, 1], 1].argmax(-1), np.ravel_multi_index(tuple(one.T), parts))
    assert whole_actions(simulator.world.spec) == [
        "back dark",
        "back light",
        "stay dark",
        "stay light",
        "on dark",
        "on light",
    ]
    with pytest.raises(UserError, match="at most 1,024"):
        whole_actions(replace(simulator.world.spec, action_names=tuple(map(str, range(80))),
                              action_parts={"a": 40, "b": 40}))  # fmt: skip


def test_the_same_choice_is_that_of_every_part() -> None:
    scores = np.array([[0.0, 1.0, 50.0, 51.0], [1.0, 0.0, 50.0, 51.0]])
    assert likeliest(scores, (2, 2)).tolist() == [[1, 1], [0, 1]] and likeliest(scores, (4,)).tolist() == [[3], [3]]


def test_what_was_trained_on_is_not_held_out_again(
    corridor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(corridor / "data"))
    own = artefacts.manifest_sha256(corridor / "rollouts")
    first = set(artefacts.read_manifest(corridor / "simulator")["facts"]["held_out"][own])
    words = [*SMALL, "--agent", corridor / "agent", "--rollouts", corridor / "rollouts", "--depth", 4]
    still = ["--begin_with", corridor / "simulator", "--learning_rate", 0, "--updates", 1, "--validate_every", 1]
    stage(train, "GenTrainConfig", *words, *still, "--seed", 7, "--out", tmp_path / "second")
    manifest = artefacts.read_manifest(tmp_path / "second")
    assert set(manifest["facts"]["held_out"][own]) == first
    before = artefacts.read_manifest(corridor / "simulator")["metrics"]["free_running_mse"]["value"]
    assert manifest["metrics"]["free_running_mse"]["value"] == pytest.approx(before, rel=0.35)
    # Of what an earlier version trained its configuration tells.
    old = tmp_path / "old"
    shutil.copytree(corridor / "simulator", old)
    about = artefacts.read_manifest(old)
    del about["facts"]["held_out"], about["seal"]
    about["inputs"]["rollouts"]["path"] = str(corridor / "rollouts")
    artefacts.write_json(old / artefacts.MANIFEST, artefacts.sealed(about))
    with RolloutStore(corridor / "rollouts") as store:
        told = held_out_of([old], store, lambda frames: train.long_enough(store, frames))
        assert set(told[own]) == first
        assert "very rollouts" in trained_on([tmp_path / "second"], store)
        record(tmp_path / "again", load_simulator(old).agent, Corridor(32), 12, 6)
    with RolloutStore(tmp_path / "again") as again:  # the same seed, the same episodes
        assert "of these 192 episodes" in trained_on([old], again)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"feedback": (1, 2)}, "--feedback_shares takes 2 shares"),
        ({"feedback": ()}, "--feedback takes steps from 1 on"),
        ({"feedback": (2, 1), "feedback_shares": (0.5, 0.5)}, "each more than the one before"),
        ({"positive_weight": 0.0}, "--positive_weight must be above 0"),
        ({"noise_std": -1.0}, "--noise_std must be at least 0"),
        ({"agent_from": 2.0}, "--agent_from must lie between 0 and 1, not 2"),
    ],
)  # fmt: skip
def test_settings_of_a_context_that_mean_nothing_are_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        ContextLossConfig(**settings).check()
    ContextLossConfig().check()
    LossConfig().check()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kl_balance", "3"), "--kl_balance must lie between 0 and 1, not 3"),
        (("--learning_rate", "-1"), "must be at least 0, not -1"),
        (("--noise_std", "0.1"), "--noise_std is of --layout context, not of vector"),
        (("--max_grad_norm", "-1"), "--max_grad_norm must be above 0, not -1"),
        (("--latent_size", "0"), "--latent_size must be at least 1, not 0"),
        (("--classes", "0"), "--classes must be at least 1, not 0"),
    ],
)  # fmt: skip
def test_settings_that_mean_nothing_are_one_line(
    words: tuple[str, ...], said: str, corridor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(corridor / "data"))
    few = [w for pair in zip(SMALL[::2], SMALL[1::2], strict=False) if pair[0] != "--learning_rate" for w in pair]
    argv = [*few, "--agent", corridor / "agent", "--rollouts", corridor / "rollouts", "--out", tmp_path / "s", *words]
    with pytest.raises(UserError, match=said):
        stage(train, "GenTrainConfig", *argv)
    assert not (tmp_path / "s").exists()
