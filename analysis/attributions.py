"""What captum says of one frame, and what the pictures are worth.

The agent reads the frame of the target step with its memory held fixed; integrated gradients, DeepLift and occlusion
share the change of a quantity, from a baseline frame to this one, out among the pixels.  Where a world has no
such step to hold on to, integrated gradients explain the whole rollout by its latent.

Checks: completeness (does the sum give the change), infidelity and sensitivity (Yeh et al. 2019, arXiv:1901.09392),
insertion and deletion (Petsiuk et al. 2018, arXiv:1806.07421) against a random order, and pictures of randomised agents
and worlds (Adebayo et al. 2018, arXiv:1810.03292) against what two randomised ones and two noises have in common.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from analysis.gradients import agent_gradients, each_copy, reading_at, unroll
from analysis.quantities import Quantity, Reading
from core.contracts import Agent, Simulator

FRAME_METHODS = ("integrated", "deeplift", "occlusion")
POINTS = 17  # of an insertion or deletion curve
ORDERS = 4  # random orders that a curve is compared with
ROWS = 256  # frames an agent reads at once


class Frame(NamedTuple):
    """The frame of the target step, as the agent meets it: rows of S samples."""

    agent: Agent
    obs: dict[str, Tensor]  # [S, ...]
    baseline: dict[str, Tensor]  # [S, ...]
    h_before_SH: Tensor
    value_before_S: Tensor
    chosen_S: Tensor

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(x.detach() for x in self.obs.values())

    @property
    def baselines(self) -> tuple[Tensor, ...]:
        return tuple(x.detach() for x in self.baseline.values())

    @property
    def fixed(self) -> tuple[Tensor, ...]:
        """What is not explained: memory, the value before, the chosen action."""
        return self.h_before_SH.detach(), self.value_before_S.detach(), self.chosen_S

    def read(self, quantity: Quantity) -> Callable[..., Tensor]:
        """(fields ..., memory, value before, chosen) -> y [S]."""

        def run(*args: Tensor) -> Tensor:
            *fields, h, value_before, chosen = args
            return quantity.read(Reading(*self.step(*fields, h), value_before, chosen))

        return run

    def step(self, *args: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(fields ..., memory) -> h, logits, value."""
        *fields, h = args
        goes_on = torch.zeros(h.shape[0], dtype=torch.bool, device=h.device)
        after = self.agent.advance(self.agent.encode(dict(zip(self.obs, fields, strict=True))), h, goes_on)
        logits, value = self.agent.heads(after)
        return after, logits, value


class Attribution(NamedTuple):
    """maps [S, ...] a field, in units of the quantity; delta: by how much their sum misses the change, [S], where the
    method promises that it does not."""

    maps: dict[str, Tensor]
    delta: Tensor | None


