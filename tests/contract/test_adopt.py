"""Agents of users' own: the contract's check finds what breaks it and says which rule, weights are read without
unpickling, code runs only after its user agreed to it, rollouts recorded elsewhere are the agent's own.

The examples of docs/bring-your-own.md are adopted, loaded, and play, at debug size."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from agents import import_rollouts
from agents.adopt import BATCHES, ROWS, STAGE, AdoptConfig, check, main, observations
from agents.adopted import build, fill, read_weights
from agents.evaluate import EvaluateConfig, main as evaluate
from agents.import_rollouts import ImportConfig, read_rollouts, replayed
from agents.load import load_agent
from agents.play import Chooser, Exploration, play
from agents.record import RecordConfig, main as record, record_episodes
from agents.recurrent import AgentConfig, RecurrentAgent
from analysis.patching.__main__ import PatchingConfig, main as patching
from analysis.probes.__main__ import ProbesConfig, words_of
from analysis.probes.baselines import baselines_of
from analysis.similarity.__main__ import SimilarityConfig, main as similarity
from core import artefacts, config as cli
from core.contracts import Agent, EnvSpec, Field, UserError
from core.directions import fingerprint
from core.episodes import Episode, RolloutStore
from core.interventions import AddVector
from core.plugins import read_source
from envs.planted import PlantedAgent, PlantedOptions, spec_of as planted_spec_of
from envs.registry import make, spec_of

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
VECTOR = planted_spec_of(PlantedOptions(), 1)
RGB = {"wrappers": ["minigrid.wrappers:RGBImgPartialObsWrapper", "minigrid.wrappers:ImgObsWrapper"]}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_agreements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are agreed to for one test only."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


class Lstm(nn.Module):
    """A foreign agent, the contract and nothing else."""

    def __init__(self, spec: EnvSpec = VECTOR, size: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.spec, self.points = spec, {"h": size, "cell": size, "embedding": size}
        self.encoder, self.cell = nn.Linear(8, size), nn.LSTMCell(size, size)
        self.actor, self.critic = nn.Linear(size, spec.n_actions), nn.Linear(size, 1)
        self.eval().requires_grad_(False)

    def initial(self, batch: int) -> Any:
        return torch.zeros(batch, self.points["h"]), torch.zeros(batch, self.points["h"])

    def encode(self, obs: Mapping[str, Tensor]) -> Any:
        return torch.tanh(self.encoder(obs["x"]))

    def advance(self, seen: Any, state: Any, is_first_B: Tensor) -> Any:
        h, c = self.cell(seen, tuple(torch.where(is_first_B[:, None], 0, x) for x in state))
        return h, c

    def heads(self, seen: Any, state: Any) -> Any:
        return self.actor(state[0]), self.critic(state[0])[:, 0]

    def read(self, point: str, seen: Any, state: Any) -> Any:
        return {"h": state[0], "cell": state[1], "embedding": seen}[point]

    def replaced(self, point: str, x: Tensor, seen: Any, state: Any) -> Any:
        h, c = state
        return {"h": (seen, (x, c)), "cell": (seen, (h, x)), "embedding": (x, state)}[point]


def seen_by(spec: EnvSpec) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def one(field: Field) -> Tensor:
        shape = (ROWS, *field.shape)
        if field.dtype == "uint8":
            return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        return torch.randn(shape, generator=generator)

    return [{k: one(f) for k, f in spec.obs.items()} for _ in range(BATCHES)]


# The contract


@pytest.mark.parametrize("recurrence", ["gru", "none"])
def test_our_own_agents_keep_the_contract(recurrence: str) -> None:
    check(RecurrentAgent(AgentConfig(encoder="mlp", recurrence=recurrence), VECTOR).eval(), seen_by(VECTOR))  # type: ignore[arg-type]
    for kind in ("confounded", "gated", "pixels"):
        agent = PlantedAgent(PlantedOptions(kind=kind))  # type: ignore[arg-type]
        check(agent.eval(), observations(agent.spec, 0))


def test_a_foreign_lstm_keeps_the_contract() -> None:
    check(Lstm(), seen_by(VECTOR))


RULES = """
import torch
from torch import nn

class Balance(nn.Module):
    points = {"h": 4}

    def initial(self, batch):
        return torch.zeros(batch, 4)

    def encode(self, obs):
        return next(iter(obs.values()))

    def advance(self, seen, state, is_first):
        return seen

    def heads(self, seen, state):
        lean = state[:, 2] + state[:, 3] / 4
        return torch.stack([-8 * lean, 8 * lean], 1), torch.zeros(len(state))

    def read(self, point, seen, state):
        return state

    def replaced(self, point, x, seen, state):
        return seen, x

def make_agent(spec):
    return Balance()
"""


def test_a_policy_of_rules_without_a_value_is_adopted_without_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And told to have none: of a value that was lost (weights of zeros) this says so."""
    (tmp_path / "rules.py").write_text(RULES)
    main(AdoptConfig(module=tmp_path / "rules.py", env="gymnasium/CartPole-v1", out=tmp_path / "run", threads=1))
    logits, value = load_agent(tmp_path / "run").heads(None, torch.tensor([[0.0, 0, 1, 0]]))
    assert logits.tolist() == [[-8, 8]] and value.tolist() == [0]
    assert "(points: h 4; its value is always 0: it is taken for a policy without one; SHA-" in capsys.readouterr().out


CODES = """
import gymnasium
import numpy as np

class Codes(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(0, LIMIT, (7, 7, 3), np.uint8), {}

    def step(self, action):
        return self.np_random.integers(0, LIMIT, (7, 7, 3), np.uint8), 0.0, False, False, {}

def make_env():
    return Codes()
"""


