"""The Agent contract: a pure function in named parts, over every network, the policies of Neural MMO and a foreign
agent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from agents.networks import BlurPool, EMACell, EncoderKind
from agents.nmmo_play import RandomPolicy
from agents.policies import ZOO, PolicyAgent, PolicyModule, example, load_module
from agents.recurrent import AgentConfig, RecurrentAgent, load_agent, save_agent
from agents.semantic import SemanticAgent, SemanticOptions
from core.artefacts import new_run
from core.contracts import Agent, EnvSpec, Field, UserError
from core.directions import fingerprint
from core.roll import Acted, act
from core.trees import Tree, each, flatten, leaves, rows_of, unflatten, where
from envs.nmmo import COLUMN
from envs.planted import PlantedAgent, PlantedOptions, spec_of

FRAMES = EnvSpec(
    env_id="procgen/coinrun",
    obs={"frames": Field(shape=(64, 64, 3), dtype="uint8")},
    action_names=tuple("abcde"),
    slots=1,
)
VECTOR = spec_of(PlantedOptions(), 1)
FIELDS = EnvSpec(
    env_id="craftax/made-up",
    obs={"map": Field(shape=(6,), dtype="bool", kind="binary"), "needs": Field(shape=(3,), dtype="float32")},
    action_names=tuple("abc"),
    slots=1,
)
PARTS = {"Attack.Style": 4, "Attack.Target": 7, "Move.Direction": 5}
MANY = EnvSpec(
    env_id="nmmo",
    obs={
        "Tile": Field(shape=(225, 3), dtype="int16"), "Entity": Field(shape=(6, len(COLUMN)), dtype="int16"),
        "Tick": Field(shape=(1,), dtype="int16"), "Mask": Field(shape=(16,), dtype="int8"),
    },
    action_names=tuple(f"{part}={i}" for part, n in PARTS.items() for i in range(n)),
    slots=1,
    action_parts=PARTS,
)  # fmt: skip
B = 5


def recurrent(
    encoder: str, spec: EnvSpec, recurrence: str = "gru", hidden_size: int = 10, blocks: int = 1
) -> RecurrentAgent:
    """With weights large enough for every part to matter (the policy starts near 0, the state at 0)."""
    torch.manual_seed(0)
    sizes = {"embedding_size": 12, "hidden_size": hidden_size, "blocks": blocks}
    agent = RecurrentAgent(AgentConfig(encoder=encoder, recurrence=recurrence, **sizes), spec).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for h in (agent.h_initial, *agent.h_initial_above):
            h.normal_()
        agent.policy.weight.mul_(100)
    return agent.requires_grad_(False)


def standardised() -> RecurrentAgent:
    torch.manual_seed(0)
    agent = RecurrentAgent(AgentConfig(encoder="mlp", embedding_size=12, hidden_size=10, standardise=True), FIELDS)
    agent.take_in({k: 3 + 2 * torch.randn(5, B, *about.shape) for k, about in FIELDS.obs.items()})
    with torch.no_grad():
        agent.h_initial.normal_()
        agent.policy.weight.mul_(100)
    return agent.eval().requires_grad_(False)


def semantic(recurrence: str, blocks: int = 1, **options: bool) -> SemanticAgent:
    torch.manual_seed(0)
    sizes = {"embedding_size": 10, "hidden_size": 10, "blocks": blocks}
    net = AgentConfig(encoder="mlp", recurrence=recurrence, **sizes)  # type: ignore[arg-type]
    agent = SemanticAgent(net, VECTOR, SemanticOptions(**options)).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for h in (agent.h_initial, *agent.h_initial_above):
            h.normal_()
        agent.policy.weight.mul_(100)
    return agent.requires_grad_(False)


def policy(module: PolicyModule | str) -> PolicyAgent:
    torch.manual_seed(0)
    return PolicyAgent(module, MANY, 32).eval().requires_grad_(False)


class Forgetful(nn.Module):
    """A user's recurrence that does not say where its h lies."""

    def __init__(self, embedding_size: int, size: int) -> None:
        super().__init__()
        self.hidden_size, self.state_size, self.cell = 12, 9, nn.GRUCell(embedding_size, 9)
        self.out = nn.Linear(9, 12)

    def initial(self, batch: int) -> Tensor:
        return self.out.weight.new_zeros(batch, 9)

    def advance(self, e_BE: Tensor, state_BS: Tensor, is_first_B: Tensor) -> tuple[Tensor, Tensor]:
        state_BS = self.cell(e_BE, torch.where(is_first_B[:, None], 0.0, state_BS))
        return self.out(state_BS), state_BS


