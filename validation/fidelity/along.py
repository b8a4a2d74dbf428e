"""Further comparisons along the recorded windows (``pairing.Rung``): other actions, another agent, other simulators.

B windows, k horizon, M simulators, A actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.contracts import Agent
from core.roll import Recorded, Simulator, one_hot, roll
from core.stats import ATANH, LOG, Estimate, bootstrap_mean, jackknife, share_of, softmax, student
from generative.fields import as_read
from generative.simulator import require_finite
from validation.fidelity.beginnings import begin, rollout, warmed_up
from validation.fidelity.measures import NO_ERROR, Row, in_effect, psnr, row
from validation.fidelity.pairing import Batch, Paired
from validation.fidelity.regions import HORIZONS

BAND = 0.9  # of the real world that an ensemble's bands ought to hold
HALF_STEP = 0.5 / 255  # real frames are rounded to whole numbers


def shown_horizons(p: Paired) -> list[int]:
    """Those of HORIZONS that some window reaches."""
    return [k for k in HORIZONS if k < p.seen.shape[1] and p.seen[:, k].any()]


@dataclass
class RandomActions:
    """What right actions are worth: by how much the frames are worse under random ones (Bruce et al. 2024,
    arXiv:2402.15391, 3.2: delta PSNR).

    0 dB: the simulator does not heed its actions; below 0: it heeds them wrongly.
    """

    simulator: Simulator[Any]
    actions: Mapping[str, Sequence[int]]  # distinct ones, each as likely as the others
    rng: np.random.Generator

    def draw(self, shape: tuple[int, int]) -> np.ndarray:
        spec = self.simulator.world.spec
        if spec.action_parts:
            return np.stack([self.rng.integers(n, size=shape) for n in spec.parts], -1)
        firsts = np.array([ids[0] for ids in self.actions.values()])
        return self.rng.choice(firsts, size=shape)

    def along(self, batch: Batch, drawn: np.ndarray | None) -> dict[str, np.ndarray]:
        spec = self.simulator.world.spec
        assert drawn is not None
        state, shown = batch.beginning.world
        action = torch.from_numpy(drawn).to(batch.action.device)
        name, over = spec.main_field, tuple(range(1, batch.real.ndim - 1))
        error = np.zeros(batch.seen.shape)
        for k in range(batch.seen.shape[1]):
            if k:
                state, shown = self.simulator.world.step(state, one_hot(action[:, k - 1], spec.parts, shown.reward_B))
            error[:, k] = ((shown.obs[name].cpu().numpy() - batch.real[:, k]) ** 2).mean(over, dtype=np.float64)
        return {"error/random": error}

    def rows(self, p: Paired, rng: np.random.Generator) -> Iterator[Row]:
        random, right = p.kept["error/random"], p.error["simulated"]
        for k in shown_horizons(p):
            on = np.flatnonzero(p.seen[:, k])

            def ratio(rows: np.ndarray, on: np.ndarray = on, k: int = k) -> float:
                below = right[on[rows], k].sum()
                return float(random[on[rows], k].sum() / below) if below > 0 else float("nan")

            ends = jackknife(ratio, p.episode[on], rng=rng, link=LOG)
            value, low, high = (10 * float(np.log10(x)) for x in ends)
            yield row("delta_psnr", k, Estimate(value, low, high, len(np.unique(p.episode[on]))), "dB", copy=0.0,
                      mean=0.0, reason="no error at all under the right actions")  # fmt: skip


@dataclass
class Judge:
    """Does another agent of the same world do in simulated frames what it does in the real ones?

    It looks on: it is warmed up on the real initial observations, the first frame after them too, and then sees real or
    simulated frames in which the recorded actions were done.
    """

    agent: Agent
    actions: Mapping[str, Sequence[int]]

    def draw(self, shape: tuple[int, int]) -> None:
        return None

    def along(self, batch: Batch, drawn: np.ndarray | None) -> dict[str, np.ndarray]:
        state, real = warmed_up(self.agent, batch.window), batch.later
        steps = batch.seen.shape[1] - 1
        first = {k: x[:, :1] for k, x in real.items()}
        later = {k: x[:, 1:] for k, x in batch.free.obs.items()}
        fields = self.agent.spec.obs
        begun = {k: as_read(fields[k], x[:, 0], later[k].dtype)[:, None] for k, x in first.items()}
        joint = {k: torch.cat([x, later[k]], 1) for k, x in begun.items()}
        shown = {"real": real, "simulated": joint, "held": first}
        return {f"judge/{kind}": self._logits(obs, state, steps) for kind, obs in shown.items()}

    def _logits(self, obs: Mapping[str, Tensor], state: Any, steps: int) -> np.ndarray:
        world = Recorded(self.agent.spec, obs)
        moments = roll(self.agent, world, world.begin(), state=state, steps=steps)
        out: np.ndarray = torch.stack([m.acted.logits_BA for m in moments], 1).cpu().numpy()
        return out

    def rows(self, p: Paired, rng: np.random.Generator) -> Iterator[Row]:
        pi = {kind: softmax(p.kept[f"judge/{kind}"]) for kind in ("real", "simulated", "held")}
        does = {kind: in_effect(x, self.actions) for kind, x in pi.items()}
        for k in shown_horizons(p):
            on = p.seen[:, k]
            same = {kind: does[kind][on, k] == does["real"][on, k] for kind in ("simulated", "held")}
            usual = float(np.bincount(does["real"][on, k]).max() / on.sum())
            e = bootstrap_mean(same["simulated"], p.episode[on], rng=rng)
            yield row("judge_agreement", k, e, "share", floor=1.0, copy=float(same["held"].mean()), mean=usual)
            apart = {kind: np.abs(pi[kind][on, k] - pi["real"][on, k]).sum(-1) / 2 for kind in ("simulated", "held")}
            e = bootstrap_mean(apart["simulated"], p.episode[on], rng=rng)
            yield row("judge_policy_distance", k, e, "total variation", floor=0.0, copy=float(apart["held"].mean()))


@dataclass
class Ensemble:
    """Several simulators of one agent: do their differences tell how wrong they are?

    The band of a number is the prediction interval of one more like the M (mean, Student's t, standard deviation), so
    that it holds the real one in the share BAND of cases where the real world could be one of them.
    """

    others: Sequence[Simulator[Any]]

    def draw(self, shape: tuple[int, int]) -> None:
        return None

    def along(self, batch: Batch, drawn: np.ndarray | None) -> dict[str, np.ndarray]:
        name, steps = self.others[0].world.spec.main_field, batch.seen.shape[1] - 1
        runs = [batch.free]
        for simulator in self.others:
            runs.append(rollout(simulator, begin(simulator, batch.window, batch.state), steps, actions=batch.action))
            require_finite(runs[-1])
        shown = [k for k in HORIZONS if k <= steps]
        frames = np.stack([run.obs[name][:, shown].cpu().numpy() for run in runs])  # [M, B, S, ...]
        real, over = batch.real[:, shown], tuple(range(2, batch.real.ndim))
        slack = HALF_STEP if batch.images else 1e-6
        covered = np.abs(frames.mean(0) - real) <= half_width(frames) + slack
        return {
            "ensemble/error": ((frames.mean(0) - real) ** 2).mean(over, dtype=np.float64),
            "ensemble/spread": frames.var(0, ddof=1).mean(over, dtype=np.float64),
            "ensemble/covered": covered.mean(over, dtype=np.float64),
            "ensemble/value": torch.stack([run.value for run in runs], -1).cpu().numpy().astype(np.float64),
        }

    def rows(self, p: Paired, rng: np.random.Generator) -> Iterator[Row]:
        shown = [k for k in HORIZONS if k < p.seen.shape[1]]
        for i, k in enumerate(shown):
            on = p.seen[:, k]
            if not on.any():
                continue
            at = p.episode[on]
            error, spread, covered = (p.kept[f"ensemble/{w}"][on, i] for w in ("error", "spread", "covered"))
            e = bootstrap_mean(error, at, rng=rng)
            held = psnr(float(p.error["copy"][on, k].mean())) if p.images else None
            if p.images:
                decibel = Estimate(psnr(e.value), psnr(e.high), psnr(e.low), e.n)
                yield row("ensemble_frame_psnr", k, decibel, "dB", copy=held, reason=NO_ERROR)
            value_BM = p.kept["ensemble/value"][on, k]
            real = p.real.value[on, k]
            off = np.abs(value_BM.mean(-1) - real)
            inside = off <= half_width(value_BM.T) + 1e-6
            for what, share in (("frame", covered), ("value", inside.astype(float))):
                yield row(f"ensemble_coverage_{what}", k, share_of(share, at), "share", floor=BAND)
            for what, wide, wrong in (("frame", spread, error), ("value", value_BM.std(-1, ddof=1), off)):
                yield row(f"ensemble_rank_{what}", k, _rank(wide, wrong, at, rng), "rank correlation", copy=0.0,
                          reason="the simulators do not differ, or are all equally wrong")  # fmt: skip


def half_width(value_M: np.ndarray) -> np.ndarray:
    """Half of the band of M simulators' numbers [M, ...]."""
    m = len(value_M)
    out: np.ndarray = float(student(m, BAND)) * value_M.std(0, ddof=1) * np.sqrt(1 + 1 / m)
    return out


def _rank(wide_N: np.ndarray, wrong_N: np.ndarray, episode_N: np.ndarray, rng: np.random.Generator) -> Estimate:
    """Spearman's correlation of spread and error, jackknife over episodes."""
    from scipy.stats import rankdata

    def correlation(rows: np.ndarray) -> float:
        a, b = rankdata(wide_N[rows]), rankdata(wrong_N[rows])
        return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else float("nan")

    count = len(np.unique(episode_N))
    if len(wide_N) < 3:
        return Estimate.unknown(count)
    value, low, high = (float(x) for x in jackknife(correlation, episode_N, rng=rng, link=ATANH))
    return Estimate(value, low, high, count)
