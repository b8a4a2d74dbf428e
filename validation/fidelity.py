"""How true is the simulator: ``python -m validation.fidelity --simulator DIR --rollouts DIR``.

Held-out real episodes against simulations that start from the same frames and are given the recorded
actions (free-running), the recorded frames too (teacher-forced), or nothing more (dreamed: the agent acts
as it likes).  Then, from snapshots of the real world, what recordings cannot tell
(validation.counterfactual).  Every number stands beside what trivial predictions score (the last frame
seen, the mean), and beside the real-vs-real floor.  The measures are validation.measures', the figures
validation.fidelity_figures'.

B windows, I initial frames, k horizon: row k of a simulation is k steps after its last initial frame.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from agents.evaluate import HELD_OUT_LEVEL
from agents.recurrent import RecurrentAgent, load_agent
from analysis.directions import changing, fit_pca, state_rank
from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import EnvSpec, Simulator, UserError, VecEnv
from core.directions import Basis, fingerprint
from core.episodes import Episode, RolloutStore
from core.progress import bar
from core.stats import Estimate, bootstrap_mean, few
from core.two_sample import frechet, halves, median_width, mmd, told_apart
from core.video import check_video
from envs.registry import make
from generative.simulator import RSSMSimulator, load_simulator, require_finite
from validation import fidelity_figures as figures
from validation.counterfactual import DIRECTIONS, Found, require_snapshots, try_again
from validation.fidelity_figures import SHOWN
from validation.measures import (
    Row,
    as_float,
    brier_terms,
    calibration,
    precision_estimate,
    psnr,
    reliability,
    row,
    ssim,
    total_variation,
    wasserstein,
)

STAGE = "fidelity"
COMPONENTS = 16  # principal components the hidden states are compared in
FEWEST_EPISODES = 4
STRIPS = 4  # windows kept to look at
LEVELS = ("start_level", "num_levels")  # options that choose levels of a world, not another world
STILL_STATES = "the recorded hidden states are all the same"
EDGES = (0, 4, 12)  # where the stretches of horizons begin that events and hidden states are pooled over


@dataclass(frozen=True, kw_only=True)
class FidelityConfig:
    """Compare a simulator with held-out real rollouts, step by step."""

    simulator: Path
    """run directory of the simulator (with its agent)"""
    rollouts: Path
    """real rollouts of the same agent, on levels that the simulator was not trained on"""
    out: Path = Path("runs/fidelity")
    """run directory to write"""
    horizon: int = 32
    """simulated steps"""
    windows: int = 128
    """starts, spread evenly over the episodes; those of one episode count as one independent unit"""
    batch: int = 16
    """windows simulated at once"""
    counterfactual: bool = True
    """also try actions, gradients and another policy in the real world, which must take snapshots"""
    starts: int = 64
    """snapshots for that, each of another episode"""
    latest_start: int = 32
    """they are taken at a random step of the episode up to this one"""
    other_agent: Path | None = None
    """run directory of another agent of the same world, whose actions the simulator is given too (default:
    random actions)"""
    start_level: int = HELD_OUT_LEVEL
    """first level of the pool the real world draws from (Procgen)"""
    num_levels: int = 100_000
    """size of that pool (Procgen)"""
    video: bool = True
    """MP4s of real above simulated"""
    seed: int = 0
    """seed of the starts, of all noise and of the bootstrap"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier comparison in --out"""


class Side(NamedTuple):
    """What one world shows along the windows; row k of ``reward`` and ``terminal`` is the transition k -> k+1."""

    h: np.ndarray  # [B, K+1, H]
    value: np.ndarray  # [B, K+1]
    logits: np.ndarray  # [B, K+1, A]
    action: np.ndarray  # int64 [B, K+1]
    reward: np.ndarray  # [B, K]
    terminal: np.ndarray  # [B, K], real: 0 or 1, simulated: probability


