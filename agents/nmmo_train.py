"""Train a policy of Neural MMO with PPO, or film policies: ``python train.py nmmo -a hybrid --out runs/policies/a``."""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python train.py nmmo", file=sys.stderr)
    sys.exit(2)

import json
import lzma
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor

from agents.nmmo_evaluate import lives
from agents.nmmo_play import load_policies, play, policies_in
from agents.play import tensors
from agents.policies import (
    PolicyAgent,
    PolicyModule,
    RewardWrapper,
    entropies,
    load_module,
    log_probs,
    sample,
    save_policy,
)
from agents.ppo import PARTS, PPOConfig, RewardScale, Rollout, encode, objective
from agents.trainer import Trainer
from core import artefacts, config as cli, ranks
from core.contracts import Step, UserError
from core.directions import fingerprint
from core.ranks import ALONE, Processes, from_torchrun
from core.replay import Replay, page
from core.roll import Acted, act
from core.stats import bootstrap_mean
from core.training import (
    STATE,
    RunOptions,
    Stop,
    fixed_in,
    going_on,
    held_out_columns,
    load_state,
    open_together,
    restarted,
    rng_states,
    set_rng_states,
)
from core.trees import detached, each, joined, on, rows_of, with_rows
from envs.nmmo import FEATURES, HELD_OUT_MAPS, MAPS, NmmoEnv, NmmoOptions, features, held_out, options_of
from envs.nmmo_tasks import tasks_of

STAGE = "train_nmmo"
TOLD = ("ate", "drank", "progress")  # truth that is counted
REPLAY = "replay_nmmo"


def _alias(letter: str) -> Any:
    return tyro.conf.arg(aliases=[letter])


@dataclass(frozen=True, kw_only=True)
class NmmoTrainConfig(RunOptions):
    """Train a policy of Neural MMO (all agents of all worlds are one policy), or film trained ones."""

    mode: Annotated[Literal["train", "replay"], _alias("-m")] = "train"
    """train; or replay: play one world and write NAME.replay.lzma (nmmo's own viewer) and replay.html (any browser)"""
    architecture: Annotated[str, _alias("-a")] = "start_kit"
    """start_kit, yaofeng, takeru, hybrid, or the path of a module with Policy, Recurrent and RewardWrapper"""
    policies: Annotated[Path | None, _alias("-p")] = None
    """replay: a policy's run directory, or a directory of several, which then share the world"""
    out: Path | None = None
    """run directory to write; none: runs/policies/NAME of the architecture (replay: runs/replay_nmmo)"""
    env: NmmoOptions = field(default_factory=NmmoOptions)
    maps: Path = MAPS
    """where the generated maps lie (generated on first use)"""
    size: int = 256
    """width of the policy: size of the decoder's input, and of the recurrent core"""
    ppo: PPOConfig = field(
        default_factory=lambda: PPOConfig(
            total_steps=10_000_000,
            envs=8,
            rollout_steps=64,
            epochs=2,
            minibatches=8,
            learning_rate=3e-4,
            gamma=0.99,
            anneal_entropy=True,
        )
    )
    """envs: worlds side by side; total_steps: live agents' steps"""
    syllabus: bool = False
    """draw tasks by a Syllabus curriculum (learning progress); needs the syllabus-rl package"""
    seed: int = 1
    """seed of weights, worlds and minibatches"""
    checkpoints: int = 10
    """evenly spaced checkpoints kept (checkpoint_STEPS.safetensors)"""
    evaluate_every: int = 0
    """live agents' steps between measurements of how long lives on the held-out maps are, in worlds that are always the
    same, for the curve; 0: none"""
    evaluate_episodes: int = 8
    """whole worlds that such a measurement plays"""
    resume: bool = False
    """go on from the training state in --out (worlds begin anew: nmmo cannot restore them)"""
    threads: int = 2
    """CPU threads"""


