"""Curves: means against the scene's variable with whole bases as units, and monotone fits of them.

V values, E bases, P stances, Q quantities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.stats import Estimate, jackknifed, left_out, means, not_met, share_of

STEPS, CLOSE = 100, 1e-9  # of Newton's method
STEEPEST = 50.0  # slope at which a logistic curve is a step, over the whole range of values


def curve(value_VEP: np.ndarray, *, share: bool, rng: np.random.Generator) -> list[Estimate]:
    """One estimate a value; rows with NaN are left out.  share: the numbers are 0 or 1."""
    base_EP = np.broadcast_to(np.arange(value_VEP.shape[1])[:, None], value_VEP.shape[1:])
    out = []
    for value_EP in value_VEP:
        there = ~np.isnan(value_EP)
        x, base = value_EP[there], base_EP[there]
        out.append(share_of(x, base) if share else means(x[:, None], base, rng=rng).estimates()[0])
    return out


def by_base(value_VEP: np.ndarray) -> np.ndarray:
    """Means over stances, [V, E]; NaN where a base has none."""
    there = ~np.isnan(value_VEP)
    count = there.sum(2)
    return np.where(count > 0, np.where(there, value_VEP, 0).sum(2) / np.maximum(count, 1), np.nan)


def difference(
    value_VEP: np.ndarray, other_VEP: np.ndarray, rng: np.random.Generator, *, share: bool
) -> list[Estimate]:  # fmt: skip
    """Mean of the second less the first at every value, paired by base.  share: the numbers are 0 or 1; bases of which
    none changes do not say that none would (core.stats.not_met)."""
    change_VE = by_base(other_VEP) - by_base(value_VEP)
    found = [means(x[~np.isnan(x)][:, None], rng=rng).estimates()[0] for x in change_VE]
    return [not_met(e, 1.0, 0.95) for e in found] if share else found


@dataclass(frozen=True)
class Logistic:
    """1 / (1 + exp(-(x - middle) / width)); ``width`` is below 0 where the curve falls."""

    middle: Estimate  # the value at which it is a half
    width: Estimate
    slope: Estimate  # 1 / width: where its interval holds 0 the curve may be level, which is a half nowhere

    def at(self, x: np.ndarray) -> np.ndarray:
        out: np.ndarray = 1 / (1 + np.exp(-(x - self.middle.value) / self.width.value))
        return out


def fit_logistic(x_V: np.ndarray, value_VEP: np.ndarray, rng: np.random.Generator) -> Logistic | None:
    """The logistic curve of probabilities or shares (fractional logit; Papke & Wooldridge 1996, J. Applied Econometrics
    11), with intervals from leaving out bases.  None where no such curve fits: it is level, or a step."""
    p_VE = by_base(value_VEP)
    there_E = ~np.isnan(p_VE).any(0)
    p_VE = p_VE[:, there_E]
    weight_GE = left_out(p_VE.shape[1], rng)
    with np.errstate(invalid="ignore"):  # without the only base: NaN
        p_GV = weight_GE @ p_VE.T / weight_GE.sum(1, keepdims=True)
    fitted_G2 = np.stack([_fractional_logit(x_V, p_V) for p_V in p_GV])
    if np.isnan(fitted_G2[0]).any():
        return None
    fitted_G3 = np.column_stack([fitted_G2, 1 / fitted_G2[:, 1]])
    value, low, high = jackknifed(fitted_G3, rng=rng, units=p_VE.shape[1])
    n = p_VE.shape[1]
    return Logistic(*(Estimate(float(value[i]), float(low[i]), float(high[i]), n) for i in range(3)))


def _fractional_logit(x_V: np.ndarray, p_V: np.ndarray) -> np.ndarray:
    """(middle, width) of the likeliest curve; NaN where there is none."""
    centre, spread = x_V.mean(), max(float(np.ptp(x_V)), 1e-12)
    design = np.stack([np.ones_like(x_V), (x_V - centre) / spread], 1)
    beta = np.zeros(2)
    for _ in range(STEPS):
        mu = 1 / (1 + np.exp(-design @ beta))
        weight = mu * (1 - mu)
        hessian = design.T @ (weight[:, None] * design)
        if np.isnan(p_V).any() or np.linalg.det(hessian) < 1e-14:
            return np.full(2, np.nan)
        step = np.linalg.solve(hessian, design.T @ (p_V - mu))
        beta = beta + np.clip(step, -5, 5)
        if abs(beta).max() > STEEPEST:
            return np.full(2, np.nan)
        if abs(step).max() < CLOSE:
            break
    else:
        return np.full(2, np.nan)
    if abs(beta[1]) < 1e-6:  # level: nothing says where it would be a half
        return np.full(2, np.nan)
    return np.array([centre - spread * beta[0] / beta[1], spread / beta[1]])


def isotonic(y_V: np.ndarray, rising: bool) -> np.ndarray:
    """The nearest sequence, by squared error, that never turns (pool adjacent violators; Barlow et al. 1972)."""
    sign = 1 if rising else -1
    blocks: list[list[float]] = []  # [mean, length]
    for y in sign * np.asarray(y_V, np.float64):
        blocks.append([float(y), 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, m), (b, n) = blocks[-2], blocks[-1]
            blocks[-2:] = [[(a * m + b * n) / (m + n), m + n]]
    return sign * np.concatenate([np.full(int(n), y) for y, n in blocks])


def fit_isotonic(x_V: np.ndarray, estimates: list[Estimate]) -> list[Estimate]:
    """The monotone curve nearest to a curve, rising or falling as it does on the whole; the ends of its intervals are
    made monotone too, which only brings them nearer to a curve that is so (Chernozhukov et al. 2009, Biometrika 96)."""
    y_V = np.array([e.value for e in estimates])
    rising = bool(np.dot(x_V - x_V.mean(), y_V) >= 0)
    columns = [isotonic(np.array([e[i] for e in estimates]), rising) for i in range(3)]
    return [Estimate(float(v), float(a), float(b), e.n) for v, a, b, e in zip(*columns, estimates, strict=True)]
