"""Predict, intervene, compare: ``python -m validation.interventions --simulator DIR --hidden_states DIR``.

A hypothesis is a direction of the hidden state and a one-off change along it at step 0.  Every start
is run on twice, with the change and without, from the same state, the same h and the same action
noise, in the simulator and in the real world.  The heads are linear, so what the change does *at*
step 0 to logits and value follows from the agent's weights alone: it is no test.  The test is what
comes later (quantities with an ``@``), which only a world answers.

N starts (each of its own episode, so each an independent unit), G interventions, k horizon.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.evaluate import HELD_OUT_LEVEL
from agents.play import Chooser, Exploration, play, tensors
from analysis.behaviours import load_behaviours
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import Agent, Intervention, Simulator, StepNoise, UserError, VecEnv, apply_interventions
from core.directions import Basis, fingerprint, load_basis
from core.interventions import AddVector, AtSteps, Nullspace, Shift, parse_ids
from core.progress import bar
from core.stats import band_of, benjamini_hochberg, bootstrap, bootstrap_mean, require_permutations, sign_flip_p
from envs.registry import make
from generative.simulator import load_simulator

STAGE = "interventions"
ALPHA = 0.05
PERMUTATIONS = 4999
GIVE_UP_STEPS = 20_000
CRITERIA = (
    "confirmed: the observed effect's 95 % interval excludes 0, q <= 0.05, the effect lies outside the band of the "
    "random directions (which an arbitrary direction does in 5 % of cases), and has the sign of the simulator's "
    "prediction. refuted: the interval excludes 0 with the opposite sign, or lies wholly inside the random band (the "
    "direction does no more than any other change of its size). inconclusive: anything else."
)


@dataclass(frozen=True, kw_only=True)
class InterventionsConfig:
    """Shift and collapse directions of the hidden state; compare the simulator's prediction with the real world."""

    simulator: Path
    """run directory of the simulator (with its agent)"""
    hidden_states: Path
    """hidden-states run directory with the directions"""
    behaviours: Path | None = None
    """behaviours run directory: effects are also given for each behaviour that starts fall into"""
    out: Path = Path("runs/interventions")
    """run directory to write"""
    basis_kind: str = "ica"
    """which basis of --hidden_states: pca, ica, nmf, neurons"""
    directions: tuple[str, ...] = ("0", "1")
    """ids of the directions to test, or largest N: the N whose late effect the simulator predicts to be largest
    (chosen before the real world is asked)"""
    amounts: tuple[float, ...] = (-2.0, -1.0, 0.0, 1.0, 2.0)
    """changes to test, in units of the direction's coordinate (standard deviations for PCA and ICA)"""
    starts: int = 64
    """paired starts, each of another episode"""
    horizon: int = 8
    """steps after the change at which late effects are measured"""
    controls: int = 50
    """norm-matched random directions; fewer than 39 cannot give a band that leaves out 5 % of them"""
    control_starts: int = 16
    """how many of the starts the random directions get in the simulator (in the real world: all)"""
    latest_start: int = 32
    """starts are taken at a random step of the episode up to this one"""
    start_level: int = HELD_OUT_LEVEL
    """first level of the pool the real world draws from (Procgen)"""
    num_levels: int = 100_000
    """size of that pool (Procgen)"""
    greedy: bool = False
    """the agent takes its most likely action; default: it samples, with the same noise on both sides"""
    seed: int = 0
    """seed of levels, starts, action noise and random directions"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier study in --out"""


# Interventions that only this stage needs


@dataclass(frozen=True)
class Become:
    """Replace the state by another [B, H]: both worlds start from the recorded one."""

    h: Tensor

    def __call__(self, h_BH: Tensor, t: int, mask_B: Tensor) -> Tensor:
        return torch.where(mask_B[:, None], self.h, h_BH)


@dataclass(frozen=True)
class KeepOnly:
    """Everything but one direction to the mean: the complement of collapsing it (is it sufficient?)."""

    basis: Basis
    id: int

    def __call__(self, h_BH: Tensor, t: int, mask_B: Tensor) -> Tensor:
        c = self.basis.project(h_BH)
        only = torch.zeros_like(c[0]).index_fill(0, torch.tensor([self.id], device=c.device), 1.0)
        return torch.where(mask_B[:, None], self.basis.lift(c * only), h_BH)


@dataclass(frozen=True)
class Redirect:
    """The control of ``inner``, which moves h along direction ``id``: the same signed length, in units
    of every neuron's standard deviation, along the unit vector ``unit`` [H] instead."""

    inner: Intervention
    basis: Basis
    id: int
    unit: Tensor

    def __call__(self, h_BH: Tensor, t: int, mask_B: Tensor) -> Tensor:
        change = (self.inner(h_BH, t, mask_B) - h_BH) / self.basis.std_H
        length_B = change @ torch.nn.functional.normalize(self.basis.lift_KH[self.id], dim=0)
        return h_BH + torch.where(mask_B[:, None], length_B[:, None] * self.unit * self.basis.std_H, 0.0)


@dataclass(frozen=True)
class Blocks:
    """Block g of equally many rows gets intervention g."""

    inner: tuple[Intervention, ...]

    def __call__(self, h_BH: Tensor, t: int, mask_B: Tensor) -> Tensor:
        parts = zip(self.inner, h_BH.chunk(len(self.inner)), mask_B.chunk(len(self.inner)), strict=True)
        return torch.cat([g(h, t, mask) for g, h, mask in parts])


def random_units(basis: Basis, count: int, generator: torch.Generator) -> Tensor:
    """Unit vectors [count, H] of the z-scored state space, uniform over all.

    Not only over those orthogonal to the tested direction: an arbitrary direction would not be one of their like and
    lie outside their band too often (8 dimensions: in 10 % of cases, not 5 %).
    """
    like = basis.lift_KH
    if like.shape[1] < 2:
        raise UserError("random directions need a hidden state of at least 2 dimensions")
    draws = torch.randn(count, like.shape[1], generator=generator, dtype=like.dtype)
    return torch.nn.functional.normalize(draws, dim=-1).to(like.device)


# Starts