def loss_of(
    agent: PolicyAgent,
    r: Rollout,
    advantage: Tensor,
    columns: Tensor,
    config: PPOConfig,
    entropy_coef: float,
    processes: Processes = ALONE,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's loss on this process's share of the slots ``columns`` (int64): only steps that were lived count, and only
    they are encoded.  The mean over the processes, whose shares were not lived equally long, is the minibatch's."""
    assert r.alive is not None
    among = advantage[:, columns][r.alive[:, columns]]
    if len(among) < 2:  # all of these agents were dead: nothing to learn, and no spread to normalise advantages by
        return torch.stack([p.sum() for p in agent.parameters()]).sum() * 0, {}
    mine = processes.share(columns)
    steps, count = r.reward.shape[0], len(mine)
    lived = r.alive[:, mine].flatten().nonzero()[:, 0]
    if not len(lived):  # those of this share
        nothing = among.new_zeros(())
        return nothing.clone().requires_grad_(), dict.fromkeys(PARTS, nothing)
    obs = {k: v[:, mine].flatten(0, 1)[lived] for k, v in r.obs.items()}
    seen = encode(agent, obs, config.bf16)
    e = seen[0]
    e_TBE = e.new_zeros(steps * count, e.shape[1]).index_copy(0, lived, e).unflatten(0, (steps, count))
    state, states = rows_of(r.state_first, mine), []
    for e_BE, is_first_B in zip(e_TBE.unbind(0), r.is_first[:, mine], strict=True):
        state = agent.advance((e_BE, ()), state, is_first_B)  # all that a policy's recurrence looks at is e
        states.append(state)
    logits, value = agent.heads(seen, rows_of(joined(states), lived))

    def of(x: Tensor) -> Tensor:
        return x[:, mine].flatten(0, 1)[lived]

    logp = log_probs(logits, of(r.action), agent.spec).sum(1)
    entropy = entropies(logits, agent.spec).sum(1).mean()
    loss, parts = objective(logp, of(r.logp), of(advantage), among, value, of(r.value), entropy, config, entropy_coef)
    weight = processes.count * len(lived) / len(among)
    return loss * weight, {k: v * weight for k, v in parts.items()}


class Collector:
    """Steps the worlds with the policy and keeps what goes on between rollouts.  Of several processes each has its own
    worlds, and counts and learns from those of all."""

    def __init__(
        self,
        agent: PolicyAgent,
        env: NmmoEnv,
        reward: Any,
        config: NmmoTrainConfig,
        device: torch.device,
        processes: Processes = ALONE,
    ) -> None:
        """env: with all worlds, or those of this process."""
        self.agent, self.env, self.reward, self.config, self.device = agent, env, reward, config.ppo, device
        self.seed, self.processes = config.seed, processes
        self.memory = on(detached(agent.initial(env.spec.slots)), device)
        slots = env.spec.slots * processes.count
        self.mine = processes.part(slots)
        self._begin(env.reset(config.seed))
        self.scale = RewardScale(config.ppo.gamma, np.zeros(slots), np.ones(slots))
        self.tally = {k: np.zeros(slots) for k in ("length", "ate", "drank")}
        self.lives: deque[dict[str, float]] = deque(maxlen=256)
        self.collected = 0  # steps of live agents in the last rollout

    def _begin(self, step: Step) -> None:
        self.current = step
        (self.alive,) = self.processes.columns(_alive(step))

    def _act(self, obs: dict[str, Tensor], step: Step) -> tuple[Tensor, Acted]:
        """The slots whose agent is there (int64 [R]), and what these make of it; the others are not looked at."""
        rows = torch.from_numpy(np.flatnonzero(_alive(step))).to(self.device)
        is_first = torch.from_numpy(step.is_first).to(self.device)[rows]
        t = torch.zeros_like(rows)  # nothing asks for the age of a life: there are no interventions
        return rows, act(self.agent, {k: v[rows] for k, v in obs.items()}, rows_of(self.memory, rows), is_first, t)

    @torch.no_grad()
    def collect(self) -> Rollout:
        self.collected = 0
        rows: dict[str, list[Tensor]] = {}
        kept_obs: list[dict[str, Tensor]] = []
        state_first = self.memory
        parts = len(self.env.spec.action_parts)
        for _ in range(self.config.rollout_steps):
            step, slots = self.current, self.env.spec.slots
            obs = tensors(step, self.device)
            there, acted = self._act(obs, step)
            self.memory = with_rows(self.memory, there, acted.state)
            among = int(self.alive[: self.mine.start].sum()), int(self.alive.sum())
            chosen = sample(acted.logits_BA, self.env.spec, among=among)
            logp = torch.zeros(slots, device=self.device)
            value, action = torch.zeros_like(logp), torch.zeros(slots, parts, dtype=torch.int64, device=self.device)
            logp[there] = log_probs(acted.logits_BA, chosen, self.env.spec).sum(1)
            value[there], action[there] = acted.value_B, chosen
            after = self.env.step(action.cpu().numpy())
            done = after.terminated | after.truncated
            assert after.final_truth is not None
            reward_B, done_B, alive_B, *told = self.processes.columns(
                np.where(_alive(step), self.reward(step, after), 0), done, _alive(after),
                *(after.final_truth[name] for name in TOLD),
            )  # fmt: skip
            reward = self.scale(reward_B, done_B)[self.mine]
            kept_obs.append(obs)
            for name, array in (
                ("is_first", step.is_first), ("alive", _alive(step)), ("reward", reward), ("done", done),
            ):  # fmt: skip
                rows.setdefault(name, []).append(torch.from_numpy(array).to(self.device))
            for name, tensor in (("action", action), ("value", value), ("logp", logp)):
                rows.setdefault(name, []).append(tensor)
            self._count(done_B, dict(zip(TOLD, told, strict=True)))
            self.current, self.alive = after, alive_B
        there, acted = self._act(tensors(self.current, self.device), self.current)
        next_value = torch.zeros(self.env.spec.slots, device=self.device)
        next_value[there] = acted.value_B
        whole = self.processes.joined
        obs_T = {k: whole(torch.stack([o[k] for o in kept_obs]), 1) for k in kept_obs[0]}
        stacked = {k: whole(torch.stack(v), 1) for k, v in rows.items()}
        return Rollout(obs=obs_T, state_first=each(whole, state_first), next_value=whole(next_value), **stacked)

    def _count(self, done: np.ndarray, truth: dict[str, np.ndarray]) -> None:
        """What a step was in the slots of all processes that were ``alive``: whose life ended, and TOLD."""
        self.collected += int(self.alive.sum())
        self.tally["length"] += self.alive
        for name in ("ate", "drank"):
            self.tally[name] += np.where(self.alive, truth[name], 0)
        for b in np.flatnonzero(done):
            life = {k: float(v[b]) for k, v in self.tally.items()}
            self.lives.append({**life, "progress": float(truth["progress"][b])})
        for counts in self.tally.values():
            counts[done] = 0

    def means(self) -> dict[str, float]:
        """Of the last lives that ended."""
        names = ("length", "ate", "drank", "progress")
        return {f"{k}_mean": float(np.mean([life[k] for life in self.lives])) if self.lives else np.nan for k in names}

    def state(self) -> dict[str, Any]:
        """What --resume goes on from: other lives than those already learnt from."""
        return {"scale": [float(v) for v in (self.scale.mean, self.scale.var, self.scale.count)]}

    def restore(self, state: dict[str, Any], step: int) -> None:
        self.scale.mean, self.scale.var, self.scale.count = state["scale"]
        self._begin(self.env.reset(self.seed + step))


class HeldOut:
    """Measures how long the lives of a learning policy are on maps that no training sees: in the same worlds, with the
    same noise of actions, every time.  The training's own random numbers stay as they are."""

    SIDE_BY_SIDE = 8  # worlds

    def __init__(self, agent: PolicyAgent, config: NmmoTrainConfig, device: torch.device) -> None:
        options = replace(config.env, **held_out(agent.spec.options))
        self.agent, self.worlds, self.seed, self.device = agent, config.evaluate_episodes, config.seed, device
        self.env = NmmoEnv(options, min(self.SIDE_BY_SIDE, self.worlds), config.maps)

    def __call__(self) -> dict[str, float]:
        """Columns of a curve: mean length of a life in ticks, its 95 % interval over worlds where it has one, and the
        number of worlds."""
        before = rng_states(self.device)
        players = np.zeros(self.env.spec.slots, np.int64)
        lived = lives([self.agent], players, self.env, self.worlds, seed=self.seed, device=self.device, show=False)
        set_rng_states(before, self.device)
        length, world = (np.array([life[key] for life in lived]) for key in ("length", "world"))
        mean = bootstrap_mean(length.astype(np.float64), world, rng=np.random.default_rng(self.seed))
        return held_out_columns("held_out_length", mean)


def reward_of(module: PolicyModule) -> RewardWrapper:
    """The module's reward; UserError if it cannot be made."""
    try:
        return module.reward()
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"policy module {module.name!r}: RewardWrapper() does not work: {what}") from error


