"""Does a place that left the view look the same when it comes back?

From every snapshot one action is held and then its opposite for as long, in the real world and in the simulator.  In
each, the pixels that were in view at first, left it, and are in view again at the end are compared with what they were:
with that world's own first frame, so that what is asked is whether it agrees with itself.  The real world's own
agreement is the bound: things move by themselves while nobody looks.

N snapshots, m steps either way.
"""

from __future__ import annotations

import numpy as np

from core.stats import Estimate
from validation.fidelity.counterfactual import Found, Recorder, Snapshots, simulate
from validation.fidelity.measures import NO_ERROR, as_float, psnr, row, unknown
from validation.fidelity.regions import came_back, followed, ratio_of

WAYS = (4, 8)  # steps held, either way
OPPOSITE = ("rightwards", "leftwards")  # words of a world (EnvSpec.action_words) for actions that undo each other


def opposites(shots: Snapshots) -> tuple[int, int] | None:
    """An action id each of the two words, or None where the world does not have both."""
    spec = shots.simulator.world.spec
    if not set(OPPOSITE) <= set(spec.action_words) or spec.action_parts:
        return None
    one, other = (spec.action_names.index(spec.action_words[word][0]) for word in OPPOSITE)
    return one, other


def returned(films_NTHWC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of films of an odd number of frames, whose middle one is the farthest: squared differences of what came back from
    what it was, summed, and how many pixels that are, each [N]."""
    frames, height, width = films_NTHWC.shape[1:4]
    offset_NT2 = followed(films_NTHWC)
    last_N2 = offset_NT2[:, -1]
    back = came_back(last_N2, offset_NT2[:, frames // 2], height, width)
    missed = np.zeros(len(films_NTHWC))
    for n, (dy, dx) in enumerate(last_N2):
        y, x = np.nonzero(back[n])
        missed[n] = ((films_NTHWC[n, -1, y, x] - films_NTHWC[n, 0, y + dy, x + dx]) ** 2).mean(-1).sum()
    return missed, back.sum((1, 2)).astype(float)


def there_and_back(shots: Snapshots, found: Found, rng: np.random.Generator) -> None:
    """Both orders of the two actions; a start whose real episode ends on the way is left out of both worlds."""
    pair = opposites(shots)
    nothing = Estimate(np.nan, np.nan, np.nan, len(shots))
    image = shots.name in shots.simulator.world.spec.pictures
    if pair is None or not image:
        why = "the observations are no images" if not image else f"no actions are called {' and '.join(OPPOSITE)}"
        found.rows += [unknown("there_and_back_psnr", 2 * m, "dB", len(shots), why) for m in WAYS]
        return
    for m in WAYS:
        parts = []
        for one, other in (pair, pair[::-1]):
            action_NK = np.repeat([[one] * m + [other] * (m + 1)], len(shots), 0)
            record = Recorder(shots.env, shots.starts.states, shots.name)
            for k in range(2 * m):
                record.step(action_NK[:, k])
            there = record.seen[-1]
            real = as_float(np.stack(record.obs, 1)[there])
            dreamed = np.concatenate([obs for _, obs in simulate(shots, action_NK)])[there]
            parts.append((*returned(real), *returned(dreamed), np.flatnonzero(there)))
        missed0, area0, missed1, area1, at = (np.concatenate(x) for x in zip(*parts, strict=True))
        e = ratio_of(missed1, area1, at, rng) if len(at) else nothing
        decibel = Estimate(psnr(e.value), psnr(e.high), psnr(e.low), e.n)
        floor = psnr(missed0.sum() / area0.sum()) if area0.any() else None
        why = NO_ERROR if area1.any() else "nothing leaves the simulated view and comes back"
        found.rows.append(row("there_and_back_psnr", 2 * m, decibel, "dB", floor=floor, reason=why))
        at_all = area0 > 0
        share = Estimate.unknown()
        if at_all.any():
            share = ratio_of(np.minimum(area1, area0)[at_all], area0[at_all], at[at_all], rng)
        found.rows.append(row("there_and_back_share", 2 * m, share, "share of the pixels that really come back",
                              floor=1.0, copy=0.0, reason="nothing leaves the real view and comes back"))  # fmt: skip
