"""The VecEnv contract, over every world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from core.contracts import EnvSpec, Step, UserError, VecEnv
from envs.gymnasium_env import GymnasiumEnv, GymnasiumOptions
from envs.planted import KINDS, PlantedOptions, PlantedWorld
from envs.procgen import GAMES, HELD_OUT_LEVEL, ProcgenEnv, ProcgenOptions, options_of
from envs.registry import make, renewed

COINRUN = ProcgenOptions(game="coinrun", use_backgrounds=False, restrict_themes=True)
CARTPOLE = GymnasiumOptions(action_names=["left", "right"])
# A world, and how many steps show episodes ending.
WORLDS: dict[str, tuple[Callable[[int], VecEnv], int]] = {
    **{
        f"planted_{kind}": (partial(PlantedWorld, PlantedOptions(kind=kind, horizon=20, hazard=0.05, dwell=5)), 50)
        for kind in KINDS
    },
    "planted_rotated": (lambda slots: PlantedWorld(PlantedOptions(horizon=7, hazard=0.0, rho=-0.3, seed=5), slots), 20),
    "procgen_coinrun": (lambda slots: ProcgenEnv(COINRUN, slots), 150),
    "procgen_bigfish": (lambda slots: ProcgenEnv(ProcgenOptions(game="bigfish", num_levels=0), slots), 120),
    "gymnasium": (partial(GymnasiumEnv, "gymnasium/CartPole-v1", CARTPOLE), 120),
}
SLOTS = 4


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[tuple[Callable[[int], VecEnv], int]]:
    """The factory of a world, which closes what it made, and a number of steps."""
    factory, steps = WORLDS[request.param]
    made: list[VecEnv] = []

    def tracked(slots: int) -> VecEnv:
        made.append(factory(slots))
        return made[-1]

    yield tracked, steps
    for env in made:
        env.close()


def actions(spec: EnvSpec, steps: int, seed: int = 0) -> np.ndarray:
    """Random actions [steps, slots]; in Procgen half of them go right, which is where games end."""
    rng = np.random.default_rng(seed)
    out = rng.integers(spec.n_actions, size=(steps, spec.slots))
    ahead = [i for i, name in enumerate(spec.action_names) if name in ("right", "upright")]
    right = rng.choice(ahead, size=out.shape)
    return np.where(rng.random(out.shape) < 0.5, right, out) if spec.env_id.startswith("procgen") else out


def run(env: VecEnv, action_TB: np.ndarray) -> list[Step]:
    return [env.step(a) for a in action_TB]


def facts(step: Step) -> dict[str, np.ndarray]:
    out = {f"obs/{k}": v for k, v in step.obs.items()} | {f"truth/{k}": v for k, v in step.truth.items()}
    return out | {k: getattr(step, k) for k in ("reward", "terminated", "truncated", "is_first")}


def identical(a: Step, b: Step, order: np.ndarray | None = None) -> None:
    """All that is defined is equal to the bit; slot i of ``b`` is slot order[i] of ``a``."""
    order = np.arange(len(a.reward)) if order is None else order
    for name, array in facts(a).items():
        other = facts(b)[name]
        assert array.dtype == other.dtype and array[order].tobytes() == other.tobytes(), name
    assert (a.final_obs is None) == (b.final_obs is None)
    done = (b.terminated | b.truncated).nonzero()[0]
    for x, y in ((a.final_obs, b.final_obs), (a.final_truth, b.final_truth)):
        if x is not None and y is not None:
            assert all(x[k][order][done].tobytes() == y[k][done].tobytes() for k in x)


def test_shapes_and_dtypes_are_the_spec_s(world: tuple[Callable[[int], VecEnv], int]) -> None:
    env = world[0](SLOTS)
    assert isinstance(env, VecEnv) and env.spec.slots == SLOTS and len(set(env.spec.action_names)) == env.spec.n_actions
    for step in (env.reset(0), *run(env, actions(env.spec, 2))):
        assert step.obs.keys() == env.spec.obs.keys()
        for name, field in env.spec.obs.items():
            assert step.obs[name].shape == (SLOTS, *field.shape) and step.obs[name].dtype == field.dtype
        assert step.reward.shape == (SLOTS,) and step.reward.dtype == np.float32
        for flag in (step.terminated, step.truncated, step.is_first):
            assert flag.shape == (SLOTS,) and flag.dtype == bool
        assert all(len(v) == SLOTS for v in step.truth.values())
        assert (step.final_obs is None) == (step.final_truth is None)


def test_reset_starts_every_slot(world: tuple[Callable[[int], VecEnv], int]) -> None:
    env = world[0](SLOTS)
    for seed in (0, 1):
        step = env.reset(seed)
        assert step.is_first.all() and not (step.terminated | step.truncated).any() and not step.reward.any()
        run(env, actions(env.spec, 3))


def test_same_seed_same_world_and_another_seed_another(world: tuple[Callable[[int], VecEnv], int]) -> None:
    factory, steps = world
    a, b = factory(SLOTS), factory(SLOTS)
    action = actions(a.spec, steps)
    for _ in range(2):  # a second reset leaves nothing of the first
        identical(a.reset(3), b.reset(3))
        for x, y in zip(run(a, action), run(b, action), strict=True):
            identical(x, y)
        b.close()
        b = factory(SLOTS)
    (name,) = a.spec.obs
    first = a.reset(3).obs[name]
    assert not np.array_equal(first, a.reset(4).obs[name])
    assert not all(np.array_equal(first[0], row) for row in first[1:])  # slots differ among themselves
    b.close()


def test_autoreset_is_on_the_same_step(world: tuple[Callable[[int], VecEnv], int]) -> None:
    factory, steps = world
    env = factory(SLOTS)
    (name,) = env.spec.obs
    previous = env.reset(0)
    ended = 0
    for action in actions(env.spec, steps):
        step = env.step(action)
        done = step.terminated | step.truncated
        np.testing.assert_array_equal(step.is_first, done)
        assert not (step.terminated & step.truncated).any()
        if done.any():
            assert (step.final_obs is not None) == env.spec.gives_final_obs
        for b in done.nonzero()[0]:
            ended += 1
            assert not np.array_equal(step.obs[name][b], previous.obs[name][b])
            if step.final_obs is not None and step.final_truth is not None:
                assert not np.array_equal(step.final_obs[name][b], step.obs[name][b])
                assert any(not np.array_equal(v[b], step.truth[k][b]) for k, v in step.final_truth.items())
        previous = step
    assert ended >= 2, "the test saw too few endings to mean anything"


def test_final_observation_continues_the_old_episode() -> None:
    """The planted world's last stimulus follows from the one before by its own equation; the next is free of it."""
    env = PlantedWorld(PlantedOptions(noise=0.0, horizon=5, hazard=0.0), SLOTS)
    previous = env.reset(0)
    for t in range(1, 11):
        step = env.step(np.ones(SLOTS, int))
        assert step.final_truth is not None and step.final_obs is not None
        np.testing.assert_allclose(step.final_truth["stimulus"], 0.875 * previous.truth["stimulus"], rtol=1e-5)
        np.testing.assert_array_equal(step.truncated, t % 5 == 0)
        if t % 5:
            assert np.array_equal(step.final_obs["x"], step.obs["x"])
        previous = step


