"""How true is the simulator: ``python -m validation.fidelity --simulator DIR --rollouts DIR``.

Held-out real episodes against simulations that start from the same frames and are given the recorded
actions (free-running), or the recorded frames too (teacher-forced).  Every number stands beside what
trivial predictions score (the last frame seen, the mean), and beside the real-vs-real floor.

B windows, I initial frames, k horizon: row k of a simulation is k steps after its last initial frame.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core import artefacts, config as cli
from core.artefacts import Result
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import Episode, RolloutStore
from core.progress import bar
from core.stats import Estimate, bootstrap, bootstrap_mean
from generative.simulator import load_simulator

STAGE = "fidelity"
SHOWN = (1, 2, 4, 8, 16, 24, 32)  # horizons in the printed table and in the strip
COMPONENTS = 16  # principal components the hidden states are compared in
SPLITS = 40  # random halves of the episodes
FEWEST_EPISODES = 4
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
    seed: int = 0
    """seed of the starts and of the bootstrap"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier comparison in --out"""


@dataclass
class Paired:
    """Windows of real episodes and their simulations, row k being horizon k = 0 .. K.

    ``seen``: the real observation exists; ``acted``: the transition after it does too.  ``error``
    holds mean squared differences of the observation from the real one: ``simulated``, ``forced``
    (teacher-forced, where the simulator can), ``copy``, ``mean``.  Transition columns have K rows.
    """

    episode: np.ndarray  # int64 [B]
    seen: np.ndarray  # bool [B, K+1]
    acted: np.ndarray  # bool [B, K]
    error: dict[str, np.ndarray]  # float [B, K+1]
    h: tuple[np.ndarray, np.ndarray]  # real, simulated [B, K+1, H]
    value: tuple[np.ndarray, np.ndarray]  # [B, K+1]
    greedy: tuple[np.ndarray, np.ndarray]  # the agent's most likely action, int64 [B, K+1]
    reward: tuple[np.ndarray, np.ndarray]  # [B, K]
    terminal: tuple[np.ndarray, np.ndarray]  # bool, probability [B, K]
    shown: np.ndarray  # int64 [S], a few windows kept to look at
    strip: dict[str, np.ndarray]  # their observations [S, K+1, ...]


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


def as_float(obs: np.ndarray) -> np.ndarray:
    """Observations in the simulator's units: uint8 frames become [0, 1]."""
    return obs.astype(np.float32) / 255 if obs.dtype == np.uint8 else obs.astype(np.float32)


