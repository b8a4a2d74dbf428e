"""Evaluate an agent on held-out levels: ``python -m agents.evaluate --agent runs/agent``; policies of Neural MMO:
``python -m agents.evaluate runs/policies pve`` (agents/nmmo_evaluate.py)."""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m agents.evaluate", file=sys.stderr)
    sys.exit(2)

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.consistency import alter
from agents.load import load_agent
from agents.play import Chooser, Exploration, Moment, likeliest, play, tensors
from core import artefacts, config as cli
from core.contracts import Agent, EnvSpec, UserError, VecEnv
from core.directions import fingerprint
from core.progress import bar
from core.roll import act
from core.stats import Estimate, bootstrap_mean, in_text, share_of
from core.training import held_out_columns, rng_states, set_rng_states
from core.trees import Tree, rows_of
from envs.procgen import HELD_OUT
from envs.registry import held_out_facts, make

STAGE = "evaluate"
ENDLESS = 100_000  # steps after which an episode is not waited for any more
STATES_EVERY = 8  # steps between the states of an episode in which --robustness asks the agent again
ALTERATIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "shift_horizontal": ({"right": 1}, {"right": -1}),
    "shift_vertical": ({"down": 1}, {"down": -1}),
    "blur": ({"blur": 1.0},),
}  # of a frame, by agents.consistency.alter: what --robustness measures, the mean of several


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Mean return of an agent over whole episodes on levels it was not trained on.

    Policies of Neural MMO: ``python -m agents.evaluate DIR pve|pvp --help``.
    """

    agent: Path = Path("runs/agent")
    """run directory of the agent"""
    out: Path = Path("runs/evaluation")
    """run directory to write"""
    episodes: int = 512
    """whole episodes; every slot gives the same number"""
    slots: int = 64
    """environments side by side; of fewer --episodes as many as these"""
    start_level: int | None = None
    """first level of the evaluation pool; none: the world's held-out starts (Procgen: from 500,000,000 on)"""
    num_levels: int | None = None
    """size of the evaluation pool; none: 100,000"""
    greedy: bool = False
    """take the most likely action instead of sampling"""
    robustness: bool = False
    """also measure how often the likeliest action stays when the frame is shifted by a pixel or blurred 3 x 3"""
    seed: int = 0
    """seed of levels and action noise"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier evaluation in --out"""


@dataclass(frozen=True)
class Episodes:
    """What happened in E whole episodes, in the order they ended, and in N of their states."""

    return_E: np.ndarray
    length_E: np.ndarray
    episode_N: np.ndarray  # which episode a state is of (any numbering)
    same_N: dict[str, np.ndarray]  # by alteration: share of its variants that leave the likeliest action, [N]


def require_ends(spec: EnvSpec, length_B: np.ndarray, asked_B: np.ndarray) -> None:
    """UserError where episodes that are waited for go on and on: whole ones may never come."""
    if asked_B.any() and length_B[asked_B].min() >= ENDLESS:
        raise UserError(
            f"{spec.env_id}: no episode that is still to come has ended within {ENDLESS:,} steps, and whole ones are "
            "waited for; give the world a time limit (truncated), or record so many steps (record.py --num_steps)"
        )


