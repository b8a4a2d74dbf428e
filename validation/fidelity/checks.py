"""Whether rollouts belong to the simulator, are long enough, and are new to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.shared.exploration import explores, played_greedily
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import RolloutStore
from core.roll import Simulator
from generative.load import check_world
from validation.fidelity.pairing import FEWEST_EPISODES


def check_store(store: RolloutStore, simulator: Simulator[Any]) -> None:
    """UserError unless these are real rollouts of the simulator's agent in its world."""
    facts: Mapping[str, Any] = store.manifest.get("facts", {})
    if facts.get("source") != "real":
        raise UserError(f"{store.path} holds {facts.get('source', 'unknown')} rollouts; fidelity needs real ones")
    check_world(store.spec, simulator.world.spec, str(store.path))
    own = fingerprint(simulator.agent)
    if facts.get("agent") != own:
        raise UserError(f"{store.path} was recorded with agent {facts.get('agent')}, the simulator holds {own}")
    if facts.get("interventions"):
        raise UserError(f"{store.path} was recorded under an intervention; fidelity needs unaltered rollouts")


def check_lengths(store: RolloutStore, initial: int, horizon: int) -> None:
    """UserError unless a few episodes reach the horizon."""
    need = initial + horizon
    enough = int((store.rows >= need).sum())
    if enough < FEWEST_EPISODES:
        most = int(np.sort(store.rows)[-FEWEST_EPISODES]) - initial if len(store) >= FEWEST_EPISODES else 0
        advice = f"--horizon {most} is the most that {FEWEST_EPISODES} episodes reach" if most > 0 else "record more"
        raise UserError(
            f"--horizon {horizon}: {enough} of {len(store)} episodes have the {need} observations that a whole window "
            f"takes, {FEWEST_EPISODES} are needed; {advice}"
        )


def check_dreams(store: RolloutStore, starts: np.ndarray) -> None:
    """UserError where the agent explored in every episode of the windows: then nothing is left to compare dreams with,
    in which it acts by itself."""
    among = np.unique(starts[:, 0]).tolist()
    if not played_greedily(store) and all(explores(store.meta(e)) for e in among):
        raise UserError(
            f"{store.path}: the agent explored in all {len(among)} episodes, but dreams are compared with what it does "
            "by itself; record others without exploration (python record.py --agent AGENT --split held_out --out DIR)"
        )