def unplaced() -> PolicyAgent:
    """A policy with a user's recurrence, whose h is not part of its state."""
    takeru = load_module("takeru")

    class Narrow(takeru.policy):  # type: ignore[misc,name-defined]
        def decode(self, h_BH: Tensor, seen: Tree) -> tuple[Tensor, Tensor]:
            return super().decode(nn.functional.pad(h_BH, (0, 20)), seen)  # type: ignore[no-any-return]

    return policy(PolicyModule("narrow", Narrow, Forgetful, takeru.reward))


class Foreign(nn.Module):
    """Somebody's LSTM, which knows nothing of this package: its state is (h, c)."""

    def __init__(self, spec: EnvSpec, size: int = 6) -> None:
        super().__init__()
        self.spec, self.points, self.size = spec, {"h": size, "cell": size}, size
        self.lstm, self.actor = nn.LSTMCell(8, size), nn.Linear(size, spec.n_actions)
        self.critic = nn.Linear(size, 1)

    def initial(self, batch: int) -> Tree:
        zeros = self.actor.weight.new_zeros(batch, self.size)
        return zeros, zeros

    def encode(self, obs: dict[str, Tensor]) -> Tree:
        return obs["x"]

    def advance(self, seen: Tree, state: Tree, is_first_B: Tensor) -> Tree:
        return self.lstm(seen, where(is_first_B, self.initial(len(is_first_B)), state))

    def heads(self, seen: Tree, state: Tree) -> tuple[Tensor, Tensor]:
        return self.actor(state[0]), self.critic(state[0])[:, 0]

    def read(self, point: str, seen: Tree, state: Tree) -> Tensor:
        return {"h": state[0], "cell": state[1]}[point]

    def replaced(self, point: str, x_BN: Tensor, seen: Tree, state: Tree) -> tuple[Tree, Tree]:
        return seen, {"h": (x_BN, state[1]), "cell": (state[0], x_BN)}[point]


def foreign() -> Foreign:
    torch.manual_seed(0)
    return Foreign(VECTOR).eval().requires_grad_(False)


AGENTS: dict[str, Callable[[], nn.Module]] = {
    "strided": lambda: recurrent("strided", FRAMES),
    "strided_blur": lambda: recurrent("strided_blur", FRAMES),
    "impala": lambda: recurrent("impala", FRAMES),
    "mlp": lambda: recurrent("mlp", VECTOR),
    "standardised": standardised,
    "ema": lambda: recurrent("mlp", VECTOR, "ema"),
    "two blocks": lambda: recurrent("mlp", FIELDS, blocks=2),
    "three blocks of ema": lambda: recurrent("strided", FRAMES, "ema", blocks=3),
    "feed-forward": lambda: recurrent("strided", FRAMES, "none"),
    "feed-forward mlp": lambda: recurrent("mlp", VECTOR, "none"),
    "features": lambda: recurrent("mlp", VECTOR, "features", 12),
    "semantic": lambda: semantic("gru"),
    "semantic features": lambda: semantic("features", ordinal=True),
    "semantic, two blocks": lambda: semantic("gru", 2, ordinal=True),
    "planted": partial(PlantedAgent, PlantedOptions()),
    "planted_products": partial(PlantedAgent, PlantedOptions(kind="gated")),
    "planted_pixels": partial(PlantedAgent, PlantedOptions(kind="pixels")),
    **{name: partial(policy, name) for name in ZOO},
    "unplaced": unplaced,
    "foreign": foreign,
}
FORGET = ("feed-forward", "feed-forward mlp", "features", "semantic features", "takeru")
VIEWS = ("plane", "code")  # points of h itself: what is put there moves h (tests/unit/test_semantic.py)
every = pytest.mark.parametrize("name", AGENTS)
with_memory = pytest.mark.parametrize("name", [name for name in AGENTS if name not in FORGET])
without_memory = pytest.mark.parametrize("name", FORGET)


