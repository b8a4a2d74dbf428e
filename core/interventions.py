"""Interventions: pure functions ``(h_BH, t_B, mask_B) -> h_BH``, the same objects in simulator and world.

Each changes the hidden state only along the directions it names: the change of coordinates is
lifted and added, so that the orthogonal complement of the basis stays as it was.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from core.conditions import Where, behaviours_in, check_behaviours, parse_conditions
from core.contracts import Intervention, UserError
from core.directions import (
    FAR_OUTSIDE,
    Basis,
    direction_ids,
    direction_of,
    far_outside,
    load_basis,
    name_of,
    require_room,
)
from core.roll import apply_interventions
from core.when import load_rule


def _masked(h_BH: Tensor, changed_BH: Tensor, mask_B: Tensor) -> Tensor:
    return torch.where(mask_B[:, None], changed_BH, h_BH)


@dataclass(frozen=True)
class Swap:
    """Exchange coordinates i and j of every pair; an involution."""

    basis: Basis
    pairs: tuple[tuple[int, int], ...]

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        c = self.basis.project(h_BH)
        order = list(range(self.basis.size))
        for i, j in self.pairs:
            order[i], order[j] = order[j], order[i]
        return _masked(h_BH, h_BH + self.basis.lift_change(c[:, order] - c), mask_B)


@dataclass(frozen=True)
class Nullspace:
    """Collapse coordinates to their mean (0); idempotent."""

    basis: Basis
    ids: tuple[int, ...]

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        c = self.basis.project(h_BH)
        keep = torch.ones_like(c[0]).index_fill(0, torch.tensor(self.ids, device=c.device), 0.0)
        return _masked(h_BH, h_BH + self.basis.lift_change(c * keep - c), mask_B)


@dataclass(frozen=True)
class Shift:
    """Add ``amounts`` (in units of the coordinates) to coordinates ``ids``; amount 0 changes no bit."""

    basis: Basis
    ids: tuple[int, ...]
    amounts: tuple[float, ...]

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        change = h_BH.new_zeros(self.basis.size)
        change = change.index_copy(0, torch.tensor(self.ids, device=h_BH.device), h_BH.new_tensor(self.amounts))
        return _masked(h_BH, h_BH + self.basis.lift_change(change), mask_B)


@dataclass(frozen=True)
class AddVector:
    """Add a vector [H], or one a row [B, H]; norm-matched random controls and finite differences."""

    vector: Tensor

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        return _masked(h_BH, h_BH + self.vector, mask_B)


@dataclass(frozen=True)
class Resample:
    """Replace coordinates ``ids`` by those of other recorded states ``donors`` [B, H]."""

    basis: Basis
    ids: tuple[int, ...]
    donors: Tensor

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        change = self.basis.project(self.donors) - self.basis.project(h_BH)
        only = torch.zeros_like(change[0]).index_fill(0, torch.tensor(self.ids, device=h_BH.device), 1.0)
        return _masked(h_BH, h_BH + self.basis.lift_change(change * only), mask_B)


@dataclass(frozen=True)
class AtSteps:
    """Another intervention, only at steps ``first <= t < stop`` (stop None: to the end)."""

    inner: Intervention
    first: int
    stop: int | None = None

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        now_B = mask_B & (t_B >= self.first)
        if self.stop is not None:
            now_B = now_B & (t_B < self.stop)
        # Most steps are none of them.  (Not asked of an accelerator, which would wait, nor where gradients are traced.)
        if now_B.is_cpu and not torch.is_grad_enabled() and not now_B.any():
            return h_BH
        return self.inner(h_BH, t_B, now_B)


@dataclass(frozen=True)
class When:
    """Other interventions, only where the h that they would change is one that ``where`` holds of."""

    inner: tuple[Intervention, ...]
    where: Where

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        return apply_interventions(self.inner, h_BH, t_B, mask_B & self.where(h_BH))


@dataclass(frozen=True)
class OnRows:
    """Other interventions, only in some rows: of a world of many agents, those that are altered."""

    inner: tuple[Intervention, ...]
    rows_B: Tensor  # bool

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        return apply_interventions(self.inner, h_BH, t_B, mask_B & self.rows_B)


@dataclass
class Tally:
    """Other interventions, and where they changed anything: for recorders, which say what was done.

    ``altered``: one bool [B] a call.  The only intervention that remembers; make a new one for every rollout.
    """

    inner: tuple[Intervention, ...]
    altered: list[Tensor] = field(default_factory=list)

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        out = apply_interventions(self.inner, h_BH, t_B, mask_B)
        self.altered.append((out != h_BH).any(-1))
        return out


@dataclass(frozen=True, kw_only=True)
class InterventionOptions:
    """What to do to the agent's hidden state while recording."""

    basis: Path = Path("runs/hidden_states")
    """hidden-states run directory with the directions"""
    basis_kind: str = "ica"
    """which basis of it: pca, ica, nmf, neurons, probe (of analysis.probes)"""
    swap_directions_from: tuple[str, ...] = ()
    """directions to swap, such as ica:10 ..."""
    swap_directions_to: tuple[str, ...] = ()
    """... with these, pair by pair; None collapses the direction to its mean"""
    shift: tuple[str, ...] = ()
    """DIRECTION=AMOUNT, such as ica:9=-2: add AMOUNT standard deviations to the direction's coordinate"""
    at_steps: tuple[str, ...] = ()
    """FIRST STOP: only at steps FIRST <= t < STOP of every episode; FIRST alone: from there on; none: at all"""
    when: tuple[str, ...] = ()
    """only at steps whose hidden state says so: behaviour=3 (as far as the state alone tells it), or a direction's
    coordinate, ica:1 above 3, ica:1 below -2; of several any may hold"""
    behaviours: Path = Path("runs/behaviours")
    """behaviours run directory that --when speaks of"""

    @property
    def inputs(self) -> dict[str, Path]:
        """The run directories that the interventions are made from."""
        if not (self.swap_directions_from or self.swap_directions_to or self.shift):
            return {}
        known = parse_conditions(self.when, None, "--when")
        return {"hidden_states": self.basis} | ({"behaviours": self.behaviours} if behaviours_in(known) else {})


