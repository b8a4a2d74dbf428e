"""Events that a user writes: small expressions over what is recorded a step, such as
``value < 2 and action in (up, upleft, upright)``.

An expression is parsed into Python's syntax tree and only the few kinds of node below are worked out, on tensors;
nothing is ever run as code.  Truth values are numbers, 1 and 0, ``and`` multiplies and ``not`` subtracts from 1, so
that an event of the action keeps the action's (straight-through) gradient.

Columns     value, reward (of the transition after the step), ended (that transition ends the episode), truncated (it
            ends it at a time limit, which is nothing that happened in the world: no death), step (0 at the change),
            action
Functions   prob(ACTION), logit(ACTION), direction(ID), previous(EXPRESSION): what it was a step earlier; at step 0,
            which has no earlier one, what it is now, so that nothing begins there
            truth(NAME), or NAME alone where it means nothing else: what was so in the world, where that is told (of
            recordings: record.py --truth); as a condition: it is not 0.  Where there is no such thing (NaN), neither it
            nor a comparison with it holds, != apart
            rises(NUMBER), falls(NUMBER): it is more, or less, than a step earlier; crosses(NUMBER, LEVEL): it is on the
            other side of the level than a step earlier.  Not at step 0, and not where either is NaN
Operators   and or not, < <= > >= == != in, not in, + - *, numbers

Names of actions that do the same in the world (EnvSpec.same_actions) mean all of them.  A name of more than one word
stands in quotes ('part_0 1').  Of an action of several parts, ``action in`` holds where any part is in the list.

In a simulator an ending has a chance, and so has a reward where the world tells it (Shown.paid_B2): an event that reads
them has the chance that it holds.  Of a world that foretells a mean reward alone that mean is compared, and so is what
an event reads of earlier steps.

At step 0, that of the change, value, logits, directions and action follow from the agent's weights alone, in both
worlds alike: an event that asks the world says ``step > 0 and ...``.  (Reward and endings of step 0 are the world's.)

A condition (``parse_condition``) is such an expression over names of truth columns alone, without ``truth()``.

R rows (starts), T steps.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from core.config import nearest
from core.contracts import UserError
from core.roll import probabilities

ENDINGS = ("ended", "truncated")
COLUMNS = ("value", "reward", *ENDINGS, "step", "action")
CHANGES = ("rises", "falls", "crosses")
FUNCTIONS = ("prob", "logit", "direction", "previous", "truth", *CHANGES)
LONGEST = 400  # characters: deep enough for any event, too few to nest the parser to death
GENERIC = {"ending": "ended", "reward": "reward > 0"}  # of a world that has no events of its own (EnvSpec.events)


@dataclass(frozen=True)
class Rows:
    """What expressions read, all [R, T, ...]; ``c`` are the directions' coordinates."""

    value_RT: Tensor
    reward_RT: Tensor
    ended_RT: Tensor  # 0 or 1; in a simulator the chance of it
    action_RTA: Tensor  # one-hot
    logits_RTA: Tensor
    c_RTK: Tensor
    parts: tuple[int, ...] = ()  # choices of each part of an action, where there are several
    truth: Mapping[str, Tensor] = field(default_factory=dict)  # [R, T] each, NaN where there is no such thing
    truncated_RT: Tensor | None = None  # 0 or 1; None: never, as in a simulator
    # The chance of a reward at all where the episode [goes on, ends]; reward_RT is the mean.  None: it is known.
    paid_RT2: Tensor | None = None

    def __getitem__(self, part: slice) -> Rows:
        """Some of the steps."""
        cut: dict[str, Any] = {name: x[:, part] for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **cut, truth={name: x[:, part] for name, x in self.truth.items()})


Read = Callable[[Rows], Tensor]


