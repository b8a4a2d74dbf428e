"""Paired runs of other people's agents and worlds: a state that is more than h, an action of several parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analysis.coupling.discrete_paths import along_memory, forced_changes, policy_slopes, through_world
from analysis.shared.directions import fit_pca
from analysis.shared.events import parse_event
from core.contracts import EnvSpec, Field, Shown, Step
from core.directions import Basis
from core.interventions import AddVector, AtSteps
from core.roll import Noise, Simulator, act
from core.trees import Tree
from envs.planted import PlantedModel, PlantedOptions, PlantedWorld, spec_of
from validation.fidelity.counterfactual import FORESIGHT, Found, foreseen, take
from validation.fidelity.effects import effects, enumerated
from validation.interventions.options import StudyOptions
from validation.interventions.study import study
from validation.paired.course import Course, Measures
from validation.paired.real import RealWorld
from validation.paired.simulated import SimulatedWorld, begun
from validation.paired.starts import Starts, collect_starts, distinct_actions

H, N, HORIZON = 6, 16, 4
STILL = PlantedOptions(kind="confounded", noise=0.0, hazard=0.0)  # the model of it makes no error
PATHS = ("", "memory", "world", "frames")


class LSTM(nn.Module):
    """Somebody's agent, whose state is (h, c)."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.spec, self.points = spec, {"h": H, "cell": H}
        size = spec.obs["x"].size
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTMCell(size, H), nn.Linear(H, spec.n_actions + 1)
        nn.init.normal_(self.head.weight, std=2.0)
        self.requires_grad_(False)

    def initial(self, batch: int) -> Tree:
        zero = self.head.weight.new_zeros(batch, H)
        return zero, zero + 0.25

    def encode(self, obs: Mapping[str, Tensor]) -> Tree:
        return obs["x"].to(self.head.weight.dtype)

    def advance(self, seen: Tree, state: Tree, is_first_B: Tensor) -> Tree:
        first = self.initial(len(is_first_B))
        before = tuple(torch.where(is_first_B[:, None], i, s) for i, s in zip(first, state, strict=True))
        return tuple(self.lstm(seen, before))

    def heads(self, seen: Tree, state: Tree) -> tuple[Tensor, Tensor]:
        out = self.head(state[0])
        return out[:, 1:], out[:, 0]

    def read(self, point: str, seen: Tree, state: Tree) -> Tensor:
        h, c = state
        return h if point == "h" else c

    def replaced(self, point: str, x_BN: Tensor, seen: Tree, state: Tree) -> tuple[Tree, Tree]:
        h, c = state
        return seen, (x_BN, c) if point == "h" else (h, x_BN)


TALKS = EnvSpec(
    env_id="tiny/talks",
    obs={"x": Field(shape=(3,), dtype="float32")},
    action_names=("left", "stay", "right", "talk", "listen", "hum"),
    action_parts={"move": 3, "say": 3},
    slots=1,
    can_snapshot=True,
)
PUSH_AX = np.array([[-1.0, 0.0, 0.5], [0.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 1.0, -1.0], [0.0, 0, 0], [0.0, 0, 0]])
KEPT = 0.75  # of the vector, from step to step
FAR = 3.0  # an episode ends where the first number is beyond


class Talks:
    """A vector that fades and is pushed by both parts of an action: in one it moves, in the other it talks."""

    def __init__(self, slots: int) -> None:
        self.spec = replace(TALKS, slots=slots)
        self._x_BX, self._seed_B = np.zeros((slots, 3)), np.zeros(slots)

    def _begin(self, where_B: np.ndarray) -> None:
        """New episodes; the next one of a slot follows from its seed alone."""
        for b in np.flatnonzero(where_B):
            self._x_BX[b] = np.random.default_rng(int(self._seed_B[b])).standard_normal(3)
            self._seed_B[b] += 1000

    def _show(self, reward_B: np.ndarray, over_B: np.ndarray, first_B: np.ndarray) -> Step:
        obs = {"x": self._x_BX.astype(np.float32)}
        return Step(obs, reward_B.astype(np.float32), over_B, np.zeros_like(over_B), first_B)

    def reset(self, seed: int) -> Step:
        slots = self.spec.slots
        self._seed_B = 1_000_000.0 * seed + np.arange(slots)
        self._begin(np.ones(slots, bool))
        return self._show(np.zeros(slots), np.zeros(slots, bool), np.ones(slots, bool))

    def step(self, action: np.ndarray) -> Step:
        assert action.shape == (self.spec.slots, 2) and action.min() >= 0 and action.max() < 3
        self._x_BX = KEPT * self._x_BX + PUSH_AX[action[:, 0]] + PUSH_AX[3 + action[:, 1]]
        reward_B, over_B = self._x_BX[:, 0].copy(), self._x_BX[:, 0] > FAR
        self._begin(over_B)
        return self._show(reward_B, over_B, over_B.copy())

    def snapshot(self) -> tuple[bytes, ...]:
        return tuple(np.append(x, seed).tobytes() for x, seed in zip(self._x_BX, self._seed_B, strict=True))

    def restore(self, states: Sequence[bytes]) -> Step:
        whole = np.stack([np.frombuffer(s, np.float64) for s in states])
        self._x_BX, self._seed_B = whole[:, :3].copy(), whole[:, 3].copy()
        none = np.zeros(len(states), bool)
        return self._show(np.zeros(len(states)), none, none.copy())

    def close(self) -> None:
        """There is nothing to release."""