@pytest.mark.parametrize("limit", [11, 200])
def test_codes_of_things_that_are_taken_for_a_picture_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: int
) -> None:
    encode = "x = obs['frames']\n        return (x.float() / (255 if x.dtype == torch.uint8 else 1)).flatten(1)[:, :4]"
    (tmp_path / "rules.py").write_text(RULES.replace("return next(iter(obs.values()))", encode))
    (tmp_path / "codes.py").write_text(CODES.replace("LIMIT", str(limit)))
    world = str(tmp_path / "codes.py")
    main(AdoptConfig(module=tmp_path / "rules.py", env=world, out=tmp_path / "run", threads=1))
    said = "frames has no byte above 10: numbers of things, taken for brightness, are an all but black picture"
    assert (said in capsys.readouterr().out) == (limit == 11)


def test_an_agent_of_rules_is_not_its_own_control_and_is_patched(tmp_path: Path) -> None:
    """Itself was told to be "itself, weights shuffled", from which nothing that it knows differs."""
    (tmp_path / "rules.py").write_text(RULES)
    runs = {name: tmp_path / name for name in ("run", "other", "rollouts", "out")}
    for name in ("run", "other"):
        main(AdoptConfig(module=tmp_path / "rules.py", env="gymnasium/CartPole-v1", out=runs[name], threads=1))
    record(RecordConfig(agent=runs["run"], out=runs["rollouts"], episodes=8, slots=4, threads=1))
    few = {"rollouts": runs["rollouts"], "out": runs["out"], "exchanges": 1, "resamples": 99, "threads": 1}
    with pytest.raises(UserError, match="run has no weights to shuffle, so there is nothing to compare it with"):
        similarity(SimilarityConfig(agents=(runs["run"],), **few))
    similarity(SimilarityConfig(agents=(runs["run"], runs["other"]), **few))
    found = artefacts.Result.load(runs["out"])
    assert [(row["a"], row["b"]) for row in found.tables["pairs"]] == [("run", "other")]
    assert np.isnan(found.arrays["control_h"]).all() and (runs["out"] / "similarity.png").exists()
    with RolloutStore(runs["rollouts"]) as store:
        agent, rows = load_agent(runs["run"]), np.array([[0, 1], [0, 2]])
        assert "random" not in baselines_of(agent, store, rows, rows[:, 1], 1, seed=0)
        assert "random" not in words_of(ProbesConfig(block="last"), store, agent)
        with pytest.raises(UserError, match="--inputs random: the agent that was recorded has no weights"):
            words_of(ProbesConfig(inputs=("h", "random")), store, agent)
    sizes = {"pca_size": 2, "states": 16, "controls": 99, "resamples": 99, "threads": 1}
    patching(PatchingConfig(extraction=runs["rollouts"], policy=runs["run"], out=tmp_path / "patching", **sizes))
    assert len(artefacts.Result.load(tmp_path / "patching").tables["patching"]) == 4  # two directions, a head and all


class RoundsByThePast(Lstm):
    """The past matters to nothing but the last digits of what is added to it and taken away again."""

    def advance(self, seen: Any, state: Any, is_first_B: Tensor) -> Any:
        before = torch.where(is_first_B[:, None], 0, state[0])
        h = (torch.tanh(seen) + before) - before
        return h, h.clone()


def test_rounding_is_no_memory() -> None:
    agent, (obs, *_) = RoundsByThePast(), seen_by(VECTOR)
    seen, none = agent.encode(obs), torch.zeros(ROWS, dtype=torch.bool)
    states = [agent.initial(ROWS), (torch.randn(ROWS, 6), torch.zeros(ROWS, 6))]
    one, other = (agent.heads(seen, agent.advance(seen, state, none))[0] for state in states)
    assert 0 < (one - other).abs().max() < 1e-5
    check(agent, seen_by(VECTOR))


class ChangesObservations(Lstm):
    def encode(self, obs: Mapping[str, Tensor]) -> Any:
        obs["x"].mul_(0.5)
        return super().encode(obs)


class ChangesTheState(Lstm):
    def advance(self, seen: Any, state: Any, is_first_B: Tensor) -> Any:
        state[0][is_first_B] = 0
        state[1][is_first_B] = 0
        h, c = self.cell(seen, state)
        state[0].copy_(h)
        return h, c


class ChangesSeen(Lstm):
    def heads(self, seen: Any, state: Any) -> Any:
        seen.add_(1)
        return super().heads(seen, state)


class RemembersTheLastCall(Lstm):
    last: Any = None

    def encode(self, obs: Mapping[str, Tensor]) -> Any:
        before, self.last = self.last, obs["x"].mean()
        return super().encode(obs) + (0 if before is None else before)


class RemembersTheLastBatch(Lstm):
    """Twice the same call is the same; another one between them is not."""

    previous: Any = None

    def encode(self, obs: Mapping[str, Tensor]) -> Any:
        x = obs["x"]
        if self.previous is None or not torch.equal(x, self.previous[0]):
            self.previous = x.clone(), 0 if self.previous is None else self.previous[1] + 1
        return super().encode(obs) + 0.1 * self.previous[1]


class CountsInABuffer(Lstm):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def encode(self, obs: Mapping[str, Tensor]) -> Any:
        self.calls += 1
        return super().encode(obs)


class Draws(Lstm):
    def heads(self, seen: Any, state: Any) -> Any:
        logits, value = super().heads(seen, state)
        return logits + torch.rand_like(logits), value


class GivesNan(Lstm):
    def heads(self, seen: Any, state: Any) -> Any:
        logits, value = super().heads(seen, state)
        return logits, value / 0 * 0


