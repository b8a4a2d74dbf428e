"""The worlds at the same starts, and what every hypothesis is there.

N starts (independent units), C controls, I directions of a change, H hidden, S steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.shared.events import Event, Rows
from core.conditions import Where
from core.contracts import Intervention, UserError
from core.directions import Basis
from core.when import Rule
from validation.hypotheses.changes import Moves, Repeat
from validation.hypotheses.frames import own_frame
from validation.hypotheses.grammar import Hypothesis
from validation.paired.course import rows_of
from validation.paired.simulated import SimulatedWorld
from validation.paired.starts import Starts
from validation.paired.tree import Paired

AGE = "age"  # of ``matched``: the step of the episode
FAR = 1e6  # standard deviations to what is not known


@dataclass
class Bench:
    """Paired starts with the simulator run on from them and, where claims are tested, the real world too."""

    basis: Basis
    starts: Starts
    predictor: Any  # tells what to claim: SimulatedWorld, which foretells; without a simulator the real world
    rule: Rule | None
    real: Any = None  # RealWorld or SharedWorld; None: the real world is not asked here
    held: SimulatedWorld | None = None
    members: Sequence[SimulatedWorld] = ()  # the other simulators of an ensemble, at the same starts
    donors: dict[Hypothesis, np.ndarray] = field(default_factory=dict)  # the start that every start takes from [N]
    rows: dict[Hypothesis, np.ndarray] = field(default_factory=dict)  # bool [N], the starts it is about
    _jacobians: dict[str, dict[str, Tensor]] = field(init=False, default_factory=dict)
    _slopes: dict[tuple[int | None, bool], dict[str, Tensor]] = field(init=False, default_factory=dict)

    def build(self, h: Hypothesis, other_IH: Tensor | None = None) -> Intervention:
        """The intervention; ``other_IH``: redirected into that frame."""
        donor = self.donors.get(h)
        given = None if donor is None else self.starts.h_NH[torch.from_numpy(donor).to(self.starts.h_NH.device)]
        return h.build(self.basis, given, self.rule, other_IH)

    def redirected(
        self, world: Paired, h: Hypothesis, other_IH: Tensor, moves: dict[Hypothesis, Moves], path: str = ""
    ) -> Intervention:
        """The same change along another frame: at every step as long as it is itself in this world along this path.
        moves: how changes at several steps move the state there, to which those that are found are added."""
        if h.steps == 1:
            return self.build(h, other_IH)
        if h not in moves:
            moves[h] = Moves(self.build(h), self.basis, own_frame(self.basis, h.ids))
            world.run((moves[h],), path or h.through)
        return Repeat(moves[h].made, self.basis, other_IH)

    def prepare(self, hypotheses: Sequence[Hypothesis], events: Sequence[Event], rng: np.random.Generator) -> None:
        """Donors and starts of every hypothesis and its control.  Where a class of starts is to be told (patch), the
        unaltered course tells it: the real world's, where it is asked."""
        n = len(self.starts)
        now = {e.name: e for e in events}
        course = (self.real or self.predictor).run() if any(h.clean for h in hypotheses) else None
        cycle = rng.permutation(n)
        another_N = np.empty(n, np.int64)
        another_N[cycle] = np.roll(cycle, 1)
        across: dict[tuple[str, tuple[str, ...]], tuple[np.ndarray, np.ndarray]] = {}
        for h in hypotheses:
            key = h.control or h
            on_N = np.ones(n, bool)
            if h.when:
                on_N = Where(h.when, self.basis, self.rule)(self.starts.h_NH).cpu().numpy()
            if h.kind == "resample":
                self.donors[h] = self.donors[key] = another_N
            if h.kind == "patch":
                assert course is not None
                steps = rows_of(course, (self.real or self.predictor).measures)
                clean_N = now[h.clean](steps[:1])[:, 0].cpu().numpy() > 0.5
                if (h.clean, h.matched) not in across:
                    near_NM = self._near(steps, h.matched) if h.matched else None
                    across[h.clean, h.matched] = _across(clean_N, rng, near_NM)
                donor_N, paired_N = across[h.clean, h.matched]
                self.donors[h] = self.donors[key] = donor_N
                on_N = on_N & paired_N & (clean_N if h.side == "noising" else ~clean_N)
            self.rows[h] = self.rows[key] = on_N

    def _near(self, steps: Rows, names: Sequence[str]) -> np.ndarray:
        """What starts are near in, in standard deviations [N, M]; NaN of the truth is like no other."""
        columns = [self.starts.age_N if n == AGE else steps.truth[n][:, 0].cpu().numpy() for n in names]
        x_NM = np.stack(columns, 1).astype(np.float64)
        spread_M = np.nanstd(x_NM, 0)
        return x_NM / np.where(spread_M > 0, spread_M, 1.0)

    def require(self, hypotheses: Sequence[Hypothesis], what: str, hint: str = "") -> None:
        """UserError where a hypothesis is about fewer than two of the starts."""
        for h in hypotheses:
            if self.rows[h].sum() < 2:
                known = f" and {', '.join(h.matched)} known at both" if h.matched else ""
                pairs = f" (each of a pair in which {h.clean!r} is so at one alone{known})" if h.clean else ""
                raise UserError(
                    f"hypothesis {h.name!r} is about {self.rows[h].sum()} of {len(self.starts)} {what}{pairs}; at "
                    f"least 2 are needed{hint}"
                )

    def first_order(self, hypotheses: Sequence[Hypothesis], others: Sequence[Tensor | None]) -> dict[str, np.ndarray]:
        """{quantity: [G, N]}: derivatives times the changes that would be made along the unaltered run; exact to first
        order in the strength of a change.  ``others``: the frame that each is redirected into, if any."""
        steps_of = [
            min(h.steps or self.predictor.noise_NTA.shape[1], self.predictor.noise_NTA.shape[1]) for h in hypotheses
        ]
        states = self.starts.h_NH[None]
        if max(steps_of) > 1:
            along = self.predictor.run().h_RTH
            assert along is not None
            states = along.transpose(0, 1)
        everywhere = torch.ones(len(self.starts), dtype=torch.bool, device=states.device)
        out: dict[str, list[Tensor]] = {}
        for h, steps, other in zip(hypotheses, steps_of, others, strict=True):
            jacobian = self.jacobian(h.through, max(steps_of))
            change = self.build(h, other)
            when = [torch.full_like(everywhere, t, dtype=torch.int64) for t in range(steps)]
            moved = torch.stack([change(states[t], now, everywhere) - states[t] for t, now in enumerate(when)])
            for q, j in jacobian.items():
                out.setdefault(q, []).append((j[:steps] * moved).sum((0, 2)))  # NaN where q has no derivative
        return {q: torch.stack(v).detach().cpu().double().numpy() for q, v in out.items()}

    def slopes(self, quantities: Collection[str], most: int, steps: int | None, by_world: bool) -> dict[str, Tensor]:
        """{quantity: [H]}: mean derivatives, at the first ``most`` starts, with respect to what is added to h at each
        of the first ``steps`` steps (None: at all), made once; by_world: less those through the agent's memory."""
        if not set(quantities) <= self._slopes.get((steps, by_world), {}).keys():
            known = [q for q in self.predictor.measure([None]) if q not in quantities]
            count = steps or self.predictor.noise_NTA.shape[1]

            def along(path: str) -> dict[str, Tensor]:
                found = self.predictor.jacobian(steps=count, through=path, known=known, most=most)
                return {q: j.sum(0).mean(0) for q, j in found.items()}

            kept = along("memory") if by_world else {}
            self._slopes[steps, by_world] = {q: x - kept[q] if by_world else x for q, x in along("").items()}
        return self._slopes[steps, by_world]

    def jacobian(self, through: str = "", steps: int = 1) -> dict[str, Tensor]:
        """Derivatives [S, N, H] with S at least ``steps``, made once."""
        known = self._jacobians.get(through, {})
        if known and len(next(iter(known.values()))) < steps:
            known = {}
        later = {q.partition("@")[0] for q in known}
        if not known or not later.issuperset(self.predictor.measures.names):
            known = known | self.predictor.jacobian(steps=steps, through=through, known=known)
            self._jacobians[through] = known
        return known


