"""A world that sees what it showed: its state holds the last two frames beside what it remembers.

The next frame is painted from the last one.  Its blocks are moved (generative.alignment); per pixel, masks choose
between the moved frame, the same a pixel further up, down, left or right, the unmoved one and a generated one, which is
the moved frame and a residual.  The stochastic state s enters the picture by the residual alone, so that what can be
copied is never put into it.  The memory d, a map of 8 x 8 cells, keeps what has left the view.

In order, within a step: what the last two frames show (near: 16 x 16 cells, far: 8 x 8), d_t from d, s, the action and
far; s_t by its prior, from d_t; the picture from near, d_t, the action and s_t; reward and ending from the picture's
trunk and d_t, all of which are known before the new frame.  In training s_t comes from its posterior, which is shown
what the new frame and the last one show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.contracts import EnvSpec, Shown, UserError
from core.roll import gumbel, one_hot
from generative.alignment import (
    BLOCKS,
    SIDE,
    Shifts,
    align,
    around_shift,
    coarse_costs,
    coarse_shifts,
    to_blocks,
    to_planes,
    whole_shift,
)
from generative.fields import Scale, as_read, error_of_field, one_frame
from generative.nets import (
    CELLS,
    FRAME,
    PATCH,
    ChannelNorm,
    Flat,
    MapDecoder,
    ResidualCell,
    clamp_straight_through,
    conv,
    from_map,
    map_head,
    mlp,
    to_map,
)
from generative.recurrence import unroll
from generative.recurrent_world import MAX_LOG_STD, Precision, WorldPath
from generative.rssm import GridRSSM, ModelConfig, choose

NEAR = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # pixels by which masks can correct where a part was moved to
CANDIDATES = len(NEAR) + 2  # of a pixel; besides: the unmoved frame, the generated one
COST_SCALE = 5.0  # mean absolute differences are small numbers
SPREAD = 0.4  # pixels, an untrained world's about how far a frame moves
COPIED = 3.0  # how much likelier, in nats, an untrained world finds the moved frame than any other candidate
FEW = 16  # channels of a cell of what the shift of the whole frame is read from


class ContextState(NamedTuple):
    """The frames shown last and before that, planes [B, 3, 64, 64] in [0, 1], how far the one before had moved from its
    predecessor, [B, 2] (``whole_shift``), and what is remembered."""

    last: Tensor
    before: Tensor
    moved: Tensor
    d_BD: Tensor
    s_BS: Tensor


class Seen(NamedTuple):
    """What two frames show: maps [N, 16, 16, C] and flattened maps [N, E]; cell by cell, so that rows can be cut and
    joined without another order in memory, which makes convolutions slow."""

    near: Tensor
    found: Tensor  # maps [N, 16, 16, K], ``coarse_costs``
    moved: Tensor  # [N, 2 * motions], ``whole_shift``, the last motion first
    far_NE: Tensor


class Outcome(NamedTuple):
    """What a transition brings, [N] each."""

    size: Tensor  # of a reward, where there is one
    paid_end: Tensor  # logit that there is, where the transition ends the episode
    ended: Tensor  # logit that it does
    paid_on: Tensor  # logit of a reward where it does not

    @property
    def paid_N2(self) -> Tensor:
        """The chance of a reward at all where the episode [goes on, ends], [N, 2]."""
        return torch.sigmoid(torch.stack([self.paid_on, self.paid_end], -1))

    @property
    def reward(self) -> Tensor:
        """The mean reward."""
        on, end = self.paid_N2.unbind(-1)
        return self.size * torch.lerp(on, end, torch.sigmoid(self.ended))


class Sketch(NamedTuple):
    """A next frame as far as it is known before s: the trunk's features [N, C, 16, 16], how its parts and the
    whole move, the last frame and the moved one."""

    trunk: Tensor
    shifts: Shifts
    moved: Tensor  # pixels down and right by which the frame as a whole is said to move, [N, 2]
    last: Tensor
    aligned: Tensor


def with_own_ending(apart_N3: Tensor) -> Tensor:
    """The parts of an ``Outcome``, [N, 4], from those of a world without ``joint_outcome``."""
    return torch.cat([apart_N3, apart_N3[:, 1:2]], 1)


def with_joint_outcome(state: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those weights of a world without ``joint_outcome`` that one with it has more rows of: it foretells the same."""
    grown = {k: x for k, x in state.items() if k.startswith("outcome_head") and x.shape != want[k].shape}
    return {k: torch.cat([x, x[1:2]]) for k, x in grown.items()}


