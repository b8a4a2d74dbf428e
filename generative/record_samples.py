"""Record simulated rollouts:
``python -m generative.record_samples --simulator runs/simulator --rollouts runs/rollouts --out runs/samples``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from agents.record import keep_unaltered, repr_of
from core import artefacts, config as cli
from core.contracts import Intervention, Simulator, Trajectory, UserError
from core.directions import fingerprint
from core.episodes import Episode, RolloutStore, StoreWriter
from core.interventions import InterventionOptions, build
from core.progress import bar
from generative.simulator import load_simulator

STAGE = "record_samples"


@dataclass(frozen=True, kw_only=True)
class RecordSamplesConfig:
    """Let the agent act inside its simulator and record what happens.

    Unaltered samples are never overwritten by altered ones: those go to a directory of their own.
    """

    simulator: Path = Path("bundles/coinrun-demo/simulator")
    """run directory of the simulator"""
    rollouts: Path | None = None
    """real rollouts to start from: random windows of their first frames; none: random latents"""
    out: Path = Path("runs/samples")
    """run directory to write"""
    data_save_dir: Path | None = None
    """same as --out, under the name its earlier users know"""
    samples: int = 128
    """rollouts"""
    steps: int = 32
    """transitions a rollout"""
    stochastic: bool = False
    """draw world states and actions instead of taking their modes"""
    intervention: InterventionOptions = field(default_factory=InterventionOptions)
    batch: int = 32
    """rollouts side by side"""
    seed: int = 0
    """seed of starts and noise"""
    device: str = "cpu"
    """cpu or cuda"""
    threads: int = 2
    """CPU threads"""
    overwrite: bool = False
    """replace an earlier recording in --out"""


def to_episodes(
    trajectory: Trajectory, z_BZ: Tensor, obs_name: str, meta: Sequence[dict[str, object]]
) -> list[Episode]:
    """Simulated rollouts as episodes; one that ends is cut after its last transition, its final
    frame unknown, just as in the world."""
    frames = (trajectory.obs[obs_name] * 255).round().to(torch.uint8).cpu().numpy()
    columns = {
        k: getattr(trajectory, k).detach().cpu().numpy() for k in ("d", "h", "logits", "value", "action", "reward")
    }
    alive = trajectory.alive.cpu().numpy()
    out = []
    for b, about in enumerate(meta):
        ended = not alive[b].all()
        rows = int(alive[b].argmin()) if ended else alive.shape[1]
        steps = rows if ended else rows - 1
        out.append(
            Episode(
                obs={obs_name: frames[b, :rows]},
                h=columns["h"][b, :rows],
                value=columns["value"][b, :rows],
                action=columns["action"][b, :steps],
                logits=columns["logits"][b, :steps],
                reward=columns["reward"][b, :steps],
                terminated=ended,
                truncated=not ended,
                world={"d": columns["d"][b, :rows]},
                latent=z_BZ[b].detach().cpu().numpy(),
                meta=about,
            )
        )
    return out


@torch.no_grad()
def informed_latents(simulator: Simulator, store: RolloutStore, starts: np.ndarray, frames: int) -> Tensor:
    """z [N, Z] (the mean) of the windows of ``frames`` observations at ``starts`` [N, 2]."""
    device = next(simulator.parameters()).device  # type: ignore[attr-defined]
    (name,) = simulator.spec.obs
    window = store.read_windows([f"obs/{name}"], starts, frames)
    mean, _ = simulator.infer({name: torch.from_numpy(window[f"obs/{name}"]).to(device)})
    return mean


@torch.no_grad()
def sample(
    simulator: Simulator,
    z_BZ: Tensor,
    steps: int,
    generator: torch.Generator | None = None,
    intervene: Sequence[Intervention] = (),
) -> Trajectory:
    """Rollouts from z: modal, or stochastic where a generator is given."""
    draws = None if generator is None else [simulator.draw_noise(len(z_BZ), generator) for _ in range(steps + 1)]
    return simulator.rollout(z_BZ, steps, noise=draws, intervene=intervene)


def main(config: RecordSamplesConfig) -> None:
    device = cli.device_of(config.device)
    torch.set_num_threads(config.threads)
    cli.require(1, samples=config.samples, steps=config.steps, batch=config.batch)
    simulator = load_simulator(config.simulator, device)
    name = fingerprint(simulator.agent)
    intervene = build(config.intervention, name)
    generator = torch.Generator(device).manual_seed(config.seed)
    rng = np.random.default_rng(config.seed)
    inputs = {"simulator": config.simulator}
    if intervene:
        inputs["hidden_states"] = config.intervention.basis
    meta: list[dict[str, object]]
    if config.rollouts is None:
        z = torch.randn(config.samples, simulator.latent_size, generator=generator, device=device)
        z, meta = simulator.normalise(z), [{"start": None} for _ in range(config.samples)]
    else:
        inputs["rollouts"] = config.rollouts
        store = RolloutStore(config.rollouts)
        if store.manifest["facts"].get("source") != "real":
            raise UserError(f"{config.rollouts} holds no real rollouts to start from")
        if store.spec.env_id != simulator.spec.env_id:
            raise UserError(f"{config.rollouts} is of {store.spec.env_id}, the simulator is of {simulator.spec.env_id}")
        starts = store.window_starts(simulator.initial_frames)
        starts = starts[rng.choice(len(starts), config.samples, replace=len(starts) < config.samples)]
        z = torch.cat(
            [
                informed_latents(simulator, store, starts[i : i + config.batch], simulator.initial_frames)
                for i in range(0, config.samples, config.batch)
            ]
        )
        meta = [{"start": [int(e), int(t)]} for e, t in starts]
    out = config.data_save_dir or config.out
    keep_unaltered(out, bool(intervene))
    with artefacts.new_run(out, STAGE, config, inputs, overwrite=config.overwrite) as run:
        artefacts.write_json(run.path / "spec.json", simulator.spec.to_json())
        ended = 0
        with StoreWriter(run.path) as writer, bar("simulating", config.samples, "rollouts") as progress:
            for i in range(0, config.samples, config.batch):
                part = slice(i, i + config.batch)
                noise = generator if config.stochastic else None
                trajectory = sample(simulator, z[part], config.steps, noise, intervene)
                for episode in to_episodes(trajectory, z[part], simulator.agent.obs_name, meta[part]):
                    writer.add(episode)
                    ended += episode.terminated
                    progress.advance()
        run.facts = {
            "agent": name,
            "source": "simulated",
            "simulator": fingerprint(simulator),
            "interventions": [repr_of(i) for i in intervene],
        }
        run.record("ended_share", ended / config.samples, "share of rollouts", config.samples)
    print(f"simulated {config.samples} rollouts of up to {config.steps} steps, {ended} ended: {out}")


if __name__ == "__main__":
    cli.run(RecordSamplesConfig, main, STAGE)
