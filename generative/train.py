"""Train the simulator of an agent's world:
``python train_gen_model.py --agent runs/agent --rollouts runs/rollouts --out runs/simulator``."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.recurrent import load_agent
from core import artefacts, config as cli
from core.contracts import UserError
from core.directions import fingerprint
from core.episodes import RolloutStore, Window
from core.progress import bar
from core.training import Log, load_state, open_run, save_state
from generative.losses import Batch, LossConfig, loss_of
from generative.rssm import ModelConfig
from generative.simulator import Precision, RSSMSimulator, save_simulator

STAGE = "train_gen_model"
COLUMNS = ("obs/frames", "h", "action", "reward")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Knobs of the optimisation."""

    updates: int = 300_000
    """gradient steps in all"""
    batch: int = 8
    """windows a step"""
    steps: int = 32
    """L, simulated steps a window"""
    learning_rate: float = 5e-4
    """Adam's, at the start"""
    anneal: bool = True
    """lower the learning rate linearly to 0"""
    max_grad_norm: float = 100.0
    """clip of the gradient's norm"""
    bf16: bool = False
    """run the convolutions in bfloat16 in training"""


@dataclass(frozen=True, kw_only=True)
class GenTrainConfig:
    """Train a differentiable simulator around a frozen agent from its recorded rollouts."""

    agent: Path
    """run directory of the agent"""
    rollouts: Path
    """rollout store recorded with that agent"""
    out: Path = Path("runs/simulator")
    """run directory to write"""
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    validation_share: float = 0.05
    """share of the episodes kept from training"""
    validation_windows: int = 64
    """windows of them on which the simulator is validated"""
    validate_every: int = 500
    """updates between validations"""
    preload: bool = False
    """keep the frames decompressed in memory (12.3 kB a step)"""
    seed: int = 1
    """seed of weights, windows and noise"""
    save_minutes: float = 5.0
    """minutes between saves of the state that --resume goes on from"""
    resume: bool = False
    """go on from the training state in --out"""
    overwrite: bool = False
    """replace an earlier run in --out"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    track: bool = False
    """log to Weights & Biases too (needs the wandb package and an account)"""


def to_batch(window: Window, initial_frames: int, device: torch.device) -> Batch:
    """A store's window as the loss wants it: row I-1 of the window is simulated step 0."""
    at, before = initial_frames - 1, initial_frames - 2

    def tensor(x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(device)

    return Batch(
        frames=tensor(window["obs/frames"]),
        seen=tensor(window.seen[:, at:]),
        happened=tensor(window.acted[:, before:-1]),
        reward=tensor(window["reward"][:, before:-1]),
        terminal=tensor(window.terminated[:, before:-1].astype(np.float32)),
        action=tensor(window["action"][:, at:]),
        h=tensor(window["h"][:, at:]),
        h_before=tensor(window["h"][:, before]),
        action_before=tensor(window["action"][:, before]),
    )


def split_episodes(episodes: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """(training, validation) episode numbers; at least one each."""
    order = np.random.default_rng(seed).permutation(episodes)
    held = min(episodes - 1, max(1, round(share * episodes)))
    return sorted(order[held:].tolist()), sorted(order[:held].tolist())


@torch.no_grad()
def free_running_mse(simulator: RSSMSimulator, batch: Batch) -> Tensor:
    """Squared error [L] of modal rollouts from the initial frames with the recorded actions; NaN where no
    window reaches."""
    first = simulator.initial_frames
    z, _ = simulator.infer({simulator.agent.obs_name: batch.frames[:, :first]})
    out = simulator.rollout(z, batch.action.shape[1] - 1, actions=batch.action)
    target = batch.frames[:, first - 1 :].float() / 255
    error = ((out.obs[simulator.agent.obs_name] - target) ** 2).mean((-3, -2, -1))
    seen = batch.seen.float()
    return (error * seen).sum(0) / seen.sum(0)


def check(config: GenTrainConfig, store: RolloutStore, agent_name: str) -> None:
    """Refuse rollouts that this agent did not make, and windows that cannot be cut from them."""
    facts = store.manifest["facts"]
    if facts.get("source") != "real":
        raise UserError(f"{config.rollouts}: a simulator is trained on real rollouts (record.py)")
    if facts.get("agent") != agent_name:
        raise UserError(
            f"{config.rollouts} was recorded with agent {facts.get('agent')}, {config.agent} is agent {agent_name}"
        )
    if facts.get("interventions"):
        raise UserError(f"{config.rollouts} was recorded with interventions; a simulator needs the unaltered agent")
    if len(store) < 2:
        raise UserError(f"{config.rollouts} holds {len(store)} episode; at least 2 are needed (one to validate on)")
    cli.require(2, initial_frames=config.model.initial_frames, steps=config.optim.steps)
    cli.require(1, batch=config.optim.batch, updates=config.optim.updates, threads=config.threads,
            validate_every=config.validate_every, validation_windows=config.validation_windows)  # fmt: skip
    cli.require(0, seed=config.seed)
    if not 0 < config.validation_share < 1:
        raise UserError(f"--validation_share must lie between 0 and 1, not {config.validation_share}")


def main(config: GenTrainConfig) -> None:
    device = cli.device_of(config.device)
    agent = load_agent(config.agent, device)
    store = RolloutStore(config.rollouts)
    check(config, store, fingerprint(agent))
    torch.set_num_threads(config.threads)
    cli.seed_everything(config.seed)
    simulator = RSSMSimulator(config.model, agent).to(device)
    simulator.precision = Precision(config.optim.bf16)
    parameters = simulator.trainable()
    optimiser = torch.optim.Adam(parameters, lr=config.optim.learning_rate)
    generator = torch.Generator(device).manual_seed(config.seed)
    rng = np.random.default_rng(config.seed)
    train_episodes, held_out = split_episodes(len(store), config.validation_share, config.seed)
    length = config.model.initial_frames - 1 + config.optim.steps
    at_least = config.model.initial_frames + 1
    starts = store.window_starts(at_least, held_out)
    fixed = np.random.default_rng(config.seed)
    chosen = starts[fixed.choice(len(starts), min(len(starts), config.validation_windows), replace=False)]
    validation = to_batch(store.read_windows(COLUMNS, chosen, length), config.model.initial_frames, device)
    windows = store.windows(COLUMNS, length, config.optim.batch, rng, at_least=at_least, episodes=train_episodes)
    inputs = {"agent": config.agent, "rollouts": config.rollouts}
    made_from = {k: artefacts.sha256(v / artefacts.MANIFEST) for k, v in inputs.items()}
    run = open_run(config, STAGE, inputs, ("model", "seed", "validation_share", "validation_windows"))
    if config.preload:
        store.preload(*COLUMNS)
    state_file = run.path / "training_state" / "state.pt"
    step, wall_before, best = 0, 0.0, float("inf")
    sums: dict[str, float] = {}
    since = 0  # updates that ``sums`` holds
    if config.resume:
        state = load_state(state_file)
        if state["made_from"] != made_from:
            raise UserError(f"{config.out} was begun with another agent or other rollouts; start another run for these")
        simulator.load_state_dict(state["simulator"])
        optimiser.load_state_dict(state["optimiser"])
        generator.set_state(state["generator"])
        rng.bit_generator.state = state["numpy_rng"]
        step, wall_before, best = state["step"], state["wall_s"], state["best"]
        sums, since = state["sums"], state["since"]
    log = Log(run.path, config, config.track, keep=step if config.resume else None)
    began, saved = time.time(), time.time()

    def wall() -> float:
        return wall_before + time.time() - began

    def keep_state() -> None:
        log.save()
        save_state(
            state_file,
            simulator=simulator.state_dict(),
            optimiser=optimiser.state_dict(),
            generator=generator.get_state(),
            numpy_rng=rng.bit_generator.state,
            step=step,
            wall_s=wall(),
            best=best,
            sums=sums,
            since=since,
            made_from=made_from,
        )

    def validate() -> None:
        nonlocal best, sums, since
        simulator.eval()
        mse = free_running_mse(simulator, validation)
        simulator.train()
        score = float(mse.nanmean())
        values: dict[str, Any] = {f"train/{k}": v / max(1, since) for k, v in sums.items()}
        log.add(step, wall_s=wall(), **values, free_mse=score, free_mse_1=float(mse[1]), free_mse_last=float(mse[-1]))
        log.save()
        sums, since = {}, 0
        if score < best:
            best = score
            save_simulator(simulator, run.path)

    frames = config.optim.batch * config.optim.steps
    with bar("training", config.optim.updates, "updates") as progress:
        progress.advance(step)
        while step < config.optim.updates:
            left = 1 - step / config.optim.updates if config.optim.anneal else 1.0
            optimiser.param_groups[0]["lr"] = config.optim.learning_rate * left
            batch = to_batch(next(windows), config.model.initial_frames, device)
            loss, parts = loss_of(simulator, batch, config.loss, generator)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(parameters, config.optim.max_grad_norm)
            if not (torch.isfinite(loss) and torch.isfinite(norm)):
                log.save()
                kept = f"the best so far is in {run.path}" if best < float("inf") else "nothing was validated yet"
                raise UserError(
                    f"the loss is {loss.item()}, its gradient's norm {norm.item()}, at update {step}; {kept}"
                )
            optimiser.step()
            step, since = step + 1, since + 1
            for k, v in {**parts, "loss": loss.detach(), "grad_norm": norm}.items():
                sums[k] = sums.get(k, 0.0) + float(v)
            progress.advance()
            progress.note(f"{frames * step / wall():,.0f} frames/s")
            if step % config.validate_every == 0 or step == config.optim.updates:
                validate()
            if time.time() - saved > 60 * config.save_minutes:
                keep_state()
                saved = time.time()
    keep_state()
    if best == float("inf"):
        raise UserError(f"no validation was finite in {step} updates, so {run.path} holds no simulator")
    run.facts = {"agent": fingerprint(agent), "env": agent.spec.to_json()}
    run.record("parameters", sum(p.numel() for p in parameters), "count")
    run.record("updates", step, "gradient steps")
    run.record("training_wall", wall(), "s")
    run.record("free_running_mse", best, "squared pixel in [0, 1]", len(chosen))
    run.finish()
    print(f"trained {step:,} updates in {wall() / 60:.1f} min, free-running MSE {best:.5f}: {run.path}")