class TalksModel:
    """``Talks`` as a world of its own; a latent is the vector that is seen."""

    def __init__(self) -> None:
        self.spec, self.initial_frames, self.latent_size = TALKS, 1, 3

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return obs["x"][:, 0], torch.zeros_like(obs["x"][:, 0])

    def normalise(self, z_BZ: Tensor) -> Tensor:
        return z_BZ

    def start(self, z_BZ: Tensor, noise: Tree | None = None) -> tuple[Tensor, Shown]:
        return z_BZ, Shown({"x": z_BZ}, z_BZ[:, 0], torch.zeros_like(z_BZ[:, 0]), z_BZ)

    def step(self, state: Tensor, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tensor, Shown]:
        x = KEPT * state + action_BA @ torch.from_numpy(PUSH_AX).to(action_BA)
        return x, Shown({"x": x}, x[:, 0], (x[:, 0] > FAR).to(x), x)


def planted() -> tuple[Simulator, type]:
    """Somebody's agent in the planted world without noise."""
    agent = LSTM(spec_of(STILL, 1))
    return Simulator(agent, PlantedModel(STILL), None), lambda slots: PlantedWorld(STILL, slots)


def talking() -> tuple[Simulator, type]:
    """The same agent with actions of two parts."""
    return Simulator(LSTM(TALKS), TalksModel(), None), Talks


BOTH = pytest.mark.parametrize("of", [planted, talking], ids=["planted", "two parts"])


def both_worlds(simulator: Simulator, make_env: type, dtype: torch.dtype = torch.float32):
    """Real and simulated runs from the same starts."""
    env, world, spec = make_env(N), simulator.world, simulator.world.spec
    starts = collect_starts(simulator.agent, env, N, initial_frames=1, latest=6, seed=0)
    noise = torch.from_numpy(np.random.default_rng(0).gumbel(size=(N, HORIZON + 1, spec.n_actions))).to(dtype)
    measures = Measures(distinct_actions(env, starts), parts=spec.parts)
    z, _ = world.infer({k: torch.from_numpy(v) for k, v in starts.window.items()})
    real = RealWorld(simulator.agent, starts.state, noise, measures, env, starts, make_env(5))
    return real, SimulatedWorld(simulator.agent, starts.state, noise, measures, world, begun(world, z))


def pushed(seed: int = 0, size: float = 1.5) -> AtSteps:
    """A change of h at step 0."""
    return AtSteps(AddVector(size * torch.randn(H, generator=torch.Generator().manual_seed(seed))), 0, 1)


def same(one: Course, other: Course, atol: float) -> None:
    """Courses that agree while the episode lasts."""
    on = other.weight_RT > 0.5
    assert torch.equal(one.weight_RT > 0.5, on)
    for name in ("logits_RTA", "value_RT", "h_RTH", "action_RTA"):
        torch.testing.assert_close(getattr(one, name)[on], getattr(other, name)[on], atol=atol, rtol=0)
    torch.testing.assert_close(one.reward_RT[on[:, :-1]], other.reward_RT[on[:, :-1]], atol=atol, rtol=0)


@BOTH
def test_a_run_is_gone_on_with_from_the_whole_state(of) -> None:
    """From a snapshot and the agent's h and cell: what the agent does uninterrupted, by hand."""
    simulator, make_env = of()
    real, _ = both_worlds(simulator, make_env)
    assert [x.shape for x in real.starts.state] == [(N, H), (N, H)]
    assert torch.equal(real.starts.state[0], real.starts.h_NH) and real.starts.state[1].abs().mean() > 0.05
    course, agent, state = real.course(), simulator.agent, real.starts.state
    now, parts, on = real.env.restore(real.starts.states), simulator.world.spec.parts, torch.ones(N, dtype=torch.bool)
    for t in range(HORIZON + 1):
        obs, first = {"x": torch.from_numpy(now.obs["x"])}, torch.from_numpy(now.is_first)
        if t:
            state = act(agent, obs, state, first, torch.zeros(N)).state
        logits, value = agent.heads((), state)
        assert torch.equal(course.value_RT[on, t], value[on]) and torch.equal(course.h_RTH[on, t], state[0][on])
        split = (logits + real.noise_NTA[:, t]).split(list(parts), 1)
        action = np.stack([x.argmax(1).numpy() for x in split], 1)
        now = real.env.step(action if len(parts) > 1 else action[:, 0])
        on &= ~torch.from_numpy(now.terminated | now.truncated)


