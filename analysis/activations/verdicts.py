"""What clusters of activations are about: behaviour, phase of the game, place, who the agent is, or nothing.

Clusters of an agent's activations look meaningful on a map whatever they are, so every cluster has to pass tests that
can fail.  Lives (one agent from its first to its last observation) of one world share its map and its events: where
there are LEAST_WORLDS worlds, whole worlds exchange labels and are resampled, else single lives, and what happened in
one world may pass for behaviour.

Three things are taken out of a feature before it may count as behaviour:

* *time*: its mean at that tick and at that share of the lifespan;
* *who*: its mean in that life;
* *chance that keeps the order in time*: the same number is taken for labels that worlds (else lives of similar
  length) have exchanged, tick by tick.  A cluster that is nothing but time gives the same number there.

Clusters may differ in what no mean shows: food is either high or low in one, and in another agents fight where their
health is low and flee where it is high.  So the same three are taken out of the square of every column (its *spread*)
and of the product of every two (a *pair*), columns being normal scores, so that no outlier decides.  And whatever
three or more columns say together, or columns with time: do the nearest neighbours of a cluster's rows, in all of them
and in other worlds (else lives), belong to it more often than under exchanged labels (Schilling 1986)?

Verdicts of a cluster, the first rule that holds (the numbers are the constants below, each measured on planted data by
tests/unit/test_activations.py):

1. undecided: fewer than LEAST_LIVES lives in all.
2. behaviour: at least one feature differs by BEHAVIOUR_D or more beyond time and who, its interval
   over lives excludes 0, q <= ALPHA against exchanged labels, and at least FEW_AGENTS agents (effective number) enter
   and leave the cluster.
3. identity: between lives, or between worlds (more than with lives dealt to worlds at random), lies at least
   IDENTITY_SHARE of the variance of membership that time does not explain; or fewer than FEW_AGENTS agents are in it
   (effective number) where its runs, dealt to lives that were alive at those ticks, would have at least twice as many.
4. phase: time alone tells members from others with an area under the curve of PHASE_AUC or more in lives that were not
   looked at, and more than for labels rotated within lives (worlds: of all lives of one together).
5. place: as 2, for the position.
6. behaviour: as 2, for a spread or a pair (place: of positions alone).
7. undecided: it is of one world; or something is there (a weaker effect of any kind that passes the tests of 2; or
   neighbours belong to it more often, q <= ALPHA; or time tells members with WEAK_AUC).
8. noise: every mean, spread and pair was tested, and the 90 % interval of each lies within the smallest effect of
   interest (the two one-sided tests of equivalence, Schuirmann 1987).  Else undecided: nothing is found, and something
   could have been missed.

A behaviour may be bound to a phase too: ``why`` says where time alone also tells the cluster, and ``told_by_time`` how
many of the records that is.  Lives so short that nobody leaves a cluster cannot tell behaviour from identity; they say
identity.

The verdict of the whole: that of at least half of the rows that are in clusters, else mixed; NO_CLUSTERS if there is
none.

C clusters, F features, E lives, N rows; rows of a life are consecutive and in order of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.shared.clusters import TIME_BINS, rotated_rows, time_bins
from analysis.shared.units import stretches
from core.progress import track
from core.stats import ALPHA, benjamini_hochberg, d_of_sums, eta_squared, jackknifed, left_out, permutation_p

DEALS = 39  # of lives to worlds: a share above all of them has p = 1/40
LEAST_WORLDS = 10  # fewer exchange their labels in too few ways
LEAST_LIVES = 10  # fewer exchange their labels in too few ways, and two halves of them say nothing of time
BEHAVIOUR_D = 0.5  # a medium effect (Cohen 1988); what is left of it after time and life are taken out
WEAK_D = 0.2  # a small one
IDENTITY_SHARE = 0.5
FEW_AGENTS = 5.0
PHASE_AUC = 0.75  # a single normal quantity would have to differ by d = 0.95
WEAK_AUC = 0.625  # d = 0.45
LEAST_LEFT = 0.01  # share of a feature's variance; where time and life leave less, what they leave is no evidence
CELLS, CELL_ROWS = 200, 10  # of time: at most so many, with at least so many rows
STRATUM = 10  # lives of similar length that exchange labels
TAIL_DF = 10
NOISE_OF_D = 1e-9  # and of shares: rounding errors of the differences that they are made of
NEIGHBOURS, NEIGHBOUR_ROWS = 10, 20_000  # of a row; every n-th row, so that at most so many look for theirs
SPLITS = 20  # random halves of the lives
ROTATIONS = 200
KINDS = ("behaviour", "phase", "identity", "place", "noise", "undecided")
NO_CLUSTERS = "no clusters"  # the verdict of the whole where there is nothing to judge


@dataclass(frozen=True)
class Lives:
    """Where rows belong: ``life_N`` int64 [N] (0 to E-1, ascending), ``agent_E`` int64 [E] (0 to A-1; E different ones
    where agents live once), ``tick_N`` and ``share_N`` float64 [N] (of the lifespan, 0 to 1); ``world_E``
    int64 [E] (0 to W-1) or None where it is not known."""

    life_N: np.ndarray
    agent_E: np.ndarray
    tick_N: np.ndarray
    share_N: np.ndarray
    world_E: np.ndarray | None = None

    @property
    def by_world(self) -> bool:
        """Whether worlds are enough to be exchanged and resampled whole."""
        return self.world_E is not None and len(np.unique(self.world_E)) >= LEAST_WORLDS

    @property
    def unit_E(self) -> np.ndarray:
        """What is exchanged and resampled whole: the world of every life, or the life itself."""
        if self.world_E is not None and self.by_world:
            return np.unique(self.world_E, return_inverse=True)[1]
        return np.arange(len(self.agent_E))

    @property
    def count_E(self) -> np.ndarray:
        return np.bincount(self.life_N)

    @property
    def agents(self) -> int:
        return int(self.agent_E.max()) + 1


# Labels that know nothing


def dealt_rows(lives: Lives, rng: np.random.Generator, *, rotate: bool) -> np.ndarray:
    """The row whose label every row gets, int64 [N], where worlds, or lives of similar length, exchange theirs whole.

    The i-th row of a life gets the label of the donor's i-th row, so that runs and the way labels depend on time stay;
    past the donor's end it goes back from there. The lives of a world get those of one world, the longer of the
    longer.
    rotate: each donor's labels are rotated by a random share of its length first, the same in a world, so that time is
    lost.
    """
    count_E = lives.count_E
    start_E = np.cumsum(count_E) - count_E
    by_length = np.argsort(count_E + rng.random(len(count_E)), kind="stable")  # ties at random
    donor_E = np.empty(len(count_E), np.int64)
    unit_E = lives.unit_E
    if lives.by_world:
        members = [by_length[unit_E[by_length] == w] for w in range(int(unit_E.max()) + 1)]
        for mine, w in zip(members, rng.permutation(len(members)), strict=True):
            donor_E[mine] = members[w][np.arange(len(mine)) * len(members[w]) // len(mine)]
    else:
        for group in np.array_split(by_length, max(1, len(by_length) // STRATUM)):
            donor_E[group] = rng.permutation(group)
    share_E = rng.random(int(unit_E.max()) + 1)[unit_E] if rotate else np.zeros(len(unit_E))
    shift_E = (share_E * count_E).astype(np.int64)
    i_N = np.arange(len(lives.life_N)) - start_E[lives.life_N]
    donor_N = donor_E[lives.life_N]
    length_N = count_E[donor_N]
    at_N = i_N % (2 * length_N)
    at_N = np.where(at_N < length_N, at_N, 2 * length_N - 1 - at_N)
    return start_E[donor_N] + (at_N + shift_E[donor_N]) % length_N


# Effect sizes


def group_d(x_NF: np.ndarray, label_N: np.ndarray, clusters: int) -> np.ndarray:
    """Cohen's d of every cluster's rows against all others, float64 [C, F]: core.stats.cohens_d for all at once.

    x_NF must be centred.
    """
    from scipy.sparse import csr_matrix

    inside = np.flatnonzero(label_N >= 0)
    member_CN = csr_matrix((np.ones(len(inside)), (label_N[inside], inside)), (clusters, len(label_N)))
    n_C, x_CF = np.bincount(label_N[inside], minlength=clusters).astype(np.float64), member_CN @ x_NF
    return d_of_sums(*_and_rest(n_C, x_CF, len(label_N), x_NF.sum(0)), (x_NF**2).sum(0))


def _and_rest(n_R: np.ndarray, x_RF: np.ndarray, n: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts [R, 2] and sums [R, 2, F] of members and of the others, from the members' and those of all."""
    return np.stack([n_R, n - n_R], 1), np.stack([x_RF, x - x_RF], 1)


