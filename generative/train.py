"""Train the simulator of an agent's world:
``python train_gen_model.py --agent runs/agent --rollouts runs/rollouts --out runs/simulator``.

Under ``torchrun --nproc-per-node=N`` every process takes its part of every batch, and the gradients are
averaged: the same training, N times the arithmetic.  Only the first process writes.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python train_gen_model.py", file=sys.stderr)
    sys.exit(2)

import contextlib
import copy
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.branches import FOLDER as BRANCHES
from agents.load import load_agent
from core import artefacts, config as cli
from core.contracts import EnvSpec, UserError
from core.directions import fingerprint
from core.episodes import RolloutStore, Window, spread_over_episodes
from core.figures import as_bytes
from core.files import CannotWrite
from core.progress import bar, track
from core.ranks import Processes, from_torchrun
from core.roll import Simulator, Trajectory, roll, trajectory_of
from core.stats import Estimate, bootstrap_mean
from core.training import (
    Log,
    RunOptions,
    Schedule,
    Stop,
    fixed_in,
    going_on,
    learning_rate,
    load_state,
    open_together,
    require_same_sizes,
    restarted,
    save_state,
)
from core.trees import unflatten
from generative.context import ContextWorld, with_joint_outcome
from generative.context_loss import ContextLossConfig
from generative.courses import COURSES, Course
from generative.fields import ERROR_UNITS, as_read
from generative.load import load_simulator
from generative.losses import Batch, LossConfig
from generative.outcomes import Known, OutcomeConfig, known_along, learn_outcomes, windows_to_endings, with_endings
from generative.recurrent_world import Precision
from generative.rssm import ModelConfig
from generative.simulator import REWARD_UNIT, TrainedWorld, as_module, save_simulator, simulator_of
from generative.splits import HELD_OUT, held_out_of, split_episodes
from generative.starts import begin_at, informed_by

STAGE = "train_gen_model"
LAST = "last.safetensors"
RELATED = 0.5  # least cosine of weights of which a mean is taken: .96 where one went on from the other, 0 where not
SHOWN = 4  # windows in a reconstruction video
REWARDS = (0.1, 100.0)  # sizes of the largest reward, return, that are learned as they are
ROLLED = 32  # windows at once from which rewards and endings are learned
CHUNK = 256  # episodes whose vectors are in memory at once
STATE = (
    "simulator",
    "kept",
    "optimiser",
    "generator",
    "numpy_rng",
    "step",
    "wall_s",
    "best",
    "sums",
    "since",
)


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Settings of the optimisation."""

    updates: int = 300_000
    """gradient steps in all"""
    batch: int = 8
    """windows a step, those of all processes together"""
    steps: int = 32
    """L, simulated steps a window"""
    learning_rate: float = 5e-4
    """Adam's, at its highest"""
    warm_up: int = 0
    """updates over which the learning rate rises linearly"""
    schedule: Schedule = "cosine"
    """how the learning rate then falls to 0; constant: it does not"""
    average: float = 0.0
    """share of a running average of the weights that an update keeps; the average is what is validated and
    saved; 0: the weights themselves"""
    max_grad_norm: float = 100.0
    """clip of the gradient's norm"""
    bf16: bool = False
    """mixed precision: in training, run the convolutions in bfloat16 (faster on GPUs from Ampere and CPUs with AMX,
    many times slower on CPUs that have no arithmetic for it, where presets leave it off)"""