@dataclass(frozen=True)
class Event:
    """A named event.  Calling it gives its truth at every step, [R, T] of 0 and 1; in a simulator the chance of it."""

    name: str
    text: str
    holds: Callable[[Rows], Tensor]
    reads: frozenset[str] = frozenset()  # the columns and functions in it
    truths: frozenset[str] = frozenset()  # the truth columns in it
    looks_back: bool = False  # at an ending or a reward of an earlier step

    @property
    def of_actions_alone(self) -> bool:
        """Whether it is told by actions, rewards and endings: with those of another run it cannot change."""
        return self.reads <= {"action", "reward", *ENDINGS, "step"}

    def __call__(self, rows: Rows) -> Tensor:
        return self._where(rows, rows.ended_RT)

    def _where(self, rows: Rows, ends: Tensor) -> Tensor:
        """The same where the transitions end the episode with these chances [R, T]."""
        if rows.paid_RT2 is None or self.looks_back or not self.reads & {"reward", "ended"}:
            return self.holds(replace(rows, ended_RT=ends))
        none = torch.zeros_like(rows.reward_RT)
        paid_on, paid_end = rows.paid_RT2.unbind(-1)
        paid = (1 - rows.ended_RT) * paid_on + rows.ended_RT * paid_end
        size = torch.where(paid > 0, rows.reward_RT / paid.clamp(min=torch.finfo(paid.dtype).tiny), rows.reward_RT)
        out = none
        for of_end, ended, chance in ((1 - ends, none, paid_on), (ends, torch.ones_like(ends), paid_end)):
            for of_reward, reward in ((chance, size), (1 - chance, none)):
                out = out + of_end * of_reward * self.holds(replace(rows, reward_RT=reward, ended_RT=ended))
        return out

    def rate(self, rows: Rows, weight_RT: Tensor) -> Tensor:
        """Share of the T steps at which it happens [R]; a step after the episode's end is one without it."""
        return (weight_RT * self(rows)).mean(1)

    def first(self, rows: Rows, weight_RT: Tensor) -> Tensor:
        """Whether each step is the first at which it happens [R, T], a chance in a simulator; weight: the chance that
        the episode still goes on."""
        on_RT = self(rows)
        # That it has not happened yet is asked of episodes that went on.
        past_RT = self._where(rows, torch.zeros_like(rows.ended_RT))
        not_yet_RT = torch.cat([torch.ones_like(on_RT[:, :1]), (1 - past_RT[:, :-1]).cumprod(1)], 1)
        return weight_RT * on_RT * not_yet_RT

    def happens(self, rows: Rows, weight_RT: Tensor) -> Tensor:
        """Whether it happens at all [R]: the chance that the episode still goes on when it first does."""
        return self.first(rows, weight_RT).sum(1)

    def wait(self, rows: Rows, weight_RT: Tensor) -> Tensor:
        """How many of the T steps pass before it first happens [R], all T where it does not (the restricted mean
        survival time, where steps have chances; Royston and Parmar 2013, doi:10.1186/1471-2288-13-152)."""
        first_RT = self.first(rows, weight_RT)
        steps = first_RT.shape[1]
        return steps - (first_RT * torch.arange(steps, 0, -1).to(first_RT)).sum(1)


def parse_event(
    name: str, text: str, actions: Sequence[str], directions: int, same_actions: Sequence[Sequence[str]] = (),
    truth: Sequence[str] = (),
) -> Event:  # fmt: skip
    """An event; UserError where the expression does not parse or names what is not there.

    actions: the world's action names; directions: how many there are; same_actions: groups of actions that do the
    same, each of which means all of its group; truth: columns that truth() can name.
    """
    if not name.isidentifier():
        raise UserError(f"event {name!r}: its name must be one word of letters, digits and _")
    there = (
        f"columns: {', '.join(COLUMNS)}; functions: {', '.join(FUNCTIONS)}; actions: {', '.join(map(_named, actions))}"
    )
    reader = _Reader(tuple(actions), directions, tuple(map(tuple, same_actions)), tuple(truth), bare=True)
    tree, holds = _parsed(f"event {name!r}", text, reader, there)
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    asked = {ast.unparse(n.args[0]).strip("'") for n in ast.walk(tree) if isinstance(n, ast.Call)
             and reader.calls(n, "truth")}  # fmt: skip
    truths = (names & set(truth) - {*COLUMNS, *actions}) | asked
    found = names & {*COLUMNS, *FUNCTIONS} - {"previous", *CHANGES} | ({"truth"} if truths else set())
    back = (
        n for n in ast.walk(tree) if isinstance(n, ast.expr) and any(reader.calls(n, f) for f in ("previous", *CHANGES))
    )
    looks_back = any(isinstance(n, ast.Name) and n.id in ("reward", "ended") for b in back for n in ast.walk(b))
    return Event(name, text, holds, frozenset(found), frozenset(truths), looks_back)