def observations(agent: Agent, batch: int = B, seed: int = 0) -> dict[str, Tensor]:
    """Of every number type as the world shows them; a fifth of the choices is not allowed."""
    generator = torch.Generator().manual_seed(seed)
    out = example(agent.spec, batch, generator)
    for name, about in agent.spec.obs.items():
        if about.dtype == "uint8":
            out[name] = torch.randint(0, 256, (batch, *about.shape), generator=generator, dtype=torch.uint8)
        elif about.dtype == "float32":
            out[name] = torch.randn(batch, *about.shape, generator=generator)
        elif name == "Mask":
            out[name][:, 2:4] = out[name][:, 8] = 0
    return out


def as_floats(obs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.float() / 255 if v.dtype == torch.uint8 else v for k, v in obs.items()}


def hidden(agent: Agent, seed: int = 1, batch: int = B) -> Tree:
    """A state with everything in it arbitrary."""
    generator = torch.Generator().manual_seed(seed)
    return each(lambda x: torch.randn(x.shape, generator=generator), agent.initial(batch))


def forward(agent: Agent, obs: dict[str, Tensor], state: Tree, is_first: Tensor) -> Acted:
    return act(agent, obs, state, is_first, torch.zeros(len(is_first), dtype=torch.int64))


def tensors_of(*trees: Tree) -> list[Tensor]:
    return list(leaves(trees))


NOT_FIRST = torch.zeros(B, dtype=torch.bool)


@every
def test_shapes(name: str) -> None:
    agent = AGENTS[name]()
    acted = forward(agent, observations(agent), hidden(agent), NOT_FIRST)
    assert acted.logits_BA.shape == (B, agent.spec.n_actions) and acted.value_B.shape == (B,)
    assert all(len(x) == B for x in tensors_of(acted.seen, acted.state))
    # The state is shaped the same before and after, and keeps its number types.
    shapes = [[(x.shape, x.dtype) for x in leaves(s)] for s in (agent.initial(B), acted.state)]
    assert shapes[0] == shapes[1]
    assert [x.shape[1:] for x in leaves(agent.initial(3))] == [x.shape[1:] for x in leaves(acted.state)]
    for point, width in agent.points.items():
        assert agent.read(point, acted.seen, acted.state).shape == (B, width)
    assert "h" in agent.points


@every
def test_pure_nothing_stored_nothing_mutated(name: str) -> None:
    agent = AGENTS[name]()
    obs, state, first = observations(agent), hidden(agent), torch.tensor([True, False, True, False, False])
    kept = [x.clone() for x in (*obs.values(), *leaves(state), first)]
    weights = fingerprint(agent)
    once = forward(agent, obs, state, first)
    forward(agent, observations(agent, seed=9), hidden(agent, 9), ~first)  # another call in between
    for point, width in agent.points.items():
        agent.heads(*agent.replaced(point, torch.ones(B, width), once.seen, once.state))
    again = forward(agent, obs, state, first)
    assert all(torch.equal(a, b) for a, b in zip(leaves(once), leaves(again), strict=True))
    assert all(torch.equal(a, b) for a, b in zip((*obs.values(), *leaves(state), first), kept, strict=True))
    assert fingerprint(agent) == weights
    rng = torch.get_rng_state()
    forward(agent, obs, state, first)
    assert torch.equal(torch.get_rng_state(), rng)


@every
def test_batched_is_single(name: str) -> None:
    agent = AGENTS[name]()
    obs, state, first = observations(agent), hidden(agent), torch.tensor([True, False, True, False, False])
    whole = forward(agent, obs, state, first)
    for b in range(B):
        row = slice(b, b + 1)
        single = forward(agent, {k: v[row] for k, v in obs.items()}, rows_of(state, row), first[row])
        for a, x in zip(leaves(whole), leaves(single), strict=True):
            torch.testing.assert_close(a[row], x, rtol=1e-4, atol=1e-5)


@every
def test_what_is_not_allowed_has_the_least_logit(name: str) -> None:
    agent = AGENTS[name]()
    obs = observations(agent)
    allowed = obs["Mask"] > 0 if "Mask" in obs else torch.ones(B, agent.spec.n_actions, dtype=torch.bool)
    logits = forward(agent, obs, hidden(agent), NOT_FIRST).logits_BA
    assert (logits[~allowed] == -1e9).all() and (logits[allowed] > -1e8).all()


