"""What a state is compared with: the frame alone, time, previous actions, and agents that learned nothing or other.

*The frame* is what the agent's own weights make of it without a past: its embedding, where it has that point, and the
state that follows from this frame and an empty memory.  So it has passed through the same layers as the state has, and
a quantity that the state says better is known from earlier frames (or actions), not from more work on this one.  The
pixels themselves (their principal components, say) would be too weak a baseline: what is bent in them would be booked
as memory.

N rows, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from agents.load import load_agent
from analysis.shared.randomised import has_weights, randomised
from core.artefacts import MANIFEST, WEIGHTS, read_manifest
from core.contracts import Agent, UserError, numbers_of_distinct
from core.directions import fingerprint
from core.episodes import RolloutStore
from core.progress import bar
from core.trees import leaves

TOGETHER, BLOCK = 64, 8  # episodes shown to an agent at once; steps of them in memory
KNOTS = 128  # of the curve that a quantity may follow in time, at most; and at most one for so many distinct times:
TIMES_A_KNOT = 3
LIVES = 5  # rows of one time (a life has one at most) up to which time is told apart


class Seen(NamedTuple):
    """What an agent makes of recorded observations."""

    points: dict[str, np.ndarray]  # name of a point -> [N, width], with its memory of the episode
    alone_NF: np.ndarray  # of each observation alone: the embedding, and h after an empty memory

    @property
    def h_NH(self) -> np.ndarray:
        return self.points["h"]


def agent_run_of(store: RolloutStore) -> Path | None:
    """The run directory that a recording names as its agent's; it need not be there any more."""
    named = store.manifest["inputs"].get("agent")
    return None if named is None else store.path / named["path"]


def recorded_agent(
    store: RolloutStore, given: Path | None, device: torch.device | str = "cpu"
) -> tuple[Agent, Path] | None:
    """The agent of a recording: ``given``, else the one that the recording names, where that is still there and the
    same.  UserError where ``given`` is another."""
    path, known = given, store.manifest["facts"].get("agent", "")
    if path is None:
        path = agent_run_of(store)
        if path is None or not (path / MANIFEST).exists():
            return None
    kept = [name for name in read_manifest(path)["files"] if fnmatch(name, "checkpoint_*.safetensors")]
    for file in (WEIGHTS, *kept):
        agent = load_agent(path, device, file)
        if fingerprint(agent) == known:
            return agent, path
    if given is None:
        return None
    raise UserError(
        f"{store.path} was recorded with agent {known}; {path} is {fingerprint(load_agent(path))}"
        f"{', and none of its checkpoints is that one' if kept else ''}"
    )


