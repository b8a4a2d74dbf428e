"""Train an agent with recurrent PPO: ``python train.py --preset demo --out runs/agent``."""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python train.py", file=sys.stderr)
    sys.exit(2)

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from agents.consistency import ConsistencyOptions, consistent_loss_of
from agents.evaluate import HeldOut
from agents.load import load_agent
from agents.play import SharedEnv
from agents.ppo import PPOConfig, RewardScale, Rollout, encode, loss_of
from agents.progress import progress_rows, write_progress
from agents.recurrent import AgentConfig, RecurrentAgent, save_agent
from agents.semantic import Controller, SemanticAgent, SemanticOptions, save_semantic, semantic_loss_of
from agents.trainer import Trainer
from core import artefacts, config as cli
from core.contracts import EnvSpec, Step, UserError, VecEnv
from core.directions import fingerprint
from core.earlier import name_of, train_of, values_by_flag
from core.ranks import ALONE, Processes, from_torchrun
from core.training import FREE, RunOptions, Stop, fixed_in, going_on, open_together, require_same_sizes, restarted
from core.trees import Tree, detached, each, on, rows_of
from envs.procgen import ProcgenEnv, ProcgenOptions

STAGE = "train"
TRAININGS = ("nmmo", "craftax", "gymnasium")  # beside Procgen's, which has no word


