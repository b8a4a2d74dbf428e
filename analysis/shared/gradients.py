"""The one place where gradients are taken: of numbers that rows say of themselves, and of what a rollout went through.

Rows do not touch each other, so that the gradient of a sum over rows holds each row's own: a backward pass a number,
not one a row.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from analysis.shared.quantities import Quantity, Reading
from core.contracts import Agent, Shown, World
from core.roll import Gate, Moment, Noise, Recorded, Simulator, roll
from core.trees import Tree, detached


def row_gradients(numbers: Sequence[Tensor], sources: Sequence[Tensor], keep: bool = False) -> list[list[Tensor]]:
    """For every number [B], its gradient with respect to every source [B, ...]: each row's own, zero where it does not
    depend on it.  keep: leave the graph for further calls."""
    found = []
    for n, y_B in enumerate(numbers):
        if not y_B.requires_grad:
            found.append([torch.zeros_like(x) for x in sources])
            continue
        retain = keep or n + 1 < len(numbers)
        grads = torch.autograd.grad(y_B.sum(), sources, retain_graph=retain, materialize_grads=True)
        found.append(list(grads))
    return found


def row_jacobians(y_BN: Tensor, x_BM: Tensor) -> Tensor:
    """dy_i / dx_j of every row [B, N, M], in one backward pass over a batch of N: for small functions, since it holds N
    times what a pass for one number does."""
    batch, size = y_BN.shape
    if not y_BN.requires_grad:
        return torch.zeros(batch, size, x_BM.shape[1], dtype=y_BN.dtype, device=y_BN.device)
    chosen_NBN = torch.eye(size, dtype=y_BN.dtype, device=y_BN.device)[:, None].expand(size, batch, size)
    (grad_NBM,) = torch.autograd.grad(y_BN, x_BM, chosen_NBN, is_grads_batched=True, materialize_grads=True)
    return grad_NBM.transpose(0, 1)


def reached(y_B: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """The same numbers for a method that asks for their gradient: of zeros where they depend on no input."""
    opened = [x for x in inputs if x.requires_grad]
    if y_B.requires_grad or not opened:
        return y_B
    return y_B + torch.stack([(x * 0).flatten(1).sum(1) for x in opened]).sum(0)


def unchanged(h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
    """The intervention that changes nothing: with it a moment's h is what all that follows is computed from, whatever
    the agent's state is made of."""
    return h_BH


