"""The loop in a live environment, the recorder on it, and a state that is more than h."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from agents.play import Chooser, Exploration, LiveWorld, Moment, play
from agents.record import Kept, record_episodes
from agents.recurrent import AgentConfig, RecurrentAgent
from agents.running import WHOLE, Running
from core.artefacts import new_run, write_json
from core.contracts import Agent, EnvSpec, Field, Obs, Step
from core.episodes import RolloutStore, StoreWriter
from core.interventions import AddVector, AtSteps
from core.roll import act, roll
from core.trees import Tree, unflatten, where

CPU = torch.device("cpu")
SIZE = 3
SLOW, SHORT = 60, 4  # steps of an episode in slot 0, and in the others


class Clock:
    """A world that shows how old it is: slot 0 has long episodes, the others short ones, which end in truth or by a
    time limit in turn."""

    def __init__(self, slots: int = 3, *, final: bool = True) -> None:
        self.final = final
        self.spec = EnvSpec(
            env_id="clock", obs={"x": Field(shape=(SIZE,), dtype="float32")}, action_names=("a", "b"), slots=slots,
            gives_final_obs=final,
        )  # fmt: skip
        self.length_B = np.where(np.arange(slots) == 0, SLOW, SHORT)
        self.shown: list[weakref.ref[np.ndarray]] = []  # every observation there has been

    def _obs(self) -> Obs:
        x = np.stack([self.age_B, self.games_B, np.arange(self.spec.slots)], 1).astype(np.float32) / 10
        self.shown.append(weakref.ref(x))
        return {"x": x}

    def reset(self, seed: int) -> Step:
        self.age_B = self.games_B = np.zeros(self.spec.slots, np.int64)
        no = np.zeros(self.spec.slots, bool)
        return Step(self._obs(), no.astype(np.float32), no, no, ~no, truth={"age": self.age_B})

    def step(self, action: np.ndarray) -> Step:
        assert action.shape == (self.spec.slots,) and action.dtype == np.int64
        self.age_B = self.age_B + 1
        done_B = self.age_B == self.length_B
        last: dict[str, Any] = {"final_obs": self._obs(), "final_truth": {"age": self.age_B}} if self.final else {}
        dead_B = done_B & (self.games_B % 2 == 0)
        self.age_B, self.games_B = np.where(done_B, 0, self.age_B), self.games_B + done_B
        reward = (action + 0.5).astype(np.float32)
        return Step(self._obs(), reward, dead_B, done_B & ~dead_B, done_B, truth={"age": self.age_B}, **last)


class Lstm(nn.Module):
    """Somebody's LSTM, whose state is (h, c)."""

    def __init__(self, spec: EnvSpec, size: int = 5) -> None:
        super().__init__()
        self.spec, self.points, self.size = spec, {"h": size, "cell": size}, size
        self.lstm, self.actor = nn.LSTMCell(SIZE, size), nn.Linear(size, spec.n_actions)

    def initial(self, batch: int) -> Tree:
        zeros = self.actor.weight.new_zeros(batch, self.size)
        return zeros, zeros

    def encode(self, obs: dict[str, Tensor]) -> Tree:
        return obs["x"]

    def advance(self, seen: Tree, state: Tree, is_first_B: Tensor) -> Tree:
        return self.lstm(seen, where(is_first_B, self.initial(len(is_first_B)), state))

    def heads(self, seen: Tree, state: Tree) -> tuple[Tensor, Tensor]:
        return self.actor(state[0]), state[0].sum(1)

    def read(self, point: str, seen: Tree, state: Tree) -> Tensor:
        return {"h": state[0], "cell": state[1]}[point]

    def replaced(self, point: str, x_BN: Tensor, seen: Tree, state: Tree) -> tuple[Tree, Tree]:
        return seen, {"h": (x_BN, state[1]), "cell": (state[0], x_BN)}[point]


def lstm() -> Lstm:
    torch.manual_seed(0)
    return Lstm(Clock().spec).eval().requires_grad_(False)