def d_interval(
    x_NF: np.ndarray, label_N: np.ndarray, life_N: np.ndarray, clusters: int, rng: np.random.Generator, resamples: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ends of the 95 % intervals of ``group_d``, each [C, F], from leaving out whole lives or worlds, and how far from
    0 the 90 % intervals reach.

    As wide as the lives of the scarcer group make it; NaN if those are fewer than two.
    """
    lives, features = int(life_N.max()) + 1, x_NF.shape[1]
    n_E = np.bincount(life_N, minlength=lives)
    weight_GE = left_out(lives, rng)
    x_EF, xx_EF = (np.stack([np.bincount(life_N, column, lives) for column in (x_NF**k).T], 1) for k in (1, 2))
    n_G, x_GF, xx_GF = weight_GE @ n_E, weight_GE @ x_EF, weight_GE @ xx_EF
    low, high, reach = np.full((3, clusters, features), np.nan)
    for c in range(clusters):
        rows = np.flatnonzero(label_N == c)
        n_cE = np.bincount(life_N[rows], minlength=lives)
        some = np.flatnonzero(n_cE)
        x_sF = np.stack([np.bincount(life_N[rows], column, lives)[some] for column in x_NF[rows].T], 1)
        members = weight_GE[:, some] @ n_cE[some], weight_GE[:, some] @ x_sF
        d_GF = d_of_sums(*_and_rest(*members, n_G, x_GF), xx_GF)
        units = min(len(some), int((n_E > n_cE).sum()))
        _, low[c], high[c] = jackknifed(d_GF, rng=rng, units=units, draws=resamples)
        _, *ends = jackknifed(d_GF, rng=rng, units=units, level=0.9, draws=resamples)
        reach[c] = np.abs(ends).max(0)
    return low, high, reach


def null_d(
    x_NF: np.ndarray,
    label_N: np.ndarray,
    clusters: int,
    lives: Lives,
    rng: np.random.Generator,
    permutations: int,
    *,
    rotate: bool,
) -> np.ndarray:
    """``group_d`` float32 [P, C, F] of labels that lives have exchanged (``dealt_rows``)."""
    what = "rotated labels" if rotate else "exchanged labels"
    out = np.empty((permutations, clusters, x_NF.shape[1]), np.float32)
    for i in track(range(permutations), what):
        out[i] = group_d(x_NF, label_N[dealt_rows(lives, rng, rotate=rotate)], clusters)
    return out


# Time and life


def cells(value_N: np.ndarray) -> np.ndarray:
    """int64 [N]: equal for equal values; rare neighbouring ones together, so that there are CELLS or fewer, of
    CELL_ROWS rows or more."""
    _, of_N, count = np.unique(value_N, return_inverse=True, return_counts=True)
    cell = (np.cumsum(count) - 1) // max(CELL_ROWS, -(-len(value_N) // CELLS))
    return np.unique(cell, return_inverse=True)[1][of_N]


def time_columns(lives: Lives) -> np.ndarray:
    """float64 [N, Q]: indicators of the tick (``cells``) and of the bin of the share of the lifespan, and both
    themselves.

    Ticks one by one: food falls in lockstep at the start of a game, and a cluster of ten ticks would show it.
    """
    parts = []
    for value_N, bin_N in ((lives.tick_N, cells(lives.tick_N)), (lives.share_N, time_bins(lives.share_N))):
        parts += [(bin_N[:, None] == np.unique(bin_N)).astype(np.float64), value_N[:, None] - value_N.mean()]
    return np.concatenate(parts, 1)


def orthonormal(x_NQ: np.ndarray) -> np.ndarray:
    """An orthonormal basis [N, rank] of what the columns span."""
    scale_Q = np.linalg.norm(x_NQ, axis=0)
    x_NQ = x_NQ[:, scale_Q > 0] / scale_Q[scale_Q > 0]
    if not x_NQ.shape[1]:
        return x_NQ
    variance, vectors = np.linalg.eigh(x_NQ.T @ x_NQ)
    kept = variance > 1e-9 * variance[-1]
    return x_NQ @ (vectors[:, kept] / np.sqrt(variance[kept]))


def life_means(x_NF: np.ndarray, life_N: np.ndarray) -> np.ndarray:
    """The mean of its life at every row, [N, F]."""
    count_E = np.bincount(life_N)
    means_EF = np.stack([np.bincount(life_N, column) / count_E for column in x_NF.T], 1)
    return means_EF[life_N]


def beyond_time_and_life(x_NF: np.ndarray, lives: Lives) -> np.ndarray:
    """Residuals [N, F] of least squares on time (``time_columns``) and one constant a life; centred."""
    columns_NQ = time_columns(lives)
    basis_NQ = orthonormal(columns_NQ - life_means(columns_NQ, lives.life_N))
    x_NF = x_NF - life_means(x_NF, lives.life_N)
    return x_NF - basis_NQ @ (basis_NQ.T @ x_NF)


def normal_scores(x_NF: np.ndarray) -> np.ndarray:
    """Every column's ranks, equal values alike, as quantiles of the normal distribution (van der Waerden 1952)."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    out: np.ndarray = ndtri((rankdata(x_NF, axis=0) - 0.5) / len(x_NF))
    return out


def spreads_and_pairs(x_NF: np.ndarray, lives: Lives) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """(values [N, M], the two columns [M] that each is of, equal ones for a spread): squares and products of what time
    and life leave of the columns' normal scores, less what time and life say of them.

    Left out are columns of which time and life leave nothing, and the squares of those with two values, which their
    means tell.
    """
    scores_NF = normal_scores(x_NF)
    left_NF = _left(scores_NF, lives)
    live = np.flatnonzero(left_NF.any(0))
    two_F = np.array([len(np.unique(x_N)) == 2 for x_N in x_NF.T])
    of = [(int(f), int(g)) for i, f in enumerate(live) for g in live[i:] if f != g or not two_F[f]]
    if not of:
        return np.zeros((len(x_NF), 0)), []
    left_NF[:, live] /= left_NF[:, live].std(0)
    return beyond_time_and_life(np.stack([left_NF[:, f] * left_NF[:, g] for f, g in of], 1), lives), of


@dataclass(frozen=True)
class Neighbours:
    """``share`` [C] of the nearest neighbours of a cluster's rows that belong to it too, ``chance`` [C] under exchanged
    labels, ``p`` and ``q`` [C]."""

    share: np.ndarray
    chance: np.ndarray
    p: np.ndarray
    q: np.ndarray


def neighbours(
    x_NF: np.ndarray, label_N: np.ndarray, clusters: int, lives: Lives, rng: np.random.Generator, permutations: int
) -> Neighbours:
    """Whether rows that are alike in all columns (in what time and life leave of them) and in time share a cluster.

    Neighbours are of other worlds, or lives: those of one resemble each other, whatever its labels.
    """
    from sklearn.neighbors import NearestNeighbors

    rows = np.arange(0, len(x_NF), -(-len(x_NF) // NEIGHBOUR_ROWS))
    left_NF = _left(normal_scores(x_NF), lives)
    z_NF = np.column_stack([left_NF[:, left_NF.any(0)], normal_scores(np.stack([lives.tick_N, lives.share_N], 1))])
    z_MF = z_NF[rows] / np.maximum(z_NF[rows].std(0), 1e-12)
    unit_M = lives.unit_E[lives.life_N[rows]]
    asked = min(len(rows), 8 * NEIGHBOURS)
    near_MK = NearestNeighbors(n_neighbors=asked, algorithm="brute").fit(z_MF).kneighbors(z_MF, return_distance=False)
    other_MK = unit_M[near_MK] != unit_M[:, None]
    counted_MK = other_MK & (np.cumsum(other_MK, 1) <= NEIGHBOURS)
    count_M = counted_MK.sum(1)
    pairs = np.nonzero(counted_MK)
    weight_X = 1 / count_M[pairs[0]]

    def share_C(labels: np.ndarray) -> np.ndarray:
        labels = labels[rows]
        mine_X = labels[pairs[0]]
        alike = (mine_X >= 0) & (mine_X == labels[near_MK[pairs]])
        asking = np.bincount(labels[(labels >= 0) & (count_M > 0)], minlength=clusters)
        with np.errstate(invalid="ignore"):
            out: np.ndarray = np.bincount(mine_X[alike], weight_X[alike], clusters) / asking
        return out

    exchanged = track(range(permutations), "neighbours")
    null_PC = np.stack([share_C(label_N[dealt_rows(lives, rng, rotate=False)]) for _ in exchanged])
    share = share_C(label_N)
    p_C = _p(share, null_PC)
    chance = np.nansum(null_PC, 0) / np.maximum((~np.isnan(null_PC)).sum(0), 1)
    return Neighbours(share, chance, p_C, benjamini_hochberg(p_C))


def _left(x_NF: np.ndarray, lives: Lives) -> np.ndarray:
    """``beyond_time_and_life``; 0 where that is so little that it is no evidence."""
    left_NF = beyond_time_and_life(x_NF, lives)
    left_NF[:, (left_NF**2).sum(0) <= LEAST_LEFT * ((x_NF - x_NF.mean(0)) ** 2).sum(0)] = 0
    return left_NF


def life_share(label_N: np.ndarray, clusters: int, lives: Lives) -> np.ndarray:
    """Share [C] of the variance of membership that lies between lives and that time does not explain.

    Adjusted for degrees of freedom: about 0 for labels that are independent of lives.
    """
    n, e = len(label_N), len(lives.agent_E)
    columns_NQ = time_columns(lives)
    alone_NQ = orthonormal(columns_NQ)  # with the constant, which the bins' indicators add up to
    within_NQ = orthonormal(columns_NQ - life_means(columns_NQ, lives.life_N))
    count_E, out = lives.count_E, np.full(clusters, np.nan)
    for c in range(clusters):
        rows = np.flatnonzero(label_N == c)
        total = len(rows) * (1 - len(rows) / n)
        left_time = len(rows) - (alone_NQ[rows].sum(0) ** 2).sum()
        per_life = np.bincount(lives.life_N[rows], minlength=e)
        left_both = len(rows) - (per_life**2 / count_E).sum() - (within_NQ[rows].sum(0) ** 2).sum()
        free_time, free_both = n - alone_NQ.shape[1], n - e - within_NQ.shape[1]
        if total > 0 and free_both > 0 and left_time > 0:
            out[c] = (1 - left_both / free_both / (left_time / free_time)) * left_time / total
    return out


def world_share(label_N: np.ndarray, clusters: int, lives: Lives) -> np.ndarray:
    """``life_share`` [C] of worlds instead of lives; NaN if there are not several, each of several lives."""
    if lives.world_E is None:
        return np.full(clusters, np.nan)
    worlds, world_E = np.unique(lives.world_E, return_inverse=True)
    if not 1 < len(worlds) < len(world_E):
        return np.full(clusters, np.nan)
    return life_share(
        label_N, clusters, Lives(world_E[lives.life_N], np.arange(len(worlds)), lives.tick_N, lives.share_N)
    )


def dealt_world_share(share_C: np.ndarray, label_N: np.ndarray, lives: Lives, rng: np.random.Generator) -> np.ndarray:
    """The largest ``world_share`` [C] of DEALS in which lives are dealt to the worlds at random: of few lives a world,
    each with a label of its own, worlds settle much by chance.  NaN where no share is of interest, or none is known."""
    if lives.world_E is None or not (share_C >= IDENTITY_SHARE).any():
        return np.full(len(share_C), np.nan)
    dealt = (replace(lives, world_E=rng.permutation(lives.world_E)) for _ in range(DEALS))
    most: np.ndarray = np.max([world_share(label_N, len(share_C), some) for some in dealt], 0)
    return most


def counts(label_N: np.ndarray, bin_N: np.ndarray, clusters: int) -> np.ndarray:
    """Rows of every cluster in every bin of time, float64 [C, TIME_BINS]."""
    inside = label_N >= 0
    flat = np.bincount(label_N[inside] * TIME_BINS + bin_N[inside], minlength=clusters * TIME_BINS)
    return flat.reshape(clusters, TIME_BINS).astype(np.float64)


def held_out_auc(
    label_N: np.ndarray, bin_N: np.ndarray, clusters: int, life_N: np.ndarray, half_E: np.ndarray
) -> np.ndarray:
    """How well the bin of time tells members in one half of the lives by the rates of the other, [C]; 0.5: not at all.

    half_E: bool [E].  The mean of both directions; a cluster that is in one half only has 0.5 there.
    """
    half_N = half_E[life_N]
    member_2CB = np.stack([counts(label_N[half_N == h], bin_N[half_N == h], clusters) for h in (False, True)])
    all_2B = np.stack([np.bincount(bin_N[half_N == h], minlength=TIME_BINS) for h in (False, True)])
    aucs = []
    for seen, told in ((0, 1), (1, 0)):
        rate_CB = member_2CB[seen] / np.maximum(all_2B[seen], 1)
        above_CBB = np.sign(rate_CB[:, :, None] - rate_CB[:, None, :]) / 2 + 0.5
        inside_CB, outside_CB = member_2CB[told], all_2B[told] - member_2CB[told]
        pairs_C = inside_CB.sum(1) * outside_CB.sum(1)
        wins_C = np.einsum("cb,cbd,cd->c", inside_CB, above_CBB, outside_CB)
        aucs.append(np.where(pairs_C > 0, wins_C / np.maximum(pairs_C, 1), 0.5))
    return np.mean(aucs, 0)


def entropy(counts_XB: np.ndarray) -> np.ndarray:
    """Entropy [X] in nats of the shares of the last axis."""
    p = counts_XB / np.maximum(counts_XB.sum(-1, keepdims=True), 1e-300)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


def dealt_agent_entropy(
    label_N: np.ndarray, clusters: int, lives: Lives, rng: np.random.Generator, repeats: int
) -> np.ndarray:
    """Entropy of agents [repeats, C] if every run of a cluster were of a random life that was alive at its first tick.

    What the lengths of runs and the times of a cluster give by themselves.
    """
    first_X, length_X = stretches(label_N, lives.life_N)
    bin_N = time_bins(lives.tick_N)
    by_bin = np.argsort(bin_N, kind="stable")
    n_B = np.bincount(bin_N, minlength=TIME_BINS)
    start_B = np.cumsum(n_B) - n_B
    out = np.zeros((repeats, clusters))
    for c in range(clusters):
        mine = label_N[first_X] == c
        b_X = bin_N[first_X[mine]]
        picked = by_bin[start_B[b_X] + (rng.random((repeats, len(b_X))) * n_B[b_X]).astype(np.int64)]
        agent_RX = lives.agent_E[lives.life_N[picked]]
        flat = np.arange(repeats)[:, None] * lives.agents + agent_RX
        weight = np.broadcast_to(length_X[mine], agent_RX.shape)
        out[:, c] = entropy(
            np.bincount(flat.ravel(), weight.ravel(), repeats * lives.agents).reshape(repeats, lives.agents)
        )
    return out


# Verdicts


@dataclass(frozen=True)
class Beyond:
    """Effect sizes beyond time and life of M quantities per cluster, each [C, M]: Cohen's d, the ends of its 95 %
    interval, p and q against labels that lives have exchanged tick by tick, and ``reach``, how far from 0 its 90 %
    interval goes.  All NaN where time and life give a quantity exactly."""

    names: tuple[str, ...]
    is_place: np.ndarray  # bool [M], of positions alone
    d: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    q: np.ndarray
    reach: np.ndarray

    def rows(self) -> list[dict[str, Any]]:
        """A row a cluster and quantity."""
        return [
            {"cluster": c, "of": name}
            | {k: rounded(getattr(self, k)[c, m]) for k in ("d", "low", "high", "p", "q", "reach")}
            for c in range(len(self.d))
            for m, name in enumerate(self.names)
            if not np.isnan(self.d[c, m])
        ]


@dataclass(frozen=True)
class Effects:
    """Effect sizes of columns (features, then place) per cluster, each [C, F].

    ``d``: Cohen's d, with ``low`` and ``high`` over lives; ``p``, ``q`` against the labels of other lives, rotated.
    ``beyond``: the same of what time and life leave of the columns; ``joint``: of their spreads and pairs; ``near``: of
    all of them together.
    p-values are two-sided about the mean of the exchanged labels; the q-values of features are one family, those of
    place another, those of ``joint`` a third.
    """

    names: tuple[str, ...]
    d: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    q: np.ndarray
    beyond: Beyond
    joint: Beyond
    near: Neighbours

    def table(self) -> list[dict[str, Any]]:
        """A row a cluster and column."""
        fields = ("d", "low", "high", "p", "q")
        return [
            {"cluster": c, "feature": name}
            | {k: rounded(getattr(self, k)[c, f]) for k in fields}
            | {"beyond": rounded(self.beyond.d[c, f])}
            | {f"beyond_{k}": rounded(getattr(self.beyond, k)[c, f]) for k in ("low", "high", "p", "q", "reach")}
            for c in range(len(self.d))
            for f, name in enumerate(self.names)
        ]


def rounded(value: float) -> float | None:
    """Six digits, for a table; None if not finite."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def effects(
    x_NF: np.ndarray,
    names: Sequence[str],
    place: int,
    label_N: np.ndarray,
    lives: Lives,
    rng: np.random.Generator,
    *,
    permutations: int,
    resamples: int,
) -> Effects:
    """Effect sizes of F columns, of which the last ``place`` are positions.  label_N: NOISE or 0 to C-1."""
    clusters = int(label_N.max()) + 1
    x_NF = np.asarray(x_NF, np.float64)
    is_place = np.arange(len(names)) >= len(names) - place
    unit_N = lives.unit_E[lives.life_N]

    def tested(values_NM: np.ndarray, families: Sequence[np.ndarray], rotate: bool) -> dict[str, np.ndarray]:
        d_CM = group_d(values_NM, label_N, clusters)
        null_PCM = null_d(values_NM, label_N, clusters, lives, rng, permutations, rotate=rotate)
        low, high, reach = d_interval(values_NM, label_N, unit_N, clusters, rng, resamples)
        p_CM = _p(d_CM, null_PCM)
        q_CM = np.empty_like(p_CM)
        for family in families:
            q_CM[:, family] = benjamini_hochberg(p_CM[:, family])
        return {"d": d_CM, "low": low, "high": high, "p": p_CM, "q": q_CM, "reach": reach}

    raw = tested(x_NF - x_NF.mean(0), (is_place, ~is_place), True)
    joint_NM, of = spreads_and_pairs(x_NF, lives)
    columns, joint = np.arange(len(names)), len(names) + np.arange(len(of))
    families = [columns[is_place], columns[~is_place], joint]
    left = tested(np.concatenate([_left(x_NF, lives), joint_NM], 1), families, False)
    said = tuple(f"spread of {names[f]}" if f == g else f"{names[f]} with {names[g]}" for f, g in of)
    of_place = np.array([is_place[f] and is_place[g] for f, g in of], bool)
    return Effects(
        names=tuple(names),
        **{k: raw[k] for k in ("d", "low", "high", "p", "q")},
        beyond=Beyond(tuple(names), is_place, **{k: v[:, columns] for k, v in left.items()}),
        joint=Beyond(said, of_place, **{k: v[:, joint] for k, v in left.items()}),
        near=neighbours(x_NF, label_N, clusters, lives, rng, permutations),
    )


def _p(d_CF: np.ndarray, null_PCF: np.ndarray) -> np.ndarray:
    """Two-sided p [C, F] about the mean of the exchanged labels; NaN where there are none, 1 where every exchange gives
    the same but for rounding.

    A thousand draws cannot say p < 0.001, which among clusters x features is never enough for a single effect.  So
    where no draw reaches an effect, its distance in their standard deviations counts, by Student's t with TAIL_DF
    degrees of freedom: its tail is much heavier than that of a mean over lives.
    """
    from scipy.special import stdtr

    n_CF = (~np.isnan(null_PCF)).sum(0)
    mean_CF = np.nansum(null_PCF, 0, np.float64) / np.maximum(n_CF, 1)
    p_CF = np.asarray(permutation_p(d_CF, null_PCF, mean_CF, NOISE_OF_D))
    with np.errstate(divide="ignore", invalid="ignore"):
        sd_CF = np.sqrt(np.nansum((null_PCF - mean_CF) ** 2, 0) / np.maximum(n_CF - 1, 1))
        tail_CF = 2 * stdtr(TAIL_DF, -np.abs(d_CF - mean_CF) / sd_CF)
    unreached_CF = (p_CF * (1 + n_CF) < 1.5) & (sd_CF > 0)
    return np.where(n_CF > 1, np.where(unreached_CF, np.minimum(p_CF, tail_CF), p_CF), np.nan)


def in_and_out(label_N: np.ndarray, clusters: int, lives: Lives) -> np.ndarray:
    """Effective number [C] of agents that carry the comparison within lives: exp of the entropy of their shares in the
    variance of membership within lives.  One that is always in or never in carries nothing."""
    count_E, out = lives.count_E, np.zeros(clusters)
    for c in range(clusters):
        n_E = np.bincount(lives.life_N[label_N == c], minlength=len(count_E))
        weight_A = np.bincount(lives.agent_E, n_E * (1 - n_E / count_E), lives.agents)
        out[c] = np.exp(entropy(weight_A)) if weight_A.sum() > 1e-9 else 0
    return out


@dataclass(frozen=True)
class Times:
    """What time and agents say of every cluster, each [C] or [repeats, C]."""

    tick_eta2: np.ndarray
    phase_eta2: np.ndarray
    eta2_floor: np.ndarray  # of the larger of both, labels rotated; so auc_floor and tick_entropy_floor
    auc: np.ndarray  # the better of tick and share of lifespan
    auc_floor: np.ndarray
    tick_entropy: np.ndarray  # share of the largest possible, as the next three
    tick_entropy_floor: np.ndarray
    agent_entropy: np.ndarray
    agent_entropy_floor: np.ndarray
    agents: np.ndarray  # effective number
    agents_floor: np.ndarray
    life_share: np.ndarray
    world_share: np.ndarray  # NaN where worlds are not known
    world_share_most: np.ndarray  # the largest of DEALS, lives dealt to the worlds at random
    in_and_out: np.ndarray


def times(label_N: np.ndarray, lives: Lives, rng: np.random.Generator) -> Times:
    """Time and agents against their floors: labels rotated within lives (those of a world together, where there are
    enough: its lives share its events), runs dealt to lives alive at their ticks."""
    clusters = int(label_N.max()) + 1
    bins = [time_bins(v) for v in (lives.tick_N, lives.share_N)]
    all_2B = [np.bincount(b, minlength=TIME_BINS) for b in bins]
    units = int(lives.unit_E.max()) + 1  # whole worlds, where there are enough: its lives know each other's time
    halves = [(rng.permutation(units) < units // 2)[lives.unit_E] for _ in range(SPLITS)]

    def said(labels: np.ndarray, splits: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """eta^2 of both, the better area under the curve, and the entropy of ticks."""
        counts_2CB = [counts(labels, b, clusters) for b in bins]
        both = np.stack([eta_squared(c, a) for c, a in zip(counts_2CB, all_2B, strict=True)])
        auc = [np.mean([held_out_auc(labels, b, clusters, lives.life_N, h) for h in splits], 0) for b in bins]
        return both, np.maximum(*auc), entropy(counts_2CB[0]) / np.log(max(2, (all_2B[0] > 0).sum()))

    both, auc, ticks = said(label_N, halves)
    floors = [
        said(label_N[rotated_rows(lives.life_N, rng, lives.unit_E[lives.life_N])], [halves[i % SPLITS]])
        for i in track(range(ROTATIONS), "rotated labels")
    ]
    agents_CA = np.stack(
        [np.bincount(lives.agent_E[lives.life_N[label_N == c]], minlength=lives.agents) for c in range(clusters)]
    )
    agent_entropy = entropy(agents_CA)
    dealt = dealt_agent_entropy(label_N, clusters, lives, rng, ROTATIONS)
    most = np.log(max(2, lives.agents))
    of_worlds = world_share(label_N, clusters, lives)
    return Times(
        tick_eta2=both[0],
        phase_eta2=both[1],
        eta2_floor=np.stack([f[0].max(0) for f in floors]),
        auc=auc,
        auc_floor=np.stack([f[1] for f in floors]),
        tick_entropy=ticks,
        tick_entropy_floor=np.stack([f[2] for f in floors]),
        agent_entropy=agent_entropy / most,
        agent_entropy_floor=dealt / most,
        agents=np.exp(agent_entropy),
        agents_floor=np.exp(dealt),
        life_share=life_share(label_N, clusters, lives),
        world_share=of_worlds,
        world_share_most=dealt_world_share(of_worlds, label_N, lives, rng),
        in_and_out=in_and_out(label_N, clusters, lives),
    )


def surviving(e: Beyond, c: int, of: np.ndarray, least: float) -> list[int]:
    """Quantities (of the bool mask ``of``) whose effect beyond time and life passes every test, the largest first."""
    d, low, high, q = (getattr(e, k)[c] for k in ("d", "low", "high", "q"))
    with np.errstate(invalid="ignore"):
        good = of & (q <= ALPHA) & (np.abs(d) >= least) & ((low > 0) | (high < 0))
    return sorted(np.flatnonzero(good).tolist(), key=lambda m: -abs(d[m]))


def _said(e: Beyond, c: int, quantities: Sequence[int]) -> str:
    return ", ".join(f"{e.names[m]} {e.d[c, m]:+.1f} [{e.low[c, m]:+.1f}, {e.high[c, m]:+.1f}]" for m in quantities[:3])


def told_by_time(t: Times, c: int) -> bool:
    """Whether time alone tells the members of a cluster, whatever else does."""
    return bool(t.auc[c] > np.quantile(t.auc_floor[:, c], 0.975) and t.auc[c] >= PHASE_AUC)


def missable(e: Effects, c: int) -> float:
    """The largest effect (d) of any mean, spread or pair that its 90 % interval does not exclude; inf where one of them
    was tested with no interval, NaN where there was none to test."""
    reach = np.concatenate([t.reach[c][~np.isnan(t.d[c])] for t in (e.beyond, e.joint)])
    return float(np.where(np.isnan(reach), np.inf, reach).max()) if len(reach) else np.nan


def verdict(e: Effects, t: Times, c: int, lives: Lives, smallest: float) -> tuple[str, str]:
    """(one of KINDS, why in words) of a cluster, by the rules at the head of this file; smallest: effect of interest,
    Cohen's d."""
    count = len(lives.agent_E)
    if count < LEAST_LIVES:
        return "undecided", f"{count} lives are too few to say; at least {LEAST_LIVES} are needed"
    timed = t.auc[c] > np.quantile(t.auc_floor[:, c], 0.975)
    by_time = told_by_time(t, c)
    many = t.in_and_out[c] >= FEW_AGENTS
    also = f"; time alone tells it with AUC {t.auc[c]:.2f}" if by_time else ""
    beyond, joint, place = e.beyond, e.joint, e.beyond.is_place
    if many and (found := surviving(beyond, c, ~place, BEHAVIOUR_D)):
        return "behaviour", f"beyond time and who (d): {_said(beyond, c, found)}{also}"
    if t.world_share[c] >= IDENTITY_SHARE and t.world_share[c] > t.world_share_most[c]:
        return "identity", f"which world it is (its map or its events) settles {t.world_share[c]:.0%} of membership"
    if t.life_share[c] >= IDENTITY_SHARE:
        return "identity", f"which life it is settles {t.life_share[c]:.0%} of membership"
    if t.agents[c] < FEW_AGENTS and np.median(t.agents_floor[:, c]) >= 2 * t.agents[c]:
        floor = np.median(t.agents_floor[:, c])
        return "identity", f"it is of {t.agents[c]:.1f} agents (effective number); runs dealt at random: {floor:.1f}"
    if by_time:
        also_left = surviving(beyond, c, np.ones(len(place), bool), WEAK_D)
        left = (
            f"beyond time and who (d) there is {_said(beyond, c, also_left)}"
            if also_left
            else "no mean differs beyond time"
        )
        return "phase", f"time alone tells it with AUC {t.auc[c]:.2f} in other lives, and {left}"
    if many and (found := surviving(beyond, c, place, BEHAVIOUR_D)):
        return "place", f"beyond time and who (d): {_said(beyond, c, found)}"
    any_joint = np.ones(len(joint.names), bool)
    if many and (found := surviving(joint, c, any_joint, BEHAVIOUR_D)):
        kind = "place" if joint.is_place[found].all() else "behaviour"
        return kind, f"no mean differs as much, but beyond time and who (d): {_said(joint, c, found)}"
    if lives.by_world and not np.isnan(beyond.d[c]).all() and np.isnan(beyond.low[c]).all():
        return "undecided", "it is of one world, whose map and events nothing can tell apart from behaviour"
    few = "" if many else f", carried by {t.in_and_out[c]:.1f} agents"
    for of in (beyond, joint):
        if weak := surviving(of, c, np.ones(len(of.names), bool), 0):
            return "undecided", f"a weak effect beyond time and who (d): {_said(of, c, weak)}{few}"
    if e.near.q[c] <= ALPHA:
        return "undecided", (
            f"all features together tell it from the rest ({e.near.share[c]:.0%} of its neighbours are in it, under "
            f"exchanged labels {e.near.chance[c]:.0%}), but no mean, spread or pair alone"
        )
    if timed and t.auc[c] >= WEAK_AUC:
        return "undecided", f"time tells a part of it (AUC {t.auc[c]:.2f}) and nothing else does"
    most = missable(e, c)
    if np.isnan(most):
        return "undecided", "no feature differs beyond time and who, so none could tell it; time and who do not"
    units = f"{len(np.unique(lives.unit_E))} {'worlds' if lives.by_world else 'lives'}"
    if most >= smallest:
        size = f"up to {most:.1f}" if np.isfinite(most) else "of any size"
        return "undecided", f"nothing is found, but effects (d) {size} could be missed ({units})"
    return "noise", (
        "neither time nor who tells it from the rest, and no mean, spread or pair of features does: "
        f"all effects (d) are within {most:.1f} ({units})"
    )


def overall(kind_C: Sequence[str], size_C: np.ndarray) -> tuple[str, dict[str, float]]:
    """(verdict of the whole, share of clustered rows by kind)."""
    if not len(kind_C):
        return NO_CLUSTERS, {}
    shares = {
        k: float(sum(n for kind, n in zip(kind_C, size_C, strict=True) if kind == k) / sum(size_C)) for k in KINDS
    }
    most = max(shares, key=lambda k: shares[k])
    return (most if shares[most] >= 0.5 else "mixed"), {k: v for k, v in shares.items() if v}