class Apart:
    """A world that shows tensors of their own, where its state may be the very numbers that it shows: a gradient with
    respect to what an agent sees does not take the way by the world's state.  What has no gradient to anything before
    (a counter that is rounded) is open to gradients itself."""

    def __init__(self, world: World) -> None:
        self.world, self.spec = world, world.spec

    def start(self, z_BZ: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        return self._apart(*self.world.start(z_BZ, noise))

    def step(self, state: Tree, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        return self._apart(*self.world.step(state, action_BA, noise))

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tree:
        return self.world.draw_noise(batch, generator)

    def _apart(self, state: Tree, shown: Shown) -> tuple[Tree, Shown]:
        obs = {k: _opened(x.view_as(x)) for k, x in shown.obs.items()}
        return state, shown._replace(obs=obs, features_BD=_opened(shown.features_BD))


def _opened(x: Tensor) -> Tensor:
    """The tensor itself, or a leaf of its values where it has no gradient."""
    return x if x.requires_grad or not torch.is_grad_enabled() else x.detach().requires_grad_()


def unroll(simulator: Simulator[Any], z_BZ: Tensor, steps: int, **options: Any) -> list[Moment]:
    """Moments 0 to ``steps`` from latents, every one open to gradients; options as in core.roll.roll.

    Frames, h and features are the very tensors that the rest was computed from.  Gradients through an action, or
    through a category of the world, are straight-through (core.roll).
    """
    apart = replace(simulator, world=Apart(simulator.world))
    return list(apart.roll(z_BZ, steps=steps, intervene=(unchanged,), **options))


def reading_at(moments: Sequence[Moment], target: int, chosen_B: Tensor) -> Reading:
    """The reading of step ``target``; chosen: the action whose probability ``action`` means."""
    now, before = moments[target], moments[max(0, target - 1)]
    said = now.acted
    return Reading(said.h_BH, said.logits_BA, said.value_B, before.acted.value_B, chosen_B, now.shown.features_BD)


class Gradients(NamedTuple):
    """Gradients of one quantity, a row a sample; zero after the target step."""

    y: Tensor  # [S], the quantity
    obs: dict[str, Tensor]  # [S, T+1, ...], per unit of the observation
    h: Tensor  # [S, T+1, H]
    d: Tensor  # [S, T+1, D]

    def of(self, what: str) -> Tensor:
        """``h``, ``d`` or an observation field."""
        return self.h if what == "h" else self.d if what == "d" else self.obs[what]


def gradients(
    simulator: Simulator[Any],
    z_SZ: Tensor,
    chosen_S: Tensor,
    quantities: Sequence[Quantity],
    target: int,
    *,
    steps: int,
    paths: Sequence[bool] = (True, False),
    noise: Sequence[Noise] | None = None,
) -> list[list[Gradients]]:
    """Gradients of every quantity at step ``target`` of rollouts, which are modal unless they are given ``noise``: one
    forward pass for all of them, a backward pass each and path.

    paths: True: by agent and world; False: with the path action -> world cut.  steps: transitions T of the result.
    """
    gate = Gate()
    moments = unroll(simulator, z_SZ.detach().requires_grad_(), target, env_grads=gate, noise=noise)
    fields = list(moments[0].shown.obs)
    groups = [[m.shown.obs[name] for m in moments] for name in fields]
    groups += [[m.h_BH for m in moments], [m.shown.features_BD for m in moments]]
    sources = [x for group in groups for x in group]
    reading = reading_at(moments, target, chosen_S)
    numbers = [q.read(reading) for q in quantities]
    found: list[list[Gradients]] = [[] for _ in quantities]
    for n, path in enumerate(paths):
        gate.open = path
        for q, y_S in enumerate(numbers):  # one at a time, so that what a pass allocates serves the next one
            (grads,) = row_gradients([y_S], sources, keep=n + 1 < len(paths) or q + 1 < len(numbers))
            per = len(moments)
            series = [_series(grads[g * per : (g + 1) * per], steps) for g in range(len(groups))]
            obs = dict(zip(fields, series, strict=False))
            found[q].append(Gradients(y_S.detach(), obs, series[-2], series[-1]))
    return found


class Noised:
    """A world whose observations are shown with noise on them: ``noise`` [S, T, ...] a field, added at steps 0 to T-1
    (Smilkov et al. 2017, arXiv:1706.03825, for everything that an agent sees of a rollout).  Row n of a rollout is of
    sample n % S."""

    def __init__(self, world: World, noise: Mapping[str, Tensor]) -> None:
        self.world, self.noise, self.spec = world, noise, world.spec

    def start(self, z_BZ: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        state, shown = self.world.start(z_BZ, noise)
        return self._with_noise(state, shown, torch.zeros(len(z_BZ), dtype=torch.int64, device=z_BZ.device))

    def step(self, state: Tree, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        return self._with_noise(*self.world.step(state[0], action_BA, noise), state[1] + 1)

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tree:
        return self.world.draw_noise(batch, generator)

    def _with_noise(self, state: Tree, shown: Shown, at_B: Tensor) -> tuple[Tree, Shown]:
        rows = torch.arange(len(at_B), device=at_B.device)
        obs = {k: x + self.noise[k][rows % len(self.noise[k]), at_B] for k, x in shown.obs.items()}
        return (state, at_B), shown._replace(obs=obs)


def agent_gradients(
    agent: Agent, obs_BT: Mapping[str, Tensor], memory: Tree, chosen_B: Tensor, quantity: Quantity
) -> dict[str, Tensor]:
    """Gradient with respect to given frames [B, T, ...], read by the agent alone, of a quantity at the last.

    On the frames of a rollout this is ``gradients`` with the path cut.  memory: the agent's state before the
    first frame.
    """
    obs = {name: x.detach().clone().requires_grad_() for name, x in obs_BT.items()}
    steps = next(iter(obs.values())).shape[1] - 1
    shown = Recorded(agent.spec, obs)
    moments = list(roll(agent, shown, shown.begin(), memory=detached(memory), steps=steps))
    y_B = quantity.read(reading_at(moments, steps, chosen_B))
    return dict(zip(obs, row_gradients([y_B], list(obs.values()))[0], strict=True))


def _series(grads: Sequence[Tensor], steps: int) -> Tensor:
    """Gradients of steps 0..target, each [S, ...] -> [S, steps+1, ...]."""
    out = grads[0].new_zeros(len(grads[0]), steps + 1, *grads[0].shape[1:])
    for t, g in enumerate(grads):
        out[:, t] = g
    return out


def mean_of(parts: Sequence[Gradients]) -> Gradients:
    """The mean over copies."""

    def mean(read: Callable[[Gradients], Tensor]) -> Tensor:
        return torch.stack([read(g) for g in parts]).mean(0)

    obs = {name: mean(lambda g, name=name: g.obs[name]) for name in parts[0].obs}  # type: ignore[misc]
    return Gradients(mean(lambda g: g.y), obs, mean(lambda g: g.h), mean(lambda g: g.d))


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


def parameters_of(simulator: Simulator[Any]) -> list[Tensor]:
    """The weights of world and agent, where they are modules."""
    modules = (part for part in (simulator.agent, simulator.world) if isinstance(part, torch.nn.Module))
    return [p for module in modules for p in module.parameters()]


def samples_that_fit(simulator: Simulator[Any], z_1Z: Tensor, steps: int, memory_bytes: float) -> int:
    """How many samples one forward pass of ``steps`` steps may hold, at least 1."""
    z = z_1Z[:1].detach().requires_grad_()
    row = saved_bytes(lambda: unroll(simulator, z, steps - 1), parameters_of(simulator))
    return max(1, int(memory_bytes // max(1, row)))
