"""World models of users' own: a module with ``make_world``, its weights, and the agent that is studied in it.

A user's module has one function, ``make_world(spec) -> torch.nn.Module``; what it returns keeps core.contracts.World
and Inference, and may have ``memory(z) -> the agent's state`` (core.contracts.Memory).  docs/bring-your-own.md has a
complete one.  The run directory holds the agent's, too, so that it is a whole simulator.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from agents.adopted import world_source
from agents.load import load_agent
from core.artefacts import (
    MANIFEST,
    OWN_WORLD,
    WEIGHTS,
    load_json,
    load_weights,
    read_manifest,
    save_weights,
    sha256,
    write_atomically,
    write_json,
)
from core.contracts import EnvSpec, UserError
from core.plugins import Source, copied_source, made
from core.roll import Simulator
from generative.simulator import AGENT, copy_run

DESCRIPTION = OWN_WORLD
SOURCE = "world_model_module.py"  # the copy of the user's module in the run directory
PARTS = ("latent_size", "initial_frames", "infer", "normalise", "observe", "start", "step", "draw_noise")


def build(module: ModuleType, source: Source, spec: EnvSpec) -> Any:
    """What a user's ``make_world`` makes for a world, in eval mode, frozen.  Raises UserError."""
    return made(module, "world", source, spec, PARTS)


def simulator_in(world: Any, agent: Any) -> Simulator[Any]:
    """The agent in the world, with the memory that the world gives it, if it does."""
    return Simulator(agent, world, getattr(world, "memory", None))


def save_adopted(world: Any, source: Source, path: Path, agent_run: Path) -> None:
    """Weights, the module and the agent's whole run directory."""
    write_atomically(path / SOURCE, source.text)
    about = {"module": source.name, "source_sha256": source.sha256, "spec": world.spec.to_json()}
    write_json(path / DESCRIPTION, {**about, AGENT: copy_run(agent_run, path / AGENT)})
    save_weights(world, path / WEIGHTS)


def load_adopted(path: Path, device: torch.device | str = "cpu") -> Simulator[Any]:
    """The simulator of a run directory, frozen, in eval mode.

    UserError if it is half-written, if one of its files is not the one that was written, or if nobody agreed on this
    machine to run the modules in it.
    """
    data = load_json(path, DESCRIPTION)
    if not isinstance(data, dict) or not {"module", "source_sha256", "spec", AGENT} <= data.keys():
        raise UserError(f"{path / DESCRIPTION} is not the description of an adopted world; copy or adopt it again")
    read_manifest(path / AGENT)
    if sha256(path / AGENT / MANIFEST) != data[AGENT]:
        raise UserError(f"{path / AGENT} is not the agent that this simulator was adopted with; copy it again")
    agent = load_agent(path / AGENT, device)
    world_source(agent.spec)
    source = copied_source(path, SOURCE, str(data["module"]), str(data["source_sha256"]))
    world = build(source.run(("make_world",)), source, agent.spec)
    load_weights(world, path, WEIGHTS)
    return simulator_in(world.to(device), agent)
