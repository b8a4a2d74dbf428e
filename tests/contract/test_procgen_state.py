"""Procgen's state: parsed, edited and put back in all 16 games, in the real environment."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from analysis.shared.events import Rows, parse_event
from core.contracts import Step, UserError
from envs.procgen import ACTION_NAMES, EXTREME_GAMES, GAMES, MEMORY_GAMES, STANDING, ProcgenEnv, ProcgenOptions
from envs.procgen_edits import Edit, parse_edit, supported
from envs.procgen_state import (
    AGE,
    CELLS,
    NEEDED,
    PICTURES,
    PLAYER,
    SPACE,
    TAILS,
    THINGS,
    State,
    snapshot_of,
    state_of,
)  # fmt: skip
from envs.procgen_tracks import Followed
from envs.procgen_truth import AHEAD, TRUTH_EVENTS, WithTruth, columns_of, in_view, parse_truth, truth_of

MODES = [(game, mode) for game in GAMES for mode in ("easy", "hard")]
MODES += [(game, "memory") for game in MEMORY_GAMES] + [(game, "extreme") for game in EXTREME_GAMES]
Made = Callable[..., ProcgenEnv]


@pytest.fixture
def made() -> Iterator[Made]:
    """Makes worlds that are closed afterwards."""
    worlds: list[ProcgenEnv] = []

    def make(game: str = "coinrun", slots: int = 4, seed: int = 0, mode: str = "hard", **options: object) -> ProcgenEnv:
        env = ProcgenEnv(ProcgenOptions(game=game, distribution_mode=mode, **options), slots)  # type: ignore[arg-type]
        worlds.append(env)
        env.reset(seed)
        return env

    yield make
    for env in worlds:
        env.close()


def random_actions(env: ProcgenEnv, steps: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    out = rng.integers(15, size=(steps, env.spec.slots))
    return np.where(rng.random(out.shape) < 0.5, 7, out)  # half to the right, where games go on


def edited(env: ProcgenEnv, text: str) -> Step:
    """Every slot with one edit."""
    edit = parse_edit(text, env.options.game)
    return env.restore([snapshot_of(edit.apply(state_of(s)), s) for s in env.snapshot()])


def played(env: ProcgenEnv, states: list[bytes], action_TB: np.ndarray) -> list[Step]:
    return [env.restore(states), *(env.step(a) for a in action_TB)]


# Layout


@pytest.mark.parametrize(("game", "mode"), MODES)
def test_a_round_trip_gives_the_same_bytes_and_every_state_is_legal(made: Made, game: str, mode: str) -> None:
    env = made(game, slots=8, mode=mode, seed=3)
    for t, action in enumerate(random_actions(env, 160)):
        env.step(action)
        for snapshot in env.snapshot() if t % 32 == 0 else ():
            state = state_of(snapshot)
            assert state.to_bytes() == snapshot[AGE:] and state.game == game


@pytest.mark.slow
@pytest.mark.parametrize(("game", "mode"), MODES)
def test_three_hundred_states_of_every_mode_make_the_round_trip(made: Made, game: str, mode: str) -> None:
    env, states = made(game, slots=30, mode=mode, seed=5), 0
    for t, action in enumerate(random_actions(env, 600, 1)):
        env.step(action)
        for snapshot in env.snapshot() if t % 60 == 0 else ():
            assert state_of(snapshot).to_bytes() == snapshot[AGE:]
            states += 1
    assert states == 300


@pytest.mark.parametrize("game", GAMES)
def test_an_unedited_twin_stays_the_same(made: Made, game: str) -> None:
    one, other = made(game, slots=3, seed=1), made(game, slots=3, seed=2)
    for action in random_actions(one, 20):
        one.step(action)
    states = [state_of(s).to_bytes() for s in one.snapshot()]
    action_TB = random_actions(one, 400, 7)
    snapshots = [s[:AGE] + state for s, state in zip(one.snapshot(), states, strict=True)]
    order = [2, 0, 1]  # in other slots of another world
    a = played(one, snapshots, action_TB)
    b = played(other, [snapshots[i] for i in order], action_TB[:, order])
    for x, y in zip(a, b, strict=True):
        assert np.array_equal(x.obs["frames"][order], y.obs["frames"])
        assert np.array_equal(x.reward[order], y.reward) and np.array_equal(x.is_first[order], y.is_first)


def test_names_stand_for_what_the_world_does(made: Made) -> None:
    env = made(slots=1, mode="easy")
    before = state_of(env.snapshot()[0])
    assert before.options["level_seed_high"] - before.options["level_seed_low"] == env.options.num_levels
    assert before.episode["current_level_seed"] == env.reset(0).truth["level"][0]
    for action in (4, 4, 7, 7, 7):
        env.step(np.array([action]))
    now = state_of(env.snapshot()[0])
    assert now.episode["cur_time"] == 5 and now.episode["timeout"] == 1000
    assert now.agent["x"] > before.agent["x"] and now.agent["vx"] > 0 and now.own["facing_right"]
    env.step(np.array([5]))
    assert state_of(env.snapshot()[0]).agent["vy"] > 0
    assert now.view["visibility"] == 13 and now.cells.shape == (64, 64)
    assert len(now.cells_of("coin")) == 1 and len(now.cells_of("wall")) > 100


def test_pictures_are_only_of_what_is_named() -> None:
    assert set(TAILS) == set(THINGS) == set(PICTURES) == set(CELLS) == set(GAMES)
    for game, things in THINGS.items():
        assert {v for thing in things.values() for v in thing.cells} <= set(CELLS[game])
        assert set(NEEDED.get(game, ())) <= set(things)


# What would kill the game is refused


def broken(change: Callable[[State], object], game: str = "coinrun", made: Made | None = None) -> str:
    assert made is not None
    state = state_of(made(game, slots=1).snapshot()[0])
    change(state)
    with pytest.raises(UserError) as caught:
        state.to_bytes()
    return str(caught.value)


def test_states_that_would_kill_the_game_are_refused(made: Made) -> None:
    def without(kind: int) -> Callable[[State], object]:
        return lambda s: setattr(s, "entities", s.entities[s.entities["type"] != kind])

    assert "without an agent" in broken(without(PLAYER), made=made)
    assert "needs its boss" in broken(without(2), "bossfight", made)
    assert "needs its shields" in broken(without(3), "bossfight", made)
    assert "needs its goal" in broken(without(1), "jumper", made)
    assert "no cells 77" in broken(lambda s: s.cells.__setitem__((5, 5), 77), made=made)
    assert "no cells 1002" in broken(lambda s: s.cells.__setitem__((5, 5), 1002), made=made)
    assert "theme 5 of pictures of type 0" in broken(lambda s: s.agent.__setitem__("image_theme", 5), made=made)
    assert "no wall theme 6" in broken(lambda s: s.own.__setitem__("wall_theme", 6), made=made)
    assert "no background 62" in broken(lambda s: s.motion.__setitem__("background_index", 62), made=made)
    assert "not finite" in broken(lambda s: s.agent.__setitem__("x", np.nan), made=made)
    assert "outside of a world" in broken(lambda s: s.agent.__setitem__("x", 70), made=made)
    assert "generated assets" in broken(lambda s: s.options.__setitem__("use_generated_assets", 1), made=made)
    many = broken(lambda s: setattr(s, "entities", np.repeat(s.entities[:1], 9000)), made=made)
    assert "room for 1,048,576" in many


def test_bytes_that_are_no_state_are_refused(made: Made) -> None:
    good = made(slots=1).snapshot()[0][AGE:]
    for bad, said in (
        (good[:-4], "end mark"), (good[:300], "not a whole"), (b"", "not a whole"),
        (b"\x01" + good[1:], "another version"), (good.replace(b"coinrun", b"coinbun"), "none of Procgen's games"),
        (good.replace(b"coinrun", b"climber"), "."),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            State.parse(bad).to_bytes()
    other = made("climber", slots=1).snapshot()[0]
    with pytest.raises(UserError, match="a state of coinrun where one of climber"):
        snapshot_of(State.parse(good), other)


def test_generated_assets_have_no_snapshots(made: Made) -> None:
    env = ProcgenEnv(ProcgenOptions(use_generated_assets=True), 1)
    assert not env.spec.can_snapshot
    with pytest.raises(UserError, match="generated assets"):
        WithTruth(env)


# Traps


def test_what_is_worked_out_when_drawing_means_nothing_before(made: Made) -> None:
    env = made(slots=1)
    a = state_of(env.snapshot()[0])
    drawing = {"motion": ("center_x", "center_y"), "view": ("unit", "view_dim", "x_off", "y_off")}
    for record, names in drawing.items():
        for name in names:
            getattr(a, record)[name] = 0
    drawn = env.step(np.array([4])).obs["frames"]
    env.reset(0)
    env.restore([snapshot_of(a, env.snapshot()[0])])
    assert np.array_equal(env.step(np.array([4])).obs["frames"], drawn)


def test_the_agent_is_the_last_of_its_type(made: Made) -> None:
    env = made(slots=1)
    state = state_of(env.snapshot()[0])
    double = state.entities[state.entities["type"] == PLAYER].copy()
    double["x"] += 1
    state.entities = np.concatenate([double, state.entities])
    assert state.agent["x"] == double["x"][0] - 1
    env.restore([snapshot_of(state, env.snapshot()[0])])
    env.step(np.array([7]))
    after = state_of(env.snapshot()[0])
    assert after.agent["x"] > state.agent["x"] and after.entities[0]["x"] == double["x"][0]


def test_an_edit_lasts_until_its_level_ends_and_leaves_the_next_ones_alone(made: Made) -> None:
    env, twin = made(slots=2, mode="easy"), made(slots=2, mode="easy")
    edited(env, "remove coin")
    for _ in range(1000):
        step = env.step(np.array([4, 4]))
        if step.is_first.all():
            break
        assert not step.is_first.any()
        assert not len(state_of(env.snapshot()[0]).cells_of("coin"))
    assert step.truncated.all()
    assert len(state_of(env.snapshot()[0]).cells_of("coin")) == 1
    for _ in range(1000):
        other = twin.step(np.array([4, 4]))
    assert np.array_equal(step.truth["level"], other.truth["level"])


def test_the_random_generators_are_left_alone(made: Made) -> None:
    env = made("starpilot", slots=1)
    before = state_of(env.snapshot()[0])
    Edit("set", "velocity", values=(0.1, 0.1)).apply(before)
    assert bytes(before.before) == bytes(state_of(env.snapshot()[0]).before)


# Edits


def test_what_is_removed_is_gone_from_the_picture_and_from_play(made: Made) -> None:
    env = made(slots=16, seed=4)
    for action in random_actions(env, 30):
        env.step(action)
    snapshots = env.snapshot()
    rows = [i for i, s in enumerate(snapshots) if len(state_of(s).places("crate"))]
    before = env.restore(snapshots).obs["frames"]
    new = [snapshot_of(parse_edit("remove crate", "coinrun").apply(state_of(s)), s) if i in rows else s
           for i, s in enumerate(snapshots)]  # fmt: skip
    after = env.restore(new).obs["frames"]
    truth = truth_of([state_of(s) for s in snapshots])
    changed = (before != after).any((1, 2, 3))
    assert (changed == (truth["crate_in_view"] > 0)).all() and changed.any()
    assert not any(len(state_of(s).places("crate")) for s in env.snapshot())


@pytest.mark.parametrize(
    ("game", "thing"), [("climber", "coin"), ("fruitbot", "good"), ("maze", "cheese"), ("heist", "gem")]
)
def test_what_is_in_view_is_in_the_picture(made: Made, game: str, thing: str) -> None:
    env = made(game, slots=12, mode="easy", seed=4)
    for action in random_actions(env, 12):
        env.step(action)
    snapshots = env.snapshot()
    before = env.restore(snapshots).obs["frames"]
    truth = truth_of([state_of(s) for s in env.snapshot()])
    rows = np.flatnonzero(truth[f"{thing}_in_view"] > 0)
    edit = parse_edit(f"remove {thing}", game)
    new = [snapshot_of(edit.apply(state_of(s)), s) if i in rows else s for i, s in enumerate(snapshots)]
    after = env.restore(new).obs["frames"]
    assert len(rows) and (before[rows] != after[rows]).any((1, 2, 3)).all()
    gone = np.flatnonzero((truth[f"{thing}_in_view"] == 0) & (truth[f"{thing}_count"] > 0))
    new = [snapshot_of(edit.apply(state_of(s)), s) if i in gone else s for i, s in enumerate(snapshots)]
    hidden = env.restore(new).obs["frames"]
    assert (before[gone] != hidden[gone]).any((1, 2, 3)).sum() <= len(gone) // 4  # at most an edge of some shows


def test_shields_are_there_while_they_are_up(made: Made) -> None:
    """The game keeps them in its state, and draws none, while they are down."""
    env = made("bossfight", slots=2)
    up, down = (state_of(snapshot) for snapshot in env.snapshot())
    up.own["shields_are_up"], down.own["shields_are_up"] = 1, 0
    frames = env.restore([snapshot_of(s, old) for s, old in zip((up, down), env.snapshot(), strict=True)]).obs["frames"]
    truth = truth_of([up, down])
    assert truth["shields_count"].tolist() == truth["shields_in_view"].tolist() == [1, 0]
    assert np.isnan(truth["shields_dx"]).tolist() == [False, True]
    assert in_view(up, "shields") and not in_view(down, "shields")
    for state in (up, down):
        state.entities["x"][state.of("shields")] = 0
    moved = env.restore([snapshot_of(s, old) for s, old in zip((up, down), env.snapshot(), strict=True)]).obs["frames"]
    assert (moved != frames).any((1, 2, 3)).tolist() == [True, False]


def test_a_boss_is_moved_with_its_shields(made: Made) -> None:
    """They stood where it had been in the picture of the edit, and a step later where it was."""
    env = made("bossfight", slots=1)
    (snapshot,) = env.snapshot()
    before, state = state_of(snapshot), parse_edit("move boss by 2 0", "bossfight").apply(state_of(snapshot))
    np.testing.assert_allclose(state.places("boss"), before.places("boss") + (2, 0), atol=1e-5)
    np.testing.assert_allclose(state.places("shields"), state.places("boss"))
    env.restore([snapshot_of(state, snapshot)])
    env.step(np.array([4]))
    (after,) = (state_of(s) for s in env.snapshot())
    np.testing.assert_allclose(after.places("shields"), after.places("boss"))


def test_an_agent_at_the_very_border_is_inside(made: Made) -> None:
    """Where bigfish put it: such starts were refused as outside of the world."""
    env = made("bigfish", slots=1)
    (snapshot,) = env.snapshot()
    state = state_of(snapshot)
    state.agent["x"] = state.cells.shape[1]
    env.restore([snapshot_of(state, snapshot)])
    env.step(np.array([4]))
    assert truth_of([state_of(env.snapshot()[0])])["time"] == state.episode["cur_time"] + 1


def collected(env: ProcgenEnv, snapshot: bytes, thing: str) -> tuple[int, float, bool]:
    """(things collected, rewards together, whether the level is completed): each thing in turn is brought to the
    agent, until the episode ends or none is left."""
    total, steps = 0.0, 0
    while len(state := state_of(snapshot).places(thing)):
        now = state_of(snapshot)
        if len(of := now.of(thing)):
            now.entities["x"][of[0]], now.entities["y"][of[0]] = now.agent["x"], now.agent["y"]
        else:
            at, cells = (int(now.agent["y"]), int(now.agent["x"])), now.cells_of(thing)
            x, y = cells[np.abs(cells - at[::-1]).sum(1).argmin()]  # which may lie there already
            value, now.cells[y, x] = now.cells[y, x], SPACE
            now.cells[at] = value
        env.restore([snapshot_of(now, snapshot)])
        step, steps = env.step(np.array([4])), steps + 1
        total += float(step.reward[0])
        if step.is_first[0]:
            return steps, total, bool(step.terminated[0])
        (snapshot,) = env.snapshot()
        assert len(state_of(snapshot).places(thing)) == len(state) - 1
    return steps, total, False


@pytest.mark.parametrize(("game", "thing", "worth"), [("climber", "coin", 1), ("chaser", "orb", 0.04)])
def test_what_is_left_of_collectables_completes_the_level(made: Made, game: str, thing: str, worth: float) -> None:
    """With its bonus of 10, as without an edit: all that are there are needed."""
    for seed in range(40):
        env = made(game, slots=1, mode="easy", seed=seed)
        (snapshot,) = env.snapshot()
        state = state_of(snapshot)
        if len(state.places(thing)) > 2:
            break
    if game == "chaser":  # nobody wakes, and all orbs but three are eaten
        state.entities = state.entities[~np.isin(state.entities["type"], [4, 6])]
        state.own["total_enemies"] = 0
        eaten = state.cells_of("orb")[3:]
        state.cells[eaten[:, 1], eaten[:, 0]] = SPACE
        state.own["orbs_collected"] += len(eaten)
    played = snapshot_of(state, snapshot)
    n = len(state.places(thing))
    assert collected(env, played, thing) == (n, pytest.approx(n * worth + 10), True)
    far = np.abs(state.places(thing) - [state.agent["x"], state.agent["y"]]).sum(1)
    x, y = state.places(thing)[far.argmax()]
    last = {"climber": "remove coin nearest", "chaser": f"remove orb at {x} {y}"}[game]
    fewer = parse_edit(last, game).apply(state_of(played))
    assert len(fewer.places(thing)) == n - 1
    assert collected(env, snapshot_of(fewer, played), thing) == (n - 1, pytest.approx((n - 1) * worth + 10), True)
    if game == "chaser":  # back where it was
        more = parse_edit(f"add orb at {x} {y}", game).apply(fewer)
        assert collected(env, snapshot_of(more, played), thing) == (n, pytest.approx(n * worth + 10), True)
        return
    more = parse_edit(f"add coin at {x + 1} {y + 1}", game).apply(state_of(played))
    assert collected(env, snapshot_of(more, played), thing) == (n + 1, pytest.approx(n * worth + 11), True)


@pytest.mark.parametrize(("game", "thing"), [("climber", "coin"), ("chaser", "orb"), ("miner", "diamond")])
def test_no_level_ends_because_all_is_taken_out_of_it(made: Made, game: str, thing: str) -> None:
    env = made(game, slots=1, mode="easy", seed=5)
    edited(env, f"remove {thing}")
    for _ in range(5):
        step = env.step(np.array([4]))
        assert not step.is_first[0] and not step.reward[0]


def at_the_agent(game: str, thing: str) -> Callable[[State], None]:
    """Puts the first thing of that name where the agent is."""

    def put(state: State) -> None:
        if len(of := state.of(thing)):
            state.entities["x"][of[0]], state.entities["y"][of[0]] = state.agent["x"], state.agent["y"]
        else:
            state.cells[int(state.agent["y"]), int(state.agent["x"])] = THINGS[game][thing].cells[0]

    return put


def stepped(env: ProcgenEnv, age: int, time: int, *changes: Callable[[State], None]) -> Step:
    """One step of standing still from a changed state, ``age`` steps old and ``time`` steps into its level."""
    (snapshot,) = env.snapshot()
    state = state_of(snapshot)
    for change in changes:
        change(state)
    state.episode["cur_time"] = time
    env.restore([struct.pack("<q", age) + state.to_bytes()])
    return env.step(np.array([4]))


def said(env: ProcgenEnv, step: Step, event: str) -> bool:
    """Whether an event of the game holds at a step."""
    one = torch.zeros(1, 1)
    rows = Rows(one, torch.from_numpy(step.reward)[None], torch.from_numpy(step.is_first)[None].float(),
                one[..., None], one[..., None], one[..., None],
                truncated_RT=torch.from_numpy(step.truncated)[None].float())  # fmt: skip
    return bool(parse_event(event, env.spec.events[event], env.spec.action_names, 0)(rows))


@pytest.mark.parametrize(
    ("game", "mode", "killer", "paid"),
    [("chaser", "easy", "egg", "orb"), ("climber", "hard", "enemy", "coin"), ("fruitbot", "easy", "barrier", "good")],
)
def test_who_is_paid_in_the_step_that_kills_has_died(made: Made, game: str, mode: str, killer: str, paid: str) -> None:
    """Of chaser's deaths under random play one in nine was none: an orb was eaten in the same step."""

    def hatched(state: State) -> None:
        state.entities["type"][state.entities["type"] == 4] = 6

    worlds = (made(game, slots=1, mode=mode, seed=seed) for seed in range(9))
    env = next(w for w in worlds if len(state_of(w.snapshot()[0]).of(killer)))
    changes = [at_the_agent(game, killer), at_the_agent(game, paid)]
    step = stepped(env, 5, 5, *changes, *([hatched] if game == "chaser" else []))
    assert 0 < step.reward[0] < 5 and step.terminated[0] and said(env, step, "death")