@torch.no_grad()
def pair(
    simulator: Any,
    store: Sequence[Episode] | RolloutStore,
    starts: np.ndarray,
    horizon: int,
    *,
    batch: int = 16,
    device: torch.device | None = None,
    strips: int = 4,
) -> Paired:
    """Simulate every window: z from its first I observations, recorded actions, no noise."""
    device = torch.device("cpu") if device is None else device
    initial, name = simulator.initial_frames, next(iter(simulator.spec.obs))
    length = initial - 1 + horizon + 1
    episodes = {int(e): store.episode(int(e)) if isinstance(store, RolloutStore) else store[int(e)]
                for e in np.unique(starts[:, 0])}  # fmt: skip
    mean = np.mean([as_float(e.obs[name]).mean(0, dtype=np.float64) for e in episodes.values()], 0)
    forced = hasattr(simulator, "reconstruct")
    display = np.unique(np.linspace(0, len(starts) - 1, strips).astype(int))
    parts: list[dict[str, Any]] = []
    with bar("simulating", len(starts), "windows") as progress:
        for first in range(0, len(starts), batch):
            some = starts[first : first + batch]
            rows = [_window(episodes[int(e)], int(t), name, initial, length, horizon) for e, t in some]
            w = {k: np.stack([row[k] for row in rows]) for k in rows[0]}
            obs = {name: torch.from_numpy(w["obs"]).to(device)}
            action = torch.from_numpy(w["action"]).to(device)
            seen = torch.from_numpy(w["seen"]).to(device)
            z, _ = simulator.infer({name: obs[name][:, :initial]})
            free = simulator.rollout(simulator.normalise(z), horizon, actions=action)
            real = as_float(w["obs"][:, initial - 1 :])
            guesses = {
                "simulated": free.obs[name].cpu().numpy(),
                "copy": np.broadcast_to(real[:, :1], real.shape),
                "mean": np.broadcast_to(mean.astype(np.float32), real.shape),
            }
            if forced:
                guesses["forced"] = simulator.reconstruct(obs, action, seen).cpu().numpy()
            over = tuple(range(2, real.ndim))
            part: dict[str, Any] = {
                f"error/{k}": ((v - real) ** 2).mean(over, dtype=np.float64) for k, v in guesses.items()
            }
            part |= {
                "seen": w["seen"], "acted": w["acted"][:, :horizon], "h0": w["h"], "h1": free.h.cpu().numpy(),
                "value0": w["value"], "value1": free.value.cpu().numpy(),
                "greedy0": w["greedy"], "greedy1": free.logits.argmax(-1).cpu().numpy(),
                "reward0": w["reward"][:, :horizon], "reward1": free.reward.cpu().numpy(),
                "terminal0": w["terminal"][:, :horizon], "terminal1": free.terminal.cpu().numpy(),
            }  # fmt: skip
            shown = [i - first for i in display if first <= i < first + len(some)]
            part["strip"] = {k: v[shown] for k, v in {"real": real, **guesses}.items() if k not in ("copy", "mean")}
            parts.append(part)
            progress.advance(len(some))

    def column(key: str) -> np.ndarray:
        return np.concatenate([p[key] for p in parts])

    def both(key: str) -> tuple[np.ndarray, np.ndarray]:
        return column(f"{key}0"), column(f"{key}1")

    return Paired(
        episode=starts[:, 0],
        seen=column("seen"),
        acted=column("acted"),
        error={k.removeprefix("error/"): column(k) for k in parts[0] if k.startswith("error/")},
        h=both("h"), value=both("value"), greedy=both("greedy"), reward=both("reward"), terminal=both("terminal"),
        shown=display,
        strip={k: np.concatenate([p["strip"][k] for p in parts]) for k in parts[0]["strip"]},
    )  # fmt: skip


def _window(episode: Episode, t: int, name: str, initial: int, length: int, horizon: int) -> dict[str, np.ndarray]:
    """One window: ``obs`` from its first frame, everything else from its last initial one."""
    now = t + initial - 1
    terminal = np.zeros(episode.steps, bool)
    terminal[-1:] = episode.terminated
    count = horizon + 1
    return {
        "obs": pad(episode.obs[name], t, length),
        "h": pad(episode.h, now, count),
        "value": pad(episode.value, now, count),
        "action": pad(episode.action.astype(np.int64), now, count),
        "greedy": pad(episode.logits.argmax(-1), now, count),
        "reward": pad(episode.reward, now, count),
        "terminal": pad(terminal, now, count),
        "seen": np.arange(now, now + count) < len(episode.h),
        "acted": np.arange(now, now + count) < episode.steps,
    }


# Measures


def average_precision(score_N: np.ndarray, event_N: np.ndarray) -> float:
    """Area under precision over recall, sum of (R_n - R_{n-1}) P_n; tied scores enter together.  NaN
    without an event."""
    if not event_N.any():
        return float("nan")
    order = np.argsort(-score_N, kind="stable")
    hits = np.cumsum(event_N[order])
    last = np.append(np.diff(score_N[order]) != 0, True)  # the end of every run of ties
    hits, among = hits[last], np.flatnonzero(last) + 1
    return float(np.sum(np.diff(hits, prepend=0) * hits / among) / event_N.sum())


def precision_estimate(
    score_N: np.ndarray, event_N: np.ndarray, episode_N: np.ndarray, rng: np.random.Generator
) -> Estimate:
    """Average precision with its interval over episodes; NaN where nothing happened."""
    count = len(np.unique(episode_N))
    if not event_N.any():
        return Estimate(float("nan"), float("nan"), float("nan"), count)
    value, low, high = bootstrap(lambda rows: average_precision(score_N[rows], event_N[rows]), episode_N, rng=rng)
    return Estimate(float(value), float(low), float(high), count)


