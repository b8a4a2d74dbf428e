"""The Agent contract: a pure function in named parts, over every network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from agents.networks import BlurPool
from agents.recurrent import AgentConfig, RecurrentAgent, load_agent, save_agent
from core.artefacts import new_run
from core.contracts import Agent, EnvSpec, Field, UserError
from core.directions import fingerprint
from envs.planted import PlantedAgent, PlantedOptions, spec_of

FRAMES = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=tuple("abcde"),
    slots=1,
)
VECTOR = spec_of(PlantedOptions(), 1)
B = 5


def recurrent(encoder: str, spec: EnvSpec, recurrence: str = "gru") -> RecurrentAgent:
    """With weights large enough for every part to matter (the policy starts near 0, the state at 0)."""
    torch.manual_seed(0)
    config = AgentConfig(encoder=encoder, embedding_size=12, hidden_size=10, recurrence=recurrence)  # type: ignore[arg-type]
    agent = RecurrentAgent(config, spec).eval()
    with torch.no_grad():
        agent.h_initial.normal_()
        agent.policy.weight.mul_(100)
    return agent.requires_grad_(False)


AGENTS: dict[str, Callable[[], nn.Module]] = {
    "strided": lambda: recurrent("strided", FRAMES),
    "strided_blur": lambda: recurrent("strided_blur", FRAMES),
    "impala": lambda: recurrent("impala", FRAMES),
    "mlp": lambda: recurrent("mlp", VECTOR),
    "feed-forward": lambda: recurrent("strided", FRAMES, "none"),
    "feed-forward mlp": lambda: recurrent("mlp", VECTOR, "none"),
    "planted": partial(PlantedAgent, PlantedOptions()),
    "planted_products": partial(PlantedAgent, PlantedOptions(kind="gated")),
    "planted_pixels": partial(PlantedAgent, PlantedOptions(kind="pixels")),
}
every = pytest.mark.parametrize("name", AGENTS)
with_memory = pytest.mark.parametrize("name", [name for name in AGENTS if not name.startswith("feed")])
without_memory = pytest.mark.parametrize("name", [name for name in AGENTS if name.startswith("feed")])


def observations(agent: nn.Module, batch: int = B, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    name = str(agent.obs_name)
    if name == "frames":
        shape = (batch, 64, 64, 3)
        return {name: torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)}
    return {name: torch.randn(batch, 8, generator=generator)}


def as_floats(obs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.float() / 255 if v.dtype == torch.uint8 else v for k, v in obs.items()}


def hidden(agent: Agent, seed: int = 1) -> Tensor:
    return torch.randn(B, agent.hidden_size, generator=torch.Generator().manual_seed(seed))


def forward(agent: Agent, obs: dict[str, Tensor], h: Tensor, is_first: Tensor) -> tuple[Tensor, ...]:
    e = agent.encode(obs)
    after = agent.advance(e, h, is_first)
    return e, after, *agent.heads(after)


NOT_FIRST = torch.zeros(B, dtype=torch.bool)


@every
def test_shapes(name: str) -> None:
    agent = AGENTS[name]()
    e, h, logits, value = forward(agent, observations(agent), hidden(agent), NOT_FIRST)
    assert e.shape[0] == B and e.dim() == 2 and h.shape == (B, agent.hidden_size)
    assert logits.shape == (B, agent.n_actions) and value.shape == (B,)
    assert agent.initial(3).shape == (3, agent.hidden_size)


@every
def test_pure_nothing_stored_nothing_mutated(name: str) -> None:
    agent = AGENTS[name]()
    obs, h, first = observations(agent), hidden(agent), torch.tensor([True, False, True, False, False])
    kept = {k: v.clone() for k, v in obs.items()}, h.clone(), first.clone()
    weights = fingerprint(agent)
    once = forward(agent, obs, h, first)
    forward(agent, observations(agent, seed=9), hidden(agent, 9), ~first)  # another call in between
    again = forward(agent, obs, h, first)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert all(torch.equal(v, kept[0][k]) for k, v in obs.items())
    assert torch.equal(h, kept[1]) and torch.equal(first, kept[2])
    assert fingerprint(agent) == weights
    state = torch.get_rng_state()
    forward(agent, obs, h, first)
    assert torch.equal(torch.get_rng_state(), state)


@every
def test_batched_is_single(name: str) -> None:
    agent = AGENTS[name]()
    obs, h, first = observations(agent), hidden(agent), torch.tensor([True, False, True, False, False])
    whole = forward(agent, obs, h, first)
    for b in range(B):
        row = slice(b, b + 1)
        single = forward(agent, {k: v[row] for k, v in obs.items()}, h[row], first[row])
        for a, x in zip(whole, single, strict=True):
            torch.testing.assert_close(a[row], x, rtol=1e-4, atol=1e-5)


@with_memory
def test_is_first_replaces_the_state_by_the_initial_one(name: str) -> None:
    agent = AGENTS[name]()
    e, h, first = agent.encode(observations(agent)), hidden(agent), torch.tensor([True, False, True, False, False])
    out = agent.advance(e, h, first)
    torch.testing.assert_close(out[first], agent.advance(e, agent.initial(B), NOT_FIRST)[first])
    torch.testing.assert_close(out[~first], agent.advance(e, h, NOT_FIRST)[~first])
    assert torch.equal(out[first], agent.advance(e, h + 7, first)[first])  # nothing of the old state is left
    assert (out[~first] - agent.advance(e, h + 7, first)[~first]).abs().max() > 1e-3


@with_memory
def test_every_input_matters(name: str) -> None:
    """The observation and the state both reach logits and value, and gradients flow back to both."""
    agent = AGENTS[name]()
    obs = {k: v.requires_grad_() for k, v in as_floats(observations(agent)).items()}
    h = hidden(agent).requires_grad_()
    _, _, logits, value = forward(agent, obs, h, NOT_FIRST)
    for out in (logits.square().sum(), value.sum()):
        grads = torch.autograd.grad(out, [*obs.values(), h], retain_graph=True)
        assert all(g.abs().sum() > 0 and g.isfinite().all() for g in grads)


@without_memory
def test_a_feed_forward_agent_forgets_all_but_the_observation(name: str) -> None:
    """The state before plays no part, and its gradient is there and 0."""
    agent = AGENTS[name]()
    obs = {k: v.requires_grad_() for k, v in as_floats(observations(agent)).items()}
    h = hidden(agent).requires_grad_()
    first = torch.tensor([True, False, True, False, False])
    _, _, logits, value = forward(agent, obs, h, NOT_FIRST)
    for other in (forward(agent, obs, h + 7, NOT_FIRST), forward(agent, obs, h, first)):
        assert torch.equal(other[2], logits) and torch.equal(other[3], value)
    grads = torch.autograd.grad(logits.square().sum() + value.sum(), [*obs.values(), h])
    assert all(g.abs().sum() > 0 for g in grads[:-1]) and (grads[-1] == 0).all()


@pytest.mark.parametrize("name", ["strided", "strided_blur", "impala"])
def test_bytes_and_floats_are_the_same_frames(name: str) -> None:
    agent = AGENTS[name]()
    obs = observations(agent)
    assert obs["frames"].dtype == torch.uint8
    assert torch.equal(agent.encode(obs), agent.encode(as_floats(obs)))


@pytest.mark.parametrize("name", ["strided", "strided_blur", "impala"])
def test_bytes_and_floats_are_the_same_frames_in_bfloat16(name: str) -> None:
    """Bytes are divided in bfloat16 there: no other rounding than the one the first convolution makes."""
    agent = AGENTS[name]()
    frames = torch.arange(256, dtype=torch.uint8).repeat(48 * B).view(B, 64, 64, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(agent.encode({"frames": frames}), agent.encode({"frames": frames.float() / 255}))


def test_blur_pooling_hides_where_the_subsampling_falls() -> None:
    """The kernel is zero at the frequency that aliases to a constant: the sum of a map survives a shift by one pixel.
    Plain subsampling keeps other pixels then."""
    x = torch.zeros(4, 3, 32, 32)
    x[:, :, 4:28, 4:28] = torch.rand(4, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    pool = BlurPool(3)
    assert pool(x).shape == (4, 3, 16, 16)
    for shifted in (x.roll(1, 2), x.roll(1, 3), x.roll((1, 1), (2, 3))):
        whole = x.sum((2, 3)) / 4
        torch.testing.assert_close(pool(shifted).sum((2, 3)), whole, rtol=1e-5, atol=1e-4)
        plain = (shifted[:, :, ::2, ::2] - x[:, :, ::2, ::2]).square().mean() / x.var()
        blurred = (pool(shifted) - pool(x)).square().mean() / pool(x).var()
        assert blurred < 0.6 * plain and (shifted[:, :, ::2, ::2].sum((2, 3)) - whole).abs().max() > 1
    # Channel by channel, the binomial kernel, and nothing to store or train.
    by_channel = nn.functional.conv2d(x, pool.kernel[0, :1].expand(3, 1, 3, 3), stride=2, padding=1, groups=3)
    torch.testing.assert_close(pool(x), by_channel)
    assert (16 * pool.kernel[1, 1]).tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]
    assert not pool.state_dict() and not list(pool.parameters())


@every
def test_double_is_close_to_float(name: str) -> None:
    agent, precise = AGENTS[name](), AGENTS[name]().double()
    obs = as_floats(observations(agent))
    h = hidden(agent)
    rough = forward(agent, obs, h, NOT_FIRST)
    fine = forward(precise, {k: v.double() for k, v in obs.items()}, h.double(), NOT_FIRST)
    for a, b in zip(rough, fine, strict=True):
        assert b.dtype == torch.float64
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["strided", "strided_blur", "mlp", "feed-forward"])
def test_save_and_load_is_the_same_agent(name: str, tmp_path: Path) -> None:
    agent = AGENTS[name]()
    assert isinstance(agent, RecurrentAgent)
    with new_run(tmp_path / "a", "train", {}) as run:
        save_agent(agent, run.path)
    back = load_agent(tmp_path / "a")
    assert fingerprint(back) == fingerprint(agent) and back.spec == agent.spec and back.config == agent.config
    assert not back.training and not any(p.requires_grad for p in back.parameters())
    obs, h = observations(agent), hidden(agent)
    for a, b in zip(forward(agent, obs, h, NOT_FIRST), forward(back, obs, h, NOT_FIRST), strict=True):
        assert torch.equal(a, b)


def test_misfits_are_user_errors(tmp_path: Path) -> None:
    two = EnvSpec(env_id="x", obs={k: Field(shape=(3,), dtype="float32") for k in "ab"}, action_names=("a",), slots=1)
    with pytest.raises(UserError, match="has 2 observation fields"):
        RecurrentAgent(AgentConfig(encoder="mlp"), two)
    with pytest.raises(UserError, match="encoder 'impala' does not read x of shape"):
        RecurrentAgent(AgentConfig(encoder="impala"), VECTOR)
    with pytest.raises(UserError, match="encoder 'mlp' does not read frames"):
        RecurrentAgent(AgentConfig(encoder="mlp"), FRAMES)
    small = EnvSpec(env_id="x", obs={"f": Field(shape=(32, 32, 3), dtype="uint8")}, action_names=("a",), slots=1)
    with pytest.raises(UserError, match=r"frames of shape \(64, 64, 3\), not \(32, 32, 3\)"):
        RecurrentAgent(AgentConfig(encoder="strided"), small)
    with new_run(tmp_path / "r", "record", {}):
        pass
    with pytest.raises(UserError, match="holds no agent .*'record' wrote it"):
        load_agent(tmp_path / "r")
    with pytest.raises(UserError, match="no such run directory"):
        load_agent(tmp_path / "none")
