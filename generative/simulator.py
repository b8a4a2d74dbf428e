"""The learned world: observations -> latent -> RSSM -> observations, to core.contracts.World and Inference.

What it makes of each field of an observation is in generative.fields; a *frame* below is an observation with all its
fields.  No agent is in it; ``load_simulator`` gives both (core.roll.Simulator).  Reward and terminal are read from d_t
alone: it holds all that was known before the new frame, and a world that hides its last frame (Procgen) offers no
posterior just where they matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from agents.load import load_agent
from agents.recurrent import AgentConfig, RecurrentAgent
from core.artefacts import (
    MANIFEST,
    WEIGHTS,
    load_bytes,
    load_json,
    load_weights,
    read_manifest,
    save_weights,
    sha256,
    write_atomically,
    write_json,
)
from core.config import from_json, to_json
from core.contracts import Agent, EnvSpec, Shown, UserError
from core.roll import Moment, Simulator, Trajectory, act, choose as choose_action, gumbel, one_hot, trajectory_of
from core.trees import Tree, flatten, unflatten
from envs.registry import renewed
from generative.fields import (
    Scale,
    VectorEncoder,
    apart,
    as_read,
    decoder_of,
    encoder_of,
    error_of_field,
    fields_of,
    noise_size,
    shown_as,
    together,
)
from generative.nets import CELLS, ChannelNorm, Flat, ResidualCell, conv, from_map, map_head, mlp, to_map
from generative.recurrence import unroll
from generative.rssm import RSSM, GridRSSM, ModelConfig, choose

MAX_LOG_STD = 5.0
AGENT = "agent"  # folder of a simulator's run directory with that of its agent, where this is not a RecurrentAgent


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
    """Encoder -> z -> RSSM -> observations.

    memory_size: numbers of the agent's state, which is read from the latent, too; bounded: they lie in (-1, 1).
    Raises UserError for an observation that it cannot foretell.
    """

    def __init__(self, config: ModelConfig, spec: EnvSpec, memory_size: int, bounded: bool = True) -> None:
        super().__init__()
        self.config, self.spec, self.memory_size, self.bounded = config, spec, memory_size, bounded
        self.fields = fields_of(config, spec)
        self.latent_size, self.initial_frames = config.latent_size, config.initial_frames
        d, h, a = config.deterministic_size, memory_size, spec.n_actions
        width, z = config.hidden_size, config.latent_size
        encoders: list[Any] = [encoder_of(field, config) for field in self.fields.values()]
        features = sum(encoder.size for encoder in encoders)
        self.encoder = together(encoders)
        if config.layout == "vector":
            self.embed: nn.Module = nn.Linear(features, width)
            self.rssm = RSSM(config, a, width)
            s = self.rssm.stochastic_size
            self.decoder = together([decoder_of(field, config, d + s) for field in self.fields.values()])
            self.reward_head = mlp(d, width, 1, config.head_layers)
            self.terminal_head = mlp(d, width, 1, config.head_layers)
            self.infer_cell = nn.GRUCell(width, width)
            self.infer_head: nn.Module = mlp(width, width, 2 * z, 1)
            self.start_world: nn.Module = mlp(z, width, d + s, 1)
            self.start_agent = mlp(z, width, h + a, 1)
        else:
            self.embed = nn.Identity()
            self.rssm = GridRSSM(config, a, features)
            s = self.rssm.stochastic_size
            self.decoder = together([decoder_of(field, config, d + s) for field in self.fields.values()])
            self.reward_head = map_head(d, width, 1)
            self.terminal_head = map_head(d, width, 1)
            many = self.initial_frames * features // CELLS
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

    @property
    def scales(self) -> dict[str, Scale | None]:
        """The scale of every field of real numbers; None of the others."""
        encoders = zip(self.fields, apart(self.encoder), strict=True)
        return {k: encoder.scale if isinstance(encoder, VectorEncoder) else None for k, encoder in encoders}

    # From observations to a latent

    def embed_obs(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Observations [..., *shape of the field] -> embeddings [..., E]; images uint8 or float in [0, 1]."""
        like = next(self.parameters())
        features, before = [], torch.Size()
        for (name, field), encoder in zip(self.fields.items(), apart(self.encoder), strict=True):
            before = obs[name].shape[: obs[name].ndim - len(field.shape)]
            x = as_read(field, obs[name].flatten(0, len(before) - 1), like.dtype)
            with self.precision.cast(x.device) if field.means == "image" else nullcontext():
                features.append(encoder(x))
        with self.precision.cast(like.device):
            e: Tensor = self.embed(torch.cat(features, -1) if len(features) > 1 else features[0]).to(like.dtype)
        return e.unflatten(0, before)

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.infer_from(self.embed_obs(obs))

    def infer_from(self, e_BIE: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-standard-deviation of z from the embeddings of the initial observations."""
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

    def foretell(self, d: Tensor, s: Tensor) -> dict[str, Tensor]:
        """World states [N, D], [N, S] -> what is said of every field, [N, *shape]: pixels, some outside [0, 1]; real
        numbers as deviations from their mean; logits (generative.fields)."""
        said, both = {}, torch.cat([d, s], -1)
        for (name, field), decoder in zip(self.fields.items(), apart(self.decoder), strict=True):
            with self.precision.cast(d.device) if field.means == "image" else nullcontext():
                said[name] = decoder(both).to(d.dtype)
        return said

    def show(self, said: Mapping[str, Tensor], noise_BN: Tensor | None = None) -> dict[str, Tensor]:
        """What ``foretell`` said as an agent is shown it; noise: standard Gumbel draws for all fields."""
        noises: Any = [None] * len(self.fields)
        if noise_BN is not None:
            noises = noise_BN.split([noise_size(field) for field in self.fields.values()], -1)
        scales = self.scales
        return {
            k: shown_as(field, said[k], scales[k], noise)
            for (k, field), noise in zip(self.fields.items(), noises, strict=True)
        }

    def errors(self, shown: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of every field how far [...] what is shown is from what was (images float in [0, 1]), in
        ``generative.fields.ERROR_UNITS``."""
        scales = self.scales
        return {k: error_of_field(field, shown[k], target[k], scales[k]) for k, field in self.fields.items()}

    def step(self, state: WorldState, action_BA: Tensor, noise: Tensor | None = None) -> tuple[WorldState, Shown]:
        d = self.rssm.transition(state.s_BS, action_BA, state.d_BD)
        of_state, of_fields = (None, None) if noise is None else noise.tensor_split([self.rssm.stochastic_size], -1)
        s = choose(self.rssm.prior(d), of_state)
        obs = self.show(self.foretell(d, s), of_fields)
        ending = torch.sigmoid(self.terminal_head(d)[:, 0])
        return WorldState(d, s), Shown(obs, self.reward_head(d)[:, 0], ending, d)

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tensor:
        """Standard Gumbel draws [B, S and those of the fields]."""
        size = self.rssm.stochastic_size + sum(map(noise_size, self.fields.values()))
        return gumbel((batch, size), generator, next(self.parameters()))

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
        e = self.embed_obs(obs)
        z, _ = self.infer_from(e[:, : self.initial_frames])
        begun = self.begin(z)
        return self.unroll(begun.state, begun.action_BA, e[:, self.initial_frames - 1 :], action_BL, seen_BL, None)

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        """Posterior deterministic states d_BLD along recorded frames (see ``path``)."""
        return self.path(obs, action_BL, seen_BL).d_BLD

    def along(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> list[Shown]:
        """What it shows at every step where it is shown every recorded frame (see ``path``): frames decoded from states
        that have seen them, reward and ending foretold from the frames before."""
        path = self.path(obs, action_BL, seen_BL)
        d, frames = path.d_BLD, self.reconstruct(path)
        reward, ending = self.reward_head(d)[..., 0], torch.sigmoid(self.terminal_head(d)[..., 0])
        return [
            Shown({k: x[:, i] for k, x in frames.items()}, reward[:, i], ending[:, i], d[:, i])
            for i in range(d.shape[1])
        ]

    def reconstruct(self, path: WorldPath) -> dict[str, Tensor]:
        """Observations [B, L, *shape] of the states along a path, by field."""
        shown = self.show(self.foretell(path.d_BLD.flatten(0, 1), path.s_BLS.flatten(0, 1)))
        return {k: x.unflatten(0, path.d_BLD.shape[:2]) for k, x in shown.items()}


@dataclass(frozen=True)
class TrainedMemory:
    """What a trained world remembers of its own agent's state, to core.contracts.Memory."""

    world: RSSMWorld
    agent: Agent

    def __call__(self, z_BZ: Tensor) -> Tree:
        return unflatten(self.world.memory(z_BZ), self.agent.initial(1))


def simulator_of(config: ModelConfig, agent: Agent) -> Simulator[RSSMWorld]:
    """A new simulator around an agent of any kind; its parameters are the world's.  UserError for an observation that
    cannot be simulated.

    The memory of a RecurrentAgent, a state in (-1, 1), is bounded; any other's state is read from the latent linearly.
    """
    memory_size = flatten(agent.initial(1)).shape[1]
    world = RSSMWorld(config, agent.spec, memory_size, bounded=type(agent) is RecurrentAgent)
    return Simulator(agent, world, TrainedMemory(world, agent))


def teacher_forced(
    simulator: Simulator[Any], obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor
) -> Trajectory:
    """A simulation that is shown every recorded frame, of a world that can be (its ``along``; see ``RSSMWorld``); row i
    is simulated step i.  The agent follows what the world shows.
    """
    agent, world = simulator.agent, simulator.world
    z, _ = world.infer({k: v[:, : world.initial_frames] for k, v in obs.items()})
    state, not_first = simulator.remembered(z), torch.zeros_like(seen_BL[:, 0])
    moments = []
    for i, shown in enumerate(world.along(obs, action_BL, seen_BL)):
        t_B = torch.full_like(seen_BL[:, i], i, dtype=torch.int64)
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


def save_simulator(
    simulator: Simulator[RSSMWorld],
    path: Path,
    name: str = WEIGHTS,
    half: bool = False,
    agent_run: Path | None = None,
) -> None:
    """Weights (the agent's among them) and what is needed to build the simulator again.

    half: store the world's weights, not the statistics of its observations, as float16; they are loaded as float32.
    agent_run: the agent's run directory, which is kept along unless it is a RecurrentAgent.
    """
    agent = simulator.agent
    about: dict[str, Any] = {"model": to_json(simulator.world.config), "spec": simulator.world.spec.to_json()}
    if type(agent) is RecurrentAgent:  # a class made of it is another agent
        about["net"] = to_json(agent.config)
    elif agent_run is None:
        raise ValueError(f"a simulator around a {type(agent).__name__} is saved with its agent's run directory")
    else:
        about[AGENT] = copy_run(agent_run, path / AGENT)
    write_json(path / "simulator.json", about)
    learned = {k for k, _ in simulator.world.named_parameters()}
    save_weights(as_module(simulator), path / name, half=learned.__contains__ if half else None)


def copy_run(source: Path, target: Path) -> str:
    """Copy a whole run directory, all that its manifest names; the SHA-256 of the manifest.  Raises UserError."""
    known = sha256(source / MANIFEST) if (source / MANIFEST).exists() else ""
    if (target / MANIFEST).exists() and sha256(target / MANIFEST) == known:
        return known
    for name in read_manifest(source)["files"]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target / name, load_bytes(source, name))
    write_atomically(target / MANIFEST, (source / MANIFEST).read_bytes())
    return known


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
    if not isinstance(about, dict) or not {"model", "spec"} <= about.keys() or not {"net", AGENT} & about.keys():
        raise UserError(f"{path / 'simulator.json'} is not the description of a simulator; copy or train it again")
    spec = renewed(EnvSpec.from_json(about["spec"]))
    agent: Agent
    if "net" in about:
        agent = RecurrentAgent(from_json(AgentConfig, about["net"]), spec)
    else:
        read_manifest(path / AGENT)
        if sha256(path / AGENT / MANIFEST) != about[AGENT]:
            raise UserError(f"{path / AGENT} is not the agent that this simulator was trained around; copy it again")
        agent = load_agent(path / AGENT)
    simulator = simulator_of(from_json(ModelConfig, about["model"]), agent)
    both = as_module(simulator)
    load_weights(both, path, name)
    both.to(device).eval().requires_grad_(False)
    return simulator
