"""Interventions that hypotheses need beside those of core.interventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.contracts import Intervention
from core.directions import Basis


@dataclass(frozen=True)
class KeepOnly:
    """Everything but some directions to the mean: the complement of collapsing them (are they sufficient?)."""

    basis: Basis
    ids: tuple[int, ...]

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        c = self.basis.project(h_BH)
        only = torch.zeros_like(c[0]).index_fill(0, torch.tensor(self.ids, device=c.device), 1.0)
        return torch.where(mask_B[:, None], self.basis.lift(c * only), h_BH)


@dataclass(frozen=True)
class PutCode:
    """Put other codes in place: a state whose nearest code is c goes to the point of code ``to_C[c]`` by the shortest
    change; one that has that code already stays (agents.semantic's point ``code``).  ``codes_CK``: the codes in the
    basis's coordinates."""

    basis: Basis
    codes_CK: Tensor
    to_C: Tensor  # int64

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        c_BK = self.basis.project(h_BH)
        now_B = (c_BK[:, None] - self.codes_CK).square().sum(-1).argmin(1)
        put_B = self.to_C[now_B]
        moved = h_BH + self.basis.lift_change(self.codes_CK[put_B] - c_BK)
        return torch.where((mask_B & (put_B != now_B))[:, None], moved, h_BH)


@dataclass(frozen=True)
class Redirect:
    """The control of ``inner``, which moves h within the span of ``own_IH`` (orthonormal, in units of every neuron's
    standard deviation): the same move within the span of ``other_IH``, so of the same length."""

    inner: Intervention
    basis: Basis
    own_IH: Tensor
    other_IH: Tensor

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        change = (self.inner(h_BH, t_B, mask_B) - h_BH) / self.basis.std_H
        move = (change @ self.own_IH.T) @ self.other_IH * self.basis.std_H
        return h_BH + torch.where(mask_B[:, None], move, 0.0)


@dataclass
class Moves:
    """``inner``, and how it moved h at every step: ``made`` {step: [B, I]} along ``own_IH``, as in ``Redirect``.  It
    remembers; make a new one for every run."""

    inner: Intervention
    basis: Basis
    own_IH: Tensor
    made: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        out = self.inner(h_BH, t_B, mask_B)
        move = ((out - h_BH) / self.basis.std_H) @ self.own_IH.T
        for t in t_B[mask_B].unique().tolist():  # starts may come to a step one by one
            now = torch.where((mask_B & (t_B == t))[:, None], move, 0.0)
            self.made[t] = self.made[t] + now if t in self.made else now
        return out


@dataclass(frozen=True)
class Repeat:
    """The control of a change at several steps: the moves that it ``made``, within the span of ``other_IH``.

    Not ``Redirect``: what a change like a collapse has to move at a later step depends on what it did before, and a
    control, which leaves the collapsed coordinates free, would move further and further.
    """

    made: Mapping[int, Tensor]
    basis: Basis
    other_IH: Tensor

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        for t in t_B[mask_B].unique().tolist():
            if t in self.made:
                move = self.made[t] @ self.other_IH * self.basis.std_H
                h_BH = h_BH + torch.where((mask_B & (t_B == t))[:, None], move, 0.0)
        return h_BH


@dataclass(frozen=True)
class Blocks:
    """Block g of equally many rows gets intervention g."""

    inner: tuple[Intervention, ...]

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        blocks = (x.chunk(len(self.inner)) for x in (h_BH, t_B, mask_B))
        return torch.cat([g(h, t, mask) for g, h, t, mask in zip(self.inner, *blocks, strict=True)])


@dataclass(frozen=True)
class AddSteps:
    """Add ``changes`` [S, B, H] at steps 0 to S-1: what Jacobians are taken with respect to."""

    changes: Tensor

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        steps = len(self.changes)
        rows = torch.arange(len(h_BH), device=h_BH.device)
        on_B = mask_B & (t_B >= 0) & (t_B < steps)
        return h_BH + torch.where(on_B[:, None], self.changes[t_B.clamp(0, steps - 1), rows], 0.0)


def nothing(h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
    """The intervention that changes no bit."""
    return h_BH
