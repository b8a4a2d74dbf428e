"""The measures of real against simulated as rows: frames, the agent, events, lives, hidden states.

B windows, I initial frames, k horizon: row k of a simulation is k steps after its last initial frame.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.shared.directions import changing
from core.artefacts import Result, finite
from core.contracts import numbers_of_distinct
from core.figures import as_bytes
from core.stats import Estimate, bootstrap_mean, difference, not_met, share_of, softmax
from core.two_sample import NO_INTERVAL, frechet, halves, median_width, mmd, told_apart
from validation.fidelity.counterfactual import Found
from validation.fidelity.measures import (
    NO_ERROR,
    WINDOW,
    Row,
    beyond_chance,
    brier_terms,
    by_chance,
    calibration,
    in_effect,
    log_softmax,
    precision_estimate,
    psnr,
    reliability,
    row,
    total_variation,
    unknown,
    wasserstein,
)
from validation.fidelity.pairing import FEWEST_EPISODES, Paired, Rung, Side
from validation.fidelity.regions import HORIZONS
from validation.fidelity.summary import summarise

COMPONENTS = 16  # principal components the hidden states are compared in
STILL_STATES = "the recorded hidden states are all the same"
THINNED = 800  # rows that kernels are taken of: distances of all pairs
EDGES = (0, 4, 12)  # where the stretches of horizons begin that events and hidden states are pooled over


def frame_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """Observation error per horizon, free-running and teacher-forced, and free-running less baselines."""
    unit = "squared intensity" if p.images else "squared units"
    for k in range(p.seen.shape[1]):
        on = p.seen[:, k]
        if not on.any():
            return
        error = {name: e[on, k] for name, e in p.error.items()}
        copy, mean = float(error["copy"].mean()), float(error["mean"].mean())
        for suffix, name in (("", "simulated"), ("_teacher_forced", "forced")):
            if name not in error:
                continue
            e = bootstrap_mean(error[name], p.episode[on], rng=rng)
            # A restored snapshot given the same actions repeats the real frames exactly.
            yield row(f"frame_mse{suffix}", k, e, unit, floor=0.0, copy=copy, mean=mean)
            if p.images:
                decibel = Estimate(psnr(e.value), psnr(e.high), psnr(e.low), e.n)
                yield row(f"frame_psnr{suffix}", k, decibel, "dB", copy=psnr(copy), mean=psnr(mean),
                          reason=NO_ERROR)  # fmt: skip
                if not p.similarity:
                    few = f"frames of fewer than {WINDOW} pixels a side"
                    yield unknown(f"frame_ssim{suffix}", k, "1", len(np.unique(p.episode[on])), few)
                    continue
                alike = {kind: v[on, k] for kind, v in p.similarity.items()}
                e = bootstrap_mean(alike[name], p.episode[on], rng=rng)
                trivial: dict[str, Any] = {kind: float(alike[kind].mean()) for kind in ("copy", "mean")}
                yield row(f"frame_ssim{suffix}", k, e, "1", floor=1.0, **trivial)
        for name in ("copy", "mean") if k else ():
            less = bootstrap_mean(error["simulated"] - error[name], p.episode[on], rng=rng)
            yield row(f"frame_mse_less_{name}", k, less, unit, floor=-float(error[name].mean()))


def agent_rows(p: Paired, rng: np.random.Generator, actions: Mapping[str, Sequence[int]]) -> Iterator[Row]:
    """What the agent makes of simulated frames: values, hidden states, policy.

    ``actions``: ids that do the same by the name of what they do; empty where that is not known.
    """
    v0, h0 = p.real.value, p.real.h
    pi0 = softmax(p.real.logits)
    does0 = {"action_agreement": pi0.argmax(-1)}
    if actions:
        does0["action_agreement_in_effect"] = in_effect(pi0, actions)
    for suffix, side in p.modes().items():
        for k in range(p.seen.shape[1]):
            on = p.seen[:, k]
            if not on.any():
                break
            at, real = p.episode[on], v0[on, k]
            for measure, of in (("value_difference", np.asarray), ("value_error", np.abs)):
                error = bootstrap_mean(of(side.value[on, k] - real), at, rng=rng)
                trivial: dict[str, Any] = {"copy": float(of(v0[on, 0] - real).mean())}
                if measure == "value_error":
                    trivial["mean"] = float(np.abs(real.mean() - real).mean())
                yield row(f"{measure}{suffix}", k, error, "return", floor=0.0, **trivial)
            spread = ((h0[on, k] - h0[on, k].mean(0)) ** 2).mean()
            scale = float(spread) if changing(h0[on, k]).any() else float("nan")
            error = bootstrap_mean(((side.h[on, k] - h0[on, k]) ** 2).mean(1) / scale, at, rng=rng)
            copied = float(((h0[on, 0] - h0[on, k]) ** 2).mean() / scale)
            yield row(f"h_error{suffix}", k, error, "variance", floor=0.0, copy=copied, mean=1.0, reason=STILL_STATES)
        pi1 = softmax(side.logits)
        for k in range(p.acted.shape[1]):
            on = p.acted[:, k]
            if not on.any():
                break
            at = p.episode[on]
            for measure, a0 in does0.items():
                a1 = pi1.argmax(-1) if measure == "action_agreement" else in_effect(pi1, actions)
                same = bootstrap_mean(a1[on, k] == a0[on, k], at, rng=rng)
                usual = float(np.bincount(a0[on, k]).max() / on.sum())
                copied = float((a0[on, 0] == a0[on, k]).mean())
                yield row(f"{measure}{suffix}", k, same, "share", floor=1.0, copy=copied, mean=usual)
            apart = np.abs(pi1[on, k] - pi0[on, k]).sum(-1) / 2
            copied = float((np.abs(pi0[on, 0] - pi0[on, k]).sum(-1) / 2).mean())
            typical = float((np.abs(pi0[on, k].mean(0) - pi0[on, k]).sum(-1) / 2).mean())
            yield row(f"policy_distance{suffix}", k, bootstrap_mean(apart, at, rng=rng), "total variation",
                      floor=0.0, copy=copied, mean=typical)  # fmt: skip


def less_held_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """Value error and similarity of frames less a held frame's, window by window: which of the two is nearer to the
    real ones, with an interval of its own."""
    held = np.abs(p.real.value[:, :1] - p.real.value)
    paired = {"value_error": (np.abs(p.free.value - p.real.value) - held, "return", held)}
    if p.similarity:
        alike = p.similarity
        paired["frame_ssim"] = (alike["simulated"] - alike["copy"], "1", alike["copy"] - 1)
    for name, (less, unit, best) in paired.items():
        for k in range(1, p.seen.shape[1]):
            on = p.seen[:, k]
            if on.any():
                estimate = bootstrap_mean(less[on, k], p.episode[on], rng=rng)
                yield row(f"{name}_less_copy", k, estimate, unit, floor=-float(best[on, k].mean()), copy=0.0)


def stretches(horizon: int) -> list[tuple[int | None, int, int]]:
    """(name, first, stop) of the stretches of transitions that are pooled: all, then early, middle, late."""
    edges = [edge for edge in EDGES if edge < horizon] + [horizon]
    return [(None, 0, horizon), *((b, a, b) for a, b in itertools.pairwise(edges))]


def reward_sizes(p: Paired) -> np.ndarray:
    """The sizes of the real rewards other than 0, ascending."""
    return np.unique(p.real.reward[p.acted & (p.real.reward != 0)])


def sole_reward(p: Paired) -> float | None:
    """The size of a reward where all are of one size above 0, else None."""
    sizes = reward_sizes(p)
    return float(sizes[0]) if len(sizes) == 1 and sizes[0] > 0 else None


def no_probability(p: Paired) -> str:
    """Why ``sole_reward`` is None, and rewards are not foretold as a probability."""
    sizes = reward_sizes(p)
    if not len(sizes):
        return "there are none in these windows"
    if len(sizes) == 1:
        return f"all are {sizes[0]:g}, and what is foretold is a reward above 0"
    return "they are not all of one size, so their foretold mean is no probability"


def forecasts(p: Paired, side: Side) -> dict[str, np.ndarray]:
    """Foretold probabilities [B, K] of a reward, of the end, and of an end without a reward where the world tells it.

    A reward head that is trained on squared error foretells the mean, and that over the size of a reward
    is its probability, where there is one size only.
    """
    out = {"terminal": side.terminal.astype(np.float64)}
    if not np.isnan(side.unpaid).any():
        out["unpaid_ending"] = side.unpaid.astype(np.float64)
    size = sole_reward(p)
    return out if size is None else {"reward": (side.reward.astype(np.float64) / size).clip(0, 1), **out}


def real_events(p: Paired) -> dict[str, np.ndarray]:
    """What happened at the transitions, bool [B, K] each."""
    return {
        "reward": p.real.reward > 0, "terminal": p.real.terminal.astype(bool),
        "unpaid_ending": p.real.unpaid.astype(bool),
    }  # fmt: skip


NEVER = {"reward": "no reward", "terminal": "no ending", "unpaid_ending": "no ending without a reward"}


def event_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """Rewards and endings foretold; all horizons pooled and in three stretches."""
    events = real_events(p)
    for suffix, side in p.modes().items():
        probabilities = forecasts(p, side)
        scores = probabilities | {"reward": side.reward, "terminal": side.terminal}
        for upto, a, b in stretches(p.acted.shape[1]):
            on = p.acted[:, a:b]
            if not on.any():
                continue
            episode = np.broadcast_to(p.episode[:, None], on.shape)[on]
            for name, score in scores.items():
                event = events[name][:, a:b][on]
                estimate = precision_estimate(score[:, a:b][on], event, episode, rng)
                measure = f"{name}_average_precision{suffix}"
                never = f"{NEVER[name]} in these windows"
                yield row(measure, upto, estimate, "1", floor=1.0, mean=float(event.mean()), reason=never)
            for name, probability in probabilities.items():
                event, chance = events[name][:, a:b][on], probability[:, a:b][on]
                brier = bootstrap_mean(brier_terms(chance, event), episode, rng=rng)
                variance = float(event.astype(float).var())
                yield row(f"{name}_brier{suffix}", upto, brier, "squared probability", floor=0.0, mean=variance)
                estimate, floor = calibration(chance, event, episode, rng)
                yield row(f"{name}_calibration_error{suffix}", upto, estimate, "probability", floor=floor, mean=0.0)
            real = p.real.reward[:, a:b][on]
            squared = bootstrap_mean((side.reward[:, a:b][on] - real) ** 2, episode, rng=rng)
            yield row(f"reward_mse{suffix}", upto, squared, "squared reward", floor=0.0, mean=float(real.var()))


def calibration_rows(p: Paired) -> Iterator[Row]:
    """The reliability table: a line an event, kind of simulation and bin of forecasts."""
    events = real_events(p)
    episode = np.broadcast_to(p.episode[:, None], p.acted.shape)[p.acted]
    for suffix, side in p.modes().items():
        for name, probability in forecasts(p, side).items():
            for line in reliability(probability[p.acted], events[name][p.acted], episode):
                yield {"event": name, "simulation": "teacher-forced" if suffix else "free-running", **line}


@dataclass(frozen=True)
class Lives:
    """What happens in the windows in which the agent acted by itself, really and in its dreams; windows cut by a time
    limit left out."""

    episode: np.ndarray  # int64 [M]
    acted: tuple[np.ndarray, np.ndarray]  # real, dreamed: bool [M, K], the transition exists
    action: tuple[np.ndarray, np.ndarray]  # [M, K]
    reward: tuple[np.ndarray, np.ndarray]  # [M, K]

    def in_effect(self, actions: Mapping[str, Sequence[int]]) -> Lives:
        """The same with every action as the number, among ``actions``, of what it does."""
        number_A = numbers_of_distinct(actions)
        real, dreamed = (number_A[a] for a in self.action)
        return replace(self, action=(real, dreamed))

    def total(self, world: int) -> dict[str, np.ndarray]:
        """{return, length} [M] within the horizon, of 0 the real or 1 the dreamed world."""
        acted = self.acted[world]
        return {"return": (self.reward[world] * acted).sum(1), "length": acted.sum(1).astype(float)}


def lives(p: Paired, rng: np.random.Generator) -> Lives:
    """Dreams end by a draw from the foretold probabilities."""
    whole = p.by_itself & (p.acted.all(1) | (p.real.terminal.astype(bool) & p.acted).any(1))
    ends = rng.random(p.dreamed.terminal.shape) < p.dreamed.terminal
    goes_on = np.concatenate([np.ones((len(ends), 1), bool), ~np.logical_or.accumulate(ends, 1)[:, :-1]], 1)
    steps = p.acted.shape[1]
    sides = (p.real, p.dreamed)
    return Lives(
        episode=p.episode[whole],
        acted=(p.acted[whole], goes_on[whole]),
        action=(p.real.action[whole, :steps], p.dreamed.action[whole, :steps]),
        reward=(sides[0].reward[whole], sides[1].reward[whole]),
    )


def life_rows(x: Lives, rng: np.random.Generator) -> Iterator[Row]:
    """Distributions of returns, lengths, actions and transitions between actions, really and in dreams.

    ``baseline_copy``: a world that stands still (no reward, no end, the first action for ever);
    ``baseline_mean``: the most frequent action always.  Intervals of differences leave room for windows of a kind that
    none was (``not_met``); where all real returns are the same, nothing tells how large others are: no interval.
    """
    if (count := len(np.unique(x.episode))) < FEWEST_EPISODES:
        few = (
            f"{count} episodes of the agent by itself have windows that end or last to the horizon, "
            f"{FEWEST_EPISODES} are needed"
        )
        for name, unit in (("return", "return"), ("length", "steps")):
            yield unknown(f"{name}_difference", None, unit, count, few)
            yield unknown(f"{name}_distance", None, f"{unit}, Wasserstein-1", count, few)
        for name in ("action", "transition"):
            yield unknown(f"{name}_distance", None, "total variation", count, few)
        return
    real, dreamed = x.total(0), x.total(1)
    still = {"return": np.zeros(len(x.episode)), "length": np.full(len(x.episode), float(x.acted[0].shape[1]))}
    for name, unit in (("return", "return"), ("length", "steps")):
        less = bootstrap_mean(dreamed[name] - real[name], x.episode, rng=rng)
        reach = float(x.acted[0].shape[1] if name == "length" else np.ptp([*real[name], *dreamed[name]]))
        known_reach = name == "length" or np.ptp(real[name]) > 0
        less = not_met(less, reach, 0.95) if known_reach else less._replace(low=np.nan, high=np.nan)
        copied = float((still[name] - real[name]).mean())
        yield row(f"{name}_difference", None, less, unit, floor=0.0, copy=copied)
        seed = int(rng.integers(2**31))
        args = (x.episode, wasserstein)
        against, floor = halves(real[name], dreamed[name], *args, np.random.default_rng(seed))
        trivial, _ = halves(real[name], still[name], *args, np.random.default_rng(seed))
        yield row(f"{name}_distance", None, against, f"{unit}, Wasserstein-1", floor=floor.value, copy=trivial.value)
    count = int(max(a.max() for a in x.action)) + 1
    first = np.broadcast_to(x.action[0][:, :1], x.action[0].shape)
    usual = np.full_like(first, np.bincount(x.action[0][x.acted[0]]).argmax())
    for name, kept in (("action", 0), ("transition", 1)):

        def sample(action: np.ndarray, acted: np.ndarray, kept: int = kept) -> tuple[np.ndarray, np.ndarray]:
            """(actions or pairs of successive ones as whole numbers, their episodes)."""
            on = acted[:, kept:]
            pairs = action if not kept else action[:, :-1] * count + action[:, 1:]
            return pairs[on], np.broadcast_to(x.episode[:, None], on.shape)[on]

        seen, episode = sample(x.action[0], x.acted[0])
        seed = int(rng.integers(2**31))
        guesses = {"dreamed": (x.action[1], x.acted[1]), "copy": (first, x.acted[0]), "mean": (usual, x.acted[0])}
        got = {}
        for guess, columns in guesses.items():
            other, of = sample(*columns)
            got[guess] = halves(seen, other, episode, total_variation, np.random.default_rng(seed), of)
        against, floor = got["dreamed"]
        short = f"dreams end so soon that a half of the episodes has no {name} of them"
        yield row(f"{name}_distance", None, against, "total variation", floor=floor.value,
                  copy=got["copy"][0].value, mean=got["mean"][0].value, reason=short)  # fmt: skip


def thinned(rows: int, width: int) -> np.ndarray:
    """About THINNED of so many rows of windows, every n-th; ``width``: the rows of a whole window, with which n has no
    factor in common, or the same few horizons of every window would be taken."""
    every = max(1, rows // THINNED)
    while math.gcd(every, width) > 1:
        every += 1
    return np.arange(0, rows, every)


def hidden_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """Distributions of the agent's hidden state, in principal components of the real one, over
    stretches of horizons.  ``baseline_copy``: the states at horizon 0."""
    horizon = p.seen.shape[1] - 1
    for upto, a, b in stretches(horizon):
        a, b = a + 1, b + 1
        on = p.seen[:, a:b]
        episode = np.broadcast_to(p.episode[:, None], on.shape)[on]
        h0, h1 = (side.h[:, a:b][on].astype(np.float64) for side in (p.real, p.free))
        copy = np.broadcast_to(p.real.h[:, :1], p.real.h[:, a:b].shape)[on].astype(np.float64)
        count = len(np.unique(episode))
        live = changing(h0) if len(h0) else np.zeros(h0.shape[1], bool)
        if count < FEWEST_EPISODES or not live.any():
            few = f"{count} episodes last that long, {FEWEST_EPISODES} are needed"
            why = few if count < FEWEST_EPISODES else STILL_STATES
            for name in ("h_frechet", "h_mmd"):
                yield unknown(name, upto, "squared, z-scored", count, why)
            yield unknown("h_classifier", upto, "accuracy of a linear classifier", count, why)
            continue
        mean, std = h0[:, live].mean(0), h0[:, live].std(0)
        _, size, axes = np.linalg.svd((h0[:, live] - mean) / std, full_matrices=False)
        keep = min(COMPONENTS, int((size > 1e-6 * size[0]).sum()))
        real, simulated, copied = (((h[:, live] - mean) / std) @ axes[:keep].T for h in (h0, h1, copy))
        width = median_width(real, rng)
        thin = thinned(len(real), b - a)
        for name, distance, rows in (
            ("h_frechet", frechet, np.arange(len(real))),
            ("h_mmd", lambda x, y, w=width: mmd(x, y, w), thin),
        ):
            seed, one = int(rng.integers(2**31)), "a half of the episodes has a single state"

            def of_two(x: np.ndarray, y: np.ndarray, d: Callable[..., float] = distance) -> float:
                return d(x, y) if min(len(x), len(y)) >= 2 else np.nan

            against, floor = halves(real[rows], simulated[rows], episode[rows], of_two, np.random.default_rng(seed))
            trivial, _ = halves(real[rows], copied[rows], episode[rows], of_two, np.random.default_rng(seed))
            yield row(name, upto, against, "squared, z-scored", floor=floor.value, copy=trivial.value, reason=one)

        units = np.unique(episode)
        half = np.isin(episode, rng.permutation(units)[: len(units) // 2]).astype(int)
        side, both = np.repeat([0, 1], len(real)), np.tile(episode, 2)
        apart, apart_copy = (
            told_apart(np.concatenate([real, other]), side, both, rng) for other in (simulated, copied)
        )
        yield row("h_classifier", upto, apart, "accuracy of a linear classifier", mean=0.5, copy=apart_copy.value,
                  floor=told_apart(real, half, episode, rng).value)  # fmt: skip


def policy_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """Kullback-Leibler divergence of the agent's policy in simulated frames from that in the real ones."""
    log0, log1 = (log_softmax(side.logits) for side in (p.real, p.free))
    pi0 = np.exp(log0)
    for k in HORIZONS:
        if k >= p.acted.shape[1] or not p.acted[:, k].any():
            return
        on = p.acted[:, k]
        typical = np.log(pi0[on, k].mean(0).clip(np.finfo(float).tiny))
        lost = {
            name: (pi0[on, k] * (log0[on, k] - other)).sum(-1)
            for name, other in (("simulated", log1[on, k]), ("copy", log0[on, 0]), ("mean", typical))
        }
        e = bootstrap_mean(lost["simulated"], p.episode[on], rng=rng)
        trivial: dict[str, Any] = {kind: float(lost[kind].mean()) for kind in ("copy", "mean")}
        yield row("policy_kl", k, e, "nats", floor=0.0, **trivial)


