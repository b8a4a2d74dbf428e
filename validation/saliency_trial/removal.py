"""What removing an object really does: the real game played from the edited and from the unedited state.

N starts, O objects (those of one start one after the other), D draws of the action noise, T = k + 1 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.play import LiveWorld
from core.contracts import Agent, VecEnv
from core.progress import bar
from core.roll import Noise, roll
from core.trees import rows_of
from envs.procgen_state import snapshot_of, state_of
from validation.paired.course import Actions, Measures, course_along, is_late, quantities
from validation.saliency_trial.objects import without
from validation.saliency_trial.starts import Scenes

ROUNDING = 1e-6  # of a change: smaller ones are none
POLICY = "policy"  # total variation of the probabilities of distinct actions


class Changes(NamedTuple):
    """What removing each object changed: with minus without the edit."""

    once: dict[str, np.ndarray]  # [O]
    late: dict[str, np.ndarray]  # [D, O]
    frames: np.ndarray  # [O, ...] uint8, the edited pictures
    twin: float  # the largest change by an edit of nothing


def asked(actions: Actions, horizon: int) -> tuple[list[str], list[str]]:
    """The quantities at once and up to the horizon, in the same order of actions; ``policy`` follows from them."""
    once = ["value", *(f"prob:{a}" for a in actions)]
    late = [f"value@{horizon}", f"return@{horizon}", *(f"prob:{a}@1..{horizon}" for a in actions)]
    return once, late


def source_of(quantity: str) -> str:
    """The quantity at once whose saliency stands for a late one, where no world foretells it."""
    name = quantity.partition("@")[0]
    return "value" if name == "return" else name


def with_policy(change: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Changes, or sizes of them, and half the sum of those of the probabilities, at once and later: the total
    variation, where they are changes."""
    out = dict(change)
    for late in (False, True):
        names = [q for q in change if q.startswith("prob:") and is_late(q) == late]
        if names:
            when = names[0].partition("@")[2]
            out[f"{POLICY}@{when}" if late else POLICY] = 0.5 * sum(np.abs(change[q]) for q in names)
    return out


@torch.no_grad()
def removed(agent: Agent, env: VecEnv, scenes: Scenes, noise_DNTA: Tensor, actions: Actions) -> Changes:
    """Play every start on as it is, as an unedited twin, and without each of its objects, with the same action noise.

    env: the same world, with room for all versions of any one start.  Versions of one start share a batch.
    """
    device = noise_DNTA.device
    world, horizon = LiveWorld(env, device), noise_DNTA.shape[2] - 1
    once, late = asked(actions, horizon)
    measures = Measures(actions, parts=agent.spec.parts)
    versions = [[s, snapshot_of(state_of(s), s), *(without(s, item) for item in items)]
                for s, items in zip(scenes.starts.states, scenes.items, strict=True)]  # fmt: skip
    field = next(iter(scenes.starts.window))
    frames: list[np.ndarray] = []
    found: dict[str, list[list[np.ndarray]]] = {q: [[] for _ in noise_DNTA] for q in (*once, *late)}
    twin = 0.0
    with bar("real world, without each object", len(scenes.starts) * len(noise_DNTA), "starts") as progress:
        for some in chunks([len(v) for v in versions], env.spec.slots):
            states = [state for n in some for state in versions[n]]
            of = np.repeat(some, [len(versions[n]) for n in some])
            fill = env.spec.slots - len(states)
            rows = torch.from_numpy(np.concatenate([of, np.repeat(of[:1], fill)])).to(device)
            base = np.searchsorted(of, of)  # the unedited version of the same start
            nth = np.arange(len(of)) - base
            for d, noise_NTA in enumerate(noise_DNTA):
                moments = list(roll(
                    agent, world, world.restore(states + states[:1] * fill), memory=rows_of(scenes.starts.before, rows),
                    steps=horizon, noise=[Noise(action_BA=x) for x in noise_NTA[rows].unbind(1)],
                ))  # fmt: skip
                if d == 0:
                    seen = moments[0].shown.obs[field][: len(of)].cpu().numpy()
                    frames.append(seen[nth > 1])
                measured = quantities(course_along(moments), measures)
                for q in found:
                    value = measured[q][: len(of)].double().cpu().numpy()
                    change = value - value[base]
                    twin = max(twin, float(np.abs(change[nth == 1]).max()))
                    found[q][d].append(change[nth > 1])
                progress.advance(len(some))
    whole = {q: np.stack([np.concatenate(parts) for parts in draws]) for q, draws in found.items()}
    return Changes({q: whole[q][0] for q in once}, {q: whole[q] for q in late}, np.concatenate(frames), twin)


def chunks(sizes: Sequence[int], room: int) -> Iterator[list[int]]:
    """Numbers of what fits together into ``room``, in order."""
    some: list[int] = []
    for n, size in enumerate(sizes):
        if size > room:
            raise ValueError(f"{size} versions of a start for {room} slots")
        if sum(sizes[i] for i in some) + size > room:
            yield some
            some = []
        some.append(n)
    if some:
        yield some