def check_reward(module: PolicyModule, reward: RewardWrapper, step: Step) -> None:
    """UserError unless the reward between two steps is a number a slot."""
    try:
        shape = np.asarray(reward(step, step), np.float32).shape
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"policy module {module.name!r}: its reward does not work: {what}") from error
    if shape != step.reward.shape:
        raise UserError(f"policy module {module.name!r}: its reward has shape {shape}, it must be {step.reward.shape}")


def _alive(step: Step) -> np.ndarray:
    assert step.alive is not None  # NmmoEnv always says
    return step.alive


def check(config: NmmoTrainConfig, processes: Processes = ALONE) -> None:
    """UserError for settings that do not go together."""
    ppo = config.ppo
    if config.policies is not None:
        raise UserError("-p (--policies) belongs to -m replay; a training starts anew, or goes on with --resume")
    ppo.check()
    cli.require(1, size=config.size, evaluate_episodes=config.evaluate_episodes, checkpoints=config.checkpoints)
    cli.require(0, evaluate_every=config.evaluate_every, save_minutes=config.save_minutes)
    if ppo.minibatch_of == "steps":
        raise UserError("--minibatch_of steps is for Procgen's agents without a memory")
    slots = ppo.envs * config.env.players
    if slots % ppo.minibatches:
        raise UserError(f"--minibatches {ppo.minibatches} does not divide the {slots} agents")
    if slots // ppo.minibatches % processes.count:
        raise UserError(f"a minibatch has {slots // ppo.minibatches} agents, which {processes.count} processes cannot "
                        "share equally; choose fewer --minibatches")  # fmt: skip
    if config.syllabus and processes.count > 1:
        raise UserError("--syllabus draws its tasks in one process: start it with python, not with torchrun")
    if config.env.first_map + config.env.num_maps - 1 > config.env.map_pool - HELD_OUT_MAPS:
        most = config.env.map_pool - HELD_OUT_MAPS
        raise UserError(f"training on the held-out maps: --num_maps may reach {most} at most")