def test_nothing_returned_is_written_to_later(world: tuple[Callable[[int], VecEnv], int]) -> None:
    env = world[0](SLOTS)
    kept = [env.reset(0), *run(env, actions(env.spec, 3))]
    copies = [{k: v.copy() for k, v in facts(step).items()} for step in kept]
    run(env, actions(env.spec, 8, seed=1))
    for step, copy in zip(kept, copies, strict=True):
        assert all(np.array_equal(v, copy[k]) for k, v in facts(step).items())
    # and writing to what was returned does not reach into the world
    twin = world[0](SLOTS)
    a, b = env.reset(2), twin.reset(2)
    for array in (*a.obs.values(), a.reward, a.is_first, a.terminated, a.truncated):
        array[...] = 1
    del b
    action = actions(env.spec, 3)
    for x, y in zip(run(env, action), run(twin, action), strict=True):
        identical(x, y)


def test_actions_are_not_mutated_and_any_integer_type_does(world: tuple[Callable[[int], VecEnv], int]) -> None:
    a, b = world[0](SLOTS), world[0](SLOTS)
    a.reset(0), b.reset(0)
    for action in actions(a.spec, 5):
        kept = action.copy()
        identical(a.step(action), b.step(action.astype(np.int32)))
        np.testing.assert_array_equal(action, kept)


