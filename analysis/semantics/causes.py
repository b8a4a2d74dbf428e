"""What is needed to try clusters as causes: the plane as a basis with its codes, and hypotheses of what each code does.

``python -m validation.interventions --config DIR/causes.json`` tries them in the real game.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.semantic import SemanticAgent
from analysis.semantics.states import States
from core.contracts import EnvSpec
from core.directions import Basis, fingerprint

CONFIG = "causes.json"
FORETOLD = {
    True: "the policy's own probabilities",
    False: "shares of recorded actions, random ones among them: the recording holds no logits, so that what the policy "
    "itself would do is not known",
}


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


def chances_of(states: States, actions: Mapping[str, Sequence[int]]) -> np.ndarray:
    """How likely each of these actions is in every state, float64 [N, K]: as the policy says, before any exploration;
    of a recording without logits 1 for the action that was taken, which may be a random one, and 0 for all others."""
    if states.logits_NA is None:
        return np.stack([np.isin(states.action_N, list(ids)) for ids in actions.values()], 1).astype(np.float64)
    each_NA = torch.from_numpy(states.logits_NA).double().softmax(-1).numpy()
    return np.stack([each_NA[:, list(ids)].sum(1) for ids in actions.values()], 1)


def spoken_of(states: States, actions: Mapping[str, Sequence[int]]) -> dict[int, tuple[str, float]]:
    """Of every live code the action that its states speak of most, and how likely that is in them.

    Most: by Cohen's d of the action's being chosen, inside the code against outside, as the policy itself would choose
    (the variance is that of a choice, p (1 - p)); actions that a recording took at random dilute neither."""
    chance_NK = chances_of(states, actions)
    out = {}
    for c in np.flatnonzero(states.counts).tolist():
        mine = states.code_N == c
        inside_K, outside_K = chance_NK[mine].mean(0), chance_NK[~mine].mean(0)
        within_K = mine.mean() * inside_K * (1 - inside_K) + (1 - mine.mean()) * outside_K * (1 - outside_K)
        d_K = np.abs(inside_K - outside_K) / np.sqrt(np.maximum(within_K, 1e-12))
        best = int(d_K.argmax())
        out[c] = list(actions)[best], float(inside_K[best])
    return out


def hypotheses(states: States, spec: EnvSpec) -> list[str]:
    """In the words of validation/hypotheses/grammar.py: every live code held, each with the action that its states
    speak of most and how likely the policy finds that in them; the two most frequent codes exchanged; pushes along the
    plane."""
    said = {} if spec.action_parts else spoken_of(states, spec.distinct_actions())
    live = sorted(np.flatnonzero(states.counts).tolist(), key=lambda c: -states.counts[c])
    on = {c: f"prob:{said[c][0]} as {said[c][1]:.3f}" if c in said else "value" for c in live}
    out = [f"hold code:{c} always on {on[c]}" for c in sorted(live)]
    out.append(f"swap code:{live[0]} code:{live[1]} always on value")
    return [*out, *(f"shift plane:{i} by +1 always on value" for i in range(2))]


def configuration(agent: Path, run: Path, words: Sequence[str]) -> dict[str, Any]:
    """Of validation.interventions, for --config."""
    return {
        "policy": str(agent), "hidden_states": str(run), "basis_kind": "plane", "hypotheses": list(words),
        "out": str(run.parent / f"{run.name}_causes"),
    }  # fmt: skip
