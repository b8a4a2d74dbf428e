"""Behaviours as the states of a small decision process: where they lead, how long they last, what they are worth.

The world and the agent within a behaviour are averaged over, so that this is semi-aggregated: the next behaviour
depends on more than the present one, and a dwell time is a mean, not a law.  What is given is what happened, with
intervals over whole episodes.  The last steps of an episode have no label (their history is cut), so
that neither its end nor a reward that is given there is part of this.

R real steps, E episodes, S states (the behaviours, and the steps that are in none if there are any), P states
that follow a state, A actions, G groups of episodes left out.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from core.stats import jackknifed, left_out, ratios, shares, softmax

RESAMPLES = 1000
NEVER = 1e-9  # a chance to leave, a step, below which a state may as well last for ever
NO_BEHAVIOUR = "no behaviour (noise)"


class Visits(NamedTuple):
    """Real steps in their order: label (-1: no behaviour), episode, step, and what the agent did and expected.

    ``unit_R``: equal for what is not independent (None: the episode); ``parts``: choices of each part of an action,
    over which entropies are summed (parts are independent given h); (): one part.
    """

    label_R: np.ndarray
    episode_R: np.ndarray
    t_R: np.ndarray
    value_R: np.ndarray
    logits_RA: np.ndarray
    unit_R: np.ndarray | None = None
    parts: tuple[int, ...] = ()


def transitions(label_N: np.ndarray, episode_N: np.ndarray, t_N: np.ndarray, clusters: int) -> np.ndarray:
    """Counts int64 [S, S] of label at t (row) and at t + 1 (column) of the same episode.

    S is ``clusters``, and one more, the last, for label -1 if there is any.
    """
    states = clusters + bool((label_N < 0).any())
    out = np.zeros((states, states), np.int64)
    follows = _follows(episode_N, t_N)
    np.add.at(out, (label_N[:-1][follows], label_N[1:][follows]), 1)  # -1 is the last
    return out


def _follows(episode_N: np.ndarray, t_N: np.ndarray) -> np.ndarray:
    out: np.ndarray = (episode_N[1:] == episode_N[:-1]) & (t_N[1:] == t_N[:-1] + 1)
    return out


def aggregate(visits: Visits, clusters: int, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(a row a state, a row a pair of states that follow each other), with 95 % intervals over episodes.

    State: ``dwell`` is the mean number of steps it lasts (steps that have a next one, per exit; None if it was never
    left; ``dwell_high`` None where so few episodes leave it that it may last for ever), ``value`` the agent's own,
    entropies in bits: ``policy_entropy`` of the agent's policy at each step, on average; ``mixed_policy_entropy`` of
    the average policy; ``transition_entropy`` of the next step's state.  The last two are of shares that are known from
    some episodes only, which makes them too small; the bias that the jackknife finds is taken off.  Pair:
    ``probability`` that the next step is in the second, ``exit_probability`` that this is where it goes when it leaves
    the first.  n counts the episodes in which the (first) state occurs.
    """
    v, rng = visits, np.random.default_rng(seed)
    states = clusters + bool((v.label_R < 0).any())
    state_R = np.where(v.label_R < 0, clusters, v.label_R)
    _, unit_R = np.unique(v.episode_R if v.unit_R is None else v.unit_R, return_inverse=True)
    episodes = int(unit_R.max()) + 1

    def per_episode(state_N: np.ndarray, unit_N: np.ndarray, x_N: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(unit_N * states + state_N, x_N, episodes * states).reshape(episodes, states)

    policy_RA = np.concatenate([softmax(x) for x in np.split(v.logits_RA, np.cumsum(v.parts)[:-1], 1)], 1)
    steps_ES, value_ES, entropy_ES = (
        per_episode(state_R, unit_R, x_R) for x_R in (None, v.value_R, _bits(policy_RA).sum(1))
    )
    policy_AES = np.stack([per_episode(state_R, unit_R, p_R) for p_R in policy_RA.T])
    follows = np.flatnonzero(_follows(v.episode_R, v.t_R))
    from_N, to_N, unit_N = state_R[follows], state_R[follows + 1], unit_R[follows]
    left_ES, stay_ES = (per_episode(from_N[some], unit_N[some]) for some in (slice(None), from_N == to_N))
    rows: list[dict[str, Any]] = []
    in_pairs: list[dict[str, Any]] = []
    for s in range(states):
        here = steps_ES[:, s] > 0  # the other episodes say nothing of it
        n = int(here.sum())
        steps_E1, left_E1, exit_E1 = steps_ES[here, s, None], left_ES[here, s, None], (left_ES - stay_ES)[here, s, None]
        mine = from_N == s
        next_S = np.flatnonzero(np.bincount(to_N[mine], minlength=states))  # most pairs of states do not occur
        next_EP = per_episode(to_N[mine], unit_N[mine])[here][:, next_S].astype(np.float64)
        number = -1 if s == clusters else s
        row: dict[str, Any] = {"behaviour": number, "n_steps": int(steps_E1.sum()), "n_episodes": n}
        row["n_exits"] = int(exit_E1.sum())
        # By the rate, of which 0 is a possible end: then the state may last for ever.
        rate, rate_low, rate_high, _ = (x[0] for x in shares(exit_E1, left_E1))
        for name, per_step in (("dwell", rate), ("dwell_low", rate_high), ("dwell_high", rate_low)):
            row[name] = 1 / float(per_step) if per_step > NEVER else None
        for name in ("value", "policy_entropy", "mixed_policy_entropy", "transition_entropy"):
            row |= _cells(name, np.nan, np.nan, np.nan)
        if n:
            means = ratios(np.stack([value_ES[here, s], entropy_ES[here, s]], 1), steps_E1, rng=rng, draws=RESAMPLES)
            for name, e in zip(("value", "policy_entropy"), means.estimates(), strict=True):
                row |= _cells(name, e.value, e.low, e.high)
            weight_GE = left_out(n, rng)
            with np.errstate(invalid="ignore", divide="ignore"):  # without the only episode: NaN
                of_policy_G = _entropy((weight_GE @ policy_AES[:, here, s].T) / (weight_GE @ steps_E1))
                of_next_G = _entropy((weight_GE @ next_EP) / (weight_GE @ left_E1))
            # The jackknife knows no bounds: all options alike have the most bits.
            mixed = ("mixed_policy_entropy", of_policy_G, math.prod(v.parts or (len(policy_AES),)))
            for name, entropy_G, options in (mixed, ("transition_entropy", of_next_G, states)):
                found = jackknifed(entropy_G, rng=rng, unbiased=True, draws=RESAMPLES)
                row |= _cells(name, *np.clip(found, 0, np.log2(options)))
        rows.append(row)
        probability = shares(next_EP, left_E1)
        exits = shares(np.where(next_S == s, 0, next_EP), exit_E1)
        count_P = next_EP.sum(0)
        for p in np.argsort(-count_P, kind="stable"):
            to = int(next_S[p])
            pair: dict[str, Any] = {"from": number, "to": -1 if to == clusters else to}
            pair |= {"count": int(count_P[p]), "episodes_of_pair": int((next_EP[:, p] > 0).sum()), "n_episodes": n}
            pair |= _cells("probability", *(x[p] for x in probability[:3]))
            elsewhere = [np.nan if to == s else x[p] for x in exits[:3]]
            in_pairs.append(pair | _cells("exit_probability", *elsewhere))
    return rows, in_pairs


def _entropy(share_GP: np.ndarray) -> np.ndarray:
    """Bits [G]; NaN where shares are."""
    out: np.ndarray = _bits(share_GP).sum(1) if share_GP.shape[1] else np.full(len(share_GP), np.nan)
    return out


def _bits(p: np.ndarray) -> np.ndarray:
    """-p log2 p, 0 at 0 and below (rounding)."""
    safe = np.where(p > 0, p, 1)
    out: np.ndarray = np.where(np.isnan(p), np.nan, -safe * np.log2(safe))
    return out


def _cells(name: str, value: float, low: float, high: float) -> dict[str, float | None]:
    """``name``, ``name_low`` and ``name_high``; None where undefined."""
    numbers = {name: value, f"{name}_low": low, f"{name}_high": high}
    return {k: float(x) if np.isfinite(x) else None for k, x in numbers.items()}
