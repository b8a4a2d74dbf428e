"""Behaviours as the states of a small decision process: where they lead, how long they last, what they are worth.

The world and the agent within a behaviour are averaged over, so that this is semi-aggregated: the next behaviour
depends on more than the present one, and a dwell time is a mean, not a law.  What is given is what happened, with
intervals from resampling whole episodes.  The last steps of an episode have no label (their history is cut), so
that neither its end nor a reward that is given there is part of this.

R real steps, E episodes, S states (the behaviours, and the steps that are in none if there are any), P pairs
of states that follow each other, A actions, B bootstrap draws.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from core.stats import interval_of

RESAMPLES = 1000
NO_BEHAVIOUR = "no behaviour (noise)"


class Visits(NamedTuple):
    """Real steps in their order: label (-1: no behaviour), episode, step, and what the agent did and expected."""

    label_R: np.ndarray
    episode_R: np.ndarray
    t_R: np.ndarray
    value_R: np.ndarray
    logits_RA: np.ndarray


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
    the average policy; ``transition_entropy`` of the next step's
    state.  Pair: ``probability`` that the next step is in the second, ``exit_probability`` that this is where it goes
    when it leaves the first.  n counts the episodes in which the (first) state occurs.
    """
    from scipy.sparse import csr_array

    v = visits
    states = clusters + bool((v.label_R < 0).any())
    state_R = np.where(v.label_R < 0, clusters, v.label_R)
    _, unit_R = np.unique(v.episode_R, return_inverse=True)
    episodes = int(unit_R.max()) + 1
    cell_R = unit_R * states + state_R

    def per_episode(x_R: np.ndarray) -> np.ndarray:
        return np.bincount(cell_R, x_R, episodes * states).reshape(episodes, states)

    weight_BE = np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), size=RESAMPLES)
    weight_BE = np.concatenate([np.ones((1, episodes)), weight_BE])  # the first draw is the data themselves
    shifted_RA = v.logits_RA - v.logits_RA.max(1, keepdims=True).astype(np.float64)
    policy_RA = np.exp(shifted_RA) / np.exp(shifted_RA).sum(1, keepdims=True)
    steps_ES = per_episode(np.ones(len(state_R)))
    steps_BS = weight_BE @ steps_ES
    # Pairs that occur, as a sparse table: most do not.
    follows = np.flatnonzero(_follows(v.episode_R, v.t_R))
    pairs_P, pair_N = np.unique(state_R[follows] * states + state_R[follows + 1], return_inverse=True)
    from_P, to_P = pairs_P // states, pairs_P % states
    count_EP = csr_array((np.ones(len(follows)), (unit_R[follows], pair_N)), shape=(episodes, len(pairs_P)))
    count_BP = (count_EP.T @ weight_BE.T).T
    left_BS, stay_BS = np.zeros((2, *steps_BS.shape))
    for p, (i, j) in enumerate(zip(from_P, to_P, strict=True)):
        left_BS[:, i] += count_BP[:, p]
        if i == j:
            stay_BS[:, i] = count_BP[:, p]
    with np.errstate(invalid="ignore", divide="ignore"):  # a state that a draw has no step of: NaN, left out
        exit_rate_BS = (left_BS - stay_BS) / left_BS
        of_state = {
            "value": weight_BE @ per_episode(v.value_R) / steps_BS,
            "policy_entropy": weight_BE @ per_episode(_bits(policy_RA).sum(1)) / steps_BS,
            "mixed_policy_entropy": sum(_bits(weight_BE @ per_episode(p_R) / steps_BS) for p_R in policy_RA.T),
        }
        probability_BP = count_BP / left_BS[:, from_P]
        exit_BP = np.where(from_P == to_P, np.nan, count_BP / (left_BS - stay_BS)[:, from_P])
        entropy_BS = np.where(left_BS > 0, 0.0, np.nan)
        for p, i in enumerate(from_P):
            entropy_BS[:, i] += _bits(probability_BP[:, p])
        of_state["transition_entropy"] = entropy_BS
    n_S = (steps_ES > 0).sum(0)
    rows = []
    for s in range(states):
        row: dict[str, Any] = {"behaviour": -1 if s == clusters else s}
        row |= {"n_steps": int(steps_BS[0, s]), "n_episodes": int(n_S[s]), "n_exits": int((left_BS - stay_BS)[0, s])}
        # By the rate, which is 0 in a draw without an exit: leaving such draws out would bound how long a state lasts.
        rate = _with_interval("rate", exit_rate_BS[:, s], int(n_S[s]))
        for name, end in (("dwell", "rate"), ("dwell_low", "rate_high"), ("dwell_high", "rate_low")):
            per_step = rate[end]
            row[name] = 1 / per_step if per_step else None
        for name, draws_BS in of_state.items():
            row |= _with_interval(name, draws_BS[:, s], int(n_S[s]))
        rows.append(row)
    seen_P = np.bincount(count_EP.indices, minlength=len(pairs_P))
    in_pairs = []
    for p in np.lexsort((-count_BP[0], from_P)):
        i, j = int(from_P[p]), int(to_P[p])
        pair: dict[str, Any] = {"from": -1 if i == clusters else i, "to": -1 if j == clusters else j}
        pair |= {"count": int(count_BP[0, p]), "episodes_of_pair": int(seen_P[p]), "n_episodes": int(n_S[i])}
        pair |= _with_interval("probability", probability_BP[:, p], int(n_S[i]))
        in_pairs.append(pair | _with_interval("exit_probability", exit_BP[:, p], int(n_S[i])))
    return rows, in_pairs


def _bits(p: np.ndarray) -> np.ndarray:
    """-p log2 p, 0 at 0 and below (rounding)."""
    safe = np.where(p > 0, p, 1)
    out: np.ndarray = np.where(np.isnan(p), np.nan, -safe * np.log2(safe))
    return out


def _with_interval(name: str, draws_B: np.ndarray, episodes: int) -> dict[str, float | None]:
    """``name`` (the first draw, the data), ``name_low`` and ``name_high``; None where undefined."""
    low, high = interval_of(draws_B[1:], episodes)
    numbers = {name: draws_B[0], f"{name}_low": low, f"{name}_high": high}
    return {k: float(x) if np.isfinite(x) else None for k, x in numbers.items()}