def parse_condition(what: str, text: str, names: Sequence[str]) -> Callable[[Mapping[str, Tensor]], Tensor]:
    """A condition on columns: it takes {name: [R, T]} and gives its truth, bool [R, T].  UserError.

    what: where the words stand, such as --where."""
    reader = _Reader((), 0, (), tuple(names), columns=("step",), functions=("previous", *CHANGES), bare=True)
    tree, holds = _parsed(what, text, reader, f"names: {', '.join([*names, 'step'])}; functions: previous, "
                          f"{', '.join(CHANGES)}")  # fmt: skip
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}

    def of(columns: Mapping[str, Tensor]) -> Tensor:
        like = torch.zeros_like(next(iter(columns.values())))
        nothing = like[..., None]
        told = {name: x for name, x in columns.items() if name in read}
        return holds(Rows(like, like, like, nothing, nothing, nothing, truth=told)) > 0

    return of


def _parsed(what: str, text: str, reader: _Reader, there: str) -> tuple[ast.expr, Read]:
    """The tree and what works it out; UserError that begins with ``what`` and ends with what is ``there``."""
    if len(text) > LONGEST:
        raise UserError(f"{what}: {len(text)} characters are too long an expression; {LONGEST} at most")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f"{what}: cannot read {text!r}; there are {there}") from None
    try:
        return tree, reader.truth(tree)
    except _Unreadable as error:
        raise UserError(f"{what}: {error}; there are {there}") from None


def parse_events(
    words: Sequence[str], actions: Sequence[str], directions: int, same_actions: Sequence[Sequence[str]] = (),
    own: Mapping[str, str] | None = None, truth: Sequence[str] = (), told: Mapping[str, str] | None = None,
) -> tuple[Event, ...]:  # fmt: skip
    """Events from ``NAME: EXPRESSION`` words, or names that the world has; none given: the world's ``own``
    (EnvSpec.events), or GENERIC where it has none.  told: further events that the world has, which truth columns tell.
    """
    if not words:
        return tuple(parse_event(n, t, actions, directions, same_actions, truth) for n, t in (own or GENERIC).items())
    known = {**(own or GENERIC), **(told or {})}
    out: dict[str, Event] = {}
    for word in words:
        name, colon, text = word.partition(":")
        if not colon and name.strip() in known:
            text = known[name.strip()]
        elif not colon:
            raise UserError(f"--events {word!r}: expected NAME: EXPRESSION, as in 'scared: value < 2', or one of "
                            f"{', '.join(known)}")  # fmt: skip
        if name.strip() in out:
            raise UserError(f"--events names {name.strip()!r} twice")
        out[name.strip()] = parse_event(name.strip(), text, actions, directions, same_actions, truth)
    return tuple(out.values())


class _Unreadable(Exception):
    """What is wrong with an expression, in words."""


COMPARE: Mapping[type, Callable[[Tensor, Tensor], Tensor]] = {
    ast.Lt: torch.lt, ast.LtE: torch.le, ast.Gt: torch.gt, ast.GtE: torch.ge, ast.Eq: torch.eq, ast.NotEq: torch.ne,
}  # fmt: skip
COMBINE: Mapping[type, Callable[[Tensor, Tensor], Tensor]] = {
    ast.Add: torch.add, ast.Sub: torch.sub, ast.Mult: torch.mul,
}  # fmt: skip


