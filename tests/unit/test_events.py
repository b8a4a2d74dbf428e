"""Event expressions: what they mean, and that nothing but them is ever read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from analysis.shared.events import GENERIC, LONGEST, Rows, parse_condition, parse_event, parse_events
from core.contracts import UserError
from envs.procgen import GAMES, ProcgenEnv, ProcgenOptions

ACTIONS = ("left", "none", "up", "upleft", "upright")
JUMP = "action in (up, upleft, upright)"


def rows() -> Rows:
    """One start, four steps: value 0 1 2 3; reward -1 0 1 2; it ends after the last; left, up, upright, none."""
    action = torch.nn.functional.one_hot(torch.tensor([[0, 2, 4, 1]]), 5).float()
    value = torch.arange(4.0)[None]
    return Rows(value, value - 1, torch.tensor([[0.0, 0, 0, 1]]), action, 2 * action, torch.stack([value, -value], -1))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("value < 2", [1, 1, 0, 0]),
        ("value < 2 and action in (up, upleft, upright)", [0, 1, 0, 0]),
        ("reward >= 1 or action == left", [1, 0, 1, 1]),
        ("not ended", [1, 1, 1, 0]),
        ("ended and reward <= 0", [0, 0, 0, 0]),
        ("action != 'up'", [1, 0, 1, 1]),
        ("action not in [up, upright]", [1, 0, 0, 1]),
        ("0 < value <= 2", [0, 1, 1, 0]),
        ("value - previous(value) > 0.5", [0, 1, 1, 1]),
        ("previous(action) == left", [1, 1, 0, 0]),
        ("previous(previous(action)) == left", [1, 1, 1, 0]),
        (f"{JUMP} and not previous({JUMP})", [0, 1, 0, 0]),
        ("step == 3", [0, 0, 0, 1]),
        ("-value * 2 + 1 == -3", [0, 0, 1, 0]),
        ("direction(1) < -2", [0, 0, 0, 1]),
        ("prob(up) > 0.5", [0, 1, 0, 0]),
        ("logit(left) == 2", [1, 0, 0, 0]),
        ("True and not False", [1, 1, 1, 1]),
    ],
)
def test_what_expressions_mean(text: str, holds: list[int]) -> None:
    assert parse_event("it", text, ACTIONS, 2)(rows())[0].tolist() == holds


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("action == 'go 1'", [0, 1, 1, 0]),
        ("action in ('go 1', 'jump 1')", [0, 1, 1, 1]),
        ("action not in ('go 1', 'jump 1')", [1, 0, 0, 0]),
        ("action == 'go 1' and action != 'jump 1'", [0, 1, 0, 0]),
        ("previous(action) in ('go 0', 'jump 1')", [1, 1, 0, 1]),
        ("prob('jump 1') > 0.5", [0, 0, 1, 1]),
    ],
)
def test_of_several_parts_any_may_be_in_a_list(text: str, holds: list[int]) -> None:
    """Neither, go, both, jump."""
    names = ("go 0", "go 1", "jump 0", "jump 1")
    parts = torch.tensor([[[0, 0], [1, 0], [1, 1], [0, 1]]])
    action = torch.nn.functional.one_hot(parts, 2).flatten(2).float()
    of = replace(rows(), action_RTA=action, logits_RTA=2 * action, parts=(2, 2))
    assert parse_event("it", text, names, 2)(of)[0].tolist() == holds
    with pytest.raises(UserError, match="actions: 'go 0', 'go 1', 'jump 0', 'jump 1'"):
        parse_event("it", "action == go 1", names, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vlaue < 2", "no column 'vlaue' (did you mean value?)"),
        ("action == jump", "no action 'jump'"),
        ("action in (up, jump)", "no action 'jump'"),
        ("value <", "cannot read"),
        ("", "cannot read"),
        ("\x00", "cannot read"),
        ("(" * 150 + "value > 1" + ")" * 149, "cannot read"),
        ("value < 2" + " " * LONGEST + "and ended", "too long"),
        ("value", "is not a condition"),
        ("value in (1, 2)", "'in' asks for the action"),
        ("action in up", "is not a list of actions"),
        ("action in ()", "is not a list of actions"),
        ("action > 2", "compared with ==, != or in"),
        ("2 == action", "'action' is an action, not a number"),
        ("value < True", "is not a number"),
        ("value ** 2 > 1", "is not a number"),
        ("value.real > 1", "is not a number"),
        ("'a' < 'b'", "is not a number"),
        ("(lambda: 1)()", "is not a condition"),
        ("[x for x in value]", "is not a condition"),
        ("(value := 3) > 2", "is not a number"),
        ("f'{value}' == 'x'", "is not a number"),
        ("__import__('os').system('true') == 0", "no function"),
        ("print(value) > 1", "no function 'print'"),
        ("prob(up, left) > 1", "functions take one argument"),
        ("prob(*action) > 1", "functions take one argument"),
        ("rises(value) > 0", "is a condition, not a number"),
        ("rises(action)", "'action' is an action, not a number"),
        ("rises(value, 2)", "functions take one argument"),
        ("crosses(value)", "takes a number and a level"),
        ("crosses(*value)", "takes a number and a level"),
        ("previous() > 1", "functions take one argument"),
        ("previous(action, k=2) == up", "functions take one argument"),
        ("value < 1" + "0" * 350, "a number is too large"),
        ("-" * 390 + "1", "an expression nested this deep is not a condition"),
        ("direction(2) > 1", "the directions are 0 to 1"),
        ("direction(True) > 1", "the directions are 0 to 1"),
        ("direction(-1) > 1", "the directions are 0 to 1"),
    ],
)
def test_what_is_no_event_is_a_user_error_that_names_what_there_is(text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        parse_event("it", text, ACTIONS, 2)
    message = str(error.value)
    assert said in message and "\n" not in message and message.startswith("event 'it': ")
    if "too long" not in said:
        assert "columns: value, reward, ended, truncated, step, action" in message and "upright" in message


def test_lists_of_events() -> None:
    one, two = parse_events(["a: value < 2", " b : not ended"], ACTIONS, 2)
    assert (one.name, one.text.strip(), two.name) == ("a", "value < 2", "b")
    assert {e.name: e.text for e in parse_events([], ACTIONS, 2)} == GENERIC, "no words of any game"
    own = {"late": "step > 2"}
    assert [e.name for e in parse_events([], ACTIONS, 2, own=own)] == ["late"]
    assert [e.name for e in parse_events(["a: ended"], ACTIONS, 2, own=own)] == ["a"]
    for words, said in ((["value < 2"], "expected NAME: EXPRESSION"), (["a: ended", "a: ended"], "'a' twice"),
                        (["a b: ended"], "one word")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            parse_events(words, ACTIONS, 2)


def test_actions_that_do_the_same_mean_each_other() -> None:
    same = (("left", "none"), ("up", "upleft"))
    for text, holds in (
        ("action == left", [1, 0, 0, 1]), ("action == none", [1, 0, 0, 1]), ("action != left", [0, 1, 1, 0]),
        ("action in (upleft, upright)", [0, 1, 1, 0]), ("previous(action) == none", [1, 1, 0, 0]),
    ):  # fmt: skip
        assert parse_event("it", text, ACTIONS, 2, same)(rows())[0].tolist() == holds, text
    e = float(torch.tensor(2.0).exp())
    likely = (e + 1) / (e + 4)  # of a pair of which one has logit 2, among four others of 0
    for bound, holds in ((likely - 1e-3, [1, 0, 0, 1]), (likely + 1e-3, [0, 0, 0, 0])):
        assert parse_event("it", f"prob(none) > {bound}", ACTIONS, 2, same)(rows())[0].tolist() == holds
    event = parse_event("it", f"logit(none) > {float(torch.tensor([2.0, 0.0]).logsumexp(0)) - 1e-3}", ACTIONS, 2, same)
    assert event(rows())[0].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("game", GAMES)
def test_the_events_of_every_game_are_events_of_its_actions(game: str) -> None:
    spec = ProcgenEnv(ProcgenOptions(game=game), 1).spec
    found = parse_events([], spec.action_names, 2, spec.same_actions, spec.events)
    assert [e.name for e in found] == list(spec.events) and "reward" in spec.events
    assert ("jump_started" in spec.events) == (game in ("climber", "coinrun", "jumper", "ninja"))
    assert ("death" in spec.events) == (game not in ("heist", "maze", "plunder"))


def test_rate_and_first_happening_by_hand() -> None:
    weight = torch.tensor([[1.0, 0.5, 0.25, 0.125]])
    event = parse_event("it", "value > 0 and value < 3", ACTIONS, 2)  # at steps 1 and 2
    assert float(event.rate(rows(), weight)) == pytest.approx((0.5 + 0.25) / 4)
    assert float(event.happens(rows(), weight)) == 0.5  # it still goes on with this chance when it first happens
    assert event.first(rows(), weight).tolist() == [[0, 0.5, 0, 0]]
    assert float(event.wait(rows(), weight)) == 0.5 * 1 + 0.5 * 4  # after one step, or not within the four
    never = parse_event("no", "value > 9", ACTIONS, 2)
    assert float(never.happens(rows(), weight)) == 0 and float(never.wait(rows(), weight)) == 4


@pytest.mark.parametrize(
    "text", ["ended", "reward > 0", "reward <= 0", "ended and reward <= 0", "0 < reward < 5", "reward > 0 or ended",
             "not (ended and reward > 0)", "value > 1 and reward > 0"],
)  # fmt: skip
def test_in_a_simulator_an_event_has_the_chance_that_its_outcomes_give_it(text: str) -> None:
    """Of a world that foretells chances of a reward (of 10) and of an ending, against as many episodes drawn from it:
    rates, whether it happens at all, and when.  (A mean reward is hardly ever 0, and an ending seldom likelier than
    not: so a simulator foretold rewards always and deaths never.)"""
    generator = torch.Generator().manual_seed(0)
    draws, steps = 40_000, 6
    paid, ends = torch.rand(1, steps, generator=generator) * 0.4, torch.rand(1, steps, generator=generator) * 0.5
    value = torch.arange(float(steps))[None]
    one = torch.zeros(1, steps, 5)
    event = parse_event("it", text, ACTIONS, 0)
    paid_2 = torch.stack([paid, paid + 0.5], -1)  # where it ends, a reward is likelier
    mean = 10 * ((1 - ends) * paid_2[..., 0] + ends * paid_2[..., 1])
    foretold = Rows(value, mean, ends, one, one, one[..., :0], paid_RT2=paid_2)
    alive = torch.cat([torch.ones(1, 1), (1 - ends[:, :-1]).cumprod(1)], 1)
    over = torch.rand(draws, steps, generator=generator) < ends
    got = torch.rand(draws, steps, generator=generator) < torch.where(over, paid_2[..., 1], paid_2[..., 0])
    many = one.expand(draws, -1, -1)
    drawn = Rows(value.expand(draws, -1), 10.0 * got, over.float(), many, many, many[..., :0])
    on = torch.cat([torch.ones(draws, 1), (1 - over[:, :-1].float()).cumprod(1)], 1)
    for said, seen in ((event.rate(foretold, alive), event.rate(drawn, on)),
                       (event.happens(foretold, alive), event.happens(drawn, on)),
                       (event.wait(foretold, alive) / steps, event.wait(drawn, on) / steps)):  # fmt: skip
        assert float(said) == pytest.approx(float(seen.mean()), abs=0.01), text
    known = replace(drawn, paid_RT2=torch.ones(draws, steps, 2))  # a world that knows its rewards says the same
    assert torch.equal(event(known), event(drawn))


def test_an_event_of_the_action_keeps_its_gradient_and_a_threshold_has_none() -> None:
    from dataclasses import replace

    logits = torch.zeros(1, 4, 5, requires_grad=True)
    soft = logits.softmax(-1)
    now = replace(rows(), action_RTA=rows().action_RTA + soft - soft.detach())
    event = parse_event("it", f"{JUMP} and value > 1", ACTIONS, 2)(now)
    assert event.tolist() == [[0, 0, 1, 0]]
    (grad,) = torch.autograd.grad(event.sum(), logits)
    assert grad[0, :2].abs().max() == 0 < grad[0, 2, 2] and grad[0, 2, 0] < 0
    assert not parse_event("it", "value > 1", ACTIONS, 2)(now).requires_grad


# Truth

CRATE = torch.tensor([[0.0, 1, 1, 0]])
SAW = torch.tensor([[torch.nan, 3.0, 1.0, torch.nan]])


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("truth(on_crate)", [0, 1, 1, 0]),
        ("truth(on_crate) and not previous(truth(on_crate))", [0, 1, 0, 0]),
        ("truth('saw') < 2", [0, 0, 1, 0]),
        ("not truth(saw) < 2", [1, 1, 0, 1]),
        ("truth(saw)", [0, 1, 1, 0]),
        ("truth(saw) != 3", [1, 0, 1, 1]),
        ("previous(truth(saw)) - truth(saw) == 2", [0, 0, 1, 0]),
        ("action == up and truth(on_crate)", [0, 1, 0, 0]),
        ("on_crate and action == up", [0, 1, 0, 0]),  # a name that means nothing else
        ("saw < 2", [0, 0, 1, 0]),
        ("value < 2", [1, 1, 0, 0]),  # the agent's, not the truth column of that name
        ("truth(value) == 5", [1, 1, 1, 1]),
        ("rises(on_crate)", [0, 1, 0, 0]),
        ("falls(truth(on_crate)) or falls(saw)", [0, 0, 1, 1]),
        ("rises(saw)", [0, 0, 0, 0]),  # from nothing is no rise
        ("crosses(saw, 2)", [0, 0, 1, 0]),
        ("crosses(on_crate, 0.5) and not rises(on_crate)", [0, 0, 0, 1]),
        ("crosses(truth(value), value + 3.5)", [0, 0, 1, 0]),
        ("previous(rises(on_crate))", [0, 0, 1, 0]),
    ],
)
def test_events_read_the_truth(text: str, holds: list[int]) -> None:
    event = parse_event("it", text, ACTIONS, 2, (), ("on_crate", "saw", "value"))
    told = replace(rows(), truth={"on_crate": CRATE, "saw": SAW, "value": torch.full((1, 4), 5.0)})
    assert event(told)[0].tolist() == holds and not event.of_actions_alone
    read = {name for name in told.truth if f"{name}" in text and (name != "value" or "truth(value)" in text)}
    assert event.truths == read and ("truth" in event.reads) == bool(read)
    if "previous" in text or "(" in text.replace("truth(", ""):
        return  # what was a step earlier is not among some of the steps
    assert event(told[1:])[0].tolist()[-2:] == holds[-2:]


def test_truth_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"no truth column 'on_crat' \(did you mean on_crate\?\)"):
        parse_event("it", "truth(on_crat)", ACTIONS, 2, (), ("on_crate",))
    with pytest.raises(UserError, match="this has none"):
        parse_event("it", "truth(on_crate)", ACTIONS, 2)


def test_a_condition_is_over_the_truth_alone() -> None:
    names = ("on_crate", "saw")
    columns = {"on_crate": CRATE, "saw": SAW}
    for text, holds in (
        ("saw < 2", [0, 0, 1, 0]), ("on_crate and step > 1", [0, 0, 1, 0]),
        ("not on_crate or saw == 3", [1, 1, 0, 1]), ("previous(on_crate) == 1", [0, 0, 1, 1]),
    ):  # fmt: skip
        assert parse_condition("--where", text, names)(columns)[0].tolist() == [bool(h) for h in holds]
    for text, said in (
        ("sow < 2", r"no column 'sow' \(did you mean saw\?\)"), ("value < 2", "no column 'value'"),
        ("truth(saw) < 2", "no function 'truth'"), ("action == up", "no action"), ("ended", "not a condition"),
        ("saw <", "cannot read"), ("__import__('os')", "not a condition"), ("saw" + " " * 500, "too long"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"^--where: .*{said}"):
            parse_condition("--where", text, names)
