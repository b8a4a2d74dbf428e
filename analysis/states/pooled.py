"""States of many episodes in one array, with what is known of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from analysis.shared.exploration import explored
from analysis.shared.maps import Embedding
from analysis.shared.sources import REAL, SIMULATED
from analysis.shared.units import Drawn, drawn, units
from core.episodes import RolloutStore
from core.roll import probabilities

LEVEL = "truth/level"
UNKNOWN_LEVEL = -1


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How many directions of which kind, and what counts as a state."""

    pca_size: int = 0
    """principal components; 0: as many as the states vary in"""
    ica_size: int = 16
    """independent components, of as many whitened principal ones; 0: none"""
    ica_restarts: int = 20
    """FastICA runs, each on a bootstrap of the episodes, that the stability index compares"""
    nmf_size: int = 16
    """non-negative factors; 0: none"""
    nmf_states: int = 20_000
    """states the factors are found on, drawn at random; 0: all"""
    clusters: int = 32
    """k-means clusters of the principal components"""
    surrogates: int = 39
    """data without clusters, of each of two kinds, that are clustered alike: stable means beyond 95 % of them, which
    fewer than 39 cannot say; 0: none"""
    first_step: int = 1
    """states of earlier steps are left out: step 0 has seen one frame and is all initial state"""
    most_states: int = 200_000
    """at most about so many states of either source, of whole episodes drawn at random; 0: all.  Of the others
    only the rows are missing here: a basis projects any state, exactly"""
    drop_outliers: bool = False
    """fit without states whose median distance to their neighbours lies 2 standard deviations above the mean"""
    outlier_neighbours: int = 20
    """neighbours of --drop_outliers"""
    embedding: tuple[Embedding, ...] = ("umap",)
    """2-D maps of the states, saved as data: umap, tsne, or pca (none beside the components)"""
    embedding_states: int = 3000
    """states in a map, drawn at random"""


@dataclass(frozen=True)
class States:
    """Pooled steps: the states ``x_NF`` and, row by row, what the agent thought and did and what followed.

    ``index_N2`` (episode, t); ``source_N`` 0 real, 1 simulated; ``level_N`` -1 where it is not known; ``unit_N``:
    rows of equal number are not independent (an episode, and the samples that started in it); ``explored_N``: of an
    episode in which the agent explored, or of a sample that starts in one (None: of none).  Steps of an
    episode are consecutive.  ``more``: float [N] by name, NaN where a source does not have it: ``share`` (of the
    recorded episode that is over, 0 to 1), ``best_reward`` (the largest one of the episode), ``entropy`` (of the
    policy, in nats).  ``drawn``: of every source's name, what was read of it, where that is known.
    """

    x_NF: np.ndarray
    value_N: np.ndarray
    action_N: np.ndarray
    reward_N: np.ndarray
    level_N: np.ndarray
    index_N2: np.ndarray
    source_N: np.ndarray
    unit_N: np.ndarray
    more: Mapping[str, np.ndarray] = field(default_factory=dict)
    drawn: Mapping[str, Drawn] = field(default_factory=dict)
    explored_N: np.ndarray | None = None

    @property
    def fitted_N(self) -> np.ndarray:
        """bool [N]: the real states; where there are none, the simulated ones."""
        real_N = self.source_N == REAL
        return real_N if real_N.any() else ~real_N

    @property
    def by_itself_N(self) -> np.ndarray:
        """bool [N]: what is neither of an episode in which the agent explored nor of a sample that starts in one."""
        return np.ones(len(self.x_NF), bool) if self.explored_N is None else ~self.explored_N


def join(parts: Sequence[States]) -> States:
    """The rows of all of them, in this order."""
    if len(parts) == 1:
        return parts[0]
    apart = ("more", "drawn", "explored_N")
    columns = {k: np.concatenate([getattr(p, k) for p in parts]) for k in States.__dataclass_fields__ if k not in apart}
    more = {
        name: np.concatenate([p.more.get(name, np.full(len(p.x_NF), np.nan)) for p in parts])
        for name in dict.fromkeys(name for p in parts for name in p.more)
    }
    read = {name: of for p in parts for name, of in p.drawn.items()}
    return States(**columns, more=more, drawn=read, explored_N=~np.concatenate([p.by_itself_N for p in parts]))


