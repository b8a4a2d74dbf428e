"""The agent's memory as a dynamical system: ``python -m analysis.dynamics --rollouts runs/rollouts``.

Under a constant input e, an agent's recurrence is a map h -> F(h; e).  This finds its fixed points from recorded
states (Sussillo & Barak 2013, "Opening the black box", Neural Computation 25), linearises there (eigenvalues, time
constants, line attractors), and measures how fast neighbouring states part or join (Lyapunov exponents; Benettin et al.
1980), under constant inputs and along recorded episodes.

A fixed point says what the memory would settle to if the world stood still, which it does not: how long a mode lasts
beside how long an episode is, and the exponents along recorded episodes, say how much that matters.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.dynamics", file=sys.stderr)
    sys.exit(2)

import torch

from agents.load import load_agent
from analysis.dynamics.config import DynamicsConfig
from analysis.dynamics.figures import draw
from analysis.dynamics.inputs import centres, of_behaviours, read, typical
from analysis.dynamics.recurrence import Recurrence
from analysis.dynamics.tables import analyse, summary
from analysis.shared.sources import check_made_from, open_stores
from analysis.shared.units import drawn
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import fingerprint, load_basis

STAGE = "dynamics"


def main(config: DynamicsConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(0, inputs=config.inputs, burn_in=config.burn_in, seed=config.seed, most_states=config.most_states)
    cli.require(1, starts=config.starts, iterations=config.iterations, settle=config.settle, threads=config.threads)
    for flag, number in (("slow_speed", config.slow_speed), ("merge", config.merge)):
        if not number > 0:
            raise UserError(f"--{flag} {number}: above 0")
    if config.slow_steps < 1:
        raise UserError(f"--slow_steps {config.slow_steps}: at least 1")
    if config.lyapunov_steps <= config.burn_in:
        raise UserError(f"--lyapunov_steps {config.lyapunov_steps} must be above --burn_in {config.burn_in}")
    used = artefacts.Inputs({
        "agent": config.agent, "rollouts": config.rollouts, "behaviours": config.behaviours,
        "hidden_states": config.hidden_states,
    })  # fmt: skip
    agent = load_agent(config.agent, device)
    memory = Recurrence.of(agent)
    if not memory.remembers:
        raise UserError(f"{config.agent} has no recurrence (feed-forward); there is no memory to analyse")
    store, _, name = open_stores(config.rollouts, None)
    if fingerprint(agent) != name:
        raise UserError(f"{config.rollouts} is of agent {name}, --agent {config.agent} is {fingerprint(agent)}")
    basis = None if config.hidden_states is None else load_basis(config.hidden_states, config.basis_kind, name)
    if config.behaviours is not None:
        check_made_from(config.behaviours, "rollouts", config.rollouts)
    with store:
        centre_of = {} if config.behaviours is None else centres(config.behaviours)
        chosen = drawn(store, 0, config.most_states, config.seed, (e for e, _ in centre_of.values()))
        recorded = read(memory, agent, store, chosen.episodes)
        if config.behaviours is None:
            inputs = typical(recorded, config.inputs, config.seed)
        else:
            inputs = of_behaviours(recorded, centre_of)
        with artefacts.new_run(config.out, STAGE, config, used, overwrite=config.overwrite) as run:
            result = analyse(memory, recorded, inputs, config, basis)
            chosen.say(result, "rollouts")
            for row in result.tables["points"]:
                row["action"] = agent.spec.in_words(row["action"])
            result.save(run.path)
            with run.figures():
                draw(result, store, run.path, config.slow_steps)
            run.facts = {"agent": name}
            run.metrics |= result.scalars
    print(summary(result, config.settle, config.out))


if __name__ == "__main__":
    cli.run(DynamicsConfig, main, STAGE)
