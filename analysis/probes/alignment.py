"""Are labels, states and observations of the same step in the same row?  Checked on the recording itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analysis.probes.baselines import seen_by
from analysis.probes.inputs import flat_obs
from analysis.shared.probe_fits import LEAST_FOLDS, FoldedRidge, spread_of
from analysis.shared.truths import names_of, numbers_of
from core.contracts import Agent, UserError
from core.episodes import RolloutStore

EPISODES = 4  # that states are worked out again of
FAR = 1e-3  # share of the states' largest number by which they may differ
ROWS, WIDEST = 16_384, 2048  # of observations that labels are read from; numbers of one, its narrowest fields
A_NUMBER = 4  # rows at least
EXACT, WORSE = 0.99, 0.005  # R^2 of what an observation shows; by how much a step aside is worse


def check_states(agent: Agent, store: RolloutStore) -> None:
    """UserError where the recorded h is not what the recorded agent makes of the recorded observations."""
    if store.manifest["facts"].get("interventions") or "h" not in store.column_names:
        return
    episodes = np.flatnonzero(np.minimum(store.steps, store.rows) > 0)[:EPISODES].tolist()
    columns, index_N2 = store.pooled("h", episodes=episodes)
    again_NH = seen_by(agent, store, index_N2, alone=False).h_NH
    far = float(np.abs(again_NH - columns["h"]).max())
    if far > FAR * max(1.0, float(np.abs(columns["h"]).max())):
        raise UserError(f"{store.path}: states out of line with observations: what the agent makes of these differs "
                        f"from the recorded h by up to {far:.2g}; record again")  # fmt: skip


def check_labels(store: RolloutStore) -> str:
    """UserError where what an observation shows exactly is the label of the step before or after and none its own; why
    nothing can be said, or "".

    Labels that no observation shows cannot be checked so.  They are recorded along with those that are shown, so all
    labels of the recording are looked at, not those alone that are read."""
    known = names_of(store)
    numbers = list(known)
    episodes, rows = [], 0
    for e in np.random.default_rng(0).permutation(np.flatnonzero(np.minimum(store.steps, store.rows) >= 3)):
        episodes.append(int(e))
        rows += int(min(store.steps[e], store.rows[e])) - 2
        if rows >= ROWS:
            break
    if not numbers:
        return "there are none"
    if len(episodes) < LEAST_FOLDS:
        return f"fewer than {LEAST_FOLDS} episodes have three steps"
    fields = _narrowest(store, episodes[0], min(WIDEST, rows // A_NUMBER))
    if not fields:
        return f"no field of the observation is narrow enough for {rows:,} steps"
    parts: list[tuple[np.ndarray, dict[int, np.ndarray]]] = []
    for e in episodes:
        x_TF = flat_obs(store.pooled(*fields, episodes=[e])[0])
        y_TK = np.stack(list(numbers_of(store, e, numbers, known).values()), 1)
        end = len(x_TF) - 1
        parts.append((x_TF[1:end], {s: y_TK[1 + s : end + s] for s in (-1, 0, 1)}))
    x_NF = np.concatenate([x for x, _ in parts])
    y = {s: np.concatenate([own[s] for _, own in parts]) for s in (-1, 0, 1)}
    told = np.all([np.isfinite(v).all(0) & (spread_of(np.nan_to_num(v)) > 0) for v in y.values()], 0)
    if not told.any():
        return "none of them changes"
    fold_N = np.repeat(np.arange(len(parts)) % LEAST_FOLDS, [len(x) for x, _ in parts])
    probe = FoldedRidge(x_NF, fold_N)
    r2 = {s: 1 - probe.errors(v[:, told]) / spread_of(v[:, told]) for s, v in y.items()}
    said = aside(r2)
    if said is not None:
        k, step = said
        name = [n for n, on in zip(numbers, told, strict=True) if on][k]
        raise UserError(
            f"{store.path}: labels out of line with observations: {name} is what the "
            f"observation of the step {'before' if step > 0 else 'after'} shows, and no label is "
            "what its own shows; record again"
        )  # fmt: skip
    return ""


def aside(r2: Mapping[int, np.ndarray]) -> tuple[int, int] | None:
    """(a target, the lag) where targets are read exactly a step aside and none in its place.

    r2: lag -> [K], how well the labels of that many steps later are read from an observation."""
    for step in (-1, 1):
        exact = (r2[step] > EXACT) & (r2[0] < r2[step] - WORSE)
        in_place = (r2[0] > EXACT) & (r2[step] < r2[0] - WORSE)
        if exact.any() and not in_place.any():
            return int(np.flatnonzero(exact)[0]), step
    return None


def _narrowest(store: RolloutStore, episode: int, most: int) -> list[str]:
    """The fields of an observation, the narrowest first, as far as they are ``most`` numbers together."""
    fields = [c for c in store.column_names if c.startswith("obs/")]
    width = {f: int(x[0].size) for f, x in store.pooled(*fields, episodes=[episode])[0].items()} if fields else {}
    order = sorted(fields, key=lambda f: width[f])
    return [f for f, total in zip(order, np.cumsum([width[f] for f in order]), strict=True) if total <= most]