def main(config: NmmoTrainConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(0, seed=config.seed)
    ppo = config.ppo
    if config.mode == "replay":
        if ranks.count() > 1:
            raise UserError("-m replay is the work of one process: start it with python, not with torchrun")
        film(config, device)
        return
    processes = from_torchrun(ppo.envs, "--envs")
    check(config, processes)
    stop = Stop(config.stop_after, processes)
    cli.seed_everything(config.seed)
    rng = np.random.default_rng(config.seed)
    module = load_module(config.architecture)
    config = going_on(restarted(replace(config, out=config.out or Path("runs/policies") / module.name)), STAGE)
    assert config.out is not None
    curriculum = _Syllabus(config) if config.syllabus else None
    worlds = processes.part(ppo.envs)
    env = NmmoEnv(
        config.env, worlds.stop - worlds.start, config.maps, first_world=worlds.start,
        draw_tasks=None if curriculum is None else curriculum.draw,
    )  # fmt: skip
    spec = replace(env.spec, slots=env.spec.slots * processes.count)
    agent = PolicyAgent(module, spec, config.size).to(device)
    collector = Collector(agent, env, reward_of(module), config, device, processes)
    check_reward(module, collector.reward, collector.current)
    if config.resume and (config.out / STATE).exists():
        state = load_state(config.out / STATE, "collector")
        if state.get("source_sha256", module.sha256) != module.sha256:
            raise UserError(f"--resume: {config.architecture} was changed since; start another run for that")
    measured = HeldOut(agent, config, device) if config.evaluate_every else None
    run = open_together(config, STAGE, artefacts.Inputs(), fixed_in(config), processes)
    trainer = Trainer(
        config, agent, collector, loss_of, run, rng, device, total=ppo.total_steps,
        spacing=max(1, ppo.total_steps // max(1, config.checkpoints)),
        note=lambda means: f"life {means['length_mean']:.0f} ticks", more={"source_sha256": module.sha256},
        held_out=measured, every=config.evaluate_every, processes=processes,
    )  # fmt: skip
    stopped = trainer.train(stop)
    env.close()
    if measured is not None:
        measured.env.close()
    if stopped or not processes.first:
        return
    save_policy(agent, run.path)
    described = agent.describe()
    run.facts = {"agent": fingerprint(agent), "architecture": config.architecture, **described}
    run.record("parameters", artefacts.parameter_count(agent), "count")
    run.record("steps", trainer.step, "live agents' steps")
    run.record("training_wall", trainer.wall(), "s")
    for name, value in collector.means().items():
        run.record(f"training_{name}", value, "a life", len(collector.lives))
    run.finish()
    print(
        f"trained {trainer.step:,} steps in {trainer.wall() / 60:.1f} min; recurrence: {described['recurrence']}: "
        f"{run.path}"
    )


class _Syllabus:
    """Tasks by Syllabus' learning-progress curriculum (Sullivan et al. 2024, arXiv:2411.11318), which asks this object
    how well each task goes now: the mean progress of the lives since it last asked."""

    LIVES = 512  # between two questions

    def __init__(self, config: NmmoTrainConfig) -> None:
        try:
            from syllabus.curricula import LearningProgress
            from syllabus.task_space import DiscreteTaskSpace
        except ImportError as error:
            raise UserError(
                f"--syllabus needs the packages syllabus-rl and ray ({error}): pip install syllabus-rl ray"
            ) from None
        count = len(tasks_of(config.env.horizon, config.env.systems))
        self.rng = np.random.default_rng(config.seed)
        self.total, self.lives, self.rate = np.zeros(count), np.zeros(count), np.zeros(count)
        self.curriculum = LearningProgress(
            self, DiscreteTaskSpace(count), eval_interval=self.LIVES, continuous_progress=True
        )

    def evaluate_agent(self, episodes: int, verbose: bool = False) -> tuple[None, Tensor, Tensor, None]:
        """(nothing, success rates, mean progress, nothing), as Syllabus' evaluators answer; a task nobody had keeps its
        last rate."""
        self.rate = np.where(self.lives > 0, self.total / np.maximum(self.lives, 1), self.rate)
        self.total[:] = self.lives[:] = 0
        return None, torch.from_numpy(self.rate), torch.from_numpy(self.rate), None

    def draw(self, agents: int, last_task: np.ndarray, last_progress: np.ndarray) -> np.ndarray:
        """Tasks int64 [agents] of a new world, after telling how the last one's went."""
        for task, progress in zip(last_task.tolist(), last_progress.tolist(), strict=True):
            self.total[task] += progress
            self.lives[task] += 1
            self.curriculum.update_on_episode(0.0, 0, task, progress)
        # Not its sample(): in 0.7 that compares an array with a list, which numpy has refused since 1.25.
        return self.rng.choice(len(self.rate), agents, p=self.curriculum._sample_distribution())


def film(config: NmmoTrainConfig, device: torch.device) -> None:
    """One world on a held-out map, from its beginning until nobody is left or the time is up."""
    if config.policies is None:
        raise UserError("-m replay needs -p: a policy's run directory, or a directory of several")
    inputs = artefacts.Inputs(policies_in(config.policies))
    policies = load_policies(inputs, device)
    spec = next(iter(policies.values())).spec
    options = replace(options_of(spec), **held_out(spec.options))  # type: ignore[arg-type]
    env = NmmoEnv(options, 1, config.maps)
    player_B = np.arange(options.players) % len(policies)
    if options.players < len(policies):
        raise UserError(f"{len(policies)} policies do not fit into a world of {options.players} agents")
    out = config.out or Path("runs/replay_nmmo")
    with artefacts.new_run(out, REPLAY, config, inputs, overwrite=config.overwrite) as run:
        own: dict[str, list[np.ndarray]] = {"row": [], "col": [], "features": []}
        env.film(0)
        for tick in play(list(policies.values()), player_B, env, seed=config.seed, device=device):
            alive = _alive(tick.step)
            position = np.where(alive[:, None], tick.step.truth["position"], -1).astype(np.int16)
            own["row"].append(position[:, 0])
            own["col"].append(position[:, 1])
            own["features"].append(features(tick.step.obs, tick.step.truth, tick.action_BP, env.spec))
            if tick.next.is_first.any():
                break
        stacked = {k: np.stack(v) for k, v in own.items()}
        map_id = int(tick.step.truth["map"][0])
        ticks = len(stacked["row"])
        names = list(policies)
        labels = {"policy": np.tile(player_B, (ticks, 1))} if len(names) > 1 else {}
        said = json.dumps({"map": env.tape.map, "packets": env.tape.packets}, default=_plain).encode()
        packed = lzma.compress(said, format=lzma.FORMAT_ALONE)
        artefacts.write_atomically(run.path / f"{'_'.join(names)}.replay.lzma", packed)
        replay = Replay(
            map_RC=env.materials(map_id),
            row_TA=stacked["row"],
            col_TA=stacked["col"],
            agent_A=np.arange(1, options.players + 1),
            tick_T=np.arange(ticks),
            values={name: stacked["features"][..., i] for i, name in enumerate(FEATURES)},
            labels=labels,
            label_names={"policy": dict(enumerate(names))} if labels else {},
            title=f"{', '.join(names)} on map {map_id}",
        )
        artefacts.write_atomically(run.path / "replay.html", page(replay).encode())
        run.record("ticks", ticks, "ticks")
        run.facts = {"map": map_id, "policies": names}
    env.close()
    print(f"{ticks} ticks of {options.players} agents on map {map_id}: {out}/replay.html")


def _plain(value: Any) -> Any:
    """numpy numbers and arrays as JSON knows them."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} in a replay")
