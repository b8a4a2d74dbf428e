"""How alike agents see and remember: ``python -m analysis.similarity --agents runs/a runs/b --rollouts runs/rollouts``.

Every agent is shown the same recorded frames and keeps its own memory of them; then pairs are compared by linear CKA
(Kornblith et al. 2019, arXiv:1905.00414: 1 is the same up to rotation and scale; here without its bias, so that it is 0
on average where nothing is alike) and by how much of one agent's states
a linear map from the other's predicts on episodes it was not fitted on.  Both are high for agents that have learned
nothing, since all see the same frames: read them beside the same agent with its weights shuffled, and beside episodes
exchanged between the two, which leaves only time in the episode in common.

And what they would do there: how often both find the same choice likeliest, and how far apart their probabilities are
(choices.csv).  Policies of Neural MMO are compared on a recording of either::

    python -m analysis.similarity --agents runs/policies/hybrid runs/policies/takeru --rollouts runs/activations
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m analysis.similarity", file=sys.stderr)
    sys.exit(2)

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from analysis.shared.agents import load
from analysis.shared.randomised import has_weights, randomised
from analysis.shared.units import groups_of
from analysis.similarity.comparison import FOLDS, SHUFFLED, assemble, choices, compare, layers_of, states
from analysis.similarity.figures import draw
from core import artefacts, config as cli
from core.contracts import Agent, UserError
from core.directions import fingerprint
from core.episodes import RolloutStore
from core.stats import few
from core.words import counted, plural

STAGE = "similarity"
EXTRACTION = "extract_activations"  # lives in Neural MMO, real as well
PRINTED = 20  # pairs


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig:
    """Compare agents, or the checkpoints of one, on the same frames."""

    agents: tuple[Path, ...] = (Path("runs/agent"),)
    """agent run directories, of one game"""
    checkpoints: bool = False
    """compare all saved checkpoints of each agent too"""
    rollouts: Path = Path("runs/rollouts")
    """real rollouts whose frames all are shown (of any agent), or an extraction of lives in Neural MMO"""
    out: Path = Path("runs/similarity")
    """run directory to write"""
    episodes: int = 64
    """at most so many episodes, the first of --rollouts"""
    first_step: int = 1
    """earlier steps are left out: step 0 is all initial state"""
    exchanges: int = 20
    """permutations of episodes, for the null distribution"""
    resamples: int = 200
    """bootstrap resamples of whole episodes"""
    seed: int = 0
    """seed of shuffled weights, exchanges, folds and intervals"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""


def units_of(store: RolloutStore, episodes: Sequence[int]) -> tuple[str, np.ndarray]:
    """(what is held out, exchanged and left out whole, its number [episodes of the store]): the worlds of lives that
    share some, where there are enough of them, else every episode."""
    groups = groups_of(store)
    worlds = len(np.unique(groups["world"][list(episodes)])) if "world" in groups else len(episodes)
    if worlds == len(episodes):
        return "episode", groups["life"]
    if worlds >= FOLDS:
        return "world", groups["world"]
    print(f"note: {counted(len(episodes), 'life')} of {counted(worlds, 'world')} are taken for independent: what is "
          f"alike may be their world; record at least {FOLDS} worlds", file=sys.stderr)  # fmt: skip
    return "life", groups["life"]


def main(config: SimilarityConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, exchanges=config.exchanges, threads=config.threads)
    cli.require(0, first_step=config.first_step, seed=config.seed)
    cli.require(FOLDS, episodes=config.episodes)
    cli.require(99, resamples=config.resamples)
    inputs = artefacts.Inputs({
        **{f"agent_{i}": path for i, path in enumerate(config.agents)}, "rollouts": config.rollouts
    })  # fmt: skip
    agents = load(config.agents, config.checkpoints, device)
    learned = {name: agent for name, agent in agents.items() if has_weights(agent)}
    if len(agents) == 1 and not learned:
        raise UserError(f"{config.agents[0]} has no weights to shuffle, so there is nothing to compare it with: give "
                        "another agent, too")  # fmt: skip
    with RolloutStore(config.rollouts) as store:
        if store.manifest["facts"].get("source") != "real" and store.manifest["stage"] != EXTRACTION:
            raise UserError(f"{config.rollouts} are simulated; --rollouts takes real ones (record.py)")
        for name, agent in agents.items():
            if dict(agent.spec.obs) != dict(store.spec.obs):
                raise UserError(f"{name} does not read the observations of {config.rollouts}; compare agents of the "
                                "same world, that see the same of it")  # fmt: skip
            if agent.spec.action_names != store.spec.action_names:
                raise UserError(f"{name} does not have the actions of {config.rollouts}, so choices cannot be compared")
        usable = [e for e in range(len(store)) if min(store.steps[e], store.rows[e]) > config.first_step]
        episodes = usable[: config.episodes]
        if len(episodes) < FOLDS:
            raise UserError(
                f"{config.rollouts} has {len(episodes)} episodes of more than {config.first_step} steps; at least "
                f"{FOLDS} are needed: record more"
            )
        unit, unit_E = units_of(store, episodes)
        episodes = sorted(episodes, key=lambda e: unit_E[e])  # those of a unit beside each other
        _, index_N2 = store.pooled("value", episodes=episodes, first=config.first_step)
        unit_N = unit_E[index_N2[:, 0]]
        everyone: dict[str, Agent] = agents | {n + SHUFFLED: randomised(a, config.seed) for n, a in learned.items()}
        layers = layers_of(agents.values())
        seen = {n: states(a, store, episodes, config.first_step, layers) for n, a in everyone.items()}
    names = list(agents)
    spec = agents[names[0]].spec
    parts = dict(spec.action_parts) or {"action": spec.n_actions}
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]] + [(a, a + SHUFFLED) for a in learned]
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        with threadpool_limits(config.threads):
            rows = compare(
                seen, pairs, unit_N,
                exchanges=config.exchanges, resamples=config.resamples, seed=config.seed,
            )  # fmt: skip
        between = pairs[: len(pairs) - len(learned)]
        chosen = choices(seen, between, parts, unit_N, resamples=config.resamples, seed=config.seed)
        result = assemble(names, rows, chosen)
        result.notes["unit"] = unit
        result.save(run.path)
        with run.figures():
            draw(result).savefig(run.path / "similarity.png", dpi=110)
        run.facts = {"agents": {n: fingerprint(a) for n, a in agents.items()}}
    compared = counted(len(agents), "agent")
    print(f"{compared} on the same {len(unit_N):,} frames of {len(episodes)} episodes: {config.out}")
    shown = [row for row in rows if row["layer"] == "h"]
    for row in shown[:PRINTED]:
        print(
            f"  {row['a']} ~ {row['b']}: CKA {row['cka']:.2f} [{row['cka_low']:.2f}, {row['cka_high']:.2f}]"
            f"{few(row['n'])} ({plural(unit)} exchanged {row['exchanged']:.2f}); "
            f"R2 {row['r2_b_from_a']:.2f} and {row['r2_a_from_b']:.2f}"
        )
    for row in [row for row in chosen if row["steps"]][:PRINTED]:
        print(
            f"  {row['a']} and {row['b']}, {row['part']}: the same likeliest choice at {row['same']:.0%} "
            f"[{row['same_low']:.0%}, {row['same_high']:.0%}] of {row['steps']:,} steps with a choice{few(row['n'])}; "
            f"KL {row['kl']:.2g} nats"
        )
    if len(shown) > PRINTED:
        print(f"  ... {len(shown) - PRINTED} more in pairs.csv")


if __name__ == "__main__":
    cli.run(SimilarityConfig, main, STAGE)