def gru() -> RecurrentAgent:
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="mlp", embedding_size=4, hidden_size=6), Clock().spec)
    with torch.no_grad():
        agent.policy.weight.mul_(100)
    return agent.eval().requires_grad_(False)


AGENTS: dict[str, Callable[[], Any]] = {"lstm": lstm, "gru": gru}
every = pytest.mark.parametrize("name", AGENTS)


def chooser(slots: int = 3, **settings: Any) -> Chooser:
    return Chooser(Exploration(**settings), slots, np.random.default_rng(0))


def moments(agent: Agent, env: Clock, steps: int, **options: Any) -> Iterator[Moment]:
    loop = play(agent, env, chooser(env.spec.slots), seed=0, device=CPU, **options)  # type: ignore[arg-type]
    return itertools.islice(loop, steps)


# The loop


@every
@pytest.mark.parametrize("final", [True, False])
def test_play_is_the_plain_loop(name: str, final: bool) -> None:
    agent, env, other = AGENTS[name](), Clock(final=final), Clock(final=final)
    choose, step, state = chooser(), other.reset(0), agent.initial(3)
    for m in moments(agent, env, 3 * SHORT + 2):
        seen = agent.encode({"x": torch.from_numpy(step.obs["x"])})
        state = agent.advance(seen, state, torch.from_numpy(step.is_first))
        logits, value = agent.heads(seen, state)
        action = choose(logits.numpy(), step.is_first)
        h = agent.read("h", seen, state)
        for mine, plain in (
            (m.obs["x"], step.obs["x"]), (m.h_BH, h), (m.value_B, value), (m.logits_BA, logits), (m.action_B, action),
            (m.is_first_B, step.is_first), (m.age_B, step.truth["age"]), (m.truth["age"], step.truth["age"]),
        ):  # fmt: skip
            np.testing.assert_array_equal(mine, plain)
        assert m.action_B.dtype == np.int64 and m.age_B.dtype == np.int64 and not m.altered_B.any()
        step = other.step(action)
        for what in ("reward", "terminated", "truncated", "is_first"):
            np.testing.assert_array_equal(getattr(m.next, what), getattr(step, what))
        assert (m.final_h_BH is not None) == (final and (step.terminated | step.truncated).any())
        if m.final_h_BH is not None:
            last = agent.encode({"x": torch.from_numpy(step.final_obs["x"])})
            after = agent.advance(last, state, torch.zeros(3, dtype=torch.bool))
            np.testing.assert_array_equal(m.final_h_BH, agent.read("h", last, after))
            np.testing.assert_array_equal(m.final_value_B, agent.heads(last, after)[1])


@every
def test_interventions_count_the_steps_of_every_slot_by_itself(name: str) -> None:
    agent = AGENTS[name]()
    push = AtSteps(AddVector(torch.ones(agent.points["h"])), 2, 4)
    altered = np.stack([m.altered_B for m in moments(agent, Clock(), 2 * SHORT + 1, intervene=(push,))])
    age = np.stack([m.age_B for m in moments(agent, Clock(), 2 * SHORT + 1)])
    np.testing.assert_array_equal(altered, (age >= 2) & (age < 4))
    assert altered[SHORT + 2, 1] and not altered[SHORT + 2, 0]


def test_a_live_world_goes_on_from_a_state_once() -> None:
    env = Clock()
    world = LiveWorld(env, CPU)  # type: ignore[arg-type]
    first, shown = world.reset(0)
    assert shown.is_first_B is not None and shown.is_first_B.all() and shown.features_BD.shape == (3, 0)
    a, b = torch.eye(2)[[0, 0, 1]], torch.eye(2)[[1, 1, 1]]
    second, then = world.step(first, a)
    again, same = world.step(first, a)
    assert torch.equal(second, again) and same is then and env.age_B.tolist() == [1, 1, 1]
    np.testing.assert_array_equal(then.reward_B, [0.5, 0.5, 1.5])
    for state, action in ((first, b), (second + 1, a)):
        with pytest.raises(ValueError, match="this environment is at step 1; it cannot go on from step"):
            world.step(state, action)
    world.step(second, b)
    with pytest.raises(ValueError, match="is at step 2; it cannot go on from step 0"):
        world.step(first, a)


