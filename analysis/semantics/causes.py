"""What is needed to try clusters as causes: the plane as a basis with its codes, and hypotheses of what each code does.

``python -m validation.interventions --config DIR/causes.json`` tries them in the real game.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from agents.semantic import SemanticAgent
from analysis.semantics.states import States
from core.contracts import EnvSpec
from core.directions import Basis, fingerprint

CONFIG = "causes.json"


@torch.no_grad()
def plane_basis(agent: SemanticAgent, states: States) -> Basis:
    """The plane as two directions of h, ``plane:0`` and ``plane:1``, in units of the states' spread in it (one for
    both, so that the nearest code is the nearest here), with the codes' places in its facts."""
    h_NH = torch.from_numpy(states.h_NH).double()
    mean_H, std_H = h_NH.mean(0), h_NH.std(0)
    std_H = torch.where(std_H > 0, std_H, 1.0)
    down_2H, up_2H = (x.cpu() for x in agent.plane_axes())
    plane_N2 = torch.from_numpy(states.plane_N2).double()
    scale = float(plane_N2.var(0).mean().sqrt())
    middle_2 = agent.plane(mean_H.float()[None].to(agent.codebook_C2.device))[0].double().cpu()
    codes_C2 = (agent.codebook_C2.double().cpu() - middle_2) / scale
    return Basis(
        "plane", mean_H.float(), std_H.float(), (std_H[:, None] * down_2H.T / scale).float(),
        (scale * up_2H / std_H).float(), fingerprint(agent), facts={"codes": codes_C2.tolist(), "unit": scale},
    )  # fmt: skip


def hypotheses(states: States, said: Sequence[Mapping[str, Any]], spec: EnvSpec) -> list[str]:
    """In the words of validation/hypotheses/grammar.py: every live code held, each with the action that its states
    speak of most and how likely that is in them; the two most frequent codes exchanged; pushes along the plane.

    said: the effects' table."""
    actions = spec.distinct_actions()
    live = sorted((c for c in range(states.codes) if states.counts[c]), key=lambda c: -states.counts[c])
    out = []
    for c in sorted(live):
        mine = [row for row in said if row["code"] == c and row["kind"] == "action" and row["what"] in actions]
        if mine:
            best = max(mine, key=lambda row: abs(row["d"]))
            out.append(f"hold code:{c} always on prob:{best['what']} as {best['inside']:.3f}")
        else:
            out.append(f"hold code:{c} always on value")
    out.append(f"swap code:{live[0]} code:{live[1]} always on value")
    return [*out, *(f"shift plane:{i} by +1 always on value" for i in range(2))]


def configuration(agent: Path, run: Path, words: Sequence[str]) -> dict[str, Any]:
    """Of validation.interventions, for --config."""
    return {
        "policy": str(agent), "hidden_states": str(run), "basis_kind": "plane", "hypotheses": list(words),
        "out": str(run.parent / f"{run.name}_causes"),
    }  # fmt: skip
