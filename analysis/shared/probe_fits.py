"""Probes: how well a quantity can be read from a state, and how much of that is the probe's own doing.

A probe says that something is *there*, never that the agent uses it: a confounded direction is decoded perfectly and
moves nothing (analysis.coupling, analysis.patching and validation.interventions tell).  Whole units (episodes, lives,
worlds) are held out, resampled for intervals, and exchange targets for the control.

N rows, F features, S or K targets, G folds, P penalties, E units, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from analysis.shared.units import stretches
from core.contracts import UserError
from core.stats import ALPHA, LOST, Estimate, band_of, jackknife, least_units

# Ridge penalties, a row and a z-scored feature.  Units that all but repeat each other differ in directions of a
# millionth of their spread, which larger ones hide.
PENALTIES = 10.0 ** np.arange(-8, 4)
LEAST_FOLDS = 3  # one is held out, one chooses the penalty
DEGREE, TERMS = 5, 200  # of the polynomials that are partialled out, at most
KNOTS = 8  # of the bends that are
WAVES = 200  # random waves that are
BETWEEN = 0.9  # share of a confounder's spread between units from which on a unit counts as one value of it
ENOUGH_TO_TELL, ENOUGH_ALIKE = 100, 6  # units, or units of each value, that then tell what it does
VALIDATION_SHARE = 6  # one unit in so many of an MLP's training units says when to stop


@dataclass(frozen=True)
class Probe:
    """What a linear probe reads on episodes that it was not fitted on.

    ``r2``: 1 minus squared error over squared distance from the mean, at most 1; 0 is no better than the mean,
    below it is worse.  Its interval is over the episodes read, with the fits held as they are: somewhat too narrow.
    ``shuffled``: the same with the targets of other episodes (interval: the central 95 % over shuffles), so what
    time in the episode alone predicts.  ``p``: one-sided, that ``r2`` is one of the shuffled.
    """

    r2: Estimate
    shuffled: Estimate
    p: float
    predicted_N: np.ndarray  # float64, out-of-fold
    fold_N: np.ndarray  # int64, the fold in which a row was held out


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
    x_NF, y_N = np.asarray(x_NF, np.float64), np.asarray(y_N, np.float64)
    if x_NF.ndim != 2 or y_N.shape != (len(x_NF),) or np.shape(episode_N) != y_N.shape:
        raise ValueError(f"features {x_NF.shape}, target {y_N.shape} and episodes {np.shape(episode_N)} do not fit")
    if folds < LEAST_FOLDS or shuffles < 1:
        raise ValueError(f"{folds} folds and {shuffles} shuffles: at least {LEAST_FOLDS} and 1")
    for what, values in (("features", x_NF), ("target", y_N)):
        if not np.isfinite(values).all():
            raise UserError(f"the probe's {what} have NaN or infinite values; leave those rows out or record again")
    units, of_N = np.unique(episode_N, return_inverse=True)
    n, need = len(units), max(folds, least_units(ALPHA, "permutation"))
    if n < need:
        raise UserError(f"{n} episodes are too few for a probe with {folds} folds; at least {need} are needed")
    if np.ptp(y_N) == 0:
        raise UserError(f"the probe's target is {y_N[0]:g} at every step, so there is nothing to read; record more")
    fold_N = folds_of(of_N, folds, rng)
    donors = np.stack([exchanged(of_N, rng.permutation(n)) for _ in range(shuffles)], 1)
    y_NS = np.concatenate([y_N[:, None], y_N[donors]], 1)  # the target, then its shuffles
    predicted_NS = FoldedRidge(x_NF, fold_N).predict(y_NS)
    sums_E4S = unit_sums(predicted_NS, y_NS, of_N)
    value, low, high = jackknife(
        lambda rows: r2_of(sums_E4S[rows, :, :1].sum(0))[0], np.arange(n), rng=rng, link=LOST, draws=resamples
    )
    null_S = r2_of(sums_E4S[:, :, 1:].sum(0))
    null_low, null_high = band_of(null_S, ALPHA)
    return Probe(
        r2=Estimate(float(value), float(low), float(high), n),
        shuffled=Estimate(float(null_S.mean()), null_low, null_high, n),
        p=float((1 + (~(null_S < value)).sum()) / (1 + shuffles)),  # one that is undefined counts as reached
        predicted_N=predicted_NS[:, 0],
        fold_N=fold_N,
    )


# Splits and controls


def folds_of(unit_N: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """The fold, int64 [N], in which each row is held out: whole units, folds of about equally many rows."""
    from sklearn.model_selection import GroupKFold

    _, of_N = np.unique(unit_N, return_inverse=True)
    order_N = rng.permutation(of_N.max() + 1)[of_N]  # GroupKFold is not random: which units share a fold is drawn here
    fold_N = np.empty(len(of_N), np.int64)
    for fold, (_, test) in enumerate(GroupKFold(folds).split(of_N, groups=order_N)):
        fold_N[test] = fold
    return fold_N


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


def exchanged_units(
    life_N: np.ndarray, unit_N: np.ndarray, rng: np.random.Generator, step_N: np.ndarray | None = None
) -> np.ndarray:
    """The row whose target every row gets, int64 [N], where whole units (of one or more lives) are exchanged at random.

    A life gets the targets of a life of the donor unit, step t those of step t (where that was left out, of the nearest
    one); where that life has ended, those of the next one that has not, so that what time alone predicts survives
    though lives differ in length.  Steps that no other life reaches begin again.  Rows of a life are consecutive and in
    order of time; step_N: their steps, where these are not 0, 1, 2, ...
    """
    starts, length_L = stretches(life_N)
    step_L = [np.arange(n) if step_N is None else step_N[a : a + n] for a, n in zip(starts, length_L, strict=True)]
    unit_L = unit_N[starts]
    last_L = [int(step[-1]) for step in step_L]
    lives_E = [np.flatnonzero(unit_L == unit).tolist() for unit in rng.permutation(np.unique(unit_L))]
    out = np.empty(len(life_N), np.int64)
    for e, mine in enumerate(lives_E):
        others = lives_E[e + 1 :] + lives_E[:e]
        for rank, life in enumerate(mine):
            filled, donor = 0, int(others[0][0])
            for donor in (d for lives in others for d in _from(lives, rank)):
                if last_L[donor] < step_L[life][filled]:
                    continue
                stop = int(np.searchsorted(step_L[life], step_L[donor][-1], "right"))
                out[starts[life] + filled : starts[life] + stop] = starts[donor] + _nearest(
                    step_L[donor], step_L[life][filled:stop]
                )
                filled = stop
                if filled == length_L[life]:
                    break
            rest = np.arange(filled, length_L[life])
            out[starts[life] + rest] = starts[donor] + rest % length_L[donor]
    return out


def _from(lives: list[int], rank: int) -> list[int]:
    """The same in a circle, from place ``rank`` on."""
    first = rank % len(lives)
    return lives[first:] + lives[:first]


def _nearest(sorted_M: np.ndarray, x_N: np.ndarray) -> np.ndarray:
    """Index of the nearest of some increasing numbers, the later of two."""
    after_N = np.searchsorted(sorted_M, x_N).clip(0, len(sorted_M) - 1)
    before_N = (after_N - 1).clip(0)
    out: np.ndarray = np.where(x_N - sorted_M[before_N] < sorted_M[after_N] - x_N, before_N, after_N)
    return out


# Fits


class FoldSums:
    """Ridge regressions of any targets on the same features, worked out from sums over folds alone: no row is kept.

    The penalty of a fold and target is the one with the least squared error when each of the other folds is held out
    in turn.  The same as scikit-learn's StandardScaler and Ridge(penalty * N).
    """

    def __init__(
        self, n_G: np.ndarray, sum_GF: np.ndarray, gram_GFF: np.ndarray, penalties: np.ndarray = PENALTIES,
        least: float = 1e-12, keep: bool = True,
    ) -> None:  # fmt: skip
        """Of the rows of each fold: their number, and the sums and products of their features, about any point near the
        features' means.  penalties: a row and feature; least: the share of a feature's square that must be spread for
        it to count (larger for sums of less precision); keep: the decompositions, for further targets (a square of the
        features each, three times as many as folds)."""
        if len(n_G) < LEAST_FOLDS:
            raise ValueError(f"{len(n_G)} folds; at least {LEAST_FOLDS} are needed")
        self.n_G, self.sum_GF, self.gram_GFF = n_G, sum_GF, gram_GFF
        self.penalties, self.least, self.keep = penalties, least, keep
        self._systems: dict[tuple[int, ...], _System] = {}

    def fits_of(self, sums: Sums) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each fold, coefficients [F, S] and intercepts [S] (of the targets less ``sums.mean_S``) of the fit
        without it."""
        folds = range(len(self.n_G))
        error_GPS = np.zeros((len(folds), len(self.penalties), len(sums.mean_S)))
        for f in folds:
            for g in range(f):
                fit = self._solve(tuple(i for i in folds if i not in (f, g)), sums)
                error_GPS[f] += self._error(g, sums, *fit)
                error_GPS[g] += self._error(f, sums, *fit)
        return [_chosen(self._solve(tuple(i for i in folds if i != g), sums), error_GPS[g].argmin(0)) for g in folds]

    def easy_fits_of(self, sums: Sums) -> list[tuple[np.ndarray, np.ndarray]]:
        """``fits_of`` with the penalty that is best on the very folds held out, a third of the work: for controls that
        show how much too well something reads."""
        folds = range(len(self.n_G))
        fits = [self._solve(self._without(g), sums) for g in folds]
        best_S = np.argmin(sum(self._error(g, sums, *fits[g]) for g in folds), 0)
        return [_chosen(fit, best_S) for fit in fits]

    def whole_of(self, sums: Sums) -> np.ndarray:
        """Coefficients [F, S] (a feature's own units) of the fits on all rows; penalties by the folds held out."""
        every = tuple(range(len(self.n_G)))
        error_PS = sum(self._error(g, sums, *self._solve(self._without(g), sums)) for g in every)
        return _chosen(self._solve(every, sums), np.argmin(error_PS, 0))[0]

    def _without(self, g: int) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.n_G)) if i != g)

    def _solve(self, train: tuple[int, ...], sums: Sums) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients [P, F, S] and intercepts [P, S] of the fits on these folds, for every penalty."""
        these = list(train)
        system = self._systems.get(train)
        if system is None:
            n, sum_F, gram_FF = (part[these].sum(0) for part in (self.n_G, self.sum_GF, self.gram_GFF))
            system = _System.of(float(n), sum_F, gram_FF, self.least)
        if self.keep:
            self._systems[train] = system
        mean_S = sums.sum_GS[these].sum(0) / system.n
        covariance_FS = sums.cross_GFS[these].sum(0) / system.n - system.mean_F[:, None] * mean_S
        turned_FS = system.unscale_FF.T @ covariance_FS
        w_PFS = np.stack([system.unscale_FF @ (turned_FS / (system.variance_F + p)[:, None]) for p in self.penalties])
        return w_PFS, mean_S - system.mean_F @ w_PFS

    def _error(self, g: int, sums: Sums, w_XFS: np.ndarray, a_XS: np.ndarray) -> np.ndarray:
        """Squared error on fold g, [..., S]."""
        explained = ((self.gram_GFF[g] @ w_XFS - 2 * sums.cross_GFS[g]) * w_XFS).sum(-2)
        left = sums.sum_GS[g] - np.einsum("f,...fs->...s", self.sum_GF[g], w_XFS)
        out: np.ndarray = sums.square_GS[g] + explained - 2 * a_XS * left + self.n_G[g] * a_XS**2
        return out


class FoldedRidge(FoldSums):
    """``FoldSums`` of features in memory, each row predicted by a fit that has not seen its fold.

    Everything follows from sums over folds, so that thousands of (shuffled) targets cost little.
    """

    def __init__(self, x_NF: np.ndarray, fold_N: np.ndarray, penalties: np.ndarray = PENALTIES) -> None:
        """x_NF: float [N, F]; fold_N: int [N], 0 .. G-1, at least 3 of them; penalties: a row and feature."""
        x_NF = np.asarray(x_NF, np.float64)
        self.centre_F = x_NF.mean(0)
        self.x_NF = x_NF - self.centre_F
        self.rows_G = [np.flatnonzero(fold_N == g) for g in range(int(fold_N.max()) + 1)]
        super().__init__(
            np.array([len(rows) for rows in self.rows_G], np.float64),
            np.stack([self.x_NF[rows].sum(0) for rows in self.rows_G]),
            np.stack([self.x_NF[rows].T @ self.x_NF[rows] for rows in self.rows_G]), penalties,
        )  # fmt: skip

    def predict(self, y_NS: np.ndarray) -> np.ndarray:
        """Out-of-fold predictions, float64 [N, S]."""
        out = np.empty(y_NS.shape)
        for g, (coefficient_FS, intercept_S) in enumerate(self.fits(y_NS)):
            rows = self.rows_G[g]
            out[rows] = self.x_NF[rows] @ coefficient_FS + intercept_S
        return out

    def errors(self, y_NS: np.ndarray) -> np.ndarray:
        """Squared error of the out-of-fold predictions, summed over all rows: [S]."""
        sums = self._sums(y_NS)
        fits = self.fits_of(sums)
        out: np.ndarray = sum(self._error(g, sums, *fit) for g, fit in enumerate(fits))  # type: ignore[assignment]
        return out

    def fits(self, y_NS: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each fold, coefficients [F, S] and intercepts [S] (on centred features) of the fit without it."""
        sums = self._sums(y_NS)
        return [(w_FS, a_S + sums.mean_S) for w_FS, a_S in self.fits_of(sums)]

    def whole(self, y_NS: np.ndarray) -> np.ndarray:
        """Coefficients [F, S] (a feature's own units) of the fits on all rows; penalties by the folds held out."""
        return self.whole_of(self._sums(y_NS))

    def _sums(self, y_NS: np.ndarray) -> Sums:
        mean_S = y_NS.mean(0)
        parts = [y_NS[rows] - mean_S for rows in self.rows_G]
        return Sums(
            mean_S,
            np.stack([y.sum(0) for y in parts]),
            np.stack([self.x_NF[rows].T @ y for rows, y in zip(self.rows_G, parts, strict=True)]),
            np.stack([(y**2).sum(0) for y in parts]),
        )