def test_who_completes_a_level_has_not_died(made: Made) -> None:
    for game, thing in (("caveflyer", "goal"), ("coinrun", "coin")):
        env = made(game, slots=1)
        step = stepped(env, 5, 5, at_the_agent(game, thing))
        assert step.reward[0] >= 10 and step.terminated[0] and not said(env, step, "death")


def test_a_time_out_is_none_the_less_where_something_was_paid_or_levels_follow_each_other(made: Made) -> None:
    env = made("climber", slots=1)
    step = stepped(env, 999, 999, at_the_agent("climber", "coin"))
    assert step.reward[0] == 1 and step.truncated[0] and not step.terminated[0] and not said(env, step, "death")
    env = made("coinrun", slots=1)
    step = stepped(env, 999, 999, at_the_agent("coinrun", "coin"))
    assert step.reward[0] == 10 and step.terminated[0] and not step.truncated[0]
    env = made("coinrun", slots=1, use_sequential_levels=True)
    saw = parse_edit("add saw at 20 20", "coinrun")
    step = stepped(env, 1_500, 30, lambda state: saw.apply(state) and None, at_the_agent("coinrun", "saw"))
    assert step.terminated[0] and not step.truncated[0] and said(env, step, "death")
    step = stepped(env, 1_500, 30, at_the_agent("coinrun", "coin"))
    assert step.reward[0] == 10 and not step.is_first[0]  # the next level: its time begins anew
    assert env._time[0] == 0 and env._age[0] == 1_501