@dataclass(frozen=True)
class _Reader:
    """Turns the tree into functions.  A truth is 0 or 1; a number is anything; an action is neither."""

    actions: tuple[str, ...]
    directions: int
    same_actions: tuple[tuple[str, ...], ...]
    truths: tuple[str, ...] = ()
    columns: tuple[str, ...] = COLUMNS
    functions: tuple[str, ...] = FUNCTIONS
    bare: bool = False  # the truths are named without truth()

    def truth(self, node: ast.expr) -> Read:
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(v) for v in node.values]
            # or: the opposite of none.
            return _all(parts) if isinstance(node.op, ast.And) else _not(_all([_not(p) for p in parts]))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _not(self.truth(node.operand))
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.Name) and node.id in ENDINGS and node.id in self.columns:
            return self._column(node.id)
        if self.calls(node, "truth") or (isinstance(node, ast.Name) and self._is_truth(node.id)):
            told = self.number(node)
            return lambda rows: ((told(rows) != 0) & ~told(rows).isnan()).to(rows.value_RT.dtype)
        if self.calls(node, "previous"):
            return _before(self.truth(self._argument(node)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CHANGES:
            return self._change(node, node.func.id)
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            said = float(node.value)
            return lambda rows: torch.full_like(rows.value_RT, said)
        raise _Unreadable(f"{_words(node)} is not a condition, such as value < 2")

    def _compare(self, node: ast.Compare) -> Read:
        sides, parts = [node.left, *node.comparators], []
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            parts.append(self._pair(left, op, right))
        return _all(parts)

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Read:
        earlier = _steps_before(left)
        if earlier is not None or isinstance(op, (ast.In, ast.NotIn)):
            if earlier is None:
                raise _Unreadable(f"'in' asks for the action, not for {_words(left)}")
            if isinstance(op, (ast.In, ast.NotIn)):
                if not isinstance(right, (ast.Tuple, ast.List, ast.Set)) or not right.elts:
                    raise _Unreadable(f"{_words(right)} is not a list of actions, such as (left, right)")
                ids = [i for e in right.elts for i in self._action(e)]
            elif isinstance(op, (ast.Eq, ast.NotEq)):
                ids = self._action(right)
            else:
                raise _Unreadable("an action is compared with ==, != or in")
            ids = sorted(set(ids))
            one: Read = lambda rows: _any_of(ids, rows)  # noqa: E731
            for _ in range(earlier):
                one = _before(one)
            return _not(one) if isinstance(op, (ast.NotIn, ast.NotEq)) else one
        if type(op) not in COMPARE:
            raise _Unreadable(f"{type(op).__name__} is not a comparison of numbers")
        a, b, holds = self.number(left), self.number(right), COMPARE[type(op)]
        return lambda rows: holds(a(rows), b(rows)).to(rows.value_RT.dtype)

    def _change(self, node: ast.Call, name: str) -> Read:
        """Whether a number rises, falls, or crosses a level."""
        if name not in self.functions:
            raise _Unreadable(f"no function {name!r}")
        if name != "crosses":
            now = self.number(self._argument(node))
            before, holds = _before(now), torch.gt if name == "rises" else torch.lt
            return lambda rows: holds(now(rows), before(rows)).to(rows.value_RT.dtype)
        if len(node.args) != 2 or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            raise _Unreadable(f"{_words(node)}: crosses takes a number and a level, as in crosses(value, 3)")
        number, level = (self.number(a) for a in node.args)

        def crosses(rows: Rows) -> Tensor:
            away = number(rows) - level(rows)
            earlier = torch.cat([away[:, :1], away[:, :-1]], 1)
            return (((away < 0) != (earlier < 0)) & ~away.isnan() & ~earlier.isnan()).to(rows.value_RT.dtype)

        return crosses

    def number(self, node: ast.expr) -> Read:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and type(node.value) is not bool:
            try:
                constant = float(node.value)
            except OverflowError:
                raise _Unreadable("a number is too large") from None
            return lambda rows: torch.full_like(rows.value_RT, constant)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            operand, sign = self.number(node.operand), -1.0 if isinstance(node.op, ast.USub) else 1.0
            return lambda rows: sign * operand(rows)
        if isinstance(node, ast.BinOp) and type(node.op) in COMBINE:
            a, b, join = self.number(node.left), self.number(node.right), COMBINE[type(node.op)]
            return lambda rows: join(a(rows), b(rows))
        if isinstance(node, ast.Name):
            return self._column(node.id)
        if isinstance(node, ast.Call):
            return self._function(node)
        raise _Unreadable(f"{_words(node)} is not a number")

    def _column(self, name: str) -> Read:
        if self.actions and name in ("action", *self.actions):
            raise _Unreadable(
                f"{name!r} is an action, not a number: write action == {_named(self.actions[0])}, or prob(...)"
            )
        if self._is_truth(name):
            return lambda rows: rows.truth[name]
        if name not in self.columns:
            there = (*self.columns, *self.truths) if self.bare else self.columns
            raise _Unreadable(f"no column {name!r}{nearest(name, there)}")
        if name == "step":
            return lambda rows: torch.arange(rows.value_RT.shape[1]).to(rows.value_RT).expand_as(rows.value_RT)
        if name == "truncated":
            return lambda rows: torch.zeros_like(rows.ended_RT) if rows.truncated_RT is None else rows.truncated_RT
        return lambda rows: getattr(rows, f"{name}_RT")  # type: ignore[no-any-return]

    def _function(self, node: ast.Call) -> Read:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in self.functions:
            raise _Unreadable(f"no function {name or _words(node.func)!r}{nearest(name, self.functions)}")
        if name in CHANGES:
            raise _Unreadable(f"{_words(node)} is a condition, not a number")
        argument = self._argument(node)
        if name == "previous":
            return _before(self.number(argument))
        if name == "direction":
            i = argument.value if isinstance(argument, ast.Constant) else None
            if type(i) is not int or not 0 <= i < self.directions:
                raise _Unreadable(f"direction({_words(argument)}): the directions are 0 to {self.directions - 1}")
            return lambda rows: rows.c_RTK[..., i]
        if name == "truth":
            column = self._truth(argument)
            return lambda rows: rows.truth[column]
        ids = self._action(argument)
        if name == "prob":
            return lambda rows: probabilities(rows.logits_RTA, rows.parts)[..., ids].sum(-1)
        return lambda rows: rows.logits_RTA[..., ids].logsumexp(-1)

    def _argument(self, node: ast.expr) -> ast.expr:
        assert isinstance(node, ast.Call)
        if len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
            raise _Unreadable(f"{_words(node)}: functions take one argument")
        return node.args[0]

    def _truth(self, node: ast.expr) -> str:
        """The name of a truth column."""
        name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
        if name not in self.truths:
            has = f"it has {', '.join(self.truths)}" if self.truths else "this has none (record.py --truth all)"
            hint = nearest(name, self.truths) if isinstance(name, str) else ""
            raise _Unreadable(f"no truth column {_words(node)!r}{hint}, {has}")
        return str(name)

    def _action(self, node: ast.expr) -> list[int]:
        """The ids of an action and of those that do the same."""
        name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
        if name not in self.actions:
            hint = nearest(name, self.actions) if isinstance(name, str) else ""
            raise _Unreadable(f"no action {_words(node)!r}{hint}")
        group = next((group for group in self.same_actions if name in group), (name,))
        return [self.actions.index(member) for member in group]

    def _is_truth(self, name: str) -> bool:
        """Whether a name stands for a truth column; the columns of every recording come first."""
        return self.bare and name in self.truths and name not in (*self.columns, *self.actions)

    def calls(self, node: ast.expr, name: str) -> bool:
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _named(action: str) -> str:
    """An action as an expression names it: in quotes where its name is more than a word ('part_0 1')."""
    return action if action.isidentifier() else repr(action)


def _steps_before(node: ast.expr) -> int | None:
    """0 for ``action``, 1 for ``previous(action)`` and so on; None for anything else."""
    if isinstance(node, ast.Name) and node.id == "action":
        return 0
    calls = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "previous"
    if isinstance(node, ast.Call) and calls and len(node.args) == 1 and not node.keywords:
        inner = _steps_before(node.args[0])
        return None if inner is None else inner + 1
    return None


def _any_of(ids: Sequence[int], rows: Rows) -> Tensor:
    """Whether any of these was done, [R, T]; where an action has several parts, by any of them."""
    none, first = torch.ones_like(rows.value_RT), 0
    for choices in rows.parts or (rows.action_RTA.shape[-1],):
        own = [i for i in ids if first <= i < first + choices]
        none, first = none * (1 - rows.action_RTA[..., own].sum(-1)), first + choices
    return 1 - none


def _not(part: Read) -> Read:
    return lambda rows: 1 - part(rows)


def _all(parts: Sequence[Read]) -> Read:
    def holds(rows: Rows) -> Tensor:
        out = parts[0](rows)
        for part in parts[1:]:
            out = out * part(rows)
        return out

    return holds


def _before(part: Read) -> Read:
    def earlier(rows: Rows) -> Tensor:
        now = part(rows)
        return torch.cat([now[:, :1], now[:, :-1]], 1)

    return earlier


def _words(node: ast.AST) -> str:
    try:
        return ast.unparse(node)
    except RecursionError:  # hundreds of signs or dots in a row
        return "an expression nested this deep"
