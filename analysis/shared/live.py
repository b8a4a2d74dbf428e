"""What a stage is asked that plays a trained agent on in the real game (Procgen)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from agents.load import load_agent
from core.contracts import Agent, EnvSpec, UserError
from core.directions import fingerprint
from core.roll import Simulator
from envs.procgen import ProcgenEnv
from envs.registry import held_out_pool, make


@dataclass(frozen=True, kw_only=True)
class LiveConfig:
    """An agent, the levels that it plays, and the machine."""

    agent: Path = Path("runs/agent")
    """run directory of the agent"""
    start_level: int = 700_000_000
    """first level of the pool"""
    num_levels: int = 100_000
    """size of the pool"""
    greedy: bool = False
    """the agent takes its most likely action; default: it samples, with the same noise wherever runs are compared"""
    seed: int = 0
    """seed of levels, starts, action noise and whatever else is drawn"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier run in --out"""

    def studied(self, simulator: Simulator[Any] | None, device: torch.device) -> Agent:
        """The agent; a simulator's is the one that it is around.  UserError where --agent names another."""
        if simulator is not None and self.agent == LiveConfig.agent:
            return simulator.agent
        agent = load_agent(self.agent, device)
        if simulator is not None and (own := fingerprint(simulator.agent)) != fingerprint(agent):
            raise UserError(
                f"--agent {self.agent} is {fingerprint(agent)}, and --simulator is around {own}: leave out --agent"
            )
        return agent

    def worlds(self, spec: EnvSpec) -> Callable[[int], ProcgenEnv]:
        """Makes the agent's game on levels of the pool, with so many slots.  UserError where it is not Procgen's."""
        if not spec.env_id.startswith("procgen/"):
            raise UserError(f"edits are of Procgen's states; this agent's world is {spec.env_id}")
        pool = held_out_pool(spec, self.start_level, self.num_levels)
        return lambda slots: cast(ProcgenEnv, make(spec, slots, threads=self.threads, **pool))
