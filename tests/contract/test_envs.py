"""The VecEnv contract, over every world."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents.craftax_train import CraftaxCollector
from agents.load import load_agent
from agents.ppo import PPOConfig
from agents.record import RecordConfig, main as record_main
from agents.recurrent import AgentConfig, RecurrentAgent
from agents.train import choose
from core import config as cli
from core.contracts import EnvSpec, Step, UserError, VecEnv
from core.directions import fingerprint
from core.episodes import RolloutStore
from envs import craftax
from envs.craftax import CraftaxEnv, CraftaxOptions
from envs.gymnasium_env import GymnasiumEnv, GymnasiumOptions
from envs.planted import KINDS, PlantedOptions, PlantedWorld
from envs.procgen import GAMES, HELD_OUT_LEVEL, ProcgenEnv, ProcgenOptions, options_of
from envs.registry import held_out_pool, make, renewed

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
    "craftax": (partial(CraftaxEnv, CraftaxOptions()), 250),
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
    name = next(iter(a.spec.obs))
    first = a.reset(3).obs[name]
    assert not np.array_equal(first, a.reset(4).obs[name])
    assert not all(np.array_equal(first[0], row) for row in first[1:])  # slots differ among themselves
    b.close()


def test_autoreset_is_on_the_same_step(world: tuple[Callable[[int], VecEnv], int]) -> None:
    factory, steps = world
    env = factory(SLOTS)
    name = next(iter(env.spec.obs))
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
        assert all(v.tobytes() == copy[k].tobytes() for k, v in facts(step).items())
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
    assert all(np.array_equal(v, at.truth[k], equal_nan=v.dtype.kind == "f") for k, v in shown.truth.items())
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


@pytest.mark.parametrize(
    ("game", "mode", "having"),
    [
        ("ninja", "extreme", "chaser, dodgeball, leaper, starpilot"),
        ("ninja", "memory", "caveflyer, dodgeball, heist, jumper, maze, miner"),
        ("ninja", "exploration", "coinrun, leaper, maze"),
    ],
)
def test_a_mode_that_a_game_lacks_is_refused(game: str, mode: Any, having: str) -> None:
    """Procgen would end the process."""
    with pytest.raises(UserError, match=f"^{game} has no mode '{mode}'; these do: {having}$"):
        ProcgenEnv(ProcgenOptions(game=game, distribution_mode=mode), 1)


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


def test_a_pool_of_levels_says_where_the_training_saw_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Of --num_levels 0, which is all levels, an intervention's pools were taken for apart."""
    spec = ProcgenEnv(ProcgenOptions(start_level=10, num_levels=90), 1).spec
    for none in (0, -1):
        with pytest.raises(UserError, match=f"--num_levels must be at least 1, not {none}"):
            held_out_pool(spec, 700, none)
    assert held_out_pool(spec, 100, 5) == {"start_level": 100, "num_levels": 5}
    assert held_out_pool(spec, 0, 10)["num_levels"] == 10 and not capsys.readouterr().err
    held_out_pool(spec, 99, 5)
    assert "warning: levels 99 to 103 overlap those of the training (10 to 99)" in capsys.readouterr().err


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


# Craftax.  Its functions take half a minute to compile for a number of slots, once a process: here, with four.

ALL_SEEN = CraftaxOptions(mask_intrinsics=False, previous_action=True)


def record(argv: list[str]) -> None:
    record_main(cli.parse(RecordConfig, argv, "record"))


