"""What only the real world can answer: from snapshots of it, real and simulated futures side by side.

- Counterfactual actions: every distinct action is held from the same snapshot in the real world and in the
  simulator; does a simulated frame tell, among the real ones, which action made it?
- Gradients: the simulator's derivative of what the agent does k steps later, with respect to its hidden
  state now, straight-through where it passes an action or a category of the world, against finite differences in the
  real world under the same action noise.
- Other policies: a simulator is of the world, so its error may not depend on whose actions it is given.

N snapshots (each of its own episode, so each an independent unit), A distinct actions, k steps, P points
(direction x quantity).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.play import Chooser, Exploration, tensors
from analysis.shared.gradients import row_gradients
from core import ranks
from core.contracts import Agent, UserError, VecEnv
from core.directions import Basis
from core.interventions import AtSteps, Shift
from core.progress import bar
from core.roll import Simulator, decide
from core.stats import LOG, Estimate, bootstrap_mean, jackknife, mean_p, share_of
from core.trees import Tree, rows_of
from generative.simulator import require_finite
from generative.starts import Informed, held_frame
from validation.fidelity.beginnings import Beginning, begin, rollout, together, warmed_up
from validation.fidelity.measures import Row, as_float, row, unknown
from validation.hypotheses.changes import AddSteps
from validation.paired.course import Actions, Course, Measures, is_late, quantities
from validation.paired.limits import each_in_time
from validation.paired.real import RealWorld
from validation.paired.simulated import SimulatedWorld
from validation.paired.starts import Starts, collect_starts, distinct_actions

HELD = (1, 2, 4, 8)  # steps that an action is held
FORESIGHT = (1, 2, 3, 4)  # steps after the change at which gradients are compared
GRADIENTS = tuple(f"gradient_sign_{family}{part}" for part in ("", "_through_world") for family in ("value", "action"))
DIRECTIONS = 8  # principal components along which the hidden state is moved
AMOUNT = 1.0  # by how much, in standard deviations of the component, either way
CERTAIN = 1e6  # added to a logit to force its action
ROUNDED = 1e-10  # a squared error that is no larger, as a share of what moved, is rounding
BATCH = 64
RANDOM = Exploration(explore_share=1.0, random=1.0, sticky=0.5)  # a random action, held two steps on average
POLICY = "random actions, each held for two steps on average"


@dataclass
class Found:
    """Rows of the fidelity table, and what goes with them into the result."""

    rows: list[Row] = field(default_factory=list)
    tests: list[Row] = field(default_factory=list)  # against chance, one family
    tables: dict[str, list[Row]] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """What another holds, behind what is here."""
        self.rows += other.rows
        self.tests += other.tests
        self.tables |= other.tables
        self.arrays |= other.arrays
        self.notes |= other.notes

    def test(self, measure: str, horizon: int, estimate: Estimate, chance: float, excess_N: np.ndarray,
             rng: np.random.Generator) -> None:  # fmt: skip
        """Is the mean over starts of ``excess_N`` (what is above chance; NaN: nothing asked) 0?"""
        p = mean_p(excess_N[~np.isnan(excess_N)].round(9), rng=rng)  # without rounding errors, all of one sign
        self.tests.append({"measure": measure, "horizon": horizon, "value": estimate.value, "low": estimate.low,
                           "high": estimate.high, "chance": chance, "p": p, "n": estimate.n})  # fmt: skip


@dataclass(frozen=True)
class Snapshots:
    """N places in the real world and the simulator's latents of them."""

    simulator: Simulator[Any]
    env: VecEnv  # a slot a start
    starts: Starts
    beginning: Beginning  # of the simulator
    actions: Actions

    @property
    def name(self) -> str:
        """The observation field."""
        return self.simulator.world.spec.main_field

    def __len__(self) -> int:
        return len(self.starts)

    def some(self, rows: Sequence[int]) -> Snapshots:
        """Some of them, in the same real world."""
        at = torch.as_tensor(rows, device=self.starts.h_NH.device)
        return replace(self, starts=self.starts.some(rows), beginning=self.beginning.some(at))