def effects_in(
    bench: Bench, world: Paired, hypotheses: Sequence[Hypothesis], path: str | None, label: str
) -> dict[str, np.ndarray]:
    """{quantity: [G, N]}: with minus without, of hypotheses along their own path (None) or all along another one; NaN
    at starts that a hypothesis is not about, and where a change at several steps cannot take the path."""
    unaltered: dict[str, Any] = {q: v[0] for q, v in world.measure([None]).items()}
    out = {q: np.full((len(hypotheses), len(v)), np.nan) for q, v in unaltered.items()}
    paths = [h.through if path is None else path for h in hypotheses]
    for through in dict.fromkeys(paths):
        mine = [
            g for g, h in enumerate(hypotheses) if paths[g] == through and not (through == "world" and h.steps != 1)
        ]
        if mine:
            got = world.measure([bench.build(hypotheses[g]) for g in mine], label, through)
            for q, v in got.items():
                out[q][mine] = v - unaltered[q]
    for g, h in enumerate(hypotheses):
        for v in out.values():
            v[g, ~bench.rows[h]] = np.nan
    return out


def _across(
    clean_N: np.ndarray, rng: np.random.Generator, near_NM: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(for every start one of the other class, int64 [N]; which starts have one, bool [N]).  A start gives to one other
    at most, so that effects stay independent: of the larger class some go without.  With ``near``: the pairs that are
    nearest together (the least sum of distances); what is not known (NaN) is near nothing, so such starts go without.
    """
    from scipy.optimize import linear_sum_assignment

    out, paired = np.zeros(len(clean_N), np.int64), np.zeros(len(clean_N), bool)
    ones, others = np.flatnonzero(clean_N), np.flatnonzero(~clean_N)
    if near_NM is None:
        ones, others = (rng.permutation(x)[: min(len(ones), len(others))] for x in (ones, others))
    else:
        away_IJ = np.abs(near_NM[ones][:, None] - near_NM[others]).sum(-1)
        rows, columns = linear_sum_assignment(np.where(np.isnan(away_IJ), FAR, away_IJ))
        near = ~np.isnan(away_IJ[rows, columns])
        ones, others = ones[rows[near]], others[columns[near]]
    out[ones], out[others] = others, ones
    paired[ones] = paired[others] = True
    return out, paired
