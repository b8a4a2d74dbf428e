"""The learned world: observations -> latent -> RSSM -> observations, to core.contracts.World and Inference.

What it makes of each field of an observation is in generative.fields; a *frame* below is an observation with all its
fields.  No agent is in it.  Its kinds are in generative.vector and generative.grid.  Reward and terminal are read from
d_t alone: it holds all that was known before the new frame, and a world that hides its last frame (Procgen) offers no
posterior just where they matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from core.contracts import EnvSpec, Field, Shown
from core.roll import choose as choose_action, gumbel, one_hot
from generative.fields import Scale, VectorEncoder, apart, as_read, error_of_field, noise_size, shown_as
from generative.recurrence import unroll
from generative.rssm import RSSM, ModelConfig, choose

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
    """Encoder -> z -> RSSM -> observations: what worlds of vectors and of maps have in common.

    memory_size: numbers of the agent's state, which is read from the latent, too; bounded: they lie in (-1, 1).
    Raises UserError for an observation that it cannot foretell.
    """

    informed = "inferred"  # generative.starts
    reward_unit = 1.0  # rewards are learned in this unit; what is shown is in the recordings' own
    encoder: nn.Module
    embed: nn.Module
    rssm: RSSM
    decoder: nn.Module
    reward_head: nn.Module
    terminal_head: nn.Module
    start_world: nn.Module
    start_agent: nn.Module

    def __init__(self, config: ModelConfig, spec: EnvSpec, memory_size: int, bounded: bool = True) -> None:
        super().__init__()
        self.config, self.spec, self.memory_size, self.bounded = config, spec, memory_size, bounded
        self.fields = self.foretold(spec)
        self.latent_size, self.initial_frames = config.latent_size, config.initial_frames
        self.precision = Precision()
        self.build()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @staticmethod
    def foretold(spec: EnvSpec) -> dict[str, Field]:
        """The fields of a world's observation that this kind of world foretells, sorted by name.  Raises UserError."""
        raise NotImplementedError

    def build(self) -> None:
        """Make the networks."""
        raise NotImplementedError

    def spread(self, e_BIE: Tensor) -> tuple[Tensor, Tensor]:
        """What the embeddings of the initial observations say of z: mean and log-standard-deviation, unbounded."""
        raise NotImplementedError

    def recurrence_cast(self, device: torch.device) -> AbstractContextManager[object]:
        """The precision that its recurrence runs in."""
        return nullcontext()

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
        mean, log_std = self.spread(e_BIE)
        if self.config.latent == "hypersphere":  # an auto-encoder: it is trained without a spread
            return self.normalise(mean), torch.full_like(log_std, -MAX_LOG_STD)
        return mean, log_std.clamp(-MAX_LOG_STD, MAX_LOG_STD)

    def normalise(self, z_BZ: Tensor) -> Tensor:
        """The nearest legal latent: a unit vector on the hypersphere, anything for a Gaussian."""
        return nn.functional.normalize(z_BZ, dim=-1) if self.config.latent == "hypersphere" else z_BZ

    def begin_at(self, obs: Mapping[str, Tensor]) -> tuple[WorldState, Shown]:
        """The start that shows the last of some observations [B, I, ...] unchanged; s is told of it (posterior)."""
        e = self.embed_obs(obs)
        begun = self.begin(self.normalise(self.infer_from(e)[0]))
        d = self.rssm.transition(begun.state.s_BS, begun.action_BA, begun.state.d_BD)
        s = choose(self.rssm.posterior(d, e[:, -1]), None)
        last = {k: as_read(field, obs[k][:, -1], d.dtype) for k, field in self.fields.items()}
        return WorldState(d, s), self.shown(last, d)

    def shown(self, obs: dict[str, Tensor], d_BD: Tensor) -> Shown:
        """What is shown of a step: the observation, and the reward and ending that are read from d."""
        reward, ending = self.reward_unit * self.reward_head(d_BD)[:, 0], torch.sigmoid(self.terminal_head(d_BD)[:, 0])
        return Shown(obs, reward, ending, d_BD)

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
        return WorldState(d, s), self.shown(self.show(self.foretell(d, s), of_fields), d)

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
        with self.recurrence_cast(e_BLE.device):
            return WorldPath(*unroll(self.rssm, (state.d_BD, state.s_BS), inputs))

    def follow(
        self, state: WorldState, first_BA: Tensor, obs: Mapping[str, Tensor], e: Tensor, action_BL: Tensor,
        seen_BL: Tensor, noise_BLS: Tensor | None,
    ) -> tuple[WorldPath, dict[str, Tensor]]:  # fmt: skip
        """``unroll`` along observations [B, initial_frames - 1 + L, ...] and their embeddings, and what is said of
        every field, [B * L, *shape]."""
        path = self.unroll(state, first_BA, e[:, self.initial_frames - 1 :], action_BL, seen_BL, noise_BLS)
        return path, self.foretell(path.d_BLD.flatten(0, 1), path.s_BLS.flatten(0, 1))

    def drawn(self, begun: Beginning) -> dict[str, Tensor]:
        """What is said of the observation before the first one that is shown, where a latent stands for one."""
        return {}

    def path(
        self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor
    ) -> tuple[WorldPath, dict[str, Tensor]]:
        """Filter recorded frames [B, initial_frames - 1 + L, ...] without noise (see ``follow``).

        Frame ``initial_frames - 1 + i`` is simulated step i, at which ``action[:, i]`` was taken.
        """
        begun, e = self.begun_along(obs)
        return self.follow(begun.state, begun.action_BA, obs, e, action_BL, seen_BL, None)

    def begun_along(self, obs: Mapping[str, Tensor]) -> tuple[Beginning, Tensor]:
        """What the first observations [B, initial_frames - 1 + L, ...] stand for, and the embeddings of all."""
        e = self.embed_obs(obs)
        return self.begin(self.infer_from(e[:, : self.initial_frames])[0]), e

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        """Posterior deterministic states d_BLD along recorded frames (see ``path``)."""
        begun, e = self.begun_along(obs)
        e = e[:, self.initial_frames - 1 :]
        return self.unroll(begun.state, begun.action_BA, e, action_BL, seen_BL, None).d_BLD

    def along(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> list[Shown]:
        """What it shows at every step where it is shown every recorded frame (see ``path``): frames decoded from states
        that have seen them, reward and ending foretold from the frames before."""
        path, said = self.path(obs, action_BL, seen_BL)
        d, frames = path.d_BLD, {k: x.unflatten(0, seen_BL.shape) for k, x in self.show(said).items()}
        reward, ending = self.reward_unit * self.reward_head(d)[..., 0], torch.sigmoid(self.terminal_head(d)[..., 0])
        return [
            Shown({k: x[:, i] for k, x in frames.items()}, reward[:, i], ending[:, i], d[:, i])
            for i in range(d.shape[1])
        ]
