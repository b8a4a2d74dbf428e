"""Gradients of quantities with respect to everything that a simulated rollout went through.

A gradient averaged over noised copies of a latent (SmoothGrad, Smilkov et al. 2017, arXiv:1706.03825) is a mean of
products of local derivatives.  The copies differ by little, so that those of smooth layers are those at the mean
latent, up to the square of the noise; only where a ReLU opens or a choice turns do they jump.  ``gradients`` therefore
runs all copies forward, notes which share of them opens each ReLU, and goes backward once a sample, not once a copy,
with those shares for derivatives.  Copies that choose otherwise (an action, a category of the world) are a group of
their own.  Of the samples those whose copies differ most, an eighth, are checked against the long way (two sums of all
quantities); if one misses, all others are checked too, and those that miss are done the long way.  If they hold, the
others are taken on trust: an approximation.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from analysis.quantities import Quantity, Reading
from core.contracts import Agent, SimState, Simulator, StepNoise, StepOut

TOLERANCE = 1e-5  # of the largest entry of a gradient: what the short way may miss
CHECKED = 8  # of so many samples one is checked
RELUS = (torch.relu, F.relu, torch.Tensor.relu)


# Rollouts whose every step stays open to gradients


def unroll(
    simulator: Simulator,
    state: SimState,
    steps: int,
    env_grads: bool = True,
    noise: Sequence[StepNoise] | None = None,
) -> tuple[list[SimState], list[StepOut]]:
    """``steps`` steps from ``state``, modal without noise: the state before each and after the last, and what came out.

    The frames, h and d of a StepOut are the very tensors that the rest of the rollout was computed
    from, so that torch.autograd.grad can be asked for them.  Gradients through an action, or through a category of
    the world, are straight-through (core.contracts).
    """
    states, outs = [state], []
    for t in range(steps):
        state, out = simulator.step(state, noise=None if noise is None else noise[t], env_grads=env_grads)
        states.append(state)
        outs.append(out)
    return states, outs


TENSORS = [name for name in SimState._fields if name != "t"]


def rows_of(state: SimState, rows: slice | Tensor, change: Callable[[Tensor], Tensor] = lambda x: x) -> SimState:
    """Some rows of a state (a slice, or int64), every tensor of them passed through ``change``."""
    return replaced(state, {name: change(getattr(state, name)[rows]) for name in TENSORS})


def replaced(state: SimState, tensors: Mapping[str, Any]) -> SimState:
    """The state with other tensors."""
    return state._replace(**tensors)


def reading_at(outs: Sequence[StepOut], target: int, chosen_B: Tensor) -> Reading:
    """The reading of step ``target``; chosen: the action whose probability ``action`` means."""
    now, before = outs[target], outs[max(0, target - 1)]
    return Reading(now.h_BH, now.logits_BA, now.value_B, before.value_B, chosen_B, now.d_BD)


def saved_bytes(forward: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """Bytes that autograd keeps for the backward pass of ``forward()``, without the parameters."""
    saved: list[weakref.ref[Tensor]] = []

    def note(x: Tensor) -> Tensor:
        held = x.detach()  # what a node saves may be its own result, which would keep the node alive for ever
        saved.append(weakref.ref(held))
        return held

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        kept = forward()
    # Of what the result does not depend on nothing is held any more, and its addresses may have been used again.
    storages = [x.untyped_storage() for ref in saved if (x := ref()) is not None]
    bytes_at = {storage.data_ptr(): storage.nbytes() for storage in storages}
    for p in parameters:
        bytes_at.pop(p.untyped_storage().data_ptr(), None)
    del kept
    return sum(bytes_at.values())


def samples_that_fit(simulator: Simulator, z_1Z: Tensor, steps: int, copies: int, memory_bytes: float) -> int:
    """How many samples (of ``copies`` rows each) one forward pass of ``steps`` steps may hold, at least 1."""
    parameters = simulator.parameters() if isinstance(simulator, torch.nn.Module) else ()
    z = z_1Z[:1].detach().requires_grad_()
    row = saved_bytes(lambda: unroll(simulator, simulator.start(z), steps), parameters)
    return max(1, int(memory_bytes // max(1, row * copies)))


# Copies


class Copies(NamedTuple):
    """The copies of S samples in R groups that make the same choices all along, from one pass without gradients."""

    reading: Reading  # of every copy
    mean_RZ: Tensor  # the mean latent of each group
    chosen_R: Tensor  # the chosen action of its sample
    sample_R: Tensor  # int64, whose copies they are
    weight_R: Tensor  # share of the sample's copies
    open: list[Tensor]  # per ReLU, in the order of the calls: the share of a group's copies that open it, [R, ...]
    choices_R: list[bytes]
    trusted: bool  # False: a ReLU works on rows that are no copies


class _NoteReLUs(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in RELUS:
            self.open.append(out > 0)
        return out


class _OpenedReLU(torch.autograd.Function):
    """relu(x), whose derivative is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, open_: Tensor) -> Tensor:
        ctx.save_for_backward(open_)
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.saved_tensors[0], None


