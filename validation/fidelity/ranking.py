"""Does the simulator rank policies as the real world does?  Many policies from the same starts, dreamed and real.

From random to best: the simulator's own agent, diluted with random actions, flattened and sharpened, and any further
agents of the same world.  A return is the reward within some steps of a start.  Simulated, it is weighed by the
foretold probability that the episode still goes on, so that no ending has to be drawn.

Starts are split into two halves: the dreamed means of one half rank the policies, the real means of the other are what
they are held against.  So dreamed and real never share a start, and the bound is the same for two real halves.

N snapshots, P policies, A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.play import LiveWorld
from core import ranks
from core.artefacts import finite
from core.contracts import Agent, Shown
from core.progress import track
from core.roll import Acted, Moment, Noise, choose, draw_noise, gumbel, roll
from core.stats import means
from core.trees import Tree, rows_of
from core.two_sample import halves
from validation.fidelity.beginnings import warmed_up
from validation.fidelity.counterfactual import BATCH, Found, Snapshots, window_of
from validation.fidelity.measures import row, unknown

STEPS = 64  # within which rewards count
GREEDY = 1e-4  # a temperature at which the likeliest action is all but certain
FORBIDDEN = -1e8  # logits below are of actions that are not allowed


@dataclass(frozen=True)
class Policy:
    """An agent whose logits are divided by ``temperature``, and which does anything at all with chance ``random``."""

    name: str
    agent: Agent
    random: float = 0.0
    temperature: float = 1.0


def policies_of(agent: Agent, others: Mapping[str, Agent]) -> list[Policy]:
    """Twelve made of the agent, from random to sharp, and the others as they are."""
    mixed = [Policy(f"random {share:g}", agent, share) for share in (1.0, 0.9, 0.8, 0.65, 0.5, 0.35, 0.2, 0.1)]
    warm = [Policy(f"temperature {t:g}", agent, 0.0, t) for t in (3.0, 1.0, 0.5)]
    own = [*mixed, *warm, Policy("greedy", agent, 0.0, GREEDY)]
    return own + [Policy(name, other) for name, other in others.items()]


class Chance:
    """What the policies do with the same draws: every policy meets the same luck at the same start and step."""

    def __init__(self, policy: Policy, rows: int, seed: Sequence[int], like: Tensor) -> None:
        self.policy, self.rows = policy, rows
        self.generator = torch.Generator(like.device).manual_seed(int(np.random.default_rng(seed).integers(2**62)))

    def __call__(self, acted: Acted, shown: Shown) -> tuple[Tensor, Tensor]:
        logits_BA = acted.logits_BA
        anything = torch.where(logits_BA > FORBIDDEN, 0.0, logits_BA)
        luck_B = torch.rand(self.rows, generator=self.generator, device=logits_BA.device)
        noise_BA = gumbel(logits_BA.shape, self.generator, logits_BA)
        mine = torch.where(luck_B[:, None] < self.policy.random, anything, logits_BA / self.policy.temperature)
        return choose(mine, self.policy.agent.spec.parts, noise_BA)


def returns(moments: Sequence[Moment]) -> Tensor:
    """The reward of each row within 0, 1, ... T steps, weighed by the chance that its episode still goes on: float
    [B, T+1]."""
    total_B, on_B = torch.zeros_like(moments[0].shown.reward_B), torch.ones_like(moments[0].shown.reward_B)
    within = [total_B]
    for moment in moments[1:]:
        total_B = total_B + on_B * moment.shown.reward_B
        on_B = on_B * (1 - moment.shown.ending_B)
        within.append(total_B)
    return torch.stack(within, 1)


def watched(moments: Iterator[Moment], world: LiveWorld, age_N: np.ndarray) -> tuple[list[Moment], float]:
    """The moments of a real world from these steps of their episodes on, and the steps after which the first of them
    was cut by a time limit (infinite: none was)."""
    kept, limit, on_N = [], np.inf, np.ones(len(age_N), bool)
    for t, moment in enumerate(moments):
        kept.append(moment)
        if t:
            assert world.now is not None
            limit = min(limit, *(age_N + t)[on_N & world.now.truncated & ~world.now.terminated], np.inf)
            on_N &= ~(world.now.terminated | world.now.truncated)
    return kept, limit


class Returns(NamedTuple):
    """Of policies, in both worlds within the same steps."""

    real_NP: np.ndarray  # float64
    dreamed_NP: np.ndarray
    steps_N: np.ndarray  # fewer where a time limit would cut them, of whoever plays
    limit: int | None  # the steps after which it does; None: nothing was cut


@torch.no_grad()
def play_all(shots: Snapshots, policies: Sequence[Policy], steps: int, seed: int) -> Returns:
    """The returns of all policies from all starts."""
    starts, simulator, device = shots.starts, shots.simulator, shots.starts.h_NH.device
    n, window = len(shots), window_of(shots.starts, shots.starts.h_NH.device)
    like = shots.beginning.world[1].reward_B

    def play(policy: Policy) -> tuple[np.ndarray, np.ndarray, float]:
        own = policy.agent is simulator.agent
        state: Tree = starts.state if own else warmed_up(policy.agent, window)
        world = LiveWorld(shots.env, device)
        chance = Chance(policy, n, (seed, n), like)
        moments, limit = watched(_slim(roll(policy.agent, world, world.restore(starts.states), state=state, steps=steps,
                                            choose_by=chance)), world, starts.age_N)  # fmt: skip
        real, dreamed = returns(moments).double().cpu().numpy(), np.empty((n, steps + 1))
        for first in range(0, n, BATCH):
            some = slice(first, min(n, first + BATCH))
            count, generator = some.stop - first, torch.Generator(device).manual_seed(seed + first)
            noise = [Noise(world=draw_noise(simulator.world, count, generator, like).world) for _ in range(steps + 1)]
            dream = _slim(
                roll(policy.agent, simulator.world, shots.beginning.some(some).world, state=rows_of(state, some),
                     steps=steps, noise=noise, choose_by=Chance(policy, count, (seed, first), like))
            )  # fmt: skip
            dreamed[some] = returns(list(dream)).double().cpu().numpy()
        return real, dreamed, limit

    found = list(track(ranks.each(policies, play), "policies", len(policies), "policies"))
    real, dreamed, limits = zip(*found, strict=True)
    first = min(limits)  # of any policy, so that no start's steps depend on what came of it
    steps_N = np.minimum(steps, np.maximum(first - starts.age_N, 0)).astype(np.int64)
    real_NP, dreamed_NP = (np.stack(side, 1)[np.arange(n), :, steps_N] for side in (real, dreamed))
    return Returns(real_NP, dreamed_NP, steps_N, int(first) if np.isfinite(first) else None)


def _slim(moments: Iterator[Moment]) -> Iterator[Moment]:
    """The moments without what the worlds are and show: frames of all steps would fill the memory."""
    return (m._replace(world=(), shown=m.shown._replace(obs={})) for m in moments)


def order_of(mean_P: np.ndarray) -> np.ndarray:
    """Ranks, ties shared; ``scipy.stats.rankdata``."""
    from scipy.stats import rankdata

    out: np.ndarray = rankdata(mean_P)
    return out


def spearman(a_NP: np.ndarray, b_MP: np.ndarray) -> float:
    """Rank correlation of the policies' means; NaN where those of one side are all the same."""
    a_P, b_P = order_of(a_NP.mean(0)), order_of(b_MP.mean(0))
    if not np.ptp(a_P) or not np.ptp(b_P):
        return float("nan")
    return float(np.corrcoef(a_P, b_P)[0, 1])