def window_of(starts: Starts, device: torch.device) -> dict[str, Tensor]:
    """The initial observations [N, I, ...]."""
    return {k: torch.from_numpy(v).to(device) for k, v in starts.window.items()}


def require_snapshots(env: VecEnv) -> None:
    """UserError unless the world can be restored."""
    if not env.spec.can_snapshot:
        raise UserError(
            f"{env.spec.env_id} takes no snapshots, so nothing can be tried twice in it; leave the counterfactual "
            "part out with --no-counterfactual"
        )


@torch.no_grad()
def take(
    simulator: Simulator[Any], make_env: Callable[[int], VecEnv], count: int, *, latest: int, seed: int,
    device: torch.device | None = None, start_from: Informed = "inferred",
) -> Snapshots:  # fmt: skip
    """``count`` snapshots along the agent's way, each of another episode.  The caller closes ``env``."""
    collector = make_env(count)
    require_snapshots(collector)
    try:
        starts = collect_starts(
            simulator.agent, collector, count, initial_frames=simulator.world.initial_frames, latest=latest, seed=seed,
            device=device,
        )  # fmt: skip
    finally:
        collector.close()
    env = make_env(count)
    window, parts = window_of(starts, starts.h_NH.device), []
    for i in range(0, count, BATCH):
        some = slice(i, i + BATCH)
        state = rows_of(starts.state, some) if start_from == "recorded" else None
        parts.append(begin(simulator, {k: v[some] for k, v in window.items()}, state))
    return Snapshots(simulator, env, starts, together(parts), distinct_actions(env, starts))


# Futures


class Recorder:
    """Collects what the real world shows from a restored snapshot on: observation k is k steps later.

    ``seen`` [N, K+1]: the observation exists.  After an episode's end there is nothing to compare.
    """

    def __init__(self, env: VecEnv, states: Sequence[bytes], name: str) -> None:
        self.env, self.name = env, name
        self.now = env.restore(states)
        self.alive = np.ones(len(states), bool)
        self.obs, self.seen = [self.now.obs[name]], [self.alive.copy()]

    def step(self, action_N: np.ndarray) -> None:
        self.now = self.env.step(action_N)
        over, shown, seen = self.now.terminated | self.now.truncated, self.now.obs[self.name], self.alive.copy()
        if self.now.final_obs is None:
            seen &= ~over
        else:
            at = over.reshape(-1, *[1] * (shown.ndim - 1))
            shown = np.where(at, self.now.final_obs[self.name], shown)
        self.alive &= ~over
        self.obs.append(shown)
        self.seen.append(seen)