def doubled(x: Tensor) -> Tensor:
    """Maps [N, C, 8, 8] -> [N, C, 16, 16], every cell four times."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


class PlainCell(nn.Module):
    """x + conv1(relu(conv3(relu(x)))), begun near the identity.

    Without a norm, and with ReLU: on a CPU norms and SiLUs took as long as the convolutions.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = conv(channels, channels)
        self.second = nn.Conv2d(channels, channels, 1)
        with torch.no_grad():
            self.second.weight.mul_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(F.relu(self.first(F.relu(x))))
        return out


class PooledCell(PlainCell):
    """``PlainCell`` that also hears the mean over all cells."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.whole = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(x)
        whole = self.whole(y.mean((2, 3)))
        out: Tensor = x + self.second(F.relu(self.first(y) + whole[:, :, None, None]))
        return out


class PairEncoder(nn.Module):
    """Two frames -> ``Seen``: their pixels, and how well each part of the later one is found in the earlier."""

    def __init__(self, width: int, features: int, reach: tuple[int, int], motions: int) -> None:
        super().__init__()
        self.reach, self.motions = reach, motions
        self.first = nn.Conv2d(2 * FRAME[2] * PATCH**2 + coarse_shifts(reach), width, 1)
        self.place = nn.Parameter(torch.zeros(width, BLOCKS, BLOCKS))  # the player stands in the middle
        self.near = PlainCell(width)
        self.down = nn.Conv2d(width, features, 2, stride=2)
        self.far = nn.Sequential(PlainCell(features), ChannelNorm(features))
        self.size = CELLS * features

    def forward(self, last: Tensor, before: Tensor, earlier: Tensor | None) -> Seen:
        both = to_blocks(torch.cat([last - 0.5, last - before], 1))
        found = coarse_costs(before, last, self.reach) * COST_SCALE
        found = found.to(both.dtype, memory_format=torch.channels_last)
        x = self.first(torch.cat([both, found], 1))
        near = self.near(F.relu(x + self.place.to(x.dtype)))
        far = from_map(self.far(self.down(F.relu(near))))
        moved = self.moved(before, last)
        moved = torch.cat([moved, moved if earlier is None else earlier], -1)[:, : 2 * self.motions]
        return Seen(near.permute(0, 2, 3, 1), found.permute(0, 2, 3, 1), moved, far)

    def moved(self, before: Tensor, last: Tensor) -> Tensor:
        """``whole_shift``; in training no gradient goes back in time by it: it is a quotient of small differences."""
        moved = whole_shift(before, last, self.reach)
        return moved.detach() if self.training else moved


class ContextRSSM(GridRSSM):
    """``GridRSSM`` whose transition also hears what the last two frames show."""

    def __init__(self, config: ModelConfig, actions: int, embedding: int) -> None:
        super().__init__(config, actions, embedding, heard=embedding)

    def forward(  # type: ignore[override]
        self, d_BD: Tensor, s_BS: Tensor, last_BA: Tensor, far_BE: Tensor, e_BE: Tensor, seen_B: Tensor,
        noise_BS: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """One recorded step: next d and s, and the log-probabilities of prior and posterior; far: what was shown before
        it, e: what is shown after it.  s is the posterior's where the frame is seen (drawn where noise is given), the
        prior's mode where not."""
        return self.known(self.hear(s_BS, last_BA, d_BD, far_BE), e_BE, seen_B, noise_BS)

    def hear(self, s_BS: Tensor, action_BA: Tensor, d_BD: Tensor, far_BE: Tensor) -> Tensor:
        """d_t from s_{t-1}, a_{t-1}, d_{t-1} and what the frames show."""
        d = to_map(d_BD)
        return self.mixed(torch.cat([to_map(s_BS), to_map(far_BE), d], 1), action_BA, d)


