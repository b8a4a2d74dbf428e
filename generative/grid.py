"""A world whose states, embeddings and latents are 8 x 8 maps, mixed by convolutions and one global vector, so that
what a frame shows stays where it is; of one image of 64 x 64 pixels."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from core.contracts import EnvSpec, Field
from generative.fields import one_frame
from generative.nets import (
    CELLS,
    ChannelNorm,
    Flat,
    MapDecoder,
    MapEncoder,
    ResidualCell,
    conv,
    from_map,
    map_head,
    to_map,
)
from generative.recurrent_world import RSSMWorld
from generative.rssm import GridRSSM


class GridWorld(RSSMWorld):
    """``RSSMWorld`` of maps."""

    @staticmethod
    def foretold(spec: EnvSpec) -> dict[str, Field]:
        return one_frame(spec, "grid")

    def build(self) -> None:
        config, a, h = self.config, self.spec.n_actions, self.memory_size
        config.require_cells()
        d, width, z = config.deterministic_size, config.hidden_size, config.latent_size
        encoder = MapEncoder(config.depth)
        self.encoder = encoder
        self.embed = nn.Identity()
        self.rssm = GridRSSM(config, a, encoder.size)
        s = self.rssm.stochastic_size
        self.decoder = MapDecoder(d + s, config.depth)
        self.reward_head = map_head(d, width, 1)
        self.terminal_head = map_head(d, width, 1)
        many = self.initial_frames * encoder.size // CELLS
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

    def spread(self, e_BIE: Tensor) -> tuple[Tensor, Tensor]:
        both = to_map(self.infer_head(from_map(torch.cat([to_map(e) for e in e_BIE.unbind(1)], 1))))
        mean, log_std = (from_map(part) for part in both.chunk(2, 1))
        return mean, log_std

    def recurrence_cast(self, device: torch.device) -> AbstractContextManager[object]:
        return self.precision.cast(device)
