"""Gymnasium environments as worlds: what is supported, what is refused in which words, starts of the two splits.  The
VecEnv contract itself is tested over CartPole with all other worlds in test_envs.py."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from core.contracts import Field, UserError
from envs.gymnasium_env import GymnasiumEnv
from envs.registry import held_out_facts, make, spec_of
from tests.gymnasium_worlds import module

ROOT = Path(__file__).resolve().parents[2]
CORRIDOR = str(ROOT / "docs" / "examples" / "corridor.py")
RGB = {"wrappers": ["minigrid.wrappers:RGBImgPartialObsWrapper", "minigrid.wrappers:ImgObsWrapper"]}
has_minigrid = pytest.mark.skipif(importlib.util.find_spec("minigrid") is None, reason="minigrid is not installed")
AUTORESET = f"gymnasium.wrappers:{'AutoResetWrapper' if gymnasium.__version__ < '1' else 'Autoreset'}"
CATEGORY = "Env.observation_space = spaces.Discrete(3, start=1)\n"
SHORT = {"wrappers": [["gymnasium.wrappers:TimeLimit", {"max_episode_steps": 5}]]}


@pytest.fixture(autouse=True)
def own_agreements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are agreed to for one test only."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def world(name: str, options: dict[str, Any] | None = None, slots: int = 3, **more: Any) -> Any:
    return make(spec_of(name, options or {}), slots, **more)


# What there is


def test_a_module_with_named_fields_and_several_parts_of_an_action() -> None:
    env = world(CORRIDOR, {"kwargs": {"length": 7}})
    assert env.spec.env_id == "module/corridor" and env.spec.parts == (2, 3) and env.spec.n_actions == 5
    assert env.spec.obs == {"lamp": Field(shape=(1,), dtype="float32"), "place": Field(shape=(7,), dtype="float32")}
    step = env.reset(0)
    assert step.obs["place"].tolist() == np.eye(7, dtype=np.float32)[[3, 3, 3]].tolist()
    assert set(np.abs(step.obs["lamp"]).ravel()) == {1.0}
    step = env.step(np.array([[0, 0], [0, 1], [1, 2]]))
    assert step.obs["place"].argmax(1).tolist() == [3, 2, 5] and not step.obs["lamp"].any()
    goal = world(CORRIDOR, {"kwargs": {"length": 7}}, 8).reset(0).obs["lamp"]
    ended = False
    env = world(CORRIDOR, {"kwargs": {"length": 7}}, 8)
    env.reset(0)
    for _ in range(2):
        step = env.step(np.tile([1, 2], (8, 1)))
        ended |= bool(step.terminated.all())
    assert ended and step.reward.tolist() == (goal[:, 0] > 0).astype(float).tolist()
    assert step.final_obs is not None and (step.final_obs["place"].argmax(1) == 6).all()
    assert (step.obs["place"].argmax(1) == 3).all() and step.is_first.all()


def test_a_reward_may_be_an_array_of_one_number(tmp_path: Path) -> None:
    """As of vector code that was adapted; numpy warns of such a number, and will refuse it."""
    body = "Env.step = lambda self, a: (np.zeros(2, np.float32), np.array([1.5]), np.False_, np.array([True]), {})"
    env = world(module(tmp_path / "mine.py", body))
    env.reset(0)
    step = env.step(np.zeros((3, 1), int))
    assert step.reward.tolist() == [1.5] * 3 and step.truncated.all()


def test_the_world_of_a_module_is_known_by_its_hash(tmp_path: Path) -> None:
    a = spec_of(module(tmp_path / "mine.py", ""), {})
    b = spec_of(module(tmp_path / "mine.py", "# another"), {})
    assert a.env_id == b.env_id == "module/mine" and a.differences(b) == ["options"]
    Path(tmp_path / "mine.py").unlink()
    make(a, 1).close()  # what was agreed to is kept
    (tmp_path / "data").rename(tmp_path / "gone")
    with pytest.raises(UserError, match=r"nobody agreed to run mine\.py of SHA-256 [0-9a-f]{64} on this machine"):
        make(a, 1)


@pytest.mark.parametrize(
    ("name", "options", "obs", "actions"),
    [
        ("gymnasium/CartPole-v1", {}, {"x": ((4,), "float32")}, ("action_0", "action_1")),
        ("gymnasium/FrozenLake-v1", {"kwargs": {"map_name": "4x4"}}, {"x": ((16,), "float32")}, None),
        ("gymnasium/CartPole-v1", {"action_names": ["left", "right"]}, {"x": ((4,), "float32")}, ("left", "right")),
        ("gymnasium/Blackjack-v1", {"wrappers": ["gymnasium.wrappers:FlattenObservation"]}, {"x": ((45,), "float32")},
         None),
    ],
)  # fmt: skip
def test_specs(name: str, options: dict[str, Any], obs: dict[str, Any], actions: tuple[str, ...] | None) -> None:
    spec = spec_of(name, options)
    assert {k: (f.shape, f.dtype) for k, f in spec.obs.items()} == obs and spec.gives_final_obs and spec.can_snapshot
    assert actions is None or spec.action_names == actions
    assert json.loads(json.dumps(spec.to_json()["options"])) == spec.options


@has_minigrid
def test_minigrid_frames() -> None:
    env = world("gymnasium/MiniGrid-Empty-5x5-v0", RGB)
    assert env.spec.obs == {"frames": Field(shape=(56, 56, 3), dtype="uint8")} and env.spec.can_snapshot
    assert env.spec.action_names == ("left", "right", "forward", "pickup", "drop", "toggle", "done")
    frames = [env.reset(0).obs["frames"], env.step(np.array([0, 1, 2])).obs["frames"]]
    assert not np.array_equal(*frames)


def test_categories_that_do_not_start_at_nought(tmp_path: Path) -> None:
    body = """
