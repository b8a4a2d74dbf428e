"""The learned world: frames -> latent -> RSSM -> frames, to core.contracts.World and Inference.

No agent is in it; ``load_simulator`` gives both (core.roll.Simulator).  Reward and terminal are read from d_t alone:
it holds all that was known before the new frame, and a world that hides its last frame (Procgen) offers no posterior
just where they matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from agents.networks import images
from agents.recurrent import AgentConfig, RecurrentAgent
from core.artefacts import WEIGHTS, load_json, load_weights, read_manifest, save_weights, write_json
from core.config import from_json, to_json
from core.contracts import EnvSpec, Shown, UserError
from core.roll import Moment, Simulator, Trajectory, act, choose as choose_action, gumbel, one_hot, trajectory_of
from core.trees import Tree, flatten, unflatten
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
from generative.rssm import RSSM, GridRSSM, ModelConfig, choose

MAX_LOG_STD = 5.0


class WorldPath(NamedTuple):
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


class WorldState(NamedTuple):
    """Where the world is, after what it showed."""

    d_BD: Tensor
    s_BS: Tensor


class Beginning(NamedTuple):
    """What a latent stands for, just before the first frame: world, last action (one-hot), and what the agent
    remembers (flat)."""

    state: WorldState
    action_BA: Tensor
    memory_BS: Tensor


class RSSMWorld(nn.Module):
    """Encoder -> z -> RSSM -> frames.

    memory_size: numbers of the agent's state, which is read from the latent, too; bounded: they lie in (-1, 1).
    """

    def __init__(self, config: ModelConfig, spec: EnvSpec, memory_size: int, bounded: bool = True) -> None:
        super().__init__()
        self.config, self.spec, self.memory_size, self.bounded = config, spec, memory_size, bounded
        (self.obs_name,) = spec.obs
        self.latent_size, self.initial_frames = config.latent_size, config.initial_frames
        d, h, a = config.deterministic_size, memory_size, spec.n_actions
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
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    # From frames to a latent

    def embed_frames(self, frames: Tensor) -> Tensor:
        """Frames [..., 64, 64, 3] uint8 or float -> embeddings [..., E]."""
        flat = images(frames.flatten(0, -4)).permute(0, 2, 3, 1)
        with self.precision.cast(flat.device):
            e = self.embed(self.encoder(flat)).to(flat.dtype)
        return e.unflatten(0, frames.shape[:-3])

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.infer_from(self.embed_frames(obs[self.obs_name]))

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

    def begin(self, z_BZ: Tensor, z_memory_BZ: Tensor | None = None) -> Beginning:
        """What a latent stands for; the memory may come from a latent of its own, so that training can detach it."""
        d, s = self.start_world(z_BZ).split([self.config.deterministic_size, self.rssm.stochastic_size], -1)
        both = self.start_agent(z_BZ if z_memory_BZ is None else z_memory_BZ)
        memory, a = both.split([self.memory_size, self.spec.n_actions], -1)
        s = choose(self.rssm.log_probs(s), None)
        memory = torch.tanh(memory) if self.bounded else memory
        return Beginning(WorldState(torch.tanh(d), s), choose_action(a, self.spec.parts)[1], memory)

    def start(self, z_BZ: Tensor, noise: Tensor | None = None) -> tuple[WorldState, Shown]:
        begun = self.begin(z_BZ)
        return self.step(begun.state, begun.action_BA, noise)

    def memory(self, z_BZ: Tensor) -> Tensor:
        """The agent's flat state before the first frame, [B, memory_size]."""
        return self.begin(z_BZ).memory_BS

    def decode_unclamped(self, d: Tensor, s: Tensor) -> Tensor:
        """World states [N, D], [N, S] -> frames [N, 64, 64, 3], some values outside [0, 1]."""
        with self.precision.cast(d.device):
            frames: Tensor = self.decoder(torch.cat([d, s], -1)).to(d.dtype)
        return frames

    def decode(self, d: Tensor, s: Tensor) -> Tensor:
        """World states [N, D], [N, S] -> frames [N, 64, 64, 3] in [0, 1]."""
        return clamp_straight_through(self.decode_unclamped(d, s))

    def step(self, state: WorldState, action_BA: Tensor, noise: Tensor | None = None) -> tuple[WorldState, Shown]:
        d = self.rssm.transition(state.s_BS, action_BA, state.d_BD)
        s = choose(self.rssm.prior(d), noise)
        obs = {self.obs_name: self.decode(d, s)}
        ending = torch.sigmoid(self.terminal_head(d)[:, 0])
        return WorldState(d, s), Shown(obs, self.reward_head(d)[:, 0], ending, d)

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tensor:
        return gumbel((batch, self.rssm.stochastic_size), generator, next(self.parameters()))

    # Along recorded frames

    def unroll(
        self,
        state: WorldState,
        first_BA: Tensor,
        e_BLE: Tensor,
        action_BL: Tensor,
        seen_BL: Tensor,
        noise_BLS: Tensor | None,
    ) -> WorldPath:
        """World states along L recorded steps, ``first`` the action that led to the first: the posterior's (drawn where
        noise is given) where a frame is seen, the prior's mode where not."""
        later = one_hot(action_BL[:, :-1], self.spec.parts, e_BLE)
        last = torch.cat([first_BA[:, None], later], 1)
        inputs = (last, e_BLE, seen_BL) if noise_BLS is None else (last, e_BLE, seen_BL, noise_BLS)
        with self.precision.cast(e_BLE.device) if self.config.layout == "grid" else nullcontext():
            return WorldPath(*unroll(self.rssm, (state.d_BD, state.s_BS), inputs))

    def path(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> WorldPath:
        """Filter recorded frames [B, initial_frames - 1 + L, ...] without noise.

        Frame ``initial_frames - 1 + i`` is simulated step i, at which ``action[:, i]`` was taken.
        """
        e = self.embed_frames(obs[self.obs_name])
        z, _ = self.infer_from(e[:, : self.initial_frames])
        begun = self.begin(z)
        return self.unroll(begun.state, begun.action_BA, e[:, self.initial_frames - 1 :], action_BL, seen_BL, None)

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        """Posterior deterministic states d_BLD along recorded frames (see ``path``)."""
        return self.path(obs, action_BL, seen_BL).d_BLD

    def reconstruct(self, path: WorldPath) -> Tensor:
        """Frames [B, L, 64, 64, 3] of the states along a path."""
        frames = self.decode(path.d_BLD.flatten(0, 1), path.s_BLS.flatten(0, 1))
        return frames.unflatten(0, path.d_BLD.shape[:2])


@dataclass(frozen=True)
class TrainedMemory:
    """A trained world's memory of an agent's state, to core.contracts.Memory.  like: a state of this agent."""

    world: RSSMWorld
    like: Tree

    def __call__(self, z_BZ: Tensor) -> Tree:
        return unflatten(self.world.memory(z_BZ), self.like)


def simulator_of(config: ModelConfig, agent: RecurrentAgent) -> Simulator[RSSMWorld]:
    """A new simulator around an agent; its parameters are the world's."""
    like = agent.initial(1).detach()
    world = RSSMWorld(config, agent.spec, flatten(like).shape[1])
    return Simulator(agent, world, TrainedMemory(world, like))


def teacher_forced(
    simulator: Simulator[RSSMWorld], obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor
) -> Trajectory:
    """A simulation that is shown every recorded frame (see ``RSSMWorld.path``); row i is simulated step i.

    Frames are decoded from states that have seen them; reward and terminal are foretold from the frames
    before; the agent follows the decoded frames.
    """
    agent, world = simulator.agent, simulator.world
    path = world.path(obs, action_BL, seen_BL)
    frames = world.reconstruct(path)
    z, _ = world.infer({k: v[:, : world.initial_frames] for k, v in obs.items()})
    state, not_first = simulator.remembered(z), torch.zeros_like(seen_BL[:, 0])
    d = path.d_BLD
    reward, ending = world.reward_head(d)[..., 0], torch.sigmoid(world.terminal_head(d)[..., 0])
    moments = []
    for i in range(seen_BL.shape[1]):
        shown = Shown({world.obs_name: frames[:, i]}, reward[:, i], ending[:, i], d[:, i])
        t_B = torch.full_like(action_BL[:, i], i)
        acted = act(agent, shown.obs, state, not_first, t_B)
        state, action = acted.state, action_BL[:, i]
        moments.append(Moment(t_B, (), shown, acted, action, acted.logits_BA, seen_BL[:, i]))
    return trajectory_of(moments)


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


def save_simulator(simulator: Simulator[RSSMWorld], path: Path, name: str = WEIGHTS, half: bool = False) -> None:
    """Weights (the agent's among them) and what is needed to build the simulator again.

    half: store all but the agent's as float16; they are loaded as float32.
    """
    agent: Any = simulator.agent
    about = {
        "model": to_json(simulator.world.config),
        "net": to_json(agent.config),
        "spec": simulator.world.spec.to_json(),
    }
    write_json(path / "simulator.json", about)
    save_weights(as_module(simulator), path / name, half=(lambda n: not n.startswith("agent.")) if half else None)


def as_module(simulator: Simulator[RSSMWorld]) -> nn.Module:
    """World and agent as one module, whose names the weights on disk have: the agent's begin with ``agent.``."""
    both = nn.Module()
    agent: Any = simulator.agent
    both.add_module("agent", agent)
    for name, part in simulator.world.named_children():
        both.add_module(name, part)
    return both


def load_simulator(path: Path, device: torch.device | str = "cpu", name: str = WEIGHTS) -> Simulator[RSSMWorld]:
    """The simulator of a run directory, frozen, in eval mode.  UserError if half-written or misfitting."""
    path = Path(path)
    manifest = read_manifest(path)
    if "simulator.json" not in manifest["files"]:
        raise UserError(f"{path} holds no simulator (stage {manifest['stage']!r} wrote it)")
    about = load_json(path, "simulator.json")
    if not isinstance(about, dict) or not all(key in about for key in ("model", "net", "spec")):
        raise UserError(f"{path / 'simulator.json'} is not the description of a simulator; copy or train it again")
    agent = RecurrentAgent(from_json(AgentConfig, about["net"]), renewed(EnvSpec.from_json(about["spec"])))
    simulator = simulator_of(from_json(ModelConfig, about["model"]), agent)
    both = as_module(simulator)
    load_weights(both, path, name)
    both.to(device).eval().requires_grad_(False)
    return simulator
