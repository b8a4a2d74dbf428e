"""The rule that tells a behaviour from the present hidden state, and interventions that act only inside one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agents.record import repr_of
from core import artefacts, config as cli
from core.artefacts import Result
from core.conditions import Condition, Where, parse_conditions
from core.contracts import UserError
from core.directions import Basis
from core.episodes import StoreWriter
from core.interventions import InterventionOptions, Shift, Tally, When, build, nothing_altered
from core.when import fit, load_rule
from envs.planted import PlantedOptions, record_planted, spec_of

OPTIONS = PlantedOptions(kind="mixture", dwell=8)
ALL = torch.ones(4, dtype=torch.bool)


def planted_labels(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden states, true behaviours and episodes of the planted mixture."""
    episodes = record_planted(OPTIONS, episodes=24, steps=40, seed=seed)
    h, label = (np.concatenate([x[: e.steps] for x, e in zip(xs, episodes, strict=True)]) for xs in (
        [e.h for e in episodes], [e.truth["behaviour"] for e in episodes]))  # fmt: skip
    return h, label, np.concatenate([np.full(e.steps, i) for i, e in enumerate(episodes)])


def test_the_rule_finds_the_planted_behaviours_and_says_how_often() -> None:
    h, label, episode = planted_labels()
    rule = fit(h, label, episode)
    assert rule.facts["found"] > 0.9 > 0.4 > rule.facts["chance"]
    fresh_h, fresh_label, _ = planted_labels(seed=1)
    right = float((rule(torch.from_numpy(fresh_h)).numpy() == fresh_label).mean())
    assert right == pytest.approx(rule.facts["found"], abs=0.03), "what it says of itself holds on episodes never seen"
    low, high = rule.facts["found_interval"]
    assert low < rule.facts["found"] < high and rule.facts["episodes"] == 24
    said = rule.said_of((2,))["of_behaviour"]
    assert set(said) == {"2"} and said["2"]["found"] > 0.8


def test_a_rule_that_can_tell_nothing_says_chance() -> None:
    h, label, episode = planted_labels()
    shuffled = np.random.default_rng(0).permutation(label)
    assert fit(h, shuffled, episode).facts["found"] < fit(h, shuffled, episode).facts["chance"] + 0.05


def test_a_behaviour_of_one_step_is_no_matter_for_a_warning() -> None:
    h, label, episode = planted_labels()
    label[5] = 9
    assert fit(h, label, episode).facts["of_behaviour"]["9"]["share"] == pytest.approx(1 / len(label))


@pytest.mark.parametrize("names", [(3, 7), (1, 4, 6)])
def test_two_behaviours_and_gaps_in_their_numbers(names: tuple[int, ...]) -> None:
    h, label, episode = planted_labels()
    keep = label < len(names)
    named = np.array(names)[label[keep]]
    rule = fit(h[keep], named, episode[keep])
    assert set(rule(torch.from_numpy(h[keep])).tolist()) == set(names) and rule.facts["found"] > 0.9
    with pytest.raises(UserError, match=rf"behaviour 0 does not exist; there are: {names[0]}"):
        rule.check((0,))


def test_no_behaviour_is_none_to_ask_for() -> None:
    h, label, episode = planted_labels()
    rule = fit(h, np.where(label == 3, -1, label), episode)
    assert -1 in rule(torch.from_numpy(h)).tolist()
    with pytest.raises(UserError, match="behaviour 9 does not exist; there are: 0, 1, 2$"):
        rule.check((9,))


def test_one_behaviour_alone_is_refused() -> None:
    h, label, episode = planted_labels()
    with pytest.raises(UserError, match="only behaviour 0 has real steps"):
        fit(h, 0 * label, episode)