def test_a_moved_coin_ends_the_level_where_it_is_put(made: Made) -> None:
    env = made(slots=1, mode="easy")
    for _ in range(3):
        env.step(np.array([4]))
    agent = state_of(env.snapshot()[0]).agent
    edited(env, f"move coin to {np.floor(agent['x']) + 2.5:g} {np.floor(agent['y'] - agent['ry'] + 0.02) + 0.5:g}")
    rewards = [env.step(np.array([7])).reward[0] for _ in range(12)]
    assert 10 in rewards


def test_a_wall_ahead_stops_the_agent(made: Made) -> None:
    env = made(slots=1, mode="easy")
    for _ in range(3):
        env.step(np.array([4]))
    free = played(env, list(env.snapshot()), np.full((12, 1), 7))
    assert not free[-1].is_first.any()
    far = state_of(env.snapshot()[0]).agent["x"]
    env.reset(0)
    for _ in range(3):
        env.step(np.array([4]))
    edited(env, "add wall at ahead 2")
    truth = truth_of([state_of(s) for s in env.snapshot()])
    assert 0 < truth["wall_ahead"][0] < 2 and truth["wall_ahead_height"][0] == 1
    for _ in range(12):
        env.step(np.array([7]))
    stopped = state_of(env.snapshot()[0]).agent["x"]
    assert stopped < far - 1


