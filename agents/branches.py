"""What each action causes: from snapshots along an agent's way, every action is tried in the world itself.

A recording holds one action a state.  From it alone a world model can learn that what the agent does goes with what
comes next; what another action would have brought is seen only where it is tried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from agents.play import Chooser, Exploration, Moment, play, tensors
from core.contracts import Agent, Step, UserError, VecEnv
from core.episodes import Episode
from core.roll import act
from core.trees import Tree, flatten

FOLDER = "branches"  # of a recording's run directory
LEAD = 2  # recorded steps before the snapshot
STEPS = 4  # that an action is held
EVERY = 12  # steps of the agent between snapshots; the next is up to twice as far


def require_branches(env: VecEnv) -> None:
    """UserError unless every action can be tried in the world."""
    spec = env.spec
    if not spec.can_snapshot or len(spec.parts) > 1:
        why = "takes no snapshots" if not spec.can_snapshot else "has actions of several parts"
        raise UserError(
            f"--branches: {spec.env_id} {why}, so not every action can be tried from one state; leave it out"
        )


def record_branches(
    agent: Agent, env: VecEnv, aside: VecEnv, count: int, *, seed: int, device: torch.device, exploration: Exploration
) -> Iterator[Episode]:
    """An episode of LEAD + STEPS transitions for each of ``count`` snapshots and each distinct action, which is held
    from the snapshot on; shorter where the world ends.  The agent looks on: h, value and logits are its own.

    aside: the same world with as many slots, in which the actions are tried.  Meta: ``snapshot`` (its number),
    ``action``, and seed, slot and age (steps of its episode) of the snapshot.
    """
    rng = np.random.default_rng([seed, 1])  # of its own, so that the way is that of a recording without branches
    chooser = Chooser(exploration, env.spec.slots, np.random.default_rng(seed), agent.spec.parts)
    tried = [ids[0] for ids in env.spec.distinct_actions().values()]
    history: deque[Moment] = deque(maxlen=LEAD + 1)
    states: tuple[bytes, ...] = ()
    until, done = int(rng.integers(EVERY, 2 * EVERY)), 0
    for moment in play(agent, env, chooser, seed=seed, device=device):
        history.append(moment)
        if states:
            rows = [int(b) for b in np.flatnonzero(moment.age_B >= LEAD)][: count - done]
            futures = [_held(agent, aside, states, moment, action, device) for action in tried]
            for n, b in enumerate(rows):
                for action, future in zip(tried, futures, strict=True):
                    about = {
                        "snapshot": done + n,
                        "action": action,
                        "seed": seed,
                        "slot": b,
                        "age": int(moment.age_B[b]),
                    }
                    yield _episode(list(history)[:LEAD], moment, future, b, about)
            states, done = (), done + len(rows)
            until = int(rng.integers(EVERY, 2 * EVERY))
        if done >= count:
            return
        until -= 1
        if until <= 0:
            states = env.snapshot()  # of what the next moment will show


class _Tried:
    """What an action brings in every slot: a row a step."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.acted: list[dict[str, np.ndarray]] = []  # of the agent, at what the step shows


def _said(agent: Agent, acted: Any, state: Tree) -> dict[str, np.ndarray]:
    said = {"h": acted.h_BH, "value": acted.value_B, "logits": acted.logits_BA, "state": flatten(state)}
    return {k: x.cpu().numpy() for k, x in said.items()}


@torch.no_grad()
def _held(
    agent: Agent, aside: VecEnv, states: tuple[bytes, ...], moment: Moment, action: int, device: torch.device
) -> _Tried:
    """One action held in all slots, from what a moment shows."""
    aside.restore(states)
    tried, state = _Tried(), moment.state
    not_first = torch.zeros(len(states), dtype=torch.bool, device=device)
    for i in range(STEPS):
        step = aside.step(np.full(len(states), action, np.int64))
        t_B = torch.from_numpy(moment.age_B + i + 1).to(device)
        acted = act(agent, tensors(step.obs, device), state, not_first, t_B)
        state = acted.state
        tried.steps.append(step)
        tried.acted.append(_said(agent, acted, state))
    return tried


def _episode(before: list[Moment], moment: Moment, tried: _Tried, b: int, about: dict[str, Any]) -> Episode:
    """The recorded steps, the snapshot's and what followed, until the world ended."""
    ends = [bool(step.terminated[b] | step.truncated[b]) for step in tried.steps]
    count = ends.index(True) + 1 if any(ends) else STEPS
    steps = tried.steps[:count]
    last = steps[-1]
    way = [*before, moment]
    rows: list[dict[str, np.ndarray]] = []
    for m in way:
        own = {"h": m.h_BH[b], "value": m.value_B[b], "logits": m.logits_BA[b]}
        rows.append({**own, "state": flatten(m.state)[b].cpu().numpy(), **{f"obs/{k}": v[b] for k, v in m.obs.items()}})
    for step, said in zip(steps, tried.acted, strict=False):
        rows.append({**{k: v[b] for k, v in said.items()}, **{f"obs/{k}": v[b] for k, v in step.obs.items()}})
    if any(ends):  # what is shown then is of the next episode
        rows.pop()
    columns = {k: np.stack([row[k] for row in rows]) for k in rows[0]}
    action = [*(m.action_B[b] for m in before), *[np.int64(about["action"])] * count]
    reward = [*(m.next.reward[b] for m in before), *(step.reward[b] for step in steps)]
    whole = not np.array_equal(columns["state"], columns["h"])
    return Episode(
        obs={k.removeprefix("obs/"): v for k, v in columns.items() if k.startswith("obs/")},
        h=columns["h"],
        value=columns["value"],
        state=columns["state"] if whole else None,
        action=np.array(action, np.int64),
        logits=columns["logits"][: len(action)],
        reward=np.array(reward, np.float32),
        terminated=bool(last.terminated[b]),
        truncated=not last.terminated[b],
        meta=about,
    )
