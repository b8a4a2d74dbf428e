"""A world of one's own that shows several fields, the first of them no picture, with actions of several parts, and its
exact simulator, of whose fields one has no gradient: every stage that looks at pictures or gradients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents import adopt as adopt_agent, evaluate, record
from analysis.probes import __main__ as probes
from analysis.saliency import __main__ as saliency
from core.artefacts import Result
from core.contracts import UserError
from core.directions import load_basis
from core.episodes import RolloutStore
from core.plugins import read_source
from envs.registry import spec_of
from generative import adopt, record_samples
from generative.adopt import check, windows
from generative.load import load_simulator
from generative.record_samples import as_recorded
from tests.stages.test_own_world import run, simulate
from validation.interventions import __main__ as interventions
from validation.panel.live import Live, live_of
from validation.panel.work import Job

WORLD = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Slope(gymnasium.Env):
    '''A square on a slope, which is steered up and down and pushed on; over at the right edge.'''

    def __init__(self, cameras=1):
        self.cameras = cameras
        picture = spaces.Box(0, 255, (12, 20, 3), np.uint8)
        fields = {f"cam{i}": picture for i in range(cameras)}
        more = {"age_odd": spaces.MultiBinary(1), "where": spaces.Box(-99, 99, (3,), np.float32)}
        self.observation_space = spaces.Dict(fields | (more if cameras == 1 else {}))
        self.action_space = spaces.MultiDiscrete([3, 2])

    def _obs(self):
        y, x, age = self.at
        rows, columns = np.arange(12)[:, None, None], np.arange(20)[None, :, None]
        frame = np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 4) * np.ones(3)
        frame = (255 * frame).round().astype(np.uint8)
        fields = {f"cam{i}": frame for i in range(self.cameras)}
        more = {"age_odd": np.array([age % 2], np.int8), "where": np.array(self.at, np.float32)}
        return fields | (more if self.cameras == 1 else {})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = [int(self.np_random.integers(2, 10)), 2, 0]
        return self._obs(), {}

    def step(self, action):
        y, x, age = self.at
        self.at = [int(np.clip(y + action[0] - 1, 1, 10)), x + 1 + int(action[1]), age + 1]
        return self._obs(), float(action[1]), self.at[1] >= 16, False, {}


def make_env(**kwargs):
    return Slope(**kwargs)
"""
AGENT = """
import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self, spec):
        super().__init__()
        torch.manual_seed(0)
        self.fields = [name for name in sorted(spec.obs)]
        self.seen = nn.Linear(sum(f.size for f in spec.obs.values()), 8)
        self.cell, self.actor, self.critic = nn.GRUCell(8, 6), nn.Linear(6, spec.n_actions), nn.Linear(6, 1)
        self.points = {"h": 6}

    def initial(self, batch):
        return self.critic.weight.new_zeros(batch, 6)

    def encode(self, obs):
        parts = [obs[name].float() / (255 if obs[name].dtype == torch.uint8 else 1) for name in self.fields]
        return torch.tanh(self.seen(torch.cat([x.flatten(1) for x in parts], 1)))

    def advance(self, seen, state, is_first):
        return self.cell(seen, torch.where(is_first[:, None], torch.zeros_like(state), state))

    def heads(self, seen, state):
        return self.actor(state), self.critic(state)[:, 0]

    def read(self, point, seen, state):
        return state

    def replaced(self, point, x, seen, state):
        return seen, x


def make_agent(spec):
    return Agent(spec)
"""
SIMULATOR = """
import torch
from torch import nn

from core.contracts import Shown


class World(nn.Module):
    latent_size, initial_frames = 3, 1

    def __init__(self):
        super().__init__()
        self.brightness = nn.Parameter(torch.ones(()))

    def infer(self, obs):
        z = obs["where"][:, 0].float()
        return z, torch.full_like(z, -10.0)

    def normalise(self, z):
        return z

    def shown(self, s, reward):
        y, x = (s[:, i, None, None, None] for i in range(2))
        rows = torch.arange(12, device=s.device)[None, :, None, None]
        columns = torch.arange(20, device=s.device)[None, None, :, None]
        frame = torch.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 4).expand(-1, -1, -1, 3)
        odd = s.detach()[:, 2:].round() % 2
        obs = {"cam0": self.brightness * frame, "where": s, "age_odd": odd}
        return s, Shown(obs, reward, (s[:, 1] >= 16).to(s.dtype), s)

    def start(self, z, noise=None):
        return self.shown(z, torch.zeros_like(z[:, 0]))

    def step(self, s, action, noise=None):
        y = (s[:, 0] + action[:, 2] - action[:, 0]).clamp(1, 10)
        return self.shown(torch.stack([y, s[:, 1] + 1 + action[:, 4], s[:, 2] + 1], 1), action[:, 4])

    def draw_noise(self, batch, generator):
        return ()

    def observe(self, obs, action, seen):
        return obs["where"].float()


def make_world(spec):
    return World()
"""
CLOSED = "no gradient runs through 'age_odd'"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("fields")
    for name, text in (("slope", WORLD), ("agent", AGENT), ("simulator", SIMULATOR)):
        (root / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(root / "data"))
        adopt_one(root, {}, root / "agent")
        torch.save({"brightness": torch.ones(())}, root / "simulator.pt")
        words = [root / "simulator.py", "--weights", root / "simulator.pt", "--agent", root / "agent"]
        run(adopt, "AdoptWorldConfig", *words, "--out", root / "simulator")
        words = ["--agent", root / "agent", "--episodes", 24, "--slots", 8, "--out", root / "rollouts"]
        run(record, "RecordConfig", *words)
        simulate(root, 5)
        yield root


