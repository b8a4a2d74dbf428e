"""The pieces of the world model, by gradient and by closed form."""

from __future__ import annotations

import pytest
import torch

from core.contracts import EnvSpec, Field, UserError
from core.roll import gumbel
from generative.context import ContextWorld
from generative.grid import GridWorld
from generative.losses import uniformity
from generative.nets import CELLS, MapDecoder, MapEncoder, clamp_straight_through, from_map, to_map
from generative.rssm import RSSM, GridRSSM, ModelConfig, choose, kl

CONFIG = ModelConfig(deterministic_size=5, hidden_size=6, groups=2, classes=3, depth=2, head_layers=1, latent_size=4)


def rssm() -> RSSM:
    torch.manual_seed(0)
    return RSSM(CONFIG, actions=4, embedding=7).double()


def test_transition_and_posterior_gradcheck() -> None:
    model = rssm()
    d, e = (torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (5, 7))
    s, a = (torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (6, 4))
    assert torch.autograd.gradcheck(model.transition, (s, a, d))
    assert torch.autograd.gradcheck(model.posterior, (d, e))


def grid_rssm() -> GridRSSM:
    torch.manual_seed(0)
    config = ModelConfig(layout="grid", deterministic_size=CELLS * 2, hidden_size=6, groups=CELLS, classes=3)
    return GridRSSM(config, actions=4, embedding=CELLS * 2).double().eval()


def test_grid_transition_and_posterior_have_the_right_gradient() -> None:
    """One random direction each; a full Jacobian of 8 x 8 maps would take minutes."""
    model = grid_rssm()
    draw = torch.Generator().manual_seed(0)
    s, a, d, e = (torch.randn(2, n, generator=draw, dtype=torch.float64) for n in (192, 4, 128, 128))
    for function, inputs in ((model.transition, [s, a, d]), (model.posterior, [d, e])):
        along = [torch.randn(x.shape, generator=draw, dtype=torch.float64) for x in inputs]
        inputs = [x.requires_grad_() for x in inputs]
        out = function(*inputs)
        weights = torch.randn(out.shape, generator=draw, dtype=torch.float64)
        gradient = torch.autograd.grad((out * weights).sum(), inputs)
        got = sum((g * v).sum() for g, v in zip(gradient, along, strict=True))
        step = 1e-5
        ahead, behind = (
            (function(*(x.detach() + k * step * v for x, v in zip(inputs, along, strict=True))) * weights).sum()
            for k in (1, -1)
        )
        torch.testing.assert_close(got.detach(), (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


def test_maps_keep_what_is_near_near() -> None:
    """Flattening and back is the identity, and a pixel reaches its own cell and its neighbours only."""
    flat = torch.randn(3, CELLS * 5)
    assert torch.equal(from_map(to_map(flat)), flat)
    torch.manual_seed(0)
    encoder = MapEncoder(2)
    frame = torch.zeros(1, 64, 64, 3, requires_grad=True)
    to_map(encoder(frame))[0, :, 2, 5].sum().backward()
    assert frame.grad is not None
    rows, columns = frame.grad[0].abs().sum(-1).nonzero().T
    assert rows.min() >= 4 and rows.max() < 36 and columns.min() >= 28 and columns.max() < 60
    assert MapDecoder(CELLS * 3, 2)(torch.zeros(2, CELLS * 3)).shape == (2, 64, 64, 3)


def test_far_cells_hear_of_the_action() -> None:
    """An action moves every cell within one step: the camera follows the player."""
    model = grid_rssm()
    s, d = torch.randn(1, 192, dtype=torch.float64), torch.randn(1, 128, dtype=torch.float64)
    one, two = (model.transition(s, torch.eye(4, dtype=torch.float64)[[k]], d) for k in (0, 1))
    assert bool((to_map(one) != to_map(two)).any(1).all())


def test_a_grid_wants_sizes_for_all_cells() -> None:
    with pytest.raises(UserError, match="groups must be a multiple of 64"):
        ModelConfig(layout="grid", deterministic_size=64, groups=32, latent_size=64).require_cells()


@pytest.mark.parametrize(("layout", "kind"), [("grid", GridWorld), ("context", ContextWorld)])
@pytest.mark.parametrize(("pixels", "says"), [(63, "is for worlds that show one image of 64 x 64 x 3 alone"),
                                              (64, "deterministic_size must be a multiple of 64")])  # fmt: skip
def test_what_no_size_could_mend_is_said_first(layout: str, kind: type, pixels: int, says: str) -> None:
    config = ModelConfig(layout=layout, deterministic_size=24, groups=8, latent_size=8)
    spec = EnvSpec(env_id="own", slots=1, obs={"frame": Field(shape=(pixels, pixels, 3), dtype="uint8")},
                   action_names=tuple("abcd"))  # fmt: skip
    with pytest.raises(UserError, match=says):
        kind(config, spec, 8)


def test_choose_is_one_hot_with_the_gradient_of_the_probabilities() -> None:
    flat = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    log_probs = flat.log_softmax(-1)
    s = choose(log_probs, None)
    rows = s.unflatten(-1, (2, 4))
    assert torch.equal(rows.argmax(-1), log_probs.argmax(-1))
    torch.testing.assert_close(rows.sum(-1), torch.ones(3, 2, dtype=torch.float64))
    weights = torch.randn(8, dtype=torch.float64)
    got = torch.autograd.grad(s @ weights, flat, torch.ones(3, dtype=torch.float64))[0]
    want = torch.autograd.grad(flat.softmax(-1).flatten(-2) @ weights, flat, torch.ones(3, dtype=torch.float64))[0]
    torch.testing.assert_close(got, want)


def test_gumbel_noise_samples_the_categorical() -> None:
    """Chi-squared against the probabilities at the 0.001 level, fixed seed."""
    probs = torch.tensor([0.1, 0.2, 0.7])
    noise = gumbel((20_000, 3), torch.Generator().manual_seed(0), probs)
    s = choose(probs.log().expand(20_000, 1, 3), noise)
    counts = s.sum(0)
    expected = 20_000 * probs
    assert float(((counts - expected) ** 2 / expected).sum()) < 13.8


def test_kl_closed_form() -> None:
    p, q = (torch.tensor([[x, 1 - x]], dtype=torch.float64) for x in (0.3, 0.6))
    want = 0.3 * torch.log(torch.tensor(0.3 / 0.6)) + 0.7 * torch.log(torch.tensor(0.7 / 0.4))
    torch.testing.assert_close(kl(p.log(), q.log()), want.double(), rtol=1e-6, atol=1e-9)
    assert kl(p.log(), p.log()) == 0


def test_no_probability_is_zero() -> None:
    model = rssm()
    with torch.no_grad():
        model.prior_net[-1].weight.mul_(1e6)
    d = torch.randn(4, 5, dtype=torch.float64)
    assert bool(torch.isfinite(model.prior(d)).all())


def test_clamp_passes_the_gradient() -> None:
    x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    y = clamp_straight_through(x)
    y.sum().backward()
    assert torch.equal(y.detach(), torch.tensor([0.0, 0.5, 1.0]))
    assert torch.equal(x.grad, torch.ones(3))


def test_uniformity_prefers_spread() -> None:
    close = torch.nn.functional.normalize(torch.tensor([[1.0, 0.01], [1.0, 0.0], [1.0, -0.01]]), dim=-1)
    spread = torch.tensor([[1.0, 0.0], [-0.5, 0.866], [-0.5, -0.866]])
    assert uniformity(spread) < uniformity(close)
    assert abs(float(uniformity(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))) + 2) < 1e-6  # exp(2 * 0 - 2)