def hold(shots: Snapshots, action: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The real world while one action is held: observations [N, steps+1, ...] and which of them exist."""
    record = Recorder(shots.env, shots.starts.states, shots.name)
    for _ in range(steps):
        record.step(np.full(len(shots), action))
    return np.stack(record.obs, 1), np.stack(record.seen, 1)


@torch.no_grad()
def simulate(shots: Snapshots, action_NK: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """The simulator under forced actions int64 [N, K+1]: observations [n, K+1, ...], a block of starts at a time."""
    actions = torch.from_numpy(action_NK).to(shots.starts.h_NH.device)
    for first in range(0, len(shots), BATCH):
        part = slice(first, first + BATCH)
        out = rollout(shots.simulator, shots.beginning.some(part), actions.shape[1] - 1, actions=actions[part])
        require_finite(out)
        yield part, out.obs[shots.name].cpu().numpy()


# Counterfactual actions


def retrieval(query_AN: np.ndarray, gallery_AN: np.ndarray, there_AN: np.ndarray) -> np.ndarray:
    """Which of the gallery's observations is nearest to each query: credit [A, A, N], summing to 1 over axis 1.

    Query and gallery [A, N, ...]: what action a led to from start n.  ``there``: the gallery's exists.
    Equally near ones share the credit, which is what guessing among them would earn.
    """
    flat = gallery_AN.reshape(*gallery_AN.shape[:2], -1)
    out = np.empty((len(query_AN), *gallery_AN.shape[:2]))
    for a, query_N in enumerate(query_AN.reshape(*query_AN.shape[:2], -1)):
        distance_AN = np.where(there_AN, ((query_N - flat) ** 2).mean(-1), np.inf)
        nearest = distance_AN == distance_AN.min(0)
        out[a] = nearest / nearest.sum(0)
    return out


def counterfactual(shots: Snapshots, found: Found, rng: np.random.Generator) -> None:
    """Top-1 retrieval of the held action among all distinct ones, by distance of observations."""
    ids = {name: ids[0] for name, ids in shots.actions.items()}
    spec = shots.simulator.world.spec
    if spec.action_parts:
        why = "actions of several parts are not held one by one"
        found.rows += [unknown("counterfactual_top1", k, "share", len(shots), why) for k in HELD]
        return
    found.notes["action_ids"] = dict(shots.actions)
    found.notes["actions"] = {name: [spec.action_names[i] for i in same] for name, same in shots.actions.items()}
    if len(ids) < 2:
        same = "all actions do the same from every snapshot: there is nothing to tell apart"
        found.rows += [unknown("counterfactual_top1", k, "share", len(shots), same) for k in HELD]
        return
    steps, names = max(HELD), list(ids)
    with bar("holding actions", 2 * len(ids), "actions") as progress:
        real, there = [], []
        for obs, seen in ranks.each(list(ids.values()), lambda action: hold(shots, action, steps)):
            real.append(obs)
            there.append(seen)
            progress.advance()
        real_AN, there_AN = np.stack(real), np.stack(there)  # [A, N, K+1, ...]
        shown = _most_various(real_AN[:, :, steps], there_AN[:, :, steps])

        def dream(action: int) -> tuple[np.ndarray, list[np.ndarray]]:
            parts, looked_at = [], []
            for part, obs in simulate(shots, np.full((len(shots), steps + 1), action)):
                parts.append(obs[:, list(HELD)])
                if part.start <= shown < part.stop:
                    looked_at.append(obs[shown - part.start])
            return np.concatenate(parts), looked_at

        dreamed, strip = [], []
        for obs, looked_at in ranks.each(list(ids.values()), dream):
            dreamed.append(obs)
            strip += looked_at
            progress.advance()
    simulated_AN = np.stack(dreamed)  # [A, N, held, ...]
    found.arrays |= {"counterfactual_real": real_AN[:, shown], "counterfactual_simulated": np.stack(strip),
                     "counterfactual_seen": there_AN[:, shown]}  # fmt: skip
    unit_N, confusion, by_action = np.arange(len(shots)), [], []
    for i, k in enumerate(HELD):
        gallery, exists = as_float(real_AN[:, :, k]), there_AN[:, :, k]
        asked = exists & (exists.sum(0) >= 2)
        if not asked.any():
            over = "every episode is over by then, whatever is done"
            found.rows.append(unknown("counterfactual_top1", k, "share", 0, over))
            continue
        credit = retrieval(simulated_AN[:, :, i], gallery, exists)
        best = np.einsum("aan->an", retrieval(gallery, gallery, exists))
        hit, chance = np.einsum("aan->an", credit), np.broadcast_to(1 / exists.sum(0).clip(1), asked.shape)
        of = np.broadcast_to(unit_N, asked.shape)
        estimate = share_of(hit[asked], of[asked])
        guess = float(chance[asked].mean())
        found.rows.append(row("counterfactual_top1", k, estimate, "share", floor=float(best[asked].mean()), mean=guess))
        excess = np.where(asked, hit - chance, 0).sum(0) / np.where(asked.any(0), asked.sum(0), np.nan)
        found.test("counterfactual_top1", k, estimate, guess, excess, rng)
        confusion.append((credit * asked[:, None]).sum(2) / asked.sum(1).clip(1)[:, None])
        for a, name in enumerate(names):
            e = share_of(hit[a, asked[a]], unit_N[asked[a]])
            by_action.append({"action": name, "held": k, "top1": e.value, "low": e.low, "high": e.high,
                              "attainable": float(best[a, asked[a]].mean()), "n": e.n})  # fmt: skip
    found.tables["counterfactual"] = by_action
    if confusion:
        found.arrays["counterfactual_confusion"] = np.stack(confusion)


def _most_various(obs_AN: np.ndarray, there_AN: np.ndarray) -> int:
    """The start whose real futures differ most, and all exist if there is one: to look at."""
    flat = as_float(obs_AN).reshape(*obs_AN.shape[:2], -1)
    return int((flat.std(0).mean(-1) * there_AN.mean(0) ** 8).argmax())


# Other policies


@torch.no_grad()
def follow(
    shots: Snapshots, agent: Agent, state: Tree, chooser: Chooser, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A policy runs on from the snapshots in the real world: (observations [N, steps+1, ...], which exist,
    actions int64 [N, steps+1]).  ``state`` is its own after the snapshot's observation."""
    record, device = Recorder(shots.env, shots.starts.states, shots.name), shots.starts.h_NH.device
    actions = []
    for t in range(steps + 1):
        t_N = torch.full((len(shots),), t, device=device)
        obs, first = tensors(record.now, device), torch.from_numpy(record.now.is_first).to(device)
        seen = agent.encode(obs)
        acted = decide(agent, seen, agent.advance(seen, state, first) if t else state, t_N)
        state = acted.state
        actions.append(chooser(acted.logits_BA.cpu().numpy(), record.now.is_first))
        if t < steps:
            record.step(actions[-1])
    return np.stack(record.obs, 1), np.stack(record.seen, 1), np.stack(actions, 1)


def other_policy(shots: Snapshots, other: Agent | None, steps: int, found: Found, rng: np.random.Generator) -> None:
    """Error under another policy's actions, and its ratio to the error under the agent's own.

    Another policy sees another world (it may hardly move), so each error is first taken as a share of
    what holding the last frame would make: ``policy_dependence`` is the ratio of the two shares.
    """
    own, device = shots.starts.state, shots.starts.h_NH.device
    parts = shots.simulator.agent.spec.parts
    chooser = Chooser(RANDOM if other is None else Exploration(), len(shots), rng, parts)
    strange = (shots.simulator.agent, own)
    if other is not None:
        strange = other, warmed_up(other, window_of(shots.starts, device))
    errors, copies, seen = [], [], []
    with bar("another policy", 2, "policies") as progress:
        for (agent, state), choose in (
            ((shots.simulator.agent, own), Chooser(Exploration(), len(shots), rng, parts)), (strange, chooser),
        ):  # fmt: skip
            obs, exists, action = follow(shots, agent, state, choose, steps)
            over = tuple(range(2, obs.ndim))
            error = np.empty(exists.shape)
            for part, dreamed in simulate(shots, action):
                error[part] = ((dreamed - as_float(obs[part])) ** 2).mean(over)
            errors.append(error)
            copies.append(((as_float(obs) - as_float(obs[:, :1])) ** 2).mean(over))
            seen.append(exists)
            progress.advance()
    unit = "squared intensity" if obs.dtype == np.uint8 else "squared units"
    both = seen[0] & seen[1]

    def ratio(rows: np.ndarray) -> np.ndarray:
        on = both[rows]
        shares = []
        for error, copy in zip(errors, copies, strict=True):
            moved = (copy[rows] * on).sum(0)
            shares.append((error[rows] * on).sum(0) / np.where(moved > 0, moved, np.nan))
        out: np.ndarray = shares[1] / np.where(shares[0] > ROUNDED, shares[0], np.nan)
        return out

    value, low, high = jackknife(ratio, np.arange(len(shots)), rng=rng, link=LOG, units=both.sum(0))
    for k in range(1, steps + 1):
        on = seen[1][:, k]
        if on.any():
            e = bootstrap_mean(errors[1][on, k], np.flatnonzero(on), rng=rng)
            held = float(copies[1][on, k].mean())
            found.rows.append(row("frame_mse_other_policy", k, e, unit, floor=0.0, copy=held))
        if both[:, k].any():
            estimate = Estimate(float(value[k]), float(low[k]), float(high[k]), int(both[:, k].sum()))
            still = "nothing moves by then, or the simulator makes no error"
            found.rows.append(row("policy_dependence", k, estimate, "ratio of errors", floor=1.0, reason=still))
    found.notes["other_policy"] = POLICY if other is None else "the agent of --other_agent"


# Gradients


def foreseen(course: Course, measures: Measures) -> dict[tuple[int, str, str], Tensor]:
    """{(k, family, quantity): [R]}, what varies smoothly, for every k of FORESIGHT: the value k steps later and the
    mean probability over steps 1 to k of every action (of every choice of each part) of ``measures``."""
    out: dict[tuple[int, str, str], Tensor] = {}
    for k in FORESIGHT:
        logits, value, reward, weight = course[:4]
        upto = Course(logits[:, : k + 1], value[:, : k + 1], reward[:, :k], weight[:, : k + 1])
        for q, v in quantities(upto, Measures(measures.actions, parts=measures.parts)).items():
            family = {"value": "value", "prob": "action"}.get(q.partition("@")[0].partition(":")[0])
            if is_late(q) and family is not None:
                out[k, family, q] = v
    return out


@dataclass(frozen=True)
class Slopes:
    """How everything foreseen answers to a move of the hidden state, [D, N] per standard deviation: ``whole``,
    and what of it goes ``through_world`` (the rest stays inside the agent: its memory carries the change on
    although it sees and does the same)."""

    whole: dict[tuple[int, str, str], np.ndarray]
    through_world: dict[tuple[int, str, str], np.ndarray]

    def of(self, part: str, k: int, family: str) -> np.ndarray:
        """[P, N], every direction of every quantity of a family."""
        return np.concatenate([v for key, v in getattr(self, part).items() if key[:2] == (k, family)])


def real_slopes(world: RealWorld, basis: Basis) -> Slopes:
    """Central differences.  The part inside the agent: the same with every action forced to the unmoved one."""
    moves = [AtSteps(Shift(basis, (i,), (sign * AMOUNT,)), 0, 1) for i in range(basis.size) for sign in (1, -1)]

    def slopes(w: RealWorld) -> dict[tuple[int, str, str], np.ndarray]:
        with bar("finite differences", len(moves), "runs") as progress:
            found = []
            for seen in each_in_time(moves, lambda move: foreseen(w.course((move,)), w.measures)):
                found.append(seen)
                progress.advance()
        ends = {q: torch.stack([f[q] for f in found]).cpu().double().numpy() for q in found[0]}
        return {q: (v[0::2] - v[1::2]) / (2 * AMOUNT) for q, v in ends.items()}

    unmoved = world.course().action_RTA
    assert unmoved is not None
    certain = CERTAIN * unmoved
    whole, inside = slopes(world), slopes(replace(world, noise_NTA=certain))
    return Slopes(whole, {q: v - inside[q] for q, v in whole.items()})


def simulated_slopes(world: SimulatedWorld, basis: Basis) -> Slopes:
    """Derivatives, straight-through where they pass an action or a category of the world.  The part inside the agent:
    those with the gradient cut from action to world."""

    def slopes(through: str) -> dict[tuple[int, str, str], np.ndarray]:
        found: dict[tuple[int, str, str], list[Tensor]] = {}
        n = len(world.noise_NTA)
        with bar("derivatives", n, "starts") as progress:

            def of(rows: Tensor) -> dict[tuple[int, str, str], Tensor]:
                change = world.noise_NTA.new_zeros(1, len(rows), basis.lift_KH.shape[1]).requires_grad_()
                said = foreseen(world.course_from(rows, (AddSteps(change),), through), world.measures)
                grads = row_gradients(list(said.values()), [change])
                return {q: basis.pullback(grad[0]) for q, (grad,) in zip(said, grads, strict=True)}

            for block in ranks.each(torch.arange(n, device=world.noise_NTA.device).split(BATCH // 2), of):
                for q, grad in block.items():
                    found.setdefault(q, []).append(grad)
                progress.advance(len(next(iter(block.values()))))
        return {q: torch.cat(v).T.cpu().double().numpy() for q, v in found.items()}

    whole, inside = slopes(""), slopes("memory")
    return Slopes(whole, {q: v - inside[q] for q, v in whole.items()})


def same_sign(predicted_PN: np.ndarray, observed_PN: np.ndarray) -> np.ndarray:
    """1.0 where the signs agree, 0.0 where not, NaN where the observed one is exactly 0: nothing to foretell."""
    return np.where(observed_PN == 0, np.nan, np.sign(predicted_PN) == np.sign(observed_PN))


def gradients(
    shots: Snapshots, basis: Basis, found: Found, rng: np.random.Generator
) -> tuple[Slopes, Tensor] | None:  # fmt: skip
    """Directional derivatives against finite differences, for every k of FORESIGHT.

    The simulator's, and the action noise [N, T, A] that they were taken under; None where there is no direction.
    CutShort where a time limit cuts a real run."""
    agent, starts, device = shots.simulator.agent, shots.starts, shots.starts.h_NH.device
    if not basis.size:
        why = "the recorded hidden states are all the same: there is no direction to move them along"
        found.rows += [unknown(name, k, "share", len(shots), why) for name in GRADIENTS for k in FORESIGHT]
        return None
    shape = (2, len(shots), max(FORESIGHT) + 1, agent.spec.n_actions)
    noise = torch.from_numpy(rng.gumbel(size=shape).astype(np.float32)).to(device)
    last = held_frame(agent.spec, starts.window, device)
    now, again = noise
    measures = Measures(shots.actions, parts=agent.spec.parts)
    real = RealWorld(agent, starts.state, now, measures, shots.env, starts, whole=True)
    observed, redrawn = real_slopes(real, basis), real_slopes(replace(real, noise_NTA=again), basis)
    world, start = shots.simulator.world, shots.beginning.world
    dreamed = SimulatedWorld(agent, starts.state, now, measures, world, start)
    foretold = simulated_slopes(dreamed, basis)
    held = simulated_slopes(replace(dreamed, world=last, start_N=last.begin()), basis)
    unit_N = np.arange(len(shots))
    for part, family, k in itertools.product(("whole", "through_world"), ("value", "action"), FORESIGHT):
        suffix = "" if part == "whole" else f"_{part}"
        seen, other = observed.of(part, k, family), redrawn.of(part, k, family)
        same = same_sign(foretold.of(part, k, family), seen)
        on = ~np.isnan(same)
        measure = f"gradient_sign_{family}{suffix}"
        if not on.any():
            none = "no change of the hidden state changes anything in the real world"
            found.rows.append(unknown(measure, k, "share", len(shots), none))
            continue
        estimate = share_of(same[on], np.broadcast_to(unit_N, same.shape)[on])
        repeated = same_sign(seen, np.where(on, other, 0))
        floor = float(np.nanmean(repeated)) if np.isfinite(repeated).any() else None
        copy = None if suffix else float(np.nanmean(same_sign(held.of(part, k, family), seen)))
        found.rows.append(row(measure, k, estimate, "share", floor=floor, copy=copy, mean=0.5))
        count_N = on.sum(0)
        excess_N = np.where(on, same - 0.5, 0).sum(0) / np.where(count_N > 0, count_N, np.nan)
        found.test(measure, k, estimate, 0.5, excess_N, rng)
    found.notes["gradients"] = (
        f"{basis.size} principal components of the recorded hidden states, moved by {AMOUNT:+g} and {-AMOUNT:+g} "
        "standard deviations at step 0; quantities: the value k steps later, and every action's mean probability "
        "over steps 1 to k; pairs of start and direction whose finite difference is exactly 0 are not counted. "
        "through_world: without what stays inside the agent (real: the difference with every action forced; "
        "simulated: the derivative with the gradient cut from action to world). Simulated derivatives are "
        "straight-through where they pass an action or a category of the world. floor: the same finite differences "
        "under another draw of the action noise. baseline_copy: derivatives of an agent that is shown its last "
        "frame over and over: its memory without any world"
    )
    return foretold, now
