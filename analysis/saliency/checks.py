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

from analysis.saliency.frame import ROWS, Frame
from analysis.shared.quantities import Quantity

POINTS = 17  # of an insertion or deletion curve
ORDERS = 4  # random orders that a curve is compared with


def infidelity(
    frame: Frame, quantity: Quantity, maps: Mapping[str, Tensor], local: bool, draws: int, seed: int
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
        return np.asarray(found.cpu(), np.float64)

    generator = torch.Generator().manual_seed(seed)
    real = [maps[n].detach() for n in frame.obs]
    return np.stack([score(real), score([_shuffled(x, generator) for x in real])], 1)


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


def _shuffled(x: Tensor, generator: torch.Generator) -> Tensor:
    """Every row with its pixels (the colours of one together) in another order, the same for all."""
    flat = x.flatten(1, 2) if x.ndim == 4 else x.flatten(1)
    return flat[:, torch.randperm(flat.shape[1], generator=generator).to(x.device)].view_as(x)


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


def curves(frame: Frame, quantity: Quantity, score: Mapping[str, Tensor], insertion: bool) -> Tensor:
    """y [S, POINTS] as the places of the highest score go (deletion) or come (insertion); a place is a pixel of a
    picture with all its colours, or a number of another field."""
    places = torch.cat([(x.sum(-1) if x.ndim == 4 else x).flatten(1) for x in score.values()], 1)
    rank = places.argsort(1, descending=True).argsort(1)
    out = []
    with torch.no_grad():
        for k in torch.linspace(0, places.shape[1], POINTS).round().tolist():
            first, fields = 0, []
            for name, x in frame.obs.items():
                size = x[0].numel() // (x.shape[-1] if x.ndim == 4 else 1)
                done = rank[:, first : first + size] < k
                done = done.view(*x.shape[:3], 1) if x.ndim == 4 else done.view_as(x)
                fields.append(torch.where(done == insertion, x, frame.baseline[name]))
                first += size
            out.append(frame.read(quantity)(*fields, *frame.fixed))
    return torch.stack(out, 1)


def areas(frame: Frame, quantity: Quantity, maps: Mapping[str, Tensor], insertion: bool, seed: int) -> np.ndarray:
    """Mean height of the curve, in units of the quantity; control: the mean over random orders."""

    def area(y: Tensor) -> np.ndarray:
        return np.asarray(torch.trapezoid(y, dim=1).cpu(), np.float64) / (POINTS - 1)

    generator = torch.Generator().manual_seed(seed)
    mine = area(curves(frame, quantity, {n: x.detach() for n, x in maps.items()}, insertion))
    orders = [
        {n: torch.rand(x.shape[1:], generator=generator).to(x).expand_as(x) for n, x in maps.items()}
        for _ in range(ORDERS)
    ]
    others = [area(curves(frame, quantity, order, insertion)) for order in orders]
    return np.stack([mine, np.mean(others, 0)], 1)