class _ReplayReLUs(TorchFunctionMode):
    def __init__(self, opened: Iterator[Tensor]) -> None:
        super().__init__()
        self.opened = opened

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in RELUS:
            return _OpenedReLU.apply(args[0], next(self.opened))
        return func(*args, **(kwargs or {}))


def _choices(states: Sequence[SimState], outs: Sequence[StepOut]) -> list[bytes]:
    """What each rollout chose: categories of the world (one-hot states) and actions."""
    bits = torch.cat([state.s_BS > 0.5 for state in states], 1).cpu().numpy()
    actions = torch.stack([out.action_B for out in outs], 1).cpu().numpy()
    return [b.tobytes() + a.tobytes() for b, a in zip(np.packbits(bits, axis=1), actions, strict=True)]


def compare_copies(simulator: Simulator, z_BZ: Tensor, chosen_B: Tensor, target: int, copies: int) -> Copies:
    """Run every copy without gradients.  z [S * copies, Z]: the copies of a sample beside each other."""
    with torch.no_grad(), _NoteReLUs() as note:
        states, outs = unroll(simulator, simulator.start(z_BZ), target + 1)
    keys = [(i // copies, choice) for i, choice in enumerate(_choices(states, outs))]
    groups = list(dict.fromkeys(keys))
    number = {key: r for r, key in enumerate(groups)}
    of_B = torch.tensor([number[key] for key in keys], device=z_BZ.device)
    count_R = torch.bincount(of_B).to(z_BZ.dtype)

    def mean(x: Tensor) -> Tensor:
        total = z_BZ.new_zeros(len(groups), *x.shape[1:]).index_add(0, of_B, x.to(z_BZ.dtype))
        return total / count_R.view(-1, *[1] * (x.ndim - 1))

    trusted = all(len(x) == len(z_BZ) for x in note.open)
    sample_R = torch.tensor([sample for sample, _ in groups], device=z_BZ.device)
    return Copies(
        reading_at(outs, target, chosen_B), simulator.normalise(mean(z_BZ)), chosen_B[sample_R * copies], sample_R,
        count_R / copies, [mean(x) for x in note.open] if trusted else [], [choice for _, choice in groups], trusted,
    )  # fmt: skip


# Gradients


class Gradients(NamedTuple):
    """Gradients of one quantity, a row a sample, averaged over its copies; zero after the target step."""

    y: Tensor  # [S], the quantity
    obs: dict[str, Tensor]  # [S, T+1, ...], per unit of the observation
    h: Tensor  # [S, T+1, H]
    d: Tensor  # [S, T+1, D]


def gradients(
    simulator: Simulator,
    z_BZ: Tensor,
    chosen_B: Tensor,
    quantities: Sequence[Quantity],
    target: int,
    *,
    steps: int,
    copies: int = 1,
    env_grads: bool = True,
    compared: Copies | None = None,
) -> list[Gradients]:
    """Gradients of every quantity at step ``target`` of modal rollouts.

    z [S * copies, Z]: the copies of a sample beside each other.  steps: transitions T of the result.
    compared: ``compare_copies`` of these, where it is known already.
    """
    options: dict[str, Any] = {"steps": steps, "env_grads": env_grads}
    if copies == 1:
        return each_copy(simulator, z_BZ, chosen_B, quantities, target, copies=1, **options)
    known = compare_copies(simulator, z_BZ, chosen_B, target, copies) if compared is None else compared

    def exactly(s: Tensor, what: Sequence[Quantity]) -> list[Gradients]:
        rows = (s[:, None] * copies + torch.arange(copies, device=s.device)).flatten()
        return each_copy(simulator, z_BZ[rows], chosen_B[rows], what, target, copies=copies, **options)

    if not known.trusted:
        return each_copy(simulator, z_BZ, chosen_B, quantities, target, copies=copies, **options)
    found, wrong = _by_groups(simulator, known, quantities, target, copies=copies, **options)
    if len(wrong):
        found = _put(found, wrong, exactly(wrong, quantities))
    # Samples whose copies differ most stand for all; where one of them misses, nothing is taken on trust.
    spread_S = z_BZ.new_zeros(len(z_BZ) // copies)
    for share in known.open:
        spread_S.index_add_(0, known.sample_R, (share * (1 - share)).flatten(1).sum(1))
    done = set(wrong.tolist())
    order = [s for s in spread_S.argsort(descending=True).tolist() if s not in done]
    few = max(2, -(-len(order) // CHECKED))
    for some in (order[:few], order[few:]):
        if not some:
            break
        at = torch.tensor(some, device=z_BZ.device)
        probes = _probes(found, at)
        exact = exactly(at, [_sum_of(quantities, w.repeat_interleave(copies, 1)) for w in probes])
        missed = at[torch.stack([_misses(e, found, w, at) for e, w in zip(exact, probes, strict=True)]).any(0)]
        if not len(missed):
            break
        found = _put(found, missed, exactly(missed, quantities))
    return found


def _parts(g: Gradients) -> list[Tensor]:
    return [*g.obs.values(), g.h, g.d]


def _probes(found: Sequence[Gradients], at: Tensor) -> list[Tensor]:
    """Two sets of weights [Q, samples]: sums of all quantities, each of about the same size.  Signs and weights differ,
    so that the misses of quantities that are alike do not cancel in both."""
    count = len(found)
    size_QS = torch.stack(
        [next((x for x in map(_largest, _parts(g)) if x[at].any()), _largest(g.d))[at] for g in found]
    )
    even = torch.linspace(1, 2, count).to(size_QS)[:, None] / torch.where(size_QS > 0, size_QS, 1)
    odd = even.new_tensor([(-1) ** q for q in range(count)])[:, None] * even
    return [even, odd] if count > 1 else [even]


def _largest(x: Tensor) -> Tensor:
    return x.flatten(1).abs().amax(1)


def _sum_of(quantities: Sequence[Quantity], weight_QB: Tensor) -> Quantity:
    def read(r: Reading) -> Tensor:
        return torch.stack([w * q.read(r) for q, w in zip(quantities, weight_QB, strict=True)]).sum(0)

    return Quantity("sum", "mixed", read, of_world=all(q.of_world for q in quantities))


def _misses(exact: Gradients, found: Sequence[Gradients], weight_QS: Tensor, at: Tensor) -> Tensor:
    """bool [samples]: whether the sum of what was found is off anywhere, in units of its terms' root sum of squares."""
    out = torch.zeros(len(at), dtype=torch.bool, device=at.device)
    for right, *terms in zip(_parts(exact), *map(_parts, found), strict=True):
        mine = torch.stack([w.view(-1, *[1] * (x.ndim - 1)) * x[at] for w, x in zip(weight_QS, terms, strict=True)])
        scale_S = torch.stack([_largest(x) for x in mine]).square().sum(0).sqrt()
        out |= ~(_largest(mine.sum(0) - right) <= TOLERANCE * scale_S)
    return out


def _put(found: Sequence[Gradients], at: Tensor, new: Sequence[Gradients]) -> list[Gradients]:
    out = []
    for g, n in zip(found, new, strict=True):
        obs = {name: x.index_copy(0, at, n.obs[name]) for name, x in g.obs.items()}
        out.append(Gradients(g.y.index_copy(0, at, n.y), obs, g.h.index_copy(0, at, n.h), g.d.index_copy(0, at, n.d)))
    return out


def _by_groups(
    simulator: Simulator, known: Copies, quantities: Sequence[Quantity], target: int, *,
    steps: int, copies: int, env_grads: bool,
) -> tuple[list[Gradients], Tensor]:  # fmt: skip
    """The short way: gradients at the mean latent of each group, with its copies' shares of open ReLUs; and the samples
    (int64) of groups whose mean latent chooses otherwise."""
    z = known.mean_RZ.detach().requires_grad_()
    with _ReplayReLUs(iter(known.open)):
        states, outs = unroll(simulator, simulator.start(z), target + 1, env_grads)
    same = torch.tensor([a == b for a, b in zip(_choices(states, outs), known.choices_R, strict=True)], device=z.device)
    found = _backward(outs, reading_at(outs, target, known.chosen_R), quantities, steps, 1)
    size = int(known.sample_R.max()) + 1
    if len(z) > size:

        def joined(x: Tensor) -> Tensor:
            weighted = x * known.weight_R.view(-1, *[1] * (x.ndim - 1))
            return x.new_zeros(size, *x.shape[1:]).index_add(0, known.sample_R, weighted)

        found = [
            Gradients(g.y[:size], {n: joined(x) for n, x in g.obs.items()}, joined(g.h), joined(g.d)) for g in found
        ]
    y = [q.read(known.reading).unflatten(0, (-1, copies)).mean(1) for q in quantities]
    return [g._replace(y=y_S) for g, y_S in zip(found, y, strict=True)], known.sample_R[~same].unique()


def each_copy(
    simulator: Simulator,
    z_BZ: Tensor,
    chosen_B: Tensor,
    quantities: Sequence[Quantity],
    target: int,
    *,
    steps: int,
    copies: int = 1,
    env_grads: bool = True,
) -> list[Gradients]:
    """``gradients`` by one forward pass of all copies and one backward pass of all copies a quantity."""
    z = z_BZ.detach().requires_grad_()
    _, outs = unroll(simulator, simulator.start(z), target + 1, env_grads)
    return _backward(outs, reading_at(outs, target, chosen_B), quantities, steps, copies)


def _backward(
    outs: Sequence[StepOut], reading: Reading, quantities: Sequence[Quantity], steps: int, copies: int
) -> list[Gradients]:
    fields = list(outs[0].obs)
    groups = [[out.obs[name] for out in outs] for name in fields]
    groups += [[out.h_BH for out in outs], [out.d_BD for out in outs]]
    flat = [x for group in groups for x in group]
    results = []
    for n, quantity in enumerate(quantities):
        y_B = quantity.read(reading)
        # Rows do not touch each other: the gradient of the sum holds each row's own.
        last = n + 1 == len(quantities)
        found = torch.autograd.grad(y_B.sum(), flat, retain_graph=not last, allow_unused=quantity.of_world)
        grads = [torch.zeros_like(x) if g is None else g for g, x in zip(found, flat, strict=True)]
        per = len(outs)
        series = [_series(grads[g * per : (g + 1) * per], steps, copies) for g in range(len(groups))]
        y_S = y_B.detach().unflatten(0, (-1, copies)).mean(1)
        results.append(Gradients(y_S, dict(zip(fields, series, strict=False)), series[-2], series[-1]))
    return results


def _series(grads: Sequence[Tensor], steps: int, copies: int) -> Tensor:
    """Gradients of steps 0..target, each [S * copies, ...] -> [S, steps+1, ...], mean over copies."""
    mean = grads if copies == 1 else [g.unflatten(0, (-1, copies)).mean(1) for g in grads]
    out = mean[0].new_zeros(len(mean[0]), steps + 1, *mean[0].shape[1:])
    for t, g in enumerate(mean):
        out[:, t] = g
    return out


def agent_gradients(
    agent: Agent, obs_BT: Mapping[str, Tensor], h_first_BH: Tensor, chosen_B: Tensor, quantity: Quantity
) -> dict[str, Tensor]:
    """Gradient with respect to given frames [B, T, ...], read by the agent alone, of a quantity at the last.

    On the frames of a rollout this is ``gradients(..., env_grads=False)``.  h_first: the state before
    the first frame.
    """
    obs = {name: x.detach().clone().requires_grad_() for name, x in obs_BT.items()}
    h, goes_on = h_first_BH.detach(), torch.zeros(len(h_first_BH), dtype=torch.bool, device=h_first_BH.device)
    values: list[Tensor] = []
    for t in range(next(iter(obs.values())).shape[1]):
        h = agent.advance(agent.encode({name: x[:, t] for name, x in obs.items()}), h, goes_on)
        logits, value = agent.heads(h)
        values.append(value)
    y = quantity.read(Reading(h, logits, values[-1], values[max(0, len(values) - 2)], chosen_B))
    return dict(zip(obs, torch.autograd.grad(y.sum(), list(obs.values())), strict=True))