@dataclass
class Paired:
    """Windows of real episodes and their simulations, row k being horizon k = 0 .. K.

    ``seen``: the real observation exists; ``acted``: the transition after it does too.  ``error`` holds
    mean squared differences of the observation from the real one, ``similarity`` its SSIM (empty where
    observations are no images): of ``simulated``, ``forced`` (where the simulator can), ``copy``, ``mean``.
    """

    episode: np.ndarray  # int64 [B]
    seen: np.ndarray  # bool [B, K+1]
    acted: np.ndarray  # bool [B, K]
    error: dict[str, np.ndarray]  # float [B, K+1]
    similarity: dict[str, np.ndarray]  # float [B, K+1]
    real: Side
    free: Side  # given the recorded actions
    forced: Side | None  # given the recorded frames too
    dreamed: Side  # given neither: the agent samples its own actions, the world its own states
    shown: np.ndarray  # int64 [S], a few windows kept to look at
    strip: dict[str, np.ndarray]  # their observations [S, K+1, ...]

    @property
    def images(self) -> bool:
        """Whether the observations are images in [0, 1]."""
        return bool(self.similarity)

    def modes(self) -> dict[str, Side]:
        """The simulations that are paired with the recorded actions, by the suffix of their measures."""
        return {"": self.free} | ({} if self.forced is None else {"_teacher_forced": self.forced})


def choose_starts(
    store: Sequence[Episode] | RolloutStore, least: int, count: int, rng: np.random.Generator
) -> np.ndarray:
    """``count`` starts int64 [count, 2] (episode, t), equally many an episode (+-1), whose first
    ``least`` observations exist; fewer if the episodes have no more.  UserError if none has any."""
    lengths = store.rows if isinstance(store, RolloutStore) else np.array([len(e.h) for e in store])
    long = np.flatnonzero(lengths >= least)
    if len(long) < FEWEST_EPISODES:
        raise UserError(
            f"only {len(long)} episodes have {least} observations and {FEWEST_EPISODES} are needed; record more"
        )
    order = rng.permutation(long)
    taken: list[tuple[int, int]] = []
    left = {int(e): list(rng.permutation(int(lengths[e]) - least + 1)) for e in order}
    while len(taken) < count and any(left.values()):
        for e in order:
            if left[int(e)] and len(taken) < count:
                taken.append((int(e), int(left[int(e)].pop())))
    return np.array(sorted(taken), np.int64)


def pad(array: np.ndarray, first: int, length: int) -> np.ndarray:
    """``length`` rows from ``first``, zero past the end."""
    part = array[first : first + length]
    out = np.zeros((length, *array.shape[1:]), array.dtype)
    out[: len(part)] = part
    return out