def kappa_rows(p: Paired, rows: Sequence[Row], actions: Mapping[str, Sequence[int]]) -> Iterator[Row]:
    """Agreement on the likeliest action (of ``rows``, see ``agent_rows``) beyond what two choosers with these
    frequencies of actions have by chance (Cohen's kappa, 1960): an agent that nearly always does the same agrees with
    itself in any world.  The interval is that of the agreement; chance is taken as it is."""
    pi = [softmax(side.logits) for side in (p.real, p.free)]
    does = {"": [x.argmax(-1) for x in pi]} | ({"_in_effect": [in_effect(x, actions) for x in pi]} if actions else {})
    agreed = {(r["measure"], r["horizon"]): r for r in rows}
    for suffix, (real, simulated) in does.items():
        for k in HORIZONS:
            if (same := agreed.get((f"action_agreement{suffix}", k))) is None:
                break
            on = p.acted[:, k]
            chance, of_first = (by_chance(real[on, k], x) for x in (simulated[on, k], real[on, 0]))
            value, low, high = (
                np.nan if same[x] is None else beyond_chance(same[x], chance) for x in ("simulated", "low", "high")
            )
            yield row(f"action_kappa{suffix}", k, Estimate(value, low, high, same["n"]), "1", floor=1.0,
                      copy=finite(beyond_chance(same["baseline_copy"], of_first)), mean=0.0,
                      reason="one action, always, in both worlds")  # fmt: skip


