"""Are clusters phases of life?  ``python -m analysis.life_phase runs/activations --cluster_dir runs/clusters``

Every life is cut into equal parts of its own length, from birth to end; the shares of the clusters in each part are
drawn as stacked areas.  A cluster that is only "early" or "late" gets all its rows in few phases; how much phase
explains is read against labels that are rotated within their lives, which keeps everything but the alignment with
phase.  And what lives end in: the last clustered moment of those that ended in death, beside the same lives' other
moments.

The phase is only known afterwards (it needs the length of the life), so an agent cannot know it; a cluster that
follows it more closely than it follows the tick may foretell the end.  N clustered rows, E lives, L labels, B phases.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.life_phase", file=sys.stderr)
    sys.exit(2)

from analysis.lives.phase_config import LifePhaseConfig
from analysis.lives.phase_figures import draw_clusters, draw_ends, draw_phases
from analysis.lives.phases import analyse, moments_of, words
from analysis.lives.recorded import open_lives, read_clusters
from analysis.shared.clusters import NOISE
from core import artefacts, config as cli
from core.contracts import UserError

STAGE = "life_phase"


def main(config: LifePhaseConfig) -> None:
    cli.require(2, n_bins=config.n_bins)
    cli.require(1, min_lifespan=config.min_lifespan)
    cli.require(0, seed=config.seed)
    cli.require(99, resamples=config.resamples, rotations=config.rotations)
    inputs = artefacts.Inputs({"extraction": config.extraction, "clusters": config.cluster_dir})
    with open_lives(config.extraction) as store:
        clusters = read_clusters(config.cluster_dir, config.extraction)
        if (clusters.label_N == NOISE).all():
            raise UserError(
                f"{config.cluster_dir} has no clusters (its verdict says so), so there is no phase to ask of them; "
                "cluster with other settings first"
            )
        m = moments_of(store, clusters, config.min_lifespan, config.unit)
        steps_E, died_E = store.steps, store.terminated
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result = analyse(m, steps_E, died_E, config)
        result.save(run.path)
        with run.figures():
            draw_phases(result).savefig(run.path / "life_phase.png", dpi=110)
            draw_clusters(result).savefig(run.path / "life_phase_clusters.png", dpi=110)
            if result.tables["ends"]:
                draw_ends(result).savefig(run.path / "life_ends.png", dpi=110)
    for line in words(result):
        print(line)
    print(f"drawn: {config.out}")


if __name__ == "__main__":
    cli.run(LifePhaseConfig, main, STAGE)