class IgnoresIsFirst(Lstm):
    def advance(self, seen: Any, state: Any, is_first_B: Tensor) -> Any:
        h, c = self.cell(seen, state)
        return h, c


class StartsElsewhere(Lstm):
    def advance(self, seen: Any, state: Any, is_first_B: Tensor) -> Any:
        h, c = self.cell(seen, tuple(torch.where(is_first_B[:, None], 1, x) for x in state))
        return h, c


class ResetsAll(Lstm):
    def advance(self, seen: Any, state: Any, is_first_B: Tensor) -> Any:
        h, c = self.cell(seen, self.initial(len(is_first_B)) if is_first_B.any() else state)
        return h, c


class OtherActions(Lstm):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(6, 9)


class NeedsFrames(Lstm):
    def encode(self, obs: Mapping[str, Tensor]) -> Any:
        return super().encode({"x": obs["image"]})


class CouplesRows(Lstm):
    def encode(self, obs: Mapping[str, Tensor]) -> Any:
        return super().encode(obs) - obs["x"].mean()


class DetachesItsValue(Lstm):
    def heads(self, seen: Any, state: Any) -> Any:
        return self.actor(state[0]), self.critic(state[0].detach())[:, 0]


class DetachesItsState(Lstm):
    def advance(self, seen: Any, state: Any, is_first_B: Tensor) -> Any:
        return super().advance(seen, tuple(x.detach() for x in state), is_first_B)


class EncodesWithoutGradients(Lstm):
    @torch.no_grad()
    def encode(self, obs: Mapping[str, Tensor]) -> Any:
        return super().encode(obs)


class HasAListForAState(Lstm):
    def initial(self, batch: int) -> Any:
        return list(super().initial(batch))


class HasNoRows(Lstm):
    def initial(self, batch: int) -> Any:
        return torch.zeros(1, 6), torch.zeros(1, 6)


class ChangesTheForm(Lstm):
    def advance(self, seen: Any, state: Any, is_first_B: Tensor) -> Any:
        return *super().advance(seen, state[:2], is_first_B), seen


class IsDouble(Lstm):
    def heads(self, seen: Any, state: Any) -> Any:
        logits, value = super().heads(seen, state)
        return logits.double(), value


class HasAColumnForAValue(Lstm):
    def heads(self, seen: Any, state: Any) -> Any:
        return self.actor(state[0]), self.critic(state[0])


class GivesLogitsAlone(Lstm):
    def heads(self, seen: Any, state: Any) -> Any:
        return self.actor(state[0])


class HasNoH(Lstm):
    def __init__(self) -> None:
        super().__init__()
        self.points = {"cell": 6}


class SaysAnotherWidth(Lstm):
    def __init__(self) -> None:
        super().__init__()
        self.points = {"h": 6, "cell": 7}


class ReplacesNothing(Lstm):
    def replaced(self, point: str, x: Tensor, seen: Any, state: Any) -> Any:
        return seen, state


class ReplacesTooMuch(Lstm):
    def replaced(self, point: str, x: Tensor, seen: Any, state: Any) -> Any:
        seen, (h, c) = super().replaced(point, x, seen, state)
        return seen, (h + (point == "cell"), c)


class LeavesHAlone(Lstm):
    """An h that neither logits nor value depend on."""

    def read(self, point: str, seen: Any, state: Any) -> Any:
        return state[1] if point == "h" else super().read(point, seen, state)

    def replaced(self, point: str, x: Tensor, seen: Any, state: Any) -> Any:
        return super().replaced("cell" if point == "h" else point, x, seen, state)


