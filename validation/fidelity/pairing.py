"""Real windows and the simulator's futures from the same beginnings, side by side.

B windows, I initial frames, k horizon: row k of a simulation is k steps after its last initial frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from analysis.shared.exploration import explores
from core import ranks
from core.contracts import UserError
from core.episodes import Episode, RolloutStore
from core.progress import bar
from core.roll import Noise, Simulator, Trajectory
from core.trees import Tree, unflatten
from generative.simulator import require_finite, teacher_forced
from generative.starts import Informed, state_column_of
from validation.fidelity.beginnings import Beginning, begin, rollout
from validation.fidelity.measures import WINDOW, Row, as_float, ssim_to

FEWEST_EPISODES = 4
STRIPS = 4  # windows kept to look at
AHEAD = ("reward", "terminal", "unpaid")  # what is of transitions


class Side(NamedTuple):
    """What one world shows along the windows; row k of ``reward`` and ``terminal`` is the transition k -> k+1."""

    h: np.ndarray  # [B, K+1, H]
    value: np.ndarray  # [B, K+1]
    logits: np.ndarray  # [B, K+1, A]
    action: np.ndarray  # int64 [B, K+1]
    reward: np.ndarray  # [B, K]
    terminal: np.ndarray  # [B, K], real: 0 or 1, simulated: probability
    unpaid: np.ndarray  # [B, K], the same of endings without a reward; NaN where the world does not tell


class Batch(NamedTuple):
    """Some windows, as a ``Rung`` is given them while they are simulated."""

    obs: Mapping[str, Tensor]  # recorded, [B, I+K, ...]
    initial: int  # I
    action: Tensor  # int64 [B, K+1]
    seen: np.ndarray  # bool [B, K+1]
    state: Tree | None  # the agent's, recorded after the last initial observation; None: starts are inferred
    beginning: Beginning
    free: Trajectory
    real: np.ndarray  # the compared field, [B, K+1, ...], float
    guesses: Mapping[str, np.ndarray]  # what stands for it: ``simulated``, ``copy`` ..., [B, K+1, ...]
    images: bool  # whether that field is images, in [0, 1]

    @property
    def window(self) -> dict[str, Tensor]:
        """The I initial observations."""
        return {k: x[:, : self.initial] for k, x in self.obs.items()}

    @property
    def later(self) -> dict[str, Tensor]:
        """The last initial observation and all after it, [B, K+1, ...]."""
        return {k: x[:, self.initial - 1 :] for k, x in self.obs.items()}


class Rung(Protocol):
    """One more comparison along the same windows."""

    def draw(self, shape: tuple[int, int]) -> np.ndarray | None:
        """What it draws by chance for a batch of windows [B, K+1]; for every batch, in order, before any is run."""
        ...

    def along(self, batch: Batch, drawn: np.ndarray | None) -> dict[str, np.ndarray]:
        """What it keeps of some windows, each [B, ...], under names of its own."""
        ...

    def rows(self, p: Paired, rng: np.random.Generator) -> Iterator[Row]:
        """Lines of the table, from what it kept of all (``Paired.kept``)."""
        ...


@dataclass
class Paired:
    """Windows of real episodes and their simulations, row k being horizon k = 0 .. K.

    ``seen``: the real observation exists; ``acted``: the transition after it does too.  ``error`` holds
    mean squared differences of the observation (of several fields ``EnvSpec.main_field``) from the real one,
    ``similarity`` its SSIM (empty where that is no image, or one smaller than its window): of ``simulated``, ``forced``
    (where the simulator can), ``copy``, ``mean``.
    """

    episode: np.ndarray  # int64 [B]
    seen: np.ndarray  # bool [B, K+1]
    acted: np.ndarray  # bool [B, K]
    error: dict[str, np.ndarray]  # float [B, K+1]
    similarity: dict[str, np.ndarray]  # float [B, K+1]
    images: bool  # whether the observations are images, in [0, 1]
    real: Side
    free: Side  # given the recorded actions
    forced: Side | None  # given the recorded frames too
    dreamed: Side  # given neither: the agent acts by itself, the world draws its own states
    by_itself: np.ndarray  # bool [B], the agent acted by itself in the record too: what dreams are compared with
    shown: np.ndarray  # int64 [S], a few windows kept to look at
    strip: dict[str, np.ndarray]  # their observations [S, K+1, ...]
    kept: dict[str, np.ndarray] = field(default_factory=dict)  # of every ``Rung``, [B, ...]

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
    simulator: Simulator[Any],
    store: Sequence[Episode] | RolloutStore,
    starts: np.ndarray,
    horizon: int,
    *,
    batch: int = 16,
    device: torch.device | None = None,
    seed: int = 0,
    start_from: Informed = "inferred",
    rungs: Sequence[Rung] = (),
    greedy: bool = False,
) -> Paired:
    """Simulate every window from its first I observations (``beginnings.begin``).  ``seed``: of the dreams' noise;
    ``greedy``: in dreams the agent takes its likeliest actions, as in the record.
    UserError where the simulator makes no numbers, and for recorded starts where the agent's state is not there."""
    device = torch.device("cpu") if device is None else device
    generator = torch.Generator(device).manual_seed(seed)
    spec, initial = simulator.world.spec, simulator.world.initial_frames
    fields, name, images = list(spec.obs), spec.main_field, spec.main_field in spec.pictures
    length = initial - 1 + horizon + 1
    episodes = {int(e): store.episode(int(e)) if isinstance(store, RolloutStore) else store[int(e)]
                for e in np.unique(starts[:, 0])}  # fmt: skip
    mean = np.mean([as_float(e.obs[name]).mean(0, dtype=np.float64) for e in episodes.values()], 0)
    display = _to_show(starts, [len(episodes[int(e)].h) for e in starts[:, 0]], length)
    sizes = [len(starts[i : i + batch]) for i in range(0, len(starts), batch)]
    # All that is drawn by chance is drawn here, in order, whichever process simulates a batch.
    noises = [_luck(simulator, size, horizon + 1, generator, greedy) for size in sizes]
    drawn = [[rung.draw((size, horizon + 1)) for rung in rungs] for size in sizes]

    def simulate(number: int) -> dict[str, Any]:
        first, noise = number * batch, noises[number]
        some = starts[first : first + batch]
        rows = [_window(episodes[int(e)], int(t), fields, initial, length, horizon) for e, t in some]
        w = {k: np.stack([row[k] for row in rows]) for k in rows[0]}
        obs = {k: torch.from_numpy(w[f"obs/{k}"]).to(device) for k in fields}
        action = torch.from_numpy(w["action"]).to(device)
        state, window = None, {k: x[:, :initial] for k, x in obs.items()}
        if start_from == "recorded":
            column = state_column_of(simulator.agent, episodes[int(some[0, 0])])
            now = [getattr(episodes[int(e)], column)[t + initial - 1] for e, t in some]
            state = unflatten(torch.from_numpy(np.stack(now)).to(device), simulator.agent.initial(1))
        beginning = begin(simulator, window, state)
        runs = {
            "free": rollout(simulator, beginning, horizon, actions=action),
            "dreamed": rollout(simulator, begin(simulator, window, state, noise[0].world), horizon, noise=noise),
        }
        if hasattr(simulator.world, "along"):
            runs["forced"] = teacher_forced(simulator, obs, action, torch.from_numpy(w["seen"]).to(device))
        for run in runs.values():
            require_finite(run)
        real = as_float(w[f"obs/{name}"][:, initial - 1 :])
        guesses = {
            "simulated": runs["free"].obs[name].cpu().numpy(),
            "copy": np.broadcast_to(real[:, :1], real.shape),
            "mean": np.broadcast_to(mean.astype(np.float32), real.shape),
        }
        if "forced" in runs:
            guesses["forced"] = runs["forced"].obs[name].cpu().numpy()
        part: dict[str, Any] = {"seen": w["seen"], "acted": w["acted"][:, :horizon]}
        part |= _compared(real, guesses, images, {"copy": real[:, :1], "mean": mean.astype(np.float32)})
        part |= {f"real/{k}": w[k][:, :horizon] if k in AHEAD else w[k] for k in Side._fields}
        for kind, run in runs.items():
            part |= {f"{kind}/{k}": x.cpu().numpy() for k, x in _simulated(run).items()}
        shown = [i - first for i in display if first <= i < first + len(some)]
        batch_of = Batch(obs, initial, action, w["seen"], state, beginning, runs["free"], real, guesses, images)
        for rung, chance in zip(rungs, drawn[number], strict=True):
            part |= {f"kept/{k}": v for k, v in rung.along(batch_of, chance).items()}
        looked_at = {"real": real, **guesses, "action": w["action"]}
        part["strip"] = {k: v[shown] for k, v in looked_at.items() if k not in ("copy", "mean")}
        return part

    parts: list[dict[str, Any]] = []
    with bar("simulating", len(starts), "windows") as progress:
        for part in ranks.each(range(len(sizes)), simulate, "lower --batch"):
            parts.append(part)
            progress.advance(len(part["seen"]))
    kinds = {k.partition("/")[0] for k in parts[0]} & {"real", "free", "forced", "dreamed"}
    by_itself = np.array([greedy or not explores(episodes[int(e)].meta) for e in starts[:, 0]])
    return _together(parts, starts, by_itself, display, sorted(kinds), images)


