"""What follows an edit in the real game, beside its unedited twin with the same action noise.

Three ways (``Way``): whole (the edited world plays on and is seen), pixels (the world runs unedited, and every
picture that the agent is shown is drawn from a copy of it with the edit made), world (the world runs edited, and every
picture is drawn from a copy with the edit taken back).  And two pasts: the edit is made at the start, whose
agent has seen the world unedited until then; or at the episode's first step, from where the recorded actions are
repeated up to the start, so that the agent has never seen it unedited (whole, or through the pixels alone).

N starts, T = horizon + 1 steps, A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.play import LiveWorld
from analysis.shared.edit_starts import EditStarts
from core.contracts import Agent, Intervention, Shown, Step, UserError
from core.directions import Basis
from core.interventions import Resample
from core.roll import Noise, roll
from core.trees import Tree, rows_of, with_rows
from envs.procgen import STANDING, ProcgenEnv
from envs.procgen_edits import PICTURELESS, Edit
from envs.procgen_state import State, snapshot_of, state_of
from envs.procgen_tracks import Beginning, Followed, TakenBack, is_of_one
from validation.paired.course import Course, course_along, still_on

SET_BACK, ALL_ELSE = "set back", "all else set back"  # of the hidden state at the start, in the edited world
Frames = dict[str, np.ndarray]


class Way(NamedTuple):
    """By which way an edit acts, and since when; see the head of this file."""

    through: str = "whole"  # or pixels, world
    since: str = "start"  # or episode

    @property
    def name(self) -> str:
        """As tables call it."""
        if self.since == "start":
            return self.through
        return "since the episode" if self.through == "whole" else f"{self.through}, since the episode"


@dataclass(frozen=True)
class AllElse:
    """Give h the values of ``donors`` [B, H] in everything but some directions' coordinates."""

    basis: Basis
    ids: tuple[int, ...]
    donors: Tensor

    def __call__(self, h_BH: Tensor, t_B: Tensor, mask_B: Tensor) -> Tensor:
        kept = Resample(self.basis, self.ids, h_BH)(self.donors, t_B, torch.ones_like(mask_B))
        return torch.where(mask_B[:, None], kept, h_BH)


class Run(NamedTuple):
    """A course of some starts, and the frames that were shown."""

    course: Course
    frames: np.ndarray  # uint8 [N, T, ...], black where the episode has ended
    rows_N: np.ndarray  # bool: the starts that it is about
    apart_N: np.ndarray  # bool: the agent is elsewhere at the start than unedited (since the episode)


Copies = list[bytes]


class DrawnWorld(LiveWorld):
    """The real game with pictures that are drawn of copies of its states, in another such world, ``drawer``.  alter:
    changes these copies in place, given which slots [N] are still in the episode that they began in."""

    def __init__(
        self, env: ProcgenEnv, drawer: ProcgenEnv, alter: Callable[[Copies, np.ndarray], None], device: torch.device
    ) -> None:
        super().__init__(env, device)
        self.drawer, self.alter = drawer, alter
        self.on_N = np.ones(env.spec.slots, bool)

    def _said(self, step: Step) -> tuple[Tensor, Shown]:
        self.on_N &= ~(step.terminated | step.truncated)
        copies = list(self.env.snapshot())
        self.alter(copies, self.on_N)
        return super()._said(replace(step, obs=self.drawer.restore(copies).obs))


