"""What a study changes: hypotheses in words, the interventions they are, and the random controls of each.

    KIND DIRECTIONS [for N steps | always] [through memory | world] [when CONDITION ...]
                    [matched NAME ...] [necessary for EVENT | sufficient for EVENT] [on QUANTITY [as NUMBER]]

    shift ica:5 by +2        add 2 to direction ica:5 (several: shift ica:5=2 ica:9=-1)
    collapse ica:5 ica:9     set them to their mean (mean ablation)
    keep_only ica:5          set everything but them to the mean: the orthogonal complement of collapsing them
    swap ica:5 ica:9         exchange them, pair by pair
    resample ica:5           give them the values of another start (resample ablation; Chan et al. 2022)
    patch ica:5 clean EVENT  the same between two classes of starts, those at which EVENT holds and the others: noising
                             puts the others' values into the clean ones, denoising the reverse (Heimersheim & Nanda
                             2024, arXiv:2404.15255); a start gives to one other at most, so of the larger
                             class some take no part; with ``matched age row col`` the pairs are those that are nearest
                             in these: the step of the episode, and truth columns, of starts at which they are known

    hold code:3              of a policy's own clusters (analysis.semantics, --basis_kind plane): move the state to code
                             3, if it has another
    swap code:3 code:5       states of code 3 to code 5, and the reverse

``necessary for EVENT`` asks whether the event is stopped within the horizon, which may be that it comes later; ``on
time:EVENT`` asks how many steps pass before it, ``on event:EVENT`` whether it comes, ``on rate:EVENT`` how often.
``as NUMBER``: what the quantity is said to become, so that without a simulator, too, a size is foretold.
``ica:all``, or ``all``, stands for every direction, and a number for that direction of the basis that was given.  A
change is made at the start (step 0) and, with ``for N steps`` or ``always``, at the following ones too.  ``through
memory``: the world answers with the actions of the unaltered run, so that the change stays inside the agent.  ``through
world``: the agent forgets the change once it has acted on it, so that only its action carries it on (path patching;
Goldowsky-Dill et al. 2023, arXiv:2304.05969).

CONDITION is ``behaviour=3``, ``ica:1 above 3`` or ``ica:1 below -2`` (core.conditions): the change is made only at
steps, and asked only of starts, whose hidden state before it says so; of several any may hold.

An edit of the real game is a line of the same grammar, in the words of envs/procgen_edits.py:

    EDIT [through pixels | world] [since episode] [when CONDITION ...]
         [necessary for EVENT | sufficient for EVENT] [on QUANTITY]

    remove saw nearest when behaviour=6 on value        move coin by 3 0 on prob:right        add wall ahead 2

It is made at the start and lasts until its level ends.  ``through pixels``: it is seen and nothing else; ``through
world``: it is there and not seen; else both.  ``since episode``: it is made at the first step of the episode, so that
the agent has never seen the world without it.

N starts, H hidden, K directions, other axes as in core.contracts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from core.conditions import Condition, Where, parse_conditions
from core.config import nearest
from core.contracts import Intervention, UserError
from core.directions import Basis, direction_ids, direction_of, name_of, require_room
from core.interventions import AtSteps, Nullspace, Resample, Shift, Swap, When
from core.when import Rule
from envs.procgen_edits import PICTURELESS, VERBS, Edit, parse_edit
from validation.hypotheses.changes import KeepOnly, PutCode, Redirect
from validation.hypotheses.frames import own_frame

KINDS = ("shift", "collapse", "keep_only", "swap", "resample", "patch", "hold")
THROUGH = ("memory", "world")
WAYS = ("pixels", "world")  # of an edit
ROLES = ("necessary", "sufficient")
SIDES = ("noising", "denoising")
CLAUSES = ("for", "always", "through", "since", "when", *ROLES, "clean", "matched", "on", "as")
NAMED = ("prob:", "rate:", "event:", "time:")  # of an action or event, which may be called by a number
QUANTITIES = ("value", "reward", "return", "ended", *NAMED)  # and directions


class Claim(Protocol):
    """What every hypothesis says of itself, whatever it changes."""

    @property
    def name(self) -> str: ...

    @property
    def is_nothing(self) -> bool: ...

    @property
    def role(self) -> str: ...

    @property
    def event(self) -> str: ...

    @property
    def on(self) -> str: ...

    @property
    def clean(self) -> str: ...


@dataclass(frozen=True)
class Hypothesis:
    """One change of the hidden state, and what it is said to be needed for; see the head of this file."""

    kind: str
    basis: str  # the kind of basis that the directions are of
    ids: tuple[int, ...]
    amounts: tuple[float, ...] = ()  # shift
    steps: int | None = 1  # None: always
    through: str = ""
    when: tuple[Condition, ...] = ()  # only where one of these holds
    role: str = ""  # necessary or sufficient ...
    event: str = ""  # ... for this event
    clean: str = ""  # patch: the event that tells the classes
    side: str = ""  # patch: noising or denoising
    everything: bool = False  # the directions are all there are
    on: str = ""  # the late quantity, without its steps, that is claimed to change
    matched: tuple[str, ...] = ()  # patch: what donors are near in
    says: float | None = None  # what that quantity is said to become
    codes: tuple[int, ...] = ()  # hold, swap: of a policy's own clusters; the directions are then all of its plane

    @property
    def name(self) -> str:
        """In the words that it is parsed from, but for what it is necessary or sufficient for: of one change there may
        be several claims."""
        if self.codes:
            what = " ".join(f"code:{c}" for c in self.codes)
        elif self.kind == "shift":
            what = " ".join(f"{d} by {a:+g}" for d, a in zip(self.directions, self.amounts, strict=True))
        else:
            what = f"{self.basis}:all" if self.everything else " ".join(self.directions)
        words = [self.kind, what]
        if self.kind == "patch":
            words.append(f"clean {self.clean}{f' ({self.side})' if self.side else ''}")
        if self.steps != 1:
            words.append("always" if self.steps is None else f"for {self.steps} steps")
        if self.through:
            words.append(f"through {self.through}")
        words += _when(self.when)
        words += ["matched", *self.matched] if self.matched else []
        if self.on:
            words.append(f"on {self.on}")
        if self.says is not None:
            words.append(f"as {self.says:g}")
        return " ".join(words)

    @property
    def directions(self) -> list[str]:
        """The directions it changes, by their names."""
        return [name_of(self.basis, i) for i in self.ids]

    @property
    def direction(self) -> str | None:
        """The one direction it changes, if it is one."""
        return self.directions[0] if len(self.ids) == 1 else None

    @property
    def amount(self) -> float | None:
        """By how much it shifts a single direction."""
        return self.amounts[0] if len(self.amounts) == 1 else None

    @property
    def is_nothing(self) -> bool:
        """A shift by 0."""
        return self.kind == "shift" and not any(self.amounts)

    @property
    def control(self) -> Hypothesis | None:
        """Whose redirected runs are its control: directions of either sign are as likely, so that +a and -a of one
        direction share them, and claims do not matter.  None: no norm to match."""
        if self.kind == "keep_only":
            return None
        amounts = tuple(abs(a) for a in self.amounts) if len(self.ids) == 1 else self.amounts
        return replace(self, amounts=amounts, role="", event="", on="", says=None)

    def build(
        self, basis: Basis, donors_NH: Tensor | None = None, rule: Rule | None = None, other_IH: Tensor | None = None
    ) -> Intervention:
        """The intervention, at the steps it is made; ``other_IH``: redirected into that frame.

        donors_NH: the states that resample and patch take their values from; rule: tells the
        behaviours of ``when`` (None: it has none).
        """
        inner: Any
        if self.codes:
            codes_CK = basis.lift_KH.new_tensor(basis.facts["codes"])
            to_C = torch.arange(len(codes_CK), device=codes_CK.device)
            if self.kind == "hold":
                to_C = torch.full_like(to_C, self.codes[0])
            else:
                to_C[list(self.codes)] = to_C[list(self.codes[::-1])]
            inner = PutCode(basis, codes_CK, to_C)
        elif self.kind == "shift":
            inner = Shift(basis, self.ids, self.amounts)
        elif self.kind == "collapse":
            inner = Nullspace(basis, self.ids)
        elif self.kind == "keep_only":
            inner = KeepOnly(basis, self.ids)
        elif self.kind == "swap":
            inner = Swap(basis, tuple(zip(self.ids[::2], self.ids[1::2], strict=True)))
        elif donors_NH is None:
            raise ValueError(f"{self.kind} needs donors")
        else:
            inner = Resample(basis, self.ids, donors_NH)
        if other_IH is not None:
            inner = Redirect(inner, basis, own_frame(basis, self.ids), other_IH)
        if self.when:
            inner = When((inner,), Where(self.when, basis, rule))
        return AtSteps(inner, 0, self.steps)


def shift_of(basis: str, direction: int, amount: float, steps: int | None = 1) -> Hypothesis:
    """One direction of a basis of that kind by one amount, at so many steps (None: always)."""
    return Hypothesis("shift", basis, (direction,), (amount,), steps)


def hypotheses_of(
    basis: str, directions: Sequence[int], amounts: Sequence[float], always: bool = False
) -> list[Hypothesis]:
    """Every direction shifted by every amount, collapsed, and kept alone; once, or always."""
    steps = None if always else 1
    shifts = [shift_of(basis, i, a, steps) for i in directions for a in amounts]
    return shifts + [
        Hypothesis(kind, basis, (i,), steps=steps) for i in directions for kind in ("collapse", "keep_only")
    ]


@dataclass(frozen=True)
class EditHypothesis:
    """One edit of the real game, and what it is said to do; see the head of this file."""

    edit: Edit
    through: str = ""  # pixels or world
    since: str = "start"  # or episode
    when: tuple[Condition, ...] = ()  # only at starts where one of these holds
    role: str = ""
    event: str = ""
    on: str = ""

    is_nothing = False
    clean = ""

    @property
    def change(self) -> str:
        """The edit and the starts that it is about, in words."""
        return " ".join([self.edit.words, *_when(self.when)])

    @property
    def name(self) -> str:
        """In the words that it is parsed from."""
        words = [self.edit.words]
        words += [f"through {self.through}"] if self.through else []
        words += ["since episode"] if self.since == "episode" else []
        words += _when(self.when)
        return " ".join([*words, f"on {self.on}"] if self.on else words)


def _when(conditions: Sequence[Condition]) -> list[str]:
    return ["when " + " ".join(one.words for one in conditions)] if conditions else []


class _Said(NamedTuple):
    """A line of words taken apart."""

    where: str  # for errors
    kind: str
    what: list[str]  # is changed
    clauses: dict[str, Any]


def _read(text: str, kinds: Sequence[str], elsewhere: Mapping[str, str]) -> _Said:
    """A line that begins with one of ``kinds``.  ``elsewhere``: what to say of lines that begin with other words."""
    words = text.split()
    where = f"hypothesis {text!r}"
    if not words or words[0] not in kinds:
        if words and words[0] in elsewhere:
            raise UserError(f"{where}: {elsewhere[words[0]]}")
        hint = nearest(words[0], kinds) if words else ""
        raise UserError(f"{where}: begins with no known change{hint}; there are: {', '.join(kinds)}")
    what, rest = _until_clause(words[1:])
    found: dict[str, Any] = {}
    while rest:
        rest = _clause(rest, found, where)
    if "role" in found and "on" in found:
        raise UserError(
            f"{where}: {found['role']} for {found['event']} is a claim by itself; say 'on {found['on']}' in another one"
        )
    return _Said(where, words[0], what, found)


def _until_clause(words: list[str]) -> tuple[list[str], list[str]]:
    """(those before the next clause begins, the others)."""
    cut = next((i for i, w in enumerate(words) if w in CLAUSES), len(words))
    return words[:cut], words[cut:]


def parse_hypothesis(text: str, basis: Basis) -> list[Hypothesis]:
    """The hypotheses that a line of words is: one, or the two sides of a patch.

    Raises UserError on what does not parse, an id outside the basis or named twice.
    """
    edits = "an edit of the real game is tried by python -m validation.edits --edits"
    where, kind, what, found = _read(basis.numbered(text, f"hypothesis {text!r}"), KINDS, dict.fromkeys(VERBS, edits))
    codes = _codes(kind, what, where, basis)
    everything = what in (["all"], [f"{basis.kind}:all"])
    ids, amounts = _targets(kind, what, where, basis, everything or bool(codes))
    if twice := [name_of(basis.kind, i) for i in ids if ids.count(i) > 1]:
        raise UserError(f"{where}: names direction {twice[0]} twice")
    basis.check(ids)
    if amounts:
        require_room(basis, dict(zip(ids, amounts, strict=True)), f"{where}:")
    if (kind == "patch") != ("clean" in found):
        raise UserError(f"{where}: patch, and nothing else, needs 'clean EVENT', which tells the two classes of starts")
    for word, bad in (("since episode", "since" in found), ("through pixels", found.get("through") == "pixels")):
        if bad:
            raise UserError(f"{where}: {word} is for edits of the real game (python -m validation.edits)")
    if kind != "patch" and "matched" in found:
        raise UserError(f"{where}: matched is for patch, which takes the values of other starts")
    _name_direction(found, basis, where)
    found["when"] = parse_conditions(found.get("when", ()), basis, f"{where}: when")
    if "says" in found and "on" not in found:
        raise UserError(f"{where}: 'as {found['says']:g}' says what a quantity becomes; name it: on QUANTITY as NUMBER")
    out = Hypothesis(kind, basis.kind, tuple(ids), tuple(amounts), everything=everything, codes=codes, **found)
    if out.through == "world" and out.steps != 1:
        raise UserError(f"{where}: through world is for a change at one step, which the agent then forgets")
    return [replace(out, side=side) for side in SIDES] if kind == "patch" else [out]


def _codes(kind: str, words: Sequence[str], where: str, basis: Basis) -> tuple[int, ...]:
    """The codes that a line is about: of every hold, and of a swap that names any.  Raises UserError."""
    if kind != "hold" and not (kind == "swap" and any(word.startswith("code") for word in words)):
        return ()
    need = 1 if kind == "hold" else 2
    found = [re.fullmatch("code:([0-9]+)", word) for word in words]
    codes = tuple(int(match[1]) for match in found if match)
    if len(words) != need or len(codes) != need:
        such = " ".join([kind, "code:3", "code:5"][: need + 1])
        raise UserError(f"{where}: {kind} takes {'a code' if need == 1 else 'two codes'}, as in {such}")
    there = basis.facts.get("codes")
    if there is None:
        raise UserError(f"{where}: the {basis.kind} basis has no codes; give --basis_kind plane of analysis.semantics")
    for c in codes:
        if c >= len(there):
            raise UserError(f"{where}: there is no code {c}; there are 0 to {len(there) - 1}")
    if len(set(codes)) < len(codes):
        raise UserError(f"{where}: names code {codes[0]} twice")
    return codes


def parse_edit_hypothesis(text: str, game: str, basis: Basis | None = None) -> EditHypothesis:
    """The edit that a line of words is.  basis: of directions that may be claimed to change.

    Raises UserError on what does not parse, or names what the game does not have."""
    hidden = "a change of the hidden state is tried by python -m validation.interventions --hypotheses"
    known = text if basis is None else basis.numbered(text, f"hypothesis {text!r}")
    where, kind, what, found = _read(known, VERBS, dict.fromkeys(KINDS, hidden))
    edit = parse_edit(" ".join([kind, *what]), game)
    if "says" in found:
        raise UserError(f"{where}: 'as NUMBER' is for changes of the hidden state (python -m validation.interventions)")
    if "steps" in found:
        raise UserError(f"{where}: an edit lasts until its level ends; leave out 'for N steps' and 'always'")
    if "clean" in found or "matched" in found:
        raise UserError(f"{where}: 'clean EVENT' is for patches of the hidden state; say 'when behaviour=ID', or "
                        "'when DIRECTION above NUMBER', which "
                        "tells the starts that an edit is about")  # fmt: skip
    through = found.get("through", "")
    if through not in ("", *WAYS):
        raise UserError(f"{where}: an edit is not made in the agent's {through}; through pixels, or through world")
    if through and edit.thing in PICTURELESS:
        raise UserError(f"{where}: no picture shows the {edit.thing}; leave out 'through {through}'")
    if "since" in found and (through == "world" or edit.thing == "agent" or edit.thing in PICTURELESS):
        about = "through the world alone" if through == "world" else f"of the {edit.thing}"
        raise UserError(f"{where}: since episode is not for edits {about}")
    if "role" in found and (through or "since" in found):
        raise UserError(f"{where}: '{found['role']} for' is compared with what was foretold, the whole edit at the "
                        f"start; say 'on event:{found['event']}'")  # fmt: skip
    _name_direction(found, basis, where)
    found["when"] = parse_conditions(found.get("when", ()), basis, f"{where}: when")
    beyond = [one.words for one in found["when"] if one.behaviour is None]
    if basis is None and beyond:
        raise UserError(f"{where}: {beyond[0]} is of a direction of a basis: give --basis")
    return EditHypothesis(edit, **found)


def is_direction(quantity: str, kind: str) -> bool:
    """Whether a quantity is a direction's coordinate, as it is named where a basis is of that kind."""
    return not quantity.startswith(NAMED) and direction_of(quantity, kind) is not None