def test_only_inside_the_behaviour() -> None:
    h, label, episode = planted_labels()
    rule = fit(h, label, episode)
    eye = torch.eye(8)
    shift = Shift(Basis("neurons", torch.zeros(8), torch.ones(8), eye, eye), (0,), (5.0,))
    states = torch.from_numpy(h[:200])
    everywhere, t = torch.ones(200, dtype=torch.bool), torch.zeros(200, dtype=torch.int64)
    told = rule(states)
    out = When((shift, shift), Where((Condition(1), Condition(3)), rule=rule))(states, t, everywhere)
    inside = (told == 1) | (told == 3)
    assert 20 < int(inside.sum()) < 180
    assert torch.equal(out[~inside], states[~inside])
    # Told once, before anything is changed: the second one acts where the first one did.
    torch.testing.assert_close(out[inside, 0], states[inside, 0] + 10)
    assert torch.equal(When((shift,), Where((Condition(1),), rule=rule))(states, t, ~everywhere), states)


def test_a_tally_changes_nothing_and_remembers_where_something_was_changed() -> None:
    h = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    eye = torch.eye(8)
    shift = Shift(Basis("neurons", torch.zeros(8), torch.ones(8), eye, eye), (0,), (1.0,))
    tally = Tally((shift,))
    mask, t = torch.tensor([True, False, True, False]), torch.zeros(4, dtype=torch.int64)
    assert torch.equal(tally(h, t, mask), shift(h, t, mask)) and torch.equal(tally.altered[0], mask)


# From a run directory


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A behaviours run directory of the mixture's true labels, and its agent."""
    root = tmp_path_factory.mktemp("when")
    episodes = record_planted(OPTIONS, episodes=12, steps=30)
    with artefacts.new_run(root / "rollouts", "record", {}) as run, StoreWriter(run.path) as writer:
        artefacts.write_json(run.path / "spec.json", spec_of(OPTIONS, 1).to_json())
        for e in episodes:
            writer.add(e)
        run.facts = {"agent": "abc", "source": "real"}
    index = np.array([(i, t) for i, e in enumerate(episodes) for t in range(2, e.steps)])
    labels = np.array([episodes[i].truth["behaviour"][t] for i, t in index])
    with artefacts.new_run(root / "behaviours", "behaviours", {}, {"rollouts": root / "rollouts"}) as run:
        Result(arrays={"index_real": index, "labels_real": labels}).save(run.path)
        run.facts = {"agent": "abc"}
    with artefacts.new_run(root / "hidden_states", "hidden_states", {}) as run:
        eye = torch.eye(8)
        Basis("neurons", torch.zeros(8), torch.ones(8), eye, eye, agent="abc").save(run.path)
    return root, "abc"


def options(root: Path, *when: str, **more: object) -> InterventionOptions:
    fields = {"basis": root / "hidden_states", "basis_kind": "neurons", "behaviours": root / "behaviours"}
    return InterventionOptions(**fields | {"shift": ("0=1",), "when": when} | more)  # type: ignore[arg-type]


def test_the_rule_of_one_episode_has_no_interval(tmp_path: Path) -> None:
    """What it says goes into a manifest, which holds no NaN."""
    rng = np.random.default_rng(0)
    rule = fit(rng.standard_normal((40, 3)), np.arange(40) % 2, np.zeros(40))
    artefacts.write_json(tmp_path / "facts.json", rule.said_of((0, 1)))
    assert cli.read_json(tmp_path / "facts.json")["found_interval"] == [None, None]


