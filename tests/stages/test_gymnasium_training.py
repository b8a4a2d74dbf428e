"""Training in a world of Gymnasium, and in one of a user's own: it learns, goes on after a stop, and says what it does
not take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from agents import gymnasium_train, record
from agents.gymnasium_train import STAGE, GymnasiumCollector, GymnasiumTrainConfig
from agents.learning_curves import curves_of_training
from agents.load import load_agent
from agents.networks import Standardised
from agents.ppo import PPOConfig, Rollout, clipped_loss
from agents.recurrent import AgentConfig, RecurrentAgent
from agents.train import training_of_config
from analysis.states.pooled import UNKNOWN_LEVEL, pool_rows
from core import artefacts, config as cli
from core.contracts import UserError
from core.episodes import RolloutStore
from core.training import Log
from envs.registry import make
from tests.gymnasium_worlds import module

CORRIDOR = Path(__file__).resolve().parents[2] / "docs" / "examples" / "corridor.py"
CPU = torch.device("cpu")
SEVEN = json.dumps({"kwargs": {"length": 7}})


@pytest.fixture(autouse=True)
def agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def train(out: Path, *words: object) -> None:
    words = ("--preset", "debug", *words, "--out", out, "--threads", 1)
    gymnasium_train.main(cli.parse(GymnasiumTrainConfig, [str(w) for w in words], STAGE))


def column(out: Path, name: str) -> np.ndarray:
    return np.genfromtxt(out / "curve.csv", delimiter=",", names=True)[name]


def test_it_learns_a_world_of_ones_own_with_actions_of_two_parts(tmp_path: Path) -> None:
    train(tmp_path / "agent", "--env", CORRIDOR, "--env_options", SEVEN, "--total_steps", 24_576, "--epochs", 4)
    returns = column(tmp_path / "agent", "return_mean")
    assert returns[0] < 0.7 and returns[-1] > 0.9, returns[[0, -1]]
    agent = load_agent(tmp_path / "agent")
    assert agent.spec.env_id == "module/corridor" and agent.spec.parts == (2, 3)
    assert artefacts.verify(tmp_path / "agent") == []


def test_a_training_that_stopped_goes_on_in_fresh_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, real = tmp_path / "agent", Log.add

    def dies_later(log: Log, step: int, **columns: float) -> None:
        if step > 600:
            raise KeyboardInterrupt
        real(log, step, **columns)

    monkeypatch.setattr(Log, "add", dies_later)
    world = tmp_path / "corridor.py"
    world.write_text(CORRIDOR.read_text())
    words = ("--env", world, "--save_minutes", 0)
    with pytest.raises(KeyboardInterrupt):
        train(out, *words)
    monkeypatch.setattr(Log, "add", real)
    world.write_text(CORRIDOR.read_text() + "# another\n")
    with pytest.raises(UserError, match=r"the world is no longer the one that this training began in \(options\)"):
        train(out, *words, "--resume")
    world.write_text(CORRIDOR.read_text())
    train(out, *words, "--resume")
    assert column(out, "step").tolist() == [256, 512, 768, 1024] and np.isfinite(column(out, "loss")).all()
    assert load_agent(out).spec.parts == (2, 3)


def test_running_means_are_those_of_all_at_once_and_leave_categories_alone() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(np.float32(rng.normal([1e4, -3, 0, 7], [50, 1e-3, 0, 1], (600, 4))))
    parts = Standardised([True, True, True, False])
    for part in x.split([1, 199, 400]):
        parts.take_in(part)
    assert float(parts.count) == 600
    out = parts(x)
    assert out[:, :2].mean(0).numpy() == pytest.approx([0, 0], abs=5e-3)
    assert out[:, :2].std(0).numpy() == pytest.approx([1, 1], abs=5e-3)
    assert torch.equal(out[:, 2:], x[:, 2:])  # one that never changed, and one that is no real number


def test_the_mean_and_deviation_of_what_training_saw_are_the_agents_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all rollouts, those before a stop too; in the run directory, in its first layer, and so in every gradient."""
    out, real = tmp_path / "agent", Log.add

    def dies_later(log: Log, step: int, **columns: float) -> None:
        if step > 600:
            raise KeyboardInterrupt
        real(log, step, **columns)

    words = ("--env", CORRIDOR, "--save_minutes", 0, "--standardise")
    monkeypatch.setattr(Log, "add", dies_later)
    with pytest.raises(KeyboardInterrupt):
        train(out, *words)
    monkeypatch.setattr(Log, "add", real)
    train(out, *words, "--resume")
    agent: Any = load_agent(out)
    scale = agent.encoder[0]
    lamp = [field.means == "real" for field in agent.spec.obs.values() for _ in range(field.size)].index(True)
    assert float(scale.count) == 1024  # all steps, once each
    assert not scale.mean[:lamp].any() and (scale.variance[:lamp] == 1).all() and 0 < scale.variance[lamp] < 0.5
    obs = {name: torch.rand(3, *field.shape) for name, field in agent.spec.obs.items()}
    plain = torch.cat([*obs.values()], 1)
    deviation = scale.variance.sqrt()
    assert torch.allclose(agent.encode(obs), agent.encoder[1:]((plain - scale.mean) / deviation))
    obs["lamp"].requires_grad_()
    by_encoder = torch.autograd.grad(agent.encode(obs).sum(), obs["lamp"])[0]
    seen = ((plain - scale.mean) / deviation).requires_grad_()
    by_layers = torch.autograd.grad(agent.encoder[1:](seen).sum(), seen)[0]
    assert torch.allclose(by_encoder[:, 0], by_layers[:, lamp] / deviation[lamp])
    train(tmp_path / "on", "--env", CORRIDOR, "--standardise", "--begin_with", out)
    on: Any = load_agent(tmp_path / "on")
    assert float(on.encoder[0].count) == 2048
    with pytest.raises(UserError, match="was trained with --standardise True, not False"):
        train(tmp_path / "not", "--env", CORRIDOR, "--begin_with", out)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--env procgen/coinrun", r"--env procgen/coinrun: say train.py --game NAME"),
        ("--env nmmo", r"--env nmmo: say train.py nmmo"),
        ("--env starpilot", r"--env starpilot: say train.py --game starpilot"),
        ("--env planted/null", r"trains in worlds of Gymnasium, and in .py files"),
        ("--env CartPole-v9", r"no Gymnasium environment 'CartPole-v9' \(did you mean CartPole-v1\?\)"),
        ("--env Pendulum-v1", r"the actions of gymnasium/Pendulum-v1 are continuous"),
        ("--env CartPole-v1 --encoder strided", r"does not read x of shape \(4,\); vectors: --encoder mlp"),
        ("--env {world} --encoder strided --standardise", r"--standardise is for --encoder mlp; 'strided' reads pict"),
        ("--env CartPole-v1 --env_options [1]", r"--env_options \[1\]: a JSON object is needed"),
    ],
)
def test_what_it_does_not_take_is_one_line(words: str, says: str, tmp_path: Path) -> None:
    world = module(tmp_path / "w.py", "Env.observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)")
    with pytest.raises(UserError, match=says):
        train(tmp_path / "agent", *words.format(world=world).split())
    assert not (tmp_path / "agent").exists()


