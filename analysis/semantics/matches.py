"""Which clusters are what people have said of a game's situations: descriptions, told by truth events, against codes.

A description is an expression of analysis.shared.events, true or false at every step; a code matches it where the two
go together more than by chance.  That no code does is an answer too.

N steps, C codes, D descriptions, R draws.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.events.counts import chosen_events, happening
from analysis.semantics.states import States
from analysis.shared.clusters import rotated_rows
from analysis.shared.probe_fits import exchanged_units
from core.config import read_json
from core.contracts import UserError
from core.episodes import RolloutStore
from core.progress import track
from core.stats import ALPHA, benjamini_hochberg, failure_not_met, gain_not_met, jackknife

FEWEST_UNITS = 2  # levels in which a description holds somewhere


@dataclass(frozen=True)
class Descriptions:
    """What a file says."""

    game: str
    steps: int  # of training, below which a policy does not play well enough to be described so
    words: Mapping[str, str]  # name: expression


def read_descriptions(path: Path) -> Descriptions:
    """A JSON file {"game": NAME, "enough_steps": COUNT, "descriptions": {NAME: EXPRESSION, ...}}.  UserError."""
    data = read_json(path)
    shape = '{"game": NAME, "enough_steps": COUNT, "descriptions": {NAME: EXPRESSION, ...}}'
    if not isinstance(data, dict) or set(data) != {"game", "enough_steps", "descriptions"}:
        raise UserError(f"{path} must be {shape}")
    words, steps = data["descriptions"], data["enough_steps"]
    if not isinstance(words, dict) or not words or not all(isinstance(x, str) for x in words.values()):
        raise UserError(f"{path}: descriptions must name expressions; the file is {shape}")
    if not isinstance(data["game"], str) or type(steps) is not int or steps < 0:
        raise UserError(f"{path}: game must be a name and enough_steps a whole number; the file is {shape}")
    alike: dict[str, str] = {}
    for name in words:
        if not name[:1].isalpha():
            raise UserError(f"{path}: the name {name!r} must begin with a letter")
        if (first := alike.setdefault(_plain(name), name)) != name:
            raise UserError(
                f"{path}: the names {first!r} and {name!r} differ in signs alone, which do not count; rename one"
            )
    return Descriptions(data["game"], steps, dict(words))


def _plain(name: str) -> str:
    """A description's name as that of an event."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name)


def told(store: RolloutStore, said: Descriptions) -> np.ndarray:
    """At which steps each description holds, bool [N, D].  UserError for another game's, and where the recording does
    not tell what they read."""
    game = store.spec.env_id.partition("/")[2]
    if said.game != game:
        raise UserError(f"the descriptions are of {said.game}, the rollouts of {game}")
    events = chosen_events([f"{_plain(name)}: {text}" for name, text in said.words.items()], store)
    return np.concatenate([on_TD for _, on_TD in happening(events, store)])


def phi(code_N: np.ndarray, holds_ND: np.ndarray, codes: int) -> np.ndarray:
    """Correlation of having a code and of a description's holding, [C, D]; NaN where one of them never or always is."""
    holds_ND = np.asarray(holds_ND, np.float64)
    n = len(code_N)
    both_CD = np.stack([np.bincount(code_N, x_N, minlength=codes) for x_N in holds_ND.T], 1) / n
    code_C1, holds_D = (np.bincount(code_N, minlength=codes) / n)[:, None], holds_ND.mean(0)
    spread_CD = np.sqrt(code_C1 * (1 - code_C1) * holds_D * (1 - holds_D))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread_CD > 0, (both_CD - code_C1 * holds_D) / spread_CD, np.nan)