@torch.no_grad()
def pair(
    simulator: Simulator,
    store: Sequence[Episode] | RolloutStore,
    starts: np.ndarray,
    horizon: int,
    *,
    batch: int = 16,
    device: torch.device | None = None,
    seed: int = 0,
) -> Paired:
    """Simulate every window from the z of its first I observations.  ``seed``: of the dreams' noise.

    UserError where the simulator makes no numbers."""
    device = torch.device("cpu") if device is None else device
    generator = torch.Generator(device).manual_seed(seed)
    initial, name = simulator.initial_frames, next(iter(simulator.spec.obs))
    length = initial - 1 + horizon + 1
    episodes = {int(e): store.episode(int(e)) if isinstance(store, RolloutStore) else store[int(e)]
                for e in np.unique(starts[:, 0])}  # fmt: skip
    mean = np.mean([as_float(e.obs[name]).mean(0, dtype=np.float64) for e in episodes.values()], 0)
    display = _to_show(starts, [len(episodes[int(e)].h) for e in starts[:, 0]], length)
    parts: list[dict[str, Any]] = []
    with bar("simulating", len(starts), "windows") as progress:
        for first in range(0, len(starts), batch):
            some = starts[first : first + batch]
            rows = [_window(episodes[int(e)], int(t), name, initial, length, horizon) for e, t in some]
            w = {k: np.stack([row[k] for row in rows]) for k in rows[0]}
            obs = {name: torch.from_numpy(w["obs"]).to(device)}
            action = torch.from_numpy(w["action"]).to(device)
            z = simulator.normalise(simulator.infer({name: obs[name][:, :initial]})[0])
            noise = [simulator.draw_noise(len(some), generator) for _ in range(horizon + 1)]
            runs = {
                "free": simulator.rollout(z, horizon, actions=action),
                "dreamed": simulator.rollout(z, horizon, noise=noise),
            }
            if hasattr(simulator, "teacher_forced"):
                runs["forced"] = simulator.teacher_forced(obs, action, torch.from_numpy(w["seen"]).to(device))
            for run in runs.values():
                require_finite(run)
            real = as_float(w["obs"][:, initial - 1 :])
            guesses = {
                "simulated": runs["free"].obs[name].cpu().numpy(),
                "copy": np.broadcast_to(real[:, :1], real.shape),
                "mean": np.broadcast_to(mean.astype(np.float32), real.shape),
            }
            if "forced" in runs:
                guesses["forced"] = runs["forced"].obs[name].cpu().numpy()
            over = tuple(range(2, real.ndim))
            part: dict[str, Any] = {"seen": w["seen"], "acted": w["acted"][:, :horizon]}
            part |= {f"error/{k}": ((v - real) ** 2).mean(over, dtype=np.float64) for k, v in guesses.items()}
            if real.ndim == 5:
                part |= {f"similarity/{k}": ssim(v, real) for k, v in guesses.items()}
            part |= {f"real/{k}": w[k][:, :horizon] if k in ("reward", "terminal") else w[k] for k in Side._fields}
            for kind, run in runs.items():
                part |= {f"{kind}/{k}": getattr(run, k).cpu().numpy() for k in Side._fields}
            shown = [i - first for i in display if first <= i < first + len(some)]
            looked_at = {"real": real, **guesses, "action": w["action"]}
            part["strip"] = {k: v[shown] for k, v in looked_at.items() if k not in ("copy", "mean")}
            parts.append(part)
            progress.advance(len(some))

    def group(prefix: str) -> dict[str, np.ndarray]:
        keys = [k for k in parts[0] if k.startswith(f"{prefix}/")]
        return {k.partition("/")[2]: np.concatenate([p[k] for p in parts]) for k in keys}

    sides: dict[str, Any] = {"forced": None, **{kind: Side(**group(kind)) for kind in ("real", *runs)}}
    return Paired(
        episode=starts[:, 0],
        seen=np.concatenate([p["seen"] for p in parts]),
        acted=np.concatenate([p["acted"] for p in parts]),
        error=group("error"),
        similarity=group("similarity"),
        **sides,
        shown=display,
        strip={k: np.concatenate([p["strip"][k] for p in parts]) for k in parts[0]["strip"]},
    )


def _to_show(starts: np.ndarray, rows: Sequence[int], length: int) -> np.ndarray:
    """A few windows, spread evenly over those that last to the horizon (all, if these are too few)."""
    whole = np.flatnonzero(np.array(rows) - starts[:, 1] >= length)
    among = whole if len(whole) >= STRIPS else np.arange(len(starts))
    return np.unique(among[np.linspace(0, len(among) - 1, STRIPS).astype(int)])


def _window(episode: Episode, t: int, name: str, initial: int, length: int, horizon: int) -> dict[str, np.ndarray]:
    """One window: ``obs`` from its first frame, everything else from its last initial one."""
    if episode.logits is None:
        raise UserError("these episodes were recorded without the agent's logits; record them again")
    now = t + initial - 1
    terminal = np.zeros(episode.steps, bool)
    terminal[-1:] = episode.terminated
    count = horizon + 1
    return {
        "obs": pad(episode.obs[name], t, length),
        "h": pad(episode.h, now, count),
        "value": pad(episode.value, now, count),
        "action": pad(episode.action.astype(np.int64), now, count),
        "logits": pad(episode.logits, now, count),
        "reward": pad(episode.reward, now, count),
        "terminal": pad(terminal, now, count),
        "seen": np.arange(now, now + count) < len(episode.h),
        "acted": np.arange(now, now + count) < episode.steps,
    }


# The table


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
                          reason="no error at all: infinite")  # fmt: skip
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


