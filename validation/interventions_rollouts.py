"""The agent run on from the same starts with and without a change of its hidden state, in the real world and in the
simulator.

A paired run costs little: until an altered agent first acts otherwise than the unaltered one did, both see the same
world.  So each world is kept as a tree of what was done: runs that act alike from the same start share its places, and
most random changes part alike.  Only places where no run has been are played.

N starts (each of its own episode, so each an independent unit), R rows, G changes, k horizon, T = k + 1 steps.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.play import Chooser, Exploration, play, tensors
from core.contracts import (
    Agent,
    Intervention,
    SimState,
    Simulator,
    StepNoise,
    StepOut,
    UserError,
    VecEnv,
    apply_interventions,
    straight_through,
)
from core.directions import Basis
from core.progress import bar
from validation.events import Event, Rows
from validation.interventions_hypotheses import Blocks

GIVE_UP_STEPS = 20_000
MOST_NODES = 20_000  # of a world kept: 400 MB of the bundled simulator's, 740 MB of CoinRun's


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
    again.  Every slot gives equally many (some one more where it must be), so that fast episodes are not favoured.

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
    quota_B = np.full(slots, count // slots) + (np.arange(slots) < count % slots)
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
    does (simulated); row t of ``reward`` and ``ended`` is the transition t -> t+1."""

    logits_RTA: Tensor
    value_RT: Tensor
    reward_RT: Tensor  # [R, T-1]
    weight_RT: Tensor
    h_RTH: Tensor | None = None
    action_RTA: Tensor | None = None  # one-hot
    ended_RT: Tensor | None = None  # [R, T-1], 0 or 1


Actions = Mapping[str, Sequence[int]]  # name of a distinct action -> the ids that do it


@dataclass(frozen=True)
class Measures:
    """What is asked of a course besides what every study asks."""

    actions: Actions
    basis: Basis | None = None
    directions: tuple[int, ...] = ()  # whose later coordinates are measured
    events: tuple[Event, ...] = ()


def quantities(course: Course, measures: Measures) -> dict[str, Tensor]:
    """Everything measured, each [R].

    At once: ``value``, ``logit:ACTION`` (log-sum-exp where several ids do the same) and ``prob:ACTION``.
    Up to the horizon k, where an ended episode counts as 0: ``value@k``; ``reward@k``, summed;
    ``return@k``, their sum; ``ended@k``, 0 or 1 (simulated: probability); ``prob:ACTION@1..k``, mean
    probability of the action over steps 1 to k; ``direction:ID@k``, its coordinate; ``rate:EVENT@k``, the share of
    steps 0 to k-1 at which the event happens; ``event:EVENT@k``, whether it happens at one of them.
    """
    k = course.value_RT.shape[1] - 1
    probs, weight = course.logits_RTA.softmax(-1), course.weight_RT
    out = {"value": course.value_RT[:, 0]}
    for name, ids in measures.actions.items():
        out[f"logit:{name}"] = course.logits_RTA[:, 0, list(ids)].logsumexp(-1)
    for name, ids in measures.actions.items():
        out[f"prob:{name}"] = probs[:, 0, list(ids)].sum(-1)
    out[f"value@{k}"] = weight[:, k] * course.value_RT[:, k]
    out[f"reward@{k}"] = (weight[:, :-1] * course.reward_RT).sum(1)
    out[f"return@{k}"] = out[f"value@{k}"] + out[f"reward@{k}"]
    out[f"ended@{k}"] = 1 - weight[:, k]
    for name, ids in measures.actions.items():
        out[f"prob:{name}@1..{k}"] = (weight[:, 1:] * probs[:, 1:, list(ids)].sum(-1)).mean(1)
    if measures.basis is None or course.h_RTH is None:
        return out
    if measures.directions:
        c_RK = measures.basis.project(course.h_RTH[:, k])
        for i in measures.directions:
            out[f"direction:{i}@{k}"] = weight[:, k] * c_RK[:, i]
    if measures.events:
        rows = rows_of(course, measures.basis)
        for event in measures.events:
            out[f"rate:{event.name}@{k}"] = event.rate(rows, weight[:, :-1])
        for event in measures.events:
            out[f"event:{event.name}@{k}"] = event.happens(rows, weight[:, :-1])
    return out