def test_in_a_live_world_a_row_is_there_again_when_its_next_episode_begins() -> None:
    """Where slots begin at once, always; where one shows nothing for a step, not while it does."""

    class Delayed(Clock):
        def step(self, action: np.ndarray) -> Step:
            out = super().step(action)
            return replace(out, is_first=(self.age_B == 1) & (self.games_B > 0))

    for env, gap in ((Clock(), False), (Delayed(), True)):
        world = LiveWorld(env, CPU)  # type: ignore[arg-type]
        alive = [m.alive_B for m in itertools.islice(roll(lstm(), world, world.reset(0)), SHORT + 3)]
        assert torch.stack(alive)[:, 1].tolist() == [*[True] * SHORT, not gap, True, True]


# The recorder


@every
def test_a_recording_tells_what_happened(name: str) -> None:
    agent, env = AGENTS[name](), Clock()
    episodes = list(record_episodes(agent, env, 6, seed=0, device=CPU))  # type: ignore[arg-type]
    assert [e.steps for e in episodes] == [SHORT] * 4 + [SLOW] * 2
    assert [e.meta["slot"] for e in episodes] == [1, 2, 1, 2, 0, 0]
    assert [e.terminated for e in episodes] == [True, True, False, False, True, False]
    for e in episodes:
        np.testing.assert_array_equal(e.truth["age"], np.arange(e.steps + 1))
        np.testing.assert_array_equal(e.obs["x"][:, 2], np.float32(e.meta["slot"] / 10))
        np.testing.assert_array_equal(e.reward, e.action.astype(np.float32) + 0.5)
        assert e.final_known and e.h.dtype == e.reward.dtype == np.float32 and e.logits.shape == (e.steps, 2)
        assert (e.state is not None) == (name == "lstm")


def test_where_the_last_observation_is_not_shown_none_is_recorded() -> None:
    for e in record_episodes(lstm(), Clock(final=False), 3, seed=0, device=CPU):  # type: ignore[arg-type]
        assert not e.final_known and e.state is not None
        assert len(e.state) == len(e.h) == len(e.truth["age"]) == e.steps


@pytest.mark.parametrize("intervene", [(), (AtSteps(AddVector(torch.ones(5)), 1, 3),)])
def test_the_agent_goes_on_exactly_from_a_recorded_state(intervene: tuple[Any, ...], tmp_path: Path) -> None:
    """From the store, at any step: with the LSTM's cell the same bits follow, with h alone they do not."""
    agent, env = lstm(), Clock(slots=1)
    env.length_B = np.array([7])
    with new_run(tmp_path / "r", "record", {}) as run, StoreWriter(run.path) as writer:
        write_json(run.path / "spec.json", env.spec.to_json())
        for e in record_episodes(agent, env, 2, seed=0, device=CPU, intervene=intervene):  # type: ignore[arg-type]
            writer.add(e)
    with RolloutStore(tmp_path / "r") as store:
        assert "state" in store.column_names
        e = store.episode(1)
    assert e.state is not None and e.state.shape == (8, 10) and e.state.dtype == np.float32
    going = torch.zeros(1, dtype=torch.bool)
    for t in range(e.steps):
        recorded = unflatten(torch.from_numpy(e.state[t : t + 1]), agent.initial(1))
        np.testing.assert_array_equal(agent.read("h", (), recorded)[0], e.h[t])
        for state, exact in ((recorded, True), ((recorded[0], torch.zeros(1, 5)), False)):
            obs = {"x": torch.from_numpy(e.obs["x"][t + 1 : t + 2])}
            acted = act(agent, obs, state, going, torch.tensor([t + 1]), intervene)
            assert np.array_equal(acted.h_BH[0], e.h[t + 1]) == exact
            assert np.array_equal(acted.value_B[0], e.value[t + 1]) == exact


class Watched(Clock):
    """Measures something before every step."""

    def __init__(self, measure: Callable[[Clock], int]) -> None:
        super().__init__()
        self.measure, self.found = measure, [0]

    def step(self, action: np.ndarray) -> Step:
        self.found.append(self.measure(self))
        return super().step(action)