def test_an_agent_that_is_moved_stands_where_it_stood(made: Made) -> None:
    env = made(slots=1, mode="easy")
    for _ in range(3):
        env.step(np.array([4]))
    state = state_of(env.snapshot()[0])
    x, y = float(state.agent["x"]), float(state.agent["y"])
    edited(env, "move agent by 0 2")
    now = state_of(env.snapshot()[0])
    assert now.agent["y"] == pytest.approx(y + 2) and not now.own["has_support"] and now.own["last_agent_y"] > y
    for _ in range(30):
        env.step(np.array([4]))
    down = state_of(env.snapshot()[0])
    assert (down.agent["x"], down.agent["y"]) == pytest.approx((x, y), abs=0.05) and supported(down)


def test_an_edit_keeps_its_object_and_its_place(made: Made) -> None:
    env = made(slots=1, seed=11)
    while True:  # until there are two crates
        state = state_of(env.snapshot()[0])
        apart = np.unique(state.places("crate"), axis=0)  # a level may hold two crates in one place
        if len(apart) == len(state.of("crate")) > 1 and len(state.of("monster")):
            break
        env.reset(int(np.random.default_rng(len(env.snapshot()[0])).integers(1000)))
    fixed = parse_edit("remove crate nearest", "coinrun").fixed(state)
    assert fixed.which == "at" and parse_edit(fixed.words, "coinrun").words == fixed.words
    count = len(state.of("crate"))
    fixed.apply(state)
    assert len(state.of("crate")) == count - 1
    monster = Followed(parse_edit("remove monster nearest", "coinrun").fixed(state), state)
    wall = parse_edit("add wall ahead 3", "coinrun").fixed(state)
    placed = Followed(wall, state)
    for _ in range(12):
        env.step(np.array([4]))
        here = state_of(env.snapshot()[0])
        assert monster.to(here) is not None
        assert wall.ahead is None and placed.to(here) == wall


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("delete saw", "begins with no known edit"), ("remove", "remove what"), ("remove saaw", "did you mean saw"),
        ("remove coin now", "too much"), ("move coin", "'by DX DY'"), ("move coin by 3", "'by DX DY'"),
        ("move coin by 3 x", "not numbers"), ("move coin by inf 0", "finite"), ("add wall", "'at X Y' or 'ahead N"),
        ("add wall at ahead 0", "N at least 1"), ("set gravity 1", "can be set"), ("set velocity 1", "takes 2"),
        ("set background -1", "whole number"), ("set background 1.5", "whole number"), ("", "begins with no known"),
        ("add agent at 3 3", "no 'agent'"), ("remove agent", "no 'agent'"),
    ],
)  # fmt: skip
def test_edits_that_do_not_parse_are_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_edit(text, "coinrun")