def test_what_no_episode_held_out_can_ask_is_not_said_to_be_found() -> None:
    """Of one episode nothing is held out; of two, one without the other behaviour fits no rule.  What nobody asked was
    counted as told to be in no behaviour, right where it was in none."""
    h_NH, label_N = np.random.default_rng(0).standard_normal((40, 3)), np.arange(40) % 2 - 1
    facts = fit(h_NH, label_N, np.zeros(40)).facts
    assert np.isnan(facts["found"]) and facts["episodes"] == 0
    assert {of["found"] for of in facts["of_behaviour"].values()} == {None}
    two = fit(h_NH, np.where(np.arange(40) < 20, -1, label_N), np.arange(40) // 20).facts
    assert two["episodes"] == 1 and two["of_behaviour"]["0"]["found"] is None, "the second episode alone fits a rule"


def test_build_wraps_everything_in_one_rule(labelled: tuple[Path, str]) -> None:
    root, agent = labelled
    (when,) = build(options(root, "behaviour=1", "behaviour=2", at_steps=("3", "5")), agent)
    assert isinstance(when, When) and when.where.conditions == (Condition(1), Condition(2))
    assert when.where.rule is not None and when.where.rule.facts["found"] > 0.9
    h = torch.randn(4, 8) * 3
    assert torch.equal(when(h, torch.full((4,), 2), ALL), h)  # not at step 2
    given = options(root, "behaviour=1").inputs
    assert given == {"hidden_states": root / "hidden_states", "behaviours": root / "behaviours"}
    assert options(root).inputs == {"hidden_states": root / "hidden_states"}
    assert InterventionOptions(when=("behaviour=1",)).inputs == {}


def test_a_coordinate_beyond_a_number_needs_no_behaviours(labelled: tuple[Path, str]) -> None:
    root, agent = labelled
    given = options(root, "neurons:2", "above", "0.5", "2 below -1", behaviours=Path("nowhere"))
    assert given.inputs == {"hidden_states": root / "hidden_states"}
    (when,) = build(given, agent)
    assert isinstance(when, When) and [one.words for one in when.where.conditions] == [
        "neurons:2 above 0.5", "neurons:2 below -1",
    ]  # fmt: skip
    h = torch.tensor([0.4, 0.6, -0.9, -1.1])[:, None].repeat(1, 8)
    assert ((when(h, torch.zeros(4), ALL) != h).any(-1)).tolist() == [False, True, False, True]
    assert repr_of(when)["conditions"] == ["neurons:2 above 0.5", "neurons:2 below -1"]
    assert "never with 2 below -1 (--when)" in nothing_altered(options(root, "2 below -1"))
    both = Where(parse_conditions(("behaviour=1", "0 above 9"), when.where.basis, "--when"), when.where.basis,
                 load_rule(root / "behaviours", agent))  # fmt: skip
    inside = Where((Condition(1),), rule=both.rule)(h)
    assert torch.equal(both(h), inside) and set(both.to_json()) == {"conditions", "rule"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("3",), "expected behaviour=ID"),
        (("behaviour=x",), "expected behaviour=ID"),
        (("behaviour=-1",), "expected behaviour=ID"),
        (("colour=1",), "expected behaviour=ID"),
        (("neurons:0 above",), "--when 'neurons:0 above': expected behaviour=ID, or a direction above or below"),
        (("ica:0 above 1",), "of another basis than neurons"),
        (("neurons:8 above 1",), "direction neurons:8 does not exist"),
        (("neurons:0 above inf",), "'inf' is no finite number"),
        (("behaviour=9",), "behaviour 9 does not exist; there are: 0, 1, 2, 3"),
    ],
)
def test_refusals(labelled: tuple[Path, str], words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build(options(labelled[0], *words), "abc")


def test_more_refusals(labelled: tuple[Path, str], tmp_path: Path) -> None:
    root, agent = labelled
    with pytest.raises(UserError, match="--when needs an intervention"):
        build(InterventionOptions(when=("behaviour=1",)), agent)
    with pytest.raises(UserError, match="behaviours of agent abc, not of other"):
        load_rule(root / "behaviours", "other")
    with pytest.raises(UserError, match="a 'behaviours' directory is needed"):
        load_rule(root / "rollouts", agent)
    import shutil

    shutil.copytree(root, tmp_path / "copy")
    with open(tmp_path / "copy" / "rollouts" / "manifest.json", "a") as file:
        file.write(" ")
    with pytest.raises(UserError, match="is gone or has changed; run behaviours again"):
        load_rule(tmp_path / "copy" / "behaviours", agent)
    with np.load(root / "behaviours" / "arrays.npz") as file:
        arrays = dict(file)
    with artefacts.new_run(tmp_path / "one", "behaviours", {}) as run:
        Result(arrays=arrays | {"labels_real": 0 * arrays["labels_real"] + 1}).save(run.path)
        run.facts = {"agent": agent}
    with pytest.raises(UserError, match="one: only behaviour 1 has real steps, .* leave out --behaviours, or cluster"):
        load_rule(tmp_path / "one", agent)
    assert parse_conditions(("behaviour=3",), None, "--when") == (Condition(behaviour=3),)
