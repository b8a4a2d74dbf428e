"""Starts whose worlds can be edited: with all that is needed to show the agent another past (N starts, I frames)."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
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
LOOKED = 20_000  # states, after which there would have been a first one that is not too rare


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


def fixed_in(edit: Edit, snapshot: bytes) -> Edit:
    """The edit with its place fixed.  UserError where it cannot be made in this state, or its object is not in the
    picture."""
    state = state_of(snapshot)
    fixed = edit.fixed(state)
    about = edit.verb in ("remove", "move") and edit.thing != "agent"
    if about and not in_view(state, edit.thing, fixed.at if fixed.which in ("at", "block") else None):
        raise UserError(f"{edit.words}: no {edit.thing} in the picture")
    fixed.apply(state).check()
    return fixed


def fits(edit: Edit, snapshot: bytes) -> Edit | None:
    """``fixed_in``, None where it cannot be made."""
    try:
        return fixed_in(edit, snapshot)
    except UserError:
        return None


class _Refusals:
    """Why edits could not be made in the states that were looked at."""

    def __init__(self) -> None:
        self.states = 0
        self.count: Counter[str] = Counter()
        self.example: dict[str, str] = {}

    def all_refuse(self, edits: Iterable[Edit], snapshot: bytes) -> bool:
        """Whether none of these can be made here, counted.  UserError where one is of a setting that no state takes."""
        why = []
        for edit in edits:
            try:
                fixed_in(edit, snapshot)
                return False
            except UserError as error:
                if edit.verb == "set":
                    raise
                why.append(str(error))
        self.states += 1
        for reason in why:
            kind = re.sub(r"[0-9.]+", "N", reason)  # places differ
            self.count[kind] += 1
            self.example.setdefault(kind, reason)
        return True

    @property
    def words(self) -> str:
        """The commonest reason, and how common it is."""
        if not self.count:
            return self.commonest
        _, n = self.count.most_common(1)[0]
        return f"in {n / self.states:.0%} of {self.states:,} states that were tried: {self.commonest}"

    @property
    def commonest(self) -> str:
        """The commonest reason."""
        if not self.count:
            return "no start was in a behaviour that an edit is about"
        return self.example[self.count.most_common(1)[0][0]]


def why_not(edit: Edit, snapshots: Iterable[bytes]) -> str:
    """The commonest reason for which the edit cannot be made in those of these states that do not take it."""
    refusals = _Refusals()
    for snapshot in snapshots:
        refusals.all_refuse([edit], snapshot)
    return refusals.commonest


def collect(
    agent: Agent, env: ProcgenEnv, edits: Sequence[Edit], count: int, *, initial_frames: int, latest: int, seed: int,
    greedy: bool, device: torch.device, about: Callable[[np.ndarray], Sequence[bool]] | None = None,
) -> EditStarts:  # fmt: skip
    """Let the agent play, and take at most one start an episode: at a step drawn uniformly up to ``latest``, or at the
    first one after it at which some edit can be made.  Every slot gives equally many (some one more where it must be),
    so that neither fast episodes nor early steps are favoured.  UserError where too few episodes have one.

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
    quota_B = np.full(slots, count // slots) + (np.arange(slots) < count % slots)
    refusals = _Refusals()
    found: list[dict[str, Any]] = []
    with bar("collecting starts", count, "starts") as progress:
        for step, moment in enumerate(play(agent, env, chooser, seed=seed, device=device)):
            frames.append(moment.obs)
            past.append(now)
            fresh = torch.from_numpy(moment.is_first_B).to(device)
            before = where(fresh, agent.initial(slots), state)
            state = moment.state
            for b in np.flatnonzero((quota_B > 0) & (target_B >= 0) & (moment.age_B >= target_B)):
                asked = edits if about is None else compress(edits, about(moment.h_BH[b]))
                if refusals.all_refuse(asked, now[b]):
                    continue
                found.append({
                    "frames": {k: np.stack([obs[k][b] for obs in frames]) for k in moment.obs},
                    "before": each(lambda x: x.clone(), rows_of(before, slice(b, b + 1))),
                    "past": tuple(snapshots[b] for snapshots in past), "begin": begin[b],
                    "actions": np.array(done_actions[b], np.int64), "age": int(moment.age_B[b]),
                })  # fmt: skip
                quota_B[b] -= 1
                target_B[b] = -1  # no other one of this episode
                progress.advance()
            if len(found) == count:
                break
            if step >= GIVE_UP_STEPS or (not found and refusals.states >= LOOKED):
                fewer = " or for fewer (--starts)" if found else ""
                raise UserError(
                    f"only {len(found)} of {count} starts after {step:,} steps at which one of the edits can be made "
                    f"to something in the picture; ask for other edits{fewer}; {refusals.words}"
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
