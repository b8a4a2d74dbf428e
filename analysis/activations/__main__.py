"""Map and cluster the activations of a policy, and ask what the clusters are:
``python -m analysis.activations runs/activations --out runs/clusters``.

Reads what analysis.extract_activations wrote: lives of agents, a row a tick.  Every tenth row of a life is kept,
mapped by UMAP and clustered by HDBSCAN (or clustered in the space of principal components, --cluster-before-umap).
Then come the questions of analysis.activations.verdicts: is a cluster behaviour, or only the time in the game, the
place, or the agent? ``--metric-only`` asks nothing of clusters: principal components and features only.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.activations", file=sys.stderr)
    sys.exit(2)

import time

import torch
from threadpoolctl import threadpool_limits

from analysis.activations import moments
from analysis.activations.config import ActivationsConfig, check
from analysis.activations.described import analyse, summary
from analysis.activations.figures import draw
from analysis.activations.records import read
from core import artefacts, config as cli

STAGE = "activations"
DENDROGRAM = "dendrogram_explorer.html"


def main(config: ActivationsConfig) -> None:
    from analysis.activations.dendrogram import page

    began = time.time()
    check(config)
    torch.set_num_threads(config.threads)
    inputs = artefacts.Inputs({"activations": config.directory})
    records = read(config.directory, config.subsample, config.rolling, config.first_tick, config.point)
    with threadpool_limits(config.threads):
        result = analyse(records, config)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.started = began
        result.save(run.path)
        with run.figures():
            draw(result, run.path, without=() if config.feature_scatter else ("feature_scatter.png",))
        if result.tables.get("moments"):
            moments.write(result, config.directory, run.path)
        if config.dendrogram_explorer and "label" in result.arrays:
            artefacts.write_atomically(run.path / DENDROGRAM, page(result).encode())
        facts = artefacts.read_manifest(config.directory)["facts"]
        run.facts = {k: facts[k] for k in ("agent", "policy", "features") if k in facts}
        run.metrics = dict(result.scalars)
    print(summary(result, config.out))


if __name__ == "__main__":
    cli.run(ActivationsConfig, main, STAGE)
