"""How far the states of simulated rollouts lie where those of real ones lie."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from core import artefacts
from core.stats import Estimate, share_interval
from core.two_sample import NO_INTERVAL, frechet, halves, squared_distances, told_apart

NEIGHBOURS = 5  # of a state, that say how far around it the states of its kind lie
OVERLAP_STATES = 1000  # a side, in each of the random halves that are compared
CLASSIFIED_STATES = 5000  # of either kind
FEWEST_COMPARED = 4 * NEIGHBOURS  # states of either kind
TOO_FEW_IN_A_HALF = f"a random half of the episodes has no {NEIGHBOURS} neighbours of other episodes for any state"


def overlap(x_NK: np.ndarray, c_NK: np.ndarray, real_N: np.ndarray, unit_N: np.ndarray, seed: int) -> list[dict]:
    """How far simulated states lie where real ones do, each row beside the same of real against real.

    x_NK: states whose distances count; c_NK: the same, whitened; both simulated and real ones.  Measures:
    ``inside`` share of simulated states that are closer to some real state than its 5th neighbour is, and
    ``covered`` the share of real ones that lie so among the simulated (precision and recall of Kynkaanniemi et al.
    2019, with neighbours from other episodes only; undefined where no state has as many); ``frechet`` distance of the
    two Gaussians, in shares of the real variance; ``told_apart`` of core.two_sample (0.5: not).
    The first three are taken between disjoint random halves of the episodes, whose spread is the interval; of a share
    that is 0 or 1 in all of them, what so many episodes can hide.  A number that is not defined in every half is None,
    and ``reason`` says why; ``interval_reason`` and ``floor_reason``: why the number and the floor have no interval.
    """
    real_rows, other_rows = np.flatnonzero(real_N), np.flatnonzero(~real_N)
    # As many states a side whoever is compared: the measures depend on it.
    most = max(NEIGHBOURS + 1, min(OVERLAP_STATES, int(0.4 * min(len(real_rows), len(other_rows)))))
    x_NK = np.asarray(x_NK, np.float64)
    variance = float(x_NK[real_rows].var(0).sum())

    def measured(measure: Callable[[np.ndarray, np.ndarray], float]) -> tuple[Estimate, Estimate]:
        rng = np.random.default_rng(seed)

        def of_some(a: np.ndarray, b: np.ndarray) -> float:
            if min(len(a), len(b)) <= NEIGHBOURS:
                return np.nan
            return measure(*(rng.permutation(rows)[:most] for rows in (a, b)))

        return halves(real_rows, other_rows, unit_N[real_rows], of_some, rng, unit_N[other_rows])

    reals, others = (len(np.unique(unit_N[rows])) for rows in (real_rows, other_rows))

    def share(measure: Callable[[np.ndarray, np.ndarray], float], asked: int) -> tuple[Estimate, Estimate]:
        against, floor = measured(measure)
        return _wide(against, asked), _wide(floor, reals)

    rng = np.random.default_rng(seed)
    apart = {}
    half = np.isin(unit_N, rng.permutation(np.unique(unit_N[real_rows]))[::2])
    for name, one, two in (("simulated", real_N, ~real_N), ("floor", real_N & half, real_N & ~half)):
        n = min(one.sum(), two.sum(), CLASSIFIED_STATES)
        rows = np.concatenate([rng.permutation(np.flatnonzero(m))[:n] for m in (one, two)])
        apart[name] = told_apart(c_NK[rows], np.repeat([0, 1], n), unit_N[rows], rng)

    found = [
        ("inside", *share(lambda a, b: _inside(x_NK, unit_N, a, b), others), "share of simulated states"),
        ("covered", *share(lambda a, b: _inside(x_NK, unit_N, b, a), reals), "share of real states"),
        ("frechet", *measured(lambda a, b: frechet(x_NK[a], x_NK[b]) / variance), "of the real states' variance"),
        ("told_apart", apart["simulated"], apart["floor"], "accuracy of a linear classifier, 0.5 is chance"),
    ]  # fmt: skip
    rows = []
    for name, value, floor, unit in found:
        numbers = {"simulated": value.value, "low": value.low, "high": value.high, "floor": floor.value,
                   "floor_low": floor.low, "floor_high": floor.high}  # fmt: skip
        known = {k: artefacts.finite(v) for k, v in numbers.items()}
        reason = TOO_FEW_IN_A_HALF if None in (known["simulated"], known["floor"]) else ""
        few, few_real = ("" if reason or known[end] is not None else NO_INTERVAL for end in ("low", "floor_low"))
        rows.append({"measure": name, **known, "unit": unit, "n": value.n, "reason": reason, "interval_reason": few,
                     "floor_reason": few_real})  # fmt: skip
    return rows


def _wide(share: Estimate, units: int) -> Estimate:
    """A share of the states of some units whose interval has a width also where it is 0, or 1, in all halves."""
    if share.low < share.high or share.value not in (0.0, 1.0) or np.isnan(share.low):
        return share
    low, high = share_interval(share.value * units, units)
    return share._replace(low=low, high=high)


def _inside(x_NK: np.ndarray, unit_N: np.ndarray, there: np.ndarray, asked: np.ndarray) -> float:
    """Share of the rows ``asked`` within some row ``there``'s distance to its 5th neighbour of another episode; NaN
    where none has so many."""
    among = squared_distances(x_NK[there], x_NK[there])
    among[unit_N[there][:, None] == unit_N[there]] = np.inf
    radius = np.partition(among, NEIGHBOURS - 1, axis=1)[:, NEIGHBOURS - 1]
    if np.isinf(radius).all():
        return np.nan
    radius[np.isinf(radius)] = -1  # it has fewer neighbours of other episodes than that: nobody is near it
    return float((squared_distances(x_NK[asked], x_NK[there]) <= radius).any(1).mean())