def _simulated(run: Trajectory) -> dict[str, Tensor]:
    """A ``Side``.  An ending without a reward has a chance where the world tells more than a mean reward."""
    told = bool((run.paid != 1).any())
    unpaid = run.terminal * (1 - run.paid[..., 1]) if told else torch.full_like(run.terminal, torch.nan)
    return {k: unpaid if k == "unpaid" else getattr(run, k) for k in Side._fields}


def _luck(simulator: Simulator[Any], size: int, steps: int, generator: torch.Generator, greedy: bool) -> list[Noise]:
    """The noise of the dreams' steps; greedy: none of the actions'."""
    noise = [simulator.draw_noise(size, generator) for _ in range(steps)]
    return [one._replace(action_BA=None) for one in noise] if greedy else noise


def _compared(
    real: np.ndarray, guesses: Mapping[str, np.ndarray], images: bool, still: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Squared errors [B, K] of guesses, and of ``images`` the structural similarity.  ``still``: those that do not
    move, as one frame."""
    over = tuple(range(2, real.ndim))
    out = {f"error/{k}": ((v - real) ** 2).mean(over, dtype=np.float64) for k, v in guesses.items()}
    if images and min(real.shape[2:4]) >= WINDOW:
        similar = ssim_to(real)
        out |= {f"similarity/{k}": similar(still.get(k, v)) for k, v in guesses.items()}
    return out


def _together(
    parts: Sequence[Mapping[str, Any]], starts: np.ndarray, by_itself: np.ndarray, display: np.ndarray,
    kinds: Sequence[str], images: bool,
) -> Paired:  # fmt: skip
    """The batches' windows, one after the other."""

    def group(prefix: str) -> dict[str, np.ndarray]:
        keys = [k for k in parts[0] if k.startswith(f"{prefix}/")]
        return {k.partition("/")[2]: np.concatenate([p[k] for p in parts]) for k in keys}

    sides: dict[str, Any] = {"forced": None, **{kind: Side(**group(kind)) for kind in kinds}}
    return Paired(
        episode=starts[:, 0],
        seen=np.concatenate([p["seen"] for p in parts]),
        acted=np.concatenate([p["acted"] for p in parts]),
        error=group("error"),
        similarity=group("similarity"),
        images=images,
        **sides,
        by_itself=by_itself,
        shown=display,
        strip={k: np.concatenate([p["strip"][k] for p in parts]) for k in parts[0]["strip"]},
        kept=group("kept"),
    )


def _to_show(starts: np.ndarray, rows: Sequence[int], length: int) -> np.ndarray:
    """A few windows, spread evenly over those that last to the horizon (all, if these are too few)."""
    whole = np.flatnonzero(np.array(rows) - starts[:, 1] >= length)
    among = whole if len(whole) >= STRIPS else np.arange(len(starts))
    return np.unique(among[np.linspace(0, len(among) - 1, STRIPS).astype(int)])


def _window(
    episode: Episode, t: int, fields: Sequence[str], initial: int, length: int, horizon: int
) -> dict[str, np.ndarray]:
    """One window: ``obs/FIELD`` from its first frame, everything else from its last initial one."""
    if episode.logits is None:
        raise UserError("these episodes were recorded without the agent's logits; record them again")
    now = t + initial - 1
    terminal = np.zeros(episode.steps, bool)
    terminal[-1:] = episode.terminated
    count = horizon + 1
    return {
        **{f"obs/{k}": pad(episode.obs[k], t, length) for k in fields},
        "h": pad(episode.h, now, count),
        "value": pad(episode.value, now, count),
        "action": pad(episode.action.astype(np.int64), now, count),
        "logits": pad(episode.logits, now, count),
        "reward": pad(episode.reward, now, count),
        "terminal": pad(terminal, now, count),
        "unpaid": pad(terminal & (episode.reward == 0), now, count),
        "seen": np.arange(now, now + count) < len(episode.h),
        "acted": np.arange(now, now + count) < episode.steps,
    }
