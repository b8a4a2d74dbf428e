"""How well predictions agree with observations where both are means over noisy starts.

Noise hides agreement: means of half the starts do not even agree with the means of the other half, and each resample
of the starts hides more of it, so that a bootstrap excludes its own estimate.  Here the effects of one half of the
starts are asked about the predictions from the other half, and the same is asked of the observed effects themselves;
the ratio is free of most of the noise, and the square roots of the reliabilities of the halves take off the rest
(split-half correction for attenuation, Spearman 1904; exact for effects that are normal over the points).

The intervals are over starts, for these very points: they say how well these effects were predicted, not whether
predictions that know nothing of the changes would have done as well, which of few points they often do (``exchanged``).

P points (a change and a quantity each), N starts (independent units), K random halves; D changes of Q quantities.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from core.stats import Estimate, left_out, ratios

EXCHANGES = 199  # of predictions among changes; all there are, where these are fewer
HALVES = 20  # random halves of the starts, each with its complement
GROUPS = 48  # groups of starts at most that are left out in turn
LEAST = 6  # starts that a point must be about

Blocks = np.ndarray  # int64 [blocks, changes]: numbers of changes that stay together, in blocks that are alike


class Agreement(NamedTuple):
    """Of expected predictions m and expected effects s, over the points; NaN where the effects, or for the slope the
    predictions, do not differ from 0 beyond their noise.

    ``sign``: the share of the sum of |s| that lies at points where m has the sign of s (0.5: by chance; a prediction
    of exactly 0 counts half).
    ``rank``: the rank correlation cov(s, rank of m) / cov(s, rank of s) (Gini's; Schechtman & Yitzhaki 1987): 1 if the
    predictions have the order of the effects, 0 if none of it, and large effects count more than small ones.
    ``slope``: sum of m s / sum of m^2, of the effects on the predictions through the origin.
    """

    sign: Estimate
    rank: Estimate
    slope: Estimate
    points: int


def agreement(
    predicted_PN: np.ndarray, observed_PN: np.ndarray, *, rng: np.random.Generator, level: float = 0.95
) -> Agreement:
    """Agreement with intervals over starts (pseudo-values of leaving out starts, inferred like ``core.stats.means``).

    predicted_PN: float [P, N], or [P, 1] where it is the same at all starts; observed_PN: float [P, N].  NaN where a
    point is not about a start.  Points about fewer than LEAST starts, and those that were not predicted, are left out.
    """
    predicted_PN, observed_PN = _common(predicted_PN, observed_PN)
    starts = ~np.isnan(observed_PN).all(0)
    predicted_PN, observed_PN = predicted_PN[:, starts], observed_PN[:, starts]
    points, n = observed_PN.shape
    if not points or n < LEAST:
        nothing = Estimate.unknown(n)
        return Agreement(nothing, nothing, nothing, points)
    group_N = rng.permutation(n) % min(n, GROUPS)
    half_KN = halves(n, rng)
    weight_GN = left_out(int(group_N.max()) + 1, rng)[:, group_N] > 0
    sums_G32 = np.array([_sums(predicted_PN[:, w_N], observed_PN[:, w_N], half_KN[:, w_N]) for w_N in weight_GN])
    groups = len(sums_G32) - 1
    pseudo_G32 = groups * sums_G32[0] - (groups - 1) * sums_G32[1:]
    found = ratios(pseudo_G32[:, :, 0], pseudo_G32[:, :, 1], rng=rng)
    low_3, high_3 = found.interval(level)
    # Of the pseudo-values, whose mean is not quite the statistic of all starts.
    value_3 = _ratio(sums_G32[0])
    low_3, high_3 = (end_3 - found.value_Q + value_3 for end_3 in (low_3, high_3))
    each = [Estimate(float(v), float(a), float(b), n) for v, a, b in zip(value_3, low_3, high_3, strict=True)]
    sign, rank, slope = each
    return Agreement(_within(_share(sign), 0, 1), _within(rank, -1, 1), slope, points)


def exchanged(
    predicted_DQN: np.ndarray, observed_DQN: np.ndarray, blocks: Sequence[Blocks] | None = None, *,
    rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    """p of sign, rank and slope, float [3]: the share of exchanges of whole blocks' predictions (the own one among
    them) that agree with the effects as well.  Of two blocks it is never below 1/2, of three 1/6.  NaN where there is
    nothing to exchange or no agreement to ask about.

    Effects and predictions, float [D, Q, N]; NaN where a change is not about a start or a quantity not asked of it.
    blocks: changes that stay together (``blocks_of``); None: each is one, and all are alike.
    """
    count, n = len(observed_DQN), observed_DQN.shape[-1]
    blocks = [np.arange(count)[:, None]] if blocks is None else blocks
    exchanges = math.prod(math.factorial(len(alike)) for alike in blocks)
    if exchanges < 2 or n < LEAST:
        return np.full(3, np.nan)
    half_KN = halves(n, rng)

    def order(of_each: Iterable[Sequence[int]]) -> np.ndarray:
        """Whose prediction each change gets, when the blocks that are alike are put in these orders."""
        order_D = np.arange(count)
        for alike, turn in zip(blocks, of_each, strict=True):
            order_D[alike] = alike[list(turn)]
        return order_D

    if exchanges <= EXCHANGES + 1:
        each = itertools.product(*(itertools.permutations(range(len(alike))) for alike in blocks))
        orders = [order(turns) for turns in each]
    else:
        drawn = ([rng.permutation(len(alike)).tolist() for alike in blocks] for _ in range(EXCHANGES))
        orders = [np.arange(count), *map(order, drawn)]

    def of(order_D: np.ndarray) -> np.ndarray:
        flat = (x.reshape(-1, n) for x in (predicted_DQN[order_D], observed_DQN))
        return _ratio(_sums(*_common(*flat), half_KN))

    own_3, *others = (of(order_D) for order_D in orders)
    # An exchange whose predictions do not agree at all has no value, and is not as good.
    as_good_3 = 1 + sum((x_3 >= own_3 - 1e-9) for x_3 in others)
    return np.where(np.isnan(own_3), np.nan, as_good_3 / len(orders))


def blocks_of(ids: Sequence[tuple[int, ...]], like: Sequence[Hashable]) -> list[Blocks]:
    """Changes that share a direction, as one block; blocks of the same make-up together, int64 [blocks, changes].

    ids: the directions that each change is of; like: what it is but for its direction.  A shift and a collapse of one
    direction, foretold and seen, vary together, so that they are no two things to exchange.
    """
    root = list(range(len(ids)))
    for one, other in itertools.combinations(range(len(ids)), 2):
        if set(ids[one]) & set(ids[other]):
            old, new = root[other], root[one]
            root = [new if r == old else r for r in root]
    alike: dict[Hashable, list[list[int]]] = {}
    for of in dict.fromkeys(root):
        rows = sorted((d for d, r in enumerate(root) if r == of), key=lambda d: repr(like[d]))
        alike.setdefault(tuple(like[d] for d in rows), []).append(rows)
    return [np.array(rows) for rows in alike.values()]


def _common(predicted_PN: np.ndarray, observed_PN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both [P', N] with NaN in the same places, the points that can be asked."""
    observed_PN = np.array(observed_PN, np.float64)
    predicted_PN = np.array(np.broadcast_to(predicted_PN, observed_PN.shape), np.float64)
    unknown_PN = np.isnan(predicted_PN) | np.isnan(observed_PN)
    predicted_PN[unknown_PN], observed_PN[unknown_PN] = np.nan, np.nan
    there_P = (~unknown_PN).sum(1) >= LEAST
    return predicted_PN[there_P], observed_PN[there_P]