@with_memory
def test_is_first_replaces_the_state_by_the_initial_one(name: str) -> None:
    agent = AGENTS[name]()
    seen, state, first = (
        agent.encode(observations(agent)),
        hidden(agent),
        torch.tensor([True, False, True, False, False]),
    )
    other = hidden(agent, 7)
    out = agent.advance(seen, state, first)
    mixed = where(first, agent.advance(seen, agent.initial(B), NOT_FIRST), agent.advance(seen, state, NOT_FIRST))
    for a, b in zip(leaves(out), leaves(mixed), strict=True):
        torch.testing.assert_close(a, b)
    again = flatten(agent.advance(seen, other, first))
    assert torch.equal(flatten(out)[first], again[first])  # nothing of the old state is left
    assert (flatten(out)[~first] - again[~first]).abs().amax(1).min() > 1e-3
    nowhere = each(lambda x: torch.full_like(x, torch.nan), state)
    assert flatten(agent.advance(seen, nowhere, ~NOT_FIRST)).isfinite().all()


@with_memory
def test_every_input_matters(name: str) -> None:
    """The observation and the state both reach logits and value, and gradients flow back to both."""
    agent = AGENTS[name]()
    obs = {k: v.requires_grad_(v.is_floating_point()) for k, v in as_floats(observations(agent)).items()}
    state = hidden(agent)
    inputs = [v for v in obs.values() if v.requires_grad]
    acted = forward(agent, obs, each(lambda x: x.requires_grad_(), state), NOT_FIRST)
    for out in (acted.logits_BA[acted.logits_BA > -1e8].square().sum(), acted.value_B.sum()):
        for grad in torch.autograd.grad(out, inputs, retain_graph=True) if inputs else ():
            assert grad.abs().sum() > 0 and grad.isfinite().all()
        # h beside the recurrence's own state is what the heads read, not what is remembered: no gradient there.
        found = torch.autograd.grad(out, list(leaves(state)), retain_graph=True, allow_unused=True)
        known = [g for g in found if g is not None]
        assert known and all(g.abs().sum() > 0 and g.isfinite().all() for g in known)
    assert not torch.equal(forward(agent, observations(agent, seed=3), state, NOT_FIRST).h_BH, acted.h_BH)


@without_memory
def test_a_feed_forward_agent_forgets_all_but_the_observation(name: str) -> None:
    """The state before plays no part; where it has a gradient, that is 0."""
    agent = AGENTS[name]()
    obs, state = observations(agent), each(lambda x: x.requires_grad_(), hidden(agent))
    first = torch.tensor([True, False, True, False, False])
    acted = forward(agent, obs, state, NOT_FIRST)
    for other in (forward(agent, obs, hidden(agent, 7), NOT_FIRST), forward(agent, obs, state, first)):
        assert torch.equal(other.logits_BA, acted.logits_BA) and torch.equal(other.value_B, acted.value_B)
    if acted.value_B.requires_grad:
        total = acted.logits_BA.square().sum() + acted.value_B.sum()
        assert all(
            g is None or (g == 0).all() for g in torch.autograd.grad(total, list(leaves(state)), allow_unused=True)
        )


@every
def test_what_is_put_at_a_point_is_read_there_and_nowhere_else(name: str) -> None:
    agent = AGENTS[name]()
    acted = forward(agent, observations(agent), hidden(agent), NOT_FIRST)
    seen, state = acted.seen, acted.state
    before = {point: agent.read(point, seen, state) for point in agent.points if point not in VIEWS}
    for point, width in agent.points.items():
        if point in VIEWS:
            again = agent.replaced(point, agent.read(point, seen, state), seen, state)[1]
            assert all(map(torch.equal, leaves(again), leaves(state)))
            continue
        x = torch.randn(B, width, generator=torch.Generator().manual_seed(3))
        after = agent.replaced(point, x, seen, state)
        assert torch.equal(agent.read(point, *after), x)
        assert all(torch.equal(agent.read(other, *after), before[other]) for other in before if other != point)
        # Its own vector put back changes no bit of anything.
        for a, b in zip(leaves(agent.replaced(point, before[point], seen, state)), leaves((seen, state)), strict=True):
            assert torch.equal(a, b)
    with pytest.raises(KeyError):
        agent.read("nowhere", seen, state)