def _name_direction(found: dict[str, Any], basis: Basis | None, where: str) -> None:
    """The direction that is claimed to change, if it is one, by its whole name."""
    on = found.get("on", "")
    if is_direction(on, "" if basis is None else basis.kind):
        if basis is None:
            raise UserError(f"{where}: {on} is a direction of a basis: give --basis")
        (i,) = direction_ids([on], basis, where)
        basis.check([i])
        found["on"] = name_of(basis.kind, i)


def _targets(
    kind: str, words: Sequence[str], where: str, basis: Basis, everything: bool
) -> tuple[list[int], list[float]]:
    """Ids and, for a shift, amounts."""
    if kind != "shift":
        ids = list(range(basis.size)) if everything else direction_ids(words, basis, where)
        if not ids or (kind == "swap" and len(ids) % 2):
            need = "an even number of directions, pair by pair" if kind == "swap" else "directions"
            raise UserError(f"{where}: {kind} takes {need}")
        return ids, []
    found = re.findall(r"(\w*:?\d+)(?:=| by )(\S+)", " ".join(words))
    if not found or " ".join(words) not in (" ".join(f"{i}={a}" for i, a in found),
                                            " ".join(f"{i} by {a}" for i, a in found)):  # fmt: skip
        name = name_of(basis.kind, 5)
        raise UserError(f"{where}: shift takes DIRECTION=AMOUNT, as in shift {name}=2, or shift {name} by +2")
    try:
        amounts = [float(a) for _, a in found]
    except ValueError:
        raise UserError(f"{where}: an amount is not a number") from None
    if not all(abs(a) < float("inf") for a in amounts):
        raise UserError(f"{where}: an amount is not finite")
    return direction_ids([i for i, _ in found], basis, where), amounts