def last_of(step: Step) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Observation and labels of the state that a step led to, before a new episode."""
    assert step.final_obs is not None and step.final_truth is not None
    return dict(step.final_obs), dict(step.final_truth)


def test_what_craftax_shows_is_its_own_observation_without_what_is_masked() -> None:
    env = CraftaxEnv(ALL_SEEN, SLOTS)
    env.reset(0)
    action = actions(env.spec, 12)
    shown = run(env, action)[-1]
    rules = craftax.Rules(ALL_SEEN.env_name, 1, ())
    assert env._carry is not None
    obs, own = shown.obs, rules.jax.jit(rules.env.get_obs)
    for b in range(SLOTS):
        state = rules.jax.tree.map(lambda x, b=b: x[b], env._carry.state)
        cells = np.concatenate([obs["blocks"][b].reshape(63, 17), obs["mobs"][b].reshape(63, 4)], 1)
        rest = [obs[k][b] for k in ("inventory", "intrinsics", "direction", "light", "sleeping")]
        np.testing.assert_array_equal(np.concatenate([cells.ravel(), *rest]), np.asarray(own(state)))
        assert shown.truth["health"][b] == state.player_health and shown.truth["thirst"][b] == state.player_thirst
        assert [shown.truth["row"][b], shown.truth["col"][b]] == state.player_position.tolist()
        assert shown.truth["achieved_collect_wood"][b] == state.achievements[0]
        assert shown.truth["cows"][b] == int(state.cows.mask.sum()) and shown.truth["timestep"][b] == 12
    np.testing.assert_array_equal(obs["previous_action"].argmax(1), action[-1])
    assert (obs["previous_action"].sum(1) == 1).all()


def test_labels_of_craftax_are_of_the_observation_beside_them_and_rewards_of_their_changes() -> None:
    """At every step and at the last one of every episode, under a policy that does all there is to do."""
    coefs = {"reward_hp_coef": 2.0, "reward_ach_coef": 3.0, "reward_needs_coef": 0.5}
    env = CraftaxEnv(replace(ALL_SEEN, **coefs), SLOTS)
    step, ended, achieved, met = env.reset(1), 0, 0.0, np.zeros(2)
    inventory = [k for k in step.truth if k.startswith("inventory_")]
    for action in actions(env.spec, 200, seed=5):
        before = step.truth
        step = env.step(action)
        obs, truth = last_of(step)
        for seen, so in ((step.obs, step.truth), (obs, truth)):
            needs = np.stack([so[k] for k in craftax.INTRINSICS], 1)
            np.testing.assert_array_equal((10 * seen["intrinsics"]).round(), needs)
            np.testing.assert_array_equal(seen["direction"].argmax(1), so["direction"])
            np.testing.assert_array_equal(seen["light"][:, 0], so["light_level"])
            np.testing.assert_array_equal(seen["sleeping"][:, 0], so["is_sleeping"])
            in_order = [f"inventory_{k}" for k in ("wood", "stone", "coal", "iron", "diamond", "sapling")]
            np.testing.assert_array_equal(
                (10 * seen["inventory"][:, :6]).round(), np.stack([so[k] for k in in_order], 1)
            )
            away = np.abs(np.arange(7) - 3)[:, None] + np.abs(np.arange(9) - 4)  # steps to a cell in view
            for i, mob in enumerate(("zombies", "cows", "skeletons", "arrows")):
                near, at = so[f"nearest_{mob}"], seen["mobs"].reshape(-1, 7, 9, 4)[..., i]
                in_view = np.where(at, away, np.inf).min((1, 2))
                np.testing.assert_array_equal(np.isnan(near), so[mob] == 0)
                assert (near <= in_view)[np.isfinite(in_view)].all()
                met += np.array([(near <= 3).sum(), (near == in_view)[near <= 3].sum()])
        new = sum(truth[k].astype(int) - before[k] for k in truth if k.startswith("achieved_"))
        needs = sum(truth[k] - before[k] for k in ("food", "drink", "energy"))
        np.testing.assert_allclose(step.reward, 2 * (truth["health"] - before["health"]) + 3 * new + 0.5 * needs)
        done = step.terminated | step.truncated
        assert (truth["health"][done] <= 0).all() and (truth["timestep"] == before["timestep"] + 1).all()
        assert (step.truth["timestep"][done] == 0).all() and (step.truth["health"][done] == 9).all()
        ended, achieved = ended + int(done.sum()), achieved + float(new.sum())
    assert ended >= 3 and achieved >= 3 and met[0] >= 3 and len(inventory) == 12
    assert met[1] > 0.8 * met[0]  # where the place of one that is gone is the same, Craftax's observation hides it


def test_what_is_masked_in_craftax() -> None:
    def size(**options: object) -> int:
        spec = craftax.spec_of(CraftaxOptions(**options), 1)  # type: ignore[arg-type]
        return sum(field.size for field in spec.obs.values())

    assert (size(), size(mask_intrinsics=False), size(mask_sleeping=True)) == (1341, 1345, 1340)
    assert size(previous_action=True) == 1341 + 17
    full = {"env_name": "Craftax-Symbolic-v1"}
    assert (size(**full), size(**full, mask_intrinsics=False)) == (8264, 8268)
    spec = craftax.spec_of(CraftaxOptions(), 1)
    assert "intrinsics" not in spec.obs and spec.obs["blocks"].categories == (17,) * 63
    assert spec.same_world(CraftaxEnv(CraftaxOptions(), SLOTS).spec)
    assert not spec.same_world(craftax.spec_of(ALL_SEEN, 1))


def edited(env: CraftaxEnv, state: bytes, **numbers: float) -> bytes:
    """A snapshot with other numbers."""
    for name, value in numbers.items():
        (state,) = env.edited([state], name, value)
    return state


def test_a_number_of_craftax_can_be_set_and_all_else_stays() -> None:
    masked, seen = CraftaxEnv(CraftaxOptions(), SLOTS), CraftaxEnv(ALL_SEEN, SLOTS)
    masked.reset(3)
    states = masked.snapshot()
    before = masked.restore(states)
    for name, value in (("health", 2), ("thirst", 7.5), ("inventory_wood", 4), ("is_sleeping", 1)):
        changed = masked.edited(states, name, value)
        step = masked.restore(changed)
        assert step.truth is not None and before.truth is not None
        assert (step.truth[name] == value).all()
        assert all(step.truth[k].tobytes() == before.truth[k].tobytes() for k in before.truth if k != name)
        same = {k for k in before.obs if np.array_equal(step.obs[k], before.obs[k])}
        assert before.obs.keys() - same == {"inventory_wood": {"inventory"}, "is_sleeping": {"sleeping"}}.get(
            name, set()
        )
    unlike = seen.restore(masked.edited(states, "health", 2)).obs["intrinsics"]
    assert (unlike != seen.restore(states).obs["intrinsics"]).any(1).all()
    with pytest.raises(UserError, match="row cannot be set; what can: .*health"):
        masked.edited(states, "row", 3)
    with pytest.raises(UserError, match="health is a whole number, not 2.5"):
        masked.edited(states, "health", 2.5)
    for name, value in (("health", 200), ("food", -1)):  # which no state of the game has
        with pytest.raises(UserError, match=f"{name} lies between 0 and 9 at these states, not at {value}"):
            masked.edited(states, name, value)
    with pytest.raises(UserError, match="health lies between .* not at 1e"):
        masked.edited(states, "health", 1e12)
    with pytest.raises(UserError, match="is_sleeping is 0 or 1, not 2"):
        masked.edited(states, "is_sleeping", 2)


def test_craftax_is_seen_as_a_picture_too() -> None:
    """Of the very same world: each cell's pixels tell what the vector says of it, and none tells what is masked."""
    pictured = CraftaxOptions(env_name="Craftax-Classic-Pixels-v1")
    vector, picture, shown = (
        CraftaxEnv(o, SLOTS) for o in (ALL_SEEN, pictured, replace(pictured, mask_intrinsics=False))
    )
    vector.reset(0)
    action = actions(vector.spec, 12)
    cells = run(vector, action)[-1]
    states = vector.snapshot()
    seen = picture.restore(states)
    assert cells.truth is not None and seen.truth is not None
    assert all(x.tobytes() == cells.truth[k].tobytes() for k, x in seen.truth.items())
    frames = seen.obs["frames"]
    assert list(seen.obs) == ["frames"] and frames.shape == (SLOTS, 63, 63, 3) and frames.dtype == np.uint8
    tiles = frames[:, :49].reshape(SLOTS, 7, 7, 9, 7, 3).swapaxes(2, 3).reshape(-1, 7 * 7 * 3)
    kind = cells.obs["blocks"].reshape(-1, 17).argmax(1)
    plain = ~cells.obs["mobs"].reshape(-1, 4).any(1) & (
        np.arange(len(kind)) % 63 != 31
    )  # nor the player, who stands there
    looks = {k: np.unique(tiles[plain & (kind == k)], axis=0) for k in np.unique(kind[plain])}
    assert len(looks) > 3 and all(len(x) == 1 for x in looks.values())  # one look a block, by day,
    assert len(np.unique(np.concatenate(list(looks.values())), axis=0)) == len(looks)  # and no two alike
    for name in craftax.INTRINSICS:
        changed = picture.edited(states, name, 3)
        assert np.array_equal(picture.restore(changed).obs["frames"], frames)
        differs = shown.restore(changed).obs["frames"] != shown.restore(states).obs["frames"]
        assert differs[:, 49:].any((1, 2, 3)).all() and not differs[:, :49].any()
    stepped, beside = picture.restore(states) and picture.step(action[0]), vector.step(action[0])
    assert np.array_equal(stepped.reward, beside.reward) and not np.array_equal(stepped.obs["frames"], frames)
    agent = RecurrentAgent(AgentConfig(encoder="strided", embedding_size=8, hidden_size=8), picture.spec)
    assert agent.encode({"frames": torch.from_numpy(frames)}).shape == (SLOTS, 8)