@every
def test_the_heads_read_a_replaced_h(name: str) -> None:
    agent = AGENTS[name]()
    acted = forward(agent, observations(agent), hidden(agent), NOT_FIRST)
    x = acted.h_BH + torch.randn(acted.h_BH.shape, generator=torch.Generator().manual_seed(3))
    logits, value = agent.heads(*agent.replaced("h", x, acted.seen, acted.state))
    assert (logits - acted.logits_BA).abs().amax(1).min() > 1e-6 and (value - acted.value_B).abs().min() > 1e-6


@pytest.mark.parametrize(
    ("name", "point", "remembers"),
    [
        ("strided", "h", True), ("ema", "h", True), ("two blocks", "h", True), ("two blocks", "block_0", True),
        ("two blocks", "embedding", False), ("foreign", "h", True), ("foreign", "cell", True), ("hybrid", "h", True),
        ("hybrid", "cell", True), ("yaofeng", "h", True), ("yaofeng", "cell", True), ("takeru", "h", False),
        ("feed-forward", "h", False), ("unplaced", "h", False),
    ],
)  # fmt: skip
def test_whether_the_next_step_remembers_what_was_replaced(name: str, point: str, remembers: bool) -> None:
    agent = AGENTS[name]()
    acted = forward(agent, observations(agent), hidden(agent), NOT_FIRST)
    x = agent.read(point, acted.seen, acted.state) + 1
    _, state = agent.replaced(point, x, acted.seen, acted.state)
    later = observations(agent, seed=5)
    plain, moved = (forward(agent, later, s, NOT_FIRST).h_BH for s in (acted.state, state))
    assert torch.equal(plain, moved) != remembers
    if isinstance(agent, PolicyAgent) and point == "h":
        assert agent.describe()["remembers_replaced_h"] == remembers


def test_a_module_that_misplaces_h_is_refused() -> None:
    hybrid = load_module("hybrid")
    for place in (slice(32, None), slice(0, 31)):  # where c is; too narrow

        class Misplaced(hybrid.recurrent):  # type: ignore[misc,name-defined]
            def __init__(self, embedding_size: int, size: int, place: slice = place) -> None:
                super().__init__(embedding_size, size)
                self.places = {"h": place}

        with pytest.raises(UserError, match=r"h does not lie in the state where Recurrent.places says"):
            policy(PolicyModule("bad", hybrid.policy, Misplaced, hybrid.reward))


def test_what_a_module_shows_its_decoder_is_tensors() -> None:
    takeru = load_module("takeru")

    class Lists(takeru.policy):  # type: ignore[misc,name-defined]
        def encode(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tree]:
            e, seen = super().encode(obs)
            return e, [seen]

    with pytest.raises(UserError, match=r"encode gives the decoder: .* not list"):
        policy(PolicyModule("bad", Lists, None, takeru.reward))


@every
def test_a_flat_state_is_the_state(name: str) -> None:
    agent = AGENTS[name]()
    state = hidden(agent)
    flat = flatten(state)
    back = unflatten(flat, agent.initial(1))
    assert flat.shape[0] == B and all(torch.equal(a, b) for a, b in zip(leaves(back), leaves(state), strict=True))
    obs = observations(agent)
    for a, b in zip(*(leaves(forward(agent, obs, s, NOT_FIRST)) for s in (state, back)), strict=True):
        assert torch.equal(a, b)


def test_the_baseline_is_an_agent_too() -> None:
    agent = RandomPolicy(MANY)
    obs = observations(agent)
    acted = forward(agent, obs, agent.initial(B), NOT_FIRST)
    assert acted.h_BH.shape == (B, 0) and not acted.value_B.any()
    assert ((acted.logits_BA == 0) == (obs["Mask"] > 0)).all() and (acted.logits_BA[obs["Mask"] == 0] == -1e9).all()


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
    obs, state = as_floats(observations(agent)), hidden(agent)
    rough = forward(agent, obs, state, NOT_FIRST)
    exact = {k: v.double() if v.is_floating_point() else v for k, v in obs.items()}
    fine = forward(precise, exact, each(lambda x: x.double(), state), NOT_FIRST)
    for a, b in zip(tensors_of(rough.state, rough[3:]), tensors_of(fine.state, fine[3:]), strict=True):
        assert b.dtype == torch.float64
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