@pytest.mark.parametrize(
    ("game", "text", "said"),
    [
        ("heist", "add wall ahead 2", "add wall ahead 2: 'ahead' is for games seen from the side"),
        ("maze", "add wall at ahead 1", "say 'at X Y'"), ("chaser", "add wall at 5 5", "cannot be edited"),
        ("chaser", "remove wall", "walls of chaser cannot be edited"), ("maze", "set wall_theme 1", "no themes of"),
        ("jumper", "remove goal", "cannot go on without"), ("bossfight", "remove boss nearest", "cannot go on without"),
        ("bossfight", "move shields by 3 0", "puts its shields there at every step"),
        ("bossfight", "add boss at 5 5", "bossfight has one boss"),
    ],
)  # fmt: skip
def test_edits_that_no_level_allows_are_refused_as_they_are_read(game: str, text: str, said: str) -> None:
    """Before any world is made, which thousands of states would be tried for."""
    with pytest.raises(UserError, match=said):
        parse_edit(text, game)


@pytest.mark.parametrize(
    ("game", "text", "said"),
    [
        ("coinrun", "remove lava", "no lava in this level"), ("coinrun", "move coin by 0.5 0", "whole cells"),
        ("coinrun", "move coin by 900 0", "outside of a world"), ("coinrun", "move agent by 0 -1", "is taken"),
        ("coinrun", "add coin at 0 0", "is taken"), ("coinrun", "set agent_theme 9", "no theme 9"),
        ("coinrun", "set wall_theme 6", "no wall theme 6"), ("coinrun", "set background 62", "no background 62"),
        ("coinrun", "set velocity 9 0", "velocities lie between"), ("coinrun", "remove coin at 1 1", "the nearest is"),
        ("maze", "move agent by 0.5 0", "whole cells"),
    ],
)  # fmt: skip
def test_edits_that_the_world_has_no_place_for_are_refused(made: Made, game: str, text: str, said: str) -> None:
    snapshot = made(game, slots=1, mode="easy").snapshot()[0]
    with pytest.raises(UserError, match=said):
        snapshot_of(parse_edit(text, game).apply(state_of(snapshot)), snapshot)