@dataclass(frozen=True, kw_only=True)
class AgentTraining(RunOptions):
    """What every training of a recurrent PPO agent is told, whatever its world."""

    out: Path = Path("runs/agent")
    """run directory to write"""
    begin_with: Path | None = None
    """run directory of an agent of the same sizes whose weights the training begins with (fine-tuning, in this world or
    in another with the same observations and actions); none: random ones"""
    net: AgentConfig = field(default_factory=AgentConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    seed: int = 1
    """seed of weights, environments, minibatches and augmentations"""
    checkpoints: int = 10
    """evenly spaced checkpoints kept (checkpoint_STEPS.safetensors)"""
    evaluate_every: int = 0
    """steps between measurements of the return on held-out starts, always the same, for the curve; 0: none"""
    evaluate_episodes: int = 64
    """whole episodes that such a measurement plays"""
    threads: int = 1
    """CPU threads for torch"""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(AgentTraining):
    """Train a recurrent PPO agent on a Procgen game and save it as a run directory (Neural MMO: train.py nmmo; Craftax:
    train.py craftax; Gymnasium, or a world of your own: train.py gymnasium)."""

    policy: Literal["plain", "semantic"] = "plain"
    """semantic: the policy clusters its own states while it learns (docs/semantics.md); plain: the same without"""
    env: ProcgenOptions = field(default_factory=ProcgenOptions)
    drac: ConsistencyOptions = field(default_factory=ConsistencyOptions)
    semantic: SemanticOptions = field(default_factory=SemanticOptions)
    threads: int = 2
    """CPU threads for torch and for the environments"""


class Collector:
    """Steps the environments with the agent and keeps what goes on between rollouts."""

    def __init__(
        self,
        agent: RecurrentAgent,
        env: VecEnv,
        ppo: PPOConfig,
        seed: int,
        device: torch.device,
        controller: Controller | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """env: with a slot for each of ppo.envs, or for those of this process (``SharedEnv``)."""
        self.agent, self.env, self.config, self.device = agent, env, ppo, device
        self.controller = controller  # is told of every rollout
        self.processes, self.mine = processes, processes.part(ppo.envs)
        self.seed, self.current = seed, env.reset(seed)
        self.memory: Tree = detached(agent.initial(self.mine.stop - self.mine.start))
        self.scale = RewardScale(ppo.gamma, np.zeros(ppo.envs), np.ones(ppo.envs))
        self.score = np.zeros(ppo.envs)
        self.length = np.zeros(ppo.envs, np.int64)
        self.returns: deque[float] = deque(maxlen=100)
        self.lengths: deque[int] = deque(maxlen=100)

    def _obs(self, step: Step) -> dict[str, torch.Tensor]:
        return {k: torch.from_numpy(v).to(self.device) for k, v in step.obs.items()}

    @torch.no_grad()
    def collect(self) -> Rollout:
        rows: dict[str, list[Any]] = {k: [] for k in ("obs", "is_first", "action", "logp", "value", "reward", "done")}
        state_first = self.memory
        for _ in range(self.config.rollout_steps):
            obs = self._obs(self.current)
            is_first = torch.from_numpy(self.current.is_first).to(self.device)
            seen = encode(self.agent, obs, self.config.bf16)
            self.memory = self.agent.advance(seen, self.memory, is_first)
            logits, value = self.agent.heads(seen, self.memory)
            policy = [
                torch.distributions.Categorical(logits=x, validate_args=False)
                for x in logits.split(list(self.env.spec.parts), -1)
            ]
            drawn = [self._sample(part) for part in policy]
            action = torch.stack(drawn, -1) if self.env.spec.action_parts else drawn[0]
            step = self.env.step(action.cpu().numpy())
            done = step.terminated | step.truncated
            rewards_B, done_B = self.processes.columns(step.reward, done)
            reward = torch.from_numpy(self.scale(rewards_B, done_B)[self.mine]).to(self.device)
            if step.final_obs is not None and step.truncated.any():
                # A time limit is not the end of the world: bootstrap from the last observation.  (Procgen
                # never shows it, so there a time-out is learnt as an ending.)
                last = self._obs(Step(step.final_obs, step.reward, done, done, done))
                cut = torch.from_numpy(step.truncated & ~step.terminated).to(self.device)
                seen = encode(self.agent, last, self.config.bf16)
                _, after = self.agent.heads(seen, self.agent.advance(seen, self.memory, torch.zeros_like(cut)))
                reward = reward + self.config.gamma * after * cut
            for k, v in (("obs", obs), ("is_first", is_first), ("action", action), ("value", value)):
                rows[k].append(v)
            rows["logp"].append(torch.stack([p.log_prob(a) for p, a in zip(policy, drawn, strict=True)]).sum(0))
            rows["reward"].append(reward)
            rows["done"].append(torch.from_numpy(done).to(self.device))
            self._count(step, rewards_B, done_B)
            self.current = step
        is_first = torch.from_numpy(self.current.is_first).to(self.device)
        seen = encode(self.agent, self._obs(self.current), self.config.bf16)
        _, next_value = self.agent.heads(seen, self.agent.advance(seen, self.memory, is_first))
        if self.controller is not None:
            self.controller.collected(self.returns)
        whole = self.processes.joined
        obs_T = {k: whole(torch.stack([o[k] for o in rows["obs"]]), 1) for k in rows["obs"][0]}
        stacked = {k: whole(torch.stack(v), 1) for k, v in rows.items() if k != "obs"}
        return Rollout(obs=obs_T, state_first=each(whole, state_first), next_value=whole(next_value), **stacked)

    def _sample(self, policy: torch.distributions.Categorical) -> torch.Tensor:
        """One part of the actions of this process's slots.  Every process draws for all of them, as one does
        (torch.multinomial)."""
        if self.processes.count == 1:
            return policy.sample()
        likely = policy.probs
        draws = torch.empty(self.config.envs, likely.shape[1], device=likely.device).exponential_()
        return (likely / draws[self.mine]).argmax(-1)

    def _count(self, step: Step, reward: np.ndarray, done: np.ndarray) -> None:
        self.score += reward
        self.length += 1
        for b in np.flatnonzero(done):
            self.returns.append(float(self.score[b]))
            self.lengths.append(int(self.length[b]))
        self.score[done] = 0
        self.length[done] = 0

    @property
    def collected(self) -> int:
        """Steps of a rollout."""
        return self.config.envs * self.config.rollout_steps

    def means(self) -> dict[str, float]:
        """Of the last episodes that ended, at most 100, and how many they are: early on they are the short ones."""
        episodes = {"return_episodes": float(len(self.returns))}
        if not self.returns:
            return {"return_mean": np.nan, "length_mean": np.nan, **episodes}
        return {"return_mean": float(np.mean(self.returns)), "length_mean": float(np.mean(self.lengths)), **episodes}

    def state(self) -> dict[str, Any]:
        """Everything but the agent, as tensors and numbers."""
        numbers = {k: float(getattr(self.scale, k)) for k in ("mean", "var", "count")}
        arrays = {
            "returns_B": self.scale.returns_B,
            "discount_B": self.scale.discount_B,
            "score": self.score,
            "length": self.length,
        }
        controller = {} if self.controller is None else {k: getattr(self.controller, k) for k in ("updates", "weight")}
        return {
            "controller": controller,
            "snapshots": self._snapshots(),
            "h_BH": each(self.processes.joined, self.memory),
            "scale": numbers,
            "arrays": {k: torch.from_numpy(v.copy()) for k, v in arrays.items()},
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }

    def _snapshots(self) -> list[torch.Tensor]:
        """Of all slots of all processes."""
        own = [torch.frombuffer(bytearray(s), dtype=torch.uint8) for s in self.env.snapshot()]
        return [s for some in self.processes.listed(own) for s in some]

    def _shown_again(self, snapshots: list[torch.Tensor], step: int) -> Step:
        """What the worlds show where a training of so many steps goes on."""
        return self.env.restore([s.numpy().tobytes() for s in snapshots[self.mine]])

    def restore(self, state: dict[str, Any], step: int) -> None:
        self.current = self._shown_again(state["snapshots"], step)
        self.memory = on(rows_of(state["h_BH"], self.mine), self.device)
        arrays = {k: v.numpy() for k, v in state["arrays"].items()}
        self.scale = RewardScale(self.config.gamma, arrays["returns_B"], arrays["discount_B"], **state["scale"])
        self.score, self.length = arrays["score"], arrays["length"]
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        if self.controller is not None:
            self.controller.updates = state["controller"]["updates"]
            self.controller.weight = state["controller"]["weight"]


def check_minibatches(net: AgentConfig, ppo: PPOConfig, processes: Processes = ALONE) -> None:
    """UserError unless minibatches can be drawn as they are asked for."""
    steps = ppo.envs * ppo.rollout_steps
    each_has = (ppo.envs if ppo.minibatch_of == "environments" else steps) // ppo.minibatches
    if each_has % processes.count:
        raise UserError(
            f"a minibatch has {each_has} {ppo.minibatch_of}, which {processes.count} processes cannot share equally; "
            "choose more --envs or fewer --minibatches"
        )
    if ppo.minibatch_of == "environments" and ppo.envs % ppo.minibatches:
        raise UserError(f"--minibatches {ppo.minibatches} does not divide --envs {ppo.envs}")
    if ppo.minibatch_of == "steps" and net.recurrence in ("gru", "ema"):
        raise UserError("--minibatch_of steps is for agents without a memory: say --recurrence none, or features")
    if ppo.minibatch_of == "steps" and steps % ppo.minibatches:
        raise UserError(f"--minibatches {ppo.minibatches} does not divide --envs x --rollout_steps, {steps}")
    if steps == ppo.minibatches:
        raise UserError("a minibatch has one step alone, and no spread to standardise its advantage by; choose fewer "
                        "--minibatches, or more --envs or --rollout_steps")  # fmt: skip


class Semantic(NamedTuple):
    """A training whose policy clusters its own states."""

    options: SemanticOptions
    controller: Controller


def semantic_of(config: TrainConfig) -> Semantic | None:
    """What --policy asks for; UserError where it does not fit the rest."""
    if config.policy == "plain":
        return None
    if config.drac.consistency:
        raise UserError("--policy semantic and --consistency have a loss each; choose one of them")
    config.semantic.check(config.net, config.ppo)
    game, mode = config.env.game, config.env.distribution_mode
    return Semantic(config.semantic, Controller.of(config.semantic, game, mode))


def agent_of(net: AgentConfig, spec: EnvSpec, semantic: Semantic | None) -> RecurrentAgent:
    """A new agent."""
    return RecurrentAgent(net, spec) if semantic is None else SemanticAgent(net, spec, semantic.options)


def take_weights(agent: RecurrentAgent, path: Path) -> None:
    """Give a new agent the weights of a trained one; UserError where that is another kind of agent, of other sizes, or
    of a world with other observations or actions."""
    earlier = load_agent(path)
    if type(earlier) is not type(agent):
        raise UserError(f"{path} holds an agent of another kind; --begin_with takes one that this command trained")
    require_same_sizes(path, agent.config, earlier.config, "an agent")
    if any(getattr(earlier.spec, what) != getattr(agent.spec, what) for what in ("obs", "action_names", "parts")):
        raise UserError(f"{path} plays {earlier.spec.env_id}, whose observations or actions are not those of "
                        f"{agent.spec.env_id}, so --begin_with cannot take its weights")  # fmt: skip
    have, want = ({k: v.shape for k, v in a.state_dict().items()} for a in (earlier, agent))
    if other_sizes := [k for k in {**want, **have} if have.get(k) != want.get(k)]:
        raise UserError(f"{path}: {other_sizes[0]} is of another size than here, so --begin_with cannot take its "
                        "weights")  # fmt: skip
    agent.load_state_dict(earlier.state_dict())


def loss_for(drac: ConsistencyOptions, rng: np.random.Generator, semantic: Semantic | None) -> Callable[..., Any]:
    """The loss of this kind of training."""
    if semantic is not None:
        return semantic_loss_of(*semantic)
    return consistent_loss_of(drac, rng) if drac.consistency else loss_of


def held_out_of(config: AgentTraining, agent: RecurrentAgent, device: torch.device) -> HeldOut | None:
    """What --evaluate_every asks for."""
    if not config.evaluate_every:
        return None
    return HeldOut(agent, config.evaluate_episodes, seed=config.seed, device=device, threads=config.threads)


def main(config: TrainConfig) -> None:
    semantic = semantic_of(config)
    free = FREE if semantic is not None else (*FREE, "semantic")  # which says nothing of a plain policy

    def make(slots: int) -> VecEnv:
        return ProcgenEnv(config.env, slots, config.threads)

    train_agent(config, STAGE, make, config.drac, semantic=semantic, free=free)


def train_agent(
    config: AgentTraining,
    stage: str,
    make: Callable[[int], VecEnv],
    drac: ConsistencyOptions,
    collector_of: Callable[..., Collector] = Collector,
    semantic: Semantic | None = None,
    free: Sequence[str] = FREE,
) -> None:
    """Train an agent in the world that ``make`` gives, with so many slots, and save it as a run directory.

    free: the settings that a resumed training may change.
    """
    config = going_on(restarted(config), stage)
    device, ppo = cli.device_of(config.device), config.ppo
    processes = from_torchrun(ppo.envs, "--envs")
    stop = Stop(config.stop_after, processes)
    ppo.check()
    cli.require(0, seed=config.seed, evaluate_every=config.evaluate_every, save_minutes=config.save_minutes)
    cli.require(1, evaluate_episodes=config.evaluate_episodes, checkpoints=config.checkpoints)
    check_minibatches(config.net, ppo, processes)
    torch.set_num_threads(config.threads)
    cli.seed_everything(config.seed)
    rng = np.random.default_rng(config.seed)
    env: VecEnv = make(ppo.envs) if processes.count == 1 else SharedEnv(make, ppo.envs, processes)
    agent = agent_of(config.net, env.spec, semantic).to(device)
    drac.check(agent)
    held_out = held_out_of(config, agent, device)
    inputs = artefacts.Inputs({"begin_with": config.begin_with})
    if config.begin_with is not None:
        take_weights(agent, config.begin_with)
    run = open_together(config, stage, inputs, fixed_in(config, free), processes)
    controller = None if semantic is None else semantic.controller
    collector = collector_of(agent, env, ppo, config.seed, device, controller, processes)
    updates = max(1, ppo.total_steps // collector.collected)
    total = updates * collector.collected
    weights = () if semantic is None else (semantic.options.fdr_weight, semantic.options.vq_weight)
    trainer = Trainer(
        config, agent, collector, loss_for(drac, rng, semantic), run, rng, device, total=total,
        spacing=max(1, updates // max(1, config.checkpoints)) * collector.collected,
        note=lambda means: f"return {means['return_mean']:.2f}",
        learned=lambda rollout: agent.take_in(rollout.obs),
        beside=lambda rows: write_progress(run.path, progress_rows(rows, ppo, *weights)),
        held_out=held_out, every=config.evaluate_every, processes=processes,
    )  # fmt: skip
    stopped = trainer.train(stop)
    env.close()
    if held_out is not None:
        held_out.env.close()
    if stopped or not processes.first:
        return
    if isinstance(agent, SemanticAgent):
        save_semantic(agent, run.path)
    else:
        save_agent(agent, run.path)
    run.facts = {"agent": fingerprint(agent)}
    run.record("parameters", artefacts.parameter_count(agent), "count")
    run.record("steps", trainer.step, "environment steps")
    run.record("training_wall", trainer.wall(), "s")
    run.record("training_return", float(np.mean(collector.returns or [np.nan])), "return", len(collector.returns))
    run.finish()
    print(f"trained {trainer.step:,} steps in {trainer.wall() / 60:.1f} min: {run.path}")


def late_word(argv: Sequence[str]) -> str:
    """The name of a training that does not come first and is no flag's value; '' where there is none."""
    switches = {"debug", *(flag[2:] for flag in cli.switches(TrainConfig))}
    for before, word in pairwise(argv):
        takes = before.startswith("-") and "=" not in before and name_of(before).removeprefix("no_") not in switches
        if word in TRAININGS and not takes:
            return word
    return ""


def training_of_config(argv: Sequence[str]) -> str:
    """The training whose run's configuration is given by --config; '' where it is Procgen's, or none that can be read
    (which is said where it is taken)."""
    for path in values_by_flag(argv).get("config", []):
        with contextlib.suppress(UserError):
            saved = cli.read_json(Path(path))
            stage = saved.get("stage") if isinstance(saved, dict) else None
            return next((kind for kind in TRAININGS if stage == f"train_{kind}"), "")
    return ""


def choose(argv: list[str]) -> None:
    """``nmmo ...`` trains (or films) policies of Neural MMO, agents/nmmo_train.py; ``craftax ...`` an agent in Craftax,
    agents/craftax_train.py; ``gymnasium ...`` one in a world of Gymnasium or of a user's, agents/gymnasium_train.py;
    anything else a Procgen agent, unless it has flags that only one of the others has.

    --debug is a run of debug size in each, whatever other presets say."""
    kind = argv[0] if argv and not argv[0].startswith("-") else ""
    if kind not in ("", *TRAININGS):
        print(f"error: no training {kind!r}{cli.nearest(kind, TRAININGS)}: say train.py nmmo, craftax or gymnasium, "
              "or of Procgen train.py --game NAME", file=sys.stderr)  # fmt: skip
        sys.exit(2)
    if not kind and (late := late_word(argv)):
        print(f"error: {late!r} comes first: train.py {late}, and then its flags", file=sys.stderr)
        sys.exit(2)
    rest = argv[1:] if kind else argv
    if not kind and (kind := train_of(argv) or training_of_config(argv)):
        print(f"note: read as python train.py {kind} {' '.join(argv)}", file=sys.stderr)
    elif not kind and "no_track" in map(name_of, argv):
        print("note: this trains on Procgen; Neural MMO is python train.py nmmo", file=sys.stderr)
    trainings: dict[str, Callable[[], tuple[type, Any, str]]] = {
        "": lambda: (TrainConfig, main, STAGE), "nmmo": _nmmo, "craftax": _craftax, "gymnasium": _gymnasium,
    }  # fmt: skip
    config, begin, stage = trainings[kind]()
    cli.run(config, begin, stage, rest, small_debug=True, shared=True)


def _nmmo() -> tuple[type, Any, str]:
    from agents import nmmo_train

    return nmmo_train.NmmoTrainConfig, nmmo_train.main, nmmo_train.STAGE


def _craftax() -> tuple[type, Any, str]:
    from agents import craftax_train

    return craftax_train.CraftaxTrainConfig, craftax_train.main, craftax_train.STAGE


def _gymnasium() -> tuple[type, Any, str]:
    from agents import gymnasium_train

    return gymnasium_train.GymnasiumTrainConfig, gymnasium_train.main, gymnasium_train.STAGE