def frechet(a_NK: np.ndarray, b_MK: np.ndarray) -> float:
    """Squared Frechet distance of the two Gaussians with the samples' moments: |m - m'|^2 +
    tr(S + S' - 2 (S S')^(1/2)) (Dowson and Landau 1982)."""
    mean = a_NK.mean(0) - b_MK.mean(0)
    s, t = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (a_NK, b_MK))
    values, vectors = np.linalg.eigh(s)
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ t @ root).clip(0)).sum()
    return float(mean @ mean + np.trace(s) + np.trace(t) - 2 * cross)


def mmd(a_NK: np.ndarray, b_MK: np.ndarray, width: float) -> float:
    """Unbiased squared maximum mean discrepancy with a Gaussian kernel (Gretton et al. 2012, eq. 3);
    around 0, also below, for equal distributions."""

    def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.exp(-squared_distances(x, y) / (2 * width**2))

    n, m = len(a_NK), len(b_MK)
    aa, bb, ab = kernel(a_NK, a_NK), kernel(b_MK, b_MK), kernel(a_NK, b_MK)
    return float((aa.sum() - np.trace(aa)) / (n * (n - 1)) + (bb.sum() - np.trace(bb)) / (m * (m - 1)) - 2 * ab.mean())


def squared_distances(x_NK: np.ndarray, y_MK: np.ndarray) -> np.ndarray:
    """[N, M]."""
    cross: np.ndarray = (x_NK**2).sum(1)[:, None] + (y_MK**2).sum(1) - 2 * x_NK @ y_MK.T
    return cross.clip(0)


def median_width(x_NK: np.ndarray, rng: np.random.Generator) -> float:
    """The median distance between samples, the usual kernel width."""
    some = x_NK[rng.permutation(len(x_NK))[:500]]
    distance = np.sqrt(squared_distances(some, some)[np.triu_indices(len(some), 1)])
    return float(np.median(distance)) or 1.0


def classifier_hits(
    x_NK: np.ndarray, label_N: np.ndarray, episode_N: np.ndarray, rng: np.random.Generator, folds: int = 5
) -> np.ndarray:
    """Share of the two classes' rows told apart by logistic regression: out-of-fold hits bool [N]; no
    episode is in training and test at once."""
    from sklearn.linear_model import LogisticRegression

    hits = np.zeros(len(x_NK), bool)
    units = rng.permutation(np.unique(episode_N))
    for held in np.array_split(units, min(folds, len(units))):
        test = np.isin(episode_N, held)
        if len(np.unique(label_N[~test])) < 2:
            hits[test] = rng.random(int(test.sum())) < 0.5  # nothing to learn from: a coin
            continue
        model = LogisticRegression(max_iter=1000).fit(x_NK[~test], label_N[~test])
        hits[test] = model.predict(x_NK[test]) == label_N[test]
    return hits


def told_apart(a_NK: np.ndarray, b_NK: np.ndarray, episode_N: np.ndarray, rng: np.random.Generator) -> Estimate:
    """Classifier two-sample test of rows that share their episodes."""
    twice = np.tile(episode_N, 2)
    hits = classifier_hits(np.concatenate([a_NK, b_NK]), np.repeat([0, 1], len(a_NK)), twice, rng)
    return bootstrap_mean(hits.astype(float), twice, rng=rng)


