"""Saliency tried in the real world: ``python -m validation.saliency_trial --agent DIR --simulator DIR``.

Each object in view is removed from the real game, and what that changes is compared with what saliency says of its
pixels: which method finds what truly matters, at once and some steps on.  Words and verdicts: scores.py.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python -m validation.saliency_trial", file=sys.stderr)
    sys.exit(2)

from pathlib import Path
from typing import Any

import torch

from agents.load import load_agent
from analysis.shared.randomised import has_weights
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import fingerprint
from core.stats import ALPHA, in_text, require_permutations
from envs.registry import held_out_pool, make
from generative.load import load_simulator
from validation.interventions.verdicts import NO, OPEN, YES
from validation.saliency_trial.config import SaliencyTrialConfig
from validation.saliency_trial.figures import draw_examples, draw_scores, estimate_of, headline
from validation.saliency_trial.trial import trial

STAGE = "saliency_trial"


def check(config: SaliencyTrialConfig) -> None:
    """UserError for settings that mean nothing."""
    cli.require(1, horizon=config.horizon, draws=config.draws, latest_start=config.latest_start, boxes=config.boxes,
                world_draws=config.world_draws, shuffles=config.shuffles, batch_size=config.batch_size)  # fmt: skip
    cli.require(2, objects=config.objects)
    cli.require(0, seed=config.seed, integrated_steps=config.integrated_steps,
                world_integrated_steps=config.world_integrated_steps)  # fmt: skip
    if not config.methods:
        raise UserError("--methods is empty; name at least one of gradient, deeplift, occlusion")
    if config.world_draws > config.draws:
        raise UserError(f"--world_draws {config.world_draws} is more than --draws {config.draws}")
    if not 0 < config.smallest < 1:
        raise UserError(f"--smallest must lie between 0 and 1, not {config.smallest:g}")
    require_permutations(config.starts, ALPHA)


def main(config: SaliencyTrialConfig) -> None:
    check(config)
    torch.set_num_threads(config.threads)
    device = cli.device_of(config.device)
    inputs = artefacts.Inputs({"agent": config.agent, "simulator": config.simulator})
    agent = load_agent(config.agent, device)
    spec, name = agent.spec, fingerprint(agent)
    if not spec.env_id.startswith("procgen/"):
        raise UserError(f"objects are removed from Procgen's games alone; this agent's world is {spec.env_id}")
    if spec.options.get("use_generated_assets"):
        raise UserError(
            "a world of generated assets (use_generated_assets) cannot be saved, nor objects removed from it"
        )
    if not has_weights(agent):
        raise UserError("an agent of rules has no weights to shuffle, which saliency is compared with")
    facts = {"agent": name}
    simulator: Any = None
    if config.simulator is not None:
        simulator = load_simulator(config.simulator, device)
        if fingerprint(simulator.agent) != name:
            raise UserError(f"the simulator {config.simulator} was trained around another agent than {config.agent}")
        facts["simulator"] = fingerprint(simulator)
        if config.latest_start < simulator.world.initial_frames - 1:
            raise UserError(f"--latest_start {config.latest_start} is too early: the simulator needs "
                            f"{simulator.world.initial_frames} frames")  # fmt: skip
    pool = held_out_pool(spec, config.start_level, config.num_levels)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        result = trial(
            agent, simulator, lambda slots: make(spec, slots, threads=config.threads, **pool), config, device
        )
        for row in headline(result):
            if row["kind"] == "method":
                label = f"rank_{row['quantity']}_{row['label']}".replace(" ", "_").replace(",", "")
                e = estimate_of(row, "rank")
                result.scalar(label, e.value, "rank correlation", e.n, e.interval)
        result.save(run.path)
        with run.figures():
            for file, figure in (("scores.png", draw_scores(result)), ("examples.png", draw_examples(result))):
                figure.savefig(run.path / file, dpi=110, metadata={"Software": None})
        run.metrics = dict(result.scalars)
        run.facts = facts
    summarise(result, config.out)


def summarise(result: artefacts.Result, out: Path) -> None:
    """The headline in a few lines."""
    notes = result.notes
    print(f"{notes['objects']} objects of {notes['starts']} starts removed, one by one; an unedited twin differs by at "
          f"most {notes['twin']:.2g}: {out}")  # fmt: skip
    rows = headline(result)
    for q in dict.fromkeys(row["quantity"] for row in rows):
        mine = [row for row in rows if row["quantity"] == q]
        by = {said: [r for r in mine if r.get("finds") == said] for said in (YES, NO, OPEN)}
        found = "; ".join(f"{r['label']}, rank {in_text(estimate_of(r, 'rank'), '.2f')}" for r in by[YES])
        print(f"  {q}: found by {found or 'no method'} (no: {len(by[NO])}, open: {len(by[OPEN])})")


if __name__ == "__main__":
    cli.run(SaliencyTrialConfig, main, STAGE)