def test_snapshot_and_restore_are_exact(world: tuple[Callable[[int], VecEnv], int]) -> None:
    """In place, in other slots and in a fresh world of another seed: the same future to the bit, endings included."""
    factory, steps = world
    env = factory(SLOTS)
    assert env.spec.can_snapshot
    env.reset(0)
    at = run(env, actions(env.spec, 13))[-1]
    states = env.snapshot()
    action = actions(env.spec, steps, seed=7)
    future = run(env, action)
    assert sum(int(s.is_first.sum()) for s in future) >= 2
    shown = env.restore(states)
    assert not (shown.terminated | shown.truncated).any() and not shown.reward.any()
    assert all(np.array_equal(v, at.obs[k]) for k, v in shown.obs.items())
    assert all(np.array_equal(v, at.truth[k]) for k, v in shown.truth.items())
    np.testing.assert_array_equal(shown.is_first, at.is_first)
    for x, y in zip(future, run(env, action), strict=True):
        identical(x, y)
    order = np.array([2, 0, 3, 1])
    fresh = factory(SLOTS)
    fresh.restore([states[i] for i in order])  # before any reset
    for x, y in zip(future, run(fresh, action[:, order]), strict=True):
        identical(x, y, order)
    fresh.reset(99)
    fresh.restore([states[1]] * SLOTS)  # one state in every slot
    ones = np.full(SLOTS, 1)
    for x, y in zip(future[:10], run(fresh, np.repeat(action[:10, 1:2], SLOTS, 1)), strict=True):
        identical(x, y, ones)
    with pytest.raises(ValueError, match="states for 4 slots"):
        env.restore(states[:2])


def test_registry_makes_the_same_world_again(world: tuple[Callable[[int], VecEnv], int]) -> None:
    env = world[0](SLOTS)
    spec = EnvSpec.from_json(env.spec.to_json())
    assert spec == env.spec
    again = make(spec, SLOTS)
    try:
        assert again.spec == env.spec
        identical(env.reset(5), again.reset(5))
        action = actions(env.spec, 5)
        for x, y in zip(run(env, action), run(again, action), strict=True):
            identical(x, y)
    finally:
        again.close()


def test_unknown_worlds_are_user_errors() -> None:
    spec = ProcgenEnv(COINRUN, 1).spec
    with pytest.raises(UserError, match="no adapter for the world 'atari/pong'"):
        make(replace(spec, env_id="atari/pong"), 1)
    with pytest.raises(UserError, match=r"no Procgen game 'coinrum' \(did you mean coinrun\?\)"):
        ProcgenEnv(ProcgenOptions(game="coinrum"), 1)
    with pytest.raises(UserError, match="not a Procgen world"):
        options_of(replace(spec, env_id="planted/linear"))
    assert options_of(spec) == COINRUN


def test_held_out_levels_are_other_levels() -> None:
    env = ProcgenEnv(replace(COINRUN, num_levels=3, start_level=0), 8)
    held_out = make(env.spec, 8, start_level=1000, num_levels=5)
    try:
        assert set(env.reset(0).truth["level"]) <= {0, 1, 2}
        assert set(held_out.reset(0).truth["level"]) <= set(range(1000, 1005))
    finally:
        env.close()
        held_out.close()


def test_the_split_held_out_of_any_world() -> None:
    """Other levels than those of the spec, unless a setting says which; worlds without levels are the same world."""
    env = ProcgenEnv(replace(COINRUN, num_levels=3, start_level=0), 8)
    away, chosen = make(env.spec, 8, split="held_out"), make(env.spec, 8, split="held_out", start_level=9, num_levels=1)
    try:
        assert min(away.reset(0).truth["level"]) >= HELD_OUT_LEVEL
        assert set(chosen.reset(0).truth["level"]) == {9}
    finally:
        away.close()
        chosen.close()
    planted = PlantedWorld(PlantedOptions(), 2)
    assert make(planted.spec, 2, split="held_out").spec == planted.spec
    with pytest.raises(UserError, match=r"no split 'heldout' \(did you mean held_out\?\); there are: train, held_out"):
        make(planted.spec, 2, split="heldout")


