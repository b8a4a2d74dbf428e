"""Record real rollouts: ``python record.py --agent runs/agent --out runs/rollouts``.

Where a world has many agents (Neural MMO), an episode is one agent's life, and lives of a world are not independent: a
life's ``meta`` says which playing of which world it was part of.
"""

from __future__ import annotations

if not __package__:  # run by its path, where the imports below fail
    import sys

    print("error: a part of a package; type: python record.py", file=sys.stderr)
    sys.exit(2)

import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from agents.branches import FOLDER, LEAD, STEPS, record_branches, require_branches
from agents.evaluate import check_unseen, mean_of_episodes, require_ends
from agents.load import load_agent
from agents.play import Begin, Chooser, Exploration, Moment, SharedEnv, play
from agents.recording_state import STATE, Saves, check_whole, forget, keeps_states, made_of, saved_in, telling
from agents.running import Columns, Running
from agents.shared_recording import Ended, SharedWriter, rounds
from core import artefacts, config as cli, files
from core.artefacts import WEIGHTS
from core.config import nearest
from core.contracts import Agent, EnvSpec, Intervention, Step, UserError, VecEnv
from core.directions import fingerprint
from core.episodes import Episode, RolloutStore, StoreWriter, episode_of, without_cut
from core.interventions import InterventionOptions, OnRows, build, far_facts, nothing_altered
from core.progress import bar
from core.ranks import ALONE, Processes, from_torchrun
from core.stats import Estimate, between
from core.training import going_on
from core.trees import Tree, each, flatten, leaves
from core.words import counted
from envs.nmmo import FEATURES, MAPS, NmmoEnv, labels, life_of
from envs.procgen import HELD_OUT
from envs.procgen_truth import WithTruth, parse_truth
from envs.registry import agents_a_world, classes_of, held_out_facts, make

STAGE = "record"
LIVES = {"shard_steps": 4096, "chunk_steps": 512, "level": 6}  # most of what an agent of many sees is as it was before


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """Record whole episodes of an agent in its world, or a number of steps, into a rollout store.

    Also by the names that its earlier users know: --data_save_dir (--out), --run_dir (--agent), --num_envs (--slots).
    """

    agent: Path = Path("runs/agent")
    """run directory of the agent"""
    out: Path = Path("runs/rollouts")
    """run directory to write (also --data_save_dir)"""
    episodes: int = 256
    """whole episodes (of many agents: lives); every slot gives the same number, so that short ones are not favoured"""
    num_steps: int | None = None
    """steps of every slot, in place of whole episodes: an episode that is not over then is cut, says so (truncated, and
    cut in its meta) and has no last observation"""
    ckpt: str = "last"
    """weights of the agent: last, those it ended its training with, or a checkpoint by its number of steps"""
    all_ckpts: bool = False
    """one recording for each checkpoint and the last weights, in OUT/checkpoint_STEPS"""
    points: tuple[str, ...] = ()
    """vectors of the agent recorded beside h, as columns points/NAME: embedding, block_0 (the first of its recurrent
    layers) and so on; all: every one, of several layers the last too (which is h)"""
    npz: bool = False
    """also write OUT.npz: every column of all steps, one episode below the other, and index (episode, step)"""
    slots: int = 64
    """environments side by side; of a world of many agents these, rounded up to whole worlds"""
    split: Literal["train", "held_out"] = "train"
    """train: the starts (levels, maps, seeds) of the agent's training; held_out: others"""
    maps: Path = MAPS
    """Neural MMO: where the generated maps lie (generated on first use)"""
    start_level: int | None = None
    """first level of the pool; none: that of --split"""
    num_levels: int | None = None
    """size of the level pool; none: that of --split"""
    truth: tuple[str, ...] | None = None
    """Procgen: labels read off the game's state into columns truth/NAME (docs/truth.md): all, positions, or one of
    these and every N (steps), as in "all every 4"; none: only the level"""
    branches: int = 0
    """snapshots along the agent's way from each of which every action is tried and held for 4 steps, beside the
    episodes (of worlds that take snapshots): they teach a simulator what an action causes"""
    exploration: Exploration = field(default_factory=Exploration)
    intervention: InterventionOptions = field(default_factory=InterventionOptions)
    who: Literal["one", "all"] = "one"
    """agents that an intervention alters where a world has many: one a world, drawn by --seed, or all"""
    seed: int = 0
    """seed of levels and of the action noise"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    shard_steps: int | None = None
    """steps after which a shard (a file of whole episodes) is written; none: 16,384, of a world of many agents 4,096"""
    resume: bool = False
    """go on, by the command that began it, with a recording in --out that was interrupted: from its last saved state,
    which follows every shard (where the episodes that run together are longer than one, every few)"""
    overwrite: bool = False
    """replace an earlier recording in --out"""

    @property
    def overruled(self) -> dict[str, str]:
        """Settings that do not count here, and why."""
        return {} if self.num_steps is None else {"episodes": f"--num_steps {self.num_steps} is in its place"}


def place_of(spec: EnvSpec, split: str, maps: Path) -> dict[str, Any]:
    """The world's options that say where it is played, beside its levels."""
    return {"split": split} | ({"maps": maps} if spec.env_id == "nmmo" else {})