def regret(real_NP: np.ndarray, chosen_by_MP: np.ndarray) -> float:
    """By how much the policies that the other side likes best fall short of the real best, mean over ties."""
    real_P, other_P = real_NP.mean(0), chosen_by_MP.mean(0)
    return float(real_P.max() - real_P[other_P == other_P.max()].mean())


def ranking(
    shots: Snapshots, policies: Sequence[Policy], found: Found, rng: np.random.Generator, *, steps: int = STEPS,
    seed: int = 0,
) -> None:  # fmt: skip
    """Spearman and regret of the dreamed order, and every policy's returns."""
    played = play_all(shots, policies, steps, seed)
    score(played.real_NP, played.dreamed_NP, [p.name for p in policies], steps, found, rng)
    if played.limit is not None:
        found.notes["time_limit"] = (
            f"rewards of ranked policies after a time limit, which cuts episodes after {played.limit} steps: "
            f"{(played.steps_N < steps).sum()} of {len(shots)} snapshots leave less than {steps} steps before it "
            f"({played.steps_N.mean():.3g} on average), within which returns count in both worlds"
        )


def score(
    real_NP: np.ndarray, dreamed_NP: np.ndarray, names: Sequence[str], steps: int, found: Found,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Lines of the table, and the table ``policies``, from the returns of every start."""
    unit_N = np.arange(len(real_NP))
    measures: tuple[tuple[str, Callable[[np.ndarray, np.ndarray], float], str], ...] = (
        ("ranking_spearman", spearman, "rank correlation"), ("ranking_regret", regret, "return"),
    )  # fmt: skip
    real_P, same = real_NP.mean(0), "the policies' returns are all the same"
    alike = [not np.ptp(x.mean(0)) for x in (real_NP, dreamed_NP)]
    for measure, of, unit in measures:
        if measure == "ranking_regret" and alike[0]:  # none is worse than another
            found.rows.append(unknown(measure, steps, unit, len(real_NP), same))
            continue
        against, floor = halves(real_NP, dreamed_NP, unit_N, of, np.random.default_rng(int(rng.integers(2**31))))
        blind = float(real_P.max() - real_P.mean()) if measure == "ranking_regret" else 0.0
        copy = blind if measure == "ranking_regret" else None  # a held frame pays nothing, whoever plays
        found.rows.append(row(measure, steps, against, unit, floor=floor.value, copy=copy, mean=blind,
                              reason=same if any(alike) else f"{same} in a half of the starts"))  # fmt: skip
    both = [means(x, rng=rng).estimates() for x in (real_NP, dreamed_NP)]
    found.tables["policies"] = [
        {"policy": name, "real": a.value, "real_low": finite(a.low), "real_high": finite(a.high), "dreamed": b.value,
         "dreamed_low": finite(b.low), "dreamed_high": finite(b.high), "n": a.n}
        for name, a, b in zip(names, *both, strict=True)
    ]  # fmt: skip
    found.arrays |= {"policy_return_real": real_NP, "policy_return_dreamed": dreamed_NP}
    found.notes["ranking"] = (
        f"{len(names)} policies, returns within {steps} steps from {len(unit_N)} snapshots; the dreamed means of one "
        "half of the starts against the real means of the other, 40 random halves; floor: two real halves; regret: "
        "by how much the policy that is best in the dreamed half falls short of the best in the real half"
    )