Env.observation_space = spaces.Discrete(3, start=5)
Env.action_space = spaces.Discrete(2, start=-1)
def step(self, action):
    assert action in (-1, 0)
    return 6 + action, float(action), False, False, {}
def reset(self, *, seed=None, options=None):
    return 7, {}
Env.step, Env.reset = step, reset
"""
    env = world(module(tmp_path / "m.py", body), slots=2)
    assert env.spec.obs["x"].start == 5
    assert env.reset(0).obs["x"].argmax(1).tolist() == [2, 2]
    step = env.step(np.array([0, 1]))
    assert step.obs["x"].argmax(1).tolist() == [0, 1] and step.reward.tolist() == [-1.0, 0.0]


SEVERAL = "Env.observation_space = spaces.MultiDiscrete([3, 2])\n"


def test_several_categories_are_one_hot_one_after_the_other(tmp_path: Path) -> None:
    """A MultiDiscrete observation was refused as if it had no bound."""
    body = f"{SEVERAL}Env.reset = lambda self, **k: (np.array([2, 0]), {{}})"
    body += "\nEnv.step = lambda self, a: (np.array([a, a > 0]), 0.0, False, False, {})"
    env = world(module(tmp_path / "m.py", body), slots=2)
    about = env.spec.obs["x"]
    assert about == Field(shape=(5,), dtype="float32") and about.categories == about.groups == (3, 2)
    assert env.reset(0).obs["x"].tolist() == [[0, 0, 1, 1, 0]] * 2
    assert env.step(np.array([0, 1])).obs["x"].tolist() == [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]


# Starts


def test_the_two_splits_share_no_start_and_episodes_begin_with_seeds_of_their_own() -> None:
    seeds: dict[str, set[int]] = {}
    for split in ("train", "held_out"):
        env = world("gymnasium/CartPole-v1", SHORT, 4, split=split)
        seen = [env.reset(0).truth["seed"]]
        seen += [env.step(np.ones(4, int)).truth["seed"] for _ in range(20)]
        seeds[split] = {int(s) for row in seen for s in row}
        assert len(seeds[split]) == 4 * 5 and {s % 2 for s in seeds[split]} == {split == "held_out"}
        seed = int(seen[0][1])
        alone = gymnasium.make("CartPole-v1").reset(seed=seed)[0]  # an episode is found again by its seed
        again = world("gymnasium/CartPole-v1", SHORT, 4, split=split)
        np.testing.assert_array_equal(again.reset(0).obs["x"][1], alone)
    assert again.spec == world("gymnasium/CartPole-v1", SHORT, 4).spec
    with pytest.raises(UserError, match="no split 'test'; there are: train, held_out"):
        world("gymnasium/CartPole-v1", split="test")


def test_held_out_options_are_arguments_of_that_split() -> None:
    options = {"kwargs": {"length": 5}, "held_out": {"horizon": 2}}
    train, held_out = (world(CORRIDOR, options, split=split) for split in ("train", "held_out"))
    still = np.zeros((3, 2), int)
    for env, at_two in ((train, False), (held_out, True)):
        env.reset(0)
        assert [bool(env.step(still).truncated.any()) for _ in range(2)] == [False, at_two]


def test_a_split_in_which_the_world_is_another_is_refused(tmp_path: Path) -> None:
    """An agent of the one would act in the other, by numbers that mean something else there."""
    body = """
