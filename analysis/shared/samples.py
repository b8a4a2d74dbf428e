"""What simulated rollouts start from: their latents, and the real episodes that they start in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from analysis.shared.units import played_together
from core.artefacts import MANIFEST, manifest_sha256
from core.contracts import UserError
from core.episodes import RolloutStore
from core.roll import Simulator
from envs.registry import agents_a_world

REPLAY_TOLERANCE = 1e-3  # of h; a replay that took another action is off by far more
AT_ONCE = 32  # samples rolled out again at once


class Latents:
    """The latents of some samples: a slice of them, float32 [n, Z], is read when it is asked for, as those of known
    starts hold frames."""

    def __init__(self, store: RolloutStore, ids: Sequence[int], device: torch.device) -> None:
        self._store, self._ids, self._device = store, list(ids), device

    def __getitem__(self, rows: slice) -> torch.Tensor:
        return torch.from_numpy(self._store.latents(self._ids[rows])).to(self._device)


def source_units(store: RolloutStore, episodes: Sequence[int]) -> np.ndarray:
    """int64: which independent unit each rollout belongs to.

    Real lives of one playing of a world are one unit, where the world has many agents; simulated rollouts that start in
    the same real episode, or in lives of one playing, are one; any other rollout is its own.  Which lives played
    together is read from the recording that samples were made from: where that is gone, and its world has many agents,
    a note says that lives are taken for independent."""
    if store.manifest["facts"].get("source") == "real":
        return -1 - played_together(store)[np.asarray(episodes, np.int64)]
    starts = [store.meta(e).get("start") for e in episodes]
    of_real = None if all(s is None for s in starts) else _worlds_started_in(store)
    unit = [-1 - e if s is None else int(s[0]) if of_real is None else int(of_real[int(s[0])])
            for e, s in zip(episodes, starts, strict=True)]  # fmt: skip
    return np.array(unit, np.int64)


def _worlds_started_in(store: RolloutStore) -> np.ndarray | None:
    """``played_together`` of the recording that samples were made from; None where that is gone."""
    named = store.manifest["inputs"].get("rollouts", {})
    path = (store.path / str(named.get("path", ""))).resolve()
    if not named or not (path / MANIFEST).exists() or manifest_sha256(path) != named["manifest_sha256"]:
        if agents_a_world(store.spec) > 1:
            print(f"note: the recording that {store.path} starts in is gone, so it is not known which lives played in "
                  "one world: they are taken for independent", file=sys.stderr)  # fmt: skip
        return None
    with RolloutStore(path) as real:
        return played_together(real)


def made_otherwise(store: RolloutStore) -> list[str]:
    """Flags and interventions by which samples were made that are not the modal, unaltered rollouts."""
    facts = store.manifest["facts"]
    ways = ["--stochastic"] if facts.get("stochastic") else []
    for one in facts.get("interventions") or ():
        forced = one["kind"] == "ForcedActions"
        ways.append(f"--actions {' '.join(one['actions'])}" if forced else f"an intervention ({one['kind']})")
    return ways


def not_again(share: float, store: RolloutStore | None, who: str) -> UserError:
    """What is said of samples that are not the modal rollouts from their latents.  share: of their steps that come out
    again; store: theirs, which tells how they were made."""
    ways = [] if store is None else made_otherwise(store)
    made = "" if store is None or not ways else f" ({store.path} was recorded with {' and '.join(ways)})"
    return UserError(
        f"only {int(100 * share)}% of the sampled steps come out again from their latents{made}; "
        f"{who} samples recorded without noise, exploration and interventions"
    )


@torch.no_grad()
def not_modal(simulator: Simulator[Any], store: RolloutStore, ids: Sequence[int], latents: Latents, steps: int,
              who: str) -> list[int]:  # fmt: skip
    """Those of the samples ``ids``, with these latents, that are not the modal rollout from it, for ``steps``
    transitions or to where it ends, in hidden states and actions: sums in another order, on another machine, can turn
    a choice between near equals.  UserError where they were made otherwise, or most steps do not come out again."""
    same, seen, others = 0, 0, []
    for i in range(0, len(ids), AT_ONCE):
        part = slice(i, i + AT_ONCE)
        starts = np.array([[e, 0] for e in ids[part]], np.int64)
        kept = store.read_windows(["h", "action"], starts, steps + 1)
        moments = [(m.h_BH.cpu().numpy(), m.action.cpu().numpy()) for m in simulator.roll(latents[part], steps=steps)]
        h_BTH, action_BT = (np.stack(found, 1) for found in zip(*moments, strict=True))
        alike = np.abs(h_BTH - kept.columns["h"]).max(2) < REPLAY_TOLERANCE
        acted = (action_BT == kept.columns["action"]).reshape(*alike.shape, -1).all(2)
        again = alike & (acted | ~kept.acted)
        same += int((again & kept.seen).sum())
        seen += int(kept.seen.sum())
        others += [e for e, whole in zip(ids[part], (again | ~kept.seen).all(1), strict=True) if not whole]
    if others and (made_otherwise(store) or same < seen / 2):
        raise not_again(same / seen, store, who)
    return others