@dataclass(frozen=True, kw_only=True)
class GenTrainConfig(RunOptions):
    """Train a differentiable simulator around a frozen agent from its recorded rollouts."""

    agent: Path = Path("runs/agent")
    """run directory of the agent"""
    rollouts: Path = Path("runs/rollouts")
    """rollout store recorded with that agent"""
    out: Path = Path("runs/simulator")
    """run directory to write"""
    begin_with: tuple[Path, ...] = ()
    """run directory of a simulator of the same sizes whose weights the training begins with (fine-tuning); of several
    trainings that began with the same weights: the mean of theirs (Wortsman et al. 2022); none: random ones"""
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    context: ContextLossConfig = field(default_factory=ContextLossConfig)
    outcomes: OutcomeConfig = field(default_factory=OutcomeConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    branch_share: float = 0.0
    """share of the updates on branches, in which every action was tried (record.py --branches)"""
    validation_share: float = 0.05
    """share of the episodes kept from training"""
    validation_windows: int = 64
    """windows of them on which the simulator is validated"""
    validate_every: int = 500
    """updates between validations"""
    video_every: int = 4
    """validations between the reconstruction videos in TensorBoard; 0: none"""
    preload: bool = False
    """keep the frames decompressed in memory (12.3 kB a step)"""
    seed: int = 1
    """seed of weights, windows and noise"""
    threads: int = 2
    """CPU threads of a machine, shared by the processes that torchrun starts on it"""


def columns_of(store: RolloutStore) -> list[str]:
    """The columns of a recording that a simulator is trained on: every observation field, the agent's whole state where
    it is more than h, and what was done and paid."""
    state = ["state"] if "state" in store.column_names else []
    return [*(f"obs/{name}" for name in store.spec.obs), "h", *state, "action", "reward"]


def to_batch(window: Window, initial_frames: int, device: torch.device, reward_unit: float = 1.0) -> Batch:
    """A store's window as the loss wants it: row I-1 of the window is simulated step 0; rewards in ``reward_unit``."""
    at, before = initial_frames - 1, initial_frames - 2

    def tensor(x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(device)

    state = window["state" if "state" in window.columns else "h"]
    return Batch(
        obs={k.removeprefix("obs/"): tensor(x) for k, x in window.columns.items() if k.startswith("obs/")},
        seen=tensor(window.seen[:, at:]),
        happened=tensor(window.acted[:, before:-1]),
        reward=tensor(window["reward"][:, before:-1]) / reward_unit,
        terminal=tensor(window.terminated[:, before:-1].astype(np.float32)),
        action=tensor(window["action"][:, at:]),
        h=tensor(window["h"][:, at:]),
        state_before=tensor(state[:, before]),
        action_before=tensor(window["action"][:, before]),
    )


def statistics(store: RolloutStore, name: str, episodes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, float32 [n], of a vector column over all steps of some episodes."""
    column = f"obs/{name}"
    origin = store.pooled(column, episodes=episodes[:1])[0][column][0].astype(np.float64)
    count, total, squares = 0, np.zeros_like(origin), np.zeros_like(origin)
    for i in range(0, len(episodes), CHUNK):
        x = store.pooled(column, episodes=episodes[i : i + CHUNK])[0][column] - origin  # else squares would be rounded
        count, total, squares = count + len(x), total + x.sum(0), squares + (x**2).sum(0)
    mean = total / count
    return (origin + mean).astype(np.float32), np.sqrt(np.maximum(squares / count - mean**2, 0)).astype(np.float32)


def unit_of_rewards(store: RolloutStore, episodes: Sequence[int]) -> float:
    """The unit in which rewards are learned: 1, or where the largest of some episodes lies outside of REWARDS its size.
    The squared error of rewards of a million is all of the loss, and nothing else is learned; of a millionth, none of
    it."""
    parts = (episodes[i : i + CHUNK] for i in range(0, len(episodes), CHUNK))
    largest = max(float(np.abs(store.pooled("reward", episodes=part)[0]["reward"]).max(initial=0)) for part in parts)
    return 1.0 if largest == 0 or REWARDS[0] <= largest <= REWARDS[1] else largest


def let_run(simulator: Simulator[TrainedWorld], batch: Batch, actions: Tensor | None = None) -> Trajectory:
    """The simulator let go from the first observations of windows, for their length, as its kind starts from frames."""
    world, steps = simulator.world, batch.seen.shape[1] - 1
    window = {k: x[:, : world.initial_frames] for k, x in batch.obs.items()}
    if informed_by(world, None) == "inferred":
        return simulator.rollout(world.infer(window)[0], steps, actions=actions)
    memory = unflatten(batch.state_before, simulator.agent.initial(1))
    moments = roll(simulator.agent, world, begin_at(world, window), memory=memory, steps=steps, actions=actions)
    return trajectory_of(list(moments))


@torch.no_grad()
def free_running_errors(
    simulator: Simulator[TrainedWorld], batch: Batch
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Errors [B, L] of every field, in ``ERROR_UNITS``: of modal rollouts from the initial frames with the recorded
    actions, and of the last initial frame repeated, which is right at step 0.  Meaningless where ``batch.seen`` is
    false."""
    world = simulator.world
    out = let_run(simulator, batch, batch.action)
    target = as_shown(world, batch, world.initial_frames - 1)
    return world.errors(out.obs, target), world.errors({k: x[:, :1] for k, x in target.items()}, target)


def as_shown(world: TrainedWorld, batch: Batch, first: int) -> dict[str, Tensor]:
    """Observations from row ``first`` on as a simulator shows them: images float in [0, 1]."""
    later = {k: batch.obs[k][:, first:] for k in world.fields}
    return {
        k: as_read(field, later[k].flatten(0, 1), torch.float32).unflatten(0, later[k].shape[:2])
        for k, field in world.fields.items()
    }


def whole_error(world: TrainedWorld, errors: Mapping[str, Tensor], batch: Batch) -> Tensor:
    """One error [B, L] for all fields: that of the only one, or the mean of several.

    Beside others an image's is in units of its pixels' variance from frame to frame, so that every field's is about 1
    where nothing is known of it (a share of errors: less).
    """
    if len(errors) == 1:
        return next(iter(errors.values()))
    target = as_shown(world, batch, world.initial_frames - 1)
    scaled = []
    for k, error in errors.items():
        if world.fields[k].means == "image":
            variance = target[k][batch.seen].var(0, correction=0).mean()
            error = error / torch.where(variance > 0, variance, 1.0)
        scaled.append(error)
    return torch.stack(scaled).mean(0)


def error_unit(world: TrainedWorld) -> str:
    """The unit of ``whole_error``."""
    if len(world.fields) == 1:
        return ERROR_UNITS[next(iter(world.fields.values())).means]
    return "mean over fields (vectors: squared standard deviations or share wrong; images: squared error over variance)"


def mean_seen(error_BL: Tensor, batch: Batch) -> Tensor:
    """Mean over windows [L] of an error [B, L]; NaN where no window reaches."""
    seen = batch.seen.float()
    return (error_BL * seen).sum(0) / seen.sum(0)


def score_of(error_BL: Tensor, batch: Batch) -> float:
    """One number of an error [B, L]: its mean over all steps from 1 on (0 is the last frame that was given)."""
    return float(error_BL[:, 1:][batch.seen[:, 1:]].double().mean())


def against_held_frame(
    simulator: Simulator[TrainedWorld], batch: Batch, episode_B: np.ndarray, seed: int
) -> dict[str, Estimate]:
    """How the simulator's free-running frames compare with the last initial frame repeated.

    ``free_running_mse``, ``held_frame_mse`` and, as core.artefacts.LESS_THAN_HELD, the one less the other, over all
    steps from 1 on (as ``score_of``); the difference also at the first and the last of them (``..._1`` and so on).
    Intervals over the episodes that the windows are of; a simulator whose difference is not surely below 0 is not shown
    to be better than a held frame.
    """
    errors = (whole_error(simulator.world, x, batch) for x in free_running_errors(simulator, batch))
    error_BL, held_BL = (x.cpu().double().numpy() for x in errors)
    seen_BL, rng = batch.seen.cpu().numpy(), np.random.default_rng(seed)
    last = seen_BL.shape[1] - 1

    def mean(x_BL: np.ndarray, steps: slice) -> Estimate:
        on = seen_BL[:, steps]
        return bootstrap_mean(x_BL[:, steps][on], np.broadcast_to(episode_B[:, None], on.shape)[on], rng=rng)

    less = artefacts.LESS_THAN_HELD
    out = {"held_frame_mse": mean(held_BL, slice(1, None)), less: mean(error_BL - held_BL, slice(1, None))}
    for k in dict.fromkeys((1, last)):
        out[f"{less}_{k}"] = mean(error_BL - held_BL, slice(k, k + 1))
    out["free_running_mse"] = mean(error_BL, slice(1, None))
    return out


@torch.no_grad()
def reconstructions(simulator: Simulator[TrainedWorld], batch: Batch, seed: int) -> dict[str, np.ndarray]:
    """The four videos of a simulator's quality, uint8 [L, height, width, 3]; a column a window.  Of every image field
    there is (the names begin with it if there are several), so of a world of vectors none.

    ``true_true``: every true frame shown, true actions; ``simulated_true``: from the initial frames on its own,
    true actions; ``simulated_simulated``: the agent's own actions too; each below the true frames, which are
    black past an episode's end.  ``random``: from random latents.
    """
    world = simulator.world
    images = [k for k, field in world.fields.items() if field.means == "image"]
    if not images:
        return {}
    batch = batch.part(slice(SHOWN))
    count, steps = len(batch.seen), batch.seen.shape[1] - 1
    generator = torch.Generator(batch.seen.device).manual_seed(seed)
    random = torch.randn(count, world.latent_size, generator=generator, device=generator.device)
    random = world.normalise(random)
    true = as_shown(world, batch, world.initial_frames - 1)
    forced = [shown.obs for shown in world.along(batch.obs, batch.action, batch.seen)]
    shown: dict[str, Mapping[str, Tensor]] = {
        "true_true": {k: torch.stack([obs[k] for obs in forced], 1) for k in forced[0]},
        "simulated_true": let_run(simulator, batch, batch.action).obs,
        "simulated_simulated": let_run(simulator, batch).obs,
        "random": simulator.rollout(random, steps).obs,
    }

    def side_by_side(x: Tensor) -> np.ndarray:
        x = x if x.shape[-1] == 3 else x.mean(-1, keepdim=True).expand(*x.shape[:-1], 3)  # grey, of other channels
        return as_bytes(x.transpose(0, 1).transpose(1, 2).flatten(2, 3).float().cpu().numpy())

    out = {}
    for image in images:
        above = true[image] * batch.seen[..., None, None, None]
        for name, obs in shown.items():
            rows = obs[image] if name == "random" else torch.cat([above, obs[image]], 2)
            out[f"{image}/{name}" if len(images) > 1 else name] = side_by_side(rows)
    return out


def check(config: GenTrainConfig, store: RolloutStore, agent_name: str, agent_spec: EnvSpec) -> None:
    """Refuse rollouts that this agent did not make in its own world, and windows that cannot be cut from them."""
    facts = store.manifest["facts"]
    if facts.get("source") != "real":
        raise UserError(f"{config.rollouts}: a simulator is trained on real rollouts (record.py)")
    if facts.get("agent") != agent_name:
        raise UserError(
            f"{config.rollouts} was recorded with agent {facts.get('agent')}, {config.agent} is agent {agent_name}"
        )
    if not store.spec.same_world(agent_spec):
        raise UserError(
            f"{config.rollouts} is of another world ({store.spec.env_id}) than the agent's ({agent_spec.env_id}), "
            "or of another variant of it; record.py without changed options makes the right ones"
        )
    if facts.get("interventions"):
        raise UserError(f"{config.rollouts} was recorded with interventions; a simulator needs the unaltered agent")
    optim, initial = config.optim, config.model.initial_frames
    cli.require(2, initial_frames=initial, steps=optim.steps)
    cli.require(1, batch=optim.batch, updates=optim.updates, threads=config.threads,
            validate_every=config.validate_every, validation_windows=config.validation_windows)  # fmt: skip
    cli.require(0, seed=config.seed, warm_up=optim.warm_up, video_every=config.video_every,
                learning_rate=optim.learning_rate, save_minutes=config.save_minutes)  # fmt: skip
    cli.require_positive(max_grad_norm=optim.max_grad_norm)
    if not 0 <= config.branch_share < 1:
        raise UserError(f"--branch_share must be at least 0 and below 1, not {config.branch_share}")
    if config.branch_share and not facts.get("branches"):
        raise UserError(
            f"{config.rollouts} holds no branches, of which --branch_share {config.branch_share} is asked: record it "
            "with --branches 5000, or train with --branch_share 0"
        )
    if config.outcomes.outcome_windows:
        learned = config.outcomes
        if config.model.layout != "context":
            raise UserError(
                f"--outcome_windows {learned.outcome_windows} is of --layout context, not of {config.model.layout}: "
                "where a preset has it, say --outcome_windows 0"
            )
        cli.require(2, outcome_windows=learned.outcome_windows)
        cli.require(1, outcome_steps=learned.outcome_steps, outcome_passes=learned.outcome_passes)
        cli.require_positive(outcome_rate=learned.outcome_rate)
    cli.require(0, outcome_windows=config.outcomes.outcome_windows, outcome_endings=config.outcomes.outcome_endings)
    config.loss.check()
    config.context.check()
    if config.model.layout != "context" and (asked := config.context.asked()):
        raise UserError(f"--{asked[0]} is of --layout context, not of {config.model.layout}")
    if not 0 < config.validation_share < 1:
        raise UserError(f"--validation_share must lie between 0 and 1, not {config.validation_share}")
    if not 0 <= optim.average < 1:
        raise UserError(f"--average must be at least 0 and below 1, not {optim.average}")
    if len(long_enough(store, initial)) == 1:
        second = int(np.partition(store.rows, -2)[-2]) if len(store.rows) > 1 else 0
        fewer = f"lower --initial_frames to {second - 1} or " if second > 2 else ""
        raise UserError(
            f"{config.rollouts} holds 1 episode of at least {initial + 1} observations; at least 2 are needed (one to "
            f"validate on): {fewer}record longer episodes"
        )
    length, longest = initial - 1 + optim.steps, int(store.rows.max())
    if longest < length:  # so too where no episode has initial + 1
        most = longest - initial + 1
        lower = f"lower --steps to {most} or " if most >= 2 else ""
        raise UserError(
            f"{config.rollouts}: no episode fills a window of {length} observations (the longest has {longest}); "
            f"{lower}record longer episodes"
        )


def take_weights(simulator: Simulator[TrainedWorld], paths: Sequence[Path], model: ModelConfig) -> None:
    """Give a new simulator the world of a trained one, or the mean of several; UserError where one is of other sizes,
    shows something else, or reads vectors by other statistics."""
    want, found = simulator.world.state_dict(), list[dict[str, Tensor]]()
    read_by = [name for name, _ in simulator.world.named_buffers()]
    for path in paths:
        earlier = load_simulator(path)
        if not isinstance(earlier.world, TrainedWorld):
            raise UserError(f"{path} holds a world model of a user's own, not one that train_gen_model.py made")
        grown = replace(earlier.world.config, joint_outcome=model.joint_outcome or earlier.world.config.joint_outcome)
        require_same_sizes(path, model, grown, "a simulator")
        have = earlier.world.state_dict()
        if isinstance(simulator.world, ContextWorld) and model.joint_outcome and not earlier.world.config.joint_outcome:
            have |= with_joint_outcome(have, want)
        for name in (k for k in want if k not in have or have[k].shape != want[k].shape):
            raise UserError(f"{path} is of a world with other observations or actions, or of an agent with another "
                            f"state ({name} differs), so --begin_with cannot take its weights")  # fmt: skip
        for name in (k for k in read_by if found and not torch.equal(have[k], found[0][k])):
            raise UserError(f"{path} reads its world by other statistics than {paths[0]} ({name} differs), so "
                            "--begin_with cannot take the mean of their weights")  # fmt: skip
        unit = earlier.world.reward_unit
        if found and unit != simulator.world.reward_unit:
            raise UserError(f"{path} learned rewards in units of {unit:g}, {paths[0]} in units of "
                            f"{simulator.world.reward_unit:g}, so --begin_with cannot take the mean of their "
                            "weights")  # fmt: skip
        simulator.world.reward_unit = unit
        alike = _alike({k: (have[k], found[0][k]) for k in want if have[k].ndim > 1}) if found else 1.0
        if alike < RELATED:
            raise UserError(f"{path} and {paths[0]} were trained apart (cosine of their weights {alike:.2f}), so the "
                            "mean of their weights is no simulator; an ensemble is --simulator A B")  # fmt: skip
        found.append(have)
    mean = {k: torch.stack([have[k] for have in found]).mean(0) for k in want if k not in read_by}
    simulator.world.load_state_dict(found[0] | mean)


def _alike(pairs: Mapping[str, tuple[Tensor, Tensor]]) -> float:
    """Cosine of the matrices of two simulators (gains begin at 1 in all, and make strangers alike)."""
    one, other = (torch.cat([w.double().flatten() for w in of]) for of in zip(*pairs.values(), strict=True))
    return float(one @ other / (one.norm() * other.norm()))


def long_enough(store: RolloutStore, initial_frames: int) -> list[int]:
    """The episodes that a window can be cut from: one transition after the initial frames."""
    return [int(e) for e in np.flatnonzero(store.rows >= initial_frames + 1)]


def backward(
    simulator: Simulator[TrainedWorld],
    batch: Batch,
    draws: Any,
    course: Course,
    processes: Processes,
    scale: float = 1.0,
) -> dict[str, Tensor]:
    """Gradients of the loss, times ``scale``; the loss and its parts; all averaged over the processes."""
    parameters = list(simulator.world.parameters())
    for p in parameters:
        p.grad = None
    loss, parts = course.loss_of(simulator, batch, draws)
    (scale * loss).backward()  # type: ignore[no-untyped-call]
    named = {**parts, "loss": loss.detach()}
    values = processes.average(parameters, torch.stack([v.float() for v in named.values()]))
    return dict(zip(named, values, strict=True))


class Windows(NamedTuple):
    """What an update reads: ``batch`` windows of ``steps`` simulated steps of a store, from some of ``starts``."""

    store: RolloutStore
    starts: np.ndarray  # int64 [M, 2]
    batch: int
    steps: int


def branches_of(config: GenTrainConfig) -> Windows:
    """The branches of a recording, as windows that begin at a snapshot; as many steps an update as of rollouts.
    UserError where too little was recorded before a snapshot."""
    store, initial, optim = RolloutStore(config.rollouts, BRANCHES), config.model.initial_frames, config.optim
    facts = store.manifest["facts"]["branches"]
    if initial - 1 > facts["before"]:
        raise UserError(
            f"{config.rollouts}: branches begin {facts['before']} steps before their snapshot, so --initial_frames can "
            f"be {facts['before'] + 1} at most, not {initial}"
        )
    first = facts["before"] - initial + 1
    starts = np.stack([np.arange(len(store)), np.full(len(store), first)], 1)
    return Windows(store, starts, max(1, optim.batch * (optim.steps - 1) // facts["held"]), facts["held"] + 1)


class Trainer:
    """A training as it stands: what an update changes, what a validation shows, what is saved of both."""

    def __init__(
        self,
        config: GenTrainConfig,
        simulator: Simulator[TrainedWorld],
        store: RolloutStore,
        processes: Processes,
        run: artefacts.Run,
    ) -> None:
        optim = config.optim
        self.config, self.simulator, self.processes, self.run = config, simulator, processes, run
        self.course: Course = COURSES[config.model.layout](config.loss, config.context)
        self.parameters = list(simulator.world.parameters())
        self.device = self.parameters[0].device
        self.store, initial = store, config.model.initial_frames
        self.columns = columns_of(store)
        self.length = initial - 1 + optim.steps
        self.branches = branches_of(config) if config.branch_share else None
        usable = long_enough(store, initial)
        # What the weights were trained on before is not held out now.
        earlier = held_out_of(config.begin_with, store, lambda frames: long_enough(store, frames))
        own = artefacts.manifest_sha256(store.path)
        unseen = None if own not in earlier else [i for i, e in enumerate(usable) if e in set(earlier[own])]
        train, held_out = split_episodes(len(usable), config.validation_share, config.seed, unseen)
        self.never_trained = earlier | {own: [usable[i] for i in held_out]}
        for name, scale in simulator.world.scales.items():
            if scale is not None and not config.begin_with:
                scale.fit(*map(torch.from_numpy, statistics(store, name, [usable[i] for i in train])))
        if not config.begin_with:
            simulator.world.reward_unit = unit_of_rewards(store, [usable[i] for i in train])
        # What is validated and saved: the weights, or their running average; in full precision.
        self.kept = copy.deepcopy(simulator)
        self.kept.world.eval().requires_grad_(False).precision = Precision()
        self.optimiser = torch.optim.Adam(self.parameters, lr=optim.learning_rate, fused=True)
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.rng = np.random.default_rng(config.seed)
        # Windows begin where two steps are seen, those of two steps also at an episode's last transition alone.
        self.starts = store.window_starts(initial + 1, [usable[i] for i in train])
        self.any_starts = store.window_starts(initial, [usable[i] for i in train])
        starts = self.held_out_starts = store.window_starts(initial + 1, [usable[i] for i in held_out])
        fixed = np.random.default_rng(config.seed)
        chosen = starts[spread_over_episodes(np.arange(len(starts)), starts[:, 0], config.validation_windows, fixed)]
        self.validation = self.batch_at(store, chosen, self.length)
        self.validation_episode = chosen[:, 0]
        self.state_file = run.path / "training_state" / "state.pt"
        self.outcomes_file = self.state_file.with_name("outcomes.pt")  # the head before and after ``learn_outcomes``
        self.step, self.wall_before, self.best = 0, 0.0, float("inf")
        self.sums: dict[str, float] = {}
        self.since = 0  # updates that ``sums`` holds
        self.saved_step: int | None = None
        self.curve: list[dict[str, Any]] | None = None  # of a training that goes on
        if config.resume:
            self.restore()
        if processes.first:
            keep = self.step if config.resume else None
            self.log = Log(run.path, config, config.track, keep, self.curve)
        self.began = self.saved = time.monotonic()
        self.timed = self.timed_updates = self.waited = 0.0  # since the last validation: s, updates, s for data

    def restore(self) -> None:
        state = load_state(self.state_file, *STATE)
        made_from = self.run.inputs.made_from  # an earlier version's config.json does not say it
        if state.get("made_from", made_from) != made_from:
            raise UserError(f"{self.config.out} was begun with other inputs; start another run for these")
        unit = self.simulator.world.reward_unit
        if (was := state.get(REWARD_UNIT, 1.0)) != unit:  # an earlier version learned all rewards as they are
            raise UserError(f"{self.config.out} learned rewards in units of {was:g}, where this version learns them in "
                            f"units of {unit:g}; start another run")  # fmt: skip
        as_module(self.simulator).load_state_dict(state["simulator"])
        as_module(self.kept).load_state_dict(state["kept"] or state["simulator"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        self.rng.bit_generator.state = state["numpy_rng"]
        self.step, self.wall_before, self.best = state["step"], state["wall_s"], state["best"]
        self.sums, self.since, self.saved_step = state["sums"], state["since"], state["step"]
        self.curve = state.get("curve")

    def wall(self) -> float:
        """Seconds of training, those before a resumption included."""
        return self.wall_before + time.monotonic() - self.began

    def update(self) -> None:
        """One gradient step; UserError, before any weight changes, if it is not finite."""
        optim, began = self.config.optim, time.perf_counter()
        progress = self.step / optim.updates
        size, steps = self.course.windows(optim.batch, optim.steps, progress)
        source = Windows(self.store, self.any_starts if steps == 2 else self.starts, size, steps)
        if self.branches is not None and self.rng.random() < self.config.branch_share:
            source = self.branches
        starts = source.starts[self.rng.integers(len(source.starts), size=source.batch)]
        part = self.processes.part(source.batch)
        batch = self.batch_at(source.store, starts[part], self.config.model.initial_frames - 1 + source.steps)
        self.waited += time.perf_counter() - began
        # Every process draws for the whole batch, so that the result does not depend on how many they are.
        draws = self.course.draw(self.simulator.world, source.batch, source.steps, self.generator, progress).part(part)
        rate = learning_rate(self.step, optim.updates, optim.learning_rate, optim.warm_up, optim.schedule)
        self.optimiser.param_groups[0]["lr"] = rate
        scale = (optim.steps - 1) / (source.steps - 1)  # so that every transition weighs alike
        values = backward(self.simulator, batch, draws, self.course, self.processes, scale)
        grads = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        # The one wait for a GPU after the loss.
        told = dict(zip([*values, "grad_norm"], torch.stack([*values.values(), norm]).tolist(), strict=True))
        if not (math.isfinite(told["loss"]) and math.isfinite(told["grad_norm"])):
            self.stop(f"the loss is {told['loss']}, its gradient's norm {told['grad_norm']}, at update {self.step}")
        if told["grad_norm"] > optim.max_grad_norm:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, optim.max_grad_norm, norm)
        self.optimiser.step()
        self.step, self.since = self.step + 1, self.since + 1
        if optim.average:
            # The first weights are forgotten sooner than the average's own horizon.
            share = min(optim.average, self.step / (self.step + 9))
            with torch.no_grad():
                for average, p in zip(self.kept.world.parameters(), self.parameters, strict=True):
                    average.lerp_(p, 1 - share)
        for k, v in told.items():
            self.sums[k] = self.sums.get(k, 0.0) + v
        self.timed, self.timed_updates = self.timed + time.perf_counter() - began, self.timed_updates + 1

    def take_best(self) -> None:
        """Let ``kept`` be the best weights, not the last, as they were trained: the run directory has what
        ``learn_outcomes`` made of them where this training has been here before (and was killed, or goes on)."""
        artefacts.load_unsealed(as_module(self.kept), self.run)
        if not self.outcomes_file.exists():
            return
        head: torch.nn.Module = self.kept.world.outcome_head  # type: ignore[union-attr, assignment]
        known = load_state(self.outcomes_file, "before", "after")
        if all(torch.equal(x.cpu(), known["after"][k]) for k, x in head.state_dict().items()):
            head.load_state_dict(known["before"])
            save_simulator(self.kept, self.run.path, agent_run=self.config.agent)

    def learn_outcomes(self) -> None:
        """What the kept world foretells of rewards and endings, learned once more; what that costs before and after is
        recorded, on rollouts of the validation's episodes, a tenth as many."""
        config, world, rng = self.config.outcomes, self.kept.world, np.random.default_rng(self.config.seed)
        assert isinstance(world, ContextWorld)  # check
        initial = self.config.model.initial_frames
        length = initial + config.outcome_steps

        def along(starts: np.ndarray, count: int) -> tuple[Known, np.ndarray]:
            chosen = starts[rng.choice(len(starts), min(len(starts), count), replace=False)]
            parts = np.array_split(chosen, math.ceil(len(chosen) / ROLLED))
            read = (self.batch_at(self.store, x, length) for x in parts)
            told = known_along(world, track(read, "rewards and endings", len(parts)))
            return told, chosen[:, 0][told.window_N.cpu().numpy()]

        world.precision = Precision(self.config.optim.bf16)
        train, _ = along(self.starts, config.outcome_windows)
        if config.outcome_endings:  # else nothing is drawn for them, and all comes as it did without
            train = with_endings(train, self.endings(world, rng))
        held_out, episode = along(self.held_out_starts, max(1, config.outcome_windows // 10))
        world.precision = Precision()
        trained = copy.deepcopy(world.outcome_head.state_dict())
        before, after = learn_outcomes(world, train, held_out, config, self.config.context.positive_weight, rng)
        save_state(self.outcomes_file, before=trained, after=world.outcome_head.state_dict())
        for name, cost in (("before", before), ("after", after), ("change", after - before)):
            e = bootstrap_mean(cost, episode, rng=rng)
            self.run.record(f"outcome_cost_{name}", e.value, "nats a transition", e.n, e.interval)

    def endings(self, world: ContextWorld, rng: np.random.Generator) -> list[Known]:
        """Endings of episodes that are trained on, at the ends of rollouts of up to ``outcome_steps``."""
        config, initial = self.config.outcomes, self.config.model.initial_frames
        among = np.unique(self.starts[:, 0])
        among = among[self.store.terminated[among]]
        chosen = rng.permutation(among)[: config.outcome_endings]
        starts, ahead = windows_to_endings(self.store.steps, chosen, initial - 1, config.outcome_steps, rng)
        parts = [slice(i, i + ROLLED) for i in range(0, len(starts), ROLLED)]
        read = (self.batch_at(self.store, starts[part], initial + int(ahead[part].max())) for part in parts)
        return [known_along(world, [batch], endings_alone=True) for batch in track(read, "endings", len(parts))]

    def batch_at(self, store: RolloutStore, starts: np.ndarray, length: int) -> Batch:
        """Windows of ``length`` observations at starts int64 [N, 2] of a store."""
        window = store.read_windows(self.columns, starts, length)
        return to_batch(window, self.config.model.initial_frames, self.device, self.simulator.world.reward_unit)

    def stop(self, why: str) -> None:
        """Give up, saying what is left."""
        if self.processes.first:
            with contextlib.suppress(CannotWrite):  # the curve is in the state, too
                self.log.save()
        best = f"the best so far is in {self.run.path}" if self.best < float("inf") else "nothing was validated yet"
        state = (
            "no state was saved yet" if self.saved_step is None else f"--resume goes on from update {self.saved_step}"
        )
        raise UserError(f"{why}; {best}; {state}")

    def rate(self) -> float:
        """Frames per second of the updates since the last validation."""
        return self.config.optim.batch * self.config.optim.steps * self.timed_updates / max(self.timed, 1e-9)

    def sync(self) -> None:
        """Let ``kept`` be the weights as they are, where no average is kept."""
        if not self.config.optim.average:
            self.kept.world.load_state_dict(self.simulator.world.state_dict())

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        """The loss's parts, teacher-forced, over the validation windows; the same draws every time."""
        size, length = self.validation.seen.shape
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        draws = self.course.draw(self.kept.world, size, length, generator, 0.0)
        sums: dict[str, float] = {}
        for i in range(0, size, self.config.optim.batch):
            rows = slice(i, i + self.config.optim.batch)
            batch = self.validation.part(rows)
            loss, parts = self.course.loss_of(self.kept, batch, draws.part(rows))
            for k, v in {**parts, "loss": loss}.items():
                sums[k] = sums.get(k, 0.0) + float(v) * len(batch.action) / size
        return sums

    def validate(self) -> None:
        """A row of the curve; the best simulator is saved."""
        self.sync()
        errors, _ = free_running_errors(self.kept, self.validation)
        error = whole_error(self.kept.world, errors, self.validation)
        score, mse = score_of(error, self.validation), mean_seen(error, self.validation)
        apart = errors if len(errors) > 1 else {}
        self.log.add(
            self.step,
            wall_s=self.wall(),
            learning_rate=self.optimiser.param_groups[0]["lr"],
            frames_per_s=self.rate(),
            data_share=self.waited / max(self.timed, 1e-9),
            **{f"train/{k}": v / max(1, self.since) for k, v in self.sums.items()},
            **{f"valid/{k}": v for k, v in self.held_out().items()},
            free_mse=score,
            free_mse_1=float(mse[1]),
            free_mse_last=float(mse[-1]),
            **{f"free_error/{k}": score_of(x, self.validation) for k, x in apart.items()},
        )
        every = self.config.video_every * self.config.validate_every
        if every and (self.step % every == 0 or self.step == self.config.optim.updates):
            for name, frames in reconstructions(self.kept, self.validation, self.config.seed).items():
                self.log.add_video(self.step, f"reconstruction/{name}", frames)
        self.log.save()
        self.sums, self.since = {}, 0
        self.timed = self.timed_updates = self.waited = 0.0
        if score < self.best:
            self.best = score
            save_simulator(self.kept, self.run.path, agent_run=self.config.agent)

    def save(self) -> None:
        """What --resume goes on from, and the last weights; the earlier ones stay until these are whole."""
        self.sync()
        self.log.save()
        save_state(
            self.state_file,
            simulator=as_module(self.simulator).state_dict(),
            kept=as_module(self.kept).state_dict() if self.config.optim.average else {},
            optimiser=self.optimiser.state_dict(),
            generator=self.generator.get_state(),
            numpy_rng=self.rng.bit_generator.state,
            step=self.step,
            wall_s=self.wall(),
            best=self.best,
            sums=self.sums,
            since=self.since,
            curve=self.log.rows,
            **{REWARD_UNIT: self.simulator.world.reward_unit},
        )
        self.saved_step, self.saved = self.step, time.monotonic()
        save_simulator(self.kept, self.run.path, LAST, agent_run=self.config.agent)

    def train(self, stop: Stop) -> None:
        """To the last update, or to where ``stop`` is due; the state is saved."""
        updates = self.config.optim.updates
        with bar("training", updates, "updates", show=self.processes.first) as progress, stop:
            progress.advance(self.step)
            if self.step == 0 and self.config.begin_with and self.processes.first:
                self.validate()  # the weights begun with are kept unless the training betters them
            while self.step < updates:
                self.update()
                progress.advance()
                progress.note(f"{self.rate():,.0f} frames/s")
                last = self.step == updates or stop.due()
                if self.processes.first:
                    self.keep(last)
                if last:
                    break

    def keep(self, last: bool) -> None:
        """Validate and save if it is time, and at the last update."""
        try:
            if self.step % self.config.validate_every == 0 or self.step == self.config.optim.updates:
                self.validate()
            if last or time.monotonic() - self.saved > 60 * self.config.save_minutes:
                self.save()
        except CannotWrite as error:
            self.stop(f"cannot write to {self.run.path} at update {self.step} ({error})")


def main(config: GenTrainConfig) -> None:
    config, device = going_on(restarted(config), STAGE), cli.device_of(config.device)
    processes = from_torchrun(config.optim.batch)
    stop = Stop(config.stop_after, processes, device)
    begun_with = {f"begin_with_{n}" if n > 1 else "begin_with": path for n, path in enumerate(config.begin_with, 1)}
    inputs = artefacts.Inputs({"agent": config.agent, "rollouts": config.rollouts, **begun_with})
    agent = load_agent(config.agent, device)
    store = RolloutStore(config.rollouts)
    check(config, store, fingerprint(agent), agent.spec)
    torch.set_num_threads(processes.threads_of(config.threads))
    cli.seed_everything(config.seed)
    simulator = simulator_of(config.model, agent)
    if config.begin_with:
        take_weights(simulator, config.begin_with, config.model)
    simulator.world.to(device)
    simulator.world.precision = Precision(config.optim.bf16)
    run = open_together(config, STAGE, inputs, fixed_in(config), processes)
    if config.preload:
        store.preload(*columns_of(store))
    trainer = Trainer(config, simulator, store, processes, run)
    trainer.train(stop)
    if stop.reason:
        stop.say(config, f"{trainer.step:,} of {config.optim.updates:,} updates")
        return
    if not processes.first:
        return
    if trainer.best == float("inf"):
        raise UserError(f"no validation was finite in {trainer.step} updates, so {run.path} holds no simulator")
    trainer.take_best()
    if config.outcomes.outcome_windows:
        trainer.learn_outcomes()
    wall = trainer.wall()
    run.facts = {"agent": fingerprint(agent), "env": agent.spec.to_json(), HELD_OUT: trainer.never_trained}
    run.record("parameters", sum(p.numel() for p in trainer.parameters), "count")
    run.record("updates", trainer.step, "gradient steps")
    run.record("training_wall", wall, "s")
    unit = error_unit(trainer.kept.world)
    against = against_held_frame(trainer.kept, trainer.validation, trainer.validation_episode, config.seed)
    for name, e in against.items():
        run.record(name, e.value, unit, e.n, e.interval)
    if (said := artefacts.poor_simulator(run.metrics)) is not None:
        run.facts[artefacts.SIMULATOR_WARNING] = said
        print(f"warning: {said}", file=sys.stderr)
    if config.outcomes.outcome_windows:
        save_simulator(trainer.kept, run.path, agent_run=config.agent)  # late: a resumed run learns them again
    run.finish()
    print(
        f"trained {trainer.step:,} updates in {wall / 60:.1f} min, free-running MSE "
        f"{against['free_running_mse'].value:.5f} (last frame held: {against['held_frame_mse'].value:.5f}): {run.path}"
    )