def test_a_file_is_a_world_whatever_its_directory_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "procgen").mkdir()
    (tmp_path / "procgen" / "mine.py").write_text(CORRIDOR.read_text())
    monkeypatch.chdir(tmp_path)
    assert gymnasium_train.world_of("procgen/mine.py", "{}").env_id == "module/mine"


def test_episodes_that_begin_anew_are_discounted_from_their_beginning() -> None:
    """What rewards are scaled by: a discount that a stopped episode had come to is none of the next one's."""
    spec = gymnasium_train.world_of("CartPole-v1", "{}")
    env, net = make(spec, 4), AgentConfig(encoder="mlp", embedding_size=8, hidden_size=8)
    collector = GymnasiumCollector(RecurrentAgent(net, spec), env, PPOConfig(envs=4, rollout_steps=3), 1, CPU)
    collector.collect()
    state = collector.state()
    assert (state["arrays"]["discount_B"] < 1).all()
    collector.restore(state, 12)
    assert (collector.scale.discount_B == 1).all() and not collector.scale.returns_B.any()
    assert collector.current.is_first.all() and not collector.length.any()


def test_a_world_that_fails_amid_training_leaves_what_was_saved(tmp_path: Path) -> None:
    world, out = tmp_path / "fails.py", tmp_path / "agent"
    late = "self.taken = getattr(self, 'taken', 0) + 1\n        if self.taken > 80: raise OSError('gone')\n        "
    world.write_text(CORRIDOR.read_text().replace("direction, distance =", f"{late}direction, distance ="))
    said = r"stopped at step 512: the environment's step fails: OSError: gone; --resume goes on from step 512"
    with pytest.raises(UserError, match=said):
        train(out, "--env", world, "--save_minutes", 0)
    train(out, "--env", world, "--save_minutes", 0, "--total_steps", 768, "--resume")


def test_weights_are_not_taken_over_between_actions_of_other_parts(tmp_path: Path) -> None:
    """The same names, and as many logits: one choice among six is no two choices among two and four."""
    body = """
import gymnasium, numpy as np
from gymnasium import spaces
class World(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    def __init__(self, parts):
        self.action_space = spaces.MultiDiscrete(parts) if len(parts) > 1 else spaces.Discrete(parts[0])
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}
def make_env(parts):
    return World(parts)
"""
    (tmp_path / "world.py").write_text(body)
    one, two = (json.dumps({"kwargs": {"parts": parts}, "action_names": list("abcdef")}) for parts in ([6], [2, 4]))
    words = ("--env", tmp_path / "world.py", "--total_steps", 256)
    train(tmp_path / "one", *words, "--env_options", one)
    with pytest.raises(UserError, match="whose observations or actions are not those of"):
        train(tmp_path / "two", *words, "--env_options", two, "--begin_with", tmp_path / "one")


