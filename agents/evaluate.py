"""Evaluate an agent on held-out levels: ``python -m agents.evaluate --agent runs/agent``; policies of Neural MMO:
``python -m agents.evaluate runs/policies pve`` (agents/nmmo_evaluate.py)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from agents.play import Chooser, Exploration, play
from agents.recurrent import load_agent
from core import artefacts, config as cli
from core.contracts import Agent, UserError, VecEnv
from core.directions import fingerprint
from core.progress import bar
from core.stats import bootstrap_mean
from envs.registry import make

STAGE = "evaluate"
HELD_OUT_LEVEL = 500_000_000  # far from any training pool


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Mean return of an agent over whole episodes on levels it was not trained on.

    Policies of Neural MMO: ``python -m agents.evaluate DIR pve|pvp --help``.
    """

    agent: Path
    """run directory of the agent"""
    out: Path = Path("runs/evaluation")
    """run directory to write"""
    episodes: int = 512
    """whole episodes; every slot gives the same number"""
    slots: int = 64
    """environments side by side"""
    start_level: int = HELD_OUT_LEVEL
    """first level of the evaluation pool"""
    num_levels: int = 100_000
    """size of the evaluation pool"""
    greedy: bool = False
    """take the most likely action instead of sampling"""
    seed: int = 0
    """seed of levels and action noise"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier evaluation in --out"""


def episode_returns(
    agent: Agent, env: VecEnv, episodes: int, *, seed: int, device: torch.device, greedy: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(return, length) of ``ceil(episodes / slots)`` whole episodes from every slot."""
    slots = env.spec.slots
    chooser = Chooser(Exploration(greedy=greedy), slots, np.random.default_rng(seed))
    quota_B = np.full(slots, -(-episodes // slots))
    score_B, length_B = np.zeros(slots), np.zeros(slots, np.int64)
    returns, lengths = [], []
    with bar("evaluating", int(quota_B.sum()), "episodes") as progress:
        for moment in play(agent, env, chooser, seed=seed, device=device):
            score_B += moment.next.reward
            length_B += 1
            done_B = moment.next.terminated | moment.next.truncated
            for b in np.flatnonzero(done_B & (quota_B > 0)):
                returns.append(float(score_B[b]))
                lengths.append(int(length_B[b]))
                quota_B[b] -= 1
                progress.advance()
            score_B[done_B], length_B[done_B] = 0, 0
            if not quota_B.any():
                break
    return np.array(returns), np.array(lengths)


def main(config: EvaluateConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, episodes=config.episodes, slots=config.slots)
    cli.require(0, seed=config.seed)
    agent = load_agent(config.agent, device)
    trained = agent.spec.options
    low, high = trained.get("start_level", 0), trained.get("start_level", 0) + trained.get("num_levels", 0)
    if trained.get("num_levels") and config.start_level < high and config.start_level + config.num_levels > low:
        raise UserError(f"levels {config.start_level}... overlap the training levels {low} to {high - 1}")
    env = make(
        agent.spec, config.slots, threads=config.threads, start_level=config.start_level, num_levels=config.num_levels
    )
    with artefacts.new_run(config.out, STAGE, config, {"agent": config.agent}, overwrite=config.overwrite) as run:
        returns, lengths = episode_returns(
            agent, env, config.episodes, seed=config.seed, device=device, greedy=config.greedy
        )
        rng = np.random.default_rng(config.seed)
        estimate = bootstrap_mean(returns, np.arange(len(returns)), rng=rng)
        result = artefacts.Result(arrays={"returns": returns, "lengths": lengths})
        result.scalar("return_mean", estimate.value, "return", estimate.n, estimate.interval)
        result.scalar("length_mean", float(lengths.mean()), "steps", len(lengths))
        result.save(run.path)
        run.facts, run.metrics = {"agent": fingerprint(agent)}, dict(result.scalars)
    env.close()
    print(
        f"held-out return {estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}] "
        f"over {estimate.n} episodes, mean length {lengths.mean():.0f}: {config.out}"
    )


def choose(argv: list[str]) -> None:
    """``DIR pve|pvp ...`` evaluates policies of Neural MMO (agents/nmmo_evaluate.py), flags alone a Procgen agent."""
    if argv and not argv[0].startswith("-"):
        from agents import nmmo_evaluate

        cli.run(nmmo_evaluate.NmmoEvaluateConfig, nmmo_evaluate.main, nmmo_evaluate.STAGE, argv)
    else:
        cli.run(EvaluateConfig, main, STAGE, argv)


if __name__ == "__main__":
    choose(sys.argv[1:])
