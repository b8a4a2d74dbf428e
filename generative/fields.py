"""What a world model makes of an observation's fields, by what their numbers are (core.contracts.Field).

field      read by                     foretold as                             shown to the agent
image      convolutions                Gaussian around every pixel             its mean, in [0, 1]
real       standardised, dense layers  Gaussian of deviation 1, standardised   its mean
binary     dense layers                Bernoulli of every number               the likelier value, or a draw
one_hot    dense layers                categorical of every group              the likeliest category, or a draw

Real numbers are standardised by mean and deviation of the recordings, which are stored with the weights.  A symmetric
logarithm (arXiv:2301.04104) would need no data, but it leaves small numbers as they are: a velocity of 0.01 would
count 10,000 times less in the squared error than a position of 1, in whatever units either happens to be given.

Losses are negative log-likelihoods in nats, summed over a field's numbers.  One of which nothing is known costs 0.5
(a real number, beside its constant), up to 0.69 (a binary one), up to log n (one category of n): vectors weigh alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agents.networks import images
from core.contracts import EnvSpec, Field, UserError
from core.roll import choose
from generative.nets import FRAME, clamp_straight_through, mlp

VECTORS = ("real", "binary", "one_hot")


def fields_of(spec: EnvSpec) -> dict[str, Field]:
    """The fields of a world's observation, sorted by name; UserError for one of no supported kind."""
    for name, field in spec.obs.items():
        is_image = field.means == "image" and field.dtype == "uint8" and len(field.shape) == 3
        if not (is_image or (field.means in VECTORS and len(field.shape) == 1)):
            raise UserError(
                f"the observation field {name!r} of {spec.env_id} ({field.dtype} {list(field.shape)}, {field.means}) "
                "cannot be simulated; supported are images (uint8 [height, width, channels]) and vectors of real "
                "numbers, of 0 and 1 (binary) or one-hot (Field.kind)"
            )
    return {name: spec.obs[name] for name in sorted(spec.obs)}


def one_frame(spec: EnvSpec, layout: str) -> dict[str, Field]:
    """The only field of a world that shows one image of 64 x 64 pixels and nothing else; UserError for any other."""
    fields = fields_of(spec)
    for field in fields.values():
        if field.shape != FRAME or field.means != "image" or len(fields) > 1:
            raise UserError(
                f"--layout {layout} is for worlds that show one image of 64 x 64 x 3 alone; {spec.env_id} shows "
                f"{', '.join(f'{k!r} {list(f.shape)}' for k, f in spec.obs.items())}: use --layout vector"
            )
    return fields


# Networks


class Scale(nn.Module):
    """Mean and deviation of a real vector's numbers, 0 and 1 until ``fit``."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))

    def fit(self, mean: Tensor, deviation: Tensor) -> None:
        """Take on statistics [size].  A number that never changed, but for rounding, keeps its units."""
        constant = deviation <= 1e-6 * mean.abs()
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(constant, torch.ones_like(deviation), deviation))

    def forward(self, x: Tensor) -> Tensor:
        """Values -> deviations from the mean."""
        return (x - self.mean) / self.deviation

    def back(self, x: Tensor) -> Tensor:
        """Deviations from the mean -> values."""
        return self.mean + self.deviation * x


class VectorEncoder(nn.Module):
    """Vectors [N, n] -> features [N, size]."""

    def __init__(self, field: Field, width: int) -> None:
        super().__init__()
        self.scale = Scale(field.size) if field.means == "real" else None
        self.layers = nn.Sequential(*mlp(field.size, width, width, 1), nn.SiLU())
        self.size = width

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x if self.scale is None else self.scale(x))
        return out


def together(networks: Sequence[nn.Module]) -> nn.Module:
    """The networks of all fields, in order, as one module; of a single field its own, so that its weights have the
    names that they had when every world had one."""
    return networks[0] if len(networks) == 1 else nn.ModuleList(networks)


def apart(networks: nn.Module) -> list[nn.Module]:
    """``together`` undone."""
    return list(networks) if isinstance(networks, nn.ModuleList) else [networks]


# What a network says, what is shown, and how wrong it is


def as_read(field: Field, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Values [N, *shape] as networks read them: images float in [0, 1], vectors as they are."""
    return images(x).permute(0, 2, 3, 1).to(dtype) if field.means == "image" else x.to(dtype)


def noise_size(field: Field) -> int:
    """Gumbel draws that one value of a field takes: one a category, two a binary number."""
    return {"one_hot": 1, "binary": 2}.get(field.means, 0) * field.size


def shown_as(field: Field, said: Tensor, scale: Scale | None, noise_BN: Tensor | None = None) -> Tensor:
    """What a network said [B, *shape] as the agent is shown it.

    Categories and binary numbers are the likeliest, or drawn by standard Gumbel noise [B, ``noise_size``], with the
    gradient of their probabilities (straight-through).
    """
    if field.means == "image":
        return clamp_straight_through(said)
    if field.means == "one_hot":
        return choose(said, field.categories, noise_BN)[1]
    if field.means == "binary":
        score = said
        if noise_BN is not None:  # the difference of two Gumbels is logistic
            yes, no = noise_BN.chunk(2, -1)
            score = said + yes - no
        p = torch.sigmoid(said)
        return (score > 0).to(said.dtype) + (p - p.detach())
    return said if scale is None else scale.back(said)


def loss_of_field(field: Field, said: Tensor, target: Tensor, scale: Scale | None) -> Tensor:
    """[N, *shape] each -> [N]: of an image the squared error of its unclamped pixels, of a vector its negative
    log-likelihood in nats (of a real one without its constant), summed over their numbers."""
    if field.means == "image":
        return (said - target).square().sum((-3, -2, -1))
    if field.means == "one_hot":
        pairs = zip(*(x.split(list(field.categories), -1) for x in (said, target)), strict=True)
        return -torch.stack([(logits.log_softmax(-1) * hot).sum(-1) for logits, hot in pairs]).sum(0)
    if field.means == "binary":
        return F.binary_cross_entropy_with_logits(said, target, reduction="none").sum(-1)
    return 0.5 * (said - (target if scale is None else scale(target))).square().sum(-1)


ERROR_UNITS = {
    "image": "squared pixel in [0, 1]",
    "real": "squared standard deviations",
    "binary": "share wrong",
    "one_hot": "share wrong",
}


def error_of_field(field: Field, shown: Tensor, target: Tensor, scale: Scale | None) -> Tensor:
    """Values [..., *shape] as shown and as they were (images in [0, 1]) -> [...], the mean over a field's numbers in
    ``ERROR_UNITS``."""
    if field.means == "one_hot":
        pairs = zip(*(x.split(list(field.categories), -1) for x in (shown, target)), strict=True)
        return torch.stack([(a.argmax(-1) != b.argmax(-1)).to(shown.dtype) for a, b in pairs]).mean(0)
    if field.means == "binary":
        return ((shown > 0.5) != (target > 0.5)).to(shown.dtype).mean(-1)
    change = (shown - target) if scale is None else (shown - target) / scale.deviation
    return (change**2).mean(tuple(range(-len(field.shape), 0)))
