"""Starts whose worlds can be edited: with all that is needed to show the agent another past (N starts, I frames)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch

from agents.play import Chooser, Exploration, play
from core.contracts import Agent, UserError
from core.progress import bar
from core.trees import Tree, each, joined, rows_of, where
from envs.procgen import ProcgenEnv
from envs.procgen_edits import Edit
from envs.procgen_state import state_of
from envs.procgen_truth import in_view

GIVE_UP_STEPS = 20_000


@dataclass(frozen=True)
class EditStarts:
    """N states of the real game, each of its own episode."""

    frames: Mapping[str, np.ndarray]  # [N, I, ...], the last one is the start's
    before: Tree  # the agent's state before that frame, [N, ...]
    past: tuple[tuple[bytes, ...], ...]  # snapshots at the I frames, of every start
    begin: tuple[bytes, ...]  # at the first frame of its episode
    actions: tuple[np.ndarray, ...]  # from there up to the start, [age]
    age_N: np.ndarray

    def __len__(self) -> int:
        return len(self.age_N)

    @property
    def states(self) -> tuple[bytes, ...]:
        """Snapshots at the starts."""
        return tuple(past[-1] for past in self.past)


def fits(edit: Edit, snapshot: bytes) -> Edit | None:
    """The edit with its place fixed, where it can be made in this state and its object is in the picture; else None."""
    state = state_of(snapshot)
    try:
        fixed = edit.fixed(state)
        about = edit.verb in ("remove", "move") and edit.thing != "agent"
        if about and not in_view(state, edit.thing, fixed.at if fixed.which in ("at", "block") else None):
            return None
        fixed.apply(state).check()
    except UserError:
        return None
    return fixed


def collect(
    agent: Agent, env: ProcgenEnv, edits: Sequence[Edit], count: int, *, initial_frames: int, latest: int, seed: int,
    greedy: bool, device: torch.device, about: Callable[[np.ndarray], Sequence[bool]] | None = None,
) -> EditStarts:  # fmt: skip
    """Let the agent play, and take at most one start an episode: at a step drawn uniformly up to ``latest``, or at the
    first one after it at which some edit can be made.  UserError where too few episodes have one.

    about: of a hidden state [H], which of the edits are about starts with it (None: all).  (``collect_starts`` of
    validation/paired draws anew where a step does not fit; edits of rare things need the first later one.)
    """
    slots = env.spec.slots
    rng = np.random.default_rng(seed)
    chooser = Chooser(Exploration(greedy=greedy), slots, rng, agent.spec.parts)
    env.reset(seed)
    now = env.snapshot()  # of what the next moment shows; ``play`` begins with the same reset
    begin, done_actions = list(now), [[] for _ in range(slots)]  # type: ignore[var-annotated]
    first = max(1, initial_frames - 1)
    target_B = rng.integers(first, max(latest, first) + 1, slots)
    frames: deque[Mapping[str, np.ndarray]] = deque(maxlen=initial_frames)
    past: deque[tuple[bytes, ...]] = deque(maxlen=initial_frames)
    state = before = agent.initial(slots)
    found: list[dict[str, Any]] = []
    with bar("collecting starts", count, "starts") as progress:
        for step, moment in enumerate(play(agent, env, chooser, seed=seed, device=device)):
            frames.append(moment.obs)
            past.append(now)
            fresh = torch.from_numpy(moment.is_first_B).to(device)
            before = where(fresh, agent.initial(slots), state)
            state = moment.state
            for b in np.flatnonzero((target_B >= 0) & (moment.age_B >= target_B)):
                asked = edits if about is None else compress(edits, about(moment.h_BH[b]))
                if len(found) == count or all(fits(edit, now[b]) is None for edit in asked):
                    continue
                found.append({
                    "frames": {k: np.stack([obs[k][b] for obs in frames]) for k in moment.obs},
                    "before": each(lambda x: x.clone(), rows_of(before, slice(b, b + 1))),
                    "past": tuple(snapshots[b] for snapshots in past), "begin": begin[b],
                    "actions": np.array(done_actions[b], np.int64), "age": int(moment.age_B[b]),
                })  # fmt: skip
                target_B[b] = -1  # no other one of this episode
                progress.advance()
            if len(found) == count:
                break
            if step >= GIVE_UP_STEPS:
                raise UserError(
                    f"only {len(found)} of {count} starts after {step:,} steps at which one of the edits can be made "
                    "to something in the picture; ask for fewer (--starts) or for other edits"
                )
            now = env.snapshot()
            over = moment.next.terminated | moment.next.truncated
            for b in range(slots):
                if over[b]:
                    begin[b], done_actions[b] = now[b], []
                    target_B[b] = rng.integers(first, max(latest, first) + 1)
                else:
                    done_actions[b].append(int(moment.action_B[b]))
    return EditStarts(
        frames={k: np.stack([f["frames"][k] for f in found]) for k in found[0]["frames"]},
        before=joined([f["before"] for f in found]), past=tuple(f["past"] for f in found),
        begin=tuple(f["begin"] for f in found), actions=tuple(f["actions"] for f in found),
        age_N=np.array([f["age"] for f in found]),
    )  # fmt: skip
