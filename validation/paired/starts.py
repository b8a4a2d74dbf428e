"""The starts of paired runs: states of the real world, each of its own episode (N)."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.play import Chooser, Exploration, play
from core.contracts import Agent, UserError, VecEnv
from core.progress import bar
from core.trees import Tree, joined, rows_of

GIVE_UP_STEPS = 20_000
CENSUS = 16  # steps between two looks at all slots, where not every state is kept
LOOKED = 300  # states so looked at, after which it is known whether those that are kept are too rare
RARE = 0.01  # share of states below which it would take for ever
SEEN = 50_000  # states, none of them a start, after which what starts are asked to be is too rare
PAST = np.iinfo(np.int64).max  # the target of an episode that has given its start


class Keep(NamedTuple):
    """Which states of the world may be starts."""

    holds: Callable[[bytes], bool]  # of a snapshot
    words: str  # what is so in them, and what to do where it rarely is


class When(NamedTuple):
    """In which of the agent's states a start may be."""

    holds: Callable[[Tensor], Tensor]  # [B, H] -> bool [B]
    words: str  # as they follow "a start": in behaviour=3


@dataclass(frozen=True)
class Starts:
    """N paired starts.  With snapshots, ``states`` restore them; without, ``seed`` and the recorded
    ``actions`` [M, N] replay slot b up to its step ``offset_N[b]``."""

    window: Mapping[str, np.ndarray]  # [N, I, ...], the last observation is the start's
    before: Tree  # the agent's whole state before it saw that, [N, ...]
    state: Tree  # and after
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

    def some(self, rows: Sequence[int]) -> Starts:
        """Some of them; only those that have snapshots can be taken apart."""
        if not self.states:
            raise ValueError("starts that are replayed belong to the slots that they were found in")
        at = np.asarray(rows, np.int64)
        taken = torch.from_numpy(at).to(self.h_NH.device)
        return replace(
            self, window={k: x[at] for k, x in self.window.items()}, before=rows_of(self.before, taken),
            state=rows_of(self.state, taken), h_NH=self.h_NH[taken], age_N=self.age_N[at],
            states=tuple(self.states[i] for i in at), offset_N=self.offset_N[at],
        )  # fmt: skip


def _too_short(found: str, latest: int, first: int) -> UserError:
    """Episodes end before starts are drawn; first: the earliest step that one can be at."""
    mend = f"lower --latest_start ({latest})"
    if latest <= first:
        mend = f"none can be before step {first}: it takes a world of longer episodes, or fewer --starts"
    return UserError(f"{found}: episodes rarely reach their drawn step; {mend}")


