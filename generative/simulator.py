"""The simulator: a learned world with the very agent inside, to core.contracts.Simulator.

Reward and terminal are read from d_t alone: it holds all that was known before the new frame, and a
world that hides its last frame (Procgen) offers no posterior just where they matter.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agents.networks import images
from agents.recurrent import AgentConfig, RecurrentAgent
from core.artefacts import WEIGHTS, load_json, load_weights, read_manifest, save_weights, write_json
from core.config import from_json, to_json
from core.contracts import (
    EnvSpec,
    Intervention,
    SimState,
    StepNoise,
    StepOut,
    Trajectory,
    UserError,
    apply_interventions,
    rollout as rollout_by_steps,
    straight_through,
)
from envs.registry import renewed
from generative.nets import (
    CELLS,
    ChannelNorm,
    ConvDecoder,
    ConvEncoder,
    Flat,
    MapDecoder,
    MapEncoder,
    ResidualCell,
    clamp_straight_through,
    conv,
    from_map,
    map_head,
    mlp,
    to_map,
)
from generative.recurrence import unroll
from generative.rssm import RSSM, GridRSSM, ModelConfig, choose, gumbel

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
        width, z = config.hidden_size, config.latent_size
        if config.layout == "vector":
            self.encoder: nn.Module = ConvEncoder(config.depth)
            self.embed: nn.Module = nn.Linear(self.encoder.size, width)
            self.rssm = RSSM(config, a, width)
            s = self.rssm.stochastic_size
            self.decoder: nn.Module = ConvDecoder(d + s, config.depth)
            self.reward_head = mlp(d, width, 1, config.head_layers)
            self.terminal_head = mlp(d, width, 1, config.head_layers)
            self.infer_cell = nn.GRUCell(width, width)
            self.infer_head: nn.Module = mlp(width, width, 2 * z, 1)
            self.start_world: nn.Module = mlp(z, width, d + s, 1)
            self.start_agent = mlp(z, width, h + a, 1)
        else:
            self.encoder = MapEncoder(config.depth)
            self.embed = nn.Identity()
            self.rssm = GridRSSM(config, a, self.encoder.size)
            s = self.rssm.stochastic_size
            self.decoder = MapDecoder(d + s, config.depth)
            self.reward_head = map_head(d, width, 1)
            self.terminal_head = map_head(d, width, 1)
            many = self.initial_frames * self.encoder.size // CELLS
            self.infer_head = Flat(
                conv(many, width), ChannelNorm(width), ResidualCell(width), nn.SiLU(), conv(width, 2 * z // CELLS)
            )
            # Norms here and in front of the tanh of d: without them z and d's first value grew until 97 % of
            # it was saturated, and the training diverged.
            of_world = (d + s) // CELLS
            self.start_world = Flat(
                conv(z // CELLS, width), ChannelNorm(width), ResidualCell(width), nn.SiLU(),
                conv(width, of_world), ChannelNorm(of_world),
            )  # fmt: skip
            self.start_agent = map_head(z, width, h + a)
        self.precision = Precision()
        self.swapped = False  # another agent than the one that was trained around
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    # From frames to a latent

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Frames [..., 64, 64, 3] uint8 or float -> embeddings [..., E]."""
        flat = images(frames.flatten(0, -4)).permute(0, 2, 3, 1)
        with self.precision.cast(flat.device):
            e = self.embed(self.encoder(flat)).to(flat.dtype)
        return e.unflatten(0, frames.shape[:-3])

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.infer_from(self.embed_frames(obs[self.agent.obs_name]))

    def infer_from(self, e_BIE: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-standard-deviation of z from the embeddings of the initial frames."""
        if e_BIE.shape[1] != self.initial_frames:
            raise ValueError(f"infer takes {self.initial_frames} frames, got {e_BIE.shape[1]}")
        if self.config.layout == "grid":
            both = to_map(self.infer_head(from_map(torch.cat([to_map(e) for e in e_BIE.unbind(1)], 1))))
            mean, log_std = (from_map(part) for part in both.chunk(2, 1))
        else:
            x = e_BIE.new_zeros(e_BIE.shape[0], self.infer_cell.hidden_size)
            for i in range(self.initial_frames):
                x = self.infer_cell(e_BIE[:, i], x)
            mean, log_std = self.infer_head(x).chunk(2, -1)
        if self.config.latent == "hypersphere":  # an auto-encoder: it is trained without a spread
            return self.normalise(mean), torch.full_like(log_std, -MAX_LOG_STD)
        return mean, log_std.clamp(-MAX_LOG_STD, MAX_LOG_STD)

    def normalise(self, z_BZ: Tensor) -> Tensor:
        """The nearest legal latent: a unit vector on the hypersphere, anything for a Gaussian."""
        return nn.functional.normalize(z_BZ, dim=-1) if self.config.latent == "hypersphere" else z_BZ

    # From a latent to a rollout

    def start(self, z_BZ: Tensor) -> SimState:
        return self.start_from(z_BZ, z_BZ)

    def start_from(self, z_BZ: Tensor, z_agent_BZ: Tensor) -> SimState:
        """``start`` with a latent of its own for the agent's part, so that training can detach it."""
        d, s = self.start_world(z_BZ).split([self.config.deterministic_size, self.rssm.stochastic_size], -1)
        start = self.start_agent(z_agent_BZ)
        h, a = start[:, : -self.agent.n_actions], start[:, -self.agent.n_actions :]
        h = self.agent.initial(z_BZ.shape[0]) if self.swapped else torch.tanh(h)
        alive = torch.ones(z_BZ.shape[0], dtype=torch.bool, device=z_BZ.device)
        s = choose(self.rssm.log_probs(s), None)
        return SimState(torch.tanh(d), s, h, straight_through(a)[1], alive, 0)

    def decode_unclamped(self, d: Tensor, s: Tensor) -> Tensor:
        """World states [N, D], [N, S] -> frames [N, 64, 64, 3], some values outside [0, 1]."""
        with self.precision.cast(d.device):
            frames: Tensor = self.decoder(torch.cat([d, s], -1)).to(d.dtype)
        return frames

    def decode(self, d: Tensor, s: Tensor) -> Tensor:
        """World states [N, D], [N, S] -> frames [N, 64, 64, 3] in [0, 1]."""
        return clamp_straight_through(self.decode_unclamped(d, s))

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
        chance = 0.5 if noise is None or noise.terminal_B is None else noise.terminal_B
        alive = state.alive_B if state.t == 0 else state.alive_B & (terminal <= chance)
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
        like = next(self.agent.parameters())
        sizes = (self.rssm.stochastic_size, self.agent.n_actions)
        s, a = (gumbel((batch, n), generator, like) for n in sizes)
        return StepNoise(s, a, torch.rand(batch, generator=generator, device=like.device, dtype=like.dtype))

    # Along recorded frames

    def unroll(
        self, state: SimState, e_BLE: Tensor, action_BL: Tensor, seen_BL: Tensor, noise_BLS: Tensor | None
    ) -> World:
        """World states along L recorded steps: the posterior's (drawn where noise is given) where a frame
        is seen, the prior's mode where not."""
        one_hot = nn.functional.one_hot(action_BL[:, :-1], self.agent.n_actions).to(e_BLE.dtype)
        last = torch.cat([state.action_BA[:, None], one_hot], 1)
        inputs = (last, e_BLE, seen_BL) if noise_BLS is None else (last, e_BLE, seen_BL, noise_BLS)
        with self.precision.cast(e_BLE.device) if self.config.layout == "grid" else nullcontext():
            return World(*unroll(self.rssm, (state.d_BD, state.s_BS), inputs))

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

    def teacher_forced(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Trajectory:
        """A simulation that is shown every recorded frame (see ``world``); row i is simulated step i.

        Frames are decoded from states that have seen them; reward and terminal are foretold from the frames
        before; the agent follows the decoded frames.
        """
        w = self.world(obs, action_BL, seen_BL)
        frames = self.decode(w.d_BLD.flatten(0, 1), w.s_BLS.flatten(0, 1))
        e = self.agent.encode({self.agent.obs_name: frames}).unflatten(0, seen_BL.shape)
        h = self.start(self.infer({k: v[:, : self.initial_frames] for k, v in obs.items()})[0]).h_BH
        states = []
        for i in range(seen_BL.shape[1]):
            h = self.agent.advance(e[:, i], h, torch.zeros_like(seen_BL[:, i]))
            states.append(h)
        h_BLH = torch.stack(states, 1)
        logits, value = (x.unflatten(0, seen_BL.shape) for x in self.agent.heads(h_BLH.flatten(0, 1)))
        d = w.d_BLD[:, 1:]
        reward, terminal = self.reward_head(d)[..., 0], torch.sigmoid(self.terminal_head(d)[..., 0])
        shown = {self.agent.obs_name: frames.unflatten(0, seen_BL.shape)}
        return Trajectory(shown, w.d_BLD, h_BLH, logits, value, action_BL, reward, terminal, seen_BL)

    def with_agent(self, agent: RecurrentAgent) -> RSSMSimulator:
        """The same world, sharing its weights, with another agent in it; to roll out, not to train.

        That agent begins with its initial state: a latent tells only what the world's own agent remembered.
        Raises UserError for an agent of another game or with other observations or actions.
        """
        for what in ("env_id", "obs", "action_names"):
            if getattr(agent.spec, what) != getattr(self.spec, what):
                raise UserError(f"the agent does not fit this world: its {what} are another's ({agent.spec.env_id})")
        other = copy.copy(self)
        other._modules = {**self._modules, "agent": agent}
        other.swapped = True
        return other

    def trainable(self) -> list[nn.Parameter]:
        """Every parameter but the frozen agent's."""
        return [p for name, p in self.named_parameters() if not name.startswith("agent.")]


def require_finite(simulated: Trajectory | Mapping[str, Tensor]) -> None:
    """UserError naming the first of a simulator's outputs that has NaN or infinite values.

    Of a rollout, while it lasts: the observation of every step that exists, the transition from it, and what the agent
    makes of it.
    """
    parts = simulated if isinstance(simulated, Mapping) else _while_alive(simulated)
    for name, x in parts.items():
        if not torch.isfinite(x).all():
            raise UserError(
                f"the simulator makes NaN or infinite values ({name}): its weights are broken or it runs away; "
                "train it again, or use another one"
            )


def _while_alive(out: Trajectory) -> dict[str, Tensor]:
    alive = out.alive
    states = {**out.obs, "world states": out.d, "hidden states": out.h, "logits": out.logits, "values": out.value}
    # An ending that is no number ends a rollout too, so that it is asked of every step there is.
    parts = {k: x[alive] for k, x in states.items()}
    return parts | {"rewards": out.reward[alive[:, :-1]], "chances of ending": out.terminal[alive[:, :-1]]}


def save_simulator(simulator: RSSMSimulator, path: Path, name: str = WEIGHTS, half: bool = False) -> None:
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


def load_simulator(path: Path, device: torch.device | str = "cpu", name: str = WEIGHTS) -> RSSMSimulator:
    """The simulator of a run directory, frozen, in eval mode.  UserError if half-written or misfitting."""
    path = Path(path)
    manifest = read_manifest(path)
    if "simulator.json" not in manifest["files"]:
        raise UserError(f"{path} holds no simulator (stage {manifest['stage']!r} wrote it)")
    about = load_json(path, "simulator.json")
    if not isinstance(about, dict) or not all(key in about for key in ("model", "net", "spec")):
        raise UserError(f"{path / 'simulator.json'} is not the description of a simulator; copy or train it again")
    agent = RecurrentAgent(from_json(AgentConfig, about["net"]), renewed(EnvSpec.from_json(about["spec"])))
    simulator = RSSMSimulator(from_json(ModelConfig, about["model"]), agent)
    load_weights(simulator, path, name)
    return simulator.to(device).eval().requires_grad_(False)
