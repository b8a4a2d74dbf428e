"""What captum says of one frame.

The agent reads the frame of the target step with its memory held fixed; integrated gradients, DeepLift and occlusion
share the change of a quantity, from a baseline frame to this one, out among the pixels.  Where a world has no
such step to hold on to, integrated gradients explain the whole rollout by its latent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from analysis.saliency.deeplift import OneFrame
from analysis.saliency.frame import ROWS, Attribution, Frame, quietly
from analysis.shared.gradients import reached, reading_at, unroll
from analysis.shared.quantities import Quantity
from core.roll import Simulator


def integrated(frame: Frame, quantity: Quantity, steps: int) -> Attribution:
    """Captum's integrated gradients (Sundararajan et al. 2017, arXiv:1703.01365), ``steps`` points of the path."""
    maps, delta = _integrated(frame.read(quantity), steps, len(frame.chosen_S))(
        frame.inputs, baselines=frame.baselines, additional_forward_args=frame.fixed, return_convergence_delta=True
    )
    return Attribution(dict(zip(frame.obs, maps, strict=True)), delta)


def _integrated(read: Callable[..., Tensor], steps: int, rows: int) -> Callable[..., Any]:
    from captum.attr import IntegratedGradients

    def explain(inputs: Any, **options: Any) -> Any:
        return IntegratedGradients(read).attribute(
            inputs, n_steps=steps, internal_batch_size=max(ROWS, rows, len(inputs[0])), **options
        )

    return explain


def deeplift(frame: Frame, quantity: Quantity, steps: dict[int, nn.Module] | None = None) -> Attribution:
    """Captum's DeepLift, rescale rule (Shrikumar et al. 2017, arXiv:1704.02685).

    steps: see ``OneFrame``; one dictionary for all calls with the same agent saves most of their time.

    Captum has the rule for ReLU, and one for sigmoid and tanh that rounding gets the better of where a number is near
    its baseline's.  Through the products of a GRU's gates, layer norms and the log-sum-exp of a log-probability it
    would pass plain gradients: a layer norm has none along its own input, which is where a frame differs from a black
    one, and the attributions sum to nothing.  ``OneFrame`` gives all these the same rule: secants of functions of one
    number (near the baseline, slopes), and the mean factor for products.
    """
    maps, delta = _deeplift(frame, quantity, {} if steps is None else steps)(
        frame.inputs, baselines=frame.baselines, additional_forward_args=frame.fixed, return_convergence_delta=True
    )
    return Attribution(dict(zip(frame.obs, maps, strict=True)), delta)


def _deeplift(frame: Frame, quantity: Quantity, steps: dict[int, nn.Module]) -> Callable[..., Any]:
    from captum.attr import DeepLift

    traced: dict[int, OneFrame] = {}

    def explain(inputs: Any, **options: Any) -> Any:
        rows = 2 * len(inputs[0])  # frames and baselines
        if rows not in traced:
            traced[rows] = OneFrame(frame, quantity, rows, steps)
        with quietly():
            return DeepLift(traced[rows]).attribute(inputs, **options)

    return explain


def occlusion(frame: Frame, quantity: Quantity, window: int, stride: int) -> Attribution:
    """Captum's occlusion: how much of the quantity goes when a square of the frame becomes the baseline; per pixel the
    mean over the squares that hold it.  A field that is no picture loses one number at a time."""
    maps = _occlusion(frame.read(quantity), window, stride)(
        frame.inputs, baselines=frame.baselines, additional_forward_args=frame.fixed
    )
    return Attribution(dict(zip(frame.obs, maps, strict=True)), None)


def _occlusion(read: Callable[..., Tensor], window: int, stride: int) -> Callable[..., Any]:
    from captum.attr import Occlusion

    def explain(inputs: Any, **options: Any) -> Any:
        squares, steps = [], []
        for x in inputs:
            picture = x.ndim == 4
            squares.append((window, window, x.shape[-1]) if picture else (1,) * (x.ndim - 1))
            steps.append((stride, stride, x.shape[-1]) if picture else (1,) * (x.ndim - 1))
        with torch.no_grad():
            return Occlusion(read).attribute(
                inputs, sliding_window_shapes=tuple(squares), strides=tuple(steps),
                perturbations_per_eval=max(1, ROWS // len(inputs[0])), **options,
            )  # fmt: skip

    return explain


def latent(
    simulator: Simulator[Any], z_SZ: Tensor, chosen_S: Tensor, quantity: Quantity, target: int, steps: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Captum's integrated gradients of the whole rollout, agent and world, by its latent: (maps [S, Z], change of the
    quantity [S], delta [S]) from the latent 0, a Gaussian world's most likely one.

    A discrete choice of agent or world on the path makes the quantity jump, and its straight-through gradient does not
    see that: the delta is what the jumps did.
    """

    def read(z: Tensor, chosen: Tensor) -> Tensor:
        return reached(quantity.read(reading_at(unroll(simulator, z, target), target, chosen)), [z])

    from captum.attr import IntegratedGradients

    zero = torch.zeros_like(z_SZ)
    maps, delta = IntegratedGradients(read).attribute(
        z_SZ, baselines=zero, additional_forward_args=(chosen_S,), n_steps=steps, return_convergence_delta=True,
        internal_batch_size=max(rows, len(z_SZ)),
    )  # fmt: skip
    with torch.no_grad():
        change = read(z_SZ, chosen_S) - read(zero, chosen_S)
    return maps.detach(), change, delta.detach()


def explainer(
    frame: Frame, quantity: Quantity, method: str, steps: int, window: int, stride: int
) -> Callable[..., Any]:
    """A method as a function of (inputs, baselines, additional_forward_args)."""
    if method == "deeplift":
        return _deeplift(frame, quantity, {})
    if method == "occlusion":
        return _occlusion(frame.read(quantity), window, stride)
    if method == "integrated":
        return _integrated(frame.read(quantity), steps, len(frame.chosen_S))

    from captum.attr import Saliency

    def gradient(inputs: Any, baselines: Any = None, **options: Any) -> Any:
        with quietly():
            return Saliency(frame.read(quantity)).attribute(inputs, abs=False, **options)

    return gradient