@contextmanager
def quietly() -> Iterator[None]:
    """Without captum's notes of what it does to modules and inputs on its way."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*Setting forward, backward hooks", UserWarning)
        warnings.filterwarnings("ignore", "Input Tensor . did not already require gradients", UserWarning)
        yield


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


def deeplift(frame: Frame, quantity: Quantity) -> Attribution:
    """Captum's DeepLift, rescale rule (Shrikumar et al. 2017, arXiv:1704.02685).

    Captum has the rule for ReLU, sigmoid and tanh.  Through the products of a GRU's gates, layer norms and the
    log-sum-exp of a log-probability it would pass plain gradients: a layer norm has none along its own input, which is
    where a frame differs from a black one, and the attributions sum to nothing.  ``OneFrame`` gives these the same
    rule: secants of functions of one number, and the mean factor for products.
    """
    maps, delta = _deeplift(frame, quantity)(
        frame.inputs, baselines=frame.baselines, additional_forward_args=frame.fixed, return_convergence_delta=True
    )
    return Attribution(dict(zip(frame.obs, maps, strict=True)), delta)


def _deeplift(frame: Frame, quantity: Quantity) -> Callable[..., Any]:
    from captum.attr import DeepLift

    module = OneFrame(frame, quantity)

    def explain(inputs: Any, **options: Any) -> Any:
        with quietly():
            return DeepLift(module).attribute(inputs, **options)

    return explain


class OneFrame(nn.Module):
    """A frame's quantity with a module of its own for every nonlinearity, which captum's DeepLift needs.

    DeepLift hooks modules of ReLU, sigmoid and tanh that run once and whose input nothing else reads; torch.relu, the
    gates inside a GRU cell and the skip of a residual block would go wrong without a word.  So the agent's step is
    traced to single operations.
    """

    def __init__(self, frame: Frame, quantity: Quantity) -> None:
        super().__init__()
        self.step = modules_of(frame.read(quantity), (*frame.inputs, *frame.fixed), frame.agent)

    def forward(self, *args: Tensor) -> Tensor:
        out: Tensor = self.step(*args)
        return out


def modules_of(step: Callable[..., Any], rows: Sequence[Tensor], agent: Agent) -> nn.Module:
    """``step`` as a graph, for any number of rows, in which every nonlinearity is a module of its own."""
    from torch.fx.experimental.proxy_tensor import make_fx

    # Tracing takes numbers that are equal for the same number, and 1 for a constant.
    parameters = list(agent.parameters()) if isinstance(agent, nn.Module) else []
    taken = {size for x in (*rows, *parameters) for size in x.shape}
    batch = next(n for n in itertools.count(2) if n not in taken)
    with torch.no_grad():
        graph = make_fx(step, tracing_mode="symbolic", _allow_non_fake_inputs=True)(
            *(torch.cat([x[:1]] * batch) for x in rows)
        )
    aten = torch.ops.aten
    kinds: dict[Any, Callable[..., nn.Module]] = {
        aten.relu.default: nn.ReLU, aten.sigmoid.default: nn.Sigmoid, aten.tanh.default: nn.Tanh,
        aten.mul.Tensor: Product, aten.native_layer_norm.default: SecantLayerNorm,
        aten.logsumexp.default: SecantLogSumExp,
    }  # fmt: skip
    for n, node in enumerate(list(graph.graph.nodes)):
        if node.op != "call_function":
            continue
        if isinstance(node.target, torch._ops.OpOverload):
            name = node.target._schema.name.removeprefix("aten::")
            if name.endswith("_"):  # in place, inside a GRU cell; the rules need both operands whole
                node.target = getattr(getattr(aten, name[:-1]), node.target._overloadname)
        if node.target not in kinds or (node.target is aten.mul.Tensor and len(node.all_input_nodes) < 2):
            continue
        graph.add_submodule(f"rule_{n}", kinds[node.target]())
        args = node.args
        if len(args) == 1:  # captum's hooks overwrite all of the gradient of a module's input, a residual's too
            with graph.graph.inserting_before(node):
                args = (graph.graph.call_function(aten.clone.default, args),)
        with graph.graph.inserting_after(node):
            node.replace_all_uses_with(graph.graph.call_module(f"rule_{n}", args))
        graph.graph.erase_node(node)
    graph.graph.lint()
    graph.recompile()
    out: nn.Module = graph
    return out


# Rules that captum lacks.  DeepLift runs frames and baselines as one batch, frames first.


def _secant(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """(y - y0) / (x - x0) for both halves; ``slope`` where they do not differ."""
    (dx, dy) = (torch.cat([half[0] - half[1]] * 2) for half in (x.chunk(2), y.chunk(2)))
    same = dx.abs() < 1e-6
    return torch.where(same, slope, dy / torch.where(same, torch.ones_like(dx), dx))


def _middle(x: Tensor) -> Tensor:
    a, b = x.chunk(2)
    return torch.cat([(a + b) / 2] * 2)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        a, b = ctx.saved_tensors
        return grad * _middle(b), grad * _middle(a)


class Product(nn.Module):
    """a * b = a0 * b0 + mean(b) (a - a0) + mean(a) (b - b0)."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = _Product.apply(a, b) if a.shape == b.shape else a * b
        return out


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True) + eps
        ctx.save_for_backward(centred, variance)
        return centred * variance.rsqrt()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        centred, variance = ctx.saved_tensors
        scale, middle = variance.rsqrt(), _middle(centred)
        slope = _secant(variance, scale, -0.5 * variance.pow(-1.5))
        through = slope * (grad * middle).sum(-1, keepdim=True) * 2 * middle / centred.shape[-1]
        out = grad * _middle(scale) + through
        return out - out.mean(-1, keepdim=True), None