def collect_starts(
    agent: Agent, env: VecEnv, count: int, *, initial_frames: int, latest: int, seed: int, greedy: bool = False,
    device: torch.device | None = None, keep: Keep | None = None, when: When | None = None, until: int = PAST,
) -> Starts:  # fmt: skip
    """Run the agent and take ``count`` starts, at most one an episode, each at a step drawn uniformly
    from [initial_frames - 1, latest]; an episode that ends earlier gives none and the next one tries
    again, and so does one whose state there is not among those to ``keep`` (of worlds with snapshots; None: all).
    With ``when`` it is the drawn step or the first later one at which that holds: rare states are met on the way.
    Every slot gives equally many (some one more where it must be), so that fast episodes are not favoured.
    until: no start is at a later step of its episode, rare states neither (limits.py).

    Where the world has no snapshots, one start a slot, and ``count`` must be the number of slots.
    Raises UserError if the episodes are too short, or states to keep are rare.
    """
    device = torch.device("cpu") if device is None else device
    slots, snapshots = env.spec.slots, env.spec.can_snapshot
    if not snapshots and slots != count:
        raise ValueError(f"a world without snapshots needs a slot a start: {slots} slots for {count} starts")
    first, last = max(1, initial_frames - 1), min(latest, until)
    if latest < first:
        raise UserError(f"--latest_start {latest} is too early: --latest_start {first} is the least")
    rng = np.random.default_rng(seed)
    chooser = Chooser(Exploration(greedy=greedy), slots, rng, agent.spec.parts)
    quota_B = np.full(slots, count // slots) + (np.arange(slots) < count % slots)
    target_B = rng.integers(first, last + 1, slots)
    history: deque[dict[str, np.ndarray]] = deque(maxlen=initial_frames)
    found: list[dict[str, Any]] = []
    actions: list[np.ndarray] = []
    states: tuple[bytes, ...] = ()
    memory: Tree = agent.initial(slots)
    looked = enough = 0

    def reached(age_B: np.ndarray) -> np.ndarray:
        return (quota_B > 0) & (age_B <= until) & ((age_B == target_B) if when is None else (age_B >= target_B))

    with bar("collecting starts", count, "starts") as progress:
        for step, moment in enumerate(play(agent, env, chooser, seed=seed, device=device)):
            history.append(moment.obs)
            if keep is not None and step and step % CENSUS == 0:
                looked, enough = looked + slots, enough + sum(map(keep.holds, states))
            due_B = reached(moment.age_B)
            if when is not None and due_B.any():
                due_B &= when.holds(torch.from_numpy(moment.h_BH).to(device)).cpu().numpy()
            for b in np.flatnonzero(due_B):
                if keep is not None and not keep.holds(states[b]):
                    continue
                before, own = (rows_of(some, slice(b, b + 1)) for some in (memory, moment.state))
                found.append({
                    "slot": b, "window": {k: np.stack([obs[k][b] for obs in history]) for k in moment.obs},
                    "h": moment.h_BH[b], "before": before, "agent": own, "age": moment.age_B[b],
                    "state": (states[b],) if snapshots else (), "offset": len(actions),
                })  # fmt: skip
                quota_B[b], target_B[b] = quota_B[b] - 1, PAST
                progress.advance()
            if not quota_B.any():
                break
            if when is not None and (len(actions) >= GIVE_UP_STEPS or (not found and step * slots >= SEEN)):
                raise UserError(
                    f"only {len(found)} of {count} starts in {step * slots:,} states of {env.spec.env_id}: "
                    f"a start {when.words} is rare; ask for fewer (--starts), or lower --latest_start ({latest})"
                )
            if keep is not None and ((looked >= LOOKED and enough < RARE * looked) or step >= GIVE_UP_STEPS):
                raise UserError(f"only {enough} of {looked} states of {env.spec.env_id} have {keep.words}, or change "
                                f"--latest_start ({latest})")  # fmt: skip
            if len(actions) >= GIVE_UP_STEPS:
                raise _too_short(f"only {len(found)} of {count} starts after {len(actions)} steps", latest, first)
            actions.append(moment.action_B)
            done_B = moment.next.terminated | moment.next.truncated
            target_B = np.where(done_B, rng.integers(first, last + 1, slots), target_B)
            age_B = np.where(done_B, 0, moment.age_B + 1)
            memory = moment.state
            counts = keep is not None and (step + 1) % CENSUS == 0
            if snapshots and (counts or reached(age_B).any()):
                states = env.snapshot()  # of what the next moment will show
    if not snapshots:
        found.sort(key=lambda start: int(start["slot"]))
    return _together(found, np.array(actions, np.int64).reshape(-1, slots, *np.shape(actions)[2:]), seed, device)


def _together(found: Sequence[Mapping[str, Any]], actions: np.ndarray, seed: int, device: torch.device) -> Starts:
    """Starts as they were found, one after the other."""
    states = tuple(state for start in found for state in start["state"])
    return Starts(
        window={k: np.stack([start["window"][k] for start in found]) for k in found[0]["window"]},
        before=joined([start["before"] for start in found]),
        state=joined([start["agent"] for start in found]),
        h_NH=torch.from_numpy(np.stack([start["h"] for start in found])).to(device),
        age_N=np.array([start["age"] for start in found]),
        states=states,
        offset_N=np.array([0 if states else start["offset"] for start in found]),
        actions=actions,
        seed=seed,
    )


def distinct_actions(env: VecEnv, starts: Starts, hold: int = 8) -> dict[str, list[int]]:
    """Ids that lead to the same observations and rewards from every start when held ``hold`` steps, under the
    simplest of their names.  Measured, so it is about these starts.  A world without snapshots: every id by itself.

    Where an action has several parts, choices of one part are compared, the first of every other part beside them.
    """
    names, parts = env.spec.action_names, env.spec.parts
    if not starts.states:
        return {name: [i] for i, name in enumerate(names)}
    groups: dict[tuple[int, bytes], list[int]] = {}
    for i, (part, choice) in enumerate((p, c) for p, count in enumerate(parts) for c in range(count)):
        action = np.zeros((len(starts), len(parts)), np.int64)
        action[:, part] = choice
        env.restore(starts.states)
        seen = b""
        for _ in range(hold):
            step = env.step(action if env.spec.action_parts else action[:, 0])
            seen += step.reward.tobytes() + b"".join(step.obs[k].tobytes() for k in sorted(step.obs))
        groups.setdefault((part, hashlib.sha256(seen).digest()), []).append(i)
    simplest = {min(ids, key=lambda i: (names[i] != "none", len(names[i]), i)): ids for ids in groups.values()}
    return {names[i]: ids for i, ids in simplest.items()}
