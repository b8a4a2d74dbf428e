"""Record real rollouts: ``python record.py --agent runs/agent --out runs/rollouts``.

Where a world has many agents (Neural MMO), an episode is one agent's life, and lives of a world are not independent: a
life's ``meta`` says which playing of which world it was part of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from agents.branches import FOLDER, LEAD, STEPS, record_branches, require_branches
from agents.load import load_agent
from agents.play import Chooser, Exploration, Moment, play
from core import artefacts, config as cli
from core.contracts import Agent, EnvSpec, Intervention, Step, UserError, VecEnv
from core.directions import fingerprint
from core.episodes import Episode, StoreWriter
from core.interventions import InterventionOptions, OnRows, build, nothing_altered
from core.progress import bar
from core.trees import flatten
from envs.nmmo import FEATURES, MAPS, NmmoEnv, labels, life_of
from envs.procgen_truth import WithTruth, parse_truth
from envs.registry import agents_a_world, make

STAGE = "record"
LIVES = {"shard_steps": 4096, "chunk_steps": 512, "level": 6}  # most of what an agent of many sees is as it was before


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """Record whole episodes of an agent in its world into a rollout store."""

    agent: Path = Path("runs/agent")
    """run directory of the agent"""
    out: Path = Path("runs/rollouts")
    """run directory to write (also --data_save_dir)"""
    data_save_dir: Path | None = None
    """same as --out, under the name its earlier users know"""
    episodes: int = 256
    """whole episodes (of many agents: lives); every slot gives the same number, so that short ones are not favoured"""
    slots: int = 64
    """environments side by side; of a world of many agents these, rounded up to whole worlds"""
    split: Literal["train", "held_out"] = "train"
    """train: the starts (levels, maps, seeds) of the agent's training; held_out: others"""
    maps: Path = MAPS
    """Neural MMO: where the generated maps lie (generated on first use)"""
    start_level: int | None = None
    """first level; none: the agent's training levels; another one gives held-out levels"""
    num_levels: int | None = None
    """size of the level pool; none: the agent's"""
    truth: tuple[str, ...] = ()
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
    overwrite: bool = False
    """replace an earlier recording in --out"""


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
) -> Iterator[Episode]:
    """``ceil(episodes / slots)`` whole episodes from every slot, in the order they end; meta ``world``, where a world
    has many agents, numbers its playings.

    What is kept until then is the rows of the running episodes; of slots that have given theirs, nothing.
    """
    slots, agents = env.spec.slots, agents_a_world(env.spec)
    quota = -(-episodes // slots)
    quota_B = np.full(slots, quota)
    chooser = Chooser(exploration or Exploration(), slots, np.random.default_rng(seed), agent.spec.parts)
    running = [Running() for _ in range(slots)]
    more: bool | None = None  # the state is more than h, and recorded too
    for moment in play(agent, env, chooser, seed=seed, device=device, intervene=intervene):
        if more is None:
            state = flatten(moment.state).cpu().numpy()
            more = not np.array_equal(state, moment.h_BH, equal_nan=True)
        shown, final = columns_of(moment, more, env.spec)
        done_B = moment.next.terminated | moment.next.truncated
        for b in np.flatnonzero((quota_B > 0) & moment.alive_B):
            running[b].add(shown, b)
            if done_B[b]:
                meta: dict[str, Any] = {"seed": seed, "slot": int(b), "explores": bool(chooser.explores_B[b])}
                if intervene:
                    meta["altered"] = running[b].altered
                if agents > 1:
                    game = int(quota - quota_B[b])
                    meta |= {"world": game * (slots // agents) + int(b) // agents, **life_of(moment.truth, b, env.spec)}
                    meta["ended"] = "died" if moment.next.terminated[b] else "time was up"
                yield running[b].episode(final, b, moment.next, meta)
                running[b] = Running()
                quota_B[b] -= 1
        if not quota_B.any():
            return


Columns = dict[str, np.ndarray]


def columns_of(moment: Moment, whole_state: bool, spec: EnvSpec) -> tuple[Columns, Columns | None]:
    """A row a slot of every column of an episode, and of those of the observation after the last transition, where the
    world shows it."""
    after = moment.next
    now = {"h": moment.h_BH, "value": moment.value_B, "action": moment.action_B, "logits": moment.logits_BA}
    now |= {"reward": after.reward, "altered": moment.altered_B}
    now |= {"state": flatten(moment.state).cpu().numpy()} if whole_state else {}
    many = agents_a_world(spec) > 1
    truth = labels(moment.obs, moment.truth, moment.action_B, spec) if many else moment.truth
    now |= {f"obs/{k}": v for k, v in moment.obs.items()} | {f"truth/{k}": v for k, v in truth.items()}
    if moment.final_h_BH is None or moment.final_value_B is None or after.final_obs is None:
        return now, None
    final = {"h": moment.final_h_BH, "value": moment.final_value_B}
    final |= {"state": flatten(moment.final_state).cpu().numpy()} if whole_state else {}
    final |= {f"obs/{k}": v for k, v in after.final_obs.items()}
    return now, final | {f"truth/{k}": v for k, v in (after.final_truth or {}).items()}


class Running:
    """The rows so far of the episode that runs in one slot; copies, so that the other slots' are not kept with them."""

    def __init__(self) -> None:
        self._rows: dict[str, list[np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self._rows.get("reward", ()))

    def add(self, shown: Columns, b: int) -> None:
        for name, rows in shown.items():
            self._rows.setdefault(name, []).append(np.array(rows[b]))

    @property
    def altered(self) -> list[int]:
        """Steps at which an intervention changed h."""
        return np.flatnonzero(self._rows["altered"]).tolist()

    def episode(self, final: Columns | None, b: int, after: Step, meta: dict[str, Any]) -> Episode:
        """What ended with the step ``after``; ``final``: a row a slot of what was seen last, if it was."""
        flat: dict[str, Any] = {}
        groups: dict[str, Columns] = {"obs": {}, "truth": {}}
        for name, rows in self._rows.items():
            last = [final[name][b]] if final is not None and name in final else []
            group, _, rest = name.partition("/")
            (groups[group] if rest else flat)[rest or name] = np.stack([*rows, *last])
        del flat["altered"]
        return Episode(
            **flat,
            obs=groups["obs"],
            truth=groups["truth"],
            terminated=bool(after.terminated[b]),
            truncated=bool(after.truncated[b]),
            meta=meta,
        )


def keep_unaltered(out: Path, altered: bool) -> None:
    """UserError if an altered recording is about to replace an unaltered one, or one set aside for a recording that
    was cut off."""
    for place in (out, artefacts.aside_of(out)):
        whole = (place / artefacts.MANIFEST).exists()
        if altered and whole and not artefacts.read_manifest(place)["facts"].get("interventions"):
            raise UserError(f"{place} holds unaltered data; record with interventions into another directory")


def main(config: RecordConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, episodes=config.episodes, slots=config.slots)
    cli.require(0, seed=config.seed, branches=config.branches)
    x = config.exploration
    if x.temperature <= 0 or not all(0 <= share <= 1 for share in (x.explore_share, x.sticky, x.random)):
        raise UserError("--temperature must be above 0; --explore_share, --sticky and --random lie between 0 and 1")
    agent = load_agent(config.agent, device)
    truth = parse_truth(config.truth)
    if truth is not None and not agent.spec.env_id.startswith("procgen/"):
        raise UserError(
            f"--truth is read off a Procgen game's state; recordings of {agent.spec.env_id} hold all its labels"
        )
    name = fingerprint(agent)
    intervene = build(config.intervention, name, device=device)
    agents = agents_a_world(agent.spec)
    where = place_of(agent.spec, config.split, config.maps) | level_options(config.start_level, config.num_levels)
    env = make(agent.spec, -(-config.slots // agents) * agents, threads=config.threads, **where)
    if config.branches:
        require_branches(env)
        if intervene:
            raise UserError("--branches are of the unaltered agent; record them without an intervention")
    if truth is not None:
        env = WithTruth(env, *truth)  # type: ignore[arg-type]
    if intervene and agents > 1:
        altered_B = torch.from_numpy(who_is_altered(env.spec, config.who, config.seed)).to(device)
        intervene = (OnRows(intervene, altered_B),)
    out = config.data_save_dir or config.out
    keep_unaltered(out, bool(intervene))
    inputs = {"agent": config.agent, **config.intervention.inputs}
    returns, lengths, altered = [], [], 0
    with artefacts.new_run(out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        total = -(-config.episodes // env.spec.slots) * env.spec.slots
        store: dict[str, Any] = LIVES if agents > 1 else {}
        with StoreWriter(run.path, **store) as writer, bar("recording", total, "episodes") as progress:
            artefacts.write_json(run.path / "spec.json", env.spec.to_json())
            for episode in record_episodes(
                agent, env, config.episodes, seed=config.seed, device=device,
                exploration=config.exploration, intervene=intervene,
            ):  # fmt: skip
                writer.add(episode)
                returns.append(float(episode.reward.sum()))
                lengths.append(episode.steps)
                altered += len(episode.meta.get("altered", ()))
                progress.advance()
        run.facts = {"agent": name, "source": "real", "interventions": [repr_of(i) for i in intervene]}
        if config.branches:
            run.facts["branches"] = {"snapshots": config.branches, "before": LEAD, "held": STEPS}
            tried = write_branches(agent, config, where, run.path / FOLDER, device)
            run.record("branches", tried, "tried actions", config.branches)
        if isinstance(env, WithTruth):
            run.facts["truth"] = {"read": env.read, "every": env.every}
        if isinstance(env, NmmoEnv):
            run.facts |= {"features": list(FEATURES), "worlds": len(returns) // agents}
            run.facts |= {"who": config.who} if intervene else {}
        run.record("return_mean", float(np.mean(returns)), "return", len(returns))
        run.record("length_mean", float(np.mean(lengths)), "steps", len(lengths))
        run.record("steps", sum(lengths), "steps")
        if intervene:
            run.record("altered_steps", altered, "steps")
        if intervene and not altered:
            run.facts["intervention_warning"] = said = nothing_altered(config.intervention)
            print(f"warning: {said}", file=sys.stderr)
    env.close()
    did = f", {altered:,} of them altered" if intervene else ""
    print(f"recorded {len(returns)} episodes, {sum(lengths):,} steps{did}, mean return {np.mean(returns):.2f}: {out}")


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


def repr_of(intervention: Any) -> dict[str, Any]:
    """An intervention as JSON: its class and its plain fields (a basis by its kind and agent, a rule by how often it is
    right)."""
    out: dict[str, Any] = {"kind": type(intervention).__name__}
    for key, value in vars(intervention).items():
        if key == "basis":
            out[key] = {"kind": value.kind, "agent": value.agent}
        elif key == "rule":
            out[key] = value.said_of(intervention.behaviours)
        elif key == "inner":
            out[key] = [repr_of(i) for i in value] if isinstance(value, tuple) else repr_of(value)
        elif isinstance(value, torch.Tensor):
            out[key] = value.tolist()
        else:
            out[key] = value
    return out