def pool(
    store: RolloutStore, column: str | Sequence[np.ndarray], options: FitOptions, real: RolloutStore | None, *,
    lead: int = 0, seed: int = 0,
) -> States:  # fmt: skip
    """The states of a store's steps t >= first_step.

    column: the name of a stored one; or per-episode states whose row i belongs to step ``lead + i``.  real: the real
    rollouts, in which samples may have started.
    """
    first = max(options.first_step, lead)
    read = drawn(store, first, options.most_states, seed)
    episodes = read.episodes
    known = [LEVEL] if LEVEL in store.column_names else []
    stored = [column] if isinstance(column, str) else []
    columns, index_N2 = store.pooled("value", "action", "reward", *known, *stored, episodes=episodes, first=first)
    if isinstance(column, str):
        x_NF = columns[column]
    else:
        ends = {e: int(min(store.steps[e], store.rows[e])) for e in episodes}
        x_NF = np.concatenate([column[e][first - lead : ends[e] - lead] for e in episodes])
    states = _states(store, x_NF, columns, index_N2, units(store, real))
    return replace(states, drawn={_kind(store)[1]: read}, explored_N=explored(store, real)[index_N2[:, 0]])


def pool_rows(
    store: RolloutStore, x_NF: np.ndarray, index_N2: np.ndarray, unit_E: np.ndarray, episodes: Sequence[int]
) -> States:
    """States that belong to the steps ``index_N2`` (episode, t) of these (sorted) episodes, in order."""
    known = [LEVEL] if LEVEL in store.column_names else []
    columns, all_M2 = store.pooled("value", "action", "reward", *known, episodes=episodes)
    row = {(int(e), int(t)): i for i, (e, t) in enumerate(all_M2)}
    rows_N = np.array([row[int(e), int(t)] for e, t in index_N2])
    return _states(store, x_NF, {k: v[rows_N] for k, v in columns.items()}, index_N2, unit_E)


def _entropies(store: RolloutStore, index_N2: np.ndarray) -> np.ndarray:
    """The policy's entropy at some steps in nats, float32 [N]; one episode in memory at a time, as a world may have
    thousands of actions."""
    out = np.empty(len(index_N2), np.float32)
    for e in np.unique(index_N2[:, 0]):
        mine = index_N2[:, 0] == e
        columns, _ = store.pooled("logits", episodes=[int(e)])
        chances = probabilities(torch.from_numpy(columns["logits"][index_N2[mine, 1]]), store.spec.parts)
        out[mine] = torch.special.entr(chances).sum(-1).numpy()
    return out


def _kind(store: RolloutStore) -> tuple[int, str]:
    """The number of a store's source, and the flag that names the store."""
    return (REAL, "rollouts") if store.manifest["facts"]["source"] == "real" else (SIMULATED, "samples")


def _states(
    store: RolloutStore, x_NF: np.ndarray, columns: Mapping[str, np.ndarray], index_N2: np.ndarray, unit_E: np.ndarray
) -> States:
    n = len(index_N2)
    level_N = columns.get(LEVEL, np.full(n, UNKNOWN_LEVEL)).reshape(n)
    level_N = np.nan_to_num(level_N, nan=UNKNOWN_LEVEL).astype(np.int64)  # NaN: not told at that step
    source, _ = _kind(store)
    episode_N = index_N2[:, 0]
    best_E = np.full(len(store), np.nan)
    rewards, of_M2 = store.pooled("reward", episodes=np.unique(episode_N).tolist())
    np.fmax.at(best_E, of_M2[:, 0], rewards["reward"])
    last_E = np.minimum(store.steps, store.rows) - 1
    more = {"share": index_N2[:, 1] / np.maximum(last_E[episode_N], 1), "best_reward": best_E[episode_N]}
    if "logits" in store.column_names:
        more["entropy"] = _entropies(store, index_N2)
    return States(
        x_NF, columns["value"], columns["action"], columns["reward"], level_N, index_N2, np.full(n, source),
        unit_E[episode_N], more,
    )  # fmt: skip
