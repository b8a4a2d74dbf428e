"""A world as a page to play: ``python -m analysis.replay runs/activations --cluster_dir runs/clusters --world 0``.

The agents of one recorded world on its map, coloured by cluster, by any feature or by the policy's value;
``replay.html`` opens offline.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from analysis.lives import POSITION, Between, Clusters, open_lives, read_clusters, read_life, worlds_of
from core import artefacts, config as cli
from core.contracts import UserError
from core.episodes import RolloutStore
from core.pages import UNLABELLED
from core.replay import NOWHERE, Replay, page

STAGE = "replay"
PAGE = "replay.html"


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Make the offline replay page of one recorded world."""

    extraction: tyro.conf.Positional[Path] = Path("runs/activations")
    """run directory of analysis.extract_activations"""
    cluster_dir: Path | None = None
    """run directory of analysis.activations of the same extraction; without it agents have no cluster"""
    world: int = 0
    """number of the world; every playing has its own, those of the first part come first"""
    between: Between = "nearest"
    """what a tick that was not clustered itself shows: the cluster of the nearest tick that was, or none (grey)"""
    out: Path = Path("runs/replay")
    """run directory to write; the page is replay.html in it"""
    overwrite: bool = False
    """replace an earlier run at --out"""


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


def main(config: ReplayConfig) -> None:
    cli.require(0, world=config.world)
    with open_lives(config.extraction) as store:
        clusters = None if config.cluster_dir is None else read_clusters(config.cluster_dir, config.extraction)
        policy = str(store.manifest["facts"].get("policy") or "")
        replay = replay_of(store, config.world, clusters, config.between, policy)
    inputs = {"extraction": config.extraction} | (
        {} if config.cluster_dir is None else {"clusters": config.cluster_dir}
    )
    text = page(replay).encode()
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        artefacts.write_atomically(run.path / PAGE, text)
        run.record("agents", len(replay.agent_A), "agents")
        run.record("ticks", len(replay.tick_T), "ticks")
        run.record("bytes", len(text), "bytes")
    print(f"{replay.title}: {replay.alive_TA.shape[1]} agents, {len(replay.tick_T)} ticks: {config.out / PAGE}")


if __name__ == "__main__":
    cli.run(ReplayConfig, main, STAGE)
