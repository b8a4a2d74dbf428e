"""A world whose states are vectors, mixed by dense layers (arXiv:2010.02193); of any fields that can be foretold."""

from __future__ import annotations

from torch import Tensor, nn

from core.contracts import EnvSpec, Field
from generative.fields import VectorEncoder, fields_of, together
from generative.nets import ConvDecoder, ConvEncoder, mlp
from generative.recurrent_world import RSSMWorld
from generative.rssm import RSSM, ModelConfig


class VectorWorld(RSSMWorld):
    """``RSSMWorld`` of vectors."""

    @staticmethod
    def foretold(spec: EnvSpec) -> dict[str, Field]:
        return fields_of(spec)

    def build(self) -> None:
        config, a, h = self.config, self.spec.n_actions, self.memory_size
        d, width, z = config.deterministic_size, config.hidden_size, config.latent_size
        encoders = [encoder_of(field, config) for field in self.fields.values()]
        self.encoder = together(encoders)
        self.embed = nn.Linear(sum(encoder.size for encoder in encoders), width)
        self.rssm = RSSM(config, a, width)
        s = self.rssm.stochastic_size
        self.decoder = together([decoder_of(field, config, d + s) for field in self.fields.values()])
        self.reward_head = mlp(d, width, 1, config.head_layers)
        self.terminal_head = mlp(d, width, 1, config.head_layers)
        self.infer_cell = nn.GRUCell(width, width)
        self.infer_head = mlp(width, width, 2 * z, 1)
        self.start_world = mlp(z, width, d + s, 1)
        self.start_agent = mlp(z, width, h + a, 1)

    def spread(self, e_BIE: Tensor) -> tuple[Tensor, Tensor]:
        x = e_BIE.new_zeros(e_BIE.shape[0], self.infer_cell.hidden_size)
        for i in range(self.initial_frames):
            x = self.infer_cell(e_BIE[:, i], x)
        mean, log_std = self.infer_head(x).chunk(2, -1)
        return mean, log_std


def encoder_of(field: Field, config: ModelConfig) -> VectorEncoder | ConvEncoder:
    """The network that reads a field; ``size`` is the number of its features."""
    if field.means == "image":
        return ConvEncoder(config.depth, field.shape)
    return VectorEncoder(field, config.hidden_size)


def decoder_of(field: Field, config: ModelConfig, inputs: int) -> nn.Module:
    """The network that foretells a field from the world's state."""
    if field.means == "image":
        return ConvDecoder(inputs, config.depth, field.shape)
    return mlp(inputs, config.hidden_size, field.size, config.head_layers)