@dataclass(frozen=True)
class Sums:
    """Of the targets, centred, over the rows of each fold."""

    mean_S: np.ndarray
    sum_GS: np.ndarray
    cross_GFS: np.ndarray  # with the features
    square_GS: np.ndarray


@dataclass(frozen=True)
class _System:
    """The features of some folds, decomposed: their correlations are vectors * variance * vectors^T."""

    n: float
    mean_F: np.ndarray
    variance_F: np.ndarray
    unscale_FF: np.ndarray  # eigenvectors as weights of the features in their own units

    @classmethod
    def of(cls, n: float, sum_F: np.ndarray, gram_FF: np.ndarray, least: float = 1e-12) -> _System:
        mean_F = sum_F / n
        covariance_FF = gram_FF / n - np.outer(mean_F, mean_F)
        square_F = np.diag(gram_FF) / n
        # A feature that is constant here says nothing.
        live_F = np.diag(covariance_FF) > least * np.maximum(square_F, 1e-300)
        std_F = np.sqrt(np.where(live_F, np.diag(covariance_FF), 1.0))
        variance_F, vectors_FF = np.linalg.eigh(np.where(np.outer(live_F, live_F), covariance_FF, 0)
                                                / np.outer(std_F, std_F))  # fmt: skip
        return cls(float(n), mean_F, variance_F.clip(0), vectors_FF * (live_F / std_F)[:, None])


