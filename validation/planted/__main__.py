"""Does every method find what is there, and only that?  ``python -m validation.planted``

Every method runs on worlds whose truth is known (``envs.planted``), and each of its scores
(scores.py, claims.py) stands beside what it must reach.  Rows marked as broken belong to methods broken on
purpose (a sign flipped, a decodable direction taken for a cause, single steps permuted instead of episodes, a
randomised agent): a table in which they look as good as the others measures nothing.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.planted", file=sys.stderr)
    sys.exit(2)

from core import artefacts, config as cli
from validation.planted.config import PlantedConfig, check
from validation.planted.figures import draw_scores
from validation.planted.jobs import jobs_of, play_all
from validation.planted.table import assemble, over_bases, summary

STAGE = "planted"


def main(config: PlantedConfig) -> None:
    check(config)
    with artefacts.new_run(config.out, STAGE, config, overwrite=config.overwrite) as run:
        result = assemble(over_bases(play_all(jobs_of(config), config.threads)), config)
        result.save(run.path)
        with run.figures():
            draw_scores(result, run.path / "planted.png")
        run.metrics = dict(result.scalars)
    print(summary(result, config.out))


if __name__ == "__main__":
    cli.run(PlantedConfig, main, STAGE)