BROKEN: dict[type[Lstm], str] = {
    ChangesObservations: "purity: encode changes its input in place",
    ChangesTheState: "purity: advance changes its input in place",
    ChangesSeen: "purity: heads changes its input in place",
    RemembersTheLastCall: "purity: the same call gives another result the second time: it keeps something",
    RemembersTheLastBatch: "purity: a call gives another result after other calls: it keeps something",
    CountsInABuffer: "purity: a call changes the tensor 'calls' of the module",
    Draws: "determinism: it draws random numbers",
    GivesNan: "finite numbers: heads gives NaN or infinite values",
    IgnoresIsFirst: "is_first: where it is true, the state before still matters",
    StartsElsewhere: "is_first: where it is true, the state is not the one that follows initial",
    ResetsAll: "is_first: where it is false, rows depend on what it is elsewhere",
    OtherActions: r"shapes: logits are \[4, 9\] for 4 rows; planted/confounded has 3 actions",
    NeedsFrames: r"calls: encode fails on .* planted/confounded \(fields: 'x' float32 \[4, 8\]\): KeyError: 'image'",
    CouplesRows: "rows: a row alone gives other numbers than in a batch",
    DetachesItsValue: "gradients: none from value to h ",
    DetachesItsState: "gradients: none from logits to the state before, which matters to them",
    EncodesWithoutGradients: "gradients: none from logits to the observation ",
    HasAListForAState: "trees: initial must give tensors or nested tuples of them .*list",
    HasNoRows: r"trees: initial gives a tensor \[1, 6\] for 4 rows; the batch comes first",
    ChangesTheForm: "trees: advance gives a state of another form than initial",
    IsDouble: "dtypes: logits are float64, not float32",
    HasAColumnForAValue: r"shapes: value is \[4, 1\] for 4 rows; it must be \[4\]",
    GivesLogitsAlone: r"shapes: heads must give \(logits, value\)",
    HasNoH: "points: points must be a dict of names and widths with 'h' among them",
    SaysAnotherWidth: r"points: read\('cell'\) is float32 \[4, 6\]; points says float32 \[4, 7\]",
    ReplacesNothing: r"points: read\('h'\) after replaced\('h'\) gives something else back",
    ReplacesTooMuch: r"points: replaced\('cell'\) by what read gave changes logits or value",
    LeavesHAlone: "gradients: none from logits to h ",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_rule_is_named_in_one_line(kind: type[Lstm]) -> None:
    with pytest.raises(UserError, match=BROKEN[kind]) as caught:
        check(kind(), seen_by(VECTOR))
    assert "\n" not in str(caught.value) and str(caught.value).endswith("see the contract in docs/bring-your-own.md")


def test_frames_are_the_same_as_bytes_and_as_floats() -> None:
    spec = EnvSpec(
        env_id="gymnasium/x", obs={"x": Field(shape=(2, 2, 2), dtype="uint8")}, action_names=("a", "b"), slots=1
    )

    class Frames(Lstm):
        scaled = True

        def encode(self, obs: Mapping[str, Tensor]) -> Any:
            x = obs["x"].flatten(1)
            whole = x.dtype == torch.uint8 or not self.scaled
            return super().encode({"x": x.float() / 255 if whole else x})

    agent = Frames(spec)
    check(agent, seen_by(spec))
    agent.scaled = False
    with pytest.raises(UserError, match=r"frames: uint8 frames and the same as float32 in \[0, 1\] are encoded diff"):
        check(agent, seen_by(spec))


def test_the_check_leaves_chance_as_it_was() -> None:
    agent = Lstm()
    before = torch.get_rng_state()
    check(agent, seen_by(VECTOR))
    assert torch.equal(before, torch.get_rng_state())


# Examples: from adoption to the store


def example(name: str, spec: EnvSpec) -> Any:
    """An example's agent with weights of its own."""
    source = read_source(EXAMPLES / f"{name}.py")
    source.agree()
    torch.manual_seed(0)
    return build(source.run(("make_agent",)), source, spec)


def as_sb3(agent: nn.Module, path: Path) -> Path:
    """The zip that Stable-Baselines3 writes, as far as it is read; ``data`` would run code if it were unpickled."""
    fused = {}
    for name, tensor in agent.state_dict().items():
        fused[f"{name}_l0" if name.startswith("lstm") else name] = tensor
    policy = io.BytesIO()
    torch.save(fused, policy)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": {":serialized:": "gASVAAAA"}}))
        archive.writestr("policy.pth", policy.getvalue())
        archive.writestr("pytorch_variables.pth", pickle.dumps(Bomb()))
    return path


class Bomb:
    """Sets off when it is unpickled."""

    def __reduce__(self) -> Any:
        return os._exit, (99,)


def as_safetensors(agent: nn.Module, path: Path) -> Path:
    save_file(dict(agent.state_dict()), path)
    return path


def as_state_dict(agent: nn.Module, path: Path) -> Path:
    torch.save(agent.state_dict(), path)
    return path


@pytest.mark.parametrize(
    ("name", "world", "options", "save", "file", "points"),
    [
        ("cleanrl_ppo", "procgen/coinrun", {"num_levels": 10}, as_state_dict, "w.cleanrl_model", {"h": 256}),
        ("recurrent_ppo", "gymnasium/CartPole-v1", {}, as_sb3, "model.zip", {"h": 512, "actor": 256, "critic": 256}),
        ("sb3_ppo", "gymnasium/CartPole-v1", {}, as_sb3, "model.zip", {"h": 128}),
        ("cartpole", "gymnasium/CartPole-v1", {}, as_safetensors, "w.safetensors", {"h": 128}),
        pytest.param(
            "minigrid", "gymnasium/MiniGrid-Empty-5x5-v0", {**RGB, "kwargs": {"max_steps": 12}}, as_state_dict, "w.pt",
            {"h": 128, "cell": 128, "embedding": 128},
            marks=pytest.mark.skipif(
                importlib.util.find_spec("minigrid") is None, reason="minigrid is not installed"
            ),
        ),
    ],
)  # fmt: skip
def test_examples_from_adoption_to_a_recording_and_an_intervention(
    tmp_path: Path,
    name: str,
    world: str,
    options: dict[str, Any],
    save: Callable[[nn.Module, Path], Path],
    file: str,
    points: dict[str, int],
) -> None:
    agent = example(name, spec_of(world, options))
    weights = save(agent, tmp_path / file)
    main(
        AdoptConfig(
            module=EXAMPLES / f"{name}.py", weights=weights, env=world, env_options=json.dumps(options),
            out=tmp_path / "agent", threads=1,
        )
    )  # fmt: skip
    loaded: Any = load_agent(tmp_path / "agent")
    assert fingerprint(loaded) == fingerprint(agent) and loaded.spec == agent.spec and dict(loaded.points) == points
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    assert artefacts.read_manifest(tmp_path / "agent")["facts"]["agent"] == fingerprint(agent)
    raised = pushed(loaded)
    assert raised[1] > raised[0] + 0.2 and raised[2] > 0.99
    if world.startswith("procgen"):
        return  # an untrained agent plays coinrun for hundreds of steps an episode; tests/stages record there
    record(RecordConfig(agent=tmp_path / "agent", out=tmp_path / "rollouts", episodes=2, slots=2, threads=1))
    assert artefacts.verify(tmp_path / "rollouts") == []
    store = RolloutStore(tmp_path / "rollouts")
    assert store.spec.differences(agent.spec) == [] and len(store) == 2
    evaluate(EvaluateConfig(agent=tmp_path / "agent", out=tmp_path / "evaluation", episodes=2, slots=2, threads=1))
    assert artefacts.read_manifest(tmp_path / "evaluation")["metrics"]["return_mean"]["n"] == 2
    with pytest.raises(UserError, match="has no start_level; its starts are those of a split"):
        evaluate(EvaluateConfig(agent=tmp_path / "agent", out=tmp_path / "none", start_level=3))
    own = read_back(agent, [store.episode(i) for i in range(2)])
    for mine, theirs in zip(own, store, strict=True):
        np.testing.assert_allclose(mine.h, theirs.h, atol=1e-5)
        assert theirs.h.shape[1] == points["h"] and theirs.final_known


def pushed(agent: Any, steps: int = 6) -> tuple[float, float, float]:
    """Mean probability of the first action as the agent plays, the same where h is pushed towards it, and the share of
    steps at which that changed h."""
    env = make(agent.spec, 3)
    seen = agent.encode({k: torch.from_numpy(v) for k, v in env.reset(0).obs.items()})
    state = agent.advance(seen, agent.initial(3), torch.ones(3, dtype=torch.bool))
    h = agent.read("h", seen, state).requires_grad_()
    logits = agent.heads(*agent.replaced("h", h, seen, state))[0]
    (towards,) = torch.autograd.grad((logits[:, 0] - logits.mean(1)).sum(), h)
    means, altered = [], 0.0
    for intervene in ((), (AddVector(20 * towards[0] / towards[0].norm()),)):
        moments = itertools.islice(play(agent, env, Chooser(Exploration(), 3, np.random.default_rng(0)), seed=0,
                                        device=CPU, intervene=intervene), steps)  # fmt: skip
        rows = [(torch.from_numpy(m.logits_BA).softmax(1)[:, 0].mean(), m.altered_B.mean()) for m in moments]
        means.append(float(np.mean([p for p, _ in rows])))
        altered = float(np.mean([a for _, a in rows]))
    env.close()
    return means[0], means[1], altered


def read_back(agent: Agent, episodes: list[Episode]) -> list[Episode]:
    recorded = [
        import_rollouts.Recorded(e.obs, e.action, e.reward, e.terminated, e.truncated) for e in episodes
    ]  # fmt: skip
    return list(replayed(agent, recorded, 2))


def test_an_agent_and_a_world_of_ones_own(tmp_path: Path) -> None:
    """Two fields and two parts of an action; the run directory has both modules, and is of use elsewhere only after
    its user agreed to both."""
    (tmp_path / "my_agent.py").write_text(
        """
import torch
from torch import nn

class Agent(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.points = {"h": 12}
        self.memory = nn.GRUCell(sum(f.shape[0] for f in spec.obs.values()), 12)
        self.actor, self.critic = nn.Linear(12, spec.n_actions), nn.Linear(12, 1)
    def initial(self, batch):
        return self.actor.weight.new_zeros(batch, 12)
    def encode(self, obs):
        return torch.cat([obs["place"], obs["lamp"]], 1)
    def advance(self, seen, state, is_first):
        return self.memory(seen, torch.where(is_first[:, None], 0, state))
    def heads(self, seen, state):
        return self.actor(state), self.critic(state)[:, 0]
    def read(self, point, seen, state):
        return {"h": state}[point]
    def replaced(self, point, x, seen, state):
        return {"h": (seen, x)}[point]

make_agent = Agent
"""
    )
    corridor = str(EXAMPLES / "corridor.py")
    source = read_source(tmp_path / "my_agent.py")
    source.agree()
    agent = build(source.run(), source, spec_of(corridor, {}))
    weights = as_state_dict(agent, tmp_path / "w.pt")
    main(AdoptConfig(module=tmp_path / "my_agent.py", weights=weights, env=corridor, out=tmp_path / "run", threads=1))
    loaded = load_agent(tmp_path / "run")
    assert loaded.spec.parts == (2, 3) and loaded.spec.env_id == "module/corridor"
    record(RecordConfig(agent=tmp_path / "run", out=tmp_path / "rollouts", episodes=8, slots=4, threads=1))
    assert artefacts.verify(tmp_path / "rollouts") == []
    actions = np.concatenate([e.action for e in RolloutStore(tmp_path / "rollouts")])
    assert {tuple(a) for a in actions.tolist()} == {(i, j) for i in range(2) for j in range(3)}

    (tmp_path / "data").rename(tmp_path / "of_another_user")
    for name in ("world_module.py", "agent_module.py"):
        with pytest.raises(UserError, match=rf"run/{name} is code that nobody agreed to run on this machine") as caught:
            load_agent(tmp_path / "run")
        words = str(caught.value).partition("python -m agents.adopt ")[2].split()
        assert words[:2] == [str(tmp_path / "run" / name), "--trust"]
        with pytest.raises(UserError, match="has the SHA-256 [0-9a-f]{64}, not abc; read it"):
            main(AdoptConfig(module=Path(words[0]), trust="abc"))
        main(AdoptConfig(module=Path(words[0]), trust=words[2]))
    again: Any = load_agent(tmp_path / "run")
    assert fingerprint(again) == fingerprint(agent)
    env = make(again.spec, 2)
    assert env.reset(0).obs["place"].shape == (2, 9)


def test_the_page_shows_the_examples_as_they_are() -> None:
    page = (EXAMPLES.parent / "bring-your-own.md").read_text()
    shown = re.findall(r"```python\n# docs/examples/(\w+)\.py\n(.*?)```", page, re.DOTALL)
    assert {name for name, _ in shown} == {"cartpole", "corridor", "cartpole_world"}
    assert all((EXAMPLES / f"{name}.py").read_text() == text for name, text in shown)
    assert all(f"examples/{path.name}" in page for path in EXAMPLES.glob("*.py"))


# Weights


def test_weights_are_renamed_and_what_does_not_fit_is_said(tmp_path: Path) -> None:
    agent = Lstm()
    whole = dict(agent.state_dict())
    fill(agent, {f"module.{k}": v for k, v in whole.items()}, lambda n: n.removeprefix("module."), Path("w"))
    torch.save({"model": whole, "optimizer": {"state": {0: {"step": torch.ones(1)}}, "lr": 0.1}}, tmp_path / "w.pt")
    nested = read_weights(tmp_path / "w.pt")
    assert "model.actor.weight" in nested and "optimizer.state.0.step" in nested
    fill(agent, nested, lambda n: n.removeprefix("model.") if n.startswith("model.") else None, Path("w"))
    for tensors, rename, said in (
        ({**whole, "actr.weight": torch.ones(1)}, None, r"no tensor 'actr.weight' \(did you mean actor.weight\?\)"),
        ({k: v for k, v in whole.items() if k != "actor.bias"}, None, "has no tensor for the agent's 'actor.bias'"),
        ({**whole, "actor.bias": torch.ones(5)}, None, r"'actor.bias' has shape \[5\]; the agent's is \[3\]"),
        (whole, lambda n: "actor.bias", "has shape"),
        ({"a": whole["actor.bias"], "b": whole["actor.bias"]}, lambda n: "actor.bias", "two tensors are renamed"),
    ):
        with pytest.raises(UserError, match=said):
            fill(agent, tensors, rename, Path("w"))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    torch.save(Lstm(), tmp_path / "module.pt")
    torch.save({"w": torch.ones(1), "x": Bomb()}, tmp_path / "bomb.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Bomb()))
    for file in ("module.pt", "bomb.pt", "pickle.pt"):
        with pytest.raises(UserError, match="holds pickled objects, which are never loaded; save the state dict alone"):
            read_weights(tmp_path / file)


def test_a_small_file_asks_for_no_more_than_it_holds(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(10**11)}, tmp_path / "wide.pt")
    with pytest.raises(UserError, match="'w' is larger than what the file holds of it"):
        read_weights(tmp_path / "wide.pt")


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"abc")
    (tmp_path / "a.pt").write_bytes(b"")
    torch.save({"lr": 0.1}, tmp_path / "none.pt")
    torch.save({"w": torch.tensor([1.0, float("nan")])}, tmp_path / "nan.pt")
    others = {"sparse": torch.ones(2, 2).to_sparse(), "complex": torch.ones(2, dtype=torch.complex64),
              "meta": torch.ones(2, device="meta")}  # fmt: skip
    for kind, tensor in others.items():
        torch.save({"w": tensor}, tmp_path / f"{kind}.pt")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", "hello")
    for file, said in (
        *((f"{kind}.pt", "the tensor 'w' is sparse, quantised, complex or without its numbers") for kind in others),
        ("a.safetensors", "broken tensor file"),
        ("a.pt", "no safetensors file, no state dict and no zip"),
        ("none.pt", "holds no tensors"),
        ("nan.pt", "tensor 'w' has NaN or infinite values"),
        ("other.zip", "no safetensors file, no state dict and no zip"),
        ("gone.pt", "cannot read the weights .*No such file"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            read_weights(tmp_path / file)
        assert "\n" not in str(caught.value)


# Bad modules, and nothing written


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("x = 1", "has no function make_agent"),
        ("import nowhere_at_all", "cannot be loaded: ModuleNotFoundError"),
        ("def make_agent(spec): return 3", "gives a int, not a torch.nn.Module"),
        ("import torch\ndef make_agent(spec): return torch.nn.LazyLinear(2)", "the agent of .* has lazy layers"),
        ("def make_agent(spec): return spec.nothing", "make_agent of .* fails in planted/confounded: AttributeError"),
        ("import torch\ndef make_agent(spec): return torch.nn.Linear(2, 2)",
         "has no points and no initial and no encode and no advance and no heads and no read and no replaced"),
    ],
)  # fmt: skip
def test_bad_modules_are_one_line_and_nothing_is_written(tmp_path: Path, body: str, said: str) -> None:
    (tmp_path / "m.py").write_text(body)
    torch.save({"w": torch.ones(1)}, tmp_path / "w.pt")
    with pytest.raises(UserError, match=said) as caught:
        main(
            AdoptConfig(
                module=tmp_path / "m.py", weights=tmp_path / "w.pt", env="planted/confounded", out=tmp_path / "out"
            )
        )
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2, for a user's mistakes."""
    weights, out = as_state_dict(Lstm(), tmp_path / "w.pt"), ["--out", str(tmp_path / "o")]
    for words, said in (
        (["docs/examples/cartpole.py", "--env", "gymnasium/CartPole-v1"], "so it needs --weights"),
        (["docs/examples/cartpole.py", "--weights", "w"], "cannot read the weights w"),
        (
            ["docs/examples/cartpole.py", "--weights", str(weights), "--env_options", "[1]"],
            "--env_options [1]: a JSON object is needed",
        ),
        (["docs/examples/cartpole.py", "--weights", str(weights), "--env_options", "{1}"], "not valid JSON"),
        (["docs/examples/cartpole.py", "--wieghts", str(weights)], "unknown flag --wieghts (did you mean --weights?)"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.run(AdoptConfig, main, STAGE, [*words, *out])
        told = capsys.readouterr()
        assert ended.value.code == 2 and said in told.err and told.err.count("\n") == 1, told.err
    assert not (tmp_path / "o").exists()


def test_a_changed_copy_of_a_module_does_not_run(tmp_path: Path) -> None:
    agent = example("cartpole", spec_of("gymnasium/CartPole-v1", {}))
    main(
        AdoptConfig(
            module=EXAMPLES / "cartpole.py", weights=as_state_dict(agent, tmp_path / "w.pt"),
            env="gymnasium/CartPole-v1", out=tmp_path / "run", threads=1,
        )
    )  # fmt: skip
    copy = tmp_path / "run" / "agent_module.py"
    text = copy.read_text()
    copy.write_text(f"raise SystemExit\n{text}")
    with pytest.raises(UserError, match="content differs from its manifest"):
        load_agent(tmp_path / "run")
    with pytest.raises(UserError, match="holds no agent"):
        with artefacts.new_run(tmp_path / "other", "record", {}):
            pass
        load_agent(tmp_path / "other")


# Rollouts from elsewhere


@pytest.fixture
def cartpole(tmp_path: Path) -> tuple[Path, Any, list[Episode]]:
    """An adopted recurrent agent and episodes that it played."""
    agent = example("recurrent_ppo", spec_of("gymnasium/CartPole-v1", {}))
    main(
        AdoptConfig(
            module=EXAMPLES / "recurrent_ppo.py", weights=as_sb3(agent, tmp_path / "m.zip"),
            env="gymnasium/CartPole-v1", out=tmp_path / "agent", threads=1,
        )
    )  # fmt: skip
    episodes = list(record_episodes(agent, make(agent.spec, 3), 6, seed=0, device=CPU))
    return tmp_path, agent, episodes


def arrays_of(episodes: list[Episode]) -> dict[str, np.ndarray]:
    out = {k: np.concatenate([getattr(e, k) for e in episodes]) for k in ("action", "reward")}
    last = [np.arange(e.steps) == e.steps - 1 for e in episodes]
    out["terminated"] = np.concatenate([x & e.terminated for x, e in zip(last, episodes, strict=True)])
    out["truncated"] = np.concatenate([x & e.truncated for x, e in zip(last, episodes, strict=True)])
    return out | {"obs": np.concatenate([e.obs["x"] for e in episodes])}


def as_minari(episodes: list[Episode], folder: Path) -> Path:
    (folder / "data").mkdir(parents=True)
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for i, e in enumerate(episodes):
            group, last = file.create_group(f"episode_{i}"), np.arange(e.steps) == e.steps - 1
            group["observations"], group["actions"], group["rewards"] = e.obs["x"], e.action, e.reward
            group["terminations"], group["truncations"] = last & e.terminated, last & e.truncated
    return folder


def test_imported_rollouts_are_the_recorded_ones(cartpole: tuple[Path, Any, list[Episode]]) -> None:
    """From npz, with the last observation and without, and from Minari: states, logits and values are computed and are
    those of the recording."""
    root, agent, episodes = cartpole
    arrays = arrays_of(episodes)
    np.savez(root / "whole.npz", **arrays)
    cut = {**arrays, "obs": np.concatenate([e.obs["x"][:-1] for e in episodes])}
    np.savez(root / "cut.npz", **cut)
    for source, known in (
        (root / "whole.npz", True),
        (root / "cut.npz", False),
        (as_minari(episodes, root / "minari"), True),
    ):
        out = root / f"from_{source.stem}"
        import_rollouts.main(ImportConfig(rollouts=source, agent=root / "agent", out=out, batch=4, threads=1))
        store = RolloutStore(out)
        assert artefacts.verify(out) == [] and store.manifest["facts"]["agent"] == fingerprint(agent)
        assert abs(store.manifest["metrics"]["surprise_mean"]["value"]) < 0.3
        for mine, theirs in zip(store, episodes, strict=True):
            rows = theirs.steps + known
            assert mine.final_known == known and mine.terminated == theirs.terminated
            np.testing.assert_array_equal(mine.action, theirs.action)
            np.testing.assert_array_equal(mine.reward, theirs.reward)
            np.testing.assert_array_equal(mine.obs["x"], theirs.obs["x"][:rows])
            for name in ("h", "value", "state"):
                np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name)[:rows], atol=1e-5)
            assert mine.logits is not None and theirs.logits is not None
            np.testing.assert_allclose(mine.logits, theirs.logits, atol=1e-5)