def still_on(course: Course, rows: Tensor) -> np.ndarray:
    """Where frames of some starts are of the episode they began in: uint8 [n, T, 1, 1, 1] of 1 and 0."""
    if course.ended_RT is None:
        raise ValueError("a course without endings")
    before = (course.ended_RT[rows] > 0.5).cumsum(1) == 0
    on = torch.cat([torch.ones_like(before[:, :1]), before], 1)
    return on[..., None, None, None].to(torch.uint8).cpu().numpy()


def rows_of(course: Course, basis: Basis) -> Rows:
    """The steps of a course whose transition is known, for events."""
    if course.h_RTH is None or course.action_RTA is None or course.ended_RT is None:
        raise ValueError("events need a course with hidden states, actions and endings")
    now = slice(0, course.reward_RT.shape[1])
    return Rows(
        course.value_RT[:, now], course.reward_RT, course.ended_RT, course.action_RTA[:, now],
        course.logits_RTA[:, now], basis.project(course.h_RTH[:, now]),
    )  # fmt: skip


def unit_of(quantity: str) -> str:
    """The unit a quantity is in."""
    kind = quantity.partition("@")[0].partition(":")[0]
    units = {"logit": "nats", "direction": "coordinate", "rate": "share of steps"}
    return "probability" if kind in ("prob", "ended", "event") else units.get(kind, "return")


def in_words(quantity: str) -> str:
    """A quantity for a sentence."""
    kind, _, when = quantity.partition("@")
    kind, _, action = kind.partition(":")
    if kind in ("direction", "rate", "event"):
        said = {
            "direction": f"direction {action} {when} steps later",
            "rate": f"the share of the {when} steps after at which '{action}' happens",
            "event": f"the chance that '{action}' happens within {when} steps",
        }
        return said[kind]
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


def family_of(quantity: str) -> str:
    """What a late quantity is about: value_and_actions, directions, outcomes (reward, return, ended) or events."""
    kind = quantity.partition("@")[0].partition(":")[0]
    names = {"value": "value_and_actions", "prob": "value_and_actions", "direction": "directions"}
    return names.get(kind, "events" if kind in ("rate", "event") else "outcomes")


def is_late(quantity: str) -> bool:
    """Whether it is measured after step 0, so that a world has a say in it."""
    return "@" in quantity


def is_cut(quantity: str, events: Sequence[Event]) -> bool:
    """Whether a late quantity cannot change through memory alone, by construction: there the actions are those of the
    unaltered run, and so are rewards, endings and what is told by them."""
    kind, _, name = quantity.partition("@")[0].partition(":")
    told = {event.name for event in events if event.of_actions_alone}
    return kind in ("reward", "ended") or (kind in ("rate", "event") and name in told)


def is_share(quantity: str) -> bool:
    """Whether it is a share of events, whose sizes of interest are shares and not spreads."""
    return quantity.partition(":")[0].partition("@")[0] in ("rate", "event", "ended")


def is_own(quantity: str, directions: Sequence[int]) -> bool:
    """Whether it is what one of these directions is itself later: no claim to make of a change of it."""
    return any(quantity.startswith(f"direction:{i}@") for i in directions)


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


@dataclass(frozen=True)
class Become:
    """Replace the state by another [B, H]: both worlds start from the recorded one."""

    h: Tensor

    def __call__(self, h_BH: Tensor, t: int, mask_B: Tensor) -> Tensor:
        return torch.where(mask_B[:, None] & (t == 0), self.h, h_BH)


