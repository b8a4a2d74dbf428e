"""What an edit was made to is found again in later and earlier states, in the real games."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.load import load_agent
from analysis.shared.edit_starts import collect, fits
from envs.procgen import STANDING, ProcgenEnv, ProcgenOptions
from envs.procgen_edits import parse_edit
from envs.procgen_state import State, snapshot_of, state_of
from envs.procgen_tracks import TakenBack, Things
from validation.edits.course import EditedWorld, taking_back

CPU = torch.device("cpu")


def straight(place: list[tuple[float, float]], velocity: list[tuple[float, float]]) -> Things:
    return Things(np.array(place), np.array(velocity), np.zeros(len(place), np.int64))


def test_two_that_cross_are_not_exchanged() -> None:
    before = straight([(1.0, 0.0), (1.2, 0.0), (5.0, 0.0)], [(0.15, 0.0), (-0.15, 0.0), (0.0, 0.0)])
    after = straight([(5.0, 0.0), (1.05, 0.0), (1.15, 0.0)], [(0.0, 0.0), (-0.15, 0.0), (0.15, 0.0)])
    assert before.next(after).tolist() == [2, 1, 0]
    assert after.next(before, back=True).tolist() == [2, 1, 0]
    gone = straight([(1.05, 0.0)], [(-0.15, 0.0)])
    assert before.next(gone).tolist() == [-1, 0, -1]


def test_a_row_that_moves_on_is_not_one_that_stands() -> None:
    """Bullets of a row, a step apart: one leaves at the end, a new one comes at the beginning."""
    before = straight([(0.0, 0.0), (1.0, 0.0)], [(0.2, 0.0), (0.2, 0.0)])
    assert before.next(straight([(1.2, 0.0), (2.4, 0.0)], [(0.2, 0.0)] * 2)).tolist() == [-1, 0]
    row = straight([(float(i), 0.0) for i in range(5)], [(0.8, 0.0)] * 5)
    assert row.next(straight([(i + 0.8, 0.0) for i in range(-1, 4)], [(0.8, 0.0)] * 5)).tolist() == [1, 2, 3, 4, -1]


def test_a_stack_of_boulders_falls_whole() -> None:
    def cells(*y: float) -> Things:
        return Things(np.array([(3.5, v) for v in y]), np.zeros((0, 2)), np.zeros(0, np.int64), len(y), roll=True)

    assert cells(8.5, 9.5).next(cells(7.5, 8.5)).tolist() == [0, 1]
    assert cells(8.5, 9.5).next(cells(8.5)).tolist() == [0, -1]


def test_boulders_and_diamonds_of_miner_are_not_lost() -> None:
    env = ProcgenEnv(ProcgenOptions(game="miner", num_levels=0), 8)
    env.reset(0)
    rng, states, seen = np.random.default_rng(0), [state_of(s) for s in env.snapshot()], 0
    for _ in range(60):
        step = env.step(rng.integers(0, env.spec.n_actions, 8))
        later = [state_of(s) for s in env.snapshot()]
        for n in np.flatnonzero(~(step.terminated | step.truncated)):
            one, other = Things.called("boulder", states[n]), Things.called("boulder", later[n])
            if len(one.place) == len(other.place):
                found = one.next(other)
                assert sorted(found.tolist()) == list(range(len(found)))
                seen += int((one.place != other.place[found]).any())
        states = later
    env.close()
    assert seen > 0, "none fell"


def sight(state: State, thing: str) -> np.ndarray:
    """Places of all things of a name, sorted."""
    found: np.ndarray = np.array(sorted(map(tuple, state.places(thing).round(2))))
    return found


def seen_alike(one: State, other: State, thing: str) -> bool:
    a, b = sight(one, thing), sight(other, thing)
    return a.shape == b.shape and (not len(a) or float(np.abs(a - b).max()) < 0.3)


def standing(env: ProcgenEnv, states: list[bytes], steps: int) -> list[list[State | None]]:
    """The states of every slot while the agent stands, [steps + 1][slot]; None once its episode has ended."""
    env.restore(states)
    out, on = [], np.ones(len(states), bool)
    for _ in range(steps + 1):
        out.append([state_of(s) if up else None for s, up in zip(env.snapshot(), on, strict=True)])
        step = env.step(np.full(len(states), STANDING))
        on &= ~(step.terminated | step.truncated)
    return out


@pytest.mark.parametrize(
    ("game", "text"),
    [("bigfish", "move fish nearest by 0 2"), ("leaper", "move car nearest by 1 0"), ("coinrun", "add monster ahead 3"),
     ("starpilot", "move flyer nearest by 0 1"), ("dodgeball", "move enemy nearest by 1 0")],
)  # fmt: skip
def test_what_moves_by_itself_is_taken_back_at_every_later_step(game: str, text: str) -> None:
    env = ProcgenEnv(ProcgenOptions(game=game, start_level=700_000_000, num_levels=100_000), 24)  # type: ignore[arg-type]
    env.reset(0)
    for _ in range(40):
        env.step(np.full(24, STANDING))
    begin, edit = list(env.snapshot()), parse_edit(text, game)
    made = {n: found.apply(state_of(s)) for n, s in enumerate(begin) if (found := fits(edit, s)) is not None}
    plain = standing(env, begin, 12)
    edited = standing(env, [snapshot_of(made[n], s) if n in made else s for n, s in enumerate(begin)], 12)
    back = {n: TakenBack(state_of(begin[n]), after) for n, after in made.items()}
    right = []
    for t in range(13):
        for n in made:
            here, other = edited[t][n], plain[t][n]
            if here is not None:
                shown = back[n].to(here) if t else back[n].at_once(here)
                right += [] if other is None else [seen_alike(shown, other, edit.thing)]
    env.close()
    # What the edit made eat, or be hit, is another world.
    assert len(right) > 100 and np.mean(right) > 0.9


@pytest.fixture(scope="module")
def made() -> Callable[[int], ProcgenEnv]:
    options = load_agent(Path("bundles/coinrun-robust/agent"), CPU).spec.options
    return lambda slots: ProcgenEnv(ProcgenOptions(**{**options, "start_level": 700_000_000}), slots)


def test_a_moved_agent_at_the_worlds_end_is_shown_where_it_is(made: Callable[[int], ProcgenEnv]) -> None:
    env = made(2)
    env.reset(0)
    begin = list(env.snapshot())
    env.close()
    edit = parse_edit("move agent by 1 0", "coinrun")
    alter = taking_back({n: edit.apply(state_of(s)) for n, s in enumerate(begin)}, [state_of(s) for s in begin])
    edited = [snapshot_of(edit.apply(state_of(s)), s) for s in begin]
    alter(edited, np.ones(2, bool))
    assert [state_of(s).agent["x"] for s in edited] == pytest.approx([state_of(s).agent["x"] for s in begin])
    later = [state_of(s) for s in begin]
    later[0].agent["x"] = 0.5  # a cell to the left is outside of the world
    later[1].agent["x"] += 1.5
    copies = [snapshot_of(state, s) for state, s in zip(later, begin, strict=True)]
    there = copies[0]
    alter(copies, np.ones(2, bool))
    assert copies[0] == there
    assert state_of(copies[1]).agent["x"] == pytest.approx(later[1].agent["x"] - 1)


def test_the_very_thing_of_the_start_is_gone_since_the_episode_began(made: Callable[[int], ProcgenEnv]) -> None:
    agent = load_agent(Path("bundles/coinrun-robust/agent"), CPU)
    edit, envs = parse_edit("remove monster nearest", "coinrun"), [made(12) for _ in range(3)]
    starts = collect(agent, envs[0], [edit], 12, initial_frames=1, latest=16, seed=1, greedy=False, device=CPU)
    world = EditedWorld(agent, envs[1], envs[2], starts, torch.zeros(12, 2, agent.spec.n_actions))
    named = [fits(edit, s) for s in starts.states]
    begun = world.begun(named)
    assert None not in named and None not in begun, "monsters are there from the first step on"
    # Where the agent comes to stand where it stood, all monsters but the named one are where they were.
    states, _, rows_N, apart_N = world._replayed(named, np.ones(12, bool), "whole")
    same = np.flatnonzero(rows_N & ~apart_N)
    for n in same:
        left, whole = state_of(states[n]), state_of(starts.states[n])
        index, _ = named[n]._chosen(whole)  # type: ignore[union-attr]
        whole.entities = np.delete(whole.entities, index)
        assert seen_alike(left, whole, "monster"), n
    assert len(same) >= 6
    for env in envs:
        env.close()


def test_an_agent_that_is_moved_keeps_its_velocity(made: Callable[[int], ProcgenEnv]) -> None:
    env = made(1)
    env.reset(3)
    for _ in range(6):
        env.step(np.array([7]))  # to the right
    state = state_of(env.snapshot()[0])
    velocity = float(state.agent["vx"])
    moved = parse_edit("move agent by 0 0.5", "coinrun").apply(state_of(env.snapshot()[0]))
    env.close()
    assert velocity > 0 and float(moved.agent["vx"]) == velocity