def survival_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """Dreams that outlive k steps, by their foretold chances of ending, beside the real episodes (floor); windows that
    a time limit cuts, or in which the agent explored, are left out.  ``baseline_copy``: a world that stands still never
    ends.  The difference has an interval that knows what few deaths tell of the real share, though all that were
    seen agree."""
    ended = p.real.terminal.astype(bool) & p.acted
    whole = p.by_itself & (p.acted.all(1) | ended.any(1))
    at = p.episode[whole]
    real = np.cumprod(1.0 - ended[whole], 1)
    dreamed = np.cumprod(1.0 - p.dreamed.terminal[whole].astype(np.float64), 1)
    for k in HORIZONS:
        if k > real.shape[1]:
            return
        if len(np.unique(at)) < 2:
            few = "fewer than two episodes of the agent by itself have windows that end or last to the horizon"
            yield unknown("dreams_alive", k, "share", len(np.unique(at)), few)
            yield unknown("dreams_alive_difference", k, "share", len(np.unique(at)), few)
            continue
        lives_on, dream = share_of(real[:, k - 1], at), bootstrap_mean(dreamed[:, k - 1], at, rng=rng)
        dream = dream._replace(low=max(dream.low, 0.0), high=min(dream.high, 1.0))
        yield row("dreams_alive", k, dream, "share", floor=lives_on.value, copy=1.0)
        yield row("dreams_alive_difference", k, difference(dream, lives_on), "share", floor=0.0,
                  copy=1.0 - lives_on.value)  # fmt: skip


