"""Where a simulated rollout starts: from a random latent, from one that is inferred from frames, or from what is known.

A recording knows the first frames of a start and what the agent remembered.  A *known start* shows the last of these
frames unchanged, with that memory; an inferred one shows what the world makes of them, and a memory that it makes up.
Known starts are kept as latents of a world of their own (``KnownStarts``): the initial frames and the agent's state,
flat.  So whatever is done from latents can be done from them, and gradients pass to frames and state alike.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from core.contracts import Agent, EnvSpec, Shown, UserError
from core.directions import fingerprint
from core.episodes import Episode, RolloutStore
from core.roll import Recorded, Simulator, blank, joined_starts
from core.trees import Tree, each, flatten, leaves, unflatten
from generative.fields import as_read

Informed = Literal["recorded", "inferred"]
LOG_STD = -5.0  # of a latent that is known
AT_ONCE = 32  # windows looked at at once


def begin_at(world: Any, obs: Mapping[str, Tensor]) -> tuple[Tree, Shown]:
    """The start that shows the last of some observations [B, I, ...] unchanged, as ``World.start`` gives one.

    A world that has no way of its own (``begin_at``) starts from the latent that it infers, but for what it shows.
    """
    own = getattr(world, "begin_at", None)
    if own is not None:
        state, shown = own(obs)
        return state, shown
    state, shown = _begin_inferred(world, obs)
    like = shown.reward_B.dtype
    return state, shown._replace(obs={k: as_read(field, obs[k][:, -1], like) for k, field in world.spec.obs.items()})


def informed_by(world: Any, asked: Informed | None) -> Informed:
    """How starts are taken from recorded frames: as asked, or as the world's kind was trained to."""
    own: Informed = getattr(world, "informed", "inferred")
    return asked or own


@torch.no_grad()
def note_forgotten(simulator: Simulator[Any], asked: Informed | None, flag: str) -> None:
    """Say that an agent which remembers begins with its initial state at starts whose recording knows better, where
    nobody asked for that: its simulator gives it no memory."""
    if asked is not None or simulator.memory is not None or informed_by(simulator.world, None) != "inferred":
        return
    agent = simulator.agent
    seen, state, none = blank(agent, 1), agent.initial(1), torch.zeros(1, dtype=torch.bool)
    other = each(lambda x: x + 1 if x.is_floating_point() else x, state)
    either = (leaves(agent.advance(seen, one, none.to(next(leaves(one)).device))) for one in (state, other))
    if not all(torch.equal(a, b) for a, b in zip(*either, strict=True)):
        print(
            "note: this simulator gives the agent no memory, so it remembers nothing at any start; "
            f"{flag} recorded begins with what it remembered there",
            file=sys.stderr,
        )


def started(world: Any, obs: Mapping[str, Tensor], asked: Informed | None = None) -> tuple[Tree, Shown]:
    """The starts of windows of initial observations [N, I, ...], shown unchanged or inferred: as asked, or as the
    world's kind was trained to."""
    begin = begin_at if informed_by(world, asked) == "recorded" else _begin_inferred
    rows = range(0, len(next(iter(obs.values()))), AT_ONCE)
    return joined_starts([begin(world, {k: x[i : i + AT_ONCE] for k, x in obs.items()}) for i in rows])


def _begin_inferred(world: Any, obs: Mapping[str, Tensor]) -> tuple[Tree, Shown]:
    state, shown = world.start(world.normalise(world.infer(obs)[0]))
    return state, shown


def held_frame(spec: EnvSpec, window: Mapping[str, np.ndarray], device: torch.device) -> Recorded:
    """No world: the last of some observations [N, I, ...] for ever."""
    return Recorded(spec, {k: torch.from_numpy(v[:, -1:]).to(device) for k, v in window.items()})


