"""The life of an agent, tick by tick: ``python -m analysis.life runs/activations --cluster_dir runs/clusters``.

Health, food, water, place, company and what the agent does, over the ticks of its life, with the cluster that each
moment is in as coloured bands.  Without a wish: the life whose length is at the 75th percentile.  What is drawn is in
timeline.csv.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.life", file=sys.stderr)
    sys.exit(2)

from dataclasses import dataclass
from pathlib import Path

import tyro

from analysis.lives.life_figures import draw_life, draw_lives
from analysis.lives.recorded import Between, about, feature_names, named, open_lives, read_clusters, worlds_of
from analysis.lives.timeline import choose, record_lifespans, summary, timeline
from core import artefacts, config as cli
from core.artefacts import Result
from core.pages import label_colours, label_name
from core.stats import between, few

STAGE = "life"


@dataclass(frozen=True, kw_only=True)
class LifeConfig:
    """Draw the timeline of one life, or of several."""

    extraction: tyro.conf.Positional[Path] = Path("runs/activations")
    """run directory of analysis.extract_activations"""
    cluster_dir: Path | None = None
    """run directory of analysis.activations of the same extraction; without it there are no bands"""
    num_agents: int = 1
    """so many lives drawn at random; 1: the one life whose length is at the 75th percentile"""
    episodes: tuple[int, ...] = ()
    """these lives instead, by their episode number"""
    between: Between = "nearest"
    """what a tick that was not clustered itself shows: the cluster of the nearest tick that was, or none (grey)"""
    out: Path = Path("runs/life")
    """run directory to write"""
    seed: int = 0
    """seed of the draw and of the interval"""
    overwrite: bool = False
    """replace an earlier run at --out"""


def main(config: LifeConfig) -> None:
    cli.require(0, num_agents=config.num_agents, seed=config.seed)
    inputs = artefacts.Inputs({"extraction": config.extraction, "clusters": config.cluster_dir})
    with open_lives(config.extraction) as store:
        chosen = choose(store.steps, config.num_agents, config.episodes, config.seed)
        clusters = None if config.cluster_dir is None else read_clusters(config.cluster_dir, config.extraction)
        result = Result(notes={"between": config.between, "features": feature_names(store)})
        world_E = worlds_of(store)
        lives = [about(store, e, int(world_E[e])) for e in chosen]
        rows = {life["episode"]: timeline(store, life, clusters, config.between) for life in lives}
        record_lifespans(result, store.steps, store.terminated)
        result.tables["timeline"] = [row for e in chosen for row in rows[e]]
        result.tables["lives"] = [{**life, **summary(rows[life["episode"]])} for life in lives]
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result.save(run.path)
        with run.figures():
            colours = label_colours([row["label"] for row in result.tables["timeline"] if "label" in row])
            for life in lives:
                figure = draw_life(life, rows[life["episode"]], colours, config.between)
                figure.savefig(run.path / f"life_{life['episode']}.png", dpi=110)
            if len(lives) > 1:
                draw_lives(lives, rows, colours, config.between).savefig(run.path / "lives.png", dpi=110)
    p75 = result.scalars["lifespan_p75"]
    low, high = p75["interval"]  # either may be None: too few lives
    told = between(low, high, ".0f") + few(p75["n"])
    print(f"75 % of {p75['n']} lives last at most {p75['value']:.0f} ticks{told}; drawn: {config.out}")
    for life in result.tables["lives"]:
        where = f", at the end {label_name(life['last_label'])}" if "last_label" in life else ""
        print(f"  {named(life)}: {life['lifespan']} ticks, {life['ended']}{where}")


if __name__ == "__main__":
    cli.run(LifeConfig, main, STAGE)