def dream_state_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """Hidden states of dreams, while they last, told apart from the real ones in windows in which the agent acted by
    itself, as ``hidden_rows`` does it with those under the recorded actions."""
    ends = rng.random(p.dreamed.terminal.shape) < p.dreamed.terminal
    own = p.by_itself[:, None]
    seen, goes_on = p.seen[:, 1:] & own, ~np.logical_or.accumulate(ends, 1) & own
    h0 = p.real.h[:, 1:][seen].astype(np.float64)
    live = changing(h0) if len(h0) else np.zeros(h0.shape[1], bool)
    unit = "accuracy of a linear classifier"
    units = np.unique(p.episode[p.by_itself])
    if not live.any() or not goes_on.any():
        why = "every dream ends at once" if live.any() else STILL_STATES
        yield unknown("h_classifier_dreamed", None, unit, len(units), why)
        return
    mean, std = h0[:, live].mean(0), h0[:, live].std(0)
    _, size, axes = np.linalg.svd((h0[:, live] - mean) / std, full_matrices=False)
    keep = min(COMPONENTS, int((size > 1e-6 * size[0]).sum()))
    h1 = p.dreamed.h[:, 1:][goes_on].astype(np.float64)
    real, dreamed = (((h[:, live] - mean) / std) @ axes[:keep].T for h in (h0, h1))
    at, other_at = (np.broadcast_to(p.episode[:, None], on.shape)[on] for on in (seen, goes_on))
    label = np.repeat([0, 1], [len(real), len(dreamed)])
    apart = told_apart(np.concatenate([real, dreamed]), label, np.concatenate([at, other_at]), rng)
    half = np.isin(at, rng.permutation(units)[: len(units) // 2]).astype(int)
    found = row("h_classifier_dreamed", None, apart, unit, mean=0.5, floor=told_apart(real, half, at, rng).value,
                reason="one episode has all the states")  # fmt: skip
    few = found["simulated"] is not None and found["low"] is None
    yield {**found, "reason": NO_INTERVAL} if few else found


def compare(
    p: Paired, rng: np.random.Generator, found: Found | None = None,
    actions: Mapping[str, Sequence[int]] | None = None, rungs: Sequence[Rung] | None = None,
) -> Result:  # fmt: skip
    """The whole table as a Result.

    found: what the snapshots told; actions: ids that do the same, which count as one, by the name of what they do
    (EnvSpec.distinct_actions); None: every id by itself.  rungs: those that ``p`` was made with, whose lines and the
    further ones of policy and dreams are added; None: none of them."""
    found = Found() if found is None else found
    actions = actions if actions and any(len(ids) > 1 for ids in actions.values()) else {}
    x = lives(p, rng)
    if actions:
        x = x.in_effect(actions)
    rows = [
        *frame_rows(p, rng), *agent_rows(p, rng, actions or found.notes.get("action_ids", {})),
        *event_rows(p, rng), *hidden_rows(p, rng), *life_rows(x, rng), *found.rows,
    ]  # fmt: skip
    if rungs is not None:
        rows += [*policy_rows(p, rng), *survival_rows(p, rng), *dream_state_rows(p, rng)]
        for rung in rungs:
            rows += rung.rows(p, rng)
        rows += kappa_rows(p, rows, actions or found.notes.get("action_ids", {}))
    rows += less_held_rows(p, rng)  # the last, so that the draws of the others are those of before
    result = Result(tables={"fidelity": rows, "calibration": list(calibration_rows(p)), **found.tables})
    result.arrays = {
        "episode": p.episode, "seen": p.seen, "strip_row": p.shown,
        "value_real": p.real.value, "value_simulated": p.free.value,
        **{f"error_{k}": v.astype(np.float32) for k, v in p.error.items()},
        **{f"strip_{k}": v if k == "action" else to_store(v, p.images) for k, v in p.strip.items()},
        **{f"{name}_{kind}": v for world, kind in enumerate(("real", "dreamed")) for name, v in x.total(world).items()},
        **{f"actions_{kind}": x.action[world][x.acted[world]] for world, kind in enumerate(("real", "dreamed"))},
        **{k: to_store(v, p.images) if v.dtype == np.float32 else v for k, v in found.arrays.items()},
    }  # fmt: skip
    result.notes = {
        "horizon": "steps after the last initial frame; empty: all together; events and hidden states: the "
        "stretch of horizons that ends there, beginning after the one before",
        "floor": "what the real world scores against itself: a restored snapshot repeats frames exactly; for "
        "distributions, one half of the episodes against the other; for calibration, forecasts that are right; for "
        "counterfactual actions, real frames looked up among real frames; for gradient signs, the same finite "
        "differences under other action noise",
        "baseline_copy": "the last initial observation (or what the agent made of it), repeated; dreams: a world "
        "without reward or end, the first action for ever",
        "baseline_mean": "the mean over these very episodes, or the most frequent action or event rate: a baseline "
        "that has seen the answers; counterfactual actions and gradient signs: chance",
        "teacher_forced": "the simulator is shown every real frame: its frames have seen the frame they are compared "
        "with, its rewards and endings only the frames before",
        "dreams": f"{len(x.episode)} windows: the agent acts by itself in the simulator, as it did in their record; "
        "states and endings are drawn; returns and lengths within the horizon",
        "windows": len(p.episode),
        "episodes": len(np.unique(p.episode)),
        "left_out": [],
        **{k: v for k, v in found.notes.items() if k != "action_ids"},
    }
    if actions:
        result.notes["distinct_actions"] = list(actions)  # what the numbers in actions_real and actions_dreamed mean
    if not p.by_itself.all():
        result.notes["left_out"].append(
            f"{len(np.unique(p.episode[~p.by_itself]))} of {len(np.unique(p.episode))} episodes, from what is compared "
            "with dreams (returns, lengths, actions, survival, dreamed states): the agent explored in them"
        )
    if sole_reward(p) is None:
        result.notes["left_out"].append(f"Brier score and calibration of rewards: {no_probability(p)}")
    result.notes["left_out"] += [found.notes[name] for name in ("cut", "time_limit") if name in found.notes]
    if not found.notes:
        result.notes["left_out"].append("counterfactual actions, gradients and another policy: --no-counterfactual")
    return summarise(result)


def to_store(obs: np.ndarray, images: bool) -> np.ndarray:
    """Images in [0, 1] as uint8; anything else as it is."""
    return as_bytes(obs) if images and obs.ndim >= 4 else obs
