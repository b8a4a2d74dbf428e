"""Paired runs of the real world that tell what is so in it: events over truth columns, donors matched in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from agents.play import tensors
from analysis.shared.events import parse_event
from analysis.shared.truths import told_by
from core.contracts import UserError
from core.directions import Basis
from core.stats import paired_share
from envs.planted import SIZE, PlantedAgent, PlantedOptions, PlantedWorld, spec_of
from validation.hypotheses.grammar import parse_hypothesis
from validation.interventions.alone import alone, names_told
from validation.interventions.bench import _across
from validation.interventions.options import StudyOptions, parse_study
from validation.interventions.world_edits import altered, moved, parse_world_edits, told_of, world_edit_rows
from validation.paired.course import Measures, in_words, is_share, quantities, rows_of
from validation.paired.real import RealWorld
from validation.paired.starts import collect_starts

OPTIONS = PlantedOptions()
SPEC = spec_of(OPTIONS, 1)
NAMES = tuple(f"stimulus_{i}" for i in range(SIZE))
N, K = 24, 4


def neurons(agent: str = "") -> Basis:
    eye = torch.eye(SIZE)
    return Basis("neurons", torch.zeros(SIZE), torch.ones(SIZE), eye, eye, agent=agent)


def event(text: str):
    return parse_event("it", text, SPEC.action_names, SIZE, (), NAMES)


@pytest.fixture(scope="module")
def real() -> RealWorld:
    agent, env = PlantedAgent(OPTIONS), PlantedWorld(OPTIONS, N)
    starts = collect_starts(agent, env, N, initial_frames=1, latest=6, seed=0)
    noise = torch.from_numpy(np.random.default_rng(0).gumbel(size=(N, K + 1, 3))).float()
    events = event("stimulus_2 > 0"), event("rises(stimulus_0)")
    measures = Measures({"left": [0]}, events=events, matched=("stimulus_5",))
    return RealWorld(agent, starts.state, noise, measures, env, starts, PlantedWorld(OPTIONS, 5))


def test_a_world_tells_its_numbers_by_the_names_of_recordings() -> None:
    assert names_told(lambda slots: PlantedWorld(OPTIONS, slots), SPEC) == NAMES
    told = told_by({"position": np.array([[3, 4]]), "map": np.zeros((1, 65)), "word": np.array(["a"]),
                    "fed": np.ones(1, bool)})  # fmt: skip
    assert {k: v.tolist() for k, v in told.items()} == {"row": [3.0], "col": [4.0], "fed": [1.0]}


def test_a_run_tells_the_truth_of_each_step(real: RealWorld) -> None:
    """As it is seen by hand, whichever way the run is played."""
    assert real.measures.truths == ("stimulus_0", "stimulus_2", "stimulus_5")
    course = real.run()
    now, on = real.env.restore(real.starts.states), torch.ones(N, dtype=torch.bool)
    for t in range(K + 1):
        want = torch.from_numpy(now.truth["stimulus"][:, [0, 2, 5]])
        assert torch.equal(course.told_RTM[on, t], want[on])
        action = course.action_RTA[:, t].argmax(1).numpy()
        now = real.env.step(action)
        on &= ~torch.from_numpy(now.terminated | now.truncated)
    whole = real.course()
    still = course.weight_RT > 0.5
    assert torch.equal(whole.told_RTM[still], course.told_RTM[still])
    rows = rows_of(course, real.measures)
    assert torch.equal(rows.truth["stimulus_2"], course.told_RTM[:, :-1, 1])
    rate = quantities(course, real.measures)[f"rate:it@{K}"]
    assert 0.1 < float(rate.mean()) < 0.9


def test_a_time_limit_is_told_from_an_ending_of_the_world(real: RealWorld) -> None:
    """Of a run as of a recording, whichever way it is played: who runs out of time does not die."""
    options = replace(OPTIONS, horizon=10, hazard=0.1)
    env = PlantedWorld(options, N)
    agent = PlantedAgent(options)
    starts = collect_starts(agent, env, N, initial_frames=1, latest=8, seed=0)
    texts = {"death": "ended and not truncated", "time": "truncated", "over": "ended"}
    events = tuple(parse_event(name, text, SPEC.action_names, SIZE) for name, text in texts.items())
    noise = torch.from_numpy(np.random.default_rng(0).gumbel(size=(N, K + 1, 3))).float()
    world = RealWorld(agent, starts.state, noise, Measures({"left": [0]}, events=events), env, starts)
    death, time, over = (quantities(world.run(), world.measures)[f"event:{name}@{K}"] for name in texts)
    assert torch.equal(death + time, over) and death.sum() > 0 and time.sum() > 0
    by_age = torch.from_numpy(starts.age_N) + K >= options.horizon
    assert not time[~by_age].any() and torch.equal(over[by_age], torch.ones_like(over[by_age]))
    course = world.course()
    for name, want in zip(texts, (death, time, over), strict=True):
        assert torch.equal(quantities(course, world.measures)[f"event:{name}@{K}"], want)


def test_donors_are_the_nearest_of_the_other_class_and_give_once() -> None:
    """Were a state given to many starts, these would count as so many although they rest on one."""
    clean = np.array([True, True, False, False, False])
    near = np.array([[0.0], [5.0], [4.0], [1.0], [np.nan]])
    donor, paired = _across(clean, np.random.default_rng(0), near)
    assert donor.tolist()[:4] == [3, 2, 1, 0] and paired.tolist() == [True, True, True, True, False]
    donor, paired = _across(clean, np.random.default_rng(0))
    assert set(donor[:2]) < {2, 3, 4} and paired.sum() == 4
    for mine in (clean, ~clean):
        assert len(set(donor[mine & paired])) == 2 and not (clean[donor] == clean)[mine & paired].any()
    donor, paired = _across(np.ones(4, bool), np.random.default_rng(0))
    assert not paired.any()
    unknown = np.array([[0.0], [5.0], [4.0], [np.nan], [np.nan]])  # near nothing: 0 is left without a partner
    donor, paired = _across(clean, np.random.default_rng(0), unknown)
    assert donor.tolist()[1:3] == [2, 1] and paired.tolist() == [False, True, True, False, False]
    assert not _across(clean, np.random.default_rng(0), np.full((5, 1), np.nan))[1].any()
    crowd = np.arange(40) < 2  # two tired starts, and 38 that take the state of one of them
    assert _across(crowd, np.random.default_rng(0), np.arange(40.0)[:, None])[1].sum() == 4


def options(*hypotheses: str, events: tuple[str, ...] = ()) -> StudyOptions:
    return StudyOptions(hypotheses=hypotheses, events=events, starts=N, horizon=K, controls=39, latest_start=6)


def test_a_study_knows_the_worlds_own_events_and_the_truth() -> None:
    spec = replace(SPEC, events={"death": "ended and reward <= 0"}, same_actions=(("left", "wait"),))
    _, events = parse_study(options("collapse neurons:0"), neurons(), spec, None)
    assert [e.name for e in events] == ["death"]
    named = options("collapse neurons:0", events=("death", "go: action == left"))
    _, events = parse_study(named, neurons(), spec, None)
    assert [e.text.strip() for e in events] == ["ended and reward <= 0", "action == left"]
    hot = torch.eye(3)[None]
    rows = rows_of_actions(hot)
    assert events[1](rows)[0].tolist() == [1, 1, 0]  # left and wait do the same
    asked = options("patch neurons:all clean far matched age stimulus_5", events=("far: stimulus_0 > 1",))
    (noising, denoising), (far,) = parse_study(asked, neurons(), SPEC, None, NAMES)
    assert noising.matched == ("age", "stimulus_5") and far.truths == {"stimulus_0"}
    assert "matched age stimulus_5" in denoising.name
    with pytest.raises(UserError, match="no column 'stimulus_0'"):
        parse_study(asked, neurons(), SPEC, None)
    with pytest.raises(UserError, match=r"matched place: no such column.*there are: age, stimulus_0"):
        parse_study(options("patch 1 clean ending matched place"), neurons(), SPEC, None, NAMES)
    with pytest.raises(UserError, match="matched is for patch"):
        parse_hypothesis("collapse 1 matched age", neurons())
    with pytest.raises(UserError, match="or one of ending, reward"):
        parse_study(options("collapse 1", events=("deth",)), neurons(), SPEC, None)


def rows_of_actions(hot_RTA: torch.Tensor):
    from analysis.shared.events import Rows

    value = hot_RTA[..., 0]
    return Rows(value, value, value, hot_RTA, hot_RTA, value[..., None][..., :0])


def test_one_change_may_be_necessary_and_sufficient() -> None:
    both = options("collapse neurons:0 necessary for ending", "collapse neurons:0 sufficient for ending")
    hypotheses, _ = parse_study(both, neurons(), SPEC, None)
    assert [(h.name, h.role) for h in hypotheses] == [
        ("collapse neurons:0", "necessary"), ("collapse neurons:0", "sufficient"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="is there twice"):
        parse_study(options("collapse neurons:0", "collapse neurons:0"), neurons(), SPEC, None)


def test_what_an_agent_cannot_see_does_nothing_at_once() -> None:
    """The nuisance moves nothing ever; what is seen is acted on at once; of what a blind agent cannot see
    nothing comes at once, and all that comes later is the world's."""
    agent = PlantedAgent(OPTIONS)
    with torch.no_grad():
        agent.U_HX.zero_()  # blind to everything
    env = PlantedWorld(OPTIONS, N)
    noise = torch.zeros(N, K + 1, 3)
    measures = Measures({"left": [0]}, events=(event("stimulus_2 > 0"),))
    edits = parse_world_edits(("stimulus_2 = 4", "stimulus_1=-2"), NAMES)
    assert [e.name for e in edits] == ["stimulus_2 = 4", "stimulus_1 = -2"]
    found = {}
    for who, name in ((agent, "blind"), (PlantedAgent(OPTIONS), "sees")):
        starts = collect_starts(who, env, N, initial_frames=1, latest=6, seed=0)
        world = RealWorld(who, starts.state, noise, measures, env, starts)
        rows = world_edit_rows(world, edits, np.random.default_rng(0))
        found |= {(name, r["edit"], r["quantity"]): r for r in rows}
        assert all(r["q"] >= r["p"] for r in rows)
        cause, nuisance = told_of(rows)
        most = min((r for r in rows if r["edit"] == "stimulus_2 = 4"), key=lambda r: r["p"])
        assert f"later most clearly {in_words(most['quantity'])} {most['effect']:+.3g}" in cause and most["q"] <= 0.05
        count = len({r["quantity"] for r in rows})  # a smallest p is there of nothing, too
        assert f"; later none of {count} quantities is shown to change" in nuisance, nuisance
    blind = found["blind", "stimulus_2 = 4", f"rate:it@{K}"]
    assert blind["at_once"] == 0 and blind["low"] > 0.2 and blind["n"] == N
    assert found["sees", "stimulus_2 = 4", f"rate:it@{K}"]["at_once"] > 0.1
    assert found["sees", "stimulus_1 = -2", f"value@{K}"]["effect"] == pytest.approx(
        0, abs=1e-6
    )  # nothing reads the nuisance
    for word in ("health 2", "stimulus_1 = 1e400"):
        with pytest.raises(UserError, match="expected NAME = VALUE"):
            parse_world_edits((word,), NAMES)
    with pytest.raises(UserError, match=r"tells no stimulus_9 \(did you mean stimulus_"):
        parse_world_edits(("stimulus_9 = 2",), NAMES)
    with pytest.raises(UserError, match="side cannot be set"):
        env.edited(starts.states, "side", 1.0)


