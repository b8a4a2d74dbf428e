"""Coupling: which hidden-state directions go together over time, and which move each other.

``python -m analysis.coupling --samples runs/demo/samples --behaviours runs/demo/behaviours``

For every behaviour b and lag k, over steps T that belong to b:

- correlation r[i, j] of coordinate i at T-k with coordinate j at T, centred and normalised over the
  time pairs; its null pairs the sources of one episode with the targets of another;
- Jacobian J[i, j] = mean of dc_j(T) / dc_i(T-k) in the simulator: direct, along the agent's memory with all its
  actions held, and through the world, with the actions enumerated (analysis.discrete_paths: what every action at a
  step leads to, times how i moves its probability); whole = direct + through the world.

For comparison the whole is taken straight through the actions too, as autograd has it.  What a simulator does between
two actions no training constrains, so that number may be anything; an effect of the enumerated actions counts as an
edge only where its 95 % interval leaves 0 out and the straight-through number has its sign.

Correlation without a Jacobian is a common cause; a Jacobian is an effect in the simulator, and a hypothesis about the
world.  q-values (Benjamini-Hochberg) span all entries, lags and behaviours; episodes are the unit.
Where both are significant, their signs and magnitudes are compared against the permuted episodes.
A behaviour with so few episodes that no p-value of its could reach alpha is left out, and named.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.behaviours import Behaviours, load_behaviours
from analysis.coupling_edges import (
    METHOD,
    PAGE,
    PATHS,
    STRAIGHT,
    WORDS,
    beyond_zero,
    drawn,
    edges,
    page,
    strongest_pairs,
)  # fmt: skip
from analysis.coupling_figures import draw
from analysis.discrete_paths import along_memory, forced_changes, policy_slopes, through_world
from analysis.gradients import TENSORS, replaced, rows_of, saved_bytes, unroll
from analysis.saliency import open_samples, source_episodes
from core import artefacts, config as cli
from core.contracts import SimState, Simulator, StepOut, UserError
from core.directions import Basis, fingerprint, load_basis
from core.episodes import RolloutStore
from core.progress import bar
from core.stats import (
    ATANH,
    TESTS,
    benjamini_hochberg,
    jackknifed,
    least_permutations,
    least_units,
    left_out,
    means,
    permutation_p,
    require_draws,
    smallest_p,
)

STAGE = "coupling"
PAIRING, MEAN = "permutation", "mean"  # the tests of a correlation and of a Jacobian
BLOCK = 1024  # entries whose means are inferred at once
MORE = "record more (rollouts from one and the same real episode count as one), or make fewer behaviours"
ROUNDING = 1e-6  # of the largest Jacobian: what a float32 backward pass leaves of a zero
KEYS = 4_000_000  # random keys held at a time
MOST_ROWS, HELD_STEPS = 256, 2  # samples of one backward pass; steps whose gradients are alive at once
SHOWN = 5  # edges printed
REPLAY_TOLERANCE = 1e-3  # of h; a replay that took another action is off by far more


@dataclass(frozen=True, kw_only=True)
class CouplingConfig:
    """Cross-correlation and Jacobian between directions, per behaviour and lag, and how far they agree."""

    simulator: Path = Path("bundles/coinrun-demo/simulator")
    """simulator run directory"""
    samples: Path = Path("runs/demo/samples")
    """simulated rollouts of that simulator; the Jacobians' starting points"""
    hidden_states: Path = Path("runs/demo/hidden_states")
    """hidden_states run directory with the directions"""
    behaviours: Path | None = Path("runs/demo/behaviours")
    """behaviours run directory that labels the steps of --samples; None: all steps are one behaviour"""
    rollouts: Path | None = None
    """real rollouts to take the correlations from (labelled by --behaviours too); None: --samples"""
    out: Path = Path("runs/coupling")
    """run directory to write"""
    basis_kind: str = "ica"
    """pca, ica, nmf, neurons"""
    max_directions: int = 8
    """at most so many directions, the first of the basis; 0: all"""
    lags: tuple[int, ...] = (1, 2, 4)
    """steps between source and target"""
    samples_per_behaviour: int = 32
    """Jacobians averaged per behaviour, from as many episodes as there are"""
    alpha: float = 0.05
    """false discovery rate at which an entry counts as significant; behaviours with too few episodes for it are
    left out"""
    permutations: int = 1999
    """permutations of whole episodes; p-values are no finer than one over so many"""
    resamples: int = 1000
    """resamples of whole episodes behind the 95 % intervals of correlations"""
    batch_size: int = 0
    """samples a forward pass; 0: as many as --memory_gb holds"""
    memory_gb: float = 1.0
    """what one forward pass and its batched backward pass may hold, in GB"""
    seed: int = 0
    """seed of the choice of samples and of the permutations"""
    threads: int = 2
    """CPU threads"""
    device: str = "cpu"
    """cpu or cuda"""
    overwrite: bool = False
    """replace an earlier run in --out"""


# Correlation