@pytest.mark.parametrize("game", GAMES)
def test_every_game_steps_and_restores(game: str) -> None:
    env = ProcgenEnv(ProcgenOptions(game=game), 2)
    try:
        first = env.reset(0).obs["frames"]
        assert first.shape == (2, 64, 64, 3) and first.std() > 0
        run(env, actions(env.spec, 5))
        states, action = env.snapshot(), actions(env.spec, 10, seed=1)
        future = run(env, action)
        assert any(not np.array_equal(s.obs["frames"], future[0].obs["frames"]) for s in future)
        env.restore(states)
        for x, y in zip(future, run(env, action), strict=True):
            identical(x, y)
    finally:
        env.close()


def test_procgen_timeout_is_a_truncation() -> None:
    """Standing still in a maze runs into its 500 steps; the level's own end is a termination."""
    env = ProcgenEnv(ProcgenOptions(game="maze", num_levels=1), 1)
    try:
        env.reset(0)
        still = np.array([env.spec.action_names.index("none")])
        steps = [env.step(still) for _ in range(500)]
        assert [bool(s.truncated[0]) for s in steps] == [False] * 499 + [True]
        assert not any(s.terminated[0] for s in steps) and steps[-1].is_first[0]
    finally:
        env.close()


def futures(env: VecEnv, states: tuple[bytes, ...], hold: int, after: np.ndarray) -> list[bytes]:
    """All that is seen, an entry an action id: held ``hold`` steps from the same states, then the same for all."""
    out = []
    for i in range(env.spec.n_actions):
        env.restore(states)
        steps = run(env, np.concatenate([np.full((hold, env.spec.slots), i), after]))
        out.append(b"".join(array.tobytes() for step in steps for _, array in sorted(facts(step).items())))
    return out


@pytest.mark.parametrize("game", GAMES)
def test_actions_that_do_the_same_do_and_others_do_not(game: str) -> None:
    """Of the groups in the spec, in every state tried; and no two groups are alike in all of them."""
    env = ProcgenEnv(ProcgenOptions(game=game, num_levels=0), SLOTS)
    rng, seen = np.random.default_rng(1), [b""] * env.spec.n_actions
    try:
        env.reset(5)
        for _ in range(6):
            run(env, np.repeat(rng.integers(env.spec.n_actions, size=(8, SLOTS)), 4, 0))  # each held a while
            states = env.snapshot()
            for hold in (1, 8):
                after = rng.integers(env.spec.n_actions, size=(6, SLOTS))
                seen = [a + b for a, b in zip(seen, futures(env, states, hold, after), strict=True)]
    finally:
        env.close()
    groups = env.spec.distinct_actions()
    assert sorted(i for ids in groups.values() for i in ids) == list(range(env.spec.n_actions))
    for name, ids in groups.items():
        assert len({seen[i] for i in ids}) == 1, (name, [env.spec.action_names[i] for i in ids])
    assert len({seen[ids[0]] for ids in groups.values()}) == len(groups)


def test_words_of_a_world_are_about_its_own_actions_and_may_be_missing() -> None:
    for game in GAMES:
        spec = ProcgenEnv(ProcgenOptions(game=game), 1).spec
        assert all(set(names) <= set(spec.action_names) for names in (*spec.same_actions, *spec.action_words.values()))
        assert ("jumping_up" in spec.action_words) == (game in ("climber", "coinrun", "jumper", "ninja"))
    old = {k: v for k, v in spec.to_json().items() if k not in ("same_actions", "action_words", "events")}
    stored = EnvSpec.from_json(old)
    assert stored.distinct_actions() == {name: [i] for i, name in enumerate(spec.action_names)}
    assert renewed(stored) == spec
    other = replace(stored, env_id="procgen/starpilot", action_names=("stay", "go"))
    assert renewed(other) == other  # not this version's actions: nothing is known of them
    assert renewed(replace(stored, env_id="else/where")).events == {}