def unknown(measure: str, horizon: int | None, unit: str, n: int, reason: str) -> Row:
    """A line that has no numbers, and says why."""
    return row(measure, horizon, Estimate(np.nan, np.nan, np.nan, n), unit, reason=reason)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities, float64, over the last axis."""
    e = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    out: np.ndarray = e / e.sum(-1, keepdims=True)
    return out


def in_effect(probability: np.ndarray, actions: Mapping[str, Sequence[int]]) -> np.ndarray:
    """The likeliest of the distinct actions, where ids that do the same add up: int64 [...]."""
    out: np.ndarray = np.stack([probability[..., list(ids)].sum(-1) for ids in actions.values()], -1).argmax(-1)
    return out


def stretches(horizon: int) -> list[tuple[int | None, int, int]]:
    """(name, first, stop) of the stretches of transitions that are pooled: all, then early, middle, late."""
    edges = [edge for edge in EDGES if edge < horizon] + [horizon]
    return [(None, 0, horizon), *((b, a, b) for a, b in itertools.pairwise(edges))]


def sole_reward(p: Paired) -> float | None:
    """The size of a reward where all are of one size, else None."""
    sizes = np.unique(p.real.reward[p.acted & (p.real.reward != 0)])
    return float(sizes[0]) if len(sizes) == 1 and sizes[0] > 0 else None


def forecasts(p: Paired, side: Side) -> dict[str, np.ndarray]:
    """Foretold probabilities [B, K] of a reward and of the end.

    A reward head that is trained on squared error foretells the mean, and that over the size of a reward
    is its probability, where there is one size only.
    """
    out = {"terminal": side.terminal.astype(np.float64)}
    size = sole_reward(p)
    return out if size is None else {"reward": (side.reward.astype(np.float64) / size).clip(0, 1), **out}


def event_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """Rewards and endings foretold; all horizons pooled and in three stretches."""
    events = {"reward": p.real.reward > 0, "terminal": p.real.terminal.astype(bool)}
    for suffix, side in p.modes().items():
        scores, probabilities = {"reward": side.reward, "terminal": side.terminal}, forecasts(p, side)
        for upto, a, b in stretches(p.acted.shape[1]):
            on = p.acted[:, a:b]
            if not on.any():
                continue
            episode = np.broadcast_to(p.episode[:, None], on.shape)[on]
            for name, score in scores.items():
                event = events[name][:, a:b][on]
                estimate = precision_estimate(score[:, a:b][on], event, episode, rng)
                measure = f"{name}_average_precision{suffix}"
                never = f"no {'reward' if name == 'reward' else 'ending'} in these windows"
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
    events = {"reward": p.real.reward > 0, "terminal": p.real.terminal.astype(bool)}
    episode = np.broadcast_to(p.episode[:, None], p.acted.shape)[p.acted]
    for suffix, side in p.modes().items():
        for name, probability in forecasts(p, side).items():
            for line in reliability(probability[p.acted], events[name][p.acted], episode):
                yield {"event": name, "simulation": "teacher-forced" if suffix else "free-running", **line}


@dataclass(frozen=True)
class Lives:
    """What happens in the windows, really and in the agent's dreams; windows cut by a time limit left out."""

    episode: np.ndarray  # int64 [M]
    acted: tuple[np.ndarray, np.ndarray]  # real, dreamed: bool [M, K], the transition exists
    action: tuple[np.ndarray, np.ndarray]  # [M, K]
    reward: tuple[np.ndarray, np.ndarray]  # [M, K]

    def in_effect(self, actions: Mapping[str, Sequence[int]]) -> Lives:
        """The same with every action as the number, among ``actions``, of what it does."""
        number_A = np.zeros(sum(map(len, actions.values())), np.int64)
        for number, ids in enumerate(actions.values()):
            number_A[list(ids)] = number
        real, dreamed = (number_A[a] for a in self.action)
        return replace(self, action=(real, dreamed))

    def total(self, world: int) -> dict[str, np.ndarray]:
        """{return, length} [M] within the horizon, of 0 the real or 1 the dreamed world."""
        acted = self.acted[world]
        return {"return": (self.reward[world] * acted).sum(1), "length": acted.sum(1).astype(float)}


