"""A world as a page to play: ``python -m analysis.replay runs/activations --cluster_dir runs/clusters --world 0``.

The agents of one recorded world on its map, coloured by cluster, by any feature or by the policy's value;
``replay.html`` opens offline.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.replay", file=sys.stderr)
    sys.exit(2)

from dataclasses import dataclass
from pathlib import Path

import tyro

from analysis.lives.recorded import Between, open_lives, read_clusters
from analysis.lives.world_replay import replay_of
from core import artefacts, config as cli
from core.replay import page

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


def main(config: ReplayConfig) -> None:
    cli.require(0, world=config.world)
    inputs = artefacts.Inputs({"extraction": config.extraction, "clusters": config.cluster_dir})
    with open_lives(config.extraction) as store:
        clusters = None if config.cluster_dir is None else read_clusters(config.cluster_dir, config.extraction)
        policy = str(store.manifest["facts"].get("policy") or "")
        replay = replay_of(store, config.world, clusters, config.between, policy)
    text = page(replay).encode()
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        artefacts.write_atomically(run.path / PAGE, text)
        run.record("agents", len(replay.agent_A), "agents")
        run.record("ticks", len(replay.tick_T), "ticks")
        run.record("bytes", len(text), "bytes")
    print(f"{replay.title}: {replay.alive_TA.shape[1]} agents, {len(replay.tick_T)} ticks: {config.out / PAGE}")


if __name__ == "__main__":
    cli.run(ReplayConfig, main, STAGE)
