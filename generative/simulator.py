"""A world of a trained kind around its agent, and how both are kept in a run directory.

``load_simulator`` gives both (core.roll.Simulator).  The kinds: generative.vector, generative.grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agents.load import load_agent
from agents.recurrent import AgentConfig, RecurrentAgent
from core.artefacts import (
    BESIDE,
    MANIFEST,
    WEIGHTS,
    load_bytes,
    load_json,
    load_weights,
    read_manifest,
    save_weights,
    sha256,
    write_atomically,
    write_json,
)
from core.config import from_json, to_json
from core.contracts import Agent, EnvSpec, UserError
from core.directions import fingerprint
from core.roll import Moment, Simulator, Trajectory, act, trajectory_of
from core.trees import Tree, flatten, unflatten
from envs.registry import renewed
from generative.context import ContextWorld
from generative.grid import GridWorld
from generative.recurrent_world import RSSMWorld
from generative.residual import ResidualWorld
from generative.rssm import ModelConfig
from generative.vector import VectorWorld

TrainedWorld = RSSMWorld | ContextWorld
KINDS: Mapping[str, type[VectorWorld] | type[GridWorld] | type[ContextWorld]] = {
    "vector": VectorWorld,
    "residual": ResidualWorld,
    "grid": GridWorld,
    "context": ContextWorld,
}  # by ModelConfig.layout
REWARD_UNIT = "reward_unit"  # in simulator.json, where it is not 1
AGENT = "agent"  # folder of a simulator's run directory with that of its agent, where this is not a RecurrentAgent


@dataclass(frozen=True)
class TrainedMemory:
    """What a trained world remembers of its own agent's state, to core.contracts.Memory."""

    world: TrainedWorld
    agent: Agent

    def __call__(self, z_BZ: Tensor) -> Tree:
        return unflatten(self.world.memory(z_BZ), self.agent.initial(1))


def simulator_of(config: ModelConfig, agent: Agent) -> Simulator[TrainedWorld]:
    """A new simulator around an agent of any kind; its parameters are the world's.  UserError for an observation that
    cannot be simulated.

    The memory of a RecurrentAgent, a state in (-1, 1), is bounded; any other's state is read from the latent linearly.
    """
    memory_size = flatten(agent.initial(1)).shape[1]
    world = KINDS[config.layout](config, agent.spec, memory_size, bounded=type(agent) is RecurrentAgent)
    return Simulator(agent, world, TrainedMemory(world, agent))


def teacher_forced(
    simulator: Simulator[Any], obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor
) -> Trajectory:
    """A simulation that is shown every recorded frame, of a world that can be (its ``along``; see ``RSSMWorld``); row i
    is simulated step i.  The agent follows what the world shows.
    """
    agent, world = simulator.agent, simulator.world
    z, _ = world.infer({k: v[:, : world.initial_frames] for k, v in obs.items()})
    state, not_first = simulator.remembered(z), torch.zeros_like(seen_BL[:, 0])
    moments = []
    for i, shown in enumerate(world.along(obs, action_BL, seen_BL)):
        t_B = torch.full_like(seen_BL[:, i], i, dtype=torch.int64)
        acted = act(agent, shown.obs, state, not_first, t_B)
        state, action = acted.state, action_BL[:, i]
        moments.append(Moment(t_B, (), shown, acted, action, acted.logits_BA, seen_BL[:, i]))
    return trajectory_of(moments)


def require_finite(simulated: Trajectory | Mapping[str, Tensor]) -> None:
    """UserError naming the first of a simulator's outputs that has NaN or infinite values.

    Of a rollout, while it lasts: the observation of every step that exists, the transition from it, and what the agent
    makes of it.
    """
    parts = simulated if isinstance(simulated, Mapping) else _while_alive(simulated)
    for name, x in parts.items():
        if not torch.isfinite(x).all():
            raise UserError(
                f"the simulator makes NaN or infinite values ({name}): its weights are broken or it runs away; "
                "train it again, or use another one"
            )


def _while_alive(out: Trajectory) -> dict[str, Tensor]:
    alive = out.alive
    states = {**out.obs, "world states": out.d, "hidden states": out.h, "logits": out.logits, "values": out.value}
    # An ending that is no number ends a rollout too, so that it is asked of every step there is.
    parts = {k: x[alive] for k, x in states.items()}
    return parts | {"rewards": out.reward[alive[:, :-1]], "chances of ending": out.terminal[alive[:, :-1]]}