def halves(n: int, rng: np.random.Generator) -> np.ndarray:
    """Random halves of the starts, bool [K, N]."""
    return np.array([rng.permutation(n) < n // 2 for _ in range(HALVES)])


def _signs(mean_PK: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.sign(mean_PK)
    return out


def _ranks(mean_PK: np.ndarray) -> np.ndarray:
    """Centred; equal values share a rank, as the many effects of exactly 0 are in no order."""
    from scipy.stats import rankdata

    out: np.ndarray = rankdata(mean_PK, axis=0) - (1 + len(mean_PK)) / 2
    return out


def _sums(predicted_PN: np.ndarray, observed_PN: np.ndarray, half_KN: np.ndarray) -> np.ndarray:
    """Numerators and denominators [3, 2] of sign, rank and slope."""
    known_PN = ~np.isnan(observed_PN)
    m_PN, s_PN = np.where(known_PN, predicted_PN, 0), np.where(known_PN, observed_PN, 0)
    sides = [known_PN @ half.T.astype(np.float64) for half in (half_KN, ~half_KN)]
    # A point about few starts may have none in a half, which then says nothing of it.
    there_PK = (sides[0] > 0) & (sides[1] > 0)

    def means(x_PN: np.ndarray) -> list[np.ndarray]:
        halved = zip((half_KN, ~half_KN), sides, strict=True)
        return [(x_PN @ half.T.astype(np.float64)) / np.maximum(count_PK, 1) for half, count_PK in halved]

    (m_a, m_b), (s_a, s_b) = means(m_PN), means(s_PN)

    def asked(of: Callable[[np.ndarray], np.ndarray], centred: bool) -> tuple[float, float]:
        crossed = [
            ((of(x_a) * s_b + of(x_b) * s_a) * there_PK).sum() / _attenuation(x_a, x_b, there_PK, centred)
            for x_a, x_b in ((m_a, m_b), (s_a, s_b))
        ]
        return crossed[0], crossed[1]

    count_P = known_PN.sum(1)
    pairs_P = np.where(count_P > 1, count_P * (count_P - 1), np.nan)
    # Products of different starts only: the noise of one is in no product twice.
    products = [((m_PN.sum(1) * x_PN.sum(1) - (m_PN * x_PN).sum(1)) / pairs_P) for x_PN in (s_PN, m_PN)]
    return np.array([asked(_signs, False), asked(_ranks, True), [np.nansum(p) for p in products]])


def _attenuation(a_PK: np.ndarray, b_PK: np.ndarray, there_PK: np.ndarray, centred: bool) -> float:
    """By how much noise lowers the covariance of a number with the sign or rank of its noisy half mean: the square root
    of the half's reliability, for normal numbers.  NaN where one half knows nothing of the other."""
    if centred:
        count_K = np.maximum(there_PK.sum(0), 1)
        a_PK, b_PK = (x - (x * there_PK).sum(0) / count_K for x in (a_PK, b_PK))
    both = float((a_PK * b_PK * there_PK).sum())
    own = float(((a_PK**2 + b_PK**2) * there_PK).sum()) / 2
    return math.sqrt(both / own) if both > 0 else math.nan


def _ratio(sums_32: np.ndarray) -> np.ndarray:
    below = sums_32[:, 1]
    out: np.ndarray = np.divide(sums_32[:, 0], below, out=np.full(3, np.nan), where=below > 0)  # NaN is not above
    return out


def _share(e: Estimate) -> Estimate:
    return Estimate((1 + e.value) / 2, (1 + e.low) / 2, (1 + e.high) / 2, e.n)


def _within(e: Estimate, least: float, most: float) -> Estimate:
    value, low, high = (float(np.clip(x, least, most)) for x in e[:3])
    return Estimate(value, low, high, e.n)
