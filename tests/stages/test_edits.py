"""Edits of the real game: the stage at debug size, its ways and its past, in the real environment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.load import load_agent
from analysis.coupling.config import CouplingConfig
from analysis.hidden_states import HiddenStatesConfig
from analysis.shared.directions import neuron_basis
from analysis.shared.edit_starts import EditStarts, collect, fits
from core import config as cli
from core.artefacts import Result, new_run, read_manifest
from core.contracts import UserError
from core.directions import Basis, fingerprint
from core.interventions import AtSteps, Resample
from core.stats import Estimate, gain_not_met
from core.when import Rule
from envs.procgen import ProcgenEnv, ProcgenOptions
from envs.procgen_edits import Edit, parse_edit
from envs.procgen_state import State, snapshot_of, state_of
from envs.procgen_tracks import TakenBack
from tests.pretend_gpu import GPU, pretended
from validation.edits import __main__ as edits
from validation.edits.controls import another, choices, others
from validation.edits.coupled import Edge, Tried, judged, tried
from validation.edits.course import AllElse, EditedWorld, differs
from validation.edits.study import EditOptions, _measured, _ways, study
from validation.hypotheses.grammar import parse_edit_hypothesis
from validation.interventions.statistics import special_p
from validation.paired.course import Measures

AGENT = Path("bundles/coinrun-context/agent")
CPU = torch.device("cpu")
SLOTS, HORIZON = 6, 4


@contextlib.contextmanager
def world_on(device: torch.device) -> Iterator[EditedWorld]:
    """The bundled agent at starts with a crate or a coin in the picture."""
    agent = load_agent(AGENT, device)
    shown = {"restrict_themes": False, "use_backgrounds": True, "start_level": 700_000_000}
    made = [ProcgenEnv(ProcgenOptions(**{**agent.spec.options, **shown}), SLOTS) for _ in range(3)]
    edit = parse_edit("remove crate", "coinrun")
    starts = collect(agent, made[0], [edit], SLOTS, initial_frames=3, latest=12, seed=1, greedy=False, device=device)
    noise = torch.zeros(SLOTS, HORIZON + 1, agent.spec.n_actions, device=device)
    yield EditedWorld(agent, made[1], made[2], starts, noise)
    for env in made:
        env.close()


@pytest.fixture(scope="module")
def world() -> Iterator[EditedWorld]:
    with world_on(CPU) as made:
        yield made


def fixed(world: EditedWorld, text: str) -> list[Edit | None]:
    edit = parse_edit(text, "coinrun")
    return [fits(edit, s) for s in world.starts.states]


def nobody(world: EditedWorld) -> list[Edit | None]:
    return [None] * len(world.starts)


def test_starts_hold_all_that_another_past_needs(world: EditedWorld) -> None:
    starts: EditStarts = world.starts
    assert len(starts) == SLOTS and starts.frames["frames"].shape[:2] == (SLOTS, 3)
    assert [len(a) for a in starts.actions] == starts.age_N.tolist()
    # The recorded actions lead from the episode's first state to the start, bit by bit.
    now = world.env.restore(starts.begin)
    for t in range(int(starts.age_N.max()) + 1):
        here = world.env.snapshot()
        for n in np.flatnonzero(starts.age_N == t):
            assert here[n] == starts.states[n]
            assert np.array_equal(now.obs["frames"][n], starts.frames["frames"][n, -1])
        now = world.env.step(np.array([a[t] if t < len(a) else 4 for a in starts.actions]))


def test_an_unedited_twin_is_the_same_and_an_edit_is_seen(world: EditedWorld) -> None:
    plain = world.course(nobody(world))
    assert differs(plain, world.course(nobody(world))) == 0
    whole = world.course(fixed(world, "remove crate"))
    assert whole.rows_N.all() and (plain.frames[:, 0] != whole.frames[:, 0]).any((1, 2, 3)).all()
    assert (plain.course.logits_RTA[:, 0] != whole.course.logits_RTA[:, 0]).any(1).all()


def test_what_only_the_picture_shows_goes_through_the_pixels_alone(world: EditedWorld) -> None:
    plain = world.course(nobody(world))
    for text in ("set wall_theme 3", "set background 5", "set agent_theme 2"):
        edit = fixed(world, text)
        whole, pixels, physics = (world.course(edit, way) for way in ("whole", "pixels", "world"))
        assert np.array_equal(whole.frames, pixels.frames) and differs(whole, pixels) == 0
        assert (plain.frames[:, 0] != whole.frames[:, 0]).any()
        assert np.array_equal(physics.frames, plain.frames) and differs(physics, plain) == 0


def test_what_the_picture_does_not_show_has_no_way_through_it(world: EditedWorld) -> None:
    still = fixed(world, "set velocity 0.3 0")
    with pytest.raises(UserError, match="no way through the pixels"):
        world.course(still, "pixels")
    assert differs(world.course(still), world.course(nobody(world))) > 0


def test_a_removed_thing_is_still_shown_where_only_the_world_is_edited(world: EditedWorld) -> None:
    plain = world.course(nobody(world))
    physics = world.course(fixed(world, "remove crate"), "world")
    assert np.array_equal(physics.frames[:, 0], plain.frames[:, 0])
    assert torch.equal(physics.course.logits_RTA[:, 0], plain.course.logits_RTA[:, 0])


def test_since_the_episode_the_agent_has_never_seen_it(world: EditedWorld) -> None:
    edit = fixed(world, "remove crate")
    since = world.course(edit, "whole", "episode")
    whole = world.course(edit)
    rows = since.rows_N & ~since.apart_N
    assert rows.any()
    same = (since.frames[rows, 0] == whole.frames[rows, 0]).all()
    h_since, h_whole = since.course.h_RTH, whole.course.h_RTH
    assert same and h_since is not None and h_whole is not None
    seen_before = world.starts.age_N[rows] > 0
    assert (h_since[rows, 0] != h_whole[rows, 0]).any(1)[seen_before].any()


def test_a_past_is_replayed_where_the_agent_computes(world: EditedWorld) -> None:
    """The recorded actions stayed on the CPU, so that ``since episode`` ended in an error on a GPU."""
    edits = fixed(world, "remove crate")
    with pretended(), world_on(GPU) as on_gpu:
        there = on_gpu.course(edits, since="episode")
    assert np.array_equal(there.frames, world.course(edits, since="episode").frames)


def test_since_the_episode_it_may_be_missing_from_the_pictures_alone(world: EditedWorld) -> None:
    edit = fixed(world, "remove crate")
    since, pixels = world.course(edit, "pixels", "episode"), world.course(edit, "pixels")
    whole = world.course(edit, "whole", "episode")
    rows = since.rows_N
    assert rows.any() and not since.apart_N.any() and (rows >= whole.rows_N).all()
    # The world is the unedited one, so that what is shown at the start is what is shown of an edit made there.
    assert np.array_equal(since.frames[rows, 0], pixels.frames[rows, 0])
    h_since, h_pixels = since.course.h_RTH, pixels.course.h_RTH
    assert h_since is not None and h_pixels is not None and (h_since[rows, 0] != h_pixels[rows, 0]).any()
    with pytest.raises(ValueError, match="whole way, or through the pixels"):
        world.course(edit, "world", "episode")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("remove crate nearest", "of another object of the picture"),
        ("remove crate", "of all objects of another kind"),
        ("add saw ahead 3", "at another place of the picture"), ("set velocity 0 0", ""), ("move agent by 0 1", ""),
    ],
)  # fmt: skip
def test_the_same_edit_of_something_else(world: EditedWorld, text: str, what: str) -> None:
    rng, found = np.random.default_rng(0), 0
    assert another(parse_edit(text, "coinrun"), "coinrun") == what
    for own, snapshot in zip(fixed(world, text), world.starts.states, strict=True):
        more = [] if own is None else others(own, snapshot, 3, rng)
        assert len(more) <= 3 and len({one.words for one in more}) == len(more)
        for one in more:
            assert own is not None and one.words != own.words and fits(one, snapshot) == one
            assert one.verb == own.verb and (one.thing == own.thing or own.verb != "add")
        found += len(more)
    assert bool(found) == bool(what)


def test_an_edit_is_special_where_it_does_more_than_others_would() -> None:
    rng = np.random.default_rng(0)
    own, others_KN = np.ones(30), rng.normal(0, 0.3, (3, 30))
    others_KN[1:, ::2] = np.nan  # fewer there
    assert special_p("q", 1.0, choices("q", own, others_KN, rng)) < 0.01
    like = rng.normal(0, 1, (4, 30))
    p = [special_p("q", float(own.mean()), choices("q", own, rest, rng))
         for own, rest in ((row, np.delete(like, i, 0)) for i, row in enumerate(like))]  # fmt: skip
    assert max(p) > 0.2
    # Others that do as much or more the other way make every mixture small, and it no more special.
    for does, kinds in ((2.0, 1), (1.0, 2)):
        rest = does + rng.normal(0, 0.3, (kinds, 64))
        own = -1 + rng.normal(0, 0.3, 64)
        assert special_p("q", float(own.mean()), choices("q", own, rest, rng)) > 0.2
    own = np.ones(30)
    # With nothing else anywhere it is one of its like, and that is all that can be said.
    assert special_p("q", 1.0, choices("q", own, np.full((1, 30), np.nan), rng)) == 1


@pytest.mark.parametrize("text", ["remove crate nearest", "remove coin", "move coin by -1 0", "add saw ahead 2",
                                  "set wall_theme 2", "move crate nearest by 0 3", "add wall ahead 3"])  # fmt: skip
def test_an_edit_that_is_taken_back_shows_what_was_there(world: EditedWorld, text: str) -> None:
    before = list(world.starts.states)
    plain = world.drawer.restore(before).obs["frames"].copy()
    tried = 0
    for n, snapshot in enumerate(before):
        old = state_of(snapshot)
        try:
            new = parse_edit(text, "coinrun").fixed(old).apply(state_of(snapshot))
        except UserError:
            continue
        tried += 1
        edited = State.parse(new.to_bytes())
        before[n] = snapshot_of(TakenBack(old, new).at_once(edited), snapshot)
    assert tried and np.array_equal(world.drawer.restore(before).obs["frames"], plain)


def run(out: Path, *argv: object) -> Result:
    words = ["--out", str(out), "--starts", "8", "--horizon", "2", "--latest_start", "8", "--threads", "1"]
    edits.main(cli.parse(edits.EditsConfig, [*words, *map(str, argv)], edits.STAGE))
    return Result.load(out)


def test_the_stage_says_what_was_seen_and_foretold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = (
        "--controls",
        "2",
        "--edits",
        "remove crate",
        "set velocity 0.2 0",
        "remove crate on value",
        "remove crate through pixels since episode on prob:jump",
        "remove crate necessary for jump_started",
        "remove crate sufficient for jump_started",
    )
    result = run(tmp_path / "e", "--simulator", "bundles/coinrun-context/simulator", *two)
    rows = result.tables["effects"]
    assert {row["way"] for row in rows if row["edit"] == "remove crate"} >= {"whole", "pixels", "world"}
    assert {row["edit"] for row in rows} == {"remove crate", "set velocity 0.2 0"}, "what is claimed of one is run once"
    assert {row["way"] for row in rows if row["edit"] != "remove crate"} == {"whole"}
    assert result.scalars["twin_difference"]["value"] == 0
    late = [row for row in rows if row["way"] == "whole" and row["late"]]
    assert all(row["verdict"] in ("confirmed", "refuted", "no effect", "open") for row in late)
    assert all("foretold" in row for row in late)
    claims = result.notes["claims"]
    assert [claim["hypothesis"] for claim in claims] == [
        "remove crate", "set velocity 0.2 0", "remove crate on value",
        "remove crate through pixels since episode on prob:jump", "remove crate", "remove crate",
    ]  # fmt: skip
    for claim in claims:
        parts = claim["parts"]
        assert set(parts) == {"exists", "size", "special", "through_world", "needed"}
        answers = {name: part["answer"] for name, part in parts.items()}
        if claim["verdict"] == "confirmed":
            assert (answers["exists"], answers["size"]) == ("yes", "as foretold") and answers["special"] != "open"
    assert [c["parts"]["special"]["answer"] for c in claims][1] == "not asked"
    assert "nothing of its kind" in claims[1]["parts"]["special"]["words"]
    assert "of all objects of another kind" in claims[2]["parts"]["special"]["words"]
    assert claims[3]["parts"]["size"]["answer"] == "not asked" and claims[3]["way"] == "pixels, since the episode"
    need, sufficient = result.tables["needs"]
    assert (need["event"], need["role"], need["claimed"]) == ("jump_started", "necessary", True)
    assert "is necessary for 'jump_started'" in claims[4]["text"]
    assert "unaltered/first:jump_started" in result.arrays  # when it comes is told in the claim, and judged nowhere
    assert need["horizon"] == 2 and need["contrary_n"] > 0
    changed_N, alone_N = (
        result.arrays[f"{of}/event:jump_started@2"] for of in ("effect/remove crate/whole", "unaltered")
    )
    asked_N = ~np.isnan(changed_N) & (alone_N == 0)
    assert sufficient["role"] == "sufficient" and sufficient["n"] == need["contrary_n"] == asked_N.sum()
    assert sufficient["share"] == pytest.approx(changed_N[asked_N].mean()) and 0 <= sufficient["expected"] <= 1
    assert "is sufficient for 'jump_started': within 2 steps" in claims[5]["text"]
    assert not any(row["quantity"].startswith("first:") for row in result.tables["effects"])
    said = capsys.readouterr().out
    assert "'remove crate' changes reward plus value after 2 steps" in said and "foretold" in said
    for name in ("effects.png", "frames.png", "effects.csv"):
        assert (tmp_path / "e" / name).stat().st_size > 0
    assert set(read_manifest(tmp_path / "e")["inputs"]) == {"simulator"}


def test_directions_are_set_back_in_the_edited_world(world: EditedWorld) -> None:
    edit, plain = fixed(world, "remove crate"), world.course(nobody(world))
    h_NH = plain.course.h_RTH[:, 0]  # type: ignore[index]
    size = h_NH.shape[1]
    basis = neuron_basis(h_NH.numpy() + np.random.default_rng(0).normal(size=h_NH.shape))
    every = tuple(range(basis.size))
    assert basis.size == size
    whole = world.course(edit)
    # Everything set back: at once it acts as if nothing had been edited.  Nothing but the directions: as edited.
    back = world.course(edit, intervene=(AtSteps(Resample(basis, every, h_NH), 0, 1),))
    rest = world.course(edit, intervene=(AtSteps(AllElse(basis, every, h_NH), 0, 1),))
    for one, other in ((back, plain), (rest, whole)):
        assert torch.allclose(one.course.logits_RTA[:, 0], other.course.logits_RTA[:, 0], atol=1e-4)
    assert not torch.allclose(whole.course.logits_RTA[:, 0], plain.course.logits_RTA[:, 0], atol=1e-3)
    measures = Measures(world.agent.spec.distinct_actions(), basis, (0, 3))
    seen, _ = _ways(world, edit, measures, _measured(plain.course, measures), plain, (0, 3))
    since = {"since the episode", "pixels, since the episode"}
    assert set(seen) == {"whole", "pixels", "world", "set back", "all else set back", *since}
    moved = (whole.course.h_RTH[:, 0] - h_NH)[:, 3].double().numpy()  # type: ignore[index]
    scale = seen["whole"][basis.names[3]] / np.where(moved == 0, np.nan, moved)
    assert np.nanstd(scale) < 1e-3 * abs(np.nanmean(scale)) and basis.names[3] not in seen["set back"]


def test_an_edit_inside_a_behaviour_is_about_starts_inside_it(
    world: EditedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, size = world.agent, world.agent.points["h"]
    weight = torch.zeros(size, 2)
    weight[0, 1] = 1.0
    rule = Rule(weight, torch.zeros(2), torch.tensor([0, 1]))  # behaviour 1: the first neuron is above 0
    hypothesis = parse_edit_hypothesis("set velocity 0 0 when behaviour=1 on value", "coinrun")
    options = EditOptions(hypotheses=(hypothesis,), starts=8, horizon=2, latest=8, seed=0, greedy=True)
    spec = replace(agent.spec, options={**agent.spec.options, "start_level": 700_000_000})
    made = lambda slots: ProcgenEnv(ProcgenOptions(**spec.options), slots)  # noqa: E731
    result = study(agent, made, options, rule=rule, device=CPU)
    assert result.tables["edits"] == [{"edit": "set velocity 0 0 when behaviour=1", "starts": 8, "fits": 8}]
    monkeypatch.setattr("analysis.shared.edit_starts.GIVE_UP_STEPS", 40)
    with pytest.raises(UserError, match="of 8 starts after"):
        never = replace(rule, bias_C=torch.tensor([1e9, 0.0]))
        study(agent, made, options, rule=never, device=CPU)


@pytest.fixture(scope="module")
def coupling(world: EditedWorld, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A coupling run that drew two effects of neuron 3."""
    root = tmp_path_factory.mktemp("coupling")
    h_NH = world.course(nobody(world)).course.h_RTH
    assert h_NH is not None
    states = h_NH.flatten(0, 1).numpy()
    basis = neuron_basis(states + np.random.default_rng(0).normal(size=states.shape))
    agent = fingerprint(world.agent)
    with new_run(root / "states", "hidden_states", HiddenStatesConfig()) as run:
        replace(basis, agent=agent).save(run.path)
    own = {"source": basis.names[3], "target": basis.names[3], "lag": 1, "name": "behaviour 0", "J": 0.9}
    edges = [own, {**own, "target": basis.names[5], "J": 0.5}, {**own, "target": basis.names[7], "lag": 2, "J": -0.4}]
    with new_run(root / "coupling", "coupling", CouplingConfig(), {"hidden_states": root / "states"}) as run:
        Result(tables={"edges": edges}, notes={"basis_kind": basis.kind}).save(run.path)
        run.facts = {"agent": agent}
    return root / "coupling"