def test_only_the_rows_of_running_episodes_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow slot takes fifteen times as long as the others; but for the last few steps nothing of theirs is kept
    meanwhile."""
    made: list[Running] = []

    class Known(Running):
        def __init__(self, slots: int) -> None:
            super().__init__(slots)
            made.append(self)

    monkeypatch.setattr("agents.record.Running", Known)
    held: list[int] = []

    def rows(_: Clock) -> int:
        """Rows that are in memory, those of the last steps of all slots among them."""
        running = made[-1]
        own = sum(len(part["reward"]) for before in running._before for part in before)
        held.append(own + 3 * len(running._steps))
        return sum(running.lengths)

    env = Watched(rows)
    lengths = [e.steps for e in record_episodes(gru(), env, 6, seed=0, device=CPU)]  # type: ignore[arg-type]
    assert sum(lengths) == 2 * SLOW + 4 * SHORT
    # The others have given their two episodes at step 8: from there on the slow slot's rows are all there is.
    age = np.arange(len(env.found)) - 1
    want = age % SLOW + 2 * np.where(age < 2 * SHORT, age % SHORT, 0)
    np.testing.assert_array_equal(env.found[1:], want[1:])
    assert max(held) <= SLOW + 3 * WHOLE


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_rows_of_slots_come_back_as_they_came(data: st.DataObject) -> None:
    """Whichever slots take part in a step, and wherever an episode ends or the recording is saved and gone on with."""
    slots = 3
    running = Running(slots)
    want: list[list[int]] = [[] for _ in range(slots)]
    for t in range(data.draw(st.integers(1, 3 * WHOLE))):
        on = data.draw(st.lists(st.integers(0, slots - 1), unique=True))
        shown = np.arange(slots) + slots * t
        running.add({"reward": shown, "x": np.stack([shown, -shown], 1)}, on)
        for b in on:
            want[b].append(slots * t + b)
        shown[:] = -1  # what was added are copies
        if on and data.draw(st.booleans()):
            b = on[0]
            episode = running.take(b, {"x": np.full((slots, 2), 7)} if data.draw(st.booleans()) else None)
            np.testing.assert_array_equal(episode["reward"], want[b])
            np.testing.assert_array_equal(episode["x"][: len(want[b]), 1], -np.array(want[b]))
            assert len(episode["x"]) - len(want[b]) in (0, 1) and (episode["x"][len(want[b]) :] == 7).all()
            want[b] = []
        if data.draw(st.integers(0, 9)) == 0:
            lengths, rows = running.lengths, running.all()
            running = Running(slots)
            running.restore(rows, lengths)
        assert running.lengths == [len(rows) for rows in want]
    for b in range(slots):
        if want[b]:
            np.testing.assert_array_equal(running.column(b, "reward"), want[b])


def test_no_batch_of_observations_outlives_its_step() -> None:
    env = Watched(lambda env: sum(shown() is not None for shown in env.shown))
    list(record_episodes(gru(), env, 3, seed=0, device=CPU))  # type: ignore[arg-type]
    assert len(env.found) > SLOW and max(env.found) <= 6  # two a step, of three steps at most


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (Kept([5.0], [12]), "1 episode, 12 steps, mean return 5.00"),
        (Kept([], [], cut=1, cut_steps=1), "0 episodes and 1 that was cut, 1 step"),
        (Kept([5.0, 6.0], [1, 2], cut=2, cut_steps=3), "2 episodes and 2 that were cut, 6 steps, mean return 5.50 ["),
        (Kept([5.0, 6.0, 6.0], [1, 2, 2]), "3 episodes, 5 steps, mean return 5.67 [5.09, 5.99]"),
    ],
)
def test_one_episode_is_called_so(kept: Kept, says: str) -> None:
    assert kept.in_words(False).startswith(says)


def test_of_agents_that_share_a_world_no_interval_is_told() -> None:
    """They are not independent, so that one over episodes would be too narrow."""
    assert Kept([5.0, 6.0], [1, 2]).in_words(False, agents=2).endswith("mean return 5.50")