@dataclass(frozen=True)
class AddSteps:
    """Add ``changes`` [S, B, H] at steps 0 to S-1: what Jacobians are taken with respect to."""

    changes: Tensor

    def __call__(self, h_BH: Tensor, t: int, mask_B: Tensor) -> Tensor:
        return h_BH + self.changes[t] if t < len(self.changes) else h_BH


class Places(NamedTuple):
    """Where B steps of a world led to."""

    states: list[Any]  # to go on from; None: the episode is over
    e_BE: Tensor  # embeddings of what the agent sees there
    reward_B: Tensor  # of the transition that led there
    terminal_B: Tensor  # probability that it ended the episode (real: 0 or 1)


def joined(parts: Sequence[Places]) -> Places:
    """The places of all parts, in this order."""
    states, *tensors = zip(*parts, strict=True)
    return Places([state for part in states for state in part], *map(torch.cat, tensors))


@dataclass
class Level:
    """Every place of a world at one step that some run has come to: M nodes, of which the first N are those of the
    unaltered runs.  A node is a start and what was done since."""

    states: list[Any]
    e_ME: Tensor
    reward_M: Tensor
    terminal_M: Tensor
    action_N: Tensor  # what the unaltered agent does there
    child: dict[int, int]  # node * actions + action: node of the next level

    def add(self, places: Places) -> None:
        """More nodes."""
        self.states += places.states
        self.e_ME = torch.cat([self.e_ME, places.e_BE])
        self.reward_M = torch.cat([self.reward_M, places.reward_B])
        self.terminal_M = torch.cat([self.terminal_M, places.terminal_B])


