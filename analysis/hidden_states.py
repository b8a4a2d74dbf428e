"""Directions and clusters of the agent's hidden state: ``python -m analysis.hidden_states --rollouts runs/rollouts``.

Directions are fitted on real states; simulated ones (--samples) are only projected, so that no
direction is an artefact of the simulator.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.hidden_states", file=sys.stderr)
    sys.exit(2)

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from threadpoolctl import threadpool_limits

from agents.load import load_agent
from analysis.shared import sources
from analysis.states import fit as states_fit, runs
from analysis.states.fit import check
from analysis.states.heads import head_weights
from analysis.states.pooled import FitOptions, join, pool
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.directions import Basis, bases_of, fingerprint, load_basis

STAGE = "hidden_states"


@dataclass(frozen=True, kw_only=True)
class HiddenStatesConfig:
    """Fit directions of the agent's hidden state and draw them."""

    action: tyro.conf.Positional[Literal["both", "precompute", "plot"]] = "both"
    """precompute writes bases and arrays, plot draws those of --hidden_states into --out, both does both at once"""
    rollouts: Path | None = Path("runs/rollouts")
    """real rollouts to fit on (precompute, both)"""
    samples: Path | None = None
    """simulated rollouts to project too"""
    agent: Path | None = None
    """the agent, for the weights of its policy and value heads in the directions"""
    hidden_states: Path | None = None
    """run directory to draw (plot)"""
    out: Path = Path("runs/hidden_states")
    """run directory to write"""
    fit: FitOptions = field(default_factory=FitOptions)
    seed: int = 0
    """seed of restarts, bootstraps, clusters and the map"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def _load_agent(path: Path | None, agent: str, where: Path) -> Any:
    if path is None:
        return None
    loaded = load_agent(path)
    if fingerprint(loaded) != agent:
        raise UserError(f"{where} is of agent {agent}, --agent {path} is {fingerprint(loaded)}")
    return loaded


def _add_heads(result: Result, agent: Any, bases: Mapping[str, Basis]) -> None:
    """``head_weights`` in the independent components, ``head_weights_KIND`` in every other basis."""
    if agent is None:
        return
    for kind, basis in bases.items():
        result.arrays["head_weights" if kind == "ica" else f"head_weights_{kind}"] = head_weights(agent, basis)
    result.notes["action_names"] = list(agent.spec.action_names)


def _plot(config: HiddenStatesConfig) -> None:
    inputs = artefacts.Inputs({"hidden_states": config.hidden_states, "agent": config.agent})
    result = runs.load_drawn(config.hidden_states, STAGE)
    source = config.hidden_states
    assert source is not None
    agent = _load_agent(config.agent, result.notes["agent"], source)
    _add_heads(result, agent, {k: load_basis(source, k, result.notes["agent"]) for k in bases_of(source)})
    runs.plot(config, STAGE, inputs, result)


def main(config: HiddenStatesConfig) -> None:
    torch.set_num_threads(config.threads)
    check(config.fit)
    if config.action == "plot":
        _plot(config)
        return
    if config.rollouts is None:
        raise UserError("--rollouts DIR is needed (real rollouts, written by record.py)")
    runs.refuse(STAGE, config.hidden_states)
    inputs = artefacts.Inputs({"rollouts": config.rollouts, "samples": config.samples, "agent": config.agent})
    real, simulated, name = sources.open_stores(config.rollouts, config.samples)
    agent = _load_agent(config.agent, name, config.rollouts)
    stores = [real] if simulated is None else [real, simulated]
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        pooled = join([pool(s, "h", config.fit, real, seed=config.seed) for s in stores])
        with threadpool_limits(config.threads):  # scikit-learn's own OpenMP does not hear torch.set_num_threads
            result, bases = states_fit.fit(pooled, "h", name, config.fit, config.seed)
        result.notes |= {"agent": name, **runs.said_of_actions(real.spec)}
        _add_heads(result, agent, bases)
        runs.save(run, result, bases, {"agent": name}, config.action == "both")
    print(runs.summary(result, bases, config.out))


if __name__ == "__main__":
    cli.run(HiddenStatesConfig, main, STAGE, shared=True)