@BOTH
def test_a_change_of_nothing_changes_no_bit(of) -> None:
    nothing = pushed(size=0.0)
    for world in both_worlds(*of()):
        for path in PATHS:
            for one, other in zip(world.run((), path), world.run((nothing,), path), strict=True):
                assert torch.equal(one, other)
        assert all((v[0] == v[1]).all() for v in world.measure([None, nothing]).values())


@BOTH
@pytest.mark.parametrize("path", ["", "world", "memory"])
def test_remembered_and_whole_runs_agree_and_so_do_both_worlds(of, path: str) -> None:
    """The world's model makes no error: what differs from the real world would be ours."""
    simulator, make_env = of()
    real, dreamed = both_worlds(simulator, make_env)
    changes = [pushed(seed) for seed in range(6)]
    parted = 0
    for change in changes:
        seen = real.run((change,), path)
        same(seen, real.course((change,), path), 1e-5)
        foretold = dreamed.run((change,), path)
        same(foretold, seen, 1e-4)
        if path != "memory":  # there the actions are the unaltered run's, which gradients alone respect
            same(foretold, dreamed.course_from(torch.arange(N), (change,), path), 1e-5)
        parted += int((foretold.action_RTA != dreamed.run().action_RTA).any((1, 2)).sum())
    assert parted == 0 if path == "memory" else parted > 2 * N, "runs must part, or nothing was tested"
    # All at once and one by one, what was played before or not.
    one, many = real.measure(changes, "", path), real.measure(changes, "", path, together=6)
    for q in one:
        np.testing.assert_allclose(one[q], many[q], atol=1e-5, err_msg=q)


def test_places_of_two_actions_are_never_taken_for_one() -> None:
    """A node's key tells every pair of choices, whichever agent makes them."""
    real, _ = both_worlds(*talking())
    tree = real.tree()
    node, pairs = torch.arange(N).repeat_interleave(9), torch.cartesian_prod(torch.arange(3), torch.arange(3))
    action = pairs.repeat(N, 1)
    assert len(real._key(node, action).unique()) == 9 * N
    there = real.grow(1, node, action)
    reached = tree[1].places.seen[there]
    start = np.stack([np.frombuffer(s, np.float64)[:3] for s in real.starts.states])
    pushes = PUSH_AX[:3][action[:, 0]] + PUSH_AX[3:][action[:, 1]]
    want = KEPT * start.repeat(9, 0) + pushes
    on = want[:, 0] <= FAR
    np.testing.assert_allclose(reached[on], want[on], atol=1e-6)
    assert on.mean() > 0.5


def test_choices_that_do_the_same_are_of_one_part() -> None:
    """Staying, listening and humming all do nothing; but only the last two are choices of one part."""
    real, _ = both_worlds(*talking())
    assert real.measures.actions == {"left": [0], "stay": [1], "right": [2], "talk": [3], "hum": [4, 5]}
    measured = {q: v[0] for q, v in real.measure([None]).items()}
    for moves in (("left", "stay", "right"), ("talk", "hum")):  # every part's probabilities add up
        np.testing.assert_allclose(sum(measured[f"prob:{name}"] for name in moves), 1, atol=1e-6)


def test_an_events_probability_is_that_of_its_part() -> None:
    real, _ = both_worlds(*talking())
    sure = parse_event("sure", "prob(left) + prob(stay) + prob(right) > 0.999", TALKS.action_names, 0)
    both = parse_event("both", "action == right and action == talk", TALKS.action_names, 0)
    real.measures = replace(real.measures, basis=identity(), events=(sure, both))
    found = {q: v[0] for q, v in real.measure([None]).items()}
    lasted = real.run().weight_RT[:, :-1].mean(1).numpy()
    np.testing.assert_allclose(found[f"rate:sure@{HORIZON}"], lasted, atol=1e-6)
    assert 0 < found[f"event:both@{HORIZON}"].mean() < 1


def identity() -> Basis:
    return Basis("pca", torch.zeros(H), torch.ones(H), torch.eye(H), torch.eye(H))