def test_another_policys_actions_are_seen(cartpole: tuple[Path, Any, list[Episode]]) -> None:
    _, agent, episodes = cartpole
    with torch.no_grad():
        agent.action_net.bias[0] = 9.0  # this agent goes left; the recorded one did not
    recorded = [import_rollouts.Recorded(e.obs, e.action, e.reward, e.terminated, e.truncated) for e in episodes]
    shares = import_rollouts.shares_of(recorded, agent.spec.parts)
    own, others = np.array(
        [import_rollouts.surprise(e, agent.spec.parts, shares) for e in replayed(agent, recorded, 3)]
    ).T
    assert own.mean() > 2
    noise = 0.01 * np.random.default_rng(0).normal(size=8)
    for mine, at_other_times, tells in (
        (own, others, True),  # it was not this agent, which always goes left
        (noise, 0.3 + 0.1 * np.arange(8), True),
        (noise, noise + 0.01 * np.cos(np.arange(8)), False),  # a policy that does the same whatever it sees
    ):
        assert ("does not tell" not in import_rollouts.said_of(mine, at_other_times)) == tells


def test_rollouts_of_another_world_are_refused_where_they_say_it(
    cartpole: tuple[Path, Any, list[Episode]], tmp_path: Path
) -> None:
    _, agent, episodes = cartpole
    path = as_minari(episodes, tmp_path / "minari")
    beside = next(path.rglob("main_data.hdf5")).with_name("metadata.json")
    beside.write_text(json.dumps({"dreamlens": {"env_id": "procgen/fruitbot"}}))
    with pytest.raises(UserError, match="was recorded in procgen/fruitbot, this agent plays .*CartPole"):
        read_rollouts(path, agent.spec)
    beside.write_text(json.dumps({"dreamlens": {"env_id": agent.spec.env_id}}))
    assert len(read_rollouts(path, agent.spec)) == len(episodes)


