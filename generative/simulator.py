"""The simulator: a learned world with the very agent inside, to core.contracts.Simulator.

Reward and terminal are read from d_t alone: it holds all that was known before the new frame, and a
world that hides its last frame (Procgen) offers no posterior just where they matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agents.networks import images
from agents.recurrent import AgentConfig, RecurrentAgent
from core.artefacts import load_weights, read_manifest, save_weights, write_json
from core.config import from_json, read_json, to_json
from core.contracts import (
    EnvSpec,
    Intervention,
    SimState,
    StepNoise,
    StepOut,
    UserError,
    apply_interventions,
    rollout as rollout_by_steps,
    straight_through,
)
from generative.nets import ConvDecoder, ConvEncoder, clamp_straight_through, mlp
from generative.rssm import RSSM, ModelConfig, choose, gumbel

MAX_LOG_STD = 5.0


class World(NamedTuple):
    """World states along a window; log-probabilities [B, L, groups, classes]."""

    d_BLD: Tensor
    s_BLS: Tensor
    prior: Tensor
    posterior: Tensor


@dataclass(frozen=True)
class Precision:
    """Whether the convolutions run in bfloat16; the rest is float32."""

    bf16: bool = False

    def cast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.bf16)


class RSSMSimulator(nn.Module):
    """Encoder -> z -> RSSM -> frames -> agent -> action -> RSSM ..."""

    def __init__(self, config: ModelConfig, agent: RecurrentAgent) -> None:
        super().__init__()
        self.config, self.agent, self.spec = config, agent, agent.spec
        self.latent_size, self.initial_frames = config.latent_size, config.initial_frames
        d, h, a = config.deterministic_size, agent.hidden_size, agent.n_actions
        width = config.hidden_size
        self.encoder = ConvEncoder(config.depth)
        self.embed = nn.Linear(self.encoder.size, width)
        self.rssm = RSSM(config, a, width)
        s = self.rssm.stochastic_size
        self.decoder = ConvDecoder(d + s, config.depth)
        self.reward_head = mlp(d, width, 1, config.head_layers)
        self.terminal_head = mlp(d, width, 1, config.head_layers)
        self.infer_cell = nn.GRUCell(width, width)
        self.infer_head = mlp(width, width, 2 * config.latent_size, 1)
        self.start_world = mlp(config.latent_size, width, d + s, 1)
        self.start_agent = mlp(config.latent_size, width, h + a, 1)
        self.precision = Precision()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    # From frames to a latent

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Frames [..., 64, 64, 3] uint8 or float -> embeddings [..., E]."""
        flat = images(frames.flatten(0, -4)).permute(0, 2, 3, 1)
        with self.precision.cast(flat.device):
            e = self.embed(self.encoder(flat)).to(self.embed.weight.dtype)
        return e.unflatten(0, frames.shape[:-3])

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.infer_from(self.embed_frames(obs[self.agent.obs_name]))

    def infer_from(self, e_BIE: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-standard-deviation of z from the embeddings of the initial frames."""
        if e_BIE.shape[1] != self.initial_frames:
            raise ValueError(f"infer takes {self.initial_frames} frames, got {e_BIE.shape[1]}")
        x = e_BIE.new_zeros(e_BIE.shape[0], self.infer_cell.hidden_size)
        for i in range(self.initial_frames):
            x = self.infer_cell(e_BIE[:, i], x)
        mean, log_std = self.infer_head(x).chunk(2, -1)
        return self.normalise(mean), log_std.clamp(-MAX_LOG_STD, MAX_LOG_STD)

    def normalise(self, z_BZ: Tensor) -> Tensor:
        """The nearest legal latent: a unit vector on the hypersphere, anything for a Gaussian."""
        return nn.functional.normalize(z_BZ, dim=-1) if self.config.latent == "hypersphere" else z_BZ

    # From a latent to a rollout

    def start(self, z_BZ: Tensor) -> SimState:
        return self.start_from(z_BZ, z_BZ)

    def start_from(self, z_BZ: Tensor, z_agent_BZ: Tensor) -> SimState:
        """``start`` with a latent of its own for the agent's part, so that training can detach it."""
        d, s = self.start_world(z_BZ).split([self.config.deterministic_size, self.rssm.stochastic_size], -1)
        h, a = self.start_agent(z_agent_BZ).split([self.agent.hidden_size, self.agent.n_actions], -1)
        alive = torch.ones(z_BZ.shape[0], dtype=torch.bool, device=z_BZ.device)
        s = choose(self.rssm.log_probs(s), None)
        return SimState(torch.tanh(d), s, torch.tanh(h), straight_through(a)[1], alive, 0)

    def decode(self, d: Tensor, s: Tensor) -> Tensor:
        """World states [N, D], [N, S] -> frames [N, 64, 64, 3] in [0, 1]."""
        with self.precision.cast(d.device):
            frames = self.decoder(torch.cat([d, s], -1)).to(d.dtype)
        return clamp_straight_through(frames)

    def step(
        self,
        state: SimState,
        action: Tensor | None = None,
        noise: StepNoise | None = None,
        intervene: Sequence[Intervention] = (),
        env_grads: bool = True,
    ) -> tuple[SimState, StepOut]:
        last = state.action_BA if env_grads else state.action_BA.detach()
        d = self.rssm.transition(state.s_BS, last, state.d_BD)
        s = choose(self.rssm.prior(d), None if noise is None else noise.s_BS)
        frames = self.decode(d, s)
        reward, terminal = self.reward_head(d)[:, 0], torch.sigmoid(self.terminal_head(d)[:, 0])
        alive = state.alive_B if state.t == 0 else state.alive_B & (terminal <= 0.5)
        obs = {self.agent.obs_name: frames}
        goes_on = torch.zeros_like(alive)
        h = self.agent.advance(self.agent.encode(obs), state.h_BH, goes_on)
        h = apply_interventions(intervene, h, state.t)
        logits, value = self.agent.heads(h)
        index, one_hot = straight_through(logits, None if noise is None else noise.action_BA)
        if action is not None:
            index = action
            one_hot = nn.functional.one_hot(action, logits.shape[-1]).to(logits.dtype)
        out = StepOut(obs, reward, terminal, d, h, logits, value, index, alive)
        return SimState(d, s, h, one_hot, alive, state.t + 1), out

    rollout = rollout_by_steps

    def draw_noise(self, batch: int, generator: torch.Generator) -> StepNoise:
        like = self.embed.weight
        sizes = (self.rssm.stochastic_size, self.agent.n_actions)
        s, a = (gumbel((batch, n), generator, like) for n in sizes)
        return StepNoise(s, a)

    # Along recorded frames

    def unroll(
        self, state: SimState, e_BLE: Tensor, action_BL: Tensor, seen_BL: Tensor, noise_BLS: Tensor | None
    ) -> World:
        """World states along L recorded steps: the posterior's (drawn where noise is given) where a frame
        is seen, the prior's mode where not."""
        one_hot = nn.functional.one_hot(action_BL, self.agent.n_actions).to(e_BLE.dtype)
        d, s, last = state.d_BD, state.s_BS, state.action_BA
        rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for i in range(e_BLE.shape[1]):
            d = self.rssm.transition(s, last, d)
            prior, posterior = self.rssm.prior(d), self.rssm.posterior(d, e_BLE[:, i])
            # An unseen state is the prior's mode, as in a modal rollout: drawn ones made the gradient of
            # the frames that follow so noisy that the training diverged.
            drawn = choose(posterior, None if noise_BLS is None else noise_BLS[:, i])
            s = torch.where(seen_BL[:, i, None], drawn, choose(prior, None))
            last = one_hot[:, i]
            rows.append((d, s, prior, posterior))
        return World(*(torch.stack(column, 1) for column in zip(*rows, strict=True)))

    def world(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> World:
        """Filter recorded frames [B, initial_frames - 1 + L, ...] without noise.

        Frame ``initial_frames - 1 + i`` is simulated step i, at which ``action[:, i]`` was taken.
        """
        e = self.embed_frames(obs[self.agent.obs_name])
        z, _ = self.infer_from(e[:, : self.initial_frames])
        return self.unroll(self.start(z), e[:, self.initial_frames - 1 :], action_BL, seen_BL, None)

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        """Posterior deterministic states d_BLD along recorded frames (see ``world``)."""
        return self.world(obs, action_BL, seen_BL).d_BLD

    def reconstruct(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        """Teacher-forced frames [B, L, 64, 64, 3] (see ``world``)."""
        w = self.world(obs, action_BL, seen_BL)
        frames = self.decode(w.d_BLD.flatten(0, 1), w.s_BLS.flatten(0, 1))
        return frames.unflatten(0, w.d_BLD.shape[:2])

    def trainable(self) -> list[nn.Parameter]:
        """Every parameter but the frozen agent's."""
        return [p for name, p in self.named_parameters() if not name.startswith("agent.")]


def save_simulator(simulator: RSSMSimulator, path: Path, name: str = "model.safetensors", half: bool = False) -> None:
    """Weights (the agent's among them) and what is needed to build the simulator again.

    half: store all but the agent's as float16; they are loaded as float32.
    """
    about = {
        "model": to_json(simulator.config),
        "net": to_json(simulator.agent.config),
        "spec": simulator.spec.to_json(),
    }
    write_json(path / "simulator.json", about)
    save_weights(simulator, path / name, half=(lambda n: not n.startswith("agent.")) if half else None)


def load_simulator(path: Path, device: torch.device | str = "cpu", name: str = "model.safetensors") -> RSSMSimulator:
    """The simulator of a run directory, frozen, in eval mode.  UserError if half-written or misfitting."""
    path = Path(path)
    manifest = read_manifest(path)
    if not (path / "simulator.json").exists():
        raise UserError(f"{path} holds no simulator (stage {manifest['stage']!r} wrote it)")
    about = read_json(path / "simulator.json")
    if not isinstance(about, dict) or not all(key in about for key in ("model", "net", "spec")):
        raise UserError(f"{path / 'simulator.json'} is not the description of a simulator; copy or train it again")
    agent = RecurrentAgent(from_json(AgentConfig, about["net"]), EnvSpec.from_json(about["spec"]))
    simulator = RSSMSimulator(from_json(ModelConfig, about["model"]), agent)
    load_weights(simulator, path / name)
    return simulator.to(device).eval().requires_grad_(False)