def lagged_rows(index_N2: np.ndarray, lag: int, first: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows (source, target) of an (episode, step) index that are ``lag`` steps apart in one episode; sources
    from step ``first`` on (step 0 is the start, not yet a step of the agent's)."""
    row_of = {(int(e), int(t)): n for n, (e, t) in enumerate(index_N2)}
    pairs = [
        (row_of[(int(e), int(t) - lag)], n)
        for n, (e, t) in enumerate(index_N2)
        if t - lag >= first and (int(e), int(t) - lag) in row_of
    ]
    both = np.asarray(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


class Sums(NamedTuple):
    """Sums over the pairs of each episode: enough for any reweighted correlation.  x source, y target."""

    n_E: np.ndarray
    x_EK: np.ndarray
    y_EK: np.ndarray
    xx_EK: np.ndarray
    yy_EK: np.ndarray
    xy_EKK: np.ndarray

    @classmethod
    def of(cls, x_NK: np.ndarray, y_NK: np.ndarray, unit_N: np.ndarray, units: int) -> Sums:
        """unit: 0 .. units-1, the episode of each pair."""
        order = np.argsort(unit_N, kind="stable")
        present, first = np.unique(unit_N[order], return_index=True)

        def total(v_NX: np.ndarray) -> np.ndarray:
            out = np.zeros((units, *v_NX.shape[1:]))
            out[present] = np.add.reduceat(v_NX[order], first, axis=0)
            return out

        xy_EKK = np.stack([total(x_NK[:, i, None] * y_NK) for i in range(x_NK.shape[1])], 1)
        return cls(total(np.ones(len(unit_N))), total(x_NK), total(y_NK), total(x_NK**2), total(y_NK**2), xy_EKK)

    def correlation(self, weight_RE: np.ndarray) -> np.ndarray:
        """Pearson correlation [R, K, K] with every episode counted ``weight`` times; NaN where undefined."""
        n = weight_RE @ self.n_E
        with np.errstate(divide="ignore", invalid="ignore"):
            x, y = (weight_RE @ s / n[:, None] for s in (self.x_EK, self.y_EK))
            vx, vy = (weight_RE @ s / n[:, None] - m**2 for s, m in ((self.xx_EK, x), (self.yy_EK, y)))
            xy = np.einsum("re,eij->rij", weight_RE, self.xy_EKK, optimize=True) / n[:, None, None]
            covariance = xy - x[:, :, None] * y[:, None, :]
            norm = np.sqrt(np.maximum(vx, 0)[:, :, None] * np.maximum(vy, 0)[:, None, :])
            return np.where(norm > 0, covariance / norm, np.nan)


def shuffles(
    seed: int, permutations: int, units: int, directions: int, present: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the first, permutations int64 [p, E, directions] of the E units present) in blocks.

    A permutation a direction: the order of random keys that every unit has, so that calls with one seed permute alike
    what they have in common.
    """
    rng, per = np.random.default_rng(seed), max(1, KEYS // (units * directions))
    for first in range(0, permutations, per):
        key_PKU = rng.random((min(per, permutations - first), directions, units), np.float32)
        yield first, np.argsort(key_PKU[..., present], axis=-1).swapaxes(1, 2)


def sum_variance(x_EMK: np.ndarray, y_EMK: np.ndarray, count_E: np.ndarray) -> np.ndarray:
    """Variance of the sum of x_i y_j over 1 .. M pairs in a row, float64 [M, K, K], were i and j independent.

    x, y: of variance 1, the first ``count`` rows of every episode, zero after.  From their autocorrelations (Bartlett
    1946, "On the theoretical specification of sampling properties of autocorrelated time series").
    """
    longest = x_EMK.shape[1]
    pairs_M = np.maximum(count_E[:, None] - np.arange(longest), 0).sum(0)
    spectra = (np.fft.rfft(v, 2 * longest, axis=1) for v in (x_EMK, y_EMK))
    a_MK, b_MK = (
        np.fft.irfft((np.abs(f) ** 2).sum(0), 2 * longest, axis=0)[:longest] / pairs_M[:, None] for f in spectra
    )
    both_MKK = a_MK[:, :, None] * b_MK[:, None, :]
    both_MKK[1:] *= 2  # d steps apart, either way
    # Summed twice, distance d counts m - d times; an estimate may be negative, a variance is not below one pair's.
    return np.maximum(both_MKK.cumsum(0).cumsum(0), 1.0)


def permuted_correlations(
    x_NK: np.ndarray, y_NK: np.ndarray, unit_N: np.ndarray, units: int, permutations: int, seed: int
) -> np.ndarray:
    """Correlations float32 [P, K, K] where every direction has episodes of its own: what the data would give if the
    directions were processes independent of each other.

    Place e of a permutation has direction i from episode s_i(e), source and target alike; entry (i, j) is the
    correlation of the sources of s_i(e) with the targets of s_j(e).  So (i, j) and (j, i), and calls with the same
    seed (lags, behaviours), stay as related as they are in the data.  A direction's own past, (i, i), is
    that of the targets of another episode.

    Of two episodes with unequal numbers of pairs the first so many are paired, and the sum is stretched to the
    variance of whole episodes (``sum_variance``).  Exact where all are equally long, otherwise approximate: of tests at
    0.05 of unrelated slow directions (validation.planted's null world, 24 episodes, 400 runs) 0.049, 0.050 and 0.050
    are significant where episodes last 25, 2 to 25 (mean 15) and 2 to 25 (mean 7.5) steps.  ``agreement`` of all
    entries keeps its level in the first case (0.035 to 0.068); in the others up to 0.145 are significant where the
    Jacobian is (anti)symmetric, because shorter episodes tie (i, j) and (j, i) less than whole ones.

    unit: 0 .. units-1, the episode of each pair.  Rows of an episode must be in order of time.
    """
    present = np.unique(unit_N)
    sd_x, sd_y = x_NK.std(0), y_NK.std(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = ((v - v.mean(0)) / s for v, s in ((x_NK, sd_x), (y_NK, sd_y)))
    place = np.full(units, -1)
    place[present] = np.arange(len(present))
    e_N = place[unit_N]
    count_E = np.bincount(e_N, minlength=len(present))
    order = np.argsort(e_N, kind="stable")
    slot_N = np.empty(len(e_N), np.int64)
    slot_N[order] = np.arange(len(e_N)) - np.repeat(np.cumsum(count_E) - count_E, count_E)
    n, k = len(present), x.shape[1]
    padded = np.zeros((2, n, int(count_E.max()), k), np.float32)
    padded[0, e_N, slot_N], padded[1, e_N, slot_N] = x, y
    shortest_EE = np.minimum.outer(count_E, count_E)
    equal = count_E.min() == count_E.max()
    variance_MKK = sum_variance(padded[0], padded[1], count_E)
    whole_KK = variance_MKK[count_E - 1].sum(0)
    target_K = np.arange(k)
    out = np.empty((permutations, k, k), np.float32)
    for first, s_PEK in shuffles(seed, permutations, units, k, present):
        for i in range(k):
            # The zero padding makes each block's sum run over the pairs that both episodes have.
            block_EEK = np.einsum("am,bmj->abj", padded[0, :, :, i], padded[1], optimize=True)
            source_PEK = np.repeat(s_PEK[:, :, i, None], k, 2)
            source_PEK[:, :, i] = np.arange(n)
            entry_PEK = (source_PEK * n + s_PEK) * k + target_K
            total_PK = block_EEK.ravel()[entry_PEK].sum(1)
            if not equal:
                paired_PK = variance_MKK[shortest_EE - 1, i].ravel()[entry_PEK].sum(1)
                total_PK *= np.sqrt(whole_KK[i] / paired_PK)
            out[first : first + len(s_PEK), i] = total_PK / len(unit_N)
    return out


# Jacobian


def jacobians(
    simulator: Simulator,
    state: SimState,
    basis: Basis,
    lags: Sequence[int],
    directions: int,
    groups: Sequence[Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """dc_j(T) / dc_i(T-lag) of modal rollouts from ``state``, float [B, lags, i, j], in three numbers.

    direct            along the agent's memory, with all actions held;
    through_world     by way of the actions, each of them tried (analysis.discrete_paths): what every action at a step
                      leads to, times how the source moves its probability there, over the steps T-lag to T-1.
                      The whole effect is direct + through_world;
    straight_through  the whole as autograd has it, straight through actions and categories of the world.

    And ``ended`` [B]: the share of tried actions after which the simulated episode ends before T; the branch goes on,
    as rollouts do.

    state: just before step T - max(lags).  c are the first ``directions`` coordinates of the basis; a source moves h
    along its lifted direction.  groups: ids of actions that do the same; None: every one by itself.

    One forward pass serves all three.  Backward, a pass a target over all samples at once: a pass batched over the
    targets too costs as much arithmetic and more memory (benchmarks/analysis_jacobian.py).  Memory and probabilities
    need none through the world: with the actions held, the agent's cells on the frames there are.
    """
    groups = [[i] for i in range(simulator.agent.n_actions)] if groups is None else groups
    longest = max(lags)
    state = rows_of(state, slice(None), lambda x: x.detach())
    state = state._replace(h_BH=state.h_BH.requires_grad_())
    states, outs = unroll(simulator, state, longest + 1)
    straight = _backward([out.h_BH for out in outs], basis, lags, directions)
    states, outs = [rows_of(s, slice(None), lambda x: x.detach()) for s in states], [_detached(out) for out in outs]
    h = along_memory(simulator.agent, outs[0].h_BH, [simulator.agent.encode(out.obs) for out in outs[1:]])
    slope = basis.pullback(policy_slopes(simulator.agent, h[:-1], [longest - lag for lag in lags], groups))
    direct = _backward(h, basis, lags, directions)

    def read(out: StepOut) -> Tensor:
        return torch.cat([basis.project(out.h_BH)[:, :directions], out.alive_B[:, None].to(out.h_BH.dtype)], 1)

    # A branch keeps nothing for a backward pass, so that more of them fit than rollouts.
    rows = min(MOST_ROWS, len(state.h_BH) * (longest + 1))
    change = forced_changes(simulator, states, outs, read, groups, rows=rows)[:, :, :, -1:]
    world = through_world(slope[..., :directions], change[..., :directions])[:, :, 0]
    ended = change[..., 0, -1].abs().sum((1, 2)) / (longest * max(1, len(groups) - 1))
    return {"direct": direct, "through_world": world, "straight_through": straight, "ended": ended}


def _detached(out: StepOut) -> StepOut:
    return StepOut({name: x.detach() for name, x in out.obs.items()}, *(x.detach() for x in out[1:]))


def _backward(h_TBH: Sequence[Tensor], basis: Basis, lags: Sequence[int], directions: int) -> Tensor:
    """Jacobian [B, lags, i, j] of the last hidden state's coordinates by those ``lag`` steps before."""
    c_BK = basis.project(h_TBH[-1])[:, :directions]
    sources = [h_TBH[-1 - lag] for lag in lags]
    columns = []
    for j in range(directions):
        # Samples do not hear each other, so the gradient of the sum holds that of each.
        grads = torch.autograd.grad(c_BK[:, j].sum(), sources, retain_graph=j + 1 < directions)
        columns.append(basis.pullback(torch.stack(grads, 1))[..., :directions])
    return torch.stack(columns, -1)


class Replay(NamedTuple):
    """Modal rollouts run again from latents [E, Z]."""

    states: list[SimState]  # before step 0, 1 ... and after the last
    h_ETH: Tensor


@torch.no_grad()
def replay(simulator: Simulator, z_EZ: Tensor, steps: int) -> Replay:
    """``steps`` observations from every latent."""
    states, h = [simulator.start(z_EZ)], []
    for _ in range(steps):  # the frames are not kept
        state, out = simulator.step(states[-1])
        states.append(state)
        h.append(out.h_BH)
    return Replay(states, torch.stack(h, 1))


def gather_states(states: Sequence[SimState], episode_B: np.ndarray, step_B: np.ndarray) -> SimState:
    """The state before step ``step_B[n] >= 1`` of row ``episode_B[n]``, as one batch."""
    pairs = list(zip(episode_B.tolist(), step_B.tolist(), strict=True))
    # After step 0 a simulator does not care how late it is; interventions would, and there are none.
    late = states[int(step_B.min())]
    return replaced(late, {name: torch.stack([getattr(states[t], name)[e] for e, t in pairs]) for name in TENSORS})


def spread_over_episodes(rows: np.ndarray, unit_N: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """``count`` of ``rows`` at random (all, if fewer), from as many episodes as there are."""
    shuffled = rng.permutation(rows)
    seen: dict[int, int] = {}
    turn = np.empty(len(shuffled), np.int64)
    for n, row in enumerate(shuffled):
        e = int(unit_N[row])
        turn[n] = seen[e] = seen.get(e, -1) + 1
    chosen: np.ndarray = np.sort(shuffled[np.argsort(turn, kind="stable")[:count]])
    return chosen


def rows_that_fit(simulator: Simulator, state: SimState, longest: int, memory_bytes: float) -> int:
    """How many samples one ``jacobians`` call may hold: what the forward pass keeps, and the gradients of a few of
    its steps.  Not more than MOST_ROWS, from where on more at once is no faster."""
    one = rows_of(state, slice(1), lambda x: x.detach())
    one = one._replace(h_BH=one.h_BH.requires_grad_())
    parameters = simulator.parameters() if isinstance(simulator, torch.nn.Module) else ()
    kept = saved_bytes(lambda: unroll(simulator, one, longest + 1), parameters)
    return min(MOST_ROWS, max(1, int(memory_bytes // max(1, kept * (1 + HELD_STEPS / (longest + 1))))))


# Both together


class Labelled(NamedTuple):
    """Steps with their behaviour and coordinates; ``index`` is sorted by (episode, step).

    ``unit``: what counts as one independent episode; simulated rollouts that start in the same real
    episode are one.
    """

    index_N2: np.ndarray
    unit_N: np.ndarray
    label_N: np.ndarray
    c_NK: np.ndarray


class Coupling(NamedTuple):
    """Estimates [behaviours, lags, i, j] with p-values, 95 % intervals over episodes and the correlation's null."""

    correlation: np.ndarray
    p_correlation: np.ndarray
    correlation_null: np.ndarray  # float32 [P, behaviours, lags, i, j]
    correlation_ends: np.ndarray  # [2, ...]: low, high
    jacobian: dict[str, np.ndarray]  # by path: "", "_agent_only", "_through_world"; actions enumerated
    straight_through: dict[str, np.ndarray]  # "" and "_through_world", straight through the actions, for comparison
    p_jacobian: dict[str, np.ndarray]
    jacobian_ends: dict[str, np.ndarray]  # [2, ...]: low, high
    pairs: np.ndarray  # [behaviours, lags], time pairs
    pair_episodes: np.ndarray
    samples: np.ndarray  # [behaviours], Jacobians
    sample_episodes: np.ndarray
    ended: float  # share of tried actions after which the simulated episode ends before T
    actions: Sequence[Sequence[str]]  # what was enumerated: the names of those that do the same, together


def correlate(
    steps: Labelled,
    behaviours: Sequence[int],
    lags: Sequence[int],
    permutations: int,
    resamples: int,
    rng: np.random.Generator,
    alpha: float = 0.05,
) -> dict[str, np.ndarray]:
    """Correlation, p, null, interval's ends and counts for all behaviours (of the target step) and lags.

    NaN where there are too few episodes for a p <= alpha; UserError if there are everywhere.  Intervals: jackknife of
    Fisher's z over episodes.
    """
    units, unit_N = np.unique(steps.unit_N, return_inverse=True)
    k = steps.c_NK.shape[1]
    shape = (len(behaviours), len(lags), k, k)
    out = {
        "correlation": np.full(shape, np.nan),
        "p": np.full(shape, np.nan),
        "null": np.full((permutations, *shape), np.nan, np.float32),
        "ends": np.full((2, *shape), np.nan),
        "pairs": np.zeros(shape[:2], np.int64),
        "episodes": np.zeros(shape[:2], np.int64),
    }
    need = least_units(alpha, PAIRING)
    seed = int(rng.integers(2**63))
    for at, lag in enumerate(lags):
        source, target = lagged_rows(steps.index_N2, lag)
        for b, behaviour in enumerate(behaviours):
            mine = steps.label_N[target] == behaviour
            x, y, unit = steps.c_NK[source[mine]], steps.c_NK[target[mine]], unit_N[target[mine]]
            present, of = np.unique(unit, return_inverse=True)
            out["pairs"][b, at], out["episodes"][b, at] = len(unit), len(present)
            if len(present) < need:
                continue
            each_G = Sums.of(x, y, of, len(present)).correlation(left_out(len(present), rng))
            out["correlation"][b, at], *ends = jackknifed(each_G, rng=rng, link=ATANH, draws=resamples)
            out["ends"][:, b, at] = ends
            null = permuted_correlations(x, y, unit, len(units), permutations, seed)
            out["null"][:, b, at] = null
            out["p"][b, at] = np.where(
                np.isnan(out["correlation"][b, at]), np.nan, permutation_p(out["correlation"][b, at], null)
            )
    if (most := int(out["episodes"].max())) < need:
        raise UserError(
            f"no behaviour has enough episodes for its correlations: at most {most}, and {TESTS[PAIRING]} at --alpha "
            f"{alpha:g} needs {need}; {MORE}"
        )
    return out


class Effect(NamedTuple):
    """Means [X] over episodes with p and 95 % intervals."""

    mean_X: np.ndarray
    p_X: np.ndarray
    ends_2X: np.ndarray  # low, high


def mean_effect(effect_NX: np.ndarray, unit_N: np.ndarray, permutations: int, rng: np.random.Generator) -> Effect:
    """Means over episodes of effects [N, X], as ``core.stats.means`` infers them.

    One effect an episode (the mean of its samples), so that an episode counts once.  p is never below
    1 / (1 + permutations).
    """
    effect_EX = mean_over_episodes(effect_NX, unit_N)
    parts = []
    for first in range(0, effect_EX.shape[1], BLOCK):
        # Each tail counts, so that twice as many draws are as fine as two-sided permutations.
        found = means(effect_EX[:, first : first + BLOCK], rng=rng, draws=2 * permutations + 1)
        parts.append(np.stack([found.value_Q, found.p(), *found.interval()]))
    mean_X, p_X, *ends = np.concatenate(parts, 1)
    return Effect(mean_X, p_X, np.stack(ends))


def mean_over_episodes(effect_NX: np.ndarray, unit_N: np.ndarray) -> np.ndarray:
    """One effect an episode, float64 [E, X]: the mean of its samples."""
    units, unit_N = np.unique(unit_N, return_inverse=True)
    effect_EX = np.zeros((len(units), effect_NX.shape[1]))
    np.add.at(effect_EX, unit_N, effect_NX)
    return effect_EX / np.bincount(unit_N)[:, None]


class Plan(NamedTuple):
    """Where Jacobians are taken: M rows, behaviour after behaviour."""

    state: SimState  # before step T - max(lags)
    unit_M: np.ndarray
    ends: np.ndarray  # [behaviours + 1]: rows ends[b] to ends[b + 1] are those of behaviour number b


def plan(
    simulator: Simulator,
    z_EZ: Tensor,
    sampled: Labelled,
    h_sampled_NH: np.ndarray,
    behaviours: Sequence[int],
    config: CouplingConfig,
) -> Plan:
    """Choose steps of ``sampled`` (with hidden states h_sampled), the modal rollouts from the latents z_EZ
    (episode e starts from row e), and run up to them.

    Raises UserError if the rollouts are too short, if most steps do not come out again, or if no behaviour
    has enough episodes for a test at alpha.
    """
    rng, longest = np.random.default_rng([config.seed, 0]), max(config.lags)
    usable_N = sampled.index_N2[:, 1] > longest
    if not usable_N.any():
        raise UserError(f"--lags {longest}: the samples are too short; record longer ones or use shorter lags")
    played = replay(simulator, z_EZ, int(sampled.index_N2[:, 1].max()) + 1)
    h_played = played.h_ETH[sampled.index_N2[:, 0], sampled.index_N2[:, 1]].cpu().numpy()
    same_N = np.abs(h_played - h_sampled_NH).max(1) < REPLAY_TOLERANCE
    if same_N[usable_N].mean() < 0.5:
        raise UserError(
            f"only {same_N[usable_N].mean():.0%} of the sampled steps come out again from their latents; "
            "Jacobians need samples recorded without noise, exploration and interventions"
        )
    eligible = [np.flatnonzero((sampled.label_N == b) & usable_N & same_N) for b in behaviours]
    chosen = [spread_over_episodes(rows, sampled.unit_N, config.samples_per_behaviour, rng) for rows in eligible]
    rows = np.concatenate(chosen)
    if not len(rows):
        raise UserError(f"no behaviour has a step later than {longest} in --samples; record more or use shorter lags")
    most, need = max(len(np.unique(sampled.unit_N[c])) for c in chosen), least_units(config.alpha, MEAN)
    if most < need:
        raise UserError(
            f"no behaviour has enough episodes for its Jacobians: at most {most}, and {TESTS[MEAN]} at --alpha "
            f"{config.alpha:g} needs {need}; {MORE}"
        )
    episode_M, step_M = sampled.index_N2[rows].T
    state = gather_states(played.states, episode_M, step_M - longest)
    return Plan(state, sampled.unit_N[rows], np.cumsum([0, *(len(c) for c in chosen)]))


def couple(
    simulator: Simulator,
    planned: Plan,
    observed: Labelled,
    basis: Basis,
    behaviours: Sequence[int],
    config: CouplingConfig,
) -> Coupling:
    """Correlations of ``observed`` and Jacobians from the planned states; NaN for a behaviour with too few episodes.

    UserError if that is every behaviour, or if there are too few permutations for any p <= alpha.
    """
    require_draws(config.permutations, config.alpha)
    rng = np.random.default_rng([config.seed, 1])
    lags, longest, k = list(config.lags), max(config.lags), observed.c_NK.shape[1]
    shape = (len(behaviours), len(lags), k, k)
    r = correlate(observed, behaviours, lags, config.permutations, config.resamples, rng, config.alpha)
    state, unit_M, stops = planned
    groups = list(simulator.spec.distinct_actions().values())
    size = config.batch_size or rows_that_fit(simulator, state, longest, config.memory_gb * 1e9)
    found = []
    with bar("Jacobians", total=len(unit_M), unit="samples") as progress:
        for n in range(0, len(unit_M), size):
            part = rows_of(state, slice(n, n + size))
            found.append(jacobians(simulator, part, basis, lags, k, groups))
            progress.advance(len(part.h_BH))
    direct, world, straight, ended = (
        torch.cat([f[name] for f in found]).cpu().numpy().astype(np.float64)
        for name in ("direct", "through_world", "straight_through", "ended")
    )
    broken = ~np.isfinite(np.stack([direct, world, straight])).all((0, 2, 3, 4))
    if broken.any():
        raise UserError(
            f"{broken.sum()} of {len(broken)} Jacobians are NaN or infinite: gradients through this simulator explode; "
            "use shorter --lags, or train it longer"
        )
    # What is only rounding has a constant sign too, and must not pass for an effect.
    least = ROUNDING * np.abs(direct + world).max()
    per_sample, compared = (
        {path: np.where(np.abs(x) < least, 0.0, x) for path, x in parts.items()}
        for parts in (
            {"": direct + world, "_agent_only": direct, "_through_world": world},
            {"": straight, "_through_world": straight - direct},
        )
    )
    mean = {path: np.full(shape, np.nan) for path in PATHS}
    straight_through = {path: np.full(shape, np.nan) for path in compared}
    p = {path: np.full(shape, np.nan) for path in PATHS}
    ends = {path: np.full((2, *shape), np.nan) for path in PATHS}
    episodes = np.zeros(len(behaviours), np.int64)
    for b in range(len(behaviours)):
        mine = slice(stops[b], stops[b + 1])
        episodes[b] = len(np.unique(unit_M[mine]))
        if episodes[b] < least_units(config.alpha, MEAN):
            continue
        for path in PATHS:
            effect = per_sample[path][mine].reshape(stops[b + 1] - stops[b], -1)
            over = mean_effect(effect, unit_M[mine], config.permutations, rng)
            mean[path][b], p[path][b] = over.mean_X.reshape(shape[1:]), over.p_X.reshape(shape[1:])
            ends[path][:, b] = over.ends_2X.reshape(2, *shape[1:])
        for path, x in compared.items():
            effect = x[mine].reshape(stops[b + 1] - stops[b], -1)
            straight_through[path][b] = mean_over_episodes(effect, unit_M[mine]).mean(0).reshape(shape[1:])
    return Coupling(
        correlation=r["correlation"],
        p_correlation=r["p"],
        correlation_null=r["null"],
        correlation_ends=r["ends"],
        jacobian=mean,
        straight_through=straight_through,
        p_jacobian=p,
        jacobian_ends=ends,
        pairs=r["pairs"],
        pair_episodes=r["episodes"],
        samples=np.diff(stops),
        sample_episodes=episodes,
        ended=float(ended.mean()),
        actions=[[simulator.spec.action_names[i] for i in ids] for ids in groups],
    )


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
    null_low, null_high = np.quantile(null, [0.025, 0.975])
    p = float(permutation_p(value - chance, null - chance))
    return Agreement(value, float(null_low), float(null_high), p, n)


def assemble(
    coupling: Coupling, behaviours: Sequence[int], names: Mapping[int, str], config: CouplingConfig
) -> artefacts.Result:
    """q-values over the whole family, the table of surviving edges, and the consistency, as a Result."""
    result = artefacts.Result()
    a = result.arrays
    a["behaviours"], a["lags"] = np.asarray(behaviours, np.int64), np.asarray(config.lags, np.int64)
    a["correlation"], a["q_correlation"] = coupling.correlation, benjamini_hochberg(coupling.p_correlation)
    a["correlation_low"], a["correlation_high"] = coupling.correlation_ends
    for path in PATHS:
        a[f"jacobian{path}"] = coupling.jacobian[path]
        a[f"q_jacobian{path}"] = benjamini_hochberg(coupling.p_jacobian[path])
        a[f"jacobian{path}_low"], a[f"jacobian{path}_high"] = coupling.jacobian_ends[path]
    for path, name in STRAIGHT.items():
        a[name] = coupling.straight_through[path]
    for name in ("pairs", "pair_episodes", "samples", "sample_episodes"):
        a[name] = getattr(coupling, name)
    result.notes |= {
        "alpha": config.alpha,
        "basis_kind": config.basis_kind,
        "names": {str(b): names.get(b, "") for b in behaviours},
        "left_out": untested(coupling, behaviours, config),
        "resolution": resolution(coupling, config),
        "unit": "change of target coordinate per change of source coordinate",
        "method": METHOD,
        "actions": [list(names) for names in coupling.actions],
    }
    result.scalar(
        "branches_ended", coupling.ended, "share of enumerated actions after which the simulated episode ends before T"
    )
    result.tables["edges"] = edges(result, config.alpha)
    diagonal = np.eye(coupling.correlation.shape[-1], dtype=bool)
    correlated = a["q_correlation"] <= config.alpha
    for path in PATHS:
        both = (a[f"q_jacobian{path}"] <= config.alpha) & correlated
        for measure in MEASURES:
            _put(result, f"{measure}{path}", agreement(coupling, both & ~diagonal, measure, path))
    both = (a["q_jacobian"] <= config.alpha) & correlated
    _put(result, "sign_agreement_with_diagonal", agreement(coupling, both, "sign_agreement"))
    for name in (*(f"jacobian{path}" for path in PATHS), "correlation"):
        q = a[f"q_{name}"]
        tests = int(np.isfinite(q).sum())
        share = float((q <= config.alpha).sum() / tests) if tests else float("nan")
        result.scalar(f"significant_{name}", share, f"share of entries with q <= {config.alpha}", tests)
    result.scalar("edges", len(result.tables["edges"]), "directed edges between different directions or own past")
    for path in STRAIGHT:
        there = beyond_zero(result, path, config.alpha)
        same = drawn(result, path, config.alpha)[there]
        agrees = float(same.mean()) if same.size else float("nan")
        unit = f"share of effects, {WORDS[path]}, with q <= {config.alpha} and an interval beyond 0"
        result.scalar(f"straight_through_agrees{path}", agrees, unit, int(same.size))
    parts = (a["q_jacobian_agent_only"] <= config.alpha) | (a["q_jacobian_through_world"] <= config.alpha)
    hidden = int((parts & ~(a["q_jacobian"] <= config.alpha)).sum())
    result.scalar(
        "parts_without_whole", hidden, "entries with a significant part whose whole is not: parts that cancel"
    )
    return result


def untested(coupling: Coupling, behaviours: Sequence[int], config: CouplingConfig) -> list[str]:
    """What was not tested for want of episodes, a sentence each that says how many are needed."""
    need, pairing = least_units(config.alpha, MEAN), least_units(config.alpha, PAIRING)
    said = []
    for b, jacobians_of, pairs_of in zip(behaviours, coupling.sample_episodes, coupling.pair_episodes, strict=True):
        if jacobians_of < need:
            said.append(f"behaviour {b} has Jacobians from {jacobians_of} episodes, {need} are needed")
        few = [f"{n} at lag {lag}" for lag, n in zip(config.lags, pairs_of, strict=True) if n < pairing]
        if few:
            said.append(f"behaviour {b} has time pairs from few episodes ({', '.join(few)}), {pairing} are needed")
    return said


def resolution(coupling: Coupling, config: CouplingConfig) -> list[str]:
    """A sentence a family in which no entry could be significant by itself: its smallest possible p times the number
    of tests is larger than alpha, so that Benjamini-Hochberg passes only many at once."""
    families = (
        ("Jacobians", MEAN, coupling.p_jacobian[""], coupling.sample_episodes),
        ("correlations", PAIRING, coupling.p_correlation, coupling.pair_episodes),
    )
    said = []
    for name, kind, p, episodes in families:
        tests, most = int(np.isfinite(p).sum()), int(episodes.max())
        least = max(smallest_p(most, kind), 1 / (1 + config.permutations))
        if tests and least * tests > config.alpha:
            alone = config.alpha / tests
            need = [f"--permutations {least_permutations(alone)}"] if 1 / (1 + config.permutations) > alone else []
            need += [f"{least_units(alone, kind)} episodes of a behaviour"] if smallest_p(most, kind) > alone else []
            said.append(
                f"{tests} {name} are tested together and p is never below {least:.2g}: at least "
                f"{math.ceil(least * tests / config.alpha)} must reach that for one to count; one alone could with "
                f"{' and '.join(need)}, or with fewer --lags or --max_directions"
            )
    return said


def _put(result: artefacts.Result, name: str, found: Agreement) -> None:
    unit = "share of entries" if name.startswith("sign") else "Spearman correlation of |J| and |r|"
    result.scalar(name, found.value, unit, found.n)
    result.scalar(
        f"{name}_null", (found.null_low + found.null_high) / 2, unit, found.n, (found.null_low, found.null_high)
    )
    result.scalar(f"{name}_p", found.p, "permutation p")


# The stage


def behaviour_labels(index_N2: np.ndarray, behaviours: Behaviours | None, source: str) -> np.ndarray:
    """The behaviour of every step of an index, -1 where it has none.  source: sim or real.  Without behaviours
    all are 0."""
    if behaviours is None:
        return np.zeros(len(index_N2), np.int64)
    if source not in behaviours.labels:
        kind = "simulated" if source == "sim" else "real"
        raise UserError(f"--behaviours has no labels of {kind} rollouts; run analysis.behaviours with them")
    known = {(int(e), int(t)): int(b) for (e, t), b in zip(*_labels(behaviours, source), strict=True)}
    return np.array([known.get((int(e), int(t)), -1) for e, t in index_N2], np.int64)


def _labels(behaviours: Behaviours, source: str) -> tuple[np.ndarray, np.ndarray]:
    return behaviours.index[source], behaviours.labels[source]


def labelled(
    store: RolloutStore, basis: Basis, directions: int, behaviours: Behaviours | None, source: str
) -> tuple[Labelled, np.ndarray]:
    """Every step of a store with its coordinates and behaviour, and its h."""
    columns, index = store.pooled("h")
    c = basis.project(torch.from_numpy(columns["h"])).numpy()[:, :directions].astype(np.float64)
    unit = source_episodes(store, range(len(store)))[index[:, 0]]
    return Labelled(index, unit, behaviour_labels(index, behaviours, source), c), columns["h"]


def check_made_from(directory: Path, name: str, source: Path) -> None:
    """UserError unless run ``directory`` was made from the run ``source``, as its input ``name``."""
    known = artefacts.read_manifest(directory)["inputs"].get(name)
    if known is None or known["manifest_sha256"] != artefacts.sha256(source / artefacts.MANIFEST):
        raise UserError(f"{directory} was not made from {source}; give the {name} it labels, or run it again")


def main(config: CouplingConfig) -> None:
    from generative.simulator import load_simulator

    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    if not config.lags or min(config.lags) < 1 or len(set(config.lags)) < len(config.lags):
        raise UserError("--lags takes different whole numbers of at least 1, as in 1 2 4")
    if not 0 < config.alpha < 1:
        raise UserError(f"--alpha {config.alpha:g} is not between 0 and 1")
    cli.require(0, max_directions=config.max_directions, batch_size=config.batch_size, seed=config.seed)
    if not 0 < config.memory_gb < np.inf:
        raise UserError(f"--memory_gb {config.memory_gb:g} must be above 0")
    cli.require(99, permutations=config.permutations, resamples=config.resamples)
    require_draws(config.permutations, config.alpha)
    if config.samples_per_behaviour < (need := least_units(config.alpha, MEAN)):
        raise UserError(
            f"--samples_per_behaviour {config.samples_per_behaviour}: a test at --alpha {config.alpha:g} needs at "
            f"least {need}"
        )
    simulator = load_simulator(config.simulator, device)
    agent = fingerprint(simulator.agent)
    basis = load_basis(config.hidden_states, config.basis_kind, agent)
    k = min(config.max_directions or basis.size, basis.size)
    inputs = {"simulator": config.simulator, "samples": config.samples, "hidden_states": config.hidden_states}
    behaviours = None
    if config.behaviours is not None:
        behaviours = load_behaviours(config.behaviours)
        check_made_from(config.behaviours, "samples", config.samples)
        inputs["behaviours"] = config.behaviours
    with open_samples(config.samples, simulator) as store:
        sampled, h = labelled(store, basis, k, behaviours, "sim")
        z_EZ = torch.from_numpy(store.latents()).to(device)
    observed = sampled
    if config.rollouts is not None:
        if config.behaviours is not None:
            check_made_from(config.behaviours, "rollouts", config.rollouts)
        with RolloutStore(config.rollouts) as store:
            facts = store.manifest["facts"]
            if facts.get("source") != "real" or facts.get("agent") != agent:
                raise UserError(f"{config.rollouts} does not hold real rollouts of this simulator's agent")
            observed, _ = labelled(store, basis, k, behaviours, "real")
        inputs["rollouts"] = config.rollouts
    ids = sorted({int(b) for b in np.unique(sampled.label_N) if b >= 0})
    if not ids:
        raise UserError(f"{config.behaviours} labels no step of {config.samples}; run analysis.behaviours on it")
    planned = plan(simulator, z_EZ, sampled, h, ids, config)
    with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        run.facts = {"agent": agent, "simulator": fingerprint(simulator)}
        coupling = couple(simulator, planned, observed, basis.to(device), ids, config)
        result = assemble(coupling, ids, {} if behaviours is None else behaviours.names, config)
        result.save(run.path)
        (run.path / PAGE).write_text(page(result))
        draw(result, run.path)
        run.metrics |= result.scalars
    for said in (*result.notes["left_out"], *result.notes["resolution"]):
        print(f"note: {said}", file=sys.stderr)
    print(f"coupling of {k} directions in {len(ids)} behaviours, {len(result.tables['edges'])} edges: {config.out}")
    strongest = strongest_pairs(result.tables["edges"])
    for row in strongest[:SHOWN]:
        print(f"  {row['sentence']}")
    if len(strongest) > SHOWN:
        print(f"  ... and more, the strongest first: {config.out / PAGE}")


if __name__ == "__main__":
    cli.run(CouplingConfig, main, STAGE)