def lives(p: Paired, rng: np.random.Generator) -> Lives:
    """Dreams end by a draw from the foretold probabilities."""
    whole = p.acted.all(1) | (p.real.terminal.astype(bool) & p.acted).any(1)
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
    ``baseline_mean``: the most frequent action always.
    """
    if (count := len(np.unique(x.episode))) < FEWEST_EPISODES:
        few = f"{count} episodes have windows that end or last to the horizon, {FEWEST_EPISODES} are needed"
        for name, unit in (("return", "return"), ("length", "steps")):
            yield unknown(f"{name}_difference", None, unit, count, few)
            yield unknown(f"{name}_distance", None, f"{unit}, Wasserstein-1", count, few)
        for name in ("action", "transition"):
            yield unknown(f"{name}_distance", None, "total variation", count, few)
        return
    real, dreamed = x.total(0), x.total(1)
    still = {"return": np.zeros(len(x.episode)), "length": np.full(len(x.episode), float(x.acted[0].shape[1]))}
    for name, unit in (("return", "return"), ("length", "steps")):
        difference = bootstrap_mean(dreamed[name] - real[name], x.episode, rng=rng)
        copied = float((still[name] - real[name]).mean())
        yield row(f"{name}_difference", None, difference, unit, floor=0.0, copy=copied)
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
            yield unknown("h_classifier", upto, "share told apart", count, why)
            continue
        mean, std = h0[:, live].mean(0), h0[:, live].std(0)
        _, size, axes = np.linalg.svd((h0[:, live] - mean) / std, full_matrices=False)
        keep = min(COMPONENTS, int((size > 1e-6 * size[0]).sum()))
        real, simulated, copied = (((h[:, live] - mean) / std) @ axes[:keep].T for h in (h0, h1, copy))
        width = median_width(real, rng)
        thin = np.arange(0, len(real), max(1, len(real) // 800))
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
        yield row("h_classifier", upto, apart, "share told apart", mean=0.5, copy=apart_copy.value,
                  floor=told_apart(real, half, episode, rng).value)  # fmt: skip


def compare(
    p: Paired, rng: np.random.Generator, found: Found | None = None, actions: Mapping[str, Sequence[int]] | None = None
) -> Result:
    """The whole table as a Result.

    found: what the snapshots told; actions: ids that do the same, which count as one, by the name of what they do
    (EnvSpec.distinct_actions); None: every id by itself."""
    found = Found() if found is None else found
    actions = actions if actions and any(len(ids) > 1 for ids in actions.values()) else {}
    x = lives(p, rng)
    if actions:
        x = x.in_effect(actions)
    rows = [
        *frame_rows(p, rng), *agent_rows(p, rng, actions or found.notes.get("action_ids", {})),
        *event_rows(p, rng), *hidden_rows(p, rng), *life_rows(x, rng), *found.rows,
    ]  # fmt: skip
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
        "baseline_copy": "the last initial observation (or what the agent made of it) held still; dreams: a world "
        "without reward or end, the first action for ever",
        "baseline_mean": "the mean over these very episodes, or the most frequent action or event rate: a baseline "
        "that has seen the answers; counterfactual actions and gradient signs: chance",
        "teacher_forced": "the simulator is shown every real frame: its frames have seen the frame they are compared "
        "with, its rewards and endings only the frames before",
        "dreams": f"{len(x.episode)} windows: the agent acts as it likes in the simulator, actions, states and endings "
        "are drawn; returns and lengths within the horizon",
        "windows": len(p.episode),
        "episodes": len(np.unique(p.episode)),
        "left_out": [],
        **{k: v for k, v in found.notes.items() if k != "action_ids"},
    }
    if actions:
        result.notes["distinct_actions"] = list(actions)  # what the numbers in actions_real and actions_dreamed mean
    if sole_reward(p) is None:
        result.notes["left_out"].append(
            "Brier score and calibration of rewards: they are not all of one size, so their foretold mean is no "
            "probability"
        )
    if not found.notes:
        result.notes["left_out"].append("counterfactual actions, gradients and another policy: --no-counterfactual")
    return summarise(result)


def to_store(obs: np.ndarray, images: bool) -> np.ndarray:
    """Images in [0, 1] as uint8; anything else as it is."""
    return (obs.clip(0, 1) * 255).round().astype(np.uint8) if images and obs.ndim >= 4 else obs


HEADLINES = (
    "frame_psnr", "frame_mse", "frame_ssim", "action_agreement", "action_agreement_in_effect", "value_error",
    "value_difference", "counterfactual_top1", "policy_dependence",
)  # fmt: skip


def summarise(result: Result) -> Result:
    """Scalars for the manifest and the model card."""
    rows = result.tables["fidelity"]
    for r in rows:
        keep = r["measure"].startswith("gradient") or (r["measure"] in HEADLINES and r["horizon"] in SHOWN)
        if (keep or r["horizon"] is None) and r["simulated"] is not None:
            name = r["measure"] if r["horizon"] is None else f"{r['measure']}@{r['horizon']}"
            result.scalar(name, r["simulated"], r["unit"], r["n"], (r["low"], r["high"]))
    for name in ("copy", "mean"):
        less = [r for r in rows if r["measure"] == f"frame_mse_less_{name}" and r["horizon"] >= 2]
        if less:
            below = [r["horizon"] for r in less if r["simulated"] < 0]
            surely = [r["horizon"] for r in less if r["high"] is not None and r["high"] < 0]
            result.scalar(f"horizons_below_{name}", len(below) / len(less), "share of horizons from 2", len(less))
            result.notes[f"not_below_{name}"] = [r["horizon"] for r in less if r["horizon"] not in below]
            result.notes[f"not_surely_below_{name}"] = [r["horizon"] for r in less if r["horizon"] not in surely]
    above = {
        r["horizon"]: r["simulated"] - max(r["baseline_copy"], r["baseline_mean"])
        for r in rows
        if r["measure"] == "frame_psnr" and r["horizon"] and None not in (r["simulated"], r["baseline_copy"])
    }
    for upto in sorted({min(8, max(above)), max(above)}) if above else ():
        margins = [margin for k, margin in above.items() if k <= upto]
        result.scalar(f"frame_psnr_least_margin_to@{upto}", min(margins), "dB above both baselines", len(margins))
    for r in rows:
        if r["measure"] == "counterfactual_top1" and r["baseline_mean"]:
            times = [np.nan if r[k] is None else r[k] / r["baseline_mean"] for k in ("simulated", "low", "high")]
            result.scalar(f"counterfactual_times_chance@{r['horizon']}", times[0], "times chance", r["n"], times[1:])
    return result


def to_show(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows for a page: what is pooled, pooled; the rest at a near, a middle and the last horizon."""
    pooled = {r["measure"] for r in rows if r["horizon"] is None}
    last = {r["measure"]: r["horizon"] for r in rows}
    return [
        r for r in rows
        if "_less_" not in r["measure"]
        and (r["horizon"] is None if r["measure"] in pooled else r["horizon"] in (1, 4, last[r["measure"]]))
    ]  # fmt: skip