@torch.no_grad()
def seen_by(
    agent: Agent, store: RolloutStore, index_N2: np.ndarray, name: str = "agent", points: Sequence[str] = ("h",),
    alone: bool = True,
) -> Seen:  # fmt: skip
    """The agent's states along whole recorded episodes, at the rows (episode, t) of ``index_N2`` (an episode's in a
    row).  alone: also what it makes of each observation alone.  UserError where it does not read these observations."""
    fields = list(agent.spec.obs)
    if dict(agent.spec.obs) != dict(store.spec.obs) or any(f"obs/{f}" not in store.column_names for f in fields):
        raise UserError(f"{name} does not read the observations of {store.path}; give an agent of the same world, that "
                        "sees the same of it")  # fmt: skip
    device = next(leaves(agent.initial(1))).device
    episodes, first, counts = np.unique(index_N2[:, 0], return_index=True, return_counts=True)
    last = index_N2[first + counts - 1, 1]
    order = np.argsort(last, kind="stable")
    of_frame = [p for p in ("embedding", "h") if p in agent.points] if alone else []
    out = {p: np.empty((len(index_N2), agent.points[p]), np.float32) for p in points}
    alone_NF = np.empty((len(index_N2), sum(agent.points[p] for p in of_frame)), np.float32)
    with bar(f"showing the episodes to {name}", len(episodes), "episodes") as progress:
        for some in np.array_split(order, max(1, -(-len(order) // TOGETHER))):
            wanted = [index_N2[first[i] : first[i] + counts[i], 1] for i in some]
            state = agent.initial(len(some))
            for t in range(int(last[some].max()) + 1):
                if t % BLOCK == 0:
                    starts = np.stack([episodes[some], np.full(len(some), t)], 1)
                    shown = store.read_windows([f"obs/{f}" for f in fields], starts, BLOCK)
                now = {f: torch.from_numpy(shown[f"obs/{f}"][:, t % BLOCK].copy()) for f in fields}
                first_B = torch.full((len(some),), t == 0, device=device)
                seen = agent.encode({f: x.to(device) for f, x in now.items()})
                state = agent.advance(seen, state, first_B)
                at = [(b, int(np.searchsorted(t_M, t))) for b, t_M in enumerate(wanted)]
                at = [(b, k) for b, k in at if k < len(wanted[b]) and wanted[b][k] == t]
                if not at:
                    continue
                here_B, row_B = np.array([b for b, _ in at]), np.array([first[some[b]] + k for b, k in at])
                for p, of_p in out.items():
                    of_p[row_B] = agent.read(p, seen, state).cpu().numpy()[here_B]
                if of_frame:
                    empty = agent.advance(seen, agent.initial(len(some)), torch.ones_like(first_B))
                    found = torch.cat([agent.read(p, seen, empty) for p in of_frame], 1)
                    alone_NF[row_B] = found.cpu().numpy()[here_B]
            progress.advance(len(some))
    return Seen(out, alone_NF)


def previous_actions(store: RolloutStore, index_N2: np.ndarray, count: int) -> np.ndarray:
    """The ``count`` actions before each row, one-hot, float32 [N, count * A]; zeros where the episode had not begun.
    Actions that do the same in the world are one."""
    spec = store.spec
    of_A = numbers_of_distinct(spec.distinct_actions())
    size = int(of_A.max()) + 1
    out = np.zeros((len(index_N2), count, size), np.float32)
    for e in np.unique(index_N2[:, 0]):
        rows = np.flatnonzero(index_N2[:, 0] == e)
        action_TP = store.pooled("action", episodes=[int(e)])[0]["action"].reshape(-1, len(spec.parts))
        hot_TA = np.zeros((len(action_TP), size), np.float32)
        np.put_along_axis(hot_TA, of_A[action_TP + spec.first_P], 1, 1)
        for k in range(count):
            before = index_N2[rows, 1] - 1 - k
            out[rows[before >= 0], k] = hot_TA[before[before >= 0]]
    return out.reshape(len(out), -1)


def time_features(time_N: np.ndarray) -> np.ndarray:
    """``time_table`` row by row, [N, F]."""
    table_TF, of_N = time_table(time_N)
    return table_TF[of_N]


def time_table(time_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A piecewise linear curve in time: linear B-splines with knots at its quantiles, as (its value at every time that
    there is [T, F], which of these times each row has [N]): there are far fewer of them than rows.

    So many that the mean of a clock of a few tens of steps can be followed, which five powers of time could not (of
    Craftax's counter of hunger they said R^2 .02, where .38 can be said).  Times that fewer than five lives reach are
    the last one that five do: a fit without the only life that gets there would run away.
    """
    from sklearn.preprocessing import SplineTransformer

    value_T, of_N, rows_T = np.unique(time_N, return_inverse=True, return_counts=True)
    told_T = value_T[value_T <= value_T[rows_T >= min(LIVES, rows_T.max())].max()]
    time_N1 = np.minimum(time_N, told_T[-1]).astype(np.float64)[:, None]
    knots = min(KNOTS, len(told_T) // TIMES_A_KNOT)
    knot_K = np.unique(np.quantile(time_N1, np.linspace(0, 1, max(1, knots))))
    kept_T1 = np.minimum(value_T, told_T[-1]).astype(np.float64)[:, None]
    if len(knot_K) < 2:  # hardly any times: as they are
        return kept_T1 - time_N1.mean(), of_N
    return SplineTransformer(degree=1, knots=knot_K[:, None]).fit(time_N1).transform(kept_T1), of_N


def baselines_of(
    agent: Agent, store: RolloutStore, index_N2: np.ndarray, time_N: np.ndarray, previous: int, seed: int
) -> dict[str, np.ndarray]:
    """{name: features [N, .]}: ``frame``; ``action``, the frame and the previous actions; ``all``, these and time;
    ``random``, the state of the same agent with its weights shuffled, if it has any."""
    frame_NF = seen_by(agent, store, index_N2).alone_NF
    action_NA = previous_actions(store, index_N2, previous)
    found = joined(frame_NF, action_NA, time_N)
    if has_weights(agent):
        found["random"] = seen_by(randomised(agent, seed), store, index_N2, "the randomised agent").h_NH
    return found


def joined(frame_NF: np.ndarray, action_NA: np.ndarray, time_N: np.ndarray) -> dict[str, np.ndarray]:
    """The baselines that the frame is part of."""
    action = np.concatenate([frame_NF, action_NA], 1)
    return {"frame": frame_NF, "action": action, "all": np.concatenate([action, time_features(time_N)], 1)}


def states_of(agents: Mapping[str, Agent], store: RolloutStore, index_N2: np.ndarray) -> dict[str, np.ndarray]:
    """The states of other agents, or of checkpoints, along the same recorded observations."""
    return {name: seen_by(agent, store, index_N2, name).h_NH for name, agent in agents.items()}


def names_in(baselines: Sequence[str], previous: int) -> dict[str, str]:
    """What a baseline is called in words."""
    actions = "the previous action" if previous == 1 else f"the {previous} previous actions"
    words = {
        "frame": "the frame alone", "time": "time", "action": f"the frame and {actions}",
        "all": f"the frame, time and {actions}", "random": "a randomised agent",
    }  # fmt: skip
    return {name: words[name] for name in ("frame", "time", "action", "all", "random") if name in (*baselines, "time")}