class KnownStarts(nn.Module):
    """A world whose latents are known starts; in all else the world that it is made of."""

    def __init__(self, world: Any, state_size: int) -> None:
        super().__init__()
        self.world, self.spec, self.initial_frames, self.state_size = (
            world,
            world.spec,
            world.initial_frames,
            state_size,
        )
        self.sizes = [self.initial_frames * field.size for field in self.spec.obs.values()]
        self.latent_size = sum(self.sizes) + state_size

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The world's: by its weights (and its user's module) it is the same."""
        return self.world.state_dict(*args, **kwargs)

    @property
    def source_sha256(self) -> str:
        return str(getattr(self.world, "source_sha256", ""))

    def pack(self, obs: Mapping[str, Tensor], state_BS: Tensor) -> Tensor:
        """Initial observations [B, I, ...], and the agent's state before the last of them, as latents [B, Z]."""
        parts = []
        for k, field in self.spec.obs.items():
            read = as_read(field, obs[k].flatten(0, 1), state_BS.dtype)
            parts.append(read.reshape(len(state_BS), -1))
        return torch.cat([*parts, state_BS], 1)

    def unpack(self, z_BZ: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """``pack`` undone; images float in [0, 1]."""
        *flat, state = z_BZ.split([*self.sizes, self.state_size], 1)
        shapes = [(len(z_BZ), self.initial_frames, *field.shape) for field in self.spec.obs.values()]
        return {k: x.reshape(shape) for k, x, shape in zip(self.spec.obs, flat, shapes, strict=True)}, state

    def start(self, z_BZ: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        return begin_at(self.world, self.unpack(z_BZ)[0])

    def step(self, state: Tree, action_BA: Tensor, noise: Tree | None = None) -> tuple[Tree, Shown]:
        out: tuple[Tree, Shown] = self.world.step(state, action_BA, noise)
        return out

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tree:
        out: Tree = self.world.draw_noise(batch, generator)
        return out

    def normalise(self, z_BZ: Tensor) -> Tensor:
        """Every latent is legal."""
        return z_BZ

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The observations themselves, with an agent that remembers nothing yet: what it does is not in them."""
        count = len(next(iter(obs.values())))
        like = next(self.parameters(), torch.zeros(()))
        z = self.pack(obs, like.new_zeros(count, self.state_size))
        return z, torch.full_like(z, LOG_STD)

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        out: Tensor = self.world.observe(obs, action_BL, seen_BL)
        return out


@dataclass(frozen=True)
class KnownMemory:
    """The agent's state in a known start, to core.contracts.Memory."""

    world: KnownStarts
    agent: Agent

    def __call__(self, z_BZ: Tensor) -> Tree:
        return unflatten(self.world.unpack(z_BZ)[1], self.agent.initial(1))


def from_known(simulator: Simulator[Any]) -> Simulator[Any]:
    """The simulator whose latents are known starts."""
    world = KnownStarts(simulator.world, flatten(simulator.agent.initial(1)).shape[1])
    return Simulator(simulator.agent, world, KnownMemory(world, simulator.agent))


def as_started(simulator: Simulator[Any], store: RolloutStore) -> Simulator[Any]:
    """The simulator whose latents are those of simulated rollouts."""
    return from_known(simulator) if store.manifest["facts"].get("start") == "recorded" else simulator


@torch.no_grad()
def known_latents(simulator: Simulator[Any], store: RolloutStore, starts: np.ndarray, device: torch.device) -> Tensor:
    """Latents [N, Z] of ``from_known(simulator)`` of the windows of initial observations at ``starts`` int64 [N, 2].

    UserError where the recording does not know what this agent remembered.
    """
    recorded, own = store.manifest["facts"].get("agent"), fingerprint(simulator.agent)
    if recorded != own:
        raise UserError(
            f"{store.path} was recorded with agent {recorded}, so what agent {own} remembered there is not known: "
            "record rollouts with this agent, or start with --start inferred"
        )
    known = from_known(simulator).world
    column = state_column_of(simulator.agent, store.episode(int(starts[0, 0])))
    lead = known.initial_frames - 2  # the row whose state is the one before the last initial observation
    names = list(known.spec.obs)
    window = store.read_windows([f"obs/{name}" for name in names], starts, known.initial_frames)
    before = np.maximum(starts + [0, lead], 0)
    read = torch.from_numpy(store.read_windows([column], before, 1)[column][:, 0]).to(device)
    first = torch.from_numpy(starts[:, 1] + lead < 0).to(device)  # nothing was seen before
    state = torch.where(first[:, None], flatten(simulator.agent.initial(len(starts))), read)
    return known.pack({name: torch.from_numpy(window[f"obs/{name}"]).to(device) for name in names}, state)  # type: ignore[no-any-return]


def state_column_of(agent: Agent, episode: Episode) -> Literal["state", "h"]:
    """The column that holds the agent's whole state along an episode, flat, float32 [T(+1), S]: the one kept beside h,
    or h itself where that is all of it.  UserError where it is neither."""
    column: Literal["state", "h"] = "h" if episode.state is None else "state"
    kept, size = getattr(episode, column).shape[1], flatten(agent.initial(1)).shape[1]
    if kept != size:
        raise UserError(
            f"these episodes hold {kept} of the {size} numbers of the agent's state, so none can begin from it; record "
            "them again, or let starts be inferred (--start inferred; of validation.fidelity --start_from inferred)"
        )
    return column