def test_the_end_of_a_craftax_episode_is_a_death_or_its_time_is_up() -> None:
    env = CraftaxEnv(CraftaxOptions(), SLOTS)
    env.reset(2)
    states = list(env.snapshot())
    states[0] = edited(env, states[0], timestep=9_999)
    states[1] = edited(env, states[1], health=1, food=0, recover=-15.0)
    states[2] = edited(env, states[2], timestep=9_999, health=1, food=0, recover=-15.0)
    step = (env.restore(states), env.step(np.zeros(SLOTS, int)))[1]
    assert step.truncated.tolist() == [True, False, False, False]
    assert step.terminated.tolist() == [False, True, True, False]
    np.testing.assert_allclose(step.reward, [0, -0.1, -0.1, 0], atol=1e-6)
    with pytest.raises(ValueError, match="these are of another world"):
        env.restore([b"short"] * SLOTS)
    with pytest.raises(ValueError, match="numbers from 0 to 16"):
        env.step(np.full(SLOTS, 17))


def test_held_out_worlds_of_craftax_are_others_and_stay_so() -> None:
    """The lowest bit of an episode's key is the split's, of every episode that follows too."""
    trained, held_out = (
        CraftaxEnv(CraftaxOptions(), SLOTS),
        make(craftax.spec_of(CraftaxOptions(), 1), SLOTS, split="held_out"),
    )
    assert isinstance(held_out, CraftaxEnv)
    assert not np.array_equal(trained.reset(0).obs["blocks"], held_out.reset(0).obs["blocks"])
    dying = [edited(held_out, s, health=1, food=0, recover=-15.0) for s in held_out.snapshot()]
    for _ in range(3):
        for env, bit in ((trained, 0), (held_out, 1)):
            assert env._carry is not None and (np.asarray(env._carry.key)[:, 0] % 2 == bit).all()
        keys = np.asarray(held_out._carry.key).copy()
        held_out.restore(dying)
        assert held_out.step(np.zeros(SLOTS, int)).is_first.all()
        dying = [edited(held_out, s, health=1, food=0, recover=-15.0) for s in held_out.snapshot()]
        assert (np.asarray(held_out._carry.key) != keys).any(1).all()


