"""Linear probes: how well a quantity can be read from a state, and how much of that is the probe's own doing.

A probe says that something is *there*, never that the agent uses it: a confounded direction is decoded
perfectly and moves nothing (analysis.coupling and validation.interventions tell).  Whole episodes are
held out, whole episodes are resampled for intervals and whole episodes exchange targets for the control.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.contracts import UserError
from core.stats import Estimate, bootstrap, least_units

ALPHA = 0.05  # a probe that could not be told from its control at this level is refused
PENALTIES = 10.0 ** np.arange(-5, 2)  # ridge penalties, a row and a z-scored feature
INNER_FOLDS = 2


@dataclass(frozen=True)
class Probe:
    """What a linear probe reads on episodes that it was not fitted on.

    ``r2``: 1 minus squared error over squared distance from the mean, at most 1; 0 is no better than the mean,
    below it is worse.  Its interval is over the episodes read, with the fits held as they are: somewhat too narrow.
    ``shuffled``: the same with the targets of other episodes (interval: the central 95 % over shuffles), so what
    time in the episode alone gives away.  ``p``: one-sided, that ``r2`` is one of the shuffled.
    """

    r2: Estimate
    shuffled: Estimate
    p: float
    predicted_N: np.ndarray  # float64, out-of-fold
    fold_N: np.ndarray  # int64, the fold in which a row was held out

    @property
    def selectivity(self) -> float:
        """R^2 minus that of the control (Hewitt & Liang 2019, arXiv:1909.03368)."""
        return self.r2.value - self.shuffled.value


def linear_probe(
    x_NF: np.ndarray,
    y_N: np.ndarray,
    episode_N: np.ndarray,
    *,
    rng: np.random.Generator,
    folds: int = 5,
    shuffles: int = 99,
    resamples: int = 1000,
) -> Probe:
    """Ridge regression of y on z-scored features, out of fold over whole episodes.

    x_NF: float [N, F]; y_N: float [N]; episode_N: [N], rows of an episode in order of time.  The penalty is chosen by
    an inner split over episodes, for every fold and every shuffle anew.  Raises UserError for NaN, a target that
    never changes, and too few episodes for the folds or for a shuffle to tell anything.
    """
    from sklearn.model_selection import GroupKFold

    x_NF, y_N = np.asarray(x_NF, np.float64), np.asarray(y_N, np.float64)
    if x_NF.ndim != 2 or y_N.shape != (len(x_NF),) or np.shape(episode_N) != y_N.shape:
        raise ValueError(f"features {x_NF.shape}, target {y_N.shape} and episodes {np.shape(episode_N)} do not fit")
    if folds < 2 or shuffles < 1:
        raise ValueError(f"{folds} folds and {shuffles} shuffles: at least 2 and 1")
    for what, values in (("features", x_NF), ("target", y_N)):
        if not np.isfinite(values).all():
            raise UserError(f"the probe's {what} have NaN or infinite values; leave those rows out or record again")
    units, of_N = np.unique(episode_N, return_inverse=True)
    n, need = len(units), max(folds, least_units(ALPHA, "permutation"))
    if n < need:
        raise UserError(f"{n} episodes are too few for a probe with {folds} folds; at least {need} are needed")
    if np.ptp(y_N) == 0:
        raise UserError(f"the probe's target is {y_N[0]:g} at every step, so there is nothing to read; record more")
    order = rng.permutation(n)[of_N]  # GroupKFold is not random: which episodes share a fold is drawn here
    donors = np.stack([exchanged(of_N, rng.permutation(n)) for _ in range(shuffles)], 1)
    y_NS = np.concatenate([y_N[:, None], y_N[donors]], 1)  # the target, then its shuffles
    predicted_NS, fold_N = np.empty_like(y_NS), np.empty(len(y_N), np.int64)
    for fold, (train, test) in enumerate(GroupKFold(folds).split(x_NF, groups=order)):
        best_S = _best_penalty(x_NF[train], y_NS[train], order[train])
        predicted_NS[test] = ridge(x_NF[train], y_NS[train], x_NF[test])[best_S, :, np.arange(len(best_S))].T
        fold_N[test] = fold
    sums_E3S = _episode_sums(predicted_NS, y_NS, of_N)
    value, low, high = bootstrap(
        lambda rows: _r2(sums_E3S[rows, :, 0].sum(0), np.bincount(of_N)[rows].sum()),
        np.arange(n),
        rng=rng,
        resamples=resamples,
    )
    null_S = _r2(sums_E3S[:, :, 1:].sum(0), len(y_N))
    null_low, null_high = np.quantile(null_S, [0.025, 0.975])
    return Probe(
        r2=Estimate(float(value), float(low), float(high), n),
        shuffled=Estimate(float(null_S.mean()), float(null_low), float(null_high), n),
        p=float((1 + (~(null_S < value)).sum()) / (1 + shuffles)),  # one that is undefined counts as reached
        predicted_N=predicted_NS[:, 0],
        fold_N=fold_N,
    )


def exchanged(of_N: np.ndarray, donor_E: np.ndarray) -> np.ndarray:
    """The row whose target every row gets, int64 [N], where episode e gets the targets of ``donor_E[e]``.

    Step t gets the donor's step t, so that what depends on time alone survives; a donor that is too short begins
    again.  of_N: episode numbers 0 .. E-1, rows of an episode in order of time.
    """
    count_E = np.bincount(of_N)
    rows = np.argsort(of_N, kind="stable")  # episode after episode
    first_E = np.cumsum(count_E) - count_E
    step = np.arange(len(of_N)) - np.repeat(first_E, count_E)
    donor = np.repeat(donor_E, count_E)
    out = np.empty(len(of_N), np.int64)
    out[rows] = rows[first_E[donor] + step % count_E[donor]]
    return out


def ridge(x_NF: np.ndarray, y_NS: np.ndarray, x_MF: np.ndarray, penalties: np.ndarray = PENALTIES) -> np.ndarray:
    """What ridge regression of y on the z-scored x says about other rows, for every penalty and target: [P, M, S].

    The same as scikit-learn's StandardScaler and Ridge(penalty * N), all penalties from one decomposition.
    """
    mean_F, std_F = x_NF.mean(0), x_NF.std(0)
    std_F = np.where(std_F > 1e-12 * np.abs(mean_F), std_F, 1.0)  # a constant feature says nothing
    z_NF = (x_NF - mean_F) / std_F
    variance_F, vectors_FF = np.linalg.eigh(z_NF.T @ z_NF / len(x_NF))
    turned_FS = vectors_FF.T @ (z_NF.T @ (y_NS - y_NS.mean(0)) / len(x_NF))
    z_MF = ((x_MF - mean_F) / std_F) @ vectors_FF
    return np.stack([z_MF @ (turned_FS / (variance_F + penalty)[:, None]) for penalty in penalties]) + y_NS.mean(0)


def _best_penalty(x_NF: np.ndarray, y_NS: np.ndarray, group_N: np.ndarray) -> np.ndarray:
    """Which penalty has the least squared error on held-out episodes, for every target: int64 [S]."""
    from sklearn.model_selection import GroupKFold

    error_PS = np.zeros((len(PENALTIES), y_NS.shape[1]))
    for train, test in GroupKFold(INNER_FOLDS).split(x_NF, groups=group_N):
        error_PS += ((ridge(x_NF[train], y_NS[train], x_NF[test]) - y_NS[test]) ** 2).sum(1)
    return error_PS.argmin(0)


def _episode_sums(predicted_NS: np.ndarray, y_NS: np.ndarray, of_N: np.ndarray) -> np.ndarray:
    """Squared error, sum and sum of squares of the centred target, [E, 3, S]."""
    centred_NS = y_NS - y_NS.mean(0)
    order = np.argsort(of_N, kind="stable")
    first = np.flatnonzero(np.diff(of_N[order], prepend=-1))
    three = ((y_NS - predicted_NS) ** 2, centred_NS, centred_NS**2)
    return np.stack([np.add.reduceat(values_NS[order], first) for values_NS in three], 1)


def _r2(sums_3X: np.ndarray, n: int) -> np.ndarray:
    """R^2 from squared error, sum and sum of squares of n targets; NaN where the target does not vary."""
    error, total, squares = sums_3X
    spread = squares - total**2 / n
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 1e-12 * squares, 1 - error / spread, np.nan)
