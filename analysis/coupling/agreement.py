"""How far correlations agree with a Jacobian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analysis.coupling.estimates import Coupling
from core.stats import ALPHA, band_of, permutation_p


class Agreement(NamedTuple):
    """How far Jacobian and correlation agree on some entries, beside 95 % of the permutations of episodes."""

    value: float
    null_low: float
    null_high: float
    p: float
    n: int  # entries


def _same_sign(j_X: np.ndarray, r_X: np.ndarray) -> np.ndarray:
    same: np.ndarray = (np.sign(j_X) == np.sign(r_X)).mean(-1)
    return same


def _magnitude_rank(j_X: np.ndarray, r_X: np.ndarray) -> np.ndarray:
    from scipy.stats import rankdata

    a, b = (rankdata(np.abs(v), axis=-1) - (v.shape[-1] + 1) / 2 for v in (j_X, r_X))
    with np.errstate(divide="ignore", invalid="ignore"):  # all equal: NaN
        rank: np.ndarray = (a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return rank


# Each of entries [..., X] -> [...], and what it is by chance.
MEASURES = {"sign_agreement": (_same_sign, 0.5), "magnitude_rank_correlation": (_magnitude_rank, 0.0)}


def agreement(coupling: Coupling, mask: np.ndarray, measure: str, path: str = "") -> Agreement:
    """``sign_agreement`` or ``magnitude_rank_correlation`` over the entries of mask, against permuted episodes.

    It has no interval: the entries are those whose sign is known on both sides, and are no sample of others; resamples
    of episodes add noise that the estimates do not have, so that their agreement is always lower.  NaN with fewer than
    3 entries.
    """
    statistic, chance = MEASURES[measure]
    n = int(mask.sum())
    if n < 3:
        nan = float("nan")
        return Agreement(nan, nan, nan, nan, n)
    j, r = coupling.jacobian[path][mask], coupling.correlation[mask]
    value = float(statistic(j, r))
    null = statistic(j, coupling.correlation_null[:, mask])
    null_low, null_high = band_of(null, ALPHA)
    p = float(permutation_p(value - chance, null - chance))
    return Agreement(value, null_low, null_high, p, n)