def whole_episodes(
    agent: Agent,
    env: VecEnv,
    episodes: int,
    *,
    seed: int,
    device: torch.device,
    greedy: bool = False,
    robustness: bool = False,
    show: bool = True,
) -> Episodes:
    """``ceil(episodes / slots)`` whole episodes from every slot; states only with ``robustness``; show: a bar."""
    slots = env.spec.slots
    chooser = Chooser(Exploration(greedy=greedy), slots, np.random.default_rng(seed), agent.spec.parts)
    each = -(-episodes // slots)
    quota_B = np.full(slots, each)
    score_B, length_B = np.zeros(slots), np.zeros(slots, np.int64)
    returns, lengths = [], []
    states: list[np.ndarray] = []
    same: dict[str, list[np.ndarray]] = {name: [] for name in ALTERATIONS}
    before = agent.initial(slots)
    with bar("evaluating", int(quota_B.sum()), "episodes", show) as progress:
        for number, moment in enumerate(play(agent, env, chooser, seed=seed, device=device)):
            if robustness and number % STATES_EVERY == 0:
                rows = np.flatnonzero(quota_B > 0)
                states.append(rows * each + quota_B[rows])
                for name, found in same_choice(agent, moment, before, rows, device).items():
                    same[name].append(found)
            before = moment.state
            score_B += moment.next.reward
            length_B += 1
            done_B = moment.next.terminated | moment.next.truncated
            for b in np.flatnonzero(done_B & (quota_B > 0)):
                returns.append(float(score_B[b]))
                lengths.append(int(length_B[b]))
                quota_B[b] -= 1
                progress.advance()
            score_B[done_B], length_B[done_B] = 0, 0
            require_ends(env.spec, length_B, quota_B > 0)
            if not quota_B.any():
                break
    same_N = {name: np.concatenate(found) for name, found in same.items() if found}
    return Episodes(
        np.array(returns), np.array(lengths), np.concatenate(states) if states else np.zeros(0, np.int64), same_N
    )


@torch.no_grad()
def same_choice(
    agent: Agent, moment: Moment, before: Tree, rows: np.ndarray, device: torch.device
) -> dict[str, np.ndarray]:
    """Share of each alteration's variants under which the likeliest action is the one of the frame as it is, float64
    [rows]; the agent arrives with the state it had (``before``), so that only this one frame is another."""
    seen = tensors({name: frames[rows] for name, frames in moment.obs.items()}, device)
    is_first, t, some = (torch.from_numpy(x).to(device) for x in (moment.is_first_B[rows], moment.age_B[rows], rows))
    mine = rows_of(before, some)
    parts = agent.spec.parts
    chosen_BP = likeliest(moment.logits_BA[rows], parts)
    out = {}
    for name, variants in ALTERATIONS.items():
        same = np.zeros(len(rows))
        for variant in variants:
            acted = act(agent, {name: alter(x, **variant) for name, x in seen.items()}, mine, is_first, t)
            same += (likeliest(acted.logits_BA.cpu().numpy(), parts) == chosen_BP).all(-1)
        out[name] = same / len(variants)
    return out


def check_unseen(trained: Mapping[str, Any], pool: Mapping[str, int], remedy: str = "") -> None:
    """UserError if a pool of levels overlaps those of a world's options.  remedy: in place of another --start_level."""
    low, high = trained.get("start_level", 0), trained.get("start_level", 0) + trained.get("num_levels", 0)
    if trained.get("num_levels") and not pool["num_levels"]:
        raise UserError(f"--num_levels 0 is all levels, the training levels {low} to {high - 1} among them; give a "
                        "number, or leave it out")  # fmt: skip
    if trained.get("num_levels") and pool["start_level"] < high and pool["start_level"] + pool["num_levels"] > low:
        last = pool["start_level"] + pool["num_levels"] - 1
        raise UserError(f"levels {pool['start_level']} to {last} overlap the training levels {low} to {high - 1}; "
                        f"{remedy or f'choose a --start_level from {high} on, or leave it out'}")  # fmt: skip


class HeldOut:
    """Measures a learning agent's return on starts that its training does not see: the same ones, and the same noise
    of actions, every time.  The training's own random numbers stay as they are."""

    def __init__(self, agent: Agent, episodes: int, *, seed: int, device: torch.device, threads: int) -> None:
        check_unseen(agent.spec.options, HELD_OUT, "train on others, or leave out --evaluate_every")
        self.agent, self.episodes, self.seed, self.device = agent, episodes, seed, device
        self.env = make(agent.spec, min(64, episodes), threads=threads, split="held_out")

    def __call__(self) -> dict[str, float]:
        """Columns of a curve: mean return, its 95 % interval where it has one, and the number of episodes."""
        before = rng_states(self.device)
        found = whole_episodes(self.agent, self.env, self.episodes, seed=self.seed, device=self.device, show=False)
        set_rng_states(before, self.device)
        mean = mean_of_episodes(found.return_E, np.random.default_rng(self.seed))
        return held_out_columns("held_out_return", mean)


def mean_of_episodes(x_E: np.ndarray, rng: np.random.Generator) -> Estimate:
    """Mean of a number of independent episodes, such as their return.

    Where it is one of two (three or more episodes, so that some are the same), the mean is a share
    and has its interval.  Where all have the same, nothing tells how far another's would be: no interval.
    """
    levels, of_E = np.unique(x_E, return_inverse=True)
    n = len(x_E)
    if len(levels) == 1:
        return Estimate(float(levels[0]), np.nan, np.nan, n)
    if len(levels) == 2 and n > 2:
        share, step = share_of(of_E, np.arange(n)), float(levels[1] - levels[0])
        value, low, high = (float(levels[0]) + step * x for x in share[:3])
        return Estimate(value, low, high, n)
    return bootstrap_mean(x_E, np.arange(n), rng=rng)


def main(config: EvaluateConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, episodes=config.episodes, slots=config.slots)
    cli.require(0, seed=config.seed)
    inputs = artefacts.Inputs({"agent": config.agent})
    agent = load_agent(config.agent, device)
    if agent.spec.env_id == "nmmo":
        raise UserError(f"{config.agent} plays Neural MMO: python -m agents.evaluate DIR pve|pvp")
    given = {"start_level": config.start_level, "num_levels": config.num_levels}
    levels = {k: v for k, v in given.items() if v is not None}
    check_unseen(agent.spec.options, {**HELD_OUT, **levels})
    if config.robustness and len(agent.spec.pictures) < len(agent.spec.obs):
        raise UserError("--robustness alters frames; this agent sees none, or more than frames")
    slots = min(config.slots, config.episodes)
    env = make(agent.spec, slots, threads=config.threads, split="held_out", **levels)
    doubted = held_out_facts(agent.spec)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        found = whole_episodes(
            agent, env, config.episodes, seed=config.seed, device=device,
            greedy=config.greedy, robustness=config.robustness,
        )  # fmt: skip
        returns, lengths = found.return_E, found.length_E
        rng = np.random.default_rng(config.seed)
        estimate, length = mean_of_episodes(returns, rng), mean_of_episodes(lengths, rng)
        result = artefacts.Result(arrays={"returns": returns, "lengths": lengths})
        result.scalar("return_mean", estimate.value, "return", estimate.n, estimate.interval)
        result.scalar("length_mean", length.value, "steps", length.n, length.interval)
        same = {name: share_of(x, found.episode_N) for name, x in found.same_N.items()}
        for name, share in same.items():
            result.scalar(f"same_choice_{name}", share.value, "share of states", share.n, share.interval)
        if same:
            result.arrays.update({f"same_choice_{name}": x for name, x in found.same_N.items()})
            result.arrays["same_choice_episode"] = found.episode_N
        result.save(run.path)
        run.facts, run.metrics = {"agent": fingerprint(agent), **doubted}, dict(result.scalars)
    env.close()
    form = ".2f" if not estimate.value or 0.1 <= abs(estimate.value) < 1e5 else ".3g"
    print(f"held-out return {in_text(estimate, form, 'episodes')}, mean length {length.value:.0f}: {config.out}")
    for name, share in same.items():
        print(f"same choice under {name}: {in_text(share, '.3f', 'episodes')}")


def choose(argv: list[str]) -> None:
    """``DIR pve|pvp ...`` evaluates policies of Neural MMO (agents/nmmo_evaluate.py), flags alone a Procgen agent."""
    if argv and not argv[0].startswith("-"):
        from agents import nmmo_evaluate

        cli.run(nmmo_evaluate.NmmoEvaluateConfig, nmmo_evaluate.main, nmmo_evaluate.STAGE, argv)
    else:
        cli.run(EvaluateConfig, main, STAGE, argv)


if __name__ == "__main__":
    choose(sys.argv[1:])