class SecantLayerNorm(nn.Module):
    """Layer norm of the last axis as squares, a secant of the inverse root, and a product."""

    def forward(
        self, x: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, None, None]:
        if len(shape) != 1:
            raise ValueError(f"layer norm of {len(shape)} axes has no rule here")
        return _LayerNorm.apply(x, eps) * weight + bias, None, None


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.logsumexp(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        top = torch.cat([torch.maximum(*x.chunk(2)).amax(-1, keepdim=True)] * 2)
        share = (x - top).exp()
        total = share.sum(-1, keepdim=True)
        of_log = _secant(total, total.log(), 1 / total)
        return grad[..., None] * of_log * _secant(x, share, share)


class SecantLogSumExp(nn.Module):
    """Log-sum-exp of the last axis as a secant of the exponentials and one of the logarithm."""

    def forward(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        if list(axes) not in ([-1], [x.ndim - 1]):
            raise ValueError(f"log-sum-exp over axes {list(axes)} has no rule here")
        out: Tensor = _LogSumExp.apply(x)
        return out


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
    simulator: Simulator, z_SZ: Tensor, chosen_S: Tensor, quantity: Quantity, target: int, steps: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Captum's integrated gradients of the whole rollout, agent and world, by its latent: (maps [S, Z], change of the
    quantity [S], delta [S]) from the latent 0, a Gaussian world's most likely one.

    A discrete choice of agent or world on the path makes the quantity jump, and its straight-through gradient does not
    see that: the delta is what the jumps did.
    """

    def read(z: Tensor, chosen: Tensor) -> Tensor:
        _, outs = unroll(simulator, simulator.start(z), target + 1)
        return quantity.read(reading_at(outs, target, chosen))

    from captum.attr import IntegratedGradients

    zero = torch.zeros_like(z_SZ)
    maps, delta = IntegratedGradients(read).attribute(
        z_SZ, baselines=zero, additional_forward_args=(chosen_S,), n_steps=steps, return_convergence_delta=True,
        internal_batch_size=max(rows, len(z_SZ)),
    )  # fmt: skip
    with torch.no_grad():
        change = read(z_SZ, chosen_S) - read(zero, chosen_S)
    return maps.detach(), change, delta.detach()


# Checks of a picture.  Each gives a value and a control a sample, float64 [S, 2].


def explainer(
    frame: Frame, quantity: Quantity, method: str, steps: int, window: int, stride: int
) -> Callable[..., Any]:
    """A method as a function of (inputs, baselines, additional_forward_args)."""
    if method == "deeplift":
        return _deeplift(frame, quantity)
    if method == "occlusion":
        return _occlusion(frame.read(quantity), window, stride)
    if method == "integrated":
        return _integrated(frame.read(quantity), steps, len(frame.chosen_S))

    from captum.attr import Saliency

    def gradient(inputs: Any, baselines: Any = None, **options: Any) -> Any:
        with quietly():
            return Saliency(frame.read(quantity)).attribute(inputs, abs=False, **options)

    return gradient


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
    """bool like x: a random square of a picture, a quarter as wide and as high; a random half of other fields."""
    if x.ndim != 4:
        return torch.rand_like(x) < 0.5
    side = max(1, x.shape[1] // 4)
    corner = torch.randint(0, x.shape[1] - side + 1, (2, len(x), 1), device=x.device)
    along = torch.arange(x.shape[1], device=x.device)
    rows, columns = ((along >= c) & (along < c + side) for c in corner)
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


# Randomised agents and worlds


def shuffle(module: nn.Module, seed: int, chosen: Callable[[str], bool] = lambda name: True) -> None:
    """Shuffle the entries of every weight tensor whose name is chosen, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if chosen(name):
                order = torch.randperm(p.numel(), generator=generator).to(p.device)
                p.copy_(p.flatten()[order].view_as(p))


def randomised(agent: Agent, seed: int, parts: Sequence[str] | None = None) -> Agent:
    """A copy of the agent with the entries of every weight tensor shuffled: nothing learned, same scales.

    parts: only these (the first words of the names of its weights)."""
    if not isinstance(agent, nn.Module):
        raise TypeError("only an agent that is a torch module can be randomised")
    other = copy.deepcopy(agent)
    shuffle(other, seed, lambda name: parts is None or name.split(".")[0] in parts)
    out: Agent = other
    return out


def randomised_world(simulator: Simulator, seed: int) -> Simulator:
    """A copy of the simulator with the weights of everything but the agent shuffled."""
    if not isinstance(simulator, nn.Module):
        raise TypeError("only a simulator that is a torch module can be randomised")
    other = copy.deepcopy(simulator)
    shuffle(other, seed, lambda name: not name.startswith("agent."))
    out: Simulator = other
    return out


def parts_from_the_output(agent: Agent) -> list[str]:
    """Parts of an agent, the last computed first: those that are registered last."""
    if not isinstance(agent, nn.Module):
        return []
    return list(dict.fromkeys(name.split(".")[0] for name, _ in reversed(list(agent.named_parameters()))))


def rank_correlation(a_BX: np.ndarray, b_BX: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation [B] of the absolute values of two maps, row by row; NaN for a constant map."""
    from scipy.stats import rankdata

    ranks = [rankdata(np.abs(x.reshape(len(x), -1)), axis=1) for x in (a_BX, b_BX)]
    a, b = (r - r.mean(1, keepdims=True) for r in ranks)
    norm = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.divide((a * b).sum(1), norm, out=np.full(len(a), np.nan), where=norm > 0)


def agent_randomisation(
    agent: Agent, seen: Mapping[str, Tensor], h_first_SH: Tensor, chosen_S: Tensor, quantity: Quantity, seed: int,
    noise: float, cascade: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Pictures of the last of the frames [S, T, ...] by the agent and by agents with shuffled weights.

    By what is shuffled: rank correlations [S, 3] of |gradient| between the agent and a shuffled one; between two
    shuffled ones; and the agent's own under two noises of the frames.
    cascade: also with the parts shuffled one after the other, from the output back.  noise: standard deviation.
    """

    def last(who: Agent, frames: Mapping[str, Tensor]) -> np.ndarray:
        maps = agent_gradients(who, frames, h_first_SH, chosen_S, quantity)
        return np.concatenate([x[:, -1].flatten(1).cpu().numpy() for x in maps.values()], 1)

    generator = torch.Generator().manual_seed(seed)

    def noised(x: Tensor) -> Tensor:  # the same for every sample, whatever its batch
        return x + noise * torch.randn(x.shape[1:], generator=generator, dtype=x.dtype).to(x.device)

    mine, whole = last(agent, seen), last(randomised(agent, seed), seen)
    found = {"agent": rank_correlation(mine, whole)}
    parts = parts_from_the_output(agent) if cascade else []
    for n in range(1, len(parts)):
        name = "agent, from the output to " + parts[n - 1]
        found[name] = rank_correlation(mine, last(randomised(agent, seed, parts[:n]), seen))
    floor = rank_correlation(whole, last(randomised(agent, seed + 1), seen))
    ceiling = rank_correlation(*(last(agent, {n: noised(x) for n, x in seen.items()}) for _ in range(2)))
    return {name: np.stack([x, floor, ceiling], 1) for name, x in found.items()}


def world_randomisation(
    simulator: Simulator, z_SZ: Tensor, chosen_S: Tensor, quantities: Sequence[Quantity], target: int, seed: int,
    noise: float,
) -> list[dict[str, np.ndarray]]:  # fmt: skip
    """The same for the world around the agent, a quantity each: gradients on all frames up to the target, and on d.

    The noise is the latent's.  A shuffled world also shows and does other things, so that its pictures are of other
    frames.
    """
    generator = torch.Generator().manual_seed(seed)

    def maps(world: Simulator, z: Tensor) -> list[dict[str, np.ndarray]]:
        found = each_copy(world, z, chosen_S, quantities, target, steps=target)
        return [
            {
                "frames": np.concatenate([x.flatten(1).cpu().numpy() for x in g.obs.values()], 1),
                "world states": g.d.flatten(1).cpu().numpy(),
            }
            for g in found
        ]

    def noised() -> Tensor:
        return simulator.normalise(
            z_SZ + noise * torch.randn(z_SZ.shape[1:], generator=generator, dtype=z_SZ.dtype).to(z_SZ.device)
        )

    mine = maps(simulator, z_SZ)
    one, two = (maps(randomised_world(simulator, seed + n), z_SZ) for n in range(2))
    again = [maps(simulator, noised()) for _ in range(2)]
    return [
        {
            f"world, on {what}": np.stack(
                [rank_correlation(x[q][what], y[q][what]) for x, y in ((mine, one), (one, two), tuple(again))], 1
            )
            for what in mine[q]
        }
        for q in range(len(quantities))
    ]
