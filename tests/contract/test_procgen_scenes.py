"""Levels on demand and scenes by hand, in the real game."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.contracts import UserError
from envs.procgen import GAMES, ProcgenEnv, ProcgenOptions
from envs.procgen_edits import parse_edit
from envs.procgen_scenes import (
    LAST_LEVEL,
    Scene,
    Stance,
    built,
    flattened,
    level_states,
    load_scenes,
    scene_of,
)
from envs.procgen_state import PLAYER, SPACE, snapshot_of, state_of
from envs.procgen_tracks import Followed
from envs.procgen_truth import truth_of

Made = Callable[..., ProcgenEnv]
POOL = {"start_level": 900, "num_levels": 50}


@pytest.fixture
def made() -> Iterator[Made]:
    """Makes worlds that are closed afterwards."""
    worlds: list[ProcgenEnv] = []

    def make(game: str = "coinrun", slots: int = 1, seed: int = 0, **options: Any) -> ProcgenEnv:
        settings = {"distribution_mode": "easy", **POOL, **options}
        env = ProcgenEnv(ProcgenOptions(game=game, **settings), slots, threads=1)
        worlds.append(env)
        env.reset(seed)
        return env

    yield make
    for env in worlds:
        env.close()


# Levels


@pytest.mark.parametrize("game", GAMES)
def test_a_level_on_demand_is_that_level(made: Made, game: str) -> None:
    env, level = made(game), 123_456
    alone = made(game, start_level=level, num_levels=1)
    first = alone.restore(alone.snapshot()).obs["frames"]
    for _ in range(3):
        env.step(np.array([7]))
    shown = env.restore(level_states(env.options, [level], [env.snapshot()[0]]))
    assert shown.truth["level"][0] == level and shown.is_first.all()
    assert np.array_equal(shown.obs["frames"], first)
    for action in (7, 8, 7, 5, 4, 7):
        one, other = env.step(np.array([action])), alone.step(np.array([action]))
        assert one.is_first[0] == other.is_first[0]
        if one.is_first[0]:
            break
        assert np.array_equal(one.obs["frames"], other.obs["frames"])


def test_the_levels_that_follow_are_those_it_would_have_had(made: Made) -> None:
    env, twin = made(slots=3, seed=5), made(slots=3, seed=5)
    for _ in range(4):
        env.step(np.full(3, 7))
        twin.step(np.full(3, 7))
    env.restore(level_states(env.options, [7, 8, 2**31 - 2], env.snapshot()))
    follow = []
    for world in (env, twin):
        world.step(np.full(3, -1))  # ends the level
        seen = [state_of(s).episode["current_level_seed"] for s in world.snapshot()]
        world.step(np.full(3, -1))
        seen += [state_of(s).episode["current_level_seed"] for s in world.snapshot()]
        follow.append(seen)
    assert follow[0] == follow[1] and len(set(follow[0])) > 2
    assert all(900 <= level < 950 for level in follow[0])


def test_levels_that_there_are_not_are_refused(made: Made) -> None:
    env = made()
    like = env.snapshot()[0]
    for level in (-1, LAST_LEVEL + 1):
        with pytest.raises(UserError, match="levels have the numbers 0 to"):
            level_states(env.options, [level], [like])
    with pytest.raises(UserError, match="one level of its own"):
        level_states(ProcgenOptions(distribution_mode="exploration", num_levels=1), [3], [like])
    with pytest.raises(UserError, match="generated assets"):
        level_states(ProcgenOptions(use_generated_assets=True), [3], [like])
    with pytest.raises(UserError, match="a level of climber for a slot of coinrun"):
        level_states(ProcgenOptions(game="climber"), [3], [like])


# Flat ground


def test_flat_ground_is_plain_and_carries_the_agent(made: Made) -> None:
    env = made(slots=4, seed=2)
    flat = [snapshot_of(flattened(state_of(s)), s) for s in env.snapshot()]
    env.restore(flat)
    before = [state_of(s) for s in flat]
    assert len({(len(s.cells[s.cells != SPACE]), float(s.agent["x"])) for s in before}) > 1  # bases differ
    for s in before:
        assert (s.entities["type"] == PLAYER).all() and len(s.entities) == 1 and not len(s.cells_of("coin"))
    for _ in range(5):
        env.step(np.full(4, 4))
    for now, then in zip(map(state_of, env.snapshot()), before, strict=True):
        assert (now.agent["x"], now.agent["y"]) == (then.agent["x"], then.agent["y"])
    for _ in range(20):
        assert not env.step(np.full(4, 7)).terminated.any()
    moved = [state_of(s).agent["x"] - then.agent["x"] for s, then in zip(env.snapshot(), before, strict=True)]
    assert min(moved) > 5  # nothing is in the way
    thick = flattened(state_of(env.snapshot()[0]), 7)
    assert thick.agent["y"] == pytest.approx(7 + thick.agent["ry"]) and (thick.cells[:7] != SPACE).all()
    with pytest.raises(UserError, match="70 cells thick"):
        flattened(state_of(env.snapshot()[0]), 70)
    with pytest.raises(UserError, match="only coinrun has flat ground"):
        flattened(state_of(made("climber").snapshot()[0]))


# Blocks of cells


def flat(env: ProcgenEnv, *edits: str) -> Any:
    state = flattened(state_of(env.snapshot()[0]), 5)
    for text in edits:
        parse_edit(text, "coinrun").apply(state)
    state.check()
    return state


@pytest.mark.parametrize("high", [1, 2, 4])
def test_a_wall_of_a_height_is_as_high(made: Made, high: int) -> None:
    env = made()
    state = flat(env, f"add wall ahead 3 high {high} wide 2")
    told = truth_of([state])
    assert told["wall_ahead_height"][0] == high and told["wall_ahead"][0] == pytest.approx(2.5)
    i, j = int(state.agent["x"]) + 3, 5
    assert state.cells[j : j + high, i].tolist() == [15] * (high - 1) + [16]  # grass on top only
    assert state.cells[j - 1, i : i + 3].tolist() == [15, 15, 16]  # and none beneath the wall
    assert (state.cells[j : j + high, i + 1] != SPACE).all() and (state.cells[j:, i + 2] == SPACE).all()


def test_a_block_faces_as_the_agent_does(made: Made) -> None:
    state = flattened(state_of(made().snapshot()[0]))
    state.agent["x"], state.own["facing_right"] = 20.5, 0
    parse_edit("add wall ahead 2 wide 3", "coinrun").apply(state)
    row = int(state.agent["y"] - state.agent["ry"] + 0.1)
    assert np.flatnonzero(state.cells[row])[1:].tolist() != [] and (state.cells[row, 16:19] == 16).all()
    assert (state.cells[row, [15, 19]] == SPACE).all()


def test_nothing_high_changes_nothing(made: Made) -> None:
    env = made()
    for text in ("add wall ahead 3 high 0", "add crate ahead 3 wide 0", "remove wall ahead 3 up -1 wide 0 high 2"):
        assert flat(env, text).to_bytes() == flat(env).to_bytes()


def test_a_pit_is_as_wide_and_kills_with_lava(made: Made) -> None:
    env = made()
    state = flat(env, "remove wall ahead 3 up -4 wide 3 high 4", "add lava ahead 3 up -4 wide 3 high 1")
    told = truth_of([state])
    i = int(state.agent["x"]) + 3
    assert told["drop_ahead"][0] == pytest.approx(2.5)
    assert (state.cells[2:5, i : i + 3] == SPACE).all() and (state.cells[1, i : i + 3] == 18).all()
    assert (state.cells[4, [i - 1, i + 3]] == 16).all() and (state.cells[0, i : i + 3] != SPACE).all()
    env.restore([snapshot_of(state, env.snapshot()[0])])
    died = [env.step(np.array([7])).terminated[0] for _ in range(30)]
    assert any(died)


def test_crates_are_piled(made: Made) -> None:
    state = flat(made(), "add crate ahead 3 high 3")
    i = int(state.agent["x"]) + 3.5
    assert sorted(state.places("crate").tolist()) == [[i, 5.5], [i, 6.5], [i, 7.5]]
    parse_edit("remove crate ahead 3 up 1 high 2", "coinrun").apply(state)
    assert state.places("crate").tolist() == [[i, 5.5]]


def test_a_block_keeps_its_place_and_its_words(made: Made) -> None:
    state = flat(made())
    for text in (
        "add wall ahead 3 up 1 wide 2 high 3",
        "remove wall ahead 2 up -2 wide 3 high 2",
        "add coin at 9.5 9.5",
    ):
        edit = parse_edit(text, "coinrun")
        assert parse_edit(edit.words, "coinrun") == edit
        fixed = edit.fixed(state)
        assert fixed.ahead is None and parse_edit(fixed.words, "coinrun") == fixed
        assert Followed(fixed, state).to(state) == fixed
        one, other = flat_copy(state), flat_copy(state)
        assert edit.apply(one).to_bytes() == fixed.apply(other).to_bytes() != state.to_bytes()


def flat_copy(state: Any) -> Any:
    return type(state).parse(state.to_bytes())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("add wall ahead 3 high", "high H"), ("add wall ahead 3 hihg 2", "high H"), ("add crate ahead 3 high -1", "-1"),
        ("add wall ahead 3 high 1.5", "whole cells"), ("add wall ahead 3 high 2 high 3", "high H"),
        ("add wall at 3 3 up 2", "high H"), ("remove wall high 2", "high H"), ("remove wall ahead 0", "N at least 1"),
        ("add wall ahead 3 high x", "not numbers"), ("move wall ahead 3 by 1 0", "'by DX DY'"),
    ],
)  # fmt: skip
def test_blocks_that_do_not_parse_are_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_edit(text, "coinrun")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("add wall ahead 3 high 90", "outside of a world"), ("add wall ahead 3 up -1", "is taken"),
        ("remove wall ahead 3 up 2", "there is no wall in it"), ("add wall ahead 3 wide 90", "outside of a world"),
    ],
)  # fmt: skip
def test_blocks_that_cannot_be_built_are_refused(made: Made, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        flat(made(), text)


# Scenes


@pytest.mark.parametrize("name", load_scenes())
def test_every_scene_of_the_file_can_be_built_at_all_its_values(made: Made, name: str) -> None:
    scene = scene_of(name)
    env = made(scene.game, slots=1, seed=3)
    base = level_states(env.options, [905], [env.snapshot()[0]])[0]
    states = [built(scene, value, base, Stance(0.2, 0.1)) for value in scene.values]
    frames = [env.restore([state]).obs["frames"] for state in states]
    for one, other in zip(frames, frames[1:], strict=False):
        assert (one != other).any(), "the variable is seen"
    plain = state_of(built(scene, scene.values[0], base, Stance()))
    moved = state_of(states[0])
    assert moved.agent["x"] == pytest.approx(plain.agent["x"] + 0.2) and moved.agent["vx"] == pytest.approx(0.1)


def test_a_scene_says_where_it_ends() -> None:
    assert scene_of("wall_height").beyond(2) == 3 and scene_of("wall_distance").beyond(4) == 4
    assert [scene_of("pit_width").beyond(w) for w in (0, 1, 4)] == [3, 3, 6]


GOOD = {"name": "s", "game": "coinrun", "base": "flat", "edits": ["add wall ahead 3 high {h}"], "says": "a wall"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"edits": ["add wall ahead 3"]}, "need one placeholder"), ({"edits": ["add wall ahead {d} up {h}"]}, "d, h"),
        ({"edits": ["add wall ahead 3 high {h"]}, "edit 'add wall"), ({"edits": ["add wall up {1}"]}, "small letters"),
        ({"game": "coinrum"}, "did you mean coinrun"), ({"game": "ninja"}, "only coinrun has flat ground"),
        ({"base": "flatt"}, "neither a level's number"), ({"base": 3, "ground": 2}, "thickness of flat ground"),
        ({"ground": -1}, "cells thick"), ({"values": [1, -2]}, "cannot be built with h = -2"),
        ({"hight": 1}, "unknown key"),
    ],
)  # fmt: skip
def test_files_of_scenes_are_checked(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps([{**GOOD, **change}]))
    with pytest.raises(UserError, match=said):
        load_scenes(file)


def test_other_files_are_refused_and_a_scene_is_found_by_name(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    for rows, said in (({"a": 1}, "a list of scenes"), ([3], "an object"), ([GOOD, GOOD], "there twice"),
                       ([{k: v for k, v in GOOD.items() if k != "says"}], "'says' is missing")):  # fmt: skip
        file.write_text(json.dumps(rows))
        with pytest.raises(UserError, match=said):
            load_scenes(file)
    file.write_text(json.dumps([{**GOOD, "base": 4}]))
    assert isinstance(scene_of("s", file), Scene) and scene_of("s", file).base == 4
    with pytest.raises(UserError, match="did you mean wall_height"):
        scene_of("wall_hight")


def test_a_wall_beside_the_agent_sends_it_to_the_other_side(made: Made) -> None:
    base = made().snapshot()[0]
    scene = scene_of("wall_at_the_start")
    x = float(state_of(base).agent["x"])  # a level begins at its left end
    for dx in (-0.3, 0.3):
        assert state_of(built(scene, 0, base, Stance(dx))).agent["x"] == pytest.approx(x + 0.3)
    with pytest.raises(UserError, match="is taken"):
        built(replace(scene, edits=("add wall ahead 1 high {h}",)), 1, base, Stance(0.3))


def test_a_scene_of_another_game_or_that_has_no_room_is_refused(made: Made) -> None:
    scene = scene_of("wall_height")
    climber = made("climber").snapshot()[0]
    with pytest.raises(UserError, match="is of coinrun, the world of climber"):
        built(scene, 2, climber, Stance())
    base = made().snapshot()[0]
    with pytest.raises(UserError, match="cannot be built with h = 90"):
        built(scene, 90, base, Stance())
    with pytest.raises(UserError, match="velocities lie between"):
        built(scene, 2, base, Stance(vx=9))