def test_what_coupling_drew_is_tried(coupling: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path / "e", "--agent", AGENT, "--edits", "remove crate", "--coupling", coupling, "--controls", 0)
    rows = result.tables["coupling"]
    names = [row["quantity"] for row in rows]
    assert {"policy", "policy@1..2", "value", "value@2"} < set(names)
    assert {row["source"] for row in rows} == {"neurons:3"}
    assert sorted(q for q in names if q.startswith("neurons")) == ["neurons:5@1", "neurons:7@2"]
    for row in rows:
        assert row["random_n"] == 39 and row["random_low"] <= row["random_high"] and row["low"] <= row["high"]
        answers = (row["moves"], row["restores"], row["special"])
        assert row["carries"] == ("yes" if set(answers) == {"yes"} else "no" if "no" in answers else "open")
    assert set(read_manifest(tmp_path / "e")["inputs"]) == {"agent", "coupling", "basis"}
    assert "neurons:3 set back" in capsys.readouterr().out


def test_setting_back_all_that_an_edit_moved_restores_the_action(world: EditedWorld) -> None:
    """A direction that is all of the edit carries the action; one that is none of it does not."""
    edit, plain = fixed(world, "remove crate"), world.course(nobody(world))
    whole = world.course(edit)
    h_plain, h_whole = plain.course.h_RTH, whole.course.h_RTH
    assert h_plain is not None and h_whole is not None
    for n in np.flatnonzero(whole.rows_N)[:2]:
        one = [e if i == n else None for i, e in enumerate(edit)]
        moved = (h_whole - h_plain)[n, 0]
        other = torch.randn(len(moved), generator=torch.Generator().manual_seed(0))
        other -= (other @ moved) / (moved @ moved) * moved
        lift = torch.stack([moved / moved.norm(), other / other.norm()])
        basis = Basis("own", torch.zeros(len(moved)), torch.ones(len(moved)), lift.T.contiguous(), lift)
        edges = [Edge(0, 1, 1, "", 1.0), Edge(1, 0, 1, "", 1.0)]
        rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
        found = {(t.row["source"], t.row["quantity"]): t for t in tried(
            world, "one", one, plain, world.course(one), basis, edges, 3, 0.1, rng, generator)}  # fmt: skip
        own, none = (found[name, "policy"] for name in basis.names)
        assert own.restored[0].value == pytest.approx(own.row["moved_by_edit"], abs=1e-5) and own.row["n"] == 1
        assert none.restored[0].value == pytest.approx(0, abs=1e-5)


