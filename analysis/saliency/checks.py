"""What pictures of a frame are worth: infidelity and sensitivity (Yeh et al. 2019, arXiv:1901.09392), insertion and
deletion (Petsiuk et al. 2018, arXiv:1806.07421) against a random order.

Each check gives a value and a control a sample, float64 [S, 2].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.saliency.frame import ROWS, Frame, generator_of
from analysis.shared.quantities import Quantity

POINTS = 17  # of an insertion or deletion curve
ORDERS = 4  # random orders that a curve is compared with


def infidelity(
    frame: Frame, quantity: Quantity, maps: Mapping[str, Tensor], local: bool, draws: int, ids: Sequence[int], seed: int
) -> np.ndarray:
    """Captum's infidelity, squared units, normalised for the scale of the map: how badly it foretells what squares of
    baseline do to the quantity.  Control: the same map with its pixels shuffled.

    local: a gradient, which is multiplied by the change of a pixel; else a share of the change.
    """
    from captum.metrics import infidelity as of_captum, infidelity_perturb_func_decorator

    @infidelity_perturb_func_decorator(multiply_by_inputs=not local)
    def squares(inputs: Any, baselines: Any) -> Any:
        if isinstance(inputs, Tensor):  # captum unpacks a single field
            return torch.where(_blot(inputs), baselines, inputs)
        return tuple(torch.where(_blot(x), b, x) for x, b in zip(inputs, baselines, strict=True))

    def score(of: Sequence[Tensor]) -> np.ndarray:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            found = of_captum(
                frame.read(quantity), squares, frame.inputs, tuple(of), baselines=frame.baselines,
                additional_forward_args=frame.fixed, n_perturb_samples=draws,
                max_examples_per_batch=batch_of(len(frame.chosen_S), draws, ROWS),
                normalize=True,
            )  # fmt: skip
        return np.maximum(np.asarray(found.cpu(), np.float64), 0.0)  # a mean square, but for captum's rounding

    real = [maps[n].detach() for n in frame.obs]
    return np.stack([score(real), score([_shuffled(x, ids, seed) for x in real])], 1)


def drawn(shape: Sequence[int], ids: Sequence[int], seed: int, copy: int = 0) -> Tensor:
    """Uniform numbers [S, ...], of each sample its own, so that intervals over samples know of what is drawn."""
    return torch.stack([torch.rand(tuple(shape), generator=generator_of(seed, i, copy)) for i in ids])


def batch_of(samples: int, draws: int, most: int) -> int:
    """Rows that captum's metrics run at once: whole draws of all samples."""
    return samples * max(1, min(draws, most // samples))


def _blot(x: Tensor) -> Tensor:
    """bool like x: a random box of a picture, a quarter as wide and as high; a random half of other fields."""
    if x.ndim != 4:
        return torch.rand_like(x) < 0.5

    def stretch(size: int) -> Tensor:
        side, along = max(1, size // 4), torch.arange(size, device=x.device)
        first = torch.randint(0, size - side + 1, (len(x), 1), device=x.device)
        return (along >= first) & (along < first + side)

    rows, columns = (stretch(size) for size in x.shape[1:3])
    return (rows[:, :, None] & columns[:, None, :])[..., None].expand_as(x)


def _shuffled(x: Tensor, ids: Sequence[int], seed: int) -> Tensor:
    """Every row with its pixels (the colours of one together) in another order."""
    flat = x.flatten(1, 2) if x.ndim == 4 else x.flatten(1)
    order = drawn(flat.shape[1:2], ids, seed).argsort(1).to(x.device)
    return torch.stack([row[at] for row, at in zip(flat, order, strict=True)]).view_as(x)


def sensitivity(frame: Frame, explain: Callable[..., Any], radius: float, draws: int, seed: int) -> np.ndarray:
    """Captum's sensitivity_max: the largest change of the picture, relative to its norm, under noise of up to
    ``radius`` in every number of the frame; float64 [S]."""
    from captum.metrics import sensitivity_max

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        found = sensitivity_max(
            explain, frame.inputs, perturb_radius=radius, n_perturb_samples=draws,
            max_examples_per_batch=batch_of(len(frame.chosen_S), draws, ROWS // 4),
            baselines=frame.baselines, additional_forward_args=frame.fixed,
        )  # fmt: skip
    return np.asarray(found.detach().cpu(), np.float64)


def ranks_of(score: Mapping[str, Tensor], ties: Tensor) -> Tensor:
    """The rank of every place, the highest score first, int64 [S, P]; equal scores in the order of ``ties`` [S, P].  A
    place is a pixel of a picture with all its colours, or a number of another field."""
    places = torch.cat([(x.detach().sum(-1) if x.ndim == 4 else x.detach()).flatten(1) for x in score.values()], 1)
    at = ties.to(places.device).argsort(1)
    order = at.gather(1, places.gather(1, at).argsort(dim=1, descending=True, stable=True))
    return order.argsort(1)


def curves(frame: Frame, quantity: Quantity, rank: Tensor, insertion: bool) -> Tensor:
    """y [S, POINTS] as the places of the lowest rank go (deletion) or come (insertion)."""
    out = []
    with torch.no_grad():
        for k in torch.linspace(0, rank.shape[1], POINTS).round().tolist():
            first, fields = 0, []
            for name, x in frame.obs.items():
                size = x[0].numel() // (x.shape[-1] if x.ndim == 4 else 1)
                done = rank[:, first : first + size] < k
                done = done.view(*x.shape[:3], 1) if x.ndim == 4 else done.view_as(x)
                fields.append(torch.where(done == insertion, x, frame.baseline[name]))
                first += size
            out.append(frame.read(quantity)(*fields, *frame.fixed))
    return torch.stack(out, 1)


def areas(
    frame: Frame, quantity: Quantity, maps: Mapping[str, Tensor], insertion: bool, ids: Sequence[int], seed: int
) -> np.ndarray:
    """Mean height of the curve, in units of the quantity; control: the mean over random orders, of each sample its own.
    A map that is the same everywhere is a random order, too."""

    def area(y: Tensor) -> np.ndarray:
        return np.asarray(torch.trapezoid(y, dim=1).cpu(), np.float64) / (POINTS - 1)

    size = sum(x[0].numel() // (x.shape[-1] if x.ndim == 4 else 1) for x in maps.values())
    ties, *orders = (drawn((size,), ids, seed, copy) for copy in range(ORDERS + 1))
    mine = area(curves(frame, quantity, ranks_of(maps, ties), insertion))
    here = next(iter(maps.values())).device
    others = [area(curves(frame, quantity, order.argsort(1).argsort(1).to(here), insertion)) for order in orders]
    return np.stack([mine, np.mean(others, 0)], 1)
