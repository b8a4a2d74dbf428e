"""Decisions of a policy when a direction of the state takes its value of another time.

N patched steps, D directions, C random controls, P heads (parts of the action), H state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.policies import kl_per_part, log_probs, part_slices
from analysis.patching.config import PatchingConfig
from analysis.patching.directions import Directions
from core.contracts import Agent, UserError
from core.episodes import RolloutStore
from core.progress import bar
from core.roll import heads_at
from core.trees import Tree, leaves, unflatten

LEAST_LOGIT = -1e8  # below: not allowed
ALIKE = 1e-5  # standard deviations; states no further apart are one
AGAIN = "record the agent again (record.py, or analysis.extract_activations)"
VALUE_TOLERANCE = 1e-3  # relative; of a recorded value that is computed again


class Steps(NamedTuple):
    """N recorded steps and their donors."""

    h_NH: np.ndarray  # float32
    donor_NH: np.ndarray
    obs: dict[str, np.ndarray]
    action_NP: np.ndarray
    value_N: np.ndarray
    unit_N: np.ndarray
    index_N2: np.ndarray  # (episode, t)
    donor_index_N2: np.ndarray
    state_NS: np.ndarray | None = None  # the agent's whole state, where it is more than h


# Steps


def draw_steps(store: RolloutStore, config: PatchingConfig, unit_E: np.ndarray, rng: np.random.Generator) -> Steps:
    """Random steps of random lives, and for each another time of the same life, or of a life of another unit."""
    ends_E = np.minimum(store.steps, store.rows)
    usable_E = np.flatnonzero(ends_E >= (2 if config.donor == "life" else 1))
    if not len(usable_E):
        raise UserError(f"{store.path}: no life has two steps, so none has another time to take a value from")
    if config.donor == "any" and len(np.unique(unit_E[usable_E])) < 2:
        raise UserError(f"{store.path}: --donor any needs two units at least; use life")
    pool_M2 = np.concatenate([np.stack([np.full(ends_E[e], e), np.arange(ends_E[e])], 1) for e in usable_E])
    index_N2 = pool_M2[np.sort(rng.permutation(len(pool_M2))[: config.states])]
    if config.donor == "life":
        other_N = rng.integers(1, ends_E[index_N2[:, 0]])  # steps ahead, around the end of the life
        donor_N2 = np.stack([index_N2[:, 0], (index_N2[:, 1] + other_N) % ends_E[index_N2[:, 0]]], 1)
    else:
        donor_N2 = pool_M2[rng.integers(len(pool_M2), size=len(index_N2))]
        while (same_N := unit_E[donor_N2[:, 0]] == unit_E[index_N2[:, 0]]).any():
            donor_N2[same_N] = pool_M2[rng.integers(len(pool_M2), size=int(same_N.sum()))]
    obs_names = [f"obs/{name}" for name in store.spec.obs]
    whole = [name for name in ("state",) if name in store.column_names]
    here = _rows_at(store, ["h", "action", "value", *whole, *obs_names], index_N2)
    return Steps(
        here["h"], _rows_at(store, ["h"], donor_N2)["h"], {n.partition("/")[2]: here[n] for n in obs_names},
        here["action"].reshape(len(index_N2), -1), here["value"], unit_E[index_N2[:, 0]], index_N2, donor_N2,
        here.get("state"),
    )  # fmt: skip


def _rows_at(store: RolloutStore, names: Sequence[str], index_N2: np.ndarray) -> dict[str, np.ndarray]:
    """Columns at (episode, t), in this order; one episode in memory at a time."""
    out: dict[str, np.ndarray] = {}
    for e in np.unique(index_N2[:, 0]):
        columns, _ = store.pooled(*names, episodes=[int(e)])
        rows = np.flatnonzero(index_N2[:, 0] == e)
        for name, values in columns.items():
            out.setdefault(name, np.empty((len(index_N2), *values.shape[1:]), values.dtype))[rows] = values[
                index_N2[rows, 1]
            ]
    return out


@torch.no_grad()
def check_alignment(agent: Agent, steps: Steps, batch: int) -> dict[str, float]:
    """That these states, decided upon with these observations, are what the policy acted on.

    Every recorded action must be allowed, and every recorded value come out again.  Returns what was found; raises
    UserError.
    """
    least, off = np.inf, 0.0
    for rows in np.array_split(np.arange(len(steps.h_NH)), -(-len(steps.h_NH) // batch)):
        h_BH, *where = _shown(agent, steps, rows)
        logits_BA, value_B = heads_at(agent, h_BH, *where)
        action_BP = torch.from_numpy(steps.action_NP[rows]).to(h_BH.device)
        least = float(np.minimum(least, float(log_probs(logits_BA, action_BP, agent.spec).min())))
        recorded_B = torch.from_numpy(steps.value_N[rows]).to(h_BH.device)
        off = float(np.maximum(off, float(((value_B - recorded_B).abs() / recorded_B.abs().clamp(min=1)).max())))
    if not least >= LEAST_LOGIT:
        raise UserError(
            "the policy could not have taken a recorded action: states, observations and actions do not belong "
            f"together; {AGAIN}"
        )
    if not off <= VALUE_TOLERANCE:
        raise UserError(
            f"the policy's value of a recorded state is {off:.2g} off the recorded one: states and observations do not "
            f"belong together; {AGAIN}"
        )
    return {"least_log_probability": least, "value_off": off}


def _shown(agent: Agent, steps: Steps, rows: np.ndarray) -> tuple[Tensor, Tree, Tree]:
    """(h, what is seen, the agent's state) of some steps."""
    state = agent.initial(len(rows))
    device = next(leaves(state)).device
    obs = {name: torch.from_numpy(values[rows]).to(device) for name, values in steps.obs.items()}
    if steps.state_NS is not None:
        state = unflatten(torch.from_numpy(steps.state_NS[rows]).to(device), state)
    return torch.from_numpy(steps.h_NH[rows]).to(device), agent.encode(obs), state


# Patching


def recorded_directions(
    h_NH: np.ndarray, unit_N: np.ndarray, std_H: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Random directions that occur, [C, H], of length 1 in the z-scored state: from a recorded state to one of another
    unit.  (Of directions uniform over all, heads hardly see most: any along which states vary moves them more.)

    UserError where no states of two units differ.
    """
    z_NH = np.where(std_H > 0, h_NH / np.where(std_H > 0, std_H, 1), 0)
    if len(np.unique(unit_N)) < 2 or np.ptp(z_NH, 0).max() <= 2 * ALIKE:
        raise UserError(
            "random directions lead from a patched state to one of another unit, and these states are all of one unit, "
            "or alike; give more --states, or another --unit"
        )
    out_CH, missing = np.zeros((count, len(std_H))), np.arange(count)
    while len(missing):
        here, there = rng.integers(len(z_NH), size=(2, len(missing)))
        change_MH = z_NH[there] - z_NH[here]
        length_M = np.linalg.norm(change_MH, axis=1)
        found_M = (unit_N[here] != unit_N[there]) & (length_M > ALIKE)
        out_CH[missing[found_M]] = change_MH[found_M] / length_M[found_M, None]
        missing = missing[~found_M]
    return out_CH


class Patched(NamedTuple):
    """KL(original || patched) in nats, of every step and head."""

    dose_XDNP: np.ndarray  # by dose
    towards_DNP: np.ndarray  # a move of the patch's length towards the donor
    random_DCNP: np.ndarray  # float32
    swap_NP: np.ndarray
    identity: float  # largest KL of a patch with the step's own coordinate: exactly 0
    choice_NP: np.ndarray  # bool: more than one choice was allowed


@torch.no_grad()
def patch(
    agent: Agent, steps: Steps, directions: Directions, std_H: np.ndarray, *, doses: Sequence[float], controls: int,
    batch: int, seed: int,
) -> Patched:  # fmt: skip
    """Every direction, dose and control at every step.

    std_H: of the recorded states (0: never changes).  Lengths are those of the z-scored state.  The same random
    directions (``recorded_directions``) serve every direction, and a step's sign along them is that of its patch.
    """
    n, d, parts = len(steps.h_NH), len(directions.names), len(agent.spec.parts)
    unit_CH = recorded_directions(steps.h_NH, steps.unit_N, std_H, controls, np.random.default_rng(seed))
    scale_H = np.where(std_H > 0, std_H, 1)
    change_NH = (steps.donor_NH - steps.h_NH).astype(np.float64)
    amount_DN = directions.read_DH @ change_NH.T
    length_DN = np.abs(amount_DN) * np.linalg.norm(directions.move_DH / scale_H, axis=1)[:, None]
    whole_N = np.linalg.norm(change_NH / scale_H, axis=1)
    share_DN = np.divide(length_DN, whole_N, out=np.zeros_like(length_DN), where=whole_N > 0)
    out = Patched(
        np.zeros((len(doses), d, n, parts)), np.zeros((d, n, parts)),
        np.zeros((d, controls, n, parts), np.float32), np.zeros((n, parts)), 0.0, np.zeros((n, parts), bool),
    )  # fmt: skip
    identity = 0.0
    batches = np.array_split(np.arange(n), -(-n // batch))
    with bar("patching", len(batches) * d, "directions") as progress:
        for rows in batches:
            h_BH, *where = _shown(agent, steps, rows)
            logits_BA, _ = heads_at(agent, h_BH, *where)

            def kl(
                change_BH: np.ndarray, h_BH: Tensor = h_BH, where: Any = where, logits_BA: Tensor = logits_BA
            ) -> Any:
                moved_BH = h_BH + torch.from_numpy(change_BH.astype(np.float32)).to(h_BH.device)
                after_BA = heads_at(agent, moved_BH, *where)[0]
                return kl_per_part(logits_BA.double(), after_BA.double(), agent.spec).cpu().numpy()

            for p, part in enumerate(part_slices(agent.spec).values()):
                out.choice_NP[rows, p] = ((logits_BA[:, part] > LEAST_LOGIT).sum(-1) > 1).cpu().numpy()
            out.swap_NP[rows] = kl(change_NH[rows])
            for i in range(d):
                amount_B = amount_DN[i, rows, None]
                identity = max(identity, float(np.abs(kl(0 * amount_B * directions.move_DH[i])).max()))
                for x, dose in enumerate(doses):
                    out.dose_XDNP[x, i, rows] = kl(dose * amount_B * directions.move_DH[i])
                out.towards_DNP[i, rows] = kl(share_DN[i, rows, None] * change_NH[rows])
                signed_B = length_DN[i, rows, None] * np.sign(amount_B)
                for c in range(controls):
                    out.random_DCNP[i, c, rows] = kl(signed_B * (unit_CH[c] * scale_H))
                progress.advance()
    return out._replace(identity=identity)
