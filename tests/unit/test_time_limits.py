"""What a time limit cuts says nothing of an effect: an exact simulator, which knows no limit, is right beside one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from analysis.shared.directions import fit_pca
from core.artefacts import Result
from core.contracts import UserError
from envs.planted import PlantedOptions, PlantedWorld, planted_simulator
from envs.planted_truth import truth
from tests.planted_worlds import NoSnapshots
from validation.fidelity.counterfactual import FORESIGHT, Found, Snapshots, take
from validation.fidelity.measures import Row
from validation.fidelity.ranking import play_all, policies_of
from validation.fidelity.snapshots import answers, answers_in_time, try_again
from validation.interventions.alone import alone
from validation.interventions.options import StudyOptions, in_time
from validation.interventions.study import find_starts, study
from validation.interventions.world_edits import moved
from validation.paired.course import Measures, quantities
from validation.paired.limits import CutShort, each_in_time, last_in_time
from validation.paired.real import RealWorld
from validation.paired.starts import When, collect_starts

LIMIT, K = 12, 5
EXACT = PlantedOptions(noise=0.0, hazard=0.0, horizon=LIMIT)  # without noise the simulator is the world itself
STUDY = StudyOptions(
    hypotheses=("shift planted:0 by +2 on value",), starts=24, horizon=K, controls=39, latest_start=LIMIT - 2,
    first_order=False,
)  # fmt: skip


def asked(world: type[PlantedWorld] = PlantedWorld, options: StudyOptions = STUDY) -> Result:
    def make(slots: int) -> PlantedWorld:
        return world(EXACT, slots)

    return study(planted_simulator(EXACT), make, truth(EXACT).basis, options)


@pytest.mark.parametrize("world", [PlantedWorld, NoSnapshots])
def test_an_exact_simulator_is_right_beside_a_time_limit(world: type[PlantedWorld]) -> None:
    found = asked(world)
    assert found.arrays["age"].max() == LIMIT - K - 1 and len(found.arrays["age"]) == STUDY.starts
    late = [q.partition("/")[2] for q in found.arrays if q.startswith("simulated/") and "@" in q]
    assert f"value@{K}" in late and f"ended@{K}" in late
    for q in late:
        seen, foretold = (found.arrays[f"{side}/{q}"] for side in ("observed", "simulated"))
        np.testing.assert_allclose(seen, foretold, atol=1e-4, err_msg=q)
    assert not found.arrays[f"unaltered/ended@{K}"].any()  # the end of the time is no ending
    told = found.notes["time_limit"]
    assert (told["steps"], told["latest_start"]) == (LIMIT, LIMIT - K - 1) and 0 < told["left_out"] < STUDY.starts
    (said,) = (w for w in found.notes["warnings"] if "time limit" in w)
    assert f"{told['left_out']} of the {STUDY.starts} starts" in said and "\n" not in said


def test_where_nothing_is_cut_nothing_is_said_and_all_starts_are_kept() -> None:
    options = replace(STUDY, latest_start=LIMIT - K - 1)
    found = asked(options=options)
    assert "time_limit" not in found.notes and not any("time limit" in w for w in found.notes["warnings"])
    first = find_starts(
        planted_simulator(EXACT).agent, 1, lambda slots: PlantedWorld(EXACT, slots), options, 0, torch.device("cpu")
    )
    np.testing.assert_array_equal(found.arrays["age"], first.age_N)


def test_without_a_simulator_no_start_is_cut_either() -> None:
    agent, basis, options = planted_simulator(EXACT).agent, truth(EXACT).basis, replace(STUDY, choosing_starts=32)

    def make(slots: int) -> PlantedWorld:
        return PlantedWorld(EXACT, slots)

    found = alone(agent, (make, make), basis, options, torch.device("cpu"))
    near = alone(agent, (make, make), basis, replace(options, latest_start=LIMIT - K - 1), torch.device("cpu"))
    assert found.notes["time_limit"]["steps"] == LIMIT and "time_limit" not in near.notes
    assert found.arrays["age"].max() == LIMIT - K - 1
    np.testing.assert_array_equal(found.arrays[f"observed/value@{K}"], near.arrays[f"observed/value@{K}"])


def test_a_limit_without_room_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"after 12 steps, .*; lower --horizon \(to 10 at most\)"):
        asked(options=replace(STUDY, horizon=11))
    assert last_in_time(9, 0, 100) == 9 and last_in_time(9, 12, 4) == 7 and last_in_time(3, 12, 4) == 3
    with pytest.raises(UserError, match="give the world a longer one"):
        last_in_time(9, 2, 1, first=1)


class Played:
    """Stands for the worlds of a study."""


def test_a_run_that_is_cut_alone_draws_the_starts_anew() -> None:
    """Also where only an altered run, which lives longer, comes to the limit: no start is chosen by that."""
    ages = np.array([1, 4, 6])
    tried: list[int] = []
    played: list[weakref.ref[Played]] = []

    def once(options: StudyOptions) -> Result:
        gc.collect()
        assert all(before() is None for before in played)  # what the cut study played is let go of
        worlds = Played()
        played.append(weakref.ref(worlds))
        tried.append(options.time_limit)
        if len(tried) < 3:
            raise CutShort({1: 11, 2: 10}[len(tried)], ages, K)
        return Result(notes={"warnings": []})

    found = in_time(once, STUDY)
    assert tried == [0, 11, 10]  # by the smallest of all
    assert found.notes["time_limit"] == {"steps": 10, "left_out": 1, "latest_start": 4}


@pytest.mark.parametrize("world", [PlantedWorld, NoSnapshots])
def test_a_run_is_cut_where_its_own_episode_is_out_of_time(world: type[PlantedWorld]) -> None:
    options = replace(EXACT, hazard=0.3)
    simulator, n = planted_simulator(options), 24
    env = world(options, n)
    starts = collect_starts(simulator.agent, env, n, initial_frames=1, latest=LIMIT - 1, seed=0)
    noise = torch.zeros(n, K + 1, 3)
    plain = RealWorld(simulator.agent, starts.state, noise, Measures({"left": [0]}), env, starts)
    course = plain.run()
    cut_N = ((course.truncated_RT > 0) & (course.weight_RT[:, :-1] > 0)).any(1).numpy()
    dies_N = (quantities(course, plain.measures)[f"ended@{K}"].numpy() > 0) & ~cut_N
    assert cut_N.any() and dies_N.any() and (starts.age_N[cut_N] + K >= LIMIT).all()
    assert (starts.age_N[dies_N] + K >= LIMIT).any()  # left out as well, whatever happened
    with pytest.raises(CutShort, match="--latest_start") as found:
        replace(plain, whole=True).run()
    assert found.value.limit == LIMIT and found.value.left_out(LIMIT) == (starts.age_N + K >= LIMIT).sum()


def test_no_start_is_later_than_is_asked_where_rare_states_are_sought() -> None:
    noisy = replace(EXACT, noise=1.0)
    agent = planted_simulator(noisy).agent
    above = When(lambda h_BH: h_BH[:, 0] > 0.6, "a large h")

    def ages(until: int) -> np.ndarray:
        return collect_starts(
            agent, PlantedWorld(noisy, 4), 16, initial_frames=1, latest=4, seed=0, when=above, until=until
        ).age_N

    assert ages(LIMIT).max() > 5 and ages(5).max() <= 5


def test_returns_of_ranked_policies_count_within_the_same_steps_in_both_worlds() -> None:
    simulator = planted_simulator(EXACT)
    shots = take(simulator, lambda slots: PlantedWorld(EXACT, slots), 16, latest=6, seed=0)
    surest = [policy for policy in policies_of(simulator.agent, {}) if policy.name == "greedy"]  # luck does not matter
    played = play_all(shots, surest, LIMIT, 0)
    np.testing.assert_allclose(played.real_NP, played.dreamed_NP, atol=1e-4)
    assert played.limit == LIMIT and np.ptp(played.real_NP) > 0.1
    np.testing.assert_array_equal(played.steps_N, LIMIT - shots.starts.age_N)
    early = play_all(shots, surest, 3, 0)
    assert early.limit is None and (early.steps_N == 3).all()


def test_signs_of_effects_are_those_of_a_world_without_a_limit() -> None:
    """Of a world of 12 steps, at snapshots of up to step 10: those after step 7 are cut within 4 steps."""
    found, tried = Found(), []

    def taken(options: PlantedOptions) -> tuple[Snapshots, Callable[[Snapshots], list[Row]]]:
        def make(slots: int) -> PlantedWorld:
            return PlantedWorld(options, slots)

        def ask(some: Snapshots) -> list[Row]:
            tried.append(some.starts.age_N)
            return answers(some, truth(options).basis, make, np.random.default_rng(0), further=True)[0].rows

        return take(planted_simulator(options), make, 40, latest=LIMIT - 2, seed=0), ask

    shots, ask = taken(EXACT)
    rows = answers_in_time(ask, shots, found)
    first, kept = tried
    np.testing.assert_array_equal(kept, first[first < LIMIT - max(FORESIGHT)])
    assert (
        f"of {len(first) - len(kept)} of 40 snapshots: a time limit cuts episodes after 12 steps" in found.notes["cut"]
    )
    longer, ask_longer = taken(replace(EXACT, horizon=LIMIT + 20))
    np.testing.assert_array_equal(longer.starts.age_N, first)
    assert rows == ask_longer(longer.some(np.flatnonzero(first < LIMIT - max(FORESIGHT)).tolist()))
    signs = [r for r in rows if r["measure"] == "effect_sign_value"]
    assert len(signs) == len(FORESIGHT) and {r["n"] for r in signs} == {len(kept)}


def test_snapshots_that_a_limit_leaves_none_of_are_rows_with_a_reason() -> None:
    """Of a world of 12 steps, at snapshots after step 8: the rest of the table is there."""
    simulator, h_NH = planted_simulator(EXACT), np.random.default_rng(0).random((50, 8))

    def make(slots: int) -> PlantedWorld:
        return PlantedWorld(replace(EXACT, horizon=3), slots)

    found = try_again(
        simulator, make, fit_pca(h_NH, 2), np.random.default_rng(0), starts=6, latest=2, horizon=2, further=True,
        ranking_steps=2,
    )  # fmt: skip
    cut = [r for r in found.rows if r["measure"].startswith(("gradient_sign", "effect_sign"))]
    assert len(cut) == 6 * len(FORESIGHT) and all(r["simulated"] is None for r in cut)
    assert all("6 of 6 snapshots: a time limit cuts episodes after 3 steps" in r["reason"] for r in cut)
    assert any(r["measure"] == "counterfactual_top1" and r["simulated"] is not None for r in found.rows)
    assert any(r["measure"] == "ranking_spearman" for r in found.rows)


def test_a_cut_is_one_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ranks.each`` gives the others the text of a UserError alone."""
    monkeypatch.setattr("core.ranks.count", lambda: 2)
    monkeypatch.setattr("core.ranks._from", lambda source, mine: mine)

    def cut(item: int) -> int:
        if item == 0:
            raise CutShort(7, np.array([3]), 4)
        return item

    with pytest.raises(CutShort) as found:
        list(each_in_time([0, 1], cut))
    assert found.value.limit == 7 and found.value.horizon == 4


def test_without_a_limit_all_snapshots_are_asked_and_nothing_is_said() -> None:
    simulator, found, options = planted_simulator(EXACT), Found(), replace(EXACT, horizon=LIMIT + 20)

    def make(slots: int) -> PlantedWorld:
        return PlantedWorld(options, slots)

    shots = take(simulator, make, 8, latest=LIMIT - 2, seed=0)
    assert answers_in_time(len, shots, found) == 8 and not found.notes


def test_a_world_edit_is_asked_of_runs_that_are_whole() -> None:
    agent, env = planted_simulator(EXACT).agent, PlantedWorld(EXACT, 4)
    starts = collect_starts(agent, env, 4, initial_frames=1, latest=LIMIT - 2, seed=0)
    late = replace(starts, age_N=np.full(4, LIMIT - 2))
    noise = torch.zeros(4, LIMIT + 1, 3)
    world = RealWorld(agent, starts.state, noise, Measures({"left": [0]}), env, late, whole=True)
    with pytest.raises(CutShort):
        moved(world, starts.states).run()
    replace(world, whole=False).run()
