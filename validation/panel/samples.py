"""What the panel knows of simulated rollouts, and of the real episodes that they start in, step by step.

N samples, T steps, K directions, A distinct actions, E events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from analysis.shared.behaviours import Behaviours
from analysis.shared.events import Rows, parse_events
from core.contracts import EnvSpec
from core.directions import Basis
from core.episodes import RolloutStore
from core.figures import as_rgb
from core.roll import one_hot, probabilities

NOWHERE = -1  # an action or a label where there is none


@dataclass(frozen=True)
class Courses:
    """N courses of T steps, padded with NaN and NOWHERE beyond their end."""

    index_N2: np.ndarray  # int64, episode and first step in their recording
    value_NT: np.ndarray  # float32
    reward_NT: np.ndarray  # float32, of the transition after the step
    action_NT: np.ndarray  # int16, into ``actions``
    prob_NTA: np.ndarray  # float32, of ``choices``; NaN where no logits were recorded
    c: Mapping[str, np.ndarray]  # kind of basis -> float32 [N, T, K], coordinates in it
    label_NT: np.ndarray  # int16, behaviours
    event_NTE: np.ndarray  # uint8, 0 or 1
    steps_N: np.ndarray  # int64, observations that are there, at most T
    actions: tuple[str, ...]
    choices: tuple[str, ...]
    taken: tuple[int, ...]  # the choice that each of ``actions`` is; NOWHERE for one of several parts
    events: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.steps_N)


def read(
    store: RolloutStore,
    starts_N2: np.ndarray,
    steps: int,
    bases: Mapping[str, Basis],
    known: Behaviours | None,
    source: str,
) -> Courses:
    """The courses that begin at ``starts_N2`` (episode, step).  source: 'sim' or 'real', whose labels they have."""
    spec = store.spec
    columns = ["value", "h", "action", "reward"] + ["logits"] * ("logits" in store.column_names)
    window = store.read_windows(columns, starts_N2, steps)
    seen, acted = window.seen, window.acted
    value = np.where(seen, window.columns["value"], np.nan).astype(np.float32)
    reward = np.where(acted, window.columns["reward"], np.nan).astype(np.float32)
    action, names = named_actions(window.columns["action"], acted, spec)
    choices = spec.distinct_actions() if not spec.action_parts else {n: [i] for i, n in enumerate(spec.action_names)}
    prob = np.full((*seen.shape, len(choices)), np.nan, np.float32)
    if "logits" in window.columns:
        each = probabilities(torch.from_numpy(window.columns["logits"]), spec.parts).numpy()
        for a, ids in enumerate(choices.values()):
            prob[..., a] = np.where(acted, each[..., ids].sum(-1), np.nan)
    h = torch.from_numpy(window.columns["h"])
    c = {kind: np.where(seen[..., None], basis.project(h).numpy(), np.nan).astype(np.float32)
         for kind, basis in bases.items()}  # fmt: skip
    along = next(iter(c.values()), np.zeros((*seen.shape, 0), np.float32))
    events, event = events_in(spec, window.columns, window.terminated, acted, along)
    return Courses(
        starts_N2, value, reward, action, prob, c, labels_of(known, source, starts_N2, steps), event, seen.sum(1),
        names, tuple(choices), choice_of_each(spec, choices, len(names)), events,
    )  # fmt: skip


def choice_of_each(spec: EnvSpec, choices: Mapping[str, Sequence[int]], actions: int) -> tuple[int, ...]:
    """The choice that each action is: several may do the same."""
    if spec.action_parts:
        return (NOWHERE,) * actions
    of = {i: k for k, ids in enumerate(choices.values()) for i in ids}
    return tuple(of[i] for i in range(actions))


def named_actions(action: np.ndarray, acted_NT: np.ndarray, spec: EnvSpec) -> tuple[np.ndarray, tuple[str, ...]]:
    """(int16 [N, T] into the names, the names): of an action of several parts those of all its choices."""
    if not spec.action_parts:
        return np.where(acted_NT, action, NOWHERE).astype(np.int16), spec.action_names
    rows, inverse = np.unique(action.reshape(-1, action.shape[-1]), axis=0, return_inverse=True)
    names = tuple(spec.in_words(row) for row in rows)
    return np.where(acted_NT, inverse.reshape(acted_NT.shape), NOWHERE).astype(np.int16), names


def labels_of(known: Behaviours | None, source: str, starts_N2: np.ndarray, steps: int) -> np.ndarray:
    """int16 [N, T], the behaviour of every step; NOWHERE where none is known."""
    out = np.full((len(starts_N2), steps), NOWHERE, np.int16)
    if known is None or source not in known.labels:
        return out
    of = {(int(e), int(t)): int(b) for (e, t), b in zip(known.index[source], known.labels[source], strict=True)}
    for n, (e, first) in enumerate(starts_N2.tolist()):
        for t in range(steps):
            out[n, t] = of.get((e, first + t), NOWHERE)
    return out


def events_in(
    spec: EnvSpec, columns: dict[str, np.ndarray], ended_NT: np.ndarray, acted_NT: np.ndarray, c_NTK: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the world's events, and whether each happens at a step, uint8 [N, T, E]; without those that read a
    reward, of which samples hold the mean that the world foretells."""
    like = torch.from_numpy(columns["value"]).float()
    one = one_hot(torch.from_numpy(columns["action"]), spec.parts, like)
    rows = Rows(
        like, torch.from_numpy(columns["reward"]).float(), torch.from_numpy(ended_NT).float(), one,
        torch.from_numpy(columns["logits"]) if "logits" in columns else torch.zeros_like(one),
        torch.from_numpy(np.nan_to_num(c_NTK)), spec.parts,
    )  # fmt: skip
    known = parse_events((), spec.action_names, c_NTK.shape[-1], spec.same_actions, spec.events)
    events = [event for event in known if "reward" not in event.reads]
    found = [(event(rows).numpy() > 0.5) & acted_NT for event in events]
    happens = np.stack(found, -1) if found else np.zeros((*acted_NT.shape, 0))
    return tuple(event.name for event in events), happens.astype(np.uint8)


def real_starts(store: RolloutStore, samples: Sequence[int], initial_frames: int) -> np.ndarray:
    """int64 [N, 2]: the real step that a sample's first observation is of (the last of the frames that it was
    inferred from); (-1, -1) for a sample that starts in no episode."""
    out = np.full((len(samples), 2), NOWHERE, np.int64)
    for n, i in enumerate(samples):
        start = store.meta(int(i)).get("start")
        if start is not None:
            out[n] = int(start[0]), int(start[1]) + initial_frames - 1
    return out


def frames_of(store: RolloutStore, starts_N2: np.ndarray, steps: int) -> np.ndarray | None:
    """uint8 [N, T, H, W, 3], black beyond the end; None where the world's observations are no pictures."""
    field = store.spec.picture
    if field is None:
        return None
    frames: np.ndarray = store.read_windows([f"obs/{field}"], starts_N2, steps).columns[f"obs/{field}"]
    return as_rgb(frames)
