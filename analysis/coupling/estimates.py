"""Correlations and Jacobians together, per behaviour and lag, with tests and intervals over episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from analysis.coupling.config import CouplingConfig
from analysis.coupling.correlation import MEAN, MORE, Labelled, correlate
from analysis.coupling.edges import PATHS
from analysis.coupling.extremes import TAILS, Extremes, means_given, sources_at_ends
from analysis.coupling.jacobian import Recorded, Replay, jacobians, replay, rows_that_fit
from analysis.coupling.kinds import Kinds, kinds
from analysis.shared.samples import REPLAY_TOLERANCE, not_again
from core import ranks
from core.contracts import UserError
from core.directions import Basis
from core.episodes import RolloutStore, spread_over_episodes
from core.progress import bar
from core.roll import Place, Simulator
from core.stats import TESTS, least_units, means, require_draws
from core.trees import rows_of

BLOCK = 1024  # entries whose means are inferred at once
ROUNDING = 1e-6  # of the largest Jacobian: what a float32 backward pass leaves of a zero


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
    actions: Sequence[Sequence[str]]  # what was enumerated: actions (choices of a part) that do the same, together
    kinds: Kinds | None = None  # of the behaviours, by their whole Jacobians
    extremes: Extremes | None = None  # None: not asked for
    parts: Sequence[str] = ()  # of an action, where it has several


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
    """Where Jacobians are taken: M rows, behaviour after behaviour, then extreme after extreme."""

    place: Place  # after step T - max(lags) - 1
    unit_M: np.ndarray
    ends: np.ndarray  # [behaviours + extremes + 1]: rows ends[b] to ends[b + 1] are those of behaviour number b
    extremes: Sequence[tuple[int, int, int]] = ()  # tail, place of the lag, source


def plan(
    simulator: Simulator[Any],
    z_EZ: Tensor,
    sampled: Labelled,
    h_sampled_NH: np.ndarray,
    behaviours: Sequence[int],
    config: CouplingConfig,
    recorded: Recorded | None = None,
    store: RolloutStore | None = None,
) -> Plan:
    """Choose steps of ``sampled`` (with hidden states h_sampled), the modal rollouts from the latents z_EZ
    (episode e starts from row e).

    recorded: the rollouts with all that is needed to go on from them; None: they are simulated again.
    store: of the samples, to say how they were made if they do not come out again.

    Raises UserError if the rollouts are too short, if most steps do not come out again, or if no behaviour
    has enough episodes for a test at alpha.
    """
    rng, longest = np.random.default_rng([config.seed, 0]), max(config.lags)
    usable_N = sampled.index_N2[:, 1] > longest
    if not usable_N.any():
        raise UserError(f"--lags {longest}: the samples are too short; record longer ones or use shorter lags")
    played: Recorded | Replay
    if recorded is None:
        played = replay(simulator, z_EZ, int(sampled.index_N2[:, 1].max()) + 1)
        h_played = played.h_ETH[sampled.index_N2[:, 0], sampled.index_N2[:, 1]].cpu().numpy()
        same_N = np.abs(h_played - h_sampled_NH).max(1) < REPLAY_TOLERANCE
    else:
        played, same_N = recorded, np.ones(len(h_sampled_NH), bool)
    if same_N[usable_N].mean() < 0.5:
        raise not_again(same_N[usable_N].mean(), store, "Jacobians need")
    groups = [sampled.label_N == b for b in behaviours]
    ends = sources_at_ends(sampled, config.lags, config.extremes) if config.extremes else {}
    eligible = [np.flatnonzero(group & usable_N & same_N) for group in (*groups, *ends.values())]
    chosen = [spread_over_episodes(rows, sampled.unit_N, config.samples_per_behaviour, rng) for rows in eligible]
    rows = np.concatenate(chosen)
    if not len(np.concatenate(chosen[: len(groups)])):
        raise UserError(
            f"no behaviour has a step later than {longest} in --samples (the last steps of every episode are in none: "
            "--lags of analysis.behaviours); record longer samples, or use shorter lags, there or here"
        )
    most = max(len(np.unique(sampled.unit_N[c])) for c in chosen[: len(groups)])
    need = least_units(config.alpha, MEAN)
    if most < need:
        raise UserError(
            f"no behaviour has enough episodes for its Jacobians: at most {most}, and {TESTS[MEAN]} at --alpha "
            f"{config.alpha:g} needs {need}; {MORE}"
        )
    episode_M, step_M = sampled.index_N2[rows].T
    place = played.places(episode_M, step_M - longest - 1)
    return Plan(place, sampled.unit_N[rows], np.cumsum([0, *(len(c) for c in chosen)]), tuple(ends))


def couple(
    simulator: Simulator[Any],
    planned: Plan,
    observed: Labelled,
    basis: Basis,
    behaviours: Sequence[int],
    config: CouplingConfig,
    jacobians: Callable[..., dict[str, Tensor]] = jacobians,
) -> Coupling:
    """Correlations of ``observed`` and Jacobians from the planned states; NaN for a behaviour with too few episodes.

    jacobians: what gives them (another one in controls of this method itself).  UserError if that is every behaviour,
    or if there are too few permutations for any p <= alpha.
    """
    require_draws(config.permutations, config.alpha)
    rng = np.random.default_rng([config.seed, 1])
    lags, k = list(config.lags), observed.c_NK.shape[1]
    shape = (len(behaviours), len(lags), k, k)
    r = correlate(observed, behaviours, lags, config.permutations, config.resamples, rng, config.alpha)
    place, unit_M, stops, extreme = planned
    groups = simulator.world.spec.distinct_choices()
    later = [at for at, lag in enumerate(lags) if lag]  # at the same step a Jacobian is the basis's, no effect
    lagged = [lags[at] for at in later]
    direct, world, straight, ended = _planned_jacobians(simulator, place, basis, lagged, groups, config, jacobians)
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
    of_units, units = list[np.ndarray | None](), list[np.ndarray]()
    part = (len(later), k, k)
    for b in range(len(behaviours)):
        mine = slice(stops[b], stops[b + 1])
        episodes[b] = len(np.unique(unit_M[mine]))
        units.append(np.unique(unit_M[mine]))
        of_units.append(None)
        if episodes[b] < least_units(config.alpha, MEAN):
            continue
        for path in PATHS:
            effect = per_sample[path][mine].reshape(stops[b + 1] - stops[b], -1)
            over = mean_effect(effect, unit_M[mine], config.permutations, rng)
            mean[path][b, later], p[path][b, later] = over.mean_X.reshape(part), over.p_X.reshape(part)
            ends[path][:, b, later] = over.ends_2X.reshape(2, *part)
        of_units[b] = mean_over_episodes(per_sample[""][mine].reshape(stops[b + 1] - stops[b], -1), unit_M[mine])
        for path, x in compared.items():
            effect = x[mine].reshape(stops[b + 1] - stops[b], -1)
            straight_through[path][b, later] = mean_over_episodes(effect, unit_M[mine]).mean(0).reshape(part)
    others = np.random.default_rng([config.seed, 2])  # what was computed before these stays as it was
    alike = kinds(of_units, units, config.alpha, config.permutations, others)
    of_extreme = per_sample[""], unit_M, stops[len(behaviours) :], extreme, later
    given = _at_extremes(observed, of_extreme, shape[1:], config, others) if config.extremes else None
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
        samples=np.diff(stops[: len(behaviours) + 1]),
        sample_episodes=episodes,
        ended=float(ended.mean()),
        actions=[[simulator.world.spec.action_names[i] for i in ids] for ids in groups],
        kinds=alike,
        extremes=given,
        parts=tuple(simulator.world.spec.action_parts),
    )


def _at_extremes(
    observed: Labelled,
    sampled: tuple[np.ndarray, np.ndarray, np.ndarray, Sequence[tuple[int, int, int]], list[int]],
    shape: tuple[int, ...],
    config: CouplingConfig,
    rng: np.random.Generator,
) -> Extremes:
    """What follows extremes.  sampled: whole effects [M, L, K, K], the episode of each row, where the rows of every
    group end, the groups (``Plan.extremes``; each counts for its own source and lag), and the places of the L lags."""
    effect_MLKK, unit_M, stops, groups, later = sampled
    mean, p = np.full((2, len(TAILS), *shape), np.nan)
    ends = np.full((2, len(TAILS), *shape), np.nan)
    samples, episodes = np.zeros((2, len(TAILS), *shape[:2]), np.int64)
    for (tail, at, i), first, last in zip(groups, stops[:-1], stops[1:], strict=True):
        unit = unit_M[first:last]
        samples[tail, at, i], episodes[tail, at, i] = len(unit), len(np.unique(unit))
        if episodes[tail, at, i] < least_units(config.alpha, MEAN):
            continue
        over = mean_effect(effect_MLKK[first:last, later.index(at), i], unit, config.permutations, rng)
        mean[tail, at, i], p[tail, at, i], ends[:, tail, at, i] = over.mean_X, over.p_X, over.ends_2X
    lags = list(config.lags)
    r = means_given(observed, lags, config.extremes, config.permutations, config.resamples, rng, config.alpha)
    return Extremes(
        r["mean"], r["p"], r["ends"], r["steps"], r["episodes"], mean, p, ends, samples, episodes
    )  # fmt: skip


def _planned_jacobians(
    simulator: Simulator[Any], place: Place, basis: Basis, lags: Sequence[int], groups: list[list[int]],
    config: CouplingConfig, jacobians: Callable[..., dict[str, Tensor]],
) -> list[np.ndarray]:  # fmt: skip
    """direct, through_world, straight_through [M, L, K, K] and ended [M], batch by batch, all of them finite."""
    size = config.batch_size or rows_that_fit(simulator, place, max(lags), config.memory_gb * 1e9)
    blocks = [slice(n, n + size) for n in range(0, len(place.alive_B), size)]

    def of(block: slice) -> dict[str, Tensor]:
        part: Place = rows_of(place, block)
        return jacobians(simulator, part, basis, lags, groups)

    found = []
    with bar("Jacobians", total=len(place.alive_B), unit="samples") as progress:
        for part in ranks.each(blocks, of, "lower --batch_size"):
            found.append(part)
            progress.advance(len(part["ended"]))
    names = ("direct", "through_world", "straight_through", "ended")
    out = [torch.cat([f[name] for f in found]).cpu().numpy().astype(np.float64) for name in names]
    broken = ~np.isfinite(np.stack(out[:3])).all((0, 2, 3, 4))
    if broken.any():
        raise UserError(
            f"{broken.sum()} of {len(broken)} Jacobians are NaN or infinite: gradients through this simulator explode; "
            "use shorter --lags, or train it longer"
        )
    return out