def nothing_altered(options: InterventionOptions) -> str:
    """What to say, and to keep in the manifest, of a recording in which the interventions changed no hidden state."""
    if options.when:
        steps = f" at --at_steps {' '.join(options.at_steps)}" if options.at_steps else ""
        said = " or ".join(one.of_a_start for one in parse_conditions(options.when, None, "--when"))
        return f"nothing was altered: by its hidden state the agent was never {said} (--when){steps}"
    return "nothing was altered: the interventions changed the hidden state at no step (--at_steps, --shift)"


def far_facts(options: InterventionOptions) -> dict[str, str]:
    """Facts of a manifest: ``core.directions.far_outside`` of the shifts, ``{}`` where none leads far away; it is told,
    too."""
    shifts = {f"--shift {word}": (float(word.rpartition("=")[2]),) for word in options.shift}
    if (said := far_outside(shifts)) is None:
        return {}
    print(f"warning: {said}", file=sys.stderr)
    return {FAR_OUTSIDE: said}


def parse_ids(words: Sequence[str], what: str) -> list[int]:
    """Whole numbers, or a UserError."""
    for word in words:
        if not re.fullmatch(r"-?[0-9]+", word):
            raise UserError(f"{what}: {word!r} is not a whole number")
    return [int(word) for word in words]


def build(
    options: InterventionOptions,
    agent: str | None,
    basis: Basis | None = None,
    device: torch.device | str | None = None,
) -> tuple[Intervention, ...]:
    """The interventions that options describe, in the order swap, collapse, shift; () if none.

    agent: fingerprint the basis and the behaviours must belong to; device: where the states will be.  Raises
    UserError on lists of unequal length, a direction named twice, an id outside the basis, a basis of another
    agent, a behaviour that does not exist.
    """
    sources, targets = options.swap_directions_from, options.swap_directions_to
    if not (sources or targets or options.shift):
        for flag in ("at_steps", "when"):
            if getattr(options, flag):
                raise UserError(f"--{flag} needs an intervention: --swap_directions_from/_to or --shift")
        return ()
    if len(sources) != len(targets):
        raise UserError(f"--swap_directions_from has {len(sources)} ids, --swap_directions_to has {len(targets)}")
    if basis is None:
        basis = load_basis(options.basis, options.basis_kind, agent)
    i_from = direction_ids(sources, basis, "--swap_directions_from")
    i_to = [None if t == "None" else direction_ids([t], basis, "--swap_directions_to")[0] for t in targets]
    pairs = [(i, j) for i, j in zip(i_from, i_to, strict=True) if j is not None]
    collapse = [i for i, j in zip(i_from, i_to, strict=True) if j is None]
    shifts: dict[int, float] = {}
    for word in options.shift:
        name, _, amount = basis.numbered(word, "--shift").partition("=")
        try:
            value = float(amount)
        except ValueError:
            value = math.nan
        if direction_of(name, basis.kind) is None or not math.isfinite(value):
            raise UserError(f"--shift {word!r}: expected DIRECTION=AMOUNT, as in {name_of(basis.kind, 3)}=1.5")
        (i,) = direction_ids([name], basis, "--shift")
        if i in shifts:
            raise UserError(f"--shift names direction {name_of(basis.kind, i)} twice")
        shifts[i] = value
    named = [i for pair in pairs for i in pair] + collapse
    twice = sorted({i for i in named if named.count(i) > 1})
    if twice:
        raise UserError(f"direction {name_of(basis.kind, twice[0])} is named twice in --swap_directions_from/_to")
    basis.check([*named, *shifts])
    require_room(basis, shifts, "--shift")
    basis = basis.to(device)
    out: list[Intervention] = []
    if pairs:
        out.append(Swap(basis, tuple(pairs)))
    if collapse:
        out.append(Nullspace(basis, tuple(collapse)))
    if shifts:
        out.append(Shift(basis, tuple(shifts), tuple(shifts.values())))
    if options.at_steps:
        steps = parse_ids(options.at_steps, "--at_steps")
        if len(steps) > 2 or steps[0] < 0 or (len(steps) == 2 and steps[1] <= steps[0]):
            raise UserError("--at_steps takes FIRST or FIRST STOP, 0 <= FIRST < STOP")
        stop = steps[1] if len(steps) == 2 else None
        out = [AtSteps(inner, steps[0], stop) for inner in out]
    if conditions := parse_conditions(options.when, basis, "--when"):
        rule = load_rule(options.behaviours, agent).to(device) if behaviours_in(conditions) else None
        check_behaviours(conditions, rule, "--when")
        out = [When(tuple(out), Where(conditions, basis, rule))]
    return tuple(out)