def test_what_is_only_shown_leaves_the_world_as_it_is(real: RealWorld) -> None:
    """As it is done by hand: the agent sees the number at every step, the world goes on from its own state.  A blind
    agent does nothing, ever."""
    (edit,) = parse_world_edits(("stimulus_0 = 4",), NAMES, shown=True)
    agent, env, starts = real.agent, real.env, real.starts
    course = altered(real, edit).run()
    now, state, on = env.restore(starts.states), starts.before, torch.ones(N, dtype=torch.bool)
    for t in range(K + 1):
        assert torch.equal(course.told_RTM[on, t, 0], torch.from_numpy(now.truth["stimulus"][:, 0])[on])
        there = env.snapshot()
        seen = agent.encode(tensors(env.restore(env.edited(there, "stimulus_0", 4)), torch.device("cpu")))
        state = agent.advance(seen, state, torch.from_numpy(now.is_first))
        logits, _ = agent.heads(seen, state)
        np.testing.assert_allclose(course.logits_RTA[on, t], logits[on], atol=1e-5)
        env.restore(there)
        now = env.step((logits + real.noise_NTA[:, t]).argmax(1).numpy())
        on &= ~torch.from_numpy(now.terminated | now.truncated)
    assert float((real.run().logits_RTA - course.logits_RTA)[:, 1:].abs().max()) > 0.1
    blind = PlantedAgent(OPTIONS)
    with torch.no_grad():
        blind.U_HX.zero_()
    starts = collect_starts(blind, env, N, initial_frames=1, latest=6, seed=0)
    world = RealWorld(blind, starts.state, real.noise_NTA, real.measures, env, starts, real.few)
    for row in world_edit_rows(world, (edit,), np.random.default_rng(0)):
        assert row["shown"] and row["at_once"] == row["effect"] == row["low"] + row["high"] == 0
        assert row["low"] < 0 or not is_share(row["quantity"])  # no start of so few says that none would