@dataclass
class EditedWorld:
    """The agent in the real game, run on from starts that are edited.  ``env`` has a slot a start, ``drawer`` another
    such world, in which copies are drawn."""

    agent: Agent
    env: ProcgenEnv
    drawer: ProcgenEnv
    starts: EditStarts
    noise_NTA: Tensor  # added to the logits before the argmax; zero: greedy

    @torch.no_grad()
    def course(
        self, edits: Sequence[Edit | None], through: str = "whole", since: str = "start",
        intervene: Sequence[Intervention] = (),
    ) -> Run:  # fmt: skip
        """edits: one a start, with their places fixed; None: this start is left as it is, and is not what the run is
        about.  A whole run with None everywhere is the unedited twin.  intervene: changes of h."""
        rows_N = np.array([edit is not None for edit in edits])
        if since == "episode" and through == "world":
            raise ValueError("edits since the episode's start go the whole way, or through the pixels")
        if through == "pixels" and any(e is not None and e.verb == "set" and e.thing in PICTURELESS for e in edits):
            raise UserError("an edit that nothing shows has no way through the pixels")
        states, before = list(self.starts.states), self.starts.before
        apart_N = np.zeros(len(edits), bool)
        if since == "episode" and rows_N.any():
            states, before, rows_N, apart_N = self._replayed(edits, rows_N, through)
        unedited = [state_of(s) for s in states]
        changed = list(states)
        made: dict[int, State] = {}
        for n in np.flatnonzero(rows_N) if since == "start" or through == "pixels" else ():
            edit = edits[n]
            assert edit is not None
            made[n] = edit.apply(state_of(states[n]))
            changed[n] = snapshot_of(made[n], states[n])
        device = self.noise_NTA.device
        world = LiveWorld(self.env, device)
        if through == "pixels":
            world = DrawnWorld(self.env, self.drawer, following({n: edits[n] for n in made}), device)
        elif through == "world" and made:
            world = DrawnWorld(self.env, self.drawer, taking_back(made, unedited), device)
        moments = list(roll(
            self.agent, world, world.restore(states if through == "pixels" else changed), memory=before,
            steps=self.noise_NTA.shape[1] - 1, noise=[Noise(action_BA=x) for x in self.noise_NTA.unbind(1)],
            intervene=intervene,
        ))  # fmt: skip
        course = course_along(moments)
        frames = np.stack([m.shown.obs["frames"].cpu().numpy() for m in moments], 1)
        return Run(course, frames * still_on(course), rows_N, apart_N)

    def taken(self) -> np.ndarray:
        """The recorded actions from the episodes' first steps on, int64 [N, oldest + 1]; standing after the start."""
        last = int(self.starts.age_N.max())
        return np.array([np.pad(a, (0, last + 1 - len(a)), constant_values=STANDING) for a in self.starts.actions])

    def begun(self, edits: Sequence[Edit | None]) -> list[Edit | None]:
        """The edits in the first states of the starts' episodes, made to the very things that they are made to at the
        starts; None where that thing was not there yet."""
        begin, age_N = self.starts.begin, self.starts.age_N
        follow = {n: Beginning(e, state_of(begin[n])) for n, e in enumerate(edits) if e is not None and is_of_one(e)}
        if not follow:
            return list(edits)
        self.env.restore(list(begin))
        for t, action_N in enumerate(self.taken().T[:-1], start=1):
            self.env.step(action_N)
            snapshots = self.env.snapshot()
            for n, thing in follow.items():
                if t <= age_N[n]:
                    thing.to(state_of(snapshots[n]))
        return [follow[n].found() if n in follow else edit for n, edit in enumerate(edits)]

    @torch.no_grad()
    def _replayed(
        self, edits: Sequence[Edit | None], rows_N: np.ndarray, through: str
    ) -> tuple[Any, Tree, np.ndarray, np.ndarray]:
        """States and the agent's states before them, after the recorded actions of episodes that began edited (through
        the pixels: that were shown edited).  Rows in which the edit cannot be made there, whose thing was not there, or
        whose episode then ends earlier, are no longer about it."""
        starts, device = self.starts, self.noise_NTA.device
        edits = self.begun(edits)
        rows_N = rows_N & np.array([edit is not None for edit in edits])
        begin = list(starts.begin)
        for n in np.flatnonzero(rows_N):
            edit = edits[n]
            assert edit is not None
            try:
                edited = snapshot_of(edit.apply(state_of(begin[n])), begin[n])
            except UserError:
                rows_N[n] = False
                continue
            begin[n] = begin[n] if through == "pixels" else edited
        states, before = list(starts.states), starts.before
        apart_N = np.zeros(len(starts), bool)
        last, taken = int(starts.age_N.max()), torch.tensor(self.taken(), device=device)
        world, previous = LiveWorld(self.env, device), self.agent.initial(len(starts))
        if through == "pixels":
            shown = following({n: edits[n] for n in np.flatnonzero(rows_N)})
            world = DrawnWorld(self.env, self.drawer, shown, device)
        moments = roll(self.agent, world, world.restore(begin), steps=last, actions=taken)
        for t, moment in enumerate(moments):
            assert world.now is not None
            over_N = world.now.terminated | world.now.truncated
            rows_N &= ~(over_N & (t <= starts.age_N))
            at = rows_N & (starts.age_N == t)
            if at.any():
                snapshots = self.env.snapshot()
                for n in np.flatnonzero(at):
                    here, there = state_of(snapshots[n]).agent, state_of(states[n]).agent
                    apart_N[n] = abs(here["x"] - there["x"]) + abs(here["y"] - there["y"]) > 1e-3
                    states[n] = snapshots[n]
                rows = torch.from_numpy(np.flatnonzero(at)).to(device)
                before = with_rows(before, rows, rows_of(previous, rows))
            previous = moment.acted.state
        return states, before, rows_N, apart_N