def who_is_altered(spec: EnvSpec, who: str, seed: int) -> np.ndarray:
    """bool [slots]: all, or one agent of every world."""
    agents = agents_a_world(spec)
    one_W = np.random.default_rng(seed).integers(agents, size=spec.slots // agents)
    out: np.ndarray = (one_W[:, None] == np.arange(agents)).ravel()
    return out if who == "one" else np.ones_like(out)


def level_options(start_level: int | None, num_levels: int | None) -> dict[str, Any]:
    """The world's options that a stage overrides to choose its levels."""
    chosen = {"start_level": start_level, "num_levels": num_levels}
    return {k: v for k, v in chosen.items() if v is not None}


def record_episodes(
    agent: Agent,
    env: VecEnv,
    episodes: int,
    *,
    seed: int,
    device: torch.device,
    exploration: Exploration | None = None,
    intervene: Sequence[Intervention] = (),
    steps: int | None = None,
    points: Sequence[str] = (),
) -> Iterator[Episode]:
    """``ceil(episodes / slots)`` whole episodes from every slot, in the order they end; meta ``world``, where a world
    has many agents, numbers its playings.  points: columns of ``points_of``.

    steps: so many of every slot in place of whole episodes; then the episodes that are not over come last, cut.

    What is kept until then is the rows of the running episodes and the last few steps of all slots.
    """
    recorder = Recorder(
        agent, env, episodes, slice(0, env.spec.slots), seed=seed, device=device, exploration=exploration,
        intervene=intervene, steps=steps, points=points,
    )  # fmt: skip
    return itertools.chain.from_iterable(recorder)


class Recorder:
    """Plays the slots ``mine``, which are those of ``env``, and gives what ends at every step; ``state`` is all that it
    goes on from after a step."""

    def __init__(
        self, agent: Agent, env: VecEnv, episodes: int, mine: slice, *, seed: int, device: torch.device,
        exploration: Exploration | None = None, intervene: Sequence[Intervention] = (), steps: int | None = None,
        points: Sequence[str] = (), saved: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """saved: a ``state``, of a recorder with the same arguments."""
        slots = env.spec.slots
        self.agent, self.env, self.points, self.intervene = agent, env, points, intervene
        self.seed, self.device, self.steps, self.first = seed, device, steps, mine.start
        rng = np.random.default_rng(seed)
        self.chooser = Chooser(exploration or Exploration(), slots, rng, agent.spec.parts, mine)
        self.quota = -(-episodes // slots)
        self.quota_B = np.full(slots, self.quota if steps is None else steps)[mine]
        self.running = Running(len(self.quota_B))
        self.t = 0  # steps played
        self._more: bool | None = None  # the agent's state is more than h, and recorded too
        self._at: tuple[Tree, np.ndarray] | None = None  # the agent's state at the last step, and the episodes' ages
        self._begin: Begin | None = None
        if saved is not None:
            self._restore(saved)

    @property
    def over(self) -> bool:
        """Whether there is nothing left to record."""
        return not self.quota_B.any() or self.t == self.steps

    @property
    def held(self) -> int:
        """Steps of the running episodes."""
        return sum(self.running.lengths)

    def _episode(self, b: int, final: Columns | None, after: Step | None, more: Mapping[str, Any]) -> Episode:
        """What ended with the step ``after`` (None: was cut) in a slot.  more: of its meta."""
        columns = self.running.take(b, final)
        altered = np.flatnonzero(columns.pop("altered")).tolist()  # steps at which h was changed
        meta = {"seed": self.seed, "slot": self.first + b, "explores": bool(self.chooser.explores_B[b])}
        meta |= {"altered": altered} if self.intervene else {}
        return episode_of(
            columns,
            terminated=after is not None and bool(after.terminated[b]),
            truncated=after is None or bool(after.truncated[b]),
            meta={**meta, **more},
        )

    def __iter__(self) -> Iterator[list[Episode]]:
        agent, spec, running, quota_B = self.agent, self.env.spec, self.running, self.quota_B
        agents = agents_a_world(spec)
        for moment in play(
            agent, self.env, self.chooser, seed=self.seed, device=self.device, intervene=self.intervene,
            begin=self._begin,
        ):  # fmt: skip
            self.t, self._at = self.t + 1, (moment.state, moment.age_B)
            if self._more is None:
                state = flatten(moment.state).cpu().numpy()
                self._more = not np.array_equal(state, moment.h_BH, equal_nan=True)
            shown, final = columns_of(moment, self._more, spec, agent, self.points)
            ended: list[Episode] = []
            done_B = moment.next.terminated | moment.next.truncated
            on_B = (quota_B > 0) & moment.alive_B
            running.add(shown, np.flatnonzero(on_B).tolist())
            for b in np.flatnonzero(on_B & done_B).tolist():
                more: dict[str, Any] = {}
                if agents > 1:
                    game = int(self.quota - quota_B[b])
                    world = game * (spec.slots // agents) + b // agents
                    more = {"world": world, **life_of(moment.truth, b, spec)}
                    more["ended"] = "died" if moment.next.terminated[b] else "time was up"
                ended.append(self._episode(b, final, moment.next, more))
                quota_B[b] -= 1 if self.steps is None else 0
            if self.t == self.steps:
                for b in np.flatnonzero(running.lengths).tolist():
                    ended.append(self._episode(b, None, None, {"cut": True}))
            yield ended
            if self.steps is None:
                require_ends(spec, np.array(running.lengths), quota_B > 0)
            if self.over:
                return

    def state(self) -> dict[str, Any]:
        """After a step, as tensors, numbers and text; of a world whose snapshots are bytes."""
        where = {"step": self.t, "quota": torch.from_numpy(self.quota_B.copy())}
        if self.over:
            return where
        assert self._at is not None
        agents_state, age_B = self._at
        return {
            **where,
            "snapshots": [torch.frombuffer(bytearray(s), dtype=torch.uint8) for s in self.env.snapshot()],
            "agent": [x.cpu() for x in leaves(agents_state)],
            "age": torch.from_numpy(age_B.copy()),
            "chooser": self.chooser.state(),
            "whole_state": self._more,
            "lengths": self.running.lengths,
            "rows": {name: torch.from_numpy(rows) for name, rows in self.running.all().items()},
        }

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.t = saved["step"]
        self.quota_B[:] = saved["quota"].numpy()
        if self.over:
            return
        parts = iter(saved["agent"])
        state = each(lambda _: next(parts).to(self.device), self.agent.initial(1))
        snapshots = [s.numpy().tobytes() for s in saved["snapshots"]]
        self._begin = Begin(snapshots, state, saved["age"].numpy())
        self._more = saved["whole_state"]
        self.chooser.restore(saved["chooser"])
        self.running.restore({name: rows.numpy() for name, rows in saved["rows"].items()}, saved["lengths"])


def points_of(agent: Agent, asked: Sequence[str]) -> tuple[str, ...]:
    """The columns points/NAME that ``--points`` asks for; UserError for one that the agent has not."""
    below = sorted((p for p in agent.points if p.startswith("block_")), key=lambda p: int(p[6:]))
    last = [f"block_{len(below)}"] if below else []  # which is h
    there = [*(p for p in agent.points if p not in ("h", *below)), *below, *last]
    for point in asked:
        if point not in (*there, "all"):
            raise UserError(f"--points {point}: the agent has no such vector{nearest(point, there)}; it has "
                            f"{', '.join(there) or 'h alone'}, or all of them: all")  # fmt: skip
    return tuple(there if "all" in asked else dict.fromkeys(asked))


def columns_of(
    moment: Moment, whole_state: bool, spec: EnvSpec, agent: Agent, points: Sequence[str] = ()
) -> tuple[Columns, Columns | None]:
    """A row a slot of every column of an episode, and of those of the observation after the last transition, where the
    world shows it."""

    def read(seen: Tree, state: Tree) -> Columns:
        named = {p: p if p in agent.points else "h" for p in points}
        return {f"points/{p}": agent.read(n, seen, state).cpu().numpy() for p, n in named.items()}

    after = moment.next
    now = {"h": moment.h_BH, "value": moment.value_B, "action": moment.action_B, "logits": moment.logits_BA}
    now |= {"reward": after.reward, "altered": moment.altered_B}
    now |= {"state": flatten(moment.state).cpu().numpy()} if whole_state else {}
    now |= read(moment.seen, moment.state)
    many = agents_a_world(spec) > 1
    truth = labels(moment.obs, moment.truth, moment.action_B, spec) if many else moment.truth
    now |= {f"obs/{k}": v for k, v in moment.obs.items()} | {f"truth/{k}": v for k, v in truth.items()}
    if moment.final_h_BH is None or moment.final_value_B is None or after.final_obs is None:
        return now, None
    final = {"h": moment.final_h_BH, "value": moment.final_value_B}
    final |= {"state": flatten(moment.final_state).cpu().numpy()} if whole_state else {}
    final |= read(moment.final_seen, moment.final_state)
    final |= {f"obs/{k}": v for k, v in after.final_obs.items()}
    return now, final | {f"truth/{k}": v for k, v in (after.final_truth or {}).items()}


def keep_unaltered(out: Path, altered: bool) -> None:
    """UserError if an altered recording is about to replace an unaltered one, or one set aside for a recording that
    was cut off."""
    for place in (out, artefacts.aside_of(out)):
        whole = (place / artefacts.MANIFEST).exists()
        if altered and whole and not artefacts.read_manifest(place)["facts"].get("interventions"):
            raise UserError(f"{place} holds unaltered data; record with interventions into another directory")


def checkpoints_of(path: Path) -> dict[int, str]:
    """{steps: weights file} of an agent's run directory, the last weights among them."""
    manifest = artefacts.read_manifest(path)
    found = {
        int(m[1]): m[0] for name in manifest["files"] if (m := re.fullmatch(r"checkpoint_(\d+)\.safetensors", name))
    }
    steps = manifest["metrics"].get("steps", {}).get("value")
    return dict(sorted({**found, **({} if steps is None else {int(steps): WEIGHTS})}.items()))


def chosen(config: RecordConfig, out: Path) -> dict[Path, str]:
    """{directory to write: weights file of the agent}.  Raises UserError."""
    if config.ckpt == "last" and not config.all_ckpts:
        return {out: WEIGHTS}
    found = checkpoints_of(config.agent)
    if config.all_ckpts:
        if config.ckpt != "last":
            raise UserError("--ckpt chooses one and --all_ckpts records all: choose one of the two")
        if not found:
            raise UserError(f"{config.agent} holds no checkpoints")
        return {out / f"checkpoint_{steps:09d}": file for steps, file in found.items()}
    try:
        return {out: found[cli.whole_number(config.ckpt)]}
    except (ValueError, KeyError):
        there = ", ".join(map(str, found)) or "no checkpoints"
        raise UserError(f"--ckpt {config.ckpt}: {config.agent} holds {there}, and last") from None


def main(config: RecordConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, episodes=config.episodes, slots=config.slots)
    if config.num_steps is not None:
        cli.require(1, num_steps=config.num_steps)
    if config.shard_steps is not None:
        cli.require(1, shard_steps=config.shard_steps)
    cli.require(0, seed=config.seed, branches=config.branches)
    if config.resume and config.overwrite:
        raise UserError("--resume goes on with a run and --overwrite starts anew: choose one")
    x = config.exploration
    if x.temperature <= 0 or not all(0 <= share <= 1 for share in (x.explore_share, x.sticky, x.random)):
        raise UserError("--temperature must be above 0; --explore_share, --sticky and --random lie between 0 and 1")
    x.check(config.slots)
    for out, weights in chosen(config, config.out).items():
        record_one(config, out, weights, device)


def where_played(config: RecordConfig, spec: EnvSpec) -> dict[str, Any]:
    """The world's options that say where it is played.  UserError if held-out levels are among the training's."""
    levels = level_options(config.start_level, config.num_levels)
    if config.split == "held_out":
        check_unseen(spec.options, {**HELD_OUT, **levels})
    return place_of(spec, config.split, config.maps) | levels


def record_one(config: RecordConfig, out: Path, weights: str, device: torch.device) -> None:
    """One recording, of the agent with these weights."""
    inputs = artefacts.Inputs({"agent": config.agent, **config.intervention.inputs})
    agent = load_agent(config.agent, device, weights)
    truth = None if config.truth is None else parse_truth(config.truth)
    if truth is not None and not agent.spec.env_id.startswith("procgen/"):
        raise UserError(
            f"--truth is read off a Procgen game's state; recordings of {agent.spec.env_id} hold all its labels"
        )
    name = fingerprint(agent)
    points = points_of(agent, config.points)
    intervene = build(config.intervention, name, device=device)
    agents = agents_a_world(agent.spec)
    if config.num_steps is not None and agents > 1:
        raise UserError(f"--num_steps: record whole lives of {agent.spec.env_id}, by --episodes")
    where = where_played(config, agent.spec)
    slots = -(-config.slots // agents) * agents
    processes = from_torchrun(slots, "--slots")

    def made(slots: int) -> VecEnv:
        env = make(agent.spec, slots, threads=config.threads, **where)
        return env if truth is None else WithTruth(env, *truth)  # type: ignore[return-value, arg-type]

    env: VecEnv = made(slots) if processes.count == 1 else SharedEnv(made, slots, processes)
    inner = env.inner if isinstance(env, SharedEnv) else env
    if config.branches:
        require_branches(env)
        if intervene:
            raise UserError("--branches are of the unaltered agent; record them without an intervention")
    if intervene and agents > 1:
        altered_B = torch.from_numpy(who_is_altered(env.spec, config.who, config.seed)).to(device)
        intervene = (OnRows(intervene, altered_B),)
    keep_unaltered(out, bool(intervene))
    found = going_on(config, STAGE, STATE, out).resume, (out / artefacts.MANIFEST).exists(), (out / STATE).exists()
    resume, is_whole, is_begun = processes.listed(found)[0]  # as the first one finds it
    config = replace(config, resume=resume)
    if resume and is_whole:
        if processes.first:
            end_of_whole(config, out, inputs)
        return
    keeps = keeps_states(inner)
    if config.resume and not keeps:
        raise UserError(f"--resume: {agent.spec.env_id} gives no snapshots that a file can hold, so a recording of it "
                        "cannot be gone on with; record it anew with --overwrite")  # fmt: skip
    known = made_of(name, inputs) if keeps else {}
    begun = is_begun or not config.all_ckpts  # of those the ones that were not begun yet are fresh
    with (
        telling(config, out, processes=processes) as is_open,
        opened(config, out, inputs, known, processes, begun) as (run, saved),
    ):
        is_open()
        every = inner.every if isinstance(inner, WithTruth) else 1
        kept = write_episodes(
            agent, env, config, run.path, intervene=intervene, points=points, device=device, processes=processes,
            saves=Saves(run, known, every, saved, processes) if keeps else None,
        )  # fmt: skip
        run.facts = {"agent": name, "source": "real", **changes_in(config, intervene, processes.first)}
        run.facts |= facts_of(agent.spec, weights, away=config.split == "held_out" and processes.first)
        if config.branches:
            run.facts["branches"] = {"snapshots": config.branches, "before": LEAD, "held": STEPS}
            tried = write_branches(agent, config, where, run.path / FOLDER, device)
            run.record("branches", tried, "tried actions", config.branches)
        if isinstance(inner, WithTruth):
            run.facts["truth"] = {"read": inner.read, "every": inner.every}
        if isinstance(inner, NmmoEnv):
            run.facts |= {"features": list(FEATURES), "worlds": len(kept.returns) // agents}
            run.facts |= {"who": config.who} if intervene else {}
        kept.say(run, agents)
        if intervene:
            run.record("altered_steps", kept.altered, "steps")
        if intervene and not kept.altered:
            run.facts["intervention_warning"] = said = nothing_altered(config.intervention)
            print(f"warning: {said}", file=sys.stderr)
    env.close()
    if processes.first:
        forget(out)
    if config.npz and processes.first:
        write_npz(out)
    print(f"recorded {kept.in_words(bool(intervene), agents)}: {out}")


def facts_of(spec: EnvSpec, weights: str, away: bool) -> dict[str, Any]:
    """Of a manifest: which weights, which labels are names, and (away) what is to be said of held-out starts."""
    out: dict[str, Any] = {} if weights == WEIGHTS else {"weights": weights}
    out |= {"classes": list(names)} if (names := classes_of(spec)) else {}
    return out | (held_out_facts(spec) if away else {})


def end_of_whole(config: RecordConfig, out: Path, inputs: artefacts.Inputs) -> None:
    """What is left to do of a recording that is whole.  UserError if it is another one."""
    check_whole(config, out, STAGE, inputs)
    forget(out)
    if config.npz:
        write_npz(out)
    print(f"{out} is whole: nothing was left to record")


@contextmanager
def opened(
    config: RecordConfig, out: Path, inputs: artefacts.Inputs, made: Mapping[str, Any], processes: Processes,
    begun: bool,
) -> Iterator[tuple[artefacts.Run, dict[str, Any] | None]]:  # fmt: skip
    """The run directory, fresh or, with --resume and if it was begun, gone on with, and the state that this process
    goes on from."""
    kept = replace(config, resume=False)  # the recording is that of a command that nothing stopped
    saved = saved_in(config, out, STAGE, made, processes) if config.resume and begun else None
    if saved is not None and processes.first:
        with artefacts.resumed(out, STAGE, kept, inputs) as run:
            yield run, saved
        return
    with artefacts.new_run(out, STAGE, kept, inputs, overwrite=config.overwrite or config.resume) as run:
        yield run, saved


@dataclass
class Kept:
    """What a recording holds: returns and lengths of whole episodes, and what else was counted."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    altered: int = 0
    cut: int = 0
    cut_steps: int = 0

    def add(self, ended: Ended) -> None:
        self.altered += ended.altered
        if ended.cut:
            self.cut, self.cut_steps = self.cut + 1, self.cut_steps + ended.steps
        else:
            self.returns.append(ended.total)
            self.lengths.append(ended.steps)

    @property
    def steps(self) -> int:
        return sum(self.lengths) + self.cut_steps

    def mean(self, x: Sequence[float], agents: int) -> Estimate:
        """Mean over whole episodes; with its interval where an episode is of one agent alone (agents: those that share
        a world), so that they are independent."""
        if agents > 1:
            return Estimate(float(np.mean(x)), np.nan, np.nan, len(x))
        return mean_of_episodes(np.array(x, np.float64), np.random.default_rng(0))

    def say(self, run: artefacts.Run, agents: int = 1) -> None:
        """Into the manifest.  Means are of whole episodes, of which a recording of few steps may have none."""
        if self.returns:
            for name, x, unit in (("return_mean", self.returns, "return"), ("length_mean", self.lengths, "steps")):
                mean = self.mean(x, agents)
                run.record(name, mean.value, unit, mean.n, mean.interval)
        run.record("steps", self.steps, "steps")
        if self.cut:
            run.record("cut", self.cut, "episodes")

    def in_words(self, intervened: bool, agents: int = 1) -> str:
        did = f", {self.altered:,} of them altered" if intervened else ""
        cut = f" and {self.cut} that {'was' if self.cut == 1 else 'were'} cut" if self.cut else ""
        of = without_cut(self.cut, len(self.returns))
        mean = ""
        if self.returns:
            value, low, high, _ = self.mean(self.returns, agents)
            mean = f", mean return {value:.2f}{between(low, high, '.2f')}{of}"
        whole = len(self.returns)
        return f"{counted(whole, 'episode')}{cut}, {counted(self.steps, 'step')}{did}{mean}"


def write_episodes(
    agent: Agent,
    env: VecEnv,
    config: RecordConfig,
    path: Path,
    *,
    intervene: Sequence[Intervention],
    points: Sequence[str],
    device: torch.device,
    processes: Processes = ALONE,
    saves: Saves | None = None,
) -> Kept:
    """Record the episodes, or the steps, into a store; saves: keeps the states on the way, and has the one to go on
    from."""
    slots = env.spec.slots
    store: dict[str, Any] = dict(LIVES) if agents_a_world(env.spec) > 1 else {}
    if config.shard_steps is not None:
        store["shard_steps"] = config.shard_steps
    whole = config.num_steps is None
    total = -(-config.episodes // slots) * slots if config.num_steps is None else config.num_steps * slots
    if whole and total != config.episodes and processes.first:
        print(
            f"note: {total} episodes are recorded for --episodes {config.episodes}: as many of each of the {slots} "
            "slots (--slots), so that short ones are not favoured", file=sys.stderr,
        )  # fmt: skip
    before = {} if saves is None else {k: saves.take(k) for k in ("over", "kept", "recorder", "writer")}
    kept = Kept(**before.get("kept") or {})
    if before.get("over"):
        return kept
    recorder = Recorder(
        agent, env, config.episodes, processes.part(slots), seed=config.seed, device=device,
        exploration=config.exploration, intervene=intervene, steps=config.num_steps, points=points,
        saved=before.get("recorder"),
    )  # fmt: skip
    with bar("recording", total, "episodes" if whole else "steps") as progress:
        artefacts.write_json(path / "spec.json", env.spec.to_json())
        writer: StoreWriter | SharedWriter
        rows: Iterator[list[list[Episode]]]
        if processes.count == 1:
            writer, rows = StoreWriter(path, **store), ([episodes] for episodes in recorder)
        else:
            own = () if recorder.over else recorder  # it can be in the state that this goes on from
            writer, rows = SharedWriter(path, processes, **store), rounds(own, processes)
        with writer:
            if before.get("writer"):
                writer.restore(before["writer"])
            before.clear()  # its rows are not held twice
            progress.advance(len(kept.returns) if whole else kept.steps)
            for steps in rows:
                for ended in added(writer, steps):
                    kept.add(ended)
                    progress.advance(1 if whole else ended.steps)
                if saves is not None:
                    saves.after_step(recorder, writer, kept)
    if saves is not None:
        saves.end(writer, kept)
    return kept


def added(writer: StoreWriter | SharedWriter, steps: Sequence[Sequence[Episode]]) -> Iterator[Ended]:
    """What ended at some steps, in this process or in all that share the recording, once the writer has it."""
    if isinstance(writer, SharedWriter):
        yield from writer.add(steps)
        return
    for episode in itertools.chain.from_iterable(steps):
        writer.add(episode)
        yield Ended.of(episode)


def write_npz(path: Path) -> None:
    """A recording's columns as one file beside it, PATH.npz: its steps [N, ...] by name, and ``index`` int64 [N, 2].
    An episode is in memory at a time."""
    with RolloutStore(path) as store, files.Spool(path.parent) as spool:
        for e in np.flatnonzero(np.minimum(store.steps, store.rows) > 0).tolist():
            columns, index = store.pooled(*store.column_names, episodes=[e])
            for name, rows in {"index": index, **columns}.items():
                spool.add(name, rows)
        files.write_npz(path.parent / f"{path.name}.npz", spool.arrays)


def write_branches(agent: Agent, config: RecordConfig, where: dict[str, Any], path: Path, device: torch.device) -> int:
    """Record ``--branches`` snapshots into a store of their own; how many actions were tried."""
    count = 0
    path.mkdir()
    env, aside = (make(agent.spec, config.slots, threads=config.threads, **where) for _ in range(2))
    with StoreWriter(path) as writer, bar("trying actions", config.branches, "snapshots") as progress:
        for episode in record_branches(
            agent, env, aside, config.branches, seed=config.seed + 1, device=device, exploration=config.exploration
        ):
            writer.add(episode)
            count += 1
            progress.advance(0 if episode.meta["action"] else 1)
    env.close()
    aside.close()
    return count


def changes_in(config: RecordConfig, intervene: Sequence[Intervention], tell: bool) -> dict[str, Any]:
    """Of a manifest: the interventions, and what is to be said of ones that lead far from what was recorded."""
    return {"interventions": [repr_of(i) for i in intervene], **(far_facts(config.intervention) if tell else {})}


def repr_of(intervention: Any) -> dict[str, Any]:
    """An intervention as JSON: its class and its plain fields (a basis by its kind and agent, where it acts by the
    conditions)."""
    out: dict[str, Any] = {"kind": type(intervention).__name__}
    for key, value in vars(intervention).items():
        if key == "basis":
            out[key] = {"kind": value.kind, "agent": value.agent}
        elif key == "where":
            out |= value.to_json()
        elif key == "inner":
            out[key] = [repr_of(i) for i in value] if isinstance(value, tuple) else repr_of(value)
        elif isinstance(value, torch.Tensor):
            out[key] = value.tolist()
        else:
            out[key] = value
    return out