def test_a_cut_recording_ends_truncated(cartpole: tuple[Path, Any, list[Episode]]) -> None:
    root, agent, episodes = cartpole
    arrays = arrays_of(episodes[:2])
    arrays["terminated"][-1] = arrays["truncated"][-1] = False
    np.savez(root / "r.npz", **arrays)
    first, last = read_rollouts(root / "r.npz", agent.spec)
    assert last.truncated and not last.terminated and len(last.action) == episodes[1].steps
    assert first.terminated == episodes[0].terminated
    assert [bool(e.meta.get("cut")) for e in replayed(agent, [first, last], 2)] == [False, True]  # no end to count


def test_categories_are_read_by_the_numbers_that_the_world_gives_them(tmp_path: Path) -> None:
    """Those of Discrete(n, start=1) were read as 0 to n - 1, but for the last one."""
    size, obs = 3, np.array([2, 1, 2, 1])
    end = np.arange(3) == 2
    np.savez(tmp_path / "r.npz", obs=obs, action=np.zeros(3, int), reward=np.zeros(3), terminated=end, truncated=end)

    def spec(**known: Any) -> EnvSpec:
        seen = {"x": Field(shape=(size,), dtype="float32", **known)}
        written = EnvSpec(env_id="gymnasium/x", obs=seen, action_names=("a",), slots=1).to_json()
        return EnvSpec.from_json(json.loads(json.dumps(written)))

    for start in (0, 1):
        (one,) = read_rollouts(tmp_path / "r.npz", spec(kind="one_hot", start=start))
        assert one.obs["x"].dtype == np.float32 and one.obs["x"].argmax(1).tolist() == (obs - start).tolist()
        np.testing.assert_array_equal(one.obs["x"].sum(1), 1)
    for about, said in (
        (spec(kind="one_hot", start=2), "episode 0: the observation field 'x' has the category 1; it has 2 to 4"),
        (spec(kind="one_hot"), "'x' is given by numbers of categories, but which is the first is not known"),
        (spec(), r"'x' is int64 \[\]; gymnasium/x has float32 \[3\]"),  # a vector, no category
    ):
        with pytest.raises(UserError, match=said):
            read_rollouts(tmp_path / "r.npz", about)
    size, obs = 5, np.array([[2, 1], [0, 0], [1, 1], [2, 0]])  # those of MultiDiscrete([3, 2])
    np.savez(tmp_path / "r.npz", obs=obs, action=np.zeros(3, int), reward=np.zeros(3), terminated=end, truncated=end)
    (one,) = read_rollouts(tmp_path / "r.npz", spec(kind="one_hot", groups=(3, 2), start=0))
    assert one.obs["x"].tolist() == [[0, 0, 1, 0, 1], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 0, 1, 1, 0]]
    earlier = spec(kind="one_hot").to_json()
    del earlier["obs"]["x"]["start"]
    assert EnvSpec.from_json(earlier).obs["x"].start is None


