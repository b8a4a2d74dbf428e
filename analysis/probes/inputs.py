"""What quantities are read from, by the words of ``--inputs``, an episode at a time: nothing of a wide one is kept.

    h, block_0, embedding ...    a column of the recording, else a point of the recorded agent, shown the episodes
    obs, obs:4                   the observation (of one of more than 6,144 numbers its 1,024 main components), the
                                 last 4 (of the earlier ones their main components)
    time, actions                curves in time; how often each action was taken so far
    episode                      which episode it is: nothing, where whole episodes are held out
    frame                        what the agent makes of the observation with an empty memory
    random                       h of the agent with its weights shuffled
    obs+time                     several, side by side
    NAME=DIR                     h of another recording, such as that of an agent that sees what this one does not

N rows, F features.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.probes.baselines import seen_by, time_table
from analysis.shared.randomised import has_weights, randomised
from core.config import nearest
from core.contracts import Agent, UserError, numbers_of_distinct
from core.episodes import RolloutStore
from core.words import counted

MOST_WIDE = 6144  # numbers of an input: more take minutes and gigabytes to fit
LAG_WIDTH, WIDE_WIDTH = 256, 1024  # main components of earlier observations, and of one that is wider than MOST_WIDE
SAMPLE, WIDE_SAMPLE = 16_384, 2048  # rows that these are found from
EPISODE = "episode"
OWN = ("obs", "time", "actions", "frame", "random", EPISODE)  # words that are no column and no point
OF_THE_ROWS = frozenset({"time", EPISODE})  # how wide they are follows from the recording's rows
BASELINES = (  # all others hold a memory
    "obs", "embedding", "time", "actions", "action", "reward", "frame", "random", EPISODE,
)  # fmt: skip


class Input(NamedTuple):
    """Something that quantities are read from."""

    name: str
    width: int
    of: Callable[[int, slice], np.ndarray]  # (episode, its rows among all) -> float32 [rows, width]

    @property
    def is_baseline(self) -> bool:
        """Whether it is what states are compared with: nothing in it is a state."""
        return all(
            word.startswith("obs/") or word.rpartition("/")[2].partition(":")[0] in BASELINES
            for word in self.name.split("+")
        )


def is_elsewhere(word: str) -> bool:
    """Whether it names another recording, NAME=DIR."""
    return "=" in word


def elsewhere(word: str) -> tuple[str, Path]:
    """(name, directory) of NAME=DIR."""
    name, _, path = word.partition("=")
    if not re.fullmatch(r"\w+", name) or not path:
        raise UserError(f"--inputs {word}: expected NAME=DIR, as in visible=runs/rollouts_visible")
    if name in (*OWN, "h"):
        raise UserError(f"--inputs {word}: {name} is an input of the recording itself; give it another name")
    return name, Path(path)


def column_for(word: str, columns: Sequence[str]) -> str | None:
    """The stored column of that name, or the only one whose last word it is; labels of the world are none."""
    if word in columns and not word.startswith("truth/"):
        return word
    ends = [c for c in columns if c.rpartition("/")[2] == word and c.partition("/")[0] not in ("truth", "obs")]
    return ends[0] if len(ends) == 1 else None


def blocks_of(store: RolloutStore, agent: Agent | None) -> list[str]:
    """The states of the agent's recurrent layers, first to last: ``block_0`` ...; ``h`` where it names none.

    Of the layers that an agent names as points, h is the one above."""
    named = ({c.rpartition("/")[2] for c in store.column_names}, set(agent.points if agent else ()))
    stored, below = (
        sorted((n for n in names if re.fullmatch("block_[0-9]+", n)), key=lambda n: int(n[6:])) for names in named
    )
    return stored if len(stored) > len(below) else [*below, "h"]


def block_words(asked: str, store: RolloutStore, agent: Agent | None) -> list[str]:
    """The inputs that ``--block last|all|K`` means."""
    if not re.fullmatch("last|all|[0-9]+", asked):
        raise UserError(f"--block {asked}: last, all, or the number of a block")
    blocks = blocks_of(store, agent)
    if asked.isdigit() and int(asked) >= len(blocks):
        raise UserError(
            f"--block {asked}: the agent of {store.path} has {counted(len(blocks), 'block')}, 0 to {len(blocks) - 1}"
        )
    return blocks if asked == "all" else [blocks[-1] if asked == "last" else blocks[int(asked)]]


def check_words(words: Sequence[str], store: RolloutStore, agent: Agent | None) -> None:
    """UserError unless each word names something that is there."""
    names = [elsewhere(w)[0] if is_elsewhere(w) else w for w in words]
    if len(set(names)) < len(names):
        raise UserError(f"--inputs names {next(n for n in names if names.count(n) > 1)!r} twice")
    for word in words:
        if "+" in word and EPISODE in word.split("+"):
            raise UserError(f"--inputs {word}: {EPISODE} stands alone")
    points = list(agent.points) if agent is not None else []
    last = [c.rpartition("/")[2] for c in store.column_names if c.partition("/")[0] not in ("truth", "obs")]
    for word in (part for w in words if not is_elsewhere(w) for part in w.split("+")):
        base, _, count = word.partition(":")
        if base == "obs" and word != "obs" and (not count.isdigit() or int(count) < 2):
            raise UserError(f"--inputs {word}: expected obs:K, the last K observations, K at least 2")
        if base == "obs" or word in ("time", "actions", EPISODE):
            continue
        needs_agent = word in ("frame", "random") or (word in points and column_for(word, store.column_names) is None)
        if needs_agent and agent is None:
            raise UserError(f"--inputs {word} needs the agent that was recorded: give --agent")
        if word == "random" and not has_weights(agent):
            raise UserError("--inputs random: the agent that was recorded has no weights to shuffle; leave it out")
        if not needs_agent and column_for(word, store.column_names) is None:
            known = [*OWN, *last, *points]
            more = "" if agent is not None else " (with --agent also the agent's points)"
            raise UserError(f"--inputs {word}: {store.path} has no such column{nearest(word, known)}; there are: "
                            f"{', '.join(dict.fromkeys(known))}{more}")  # fmt: skip


def flat_obs(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """All observation fields side by side, float32 [T, F]; pictures in shares of 255."""
    parts = [
        (x.astype(np.float32) / 255 if x.dtype == np.uint8 and x.ndim == 4 else x.astype(np.float32)).reshape(
            len(x), -1
        )
        for _, x in sorted(columns.items())
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


def inputs_of(
    words: Sequence[str], store: RolloutStore, agent: Agent | None, step_E: Mapping[int, np.ndarray],
    time_N: np.ndarray, seed: int,
) -> list[Input]:  # fmt: skip
    """The inputs, of the rows that are the steps ``step_E`` of each episode, one after the other."""
    index_N2 = np.concatenate([np.stack([np.full(len(t), e), t], 1) for e, t in step_E.items()])
    made: dict[str, Input] = {}
    wanted = [w for word in words for w in word.split("+")]
    points = [w for w in dict.fromkeys(wanted) if w not in OWN and not w.startswith("obs:")
              and column_for(w, store.column_names) is None]  # fmt: skip
    if agent is not None and (points or "frame" in wanted):
        seen = seen_by(agent, store, index_N2, points=points, alone="frame" in wanted)
        made |= {p: kept(p, seen.points[p]) for p in points}
        made |= {"frame": kept("frame", seen.alone_NF)} if "frame" in wanted else {}
    if agent is not None and "random" in wanted:
        other = seen_by(randomised(agent, seed), store, index_N2, "the randomised agent", alone=False)
        made["random"] = kept("random", other.h_NH)
    out = []
    for word in words:
        for w in word.split("+"):
            if w not in made:
                made[w] = own_of(w, store, step_E, time_N)
        out.append(beside(word, [made[w] for w in word.split("+")]))
        if out[-1].width > MOST_WIDE:
            raise UserError(f"--inputs {word} is {out[-1].width:,} numbers wide, more than {MOST_WIDE:,}: leave it out "
                            "or read what the agent makes of it (embedding, frame)")  # fmt: skip
    return out


def kept(name: str, x_NF: np.ndarray) -> Input:
    """An input that lies in memory."""
    return Input(name, x_NF.shape[1], lambda e, rows: x_NF[rows])


def beside(name: str, parts: Sequence[Input]) -> Input:
    """Several inputs as one."""
    if len(parts) == 1:
        return parts[0]._replace(name=name)
    return Input(name, sum(p.width for p in parts), lambda e, rows: np.concatenate([p.of(e, rows) for p in parts], 1))


def own_of(word: str, store: RolloutStore, step_E: Mapping[int, np.ndarray], time_N: np.ndarray) -> Input:
    """An input that the recording alone tells."""
    if word == "time":
        table_TF, of_N = time_table(time_N)
        table_TF = table_TF.astype(np.float32)
        return Input(word, table_TF.shape[1], lambda e, rows: table_TF[of_N[rows]])
    if word == EPISODE:
        return Input(word, 0, lambda e, rows: np.zeros((len(step_E[e]), 0), np.float32))
    if word == "actions":
        of_A = numbers_of_distinct(store.spec.distinct_actions())
        return Input(word, int(of_A.max()) + 1, lambda e, rows: counts_before(store, e, of_A)[step_E[e]])
    if word.partition(":")[0] != "obs":
        column = column_for(word, store.column_names)
        assert column is not None
        one = store.pooled(column, episodes=[next(iter(step_E))])[0][column]
        width = int(np.prod(one.shape[1:]))

        def stored(e: int, rows: slice) -> np.ndarray:
            x: np.ndarray = store.pooled(column, episodes=[e])[0][column]
            return x.reshape(len(x), width)[step_E[e]].astype(np.float32)

        return Input(word, width, stored)
    seen, width = seen_in(store, step_E, word)
    if word == "obs":
        return Input(word, width, lambda e, rows: seen(e)[step_E[e]])
    before = int(word.partition(":")[2]) - 1
    turn_FL = main_components(seen, step_E, width)

    def recent(e: int, rows: slice) -> np.ndarray:
        now_TF = seen(e)
        past_TL = now_TF if turn_FL is None else now_TF @ turn_FL
        lags = []
        for k in range(1, before + 1):
            lag_TL = np.zeros_like(past_TL)
            lag_TL[k:] = past_TL[:-k]
            lags.append(lag_TL[step_E[e]])
        return np.concatenate([now_TF[step_E[e]], *lags], 1)

    return Input(word, width + before * (width if turn_FL is None else turn_FL.shape[1]), recent)


def seen_in(
    store: RolloutStore, step_E: Mapping[int, np.ndarray], word: str
) -> tuple[Callable[[int], np.ndarray], int]:
    """(an episode's observations as they are read, float32 [T, F]; F): all their numbers, or main components."""
    fields = [c for c in store.column_names if c.startswith("obs/")]
    if not fields:
        raise UserError(f"--inputs {word}: {store.path} holds no observations")

    def seen(e: int) -> np.ndarray:
        return flat_obs(store.pooled(*fields, episodes=[e])[0])

    width = seen(next(iter(step_E))).shape[1]
    if width <= MOST_WIDE:
        return seen, width
    turn_FK = wide_components(seen, step_E)
    return lambda e: seen(e) @ turn_FK, turn_FK.shape[1]


def wide_components(seen: Callable[[int], np.ndarray], step_E: Mapping[int, np.ndarray]) -> np.ndarray:
    """Directions [F, K] of most variance over at most WIDE_SAMPLE rows, where F is too large for a covariance."""
    rng = np.random.default_rng(0)
    total = sum(map(len, step_E.values()))
    share = min(1.0, WIDE_SAMPLE / total)
    parts = []
    for e, steps in step_E.items():
        some = steps[rng.random(len(steps)) < share]
        if len(some):
            parts.append(seen(e)[some])
    x_MF = np.concatenate(parts)[:WIDE_SAMPLE]
    x_MF = x_MF - x_MF.mean(0)
    value_M, vector_MM = np.linalg.eigh(x_MF @ x_MF.T)
    kept = np.flatnonzero(value_M > 1e-6 * value_M[-1])[: -WIDE_WIDTH - 1 : -1]
    return np.ascontiguousarray(x_MF.T @ vector_MM[:, kept] / np.sqrt(value_M[kept]))


def main_components(
    seen: Callable[[int], np.ndarray], step_E: Mapping[int, np.ndarray], width: int
) -> np.ndarray | None:
    """Directions [F, LAG_WIDTH] of most variance over a sample of episodes; None where there are no more numbers."""
    if width <= LAG_WIDTH:
        return None
    parts, rows = [], 0
    for e in np.random.default_rng(0).permutation(list(step_E)):
        parts.append(seen(int(e))[step_E[int(e)]])
        rows += len(parts[-1])
        if rows >= SAMPLE:
            break
    x_MF = np.concatenate(parts)[:SAMPLE]
    x_MF = x_MF - x_MF.mean(0)
    return np.ascontiguousarray(np.linalg.eigh(x_MF.T @ x_MF)[1][:, : -LAG_WIDTH - 1 : -1])  # else products crawl


def counts_before(store: RolloutStore, episode: int, of_A: np.ndarray) -> np.ndarray:
    """How often each distinct action was taken before every step of an episode, float32 [T, distinct].  of_A: the
    number of the distinct action that each id is (``numbers_of_distinct``)."""
    spec = store.spec
    action_TP = store.pooled("action", episodes=[episode])[0]["action"].reshape(-1, len(spec.parts))
    taken_TA = np.zeros((len(action_TP), int(of_A.max()) + 1), np.float32)
    for p in range(action_TP.shape[1]):
        taken_TA[np.arange(len(action_TP)), of_A[action_TP[:, p] + spec.first_P[p]]] += 1
    out = np.zeros_like(taken_TA)
    out[1:] = np.cumsum(taken_TA, 0)[:-1]
    return out