def print_table(result: Result) -> None:
    """The rows at a few horizons, on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="simulated against real, held-out episodes")
    for name in ("measure", "horizon", "simulated", "95 %", "floor", "last held", "mean", "unit", "n"):
        table.add_column(name, justify="left" if name in ("measure", "unit") else "right", no_wrap=name == "measure")

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.3g}"

    for r in to_show(result.tables["fidelity"]):
        interval = f"{cell(r['low'])} to {cell(r['high'])}" if r["low"] is not None else ""
        table.add_row(
            r["measure"], "all" if r["horizon"] is None else str(r["horizon"]), cell(r["simulated"]), interval,
            cell(r["floor"]), cell(r["baseline_copy"]), cell(r["baseline_mean"]), r["unit"], f"{r['n']}{few(r['n'])}",
        )  # fmt: skip
    Console(width=150).print(table)


# The stage


def check_store(store: RolloutStore, simulator: RSSMSimulator) -> None:
    """UserError unless these are real rollouts of the simulator's agent in its world."""
    facts: Mapping[str, Any] = store.manifest.get("facts", {})
    if facts.get("source") != "real":
        raise UserError(f"{store.path} holds {facts.get('source', 'unknown')} rollouts; fidelity needs real ones")
    check_world(store.spec, simulator.spec, str(store.path))
    own = fingerprint(simulator.agent)
    if facts.get("agent") != own:
        raise UserError(f"{store.path} was recorded with agent {facts.get('agent')}, the simulator holds {own}")
    if facts.get("interventions"):
        raise UserError(f"{store.path} was recorded under an intervention; fidelity needs unaltered rollouts")


def check_world(spec: EnvSpec, own: EnvSpec, what: str) -> None:
    """UserError unless ``what`` belongs to the simulator's world; which levels of it does not matter."""
    if spec.env_id != own.env_id or spec.obs != own.obs or spec.action_names != own.action_names:
        raise UserError(f"{what} is of {spec.env_id}, the simulator of {own.env_id}")
    for name in sorted({*spec.options, *own.options} - {*LEVELS}):
        theirs, ours = spec.options.get(name), own.options.get(name)
        if theirs != ours:
            raise UserError(f"{what} is of a world with {name} {theirs}, the simulator of one with {name} {ours}")