def _chosen(fit: tuple[np.ndarray, np.ndarray], penalty_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients [F, S] and intercepts [S] with each target's own penalty."""
    targets = np.arange(len(penalty_S))
    return fit[0][penalty_S, :, targets].T, fit[1][penalty_S, targets]


@dataclass(frozen=True, kw_only=True)
class MlpOptions:
    """The network of the MLP probe: one hidden layer beside a linear path."""

    hidden: int = 32
    """hidden units a target"""
    shared: int = 128
    """hidden units of the one network for all targets that --inputs are read by"""
    epochs: int = 30
    """most passes over the training rows; each target keeps its best"""
    patience: int = 5
    """a target is done after so many passes without getting better"""
    batch: int = 256
    """rows an update"""
    rate: float = 1e-3
    """Adam's learning rate"""
    decay: float = 1.0
    """weight decay (AdamW)"""


def mlp_predict(
    x_NF: np.ndarray, y_NK: np.ndarray, fold_N: np.ndarray, unit_N: np.ndarray, options: MlpOptions, seed: int = 0,
    shared: bool = False, device: str = "cpu",
) -> np.ndarray:  # fmt: skip
    """Out-of-fold predictions [N, K] of networks with one hidden layer, one network a target, or (``shared``) one of
    ``options.shared`` hidden units for all.

    Each has a linear path beside the hidden layer, which begins as the ridge regression on its training rows, and
    keeps the epoch (that beginning among them) at which units held out of its training are read best, each target for
    itself; so it reads about what a linear probe reads, or more.
    """
    unit_N = np.unique(unit_N, return_inverse=True)[1]
    out, every = np.empty(y_NK.shape), np.arange(len(unit_N))
    for g in range(int(fold_N.max()) + 1):
        rng = np.random.default_rng((seed, g))
        test, train = np.flatnonzero(fold_N == g), every[fold_N != g]
        units = rng.permutation(np.unique(unit_N[train]))
        held = np.isin(unit_N[train], units[: max(1, round(len(units) / VALIDATION_SHARE))])
        fit, stop = train[~held], train[held]
        mean_F, mean_K = x_NF[fit].mean(0), y_NK[fit].mean(0)
        z_NF = ((x_NF - mean_F) / _or_one(x_NF[fit].std(0))).astype(np.float32)
        scale_K = _or_one(y_NK[fit].std(0))
        z_NK = ((y_NK - mean_K) / scale_K).astype(np.float32)
        linear_FK = _best_ridge(z_NF, z_NK, fit, stop)
        x, y, linear, *rows = (
            torch.from_numpy(a).to(device) for a in (z_NF, z_NK, linear_FK.astype(np.float32), fit, stop, test)
        )
        out[test] = mean_K + scale_K * _train_mlp(x, y, linear, rows, options, (seed, g), shared)
    return out


def _best_ridge(x_NF: np.ndarray, y_NK: np.ndarray, fit: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Coefficients [F, K] fitted on rows ``fit`` (where both sides are z-scored), penalties best on rows ``stop``."""
    x_MF = x_NF[fit].astype(np.float64)
    system = _System.of(len(fit), x_MF.sum(0), x_MF.T @ x_MF)
    turned_FK = system.unscale_FF.T @ (x_MF.T @ y_NK[fit]) / len(fit)
    w_PFK = np.stack([system.unscale_FF @ (turned_FK / (system.variance_F + p)[:, None]) for p in PENALTIES])
    error_PK = np.stack([((x_NF[stop] @ w_FK - y_NK[stop]) ** 2).mean(0) for w_FK in w_PFK])
    return w_PFK[error_PK.argmin(0), :, np.arange(y_NK.shape[1])].T


def _or_one(scale: np.ndarray) -> np.ndarray:
    return np.where(scale > 0, scale, 1).astype(scale.dtype)


def _train_mlp(
    x: torch.Tensor, y: torch.Tensor, linear_FK: torch.Tensor, rows: Sequence[torch.Tensor], options: MlpOptions,
    seed: tuple[int, int], shared: bool,
) -> np.ndarray:  # fmt: skip
    """What K networks, trained side by side, or one for all, say at the epoch that is best on rows of their own:
    [M, K].  x, y: float32 [N, F], [N, K], on the device that they are trained on; rows: to fit, to stop by and to say
    it of."""
    fit, stop, test = rows
    k, features, device = y.shape[1], x.shape[1], x.device
    hidden, own = options.shared if shared else options.hidden, 1 if shared else k  # units, and sets of them
    generator = torch.Generator().manual_seed(1009 * seed[0] + seed[1])
    first_FU = torch.randn(hidden, features, generator=generator).T.repeat(1, own) * (2 / features) ** 0.5
    begun = [first_FU.clone(), torch.zeros(own * hidden), torch.zeros(k, hidden), linear_FK.clone(), torch.zeros(k)]
    weights = [w.to(device) for w in begun]
    for w in weights:
        w.requires_grad_()
    optimiser = torch.optim.AdamW(weights, lr=options.rate, weight_decay=options.decay)

    def say(rows: torch.Tensor) -> torch.Tensor:
        x_BF = x[rows]
        hidden_BU = torch.relu(torch.addmm(weights[1], x_BF, weights[0]))
        read_BK = hidden_BU @ weights[2].T if shared else (hidden_BU.view(-1, k, hidden) * weights[2]).sum(-1)
        return read_BK + torch.addmm(weights[4], x_BF, weights[3])

    with torch.no_grad():
        least_K, best_MK = (say(stop) - y[stop]).square().mean(0), say(test)
    waited_K = torch.zeros(k, device=device)
    for _ in range(options.epochs):
        for some in fit[torch.randperm(len(fit), generator=generator).to(device)].split(options.batch):
            optimiser.zero_grad()
            (say(some) - y[some]).square().mean(0).sum().backward()
            optimiser.step()
        with torch.no_grad():
            error_K = (say(stop) - y[stop]).square().mean(0)
            better_K = (error_K < least_K) & (waited_K < options.patience)
            waited_K = torch.where(better_K, torch.zeros_like(waited_K), waited_K + 1)
            if better_K.any():
                least_K = torch.where(better_K, error_K, least_K)
                best_MK[:, better_K] = say(test)[:, better_K]
        if (waited_K >= options.patience).all():
            break
    return best_MK.double().cpu().numpy()


def polynomial(z_NC: np.ndarray) -> np.ndarray:
    """Products of powers of each confounder's rank, up to the fifth degree together, or as far as 200 terms go."""
    from sklearn.preprocessing import PolynomialFeatures

    count = z_NC.shape[1]
    degree = max(d for d in range(1, DEGREE + 1) if d == 1 or math.comb(count + d, d) <= TERMS)
    return np.asarray(PolynomialFeatures(degree, include_bias=False).fit_transform(ranks(z_NC)))


def waves(z_NC: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Bends of each confounder's rank at eight of its quantiles, and random waves over all ranks together.

    Waves are from the whole range to a tenth of it long (Rahimi & Recht 2007, "Random features for large-scale kernel
    machines").
    """
    rank_NC = ranks(z_NC)
    knots = np.linspace(-1, 1, KNOTS + 2)[1:-1]
    bends = [np.maximum(0, rank_N[:, None] - knots) for rank_N in rank_NC.T if len(np.unique(rank_N)) > 2]
    size_W = np.exp(rng.uniform(np.log(1), np.log(10), WAVES))
    turn_CW = rng.standard_normal((rank_NC.shape[1], WAVES)) * size_W
    return np.concatenate([*bends, np.cos(rank_NC @ turn_CW + rng.uniform(0, 2 * np.pi, WAVES))], 1)


def ranks(z_NC: np.ndarray) -> np.ndarray:
    """Each column's ranks, equal values alike, scaled to [-1, 1]."""
    from scipy.stats import rankdata

    rank_NC = np.stack([rankdata(z_N) for z_N in np.asarray(z_NC, np.float64).T], 1)
    return 2 * (rank_NC - 0.5) / len(rank_NC) - 1


def partial_out(
    z_NC: np.ndarray, fold_N: np.ndarray, rng: np.random.Generator, *values: np.ndarray
) -> list[np.ndarray]:
    """Each of ``values`` [N, S] less what any smooth function of the confounders z [N, C] says in folds held out.

    First polynomials, then waves on what those leave: with waves alone, few rows leave enough of the confounders on
    both sides to be found again (half of 60 worlds of 360 rows at level 0.05; so, 8 %).  Partialling out of both sides
    is wrong only by the product of both errors (Chernozhukov et al. 2018, "Double/debiased machine learning", 1.1).
    """
    left = [np.asarray(v, np.float64) for v in values]
    for features_NF in (polynomial(z_NC), waves(z_NC, rng)):
        confounders = FoldedRidge(features_NF, fold_N)
        left = [x_NS - confounders.predict(x_NS) for x_NS in left]
    return left


def told_by_few(z_NC: np.ndarray, unit_N: np.ndarray) -> np.ndarray:
    """Which confounders, bool [C], hardly vary within units that are too few to partial them out.

    Units and not rows then tell what the confounder does.  With few, much of a steep function of it stays on both sides
    and is found again: of 54 targets that hold nothing else, 8 were called read beyond it with 24 units, of 108 none
    with 100; with two such confounders 26 of 48 with 100 units, 3 with 400.  Enough are ENOUGH_TO_TELL, with k such
    confounders k^2 times as many, or ENOUGH_ALIKE units with each of their values (none of 345).
    """
    rank_NC = ranks(z_NC)
    _, of_N, rows_E = np.unique(unit_N, return_inverse=True, return_counts=True)
    mean_EC = np.stack([np.bincount(of_N, rank_N) for rank_N in rank_NC.T], 1) / rows_E[:, None]
    spread_C = rank_NC.var(0)
    few_C: np.ndarray = (spread_C > 0) & (mean_EC[of_N].var(0) >= BETWEEN * spread_C)
    if not few_C.any():
        return few_C
    alike = np.unique(mean_EC[:, few_C].round(9), axis=0, return_counts=True)[1].min()
    enough = len(rows_E) >= ENOUGH_TO_TELL * few_C.sum() ** 2 or alike >= ENOUGH_ALIKE
    return few_C & (not enough)


# Scores


def spread_of(y_NS: np.ndarray) -> np.ndarray:
    """Squared distance from the mean, summed over all rows, [S]; exactly 0 of what never changes (whose variance is
    1e-30 or so where its mean is rounded)."""
    out: np.ndarray = np.where(np.ptp(y_NS, 0) > 0, y_NS.var(0) * len(y_NS), 0.0)
    return out


def unit_sums(predicted_NS: np.ndarray, y_NS: np.ndarray, of_N: np.ndarray) -> np.ndarray:
    """Of each unit: squared error, sum and sum of squares of the centred target, and rows: [E, 4, S]."""
    centred_NS = y_NS - y_NS.mean(0)
    order = np.argsort(of_N, kind="stable")
    first = np.flatnonzero(np.diff(of_N[order], prepend=-1))
    four = ((y_NS - predicted_NS) ** 2, centred_NS, centred_NS**2, np.ones_like(y_NS))
    return np.stack([np.add.reduceat(values_NS[order], first) for values_NS in four], 1)


def r2_of(sums: np.ndarray) -> np.ndarray:
    """R^2 from ``unit_sums`` added up, [..., 4, S] -> [..., S]; NaN where the target does not vary."""
    error, total, squares, n = np.moveaxis(sums, -2, 0)
    spread = squares - total**2 / n
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 1e-12 * squares, 1 - error / spread, np.nan)


def auroc(score_N: np.ndarray, positive_N: np.ndarray, of_N: np.ndarray, weight_RE: np.ndarray) -> np.ndarray:
    """Area under the ROC curve under each weighting of the units, [R]: how often a positive row scores above another.

    Equal scores count half.  NaN where a weighting leaves only one class.
    """
    _, place_N = np.unique(score_N, return_inverse=True)
    size = int(place_N.max()) + 1
    out = np.empty(len(weight_RE))
    for r, weight_N in enumerate(weight_E[of_N] for weight_E in weight_RE):
        above, below = (np.bincount(place_N, weight_N * side, size) for side in (positive_N, ~positive_N))
        pairs = (above * (np.cumsum(below) - below / 2)).sum()
        both = above.sum() * below.sum()
        out[r] = pairs / both if both > 0 else np.nan
    return out