def test_no_edit_that_is_accepted_kills_the_game() -> None:
    words = [sys.executable, "-m", "benchmarks.procgen_edits", "--edits", "32"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *of_games, total = done.stdout.splitlines()
    assert of_games == [f"{game} hard: 32 edits, exit 0" for game in GAMES] and total.endswith(": 0 crashes")


# Truth


def test_truth_of_a_scene_by_hand(made: Made) -> None:
    env = made(slots=1, mode="easy")
    for _ in range(4):
        env.step(np.array([4]))
    state = state_of(env.snapshot()[0])
    state.entities = state.entities[state.entities["type"] == PLAYER]
    state.cells[1:, 1:30] = SPACE
    state.cells[0, :] = 15
    state.cells[state.cells == 1] = SPACE
    agent = state.agent
    agent["x"], agent["y"] = 5.5, 1 + agent["ry"]
    state.cells[3, 8] = 1  # a coin
    state.cells[1:4, 11] = 15  # a wall of three
    for text in ("add saw at 2.5 1.5", "add saw at 9.5 1.5"):
        parse_edit(text, "coinrun").apply(state)
    truth = {name: float(x[0]) for name, x in truth_of([state]).items()}
    assert truth["wall_ahead"] == pytest.approx(5.5) and truth["wall_ahead_height"] == 3
    assert np.isnan(truth["drop_ahead"]) and truth["saw_count"] == 2 and truth["saw_dx"] == pytest.approx(-3)
    assert (truth["coin_dx"], truth["coin_dy"]) == pytest.approx((3, 3.5 - 1 - agent["ry"]))
    assert truth["coin_bearing"] == pytest.approx(np.arctan2(truth["coin_dy"], truth["coin_dx"]))
    assert truth["time_left"] == 1000 - truth["time"] == 996
    state.cells[0, 8:10] = SPACE  # a pit two wide
    assert truth_of([state])["drop_ahead"][0] == pytest.approx(2.5)
    state.own["facing_right"] = 0
    left = truth_of([state])
    assert left["wall_ahead"][0] == pytest.approx(4.5) and AHEAD > 5  # the border
    assert left["saw_in_view"][0] == 2


@pytest.mark.parametrize("game", GAMES)
def test_truth_has_the_columns_that_are_promised(made: Made, game: str) -> None:
    env = WithTruth(made(game, slots=3), "all", 3)
    step = env.reset(0)
    names = columns_of(game, "all")
    assert set(step.truth) == {"level", *names}
    for t in range(1, 7):
        step = env.step(np.full(3, 7))
        assert all(step.truth[n].dtype == np.float32 and step.truth[n].shape == (3,) for n in names)
        assert np.isnan(step.truth["agent_x"]).all() == bool(t % 3)
    alone = WithTruth(made(game, slots=3), "positions").reset(0).truth
    assert set(alone) == {"level", "agent_x", "agent_y", "agent_vx", "agent_vy"}


def test_plunder_tells_what_its_levels_end_by(made: Made) -> None:
    env = WithTruth(made("plunder", slots=2))
    env.reset(0)
    state = env.snapshot()[0]
    step = env.restore([state, state])
    assert step.truth["juice_left"].tolist() == [1, 1] and "juice_left" not in columns_of("fruitbot", "all")
    for _ in range(10):
        step = env.step(np.array([STANDING, ACTION_NAMES.index("key_d")]))
    none, shot = step.truth["juice_left"]
    assert 0 < shot < none < 1


def test_words_of_truth() -> None:
    assert parse_truth(["all"]) == ("all", 1)
    assert parse_truth(["every", "4"]) == ("all", 4) and parse_truth(["positions", "every", "2"]) == ("positions", 2)
    for bad in ([], ["al"], ["every"], ["every", "0"], ["every", "x"], ["all", "positions"]):
        with pytest.raises(UserError, match="--truth"):
            parse_truth(bad)


def test_pits_are_between_edges_and_no_borders(made: Made) -> None:
    env = made(slots=1, mode="easy")
    state = state_of(env.snapshot()[0])
    state.entities = state.entities[state.entities["type"] == PLAYER]
    state.cells[1:-1, 1:-1] = SPACE
    state.cells[0, :] = state.cells[:, 0] = 15
    agent = state.agent
    agent["x"], agent["y"] = 5.5, 1 + agent["ry"]
    assert truth_of([state])["pit_depth"][0] == 0  # flat ground by the border
    state.cells[1:4, 8:12] = 15
    assert truth_of([state])["pit_depth"][0] == 0  # an edge on one side alone
    state.cells[1:6, 1:4] = 15
    assert truth_of([state])["pit_depth"][0] == 3  # the lower of the two
    agent["y"] = 4 + agent["ry"]
    assert truth_of([state])["pit_depth"][0] == 0  # as high as the lower one
    for right in (0, 1):
        state.own["facing_right"] = right
        agent["y"] = 2 + agent["ry"]
        assert truth_of([state])["pit_depth"][0] == 2


def test_ledges_are_places_to_stand_on(made: Made) -> None:
    env = made(slots=1, mode="easy")
    state = state_of(env.snapshot()[0])
    state.entities = state.entities[state.entities["type"] == PLAYER]
    state.cells[:, :] = SPACE
    state.cells[0:2, 0:8] = 15  # one stands on height 2,
    state.cells[0:4, 12:14] = 15  # on 4,
    state.cells[0, 8:12] = 15  # and on no lava
    lava = next(iter(THINGS["coinrun"]["lava"].cells))
    state.cells[1, 8:12] = lava
    agent = state.agent
    agent["x"], agent["y"] = 5.5, 2 + agent["ry"]

    def told(right: int = 1) -> tuple[float, float, float]:
        state.own["facing_right"] = right
        truth = truth_of([state])
        return tuple(float(truth[name][0]) for name in ("floor_below", "ledge_ahead", "ledge_height"))  # type: ignore[return-value]

    assert told() == pytest.approx((0, 6.5, 2), abs=1e-5)
    assert told(0) == pytest.approx((0, np.nan, np.nan), abs=1e-5, nan_ok=True)  # the ground goes on to the border
    agent["y"] += 3.25
    assert told() == pytest.approx((3.25, 0.5, -3.25), abs=1e-5)  # in the air no ground is its own
    agent["x"] = 10.0
    assert told() == pytest.approx((np.nan, 2.0, -1.25), abs=1e-5, nan_ok=True)  # above lava
    agent["x"] = 8 + agent["rx"] / 2
    assert told()[0] == pytest.approx(3.25)  # one foot is enough
    agent["x"], agent["y"] = 12.5, 4 + agent["ry"]
    assert told(0) == pytest.approx((0, 4.5, -2), abs=1e-5)


def test_the_charge_of_a_ninjas_jump_is_a_share(made: Made) -> None:
    env = WithTruth(made("ninja", slots=2, mode="hard"))
    up, none = (env.spec.action_names.index(name) for name in ("up", "none"))
    charge = [env.step(np.array([up, none])).truth["jump_charge"] for _ in range(4)]
    assert [x[1] for x in charge] == [0] * 4
    own = [x[0] for x in charge]
    assert 0 <= own[0] < own[1] <= own[-1] <= 1


def test_who_is_said_to_have_killed_did() -> None:
    """A world goes on without what the event's words say it ended by: taken away one step before."""
    env = WithTruth(ProcgenEnv(ProcgenOptions(game="coinrun", num_levels=0), 48, threads=1))
    rng, step = np.random.default_rng(0), env.reset(0)
    things = {"dies_by_saw": "saw", "dies_by_monster": "monster", "dies_in_lava": "lava"}
    killed, spared, deaths = dict.fromkeys(things, 0), dict.fromkeys(things, 0), 0
    while deaths < 30:
        before, action = env.snapshot(), rng.choice([7, 8, 8, 5, 1], size=48)
        truth, step = step.truth, env.step(action)
        lost = step.terminated & (step.reward <= 0)
        if not lost.any():
            continue
        deaths += int(lost.sum())
        columns = {name: torch.from_numpy(x)[:, None].double() for name, x in truth.items()}
        reward, ended = (torch.from_numpy(x)[:, None].double() for x in (step.reward, lost))
        zero = torch.zeros_like(reward)
        rows = Rows(zero, reward, ended, *[zero[..., None]] * 3, truth=columns)
        by = {name: parse_event(name, TRUTH_EVENTS["coinrun"][name], (), 0, (), tuple(columns))(rows)[:, 0] > 0
              for name in things}  # fmt: skip
        assert (sum(x.numpy().astype(int) for x in by.values())[lost] > 0).mean() > 0.9
        after = env.snapshot()
        for name, thing in things.items():
            if not (mine := by[name].numpy() & lost).any():
                continue
            states = [state_of(one) for one in before]
            for b in np.flatnonzero(mine):
                at = states[b]
                at.entities = at.entities[~np.isin(at.entities["type"], at.thing(thing).entities)]
                at.cells[np.isin(at.cells, at.thing(thing).cells)] = SPACE
            env.restore([snapshot_of(s, one) for s, one in zip(states, before, strict=True)])
            again = env.step(action)
            killed[name] += int(mine.sum())
            spared[name] += int((mine & ~again.terminated).sum())
        step = env.restore(after)
    assert killed["dies_by_saw"] > 15
    assert sum(spared.values()) >= 0.9 * sum(killed.values()), (killed, spared)
