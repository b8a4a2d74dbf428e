"""A world of an extraction as a replay: its agents' places and colours tick by tick."""

from __future__ import annotations

import numpy as np

from analysis.lives.recorded import POSITION, Between, Clusters, read_life, worlds_of
from core import artefacts
from core.contracts import UserError
from core.episodes import RolloutStore
from core.pages import UNLABELLED
from core.replay import NOWHERE, Replay


def lives_of(store: RolloutStore, world: int) -> list[int]:
    """Episodes of the world; UserError if it has none, or if one of its agents lived twice (where would it be?)."""
    world_E = worlds_of(store)
    mine = np.flatnonzero(world_E == world).tolist()
    if not mine:
        there = f"0 to {world_E.max()}" if world_E.max() >= 0 else "none (this extraction does not say who lived where)"
        raise UserError(f"--world {world}: there are {there}")
    agents = [store.meta(e).get("agent") for e in mine]
    if len(set(agents)) < len(agents):
        raise UserError(f"world {world} has two lives of one agent; extract again with this version")
    return mine


def replay_of(store: RolloutStore, world: int, clusters: Clusters | None, between: Between, policy: str = "") -> Replay:
    """The lives of one world on a common clock; UserError if positions or the map were not recorded."""
    if POSITION not in store.column_names:
        raise UserError(f"{store.path} has no positions (an imported extraction has none); record it with this project")
    episodes = lives_of(store, world)
    metas = [store.meta(e) for e in episodes]
    file = f"map_{metas[0]['map']}.npy"
    if file not in store.manifest["files"]:
        raise UserError(f"{store.path / file} is missing: the extraction has no map of world {world}")
    first_A = [int(m.get("first_tick") or 0) for m in metas]
    start = min(first_A)
    end = max(f + int(store.steps[e]) for f, e in zip(first_A, episodes, strict=True))
    shape = end - start, len(episodes)
    row_TA, col_TA = np.full(shape, NOWHERE, np.int16), np.full(shape, NOWHERE, np.int16)
    label_TA = np.full(shape, UNLABELLED)
    values: dict[str, np.ndarray] = {}
    for a, (e, first) in enumerate(zip(episodes, first_A, strict=True)):
        there = slice(first - start, first - start + int(store.steps[e]))
        life = read_life(store, e)
        row_TA[there, a], col_TA[there, a] = life.pop("row"), life.pop("col")
        for name, x in life.items():
            values.setdefault(name, np.full(shape, np.nan, np.float32))[there, a] = x
        if clusters is not None:
            label_TA[there, a] = clusters.along(e, int(store.steps[e]), between)[0]
    says = "between clustered ticks agents have the cluster of the nearest" if between == "nearest" else (
        "only clustered ticks have a cluster"
    )  # fmt: skip
    return Replay(
        map_RC=artefacts.load_array(store.path, file),
        row_TA=row_TA,
        col_TA=col_TA,
        agent_A=np.array([int(m["agent"]) for m in metas]),
        tick_T=np.arange(start, end),
        values=values,
        labels={} if clusters is None else {"cluster": label_TA},
        title=f"World {world} on map {metas[0]['map']}" + (f", policy {policy}" if policy else ""),
        under=f"{shape[1]} agents, {shape[0]} ticks. The map is as it was at the start"
        + ("." if clusters is None else f"; {says}."),
    )