@BOTH
def test_a_study_of_somebodys_agent(of) -> None:
    """Both worlds are the same one, so that all that is foretold is seen; a change of nothing changes nothing."""
    simulator, make_env = of()
    options = StudyOptions(
        directions=(0, 1), amounts=(-1.5, 0.0, 1.5), starts=N, horizon=3, controls=39, latest_start=6, video=False
    )
    found = study(simulator, make_env, identity(), options)
    assert found.scalars["zero_change_real"]["value"] == 0 == found.scalars["zero_change_simulator"]["value"]
    late = [q.partition("/")[2] for q in found.arrays if q.startswith("observed/") and "@" in q]
    assert len(late) > 8
    for q in late:
        np.testing.assert_allclose(found.arrays[f"simulated/{q}"], found.arrays[f"observed/{q}"], atol=1e-4, err_msg=q)
    # The change of h at step 0 reaches later steps, through the cell's gates and through the world.
    shift = found.notes["hypotheses"].index("shift pca:0 by +1.5")
    assert np.abs(found.arrays["observed/value@3"][shift]).mean() > 0.01
    assert {c["size"] for c in found.notes["claims"]} <= {"as foretold", "open"}
    assert not [c for c in found.notes["claims"] if c["verdict"] == "refuted"]


def test_derivatives_pass_the_whole_state() -> None:
    """Of the value three steps later by the agent's memory alone, against differences; float64."""
    simulator, make_env = planted()
    agent, world = simulator.agent.double(), simulator.world.double()
    env = make_env(N)
    starts = collect_starts(LSTM(agent.spec), env, N, initial_frames=1, latest=6, seed=0)
    starts: Starts = replace(starts, state=tuple(x.double() for x in starts.state), h_NH=starts.h_NH.double())
    noise = torch.from_numpy(np.random.default_rng(0).gumbel(size=(N, 4, 3)))
    z, _ = world.infer({k: torch.from_numpy(v).double() for k, v in starts.window.items()})
    actions = {"left": [0], "wait": [1], "right": [2]}
    dreamed = SimulatedWorld(agent, starts.state, noise, Measures(actions), world, begun(world, z))
    found, size = dreamed.jacobian(block=5, through="memory"), 1e-5
    for i in range(H):
        step = size * torch.eye(H, dtype=torch.float64)[i]
        ways = [AtSteps(AddVector(sign * step), 0, 1) for sign in (1, -1)]
        up, down = (dreamed.measure([way], "", "memory") for way in ways)
        for q in ("value", "value@3", "logit:left", "prob:right@1..3"):
            numeric = (up[q] - down[q])[0] / (2 * size)
            np.testing.assert_allclose(found[q][0, :, i].numpy(), numeric, atol=1e-6, err_msg=q)
    assert found["value@3"].abs().mean() > 1e-3


def test_effects_of_actions_of_two_parts_are_enumerated_in_both_worlds() -> None:
    """The simulator is the real world, and their effects are those of the coupling stage."""
    simulator, make_env = talking()
    h = np.random.default_rng(0).normal(size=(99, H)).astype(np.float32)
    shots, basis, found = take(simulator, make_env, N, latest=6, seed=0), fit_pca(h, 3), Found()
    try:
        assert [shots.actions[name] for name in shots.actions] == [[0], [1], [2], [3], [4, 5]]
        effects(shots, basis, found, np.random.default_rng(0))
        noise = torch.from_numpy(np.random.default_rng(0).gumbel(size=(N, 4, 6)).astype(np.float32))
        measures = Measures(shots.actions, parts=TALKS.parts)
        world = SimulatedWorld(
            simulator.agent, shots.starts.state, noise, measures, simulator.world, shots.beginning.world
        )
        alone = enumerated(world, basis)
    finally:
        shots.env.close()
    rows = {(r["measure"], r["horizon"]): r for r in found.rows}
    for k in FORESIGHT:
        for family in ("value", "action"):
            assert rows[f"effect_sign_{family}", k]["simulated"] > 0.95
    moments, groups = world.moments(torch.arange(N)), list(shots.actions.values())
    slope = policy_slopes(along_memory(simulator.agent, moments)[:-1], [0], groups, TALKS.parts)
    drawn = [Noise(action_BA=x) for x in noise.unbind(1)]
    change = forced_changes(
        simulator, moments, lambda m: torch.stack([m.acted.value_B, m.alive_B.float()], 1), groups, noise=drawn
    )
    want = basis.pullback(through_world(slope, change)[:, 0, :, :, 0])
    lives = (change[..., 1] == 0).flatten(1).all(1)  # whatever is done: there an ended episode goes on
    assert N / 2 < lives.sum() < N and want[lives].abs().max() > 0.01
    for k in (1, 2, 3):
        mine = torch.from_numpy(alone[k, "value", f"value@{k}"].T).float()
        torch.testing.assert_close(mine[lives], want[lives, k], atol=1e-6, rtol=1e-4)


def test_actions_of_two_parts_have_probabilities_that_add_up_to_two() -> None:
    simulator, make_env = talking()
    _, world = both_worlds(simulator, make_env)
    asked = foreseen(world.run(), world.measures)
    together = sum(x for (k, family, _), x in asked.items() if family == "action" and k == FORESIGHT[-1])
    torch.testing.assert_close(together, torch.full((N,), 2.0))