def test_an_ema_is_the_running_mean_of_its_inputs() -> None:
    """h = a h + (1 - a) W x, in closed form over six steps; a lies in (0, 1)."""
    cell = EMACell(3, 4).double()
    a = torch.sigmoid(cell.keeps).detach()
    x, h = (
        torch.randn(6, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        torch.zeros(2, 4).double(),
    )
    for x_BX in x:
        h = cell(x_BX, h)
    weight = torch.stack([(1 - a) * a ** (5 - t) for t in range(6)])  # [T, H]
    torch.testing.assert_close(h, torch.einsum("th,tbx,hx->bh", weight, x, cell.input.weight))
    assert (
        ((a > 0) & (a < 1)).all() and a[0].item() == pytest.approx(0.5) and a[-1].item() == pytest.approx(1 - 1 / 200)
    )


@pytest.mark.parametrize(
    "name", ["strided", "strided_blur", "mlp", "feed-forward", "two blocks", "three blocks of ema"]
)
def test_save_and_load_is_the_same_agent(name: str, tmp_path: Path) -> None:
    agent = AGENTS[name]()
    assert isinstance(agent, RecurrentAgent)
    with new_run(tmp_path / "a", "train", {}) as run:
        save_agent(agent, run.path)
    back = load_agent(tmp_path / "a")
    assert fingerprint(back) == fingerprint(agent) and back.spec == agent.spec and back.config == agent.config
    assert not back.training and not any(p.requires_grad for p in back.parameters())
    obs, state = observations(agent), hidden(agent)
    for a, b in zip(*(leaves(forward(who, obs, state, NOT_FIRST)) for who in (agent, back)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(63, 63, 3), (130, 110, 3), (32, 47, 3), (48, 80, 1), (40, 36, 4)])
@pytest.mark.parametrize("encoder", ["impala", "strided", "strided_blur"])
def test_pictures_of_other_sizes_are_read(encoder: EncoderKind, shape: tuple[int, ...]) -> None:
    spec = EnvSpec(env_id="x", obs={"f": Field(shape=shape, dtype="uint8")}, action_names=("a", "b"), slots=1)
    agent = RecurrentAgent(AgentConfig(encoder=encoder, embedding_size=5, hidden_size=4), spec)
    frames = torch.randint(256, (2, *shape), dtype=torch.uint8)
    seen = agent.encode({"f": frames})
    assert seen.shape == (2, 5)
    for axis in (1, 3)[: shape[2]]:  # where things are, and in which of several channels
        assert not torch.equal(seen, agent.encode({"f": frames.flip(axis)}))


def test_misfits_are_user_errors(tmp_path: Path) -> None:
    frames = {k: Field(shape=(64, 64, 3), dtype="uint8") for k in "ab"}
    with pytest.raises(UserError, match="has 2 observation fields; encoder 'strided' reads one"):
        RecurrentAgent(AgentConfig(encoder="strided"), EnvSpec(env_id="x", obs=frames, action_names=("a",), slots=1))
    with pytest.raises(UserError, match="--blocks must be at least 1, not 0"):
        RecurrentAgent(AgentConfig(encoder="mlp", blocks=0), VECTOR)
    with pytest.raises(UserError, match="--hidden_size must be at least 1, not 0"):
        RecurrentAgent(AgentConfig(encoder="mlp", hidden_size=0), VECTOR)
    with pytest.raises(UserError, match="encoder 'impala' does not read x of shape"):
        RecurrentAgent(AgentConfig(encoder="impala"), VECTOR)
    with pytest.raises(UserError, match="encoder 'mlp' does not read frames"):
        RecurrentAgent(AgentConfig(encoder="mlp"), FRAMES)
    for shape in ((31, 64, 3), (64, 64)):
        small = EnvSpec(env_id="x", obs={"f": Field(shape=shape, dtype="uint8")}, action_names=("a",), slots=1)
        with pytest.raises(
            UserError, match=r"pictures \(height, width, channels\) of 32 pixels a side at least, not \("
        ):
            RecurrentAgent(AgentConfig(encoder="strided"), small)
    with new_run(tmp_path / "r", "record", {}):
        pass
    with pytest.raises(UserError, match="holds no agent .*'record' wrote it"):
        load_agent(tmp_path / "r")
    with pytest.raises(UserError, match="no such run directory"):
        load_agent(tmp_path / "none")