class Painter(nn.Module):
    """The next frame from the last one."""

    def __init__(self, config: ModelConfig, actions: int, stochastic: int) -> None:
        super().__init__()
        width, d = 2 * config.depth, config.deterministic_size // CELLS
        self.reach = (config.reach_rows, config.reach_columns)
        self.sizes = [2 * r + 1 for r in self.reach]
        self.remembered = nn.Conv2d(d, width, 1)
        self.acted = nn.Linear(actions, width)
        self.moves = nn.Conv2d(width + coarse_shifts(self.reach), width, 1)
        self.motion = PooledCell(width)
        self.shift_here = nn.Conv2d(width, sum(self.sizes), 1)
        self.shift_few = nn.Conv2d(width, FEW, 1)
        self.shift_whole = mlp(CELLS * FEW + 2 * config.motions + actions, 2 * width, 2, 2)
        self.spread = nn.Parameter(torch.full((2,), math.log(SPREAD)))
        self.enter = nn.Conv2d(width + FRAME[2] * PATCH**2, width, 1)
        kinds = [PooledCell if i % 2 == 0 else PlainCell for i in range(config.trunk_blocks)]
        self.trunk = nn.Sequential(*(kind(width) for kind in kinds), ChannelNorm(width), nn.ReLU())
        self.masks = nn.Conv2d(width, PATCH**2 * CANDIDATES, 1)
        self.unknown = nn.Conv2d(width + stochastic // CELLS, width, 1)
        self.residual = nn.Conv2d(width, FRAME[2] * PATCH**2, 1)
        with torch.no_grad():
            self.masks.weight.mul_(0.1)
            assert self.masks.bias is not None
            self.masks.bias.zero_()[: PATCH**2] = COPIED

    def sketch(self, seen: Seen, last: Tensor, d_ND: Tensor, action_NA: Tensor) -> Sketch:
        """What is known of the next frame before s."""
        near, found = (x.permute(0, 3, 1, 2) for x in (seen.near, seen.found))
        x = near + doubled(self.remembered(to_map(d_ND))) + self.acted(action_NA)[:, :, None, None]
        moves = F.relu(self.motion(self.moves(torch.cat([x, found.to(x.dtype)], 1))))
        few = from_map(F.relu(self.shift_few(F.avg_pool2d(moves, 2))))
        faster = self.shift_whole(torch.cat([few, seen.moved.to(few.dtype), action_NA.to(few.dtype)], -1))
        moved = seen.moved[:, :2] + faster.to(last.dtype)  # else it goes on as it went
        spread = self.spread.exp().to(last.dtype)
        everywhere = torch.cat([around_shift(moved[:, i], spread[i], r) for i, r in enumerate(self.reach)], -1)
        logits = self.shift_here(moves).permute(0, 2, 3, 1).to(last.dtype) + everywhere[:, None, None]
        shifts = Shifts(*logits.split(self.sizes, -1))
        aligned = align(last, shifts)  # from the picture they learn of their neighbours, from motion's cost of all
        x = x + self.enter(torch.cat([x, to_blocks(aligned - 0.5, x.dtype)], 1))
        return Sketch(self.trunk(x), shifts, moved, last, aligned)

    def paint(self, sketch: Sketch, s_NS: Tensor) -> Tensor:
        """The frame as planes, some of it outside [0, 1]."""
        dtype, aligned = sketch.aligned.dtype, sketch.aligned
        weight = to_planes(self.masks(sketch.trunk), dtype).softmax(1)
        s = doubled(to_map(s_NS).to(sketch.trunk.dtype))
        unknown = F.relu(self.unknown(torch.cat([sketch.trunk, s], 1)))
        generated = aligned + to_planes(self.residual(unknown), dtype)
        around = F.pad(aligned, (1, 1, 1, 1), mode="replicate")
        near = [around[..., 1 + y : 1 + y + SIDE, 1 + x : 1 + x + SIDE] for y, x in NEAR]
        out = torch.zeros_like(aligned)
        for share, candidate in zip(weight.split(1, 1), [*near, sketch.last, generated], strict=True):
            out = torch.addcmul(out, share, candidate)
        return out


class ContextWorld(nn.Module):
    """A world of frames that sees the last two it showed, to core.contracts.World and Inference.

    A latent stands for two frames, which a decoder draws; it is read from the last two of the initial ones.
    memory_size: numbers of the agent's state, which is read from the latent, too; bounded: they lie in (-1, 1).
    UserError for a world that shows anything but one image of 64 x 64 pixels.
    """

    informed = "recorded"  # generative.starts
    reward_unit = 1.0  # rewards are learned in this unit; what is shown is in the recordings' own

    def __init__(self, config: ModelConfig, spec: EnvSpec, memory_size: int, bounded: bool = True) -> None:
        super().__init__()
        self.config, self.spec, self.memory_size, self.bounded = config, spec, memory_size, bounded
        self.fields = one_frame(spec, "context")
        config.require_cells()
        ((self.name, self.field),) = self.fields.items()
        self.latent_size, self.initial_frames = config.latent_size, config.initial_frames
        if self.initial_frames < 2:
            raise UserError(
                f"--layout context starts from 2 frames at least, not --initial_frames {self.initial_frames}"
            )
        if self.initial_frames <= config.motions:
            raise UserError(f"--motions {config.motions} are measured between {config.motions + 1} frames, so it takes "
                            f"--initial_frames {config.motions + 1} or more, not {self.initial_frames}")  # fmt: skip
        a, d, z, width = spec.n_actions, config.deterministic_size, config.latent_size, config.hidden_size
        self.encoder = PairEncoder(2 * config.depth, width, (config.reach_rows, config.reach_columns), config.motions)
        self.rssm = ContextRSSM(config, a, self.encoder.size)
        s = self.rssm.stochastic_size
        self.painter = Painter(config, a, s)
        self.outcome_head = nn.Sequential(
            Flat(conv(d // CELLS + 2 * config.depth, 32), nn.SiLU(), nn.Conv2d(32, 8, 1), nn.SiLU()),
            mlp(CELLS * 8, width, 4 if config.joint_outcome else 3, 1),
        )
        self.acts_head = map_head(self.encoder.size, width, a)
        self.start_world = Flat(conv(width, width), nn.SiLU(), conv(width, d // CELLS), ChannelNorm(d // CELLS))
        self.infer_head = Flat(
            conv(width, width), ChannelNorm(width), ResidualCell(width), nn.SiLU(), conv(width, 2 * z // CELLS)
        )
        self.decoder = MapDecoder(z, config.depth, 2 * FRAME[2])
        self.start_agent = map_head(z, width, memory_size)
        self.precision = Precision()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def scales(self) -> dict[str, Scale | None]:
        """None of an image."""
        return {self.name: None}

    # From frames to a state

    def planes_of(self, obs: Mapping[str, Tensor], first: int) -> Tensor:
        """The frames of observations [B, I, ...] from the ``first`` on, as planes [B, ..., 3, 64, 64] in [0, 1]."""
        x, like = obs[self.name][:, first:], next(self.parameters())
        frames = as_read(self.field, x.flatten(0, 1), like.dtype)
        return frames.permute(0, 3, 1, 2).contiguous().unflatten(0, x.shape[:2])

    def as_shown(self, planes: Tensor) -> dict[str, Tensor]:
        """Planes [N, 3, 64, 64] as an observation."""
        return {self.name: planes.permute(0, 2, 3, 1).contiguous()}

    def look(self, last: Tensor, before: Tensor, earlier: Tensor | None = None) -> Seen:
        """What two frames, planes [N, 3, 64, 64], show.  earlier: how far the one before had moved from its
        predecessor, [N, 2]; where that is not known, as far as the last one has."""
        with self.precision.cast(last.device):
            seen: Seen = self.encoder(last, before, earlier)
        return seen._replace(far_NE=seen.far_NE.to(last.dtype))

    def begin(self, far_BE: Tensor) -> tuple[Tensor, Tensor]:
        """(d, s) of a world that is shown two frames and remembers nothing."""
        d = torch.tanh(self.start_world(far_BE))
        return d, choose(self.rssm.posterior(d, far_BE), None)

    def begin_at(self, obs: Mapping[str, Tensor]) -> tuple[ContextState, Shown]:
        """The start that shows the last of some observations [B, I, ...] unchanged; it sees the last two."""
        planes = self.planes_of(obs, -2)
        return self.started(planes[:, -1], planes[:, -2], self.moved_before(obs, -2))

    def moved_before(self, obs: Mapping[str, Tensor], at: int) -> Tensor | None:
        """How far the frame at a place in observations [B, I, ...] had moved from the one before it, [B, 2]; None of a
        world that is told of one motion only."""
        if self.config.motions == 1:
            return None
        planes = self.planes_of({self.name: obs[self.name][:, : at + 1 or None]}, -2)
        return self.encoder.moved(*planes.unbind(1))

    def started(self, last: Tensor, before: Tensor, earlier: Tensor | None) -> tuple[ContextState, Shown]:
        """The start that shows a frame, where another one went before it; earlier: as in ``look``."""
        seen = self.look(last, before, earlier)
        d, s = self.begin(seen.far_NE)
        none = d.new_zeros(len(d))
        earlier = seen.moved[:, :2] if earlier is None else earlier
        return ContextState(last, before, earlier, d, s), Shown(self.as_shown(last), none, none, d)

    def infer(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        if obs[self.name].shape[1] != self.initial_frames:
            raise ValueError(f"infer takes {self.initial_frames} frames, got {obs[self.name].shape[1]}")
        planes = self.planes_of(obs, -2)
        return self.infer_from(self.look(planes[:, -1], planes[:, -2]).far_NE)

    def infer_from(self, far_BE: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-standard-deviation of z."""
        mean, log_std = (from_map(part) for part in to_map(self.infer_head(far_BE)).chunk(2, 1))
        if self.config.latent == "hypersphere":
            return self.normalise(mean), torch.full_like(log_std, -MAX_LOG_STD)
        return mean, log_std.clamp(-MAX_LOG_STD, MAX_LOG_STD)

    def normalise(self, z_BZ: Tensor) -> Tensor:
        """The nearest legal latent: a unit vector on the hypersphere, anything for a Gaussian."""
        return F.normalize(z_BZ, dim=-1) if self.config.latent == "hypersphere" else z_BZ

    # From a latent to a rollout

    def drawn(self, z_BZ: Tensor) -> tuple[Tensor, Tensor]:
        """The frames that a latent stands for, planes of the last and the one before, not clamped."""
        with self.precision.cast(z_BZ.device):
            both = self.decoder(z_BZ).to(z_BZ.dtype).permute(0, 3, 1, 2).contiguous()
        last, before = both.split(FRAME[2], 1)
        return last, before

    def memory(self, z_BZ: Tensor) -> Tensor:
        """The agent's flat state before the first frame, [B, memory_size]."""
        memory = self.start_agent(z_BZ)
        return torch.tanh(memory) if self.bounded else memory

    def start(self, z_BZ: Tensor, noise: Tensor | None = None) -> tuple[ContextState, Shown]:
        last, before = (clamp_straight_through(x) for x in self.drawn(z_BZ))
        return self.started(last, before, None)

    def step(self, state: ContextState, action_BA: Tensor, noise: Tensor | None = None) -> tuple[ContextState, Shown]:
        state, known_BK = self.go_on(state, action_BA, noise)
        return state, self.shown(state.last, state.d_BD, known_BK)

    def shown(self, frame: Tensor, d_ND: Tensor, known_NK: Tensor) -> Shown:
        """A frame, and the outcome of the transition that leads to it."""
        told = self.outcome(known_NK)
        reward = self.reward_unit * told.reward
        return Shown(self.as_shown(frame), reward, torch.sigmoid(told.ended), d_ND, paid_B2=told.paid_N2)

    def go_on(self, state: ContextState, action_BA: Tensor, noise: Tensor | None = None) -> tuple[ContextState, Tensor]:
        """The next state, and what rewards and endings are read from."""
        seen = self.look(state.last, state.before, state.moved)
        d = self.recall(state.s_BS, action_BA, state.d_BD, seen.far_NE)
        s = choose(self.rssm.prior(d), noise)
        sketch = self.sketch(seen, state.last, d, action_BA)
        frame = clamp_straight_through(self.paint(sketch, s))
        return ContextState(frame, state.last, seen.moved[:, :2], d, s), self.known(sketch.trunk, d)

    def draw_noise(self, batch: int, generator: torch.Generator) -> Tensor:
        """Standard Gumbel draws [B, S]."""
        return gumbel((batch, self.rssm.stochastic_size), generator, next(self.parameters()))

    def recall(self, s_BS: Tensor, action_BA: Tensor, d_BD: Tensor, far_BE: Tensor) -> Tensor:
        """d_t."""
        with self.precision.cast(d_BD.device):
            return self.rssm.hear(s_BS, action_BA, d_BD, far_BE).to(d_BD.dtype)

    def guesses(self, d_BD: Tensor, e_BE: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of s by prior and posterior, [B, groups, classes]."""
        with self.precision.cast(d_BD.device):
            return self.rssm.prior(d_BD), self.rssm.posterior(d_BD, e_BE)

    def sketch(self, seen: Seen, last: Tensor, d_ND: Tensor, action_NA: Tensor) -> Sketch:
        """``Painter.sketch`` in the precision of the training."""
        with self.precision.cast(last.device):
            return self.painter.sketch(seen, last, d_ND, action_NA)  # type: ignore[no-any-return]

    def paint(self, sketch: Sketch, s_NS: Tensor) -> Tensor:
        """``Painter.paint`` in the precision of the training."""
        with self.precision.cast(s_NS.device):
            return self.painter.paint(sketch, s_NS)  # type: ignore[no-any-return]

    def known(self, trunk: Tensor, d_ND: Tensor) -> Tensor:
        """What rewards and endings are read from, [N, K]: the trunk in cells, and d."""
        return from_map(torch.cat([F.avg_pool2d(trunk, 2), to_map(d_ND).to(trunk.dtype)], 1))

    def outcome(self, known_NK: Tensor) -> Outcome:
        """What is foretold of N transitions."""
        weights = next(self.outcome_head.parameters())
        with self.precision.cast(known_NK.device):
            told = self.outcome_head(known_NK.to(weights.dtype)).to(weights.dtype)
        return Outcome(*(told if self.config.joint_outcome else with_own_ending(told)).unbind(-1))

    def errors(self, shown: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How far [...] frames are from what they should be, squared pixels."""
        return {self.name: error_of_field(self.field, shown[self.name], target[self.name], None)}

    # Along recorded frames

    def unroll(
        self, begun: tuple[Tensor, Tensor], far_BLE: Tensor, action_BL: Tensor, seen_BL: Tensor,
        noise_BLS: Tensor | None,
    ) -> WorldPath:  # fmt: skip
        """World states after the transitions 0 -> 1, ..., L-2 -> L-1 of a window, L-1 of each, from the state at step
        0: the posterior's s where the new frame is seen, the prior's mode where not."""
        acted = one_hot(action_BL[:, :-1], self.spec.parts, far_BLE)
        inputs = [acted, far_BLE[:, :-1], far_BLE[:, 1:], seen_BL[:, 1:]]
        inputs += [] if noise_BLS is None else [noise_BLS]
        with self.precision.cast(far_BLE.device):
            return WorldPath(*unroll(self.rssm, begun, inputs))

    def look_along(self, frames: Tensor, earlier: Tensor | None) -> Seen:
        """What every frame but the first, with the one before it, shows; frames [B, L+1, 3, 64, 64], of the rest
        [B, L, ...].  earlier: how far the first frame had moved from its predecessor, [B, 2], as in ``look``."""
        size = (frames.shape[0], frames.shape[1] - 1)
        seen = self.look(frames[:, 1:].flatten(0, 1), frames[:, :-1].flatten(0, 1))
        seen = Seen(*(x.unflatten(0, size) for x in seen))
        if earlier is not None:
            moved = seen.moved[..., :2]
            seen = seen._replace(moved=torch.cat([moved, torch.cat([earlier[:, None], moved[:, :-1]], 1)], -1))
        return seen

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        far = self.look_along(self.planes_of(obs, self.initial_frames - 2), None).far_NE
        begun = self.begin(far[:, 0])
        path = self.unroll(begun, far, action_BL, seen_BL, None)
        return torch.cat([begun[0][:, None], path.d_BLD], 1)

    def along(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> list[Shown]:
        """What it shows at every step where it is shown every recorded frame before, and s is told of the new one."""
        frames = self.planes_of(obs, self.initial_frames - 2)
        seen = self.look_along(frames, self.moved_before(obs, self.initial_frames - 2))
        far = seen.far_NE
        d, s = self.begin(far[:, 0])
        path = self.unroll((d, s), far, action_BL, seen_BL, None)
        none = d.new_zeros(len(d))
        out = [Shown(self.as_shown(frames[:, 1]), none, none, d)]
        for i in range(1, far.shape[1]):
            last, d = frames[:, i], path.d_BLD[:, i - 1]
            sketch = self.sketch(
                Seen(*(x[:, i - 1] for x in seen)), last, d, one_hot(action_BL[:, i - 1], self.spec.parts, d)
            )
            frame = clamp_straight_through(self.paint(sketch, path.s_BLS[:, i - 1]))
            out.append(self.shown(frame, d, self.known(sketch.trunk, d)))
        return out
