"""The starts of a trial: states of the real game with several objects in the picture, each of its own episode (N)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from agents.play import Chooser, Exploration, play
from core.contracts import Agent, UserError, VecEnv
from core.progress import bar
from core.trees import Tree, joined, rows_of
from envs.procgen_state import state_of
from validation.paired.starts import GIVE_UP_STEPS
from validation.saliency_trial.objects import Item, items_of

CENSUS = 16  # steps between two looks at all slots
LOOKED = 300  # states so looked at, after which it is known whether such starts are too rare
RARE = 0.01  # share of states below which it would take for ever


@dataclass(frozen=True)
class Scenes:
    """N starts, and what is in their pictures."""

    window: Mapping[str, np.ndarray]  # [N, I, ...], the last observation is the start's
    before: Tree  # the agent's state before it saw that observation, [N, ...]
    states: tuple[bytes, ...]
    items: tuple[tuple[Item, ...], ...]
    age_N: np.ndarray  # step of the episode

    def __len__(self) -> int:
        return len(self.states)


def collect(
    agent: Agent, env: VecEnv, count: int, *, objects: int, initial_frames: int, latest: int, seed: int,
    device: torch.device,
) -> Scenes:  # fmt: skip
    """Run the agent and take ``count`` starts, at most one an episode, each at a step drawn uniformly from
    [initial_frames - 1, latest] (at least 1) and kept where at least ``objects`` objects are in the picture.

    Every slot gives equally many (some one more where it must be), so that fast episodes are not favoured.  Raises
    UserError where such starts are rare.
    """
    slots, first = env.spec.slots, max(1, initial_frames - 1)
    rng = np.random.default_rng(seed)
    chooser = Chooser(Exploration(), slots, rng, agent.spec.parts)
    quota_B = np.full(slots, count // slots) + (np.arange(slots) < count % slots)
    target_B = rng.integers(first, latest + 1, slots)
    history: deque[dict[str, np.ndarray]] = deque(maxlen=initial_frames)
    window: list[dict[str, np.ndarray]] = []
    before: list[Tree] = []
    kept: list[tuple[bytes, tuple[Item, ...], int]] = []
    states: tuple[bytes, ...] = ()
    memory: Tree = None
    looked = enough = 0
    with bar("collecting starts", count, "starts") as progress:
        for step, moment in enumerate(play(agent, env, chooser, seed=seed, device=device)):
            history.append(moment.obs)
            if step and step % CENSUS == 0:
                looked += slots
                enough += sum(len(items_of(state_of(s))) >= objects for s in states)
            for b in np.flatnonzero((quota_B > 0) & (moment.age_B == target_B)) if states else ():
                items = tuple(items_of(state_of(states[b])))
                if len(items) < objects:
                    continue
                window.append({k: np.stack([obs[k][b] for obs in history]) for k in moment.obs})
                before.append(rows_of(memory, slice(b, b + 1)))
                kept.append((states[b], items, int(moment.age_B[b])))
                quota_B[b] -= 1
                progress.advance()
            if not quota_B.any():
                break
            if (looked >= LOOKED and enough < RARE * looked) or step >= GIVE_UP_STEPS:
                raise UserError(
                    f"only {enough} of {looked} states of {env.spec.env_id} have {objects} objects in the picture; "
                    f"lower --objects, or change --latest_start ({latest})"
                )
            done_B = moment.next.terminated | moment.next.truncated
            target_B = np.where(done_B, rng.integers(first, latest + 1, slots), target_B)
            age_B = np.where(done_B, 0, moment.age_B + 1)
            memory = moment.state
            wanted = ((quota_B > 0) & (age_B == target_B)).any() or (step + 1) % CENSUS == 0
            states = env.snapshot() if wanted else ()  # of the next moment
    return Scenes(
        window={k: np.stack([w[k] for w in window]) for k in window[0]},
        before=joined(before),
        states=tuple(state for state, _, _ in kept),
        items=tuple(items for _, items, _ in kept),
        age_N=np.array([age for _, _, age in kept]),
    )
