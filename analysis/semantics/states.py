"""The recorded states of a policy with semantic clusters, and which clusters they lie in.

N steps, C codes, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from agents.load import load_agent
from agents.semantic import SemanticAgent
from analysis.shared.behaviours import check_names
from analysis.shared.sources import open_stores
from analysis.shared.truths import levels_of
from analysis.shared.units import stretches, units
from core.artefacts import load_json
from core.config import read_json
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import RolloutStore, spread_over_episodes

NAMES = "names.json"
BATCH = 8192


@dataclass(frozen=True)
class States:
    """Recorded steps, those of an episode one after the other; ``unit_N`` is equal for what is not independent."""

    h_NH: np.ndarray
    plane_N2: np.ndarray
    code_N: np.ndarray  # int64
    value_N: np.ndarray
    action_N: np.ndarray
    index_N2: np.ndarray  # (episode, t)
    unit_N: np.ndarray
    codes: int
    logits_NA: np.ndarray | None = None  # the policy's own, before any exploration; None: not kept

    def __len__(self) -> int:
        return len(self.code_N)

    @property
    def counts(self) -> np.ndarray:
        """States of every code, int64 [C]."""
        return np.bincount(self.code_N, minlength=self.codes)

    @property
    def dead(self) -> list[int]:
        """The codes that no state has."""
        return np.flatnonzero(self.counts == 0).tolist()

    def drawn(self, count: int, flag: str, rng: np.random.Generator) -> np.ndarray:
        """Rows at random, from as many episodes as there are; UserError where the recording has fewer states."""
        if len(self) < count:
            raise UserError(f"the recording has {len(self):,} states, --{flag} asks for {count:,}; record more, or ask "
                            "for fewer")  # fmt: skip
        return spread_over_episodes(np.arange(len(self)), self.index_N2[:, 0], count, rng)


def open_policy(path: Path, device: torch.device | str = "cpu") -> SemanticAgent:
    """The agent of a run directory; UserError for one without the module."""
    agent = load_agent(path, device)
    if not isinstance(agent, SemanticAgent):
        raise UserError(f"{path} holds no policy with semantic clusters; train one with train.py --policy semantic")
    return agent


@torch.no_grad()
def placed(agent: SemanticAgent, h_NH: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(where states lie in the plane float32 [N, 2], their codes int64 [N])."""
    device = agent.codebook_C2.device
    parts = [agent.plane(torch.from_numpy(h_NH[i : i + BATCH]).float().to(device)) for i in range(0, len(h_NH), BATCH)]
    plane_N2 = torch.cat(parts)
    return plane_N2.cpu().numpy(), agent.code(plane_N2).cpu().numpy()


def read_states(agent: SemanticAgent, rollouts: Path) -> tuple[RolloutStore, States]:
    """Every step of a recording of this agent.  UserError where it is another's, or all states have one code."""
    store, _, name = open_stores(rollouts, None)
    if name != fingerprint(agent):
        raise UserError(f"{rollouts} was recorded with agent {name}, this is {fingerprint(agent)}; record this one")
    kept = ["logits"] if "logits" in store.column_names else []
    columns, index_N2 = store.pooled("h", "value", "action", *kept)
    level_E = levels_of(store)
    unit_E = units(store, store) if level_E is None else level_E
    plane_N2, code_N = placed(agent, columns["h"])
    states = States(
        columns["h"], plane_N2, code_N, columns["value"], columns["action"], index_N2, unit_E[index_N2[:, 0]],
        agent.semantic.codes, columns.get("logits"),
    )  # fmt: skip
    require_clusters(states)
    return store, states


def require_clusters(states: States) -> None:
    """UserError where all codes are dead but one."""
    if len(states.dead) == states.codes - 1:
        raise UserError(
            f"all {len(states):,} states have code {int(states.code_N[0])}: the other {states.codes - 1} codes are "
            "dead, so that there are no clusters; train longer (the controller weighs their losses with the return)"
        )


def read_names(path: Path | None, codes: int) -> dict[int, str]:
    """The user's names of the codes, from JSON: {"0": "a name", ...}; 'code N' for those left out.  UserError."""
    out = {c: f"code {c}" for c in range(codes)}
    if path is None:
        return out
    data = load_json(path.parent, path.name) if (path.parent / "manifest.json").exists() else read_json(path)
    return out | check_names(data, codes, str(path), "code", every=False)


def episodes_for(index_N2: np.ndarray, rows: int) -> np.ndarray:
    """Rows of the first whole episodes that have together at least ``rows`` rows."""
    ends = np.add(*stretches(index_N2[:, 0]))
    stop = int(ends[min(int(np.searchsorted(ends, rows)), len(ends) - 1)])
    return np.arange(stop)