def _clause(words: list[str], found: dict[str, Any], where: str) -> list[str]:
    """Take one clause off the front of ``words``."""

    def put(name: str, value: Any) -> None:
        if name in found:
            raise UserError(f"{where}: says {name!r} twice")
        found[name] = value

    head, rest = words[0], words[1:]
    if head == "always":
        put("steps", None)
        return rest
    if head == "for" and len(rest) >= 2 and re.fullmatch("[0-9]+", rest[0]) and rest[1] in ("step", "steps"):
        if int(rest[0]) < 1:
            raise UserError(f"{where}: for {rest[0]} steps: at least 1")
        put("steps", int(rest[0]))
        return rest[2:]
    if head == "through" and rest and rest[0] in (*THROUGH, *WAYS):
        put("through", rest[0])
        return rest[1:]
    if head == "since" and rest[:1] == ["episode"]:
        put("since", "episode")
        return rest[1:]
    known = (q for q in QUANTITIES if rest and (rest[0] == q or (q.endswith(":") and rest[0].startswith(q))))
    if head == "on" and rest and (any(known) or direction_of(rest[0], "")):
        blanks = rest[0].startswith(("prob:", "rate:"))  # an action's name may have some ("part_0 1")
        quantity, rest = _until_clause(rest) if blanks else (rest[:1], rest[1:])
        put("on", " ".join(quantity))
        return rest
    if head == "clean" and rest:
        put("clean", rest[0])
        return rest[1:]
    if head == "as" and rest:
        try:
            number = float(rest[0])
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise UserError(f"{where}: as {rest[0]}: not a number")
        put("says", number)
        return rest[1:]
    if head in ROLES and len(rest) >= 2 and rest[0] == "for":
        put("role", head)
        put("event", rest[1])
        return rest[2:]
    if head in ("matched", "when") and rest and rest[0] not in CLAUSES:
        some, rest = _until_clause(rest)
        if head == "matched":
            put("matched", tuple(some))
        else:
            parse_conditions(some, None, f"{where}: when")
            put("when", tuple(some))
        return rest
    raise UserError(
        f"{where}: cannot read {' '.join(words)!r}; after the change may come: for N steps, always, through memory, "
        "through world, (of edits) through pixels, since episode, when behaviour=ID, when "
        "DIRECTION above (or below) NUMBER, necessary for EVENT, sufficient "
        f"for EVENT, clean EVENT, matched NAME, on QUANTITY ({', '.join(QUANTITIES)}, or a direction)"
    )


def timed(hypotheses: Sequence[Claim]) -> tuple[str, ...]:
    """When events happen, of what hypotheses say: ``time:EVENT`` where that is claimed, ``first:EVENT`` where something
    is said to stop or bring about the event, which within a horizon may mean later, or sooner."""
    named = (f"first:{h.event}" if h.role else h.on for h in hypotheses if h.role or h.on.startswith("time:"))
    return tuple(dict.fromkeys(named))


def check_events(hypotheses: Sequence[Claim], names: Sequence[str]) -> None:
    """UserError if a hypothesis speaks of an event that nobody defined."""
    for h in hypotheses:
        for event in filter(None, (*(q.partition(":")[2] for q in timed([h])), h.clean)):
            if event not in names:
                raise UserError(
                    f"hypothesis {h.name!r}: no event {event!r}{nearest(event, names)}{to_define(event)}; there are: "
                    f"{', '.join(names)}"
                )


def to_define(event: str) -> str:
    """What an error says of an event that nothing defines."""
    return f", or define it: --events '{event}: CONDITION'"