@pytest.mark.parametrize("scarcity", [1, 3])
def test_needs_grow_so_many_times_as_fast_where_craftax_is_scarce(scarcity: int) -> None:
    rules = craftax.Rules(ALL_SEEN.env_name, scarcity, ())
    jax, update = rules.jax, rules.step.__globals__["update_player_intrinsics"]
    program = craftax.program_of(ALL_SEEN.env_name, 1, ())
    state = jax.tree.unflatten(program.tree, [rules.jnp.zeros(x.shape, x.dtype) for x in program.leaves]).state
    state = state.replace(player_health=9, player_food=9, player_drink=9, player_energy=5, is_sleeping=False)
    update, noop, sleep, seen = jax.jit(update), 0, 6, []
    for action in (*[noop] * 30, *[sleep] * 4):
        state = update(state, action)
        seen.append([float(getattr(state, f"player_{x}")) for x in ("hunger", "thirst", "fatigue", "food")])
    steps = np.arange(1, 31)
    last, more = 25 // scarcity, np.array([0.5, 0.5]) * scarcity
    np.testing.assert_array_equal(np.array(seen)[:last, 0], scarcity * steps[:last])
    assert seen[last][0] == 0 and seen[last][3] == 8 and seen[last - 1][3] == 9  # above 25 a point of food goes
    np.testing.assert_array_equal(np.array(seen)[: 20 // scarcity, 1], scarcity * steps[: 20 // scarcity])
    np.testing.assert_array_equal(np.array(seen)[: 30 // scarcity, 2], scarcity * steps[: 30 // scarcity])
    np.testing.assert_array_equal(np.array(seen[31])[:2] - np.array(seen[30])[:2], more)  # asleep half as fast,
    assert seen[31][2] == seen[30][2] - 1  # and rest is rest
    assert rules.params.spawn_cow_chance == pytest.approx(0.1 / scarcity)
    if scarcity == 1:
        return
    full = craftax.Rules("Craftax-Symbolic-v1", scarcity, ()).step.__globals__["spawn_mobs"].__globals__
    chances = np.asarray(full["FLOOR_MOB_SPAWN_CHANCE"])
    np.testing.assert_allclose(
        chances[:2], [[0.1 / scarcity, 0.02, 0.05, 0.1], [0.1 / scarcity, 0.06, 0.05, 0]], rtol=1e-6
    )


def test_what_is_no_craftax_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"no Craftax world 'Craftax-Clasic-Symbolic-v1' \(did you mean Craftax-Classic"
    ):
        CraftaxEnv(CraftaxOptions(env_name="Craftax-Clasic-Symbolic-v1"), 1)
    with pytest.raises(UserError, match="--scarcity must be at least 1, not 0"):
        CraftaxEnv(CraftaxOptions(scarcity=0), 1)
    with pytest.raises(UserError, match="has no start_level"):
        make(craftax.spec_of(CraftaxOptions(), 1), 1, start_level=3)
    monkeypatch.setitem(sys.modules, "craftax.craftax_env", None)
    with pytest.raises(UserError, match="Craftax needs the packages craftax, jax and flax .*requirements.lock"):
        craftax.program_of("Craftax-Symbolic-v1", 7, ())


@pytest.fixture(scope="module")
def craftax_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent of two blocks, trained by the flags that earlier users know."""
    out = tmp_path_factory.mktemp("craftax") / "agent"
    flags = (
        "--env_name Craftax-Classic-Symbolic-v1 --total_timesteps 128 --num_envs 4 --num_steps 16 --num_checkpoints 2"
    )
    choose(["craftax", "--debug", *flags.split(), "--cell", "ema", "--blocks", "2", "--out_dir", str(out)])
    return out


def test_train_craftax_takes_the_flags_of_its_earlier_users(craftax_run: Path) -> None:
    names = sorted(p.name for p in craftax_run.glob("*.safetensors"))
    assert names == [*(f"checkpoint_{n:09d}.safetensors" for n in (64, 128)), "model.safetensors"]
    agent = load_agent(craftax_run)
    assert agent.config.recurrence == "ema" and agent.config.blocks == 2  # type: ignore[attr-defined]
    assert agent.spec.env_id == "craftax/Craftax-Classic-Symbolic-v1" and "intrinsics" not in agent.spec.obs
    curve = (craftax_run / "curve.csv").read_text().splitlines()
    assert len(curve) == 3 and "achievements_mean" in curve[0]


def test_a_training_in_craftax_goes_on_where_it_was(craftax_run: Path) -> None:
    agent, ppo = load_agent(craftax_run), PPOConfig(envs=SLOTS, rollout_steps=20)
    one, other = (
        CraftaxCollector(agent, CraftaxEnv(CraftaxOptions(), SLOTS), ppo, s, torch.device("cpu")) for s in (3, 4)
    )
    one.collect()
    other.restore(one.state(), 80)
    rollouts = []
    for collector in (one, other):
        torch.manual_seed(0)
        rollouts.append(collector.collect())
    a, b = rollouts
    for name in ("action", "reward", "is_first", "value", "done"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    assert all(torch.equal(a.obs[k], b.obs[k]) for k in a.obs) and one.means() == pytest.approx(
        other.means(), nan_ok=True
    )


def test_steps_of_every_checkpoint_are_recorded_with_all_that_probes_read(craftax_run: Path, tmp_path: Path) -> None:
    out, names = tmp_path / "all", ("checkpoint_000000064", "checkpoint_000000128")
    flags = [*f"--run_dir {craftax_run} --num_envs 4 --points all --threads 1".split()]
    record([*flags, "--num_steps", "130", "--all_ckpts", "--npz", "--out", str(out)])
    assert sorted(p.name for p in out.iterdir()) == sorted([*names, *(f"{name}.npz" for name in names)])
    agent = load_agent(craftax_run, name=f"{names[0]}.safetensors")
    with RolloutStore(out / names[0]) as store:
        facts, episodes = store.manifest["facts"], list(store)
    assert facts["agent"] == fingerprint(agent) and facts["classes"] == ["direction"]
    assert sum("cut" in e.meta for e in episodes) == 4 < len(episodes)
    for e in episodes:
        assert e.truth["timestep"].tolist() == list(range(len(e.h)))
        assert e.truncated == ("cut" in e.meta) != e.terminated == e.final_known
        seen = agent.encode({k: torch.from_numpy(x) for k, x in e.obs.items()})
        np.testing.assert_allclose(e.points["embedding"], seen.numpy(), atol=1e-5)
        np.testing.assert_array_equal(e.points["block_1"], e.h)
        assert e.state is not None
        np.testing.assert_array_equal(e.state, np.concatenate([e.points["block_0"], e.h], 1))
    with np.load(out / f"{names[0]}.npz") as saved:
        assert saved["index"].shape == (4 * 130, 2) and saved["points/block_0"].shape == (4 * 130, 12)
        health = np.concatenate([e.truth["health"][: e.steps] for e in episodes])
        np.testing.assert_array_equal(saved["truth/health"], health)
    record([*flags, "--num_steps", "5", "--ckpt", "64", "--out", str(tmp_path / "one")])
    with RolloutStore(tmp_path / "one") as store:
        assert store.manifest["facts"]["weights"] == f"{names[0]}.safetensors" and store.steps.tolist() == [5] * 4
        starts = {e.meta["slot"]: e for e in reversed(episodes)}  # the first of every slot
        assert all(np.array_equal(e.h, starts[e.meta["slot"]].h[:5]) for e in store)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ckpt", "65"], "--ckpt 65: .* holds 64, 128, and last"),
        (["--ckpt", "first"], "--ckpt first: .* holds 64, 128, and last"),
        (["--ckpt", "64", "--all_ckpts"], "choose one of the two"),
        (["--points", "embeding"], r"no such vector \(did you mean embedding\?\); it has embedding, block_0, block_1"),
        (["--num_steps", "0"], "--num_steps must be at least 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded_leaves_nothing(craftax_run: Path, tmp_path: Path, flags: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        record(["--run_dir", str(craftax_run), "--out", str(tmp_path / "x"), *flags])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # two minutes of compiling
def test_the_full_game_shows_its_own_observation() -> None:
    options = CraftaxOptions(env_name="Craftax-Symbolic-v1", mask_intrinsics=False)
    env = CraftaxEnv(options, 2)
    env.reset(0)
    shown, rules = run(env, actions(env.spec, 20))[-1], craftax.Rules(options.env_name, 1, unseen=())
    assert env._carry is not None
    for b in range(2):
        state = rules.jax.tree.map(lambda x, b=b: x[b], env._carry.state)
        sizes = {"blocks": 37, "items": 5, "mobs": 40, "lit": 1}
        cells = np.concatenate([shown.obs[k][b].reshape(99, n) for k, n in sizes.items()], 1)
        rest = [
            shown.obs[k][b]
            for k in ("inventory", "potions", "intrinsics", "attributes", "direction", "armour", "light")
        ]
        rest += [shown.obs[k][b] for k in ("sleeping", "status")]
        np.testing.assert_allclose(
            np.concatenate([cells.ravel(), *rest]), np.asarray(rules.env.get_obs(state)), rtol=1e-6
        )
        assert shown.truth["mana"][b] == state.player_mana and shown.truth["floor"][b] == state.player_level
        assert shown.truth["spell_1"][b] == state.learned_spells[1]
        assert shown.truth["inventory_potions_3"][b] == state.inventory.potions[3]
    states, action = env.snapshot(), actions(env.spec, 5, seed=3)
    future = run(env, action)
    env.restore(states)
    for x, y in zip(future, run(env, action), strict=True):
        identical(x, y)
