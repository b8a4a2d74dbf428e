"""Targets: differentiable numbers of a whole rollout, found by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from analysis.shared.quantities import Quantity, Reading, find_direction, find_quantities, known_quantities
from core import config as cli
from core.contracts import EnvSpec, UserError
from core.directions import Basis
from core.roll import Trajectory


@dataclass(frozen=True)
class Target:
    """A differentiable number of a whole rollout.

    ``trace``: a Trajectory -> what is shown of each step, [B, T+1].  ``total``: that and ``alive``
    [B, T+1] -> the target y_B, NaN where the rollout ended before it could be read; steps that do not exist
    count for nothing.  sign: 1 to raise it, -1 to lower it.
    """

    name: str
    sign: int
    unit: str
    trace: Callable[[Trajectory], Tensor]
    total: Callable[[Tensor, Tensor], Tensor]

    @property
    def label(self) -> str:
        return f"{self.name}_{'up' if self.sign > 0 else 'down'}"

    def read(self, out: Trajectory) -> Tensor:
        """y_B."""
        return self.total(self.trace(out), out.alive)


def mean_while_alive(y_BT: Tensor, alive_BT: Tensor) -> Tensor:
    """Mean [B] over the steps that exist; NaN where that is fewer than half of them, or a rollout that ends at once
    would be an easy way to any mean."""
    steps_B = alive_BT.sum(1)
    mean_B = torch.where(alive_BT, y_BT, 0).sum(1) / steps_B.clamp_min(1)
    return mean_B.masked_fill(2 * steps_B < alive_BT.shape[1], torch.nan)


def drop(value_BT: Tensor, alive_BT: Tensor, first: int) -> Tensor:
    """Value at ``first`` less that at the last step that exists; NaN where ``first`` does not."""
    last_B = alive_BT.sum(1) - 1
    after_B = value_BT.gather(1, last_B.clamp_min(first)[:, None])[:, 0]
    return (value_BT[:, first] - after_B).masked_fill(last_B < first, torch.nan)


def into(x_BT: Tensor, out: Trajectory) -> Tensor:
    """A row a transition -> a row a step, that of the transition which led to it, where there was one."""
    x = torch.where(out.alive[:, :-1], x_BT, 0)
    return torch.cat([torch.zeros_like(x[:, :1]), x], 1)


def log_of_ending(p_BT: Tensor) -> Tensor:
    """log(1 - prod(1 - p)) [B], with p kept off 0 and 1."""
    stays = torch.log1p(-p_BT.clamp(1e-12, 1 - 1e-6)).sum(1)
    return torch.log(-torch.expm1(stays))


def whole_rollout_targets(first: int) -> dict[str, tuple[str, Any, Any]]:
    """(unit, trace, total) of the targets that are no quantity of a single step."""
    since = max(first, 1)  # no transition leads to step 0
    return {
        "value_drop": ("return", lambda out: out.value, lambda y, alive: drop(y, alive, first)),
        "value_rise": ("return", lambda out: out.value, lambda y, alive: -drop(y, alive, first)),
        "reward": ("reward", lambda out: into(out.reward, out), lambda y, alive: y[:, since:].sum(1)),
        "terminal": ("nats", lambda out: into(out.terminal, out), lambda y, alive: log_of_ending(y[:, since:])),
    }


def per_step(quantity: Quantity, out: Trajectory) -> Tensor:
    """A quantity of analysis.saliency at every step, [B, T+1]."""
    before = torch.cat([out.value[:, :1], out.value[:, :-1]], 1)
    rows = (x.flatten(0, 1) for x in (out.h, out.logits, out.value, before, out.action))
    return quantity.read(Reading(*rows)).unflatten(0, out.value.shape)


def mean_target(quantity: Quantity, sign: int, first: int) -> Target:
    """The mean of a quantity over the steps from ``first``."""
    return Target(
        quantity.name,
        sign,
        quantity.unit,
        lambda out: per_step(quantity, out),
        lambda y, alive: mean_while_alive(y[:, first:], alive[:, first:]),
    )


def find_targets(
    maximise: Sequence[str],
    minimise: Sequence[str],
    first: int,
    spec: EnvSpec,
    basis_of: Callable[[str], Basis],
    basis_kind: str = "ica",
) -> list[Target]:
    """Targets by name, those to raise first.

    Raises UserError where none is named, one is named twice, a name is not known in this world, a direction
    does not exist or a quantity means nothing at step ``first``.
    """
    own, known = whole_rollout_targets(first), known_quantities(spec)
    out: list[Target] = []
    for flag, sign, names in (("--maximise", 1, maximise), ("--minimise", -1, minimise)):
        for name in names:
            if name in own:
                out.append(Target(name, sign, *own[name]))
                continue
            if name not in {*known, *spec.action_names} and find_direction(name, basis_of, basis_kind) is None:
                everything = [*own, *known]
                raise UserError(
                    f"{flag}: no target {name!r}{cli.nearest(name, everything)}; this world has: "
                    f"{', '.join(everything)}, and ica:ID, neurons:ID ... with --hidden_states"
                )
            (quantity,) = find_quantities([name], spec, basis_of, basis_kind)
            if first < quantity.first_step:
                raise UserError(f"{flag} {name} needs --first_step {quantity.first_step} or later")
            out.append(mean_target(quantity, sign, first))
    labels = [target.label for target in out]
    if not out:
        raise UserError("name a target to --maximise or to --minimise, such as --maximise value_drop")
    if len(set(labels)) < len(labels):
        raise UserError(f"{next(x for x in labels if labels.count(x) > 1)!r} is named twice")
    return out
