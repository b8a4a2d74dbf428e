"""What a change of the memory does by way of the actions, in the real world and in the simulator: actions enumerated.

The estimator is that of analysis.coupling.discrete_paths,

    effect of x on y through the world = sum over steps t and actions a of  d pi_t(a) / dx  Q_t(a),

with x a direction of the hidden state at the start, y what the agent does or values k steps later, and Q_t(a) what y is
when a is done at t and the agent then chooses as it would, under the same action noise.  Nothing of it asks a simulator
for what lies between two actions, so the real world can be asked the very same: from its snapshots every action is done
at every step.  The slopes of the policy are those along the frames of each world.  Of actions of several parts one
choice of one part is done at a step, and the other parts are as the agent chooses them, under the same action noise.

Both worlds share the action noise, so that they are about the same course.  The bound is the real world's agreement
with itself under other action noise.

N snapshots, A distinct actions (of several parts: all their distinct choices), D directions, k horizon, T steps; other
axes as in core.contracts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from analysis.coupling.discrete_paths import ROUNDING, along_memory, policy_slopes
from core.directions import Basis
from core.progress import bar
from core.roll import Noise, roll
from core.stats import share_of
from validation.fidelity.counterfactual import CERTAIN, FORESIGHT, Found, Snapshots, foreseen, same_sign
from validation.fidelity.measures import row, unknown
from validation.paired.course import Measures
from validation.paired.limits import each_in_time
from validation.paired.real import RealWorld
from validation.paired.simulated import SimulatedWorld
from validation.paired.tree import Nodes, Paired, Remembering

ROWS = 64  # starts at once, so that a world's tree stays small
FAMILIES = ("value", "action")
EFFECT = "effect_sign_{}"
EFFECTS = tuple(map(EFFECT.format, FAMILIES))

Effects = dict[tuple[int, str, str], np.ndarray]  # {(k, family, quantity): [D, N]}, per standard deviation


def enumerated(world: Paired, basis: Basis) -> Effects:
    """The effects through a world of every direction at step 0 on everything foreseen (``counterfactual.foreseen``).

    An action that is a group of ids has their probabilities together, and its first id is done.
    """
    tree, n, steps = world.tree(), len(world.noise_NTA), world.steps - 1
    of_N = torch.arange(n, device=world.noise_NTA.device)
    nodes, noise = Nodes(world, tree), [Noise(action_BA=x) for x in world.noise_NTA.unbind(1)]
    with torch.no_grad():
        moments = list(
            roll(
                Remembering(world.agent, tree), nodes, nodes.begin(of_N), state=world.state_N, steps=steps, noise=noise
            )
        )
    groups = [list(ids) for ids in world.measures.actions.values()]
    slope_NTAH = policy_slopes(along_memory(world.agent, moments)[:-1], [0], groups, world.agent.spec.parts)[:, 0]
    slope_NTAD = basis.pullback(slope_NTAH).double()
    own = foreseen(world.run(), world.measures)
    out = {q: torch.zeros(n, basis.size, dtype=torch.float64, device=of_N.device) for q in own}
    certain_A = [CERTAIN * torch.nn.functional.one_hot(torch.tensor(ids[0]), world.agent.spec.n_actions).to(of_N.device)
                 for ids in groups]  # fmt: skip
    for t in range(steps):
        forced_AN = [world.noise_NTA.clone() for _ in groups]
        for noise_NTA, certain in zip(forced_AN, certain_A, strict=True):
            noise_NTA[:, t] += certain
        course = world.run(copies=len(groups), noise_RTA=torch.cat(forced_AN))
        for q, y_R in foreseen(course, world.measures).items():
            change_AN = y_R.unflatten(0, (len(groups), n)).double() - own[q].double()
            # The same course in another batch is rounded otherwise: that must not pass for an effect.
            least = ROUNDING * torch.finfo(y_R.dtype).eps * own[q].abs().amax()
            change_AN = torch.where(change_AN.abs() <= least, 0.0, change_AN)
            out[q] += torch.einsum("nad,an->nd", slope_NTAD[:, t], change_AN)
    return {q: x.T.cpu().numpy() for q, x in out.items()}


def of_family(effects: Effects, k: int, family: str) -> np.ndarray:
    """[P, N], every direction of every quantity of a family."""
    return np.concatenate([v for key, v in effects.items() if key[:2] == (k, family)])


def by_parts(make: Callable[[Tensor], Paired], count: int, basis: Basis, what: str) -> Effects:
    """``enumerated`` of ``count`` starts, some at a time; make: rows int64 [R] -> their world."""
    found: list[Effects] = []
    with bar(what, count, "starts") as progress:
        for block in each_in_time(torch.arange(count).split(ROWS), lambda rows: enumerated(make(rows), basis)):
            found.append(block)
            progress.advance(next(iter(block.values())).shape[1])
    return {q: np.concatenate([f[q] for f in found], 1) for q in found[0]}


def effects(
    shots: Snapshots, basis: Basis, found: Found, rng: np.random.Generator, straight: Effects | None = None,
    noise_NTA: Tensor | None = None,
) -> None:  # fmt: skip
    """Signs of the effects through the simulator against those through the real world, for every k of FORESIGHT.

    straight: the simulator's straight-through derivatives of the first starts (``counterfactual.Slopes``), to stand
    beside; noise: the action noise they were taken under, which those starts keep.  CutShort where a time limit cuts a
    real run.
    """
    agent, starts, simulator = shots.simulator.agent, shots.starts, shots.simulator
    measure = EFFECT.format
    if not basis.size or len(shots.actions) <= len(agent.spec.parts):  # one for each part
        why = ("all actions do the same from every snapshot" if basis.size else
               "the recorded hidden states are all the same: there is no direction to move them along")  # fmt: skip
        found.rows += [unknown(name, k, "share", len(shots), why) for name in EFFECTS for k in FORESIGHT]
        return
    shape = (2, len(shots), max(FORESIGHT) + 1, agent.spec.n_actions)
    now, again = torch.from_numpy(rng.gumbel(size=shape).astype(np.float32)).to(starts.h_NH.device)
    if noise_NTA is not None:
        now[: len(noise_NTA)] = noise_NTA
    measures = Measures(shots.actions, parts=agent.spec.parts)

    def real(noise: Tensor) -> Effects:
        def world(rows: Tensor) -> Paired:
            some = starts.some(rows.tolist())
            return RealWorld(agent, some.state, noise[rows], measures, shots.env, some, whole=True)

        return by_parts(world, len(shots), basis, "real effects")

    def simulated(rows: Tensor) -> Paired:
        state, begun = starts.some(rows.tolist()).state, shots.beginning.some(rows).world
        return SimulatedWorld(agent, state, now[rows], measures, simulator.world, begun)

    observed, redrawn = real(now), real(again)
    foretold = by_parts(simulated, len(shots), basis, "simulated effects")
    unit_N = np.arange(len(shots))
    for family, k in itertools.product(FAMILIES, FORESIGHT):
        seen, other = of_family(observed, k, family), of_family(redrawn, k, family)
        same = same_sign(of_family(foretold, k, family), seen)
        on = ~np.isnan(same)
        if not on.any():
            none = "no action changes anything of this in the real world"
            found.rows.append(unknown(measure(family), k, "share", len(shots), none))
            continue
        estimate = share_of(same[on], np.broadcast_to(unit_N, same.shape)[on])
        repeated = same_sign(seen, np.where(on, other, 0))
        floor = float(np.nanmean(repeated)) if np.isfinite(repeated).any() else None
        # A held frame answers to no action: all that goes through it is 0, which has no sign and is never right.
        found.rows.append(row(measure(family), k, estimate, "share", floor=floor, copy=0.0, mean=0.5))
        count_N = on.sum(0)
        excess_N = np.where(on, same - 0.5, 0).sum(0) / np.where(count_N > 0, count_N, np.nan)
        found.test(measure(family), k, estimate, 0.5, excess_N, rng)
        if straight is not None:
            few = of_family(straight, k, family)
            same = same_sign(few, seen[:, : few.shape[1]])
            on = ~np.isnan(same)
            e = share_of(same[on], np.broadcast_to(unit_N[: few.shape[1]], same.shape)[on])
            found.rows.append(row(f"{measure(family)}_straight_through", k, e, "share", floor=floor, mean=0.5,
                                  reason="no action changes anything of this in the real world"))  # fmt: skip
    found.notes["effects"] = (
        f"{basis.size} principal components of the recorded hidden states at step 0; quantities: the value k steps "
        "later, and every action's mean probability over steps 1 to k; through the world: the derivative of the policy "
        "at every step times what every action there leads to, all of them tried in both worlds "
        "(analysis.coupling.discrete_paths); what is exactly 0 in the real world is not counted.  straight_through: "
        "the simulator's straight-through derivatives against the same real effects.  floor: the real ones under "
        "another draw of the action noise"
    )
