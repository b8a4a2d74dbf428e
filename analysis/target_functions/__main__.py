"""Target functions: latents whose dreams show a thing.

``python -m analysis.target_functions --rollouts runs/rollouts --maximise value_drop leftwards``

The latent z that a modal rollout starts from is moved by Adam along the gradient of a number of the whole
rollout, through agent and world, until the rollout shows a large drop of value, walking backwards, an
action, a neuron or a direction up or down (activation maximisation, Erhan et al. 2009, carried through time).

Unbounded, that finds adversarial latents.  So z is moved in the coordinates in which the population its
start came from (latents inferred from real frames, or the prior's) is round and of unit size, and pays for
being further out than that population.  Two controls go with every number: the best of as many untrained
latents of the population as were tried on the way, and what is left of the effect under the world's noise.

The straight-through gradients of categorical states and actions are those of probabilities, so a step need
not be uphill; the best rollout on the way is kept.  What is found is a property of the simulator, and a
hypothesis about the world.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.target_functions", file=sys.stderr)
    sys.exit(2)

import sys
from collections.abc import Mapping
from typing import Any

import torch

from analysis.shared.bases import bases_in
from analysis.shared.strips import NO_PICTURE
from analysis.target_functions.config import TargetFunctionsConfig
from analysis.target_functions.figures import draw, pictured, said
from analysis.target_functions.population import informed_starts, random_starts
from analysis.target_functions.search import compute, tries_of
from analysis.target_functions.targets import find_targets
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import fingerprint
from core.files import Spool
from core.stats import few
from core.video import check_video
from generative.record_samples import open_rollouts

STAGE = "target_functions"


def check(config: TargetFunctionsConfig) -> None:
    """UserError for numbers that make no sense."""
    cli.require(1, steps=config.steps, iterations=config.iterations, restarts=config.restarts, screen=config.screen,
                threads=config.threads)  # fmt: skip
    cli.require(2, samples=config.samples)
    cli.require(0, noisy=config.noisy, drawn=config.drawn, seed=config.seed, prior_weight=config.prior_weight)
    cli.require_positive(learning_rate=config.learning_rate, memory_gb=config.memory_gb)
    if not 0 <= config.first_step <= config.steps:
        raise UserError(f"--first_step {config.first_step} is not between 0 and --steps {config.steps}")
    if config.video and config.drawn:
        check_video()


def main(config: TargetFunctionsConfig) -> None:
    from generative.load import load_simulator

    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    check(config)
    inputs = artefacts.Inputs({
        "simulator": config.simulator, "hidden_states": config.hidden_states, "rollouts": config.rollouts
    })  # fmt: skip
    simulator = load_simulator(config.simulator, device)
    agent, spec = fingerprint(simulator.agent), simulator.world.spec
    targets = find_targets(
        config.maximise, config.minimise, config.first_step, simulator.world.spec,
        bases_in(config.hidden_states, agent, device), config.basis_kind,
    )  # fmt: skip
    count, controls = config.samples * config.screen, config.samples * tries_of(config)
    if config.rollouts is None:
        starts = random_starts(simulator, count, controls, config.seed, device)
    else:
        with open_rollouts(config.rollouts, simulator) as store:
            starts = informed_starts(simulator, store, count, controls, config.seed, device)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.facts = {"agent": agent, "simulator": fingerprint(simulator)}
        with Spool(run.path) as spool:
            result = compute(simulator, targets, starts, config, spool)
            if not pictured(result, spec):
                result.notes["figures"] = f"no strips: {NO_PICTURE}"
            result.save(run.path)
            with run.figures():
                draw(result, run.path, spec, config.drawn, config.video)
        run.metrics |= result.scalars
    if not pictured(result, spec):
        print(f"note: no strips are drawn: {NO_PICTURE}", file=sys.stderr)
    print(f"{len(result.notes['targets'])} targets, {config.samples} latents each: {config.out}")
    for row in result.tables["targets"]:
        print(f"  {row['target']} {row['sense']}: {in_words(row, result.notes['tries'])}")


def in_words(row: Mapping[str, Any], tries: int) -> str:
    """What a row of the table ``targets`` says."""
    if not row["n"]:
        return str(row["reason"])
    ends = said(row["over_control_low"]), said(row["over_control_high"])
    best = f"best of {tries} untrained {said(row['control'])}"
    return (
        f"{said(row['before'])} -> {said(row['after'])} {row['unit']}, {best} "
        f"(gain over it {said(row['over_control'])} [{', '.join(ends)}], n {row['n']}{few(row['n'])}, "
        f"q {said(row['q'], '.2g')}); "
        f"{said(row['nearer_after'], '.0f')} % of the population are nearer to its centre"
        + (f"; {row['reason']}" if row["reason"] else "")
    )


if __name__ == "__main__":
    cli.run(TargetFunctionsConfig, main, STAGE, shared=True)
