"""Which lives are shown, and what happened in them tick by tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.lives.recorded import Between, Clusters, read_life
from core.artefacts import Result
from core.contracts import UserError
from core.episodes import RolloutStore
from core.stats import quantile_interval, share_of

QUANTILE = 0.75


# Events: what they are called, from which column; "+" means that it rises in the next tick.
EVENTS = (
    ("eating", "self_food+"), ("drinking", "self_water+"), ("moving", "is_moving"), ("attacking", "is_attacking"),
    ("in combat", "in_combat"), ("trading", "is_trading"),
)  # fmt: skip


def choose(steps_E: np.ndarray, agents: int, episodes: Sequence[int], seed: int) -> list[int]:
    """Episode numbers: those wished for, or ``agents`` random ones, or (0 or 1 agents) that with the length nearest to
    the 75th percentile (of equals the first).  UserError for what is not there."""
    n = len(steps_E)
    if episodes and agents > 1:
        raise UserError("--num_agents and --episodes are two ways to choose; give one of them")
    if wrong := [e for e in episodes if not 0 <= e < n]:
        raise UserError(f"--episodes {wrong[0]}: there are {n} lives, 0 to {n - 1}")
    if agents > n:
        raise UserError(f"--num_agents {agents}: there are only {n} lives")
    if episodes:
        return list(dict.fromkeys(episodes))
    if agents > 1:
        return sorted(np.random.default_rng(seed).choice(n, agents, replace=False).tolist())
    return [int(np.abs(steps_E - np.quantile(steps_E, QUANTILE)).argmin())]


def events_of(life: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Event -> bool [T], in the order of EVENTS; those whose column is missing are left out.

    Eating and drinking are ticks after which food or water has risen (both only fall by themselves), so that a meal
    on a full stomach is not seen, nor what the last tick brought.
    """
    out = {}
    for event, source in EVENTS:
        name = source.removesuffix("+")
        if name in life:
            x = np.asarray(life[name])
            out[event] = np.r_[np.diff(x) > 0, False] if source.endswith("+") else x > 0
    return out


def timeline(
    store: RolloutStore, which: Mapping[str, Any], clusters: Clusters | None, between: Between
) -> list[dict[str, Any]]:
    """A row a tick of the life that ``about`` describes: t, tick, every column of the life, every event, label, and
    whether it was clustered itself."""
    episode = int(which["episode"])
    life = read_life(store, episode)
    rows, events = int(store.steps[episode]), events_of(life)
    label = own = None
    if clusters is not None:
        label, own = clusters.along(episode, rows, between)
    out = []
    for t in range(rows):
        row: dict[str, Any] = {"episode": episode, "agent": which["agent"], "t": t, "tick": which["first_tick"] + t}
        # The shortest text that gives the same float32 back.
        row |= {name: float(str(np.float32(x[t]))) for name, x in life.items() if name != "tick"}
        row |= {name.replace(" ", "_"): int(happens[t]) for name, happens in events.items()}
        if label is not None and own is not None:
            row |= {"label": int(label[t]), "clustered": int(own[t])}
        out.append(row)
    return out


def record_lifespans(result: Result, steps_E: np.ndarray, terminated_E: np.ndarray) -> None:
    """Scalars ``lifespan_p75``, without an upper end where lives are too few for it, and ``died``.  Lives that were
    cut off lasted at least so long."""
    lifespan = quantile_interval(steps_E, QUANTILE)
    result.scalar("lifespan_p75", lifespan.value, "ticks", lifespan.n, lifespan.interval)
    died = share_of(terminated_E, np.arange(len(terminated_E)))
    result.scalar("died", died.value, "share of lives", died.n, died.interval)
    result.notes["intervals"] = (
        "95 %, lives as units; agents of one world meet and compete, so where one world gives many lives they are "
        "narrower than they should be; an end that so few lives cannot tell is empty"
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One life in numbers: how many ticks of every event, how many clustered ones, how often the cluster changes, and
    the cluster of its last tick."""
    out = {f"{event}_ticks": sum(row[name] for row in rows)
           for event, _ in EVENTS if (name := event.replace(" ", "_")) in rows[0]}  # fmt: skip
    out = {name.replace(" ", "_"): count for name, count in out.items()}
    if "label" in rows[0]:
        own = [row["label"] for row in rows if row["clustered"]]
        changes = sum(a != b for a, b in zip(own, own[1:], strict=False))
        out |= {"clustered_ticks": len(own), "changes": changes, "last_label": rows[-1]["label"]}
    return out