def test_bad_rollouts_are_one_line(cartpole: tuple[Path, Any, list[Episode]]) -> None:
    root, agent, episodes = cartpole
    good = arrays_of(episodes)

    def with_one(name: str, change: Callable[[np.ndarray], Any]) -> dict[str, Any]:
        return {**good, name: change(good[name].copy())}

    def nan(x: np.ndarray) -> np.ndarray:
        x[0] = np.nan
        return x

    for arrays, said in (
        ({k: v for k, v in good.items() if k != "reward"}, "has no array 'reward'; it needs: action, reward, termin"),
        (with_one("obs", lambda x: x[:-1]), r"observations for \d+ transitions in 6 episodes; there must be one a tr"),
        (with_one("obs", lambda x: x[:, :3]), r"episode 0: the observation field 'x' is float32 \[3\]; gymnasium/Cart"),
        (with_one("obs", nan), "episode 0: the observation field 'x' has NaN or infinite values"),
        (with_one("obs", lambda x: x + np.array([0, 1e39, 0, 0])), r"'x' has 1e\+39, which does not fit float32"),
        (with_one("reward", nan), "episode 0: reward has NaN or infinite values"),
        (with_one("reward", lambda x: x * 1e39), r"episode 0: reward has 1e\+39, which does not fit float32"),
        (with_one("reward", lambda x: x[:5]), "reward has 5 rows, action has"),
        (
            with_one("action", lambda x: x + 1),
            r"has an action outside 0 to 1, which gymnasium/CartPole",
        ),
        (with_one("action", lambda x: x.astype(float)), "action is float64 .*; it must be whole numbers"),
        ({k: v[:0] for k, v in good.items()}, "holds no transitions"),
        (with_one("action", lambda x: np.array([Bomb()] * len(x))), "Python objects, which are never loaded"),
    ):
        np.savez(root / "bad.npz", **arrays)
        with pytest.raises(UserError, match=said) as caught:
            read_rollouts(root / "bad.npz", agent.spec)
        assert "\n" not in str(caught.value)
    (root / "no.npz").write_bytes(b"nothing")
    (root / "empty").mkdir()
    for path, said in (
        (root / "gone.npz", "no such file"),
        (root / "no.npz", "broken npz file"),
        (root / "empty", "holds 0 files main_data.hdf5"),
        (root / "r.csv", "neither an .npz file nor the directory of a Minari dataset"),
    ):
        with pytest.raises(UserError, match=said):
            read_rollouts(path, agent.spec)
