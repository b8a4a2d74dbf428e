"""A world of any fields that sees what it showed: each observation is foretold as a change of the last one.

Most of what a world shows, it showed a step ago.  A world of vectors (generative.vector) must carry all of it through
d and s; this one is told the last observation, as its transition is and the networks that foretell the next, and says
of every number how far it stays what it was (a pixel: a mixture of the last one and a new one; a real number: the last
one and a change; a category or a 0 or 1: nats for what it was, beside the logits).  Where a rollout goes on by itself
it is shown its own observations, in training too (of windows that are hidden from some step on), without a gradient
from one step's observation to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.contracts import EnvSpec, Field, Shown, UserError
from core.roll import one_hot
from generative.fields import Scale, apart, as_read, together
from generative.nets import ConvDecoder, mlp
from generative.recurrent_world import Beginning, WorldPath, WorldState
from generative.rssm import RSSM, ModelConfig, choose
from generative.vector import VectorWorld

STAYS = 5.0  # nats by which an untrained world finds a category, or a 0 or 1, likelier that it was
AS_LONG = 4.0  # an embedding; as long as 16 groups of classes
KEPT = 0.9  # share of a pixel that an untrained world keeps


class Levelled(nn.LayerNorm):
    """Numbers [..., width] of mean 0 and length ``AS_LONG``.

    Else an embedding grows in training, and the transition, which is told it beside an action of ones and zeros, no
    longer hears that."""

    def __init__(self, width: int) -> None:
        super().__init__(width, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (AS_LONG / self.normalized_shape[0] ** 0.5)


class ResidualState(NamedTuple):
    """Where the world is, and what it showed: the fields [B, *shape] in order, as networks read them."""

    d_BD: Tensor
    s_BS: Tensor
    last: tuple[Tensor, ...]


class ResidualWorld(VectorWorld):
    """``VectorWorld`` that is shown its last observation.

    ``decoder`` draws, from a latent alone, the observation before the first one that is shown; ``changes`` foretell all
    others.
    """

    informed = "recorded"

    def __init__(self, config: ModelConfig, spec: EnvSpec, memory_size: int, bounded: bool = True) -> None:
        if config.initial_frames < 2:
            raise UserError(
                f"--layout residual starts from 2 observations at least, not --initial_frames {config.initial_frames}"
            )
        super().__init__(config, spec, memory_size, bounded)

    def build(self) -> None:
        super().build()
        config, width = self.config, self.config.hidden_size
        self.rssm = RSSM(config, self.spec.n_actions + width, width)
        self.embed = nn.Sequential(self.embed, Levelled(width))
        inputs = config.deterministic_size + self.rssm.stochastic_size + width
        self.changes = together([change_of(field, config, inputs) for field in self.fields.values()])

    def read(self, obs: Mapping[str, Tensor], at: int) -> tuple[Tensor, ...]:
        """The fields of a step of observations [B, I, ...], as networks read them."""
        like = next(self.parameters())
        return tuple(as_read(field, obs[k][:, at], like.dtype) for k, field in self.fields.items())

    def seen(self, last: tuple[Tensor, ...]) -> Tensor:
        """What the last observation tells: embeddings [B, E]."""
        return self.embed_obs(dict(zip(self.fields, last, strict=True)))

    def change(self, d: Tensor, s: Tensor, e: Tensor, last: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """World states [N, D], [N, S] and the last observation, its embedding too -> what ``foretell`` says of the
        next."""
        said, both, scales = {}, torch.cat([d, s, e], -1), self.scales
        for (k, field), network, x in zip(self.fields.items(), apart(self.changes), last, strict=True):
            with self.precision.cast(d.device) if field.means == "image" else nullcontext():
                out = network(both).to(d.dtype)
            said[k] = changed(field, out, x, scales[k])
        return said

    # From a latent to a rollout

    def begin_at(self, obs: Mapping[str, Tensor]) -> tuple[ResidualState, Shown]:  # type: ignore[override]
        e = self.embed_obs(obs)
        begun = self.begin(self.normalise(self.infer_from(e)[0]))
        d = self.rssm.transition(begun.state.s_BS, torch.cat([begun.action_BA, e[:, -2]], -1), begun.state.d_BD)
        s, last = choose(self.rssm.posterior(d, e[:, -1]), None), self.read(obs, -1)
        return ResidualState(d, s, last), self.shown(dict(zip(self.fields, last, strict=True)), d)

    def start(self, z_BZ: Tensor, noise: Tensor | None = None) -> tuple[ResidualState, Shown]:  # type: ignore[override]
        begun = self.begin(z_BZ)
        drawn = self.show(self.foretell(*begun.state))
        return self.step(ResidualState(*begun.state, tuple(drawn.values())), begun.action_BA, noise)

    def step(  # type: ignore[override]
        self, state: ResidualState, action_BA: Tensor, noise: Tensor | None = None
    ) -> tuple[ResidualState, Shown]:
        e = self.seen(state.last)
        d = self.rssm.transition(state.s_BS, torch.cat([action_BA, e], -1), state.d_BD)
        of_state, of_fields = (None, None) if noise is None else noise.tensor_split([self.rssm.stochastic_size], -1)
        s = choose(self.rssm.prior(d), of_state)
        obs = self.show(self.change(d, s, e, state.last), of_fields)
        return ResidualState(d, s, tuple(obs.values())), self.shown(obs, d)

    # Along recorded frames

    def follow(
        self, state: WorldState, first_BA: Tensor, obs: Mapping[str, Tensor], e: Tensor, action_BL: Tensor,
        seen_BL: Tensor, noise_BLS: Tensor | None,
    ) -> tuple[WorldPath, dict[str, Tensor]]:  # fmt: skip
        """See ``RSSMWorld``.  After a frame that is not seen the world is shown what it said itself."""
        first, length = self.initial_frames - 1, action_BL.shape[1]
        acted = torch.cat([first_BA[:, None], one_hot(action_BL[:, :-1], self.spec.parts, e)], 1)
        d, s = state
        last, e_last = self.read(obs, first - 1), e[:, first - 1]
        steps: list[Any] = []
        told: list[dict[str, Tensor]] = []
        all_seen: list[bool] = seen_BL.all(0).tolist()  # once: on a GPU each look waits
        for i in range(length):
            noise = None if noise_BLS is None else noise_BLS[:, i]
            d, s, prior, posterior = self.rssm(
                d, s, torch.cat([acted[:, i], e_last], -1), e[:, first + i], seen_BL[:, i], noise
            )
            steps.append((d, s, prior, posterior))
            told.append(self.change(d, s, e_last, last))
            if i + 1 < length:
                last, e_last = self.read(obs, first + i), e[:, first + i]
                if not all_seen[i]:
                    last, e_last = self.shown_next(told[-1], last, e_last, seen_BL[:, i])
        said = {k: torch.stack([x[k] for x in told], 1).flatten(0, 1) for k in self.fields}
        return WorldPath(*(torch.stack(x, 1) for x in zip(*steps, strict=True))), said

    def observe(self, obs: Mapping[str, Tensor], action_BL: Tensor, seen_BL: Tensor) -> Tensor:
        return self.path(obs, action_BL, seen_BL)[0].d_BLD  # what it says itself is shown to it where nothing is seen

    def shown_next(
        self, said: Mapping[str, Tensor], recorded: tuple[Tensor, ...], e_BE: Tensor, seen_B: Tensor
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """What is shown to the world next, and its embedding: the recorded observation where it is seen, elsewhere its
        own."""
        with torch.no_grad():
            own = tuple(self.show(said).values())
            e_own = self.seen(own)
        mixed = tuple(
            torch.where(seen_B.view(-1, *[1] * (x.ndim - 1)), x, y) for x, y in zip(recorded, own, strict=True)
        )
        return mixed, torch.where(seen_B[:, None], e_BE, e_own)

    def drawn(self, begun: Beginning) -> dict[str, Tensor]:
        return self.foretell(*begun.state)


def change_of(field: Field, config: ModelConfig, inputs: int) -> nn.Module:
    """The network that says how a field changes: something new, and how far it stays what it was."""
    if field.means == "image":
        height, width, channels = field.shape
        return ConvDecoder(inputs, config.depth, (height, width, channels + 1))
    twice = field.means != "real"
    return mlp(inputs, config.hidden_size, (1 + twice) * field.size, config.head_layers)


def changed(field: Field, out: Tensor, last: Tensor, scale: Scale | None) -> Tensor:
    """What ``change_of``'s network said [N, ...], and the last value [N, *shape] -> what is said of the next one
    (``RSSMWorld.foretell``)."""
    if field.means == "image":
        new, kept = out[..., :-1], torch.sigmoid(out[..., -1:] + torch.logit(out.new_tensor(KEPT)))
        return kept * last + (1 - kept) * new
    if field.means == "real":
        return (last if scale is None else scale(last)) + out
    new, kept = out.chunk(2, -1)
    stays = STAYS * F.softplus(kept) / F.softplus(kept.new_zeros(()))
    return new + stays * (last if field.means == "one_hot" else 2 * last - 1)