def chance(states: States, holds_ND: np.ndarray, draws: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The largest ``phi`` of every description over codes, [R, D], where codes are not about what happens: those of
    episodes rotated, a level together, and those of whole levels exchanged, step by step (which keeps what
    time alone brings about)."""
    code_N, (episode_N, t_N) = states.code_N, states.index_N2.T

    def most(rows: np.ndarray) -> np.ndarray:
        return np.nan_to_num(phi(code_N[rows], holds_ND, states.codes), nan=-1.0).max(0)

    rotated, exchanged = [], []
    for _ in track(range(draws), "matches by chance"):
        rotated.append(most(rotated_rows(episode_N, rng, states.unit_N)))
        exchanged.append(most(exchanged_units(episode_N, states.unit_N, rng, t_N)))
    return {"rotated": np.array(rotated), "exchanged": np.array(exchanged)}


def matches(
    states: States, names: Sequence[str], holds_ND: np.ndarray, *, least: float, draws: int, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(a row a description, with its best code; ``phi`` of every pair).

    least: the smallest correlation that is a match.  A description *matches* its best code where the 95 % interval of
    their correlation, over whole levels, lies above it, and both kinds' q <= .05 (over descriptions, of the largest
    correlation over codes); it goes with it *by time* where only the codes rotated are beaten, not those exchanged;
    there is *none* where the interval lies below; else it is *open*.  The interval leaves room for levels of a kind
    that none of those in which the description holds was (``core.stats.gain_not_met``, ``failure_not_met``).  It is
    *not seen* where it holds in fewer than two levels, and there is nothing to match where it holds *always*, in every
    state, or all states have *one code*.
    """
    rng = np.random.default_rng(seed)
    phi_CD = phi(states.code_N, holds_ND, states.codes)
    levels_D = np.array([len(np.unique(states.unit_N[x_N])) for x_N in holds_ND.T])
    seen = np.flatnonzero((levels_D >= FEWEST_UNITS) & np.isfinite(phi_CD).any(0))
    unasked_D = np.select([levels_D < FEWEST_UNITS, holds_ND.all(0)], ["not seen", "always"], "one code")
    best_D = np.nan_to_num(phi_CD, nan=-1.0).argmax(0)
    rows: list[dict[str, Any]] = [
        {"description": name, "verdict": str(why), "share": float(x_N.mean())}
        for name, why, x_N in zip(names, unasked_D, holds_ND.T, strict=True)
    ]
    found = chance(states, holds_ND[:, seen], draws, rng) if len(seen) else {}
    p_of = {kind: (1 + (x_RD >= phi_CD[best_D[seen], seen]).sum(0)) / (1 + draws) for kind, x_RD in found.items()}
    q_of = {kind: benjamini_hochberg(p_D) for kind, p_D in p_of.items()}
    for i, d in enumerate(seen.tolist()):
        c, holds_N = int(best_D[d]), holds_ND[:, d]
        mine_N = (states.code_N == c).astype(np.int64)

        def of(rows: np.ndarray, mine_N: np.ndarray = mine_N, holds_N: np.ndarray = holds_N) -> float:
            return float(phi(mine_N[rows], holds_N[rows, None], 2)[1, 0])

        value, low, high = (float(x) for x in jackknife(of, states.unit_N, rng=rng))
        where = int(levels_D[d])  # another level in which it holds may go wholly with the code, or not at all
        low, high = failure_not_met(low, where), min(gain_not_met(value, high, where, 0.95), 1.0)
        q = {kind: float(q_D[i]) for kind, q_D in q_of.items()}
        sure = low > least and q["rotated"] <= ALPHA
        verdict = "none" if high < least else "open"
        verdict = ("match" if q["exchanged"] <= ALPHA else "by time") if sure else verdict
        rows[d] |= {
            "verdict": verdict, "code": c, "phi": value, "low": low, "high": high,
            "of_the_code": float(holds_N[mine_N > 0].mean()), "of_the_description": float(mine_N[holds_N].mean()),
            **{f"p_{kind}": float(p_D[i]) for kind, p_D in p_of.items()},
            **{f"q_{kind}": value for kind, value in q.items()},
            "steps": int(holds_N.sum()), "levels": int(levels_D[d]), "n": len(np.unique(states.unit_N)),
        }  # fmt: skip
    pairs = [
        {"description": name, "code": c, "phi": float(phi_CD[c, d])}
        for d, name in enumerate(names) for c in range(states.codes) if np.isfinite(phi_CD[c, d])
    ]  # fmt: skip
    return rows, pairs