def halves(
    real: np.ndarray, simulated: np.ndarray, episode_N: np.ndarray, distance: Callable[[np.ndarray, np.ndarray], float],
    rng: np.random.Generator,
) -> tuple[Estimate, Estimate]:  # fmt: skip
    """(simulated against real, real against real), each between disjoint halves of the episodes, so
    that both are of equal size and unpaired.  The interval is over random halves: the delete-half
    jackknife, whose spread is that of the estimate from all episodes."""
    units = np.unique(episode_N)
    found = []
    for _ in range(SPLITS):
        first = np.isin(episode_N, rng.permutation(units)[: len(units) // 2])
        found.append((distance(real[first], simulated[~first]), distance(real[first], real[~first])))
    out = []
    for values in np.array(found).T:
        low, high = np.quantile(values, [0.025, 0.975])
        out.append(Estimate(float(values.mean()), float(low), float(high), len(units)))
    return out[0], out[1]


Row = dict[str, Any]


def row(
    measure: str, horizon: int | None, estimate: Estimate, unit: str, *, floor: float | None = None,
    copy: float | None = None, mean: float | None = None,
) -> Row:  # fmt: skip
    """One line of the table; horizon None: all together.  Unknown cells stay empty."""
    cells = {"simulated": estimate.value, "low": estimate.low, "high": estimate.high, "floor": floor,
             "baseline_copy": copy, "baseline_mean": mean}  # fmt: skip
    known = {k: None if v is None or not np.isfinite(v) else float(v) for k, v in cells.items()}
    return {"measure": measure, "horizon": horizon, **known, "unit": unit, "n": estimate.n}


def psnr(mse: float) -> float:
    """Peak signal-to-noise ratio in dB of frames in [0, 1] with a mean squared error; infinite at 0."""
    return float(-10 * np.log10(mse)) if mse > 0 else float("inf")


def frame_rows(p: Paired, rng: np.random.Generator, frames: bool) -> Iterator[Row]:
    """Observation error per horizon, free-running and teacher-forced, and free-running less baselines."""
    unit = "squared intensity" if frames else "squared units"
    for k in range(p.seen.shape[1]):
        on = p.seen[:, k]
        if not on.any():
            return
        error = {name: e[on, k] for name, e in p.error.items()}
        copy, mean = float(error["copy"].mean()), float(error["mean"].mean())
        for measure, name in (("frame_mse", "simulated"), ("frame_mse_teacher_forced", "forced")):
            if name not in error:
                continue
            e = bootstrap_mean(error[name], p.episode[on], rng=rng)
            # A restored snapshot given the same actions repeats the real frames exactly.
            yield row(measure, k, e, unit, floor=0.0, copy=copy, mean=mean)
            if frames:
                decibel = Estimate(psnr(e.value), psnr(e.high), psnr(e.low), e.n)
                yield row(measure.replace("mse", "psnr"), k, decibel, "dB", copy=psnr(copy), mean=psnr(mean))
        for name in ("copy", "mean") if k else ():
            less = bootstrap_mean(error["simulated"] - error[name], p.episode[on], rng=rng)
            yield row(f"frame_mse_less_{name}", k, less, unit, floor=-float(error[name].mean()), copy=None, mean=None)


def agent_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """What the agent makes of simulated frames: values, most likely actions, hidden states."""
    (v0, v1), (a0, a1), (h0, h1) = p.value, p.greedy, p.h
    for k in range(p.seen.shape[1]):
        on = p.seen[:, k]
        if on.any():
            at = p.episode[on]
            typical = float(v0[on, k].mean())
            difference = bootstrap_mean(v1[on, k] - v0[on, k], at, rng=rng)
            copied = float((v0[on, 0] - v0[on, k]).mean())
            yield row("value_difference", k, difference, "return", floor=0.0, copy=copied)
            error = bootstrap_mean(np.abs(v1[on, k] - v0[on, k]), at, rng=rng)
            yield row(
                "value_error", k, error, "return", floor=0.0, copy=float(np.abs(v0[on, 0] - v0[on, k]).mean()),
                mean=float(np.abs(typical - v0[on, k]).mean()),
            )  # fmt: skip
            spread = ((h0[on, k] - h0[on, k].mean(0)) ** 2).mean()
            scale = float(spread) if spread > 0 else float("nan")
            error = bootstrap_mean(((h1[on, k] - h0[on, k]) ** 2).mean(1) / scale, at, rng=rng)
            copied = float(((h0[on, 0] - h0[on, k]) ** 2).mean() / scale)
            yield row("h_error", k, error, "variance", floor=0.0, copy=copied, mean=1.0)
    for k in range(p.acted.shape[1]):
        acts = p.acted[:, k]
        if acts.any():
            same = bootstrap_mean((a1[acts, k] == a0[acts, k]).astype(float), p.episode[acts], rng=rng)
            usual = np.bincount(a0[acts, k]).max() / acts.sum()
            copied = float((a0[acts, 0] == a0[acts, k]).mean())
            yield row("action_agreement", k, same, "share", floor=1.0, copy=copied, mean=float(usual))


def stretches(horizon: int) -> list[tuple[int | None, int, int]]:
    """(name, first, stop) of the stretches of transitions that are pooled: all, then early, middle, late."""
    edges = [edge for edge in EDGES if edge < horizon] + [horizon]
    return [(None, 0, horizon), *((b, a, b) for a, b in itertools.pairwise(edges))]


def event_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """Rewards and endings, foretold free-running; all horizons pooled and in three stretches."""
    horizon = p.acted.shape[1]
    for upto, a, b in stretches(horizon):
        on = p.acted[:, a:b]
        if not on.any():
            continue
        episode = np.broadcast_to(p.episode[:, None], on.shape)[on]
        foretold = {"reward": p.reward[1][:, a:b][on], "terminal": p.terminal[1][:, a:b][on]}
        happened = {"reward": p.reward[0][:, a:b][on] > 0, "terminal": p.terminal[0][:, a:b][on]}
        for name, score in foretold.items():
            event = happened[name]
            estimate = precision_estimate(score, event, episode, rng)
            yield row(f"{name}_average_precision", upto, estimate, "1", floor=1.0, mean=float(event.mean()))
        event = happened["terminal"].astype(float)
        brier = bootstrap_mean((foretold["terminal"] - event) ** 2, episode, rng=rng)
        yield row("terminal_brier", upto, brier, "squared probability", floor=0.0, mean=float(event.var()))
        real = p.reward[0][:, a:b][on]
        squared = bootstrap_mean((foretold["reward"] - real) ** 2, episode, rng=rng)
        yield row("reward_mse", upto, squared, "squared reward", floor=0.0, mean=float(real.var()))


def hidden_rows(p: Paired, rng: np.random.Generator) -> Iterator[Row]:
    """Distributions of the agent's hidden state, in principal components of the real one, over
    stretches of horizons.  ``baseline_copy``: the states at horizon 0."""
    horizon = p.seen.shape[1] - 1
    for upto, a, b in stretches(horizon):
        a, b = a + 1, b + 1
        on = p.seen[:, a:b]
        episode = np.broadcast_to(p.episode[:, None], on.shape)[on]
        if len(np.unique(episode)) < FEWEST_EPISODES:
            continue
        h0, h1 = (h[:, a:b][on].astype(np.float64) for h in p.h)
        copy = np.broadcast_to(p.h[0][:, :1], p.h[0][:, a:b].shape)[on].astype(np.float64)
        mean, std = h0.mean(0), h0.std(0) + 1e-8
        _, size, axes = np.linalg.svd((h0 - mean) / std, full_matrices=False)
        keep = min(COMPONENTS, int((size > 1e-6 * size[0]).sum()))
        real, simulated, copied = (((h - mean) / std) @ axes[:keep].T for h in (h0, h1, copy))
        width = median_width(real, rng)
        thin = np.arange(0, len(real), max(1, len(real) // 800))
        for name, distance, rows in (
            ("h_frechet", frechet, np.arange(len(real))),
            ("h_mmd", lambda x, y, w=width: mmd(x, y, w), thin),
        ):
            seed = int(rng.integers(2**31))
            against, floor = halves(real[rows], simulated[rows], episode[rows], distance, np.random.default_rng(seed))
            trivial, _ = halves(real[rows], copied[rows], episode[rows], distance, np.random.default_rng(seed))
            yield row(name, upto, against, "squared, z-scored", floor=floor.value, copy=trivial.value)

        units = np.unique(episode)
        half = np.isin(episode, rng.permutation(units)[: len(units) // 2]).astype(int)
        floor_hits = classifier_hits(real, half, episode, rng)
        balanced = np.mean([floor_hits[half == side].mean() for side in (0, 1)])
        yield row("h_classifier", upto, told_apart(real, simulated, episode, rng), "share told apart",
                  floor=float(balanced), copy=told_apart(real, copied, episode, rng).value, mean=0.5)  # fmt: skip


def compare(p: Paired, rng: np.random.Generator, frames: bool) -> Result:
    """The whole table as a Result.  frames: the observations are images in [0, 1]."""
    rows = [*frame_rows(p, rng, frames), *agent_rows(p, rng), *event_rows(p, rng), *hidden_rows(p, rng)]
    result = Result(tables={"fidelity": rows})
    result.arrays = {
        "episode": p.episode, "seen": p.seen, "strip_row": p.shown,
        "value_real": p.value[0], "value_simulated": p.value[1],
        **{f"error_{k}": v.astype(np.float32) for k, v in p.error.items()},
        **{f"strip_{k}": (v.clip(0, 1) * 255).round().astype(np.uint8) if frames else v for k, v in p.strip.items()},
    }  # fmt: skip
    result.notes = {
        "horizon": "steps after the last initial frame; empty: all together; events and hidden states: the "
        "stretch of horizons that ends there, beginning after the one before",
        "floor": "what the real world scores against itself: a restored snapshot repeats frames exactly; for "
        "distributions, one half of the episodes against the other",
        "baseline_copy": "the last initial observation (or what the agent made of it) held still",
        "baseline_mean": "the mean over these very episodes, or the most frequent action or event rate: a baseline "
        "that has seen the answers",
        "windows": len(p.episode),
        "episodes": len(np.unique(p.episode)),
    }
    return summarise(result)


def summarise(result: Result) -> Result:
    """Scalars for the manifest and the model card."""
    rows = result.tables["fidelity"]
    for r in rows:
        keep = r["measure"] in ("frame_psnr", "frame_mse", "action_agreement", "value_error") and r["horizon"] in SHOWN
        if (keep or r["horizon"] is None) and r["simulated"] is not None:
            name = r["measure"] if r["horizon"] is None else f"{r['measure']}@{r['horizon']}"
            result.scalar(name, r["simulated"], r["unit"], r["n"], (r["low"], r["high"]))
    for name in ("copy", "mean"):
        less = [r for r in rows if r["measure"] == f"frame_mse_less_{name}" and r["horizon"] >= 2]
        if less:
            below = [r["horizon"] for r in less if r["simulated"] < 0]
            surely = [r["horizon"] for r in less if r["high"] < 0]
            result.scalar(f"horizons_below_{name}", len(below) / len(less), "share of horizons from 2", len(less))
            result.notes[f"not_below_{name}"] = [r["horizon"] for r in less if r["horizon"] not in below]
            result.notes[f"not_surely_below_{name}"] = [r["horizon"] for r in less if r["horizon"] not in surely]
    return result


# Figures and the printed table, drawn from the result


def draw_error(result: Result, path: Path) -> None:
    """Observation error over horizons with intervals, beside its baselines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    ax = figure.subplots()
    free = [r for r in result.tables["fidelity"] if r["measure"] == "frame_mse"]
    for measure, label, colour in (
        ("frame_mse", "free-running", "tab:blue"), ("frame_mse_teacher_forced", "teacher-forced", "tab:green"),
    ):  # fmt: skip
        rows = [r for r in result.tables["fidelity"] if r["measure"] == measure]
        if rows:
            x = [r["horizon"] for r in rows]
            ax.plot(x, [r["simulated"] for r in rows], color=colour, label=f"{label} (n = {rows[0]['n']} episodes)")
            ax.fill_between(x, [r["low"] for r in rows], [r["high"] for r in rows], color=colour, alpha=0.2, lw=0)
    for cell, label, style in (("baseline_copy", "last frame held", "--"), ("baseline_mean", "mean frame", ":")):
        ax.plot([r["horizon"] for r in free], [r[cell] for r in free], color="0.3", ls=style, label=label)
    ax.axhline(0, color="0.8", lw=0.8)
    ax.set_xlabel("steps simulated")
    ax.set_ylabel(f"mean squared error ({free[0]['unit']})")
    figure.legend(fontsize=8, frameon=False, loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=120)


def draw_strip(result: Result, path: Path) -> None:
    """Real frames above simulated ones, several starts; images only."""
    from matplotlib.figure import Figure

    kinds = [k for k in ("real", "simulated", "forced") if f"strip_{k}" in result.arrays]
    strips = {k: result.arrays[f"strip_{k}"] for k in kinds}
    seen = result.arrays["seen"][result.arrays["strip_row"]]
    count, length = strips["real"].shape[:2]
    columns = [k for k in (0, *SHOWN) if k < length]
    figure = Figure(figsize=(1.15 * len(columns) + 0.9, 1.18 * len(kinds) * count), layout="constrained")
    axes = figure.subplots(len(kinds) * count, len(columns), squeeze=False)
    labels = {"real": "real", "simulated": "simulated", "forced": "teacher-\nforced"}
    for line in range(len(kinds) * count):
        start, kind = divmod(line, len(kinds))
        for column, k in enumerate(columns):
            ax = axes[line][column]
            ax.set_xticks([])
            ax.set_yticks([])
            if seen[start, k] or kinds[kind] == "simulated":
                ax.imshow(strips[kinds[kind]][start, k])
            else:
                ax.text(0.5, 0.5, "ended", ha="center", va="center", fontsize=7, transform=ax.transAxes)
            if line == 0:
                ax.set_title(f"+{k}", fontsize=9)
            if column == 0:
                ax.set_ylabel(labels[kinds[kind]], fontsize=8)
    figure.savefig(path, dpi=110)


def print_table(result: Result) -> None:
    """The rows at a few horizons, on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="simulated against real, held-out episodes")
    for name in ("measure", "horizon", "simulated", "95 %", "floor", "last held", "mean", "unit", "n"):
        table.add_column(name, justify="left" if name in ("measure", "unit") else "right")

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.3g}"

    pooled = ("average_precision", "brier", "reward_mse", "h_frechet", "h_mmd", "h_classifier")
    for r in result.tables["fidelity"]:
        every = any(word in r["measure"] for word in pooled)
        if (r["horizon"] is None) if every else (r["horizon"] in SHOWN and "less" not in r["measure"]):
            interval = f"{cell(r['low'])} to {cell(r['high'])}" if r["low"] is not None else ""
            table.add_row(
                r["measure"], "all" if r["horizon"] is None else str(r["horizon"]), cell(r["simulated"]), interval,
                cell(r["floor"]), cell(r["baseline_copy"]), cell(r["baseline_mean"]), r["unit"], str(r["n"]),
            )  # fmt: skip
    Console(width=130).print(table)


# The stage


def check_store(store: RolloutStore, simulator: Any) -> None:
    """UserError unless these are real rollouts of the simulator's agent in its world."""
    facts: Mapping[str, Any] = store.manifest.get("facts", {})
    if facts.get("source") != "real":
        raise UserError(f"{store.path} holds {facts.get('source', 'unknown')} rollouts; fidelity needs real ones")
    own = fingerprint(simulator.agent)
    if facts.get("agent") != own:
        raise UserError(f"{store.path} was recorded with agent {facts.get('agent')}, the simulator holds {own}")
    if facts.get("interventions"):
        raise UserError(f"{store.path} was recorded under an intervention; fidelity needs unaltered rollouts")
    if store.spec.env_id != simulator.spec.env_id or store.spec.obs != simulator.spec.obs:
        raise UserError(f"{store.path} is of {store.spec.env_id}, the simulator of {simulator.spec.env_id}")


def trained_on(simulator: Path, rollouts: Path) -> bool:
    """Whether the simulator's manifest names these very rollouts as an input."""
    own = artefacts.sha256(rollouts / artefacts.MANIFEST)
    return any(known["manifest_sha256"] == own for known in artefacts.read_manifest(simulator)["inputs"].values())


def main(config: FidelityConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, horizon=config.horizon, windows=config.windows, batch=config.batch)
    simulator = load_simulator(config.simulator, device)
    rng = np.random.default_rng(config.seed)
    inputs = {"simulator": config.simulator, "rollouts": config.rollouts}
    with RolloutStore(config.rollouts) as store:
        check_store(store, simulator)
        starts = choose_starts(store, simulator.initial_frames + 1, config.windows, rng)
        with artefacts.new_run(config.out, STAGE, config, inputs, overwrite=config.overwrite) as run:
            paired = pair(simulator, store, starts, config.horizon, batch=config.batch, device=device)
            result = compare(paired, rng, frames=True)
            result.notes["held_out"] = not trained_on(config.simulator, config.rollouts)
            result.save(run.path)
            draw_error(result, run.path / "frame_error.png")
            draw_strip(result, run.path / "strip.png")
            run.metrics = dict(result.scalars)
            run.facts = {"agent": fingerprint(simulator.agent), "simulator": fingerprint(simulator)}
    print_table(result)
    if not result.notes["held_out"]:
        print("note: the simulator was trained on these very rollouts; record others for an honest comparison")
    print(f"fidelity over {len(starts)} windows of {len(np.unique(starts[:, 0]))} episodes: {config.out}")


if __name__ == "__main__":
    cli.run(FidelityConfig, main, STAGE)