def make_env(seen=2, choices=3):
    env = Env()
    env.observation_space, env.action_space = spaces.Box(-1, 1, (seen,)), spaces.Discrete(choices)
    return env
"""
    source = module(tmp_path / "other.py", body)
    assert world(source, {"held_out": {"choices": 3}}, split="held_out").spec.n_actions == 3
    for options, said in (
        ({"seen": 4}, r"has other observations than .*\(\{'x': \['float32', 4\]\}, not \{'x': \['float32', 2\]\}\)"),
        ({"choices": 4}, r"in the split 'held_out' has other choices of an action than .*\(\[4\], not \[3\]\)"),
    ):
        with pytest.raises(UserError, match=said):
            world(source, {"held_out": options}, split="held_out")
        assert world(source, {"held_out": options}).reset(0).obs["x"].shape == (3, 2)


def test_a_time_limit_is_a_truncation_with_its_last_observation() -> None:
    env = world("gymnasium/CartPole-v1", SHORT)
    env.reset(0)
    steps = [env.step(np.array([0, 1, 1])) for _ in range(5)]
    assert not any(s.truncated.any() for s in steps[:4])
    last = steps[-1]
    assert last.truncated.all() and not last.terminated.any() and last.is_first.all() and last.final_truth is not None
    np.testing.assert_array_equal(last.final_truth["seed"], steps[0].truth["seed"])
    assert (np.abs(last.obs["x"]) < 0.05 + 1e-6).all() and (np.abs(last.final_obs["x"][:, 1]) > 0.5).all()


def test_a_world_that_cannot_be_copied_says_so(tmp_path: Path) -> None:
    no_copy = "Env.__deepcopy__ = lambda self, memo: (_ for _ in ()).throw(TypeError('a handle'))"
    shared = """
class Engine:
    n = 0
    def __deepcopy__(self, memo):
        return self  # as a handle to a simulator outside Python may
def make_env():
    env = Env()
    env.engine = Engine()
    def step(action):
        env.engine.n += 1
        return np.full(2, env.engine.n % 2, np.float32), 0.0, False, False, {}
    env.step = step
    return env
"""
    made_anew = """
class Env(Env, gymnasium.utils.EzPickle):
    def reset(self, *, seed=None, options=None):
        self.age = 0
        return np.zeros(2), {}
    def step(self, action):
        self.age += 1
        return np.full(2, self.age), 0.0, False, False, {}
"""
    rarely_seen = """
import random
class Env(Env):
    def step(self, action):
        return np.full(2, random.random() < 1e-9, np.float32), 0.0, False, False, {}
"""
    numpys = rarely_seen.replace("random.random()", "np.random.random()")
    for body in (no_copy, shared, made_anew, rarely_seen, numpys):
        env = world(module(tmp_path / "m.py", body))
        assert not env.spec.can_snapshot
        env.reset(0)
        with pytest.raises(ValueError, match="cannot be copied"):
            env.snapshot()
    assert world(module(tmp_path / "m.py", "")).spec.can_snapshot


# Labels


def test_numbers_in_info_are_labels_of_the_observation_beside_them() -> None:
    env = world(CORRIDOR, {"kwargs": {"length": 5}}, 8)
    step = env.reset(0)
    goal = step.obs["lamp"][:, 0].copy()  # lit at the first step alone
    assert set(step.truth) == {"seed", "goal"} and set(goal) == {-1.0, 1.0}
    np.testing.assert_array_equal(step.truth["goal"], goal)
    for ends in (False, True):
        step = env.step(np.tile([1, 1], (8, 1)))
        assert step.terminated.all() == ends and step.final_truth is not None
        np.testing.assert_array_equal(step.final_truth["goal"], goal)
    np.testing.assert_array_equal(step.truth["goal"], step.obs["lamp"][:, 0])  # of the next episode
    assert (step.truth["goal"] != goal).any()


def test_what_of_info_is_a_label(tmp_path: Path) -> None:
    body = """