def test_an_event_that_an_edit_hardly_changes_has_the_interval_of_a_share(real: RealWorld) -> None:
    """Bootstrapped, the interval of a change of 3 % was of no width in a third of studies of 32 starts."""
    (edit,) = parse_world_edits(("stimulus_2 = 4",), NAMES)
    rows = {row["quantity"]: row for row in world_edit_rows(real, [edit], np.random.default_rng(0))}
    before, after = (world.measure([None]) for world in (moved(real, real.starts.states), altered(real, edit)))
    events = [q for q in rows if q.startswith("event:")]
    assert events
    for q in events:
        e = paired_share(after[q][0] - before[q][0])
        assert (rows[q]["effect"], rows[q]["low"], rows[q]["high"]) == pytest.approx(e[:3])


def test_a_study_of_donors_matched_in_the_truth() -> None:
    """Whole states of starts at which the cause is low, put into those at which it is high, and the reverse."""
    agent = PlantedAgent(OPTIONS)
    pools = (lambda slots: PlantedWorld(OPTIONS, slots),) * 2
    edits = parse_world_edits(("stimulus_0 = -2",), NAMES)
    asked = options("patch neurons:all clean high matched age stimulus_5 on value", "collapse neurons:1 on event:gains",
                    events=("high: stimulus_0 > 0", "gains: rises(stimulus_2)"))  # fmt: skip
    result = alone(agent, pools, neurons(), asked, torch.device("cpu"), truth=NAMES, edits=edits)
    rows = {(r["hypothesis"], r["quantity"]): r for r in result.tables["effects"]}
    name = "patch neurons:all clean high (noising) matched age stimulus_5"
    assert rows[name + " on value", f"value@{K}"]["observed"] < 0 < rows[
        name.replace("noising", "denoising") + " on value", f"value@{K}"]["observed"]  # fmt: skip
    assert any(q == f"event:gains@{K}" for _, q in rows)
    assert {k: v.strip() for k, v in result.notes["events"].items()} == {
        "high": "stimulus_0 > 0",
        "gains": "rises(stimulus_2)",
    }
    assert result.scalars["twin_difference"]["value"] == 0
    assert {row["edit"] for row in result.tables["world_edits"]} == {"stimulus_0 = -2"}
