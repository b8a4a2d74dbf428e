"""Record real rollouts: ``python record.py --agent runs/agent --out runs/rollouts``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agents.play import Chooser, Exploration, Moment, play
from agents.recurrent import load_agent
from core import artefacts, config as cli
from core.contracts import Agent, Intervention, UserError, VecEnv
from core.directions import fingerprint
from core.episodes import Episode, StoreWriter
from core.interventions import InterventionOptions, build, nothing_altered
from core.progress import bar
from envs.registry import make

STAGE = "record"


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """Record whole episodes of an agent in its world into a rollout store."""

    agent: Path
    """run directory of the agent"""
    out: Path = Path("runs/rollouts")
    """run directory to write (also --data_save_dir)"""
    data_save_dir: Path | None = None
    """same as --out, under the name its earlier users know"""
    episodes: int = 256
    """whole episodes; every slot gives the same number, so that short ones are not favoured"""
    slots: int = 64
    """environments side by side"""
    start_level: int | None = None
    """first level (default: the agent's training levels); another one gives held-out levels"""
    num_levels: int | None = None
    """size of the level pool (default: the agent's)"""
    exploration: Exploration = field(default_factory=Exploration)
    intervention: InterventionOptions = field(default_factory=InterventionOptions)
    seed: int = 0
    """seed of levels and of the action noise"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier recording in --out"""


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
    """``ceil(episodes / slots)`` whole episodes from every slot, in the order they end."""
    slots = env.spec.slots
    quota_B = np.full(slots, -(-episodes // slots))
    chooser = Chooser(exploration or Exploration(), slots, np.random.default_rng(seed))
    pending: list[list[tuple[Moment, int]]] = [[] for _ in range(slots)]
    for moment in play(agent, env, chooser, seed=seed, device=device, intervene=intervene):
        done_B = moment.next.terminated | moment.next.truncated
        for b in np.flatnonzero(quota_B > 0):
            pending[b].append((moment, b))
            if done_B[b]:
                meta: dict[str, Any] = {"seed": seed, "slot": int(b), "explores": bool(chooser.explores_B[b])}
                if intervene:
                    meta["altered"] = [t for t, (m, _) in enumerate(pending[b]) if m.altered_B[b]]
                yield _episode(pending[b], meta)
                pending[b] = []
                quota_B[b] -= 1
        if not quota_B.any():
            return


def _episode(rows: list[tuple[Moment, int]], meta: dict[str, Any]) -> Episode:
    last, b = rows[-1]
    final = last.next.final_obs

    def column(read: Any, final_row: Any = None) -> np.ndarray:
        values = [read(m)[b] for m, _ in rows]
        return np.stack(values if final_row is None else [*values, final_row])

    labels = last.next.final_truth
    final_h = last.final_h_BH[b] if last.final_h_BH is not None else None
    final_value = last.final_value_B[b] if last.final_value_B is not None else None
    return Episode(
        obs={k: column(lambda m, k=k: m.obs[k], final[k][b] if final is not None else None) for k in last.obs},
        h=column(lambda m: m.h_BH, final_h),
        value=column(lambda m: m.value_B, final_value),
        action=column(lambda m: m.action_B),
        logits=column(lambda m: m.logits_BA),
        reward=column(lambda m: m.next.reward),
        terminated=bool(last.next.terminated[b]),
        truncated=bool(last.next.truncated[b]),
        truth={k: column(lambda m, k=k: m.truth[k], labels[k][b] if labels is not None else None) for k in last.truth},
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
    cli.require(0, seed=config.seed)
    x = config.exploration
    if x.temperature <= 0 or not all(0 <= share <= 1 for share in (x.explore_share, x.sticky, x.random)):
        raise UserError("--temperature must be above 0; --explore_share, --sticky and --random lie between 0 and 1")
    agent = load_agent(config.agent, device)
    name = fingerprint(agent)
    intervene = build(config.intervention, name, device=device)
    env = make(agent.spec, config.slots, threads=config.threads, **level_options(config.start_level, config.num_levels))
    out = config.data_save_dir or config.out
    keep_unaltered(out, bool(intervene))
    inputs = {"agent": config.agent, **config.intervention.inputs}
    returns, lengths, altered = [], [], 0
    with artefacts.new_run(out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        total = -(-config.episodes // config.slots) * config.slots
        with StoreWriter(run.path) as writer, bar("recording", total, "episodes") as progress:
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