def test_held_out_starts_are_measured_beside_training(tmp_path: Path) -> None:
    train(tmp_path / "agent", "--env", "gymnasium/CartPole-v1", "--evaluate_every", 512, "--evaluate_episodes", 8)
    trained, measured = curves_of_training(tmp_path / "agent", True)
    assert trained.game == measured.game == "CartPole-v1" and measured.split == "held out"
    held_out = column(tmp_path / "agent", "held_out_return")
    assert np.isfinite(held_out[[1, 3]]).all() and np.isnan(held_out[[0, 2]]).all()


def test_held_out_episodes_that_never_end_leave_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.evaluate.ENDLESS", 5)
    said = "stopped at step .*: --evaluate_every: gymnasium/CartPole-v1: no episode .*; no state was saved yet"
    with pytest.raises(UserError, match=said):
        train(tmp_path / "agent", "--env", "CartPole-v1", "--evaluate_every", 1)


def test_a_world_of_gymnasium_has_one_name_in_curves(tmp_path: Path) -> None:
    for env in ("CartPole-v1", "gymnasium/CartPole-v1"):
        train(tmp_path / env, "--env", env, "--total_steps", 256)
    one, other = (curves_of_training(tmp_path / e, True)[0] for e in ("CartPole-v1", "gymnasium/CartPole-v1"))
    assert one.game == other.game and one.settings == other.settings


def test_the_loss_of_several_parts_is_that_of_all_their_pairs() -> None:
    """Independent parts are one choice among all pairs, whose log-probability and entropy are sums."""
    torch.manual_seed(0)
    steps, envs, sizes = 6, 4, (2, 3)
    logits, value = torch.randn(steps * envs, sum(sizes)), torch.randn(steps * envs)
    first, second = logits.split(sizes, -1)
    pairs = (first.log_softmax(-1)[:, :, None] + second.log_softmax(-1)[:, None]).flatten(1)
    action = torch.stack([torch.randint(n, (steps, envs)) for n in sizes], -1)
    zeros = torch.zeros(steps, envs)

    def loss(logits: torch.Tensor, action: torch.Tensor, parts: tuple[int, ...]) -> list[float]:
        rollout = Rollout(
            obs={}, is_first=zeros, action=action, logp=zeros - 2, value=zeros, reward=zeros, done=zeros.bool(),
            state_first=zeros[0], next_value=zeros[0],
        )  # fmt: skip
        advantage = torch.linspace(-1, 1, steps * envs).reshape(steps, envs)
        whole, told = clipped_loss(
            logits, value, rollout, advantage, torch.arange(envs), PPOConfig(), 0.01, parts=parts
        )
        return [float(whole), *(float(x) for x in told.values())]

    several = loss(logits, action, sizes)
    np.testing.assert_allclose(several, loss(pairs, action[..., 0] * 3 + action[..., 1], ()), rtol=1e-5)
    assert several[3] == pytest.approx(float(Categorical(logits=pairs).entropy().mean()), rel=1e-5)


def test_a_configuration_says_which_training_it_is_of(tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text('{"stage": "train_gymnasium", "config": {}}')
    (tmp_path / "other.json").write_text('{"stage": "train", "config": {}}')
    (tmp_path / "bad.json").write_text("{")
    found = [training_of_config(["--seed", "2", "--config", f"{tmp_path}/{name}.json"]) for name in
             ("agent", "other", "bad", "none")]  # fmt: skip
    assert found == ["gymnasium", "", "", ""] and training_of_config(["--seed", "2"]) == ""


def test_its_episodes_are_recorded(tmp_path: Path) -> None:
    train(tmp_path / "agent", "--env", CORRIDOR)
    words = [
        "--agent",
        tmp_path / "agent",
        "--episodes",
        8,
        "--slots",
        4,
        "--out",
        tmp_path / "rollouts",
        "--threads",
        1,
    ]
    record.main(cli.parse(record.RecordConfig, [str(w) for w in words], record.STAGE))
    episode = RolloutStore(tmp_path / "rollouts").episode(0)
    assert set(episode.truth) == {"goal", "seed"} and episode.action.shape == (episode.steps, 2)


def test_a_level_that_only_a_reset_tells_is_not_known_later(tmp_path: Path) -> None:
    """It was a number of 19 digits there."""
    world = tmp_path / "levels.py"
    world.write_text(CORRIDOR.read_text().replace('{"goal"', '{"level"', 1))
    train(tmp_path / "agent", "--env", world, "--total_steps", 256)
    words = ["--agent", tmp_path / "agent", "--episodes", 4, "--slots", 4, "--out", tmp_path / "rollouts"]
    record.main(cli.parse(record.RecordConfig, [str(w) for w in words], record.STAGE))
    store = RolloutStore(tmp_path / "rollouts")
    columns, index_N2 = store.pooled("h")
    level_N = pool_rows(store, columns["h"], index_N2, np.arange(len(store)), range(len(store))).level_N
    assert set(level_N[index_N2[:, 1] == 0]) <= {-1, 1} and (level_N[index_N2[:, 1] > 0] == UNKNOWN_LEVEL).all()