def test_starts_that_were_not_met_may_show_as_much_as_a_policy_can(world: EditedWorld) -> None:
    """Of an edit that moves the policy at few starts none in hand may be such a start: the room was as large as the
    most that it moved at these."""
    edit, plain = fixed(world, "remove crate"), world.course(nobody(world))
    assert plain.course.h_RTH is not None
    lift = torch.eye(plain.course.h_RTH.shape[-1])[:2]
    basis = Basis("own", torch.zeros(lift.shape[1]), torch.ones(lift.shape[1]), lift.T.contiguous(), lift)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    found = tried(
        world, "all", edit, plain, world.course(edit), basis, [Edge(0, 1, 1, "", 1.0)], 1, 0.1, rng, generator
    )
    policies = [t for t in found if t.row["quantity"].startswith("policy")]
    assert policies
    for t in policies:
        (mean, mean_90, _), room = t.restored, gain_not_met(0.0, 0.0, t.row["n"], 0.9)
        assert t.row["moved_by_edit"] < 0.5 and mean_90.high >= mean.value + room and mean_90.low <= mean.value - room


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--edits", "remove coin when behaviour=1"), "give --behaviours"),
        (("--edits", "collapse 3"), "validation.interventions"),
        (("--edits", "remove coin sufficient for death"), "needs a simulator; say 'on event:death'"),
        (("--edits", "remove coin on event:deth"), "no quantity 'event:deth' .did you mean event:death"),
        (("--edits", "remove coin on prob:jmup"), "no quantity 'prob:jmup' .did you mean prob:jump"),
        (("--edits", "remove crate", "--coupling", "bundles/coinrun-context/agent"), "coupling"),
        (("--random_directions", "5"), "--random_directions must be"),
        (("--edits", "remove lava"), "can be made at|of 8 starts after"), (("--edits", "remove dragon"), "no 'dragon'"),
        (("--edits", "remove coin", "remove coin"), "there twice"), (("--directions", "0"), "give --basis"),
        (("--edits", "set wall_theme 2"), "all themes look the same"),
        (("--edits", "set velocity 99 0"), "velocities lie between"), (("--edits", "set background 999"), "background"),
        (("--edits", "move agent by 1e9 0"), "after 40 steps.*that were tried: .*is outside of a world"),
        (("--agent", "bundles/nmmo-demo/policies/forager"), "Procgen's states"),
        (("--starts", "2"), "--starts must be"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    tmp_path: Path, argv: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.shared.edit_starts.GIVE_UP_STEPS", 40)
    agent = () if "--agent" in argv else ("--agent", AGENT)
    with pytest.raises(UserError, match=said):
        run(tmp_path / "e", *agent, *argv)


def test_an_edit_that_no_start_takes_is_refused_with_the_reason(tmp_path: Path) -> None:
    said = r"can be made at 0 of 8 starts.* .elsewhere: .*outside of a world.*; ask for later ones"
    with pytest.raises(UserError, match=said):
        run(tmp_path / "e", "--agent", AGENT, "--edits", "remove crate", "move agent by 1e9 0")


def tried_row(source: str, moved: bool, restored: float) -> Tried:
    """A row of which nothing is in doubt but what it is special among."""
    row = {"edit": "remove coin", "source": source, "quantity": "policy", "unit": "", "n": 64, "moved_by_edit": 1.0}
    move = Estimate(float(moved), moved - 0.01, moved + 0.01, 64)
    back = Estimate(restored, restored - 0.01, restored + 0.01, 64)
    draws = np.random.default_rng(0).normal(0, 0.1, 39)
    return Tried(row, (move, move, 1e-6), (back, back, 1e-6), draws, 1.0, 0.1)


def test_a_source_that_carries_is_told_among_those_that_the_edit_moves() -> None:
    some = [tried_row(f"ica:{i}", i < 2, 0.5 if i == 0 else 0.0) for i in range(12)]
    rows = judged(some, 0.1)
    assert [row["carries"] for row in rows] == ["yes", *["no"] * 11]
    assert np.isnan(rows[5]["special_p"]) and rows[5]["special"] == "not asked"
    # Of more than 39 directions can single out, the row says how many could.
    rows = judged([tried_row(f"ica:{i}", True, 0.5 if i == 0 else 0.0) for i in range(12)], 0.1)
    assert rows[0]["carries"] == "open" and "--random_directions 239 could" in rows[0]["sentence"]
    assert "could" not in rows[1]["sentence"]


def test_a_claim_of_what_never_happens_unedited_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = ("--agent", "bundles/coinrun-robust/agent", "--starts", "16", "--horizon", "3", "--latest_start", "6")
    claims = ("--edits", "add coin ahead 1 on reward", "add coin ahead 1 on event:death", "--events", "death: ended")
    result = run(tmp_path / "e", *agent, *claims, "--controls", "0")
    assert (
        not result.arrays["unaltered/reward@3"].any() and result.arrays["effect/add coin ahead 1/whole/reward@3"].any()
    )
    reward, _ = result.notes["claims"]
    assert reward["quantity"] == "reward@3" and reward["effect"] > 0 and reward["spread"] > 0
    assert "so there is no claim" not in capsys.readouterr().out