def check_lengths(store: RolloutStore, initial: int, horizon: int) -> None:
    """UserError unless a few episodes reach the horizon."""
    need = initial + horizon
    enough = int((store.rows >= need).sum())
    if enough < FEWEST_EPISODES:
        most = int(np.sort(store.rows)[-FEWEST_EPISODES]) - initial if len(store) >= FEWEST_EPISODES else 0
        advice = f"--horizon {most} is the most that {FEWEST_EPISODES} episodes reach" if most > 0 else "record more"
        raise UserError(
            f"--horizon {horizon}: {enough} of {len(store)} episodes have the {need} observations that a whole window "
            f"takes, {FEWEST_EPISODES} are needed; {advice}"
        )


def load_other(config: FidelityConfig, simulator: RSSMSimulator, device: torch.device) -> RecurrentAgent | None:
    """The agent of --other_agent, or None; UserError unless it is another one of the same world."""
    if config.other_agent is None:
        return None
    if not config.counterfactual:
        raise UserError("--other_agent acts in the real world: leave --no-counterfactual out")
    other = load_agent(config.other_agent, device)
    check_world(other.spec, simulator.spec, str(config.other_agent))
    if fingerprint(other) == fingerprint(simulator.agent):
        raise UserError(f"--other_agent {config.other_agent} is the simulator's own agent")
    return other


def directions_of(p: Paired, agent: str) -> Basis:
    """The first principal components of the recorded hidden states; none where these never change."""
    h_NH = p.real.h[p.seen]
    if not changing(h_NH).any():
        empty = torch.zeros(h_NH.shape[1], 0)
        return Basis("pca", torch.zeros(len(empty)), torch.ones(len(empty)), empty, empty.T, agent)
    return fit_pca(h_NH, min(DIRECTIONS, state_rank(h_NH), len(h_NH) - 1), agent)


def trained_on(simulator: Path, rollouts: Path) -> bool:
    """Whether the simulator's manifest names these very rollouts as an input."""
    own = artefacts.sha256(rollouts / artefacts.MANIFEST)
    return any(known["manifest_sha256"] == own for known in artefacts.read_manifest(simulator)["inputs"].values())


def main(config: FidelityConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, horizon=config.horizon, windows=config.windows, batch=config.batch)
    cli.require(2, starts=config.starts)
    simulator = load_simulator(config.simulator, device)
    other = load_other(config, simulator, device)
    if config.video:
        check_video()

    def make_env(slots: int) -> VecEnv:
        levels = {"start_level": config.start_level, "num_levels": config.num_levels}
        return make(simulator.spec, slots, threads=config.threads, **levels)

    if config.counterfactual:
        require_snapshots(make_env(1))
    rng = np.random.default_rng(config.seed)
    inputs = {"simulator": config.simulator, "rollouts": config.rollouts}
    if config.other_agent is not None:
        inputs["other_agent"] = config.other_agent
    with RolloutStore(config.rollouts) as store:
        check_store(store, simulator)
        check_lengths(store, simulator.initial_frames, config.horizon)
        starts = choose_starts(store, simulator.initial_frames + 1, config.windows, rng)
        with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
            paired = pair(simulator, store, starts, config.horizon, batch=config.batch, device=device, seed=config.seed)
            found = None
            if config.counterfactual:
                basis = directions_of(paired, fingerprint(simulator.agent)).to(device)
                found = try_again(
                    simulator, make_env, basis, rng, starts=config.starts, latest=config.latest_start,
                    horizon=config.horizon, seed=config.seed, other=other, device=device,
                )  # fmt: skip
            result = compare(paired, rng, found, simulator.spec.distinct_actions())
            result.notes["held_out"] = not trained_on(config.simulator, config.rollouts)
            result.save(run.path)
            figures.draw(result, run.path, simulator.spec.action_names, config.video)
            run.metrics = dict(result.scalars)
            run.facts = {"agent": fingerprint(simulator.agent), "simulator": fingerprint(simulator)}
    print_table(result)
    for words in result.notes["left_out"]:
        print(f"left out: {words}")
    if not result.notes["held_out"]:
        print("note: the simulator was trained on these very rollouts; record others for an honest comparison")
    print(f"fidelity over {len(starts)} windows of {len(np.unique(starts[:, 0]))} episodes: {config.out}")


if __name__ == "__main__":
    cli.run(FidelityConfig, main, STAGE)