def adopt_one(root: Path, options: dict[str, Any], out: Path) -> None:
    """The untrained agent in the world with these options."""
    source = read_source(root / "agent.py")
    source.agree()
    agent = source.run(("make_agent",)).make_agent(spec_of(str(root / "slope.py"), options))
    torch.save(agent.state_dict(), out.with_suffix(".pt"))
    words = [root / "agent.py", "--weights", out.with_suffix(".pt"), "--env", root / "slope.py"]
    run(adopt_agent, "AdoptConfig", *words, "--env_options", json.dumps(options), "--out", out)


@pytest.fixture
def live(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    found = live_of(load_simulator(house / "simulator"), {"pca": load_basis(house / "states", "pca")}, 8, 0, 1)
    yield found
    found.close()


def test_a_field_without_a_gradient_is_said_and_does_not_stop_saliency(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    simulator = load_simulator(house / "simulator")
    (note,) = check(simulator, windows(simulator.world.spec, 1, 0))
    assert note.startswith(CLOSED)
    words = ["--steps", 4, "--target_step", 2, "--sample_ids", 0, 1, "--no-video", "--hidden_states", house / "states"]
    words += ["--simulator", house / "simulator", "--samples", house / "samples", "--out", tmp_path / "saliency"]
    run(saliency, "SaliencyConfig", *words)
    found = Result.load(tmp_path / "saliency").arrays
    of_odd = next(x for name, x in found.items() if "value" in name and x.shape[1:] == (5, 1))
    assert of_odd[:, 2].all()  # the agent does look at it


def test_a_memory_that_the_simulator_lacks_is_said(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent remembers, its simulator gives it no memory, and the recording knows it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    words = ["--simulator", house / "simulator", "--rollouts", house / "rollouts", "--steps", 2]
    run(record_samples, "RecordSamplesConfig", *words, "--samples", 8, "--out", tmp_path / "inferred")
    words += ["--samples", 8, "--start", "recorded", "--out", tmp_path / "recorded"]
    said = capsys.readouterr().err
    assert said.count("gives the agent no memory") == 1 and "--start recorded begins with" in said
    run(record_samples, "RecordSamplesConfig", *words)
    assert "memory" not in capsys.readouterr().err
    with RolloutStore(tmp_path / "recorded") as store, RolloutStore(house / "rollouts") as real:
        for e in range(8):
            episode, step = store.meta(e)["start"]
            np.testing.assert_allclose(store.episode(e).h[0], real.episode(episode).h[step], atol=1e-4)


def test_frames_beyond_their_range_are_refused_and_never_wrap(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    simulator = load_simulator(house / "simulator")
    simulator.world.brightness.fill_(1.1)
    with pytest.raises(
        UserError, match=r"frames: what start shows of cam0 goes from .* to 1\.1; frames are in \[0, 1\]"
    ):
        check(simulator, windows(simulator.world.spec, 1, 0))
    shown = torch.tensor([-0.02, 0.5, 1.02]).expand(1, 1, 3)
    assert as_recorded(simulator.world.spec.obs["cam0"], shown).ravel().tolist() == [0, 128, 255]


def test_studies_are_filmed_by_the_picture(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    words = ["--simulator", house / "simulator", "--hidden_states", house / "states", "--preset", "debug", "--video"]
    run(interventions, "InterventionsConfig", *words, "--horizon", 2, "--out", tmp_path / "study")
    film = Result.load(tmp_path / "study").arrays["film/0"]  # [starts, 4, T, ...]
    assert film.shape[1:] == (4, 3, 12, 20, 3) and film.dtype == np.uint8
    assert np.abs(film[:, 0, 0].astype(int) - film[:, 2, 0]).max() <= 1  # the real start beside the simulated one


def test_every_frame_is_altered_where_there_are_two(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(house / "data"))
    adopt_one(house, {"kwargs": {"cameras": 2}}, tmp_path / "agent")
    words = ["--agent", tmp_path / "agent", "--episodes", 4, "--slots", 2, "--robustness", "--out", tmp_path / "out"]
    run(evaluate, "EvaluateConfig", *words)
    assert 0 < Result.load(tmp_path / "out").scalars["same_choice_blur"]["value"] <= 1


def test_live_shows_the_picture_and_one_episode_alone(live: Live) -> None:
    facts = live.facts()
    assert (facts["height"], facts["width"]) == (12, 20) and facts["picture"]
    late = int(np.argmax(facts["age"]))
    runs = live.answer({"start": late, "horizon": 16, "change": "shift pca:0 by +1"}, Job(1, {}))["runs"]
    for told in runs.values():
        assert 1 < told["steps"] < 17 and told["frames"]  # it ends, and the next one is none of it
        assert {len(told[name]) for name in ("value", "prob", "action", "c", "reward")} == {told["steps"]}
    assert runs["real"]["reward"] == runs["simulator"]["reward"]


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_live_saliency_is_of_the_run_that_is_shown(live: Live, horizon: int) -> None:
    """The gradient is of the value that the simulator's unaltered run shows at that step, drawn actions and all; of an
    episode that ends before, at its last step."""
    for start in range(len(live)):
        asked = {"start": start, "horizon": horizon, "quantity": "value", "target": horizon}
        out = live.answer(asked, Job(1, {}))
        run_, found = out["runs"]["simulator"], out["saliency"]
        assert found["target"] == min(horizon, run_["steps"] - 1)
        assert found["y"] == pytest.approx(run_["value"][found["target"]], abs=2e-5)


def test_live_says_what_cannot_be_asked(live: Live) -> None:
    with pytest.raises(UserError, match="an action of several parts cannot be taken by hand"):
        live.answer({"start": 0, "horizon": 4, "actions": ["part_0 2"]}, Job(1, {}))


def test_what_a_world_tells_in_info_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The corridor's goal is shown at the first step alone: a memory without training keeps some of it, an observation
    nothing."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "memory.py").write_text(AGENT)
    corridor = Path(__file__).resolve().parents[2] / "docs" / "examples" / "corridor.py"
    source = read_source(tmp_path / "memory.py")
    source.agree()
    torch.save(source.run(("make_agent",)).make_agent(spec_of(str(corridor), {})).state_dict(), tmp_path / "w.pt")
    words = [tmp_path / "memory.py", "--weights", tmp_path / "w.pt", "--env", corridor, "--out", tmp_path / "agent"]
    run(adopt_agent, "AdoptConfig", *words)
    words = ["--agent", tmp_path / "agent", "--episodes", 200, "--slots", 8, "--out", tmp_path / "rollouts"]
    run(record, "RecordConfig", *words)
    words = [tmp_path / "rollouts", "--targets", "goal", "--inputs", "h", "obs", "--resamples", 200]
    run(probes, "ProbesConfig", *words, "--out", tmp_path / "probes")
    found = Result.load(tmp_path / "probes").tables
    assert {row["target"] for row in found["targets"]} == {"goal"}
    (beyond,) = (row for row in found["advantages"] if row["probe"] == "linear")
    assert (beyond["input"], beyond["over"], beyond["verdict"]) == ("h", "obs", "yes"), beyond