def save_simulator(
    simulator: Simulator[TrainedWorld],
    path: Path,
    name: str = WEIGHTS,
    half: bool = False,
    agent_run: Path | None = None,
    beside: bool = False,
) -> None:
    """Weights (the agent's among them) and what is needed to build the simulator again.

    half: store the world's weights, not the statistics of its observations, as float16, and the agent's where they lose
    nothing by it; they are loaded as float32.
    agent_run: the agent's run directory, which is kept along unless it is a RecurrentAgent.
    beside: the agent is not kept a second time, as its run directory lies beside ``path``, under the name "agent".
    """
    agent = simulator.agent
    about: dict[str, Any] = {"model": to_json(simulator.world.config), "spec": simulator.world.spec.to_json()}
    about |= {REWARD_UNIT: simulator.world.reward_unit} if simulator.world.reward_unit != 1 else {}
    if beside:
        about[BESIDE] = fingerprint(agent)
    elif type(agent) is RecurrentAgent:  # a class made of it is another agent
        about["net"] = to_json(agent.config)
    elif agent_run is None:
        raise ValueError(f"a simulator around a {type(agent).__name__} is saved with its agent's run directory")
    else:
        about[AGENT] = copy_run(agent_run, path / AGENT)
    write_json(path / "simulator.json", about)
    learned = {k for k, _ in simulator.world.named_parameters()}
    saved = as_module(simulator, with_agent=not beside)
    save_weights(saved, path / name, half=learned.__contains__ if half else None, small=half)


def copy_run(source: Path, target: Path) -> str:
    """Copy a whole run directory, all that its manifest names; the SHA-256 of the manifest.  Raises UserError."""
    known = sha256(source / MANIFEST) if (source / MANIFEST).exists() else ""
    if (target / MANIFEST).exists() and sha256(target / MANIFEST) == known:
        return known
    for name in read_manifest(source)["files"]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target / name, load_bytes(source, name))
    write_atomically(target / MANIFEST, (source / MANIFEST).read_bytes())
    return known


def as_module(simulator: Simulator[TrainedWorld], with_agent: bool = True) -> nn.Module:
    """World and agent as one module, whose names the weights on disk have: the agent's begin with ``agent.``."""
    both = nn.Module()
    agent: Any = simulator.agent
    if with_agent:
        both.add_module("agent", agent)
    for name, part in simulator.world.named_children():
        both.add_module(name, part)
    return both


def load_simulator(path: Path, device: torch.device | str = "cpu", name: str = WEIGHTS) -> Simulator[TrainedWorld]:
    """The simulator of a run directory, frozen, in eval mode.  UserError if half-written or misfitting."""
    path = Path(path)
    manifest = read_manifest(path)
    if "simulator.json" not in manifest["files"]:
        raise UserError(f"{path} holds no simulator (stage {manifest['stage']!r} wrote it)")
    about = load_json(path, "simulator.json")
    if (
        not isinstance(about, dict)
        or not {"model", "spec"} <= about.keys()
        or not {"net", AGENT, BESIDE} & about.keys()
    ):
        raise UserError(f"{path / 'simulator.json'} is not the description of a simulator; copy or train it again")
    agent = _agent_of(path, about)
    simulator = simulator_of(from_json(ModelConfig, about["model"]), agent)
    simulator.world.reward_unit = float(about.get(REWARD_UNIT, 1))
    load_weights(as_module(simulator, with_agent=BESIDE not in about), path, name)
    as_module(simulator).to(device).eval().requires_grad_(False)
    return simulator


def _agent_of(path: Path, about: Mapping[str, Any]) -> Agent:
    """The agent of the simulator in ``path``; its weights are among the simulator's (``net``), or in its own run
    directory, beside the simulator's or in it.  UserError if that is another one."""
    if "net" in about:
        return RecurrentAgent(from_json(AgentConfig, about["net"]), renewed(EnvSpec.from_json(about["spec"])))
    if BESIDE in about:
        where = path.resolve().parent / AGENT
        if not (where / MANIFEST).exists():
            raise UserError(f"{path} is a part of a bundle whose agent is not in {where}; copy the whole bundle")
        agent = load_agent(where)
        if fingerprint(agent) == about[BESIDE]:
            return agent
    else:
        where = path / AGENT
        read_manifest(where)
        if sha256(where / MANIFEST) == about[AGENT]:
            return load_agent(where)
    raise UserError(f"{where} is not the agent that this simulator was trained around; copy it again")
