"""Coupling: which hidden-state directions go together over time, and which move each other.

``python -m analysis.coupling --samples runs/samples --behaviours runs/behaviours``

For every behaviour b and lag k, over steps T that belong to b:

- correlation r[i, j] of coordinate i at T-k with coordinate j at T over the time pairs, each less its mean and its
  smooth trends over the step of the episode and the steps since the behaviour was entered (clock.py): directions that
  share only the clock do not count; its null pairs the sources of one episode with the targets of another;
- Jacobian J[i, j] = mean of dc_j(T) / dc_i(T-k) in the simulator: direct, along the agent's memory with all its
  actions held, and through the world, with the actions enumerated (discrete_paths.py: what every action at a
  step leads to, times how i moves its probability; of actions of several parts, every choice of each part); whole =
  direct + through the world.

For comparison the whole is taken straight through the actions too, as autograd has it.  What a simulator does between
two actions no training constrains, so that number may be anything; an effect of the enumerated actions counts as an
edge only where its 95 % interval leaves 0 out and the straight-through number has its sign.

Correlation without a Jacobian is a common cause; a Jacobian is an effect in the simulator, and a hypothesis about the
world.  q-values (Benjamini-Hochberg) span all entries, lags and behaviours; episodes are the unit.
Where both are significant, their signs and magnitudes are compared against the permuted episodes.
Lag 0 has correlations only: what goes together at the same step.  Behaviours are grouped by their Jacobians
(kinds.py); with --extremes, later means and Jacobians are also taken given that a direction is at its upper or lower
end (extremes.py).
A behaviour with so few episodes that no p-value of its could reach alpha is left out, and named.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.coupling", file=sys.stderr)
    sys.exit(2)

import sys
from dataclasses import replace

import torch

from analysis.coupling.config import CouplingConfig
from analysis.coupling.correlation import MEAN
from analysis.coupling.edges import PAGE, page, strongest_pairs
from analysis.coupling.estimates import couple, plan
from analysis.coupling.figures import draw
from analysis.coupling.jacobian import Recorded
from analysis.coupling.labels import labelled, labels_in
from analysis.coupling.tables import assemble
from analysis.shared.behaviours import load_behaviours
from analysis.shared.sources import check_made_from, check_own, open_samples
from analysis.shared.units import drawn
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import direction_ids, fingerprint, load_basis
from core.episodes import RolloutStore
from core.stats import least_units, require_draws
from core.words import counted

STAGE = "coupling"
SHOWN = 5  # edges printed


def check(config: CouplingConfig) -> None:
    """UserError for settings that mean nothing."""
    if min(config.lags, default=-1) < 0 or len(set(config.lags)) < len(config.lags) or not any(config.lags):
        raise UserError("--lags takes different whole numbers, one at least above 0, as in 0 1 2 4")
    if not 0 <= config.extremes < 0.5:
        raise UserError(f"--extremes {config.extremes:g} is not a share of steps from 0 to below 0.5, such as 0.02")
    if not 0 < config.alpha < 1:
        raise UserError(f"--alpha {config.alpha:g} is not between 0 and 1")
    whole = {k: getattr(config, k) for k in ("max_directions", "batch_size", "most_states", "seed")}
    cli.require(0, **whole)
    cli.require_positive(memory_gb=config.memory_gb)
    cli.require(99, permutations=config.permutations, resamples=config.resamples)
    require_draws(config.permutations, config.alpha)
    if config.samples_per_behaviour < (need := least_units(config.alpha, MEAN)):
        raise UserError(
            f"--samples_per_behaviour {config.samples_per_behaviour}: a test at --alpha {config.alpha:g} needs at "
            f"least {need}"
        )


def main(config: CouplingConfig) -> None:
    from generative.load import load_simulator
    from generative.starts import as_started

    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    check(config)
    inputs = artefacts.Inputs({
        "simulator": config.simulator, "samples": config.samples, "hidden_states": config.hidden_states,
        "behaviours": config.behaviours, "rollouts": config.rollouts,
    })  # fmt: skip
    simulator = load_simulator(config.simulator, device)
    agent = fingerprint(simulator.agent)
    basis = load_basis(config.hidden_states, config.basis_kind, agent)
    ids = direction_ids(config.directions, basis, "--directions")
    basis.check(ids)
    if twice := [name for name, i in zip(config.directions, ids, strict=True) if ids.count(i) > 1]:
        raise UserError(f"--directions names {twice[0]} twice")
    ids = ids or list(range(min(config.max_directions or basis.size, basis.size)))
    directions = [basis.names[i] for i in ids]
    basis = replace(basis, project_HK=basis.project_HK[:, ids], lift_KH=basis.lift_KH[ids])
    behaviours = None
    if config.behaviours is not None:
        behaviours = load_behaviours(config.behaviours)
        check_made_from(config.behaviours, "samples", config.samples)
    with open_samples(config.samples) as store:
        check_own(store, simulator, config.simulator)
        read = {"samples": drawn(store, 0, config.most_states, config.seed)}
        sampled, h = labelled(store, basis, behaviours, "sim", read["samples"].episodes)
        labels = labels_in(sampled.label_N, config.behaviours, config.samples)
        simulator = as_started(simulator, store)
        recorded = Recorded.of(store, simulator, device)
        # What is simulated again begins from every latent; what is read needs none.
        z_EZ = torch.from_numpy(store.latents(None if recorded is None else [0])).to(device)
        planned = plan(simulator, z_EZ, sampled, h, labels, config, recorded, store)
    observed = sampled
    if config.rollouts is not None:
        if config.behaviours is not None:
            check_made_from(config.behaviours, "rollouts", config.rollouts)
        with RolloutStore(config.rollouts) as store:
            facts = store.manifest["facts"]
            if facts.get("source") != "real" or facts.get("agent") != agent:
                raise UserError(f"{config.rollouts} does not hold real rollouts of this simulator's agent")
            read["rollouts"] = drawn(store, 0, config.most_states, config.seed)
            observed, _ = labelled(store, basis, behaviours, "real", read["rollouts"].episodes)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.facts = {"agent": agent, "simulator": fingerprint(simulator)}
        coupling = couple(simulator, planned, observed, basis.to(device), labels, config)
        names = {} if behaviours is None else behaviours.names
        result = assemble(coupling, labels, names, directions, config)
        for name, of in read.items():
            of.say(result, name)
        result.save(run.path)
        artefacts.write_atomically(run.path / PAGE, page(result).encode())
        with run.figures():
            draw(result, run.path)
        run.metrics |= result.scalars
    for said in (*result.notes["left_out"], *result.notes["resolution"]):
        print(f"note: {said}", file=sys.stderr)
    edges = len(result.tables["edges"])
    print(f"coupling of {len(directions)} directions in {len(labels)} behaviours, {edges} edges: {config.out}")
    if (kinds := int(result.scalars["kinds"]["value"] or 0)) and len(labels) > 1:
        print(f"  by their Jacobians the behaviours are of {counted(kinds, 'kind')} told apart")
    if "extremes" in result.tables:
        print(f"  at the ends of directions: {len(result.tables['extremes'])} significant means or Jacobians")
    strongest = strongest_pairs(result.tables["edges"])
    for row in strongest[:SHOWN]:
        print(f"  {row['sentence']}")
    if len(strongest) > SHOWN:
        print(f"  ... and more, the strongest first: {config.out / PAGE}")


if __name__ == "__main__":
    cli.run(CouplingConfig, main, STAGE, shared=True)