@dataclass
class World:
    """A world that can be gone on with from any place in it, with the agent in it: a tree of what was done.

    Subclasses say where the starts are and where an action leads.
    """

    agent: Agent
    h_NH: Tensor
    noise_NTA: Tensor  # added to the logits before the argmax; zero: greedy
    measures: Measures
    _tree: list[Level] = field(init=False, default_factory=list)

    def begin(self) -> Places:
        """The N starts; embeddings are not looked at, since h is known."""
        raise NotImplementedError

    def go(self, t: int, states: Sequence[Any], actions: Sequence[int]) -> Places:
        """Where these actions lead from these places: to step ``t``."""
        raise NotImplementedError

    def _choose(self, h_BH: Tensor, of_B: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(logits, value, action, one-hot)"""
        logits, value = self.agent.heads(h_BH)
        index, one_hot = straight_through(logits, self.noise_NTA[of_B, t])
        return logits, value, index, one_hot

    @torch.no_grad()
    def tree(self) -> list[Level]:
        """What is known of the world, a level a step: at first, and again where it has grown too large, the unaltered
        runs."""
        if self._tree and sum(len(level.states) for level in self._tree) < MOST_NODES:
            return self._tree
        n, steps, choices = self.noise_NTA.shape
        of_N, h = torch.arange(n, device=self.h_NH.device), self.h_NH
        self._tree, places, index = [], self.begin(), of_N
        for t in range(steps):
            if t:
                places = self._go(t, places.states, index.tolist())
                h = self.agent.advance(places.e_BE, h, torch.zeros(n, dtype=torch.bool, device=h.device))
            index = self._choose(h, of_N, t)[2]
            child = {i * choices + a: i for i, a in enumerate(index.tolist())}
            level = Level(list(places.states), places.e_BE, places.reward_B, places.terminal_B, index, child)
            self._tree.append(level)
        return self._tree

    def _go(self, t: int, states: Sequence[Any], actions: Sequence[int]) -> Places:
        """``go``, where nothing follows an episode's end but more of it."""
        on = [i for i, state in enumerate(states) if state is not None]
        reached = self.go(t, [states[i] for i in on], [actions[i] for i in on]) if on else None
        if reached is not None and len(on) == len(states):
            return reached
        like = self.h_NH.new_zeros(len(states))
        width = self._tree[t - 1].e_ME.shape[1] if reached is None else reached.e_BE.shape[1]
        out = Places([None] * len(states), like.new_zeros(len(states), width), like.clone(), torch.ones_like(like))
        if reached is not None:
            for i, state in zip(on, reached.states, strict=True):
                out.states[i] = state
            for whole, part in zip(out[1:], reached[1:], strict=True):
                whole[on] = part
        return out

    def _grow(self, t: int, node_R: Tensor, action_R: Tensor) -> Tensor:
        """The nodes of level ``t`` that these actions lead to from nodes of the level before."""
        before, level, choices = self._tree[t - 1], self._tree[t], self.noise_NTA.shape[2]
        keys, back_R = torch.unique(node_R * choices + action_R, return_inverse=True)
        wanted = keys.tolist()
        missing = [key for key in wanted if key not in before.child]
        if missing:
            parents = [before.states[key // choices] for key in missing]
            before.child |= {key: len(level.states) + i for i, key in enumerate(missing)}
            level.add(self._go(t, parents, [key % choices for key in missing]))
        return torch.tensor([before.child[key] for key in wanted], device=node_R.device)[back_R]

    @torch.no_grad()
    def run(self, intervene: Sequence[Intervention] = (), through: str = "", copies: int = 1) -> Course:
        """The course of all starts, ``copies`` times one below the other, R = copies * N rows; of the world only what
        no run has come to yet is played.

        through: as in interventions_hypotheses ('': whichever way); 'frames': the agent sees what the unaltered run
        shows, and its own actions count although nothing comes of them.
        """
        tree = self.tree()
        of_R = torch.arange(len(self.h_NH), device=self.h_NH.device).repeat(copies)  # the start of every row
        going = torch.zeros(len(of_R), dtype=torch.bool, device=of_R.device)
        node_R = index = of_R
        carried = before = self.h_NH[of_R]
        kept: list[tuple[Tensor, ...]] = []
        for t, level in enumerate(tree):
            if t:
                node_R = self._grow(t, node_R, index)
                before = self.agent.advance(level.e_ME[node_R], carried, going)
            h = apply_interventions(intervene, before, t)
            carried = before if through == "world" else h
            logits, value, index, one_hot = self._choose(h, of_R, t)
            if through in ("memory", "frames"):
                index = level.action_N[of_R]
            if through == "memory":
                one_hot = torch.nn.functional.one_hot(index, logits.shape[-1]).to(logits.dtype)
            kept.append((logits, value, level.reward_M[node_R], level.terminal_M[node_R], h, one_hot))
        logits, value, reward, terminal, h, one_hot = (torch.stack(x, 1) for x in zip(*kept, strict=True))
        return course_of(logits, value, reward[:, 1:], terminal[:, 1:], h, one_hot)

    def measure(
        self, groups: Sequence[Intervention | None], description: str = "", through: str = "", together: int = 1
    ) -> dict[str, np.ndarray]:
        """{quantity: [G, N]}; None is the unaltered run.

        together: groups at once.  One at a time, a change of nothing changes no bit.
        """
        found: dict[str, list[Tensor]] = {}
        nothing = AddSteps(self.h_NH[:0])
        with bar(description, len(groups), "runs") as progress:
            for first in range(0, len(groups), together):
                some = tuple(nothing if g is None else g for g in groups[first : first + together])
                course = self.run((Blocks(some),) if len(some) > 1 else some, through, len(some))
                for q, v in quantities(course, self.measures).items():
                    found.setdefault(q, []).append(v.unflatten(0, (len(some), -1)))
                progress.advance(len(some))
        return {q: torch.cat(v).cpu().double().numpy() for q, v in found.items()}


@dataclass
class HeldWorld(World):
    """No world: the agent sees the last frame of its start for ever, is given no reward and never ends."""

    e_NE: Tensor

    def begin(self) -> Places:
        return self.go(0, range(len(self.h_NH)), ())

    def go(self, t: int, states: Sequence[Any], actions: Sequence[int]) -> Places:
        nothing = self.h_NH.new_zeros(len(states))
        return Places(list(states), self.e_NE[list(states)], nothing, nothing)


def course_of(logits: Tensor, value: Tensor, reward: Tensor, ends: Tensor, h: Tensor, one_hot: Tensor) -> Course:
    """A course from what its steps gave; ``ends`` [R, T-1] are probabilities of ending (0 or 1 where it is known)."""
    hard = (ends > 0.5).to(ends.dtype)
    goes_on = torch.cat([torch.ones_like(value[:, :1]), 1 - ends], 1).cumprod(1)
    return Course(logits, value, reward, goes_on, h, one_hot, hard + (ends - ends.detach()))


@dataclass
class RealWorld(World):
    """The agent in the real world, run on from the starts."""

    env: VecEnv  # a slot a start
    starts: Starts
    few: VecEnv | None = None  # the same world with fewer slots, which branch faster; None: env itself
    _taken: list[np.ndarray] = field(init=False, default_factory=list)

    def begin(self) -> Places:
        none = self.h_NH.new_zeros(len(self.h_NH))
        return Places(list(self.starts.states), none[:, None], none, none)

    def go(self, t: int, states: Sequence[Any], actions: Sequence[int]) -> Places:
        env, device = self.env if self.few is None else self.few, self.h_NH.device
        slots, parts = env.spec.slots, []
        for first in range(0, len(states), slots):
            some = list(states[first : first + slots])
            count = len(some)
            env.restore(some + some[:1] * (slots - count))
            now = env.step(np.array([*actions[first : first + count], *[0] * (slots - count)]))
            over = (now.terminated | now.truncated)[:count]
            seen = {k: torch.from_numpy(v[:count]).to(device) for k, v in now.obs.items()}
            reward, ends = (
                torch.from_numpy(x[:count]).to(self.h_NH) for x in (now.reward, now.terminated | now.truncated)
            )
            after = [None if end else state for state, end in zip(env.snapshot(), over, strict=False)]
            parts.append(Places(after, self.agent.encode(seen), reward, ends))
        return joined(parts)

    def run(self, intervene: Sequence[Intervention] = (), through: str = "", copies: int = 1) -> Course:
        if self.starts.states:
            return super().run(intervene, through, copies)
        if copies != 1:
            raise ValueError("a world without snapshots plays one change at a time")
        return self.course(intervene, through)

    def measure(
        self, groups: Sequence[Intervention | None], description: str = "", through: str = "", together: int = 1
    ) -> dict[str, np.ndarray]:
        return super().measure(groups, description, through, together if self.starts.states else 1)

    @torch.no_grad()
    def course(
        self, intervene: Sequence[Intervention] = (), through: str = "", watch: list[np.ndarray] | None = None
    ) -> Course:
        """``run``, every step of every start played: from snapshots, or by replaying the seed where there are none.

        watch: is given the observations of every step [N, ...], from the first played on.
        """
        starts, device = self.starts, self.h_NH.device
        if through == "memory" and not self._taken:
            self.course()
        n, steps, choices = self.noise_NTA.shape
        offset_N, last = starts.offset_N, int(starts.offset_N.max()) + steps - 1
        now = self.env.restore(starts.states) if starts.states else self.env.reset(starts.seed)
        carried, rows = starts.h_NH, torch.arange(n, device=device)
        logits_NTA, value_NT = carried.new_zeros(n, steps, choices), carried.new_zeros(n, steps)
        reward_NT, ended_NT = carried.new_zeros(n, steps - 1), carried.new_zeros(n, steps - 1)
        h_NTH, action_NT = carried.new_zeros(n, steps, carried.shape[1]), torch.zeros_like(value_NT, dtype=torch.int64)
        taken: list[np.ndarray] = []
        for m in range(last + 1):
            step_N = m - offset_N
            t_N = torch.from_numpy(step_N).to(device)
            on_N = (t_N >= 0) & (t_N < steps)
            at = t_N.clamp(0, steps - 1)
            went_on = self.agent.advance(
                self.agent.encode(tensors(now, device)), carried, torch.from_numpy(now.is_first).to(device)
            )
            before = torch.where((t_N > 0)[:, None], went_on, starts.h_NH)
            h = before
            for t in np.unique(step_N[(step_N >= 0) & (step_N < steps)]):
                h = apply_interventions(intervene, h, int(t), t_N == int(t))
            carried = before if through == "world" else h
            logits, value = self.agent.heads(h)
            logits_NTA[rows[on_N], at[on_N]], value_NT[rows[on_N], at[on_N]] = logits[on_N], value[on_N]
            h_NTH[rows[on_N], at[on_N]] = h[on_N]
            if watch is not None:
                watch.append(next(iter(now.obs.values())))
            chosen = (logits + self.noise_NTA[rows, at]).argmax(-1).cpu().numpy()
            if m < len(starts.actions) and (step_N < 0).any():
                chosen = np.where(step_N < 0, starts.actions[m], chosen)
            if through == "memory":
                chosen = self._taken[m]
            taken.append(chosen)
            action_NT[rows[on_N], at[on_N]] = torch.from_numpy(chosen).to(action_NT)[on_N]
            if m == last:
                break
            now = self.env.step(chosen)
            counts_N = on_N & (t_N < steps - 1)
            over_N = torch.from_numpy(now.terminated | now.truncated).to(ended_NT)
            reward_NT[rows[counts_N], at[counts_N]] = torch.from_numpy(now.reward).to(reward_NT)[counts_N]
            ended_NT[rows[counts_N], at[counts_N]] = over_N[counts_N]
        if not intervene:
            self._taken = taken
        one_hot = torch.nn.functional.one_hot(action_NT, choices).to(logits_NTA.dtype)
        return course_of(logits_NTA, value_NT, reward_NT, ended_NT, h_NTH, one_hot)


@dataclass
class SimulatedWorld(World):
    """The agent in the simulator, run on from the starts' frames and their recorded h.

    The world takes its most likely course; only the action noise is drawn, and it is the real world's.
    """

    simulator: Simulator
    z_NZ: Tensor
    batch: int = 128  # rows simulated at once

    def _noise(self, rows: Tensor, t: int) -> StepNoise:
        still = torch.zeros_like(self.simulator.draw_noise(1, torch.Generator(self.z_NZ.device)).s_BS)
        return StepNoise(still.expand(len(rows), *still.shape[1:]), self.noise_NTA[rows, t])

    def course(self, rows: Tensor, intervene: Sequence[Intervention] = (), through: str = "") -> Course:
        """Every step of every row simulated, so that gradients pass.  Rows are indices int64 [R] of starts.

        through: 'memory' cuts the gradient from action to world (and only it: where actions change, use ``measure``);
        'world' lets the agent forget what was done to it at step 0.
        """
        begin = Become(self.h_NH[rows])
        state = self.simulator.start(self.z_NZ[rows])
        outs, actions = [], []
        for t in range(self.noise_NTA.shape[1]):
            state, out = self.simulator.step(
                state, noise=self._noise(rows, t), intervene=(begin, *intervene), env_grads=through != "memory"
            )
            if through == "world" and t == 0:
                state = state._replace(h_BH=self.h_NH[rows])
            outs.append(out)
            actions.append(state.action_BA)

        def stack(name: str, first: int = 0) -> Tensor:
            return torch.stack([getattr(out, name) for out in outs[first:]], 1)

        logits, value, h = stack("logits_BA"), stack("value_B"), stack("h_BH")
        return course_of(logits, value, stack("reward_B", 1), stack("terminal_B", 1), h, torch.stack(actions, 1))

    @torch.no_grad()
    def begin(self) -> Places:
        parts = []
        for rows in torch.arange(len(self.z_NZ), device=self.z_NZ.device).split(self.batch):
            parts.append(
                self._places(*self.simulator.step(self.simulator.start(self.z_NZ[rows]), noise=self._noise(rows, 0)))
            )
        return joined(parts)

    def go(self, t: int, states: Sequence[Any], actions: Sequence[int]) -> Places:
        parts = []
        for first in range(0, len(states), self.batch):
            some = states[first : first + self.batch]
            done = torch.tensor(actions[first : first + self.batch], device=self.z_NZ.device)
            d, s = (torch.stack(x) for x in zip(*some, strict=True))
            action = torch.nn.functional.one_hot(done, self.noise_NTA.shape[2]).to(d.dtype)
            alive = torch.ones(len(some), dtype=torch.bool, device=d.device)
            state = SimState(d, s, self.h_NH[:1].expand(len(some), -1), action, alive, t)
            parts.append(self._places(*self.simulator.step(state, noise=self._noise(torch.zeros_like(done), t))))
        return joined(parts)

    def _places(self, state: SimState, out: StepOut) -> Places:
        rows = list(zip(state.d_BD.unbind(), state.s_BS.unbind(), strict=True))
        return Places(rows, self.agent.encode(out.obs), out.reward_B, out.terminal_B)

    def jacobian(
        self, block: int = 64, steps: int = 1, through: str = "", known: Collection[str] = (), most: int | None = None
    ) -> dict[str, Tensor]:
        """{quantity: [S, N, H]}, its derivative with respect to h at steps 0 to S-1, through agent and world
        (straight-through where an action is chosen).  NaN for events that have none: thresholds, and whether something
        happens at all.  known: quantities to leave out; most: starts, the first ones."""
        found: dict[str, list[Tensor]] = {}
        count = len(self.z_NZ) if most is None else min(most, len(self.z_NZ))
        blocks = torch.arange(count, device=self.z_NZ.device).split(block)
        with bar("Jacobians", count, "starts") as progress:
            for rows in blocks:
                h = self.h_NH[rows]
                change = h.new_zeros(steps, *h.shape).requires_grad_()
                # What holds at once follows from the heads alone: asked of the whole course, it would send zeros back
                # through every later step of the world.
                logits, value = self.agent.heads(h + change[0])
                none = value.new_zeros(len(rows), 0)
                at_once = Course(logits[:, None], value[:, None], none, torch.ones_like(value[:, None]))
                now = quantities(at_once, self.measures)
                got = quantities(self.course(rows, (AddSteps(change),), through), self.measures)
                for q, value_R in got.items():
                    if q in known:
                        continue
                    value_R = value_R if is_late(q) else now[q]
                    kind, _, when = q.partition("@")
                    happening, grad = kind.startswith(("rate:", "event:")), None
                    if kind == "return" and {f"value@{when}", f"reward@{when}"} <= found.keys():
                        grad = found[f"value@{when}"][-1] + found[f"reward@{when}"][-1]
                    elif value_R.requires_grad and not kind.startswith("event:"):
                        (grad,) = torch.autograd.grad(value_R.sum(), change, retain_graph=True, allow_unused=True)
                    if grad is None:  # other quantities than events just do not depend on h
                        grad = torch.full_like(change, torch.nan if happening else 0.0)
                    found.setdefault(q, []).append(grad.detach())
                progress.advance(len(rows))
        return {q: torch.cat(v, 1) for q, v in found.items()}

    @torch.no_grad()
    def film(self, change: Intervention | None, through: str, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """What the agent sees from some starts, without and with a change: uint8 [n, T, ...] each, black where the
        episode has ended (is likelier than not to have)."""
        both = []
        for g in (None, change):
            course = self.run(() if g is None else (g,), through)
            assert course.action_RTA is not None
            actions, seen = course.action_RTA[rows].argmax(-1), []
            state = self.simulator.start(self.z_NZ[rows])
            for t in range(actions.shape[1]):
                state, out = self.simulator.step(state, action=actions[:, t], noise=self._noise(rows, t))
                seen.append((next(iter(out.obs.values())).clamp(0, 1) * 255).byte().cpu().numpy())
            both.append(np.stack(seen, 1) * still_on(course, rows))
        return both[0], both[1]