import threading
def reset(self, *, seed=None, options=None):
    gymnasium.Env.reset(self, seed=seed)
    self.age = 0
    return self._obs(), {"seed": 1, "flag": np.bool_(True), "whole": 3, "part": np.array(0.5), "lost": 1.0,
                         "vector": np.zeros(2), "text": "3", "two words": 1, 4: 4, "nothing": None,
                         "handle": threading.Lock()}
def step(self, action):
    self.age += 1
    return self._obs(), 0.0, False, False, {"flag": False, "whole": 3 + self.age, "part": np.inf, "late": 1.0,
                                            "handle": threading.Lock()}
def _obs(self):
    return np.zeros(2, np.float32)
Env.observation_space = spaces.Box(-1, 1, (2,), np.float32)
Env.action_space = spaces.Discrete(2)
Env.reset, Env.step, Env._obs = reset, step, _obs
"""
    env = world(module(tmp_path / "m.py", body), slots=2)
    told = env.reset(0).truth
    assert {k: v.tolist() for k, v in told.items() if k != "seed"} == {
        "flag": [1, 1], "lost": [1, 1], "part": [0.5, 0.5], "whole": [3, 3],
    } and all(v.dtype == np.float64 for k, v in told.items() if k != "seed")  # fmt: skip
    env.step(np.zeros(2, int))
    kept, after = env.snapshot(), env.step(np.zeros(2, int)).truth
    assert after["flag"].tolist() == [0, 0] and after["whole"].tolist() == [5, 5]
    assert np.isnan(after["lost"]).all() and np.isnan(after["part"]).all() and "late" not in after
    assert env.restore(kept).truth["whole"].tolist() == [4, 4]
    np.testing.assert_array_equal(env.step(np.zeros(2, int)).truth["whole"], after["whole"])


# What is refused


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gymnasium/CartPol-v1", {}, r"no Gymnasium environment 'CartPol-v1' \(did you mean CartPole-v1\?\)"),
        ("gymnasium/nowhere:Thing-v0", {}, "needs the package 'nowhere', which does not import"),
        ("gymnasium/Pendulum-v1", {}, "actions of gymnasium/Pendulum-v1 are continuous; supported are Discrete, Multi"),
        ("gymnasium/Blackjack-v1", {}, r"is nested \(Tuple\); supported are vectors"),
        ("gymnasium/CartPole-v1", {"wrapper": []}, r"unknown key 'wrapper' \(did you mean wrappers\?\)"),
        ("gymnasium/CartPole-v1", {"wrappers": "a:b"}, "option 'wrappers' of .*CartPole-v1 must be a JSON list"),
        ("gymnasium/CartPole-v1", {"wrappers": ["os:system"]}, "'os:system' is not a gymnasium.Wrapper"),
        ("gymnasium/CartPole-v1", {"wrappers": ["gymnasium.wrappers:Nope"]}, "no wrapper 'gymnasium.wrappers:Nope'"),
        ("gymnasium/CartPole-v1", {"wrappers": [5]}, "wrappers: 5 is no wrapper; write"),
        ("gymnasium/CartPole-v1", {"wrappers": [[]]}, r"wrappers: \[\] is no wrapper; write"),
        ("gymnasium/CartPole-v1", {"wrappers": [["gymnasium.wrappers:TimeLimit", 3]]}, "is no wrapper; write"),
        ("gymnasium/CartPole-v1", {"wrappers": [["gymnasium.wrappers:ResizeObservation", {"shape": [3, 3]}]]},
         "the wrapper 'gymnasium.wrappers:ResizeObservation' cannot be put on: "),
        ("gymnasium/CartPole-v1", {"kwargs": {"a": 1}}, "gymnasium.make.'CartPole-v1'. fails: Type"),
        ("gymnasium/CartPole-v1", {"action_names": ["a"]}, "1 different names; gymnasium/CartPole-v1 has 2 actions"),
        ("gymnasium/CartPole-v1", {"wrappers": [AUTORESET]}, "hides the last .*no final_obs"),
        ("procgn/coinrun", {}, r"no world 'procgn/coinrun' \(did you mean procgen\?\); write"),
        ("planted/nul", {}, "'nul' is not one of confounded"),
        ("procgen/coinrum", {}, r"no Procgen game 'coinrum' \(did you mean coinrun\?\)"),
        ("nowhere.py", {}, "cannot read the module nowhere.py: No such file"),
    ],
)  # fmt: skip
def test_refusals(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # gymnasium's own, of names that it will change
        spec_of(name, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("del make_env", r"the module .*/m\.py has no function make_env"),
        ("1 / 0", r"the module .*/m\.py cannot be loaded: ZeroDivisionError"),
        ("def make_env(): return 3", "is a int, not a gymnasium.Env"),
        ("def make_env(): raise OSError('no disk')", r"make_env of m\.py fails: OSError: no disk"),
        ("def make_env(): return gymnasium.vector.SyncVectorEnv([Env])", "a vector of environments, .*final_obs"),
        ("Env.observation_space = spaces.Dict(a=spaces.Dict(b=spaces.Discrete(2)))", "field 'a' .*is nested"),
        ("Env.observation_space = spaces.Dict(a=spaces.Text(9))", "field 'a' of module/m is a Text, whose size"),
        ("Env.observation_space = spaces.Sequence(spaces.Discrete(2))", "is a Sequence, whose size has no bound"),
        ("Env.observation_space = spaces.Box(0, 1, (0,))", r"of module/m is \[0\], which holds no number: leave it"),
        ("Env.observation_space = spaces.Dict({0: spaces.Discrete(2)})", "names an observation field 0; a name is a t"),
        ("Env.observation_space = spaces.Dict({'': spaces.Discrete(2)})", "names an observation field ''; a name is a"),
        ("Env.observation_space = spaces.Dict({'a/': spaces.Discrete(2)})", "names an observation field 'a/'; a name"),
        ("Env.observation_space = spaces.Dict({'a': spaces.Discrete(2), 'a/b': spaces.Discrete(2)})",
         "names an observation field 'a' and another 'a/b', as if it lay within: rename one"),
        ("Env.observation_space = spaces.Box(0, 1, (8, 8, 3))", r"is float32 \[8, 8, 3\]; supported are"),
        ("Env.observation_space = spaces.Box(0, 255, (84, 84), np.uint8)", r"is uint8 \[84, 84\]; supported are"),
        ("Env.observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)", "channels first; they must come last"),
        ("Env.action_space = spaces.Box(-1, 1, (2,))", "actions of module/m are continuous"),
        ("Env.action_space = spaces.Tuple([spaces.Discrete(2)])", "actions of module/m are a Tuple"),
        ("Env.reset = lambda self, **k: np.zeros(2, np.float32)", "reset gives an observation alone, as old gym"),
        ("Env.step = lambda self, a: (np.zeros(2), 0.0, False, {})", "step does not give .observation, reward, term"),
        ("Env.step = lambda self, a: (np.zeros(3), 0.0, False, False, {})", r"'x' is float64 \[3\]; its space says"),
        ("Env.step = lambda self, a: (np.full(2, np.nan), 0.0, False, False, {})", "'x' has NaN or infinite values"),
        ("Env.step = lambda self, a: (np.zeros(2), np.nan, False, False, {})", "reward of module/m has NaN or inf"),
        ("Env.step = lambda self, a: (np.zeros(2), None, False, False, {})", "step gives reward None, termin"),
        ("Env.step = lambda self, a: (np.zeros(2), np.zeros(2), False, False, {})", "first must be one number"),
        ("Env.step = lambda self, a: (np.zeros(2), 1e39, False, False, {})", "module/m has 1e.39, which does not fit"),
        ("Env.step = lambda self, a: (np.full(2, -1e39), 0.0, False, False, {})", "'x' has -1e.39, which does not fit"),
        (f"{CATEGORY}Env.reset = lambda self, **k: (4, {{}})", "'x' has the category 4; it has 1 to 3, all whole"),
        (f"{CATEGORY}Env.reset = lambda self, **k: (0, {{}})", "'x' has the category 0; it has 1 to 3, all whole"),
        (f"{CATEGORY}Env.reset = lambda self, **k: (1.5, {{}})", "'x' has the category 1.5; it has 1 to 3, all whole"),
        (f"{CATEGORY}Env.reset = lambda self, **k: (np.nan, {{}})", "'x' has the category nan; it has 1 to 3, "),
        (f"{SEVERAL}Env.reset = lambda self, **k: ([1, 2], {{}})", "'x' has the category 2 at 1; it has 0 to 1, all w"),
        (f"{SEVERAL}Env.reset = lambda self, **k: ([1], {{}})", r"'x' is int64 \[1\]; its space says float32 \[5\]"),
        ("Env.observation_space = spaces.MultiDiscrete([[3, 2]])", r"is a MultiDiscrete \[1, 2\]; .*: flatten it"),
        ("Env.observation_space = spaces.MultiDiscrete([3, 2], start=[0, 1])", r"begin at \[0, 1\]: shift them"),
        (f"{CATEGORY}Env.reset = lambda self, **k: ('a', {{}})", r"'x' is <U1 \[\]; its space says float32 \[3\]"),
    ],
)  # fmt: skip
def test_bad_modules(tmp_path: Path, body: str, said: str) -> None:
    """Before anything runs, or at the first step that breaks the rule."""
    with pytest.raises(UserError, match=said) as caught:
        env = world(module(tmp_path / "m.py", body))
        env.reset(0)
        env.step(np.zeros(3, int))
    assert "\n" not in str(caught.value)


@pytest.fixture
def cartpole() -> Iterator[GymnasiumEnv]:
    env = world("gymnasium/CartPole-v1")
    yield env
    env.close()


def test_misuse_by_a_program(cartpole: GymnasiumEnv) -> None:
    with pytest.raises(ValueError, match="reset or restore"):
        cartpole.step(np.zeros(3, int))
    with pytest.raises(ValueError, match="reset or restore"):
        cartpole.snapshot()
    cartpole.reset(0)
    with pytest.raises(ValueError, match="an action lies outside"):
        cartpole.step(np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="cannot reshape"):
        cartpole.step(np.array([0, 1]))


STARTS = {  # of a world: what its reset gives, and what is said of its held-out starts
    "follows its seed": ("self.np_random.random(2, np.float32)", None),
    "always the same": ("np.zeros(2, np.float32)", "16 of 16 held-out starts of module/w show at first what one of 16"),
    "a generator of its own": ("self.own.random(2, np.float32)", "16 of 16 held-out starts"),
    "one that all share": ("np.random.random(2).astype(np.float32)", "begins otherwise when it is reset again"),
}


@pytest.mark.parametrize("kind", STARTS)
def test_held_out_starts_that_begin_as_those_of_the_training_are_told(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A world that ignores its seed has the same starts in both splits; nothing that is said goes beyond what is seen,
    and what a process draws afterwards is what it would have drawn."""
    gives, said = STARTS[kind]
    body = "def make_env(**kwargs):\n    env = Env()\n    env.own = np.random.default_rng(3)\n    return env\n"
    source = Path(module(tmp_path / "w.py", body))
    source.write_text(source.read_text().replace("self.observation_space.sample() * 0, {}", f"{gives}, {{}}", 1))
    spec = spec_of(str(source), {})
    before = np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    facts = held_out_facts(spec)
    assert before == np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    told = capsys.readouterr().err
    if said is None:
        assert facts == {} and told == ""
        return
    assert said in facts["held_out_warning"] and told == f"warning: {facts['held_out_warning']}\n"
    assert "that no training saw is not shown" in told and "self.np_random" in told


def test_other_arguments_make_held_out_starts_others_where_the_start_is_always_the_same(tmp_path: Path) -> None:
    body = "def make_env(**kwargs):\n    env = Env()\n    env.start = kwargs['start']\n    return env\n"
    source = Path(module(tmp_path / "w.py", body))
    text = source.read_text().replace("self.observation_space.sample() * 0, {}", "np.full(2, self.start), {}", 1)
    source.write_text(text)
    one = {"kwargs": {"start": 0.5}}
    assert held_out_facts(spec_of(str(source), one))
    assert held_out_facts(spec_of(str(source), {**one, "held_out": {"start": 1.0}})) == {}


def test_worlds_whose_splits_are_kept_apart_are_not_tried() -> None:
    assert held_out_facts(spec_of("planted/null", {})) == held_out_facts(spec_of("gymnasium/CartPole-v1", {})) == {}