def following(edits: Mapping[int, Edit | None]) -> Callable[[Copies, np.ndarray], None]:
    """Makes the edits, by slot, in copies of ever later states: each goes where its thing has gone."""
    follow: dict[int, Followed] = {}

    def alter(copies: Copies, on_N: np.ndarray) -> None:
        for n, edit in edits.items():
            if edit is None or not on_N[n]:
                continue
            here = state_of(copies[n])
            if n in follow:
                now = follow[n].to(here)
            else:
                follow[n] = Followed(edit, here)
                now = edit
            if now is not None:
                try:
                    copies[n] = snapshot_of(now.apply(here), copies[n])
                except UserError:  # its place is taken now: the agent stands there
                    continue

    return alter


def taking_back(made: Mapping[int, State], unedited: Sequence[State]) -> Callable[[Copies, np.ndarray], None]:
    """Takes the edits, by slot, back in copies of the edited states and ever later ones; a copy in which that cannot be
    done stays as it is."""
    follow: dict[int, TakenBack] = {}

    def alter(copies: Copies, on_N: np.ndarray) -> None:
        for n, after in made.items():
            if on_N[n]:
                here, begun = state_of(copies[n]), n in follow
                back = follow.setdefault(n, TakenBack(unedited[n], after))
                shown = back.to(here) if begun else back.at_once(here)
                try:
                    copies[n] = snapshot_of(shown, copies[n])
                except UserError:  # the moved agent has come where it cannot be moved back from: the world ends there
                    continue

    return alter


def shown_with(
    starts: EditStarts, edits: Sequence[Edit | None], drawer: ProcgenEnv
) -> tuple[Frames, np.ndarray]:  # fmt: skip
    """The starts' frames [N, I, ...] as they would have been with the edits made in each of them, and at which starts
    that can be drawn (bool [N])."""
    out = {k: v.copy() for k, v in starts.frames.items()}
    fine_N = np.array([edit is not None for edit in edits])
    follow = {n: Followed(e, state_of(starts.states[n])) for n, e in enumerate(edits) if e is not None}
    frames = next(iter(out.values())).shape[1]
    for i in reversed(range(frames)):  # the places are those in the last
        copies = [past[i] for past in starts.past]
        for n in np.flatnonzero(fine_N):
            here = state_of(copies[n])
            now = edits[n] if i == frames - 1 else follow[n].to(here, back=True)
            try:
                if now is None:
                    raise UserError("it is not there yet")
                copies[n] = snapshot_of(now.apply(here), copies[n])
            except UserError:
                fine_N[n] = False
        drawn = drawer.restore(copies).obs
        for k, v in out.items():
            v[:, i] = drawn[k]
    return out, fine_N


def differs(one: Run, other: Run) -> float:
    """The largest difference of two runs' values and logits."""
    return max(float((a - b).abs().max()) for a, b in ((one.course.value_RT, other.course.value_RT),
                                                      (one.course.logits_RTA, other.course.logits_RTA)))  # fmt: skip
