"""Saliency: what in the frames, in the agent's memory and in the world made a quantity what it is.

``python -m analysis.saliency --sample_ids 0 to 8 --quantities action value``

A simulated rollout is run again from its latent, without noise, and the gradient of a quantity at a
target step is taken with respect to every frame, every hidden state h_t and every world state d_t.  With --noise and
--copies every method is averaged over noised frames (SmoothGrad).  The gradient is taken twice:
through agent and world, and with the path action -> world cut; the difference is the straight-through gradient by
way of the agent's own actions.  Captum's methods explain the target frame alone, and checks
say what the pictures are worth (attributions.py, checks.py, randomisation.py).

Gradients through actions and through the world's categorical states are straight-through: those of probabilities, not
of the discrete choice, by what the simulator does between two choices, which no training constrains.  A saliency
through them is a hypothesis, which validation.interventions tests (analysis.coupling enumerates actions instead).
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.saliency", file=sys.stderr)
    sys.exit(2)

import sys
from collections.abc import Sequence

import numpy as np
import torch

from analysis.saliency.config import SaliencyConfig
from analysis.saliency.explain import compute
from analysis.saliency.figures import draw, pictures_in
from analysis.saliency.maps import MapsWriter
from analysis.saliency.tables import said_of_ended, said_of_parts
from analysis.shared.bases import bases_in
from analysis.shared.quantities import find_quantities
from analysis.shared.samples import Latents, not_modal, source_units
from analysis.shared.sources import check_own, open_samples
from analysis.shared.strips import NO_PICTURE
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import fingerprint
from core.files import Spool
from core.interventions import parse_ids
from core.video import check_video
from core.words import counted

STAGE = "saliency"


def parse_sample_ids(words: Sequence[str], available: int) -> list[int]:
    """``33 39 56`` and ``A to B`` (without B) -> ids in the order given.

    Raises UserError: not a number, a range that is empty or lacks an end, an id that is not among
    ``available`` samples, an id given twice.
    """
    words = list(words)
    ids: list[int] = []
    at = 0
    while at < len(words):
        if words[at + 1 : at + 2] == ["to"]:
            ends = parse_ids([words[at], *words[at + 2 : at + 3]], "--sample_ids")
            if len(ends) < 2 or ends[1] <= ends[0]:
                raise UserError(f"--sample_ids {' '.join(words)}: A to B needs A < B; B itself is left out")
            ids += range(*ends)
            at += 3
        else:
            ids += parse_ids([words[at]], "--sample_ids")
            at += 1
    if not ids:
        raise UserError("--sample_ids is empty; give ids, or a range such as 0 to 8")
    for i in ids:
        if not 0 <= i < available:
            raise UserError(f"--sample_ids: no sample {i}; there are {available} (0 to {available - 1})")
    if len(set(ids)) < len(ids):
        raise UserError(f"--sample_ids names sample {next(i for i in ids if ids.count(i) > 1)} twice")
    return ids


def check(config: SaliencyConfig) -> None:
    """UserError for settings that mean nothing."""
    if not 0 <= config.target_step <= config.steps:
        raise UserError(f"--target_step {config.target_step} is not between 0 and --steps {config.steps}")
    cli.require(0, seed=config.seed)
    cli.require_positive(memory_gb=config.memory_gb)
    if config.copies < 1 or not 0 <= config.noise < np.inf or config.integrated_steps < 0 or config.batch_size < 0:
        raise UserError("--copies must be at least 1; --noise, --integrated_steps and --batch_size not negative")
    if (config.copies > 1) != (config.noise > 0):
        raise UserError(
            "--copies and --noise go together, as in --copies 16 --noise 0.1; without both nothing is smoothed"
        )
    if not 1 <= config.stride <= config.window or config.draws < 1 or not 0 < config.radius < np.inf:
        raise UserError("--stride must be from 1 to --window; --draws at least 1; --radius above 0")


def main(config: SaliencyConfig) -> None:
    from generative.load import load_simulator
    from generative.starts import as_started

    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    check(config)
    if config.video:
        check_video()
    inputs = artefacts.Inputs({
        "simulator": config.simulator, "samples": config.samples, "hidden_states": config.hidden_states,
        "env_states": config.env_states,
    })  # fmt: skip
    simulator = load_simulator(config.simulator, device)
    agent, spec = fingerprint(simulator.agent), simulator.world.spec
    pictures = [spec.obs[name] for name in spec.pictures]
    side = min((n for x in pictures for n in x.shape[:2]), default=config.window)
    if "occlusion" in config.methods and config.window > side:
        raise UserError(f"--window {config.window} does not fit into a frame of {side} pixels")
    if config.quantised and not pictures:
        raise UserError("--quantised is for pictures; this world's observations are none")
    with open_samples(config.samples) as store:
        check_own(store, simulator, config.simulator)
        ids = parse_sample_ids(config.sample_ids, len(store))
        basis_of = bases_in(config.hidden_states, agent, device, config.env_states, fingerprint(simulator))
        quantities = find_quantities(config.quantities, spec, basis_of, config.basis_kind)
        basis = None if config.hidden_states is None else basis_of(config.basis_kind)
        late = next((q for q in quantities if config.target_step < q.first_step), None)
        if late is not None:
            raise UserError(f"{late.name} needs --target_step {late.first_step} or later")
        latents = Latents(store, ids, device)
        z_SZ: torch.Tensor | Latents = latents
        units = source_units(store, ids)
        simulator = as_started(simulator, store)
        # The mean of their latents is no sample's.
        explained = [] if config.combine_samples_not_iterate else ids
        others = not_modal(simulator, store, explained, latents, config.steps, "saliency needs")
    combined_ids = ids
    if config.combine_samples_not_iterate:
        z_SZ, ids = simulator.world.normalise(z_SZ[:].mean(0, keepdim=True)), [-1]
        units = units[:1]
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.facts = {"agent": agent, "simulator": fingerprint(simulator)}
        with Spool(run.path) as spool:
            if config.quantised:
                shape = (config.steps + 1, *spec.obs[spec.main_field].shape[:2])
                with MapsWriter(run.path, [q.name for q in quantities], len(ids), shape) as maps:
                    result = compute(simulator, z_SZ, ids, quantities, config, units, basis, maps, spool)
                result.notes["figures"] = "none: --quantised"
            else:
                result = compute(simulator, z_SZ, ids, quantities, config, units, basis, spool=spool)
                if not pictures_in(result, spec):
                    result.notes["figures"] = f"none: {NO_PICTURE}"
            if config.combine_samples_not_iterate:
                result.notes["combined_ids"] = combined_ids
            if others:
                result.notes["not_as_recorded"] = others
            result.save(run.path)
            if not config.quantised:
                with run.figures():
                    draw(result, run.path, spec, config.video)
        run.metrics |= result.scalars
    if others:
        print(f"warning: samples {', '.join(map(str, others))} do not come out again from their latents to the last "
              f"step (rounding turned a choice); what comes out is explained: the rollouts here, not those recorded",
              file=sys.stderr)  # fmt: skip
    for said in said_of_parts(result, quantities):
        print(f"warning: {said}", file=sys.stderr)
    if ended := said_of_ended(result):
        print(f"note: {ended}", file=sys.stderr)
    if "randomised" in result.notes:
        print(f"note: {result.notes['randomised']}", file=sys.stderr)
    if not config.quantised and not pictures_in(result, spec):
        print(f"note: no strips are drawn: {NO_PICTURE}", file=sys.stderr)
    print(f"saliency of {counted(len(ids), 'rollout')}, {counted(len(quantities), 'quantity')}: {config.out}")


if __name__ == "__main__":
    cli.run(SaliencyConfig, main, STAGE, shared=True)