@dataclass(frozen=True)
class Starts:
    """N paired starts.  With snapshots, ``states`` restore them; without, ``seed`` and the recorded
    ``actions`` [M, N] replay slot b up to its step ``offset_N[b]``."""

    window: Mapping[str, np.ndarray]  # [N, I, ...], the last observation is the start's
    h_NH: Tensor
    age_N: np.ndarray  # step of the episode
    states: tuple[bytes, ...]
    offset_N: np.ndarray
    actions: np.ndarray
    seed: int

    @property
    def paired_by(self) -> str:
        return "snapshot" if self.states else "seed"

    def __len__(self) -> int:
        return len(self.age_N)


def collect_starts(
    agent: Agent,
    env: VecEnv,
    count: int,
    *,
    initial_frames: int,
    latest: int,
    seed: int,
    greedy: bool = False,
    device: torch.device | None = None,
) -> Starts:
    """Run the agent and take ``count`` starts, at most one an episode, each at a step drawn uniformly
    from [initial_frames - 1, latest]; an episode that ends earlier gives none and the next one tries
    again.  Every slot gives equally many, so that fast episodes are not favoured.

    Where the world has no snapshots, one start a slot, and ``count`` must be the number of slots.
    Raises UserError if the episodes are too short.
    """
    device = torch.device("cpu") if device is None else device
    slots, snapshots = env.spec.slots, env.spec.can_snapshot
    if not snapshots and slots != count:
        raise ValueError(f"a world without snapshots needs a slot a start: {slots} slots for {count} starts")
    first = max(1, initial_frames - 1)
    if latest < first:
        raise UserError(f"--latest_start {latest} is too early: the simulator needs {initial_frames} frames")
    rng = np.random.default_rng(seed)
    chooser = Chooser(Exploration(greedy=greedy), slots, rng)
    quota_B = np.full(slots, -(-count // slots))
    target_B = rng.integers(first, latest + 1, slots)
    history: deque[dict[str, np.ndarray]] = deque(maxlen=initial_frames)
    found: list[dict[str, Any]] = []
    actions: list[np.ndarray] = []
    states: tuple[bytes, ...] = ()
    with bar("collecting starts", count, "starts") as progress:
        for moment in play(agent, env, chooser, seed=seed, device=device):
            history.append(moment.obs)
            for b in np.flatnonzero((quota_B > 0) & (moment.age_B == target_B)):
                window = {k: np.stack([obs[k][b] for obs in history]) for k in moment.obs}
                state = (states[b],) if snapshots else ()
                start = {"slot": b, "window": window, "h": moment.h_BH[b], "age": moment.age_B[b], "state": state}
                found.append({**start, "offset": len(actions)})
                quota_B[b] -= 1
                progress.advance()
            if not quota_B.any():
                break
            if len(actions) >= GIVE_UP_STEPS:
                raise UserError(
                    f"only {len(found)} of {count} starts after {len(actions)} steps: episodes rarely reach their "
                    f"drawn step; lower --latest_start ({latest})"
                )
            actions.append(moment.action_B)
            done_B = moment.next.terminated | moment.next.truncated
            target_B = np.where(done_B, rng.integers(first, latest + 1, slots), target_B)
            age_B = np.where(done_B, 0, moment.age_B + 1)
            if snapshots and ((quota_B > 0) & (age_B == target_B)).any():
                states = env.snapshot()  # of what the next moment will show
    if not snapshots:
        found.sort(key=lambda start: int(start["slot"]))
    found = found[:count]
    return Starts(
        window={k: np.stack([start["window"][k] for start in found]) for k in found[0]["window"]},
        h_NH=torch.from_numpy(np.stack([start["h"] for start in found])).to(device),
        age_N=np.array([start["age"] for start in found]),
        states=tuple(state for start in found for state in start["state"]),
        offset_N=np.array([0 if snapshots else start["offset"] for start in found]),
        actions=np.array(actions, np.int64).reshape(-1, slots),
        seed=seed,
    )


# What is measured


class Course(NamedTuple):
    """What followed R starts.  ``weight``: 1 while the episode goes on (real) or the probability that it
    does (simulated); row t of ``reward`` is the transition t -> t+1."""

    logits_RTA: Tensor
    value_RT: Tensor
    reward_RT: Tensor
    weight_RT: Tensor


Actions = Mapping[str, Sequence[int]]  # name of a distinct action -> the ids that do it


def quantities(course: Course, actions: Actions) -> dict[str, Tensor]:
    """Everything measured, each [R].

    At once: ``value``, ``logit:ACTION`` (log-sum-exp where several ids do the same) and ``prob:ACTION``.
    Up to the horizon k, where an ended episode counts as 0: ``value@k``; ``reward@k``, summed;
    ``return@k``, their sum; ``ended@k``, 0 or 1 (simulated: probability); ``prob:ACTION@1..k``, mean
    probability of the action over steps 1 to k.
    """
    k = course.value_RT.shape[1] - 1
    probs, weight = course.logits_RTA.softmax(-1), course.weight_RT
    out = {"value": course.value_RT[:, 0]}
    for name, ids in actions.items():
        out[f"logit:{name}"] = course.logits_RTA[:, 0, list(ids)].logsumexp(-1)
    for name, ids in actions.items():
        out[f"prob:{name}"] = probs[:, 0, list(ids)].sum(-1)
    out[f"value@{k}"] = weight[:, k] * course.value_RT[:, k]
    out[f"reward@{k}"] = (weight[:, :-1] * course.reward_RT).sum(1)
    out[f"return@{k}"] = out[f"value@{k}"] + out[f"reward@{k}"]
    out[f"ended@{k}"] = 1 - weight[:, k]
    for name, ids in actions.items():
        out[f"prob:{name}@1..{k}"] = (weight[:, 1:] * probs[:, 1:, list(ids)].sum(-1)).mean(1)
    return out


def unit_of(quantity: str) -> str:
    """The unit a quantity is in."""
    if quantity.startswith(("prob", "ended")):
        return "probability"
    return "nats" if quantity.startswith("logit") else "return"


def in_words(quantity: str) -> str:
    """A quantity for a sentence."""
    kind, _, when = quantity.partition("@")
    kind, _, action = kind.partition(":")
    if kind in ("prob", "logit"):
        what = {"prob": "the probability", "logit": "the logit"}[kind] + f" of '{action}'"
        return f"{what} over steps {when.replace('..', ' to ')} after" if when else what
    words = {
        "value": "the agent's value", "reward": "the reward within", "return": "reward plus value after",
        "ended": "the chance that the episode ends within",
    }  # fmt: skip
    if kind == "value":
        return f"{words[kind]} {when} steps later" if when else words[kind]
    return f"{words[kind]} {when} steps"


def is_late(quantity: str) -> bool:
    """Whether it is measured after step 0, so that a world has a say in it."""
    return "@" in quantity


def distinct_actions(env: VecEnv, starts: Starts, hold: int = 8) -> dict[str, list[int]]:
    """Ids that lead to the same observations and rewards from every start when held ``hold`` steps, under the
    simplest of their names.  Measured, so it is about these starts.  A world without snapshots: every id by itself."""
    names = env.spec.action_names
    if not starts.states:
        return {name: [i] for i, name in enumerate(names)}
    groups: dict[bytes, list[int]] = {}
    for i in range(len(names)):
        env.restore(starts.states)
        seen = b""
        for _ in range(hold):
            step = env.step(np.full(len(starts), i))
            seen += step.reward.tobytes() + b"".join(step.obs[k].tobytes() for k in sorted(step.obs))
        groups.setdefault(hashlib.sha256(seen).digest(), []).append(i)
    simplest = {min(ids, key=lambda i: (names[i] != "none", len(names[i]), i)): ids for ids in groups.values()}
    return {names[i]: ids for i, ids in simplest.items()}


# The two worlds


@dataclass
class RealWorld:
    """The agent in the real world, run on from the starts."""

    agent: Agent
    env: VecEnv  # a slot a start
    starts: Starts
    noise_NTA: Tensor  # added to the logits before the argmax; zero: greedy
    actions: Actions

    @torch.no_grad()
    def course(self, intervene: Sequence[Intervention] = ()) -> Course:
        starts, device = self.starts, self.starts.h_NH.device
        n, steps, choices = self.noise_NTA.shape
        offset_N = starts.offset_N
        now = self.env.restore(starts.states) if starts.states else self.env.reset(starts.seed)
        h, rows = starts.h_NH, torch.arange(n, device=device)
        logits_NTA, value_NT = h.new_zeros(n, steps, choices), h.new_zeros(n, steps)
        reward_NT, weight_NT = h.new_zeros(n, steps - 1), h.new_zeros(n, steps)
        alive_N = torch.ones(n, dtype=torch.bool, device=device)
        for m in range(int(offset_N.max()) + steps):
            step_N = m - offset_N
            t_N = torch.from_numpy(step_N).to(device)
            went_on = self.agent.advance(
                self.agent.encode(tensors(now, device)), h, torch.from_numpy(now.is_first).to(device)
            )
            h = torch.where((t_N > 0)[:, None], went_on, starts.h_NH)
            for t in np.unique(step_N[(step_N >= 0) & (step_N < steps)]):
                h = apply_interventions(intervene, h, int(t), t_N == int(t))
            logits, value = self.agent.heads(h)
            at = t_N.clamp(0, steps - 1)
            on_N = (t_N >= 0) & (t_N < steps)
            logits_NTA[rows[on_N], at[on_N]], value_NT[rows[on_N], at[on_N]] = logits[on_N], value[on_N]
            weight_NT[rows[on_N], at[on_N]] = alive_N[on_N].to(h.dtype)
            if m == int(offset_N.max()) + steps - 1:
                break
            chosen = (logits + self.noise_NTA[rows, at]).argmax(-1).cpu().numpy()
            if m < len(starts.actions) and (step_N < 0).any():
                chosen = np.where(step_N < 0, starts.actions[m], chosen)
            now = self.env.step(chosen)
            counts_N = on_N & (t_N < steps - 1)
            reward_NT[rows[counts_N], at[counts_N]] = torch.from_numpy(now.reward).to(reward_NT)[counts_N]
            over_N = torch.from_numpy(now.terminated | now.truncated).to(device)
            alive_N = alive_N & ~(over_N & (t_N >= 0))
        return Course(logits_NTA, value_NT, reward_NT, weight_NT)

    def measure(self, groups: Sequence[Intervention | None], description: str = "real world") -> dict[str, np.ndarray]:
        """{quantity: [G, N]}; None is the unaltered run."""
        found = []
        with bar(description, len(groups), "runs") as progress:
            for g in groups:
                found.append(quantities(self.course(() if g is None else (AtSteps(g, 0, 1),)), self.actions))
                progress.advance()
        return {q: torch.stack([f[q] for f in found]).cpu().double().numpy() for q in found[0]}


@dataclass
class SimulatedWorld:
    """The agent in the simulator, run on from the starts' frames and their recorded h.

    The world takes its most likely course; only the action noise is drawn, and it is the real world's.
    """

    simulator: Simulator
    z_NZ: Tensor
    h_NH: Tensor
    noise_NTA: Tensor
    actions: Actions
    batch: int = 128  # rows at once

    def course(self, rows: Tensor, intervene: Sequence[Intervention] = ()) -> Course:
        """Rows are indices int64 [R] of starts; gradients pass."""
        begin = AtSteps(Become(self.h_NH[rows]), 0, 1)
        still = torch.zeros_like(self.simulator.draw_noise(1, torch.Generator(self.z_NZ.device)).s_BS)
        state = self.simulator.start(self.z_NZ[rows])
        logits: list[Tensor] = []
        values: list[Tensor] = []
        rewards: list[Tensor] = []
        terminals: list[Tensor] = []
        for t in range(self.noise_NTA.shape[1]):
            noise = StepNoise(still.expand(len(rows), *still.shape[1:]), self.noise_NTA[rows, t])
            state, out = self.simulator.step(state, noise=noise, intervene=(begin, *intervene))
            for kept, value in ((logits, out.logits_BA), (values, out.value_B), (rewards, out.reward_B)):
                kept.append(value)
            terminals.append(out.terminal_B)
        goes_on = torch.stack([torch.ones_like(values[0]), *(1 - p for p in terminals[1:])], 1)
        return Course(torch.stack(logits, 1), torch.stack(values, 1), torch.stack(rewards[1:], 1), goes_on.cumprod(1))

    @torch.no_grad()
    def measure(
        self, groups: Sequence[Intervention | None], starts: int | None = None, description: str = "simulator"
    ) -> dict[str, np.ndarray]:
        """{quantity: [G, N]} on the first ``starts`` starts; None is the unaltered run.

        All starts: every group is computed on its own, in the same blocks, so that a change of nothing
        changes no bit.  Fewer: several groups at once.
        """
        n = len(self.z_NZ) if starts is None else min(starts, len(self.z_NZ))
        together = 1 if starts is None else max(1, self.batch // n)
        found: dict[str, list[Tensor]] = {}
        with bar(description, len(groups), "runs") as progress:
            for first in range(0, len(groups), together):
                some = groups[first : first + together]
                parts: list[dict[str, Tensor]] = []
                for rows in torch.arange(n, device=self.z_NZ.device).split(self.batch):
                    intervene: tuple[Intervention, ...] = ()
                    if len(some) > 1 or some[0] is not None:
                        inner = tuple(AddVector(torch.zeros_like(self.h_NH[0])) if g is None else g for g in some)
                        intervene = (AtSteps(Blocks(inner), 0, 1),)
                    got = quantities(self.course(rows.repeat(len(some)), intervene), self.actions)
                    parts.append({q: v.unflatten(0, (len(some), -1)) for q, v in got.items()})
                for q in parts[0]:
                    found.setdefault(q, []).append(torch.cat([p[q] for p in parts], 1))
                progress.advance(len(some))
        return {q: torch.cat(v).cpu().double().numpy() for q, v in found.items()}

    def jacobian(self, block: int = 16) -> dict[str, Tensor]:
        """{quantity: [N, H]}, its derivative with respect to h at step 0, through agent and world
        (straight-through where an action is chosen)."""
        found: dict[str, list[Tensor]] = {}
        blocks = torch.arange(len(self.z_NZ), device=self.z_NZ.device).split(block)
        with bar("Jacobians", len(self.z_NZ), "starts") as progress:
            for rows in blocks:
                change = torch.zeros_like(self.h_NH[rows]).requires_grad_()
                course = self.course(rows, (AtSteps(AddVector(change), 0, 1),))
                for q, value_R in quantities(course, self.actions).items():
                    grad = torch.autograd.grad(value_R.sum(), change, retain_graph=True, allow_unused=True)[0]
                    found.setdefault(q, []).append(torch.zeros_like(change) if grad is None else grad)
                progress.advance(len(rows))
        return {q: torch.cat(v) for q, v in found.items()}


# The study


@dataclass(frozen=True)
class Hypothesis:
    """One change of one direction.  ``kind``: shift, collapse, or keep_only (all the rest collapses)."""

    kind: str
    direction: int
    amount: float = float("nan")

    @property
    def name(self) -> str:
        return f"{self.kind} {self.direction}" + (f" by {self.amount:+g}" if self.kind == "shift" else "")

    def build(self, basis: Basis) -> Intervention:
        if self.kind == "shift":
            return Shift(basis, (self.direction,), (self.amount,))
        return Nullspace(basis, (self.direction,)) if self.kind == "collapse" else KeepOnly(basis, self.direction)

    @property
    def control(self) -> tuple[int, float | str] | None:
        """Which random runs are its control: isotropic, so that +a and -a share them.  None: no norm to match."""
        if self.kind == "keep_only":
            return None
        return (self.direction, abs(self.amount) if self.kind == "shift" else "collapse")


def hypotheses_of(directions: Sequence[int], amounts: Sequence[float]) -> list[Hypothesis]:
    """Every direction shifted by every amount, collapsed, and kept alone."""
    shifts = [Hypothesis("shift", i, a) for i in directions for a in amounts]
    return shifts + [Hypothesis(kind, i) for i in directions for kind in ("collapse", "keep_only")]


def changes(intervention: Intervention, h_NH: Tensor) -> Tensor:
    """What an intervention adds to every start's h, [N, H]."""
    everywhere = torch.ones(len(h_NH), dtype=torch.bool, device=h_NH.device)
    return intervention(h_NH, 0, everywhere) - h_NH


def verdict(observed: float, low: float, high: float, q: float, predicted: float, band: tuple[float, float]) -> str:
    """confirmed, refuted or inconclusive, by CRITERIA."""
    sure = (low > 0 or high < 0) and q <= ALPHA
    outside = observed < band[0] or observed > band[1]
    if sure and np.sign(observed) == -np.sign(predicted) != 0:
        return "refuted"
    if sure and outside and np.sign(observed) == np.sign(predicted):
        return "confirmed"
    if low >= band[0] and high <= band[1]:
        return "refuted"
    return "inconclusive"


class Effects(NamedTuple):
    """Effects (with minus without) of one world, {quantity: array}."""

    hypotheses: dict[str, np.ndarray]  # [G, N]
    controls: dict[tuple[int, float | str], dict[str, np.ndarray]]  # [C, M], on the first M starts
    unaltered: dict[str, np.ndarray]  # [N], the quantity itself
    zero_change: float  # largest |effect| of shifting by nothing; NaN if no amount is 0


def effects_of(
    world: RealWorld | SimulatedWorld, hypotheses: Sequence[Hypothesis], basis: Basis, units: Mapping[int, Tensor],
    control_starts: int | None,
) -> Effects:  # fmt: skip
    """Run all hypotheses and their controls in one world."""
    where = "real world" if isinstance(world, RealWorld) else "simulator"
    got = world.measure([None, *(h.build(basis) for h in hypotheses)], description=where)
    # A change of nothing is run and checked, but it has no effect to test.
    zero = [g for g, h in enumerate(hypotheses) if h.kind == "shift" and h.amount == 0]
    effect = {q: v[1:] - v[:1] for q, v in got.items()}
    nothing = max((float(np.abs(v[zero]).max()) for v in effect.values()), default=0.0) if zero else float("nan")
    wanted = {h.control: h for h in hypotheses if h.control is not None and h.amount != 0}
    controls: dict[tuple[int, float | str], dict[str, np.ndarray]] = {}
    for key, h in wanted.items():
        assert key is not None
        inner = Hypothesis(h.kind, h.direction, abs(h.amount)).build(basis)
        redirected: list[Intervention | None] = [Redirect(inner, basis, h.direction, u) for u in units[h.direction]]
        label = f"{where}: random for {h.direction}, {key[1]}"
        if isinstance(world, SimulatedWorld):
            random, few = world.measure(redirected, control_starts, label), control_starts
        else:
            random, few = world.measure(redirected, label), None
        controls[key] = {q: v - got[q][0, :few] for q, v in random.items()}
    return Effects(effect, controls, {q: v[0] for q, v in got.items()}, nothing)


def table_of(
    world: str,
    effects: Effects,
    hypotheses: Sequence[Hypothesis],
    jacobian: Mapping[str, np.ndarray],
    simulated: Effects,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """One row a (hypothesis, quantity).  jacobian: {quantity: [G]}, first-order predictions."""
    rows: list[dict[str, Any]] = []
    for g, h in enumerate(hypotheses):
        if h.amount == 0:
            continue
        for q, effect_GN in effects.hypotheses.items():
            effect_N = effect_GN[g]
            estimate = bootstrap_mean(effect_N, np.arange(len(effect_N)), rng=rng)
            row: dict[str, Any] = {
                "world": world, "hypothesis": h.name, "kind": h.kind, "direction": h.direction,
                "amount": None if h.kind != "shift" else h.amount, "quantity": q, "unit": unit_of(q),
                "predicted_jacobian": float(jacobian[q][g]),
                "predicted_simulated": float(simulated.hypotheses[q][g].mean()) if world == "real" else None,
                "observed": estimate.value, "low": estimate.low, "high": estimate.high,
                "p": sign_flip_p(effect_N, rng=rng, permutations=PERMUTATIONS), "n": estimate.n,
            }  # fmt: skip
            if h.control is not None:
                random_CM = effects.controls[h.control][q]
                low, high = band_of(random_CM.mean(1), ALPHA)
                few = random_CM.shape[1]
                if few < len(effect_N):  # compared with the band on the band's own starts
                    estimate = bootstrap_mean(effect_N[:few], np.arange(few), rng=rng)
                row |= {
                    "random_low": low, "random_high": high, "random_n": len(random_CM),
                    "as_random": estimate.value, "as_random_low": estimate.low, "as_random_high": estimate.high,
                    "as_random_n": few,
                }  # fmt: skip
            rows.append(row)
    for row, q_value in zip(rows, benjamini_hochberg(np.array([row["p"] for row in rows])), strict=True):
        row["q"] = float(q_value)
        predicted = row["predicted_simulated"] if world == "real" else row["predicted_jacobian"]
        if "random_low" not in row:
            row["verdict"] = "no control"
            continue
        band = (row["random_low"], row["random_high"])
        row["verdict"] = verdict(
            row["as_random"], row["as_random_low"], row["as_random_high"], row["q"], predicted, band
        )
    return rows


def dose_slopes(effect_GN: np.ndarray, hypotheses: Sequence[Hypothesis], direction: int) -> np.ndarray:
    """Least-squares effect per unit of shift, through the origin (no shift, no effect), for every start [N]."""
    which = [(g, h.amount) for g, h in enumerate(hypotheses) if h.kind == "shift" and h.direction == direction]
    amounts = np.array([a for _, a in which])
    slopes: np.ndarray = amounts @ effect_GN[[g for g, _ in which]] / (amounts @ amounts)
    return slopes


def agreement(predicted_P: np.ndarray, observed_P: np.ndarray) -> np.ndarray:
    """(sign agreement, rank correlation, slope of observed on predicted through the origin); NaN where
    a constant leaves one undefined.  Exactly 0 agrees with 0 alone, so that "nothing happened" counts against
    a prediction."""
    same = float((np.sign(predicted_P) == np.sign(observed_P)).mean())
    ranks = np.stack([np.argsort(np.argsort(x)).astype(float) for x in (predicted_P, observed_P)])
    constant = len(predicted_P) < 3 or np.ptp(predicted_P) == 0 or np.ptp(observed_P) == 0
    rank = float("nan") if constant else float(np.corrcoef(ranks)[0, 1])
    power = float(predicted_P @ predicted_P)
    return np.array([same, rank, float(predicted_P @ observed_P) / power if power > 0 else float("nan")])


def headline(
    result: Result, name: str, predicted_PN: np.ndarray, observed_PN: np.ndarray, rng: np.random.Generator
) -> None:
    """Agreement over P points of means over N starts, with an interval over starts, into ``result``."""
    n = observed_PN.shape[1]

    def statistic(rows: np.ndarray) -> np.ndarray:
        return agreement(predicted_PN[:, rows].mean(1), observed_PN[:, rows].mean(1))

    value, low, high = bootstrap(statistic, np.arange(n), rng=rng)
    for i, (what, unit) in enumerate((("sign_agreement", "share"), ("rank_correlation", "1"), ("slope", "1"))):
        result.scalar(f"{what}{name}", float(value[i]), unit, n, (float(low[i]), float(high[i])))
    result.notes[f"points{name}"] = len(predicted_PN)


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What ``study`` needs of the configuration."""

    directions: tuple[int, ...]  # () where ``largest`` are to be chosen
    amounts: tuple[float, ...]
    starts: int
    horizon: int
    controls: int
    control_starts: int
    latest_start: int
    greedy: bool = False
    seed: int = 0
    largest: int = 0  # where no directions are named: how many to choose


def check_options(options: StudyOptions, basis: Basis | None = None) -> None:
    """UserError on anything the study cannot run with; of the directions only where the basis is given."""
    if not (options.directions or options.largest > 0):
        raise UserError("--directions names no direction")
    if len(set(options.directions)) < len(options.directions):
        raise UserError("--directions names a direction twice")
    if not any(options.amounts) or not np.isfinite(options.amounts).all():
        raise UserError("--amounts needs at least one finite amount other than 0")
    if len(set(options.amounts)) < len(options.amounts):
        raise UserError("--amounts names an amount twice")
    cli.require(1, horizon=options.horizon, controls=options.controls, control_starts=options.control_starts)
    require_permutations(options.starts, ALPHA, "sign-flip")
    if basis is None:
        return
    basis.check(options.directions)
    if options.largest > basis.size:
        raise UserError(f"--directions largest {options.largest}: the {basis.kind} basis has {basis.size} directions")


def study(
    simulator: Any,
    make_env: Callable[[int], VecEnv],
    basis: Basis,
    options: StudyOptions,
    device: torch.device | None = None,
) -> Result:
    """The whole comparison.  ``simulator`` keeps core.contracts.Simulator and has ``initial_frames``;
    ``make_env(slots)`` makes its real world.

    Tables ``effects`` and ``doses``; arrays of per-start effects; scalars of agreement; ``notes["claim"]``.
    Raises UserError for what ``check_options`` refuses.
    """
    check_options(options, basis)
    device = torch.device("cpu") if device is None else device
    rng = np.random.default_rng(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    agent = simulator.agent
    collector = make_env(min(options.starts, 64))
    if not collector.spec.can_snapshot:
        collector.close()
        collector = make_env(options.starts)
    starts = collect_starts(
        agent, collector, options.starts, initial_frames=simulator.initial_frames, latest=options.latest_start,
        seed=options.seed, greedy=options.greedy, device=device,
    )  # fmt: skip
    collector.close()
    env = make_env(len(starts))
    try:
        actions = distinct_actions(env, starts)
        shape = (len(starts), options.horizon + 1, agent.n_actions)
        exponential = torch.empty(shape).exponential_(generator=generator)
        noise_NTA = (torch.zeros(shape) if options.greedy else -exponential.log()).to(device)
        window = {k: torch.from_numpy(v).to(device) for k, v in starts.window.items()}
        with torch.no_grad():
            z_NZ = simulator.normalise(torch.cat([simulator.infer({k: v[i : i + 32] for k, v in window.items()})[0]
                                                  for i in range(0, len(starts), 32)]))  # fmt: skip
        dreamed = SimulatedWorld(simulator, z_NZ, starts.h_NH, noise_NTA, actions)
        real = RealWorld(agent, env, starts, noise_NTA, actions)
        jacobian = dreamed.jacobian()
        directions = options.directions or most_promising(dreamed, jacobian, basis, options.largest)
        hypotheses = hypotheses_of(directions, options.amounts)
        units = {i: random_units(basis, options.controls, generator) for i in directions}
        simulated = effects_of(dreamed, hypotheses, basis, units, options.control_starts)
        observed = effects_of(real, hypotheses, basis, units, None)
    finally:
        env.close()

    def first_order(intervention: Intervention) -> dict[str, np.ndarray]:
        change_NH = changes(intervention, starts.h_NH)
        return {q: (j * change_NH).sum(1).cpu().double().numpy() for q, j in jacobian.items()}

    predicted = [first_order(h.build(basis)) for h in hypotheses]
    predicted_GN = {q: np.stack([p[q] for p in predicted]) for q in jacobian}
    means = {q: v.mean(1) for q, v in predicted_GN.items()}
    rows = table_of("simulator", simulated, hypotheses, means, simulated, rng)
    rows += table_of("real", observed, hypotheses, means, simulated, rng)
    result = Result(tables={"effects": rows, "doses": []})
    result.arrays = {"h": starts.h_NH.cpu().numpy(), "age": starts.age_N}
    for q in jacobian:
        result.arrays |= {f"simulated/{q}": simulated.hypotheses[q], f"observed/{q}": observed.hypotheses[q]}
        result.arrays[f"jacobian/{q}"] = predicted_GN[q]
    result.notes |= {
        "hypotheses": [h.name for h in hypotheses],
        "actions": {name: [simulator.spec.action_names[i] for i in ids] for name, ids in actions.items()},
        "paired_by": starts.paired_by,
        "criteria": CRITERIA,
        "immediate": "Effects at step 0 follow from the agent's linear heads: both worlds give the same numbers and "
        "the first-order prediction of logits and value is exact. They are no evidence about the world.",
        "controls": f"{options.controls} random directions a hypothesis, of the same length in "
        "units of each neuron's standard deviation; 'keep_only' has no single length and so no band",
    }
    if starts.paired_by == "seed":
        result.notes["paired"] = "The world has no snapshots: pairs replay the same seed and actions up to the start."
    result.scalar("zero_change_real", observed.zero_change, "largest effect of amount 0")
    result.scalar("zero_change_simulator", simulated.zero_change, "largest effect of amount 0")

    # Units for the headline: the spread of each quantity over the real, unaltered starts.
    scale = {q: float(v.std()) for q, v in observed.unaltered.items()}
    late = [q for q in jacobian if is_late(q) and scale[q] > 0]
    result.notes["without_spread"] = [q for q in jacobian if is_late(q) and scale[q] == 0]
    points: dict[str, list[np.ndarray]] = {"jacobian": [], "simulated": [], "observed": []}
    worlds = (("jacobian", predicted_GN), ("simulated", simulated.hypotheses), ("observed", observed.hypotheses))
    for i in directions:
        for q in jacobian:
            dose = {name: dose_slopes(effect[q], hypotheses, i) for name, effect in worlds}
            estimate = bootstrap_mean(dose["observed"], np.arange(len(starts)), rng=rng)
            result.tables["doses"].append({
                "direction": i, "quantity": q, "unit": f"{unit_of(q)} per unit of the direction",
                "predicted_jacobian": float(dose["jacobian"].mean()),
                "predicted_simulated": float(dose["simulated"].mean()),
                "observed": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n,
                "spread": scale[q],
            })  # fmt: skip
            if q in late:
                for name in points:
                    points[name].append(dose[name] / scale[q])
    for name in ("simulated", "jacobian"):
        if late:
            suffix = "" if name == "simulated" else "_jacobian"
            headline(result, suffix, np.stack(points[name]), np.stack(points["observed"]), rng)
    # The same for arbitrary directions: how far the simulator can be trusted before any hypothesis.
    top = max(abs(a) for a in options.amounts)
    i = directions[0]
    if late:
        arbitrary = Hypothesis("shift", i, top).build(basis)
        firsts = [first_order(Redirect(arbitrary, basis, i, u)) for u in units[i]]
        jac = np.concatenate([np.stack([f[q] for f in firsts]) / scale[q] for q in late])
        seen = np.concatenate([observed.controls[(i, top)][q] / scale[q] for q in late])
        headline(result, "_random_jacobian", jac, seen, rng)
        dream = np.concatenate([simulated.controls[(i, top)][q] / scale[q] for q in late])
        headline(result, "_random", dream, seen[:, : dream.shape[1]], rng)
    claims = [claim_of(i, rows, scale, basis.kind, late) for i in directions]
    result.notes["claims"] = claims
    result.notes["claim"] = " ".join(claim["text"] for claim in claims)
    return result


def most_promising(world: SimulatedWorld, jacobian: Mapping[str, Tensor], basis: Basis, count: int) -> tuple[int, ...]:
    """The ``count`` directions with the largest predicted late effect, largest first.

    Predicted: |mean derivative| of a late quantity along the direction, in spreads of that quantity over
    the unaltered simulated starts; a direction counts by its best quantity.
    """
    spread = {q: float(v[0].std()) for q, v in world.measure([None]).items() if is_late(q)}
    scores = [basis.pullback(jacobian[q]).mean(0).abs() / s for q, s in spread.items() if s > 0]
    if not scores:
        raise UserError("no late quantity varies over the starts, so no direction is promising; name --directions")
    return tuple(torch.stack(scores).amax(0).argsort(descending=True)[:count].tolist())


def claim_of(
    direction: int, rows: Sequence[Mapping[str, Any]], scale: Mapping[str, float], kind: str, late: Sequence[str]
) -> dict[str, Any]:
    """The claim of a direction: of all its late effects, the one that the simulator predicts to be largest (in
    spreads of the quantity), tested in the real world.  So what is claimed is fixed before the world is asked."""
    mine = [
        r for r in rows
        if r["world"] == "real" and r["direction"] == direction and r["quantity"] in late and r["kind"] != "keep_only"
    ]  # fmt: skip
    if not mine:
        text = f"Direction {direction} ({kind}): nothing measured after the change varies, so there is no claim."
        return {"direction": direction, "verdict": "inconclusive", "text": text}
    best = max(mine, key=lambda r: abs(r["predicted_simulated"]) / scale[r["quantity"]])
    what = "setting it to its mean" if best["kind"] == "collapse" else f"adding {best['amount']:+g} to it"
    found = {"confirmed": "confirmed", "refuted": "refuted"}.get(best["verdict"], "neither confirmed nor refuted")
    text = (
        f"Direction {direction} ({kind}): the simulator predicts that {what} changes {in_words(best['quantity'])} by "
        f"{best['predicted_simulated']:+.3g} {best['unit']}; in the real world it changed by {best['observed']:+.3g} "
        f"[{best['low']:+.3g}, {best['high']:+.3g}] (n = {best['n']} starts, q = {best['q']:.2g}), where "
        f"{best['random_n']} random changes of the same size give {best['random_low']:+.3g} to "
        f"{best['random_high']:+.3g}: {found}."
    )
    return {"direction": direction, "verdict": best["verdict"], "text": text, **best}


def label_starts(hidden_states: Path, behaviours: Path, agent: str, h_NH: Tensor) -> tuple[np.ndarray, float]:
    """The behaviour of every start, int64 [N], and how often the same rule finds the recorded label.

    A behaviour needs the future to be told for certain; here it is the nearest of the behaviours' mean
    states, in the principal components of h.  UserError unless both directories describe the same
    rollouts of ``agent``.
    """
    made_from = [artefacts.read_manifest(d)["inputs"].get("rollouts", {}).get("manifest_sha256")
                 for d in (hidden_states, behaviours)]  # fmt: skip
    found = load_behaviours(behaviours)
    if found.agent != agent or made_from[0] is None or made_from[0] != made_from[1]:
        raise UserError(f"{behaviours} and {hidden_states} do not describe the same rollouts of this agent")
    states = Result.load(hidden_states)
    basis = load_basis(hidden_states, "pca", agent)
    explained = np.sqrt(np.array(basis.facts["explained"]))  # back from whitened coordinates to distances of states
    real = states.arrays["source"] == 0
    where = {(int(e), int(t)): i for i, (e, t) in zip(np.flatnonzero(real), states.arrays["index"][real], strict=True)}
    labels, index = found.labels["real"], found.index["real"]
    known = [(where[e, t], b) for (e, t), b in zip(map(tuple, index.tolist()), labels, strict=True) if (e, t) in where]
    rows, label_M = (np.array(x) for x in zip(*known, strict=True))
    c_MK = states.arrays["c_pca"][rows] * explained
    present = np.unique(label_M)
    centres = np.stack([c_MK[label_M == b].mean(0) for b in present])

    def nearest(c: np.ndarray) -> np.ndarray:
        out: np.ndarray = present[((c[:, None] - centres) ** 2).sum(-1).argmin(1)]
        return out

    return nearest(basis.project(h_NH.cpu()).numpy() * explained), float((nearest(c_MK) == label_M).mean())


def by_behaviour(
    result: Result, behaviour_N: np.ndarray, names: Mapping[int, str], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Each claim's observed effect for every behaviour with at least 2 starts in it."""
    rows = []
    for claim in result.notes["claims"]:
        if "quantity" not in claim:
            continue
        g = result.notes["hypotheses"].index(claim["hypothesis"])
        effect_N = result.arrays[f"observed/{claim['quantity']}"][g]
        for b in np.unique(behaviour_N):
            inside = np.flatnonzero(behaviour_N == b)
            if len(inside) < 2:
                continue
            e = bootstrap_mean(effect_N[inside], inside, rng=rng)
            rows.append({
                "behaviour": int(b), "name": names.get(int(b), ""), "hypothesis": claim["hypothesis"],
                "quantity": claim["quantity"], "observed": e.value, "low": e.low, "high": e.high, "n": e.n,
            })  # fmt: skip
    return rows


# Figures, drawn from the result


def draw_effects(result: Result, path: Path, top: int = 4) -> None:
    """Dose-response of the late quantities that the simulator predicts to move most, a row a direction."""
    from matplotlib.figure import Figure

    rows = [r for r in result.tables["effects"] if r["kind"] == "shift" and is_late(r["quantity"])]
    doses = [d for d in result.tables["doses"] if is_late(d["quantity"]) and d["spread"] > 0]
    directions = sorted({r["direction"] for r in rows})
    doses.sort(key=lambda d: -abs(d["predicted_simulated"]) / d["spread"])
    chosen = {i: [d for d in doses if d["direction"] == i][:top] for i in directions}
    columns = max(1, max((len(c) for c in chosen.values()), default=1))
    figure = Figure(figsize=(3.2 * columns, 2.8 * max(1, len(directions))), layout="constrained")
    axes = figure.subplots(max(1, len(directions)), columns, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for row, i in enumerate(directions):
        for column, dose in enumerate(chosen[i]):
            ax, q = axes[row][column], dose["quantity"]
            ax.set_axis_on()
            ax.axhline(0, color="0.8", lw=0.8)
            for world, colour in (("real", "tab:blue"), ("simulator", "tab:orange")):
                mine = sorted(
                    (r for r in rows if r["direction"] == i and r["quantity"] == q and r["world"] == world),
                    key=lambda r: r["amount"],
                )
                x = [r["amount"] for r in mine]
                if world == "real":
                    ax.fill_between(
                        x, [r["random_low"] for r in mine], [r["random_high"] for r in mine], color="0.85",
                        label="random directions (95 %)",
                    )  # fmt: skip
                y = [r["observed"] for r in mine]
                spread = [[r["observed"] - r["low"] for r in mine], [r["high"] - r["observed"] for r in mine]]
                ax.errorbar(x, y, spread, color=colour, marker="o", ms=3, lw=1, capsize=2, label=world)
            ax.set_title(f"direction {i}: {q}", fontsize=9)
            ax.set_ylabel(f"change ({dose['unit'].partition(' per')[0]})", fontsize=8)
            ax.set_xlabel("amount added", fontsize=8)
            ax.tick_params(labelsize=7)
    handles, labels = axes[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)


def draw_headline(result: Result, path: Path) -> None:
    """Predicted against observed slope, a point a (direction, late quantity), in spreads of the quantity."""
    from matplotlib.figure import Figure

    doses = [d for d in result.tables["doses"] if is_late(d["quantity"]) and d["spread"] > 0]
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, squeeze=False)[0]
    for ax, key, suffix in ((axes[0], "predicted_simulated", ""), (axes[1], "predicted_jacobian", "_jacobian")):
        ax.axhline(0, color="0.8", lw=0.8)
        ax.axvline(0, color="0.8", lw=0.8)
        for i in sorted({d["direction"] for d in doses}):
            mine = [d for d in doses if d["direction"] == i]
            y = [d["observed"] / d["spread"] for d in mine]
            spread = [[(d["observed"] - d["low"]) / d["spread"] for d in mine],
                      [(d["high"] - d["observed"]) / d["spread"] for d in mine]]  # fmt: skip
            ax.errorbar([d[key] / d["spread"] for d in mine], y, spread, fmt="o", ms=4, lw=0.8, label=f"direction {i}")
        ax.axline((0, 0), slope=1, color="0.6", lw=0.8, ls="--")
        ax.set_xlabel(f"{key.replace('_', ' (')}): spreads of the quantity per unit", fontsize=8)
        ax.set_ylabel("observed in the real world", fontsize=8)
        ax.tick_params(labelsize=7)
        if f"slope{suffix}" in result.scalars:
            said = ", ".join(
                f"{label} {_short(result.scalars[name + suffix])}"
                for label, name in (("sign", "sign_agreement"), ("rank", "rank_correlation"), ("slope", "slope"))
            )
            ax.set_title(said, fontsize=7)
    if doses:
        axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)


def _short(scalar: Mapping[str, Any]) -> str:
    value, interval = scalar["value"], scalar.get("interval") or [None, None]
    if value is None:
        return "undefined"
    ends = ", ".join("?" if end is None else f"{end:.2f}" for end in interval)
    return f"{value:.2f} [{ends}]"


# The stage


def check(config: InterventionsConfig) -> StudyOptions:
    """What the study needs of the configuration; UserError on anything it cannot run with."""
    largest = 0
    directions: tuple[int, ...] = ()
    if config.directions[:1] == ("largest",):
        counts = parse_ids(config.directions[1:], "--directions largest")
        if len(counts) != 1 or counts[0] < 1:
            raise UserError("--directions largest takes one number: how many directions to choose")
        largest = counts[0]
    else:
        directions = tuple(parse_ids(config.directions, "--directions"))
    options = StudyOptions(
        directions=directions, largest=largest, amounts=config.amounts, starts=config.starts, horizon=config.horizon,
        controls=config.controls, control_starts=config.control_starts, latest_start=config.latest_start,
        greedy=config.greedy, seed=config.seed,
    )  # fmt: skip
    check_options(options)
    return options


def main(config: InterventionsConfig) -> None:
    options = check(config)
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    simulator = load_simulator(config.simulator, device)
    basis = load_basis(config.hidden_states, config.basis_kind, fingerprint(simulator.agent)).to(device)
    check_options(options, basis)
    inputs = {"simulator": config.simulator, "hidden_states": config.hidden_states}
    if config.behaviours is not None:
        inputs["behaviours"] = config.behaviours
        # Asked for now, so that a mistake is found before the study and not after it.
        label_starts(config.hidden_states, config.behaviours, fingerprint(simulator.agent), basis.mean_H[None])

    def make_env(slots: int) -> VecEnv:
        levels = {"start_level": config.start_level, "num_levels": config.num_levels}
        return make(simulator.spec, slots, threads=config.threads, **levels)

    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result = study(simulator, make_env, basis, options, device)
        if config.behaviours is not None:
            behaviour_N, right = label_starts(
                config.hidden_states,
                config.behaviours,
                fingerprint(simulator.agent),
                torch.from_numpy(result.arrays["h"]),
            )
            names = load_behaviours(config.behaviours).names
            result.arrays["behaviour"] = behaviour_N
            result.tables["behaviours"] = by_behaviour(result, behaviour_N, names, np.random.default_rng(config.seed))
            result.scalar("behaviour_labels_found", right, "share of recorded labels that nearest mean state finds")
        result.save(run.path)
        draw_effects(result, run.path / "effects.png")
        draw_headline(result, run.path / "predicted_vs_observed.png")
        run.metrics = dict(result.scalars)
        run.facts = {"agent": fingerprint(simulator.agent), "simulator": fingerprint(simulator)}
    print_summary(result)
    count = len(options.directions) or options.largest
    print(f"effects of {count} directions on {config.starts} paired starts: {config.out}")


def print_summary(result: Result) -> None:
    """The headline in a few lines."""
    for name in ("sign_agreement", "rank_correlation", "slope"):
        if name in result.scalars:
            print(f"{name.replace('_', ' ')}, simulated against observed: {_short(result.scalars[name])}")
    print(result.notes["claim"])


if __name__ == "__main__":
    cli.run(InterventionsConfig, main, STAGE)
